//! Protects: whatever a runtime answers to containerd's own API, or does not, the client says so in time and goes on.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use containerd_client::services::v1::{
    CreateRequest, Info, InfoRequest, InfoResponse, Lease, ListResourcesResponse, ListResponse,
    ListStatusesResponse, ReadContentResponse, Resource, Status, UpdateImageRequest,
};
use crisp::containerd::{Containerd, Error, ImageRecord, Phase, Target};
use prost::Message;
use serde_json::json;
use tonic::Code;

use crate::embedded;
use crate::support::binary::Place;
use crate::support::bytes_on_the_wire::Reply;
use crate::support::fake_runtime::{FakeRuntime, Incoming};
use crate::support::wait::soon;

const LIST: &str = "/containerd.services.leases.v1.Leases/List";
const CREATE: &str = "/containerd.services.leases.v1.Leases/Create";
const RESOURCES: &str = "/containerd.services.leases.v1.Leases/ListResources";
const STATUSES: &str = "/containerd.services.content.v1.Content/ListStatuses";
const INFO: &str = "/containerd.services.content.v1.Content/Info";
const READ: &str = "/containerd.services.content.v1.Content/Read";

const MANIFEST: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
const CONFIG: &str = "sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc";
const LAYER: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn message(message: &impl Message) -> Reply {
    Reply::of(&[&message.encode_to_vec()])
}

#[tokio::test]
async fn a_runtime_without_leases_is_told_from_one_that_is_away() {
    let node = embedded::Node::start().await;
    assert!(!Containerd::new(node.endpoint()).supported().await.unwrap(), "the embedded runtime");

    let place = Place::new();
    let socket = place.runtime();
    let containerd = Containerd::new(&socket);
    let error = containerd.supported().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains(&socket.display().to_string()), "{error}");
    for (reply, expected) in [
        (Reply::error("12", "unknown service containerd.services.leases.v1.Leases"), Some(false)),
        (message(&ListResponse::default()), Some(true)),
        (Reply::error("7", "no"), None),
        (Reply::error("14", "starting"), None),
        (Reply::of(&[b"\xff\xff"]), None),
        (Reply { status: http::StatusCode::BAD_GATEWAY, ..Reply::error("0", "") }, None),
    ] {
        // The same client all the time: it finds each new runtime by itself.
        let runtime = FakeRuntime::answering(&socket, reply.clone());
        let supported = soon("an answer", containerd.supported()).await;
        assert_eq!(supported.as_ref().ok(), expected.as_ref(), "{reply:?}: {supported:?}");
        drop(runtime);
        // A call that is made before the client has seen the connection go is lost with it.
        let refused =
            |error: Error| matches!(error, Error::Unavailable { reason, .. } if reason.contains("os error"));
        while !containerd.supported().await.is_err_and(refused) {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_hangs_is_not_waited_for_for_ever() {
    let place = Place::new();
    let _runtime = FakeRuntime::start(&place.runtime(), |incoming| async move {
        std::future::pending::<()>().await;
        drop(incoming);
    });
    let containerd = Containerd::new(place.runtime());
    let none = BTreeMap::new();
    for error in [
        containerd.supported().await.unwrap_err(),
        containerd.create_lease("a", &none).await.unwrap_err(),
        containerd.delete_lease("a", true).await.unwrap_err(),
        containerd.list_leases().await.unwrap_err(),
        containerd.renew_lease("a", "b").await.unwrap_err(),
        containerd.track("a").poll().await.unwrap_err(),
        containerd.kept("a").await.unwrap_err(),
        containerd.fetched("a", std::time::SystemTime::now()).await.unwrap_err(),
        containerd.copy_lease("a", "b", "me", &none).await.unwrap_err(),
        containerd.parked_leases().await.unwrap_err(),
        containerd.lease_content("a", LAYER).await.unwrap_err(),
        containerd.lease_size("a").await.unwrap_err(),
        containerd.image("a").await.unwrap_err(),
        containerd.images().await.unwrap_err(),
        containerd.delete_image("a").await.unwrap_err(),
        containerd.create_or_update_image(&record()).await.unwrap_err(),
        containerd.alias("a", "b").await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Slow { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_connection_that_breaks_is_told_and_made_again() {
    let place = Place::new();
    let runtime = FakeRuntime::start(&place.runtime(), |incoming: Incoming| async move {
        // The first connection breaks under its first call.
        match incoming.connection.id {
            0 => incoming.connection.cut(),
            _ => drop(incoming.answer(&message(&ListResponse::default())).await),
        }
    });
    let containerd = Containerd::new(place.runtime());
    let error = soon("an answer", containerd.list_leases()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(soon("an answer", containerd.list_leases()).await.unwrap(), []);
    assert_eq!(runtime.accepted(), 2);
}

#[tokio::test]
async fn lists_may_be_as_long_as_containerds() {
    let place = Place::new();
    let list = |bytes: usize| {
        let leases = vec![Lease { id: "x".repeat(1000), ..Lease::default() }; bytes / 1000];
        message(&ListResponse { leases })
    };
    let runtime = FakeRuntime::answering(&place.runtime(), list(15_000_000));
    assert_eq!(Containerd::new(place.runtime()).list_leases().await.unwrap().len(), 15_000);
    drop(runtime);
    let _runtime = FakeRuntime::answering(&place.runtime(), list(17_000_000));
    let error = Containerd::new(place.runtime()).list_leases().await.unwrap_err();
    assert!(matches!(error, Error::Refused { code: Code::OutOfRange, .. }), "{error:?}");
}

#[tokio::test]
async fn calls_are_made_in_cris_namespace_and_only_with_what_containerd_takes() {
    let place = Place::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let runtime = FakeRuntime::start(&place.runtime(), move |incoming: Incoming| {
        let log = log.clone();
        async move {
            let seen = incoming.answer(&Reply::error("6", "lease \"a\": already exists")).await;
            log.lock().unwrap().extend(seen);
        }
    });
    let containerd = Containerd::new(place.runtime());
    let labels = BTreeMap::from([("owner".to_owned(), "me".to_owned())]);
    containerd.create_lease("a", &labels).await.unwrap();
    let seen = seen.lock().unwrap().pop().unwrap();
    assert_eq!(
        (seen.head.uri.path(), &seen.head.headers["containerd-namespace"]),
        (CREATE, &"k8s.io".parse().unwrap())
    );
    let request = CreateRequest::decode(&seen.body[5..]).unwrap();
    let mut keys: Vec<_> = request.labels.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(
        (request.id.as_str(), keys),
        ("a", vec!["containerd.io/gc.expire", "crisp.dev/lease", "owner"])
    );

    let long = BTreeMap::from([("owner".to_owned(), "x".repeat(4092))]);
    let reserved = BTreeMap::from([("containerd.io/gc.expire".to_owned(), String::new())]);
    for error in [
        containerd.create_lease("a", &long).await.unwrap_err(),
        containerd.create_lease("a", &reserved).await.unwrap_err(),
        containerd.create_lease("a b", &labels).await.unwrap_err(),
        containerd.delete_lease("", false).await.unwrap_err(),
        containerd.renew_lease("a", "a").await.unwrap_err(),
        containerd.create_parked_lease("a", &"x".repeat(4096), &labels).await.unwrap_err(),
        containerd.create_parked_lease("a", "me", &reserved).await.unwrap_err(),
        containerd.copy_lease("a", "a", "me", &labels).await.unwrap_err(),
        containerd.lease_content("a b", LAYER).await.unwrap_err(),
        containerd.alias("a", "NOT A NAME").await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    }
    assert_eq!(runtime.calls(), 1, "what cannot work is not sent");
}

fn record() -> ImageRecord {
    let target = Target {
        digest: MANIFEST.into(),
        media_type: "x/y".into(),
        size: 7,
        annotations: BTreeMap::from([("a".into(), "b".into())]),
    };
    let labels = BTreeMap::from([("a.b/c".to_owned(), "d".to_owned())]);
    ImageRecord { name: "a:1".into(), target, labels, created_at: None, updated_at: None }
}

/// One that exists is changed, but only in what was asked for; one that goes away in between is made again.
#[tokio::test]
async fn a_record_is_made_or_changed_whatever_others_do_meanwhile() {
    let exists = || Reply::error("6", "image \"a:1\": already exists");
    let gone = || Reply::error("5", "image \"a:1\": not found");
    let (done, denied) = (|| Reply::of(&[b""]), || Reply::error("7", "no"));
    for (answers, expected) in [
        (vec![("Create", done())], true),
        (vec![("Create", exists()), ("Update", done())], true),
        (vec![("Create", exists()), ("Update", gone()), ("Create", done())], true),
        (vec![("Create", denied())], false),
        (vec![("Create", exists()), ("Update", denied())], false),
        (vec![("Create", exists()), ("Update", gone()), ("Create", exists())], false),
    ] {
        let place = Place::new();
        let script = Arc::new(Mutex::new(answers.into_iter().collect::<VecDeque<_>>()));
        let left = script.clone();
        let _runtime = FakeRuntime::start(&place.runtime(), move |mut incoming: Incoming| {
            let script = script.clone();
            async move {
                let Ok(seen) = incoming.read().await else { return };
                let (method, reply) = script.lock().unwrap().pop_front().unwrap();
                assert_eq!(seen.head.uri.path(), format!("/containerd.services.images.v1.Images/{method}"));
                assert_eq!(seen.head.headers["containerd-namespace"], "k8s.io");
                if method == "Update" {
                    let request = UpdateImageRequest::decode(&seen.body[5..]).unwrap();
                    assert_eq!(request.update_mask.unwrap().paths, ["target", "labels.a.b/c"]);
                    assert_eq!(ImageRecord::from(request.image.unwrap()), record());
                }
                let _ = incoming.reply(&reply).await;
            }
        });
        let done = Containerd::new(place.runtime()).create_or_update_image(&record()).await;
        assert_eq!(done.is_ok(), expected, "{done:?}");
        assert!(left.lock().unwrap().is_empty());
    }
}

/// A content store that a test changes between two looks.
#[derive(Debug, Default)]
struct Store {
    /// What the lease holds, by kind.
    resources: Vec<(&'static str, String)>,
    ingests: Vec<(String, i64)>,
    /// Whole blobs, and whether they refer to others.
    blobs: HashMap<String, (i64, bool)>,
    manifest: Vec<Bytes>,
    reads: usize,
}

fn serve(socket: &Path, store: Arc<Mutex<Store>>) -> FakeRuntime {
    FakeRuntime::start(socket, move |mut incoming: Incoming| {
        let store = store.clone();
        async move {
            let Ok(seen) = incoming.read().await else { return };
            let reply = reply(&mut store.lock().unwrap(), seen.head.uri.path(), &seen.body[5..]);
            let _ = incoming.reply(&reply).await;
        }
    })
}

fn reply(store: &mut Store, path: &str, body: &[u8]) -> Reply {
    match path {
        RESOURCES => {
            let resource =
                |(kind, id): &(&str, String)| Resource { id: id.clone(), r#type: (*kind).to_owned() };
            message(&ListResourcesResponse { resources: store.resources.iter().map(resource).collect() })
        }
        STATUSES => {
            let status = |(r#ref, offset): &(String, i64)| Status {
                r#ref: r#ref.clone(),
                offset: *offset,
                ..Status::default()
            };
            message(&ListStatusesResponse { statuses: store.ingests.iter().map(status).collect() })
        }
        INFO => {
            let digest = InfoRequest::decode(body).unwrap().digest;
            let Some((size, refers)) = store.blobs.get(&digest).copied() else {
                return Reply::error("5", "not found");
            };
            let label = ("containerd.io/gc.ref.content.config".to_owned(), CONFIG.to_owned());
            let labels = refers.then_some(label).into_iter().collect();
            message(&InfoResponse { info: Some(Info { digest, size, labels, ..Info::default() }) })
        }
        READ => {
            store.reads += 1;
            let piece = |data: &Bytes| ReadContentResponse { offset: 0, data: data.to_vec() }.encode_to_vec();
            let pieces: Vec<_> = store.manifest.iter().map(piece).collect();
            Reply::of(&pieces.iter().map(Vec::as_slice).collect::<Vec<_>>())
        }
        LIST => message(&ListResponse::default()),
        _ => Reply::error("12", "not in this test"),
    }
}

#[tokio::test]
async fn a_pull_is_followed_from_its_lease() {
    let place = Place::new();
    let store = Arc::new(Mutex::new(Store::default()));
    let _runtime = serve(&place.runtime(), store.clone());
    let mut tracker = Containerd::new(place.runtime()).track("a");
    let progress = tracker.poll().await.unwrap();
    assert_eq!((progress.phase, progress.bytes_total), (Phase::Resolving, None));

    // The manifest is there, but containerd has not read it yet: nothing says that it is one.
    let manifest = json!({
        "schemaVersion": 2,
        "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": CONFIG, "size": 9 },
        "layers": [{ "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": LAYER, "size": 100 }],
    });
    let edit = |change: &dyn Fn(&mut Store)| change(&mut store.lock().unwrap());
    edit(&|store| {
        store.manifest = vec![manifest.to_string().into()];
        store.resources = vec![("content", MANIFEST.into())];
        store.blobs.insert(MANIFEST.into(), (400, false));
    });
    assert_eq!(tracker.poll().await.unwrap().phase, Phase::Resolving);

    edit(&|store| {
        store.blobs.insert(MANIFEST.into(), (400, true));
        store.ingests = vec![(format!("layer-{LAYER}"), 40), ("layer-sha256:other".into(), 7)];
    });
    let progress = tracker.poll().await.unwrap();
    assert_eq!(
        (progress.phase, progress.bytes_done, progress.bytes_total),
        (Phase::Downloading, 40, Some(100))
    );

    // The layer is neither here nor there while it is committed, and a negative offset is none.
    edit(&|store| store.ingests = vec![(format!("config-{CONFIG}"), -1)]);
    assert_eq!(tracker.poll().await.unwrap().bytes_done, 40);

    // The config is whole under this lease, the layer by another pull.
    edit(&|store| {
        store.ingests.clear();
        store.resources.push(("content", CONFIG.into()));
        store.blobs.insert(LAYER.into(), (100, false));
    });
    let progress = tracker.poll().await.unwrap();
    assert_eq!((progress.phase, progress.bytes_done, progress.layers_done), (Phase::Unpacking, 100, 1));
    assert_eq!(store.lock().unwrap().reads, 1, "the manifest is read once");
}

#[tokio::test]
async fn a_manifest_that_cannot_be_used_tells_no_total() {
    let place = Place::new();
    let store = Arc::new(Mutex::new(Store::default()));
    let _runtime = serve(&place.runtime(), store.clone());
    let containerd = Containerd::new(place.runtime());
    let schema1 = Bytes::from(json!({ "schemaVersion": 1, "fsLayers": [{ "blobSum": LAYER }] }).to_string());
    let piece = Bytes::from(vec![b' '; 1 << 20]);
    for (size, manifest) in [(100, vec![schema1]), (1 << 40, vec![]), (100, vec![piece; 9]), (-1, vec![])] {
        *store.lock().unwrap() = Store {
            resources: vec![("content", MANIFEST.into()), ("ingests", format!("layer-{LAYER}"))],
            blobs: HashMap::from([(MANIFEST.into(), (size, true))]),
            manifest,
            ..Store::default()
        };
        let mut tracker = containerd.track("a");
        for _ in 0..2 {
            let progress = tracker.poll().await.unwrap();
            assert_eq!((progress.phase, progress.bytes_total), (Phase::Downloading, None), "{size}");
        }
        assert!(store.lock().unwrap().reads <= 1, "it is not read again");
        assert_eq!(containerd.fetched("a", std::time::SystemTime::now()).await.unwrap(), None);
    }
}

#[tokio::test]
async fn errors_of_containerd_keep_their_words() {
    let place = Place::new();
    let _runtime = FakeRuntime::answering(&place.runtime(), Reply::error("13", "bolt: disk full"));
    let error = Containerd::new(place.runtime()).delete_lease("a", false).await.unwrap_err();
    assert!(matches!(&error, Error::Refused { code: Code::Internal, .. }), "{error:?}");
    assert_eq!(error.to_string(), "containerd refused Leases.Delete: Internal: bolt: disk full");
}
