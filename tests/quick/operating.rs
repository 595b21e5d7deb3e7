//! Protects: what an operator sees: exit codes, error texts, status, health, metrics and log lines.

use std::process::Output;
use std::time::Duration;

use serde_json::Value;

use crate::support::binary::{Place, crisp, free_address};
use crate::support::bytes_on_the_wire::{Reply, framed, headers, request};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::http_get::get;
use crate::support::in_process::sum;
use crate::support::random::field;
use crate::support::wait::eventually;

const VERSION: &str = "/runtime.v1.RuntimeService/Version";
const HANGS: &str = "/runtime.v1.RuntimeService/ExecSync";

/// Runs crisp to its end, without blocking the runtime that it may talk to.
async fn run(arguments: &[&str]) -> Output {
    let mut command = crisp();
    command.args(arguments);
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A runtime that says who it is, never answers to one call, and knows nothing else.
fn runtime(place: &Place) -> FakeRuntime {
    FakeRuntime::start(&place.runtime(), |incoming| async move {
        let reply = match incoming.path() {
            VERSION => Reply::of(&[&[field(2, b"fake"), field(3, b"9.9"), field(4, b"v1")].concat()]),
            HANGS => std::future::pending().await,
            _ => Reply::error("12", "unknown%20method"),
        };
        incoming.answer(&reply).await;
    })
}

#[tokio::test]
async fn the_command_line_explains_itself() {
    let version = run(&["--version"]).await;
    assert_eq!(version.status.code(), Some(0));
    let text = out(&version);
    let revision = text.trim().rsplit_once('(').unwrap().1.trim_end_matches(')');
    assert!(text.starts_with("crisp ") && !revision.is_empty(), "{text}");
    assert!(revision == "unknown" || revision.chars().all(|c| c.is_ascii_hexdigit()), "{text}");

    let help = run(&["serve", "--help"]).await;
    assert_eq!(help.status.code(), Some(0));
    for flag in
        ["--listen", "--runtime-endpoint", "--image-endpoint", "--state-dir", "--drain-max", "Exit codes"]
    {
        assert!(out(&help).contains(flag), "{flag}");
    }
    for wrong in [&["serve", "--no-such-flag"][..], &["no-such-command"], &[]] {
        assert_eq!(run(wrong).await.status.code(), Some(2), "{wrong:?}");
    }
}

#[tokio::test]
async fn all_mistakes_of_a_configuration_are_told_at_once() {
    let place = Place::new();
    let file = place.path("crisp.yaml");
    std::fs::write(&file, "listen: /no/scheme\ndrain:\n  max: soon\n  min: 1s\nmetricsListen: [1]\n")
        .unwrap();
    let output =
        run(&["serve", "--config", file.to_str().unwrap(), "--log-format", "xml", "--state-dir", "rel"])
            .await;
    assert_eq!(output.status.code(), Some(78));
    let said = err(&output);
    for part in
        ["listen:", "drain.max:", "drain.min: unknown key", "metricsListen:", "--log-format:", "--state-dir:"]
    {
        assert!(said.contains(part), "{part} is missing in:\n{said}");
    }
    assert!(said.contains("crisp.yaml"), "{said}");

    let missing = run(&["serve", "--config", "/no/such/file", "--drain-max", "soon"]).await;
    assert_eq!(missing.status.code(), Some(78));
    let said = err(&missing);
    assert!(said.contains("/no/such/file") && said.contains("No such file"), "{said}");
    assert!(said.contains("--drain-max: expected"), "a file that is not there hides nothing else: {said}");
}

#[tokio::test]
async fn without_a_runtime_the_error_names_where_it_was_looked_for() {
    let sockets = ["/run/containerd/containerd.sock", "/run/crio/crio.sock"];
    if sockets.iter().any(|socket| std::path::Path::new(socket).exists()) {
        // On a machine with a runtime that is what is found; src/app/discovery.rs tests the words.
        return;
    }
    let place = Place::new();
    let arguments = place.arguments();
    let without: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .filter(|argument| *argument != "--runtime-endpoint" && !argument.ends_with("/runtime.sock"))
        .collect();
    let output = run(&without).await;
    assert_eq!(output.status.code(), Some(78));
    for socket in sockets {
        assert!(err(&output).contains(socket), "{}", err(&output));
    }
    assert!(!place.socket().exists(), "nothing stays behind");
}

#[tokio::test]
async fn status_sums_up_a_running_crisp() {
    let place = Place::new();
    let admin = format!("unix://{}", place.admin().display());
    let ask = ["status", "--admin-listen", &admin];
    let nobody = run(&ask).await;
    assert_eq!(nobody.status.code(), Some(69));
    assert!(err(&nobody).contains(&admin), "{}", err(&nobody));
    assert_eq!(err(&nobody).matches("No such file").count(), 1, "{}", err(&nobody));

    let fake = runtime(&place);
    let _crisp = place.start("log", &[]).await;
    let client = place.client().await;
    client.unary(VERSION, b"").await.unwrap();
    client.unary("/runtime.v1.RuntimeService/Status", b"").await.unwrap();

    let text = run(&ask).await;
    assert_eq!(text.status.code(), Some(0), "{}", err(&text));
    let text = out(&text);
    for part in ["fake 9.9 (CRI v1)", "2 ended, 1 failed, 0 under way", "Version", "Status"] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    assert!(text.contains(&place.runtime().display().to_string()), "{text}");

    let json = run(&[&ask[..], &["-o", "json"]].concat()).await;
    let status: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(status["runtime"]["name"], "fake");
    assert_eq!((&status["calls"], &status["errors"]), (&2.into(), &1.into()));
    assert!(status["methods"].as_array().unwrap().iter().any(|method| method["method"] == "Status"));

    drop(fake);
    eventually("the runtime is gone", || std::fs::remove_file(place.runtime()).is_ok()).await;
    let down = run(&ask).await;
    assert_eq!(down.status.code(), Some(0), "crisp itself is well");
    assert!(out(&down).contains("DOWN"), "{}", out(&down));
}

#[tokio::test]
async fn health_and_metrics_follow_the_runtime() {
    let place = Place::new();
    let address = free_address();
    let _crisp = place.start("log", &["--metrics-listen", &address]).await;
    // One socket serves both, so both say the same.
    let says = |text: &str, value: u8| {
        ["runtime", "image"]
            .iter()
            .all(|e| text.contains(&format!("crisp_upstream_up{{endpoint=\"{e}\"}} {value}")))
    };
    for _ in 0..2 {
        assert_eq!(get(&address, "/livez").await.0, 200);
        let (status, said) = get(&address, "/readyz").await;
        assert_eq!(status, 503);
        assert!(said.contains(&place.runtime().display().to_string()), "{said}");
        assert!(says(&get(&address, "/metrics").await.1, 0));
        let fake = runtime(&place);
        assert_eq!(get(&address, "/readyz").await.0, 200);
        assert!(says(&get(&address, "/metrics").await.1, 1));
        drop(fake);
        // Its connections are closed a moment later.
        while get(&address, "/readyz").await.0 == 200 {}
    }
    assert_eq!(get(&address, "/v1/status").await.0, 404, "the admin API is not on the network");
}

#[tokio::test]
async fn metrics_name_known_methods_and_no_other() {
    let place = Place::new();
    let address = free_address();
    let _fake = runtime(&place);
    let _crisp = place.start("log", &["--metrics-listen", &address]).await;
    let client = place.client().await;
    client.unary(VERSION, b"abc").await.unwrap();
    client.unary("/runtime.v1.RuntimeService/Status", b"").await.unwrap();
    for n in 0..5 {
        client.unary(&format!("/invented.Service/Number{n}"), b"").await.unwrap();
    }
    let (status, scrape) = get(&address, "/metrics").await;
    assert_eq!(status, 200);
    for (sample, value) in [
        ("crisp_calls_total{method=\"Version\",code=\"OK\"}", 1.0),
        ("crisp_calls_total{method=\"Status\",code=\"UNIMPLEMENTED\"}", 1.0),
        ("crisp_calls_total{method=\"other\",code=\"UNIMPLEMENTED\"}", 5.0),
        ("crisp_call_duration_seconds_count{method=\"Version\"}", 1.0),
        ("crisp_call_bytes_total{method=\"Version\",direction=\"request\"}", 8.0),
        ("crisp_calls_in_flight{method=\"Version\"}", 0.0),
        ("crisp_downstream_connections", 1.0),
    ] {
        assert_eq!(sum(&scrape, sample), value, "{sample} in:\n{scrape}");
    }
    assert!(!scrape.contains("Number0"), "a client cannot make labels");
    assert!(scrape.contains("crisp_build_info{"), "{scrape}");
}

/// Broke: what the runtime said of a pull that crisp makes itself was told as crisp's fault, and a runtime that did not
/// answer in time as a whim of the kubelet's.
#[tokio::test]
async fn a_failed_call_is_one_line_of_json() {
    let place = Place::new();
    let crisp = place.start("log", &[]).await;
    let client = place.client().await;
    client.unary("/runtime.v1.ImageService/PullImage", b"").await.unwrap();
    let _fake = runtime(&place);
    client.unary("/runtime.v1.RuntimeService/Status", b"").await.unwrap();
    client.unary(VERSION, b"").await.unwrap();
    client.unary("/runtime.v1.ImageService/PullImage", &field(1, &field(1, b"nginx"))).await.unwrap();
    for timeout in ["100m", "1H"] {
        let head = request(HANGS, &headers(&[("grpc-timeout", timeout)]));
        let call = client.start(head, &[framed(b"")], None).await.unwrap();
        if timeout == "100m" {
            // Its time passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        drop(call);
    }
    drop(client);
    let lines = || -> Vec<Value> {
        let log = crisp.log();
        let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
        lines.filter(|line| line["message"] == "call failed").collect()
    };
    eventually("all failures are logged", || lines().len() >= 5).await;
    let lines = lines();
    let seen: Vec<_> = lines.iter().map(|line| (&line["method"], &line["code"], &line["origin"])).collect();
    let expected = [
        ("/runtime.v1.ImageService/PullImage", "UNAVAILABLE", "runtime"),
        ("/runtime.v1.RuntimeService/Status", "UNIMPLEMENTED", "runtime"),
        ("/runtime.v1.ImageService/PullImage", "UNIMPLEMENTED", "runtime"),
        (HANGS, "DEADLINE_EXCEEDED", "runtime"),
        (HANGS, "CANCELLED", "kubelet"),
    ];
    assert_eq!(seen.len(), expected.len(), "one line per failed call: {lines:?}");
    for ((method, code, origin), (m, c, o)) in seen.into_iter().zip(expected) {
        assert_eq!((method, code, origin), (&m.into(), &c.into(), &o.into()));
    }
    assert!(lines.iter().all(|line| line["duration_ms"].as_f64().is_some_and(|ms| ms > 0.0)), "{lines:?}");
}

/// Broke: log lines were written on the proxy's thread, so a standard error that nobody reads (a hung journal) stopped
/// every call of the node after some two hundred failed ones.
#[tokio::test]
async fn a_log_that_nobody_reads_stops_no_call() {
    let place = Place::new();
    let mut command = crisp();
    let mut child = command.args(place.arguments()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let unread = child.stderr.take();
    eventually("crisp listens", || place.socket().exists()).await;
    // There is no runtime, so each call fails and is worth a line; a pipe holds some three hundred.
    let mut client = None;
    while client.is_none() {
        client = crate::support::h2_client::Client::try_connect(&place.socket()).await.ok();
    }
    let client = client.unwrap();
    for _ in 0..1000 {
        assert_eq!(client.unary(VERSION, b"").await.unwrap().code(), "14");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    drop(unread);
}

/// Broke: `crisp status` waited for ever on a crisp that is stopped or hangs, and with it every script that asks.
#[tokio::test]
async fn status_gives_up_on_a_crisp_that_does_not_answer() {
    let place = Place::new();
    let running = place.start("log", &[]).await;
    running.signal(rustix::process::Signal::STOP);
    let admin = format!("unix://{}", place.admin().display());
    let asked = crate::support::wait::soon("status", run(&["status", "--admin-listen", &admin])).await;
    assert_eq!(asked.status.code(), Some(69), "{}", err(&asked));
    assert!(err(&asked).contains("no answer within 5 s"), "{}", err(&asked));
}

/// Broke: the metrics address took connections without end, so whoever reaches it (any pod on the host's network)
/// could take the descriptors that the kubelet's calls need.
#[tokio::test]
async fn connections_to_the_metrics_address_are_few() {
    let place = Place::new();
    let _runtime = runtime(&place);
    let address = free_address();
    // Without the queue, which opens its files when it gets there.
    let running = place.start("log", &["--metrics-listen", &address, "--prepull-enabled", "false"]).await;
    // Nor is its first connection to the runtime one of those that are counted.
    eventually("the runtime was asked", || running.log().contains("the runtime answers")).await;
    let before = running.settled_descriptors().await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(tokio::net::TcpStream::connect(&address).await.unwrap());
    }
    eventually("all places are taken", || running.descriptors() - before >= 64).await;
    assert_eq!(running.descriptors() - before, 64, "and no more than that");
    assert_eq!(place.client().await.unary(VERSION, b"").await.unwrap().code(), "0");
    // Broke: for five minutes.
    assert_eq!(get(&address, "/livez").await.0, 200, "silent ones do not keep others out for long");
    drop(silent);
}

/// Broke: a port that another process had ended crisp, and with it the node's way to its runtime.
#[tokio::test]
async fn a_taken_metrics_port_does_not_stop_the_proxy() {
    let place = Place::new();
    let _runtime = runtime(&place);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let _crisp = place.start("log", &["--metrics-listen", &address]).await;
    assert_eq!(place.client().await.unary(VERSION, b"").await.unwrap().code(), "0");
    drop(taken);
    // Served as soon as the port is free: until then the connection is refused.
    eventually("metrics are served", || std::net::TcpStream::connect(&address).is_ok()).await;
    assert_eq!(get(&address, "/livez").await.0, 200);
}

/// Broke: crisp was ready, and its gauge said so, while an image service of its own was gone.
#[tokio::test]
async fn readiness_is_that_of_the_image_service_too() {
    let place = Place::new();
    let _runtime = runtime(&place);
    let (address, images) = (free_address(), place.path("images.sock"));
    let image_endpoint = format!("unix://{}", images.display());
    let more = ["--metrics-listen", &address, "--image-endpoint", &image_endpoint];
    let crisp = place.start("log", &more).await;
    assert_eq!(get(&address, "/readyz").await.0, 503);
    assert!(get(&address, "/metrics").await.1.contains("crisp_upstream_up{endpoint=\"image\"} 0"));
    let admin = format!("unix://{}", place.admin().display());
    let down = out(&run(&["status", "--admin-listen", &admin]).await);
    assert!(down.contains(&format!("images    DOWN at {image_endpoint}")), "{down}");
    let _images = FakeRuntime::answering(&images, Reply::of(&[b""]));
    assert_eq!(get(&address, "/readyz").await.0, 200);
    assert!(get(&address, "/metrics").await.1.contains("crisp_upstream_up{endpoint=\"image\"} 1"));
    let up = out(&run(&["status", "--admin-listen", &admin]).await);
    assert!(up.contains(&format!("images    {image_endpoint}")), "{up}");
    // Said once, however often it was asked.
    let said = |words: &str| crisp.log().lines().filter(|line| line.contains(words)).count();
    eventually("the log says that it is back", || said("is there again") == 1).await;
    assert_eq!((said("Calls fail until it is there"), said("does not answer yet")), (1, 0));
}

/// Broke: it was said once for the runtime, once for its images, and once more at the start.
#[tokio::test]
async fn that_the_runtime_is_away_is_said_once() {
    let place = Place::new();
    let crisp = place.start("log", &[]).await;
    let client = place.client().await;
    for method in [VERSION, "/runtime.v1.ImageService/ImageFsInfo"] {
        assert_eq!(client.unary(method, b"").await.unwrap().code(), "14");
    }
    let said = |words: &str| crisp.log().lines().filter(|line| line.contains(words)).count();
    // What is told of a call is told after what it found.
    eventually("both calls are in the log", || said("call failed") == 2).await;
    assert_eq!(
        (said("Calls fail until it is there"), said("does not answer yet")),
        (1, 0),
        "{}",
        crisp.log()
    );
}
