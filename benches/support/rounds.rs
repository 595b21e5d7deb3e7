//! One run: start everything, warm up, measure in interleaved rounds, watch memory.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use tokio::time::sleep;

use crate::support::figures::{CALLERS, Cell, Measured, Run};
use crate::support::load::Slot;
use crate::support::messages::Call;
use crate::support::options::Options;
use crate::support::target::{Bench, Target};

/// How long nobody reads while 64 large replies are under way, and how long a process rests before it is looked at.
const STALL: Duration = Duration::from_millis(300);
const MOST_CALLERS: usize = CALLERS[CALLERS.len() - 1];

/// Runs once with new processes.
pub(crate) async fn run(options: &Options) -> anyhow::Result<Run> {
    let bench = Bench::start(options).await?;
    let calls = &bench.calls;
    let mut idle = Vec::new();
    for target in &bench.targets {
        target
            .client
            .verify(&calls[0])
            .await
            .with_context(|| format!("the first call to {}", target.name))?;
        sleep(STALL).await;
        idle.push(target.memory("VmRSS:")?);
    }
    let mut measured: Vec<Measured> = bench
        .targets
        .iter()
        .map(|target| Measured {
            name: target.name,
            cells: (0..calls.len() * CALLERS.len()).map(|_| Cell::default()).collect(),
            memory: None,
            other_errors: 0,
        })
        .collect();
    for (target, measured) in bench.targets.iter().zip(&mut measured) {
        measured.other_errors += warm_up(target, calls, options).await?;
    }

    let mut order: Vec<usize> = (0..bench.targets.len()).collect();
    let mut random = Random::new();
    for _ in 0..options.rounds {
        let cells = calls.iter().flat_map(|call| CALLERS.map(|callers| (call, callers)));
        let wanted = |call: &Call| options.only.as_deref().is_none_or(|only| only == call.name);
        for (cell, (call, callers)) in cells.enumerate().filter(|(_, (call, _))| wanted(call)) {
            random.shuffle(&mut order);
            for &which in &order {
                let target = &bench.targets[which];
                let before = target.cpu()?;
                let slot = measure(target, call, callers, options.slot).await?;
                let cpu = target.cpu()?.zip(before).map(|(after, before)| after - before);
                measured[which].cells[cell].add(&slot, cpu);
            }
        }
    }

    for ((target, measured), idle) in bench.targets.iter().zip(&mut measured).zip(idle) {
        target.client.stall(&calls[2], MOST_CALLERS, STALL).await.with_context(|| target.name.to_owned())?;
        sleep(STALL).await;
        measured.memory = match (idle, target.memory("VmHWM:")?, target.memory("VmRSS:")?) {
            (Some(idle), Some(most), Some(after)) => Some([idle, most, after]),
            _ => None,
        };
    }
    Ok(Run { targets: measured })
}

/// Checks every reply byte by byte once, then makes every path warm.
async fn warm_up(target: &Target, calls: &[Call], options: &Options) -> anyhow::Result<u64> {
    let mut errors = 0;
    for call in calls {
        target.client.verify(call).await.with_context(|| target.name.to_owned())?;
        for callers in CALLERS {
            errors += measure(target, call, callers, options.slot / 2).await?.errors;
        }
    }
    Ok(errors)
}

async fn measure(target: &Target, call: &Call, callers: usize, length: Duration) -> anyhow::Result<Slot> {
    let slot = target.caller.slot(call, callers, length).await.with_context(|| target.name.to_owned())?;
    if let Some(error) = &slot.first_error {
        eprintln!("{} errors of {} in {}: {error}", slot.errors, target.name, call.name);
    }
    Ok(slot)
}

/// Enough randomness to mix an order: xorshift.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::from(now.subsec_nanos()) | 1)
    }

    fn shuffle(&mut self, values: &mut [usize]) {
        for last in (1..values.len()).rev() {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            values.swap(last, (self.0 % (last as u64 + 1)) as usize);
        }
    }
}
