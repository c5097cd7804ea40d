//! The certified prefix: the base of view changes, and the window above it.
//!
//! A view change counts only if its locks lie within a window above its prefix: that bounds what
//! others have to take, hold and verify (A6). So that what a correct replica says counts with every
//! correct one (A4), this holds at all times of each replica that votes:
//!
//! *No lock lies more than a window above the own certified prefix.*
//!
//! 1. No vote is given further up (rule 2 of `rules`).
//! 2. The prefix only grows.
//! 3. Who restarts, and does not find in its log the prefix under which it voted, votes again only
//!    when peers have certified far enough ([`Agreement::new`]).
//!
//! [`Agreement::assert_window`] holds it wherever a view change is made. What the rule costs is paid
//! here: who took its slots from a peer that gave it no certified prefix asks the others for one
//! ([`Agreement::lacks_prefix`]), long before the window ends and before a leader proposes no further,
//! and votes that waited for the window are given when it moves.

use crate::machine::{Agreement, AwaitingFlush, Effect, Now};
use perdura_protocol::message::Message;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{Digest, Record, Slot, View, limits};

/// Of the prefixes that are proven and not delivered here so many are kept, and those within reach: the first ones,
/// which prove what comes next, and the last one.
const PREFIXES_AHEAD: usize = 4;

impl Agreement {
    /// Delivered slots between two signed prefixes. Where Accepts count by link there is one within the
    /// pipeline's reach from every slot, so that who catches up can judge it: it proves what is fetched (`proofs`).
    pub(crate) fn prefix_interval(&self) -> u64 {
        let most = self.settings.window * limits::PREFIX_INTERVAL / limits::WINDOW;
        let reach = if self.by_links() { self.settings.parameters.depth } else { most };
        most.min(reach).max(1)
    }

    /// Of each replica so many signed prefixes are kept: four times as many as it signs unasked while the window moves
    /// once, for what it attests is among them.
    pub(crate) fn most_prefix_votes(&self) -> usize {
        (self.settings.window / self.prefix_interval()) as usize * 4
    }

    /// Whether this replica knows of no prefix near the slots that it has delivered, though others
    /// can give it one that it is able to judge, or has a batch that waits for one; the driver asks them.
    #[must_use]
    pub fn lacks_prefix(&self) -> bool {
        let far = self.delivered > self.prefix.slot.plus(self.settings.window / 4);
        (far || self.asks_for_prefix()) && self.delivered_elsewhere() <= self.reach()
    }

    /// A certified prefix from a peer; what it does not prove is passed over. With it a replica
    /// that lost its memory of earlier votes may vote again.
    pub fn on_prefix_certificate(&mut self, now: Now, prefix: PrefixCertificate) {
        let of_use = prefix.slot > self.prefix.slot && prefix.slot <= self.reach();
        if of_use && self.judge(|_, verifier| verifier.prefix(&prefix)) {
            self.learn_prefix(now, prefix);
        }
    }

    /// A prefix is proven: it is the base of view changes from the moment on that this replica
    /// has delivered it.
    pub(crate) fn learn_prefix(&mut self, now: Now, prefix: PrefixCertificate) {
        if prefix.slot > self.delivered.max(self.prefix.slot) {
            self.prefixes_ahead.entry(prefix.slot).or_insert(prefix);
            let next_to_last = self.prefixes_ahead.keys().nth_back(1).copied();
            // What proves something that may come next stays.
            let further = next_to_last.filter(|slot| *slot > self.reach());
            if self.prefixes_ahead.len() > PREFIXES_AHEAD {
                further.and_then(|slot| self.prefixes_ahead.remove(&slot));
            }
        } else if prefix.slot > self.prefix.slot {
            self.take_prefix(now, prefix);
        }
    }

    /// Takes over a prefix that was proven before this replica had delivered it.
    pub(crate) fn adopt_prefix(&mut self, now: Now) {
        while let Some(ahead) = self.prefixes_ahead.first_entry()
            && *ahead.key() <= self.delivered
        {
            let prefix = ahead.remove();
            self.learn_prefix(now, prefix);
        }
    }

    fn take_prefix(&mut self, now: Now, prefix: PrefixCertificate) {
        if let Some(own) = self.own_histories.get(&prefix.slot) {
            assert!(*own == prefix.history, "history differs from a certified one: stop");
        }
        let window_before = self.vote_window();
        self.prefix = prefix.clone();
        self.forget_unproven(prefix.slot);
        self.effects.push_back(Effect::Note(Record::Prefix(prefix.clone())));
        // Accepts that wait for a slow disk, of slots that need them no more.
        let needless = |held: &AwaitingFlush| matches!(held, AwaitingFlush::OwnAccept(_, at, _) if *at <= prefix.slot);
        self.held.retain(|(_, held)| !needless(held));
        self.effects.push_back(Effect::Certified(prefix));
        self.forget_certified();
        // Votes that waited for the window.
        let waiting: Vec<Slot> =
            self.slots.range(window_before.next()..).map(|(slot, _)| *slot).collect();
        for slot in waiting {
            self.advance(now, slot);
        }
    }

    /// What this replica has executed up to `slot`, signed once more for who lacks the proof of it (r > 0). It is on
    /// disk here, and `history` is what it was.
    #[must_use]
    pub fn history_attestation(&self, slot: Slot, history: Digest) -> Option<Message> {
        let signs = self.governs(slot) && slot <= self.executed;
        signs.then(|| {
            let signature = self.sign(StatementKind::Prefix, View(0), slot, history);
            Message::Prefix { slot, history, signature }
        })
    }

    /// Whether this replica, and not a former incarnation of it, is the member in a slot. With its state lost it may
    /// know the newest configuration only.
    pub(crate) fn governs(&self, slot: Slot) -> bool {
        let member = self.configurations.governing(slot).and_then(|m| m.key(self.settings.me));
        member == Some(self.settings.key.public())
    }

    /// The last slot on which this replica votes.
    pub(crate) fn vote_window(&self) -> Slot {
        self.prefix.slot.plus(self.settings.window)
    }

    /// What is said of locks counts with everybody else.
    pub(crate) fn assert_window(&self) {
        let mut locked = self.slots.iter().rev().filter(|(_, state)| state.locked.is_some());
        let last = locked.next().map_or(Slot(0), |(slot, _)| *slot);
        assert!(
            last <= self.vote_window(),
            "a lock in slot {last}, a window above the prefix up to slot {}: stop",
            self.prefix.slot
        );
    }

    /// Forgets slots that are both delivered and certified: no view change speaks of them.
    pub(crate) fn forget_certified(&mut self) {
        let through = self.prefix.slot.min(self.executed);
        while let Some(entry) = self.slots.first_entry() {
            if *entry.key() > through {
                break;
            }
            let state = entry.remove();
            self.held_proposal_bytes -= state.held_bytes();
        }
        self.prefix_votes.forget_through(self.prefix.slot);
        self.own_histories = self.own_histories.split_off(&self.prefix.slot.next());
    }
}
