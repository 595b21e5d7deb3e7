//! The format of the file: its version, and the way from an older one.
//!
//! The meta table holds, besides what others put there, the version of the format, which crisp wrote it first, and
//! the number of the last transaction. What the tables hold is the business of those who use the store: this version
//! counts what the store itself would have to change.

use std::path::Path;

use redb::{Database, ReadableDatabase as _, TableDefinition, WriteTransaction};

use crate::store::error::OpenError;

/// Names and values that belong to the file as a whole.
pub(super) const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");

/// Keys of [`META`] that are the store's own.
const FORMAT: &str = "format";
const MADE_BY: &str = "made-by";
const SEQUENCE: &str = "sequence";
pub(super) const RESERVED: [&str; 3] = [FORMAT, MADE_BY, SEQUENCE];

/// Takes a file from one format to the next, inside a transaction.
pub(super) type Migration = fn(&WriteTransaction) -> Result<(), redb::Error>;

/// The first takes format 1 to 2, the next 2 to 3 and so on. There is only one format yet.
pub(super) const MIGRATIONS: &[Migration] = &[];

/// The format that a list of migrations ends at.
pub(super) fn newest(migrations: &[Migration]) -> u32 {
    // A list that long would not compile in a lifetime.
    u32::try_from(migrations.len()).unwrap_or(u32::MAX).saturating_add(1)
}

/// Marks an empty file as a store.
pub(super) fn stamp(database: &Database, format: u32) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    write(&transaction, format)?;
    set_sequence(&transaction, 0)?;
    transaction.commit()?;
    Ok(())
}

/// Brings a file to the newest format, all in one transaction, so that a crash leaves either the old or the new one.
pub(super) fn migrate(database: &Database, migrations: &[Migration], path: &Path) -> Result<(), OpenError> {
    let newest = newest(migrations);
    let (found, made_by) = read(database, path)?;
    if found > newest {
        return Err(OpenError::Newer { path: path.to_owned(), found, known: newest, made_by });
    }
    let Some(done) = found.checked_sub(1) else {
        return Err(OpenError::damaged(path, "there is no store format 0"));
    };
    let pending = migrations.get(done as usize..).unwrap_or_default();
    if pending.is_empty() {
        return Ok(());
    }
    let run = || -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        for migration in pending {
            migration(&transaction)?;
        }
        write(&transaction, newest)?;
        transaction.commit()?;
        Ok(())
    };
    run().map_err(|error| OpenError::Migration {
        path: path.to_owned(),
        from: found,
        to: newest,
        cause: error.to_string(),
    })
}

/// The number of the last transaction.
pub(super) fn sequence(database: &Database) -> Result<u64, redb::Error> {
    let bytes = get(database, SEQUENCE)?.and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
    bytes.ok_or_else(|| redb::Error::Corrupted("the number of the last transaction is missing".into()))
}

/// Writes the number of a transaction into it.
pub(super) fn set_sequence(transaction: &WriteTransaction, sequence: u64) -> Result<(), redb::Error> {
    transaction.open_table(META)?.insert(SEQUENCE, sequence.to_le_bytes().as_slice())?;
    Ok(())
}

/// The value of a key of [`META`].
pub(super) fn get(database: &Database, key: &str) -> Result<Option<Vec<u8>>, redb::Error> {
    let transaction = database.begin_read()?;
    match transaction.open_table(META) {
        Ok(table) => Ok(table.get(key)?.map(|value| value.value().to_vec())),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn read(database: &Database, path: &Path) -> Result<(u32, String), OpenError> {
    let get = |key| get(database, key).map_err(|error| OpenError::of(path, error));
    let format = get(FORMAT)?.and_then(|bytes| Some(u32::from_le_bytes(bytes.try_into().ok()?)));
    let format =
        format.ok_or_else(|| OpenError::damaged(path, "it does not say which store format it has"))?;
    let made_by = get(MADE_BY)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok((format, made_by.unwrap_or_else(|| "of an unknown version".into())))
}

fn write(transaction: &WriteTransaction, format: u32) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(META)?;
    table.insert(FORMAT, format.to_le_bytes().as_slice())?;
    table.insert(MADE_BY, env!("CARGO_PKG_VERSION").as_bytes())?;
    Ok(())
}
