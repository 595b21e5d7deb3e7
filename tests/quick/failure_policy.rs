//! Protects: a feature that cannot do its part either lets the call go on as it came (open) or ends it (closed), at
//! each of its steps, and a metric counts it.

use bytes::Bytes;
use crisp::cri::plan::{First, OnEnd, OnReply, Step};
use crisp::cri::{Call, Forward, Method, Plan, Policy};
use crisp::error::Error;
use crisp::intercept::Features;
use crisp::wire::Patch;

use crate::support::bytes_on_the_wire::{Reply, framed};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::feature::{everywhere, failure, feature};
use crate::support::in_process::InProcess;
use crate::support::wait::eventually;

const PULL: &str = "/runtime.v1.ImageService/PullImage";
const EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";
/// A length that reaches beyond the end: no protobuf message.
const INVALID: &[u8] = b"\x0a\x7f";

/// A planner that fails at one step.
fn failing(step: &'static str, policy: Policy) -> Features {
    let plan = move |_: &Call, forward: &mut Forward| -> Result<Option<Plan>, Error> {
        // Fails on invalid messages only.
        let patch = || Patch::new().set([9], "x");
        let reply = &mut forward.reply;
        match step {
            "plan" => return Err(failure()),
            "request" => forward.request.push(Step { feature: "failing", policy, action: patch() }),
            "map" => {
                let action = OnReply::Map(Box::new(|_| Err(failure())));
                reply.push(Step { feature: "failing", policy, action });
            }
            "map-patch" => {
                let action = OnReply::Map(Box::new(move |_| Ok(patch())));
                reply.push(Step { feature: "failing", policy, action });
            }
            _ => {
                let action = OnReply::Observe(Box::new(|_| Err(failure())));
                reply.push(Step { feature: "failing", policy, action });
            }
        }
        Ok(None)
    };
    everywhere(vec![feature("failing", policy, plan)])
}

async fn one_call(features: Features, path: &str) -> (Reply, f64, usize, String) {
    let crisp = InProcess::with(move |_, _| features);
    let runtime = FakeRuntime::start(&crisp.runtime_socket(), |incoming| async move {
        let seen = incoming.answer(&Reply::of(&[INVALID, b"\x0a\x01x"])).await;
        assert_eq!(seen.unwrap().body, framed(INVALID), "what cannot be changed goes on as it came");
    });
    let reply = crisp.client().await.unary(path, INVALID).await.unwrap();
    eventually("the call is over", || crisp.metric("crisp_calls_in_flight") == 0.0).await;
    let scrape = crisp.metrics.encode().unwrap();
    (reply, crisp.metric("crisp_intercept_failures_total"), runtime.calls(), scrape)
}

#[tokio::test]
async fn a_feature_that_fails_open_lets_the_call_go_on_as_it_came() {
    let steps = [
        ("plan", "plan", 1.0),
        ("request", "request", 1.0),
        ("map", "reply", 2.0),
        ("observe", "reply", 2.0),
    ];
    for path in [PULL, EVENTS] {
        for (step, label, times) in steps {
            let (reply, failures, calls, scrape) = one_call(failing(step, Policy::Open), path).await;
            assert_eq!(reply, joined(Reply::of(&[INVALID, b"\x0a\x01x"])), "{step}");
            assert_eq!((failures, calls), (times, 1), "{step}");
            let sample = format!("crisp_intercept_failures_total{{feature=\"failing\",step=\"{label}\"}}");
            assert!(scrape.contains(&sample), "{scrape}");
        }
        // The message that can be changed is changed; the one that cannot goes on.
        let (reply, failures, ..) = one_call(failing("map-patch", Policy::Open), path).await;
        assert_eq!(failures, 1.0);
        assert!(reply.bytes().starts_with(&framed(INVALID)));
        assert!(reply.bytes().ends_with(b"x"));
    }
}

#[tokio::test]
async fn a_feature_that_fails_closed_ends_the_call() {
    for path in [PULL, EVENTS] {
        for (step, reaches_runtime) in [("plan", 0), ("request", 0), ("map", 1), ("map-patch", 1)] {
            let (reply, failures, calls, _) = one_call(failing(step, Policy::Closed), path).await;
            assert!(["9", "13"].contains(&reply.code()), "{step}: {reply:?}");
            assert!(reply.message().starts_with("crisp:%20"), "{step}: {reply:?}");
            assert_eq!(reply.bytes(), Bytes::new(), "{step}: nothing of the message got through");
            assert_eq!((failures, calls), (1.0, reaches_runtime), "{step}");
        }
    }
}

/// What is only looked at is counted: each listed method, and each message of its reply.
#[tokio::test]
async fn what_is_read_is_counted() {
    let methods = [
        Method::CREATE_CONTAINER,
        Method::RUN_POD_SANDBOX,
        Method::CONTAINER_STATUS,
        Method::LIST_CONTAINERS,
        Method::STREAM_CONTAINERS,
        Method::GET_CONTAINER_EVENTS,
        Method::POD_SANDBOX_STATUS,
    ];
    let crisp = InProcess::released(&[]);
    let _runtime = FakeRuntime::answering(&crisp.runtime_socket(), Reply::of(&[b"", b"", b""]));
    let client = crisp.client().await;
    for method in methods {
        assert_eq!(client.unary(method.path(), b"").await.unwrap().code(), "0");
        let name = method.name();
        assert_eq!(crisp.metric(&format!("crisp_intercepted_requests_total{{method=\"{name}\"}}")), 1.0);
        let sample = format!("crisp_intercepted_replies_total{{method=\"{name}\"}}");
        eventually("the replies are counted", || crisp.metric(&sample) == 3.0).await;
    }
    assert_eq!(client.unary("/runtime.v1.RuntimeService/Version", b"").await.unwrap().code(), "0");
    assert_eq!(crisp.metric("crisp_intercepted_requests_total"), 7.0, "and no other");
    assert_eq!(crisp.metric("crisp_intercept_failures_total"), 0.0);
}

#[tokio::test]
async fn what_cannot_be_read_goes_on_and_is_counted() {
    let crisp = InProcess::released(&[]);
    let reply = Reply::of(&[INVALID]);
    let _runtime = FakeRuntime::answering(&crisp.runtime_socket(), reply.clone());
    let client = crisp.client().await;
    assert_eq!(client.unary(Method::CREATE_CONTAINER.path(), INVALID).await.unwrap(), reply);
    assert_eq!(client.unary(Method::LIST_CONTAINERS.path(), b"").await.unwrap(), reply);
    let failures = || crisp.metric("crisp_intercept_failures_total{feature=\"records\"");
    // The request of the first call and its reply, the reply of the second.
    eventually("all are counted", || failures() == 3.0).await;
    assert_eq!(crisp.metric("crisp_intercepted_requests_total{method=\"CreateContainer\"}"), 0.0);
}

/// Broke: a panic while a reply was counted, at the end of a call or in a change of a request was the end of the connection,
/// and two at once were that of the process. One in what was waited for first refused the call, whatever the policy.
#[tokio::test]
async fn a_panic_is_a_failure_of_its_feature_and_no_more() {
    for step in ["plan", "first", "request", "map", "count", "end"] {
        let plan = move |_: &Call, forward: &mut Forward| -> Result<Option<Plan>, Error> {
            let policy = Policy::Open;
            let reply = match step {
                "plan" => panic!("as it should"),
                "first" => {
                    let action = First(Box::pin(async { panic!("as it should") }));
                    forward.first.push(Step { feature: "failing", policy, action });
                    return Ok(None);
                }
                "request" => {
                    let action = Patch::new().each([1], |_| panic!("as it should"));
                    forward.request.push(Step { feature: "failing", policy, action });
                    return Ok(None);
                }
                "end" => {
                    let action = OnEnd(Box::new(|_| panic!("as it should")));
                    forward.end.push(Step { feature: "failing", policy, action });
                    return Ok(None);
                }
                "map" => OnReply::Map(Box::new(|_| panic!("as it should"))),
                _ => OnReply::Count(1, Box::new(|_| panic!("as it should"))),
            };
            forward.reply.push(Step { feature: "failing", policy, action: reply });
            Ok(None)
        };
        let crisp = InProcess::with(move |_, _| everywhere(vec![feature("failing", Policy::Open, plan)]));
        let reply = Reply::of(&[b"\x0a\x01x"]);
        let _runtime = FakeRuntime::answering(&crisp.runtime_socket(), reply.clone());
        let client = crisp.client().await;
        let (first, second) = tokio::join!(client.unary(PULL, b"\x0a\0"), client.unary(PULL, b"\x0a\0"));
        assert_eq!((first.unwrap(), second.unwrap()), (reply.clone(), reply.clone()), "{step}");
        assert_eq!(client.unary(PULL, b"\x0a\0").await.unwrap(), reply, "the connection is there");
        let failures = || crisp.metric("crisp_intercept_failures_total{feature=\"failing\"");
        eventually("all are counted", || failures() == 3.0).await;
    }
}

fn joined(reply: Reply) -> Reply {
    Reply { body: vec![reply.bytes()], ..reply }
}
