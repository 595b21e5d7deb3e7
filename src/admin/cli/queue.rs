//! `crisp queue`

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command};

use crate::admin::cli::asking;
use crate::admin::cli::form::{Form, output};
use crate::admin::cli::table::{self, bytes, shown, span, words};
use crate::admin::client::{self, ClientError, PATIENCE_TO_DO, escaped};
use crate::admin::prepull::{Cancelled, Paused, Retried};
use crate::prepull::item::{Id, Item, State};
use crate::prepull::spec::{Pin, Policy, Visibility};
use crate::prepull::time::Time;
use crate::prepull::view::{Listed, Summary};

const HEADER: [&str; 10] =
    ["ID", "IMAGE", "OWNER", "CLASS", "PRIORITY", "STATE", "REASON", "FOR", "FAILED", "WORDS"];

/// How much of an item's words a list shows; `show` has them all.
const WORDS: usize = 80;

const PAUSED: &str = "The queue is paused; `crisp queue resume` lets it go on.\n";

/// The command.
pub(super) fn command() -> Command {
    let ids = |required| {
        Arg::new("id").value_name("ID").num_args(1..).required(required).value_parser(clap::value_parser!(Id))
    };
    let owner = |help: &'static str| Arg::new("owner").long("owner").value_name("NAME").help(help);
    let switch = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    let states = State::ALL.map(State::name);
    Command::new("queue")
        .about("See and steer the queue of images that are pulled before pods need them")
        .after_help(super::EXIT_CODES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            asking("list")
                .about("Show all items, the oldest first")
                .arg(owner("Only those of this owner"))
                .arg(
                    Arg::new("state")
                        .long("state")
                        .value_name("STATE")
                        .value_parser(states)
                        .help("Only those in this state"),
                )
                .arg(output("list")),
        )
        .subcommand(
            asking("show")
                .about("Show everything about an item, with its last transitions")
                .arg(ids(true).num_args(1).help("Its number"))
                .arg(output("item")),
        )
        .subcommand(
            asking("cancel")
                .about("Take items out of the queue: pulls stop at once, pins and parked layers are let go")
                .arg(ids(false).help("Their numbers"))
                .arg(owner("All of this owner"))
                .arg(switch("all", "All there are"))
                .group(ArgGroup::new("which").args(["id", "owner", "all"]).required(true)),
        )
        .subcommand(
            asking("retry")
                .about("Try items again now, whatever they wait for and however they ended")
                .arg(ids(false).help("Their numbers"))
                .arg(switch("all-failed", "All that have failed"))
                .group(ArgGroup::new("which").args(["id", "all-failed"]).required(true)),
        )
        .subcommand(
            asking("pause").about("Start nothing more, and stop what runs; it resumes where it stopped"),
        )
        .subcommand(asking("resume").about("Let the queue go on"))
}

/// Does what was asked with the queue of the crisp at this admin socket.
pub async fn run(
    socket: &Path,
    what: &str,
    matches: &ArgMatches,
    form: Form,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    match what {
        "show" => {
            let id = ids(matches).next().unwrap_or_default();
            let item: Item = client::get(socket, &format!("/v1/prepull/{id}")).await?;
            form.write(out, &item, |item| described(item, Time::now()))
        }
        "cancel" => cancel(socket, matches, out).await,
        "retry" => retry(socket, matches, out).await,
        "pause" | "resume" => {
            let path = format!("/v1/prepull/{what}");
            let Paused { paused } = client::post(socket, &path, "", PATIENCE_TO_DO).await?;
            write!(out, "{}", if paused { PAUSED } else { "The queue goes on.\n" })?;
            Ok(())
        }
        _ => list(socket, matches, form, out).await,
    }
}

async fn list(socket: &Path, matches: &ArgMatches, form: Form, out: &mut impl Write) -> anyhow::Result<()> {
    let filter = ["owner", "state"].into_iter().filter_map(|key| {
        let value = matches.get_one::<String>(key)?;
        Some(format!("{key}={}", escaped(value)))
    });
    let filter: Vec<String> = filter.collect();
    let listed: Listed = client::get(socket, &format!("/v1/prepull?{}", filter.join("&"))).await?;
    form.write(out, &listed, |listed| {
        let now = Time::now();
        let mut text = match (listed.items.is_empty(), filter.is_empty()) {
            (true, true) => "The queue is empty.\n".to_owned(),
            (true, false) => "No item is like that.\n".to_owned(),
            _ => table::of(HEADER, listed.items.iter().map(|item| row(item, now))),
        };
        if listed.paused {
            text += PAUSED;
        }
        text
    })
}

fn row(item: &Summary, now: Time) -> [String; HEADER.len()] {
    [
        item.id.to_string(),
        shown(&item.image),
        shown(&item.owner),
        item.class.to_string(),
        item.priority.to_string(),
        item.state.name().to_owned(),
        item.reason.name().to_owned(),
        span(now.since(item.since)),
        item.failed_attempts.to_string(),
        words(&item.message, WORDS),
    ]
}

async fn cancel(socket: &Path, matches: &ArgMatches, out: &mut impl Write) -> anyhow::Result<()> {
    if matches.get_flag("all") {
        let Cancelled { cancelled } = client::delete(socket, "/v1/prepull?all=true").await?;
        writeln!(out, "{} cancelled", items(cancelled))?;
        return Ok(());
    }
    if let Some(owner) = matches.get_one::<String>("owner") {
        let path = format!("/v1/prepull?owner={}", escaped(owner));
        let Cancelled { cancelled } = client::delete(socket, &path).await?;
        writeln!(out, "{} of {} cancelled", items(cancelled), shown(owner))?;
        return Ok(());
    }
    each(matches, "cancelled", out, async |id| {
        let path = format!("/v1/prepull/{id}");
        client::delete::<Cancelled>(socket, &path).await.map(drop)
    })
    .await
}

async fn retry(socket: &Path, matches: &ArgMatches, out: &mut impl Write) -> anyhow::Result<()> {
    if matches.get_flag("all-failed") {
        let Retried { retried } = client::post(socket, "/v1/prepull/retry", "", PATIENCE_TO_DO).await?;
        writeln!(out, "{} to be tried again", items(retried))?;
        return Ok(());
    }
    each(matches, "to be tried again", out, async |id| {
        let path = format!("/v1/prepull/{id}/retry");
        client::post::<Retried>(socket, &path, "", PATIENCE_TO_DO).await.map(drop)
    })
    .await
}

/// Does something for each number that was given. One that is refused does not stop the others.
async fn each(
    matches: &ArgMatches,
    done: &str,
    out: &mut impl Write,
    act: impl AsyncFn(Id) -> Result<(), ClientError>,
) -> anyhow::Result<()> {
    let mut refusals = Vec::new();
    for id in ids(matches) {
        match act(id).await {
            Ok(()) => writeln!(out, "item {id} {done}")?,
            Err(ClientError::Refused { refused, .. }) => refusals.push(refused.error),
            Err(error) => return Err(error.into()),
        }
    }
    anyhow::ensure!(refusals.is_empty(), "{}", refusals.join("\n"));
    Ok(())
}

fn ids(matches: &ArgMatches) -> impl Iterator<Item = Id> {
    matches.get_many::<Id>("id").into_iter().flatten().copied()
}

fn items(count: usize) -> String {
    if count == 1 { "1 item".to_owned() } else { format!("{count} items") }
}

/// An item for people.
fn described(item: &Item, now: Time) -> String {
    let (spec, status) = (&item.spec, &item.status);
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        if !value.is_empty() {
            // A String takes everything.
            let _ = writeln!(text, "{key:<12}{value}");
        }
    };
    let time = |time: Option<Time>| time.map_or_else(String::new, |time| time.to_string());
    line("id", item.id.to_string());
    line("image", shown(&item.image));
    line("pulled as", if item.source == item.image { String::new() } else { shown(&item.source) });
    line("owner", shown(&spec.owner));
    line("class", format!("{}, priority {}", spec.class, spec.priority));
    line("state", format!("{} ({})", status.state.name(), status.reason.name()));
    line("since", format!("{} ({})", status.since, span(now.since(status.since))));
    line("words", words(&status.message, usize::MAX));
    line("until", time(status.until));
    line("asked", status.asked.to_string());
    line("finished", time(status.finished));
    line("image id", status.image_id.as_deref().map(shown).unwrap_or_default());
    line("attempts", format!("{} failed of {}", status.failed_attempts, spec.retries.saturating_add(1)));
    line("timeout", format!("{} s for an attempt", spec.timeout_seconds));
    line(
        "policy",
        match spec.policy {
            Policy::Always => "Always".into(),
            Policy::IfNotPresent => "IfNotPresent".into(),
        },
    );
    line("not before", time(spec.not_before));
    line("deadline", time(spec.deadline));
    line("ttl", spec.ttl_seconds.map_or_else(String::new, |seconds| format!("{seconds} s")));
    line(
        "pin",
        match spec.pin {
            Pin::None => String::new(),
            Pin::WithOwner => "as long as the item is there".into(),
            Pin::Seconds(seconds) => format!("{seconds} s from its arrival"),
        },
    );
    line(
        "visibility",
        match spec.visibility {
            None => String::new(),
            Some(Visibility::Private) => "private".into(),
            Some(Visibility::Shared) => "shared".into(),
        },
    );
    line(
        "kept",
        status.kept.as_ref().map_or_else(String::new, |kept| {
            let until = kept.until.map_or_else(String::new, |until| format!(" until {until}"));
            format!("{}, {}{until}", kept.how.name(), bytes(kept.bytes))
        }),
    );
    line("namespace", shown(&spec.sandbox.namespace));
    let transitions = status.history.iter().map(|step| {
        let reason = step.reason.name().to_owned();
        [step.time.to_string(), step.state.name().to_owned(), reason, words(&step.message, usize::MAX)]
    });
    text + "\n" + &table::of(["TIME", "STATE", "REASON", "WORDS"], transitions)
}
