//! Protects: an image that was pulled from another place is found under the name that pods use, unless the runtime has
//! one of that name itself; only mapped names pay for it.

use crisp::prepull::Pin;

use crate::image_list::{ImageRuntime, STATUS, image, pinned, status, status_of, status_request};
use crate::support::bytes_on_the_wire::framed;
use crate::support::in_process::InProcess;

const ID: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";
const MIRROR: &str = "mirror.example/library/nginx:1.27";
const NGINX: &str = "docker.io/library/nginx:1.27";

#[tokio::test]
async fn an_image_is_found_under_the_name_that_was_asked_for() {
    let crisp = InProcess::released(&[]);
    let there = image(ID, &[MIRROR], &[]);
    let runtime = ImageRuntime::start(&crisp.runtime_socket(), vec![there.clone()]);
    let client = crisp.client().await;
    assert!(status_of(&client, "nginx:1.27").await.is_none());
    crisp.sight.map_name("docker.io/library/nginx:1.27", MIRROR);
    for name in ["nginx:1.27", "docker.io/nginx:1.27", NGINX] {
        let reply = client.unary(STATUS, &status_request(name)).await.unwrap();
        assert_eq!(reply.bytes(), framed(&status(&there)), "as it came");
    }
    assert!(status_of(&client, "nginx:1.26").await.is_none());
    assert!(status_of(&client, MIRROR).await.is_some());
    let expected = [
        "nginx:1.27",
        "nginx:1.27",
        MIRROR,
        "docker.io/nginx:1.27",
        MIRROR,
        NGINX,
        MIRROR,
        "nginx:1.26",
        MIRROR,
    ];
    assert_eq!(runtime.asked("ImageStatus"), expected);

    let (owner, until, item) = ("a".into(), "b".into(), "c".into());
    crisp.sight.set_pins([Pin { name: MIRROR.into(), image_id: None, owner, until, item }]);
    let reply = client.unary(STATUS, &status_request(NGINX)).await.unwrap();
    assert_eq!(reply.bytes(), framed(&pinned(&status(&there), &[1])));
    crisp.sight.unmap("nginx:1.27");
    assert!(status_of(&client, NGINX).await.is_none());
}

#[tokio::test]
async fn an_image_that_the_runtime_has_itself_is_the_one() {
    let crisp = InProcess::released(&[]);
    let own = image("sha256:own", &[NGINX], &[]);
    let runtime = ImageRuntime::start(&crisp.runtime_socket(), vec![own.clone(), image(ID, &[MIRROR], &[])]);
    crisp.sight.map_name(NGINX, MIRROR);
    let client = crisp.client().await;
    assert_eq!(status_of(&client, NGINX).await.unwrap(), own);
    assert_eq!(runtime.asked("ImageStatus"), [NGINX]);
}

#[tokio::test]
async fn where_neither_is_there_the_runtimes_own_answer_stands() {
    let crisp = InProcess::released(&[]);
    crisp.sight.map_name(NGINX, MIRROR);
    let client = crisp.client().await;
    let reply = client.unary(STATUS, &status_request(NGINX)).await.unwrap();
    assert_eq!(reply.code(), "14", "no runtime: {reply:?}");
    let _runtime = ImageRuntime::start(&crisp.runtime_socket(), vec![image(ID, &["x.io/y:1"], &[])]);
    assert!(status_of(&client, NGINX).await.is_none());
}
