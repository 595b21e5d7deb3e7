//! The queue under `kill -9`: random operations, a kill at a random instant, and after each start the queue is what it
//! has answered. A few rounds by default; `CRISP_CRASH_ROUNDS` sets how many, `CRISP_CRASH_SEED` repeats a run.

mod checks;
mod images;
mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crisp::admin::client::{self, ClientError};
use crisp::admin::prepull::Taken;
use crisp::containerd::Containerd;
use crisp::prepull::view::Listed;
use crisp::prepull::{Item, Spec};
use k8s_cri::v1::{AuthConfig, ImageSpec, PullImageRequest, RemoveImageRequest};
use serde_json::{Value, json};

use self::images::{Bytes, Images, Kind};
use self::model::{Asked, Key, Model};
use crate::lab::client::Cri;
use crate::lab::crisp::Crisp;
use crate::lab::node::{Kind as NodeKind, Node};
use crate::lab::parts;
use crate::random::Random;

/// How long anything may take on a busy machine before the test gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Rounds in CI.
const ROUNDS: usize = 16;

/// After so many rounds everything is let finish and is removed.
const EPOCH: usize = 32;

/// Items that are not finished, as far as is known; more are not added.
const BUSY: usize = 14;

const OWNERS: [&str; 3] = ["cli", "team-a/job", "nodeimage/web"];

/// The moment of the kill.
#[derive(Clone, Copy, Debug)]
enum When {
    /// While random operations go on.
    Anytime,
    /// While crisp starts.
    Starting,
    /// A moment after many items were sent.
    Adding,
    /// When a private image can be seen.
    Exposed,
    /// When an item has just finished.
    Finished,
    /// A moment after the removal of an item that is being pulled.
    Removing,
}

struct Lab {
    random: Random,
    node: Node,
    containerd: Containerd,
    /// The runtime itself, without crisp.
    direct: Cri,
    crisp: Crisp,
    images: Images,
    model: Model,
    /// Records that others have brought.
    foreign: BTreeSet<String>,
    /// How many requests there were when an image was known to be finished.
    quiet: BTreeMap<usize, [usize; 2]>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_survives_kill_9_at_any_instant() {
    if let Some(reason) = parts::missing_for_node() {
        return parts::skip("node: the queue under kill -9", &reason);
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let rounds = number("CRISP_CRASH_ROUNDS").map_or(ROUNDS, |rounds| rounds as usize);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
    let seed = number("CRISP_CRASH_SEED").unwrap_or(u64::from(now.subsec_nanos()));
    // Printed if the test fails.
    println!("CRISP_CRASH_SEED={seed}");
    let began = Instant::now();
    let mut lab = Lab::new(seed).await;
    let (mut left, mut bytes) = (rounds, Bytes::default());
    while left > 0 {
        let some = left.min(EPOCH);
        for round in 0..some {
            lab.round(rounds - left + round).await;
        }
        left -= some;
        let of_epoch = lab.end_epoch().await;
        bytes.sent += of_epoch.sent;
        bytes.needed += of_epoch.needed;
        let share = bytes.sent as f64 / bytes.needed as f64;
        println!(
            "{} rounds in {:.0} s: {} bytes sent for {}, {share:.4} (the last {some}: {} for {})",
            rounds - left,
            began.elapsed().as_secs_f64(),
            bytes.sent,
            bytes.needed,
            of_epoch.sent,
            of_epoch.needed
        );
        assert!(of_epoch.twice.is_empty(), "not resumed where they were cut off: {:#?}", of_epoch.twice);
        // What is on its way when a process is killed is lost, and weighs more in a few rounds.
        let limit = if left == 0 && rounds >= 10 * ROUNDS { 1.01 } else { 1.05 };
        assert!(share <= limit, "bytes were sent twice");
        if left > 0 {
            lab.begin_epoch(left).await;
        }
    }
}

// === impl Lab ===

impl Lab {
    async fn new(seed: u64) -> Self {
        let mut random = Random::seeded(seed);
        let mut node = NodeKind::MachineContainerd.start();
        let images = Images::new("epoch".to_owned(), &mut random).await;
        images.hosts().iter().for_each(|host| node.trust(host));
        let crisp = Crisp::start_with(&node.endpoint(), &options("1h"));
        Self {
            random,
            containerd: Containerd::new(node.socket()),
            direct: Cri::new(node.socket()),
            node,
            crisp,
            images,
            model: Model::default(),
            foreign: BTreeSet::new(),
            quiet: BTreeMap::new(),
        }
    }

    /// Forgets all images.
    async fn begin_epoch(&mut self, number: usize) {
        self.images = Images::new(format!("epoch-{number}"), &mut self.random).await;
        let node = &mut self.node;
        self.images.hosts().iter().for_each(|host| node.trust(host));
        self.foreign.clear();
        self.quiet.clear();
    }

    /// Lets everything finish, and removes it. Gives the bytes that were sent.
    async fn end_epoch(&mut self) -> Bytes {
        self.check_start().await;
        self.drains().await;
        let bytes = self.images.bytes();
        let keys: Vec<Key> = self.model.items.keys().cloned().collect();
        let (some, rest) = keys.split_at(keys.len() / 2);
        for key in some {
            self.ask_remove(key.clone()).await;
        }
        self.model.open = Some(Asked::Remove(rest.to_vec()));
        client::delete::<Value>(&self.crisp.admin, "/v1/prepull?all=true").await.expect("all are removed");
        self.model.done();
        self.nothing_is_left().await;
        for image in &self.images.all {
            let spec = Some(ImageSpec { image: image.id.clone(), ..ImageSpec::default() });
            let request = RemoveImageRequest { image: spec };
            self.direct.images.clone().remove_image(request).await.expect("RemoveImage");
        }
        bytes
    }

    /// One round, from a crisp that runs to one that runs again.
    async fn round(&mut self, number: usize) {
        let when = match self.random.below(12) {
            0..5 => When::Anytime,
            5 => When::Starting,
            6 | 7 => When::Adding,
            8 => When::Exposed,
            9 | 10 => When::Finished,
            _ => When::Removing,
        };
        println!("round {number}: {when:?}, {} items", self.model.items.len());
        self.check_start().await;
        // So that there is always something to pull.
        if self.busy() < BUSY / 2 {
            let specs = self.new_images().await;
            self.ask_add(specs).await;
        }
        if self.model.paused && self.random.below(3) > 0 {
            self.ask_pause(false).await;
        }
        match when {
            When::Anytime => {
                self.until_killed(|lab| Duration::from_micros(lab.random.next() % 1_600_000)).await
            }
            When::Starting => {
                self.crisp.kill();
                self.crisp.spawn();
                let wait = Duration::from_micros(self.random.next() % 200_000);
                tokio::time::sleep(wait).await;
            }
            When::Adding => {
                self.let_it_run().await;
                let specs = self.many();
                let wait = Duration::from_micros(self.random.next() % 12_000);
                // The answer may come or not.
                let _ = tokio::time::timeout(wait, self.ask_add(specs)).await;
            }
            When::Exposed => self.until_exposed().await,
            When::Finished => self.until_one_finishes().await,
            When::Removing => {
                self.let_it_run().await;
                if let Some(key) = self.removable() {
                    let wait = Duration::from_micros(self.random.next() % 8_000);
                    let _ = tokio::time::timeout(wait, self.ask_remove(key)).await;
                }
            }
        }
        self.crisp.kill();
        self.crisp.restart();
    }

    /// Looks at everything that a start has to bring back.
    async fn check_start(&mut self) {
        until("the queue answers", PATIENCE, async || self.try_list().await.is_some()).await;
        // What is in doubt is looked at before the rest, and what is in the list is the same or more.
        let mut items = BTreeMap::new();
        let listed = self.list().await;
        for key in self.model.touched() {
            let there = listed.items.iter().find(|item| (&item.owner, &item.image) == (&key.0, &key.1));
            if let Some(summary) = there {
                items.insert(key, self.item(summary.id).await);
            }
        }
        self.model.settle(&listed, &items);
        self.finished_is_quiet();
        let keys: Vec<Key> = self.model.items.keys().cloned().collect();
        for _ in 0..keys.len().min(5) {
            let key = &keys[self.random.below(keys.len())];
            let item = self.item(self.model.items[key].id).await;
            self.model.check_item(key, &item);
        }
        self.private_is_hidden().await;
    }

    /// Operations until a random moment.
    async fn until_killed(&mut self, wait: impl FnOnce(&mut Self) -> Duration) {
        let wait = wait(self);
        let operations = async {
            loop {
                self.operate().await;
            }
        };
        // It never ends by itself.
        let _ = tokio::time::timeout(wait, operations).await;
    }

    /// A while in which bytes come.
    async fn let_it_run(&mut self) {
        let wait = Duration::from_millis(self.random.next() % 800);
        tokio::time::sleep(wait).await;
    }

    async fn operate(&mut self) {
        match self.random.below(16) {
            0..4 => {
                let specs = self.new_images().await;
                if !specs.is_empty() {
                    self.ask_add(specs).await;
                }
            }
            4 | 5 => {
                if let Some(spec) = self.again() {
                    self.ask_add(vec![spec]).await;
                }
            }
            6 | 7 => {
                if let Some(key) = self.removable() {
                    self.ask_remove(key).await;
                }
            }
            8 => {
                if let Some(key) = self.any() {
                    self.ask_retry(key).await;
                }
            }
            9 => self.ask_pause(true).await,
            10..13 => self.ask_pause(false).await,
            _ => {
                let listed = self.list().await;
                self.model.check(&listed);
                let wait = Duration::from_millis(self.random.next() % 200);
                tokio::time::sleep(wait).await;
            }
        }
    }

    /// Returns when a private image can be seen that crisp is pulling, or after a while.
    async fn until_exposed(&mut self) {
        let specs = self.new_images().await;
        if !specs.is_empty() {
            self.ask_add(specs).await;
        }
        self.ask_pause(false).await;
        let seen = async {
            loop {
                let records = self.containerd.images().await.expect("images");
                let private = self.images.all.iter().filter(|image| image.kind == Kind::Private);
                let targets: BTreeSet<&String> = private.map(|image| &image.target).collect();
                if records.iter().any(|record| targets.contains(&record.target.digest)) {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), seen).await;
    }

    async fn until_one_finishes(&mut self) {
        self.ask_pause(false).await;
        let finished = |model: &Model| model.items.values().filter(|held| held.finished.is_some()).count();
        let before = finished(&self.model);
        let one = async {
            while finished(&self.model) == before {
                let listed = self.list().await;
                self.model.check(&listed);
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), one).await;
    }

    /// Wishes for new images, some of them by several owners.
    async fn new_images(&mut self) -> Vec<Value> {
        let room = BUSY.saturating_sub(self.busy());
        let mut specs = Vec::new();
        for _ in 0..(1 + self.random.below(3)).min(room) {
            let image = self.images.make(&mut self.random);
            if self.images.all[image].kind == Kind::Foreign {
                self.images.all[image].retired = true;
                self.bring(image).await;
                self.images.all[image].retired = false;
            }
            specs.extend(self.wishes(image));
        }
        specs
    }

    /// How many items are not finished, as far as is known.
    fn busy(&self) -> usize {
        self.model.items.values().filter(|held| held.finished.is_none()).count()
    }

    fn wishes(&mut self, image: usize) -> Vec<Value> {
        let count = 1 + self.random.below(5) / 2;
        OWNERS[..count].iter().map(|owner| self.images.spec(image, owner, &mut self.random)).collect()
    }

    /// Many wishes at once, for images that there are and new ones.
    fn many(&mut self) -> Vec<Value> {
        let mut specs = Vec::new();
        for number in 0..=self.random.below(60) {
            // What does not exist is finished at once, so that it costs nothing later on.
            let [_, closed] = self.images.hosts();
            let image = format!("{closed}/nothing/at-all-{number}:v1");
            specs.push(
                json!({ "image": image, "owner": "many", "retries": 0, "priority": self.random.below(9) }),
            );
        }
        specs.extend(self.again());
        specs
    }

    /// A wish of an owner who has one for that image already.
    fn again(&mut self) -> Option<Value> {
        let (owner, name) = self.any()?;
        let image = self.images.all.iter().position(|image| image.name == name)?;
        Some(self.images.spec(image, &owner, &mut self.random))
    }

    fn any(&mut self) -> Option<Key> {
        let keys: Vec<&Key> = self.model.items.keys().collect();
        (!keys.is_empty()).then(|| keys[self.random.below(keys.len())].clone())
    }

    /// An item that may go without costing bytes later on.
    fn removable(&mut self) -> Option<Key> {
        let key = self.any()?;
        let items: Vec<&Key> = self.model.items.keys().filter(|other| other.1 == key.1).collect();
        let finished = items.iter().all(|key| self.model.is_finished(key));
        if let Some(image) = self.images.all.iter_mut().find(|image| image.name == key.1) {
            if image.kind == Kind::Private && !finished && items.len() > 1 {
                return None;
            }
            image.retired |= !finished || image.kind == Kind::Private;
        }
        Some(key)
    }

    /// Somebody else pulls an image, directly.
    async fn bring(&mut self, image: usize) {
        let image = &self.images.all[image];
        let request = PullImageRequest {
            image: Some(ImageSpec { image: image.name.clone(), ..ImageSpec::default() }),
            auth: Some(AuthConfig {
                username: images::USER.to_owned(),
                password: images::PASSWORD.to_owned(),
                ..AuthConfig::default()
            }),
            sandbox_config: None,
        };
        self.direct.images.clone().pull_image(request).await.expect("a pull without crisp");
        let records = self.containerd.images().await.expect("images");
        let of_image = records.into_iter().filter(|record| record.target.digest == image.target);
        self.foreign.extend(of_image.map(|record| record.name));
    }
}

// === impl Lab: the admin API ===

impl Lab {
    async fn try_list(&self) -> Option<Listed> {
        client::get(&self.crisp.admin, "/v1/prepull").await.ok()
    }

    async fn list(&self) -> Listed {
        client::get(&self.crisp.admin, "/v1/prepull").await.expect("a list")
    }

    async fn item(&self, id: u64) -> Item {
        client::get(&self.crisp.admin, &format!("/v1/prepull/{id}")).await.expect("an item")
    }

    async fn ask_add(&mut self, specs: Vec<Value>) {
        let asked = specs.iter().map(|spec| {
            let mut spec: Spec = serde_json::from_value(spec.clone()).expect("a spec");
            spec.secrets.clear();
            spec
        });
        let asked: Vec<Spec> = asked.collect();
        asked.iter().for_each(|spec| self.disturb(&spec.image));
        self.model.open = Some(Asked::Add(asked));
        let body = json!({ "items": specs }).to_string();
        let taken: Taken = self.post("/v1/prepull", body).await;
        self.model.added(&taken);
    }

    async fn ask_remove(&mut self, key: Key) {
        let path = format!("/v1/prepull/{}", self.model.items[&key].id);
        self.model.open = Some(Asked::Remove(vec![key]));
        client::delete::<Value>(&self.crisp.admin, &path).await.expect("removed");
        self.model.done();
    }

    async fn ask_retry(&mut self, key: Key) {
        let path = format!("/v1/prepull/{}/retry", self.model.items[&key].id);
        self.disturb(&key.1);
        self.model.open = Some(Asked::Retry(key));
        self.post::<Value>(&path, String::new()).await;
        self.model.done();
    }

    async fn ask_pause(&mut self, paused: bool) {
        self.model.open = Some(Asked::Pause(paused));
        let path = if paused { "/v1/prepull/pause" } else { "/v1/prepull/resume" };
        self.post::<Value>(path, String::new()).await;
        self.model.done();
    }

    async fn post<T: serde::de::DeserializeOwned>(&self, path: &str, body: String) -> T {
        let answer: Result<T, ClientError> = client::post(&self.crisp.admin, path, body, PATIENCE).await;
        answer.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// An image may be asked for at its registry from now on.
    fn disturb(&mut self, name: &str) {
        if let Some(image) = self.images.all.iter().position(|image| image.name == name) {
            self.quiet.remove(&image);
        }
    }
}

/// How crisp is started.
fn options(keep_partial: &str) -> [&str; 12] {
    [
        "--log-level",
        "crisp=debug,info",
        "--pull-max-background",
        "3",
        "--pull-keep-partial",
        keep_partial,
        // How full the machine's disk is must not matter.
        "--prepull-disk-floor-percent",
        "0%",
        "--prepull-disk-floor-bytes",
        "0B",
        "--prepull-pin-floor",
        "0%",
    ]
}

/// Asks again and again until something holds.
async fn until(what: &str, patience: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < patience, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
