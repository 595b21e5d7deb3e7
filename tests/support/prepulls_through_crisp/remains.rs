//! What is left of pulls that were given up, by hand or by a crash, and of those that were only tried.

use std::time::{Duration, Instant};

use crisp::admin::client::{self, PATIENCE_TO_DO};
use crisp::admin::prepull::Tried;
use crisp::prepull::item::{How, Reason, State};
use serde_json::{Value, json};

use super::tenancy::LOGIN;
use super::{Lab, bytes_of, item, pull, pulled, requests, sent, small, until};
use crate::registry::ImageBuilder;

const MIB: usize = 1 << 20;

/// How long crisp looks for what a cancelled pull may still bring.
const AFTERMATH: Duration = Duration::from_secs(2);

impl Lab {
    pub(super) async fn cancelling_ends_a_pull_at_once(&mut self) {
        let image = ImageBuilder::default().noise(3 * MIB, 400).noise(3 * MIB, 401).build();
        let name = self.open.push("cancelled:1", &image);
        self.open.throttle(Some(MIB as u64));
        let id = self.ask(&name, json!({})).await;
        until("bytes come", async || sent(&self.open, "cancelled") > MIB as u64 / 4).await;
        let began = Instant::now();
        self.cancel(id).await;
        let all_over =
            async || requests(&self.open, "cancelled").iter().all(|seen| seen.over || seen.sent == 0);
        until("all connections are closed", all_over).await;
        let took = began.elapsed();
        self.open.throttle(None);
        let share = sent(&self.open, "cancelled") as f64 / bytes_of(&image) as f64;
        assert!(share < 0.9, "{share} of the image came");
        assert_eq!(self.crisp.pulls().await, []);
        self.is_nowhere(&name, &image).await;
        self.tell(&format!(
            "cancelled while it was being pulled: all connections closed after {:.2} s, {share:.2} of the image sent",
            took.as_secs_f64()
        ));
    }

    pub(super) async fn a_private_pull_that_is_cancelled_leaves_nothing(&mut self) {
        let image = ImageBuilder::default().noise(MIB, 410).noise(1000, 411).build();
        let name = self.private.push("given-up:1", &image);
        let mut hold = self.private.hold("/given-up/blobs/");
        let id = self.ask(&name, json!({ "secrets": self.secrets() })).await;
        hold.reached(1).await;
        self.cancel(id).await;
        drop(hold);
        self.private.behave();
        until("no pull is left", async || self.crisp.pulls().await.is_empty()).await;
        self.is_nowhere(&name, &image).await;
        // As late as can be: everything is there when it is cancelled. The runtime may not notice at once.
        let mut late = Vec::new();
        for seed in 412..415 {
            let image = small(seed * 1000);
            let name = self.private.push(&format!("late-{seed}:1"), &image);
            let id = self.ask(&name, json!({ "secrets": self.secrets() })).await;
            let last = async || sent(&self.private, &format!("late-{seed}")) == bytes_of(&image);
            until("all bytes are there", last).await;
            self.cancel(id).await;
            late.push((name, image, Instant::now()));
        }
        for (name, image, since) in late {
            until("crisp has looked twice", async || since.elapsed() > AFTERMATH).await;
            self.until_nowhere(&name, &image).await;
            until("nothing is kept", async || self.parked(&name).await == 0).await;
        }
        self.tell("a private pull cancelled in the middle, and 3 cancelled at their end: nothing in sight, nothing parked");
    }

    pub(super) async fn a_crash_after_a_private_pull_leaves_nothing(&mut self) {
        let image = small(420);
        let name = self.private.push("crash:1", &image);
        let mut hold = self.private.hold("/crash/blobs/");
        let id = self.ask(&name, json!({ "secrets": self.secrets() })).await;
        hold.reached(1).await;
        // The pull comes to its end while crisp cannot do anything about it.
        self.crisp.freeze();
        drop(hold);
        self.private.behave();
        until("the runtime has it", async || self.direct.image(&name).await.is_some()).await;
        self.crisp.kill();
        assert!(self.direct.image(&image.id).await.is_some(), "nobody has tidied up");
        self.crisp.restart();
        let began = Instant::now();
        self.never_seen_until_parked(id, &name, &image).await;
        self.until_nowhere(&name, &image).await;
        let took = began.elapsed().as_secs_f64();
        assert_eq!(self.parked(&name).await, 1);
        assert_eq!(sent(&self.private, "crash"), bytes_of(&image), "nothing came twice");

        // The same at whatever moment.
        for round in 0..4_u64 {
            let image = small(430 + 2 * round);
            let repository = format!("crash-{round}");
            let name = self.private.push(&format!("{repository}:1"), &image);
            let id = self.ask(&name, json!({ "secrets": self.secrets() })).await;
            let bytes = bytes_of(&image) * round / 3;
            until("so much is there", async || sent(&self.private, &repository) >= bytes).await;
            self.crisp.kill();
            self.crisp.restart();
            let item = self.never_seen_until_parked(id, &name, &image).await;
            assert_eq!(item.status.kept.as_ref().map(|kept| kept.how), Some(How::Parked), "{item:#?}");
            self.until_nowhere(&name, &image).await;
        }
        // In order, and nobody comes after it.
        let image = small(440);
        let name = self.private.push("ended:1", &image);
        let id = self.ask(&name, json!({ "secrets": self.secrets() })).await;
        until("all bytes are there", async || sent(&self.private, "ended") == bytes_of(&image)).await;
        self.crisp.stop();
        self.is_not_at("the runtime alone", &self.direct, &name, &image).await;
        self.crisp.restart();
        self.never_seen_until_parked(id, &name, &image).await;
        self.tell(&format!(
            "killed when a private pull was over, and at 4 other moments: never seen through crisp, parked {took:.1} s \
             after the start; ended in order at such a moment: nothing in sight without crisp"
        ));
    }

    /// What a kubelet has brought is not taken for what crisp's own pull has left.
    pub(super) async fn a_crash_costs_nobody_an_image(&mut self) {
        let image = small(450);
        let name = self.private.push("theirs:1", &image);
        pulled(pull(&self.cri, &name, LOGIN)).await;
        let more = json!({ "secrets": self.secrets(), "policy": "Always" });
        let id = self.ask(&name, more).await;
        self.crisp.kill();
        self.is_not_lost(&name).await;
        self.crisp.restart();
        let item = self.success_of(id).await;
        assert_eq!(item.status.kept, None, "{item:#?}");
        self.is_seen(&name, &image).await;
        self.tell(
            "killed while a private item looked after an image that a pod had brought: it is still in sight",
        );
    }

    /// The same without a crash: an attempt that was stopped leaves no word that makes the next one remove too much.
    pub(super) async fn a_pause_costs_nobody_an_image(&mut self) {
        let image = small(454);
        let name = self.private.push("paused:1", &image);
        let mut hold = self.private.hold("/paused/blobs/");
        let id = self.ask(&name, json!({ "secrets": self.secrets() })).await;
        hold.reached(1).await;
        self.pause(true).await;
        drop(hold);
        self.private.behave();
        self.until_item(id, "waits", |item| item.status.state == State::Waiting).await;
        self.until_item(id, "has nothing to tidy up", |item| item.status.exposed.is_none()).await;
        pulled(pull(&self.cri, &name, LOGIN)).await;
        self.pause(false).await;
        assert_eq!(self.success_of(id).await.status.reason, Reason::Present);
        self.is_seen(&name, &image).await;
    }

    async fn pause(&self, paused: bool) {
        let path = format!("/v1/prepull/{}", if paused { "pause" } else { "resume" });
        client::post::<Value>(&self.crisp.admin, &path, "", PATIENCE_TO_DO).await.expect("done");
    }

    /// The runtime goes away when the image has just become visible, and nobody can remove it.
    pub(super) async fn an_outage_of_the_runtime_leaves_nothing(&mut self) {
        let image = small(456);
        let name = self.private.push("outage:1", &image);
        let mut hold = self.private.hold("/outage/blobs/");
        let id = self.ask(&name, json!({ "secrets": self.secrets() })).await;
        hold.reached(1).await;
        self.crisp.freeze();
        drop(hold);
        self.private.behave();
        until("the runtime has it", async || self.direct.image(&name).await.is_some()).await;
        self.node.kill();
        self.crisp.thaw();
        let item = self
            .until_item(id, "waits for the runtime", |item| item.status.reason == Reason::RuntimeAway)
            .await;
        assert!(item.status.exposed.is_some(), "{item:#?}");
        self.node.restart();
        assert!(self.direct.image(&name).await.is_some(), "nobody has tidied up");
        self.retry(id).await;
        let item = self.success_of(id).await;
        assert_eq!(item.status.kept.as_ref().map(|kept| kept.how), Some(How::Parked), "{item:#?}");
        self.is_nowhere(&name, &image).await;
        self.tell(
            "the runtime died when a private pull was over: waits for it, then removes what is in sight",
        );
    }

    async fn is_not_lost(&self, name: &str) {
        assert!(self.direct.image(name).await.is_some(), "{name}");
    }

    /// How many leases keep a parked image.
    async fn parked(&self, name: &str) -> usize {
        let containerd = self.containerd.as_ref().expect("containerd");
        let leases = containerd.parked_leases().await.expect("list");
        leases.iter().filter(|lease| lease.labels["crisp.dev/image"] == name).count()
    }

    pub(super) async fn a_dry_run_leaves_nothing(&mut self) {
        let base = ImageBuilder::default().noise(MIB, 460);
        let there = base.clone().build();
        let missing = ImageBuilder::default().share(&base, 0).noise(2 * MIB, 461).build();
        let there_name = self.open.push("dry-there:1", &there);
        let missing_name = self.open.push("dry-missing:1", &missing);
        let nothing = format!("{}/dry-nothing:1", self.open.host());
        let id = self.ask(&there_name, json!({})).await;
        self.success_of(id).await;
        self.open.throttle(Some(MIB as u64));
        let wanted: Vec<Value> =
            [&there_name, &missing_name, &nothing].iter().map(|image| item(image, &json!({}))).collect();
        let body = json!({ "items": wanted }).to_string();
        let path = "/v1/prepull?dryRun=true";
        let tried = client::post::<Tried>(&self.crisp.admin, path, body, PATIENCE_TO_DO).await;
        self.open.throttle(None);
        let [first, second, third] = tried.expect("an answer").items.try_into().expect("three answers");
        assert!(first.present && first.bytes_missing == Some(0), "{first:?}");
        assert!(!second.present && !third.present, "{second:?} {third:?}");
        let (total, lacking) = (second.bytes_total, second.bytes_missing);
        if self.containerd.is_some() {
            let sizes: Vec<u64> = missing.blobs.iter().map(|(_, data)| data.len() as u64).collect();
            let [shared, own, _] = sizes[..] else { panic!("two layers and a config") };
            assert_eq!(total, Some(shared + own), "{second:?}");
            // A little of it may have come before it was stopped.
            let lacking = lacking.expect("known");
            assert!(lacking <= own && lacking > own / 2, "{second:?}");
            assert!(third.note.contains("not found"), "{third:?}");
            assert!(sent(&self.open, "dry-missing") < MIB as u64);
        } else {
            assert_eq!((total, lacking), (None, None));
            assert!(second.note.contains("does not tell"), "{second:?}");
        }
        self.until_nowhere(&missing_name, &missing).await;
        let listed = self.crisp.ask_admin("/v1/prepull").await;
        assert!(!listed.contains("dry-missing"), "no item is left: {listed}");
        let reason = self.item(id).await.status.reason;
        assert_eq!(reason, Reason::Pulled);
        self.tell(&format!(
            "dry run: of {total:?} bytes {lacking:?} are missing, {} came, nothing in sight afterwards",
            sent(&self.open, "dry-missing")
        ));
    }
}
