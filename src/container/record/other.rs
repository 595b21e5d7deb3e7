//! Fields that records know nothing of: those of a CRI to come, and Windows.
//!
//! A record holds one hash for all of them in a section, so that a change is noticed though it cannot be named. This walk
//! also counts, before anything is decoded: a message of 4 MiB can hold two million empty strings.

use std::collections::BTreeMap;

use super::MAX_ELEMENTS;
use crate::wire::{self, Value, fields};

/// What is known of the fields of a message.
struct Section {
    name: &'static str,
    /// By number. Fields that a record leaves out are here too.
    known: &'static [(u32, Known)],
}

enum Known {
    /// A value, or a message that is of no interest below.
    Value,
    /// Scalars that may be packed.
    Packed,
    /// A message, or a list of them.
    Message(&'static Section),
}

use Known::{Message, Packed, Value as Plain};

/// `CreateContainerRequest`
const REQUEST: Section =
    Section { name: "request", known: &[(1, Plain), (2, Message(&CONTAINER)), (3, Message(&SANDBOX))] };

/// `PodSandboxConfig`: of the pod, not of the container. It is walked for the counting.
const SANDBOX: Section = Section {
    name: IGNORED,
    known: &[(1, Plain), (2, Plain), (3, Plain), (4, Plain), (5, Plain), (6, Plain), (7, Plain), (8, Plain)],
};

/// The section whose unknown fields are not recorded.
const IGNORED: &str = "";

/// `ContainerConfig`
const CONTAINER: Section = Section {
    name: "container",
    known: &[
        (1, Plain),
        (2, Message(&IMAGE)),
        (3, Plain),
        (4, Plain),
        (5, Plain),
        (6, Plain),
        (7, Message(&MOUNT)),
        (8, Message(&DEVICE)),
        (9, Plain),
        (10, Plain),
        (11, Plain),
        (12, Plain),
        (13, Plain),
        (14, Plain),
        (15, Message(&LINUX)),
        (17, Message(&CDI)),
        (18, Plain),
    ],
};

/// `ImageSpec`: what it says beside the image's name is of the pull.
const IMAGE: Section = Section { name: IGNORED, known: &[(1, Plain), (2, Plain), (18, Plain), (19, Plain)] };

const MOUNT: Section = Section {
    name: "mounts",
    known: &[
        (1, Plain),
        (2, Plain),
        (3, Plain),
        (4, Plain),
        (5, Plain),
        (6, Message(&ID_MAPPING)),
        (7, Message(&ID_MAPPING)),
        (8, Plain),
        (9, Message(&IMAGE)),
        (10, Plain),
        (11, Plain),
    ],
};

const ID_MAPPING: Section = Section { name: "idMappings", known: &[(1, Plain), (2, Plain), (3, Plain)] };

const DEVICE: Section = Section { name: "devices", known: &[(1, Plain), (2, Plain), (3, Plain)] };

const CDI: Section = Section { name: "cdi", known: &[(1, Plain)] };

/// `LinuxContainerConfig`
const LINUX: Section = Section { name: "linux", known: &[(1, Message(&RESOURCES)), (2, Message(&SECURITY))] };

const RESOURCES: Section = Section {
    name: "resources",
    known: &[
        (1, Plain),
        (2, Plain),
        (3, Plain),
        (4, Plain),
        (5, Plain),
        (6, Plain),
        (7, Plain),
        (8, Message(&HUGEPAGES)),
        (9, Plain),
        (10, Plain),
    ],
};

const HUGEPAGES: Section = Section { name: "hugepages", known: &[(1, Plain), (2, Plain)] };

const SECURITY: Section = Section {
    name: "security",
    known: &[
        (1, Message(&CAPABILITIES)),
        (2, Plain),
        (3, Message(&NAMESPACES)),
        (4, Message(&SELINUX)),
        (5, Plain),
        (6, Plain),
        (7, Plain),
        (8, Packed),
        (9, Plain),
        (10, Plain),
        (11, Plain),
        (12, Plain),
        (13, Plain),
        (14, Plain),
        (15, Message(&PROFILE)),
        (16, Message(&PROFILE)),
        (17, Plain),
    ],
};

const CAPABILITIES: Section = Section { name: "capabilities", known: &[(1, Plain), (2, Plain), (3, Plain)] };

const NAMESPACES: Section = Section {
    name: "namespaces",
    known: &[(1, Plain), (2, Plain), (3, Plain), (4, Plain), (5, Message(&USER_NAMESPACE))],
};

const USER_NAMESPACE: Section = Section {
    name: "namespaces",
    known: &[(1, Plain), (2, Message(&ID_MAPPING)), (3, Message(&ID_MAPPING))],
};

const SELINUX: Section =
    Section { name: "selinux", known: &[(1, Plain), (2, Plain), (3, Plain), (4, Plain)] };

const PROFILE: Section = Section { name: "profiles", known: &[(1, Plain), (2, Plain)] };

/// The unknown fields by section, in an order of their own.
pub(super) type Unknown<'a> = BTreeMap<&'static str, Vec<&'a [u8]>>;

/// Why a message has no record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// More than [`MAX_ELEMENTS`] values.
    TooMany,
    /// Not a message.
    Wire(wire::Error),
}

/// Finds what is unknown in a `CreateContainerRequest`.
pub(super) fn unknown(message: &[u8]) -> Result<Unknown<'_>, Wrong> {
    let mut found = within(message, MAX_ELEMENTS)?;
    for spans in found.values_mut() {
        // The entries of a map come in any order.
        spans.sort_unstable();
    }
    Ok(found)
}

/// Whether a `CreateContainerRequest` has more values than that, at all depths. Looks at no more of them.
pub(super) fn has_more(message: &[u8], than: usize) -> bool {
    within(message, than) == Err(Wrong::TooMany)
}

fn within(message: &[u8], mut most: usize) -> Result<Unknown<'_>, Wrong> {
    let mut found = Unknown::new();
    walk(&REQUEST, message, &mut found, &mut most)?;
    Ok(found)
}

/// As deep as the sections are, which do not contain themselves.
fn walk<'a>(
    section: &Section,
    message: &'a [u8],
    found: &mut Unknown<'a>,
    left: &mut usize,
) -> Result<(), Wrong> {
    for field in fields(message) {
        let field = field.map_err(Wrong::Wire)?;
        let known = section.known.iter().find(|(number, _)| *number == field.number);
        let count = match (known, field.value) {
            (Some((_, Packed)), Value::Len(numbers)) => numbers.len(),
            (Some((_, Message(inner))), Value::Len(bytes)) => {
                walk(inner, bytes, found, left)?;
                1
            }
            (None, _) => {
                if section.name != IGNORED {
                    found.entry(section.name).or_default().push(field.raw);
                }
                1
            }
            _ => 1,
        };
        *left = left.checked_sub(count).ok_or(Wrong::TooMany)?;
    }
    Ok(())
}
