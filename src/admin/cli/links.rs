//! `crisp links`

use std::io::Write;
use std::path::Path;

use clap::Command;

use crate::admin::cli::asking;
use crate::admin::cli::form::{Form, output};
use crate::admin::cli::table::{self, seconds, shown, words};
use crate::admin::client;
use crate::admin::links::{LinkedEnv, LinkedPod, LinksReport};

const HEADER: [&str; 6] = ["NAMESPACE", "POD", "STATE", "WAITS FOR", "DEPENDS ON", "VARIABLES OF"];

/// The command.
pub(super) fn command() -> Command {
    asking("links")
        .about("Show the pods of this node that use or wait for Services they name")
        .arg(output("list"))
}

/// Asks the crisp at this admin socket and writes who uses and who waits.
pub async fn run(socket: &Path, form: Form, out: &mut impl Write) -> anyhow::Result<()> {
    let report: LinksReport = client::get(socket, "/v1/links").await?;
    form.write(out, &report, text)
}

fn text(report: &LinksReport) -> String {
    let mut text = match report.pods.is_empty() {
        true => "No pod of this node uses or waits for links.\n".to_owned(),
        false => table::of(HEADER, report.pods.iter().map(row)),
    };
    if let Some(problem) = &report.problem {
        text += &format!("Pods may be missing here: {}\n", words(problem, 500));
    }
    text
}

fn row(pod: &LinkedPod) -> [String; HEADER.len()] {
    let state = match pod.waited_seconds {
        Some(waited) => format!("{} for {}", shown(&pod.state), seconds(waited as f64)),
        None => shown(&pod.state),
    };
    [
        shown(&pod.namespace),
        shown(&pod.pod),
        state,
        list(&pod.missing),
        list(&pod.dependencies),
        list(&pod.env_from.iter().map(variables).collect::<Vec<_>>()),
    ]
}

fn variables(LinkedEnv { container, service, prefix }: &LinkedEnv) -> String {
    if prefix.is_empty() {
        format!("{service} ({container})")
    } else {
        format!("{service} ({container}: {prefix})")
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "-".into() } else { words(&names.join(", "), 200) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_who_waits_and_who_uses() {
        let waits = LinkedPod {
            namespace: "shop".into(),
            pod: "web-1".into(),
            state: "waiting".into(),
            missing: vec!["redis".into(), "queue".into()],
            waited_seconds: Some(42),
            ..LinkedPod::default()
        };
        let env = |prefix: &str| LinkedEnv {
            container: "app".into(),
            service: "redis".into(),
            prefix: prefix.into(),
        };
        let uses = LinkedPod {
            namespace: "shop".into(),
            pod: "\u{1b}[2J".into(),
            state: "started".into(),
            dependencies: vec!["redis".into()],
            env_from: vec![env(""), env("MY_")],
            ..LinkedPod::default()
        };
        let text = text(&LinksReport { pods: vec![waits, uses], problem: Some("x\ny".into()) });
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].contains("web-1") && lines[1].contains("waiting for 42 seconds"), "{text}");
        assert!(lines[1].contains("redis, queue"), "{text}");
        assert!(lines[2].contains("?[2J") && lines[2].ends_with("redis (app), redis (app: MY_)"), "{text}");
        assert_eq!(lines[3], "Pods may be missing here: x y");
    }
}
