//! One image that one owner wants on this node: what is asked for, and what has come of it.

use serde::{Deserialize, Serialize};

use crate::prepull::spec::Spec;
use crate::prepull::time::Time;

/// Tells items apart, for as long as the store lives.
pub type Id = u64;

/// How many of its last transitions an item tells of.
pub const HISTORY: usize = 16;

/// The most that is kept of the runtime's words.
pub const MAX_MESSAGE: usize = 2000;

/// An item of the queue. Its JSON form never holds a credential.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    /// Its number.
    pub id: Id,
    /// The image under the name that pods use, normalised.
    pub image: String,
    /// The name it is pulled by, normalised: another one if overriders say so.
    pub source: String,
    /// What was asked for.
    pub spec: Spec,
    /// What has come of it.
    pub status: Status,
}

/// What has come of an item so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Where it stands.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// The same in words: what the runtime said, and what to do.
    pub message: String,
    /// Since when.
    pub since: Time,
    /// When it was asked for.
    pub asked: Time,
    /// Until when it waits, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// Attempts that have failed.
    #[serde(default)]
    pub failed_attempts: u32,
    /// When it came to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Time>,
    /// The runtime's id of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    /// What is kept on the node for the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// What an attempt may have left for all to see, if it was cut off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposed: Option<Trace>,
    /// The last transitions, the oldest first.
    #[serde(default)]
    pub history: Vec<Transition>,
}

/// A private image that everybody may see until it has been parked, or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The name it is pulled by, normalised.
    pub source: String,
    /// Since when. What is older was there before.
    pub since: Time,
}

/// Where an item stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It waits; the reason says for what.
    Waiting,
    /// It is being pulled.
    Pulling,
    /// The image is there.
    Succeeded,
    /// It was given up.
    Failed,
}

/// Why an item stands where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// Waits for its turn.
    Queued,
    /// Its time has not come.
    NotBefore,
    /// Waits after a failure.
    Backoff,
    /// There is not enough disk space.
    DiskPressure,
    /// The node has too little CPU to spare.
    CpuPressure,
    /// The node has too little memory to spare.
    MemoryPressure,
    /// The runtime does not answer.
    RuntimeAway,
    /// Handed over, and waits for more urgent pulls.
    InLine,
    /// Bytes come.
    Pulling,
    /// It was pulled.
    Pulled,
    /// It was there already.
    Present,
    /// The registry has no such image.
    NotFound,
    /// The registry does not let us.
    Unauthorized,
    /// The registry does not answer, or not now.
    RegistryUnavailable,
    /// An attempt took too long.
    Timeout,
    /// Its deadline has passed.
    Deadline,
    /// It can never work as asked for.
    Invalid,
    /// This runtime cannot do it.
    Unsupported,
    /// Something else that the runtime said.
    Error,
}

/// What is kept on the node for an item that succeeded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    /// In which way.
    pub how: How,
    /// Until when; otherwise as long as the item is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// Bytes of the image, as far as the runtime tells.
    pub bytes: u64,
}

/// In which way an image is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// Everybody sees it, and garbage collection leaves it alone.
    Pinned,
    /// Nobody sees it: its layers are there under a lease.
    Parked,
}

/// A step in an item's life.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transition {
    /// When.
    pub time: Time,
    /// Where it stood from then on.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// The same in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

// === impl Item ===

impl Item {
    /// A new item, not in the queue yet.
    pub fn new(id: Id, image: String, source: String, spec: Spec, now: Time) -> Self {
        let status = Status {
            state: State::Waiting,
            reason: Reason::Queued,
            message: String::new(),
            since: now,
            asked: now,
            until: None,
            failed_attempts: 0,
            finished: None,
            image_id: None,
            kept: None,
            exposed: None,
            history: Vec::new(),
        };
        Self { id, image, source, spec, status }
    }

    /// Whether it has come to its end.
    pub fn is_finished(&self) -> bool {
        matches!(self.status.state, State::Succeeded | State::Failed)
    }
}

// === impl Status ===

impl Status {
    /// Notes where the item stands from now on. Repetitions are not noted again.
    pub fn turn(&mut self, state: State, reason: Reason, message: impl Into<String>, now: Time) {
        let message = shortened(message.into());
        if (self.state, self.reason, &self.message) != (state, reason, &message) {
            (self.state, self.reason, self.since) = (state, reason, now);
            self.message.clone_from(&message);
            // Most items have one or two, and there are many items.
            self.history.reserve_exact(1);
            self.history.push(Transition { time: now, state, reason, message });
            let surplus = self.history.len().saturating_sub(HISTORY);
            self.history.drain(..surplus);
        }
    }
}

fn shortened(mut message: String) -> String {
    if message.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
        message.truncate(end);
        message.push_str("...");
    }
    message
}

// === impl Reason ===

impl Reason {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::Queued,
        Self::NotBefore,
        Self::Backoff,
        Self::DiskPressure,
        Self::CpuPressure,
        Self::MemoryPressure,
        Self::RuntimeAway,
        Self::InLine,
        Self::Pulling,
        Self::Pulled,
        Self::Present,
        Self::NotFound,
        Self::Unauthorized,
        Self::RegistryUnavailable,
        Self::Timeout,
        Self::Deadline,
        Self::Invalid,
        Self::Unsupported,
        Self::Error,
    ];

    /// The word for it in metrics, JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "Queued",
            Self::NotBefore => "NotBefore",
            Self::Backoff => "Backoff",
            Self::DiskPressure => "DiskPressure",
            Self::CpuPressure => "CpuPressure",
            Self::MemoryPressure => "MemoryPressure",
            Self::RuntimeAway => "RuntimeAway",
            Self::InLine => "InLine",
            Self::Pulling => "Pulling",
            Self::Pulled => "Pulled",
            Self::Present => "Present",
            Self::NotFound => "NotFound",
            Self::Unauthorized => "Unauthorized",
            Self::RegistryUnavailable => "RegistryUnavailable",
            Self::Timeout => "Timeout",
            Self::Deadline => "Deadline",
            Self::Invalid => "Invalid",
            Self::Unsupported => "Unsupported",
            Self::Error => "Error",
        }
    }
}

// === impl State ===

impl State {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Waiting, Self::Pulling, Self::Succeeded, Self::Failed];

    /// The word for it in metrics, JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Pulling => "pulling",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}

// === impl How ===

impl How {
    /// The word for it in metrics, JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::Parked => "parked",
        }
    }
}
