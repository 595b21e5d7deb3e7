//! What the shield keeps over a restart of crisp: a small file in the state directory.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::store::private;

/// The file in the state directory.
pub(super) const FILE: &str = "hash-shield.json";

/// Far more than the containers of a node take.
const MAX_FILE: usize = 4 << 20;

/// The contents of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Kept {
    /// Containers and the hashes that they are shown with.
    pub(super) answers: BTreeMap<String, String>,
    /// The `user-agent` of the kubelet that computes otherwise, and the crisp that found that: another one may know more.
    pub(super) refuted: Option<(String, String)>,
}

impl Kept {
    /// Reads it. What cannot be read counts as nothing: the census decides anew.
    pub(super) fn read(state_dir: &Path) -> Self {
        let path = state_dir.join(FILE);
        // Not when it is written: a directory that is gone by then was not to be there any more.
        let read =
            private::directory(state_dir).and_then(|()| private::read(&path, MAX_FILE)).and_then(|file| {
                match file {
                    Some(file) => serde_json::from_slice(&file.bytes).map_err(io::Error::other),
                    None => Ok(Self::default()),
                }
            });
        read.unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "cannot read what the hash shield has decided before");
            Self::default()
        })
    }

    pub(super) fn write(&self, state_dir: &Path) -> io::Result<()> {
        let json = serde_json::to_vec(self).map_err(io::Error::other)?;
        private::replace(&state_dir.join(FILE), &json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_damage_is_as_good_as_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Kept::read(dir.path()), Kept::default());
        let kept = Kept {
            answers: [("id".to_owned(), "8e45cbd0".to_owned())].into(),
            refuted: Some(("grpc-go/9".to_owned(), "0.1.0".to_owned())),
        };
        kept.write(dir.path()).unwrap();
        assert_eq!(Kept::read(dir.path()), kept);
        std::fs::write(dir.path().join(FILE), "{\"answers\": 7").unwrap();
        assert_eq!(Kept::read(dir.path()), Kept::default());
    }
}
