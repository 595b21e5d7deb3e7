//! Looks after what is kept: it gives way before the disk is full, and what is parked does not expire.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, oneshot};

use crate::prepull::attempt::Tools;
use crate::prepull::check::{self, Hold};
use crate::prepull::handle::Command;
use crate::prepull::item::{How, Id, Item};
use crate::prepull::park;
use crate::prepull::queue::{Event, Queue};

/// How often space is looked at. The kubelet looks every ten seconds.
const EVERY: Duration = Duration::from_secs(5);

/// How often the leases of what is parked are looked at, and how old they become.
const LEASES_EVERY: Duration = Duration::from_secs(60);
const RENEW_AFTER: Duration = Duration::from_secs(6 * 60 * 60);

/// How old a lease is that belongs to no item of this store before it is deleted: it may be another crisp's that is
/// just being replaced by this one.
const FOREIGN_AFTER: Duration = Duration::from_secs(10 * 60);

/// Something that is kept.
#[derive(Debug, Clone)]
struct Kept {
    hold: Hold<Id>,
    how: How,
}

/// Runs as long as the queue does.
pub(super) async fn run(tools: Arc<Tools>, commands: mpsc::WeakSender<Command>) {
    // Pins that gave way free nothing by themselves: the kubelet's garbage collection does, when it gets there.
    let mut given_way = 0;
    let mut leases_looked_at: Option<Instant> = None;
    loop {
        let Some(kept) = look(&commands, kept).await else { return };
        if !kept.is_empty() {
            let ids = too_much(&tools, &kept, &mut given_way).await;
            if !ids.is_empty() && !send(&commands, Event::GiveWay(ids)).await {
                return;
            }
        }
        if leases_looked_at.is_none_or(|at| at.elapsed() >= LEASES_EVERY)
            && tools.coordinator.supports_leases().await
        {
            match look_after_leases(&tools, &kept, &commands).await {
                Ok(()) => leases_looked_at = Some(Instant::now()),
                Err(error) => tracing::debug!(%error, "cannot look after what is parked yet"),
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// What has to give way now.
async fn too_much(tools: &Tools, kept: &[Kept], given_way: &mut u64) -> Vec<Id> {
    let holds: Vec<_> = kept.iter().map(|kept| kept.hold.clone()).collect();
    let mut ids: BTreeSet<Id> =
        check::over_bound(tools.settings.max_pinned_bytes, &holds).into_iter().collect();
    if let Some(space) = tools.node.space(&tools.images).await {
        let floor = tools.settings.pin_floor;
        let going = check::give_way(space.free, space.total, floor, 0, &holds);
        if going.is_empty() {
            *given_way = 0;
        }
        ids.extend(check::give_way(space.free, space.total, floor, *given_way, &holds));
    }
    for kept in kept.iter().filter(|kept| ids.contains(&kept.hold.id)) {
        tracing::info!(item = kept.hold.id, how = ?kept.how, "gives way for want of disk space");
        if kept.how == How::Pinned {
            *given_way = given_way.saturating_add(kept.hold.bytes);
        }
    }
    ids.into_iter().collect()
}

/// Deletes leases that nobody needs any more, renews old ones, and tells of those that are gone.
async fn look_after_leases(
    tools: &Tools,
    kept: &[Kept],
    commands: &mpsc::WeakSender<Command>,
) -> Result<(), crate::containerd::Error> {
    let mut leases = tools.containerd.parked_leases().await?;
    // After the leases: an item comes before its lease.
    let Some(items) = look(commands, items).await else { return Ok(()) };
    leases.sort_by_key(|lease| std::cmp::Reverse((lease.created_at, lease.id.clone())));
    let mut seen = BTreeSet::new();
    for lease in &leases {
        let age = lease.created_at.and_then(|time| SystemTime::now().duration_since(time).ok());
        let older = |limit| age.is_some_and(|age| age > limit);
        let needed = match park::item_of(tools, lease.parked_for().unwrap_or_default()) {
            None => !older(FOREIGN_AFTER),
            Some(id) => match items.get(&id) {
                None | Some(Need::Nothing) => false,
                // The latest is the one that it was parked with.
                Some(Need::Parked) => seen.insert(id),
                Some(Need::Unknown) => true,
            },
        };
        if !needed {
            tools.containerd.delete_lease(&lease.id, false).await?;
        } else if older(RENEW_AFTER) {
            let renewed = format!("{}-r", lease.id.trim_end_matches("-r"));
            let renewed =
                if renewed == lease.id { lease.id.trim_end_matches("-r").to_owned() } else { renewed };
            tools.containerd.renew_lease(&lease.id, &renewed).await?;
        }
    }
    for id in kept.iter().filter(|kept| kept.how == How::Parked).map(|kept| kept.hold.id) {
        let owner = park::owner(tools, id);
        if !leases.iter().any(|lease| lease.parked_for() == Some(owner.as_str())) {
            tracing::warn!(item = id, "what was parked is gone; it is pulled again");
            send(commands, Event::Lost(id)).await;
        }
    }
    Ok(())
}

/// What an item needs of leases.
#[derive(Debug, Clone, Copy)]
enum Need {
    /// The one by which it is parked.
    Parked,
    /// None.
    Nothing,
    /// It is not finished, so an attempt may be about to park, or to profit from what one before it has parked.
    Unknown,
}

fn items(queue: &Queue) -> BTreeMap<Id, Need> {
    let need = |item: &Item| match (&item.status.kept, item.is_finished()) {
        (_, false) => Need::Unknown,
        (Some(kept), true) if kept.how == How::Parked => Need::Parked,
        (_, true) => Need::Nothing,
    };
    queue.items().map(|item| (item.id, need(item))).collect()
}

fn kept(queue: &Queue) -> Vec<Kept> {
    let kept = queue.items().filter_map(|item| {
        let kept = item.status.kept.as_ref()?;
        let hold = Hold {
            id: item.id,
            class: item.spec.class,
            priority: item.spec.priority.into(),
            since: item.status.finished.unwrap_or_default().0,
            bytes: kept.bytes,
        };
        Some(Kept { hold, how: kept.how })
    });
    kept.collect()
}

/// Looks at the queue. `None`: there is none any more.
async fn look<T: Send + 'static>(
    commands: &mpsc::WeakSender<Command>,
    look: impl FnOnce(&Queue) -> T + Send + 'static,
) -> Option<T> {
    let (answer, answered) = oneshot::channel();
    let look = Box::new(move |queue: &Queue| {
        // Who asked may have gone.
        let _ = answer.send(look(queue));
    });
    commands.upgrade()?.send(Command::Look(look)).await.ok()?;
    answered.await.ok()
}

async fn send(commands: &mpsc::WeakSender<Command>, event: Event) -> bool {
    match commands.upgrade() {
        Some(commands) => commands.send(Command::Report(event)).await.is_ok(),
        None => false,
    }
}
