//! What a command line asks for.

use std::collections::HashSet;
use std::time::Duration;

use clap::ArgMatches;
use serde_json::json;

use super::images;
use crate::admin::cli::Usage;
use crate::config;
use crate::prepull::secret;
use crate::prepull::spec::{Pin, Policy, Spec, Visibility};
use crate::prepull::time::Time;
use crate::pull::Class;

/// What is waited for is remembered at least so long, so that its outcome can be seen.
const LEAST_TTL: Duration = Duration::from_secs(60);

/// What the command line asks for.
pub(super) fn specs(matches: &ArgMatches) -> anyhow::Result<Vec<Spec>> {
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

/// A duration of a second or more.
pub(super) fn whole_seconds(text: &str) -> Result<u64, String> {
    match config::duration(text)?.as_secs() {
        0 => Err("expected at least 1s".into()),
        seconds => Ok(seconds),
    }
}

/// A duration, or `owner`.
pub(super) fn pin(text: &str) -> Result<Pin, String> {
    if text == "owner" {
        return Ok(Pin::WithOwner);
    }
    whole_seconds(text).map(Pin::Seconds).map_err(|error| format!("{error}, or `owner`"))
}

/// A time, or a duration from now.
pub(super) fn time(text: &str) -> Result<Time, String> {
    if let Ok(wait) = config::duration(text) {
        return Ok(Time::now().after(wait));
    }
    serde_json::from_value(json!(text))
        .map_err(|_| "expected a duration such as 2h, or a time such as 2026-11-16T08:30:00Z".into())
}

#[cfg(test)]
mod tests;
