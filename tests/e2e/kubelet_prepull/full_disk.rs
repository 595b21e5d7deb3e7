//! The disk of images runs full: what is kept goes before any pod does.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{LIMIT, Lab, runnable};
use crate::lab::cluster::Cluster;
use crate::lab::containerd::Containerd;
use crate::lab::disk::Disk;
use crate::lab::kubelet::idle_container;
use crate::lab::{parts, wait};
use crate::registry::Auth;
use crate::report;

/// The kubelet's own default.
const EVICTION_THRESHOLD: u64 = 15;

const NAMESPACE: &str = "full-disk";

/// How often the disk runs full at once. Whether crisp or the kubelet sees it first is a matter of chance each time.
const FALLS: usize = 6;

#[test]
#[ignore = "part of make e2e-all"]
fn a_full_disk_costs_pins_and_no_pod() {
    if parts::find("mkfs.ext4").is_none() {
        return parts::skip("a full disk", "not installed: mkfs.ext4");
    }
    let mut disk = None;
    let start = |binary: &std::path::Path| {
        let (node, its) = Containerd::start_on_a_disk(binary, 600);
        disk = Some(its);
        node
    };
    // A pre-pull leaves 1 GiB free, which is more than there is.
    let options = ["--prepull-disk-floor-bytes", "0B"];
    let Some(mut lab) = Lab::start_with("a full disk", &options, start) else { return };
    let disk = disk.expect("a disk");
    let private = lab.another_registry();
    private.require(Auth::Basic("owner", "secret"));
    let secret = json!({"registry": private.host(), "username": "owner", "password": "secret"});
    let parked = private.push("parked:1", &runnable(20_000_000));
    let [low, middle, high] =
        ["low:1", "middle:1", "high:1"].map(|name| lab.registry.push(name, &runnable(40_000_000)));
    let ids = lab.prepull(&[
        json!({"image": low, "pin": "withOwner", "priority": -10}),
        json!({"image": parked, "secrets": [secret]}),
        json!({"image": middle, "pin": "withOwner", "priority": 5}),
        json!({"image": high, "pin": "withOwner", "priority": 10}),
    ]);
    let cluster = Cluster::shared();
    cluster.add_namespace(NAMESPACE);
    lab.start_kubelet(
        Some(&cluster),
        &json!({"evictionHard": {"imagefs.available": format!("{EVICTION_THRESHOLD}%")}}),
    );
    let app = lab.registry.push("app:1", &runnable(1_000_000));
    lab.add_pod(&cluster, NAMESPACE, "app", &json!({"containers": [idle_container(&app)]}));
    let before = wait::until("the pod runs", LIMIT, || container(&cluster));
    assert!(disk.free() > 40.0, "{}", disk.free());

    // Slowly: the least important goes, and the kubelet has no reason to do anything.
    disk.fill(18);
    wait::until("the least important gives way", LIMIT, || (lab.kept() == ids[1..]).then_some(()));
    wait::until("its space is free", LIMIT, || (disk.free() > 20.0 && !lab.has(&low)).then_some(()));

    // At once, by more than the parked image takes.
    disk.fill(4);
    lab.recovers(&disk);
    assert_eq!(
        container(&cluster),
        Some(before.clone()),
        "{:#}",
        cluster.pod(NAMESPACE, "app").unwrap_or_default()
    );
    assert_eq!(lab.kept(), ids[3..], "more gave way than had to");
    assert!(lab.has(&high) && !lab.has(&middle));

    // Again and again, with a fresh image each time: the kubelet has not seen it yet, and would not remove it.
    for number in 0..FALLS {
        disk.fill(60);
        let name = lab.registry.push(&format!("fall-{number}:1"), &runnable(40_000_000));
        let id = lab.prepull(&[json!({"image": name, "pin": "withOwner"})])[0];
        assert_eq!(lab.kept(), [ids[3], id]);
        disk.fill(8);
        lab.recovers(&disk);
        wait::until("the pin gives way", LIMIT, || (lab.kept() == [ids[3]]).then_some(()));
        assert_eq!(
            container(&cluster),
            Some(before.clone()),
            "fall {number}: {}",
            lab.evictions().join("\n")
        );
    }
    assert_eq!(lab.evictions(), Vec::<String>::new());
    let reclaims = lab.collections("Eviction manager: attempting to reclaim");
    report::add_note(&format!(
        "a disk that runs full {} times: pins and parked images go, the least important first, and no pod does; the \
         kubelet saw it first {reclaims} times",
        FALLS + 2
    ));
}

// === impl Lab ===

impl Lab {
    /// The items for which something is kept.
    fn kept(&self) -> Vec<u64> {
        self.pins().iter().map(|pin| pin["id"].as_u64().expect("a number")).collect()
    }

    /// Waits until the kubelet is content, and for a time in which it would have looked twice.
    fn recovers(&self, disk: &Disk) {
        let mut since = None;
        wait::until("space becomes free", LIMIT, || {
            if disk.free() < EVICTION_THRESHOLD as f64 {
                since = None;
                return None;
            }
            let since: &Instant = since.get_or_insert_with(Instant::now);
            (since.elapsed() > Duration::from_secs(21)).then_some(())
        });
    }

    /// What the kubelet says when nothing but pods is left to go.
    fn evictions(&self) -> Vec<String> {
        let log = self.kubelet.as_ref().expect("a kubelet").log();
        log.lines().filter(|line| line.contains("must evict pod")).map(str::to_owned).collect()
    }
}

/// The pod's container, its restarts and the pod's phase, if it runs.
fn container(cluster: &Cluster) -> Option<Value> {
    let status = cluster.pod(NAMESPACE, "app")?["status"].clone();
    let main = &status["containerStatuses"][0];
    main["state"]["running"]
        .is_object()
        .then(|| json!([main["containerID"], main["restartCount"], status["phase"]]))
}
