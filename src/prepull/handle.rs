//! How others speak with the queue.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::config;
use crate::containerd::Containerd;
use crate::cri::RuntimeCall;
use crate::metrics::Metrics;
use crate::prepull::actor::Actor;
use crate::prepull::attempt::Tools;
use crate::prepull::cri::Images;
use crate::prepull::dry::DryRun;
use crate::prepull::item::{How, Id, Item, State};
use crate::prepull::keeper;
use crate::prepull::node::Node;
use crate::prepull::opening;
use crate::prepull::park;
use crate::prepull::queue::{Added, Answer, Event, Limits, Queue};
use crate::prepull::secret::Sealer;
use crate::prepull::sight::Sight;
use crate::prepull::spec::{Reader, Spec, Wanted};
use crate::prepull::view::{Listed, Summary};
use crate::pull::{Class, Coordinator};

/// How many commands may wait.
const COMMANDS: usize = 1024;

/// The queue, for those who use it. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Prepull {
    commands: mpsc::Sender<Command>,
    reader: Reader,
    limit: usize,
    state_dir: PathBuf,
    /// It is to be closed, also while its store cannot be opened yet.
    closing: CancellationToken,
}

/// What the queue is made with.
#[derive(Clone)]
pub struct Parts {
    /// Settings of the queue.
    pub settings: config::Prepull,
    /// Pulls at once.
    pub slots: usize,
    /// Where the store is.
    pub state_dir: PathBuf,
    /// How names of images are understood.
    pub reader: Reader,
    /// Who pulls.
    pub coordinator: Coordinator,
    /// The runtime's own API, where it is containerd.
    pub containerd: Containerd,
    /// Other calls at the runtime.
    pub call: RuntimeCall,
    /// What kubelets are told of images.
    pub sight: Sight,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// A look at the queue.
pub(super) type Look = Box<dyn FnOnce(&Queue) + Send>;

/// What the queue is told.
pub(super) enum Command {
    /// Something has happened.
    Report(Event),
    /// Somebody wants something.
    Do(Event, oneshot::Sender<Result<Answer, Refusal>>),
    /// Somebody looks.
    Look(Look),
    /// Somebody wants to know what would be pulled.
    DryRun(Vec<Wanted>, oneshot::Sender<Vec<DryRun>>),
    /// Everything is to be given up, for another process.
    Close(oneshot::Sender<()>),
}

/// Why the queue does not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Something is wrong with what was asked.
    #[error("{}", .0.join("\n"))]
    Invalid(Vec<String>),
    /// There are too many items.
    #[error(
        "the queue is full: it takes {0} items that are not finished; wait, cancel some with `crisp queue cancel`, or \
         raise prepull.maxItems"
    )]
    Full(usize),
    /// There is no such item.
    #[error("there is no item {0}; `crisp queue list` shows all")]
    Unknown(Id),
    /// It could not be written down.
    #[error(
        "the queue cannot be written to disk now: no new item was taken, and other changes are tried again: {0}"
    )]
    Store(String),
    /// There is no queue.
    #[error("there is no queue: {0}")]
    Closed(String),
}

// === impl Prepull ===

impl Prepull {
    /// Starts the queue. It opens its store in the background: nothing else waits for it, and crisp serves on without
    /// it if there is something wrong with the store.
    pub fn start(parts: Parts) -> Self {
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let handle = Self {
            commands: commands.clone(),
            reader: parts.reader.clone(),
            limit: parts.settings.max_items,
            state_dir: parts.state_dir.clone(),
            closing: CancellationToken::new(),
        };
        // Attempts and the keeper must not keep the queue alive.
        tokio::spawn(run(parts, commands.downgrade(), receiver, handle.closing.clone()));
        handle
    }

    /// Takes images in, all or none. When this returns they are on disk.
    pub async fn add(&self, specs: Vec<Spec>) -> Result<Vec<(Id, Added)>, Refusal> {
        let wanted = self.read(specs)?;
        match self.ask(Event::Add(wanted)).await? {
            Answer::Added(added) => Ok(added),
            _ => Err(Refusal::Full(self.limit)),
        }
    }

    /// Understands specs; all mistakes are told at once.
    fn read(&self, specs: Vec<Spec>) -> Result<Vec<Wanted>, Refusal> {
        let many = specs.len() > 1;
        let mut mistakes = Vec::new();
        let mut wanted = Vec::with_capacity(specs.len());
        for (number, spec) in specs.into_iter().enumerate() {
            let image = spec.image.clone();
            match self.reader.read(spec) {
                Ok(spec) => wanted.push(spec),
                Err(wrong) if many => {
                    mistakes
                        .extend(wrong.into_iter().map(|wrong| format!("items[{number}] ({image}): {wrong}")));
                }
                Err(wrong) => mistakes.extend(wrong),
            }
        }
        if mistakes.is_empty() { Ok(wanted) } else { Err(Refusal::Invalid(mistakes)) }
    }

    /// What would be pulled. Nothing is kept of it.
    pub async fn dry_run(&self, specs: Vec<Spec>) -> Result<Vec<DryRun>, Refusal> {
        let wanted = self.read(specs)?;
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::DryRun(wanted, answer)).await.map_err(|_| self.gone())?;
        answered.await.map_err(|_| self.gone())
    }

    /// Refreshes what is counted of items.
    pub async fn measure(&self, metrics: Arc<Metrics>) {
        let measured = self.look(move |queue| {
            let mut items = BTreeMap::new();
            // Several owners of an image keep it once.
            let mut kept = BTreeMap::from([(How::Pinned, BTreeMap::new()), (How::Parked, BTreeMap::new())]);
            for item in queue.items() {
                *items.entry((item.status.state, item.spec.class)).or_insert(0) += 1;
                if let Some(one) = &item.status.kept {
                    kept.entry(one.how).or_default().insert(item.image.as_str(), one.bytes);
                }
            }
            for state in State::ALL {
                for class in Class::ALL.into_iter().filter(|class| *class != Class::Kubelet) {
                    let count = items.get(&(state, class)).copied().unwrap_or(0);
                    metrics.prepull.set_items(state.name(), class.name(), count);
                }
            }
            for (how, images) in kept {
                let bytes = images.into_values().fold(0, u64::saturating_add);
                metrics.prepull.set_kept(how.name(), bytes);
            }
        });
        // Without a queue there is nothing to count.
        let _ = measured.await;
    }

    /// Gives an item up.
    pub async fn remove(&self, id: Id) -> Result<(), Refusal> {
        self.ask(Event::Remove(id)).await.and_then(|answer| known(&answer, id))
    }

    /// Tries an item again now.
    pub async fn retry(&self, id: Id) -> Result<(), Refusal> {
        self.ask(Event::Retry(id)).await.and_then(|answer| known(&answer, id))
    }

    /// Starts nothing more and stops what runs, or lets all go on.
    pub async fn pause(&self, paused: bool) -> Result<(), Refusal> {
        self.ask(Event::Pause(paused)).await.map(drop)
    }

    /// An item, whole.
    pub async fn get(&self, id: Id) -> Result<Item, Refusal> {
        self.look(move |queue| queue.get(id).cloned()).await?.ok_or(Refusal::Unknown(id))
    }

    /// Items in short, as JSON. Made where the queue is, so that no second copy of it is needed.
    pub async fn list(&self, wanted: impl Fn(&Item) -> bool + Send + 'static) -> Result<Bytes, Refusal> {
        let json = self.look(move |queue| {
            let items = queue.items().filter(|item| wanted(item)).map(Summary::of).collect();
            serde_json::to_vec(&Listed { paused: queue.is_paused(), items })
        });
        json.await?.map(Bytes::from).map_err(|error| Refusal::Closed(error.to_string()))
    }

    /// Looks at the queue as it is.
    pub async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Queue) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let (answer, answered) = oneshot::channel();
        let look: Look = Box::new(move |queue| {
            // Who looks may have gone.
            let _ = answer.send(look(queue));
        });
        self.commands.send(Command::Look(look)).await.map_err(|_| self.gone())?;
        answered.await.map_err(|_| self.gone())
    }

    /// Gives up the store at once, for the process that comes next.
    pub async fn close(&self) {
        self.closing.cancel();
        let (answer, answered) = oneshot::channel();
        if self.commands.send(Command::Close(answer)).await.is_ok() {
            // It is closed either way.
            let _ = answered.await;
        }
    }

    async fn ask(&self, event: Event) -> Result<Answer, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Do(event, answer)).await.map_err(|_| self.gone())?;
        answered.await.map_err(|_| self.gone())?
    }

    fn gone(&self) -> Refusal {
        Refusal::Closed(format!("see crisp's log for what is wrong with {}", self.state_dir.display()))
    }
}

fn known(answer: &Answer, id: Id) -> Result<(), Refusal> {
    if *answer == Answer::Unknown { Err(Refusal::Unknown(id)) } else { Ok(()) }
}

async fn run(
    parts: Parts,
    commands: mpsc::WeakSender<Command>,
    receiver: mpsc::Receiver<Command>,
    closing: CancellationToken,
) {
    let dir = parts.state_dir.clone();
    let limits = Limits {
        slots: parts.slots,
        items: parts.settings.max_items,
        finished: parts.settings.max_finished,
        ttl: parts.settings.finished_ttl,
    };
    let opened = async {
        let store = opening::open_store(&dir).await?;
        let (sealer, found) = tokio::task::spawn_blocking({
            let (store, dir) = (store.clone(), dir.clone());
            move || -> anyhow::Result<_> {
                let sealer = Sealer::open(&dir)?;
                let found = opening::read(&store, &sealer, limits)?;
                Ok((sealer, found))
            }
        })
        .await??;
        anyhow::Ok((store, sealer, found))
    };
    // Another process may have the store for as long as it likes.
    let (store, sealer, found) = match closing.run_until_cancelled(opened).await {
        None => return,
        Some(Ok(opened)) => opened,
        Some(Err(error)) => {
            tracing::error!(%error, "no pre-pull queue; crisp serves on without it");
            return;
        }
    };
    let tools = Arc::new(Tools {
        node: Node::new(parts.settings.clone()),
        settings: parts.settings,
        coordinator: parts.coordinator,
        containerd: parts.containerd,
        images: Images(parts.call),
        sight: parts.sight,
        looks: park::Looks::default(),
        instance: found.instance.clone(),
    });
    let (asked, asks) = mpsc::channel(keeper::ASKS);
    tools.sight.kept_by(asked);
    tokio::spawn(keeper::run(tools.clone(), commands.clone(), asks));
    Actor::new(found, store, sealer, tools, parts.metrics, commands).run(receiver).await;
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("state_dir", &self.state_dir).finish_non_exhaustive()
    }
}
