//! The keys under which records hash what may be secret ([`crate::container::record`]).
//!
//! Environment and arguments come with the values of Secrets in them. A plain hash of a short password can be guessed, so
//! records hold keyed hashes, and the keys are of this node only: `record.keys` in the state directory, for its owner
//! alone. Without it a record tells nothing but whether two values are the same. A key that was replaced is still read,
//! for the records that were made with it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

use crate::store::private;

/// The file in the state directory.
pub const KEYS_FILE: &str = "record.keys";
/// So many keys are kept; with more, the oldest goes. Records made with that one can no longer be compared.
pub const MAX_KEYS: usize = 16;

const KEY_BYTES: usize = 32;
const ID_BYTES: usize = 6;
const VERSION: u64 = 1;
/// Far more than [`MAX_KEYS`] take.
const MAX_FILE: usize = 16 << 10;

/// The keys of this node, the current one among them.
pub struct Keys {
    current: Key,
    older: Vec<Key>,
}

/// One key. It is overwritten when it is dropped.
pub struct Key {
    id: String,
    /// Seconds since 1970.
    created: u64,
    bytes: Zeroizing<[u8; KEY_BYTES]>,
}

/// Why there are no keys from the disk.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file cannot be read, or not be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The keys' file.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// Others than its owner can read it.
    #[error(
        "{}: has mode {mode:04o}, so others may know the keys and could guess short secrets from records; remove it if \
         somebody else had access (containers made before are then not compared), or run `chmod 600` on it",
        path.display()
    )]
    Readable {
        /// The keys' file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is something else, or damaged.
    #[error(
        "{}: {reason}; restore it, or remove it: then a new key is made, and containers made before are not compared \
         with those that come after them", path.display()
    )]
    Damaged {
        /// The keys' file.
        path: PathBuf,
        /// What is wrong with it. Never a part of its text.
        reason: &'static str,
    },
    /// By a crisp that is newer than this one.
    #[error("{}: was written by a newer crisp (version {version}); run that, or remove the file", path.display())]
    Newer {
        /// The keys' file.
        path: PathBuf,
        /// The version it says it has.
        version: u64,
    },
    /// The system gives no random numbers.
    #[error("no key for records can be made: the system gives no random numbers")]
    Random,
}

/// The file's form: the newest key first.
#[derive(Serialize, Deserialize)]
struct Written {
    v: u64,
    keys: Vec<WrittenKey>,
}

#[derive(Serialize, Deserialize)]
struct WrittenKey {
    id: String,
    created: u64,
    key: String,
}

// === impl Keys ===

impl Keys {
    /// Reads the keys from the state directory, or makes a first one there. Blocks on the disk.
    ///
    /// A current key that is older than `max_age` is replaced (never with `max_age` zero); a crisp that runs for long opens
    /// the keys again from time to time. When this fails, [`Keys::in_memory`] serves until the operator has helped.
    pub fn open(state_dir: &Path, max_age: Duration) -> Result<Self, KeysError> {
        Self::open_at(state_dir, max_age, SystemTime::now())
    }

    fn open_at(state_dir: &Path, max_age: Duration, now: SystemTime) -> Result<Self, KeysError> {
        let path = state_dir.join(KEYS_FILE);
        let io_error = |source| KeysError::Io { path: path.clone(), source };
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let file = match private::read(&path, MAX_FILE).map_err(io_error)? {
            None => {
                let first = Self { current: Key::new(now)?, older: Vec::new() };
                private::create(&path, &first.json()).map_err(io_error)?;
                // Read back: another crisp may have been quicker.
                private::read(&path, MAX_FILE).map_err(io_error)?
            }
            found => found,
        };
        let file = file.ok_or_else(|| io_error(io::ErrorKind::NotFound.into()))?;
        if let Some(mode) = file.readable {
            return Err(KeysError::Readable { path, mode });
        }
        let mut keys = Self::parse(&file.bytes, &path)?;
        // A key from the future has no age: clocks are set back.
        if !max_age.is_zero() && now.saturating_sub(keys.current.created) > max_age.as_secs() {
            keys.rotate(now)?;
            if let Err(error) = private::replace(&path, &keys.json()) {
                // The one that was there is on the disk, which counts for more than its age.
                tracing::warn!(path = %path.display(), %error, "the key for records stays as old as it is: the new one cannot be written");
                keys.current = keys.older.remove(0);
            }
        }
        Ok(keys)
    }

    /// One key that ends with the process. Containers made with it cannot be compared after a restart of crisp.
    pub fn in_memory() -> Result<Self, KeysError> {
        Ok(Self { current: Key::new(0)?, older: Vec::new() })
    }

    /// The key for new records.
    pub fn current(&self) -> &Key {
        &self.current
    }

    /// The key that a record names, current or older.
    pub fn get(&self, id: &str) -> Option<&Key> {
        std::iter::once(&self.current).chain(&self.older).find(|key| key.id == id)
    }

    fn rotate(&mut self, now: u64) -> Result<(), KeysError> {
        let before = std::mem::replace(&mut self.current, Key::new(now)?);
        self.older.insert(0, before);
        self.older.truncate(MAX_KEYS - 1);
        Ok(())
    }

    fn json(&self) -> Zeroizing<Vec<u8>> {
        let keys = std::iter::once(&self.current).chain(&self.older);
        let keys = keys.map(|key| WrittenKey {
            id: key.id.clone(),
            created: key.created,
            key: BASE64_STANDARD.encode(key.bytes.as_ref()),
        });
        let written = Written { v: VERSION, keys: keys.collect() };
        // With room for all of it, so that no copy of a part is left behind when it grows. It cannot fail: all is text.
        let mut json = Zeroizing::new(Vec::with_capacity(MAX_FILE));
        serde_json::to_writer(&mut *json, &written).unwrap_or_default();
        json
    }

    fn parse(json: &[u8], path: &Path) -> Result<Self, KeysError> {
        #[derive(Deserialize)]
        struct Version {
            v: u64,
        }

        let damaged = |reason| KeysError::Damaged { path: path.to_owned(), reason };
        if json.len() > MAX_FILE {
            return Err(damaged("is longer than any file of keys"));
        }
        match serde_json::from_slice::<Version>(json) {
            Ok(Version { v: VERSION }) => {}
            Ok(Version { v }) if v > VERSION => {
                return Err(KeysError::Newer { path: path.to_owned(), version: v });
            }
            _ => return Err(damaged("is not a file of keys")),
        }
        let written: Written =
            serde_json::from_slice(json).map_err(|_| damaged("has no list of keys as crisp writes it"))?;
        if written.keys.len() > MAX_KEYS {
            return Err(damaged("has more keys than crisp keeps"));
        }
        let mut keys = Vec::with_capacity(written.keys.len());
        for one in &written.keys {
            let bytes = BASE64_STANDARD.decode(&one.key).map(Zeroizing::new);
            let bytes = bytes.ok().and_then(|bytes| <[u8; KEY_BYTES]>::try_from(bytes.as_slice()).ok());
            let key = Key::of(bytes.ok_or_else(|| damaged("has a key that is not 32 bytes"))?, one.created);
            if key.id != one.id {
                return Err(damaged("has a key that does not fit its id"));
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(damaged("has no key"));
        }
        let current = keys.remove(0);
        Ok(Self { current, older: keys })
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("current", &self.current).field("older", &self.older.len()).finish()
    }
}

// === impl Key ===

impl Key {
    fn new(created: u64) -> Result<Self, KeysError> {
        let mut bytes = [0; KEY_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| KeysError::Random)?;
        Ok(Self::of(bytes, created))
    }

    fn of(mut from: [u8; KEY_BYTES], created: u64) -> Self {
        let bytes = Zeroizing::new(from);
        from.zeroize();
        let tag = hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, bytes.as_ref()),
            b"crisp: id of a key for records of containers",
        );
        let id = tag.as_ref().get(..ID_BYTES).unwrap_or_default();
        Self { id: BASE64_URL_SAFE_NO_PAD.encode(id), created, bytes }
    }

    /// A key that everybody knows.
    #[cfg(test)]
    pub(super) fn known(byte: u8) -> Self {
        Self::of([byte; KEY_BYTES], 0)
    }

    /// By which records name it. Reveals nothing of it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The key as the algorithm takes it.
    pub(super) fn hmac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.bytes.as_ref())
    }
}

/// The id alone.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

// === impl WrittenKey ===

impl Drop for WrittenKey {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

#[cfg(test)]
mod tests;
