//! Protects: while a private image is being pulled and put away nobody finds it on crisp's socket, by name, digest or ID,
//! unless somebody else brings it or it was there before.

use crate::image_list::{
    ImageRuntime, LIST, STATUS, STREAM, image, list, listed, pull, remove, status_of, status_request,
};
use crate::support::bytes_on_the_wire::framed;
use crate::support::in_process::InProcess;

const ID: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";
const PRIVATE: &str = "registry.example/team/app:1";
const DIGEST: &str =
    "registry.example/team/app@sha256:2222222222222222222222222222222222222222222222222222222222222222";
const OTHER_ID: &str = "sha256:3333333333333333333333333333333333333333333333333333333333333333";
const OTHER: &str = "docker.io/library/nginx:1.27";

fn start() -> (InProcess, ImageRuntime) {
    let crisp = InProcess::released(&[]);
    let images = vec![image(ID, &[PRIVATE], &[DIGEST]), image(OTHER_ID, &[OTHER], &[])];
    let runtime = ImageRuntime::start(&crisp.runtime_socket(), images);
    (crisp, runtime)
}

/// Whether it is seen by name, digest, ID, list and stream, all of which must agree.
async fn is_seen(crisp: &InProcess) -> bool {
    let client = crisp.client().await;
    let mut seen = Vec::new();
    for name in [PRIVATE, DIGEST, ID] {
        seen.push(status_of(&client, name).await.is_some());
    }
    for path in [LIST, STREAM] {
        let images = list(&client, path).await;
        assert!(images.iter().any(|image| image.id == OTHER_ID), "the other one is always there");
        seen.push(images.iter().any(|image| image.id == ID));
    }
    assert!(seen.iter().all(|one| *one == seen[0]), "{seen:?}");
    seen[0]
}

#[tokio::test]
async fn a_hidden_image_is_absent_until_the_guard_is_dropped() {
    let (crisp, runtime) = start();
    assert!(is_seen(&crisp).await);
    let guard = crisp.sight.hide([PRIVATE]);
    assert!(!is_seen(&crisp).await);
    let client = crisp.client().await;
    let reply = client.unary(STATUS, &status_request(ID)).await.unwrap();
    assert_eq!(reply.bytes(), framed(b""), "as a runtime says it, verbose or not");
    // What is left in the list is as it came, unknown fields and all.
    let left = listed(&[image(OTHER_ID, &[OTHER], &[])]);
    assert!(client.unary(LIST, b"").await.unwrap().bytes().ends_with(&left));
    assert_eq!(remove(&client, ID).await.0, "0", "to remove it is no harm");
    assert_eq!(runtime.asked("RemoveImage"), [ID]);
    drop(guard);
    assert!(is_seen(&crisp).await);
    assert_eq!(crisp.metric("crisp_intercept_failures_total"), 0.0);
}

#[tokio::test]
async fn an_image_that_somebody_else_brings_is_seen_when_its_pull_is_answered() {
    let (crisp, runtime) = start();
    let guard = crisp.sight.hide([PRIVATE]);
    assert!(!is_seen(&crisp).await);
    assert!(!guard.was_brought(Some(ID)));
    assert_eq!(pull(&crisp.client().await, PRIVATE).await.code(), "0");
    assert!(guard.was_brought(None) && guard.was_brought(Some(ID)));
    assert!(is_seen(&crisp).await);
    assert_eq!(runtime.asked("PullImage"), [PRIVATE]);
}

/// The fake runtime gives the first image for whatever is pulled.
#[tokio::test]
async fn an_image_brought_under_another_name_is_seen_too() {
    let (crisp, _runtime) = start();
    let guard = crisp.sight.hide([PRIVATE]);
    assert_eq!(pull(&crisp.client().await, "mirror.example/app:1").await.code(), "0");
    assert!(guard.was_brought(Some(ID)) && !guard.was_brought(None));
    assert!(is_seen(&crisp).await);
}

#[tokio::test]
async fn an_image_that_was_there_before_is_seen() {
    let (crisp, _runtime) = start();
    let guard = crisp.sight.watch([PRIVATE]);
    assert!(is_seen(&crisp).await, "nothing is hidden yet");
    guard.hide_new([ID]);
    assert!(is_seen(&crisp).await);
    guard.hide_new([OTHER_ID]);
    assert!(!is_seen(&crisp).await);
}

#[tokio::test]
async fn a_pull_waits_while_what_crisp_pulled_is_being_removed() {
    let (crisp, runtime) = start();
    let guard = crisp.sight.hide([PRIVATE]);
    let claim = guard.claim(Some(ID)).await.unwrap();
    let client = crisp.client().await;
    let (reply, ()) = tokio::join!(pull(&client, PRIVATE), async {
        // Pulls from elsewhere go on.
        assert_eq!(pull(&client, OTHER).await.code(), "0");
        assert_eq!(runtime.asked("PullImage"), [OTHER]);
        drop(claim);
    });
    assert_eq!(reply.code(), "0");
    assert_eq!(runtime.asked("PullImage"), [OTHER, PRIVATE]);
    assert!(guard.claim(Some(ID)).await.is_none(), "it was brought");
}
