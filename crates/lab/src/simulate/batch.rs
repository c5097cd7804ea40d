//! Many seeds on several threads; the results come in the order of the seeds.

use perdura_simulator::{SimulationOptions, SimulationReport, Violation, simulate};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

/// Runs `count` of what `options` gives for 0, 1, ... on `jobs` threads, and tells `seen` of each.
pub fn run(
    count: u64,
    jobs: u64,
    options: impl Fn(u64) -> SimulationOptions + Sync,
    mut seen: impl FnMut(Result<SimulationReport, Box<Violation>>),
) {
    let next = AtomicU64::new(0);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs.min(count) {
            let sender = sender.clone();
            scope.spawn(|| {
                let sender = sender;
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count || sender.send((index, simulate(&options(index)))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let (mut waiting, mut expected) = (BTreeMap::new(), 0);
        for (index, result) in receiver {
            waiting.insert(index, result);
            while let Some(result) = waiting.remove(&expected) {
                seen(result);
                expected += 1;
            }
        }
    });
}
