//! An open redb file, and how to get one again after the disk has refused something.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{
    Builder, Database, DatabaseError, Durability, ReadableDatabase as _, ReadableTable as _, Table,
    TableDefinition, TableError, WriteTransaction,
};

use crate::store::batch::{Batch, Operation};
use crate::store::error::{CommitError, OpenError, ReadError};
use crate::store::format::{self, META, Migration};

/// Opens the file, as often as it is called: redb is of no use after an error of the disk until it is opened anew.
pub(super) type Opener = Box<dyn FnMut(&Builder) -> Result<Database, DatabaseError> + Send>;

/// What tests choose otherwise.
#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    /// How much redb keeps in memory. Its own default is 1 GiB; crisp reads once and then only writes.
    pub(super) cache: usize,
    pub(super) migrations: &'static [Migration],
}

/// An open file.
pub(super) struct Engine {
    name: PathBuf,
    opener: Opener,
    options: Options,
    state: State,
}

enum State {
    Open {
        database: Database,
        /// The number of the last transaction that is on the disk.
        sequence: u64,
    },
    /// The disk refused something, and then to be opened again.
    Lost,
    Closed,
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self { cache: 1 << 20, migrations: format::MIGRATIONS }
    }
}

// === impl Engine ===

impl Engine {
    /// Makes an empty store where nothing is yet.
    pub(super) fn create(name: PathBuf, mut opener: Opener, options: Options) -> Result<Self, OpenError> {
        let mut builder = Builder::new();
        builder.set_cache_size(options.cache);
        let database = opener(&builder).map_err(|error| OpenError::of(&name, error))?;
        format::stamp(&database, format::newest(options.migrations))
            .map_err(|error| OpenError::of(&name, error))?;
        Ok(Self { name, opener, options, state: State::Open { database, sequence: 0 } })
    }

    /// Opens what is there, verifies and, if it is of an older format, migrates it.
    pub(super) fn open(name: PathBuf, opener: Opener, options: Options) -> Result<Self, OpenError> {
        let mut engine = Self { name, opener, options, state: State::Lost };
        engine.reopen()?;
        Ok(engine)
    }

    /// Where the file is, for messages.
    pub(super) fn name(&self) -> &Path {
        &self.name
    }

    /// Writes all batches in one transaction that is on the disk when this returns.
    pub(super) fn write(&mut self, batches: &[Batch]) -> Result<(), CommitError> {
        if matches!(self.state, State::Lost) {
            self.reopen().map_err(CommitError::not_opened)?;
        }
        let State::Open { database, sequence } = &mut self.state else {
            return Err(CommitError::Closed);
        };
        let next = *sequence + 1;
        let result = catch_unwind(AssertUnwindSafe(|| transact(database, batches, next)));
        match result.unwrap_or_else(|_| Err(redb::Error::Corrupted("redb panicked".into()))) {
            Ok(()) => {
                *sequence = next;
                Ok(())
            }
            Err(error) => self.settle(next, error),
        }
    }

    /// Finds out what became of a transaction that failed: its number is in the file, or it is not.
    fn settle(&mut self, failed: u64, error: redb::Error) -> Result<(), CommitError> {
        // First let go of the file, or it could not be opened again.
        self.state = State::Lost;
        tracing::warn!(store = %self.name.display(), %error, "a commit failed; opening the store again");
        match self.reopen() {
            Ok(sequence) if sequence >= failed => Ok(()),
            Ok(_) => Err(CommitError::not_written(error)),
            Err(again) => Err(CommitError::Unknown(format!("{error}; and then: {again}").into())),
        }
    }

    /// Everything in a table, by key.
    pub(super) fn load(&mut self, table: &'static str) -> Result<Vec<(u64, Vec<u8>)>, ReadError> {
        let mut all = Vec::new();
        self.each(table, |key, value| all.push((key, value.to_vec())))?;
        Ok(all)
    }

    /// Shows everything in a table, by key.
    pub(super) fn each(
        &mut self,
        table: &'static str,
        mut show: impl FnMut(u64, &[u8]),
    ) -> Result<(), ReadError> {
        self.read(|database| {
            let transaction = database.begin_read()?;
            let table = match transaction.open_table(items(table)) {
                Ok(table) => table,
                Err(TableError::TableDoesNotExist(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            for entry in table.iter()? {
                let (key, value) = entry?;
                show(key.value(), value.value());
            }
            Ok(())
        })
    }

    /// The value of a key of the meta table.
    pub(super) fn meta(&mut self, key: &str) -> Result<Option<Vec<u8>>, ReadError> {
        self.read(|database| format::get(database, key))
    }

    /// Lets go of the file. Every transaction is on the disk already; what redb still writes saves the next one that
    /// opens the file some work, and if it cannot, that is no loss.
    pub(super) fn close(&mut self) {
        self.state = State::Closed;
    }

    fn read<T>(&mut self, read: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, ReadError> {
        if matches!(self.state, State::Lost) {
            self.reopen().map_err(|error| ReadError::Failed(error.to_string()))?;
        }
        let State::Open { database, .. } = &self.state else { return Err(ReadError::Closed) };
        read(database).map_err(|error| {
            self.state = State::Lost;
            ReadError::Failed(error.to_string())
        })
    }

    /// Opens the file, and says which transaction was its last.
    ///
    /// redb reads some of a file before it verifies it, and of damaged ones it panics over a few.
    fn reopen(&mut self) -> Result<u64, OpenError> {
        catch_unwind(AssertUnwindSafe(|| self.verify()))
            .unwrap_or_else(|_| Err(OpenError::damaged(&self.name, "its parts contradict each other")))
    }

    fn verify(&mut self) -> Result<u64, OpenError> {
        let repaired = Arc::new(AtomicBool::new(false));
        let mut builder = Builder::new();
        builder.set_cache_size(self.options.cache).set_repair_callback({
            let repaired = repaired.clone();
            move |_| repaired.store(true, Ordering::Relaxed)
        });
        let of = |error: redb::Error| OpenError::of(&self.name, error);
        let mut database = (self.opener)(&builder).map_err(|error| of(error.into()))?;
        // After a crash redb has verified all checksums already. After a clean end it would trust the file.
        if !repaired.load(Ordering::Relaxed) {
            database.check_integrity().map_err(|error| of(error.into()))?;
        }
        format::migrate(&database, self.options.migrations, &self.name)?;
        let sequence = format::sequence(&database).map_err(of)?;
        self.state = State::Open { database, sequence };
        Ok(sequence)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("name", &self.name).finish_non_exhaustive()
    }
}

fn items(table: &str) -> TableDefinition<'_, u64, &'static [u8]> {
    TableDefinition::new(table)
}

/// One transaction, with its number in it.
///
/// Without redb's quick repair: that writes more and syncs twice, 6 ms a commit instead of 4 on the disk where it was
/// measured, and saves at the next start the look at the whole file which crisp takes anyway: 60 ms for 10,000 values
/// of a kilobyte.
///
/// Nor is the file ever compacted: free pages are used again, so that it stays at the most that it held at a time
/// (16 MiB for those 10,000, however often they are replaced), and a clean end cuts off what is free at its end.
fn transact(database: &Database, batches: &[Batch], sequence: u64) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    apply(&transaction, batches)?;
    format::set_sequence(&transaction, sequence)?;
    transaction.commit()?;
    Ok(())
}

fn apply(transaction: &WriteTransaction, batches: &[Batch]) -> Result<(), redb::Error> {
    let mut meta = transaction.open_table(META)?;
    // Few tables, so a list will do. redb wants each to be open only once.
    let mut tables: Vec<(&str, Table<'_, u64, &[u8]>)> = Vec::new();
    for operation in batches.iter().flat_map(Batch::operations) {
        match operation {
            Operation::Meta { key, value: Some(value) } => drop(meta.insert(key.as_str(), value.as_slice())?),
            Operation::Meta { key, value: None } => drop(meta.remove(key.as_str())?),
            Operation::Item { table, key, value } => {
                let position = tables.iter().position(|(name, _)| name == table);
                let position = match position {
                    Some(position) => position,
                    None => {
                        tables.push((table, transaction.open_table(items(table))?));
                        tables.len() - 1
                    }
                };
                let (_, table) = &mut tables[position];
                match value {
                    Some(value) => drop(table.insert(key, value.as_slice())?),
                    None => drop(table.remove(key)?),
                }
            }
        }
    }
    Ok(())
}
