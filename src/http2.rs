//! HTTP/2 as a relay needs it: frames, header compression, the windows of one direction, and one connection.
//!
//! A general library keeps a state machine, queues and wakers for every stream on either side; a relay knows that what
//! comes in on one side goes out on the other. What is here knows nothing of calls: [`crate::proxy`] does.

mod fields;
mod flow;
mod frame;
mod hpack;
mod input;
mod peer;
mod settings;

pub(crate) use fields::{Field, Fields};
pub(crate) use flow::{End, Flow};
pub(crate) use frame::{Fault, Reason};
pub(crate) use peer::{Event, HEADER_LIST, Peer, STREAM_WINDOW};
pub(crate) use settings::MOST_WINDOW;
