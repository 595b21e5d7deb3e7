//! `crisp prepull`

mod images;
mod screen;
mod wait;

use std::collections::HashSet;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, ValueHint};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};

use self::screen::Screen;
use self::wait::Waiting;
use crate::admin::cli::form::{Form, output};
use crate::admin::cli::table::{self, bytes, shown, words};
use crate::admin::cli::{Usage, asking, exit};
use crate::admin::client::{self, PATIENCE_TO_DO};
use crate::admin::prepull::{MAX_REQUEST, Taken, Tried};
use crate::config;
use crate::prepull::dry::DryRun;
use crate::prepull::secret::{self, Credential};
use crate::prepull::spec::{Pin, Policy, Spec, Visibility};
use crate::prepull::time::Time;
use crate::pull::Class;

/// How much goes into one request.
const BATCH_ITEMS: usize = 1000;
const BATCH_BYTES: usize = MAX_REQUEST / 2;

/// How long the registries have to answer a dry run of so many images.
const DRY_RUN: Duration = Duration::from_secs(75);
const DRY_RUN_ABREAST: usize = 4;

/// What is waited for is remembered at least so long, so that its outcome can be seen.
const LEAST_TTL: Duration = Duration::from_secs(60);

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
    let span = "duration (ms, s, m, h)";
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
            let row = |item: &crate::admin::prepull::TakenItem| {
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

/// What an answer to many requests is put together from.
trait Answer: DeserializeOwned + Default {
    fn append(&mut self, other: Self);
}

impl Answer for Taken {
    fn append(&mut self, mut other: Self) {
        self.items.append(&mut other.items);
    }
}

impl Answer for Tried {
    fn append(&mut self, mut other: Self) {
        self.items.append(&mut other.items);
    }
}

/// Sends specs in as few requests as can be. Each is taken whole or not at all.
async fn send<A: Answer>(socket: &Path, path: &str, specs: &[Spec], patience: Duration) -> anyhow::Result<A> {
    let mut all = A::default();
    let mut sent = 0;
    while sent < specs.len() {
        let mut body = br#"{"items":["#.to_vec();
        let mut count = 0;
        for spec in specs.iter().skip(sent).take(BATCH_ITEMS) {
            let item = serde_json::to_vec(&with_secrets(spec)?)?;
            if count > 0 && body.len() + item.len() > BATCH_BYTES {
                break;
            }
            if count > 0 {
                body.push(b',');
            }
            body.extend(item);
            count += 1;
        }
        body.extend(b"]}");
        let answer = client::post(socket, path, body, patience).await;
        all.append(match answer {
            Err(error) if sent > 0 => {
                let words = format!("the first {sent} of {} images were taken, the others not", specs.len());
                return Err(error).context(words);
            }
            answer => answer?,
        });
        sent += count;
    }
    Ok(all)
}

/// The JSON form of a spec, with what it never shows otherwise.
fn with_secrets(spec: &Spec) -> serde_json::Result<Value> {
    let mut json = serde_json::to_value(spec)?;
    if let Value::Object(fields) = &mut json
        && !spec.secrets.is_empty()
    {
        fields.insert("secrets".into(), spec.secrets.iter().map(of_credential).collect());
    }
    Ok(json)
}

fn of_credential(credential: &Credential) -> Value {
    let auth = credential.auth_config();
    let fields = [
        ("registry", credential.registry().to_owned()),
        ("username", auth.username),
        ("password", auth.password),
        ("auth", auth.auth),
        ("serverAddress", auth.server_address),
        ("identityToken", auth.identity_token),
        ("registryToken", auth.registry_token),
    ];
    let given = fields.into_iter().filter(|(_, value)| !value.is_empty());
    Value::Object(given.map(|(key, value)| (key.to_owned(), json!(value))).collect::<Map<_, _>>())
}

/// What the command line asks for.
fn specs(matches: &ArgMatches) -> anyhow::Result<Vec<Spec>> {
    let text = |key: &str| matches.get_one::<String>(key).map(String::as_str);
    let texts = |key: &str| matches.get_many::<String>(key).into_iter().flatten().map(String::as_str);
    let wait = matches.get_flag("wait");
    let mut one = Spec::of("");
    one.owner = text("owner").unwrap_or_default().to_owned();
    one.class = match text("class") {
        Some("background") => Class::Background,
        Some("urgent") => Class::Urgent,
        None if !wait => Class::Background,
        _ => Class::Normal,
    };
    one.priority = matches.get_one("priority").copied().unwrap_or(one.priority);
    one.retries = matches.get_one("retries").copied().unwrap_or(one.retries);
    if text("policy").is_some_and(|policy| policy.eq_ignore_ascii_case("always")) {
        one.policy = Policy::Always;
    }
    one.timeout_seconds = matches.get_one("timeout").copied().unwrap_or(one.timeout_seconds);
    one.not_before = matches.get_one("not-before").copied();
    one.deadline = matches.get_one("deadline").copied();
    one.pin = matches.get_one("pin").copied().unwrap_or_default();
    if let Some(ttl) = matches.get_one::<Duration>("ttl") {
        if wait && *ttl < LEAST_TTL {
            let words = "--ttl: with --wait expected at least 1m, so that the outcome can be seen";
            return Err(Usage(words.into()).into());
        }
        one.ttl_seconds = Some(ttl.as_secs());
    }
    one.visibility = match text("visibility") {
        Some("private") => Some(Visibility::Private),
        Some("shared") => Some(Visibility::Shared),
        _ => None,
    };
    one.sandbox.namespace = text("namespace").unwrap_or_default().to_owned();
    let checks: HashSet<&str> = texts("check").collect();
    if checks.contains("none") && checks.len() > 1 {
        return Err(Usage("--check: `none` stands alone".into()).into());
    }
    if !checks.is_empty() {
        let chosen = ["disk", "cpu", "mem"].into_iter().filter(|check| checks.contains(check));
        one.checks = serde_json::from_value(chosen.collect())?;
    }
    for file in texts("secret-file") {
        let text = images::read(file).map_err(|error| Usage(format!("--secret-file {file}: {error}")))?;
        let found = secret::parse(&text).map_err(|error| Usage(format!("--secret-file {file}: {error}")))?;
        one.secrets.extend(found);
    }
    let files: Vec<&str> = texts("file").collect();
    let named = images::named(texts("image"), &files).map_err(|mistakes| Usage(mistakes.join("\n")))?;
    let specs = named.into_iter().map(|name| name.asked_for(one.clone()));
    Ok(specs.collect())
}

fn flag(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value)
}

fn whole_seconds(text: &str) -> Result<u64, String> {
    match config::duration(text)?.as_secs() {
        0 => Err("expected at least 1s".into()),
        seconds => Ok(seconds),
    }
}

fn pin(text: &str) -> Result<Pin, String> {
    if text == "owner" {
        return Ok(Pin::WithOwner);
    }
    whole_seconds(text).map(Pin::Seconds).map_err(|error| format!("{error}, or `owner`"))
}

fn time(text: &str) -> Result<Time, String> {
    if let Ok(wait) = config::duration(text) {
        return Ok(Time::now().after(wait));
    }
    serde_json::from_value(json!(text))
        .map_err(|_| "expected a duration such as 2h, or a time such as 2026-11-16T08:30:00Z".into())
}

#[cfg(test)]
mod tests;
