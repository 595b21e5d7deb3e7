//! Protects: whatever HTTP/2 lets a client do works, and a client that breaks its rules hurts nobody but itself.

use std::path::Path;

use bytes::Bytes;
use tokio::net::UnixListener;

use crate::support::bytes_on_the_wire::{Reply, framed};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::in_process::InProcess;
use crate::support::raw_frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADER_TABLE_SIZE, HEADERS, INITIAL_WINDOW_SIZE,
    PADDED, PING, PREFACE, PRIORITY, PUSH_PROMISE, RST_STREAM, RawFrame, RawFrames, SETTINGS, WITH_PRIORITY,
    block, body, call_block, call_block_to, frame, go_away, head, padded, reply_end, reply_head, room,
    settings, whole_reply,
};
use crate::support::wait::eventually;

const PATH: &str = "/no.such.Service/Method";
const LOOKED_AT: &str = "/runtime.v1.ImageService/ListImages";
const MOST_WINDOW: u32 = 0x7fff_ffff;

type Frames = Vec<Vec<u8>>;
type Said<'a> = &'a [(u16, u32)];

/// A runtime that answers with what it was asked, and the value of the request's trailer.
fn echo(socket: &Path) -> FakeRuntime {
    FakeRuntime::start(socket, |mut incoming| async move {
        let Ok(seen) = incoming.read().await else { return };
        let trailer = seen.trailers.and_then(|map| map.get("asked-last").cloned());
        let mut reply = Reply::of(&[]);
        reply.body =
            [seen.body, trailer.map(|value| Bytes::copy_from_slice(value.as_bytes())).unwrap_or_default()]
                .into_iter()
                .filter(|bytes| !bytes.is_empty())
                .collect();
        let _ = incoming.reply(&reply).await;
    })
}

fn data_in(frames: &[RawFrame]) -> usize {
    frames.iter().filter(|frame| frame.kind == DATA).map(|frame| frame.payload.len()).sum()
}

#[tokio::test]
async fn whatever_a_client_may_do_works() {
    let crisp = InProcess::start();
    let _runtime = echo(&crisp.runtime_socket());
    let mut client = RawFrames::connect(&crisp.socket()).await;
    let message = framed(b"\x0a\x04some");
    let whole = |stream| body(stream, &message);
    for (round, path) in [PATH, LOOKED_AT].into_iter().enumerate() {
        let fields = call_block(path);
        let priority = [&[0x80, 0, 0, 1, 7][..], &fields].concat();
        // Numbers with gaps.
        let at = |number: u32| 1001 * u32::try_from(round).unwrap() * 2 + number;
        let head_of = |stream, flags, payload: &[u8]| frame(HEADERS, END_HEADERS | flags, stream, payload);
        let in_bytes = |stream| {
            let mut frames = vec![frame(HEADERS, 0, stream, &[])];
            frames.extend(fields.iter().map(|byte| frame(CONTINUATION, 0, stream, &[*byte])));
            frames.push(frame(CONTINUATION, END_HEADERS, stream, &[]));
            frames.concat()
        };
        let data_in_bytes = |stream| {
            let byte = |byte: &u8| [frame(DATA, 0, stream, &[*byte]), frame(DATA, 0, stream, &[])].concat();
            let bytes = message.iter().flat_map(byte);
            [bytes.collect(), frame(DATA, END_STREAM, stream, &[])].concat()
        };
        let trailers = frame(HEADERS, END_HEADERS | END_STREAM, at(19), &block(&[("asked-last", "last")]));
        let with_trailer = [&message[..], b"last"].concat();
        let cases: Vec<(&str, u32, Frames, &[u8])> = vec![
            (
                "padded head",
                at(1),
                vec![head_of(at(1), PADDED, &padded(&fields, 200)), whole(at(1))],
                &message,
            ),
            (
                "head with priority",
                at(3),
                vec![head_of(at(3), WITH_PRIORITY, &priority), whole(at(3))],
                &message,
            ),
            (
                "padding and priority",
                at(5),
                vec![head_of(at(5), PADDED | WITH_PRIORITY, &padded(&priority, 0)), whole(at(5))],
                &message,
            ),
            (
                "padded data",
                at(9),
                vec![head(at(9), path), frame(DATA, PADDED | END_STREAM, at(9), &padded(&message, 255))],
                &message,
            ),
            (
                "nothing but padding, then the end",
                at(11),
                vec![
                    head(at(11), path),
                    frame(DATA, PADDED, at(11), &padded(&message, 1)),
                    frame(DATA, PADDED | END_STREAM, at(11), &padded(&[], 99)),
                ],
                &message,
            ),
            ("a head in bytes", at(13), vec![in_bytes(at(13)), data_in_bytes(at(13))], &message),
            ("no body", at(15), vec![head_of(at(15), END_STREAM, &fields)], &[]),
            (
                "frames and settings that nobody knows",
                at(17),
                vec![
                    frame(0xbe, 0xff, 0, b"?"),
                    settings(&[(0x7777, 1), (HEADER_TABLE_SIZE, 8192)]),
                    frame(PRIORITY, 0, at(17), &[0, 0, 0, 1, 7]),
                    head(at(17), path),
                    frame(0xbe, 0xff, at(17), b"?"),
                    frame(PRIORITY, 0, at(99), &[0, 0, 0, 1, 7]),
                    whole(at(17)),
                ],
                &message,
            ),
            (
                "trailers",
                at(19),
                vec![head(at(19), path), frame(DATA, 0, at(19), &message), trailers],
                &with_trailer,
            ),
            (
                // So do kubelets up to 1.30.
                "the socket's path as authority",
                at(21),
                vec![head_of(at(21), 0, &call_block_to("/run/crisp/crisp.sock", path)), whole(at(21))],
                &message,
            ),
            ("an empty body", at(401), vec![head(at(401), path), body(at(401), &[])], &[]),
            // It still listens to what it has asked.
            (
                "a client that leaves",
                at(801),
                vec![head(at(801), path), go_away(0, 0), whole(at(801))],
                &message,
            ),
        ];
        for (what, stream, frames, expected) in cases {
            client.write(&frames).await;
            let (answer, _) = client.reply(stream).await;
            assert_eq!(answer, expected, "{what} on {path}");
        }
    }
    let frames = client.settle().await;
    assert!(frames.is_empty(), "{frames:?}");
}

#[tokio::test]
async fn pings_come_back_with_what_was_in_them() {
    let crisp = InProcess::start();
    let mut client = RawFrames::connect(&crisp.socket()).await;
    let sent: Vec<Vec<u8>> = (0..1000u64).map(|number| frame(PING, 0, 0, &number.to_be_bytes())).collect();
    client.write(&sent).await;
    for number in 0..1000u64 {
        let pong = client.until(PING, 0).await;
        assert_eq!((pong.flags, pong.payload), (ACK, number.to_be_bytes().to_vec()));
    }
}

/// A client may change its table whenever it likes; what is smaller in between counts as well.
#[tokio::test]
async fn the_table_for_header_fields_is_as_large_as_the_client_wants() {
    let crisp = InProcess::start();
    let _runtime = FakeRuntime::answering(&crisp.runtime_socket(), Reply::error("0", ""));
    let mut client = RawFrames::connect(&crisp.socket()).await;
    let none = [0x20];
    let all = [0x3f, 0xe1, 0x1f];
    let both = [0x20, 0x3f, 0xe1, 0x1f];
    let size = |size| (HEADER_TABLE_SIZE, size);
    let steps: [(Said<'_>, &[u8]); 7] = [
        (&[], &[]),
        (&[size(0)], &none),
        (&[size(0)], &[]),
        (&[size(4096)], &all),
        // Broke: only the last of several in one frame was seen, and the client had dropped what crisp referred to.
        (&[size(0), size(4096)], &both),
        (&[size(1 << 20)], &[]),
        (&[(INITIAL_WINDOW_SIZE, 5)], &[]),
    ];
    let mut stream = 1;
    for (said, expected) in steps {
        client.write(&[settings(said), head(stream, PATH), body(stream, b"")]).await;
        let (_, block) = client.reply(stream).await;
        let updates = block.iter().position(|byte| byte & 0xe0 == 0x88 & 0xe0).unwrap();
        assert_eq!(&block[..updates], expected, "{said:?}");
        if said == [size(0)] {
            assert!(block.windows(11).any(|text| text == b"grpc-status"), "{block:?}");
        }
        stream += 2;
    }
}

/// Windows may be closed, opened, and made smaller than what has been sent already.
#[tokio::test]
async fn a_reply_keeps_to_windows_that_change_under_it() {
    let crisp = InProcess::start();
    let runtime = FakeRuntime::answering(&crisp.runtime_socket(), Reply::of(&[&[7; 1000]]));
    let mut client = RawFrames::connect_with(&crisp.socket(), &[(INITIAL_WINDOW_SIZE, 0)]).await;
    for (number, path) in [PATH, LOOKED_AT].into_iter().enumerate() {
        let stream = u32::try_from(number).unwrap() * 2 + 1;
        let window = |size| settings(&[(INITIAL_WINDOW_SIZE, size)]);
        client.write(&[head(stream, path), body(stream, &framed(b""))]).await;
        client.until(HEADERS, stream).await;
        for (said, come) in [
            (vec![], 0),
            (vec![window(10)], 10),
            (vec![window(0)], 0),
            (vec![room(stream, 10)], 0),
            (vec![room(stream, 5)], 5),
            (vec![window(100), window(50)], 50),
            (vec![window(0), room(stream, 60)], 10),
            (vec![room(stream, 1), room(stream, 1), window(1)], 3),
        ] {
            client.write(&said).await;
            let frames = client.settle().await;
            assert_eq!(data_in(&frames), come, "{said:?}");
        }
        client.write(&[window(1 << 20)]).await;
        assert_eq!(client.reply(stream).await.0.len(), 1005 - 78);
        client.write(&[window(0)]).await;
    }
    assert_eq!(runtime.calls(), 2);
}

/// A million messages of a byte for somebody who does not read: they wait, together, and none is lost.
#[tokio::test]
async fn a_slow_reader_of_a_million_small_messages_gets_them_all() {
    const MANY: usize = 1_000_000;
    let crisp = InProcess::start();
    let listener = UnixListener::bind(crisp.runtime_socket()).unwrap();
    let mut client = RawFrames::connect_with(&crisp.socket(), &[(INITIAL_WINDOW_SIZE, 0)]).await;
    client.write(&[head(1, PATH), body(1, b""), room(0, MOST_WINDOW - 65_535)]).await;
    let mut runtime = RawFrames::accept(&listener, &[]).await;
    runtime.until(HEADERS, 1).await;
    let byte = frame(DATA, 0, 1, b"x");
    runtime.write(&[reply_head(1), byte.repeat(MANY)]).await;
    runtime.write(&[reply_end(1)]).await;
    runtime.settle().await;
    client.write(&[room(1, MOST_WINDOW)]).await;
    let (mut bytes, mut frames) = (0, 0);
    loop {
        let frame = client.read().await;
        if frame.kind == DATA {
            bytes += frame.payload.len();
            frames += 1;
        }
        if frame.ends() {
            break;
        }
    }
    assert_eq!(bytes, MANY);
    assert!(frames < 1000, "they did not wait together: {frames}");
}

/// What breaks the rules ends that connection with the reason, and no other.
#[tokio::test]
async fn a_client_that_breaks_the_rules_hurts_only_itself() {
    const PROTOCOL: u32 = 1;
    const FLOW: u32 = 3;
    const SIZE: u32 = 6;
    const COMPRESSION: u32 = 9;
    const CALM: u32 = 11;
    let crisp = InProcess::start();
    let _runtime = echo(&crisp.runtime_socket());
    let good = crisp.client().await;
    let open = || frame(HEADERS, END_HEADERS, 3, &call_block(PATH));
    let cases: Vec<(&str, Frames, u32)> = vec![
        ("frame too large", vec![frame(DATA, 0, 3, &[0; 16_385])], SIZE),
        ("head of no stream", vec![head(0, PATH)], PROTOCOL),
        ("data of no stream", vec![frame(DATA, 0, 0, b"")], PROTOCOL),
        ("reset of no stream", vec![frame(RST_STREAM, 0, 0, &[0; 4])], PROTOCOL),
        ("settings of a stream", vec![frame(SETTINGS, 0, 1, &[])], PROTOCOL),
        ("ping of a stream", vec![frame(PING, 0, 1, &[0; 8])], PROTOCOL),
        ("even number", vec![head(4, PATH)], PROTOCOL),
        // Broke: below the highest number it was dropped without a word, and the client waited for ever.
        ("even number below others", vec![head(2, PATH)], PROTOCOL),
        // Broke: the same.
        ("number below another", vec![head(7, PATH), head(5, PATH)], PROTOCOL),
        ("number that was used", vec![head(1, PATH), head(3, PATH), head(1, PATH)], PROTOCOL),
        ("data of an even number", vec![frame(DATA, 0, 2, b"")], PROTOCOL),
        ("data of an idle stream", vec![frame(DATA, 0, 5, b"")], PROTOCOL),
        ("reset of an idle stream", vec![frame(RST_STREAM, 0, 5, &[0; 4])], PROTOCOL),
        ("room for an idle stream", vec![room(5, 1)], PROTOCOL),
        ("continuation of nothing", vec![frame(CONTINUATION, END_HEADERS, 3, &[])], PROTOCOL),
        ("interrupted head", vec![frame(HEADERS, 0, 5, &[]), frame(PING, 0, 0, &[0; 8])], PROTOCOL),
        ("another's continuation", vec![frame(HEADERS, 0, 5, &[]), frame(CONTINUATION, 0, 3, &[])], PROTOCOL),
        ("broken header fields", vec![frame(HEADERS, END_HEADERS, 5, &[0xff])], COMPRESSION),
        ("no such entry", vec![frame(HEADERS, END_HEADERS, 5, &[0xbe])], COMPRESSION),
        (
            "broken trailers of a call that is over",
            vec![frame(HEADERS, END_HEADERS | 1, 1, &[0x40])],
            COMPRESSION,
        ),
        ("room beyond all", vec![room(0, MOST_WINDOW)], FLOW),
        ("room for nothing", vec![room(0, 0)], PROTOCOL),
        ("window too large", vec![settings(&[(INITIAL_WINDOW_SIZE, 1 << 31)])], FLOW),
        // Broke: nobody looked, and the window was larger than windows can be.
        (
            "window too large with what it was given",
            vec![open(), room(3, MOST_WINDOW - 65_535), settings(&[(INITIAL_WINDOW_SIZE, 65_536)])],
            FLOW,
        ),
        ("cut settings", vec![frame(SETTINGS, 0, 0, &[0; 5])], SIZE),
        ("acknowledgement with words", vec![frame(SETTINGS, ACK, 0, &[0; 6])], SIZE),
        ("short ping", vec![frame(PING, 0, 0, &[0; 7])], SIZE),
        ("short reset", vec![frame(RST_STREAM, 0, 1, &[0; 3])], SIZE),
        ("push", vec![frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])], PROTOCOL),
        ("padding without end", vec![open(), frame(DATA, PADDED, 3, &[9, 1])], PROTOCOL),
        (
            "endless head",
            [vec![frame(HEADERS, 0, 5, &[])], vec![frame(CONTINUATION, 0, 5, &[]); 20_000]].concat(),
            CALM,
        ),
        (
            "endless large head",
            [vec![frame(HEADERS, 0, 5, &[])], vec![frame(CONTINUATION, 0, 5, &[0; 16_384]); 1_030]].concat(),
            CALM,
        ),
    ];
    for (what, frames, reason) in cases {
        let mut client = RawFrames::connect(&crisp.socket()).await;
        client.write(&[head(1, PATH), body(1, b"")]).await;
        client.reply(1).await;
        client.try_write(&frames.concat()).await;
        assert_eq!(client.last_words().await, Some(reason), "{what}");
        assert_eq!(good.unary(PATH, b"go on").await.unwrap().code(), "0", "after {what}");
    }
    for preface in [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
        let mut client = RawFrames::bare(&crisp.socket()).await;
        client.try_write(&[preface, b"no preface at all"].concat()).await;
        assert_eq!(client.last_words().await, Some(PROTOCOL));
    }
    let mut client = RawFrames::bare(&crisp.socket()).await;
    client.try_write(&[PREFACE, &frame(PING, 0, 0, &[0; 8])].concat()).await;
    assert_eq!(client.last_words().await, Some(PROTOCOL), "settings come first");
    assert!(good.is_open());
    eventually("only the good client is left", || crisp.metric("crisp_downstream_connections") == 1.0).await;
}

/// What breaks the rules of one stream ends that stream, and no other.
#[tokio::test]
async fn a_stream_that_breaks_the_rules_ends_alone() {
    const PROTOCOL: u32 = 1;
    const FLOW: u32 = 3;
    const CLOSED: u32 = 5;
    let crisp = InProcess::start();
    let listener = UnixListener::bind(crisp.runtime_socket()).unwrap();
    let mut client = RawFrames::connect(&crisp.socket()).await;
    client.write(&[head(1, PATH)]).await;
    // It never takes a byte, so that nothing is credited.
    let mut runtime = RawFrames::accept(&listener, &[(INITIAL_WINDOW_SIZE, 0)]).await;
    runtime.until(HEADERS, 1).await;
    runtime.settle().await;
    let full = frame(DATA, 0, 0, &[0; 16_384]);
    let data = |stream: u32| [&full[..5], &stream.to_be_bytes(), &full[9..]].concat();
    let cases: Vec<(&str, Frames, u32)> = vec![
        ("more data than its window", [vec![data(3); 64], vec![frame(DATA, 0, 3, b"x")]].concat(), FLOW),
        ("room beyond all", vec![room(5, MOST_WINDOW)], FLOW),
        ("room for nothing", vec![room(7, 0)], PROTOCOL),
        ("data after the end", vec![body(9, b""), frame(DATA, 0, 9, b"x")], CLOSED),
        (
            "trailers after the end",
            vec![body(11, b""), frame(HEADERS, END_HEADERS | END_STREAM, 11, &[])],
            CLOSED,
        ),
        ("two heads", vec![frame(HEADERS, END_HEADERS, 13, &[])], PROTOCOL),
        ("no path", vec![frame(HEADERS, END_HEADERS, 15, &block(&[(":method", "POST")]))], PROTOCOL),
    ];
    for (number, (what, frames, reason)) in (1u32..).zip(cases) {
        let stream = number * 2 + 1;
        let opened = if what == "no path" { Vec::new() } else { head(stream, PATH) };
        client.write(&[opened, frames.concat()]).await;
        let said = client.until(RST_STREAM, stream).await;
        assert_eq!(said.payload, reason.to_be_bytes(), "{what}");
        if what != "no path" {
            runtime.until(RST_STREAM, stream).await;
        }
    }
    // The first call has seen nothing of all that.
    client.write(&[body(1, b"")]).await;
    runtime.until(DATA, 1).await;
    runtime.write(&[whole_reply(1, b"well")]).await;
    assert_eq!(client.reply(1).await.0, b"well");
    // What all of them together may send is counted too, and ends them all.
    for stream in (101..231).step_by(2) {
        client.try_write(&[head(stream, PATH), data(stream).repeat(64)].concat()).await;
    }
    assert_eq!(client.last_words().await, Some(FLOW));
}
