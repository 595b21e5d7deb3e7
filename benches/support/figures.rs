//! What was measured, and what is made of it.

use std::time::Duration;

use crate::support::load::Slot;
use crate::support::target::DIRECT;

/// Concurrencies that are measured.
pub(crate) const CALLERS: [usize; 2] = [1, 64];

/// One run: each target with all its slots.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) targets: Vec<Measured>,
}

/// One target in one run.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) name: &'static str,
    /// By method, then by concurrency.
    pub(crate) cells: Vec<Cell>,
    /// MiB resident: with a connection but no load, at most, and after the load. Not for direct calls.
    pub(crate) memory: Option<[f64; 3]>,
    /// Errors outside the rounds' slots.
    pub(crate) other_errors: u64,
}

/// All the slots of one target, method and concurrency.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    /// Microseconds, one value for each round.
    p50: Vec<f64>,
    p99: Vec<f64>,
    /// Calls per second.
    rate: Vec<f64>,
    cpu: Option<Duration>,
    calls: u64,
    errors: u64,
}

/// Medians over rounds, absolute and against direct calls in the same round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) rate: f64,
    pub(crate) p50_ratio: f64,
    pub(crate) rate_ratio: f64,
    pub(crate) added: f64,
    pub(crate) cpu: f64,
    pub(crate) errors: f64,
}

impl Run {
    /// Errors of all targets.
    pub(crate) fn errors(&self) -> u64 {
        self.targets
            .iter()
            .map(|target| target.other_errors + target.cells.iter().map(|cell| cell.errors).sum::<u64>())
            .sum()
    }

    /// Calls of all targets that succeeded.
    pub(crate) fn calls(&self) -> u64 {
        self.targets.iter().flat_map(|target| &target.cells).map(|cell| cell.calls).sum()
    }

    pub(crate) fn target(&self, name: &str) -> Option<&Measured> {
        self.targets.iter().find(|target| target.name == name)
    }

    /// The figures of a target in a cell.
    pub(crate) fn figures(&self, name: &str, cell: usize) -> Option<Figures> {
        let own = self.target(name)?.cells.get(cell)?;
        let direct = self.target(DIRECT)?.cells.get(cell)?;
        let paired = |own: &[f64], direct: &[f64], with: fn(f64, f64) -> f64| {
            median(own.iter().zip(direct).map(|(own, direct)| with(*own, *direct)).collect())
        };
        Some(Figures {
            p50: median(own.p50.clone()),
            p99: median(own.p99.clone()),
            rate: median(own.rate.clone()),
            p50_ratio: paired(&own.p50, &direct.p50, |own, direct| own / direct),
            rate_ratio: paired(&own.rate, &direct.rate, |own, direct| own / direct),
            added: paired(&own.p50, &direct.p50, |own, direct| own - direct),
            cpu: own.cpu.map_or(f64::NAN, |cpu| cpu.as_secs_f64() * 1e6 / own.calls as f64),
            errors: own.errors as f64,
        })
    }
}

impl Cell {
    /// Adds a slot.
    pub(crate) fn add(&mut self, slot: &Slot, cpu: Option<Duration>) {
        self.p50.push(quantile(&slot.latencies, 0.5));
        self.p99.push(quantile(&slot.latencies, 0.99));
        self.rate.push(slot.latencies.len() as f64 / slot.took.as_secs_f64());
        self.cpu = cpu.map(|cpu| self.cpu.unwrap_or_default() + cpu);
        self.calls += slot.latencies.len() as u64;
        self.errors += slot.errors;
    }
}

/// The median over runs of something that each run has.
pub(crate) fn over(runs: &[Run], figure: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    let values: Option<Vec<f64>> = runs.iter().map(figure).collect();
    values.filter(|values| !values.is_empty()).map(median)
}

/// The middle, or the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.get(middle.wrapping_sub(1)), values.get(middle)) {
        (Some(below), Some(above)) if values.len().is_multiple_of(2) => f64::midpoint(*below, *above),
        (_, Some(middle)) => *middle,
        _ => f64::NAN,
    }
}

/// A quantile of sorted nanoseconds, in microseconds.
fn quantile(sorted: &[u64], part: f64) -> f64 {
    let place = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(place).map_or(f64::NAN, |nanos| *nanos as f64 / 1000.0)
}
