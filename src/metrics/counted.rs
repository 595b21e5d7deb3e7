//! What is counted while it is there.

use prometheus_client::metrics::gauge::Gauge;

/// Adds one to a gauge while it lives, whatever becomes of it.
#[derive(Debug)]
pub(crate) struct Counted(Gauge);

impl Counted {
    pub(crate) fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
