//! Random messages for the tests: a tree that is encoded in every way that decoders accept, and prost as the judge of
//! what the bytes mean.

use std::collections::HashMap;

use bytes::Bytes;
use proptest::{collection::vec, prelude::*, sample};

/// The schema of the random messages, as prost reads it.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Model {
    #[prost(message, optional, boxed, tag = "1")]
    pub(super) child: Option<Box<Model>>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) scalar: Option<u64>,
    #[prost(map = "string, string", tag = "3")]
    pub(super) map: HashMap<String, String>,
    #[prost(string, repeated, tag = "4")]
    pub(super) names: Vec<String>,
    #[prost(uint64, repeated, tag = "5")]
    pub(super) varints: Vec<u64>,
    #[prost(string, optional, tag = "6")]
    pub(super) text: Option<String>,
    #[prost(message, repeated, tag = "7")]
    pub(super) elements: Vec<Model>,
    #[prost(fixed32, repeated, tag = "8")]
    pub(super) fixed: Vec<u32>,
}

pub(super) const CHILD: u32 = 1;
pub(super) const SCALAR: u32 = 2;
pub(super) const MAP: u32 = 3;
pub(super) const NAMES: u32 = 4;
pub(super) const VARINTS: u32 = 5;
pub(super) const TEXT: u32 = 6;
pub(super) const ELEMENTS: u32 = 7;
pub(super) const FIXED: u32 = 8;

/// A field to be encoded: its number, its value, and how many needless bytes its varints get.
#[derive(Debug, Clone)]
pub(super) struct Item {
    number: u32,
    value: Tree,
    pad: usize,
}

#[derive(Debug, Clone)]
enum Tree {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(Vec<u8>),
    Message(Vec<Item>),
    Group(Vec<Item>),
    PackedVarints(Vec<u64>),
    PackedFixed(Vec<u32>),
}

/// A valid message of the schema, with unknown fields of every kind at every level.
pub(super) fn message() -> impl Strategy<Value = Bytes> {
    items().prop_map(|items| encode(&items).into())
}

/// Short strings, so that equal keys are frequent.
pub(super) fn key() -> impl Strategy<Value = String> {
    sample::select(&["", "a", "b"][..]).prop_map(str::to_owned)
}

/// Short texts, some of which begin alike.
pub(super) fn text() -> impl Strategy<Value = String> {
    sample::select(&["", "a", "b", "ab", "bca"][..]).prop_map(str::to_owned)
}

/// Small numbers, so that equal values are frequent, and big ones.
pub(super) fn number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..4u64, 1 => any::<u64>()]
}

/// Encodes a varint with needless bytes, as far as ten bytes allow.
pub(super) fn varint(out: &mut Vec<u8>, mut value: u64, pad: usize) {
    let mut len = 1;
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
        len += 1;
    }
    let pad = pad.min(10 - len);
    out.push(value as u8 | if pad > 0 { 0x80 } else { 0 });
    for left in (0..pad).rev() {
        out.push(if left > 0 { 0x80 } else { 0 });
    }
}

fn items() -> impl Strategy<Value = Vec<Item>> {
    vec(item(leaf()), 0..5).prop_recursive(4, 64, 8, |inner| {
        let nested = prop_oneof![
            3 => inner.clone().prop_map(|items| (CHILD, Tree::Message(items))),
            2 => inner.clone().prop_map(|items| (ELEMENTS, Tree::Message(items))),
            1 => (unknown_number(), inner).prop_map(|(number, items)| (number, Tree::Group(items))),
        ];
        vec(item(prop_oneof![leaf(), nested]), 0..10)
    })
}

fn item(field: impl Strategy<Value = (u32, Tree)>) -> impl Strategy<Value = Item> {
    let pad = prop_oneof![6 => Just(0usize), 1 => 1..10usize];
    (field, pad).prop_map(|((number, value), pad)| Item { number, value, pad })
}

fn leaf() -> impl Strategy<Value = (u32, Tree)> {
    let text = || text().prop_map(|text| Tree::Bytes(text.into_bytes()));
    prop_oneof![
        3 => number().prop_map(|n| (SCALAR, Tree::Varint(n))),
        2 => text().prop_map(|t| (TEXT, t)),
        2 => text().prop_map(|t| (NAMES, t)),
        4 => entry().prop_map(|t| (MAP, t)),
        1 => number().prop_map(|n| (VARINTS, Tree::Varint(n))),
        1 => vec(number(), 0..4).prop_map(|n| (VARINTS, Tree::PackedVarints(n))),
        1 => (0..4u32).prop_map(|n| (FIXED, Tree::Fixed32(n))),
        1 => vec(0..4u32, 0..4).prop_map(|n| (FIXED, Tree::PackedFixed(n))),
        1 => unknown(),
    ]
}

/// A map entry: keys and values may be absent, doubled, in either order and beside unknown fields.
fn entry() -> impl Strategy<Value = Tree> {
    let part = prop_oneof![
        3 => key().prop_map(|key| (1, Tree::Bytes(key.into_bytes()))),
        3 => key().prop_map(|value| (2, Tree::Bytes(value.into_bytes()))),
        1 => unknown(),
    ];
    vec(item(part), 0..4).prop_map(Tree::Message)
}

fn unknown() -> impl Strategy<Value = (u32, Tree)> {
    let value = prop_oneof![
        any::<u64>().prop_map(Tree::Varint),
        any::<u64>().prop_map(Tree::Fixed64),
        any::<u32>().prop_map(Tree::Fixed32),
        vec(any::<u8>(), 0..5).prop_map(Tree::Bytes),
    ];
    (unknown_number(), value)
}

fn unknown_number() -> impl Strategy<Value = u32> {
    prop_oneof![9..20u32, Just(19_500), Just(super::MAX_FIELD)]
}

fn encode(items: &[Item]) -> Vec<u8> {
    let mut out = Vec::new();
    for Item { number, value, pad } in items {
        let tag = |out: &mut Vec<u8>, wire| varint(out, u64::from(*number) << 3 | wire, *pad);
        let bytes = |out: &mut Vec<u8>, bytes: &[u8]| {
            varint(out, bytes.len() as u64, *pad);
            out.extend_from_slice(bytes);
        };
        match value {
            Tree::Varint(n) => {
                tag(&mut out, 0);
                varint(&mut out, *n, *pad);
            }
            Tree::Fixed64(n) => {
                tag(&mut out, 1);
                out.extend_from_slice(&n.to_le_bytes());
            }
            Tree::Fixed32(n) => {
                tag(&mut out, 5);
                out.extend_from_slice(&n.to_le_bytes());
            }
            Tree::Group(items) => {
                tag(&mut out, 3);
                out.extend(encode(items));
                tag(&mut out, 4);
            }
            Tree::Bytes(b) => {
                tag(&mut out, 2);
                bytes(&mut out, b);
            }
            Tree::Message(items) => {
                tag(&mut out, 2);
                bytes(&mut out, &encode(items));
            }
            Tree::PackedVarints(numbers) => {
                tag(&mut out, 2);
                let mut packed = Vec::new();
                numbers.iter().for_each(|n| varint(&mut packed, *n, *pad));
                bytes(&mut out, &packed);
            }
            Tree::PackedFixed(numbers) => {
                tag(&mut out, 2);
                bytes(&mut out, &numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>());
            }
        }
    }
    out
}
