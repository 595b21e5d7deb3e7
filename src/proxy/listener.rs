//! The listening socket: taken from systemd or bound here, never from under a live process.

use std::fs::TryLockError;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;

/// How long another crisp has to take a socket, which takes it no time.
const PATIENCE: Duration = Duration::from_secs(5);

/// A socket file bound by this process. Removed on drop, unless another process has put its own there.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

/// Device, inode and change time of a file. The inode alone is not enough: a file system gives it to the next file.
type Identity = (u64, u64, i64, i64);

/// Why a socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody answers there.
    #[error("another process listens on {0}; stop it, or choose another path")]
    InUse(PathBuf),
    /// Something else lies there.
    #[error("{0} exists and is not a socket; remove it, or choose another path")]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Binds a unix socket with mode 0600. A stale file is replaced, a live socket is refused.
pub fn bind(path: &Path) -> Result<(StdListener, SocketFile), BindError> {
    let failed = |action, source| BindError::Io { action, path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        // Whatever the umask is: who may write there may replace the socket.
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(parent)
            .map_err(|e| failed("create the directory of", e))?;
    }
    // Until it listens, nobody else may take the file for a stale one. The lock goes with the descriptor.
    let _alone = lock(path)?;
    make_way(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(|e| failed("make a socket for", e))?;
    let address = SockAddr::unix(path).map_err(|e| failed("use the path", e))?;
    socket.bind(&address).map_err(|e| failed("bind", e))?;
    // Nobody can connect between bind and listen, so there is no moment with a wider mode.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(|e| failed("set the mode of", e))?;
    socket.listen(BACKLOG).map_err(|e| failed("listen on", e))?;
    socket.set_nonblocking(true).map_err(|e| failed("listen on", e))?;
    let identity = identity_of(path).map_err(|e| failed("look at", e))?;
    Ok((
        StdListener::from(std::os::fd::OwnedFd::from(socket)),
        SocketFile { path: path.to_owned(), identity },
    ))
}

/// Takes the socket that systemd passed, if it did.
pub fn activated() -> io::Result<Option<StdListener>> {
    let mut passed = listenfd::ListenFd::from_env();
    match passed.len() {
        0 => Ok(None),
        1 => {
            let listener = passed.take_unix_listener(0)?;
            if let Some(listener) = &listener {
                listener.set_nonblocking(true)?;
            }
            Ok(listener)
        }
        n => Err(io::Error::other(format!(
            "systemd passed {n} sockets; crisp takes one: keep a single ListenStream= in the socket unit"
        ))),
    }
}

/// Hands each accepted connection to `serve`, for ever.
pub async fn accept_all(listener: &UnixListener, mut serve: impl FnMut(UnixStream)) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => serve(stream),
            Err(error) => {
                // Mostly a lack of file descriptors: existing connections go on, and the next try may work.
                tracing::error!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Keeps other processes of crisp from taking the same path meanwhile.
///
/// The lock is on a file that nobody else can open: whoever may read a directory may also lock it, for ever.
fn lock(path: &Path) -> Result<std::fs::File, BindError> {
    let failed = |action, source| BindError::Io { action, path: path.to_owned(), source };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path.with_file_name(format!(".{name}.lock")))
        .map_err(|e| failed("write to the directory of", e))?;
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if started.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(failed("be alone while taking", error.into())),
        }
    }
}

/// Removes a socket file that nobody answers on.
fn make_way(path: &Path) -> Result<(), BindError> {
    let failed = |action, source| BindError::Io { action, path: path.to_owned(), source };
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at", error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(BindError::NotASocket(path.to_owned()));
    }
    if is_live(path).map_err(|e| failed("try", e))? {
        return Err(BindError::InUse(path.to_owned()));
    }
    std::fs::remove_file(path).map_err(|e| failed("remove the stale socket", e))
}

/// Whether there is a socket, links followed.
pub(crate) fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// Whether somebody listens. A full backlog is a listener too, so only a refusal counts as nobody.
pub(crate) fn is_live(path: &Path) -> io::Result<bool> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

/// Whether two paths lead to the same file, links followed.
pub fn same_file(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    identity(a).is_some_and(|a| identity(b) == Some(a))
}

fn identity_of(path: &Path) -> io::Result<Identity> {
    std::fs::symlink_metadata(path).map(|file| (file.dev(), file.ino(), file.ctime(), file.ctime_nsec()))
}

// === impl SocketFile ===

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity_of(&self.path).is_ok_and(|identity| identity == self.identity)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket file");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("crisp.sock");
        drop(StdListener::bind(&path).unwrap()); // leaves the file behind, as a killed process does
        let (listener, file) = bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(bind(&path), Err(BindError::InUse(_))));
        drop((listener, file));
        assert!(!path.exists(), "the file goes with the process");
    }

    /// Broke: two that started at once both saw the stale file, and the second removed the first one's new socket:
    /// both ran, and only one could be reached.
    #[test]
    fn of_several_that_start_at_once_one_gets_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("crisp.sock");
        for _ in 0..500 {
            drop(StdListener::bind(&path).unwrap());
            let all = std::sync::Barrier::new(8);
            let bound: Vec<_> = std::thread::scope(|scope| {
                let start = || {
                    all.wait();
                    bind(&path)
                };
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(bound.iter().filter(|bound| bound.is_ok()).count(), 1, "{bound:?}");
            assert!(bound.iter().all(|bound| matches!(bound, Ok(_) | Err(BindError::InUse(_)))), "{bound:?}");
        }
    }

    /// Broke: the lock was on the directory, which anybody who can read it can lock as well: crisp did not start, and did not
    /// hear SIGTERM.
    #[test]
    fn a_lock_on_the_directory_is_nobodys_business() {
        let dir = tempfile::tempdir().unwrap();
        let directory = std::fs::File::open(dir.path()).unwrap();
        directory.lock().unwrap();
        let path = dir.path().join("crisp.sock");
        bind(&path).unwrap();
        let lock = std::fs::metadata(dir.path().join(".crisp.sock.lock")).unwrap();
        assert_eq!(lock.permissions().mode() & 0o777, 0o600, "others cannot open it");
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        assert!(matches!(bind(&path), Err(BindError::NotASocket(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }

    /// An old process that drains while a new one has taken the path must not remove the new one's file.
    #[test]
    fn a_successors_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("crisp.sock");
        let (listener, file) = bind(&path).unwrap();
        drop(listener);
        let (_next, _next_file) = bind(&path).unwrap();
        drop(file);
        assert!(path.exists());
    }
}
