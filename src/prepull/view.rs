//! Items in short, for lists.

use serde::{Deserialize, Serialize};

use crate::prepull::item::{Id, Item, Kept, Reason, State};
use crate::prepull::time::Time;
use crate::pull::Class;

/// A list of items.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed<S = Summary> {
    /// Whether nothing is started.
    pub paused: bool,
    /// The oldest first.
    pub items: Vec<S>,
}

/// An item in short.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Its number.
    pub id: Id,
    /// The image under the name that pods use.
    pub image: String,
    /// The name it is pulled by.
    pub source: String,
    /// For whom.
    pub owner: String,
    /// How urgent it is.
    pub class: Class,
    /// The higher, the earlier within its class.
    pub priority: i32,
    /// Where it stands.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// The same in words.
    pub message: String,
    /// Since when.
    pub since: Time,
    /// When it was asked for.
    pub asked: Time,
    /// Until when it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// Attempts that have failed.
    pub failed_attempts: u32,
    /// What is kept on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
}

impl Summary {
    /// An item in short.
    pub fn of(item: &Item) -> Self {
        let status = &item.status;
        Self {
            id: item.id,
            image: item.image.clone(),
            source: item.source.clone(),
            owner: item.spec.owner.clone(),
            class: item.spec.class,
            priority: item.spec.priority,
            state: status.state,
            reason: status.reason,
            message: status.message.clone(),
            since: status.since,
            asked: status.asked,
            until: status.until,
            failed_attempts: status.failed_attempts,
            kept: status.kept.clone(),
        }
    }
}
