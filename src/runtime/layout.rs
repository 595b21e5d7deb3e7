//! The OCI image layout on disk: `oci-layout`, `index.json` and `blobs/sha256/…`.
//!
//! Nothing appears under its final name before it is whole: blobs and `index.json` are written to `ingest/`, synced
//! and renamed. What a crash leaves in `ingest/` is removed when the layout is opened again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use oci_spec::image::{Descriptor, ImageIndex, ImageIndexBuilder, MediaType, SCHEMA_VERSION};
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use super::digest::{Hasher, Sha256};

const LAYOUT_FILE: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;

/// An OCI image layout.
#[derive(Debug)]
pub(super) struct Layout {
    root: PathBuf,
    /// Makes the names in `ingest/` unique within this process; the directory lock keeps other processes out.
    next: AtomicU64,
}

/// Why the layout could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum LayoutError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What came is not what was promised.
    #[error("blob {digest}: {problem}")]
    Corrupt {
        /// The promised digest.
        digest: Sha256,
        /// What is wrong with the bytes.
        problem: String,
    },
    /// A JSON document cannot be read or written.
    #[error("{}: {source}", path.display())]
    Json {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
}

/// Receives one blob. Dropped before [`BlobWriter::commit`], it leaves nothing behind.
#[derive(Debug)]
pub(super) struct BlobWriter {
    file: File,
    temporary: Temporary,
    target: PathBuf,
    digest: Sha256,
    size: u64,
    written: u64,
    hasher: Hasher,
}

/// A file that is removed when dropped; once it was renamed there is nothing left to remove.
#[derive(Debug)]
struct Temporary(PathBuf);

/// What the layout occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Bytes allocated on disk.
    pub(super) bytes: u64,
    /// Files and directories.
    pub(super) inodes: u64,
}

// === impl Layout ===

impl Layout {
    /// Opens or creates the layout at `root` and removes what an earlier process left half-written.
    pub(super) fn open(root: &Path) -> Result<Self, LayoutError> {
        let layout = Self { root: root.to_owned(), next: AtomicU64::new(0) };
        let ingest = layout.ingest();
        if ingest.exists() {
            std::fs::remove_dir_all(&ingest).map_err(|source| io_error(&ingest, source))?;
        }
        for dir in [&layout.blobs(), &ingest] {
            std::fs::create_dir_all(dir).map_err(|source| io_error(dir, source))?;
        }
        layout.replace("oci-layout", LAYOUT_FILE.as_bytes())?;
        Ok(layout)
    }

    /// The directory of the layout.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Whether the blob is here in full. Its digest was checked when it came.
    pub(super) fn has(&self, digest: &Sha256, size: u64) -> bool {
        std::fs::metadata(self.blob_path(digest)).is_ok_and(|found| found.is_file() && found.len() == size)
    }

    /// Reads a small blob and checks its digest, because what is read is about to be trusted.
    pub(super) fn read(&self, digest: &Sha256, max: u64) -> Result<Vec<u8>, LayoutError> {
        let path = self.blob_path(digest);
        let length = std::fs::metadata(&path).map_err(|source| io_error(&path, source))?.len();
        if length > max {
            let problem = format!("{length} bytes, more than the {max} allowed here");
            return Err(LayoutError::Corrupt { digest: *digest, problem });
        }
        let data = std::fs::read(&path).map_err(|source| io_error(&path, source))?;
        match Sha256::of(&data) {
            found if found == *digest => Ok(data),
            found => Err(LayoutError::Corrupt {
                digest: *digest,
                problem: format!("its content has digest {found}"),
            }),
        }
    }

    /// Begins to receive a blob.
    pub(super) fn writer(&self, digest: Sha256, size: u64) -> Result<BlobWriter, LayoutError> {
        let temporary = self.temporary(&digest.hex());
        // Not tokio's: if the pull is cancelled meanwhile, that would make the file after it was cleaned up.
        let file = std::fs::File::create(&temporary.0).map_err(|source| io_error(&temporary.0, source))?;
        let file = File::from_std(file);
        let target = self.blob_path(&digest);
        Ok(BlobWriter { file, temporary, target, digest, size, written: 0, hasher: Hasher::default() })
    }

    /// Moves a blob out of the way; the caller removes the returned file. A rename is quick even for a huge blob.
    pub(super) fn discard(&self, digest: &Sha256) -> Option<PathBuf> {
        let trash = self.ingest().join(format!("gone-{}", self.next.fetch_add(1, Ordering::Relaxed)));
        std::fs::rename(self.blob_path(digest), &trash).ok().map(|()| trash)
    }

    /// The digests of all blobs that are here.
    pub(super) fn blob_digests(&self) -> Result<Vec<Sha256>, LayoutError> {
        let blobs = self.blobs();
        let entries = std::fs::read_dir(&blobs).map_err(|source| io_error(&blobs, source))?;
        Ok(entries.flatten().filter_map(|entry| Sha256::from_hex(entry.file_name().to_str()?)).collect())
    }

    /// The entries of `index.json`; none if there is no such file yet.
    pub(super) fn read_index(&self) -> Result<Vec<Descriptor>, LayoutError> {
        let path = self.root.join("index.json");
        let data = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.map_err(|source| io_error(&path, source))?,
        };
        let index: ImageIndex =
            serde_json::from_slice(&data).map_err(|source| LayoutError::Json { path, source })?;
        Ok(index.manifests().clone())
    }

    /// Replaces `index.json` so that a reader, and a restart after a power cut, sees the old or the new one.
    pub(super) fn write_index(&self, entries: Vec<Descriptor>) -> Result<(), LayoutError> {
        let path = self.root.join("index.json");
        let index = ImageIndexBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageIndex)
            .manifests(entries)
            .build()
            .map_err(|error| io_error(&path, io::Error::other(error)))?;
        let data = serde_json::to_vec_pretty(&index).map_err(|source| LayoutError::Json { path, source })?;
        // The blobs' names must be on disk before an index that refers to them.
        sync_dir(&self.blobs())?;
        self.replace("index.json", &data)
    }

    /// What the layout occupies on disk.
    pub(super) fn usage(&self) -> Result<Usage, LayoutError> {
        let mut usage = Usage::default();
        let mut dirs = vec![self.root.clone()];
        while let Some(dir) = dirs.pop() {
            usage.inodes += 1;
            for entry in std::fs::read_dir(&dir).map_err(|source| io_error(&dir, source))?.flatten() {
                // A file may vanish between the listing and the look: pulls and removals go on meanwhile.
                let Ok(found) = entry.metadata() else { continue };
                if found.is_dir() {
                    dirs.push(entry.path());
                } else {
                    usage.inodes += 1;
                    usage.bytes += std::os::unix::fs::MetadataExt::blocks(&found) * 512;
                }
            }
        }
        Ok(usage)
    }

    fn replace(&self, name: &str, data: &[u8]) -> Result<(), LayoutError> {
        use std::io::Write as _;
        let temporary = self.temporary(name);
        let write = || {
            let mut file = std::fs::File::create(&temporary.0)?;
            file.write_all(data)?;
            file.sync_all()?;
            std::fs::rename(&temporary.0, self.root.join(name))
        };
        write().map_err(|source| io_error(&self.root.join(name), source))?;
        sync_dir(&self.root)
    }

    fn temporary(&self, name: &str) -> Temporary {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Temporary(self.ingest().join(format!("{name}-{number}")))
    }

    fn blob_path(&self, digest: &Sha256) -> PathBuf {
        self.blobs().join(digest.hex())
    }

    fn blobs(&self) -> PathBuf {
        self.root.join("blobs").join("sha256")
    }

    fn ingest(&self) -> PathBuf {
        self.root.join("ingest")
    }
}

// === impl BlobWriter ===

impl BlobWriter {
    /// Takes the next bytes; refuses the first one beyond the promised size.
    pub(super) async fn write(&mut self, data: &[u8]) -> Result<(), LayoutError> {
        self.written += data.len() as u64;
        if self.written > self.size {
            return Err(self.corrupt(format!("more than the promised {} bytes", self.size)));
        }
        self.hasher.update(data);
        self.file.write_all(data).await.map_err(|source| io_error(&self.temporary.0, source))
    }

    /// Checks size and digest, makes the bytes durable and gives the blob its name.
    pub(super) async fn commit(mut self) -> Result<(), LayoutError> {
        if self.written != self.size {
            return Err(self.corrupt(format!("{} bytes instead of the promised {}", self.written, self.size)));
        }
        let found = std::mem::take(&mut self.hasher).finish();
        if found != self.digest {
            return Err(self.corrupt(format!("what came has digest {found}")));
        }
        self.file.flush().await.map_err(|source| io_error(&self.temporary.0, source))?;
        self.file.sync_all().await.map_err(|source| io_error(&self.temporary.0, source))?;
        // Not tokio's: a rename that goes on after its pull was cancelled would leave a blob that nobody needs.
        std::fs::rename(&self.temporary.0, &self.target).map_err(|source| io_error(&self.target, source))
    }

    fn corrupt(&self, problem: String) -> LayoutError {
        LayoutError::Corrupt { digest: self.digest, problem }
    }
}

// === impl Temporary ===

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename, or when the file was never created, there is nothing to remove.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes the names in `dir` durable.
fn sync_dir(dir: &Path) -> Result<(), LayoutError> {
    std::fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(|source| io_error(dir, source))
}

fn io_error(path: &Path, source: io::Error) -> LayoutError {
    LayoutError::Io { path: path.to_owned(), source }
}
