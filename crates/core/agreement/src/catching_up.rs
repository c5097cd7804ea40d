//! Catching up: a laggard fetches decided batches from those who are ahead of it ([`Fetches`] says what
//! from whom), and others get them from it.

use crate::fetches::{Ahead, Answer};
use crate::machine::{Agreement, Effect, Now};
use crate::penalty::Misbehaviour;
use crate::slot::Decided;
use perdura_protocol::message::{Decision, Message};
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{Certificate, Digest, ReplicaId, Slot, limits};

/// Whose answers bring nothing that proves what comes next for so long asks for a state. Those who are ahead may be too few
/// to attest, of members of its configuration or at all, and have a state that was certified; or one lies, and this is how
/// often it is heeded.
const UNPROVEN_MS: u64 = 3_000;

/// So many answers that came early are taken up in a round of input, at most: each may be 4 MiB of batches to
/// verify and to execute.
const EARLY_ANSWERS: u64 = 3;

impl Agreement {
    /// Whether this replica is so far behind what is decided that a vote of it is of little use to a client
    /// that waits: by a quarter of the window.
    #[must_use]
    pub fn is_far_behind(&self) -> bool {
        self.delivered_elsewhere() > self.delivered.plus(self.settings.window / 4)
    }

    /// A heartbeat: begins to fetch, if what is missing does not come by itself.
    pub(crate) fn fetch_if_behind(&mut self, now: Now) {
        let stalled = self.delivered == self.status_delivered;
        let far = self.delivered_elsewhere() > self.delivered.plus(self.settings.parameters.depth);
        if stalled || far {
            self.fetch_more(now);
        }
    }

    /// A tick: who did not answer in time is not waited for.
    pub(crate) fn watch_fetches(&mut self, now: Now) {
        self.fetches.expire(now.monotonic_ms);
        self.watch_unproven(now);
        self.begin_round(now);
        if self.fetches.under_way() || self.state_coming.is_some() {
            self.fetch_more(now);
        }
    }

    /// Asks for a state where fetching has brought no proof for long.
    fn watch_unproven(&mut self, now: Now) {
        let Some((delivered, since_ms)) = self.unproven_since else { return };
        if delivered != self.delivered {
            self.unproven_since = None;
        } else if now.monotonic_ms >= since_ms + UNPROVEN_MS {
            self.unproven_since = None;
            self.marks.states_for_proofs += 1;
            self.effects.push_back(Effect::FetchState { checkpoint: delivered.next() });
        }
    }

    /// An answer brought nothing that proves what comes next. The clock runs from the first since the last delivery.
    fn note_unproven(&mut self, now: Now) {
        let delivered = self.delivered;
        let since = self.unproven_since.filter(|(before, _)| *before == delivered);
        self.unproven_since = since.or(Some((delivered, now.monotonic_ms)));
    }

    /// The state of this slot is on its way: what comes after it is fetched meanwhile, and held until that
    /// one is installed. Or it comes no more.
    pub fn expect_state(&mut self, now: Now, slot: Option<Slot>) {
        self.state_coming = slot;
        self.fetch_more(now);
    }

    /// No state comes any more that what is held of the log after one could follow.
    pub fn forget_after_state(&mut self) {
        self.fetches.forget_after_state();
    }

    /// Asks for all that is to be asked for now.
    pub(crate) fn fetch_more(&mut self, now: Now) {
        let me = self.settings.me.index();
        let state = self.state_coming.filter(|slot| *slot > self.delivered);
        let (delivered, awaiting_state) = (self.delivered, self.awaiting_state);
        let held_back = (awaiting_state && state.is_none()) || self.lags_since.is_some();
        if held_back || self.claimed_elsewhere() <= delivered {
            return;
        }
        let mut peers: Vec<Slot> = self.peers.iter().map(|peer| peer.delivered).collect();
        peers[me] = Slot(0);
        let leader = self.leader();
        let ahead = Ahead { delivered, state, awaiting_state, peers: &peers, leader };
        while let Some(ask) = self.fetches.next_ask(now.monotonic_ms, &ahead) {
            self.trust[ask.of.index()].fetch();
            let message = Message::Fetch { from: ask.first, to: ask.last };
            self.effects.push_back(Effect::Send { to: ask.of, message });
        }
    }

    /// Of one seeder only (`Settings::one_seeder`): it gave the state, and is asked for what comes after it.
    pub fn set_seeder(&mut self, seeder: ReplicaId) {
        self.fetches.set_seeder(seeder);
    }

    pub(crate) fn on_fetch(&mut self, from: ReplicaId, first: Slot, last: Slot) {
        if first > self.delivered || first == Slot(0) || last < first {
            return;
        }
        if last > self.prefix.slot {
            self.prove_open();
        }
        let mut decisions = Vec::new();
        let mut bytes = 0;
        let mut slot = first;
        while let Some(decision) = self.decision(slot) {
            bytes += decision.batch.raw().len();
            decisions.push(decision);
            slot = slot.next();
            let enough = decisions.len() as u64 >= self.settings.parameters.depth;
            if bytes >= limits::FETCH_BYTES || enough || slot > last {
                break;
            }
        }
        if decisions.is_empty() {
            self.effects.push_back(Effect::Serve { to: from, from: first, last });
            return;
        }
        let prefix = Some(self.prefix.clone()).filter(|p| p.slot >= first && p.slot < slot);
        let message = Message::Decisions { decisions, prefix, between: Vec::new() };
        self.effects.push_back(Effect::Send { to: from, message });
    }

    pub(crate) fn on_decisions(
        &mut self,
        now: Now,
        from: ReplicaId,
        decisions: Vec<Decision>,
        prefix: Option<PrefixCertificate>,
        between: Vec<Digest>,
    ) {
        self.taken_up = 0;
        let answer = Answer::new(from, decisions, prefix, between);
        let asked = self.fetches.answered(now.monotonic_ms, &answer);
        let of_no_use = self.awaiting_state && self.state_coming.is_none();
        if of_no_use || !self.trust[from.index()].decisions(now.monotonic_ms) {
            return;
        }
        let early = answer.first() > self.delivered.next();
        if let Some(question) = asked.filter(|_| early || !self.takes_up()) {
            self.marks.decisions_held += 1;
            if !self.fetches.hold(answer, question) {
                self.fetches.failed(now.monotonic_ms, from);
            }
        } else if !early && self.lags_since.is_none() && !self.awaiting_state {
            self.take_up(now, answer, asked.is_some());
        }
        self.take_up_early(now);
        self.fetch_more(now);
    }

    /// A new round of input: what came early and is next goes on.
    pub fn begin_round(&mut self, now: Now) {
        self.clock_ms = now.monotonic_ms;
        self.taken_up = 0;
        self.prove_late(now);
        self.take_up_early(now);
    }

    /// Whether something that came early is next, and was left for another round.
    #[must_use]
    pub fn has_early(&self) -> bool {
        self.taken_up >= EARLY_ANSWERS && self.takes_up() && self.fetches.is_ready(self.delivered)
    }

    /// Whether all that is delivered is executed: the pipeline's reach goes from there.
    fn takes_up(&self) -> bool {
        self.executed == self.delivered && self.lags_since.is_none() && !self.awaiting_state
    }

    /// What came early and is next now, a few answers in a round: others wait for this replica too.
    pub(crate) fn take_up_early(&mut self, now: Now) {
        let before = self.taken_up;
        while self.taken_up < EARLY_ANSWERS
            && self.takes_up()
            && let Some(answer) = self.fetches.ready(self.delivered)
        {
            self.taken_up += 1;
            let before = self.delivered;
            self.take_up(now, answer, true);
            self.marks.held_in_vain += u64::from(self.delivered == before);
        }
        if self.taken_up > before {
            self.fetch_more(now);
        }
    }

    /// Delivers what is proven of an answer that begins at the next slot, or before it.
    fn take_up(&mut self, now: Now, answer: Answer, asked: bool) {
        let (before, last) = (self.delivered, answer.last());
        let Answer { from, decisions, prefix, between, .. } = answer;
        let mut next = self.delivered.next();
        let mut fresh: Vec<Decision> = Vec::new();
        for decision in decisions {
            if decision.slot < next {
                continue;
            }
            if decision.slot != next || decision.slot > self.reach() {
                break;
            }
            next = next.next();
            fresh.push(decision);
        }
        let covered = self.covered(now, &fresh, &between, prefix).unwrap_or_default();
        for decision in fresh {
            let proven = self.proven(&decision);
            if decision.slot > covered && !proven {
                // Without any Accepts it only lacks the prefix that would prove it.
                if !decision.accepts.is_empty() {
                    self.misbehaved(from, Misbehaviour::BadDecision);
                }
                break;
            }
            let Decision { slot, view, accepts, batch } = decision;
            // The prefix proves the batch, not what a liar may have put beside it; that is not
            // passed on.
            let accepts = if proven { accepts } else { Certificate::default() };
            let state = self.slot_mut(now, slot);
            if let Some(held) = &state.decided {
                assert!(held.batch.digest() == batch.digest(), "two decisions for a slot: stop");
            }
            state.decided = Some(Decided { view, batch, accepts });
        }
        self.deliver_decided(now);
        let progress = self.delivered > before;
        self.marks.decisions_fetched += u64::from(progress);
        // What others gave before it was needed no more, or is needed and waits here.
        if asked && !progress && last > before {
            self.fetches.failed(now.monotonic_ms, from);
            if !self.holds_next() {
                self.fetches.distrust(from);
            }
            self.note_unproven(now);
        }
    }

    /// The slot up to which a certified prefix proves these decisions, if one does: the one that came with them, or one that
    /// is known here. Behind the last one, `between` says what was decided up to there; whether there is a configuration in between of which
    /// this replica does not know, it can tell as far as the pipeline reaches.
    fn covered(
        &mut self,
        now: Now,
        decisions: &[Decision],
        between: &[Digest],
        prefix: Option<PrefixCertificate>,
    ) -> Option<Slot> {
        let last = decisions.last()?.slot;
        let known = decisions.iter().map(|decision| (decision.slot, decision.batch.digest()));
        let behind = (last.0 + 1..).map(Slot).zip(between.iter().copied());
        let (reach, mut history) = (self.reach(), self.history);
        let mut chain: Vec<(Slot, Digest)> = Vec::new();
        for (slot, digest) in known.chain(behind).take_while(|(slot, _)| *slot <= reach) {
            history = history.chain(slot, digest);
            chain.push((slot, history));
        }
        if let Some(prefix) = prefix
            && chain.contains(&(prefix.slot, prefix.history))
            && self.judge(|_, verifier| verifier.prefix(&prefix))
        {
            self.learn_prefix(now, prefix);
        }
        let ahead = &self.prefixes_ahead;
        let certified = |(slot, history): &&(Slot, Digest)| {
            ahead.get(slot).is_some_and(|prefix| prefix.history == *history)
        };
        chain.iter().rev().find(certified).map(|(slot, _)| *slot)
    }

    /// Whether a quorum of Accepts proves the decision. With r = 0 nobody lies about one.
    fn proven(&mut self, decision: &Decision) -> bool {
        if !self.is_byzantine() {
            return true;
        }
        let Decision { slot, view, accepts, batch } = decision;
        let (quorum, digest) = (self.quorum(), batch.digest());
        self.judge(|_, verifier| {
            verifier.certified(accepts, quorum, StatementKind::Accept, *view, *slot, digest)
        })
    }

    /// Only a peer that was asked may send this replica after a state: at once if a correct one is ahead, else in time.
    pub(crate) fn on_too_old(&mut self, now: Now, from: ReplicaId, checkpoint: Slot) {
        if !self.fetches.asks(from) || checkpoint <= self.delivered {
            return;
        }
        self.fetches.too_old(now.monotonic_ms, from);
        if self.delivered_elsewhere() > self.delivered {
            self.effects.push_back(Effect::FetchState { checkpoint });
        } else {
            self.note_unproven(now);
        }
    }
}
