//! The embedded runtime's pulls: what comes is what was promised, or nothing is kept.

use k8s_cri::v1::AuthConfig;
use serde_json::json;
use tonic::Code;

use crate::embedded::Node;
use crate::registry::{Auth, Fault, Image, ImageBuilder, Registry, TOKEN, host_architecture, index};

fn small() -> Image {
    ImageBuilder::default().layer(&[("etc/motd", b"hello")]).noise(100_000, 1).user("1000:1000").build()
}

fn all_blobs(image: &Image) -> Vec<String> {
    let mut all: Vec<_> = image.blobs.iter().map(|(digest, _)| digest.clone()).collect();
    all.push(image.digest());
    all.sort();
    all
}

fn password(user: &str, password: &str) -> Option<AuthConfig> {
    Some(AuthConfig { username: user.into(), password: password.into(), ..Default::default() })
}

#[tokio::test]
async fn a_pull_answers_with_the_config_digest_and_keeps_every_blob() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let image = small();
    let name = registry.push("team/app:v1", &image);

    assert_eq!(node.pull(&name).await.unwrap(), image.id);

    let found = node.image(&name).await.unwrap();
    assert_eq!(found.id, image.id);
    assert_eq!(found.repo_tags, [name.as_str()]);
    assert_eq!(found.repo_digests, [format!("{}/team/app@{}", registry.host(), image.digest())]);
    assert_eq!(found.uid.unwrap().value, 1000);
    let bytes = image.blobs.iter().map(|(_, data)| data.len()).sum::<usize>() + image.manifests[0].1.len();
    assert_eq!(found.size, bytes as u64);
    assert_eq!(node.blobs(), all_blobs(&image));
    assert!(node.half_written().is_empty());
}

#[tokio::test]
async fn an_index_leads_to_the_image_for_this_host() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let here = small();
    let other = ImageBuilder::default().noise(1000, 2).architecture("mips64").build();
    let both = index(&[("mips64", &other), (host_architecture(), &here)]);
    let name = registry.push("app:multi", &both);

    assert_eq!(node.pull(&name).await.unwrap(), here.id);

    let found = node.image(&name).await.unwrap();
    assert_eq!(found.repo_digests, [format!("{}/app@{}", registry.host(), both.digest())]);
    assert_eq!(registry.requests_to(&other.layers()[0]), 0);

    let foreign = registry.push("app:foreign", &index(&[("mips64", &other)]));
    let error = node.pull(&foreign).await.unwrap_err();
    assert!(error.message().contains("no match for platform"), "{error}");
}

#[tokio::test]
async fn blobs_that_are_here_are_not_fetched_again() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let image = small();
    let name = registry.push("app:v1", &image);

    let pulls = (0..20).map(|_| node.pull(&name));
    for pulled in futures_util::future::join_all(pulls).await {
        assert_eq!(pulled.unwrap(), image.id);
    }
    node.pull(&registry.push("elsewhere:v2", &image)).await.unwrap();

    assert_eq!(registry.requests_to("/blobs/"), image.blobs.len());
    assert_eq!(node.list().await.len(), 1);
    assert_eq!(node.list().await[0].repo_tags.len(), 2);
}

#[tokio::test]
async fn what_is_not_as_promised_is_refused_and_leaves_nothing() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let image = small();
    let name = registry.push("app:v1", &image);
    let layer = &image.layers()[1];
    let by_digest = format!("{}/app@{}", registry.host(), image.digest());
    for (path, fault, name, says) in [
        (layer.as_str(), Fault::WrongByte, &name, "what came has digest"),
        (layer, Fault::Half, &name, "instead of the promised"),
        (layer, Fault::Cut, &name, "error"),
        (layer, Fault::Endless, &name, "more than the promised"),
        (layer, Fault::Status(500), &name, "unexpected status 500"),
        (layer, Fault::Status(404), &name, "not found"),
        (&image.id, Fault::WrongByte, &name, "what came has digest"),
        ("/manifests/", Fault::WrongByte, &name, "content has digest"),
        ("/manifests/", Fault::WrongByte, &by_digest, "content has digest"),
        ("/manifests/", Fault::Endless, &name, "more than 4194304 bytes"),
        ("/manifests/", Fault::Status(403), &name, "pull access denied"),
    ] {
        registry.misbehave(path, fault.clone());
        let error = node.pull(name).await.unwrap_err();
        assert!(error.message().contains(says), "{fault:?} at {path}: {error}");
        assert!(matches!(error.code(), Code::Unknown | Code::NotFound), "{error}");
        assert!(node.blobs().is_empty(), "{fault:?} at {path} left {:?}", node.blobs());
        assert!(node.list().await.is_empty());
        registry.behave();
    }
    assert_eq!(node.pull(&name).await.unwrap(), image.id);
}

#[tokio::test]
async fn absent_images_and_wrong_names_say_so() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let absent = node.pull(&format!("{}/app:nope", registry.host())).await.unwrap_err();
    assert_eq!(absent.code(), Code::NotFound);
    for wrong in ["", "Upper", "a@sha256:12", "docker://x"] {
        assert_eq!(node.pull(wrong).await.unwrap_err().code(), Code::InvalidArgument, "{wrong}");
    }
    assert!(node.image("nope").await.is_none());
}

#[tokio::test]
async fn every_kind_of_credentials_opens_the_door_and_wrong_ones_do_not() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let name = registry.push("app:v1", &small());
    let auth = |change: &dyn Fn(&mut AuthConfig)| {
        let mut auth = AuthConfig::default();
        change(&mut auth);
        Some(auth)
    };
    let base64 = auth(&|auth| auth.auth = "dXNlcjpzZWNyZXQ=".into());
    let refresh = auth(&|auth| auth.identity_token = "refresh-me".into());
    let bearer = auth(&|auth| auth.registry_token = TOKEN.into());
    for (wanted, right, wrong) in [
        (Auth::Basic("user", "secret"), password("user", "secret"), password("user", "guess")),
        (Auth::Basic("user", "secret"), base64.clone(), None),
        (Auth::AnonymousToken, None, auth(&|auth| auth.registry_token = "wrong".into())),
        (Auth::Token("user", "secret"), password("user", "secret"), password("user", "guess")),
        (Auth::Token("user", "secret"), base64, None),
        (Auth::Token("user", "secret"), bearer, None),
        (Auth::Refresh("refresh-me"), refresh, auth(&|auth| auth.identity_token = "wrong".into())),
    ] {
        registry.require(wanted.clone());
        node.pull_with(&name, right.clone()).await.unwrap_or_else(|error| panic!("{wanted:?} {error}"));
        // The image is here now, and that opens nothing: the registry decides on every pull.
        let error = node.pull_with(&name, wrong).await.unwrap_err();
        assert_eq!(error.code(), Code::Unknown);
        assert!(error.message().contains("pull access denied"), "{wanted:?}: {error}");
        for secret in ["secret", "guess", TOKEN, "refresh-me"] {
            assert!(!error.message().contains(secret), "{error}");
        }
        node.remove(&name).await;
    }
}

#[tokio::test]
async fn a_cancelled_pull_leaves_nothing_and_does_not_disturb_another() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let image = small();
    let name = registry.push("app:v1", &image);
    let mut hold = registry.hold(&image.layers()[1]);

    let cancelled = {
        let (mut images, name) = (node.images.clone(), name.clone());
        tokio::spawn(async move {
            let image = Some(crate::embedded::spec(&name));
            images.pull_image(k8s_cri::v1::PullImageRequest { image, ..Default::default() }).await
        })
    };
    hold.reached(1).await;
    cancelled.abort();
    assert!(cancelled.await.unwrap_err().is_cancelled());
    // The runtime learns of it by itself; then the second pull takes over the blob.
    let second = node.pull(&name);
    let release = async {
        hold.reached(2).await;
        drop(hold);
    };
    assert_eq!(tokio::join!(second, release).0.unwrap(), image.id);
    assert_eq!(node.blobs(), all_blobs(&image));
    node.remove(&name).await;
    assert!(node.blobs().is_empty());
}

#[tokio::test]
async fn plain_http_is_for_loopback_only() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let image = small();
    let name = registry.push("app:v1", &image);
    // This address leads to the same listener, but it is not a loopback name.
    let elsewhere = name.replace("127.0.0.1", "0.0.0.0");
    assert_eq!(node.pull(&elsewhere).await.unwrap_err().code(), Code::Unknown);
    assert!(registry.requests().is_empty(), "not a byte of HTTP may have been sent");

    let layer = &image.layers()[0];
    registry.misbehave(layer, Fault::Redirect(format!("http://{elsewhere}")));
    let error = node.pull(&name).await.unwrap_err();
    assert!(error.message().contains("redirect from a loopback registry"), "{error}");
}

#[tokio::test]
async fn shutting_down_ends_pulls_that_would_wait() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let name = registry.push("app:v1", &small());
    let mut hold = registry.hold("/blobs/");
    let pull = {
        let (mut images, name) = (node.images.clone(), name.clone());
        tokio::spawn(async move {
            let image = Some(crate::embedded::spec(&name));
            images.pull_image(k8s_cri::v1::PullImageRequest { image, ..Default::default() }).await
        })
    };
    hold.reached(1).await;
    let dir = node.stop().await;
    assert_eq!(pull.await.unwrap().unwrap_err().code(), Code::Unavailable);
    drop(hold);
    let node = Node::start_in(dir).await;
    assert!(node.blobs().is_empty() && node.half_written().is_empty());
}

#[tokio::test]
async fn hostile_manifests_are_refused() {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let good = small();
    let blob =
        |digest: &str, size: u64| json!({ "mediaType": "application/x", "digest": digest, "size": size });
    let config = blob(&good.id, good.blobs.last().unwrap().1.len() as u64);
    let zeros = format!("sha256:{}", "0".repeat(64));
    let here = json!({ "architecture": host_architecture(), "os": "linux" });
    let mut short_promise = blob(&good.digest(), 1);
    short_promise["platform"] = here.clone();
    let mut nested = blob(&zeros, 1);
    (nested["platform"], nested["mediaType"]) = (here, json!("application/vnd.oci.image.index.v1+json"));
    for (document, says) in [
        (json!({ "layers": [], "manifests": [], "config": config }), "ambiguous"),
        (json!({ "layers": [blob("sha256:../../../../etc/passwd", 1)], "config": config }), "malformed"),
        (json!({ "layers": [blob("../../x", 1)], "config": config }), "malformed"),
        (
            json!({ "layers": [blob(&format!("sha512:{}", "0".repeat(128)), 1)], "config": config }),
            "unsupported digest",
        ),
        (json!({ "layers": [], "config": blob(&good.id, 8 * 1024 * 1024 + 1) }), "config of 8388609 bytes"),
        (json!({ "layers": [blob(&zeros, u64::MAX)], "config": config }), "not found"),
        (json!({ "layers": [], "config": blob(&good.id, 1) }), "more than the promised"),
        (
            json!({ "layers": [], "config": blob(&good.layers()[0], layer_size(&good)) }),
            "malformed image config",
        ),
        (json!({ "manifests": [short_promise] }), "where the index promises 1"),
        (json!({ "manifests": [nested] }), "another index"),
        (
            json!({ "mediaType": "application/vnd.evil", "layers": [], "config": config }),
            "unsupported media type",
        ),
        (json!([1, 2, 3]), "malformed"),
    ] {
        let mut document = document;
        if let Some(fields) = document.as_object_mut() {
            fields.insert("schemaVersion".into(), json!(2));
        }
        let kind = "application/octet-stream".to_owned();
        let mut image = good.clone();
        image.manifests.push((kind, serde_json::to_vec(&document).unwrap().into()));
        let name = registry.push("hostile:v1", &image);
        let error = node.pull(&name).await.unwrap_err();
        assert!(error.message().contains(says), "{document}: {error}");
        assert!(node.blobs().is_empty(), "{document} left {:?}", node.blobs());
    }
}

fn layer_size(image: &Image) -> u64 {
    image.blobs[0].1.len() as u64
}
