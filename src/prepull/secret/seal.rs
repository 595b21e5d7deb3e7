//! How the store keeps credentials: encrypted, with a key in a file of its own.
//!
//! They are not left out of the store, because an item that was acknowledged must be pulled after a restart too, and who
//! asked for it may be gone by then. They are not stored as they are, because a database gets about: a backup, a copy for
//! support, a snapshot of the disk's partition. Without `secret.key` beside it, it reveals nothing of them but how long
//! they are. Whoever can read both files is root on this node, and root can read the pods' secrets anyway.
//!
//! A sealed text is `version (1) | key's id (8) | nonce (12) | ciphertext and tag`, by ChaCha20-Poly1305. Nonces are
//! random; 2^32 of them under one key are safe, which a queue of some thousand items does not come near. The identity of
//! the item is authenticated with it, so that a text copied from one item to another does not open.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::{Zeroize as _, Zeroizing};

use super::{Credential, Written};
use crate::store::private;

/// The key's file in the state directory.
pub const KEY_FILE: &str = "secret.key";
const KEY_BYTES: usize = 32;
const KEY_ID_BYTES: usize = 8;
const VERSION: u8 = 1;
const NO_RANDOM: &str = "the system gives no random numbers";

/// Seals credentials for the store. Cheap to use, made once.
pub struct Sealer {
    key: LessSafeKey,
    id: [u8; KEY_ID_BYTES],
    path: PathBuf,
    random: SystemRandom,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be read, or not be made.
    #[error("{}: {source}", path.display())]
    Io {
        /// The key's file.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// Others than its owner can read it.
    #[error(
        "{}: has mode {mode:04o}, so others may know the key; run `chmod 600` on it, and change the registry passwords \
         that were queued if somebody else had access", path.display()
    )]
    Readable {
        /// The key's file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is something else.
    #[error(
        "{}: is not a key of 32 bytes; restore it, or remove it: then a new one is made, and private items that are \
         queued have to be added again", path.display()
    )]
    NotAKey {
        /// The key's file.
        path: PathBuf,
    },
}

/// Why credentials cannot be sealed, or what was sealed does not open. The item cannot be pulled as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Sealed with a key that is gone.
    #[error(
        "the credentials of this item were sealed with another key than the one in {}, which was lost or replaced; \
         restore it and restart crisp, or add the item again with its credentials", path.display()
    )]
    OtherKey {
        /// The key's file.
        path: PathBuf,
    },
    /// By a crisp that is newer than this one.
    #[error("the credentials of this item were sealed by a newer crisp; run that, or add the item again")]
    Newer,
    /// Changed after it was sealed, or sealed for another item.
    #[error("the stored credentials of this item are damaged; add the item again with its credentials")]
    Damaged,
    /// The system gives no random numbers.
    #[error("the credentials cannot be sealed: the system gives no random numbers")]
    Random,
}

// === impl Sealer ===

impl Sealer {
    /// Reads the key from the state directory, or makes one there. Blocks on the disk.
    pub fn open(state_dir: &Path) -> Result<Self, OpenError> {
        let path = state_dir.join(KEY_FILE);
        let io_error = |source| OpenError::Io { path: path.clone(), source };
        let random = SystemRandom::new();
        let file = match private::read(&path, KEY_BYTES).map_err(io_error)? {
            None => {
                let mut key = Zeroizing::new([0; KEY_BYTES]);
                random.fill(key.as_mut()).map_err(|_| io_error(io::Error::other(NO_RANDOM)))?;
                private::create(&path, key.as_ref()).map_err(io_error)?;
                private::read(&path, KEY_BYTES).map_err(io_error)?
            }
            found => found,
        };
        let private::Private { bytes, readable } =
            file.ok_or_else(|| io_error(io::ErrorKind::NotFound.into()))?;
        if let Some(mode) = readable {
            return Err(OpenError::Readable { path, mode });
        }
        // The algorithm refuses any other length.
        let Ok(key) = UnboundKey::new(&CHACHA20_POLY1305, &bytes) else {
            return Err(OpenError::NotAKey { path });
        };
        let tag =
            hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &bytes), b"crisp: id of a key for credentials");
        let mut id = [0; KEY_ID_BYTES];
        id.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
        Ok(Self { key: LessSafeKey::new(key), id, path, random })
    }

    /// Seals credentials for the item that `aad` names. They open for the same `aad` only.
    pub fn seal(&self, credentials: &[Credential], aad: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).map_err(|_| SealError::Random)?;
        let written: Vec<_> = credentials.iter().map(Credential::written).collect();
        let mut text = serde_json::to_vec(&written).map_err(|_| SealError::Damaged)?;
        let sealed = self.key.seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(bound(aad)),
            &mut text,
        );
        let Ok(tag) = sealed else {
            text.zeroize();
            return Err(SealError::Damaged);
        };
        Ok([&[VERSION][..], &self.id, &nonce, &text, tag.as_ref()].concat())
    }

    /// Opens what [`Sealer::seal`] made for the same `aad`.
    pub fn unseal(&self, sealed: &[u8], aad: &[u8]) -> Result<Vec<Credential>, SealError> {
        let (version, rest) = sealed.split_first().ok_or(SealError::Damaged)?;
        if *version > VERSION {
            return Err(SealError::Newer);
        }
        let (id, rest) = rest.split_at_checked(KEY_ID_BYTES).ok_or(SealError::Damaged)?;
        let (nonce, text) = rest.split_at_checked(NONCE_LEN).ok_or(SealError::Damaged)?;
        if *version != VERSION {
            return Err(SealError::Damaged);
        }
        if id != self.id {
            return Err(SealError::OtherKey { path: self.path.clone() });
        }
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Damaged)?;
        let mut text = Zeroizing::new(text.to_vec());
        let text = self
            .key
            .open_in_place(nonce, Aad::from(bound(aad)), &mut text)
            .map_err(|_| SealError::Damaged)?;
        let written: Vec<Written> = serde_json::from_slice(text).map_err(|_| SealError::Damaged)?;
        written.into_iter().map(|one| Credential::new(one).map_err(|_| SealError::Damaged)).collect()
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("path", &self.path).finish_non_exhaustive()
    }
}

/// What is authenticated besides: the version, so that no other reading of the same bytes opens, and the item.
fn bound(aad: &[u8]) -> Vec<u8> {
    [&[VERSION], aad].concat()
}

#[cfg(test)]
mod tests;
