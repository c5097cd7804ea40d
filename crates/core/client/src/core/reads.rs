//! Fast reads (rule C2): n - u equal answers without ordering, else the read is ordered.

use super::calls::{Stage, Timer};
use super::receiving::read_result;
use super::{CallId, ClientCore};
use crate::votes::Votes;
use perdura_protocol::{Message, Outcome, ReplicaId};

/// A fast read in flight.
#[derive(Debug)]
pub(super) struct Read {
    call: CallId,
    fallback_ms: u64,
    votes: Votes,
    /// Replicas whose answer may still come.
    outstanding: Vec<ReplicaId>,
}

impl ClientCore {
    pub(super) fn start_read(&mut self, now_ms: u64, id: CallId) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let read = self.next_read;
        self.next_read += 1;
        call.stage = Stage::Reading(read);
        let command = call.command.clone();
        let replicas = self.linked();
        for replica in &replicas {
            self.send(*replica, Message::Read { id: read, command: command.clone() });
        }
        let fallback_ms = now_ms + self.config.fast_read_ms;
        self.timers.insert((fallback_ms, Timer::FastRead(read)));
        let votes = Votes::default();
        self.reads.insert(read, Read { call: id, fallback_ms, votes, outstanding: replicas });
    }

    pub(super) fn read_reply(&mut self, from: ReplicaId, id: u64, outcome: Option<Outcome>) {
        let quorum = self.config.faults.fast_read_quorum();
        let Some(read) = self.reads.get_mut(&id) else { return };
        let Some(index) = read.outstanding.iter().position(|replica| *replica == from) else {
            return;
        };
        read.outstanding.swap_remove(index);
        let call = read.call;
        if let Some(outcome) = outcome
            && let Some(result) = read_result(&outcome)
        {
            let added = read.votes.add(from, &outcome);
            // Not a disagreement: replicas may answer from different slots.
            if added.support >= quorum && self.leaf_of(&outcome).is_some() {
                // Nobody attests what was not ordered.
                self.order_read(id);
                return;
            }
            if added.support >= quorum {
                self.stats.fast_reads += 1;
                self.end_call(call, result);
                return;
            }
        }
        self.order_if_hopeless(id);
    }

    /// A replica's answers will not come.
    pub(super) fn reads_lost(&mut self, replica: ReplicaId) {
        let reads: Vec<u64> = self.reads.keys().copied().collect();
        for id in reads {
            if let Some(read) = self.reads.get_mut(&id) {
                read.outstanding.retain(|other| *other != replica);
            }
            self.order_if_hopeless(id);
        }
    }

    fn order_if_hopeless(&mut self, id: u64) {
        let quorum = self.config.faults.fast_read_quorum();
        let hopeless = self
            .reads
            .get(&id)
            .is_some_and(|read| read.votes.best() + read.outstanding.len() < quorum);
        if hopeless {
            self.order_read(id);
        }
    }

    /// Gives up the fast way.
    pub(super) fn order_read(&mut self, id: u64) {
        let Some(call) = self.reads.get(&id).map(|read| read.call) else { return };
        self.stats.fast_read_fallbacks += 1;
        self.end_read(id);
        self.wait(call);
    }

    /// Forgets a read.
    pub(super) fn end_read(&mut self, id: u64) {
        if let Some(read) = self.reads.remove(&id) {
            self.timers.remove(&(read.fallback_ms, Timer::FastRead(id)));
        }
    }
}
