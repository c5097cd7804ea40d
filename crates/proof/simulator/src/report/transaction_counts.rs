//! What a run of a partitioned store reports beside what every run does.

use crate::deployment::history::Told;
use perdura_store::partition::{Reason, Vote};
use perdura_transactions::Outcome;
use std::fmt;

/// What runs of partitioned stores came to.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct TransactionCounts {
    /// Runs of partitioned stores.
    pub runs: u64,
    /// Operations whose clients were told that they happened, or what they read.
    pub committed: u64,
    /// Told that they failed for what was there.
    pub failed: u64,
    /// Told that nothing happened.
    pub refused: u64,
    /// Of which nobody could tell.
    pub unknown: u64,
    /// Whose processes died first.
    pub orphaned: u64,
    /// Transactions over several partitions that were prepared somewhere, tries counted.
    pub global: u64,
    /// Of these, those that changed something and committed.
    pub global_committed: u64,
    /// Votes to abort: something failed, somebody was in the way, too many were pending, there was no room.
    pub aborts: [u64; 4],
    /// Fenced off, a participant was silent, ended by others before its part came, for another reason.
    pub other_aborts: [u64; 4],
    /// Commands of one partition that met locks.
    pub blocked: u64,
    /// Reads that were not ordered.
    pub fast: u64,
    /// Reads over several partitions that took no locks.
    pub snapshots: u64,
    /// Looks at all the money.
    pub looks: u64,
    /// Transactions that clients ended for others.
    pub ended_for_others: u64,
    /// Times that a partition said that a transaction may be ended by others.
    pub expired: u64,
    /// Transactions that were forgotten.
    pub forgotten: u64,
    /// Certificates that were not by the newest members known.
    pub outdated: u64,
    /// Tries that met locks, as clients count them.
    pub conflicts: u64,
    /// Client processes that died.
    pub deaths: u64,
    /// Attacks of hostile clients, beside those on single groups.
    pub attacks: u64,
    /// Processes of attackers that had to start anew.
    pub attackers: u64,
    /// Pairs of which one had to come before the other.
    pub edges: u64,
    /// The longest time until nothing was pending, once all groups were up and somebody went about it, microseconds.
    pub longest_end_us: u64,
}

impl TransactionCounts {
    /// A partition voted on something for the first time.
    pub(crate) fn count_vote(&mut self, vote: &Vote) {
        let Vote::Abort(reason) = vote else { return };
        let place = match reason {
            Reason::Failed { .. } => &mut self.aborts[0],
            Reason::Conflict(_) => &mut self.aborts[1],
            Reason::Cap { .. } => &mut self.aborts[2],
            Reason::Room => &mut self.aborts[3],
            Reason::Fenced => &mut self.other_aborts[0],
            Reason::Unreachable { .. } => &mut self.other_aborts[1],
            Reason::Resolved => &mut self.other_aborts[2],
            Reason::TooMuch | Reason::Map | Reason::Writes => &mut self.other_aborts[3],
        };
        *place += 1;
    }

    /// A client was told this of an operation.
    pub(crate) fn count_told(&mut self, told: Option<&Told>) {
        let place = match told {
            None => &mut self.orphaned,
            Some(Told::Over(Outcome::Failed { .. })) => &mut self.failed,
            Some(Told::Over(_)) => &mut self.committed,
            Some(Told::Refused(_)) => &mut self.refused,
            Some(Told::Unknown(_)) => &mut self.unknown,
        };
        *place += 1;
    }

    /// Adds another run.
    pub(crate) fn add(&mut self, other: &TransactionCounts) {
        self.runs += other.runs;
        self.committed += other.committed;
        self.failed += other.failed;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.orphaned += other.orphaned;
        self.global += other.global;
        self.global_committed += other.global_committed;
        for (sum, more) in self.aborts.iter_mut().zip(other.aborts) {
            *sum += more;
        }
        for (sum, more) in self.other_aborts.iter_mut().zip(other.other_aborts) {
            *sum += more;
        }
        self.blocked += other.blocked;
        self.fast += other.fast;
        self.snapshots += other.snapshots;
        self.looks += other.looks;
        self.ended_for_others += other.ended_for_others;
        self.expired += other.expired;
        self.forgotten += other.forgotten;
        self.outdated += other.outdated;
        self.conflicts += other.conflicts;
        self.deaths += other.deaths;
        self.attacks += other.attacks;
        self.attackers += other.attackers;
        self.edges += other.edges;
        self.longest_end_us = self.longest_end_us.max(other.longest_end_us);
    }
}

impl fmt::Display for TransactionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [failed, conflict, cap, room] = self.aborts;
        let [fenced, silent, resolved, other] = self.other_aborts;
        write!(
            f,
            "{} runs; {} ok, {} failed, {} refused, {} unknown, {} orphaned; {} looks at all the money, {} fast reads, {} snapshots; \
             {} over several partitions ({} committed); votes to abort: {failed} failed, {conflict} conflicts, {cap} cap, {room} room, \
             {fenced} fenced, {silent} unreachable, {resolved} resolved, {other} other; {} blocked, {} conflicts, {} expired, {} ended_for_others, \
             {} forgotten, {} outdated, {} deaths; {} attacks, {} attackers stopped; {} pairs in order; nothing pending after {:.1} s at most",
            self.runs,
            self.committed,
            self.failed,
            self.refused,
            self.unknown,
            self.orphaned,
            self.looks,
            self.fast,
            self.snapshots,
            self.global,
            self.global_committed,
            self.blocked,
            self.conflicts,
            self.expired,
            self.ended_for_others,
            self.forgotten,
            self.outdated,
            self.deaths,
            self.attacks,
            self.attackers,
            self.edges,
            self.longest_end_us as f64 / 1e6
        )
    }
}
