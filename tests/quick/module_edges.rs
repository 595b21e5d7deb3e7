//! Protects: who may use whom inside crisp. A leaf that reaches up, or a feature that knows of the proxy, fails here
//! and not in a review.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Modules that know of nothing but each other.
const LEAVES: [&str; 9] = ["wire", "http2", "cri", "image", "store", "error", "config", "metrics", "time"];

/// What the other modules may use besides the leaves. `*`: everything but `app`.
const MAY_USE: &[(&str, &[&str])] = &[
    ("lib", &[]),
    ("shutdown", &[]),
    ("telemetry", &[]),
    ("proxy", &["intercept", "shutdown"]),
    ("intercept", &["pull", "prepull", "container"]),
    ("containerd", &[]),
    ("pull", &["containerd", "shutdown"]),
    ("prepull", &["pull", "containerd", "shutdown"]),
    ("container", &[]),
    ("kube", &["prepull", "shutdown", "container"]),
    ("runtime", &["shutdown"]),
    ("admin", &["*"]),
    ("app", &["*"]),
];

/// The modules that each module names.
fn edges() -> BTreeMap<String, BTreeSet<String>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut edges = BTreeMap::<String, BTreeSet<String>>::new();
    let mut pending = vec![source.clone()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let below = path.strip_prefix(&source).unwrap().with_extension("");
                let module = below.iter().next().unwrap().to_str().unwrap().to_owned();
                let text = std::fs::read_to_string(&path).unwrap();
                // It may lead out of the module, and then nobody would see where to.
                assert!(!text.contains("super::super"), "{}: write crate:: instead", path.display());
                edges.entry(module).or_default().extend(named(&text));
            }
        }
    }
    edges
}

/// The modules that a source text names after `crate::`, comments apart.
fn named(text: &str) -> BTreeSet<String> {
    let code: String = text.lines().map(|line| line.split("//").next().unwrap()).collect();
    let mut names = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let word = |text: &str| -> String {
            text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
        };
        let Some(group) = after.strip_prefix('{') else {
            names.insert(word(after));
            continue;
        };
        let (mut depth, mut start) = (0, 0);
        for (position, character) in group.char_indices() {
            match character {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    names.insert(word(&group[start..position]));
                    start = position + 1;
                    if character == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    names.remove("");
    names
}

#[test]
fn modules_use_only_what_they_may() {
    let mut wrong = Vec::new();
    for (module, uses) in edges() {
        let allowed: &[&str] = match MAY_USE.iter().find(|(name, _)| *name == module) {
            Some((_, allowed)) => allowed,
            None if module == "main" || LEAVES.contains(&module.as_str()) => &[],
            None => {
                wrong.push(format!("{module} is new: write into MAY_USE what it may use"));
                continue;
            }
        };
        for used in uses {
            let fine = used == module
                || LEAVES.contains(&used.as_str())
                || allowed.contains(&used.as_str())
                || (allowed.contains(&"*") && used != "app");
            if !fine {
                wrong.push(format!("{module} uses {used}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn names_are_found_however_they_are_written() {
    let text = "use crate::{a::{b, c}, d, e::f};\nuse crate::g;\n// crate::comment\nlet x = crate::h::i();";
    let names: Vec<_> = named(text).into_iter().collect();
    assert_eq!(names, ["a", "d", "e", "g", "h"]);
}
