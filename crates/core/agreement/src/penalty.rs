//! Who sends signatures that are not genuine pays for them.
//!
//! To verify a signature costs a thousand times what it costs to make one up. No correct peer sends
//! one that is not genuine, so whoever does is passed over for a while, which doubles each time:
//! what it makes others verify in vain is bounded by a constant number of messages in all, and
//! nobody else is served later for it.

use crate::machine::{Agreement, Effect};
use perdura_protocol::message::Message;
use perdura_protocol::{ReplicaId, View};

/// First pause after a signature that is not genuine.
const FIRST_MS: u64 = 100;

/// Longest doubling of it: 51 s.
const DOUBLINGS: u32 = 9;

/// After as long without another one, all is forgotten.
const FORGIVEN_MS: u64 = 300_000;

/// What only a faulty peer does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Misbehaviour {
    /// Two proposals for a slot in one view.
    Equivocation,
    /// Two votes for a slot in one view.
    DoubleVote,
    /// A signature that is not genuine.
    BadSignature,
    /// A view change or new view that does not hold.
    BadEvidence,
    /// A proposal against the view change's choice or against a decision.
    BadProposal,
    /// Decisions without proof.
    BadDecision,
    /// A message that only a leader, or nobody, sends.
    OutOfRole,
}

/// One peer's record, for one kind of work.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Penalty {
    strikes: u32,
    until_ms: u64,
}

impl Penalty {
    /// Another signature of it was not genuine.
    pub fn strike(&mut self, now_ms: u64) {
        if self.forgiven(now_ms) {
            self.strikes = 0;
        }
        self.until_ms = now_ms + (FIRST_MS << self.strikes.min(DOUBLINGS));
        self.strikes = self.strikes.saturating_add(1);
    }

    /// Whether its work is passed over now.
    #[must_use]
    pub fn holds(&self, now_ms: u64) -> bool {
        self.strikes > 0 && now_ms < self.until_ms
    }

    /// Whether the record can be forgotten.
    #[must_use]
    pub fn forgiven(&self, now_ms: u64) -> bool {
        self.strikes == 0 || now_ms >= self.until_ms + FORGIVEN_MS
    }
}

/// View changes of one replica whose sender's signature is verified at once, and the time after which
/// another one's is. A correct one sends one for each view, and repeats the newest.
const VIEW_CHANGES: Allowance = Allowance { most: 4, pause_ms: 50 };

/// The same of decisions that nobody asked it for; correct ones answer fetches only, but answers may
/// come late, or after a restart.
const DECISIONS: Allowance = Allowance { most: 8, pause_ms: 50 };

/// How much work of a kind is done at once, and the time after which some more is.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    most: u32,
    pause_ms: u64,
}

/// What of an allowance is used up.
#[derive(Clone, Copy, Default, Debug)]
struct Used {
    count: u32,
    since_ms: u64,
}

impl Used {
    /// Takes one more, if it is allowed.
    fn take(&mut self, allowance: Allowance, now_ms: u64) -> bool {
        let paid = now_ms.saturating_sub(self.since_ms) / allowance.pause_ms;
        if paid > 0 {
            self.count = self.count.saturating_sub(u32::try_from(paid).unwrap_or(u32::MAX));
            self.since_ms = now_ms;
        }
        let allowed = self.count < allowance.most;
        self.count += u32::from(allowed);
        allowed
    }
}

/// Answers to fetches that may be under way from one peer.
const FETCHES: u8 = 8;

/// What a peer may still make this replica verify.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Trust {
    pub penalty: Penalty,
    // The view that it led when it last did what no correct replica does.
    exposed: Option<View>,
    // Fetches that it has not answered.
    fetches: u8,
    decisions: Used,
    view_changes: Used,
}

impl Trust {
    /// It showed that it is faulty while it led this view.
    pub fn exposed_in(&mut self, view: View) {
        self.exposed = Some(view);
    }

    /// Whether it did in this one.
    pub fn exposed(&self, view: View) -> bool {
        self.exposed == Some(view)
    }

    /// Whether one more view change is to be verified.
    pub fn view_change(&mut self, now_ms: u64) -> bool {
        self.view_changes.take(VIEW_CHANGES, now_ms)
    }

    /// It is asked for decisions.
    pub fn fetch(&mut self) {
        self.fetches = (self.fetches + 1).min(FETCHES);
    }

    /// Whether decisions that it sent are to be verified.
    pub fn decisions(&mut self, now_ms: u64) -> bool {
        if self.fetches > 0 {
            self.fetches -= 1;
            return true;
        }
        self.decisions.take(DECISIONS, now_ms)
    }
}

/// Whether a replica has to verify signatures for the message.
pub(crate) fn is_signed(message: &Message) -> bool {
    matches!(
        message,
        Message::Write { .. }
            | Message::Accept { .. }
            | Message::Prefix { .. }
            | Message::ViewChange(_)
            | Message::NewView(_)
            | Message::Decisions { .. }
    )
}

impl Agreement {
    pub(crate) fn misbehaved(&mut self, replica: ReplicaId, what: Misbehaviour) {
        let signature = matches!(
            what,
            Misbehaviour::BadSignature | Misbehaviour::BadEvidence | Misbehaviour::BadDecision
        );
        if signature {
            let now_ms = self.clock_ms;
            self.trust[replica.index()].penalty.strike(now_ms);
        }
        self.on_exposed(replica);
        self.effects.push_back(Effect::Misbehaved { replica, what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_are_forgiven() {
        let mut penalty = Penalty::default();
        assert!(!penalty.holds(0) && penalty.forgiven(0));
        let mut now_ms = 1_000;
        let mut verified = 0;
        while now_ms < 1_000 + 3_600_000 {
            if !penalty.holds(now_ms) {
                penalty.strike(now_ms);
                verified += 1;
            }
            now_ms += 1;
        }
        assert!(verified <= 10 + 3_600 / 51, "{verified} signatures in an hour");
        now_ms += FORGIVEN_MS + 51_200;
        assert!(penalty.forgiven(now_ms) && !penalty.holds(now_ms));
        penalty.strike(now_ms);
        assert!(penalty.holds(now_ms + 99) && !penalty.holds(now_ms + 100));
    }

    #[test]
    fn what_nobody_asked_for_is_verified_now_and_then_and_answers_always() {
        let mut trust = Trust::default();
        let unasked = (0..10_000).filter(|now_ms| trust.decisions(*now_ms)).count();
        assert!((200..=208).contains(&unasked), "{unasked}");
        let changes = (0..10_000).filter(|now_ms| trust.view_change(*now_ms)).count();
        assert!((200..=204).contains(&changes), "{changes}");
        for _ in 0..3 {
            trust.fetch();
        }
        assert_eq!((0..10).filter(|_| trust.decisions(10_000)).count(), 4);
    }
}
