use proptest::{collection::vec, prelude::*};

use super::*;
use crate::wire::model;

/// Bytes that are more often than not the beginning of a field.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![0..0x14u8, any::<u8>()], 0..40)
}

fn all(message: &[u8]) -> Result<Vec<Field<'_>>, Error> {
    fields(message).collect()
}

/// Feeds a message to a counter in chunks of the given lengths, used in turn.
fn count_in_chunks(message: &[u8], number: u32, lengths: &[usize]) -> Result<u64, Error> {
    let (mut rest, mut counter) = (message, Counter::new(number));
    for length in lengths.iter().cycle() {
        let (chunk, after) = rest.split_at((*length).min(rest.len()));
        counter.push(chunk);
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    counter.finish()
}

#[test]
fn reads_every_wire_type() {
    let message = b"\x08\x96\x01\x11\x01\0\0\0\0\0\0\0\x1a\x02hi\x23\x08\x01\x24\x2d\x02\0\0\0";
    let values: Vec<_> = all(message).unwrap().iter().map(|field| (field.number, field.value)).collect();
    let expected = [
        (1, Value::Varint(150)),
        (2, Value::Fixed64(1)),
        (3, Value::Len(b"hi")),
        (4, Value::Group(b"\x08\x01")),
        (5, Value::Fixed32(2)),
    ];
    assert_eq!(values, expected);
}

#[test]
fn refuses_what_decoders_refuse() {
    let cases: [(&[u8], Error); 11] = [
        (b"\x00\x00", Error::Tag(0)),
        (b"\x0e", Error::Tag(0x0e)),
        (b"\x80\x80\x80\x80\x10\x00", Error::Tag(1 << 32)),
        (b"\x0c", Error::Group(1)),
        (b"\x0b\x14", Error::Group(2)),
        (b"\x0b", Error::Truncated),
        (b"\x0a\x02a", Error::Truncated),
        // A length of 4 GiB and one byte.
        (b"\x0a\x81\x80\x80\x80\x10a", Error::Truncated),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Error::Truncated),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", Error::Varint),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Error::Varint),
    ];
    for (message, error) in cases {
        assert_eq!(all(message), Err(error), "{message:x?}");
        assert_eq!(count_in_chunks(message, 1, &[1]), Err(error), "{message:x?}");
    }
}

#[test]
fn accepts_overlong_varints() {
    let message = b"\x88\x80\x80\x80\x00\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00";
    assert_eq!(last(message, [1]), Ok(Some(Value::Varint(1))));
    assert_eq!(last(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", [1]), Ok(Some(Value::Varint(u64::MAX))));
}

#[test]
fn nested_groups_end_at_the_limit() {
    let groups = |depth: usize| [vec![0x0b; depth], vec![0x0c; depth]].concat();
    assert_eq!(count(&groups(MAX_DEPTH), [1]), Ok(1));
    assert_eq!(count(&groups(MAX_DEPTH + 1), [1]), Err(Error::Depth));
    assert_eq!(count_in_chunks(&groups(MAX_DEPTH), 1, &[7]), Ok(1));
    assert_eq!(count_in_chunks(&groups(MAX_DEPTH + 1), 1, &[7]), Err(Error::Depth));
    // A sender who nests a million groups costs no more than a look at the first hundred.
    assert_eq!(count(&groups(1_000_000), [1]), Err(Error::Depth));
}

#[test]
fn looks_into_all_occurrences_of_a_message() {
    // {1: {1: "a"}} {1: {2: 5}}: decoders merge both.
    let message = b"\x0a\x03\x0a\x01a\x0a\x02\x10\x05";
    assert_eq!(last(message, [1, 1]).unwrap().and_then(Value::as_str), Some("a"));
    assert_eq!(last(message, [1, 2]).unwrap().and_then(Value::as_u64), Some(5));
    assert_eq!(last(message, [2, 2]), Ok(None));
    assert_eq!(count(message, [1]), Ok(2));
    assert_eq!(last(message, []), Err(Error::Path));
}

#[test]
fn the_last_value_of_a_map_key_counts() {
    // Two entries for "k", one without a key.
    let message = b"\x0a\x06\x0a\x01k\x12\x01a\x0a\x06\x12\x01b\x0a\x01k\x0a\x03\x12\x01c";
    assert_eq!(entry(message, [1], "k"), Ok(Some(&b"b"[..])));
    assert_eq!(entry(message, [1], ""), Ok(Some(&b"c"[..])));
    assert_eq!(entry(message, [1], "x"), Ok(None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn spans_make_up_the_message(message in prop_oneof![noise(), model::message().prop_map(Vec::from)]) {
        if let Ok(fields) = all(&message) {
            prop_assert_eq!(fields.iter().flat_map(|field| field.raw).copied().collect::<Vec<_>>(), message);
        }
    }

    #[test]
    fn counter_agrees_with_scan(
        message in prop_oneof![noise(), model::message().prop_map(Vec::from)],
        number in 1..10u32,
        lengths in vec(1..9usize, 1..5),
    ) {
        prop_assert_eq!(count_in_chunks(&message, number, &lengths), count(&message, [number]));
    }

    #[test]
    fn counter_agrees_for_every_cut_into_two(message in model::message(), number in 1..10u32) {
        let whole = count(&message, [number]);
        prop_assert!(whole.is_ok());
        for cut in 0..=message.len() {
            let (head, tail) = message.split_at(cut);
            let mut counter = Counter::new(number);
            counter.push(head);
            counter.push(tail);
            prop_assert_eq!(counter.finish(), whole);
        }
    }

    #[test]
    fn a_truncated_message_is_an_error_or_a_prefix(message in model::message()) {
        let fields = all(&message).unwrap();
        let mut ends = vec![0];
        for field in &fields {
            ends.push(ends.last().unwrap() + field.raw.len());
        }
        for cut in 0..=message.len() {
            match (all(&message[..cut]), ends.iter().position(|end| *end == cut)) {
                (Ok(prefix), Some(index)) => prop_assert_eq!(&prefix[..], &fields[..index]),
                (Err(error), None) => prop_assert_eq!(error, Error::Truncated),
                (other, _) => prop_assert!(false, "cut at {}: {:?}", cut, other),
            }
        }
    }
}
