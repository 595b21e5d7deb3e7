//! What has to be true of containerd and of the registries.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crisp::containerd::ImageRecord;
use crisp::prepull::item::{How, State};

use super::images::Kind;
use super::{Lab, PATIENCE, until};

impl Lab {
    /// No private image can be seen of which nothing is being pulled: poll until. What somebody else has brought is there.
    pub(super) async fn private_is_hidden(&self) {
        let began = Instant::now();
        loop {
            let seen = self.exposed().await;
            if seen.is_empty() {
                return;
            }
            if began.elapsed() > PATIENCE {
                panic!("these can be seen: {seen:#?}\n{:#?}\n{}", self.list().await, self.crisp.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Records of private images that nobody pulls at the moment.
    async fn exposed(&self) -> Vec<String> {
        // Before the records, so that what is pulled between is not taken for what was left.
        let busy: BTreeSet<String> = match self.model.paused {
            true => BTreeSet::new(),
            false => {
                let unfinished = self.list().await.items.into_iter();
                unfinished.filter(|item| item.finished().is_none()).map(|item| item.image).collect()
            }
        };
        let records = self.containerd.images().await.expect("images");
        let names: BTreeSet<&String> = records.iter().map(|record| &record.name).collect();
        for name in &self.foreign {
            assert!(names.contains(name), "{name} was there before, and is gone");
        }
        let all = self.images.all.iter();
        let idle = all.filter(|image| image.kind == Kind::Private && !busy.contains(&image.name));
        let seen = |record: &&ImageRecord| {
            idle.clone().any(|image| record.target.digest == image.target || record.name == image.id)
        };
        records.iter().filter(seen).map(|record| record.name.clone()).collect()
    }

    /// Images that have come are not asked for again.
    pub(super) fn finished_is_quiet(&mut self) {
        let now = self.images.requests();
        for (number, image) in self.images.all.iter().enumerate() {
            let mut items = self.model.items.iter().filter(|(key, _)| key.1 == image.name).peekable();
            let quiet = items.peek().is_some() && items.all(|(_, held)| held.finished.is_some());
            match self.quiet.get(&number).filter(|_| quiet) {
                Some(since) => {
                    let more = self.images.requests_after(number, *since);
                    assert!(more.is_empty(), "{} was finished and is asked for again: {more:#?}", image.name);
                }
                None if quiet => drop(self.quiet.insert(number, now)),
                None => drop(self.quiet.remove(&number)),
            }
        }
    }

    /// Everything comes to its end, and nothing is left but what is to be kept.
    pub(super) async fn drains(&mut self) {
        self.ask_pause(false).await;
        let began = Instant::now();
        loop {
            let mut listed = self.list().await;
            listed.items.retain(|item| item.finished().is_none());
            if listed.items.is_empty() {
                break;
            }
            assert!(began.elapsed() < PATIENCE * 3, "these do not come to their end: {listed:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let listed = self.list().await;
        self.model.check(&listed);
        for item in &listed.items {
            let image = self.images.all.iter().find(|image| image.name == item.image);
            let kind = image.map_or(Kind::Missing, |image| image.kind);
            let expected = if kind == Kind::Missing { State::Failed } else { State::Succeeded };
            assert_eq!(item.state, expected, "{item:#?}");
            let parked = item.kept.as_ref().is_some_and(|kept| kept.how == How::Parked);
            assert_eq!(parked, kind == Kind::Private, "{item:#?}");
        }
        until("no pull is under way", PATIENCE, async || self.crisp.pulls().await.is_empty()).await;

        // What was kept to be resumed goes after a second.
        self.crisp.kill();
        self.crisp.set_options(&super::options("1s"));
        self.crisp.restart();
        self.crisp.set_options(&super::options("1h"));
        until("the queue answers", PATIENCE, async || self.try_list().await.is_some()).await;
        let listed = self.list().await;
        self.model.check(&listed);
        let leases = || async { self.containerd.list_leases().await.expect("leases") };
        until("no lease of a pull is left", PATIENCE, async || leases().await.is_empty()).await;
        let parked =
            listed.items.iter().filter(|item| item.kept.as_ref().is_some_and(|k| k.how == How::Parked));
        let expected: BTreeMap<u64, usize> = parked.map(|item| (item.id, 1)).collect();
        until("each parked item has one lease", PATIENCE, async || self.parked().await == expected).await;
        self.private_is_hidden().await;
        self.finished_is_quiet();
    }

    /// After everything was removed nothing is kept.
    pub(super) async fn nothing_is_left(&mut self) {
        until("no parked lease is left", PATIENCE, async || self.parked().await.is_empty()).await;
        assert_eq!(self.crisp.pulls().await, []);
        assert_eq!(self.list().await.items, []);
        self.private_is_hidden().await;
    }

    /// How many parked leases each item has.
    async fn parked(&self) -> BTreeMap<u64, usize> {
        let mut count = BTreeMap::new();
        for lease in self.containerd.parked_leases().await.expect("leases") {
            let id = lease.parked_for().and_then(|owner| owner.rsplit('/').next()?.parse().ok());
            *count.entry(id.expect("an item's number")).or_insert(0) += 1;
        }
        count
    }
}

/// Whether an item has come to its end.
trait Finished {
    fn finished(&self) -> Option<State>;
}

impl Finished for crisp::prepull::view::Summary {
    fn finished(&self) -> Option<State> {
        Some(self.state).filter(|state| matches!(state, State::Succeeded | State::Failed))
    }
}
