//! Takes the census: lists the runtime's containers and, if one of them is new and does not say what it was made from, this
//! node's pods. One container that cannot be judged holds up no other.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use k8s_cri::v1::{Container, ImageSpec, ImageStatusRequest, ImageStatusResponse, ListContainersRequest};
use prost::Message;

use super::kept::{FILE, Kept};
use super::{Inner, State};
use crate::container::census::{self, Pods, Verdict};
use crate::cri::{Method, ask};
use crate::error::{Error, Kind, Origin};

/// How long the census waits before it asks the API server or the runtime again: at first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// How often a census is taken that nobody asked for.
const EVERY: Duration = Duration::from_secs(60);

/// How long a container whose pod is not known is left alone.
const UNKNOWN_FOR: Duration = Duration::from_secs(30);

/// How long the runtime has to answer one question, and how many it is asked at once.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
const AT_ONCE: usize = 8;

/// So many containers are named in a log line.
const NAMED: usize = 5;

/// A list of containers. They are read one by one: all of them at once take many times what is needed of them, and what a
/// process has once taken it mostly keeps.
#[derive(Clone, PartialEq, Message)]
struct Listed {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    containers: Vec<Bytes>,
}

/// Why a census has not come to its end.
enum Failed {
    /// The runtime is away: then calls have nothing to wait for.
    Runtime(Error),
    /// Something that calls do wait for: the pods, or some image's ID.
    Undecided(Error),
}

impl Inner {
    /// Takes a census whenever one is wanted, and again until it succeeds.
    pub(super) async fn take_censuses(self: Arc<Self>) {
        let mut requests = self.wanted.subscribe();
        let (mut pause, mut said) = (AGAIN.0, false);
        let mut kept = self.restore().await;
        loop {
            let wanted = *requests.borrow_and_update();
            let failed = self.census().await.err();
            if !matches!(failed, Some(Failed::Undecided(_))) {
                self.ended.send_replace(wanted);
            }
            self.keep(&mut kept).await;
            match failed {
                None => {
                    (pause, said) = (AGAIN.0, false);
                    // Who is about to replace a kubelet wants to know what is left to be judged, as long as another one
                    // makes containers past crisp.
                    let _ = tokio::time::timeout(EVERY, requests.changed()).await;
                    continue;
                }
                Some(Failed::Undecided(error)) if !said => {
                    tracing::warn!(
                        %error,
                        "some containers cannot be judged yet; if an older kubelet made them, a kubelet from 1.31 on that \
                         starts now restarts them"
                    );
                    said = true;
                }
                Some(Failed::Undecided(error) | Failed::Runtime(error)) => {
                    tracing::debug!(%error, again_in = ?pause, "no census of containers yet");
                }
            }
            let _ = tokio::time::timeout(pause, requests.changed()).await;
            pause = (pause * 2).min(AGAIN.1);
        }
    }

    async fn census(&self) -> Result<(), Failed> {
        let request = ListContainersRequest::default();
        let listed: Listed = self.ask(Method::LIST_CONTAINERS, &request).await.map_err(Failed::Runtime)?;
        let left = self.read(listed).map_err(Failed::Runtime)?;
        let (pods, mut failed) = match &self.parts.pods {
            Some(pods) if !left.is_empty() => match pods().await {
                Ok(pods) => (pods.into_iter().collect(), None),
                Err(error) => (Pods::default(), Some(error)),
            },
            _ => (Pods::default(), None),
        };
        let judged: Vec<_> =
            left.iter().map(|container| (container, census::judge(container, &pods))).collect();
        let images = self.images(judged.iter().map(|(_, verdict)| verdict)).await;

        let mut unknown = Vec::new();
        let mut state = self.lock();
        for (container, verdict) in judged {
            let id = container.id.clone();
            match verdict {
                Verdict::AsItIs => _ = state.decided.insert(id, None),
                Verdict::Answer(hash) => self.note(&mut state, container, hash),
                Verdict::IfSame { image, id: expected, hash } => match images.get(&image) {
                    Some(Ok(found)) if *found == expected => self.note(&mut state, container, hash),
                    Some(Ok(_)) => _ = state.decided.insert(id, None),
                    Some(Err(error)) => failed = Some(error.clone()),
                    None => {}
                },
                // It is asked again soon.
                Verdict::Unknown if failed.is_some() => unknown.push(container),
                Verdict::Unknown => {
                    state.unknown.insert(id, Instant::now());
                    unknown.push(container);
                }
            }
        }
        let answers = state.decided.values().flatten().count();
        self.answers.store(answers, Ordering::Relaxed);
        let waiting =
            left.iter().map(|container| &container.id).filter(|id| !state.decided.contains_key(*id));
        let undecided: HashSet<_> = waiting.chain(state.unknown.keys()).collect();
        self.parts.metrics.containers.shielded(answers, undecided.len());
        drop(state);
        match failed {
            Some(error) => Err(Failed::Undecided(error)),
            None => {
                self.tell_of_unknown(&unknown);
                Ok(())
            }
        }
    }

    /// Forgets containers that are gone, decides what containers say themselves, and gives those that are left.
    fn read(&self, listed: Listed) -> Result<Vec<Container>, Error> {
        self.lock().unknown.retain(|_, since| since.elapsed() < UNKNOWN_FOR);
        let (mut ids, mut left) = (HashSet::new(), Vec::new());
        for entry in listed.containers {
            let mut container = Container::decode(entry).map_err(|error| {
                Error::new(Kind::Internal, Origin::Runtime, format!("ListContainers: {error}"))
            })?;
            ids.insert(container.id.clone());
            // For one at a time: calls look at it too.
            let mut state = self.lock();
            if !census::matters(&container) || state.is_known(&container.id) {
                continue;
            }
            match census::judge(&container, &Pods::default()) {
                Verdict::AsItIs => _ = state.decided.insert(container.id, None),
                Verdict::Answer(hash) => self.note(&mut state, &container, hash),
                Verdict::IfSame { .. } | Verdict::Unknown => {
                    census::trim(&mut container);
                    left.push(container);
                }
            }
        }
        self.lock().forget_all_but(&ids);
        Ok(left)
    }

    /// The IDs of the images that verdicts depend on. One that is not there has none.
    async fn images<'a>(
        &self,
        verdicts: impl Iterator<Item = &'a Verdict>,
    ) -> HashMap<String, Result<String, Error>> {
        let images: BTreeSet<String> = verdicts
            .filter_map(|verdict| match verdict {
                Verdict::IfSame { image, .. } => Some(image.clone()),
                _ => None,
            })
            .collect();
        let asked = images.into_iter().map(async |image| {
            let spec = ImageSpec { image: image.clone(), ..Default::default() };
            let request = ImageStatusRequest { image: Some(spec), verbose: false };
            let reply = self.ask::<ImageStatusResponse>(Method::IMAGE_STATUS, &request).await;
            (image, reply.map(|reply| reply.image.map(|image| image.id).unwrap_or_default()))
        });
        stream::iter(asked).buffer_unordered(AT_ONCE).collect().await
    }

    async fn ask<T: Message + Default>(&self, method: Method, request: &impl Message) -> Result<T, Error> {
        let asked = ask::ask(&self.parts.runtime, method, request);
        let late =
            |_| Error::new(Kind::Unavailable, Origin::Runtime, format!("{} takes too long", method.name()));
        tokio::time::timeout(ANSWERED_WITHIN, asked).await.map_err(late)?
    }

    fn note(&self, state: &mut State, container: &Container, hash: String) {
        tracing::info!(
            id = container.id,
            container = shown(container),
            hash,
            mode = ?self.parts.settings.mode,
            "a container with a foreign hash has not changed"
        );
        state.decided.insert(container.id.clone(), Some(hash.into()));
    }

    /// Nobody can tell of these whether they need an answer: the operator should know before the kubelet is replaced.
    fn tell_of_unknown(&self, unknown: &[&Container]) {
        if unknown.is_empty() {
            return;
        }
        let (count, some) = (unknown.len(), unknown.iter().take(NAMED).map(|container| shown(container)));
        let some = some.collect::<Vec<_>>().join(", ");
        match self.parts.pods {
            Some(_) => tracing::warn!(
                count,
                some,
                "the API server has no pods of this node for some containers, so their hashes go on as they are; if these pods \
                 exist, nodeName is not this node's name"
            ),
            None => tracing::info!(
                count,
                some,
                "it is not known from what some containers were made, so their hashes go on as they are; set kubeconfig before \
                 a kubelet is upgraded to 1.31 or newer"
            ),
        }
    }

    /// Takes up what an earlier crisp has decided.
    async fn restore(&self) -> Kept {
        let dir = self.parts.state_dir.clone();
        let kept = tokio::task::spawn_blocking(move || Kept::read(&dir)).await.unwrap_or_default();
        let mut state = self.lock();
        for (id, hash) in &kept.answers {
            state.decided.insert(id.clone(), Some(hash.as_str().into()));
        }
        self.answers.store(state.decided.len(), Ordering::Relaxed);
        if let Some((agent, crisp)) = &kept.refuted
            && crisp == env!("CARGO_PKG_VERSION")
        {
            state.refuted_by = Some(agent.clone());
            self.refuted.store(true, Ordering::Relaxed);
            self.parts.metrics.containers.shield_refuted();
            tracing::warn!(
                agent,
                file = %self.parts.state_dir.join(FILE).display(),
                "the hash shield is off for a kubelet that computed hashes in another way than crisp knows; delete the file \
                 and restart crisp to try again"
            );
        }
        kept
    }

    /// Writes down what has changed since.
    async fn keep(&self, kept: &mut Kept) {
        let now = {
            let state = self.lock();
            let answers = state.decided.iter();
            Kept {
                answers: answers
                    .filter_map(|(id, hash)| Some((id.clone(), hash.as_ref()?.to_string())))
                    .collect(),
                refuted: state.refuted_by.clone().map(|agent| (agent, env!("CARGO_PKG_VERSION").to_owned())),
            }
        };
        if now == *kept {
            return;
        }
        let (dir, writing) = (self.parts.state_dir.clone(), now.clone());
        match tokio::task::spawn_blocking(move || writing.write(&dir)).await {
            Ok(Ok(())) => *kept = now,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot write down what the hash shield has decided; it decides anew after a restart");
                *kept = now;
            }
            Err(_ended) => {}
        }
    }
}

// === impl State ===

impl State {
    fn is_known(&self, id: &str) -> bool {
        self.decided.contains_key(id) || self.unknown.contains_key(id)
    }

    fn forget_all_but(&mut self, ids: &HashSet<String>) {
        self.decided.retain(|id, _| ids.contains(id));
        self.unknown.retain(|id, _| ids.contains(id));
    }
}

/// Pod and container in words.
fn shown(container: &Container) -> String {
    let label = |key: &str| container.labels.get(key).map_or("?", String::as_str);
    format!("{}/{}/{}", label(census::POD_NAMESPACE), label(census::POD_NAME), label(census::CONTAINER_NAME))
}
