//! Callers at work, and what they measure.

use super::super::processes::{all_cpu_us, cpu_us};
use super::super::social::Social;
use super::target::Target;
use super::workload::{Call, Drawing, Workload};
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Latencies are told apart to three digits, ...
const DIGITS: u8 = 3;

/// ... up to ten minutes, beyond which no call goes on, microseconds.
const LONGEST_US: u64 = 600_000_000;

/// Whoever fails at once does not fail all the time.
const AFTER_FAILURE: Duration = Duration::from_millis(20);

const WARM_UP: u8 = 0;
const MEASURED: u8 = 1;
const OVER: u8 = 2;

/// How callers call.
#[derive(Clone, Debug)]
pub struct Load {
    pub workload: Workload,
    pub callers: u32,
    /// Characters of a post.
    pub characters: usize,
    pub seed: u64,
}

/// What a point of the race came to.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Calls that were answered in the time that counts.
    pub calls: u64,
    pub seconds: f64,
    pub calls_s: f64,
    /// Of several rounds the least and the most.
    pub calls_s_between: [f64; 2],
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub longest_us: f64,
    /// Processor time of all servers of the store for a call, microseconds.
    pub store_cpu_us: f64,
    /// That of the one of them that used most: what binds where each has a machine of its own.
    pub busiest_server_cpu_us: f64,
    /// That of the application, if there is one apart from the callers.
    pub application_cpu_us: Option<f64>,
    /// That of the callers' process.
    pub callers_cpu_us: f64,
    /// Calls that failed, warm-up included.
    pub failed: u64,
    /// Why the first of them did.
    pub first_failure: Option<String>,
    /// Tries that met others and were made again; none where nothing is counted. Reads that were ordered since replicas differed are not among them.
    pub aborted: Option<u64>,
    /// Posts that a timeline showed on average, warm-up included; none if there were no timelines.
    pub posts_shown: Option<f64>,
    /// What other programs than these used of all processors.
    pub others_share: f64,
}

impl Measured {
    /// Tries in vain over all tries, where a call counts as one.
    #[must_use]
    pub fn aborted_share(&self) -> Option<f64> {
        self.aborted.map(|aborted| aborted as f64 / (self.calls + aborted).max(1) as f64)
    }
}

/// What callers share.
#[derive(Debug, Default)]
pub struct Shared {
    phase: AtomicU8,
    /// Calls that were answered, of all phases.
    pub answered: AtomicU64,
    /// Posts that were acknowledged, of all phases.
    pub posts: AtomicU64,
    /// Follows that were.
    pub follows: AtomicU64,
    timelines: AtomicU64,
    /// Posts that they showed.
    shown: AtomicU64,
    failed: AtomicU64,
    first_failure: Mutex<Option<String>>,
}

/// A histogram with room for all latencies. One that begins small grows only where values beyond its range are errors, and not where they are
/// clamped.
fn latencies() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, LONGEST_US, DIGITS)?)
}

impl Shared {
    fn fail(&self, what: String) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let mut first = self.first_failure.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(what);
    }

    /// Ends the callers' work.
    pub fn stop(&self) {
        self.phase.store(OVER, Ordering::Relaxed);
    }

    /// How many calls failed, and why the first of them did.
    #[must_use]
    pub fn failures(&self) -> (u64, Option<String>) {
        let first = self.first_failure.lock().unwrap_or_else(PoisonError::into_inner);
        (self.failed.load(Ordering::Relaxed), first.clone())
    }

    fn acknowledge(&self, call: Call, shown: usize) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.shown.fetch_add(shown as u64, Ordering::Relaxed);
        let of_its_kind = match call {
            Call::Post { .. } => &self.posts,
            Call::Follow { .. } => &self.follows,
            Call::Timeline { .. } => &self.timelines,
        };
        of_its_kind.fetch_add(1, Ordering::Relaxed);
    }

    fn posts_shown(&self) -> Option<f64> {
        let timelines = self.timelines.load(Ordering::Relaxed);
        let shown = self.shown.load(Ordering::Relaxed);
        (timelines > 0).then(|| shown as f64 / timelines as f64)
    }
}

/// Callers that are at work.
pub struct Working {
    pub shared: Arc<Shared>,
    callers: Vec<tokio::task::JoinHandle<Result<Histogram<u64>>>>,
}

impl Drop for Working {
    fn drop(&mut self) {
        self.shared.stop();
        self.callers.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Working {
    /// Sets callers to work.
    #[must_use]
    pub fn start(target: &Target, social: &Arc<Social>, load: &Load) -> Working {
        let shared = Arc::new(Shared::default());
        let caller = |index: u32| {
            let seed = load.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(index));
            let among = Arc::clone(&target.among);
            let drawing = Drawing::new(load.workload, Arc::clone(social), among, seed);
            let (shared, caller) = (Arc::clone(&shared), Arc::clone(&target.caller));
            let characters = load.characters;
            tokio::spawn(async move {
                let worked = work(&caller, drawing, &shared, characters).await;
                if worked.is_err() {
                    shared.stop();
                }
                worked
            })
        };
        let callers = (0..load.callers).map(caller).collect();
        Working { shared, callers }
    }

    /// Waits until callers have ended what they were at; all latencies that count.
    ///
    /// # Errors
    /// When one of them could not go on.
    pub async fn end(mut self) -> Result<Histogram<u64>> {
        self.shared.stop();
        let mut all = latencies()?;
        for caller in std::mem::take(&mut self.callers) {
            all.add(caller.await.context("a caller panicked")??)?;
        }
        Ok(all)
    }
}

async fn work(
    caller: &super::Caller,
    mut drawing: Drawing,
    shared: &Shared,
    characters: usize,
) -> Result<Histogram<u64>> {
    let mut latencies = latencies()?;
    loop {
        let began_in = shared.phase.load(Ordering::Relaxed);
        if began_in == OVER {
            return Ok(latencies);
        }
        let (call, since) = (drawing.draw()?, Instant::now());
        match caller.call(call, &mut drawing.rng, characters).await {
            Ok(shown) => shared.acknowledge(call, shown),
            Err(error) => {
                shared.fail(format!("{call:?}: {error:#}"));
                tokio::time::sleep(AFTER_FAILURE).await;
                continue;
            }
        }
        // Also those that began before: in a closed loop as many are under way at the end.
        if shared.phase.load(Ordering::Relaxed) == MEASURED {
            latencies.saturating_record(u64::try_from(since.elapsed().as_micros())?);
        }
    }
}

/// Processor time of the store, of the application, of this process, and of all that there is, so far.
fn used(store: &[u32], target: &Target) -> Result<[u64; 4]> {
    let application: Vec<u32> = target.application().into_iter().collect();
    let own = cpu_us(&[std::process::id()])?;
    Ok([cpu_us(store)?, cpu_us(&application)?, own, all_cpu_us()?])
}

/// Puts a load on a target and measures it, after a warm-up. `store` are the processes of the store.
///
/// # Errors
/// When a process ended, or callers could not go on. Calls that fail are counted.
pub async fn measure(
    target: &Target,
    social: &Arc<Social>,
    load: &Load,
    store: &[u32],
    (warm_up, time): (Duration, Duration),
) -> Result<Measured> {
    let working = Working::start(target, social, load);
    let shared = Arc::clone(&working.shared);
    tokio::time::sleep(warm_up).await;
    let (aborted_before, used_before) = (target.aborted().await?, used(store, target)?);
    let of_each = || store.iter().map(|one| cpu_us(&[*one])).collect::<Result<Vec<u64>>>();
    let each_before = of_each()?;
    shared.phase.compare_exchange(WARM_UP, MEASURED, Ordering::Relaxed, Ordering::Relaxed).ok();
    let since = Instant::now();
    tokio::time::sleep(time).await;
    shared.stop();
    let (took, used_after) = (since.elapsed(), used(store, target)?);
    let spent = of_each()?.into_iter().zip(each_before);
    let busiest = spent.map(|(after, before)| after.saturating_sub(before)).max().unwrap_or(0);
    let aborted = target.aborted().await?.zip(aborted_before);
    let latencies = working.end().await?;
    let (failed, first_failure) = shared.failures();
    let calls = latencies.len();
    let calls_s = calls as f64 / took.as_secs_f64();
    let used = |index: usize| used_after[index].saturating_sub(used_before[index]) as f64;
    let each = |index: usize| used(index) / calls.max(1) as f64;
    let others_us = used(3) - used(0) - used(1) - used(2);
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    Ok(Measured {
        calls,
        seconds: took.as_secs_f64(),
        calls_s,
        calls_s_between: [calls_s; 2],
        mean_us: latencies.mean(),
        p50_us: latencies.value_at_quantile(0.5) as f64,
        p99_us: latencies.value_at_quantile(0.99) as f64,
        longest_us: latencies.max() as f64,
        store_cpu_us: each(0),
        busiest_server_cpu_us: busiest as f64 / calls.max(1) as f64,
        application_cpu_us: target.application().map(|_| each(1)),
        callers_cpu_us: each(2),
        failed,
        first_failure,
        aborted: aborted.map(|(after, before)| after.0.saturating_sub(before.0)),
        posts_shown: shared.posts_shown(),
        others_share: (others_us / 1e6 / took.as_secs_f64() / processors).max(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_any_length_are_kept() {
        let mut kept = latencies().unwrap();
        for value_us in [40, 5_800, 30_000_000] {
            kept.saturating_record(value_us);
        }
        let at = |quantile| kept.value_at_quantile(quantile) as f64;
        for (quantile, value_us) in [(0.1, 40.0), (0.5, 5_800.0), (1.0, 30_000_000.0)] {
            let error = (at(quantile) - value_us).abs() / value_us;
            assert!(error < 0.002, "{value_us} is told as {}", at(quantile));
        }
    }
}
