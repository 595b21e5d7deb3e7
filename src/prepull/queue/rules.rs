//! What happens to a single item.

use std::time::Duration;

use super::{Done, kept_until};
use crate::prepull::item::{How, Id, Item, Kept, Reason, State};
use crate::prepull::spec::Pin;
use crate::prepull::time::Time;

/// How many items with the same image are under way at once. Each waits for the one pull.
pub(super) const TOGETHER: usize = 64;

/// How long after a failure it is tried again: this, then twice as long, and so on up to the longest.
const FIRST_BACKOFF: Duration = Duration::from_secs(2);
pub(super) const LONGEST_BACKOFF: Duration = Duration::from_secs(300);

/// How often it is tried again when the node has not enough to spare, or the runtime is away.
const PUT_OFF: Duration = Duration::from_secs(15);

/// Clocks are set back a little all the time; by more than this, and something was wrong with them.
pub(super) const CLOCK_STEP: Duration = Duration::from_secs(60);

/// A wait may be that much longer than planned, so that not all try again at once.
const JITTER_PERCENT: u32 = 25;

/// Lets an item wait for its time, or for its turn.
pub(super) fn begin(item: &mut Item, now: Time) {
    if item.is_finished() {
        return;
    }
    match item.spec.not_before.filter(|time| *time > now) {
        Some(time) => {
            item.status.until = Some(time);
            item.status.turn(State::Waiting, Reason::NotBefore, "", now);
        }
        None if item.status.reason == Reason::NotBefore || item.status.history.is_empty() => {
            item.status.until = None;
            item.status.turn(State::Waiting, Reason::Queued, "asked for", now);
        }
        None => {}
    }
}

/// Begins again from the start. What is kept stays.
pub(super) fn restart(item: &mut Item, why: &str, now: Time) {
    let status = &mut item.status;
    (status.failed_attempts, status.finished, status.until, status.asked) = (0, None, None, now);
    status.turn(State::Waiting, Reason::Queued, why, now);
    begin(item, now);
}

pub(super) fn succeed(item: &mut Item, done: Done, now: Time) {
    let Done { present, image_id, bytes, parked, public, note } = done;
    let reason = if present { Reason::Present } else { Reason::Pulled };
    let pinned = public && item.spec.pin != Pin::None;
    let how = if parked { Some(How::Parked) } else { pinned.then_some(How::Pinned) };
    let status = &mut item.status;
    status.kept = how.map(|how| Kept { how, until: kept_until(item.spec.pin, now), bytes });
    (status.image_id, status.finished, status.until) = (Some(image_id), Some(now), None);
    // Its secrets stay as long as the item: tried again without them it would be refused, and taken for public.
    status.turn(State::Succeeded, reason, note, now);
}

pub(super) fn fail(item: &mut Item, reason: Reason, message: &str, permanent: bool, now: Time) {
    let status = &mut item.status;
    status.failed_attempts = status.failed_attempts.saturating_add(1);
    let (attempt, attempts) = (status.failed_attempts, item.spec.retries.saturating_add(1));
    if permanent || attempt >= attempts {
        (status.finished, status.until) = (Some(now), None);
        return status.turn(State::Failed, reason, message, now);
    }
    let wait = backoff(item.id, attempt);
    status.until = Some(now.after(wait));
    let words = format!("attempt {attempt} of {attempts}: {}: {message}", reason.name());
    status.turn(State::Waiting, Reason::Backoff, words, now);
}

pub(super) fn put_off(item: &mut Item, reason: Reason, message: String, now: Time) {
    item.status.until = Some(now.after(jittered(PUT_OFF, item.id, now.0)));
    item.status.turn(State::Waiting, reason, message, now);
}

pub(super) fn miss_deadline(item: &mut Item, now: Time) {
    let status = &mut item.status;
    let last = match status.state {
        State::Waiting if !status.message.is_empty() => {
            format!("; it was waiting: {}: {}", status.reason.name(), status.message)
        }
        _ => format!("; it was {}", status.reason.name()),
    };
    (status.finished, status.until) = (Some(now), None);
    status.turn(State::Failed, Reason::Deadline, format!("its deadline has passed{last}"), now);
}

/// Nothing that crisp itself has noted may lie ahead, or wait for a clock that was wrong when it was noted. What the
/// owner has said stays.
pub(super) fn clock_went_back(item: &mut Item, by: Duration, now: Time) {
    let back = |time: Time| Time(time.0.saturating_sub(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)));
    let status = &mut item.status;
    status.asked = back(status.asked).min(now);
    status.finished = status.finished.map(|time| back(time).min(now));
    if let Some(kept) = &mut status.kept {
        kept.until = kept.until.map(back);
    }
    if status.reason != Reason::NotBefore {
        status.until = status.until.map(|time| back(time).min(now.after(LONGEST_BACKOFF * 2)));
    }
}

/// How long an item waits after its n-th failed attempt.
fn backoff(id: Id, attempt: u32) -> Duration {
    let wait = FIRST_BACKOFF.saturating_mul(1 << (attempt - 1).min(16)).min(LONGEST_BACKOFF);
    jittered(wait, id, attempt.into())
}

/// A little longer, by an amount that looks random and is always the same for the same item and salt.
fn jittered(wait: Duration, id: Id, salt: u64) -> Duration {
    // The finaliser of splitmix64.
    let mut mixed = id.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(salt);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let percent = u32::try_from((mixed ^ (mixed >> 31)) % u64::from(JITTER_PERCENT + 1)).unwrap_or(0);
    wait + wait * percent / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_are_bounded() {
        for id in 0..100 {
            let waits: Vec<_> = (1..40).map(|attempt| backoff(id, attempt)).collect();
            assert!(waits[0] >= FIRST_BACKOFF && waits[0] <= FIRST_BACKOFF * 2);
            assert!(waits.iter().all(|wait| *wait <= LONGEST_BACKOFF * 2));
            assert!(waits[3] > waits[0] && waits[38] >= LONGEST_BACKOFF);
        }
        let different: std::collections::BTreeSet<_> = (0..100).map(|id| backoff(id, 5)).collect();
        assert!(different.len() > 10);
    }
}
