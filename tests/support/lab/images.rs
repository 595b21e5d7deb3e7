//! Small images that stand in for the ones critest and kubelets ask for, built once per version of their recipe.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};

use super::process::run;
use super::registry::Registry;

/// A busybox.
pub(crate) const BUSYBOX: &str = "busybox:1.35";
/// A web server on port 80 that answers "Welcome to nginx!".
pub(crate) const WEB: &str = "e2e-test-images/nginx:1.14-2";

/// A registry's storage folder that holds the images. Built when missing, with umoci and skopeo.
pub(crate) fn storage() -> PathBuf {
    let mut key = DefaultHasher::new();
    include_str!("images.sh").hash(&mut key);
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let done = cache.join(format!("images-{:016x}", key.finish()));
    // Several test programs may want the images at once: one builds, the others wait.
    let lock =
        File::options().create(true).append(true).open(cache.join("images.lock")).expect("open the lock");
    flock(&lock, FlockOperation::LockExclusive).expect("lock the images");
    if !done.is_dir() {
        let fresh = tempfile::tempdir_in(cache).expect("make a folder");
        let registry = Registry::fill(fresh.path());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/lab/images.sh");
        run(Command::new(script).arg(&registry.address));
        drop(registry);
        fs::rename(fresh.keep(), &done).expect("keep the images");
    }
    done
}
