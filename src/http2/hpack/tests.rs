//! The examples of RFC 7541, and what must hold of any blocks.

use bytes::BytesMut;
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::http2::fields::{Field, Fields};

const NO_LIMIT: usize = usize::MAX;

/// Name, value, and whether it is sensitive.
type Owned = (Vec<u8>, Vec<u8>, bool);

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn borrow(field: &Owned) -> Field<'_> {
    Field { name: &field.0, value: &field.1, sensitive: field.2 }
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<Owned>, DecodeError> {
    let mut fields = Fields::default();
    decoder.decode(block, NO_LIMIT, &mut fields)?;
    Ok(fields.iter().map(|field| (field.name.to_vec(), field.value.to_vec(), field.sensitive)).collect())
}

fn encode(encoder: &mut Encoder, fields: &[Owned]) -> BytesMut {
    let mut block = BytesMut::new();
    encoder.encode(fields.iter().map(borrow), &mut block);
    block
}

fn plain(fields: &[(&str, &str)]) -> Vec<Owned> {
    fields.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec(), false)).collect()
}

/// Reads blocks one after the other and compares.
fn check(blocks: &[(&str, &[(&str, &str)])]) {
    let mut decoder = Decoder::new();
    for (hex, fields) in blocks {
        assert_eq!(decode(&mut decoder, &bytes(hex)), Ok(plain(fields)), "{hex}");
    }
}

#[test]
fn rfc_c_2_single_fields() {
    check(&[(
        "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
        &[("custom-key", "custom-header")],
    )]);
    check(&[("040c 2f73 616d 706c 652f 7061 7468", &[(":path", "/sample/path")])]);
    check(&[("82", &[(":method", "GET")])]);
    let secret = decode(&mut Decoder::new(), &bytes("1008 7061 7373 776f 7264 0673 6563 7265 74"));
    assert_eq!(secret, Ok(vec![(b"password".to_vec(), b"secret".to_vec(), true)]));
}

const REQUESTS: [&[(&str, &str)]; 3] = [
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
];

#[test]
fn rfc_c_3_requests() {
    check(&[
        ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", REQUESTS[0]),
        ("8286 84be 5808 6e6f 2d63 6163 6865", REQUESTS[1]),
        ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", REQUESTS[2]),
    ]);
}

#[test]
fn rfc_c_4_requests_with_huffman() {
    check(&[
        ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", REQUESTS[0]),
        ("8286 84be 5886 a8eb 1064 9cbf", REQUESTS[1]),
        ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", REQUESTS[2]),
    ]);
}

const RESPONSES: [&[(&str, &str)]; 3] = [
    &[
        (":status", "302"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ],
    &[
        (":status", "307"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ],
    &[
        (":status", "200"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        ("location", "https://www.example.com"),
        ("content-encoding", "gzip"),
        ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ],
];

// The examples assume a table of 256; here the first block says so.
#[test]
fn rfc_c_5_responses_with_eviction() {
    check(&[
        (
            "3fe1 01 4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a \
             3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            RESPONSES[0],
        ),
        ("4803 3330 37c1 c0bf", RESPONSES[1]),
        (
            "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 \
             7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 \
             6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
            RESPONSES[2],
        ),
    ]);
}

#[test]
fn rfc_c_6_responses_with_huffman_and_eviction() {
    check(&[
        (
            "3fe1 01 4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e \
             919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            RESPONSES[0],
        ),
        ("4883 640e ffc1 c0bf", RESPONSES[1]),
        (
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 \
             e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
            RESPONSES[2],
        ),
    ]);
}

#[test]
fn broken_blocks() {
    for (hex, why) in [
        ("80", "index 0"),
        ("be", "nothing in the dynamic table"),
        ("ff80 8080 8001", "an integer of too many bytes"),
        ("ffff ffff ff0f", "an integer that is too large"),
        ("ff", "an integer that does not end"),
        ("7f80 8080 8001", "the same for a name"),
        ("7e00", "a name that is not in the table"),
        ("4003 6162", "a name that does not end"),
        ("4001 61", "no value"),
        ("4001 6103 6162", "a value that does not end"),
        ("0001 61ff ffff ff07", "a huge value"),
        ("3fe2 1f", "a table of 4097"),
        ("8220", "a size update after a field"),
        (&"20".repeat(17), "size updates without end"),
        ("4001 6181 00", "a value with padding of zeros"),
        ("4001 6184 ffff ffff", "a value with EOS"),
    ] {
        assert_eq!(decode(&mut Decoder::new(), &bytes(hex)), Err(DecodeError::Broken), "{why}");
    }
    check(&[("3fe1 1f 20 3fe1 1f 82", &[(":method", "GET")]), ("", &[])]);
    // Needless zeros are allowed as long as they are few.
    check(&[("0f80 0001 62", &[("accept-charset", "b")])]);
}

#[test]
fn an_entry_larger_than_the_table_empties_it() {
    let mut decoder = Decoder::new();
    assert!(decode(&mut decoder, &bytes("4001 6101 62 be")).is_ok());
    let value = [b'x'; 4192];
    let block = [&bytes("4001 617f e11f")[..], &value].concat();
    assert_eq!(decode(&mut decoder, &block), Ok(vec![(b"a".to_vec(), value.to_vec(), false)]));
    assert_eq!(decode(&mut decoder, &bytes("be")), Err(DecodeError::Broken));
}

#[test]
fn too_large_a_list_leaves_the_table_in_step() {
    let fields =
        plain(&[("content-type", "application/grpc"), ("x-long", &"y".repeat(500)), ("te", "trailers")]);
    let mut encoder = Encoder::new();
    let mut decoder = Decoder::new();
    let mut list = Fields::default();
    let block = encode(&mut encoder, &fields);
    assert_eq!(decoder.decode(&block, 300, &mut list), Err(DecodeError::TooLarge));
    assert_eq!(list.iter().collect::<Vec<_>>(), [borrow(&fields[0])]);
    let block = encode(&mut encoder, &fields[2..]);
    assert_eq!(block.len(), 1);
    assert_eq!(decode(&mut decoder, &block), Ok(fields[2..].to_vec()));
    // The limit itself is not too large.
    list.clear();
    let block = encode(&mut encoder, &fields);
    assert_eq!(decoder.decode(&block, 12 + 16 + 6 + 500 + 2 + 8 + 3 * 32, &mut list), Ok(()));
}

#[test]
fn what_every_call_has_is_a_byte_each() {
    let head = plain(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/runtime.v1.ImageService/ImageStatus"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.72.2"),
        ("te", "trailers"),
        ("grpc-accept-encoding", "gzip"),
    ]);
    let mut encoder = Encoder::new();
    assert!(encode(&mut encoder, &head).len() > 100);
    assert_eq!(encode(&mut encoder, &head).len(), 8);
    // Nothing of it is left in a table of no size, and both sizes are told.
    encoder.set_table_size(0);
    encoder.set_table_size(5000);
    let block = encode(&mut encoder, &head);
    assert_eq!(block[..4], bytes("20 3fe11f"));
    assert!(block.len() > 100);
    assert_eq!(encode(&mut encoder, &head).len(), 8);
    // A sensitive field is spelled out even so.
    let secret = [(b":method".to_vec(), b"POST".to_vec(), true)];
    assert_eq!(encode(&mut encoder, &secret)[..], *b"\x12\x04POST");
    encoder.set_table_size(40);
    assert_eq!(encode(&mut encoder, &plain(&[("te", "trailers")]))[..], *b"\x3f\x09\x00\x02te\x08trailers");
}

/// Fields of which many come again.
fn field() -> impl Strategy<Value = Owned> {
    let name = prop_oneof![
        proptest::sample::select(vec![
            ":path",
            "te",
            "user-agent",
            ":status",
            "grpc-status",
            "cookie",
            "grpc-timeout"
        ])
        .prop_map(|name| name.as_bytes().to_vec()),
        vec(any::<u8>(), 0..8),
    ];
    let value = prop_oneof![
        6 => "[a-d]{0,2}".prop_map(String::into_bytes),
        3 => vec(any::<u8>(), 0..300),
        1 => vec(any::<u8>(), 0..6000),
        1 => Just(b"200".to_vec()),
    ];
    (name, value, proptest::bool::weighted(0.1))
}

/// Sizes that the peer asks for, then a block.
fn step() -> impl Strategy<Value = (Vec<u32>, Vec<Owned>)> {
    (vec(prop_oneof![0..300_u32, 0..6000_u32], 0..3), vec(field(), 0..12))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read(steps in vec(step(), 1..20), limit in prop_oneof![Just(NO_LIMIT), 0..2000_usize]) {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let mut list = Fields::default();
        for (sizes, fields) in steps {
            sizes.iter().for_each(|size| encoder.set_table_size(*size));
            let block = encode(&mut encoder, &fields);
            list.clear();
            let result = decoder.decode(&block, limit, &mut list);
            let size: usize = fields.iter().map(|field| field.0.len() + field.1.len() + 32).sum();
            prop_assert_eq!(result, if size > limit { Err(DecodeError::TooLarge) } else { Ok(()) });
            prop_assert!(list.size() <= limit);
            let count = list.iter().count();
            prop_assert_eq!(list.iter().collect::<Vec<_>>(), fields.iter().map(borrow).take(count).collect::<Vec<_>>());
            prop_assert!(result.is_err() || count == fields.len());
        }
    }

    #[test]
    fn any_bytes_are_bounded(
        blocks in vec((vec(field(), 0..4), vec((any::<proptest::sample::Index>(), any::<u8>()), 0..3), vec(any::<u8>(), 0..60)), 1..10),
        limit in 0..2000_usize,
    ) {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let mut list = Fields::default();
        for (fields, changes, bytes) in blocks {
            let mut block = encode(&mut encoder, &fields);
            for (at, byte) in changes {
                if !block.is_empty() {
                    let at = at.index(block.len());
                    block[at] = byte;
                }
            }
            block.extend_from_slice(&bytes);
            list.clear();
            // Whatever it says: a block that is broken does not keep the next from being looked at here.
            let _ = decoder.decode(&block, limit, &mut list);
            prop_assert!(list.size() <= limit);
        }
    }
}
