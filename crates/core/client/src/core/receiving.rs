//! Receiving: replies are matched until enough replicas agree.

use super::bounds::OPEN_ATTEMPTS;
use super::calls::Stage;
use super::{CallId, ClientCore};
use crate::outcome::{CallResult, Indeterminacy, Refusal, Reply};
use crate::votes::is_final;
use perdura_protocol::attestation::Attestation;
use perdura_protocol::{Message, Outcome, RefusalReason, ReplicaId, limits, seeded};

impl ClientCore {
    /// A message arrived by the link of `from`.
    pub fn on_message(&mut self, now_ms: u64, from: ReplicaId, message: Message) {
        if from.index() >= self.links.len() {
            return;
        }
        match message {
            Message::Welcome { view } => {
                if self.views.note(from, view) {
                    self.leader_changed();
                }
            }
            Message::Replies { view, nonce, outcomes } => {
                self.note_answer(now_ms);
                if self.views.note(from, view) {
                    self.leader_changed();
                }
                for (number, outcome) in outcomes {
                    self.reply(now_ms, from, nonce, number, &outcome);
                }
            }
            Message::Attested(attested) => {
                self.note_answer(now_ms);
                self.attested(now_ms, from, *attested);
            }
            Message::ReadReply { id, slot, outcome } => {
                self.note_answer(now_ms);
                self.read_reply(now_ms, from, id, slot, outcome)
            }
            Message::Busy { nonce, first_number } => {
                if from == self.views.leader() {
                    self.busy(now_ms, nonce, first_number);
                }
            }
            Message::Present { presence, signature } => self.on_present(from, presence, signature),
            _ => self.stats.unexpected_messages += 1,
        }
    }

    fn reply(&mut self, now_ms: u64, from: ReplicaId, nonce: u64, number: u64, outcome: &Outcome) {
        let witnesses = self.config.faults.witnesses();
        let Some(session) = self.session.as_mut().filter(|session| session.nonce == nonce) else {
            return;
        };
        if number == 0 {
            let Some(votes) = &mut session.opening else { return };
            let added = votes.add(from, outcome);
            self.stats.disagreements += u64::from(added.disagrees);
            if added.support >= witnesses {
                self.opened(now_ms, outcome);
            }
            return;
        }
        if number >= limits::FIRST_RENEWAL {
            self.renewal_answered(now_ms, from, number, outcome);
            return;
        }
        let Some(pending) = session.pending(number) else {
            if let Outcome::Waited { offer, .. } = outcome {
                session.answered_nobody(number, *offer);
            }
            return;
        };
        let added = pending.votes.add(from, outcome);
        self.stats.disagreements += u64::from(added.disagrees);
        if *outcome == Outcome::Waits {
            if added.support >= witnesses {
                session.carried_out(number);
                session.park(number);
            }
            return;
        }
        if *outcome == Outcome::Refused(RefusalReason::PutOff) {
            if added.support >= witnesses {
                let first = self.config.busy_first_ms.max(1);
                let longest = self.config.retransmit_longest_ms.max(1);
                session.put_off(number, now_ms, (first, longest));
            }
            return;
        }
        self.look_at_attestation(from, number);
        let first = seeded!(OneReplyIsEnough);
        if first || added.support >= self.wanted(number, outcome) {
            self.agreed(now_ms, number, outcome);
        }
    }

    /// Something came from a replica whose reply to this number is here: it may be what the others waited for.
    pub(super) fn complete_if_agreed(&mut self, now_ms: u64, from: ReplicaId, number: u64) {
        let pending = self.session.as_mut().and_then(|session| session.pending(number));
        let Some(pending) = pending else { return };
        let Some(outcome) = pending.votes.final_of(from).cloned() else { return };
        if pending.votes.support(&outcome) >= self.wanted(number, &outcome) {
            self.agreed(now_ms, number, &outcome);
        }
    }

    /// How many replicas have to say this of a number. What one correct replica no longer knows will not become known by asking on.
    fn wanted(&mut self, number: u64, outcome: &Outcome) -> usize {
        let pending = self.session.as_mut().and_then(|session| session.pending(number));
        let call = pending.filter(|_| is_final(outcome)).and_then(|one| self.calls.get(&one.call));
        call.map_or(self.config.faults.witnesses(), |call| call.quorum)
    }

    /// Enough replicas agree on the outcome of a number, which may be to be attested, too.
    fn agreed(&mut self, now_ms: u64, number: u64, outcome: &Outcome) {
        let Some(attestations) = self.attestations_of(number, outcome) else { return };
        let Some(session) = &mut self.session else { return };
        let parked = session.is_parked(number);
        let Some(id) = session.pending(number).map(|pending| pending.call) else { return };
        session.carried_out(number);
        match outcome {
            Outcome::Waited { outcome, offer: false } => {
                session.acknowledge(number);
                self.decided(now_ms, id, number, outcome, attestations);
            }
            Outcome::Waited { outcome, offer: true } => {
                // What cannot be read any more is not taken.
                if let Outcome::Service(reply) = outcome.as_ref() {
                    self.offered(id, number, Reply::Service(reply.clone()));
                }
            }
            // Its reply is gone, and it changed nothing: it is read again.
            Outcome::TooOld if !parked && self.calls.get(&id).is_some_and(|call| call.reads) => {
                if let Some(flight) = session.conclude(number) {
                    self.note_round_trip(now_ms, &flight);
                }
                self.stats.read_again += 1;
                self.wait(id);
            }
            // It waited, nothing that it was offered was confirmed, and it does not wait any more.
            Outcome::TooOld if parked => {
                let withdrawn = Outcome::Refused(RefusalReason::Withdrawn);
                self.decided(now_ms, id, number, &withdrawn, attestations);
            }
            outcome => self.decided(now_ms, id, number, outcome, attestations),
        }
    }

    /// Enough replicas agree on the outcome of number 0.
    fn opened(&mut self, now_ms: u64, outcome: &Outcome) {
        if *outcome == Outcome::Opened {
            self.open_attempts = 0;
            self.stats.sessions += 1;
            let Some(session) = &mut self.session else { return };
            session.opening = None;
            session.renewals.sent_fresh(now_ms);
            if let Some(flight) = session.settle(0) {
                self.note_round_trip(now_ms, &flight);
            }
            return;
        }
        if let Outcome::Refused(RefusalReason::NotNow { time, from }) = outcome {
            self.renumber(now_ms, *time, *from);
        }
        if *outcome == Outcome::NoSession {
            // Another process has it; or these replicas know no tokens.
            self.says_token = !self.says_token;
        }
        // This number was used before; another may do, unless the key itself is unknown.
        let reason = match outcome {
            Outcome::Refused(reason) => reason.clone(),
            _ => RefusalReason::Contradiction("session numbers of this key are used up".into()),
        };
        self.session = None;
        self.open_attempts += 1;
        if reason == RefusalReason::UnknownClient || self.open_attempts >= OPEN_ATTEMPTS {
            self.open_attempts = 0;
            self.refuse_waiting(&reason);
            self.refuse_sessions(&reason);
        }
    }

    fn refuse_waiting(&mut self, reason: &RefusalReason) {
        let waiting: Vec<CallId> = self
            .calls
            .iter()
            .filter(|(_, call)| call.stage == Stage::Waiting)
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            self.end_call(id, CallResult::Refused(Refusal::Session(reason.clone())));
        }
    }

    /// Enough replicas agree on what a number is offered: it is the caller's once they say that this is confirmed.
    fn offered(&mut self, id: CallId, number: u64, reply: Reply) {
        let (Some(session), Some(call)) = (&mut self.session, self.calls.get_mut(&id)) else {
            return;
        };
        if call.offered.is_none() {
            call.offered = Some(reply);
            session.accept(number);
        }
    }

    /// Enough replicas agree on the outcome of a number.
    fn decided(
        &mut self,
        now_ms: u64,
        id: CallId,
        number: u64,
        outcome: &Outcome,
        attestations: Vec<Attestation>,
    ) {
        let call = self.calls.get_mut(&id);
        let confirmed =
            call.filter(|call| call.stage == Stage::Sent(number) && *outcome == Outcome::Opened);
        let result = match confirmed.and_then(|call| call.offered.take()) {
            Some(reply) => CallResult::Completed(reply),
            None => match result_of(outcome) {
                CallResult::Completed(Reply::Service(reply)) if !attestations.is_empty() => {
                    CallResult::Completed(Reply::Attested { reply, attestations })
                }
                other => other,
            },
        };
        if let Some(flight) = self.session.as_mut().and_then(|session| session.conclude(number)) {
            self.note_round_trip(now_ms, &flight);
        }
        let ended = result == CallResult::Indeterminate(Indeterminacy::NoSession);
        self.end_call(id, result);
        if ended {
            self.session_ended();
        }
    }

    /// All numbers that are in flight were sent, once or more: whether an earlier try of theirs executed
    /// while the session lived, its end does not tell.
    pub(super) fn session_ended(&mut self) {
        for id in self.drop_session() {
            self.end_call(id, CallResult::Indeterminate(Indeterminacy::NoSession));
        }
    }
}

/// What an outcome that enough replicas agree on means for the call.
fn result_of(outcome: &Outcome) -> CallResult {
    match outcome {
        Outcome::Service(reply) => CallResult::Completed(Reply::Service(reply.clone())),
        Outcome::Administered { configuration, from_slot } => {
            CallResult::Completed(Reply::Administered {
                configuration: *configuration,
                from_slot: *from_slot,
            })
        }
        Outcome::Told(answer) => CallResult::Completed(Reply::Told(answer.clone())),
        Outcome::Refused(RefusalReason::WindowExceeded) => {
            CallResult::Indeterminate(Indeterminacy::WindowExceeded)
        }
        // Said of sessions only; of a number it would not tell about an earlier try.
        Outcome::Refused(RefusalReason::UnknownClient) => {
            CallResult::Indeterminate(Indeterminacy::NoSession)
        }
        Outcome::Refused(reason) => CallResult::Refused(Refusal::Ordered(reason.clone())),
        Outcome::TooOld => CallResult::Indeterminate(Indeterminacy::TooOld),
        Outcome::TooLarge { bytes } => {
            CallResult::Indeterminate(Indeterminacy::ReplyTooLarge(*bytes))
        }
        Outcome::NoSession => CallResult::Indeterminate(Indeterminacy::NoSession),
        Outcome::Opened | Outcome::Waits | Outcome::Waited { .. } => {
            CallResult::Indeterminate(Indeterminacy::UnexpectedReply)
        }
    }
}
