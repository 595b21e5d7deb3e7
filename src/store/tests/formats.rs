//! Files of other formats.

use redb::{ReadableTable as _, TableDefinition, WriteTransaction};

use super::disk::Disk;
use super::random::Random;
use super::*;
use crate::store::format::Migration;

const TABLE: TableDefinition<'static, u64, &[u8]> = TableDefinition::new(ITEMS);

/// Adds a letter to every value: whether it has been done, and how often, can be seen.
fn add(transaction: &WriteTransaction, letter: u8) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(TABLE)?;
    for key in 0..30 {
        let value = table.get(key)?.map(|value| value.value().to_vec());
        let mut value = value.ok_or_else(|| redb::Error::Corrupted("an item is missing".into()))?;
        value.push(letter);
        table.insert(key, value.as_slice())?;
    }
    Ok(())
}

const TO_2: Migration = |transaction| add(transaction, b'2');
const TO_3: Migration = |transaction| add(transaction, b'3');
const FAILS: Migration = |_| Err(redb::Error::Corrupted("cannot be done".into()));

/// A disk with a store of format 1.
async fn old() -> Disk {
    let disk = Disk::new();
    let store = disk.create();
    for key in 0..30 {
        store.commit(put(key, "1")).await.unwrap();
    }
    store.close().await;
    disk
}

/// The one value that all items have.
fn value(store: &Store) -> String {
    let items = items(store);
    assert_eq!(items.len(), 30);
    let value = items[&0].clone();
    assert!(items.values().all(|other| *other == value), "half migrated: {items:?}");
    value
}

fn open(disk: &Disk, migrations: &'static [Migration]) -> Result<Store, OpenError> {
    Store::start(disk.engine(migrations)?)
}

#[tokio::test]
async fn an_older_one_is_migrated_step_by_step_and_once() {
    let disk = old().await;
    assert_eq!(value(&open(&disk, &[TO_2]).unwrap()), "12");
    assert_eq!(value(&open(&disk, &[TO_2]).unwrap()), "12");
    assert_eq!(value(&open(&disk, &[TO_2, TO_3]).unwrap()), "123");
    assert_eq!(value(&open(&old().await, &[TO_2, TO_3]).unwrap()), "123");
    // And it goes on from there.
    let store = open(&disk, &[TO_2, TO_3]).unwrap();
    store.commit(put(0, "new")).await.unwrap();
    assert_eq!(items(&store)[&0], "new");
}

#[tokio::test]
async fn a_newer_one_is_refused_with_instructions() {
    let disk = old().await;
    drop(open(&disk, &[TO_2, TO_3]).unwrap());
    let error = open(&disk, &[TO_2]).unwrap_err();
    let ours = env!("CARGO_PKG_VERSION");
    assert_eq!(
        error.to_string(),
        format!(
            "disk: it has store format 3, made by crisp {ours}, and this is crisp {ours} which knows formats up to 2; \
             install crisp {ours} or newer again, or move the file away to begin with an empty store: \
             mv disk disk.format-3"
        )
    );
    // It was not touched.
    assert_eq!(value(&open(&disk, &[TO_2, TO_3]).unwrap()), "123");
}

#[tokio::test]
async fn one_that_cannot_be_migrated_stays_as_it_was() {
    let disk = old().await;
    let error = open(&disk, &[TO_2, FAILS]).unwrap_err();
    assert!(matches!(error, OpenError::Migration { from: 1, to: 3, .. }), "{error}");
    assert!(error.to_string().contains("cannot be done"), "{error}");
    assert_eq!(value(&open(&disk, &[]).unwrap()), "1");
}

/// The power goes at every write and sync of a migration in turn.
#[tokio::test]
async fn a_migration_happens_wholly_or_not_at_all() {
    let disk = old().await;
    let before = disk.operations();
    let whole = disk.copy();
    drop(open(&whole, &[TO_2, TO_3]).unwrap());
    let operations = whole.operations() - before;
    assert!(operations > 10, "{operations}");
    let (mut kept, mut undone) = (0, 0);
    for seed in 0..4 {
        for operation in 1..=operations {
            let mut random = Random(seed << 32 | operation);
            let disk = disk.copy();
            disk.lose_power_after(operation);
            drop(open(&disk, &[TO_2, TO_3]));
            disk.restore_power(&mut random);
            match open(&disk.copy(), &[]) {
                Ok(store) => {
                    assert_eq!(value(&store), "1");
                    undone += 1;
                }
                Err(OpenError::Newer { found: 3, .. }) => kept += 1,
                Err(error) => panic!("operation {operation} of seed {seed}: {error}"),
            }
            assert_eq!(value(&open(&disk, &[TO_2, TO_3]).unwrap()), "123");
        }
    }
    assert!(kept > 0 && undone > 0, "{kept} {undone}");
}
