//! What is to be done with an intercepted call. Features make plans; [`crate::proxy`] carries them out.

use std::fmt;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tonic::Code;

use crate::cri::Raw;
use crate::error::Error;
use crate::wire::Patch;

/// What is to be done with a call.
pub enum Plan {
    /// Send it to the runtime, with the changes noted.
    Forward(Forward),
    /// Answer it here.
    Reply(Raw),
    /// Refuse it here.
    Refuse(Error),
    /// Answer it with what a task elsewhere brings. The future is dropped when the caller goes away; work that
    /// must outlive its caller belongs into a task of its own that the future only waits for.
    Delegate(BoxFuture<'static, Raw>),
}

/// What becomes of a call when a feature cannot do its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The original bytes go on and a metric counts it.
    Open,
    /// The call is refused, because passing it on would be wrong.
    Closed,
}

/// Changes and observations on the way to the runtime and back, in the order in which features added them.
#[derive(Debug, Default)]
pub struct Forward {
    /// Waited for, one after the other, before the call goes on.
    pub first: Vec<Step<First>>,
    /// Changes of the request message.
    pub request: Vec<Step<Patch>>,
    /// Changes and observations of each reply message.
    pub reply: Vec<Step<OnReply>>,
    /// Called with the code of the call when it has ended.
    pub end: Vec<Step<OnEnd>>,
}

/// One feature's part in a plan.
#[derive(Debug)]
pub struct Step<T> {
    /// The feature, as metrics name it.
    pub feature: &'static str,
    /// What happens when it fails.
    pub policy: Policy,
    /// What it does.
    pub action: T,
}

/// What a feature does with each reply message.
pub enum OnReply {
    /// Looks at it, after it has gone on to the caller.
    Observe(Look<()>),
    /// Learns how often one top-level field occurs in it. It is counted while it streams past and is not
    /// collected, as long lists would be.
    Count(u32, Box<dyn FnMut(u64) + Send>),
    /// Decides how it is changed, before it goes on.
    Map(Look<Patch>),
}

/// What a feature makes of one message.
pub type Look<T> = Box<dyn FnMut(&Bytes) -> Result<T, Error> + Send>;

/// Something that has to come to its end before a call goes on, and may bring a change of the request, made after those
/// that were known at once. Who adds it sees to it that this is soon. Dropped when the caller goes away.
pub struct First(pub BoxFuture<'static, Result<Patch, Error>>);

/// Sees how the call ended.
pub struct OnEnd(pub Box<dyn FnOnce(Code) + Send>);

// === impl Plan, OnReply, First, OnEnd ===

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward(forward) => f.debug_tuple("Forward").field(forward).finish(),
            Self::Reply(raw) => f.debug_tuple("Reply").field(raw).finish(),
            Self::Refuse(error) => f.debug_tuple("Refuse").field(error).finish(),
            Self::Delegate(_) => f.write_str("Delegate"),
        }
    }
}

impl fmt::Debug for OnReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Observe(_) => "Observe",
            Self::Count(..) => "Count",
            Self::Map(_) => "Map",
        })
    }
}

impl fmt::Debug for First {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("First")
    }
}

impl fmt::Debug for OnEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnEnd")
    }
}
