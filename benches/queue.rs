//! What the queue costs: enqueueing in batches with one fsync each, listing, and opening what was written.

#![expect(clippy::unwrap_used, reason = "what cannot be set up cannot be measured")]

use std::hint::black_box;
use std::time::Duration;

use crisp::prepull::queue::{Event, Limits, Queue};
use crisp::prepull::spec::{Reader, Spec, Wanted};
use crisp::prepull::time::Time;
use crisp::prepull::view::{Listed, Summary};
use crisp::store::{Batch, Store};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

const ITEMS: usize = 10_000;
const BATCH: usize = 1000;

fn limits() -> Limits {
    Limits { slots: 2, items: ITEMS, finished: 1000, ttl: Duration::from_secs(3600) }
}

fn wanted(range: std::ops::Range<usize>) -> Vec<Wanted> {
    let reader = Reader::default();
    let read = |number| reader.read(Spec::of(format!("registry.example/team/app-{number}:v1.2.3")));
    range.map(|number| read(number).unwrap()).collect()
}

fn full() -> Queue {
    let mut queue = Queue::new(limits(), [], 1, Time(0));
    queue.step(Event::Add(wanted(0..ITEMS)), Time(0));
    queue
}

/// Items that are taken in and written down, a thousand to a commit.
fn enqueue(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut group = c.benchmark_group("queue");
    group.sample_size(10).throughput(Throughput::Elements(ITEMS as u64));
    group.bench_function("enqueue 10,000 in batches of 1,000, one fsync each", |b| {
        b.iter_batched(
            || {
                let dir = tempfile::tempdir().unwrap();
                let store = Store::open(dir.path()).unwrap();
                (dir, store)
            },
            |(dir, store)| {
                let mut queue = Queue::new(limits(), [], 1, Time(0));
                for start in (0..ITEMS).step_by(BATCH) {
                    let step = queue.step(Event::Add(wanted(start..start + BATCH)), Time(0));
                    let mut batch = Batch::new();
                    for id in &step.changed {
                        batch.put("items", *id, serde_json::to_vec(queue.get(*id).unwrap()).unwrap());
                    }
                    runtime.block_on(store.commit(batch)).unwrap();
                }
                (dir, store, queue)
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("list 10,000 as JSON", |b| {
        let queue = full();
        b.iter(|| {
            let items: Vec<_> = queue.items().map(Summary::of).collect();
            black_box(serde_json::to_vec(&Listed { paused: false, items }).unwrap())
        });
    });
    group.bench_function("an event in a queue of 10,000", |b| {
        let mut queue = full();
        b.iter(|| black_box(queue.step(Event::Tick, Time(1))));
    });
    group.bench_function("open a store with 10,000", |b| {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let mut batch = Batch::new();
        for item in full().items() {
            batch.put("items", item.id, serde_json::to_vec(item).unwrap());
        }
        runtime.block_on(store.commit(batch)).unwrap();
        runtime.block_on(store.close());
        drop(store);
        b.iter(|| {
            let store = Store::open(dir.path()).unwrap();
            let items = store.load("items").unwrap();
            let items = items.iter().map(|(_, data)| serde_json::from_slice(data).unwrap());
            let queue = Queue::new(limits(), items, 1, Time(0));
            runtime.block_on(store.close());
            assert_eq!(queue.items().len(), ITEMS);
        });
    });
    group.finish();
}

criterion_group!(benches, enqueue);
criterion_main!(benches);
