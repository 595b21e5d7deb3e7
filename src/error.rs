//! The one error type that can reach a caller of crisp, and its only way onto the wire.
//!
//! An error says *what kind* of failure it is, *who is to blame* (so that an operator knows where to look)
//! and, in its message, what to do. Errors of the runtime are not of this type: they travel as they came.

use std::fmt;

use tonic::Code;

use crate::wire;

/// A failure that crisp itself reports to a caller.
#[derive(Debug, Clone)]
pub struct Error {
    kind: Kind,
    origin: Origin,
    message: String,
}

/// What kind of failure it is. Each kind has exactly one gRPC code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The caller asked for something that can never work as asked.
    Invalid,
    /// Something the caller relies on is not there yet; a retry may work.
    Precondition,
    /// The other side cannot be reached now.
    Unavailable,
    /// A limit of crisp is reached.
    Exhausted,
    /// The runtime or crisp does not support what was asked.
    Unsupported,
    /// The caller's own deadline passed.
    Deadline,
    /// A fault in crisp.
    Internal,
}

/// Who is to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The client of crisp's socket, mostly the kubelet.
    Kubelet,
    /// The container runtime behind crisp.
    Runtime,
    /// The Kubernetes API server.
    KubeApi,
    /// crisp itself.
    Crisp,
}

// === impl Error ===

/// A message that crisp cannot read goes on as it came, mostly; where it cannot, this is why.
impl From<wire::Error> for Error {
    fn from(error: wire::Error) -> Self {
        Self::new(Kind::Internal, Origin::Crisp, format!("cannot read the message: {error}"))
    }
}

impl Error {
    /// Makes an error with a message that says what is wrong and what to do.
    pub fn new(kind: Kind, origin: Origin, message: impl Into<String>) -> Self {
        Self { kind, origin, message: message.into() }
    }

    /// Who is to blame.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// What is wrong, in words.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The only mapping of crisp's errors to gRPC codes. No `_` arm: a new kind must choose its code.
    pub fn code(&self) -> Code {
        match self.kind {
            Kind::Invalid => Code::InvalidArgument,
            Kind::Precondition => Code::FailedPrecondition,
            Kind::Unavailable => Code::Unavailable,
            Kind::Exhausted => Code::ResourceExhausted,
            Kind::Unsupported => Code::Unimplemented,
            Kind::Deadline => Code::DeadlineExceeded,
            Kind::Internal => Code::Internal,
        }
    }

    /// The error as a gRPC status, marked as crisp's own words.
    pub fn to_status(&self) -> tonic::Status {
        tonic::Status::new(self.code(), format!("crisp: {}", self.message))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

// === impl Origin ===

impl Origin {
    /// The name used in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::Runtime => "runtime",
            Self::KubeApi => "kube-api",
            Self::Crisp => "crisp",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_names_crisp_as_the_speaker() {
        let error = Error::new(Kind::Unavailable, Origin::Runtime, "no runtime at unix:///x.sock");
        let status = error.to_status();
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.message(), "crisp: no runtime at unix:///x.sock");
    }
}
