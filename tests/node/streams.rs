//! Exec, attach and port-forward over the URLs that the runtime returns, as a WebSocket client.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

/// How long any one of these exchanges may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The channels of `v4.channel.k8s.io`; the first byte of each message says which one it belongs to.
const STDIN: u8 = 0;
/// Data of the first forwarded port.
const PORT_DATA: u8 = 0;

/// What arrived on each channel.
pub(crate) type Received = BTreeMap<u8, String>;

struct Session(WebSocketStream<MaybeTlsStream<TcpStream>>);

/// Sends `input` and collects everything until the runtime closes the session.
pub(crate) async fn exec(url: &str, input: &str) -> Received {
    let mut session = Session::open(url).await;
    session.send(STDIN, input).await;
    session.receive_until(|_| false).await
}

/// Sends `input` to a container's main process, and collects until `expected` has come.
pub(crate) async fn attach(url: &str, input: &str, expected: &str) -> Received {
    let mut session = Session::open(url).await;
    session.send(STDIN, input).await;
    session.receive_until(|received| received.values().any(|text| text.contains(expected))).await
}

/// Asks the web server behind a forwarded port for its page.
pub(crate) async fn http_get_through(url: &str, port: u16) -> String {
    let mut session = Session::open(&format!("{url}?port={port}")).await;
    session.send(PORT_DATA, "GET / HTTP/1.0\r\n\r\n").await;
    let received =
        session.receive_until(|received| received.values().any(|text| text.contains("</h1>"))).await;
    // The runtime opens each channel with the port's number in two bytes.
    let answer = received.get(&PORT_DATA).map(|text| text.chars().skip(2).collect::<String>());
    answer
        .expect("an answer")
        .lines()
        .filter(|line| !line.starts_with("Date:"))
        .collect::<Vec<_>>()
        .join("\n")
}

impl Session {
    async fn open(url: &str) -> Self {
        let url = url.replacen("http://", "ws://", 1);
        let mut request = url.into_client_request().expect("a request");
        let protocol = HeaderValue::from_static("v4.channel.k8s.io");
        request.headers_mut().insert("Sec-WebSocket-Protocol", protocol);
        let (socket, _) =
            timeout(LIMIT, connect_async(request)).await.expect("in time").expect("a WebSocket");
        Self(socket)
    }

    async fn send(&mut self, channel: u8, text: &str) {
        let message = [&[channel], text.as_bytes()].concat();
        self.0.send(Message::binary(message)).await.expect("send");
    }

    async fn receive_until(mut self, done: impl Fn(&Received) -> bool) -> Received {
        let mut received = Received::new();
        let collect = async {
            while let Some(Ok(message)) = self.0.next().await {
                let (Message::Binary(_) | Message::Text(_)) = &message else { continue };
                let data = message.into_data();
                let Some((channel, data)) = data.split_first() else { continue };
                // An empty message only says that the channel is there.
                if !data.is_empty() {
                    received.entry(*channel).or_default().push_str(&String::from_utf8_lossy(data));
                }
                if done(&received) {
                    break;
                }
            }
        };
        timeout(LIMIT, collect).await.expect("the session ends in time");
        received
    }
}
