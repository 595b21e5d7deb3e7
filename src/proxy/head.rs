//! Heads of calls: on their way through, and of crisp's own calls.

use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderValue, Method as HttpMethod, Request, Uri, Version, header};

use crate::cri::{CONTAINERD_METADATA, Method};
use crate::error::{Error, Kind, Origin};
use crate::http2::{Field, Fields};

/// What runtimes expect, and what the kubelet sends to a socket.
const AUTHORITY: Field<'static> = Field { name: b":authority", value: b"localhost", sensitive: false };

/// The path of a request that can be passed on; nothing if it is none.
pub(super) fn path_of(fields: &Fields) -> Option<&str> {
    if !fields.iter().all(is_proper) || fields.get(b":method").is_none() || fields.get(b":scheme").is_none() {
        return None;
    }
    let path = std::str::from_utf8(fields.get(b":path")?).ok()?;
    path.starts_with('/').then_some(path)
}

/// Whether this can be the head of a reply, or its trailers. What is neither would cost some callers their connection.
pub(super) fn is_reply(fields: &Fields, trailers: bool) -> bool {
    let mut pseudo = fields.iter().filter(|field| is_pseudo(field.name));
    let status = |field: Field<'_>| {
        field.name == b":status" && field.value.len() == 3 && field.value.iter().all(u8::is_ascii_digit)
    };
    (trailers || pseudo.next().is_some_and(status)) && pseudo.next().is_none() && fields.iter().all(is_proper)
}

/// Whether a field has a name and a value that everybody takes.
fn is_proper(field: Field<'_>) -> bool {
    let name = field.name.strip_prefix(b":").unwrap_or(field.name);
    let in_name = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9') || b"!#$%&'*+-.^_`|~".contains(byte);
    let in_value = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
    !name.is_empty() && name.iter().all(in_name) && field.value.iter().all(in_value)
}

/// The head as it goes to the runtime: as it came, except `:authority`, and what a CRI client must not say.
pub(super) fn forwarded(fields: &Fields) -> impl Iterator<Item = Field<'_>> {
    // containerd's own services need the namespace; only CRI calls must not carry it.
    let cri = fields.get(b":path").is_some_and(|path| path.starts_with(b"/runtime.v1."));
    let kept = move |name: &[u8]| !cri || !CONTAINERD_METADATA.iter().any(|not| not.as_bytes() == name);
    let pseudo = fields.iter().filter(|field| is_pseudo(field.name) && field.name != AUTHORITY.name);
    let others = fields.iter().filter(move |field| !is_pseudo(field.name) && kept(field.name));
    pseudo.chain([AUTHORITY]).chain(others)
}

/// The head of a body that may be of another length than it was. Most say nothing of it.
pub(super) fn without_length(fields: Fields) -> Fields {
    const LENGTH: &[u8] = b"content-length";
    if fields.get(LENGTH).is_none() {
        return fields;
    }
    let mut without = Fields::default();
    fields.iter().filter(|field| field.name != LENGTH).for_each(|field| without.push(field));
    without
}

fn is_pseudo(name: &[u8]) -> bool {
    name.first() == Some(&b':')
}

/// A head or trailers that crisp makes, as fields.
pub(super) fn fields_of(status: Option<http::StatusCode>, map: &HeaderMap) -> Fields {
    let mut fields = Fields::default();
    if let Some(status) = status {
        fields.push(Field { name: b":status", value: status.as_str().as_bytes(), sensitive: false });
    }
    for (name, value) in map {
        let (name, sensitive) = (name.as_str().as_bytes(), value.is_sensitive());
        fields.push(Field { name, value: value.as_bytes(), sensitive });
    }
    fields
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(path: &str) -> Fields {
        let mut fields = Fields::default();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "node-7"),
            ("grpc-timeout", "1500m"),
            ("containerd-namespace", "other"),
            ("containerd-lease", "x"),
            ("trace-bin", "AAE="),
        ] {
            fields.push(Field { name: name.as_bytes(), value: value.as_bytes(), sensitive: false });
        }
        fields
    }

    fn forwarded_from(path: &str) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        forwarded(&fields(path)).map(|field| (text(field.name), text(field.value))).collect()
    }

    #[test]
    fn cri_calls_lose_containerds_metadata_and_nothing_else() {
        let path = "/runtime.v1.ImageService/PullImage";
        let expected = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("grpc-timeout", "1500m"),
            ("trace-bin", "AAE="),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(forwarded_from(path), expected);
    }

    #[test]
    fn containerds_own_services_keep_their_metadata() {
        let forwarded = forwarded_from("/containerd.services.leases.v1.Leases/List");
        assert!(forwarded.contains(&("containerd-namespace".into(), "other".into())), "{forwarded:?}");
    }

    #[test]
    fn a_reply_has_one_status_and_its_trailers_none() {
        let list = |pairs: &[(&str, &str)]| {
            let mut fields = Fields::default();
            for (name, value) in pairs {
                fields.push(Field { name: name.as_bytes(), value: value.as_bytes(), sensitive: false });
            }
            fields
        };
        let (status, other) = ((":status", "200"), ("grpc-message", "\u{e4}\t "));
        assert!(is_reply(&list(&[status, other]), false));
        assert!(is_reply(&list(&[other]), true) && is_reply(&list(&[]), true));
        for wrong in [
            &[][..],
            &[other],
            &[status, status],
            &[(":status", "2000")],
            &[(":status", "2x0")],
            &[(":a", "")],
        ] {
            assert!(!is_reply(&list(wrong), false), "{wrong:?}");
        }
        for wrong in [status, (":a", ""), ("A", ""), ("a", "\r")] {
            assert!(!is_reply(&list(&[wrong]), true), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_no_request_has_no_path() {
        assert_eq!(path_of(&fields("/a/B")), Some("/a/B"));
        for path in ["", "a/B"] {
            assert_eq!(path_of(&fields(path)), None);
        }
        let mut upper = fields("/a/B");
        upper.push(Field { name: b"Upper", value: b"", sensitive: false });
        assert_eq!(path_of(&upper), None);
        for (name, value) in [
            ("", "v"),
            ("a b", "v"),
            ("a}", "v"),
            (":", "v"),
            ("ä", "v"),
            ("a", "v\n"),
            ("a", "\0"),
            ("a", "\u{7f}"),
        ] {
            let mut improper = fields("/a/B");
            improper.push(Field { name: name.as_bytes(), value: value.as_bytes(), sensitive: false });
            assert_eq!(path_of(&improper), None, "{name:?}: {value:?}");
        }
        assert_eq!(path_of(&Fields::default()), None);
    }
}
