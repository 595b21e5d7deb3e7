//! The one task that owns the queue: it takes events in, writes down what has changed, answers, and starts attempts,
//! in this order. Nobody is told of anything that is not on disk.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::metrics::Metrics;
use crate::prepull::attempt::Tools;
use crate::prepull::dry;
use crate::prepull::handle::{Command, Refusal};
use crate::prepull::item::{How, Id, Item, State};
use crate::prepull::notes::{Notes, Turns};
use crate::prepull::opening::{Found, INSTANCE, ITEMS, NEXT_ID, PAUSED, TRACES};
use crate::prepull::park;
use crate::prepull::queue::{Action, Added, Answer, Event, Outcome, Queue, Step};
use crate::prepull::record;
use crate::prepull::secret::Sealer;
use crate::prepull::sight::Pin;
use crate::prepull::time::Time;
use crate::store::{Batch, Store};

/// How many commands go into one commit.
const BATCH: usize = 256;

/// How much goes into one commit, and a little more. One request is smaller.
const COMMIT_SIZE: usize = 12 << 20;

/// How long after a failed commit it is tried again.
const COMMIT_AGAIN: Duration = Duration::from_secs(1);

/// The queue and all that belongs to it.
pub(super) struct Actor {
    queue: Queue,
    store: Store,
    sealer: Sealer,
    tools: Arc<Tools>,
    metrics: Arc<Metrics>,
    commands: mpsc::WeakSender<Command>,
    attempts: HashMap<Id, (u64, Instant, AbortOnDropHandle<()>)>,
    pins: BTreeMap<Id, Pin>,
    /// Names that stand for images pulled by another one, by item.
    mapped: BTreeMap<Id, String>,
    /// Items for which something is kept, pinned or parked.
    kept: BTreeSet<Id>,
    /// Changed and not on disk yet, because the disk did not take it.
    dirty: BTreeSet<Id>,
    dirty_meta: bool,
    /// What the disk did not take the last time, which has been said.
    said: Option<String>,
}

// === impl Actor ===

impl Actor {
    pub(super) fn new(
        found: Found,
        store: Store,
        sealer: Sealer,
        tools: Arc<Tools>,
        metrics: Arc<Metrics>,
        commands: mpsc::WeakSender<Command>,
    ) -> Self {
        Self {
            queue: found.queue,
            store,
            sealer,
            tools,
            metrics,
            commands,
            attempts: HashMap::new(),
            pins: BTreeMap::new(),
            mapped: BTreeMap::new(),
            kept: BTreeSet::new(),
            dirty: BTreeSet::new(),
            dirty_meta: true,
            said: None,
        }
    }

    /// Runs until it is told to close, or nobody is left who could tell it anything.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let elsewhere = |item: &&Item| is_mapped(item);
        if self.queue.items().any(|item| elsewhere(&item)) && !self.tools.has_aliases().await {
            for item in self.queue.items().filter(elsewhere) {
                self.tools.sight.map_name(&item.image, &item.source);
            }
        }
        for (id, trace) in self.queue.traces() {
            // Hidden before any attempt begins, or that would take what was left for an image that is there.
            let left = park::Left::new(&self.tools, id, trace.clone());
            tokio::spawn(clean(self.tools.clone(), left, Notes(self.commands.clone())));
        }
        let all: Vec<Id> = self.queue.items().map(|item| item.id).collect();
        self.see_pins(&all.into_iter().collect());
        self.take(vec![Command::Report(Event::Tick)]).await;
        loop {
            let due = self.queue.next_due();
            let wait = due.map_or(Duration::from_secs(3600), |due| due.since(Time::now()));
            let wait = if self.dirty.is_empty() && !self.dirty_meta { wait } else { wait.min(COMMIT_AGAIN) };
            // A timer of whole milliseconds may come a little early, and a wait of nothing would spin.
            let wait = wait.max(Duration::from_millis(1));
            let mut batch = Vec::new();
            tokio::select! {
                count = commands.recv_many(&mut batch, BATCH) => if count == 0 { return },
                () = tokio::time::sleep(wait) => batch.push(Command::Report(Event::Tick)),
            }
            if let Some(closed) = self.take(batch).await {
                self.attempts.clear();
                self.store.close().await;
                // Who waits for an answer hears that there is none.
                drop(commands);
                // What private pulls have left in sight would stay so until the next crisp.
                self.tools.looks.ended().await;
                // Nobody may wait any more.
                let _ = closed.send(());
                return;
            }
        }
    }

    /// Takes commands in. Gives who wants to know that all is closed.
    async fn take(&mut self, commands: Vec<Command>) -> Option<oneshot::Sender<()>> {
        let mut actions = Vec::new();
        let mut changed = BTreeSet::new();
        let mut answers = Vec::new();
        let mut looks = Vec::new();
        let mut close = None;
        for command in commands {
            match command {
                Command::Report(event) => {
                    let step = self.step(event);
                    actions.extend(step.actions);
                    changed.extend(step.changed);
                }
                Command::Do(event, asker) => {
                    self.dirty_meta |= matches!(event, Event::Pause(_) | Event::Add(_) | Event::Looks(_));
                    let step = self.step(event);
                    actions.extend(step.actions);
                    changed.extend(step.changed);
                    answers.push((asker, step.answer));
                }
                Command::Look(look) => looks.push(look),
                Command::DryRun(wanted, asker) => {
                    let (tools, notes) = (self.tools.clone(), Notes(self.commands.clone()));
                    // Who asked may go before it is known.
                    tokio::spawn(async move { asker.send(dry::run(&tools, &notes, wanted).await) });
                }
                Command::Close(asker) => close = Some(asker),
            }
        }
        let written = self.commit(&changed).await;
        if let Err(error) = &written {
            actions.extend(self.take_back(&answers));
            if self.said.as_ref() != Some(error) {
                tracing::error!(error, "cannot write the queue down; trying on");
            }
        }
        self.said = written.as_ref().err().cloned();
        self.see_pins(&changed);
        for look in looks {
            look(&self.queue);
        }
        for (asker, answer) in answers {
            let answer = match &written {
                Ok(()) => Ok(answer),
                Err(error) => Err(Refusal::Store(error.clone())),
            };
            // Who asked may have gone.
            let _ = asker.send(answer);
        }
        for action in actions {
            self.act(action);
        }
        close
    }

    fn step(&mut self, event: Event) -> Step {
        if let Event::Ended(id, token, outcome) = &event
            && let Some((_, started, _)) = self.attempts.get(id).filter(|(running, ..)| running == token)
        {
            let (word, failure) = match outcome {
                Outcome::Done(done) if done.present => ("present", None),
                Outcome::Done(_) => ("pulled", None),
                Outcome::Failed { reason, .. } => ("failed", Some(reason.name())),
                Outcome::Later { reason, .. } => ("later", Some(reason.name())),
            };
            self.metrics.prepull.attempt_ended(word, failure, started.elapsed());
            self.attempts.remove(id);
        }
        self.queue.step(event, Time::now())
    }

    /// New items that could not be written down were not taken.
    fn take_back(&mut self, answers: &[(oneshot::Sender<Result<Answer, Refusal>>, Answer)]) -> Vec<Action> {
        let mut actions = Vec::new();
        for (_, answer) in answers {
            let Answer::Added(added) = answer else { continue };
            for (id, _) in added.iter().filter(|(_, added)| *added == Added::New) {
                let step = self.queue.step(Event::Remove(*id), Time::now());
                self.dirty.extend(step.changed);
                actions.extend(step.actions);
            }
        }
        actions
    }

    /// Writes down what has changed. What the disk does not take is tried again with the next commit.
    async fn commit(&mut self, changed: &BTreeSet<Id>) -> Result<(), String> {
        self.dirty.extend(changed);
        if self.dirty.is_empty() && !self.dirty_meta {
            return Ok(());
        }
        let mut batch = Batch::new();
        if self.dirty_meta {
            batch.put_meta(NEXT_ID, self.queue.next_id().to_be_bytes());
            batch.put_meta(PAUSED, u64::from(self.queue.is_paused()).to_be_bytes());
            batch.put_meta(INSTANCE, self.tools.instance.as_bytes());
        }
        let mut size = 0;
        for id in &self.dirty {
            if size > COMMIT_SIZE {
                self.store.commit(std::mem::take(&mut batch)).await.map_err(|error| error.to_string())?;
                size = 0;
            }
            match self.queue.get(*id) {
                None => {
                    match self.queue.trace(*id).map(serde_json::to_vec) {
                        Some(trace) => batch.put(TRACES, *id, trace.map_err(|error| error.to_string())?),
                        None => batch.remove(TRACES, *id),
                    };
                    batch.remove(ITEMS, *id)
                }
                Some(item) => {
                    let data = record::encode(item, &self.sealer).map_err(|error| error.to_string())?;
                    size += data.len();
                    batch.put(ITEMS, *id, data)
                }
            };
        }
        self.store.commit(batch).await.map_err(|error| error.to_string())?;
        self.dirty.clear();
        self.dirty_meta = false;
        Ok(())
    }

    /// Shows pins as they are now.
    fn see_pins(&mut self, changed: &BTreeSet<Id>) {
        let mut differs = false;
        let kept_any = !self.kept.is_empty();
        for id in changed {
            let item = self.queue.get(*id);
            if item.is_some_and(|item| item.status.kept.is_some()) {
                self.kept.insert(*id);
            } else {
                self.kept.remove(id);
            }
            let pin = item.and_then(pin_of);
            differs |= self.pins.get(id) != pin.as_ref();
            match pin {
                Some(pin) => self.pins.insert(*id, pin),
                None => self.pins.remove(id),
            };
        }
        if kept_any == self.kept.is_empty() {
            self.tools.sight.set_keeps(!kept_any);
        }
        self.end_mappings(changed);
        if differs {
            self.tools.sight.set_pins(self.pins.values().cloned());
        }
    }

    /// Where the runtime has no second names, crisp answers for them as long as there is an item.
    fn end_mappings(&mut self, changed: &BTreeSet<Id>) {
        for id in changed {
            match self.queue.get(*id).filter(|item| is_mapped(item)) {
                Some(item) => {
                    self.mapped.insert(*id, item.image.clone());
                }
                None => {
                    if let Some(image) = self.mapped.remove(id)
                        && !self.mapped.values().any(|other| *other == image)
                    {
                        self.tools.sight.unmap(&image);
                    }
                }
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start(id, token) => self.start(id, token),
            Action::Stop(id, token) => {
                if self.attempts.get(&id).is_some_and(|(running, ..)| *running == token) {
                    self.attempts.remove(&id);
                }
            }
            Action::Release(id, How::Parked) => {
                let tools = self.tools.clone();
                tokio::spawn(async move { park::release(&tools, id).await });
            }
            // What is pinned is told by `see_pins`.
            Action::Release(_, How::Pinned) => {}
        }
    }

    fn start(&mut self, id: Id, token: u64) {
        let (Some(item), Some(commands)) = (self.queue.get(id).cloned(), self.commands.upgrade()) else {
            return;
        };
        let status = &item.status;
        if status.failed_attempts == 0 {
            self.metrics.prepull.started(Time::now().since(status.asked));
        }
        let tools = self.tools.clone();
        let attempt = tokio::spawn(async move {
            let turns = Turns { commands: commands.clone(), id, token };
            let outcome = tools.attempt(&item, &turns).await;
            // Nobody is there to hear of it when crisp shuts down.
            let _ = commands.send(Command::Report(Event::Ended(id, token, outcome))).await;
        });
        self.attempts.insert(id, (token, Instant::now(), AbortOnDropHandle::new(attempt)));
    }
}

/// Removes what an attempt has left that the last crash cut off. Until then crisp's socket does not show it.
async fn clean(tools: Arc<Tools>, mut left: park::Left, notes: Notes) {
    left.remove(&tools).await;
    notes.cleaned(left.id).await;
}

/// Whether the image was pulled by another name than the pods' one.
fn is_mapped(item: &Item) -> bool {
    item.source != item.image && item.status.state == State::Succeeded
}

fn pin_of(item: &Item) -> Option<Pin> {
    let kept = item.status.kept.as_ref().filter(|kept| kept.how == How::Pinned)?;
    Some(Pin {
        name: item.image.clone(),
        image_id: item.status.image_id.clone(),
        owner: item.spec.owner.clone(),
        until: kept.until.map_or_else(|| "its owner ends".to_owned(), |until| until.to_string()),
        item: item.id.to_string(),
    })
}
