//! Image records on a real containerd: second names, and images that are kept without any. Written once, and run by the
//! tests of one node and by e2e on other versions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::http::Method;
use containerd_client::services::v1::InfoRequest;
use containerd_client::services::v1::content_client::ContentClient;
use crisp::containerd::{Containerd, Error, LEASE_LABEL, PARKED_LABEL, cri_name};
use crisp::image::Reference;
use tonic::Code;
use tonic::transport::Endpoint;

use crate::lab::client::Cri;
use crate::lab::containerd::Containerd as Node;
use crate::registry::{Image, ImageBuilder, Registry, host_architecture, index};

/// How long anything may take on a busy machine before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

struct Lab {
    node: Node,
    registry: Registry,
    cri: Cri,
    containerd: Containerd,
}

/// Everything, on one node. Each part has images and leases of its own.
pub(crate) async fn run(node: Node) {
    let registry = Registry::start().await;
    node.trust(&registry.host());
    let (cri, containerd) = (Cri::new(&node.socket), Containerd::new(&node.socket));
    let lab = Lab { node, registry, cri, containerd };
    lab.a_pull_leaves_three_records().await;
    lab.a_second_name_is_as_good_as_the_first().await;
    lab.names_move_on().await;
    lab.what_cannot_be_named_is_said_so().await;
    lab.a_parked_image_is_nowhere_and_costs_one_question().await;
    lab.parking_leaves_others_images_alone().await;
    lab.an_image_can_be_parked_without_its_pulls_lease().await;
}

fn small(seed: u64) -> Image {
    ImageBuilder::default().noise(50_000, seed).noise(20_000, seed + 1).build()
}

fn reference(name: &str) -> Reference {
    Reference::parse(name).expect("an image name")
}

/// The image's repository with a digest.
fn by_digest(name: &str, digest: &str) -> String {
    format!("{}@{digest}", reference(name).name())
}

// === impl Lab ===

impl Lab {
    async fn a_pull_leaves_three_records(&self) {
        let image = small(100);
        let name = self.registry.push("three:1", &image);
        let digest = image.digest();
        for asked in [name.clone(), by_digest(&name, &digest), format!("{name}@{digest}")] {
            let id = self.cri.pull(&asked, None).await.expect("the pull succeeds");
            assert_eq!(id, image.id);
            let mut expected =
                self.containerd.records_of_pull(&reference(&asked), &id).await.expect("records");
            let mut found = self.names_of(&digest).await;
            expected.sort();
            found.sort();
            assert_eq!(expected, found, "{asked}");
            let record = self.containerd.image(&cri_name(&reference(&asked))).await.expect("get");
            let record = record.expect("a record");
            assert_eq!(record.labels["io.cri-containerd.image"], "managed");
            assert_eq!(record.target.size as usize, image.manifests.last().expect("a manifest").1.len());
            assert!(record.created_at.is_some() && record.updated_at >= record.created_at);
            self.cri.remove_image(&id).await;
        }
        assert_eq!(self.containerd.image(&name).await.expect("get"), None);
        let none = self.containerd.records_of_pull(&reference(&name), &image.id).await;
        assert_eq!(none.expect("records"), [""; 0]);
        self.containerd.delete_image(&name).await.expect("what is not there is as good as deleted");
    }

    /// Both for a manifest and for an index, of which containerd has only one manifest.
    async fn a_second_name_is_as_good_as_the_first(&self) {
        let other = if host_architecture() == "s390x" { "amd64" } else { "s390x" };
        let (mine, foreign) = (small(110), ImageBuilder::default().architecture(other).build());
        let many = index(&[(other, &foreign), (host_architecture(), &mine)]);
        for (repository, image) in [("plain", small(112)), ("many", many)] {
            let name = self.registry.push(&format!("{repository}:1"), &image);
            let id = self.cri.pull(&name, None).await.expect("the pull succeeds");
            // As a runtime that imports images may leave it.
            self.containerd.delete_image(&id).await.expect("delete");
            let digest = image.digest();
            let second = format!("docker.io/alias/{repository}:9");
            self.containerd.alias(&name, &format!("alias/{repository}:9")).await.expect("alias");
            let third = format!("other.example/{repository}@{digest}");
            let both = format!("other.example/{repository}:5@{digest}");
            self.containerd.alias(&second, &both).await.expect("alias of an alias");
            let names = [
                &name,
                &second,
                &third,
                &both,
                &by_digest(&second, &digest),
                &by_digest(&name, &digest),
                &id,
            ];
            for name in names {
                self.until(name, true).await;
                assert_eq!(self.cri.image(name).await.map(|image| image.id), Some(id.clone()), "{name}");
            }
            let image = self.cri.image(&second).await.expect("an image");
            assert!(image.repo_tags.contains(&name) && image.repo_tags.contains(&second), "{image:?}");
            assert!(image.repo_digests.contains(&third), "{image:?}");
            let record = self.containerd.image(&third).await.expect("get").expect("a record");
            assert_eq!(record.labels["io.cri-containerd.image"], "managed");

            self.cri.remove_image(&id).await;
            for name in names {
                self.until(name, false).await;
            }
            assert_eq!(self.names_of(&digest).await, [""; 0], "all records are gone");
        }
    }

    async fn names_move_on(&self) {
        let (old, new) = (small(120), small(122));
        let (old_name, new_name) = (self.registry.push("old:1", &old), self.registry.push("new:1", &new));
        for name in [&old_name, &new_name] {
            self.cri.pull(name, None).await.expect("the pull succeeds");
        }
        let alias = "docker.io/library/moving:1";
        for (name, image) in [(&old_name, &old), (&new_name, &new), (&new_name, &new)] {
            self.containerd.alias(name, alias).await.expect("alias");
            self.until(alias, true).await;
            let began = Instant::now();
            while self.cri.image(alias).await.is_none_or(|found| found.id != image.id) {
                assert!(began.elapsed() < PATIENCE, "waited in vain for CRI to follow");
            }
        }
        // Labels that others have set stay.
        let mut record = self.containerd.image(alias).await.expect("get").expect("a record");
        record.labels = BTreeMap::from([("of.others/label".to_owned(), "x".to_owned())]);
        self.containerd.create_or_update_image(&record).await.expect("update");
        self.containerd.alias(&old_name, alias).await.expect("alias");
        let labels = self.containerd.image(alias).await.expect("get").expect("a record").labels;
        assert_eq!((labels.len(), labels["of.others/label"].as_str()), (2, "x"), "{labels:?}");
        for image in [&old, &new] {
            self.cri.remove_image(&image.id).await;
        }
        self.until(alias, false).await;
    }

    async fn what_cannot_be_named_is_said_so(&self) {
        let image = small(130);
        let name = self.registry.push("wrong:1", &image);
        let missing = self.containerd.alias(&name, "a:1").await.expect_err("no such image");
        assert!(missing.is_not_found() && missing.to_string().contains(&name), "{missing}");
        self.cri.pull(&name, None).await.expect("the pull succeeds");
        let other = format!("a@sha256:{}", "0".repeat(64));
        for wrong in ["", "A", &image.id, &other] {
            let error = self.containerd.alias(&name, wrong).await.expect_err("no image name");
            assert!(matches!(error, Error::Invalid(_)), "{wrong}: {error}");
        }
        self.containerd.alias(&image.id, "by-id:1").await.expect("an ID is a name too");
        self.until("by-id:1", true).await;
        self.cri.remove_image(&image.id).await;
    }

    async fn a_parked_image_is_nowhere_and_costs_one_question(&self) {
        let image = small(140);
        let name = self.registry.push("parked:1", &image);
        let names = self.park(&name, "parked-1", &[]).await;
        assert_eq!(names.len(), 3, "{names:?}");
        for name in names.iter().chain([&format!("{name}@{}", image.digest())]) {
            self.until(name, false).await;
        }
        assert_eq!(self.names_of(&image.digest()).await, [""; 0]);

        let leases = self.containerd.parked_leases().await.expect("list");
        let [lease] = leases.as_slice() else { panic!("one parked lease: {leases:?}") };
        assert_eq!((lease.id.as_str(), lease.parked_for()), ("parked-1", Some("team/job")));
        assert_eq!(lease.labels["crisp.dev/image"], name);
        assert!(!lease.labels.contains_key(LEASE_LABEL));
        assert_eq!(self.containerd.list_leases().await.expect("list"), [], "nothing that a pull has left");
        let size = bytes_of(&image);
        assert_eq!(self.containerd.lease_size("parked-1").await.expect("size"), size);
        self.containerd.renew_lease("parked-1", "parked-2").await.expect("renew");
        let renewed = self.containerd.parked_leases().await.expect("list").pop().expect("a lease");
        assert_eq!(
            (renewed.id.as_str(), &renewed.labels[PARKED_LABEL]),
            ("parked-2", &lease.labels[PARKED_LABEL])
        );
        assert_eq!(self.containerd.lease_size("parked-2").await.expect("size"), size);

        // Whoever may, has it at once.
        let before = self.registry.requests().len();
        self.cri.pull(&name, None).await.expect("the pull succeeds");
        let asked: Vec<_> =
            self.registry.requests().into_iter().skip(before).map(|seen| seen.method).collect();
        assert_eq!(asked, [Method::HEAD], "one question, and no blob");
        assert!(self.cri.image(&name).await.is_some());

        // Parked again, and given up.
        self.park(&name, "parked-3", &[]).await;
        self.containerd.delete_lease("parked-2", true).await.expect("delete");
        assert!(self.has(&image.layers()[0]).await, "the other lease keeps it");
        self.containerd.delete_lease("parked-3", true).await.expect("delete");
        for digest in image.layers().iter().chain([&image.id, &image.digest()]) {
            assert!(!self.has(digest).await, "{digest} is gone");
        }
        let before = self.registry.requests_to("parked/blobs/");
        self.cri.pull(&name, None).await.expect("the pull succeeds");
        assert_eq!(self.registry.requests_to("parked/blobs/") - before, 3, "all of it comes again");
        self.cri.remove_image(&name).await;
    }

    async fn parking_leaves_others_images_alone(&self) {
        let image = small(150);
        let (public, private) =
            (self.registry.push("public:1", &image), self.registry.push("private:1", &image));
        self.cri.pull(&public, None).await.expect("the pull succeeds");
        let before = self.names_of(&image.digest()).await;
        let names = self.park(&private, "parked", &before).await;
        assert_eq!(names, [private.clone(), by_digest(&private, &image.digest())], "the ID was there before");
        for name in &names {
            self.until(name, false).await;
        }
        self.containerd.delete_lease("parked", true).await.expect("delete");
        for name in [&public, &by_digest(&public, &image.digest()), &image.id] {
            let found = self.cri.image(name).await.expect("the public one is there");
            assert_eq!((found.id.as_str(), &found.repo_tags), (image.id.as_str(), &vec![public.clone()]));
        }
        for digest in image.layers().iter().chain([&image.id, &image.digest()]) {
            assert!(self.has(digest).await, "{digest} is there");
        }
        self.cri.remove_image(&public).await;
        assert_eq!(self.names_of(&image.digest()).await, [""; 0]);
    }

    /// A pull may have had to do without a lease. What its record stands for is enough to keep all of it.
    async fn an_image_can_be_parked_without_its_pulls_lease(&self) {
        let many = index(&[(host_architecture(), &small(160))]);
        let name = self.registry.push("unleased:1", &many);
        let id = self.cri.pull(&name, None).await.expect("the pull succeeds");
        let record = self.containerd.image(&name).await.expect("get").expect("a record");
        self.containerd.create_parked_lease("late", "me", &BTreeMap::new()).await.expect("create");
        self.containerd.lease_content("late", &record.target.digest).await.expect("lease");
        let size = self.containerd.lease_size("late").await.expect("size");
        assert_eq!(size, bytes_of(&many), "all that the index refers to");
        for name in self.containerd.records_of_pull(&reference(&name), &id).await.expect("records") {
            self.containerd.delete_image(&name).await.expect("delete");
            self.until(&name, false).await;
        }
        // Deleting a lease makes the garbage collector run.
        self.create("other").await;
        self.containerd.delete_lease("other", true).await.expect("delete");
        let before = self.registry.requests().len();
        self.cri.pull(&name, None).await.expect("the pull succeeds");
        assert_eq!(self.registry.requests().len() - before, 1, "nothing was lost");
        self.containerd.delete_lease("late", true).await.expect("delete");
        self.cri.remove_image(&id).await;
    }

    /// Pulls under a lease, copies it and deletes the records, those that were there before apart. Gives their names.
    async fn park(&self, name: &str, parked: &str, before: &[String]) -> Vec<String> {
        self.create("flight").await;
        let id = self.cri.pull(name, Some("flight")).await.expect("the pull succeeds");
        let labels = BTreeMap::from([("crisp.dev/image".to_owned(), name.to_owned())]);
        self.containerd.copy_lease("flight", parked, "team/job", &labels).await.expect("copy");
        self.containerd.delete_lease("flight", true).await.expect("delete");
        let mut names = self.containerd.records_of_pull(&reference(name), &id).await.expect("records");
        names.retain(|name| !before.contains(name));
        for name in &names {
            self.containerd.delete_image(name).await.expect("delete");
        }
        names
    }

    /// Asks CRI until it says what is expected.
    async fn until(&self, name: &str, there: bool) {
        let began = Instant::now();
        while self.cri.image(name).await.is_some() != there {
            assert!(began.elapsed() < PATIENCE, "{name}: CRI does not follow");
        }
    }

    async fn create(&self, lease: &str) {
        self.containerd.create_lease(lease, &BTreeMap::new()).await.expect("create a lease");
    }

    /// The names of all records of a target.
    async fn names_of(&self, target: &str) -> Vec<String> {
        let records = self.containerd.images().await.expect("list");
        records
            .into_iter()
            .filter(|record| record.target.digest == target)
            .map(|record| record.name)
            .collect()
    }

    /// Whether containerd has this blob.
    async fn has(&self, digest: &str) -> bool {
        let channel = Endpoint::from_shared(self.node.endpoint()).expect("an endpoint").connect_lazy();
        let mut request = tonic::Request::new(InfoRequest { digest: digest.to_owned() });
        request.metadata_mut().insert("containerd-namespace", "k8s.io".parse().expect("metadata"));
        match ContentClient::new(channel).info(request).await {
            Ok(_) => true,
            Err(status) if status.code() == Code::NotFound => false,
            Err(status) => panic!("{status}"),
        }
    }
}

/// All that containerd keeps of an image.
fn bytes_of(image: &Image) -> u64 {
    let manifests: usize = image.manifests.iter().map(|(_, data)| data.len()).sum();
    manifests as u64 + image.blobs.iter().map(|(_, data)| data.len() as u64).sum::<u64>()
}
