//! Against a second implementation: the h2 crate reads what we write, and we read what it writes.

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use proptest::{collection::vec, prelude::*, sample::select};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::{Decoder, Encoder};
use crate::http2::fields::{Field, Fields};

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const MAX_FRAME: usize = 16_384;

/// One call: its request, its response, and the table sizes that we announce before the latter.
#[derive(Debug, Clone)]
struct Call {
    path: String,
    request: HeaderMap,
    response: HeaderMap,
    sizes: Vec<u16>,
}

/// Answers the calls of a connection with our HPACK; what was read of the requests.
async fn serve(mut io: DuplexStream, calls: Vec<Call>) -> Vec<Fields> {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let (mut block, mut requests) = (Vec::new(), Vec::new());
    io.read_exact(&mut [0; 24]).await.unwrap();
    write(&mut io, SETTINGS, 0, 0, &[]).await;
    while let Some((kind, flags, stream, payload)) = read(&mut io).await {
        match kind {
            SETTINGS if flags & ACK == 0 => {
                for setting in payload.chunks(6).filter(|setting| setting[..2] == [0, 1]) {
                    encoder.set_table_size(u32::from_be_bytes(setting[2..].try_into().unwrap()));
                }
                write(&mut io, SETTINGS, ACK, 0, &[]).await;
            }
            HEADERS | CONTINUATION => {
                block.extend_from_slice(&payload);
                if flags & END_HEADERS == 0 {
                    continue;
                }
                let mut fields = Fields::default();
                decoder.decode(&block, usize::MAX, &mut fields).unwrap();
                block.clear();
                let call = &calls[requests.len()];
                requests.push(fields);
                for size in &call.sizes {
                    let [high, low] = size.to_be_bytes();
                    write(&mut io, SETTINGS, 0, 0, &[0, 1, 0, 0, high, low]).await;
                }
                respond(&mut io, &mut encoder, stream, &call.response).await;
            }
            _ => {}
        }
    }
    requests
}

async fn respond(io: &mut DuplexStream, encoder: &mut Encoder, stream: u32, headers: &HeaderMap) {
    let status = Field { name: b":status", value: b"200", sensitive: false };
    let mut block = BytesMut::new();
    encoder.encode(std::iter::once(status).chain(fields(headers)), &mut block);
    let parts: Vec<_> = block.chunks(MAX_FRAME).collect();
    for (at, part) in parts.iter().enumerate() {
        let kind = if at == 0 { HEADERS } else { CONTINUATION };
        let mut flags = if at == 0 { END_STREAM } else { 0 };
        if at + 1 == parts.len() {
            flags |= END_HEADERS;
        }
        write(io, kind, flags, stream, part).await;
    }
}

fn fields(headers: &HeaderMap) -> impl Iterator<Item = Field<'_>> {
    headers.iter().map(|(name, value)| Field {
        name: name.as_ref(),
        value: value.as_bytes(),
        sensitive: value.is_sensitive(),
    })
}

async fn write(io: &mut DuplexStream, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    // The other side may be gone already; then it is what it saw that counts.
    let _ = io.write_all(&frame).await;
}

async fn read(io: &mut (impl AsyncRead + Unpin)) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    io.read_exact(&mut head).await.ok()?;
    let [a, b, c, kind, flags, stream @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    io.read_exact(&mut payload).await.ok()?;
    Some((kind, flags, u32::from_be_bytes(stream), payload))
}

/// Makes the calls with h2; what it read of the responses.
async fn ask(io: DuplexStream, table_size: u32, calls: &[Call]) -> Vec<HeaderMap> {
    let mut builder = h2::client::Builder::new();
    builder.header_table_size(table_size).max_header_list_size(1 << 20);
    let (mut client, connection) = builder.handshake::<_, bytes::Bytes>(io).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut responses = Vec::new();
    for call in calls {
        let mut request = Request::post(format!("http://localhost{}", call.path)).body(()).unwrap();
        *request.headers_mut() = call.request.clone();
        client = client.ready().await.unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        responses.push(response.await.unwrap().headers().clone());
    }
    drop(client);
    connection.await.unwrap().unwrap();
    responses
}

fn name() -> impl Strategy<Value = HeaderName> {
    let known = select(vec![
        "user-agent",
        "content-type",
        "grpc-status",
        "cookie",
        "authorization",
        "accept-encoding",
    ]);
    prop_oneof![
        known.prop_map(HeaderName::from_static),
        "x-[a-z0-9_.-]{0,3}".prop_map(|name| name.parse().unwrap())
    ]
}

fn value() -> impl Strategy<Value = HeaderValue> {
    let byte = || prop_oneof![Just(b'\t'), 0x20..0x7f_u8, 0x80..=0xff_u8];
    let bytes = prop_oneof![
        8 => "[a-c]{0,2}".prop_map(String::into_bytes),
        4 => vec(byte(), 0..100),
        1 => vec(byte(), 0..1000),
        1 => (byte(), 0..40_000_usize).prop_map(|(byte, length)| vec![byte; length]),
        1 => Just(b"gzip, deflate".to_vec()),
    ];
    (bytes, proptest::bool::weighted(0.15)).prop_map(|(mut bytes, sensitive)| {
        if sensitive {
            // A value of its own: h2 writes the index of any that is in the table.
            bytes.extend_from_slice(b"secret");
        }
        let mut value = HeaderValue::from_bytes(&bytes).unwrap();
        value.set_sensitive(sensitive);
        value
    })
}

fn headers() -> impl Strategy<Value = HeaderMap> {
    vec((name(), value()), 0..8).prop_map(|headers| {
        let mut map = HeaderMap::new();
        headers.into_iter().for_each(|(name, value)| _ = map.append(name, value));
        map
    })
}

fn call() -> impl Strategy<Value = Call> {
    let sizes = prop_oneof![4 => Just(Vec::new()), 1 => vec(0..=4096_u16, 1..3)];
    ("/[a-z]{1,2}", headers(), headers(), sizes).prop_map(|(path, request, response, sizes)| Call {
        path,
        request,
        response,
        sizes,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn h2_and_we_understand_each_other(
        table_size in prop_oneof![Just(4096_u32), 0..300_u32, 0..10_000_u32],
        calls in vec(call(), 1..20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (requests, responses) = runtime.block_on(async {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let server = tokio::spawn(serve(ours, calls.clone()));
            let responses = ask(theirs, table_size, &calls).await;
            (server.await.unwrap(), responses)
        });
        prop_assert_eq!(requests.len(), calls.len());
        for ((request, response), call) in requests.iter().zip(responses).zip(&calls) {
            prop_assert_eq!(request.get(b":path"), Some(call.path.as_bytes()));
            let read: Vec<_> = request.iter().filter(|field| !field.name.starts_with(b":")).collect();
            prop_assert_eq!(read, fields(&call.request).collect::<Vec<_>>());
            // h2 does not tell a receiver what is sensitive, nor does this compare it.
            prop_assert_eq!(response, call.response.clone());
        }
    }
}
