//! Generates the message views, records the git revision for `--version`, and says how the program is put together.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    prost_build::Config::new().bytes(["."]).compile_protos(&["proto/cri_view.proto"], &["proto"])?;

    // Without git (a source archive) the version says so instead of failing the build.
    // So does one that lies somewhere in another repository.
    let here = env::var("CARGO_MANIFEST_DIR")?;
    let top = git(&["rev-parse", "--show-toplevel"]).and_then(|top| Path::new(&top).canonicalize().ok());
    let ours = top.is_some_and(|top| Path::new(&here).canonicalize().is_ok_and(|here| here == top));
    let revision = ours.then(|| git(&["rev-parse", "--short=12", "HEAD"])).flatten();
    println!("cargo::rustc-env=CRISP_REVISION={}", revision.as_deref().unwrap_or("unknown"));
    // HEAD's log changes with every commit and checkout, HEAD itself only with a change of branch.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    println!("cargo::rerun-if-env-changed=CRISP_LAYOUT");
    if is("PROFILE", "release")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ENV", "gnu")
        && !is("CRISP_LAYOUT", "off")
    {
        lay_out()?;
        if env::var("HOST")? == env::var("TARGET")? && libc_packs_relocations() {
            // Half a megabyte of them, which are read at the start and then lie in memory, become a few kilobytes.
            println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
        }
    }
    Ok(())
}

/// Whether the libc of this machine knows packed relocations, as glibc does from 2.36 on. Who builds for nodes with an older
/// one builds on a machine with an older one.
fn libc_packs_relocations() -> bool {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let version = said.trim().strip_prefix("glibc ").and_then(|version| version.split_once('.'));
    let number = |text: &str| text.split('.').next().and_then(|digits| digits.parse::<u32>().ok());
    version
        .and_then(|(major, minor)| Some((number(major)?, number(minor)?)))
        .is_some_and(|version| version >= (2, 36))
}

/// Lays what runs on a node together in the program.
///
/// Most of the memory of a crisp at rest is the program itself: the kernel maps the 64 KiB around everything that runs once,
/// and what runs, a third of it all, would be everywhere. The list names functions by the beginnings of their mangled names,
/// those first that run on every node. One that is missing costs a little memory, one that is no longer there nothing. It
/// fades as crates and the compiler change: when `make bench` shows more memory at rest, `make layout` makes it anew. A linker
/// that takes no scripts needs `CRISP_LAYOUT=off`.
fn lay_out() -> Result<(), Box<dyn std::error::Error>> {
    const LIST: &str = "deploy/layout/functions.txt";
    println!("cargo::rerun-if-changed={LIST}");
    let mut script = String::from("SECTIONS {\n  .text.used : {\n");
    for name in fs::read_to_string(LIST)?.lines().filter(|line| !line.starts_with('#')) {
        // A star is the number of a crate: eleven digits, nearly always, and others with every version.
        let name = name.replace('*', "???????????");
        writeln!(script, "    *(.text.{name}* .text.unlikely.{name}*)")?;
    }
    script.push_str("  }\n}\nINSERT BEFORE .text;\n");
    let place = env::var("OUT_DIR")?;
    let path = Path::new(&place).join("layout.ld");
    fs::write(&path, script)?;
    println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", path.display());
    Ok(())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
