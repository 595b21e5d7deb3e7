//! One call on a client's connection, as the session keeps it.

use futures_util::future::AbortHandle;
use tonic::Code;

use crate::cri::frame::Splitter;
use crate::cri::method::Service;
use crate::cri::{Method, Raw};
use crate::http2::{Fields, Flow};
use crate::proxy::observation::Observation;
use crate::proxy::replies::Replies;

/// One call.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) method: Method,
    pub(super) service: Service,
    pub(super) state: State,
    /// Where it is at the runtime, once it is.
    pub(super) link: Option<Link>,
    /// From the client to the runtime.
    pub(super) request: Flow,
    /// From the runtime, or from crisp, to the client.
    pub(super) reply: Flow,
    /// Whether it is in the session's lists of what waits for room.
    pub(super) request_listed: bool,
    pub(super) reply_listed: bool,
    /// Bytes of the request that count as waiting in the session.
    pub(super) held: usize,
    /// Of these, bytes whose credit on the connection the client has had already.
    pub(super) prepaid: u32,
    /// Who looks at the reply.
    pub(super) replies: Option<Replies>,
    /// The client has the head of the reply.
    pub(super) head_sent: bool,
    /// To be noted when the last of the reply has gone.
    pub(super) outcome: Option<Outcome>,
    pub(super) observation: Observation,
}

/// How far a call is.
#[derive(Debug)]
pub(super) enum State {
    /// Its first message is collected, for the features.
    Collecting { head: Box<Fields>, splitter: Splitter },
    /// Something is waited for that a feature asked for.
    Waiting { _until_dropped: Waiting },
    /// Its head waits until the runtime takes one more call.
    Queued(Box<Fields>),
    /// Frames go on as they come.
    Passing,
    /// crisp has answered, or it is too late for an answer. What is left of the request is nobody's.
    Answered,
}

/// What a feature waits for, given up with this.
#[derive(Debug)]
pub(super) struct Waiting(pub(super) AbortHandle);

/// A call's place at the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    /// Which connection.
    pub(super) up: usize,
    /// The stream there.
    pub(super) stream: u32,
}

/// Who ended a call, and how.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The runtime, on this very call.
    Runtime(Code),
    /// A whole reply that was had otherwise.
    Answered(Raw),
}

impl Stream {
    pub(super) fn new(method: Method, service: Service, window: u32, observation: Observation) -> Self {
        Self {
            method,
            service,
            state: State::Passing,
            link: None,
            request: Flow::default(),
            reply: Flow::new(window),
            request_listed: false,
            reply_listed: false,
            held: 0,
            prepaid: 0,
            replies: None,
            head_sent: false,
            outcome: None,
            observation,
        }
    }

    /// Notes how the call ended, now that its caller knows it.
    pub(super) fn note_outcome(&mut self) {
        match self.outcome.take() {
            Some(Outcome::Runtime(code)) => self.observation.runtime_said(code),
            Some(Outcome::Answered(raw)) => self.observation.answered(&raw),
            None => {}
        }
    }
}

// === impl Waiting ===

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.abort();
    }
}
