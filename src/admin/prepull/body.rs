//! Reads what is asked for.

use std::fmt;

use axum::body::Body;
use axum::http::StatusCode;
use http_body_util::BodyExt as _;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};

use super::{MAX_ITEMS, MAX_REQUEST, Problem};
use crate::prepull::spec::Spec;

/// How much of a request is taken in all. What is above [`MAX_REQUEST`] is dropped as it comes.
const MOST_TAKEN: usize = 8 * MAX_REQUEST;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    #[serde(deserialize_with = "few")]
    items: Vec<Spec>,
}

/// Collects a request. One that is too large is heard to its end all the same: who is cut off while it talks may never
/// see the answer.
pub(super) async fn collect(mut body: Body) -> Result<Vec<u8>, Problem> {
    let (mut bytes, mut size) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let broken =
            |error| Problem::new(StatusCode::BAD_REQUEST, &format!("the request broke off: {error}"));
        let data = frame.map_err(broken)?.into_data().unwrap_or_default();
        size += data.len();
        if size <= MAX_REQUEST {
            bytes.extend_from_slice(&data);
        } else if size <= MOST_TAKEN {
            bytes = Vec::new();
        } else {
            break;
        }
    }
    if size <= MAX_REQUEST {
        Ok(bytes)
    } else {
        Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "the request has more than 8 MiB; send several"))
    }
}

/// Reads the images that are asked for. An error has the path of its field.
pub(super) fn read(body: &[u8]) -> Result<Vec<Spec>, Problem> {
    let json = &mut serde_json::Deserializer::from_slice(body);
    let wanted: Wanted = serde_path_to_error::deserialize(&mut *json).map_err(|error| {
        let path = error.path().to_string();
        let words = match path.rsplit('.').next() {
            // What stands there instead of a list may be a secret, and is not quoted.
            Some("secrets") => "expected a list of objects with registry, username, password".to_owned(),
            _ => error.inner().to_string(),
        };
        Problem::mistake(if path == "." { format!("body: {words}") } else { format!("{path}: {words}") })
    })?;
    json.end().map_err(|error| Problem::mistake(format!("body: {error}")))?;
    if wanted.items.is_empty() {
        return Err(Problem::mistake("items: is empty; name at least one image".into()));
    }
    Ok(wanted.items)
}

/// A list of bounded length: one of empty objects has a hundred times its size once it is read.
fn few<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Spec>, D::Error> {
    struct Few;

    impl<'de> Visitor<'de> for Few {
        type Value = Vec<Spec>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of images")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut specs = Vec::new();
            while let Some(spec) = list.next_element()? {
                if specs.len() == MAX_ITEMS {
                    return Err(A::Error::custom(format!(
                        "has more than {MAX_ITEMS} images; send several requests"
                    )));
                }
                specs.push(spec);
            }
            Ok(specs)
        }
    }

    from.deserialize_seq(Few)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mistake(body: &str) -> String {
        let Problem(status, refused) = read(body.as_bytes()).unwrap_err();
        assert_eq!(status, 400, "{body}");
        assert_eq!(refused.mistakes.len(), 1);
        refused.error
    }

    #[test]
    fn a_mistake_is_told_with_its_path() {
        assert_eq!(read(br#"{"items":[{"image":"a"},{"image":"b"}]}"#).unwrap().len(), 2);
        for (body, begins) in [
            (r#"{"items":[{"image":"a"},{"image":"b","priorty":1}]}"#, "items[1].priorty: unknown field"),
            (r#"{"items":[{"image":"a","class":"soon"}]}"#, "items[0].class: unknown variant `soon`"),
            (r#"{"items":[{"image":7}]}"#, "items[0].image: "),
            (r#"{"images":[]}"#, "images: unknown field"),
            (r#"{"items":[]}"#, "items: is empty"),
            (r#"{}"#, "body: missing field `items`"),
            (r#"{"items":[{"image":"a"}]} x"#, "body: trailing characters"),
            ("", "body: EOF"),
        ] {
            let said = mistake(body);
            assert!(said.starts_with(begins), "{body}: {said}");
        }
        let many = format!(r#"{{"items":[{}{{}}]}}"#, "{},".repeat(MAX_ITEMS));
        assert!(mistake(&many).starts_with("items"), "{}", mistake(&many));
        assert!(mistake(&many).contains("has more than 10000 images"));
    }

    #[test]
    fn a_secret_in_the_wrong_place_is_not_quoted() {
        for secrets in [
            r#""hunter2""#,
            r#"["hunter2"]"#,
            r#"[{"registry":"a.io","username":"u","password":{"a":"hunter2"}}]"#,
            r#"[{"registry":"a.io","username":["hunter2"]}]"#,
            r#"{"a.io":"hunter2"}"#,
        ] {
            let said = mistake(&format!(r#"{{"items":[{{"image":"a","secrets":{secrets}}}]}}"#));
            assert!(!said.contains("hunter2") && said.starts_with("items[0].secrets"), "{said}");
        }
    }

    proptest! {
        #[test]
        fn any_body_is_read_or_refused(body in r#"[{}\[\],:" a-z0-9]{0,60}"#) {
            let _ = read(body.as_bytes());
        }
    }
}
