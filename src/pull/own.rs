//! crisp's own pulls: images that are to be there before anybody asks for them.
//!
//! An own pull is a pull like any other. It waits in the same queue, shares its flight with kubelets that ask for the
//! same image with the same credentials, and gives way to them. Whoever made it hears more than a caller does: when it
//! runs and when it waits ([`OwnPull::stage`]), how far it is ([`OwnPull::progress`]), whether somebody else waited too,
//! and it may keep the lease under which it was made ([`LeaseGuard`]).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use k8s_cri::v1::{AuthConfig, ImageSpec, PodSandboxConfig, PodSandboxMetadata, PullImageRequest};
use prost::Message;
use tokio::sync::{oneshot, watch};

use crate::containerd::Progress;
use crate::cri::Raw;
use crate::error::{Error, Kind, Origin};
use crate::image::Reference;
use crate::pull::coordinator::{Coordinator, Inner, MAX_FLIGHTS, Place, ended};
use crate::pull::flight::Waiter;
use crate::pull::lease::Held;
use crate::pull::request::HANDLER_ANNOTATION;
use crate::pull::{Class, Request};

/// What an own pull asks for. It holds a credential, so that is never shown.
#[derive(Clone)]
pub struct OwnRequest<'a> {
    /// The image.
    pub reference: &'a Reference,
    /// How urgent it is.
    pub class: Class,
    /// With what it is asked for. A kubelet's pull joins this one only if it has the very same, so leave empty what
    /// kubelets leave empty: they send a name and a password.
    pub credential: Option<&'a AuthConfig>,
    /// The namespace of the pods that will use the image. CRI-O's answer depends on it.
    pub namespace: Option<String>,
    /// Labels and annotations of a sandbox, for what the runtime makes of them.
    pub labels: BTreeMap<String, String>,
    /// See `labels`.
    pub annotations: BTreeMap<String, String>,
}

/// A pull under way. Dropping it is leaving as a caller does: the flight goes on for a moment.
#[derive(Debug)]
pub struct OwnPull {
    /// Not there if there were too many pulls.
    place: Option<Place>,
    landed: oneshot::Receiver<Landed>,
    stage: watch::Receiver<OwnStage>,
    /// The answer, once it is known.
    reply: Option<(Raw, bool)>,
}

/// What an own pull is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnStage {
    /// It waits for its turn, for the first time or because it gave way.
    Queued,
    /// It is with the runtime.
    Running,
}

/// How an own pull ended.
#[derive(Debug, Clone)]
pub struct Landed {
    /// The runtime's reply, or crisp's where there is none.
    pub reply: Raw,
    /// The lease under which it succeeded. `None` on a runtime that has none, after a failure, and for the rare pull
    /// that was made without, because the lease was lost or did not come in time.
    pub lease: Option<LeaseGuard>,
    /// Whether anybody but crisp itself waited for it, at any time.
    pub others: bool,
}

/// Keeps the lease of a pull that succeeded. It is given back when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct LeaseGuard {
    guarded: Arc<Guarded>,
}

#[derive(Debug)]
struct Guarded {
    inner: Arc<Inner>,
    held: Held,
}

// === impl Coordinator ===

impl Coordinator {
    /// Makes a pull of crisp's own, or joins one under way. When there are too many it is refused at once, so that it
    /// does not get past the queue.
    pub async fn own(&self, request: Request) -> OwnPull {
        match self.join(request, Waiter::Own, |flight| flight.tell_own()).await {
            Ok((place, (landed, stage))) => OwnPull { place: Some(place), landed, stage, reply: None },
            Err(_) => {
                let error = Error::new(
                    Kind::Exhausted,
                    Origin::Crisp,
                    format!("{MAX_FLIGHTS} pulls are under way; try again when some of them have ended"),
                );
                OwnPull {
                    place: None,
                    landed: oneshot::channel().1,
                    stage: watch::channel(OwnStage::Queued).1,
                    reply: Some((Raw::error(&error), false)),
                }
            }
        }
    }
}

// === impl OwnPull ===

impl OwnPull {
    /// Waits for the end. The future may be dropped and this be called again. The lease is given once; asked again
    /// after the end, the answer is the same but for the lease.
    pub async fn landed(&mut self) -> Landed {
        if let Some((reply, others)) = &self.reply {
            return Landed { reply: reply.clone(), lease: None, others: *others };
        }
        let landed = (&mut self.landed).await.unwrap_or_else(|_| Landed {
            reply: Raw::error(&ended()),
            lease: None,
            others: false,
        });
        self.reply = Some((landed.reply.clone(), landed.others));
        landed
    }

    /// What it is doing, now and from now on. No change comes after the end.
    pub fn stage(&self) -> watch::Receiver<OwnStage> {
        self.stage.clone()
    }

    /// Looks how far it is. It costs containerd a few reads of its database; while somebody else looks, this waits for
    /// what they see. `None` if there is nothing to see: no lease (yet), a runtime that does not answer, the end.
    pub async fn progress(&self) -> Option<Progress> {
        let place = self.place.as_ref()?;
        Inner::look_now(&place.inner, place.id).await
    }

    /// Leaves, and ends the flight at once if nobody else waits. What it has fetched is kept for a while, as always.
    /// Where a kubelet has left only a moment ago, it is given the time to come back that it always has.
    pub fn cancel(mut self) {
        if let Some(place) = &mut self.place {
            place.for_good = true;
        }
    }
}

// === impl LeaseGuard ===

impl LeaseGuard {
    pub(super) fn new(inner: &Arc<Inner>, held: Held) -> Self {
        Self { guarded: Arc::new(Guarded { inner: inner.clone(), held }) }
    }

    /// The lease's name at containerd.
    pub fn id(&self) -> &str {
        &self.guarded.held.id
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let (inner, held) = (self.inner.clone(), self.held.clone());
        self.inner.handle().spawn(async move { inner.leases().release(&held).await });
    }
}

// === impl OwnRequest ===

impl fmt::Debug for OwnRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reference, class, namespace, .. } = self;
        f.debug_struct("OwnRequest")
            .field("reference", reference)
            .field("class", class)
            .field("namespace", namespace)
            .finish_non_exhaustive()
    }
}

impl Request {
    /// A request of crisp's own. Its key is that of a kubelet's request for the same image with the same credential.
    pub fn own(asked: OwnRequest<'_>) -> Self {
        let reference = asked.reference.clone().with_default_tag().to_string();
        let handler_annotation = asked.annotations.get(HANDLER_ANNOTATION).cloned().unwrap_or_default();
        let image = ImageSpec { image: reference.clone(), ..ImageSpec::default() };
        let pod = asked.namespace.clone().map(|namespace| (namespace, String::new()));
        let sandboxed = pod.is_some() || !asked.labels.is_empty() || !asked.annotations.is_empty();
        let sandbox = PodSandboxConfig {
            // No uid: there is no pod, and no runtime is to take it for one.
            metadata: asked
                .namespace
                .map(|namespace| PodSandboxMetadata { namespace, ..PodSandboxMetadata::default() }),
            labels: asked.labels.into_iter().collect(),
            annotations: asked.annotations.into_iter().collect(),
            ..PodSandboxConfig::default()
        };
        let message = PullImageRequest {
            image: Some(image),
            auth: asked.credential.cloned(),
            sandbox_config: sandboxed.then_some(sandbox),
        };
        let message = message.encode_to_vec().into();
        Self { reference, class: asked.class, pod, handler_annotation, metadata: HeaderMap::new(), message }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cri::{Call, Method};
    use crate::pull::key::{Key, KeyMaker};

    const IMAGE: &str = "docker.io/library/nginx:latest";

    /// A field of bytes; all lengths here fit into one byte, and field numbers into two.
    fn field(number: u16, value: &[u8]) -> Vec<u8> {
        let tag = number << 3 | 2;
        let tag = if tag < 128 { vec![tag as u8] } else { vec![tag as u8 | 128, (tag >> 7) as u8] };
        [tag, vec![u8::try_from(value.len()).unwrap()], value.to_vec()].concat()
    }

    /// What a kubelet sends, written by hand: the pod's annotations with the image, the pod as its sandbox, and auth only
    /// where there is a credential, of which only what is not empty.
    fn kubelets(image: &str, auth: Option<&[(u16, &str)]>, namespace: &str) -> Request {
        let annotation = [field(1, b"kubernetes.io/config.source"), field(2, b"api")].concat();
        let spec = [field(1, image.as_bytes()), field(2, &annotation), field(18, b"nginx")].concat();
        let mut message = field(1, &spec);
        if let Some(auth) = auth {
            let auth: Vec<_> =
                auth.iter().flat_map(|(number, text)| field(*number, text.as_bytes())).collect();
            message.extend(field(2, &auth));
        }
        let pod = [field(1, b"web"), field(2, b"uid"), field(3, namespace.as_bytes())].concat();
        message.extend(field(3, &[field(1, &pod), field(2, b"host"), field(7, &annotation)].concat()));
        Request::read(&Call::new(Method::PULL_IMAGE, message.into()), false).unwrap().unwrap()
    }

    fn asked<'a>(reference: &'a Reference, credential: Option<&'a AuthConfig>) -> OwnRequest<'a> {
        OwnRequest {
            reference,
            class: Class::Background,
            credential,
            namespace: Some("team".into()),
            labels: BTreeMap::from([("label".into(), "of the item".into())]),
            annotations: BTreeMap::from([("annotation".into(), "of the item".into())]),
        }
    }

    #[test]
    fn an_own_pull_and_a_kubelets_are_the_same_pull() {
        let keys = KeyMaker::new().unwrap();
        let reference = Reference::parse("nginx").unwrap();
        let login = AuthConfig { username: "me".into(), password: "secret".into(), ..AuthConfig::default() };
        let token = AuthConfig { identity_token: "t".into(), ..AuthConfig::default() };
        let other = AuthConfig { username: "me".into(), password: "another".into(), ..AuthConfig::default() };
        let (login_sent, token_sent) = ([(1, "me"), (2, "secret")], [(5, "t")]);
        for (credential, sent) in
            [(None, None), (Some(&login), Some(&login_sent[..])), (Some(&token), Some(&token_sent[..]))]
        {
            for image in ["nginx", "library/nginx", IMAGE] {
                let (own, kubelets) =
                    (Request::own(asked(&reference, credential)), kubelets(image, sent, "team"));
                assert_eq!(own.reference, IMAGE);
                for namespaced in [true, false] {
                    assert!(keys.key(&own, namespaced) == keys.key(&kubelets, namespaced), "{sent:?}");
                }
            }
            // With nothing but the image it is the same on containerd, where the namespace does not matter.
            let bare = OwnRequest {
                namespace: None,
                labels: BTreeMap::new(),
                annotations: BTreeMap::new(),
                ..asked(&reference, credential)
            };
            let bare = Request::own(bare);
            assert!(crate::wire::last(&bare.message, [3]).unwrap().is_none(), "no sandbox without need");
            let elsewhere = kubelets(IMAGE, sent, "elsewhere");
            assert!(keys.key(&bare, false) == keys.key(&elsewhere, false));
            assert!(keys.key(&bare, true) != keys.key(&elsewhere, true));
        }
        let all: Vec<Key> = [None, Some(&login), Some(&token), Some(&other)]
            .map(|credential| keys.key(&Request::own(asked(&reference, credential)), false))
            .into();
        for (at, key) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(key), "each credential is a pull of its own");
        }
    }

    #[test]
    fn a_snapshotter_of_its_own_makes_another_pull() {
        let keys = KeyMaker::new().unwrap();
        let reference = Reference::parse("nginx").unwrap();
        let plain = Request::own(asked(&reference, None));
        let mut other = asked(&reference, None);
        other.annotations.insert(HANDLER_ANNOTATION.into(), "kata".into());
        let other = Request::own(other);
        assert_eq!(other.handler_annotation, "kata");
        assert!(keys.key(&plain, false) != keys.key(&other, false));
    }

    #[test]
    fn names_with_digests_go_as_they_are_and_credentials_are_not_shown() {
        let digest = format!("sha256:{}", "0".repeat(64));
        let credential = AuthConfig { password: "secret".into(), ..AuthConfig::default() };
        let mut seen = BTreeSet::new();
        for name in [format!("a.io/b@{digest}"), format!("a.io/b:1@{digest}"), "a.io/b:1".to_owned()] {
            let reference = Reference::parse(&name).unwrap();
            let asked = asked(&reference, Some(&credential));
            assert!(!format!("{asked:?}").contains("secret"));
            let request = Request::own(asked);
            assert!(!format!("{request:?}").contains("secret"));
            let message = PullImageRequest::decode(request.message).unwrap();
            assert_eq!(message.image.unwrap().image, name);
            let sandbox = message.sandbox_config.unwrap();
            assert_eq!(sandbox.labels["label"], "of the item");
            assert_eq!(sandbox.annotations["annotation"], "of the item");
            let pod = sandbox.metadata.unwrap();
            assert_eq!((pod.namespace.as_str(), pod.uid.as_str()), ("team", ""));
            seen.insert(request.reference);
        }
        assert_eq!(seen.len(), 3);
    }
}
