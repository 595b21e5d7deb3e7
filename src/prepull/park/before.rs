//! What was there before a private pull, and which records the pull has made.
//!
//! Several private pulls may be under way at once, also of the same content under other names. What one of them has made
//! and not removed yet must not count as there before for the next, or nobody would ever remove it. So each looks at a
//! time when no other does, and leaves out what came since the others began.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio_util::task::TaskTracker;

use crate::containerd::{ImageRecord, cri_name};
use crate::image::Reference;

/// All private pulls under way.
#[derive(Debug, Default)]
pub(in crate::prepull) struct Looks {
    /// Whoever looks at what there is, to remember it or to remove something of it, is alone. It takes moments.
    alone: tokio::sync::Mutex<()>,
    under_way: Mutex<Vec<Weak<Before>>>,
    /// Their tasks, which outlive their attempts until nothing of them is in sight.
    pub(super) tasks: TaskTracker,
}

/// What was there, by name.
#[derive(Debug, Default)]
pub(super) struct Before(BTreeMap<String, ImageRecord>);

// === impl Looks ===

impl Looks {
    /// Returns when nothing is left to be tidied up. To be asked when no more pulls begin.
    pub(in crate::prepull) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Nobody else looks until this is dropped.
    pub(super) async fn alone(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.alone.lock().await
    }

    /// Remembers what is there for a pull that begins. `brought` tells what others than crisp have pulled meanwhile.
    pub(super) fn begin(&self, records: Vec<ImageRecord>, brought: impl Fn(&str) -> bool) -> Arc<Before> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.retain(|before| before.strong_count() > 0);
        let others: Vec<_> = under_way.iter().filter_map(Weak::upgrade).collect();
        let before = Arc::new(Before::beside(&others, records, brought));
        under_way.push(Arc::downgrade(&before));
        before
    }
}

// === impl Before ===

impl Before {
    pub(super) fn of(records: impl IntoIterator<Item = ImageRecord>) -> Self {
        Self(records.into_iter().map(|record| (record.name.clone(), record)).collect())
    }

    /// The oldest of the others knows a record as it was when nobody had touched it.
    fn beside(others: &[Arc<Self>], records: Vec<ImageRecord>, brought: impl Fn(&str) -> bool) -> Self {
        let theirs = |record: &ImageRecord| {
            others.iter().any(|other| !other.has(&record.name)) && !brought(&record.name)
        };
        let original = |record: ImageRecord| {
            let known = others.iter().find_map(|other| other.0.get(&record.name));
            known.cloned().unwrap_or(record)
        };
        Self::of(records.into_iter().filter(|record| !theirs(record)).map(original))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether the image that is pulled by this name was there.
    pub(super) fn has_source(&self, source: &str) -> bool {
        Reference::parse(source).is_ok_and(|source| self.has(&cri_name(&source)))
    }

    /// The IDs of all images that were there: those are records of their own.
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.values().filter(|record| is_id(record)).map(|record| record.name.as_str())
    }

    /// The records of IDs that stand for something else now, as they were. An image has one record under its ID,
    /// whichever of its manifests came last.
    pub(super) fn changed(&self, all: &[ImageRecord]) -> impl Iterator<Item = &ImageRecord> {
        let before = all.iter().filter_map(|record| Some((record, self.0.get(&record.name)?)));
        before.filter(|(now, before)| is_id(now) && now.target != before.target).map(|(_, before)| before)
    }

    /// The records that the pull has made, the name last: as long as it is there it can be told what belongs to it.
    /// The one with the digest stays if another tag needs it, and the one under the image's ID if any other name does.
    ///
    /// A pull that is cancelled at its very end may leave an ID alone, because the runtime makes that one after the name.
    pub(super) fn made<'a>(&self, all: &'a [ImageRecord], source: &str) -> Vec<&'a ImageRecord> {
        let Ok(reference) = Reference::parse(source) else { return Vec::new() };
        let source = cri_name(&reference);
        if self.has(&source) {
            return Vec::new();
        }
        let name = all.iter().find(|record| record.name == source);
        let (digests, tags) = (format!("{}@", reference.name()), format!("{}:", reference.name()));
        let others = || all.iter().filter(|record| record.name != source);
        let is_of =
            |record: &ImageRecord| name.is_some_and(|name| name.target.digest == record.target.digest);
        let tagged = others().any(|record| is_of(record) && record.name.starts_with(&tags));
        let is_digest = |record: &ImageRecord| {
            is_of(record) && record.name.starts_with(&digests) && !tagged && !self.has(&record.name)
        };
        let stays = others().filter(|record| !is_id(record) && !is_digest(record));
        let named: BTreeSet<_> = stays.map(|record| &record.target.digest).collect();
        let is_nameless = |record: &&ImageRecord| {
            is_id(record) && !self.has(&record.name) && !named.contains(&record.target.digest)
        };
        others().filter(is_nameless).chain(others().filter(|record| is_digest(record))).chain(name).collect()
    }
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
        Before::of(records).0.into_values().collect()
    }

    fn names(records: Vec<&ImageRecord>) -> Vec<String> {
        records.iter().map(|record| record.name.clone()).collect()
    }

    #[test]
    fn a_pull_has_made_its_three_records_and_the_name_goes_last() {
        let made = Before::default();
        let all = all(&[("a.io/x", "1")]);
        let expected = [digest("1"), format!("a.io/x@{}", digest("d")), "a.io/x:1".to_owned()];
        assert_eq!(names(made.made(&all, "a.io/x:1")), expected);
        assert!(made.made(&all, "a.io/y:1").is_empty(), "it has come to nothing");
        let alone = &all[2..];
        assert_eq!(
            (names(made.made(alone, "a.io/x:1")), alone[0].name.as_str()),
            (vec![digest("1")], &*digest("1"))
        );
        assert!(Before::of(alone.to_vec()).made(alone, "a.io/x:1").is_empty(), "it was there");
    }

    #[test]
    fn what_was_there_and_what_others_need_stays() {
        let (mine, theirs) = (("a.io/x", "1"), ("b.io/y", "1"));
        let before = Before::of(pulled(theirs.0, theirs.1));
        let expected = [format!("a.io/x@{}", digest("d")), "a.io/x:1".to_owned()];
        assert_eq!(names(before.made(&all(&[mine, theirs]), "a.io/x:1")), expected);
        // Also if nobody remembers what was there.
        assert_eq!(names(Before::default().made(&all(&[mine, theirs]), "a.io/x:1")), expected);
        let tag = all(&[mine, ("a.io/x", "2")]);
        assert_eq!(names(Before::default().made(&tag, "a.io/x:1")), ["a.io/x:1"]);
        // The very same image was there, so nothing of it is the pull's.
        assert!(Before::of(pulled(mine.0, mine.1)).made(&all(&[mine]), "a.io/x:1").is_empty());
        // Somebody had it by its digest alone.
        let by_digest = Before::of(pulled("a.io/x", "1").split_off(1));
        assert_eq!(names(by_digest.made(&all(&[mine]), "a.io/x:1")), ["a.io/x:1"]);
    }

    #[test]
    fn what_another_private_pull_has_made_was_not_there() {
        let looks = Looks::default();
        let first = looks.begin(pulled("c.io/z", "1").split_off(2), |_| false);
        let second = looks.begin(all(&[("a.io/x", "1")]), |_| false);
        assert!(first.has(&digest("1")) && second.has(&digest("1")), "it was there before both");
        assert!(!second.has("a.io/x:1"), "the first one has made it");
        let third = looks.begin(all(&[("a.io/x", "1")]), |name| name == "a.io/x:1");
        assert!(third.has("a.io/x:1"), "somebody else has brought it");
        drop((first, second, third));
        assert!(looks.begin(all(&[("a.io/x", "1")]), |_| false).has("a.io/x:1"), "nobody else pulls");
    }

    #[test]
    fn each_of_two_that_pull_the_same_removes_its_own_and_the_last_the_id() {
        let looks = Looks::default();
        let first = looks.begin(Vec::new(), |_| false);
        let second = looks.begin(all(&[("a.io/x", "1")]), |_| false);
        let mut there = all(&[("a.io/x", "1"), ("b.io/y", "1")]);
        for (before, source) in [(first, "a.io/x:1"), (second, "b.io/y:1")] {
            let made = names(before.made(&there, source));
            there.retain(|record| !made.contains(&record.name));
        }
        assert_eq!(there, []);
    }

    #[test]
    fn an_id_is_known_as_it_was_before_all() {
        let looks = Looks::default();
        let first = looks.begin(vec![record(&digest("1"), &digest("d"))], |_| false);
        let changed = vec![record(&digest("1"), &digest("e"))];
        let second = looks.begin(changed.clone(), |_| false);
        for before in [&first, &second] {
            let found: Vec<_> = before.changed(&changed).cloned().collect();
            assert_eq!(found, [record(&digest("1"), &digest("d"))]);
        }
    }
}
