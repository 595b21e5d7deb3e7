//! What is kept gives way, the least important first, so that the kubelet evicts no pod for it.
//!
//! A pin that ends frees nothing by itself, and the kubelet cannot be left to it: it removes no image that it has known
//! for less than `imageMinimumGCAge` (two minutes), it looks for new ones every five minutes, and when removing images
//! has not freed enough it evicts a pod at once. So crisp itself removes what it lets go for want of space, as the
//! kubelet would: not what a container uses, and not what was there before crisp pulled it.
//!
//! An image that a container uses keeps its pin, because ending it would free nothing.

use std::collections::BTreeMap;

use k8s_cri::v1::Image;
use tokio::sync::{mpsc, oneshot};

use super::Kept;
use crate::prepull::attempt::Tools;
use crate::prepull::check::{self, Hold};
use crate::prepull::handle::Command;
use crate::prepull::item::How;
use crate::prepull::park;
use crate::prepull::queue::Event;

/// Makes what is kept give way.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// Bytes that were let go and that only the kubelet frees, when it gets there.
    given: u64,
}

/// How the queue is told.
type Sender = mpsc::WeakSender<Command>;

/// One image that is kept in one way. If it is kept for several, it goes for all of them or for none.
type Key = (How, String);

// === impl Space ===

impl Space {
    /// Lets go what has to go. `false`: there is no queue any more.
    pub(super) async fn look(&mut self, tools: &Tools, kept: &[Kept], queue: &Sender) -> bool {
        let over = check::over_bound(tools.settings.max_pinned_bytes, &holds(kept));
        for key in &over {
            let its = kept.iter().filter(|one| key_of(one) == *key).collect::<Vec<_>>();
            if !give_up(queue, &its, "there are more bytes of them than prepull.maxPinnedBytes").await {
                return false;
            }
            if key.0 == How::Parked {
                release(tools, &its).await;
            }
        }
        let left = kept.iter().filter(|kept| !over.contains(&key_of(kept))).collect::<Vec<_>>();
        self.make_room(tools, left, queue).await
    }

    /// One after the other, so that nothing goes that need not. `false`: there is no queue any more.
    async fn make_room(&mut self, tools: &Tools, mut kept: Vec<&Kept>, queue: &Sender) -> bool {
        let Some(mut space) = tools.node.space(&tools.images).await else { return true };
        let next = |space: &check::Space, given, holds: &[Hold<Key>]| {
            check::give_way(space.free, space.total, tools.settings.pin_floor, given, holds)
                .into_iter()
                .next()
        };
        if next(&space, 0, &holds(kept.iter().copied())).is_none() {
            self.given = 0;
            return true;
        }
        let unused = unused_images(tools).await;
        if let Some(unused) = &unused {
            // An image that is used frees nothing when its pin ends.
            kept.retain(|kept| kept.how == How::Parked || unused.contains_key(&kept.image));
        }
        while let Some(key) = next(&space, self.given, &holds(kept.iter().copied())) {
            let its: Vec<_> = kept.extract_if(.., |one| key_of(one) == key).collect();
            if !give_up(queue, &its, "the disk is nearly full").await {
                return false;
            }
            let bytes = its.iter().map(|one| one.bytes).max().unwrap_or(0);
            if free(tools, &its, unused.as_ref()).await {
                // Some filesystems take their time to tell.
                let expected = space.free.saturating_add(bytes);
                let Some(now) = tools.node.space(&tools.images).await else { return true };
                space = check::Space { free: now.free.max(expected), ..now };
            } else {
                self.given = self.given.saturating_add(bytes);
            }
        }
        true
    }
}

/// Makes the space of one image free, now that nothing of crisp's keeps it. `false`: only the kubelet can.
async fn free(tools: &Tools, its: &[&Kept], unused: Option<&BTreeMap<String, Image>>) -> bool {
    let Some(first) = its.first() else { return false };
    if first.how == How::Parked {
        release(tools, its).await;
        return true;
    }
    let is_ours = its.iter().any(|kept| kept.pulled);
    if !is_ours || unused.is_none_or(|unused| !unused.contains_key(&first.image)) {
        return false;
    }
    match tools.images.remove(&first.image).await {
        Ok(()) => {
            tracing::info!(image = first.image, "removed for want of disk space");
            true
        }
        Err(error) => {
            tracing::warn!(%error, image = first.image, "cannot remove what has given way");
            false
        }
    }
}

async fn release(tools: &Tools, its: &[&Kept]) {
    for kept in its {
        park::release(tools, kept.id).await;
    }
}

/// What can be removed. Nothing if the runtime does not tell: then the kubelet is left to it.
async fn unused_images(tools: &Tools) -> Option<BTreeMap<String, Image>> {
    match tools.images.unused().await {
        Ok(unused) => Some(unused),
        Err(error) => {
            tracing::warn!(%error, "cannot tell which images are used; the kubelet has to remove them");
            None
        }
    }
}

fn key_of(kept: &Kept) -> Key {
    (kept.how, kept.image.clone())
}

/// One for each image, as important as the most important item that it is kept for.
fn holds<'a>(kept: impl IntoIterator<Item = &'a Kept>) -> Vec<Hold<Key>> {
    let mut holds: BTreeMap<Key, Hold<Key>> = BTreeMap::new();
    for one in kept {
        let new = Hold {
            id: key_of(one),
            class: one.class,
            priority: one.priority.into(),
            since: one.since,
            bytes: one.bytes,
        };
        let hold = holds.entry(key_of(one)).or_insert_with(|| new.clone());
        if (new.class, new.priority, new.since) > (hold.class, hold.priority, hold.since) {
            *hold = new;
        }
    }
    holds.into_values().collect()
}

/// Ends pins and what is parked, on disk and in the kubelet's eyes. `false`: there is no queue any more.
async fn give_up(queue: &Sender, its: &[&Kept], why: &str) -> bool {
    for Kept { id, how, image, .. } in its {
        tracing::info!(item = id, ?how, image, why, "gives way");
    }
    let (answer, answered) = oneshot::channel();
    let event = Event::GiveWay(its.iter().map(|kept| kept.id).collect());
    let Some(queue) = queue.upgrade() else { return false };
    if queue.send(Command::Do(event, answer)).await.is_err() {
        return false;
    }
    drop(queue);
    // It has happened also if it could not be written down yet.
    answered.await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepull::item::Id;
    use crate::pull::Class;

    fn kept(id: Id, how: How, image: &str, priority: i32) -> Kept {
        let image = image.to_owned();
        Kept { id, how, image, pulled: true, class: Class::Background, priority, since: id, bytes: 10 }
    }

    #[test]
    fn an_image_of_several_counts_once_and_by_its_most_important_owner() {
        let all = [
            kept(1, How::Pinned, "a", -5),
            kept(2, How::Pinned, "b", 0),
            kept(3, How::Pinned, "a", 7),
            kept(4, How::Parked, "a", 1),
        ];
        let holds = holds(&all);
        let order = check::give_way(0, 100, 30, 0, &holds);
        let expected = [(How::Pinned, "b"), (How::Parked, "a"), (How::Pinned, "a")];
        assert_eq!(order, expected.map(|(how, image)| (how, image.to_owned())));
        assert_eq!(check::over_bound(30, &holds), []);
    }
}
