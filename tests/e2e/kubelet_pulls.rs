//! A kubelet starts many pods of one image at once, from a registry behind a slow line: what that costs with crisp and
//! without, and what a crash of crisp in the middle costs.

use std::time::{Duration, Instant};

use crisp::containerd::{Containerd, Lease};
use serde_json::Value;

use crate::lab::cgroup::CgroupRoot;
use crate::lab::crisp::Crisp;
use crate::lab::kubelet::Kubelet;
use crate::lab::node::{Kind, Node};
use crate::lab::{client, parts, wait};
use crate::registry::{Image, ImageBuilder, Registry};
use crate::report;

const NEWEST: Kind = Kind::Containerd("containerd-2.4.2");
const KUBELET: &str = "kubelet-1.36.3";

/// All pods of the small tests. Some of the time the kubelet waits 10 s before it asks again.
const LIMIT: Duration = Duration::from_secs(120);
/// Thirty pods, on a runtime that downloads for each of them.
const LONG_LIMIT: Duration = Duration::from_secs(900);

/// How fast the registry sends, on all connections together.
const BYTES_PER_SECOND: u64 = 20_000_000;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    Directly,
    ThroughCrisp,
}

/// A kubelet on a runtime, and a registry of its own. The order of the fields is that in which they go.
struct Lab {
    kubelet: Kubelet,
    crisp: Option<Crisp>,
    node: Node,
    _groups: CgroupRoot,
    registry: Registry,
    background: tokio::runtime::Runtime,
}

#[test]
fn ten_pods_of_one_image_are_one_pull() {
    let Some(mut lab) = Lab::start("ten pods of one image", NEWEST, Way::ThroughCrisp) else { return };
    let image = image(3, 20_000_000);
    let name = lab.registry.push("app:1", &image);
    let blobs = lab.registry.hold("/blobs/");
    let pods = lab.add_pods("pod", &name, 10);
    // Nothing comes before all ten wait, so this is no race against the kubelet.
    wait::until("all pods wait for one pull", LIMIT, || {
        let pulls = lab.pulls();
        (pulls.len() == 1 && pulls[0]["waiters"] == 10).then_some(())
    });
    drop(blobs);
    assert_eq!(lab.kubelet.wait_all_running(&pods, LIMIT), 0, "containers were restarted");

    assert_eq!(lab.metric("crisp_pulls_total"), 1, "{}", lab.metrics());
    assert_eq!(lab.metric("crisp_pulls_deduplicated_total"), 9, "{}", lab.metrics());
    assert_eq!(lab.looked_up("app"), 1, "{:#?}", lab.registry.requests());
    for layer in image.layers() {
        assert_eq!(lab.registry.requests_to(&layer), 1, "{:#?}", lab.registry.requests());
    }
    lab.nothing_is_left();
}

#[test]
fn pulls_survive_a_crash_of_crisp() {
    let Some(mut lab) = Lab::start("a crash of crisp during pulls", NEWEST, Way::ThroughCrisp) else {
        return;
    };
    let images = [image(3, 20_000_000), image(1, 40_000_000)];
    let wanted = lab.registry.push("wanted:1", &images[0]);
    let unwanted = lab.registry.push("unwanted:1", &images[1]);
    let pods = lab.add_pods("wanted", &wanted, 5);
    lab.add_pods("unwanted", &unwanted, 1);
    wait::until("both pulls are well under way", LIMIT, || {
        let third = |name: &str, image: &Image| lab.sent(name) > size(image) / 3;
        (third("wanted", &images[0]) && lab.sent("unwanted") > 1_000_000).then_some(())
    });
    lab.crisp.as_mut().expect("crisp").kill();
    let before = lab.leases();
    assert_eq!(before.len(), 2, "each pull has its lease: {before:?}");
    lab.kubelet.remove_pod("unwanted-0");
    lab.kubelet.wait_gone("unwanted-0", LIMIT);
    lab.crisp.as_mut().expect("crisp").restart();
    let back = Instant::now();

    // The kubelet asks again by itself, and crisp goes on where the crash had stopped it.
    assert_eq!(lab.kubelet.wait_all_running(&pods, LIMIT), 0, "containers were restarted");
    let took = back.elapsed();
    let share = lab.sent("wanted") as f64 / size(&images[0]) as f64;
    assert!(share <= 1.05, "{share:.3} of the image was sent: {:#?}", lab.registry.requests());
    assert!(lab.metric("crisp_pull_resumed_bytes_total") > size(&images[0]) / 4, "{}", lab.metrics());
    assert_eq!(lab.metric("crisp_pulls_total"), 1, "{}", lab.metrics());

    // The pull that nobody asked for again has left its lease, which the new crisp keeps for a while.
    let left: Vec<_> =
        wait::until("the other lease goes", LIMIT, || Some(lab.leases()).filter(|l| l.len() == 1));
    assert!(before.iter().any(|lease| lease.id == left[0].id), "{left:?} of {before:?}");
    assert!(left[0].labels.values().any(|image| image.contains("/unwanted:1")), "{left:?}");
    assert_eq!(lab.pulls(), Vec::<Value>::new(), "a flight is stuck");
    report::add_note(&format!(
        "kill -9 of crisp during the pulls of 5 pods: all run {:.1} s after it is back, {share:.3} x the image sent",
        took.as_secs_f64()
    ));
}

#[test]
#[ignore = "part of make e2e-all"]
fn pulls_survive_a_crash_of_crisp_on_crio() {
    let Some(mut lab) = Lab::start("a crash of crisp during pulls", Kind::Crio, Way::ThroughCrisp) else {
        return;
    };
    let (pods, image) = lab.pods_in_the_middle_of_a_pull();
    lab.crisp.as_mut().expect("crisp").kill();
    lab.crisp.as_mut().expect("crisp").restart();
    let share = lab.recovers(&pods, &image, "crisp on CRI-O");
    // CRI-O keeps nothing of a pull that broke off, so the image may come twice, but not once a pod.
    assert!(share < 2.1, "{share:.3} of the image was sent: {:#?}", lab.registry.requests());
}

#[test]
fn pulls_survive_a_crash_of_containerd() {
    let Some(mut lab) = Lab::start("a crash of containerd during pulls", NEWEST, Way::ThroughCrisp) else {
        return;
    };
    let (pods, image) = lab.pods_in_the_middle_of_a_pull();
    lab.node.kill();
    lab.node.restart();
    let share = lab.recovers(&pods, &image, "containerd");
    // It loses what it had not written yet.
    assert!(share <= 1.1, "{share:.3} of the image was sent: {:#?}", lab.registry.requests());
    lab.nothing_is_left();
}

#[test]
#[ignore = "part of make e2e-all"]
fn thirty_pods_of_one_image_on_containerd() {
    thirty_pods(NEWEST);
}

#[test]
#[ignore = "part of make e2e-all"]
fn thirty_pods_of_one_image_on_crio() {
    thirty_pods(Kind::Crio);
}

/// With crisp and without, one after the other: side by side they would share the machine.
fn thirty_pods(kind: Kind) {
    let image = image(5, 40_000_000);
    for way in [Way::ThroughCrisp, Way::Directly] {
        let Some(mut lab) = Lab::start("thirty pods of one image", kind, way) else { return };
        let name = lab.registry.push("app:1", &image);
        let began = Instant::now();
        let pods = lab.add_pods("pod", &name, 30);
        assert_eq!(lab.kubelet.wait_all_running(&pods, LONG_LIMIT), 0, "containers were restarted");
        let took = began.elapsed();
        let runtime = client::version(lab.node.socket()).expect("the runtime's version");
        let runtime = format!("{} {}", runtime.runtime_name, runtime.runtime_version);
        let share = lab.sent("app") as f64 / size(&image) as f64;
        let words = if way == Way::Directly { "directly" } else { "through crisp" };
        report::add_pulls(&runtime, words, pods.len(), took, lab.looked_up("app"), share);
        if way == Way::ThroughCrisp {
            assert!(share < 1.01, "{share:.3} of the image was sent");
            assert_eq!(lab.metric("crisp_pulls_total"), 1, "{}", lab.metrics());
            println!("{} pods joined it", lab.metric("crisp_pulls_deduplicated_total"));
            lab.nothing_is_left();
        }
    }
}

// === impl Lab ===

impl Lab {
    /// Everything, unless this machine lacks a part.
    fn start(test: &str, kind: Kind, way: Way) -> Option<Self> {
        if let Some(reason) = kind.missing(&[KUBELET]) {
            parts::skip(test, &reason);
            return None;
        }
        let background = tokio::runtime::Runtime::new().expect("a runtime");
        let registry = background.block_on(Registry::start());
        registry.throttle_in_all(Some(BYTES_PER_SECOND));
        let groups = CgroupRoot::new();
        let mut node = kind.start();
        node.trust(&registry.host());
        let crisp = (way == Way::ThroughCrisp).then(|| Crisp::start(&node.endpoint()));
        let endpoint = crisp.as_ref().map_or_else(|| node.endpoint(), Crisp::endpoint);
        let kubelet = Kubelet::start_below(&groups, KUBELET, &endpoint);
        Some(Self { kubelet, crisp, node, _groups: groups, registry, background })
    }

    fn add_pods(&self, name: &str, image: &str, count: usize) -> Vec<String> {
        let names: Vec<_> = (0..count).map(|number| format!("{name}-{number}")).collect();
        for name in &names {
            self.kubelet.add_idle_pod(name, image);
        }
        names
    }

    /// Five pods whose image is a third there.
    fn pods_in_the_middle_of_a_pull(&self) -> (Vec<String>, Image) {
        let image = image(3, 20_000_000);
        let pods = self.add_pods("pod", &self.registry.push("app:1", &image), 5);
        wait::until("the pull is well under way", LIMIT, || {
            (self.sent("app") > size(&image) / 3).then_some(())
        });
        (pods, image)
    }

    /// Waits until all pods run after the crash of `what`. Gives how much of the image was sent in all.
    fn recovers(&mut self, pods: &[String], image: &Image, what: &str) -> f64 {
        let back = Instant::now();
        assert_eq!(self.kubelet.wait_all_running(pods, LIMIT), 0, "containers were restarted");
        let took = back.elapsed().as_secs_f64();
        assert_eq!(self.pulls(), Vec::<Value>::new(), "a flight is stuck");
        let share = self.sent("app") as f64 / size(image) as f64;
        report::add_note(&format!(
            "kill -9 of {what} during the pulls of {} pods: all run {took:.1} s after it is back, {share:.3} x the \
             image sent",
            pods.len()
        ));
        share
    }

    /// How often somebody asked what the tag of an image stands for: once a pull.
    fn looked_up(&self, repository: &str) -> usize {
        let path = format!("/v2/{repository}/manifests/1");
        self.registry.requests().iter().filter(|seen| seen.path == path).count()
    }

    /// Bytes of blobs that were sent.
    fn sent(&self, repository: &str) -> u64 {
        let path = format!("/v2/{repository}/blobs/");
        let requests = self.registry.requests();
        requests.iter().filter(|seen| seen.path.starts_with(&path)).map(|seen| seen.sent).sum()
    }

    /// The pulls under way, by crisp's admin API.
    fn pulls(&self) -> Vec<Value> {
        let admin = &self.crisp.as_ref().expect("crisp").admin;
        let answer = self.background.block_on(crisp::admin::client::get(admin, "/v1/pulls"));
        let answer: Value = answer.expect("crisp answers");
        answer["pulls"].as_array().expect("a list").clone()
    }

    /// Crisp's leases, by containerd's own word.
    fn leases(&self) -> Vec<Lease> {
        let containerd = Containerd::new(self.node.socket());
        self.background.block_on(containerd.list_leases()).expect("containerd answers")
    }

    fn metrics(&self) -> String {
        self.crisp.as_ref().expect("crisp").metrics()
    }

    /// The sum of a family.
    fn metric(&self, name: &str) -> u64 {
        self.crisp.as_ref().expect("crisp").metric(name)
    }

    /// No flight and no lease outlives the pulls.
    fn nothing_is_left(&self) {
        assert_eq!(self.pulls(), Vec::<Value>::new(), "a flight is stuck");
        if matches!(self.node, Node::Containerd(_)) {
            wait::until("the lease goes", LIMIT, || self.leases().is_empty().then_some(()));
        }
    }
}

/// An image that runs, with so many layers of so many random bytes.
fn image(layers: usize, bytes: usize) -> Image {
    let busybox = std::fs::read(parts::find("busybox").expect("busybox")).expect("read busybox");
    let program = ImageBuilder::default().program("bin/busybox", &busybox);
    (0..layers).fold(program, |image, _| image.random(bytes)).build()
}

fn size(image: &Image) -> u64 {
    image.blobs.iter().map(|(_, data)| data.len() as u64).sum()
}
