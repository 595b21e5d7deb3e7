//! Pulls through crisp on real runtimes: one for all who ask, whoever leaves; kubelets first; nothing fetched twice.
//! Written once, and run by the tests of one node and by e2e on other runtimes.

#[path = "pulls_through_crisp/crash.rs"]
mod crash;
#[path = "pulls_through_crisp/preemption.rs"]
mod preemption;
#[path = "pulls_through_crisp/progress.rs"]
mod progress;
#[path = "pulls_through_crisp/sharing.rs"]
mod sharing;

use std::time::{Duration, Instant};

use crisp::containerd::Containerd;
use k8s_cri::v1::{AuthConfig, ImageSpec, PodSandboxConfig, PodSandboxMetadata, PullImageRequest};
use tokio::task::JoinHandle;
use tonic::Status;

use crate::lab::client::{Cri, version};
use crate::lab::crisp::Crisp;
use crate::lab::node::Node;
use crate::registry::{Image, Registry, Seen};

/// How long anything may take on a busy machine before a test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Who may pull from a registry that asks for credentials. Neither word occurs anywhere else.
const USER: &str = "correct-user";
const PASSWORD: &str = "horse-battery-staple";

/// How large the images are of which time and bytes are measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Size {
    /// Seconds.
    Small,
    /// 200 MB at 5 MB/s.
    Full,
}

/// A real runtime with crisp in front of it, and a registry.
struct Lab {
    node: Node,
    crisp: Crisp,
    registry: Registry,
    cri: Cri,
    /// The runtime's own API, which only containerd has.
    containerd: Option<Containerd>,
    figures: Vec<String>,
}

/// Who pulls.
#[derive(Clone, Copy, Debug)]
enum Who {
    /// A kubelet for one of its pods.
    Pod(usize),
    /// OpenKruise's daemon, ahead of time.
    Kruise,
}

type Pull = JoinHandle<Result<String, Status>>;

/// Everything that takes seconds, on one node. Returns figures for people.
pub(crate) async fn run(node: Node) -> Vec<String> {
    let mut lab = Lab::new(node).await;
    lab.fifty_pulls_are_one().await;
    lab.a_wrong_password_is_refused_beside_the_right_one().await;
    lab.the_last_of_all_who_waited_gets_the_image().await;
    lab.a_pod_joins_a_background_pull().await;
    lab.progress_is_told().await;
    if lab.containerd.is_some() {
        lab.a_background_pull_gives_way_and_goes_on(Size::Small).await;
        lab.pods_that_restart_do_not_stop_an_unpacking(Size::Small).await;
    }
    lab.a_crash_of_crisp_costs_hardly_a_byte().await;
    lab.no_secret_was_written().await;
    lab.figures
}

/// What takes minutes.
pub(crate) async fn run_long(node: Node) -> Vec<String> {
    let mut lab = Lab::new(node).await;
    lab.a_background_pull_gives_way_and_goes_on(Size::Full).await;
    lab.pods_that_restart_do_not_stop_an_unpacking(Size::Full).await;
    lab.figures
}

// === impl Lab ===

impl Lab {
    async fn new(mut node: Node) -> Self {
        let registry = Registry::start().await;
        node.trust(&registry.host());
        let options = ["--log-level", "debug", "--pull-keep-partial", "3s"];
        let crisp = Crisp::start_with(&node.endpoint(), &options);
        let cri = Cri::new(&crisp.socket);
        let containerd = match &node {
            Node::Containerd(node) => Some(Containerd::new(&node.socket)),
            Node::Crio(_) => None,
        };
        Self { node, crisp, registry, cri, containerd, figures: Vec::new() }
    }

    /// Starts a pull over the connection that all share.
    fn pull(&self, image: &str, who: Who) -> Pull {
        pull(&self.cri, image, who, None)
    }

    /// Notes a figure.
    fn tell(&mut self, figure: &str) {
        let runtime = version(self.node.socket()).expect("a version");
        let figure = format!("{} {}: {figure}", runtime.runtime_name, runtime.runtime_version);
        println!("{figure}");
        self.figures.push(figure);
    }

    /// Returns when so many callers wait for a pull.
    async fn until_waiting(&self, count: u64) {
        until(&format!("{count} wait"), async || self.crisp.metric("crisp_pull_waiters") == count).await;
    }

    /// How many pulls have ended so far, and how many callers have joined one.
    fn counts(&self) -> (u64, u64) {
        (self.crisp.metric("crisp_pulls_total"), self.crisp.metric("crisp_pulls_deduplicated_total"))
    }

    /// How often the runtime says that it was asked for an image.
    fn asked(&self, image: &str) -> usize {
        let start = match &self.node {
            Node::Containerd(_) => format!(r#"msg="PullImage \"{image}\"""#),
            Node::Crio(_) => format!("Pulling image: {image}"),
        };
        self.node.log().lines().filter(|line| line.contains(&start)).count()
    }

    /// The requests to one repository so far.
    fn requests(&self, repository: &str) -> Vec<Seen> {
        let part = format!("/v2/{repository}/");
        self.registry.requests().into_iter().filter(|seen| seen.path.starts_with(&part)).collect()
    }

    /// Bytes of blobs that came from one repository so far.
    fn sent(&self, repository: &str) -> u64 {
        let requests = self.requests(repository);
        requests.iter().filter(|seen| seen.path.contains("/blobs/")).map(|seen| seen.sent).sum()
    }

    /// Each blob came as a whole, and no byte of it twice.
    fn came_once(&self, repository: &str, image: &Image) {
        for (digest, data) in &image.blobs {
            let path = format!("/v2/{repository}/blobs/{digest}");
            let mut of_blob: Vec<_> = self.requests(repository);
            of_blob.retain(|seen| seen.path == path && seen.status != 401);
            let sent: u64 = of_blob.iter().map(|seen| seen.sent).sum();
            assert_eq!((of_blob.len(), sent), (1, data.len() as u64), "{of_blob:#?}");
        }
    }
}

/// Starts a pull.
fn pull(cri: &Cri, image: &str, who: Who, password: Option<&str>) -> Pull {
    let mut images = cri.images.clone();
    let request = PullImageRequest {
        image: Some(ImageSpec { image: image.to_owned(), ..ImageSpec::default() }),
        auth: password.map(|password| AuthConfig {
            username: USER.to_owned(),
            password: password.to_owned(),
            ..AuthConfig::default()
        }),
        sandbox_config: Some(who.sandbox()),
    };
    tokio::spawn(async move { Ok(images.pull_image(request).await?.into_inner().image_ref) })
}

/// The reply of a pull that has to succeed.
async fn pulled(pull: Pull) -> String {
    let pull = tokio::time::timeout(PATIENCE, pull).await.expect("the pull ends");
    pull.expect("the pull does not panic").expect("the pull succeeds")
}

/// Asks again and again until something holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn bytes_of(image: &Image) -> u64 {
    image.blobs.iter().map(|(_, data)| data.len() as u64).sum()
}

// === impl Who ===

impl Who {
    fn sandbox(self) -> PodSandboxConfig {
        match self {
            Self::Pod(number) => PodSandboxConfig {
                metadata: Some(PodSandboxMetadata {
                    name: format!("pod-{number}"),
                    uid: format!("uid-{number}"),
                    namespace: "default".to_owned(),
                    attempt: 0,
                }),
                ..PodSandboxConfig::default()
            },
            Self::Kruise => PodSandboxConfig {
                annotations: [("apps.kruise.io/pulling-image-by".to_owned(), "kruise-daemon".to_owned())]
                    .into(),
                ..PodSandboxConfig::default()
            },
        }
    }
}
