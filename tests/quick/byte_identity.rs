//! Protects: what the kubelet sends is what the runtime gets, and back: heads, bodies and trailers, byte for byte,
//! for every method of the CRI and for methods and services that nobody has invented yet.
//!
//! The only exceptions are `:authority`, `containerd-lease` and `containerd-namespace` on CRI calls, the record that
//! CreateContainer gets, and `grpc-timeout` of a PullImage: others may wait for it too, so that its caller's deadline ends
//! only its caller's waiting.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use crisp::container::record::LABEL;
use crisp::cri::Method;
use crisp::cri::frame::Splitter;
use crisp::wire::Patch;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::cri_messages::messages_of;
use crate::support::bytes_on_the_wire::{Reply, flagged, framed, headers, request};
use crate::support::fake_runtime::{FakeRuntime, Seen};
use crate::support::h2_client::Client;
use crate::support::in_process::InProcess;
use crate::support::random::Random;

/// One call to be made: what the client sends and what the runtime answers.
#[derive(Debug, Clone)]
struct Case {
    path: String,
    metadata: HeaderMap,
    body: Vec<Bytes>,
    trailers: Option<HeaderMap>,
    reply: Reply,
}

/// crisp between a client and a runtime that does what a case says.
struct Bench {
    crisp: InProcess,
    client: Client,
    _runtime: FakeRuntime,
    /// The reply to give, and the request that was seen.
    stage: Arc<Mutex<(Option<Reply>, Option<Seen>)>>,
}

impl Bench {
    async fn new() -> Self {
        let crisp = InProcess::released(&[]);
        let stage: Arc<Mutex<(Option<Reply>, Option<Seen>)>> = Arc::default();
        let runtime = FakeRuntime::start(&crisp.runtime_socket(), {
            let stage = stage.clone();
            move |mut incoming| {
                let stage = stage.clone();
                async move {
                    // crisp itself asks whether this is containerd.
                    if incoming.path().ends_with("Leases/List") {
                        incoming.answer(&Reply::error("12", "no")).await;
                        return;
                    }
                    let seen = incoming.read().await.unwrap();
                    let reply = stage.lock().unwrap().0.take().unwrap();
                    stage.lock().unwrap().1 = Some(seen);
                    incoming.reply(&reply).await.unwrap();
                }
            }
        });
        let client = crisp.client().await;
        Self { crisp, client, _runtime: runtime, stage }
    }

    /// Makes the call and compares both directions.
    async fn check(&self, case: &Case) {
        self.stage.lock().unwrap().0 = Some(case.reply.clone());
        let head = request(&case.path, &case.metadata);
        let mut sent = head.headers().clone();
        let call = self.client.start(head, &case.body, case.trailers.as_ref()).await.unwrap();
        let reply = call.reply().await.unwrap();
        let seen = self.stage.lock().unwrap().1.take().unwrap();

        if case.path.starts_with("/runtime.v1.") {
            sent.remove("containerd-lease");
            sent.remove("containerd-namespace");
        }
        let name = &case.path;
        if name == Method::PULL_IMAGE.path() {
            sent.remove("grpc-timeout");
        }
        assert_eq!(seen.head.method, http::Method::POST, "{name}");
        assert_eq!(seen.head.uri.path_and_query().unwrap(), name.as_str());
        assert_eq!(seen.head.uri.authority().unwrap(), "localhost", "{name}");
        assert_eq!(seen.head.headers, sent, "{name}");
        let body = case.body.concat();
        if name == Method::CREATE_CONTAINER.path() {
            assert!(without_record(&seen.body) == body, "{name}: more than the record changed");
        } else {
            assert!(seen.body == body, "{name}: the request changed");
        }
        assert_eq!(seen.trailers, case.trailers, "{name}");
        assert!(reply.bytes() == case.reply.bytes(), "{name}: the reply changed");
        assert_eq!((&reply.head, &reply.trailers), (&case.reply.head, &case.reply.trailers), "{name}");
        assert_eq!(reply.status, case.reply.status, "{name}");
    }
}

/// A body whose first message, if it can be read, has lost the record that crisp gave it.
fn without_record(body: &Bytes) -> Bytes {
    let mut splitter = Splitter::default();
    splitter.push(body.clone());
    let Ok(Some(frame)) = splitter.next_frame() else { return body.clone() };
    let Some(message) = frame.message() else { return body.clone() };
    let without = Patch::new().remove_entry([2, 9], LABEL).apply(&message).unwrap_or(message);
    [framed(&without), splitter.into_rest()].concat().into()
}

/// Every CRI method, and what does not exist.
fn paths() -> Vec<String> {
    let known = Method::ALL.iter().filter(|method| **method != Method::OTHER).map(|method| method.path());
    let invented = [
        "/runtime.v1.RuntimeService/NotYetInvented",
        "/runtime.v1.ImageService/NotYetInvented",
        "/runtime.v2.RuntimeService/Version",
        "/runtime.v1alpha2.ImageService/PullImage",
        "/containerd.services.leases.v1.Leases/Create",
        "/no.such.Service/Method",
        "/grpc.health.v1.Health/Check?with=query",
    ];
    known.chain(invented).map(str::to_owned).collect()
}

/// Metadata of every kind that gRPC allows.
fn metadata(random: &mut Random) -> HeaderMap {
    let mut map = headers(&[
        ("content-type", ["application/grpc", "application/grpc+proto"][random.below(2)]),
        ("grpc-timeout", ["119999m", "2M", "59999991u"][random.below(3)]),
        ("grpc-accept-encoding", "gzip,identity"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "a=1,b=2"),
        ("twice", "one"),
        ("twice", "two, with a comma"),
        ("twice", ""),
        ("blob-bin", "AAECA/8"),
        ("blob-bin", "/w"),
        ("containerd-lease", "stolen"),
        ("containerd-namespace", "k8s.io"),
    ]);
    let mut secret = HeaderValue::from_static("Bearer hush");
    secret.set_sensitive(true);
    map.append("authorization", secret);
    map.append("opaque", HeaderValue::from_bytes(b"\xc3\xbc \xff").unwrap());
    map
}

#[tokio::test]
async fn every_method_passes_unchanged_in_both_directions() {
    let bench = Bench::new().await;
    let mut random = Random::seeded(1);
    for path in paths() {
        let [request_body, reply_body] = messages_of(&path, &mut random).map(|message| framed(&message));
        let mut reply = Reply::of(&[]);
        reply.head =
            headers(&[("content-type", "application/grpc+proto"), ("m", "1"), ("m", "2"), ("m-bin", "/w")]);
        reply.body = random.cut(&reply_body);
        reply.trailers = Some(headers(&[
            ("grpc-status", "5"),
            ("grpc-message", "gone%20%E2%82%AC"),
            ("grpc-status-details-bin", "CAUSBGdvbmU"),
            ("t", "1"),
            ("t", "2"),
        ]));
        let body = random.cut(&request_body);
        let case = Case { path, metadata: metadata(&mut random), body, trailers: None, reply };
        bench.check(&case).await;
    }
    // Those about containers, and PullImage: what else there is about images is read only while crisp has something to say
    // of them. Nobody counts the replies to StopContainer and PullImage.
    assert_eq!(bench.crisp.metric("crisp_intercepted_requests_total"), 15.0, "each was read");
    assert_eq!(bench.crisp.metric("crisp_intercepted_replies_total"), 13.0);
    assert_eq!(bench.crisp.metric("crisp_intercept_failures_total"), 0.0);
}

/// What crisp cannot read is none of its business.
#[tokio::test]
async fn bodies_that_are_no_messages_pass_unchanged() {
    let bench = Bench::new().await;
    let mut random = Random::seeded(2);
    let garbage = random.bytes(300);
    let truncated = framed(b"truncated").slice(..9);
    let bodies: Vec<Vec<Bytes>> = vec![
        vec![],
        vec![Bytes::from_static(b"\0")],
        vec![truncated],
        vec![framed(b"")],
        vec![framed(&garbage)],
        vec![flagged(1, &garbage)],
        vec![framed(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")],
        vec![Bytes::from(garbage.clone())],
        vec![framed(b""), framed(b""), Bytes::from_static(b"\0\0")],
    ];
    for path in ["/runtime.v1.RuntimeService/Version", Method::PULL_IMAGE.path(), Method::LIST_IMAGES.path()]
    {
        for request_body in &bodies {
            for reply_body in &bodies {
                let mut reply = Reply::of(&[]);
                reply.body = reply_body.clone();
                let case = Case {
                    path: path.to_owned(),
                    metadata: HeaderMap::new(),
                    body: request_body.clone(),
                    trailers: None,
                    reply,
                };
                bench.check(&case).await;
            }
        }
    }
}

#[tokio::test]
async fn streams_of_many_messages_pass_unchanged() {
    let bench = Bench::new().await;
    let mut random = Random::seeded(3);
    for path in paths() {
        let messages = (0..20).map(|n| match n % 5 {
            0 => [(); 2].map(|()| framed(b"")),
            1 => [(); 2].map(|()| flagged(1, &random.bytes(40))),
            _ => messages_of(&path, &mut random).map(|message| framed(&message)),
        });
        let (asked, answered): (Vec<_>, Vec<_>) = messages.map(|[asked, answered]| (asked, answered)).unzip();
        let body = random.cut(&asked.concat());
        let mut reply = Reply::of(&[]);
        reply.body = random.cut(&answered.concat());
        bench.check(&Case { path, metadata: HeaderMap::new(), body, trailers: None, reply }).await;
    }
}

#[tokio::test]
async fn every_shape_of_reply_passes_unchanged() {
    let bench = Bench::new().await;
    let message = framed(b"\x0a\x01x");
    let plain = Reply::of(&[b"\x0a\x01x"]);
    let mut initial_metadata = plain.clone();
    initial_metadata.head.extend(headers(&[("early", "bird")]));
    let replies = [
        plain.clone(),
        initial_metadata,
        Reply::error("12", "unknown%20method"),
        Reply { trailers: None, ..plain.clone() },
        Reply { body: vec![Bytes::new()], trailers: None, ..plain.clone() },
        Reply { body: vec![], ..plain.clone() },
        Reply { body: vec![], trailers: Some(HeaderMap::new()), ..plain.clone() },
        Reply {
            status: StatusCode::SERVICE_UNAVAILABLE,
            head: headers(&[("content-type", "text/html"), ("content-length", "6")]),
            body: vec![Bytes::from_static(b"<html>")],
            trailers: None,
        },
        Reply { body: vec![message.clone(), message], ..plain },
    ];
    let all_trailers = [None, Some(headers(&[("request", "trailer")]))];
    // PullImage with no image, and with one: that is a pull of crisp's own, and only a message is asked of it.
    for (path, message, all_trailers) in [
        ("/runtime.v1.RuntimeService/Status", &b"\x0a\0"[..], &all_trailers[..]),
        (Method::PULL_IMAGE.path(), b"\x0a\0", &all_trailers),
        (Method::PULL_IMAGE.path(), b"\x0a\x05\x0a\x03img", &[None]),
    ] {
        for reply in &replies {
            for trailers in all_trailers.iter().cloned() {
                let (body, metadata) = (vec![framed(message)], HeaderMap::new());
                let case = Case { path: path.to_owned(), metadata, body, trailers, reply: reply.clone() };
                bench.check(&case).await;
            }
        }
    }
}

/// hyper's and nginx's limits lost these, and the connection with them; grpc-go allows 16 MiB.
#[tokio::test]
async fn large_heads_and_trailers_pass_unchanged() {
    let bench = Bench::new().await;
    for (asked, answered) in [(40_000, 200), (200, 200_000), (4_000_000, 4_000_000)] {
        for path in ["/runtime.v1.RuntimeService/Status", Method::IMAGE_STATUS.path()] {
            let mut reply = Reply::of(&[b""]);
            reply.trailers = Some(headers(&[("grpc-status", "2"), ("grpc-message", &"m".repeat(answered))]));
            let metadata = headers(&[("large", &"h".repeat(asked))]);
            let body = vec![framed(b"")];
            let case = Case { path: path.to_owned(), metadata, body, trailers: None, reply };
            bench.check(&case).await;
        }
    }
}

/// Larger than what crisp collects, so an intercepted method must let it through unread.
#[tokio::test]
async fn a_message_of_70_mib_passes_unchanged() {
    let bench = Bench::new().await;
    let huge = framed(&vec![0xa5; 70 << 20]);
    for path in ["/runtime.v1.RuntimeService/Status", Method::LIST_IMAGES.path()] {
        let mut reply = Reply::of(&[]);
        reply.body = vec![huge.clone()];
        let (path, metadata) = (path.to_owned(), HeaderMap::new());
        bench.check(&Case { path, metadata, body: vec![huge.clone()], trailers: None, reply }).await;
    }
    assert_eq!(bench.crisp.metric("crisp_intercepted_requests_total"), 0.0, "too large to be read");
}
