//! Seeded randomness, so that a failure can be repeated.

/// splitmix64: small, and good enough to vary bytes and places.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    /// A valid protobuf message of fields that no CRI message has, nested up to `depth` levels.
    pub(crate) fn unknown_fields(&mut self, depth: usize) -> Vec<u8> {
        let mut message = Vec::new();
        for _ in 0..=self.below(4) {
            let number = 1000 + self.next() % 100_000;
            match self.below(if depth == 0 { 4 } else { 6 }) {
                0 => {
                    varint(number << 3, &mut message);
                    varint(self.next() >> self.below(64), &mut message);
                }
                1 => {
                    varint(number << 3 | 1, &mut message);
                    message.extend(self.bytes(8));
                }
                2 => {
                    varint(number << 3 | 5, &mut message);
                    message.extend(self.bytes(4));
                }
                3 => {
                    let size = self.below(60);
                    message.extend(field(number, &self.bytes(size)));
                }
                4 => {
                    varint(number << 3 | 3, &mut message);
                    message.extend(self.unknown_fields(depth - 1));
                    varint(number << 3 | 4, &mut message);
                }
                _ => message.extend(field(number, &self.unknown_fields(depth - 1))),
            }
        }
        message
    }

    /// Cuts bytes into pieces at random places.
    pub(crate) fn cut(&mut self, whole: &[u8]) -> Vec<bytes::Bytes> {
        let mut pieces = Vec::new();
        let mut rest = whole;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(1 + self.below(rest.len().min(97)));
            pieces.push(bytes::Bytes::copy_from_slice(piece));
            rest = after;
        }
        pieces
    }
}

/// A length-delimited field.
pub(crate) fn field(number: u64, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(number << 3 | 2, &mut out);
    varint(value.len() as u64, &mut out);
    out.extend_from_slice(value);
    out
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f | 0x80).to_le_bytes()[0]);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}
