//! The figures as Markdown tables.

use crate::support::figures::{CALLERS, Figures, Run, over};
use crate::support::messages;
use crate::support::options::Options;
use crate::support::target::NGINX;

/// Prints a table for each method and concurrency, and one for memory.
pub(crate) fn print(options: &Options, runs: &[Run]) {
    let calls: u64 = runs.iter().map(Run::calls).sum();
    let errors: u64 = runs.iter().map(Run::errors).sum();
    println!(
        "Medians over {} runs of {} interleaved rounds, slots of {} ms, client {}; {calls} calls, {errors} errors.",
        options.runs,
        options.rounds,
        options.slot.as_millis(),
        if options.tonic { "tonic" } else { "h2" }
    );
    println!("Ratios and added times are against direct calls in the same round.");
    let cells = messages::calls().into_iter().flat_map(|call| CALLERS.map(|callers| (call.clone(), callers)));
    let wanted = |name| options.only.as_deref().is_none_or(|only| only == name);
    for (cell, (call, callers)) in cells.enumerate().filter(|(_, (call, _))| wanted(call.name)) {
        let size = match call.reply.len() {
            bytes if bytes < 10_000 => format!("{bytes} B"),
            bytes => format!("{} KiB", bytes / 1024),
        };
        let plural = if callers == 1 { "caller" } else { "callers" };
        println!("\n### {}, {size}, {} by crisp, {callers} {plural}\n", call.name, call.way);
        println!(
            "| target | p50 µs | p99 µs | calls/s | p50 ratio | calls/s ratio | added p50 µs | added ÷ nginx's | CPU µs/call | errors |"
        );
        println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
        for target in names(runs) {
            let figure = |of: fn(Figures) -> f64| over(runs, |run| run.figures(target, cell).map(of));
            let against_nginx = over(runs, |run| added_ratio(run, target, cell));
            println!(
                "| {target} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                number(figure(|f| f.p50), 0),
                number(figure(|f| f.p99), 0),
                number(figure(|f| f.rate), 0),
                number(figure(|f| f.p50_ratio), 2),
                number(figure(|f| f.rate_ratio), 2),
                number(figure(|f| f.added), 0),
                number(against_nginx, 2),
                number(figure(|f| f.cpu), 1),
                number(figure(|f| f.errors), 0),
            );
        }
    }
    println!("\n### Resident memory, MiB\n");
    println!("| target | idle | most, 64 × 300 KiB in flight | after the load |\n|---|---:|---:|---:|");
    for target in names(runs) {
        let at = |place: usize| over(runs, |run| Some(run.target(target)?.memory?[place]));
        if at(0).is_some() {
            println!("| {target} | {} | {} | {} |", number(at(0), 1), number(at(1), 1), number(at(2), 1));
        }
    }
}

/// A target's added p50 as a part of nginx's.
pub(crate) fn added_ratio(run: &Run, target: &str, cell: usize) -> Option<f64> {
    Some(run.figures(target, cell)?.added / run.figures(NGINX, cell)?.added)
}

/// A number for a table; a dash when there is none.
pub(crate) fn number(value: Option<f64>, digits: usize) -> String {
    match value {
        Some(value) if value.is_finite() => format!("{value:.digits$}"),
        _ => "–".into(),
    }
}

fn names(runs: &[Run]) -> Vec<&'static str> {
    runs.first().map(|run| run.targets.iter().map(|target| target.name).collect()).unwrap_or_default()
}
