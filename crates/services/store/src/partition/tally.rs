//! What a partition counts for those who watch it. Neither part of the state nor does anything depend on it.

use super::Partition;
use super::reply::{Reason, Vote};
use perdura_execution::Measure;
use perdura_protocol::Time;

/// Pending transactions are counted by how long they have been so, seconds.
const AGES: [(&str, u64); 4] = [("0", 0), ("2", 2), ("10", 10), ("60", 60)];

/// Votes, by what they are and why, in the order of [`place`].
const VOTES: [&str; 11] = [
    "commit",
    "failed",
    "conflict",
    "cap",
    "room",
    "too_much",
    "map",
    "fenced",
    "unreachable",
    "resolved",
    "writes",
];

fn place(vote: &Vote) -> usize {
    match vote {
        Vote::Commit => 0,
        Vote::Abort(Reason::Failed { .. }) => 1,
        Vote::Abort(Reason::Conflict(_)) => 2,
        Vote::Abort(Reason::Cap { .. }) => 3,
        Vote::Abort(Reason::Room) => 4,
        Vote::Abort(Reason::TooMuch) => 5,
        Vote::Abort(Reason::Map) => 6,
        Vote::Abort(Reason::Fenced) => 7,
        Vote::Abort(Reason::Unreachable { .. }) => 8,
        Vote::Abort(Reason::Resolved) => 9,
        Vote::Abort(Reason::Writes) => 10,
    }
}

/// Who ended a transaction, in the order of [`Tally::ended`].
const ENDERS: [&str; 3] = ["client", "others", "administrator"];

/// Since the process started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    votes: [u64; VOTES.len()],
    ended: [u64; ENDERS.len()],
    forgotten: u64,
    blocked: u64,
}

impl Tally {
    pub(crate) fn voted(&mut self, vote: &Vote) {
        self.votes[place(vote)] += 1;
    }

    pub(crate) fn ended_by_client(&mut self, own: bool) {
        self.ended[usize::from(!own)] += 1;
    }

    pub(crate) fn forced(&mut self) {
        self.ended[2] += 1;
    }

    pub(crate) fn forgot(&mut self, count: usize) {
        self.forgotten += count as u64;
    }

    pub(crate) fn blocked(&mut self) {
        self.blocked += 1;
    }
}

impl Partition {
    /// This one, which takes over where another one in this process was.
    pub(crate) fn counting_on(self, from: &Partition) -> Partition {
        Partition { tally: from.tally, ..self }
    }

    pub(crate) fn note_blocked(&mut self) {
        self.tally.blocked();
    }

    pub(crate) fn measures(&self) -> Vec<Measure> {
        let tally = &self.tally;
        let silent = self.records.awaited().filter(|one| self.is_silent(*one)).count() as u64;
        let mut all = Vec::with_capacity(32);
        for (name, count) in VOTES.iter().zip(tally.votes) {
            let help =
                "Votes on transactions over several partitions, with the reason of those to abort.";
            all.push(
                Measure::counter("perdura_transaction_votes_total", help, count).of("vote", name),
            );
        }
        for (name, count) in ENDERS.iter().zip(tally.ended) {
            let help = "Pending transactions that ended here, by who ended them.";
            all.push(
                Measure::counter("perdura_transactions_ended_total", help, count).of("by", name),
            );
        }
        for (name, seconds) in AGES {
            let help = "Transactions that are pending here, for at least so many seconds.";
            let since = Time(self.now.0.saturating_sub(1_000 * seconds));
            let count = self.records.count_pending(since);
            all.push(
                Measure::gauge("perdura_transactions_pending", help, count).of("seconds", name),
            );
        }
        let over = "Transactions that are over here, and remembered until all participants' fences have passed them.";
        let oldest = "For how long the oldest of these has been remembered.";
        let age_ms = |since: Time| self.now.0.saturating_sub(since.0);
        let oldest_ms = self.records.oldest_over().map_or(0, age_ms);
        let capped = "Clients that may have fewer than the usual number of transactions pending: others had to end some that they left.";
        let marks = "Callers who wait for locks.";
        let blocked =
            "Commands of this partition alone that were in the way of a pending transaction.";
        let forgotten = "Transactions that were forgotten.";
        let silence = "Partitions on which transactions have been pending for longer than they are waited for.";
        all.extend([
            Measure::gauge("perdura_transactions_remembered", over, self.records.count_over()),
            Measure::gauge(
                "perdura_transactions_oldest_remembered_milliseconds",
                oldest,
                oldest_ms,
            ),
            Measure::gauge("perdura_transaction_marks", marks, self.marks.len() as u64),
            Measure::gauge("perdura_transaction_clients_capped", capped, self.caps.len() as u64),
            Measure::gauge("perdura_transaction_partitions_silent", silence, silent),
            Measure::counter("perdura_transactions_blocked_commands_total", blocked, tally.blocked),
            Measure::counter("perdura_transactions_forgotten_total", forgotten, tally.forgotten),
        ]);
        all
    }
}
