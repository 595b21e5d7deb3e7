//! What happened to a container before it was made again.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Difference;
use super::difference::{cut, printable};

/// Why a container was made again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Cause {
    /// The pod asks for something else than it did.
    SpecChanged,
    /// The kubelet's hash changed, and nothing else as far as is known.
    HashOnly,
    /// All containers of the pod were made again, with its sandbox.
    SandboxRecreated,
    /// It used more memory than it may.
    OomKilled,
    /// The kubelet ended it: a probe failed, or somebody asked for it.
    Stopped,
    /// It ended by itself, with an error.
    Crashed {
        /// Its exit code.
        exit_code: i32,
        /// The runtime's word for it.
        reason: String,
    },
    /// It ended by itself, and well.
    Completed,
    /// The container before it is gone, or did not end.
    Unknown,
}

/// The container that was there before.
#[derive(Debug, Clone, Default)]
pub struct Previous {
    /// The id of its sandbox.
    pub sandbox: String,
    /// The kubelet's hash of its spec: annotation `io.kubernetes.container.hash`.
    pub hash: Option<String>,
    /// The user's image, from its record.
    pub image: Option<String>,
    /// What the runtime calls its image: IDs, names with digests.
    pub image_ids: Vec<String>,
    /// How it ended.
    pub exit: Option<Exit>,
    /// The kubelet has asked to stop it.
    pub stopped: bool,
}

/// How a container ended.
#[derive(Debug, Clone, Default)]
pub struct Exit {
    /// Its exit code.
    pub code: i32,
    /// The runtime's word for it, for example `Error` or `OOMKilled`.
    pub reason: String,
}

/// The container that was made now.
#[derive(Debug, Clone, Default)]
pub struct Created {
    /// The id of its sandbox.
    pub sandbox: String,
    /// The kubelet's hash of its spec.
    pub hash: Option<String>,
    /// The user's image.
    pub image: Option<String>,
    /// The image as the kubelet names it to the runtime: its ID, or a name with a digest.
    pub image_id: String,
    /// How often the kubelet made it before.
    pub attempt: u32,
    /// What is different in its record; `None` if the two could not be compared.
    pub differences: Option<Vec<Difference>>,
}

/// Exit codes above this are signals.
const SIGNALLED: i32 = 128;
const MAX_REASON: usize = 120;
/// Differences that a sentence lists.
const MAX_LISTED: usize = 5;

/// Why a container was made; `None` if it is the first one.
pub fn classify(previous: Option<&Previous>, created: &Created) -> Option<Cause> {
    let Some(previous) = previous else {
        return (created.attempt > 0).then_some(Cause::Unknown);
    };
    // A new sandbox takes every container with it, whatever else was changed meanwhile.
    if previous.sandbox != created.sandbox {
        return Some(Cause::SandboxRecreated);
    }
    let different = created.differences.as_ref().map(|differences| !differences.is_empty());
    let changed = |old: &Option<String>, new: &Option<String>| matches!((old, new), (Some(old), Some(new)) if old != new);
    if changed(&previous.image, &created.image) {
        return Some(Cause::SpecChanged);
    }
    if changed(&previous.hash, &created.hash) {
        // Of a container without a record at least the image is known, and that is what can change in a pod.
        let same = different.map_or_else(|| is_same_image(&previous.image_ids, &created.image_id), |it| !it);
        return Some(if same { Cause::HashOnly } else { Cause::SpecChanged });
    }
    if let Some(exit) = &previous.exit
        && exit.reason == "OOMKilled"
    {
        return Some(Cause::OomKilled);
    }
    if previous.stopped {
        // The kubelet ends a container for its spec only if the hash changed, or for a resize that asks for a restart.
        let resized = created.differences.iter().flatten().any(|difference| difference.is_below("resources"));
        return Some(if resized { Cause::SpecChanged } else { Cause::Stopped });
    }
    Some(match &previous.exit {
        None => Cause::Unknown,
        Some(Exit { code: 0, .. }) => Cause::Completed,
        Some(Exit { code, reason }) => {
            Cause::Crashed { exit_code: *code, reason: cut(&printable(reason), MAX_REASON) }
        }
    })
}

/// Whether one of the runtime's names for an image is this one.
fn is_same_image(known: &[String], image: &str) -> bool {
    // containerd writes an ID with the algorithm, CRI-O without.
    let bare = |id: &str| id.strip_prefix("sha256:").unwrap_or(id).to_owned();
    !image.is_empty() && known.iter().any(|id| bare(id) == bare(image))
}

/// The cause in words, with the differences that were found.
pub fn sentence(cause: &Cause, differences: &[Difference]) -> String {
    let mut text = cause.to_string();
    if differences.is_empty() {
        if *cause == Cause::SpecChanged {
            text.push_str("; in what is not known, because there is no record to compare with");
        }
        return text;
    }
    text.push_str(if *cause == Cause::SpecChanged { ": " } else { "; since then changed: " });
    for (n, difference) in differences.iter().take(MAX_LISTED).enumerate() {
        if n > 0 {
            text.push_str("; ");
        }
        text.push_str(&difference.to_string());
    }
    match differences.len().saturating_sub(MAX_LISTED) {
        0 => {}
        more => text.push_str(&format!("; and {more} more")),
    }
    text
}

// === impl Cause ===

impl Cause {
    /// The name used in metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::SpecChanged => "spec-changed",
            Self::HashOnly => "hash-only",
            Self::SandboxRecreated => "sandbox-recreated",
            Self::OomKilled => "oom-killed",
            Self::Stopped => "stopped",
            Self::Crashed { .. } => "crashed",
            Self::Completed => "completed",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SpecChanged => f.write_str("its spec changed"),
            Self::HashOnly => f.write_str(
                "only the kubelet's hash of its spec changed, as when the kubelet was upgraded; as far as is known the spec is the same",
            ),
            Self::SandboxRecreated => f.write_str("the pod's sandbox was made again, and all containers with it"),
            Self::OomKilled => f.write_str("it ran out of memory and was killed"),
            Self::Stopped => f.write_str("the kubelet stopped it: a probe failed, or somebody asked for it"),
            Self::Crashed { exit_code, reason } => {
                write!(f, "it ended with exit code {exit_code}")?;
                match (signal(*exit_code), reason.as_str()) {
                    (Some(signal), "" | "Error") => write!(f, " ({signal})"),
                    (Some(signal), reason) => write!(f, " ({signal}, {reason})"),
                    (None, "") => Ok(()),
                    (None, reason) => write!(f, " ({reason})"),
                }
            }
            Self::Completed => f.write_str("it ended by itself with exit code 0"),
            Self::Unknown => f.write_str("nothing is known of the container before it"),
        }
    }
}

/// The signal by which a shell says that a process was ended, by Linux's numbers.
fn signal(exit_code: i32) -> Option<&'static str> {
    Some(match exit_code.checked_sub(SIGNALLED)? {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
