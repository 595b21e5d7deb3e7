//! `crisp prepull`

mod images;
mod order;
mod screen;
mod send;
mod wait;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, ValueHint};
use tokio::signal::unix::{SignalKind, signal};

use self::order::{pin, specs, time, whole_seconds};
use self::screen::Screen;
use self::send::{BATCH_ITEMS, send};
use self::wait::Waiting;
use crate::admin::cli::form::{Form, output};
use crate::admin::cli::table::{self, bytes, shown, words};
use crate::admin::cli::{asking, exit};
use crate::admin::client::PATIENCE_TO_DO;
use crate::admin::prepull::{Taken, TakenItem, Tried};
use crate::config;
use crate::prepull::dry::DryRun;
use crate::prepull::spec::Spec;

/// How long the registries have to answer a dry run of so many images.
const DRY_RUN: Duration = Duration::from_secs(75);
const DRY_RUN_ABREAST: usize = 4;

const EXAMPLES: &str = "\
Examples:
  crisp prepull --wait docker.io/library/nginx:1.27
  crisp prepull --file images.txt --pin 24h --retries 5
  kubectl get pods -A -o jsonpath='{..image}' | tr ' ' '\\n' | crisp prepull --file - --class normal

";

/// The command.
pub(super) fn command() -> Command {
    let command = asking("prepull");
    let codes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    command
        .about("Have images pulled before pods need them; the queue survives restarts")
        .after_help(format!("{EXAMPLES}{codes}"))
        .args(whats())
        .args(hows())
        .group(ArgGroup::new("images").args(["image", "file"]).required(true).multiple(true))
        .arg(
            Arg::new("wait")
                .long("wait")
                .action(ArgAction::SetTrue)
                .help("Wait until all are finished, with progress. The class is then `normal` unless --class says otherwise"),
        )
        .arg(
            Arg::new("dry-run")
                .long("dry-run")
                .action(ArgAction::SetTrue)
                .conflicts_with("wait")
                .help("Only say what would be pulled, and how many bytes are missing"),
        )
        .arg(output("answer"))
}

/// What is wanted.
fn whats() -> Vec<Arg> {
    vec![
        Arg::new("image")
            .value_name("IMAGE")
            .num_args(0..)
            .help("An image as pods name it, or a spec such as {\"dockerImage\":{...}}"),
        flag("file", "FILE")
            .short('f')
            .action(ArgAction::Append)
            .value_hint(ValueHint::FilePath)
            .help("A file with one image a line; `#` begins a comment, `-` is standard input. May be repeated"),
        flag("owner", "NAME").default_value("cli").help("For whom. One owner has one item for an image"),
        flag("secret-file", "FILE")
            .action(ArgAction::Append)
            .value_hint(ValueHint::FilePath)
            .help("Docker's config.json with credentials, tried in order. May be repeated"),
        flag("visibility", "WHO").value_parser(["private", "shared"]).help(
            "Who may use an image that needed a credential: who can pull it (private), or every pod on the node (shared) \
             [default: private]",
        ),
        flag("namespace", "NS").help("Namespace of the pods that will use the image; CRI-O's policies depend on it"),
    ]
}

/// How it is to be done.
fn hows() -> Vec<Arg> {
    let span = "DURATION";
    vec![
        flag("class", "CLASS")
            .value_parser(["background", "normal", "urgent"])
            .help("How urgent it is [default: background, or normal with --wait]"),
        flag("priority", "N")
            .allow_negative_numbers(true)
            .value_parser(clap::value_parser!(i32))
            .help("The higher, the earlier within its class [default: 0]"),
        flag("policy", "POLICY")
            .ignore_case(true)
            .value_parser(["Always", "IfNotPresent"])
            .help("Whether the registry is asked for an image that is there [default: IfNotPresent]"),
        flag("timeout", span)
            .value_parser(whole_seconds)
            .help("How long an attempt may take, waiting not counted [default: 10m]"),
        flag("retries", "N")
            .value_parser(clap::value_parser!(u32))
            .help("How often a failed attempt is repeated [default: 3]"),
        flag("not-before", "TIME")
            .value_parser(time)
            .help("Do nothing before: a duration from now, or a time such as 2026-11-16T08:30:00Z"),
        flag("deadline", "TIME").value_parser(time).help("Give up after: a duration from now, or a time"),
        flag("pin", "HOW").value_parser(pin).help(
            "Keep the image from garbage collection: for a duration from its arrival, or for as long as the item is there \
             (`owner`)",
        ),
        flag("ttl", span)
            .value_parser(config::duration)
            .help("How long the item is remembered after its end [default: prepull.finishedTtl]"),
        flag("check", "CHECKS")
            .value_delimiter(',')
            .value_parser(["disk", "cpu", "mem", "none"])
            .help("What the node must have to spare: some of disk, cpu, mem, or none [default: disk]"),
    ]
}

/// Asks for images, and waits for them if that is wanted. Gives the exit code.
pub async fn run(
    socket: &Path,
    matches: &ArgMatches,
    form: Form,
    out: &mut impl Write,
) -> anyhow::Result<u8> {
    let specs = specs(matches)?;
    if matches.get_flag("dry-run") {
        return dry_run(socket, &specs, form, out).await;
    }
    let wait = matches.get_flag("wait");
    // From here on, so that whoever interrupts is told what becomes of the images.
    let interrupt = if wait { Some(signal(SignalKind::interrupt())?) } else { None };
    let taken: Taken = send(socket, "/v1/prepull", &specs, PATIENCE_TO_DO).await?;
    let Some(interrupt) = interrupt else {
        form.write(out, &taken, |taken| {
            let row = |item: &TakenItem| {
                [item.id.to_string(), shown(&item.image), wait::result(item.result).to_owned()]
            };
            table::of(["ID", "IMAGE", "RESULT"], taken.items.iter().map(row))
        })?;
        return Ok(exit::OK);
    };
    let owner = specs.first().map_or_else(String::new, |spec| spec.owner.clone());
    let screen = match form {
        Form::Text if std::io::stdout().is_terminal() => Screen::bars(),
        Form::Text => Screen::lines(out),
        Form::Json | Form::Yaml => Screen::silent(),
    };
    Waiting::new(socket, owner, &taken, interrupt).run(screen, form).await
}

async fn dry_run(socket: &Path, specs: &[Spec], form: Form, out: &mut impl Write) -> anyhow::Result<u8> {
    let turns = u32::try_from(specs.len().min(BATCH_ITEMS).div_ceil(DRY_RUN_ABREAST)).unwrap_or(u32::MAX);
    let patience = DRY_RUN.saturating_mul(turns);
    let tried: Tried = send(socket, "/v1/prepull?dryRun=true", specs, patience).await?;
    form.write(out, &tried, |tried| {
        let size = |size: Option<u64>| size.map_or_else(|| "-".to_owned(), bytes);
        let row = |found: &DryRun| {
            let state = if found.present { "present" } else { "absent" };
            [
                shown(&found.image),
                state.to_owned(),
                size(found.bytes_total),
                size(found.bytes_missing),
                words(&found.note, 200),
            ]
        };
        let missing: u64 = tried.items.iter().filter_map(|found| found.bytes_missing).sum();
        let unknown = tried.items.iter().filter(|found| found.bytes_missing.is_none()).count();
        let mut text = table::of(["IMAGE", "STATE", "SIZE", "MISSING", "NOTE"], tried.items.iter().map(row));
        text += &format!("{} missing in all", bytes(missing));
        if unknown > 0 {
            text += &format!(", not counting {unknown} of unknown size");
        }
        text + "\n"
    })?;
    Ok(exit::OK)
}

fn flag(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value)
}
