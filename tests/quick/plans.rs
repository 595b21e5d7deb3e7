//! Protects: each kind of plan is carried out as made, and what a plan does not name stays as it came.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crisp::cri::plan::{First, OnEnd, OnReply, Step};
use crisp::cri::{Call, Forward, Method, Plan, Policy, Raw};
use crisp::error::{Error, Kind, Origin};
use crisp::wire::Patch;
use http::HeaderMap;
use tokio::sync::{Semaphore, mpsc};

use crate::support::bytes_on_the_wire::{Reply, flagged, framed, headers, request, reset, send};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::feature::{everywhere, feature};
use crate::support::in_process::InProcess;
use crate::support::random::{Random, field};
use crate::support::wait::{eventually, soon};

const PULL: &str = "/runtime.v1.ImageService/PullImage";
const EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";

/// Adds a change of the request to the plan.
fn patch(patch: Patch) -> impl Fn(&Call, &mut Forward) -> Result<Option<Plan>, Error> {
    move |_, forward| {
        forward.request.push(Step { feature: "test", policy: Policy::Closed, action: patch.clone() });
        Ok(None)
    }
}

/// A runtime that answers all, and tells which bodies it got.
fn telling_runtime(crisp: &InProcess) -> (FakeRuntime, mpsc::UnboundedReceiver<bytes::Bytes>) {
    let (tell, told) = mpsc::unbounded_channel();
    let runtime = FakeRuntime::start(&crisp.runtime_socket(), move |incoming| {
        let tell = tell.clone();
        async move {
            let seen = incoming.answer(&Reply::of(&[b"\x0a\x01x"])).await.unwrap();
            tell.send(seen.body).unwrap();
        }
    });
    (runtime, told)
}

#[tokio::test]
async fn two_features_patch_one_message_and_nothing_else_changes() {
    let crisp = InProcess::with(|_, _| {
        everywhere(vec![
            feature("one", Policy::Closed, patch(Patch::new().set([1, 18], "asked for"))),
            feature("two", Policy::Closed, patch(Patch::new().set_entry([1, 2], "key", "value"))),
            feature("none", Policy::Closed, patch(Patch::new())),
        ])
    });
    let (_runtime, mut told) = telling_runtime(&crisp);
    let client = crisp.client().await;
    let mut random = Random::seeded(5);
    let (before, inside, after) =
        (random.unknown_fields(3), random.unknown_fields(3), random.unknown_fields(3));
    let spec = [field(1, b"image"), inside].concat();
    let message = [before.clone(), field(1, &spec), after.clone()].concat();
    // What follows the first message is not a plan's business.
    let body = [framed(&message), framed(b"second"), flagged(1, b"third")];
    let call = client.start(request(PULL, &HeaderMap::new()), &body, None).await.unwrap();
    assert_eq!(call.reply().await.unwrap().code(), "0");

    let entry = field(2, &[field(1, b"key"), field(2, b"value")].concat());
    let patched_spec = [spec, field(18, b"asked for"), entry].concat();
    let patched = [before, field(1, &patched_spec), after].concat();
    let expected = [framed(&patched), framed(b"second"), flagged(1, b"third")].concat();
    assert!(told.recv().await.unwrap() == expected, "exactly the two changes");
}

/// A length that is true no more would have the receiver cut off or wait.
#[tokio::test]
async fn a_length_goes_with_what_it_is_the_length_of() {
    for changes in [false, true] {
        let crisp = InProcess::with(move |_, _| {
            everywhere(vec![feature("test", Policy::Closed, move |_, forward| {
                let change = move || if changes { Patch::new().set([9], "more") } else { Patch::new() };
                forward.request.push(Step { feature: "test", policy: Policy::Closed, action: change() });
                if changes {
                    let action = OnReply::Map(Box::new(move |_| Ok(change())));
                    forward.reply.push(Step { feature: "test", policy: Policy::Closed, action });
                }
                Ok(None)
            })])
        });
        let length = headers(&[("content-length", "5")]);
        let mut reply = Reply::of(&[b""]);
        reply.head.extend(length.clone());
        let (tell, mut told) = mpsc::unbounded_channel();
        let _runtime = FakeRuntime::start(&crisp.runtime_socket(), move |incoming| {
            let (tell, reply) = (tell.clone(), reply.clone());
            async move { tell.send(incoming.answer(&reply).await.unwrap().head).unwrap() }
        });
        let client = crisp.client().await;
        let call = client.start(request(PULL, &length), &[framed(b"")], None).await.unwrap();
        let answered = call.reply().await.unwrap();
        assert_eq!(answered.bytes().len(), if changes { 11 } else { 5 });
        assert_eq!(answered.head.contains_key("content-length"), !changes);
        assert_eq!(told.recv().await.unwrap().headers.contains_key("content-length"), !changes);
    }
}

#[tokio::test]
async fn a_reply_made_here_reaches_the_caller_and_the_call_goes_nowhere() {
    let raw = {
        let head = headers(&[("content-type", "application/grpc"), ("made", "here")]);
        let trailers =
            headers(&[("grpc-status", "5"), ("grpc-status-details-bin", "CAU"), ("t", "1"), ("t", "2")]);
        let body = vec![framed(b"one"), framed(b"two").slice(..4), framed(b"two").slice(4..)];
        Raw::new(http::StatusCode::OK, head, body, Some(trailers))
    };
    let answer = raw.clone();
    let crisp = InProcess::with(move |_, _| {
        everywhere(vec![
            feature("reply", Policy::Open, move |_, _| Ok(Some(Plan::Reply(answer.clone())))),
            feature("never", Policy::Open, |_, _| panic!("a plan that answers ends the planning")),
        ])
    });
    let (runtime, _told) = telling_runtime(&crisp);
    for path in [PULL, EVENTS] {
        let reply = crisp.client().await.unary(path, b"").await.unwrap();
        assert_eq!((&reply.head, reply.trailers.as_ref()), (raw.head(), raw.trailers()));
        assert_eq!(reply.bytes(), raw.body().concat());
    }
    assert_eq!(runtime.calls(), 0);
    let scrape = crisp.metrics.encode().unwrap();
    assert!(scrape.contains("crisp_calls_total{method=\"PullImage\",code=\"NOT_FOUND\"} 1"), "{scrape}");
}

#[tokio::test]
async fn a_refusal_reaches_the_caller_in_crisps_words() {
    let crisp = InProcess::with(|_, _| {
        let refuse = |_: &Call, _: &mut Forward| {
            let error = Error::new(Kind::Invalid, Origin::Kubelet, "no: 100 % wrong\nü");
            Ok(Some(Plan::Refuse(error)))
        };
        everywhere(vec![feature("refuse", Policy::Open, refuse)])
    });
    let (runtime, _told) = telling_runtime(&crisp);
    let reply = crisp.client().await.unary(PULL, b"").await.unwrap();
    assert_eq!((reply.code(), reply.trailers.is_none()), ("3", true));
    assert_eq!(reply.message(), "crisp:%20no:%20100%20%25%20wrong%0A%C3%BC");
    assert_eq!(runtime.calls(), 0);
}

#[tokio::test]
async fn a_feature_sees_who_calls_and_what() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let crisp = InProcess::with(move |_, _| {
        let look = move |call: &Call, _: &mut Forward| {
            let left = call.deadline.map(|deadline| deadline - std::time::Instant::now());
            let agent = call.user_agent().map(str::to_owned);
            let twice = call.metadata().get_all("twice").iter().count();
            tell.send((call.connection, call.method, agent, left, twice, call.message.clone())).unwrap();
            Ok(None)
        };
        everywhere(vec![feature("look", Policy::Open, look)])
    });
    let (_runtime, _told) = telling_runtime(&crisp);
    let (one, two) = (crisp.client().await, crisp.client().await);
    let metadata = headers(&[("grpc-timeout", "90S"), ("twice", "1"), ("twice", "2")]);
    let call = one.start(request(PULL, &metadata), &[framed(b"\x0a\0")], None).await.unwrap();
    assert_eq!(call.reply().await.unwrap().code(), "0");
    assert_eq!(two.unary(EVENTS, b"").await.unwrap().code(), "0");
    let (connection, method, agent, left, twice, message) = told.recv().await.unwrap();
    assert_eq!((method, twice, message.as_ref()), (Method::PULL_IMAGE, 2, &b"\x0a\0"[..]));
    assert_eq!(agent.unwrap(), "grpc-go/1.76.0");
    assert!((30..=90).contains(&left.unwrap().as_secs()));
    let (other, method, _, left, ..) = told.recv().await.unwrap();
    assert_eq!((method, left), (Method::GET_CONTAINER_EVENTS, None));
    assert_ne!(connection, other);
}

/// Waits for a turn, then brings what `brought` makes.
fn first(
    turn: Arc<Semaphore>,
    policy: Policy,
    brought: impl Fn() -> Result<Patch, Error> + Clone + Send + Sync + 'static,
) -> impl Fn(&Call, &mut Forward) -> Result<Option<Plan>, Error> {
    move |_, forward| {
        let (turn, brought) = (turn.clone(), brought.clone());
        let wait = async move {
            turn.acquire().await.unwrap().forget();
            brought()
        };
        forward.first.push(Step { feature: "first", policy, action: First(Box::pin(wait)) });
        Ok(None)
    }
}

#[tokio::test]
async fn what_a_call_waits_for_changes_it_after_the_other_changes() {
    let turn = Arc::new(Semaphore::new(0));
    let wait = first(turn.clone(), Policy::Closed, || Ok(Patch::new().set([1, 18], "brought")));
    let crisp = InProcess::with(|_, _| {
        everywhere(vec![
            feature("first", Policy::Closed, wait),
            feature("one", Policy::Closed, patch(Patch::new().set([1, 18], "at once"))),
        ])
    });
    let (_runtime, mut told) = telling_runtime(&crisp);
    let client = crisp.client().await;
    let call = client.ask(PULL, &field(1, b"")).await;
    turn.add_permits(1);
    assert_eq!(call.reply().await.unwrap().code(), "0");
    // Field 18, length-delimited, in field 1.
    let spec = [&[0x92, 0x01, 7][..], b"brought"].concat();
    assert_eq!(told.recv().await.unwrap(), framed(&field(1, &spec)));
}

#[tokio::test]
async fn what_a_call_waits_for_may_refuse_it_or_fail_open() {
    for (policy, code) in [(Policy::Closed, "9"), (Policy::Open, "0")] {
        let refuse = || Err(Error::new(Kind::Precondition, Origin::Crisp, "not yet"));
        let wait = first(Arc::new(Semaphore::new(1)), policy, refuse);
        let crisp = InProcess::with(|_, _| everywhere(vec![feature("first", policy, wait)]));
        let (_runtime, _told) = telling_runtime(&crisp);
        let reply = crisp.client().await.unary(PULL, b"\x0a\0").await.unwrap();
        assert_eq!(reply.code(), code, "{policy:?}");
    }
}

/// Adds a mark to each reply message.
fn mark(_: &Call, forward: &mut Forward) -> Result<Option<Plan>, Error> {
    let mark = |_: &bytes::Bytes| Ok(Patch::new().set([77], "seen"));
    let action = OnReply::Map(Box::new(mark));
    forward.reply.push(Step { feature: "mark", policy: Policy::Closed, action });
    Ok(None)
}

#[tokio::test]
async fn each_message_of_a_stream_is_changed_when_it_comes() {
    let crisp = InProcess::with(|_, _| {
        let count = |_: &Call, forward: &mut Forward| {
            let mut seen = 0_u64;
            let count = move |_: &bytes::Bytes| {
                seen += 1;
                Ok(Patch::new().set([78], seen))
            };
            let action = OnReply::Map(Box::new(count));
            forward.reply.push(Step { feature: "count", policy: Policy::Closed, action });
            Ok(None)
        };
        everywhere(vec![feature("mark", Policy::Closed, mark), feature("count", Policy::Closed, count)])
    });
    let next = Arc::new(Semaphore::new(1));
    let gate = next.clone();
    let mut random = Random::seeded(6);
    let messages: Vec<Vec<u8>> = (0..5).map(|_| random.unknown_fields(2)).collect();
    let sent = messages.clone();
    let _runtime = FakeRuntime::start(&crisp.runtime_socket(), move |mut incoming| {
        let (gate, sent) = (gate.clone(), sent.clone());
        async move {
            incoming.read().await.unwrap();
            let mut stream = incoming.head(&Reply::of(&[]), false).unwrap();
            for message in &sent {
                gate.acquire().await.unwrap().forget();
                let bytes = framed(message);
                send(&mut stream, bytes.slice(..3), false).await.unwrap();
                send(&mut stream, bytes.slice(3..), false).await.unwrap();
                // A compressed message is between the two ends.
                send(&mut stream, flagged(1, message), false).await.unwrap();
            }
            let trailers = headers(&[("grpc-status", "1"), ("kept", "yes")]);
            stream.send_trailers(trailers).unwrap();
        }
    });
    let client = crisp.client().await;
    let (_, mut body) = client.ask(EVENTS, b"").await.head().await.unwrap();
    for (n, message) in messages.iter().enumerate() {
        // tag 77 (length-delimited) and tag 78 (varint)
        let number = u8::try_from(n).unwrap() + 1;
        let changed = [message.clone(), field(77, b"seen"), vec![0xf0, 0x04, number]].concat();
        let expected = [framed(&changed), flagged(1, message)].concat();
        let mut got = Vec::new();
        while got.len() < expected.len() {
            let piece = soon("a message before the next is sent", body.data()).await.unwrap().unwrap();
            body.flow_control().release_capacity(piece.len()).unwrap();
            got.extend_from_slice(&piece);
        }
        assert!(got == expected, "message {n}");
        next.add_permits(1);
    }
    assert!(body.data().await.is_none());
    assert_eq!(body.trailers().await.unwrap().unwrap(), headers(&[("grpc-status", "1"), ("kept", "yes")]));
}

#[tokio::test]
async fn a_unary_reply_is_changed_and_its_trailers_kept() {
    let crisp = InProcess::with(|_, _| everywhere(vec![feature("mark", Policy::Closed, mark)]));
    let mut reply = Reply::of(&[b"\x0a\x01x"]);
    reply.trailers = Some(headers(&[("grpc-status", "0"), ("kept", "yes")]));
    // After the message: what is no whole message goes on as it came.
    reply.body.push(bytes::Bytes::from_static(b"\0\0\0"));
    let _runtime = FakeRuntime::answering(&crisp.runtime_socket(), reply.clone());
    let got = crisp.client().await.unary(PULL, b"").await.unwrap();
    let changed = framed(&[b"\x0a\x01x".to_vec(), field(77, b"seen")].concat());
    assert_eq!(got.bytes(), [&changed[..], b"\0\0\0"].concat());
    assert_eq!((got.head, got.trailers), (reply.head, reply.trailers));
}

/// An error of the runtime has no message to be changed.
#[tokio::test]
async fn an_error_of_the_runtime_passes_a_mapping_feature_unchanged() {
    let crisp = InProcess::with(|_, _| everywhere(vec![feature("mark", Policy::Closed, mark)]));
    let error = Reply::error("5", "no%20such%20image");
    let _runtime = FakeRuntime::answering(&crisp.runtime_socket(), error.clone());
    assert_eq!(crisp.client().await.unary(PULL, b"").await.unwrap(), error);
}

#[tokio::test]
async fn the_end_of_a_call_is_told_with_its_code() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let crisp = InProcess::with(move |_, _| {
        let end = move |_: &Call, forward: &mut Forward| {
            let tell = tell.clone();
            let action = OnEnd(Box::new(move |code| tell.send(code).unwrap()));
            forward.end.push(Step { feature: "end", policy: Policy::Open, action });
            Ok(None)
        };
        everywhere(vec![feature("end", Policy::Open, end)])
    });
    let client = crisp.client().await;
    client.unary(PULL, b"").await.unwrap();
    assert_eq!(soon("the end", told.recv()).await.unwrap(), tonic::Code::Unavailable, "no runtime");
    {
        let _runtime = FakeRuntime::answering(&crisp.runtime_socket(), Reply::error("5", ""));
        client.unary(PULL, b"").await.unwrap();
        assert_eq!(soon("the end", told.recv()).await.unwrap(), tonic::Code::NotFound);
    }
    let runtime = FakeRuntime::start(&crisp.runtime_socket(), |mut incoming| async move {
        let mut stream = incoming.head(&Reply::of(&[]), false).unwrap();
        let _ = reset(&mut stream).await;
    });
    let call = client.ask(PULL, b"").await;
    eventually("the call waits", || runtime.running() == 1).await;
    drop(call);
    assert_eq!(soon("the end", told.recv()).await.unwrap(), tonic::Code::Cancelled);
    eventually("the runtime knows", || runtime.running() == 0).await;
    let call = client.ask(PULL, b"").await;
    // Broke: the cancelled call was still counted as running, so crisp ended before this one had a plan.
    eventually("the call waits", || runtime.calls() == 2 && runtime.running() == 1).await;
    crisp.shutdown.end();
    assert_eq!(call.reply().await.unwrap().code(), "14");
    assert_eq!(soon("the end", told.recv()).await.unwrap(), tonic::Code::Unavailable, "crisp ends");
}

#[tokio::test]
async fn a_delegated_answer_that_nobody_waits_for_is_dropped() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    // This once dropped the call before its message had come, so that there was no future to drop.
    let (planned, dropped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (plan_flag, flag) = (planned.clone(), dropped.clone());
    let crisp = InProcess::with(move |_, _| {
        let delegate = move |_: &Call, _: &mut Forward| {
            plan_flag.store(true, Ordering::SeqCst);
            let held = Dropped(flag.clone());
            Ok(Some(Plan::Delegate(Box::pin(async move {
                let _held = held;
                std::future::pending().await
            }))))
        };
        everywhere(vec![feature("delegate", Policy::Open, delegate)])
    });
    let client = crisp.client().await;
    let call = client.ask(PULL, b"").await;
    eventually("the call waits", || planned.load(Ordering::SeqCst)).await;
    drop(call);
    eventually("the future is dropped", || dropped.load(Ordering::SeqCst)).await;
    eventually("the call is over", || crisp.metric("crisp_calls_in_flight") == 0.0).await;
}
