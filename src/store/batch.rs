//! What a commit changes.

use std::fmt;

use redb::TableHandle as _;

use crate::store::error::CommitError;
use crate::store::format;

/// The most bytes that one value can have.
pub const MAX_VALUE: usize = 1 << 20;

/// The most bytes that one batch can have, all values together.
pub const MAX_BATCH: usize = 16 << 20;

/// What an operation counts in a batch besides its value, so that a batch of removals is bounded too.
const OVERHEAD: usize = 32;

/// Changes that come to be together or not at all, in the order in which they were added.
///
/// The names of tables are constants of those who use the store; a table exists by being used.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Batch {
    operations: Vec<Operation>,
}

/// One change. Without a value the key is removed.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Operation {
    Item { table: &'static str, key: u64, value: Option<Vec<u8>> },
    Meta { key: String, value: Option<Vec<u8>> },
}

// === impl Batch ===

impl Batch {
    /// A batch that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the value of a key of a table.
    pub fn put(&mut self, table: &'static str, key: u64, value: impl Into<Vec<u8>>) -> &mut Self {
        self.push(Operation::Item { table, key, value: Some(value.into()) })
    }

    /// Removes a key from a table; one that is not there is no error.
    pub fn remove(&mut self, table: &'static str, key: u64) -> &mut Self {
        self.push(Operation::Item { table, key, value: None })
    }

    /// Sets the value of a key of the meta table.
    pub fn put_meta(&mut self, key: impl Into<String>, value: impl Into<Vec<u8>>) -> &mut Self {
        self.push(Operation::Meta { key: key.into(), value: Some(value.into()) })
    }

    /// Removes a key from the meta table; one that is not there is no error.
    pub fn remove_meta(&mut self, key: impl Into<String>) -> &mut Self {
        self.push(Operation::Meta { key: key.into(), value: None })
    }

    /// How many changes there are.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    pub(super) fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// About how much memory this takes.
    pub(super) fn bytes(&self) -> usize {
        self.operations.iter().map(|operation| OVERHEAD + operation.key_len() + operation.value_len()).sum()
    }

    /// Refuses what cannot be stored, before anything is written.
    pub(super) fn check(&self) -> Result<(), CommitError> {
        for operation in &self.operations {
            let len = operation.value_len();
            if len > MAX_VALUE {
                return Err(CommitError::ValueTooLarge { key: operation.to_string(), len });
            }
            let reserved = match operation {
                Operation::Item { table, .. } => *table == format::META.name(),
                Operation::Meta { key, .. } => format::RESERVED.contains(&key.as_str()),
            };
            if reserved || operation.key_len() > MAX_VALUE {
                return Err(CommitError::Key(operation.to_string()));
            }
        }
        match self.bytes() {
            len if len > MAX_BATCH => Err(CommitError::BatchTooLarge { len }),
            _ => Ok(()),
        }
    }

    fn push(&mut self, operation: Operation) -> &mut Self {
        self.operations.push(operation);
        self
    }
}

/// Values may hold what does not belong into a log.
impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.operations.iter().map(Operation::to_string)).finish()
    }
}

// === impl Operation ===

impl Operation {
    fn key_len(&self) -> usize {
        match self {
            Self::Item { .. } => size_of::<u64>(),
            Self::Meta { key, .. } => key.len(),
        }
    }

    fn value_len(&self) -> usize {
        let (Self::Item { value, .. } | Self::Meta { value, .. }) = self;
        value.as_ref().map_or(0, Vec::len)
    }
}

/// Which key it is about.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Item { table, key, .. } => write!(f, "{table}/{key}"),
            Self::Meta { key, .. } => write!(f, "meta/{key:.64}"),
        }
    }
}
