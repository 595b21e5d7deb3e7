//! Background pulls give way to those that a pod waits for, and lose nothing by it.

use std::time::{Duration, Instant};

use crisp::pull::progress::PullPhase;

use super::{Lab, Size, Who, bytes_of, pull, pulled};
use crate::lab::client::Cri;
use crate::registry::{Image, ImageBuilder};

const MIB: usize = 1 << 20;

/// How often the background pull has to give way.
const TIMES: usize = 3;

/// The images of one run.
struct Plan {
    /// Layers of the background image, and the size of each.
    layers: usize,
    layer: usize,
    /// What an urgent image has besides the layer that it shares with the background image.
    own: usize,
    /// Bytes per second of the line.
    speed: u64,
    /// By how much the urgent one may be later than alone, and the most bytes that may be sent, as a share.
    later: f64,
    sent: f64,
}

impl Lab {
    pub(super) async fn a_background_pull_gives_way_and_goes_on(&mut self, size: Size) {
        let plan = Plan::of(size);
        let noise = |image: ImageBuilder, seed| image.noise(plan.layer, seed);
        let background = (800..).take(plan.layers).fold(ImageBuilder::default(), noise);
        let image = background.clone().build();
        self.registry.throttle_in_all(Some(plan.speed));
        let alone = self.time_alone(&plan, 900).await;
        let directly = match size {
            Size::Small => String::new(),
            Size::Full => {
                format!(", beside it without crisp {:.2} s", self.without_crisp(&plan).await.as_secs_f64())
            }
        };

        let name = self.registry.push("background:1", &image);
        let before = self.crisp.metric("crisp_pull_preemptions_total");
        let slow = self.pull(&name, Who::Kruise);
        let mut times = Vec::new();
        for round in 0..TIMES {
            let base = self.layer_that_has_just_begun(&image).await;
            let own = 910 + round as u64;
            let urgent = ImageBuilder::default().share(&background, base).noise(plan.own, own).build();
            times.push(self.time(&self.cri, &format!("urgent-{round}"), &urgent).await);
            let count = self.crisp.metric("crisp_pull_preemptions_total") - before;
            assert_eq!(count, round as u64 + 1, "each gives way once");
            assert!(!slow.is_finished(), "the background pull is still under way");
        }
        pulled(slow).await;
        // Once more at the end: what else runs on the machine may have changed.
        let alone = alone.max(self.time_alone(&plan, 920).await);
        self.registry.throttle_in_all(None);
        assert_eq!(self.crisp.metric("crisp_pull_preemptions_total") - before, TIMES as u64);

        let share = self.sent_of(&image) as f64 / bytes_of(&image) as f64;
        let slowest = times.iter().max().expect("times");
        self.tell(&format!(
            "{:.0} MB at {:.1} MB/s preempted {TIMES} times: {share:.4} of it sent; urgent image alone {:.2} s, \
             preempting {}{directly}",
            bytes_of(&image) as f64 / 1e6,
            plan.speed as f64 / 1e6,
            alone.as_secs_f64(),
            times.iter().map(|time| format!("{:.2} s", time.as_secs_f64())).collect::<Vec<_>>().join(", "),
        ));
        assert!(share <= plan.sent, "{share}");
        let limit = alone.mul_f64(plan.later) + Duration::from_millis(500);
        assert!(*slowest <= limit, "{times:?}, and {alone:?} alone");
    }

    /// How long a pod waits for an image.
    async fn time(&self, cri: &Cri, repository: &str, image: &Image) -> Duration {
        let name = self.registry.push(&format!("{repository}:1"), image);
        let began = Instant::now();
        pulled(pull(cri, &name, Who::Pod(0), None)).await;
        began.elapsed()
    }

    /// The same for an image of the same shape as the urgent ones, with nothing else on the line.
    async fn time_alone(&self, plan: &Plan, seed: u64) -> Duration {
        let image = ImageBuilder::default().noise(plan.layer, seed).noise(plan.own, seed + 1).build();
        self.time(&self.cri, &format!("alone-{seed}"), &image).await
    }

    /// The same beside a background pull that nobody stops. That one is given up afterwards.
    async fn without_crisp(&self, plan: &Plan) -> Duration {
        let direct = Cri::new(self.node.socket());
        let noise = |image: ImageBuilder, seed| image.noise(plan.layer, seed);
        let background = (850..).take(plan.layers).fold(ImageBuilder::default(), noise);
        let image = background.clone().build();
        let slow = pull(&direct, &self.registry.push("direct:1", &image), Who::Kruise, None);
        let base = self.layer_that_has_just_begun(&image).await;
        let urgent = ImageBuilder::default().share(&background, base).noise(plan.own, 930).build();
        let time = self.time(&direct, "direct-urgent", &urgent).await;
        assert!(!slow.is_finished(), "the background pull is still under way");
        slow.abort();
        time
    }

    /// Waits until a layer of the image has begun to come and returns which. Less than a tenth of it is there.
    async fn layer_that_has_just_begun(&self, image: &Image) -> usize {
        let layers = image.layers();
        let began = Instant::now();
        loop {
            let requests = self.registry.requests();
            for (at, digest) in layers.iter().enumerate() {
                let of_layer = requests.iter().filter(|seen| seen.path.ends_with(digest));
                let sent: u64 = of_layer.map(|seen| seen.sent).sum();
                if (1..image.blobs[at].1.len() as u64 / 10).contains(&sent) {
                    return at;
                }
            }
            assert!(began.elapsed() < super::PATIENCE, "no layer begins");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Bytes of the image's blobs that were sent, for whichever image they were asked for.
    fn sent_of(&self, image: &Image) -> u64 {
        let requests = self.registry.requests();
        let of_image = requests.iter().filter(|seen| {
            image.blobs.iter().any(|(digest, _)| seen.path.ends_with(&format!("/blobs/{digest}")))
        });
        of_image.map(|seen| seen.sent).sum()
    }

    /// imagePullPolicy Always: each start of a pod is a pull, of one HEAD.
    pub(super) async fn pods_that_restart_do_not_stop_an_unpacking(&mut self, size: Size) {
        let (every, files, times) = match size {
            Size::Small => (Duration::from_millis(100), 4000, 4),
            Size::Full => (Duration::from_secs(5), 20_000, 24),
        };
        let always = ImageBuilder::default().noise(1000, 950).build();
        let always_name = self.registry.push("always:1", &always);
        pulled(self.pull(&always_name, Who::Pod(0))).await;
        // Many files take long to unpack, and again when the same layer comes again.
        let names: Vec<_> = (0..files).map(|number| format!("file-{number}")).collect();
        let files: Vec<_> = names.iter().map(|name| (name.as_str(), b"".as_slice())).collect();
        let base = ImageBuilder::default().layer(&files);
        let image = (1..times).fold(base.clone(), |image, _| image.share(&base, 0)).build();
        let name = self.registry.push("unpacking:1", &image);

        let before = self.crisp.metric("crisp_pull_preemptions_total");
        let began = Instant::now();
        let slow = self.pull(&name, Who::Kruise);
        let (mut restarts, mut while_unpacking) = (0, 0);
        let mut ticks = tokio::time::interval(every);
        while !slow.is_finished() {
            ticks.tick().await;
            pulled(self.pull(&always_name, Who::Pod(restarts))).await;
            restarts += 1;
            let mut pulls = self.crisp.pulls().await.into_iter();
            while_unpacking += usize::from(pulls.any(|pull| pull.phase == PullPhase::Unpacking));
        }
        pulled(slow).await;
        let took = began.elapsed();
        assert!(restarts >= 3, "only {restarts} pods were started in {took:?}");
        if size == Size::Full {
            assert!(
                while_unpacking >= 3,
                "{while_unpacking} of {restarts} pods were started while it was unpacked"
            );
        }
        assert_eq!(self.crisp.metric("crisp_pull_preemptions_total"), before, "nothing gave way");
        assert_eq!(self.asked(&name), 1, "the runtime was asked once");
        self.came_once("always", &always);
        self.came_once("unpacking", &image_once(&image));
        self.tell(&format!(
            "an image unpacked in {:.1} s beside a pod that restarts every {every:?}: never interrupted",
            took.as_secs_f64()
        ));
    }
}

/// The image with each blob once.
fn image_once(image: &Image) -> Image {
    let mut image = image.clone();
    image.blobs.dedup_by(|one, other| one.0 == other.0);
    image
}

// === impl Plan ===

impl Plan {
    fn of(size: Size) -> Self {
        match size {
            // Half a second of patience is much of so short a pull, and noise on a busy machine, too.
            Size::Small => {
                Self { layers: 8, layer: 3 * MIB, own: 3 * MIB, speed: 5_000_000, later: 2.0, sent: 1.05 }
            }
            Size::Full => Self {
                layers: 10,
                layer: 19 * MIB + MIB / 10,
                own: 10 * MIB,
                speed: 5_000_000,
                later: 1.15,
                sent: 1.01,
            },
        }
    }
}
