//! A test in a process of its own, because it measures its process.

use std::process::Command;

/// Runs the test of that name in a process in which nothing else runs. Gives whether that has been done; if not, this is
/// that process.
pub(crate) fn ran_alone(name: &str) -> bool {
    const ALONE: &str = "CRISP_TEST_ALONE";
    if std::env::var(ALONE).as_deref() == Ok(name) {
        return false;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args([name, "--exact", "--nocapture"]).env(ALONE, name).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && said.contains("1 passed");
    assert!(passed, "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    true
}
