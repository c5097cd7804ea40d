//! What a node knows of the states that are read beside its stage: that of the view, and those that were shared before it, which are kept for a
//! moment. Answers to a read that are of different slots are asked for again, of one slot (rule C2).

use perdura_execution::{ExecutedBatch, ReadState};
use perdura_protocol::{Batch, Frame, Slot, seeded};
use std::collections::VecDeque;

/// States that are kept besides that of the view.
pub const KEPT_STATES: usize = 16;

/// For so long: the second question comes a round trip behind the answer to the first.
const KEPT_MS: u64 = 1_000;

/// What batches copied that came after the oldest of them, in bytes: so much memory they may hold on to. Or as much as a quarter of the state.
const KEPT_BYTES: u64 = 64 * 1024 * 1024;

/// A change of a shared state copies the piece of a map in which it is: the store's segments have so many bytes at most.
const PIECE_BYTES: u64 = 64 * 1024;

/// What services charge for a change, at least, bytes ([`perdura_execution::Meter`]).
const CHANGE_COST: u64 = 4096;

/// Bytes that a command takes for a change, at least: a key and how it is to be changed.
const CHANGE_BYTES: u64 = 24;

/// How much a batch copies at most of a state of `state_bytes` that is shared.
pub(super) fn copies(batch: &Batch, ran: &ExecutedBatch, state_bytes: u64) -> u64 {
    let frames = batch.frames().iter();
    let changes = |frame: &Frame| {
        (frame.commands().len() as u64).max(frame.raw().len() as u64 / CHANGE_BYTES)
    };
    let changes: u64 = frames.map(changes).sum();
    let costs: u64 = ran.executed.costs.values().sum();
    pieces(changes, costs).saturating_mul(PIECE_BYTES).min(state_bytes)
}

/// How many pieces are copied at most: one short command may change much, and was charged for each change.
fn pieces(changes: u64, costs: u64) -> u64 {
    changes.saturating_add(costs / CHANGE_COST)
}

#[derive(Debug)]
struct Kept {
    state: ReadState,
    until_ms: u64,
    // By the batch behind it.
    copied: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Beside {
    // The state of the view, where it was shared.
    shared: Option<ReadState>,
    // Oldest first.
    kept: VecDeque<Kept>,
    // Up to which slot the stage was told to share states.
    through: Slot,
    // What is not kept any more: it may be much that this was the last to hold.
    let_go: Vec<ReadState>,
}

impl Beside {
    /// The state of the view, if it is shared.
    pub fn shared(&self) -> Option<&ReadState> {
        self.shared.as_ref()
    }

    /// The state after a slot, if there is one.
    pub fn state_after(&self, slot: Slot) -> Option<&ReadState> {
        let kept = self.kept.iter().map(|kept| &kept.state).chain(&self.shared);
        if seeded!(ReadAtNewest) {
            return kept.last();
        }
        kept.rev().find(|state| state.slot() == slot)
    }

    /// The stage gave the state of the view.
    pub fn shares(&mut self, state: ReadState) {
        self.let_go.extend(self.shared.replace(state));
    }

    /// A batch was executed that copied so much of a state of `state_bytes`, and this is the state after it, if it is shared.
    pub fn executed(
        &mut self,
        state: Option<ReadState>,
        (copied, state_bytes): (u64, u64),
        now_ms: u64,
    ) {
        let before = std::mem::replace(&mut self.shared, state);
        // Where states are not shared any more nobody reads, and that of the batch before holds on to memory.
        match (before, &self.shared) {
            (Some(state), Some(_)) => {
                self.kept.push_back(Kept { state, until_ms: now_ms + KEPT_MS, copied });
            }
            (before, _) => {
                self.let_go.extend(before);
                if let Some(last) = self.kept.back_mut() {
                    last.copied = last.copied.saturating_add(copied);
                }
            }
        }
        let most = KEPT_BYTES.max(state_bytes / 4);
        while self.kept.len() > KEPT_STATES || self.copied() > most {
            self.let_go_oldest();
        }
    }

    /// Time passes.
    pub fn tick(&mut self, now_ms: u64) {
        while self.kept.front().is_some_and(|kept| kept.until_ms <= now_ms) {
            self.let_go_oldest();
        }
    }

    fn let_go_oldest(&mut self) {
        self.let_go.extend(self.kept.pop_front().map(|kept| kept.state));
    }

    /// What is not kept any more, to be freed where nobody waits for that.
    pub fn take_let_go(&mut self) -> Vec<ReadState> {
        std::mem::take(&mut self.let_go)
    }

    /// The state that all these are of is another one now.
    pub fn end(mut self) -> Vec<ReadState> {
        self.let_go.extend(self.kept.into_iter().map(|kept| kept.state));
        self.let_go.extend(self.shared);
        self.let_go
    }

    /// Up to which slot the stage is to share states, as one of the view at `slot` is read: for as long as a pipeline of `depth` has slots
    /// twice; `None` if it was told lately.
    pub fn share(&mut self, slot: Slot, depth: u64) -> Option<Slot> {
        if slot.plus(depth) <= self.through {
            return None;
        }
        self.through = slot.plus(2 * depth);
        Some(self.through)
    }

    /// States that are kept.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// By all batches behind the oldest.
    fn copied(&self) -> u64 {
        self.kept.iter().map(|kept| kept.copied).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_execution::{Genesis, Machine};
    use perdura_protocol::configuration::{Member, Parameters};
    use perdura_protocol::{ClusterId, Configuration, Faults, PublicKey};
    use perdura_store::Store;

    const MIB: u64 = 1024 * 1024;

    fn shared() -> Option<ReadState> {
        let parameters = Parameters {
            depth: 4,
            checkpoint_bytes: MIB,
            state_limit_bytes: MIB,
            ..Parameters::small(ClusterId([1; 16]), Faults::new(1, 0).unwrap(), PublicKey([9; 32]))
        };
        let members = (1..4).map(|id| Member { key: PublicKey([id; 32]), incarnation: 0 });
        let members = members.collect();
        let configuration = Configuration { id: 0, from_slot: Slot(0), members };
        let genesis = Genesis { configuration, clients: Vec::new() };
        Machine::new(&parameters, genesis, Store::new(MIB)).unwrap().read_state()
    }

    #[test]
    fn a_short_command_that_changes_much_copies_a_piece_for_each_change() {
        assert_eq!(pieces(3, 4 * CHANGE_COST - 1), 6);
        assert_eq!(pieces(1, 16 * MIB) * PIECE_BYTES, 256 * MIB + PIECE_BYTES);
    }

    #[test]
    fn states_are_kept_as_long_as_little_was_copied_behind_them() {
        let mut beside = Beside::default();
        for batch in 0..20 {
            beside.executed(shared(), (MIB, 100 * MIB), batch);
        }
        assert_eq!((beside.kept(), beside.copied()), (KEPT_STATES, 16 * MIB));
        assert_eq!(
            beside.take_let_go().len(),
            3,
            "one is shared, and the others are freed elsewhere"
        );
        // One that copies more than all may hold on to lets all go but that of the view.
        beside.executed(shared(), (65 * MIB, 100 * MIB), 20);
        assert_eq!((beside.kept(), beside.copied(), beside.shared().is_some()), (0, 0, true));
        // Of a large state a quarter may be copied.
        for batch in 21..24 {
            beside.executed(shared(), (65 * MIB, 800 * MIB), batch);
        }
        assert_eq!((beside.kept(), beside.copied()), (3, 195 * MIB));
        // What comes while nothing is shared is copied all the same.
        beside.executed(None, (10 * MIB, 800 * MIB), 24);
        assert_eq!(
            (beside.kept(), beside.copied(), beside.shared().is_none()),
            (2, 140 * MIB, true)
        );
        beside.tick(KEPT_MS + 22);
        assert_eq!((beside.kept(), beside.copied()), (1, 75 * MIB));
        beside.tick(KEPT_MS + 23);
        assert_eq!((beside.kept(), beside.copied()), (0, 0));
        beside.executed(shared(), (MIB, 800 * MIB), 25);
        beside.take_let_go();
        beside.executed(shared(), (MIB, 800 * MIB), 26);
        assert_eq!((beside.kept(), beside.end().len()), (1, 2), "all go with their machine");
    }
}
