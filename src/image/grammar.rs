//! The parts that image names are made of, as Go's `distribution/reference` and appc define them. Every check is one
//! pass over the text.

/// Longest repository path that Docker accepts.
pub(super) const MAX_PATH: usize = 255;
/// Longest tag that Docker accepts.
const MAX_TAG: usize = 128;

/// `host[:port]`: a domain name, an IPv4 address or a bracketed IPv6 address, no closer looked at than Go does.
pub(super) fn is_host(text: &str) -> bool {
    // The colons of a bracketed address are not the port's.
    let end = text.rfind(']').map_or(0, |at| at + 1);
    let (name, port) = match text[end..].split_once(':') {
        Some((rest, port)) => (&text[..end + rest.len()], Some(port)),
        None => (text, None),
    };
    let name_ok = match name.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(|address| {
            !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':')
        }),
        None => name.split('.').all(is_host_label),
    };
    name_ok && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_host_label(label: &str) -> bool {
    !label.is_empty()
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Whether Docker takes the part before the first `/` for a host and not for the beginning of a path.
pub(super) fn looks_like_host(text: &str) -> bool {
    text == "localhost" || text.contains(['.', ':']) || text.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// Components joined by `/`. The length is not looked at.
pub(super) fn is_path(path: &str) -> bool {
    path.split('/').all(is_path_component)
}

/// Lower-case letters and digits, joined by `.`, `_`, `__` or any number of `-`.
fn is_path_component(component: &str) -> bool {
    let bytes = component.as_bytes();
    let ends_ok = bytes.first().copied().is_some_and(is_word) && bytes.last().copied().is_some_and(is_word);
    ends_ok
        && component
            .split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            .all(|joint| matches!(joint, "" | "." | "_" | "__") || joint.bytes().all(|byte| byte == b'-'))
}

/// Up to 128 letters, digits, `_`, `.` and `-`; not `.` or `-` first.
pub(super) fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= MAX_TAG
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || byte == b'.' || byte == b'-')
}

/// A digest of one of the three algorithms that the kubelet knows.
pub(super) fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| match algorithm {
        "sha256" => is_hex(hex, 64),
        "sha384" => is_hex(hex, 96),
        "sha512" => is_hex(hex, 128),
        _ => false,
    })
}

/// So many lower-case hex digits.
pub(super) fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// appc's AC Identifier: lower-case letters and digits, joined by one of `-`, `.`, `_`, `~` and `/`.
pub(super) fn is_ac_identifier(text: &str) -> bool {
    text.split(['-', '.', '_', '~', '/']).all(|word| !word.is_empty() && word.bytes().all(is_word))
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}
