//! Looks after what is kept: it gives way before the disk is full, and what is parked does not expire.

mod space;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, oneshot};

use crate::prepull::attempt::Tools;
use crate::prepull::handle::Command;
use crate::prepull::item::{How, Id, Item, Reason};
use crate::prepull::park;
use crate::prepull::queue::Event;
use crate::prepull::sight::Asked;
use crate::pull::Class;

use space::Space;

/// How often space is looked at without being asked. The kubelet looks every ten seconds.
const EVERY: Duration = Duration::from_secs(5);

/// How many may ask at once.
pub(super) const ASKS: usize = 16;

/// How often the leases of what is parked are looked at, and how old they become.
const LEASES_EVERY: Duration = Duration::from_secs(10 * 60);
const RENEW_AFTER: Duration = Duration::from_secs(6 * 60 * 60);

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
        let Some(kept) = kept(&commands).await else { return };
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

/// Deletes leases of items that are no more, renews old ones, and tells of those that are gone.
async fn look_after_leases(
    tools: &Tools,
    kept: &[Kept],
    commands: &mpsc::WeakSender<Command>,
) -> Result<(), crate::containerd::Error> {
    let leases = tools.containerd.parked_leases().await?;
    let parked: Vec<Id> = kept.iter().filter(|kept| kept.how == How::Parked).map(|kept| kept.id).collect();
    let owners: BTreeSet<String> = parked.iter().map(|id| park::owner(tools, *id)).collect();
    for lease in &leases {
        let owner = lease.parked_for().unwrap_or_default();
        let age = lease.created_at.and_then(|time| SystemTime::now().duration_since(time).ok());
        if !owners.contains(owner) {
            // An attempt that is just parking has no word of it in the queue yet.
            if age.is_some_and(|age| age > LEASES_EVERY) {
                tools.containerd.delete_lease(&lease.id, false).await?;
            }
        } else if age.is_some_and(|age| age > RENEW_AFTER) {
            let renewed = format!("{}-r", lease.id.trim_end_matches("-r"));
            let renewed =
                if renewed == lease.id { lease.id.trim_end_matches("-r").to_owned() } else { renewed };
            tools.containerd.renew_lease(&lease.id, &renewed).await?;
        }
    }
    for id in parked {
        let owner = park::owner(tools, id);
        if !leases.iter().any(|lease| lease.parked_for() == Some(owner.as_str())) {
            tracing::warn!(item = id, "what was parked is gone; it is pulled again");
            send(commands, Event::Lost(id)).await;
        }
    }
    Ok(())
}

// === impl Kept ===

impl Kept {
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

/// What is kept now. `None`: there is no queue any more.
async fn kept(commands: &mpsc::WeakSender<Command>) -> Option<Vec<Kept>> {
    let (answer, answered) = oneshot::channel();
    let look = Box::new(move |queue: &crate::prepull::queue::Queue| {
        let kept = queue.items().filter_map(Kept::of);
        // Who asked may have gone.
        let _ = answer.send(kept.collect());
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
