//! Protects: an image that is to stay is pinned wherever the kubelet looks, and stays; nothing else about it, nor about
//! any other image, changes by a byte.

use bytes::Bytes;
use crisp::prepull::Pin;
use k8s_cri::v1::{Image, ListImagesRequest};
use prost::Message;
use tokio::sync::mpsc;

use crate::image_list::{
    ImageRuntime, LIST, STATUS, STREAM, UNKNOWN, body, image, list, listed, pinned, remove, status,
    status_of, status_request,
};
use crate::support::bytes_on_the_wire::{Reply, framed};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::in_process::InProcess;
use crate::support::wait::eventually;

const ID: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";
const NGINX: &str = "docker.io/library/nginx:1.27";
const MIRROR: &str = "quay.io/mirror/nginx:1.27";
const DIGEST: &str =
    "docker.io/library/nginx@sha256:2222222222222222222222222222222222222222222222222222222222222222";
const OTHER_ID: &str = "sha256:3333333333333333333333333333333333333333333333333333333333333333";
const PAUSE_ID: &str = "sha256:4444444444444444444444444444444444444444444444444444444444444444";

fn pin(name: &str) -> Pin {
    Pin {
        name: name.into(),
        image_id: None,
        owner: "team-a".into(),
        until: "2026-09-01T00:00:00Z".into(),
        item: "17".into(),
    }
}

fn images() -> Vec<Image> {
    vec![
        image(OTHER_ID, &["docker.io/library/nginx:1.26"], &[]),
        image(ID, &[NGINX, MIRROR], &[DIGEST]),
        Image { pinned: true, ..image(PAUSE_ID, &["registry.k8s.io/pause:3.10"], &[]) },
    ]
}

fn start() -> (InProcess, ImageRuntime) {
    let crisp = InProcess::released(&[]);
    let runtime = ImageRuntime::start(&crisp.runtime_socket(), images());
    (crisp, runtime)
}

#[tokio::test]
async fn a_pinned_image_is_pinned_in_all_calls_and_all_else_stays() {
    let (crisp, _runtime) = start();
    let client = crisp.client().await;
    let all = images();
    let [before, marked, after] = [0, 1, 2].map(|n| Bytes::from(listed(&all[n..=n])));
    for name in ["nginx:1.27", MIRROR, DIGEST] {
        crisp.sight.set_pins([pin(name)]);
        let marked = pinned(&marked, &[]);
        let list = client.unary(LIST, b"").await.unwrap();
        let whole: Bytes = [&before[..], &marked, &after].concat().into();
        assert_eq!(list.bytes(), body(&[whole]), "{name}");
        let stream = client.unary(STREAM, b"").await.unwrap();
        assert_eq!(stream.bytes(), body(&[before.clone(), marked, after.clone()]), "{name}");
        for asked in [ID, NGINX, DIGEST] {
            let reply = client.unary(STATUS, &status_request(asked)).await.unwrap();
            assert_eq!(reply.bytes(), framed(&pinned(&status(&all[1]), &[1])), "{name} {asked}");
        }
        let reply = client.unary(STATUS, &status_request(OTHER_ID)).await.unwrap();
        assert_eq!(reply.bytes(), framed(&status(&all[0])));
    }
    assert!(status_of(&client, PAUSE_ID).await.unwrap().pinned, "the runtime's own pins are its own");
    crisp.sight.set_pins([]);
    assert_eq!(client.unary(LIST, b"").await.unwrap().bytes(), framed(&listed(&all)));
    assert!(!status_of(&client, ID).await.unwrap().pinned);
    assert_eq!(crisp.metric("crisp_intercept_failures_total"), 0.0);
}

#[tokio::test]
async fn a_pinned_image_is_not_removed_by_any_of_its_names() {
    let (crisp, runtime) = start();
    let client = crisp.client().await;
    crisp.sight.set_pins([pin("nginx:1.27")]);
    list(&client, LIST).await;
    for name in [ID, &ID[7..], &ID[7..20], NGINX, "nginx:1.27", MIRROR, DIGEST] {
        let (code, words) = remove(&client, name).await;
        assert_eq!(code, "9", "{name}: {words}");
        let expected = format!(
            "crisp: the image \"{name}\" is pinned as nginx:1.27 by team-a until 2026-09-01T00:00:00Z, so it is not \
             removed; `crisp pins` lists the pins, `crisp queue cancel 17` ends this one"
        );
        assert_eq!(words, expected);
    }
    assert_eq!(remove(&client, OTHER_ID).await.0, "0");
    assert_eq!(remove(&client, "nginx:1.26").await.0, "0");
    crisp.sight.set_pins([pin("other")]);
    assert_eq!(remove(&client, ID).await.0, "0", "its pin has ended");
    crisp.sight.set_pins([]);
    assert_eq!(remove(&client, NGINX).await.0, "0");
    assert_eq!(runtime.asked("RemoveImage"), [OTHER_ID, "nginx:1.26", ID, NGINX]);
}

/// Before anything was listed: by what the pin itself says, by ImageStatus, by a stream.
#[tokio::test]
async fn a_pinned_image_is_known_by_whatever_told_of_it() {
    for path in [None, Some(STREAM), Some(STATUS)] {
        let (crisp, _runtime) = start();
        let client = crisp.client().await;
        crisp.sight.set_pins([pin("nginx:1.27")]);
        assert_eq!(remove(&client, NGINX).await.0, "9");
        assert_eq!(remove(&client, ID).await.0, "0", "nothing has told that this is the one");
        match path {
            None => crisp.sight.set_pins([Pin { image_id: Some(ID.into()), ..pin("nginx:1.27") }]),
            Some(STREAM) => drop(list(&client, STREAM).await),
            Some(_) => drop(status_of(&client, NGINX).await),
        }
        assert_eq!(remove(&client, ID).await.0, "9");
    }
}

#[tokio::test]
async fn a_full_list_replaces_what_earlier_ones_told_and_a_filtered_one_does_not() {
    let (crisp, runtime) = start();
    let client = crisp.client().await;
    crisp.sight.set_pins([pin("nginx:1.27")]);
    list(&client, LIST).await;
    drop(runtime);
    let runtime = ImageRuntime::start(&crisp.runtime_socket(), images()[..1].to_vec());
    let filter = k8s_cri::v1::ImageFilter {
        image: Some(k8s_cri::v1::ImageSpec { image: OTHER_ID.into(), ..Default::default() }),
    };
    let filtered = ListImagesRequest { filter: Some(filter) }.encode_to_vec();
    assert_eq!(client.unary(LIST, &filtered).await.unwrap().code(), "0");
    assert_eq!(remove(&client, ID).await.0, "9");
    assert_eq!(list(&client, LIST).await.len(), 1);
    eventually("the image is forgotten", || crisp.sight.pins_of(ID).is_empty()).await;
    assert_eq!(remove(&client, ID).await.0, "0");
    assert_eq!(runtime.asked("RemoveImage"), [ID]);
}

/// Otherwise a kubelet that lists images to free space would find them pinned, and evict a pod.
#[tokio::test]
async fn a_list_waits_until_pins_have_given_way() {
    let (crisp, _runtime) = start();
    let client = crisp.client().await;
    let (keeper, mut asks) = mpsc::channel(1);
    crisp.sight.kept_by(keeper);
    crisp.sight.set_pins([pin(NGINX)]);
    list(&client, LIST).await;
    assert!(asks.try_recv().is_err(), "nothing is kept that could give way");
    crisp.sight.set_keeps(true);
    for path in [LIST, STREAM] {
        crisp.sight.set_pins([pin(NGINX)]);
        let gives_way = async {
            let asked = asks.recv().await.unwrap();
            crisp.sight.set_pins([]);
            asked.send(()).unwrap();
        };
        let (listed, ()) = tokio::join!(list(&client, path), gives_way);
        assert!(listed.iter().all(|image| image.id == PAUSE_ID || !image.pinned), "{path}");
    }

    // Nobody waits for a keeper that has enough to do, or that is gone.
    crisp.sight.set_pins([pin(NGINX)]);
    let waiting = client.ask(LIST, b"").await;
    eventually("it is asked", || !asks.is_empty()).await;
    list(&client, LIST).await;
    drop(asks);
    assert_eq!(waiting.reply().await.unwrap().code(), "0");
    assert!(list(&client, LIST).await.iter().any(|image| image.id == ID && image.pinned));
}

#[tokio::test]
async fn what_cannot_be_read_goes_on_as_it_came_and_is_counted() {
    let crisp = InProcess::released(&[]);
    crisp.sight.set_pins([pin("nginx:1.27")]);
    let (invalid, odd): (&[u8], &[u8]) = (b"\x0a\x7f", UNKNOWN);
    let reply = Reply::of(&[invalid, odd]);
    let _runtime = FakeRuntime::answering(&crisp.runtime_socket(), reply.clone());
    let client = crisp.client().await;
    for (path, failures) in [(LIST, 1.0), (STREAM, 2.0), (STATUS, 3.0)] {
        assert_eq!(client.unary(path, b"").await.unwrap().bytes(), reply.bytes(), "{path}");
        assert_eq!(
            crisp.metric("crisp_intercept_failures_total{feature=\"images\",step=\"reply\"}"),
            failures
        );
    }
    for path in [LIST, STATUS, crate::image_list::REMOVE] {
        assert_eq!(client.unary(path, invalid).await.unwrap().bytes(), reply.bytes(), "{path}");
    }
    assert_eq!(crisp.metric("crisp_intercept_failures_total{feature=\"images\",step=\"plan\"}"), 3.0);
}
