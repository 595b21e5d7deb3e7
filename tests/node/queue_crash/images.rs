//! The images of a run: made as they are needed, and no two alike.

use serde_json::{Value, json};

use crate::random::Random;
use crate::registry::{Auth, Image, ImageBuilder, Registry};

/// Who may pull what is not for all. Neither word occurs anywhere else.
pub(super) const USER: &str = "crash-user";
pub(super) const PASSWORD: &str = "staple-horse-crash";

/// So small a piece is on its way when a connection ends, of which nobody knows whether it has arrived.
const PIECE: usize = 2 << 10;
const BYTES_PER_SECOND: u64 = 3 << 20;

/// So much may have been sent on a connection and not be read when its reader ends, on a busy machine.
const ON_ITS_WAY: u64 = 256 << 10;

/// Who may have an image, and how it is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// Everybody.
    Public,
    /// Who has a password.
    Private,
    /// The same, and everybody once it is there.
    Shared,
    /// Who has a password, and somebody has pulled it with one before it is asked for.
    Foreign,
    /// It does not exist.
    Missing,
}

/// An image that can be asked for.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) kind: Kind,
    /// As it is asked for.
    pub(super) name: String,
    repository: String,
    /// What its records stand for, and its ID.
    pub(super) target: String,
    pub(super) id: String,
    /// Nobody may ask for it any more: what was kept of it is gone, so it would have to be fetched again.
    pub(super) retired: bool,
}

/// Two registries and what is in them.
#[derive(Debug)]
pub(super) struct Images {
    open: Registry,
    closed: Registry,
    base: ImageBuilder,
    pub(super) all: Vec<Known>,
    prefix: String,
}

/// Bytes of blobs.
#[derive(Clone, Debug, Default)]
pub(super) struct Bytes {
    /// Different ones that were sent at least once.
    pub(super) needed: u64,
    /// All that were sent.
    pub(super) sent: u64,
    /// Blobs that were fetched again, and not from where they were cut off: where each request began and ended.
    pub(super) twice: Vec<String>,
}

// === impl Images ===

impl Images {
    /// Empty registries. `prefix` is part of every name.
    pub(super) async fn new(prefix: String, random: &mut Random) -> Self {
        let (open, closed) = (Registry::start().await, Registry::start().await);
        closed.require(Auth::Basic(USER, PASSWORD));
        for registry in [&open, &closed] {
            registry.in_pieces(PIECE);
            registry.throttle_in_all(Some(BYTES_PER_SECOND));
        }
        let base = ImageBuilder::default().noise(500_000, random.next());
        Self { open, closed, base, all: Vec::new(), prefix }
    }

    pub(super) fn hosts(&self) -> [String; 2] {
        [self.open.host(), self.closed.host()]
    }

    /// A new image.
    pub(super) fn make(&mut self, random: &mut Random) -> usize {
        let kind = match random.below(20) {
            0..8 => Kind::Public,
            8..15 => Kind::Private,
            15..17 => Kind::Shared,
            17..19 => Kind::Foreign,
            _ => Kind::Missing,
        };
        let number = self.all.len();
        let repository = format!("{}/image-{number}", self.prefix);
        let image = self.build(kind, random);
        let registry = if kind == Kind::Public { &self.open } else { &self.closed };
        let mut name = match kind {
            Kind::Missing => format!("{}/{repository}:v1", registry.host()),
            _ => registry.push(&format!("{repository}:v1"), &image),
        };
        match random.below(6) {
            0 => name = format!("{name}@{}", image.digest()),
            1 => name = format!("{}/{repository}@{}", registry.host(), image.digest()),
            _ => {}
        }
        let (target, id) = (image.digest(), image.id);
        self.all.push(Known { kind, name, repository, target, id, retired: false });
        number
    }

    fn build(&self, kind: Kind, random: &mut Random) -> Image {
        let mut image = ImageBuilder::default();
        // What is private is given up again, and nobody else may need what it shared.
        if kind == Kind::Public && random.below(3) == 0 {
            image = image.share(&self.base, 0);
        }
        for _ in 0..=random.below(2) {
            image = image.noise(50_000 + random.below(2 << 20), random.next());
        }
        image.build()
    }

    /// What an item asks for of an image. Two wishes of one owner differ.
    pub(super) fn spec(&self, image: usize, owner: &str, random: &mut Random) -> Value {
        let known = &self.all[image];
        let class = ["background", "normal", "urgent"][random.below(3)];
        let policy = ["Always", "IfNotPresent"][random.below(2)];
        let pin = [json!("none"), json!("withOwner"), json!({ "seconds": 86_400 })];
        let mut spec = json!({
            "image": known.name,
            "owner": owner,
            "class": class,
            "priority": random.below(5),
            "policy": if known.kind == Kind::Foreign { "Always" } else { policy },
            "retries": if known.kind == Kind::Missing { 0 } else { 50 },
            "pin": pin[random.below(3)],
            "sandbox": { "labels": { "wish": random.below(1000).to_string() } },
        });
        if random.below(2) == 0 {
            spec["version"] = json!(random.below(3));
        }
        if known.kind != Kind::Public {
            let [_, host] = self.hosts();
            let right = json!({ "registry": host, "username": USER, "password": PASSWORD });
            let wrong = json!({ "registry": host, "username": USER, "password": "old" });
            spec["secrets"] = if random.below(3) == 0 { json!([wrong, right]) } else { json!([right]) };
        }
        if known.kind == Kind::Shared {
            spec["visibility"] = json!("shared");
        }
        spec
    }

    /// How many requests there have been so far.
    pub(super) fn requests(&self) -> [usize; 2] {
        [self.open.requests_so_far(), self.closed.requests_so_far()]
    }

    /// Requests for an image after the first so many.
    pub(super) fn requests_after(&self, image: usize, after: [usize; 2]) -> Vec<String> {
        let part = format!("/v2/{}/", self.all[image].repository);
        let of = |registry: &Registry, after: usize| {
            let seen = registry.requests_after(after).into_iter();
            seen.filter(|seen| seen.path.starts_with(&part)).map(|seen| format!("{seen:?}")).collect()
        };
        let [open, closed] = after;
        let both: [Vec<String>; 2] = [of(&self.open, open), of(&self.closed, closed)];
        both.concat()
    }

    /// Counts bytes of blobs, range by range.
    pub(super) fn bytes(&self) -> Bytes {
        let mut bytes = Bytes::default();
        let mut ranges = std::collections::BTreeMap::<String, Vec<(u64, u64)>>::new();
        for registry in [&self.open, &self.closed] {
            for seen in registry.requests_after(0) {
                let Some((_, digest)) = seen.path.split_once("/blobs/") else { continue };
                let from = seen
                    .range
                    .as_deref()
                    .and_then(|range| range.strip_prefix("bytes=")?.split_once('-')?.0.parse::<u64>().ok());
                let from = from.filter(|_| seen.status == 206).unwrap_or(0);
                bytes.sent += seen.sent;
                ranges.entry(digest.to_owned()).or_default().push((from, from + seen.sent));
            }
        }
        for (digest, ranges) in ranges {
            let mut end = 0;
            for (from, to) in &ranges {
                bytes.needed += to.saturating_sub(end.max(*from));
                if from < to && end.saturating_sub(*from) > ON_ITS_WAY {
                    bytes.twice.push(format!("{digest}: {ranges:?}"));
                }
                end = end.max(*to);
            }
        }
        bytes
    }
}
