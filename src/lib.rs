//! crisp: a CRI proxy between the kubelet and the container runtime.
//!
//! # The life of a call
//!
//! ```text
//! kubelet ──▶ proxy::listener ─▶ proxy::router ─┬─▶ passthrough ──────────────────────▶ upstream ──▶ runtime
//!                                               └─▶ intercepted ─▶ intercept::Features ─▶ upstream
//!                                                   read → plan (pure) → forward → observe
//! ```
//!
//! 1. **Bytes by default.** The router looks at the HTTP/2 path only. What is not intercepted is forwarded as frames.
//! 2. **Intercepted is bytes plus a view.** A message is collected once, decoded for reading only, and changed with a
//!    [`wire::Patch`] that copies every untouched span verbatim. No change: the very same bytes go on.
//! 3. **Fail open.** When a feature cannot do its part, the original goes on and a metric counts it, unless the
//!    feature declares that passing on would be wrong.
//!
//! # Where things are
//!
//! [`app`] wires everything and owns the order of shutdown; [`proxy`] is the path from top to bottom; [`intercept`]
//! holds the features; [`cri`] their vocabulary ([`cri::Call`] → [`cri::Plan`] → [`cri::Raw`]); [`wire`] scans and
//! patches protobuf; [`image`] knows how images are named; [`pull`] makes many pulls one; [`prepull`] brings images
//! before pods need them; [`container`] knows what containers were made from and what pods ask of crisp beyond images;
//! [`store`] keeps what must outlive crisp; [`containerd`] speaks containerd's own API; [`runtime`] is the runtime built in;
//! [`kube`] asks the Kubernetes API server; [`admin`] is what people see of a running crisp.
//!
//! `proxy` uses `http2` and `intercept`, which uses `cri`, `image` and `wire`; `wire`, `http2`, `cri`, `image`, `store`,
//! `error`, `config`, `metrics` and `time` are leaves.

pub mod admin;
pub mod app;
pub mod config;
pub mod container;
pub mod containerd;
pub mod cri;
pub mod error;
mod http2;
pub mod image;
pub mod intercept;
pub mod kube;
pub mod metrics;
pub mod prepull;
pub mod proxy;
pub mod pull;
pub mod runtime;
pub mod shutdown;
pub mod store;
pub mod telemetry;
pub mod time;
pub mod wire;
