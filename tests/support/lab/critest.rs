//! critest against an endpoint, and its report as sets of specs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::parts::peer_dir;
use super::process::Process;
use super::scratch::Scratch;
use super::wait;

/// The Go peer that critest and crictl belong to.
pub(crate) const PEER: &str = "cri-tools-1.36.0";

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// Which specs to run, as regular expressions on their full names.
#[derive(Clone, Debug)]
pub(crate) enum Specs {
    AllBut(String),
    Only(String),
}

/// The outcome of each spec by its full name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) specs: BTreeMap<String, Outcome>,
}

impl Specs {
    /// Exactly one spec.
    pub(crate) fn one(name: &str) -> Self {
        let escaped: String = name
            .chars()
            .flat_map(|c| {
                let plain = c.is_alphanumeric() || c == ' ' || c == '_';
                (!plain).then_some('\\').into_iter().chain([c])
            })
            .collect();
        Self::Only(format!("^{escaped}$"))
    }
}

impl Report {
    pub(crate) fn count(&self, outcome: Outcome) -> usize {
        self.specs.values().filter(|o| **o == outcome).count()
    }

    pub(crate) fn passed(&self, name: &str) -> bool {
        self.specs.get(name) == Some(&Outcome::Passed)
    }

    /// Adds what a run of other specs gave.
    pub(crate) fn merge(&mut self, other: Self) {
        for (name, outcome) in other.specs {
            // A run reports the specs that it was told to leave out as skipped.
            if outcome != Outcome::Skipped || !self.specs.contains_key(&name) {
                self.specs.insert(name, outcome);
            }
        }
    }
}

/// Runs critest to its end. It always ends: each of its calls has a deadline.
///
/// `call_limit` is the deadline of its calls to the runtime. CRI-O takes a pod's grace period from it, so there it
/// decides how long the whole run takes.
pub(crate) fn run(endpoint: &str, specs: &Specs, call_limit: Duration) -> Report {
    let scratch = Scratch::new();
    let report = scratch.join("report.json");
    let mut command = Command::new(peer_dir(PEER).join("critest"));
    command.current_dir(scratch.path());
    // critest keeps its fixtures in the temporary folder; below ours they go with it.
    command.env("TMPDIR", scratch.path());
    command.arg(format!("-runtime-endpoint={endpoint}")).arg(format!("-image-endpoint={endpoint}"));
    command.arg(format!("-runtime-service-timeout={}s", call_limit.as_secs()));
    command.arg(format!("-ginkgo.json-report={}", report.display()));
    command.args(["-ginkgo.no-color", "-ginkgo.succinct", "-test.timeout=40m"]);
    match specs {
        Specs::AllBut(pattern) if pattern.is_empty() => {}
        Specs::AllBut(pattern) => {
            command.arg(format!("-ginkgo.skip={pattern}"));
        }
        Specs::Only(pattern) => {
            command.arg(format!("-ginkgo.focus={pattern}"));
        }
    }
    let mut process = Process::start("critest", command, &scratch.join("critest.log"));
    wait::until("critest ends", Duration::from_secs(45 * 60), || process.ended());
    assert!(report.exists(), "critest left no report\n{}", process.log_tail());
    read(&report)
}

fn read(report: &Path) -> Report {
    let suites: Value = serde_json::from_slice(&fs::read(report).expect("read the report")).expect("JSON");
    let specs = suites.as_array().expect("suites").iter().flat_map(|suite| {
        suite["SpecReports"].as_array().expect("specs").iter().filter(|spec| spec["LeafNodeType"] == "It")
    });
    let outcomes = specs.map(|spec| {
        let parents = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
        let name: Vec<_> = parents
            .chain([&spec["LeafNodeText"]])
            .filter_map(Value::as_str)
            .filter(|s| !s.is_empty())
            .collect();
        let outcome = match spec["State"].as_str() {
            Some("passed") => Outcome::Passed,
            Some("skipped" | "pending") => Outcome::Skipped,
            _ => Outcome::Failed,
        };
        (name.join(" "), outcome)
    });
    Report { specs: outcomes.collect() }
}
