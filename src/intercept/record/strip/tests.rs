use proptest::{collection::vec, prelude::*, sample};

use super::*;

/// A field with a length, in the shortest encoding.
fn field(number: u32, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for mut varint in [u64::from(number) << 3 | 2, value.len() as u64] {
        while varint >= 0x80 {
            out.push(varint as u8 | 0x80);
            varint >>= 7;
        }
        out.push(varint as u8);
    }
    out.extend_from_slice(value);
    out
}

fn label(key: &str, value: &str) -> Vec<u8> {
    [field(1, key.as_bytes()), field(2, value.as_bytes())].concat()
}

/// Something that a container holds, and whether it is a record.
#[derive(Debug, Clone)]
enum Part {
    Label(String, String),
    Other(u32, Vec<u8>),
}

fn part() -> impl Strategy<Value = Part> {
    let key =
        sample::select(&[LABEL, "io.kubernetes.container.spec2", "io.kubernetes.container.spe", "a", ""][..]);
    prop_oneof![
        (key.prop_map(str::to_owned), "[ -~]{0,200}").prop_map(|(key, value)| Part::Label(key, value)),
        // Somebody else's fields and texts, in which the key may stand too.
        (13..30u32, vec(any::<u8>(), 0..20)).prop_map(|(number, value)| Part::Other(number, value)),
        (13..30u32).prop_map(|number| Part::Other(number, label(LABEL, "not a label"))),
    ]
}

/// A message with these containers at a place, and unknown fields around them.
fn message(place: Place, containers: &[Vec<Part>], with_records: bool) -> Bytes {
    let container = |parts: &Vec<Part>| -> Vec<u8> {
        let part = |part: &Part| match part {
            Part::Label(key, _) if key == LABEL && !with_records => Vec::new(),
            Part::Label(key, value) => field(place.labels, &label(key, value)),
            Part::Other(number, value) => field(*number, value),
        };
        parts.iter().flat_map(part).collect()
    };
    let mut parts: Vec<Vec<u8>> = containers.iter().map(container).collect();
    for number in place.path.iter().rev() {
        parts = parts.iter().map(|part| [field(*number, part), field(99, b"unknown")].concat()).collect();
    }
    parts.concat().into()
}

const METHODS: [Method; 11] = [
    Method::LIST_CONTAINERS,
    Method::STREAM_CONTAINERS,
    Method::CONTAINER_STATUS,
    Method::POD_SANDBOX_STATUS,
    Method::GET_CONTAINER_EVENTS,
    Method::CONTAINER_STATS,
    Method::LIST_CONTAINER_STATS,
    Method::STREAM_CONTAINER_STATS,
    Method::POD_SANDBOX_STATS,
    Method::LIST_POD_SANDBOX_STATS,
    Method::STREAM_POD_SANDBOX_STATS,
];

proptest! {
    /// What is taken out is the entry with that key, and nothing else changes by a byte.
    #[test]
    fn stripping_is_the_removal_of_that_entry(
        method in sample::select(&METHODS[..]),
        containers in vec(vec(part(), 0..6), 0..5),
    ) {
        let place = Place::of(method).unwrap();
        let message = |with| self::message(place, &containers, with);
        let taken = Taken::default();
        let stripped = place.strip(&taken).apply(&message(true)).unwrap();
        prop_assert_eq!(&stripped, &message(false));
        prop_assert!(may_hold_record(&message(true)) || stripped == message(true));
    }

    /// Garbage around the key is an error at most.
    #[test]
    fn no_message_breaks_it(before in vec(any::<u8>(), 0..50), after in vec(any::<u8>(), 0..50)) {
        let bytes: Bytes = [&before, LABEL.as_bytes(), &after].concat().into();
        let _ = Place::of(Method::LIST_CONTAINERS).unwrap().strip(&Taken::default()).apply(&bytes);
        let _ = records_in(&bytes);
        let _ = asks_for_all(&bytes);
    }
}

#[test]
fn what_labels_take_is_counted() {
    let place = Place::of(Method::LIST_CONTAINERS).unwrap();
    let record = |text: &str| Part::Label(LABEL.into(), text.into());
    let containers =
        [vec![record("one")], vec![], vec![Part::Label("a".into(), LABEL.into()), record("three")]];
    let (message, taken) = (message(place, &containers, true), Taken::default());
    assert_eq!(records_in(&message).unwrap(), ["one", "three"]);
    let stripped = place.strip(&taken).apply(&message).unwrap();
    assert_eq!(taken.load(Ordering::Relaxed), (message.len() - stripped.len()) as u64);
}

#[test]
fn an_empty_filter_is_none() {
    assert!(asks_for_all(b"").unwrap());
    assert!(asks_for_all(&field(1, b"")).unwrap());
    assert!(asks_for_all(&field(2, b"x")).unwrap());
    // state: {state: CREATED}, whose number is zero and so not written.
    assert!(!asks_for_all(&field(1, &field(2, b""))).unwrap());
    assert!(asks_for_all(b"\x0a").is_err());
}
