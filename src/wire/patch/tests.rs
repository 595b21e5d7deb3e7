use bytes::Bytes;
use proptest::{collection::vec, prelude::*};
use prost::Message as _;

use super::*;
use crate::wire::{
    MAX_DEPTH, entry, fields, last,
    model::{self, *},
    scan::{Field, count},
};

/// A change to a random message, `depth` children below its root.
#[derive(Debug, Clone)]
struct Edit {
    depth: usize,
    change: Change,
}

#[derive(Debug, Clone)]
enum Change {
    SetScalar(u64),
    SetText(String),
    Remove(u32),
    AppendName(String),
    AppendVarint(u64),
    RetainNames(String),
    RetainVarints(u64),
    RetainFixed(u32),
    SetEntry(String, String),
    RemoveEntry(String),
    /// Changes all elements whose scalar is even.
    Each(Vec<Edit>),
}

fn edit() -> impl Strategy<Value = Edit> {
    let change = prop_oneof![
        3 => number().prop_map(Change::SetScalar),
        2 => text().prop_map(Change::SetText),
        1 => (1..10u32).prop_map(Change::Remove),
        1 => text().prop_map(Change::AppendName),
        1 => number().prop_map(Change::AppendVarint),
        1 => text().prop_map(Change::RetainNames),
        1 => (1..3u64).prop_map(Change::RetainVarints),
        1 => (0..4u32).prop_map(Change::RetainFixed),
        4 => (key(), key()).prop_map(|(key, value)| Change::SetEntry(key, value)),
        2 => key().prop_map(Change::RemoveEntry),
    ];
    let depth = || prop_oneof![3 => Just(0), 3 => Just(1), 1 => Just(2usize)];
    let at = move |change| (depth(), change).prop_map(|(depth, change)| Edit { depth, change });
    at(change.boxed())
        .prop_recursive(2, 8, 3, move |inner| at(vec(inner, 0..4).prop_map(Change::Each).boxed()))
}

fn patch(edits: &[Edit]) -> Patch {
    edits.iter().map(Edit::patch).collect()
}

fn is_even(element: &[u8]) -> bool {
    last(element, [SCALAR]).unwrap().and_then(Value::as_u64).unwrap_or(0).is_multiple_of(2)
}

fn decode(message: &[u8]) -> Model {
    Model::decode(message).unwrap()
}

/// The spans of all fields at and beside the path, in order, without those that the edit is about.
fn residue<'a>(message: &'a [u8], path: &[u32], touched: &dyn Fn(&Field<'_>) -> bool) -> Vec<&'a [u8]> {
    let (&number, rest) = path.split_first().unwrap();
    let mut spans = Vec::new();
    for field in fields(message).map(Result::unwrap) {
        match field.value {
            Value::Len(inner) if field.number == number && !rest.is_empty() => {
                spans.extend(residue(inner, rest, touched));
            }
            _ if field.number == number && rest.is_empty() && touched(&field) => {}
            _ => spans.push(field.raw),
        }
    }
    spans
}

fn is_subsequence(short: &[&[u8]], long: &[&[u8]]) -> bool {
    let mut long = long.iter();
    short.iter().all(|span| long.any(|other| other == span))
}

impl Edit {
    fn patch(&self) -> Patch {
        let inner = Patch::new();
        let inner = match self.change.clone() {
            Change::SetScalar(value) => inner.set([SCALAR], value),
            Change::SetText(value) => inner.set([TEXT], value),
            Change::Remove(number) => inner.remove([number]),
            Change::AppendName(value) => inner.append([NAMES], value),
            Change::AppendVarint(value) => inner.append([VARINTS], value),
            Change::RetainNames(prefix) => {
                inner.retain([NAMES], move |name| name.starts_with(prefix.as_bytes()))
            }
            Change::RetainVarints(n) => inner.retain_scalars([VARINTS], Scalar::Varint, move |v| v % 3 >= n),
            Change::RetainFixed(n) => inner.retain_scalars([FIXED], Scalar::Fixed32, move |v| v >= n.into()),
            Change::SetEntry(key, value) => inner.set_entry([MAP], key, value),
            Change::RemoveEntry(key) => inner.remove_entry([MAP], key),
            Change::Each(edits) => {
                inner.each([ELEMENTS], move |element| is_even(element).then(|| patch(&edits)))
            }
        };
        Patch::new().within(vec![CHILD; self.depth], inner)
    }

    /// Does to the decoded message what the patch is meant to do to the bytes.
    fn run(&self, mut model: &mut Model) {
        let creates = matches!(
            self.change,
            Change::SetScalar(_)
                | Change::SetText(_)
                | Change::AppendName(_)
                | Change::AppendVarint(_)
                | Change::SetEntry(..)
        );
        for _ in 0..self.depth {
            if model.child.is_none() && !creates {
                return;
            }
            model = model.child.get_or_insert_default();
        }
        match self.change.clone() {
            Change::SetScalar(value) => model.scalar = Some(value),
            Change::SetText(value) => model.text = Some(value),
            Change::Remove(CHILD) => model.child = None,
            Change::Remove(SCALAR) => model.scalar = None,
            Change::Remove(MAP) => model.map.clear(),
            Change::Remove(NAMES) => model.names.clear(),
            Change::Remove(VARINTS) => model.varints.clear(),
            Change::Remove(TEXT) => model.text = None,
            Change::Remove(ELEMENTS) => model.elements.clear(),
            Change::Remove(FIXED) => model.fixed.clear(),
            Change::Remove(_) => {}
            Change::AppendName(value) => model.names.push(value),
            Change::AppendVarint(value) => model.varints.push(value),
            Change::RetainNames(prefix) => model.names.retain(|name| name.starts_with(&prefix)),
            Change::RetainVarints(n) => model.varints.retain(|v| v % 3 >= n),
            Change::RetainFixed(n) => model.fixed.retain(|v| *v >= n),
            Change::SetEntry(key, value) => drop(model.map.insert(key, value)),
            Change::RemoveEntry(key) => drop(model.map.remove(&key)),
            Change::Each(edits) => {
                for element in model.elements.iter_mut().filter(|e| e.scalar.unwrap_or(0) % 2 == 0) {
                    edits.iter().for_each(|edit| edit.run(element));
                }
            }
        }
    }

    fn leaf(&self) -> u32 {
        match self.change {
            Change::SetScalar(_) => SCALAR,
            Change::SetText(_) => TEXT,
            Change::Remove(number) => number,
            Change::AppendName(_) | Change::RetainNames(_) => NAMES,
            Change::AppendVarint(_) | Change::RetainVarints(_) => VARINTS,
            Change::RetainFixed(_) => FIXED,
            Change::SetEntry(..) | Change::RemoveEntry(_) => MAP,
            Change::Each(_) => ELEMENTS,
        }
    }

    /// Whether the edit may change this field.
    fn touches(&self, field: &Field<'_>) -> bool {
        match &self.change {
            Change::RetainNames(prefix) => !field.value.as_bytes().unwrap().starts_with(prefix.as_bytes()),
            Change::SetEntry(key, _) | Change::RemoveEntry(key) => {
                scan::entry_key(field.value.as_bytes().unwrap()).unwrap() == key.as_bytes()
            }
            Change::AppendName(_) | Change::AppendVarint(_) => false,
            _ => true,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_patch_means_what_it_says(message in model::message(), edits in vec(edit(), 0..5)) {
        let mut expected = decode(&message);
        edits.iter().for_each(|edit| edit.run(&mut expected));
        prop_assert_eq!(decode(&patch(&edits).apply(&message).unwrap()), expected);
    }

    #[test]
    fn all_else_is_copied_verbatim(message in model::message(), edit in edit()) {
        let path = [vec![CHILD; edit.depth], vec![edit.leaf()]].concat();
        let patched = edit.patch().apply(&message).unwrap();
        let touched = |field: &Field<'_>| edit.touches(field);
        let (before, after) = (residue(&message, &path, &touched), residue(&patched, &path, &touched));
        match edit.change {
            Change::AppendName(_) | Change::AppendVarint(_) => {
                prop_assert!(is_subsequence(&before, &after));
                prop_assert_eq!(after.len(), before.len() + 1);
            }
            Change::Each(_) => {
                prop_assert_eq!(before, after);
                let is_odd = |field: &Field<'_>| !field.value.as_bytes().is_some_and(is_even);
                let odd = residue(&message, &path, &|field| !is_odd(field));
                prop_assert!(is_subsequence(&odd, &residue(&patched, &path, &|_| false)));
            }
            _ => prop_assert_eq!(before, after),
        }
        // Nothing is copied if nothing changed.
        if message == patched && !matches!(edit.change, Change::Each(_)) {
            prop_assert_eq!(message.as_ptr(), patched.as_ptr());
        }
    }

    #[test]
    fn joined_patches_equal_one_after_the_other(
        message in model::message(),
        first in vec(edit(), 0..4),
        second in vec(edit(), 0..4),
    ) {
        let (first, second) = (patch(&first), patch(&second));
        let joined = first.clone().then(second.clone()).apply(&message).unwrap();
        prop_assert_eq!(joined, second.apply(&first.apply(&message).unwrap()).unwrap());
    }

    #[test]
    fn a_second_time_changes_nothing(message in model::message(), edit in edit()) {
        let once = edit.patch().apply(&message).unwrap();
        let twice = edit.patch().apply(&once).unwrap();
        if !matches!(edit.change, Change::AppendName(_) | Change::AppendVarint(_) | Change::Each(_)) {
            prop_assert_eq!(once.as_ptr(), twice.as_ptr());
            prop_assert_eq!(once.len(), twice.len());
        }
    }

    #[test]
    fn any_bytes_are_patched_or_refused(
        message in vec(prop_oneof![0..0x44u8, any::<u8>()], 0..40),
        edits in vec(edit(), 1..4),
    ) {
        let message = Bytes::from(message);
        // Elements may be invalid here, which the closure of `edit` does not expect.
        let edits: Vec<_> = edits.into_iter().filter(|e| !matches!(e.change, Change::Each(_))).collect();
        let patch = patch(&edits).each([ELEMENTS], |_| Some(Patch::new().set([CHILD, SCALAR], 1u32)));
        if let Ok(patched) = patch.apply(&message) {
            prop_assert!(fields(&patched).all(|field| field.is_ok()));
        } else {
            prop_assert!(patch.apply(&message).is_err());
        }
        let nothing = Patch::new().remove([CHILD, CHILD, 9]).retain([NAMES], |_| true).each([CHILD], |_| None);
        if let Ok(same) = nothing.apply(&message) && count(&message, [CHILD, CHILD, 9]) == Ok(0) {
            prop_assert_eq!(same.as_ptr(), message.as_ptr());
            prop_assert_eq!(same.len(), message.len());
        }
    }
}

fn apply(patch: Patch, message: &[u8]) -> Vec<u8> {
    patch.apply(&Bytes::copy_from_slice(message)).unwrap().to_vec()
}

#[test]
fn an_empty_patch_gives_back_the_same_buffer() {
    let invalid = Bytes::from_static(b"\x00 not a message");
    assert_eq!(Patch::new().apply(&invalid).unwrap().as_ptr(), invalid.as_ptr());
}

#[test]
fn a_set_field_stays_where_its_last_occurrence_was() {
    assert_eq!(
        apply(Patch::new().set([1], 7u32), b"\x08\x01\x10\x02\x08\x03\x18\x04"),
        b"\x10\x02\x08\x07\x18\x04"
    );
    assert_eq!(apply(Patch::new().set([1], 7u32), b"\x10\x02"), b"\x10\x02\x08\x07");
}

#[test]
fn a_set_field_wins_over_all_occurrences_of_its_message() {
    // {1: {8: 1, 2: 2}} {1: {3: 3}}
    let message = b"\x0a\x04\x40\x01\x10\x02\x0a\x02\x18\x03";
    assert_eq!(apply(Patch::new().set([1, 8], false), message), b"\x0a\x04\x40\x00\x10\x02\x0a\x02\x18\x03");
    assert_eq!(
        apply(Patch::new().set([1, 4], 4u32), message),
        b"\x0a\x04\x40\x01\x10\x02\x0a\x04\x18\x03\x20\x04"
    );
    let twice = b"\x0a\x02\x40\x01\x0a\x02\x40\x01";
    assert_eq!(apply(Patch::new().set([1, 8], true), twice), b"\x0a\x00\x0a\x02\x40\x01");
    assert_eq!(apply(Patch::new().remove([1, 8]), twice), b"\x0a\x00\x0a\x00");
}

#[test]
fn only_sets_and_appends_create_messages() {
    assert_eq!(apply(Patch::new().set([1, 2, 3], "x"), b""), b"\x0a\x05\x12\x03\x1a\x01x");
    assert_eq!(apply(Patch::new().append([1, 2], true), b""), b"\x0a\x02\x10\x01");
    assert_eq!(apply(Patch::new().set_entry([1, 2], "k", "v"), b""), b"\x0a\x08\x12\x06\x0a\x01k\x12\x01v");
    let none = Patch::new().remove([1, 2]).retain([1, 3], |_| false).remove_entry([1, 4], "k");
    assert_eq!(apply(none, b""), b"");
}

#[test]
fn lengths_are_written_anew_only_around_a_change() {
    // The lengths of both messages are overlong.
    let message = b"\x0a\x82\x00\x08\x01\x12\x82\x00\x08\x01";
    assert_eq!(
        apply(Patch::new().set([1, 1], 2u32).set([2, 1], 1u32), message),
        b"\x0a\x02\x08\x02\x12\x82\x00\x08\x01"
    );
}

#[test]
fn a_field_of_another_wire_type_is_an_unknown_field() {
    assert_eq!(apply(Patch::new().set([1], "x"), b"\x08\x01"), b"\x08\x01\x0a\x01x");
    assert_eq!(apply(Patch::new().set([1, 2], true), b"\x08\x01"), b"\x08\x01\x0a\x02\x10\x01");
    assert_eq!(apply(Patch::new().remove([1]), b"\x08\x01\x0b\x0c\x0a\x00\x10\x01"), b"\x10\x01");
    // Nobody is asked whether it stays, because it is no element.
    let message = b"\x08\x01\x0a\x01x\x0d\0\0\0\0\x0b\x0c";
    assert_eq!(apply(Patch::new().retain([1], |_| false), message), b"\x08\x01\x0d\0\0\0\0\x0b\x0c");
    let none = Patch::new().retain_scalars([1], Scalar::Fixed64, |_| false);
    assert_eq!(apply(none, b"\x08\x01\x0d\0\0\0\0\x0b\x0c"), b"\x08\x01\x0d\0\0\0\0\x0b\x0c");
}

/// What a patch has put there is no span of the message: gone into and left as it is, it must still be written.
#[test]
fn what_was_just_put_there_survives_a_look_into_it() {
    let looks: [fn(Patch) -> Patch; 3] = [
        |patch| patch.remove([1, 9]),
        |patch| patch.set([1, 2], 5u32),
        |patch| patch.each([1], |_| Some(Patch::new().remove([9]))),
    ];
    for look in looks {
        let patch = look(Patch::new().append([1], &b"\x10\x05"[..]));
        assert_eq!(apply(patch, b"\x18\x07"), b"\x18\x07\x0a\x02\x10\x05");
        let patch = look(Patch::new().set([1], &b"\x10\x05"[..]));
        assert_eq!(apply(patch, b"\x0a\x00\x18\x07"), b"\x0a\x02\x10\x05\x18\x07");
    }
}

#[test]
fn negative_numbers_have_64_bits() {
    let minus_one = b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    assert_eq!(apply(Patch::new().set([1], -1i32), b""), minus_one);
    assert_eq!(apply(Patch::new().set([1], -1i64), b""), minus_one);
}

#[test]
fn a_map_key_is_set_once_and_keeps_what_else_is_in_its_entry() {
    // {"k": "a"} {"x": "y"} {"k": "b", 3: 1}
    let message = b"\x0a\x06\x0a\x01k\x12\x01a\x0a\x06\x0a\x01x\x12\x01y\x0a\x08\x0a\x01k\x12\x01b\x18\x01";
    let expected = b"\x0a\x06\x0a\x01x\x12\x01y\x0a\x08\x0a\x01k\x12\x01c\x18\x01";
    assert_eq!(apply(Patch::new().set_entry([1], "k", "c"), message), expected);
}

/// A key or a value that occurs twice in its entry: the last one counts.
#[test]
fn the_last_key_and_the_last_value_of_an_entry_count() {
    // {"a" "k": "x" "y"}
    let message = b"\x0a\x0c\x0a\x01a\x12\x01x\x0a\x01k\x12\x01y";
    assert_eq!(entry(message, [1], "k"), Ok(Some(&b"y"[..])));
    assert_eq!(entry(message, [1], "a"), Ok(None));
    assert_eq!(apply(Patch::new().remove_entry([1], "a"), message), message);
    assert_eq!(apply(Patch::new().remove_entry([1], "k"), message), b"");
    let set = apply(Patch::new().set_entry([1], "k", "z"), message);
    assert_eq!(set, b"\x0a\x09\x0a\x01a\x0a\x01k\x12\x01z");
}

#[test]
fn packed_and_unpacked_scalars_are_retained_alike() {
    // [1, 2, 1] packed, 2, [1] packed, 1, [2] packed with an overlong length.
    let message = b"\x0a\x03\x01\x02\x01\x08\x02\x0a\x01\x01\x08\x01\x0a\x81\x00\x02";
    let patch = Patch::new().retain_scalars([1], Scalar::Varint, |v| v == 2);
    assert_eq!(apply(patch, message), b"\x0a\x01\x02\x08\x02\x0a\x81\x00\x02");
    let cut = Bytes::from_static(b"\x0a\x03\x01\0\0");
    assert_eq!(
        Patch::new().retain_scalars([1], Scalar::Fixed32, |_| true).apply(&cut),
        Err(Error::Truncated)
    );
}

#[test]
fn later_patches_see_what_earlier_ones_did() {
    let patch = Patch::new()
        .append([1], &b"\x08\x01"[..])
        .each([1], |element| Some(Patch::new().set([2], element.len() as u64)))
        .each([1], |element| Some(Patch::new().set([3], element.len() as u64)))
        .set([1, 4], "end")
        .retain([1], |element| element.len() > 2);
    assert_eq!(
        apply(patch, b"\x0a\x00"),
        b"\x0a\x04\x10\x00\x18\x02\x0a\x0b\x08\x01\x10\x02\x18\x04\x22\x03end"
    );
}

#[test]
fn deep_messages_are_patched_down_to_the_limit() {
    let nested = |levels: usize| {
        (0..levels).fold(vec![0x10, 1], |inner, _| {
            let mut outer = vec![0x0a];
            model::varint(&mut outer, inner.len() as u64, 0);
            outer.extend(inner);
            outer
        })
    };
    let path = |levels: usize| [vec![1; levels], vec![2]].concat();
    let deep = Bytes::from(nested(MAX_DEPTH - 1));
    let patched = Patch::new().set(path(MAX_DEPTH - 1), 2u32).apply(&deep).unwrap();
    assert_eq!(last(&patched, path(MAX_DEPTH - 1)).unwrap(), Some(Value::Varint(2)));
    let deeper = Bytes::from(nested(MAX_DEPTH));
    assert_eq!(Patch::new().set(path(MAX_DEPTH), 2u32).apply(&deeper), Err(Error::Depth));
    assert_eq!(Patch::new().set(path(MAX_DEPTH), 2u32).apply(&Bytes::new()), Err(Error::Depth));
    fn all_the_way(_: &[u8]) -> Option<Patch> {
        Some(Patch::new().each([1], all_the_way))
    }
    assert_eq!(Patch::new().each([1], all_the_way).apply(&Bytes::from(nested(10_000))), Err(Error::Depth));
}

#[test]
fn invalid_paths_are_errors() {
    for path in [&[][..], &[0], &[1, MAX_FIELD + 1]] {
        assert_eq!(Patch::new().set(path, true).apply(&Bytes::new()), Err(Error::Path));
    }
}

#[test]
fn invalid_data_on_the_path_is_an_error() {
    let message = Bytes::from_static(b"\x0a\x01\x08");
    assert_eq!(Patch::new().set([1, 2], true).apply(&message), Err(Error::Truncated));
    assert_eq!(Patch::new().remove_entry([1], "k").apply(&message), Err(Error::Truncated));
    // Off the path nobody knows whether the bytes are a message at all.
    assert!(Patch::new().set([2], true).apply(&message).is_ok());
}

#[test]
fn a_list_is_patched_by_element() {
    // ListImagesResponse: pin those images whose id(1) is "a".
    let message = b"\x0a\x03\x0a\x01a\x0a\x03\x0a\x01b";
    let pin = Patch::new().each([1], |image| {
        let id = last(image, [1]).ok()??;
        (id.as_str() == Some("a")).then(|| Patch::new().set([8], true))
    });
    assert_eq!(apply(pin, message), b"\x0a\x05\x0a\x01a\x40\x01\x0a\x03\x0a\x01b");
    assert_eq!(entry(b"", [1], "k"), Ok(None));
}

#[test]
fn elements_are_replaced_and_all_else_stays() {
    let message = Bytes::from_static(b"\x22\x01a\x10\x05\x22\x01b\x0a\x06\x22\x01a\x22\x01c");
    let replace = |path: &[u32]| {
        Patch::new().replace(path, |text| Ok((text == b"a").then(|| Bytes::from_static(b"long"))))
    };
    let changed = replace(&[4]).apply(&message).unwrap();
    assert_eq!(changed, &b"\x22\x04long\x10\x05\x22\x01b\x0a\x06\x22\x01a\x22\x01c"[..]);
    let inside = replace(&[1, 4]).apply(&message).unwrap();
    assert_eq!(inside, &b"\x22\x01a\x10\x05\x22\x01b\x0a\x09\x22\x04long\x22\x01c"[..]);
    let same = Patch::new().replace([4], |text| Ok(Some(Bytes::copy_from_slice(text))));
    assert_eq!(same.apply(&message).unwrap().as_ptr(), message.as_ptr());
    let none = Patch::new().replace([4], |_| Ok(None));
    assert_eq!(none.apply(&message).unwrap().as_ptr(), message.as_ptr());
    let broken = Patch::new().replace([4], |_| Err(Error::Truncated));
    assert_eq!(broken.apply(&message), Err(Error::Truncated));
}
