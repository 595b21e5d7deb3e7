//! Protects: `crisp prepull`, `crisp queue`, `crisp pins` and the admin API behind them: what they answer, in which form,
//! with which exit code, and that no secret is in any of it.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use crisp::admin::client::{self, ClientError};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::registry::{Auth, Fault, Image, ImageBuilder, Registry};
use crate::support::binary::{Binary, Place, crisp, free_address};
use crate::support::http_get::get;
use crate::support::wait::{eventually, soon};

/// A crisp with the runtime built in, and a registry.
struct Node {
    place: Place,
    registry: Registry,
    admin: String,
    running: Binary,
}

// === impl Node ===

impl Node {
    async fn start(more: &[&str]) -> Self {
        let place = Place::new();
        let running = start(&place, "log", more).await;
        let admin = format!("unix://{}", place.admin().display());
        Self { running, registry: Registry::start().await, admin, place }
    }

    fn push(&self, name: &str, seed: u64) -> String {
        self.registry.push(name, &image(seed))
    }

    fn command(&self, line: &[&str]) -> Command {
        let mut command = crisp();
        command.args(line).args(["--admin-listen", &self.admin]);
        command
    }

    async fn run(&self, line: &[&str]) -> Output {
        run(self.command(line), "").await
    }

    /// Runs a command that must go well, and gives what it says.
    async fn say(&self, line: &[&str]) -> String {
        let output = self.run(line).await;
        assert_eq!(output.status.code(), Some(0), "{line:?}: {}", err(&output));
        out(&output)
    }

    async fn json(&self, line: &[&str]) -> Value {
        serde_json::from_str(&self.say(&[line, &["-o", "json"]].concat()).await).unwrap()
    }

    /// Starts a command and leaves it running.
    fn begin(&self, line: &[&str]) -> Child {
        let mut command = self.command(line);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The state and the reason of an item.
    async fn standing(&self, id: u64) -> (String, String) {
        let item: Value = client::get(&self.place.admin(), &format!("/v1/prepull/{id}")).await.unwrap();
        let word = |key: &str| item["status"][key].as_str().unwrap().to_owned();
        (word("state"), word("reason"))
    }

    async fn until(&self, id: u64, state: &str) {
        let look = async { while self.standing(id).await.0 != state {} };
        soon(&format!("item {id} is {state}"), look).await;
    }
}

fn image(seed: u64) -> Image {
    ImageBuilder::default().layer(&[("etc/motd", b"hello")]).noise(10_000, seed).build()
}

/// Starts crisp with the runtime built in. How full this machine's disk is does not matter.
async fn start(place: &Place, name: &str, more: &[&str]) -> Binary {
    let mut command = crisp();
    let mut arguments = place.arguments();
    let runtime = arguments.iter().position(|argument| argument == "--runtime-endpoint").unwrap() + 1;
    arguments[runtime] = "embedded".into();
    command.args(arguments).args(more).args(["--prepull-pin-floor", "0%"]);
    command.args(["--prepull-disk-floor-percent", "0%", "--prepull-disk-floor-bytes", "0B"]);
    let running = place.spawn(name, command);
    running.serving().await;
    running
}

async fn run(mut command: Command, input: &str) -> Output {
    let input = input.to_owned();
    let ended = tokio::task::spawn_blocking(move || {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It may have ended without reading.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    });
    soon("the command's end", ended).await.unwrap()
}

async fn end(child: Child) -> Output {
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    soon("the command's end", ended).await.unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn ids(listed: &Value) -> Vec<u64> {
    listed["items"].as_array().unwrap().iter().map(|item| item["id"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn images_are_asked_for_and_waited_for() {
    let node = Node::start(&[]).await;
    let (one, two) = (node.push("one:v1", 1), node.push("two:v1", 2));

    let said = node.say(&["prepull", &one, &two, "--wait", "--pin", "24h"]).await;
    for part in [&format!("{one}: succeeded (Pulled)"), &format!("{two}: succeeded"), "2 succeeded, 0 failed"]
    {
        assert!(said.contains(part), "{part} is missing in:\n{said}");
    }
    let listed = node.json(&["queue", "list"]).await;
    assert_eq!(listed["items"][0]["class"], "normal", "somebody waited");
    assert_eq!(listed["items"][1]["state"], "succeeded");

    let again = node.json(&["prepull", &one, "--wait", "--pin", "24h"]).await;
    assert_eq!(again["items"][0]["reason"], "Present", "{again}");

    let pins = node.json(&["pins"]).await;
    assert_eq!(ids(&pins), [1, 2]);
    assert_eq!(pins["items"][0]["how"], "pinned");
    assert!(pins["pinnedBytes"].as_u64().unwrap() > 20_000, "{pins}");
    let table = node.say(&["pins"]).await;
    assert!(
        table.starts_with("ID") && table.contains(&one) && table.contains("pinned, 0 B parked"),
        "{table}"
    );

    let status = node.say(&["status"]).await;
    assert!(status.contains("0 waiting, 0 pulling, 2 succeeded, 0 failed; "), "{status}");
    let status = node.json(&["status"]).await;
    assert_eq!(status["prepull"]["succeeded"], 2);
}

#[tokio::test]
async fn an_image_that_fails_is_told_with_the_registrys_words() {
    let node = Node::start(&[]).await;
    let good = node.push("good:v1", 1);
    let absent = format!("{}/absent:v1", node.registry.host());

    let output = node.run(&["prepull", &good, &absent, "--wait", "--retries", "0"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(out(&output).contains("1 succeeded, 1 failed"), "{}", out(&output));
    let said = err(&output);
    assert!(said.starts_with("IMAGE") && said.contains(&absent) && said.contains("NotFound"), "{said}");
    assert!(!said.contains(&good), "{said}");

    let output = node.run(&["prepull", &absent, "--wait", "--retries", "0", "-o", "json"]).await;
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["items"][0]["reason"], "NotFound", "{json}");

    // Mended, and tried again.
    let failed = node.json(&["queue", "list", "--state", "failed"]).await;
    let id = ids(&failed)[0];
    let shown = node.say(&["queue", "show", &id.to_string()]).await;
    for part in ["failed (NotFound)", "owner       cli", "TIME", "waiting"] {
        assert!(shown.contains(part), "{part} is missing in:\n{shown}");
    }
    node.push("absent:v1", 2);
    assert_eq!(node.say(&["queue", "retry", "--all-failed"]).await, "1 item to be tried again\n");
    node.until(id, "succeeded").await;
    assert_eq!(
        node.say(&["queue", "retry", &id.to_string()]).await,
        format!("item {id} to be tried again\n")
    );
}

#[tokio::test]
async fn lists_come_from_files_and_standard_input() {
    let node = Node::start(&[]).await;
    let file = node.place.path("images.txt");
    std::fs::write(&file, "# a list\nnginx\n\nredis:7 # cache\n").unwrap();
    node.say(&["queue", "pause"]).await;

    let taken = node.json(&["prepull", "--file", file.to_str().unwrap()]).await;
    let expected = json!({"items": [
        {"id": 1, "image": "docker.io/library/nginx:latest", "result": "new"},
        {"id": 2, "image": "docker.io/library/redis:7", "result": "new"},
    ]});
    assert_eq!(taken, expected);

    let output = run(node.command(&["prepull", "--file", "-", "-o", "yaml"]), "nginx\nbusybox\n").await;
    let taken: Value = serde_norway::from_slice(&output.stdout).unwrap();
    let results: Vec<_> = taken["items"].as_array().unwrap().iter().map(|item| &item["result"]).collect();
    assert_eq!(results, ["unchanged", "new"]);

    let table = node.say(&["prepull", "nginx", "--priority", "7"]).await;
    assert_eq!(
        table,
        "ID  IMAGE                           RESULT\n1   docker.io/library/nginx:latest  updated\n"
    );

    // A thousand and more go in several requests.
    let many: String = (0..1500).map(|number| format!("example.com/many:{number}\n")).collect();
    let output = run(node.command(&["prepull", "--owner", "many", "--file", "-"]), &many).await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(
        node.json(&["queue", "list", "--owner", "many"]).await["items"].as_array().unwrap().len(),
        1500
    );
    assert_eq!(node.say(&["queue", "cancel", "--owner", "many"]).await, "1500 items of many cancelled\n");
}

#[tokio::test]
async fn the_queue_is_seen_and_steered() {
    let node = Node::start(&[]).await;
    assert_eq!(node.say(&["queue", "list"]).await, "The queue is empty.\n");
    assert_eq!(node.say(&["pins"]).await, "No image is pinned or parked.\n");
    let paused = node.say(&["queue", "pause"]).await;
    assert!(paused.starts_with("The queue is paused"), "{paused}");
    let names = [node.push("a:v1", 1), node.push("b:v1", 2), node.push("c:v1", 3)];
    for (name, owner) in names.iter().zip(["me", "me", "you & co"]) {
        node.say(&["prepull", name, "--owner", owner, "--deadline", "2h"]).await;
    }
    let table = node.say(&["queue", "list"]).await;
    assert!(table.starts_with("ID  IMAGE") && table.contains("waiting  Queued"), "{table}");
    assert!(table.ends_with(&paused), "{table}");
    let json = node.json(&["queue", "list", "--owner", "you & co"]).await;
    assert_eq!((&json["paused"], ids(&json)), (&json!(true), vec![3]));
    let yaml = node.say(&["queue", "list", "--owner", "you & co", "-o", "yaml"]).await;
    assert_eq!(serde_norway::from_str::<Value>(&yaml).unwrap(), json);
    assert_eq!(
        node.say(&["queue", "list", "--state", "failed"]).await.lines().next(),
        Some("No item is like that.")
    );
    assert!(node.say(&["status"]).await.contains("PAUSED; 3 waiting"));

    assert_eq!(node.say(&["queue", "cancel", "1"]).await, "item 1 cancelled\n");
    let unknown = node.run(&["queue", "cancel", "1", "2"]).await;
    assert_eq!(unknown.status.code(), Some(1));
    assert_eq!(out(&unknown), "item 2 cancelled\n", "one that is not there does not stop the others");
    assert!(err(&unknown).contains("there is no item 1; `crisp queue list` shows all"), "{}", err(&unknown));

    assert_eq!(node.say(&["queue", "resume"]).await, "The queue goes on.\n");
    node.until(3, "succeeded").await;
    assert_eq!(node.say(&["queue", "cancel", "--all"]).await, "1 item cancelled\n");
    assert_eq!(node.say(&["queue", "list"]).await, "The queue is empty.\n");
}

#[tokio::test]
async fn what_cannot_be_taken_is_refused_with_reasons() {
    let node = Node::start(&["--prepull-max-items", "2"]).await;
    node.say(&["queue", "pause"]).await;
    node.say(&["prepull", "a", "b"]).await;
    let full = node.run(&["prepull", "c"]).await;
    assert_eq!(full.status.code(), Some(1));
    assert!(err(&full).contains("the queue is full: it takes 2 items"), "{}", err(&full));

    for (line, part) in [
        (&["prepull", "Not An Image"][..], "IMAGE \"Not An Image\": "),
        (&["prepull", "a", "--secret-file", "/no/such"], "--secret-file /no/such: No such file"),
        (&["prepull", "a", "--wait", "--ttl", "1s"], "--ttl: with --wait"),
        (&["prepull"], "required"),
        (&["queue", "cancel"], "required"),
        (&["queue", "cancel", "x"], "invalid value 'x'"),
    ] {
        let output = node.run(line).await;
        assert_eq!(output.status.code(), Some(2), "{line:?}: {}", err(&output));
        assert!(err(&output).contains(part), "{line:?}: {}", err(&output));
    }
    let late = node.run(&["prepull", "a", "--not-before", "2h", "--deadline", "1h"]).await;
    assert_eq!(late.status.code(), Some(1));
    assert!(err(&late).contains("deadline: is not later than notBefore"), "{}", err(&late));
}

/// Broke: who sent too much was cut off in the middle of it, and mostly saw a broken pipe instead of the answer.
#[tokio::test]
async fn who_asks_too_much_is_heard_to_the_end() {
    let node = Node::start(&[]).await;
    let mut stream = tokio::net::UnixStream::connect(node.place.admin()).await.unwrap();
    let body = vec![b'x'; 9 << 20];
    let head = format!(
        "POST /v1/prepull HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&body).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("more than 8 MiB"), "{answer}");
}

#[tokio::test]
async fn the_api_answers_with_status_and_words() {
    let node = Node::start(&["--prepull-max-items", "2"]).await;
    let socket: PathBuf = node.place.admin();
    let post = async |path: &str, body: String| -> (u16, Value) {
        match client::post::<Value>(&socket, path, body, client::PATIENCE_TO_DO).await {
            Ok(answer) => (200, answer),
            Err(ClientError::Refused { status, refused }) => {
                (status.as_u16(), serde_json::to_value(refused).unwrap())
            }
            Err(error) => panic!("{error}"),
        }
    };
    post("/v1/prepull/pause", String::new()).await;
    for (body, status, part) in [
        (r#"{"items":[{"image":"a"},{"image":"b"}]}"#.to_owned(), 200, ""),
        (r#"{"items":[{"image":"c"}]}"#.to_owned(), 429, "the queue is full"),
        (r#"{"items":[{"image":"a","priorty":1}]}"#.to_owned(), 400, "items[0].priorty: unknown field"),
        (r#"{"items":[{"image":"A"},{"image":"a","owner":""}]}"#.to_owned(), 400, "items[0] (A): image: "),
        (format!(r#"{{"items":[{{"image":"{}"}}]}}"#, "x".repeat(9 << 20)), 413, "more than 8 MiB"),
        ("nonsense".to_owned(), 400, "body: "),
    ] {
        let shown: String = body.chars().take(60).collect();
        let (code, answer) = post("/v1/prepull", body).await;
        assert_eq!(code, status, "{shown}: {answer}");
        assert!(answer["error"].as_str().unwrap_or_default().contains(part), "{shown}: {answer}");
    }
    let (_, answer) =
        post("/v1/prepull", r#"{"items":[{"image":"A"},{"image":"a","owner":""}]}"#.into()).await;
    assert_eq!(answer["mistakes"].as_array().unwrap().len(), 2, "all at once: {answer}");

    let refused = async |method: &str, path: &str| -> u16 {
        let asked = match method {
            "GET" => client::get::<Value>(&socket, path).await,
            "DELETE" => client::delete(&socket, path).await,
            _ => client::post(&socket, path, "", client::PATIENCE_TO_DO).await,
        };
        match asked {
            Err(ClientError::Refused { status, .. }) => status.as_u16(),
            other => panic!("{method} {path}: {other:?}"),
        }
    };
    for (method, path, status) in [
        ("GET", "/v1/prepull/99", 404),
        ("GET", "/v1/prepull/x", 400),
        ("GET", "/v1/prepull?ownr=a", 400),
        ("GET", "/v1/prepull?state=soon", 400),
        ("DELETE", "/v1/prepull/99", 404),
        ("DELETE", "/v1/prepull", 400),
        ("DELETE", "/v1/prepull?all=true&owner=a", 400),
        ("POST", "/v1/prepull/99/retry", 404),
        ("POST", "/v1/pins", 405),
        ("GET", "/v2/prepull", 404),
    ] {
        assert_eq!(refused(method, path).await, status, "{method} {path}");
    }
    let one: Value = client::get(&socket, "/v1/prepull?image=a&id=1&id=2&owner=cli").await.unwrap();
    assert_eq!(ids(&one), [1]);
}

#[tokio::test]
async fn without_a_queue_the_answers_say_so() {
    let node = Node::start(&["--prepull-enabled", "false"]).await;
    for line in [&["prepull", "a"][..], &["queue", "list"], &["queue", "pause"], &["pins"]] {
        let output = node.run(line).await;
        assert_eq!(output.status.code(), Some(1), "{line:?}");
        assert!(err(&output).contains("there is no queue: prepull.enabled is false"), "{}", err(&output));
    }
    assert!(!node.say(&["status"]).await.contains("\nqueue"));

    let nobody = format!("unix://{}", node.place.path("nobody.sock").display());
    for line in
        [&["prepull", "a", "--wait"][..], &["queue", "list"], &["queue", "cancel", "--all"], &["pins"]]
    {
        let mut command = crisp();
        command.args(line).args(["--admin-listen", &nobody]);
        let output = run(command, "").await;
        assert_eq!(output.status.code(), Some(69), "{line:?}: {}", err(&output));
        assert!(err(&output).contains(&nobody), "{}", err(&output));
    }
}

#[tokio::test]
async fn who_interrupts_is_told_that_the_item_stays() {
    let node = Node::start(&[]).await;
    let name = node.push("slow:v1", 1);
    let mut hold = node.registry.hold("/manifests/");
    let child = node.begin(&["prepull", &name, "--wait"]);
    soon("the pull begins", hold.reached(1)).await;

    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = end(child).await;
    assert_eq!(output.status.code(), Some(130));
    let said = err(&output);
    for part in
        ["interrupted; the item stays queued", "`crisp queue list --owner cli`", "`crisp queue cancel 1`"]
    {
        assert!(said.contains(part), "{part} is missing in: {said}");
    }
    assert_eq!(node.standing(1).await.0, "pulling");
    node.registry.behave();
    drop(hold);
    node.until(1, "succeeded").await;
}

/// An item is waited for over a restart of crisp, and what is said on the way is lines.
#[tokio::test]
async fn waiting_survives_a_restart() {
    let mut node = Node::start(&[]).await;
    let name = node.push("slow:v1", 1);
    let mut hold = node.registry.hold("/manifests/");
    let child = node.begin(&["prepull", &name, "--wait"]);
    soon("the pull begins", hold.reached(1)).await;
    node.running.signal(Signal::KILL);
    node.running.exit().await;
    node.registry.behave();
    drop(hold);
    node.running = start(&node.place, "log2", &[]).await;
    let output = end(child).await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).contains(&format!("{name}: succeeded")), "{}", out(&output));
}

#[tokio::test]
async fn an_item_that_somebody_cancels_is_not_waited_for() {
    let node = Node::start(&[]).await;
    let name = node.push("slow:v1", 1);
    let mut hold = node.registry.hold("/manifests/");
    let child = node.begin(&["prepull", &name, "--wait"]);
    soon("the pull begins", hold.reached(1)).await;
    node.say(&["queue", "cancel", "1"]).await;
    let output = end(child).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("Gone") && err(&output).contains(&name), "{}", err(&output));
}

#[tokio::test]
async fn no_secret_is_in_any_output() {
    let node = Node::start(&[]).await;
    let name = node.push("private:v1", 1);
    node.registry.require(Auth::Basic("ann", "hunter2"));
    let file = node.place.path("config.json");
    let auths = json!({"auths": {node.registry.host(): {"username": "ann", "password": "hunter2"}}});
    std::fs::write(&file, auths.to_string()).unwrap();
    let file = file.to_str().unwrap();

    let line = ["prepull", &name, "--secret-file", file, "--visibility", "shared", "--wait"];
    let mut said = node.say(&line).await;
    for line in [
        &["prepull", &name, "--secret-file", file, "--visibility", "shared", "-o", "json"][..],
        &["queue", "list", "-o", "json"],
        &["queue", "show", "1", "-o", "yaml"],
        &["queue", "show", "1"],
        &["pins", "-o", "yaml"],
        &["status"],
    ] {
        said += &node.say(line).await;
    }
    node.registry.misbehave("/manifests/", Fault::Status(403));
    let denied = ["prepull", &name, "--secret-file", file, "--visibility", "shared", "--policy", "Always"];
    let denied = node.run(&[&denied[..], &["--retries", "0", "--wait"]].concat()).await;
    assert_eq!(denied.status.code(), Some(1));
    said += &(out(&denied) + &err(&denied) + &node.running.log());
    assert!(!said.contains("hunter2"), "{said}");
    assert!(said.contains(&name));
}

#[tokio::test]
async fn a_dry_run_pulls_nothing() {
    let node = Node::start(&[]).await;
    let (here, there) = (node.push("here:v1", 1), node.push("there:v1", 2));
    node.say(&["prepull", &here, "--wait"]).await;
    let before = node.registry.requests_to("/blobs/");
    let tried = node.json(&["prepull", &here, &there, "--dry-run"]).await;
    let present: Vec<_> = tried["items"].as_array().unwrap().iter().map(|item| &item["present"]).collect();
    assert_eq!(present, [true, false], "{tried}");
    let table = node.say(&["prepull", &here, &there, "--dry-run"]).await;
    assert!(table.contains("present") && table.contains("0 B missing in all, not counting 1"), "{table}");
    assert_eq!(node.registry.requests_to("/blobs/"), before);
    assert_eq!(node.json(&["queue", "list"]).await["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_scrape_has_the_figures_of_the_queue() {
    let address = free_address();
    let node = Node::start(&["--metrics-listen", &address]).await;
    let name = node.push("one:v1", 1);
    node.say(&["prepull", &name, "--wait", "--pin", "1h"]).await;
    let (_, scrape) = get(&address, "/metrics").await;
    for part in [
        "crisp_prepull_items{state=\"succeeded\",class=\"normal\"} 1",
        "crisp_prepull_items{state=\"waiting\",class=\"background\"} 0",
        "crisp_prepull_attempts_total{outcome=\"pulled\"} 1",
    ] {
        assert!(scrape.contains(part), "{part} is missing in:\n{scrape}");
    }
}

#[tokio::test]
async fn completions_are_scripts_of_each_shell() {
    for (shell, part) in [("bash", "complete -F"), ("zsh", "#compdef crisp"), ("fish", "complete -c crisp")] {
        let mut command = crisp();
        command.args(["completions", shell]);
        let output = run(command, "").await;
        assert_eq!(output.status.code(), Some(0));
        let script = out(&output);
        for part in [part, "prepull", "all-failed", "secret-file"] {
            assert!(script.contains(part), "{shell}: {part}");
        }
    }
    let mut command = crisp();
    command.args(["completions", "tcsh"]);
    assert_eq!(run(command, "").await.status.code(), Some(2));
}

/// A reader that has seen enough is no failure, in any form.
#[tokio::test]
async fn a_closed_pipe_is_no_error() {
    let node = Node::start(&[]).await;
    node.say(&["queue", "pause"]).await;
    node.say(&["prepull", "a"]).await;
    for line in
        [&["queue", "list", "-o", "json"][..], &["queue", "list", "-o", "yaml"], &["queue", "show", "1"]]
    {
        let mut child = node.begin(line);
        drop(child.stdout.take());
        let output = end(child).await;
        assert_eq!(output.status.code(), Some(0), "{line:?}: {}", err(&output));
        assert_eq!(err(&output), "", "{line:?}");
    }
    eventually("the admin API is still there", || node.place.admin().exists()).await;
}
