//! Heads of requests on their way to the runtime.

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method as HttpMethod, Request, Uri, Version, header, request};

use crate::cri::{CONTAINERD_METADATA, Method};
use crate::error::{Error, Kind, Origin};

/// The head as it goes to the runtime: as it came, except `:authority`, and what a CRI client must not say.
pub(super) fn forwarded(parts: request::Parts) -> Request<()> {
    let request::Parts { method, uri, mut headers, .. } = parts;
    // containerd's own services need the namespace; only CRI calls must not carry it.
    if uri.path().starts_with("/runtime.v1.") {
        for name in CONTAINERD_METADATA {
            headers.remove(name);
        }
    }
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = at_localhost(uri);
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = headers;
    request
}

/// The head of a call that crisp makes itself. What the metadata says already stays as it is.
pub(super) fn own_request(method: Method, metadata: HeaderMap) -> Result<Request<()>, Error> {
    let mut request = Request::new(());
    *request.method_mut() = HttpMethod::POST;
    *request.uri_mut() = Uri::builder()
        .scheme(Scheme::HTTP)
        .authority(Authority::from_static("localhost"))
        .path_and_query(method.path())
        .build()
        .map_err(|error| Error::new(Kind::Internal, Origin::Crisp, error.to_string()))?;
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = metadata;
    let headers = request.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "application/grpc"),
        (header::TE, "trailers"),
        (header::USER_AGENT, concat!("crisp/", env!("CARGO_PKG_VERSION"))),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    Ok(request)
}

/// Runtimes expect what the kubelet sends to a socket: `localhost`.
fn at_localhost(uri: Uri) -> Uri {
    let mut parts = uri.into_parts();
    parts.scheme = parts.scheme.or(Some(Scheme::HTTP));
    parts.authority = Some(Authority::from_static("localhost"));
    parts.path_and_query = parts.path_and_query.or(Some(PathAndQuery::from_static("/")));
    // All three parts are there, so this cannot fail; the root path would be refused by the runtime.
    Uri::from_parts(parts).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarded_from(path: &str) -> Request<()> {
        let request = Request::builder()
            .method("POST")
            .uri(format!("http://node-7{path}"))
            .header("grpc-timeout", "1500m")
            .header("containerd-namespace", "other")
            .header("containerd-lease", "x")
            .header("trace-bin", "AAE=");
        forwarded(request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn cri_calls_lose_containerds_metadata_and_nothing_else() {
        let request = forwarded_from("/runtime.v1.ImageService/PullImage");
        assert_eq!(request.uri(), "http://localhost/runtime.v1.ImageService/PullImage");
        let names: Vec<_> = request.headers().keys().map(header::HeaderName::as_str).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert_eq!(request.headers()["grpc-timeout"], "1500m");
        assert_eq!(request.headers()["trace-bin"], "AAE=");
    }

    #[test]
    fn containerds_own_services_keep_their_metadata() {
        let request = forwarded_from("/containerd.services.leases.v1.Leases/List");
        assert_eq!(request.headers()["containerd-namespace"], "other");
    }
}
