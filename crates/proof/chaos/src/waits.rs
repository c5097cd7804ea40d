//! How long clients waited, operation by operation.

use crate::course::lock;
use crate::service::Workload;
use std::sync::Mutex;

/// One operation's wait; times in microseconds since the start of the run.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Of which workload.
    pub workload: Workload,
    /// When it was called.
    pub invoked: u64,
    /// When it ended.
    pub ended: u64,
    /// Whether it got a result.
    pub ok: bool,
    /// How long it may take, microseconds.
    pub may_take: u64,
    /// Whether it has no result since that time was over.
    pub over: bool,
    /// Whether it was asked to wait: then how long it took says nothing of the cluster.
    pub waits: bool,
}

/// An operation without a result.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The operation.
    pub sample: Sample,
    /// Why it has none.
    pub why: String,
}

/// All of them.
#[derive(Default)]
pub struct Samples {
    all: Mutex<Vec<Sample>>,
    failures: Mutex<Vec<Failure>>,
}

impl Samples {
    /// Notes one; `why` it has no result.
    pub fn add(&self, sample: Sample, why: String) {
        lock(&self.all).push(sample);
        if !sample.ok {
            lock(&self.failures).push(Failure { sample, why });
        }
    }

    /// All, by the time at which they ended.
    pub fn all(&self) -> Vec<Sample> {
        let mut all = lock(&self.all).clone();
        all.sort_by_key(|sample| sample.ended);
        all
    }

    /// Those without a result.
    pub fn failures(&self) -> Vec<Failure> {
        lock(&self.failures).clone()
    }
}

/// The longest wait of operations that were under way at any time from `from` to `to`, and were not
/// asked to wait.
pub fn longest(samples: &[Sample], from: u64, to: u64) -> u64 {
    let first = samples.partition_point(|sample| sample.ended < from);
    let meets = samples[first..].iter().filter(|sample| sample.invoked <= to && !sample.waits);
    meets.map(|sample| sample.ended - sample.invoked).max().unwrap_or_default()
}

/// Waits of the operations that were under way at `at`, or called within `within` after it, and
/// were not asked to wait.
pub fn around(samples: &[Sample], at: u64, within: u64) -> Vec<u64> {
    let first = samples.partition_point(|sample| sample.ended < at);
    let meets =
        samples[first..].iter().filter(|sample| sample.invoked <= at + within && !sample.waits);
    meets.map(|sample| sample.ended - sample.invoked).collect()
}

/// The value below which `percent` of `values` are; sorts them.
pub fn percentile(values: &mut [u64], percent: f64) -> u64 {
    values.sort_unstable();
    let rank = (values.len() as f64 * percent / 100.0).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_those_of_operations_under_way() {
        let sample = |invoked, ended| {
            let workload = Workload::Register;
            let (may_take, over) = (1_000, false);
            Sample { workload, invoked, ended, ok: true, may_take, over, waits: false }
        };
        let asked_to = Sample { waits: true, ..sample(2, 80) };
        let samples = [sample(0, 10), sample(5, 50), sample(60, 61), asked_to, sample(40, 90)];
        assert_eq!(longest(&samples, 11, 20), 45);
        assert_eq!(longest(&samples, 0, 100), 50);
        assert_eq!(longest(&samples, 91, 100), 0);
        assert_eq!(around(&samples, 55, 10), vec![1, 50]);
        assert_eq!(percentile(&mut [3, 1, 2, 4], 50.0), 2);
        assert_eq!(percentile(&mut [3, 1, 2, 4], 99.0), 4);
        assert_eq!(percentile(&mut [], 99.0), 0);
    }
}
