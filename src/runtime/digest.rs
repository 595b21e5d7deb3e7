//! SHA-256 digests as they name blobs: `sha256:` and 64 lower-case hex digits, nothing else.
//!
//! A value of [`Sha256`] can be joined to a path without further thought: it holds 32 bytes, not a registry's string.

use std::fmt;

use sha2::Digest as _;

/// The digest of a blob.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Sha256([u8; 32]);

/// Computes a digest piece by piece.
#[derive(Debug, Default)]
pub(super) struct Hasher(sha2::Sha256);

// === impl Sha256 ===

impl Sha256 {
    /// Reads `sha256:<64 lower-case hex digits>`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::from_hex(text.strip_prefix("sha256:")?)
    }

    /// Reads 64 lower-case hex digits.
    pub(super) fn from_hex(hex: &str) -> Option<Self> {
        let digits = hex.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let &[high, low] = pair else { return None };
            *byte = value(high)? << 4 | value(low)?;
        }
        Some(Self(bytes))
    }

    /// The digest of `data`.
    pub(super) fn of(data: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.update(data);
        hasher.finish()
    }

    /// The 64 hex digits.
    pub(super) fn hex(&self) -> String {
        hex(&self.0)
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl Hasher ===

impl Hasher {
    /// Takes the next piece.
    pub(super) fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    /// The digest of all pieces.
    pub(super) fn finish(self) -> Sha256 {
        Sha256(self.0.finalize().into())
    }
}

/// Lower-case hex of `bytes`.
pub(super) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lower_case_sha256_is_read() {
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Sha256::parse(text), Some(Sha256::of(b"")));
        assert_eq!(Sha256::of(b"").to_string(), text);
        for wrong in [
            &text.to_uppercase(),
            &text[..70],
            "sha256:../../../../etc/passwd",
            &text.replace('e', "g"),
            &text[7..],
        ] {
            assert_eq!(Sha256::parse(wrong), None, "{wrong}");
        }
    }
}
