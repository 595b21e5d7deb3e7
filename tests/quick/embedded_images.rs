//! The embedded runtime's image store: names, removal, what is on disk, and what a restart finds.

use std::os::unix::fs::PermissionsExt as _;

use k8s_cri::v1::{ImageFsInfoRequest, ImageStatusRequest, VersionRequest};

use crate::embedded::{Node, spec};
use crate::registry::{ImageBuilder, Registry};

#[tokio::test]
async fn an_image_is_found_by_every_name_it_has() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let image = ImageBuilder::default().layer(&[("a", b"a")]).user("nobody").build();
    let name = registry.push("app", &image);
    node.pull(&format!("{}/app", registry.host())).await.unwrap();

    let hex = image.id.strip_prefix("sha256:").unwrap();
    let by_digest = format!("{}/app@{}", registry.host(), image.digest());
    let both = format!("{name}@{}", image.digest());
    for known in [&name, &format!("{}/app", registry.host()), &image.id, hex, &hex[..12], &by_digest, &both] {
        assert_eq!(node.image(known).await.expect(known).username, "nobody");
    }
    for unknown in ["app", "", "sha256:", &image.digest(), &format!("{}/app:v2", registry.host())] {
        assert!(node.image(unknown).await.is_none(), "{unknown}");
    }
    let verbose = ImageStatusRequest { image: Some(spec(&name)), verbose: true };
    let info = node.images.clone().image_status(verbose).await.unwrap().into_inner().info;
    let info: serde_json::Value = serde_json::from_str(&info["info"]).unwrap();
    assert_eq!(info["imageSpec"]["config"]["User"], "nobody");
}

#[tokio::test]
async fn a_tag_that_moves_leaves_the_old_image_with_its_digest() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let (old, new) =
        (ImageBuilder::default().noise(10, 1).build(), ImageBuilder::default().noise(10, 2).build());
    let name = registry.push("app:v1", &old);
    node.pull(&name).await.unwrap();
    registry.push("app:v1", &new);
    assert_eq!(node.pull(&name).await.unwrap(), new.id);

    let left = node.image(&old.id).await.unwrap();
    assert!(left.repo_tags.is_empty());
    assert_eq!(left.repo_digests.len(), 1);
    assert_eq!(node.image(&name).await.unwrap().id, new.id);
    node.remove(&old.id).await;
    assert_eq!(node.list().await.len(), 1);
}

#[tokio::test]
async fn removal_gives_back_what_no_other_image_needs() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let base = ImageBuilder::default().noise(50_000, 1);
    let (one, two) = (base.clone().noise(10_000, 2).build(), base.noise(10_000, 3).build());
    let (first, second) = (registry.push("one", &one), registry.push("two", &two));
    node.pull(&first).await.unwrap();
    node.pull(&second).await.unwrap();
    let full = used_bytes(&node).await;

    node.remove(&first).await;
    assert!(node.blobs().contains(&two.layers()[0]), "the shared layer stays");
    assert!(!node.blobs().contains(&one.layers()[1]));
    assert!(used_bytes(&node).await < full);
    node.remove(&two.id).await;
    assert!(node.blobs().is_empty());
    node.remove("absent").await;
}

#[tokio::test]
async fn what_a_pull_in_progress_needs_is_not_collected() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let base = ImageBuilder::default().noise(1000, 1);
    let (one, two) = (base.clone().build(), base.noise(1000, 2).build());
    let (first, second) = (registry.push("one", &one), registry.push("two", &two));
    node.pull(&first).await.unwrap();
    let mut hold = registry.hold(&two.layers()[1]);

    // The second pull found the shared layer and waits for its own; meanwhile the first image goes.
    let removal = async {
        hold.reached(1).await;
        node.remove(&first).await;
        drop(hold);
    };
    assert_eq!(tokio::join!(node.pull(&second), removal).0.unwrap(), two.id);
    assert_eq!(registry.requests_to(&two.layers()[0]), 1);
    assert_eq!(node.list().await.len(), 1);
}

#[tokio::test]
async fn a_restart_finds_the_images_and_clears_what_was_half_written() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let (one, two) =
        (ImageBuilder::default().noise(1000, 1).build(), ImageBuilder::default().noise(10, 2).build());
    let (first, second) = (registry.push("one:v1", &one), registry.push("two:v1", &two));
    node.pull(&first).await.unwrap();
    node.pull(&second).await.unwrap();
    let before = node.list().await;
    std::fs::write(node.layout().join("ingest/half"), "half").unwrap();
    std::fs::write(node.layout().join("blobs/sha256").join("0".repeat(64)), "of no image").unwrap();

    let node = node.restart().await;
    assert_eq!(node.list().await, before);
    assert!(node.half_written().is_empty());
    assert!(!node.blobs().iter().any(|blob| blob.ends_with("000000")));

    // An image whose layer is gone is dropped, the other stays.
    let dir = node.stop().await;
    let layer = one.layers()[0].replace("sha256:", "images/blobs/sha256/");
    std::fs::remove_file(dir.path().join(layer)).unwrap();
    let node = Node::start_in(dir).await;
    assert_eq!(node.list().await.len(), 1);
    assert_eq!(node.pull(&first).await.unwrap(), one.id);
}

#[tokio::test]
async fn the_disk_holds_an_oci_layout_that_only_we_can_reach() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let image = ImageBuilder::default().noise(1000, 1).build();
    let name = registry.push("app:v1", &image);
    node.pull(&name).await.unwrap();

    let read = |file: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(node.layout().join(file)).unwrap()).unwrap()
    };
    assert_eq!(read("oci-layout")["imageLayoutVersion"], "1.0.0");
    let index = read("index.json");
    assert_eq!(index["schemaVersion"], 2);
    assert_eq!(index["manifests"][0]["digest"], image.digest());
    assert_eq!(index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"], name);
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(node.endpoint()), 0o600);
    assert_eq!(mode(node.dir.path()), 0o700);
    assert!(crisp::runtime::start(node.dir.path()).await.unwrap_err().to_string().contains("in use"));

    let info = node.images.clone().image_fs_info(ImageFsInfoRequest {}).await.unwrap().into_inner();
    let fs = &info.image_filesystems[0];
    assert_eq!(fs.fs_id.as_ref().unwrap().mountpoint, node.layout().to_str().unwrap());
    assert!(fs.used_bytes.unwrap().value > 1000);
    // Three blobs, oci-layout, index.json, and the directories images, ingest, blobs, sha256.
    assert_eq!(fs.inodes_used.unwrap().value, 9);
}

#[tokio::test]
async fn version_is_what_a_kubelet_accepts() {
    let node = Node::start().await;
    let version = node.runtime.clone().version(VersionRequest::default()).await.unwrap().into_inner();
    assert_eq!(version.version, "0.1.0");
    assert_eq!(version.runtime_name, "crisp-embedded");
    assert_eq!(version.runtime_version, env!("CARGO_PKG_VERSION"));
    assert_eq!(version.runtime_api_version, "v1");
}

async fn used_bytes(node: &Node) -> u64 {
    let info = node.images.clone().image_fs_info(ImageFsInfoRequest {}).await.unwrap().into_inner();
    info.image_filesystems[0].used_bytes.unwrap().value
}

#[tokio::test]
async fn an_index_that_cannot_be_read_is_named_and_left_alone() {
    let dir = Node::start().await.stop().await;
    let index = dir.path().join("images/index.json");
    std::fs::write(&index, "{").unwrap();
    let error = crisp::runtime::start(dir.path()).await.unwrap_err().to_string();
    assert!(error.contains("index.json"), "{error}");
    assert_eq!(std::fs::read(&index).unwrap(), b"{");
}
