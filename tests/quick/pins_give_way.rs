//! Protects: for want of disk space pins end and their images go, before a kubelet that lists images has to see to it;
//! what others have brought stays.

use crisp::admin::client;
use serde_json::{Value, json};

use crate::image_list::{LIST, list, pull};
use crate::registry::{ImageBuilder, Registry};
use crate::support::binary::{Binary, Place, crisp};
use crate::support::h2_client::Client;
use crate::support::wait::soon;

/// Starts crisp with the runtime built in, and with pins that need so much free space.
async fn start(place: &Place, log: &str, floor: &str) -> Binary {
    let mut arguments = place.arguments();
    let runtime = arguments.iter().position(|argument| argument == "--runtime-endpoint").unwrap() + 1;
    arguments[runtime] = "embedded".into();
    let floors = ["--prepull-pin-floor", floor, "--prepull-disk-floor-percent", floor];
    let mut command = crisp();
    command.args(arguments).args(floors).args(["--prepull-disk-floor-bytes", "0B"]);
    let running = place.spawn(log, command);
    running.serving().await;
    running
}

async fn get(place: &Place, path: &str) -> Value {
    client::get(&place.admin(), path).await.unwrap()
}

async fn names(client: &Client) -> Vec<String> {
    let mut names: Vec<_> = list(client, LIST).await.into_iter().flat_map(|image| image.repo_tags).collect();
    names.sort();
    names
}

#[tokio::test]
async fn pins_end_and_their_images_go() {
    let (place, registry) = (Place::new(), Registry::start().await);
    let push = |name: &str, seed| registry.push(name, &ImageBuilder::default().noise(5000, seed).build());
    let (mine, theirs, plain) = (push("mine:1", 1), push("theirs:1", 2), push("plain:1", 3));
    let mut running = start(&place, "before", "0%").await;
    let connection = place.client().await;
    assert_eq!(pull(&connection, &theirs).await.code(), "0");
    let body = json!({"items": [
        {"image": mine, "pin": "withOwner"}, {"image": theirs, "pin": "withOwner"}, {"image": plain},
    ]});
    let admin = place.admin();
    let _: Value =
        client::post(&admin, "/v1/prepull", body.to_string(), client::PATIENCE_TO_DO).await.unwrap();
    let all_there = async {
        while get(&place, "/v1/prepull?state=succeeded").await["items"].as_array().unwrap().len() < 3 {}
    };
    soon("all are there", all_there).await;
    assert_eq!(get(&place, "/v1/pins").await["items"].as_array().unwrap().len(), 2);
    assert_eq!(names(&connection).await, [mine.clone(), plain.clone(), theirs.clone()]);
    drop(connection);
    running.signal(rustix::process::Signal::TERM);
    running.exit().await;

    // No disk is that empty.
    let _running = start(&place, "after", "100%").await;
    let connection = place.client().await;
    let given_way = async { while !get(&place, "/v1/pins").await["items"].as_array().unwrap().is_empty() {} };
    soon("no pin is left", given_way).await;
    let gone = async { while names(&connection).await != [plain.clone(), theirs.clone()] {} };
    soon("only what crisp had pulled and pinned is gone", gone).await;
    let words = get(&place, "/v1/prepull/1").await["status"]["message"].clone();
    assert!(words.as_str().unwrap().contains("gave way for want of disk space"), "{words}");
}
