//! What makes two pulls equal.
//!
//! Equal are pulls of the same image whose requests are the same in everything that may change what they bring or
//! whether they are allowed: credentials, runtime handler, and whatever a later CRI may add. So a key is made of the
//! normalised reference and of *what is left of the request* when the image's name, its annotations and the pod have
//! been taken out. The rest is kept only as a keyed hash, under a key that no other process knows: credentials can
//! neither be read from it nor be tried against it.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::pull::Request;
use crate::wire::Patch;

/// Two pulls with the same key are the same pull.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// The image and how it is unpacked, whoever asks.
    pub line: Line,
    rest: [u8; 32],
}

/// What pulls of one image have in common, whatever their credentials: the same blobs and snapshots.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Line([u8; 32]);

/// Makes keys.
pub struct KeyMaker {
    secret: [u8; 32],
}

/// Fields of `PullImageRequest` and of its `ImageSpec`.
const IMAGE: u32 = 1;
const SANDBOX: u32 = 3;
const NAME: u32 = 1;
const ANNOTATIONS: u32 = 2;
const USER_SPECIFIED: u32 = 18;
const HANDLER: u32 = 19;

// === impl KeyMaker ===

impl KeyMaker {
    /// A maker with a secret of its own.
    pub fn new() -> std::io::Result<Self> {
        let mut secret = [0; 32];
        let mut filled = 0;
        while let Some(rest) = secret.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
        }
        Ok(Self { secret })
    }

    /// A name by which this process can be told from the one before it.
    pub fn instance(&self) -> String {
        let hash = self.hash(&[b"instance"]);
        hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The key of a pull. `namespaced`: the runtime's answer depends on the pod's namespace, as CRI-O's does.
    pub fn key(&self, request: &Request, namespaced: bool) -> Key {
        let taken_out = Patch::new()
            .remove([SANDBOX])
            .remove([IMAGE, NAME])
            .remove([IMAGE, ANNOTATIONS])
            .remove([IMAGE, USER_SPECIFIED]);
        // A message that cannot be patched is equal to none but itself.
        let rest = taken_out.apply(&request.message).unwrap_or_else(|_| request.message.clone());
        let namespace = request.pod.as_ref().filter(|_| namespaced).map_or("", |(namespace, _)| namespace);
        Key {
            line: Line::of(request),
            rest: self.hash(&[rest.as_ref(), request.handler_annotation.as_bytes(), namespace.as_bytes()]),
        }
    }

    fn hash(&self, parts: &[&[u8]]) -> [u8; 32] {
        // Any length of key will do for HMAC, so this cannot fail.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.secret) else { return self.secret };
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for KeyMaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyMaker")
    }
}

// === impl Line ===

impl Line {
    /// The line of a pull.
    pub fn of(request: &Request) -> Self {
        use sha2::Digest;
        let handler = crate::wire::last(&request.message, [IMAGE, HANDLER]).ok().flatten();
        let handler = handler.and_then(crate::wire::Value::as_bytes).unwrap_or_default();
        let mut hash = Sha256::new();
        for part in [request.reference.as_bytes(), handler, request.handler_annotation.as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// As text, for the label of a lease. It holds nothing secret.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

// === impl Debug ===

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.line.fmt(f)
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex()[..12])
    }
}
