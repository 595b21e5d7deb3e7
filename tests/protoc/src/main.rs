//! Copies a protoc to `DIR/bin` and its include files to `DIR/include`, where protoc finds them by itself.

use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = env::args_os().nth(1).ok_or("usage: protoc DIR")?;
    let dir = Path::new(&dir);
    copy_tree(&protoc_bin_vendored::include_path()?, &dir.join("include"))?;
    // Last, and by rename: where there is a protoc, it is whole and has its include files.
    fs::create_dir_all(dir.join("bin"))?;
    fs::copy(protoc_bin_vendored::protoc_bin_path()?, dir.join("bin/.protoc"))?;
    fs::rename(dir.join("bin/.protoc"), dir.join("bin/protoc"))?;
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
