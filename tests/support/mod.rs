//! What the tests share: a runtime and a client that speak raw HTTP/2, and crisp itself in two forms.

pub(crate) mod alone;
pub(crate) mod binary;
pub(crate) mod bytes_on_the_wire;
pub(crate) mod fake_runtime;
pub(crate) mod feature;
pub(crate) mod h2_client;
pub(crate) mod http_get;
pub(crate) mod in_process;
pub(crate) mod random;
pub(crate) mod raw_frames;
pub(crate) mod wait;
