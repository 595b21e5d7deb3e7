//! The load: calls on one connection, in closed loops, every reply checked.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::support::client::{Client, PATIENCE};
use crate::support::messages::{Call, PREFIX};

/// A target that fails so often in one slot is broken.
const MAX_ERRORS: u64 = 100;

/// Who calls.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// The `h2` crate alone: as light as a client can be.
    H2(Client),
    /// tonic, with messages as plain bytes: the work that a gRPC client does.
    Tonic(Grpc<Channel>),
}

/// What came of one slot.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// Nanoseconds of each call that succeeded, sorted.
    pub(crate) latencies: Vec<u64>,
    /// From the first call to the end of the last.
    pub(crate) took: Duration,
    /// Calls that failed.
    pub(crate) errors: u64,
    /// What the first of them said.
    pub(crate) first_error: Option<String>,
}

/// Messages as they are.
#[derive(Debug, Clone, Copy)]
struct BytesCodec;

// === impl Caller ===

impl Caller {
    /// tonic on a connection of its own, with windows as large as the proxies'.
    pub(crate) async fn tonic(socket: &Path) -> anyhow::Result<Self> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?
            .initial_stream_window_size(1024 * 1024)
            .initial_connection_window_size(8 * 1024 * 1024);
        Ok(Self::Tonic(Grpc::new(endpoint.connect().await?)))
    }

    /// Calls from `callers` loops until the slot is over.
    pub(crate) async fn slot(&self, call: &Call, callers: usize, length: Duration) -> anyhow::Result<Slot> {
        let started = Instant::now();
        let mut loops = JoinSet::new();
        for _ in 0..callers {
            let (mut caller, call) = (self.clone(), call.clone());
            loops.spawn(async move { caller.repeat(&call, started + length).await });
        }
        let all = tokio::time::timeout(length + PATIENCE, loops.join_all()).await;
        let all = all.with_context(|| format!("{}: a call hangs", call.name))?;
        let took = started.elapsed();
        let mut slot = Slot { took, ..Slot::default() };
        for part in all {
            slot.latencies.extend(part.latencies);
            slot.errors += part.errors;
            slot.first_error = slot.first_error.or(part.first_error);
        }
        slot.latencies.sort_unstable();
        Ok(slot)
    }

    async fn repeat(&mut self, call: &Call, until: Instant) -> Slot {
        let mut slot = Slot::default();
        let mut now = Instant::now();
        while now < until && slot.errors < MAX_ERRORS {
            let result = self.call(call).await;
            let after = Instant::now();
            match result {
                Ok(()) => slot.latencies.push(u64::try_from((after - now).as_nanos()).unwrap_or(u64::MAX)),
                Err(error) => {
                    slot.errors += 1;
                    slot.first_error.get_or_insert_with(|| format!("{error:#}"));
                }
            }
            now = after;
        }
        slot
    }

    async fn call(&mut self, call: &Call) -> anyhow::Result<()> {
        let grpc = match self {
            Self::H2(client) => return client.call(call).await,
            Self::Tonic(grpc) => grpc,
        };
        grpc.ready().await?;
        let mut request = Request::new(call.request.slice(PREFIX..));
        request.set_timeout(PATIENCE);
        // A code other than OK is an error here already.
        let reply = grpc.unary(request, PathAndQuery::from_static(call.path), BytesCodec).await?.into_inner();
        let length = reply.len() + PREFIX;
        ensure!(call.expects(length), "a reply of {length} bytes instead of {}", call.reply.len());
        Ok(())
    }
}

// === impl BytesCodec ===

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
