//! The Huffman code of RFC 7541, appendix B.
//!
//! It is canonical: the codes of one length are consecutive numbers, given to the symbols in order, and go on from
//! those of the shorter length. How many codes there are of each length and the symbols in that order say all of it.

/// How many codes are as long as the index says. The last of the longest is EOS, which never stands in a text.
const COUNTS: [u8; 31] =
    [0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4];

/// The symbols in the order of their codes, without EOS.
const SYMBOLS: [u8; 256] = *b"\
    012aceiost\
    \x20%-./3456789=A_bdfghlmnpru\
    :BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz\
    &*,;XZ\
    !\"()?\
    '+|\
    #>\
    \0$@[]~\
    ^}\
    <`{\
    \\\xc3\xd0\
    \x80\x82\x83\xa2\xb8\xc2\xe0\xe2\
    \x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6\
    \x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4\xc6\xe4\
    \xe8\xe9\
    \x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4\xb6\xb7\
    \xbc\xbf\xc5\xe7\xef\
    \x09\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed\
    \xc7\xcf\xea\xeb\
    \xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff\
    \xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe\
    \x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b\x1c\x1d\
    \x1e\x1f\x7f\xdc\xf9\
    \x0a\x0d\x16\
";

/// The codes up to eight bits by what the next eight bits are: symbol and length. Length 0: the code is longer.
///
/// Nearly all that is found in header fields has such a code.
static SHORT: [(u8, u8); 256] = short();

/// The longer codes by length, shortest first.
static LONG: [Long; 22] = long();

/// The codes of one length.
#[derive(Clone, Copy)]
struct Long {
    /// The first 32 bits of a text that starts with one of these codes, or with a shorter one, are below this.
    below: u64,
    /// How many bits the codes have.
    length: u32,
    /// What to add to a code for its place in `SYMBOLS`.
    place: u32,
}

/// Appends what `text` says, or nothing that matters if it is not well-formed.
pub(super) fn decode(mut text: &[u8], into: &mut Vec<u8>) -> Option<()> {
    // No code is shorter than five bits.
    into.reserve(text.len() / 5 * 8 + 8);
    // The next bits from the top down; the others are zero.
    let mut bits = 0_u64;
    let mut count = 0_u32;
    loop {
        if count < 32 {
            if let Some((next, rest)) = text.split_first_chunk::<4>() {
                bits |= u64::from(u32::from_be_bytes(*next)) << (32 - count);
                count += 32;
                text = rest;
            } else {
                for byte in text {
                    bits |= u64::from(*byte) << (56 - count);
                    count += 8;
                }
                text = &[];
            }
        }
        let (symbol, length) = match SHORT[usize::from((bits >> 56) as u8)] {
            (_, 0) => long_code(bits),
            (symbol, length) => (Some(symbol), u32::from(length)),
        };
        if length > count {
            // No whole code is left: what is there pads the last byte with the first bits of EOS, which are ones.
            return (count < 8 && bits.leading_ones() >= count).then_some(());
        }
        into.push(symbol?);
        bits <<= length;
        count -= length;
    }
}

/// The code of more than eight bits that `bits` start with: its symbol, none if it is EOS, and its length.
#[cold]
fn long_code(bits: u64) -> (Option<u8>, u32) {
    let window = bits >> 32;
    for long in &LONG {
        if window < long.below {
            let place = ((window >> (32 - long.length)) as u32).wrapping_add(long.place);
            return (SYMBOLS.get(place as usize).copied(), long.length);
        }
    }
    (None, u32::MAX)
}

const fn short() -> [(u8, u8); 256] {
    let mut short = [(0, 0); 256];
    let (mut place, mut start, mut length) = (0, 0, 1);
    while length <= 8 {
        let mut left = COUNTS[length];
        while left > 0 {
            let end = start + (1 << (8 - length));
            while start < end {
                short[start] = (SYMBOLS[place], length as u8);
                start += 1;
            }
            place += 1;
            left -= 1;
        }
        length += 1;
    }
    short
}

const fn long() -> [Long; 22] {
    let mut long = [Long { below: 0, length: 0, place: 0 }; 22];
    let (mut place, mut code, mut length) = (0_u32, 0_u32, 1);
    while length < COUNTS.len() {
        code <<= 1;
        let next = code + COUNTS[length] as u32;
        if length > 8 {
            let below = (next as u64) << (32 - length);
            long[length - 9] = Long { below, length: length as u32, place: place.wrapping_sub(code) };
        }
        place += COUNTS[length] as u32;
        code = next;
        length += 1;
    }
    long
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All codes with their lengths, counted out as RFC 7541 lists them; the last is EOS.
    fn codes() -> Vec<(u32, usize)> {
        let mut codes = Vec::new();
        let mut code = 0;
        for (length, count) in COUNTS.into_iter().enumerate() {
            code <<= 1;
            for _ in 0..count {
                codes.push((code, length));
                code += 1;
            }
        }
        codes
    }

    /// A text as bits, one per byte.
    fn bits(text: &[u8]) -> Vec<u8> {
        let codes = codes();
        let code = |byte| codes[SYMBOLS.iter().position(|symbol| symbol == byte).unwrap()];
        text.iter()
            .map(code)
            .flat_map(|(code, length)| (0..length).rev().map(move |at| (code >> at & 1) as u8))
            .collect()
    }

    fn pack(bits: &[u8]) -> Vec<u8> {
        bits.chunks(8).map(|byte| (0..8).fold(0, |all, at| all << 1 | byte.get(at).unwrap_or(&1))).collect()
    }

    /// Bit by bit, as the RFC tells it.
    fn slowly(text: &[u8]) -> Option<Vec<u8>> {
        let codes = codes();
        let (mut said, mut code, mut length) = (Vec::new(), 0_u32, 0);
        for byte in text {
            for at in (0..8).rev() {
                (code, length) = (code << 1 | u32::from(byte >> at & 1), length + 1);
                if let Some(found) = codes.iter().position(|known| *known == (code, length)) {
                    said.push(*SYMBOLS.get(found)?);
                    (code, length) = (0, 0);
                }
            }
        }
        (length < 8 && code == (1 << length) - 1).then_some(said)
    }

    fn fast(text: &[u8]) -> Option<Vec<u8>> {
        let mut said = b"before".to_vec();
        decode(text, &mut said)?;
        Some(said.strip_prefix(b"before").unwrap().to_vec())
    }

    #[test]
    fn some_codes_of_the_rfc() {
        let codes = codes();
        let code = |byte| codes[SYMBOLS.iter().position(|symbol| *symbol == byte).unwrap()];
        assert_eq!(code(0), (0x1ff8, 13));
        assert_eq!(code(b'0'), (0x0, 5));
        assert_eq!(code(b'z'), (0x7b, 7));
        assert_eq!(code(b'\\'), (0x7fff0, 19));
        assert_eq!(code(255), (0x3ff_ffee, 26));
        assert_eq!(code(22), (0x3fff_fffe, 30));
        assert_eq!(codes[256], (0x3fff_ffff, 30));
    }

    #[test]
    fn padding_is_the_start_of_eos_and_shorter_than_a_byte() {
        assert_eq!(fast(&[]), Some(Vec::new()));
        // '0' is five zeros, '&' is 0xf8.
        assert_eq!(fast(&[0b0000_0111]), Some(b"0".to_vec()));
        assert_eq!(fast(&[0b0000_0110]), None);
        assert_eq!(fast(&[0b0000_0111, 0xff]), None);
        assert_eq!(fast(&[0xf8]), Some(b"&".to_vec()));
        assert_eq!(fast(&[0xf8, 0xff]), None);
        assert_eq!(fast(&[0xff]), None);
        // EOS, alone and in a text.
        assert_eq!(fast(&[0xff; 4]), None);
        assert_eq!(fast(&[0x07, 0xff, 0xff, 0xff, 0xff, 0x00]), None);
    }

    #[test]
    fn every_byte_at_every_offset() {
        for byte in 0..=255 {
            for before in 0..8 {
                let text = [vec![b'0'; before], vec![byte, byte]].concat();
                assert_eq!(fast(&pack(&bits(&text))), Some(text));
            }
        }
    }

    proptest! {
        #[test]
        fn reads_what_was_written(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(fast(&pack(&bits(&text))), Some(text));
        }

        #[test]
        fn reads_as_bit_by_bit(
            text in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0xff), Just(0xfe)], 0..24),
        ) {
            prop_assert_eq!(fast(&text), slowly(&text));
        }
    }
}
