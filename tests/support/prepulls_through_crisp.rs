//! Pre-pulls on real runtimes: asked for over the admin API, seen as kubelets, tenants and the registry see them.
//! Written once, and run by the tests of one node and by e2e on other runtimes.

#[path = "prepulls_through_crisp/disk.rs"]
mod disk;
#[path = "prepulls_through_crisp/joins.rs"]
mod joins;
#[path = "prepulls_through_crisp/names.rs"]
mod names;
#[path = "prepulls_through_crisp/remains.rs"]
mod remains;
#[path = "prepulls_through_crisp/secrets.rs"]
mod secrets;
#[path = "prepulls_through_crisp/tenancy.rs"]
mod tenancy;

use std::process::Command;
use std::time::{Duration, Instant};

use containerd_client::services::v1::InfoRequest;
use containerd_client::services::v1::content_client::ContentClient;
use crisp::admin::client::{self, ClientError, PATIENCE_TO_DO};
use crisp::admin::prepull::{Cancelled, Retried, Taken};
use crisp::containerd::Containerd;
use crisp::image::Reference;
use crisp::prepull::item::{Id, Item, State};
use k8s_cri::v1::{AuthConfig, ImageSpec, PodSandboxConfig, PodSandboxMetadata, PullImageRequest};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use crate::lab::client::{Cri, version};
use crate::lab::crisp::Crisp;
use crate::lab::node::Node;
use crate::lab::process::run as command;
use crate::registry::{Auth, Image, ImageBuilder, Registry, Seen};

/// How long anything may take on a busy machine before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who may pull from the private registry. None of these words occurs anywhere else.
const USER: &str = "owner-of-the-images";
const PASSWORD: &str = "tr0ub4dor-and-three";

/// crisp's options: all is logged, and the machine's own disk may be as full as it likes.
const OPTIONS: [&str; 10] = [
    "--log-level",
    "debug",
    "--pull-max-background",
    "2",
    "--prepull-disk-floor-percent",
    "0%",
    "--prepull-pin-floor",
    "0%",
    "--prepull-disk-floor-bytes",
    "0B",
];

/// Space for images on a containerd, in MiB. It costs memory only as far as it is used.
const SPACE: u64 = 512;

/// A real runtime with crisp in front of it, and registries.
struct Lab {
    node: Node,
    crisp: Crisp,
    /// One that serves everybody, one that asks for a password, and one that has nothing.
    open: Registry,
    private: Registry,
    empty: Registry,
    /// Through crisp, and past it.
    cri: Cri,
    direct: Cri,
    /// The runtime's own API, which only containerd has.
    containerd: Option<Containerd>,
    figures: Vec<String>,
    began: Instant,
}

type Pull = JoinHandle<Result<String, Status>>;

/// Everything, on one node. Returns figures for people.
pub(crate) async fn run(node: Node) -> Vec<String> {
    let mut lab = Lab::new(node).await;
    lab.digests_are_names_too().await;
    lab.overridden_images_are_found_under_their_own_names().await;
    lab.always_asks_and_if_not_present_does_not().await;
    lab.the_second_secret_is_tried().await;
    lab.wrong_secrets_fail_with_the_registrys_words().await;
    lab.a_pod_joins_a_pre_pull().await;
    lab.cancelling_ends_a_pull_at_once().await;
    lab.a_dry_run_leaves_nothing().await;
    if lab.containerd.is_some() {
        lab.a_private_image_is_its_owners_alone().await;
        lab.what_others_brought_stays_in_sight().await;
        lab.the_same_content_under_a_public_name_is_left_alone().await;
        lab.what_is_parked_goes_with_its_last_owner().await;
        lab.many_private_images_at_once_leave_nothing().await;
        lab.a_private_pull_that_is_cancelled_leaves_nothing().await;
        lab.a_crash_after_a_private_pull_leaves_nothing().await;
        lab.a_crash_costs_nobody_an_image().await;
        lab.a_pause_costs_nobody_an_image().await;
        lab.an_outage_of_the_runtime_leaves_nothing().await;
        lab.a_pre_pull_gives_way_and_goes_on().await;
    } else {
        lab.private_images_are_refused_where_they_cannot_be_kept_private().await;
    }
    lab.an_item_waits_for_disk_space().await;
    lab.no_secret_was_written().await;
    lab.figures
}

// === impl Lab ===

impl Lab {
    async fn new(mut node: Node) -> Self {
        let (open, private, empty) =
            (Registry::start().await, Registry::start().await, Registry::start().await);
        private.require(Auth::Basic(USER, PASSWORD));
        for registry in [&open, &private, &empty] {
            node.trust(&registry.host());
        }
        if let Node::Containerd(_) = &node {
            give_space(&mut node);
        }
        let crisp = Crisp::start_with(&node.endpoint(), &OPTIONS);
        let (cri, direct) = (Cri::new(&crisp.socket), Cri::new(node.socket()));
        let containerd = match &node {
            Node::Containerd(node) => Some(Containerd::new(&node.socket)),
            Node::Crio(_) => None,
        };
        Self {
            node,
            crisp,
            open,
            private,
            empty,
            cri,
            direct,
            containerd,
            figures: Vec::new(),
            began: Instant::now(),
        }
    }

    /// Asks for an image and gives its number. `more` are further fields of the item.
    async fn ask(&self, image: &str, more: Value) -> Id {
        self.ask_for(&[image], more).await[0]
    }

    /// Asks for several images at once.
    async fn ask_for(&self, images: &[&str], more: Value) -> Vec<Id> {
        let items = images.iter().map(|image| item(image, &more));
        let body = json!({ "items": items.collect::<Vec<_>>() }).to_string();
        let taken = client::post::<Taken>(&self.crisp.admin, "/v1/prepull", body, PATIENCE_TO_DO).await;
        taken.expect("the items are taken").items.into_iter().map(|item| item.id).collect()
    }

    async fn item(&self, id: Id) -> Item {
        self.try_item(id).await.expect("an item")
    }

    async fn try_item(&self, id: Id) -> Result<Item, ClientError> {
        client::get(&self.crisp.admin, &format!("/v1/prepull/{id}")).await
    }

    async fn cancel(&self, id: Id) {
        let cancelled = client::delete::<Cancelled>(&self.crisp.admin, &format!("/v1/prepull/{id}")).await;
        assert_eq!(cancelled.expect("it is cancelled").cancelled, 1);
        self.try_item(id).await.expect_err("it is gone");
    }

    async fn retry(&self, id: Id) {
        let path = format!("/v1/prepull/{id}/retry");
        let retried = client::post::<Retried>(&self.crisp.admin, &path, "", PATIENCE_TO_DO).await;
        assert_eq!(retried.expect("it is tried again").retried, 1);
    }

    /// Waits for an item's end.
    async fn end_of(&self, id: Id) -> Item {
        self.until_item(id, "ends", Item::is_finished).await
    }

    /// Waits for an item's end, which has to be a good one.
    async fn success_of(&self, id: Id) -> Item {
        let item = self.end_of(id).await;
        assert_eq!(item.status.state, State::Succeeded, "{item:#?}");
        item
    }

    async fn until_item(&self, id: Id, what: &str, holds: impl Fn(&Item) -> bool) -> Item {
        let began = Instant::now();
        loop {
            let item = self.item(id).await;
            if holds(&item) {
                return item;
            }
            assert!(began.elapsed() < PATIENCE, "waited in vain until {what}: {item:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Nobody finds the image by any of its names, and no list has it, whomever one asks.
    async fn is_nowhere(&self, name: &str, image: &Image) {
        for (place, cri) in [("crisp", &self.cri), ("the runtime", &self.direct)] {
            self.is_not_at(place, cri, name, image).await;
        }
        if let Some(containerd) = &self.containerd {
            let records = containerd.images().await.expect("list");
            let left: Vec<_> =
                records.iter().filter(|record| record.target.digest == image.digest()).collect();
            assert!(left.is_empty(), "{name}: {left:#?}");
        }
    }

    async fn is_not_at(&self, place: &str, cri: &Cri, name: &str, image: &Image) {
        for asked in all_names(name, image) {
            assert_eq!(cri.image(&asked).await, None, "{place} has {asked}");
        }
        let mut listed = cri.list().await;
        match cri.stream().await {
            Ok(images) => listed.extend(images),
            Err(status) => assert_eq!(status.code(), Code::Unimplemented, "{status}"),
        }
        let repository = format!("{}@", reference(name).name());
        let is_it = |listed: &k8s_cri::v1::Image| {
            let of_it = |other: &String| other == name || other.starts_with(&repository);
            listed.id.ends_with(image.id.trim_start_matches("sha256:"))
                || listed.repo_tags.iter().chain(&listed.repo_digests).any(of_it)
        };
        let found: Vec<_> = listed.iter().filter(|listed| is_it(listed)).collect();
        assert!(found.is_empty(), "{place} lists {found:?}");
    }

    /// Asks again and again until nobody finds the image.
    async fn until_nowhere(&self, name: &str, image: &Image) {
        let gone = async || {
            let mut gone = self.cri.image(name).await.is_none();
            for name in all_names(name, image) {
                gone &= self.direct.image(&name).await.is_none();
            }
            gone
        };
        until(&format!("{name} is nowhere"), gone).await;
        self.is_nowhere(name, image).await;
    }

    /// Whether containerd has any blob of the image.
    async fn has_content(&self, image: &Image) -> bool {
        let channel = Endpoint::from_shared(self.node.endpoint()).expect("an endpoint").connect_lazy();
        let mut content = ContentClient::new(channel);
        for (digest, _) in &image.blobs {
            let mut request = tonic::Request::new(InfoRequest { digest: digest.clone() });
            request.metadata_mut().insert("containerd-namespace", "k8s.io".parse().expect("metadata"));
            match content.info(request).await {
                Ok(_) => return true,
                Err(status) => assert_eq!(status.code(), Code::NotFound, "{status}"),
            }
        }
        false
    }

    /// Notes a figure.
    fn tell(&mut self, figure: &str) {
        let runtime = version(self.node.socket()).expect("a version");
        let figure = format!("{} {}: {figure}", runtime.runtime_name, runtime.runtime_version);
        println!("{:>6.1?} {figure}", self.began.elapsed());
        self.figures.push(figure);
    }
}

/// Lets a containerd have its snapshots on a filesystem of its own, so that nobody else fills it.
fn give_space(node: &mut Node) {
    let Node::Containerd(containerd) = &*node else { return };
    let place = containerd.scratch.join("root/io.containerd.snapshotter.v1.overlayfs");
    node.kill();
    std::fs::create_dir_all(&place).expect("make a folder");
    let size = format!("size={SPACE}m");
    command(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "crisp-lab"]).arg(&place));
    node.restart();
}

/// An item of the admin API.
fn item(image: &str, more: &Value) -> Value {
    let mut item = more.clone();
    item["image"] = image.into();
    item
}

/// What the owner of private images shows, as an item has it.
fn secret(registry: &Registry, user: &str, password: &str) -> Value {
    json!({ "registry": registry.host(), "username": user, "password": password })
}

/// Starts a pull as a kubelet does for a pod.
fn pull(cri: &Cri, image: &str, login: Option<(&str, &str)>) -> Pull {
    let mut images = cri.images.clone();
    let request = PullImageRequest {
        image: Some(ImageSpec { image: image.to_owned(), ..ImageSpec::default() }),
        auth: login.map(|(user, password)| AuthConfig {
            username: user.to_owned(),
            password: password.to_owned(),
            ..AuthConfig::default()
        }),
        sandbox_config: Some(PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: "pod".to_owned(),
                uid: "uid".to_owned(),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            ..PodSandboxConfig::default()
        }),
    };
    tokio::spawn(async move { Ok(images.pull_image(request).await?.into_inner().image_ref) })
}

/// The reply of a pull that has to succeed.
async fn pulled(pull: Pull) -> String {
    let pull = tokio::time::timeout(PATIENCE, pull).await.expect("the pull ends");
    pull.expect("the pull does not panic").expect("the pull succeeds")
}

/// The requests to one repository so far.
fn requests(registry: &Registry, repository: &str) -> Vec<Seen> {
    let part = format!("/v2/{repository}/");
    registry.requests().into_iter().filter(|seen| seen.path.starts_with(&part)).collect()
}

/// Bytes of blobs that came from one repository so far.
fn sent(registry: &Registry, repository: &str) -> u64 {
    let requests = requests(registry, repository);
    requests.iter().filter(|seen| seen.path.contains("/blobs/")).map(|seen| seen.sent).sum()
}

/// Asks again and again until something holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// An image of two layers.
fn small(seed: u64) -> Image {
    ImageBuilder::default().noise(50_000, seed).noise(20_000, seed + 1).build()
}

fn reference(name: &str) -> Reference {
    Reference::parse(name).expect("an image name")
}

/// The image's repository with its digest.
fn by_digest(name: &str, image: &Image) -> String {
    format!("{}@{}", reference(name).name(), image.digest())
}

/// All that one can call an image: by tag, by digest, by both, by its ID.
fn all_names(name: &str, image: &Image) -> Vec<String> {
    let bare = image.id.trim_start_matches("sha256:").to_owned();
    let both = format!("{name}@{}", image.digest());
    vec![name.to_owned(), by_digest(name, image), both, image.id.clone(), bare]
}

fn bytes_of(image: &Image) -> u64 {
    image.blobs.iter().map(|(_, data)| data.len() as u64).sum()
}
