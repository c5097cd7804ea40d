//! What a run of tuple spaces reports beside what every run does.

use std::fmt;

/// What runs of tuple spaces came to.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SpaceCounts {
    /// Runs of tuple spaces.
    pub runs: u64,
    /// Commands that waited and got a tuple.
    pub served: u64,
    /// Commands that waited in vain until their deadlines.
    pub in_vain: u64,
    /// Tuples whose leases ended.
    pub leases_ended: u64,
    /// The most tuples whose leases had ended and that a batch left for later ones to remove.
    pub most_left: u64,
    /// Deletions of spaces that left tuples for another one.
    pub partly_deleted: u64,
    /// Leases that were renewed.
    pub renewed: u64,
    /// Locks that were taken.
    pub locks: u64,
    /// Of these, after the last owner's lease had ended.
    pub taken_over: u64,
    /// Claims that had waited and got through.
    pub claims: u64,
    /// Jobs that came back since the leases under which somebody had them had ended.
    pub jobs_returned: u64,
    /// Writes that what a lock protects has accepted.
    pub writes: u64,
    /// Writes that it refused, for it had seen a larger token.
    pub stale_writes: u64,
    /// Longest time from the deadline of a wait, by every clock in order, to its end in liveness mode
    /// while no other replica failed, microseconds.
    pub latest_us: u64,
}

impl SpaceCounts {
    /// Adds another run.
    pub(super) fn add(&mut self, other: &SpaceCounts) {
        self.runs += other.runs;
        self.served += other.served;
        self.in_vain += other.in_vain;
        self.leases_ended += other.leases_ended;
        self.most_left = self.most_left.max(other.most_left);
        self.partly_deleted += other.partly_deleted;
        self.renewed += other.renewed;
        self.locks += other.locks;
        self.taken_over += other.taken_over;
        self.claims += other.claims;
        self.jobs_returned += other.jobs_returned;
        self.writes += other.writes;
        self.stale_writes += other.stale_writes;
        self.latest_us = self.latest_us.max(other.latest_us);
    }
}

impl fmt::Display for SpaceCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} runs: {} waits served, {} in vain (at most {:.1} s late); {} leases ended (at most \
             {} left to the next batch), {} renewed; {} deletions in parts; {} locks taken, {} of \
             them after a lease had ended; {} claims served, {} jobs returned; {} fenced writes, {} refused",
            self.runs,
            self.served,
            self.in_vain,
            self.latest_us as f64 / 1e6,
            self.leases_ended,
            self.most_left,
            self.renewed,
            self.partly_deleted,
            self.locks,
            self.taken_over,
            self.claims,
            self.jobs_returned,
            self.writes,
            self.stale_writes
        )
    }
}
