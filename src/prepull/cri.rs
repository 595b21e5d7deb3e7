//! The few CRI calls that the queue makes itself, beside pulls.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use k8s_cri::v1::{
    Image, ImageFsInfoRequest, ImageFsInfoResponse, ImageSpec, ImageStatusRequest, ImageStatusResponse,
};
use prost::Message;
use tonic::Code;

use crate::cri::{Method, Raw};
use crate::error::{Error, Kind, Origin};

/// Makes a call at the runtime.
pub type CriCall = Arc<dyn Fn(Method, Bytes) -> BoxFuture<'static, Result<Raw, Error>> + Send + Sync>;

/// The runtime's image service.
#[derive(Clone)]
pub(super) struct Images(pub(super) CriCall);

impl fmt::Debug for Images {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Images")
    }
}

impl Images {
    /// The image of that name, if the runtime has it.
    pub(super) async fn status(&self, image: &str) -> Result<Option<Image>, Error> {
        let spec = ImageSpec { image: image.to_owned(), ..Default::default() };
        let request = ImageStatusRequest { image: Some(spec), verbose: false };
        let reply: ImageStatusResponse = self.ask(Method::IMAGE_STATUS, &request).await?;
        Ok(reply.image.filter(|image| !image.id.is_empty()))
    }

    /// Where images are kept; nothing if the runtime does not tell.
    pub(super) async fn mountpoint(&self) -> Result<String, Error> {
        let reply: ImageFsInfoResponse = self.ask(Method::IMAGE_FS_INFO, &ImageFsInfoRequest {}).await?;
        let usage = reply.image_filesystems.into_iter().next();
        Ok(usage.and_then(|usage| usage.fs_id).map(|id| id.mountpoint).unwrap_or_default())
    }

    async fn ask<T: Message + Default>(&self, method: Method, request: &impl Message) -> Result<T, Error> {
        let reply = (self.0)(method, request.encode_to_vec().into()).await?;
        if reply.code() != Code::Ok {
            let headers = reply.trailers().unwrap_or(reply.head());
            let status = tonic::Status::from_header_map(headers);
            let words = status.map_or_else(|| "no reason".to_owned(), |status| status.message().to_owned());
            let kind = if reply.code() == Code::Unavailable { Kind::Unavailable } else { Kind::Internal };
            return Err(Error::new(kind, Origin::Runtime, format!("{}: {words}", method.name())));
        }
        T::decode(reply.unary_message()?).map_err(|error| {
            Error::new(Kind::Internal, Origin::Runtime, format!("{}: {error}", method.name()))
        })
    }
}
