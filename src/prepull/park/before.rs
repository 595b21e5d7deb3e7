//! What was there before a private pull, and which records the pull has made.
//!
//! Several private pulls may be under way at once, also of the same content under other names. What one of them has made
//! and not removed yet must not count as there before for the next, or nobody would ever remove it. So each looks at a
//! time when no other does, and leaves out what came since the others began and can be theirs: somebody else may have
//! pulled past crisp meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio_util::task::TaskTracker;

use crate::containerd::{ImageRecord, cri_name};
use crate::image::Reference;

/// All private pulls under way.
#[derive(Debug, Default)]
pub(in crate::prepull) struct Looks {
    /// Whoever looks at what there is, to remember it or to remove something of it, is alone. It takes moments.
    alone: tokio::sync::Mutex<()>,
    under_way: Mutex<Vec<Weak<Before>>>,
    /// Of each name that is pulled: whoever pulls shares it, whoever removes has it alone.
    names: Mutex<HashMap<String, Weak<RwLock<()>>>>,
    /// Their tasks, which outlive their attempts until nothing of them is in sight.
    pub(super) tasks: TaskTracker,
}

/// Held by a pull as long as it may bring something.
pub(super) type Flying = OwnedRwLockReadGuard<()>;

/// What was there before a pull.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// The name that is pulled, as containerd has it, and how its repository's digests begin.
    name: String,
    digests: String,
    /// By name.
    records: BTreeMap<String, ImageRecord>,
}

// === impl Looks ===

impl Looks {
    /// Returns when nothing is left to be tidied up. To be asked when no more pulls begin.
    pub(in crate::prepull) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Nothing of that name is removed until this is dropped.
    pub(super) async fn flying(&self, name: &str) -> Flying {
        self.name(name).read_owned().await
    }

    /// Nothing is pulled by that name until this is dropped.
    pub(super) async fn landed(&self, name: &str) -> OwnedRwLockWriteGuard<()> {
        self.name(name).write_owned().await
    }

    fn name(&self, name: &str) -> Arc<RwLock<()>> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = names.get(name).and_then(Weak::upgrade) {
            return lock;
        }
        names.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(RwLock::new(()));
        names.insert(name.to_owned(), Arc::downgrade(&lock));
        lock
    }

    /// Nobody else looks until this is dropped.
    pub(super) async fn alone(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.alone.lock().await
    }

    /// Remembers what is there for a pull that begins. `brought` tells what others than crisp have pulled meanwhile.
    pub(super) fn begin(
        &self,
        source: &str,
        records: Vec<ImageRecord>,
        brought: impl Fn(&str) -> bool,
    ) -> Arc<Before> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.retain(|before| before.strong_count() > 0);
        let others: Vec<_> = under_way.iter().filter_map(Weak::upgrade).collect();
        let before = Arc::new(Before::beside(&others, source, records, brought));
        under_way.push(Arc::downgrade(&before));
        before
    }
}

// === impl Before ===

impl Before {
    pub(super) fn of(source: &str, records: impl IntoIterator<Item = ImageRecord>) -> Self {
        let reference = Reference::parse(source);
        Self {
            name: reference.as_ref().map(cri_name).unwrap_or_default(),
            digests: reference.map(|reference| format!("{}@", reference.name())).unwrap_or_default(),
            records: records.into_iter().map(|record| (record.name.clone(), record)).collect(),
        }
    }

    /// The oldest of the others knows a record as it was when nobody had touched it.
    fn beside(
        others: &[Arc<Self>],
        source: &str,
        records: Vec<ImageRecord>,
        brought: impl Fn(&str) -> bool,
    ) -> Self {
        let theirs = |record: &ImageRecord| {
            others.iter().any(|other| other.may_have_made(record)) && !brought(&record.name)
        };
        // An ID is no name: it is there for the sake of those that are.
        let named: BTreeSet<String> = records
            .iter()
            .filter(|record| !is_id(record) && !theirs(record))
            .map(|record| record.target.digest.clone())
            .collect();
        let is_there =
            |record: &ImageRecord| !theirs(record) || is_id(record) && named.contains(&record.target.digest);
        let original = |record: ImageRecord| {
            let known = others.iter().find_map(|other| other.records.get(&record.name));
            known.cloned().unwrap_or(record)
        };
        Self::of(source, records.into_iter().filter(is_there).map(original))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.records.contains_key(name)
    }

    fn may_have_made(&self, record: &ImageRecord) -> bool {
        let name = &record.name;
        !self.has(name) && (is_id(record) || *name == self.name || name.starts_with(&self.digests))
    }

    /// Whether the image that is pulled by this name was there.
    pub(super) fn has_source(&self, source: &str) -> bool {
        Reference::parse(source).is_ok_and(|source| self.has(&cri_name(&source)))
    }

    /// The IDs of all images that were there: those are records of their own.
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.records.values().filter(|record| is_id(record)).map(|record| record.name.as_str())
    }

    /// The records of IDs that stand for something else now, as they were. An image has one record under its ID,
    /// whichever of its manifests came last.
    pub(super) fn changed(&self, all: &[ImageRecord]) -> impl Iterator<Item = &ImageRecord> {
        let before = all.iter().filter_map(|record| Some((record, self.records.get(&record.name)?)));
        before.filter(|(now, before)| is_id(now) && now.target != before.target).map(|(_, before)| before)
    }

    /// The records that the pull has made of these targets, the name last: as long as it is there it can be told what
    /// belongs to it. The one with the digest stays if another tag needs it, and the one under the image's ID if any other
    /// name does.
    pub(super) fn made<'a>(
        &self,
        all: &'a [ImageRecord],
        source: &str,
        targets: &BTreeSet<String>,
    ) -> Vec<&'a ImageRecord> {
        let Ok(reference) = Reference::parse(source) else { return Vec::new() };
        let source = cri_name(&reference);
        if self.has(&source) {
            return Vec::new();
        }
        let (digests, tags) = (format!("{}@", reference.name()), format!("{}:", reference.name()));
        let mut made = Vec::new();
        for target in targets {
            let others =
                || all.iter().filter(|record| record.target.digest == *target && record.name != source);
            let tagged = others().any(|record| record.name.starts_with(&tags));
            let is_digest = |record: &&ImageRecord| {
                record.name.starts_with(&digests) && !tagged && !self.has(&record.name)
            };
            let named = others().any(|record| !is_id(record) && !is_digest(&record));
            made.extend(others().filter(|record| is_id(record) && !named && !self.has(&record.name)));
            made.extend(others().filter(is_digest));
        }
        made.extend(all.iter().find(|record| record.name == source));
        made
    }
}

/// What a pull has brought: what its name stands for, and the image of this ID. Of one that was cut off, at a time since
/// when it was under way, also what has come to its repository, and what has no name at all: the runtime makes name, ID
/// and digest one after the other, and may have made one of them after the others were removed.
pub(super) fn brought(
    all: &[ImageRecord],
    source: &str,
    image_id: Option<&str>,
    since: Option<SystemTime>,
) -> BTreeSet<String> {
    let Ok(reference) = Reference::parse(source) else { return BTreeSet::new() };
    let (name, digests) = (cri_name(&reference), format!("{}@", reference.name()));
    let named: BTreeSet<&String> =
        all.iter().filter(|record| !is_id(record)).map(|record| &record.target.digest).collect();
    let came = |record: &ImageRecord| {
        let young = since.is_some_and(|since| record.created_at.is_some_and(|time| time >= since));
        young
            && (record.name.starts_with(&digests) || is_id(record) && !named.contains(&record.target.digest))
    };
    let of_pull = all
        .iter()
        .filter(|record| record.name == name || Some(record.name.as_str()) == image_id || came(record));
    of_pull.map(|record| record.target.digest.clone()).collect()
}

/// Whether a record is that of an image's ID.
pub(super) fn is_id(record: &ImageRecord) -> bool {
    record.name.starts_with("sha256:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containerd::Target;

    fn record(name: &str, digest: &str) -> ImageRecord {
        let target = Target {
            digest: digest.into(),
            media_type: String::new(),
            size: 1,
            annotations: BTreeMap::new(),
        };
        ImageRecord { name: name.into(), target, labels: BTreeMap::new(), created_at: None, updated_at: None }
    }

    fn digest(letter: &str) -> String {
        format!("sha256:{}", letter.repeat(64))
    }

    /// What a pull of a tag leaves.
    fn pulled(repository: &str, tag: &str) -> Vec<ImageRecord> {
        let names = [format!("{repository}:{tag}"), format!("{repository}@{}", digest("d")), digest("1")];
        names.iter().map(|name| record(name, &digest("d"))).collect()
    }

    /// All records of some pulls together.
    fn all(pulls: &[(&str, &str)]) -> Vec<ImageRecord> {
        let records = pulls.iter().flat_map(|(repository, tag)| pulled(repository, tag));
        Before::of("", records).records.into_values().collect()
    }

    fn names(records: Vec<&ImageRecord>) -> Vec<String> {
        records.iter().map(|record| record.name.clone()).collect()
    }

    /// What a pull has made, of what all pulls bring here.
    fn made<'a>(before: &Before, all: &'a [ImageRecord], source: &str) -> Vec<&'a ImageRecord> {
        before.made(all, source, &BTreeSet::from([digest("d")]))
    }

    #[test]
    fn a_pull_has_made_its_three_records_and_the_name_goes_last() {
        let before = Before::default();
        let mut all = all(&[("a.io/x", "1")]);
        let expected = [digest("1"), format!("a.io/x@{}", digest("d")), "a.io/x:1".to_owned()];
        assert_eq!(names(made(&before, &all, "a.io/x:1")), expected);
        assert!(before.made(&all, "a.io/y:1", &BTreeSet::new()).is_empty(), "it has come to nothing");
        // Another one by the same name has removed it, at the same time.
        all.retain(|record| record.name != "a.io/x:1");
        assert_eq!(names(made(&before, &all, "a.io/x:1")), expected[..2]);
    }

    #[test]
    fn what_was_there_and_what_others_need_stays() {
        let (mine, theirs) = (("a.io/x", "1"), ("b.io/y", "1"));
        let before = Before::of("", pulled(theirs.0, theirs.1));
        let expected = [format!("a.io/x@{}", digest("d")), "a.io/x:1".to_owned()];
        assert_eq!(names(made(&before, &all(&[mine, theirs]), "a.io/x:1")), expected);
        // Also if nobody remembers what was there.
        assert_eq!(names(made(&Before::default(), &all(&[mine, theirs]), "a.io/x:1")), expected);
        let tag = all(&[mine, ("a.io/x", "2")]);
        assert_eq!(names(made(&Before::default(), &tag, "a.io/x:1")), ["a.io/x:1"]);
        // The very same image was there, so nothing of it is the pull's.
        assert!(made(&Before::of("", pulled(mine.0, mine.1)), &all(&[mine]), "a.io/x:1").is_empty());
        // Somebody had it by its digest alone.
        let by_digest = Before::of("", pulled("a.io/x", "1").split_off(1));
        assert_eq!(names(made(&by_digest, &all(&[mine]), "a.io/x:1")), ["a.io/x:1"]);
    }

    #[test]
    fn what_another_private_pull_has_made_was_not_there() {
        let looks = Looks::default();
        let (mine, nobody) = ("a.io/x:1", |_: &str| false);
        let first = looks.begin(mine, pulled("c.io/z", "1").split_off(2), nobody);
        let second = looks.begin(mine, all(&[("a.io/x", "1")]), nobody);
        assert!(first.has(&digest("1")) && second.has(&digest("1")), "it was there before both");
        assert!(!second.has(mine), "the first one has made it");
        let third = looks.begin(mine, all(&[("a.io/x", "1")]), |name| name == mine);
        assert!(third.has(mine), "somebody else has brought it");
        drop((first, second, third));
        assert!(looks.begin(mine, all(&[("a.io/x", "1")]), nobody).has(mine), "nobody else pulls");
    }

    #[test]
    fn what_came_past_crisp_while_something_else_is_pulled_was_there() {
        let looks = Looks::default();
        let other = looks.begin("b.io/y:1", Vec::new(), |_| false);
        let before = looks.begin("a.io/x:1", all(&[("a.io/x", "1")]), |_| false);
        for name in ["a.io/x:1", &format!("a.io/x@{}", digest("d")), &digest("1")] {
            assert!(before.has(name), "{name} is not of {other:?}");
        }
    }

    #[test]
    fn each_of_two_that_pull_the_same_removes_its_own_and_the_last_the_id() {
        let looks = Looks::default();
        let first = looks.begin("a.io/x:1", Vec::new(), |_| false);
        let second = looks.begin("b.io/y:1", all(&[("a.io/x", "1")]), |_| false);
        let mut there = all(&[("a.io/x", "1"), ("b.io/y", "1")]);
        for (before, source) in [(first, "a.io/x:1"), (second, "b.io/y:1")] {
            let made = names(made(&before, &there, source));
            there.retain(|record| !made.contains(&record.name));
        }
        assert_eq!(there, []);
    }

    #[test]
    fn an_id_is_known_as_it_was_before_all() {
        let looks = Looks::default();
        let first = looks.begin("a.io/x:1", vec![record(&digest("1"), &digest("d"))], |_| false);
        let changed = vec![record(&digest("1"), &digest("e"))];
        let second = looks.begin("b.io/y:1", changed.clone(), |_| false);
        for before in [&first, &second] {
            let found: Vec<_> = before.changed(&changed).cloned().collect();
            assert_eq!(found, [record(&digest("1"), &digest("d"))]);
        }
    }

    #[test]
    fn one_that_was_cut_off_may_have_left_any_of_its_records() {
        let (then, later) =
            (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(9));
        let at = |mut record: ImageRecord, time| {
            record.created_at = Some(time);
            record
        };
        let brought =
            |all: &[ImageRecord]| super::brought(all, "a.io/x:1", None, Some(later)).contains(&digest("d"));
        for left in pulled("a.io/x", "1") {
            assert!(brought(&[at(left.clone(), later)]), "{}", left.name);
            let old = at(left.clone(), then);
            assert_eq!(brought(std::slice::from_ref(&old)), left.name == "a.io/x:1", "{}", left.name);
        }
        let [name, _, id] = pulled("b.io/y", "1").try_into().unwrap();
        assert!(!brought(&[at(name, later), at(id, later)]), "somebody else's");
    }
}
