//! What the node has to spare, measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::config;
use crate::prepull::check::{self, Space, Verdict};
use crate::prepull::cri::Images;

/// How long the place of images is believed.
const PLACE_FOR: Duration = Duration::from_secs(60);

/// Over how long CPU use is measured.
const CPU_WINDOW: Duration = Duration::from_millis(500);

/// Measures.
#[derive(Debug)]
pub(super) struct Node {
    settings: config::Prepull,
    place: Mutex<Option<(String, Instant)>>,
    /// What could not be measured and has been said.
    said: Mutex<Option<String>>,
    floor_only: AtomicBool,
}

// === impl Node ===

impl Node {
    pub(super) fn new(settings: config::Prepull) -> Self {
        Self { settings, place: Mutex::default(), said: Mutex::default(), floor_only: AtomicBool::new(false) }
    }

    /// Why there is not enough disk space, if there is not. `missing`: what a pull has still to bring.
    pub(super) async fn disk(&self, images: &Images, missing: Option<u64>) -> Option<String> {
        let space = self.space(images).await?;
        let limits = check::DiskLimits {
            factor: self.settings.disk_factor,
            floor_percent: self.settings.disk_floor_percent,
            floor_bytes: self.settings.disk_floor_bytes,
        };
        self.short(check::disk(space.free, space.total, missing, &limits))
    }

    /// Says once that a runtime does not tell how large images are, so that the disk check knows the floor only.
    pub(super) fn sizes_are_unknown(&self) {
        if !self.floor_only.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "this runtime does not tell how large an image is before it is pulled: a pre-pull starts if there is more \
                 free space than the floor, whatever its size"
            );
        }
    }

    /// Why there is not enough CPU to spare, if there is not.
    pub(super) async fn cpu(&self) -> Option<String> {
        let before = check::measure::cpu_sample();
        tokio::time::sleep(CPU_WINDOW).await;
        match (before, check::measure::cpu_sample()) {
            (Ok(before), Ok(after)) => self.short(check::cpu(&before, &after, self.settings.max_cpu)),
            (Err(why), _) | (_, Err(why)) => self.unknown(&why),
        }
    }

    /// Why there is not enough memory to spare, if there is not.
    pub(super) async fn memory(&self) -> Option<String> {
        match check::measure::memory_now() {
            Ok(memory) => self.short(check::memory(&memory, self.settings.min_memory)),
            Err(why) => self.unknown(&why),
        }
    }

    /// Space where images are kept, if it can be told.
    pub(super) async fn space(&self, images: &Images) -> Option<Space> {
        let known = self.place.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let place = match known.filter(|(_, since)| since.elapsed() < PLACE_FOR) {
            Some((place, _)) => place,
            None => {
                let place = match images.mountpoint().await {
                    Ok(place) => place,
                    Err(error) => return self.unknown(error.message()),
                };
                *self.place.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some((place.clone(), Instant::now()));
                place
            }
        };
        match tokio::task::spawn_blocking(move || check::measure::space(&place)).await {
            Ok(Ok(space)) => Some(space),
            Ok(Err(why)) => self.unknown(&why),
            Err(_) => None,
        }
    }

    fn short(&self, verdict: Verdict) -> Option<String> {
        match verdict {
            Verdict::Enough => None,
            Verdict::Short { message } => Some(message),
            Verdict::Unknown { message } => self.unknown(&message),
        }
    }

    /// What cannot be measured holds nothing up, but is said, once.
    fn unknown<T>(&self, why: &str) -> Option<T> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.as_deref() != Some(why) {
            tracing::warn!(why, "cannot tell what the node has to spare; pre-pulls go on without that check");
            *said = Some(why.to_owned());
        }
        None
    }
}
