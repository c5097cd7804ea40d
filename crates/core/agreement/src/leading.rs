//! The proposer. It closes a batch by what has queued up: with few slots in flight as soon as most of
//! the callers' commands are there, or a moment has passed, with more only when there is enough for a batch
//! that is worth its signatures, and some time has passed or it is full. Where few commands are under way
//! nothing waits. No other batch goes before one that gathers.

use crate::machine::{Agreement, Effect, Mode, Now};
use crate::pool::Allowance;
use perdura_protocol::message::Message;
use perdura_protocol::{Batch, PublicKey, Slot, limits, seeded};
use std::collections::BTreeMap;

/// Of the time-out of requests a slot takes this part to execute, at the speed of the last ones.
const SLOT_PART: u64 = 4;

/// With fewer slots in flight than this, what waits is proposed as soon as it is most of what callers
/// have under way: one is being voted on while the next travels.
const EAGER_SLOTS: u64 = 2;

/// A batch gathers for this time at most since the last proposal if nothing is in flight, and for twice as
/// long if one slot is: this is about what a slot of small commands takes on one machine ...
pub(crate) const GATHER_MS: u64 = 4;

/// ... and for this long at least since a slot was delivered, for its callers to come back.
const RETURN_MS: u64 = 2;

/// With fewer commands under way than this, nothing is gained by gathering.
const FEW_COMMANDS: usize = 8;

/// With more in flight, a batch waits until this much has queued up ...
const WORTHWHILE_BYTES: usize = 64 * 1024;

/// ... and this time has passed since the last one, or it is full: each costs signatures, messages and a
/// flush of the log on every replica, and where these take the time, and not the way to others, more of them
/// only take it from each other.
const SPACED_MS: u64 = 20;

/// Others vote on a slot while what is before it and not executed is expected to cost no more: a leader that does as above stays below, though
/// it has executed more than they, or less.
const COST_AHEAD: u64 = 2 * limits::SLOT_COST;

impl Agreement {
    /// After each round of input: a leader proposes what has queued up, and tells what is decided
    /// if no proposal carried it.
    pub fn flush(&mut self, now: Now) {
        if !self.voting() || !self.may_lead() {
            return;
        }
        while let Some(batch) = self.next_batch(now) {
            let slot = self.next_propose;
            self.next_propose = slot.next();
            // What the view is bound to the others hold, or ask for.
            if !self.start.choices.contains_key(&slot) {
                self.decided_told = self.delivered;
                let message = Message::Propose {
                    view: self.view,
                    slot,
                    batch: batch.clone(),
                    decided: self.delivered,
                    history: self.history,
                };
                self.broadcast_in_view(message);
            }
            self.take_proposal(now, self.settings.me, slot, batch);
        }
        self.tell_decided();
    }

    fn may_lead(&self) -> bool {
        self.leads() && self.mode == Mode::Started && !self.has_restarted()
    }

    /// Whether this replica was restarted in this view: as its leader it sends no Propose (A2).
    pub(crate) fn has_restarted(&self) -> bool {
        self.restarted_in == Some(self.view) && !seeded!(RestartedLeaderProposes)
    }

    /// Whether it is this replica that proposes in the slot. What the view is bound to it holds without
    /// that, and further up.
    pub(crate) fn may_propose(&self, slot: Slot) -> bool {
        self.may_lead() && slot <= self.reach()
    }

    fn next_batch(&mut self, now: Now) -> Option<Batch> {
        let settled = self.prefix.slot.max(self.delivered);
        self.next_propose = self.next_propose.max(settled.next());
        let slot = self.next_propose;
        let end = Slot(self.prefix.slot.0 + self.settings.window / 2);
        if slot > self.reach()
            || slot > end
            || self.configurations.at(slot).id != self.view_configuration
        {
            return None;
        }
        if let Some(digest) = self.start.choices.get(&slot) {
            return self.reproposed_batch(slot, *digest);
        }
        self.fetched.clear();
        let in_flight = self.in_flight();
        let last = self.slots.get(&slot.previous()).map_or(0, |last| last.since_ms);
        // Null batches carry the group to the start of a new configuration (D8).
        let activates = slot < self.configurations.latest().from_slot && in_flight < EAGER_SLOTS;
        let other = self.tick(now, slot).or_else(|| activates.then(Batch::null));
        let due = self.gathers_ms(now).is_none() || other.is_some();
        let least = if in_flight < EAGER_SLOTS && (due || self.has_gathered()) {
            1
        } else if now.monotonic_ms >= last + SPACED_MS {
            WORTHWHILE_BYTES
        } else {
            limits::BATCH_TARGET_BYTES
        };
        if self.pool.waiting_bytes() >= least {
            let under_way = self.count_under_way(now.monotonic_ms.saturating_sub(last));
            let proposed = self.expected_in_flight();
            let left = limits::SLOT_COST.saturating_sub(proposed);
            let cost = Allowance::new(&self.expected, left, proposed == 0);
            let (bytes, commands) = (limits::BATCH_TARGET_BYTES, self.most_commands());
            let frames = self.pool.take(bytes, commands, now.monotonic_ms, cost);
            if !frames.is_empty() {
                self.under_way = under_way;
                return Some(Batch::requests(now.wall, frames));
            }
        }
        other
    }

    /// Whether three quarters of the commands that callers lately had under way at once wait here. In a
    /// closed loop the others are about to come: without this callers fall apart into groups, each with
    /// a slot of its own.
    fn has_gathered(&self) -> bool {
        self.under_way < FEW_COMMANDS || 4 * self.pool.waiting_commands() >= 3 * self.under_way
    }

    /// How many commands wait or are in flight, `passed_ms` after the last proposal. The count falls by an eighth
    /// in each millisecond where they have become fewer.
    fn count_under_way(&self, passed_ms: u64) -> usize {
        let commands = |batch: &Batch| -> usize {
            batch.frames().iter().map(|frame| frame.commands().len()).sum()
        };
        let in_flight: usize = self.in_flight_batches(self.next_propose).map(commands).sum();
        let fade = |count: usize, _| count - count.div_ceil(8);
        let faded = (0..passed_ms.clamp(1, 64)).fold(self.under_way, fade);
        faded.max(in_flight + self.pool.waiting_commands())
    }

    /// In how many milliseconds what waits will be proposed though little more comes: [`Agreement::flush`] is to
    /// be called then.
    #[must_use]
    pub fn gathers_ms(&self, now: Now) -> Option<u64> {
        if self.pool.waiting_commands() == 0 || !self.may_lead() {
            return None;
        }
        let last = self.slots.get(&self.next_propose.previous())?.since_ms;
        let in_flight = Some(self.in_flight()).filter(|slots| *slots < EAGER_SLOTS)?;
        let mut due = last + GATHER_MS * (1 + in_flight);
        if in_flight == 0 {
            // Replies are on their way: whoever gets one is about to send the next.
            due = due.max(self.progress_ms + RETURN_MS);
        }
        due.checked_sub(now.monotonic_ms).filter(|left| *left > 0)
    }

    /// Whether something waits to be ordered, or is being ordered, as far as this replica knows.
    #[must_use]
    pub fn is_ordering(&self) -> bool {
        self.pool.waiting_commands() > 0
            || self.slots.range(self.delivered.next()..).any(|(_, slot)| slot.proposal.is_some())
    }

    /// What is proposed and not executed is expected to cost so much.
    fn expected_in_flight(&self) -> u64 {
        self.in_flight_batches(self.next_propose).map(|batch| self.expected.of_batch(batch)).sum()
    }

    /// Batches of slots before `end` that were decided or proposed, and not executed here.
    fn in_flight_batches(&self, end: Slot) -> impl Iterator<Item = &Batch> {
        let next = self.executed.next();
        let slots = self.slots.range(next..end.max(next));
        slots.filter_map(|(_, state)| {
            let decided = state.decided.as_ref().map(|decided| &decided.batch);
            decided.or(state.proposal.as_ref().map(|proposal| &proposal.batch))
        })
    }

    /// Whether what is before a slot and not executed is expected to cost little enough: a leader that lies could fill the pipeline with what
    /// its accomplices ask for, and everybody would wait for that. What is executed next may always be voted on.
    pub(crate) fn is_near_execution(&self, slot: Slot) -> bool {
        let next = self.executed.next();
        if slot <= next || self.expected.is_nothing() {
            return true;
        }
        let costs = self.in_flight_batches(slot).map(|batch| self.expected.of_batch(batch));
        costs.sum::<u64>() <= COST_AHEAD
    }

    /// A batch was executed, and cost this by client key. To be told before [`Agreement::on_executed`].
    pub fn note_costs(&mut self, batch: &Batch, costs: &BTreeMap<PublicKey, u64>) {
        self.expected.executed(batch, costs);
    }

    /// So long this replica executed so many commands.
    pub fn note_speed(&mut self, commands: usize, took_us: u64) {
        let Some(each) = took_us.checked_div(commands as u64) else { return };
        // Half of it is what the last slots took.
        self.command_us = (self.command_us + each).div_ceil(2);
    }

    /// Commands of a slot that take no longer to execute than a quarter of what a request waits before the leader is suspected: who
    /// watches sees it go on, also where the pipeline has come to its end.
    pub(crate) fn most_commands(&self) -> usize {
        let budget_us = self.timeouts.request_ms() * 1_000 / SLOT_PART;
        let most = budget_us.checked_div(self.command_us).unwrap_or(u64::MAX);
        usize::try_from(most).unwrap_or(usize::MAX).max(1)
    }

    /// Slots that were proposed and are not delivered.
    fn in_flight(&self) -> u64 {
        self.next_propose.previous().0.saturating_sub(self.delivered.0)
    }

    fn tell_decided(&mut self) {
        if self.is_byzantine() || self.decided_told >= self.delivered {
            return;
        }
        self.decided_told = self.delivered;
        let (view, slot, history) = (self.view, self.delivered, self.history);
        self.effects.push_back(Effect::Broadcast(Message::Decided { view, slot, history }));
    }
}
