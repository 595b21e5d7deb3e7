//! The vocabulary of an intercepted call: which [`Method`] it is, the [`Call`] that came in, the [`Plan`] made
//! for it, the [`Raw`] reply that goes out, and read-only [`view`]s of the messages.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use prost::Message;

use crate::error::{Error, Kind, Origin};

pub mod ask;
pub mod call;
pub mod frame;
pub mod method;
pub mod plan;
pub mod raw;

/// Read-only views of CRI messages, generated from `proto/cri_view.proto`. They hold only what crisp reads, so
/// they must never be encoded and sent: changes are made to the original bytes with [`crate::wire`].
#[expect(missing_docs, reason = "generated; the fields are documented in proto/cri_view.proto")]
pub mod view {
    include!(concat!(env!("OUT_DIR"), "/crisp.view.v1.rs"));
}

/// Makes a unary call at the runtime: method, metadata and message.
pub type RuntimeCall =
    Arc<dyn Fn(Method, HeaderMap, Bytes) -> BoxFuture<'static, Result<Raw, Error>> + Send + Sync>;

/// Metadata by which a client could reach into containerd's own bookkeeping. No caller may say it on a CRI call.
pub const CONTAINERD_METADATA: [&str; 2] = ["containerd-lease", "containerd-namespace"];

/// Reads a message as a view.
pub fn read<V: Message + Default>(message: &Bytes) -> Result<V, Error> {
    V::decode(message.clone()).map_err(|error| {
        Error::new(Kind::Internal, Origin::Crisp, format!("cannot read the message: {error}"))
    })
}

pub use call::Call;
pub use method::Method;
pub use plan::{Forward, Plan, Policy};
pub use raw::Raw;
