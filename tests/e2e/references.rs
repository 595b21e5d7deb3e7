//! Image names mean to crisp what they mean to the kubelet: its parser, Go's distribution/reference, is asked about the
//! same names, most of them valid or nearly so.

use std::collections::HashSet;
use std::process::Command;

use crisp::image::Reference;
use serde::Deserialize;

use crate::lab::{parts, process};
use crate::report;
use crate::support::random::Random;

const PEER: &str = "reference-0.6.0";
const NAMES: usize = 200_000;

/// What Go makes of a name. An absent tag or digest is empty.
#[derive(Debug, Default, Deserialize, PartialEq)]
struct Answer {
    #[serde(default)]
    error: String,
    domain: String,
    path: String,
    tag: String,
    digest: String,
    normalised: String,
    tagged: String,
    familiar: String,
}

#[test]
fn names_are_read_as_the_kubelet_reads_them() {
    if let Some(reason) = parts::not_built(&[PEER]) {
        return parts::skip("references", &reason);
    }
    let names = names(NAMES);
    let lines: Vec<_> = names.iter().map(|name| serde_json::to_string(name).expect("a string")).collect();
    let questions = tempfile::NamedTempFile::new().expect("make a file");
    std::fs::write(&questions, lines.join("\n")).expect("write the names");
    let mut peer = Command::new(parts::peer_dir(PEER).join("reference"));
    let answers = process::run(peer.arg(questions.path()));
    let answers: Vec<Answer> =
        answers.lines().map(|line| serde_json::from_str(line).expect("an answer")).collect();
    assert_eq!(answers.len(), names.len());

    let mut wrong = Vec::new();
    let mut refused = 0;
    for (name, theirs) in names.iter().zip(&answers) {
        let ours = ours(name);
        refused += usize::from(ours.is_none());
        let same = match &ours {
            None => !theirs.error.is_empty(),
            Some(ours) => ours == theirs,
        };
        if !same {
            wrong.push(format!("{name:?}\n  crisp {ours:?}\n  Go    {theirs:?}"));
        }
    }
    let shown = wrong.iter().take(10).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {} names are read differently:\n{shown}", wrong.len(), names.len());
    let read = names.len() - refused;
    // Were it nearly all of one kind, the generator would be at fault.
    assert!(read > NAMES / 5 && refused > NAMES / 5, "{read} read, {refused} refused");
    report::add_note(&format!(
        "references: {} names compared with distribution/reference 0.6.0: {read} read alike, {refused} refused by both",
        names.len()
    ));
}

fn ours(name: &str) -> Option<Answer> {
    let reference = Reference::parse(name).ok()?;
    Some(Answer {
        error: String::new(),
        domain: reference.registry().to_owned(),
        path: reference.path().to_owned(),
        tag: reference.tag().unwrap_or_default().to_owned(),
        digest: reference.digest().unwrap_or_default().to_owned(),
        normalised: reference.to_string(),
        familiar: reference.familiar(),
        tagged: reference.with_default_tag().to_string(),
    })
}

/// So many different names, the same in every run.
fn names(count: usize) -> Vec<String> {
    let mut random = Random::seeded(4);
    let mut seen = HashSet::new();
    let mut names = Vec::with_capacity(count);
    while names.len() < count {
        let name = match random.below(10) {
            0..=3 => plain(&mut random),
            4 => edge(&mut random),
            5..=7 => {
                let name = if random.below(4) == 0 { edge(&mut random) } else { plain(&mut random) };
                damaged(&mut random, name)
            }
            8 => text(&mut random, "aA0/.:@_-", 0, 24),
            _ => text(&mut random, "ab0Zé[]/.:@_-~+,= \n\0%\u{130}\u{212a}", 0, 24),
        };
        if seen.insert(name.clone()) {
            names.push(name);
        }
    }
    names
}

/// A name as people write it.
fn plain(random: &mut Random) -> String {
    let mut name = match random.below(8) {
        0..=2 => String::new(),
        3 => one_of(random, &["docker.io/", "index.docker.io/", "localhost/", "gcr.io/", "coreos.com/"])
            .to_owned(),
        4 => format!("{}:{}/", text(random, "abc0", 1, 6), random.below(100_000)),
        _ => format!("{}.{}/", text(random, "abc09-", 1, 6), text(random, "abcZ", 2, 4)),
    };
    for n in 0..=random.below(4) {
        let slash = if n == 0 { "" } else { "/" };
        name += slash;
        name += &text(random, "abc019", 1, 6);
        for _ in 0..random.below(3) {
            name += one_of(random, &[".", "_", "__", "-", "--"]);
            name += &text(random, "abc019", 1, 4);
        }
    }
    if random.below(2) == 0 {
        name = format!("{name}:{}", text(random, "abcXYZ019_.-", 1, 12));
    }
    if random.below(4) == 0 {
        let (algorithm, length) = one_of(random, &[("sha256", 64), ("sha384", 96), ("sha512", 128)]);
        name = format!("{name}@{algorithm}:{}", text(random, "0123456789abcdef", length, length));
    }
    name
}

/// Parts at the edges of the grammar, in any combination.
fn edge(random: &mut Random) -> String {
    const HOSTS: &[&str] = &[
        "docker.io",
        "index.docker.io",
        "INDEX.docker.io",
        "Docker.io",
        "localhost",
        "LOCALHOST",
        "localhost:",
        "Foo",
        "a_b.io",
        "a__b.c",
        "a_b:1",
        "a-.b",
        "-a.b",
        "a--b.c",
        "a..b",
        ".a",
        "a.",
        "a.b:0",
        "a.b:99999999999999999999",
        "a.b:1:2",
        "a.b:x",
        "[::1]",
        "[::1]:5000",
        "[:]",
        "[]",
        "[]:1",
        "[::g]",
        "[::1",
        "::1",
        "[::1]x",
        "1.2.3.4",
        "1.2.3.4:80",
        "a@b.c",
        "aci.crisp.invalid",
        "library",
        "a b.c",
        "é.io",
        "a.b\n",
    ];
    const PATHS: &[&str] = &[
        "a",
        "library",
        "library/a",
        "library/a/b",
        "a/b/c",
        "a//b",
        "a/",
        "/a",
        "",
        "A",
        "a.b",
        "a..b",
        "a._b",
        "a_b",
        "a__b",
        "a___b",
        "a-b",
        "a---b",
        "a-_b",
        "a.-b",
        "a-",
        "-a",
        "_a",
        "a~b",
        "a+b",
        "é",
        "docker.io",
        "docker.io/a",
        "localhost",
        "a:b/c",
        "a@b/c",
    ];
    const TAGS: &[&str] = &[
        "", ":", ":latest", ":A", ":_", ":-a", ":.a", ":a.b-c_d", ":a/b", ":a:b", ":é", ": ", ":a\n", ":a+b",
    ];
    const ALGORITHMS: &[&str] = &[
        "sha256",
        "sha384",
        "sha512",
        "SHA256",
        "sha1",
        "md5",
        "sha256+b64",
        "sha256.x",
        "sha-256",
        "9a",
        "",
        "sha256:sha256",
    ];
    let host = match random.below(4) {
        0 => String::new(),
        _ => format!("{}/", one_of(random, HOSTS)),
    };
    let path = match random.below(4) {
        0 => text(random, "abc/", 245, 260),
        1 => "a".repeat(244 + random.below(20)),
        2 => text(random, "0123456789abcdef", 63, 66),
        _ => one_of(random, PATHS).to_owned(),
    };
    let tag = match random.below(4) {
        0 => format!(":{}", "t".repeat(126 + random.below(4))),
        _ => one_of(random, TAGS).to_owned(),
    };
    let digest = match random.below(3) {
        0 => {
            let length = one_of(random, &[0, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129]);
            let digits = one_of(random, &["0123456789abcdef", "0123456789abcdef", "0Aaf", "0ag"]);
            format!("@{}:{}", one_of(random, ALGORITHMS), text(random, digits, length, length))
        }
        _ => String::new(),
    };
    format!("{host}{path}{tag}{digest}")
}

/// A few characters inserted, dropped, doubled or replaced.
fn damaged(random: &mut Random, name: String) -> String {
    let mut letters: Vec<char> = name.chars().collect();
    for _ in 0..=random.below(3) {
        let at = random.below(letters.len() + 1);
        let letter = one_of(
            random,
            &['/', ':', '@', '.', '_', '-', '[', ']', 'A', 'a', '0', '~', '+', ' ', '\n', 'é'],
        );
        match random.below(4) {
            0 => letters.insert(at, letter),
            1 if at < letters.len() => drop(letters.remove(at)),
            2 if at < letters.len() => letters.insert(at, letters[at]),
            _ if at < letters.len() => letters[at] = letter,
            _ => {}
        }
    }
    letters.into_iter().collect()
}

fn one_of<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len())]
}

fn text(random: &mut Random, alphabet: &str, least: usize, most: usize) -> String {
    let letters: Vec<char> = alphabet.chars().collect();
    let length = least + random.below(most - least + 1);
    (0..length).map(|_| one_of(random, &letters)).collect()
}
