//! Fast reads (rule C2): n - u equal answers without ordering, else the read is ordered. As many are asked first ([`super::readers`]).

use super::calls::{Stage, Timer};
use super::{CallId, CallResult, ClientCore};
use crate::outcome::{Refusal, Reply};
use crate::votes::Votes;
use bytes::Bytes;
use perdura_protocol::{Message, Outcome, ReplicaId, Slot};

/// A fast read in flight.
#[derive(Debug)]
pub(super) struct Read {
    call: CallId,
    begin_ms: u64,
    /// When r + 1 had given the same: r liars can hold that up by nothing.
    known_ms: Option<u64>,
    fallback_ms: u64,
    /// When the others are asked.
    spare_ms: u64,
    /// They, and with what.
    spare: Vec<ReplicaId>,
    command: Bytes,
    votes: Votes,
    /// Behind which slots those who answered looked.
    slots: Vec<(ReplicaId, Slot)>,
    /// Replicas whose answer may still come.
    outstanding: Vec<ReplicaId>,
}

impl Read {
    /// A slot that some correct replica which gave this answer had executed, where r lie: they can make it neither too high nor low at will.
    fn certain_slot(&self, outcome: &Outcome, liars: usize) -> Slot {
        let gave = |replica: &ReplicaId| self.votes.final_of(*replica) == Some(outcome);
        let gave = self.slots.iter().filter(|(replica, _)| gave(replica));
        let mut slots: Vec<Slot> = gave.map(|(_, slot)| *slot).collect();
        slots.sort_unstable();
        slots.iter().rev().nth(liars).copied().unwrap_or_default()
    }
}

/// What an answer to a fast read means for the call; `None` when it is no answer.
fn read_result(outcome: &Outcome) -> Option<Result<Bytes, Refusal>> {
    match outcome {
        Outcome::Service(reply) => Some(Ok(reply.clone())),
        Outcome::Refused(reason) => Some(Err(Refusal::Ordered(reason.clone()))),
        _ => None,
    }
}

fn result_of(reply: Result<Bytes, Refusal>, slot: Slot) -> CallResult {
    match reply {
        Ok(reply) => CallResult::Completed(Reply::Unordered { reply, slot: slot.0 }),
        Err(refusal) => CallResult::Refused(refusal),
    }
}

impl ClientCore {
    pub(super) fn start_read(&mut self, now_ms: u64, id: CallId) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let read = self.next_read;
        self.next_read += 1;
        call.stage = Stage::Reading(read);
        let command = call.command.clone();
        let mut replicas = self.readers.next(self.linked());
        let spare = replicas.split_off(replicas.len().min(self.config.faults.fast_read_quorum()));
        for replica in &replicas {
            self.send(*replica, Message::Read { id: read, command: command.clone() });
        }
        let fallback_ms = now_ms + self.config.fast_read_ms;
        let spare_ms = now_ms + self.readers.patience_ms().min(self.config.fast_read_ms / 2);
        self.timers.insert((fallback_ms, Timer::FastRead(read)));
        self.timers.insert((spare_ms, Timer::SpareRead(read)));
        let waiting = Read {
            call: id,
            begin_ms: now_ms,
            known_ms: None,
            fallback_ms,
            spare_ms,
            spare,
            command,
            votes: Votes::default(),
            slots: Vec::new(),
            outstanding: replicas,
        };
        self.reads.insert(read, waiting);
    }

    /// Those who were asked are late.
    pub(super) fn read_is_late(&mut self, id: u64) {
        let Some(read) = self.reads.get(&id) else { return };
        if !read.spare.is_empty() {
            read.outstanding.iter().for_each(|replica| self.readers.failed(*replica));
        }
        self.ask_others(id);
    }

    /// So are all.
    pub(super) fn read_expires(&mut self, id: u64) {
        let Some(read) = self.reads.get(&id) else { return };
        read.outstanding.iter().for_each(|replica| self.readers.failed(*replica));
        self.order_read(id);
    }

    fn ask_others(&mut self, id: u64) {
        let Some(read) = self.reads.get_mut(&id) else { return };
        let (command, others) = (read.command.clone(), std::mem::take(&mut read.spare));
        read.outstanding.extend_from_slice(&others);
        for replica in others {
            self.send(replica, Message::Read { id, command: command.clone() });
        }
    }

    pub(super) fn read_reply(
        &mut self,
        now_ms: u64,
        from: ReplicaId,
        id: u64,
        slot: Slot,
        outcome: Option<Outcome>,
    ) {
        let (quorum, liars) = (self.config.faults.fast_read_quorum(), self.config.faults.r());
        let Some(read) = self.reads.get_mut(&id) else { return };
        let Some(index) = read.outstanding.iter().position(|replica| *replica == from) else {
            return;
        };
        read.outstanding.swap_remove(index);
        let call = read.call;
        if let Some(outcome) = outcome
            && let Some(reply) = read_result(&outcome)
        {
            read.slots.push((from, slot));
            let added = read.votes.add(from, &outcome);
            if added.support > liars {
                read.known_ms.get_or_insert(now_ms);
            }
            // Not a disagreement: replicas may answer from different slots.
            if added.support >= quorum {
                let result = result_of(reply, read.certain_slot(&outcome, liars));
                for (replica, _) in &read.slots {
                    match read.votes.final_of(*replica) {
                        Some(other) if *other != outcome => self.readers.failed(*replica),
                        _ => self.readers.served(*replica),
                    }
                }
                let known_ms = read.known_ms.unwrap_or(now_ms);
                self.readers.took(known_ms.saturating_sub(read.begin_ms));
                if self.leaf_of(&outcome).is_some() {
                    // Nobody attests what was not ordered.
                    self.order_read(id);
                    return;
                }
                self.stats.fast_reads += 1;
                self.end_call(call, result);
                return;
            }
        } else {
            self.readers.failed(from);
        }
        self.order_if_hopeless(id);
    }

    /// A replica's answers will not come.
    pub(super) fn reads_lost(&mut self, replica: ReplicaId) {
        let reads: Vec<u64> = self.reads.keys().copied().collect();
        for id in reads {
            if let Some(read) = self.reads.get_mut(&id) {
                read.outstanding.retain(|other| *other != replica);
                read.spare.retain(|other| *other != replica);
            }
            self.order_if_hopeless(id);
        }
    }

    /// Where those who were asked cannot be enough any more.
    fn order_if_hopeless(&mut self, id: u64) {
        let quorum = self.config.faults.fast_read_quorum();
        let Some(read) = self.reads.get(&id) else { return };
        let most = read.votes.best() + read.outstanding.len();
        if most + read.spare.len() < quorum {
            self.order_read(id);
        } else if most < quorum {
            self.ask_others(id);
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
            self.timers.remove(&(read.spare_ms, Timer::SpareRead(id)));
        }
    }
}
