//! Fast reads (rule C2): without ordering, by what n - u replicas answer. As many are asked first ([`super::readers`]).
//!
//! Each names the slot of the state that it read, behind which nothing had been accepted by it when the read came. So whatever was done before the
//! read began is in the state after the largest slot that n - u name. A read ends when
//! - n - u give equal answers, whatever their slots, or
//! - r + 1 give equal replies by the state after one slot that is not below the largest which some n - u of them named: one of them is correct. That is
//!   what a service replies by its state, or is as good: a partition may say less about the past after a restart, and is asked again then. Refusals
//!   may be an older program's and do not count here.
//!
//! A caller that wants more matching replies than r + 1 gets as many by either.
//!
//! Where replicas write quickly their answers are of different slots. Those that keep states for a moment are asked again then, for that one slot.
//! A liar may name one that is never reached. So the others are asked too, each of whose answers can only lower the slot; u of them at most can be
//! above it once all have answered. What does not end so is ordered.

use super::calls::{Stage, Timer};
use super::{CallId, CallResult, ClientCore};
use crate::outcome::{Refusal, Reply};
use crate::votes::Votes;
use bytes::Bytes;
use perdura_protocol::{Message, Outcome, ReplicaId, Slot, seeded};
use std::collections::BTreeSet;

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
    /// The slots that those named who answered.
    slots: Vec<(ReplicaId, Slot)>,
    /// What those said who were asked again, of the state after a slot.
    second: Vec<(ReplicaId, Slot, Outcome)>,
    /// Replicas whose answer may still come; and whether they are late.
    outstanding: Vec<ReplicaId>,
    late: bool,
    again: Option<Again>,
    needs: Needs,
}

/// How many replicas have to say what.
#[derive(Clone, Copy, Debug)]
struct Needs {
    /// Name slots.
    named: usize,
    /// Give the same, whatever their slots.
    alike: usize,
    /// Give the same of one slot.
    of_slot: usize,
    /// So many may lie.
    liars: usize,
}

/// Those who answered are asked again.
#[derive(Debug)]
struct Again {
    /// By this number.
    id: u64,
    /// For the state after this slot.
    slot: Slot,
    asked: Vec<ReplicaId>,
    outstanding: Vec<ReplicaId>,
}

impl Read {
    /// A slot that some correct replica which gave this answer had executed, where r lie: they can make it neither too high nor low at will.
    fn certain_slot(&self, outcome: &Outcome) -> Slot {
        let gave = |replica: &ReplicaId| self.votes.final_of(*replica) == Some(outcome);
        let gave = self.slots.iter().filter(|(replica, _)| gave(replica));
        let mut slots: Vec<Slot> = gave.map(|(_, slot)| *slot).collect();
        slots.sort_unstable();
        slots.iter().rev().nth(self.needs.liars).copied().unwrap_or_default()
    }

    /// The least slot that is the largest of those which n - u named; its state has all that was done before the read began.
    fn least_slot(&self) -> Option<Slot> {
        if self.slots.len() < self.needs.named {
            return None;
        }
        let mut slots: Vec<Slot> = self.slots.iter().map(|(_, slot)| *slot).collect();
        slots.sort_unstable();
        Some(slots[if seeded!(ReadAtSmallest) { 0 } else { self.needs.named - 1 }])
    }

    /// The replies of the state after a slot, to the first question or the second. Of reads that are settled without them nobody asks.
    fn replies_of(&self, slot: Slot) -> Votes {
        let named = self.slots.iter().filter(|(_, named)| *named == slot);
        let first =
            named.filter_map(|(replica, _)| Some((*replica, self.votes.final_of(*replica)?)));
        let second = self.second.iter().filter(|(_, of, _)| *of == slot);
        let second = second.map(|(replica, _, outcome)| (*replica, outcome));
        let mut votes = Votes::default();
        for (replica, outcome) in first.chain(second) {
            if let Outcome::Service(_) = outcome {
                votes.add(replica, outcome);
            }
        }
        votes
    }

    /// What the read came to, and in the state after which slot.
    fn settled(&self) -> Option<(Outcome, Slot)> {
        if let Some(outcome) = self.votes.given_by(self.needs.alike) {
            return Some((outcome.clone(), self.certain_slot(outcome)));
        }
        let few = self.needs.of_slot - usize::from(seeded!(ReadAtByFew)).min(self.needs.liars);
        let least = self.least_slot()?;
        let named = self.slots.iter().map(|(_, slot)| *slot);
        let slots = named.chain(self.second.iter().map(|(_, slot, _)| *slot));
        let slots: BTreeSet<Slot> = slots.filter(|slot| *slot >= least).collect();
        let known = |slot: &Slot| Some((self.replies_of(*slot).given_by(few)?.clone(), *slot));
        slots.iter().rev().find_map(known)
    }

    /// What is to be held of a replica that gave a first answer: true where that, or its second, agrees with what the read came to, and false where
    /// it contradicts it. Who named a larger slot may have been further, or lie.
    fn agrees(&self, replica: ReplicaId, (outcome, slot): &(Outcome, Slot)) -> Option<bool> {
        let same = self.votes.final_of(replica) == Some(outcome);
        if self.votes.support(outcome) >= self.needs.alike {
            return Some(same);
        }
        let named = self.slots.iter().find(|(id, _)| *id == replica).map(|(_, slot)| slot);
        match self.replies_of(*slot).final_of(replica) {
            Some(said) => Some(said == outcome),
            None => (same || named.is_some_and(|named| named <= slot)).then_some(true),
        }
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
        let (named, liars) = (self.config.faults.fast_read_quorum(), self.config.faults.r());
        let needs = Needs { named, alike: named.max(call.quorum), of_slot: call.quorum, liars };
        let read = self.next_read;
        self.next_read += 1;
        call.stage = Stage::Reading(read);
        let command = call.command.clone();
        let mut replicas = self.readers.next(self.linked());
        let spare = replicas.split_off(replicas.len().min(named));
        for replica in &replicas {
            self.send(*replica, Message::Read { id: read, command: command.clone() });
        }
        let fallback_ms = now_ms + self.config.fast_read_ms;
        let spare_ms = now_ms + self.readers.timeout_ms().min(self.config.fast_read_ms / 2);
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
            second: Vec::new(),
            outstanding: replicas,
            late: false,
            again: None,
            needs,
        };
        self.reads.insert(read, waiting);
    }

    /// Those who were asked are late.
    pub(super) fn read_is_late(&mut self, now_ms: u64, id: u64) {
        let Some(read) = self.reads.get_mut(&id) else { return };
        read.late = true;
        if !read.spare.is_empty() {
            read.outstanding.iter().for_each(|replica| self.readers.failed(*replica));
        }
        self.ask_others(id);
        self.go_on(now_ms, id);
    }

    /// So are all, or a slot is not reached that somebody named.
    pub(super) fn read_expires(&mut self, id: u64) {
        let Some(read) = self.reads.get(&id) else { return };
        read.outstanding.iter().for_each(|replica| self.readers.failed(*replica));
        if let Some(again) = &read.again {
            let namers = read.slots.iter().filter(|(_, slot)| *slot >= again.slot);
            let namers = namers.map(|(replica, _)| replica);
            // Of a slot that is real more speak than can lie.
            match read.replies_of(again.slot).best() > read.needs.liars {
                true => again.outstanding.iter().for_each(|replica| self.readers.failed(*replica)),
                false => namers.for_each(|replica| self.readers.failed(*replica)),
            }
        }
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
        let outcome = outcome.filter(|outcome| read_result(outcome).is_some());
        if let Some(read) = self.reads_again.get(&id).copied() {
            self.said_again(from, read, slot, outcome);
            self.go_on(now_ms, read);
            return;
        }
        let Some(read) = self.reads.get_mut(&id) else { return };
        let Some(index) = read.outstanding.iter().position(|replica| *replica == from) else {
            return;
        };
        read.outstanding.swap_remove(index);
        match outcome {
            Some(outcome) => {
                read.slots.push((from, slot));
                if read.votes.add(from, &outcome).support > read.needs.liars {
                    read.known_ms.get_or_insert(now_ms);
                }
            }
            None => self.readers.failed(from),
        }
        self.go_on(now_ms, id);
    }

    /// One that was asked for the state after a slot says what it knows.
    fn said_again(&mut self, from: ReplicaId, id: u64, slot: Slot, outcome: Option<Outcome>) {
        let Some(read) = self.reads.get_mut(&id) else { return };
        let Some(again) = &mut read.again else { return };
        let Some(index) = again.outstanding.iter().position(|replica| *replica == from) else {
            return;
        };
        again.outstanding.swap_remove(index);
        if let Some(outcome) = outcome
            && slot == again.slot
        {
            read.second.push((from, slot, outcome));
        }
    }

    /// A replica's answers will not come.
    pub(super) fn reads_lost(&mut self, now_ms: u64, replica: ReplicaId) {
        let reads: Vec<u64> = self.reads.keys().copied().collect();
        for id in reads {
            if let Some(read) = self.reads.get_mut(&id) {
                read.outstanding.retain(|other| *other != replica);
                read.spare.retain(|other| *other != replica);
                if let Some(again) = &mut read.again {
                    again.outstanding.retain(|other| *other != replica);
                }
            }
            self.go_on(now_ms, id);
        }
    }

    /// Ends a read, asks further, or orders it: where what may still be said is not enough, and where nobody keeps states and as many alike are not
    /// to be had, as one more answer seldom settles it then.
    fn go_on(&mut self, now_ms: u64, id: u64) {
        let Some(read) = self.reads.get(&id) else { return };
        if let Some(settled) = read.settled() {
            // Not a disagreement: replicas may answer from different slots.
            self.settle_read(now_ms, id, settled);
            return;
        }
        let (heard, asked, spare) = (read.slots.len(), read.outstanding.len(), read.spare.len());
        let (needs, late) = (read.needs, read.late);
        let alike = read.votes.best() + asked;
        let may_be_of_slot = match read.least_slot() {
            // What comes lowers the slot, or is of it.
            Some(slot) => {
                let comes = asked > 0 && !late && self.any_keeps_states();
                self.read_again(id, slot) || comes
            }
            None => asked > 0 || needs.liars == 0 || self.any_keeps_states(),
        };
        if heard + asked + spare < needs.named || alike + spare < needs.alike && !may_be_of_slot {
            self.order_read(id);
        } else if alike < needs.alike {
            self.ask_others(id);
        }
    }

    /// Asks those again who answered, for the state after a slot, or a lower one for which they were; whether that may still settle the read.
    fn read_again(&mut self, id: u64, slot: Slot) -> bool {
        let Some(read) = self.reads.get_mut(&id) else { return false };
        let mut before = read.again.take();
        if let Some(higher) = before.take_if(|again| again.slot > slot) {
            self.reads_again.remove(&higher.id);
        }
        let slot = before.as_ref().map_or(slot, |again| again.slot);
        let (asked, outstanding) = before
            .as_ref()
            .map_or((&[][..], 0), |again| (&again.asked[..], again.outstanding.len()));
        let replies = read.replies_of(slot);
        let more = read.slots.iter().map(|(replica, _)| *replica).filter(|replica| {
            let takes = self.keep_states[replica.index()] && self.links[replica.index()];
            takes && replies.final_of(*replica).is_none() && !asked.contains(replica)
        });
        let more: Vec<ReplicaId> = more.collect();
        if replies.best() + outstanding + more.len() < read.needs.of_slot {
            read.again = before;
            return false;
        }
        let again = read.again.insert(before.unwrap_or_else(|| {
            self.stats.fast_reads_again += 1;
            self.next_read += 1;
            self.reads_again.insert(self.next_read - 1, id);
            let (asked, outstanding) = (Vec::new(), Vec::new());
            Again { id: self.next_read - 1, slot, asked, outstanding }
        }));
        again.asked.extend_from_slice(&more);
        again.outstanding.extend_from_slice(&more);
        let (id, any) = (again.id, !again.outstanding.is_empty());
        let command = read.command.clone();
        for replica in more {
            self.send(replica, Message::ReadAt { id, slot, command: command.clone() });
        }
        any
    }

    fn any_keeps_states(&self) -> bool {
        self.linked().iter().any(|replica| self.keep_states[replica.index()])
    }

    fn settle_read(&mut self, now_ms: u64, id: u64, settled: (Outcome, Slot)) {
        let Some(read) = self.reads.get(&id) else { return };
        for (replica, _) in &read.slots {
            match read.agrees(*replica, &settled) {
                Some(true) => self.readers.served(*replica),
                Some(false) => self.readers.failed(*replica),
                None => {}
            }
        }
        if read.again.is_none() {
            let known_ms = read.known_ms.unwrap_or(now_ms);
            self.readers.took(known_ms.saturating_sub(read.begin_ms));
        }
        let (call, (outcome, slot)) = (read.call, settled);
        match read_result(&outcome) {
            // Nobody attests what was not ordered.
            Some(_) if self.leaf_of(&outcome).is_some() => self.order_read(id),
            Some(reply) => {
                self.stats.fast_reads += 1;
                self.end_call(call, result_of(reply, slot));
            }
            None => self.order_read(id),
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
            if let Some(again) = read.again {
                self.reads_again.remove(&again.id);
            }
        }
    }
}
