//! What was asked for on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, Command, value_parser};

use crate::support::messages;

/// What this process is.
#[derive(Debug)]
pub(crate) enum Role {
    /// The stub of a runtime, on this socket.
    Stub(PathBuf),
    /// The client that measures.
    Measure(Options),
}

/// How to measure.
#[derive(Debug)]
pub(crate) struct Options {
    /// How often everything is repeated with new processes.
    pub(crate) runs: usize,
    /// Interleaved rounds in a run.
    pub(crate) rounds: usize,
    /// Length of one slot: one target, one method, one concurrency.
    pub(crate) slot: Duration,
    /// Whether a gate that does not hold is a failure.
    pub(crate) gate: bool,
    /// The only method to measure.
    pub(crate) only: Option<String>,
    /// Whether tonic makes the calls, or h2 alone.
    pub(crate) tonic: bool,
    /// Another crisp program to measure beside this one.
    pub(crate) other: Option<PathBuf>,
}

impl Options {
    /// Reads the arguments of this process; ends it with a message if they are wrong.
    pub(crate) fn from_arguments() -> Role {
        let number =
            |name: &'static str| Arg::new(name).long(name).value_parser(value_parser!(u32).range(1..));
        let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
        let matches = Command::new("passthrough")
            .about("Measures calls made directly, through crisp and through nginx, side by side")
            .arg(
                number("runs")
                    .default_value("3")
                    .help("Repetitions with new processes; medians are over runs"),
            )
            .arg(number("rounds").default_value("9").help("Interleaved rounds in a run"))
            .arg(number("slot-ms").default_value("250").help("Length of one slot"))
            .arg(flag("quick").help("One run of three rounds of 40 ms slots: only tells whether it works"))
            .arg(flag("gate").help("Fail when a gate does not hold"))
            .arg(
                Arg::new("only")
                    .long("only")
                    .value_name("METHOD")
                    .value_parser(messages::calls().map(|call| call.name))
                    .help("Measure this method only, for example to profile"),
            )
            .arg(
                Arg::new("client")
                    .long("client")
                    .value_parser(["tonic", "h2"])
                    .default_value("tonic")
                    .help("Who calls: a gRPC client, or the lightest HTTP/2 client there is"),
            )
            .arg(
                Arg::new("other")
                    .long("other")
                    .value_name("PATH")
                    .value_parser(value_parser!(PathBuf))
                    .help("Another crisp program to measure beside this one, for before and after"),
            )
            .arg(Arg::new("stub").long("stub").value_parser(value_parser!(PathBuf)).hide(true))
            // cargo bench adds this.
            .arg(flag("bench").hide(true))
            .get_matches();
        if let Some(socket) = matches.get_one::<PathBuf>("stub") {
            return Role::Stub(socket.clone());
        }
        let number = |name: &str| matches.get_one::<u32>(name).copied().unwrap_or(1);
        let quick = matches.get_flag("quick");
        Role::Measure(Self {
            runs: if quick { 1 } else { number("runs") as usize },
            rounds: if quick { 3 } else { number("rounds") as usize },
            slot: Duration::from_millis(if quick { 40 } else { number("slot-ms").into() }),
            gate: matches.get_flag("gate"),
            only: matches.get_one("only").cloned(),
            tonic: matches.get_one::<String>("client").is_some_and(|client| client == "tonic"),
            other: matches.get_one("other").cloned(),
        })
    }
}
