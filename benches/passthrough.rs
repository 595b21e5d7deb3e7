//! Side by side, in one run: a call made directly, through crisp and through nginx's `grpc_pass`.
//!
//! A stub of a runtime (a process of its own, replies encoded beforehand) listens on a unix socket; the proxies
//! forward to it; this process is the client. In every round each target has a slot per method and concurrency,
//! targets in random order, so that whatever else the machine does falls on all of them. Absolute times drift
//! between runs: compare ratios only. A failed or short reply is an error and never counts as a call.

mod support {
    pub(crate) mod client;
    pub(crate) mod figures;
    pub(crate) mod load;
    pub(crate) mod messages;
    pub(crate) mod options;
    pub(crate) mod process;
    pub(crate) mod program;
    pub(crate) mod report;
    pub(crate) mod rounds;
    pub(crate) mod stub;
    pub(crate) mod target;
    pub(crate) mod verdict;
}

use std::process::ExitCode;

use support::figures::Run;
use support::options::{Options, Role};
use support::{report, rounds, stub, verdict};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let role = Options::from_arguments();
    let result =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Into::into).and_then(
            |runtime| {
                runtime.block_on(async {
                    match role {
                        Role::Stub(socket) => stub::serve(&socket).await.map(|()| true),
                        Role::Measure(options) => until_signal(measure(&options)).await,
                    }
                })
            },
        );
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("passthrough: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and prints. Gives whether all is well.
async fn measure(options: &Options) -> anyhow::Result<bool> {
    let mut runs: Vec<Run> = Vec::new();
    for number in 1..=options.runs {
        eprintln!("run {number} of {}, load {}", options.runs, support::process::load());
        let run = rounds::run(options).await?;
        eprintln!("run {number} done, load {}, {} errors", support::process::load(), run.errors());
        runs.push(run);
    }
    let gates = verdict::judge(&runs);
    report::print(options, &runs);
    verdict::print(&gates);
    let errors: u64 = runs.iter().map(Run::errors).sum();
    Ok(errors == 0 && (!options.gate || gates.iter().all(verdict::Gate::holds)))
}

/// Ends early on a signal, by returning: what was started is then stopped and removed as on every other way out.
async fn until_signal(work: impl Future<Output = anyhow::Result<bool>>) -> anyhow::Result<bool> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        done = work => done,
        _ = terminate.recv() => anyhow::bail!("terminated"),
        _ = interrupt.recv() => anyhow::bail!("interrupted"),
    }
}
