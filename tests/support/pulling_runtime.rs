//! A runtime of which only pulls matter: each waits until the test lets it end.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use crisp::cri::view;
use http::HeaderMap;
use prost::Message;
use tokio::sync::watch;

use crate::support::bytes_on_the_wire::{Reply, framed};
use crate::support::fake_runtime::{FakeRuntime, Incoming};

const LAYER: &str = "layer-sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The runtime.
#[derive(Debug)]
pub(crate) struct PullingRuntime {
    _runtime: FakeRuntime,
    stage: Arc<Stage>,
}

/// Which API it has besides the CRI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Leases, and a content store with part of a layer in it that belongs to all of them.
    Containerd,
    /// Neither.
    Crio,
}

#[derive(Debug)]
struct Stage {
    kind: Kind,
    /// Pulls as they came, and those of leases as they were made and deleted.
    log: Mutex<Log>,
    /// How pulls of an image end, once they may.
    ends: watch::Sender<HashMap<String, Reply>>,
    /// The calls besides PullImage that get no answer for now.
    hung: watch::Sender<&'static [&'static str]>,
}

#[derive(Debug, Default)]
struct Log {
    pulls: Vec<Seen>,
    running: Vec<String>,
    cancelled: Vec<String>,
    leases: Vec<String>,
    /// How often somebody looked at a lease that is not there.
    looks_in_vain: usize,
}

/// A pull as the runtime saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) image: String,
    pub(crate) metadata: HeaderMap,
    pub(crate) body: Bytes,
}

/// A request to pull.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pull {
    pub(crate) image: String,
    pub(crate) password: Option<String>,
    pub(crate) handler: String,
    pub(crate) handler_annotation: Option<String>,
    /// Namespace and uid.
    pub(crate) pod: Option<(String, String)>,
    pub(crate) annotations: Vec<(String, String)>,
    pub(crate) extra: Vec<u8>,
}

// === impl PullingRuntime ===

impl PullingRuntime {
    pub(crate) fn start(socket: &Path, kind: Kind) -> Self {
        let (ends, hung) = (watch::channel(HashMap::new()).0, watch::channel::<&[&str]>(&[]).0);
        let stage = Arc::new(Stage { kind, log: Mutex::default(), ends, hung });
        let script = stage.clone();
        let runtime = FakeRuntime::start(socket, move |incoming| {
            let stage = script.clone();
            async move { stage.serve(incoming).await }
        });
        Self { _runtime: runtime, stage }
    }

    /// Pulls of this image end so from now on.
    pub(crate) fn end(&self, image: &str, reply: &Reply) {
        self.stage.ends.send_modify(|ends| {
            ends.insert(image.to_owned(), reply.clone());
        });
    }

    /// Pulls of this image with this password end so from now on.
    pub(crate) fn end_with(&self, image: &str, password: &str, reply: &Reply) {
        self.end(&format!("{image} {password}"), reply);
    }

    /// These calls are carried out but not answered, until others are named.
    pub(crate) fn hang(&self, calls: &'static [&'static str]) {
        self.stage.hung.send_replace(calls);
    }

    /// Somebody deletes all leases.
    pub(crate) fn lose_leases(&self) {
        self.stage.log.lock().unwrap().leases.clear();
    }

    /// All pulls so far.
    pub(crate) fn pulls(&self) -> Vec<Seen> {
        self.stage.log.lock().unwrap().pulls.clone()
    }

    /// How many pulls of this image there were.
    pub(crate) fn count(&self, image: &str) -> usize {
        self.pulls().iter().filter(|pull| pull.image == image).count()
    }

    /// The images that are being pulled now, sorted.
    pub(crate) fn running(&self) -> Vec<String> {
        let mut running = self.stage.log.lock().unwrap().running.clone();
        running.sort();
        running
    }

    /// The images whose pulls were cancelled, in that order.
    pub(crate) fn cancelled(&self) -> Vec<String> {
        self.stage.log.lock().unwrap().cancelled.clone()
    }

    /// How often somebody looked at a lease that is not there.
    pub(crate) fn looks_in_vain(&self) -> usize {
        self.stage.log.lock().unwrap().looks_in_vain
    }

    /// The leases there are now.
    pub(crate) fn leases(&self) -> Vec<String> {
        self.stage.log.lock().unwrap().leases.clone()
    }
}

impl Log {
    /// Does as told, and gives the answer. To list, the first field is a filter: `id=="ID"`, or our own label.
    fn lease(&mut self, method: &str, first: Option<String>) -> Reply {
        let answer = match (method, first) {
            ("Create", Some(id)) => {
                self.leases.push(id);
                Vec::new()
            }
            ("Delete", Some(id)) => {
                self.leases.retain(|lease| *lease != id);
                Vec::new()
            }
            ("List", Some(filter)) => {
                let wanted = |id: &&String| filter.starts_with("labels") || filter == format!("id==\"{id}\"");
                self.leases.iter().filter(wanted).flat_map(|id| bytes(1, &string(1, id))).collect()
            }
            ("ListResources", Some(id)) if !self.leases.contains(&id) => {
                self.looks_in_vain += 1;
                return Reply::error("5", "lease%20not%20found");
            }
            ("ListResources", _) => bytes(1, &[string(1, LAYER), string(2, "ingests")].concat()),
            _ => Vec::new(),
        };
        Reply::of(&[&answer])
    }
}

/// The reply to a pull that went well.
pub(crate) fn pulled(id: &str) -> Reply {
    Reply::of(&[&string(1, id)])
}

// === impl Stage ===

impl Stage {
    async fn serve(&self, mut incoming: Incoming) {
        let Ok(seen) = incoming.read().await else { return };
        let path = incoming.path().to_owned();
        match path.rsplit('/').next().unwrap() {
            "PullImage" => self.pull(incoming, seen.head.headers, seen.body).await,
            _ if self.kind == Kind::Crio => drop(incoming.reply(&Reply::error("12", "unimplemented")).await),
            name => {
                let message = seen.body.slice(5..);
                // The first field of every message that matters here is a lease's id.
                let id = crisp::wire::last(&message, [1])
                    .unwrap()
                    .and_then(|value| value.as_str().map(str::to_owned));
                let answer = match path.contains("Leases") {
                    true => self.log.lock().unwrap().lease(name, id),
                    // Part of a layer is there: every pull seems to be downloading.
                    false if name == "ListStatuses" => {
                        Reply::of(&[&bytes(1, &[string(3, LAYER), vec![0x20, 100]].concat())])
                    }
                    false => Reply::of(&[b""]),
                };
                let mut hung = self.hung.subscribe();
                let _ = hung.wait_for(|hung| !hung.contains(&name)).await;
                let _ = incoming.reply(&answer).await;
            }
        }
    }

    async fn pull(&self, mut incoming: Incoming, metadata: HeaderMap, body: Bytes) {
        let message = body.slice(5..);
        let request = view::PullImageRequest::decode(message.clone()).unwrap();
        let image = request.image.unwrap_or_default().image;
        let password = crisp::wire::last(&message, [2, 2]).unwrap().and_then(|value| value.as_str());
        let with_password = format!("{image} {}", password.unwrap_or_default());
        {
            let mut log = self.log.lock().unwrap();
            log.pulls.push(Seen { image: image.clone(), metadata, body });
            log.running.push(image.clone());
        }
        let mut ends = self.ends.subscribe();
        let reply = tokio::select! {
            _ = incoming.reset() => None,
            reply = ended(&mut ends, [&image, &with_password]) => Some(reply),
        };
        {
            let mut log = self.log.lock().unwrap();
            let at = log.running.iter().position(|running| *running == image).unwrap();
            log.running.remove(at);
            if reply.is_none() {
                log.cancelled.push(image);
            }
        }
        if let Some(reply) = reply {
            let _ = incoming.reply(&reply).await;
        }
    }
}

/// Waits until one of these may end.
async fn ended(ends: &mut watch::Receiver<HashMap<String, Reply>>, keys: [&String; 2]) -> Reply {
    let ends = ends.wait_for(|ends| keys.iter().any(|key| ends.contains_key(*key))).await.unwrap();
    keys.iter().find_map(|key| ends.get(*key)).unwrap().clone()
}

// === impl Pull ===

impl Pull {
    /// What crictl asks.
    pub(crate) fn bare(image: &str) -> Self {
        Self { image: image.to_owned(), ..Self::default() }
    }

    /// What a kubelet asks for a pod of this uid.
    pub(crate) fn pod(image: &str, uid: &str) -> Self {
        Self { pod: Some(("default".into(), uid.into())), ..Self::bare(image) }
    }

    /// What OpenKruise's daemon asks.
    pub(crate) fn kruise(image: &str) -> Self {
        let mark = ("apps.kruise.io/pulling-image-by".to_owned(), "kruise-daemon".to_owned());
        // In the namespace of the pods that come later: on CRI-O only those can join.
        Self { pod: Some(("default".into(), "".into())), annotations: vec![mark], ..Self::bare(image) }
    }

    pub(crate) fn with_password(self, password: &str) -> Self {
        Self { password: Some(password.to_owned()), ..self }
    }

    /// The request message.
    pub(crate) fn message(&self) -> Vec<u8> {
        let mut image = string(1, &self.image);
        for (key, value) in &self.annotations {
            image.extend(bytes(2, &[string(1, key), string(2, value)].concat()));
        }
        if !self.handler.is_empty() {
            image.extend(string(19, &self.handler));
        }
        let mut message = bytes(1, &image);
        if let Some(password) = &self.password {
            message.extend(bytes(2, &[string(1, "somebody"), string(2, password)].concat()));
        }
        if let Some((namespace, uid)) = &self.pod {
            let metadata = [string(1, "pod"), string(2, uid), string(3, namespace)].concat();
            let mut sandbox = bytes(1, &metadata);
            let handler = self.handler_annotation.iter();
            let handler =
                handler.map(|handler| ("io.containerd.cri.runtime-handler".to_owned(), handler.clone()));
            for (key, value) in self.annotations.iter().cloned().chain(handler) {
                sandbox.extend(bytes(7, &[string(1, &key), string(2, &value)].concat()));
            }
            message.extend(bytes(3, &sandbox));
        }
        [message, self.extra.clone()].concat()
    }

    /// The request as it is on the wire.
    pub(crate) fn framed(&self) -> Bytes {
        framed(&self.message())
    }
}

/// A field of text.
pub(crate) fn string(number: u32, text: &str) -> Vec<u8> {
    bytes(number, text.as_bytes())
}

/// A field of bytes.
pub(crate) fn bytes(number: u32, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut out);
    prost::encoding::encode_varint(value.len() as u64, &mut out);
    out.extend_from_slice(value);
    out
}
