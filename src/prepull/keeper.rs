//! Looks after what is kept: it gives way before the disk is full, and what is parked does not expire.

mod space;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, oneshot};

use crate::prepull::attempt::Tools;
use crate::prepull::handle::Command;
use crate::prepull::item::{How, Id, Item, Reason};
use crate::prepull::park;
use crate::prepull::queue::{Event, Queue};
use crate::prepull::sight::Asked;
use crate::pull::Class;

use space::Space;

/// How often space is looked at without being asked. The kubelet looks every ten seconds.
const EVERY: Duration = Duration::from_secs(5);

/// How many may ask at once.
pub(super) const ASKS: usize = 16;

/// How often the leases of what is parked are looked at, and how old they become.
const LEASES_EVERY: Duration = Duration::from_secs(60);
const RENEW_AFTER: Duration = Duration::from_secs(6 * 60 * 60);

/// How old a lease of another store's item gets before it is deleted: its crisp may just be giving way to this one.
const FOREIGN_AFTER: Duration = Duration::from_secs(10 * 60);

/// Something that is kept for an item.
#[derive(Debug, Clone)]
struct Kept {
    id: Id,
    how: How,
    /// The image's ID.
    image: String,
    /// Whether it is there because crisp has pulled it.
    pulled: bool,
    class: Class,
    priority: i32,
    /// Since when, in milliseconds.
    since: u64,
    bytes: u64,
}

/// Runs as long as the queue does. Whoever asks is answered when space has been looked at.
pub(super) async fn run(
    tools: Arc<Tools>,
    commands: mpsc::WeakSender<Command>,
    mut asks: mpsc::Receiver<Asked>,
) {
    let mut space = Space::default();
    let mut leases_looked_at: Option<Instant> = None;
    let mut asked: Vec<Asked> = Vec::new();
    loop {
        let Some(kept) = look(&commands, Kept::of_all).await else { return };
        if !kept.is_empty() && !space.look(&tools, &kept, &commands).await {
            return;
        }
        for asked in asked.drain(..) {
            // Who asked may have gone.
            let _ = asked.send(());
        }
        if leases_looked_at.is_none_or(|at| at.elapsed() >= LEASES_EVERY)
            && tools.coordinator.supports_leases().await
        {
            match look_after_leases(&tools, &kept, &commands).await {
                Ok(()) => leases_looked_at = Some(Instant::now()),
                Err(error) => tracing::debug!(%error, "cannot look after what is parked yet"),
            }
        }
        tokio::select! {
            count = asks.recv_many(&mut asked, ASKS) => if count == 0 { return },
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// What an item needs of leases.
#[derive(Debug, Clone, Copy)]
enum Need {
    /// The one by which it is parked.
    Parked,
    /// None.
    Nothing,
    /// It is not finished: an attempt may be about to park, or profit from what one before it has parked.
    Unknown,
}

/// Deletes leases that nobody needs any more, renews old ones, and tells of those that are gone.
async fn look_after_leases(
    tools: &Tools,
    kept: &[Kept],
    commands: &mpsc::WeakSender<Command>,
) -> Result<(), crate::containerd::Error> {
    let mut leases = tools.containerd.parked_leases().await?;
    // After the leases: an item is there before its lease.
    let Some(items) = look(commands, Need::of_all).await else { return Ok(()) };
    // The latest is the one that an item was parked with.
    leases.sort_by_key(|lease| std::cmp::Reverse((lease.created_at, lease.id.clone())));
    let mut parked = BTreeSet::new();
    for lease in &leases {
        let age = lease.created_at.and_then(|time| SystemTime::now().duration_since(time).ok());
        let older = |limit| age.is_some_and(|age| age > limit);
        let needed = match park::item_of(tools, lease.parked_for().unwrap_or_default()) {
            None => !older(FOREIGN_AFTER),
            Some(id) => match items.get(&id) {
                None | Some(Need::Nothing) => false,
                Some(Need::Parked) => parked.insert(id),
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
    for id in kept.iter().filter(|kept| kept.how == How::Parked).map(|kept| kept.id) {
        let owner = park::owner(tools, id);
        if !leases.iter().any(|lease| lease.parked_for() == Some(owner.as_str())) {
            tracing::warn!(item = id, "what was parked is gone; it is pulled again");
            send(commands, Event::Lost(id)).await;
        }
    }
    Ok(())
}

// === impl Need ===

impl Need {
    fn of(item: &Item) -> Self {
        match &item.status.kept {
            _ if !item.is_finished() => Self::Unknown,
            Some(kept) if kept.how == How::Parked => Self::Parked,
            _ => Self::Nothing,
        }
    }

    fn of_all(queue: &Queue) -> BTreeMap<Id, Self> {
        queue.items().map(|item| (item.id, Self::of(item))).collect()
    }
}

// === impl Kept ===

impl Kept {
    fn of_all(queue: &Queue) -> Vec<Self> {
        queue.items().filter_map(Self::of).collect()
    }

    fn of(item: &Item) -> Option<Self> {
        let kept = item.status.kept.as_ref()?;
        Some(Self {
            id: item.id,
            how: kept.how,
            image: item.status.image_id.as_ref().unwrap_or(&item.source).clone(),
            pulled: item.status.reason == Reason::Pulled,
            class: item.spec.class,
            priority: item.spec.priority,
            since: item.status.finished.unwrap_or_default().0,
            bytes: kept.bytes,
        })
    }
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
