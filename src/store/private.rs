//! Small files that only their owner may read, such as keys: there wholly or not at all.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// What was read, and who may read it.
#[derive(Debug)]
pub struct Private {
    /// The contents: at most one byte more than was asked for, by which a file that is too long is known.
    pub bytes: Zeroizing<Vec<u8>>,
    /// The permissions, if others than the owner have any.
    pub readable: Option<u32>,
}

/// How the names end under which files are written: a dot, the number of the process, and this.
const PASSING: &str = ".new";

/// The name that a file was to have, if this is the name under which it is or was being written.
pub fn passing(name: &str) -> Option<&str> {
    let (file, process) = name.strip_suffix(PASSING)?.rsplit_once('.')?;
    process.bytes().all(|byte| byte.is_ascii_digit()).then_some(file)
}

/// Makes a directory that only its owner may enter, and those above it.
pub fn directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Reads a file of at most `max` bytes. `None`: there is none.
pub fn read(path: &Path, max: usize) -> io::Result<Option<Private>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mode = file.metadata()?.permissions().mode() & 0o7777;
    // With room for all of it, so that no copy of a part is left behind when it grows.
    let mut bytes = Zeroizing::new(Vec::with_capacity(max.saturating_add(2)));
    file.take(max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some(Private { bytes, readable: (mode & 0o077 != 0).then_some(mode) }))
}

/// Makes a file. One that is there already stays as it is: another crisp was quicker, and its contents count.
pub fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, |new| match std::fs::hard_link(new, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    })
}

/// Makes a file or replaces the one that is there.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, |new| std::fs::rename(new, path))
}

/// Writes a file under a passing name, has it named when its contents are on the disk, and cleans up.
fn write(path: &Path, bytes: &[u8], name: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}{PASSING}", std::process::id()));
    let new = PathBuf::from(new);
    // What is there under this name was left by a process that is gone: its number is ours now.
    remove(&new)?;
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        name(&new)
    })();
    written.and(remove(&new))?;
    // The name, too, is on the disk only when its directory is.
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_made_once_and_replaced_when_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        assert!(read(&path, 8).unwrap().is_none());
        create(&path, b"one").unwrap();
        create(&path, b"two").unwrap();
        assert_eq!(*read(&path, 8).unwrap().unwrap().bytes, b"one");
        replace(&path, b"three").unwrap();
        let read = read(&path, 4).unwrap().unwrap();
        assert_eq!((read.bytes.as_slice(), read.readable), (&b"three"[..], None));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn what_a_dead_process_left_is_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(dir.path().join(format!("key.{}.new", std::process::id())), "half").unwrap();
        replace(&path, b"whole").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(read(&path, 8).unwrap().unwrap().readable, Some(0o640));
    }
}
