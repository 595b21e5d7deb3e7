//! Protects: whatever HTTP/2 lets a runtime do works; a runtime that breaks its rules or goes in any state costs the
//! calls that it had, in clear words, and nothing of what comes after; and no credit is lost on the way.

use crisp::cri::Method;
use tokio::net::UnixListener;

use crate::support::in_process::InProcess;
use crate::support::raw_frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADER_TABLE_SIZE, HEADERS, INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS, PADDED, PING, PUSH_PROMISE, RST_STREAM, RawFrame, RawFrames, SETTINGS,
    WINDOW_UPDATE, block, body, call_block, cancel, frame, go_away, head, padded, reply_end, reply_head,
    reset, room, settings, whole_reply,
};
use crate::support::wait::eventually;

const PATH: &str = "/no.such.Service/Method";
const MOST_WINDOW: u32 = 0x7fff_ffff;
const NO_ERROR: u32 = 0;

type Frames = Vec<Vec<u8>>;

/// crisp, where the runtime listens, and a client that can read header fields as they are.
async fn scene(said: &[(u16, u32)]) -> (InProcess, UnixListener, RawFrames) {
    let crisp = InProcess::start();
    let listener = UnixListener::bind(crisp.runtime_socket()).unwrap();
    let said = [&[(HEADER_TABLE_SIZE, 0)], said].concat();
    let mut client = RawFrames::connect_with(&crisp.socket(), &said).await;
    client.write(&[room(0, MOST_WINDOW - 65_535)]).await;
    (crisp, listener, client)
}

/// A call and its whole request.
fn call(stream: u32) -> Vec<u8> {
    [head(stream, PATH), body(stream, b"ask")].concat()
}

fn has(block: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(block).replace("%20", " ").contains(text)
}

/// Asserts that a call ended with UNAVAILABLE in these words.
async fn is_lost(client: &mut RawFrames, stream: u32, words: &str, what: &str) {
    let (_, end) = client.reply(stream).await;
    let text = String::from_utf8_lossy(&end).into_owned();
    assert!(has(&end, "grpc-status\u{2}14"), "{what}: {text}");
    assert!(has(&end, words), "{what}: {text}");
}

/// Asserts that a call ended as one that nobody has looked at: who made it may make it again.
async fn is_refused(client: &mut RawFrames, stream: u32, what: &str) {
    const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];
    assert_eq!(client.until(RST_STREAM, stream).await.payload, REFUSED_STREAM, "{what}");
}

/// Asserts that the next call gets a new connection, and its answer.
async fn is_answered_anew(listener: &UnixListener, client: &mut RawFrames, stream: u32) {
    client.write(&[call(stream)]).await;
    let mut runtime = RawFrames::accept(listener, &[]).await;
    runtime.until(DATA, 1).await;
    runtime.write(&[whole_reply(1, b"anew")]).await;
    assert_eq!(client.reply(stream).await.0, b"anew");
}

#[tokio::test]
async fn whatever_a_runtime_may_do_works() {
    let (_crisp, listener, mut client) = scene(&[]).await;
    client.write(&[head(1, PATH)]).await;
    let mut runtime = RawFrames::accept(&listener, &[(INITIAL_WINDOW_SIZE, 1 << 20)]).await;
    client.write(&[body(1, b"ask")]).await;
    let first = |stream, status| frame(HEADERS, END_HEADERS, stream, &block(&[(":status", status)]));
    let padded_data = |stream| frame(DATA, PADDED, stream, &padded(b"well", 200));
    let fields = block(&[(":status", "200"), ("grpc-status", "0")]);
    let in_bytes = |stream| {
        let bytes = fields.iter().flat_map(|byte| frame(CONTINUATION, 0, stream, &[*byte])).collect();
        let start = frame(HEADERS, END_STREAM, stream, &[]);
        [start, bytes, frame(CONTINUATION, END_HEADERS, stream, &[])].concat()
    };
    let cases: Vec<(&str, Frames, &[u8])> = vec![
        ("first words", vec![first(1, "100"), first(1, "103"), whole_reply(1, b"well")], b"well"),
        ("padding", vec![reply_head(3), padded_data(3), padded_data(3), reply_end(3)], b"wellwell"),
        ("a reset after the whole reply", vec![whole_reply(5, b"well"), reset(5, NO_ERROR)], b"well"),
        ("no trailers", vec![reply_head(7), body(7, b"well")], b"well"),
        ("a head in bytes", vec![in_bytes(9)], b""),
        (
            "frames that nobody knows",
            vec![
                frame(0xbe, 1, 11, b"?"),
                frame(0xbe, 1, 0, b"?"),
                settings(&[(0x999, 1)]),
                whole_reply(11, b"well"),
            ],
            b"well",
        ),
        ("room for what is over", vec![room(1, 9), whole_reply(13, b"well"), room(13, 9)], b"well"),
        ("data of what is over", vec![frame(DATA, 0, 1, b"late"), whole_reply(15, b"well")], b"well"),
    ];
    for (number, (what, frames, expected)) in (0u32..).zip(cases) {
        let stream = number * 2 + 1;
        if stream > 1 {
            client.write(&[call(stream)]).await;
        }
        runtime.until(DATA, stream).await;
        runtime.write(&frames).await;
        assert_eq!(client.reply(stream).await.0, expected, "{what}");
    }
    assert!(client.settle().await.iter().all(|frame| frame.kind == WINDOW_UPDATE || frame.kind == SETTINGS));
    let frames = runtime.settle().await;
    assert!(!frames.iter().any(|frame| [GOAWAY, RST_STREAM].contains(&frame.kind)), "{frames:?}");
}

/// The reply is whole while the request is not: the caller has it, and is asked to stop.
#[tokio::test]
async fn an_early_reply_reaches_the_caller() {
    let (_crisp, listener, mut client) = scene(&[]).await;
    client.write(&[head(1, PATH)]).await;
    let mut runtime = RawFrames::accept(&listener, &[]).await;
    runtime.until(HEADERS, 1).await;
    runtime.write(&[whole_reply(1, b"enough")]).await;
    assert_eq!(client.reply(1).await.0, b"enough");
    assert_eq!(client.until(RST_STREAM, 1).await.payload, [0; 4]);
    runtime.until(RST_STREAM, 1).await;
    client.write(&[body(1, b"too late"), call(3)]).await;
    runtime.until(DATA, 3).await;
    runtime.write(&[whole_reply(3, b"well")]).await;
    assert_eq!(client.reply(3).await.0, b"well");
}

/// What breaks the rules ends the connection; its calls get UNAVAILABLE, and the next one a new connection.
#[tokio::test]
async fn a_runtime_that_breaks_the_rules_loses_its_connection() {
    let (crisp, listener, mut client) = scene(&[]).await;
    let cases: Vec<(&str, Frames)> = vec![
        ("frame too large", vec![frame(DATA, 0, 1, &[0; 16_385])]),
        ("head of no stream", vec![reply_head(0)]),
        ("even number", vec![reply_head(2)]),
        ("head of an idle stream", vec![reply_head(5)]),
        ("data of an idle stream", vec![frame(DATA, 0, 5, b"x")]),
        ("continuation of nothing", vec![frame(CONTINUATION, END_HEADERS, 1, &[])]),
        ("interrupted head", vec![frame(HEADERS, 0, 1, &[]), frame(PING, 0, 0, &[0; 8])]),
        ("broken header fields", vec![frame(HEADERS, END_HEADERS, 1, &[0xff])]),
        ("room beyond all", vec![room(0, MOST_WINDOW)]),
        ("window too large", vec![settings(&[(INITIAL_WINDOW_SIZE, MOST_WINDOW)]), room(1, 1), room(0, 0)]),
        ("push", vec![frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])]),
        ("padding without end", vec![reply_head(1), frame(DATA, PADDED, 1, &[9, 1])]),
        (
            "endless head",
            [vec![frame(HEADERS, 0, 1, &[])], vec![frame(CONTINUATION, 0, 1, &[]); 20_000]].concat(),
        ),
    ];
    for (what, frames) in cases {
        client.write(&[call(1), call(3)]).await;
        let mut runtime = RawFrames::accept(&listener, &[]).await;
        runtime.until(DATA, 3).await;
        runtime.try_write(&frames.concat()).await;
        is_lost(&mut client, 1, "it broke the rules of HTTP/2", what).await;
        runtime.last_words().await;
        is_answered_anew(&listener, &mut client, 5).await;
        // Its connection to the runtime is a good one now.
        client = RawFrames::connect_with(&crisp.socket(), &[(HEADER_TABLE_SIZE, 0)]).await;
    }
}

/// What breaks the rules on one call costs that call, in clear words; the others go on.
#[tokio::test]
async fn a_reply_that_breaks_the_rules_fails_alone() {
    let (crisp, listener, mut client) = scene(&[]).await;
    client.write(&[head(1, PATH)]).await;
    let mut runtime = RawFrames::accept(&listener, &[]).await;
    runtime.until(HEADERS, 1).await;
    let trailers = |stream, name| frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&[(name, "0")]));
    let early = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&[(":status", "100")]));
    let cases: Vec<(&str, Frames)> = vec![
        ("data before the head", vec![frame(DATA, 0, 3, b"x"), whole_reply(3, b"late")]),
        ("two heads", vec![reply_head(5), reply_head(5), reply_end(5)]),
        ("a first word is the last", vec![early(7)]),
        // Broke: all calls of the connection died of it.
        ("room beyond all", vec![room(9, MOST_WINDOW)]),
        ("room for nothing", vec![room(11, 0)]),
        // Broke: they were passed on, and cost callers with another idea of the rules their connection.
        ("no name", vec![reply_head(13), trailers(13, "bad name")]),
        ("no status", vec![frame(HEADERS, END_HEADERS, 15, &block(&[("content-type", "application/grpc")]))]),
        ("another status", vec![frame(HEADERS, END_HEADERS, 17, &block(&[(":status", "2000")]))]),
    ];
    for (number, (what, frames)) in (1u32..).zip(cases) {
        let stream = number * 2 + 1;
        client.write(&[head(stream, PATH), frame(DATA, 0, stream, b"ask")]).await;
        runtime.until(DATA, stream).await;
        runtime.write(&frames).await;
        let (_, end) = client.reply(stream).await;
        assert!(has(&end, "broke the rules of HTTP/2 in its reply"), "{what}");
        assert!(has(&end, "grpc-status\u{2}13"), "{what}");
        runtime.until(RST_STREAM, stream).await;
    }
    // More than the caller's window lets through is more than crisp gave room for.
    client.write(&[settings(&[(INITIAL_WINDOW_SIZE, 0)]), call(19)]).await;
    client.settle().await;
    runtime.until(DATA, 19).await;
    runtime
        .write(&[reply_head(19), frame(DATA, 0, 19, &[0; 16_384]).repeat(64), frame(DATA, 0, 19, b"x")])
        .await;
    runtime.until(RST_STREAM, 19).await;
    client.write(&[cancel(19), settings(&[(INITIAL_WINDOW_SIZE, 65_535)])]).await;
    // The first call has seen nothing of all that.
    runtime.write(&[whole_reply(1, b"well")]).await;
    assert_eq!(client.reply(1).await.0, b"well");
    // Broke: such calls were counted as cancelled by the kubelet.
    eventually("they are counted", || crisp.metric("crisp_calls_in_flight") == 0.0).await;
}

/// Broke: what came after a broken frame in the same read was taken for words of the next connection, and a call that
/// had waited for its turn got another call's reply.
#[tokio::test]
async fn words_of_a_lost_connection_are_nobodys() {
    let (_crisp, listener, mut client) = scene(&[]).await;
    client.write(&[call(1)]).await;
    let mut lost = RawFrames::accept(&listener, &[(MAX_CONCURRENT_STREAMS, 1)]).await;
    lost.until(DATA, 1).await;
    lost.settle().await;
    client.write(&[call(3)]).await;
    client.settle().await;
    let push = frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]);
    lost.write(&[push, whole_reply(1, b"not for the third")]).await;
    is_lost(&mut client, 1, "it broke the rules", "its connection is lost").await;
    let mut runtime = RawFrames::accept(&listener, &[]).await;
    runtime.until(DATA, 1).await;
    runtime.write(&[whole_reply(1, b"for the third")]).await;
    assert_eq!(client.reply(3).await.0, b"for the third");
}

/// Broke: the same where the runtime lays the connection down and has seen no call on it. The next connection took its place
/// while its words were gone through.
#[tokio::test]
async fn words_of_a_connection_that_was_laid_down_are_nobodys() {
    let (_crisp, listener, mut client) = scene(&[]).await;
    client.write(&[call(1)]).await;
    let mut left = RawFrames::accept(&listener, &[(MAX_CONCURRENT_STREAMS, 1)]).await;
    left.until(DATA, 1).await;
    left.settle().await;
    client.write(&[call(3)]).await;
    client.settle().await;
    left.write(&[go_away(0, 0), whole_reply(1, b"not for the third"), reset(1, 7)]).await;
    is_refused(&mut client, 1, "nobody has looked at it").await;
    let mut runtime = RawFrames::accept(&listener, &[]).await;
    runtime.until(DATA, 1).await;
    runtime.write(&[whole_reply(1, b"for the third")]).await;
    assert_eq!(client.reply(3).await.0, b"for the third");
}

/// Broke: each call that was ended made room for one that waited, which was sent to the runtime and ended in turn.
#[tokio::test]
async fn calls_that_wait_are_not_begun_to_be_ended() {
    for shut_down in [true, false] {
        let (crisp, listener, mut client) = scene(&[]).await;
        client.write(&[call(1)]).await;
        let mut runtime = RawFrames::accept(&listener, &[(MAX_CONCURRENT_STREAMS, 1)]).await;
        runtime.until(DATA, 1).await;
        runtime.settle().await;
        client.write(&(1..20).map(|number| call(2 * number + 1)).collect::<Vec<_>>()).await;
        client.settle().await;
        if shut_down {
            crisp.shutdown.end();
        } else {
            client.write(&[frame(DATA, 0, 0, b"breaks the rules")]).await;
        }
        while let Some(frame) = runtime.next().await {
            assert!(frame.kind != HEADERS, "{frame:?}, shut down: {shut_down}");
        }
    }
}

/// A runtime that lays its connection down says which calls it has seen: those go on, the others fail.
#[tokio::test]
async fn calls_that_a_leaving_runtime_has_seen_go_on() {
    let (_crisp, listener, mut client) = scene(&[]).await;
    client.write(&[call(1), call(3), call(5)]).await;
    let mut leaving = RawFrames::accept(&listener, &[]).await;
    leaving.until(DATA, 5).await;
    leaving.write(&[go_away(MOST_WINDOW, NO_ERROR), go_away(3, NO_ERROR)]).await;
    is_refused(&mut client, 5, "not seen").await;
    is_answered_anew(&listener, &mut client, 7).await;
    leaving.write(&[go_away(1, NO_ERROR)]).await;
    is_refused(&mut client, 3, "not seen after all").await;
    leaving.write(&[whole_reply(3, b"too late"), whole_reply(1, b"well")]).await;
    assert_eq!(client.reply(1).await.0, b"well");
    // Nothing is left to do on it.
    leaving.last_words().await;
}

/// Fewer calls at once than are under way: those end in their time, and the next waits its turn.
#[tokio::test]
async fn a_runtime_may_take_fewer_calls_than_it_has() {
    let (_crisp, listener, mut client) = scene(&[]).await;
    client.write(&[call(1), call(3)]).await;
    let mut runtime = RawFrames::accept(&listener, &[]).await;
    runtime.until(DATA, 3).await;
    runtime.write(&[settings(&[(MAX_CONCURRENT_STREAMS, 1)])]).await;
    runtime.settle().await;
    client.write(&[call(5), call(7), call(9), cancel(7)]).await;
    client.settle().await;
    runtime.write(&[whole_reply(3, b"two")]).await;
    assert_eq!(client.reply(3).await.0, b"two");
    assert!(runtime.settle().await.iter().all(|frame| frame.kind != HEADERS), "it has one still");
    runtime.write(&[whole_reply(1, b"one")]).await;
    assert_eq!(client.reply(1).await.0, b"one");
    runtime.until(DATA, 5).await;
    runtime.write(&[settings(&[(MAX_CONCURRENT_STREAMS, 0)]), whole_reply(5, b"three")]).await;
    assert_eq!(client.reply(5).await.0, b"three");
    assert!(runtime.settle().await.iter().all(|frame| frame.kind != HEADERS), "it takes none");
    runtime.write(&[settings(&[(MAX_CONCURRENT_STREAMS, 9)])]).await;
    runtime.until(DATA, 7).await;
    runtime.write(&[whole_reply(7, b"five")]).await;
    assert_eq!(client.reply(9).await.0, b"five");
}

/// Broke: before its first word a runtime got every call at once, and refused those beyond its limit.
#[tokio::test]
async fn a_runtime_that_has_said_nothing_is_not_flooded() {
    let (_crisp, listener, mut client) = scene(&[]).await;
    let streams: Vec<u32> = (0..300).map(|number| number * 2 + 1).collect();
    client.write(&streams.iter().map(|stream| call(*stream)).collect::<Vec<_>>()).await;
    client.settle().await;
    let mut runtime = RawFrames::accept(&listener, &[(MAX_CONCURRENT_STREAMS, 100)]).await;
    let heads = |frames: &[RawFrame]| frames.iter().filter(|frame| frame.kind == HEADERS).count();
    assert_eq!(heads(&runtime.settle().await), 100);
    for stream in streams {
        runtime.until_opened(stream).await;
        runtime.write(&[whole_reply(stream, b"well")]).await;
    }
    assert_eq!(client.reply(599).await.0, b"well");
}

/// Broke: those whose limit was below 100 refused calls that they would have taken from a client that asks first.
#[tokio::test]
async fn a_runtimes_limit_is_waited_for() {
    let (_crisp, listener, mut client) = scene(&[]).await;
    client.write(&[call(1), call(3), call(5)]).await;
    client.settle().await;
    let mut runtime = RawFrames::accept(&listener, &[(MAX_CONCURRENT_STREAMS, 2)]).await;
    let first = runtime.settle().await;
    let opened: Vec<u32> =
        first.iter().filter(|frame| frame.kind == HEADERS).map(|frame| frame.stream).collect();
    assert_eq!(opened, [1, 3]);
    runtime.write(&[whole_reply(1, b"well"), whole_reply(3, b"well")]).await;
    runtime.until(DATA, 5).await;
}

/// Calls that wait for the first word of a runtime which leaves without one, or with its first, do not try for ever.
#[tokio::test]
async fn a_runtime_that_takes_no_call_is_away() {
    let (_crisp, listener, mut client) = scene(&[]).await;
    for (number, what) in ["nothing", "settings", "farewell", "no settings"].into_iter().enumerate() {
        let stream = number as u32 * 2 + 1;
        client.write(&[call(stream)]).await;
        let mut runtime = RawFrames::accepted(&listener).await;
        match what {
            "nothing" => {}
            // Nothing fits between this and the end, so that no call is sent.
            "settings" => runtime.write(&[settings(&[(MAX_CONCURRENT_STREAMS, 0)])]).await,
            "farewell" => {
                runtime.write(&[settings(&[(MAX_CONCURRENT_STREAMS, 0)]), go_away(0, NO_ERROR)]).await
            }
            _ => runtime.write(&[go_away(0, NO_ERROR)]).await,
        }
        if what != "farewell" {
            runtime.leave().await;
        }
        is_lost(&mut client, stream, "lost the connection to the container runtime", what).await;
    }
    is_answered_anew(&listener, &mut client, 101).await;
}

/// Broke: a request without a message, whose end came after its head, was sent as a head with an end. A server of grpc-go
/// never tells its handler of that one, and the call hung.
#[tokio::test]
async fn an_empty_request_ends_as_it_came() {
    for path in [PATH, Method::LIST_CONTAINERS.path()] {
        let (_crisp, listener, mut client) = scene(&[]).await;
        // Before and after the connection is there, and as one that waits for its turn.
        client.write(&[head(1, path), body(1, b"")]).await;
        let mut runtime = RawFrames::accept(&listener, &[(MAX_CONCURRENT_STREAMS, 1)]).await;
        let mut ends_as_it_came = async |client: &mut RawFrames, stream: u32| {
            assert!(
                !runtime.until(HEADERS, stream).await.ends(),
                "{path} {stream}: the end comes after the head"
            );
            assert!(runtime.until(DATA, stream).await.ends(), "{path} {stream}");
            runtime.write(&[whole_reply(stream, b"well")]).await;
            client.reply(stream).await;
        };
        ends_as_it_came(&mut client, 1).await;
        client.write(&[head(3, path), body(3, b""), head(5, path), body(5, b"")]).await;
        client.settle().await;
        ends_as_it_came(&mut client, 3).await;
        ends_as_it_came(&mut client, 5).await;
        let only = frame(HEADERS, END_HEADERS | END_STREAM, 7, &call_block(path));
        client.write(&[only]).await;
        assert!(runtime.until(HEADERS, 7).await.ends(), "{path}: a head alone stays one");
    }
}

/// A runtime that goes, in every state of a call.
#[tokio::test]
async fn a_runtime_may_go_in_every_state() {
    let (crisp, listener, mut client) = scene(&[]).await;
    let states: Vec<(&str, Frames)> = vec![
        ("it has said nothing", vec![]),
        ("in a first word", vec![frame(HEADERS, 0, 1, &[0])]),
        ("in the nine bytes of a frame", vec![vec![0, 0]]),
        ("after the head", vec![reply_head(1)]),
        ("in the nine bytes of data", vec![reply_head(1), vec![0, 0, 5, 0, 0, 0]]),
        ("in data", vec![reply_head(1), vec![0, 0, 5, 0, 0, 0, 0, 0, 1, 7]]),
        ("after data", vec![reply_head(1), frame(DATA, 0, 1, b"some")]),
        ("in trailers", vec![reply_head(1), frame(HEADERS, END_STREAM, 1, &[])]),
    ];
    for (number, (what, frames)) in (0u32..).zip(states) {
        let stream = number * 4 + 1;
        client.write(&[call(stream)]).await;
        let mut runtime = RawFrames::accept(&listener, &[]).await;
        runtime.until(DATA, 1).await;
        runtime.write(&frames).await;
        drop(runtime);
        is_lost(&mut client, stream, "lost the connection to the container runtime", what).await;
        client.write(&[call(stream + 2)]).await;
        let mut runtime = RawFrames::accept(&listener, &[]).await;
        runtime.until(DATA, 1).await;
        runtime.write(&[whole_reply(1, b"anew")]).await;
        assert_eq!(client.reply(stream + 2).await.0, b"anew", "after {what}");
    }
    eventually("no connection is left", || crisp.metric("crisp_upstream_connections") == 0.0).await;
}

/// Broke: a runtime that had gone while its client did not read was not read to its end: the first write to it failed,
/// and whole replies that it had left were lost.
#[tokio::test]
async fn what_a_runtime_left_behind_is_read_to_its_end() {
    for pieces in 20..34 {
        let (_crisp, listener, mut client) = scene(&[(INITIAL_WINDOW_SIZE, MOST_WINDOW)]).await;
        client.write(&[call(1)]).await;
        let mut runtime = RawFrames::accept(&listener, &[]).await;
        runtime.until(DATA, 1).await;
        let content = vec![7; 16_384];
        runtime.write(&[reply_head(1), frame(DATA, 0, 1, &content).repeat(pieces), reply_end(1)]).await;
        drop(runtime);
        client.write(&[call(3), call(5)]).await;
        assert_eq!(client.reply(1).await.0.len(), pieces * content.len(), "{pieces}");
    }
}
