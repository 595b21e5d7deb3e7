//! Protects: a container gets a record of what it is made from and nothing else of its request changes; nobody who asks
//! crisp for containers sees a record, and nothing else of the reply changes; no secret is in anything that crisp writes.

use bytes::Bytes;
use crisp::container::bodies::DIRECTORY;
use crisp::container::record::{LABEL, Label};
use crisp::cri::Method;
use crisp::wire::{Patch, count};

use crate::container_runtime::{CREATE, ContainerRuntime, LIST, Spec, label};
use crate::support::bytes_on_the_wire::{Reply, framed};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::h2_client::Client;
use crate::support::in_process::InProcess;
use crate::support::random::{Random, field};
use crate::support::wait::eventually;

async fn start(settings: &[(&str, &str)]) -> (InProcess, ContainerRuntime, Client) {
    let crisp = InProcess::released(settings);
    let runtime = ContainerRuntime::start(&crisp.runtime_socket());
    let client = crisp.client().await;
    (crisp, runtime, client)
}

/// Creates a container, and gives the label that it got.
async fn create(client: &Client, runtime: &ContainerRuntime, request: &[u8]) -> Option<String> {
    let reply = client.unary(CREATE, request).await.unwrap();
    assert_eq!(reply.code(), "0", "{}", reply.message());
    let seen = runtime.last().request;
    let label = label(&seen, LABEL);
    let without = Patch::new().remove_entry([2, 9], LABEL);
    let (seen, sent) = (without.apply(&seen).unwrap(), Bytes::copy_from_slice(request));
    assert!(seen == without.apply(&sent).unwrap(), "more than the record changed");
    label
}

/// Files of records in the state directory.
fn bodies(crisp: &InProcess) -> Vec<Vec<u8>> {
    let dir = crisp.state.as_ref().unwrap().path().join(DIRECTORY);
    let files = std::fs::read_dir(dir).into_iter().flatten().map(|file| file.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .map(|f| std::fs::read(f).unwrap())
        .collect()
}

#[tokio::test]
async fn a_container_gets_a_record_and_nothing_else() {
    let (crisp, runtime, client) = start(&[]).await;
    let mut random = Random::seeded(6);
    for n in 0..20 {
        let mut request = Spec { attempt: n, ..Spec::default() }.request();
        request.extend(random.unknown_fields(3));
        let label = create(&client, &runtime, &request).await.unwrap();
        let Ok(Label::Inline(record)) = Label::parse(&label) else { panic!("{label}") };
        assert_eq!(record.image(), "busybox:1.35");
    }
    assert_eq!(crisp.metric("crisp_records_total{form=\"inline\"}"), 20.0);
    assert_eq!(crisp.metric("crisp_intercept_failures_total"), 0.0);
}

#[tokio::test]
async fn large_specs_are_recorded_within_the_limits() {
    let (crisp, runtime, client) = start(&[]).await;
    for (bytes, form) in [(200, "inline"), (5 << 10, "inline"), (60 << 10, "inline"), (2 << 20, "inline")] {
        let label = create(&client, &runtime, &Spec::of_size(bytes).request()).await.unwrap();
        assert!(LABEL.len() + label.len() <= 4096, "{bytes}");
        assert!(crisp.metric(&format!("crisp_records_total{{form=\"{form}\"}}")) > 0.0);
    }
    // Hashes of many variables are long, however short the variables are.
    let many = Spec { env: (0..400).map(|n| (format!("V{n}"), n.to_string())).collect(), ..Spec::default() };
    let label = create(&client, &runtime, &many.request()).await.unwrap();
    assert!(LABEL.len() + label.len() <= 4096);
    let Ok(Label::Digest(reference)) = Label::parse(&label) else { panic!("{label}") };
    assert_eq!(reference.image.as_deref(), Some("busybox:1.35"));
    eventually("the body is written", || bodies(&crisp).len() == 1).await;
    assert!(reference.open(&bodies(&crisp)[0]).is_ok());
    // Too large to be looked into: it goes on without.
    let huge = Spec { args: vec!["x".repeat(5 << 20)], ..Spec::default() };
    assert_eq!(create(&client, &runtime, &huge.request()).await, None);
    assert_eq!(crisp.metric("crisp_records_total{form=\"none\"}"), 1.0);
    assert_eq!(crisp.metric("crisp_records_total{form=\"digest\"}"), 1.0);
}

/// The label is crisp's: whoever sends one is confused, or wants the next container to be explained wrongly.
#[tokio::test]
async fn a_label_of_that_name_in_the_request_is_replaced() {
    let (_crisp, runtime, client) = start(&[]).await;
    let spec = |value: &str| Spec { labels: vec![(LABEL.into(), value.into())], ..Spec::default() };
    let honest = create(&client, &runtime, &Spec::default().request()).await.unwrap();
    for hostile in ["", "{}", &"x".repeat(10_000), &"[".repeat(3000)] {
        let label = create(&client, &runtime, &spec(hostile).request()).await.unwrap();
        assert_eq!(label, honest);
        let seen = runtime.last().request;
        let config = crisp::wire::last(&seen, [2]).unwrap().unwrap().as_bytes().unwrap();
        assert_eq!(count(config, [9]).unwrap(), 5, "once");
    }
    let mut huge = spec("hostile");
    huge.args = vec!["x".repeat(5 << 20)];
    assert_eq!(
        create(&client, &runtime, &huge.request()).await,
        None,
        "and removed if there is none to replace it"
    );
}

#[tokio::test]
async fn beyond_the_budget_records_are_files() {
    let (crisp, runtime, client) = start(&[("record.inlineBudget", "2KiB")]).await;
    let env: Vec<_> = (0..20).map(|n| (format!("V{n}"), n.to_string())).collect();
    let spec = |attempt| Spec { attempt, env: env.clone(), ..Spec::default() }.request();
    let mut forms = Vec::new();
    for n in 0..4 {
        let label = create(&client, &runtime, &spec(n)).await.unwrap();
        forms.push(matches!(Label::parse(&label), Ok(Label::Inline(_))));
    }
    assert_eq!(forms, [true, true, false, false]);
    eventually("the record is written", || bodies(&crisp).len() == 1).await;
    // A list of all containers tells what labels take: nothing any more.
    runtime.containers().truncate(1);
    let reply = client.unary(LIST, &field(1, b"")).await.unwrap();
    assert_eq!(reply.code(), "0");
    eventually("the list is counted", || crisp.metric("crisp_record_label_bytes") < 1100.0).await;
    let label = create(&client, &runtime, &spec(4)).await.unwrap();
    assert!(matches!(Label::parse(&label), Ok(Label::Inline(_))));
}

/// While there are no records on the node, lists stream past; from the first record on they are looked into.
#[tokio::test]
async fn lists_are_looked_into_as_soon_as_there_is_a_record() {
    let (crisp, runtime, client) = start(&[]).await;
    let entries = || crisp.metric("crisp_list_entries_total{method=\"ListContainers\"}");
    for _ in 0..3 {
        assert_eq!(client.unary(LIST, b"").await.unwrap().bytes(), framed(b""));
    }
    create(&client, &runtime, &Spec::default().request()).await.unwrap();
    let reply = client.unary(LIST, b"").await.unwrap();
    assert!(!memchr(&reply.bytes()) && entries() == 1.0);
    // The record is gone, and known to be; containers without one are still counted.
    runtime.containers()[0].container.labels.remove(LABEL);
    for n in 2..5 {
        let reply = client.unary(LIST, b"").await.unwrap();
        assert!(reply.bytes().len() > 100);
        eventually("the list is counted", || entries() == f64::from(n)).await;
    }
    create(&client, &runtime, &Spec { attempt: 1, ..Spec::default() }.request()).await.unwrap();
    assert!(!memchr(&client.unary(LIST, b"").await.unwrap().bytes()));
}

/// In every reply that carries labels of containers: they lose the record, and not a byte else.
#[tokio::test]
async fn nobody_sees_a_record() {
    let mut random = Random::seeded(7);
    // The method, the way to a container, the field of its labels.
    let replies: [(Method, &[u64], u64); 11] = [
        (Method::LIST_CONTAINERS, &[1], 8),
        (Method::STREAM_CONTAINERS, &[1], 8),
        (Method::CONTAINER_STATUS, &[1], 12),
        (Method::POD_SANDBOX_STATUS, &[3], 12),
        (Method::GET_CONTAINER_EVENTS, &[5], 12),
        (Method::CONTAINER_STATS, &[1, 1], 3),
        (Method::LIST_CONTAINER_STATS, &[1, 1], 3),
        (Method::STREAM_CONTAINER_STATS, &[1, 1], 3),
        (Method::POD_SANDBOX_STATS, &[1, 2, 5, 1], 3),
        (Method::LIST_POD_SANDBOX_STATS, &[1, 2, 5, 1], 3),
        (Method::STREAM_POD_SANDBOX_STATS, &[1, 2, 5, 1], 3),
    ];
    for (method, path, labels) in replies {
        let entry = |key: &str| field(labels, &[field(1, key.as_bytes()), field(2, b"value")].concat());
        let mut message = |with: &mut Vec<u8>, without: &mut Vec<u8>| {
            for n in 0..5 {
                let before = [random.unknown_fields(2), entry("a"), field(200, LABEL.as_bytes())].concat();
                let after = [entry("io.kubernetes.container.spec2"), random.unknown_fields(2)].concat();
                let record = if n == 3 { Vec::new() } else { entry(LABEL) };
                let mut both = [[before.clone(), record, after.clone()].concat(), [before, after].concat()];
                for number in path.iter().rev() {
                    both = both.map(|inner| field(*number, &inner));
                }
                let around = random.unknown_fields(2);
                for (message, part) in [&mut *with, &mut *without].into_iter().zip(both) {
                    message.extend(part);
                    message.extend(&around);
                }
            }
        };
        let (mut with, mut without) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for (with, without) in with.iter_mut().zip(&mut without) {
            message(with, without);
        }
        let crisp = InProcess::released(&[]);
        let _runtime = FakeRuntime::answering(&crisp.runtime_socket(), Reply::of(&[&with[0], b"", &with[1]]));
        let reply = crisp.client().await.unary(method.path(), b"").await.unwrap();
        let expected = [framed(&without[0]), framed(b""), framed(&without[1])].concat();
        assert!(reply.bytes() == expected, "{}", method.name());
        assert_eq!(crisp.metric("crisp_intercept_failures_total"), 0.0);
    }
}

#[tokio::test]
async fn without_records_nothing_changes() {
    let (crisp, runtime, client) = start(&[("record.enabled", "false")]).await;
    let request = Spec { labels: vec![(LABEL.into(), "somebody's".into())], ..Spec::default() }.request();
    assert_eq!(create(&client, &runtime, &request).await.as_deref(), Some("somebody's"));
    let reply = client.unary(LIST, b"").await.unwrap();
    assert!(memchr(&reply.bytes()));
    assert!(crisp.recorder.is_none());
    assert!(std::fs::read_dir(crisp.state.as_ref().unwrap().path()).unwrap().next().is_none());
}

fn memchr(bytes: &[u8]) -> bool {
    bytes.windows(LABEL.len()).any(|window| window == LABEL.as_bytes())
}
