//! A runtime of which only its images matter, and what a caller of crisp sees of them.

use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use crisp::wire::{Patch, last};
use k8s_cri::v1::{
    Image, ImageSpec, ImageStatusRequest, ImageStatusResponse, ListImagesResponse, PullImageRequest,
    RemoveImageRequest,
};
use prost::Message;

use crate::support::bytes_on_the_wire::{Reply, framed};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::h2_client::Client;
use crate::support::random::field;

pub(crate) const LIST: &str = "/runtime.v1.ImageService/ListImages";
pub(crate) const STREAM: &str = "/runtime.v1.ImageService/StreamImages";
pub(crate) const STATUS: &str = "/runtime.v1.ImageService/ImageStatus";
pub(crate) const PULL: &str = "/runtime.v1.ImageService/PullImage";
pub(crate) const REMOVE: &str = "/runtime.v1.ImageService/RemoveImage";

/// A field that no CRI message has.
pub(crate) const UNKNOWN: &[u8] = b"\xba\x3e\x07unknown";

/// The runtime. Images are found by ID, tag and digest, names must be in full; a pull brings an image named like what is
/// pulled under the ID of the first image.
#[derive(Debug)]
pub(crate) struct ImageRuntime {
    _runtime: FakeRuntime,
    /// Names of calls that came, and the image that each named.
    calls: Arc<Mutex<Vec<(String, String)>>>,
}

// === impl ImageRuntime ===

impl ImageRuntime {
    pub(crate) fn start(socket: &Path, images: Vec<Image>) -> Self {
        let calls: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
        let log = calls.clone();
        let runtime = FakeRuntime::start(socket, move |mut incoming| {
            let (images, log) = (images.clone(), log.clone());
            async move {
                let Ok(seen) = incoming.read().await else { return };
                let method = incoming.path().rsplit('/').next().unwrap().to_owned();
                if incoming.path().contains("Leases") {
                    return drop(incoming.reply(&Reply::error("12", "no")).await);
                }
                let message = seen.body.slice(5..);
                let name = last(&message, [1, 1]).unwrap().and_then(|value| value.as_str());
                let name = name.unwrap_or_default().to_owned();
                let reply = match method.as_str() {
                    "ListImages" => Reply::of(&[&listed(&images)]),
                    "StreamImages" => {
                        let parts: Vec<_> =
                            images.iter().map(|image| listed(std::slice::from_ref(image))).collect();
                        Reply::of(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>())
                    }
                    "ImageStatus" => {
                        let found =
                            images.iter().find(|image| image.id == name || names(image).contains(&name));
                        Reply::of(&[&found.map(status).unwrap_or_default()])
                    }
                    "PullImage" => Reply::of(&[&field(1, images[0].id.as_bytes())]),
                    _ => Reply::of(&[b""]),
                };
                log.lock().unwrap().push((method, name));
                let _ = incoming.reply(&reply).await;
            }
        });
        Self { _runtime: runtime, calls }
    }

    /// The images that calls of this method named.
    pub(crate) fn asked(&self, method: &str) -> Vec<String> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|(name, _)| name == method).map(|(_, image)| image.clone()).collect()
    }
}

/// An image with a size, and a name for what it is.
pub(crate) fn image(id: &str, tags: &[&str], digests: &[&str]) -> Image {
    let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Image { id: id.into(), repo_tags: all(tags), repo_digests: all(digests), size: 4711, ..Image::default() }
}

fn names(image: &Image) -> Vec<String> {
    image.repo_tags.iter().chain(&image.repo_digests).cloned().collect()
}

/// The bytes of a list, with an unknown field in each image and behind it.
pub(crate) fn listed(images: &[Image]) -> Vec<u8> {
    let element =
        |image: &Image| [field(1, &[UNKNOWN, &image.encode_to_vec()].concat()), UNKNOWN.to_vec()].concat();
    images.iter().flat_map(element).collect()
}

/// The bytes of a verbose status, with unknown fields.
pub(crate) fn status(image: &Image) -> Vec<u8> {
    let entry = [field(1, b"info"), field(2, b"{}")].concat();
    [field(1, &[UNKNOWN, &image.encode_to_vec()].concat()), UNKNOWN.to_vec(), field(2, &entry)].concat()
}

/// The same image, pinned the way crisp does it: a field more at its end.
pub(crate) fn pinned(message: &[u8], path: &[u32]) -> Bytes {
    let mark = |image: &[u8]| Some(Patch::new().set([8], true)).filter(|_| !image.is_empty());
    let patch = match path {
        [] => Patch::new().each([1], mark),
        path => Patch::new().set([path, &[8]].concat(), true),
    };
    patch.apply(&Bytes::copy_from_slice(message)).unwrap()
}

/// What ListImages, or StreamImages, says.
pub(crate) async fn list(client: &Client, path: &str) -> Vec<Image> {
    let reply = client.unary(path, b"").await.unwrap();
    assert_eq!(reply.code(), "0");
    let (mut bytes, mut images) = (reply.bytes(), Vec::new());
    while !bytes.is_empty() {
        let size = u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize;
        let message = bytes.split_to(5 + size).slice(5..);
        images.extend(ListImagesResponse::decode(message).unwrap().images);
    }
    images
}

/// What ImageStatus says of a name.
pub(crate) async fn status_of(client: &Client, name: &str) -> Option<Image> {
    let reply = client.unary(STATUS, &status_request(name)).await.unwrap();
    assert_eq!(reply.code(), "0");
    let message = reply.bytes().slice(5..);
    let found = ImageStatusResponse::decode(message.clone()).unwrap().image;
    assert_eq!(found.is_none(), message.is_empty(), "nothing is said of an image that is not there");
    found
}

pub(crate) fn status_request(name: &str) -> Vec<u8> {
    ImageStatusRequest { image: spec(name), verbose: true }.encode_to_vec()
}

/// The code and the words of RemoveImage.
pub(crate) async fn remove(client: &Client, name: &str) -> (String, String) {
    let request = RemoveImageRequest { image: spec(name) }.encode_to_vec();
    let reply = client.unary(REMOVE, &request).await.unwrap();
    let words = reply.message().replace("%20", " ").replace("%22", "\"").replace("%60", "`");
    (reply.code().to_owned(), words)
}

/// Pulls as the kubelet does, and gives the whole reply.
pub(crate) async fn pull(client: &Client, name: &str) -> Reply {
    let request = PullImageRequest { image: spec(name), ..PullImageRequest::default() };
    client.unary(PULL, &request.encode_to_vec()).await.unwrap()
}

/// All messages, framed, one behind the other.
pub(crate) fn body(messages: &[Bytes]) -> Bytes {
    messages.iter().map(|message| framed(message)).collect::<Vec<_>>().concat().into()
}

fn spec(name: &str) -> Option<ImageSpec> {
    Some(ImageSpec { image: name.to_owned(), ..ImageSpec::default() })
}
