//! What goes into the queue and what comes out of it.

use std::collections::BTreeSet;

use crate::prepull::item::{How, Id, Reason, Trace};
use crate::prepull::spec::Wanted;

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Somebody wants images. All of them are taken, or none.
    Add(Vec<Wanted>),
    /// Somebody does not want an item any more.
    Remove(Id),
    /// Somebody wants it tried again now.
    Retry(Id),
    /// Nothing is to be started any more, and what runs is to stop; or all may go on.
    Pause(bool),
    /// An attempt got its turn, or lost it.
    Turn(Id, u64, bool),
    /// An attempt is about to bring a private image, which everybody sees until it is parked.
    Exposes(Id, u64, Trace),
    /// The same for somebody who only looks. It gets a number of its own.
    Looks(Trace),
    /// Nothing can be seen any more of what this attempt may have brought; 0 is one of a process before this one.
    Cleaned(Id, u64),
    /// An attempt has ended.
    Ended(Id, u64, Outcome),
    /// What is kept for these has to go, for want of space.
    GiveWay(Vec<Id>),
    /// What was parked is not there any more.
    Lost(Id),
    /// Time has passed.
    Tick,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The image is there.
    Done(Done),
    /// It failed.
    Failed {
        /// Why.
        reason: Reason,
        /// What the runtime said, and what to do.
        message: String,
        /// Whether trying again is in vain.
        permanent: bool,
    },
    /// It could not be tried now, which is nobody's failure.
    Later {
        /// Why.
        reason: Reason,
        /// The same in words.
        message: String,
    },
}

/// What a successful attempt has brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// Whether it was there already.
    pub present: bool,
    /// The runtime's id of the image.
    pub image_id: String,
    /// Its size.
    pub bytes: u64,
    /// Whether it was parked.
    pub parked: bool,
    /// Whether everybody may see it pinned.
    pub public: bool,
    /// More to say of it.
    pub note: String,
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Begin an attempt, known by its number.
    Start(Id, u64),
    /// End an attempt at once.
    Stop(Id, u64),
    /// Nothing is kept for this item any more.
    Release(Id, How),
}

/// What became of an event.
#[derive(Debug, Default, PartialEq)]
pub struct Step {
    /// What is to be done, in this order.
    pub actions: Vec<Action>,
    /// Items to be written down, or to be deleted if they are not there any more.
    pub changed: BTreeSet<Id>,
    /// What is to be told to who asked.
    pub answer: Answer,
}

/// What is told to who asked.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It was done, or there was nobody to tell.
    #[default]
    Done,
    /// The items asked for, in that order, and what became of them.
    Added(Vec<(Id, Added)>),
    /// It is noted under this number.
    Noted(Id),
    /// There is no such item.
    Unknown,
    /// There are too many.
    Full,
}

/// What became of a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Added {
    /// A new item.
    New,
    /// The owner had asked for it; the new wish replaces the old one.
    Updated,
    /// The owner had got it; it begins again.
    Restarted,
    /// Exactly this wish is known.
    Unchanged,
}
