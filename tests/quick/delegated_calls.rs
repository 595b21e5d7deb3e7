//! Protects: work that crisp does for its callers on a connection of its own outlives any one caller, and one reply
//! of the runtime answers all of them as it came.

use std::sync::{Arc, Mutex};

use crisp::cri::{Call, Forward, Method, Plan, Policy, Raw};
use crisp::intercept::Features;
use crisp::metrics::Metrics;
use crisp::proxy::upstream::{Client, Endpoints};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use http::HeaderMap;
use tokio::sync::{Semaphore, mpsc};

use crate::support::bytes_on_the_wire::{Reply, framed, headers};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::feature::{everywhere, feature};
use crate::support::in_process::InProcess;
use crate::support::wait::{eventually, soon};

const PULL: &str = "/runtime.v1.ImageService/PullImage";

type Flight = Shared<BoxFuture<'static, Raw>>;

/// All pulls share one call, which crisp makes in a task of its own.
fn one_flight(metrics: &Arc<Metrics>, endpoints: &Endpoints) -> Features {
    let client = Arc::new(Client::new(endpoints, metrics));
    let flight: Mutex<Option<Flight>> = Mutex::default();
    let join = move |call: &Call, _: &mut Forward| {
        let mut flight = flight.lock().unwrap();
        let flight = flight.get_or_insert_with(|| {
            let (client, message) = (client.clone(), call.message.clone());
            let pull = async move {
                let metadata = headers(&[("containerd-lease", "own")]);
                match client.call(Method::PULL_IMAGE, metadata, &message).await {
                    Ok(raw) => raw,
                    Err(error) => Raw::error(&error),
                }
            };
            let task = tokio::spawn(pull);
            async move { task.await.unwrap() }.boxed().shared()
        });
        Ok(Some(Plan::Delegate(flight.clone().boxed())))
    };
    everywhere(vec![feature("flight", Policy::Closed, join)])
}

struct Bench {
    crisp: InProcess,
    runtime: FakeRuntime,
    finish: Arc<Semaphore>,
    /// Head and message of each call that the runtime answered to its end.
    told: mpsc::UnboundedReceiver<(HeaderMap, bytes::Bytes)>,
}

fn bench(reply: Reply) -> Bench {
    let crisp = InProcess::with(one_flight);
    let finish = Arc::new(Semaphore::new(0));
    let (tell, told) = mpsc::unbounded_channel();
    let gate = finish.clone();
    let runtime = FakeRuntime::start(&crisp.runtime_socket(), move |mut incoming| {
        let (gate, tell, reply) = (gate.clone(), tell.clone(), reply.clone());
        async move {
            let seen = incoming.read().await.unwrap();
            tokio::select! {
                reason = incoming.reset() => panic!("the call was reset: {reason:?}"),
                permit = gate.acquire() => permit.unwrap().forget(),
            }
            incoming.reply(&reply).await.unwrap();
            tell.send((seen.head.headers, seen.body)).unwrap();
        }
    });
    Bench { crisp, runtime, finish, told }
}

fn rich_reply() -> Reply {
    let mut reply = Reply::of(&[b"\x0a\x06sha256"]);
    reply.head.extend(headers(&[("early", "one")]));
    reply.trailers = Some(headers(&[("grpc-status", "0"), ("late-bin", "/w"), ("late", "1"), ("late", "2")]));
    reply
}

#[tokio::test]
async fn a_delegated_call_outlives_its_caller() {
    let mut bench = bench(rich_reply());
    let client = bench.crisp.client().await;
    let call = client.ask(PULL, b"\x0a\0").await;
    eventually("the runtime has the call", || bench.runtime.calls() == 1).await;
    drop(call);
    drop(client);
    let crisp = &bench.crisp;
    eventually("the caller is gone", || crisp.metric("crisp_calls_in_flight") == 0.0).await;
    eventually("its connection too", || crisp.metric("crisp_downstream_connections") == 0.0).await;
    bench.finish.add_permits(1);
    let (head, body) = soon("the call to be answered", bench.told.recv()).await.unwrap();
    assert_eq!(body, framed(b"\x0a\0"));
    assert_eq!(head["containerd-lease"], "own", "crisp's own metadata is not stripped");
    // Who comes later gets what was brought.
    let late = bench.crisp.client().await.unary(PULL, b"").await.unwrap();
    assert_eq!(late, rich_reply());
    assert_eq!(bench.runtime.calls(), 1);
}

#[tokio::test]
async fn one_reply_answers_all_callers_as_it_came() {
    for reply in [rich_reply(), Reply::error("2", "RegistryUnavailable:%20away")] {
        let bench = bench(reply.clone());
        let (one, two) = (bench.crisp.client().await, bench.crisp.client().await);
        let calls = [one.ask(PULL, b"").await, one.ask(PULL, b"").await, two.ask(PULL, b"").await];
        let crisp = &bench.crisp;
        eventually("all wait", || crisp.metric("crisp_calls_in_flight") == 3.0).await;
        bench.finish.add_permits(1);
        for call in calls {
            assert_eq!(call.reply().await.unwrap(), reply);
        }
        assert_eq!(bench.runtime.calls(), 1);
    }
}

#[tokio::test]
async fn a_delegated_call_without_a_runtime_is_told_so() {
    let crisp = InProcess::with(one_flight);
    let reply = crisp.client().await.unary(PULL, b"").await.unwrap();
    assert_eq!(reply.code(), "14");
    assert!(reply.message().contains("cannot%20be%20reached"), "{}", reply.message());
}
