//! Private images: there for their owner, and for nobody else.

use axum::http::Method;
use crisp::prepull::item::{How, Item, Reason, State};
use serde_json::{Value, json};

use super::{
    Lab, PASSWORD, USER, all_names, by_digest, bytes_of, pull, pulled, requests, secret, sent, small, until,
};
use crate::registry::{Image, ImageBuilder};

/// The owner, as a kubelet has it from the pod's secret.
pub(super) const LOGIN: Option<(&str, &str)> = Some((USER, PASSWORD));

impl Lab {
    pub(super) fn secrets(&self) -> Value {
        json!([secret(&self.private, USER, PASSWORD)])
    }

    pub(super) async fn a_private_image_is_its_owners_alone(&mut self) {
        let image = small(300);
        let name = self.private.push("alone:1", &image);
        let id = self.ask(&name, json!({ "secrets": self.secrets() })).await;
        let item = self.never_seen_until_parked(id, &name, &image).await;
        let kept = item.status.kept.expect("it is kept");
        let manifests: usize = image.manifests.iter().map(|(_, data)| data.len()).sum();
        assert_eq!((kept.how, kept.bytes), (How::Parked, bytes_of(&image) + manifests as u64));
        self.is_nowhere(&name, &image).await;

        self.crisp.stop();
        self.is_not_at("the runtime alone", &self.direct, &name, &image).await;
        self.strangers_are_refused(&name, &image).await;
        self.crisp.restart();
        self.strangers_are_refused(&name, &image).await;

        let before = requests(&self.private, "alone").len();
        pulled(pull(&self.cri, &name, LOGIN)).await;
        let asked: Vec<_> = requests(&self.private, "alone").split_off(before);
        let answered: Vec<_> = asked.iter().filter(|seen| seen.status != 401).collect();
        let [head] = answered.as_slice() else { panic!("one question: {asked:#?}") };
        assert!(head.method == Method::HEAD && head.path.ends_with("/manifests/1"), "{head:?}");
        assert!(!asked.iter().any(|seen| seen.path.contains("/blobs/")), "{asked:#?}");
        self.is_seen(&name, &image).await;

        // From now on it is in sight, whatever is pre-pulled. Broke: a private `Always` asked the registry all the same, and
        // what a moved tag brought was seen by everybody.
        let before = requests(&self.private, "alone").len();
        for (owner, policy) in [("b", "IfNotPresent"), ("c", "Always")] {
            let more = json!({ "secrets": self.secrets(), "owner": owner, "policy": policy });
            let other = self.ask(&name, more).await;
            let item = self.success_of(other).await;
            assert_eq!((item.status.reason, &item.status.kept), (Reason::Present, &None), "{item:#?}");
            self.is_seen(&name, &image).await;
        }
        assert_eq!(requests(&self.private, "alone").len(), before, "nothing is asked of the registry");
        self.cancel(id).await;
        self.is_seen(&name, &image).await;
        self.tell("a private image: nowhere by tag, digest or ID, 401 for strangers, 1 HEAD and 0 blobs for its owner's pod");
    }

    /// Without credentials or with wrong ones, by any name, with crisp or past it.
    async fn strangers_are_refused(&self, name: &str, image: &Image) {
        let sockets =
            if self.crisp.socket.exists() { vec![&self.cri, &self.direct] } else { vec![&self.direct] };
        for cri in sockets {
            for asked in all_names(name, image).into_iter().take(3) {
                for login in [None, Some((USER, "not-the-password"))] {
                    let before = self.private.requests().len();
                    let refusal = pull(cri, &asked, login).await.expect("no panic").expect_err("refused");
                    let seen = self.private.requests().split_off(before);
                    assert!(
                        !seen.is_empty() && seen.iter().all(|seen| seen.status == 401),
                        "{refusal}: {seen:#?}"
                    );
                }
            }
        }
        self.is_not_at("the runtime", &self.direct, name, image).await;
    }

    /// The image is there for all, on both sockets, by all its names.
    pub(super) async fn is_seen(&self, name: &str, image: &Image) {
        for cri in [&self.cri, &self.direct] {
            for asked in all_names(name, image) {
                let found = cri.image(&asked).await.unwrap_or_else(|| panic!("{asked} is there"));
                assert_eq!(found.id, image.id);
            }
            assert!(cri.list().await.iter().any(|listed| listed.id == image.id), "{name} is listed");
        }
    }

    /// Asks crisp for the image over and over again until the item has ended.
    pub(super) async fn never_seen_until_parked(&self, id: u64, name: &str, image: &Image) -> Item {
        loop {
            let item = self.item(id).await;
            for asked in [name, &image.id] {
                assert_eq!(self.cri.image(asked).await, None, "crisp shows {asked}: {item:#?}");
            }
            let listed = self.cri.list().await;
            assert!(!listed.iter().any(|listed| listed.id == image.id), "{listed:?}");
            if item.is_finished() {
                assert_eq!(item.status.state, State::Succeeded, "{item:#?}");
                return item;
            }
        }
    }

    pub(super) async fn what_others_brought_stays_in_sight(&mut self) {
        // One that a kubelet has pulled before, and one that it pulls at the same time.
        let (before, meanwhile) = (small(310), small(312));
        let name = self.private.push("before:1", &before);
        pulled(pull(&self.cri, &name, LOGIN)).await;
        let more = json!({ "secrets": self.secrets(), "policy": "Always" });
        let id = self.ask(&name, more).await;
        assert_eq!(self.success_of(id).await.status.kept, None);
        self.is_seen(&name, &before).await;

        let name = self.private.push("meanwhile:1", &meanwhile);
        let mut hold = self.private.hold("/meanwhile/blobs/");
        let id = self.ask(&name, json!({ "secrets": self.secrets() })).await;
        hold.reached(1).await;
        let pod = pull(&self.cri, &name, LOGIN);
        until("the pod waits", async || self.crisp.metric("crisp_pull_waiters") == 2).await;
        drop(hold);
        self.private.behave();
        pulled(pod).await;
        self.is_seen(&name, &meanwhile).await;
        let item = self.success_of(id).await;
        assert_eq!(item.status.kept, None, "{item:#?}");
        self.is_seen(&name, &meanwhile).await;
        assert_eq!(sent(&self.private, "meanwhile"), bytes_of(&meanwhile), "one pull for both");
    }

    pub(super) async fn the_same_content_under_a_public_name_is_left_alone(&mut self) {
        for (seed, first) in [(320, true), (322, false)] {
            let image = small(seed);
            let (public, private) = (format!("public-{seed}:1"), format!("private-{seed}:1"));
            let (public, private) = (self.open.push(&public, &image), self.private.push(&private, &image));
            if first {
                pulled(pull(&self.cri, &public, None)).await;
            }
            let id = self.ask(&private, json!({ "secrets": self.secrets() })).await;
            assert_eq!(self.success_of(id).await.status.kept.expect("it is parked").how, How::Parked);
            if !first {
                self.is_nowhere(&private, &image).await;
                pulled(pull(&self.cri, &public, None)).await;
            }
            let is_alone = async || {
                self.is_seen(&public, &image).await;
                for cri in [&self.cri, &self.direct] {
                    let found = cri.image(&public).await.expect("the public one");
                    assert_eq!(found.repo_tags, [public.as_str()], "{found:?}");
                    assert_eq!(found.repo_digests.len(), 1, "{found:?}");
                    for name in all_names(&private, &image).into_iter().take(3) {
                        assert_eq!(cri.image(&name).await, None, "{name}");
                    }
                }
            };
            is_alone().await;
            self.cancel(id).await;
            is_alone().await;
            self.cri.remove_image(&public).await;
            until("nothing is left", async || !self.has_content(&image).await).await;
        }
        // Two tags of one repository: the one that a kubelet has pulled keeps its digest.
        let image = small(324);
        let (theirs, mine) =
            (self.private.push("tags:theirs", &image), self.private.push("tags:mine", &image));
        pulled(pull(&self.cri, &theirs, LOGIN)).await;
        let id = self.ask(&mine, json!({ "secrets": self.secrets() })).await;
        self.success_of(id).await;
        self.is_seen(&theirs, &image).await;
        assert_eq!(self.direct.image(&theirs).await.expect("theirs").repo_tags, [theirs.as_str()]);
    }

    pub(super) async fn what_is_parked_goes_with_its_last_owner(&mut self) {
        let image = small(330);
        let name = self.private.push("owners:1", &image);
        let mut ids = Vec::new();
        for owner in ["a", "b"] {
            ids.push(self.ask(&name, json!({ "secrets": self.secrets(), "owner": owner })).await);
        }
        for id in &ids {
            let item = self.success_of(*id).await;
            assert_eq!(item.status.kept.expect("it is parked").how, How::Parked);
        }
        assert_eq!(sent(&self.private, "owners"), bytes_of(&image), "one pull for both");
        self.is_nowhere(&name, &image).await;
        self.cancel(ids[0]).await;
        let leases = async |count| {
            let containerd = self.containerd.as_ref().expect("containerd");
            let parked = containerd.parked_leases().await.expect("list");
            let of_image = |lease: &&crisp::containerd::Lease| lease.labels["crisp.dev/image"] == name;
            parked.iter().filter(of_image).count() == count
        };
        until("one lease is left", async || leases(1).await).await;
        // Deleting a lease makes containerd collect its garbage.
        let containerd = self.containerd.as_ref().expect("containerd");
        containerd.create_lease("collect", &Default::default()).await.expect("create");
        containerd.delete_lease("collect", true).await.expect("delete");
        assert!(self.has_content(&image).await, "it is kept for the other");
        let before = sent(&self.private, "owners");
        let again = self.ask(&name, json!({ "secrets": self.secrets(), "owner": "c" })).await;
        self.success_of(again).await;
        assert_eq!(sent(&self.private, "owners"), before, "all of it is there");
        for id in [ids[1], again] {
            self.cancel(id).await;
        }
        until("nothing is left of it", async || !self.has_content(&image).await).await;
        self.is_nowhere(&name, &image).await;
        self.tell(
            "parked for two owners: pulled once, kept while one is left, gone from containerd with the last",
        );
    }

    /// Names, owners and repositories, all with the same content, in all orders that chance gives.
    pub(super) async fn many_private_images_at_once_leave_nothing(&mut self) {
        for round in 0..2 {
            let image = ImageBuilder::default().noise(1000, 340 + round).build();
            let mut names = Vec::new();
            for (repository, tag) in [("x", 1), ("x", 2), ("y", 1), ("z", 1)] {
                names.push(self.private.push(&format!("many-{round}-{repository}:{tag}"), &image));
            }
            names.push(by_digest(&names[0], &image));
            names.push(format!("{}@{}", names[2], image.digest()));
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let mut ids = Vec::new();
            for owner in ["a", "b", "c"] {
                let more = json!({ "secrets": self.secrets(), "owner": owner });
                ids.extend(self.ask_for(&names, more).await);
            }
            for id in &ids {
                let item = self.success_of(*id).await;
                let kept = item.status.kept.as_ref().map(|kept| kept.how);
                assert_eq!(kept, Some(How::Parked), "{item:#?}");
            }
            for name in &names {
                self.is_nowhere(name, &image).await;
            }
            for id in ids {
                self.cancel(id).await;
            }
            until("nothing is left", async || !self.has_content(&image).await).await;
        }
        self.tell("18 private items, one content under 6 names for 3 owners at once, twice: nothing in sight, nothing left");
    }

    /// CRI-O has no leases.
    pub(super) async fn private_images_are_refused_where_they_cannot_be_kept_private(&mut self) {
        let image = small(350);
        let name = self.private.push("unsupported:1", &image);
        let id = self.ask(&name, json!({ "secrets": self.secrets() })).await;
        let item = self.end_of(id).await;
        let status = &item.status;
        assert_eq!((status.state, status.reason), (State::Failed, Reason::Unsupported), "{item:#?}");
        assert!(status.message.contains("shared"), "what to do: {item:#?}");
        assert_eq!(requests(&self.private, "unsupported").len(), 0);
        let more = json!({ "secrets": self.secrets(), "visibility": "shared", "pin": "withOwner" });
        let shared = self.ask(&name, more).await;
        assert_eq!(self.success_of(shared).await.status.kept.expect("a pin").how, How::Pinned);
        assert!(self.cri.image(&name).await.expect("it is there for all").pinned);
        self.tell(
            "a private image is refused as Unsupported, with `visibility: shared` it is pulled and pinned",
        );
    }
}
