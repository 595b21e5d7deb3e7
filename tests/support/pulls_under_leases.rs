//! Pulls under leases on a real containerd: progress, resume, and what becomes of the leases themselves. Written once,
//! and run by the tests of one node and by e2e on other versions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::{CreateRequest, DeleteRequest, ListStatusesRequest};
use containerd_client::tonic::Request;
use crisp::containerd::{Accounting, Containerd, LEASE_LABEL, LIFETIME, Phase, Progress, Tracker};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::lab::client::Cri;
use crate::lab::containerd::Containerd as Node;
use crate::registry::{Image, ImageBuilder, Registry, host_architecture, index};

/// How long anything may take on a busy machine before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Slow enough that a pull is seen while it runs: three layers at a time come with three times that.
const BYTES_PER_SECOND: u64 = 2 << 20;

struct Lab {
    node: Node,
    registry: Registry,
    cri: Cri,
    containerd: Containerd,
    /// An image of several layers that takes a few seconds at the throttled speed. Whoever pulls it removes it.
    large: Image,
}

type Pull = JoinHandle<Result<String, Status>>;

/// Everything, on one node. Each part has images and leases of its own.
pub(crate) async fn run(node: Node) {
    let mut lab = Lab::new(node).await;
    assert!(lab.containerd.supported().await.expect("containerd answers"), "containerd has leases");
    lab.leases_are_made_listed_and_deleted().await;
    lab.a_lease_that_is_not_there_fails_the_pull().await;
    lab.progress_goes_up_to_the_total().await;
    lab.of_an_index_only_the_hosts_image_counts().await;
    lab.layers_that_another_pull_fetches_count_too().await;
    lab.a_cancelled_pull_goes_on_where_it_stopped().await;
    lab.a_renewed_lease_keeps_everything().await;
    lab.a_deleted_lease_keeps_nothing().await;
    lab.a_lease_that_goes_under_a_pull_fails_it().await;
    lab.the_client_survives_a_restart_of_containerd().await;
}

/// Whether a pull failed because its lease was not there when it began. The code alone does not tell: an image that the
/// registry does not have is NotFound too.
fn lost_its_lease(code: Code, message: &str) -> bool {
    code == Code::NotFound && message.contains("lease does not exist")
}

// === impl Lab ===

impl Lab {
    async fn new(node: Node) -> Self {
        let registry = Registry::start().await;
        node.trust(&registry.host());
        let (cri, containerd) = (Cri::new(&node.socket), Containerd::new(&node.socket));
        Self { node, registry, cri, containerd, large: large() }
    }

    async fn leases_are_made_listed_and_deleted(&self) {
        // Somebody else's lease, in the same namespace.
        let mut leases = LeasesClient::new(self.channel());
        let foreign = CreateRequest { id: "foreign".into(), labels: [("a".into(), "b".into())].into() };
        leases.create(in_namespace(foreign)).await.expect("create");

        let labels = BTreeMap::from([("crisp.dev/owner".to_owned(), "x".repeat(4096 - 15))]);
        let before = SystemTime::now();
        self.containerd.create_lease("mine", &labels).await.expect("create");
        self.containerd.create_lease("mine", &BTreeMap::new()).await.expect("what exists is as good");
        let listed = self.containerd.list_leases().await.expect("list");
        assert_eq!(listed.len(), 1, "only crisp's own: {listed:?}");
        let lease = &listed[0];
        assert_eq!(lease.id, "mine");
        assert_eq!(lease.labels["crisp.dev/owner"], labels["crisp.dev/owner"], "the first labels stay");
        assert!(lease.labels.contains_key(LEASE_LABEL));
        let second = Duration::from_secs(1);
        let (from, to) = (before + LIFETIME - second, SystemTime::now() + LIFETIME);
        assert!(lease.expires_at().is_some_and(|time| time >= from && time <= to), "{lease:?}");
        assert!(lease.created_at.is_some_and(|time| time >= before - second), "{lease:?}");

        for sync in [true, false] {
            self.containerd.delete_lease("mine", sync).await.expect("delete, or nothing to delete");
        }
        assert_eq!(self.containerd.list_leases().await.expect("list"), []);
        let gone = self.containerd.kept("mine").await.expect_err("no lease");
        assert!(gone.is_not_found(), "{gone}");
        let gone = self.containerd.track("mine").poll().await.expect_err("no lease");
        assert!(gone.is_not_found(), "{gone}");
        let gone = self.containerd.renew_lease("mine", "new").await.expect_err("no lease");
        assert!(gone.is_not_found(), "{gone}");
        leases
            .delete(in_namespace(DeleteRequest { id: "foreign".into(), sync: true }))
            .await
            .expect("delete");
    }

    async fn a_lease_that_is_not_there_fails_the_pull(&self) {
        let image = self.registry.push("no-lease:1", &ImageBuilder::default().noise(1000, 1).build());
        let status = self.pull(&image, Some("no-such-lease")).await.expect("a task").expect_err("no lease");
        assert!(lost_its_lease(status.code(), status.message()), "{status:?}");
        let missing = format!("{}/nothing:1", self.registry.host());
        let status = self.pull(&missing, None).await.expect("a task").expect_err("no such image");
        assert!(
            status.code() == Code::NotFound && !lost_its_lease(status.code(), status.message()),
            "{status:?}"
        );
        if self.runtime_version().starts_with("v2") {
            // In the words of the transfer service: the lab has not made containerd leave its normal path.
            assert!(status.message().contains("failed to resolve image"), "{status:?}");
        }
    }

    async fn progress_goes_up_to_the_total(&mut self) {
        let image = self.large.clone();
        let name = self.registry.push("progress:1", &image);
        self.create("progress").await;
        let mut hold = self.registry.hold("progress/manifests/");
        let began = SystemTime::now();
        let pull = self.pull(&name, Some("progress"));
        hold.reached(1).await;
        let mut tracker = self.containerd.track("progress");
        let start = tracker.poll().await.expect("progress");
        assert_eq!((start.phase, start.bytes_total), (Phase::Resolving, None));

        self.registry.throttle(Some(BYTES_PER_SECOND));
        drop(hold);
        self.registry.behave();
        let samples = watch(&mut tracker, |_| pull.is_finished()).await;
        pull.await.expect("a task").expect("the pull succeeds");
        self.registry.throttle(None);
        let between = |p: &&Progress| p.bytes_done > 0 && Some(p.bytes_done) < p.bytes_total;
        let between = samples.iter().filter(between).count();
        assert!(between >= 5, "only {between} of {} looks were in the middle", samples.len());
        let end = tracker.poll().await.expect("progress");
        let total = layer_bytes(&image);
        assert_eq!((end.phase, end.bytes_done, end.bytes_total), (Phase::Unpacking, total, Some(total)));
        let digests: Vec<_> = end.layers.iter().map(|layer| layer.digest.clone()).collect();
        assert_eq!((digests, end.layers_done), (image.layers(), image.layers().len()));

        let size = bytes_of(&image);
        let all = Accounting { size, fetched: size };
        assert_eq!(self.containerd.fetched("progress", began).await.expect("accounting"), Some(all));
        let none = Accounting { size, fetched: 0 };
        let now = SystemTime::now();
        assert_eq!(self.containerd.fetched("progress", now).await.expect("accounting"), Some(none));
        self.containerd.delete_lease("progress", true).await.expect("delete");

        // All is there: a pull under a new lease has nothing to download.
        self.create("again").await;
        self.pull(&name, Some("again")).await.expect("a task").expect("the pull succeeds");
        let again = self.containerd.track("again").poll().await.expect("progress");
        assert_eq!((again.phase, again.bytes_done), (Phase::Unpacking, total));
        assert_eq!(self.containerd.fetched("again", now).await.expect("accounting"), Some(none));
        assert_eq!(self.containerd.kept("again").await.expect("kept"), 0, "nothing came under this lease");
        self.done("again", &name).await;
    }

    async fn of_an_index_only_the_hosts_image_counts(&mut self) {
        let other = if host_architecture() == "s390x" { "amd64" } else { "s390x" };
        let mine = ImageBuilder::default().noise(50_000, 20).noise(60_000, 21).build();
        let foreign = ImageBuilder::default().architecture(other).noise(70_000, 22).build();
        let name = self.registry.push("index:1", &index(&[(other, &foreign), (host_architecture(), &mine)]));
        self.create("index").await;
        let began = SystemTime::now();
        self.pull(&name, Some("index")).await.expect("a task").expect("the pull succeeds");
        let progress = self.containerd.track("index").poll().await.expect("progress");
        assert_eq!((progress.phase, progress.bytes_total), (Phase::Unpacking, Some(layer_bytes(&mine))));
        let size = bytes_of(&mine);
        let all = Accounting { size, fetched: size };
        assert_eq!(self.containerd.fetched("index", began).await.expect("accounting"), Some(all));

        // The tag moves on: the image that came last counts.
        let next = ImageBuilder::default().noise(80_000, 23).build();
        self.registry.push("index:1", &next);
        self.pull(&name, Some("index")).await.expect("a task").expect("the pull succeeds");
        let progress = self.containerd.track("index").poll().await.expect("progress");
        assert_eq!(progress.bytes_total, Some(layer_bytes(&next)));
        self.done("index", &name).await;
    }

    async fn layers_that_another_pull_fetches_count_too(&mut self) {
        let image = self.large.clone();
        let (one, two) = (self.registry.push("one:1", &image), self.registry.push("two:1", &image));
        self.registry.throttle(Some(BYTES_PER_SECOND));
        self.create("one").await;
        self.create("two").await;
        let first = self.pull(&one, Some("one"));
        watch(&mut self.containerd.track("one"), |progress| progress.bytes_done > 0).await;
        let second = self.pull(&two, Some("two"));
        let seen = watch(&mut self.containerd.track("two"), |progress| progress.bytes_done > 0).await;
        let first_seen = seen.last().expect("a look");
        assert!(Some(first_seen.bytes_done) < first_seen.bytes_total, "{first_seen:?}");
        let mut tracker = self.containerd.track("two");
        watch(&mut tracker, |_| second.is_finished()).await;
        for pull in [first, second] {
            pull.await.expect("a task").expect("the pull succeeds");
        }
        self.registry.throttle(None);
        assert_eq!(tracker.poll().await.expect("progress").phase, Phase::Unpacking);
        assert_eq!(self.registry.requests_to("two/blobs/"), 0, "every blob came once");
        self.done("one", &one).await;
        self.done("two", &two).await;
    }

    async fn a_cancelled_pull_goes_on_where_it_stopped(&mut self) {
        let image = self.large.clone();
        let name = self.registry.push("resume:1", &image);
        self.create("resume").await;
        let kept = self.cancel_in_the_middle(&name, "resume", &image).await;
        let progress = self.containerd.track("resume").poll().await.expect("progress");
        assert!(progress.bytes_done > 0, "the next attempt starts with what is there: {progress:?}");

        self.pull(&name, Some("resume")).await.expect("a task").expect("the next pull succeeds");
        self.came_once("resume", &image, kept);
        let kept = self.containerd.kept("resume").await.expect("kept");
        assert!(kept >= bytes_of(&image), "all of it came under this lease: {kept}");
        self.done("resume", &name).await;
    }

    async fn a_renewed_lease_keeps_everything(&mut self) {
        let image = self.large.clone();
        let name = self.registry.push("renew:1", &image);
        self.create("old").await;
        let kept = self.cancel_in_the_middle(&name, "old", &image).await;
        let old = self.containerd.list_leases().await.expect("list").pop().expect("a lease");

        self.containerd.renew_lease("old", "new").await.expect("renew");
        let leases = self.containerd.list_leases().await.expect("list");
        assert_eq!(leases.iter().map(|lease| lease.id.as_str()).collect::<Vec<_>>(), ["new"]);
        assert_eq!(leases[0].labels[LEASE_LABEL], old.labels[LEASE_LABEL]);
        assert!(leases[0].expires_at() >= old.expires_at());
        // containerd may have written a little more before it noticed that the caller had left.
        assert!(self.containerd.kept("new").await.expect("kept") >= kept);
        self.pull(&name, Some("new")).await.expect("a task").expect("the pull goes on");
        self.came_once("renew", &image, kept);
        self.done("new", &name).await;
    }

    async fn a_deleted_lease_keeps_nothing(&mut self) {
        let image = self.large.clone();
        let name = self.registry.push("delete:1", &image);
        self.create("delete").await;
        self.cancel_in_the_middle(&name, "delete", &image).await;
        assert!(!self.ingests().await.is_empty());
        self.containerd.delete_lease("delete", true).await.expect("delete");
        assert_eq!(self.ingests().await, Vec::<String>::new(), "sync: they are gone now");
    }

    async fn a_lease_that_goes_under_a_pull_fails_it(&mut self) {
        let image = self.large.clone();
        let name = self.registry.push("under:1", &image);
        self.create("under").await;
        self.registry.throttle(Some(BYTES_PER_SECOND));
        let pull = self.pull(&name, Some("under"));
        watch(&mut self.containerd.track("under"), |progress| progress.bytes_done > 0).await;
        assert!(self.containerd.find_lease("under").await.expect("find").is_some());
        self.containerd.delete_lease("under", true).await.expect("delete");
        pull.await.expect("a task").expect_err("its blobs went with the lease");
        assert!(self.containerd.find_lease("under").await.expect("find").is_none());
        self.registry.throttle(None);
    }

    async fn the_client_survives_a_restart_of_containerd(&mut self) {
        self.create("survivor").await;
        self.node.kill();
        let error = self.containerd.list_leases().await.expect_err("nobody is there");
        assert!(matches!(error, crisp::containerd::Error::Unavailable { .. }), "{error:?}");
        assert!(self.containerd.supported().await.is_err(), "not known, which is not the same as no");
        self.node.restart();
        let leases = self.containerd.list_leases().await.expect("the same client goes on");
        assert_eq!(leases.len(), 1);
        self.containerd.delete_lease("survivor", true).await.expect("delete");
    }

    /// Starts a slow pull, cancels it when about a third is there, and returns what it has left behind.
    async fn cancel_in_the_middle(&self, name: &str, lease: &str, image: &Image) -> u64 {
        self.registry.throttle(Some(BYTES_PER_SECOND));
        let pull = self.pull(name, Some(lease));
        let third = layer_bytes(image) / 3;
        watch(&mut self.containerd.track(lease), |progress| progress.bytes_done > third).await;
        pull.abort();
        assert!(pull.await.is_err_and(|error| error.is_cancelled()), "the pull was still running");
        self.registry.throttle(None);
        let kept = self.containerd.kept(lease).await.expect("kept");
        assert!(kept > third, "{kept} of {}", bytes_of(image));
        kept
    }

    /// Checks that a pull in several attempts resumed, and that hardly a byte came twice.
    fn came_once(&self, repository: &str, image: &Image, kept: u64) {
        let blobs = format!("/{repository}/blobs/");
        let requests: Vec<_> =
            self.registry.requests().into_iter().filter(|seen| seen.path.contains(&blobs)).collect();
        let ranges = requests.iter().filter(|seen| seen.range.is_some() && seen.status == 206).count();
        let sent: u64 = requests.iter().map(|seen| seen.sent).sum();
        let share = sent as f64 / bytes_of(image) as f64;
        println!("{}: {ranges} ranges, kept {kept}, {share:.4} of the image sent", self.runtime_version());
        assert!(ranges > 0, "{requests:#?}");
        assert!(share <= 1.02, "{sent} bytes sent for {}", bytes_of(image));
    }

    fn pull(&self, image: &str, lease: Option<&str>) -> Pull {
        let (cri, image, lease) = (self.cri.clone(), image.to_owned(), lease.map(str::to_owned));
        tokio::spawn(async move { cri.pull(&image, lease.as_deref()).await })
    }

    async fn create(&self, lease: &str) {
        self.containerd.create_lease(lease, &BTreeMap::new()).await.expect("create a lease");
    }

    /// Deletes a lease and an image.
    async fn done(&mut self, lease: &str, image: &str) {
        self.containerd.delete_lease(lease, true).await.expect("delete the lease");
        self.cri.remove_image(image).await;
    }

    async fn ingests(&self) -> Vec<String> {
        let request = in_namespace(ListStatusesRequest::default());
        let reply = ContentClient::new(self.channel()).list_statuses(request).await.expect("list");
        reply.into_inner().statuses.into_iter().map(|status| status.r#ref).collect()
    }

    fn channel(&self) -> Channel {
        Endpoint::from_shared(self.node.endpoint()).expect("an endpoint").connect_lazy()
    }

    fn runtime_version(&self) -> String {
        crate::lab::client::version(&self.node.socket).expect("a version").runtime_version
    }
}

fn in_namespace<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", "k8s.io".parse().expect("metadata"));
    request
}

fn large() -> Image {
    let sizes = [5 << 20, 4 << 20, 3 << 20, 300_000, 1000];
    let add = |image: ImageBuilder, (seed, size)| image.noise(size, seed);
    (10..).zip(sizes).fold(ImageBuilder::default(), add).build()
}

fn bytes_of(image: &Image) -> u64 {
    image.blobs.iter().map(|(_, data)| data.len() as u64).sum()
}

fn layer_bytes(image: &Image) -> u64 {
    image.blobs.iter().filter(|(digest, _)| *digest != image.id).map(|(_, data)| data.len() as u64).sum()
}

/// Looks again and again until `enough`. From look to look nothing goes back.
async fn watch(tracker: &mut Tracker, mut enough: impl FnMut(&Progress) -> bool) -> Vec<Progress> {
    let began = Instant::now();
    let mut looks = Vec::<Progress>::new();
    loop {
        let now = tracker.poll().await.expect("progress");
        if let Some(before) = looks.last() {
            assert!(now.phase >= before.phase && now.bytes_done >= before.bytes_done, "{before:?}\n{now:?}");
            assert!(before.bytes_total.is_none() || now.bytes_total == before.bytes_total);
        }
        let end = enough(&now);
        looks.push(now);
        if end {
            return looks;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain; the last look: {:?}", looks.last());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
