//! How single values are written.

use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) fn unix(text: &str) -> Result<PathBuf, String> {
    let path = text
        .strip_prefix("unix://")
        .and_then(|path| absolute(path).ok())
        .ok_or_else(|| "expected unix:///absolute/path".to_owned())?;
    // What the kernel takes: 108 bytes with the closing zero.
    if path.as_os_str().len() < 108 { Ok(path) } else { Err("a socket's path has at most 107 bytes".into()) }
}

pub(super) fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    if path.is_absolute() { Ok(path.to_owned()) } else { Err("expected an absolute path".into()) }
}

/// A word that is no level would be taken for the name of a module, and everything else would fall silent.
pub(super) fn log_filter(text: &str) -> Result<(), String> {
    let is_level =
        |word: &str| !word.is_empty() && word.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
    let wrong = || "expected error, warn, info, debug or trace, or for example crisp=debug,info".to_owned();
    if !text.split(',').all(|part| part.contains('=') || is_level(part)) {
        return Err(wrong());
    }
    text.parse::<tracing_subscriber::filter::Targets>().map(drop).map_err(|_| wrong())
}

pub(super) fn boolean(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "expected true or false".to_owned())
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = text.strip_prefix(digits).unwrap_or_default();
    let wrong = || "expected a whole number and a unit: 500ms, 20s, 5m, 1h".to_owned();
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let seconds = |factor: u64| number.checked_mul(factor).map(Duration::from_secs).ok_or_else(wrong);
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3600),
        _ => Err(wrong()),
    }
}
