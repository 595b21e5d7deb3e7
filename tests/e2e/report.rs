//! The figures of a run, for people: written to `target/e2e-report.md`, which `make e2e` prints at the end.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use crate::lab::critest::{Outcome, Report};

/// Rows of the tables so far. Each test adds its own, in any order.
static TABLES: Mutex<Tables> =
    Mutex::new(Tables { critest: Vec::new(), kubelets: Vec::new(), pulls: Vec::new(), notes: Vec::new() });

#[derive(Debug)]
struct Tables {
    critest: Vec<String>,
    kubelets: Vec<String>,
    pulls: Vec<String>,
    notes: Vec<String>,
}

pub(crate) fn add_critest(
    version: &str,
    direct: &Report,
    through: &Report,
    lost: &[String],
    flaky: &[String],
    took: Duration,
) {
    let counts = |report: &Report| {
        let [passed, failed, skipped] =
            [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(|o| report.count(o));
        format!("{passed} / {failed} / {skipped}")
    };
    let row = format!(
        "| {version} | {} | {} | {} | {} s |",
        counts(direct),
        counts(through),
        lost.len(),
        took.as_secs()
    );
    let both = direct.specs.iter().filter(|(name, o)| **o == Outcome::Failed && !through.passed(name));
    let both: Vec<_> = both.map(|(name, _)| name.as_str()).collect();
    let notes = [("lost", lost.join("; ")), ("flaky", flaky.join("; ")), ("fail both ways", both.join("; "))];
    println!("{row}");
    publish(|tables| {
        tables.critest.push(row);
        let notes = notes.into_iter().filter(|(_, names)| !names.is_empty());
        tables.notes.extend(notes.map(|(what, names)| format!("- {version}, {what}: {names}")));
    });
}

pub(crate) fn add_kubelet(kubelet: &str, mode: &str, runtime: &str, took: Duration) {
    let row = format!("| {kubelet} | {mode} | {runtime} | yes | yes | yes | {} s |", took.as_secs());
    println!("{row}");
    publish(|tables| tables.kubelets.push(row));
}

/// Many pods of one image, started at once. `pulls` is how often its tag was looked up, `share` what came of it.
pub(crate) fn add_pulls(runtime: &str, way: &str, pods: usize, took: Duration, pulls: usize, share: f64) {
    let row =
        format!("| {runtime} | {way} | {pods} | {:.1} s | {pulls} | {share:.2} x |", took.as_secs_f64());
    println!("{row}");
    publish(|tables| tables.pulls.push(row));
}

/// A line of its own below the tables.
pub(crate) fn add_note(note: &str) {
    println!("{note}");
    publish(|tables| tables.notes.push(format!("- {note}")));
}

fn publish(add: impl FnOnce(&mut Tables)) {
    // A poisoned lock means that another test failed while it wrote; its rows are no worse for that.
    let mut tables = TABLES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    add(&mut tables);
    tables.critest.sort();
    tables.kubelets.sort();
    tables.pulls.sort();
    let mut text = String::from("# End-to-end results\n");
    if !tables.critest.is_empty() {
        text += "\n| runtime | critest directly: passed / failed / skipped | through crisp | lost | time |\n|---|---|---|---|---|\n";
        text += &tables.critest.join("\n");
        text += "\n";
    }
    if !tables.kubelets.is_empty() {
        text += "\n| kubelet | mode | runtime | pods run | survive kill -9 of crisp | survive kill -9 of the runtime | time |\n|---|---|---|---|---|---|---|\n";
        text += &tables.kubelets.join("\n");
        text += "\n";
    }
    if !tables.pulls.is_empty() {
        text += "\n| runtime | pulls go | pods of one image | until all run | pulls at the registry | bytes sent / image |\n|---|---|---|---|---|---|\n";
        text += &tables.pulls.join("\n");
        text += "\n";
    }
    if !tables.notes.is_empty() {
        write!(text, "\n{}\n", tables.notes.join("\n")).expect("a string takes everything");
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    fs::write(target.join("e2e-report.md"), &text).expect("write the report");
}
