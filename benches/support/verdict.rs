//! What crisp promises, and whether it holds here.

use crate::support::figures::{CALLERS, Run, median};
use crate::support::messages::{self, Kind};
use crate::support::report::{added_ratio, number};
use crate::support::target::{CRISP, NGINX};

/// One promise.
#[derive(Debug)]
pub(crate) struct Gate {
    what: &'static str,
    limit: Limit,
    /// One value for each run; none when nginx is not there to compare with, or the method was not asked for.
    values: Option<Vec<f64>>,
}

#[derive(Debug, Clone, Copy)]
enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Gate {
    /// Whether the median over runs is within the limit. What could not be measured does not fail.
    pub(crate) fn holds(&self) -> bool {
        self.median().is_none_or(|value| match self.limit {
            Limit::AtMost(limit) => value <= limit,
            Limit::AtLeast(limit) => value >= limit,
        })
    }

    fn median(&self) -> Option<f64> {
        self.values.clone().map(median)
    }
}

/// Measures the promises. Each value is a median over methods.
pub(crate) fn judge(runs: &[Run]) -> Vec<Gate> {
    let calls = messages::calls();
    // Cells of the methods that are meant, at one caller or at many.
    let cells = |which: fn(Kind) -> bool, at: usize| -> Vec<usize> {
        let chosen = calls.iter().enumerate().filter(|(_, call)| which(call.kind));
        chosen.map(|(method, _)| method * CALLERS.len() + at).collect()
    };
    let added =
        |cells: Vec<usize>| each(runs, |run| over_methods(&cells, |cell| added_ratio(run, CRISP, cell)));
    let many = cells(|kind| kind != Kind::Status, CALLERS.len() - 1);
    let rate = |run: &Run, target: &str, cell| Some(run.figures(target, cell)?.rate_ratio);
    // The same bytes, passed through and relieved of a record.
    let statuses = cells(|kind| kind == Kind::Status, 0);
    let record = |run: &Run| {
        let added = |which: usize| Some(run.figures(CRISP, *statuses.get(which)?)?.added);
        Some(added(1)? / added(0)?).filter(|ratio| ratio.is_finite())
    };
    let memory = |place: usize| each(runs, |run| Some(run.target(CRISP)?.memory?[place]));
    vec![
        Gate {
            what: "added p50, small call, ÷ nginx's",
            limit: Limit::AtMost(1.0),
            values: added(cells(|kind| kind == Kind::Small, 0)),
        },
        Gate {
            what: "added p50, 300 KiB list, ÷ nginx's",
            limit: Limit::AtMost(1.6),
            values: added(cells(|kind| kind == Kind::Large, 0)),
        },
        Gate {
            what: "calls/s, 64 callers, ÷ direct",
            limit: Limit::AtLeast(0.45),
            values: each(runs, |run| over_methods(&many, |cell| rate(run, CRISP, cell))),
        },
        Gate {
            what: "calls/s, 64 callers, ÷ nginx's",
            limit: Limit::AtLeast(1.1),
            values: each(runs, |run| {
                over_methods(&many, |cell| Some(rate(run, CRISP, cell)? / rate(run, NGINX, cell)?))
            }),
        },
        Gate {
            what: "added p50, ContainerStatus with a record, ÷ the same passed through",
            limit: Limit::AtMost(1.3),
            values: each(runs, record),
        },
        Gate { what: "MiB resident, idle", limit: Limit::AtMost(8.0), values: memory(0) },
        Gate { what: "MiB resident, 64 × 300 KiB in flight", limit: Limit::AtMost(30.0), values: memory(1) },
    ]
}

/// Prints the promises.
pub(crate) fn print(gates: &[Gate]) {
    println!("\n### Gates (medians over methods)\n");
    println!("| figure | limit | each run | median | |\n|---|---:|---:|---:|---|");
    for gate in gates {
        let limit = match gate.limit {
            Limit::AtMost(limit) => format!("≤ {limit}"),
            Limit::AtLeast(limit) => format!("≥ {limit}"),
        };
        let runs: Vec<String> = gate.values.iter().flatten().map(|value| number(Some(*value), 2)).collect();
        let verdict = match gate.values {
            None => "not measured",
            Some(_) if gate.holds() => "holds",
            Some(_) => "FAILS",
        };
        println!(
            "| {} | {limit} | {} | {} | {verdict} |",
            gate.what,
            runs.join(", "),
            number(gate.median(), 2)
        );
    }
}

fn each(runs: &[Run], figure: impl Fn(&Run) -> Option<f64>) -> Option<Vec<f64>> {
    runs.iter().map(figure).collect()
}

fn over_methods(cells: &[usize], figure: impl Fn(usize) -> Option<f64>) -> Option<f64> {
    let values: Option<Vec<f64>> = cells.iter().map(|cell| figure(*cell)).collect();
    values
        .map(|values| values.into_iter().filter(|value| value.is_finite()).collect())
        .map(median)
        .filter(|value| value.is_finite())
}
