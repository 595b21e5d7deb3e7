//! A disk that loses power, fails and counts.
//!
//! It keeps what is durable apart from what was written since the last sync. When the power goes, any of the latter
//! may have reached the disk or not, in any order, sector by sector.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use redb::StorageBackend;

use super::random::Random;
use super::*;
use crate::store::engine::{Opener, Options};
use crate::store::format::Migration;

/// What a disk writes at once or not at all.
const SECTOR: usize = 512;

/// A disk that several stores can use, one after the other.
#[derive(Debug, Clone)]
pub(super) struct Disk(Arc<Mutex<State>>);

#[derive(Debug, Clone, Default)]
struct State {
    durable: Vec<u8>,
    /// What reads see: `durable` and all that was written since.
    live: Vec<u8>,
    unsynced: Vec<Write>,
    /// How many writes and syncs there are until the power goes, or only how many syncs.
    power: Option<u64>,
    at_sync: bool,
    /// How many further bytes fit.
    space: Option<usize>,
    fail_sync: bool,
    /// Says that it has synced, and has not.
    lies: bool,
    fail_reads: bool,
    syncs: u64,
    operations: u64,
}

#[derive(Debug, Clone)]
enum Write {
    At(usize, Vec<u8>),
    Length(usize),
}

/// The options of stores on such a disk: so little memory that larger batches spill before their commit.
pub(super) const OPTIONS: Options = Options { cache: 64 << 10, migrations: &[] };

// === impl Disk ===

impl Disk {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    pub(super) fn create(&self) -> Store {
        Store::start(Engine::create(PathBuf::from("disk"), self.opener(), OPTIONS).unwrap()).unwrap()
    }

    pub(super) fn open(&self) -> Result<Store, OpenError> {
        Store::start(self.engine(&[])?)
    }

    pub(super) fn engine(&self, migrations: &'static [Migration]) -> Result<Engine, OpenError> {
        Engine::open(PathBuf::from("disk"), self.opener(), Options { migrations, ..OPTIONS })
    }

    fn opener(&self) -> Opener {
        let disk = self.clone();
        Box::new(move |builder| builder.create_with_backend(disk.clone()))
    }

    /// What is on it.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.state(|state| state.live.clone())
    }

    /// A disk with this on it.
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(State { durable: bytes.clone(), live: bytes, ..State::default() })))
    }

    /// Another disk with the same on it.
    pub(super) fn copy(&self) -> Self {
        Self(Arc::new(Mutex::new(self.state(|state| state.clone()))))
    }

    pub(super) fn syncs(&self) -> u64 {
        self.state(|state| state.syncs)
    }

    /// How many writes and syncs there were.
    pub(super) fn operations(&self) -> u64 {
        self.state(|state| state.operations)
    }

    pub(super) fn len(&self) -> usize {
        self.state(|state| state.live.len())
    }

    pub(super) fn set_space(&self, space: Option<usize>) {
        self.state(|state| state.space = space);
    }

    pub(super) fn fail_syncs(&self, fail: bool) {
        self.state(|state| state.fail_sync = fail);
    }

    /// Lets it say from now on that it has synced when it has not.
    pub(super) fn lie(&self) {
        self.state(|state| state.lies = true);
    }

    pub(super) fn fail_reads(&self, fail: bool) {
        self.state(|state| state.fail_reads = fail);
    }

    /// Lets the power go after so many writes and syncs.
    pub(super) fn lose_power_after(&self, operations: u64) {
        self.state(|state| (state.power, state.at_sync) = (Some(operations), false));
    }

    /// Lets the power go at a sync, when all is written and the least is durable.
    pub(super) fn lose_power_at_sync(&self, syncs: u64) {
        self.state(|state| (state.power, state.at_sync) = (Some(syncs), true));
    }

    /// Whether the power went before [`Self::restore_power`].
    pub(super) fn is_dark(&self) -> bool {
        self.state(|state| state.power == Some(0))
    }

    /// Decides what of the unsynced writes has reached the disk, and turns it on again.
    pub(super) fn restore_power(&self, random: &mut Random) {
        self.state(|state| state.crash(random));
    }

    fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.0.lock().unwrap())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.state(|state| Ok(state.live.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.state(|state| {
            if state.power == Some(0) || state.fail_reads {
                return Err(io::Error::other("read error"));
            }
            let offset = offset as usize;
            let bytes = state.live.get(offset..offset + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.state(|state| {
            state.operation(false)?;
            state.write(Write::Length(len as usize));
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.state(|state| {
            state.operation(true)?;
            if state.fail_sync {
                return Err(io::Error::other("sync error"));
            }
            state.syncs += 1;
            if state.lies {
                return Ok(());
            }
            for write in std::mem::take(&mut state.unsynced) {
                write.apply(&mut state.durable);
            }
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.state(|state| {
            state.operation(false)?;
            if let Some(space) = &mut state.space {
                *space = space.checked_sub(data.len()).ok_or(io::ErrorKind::StorageFull)?;
            }
            state.write(Write::At(offset as usize, data.to_vec()));
            Ok(())
        })
    }
}

// === impl State ===

impl State {
    fn operation(&mut self, is_sync: bool) -> io::Result<()> {
        if let Some(power) = &mut self.power
            && (*power == 0 || is_sync || !self.at_sync)
        {
            *power = power.checked_sub(1).ok_or_else(|| io::Error::other("the power is off"))?;
            if *power == 0 {
                return Err(io::Error::other("the power goes off"));
            }
        }
        self.operations += 1;
        Ok(())
    }

    fn write(&mut self, write: Write) {
        write.apply(&mut self.live);
        self.unsynced.push(write);
    }

    fn crash(&mut self, random: &mut Random) {
        self.power = None;
        let unsynced = std::mem::take(&mut self.unsynced);
        let touched: Vec<_> = unsynced.iter().filter_map(Write::range).collect();
        // A file system changes lengths in order, and does not show what lies behind the end.
        let lengths = unsynced.iter().filter(|write| matches!(write, Write::Length(_))).count() as u64;
        let mut lengths = random.below(lengths + 1);
        let keep = [0, 30, 60, 90, 100, 100][random.below(6) as usize];
        let torn = random.below(2) == 0;
        let mut survivors = Vec::new();
        for write in unsynced {
            match write {
                Write::Length(len) if lengths > 0 => {
                    lengths -= 1;
                    // What was cut off stays so, whatever is written before or after.
                    survivors.retain_mut(|(at, bytes): &mut (usize, Vec<u8>)| {
                        bytes.truncate(len.saturating_sub(*at));
                        !bytes.is_empty()
                    });
                    self.durable.resize(len, 0);
                }
                Write::Length(_) => {}
                Write::At(at, bytes) => {
                    let pieces = if torn { SECTOR } else { bytes.len().max(1) };
                    for (n, piece) in bytes.chunks(pieces).enumerate() {
                        if random.below(100) < keep {
                            survivors.push((at + n * pieces, piece.to_vec()));
                        }
                    }
                }
            }
        }
        random.shuffle(&mut survivors);
        for (at, bytes) in survivors {
            let end = (at + bytes.len()).min(self.durable.len());
            if at < end {
                self.durable[at..end].copy_from_slice(&bytes[..end - at]);
            }
        }
        // Copying all of it 10,000 times would take most of the test's time.
        if self.live.len() == self.durable.len() && lengths == 0 {
            for (at, end) in touched {
                let end = end.min(self.live.len());
                self.live[at.min(end)..end].copy_from_slice(&self.durable[at.min(end)..end]);
            }
        }
        if self.live != self.durable {
            self.live.clone_from(&self.durable);
        }
    }
}

// === impl Write ===

impl Write {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Self::Length(len) => to.resize(*len, 0),
            Self::At(at, bytes) => {
                if to.len() < at + bytes.len() {
                    to.resize(at + bytes.len(), 0);
                }
                to[*at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    fn range(&self) -> Option<(usize, usize)> {
        match self {
            Self::At(at, bytes) => Some((*at, at + bytes.len())),
            Self::Length(_) => None,
        }
    }
}
