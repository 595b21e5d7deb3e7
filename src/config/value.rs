//! How single values are written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest path of a socket: what the kernel takes, without the closing zero.
pub(super) const MAX_SOCKET: usize = 107;

pub(super) fn unix(text: &str) -> Result<PathBuf, String> {
    let path = text
        .strip_prefix("unix://")
        .and_then(|path| absolute(path).ok())
        .ok_or_else(|| "expected unix:///absolute/path".to_owned())?;
    if path.as_os_str().len() > MAX_SOCKET {
        return Err(format!("a socket's path has at most {MAX_SOCKET} bytes"));
    }
    Ok(path)
}

pub(super) fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let can_be = path.is_absolute() && !text.contains('\0');
    if can_be { Ok(path.to_owned()) } else { Err("expected an absolute path".into()) }
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

/// A time, written as a whole number and a unit.
pub fn duration(text: &str) -> Result<Duration, String> {
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

/// A number of bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = text.strip_prefix(digits).unwrap_or_default();
    let shift = match unit {
        "B" => Some(0),
        "KiB" => Some(10),
        "MiB" => Some(20),
        "GiB" => Some(30),
        "TiB" => Some(40),
        _ => None,
    };
    let bytes = shift.and_then(|shift| digits.parse::<u64>().ok()?.checked_mul(1 << shift));
    bytes.ok_or_else(|| "expected a whole number and a unit: 500MiB, 10GiB".to_owned())
}

/// A share of something, from 0% to 100%.
pub(super) fn percent(text: &str) -> Result<u8, String> {
    let number =
        text.strip_suffix('%').and_then(|digits| digits.parse().ok()).filter(|number| *number <= 100);
    number.ok_or_else(|| "expected a whole percentage from 0% to 100%: 20%".to_owned())
}

/// A whole number within bounds.
pub(super) fn number(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("expected a number from {least} to {most}"))
}

/// `key=value,...`, as labels of a node are written. A value may be empty.
pub(super) fn labels(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut labels = BTreeMap::new();
    if text.is_empty() {
        return Ok(labels);
    }
    let fine = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/'))
    };
    for label in text.split(',').map(str::trim) {
        let pair = label.split_once('=').filter(|(key, value)| !key.is_empty() && fine(key) && fine(value));
        let Some((key, value)) = pair else {
            return Err("expected labels: region=north,node-role.kubernetes.io/edge=".into());
        };
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(format!("has the label {key} twice"));
        }
    }
    Ok(labels)
}
