//! How a test says that it cannot run here.

use std::fs::File;
use std::io::Write;

/// Notes that `part` cannot run here and why; the caller then returns. With `CI=true` that is a failure: of
/// `with-skips.sh`, which first runs and lists everything, or else of the test itself.
pub(crate) fn skip(part: &str, reason: &str) {
    eprintln!("skipped {part}: {reason}");
    if let Some(path) = std::env::var_os("CRISP_SKIPS") {
        let file = File::options().create(true).append(true).open(path);
        let noted = file.and_then(|mut file| writeln!(file, "{part}\t{reason}"));
        assert!(noted.is_ok(), "CRISP_SKIPS: {noted:?}");
    } else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{part} cannot run here: {reason}");
    }
}
