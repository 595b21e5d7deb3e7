//! Where the store lies: one file in the state directory.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use redb::{Builder, Database, DatabaseError, StorageError};
use rustix::fs::{Advice, fadvise};

use crate::store::engine::{Engine, Opener, Options};
use crate::store::error::OpenError;

/// The name of the file in the state directory.
pub const FILE_NAME: &str = "crisp.redb";

/// The name under which a file is made. What lies there is never a store.
const NEW_NAME: &str = "crisp.redb.new";

/// Opens the store in a directory, and makes what is missing.
pub(super) fn open(directory: &Path, options: Options) -> Result<Engine, OpenError> {
    let path = directory.join(FILE_NAME);
    if !path.try_exists().map_err(OpenError::io(&path))? {
        make_directory(directory).map_err(OpenError::io(directory))?;
        create(directory, &path, options)?;
    }
    Engine::open(path.clone(), opener(path), options)
}

/// Makes an empty store.
///
/// It gets its name only when it is whole and on the disk: so an empty or half-made file under that name was not left
/// by a crash of crisp, and is refused like any other damage.
fn create(directory: &Path, path: &Path, options: Options) -> Result<(), OpenError> {
    let io = |error| OpenError::io(directory)(error);
    // One at a time; otherwise the slower one would replace a file that the quicker one uses already.
    let lock = File::open(directory).map_err(io)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::Busy { path: directory.to_owned() }),
        Err(TryLockError::Error(error)) => return Err(io(error)),
    }
    if path.try_exists().map_err(io)? {
        return Ok(());
    }
    let new = directory.join(NEW_NAME);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(OpenError::io(&new)(error)),
        _ => {}
    }
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new);
    let mut file = Some(file.map_err(OpenError::io(&new))?);
    let opener = move |builder: &Builder| match file.take() {
        Some(file) => builder.create_file(file),
        None => Err(StorageError::DatabaseClosed.into()),
    };
    // Dropping it writes the rest and syncs.
    drop(Engine::create(new.clone(), Box::new(opener), options)?);
    fs::rename(&new, path).map_err(io)?;
    lock.sync_all().map_err(io)
}

/// Opens the file, the first time and again after the disk has refused something.
fn opener(path: PathBuf) -> Opener {
    let mut again = false;
    Box::new(move |builder| open_file(builder, &path, std::mem::replace(&mut again, true)))
}

fn open_file(builder: &Builder, path: &Path, again: bool) -> Result<Database, DatabaseError> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    // redb would make a new store of an empty file.
    if file.metadata()?.len() == 0 {
        return Err(StorageError::Corrupted("the file is empty".into()).into());
    }
    if again {
        // When fsync fails, the kernel keeps what it could not write in memory as if it had been written. What counts
        // is what is on the disk.
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
    }
    builder.create_file(file)
}

/// Makes a directory and those above it, and makes sure that they outlive a loss of power.
fn make_directory(directory: &Path) -> io::Result<()> {
    let missing: Vec<&Path> =
        directory.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    for path in missing {
        match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all()?,
            _ => File::open(".")?.sync_all()?,
        }
    }
    Ok(())
}
