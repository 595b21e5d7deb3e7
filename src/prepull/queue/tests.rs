//! Random events and clocks against the queue, beside a world that does what it says.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;
use crate::prepull::spec::{Policy, Spec};
use crate::pull::Class;

const SLOTS: usize = 2;

fn limits() -> Limits {
    Limits { slots: SLOTS, items: 30, finished: 10, ttl: Duration::from_secs(3600) }
}

fn wanted(image: u8, owner: u8, change: impl FnOnce(&mut Spec)) -> Wanted {
    let mut spec = Spec::of(format!("i{image}"));
    spec.owner = format!("o{owner}");
    change(&mut spec);
    let image = format!("docker.io/library/i{image}:latest");
    Wanted { source: image.clone(), image, spec }
}

fn done(parked: bool) -> Outcome {
    let note = String::new();
    Outcome::Done(Done {
        present: false,
        image_id: "sha256:1".into(),
        bytes: 7,
        parked,
        public: !parked,
        note,
    })
}

fn failed() -> Outcome {
    Outcome::Failed { reason: Reason::NotFound, message: "no such image".into(), permanent: false }
}

/// The world beside a queue: attempts under way, what is on disk, and what must never happen.
struct World {
    queue: Queue,
    now: Time,
    disk: BTreeMap<Id, Item>,
    disk_next_id: Id,
    running: BTreeMap<Id, (u64, bool, Duration)>,
    finished: HashMap<Id, Time>,
}

#[derive(Debug, Clone)]
enum Move {
    Add {
        image: u8,
        owner: u8,
        class: u8,
        priority: i8,
        deadline: Option<u16>,
        pin: u8,
        version: Option<u8>,
        retries: u8,
    },
    Remove(u8),
    Retry(u8),
    Pause(bool),
    Turn(u8, bool),
    End(u8, u8),
    GiveWay(u8),
    Lost(u8),
    Pass(u16),
    ClockBack(u16),
    Crash,
}

fn moves() -> impl Strategy<Value = Move> {
    let add = (0..6u8, 0..3u8, 0..3u8, -2..3i8, proptest::option::weighted(0.2, 1..3000u16), 0..3u8)
        .prop_flat_map(|first| (Just(first), proptest::option::weighted(0.3, 0..2u8), 0..3u8))
        .prop_map(|((image, owner, class, priority, deadline, pin), version, retries)| Move::Add {
            image,
            owner,
            class,
            priority,
            deadline,
            pin,
            version,
            retries,
        });
    prop_oneof![
        6 => add,
        1 => any::<u8>().prop_map(Move::Remove),
        1 => any::<u8>().prop_map(Move::Retry),
        1 => any::<bool>().prop_map(Move::Pause),
        4 => (any::<u8>(), any::<bool>()).prop_map(|(which, flies)| Move::Turn(which, flies)),
        6 => (any::<u8>(), 0..5u8).prop_map(|(which, how)| Move::End(which, how)),
        1 => any::<u8>().prop_map(Move::GiveWay),
        1 => any::<u8>().prop_map(Move::Lost),
        4 => (0..2000u16).prop_map(Move::Pass),
        1 => (0..u16::MAX).prop_map(Move::ClockBack),
        1 => Just(Move::Crash),
    ]
}

impl World {
    fn new() -> Self {
        let now = Time(1_000_000_000_000);
        Self {
            queue: Queue::new(limits(), [], 1, now),
            now,
            disk: BTreeMap::new(),
            disk_next_id: 1,
            running: BTreeMap::new(),
            finished: HashMap::new(),
        }
    }

    fn some_item(&self, which: u8) -> Option<Id> {
        let ids: Vec<_> = self.queue.items().map(|item| item.id).collect();
        (!ids.is_empty()).then(|| ids[which as usize % ids.len()])
    }

    fn some_run(&self, which: u8) -> Option<(Id, u64)> {
        let runs: Vec<_> = self.running.iter().map(|(id, (token, ..))| (*id, *token)).collect();
        (!runs.is_empty()).then(|| runs[which as usize % runs.len()])
    }

    fn make(&mut self, a_move: Move) {
        let event = match a_move {
            Move::Add { image, owner, class, priority, deadline, pin, version, retries } => {
                let now = self.now;
                Some(Event::Add(vec![wanted(image, owner, |spec| {
                    spec.class = Class::ALL[class as usize];
                    spec.priority = priority.into();
                    spec.deadline = deadline.map(|seconds| now.after(Duration::from_secs(seconds.into())));
                    spec.pin = [Pin::None, Pin::WithOwner, Pin::Seconds(500)][pin as usize];
                    spec.version = version.map(i64::from);
                    spec.retries = retries.into();
                    spec.timeout_seconds = 100;
                    if priority == 2 {
                        spec.policy = Policy::Always;
                    }
                })]))
            }
            Move::Remove(which) => self.some_item(which).map(Event::Remove),
            Move::Retry(which) => self.some_item(which).map(|id| {
                self.finished.remove(&id);
                Event::Retry(id)
            }),
            Move::Pause(paused) => Some(Event::Pause(paused)),
            Move::Turn(which, flies) => self.some_run(which).map(|(id, token)| {
                if let Some(run) = self.running.get_mut(&id) {
                    run.1 = flies;
                }
                Event::Turn(id, token, flies)
            }),
            Move::End(which, how) => self.some_run(which).map(|(id, token)| {
                let outcome = match how {
                    0 => done(false),
                    1 => done(true),
                    2 => Outcome::Later { reason: Reason::DiskPressure, message: "full".into() },
                    3 => failed(),
                    _ => {
                        Outcome::Failed { reason: Reason::Invalid, message: "never".into(), permanent: true }
                    }
                };
                self.running.remove(&id);
                Event::Ended(id, token, outcome)
            }),
            Move::GiveWay(which) => self.some_item(which).map(|id| Event::GiveWay(vec![id])),
            Move::Lost(which) => self.some_item(which).map(|id| {
                self.finished.remove(&id);
                Event::Lost(id)
            }),
            Move::Pass(seconds) => {
                self.pass(Duration::from_secs(seconds.into()));
                None
            }
            Move::ClockBack(seconds) => {
                self.now = Time(self.now.0.saturating_sub(u64::from(seconds) * 1000));
                Some(Event::Tick)
            }
            Move::Crash => {
                self.crash();
                None
            }
        };
        if let Some(event) = event {
            self.step(event);
        }
    }

    /// Time passes, and the queue is asked whenever it wants to be.
    fn pass(&mut self, mut left: Duration) {
        loop {
            let wait = self.queue.next_due().map_or(left, |due| due.since(self.now)).min(left);
            self.now = self.now.after(wait);
            for (_, flies, flown) in self.running.values_mut() {
                *flown += if *flies { wait } else { Duration::ZERO };
            }
            self.step(Event::Tick);
            left -= wait;
            if left.is_zero() {
                return;
            }
        }
    }

    fn step(&mut self, event: Event) {
        let by_hand = matches!(event, Event::Remove(_) | Event::Pause(_) | Event::Add(_));
        let step = self.queue.step(event, self.now);
        if let Answer::Added(added) = &step.answer {
            for (id, how) in added {
                if *how != Added::Unchanged {
                    self.finished.remove(id);
                }
            }
        }
        for action in &step.actions {
            match action {
                Action::Start(id, token) => {
                    let item = self.queue.get(*id).expect("started items are there");
                    assert_eq!(item.status.state, State::Pulling);
                    assert!(!self.finished.contains_key(id), "finished items are not started again");
                    let before = self.running.insert(*id, (*token, false, Duration::ZERO));
                    assert!(before.is_none(), "one attempt at a time");
                    assert!(!self.queue.is_paused());
                }
                Action::Stop(id, token) => {
                    let (stopped, _, flown) = self.running.remove(id).expect("only what runs is stopped");
                    assert_eq!(stopped, *token);
                    let item = self.queue.get(*id).filter(|_| !by_hand);
                    if item.is_some_and(|item| item.status.message.contains("longer than")) {
                        assert!(flown >= Duration::from_secs(100), "waiting does not count");
                    }
                }
                Action::Release(..) => {}
            }
        }
        for id in &step.changed {
            match self.queue.get(*id) {
                Some(item) => self.disk.insert(*id, item.clone()),
                None => self.disk.remove(id),
            };
        }
        self.disk_next_id = self.queue.next_id();
        self.note_finished();
        self.check();
    }

    fn note_finished(&mut self) {
        let items: HashMap<_, _> =
            self.queue.items().filter_map(|item| Some((item.id, item.status.finished?))).collect();
        self.finished.retain(|id, _| items.contains_key(id));
        self.finished.extend(items);
    }

    fn check(&self) {
        let queue = &self.queue;
        let runs: BTreeMap<_, _> = queue.runs.iter().map(|(id, run)| (*id, run.token)).collect();
        let running: BTreeMap<_, _> = self.running.iter().map(|(id, run)| (*id, run.0)).collect();
        assert_eq!(runs, running, "no slot leaks");
        for class in Class::ALL {
            assert!(queue.busy(class) <= 3 * SLOTS, "slots are bounded");
        }
        for (id, (_, flies, flown)) in &self.running {
            let timeout = Duration::from_secs(queue.get(*id).unwrap().spec.timeout_seconds);
            assert!(!flies || *flown < timeout, "an attempt ends when its time is up");
        }
        let live = queue.items.len() - queue.index.forgettable();
        assert!(live <= queue.limits.items && queue.index.forgettable() <= queue.limits.finished);
        assert_eq!(queue.items.len(), queue.keys.ids.len());
        assert_eq!(self.disk.keys().collect::<Vec<_>>(), queue.items.keys().collect::<Vec<_>>());
        for (id, item) in &self.disk {
            let now = queue.get(*id).unwrap();
            assert_eq!(item.is_finished(), now.is_finished(), "an end is written down");
            assert_eq!(item.status.kept, now.status.kept, "what is kept is written down");
            assert_eq!(item.spec, now.spec, "what is asked for is written down");
            assert_eq!(item.status.failed_attempts, now.status.failed_attempts);
        }
        if !queue.paused {
            let idle = Class::ALL.into_iter().find(|class| {
                let waits = queue.items().any(|item| {
                    item.status.state == State::Waiting
                        && item.status.until.is_none()
                        && item.spec.class == *class
                });
                waits && queue.busy(*class) < SLOTS
            });
            assert_eq!(idle, None, "nobody waits while there is room");
        }
    }

    /// The process dies; what is on disk is what the next one has.
    fn crash(&mut self) {
        self.running.clear();
        let paused = self.queue.is_paused();
        let items: Vec<_> = self.disk.values().cloned().collect();
        self.queue = Queue::new(limits(), items, self.disk_next_id, self.now);
        self.step(Event::Pause(paused));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_rules_hold(moves in proptest::collection::vec(moves(), 1..120)) {
        let mut world = World::new();
        for a_move in moves {
            world.make(a_move);
        }
        // From now on all goes well, and every item comes to its end.
        world.step(Event::Pause(false));
        for _ in 0..500 {
            match world.some_run(0) {
                Some((id, token)) => {
                    world.running.remove(&id);
                    world.step(Event::Ended(id, token, done(false)));
                }
                None if world.queue.items().all(Item::is_finished) => break,
                None => world.pass(Duration::from_secs(60)),
            }
        }
        prop_assert!(world.queue.items().all(Item::is_finished));
        for id in world.queue.items().map(|item| item.id).collect::<Vec<_>>() {
            world.step(Event::GiveWay(vec![id]));
        }
        world.pass(Duration::from_secs(2 * 3600));
        prop_assert_eq!(world.queue.items().len(), 0, "finished items are forgotten");
        prop_assert!(world.queue.index.next_due().is_none());
    }
}

#[test]
fn the_more_urgent_and_the_higher_number_go_first() {
    let mut world = World::new();
    world.step(Event::Pause(true));
    for (image, class, priority) in [
        (0, Class::Background, 9),
        (1, Class::Normal, 0),
        (2, Class::Background, 0),
        (3, Class::Normal, 5),
        (4, Class::Urgent, -5),
    ] {
        world.step(Event::Add(vec![wanted(image, 0, |spec| {
            spec.class = class;
            spec.priority = priority;
        })]));
    }
    let mut order = Vec::new();
    let step = world.queue.step(Event::Pause(false), world.now);
    let mut actions = step.actions;
    while !actions.is_empty() {
        let starts: Vec<_> = actions
            .drain(..)
            .filter_map(|action| match action {
                Action::Start(id, token) => Some((id, token)),
                _ => None,
            })
            .collect();
        for (id, token) in starts {
            order.push(world.queue.get(id).unwrap().spec.image.clone());
            actions.extend(world.queue.step(Event::Ended(id, token, done(false)), world.now).actions);
        }
    }
    assert_eq!(order, ["i4", "i3", "i1", "i0", "i2"]);
}

/// Within a class a steady stream of higher numbers must not keep a lower one waiting for ever.
#[test]
fn nobody_starves_behind_higher_numbers() {
    let mut world = World::new();
    world.step(Event::Add(vec![
        wanted(0, 0, |spec| spec.priority = 100),
        wanted(1, 0, |spec| spec.priority = 100),
    ]));
    world.step(Event::Add(vec![wanted(2, 0, |_| ())]));
    for round in 0..20 {
        world.now = world.now.after(Duration::from_secs(1));
        if world.queue.items().any(|item| item.spec.image == "i2" && item.status.state == State::Pulling) {
            return;
        }
        world.step(Event::Add(vec![wanted(10 + round, 0, |spec| spec.priority = 100)]));
        let (id, token) = world.some_run(0).unwrap();
        world.running.remove(&id);
        world.step(Event::Ended(id, token, done(false)));
    }
    panic!("the item with the low number has never started");
}

#[test]
fn several_owners_of_an_image_share_a_slot_and_keep_their_own_ends() {
    let mut world = World::new();
    for owner in 0..3 {
        world.step(Event::Add(vec![wanted(0, owner, |spec| spec.retries = owner.into())]));
    }
    world.step(Event::Add(vec![wanted(1, 0, |_| ())]));
    assert_eq!(world.running.len(), 4, "one slot for three owners, one for the other image");
    let runs: Vec<_> = world.running.iter().map(|(id, run)| (*id, run.0)).collect();
    for (id, token) in &runs[..3] {
        world.running.remove(id);
        world.step(Event::Ended(*id, *token, failed()));
    }
    let states: Vec<_> = world.queue.items().map(|item| (item.status.state, item.status.reason)).collect();
    assert_eq!(states[0], (State::Failed, Reason::NotFound));
    assert_eq!(states[1], (State::Waiting, Reason::Backoff));
    world.step(Event::Remove(runs[0].0));
    assert_eq!(world.queue.items().len(), 3);
}

#[test]
fn the_same_wish_twice_does_nothing_and_a_later_one_starts_again() {
    let mut world = World::new();
    let wish = |version| vec![wanted(0, 0, |spec| spec.version = Some(version))];
    let add = |world: &mut World, version| match world.queue.step(Event::Add(wish(version)), world.now).answer
    {
        Answer::Added(added) => added[0].1,
        answer => panic!("{answer:?}"),
    };
    world.step(Event::Add(wish(1)));
    assert_eq!(add(&mut world, 1), Added::Unchanged);
    let (id, token) = world.some_run(0).unwrap();
    world.running.remove(&id);
    world.step(Event::Ended(id, token, done(false)));
    assert_eq!(add(&mut world, 1), Added::Unchanged, "a finished item is not started again");
    assert_eq!(add(&mut world, 2), Added::Restarted);
}

#[test]
fn a_full_queue_refuses_all_of_a_batch() {
    let mut queue = Queue::new(limits(), [], 1, Time(0));
    let many = (0..31).map(|image| wanted(image, 0, |_| ())).collect();
    assert_eq!(queue.step(Event::Add(many), Time(0)).answer, Answer::Full);
    assert_eq!(queue.items().len(), 0);
    let many = (0..30).map(|image| wanted(image, 0, |_| ())).collect();
    assert!(
        matches!(queue.step(Event::Add(many), Time(0)).answer, Answer::Added(added) if added.len() == 30)
    );
    // What is known is no more.
    let answer = queue.step(Event::Add(vec![wanted(3, 0, |_| ())]), Time(0)).answer;
    assert_eq!(answer, Answer::Added(vec![(4, Added::Unchanged)]));
}

#[test]
fn a_private_item_is_tried_again_with_its_secrets() {
    let mut world = World::new();
    let secret = crate::prepull::secret::Credential::password("docker.io", "u", "p").unwrap();
    world.step(Event::Add(vec![wanted(0, 0, |spec| spec.secrets = vec![secret.clone()])]));
    let (id, token) = world.some_run(0).unwrap();
    world.running.remove(&id);
    world.step(Event::Ended(id, token, done(false)));
    world.queue.step(Event::Retry(id), world.now);
    assert_eq!(world.queue.get(id).unwrap().spec.secrets, [secret]);
}

/// What is written down of items that are gone.
fn traces(queue: &Queue) -> Vec<Id> {
    queue.traces().map(|(id, _)| id).collect()
}

#[test]
fn what_may_be_seen_is_noted_until_it_is_gone_whatever_becomes_of_its_item() {
    let mut world = World::new();
    world.step(Event::Add(vec![wanted(0, 0, |_| ())]));
    let (id, token) = world.some_run(0).unwrap();
    let trace = Trace { source: "docker.io/library/i0:latest".into(), since: Time(5) };
    let exposed = world.queue.step(Event::Exposes(id, token, trace.clone()), world.now);
    assert_eq!((exposed.answer, exposed.changed.contains(&id)), (Answer::Done, true));

    // A crash: it is there still, and one of this process has a word of its own.
    let items: Vec<_> = world.queue.items().cloned().collect();
    let mut queue = Queue::new(limits(), items, 1, world.now);
    let started = queue.step(Event::Tick, world.now).actions;
    let Some(Action::Start(_, later)) = started.first() else { panic!("{started:?}") };
    let mut other = Trace { since: Time(7), ..trace.clone() };
    queue.step(Event::Exposes(id, *later, other.clone()), world.now);
    assert_eq!(queue.step(Event::Cleaned(id, 0), world.now).actions, []);
    assert_eq!(traces(&queue), [id], "what the earlier one left is gone, and the later one has begun");
    assert_eq!(
        queue.traces().next().unwrap().1.since,
        Time(5),
        "nobody knows which of them has left something"
    );
    queue.step(Event::Ended(id, *later, failed()), world.now);
    assert_eq!(traces(&queue), [id], "an end does not say that nothing was left");
    assert!(queue.step(Event::Cleaned(id, *later), world.now).changed.contains(&id));
    assert!(traces(&queue).is_empty());

    // Its item is removed while it can be seen.
    world.step(Event::Remove(id));
    assert_eq!((world.queue.trace(id), traces(&world.queue)), (Some(&trace), vec![id]));
    other.source = "docker.io/library/i1:latest".into();
    let late = world.queue.step(Event::Exposes(id, token, other), world.now);
    assert_eq!(late.answer, Answer::Unknown, "nothing is brought for an item that is gone");
    assert!(world.queue.step(Event::Cleaned(id, token), world.now).changed.contains(&id));
    assert!(traces(&world.queue).is_empty());

    // Somebody has only looked.
    let looks = world.queue.step(Event::Looks(trace), world.now);
    let Answer::Noted(note) = looks.answer else { panic!("{looks:?}") };
    assert!(note > id && looks.changed.contains(&note) && world.queue.get(note).is_none());
    assert!(world.queue.step(Event::Cleaned(note, 0), world.now).changed.contains(&note));
    assert!(traces(&world.queue).is_empty());
}

/// Broke: an item that was cancelled while its image was being parked left it parked until the keeper's next look, a
/// minute later.
#[test]
fn what_was_parked_for_nobody_is_given_up() {
    let exposing = || {
        let mut world = World::new();
        world.step(Event::Add(vec![wanted(0, 0, |_| ())]));
        let (id, token) = world.some_run(0).unwrap();
        let trace = Trace { source: "docker.io/library/i0:latest".into(), since: Time(5) };
        world.queue.step(Event::Exposes(id, token, trace), world.now);
        (world.queue, id, token, world.now)
    };
    let (mut queue, id, token, now) = exposing();
    let step = queue.step(Event::Cleaned(id, token), now);
    assert_eq!(step.actions, [], "its end has not come yet, or the next attempt profits from it");

    let (mut queue, id, token, now) = exposing();
    assert_eq!(queue.step(Event::Remove(id), now).actions, [Action::Stop(id, token)]);
    assert_eq!(queue.step(Event::Cleaned(id, token), now).actions, [Action::Release(id, How::Parked)]);
    assert_eq!(queue.step(Event::Cleaned(id, token), now).actions, [], "once");
}

/// Broke: an item that was being pulled for everybody went on so when its owner wanted it private, and an item that was
/// asked for anew lost its time.
#[test]
fn a_wish_that_changes_is_followed_at_once() {
    use crate::prepull::spec::Visibility;
    let mut world = World::new();
    world.step(Event::Add(vec![wanted(0, 0, |spec| spec.visibility = Some(Visibility::Shared))]));
    let (id, token) = world.some_run(0).unwrap();
    let step = world
        .queue
        .step(Event::Add(vec![wanted(0, 0, |spec| spec.visibility = Some(Visibility::Private))]), world.now);
    assert!(step.actions.contains(&Action::Stop(id, token)), "{step:?}");

    let later = world.now.after(Duration::from_secs(3600));
    let mut queue = Queue::new(limits(), [], 1, world.now);
    for policy in [Policy::IfNotPresent, Policy::Always] {
        let wish = wanted(1, 0, |spec| (spec.policy, spec.not_before) = (policy, Some(later)));
        let step = queue.step(Event::Add(vec![wish]), world.now);
        assert_eq!(step.actions, [], "its time has not come");
        assert_eq!(queue.get(1).unwrap().status.reason, Reason::NotBefore);
    }
}
