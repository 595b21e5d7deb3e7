//! What a failed pull means: the runtime's words sorted into reasons, with a word on what to do.

use tonic::Code;

use crate::cri::Raw;
use crate::prepull::item::Reason;
use crate::prepull::queue::Outcome;

/// What is looked for in the runtime's words, in this order; containerd and CRI-O say it differently.
const SIGNS: &[(Reason, &[&str])] = &[
    (Reason::DiskPressure, &["no space left on device", "disk quota exceeded"]),
    (
        Reason::Unauthorized,
        &[
            "401 unauthorized",
            "403 forbidden",
            "unauthorized",
            "authorization failed",
            "insufficient_scope",
            "authentication required",
            "access denied",
            "requested access to the resource is denied",
            "invalid username/password",
        ],
    ),
    (
        Reason::RegistryUnavailable,
        &[
            "registryunavailable",
            "connection refused",
            "connection reset",
            "no such host",
            "no route to host",
            "network is unreachable",
            "i/o timeout",
            "tls handshake timeout",
            "server misbehaving",
            "unexpected eof",
            "429 too many requests",
            "toomanyrequests",
            "500 internal server error",
            "502 bad gateway",
            "503 service unavailable",
            "504 gateway",
        ],
    ),
    (Reason::NotFound, &["manifest unknown", "name unknown", "not found", "404"]),
];

/// Sorts a failed PullImage.
pub(super) fn of_reply(reply: &Raw) -> Outcome {
    let headers = reply.trailers().unwrap_or(reply.head());
    let message = tonic::Status::from_header_map(headers).map(|status| status.message().to_owned());
    of_failure(reply.code(), message.as_deref().unwrap_or("the runtime gave no reason"))
}

/// Sorts a failure by its code and words.
pub(super) fn of_failure(code: Code, message: &str) -> Outcome {
    if code == Code::Unavailable {
        let message = format!("the runtime said: {message}");
        return Outcome::Later { reason: Reason::RuntimeAway, message };
    }
    let reason = reason_of(code, message);
    let said = format!("the runtime said: {message}");
    match reason {
        Reason::DiskPressure => Outcome::Later { reason, message: said },
        _ => Outcome::Failed {
            message: format!("{said}; {}", advice(reason)),
            permanent: reason == Reason::Invalid,
            reason,
        },
    }
}

fn reason_of(code: Code, message: &str) -> Reason {
    match code {
        Code::InvalidArgument => return Reason::Invalid,
        Code::Unauthenticated | Code::PermissionDenied => return Reason::Unauthorized,
        Code::ResourceExhausted if !message.contains("429") => return Reason::Error,
        _ => {}
    }
    let words = message.to_ascii_lowercase();
    let sign = SIGNS.iter().find(|(_, signs)| signs.iter().any(|sign| words.contains(sign)));
    match sign {
        Some((reason, _)) => *reason,
        None if code == Code::NotFound => Reason::NotFound,
        None => Reason::Error,
    }
}

/// What to do about it.
fn advice(reason: Reason) -> &'static str {
    match reason {
        Reason::Unauthorized => "check the credentials and what they may read",
        Reason::NotFound => "check the name and the tag; a registry may also say this of images it hides",
        Reason::RegistryUnavailable => "check the registry and the way to it",
        Reason::Invalid => "check the name of the image",
        _ => "see the runtime's log",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(code: Code, message: &str) -> Reason {
        match of_failure(code, message) {
            Outcome::Failed { reason, .. } | Outcome::Later { reason, .. } => reason,
            Outcome::Done(_) => unreachable!(),
        }
    }

    #[test]
    fn the_runtimes_words_are_understood() {
        for (code, words, expected) in [
            (
                Code::NotFound,
                "rpc error: failed to resolve reference \"r/a:1\": r/a:1: not found",
                Reason::NotFound,
            ),
            (
                Code::Unknown,
                "failed to pull and unpack image \"r/a:1\": failed to resolve reference: unexpected status from HEAD request to http://r/v2/a/manifests/1: 401 Unauthorized",
                Reason::Unauthorized,
            ),
            (
                Code::Unknown,
                "pull access denied, repository does not exist or may require authorization: server message: insufficient_scope: authorization failed",
                Reason::Unauthorized,
            ),
            (
                Code::Unknown,
                "initializing source docker://r/a:1: reading manifest 1 in r/a: manifest unknown",
                Reason::NotFound,
            ),
            (Code::Unknown, "dial tcp 127.0.0.1:1: connect: connection refused", Reason::RegistryUnavailable),
            (Code::Unknown, "write /var/lib/x: no space left on device", Reason::DiskPressure),
            (Code::InvalidArgument, "bad", Reason::Invalid),
            (Code::Unavailable, "the container runtime cannot be reached", Reason::RuntimeAway),
            (Code::Unknown, "something new", Reason::Error),
        ] {
            assert_eq!(reason(code, words), expected, "{words}");
        }
    }

    #[test]
    fn what_can_never_work_is_not_tried_again() {
        let permanent = |code| matches!(of_failure(code, "x"), Outcome::Failed { permanent: true, .. });
        assert!(permanent(Code::InvalidArgument));
        assert!(!permanent(Code::Unknown));
    }
}
