//! Calls that crisp makes for itself, with messages of its own.

use http::HeaderMap;
use prost::Message;
use tonic::Code;

use crate::cri::{Method, Raw, RuntimeCall};
use crate::error::{Error, Kind, Origin};

/// Sends a message and gives whatever comes back.
pub async fn call(call: &RuntimeCall, method: Method, request: &impl Message) -> Result<Raw, Error> {
    call(method, HeaderMap::new(), request.encode_to_vec().into()).await
}

/// Sends a message and reads the one that answers it.
pub async fn ask<T: Message + Default>(
    runtime: &RuntimeCall,
    method: Method,
    request: &impl Message,
) -> Result<T, Error> {
    read(method, &call(runtime, method, request).await?)
}

/// Reads a reply. One that says no is an error in the runtime's words.
pub fn read<T: Message + Default>(method: Method, reply: &Raw) -> Result<T, Error> {
    if reply.code() != Code::Ok {
        let headers = reply.trailers().unwrap_or(reply.head());
        let status = tonic::Status::from_header_map(headers);
        let words = status.map_or_else(|| "no reason".to_owned(), |status| status.message().to_owned());
        let kind = if reply.code() == Code::Unavailable { Kind::Unavailable } else { Kind::Internal };
        return Err(Error::new(kind, Origin::Runtime, format!("{}: {words}", method.name())));
    }
    T::decode(reply.unary_message()?)
        .map_err(|error| Error::new(Kind::Internal, Origin::Runtime, format!("{}: {error}", method.name())))
}
