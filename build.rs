//! Generates the message views and records the git revision for `--version`.

use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    prost_build::Config::new().bytes(["."]).compile_protos(&["proto/cri_view.proto"], &["proto"])?;

    // Without git (a source archive) the version says so instead of failing the build.
    let revision = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=CRISP_REVISION={revision}");
    // HEAD's log changes with every commit and checkout, HEAD itself only with a change of branch.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    Ok(())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
