//! Sessions: exactly-once execution of numbered commands (rule E4).
//!
//! A session holds the replies to the numbers in its window, `acked_below` up to
//! [`limits::SESSION_WINDOW`] more. Numbers arrive in any order inside the window, because frames
//! may overtake each other.
//!
//! # Why no command executes twice
//!
//! A Byzantine leader may propose any signed frame again, in any order, at any time. A number of a
//! session executes only while the session is live, the number is not below `acked_below`, and no
//! reply is recorded for it; executing it records one, in the same step. A recorded reply leaves
//! only when `acked_below` rises above its number (its body may be dropped earlier, its mark stays),
//! and `acked_below` never falls. So a number executes at most once in the life of its session, and
//! no session lives twice: a nonce opens one only within a minute of agreed time, and every nonce that opened one is remembered until that
//! minute has passed (under the first version of the rules: until [`Tables`](crate::sessions) `lowest` rises above it, which never falls).
//! A revoked client's table goes, but its key is never registered again. All of this
//! is in the snapshot, so it survives restarts and state transfer.
//!
//! A client that signs different commands under one number gets one of them executed.
//!
//! # Commands that wait
//!
//! A number whose command waits has executed: it is marked, and neither executes again nor has an
//! answer until the service releases its reply, which is recorded in the place of the mark. Marks are in the snapshot.
//!
//! A wait holds no place of the window: `acked_below` may rise above its number, and neither the mark nor the result goes by that. A result
//! is kept until the client acknowledges it by name ([`Command::Confirm`](perdura_protocol::Command::Confirm)), so that a session has a
//! bounded number of both. One that hands something over is an offer: it is the client's when that confirms it in time, and the next one's
//! else. So nothing is given to a client that is not there to say that it has it.
//!
//! Under the first version of the rules the mark leaves like a reply, when `acked_below` rises above the number; then the service is told to
//! forget the command.
//!
//! # Renewals
//!
//! What executes renews its session, and so does [`Command::Renew`](perdura_protocol::Command::Renew), under a number of its own range that has to
//! be larger than all before: what is proposed again keeps no session alive.

use crate::cost::SESSION_BODIES;
use crate::manifest::Entry;
use bytes::Bytes;
use perdura_protocol::codec::{encode_count, encode_list};
use perdura_protocol::{
    Decode, DecodeError, Encode, Outcome, Reader, RefusalReason, SessionId, Slot, Time, limits,
    seeded,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// A live session.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    // The last slot in which it executed something. Replayed frames do not move it: they must not
    // decide which session is evicted.
    last_used: Slot,
    // When it last executed something or was renewed, up to a second before; from version 1 of the rules on.
    renewed: Option<Time>,
    // The largest number that renewed it, or 0.
    renewal: u64,
    // Of the process that opened it; zeros if it gave none.
    token: Token,
    acked_below: u64,
    // Numbers at or above `acked_below` that executed. `Outcome::TooOld` marks a dropped body.
    replies: BTreeMap<u64, Outcome>,
    // Numbers that executed and wait for their replies; none of them is in `replies`. Under the first rules at or above `acked_below`.
    waiting: BTreeSet<u64>,
    // What numbers that waited came to, until the client has acknowledged it; none of them is in `replies` or `waiting`.
    results: BTreeMap<u64, Outcome>,
    // When those of them that are offers are not any more, by the clock of sessions.
    offers: BTreeMap<u64, Time>,
    // The same by time.
    by_time: BTreeSet<(Time, u64)>,
    // Sum of `body_bytes` over `replies` and `results`, at most `limits::SESSION_REPLY_BYTES`.
    reply_bytes: usize,
    // Of the encoded session; empty after a change.
    entry: OnceLock<Entry>,
}

/// What becomes of a command number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// It is to be executed now, and the outcome recorded.
    Fresh,
    /// It is not; this is the answer.
    Answered(Outcome),
    /// It is not; the answer comes by itself.
    Waits,
}

/// What tells processes that open a session of one number from each other.
pub(crate) type Token = [u8; 16];

/// What the tables of sessions know of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SessionState {
    pub(crate) reply_bytes: usize,
    pub(crate) last_used: Slot,
    pub(crate) renewed: Option<Time>,
    /// Whether something waits in it.
    pub(crate) waits: bool,
    /// When the first offer ends.
    pub(crate) offered: Option<Time>,
}

/// What became of a number that is withdrawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Withdrawn {
    /// It waited.
    Waited,
    /// It was offered something.
    Offered,
    /// It had not been executed.
    Fresh,
    /// It had its outcome before, or is none of the session's.
    Settled,
}

/// What is executed within this time of a renewal counts as done with it, so that not every frame moves the session's end.
const RENEWED_MS: u64 = 1_000;

/// What an outcome counts for among cached replies.
pub(crate) fn body_bytes(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Service(reply) | Outcome::Told(reply) => reply.len(),
        Outcome::Waited { outcome, .. } => body_bytes(outcome),
        Outcome::Refused(RefusalReason::Contradiction(text) | RefusalReason::Service(text)) => {
            text.len()
        }
        _ => 0,
    }
}

impl Session {
    /// Bytes of its cached replies.
    pub(crate) fn reply_bytes(&self) -> usize {
        self.reply_bytes
    }

    pub(super) fn new(slot: Slot, renewed: Option<Time>) -> Session {
        Session {
            last_used: slot,
            renewed,
            renewal: 0,
            token: Token::default(),
            acked_below: 0,
            replies: BTreeMap::new(),
            waiting: BTreeSet::new(),
            results: BTreeMap::new(),
            offers: BTreeMap::new(),
            by_time: BTreeSet::new(),
            reply_bytes: 0,
            entry: OnceLock::new(),
        }
    }

    /// The answer to a number that needs no execution any more; number 0 opened the session.
    pub(crate) fn answer(&self, number: u64) -> Option<Outcome> {
        if number == 0 || self.has_renewed(number) {
            Some(Outcome::Opened)
        } else if self.waiting.contains(&number) {
            None
        } else if let Some(result) = self.results.get(&number) {
            Some(result.clone())
        } else if number < self.acked_below {
            Some(Outcome::TooOld)
        } else {
            self.replies.get(&number).cloned()
        }
    }

    /// Whether `number` needs no execution any more: it has an answer, or waits for one.
    pub(crate) fn is_settled(&self, number: u64) -> bool {
        number < self.acked_below.max(1) || self.has_renewed(number) || self.knows(number)
    }

    /// Numbers that are settled though they are neither below `acked_below` nor of renewals; and some more that are settled.
    pub(crate) fn settled(&self) -> impl Iterator<Item = u64> + '_ {
        let replies = self.replies.keys().chain(self.results.keys());
        replies.chain(&self.waiting).copied()
    }

    /// The largest number that renewed it, or 0.
    pub(crate) fn renewal(&self) -> u64 {
        self.renewal
    }

    fn knows(&self, number: u64) -> bool {
        self.replies.contains_key(&number)
            || self.waiting.contains(&number)
            || self.results.contains_key(&number)
    }

    /// As one that a process with this token opened.
    pub(super) fn opened_by(self, token: Token) -> Session {
        Session { token, ..self }
    }

    /// What a process that opens it again is told.
    pub(crate) fn opened_again(&self, token: Token) -> Outcome {
        if self.token == token { Outcome::Opened } else { Outcome::NoSession }
    }

    fn has_renewed(&self, number: u64) -> bool {
        (limits::FIRST_RENEWAL..=self.renewal).contains(&number)
    }

    /// [`Command::Renew`](perdura_protocol::Command::Renew) under this number, and what it is answered.
    pub(crate) fn renew(&mut self, clock: Time, number: u64) -> Outcome {
        if number > self.renewal || seeded!(RenewedAgain) {
            self.renewal = number.max(self.renewal);
            self.touch(Some(clock));
            self.entry.take();
        }
        Outcome::Opened
    }

    /// Something was executed, or the client is there.
    fn touch(&mut self, clock: Option<Time>) {
        if let (Some(clock), Some(renewed)) = (clock, self.renewed)
            && clock.0 >= renewed.0 + RENEWED_MS
        {
            self.renewed = Some(clock);
        }
    }

    /// The rules have sessions end by time from now on.
    pub(super) fn start_timing(&mut self, clock: Time) {
        self.renewed = Some(clock);
        self.entry.take();
    }

    pub(crate) fn held(&self) -> SessionState {
        let Session { reply_bytes, last_used, renewed, .. } = *self;
        let offered = self.by_time.first().map(|(until, _)| *until);
        SessionState { reply_bytes, last_used, renewed, waits: !self.waiting.is_empty(), offered }
    }

    /// Whether `number` is to be executed. A number beyond the window is refused for now: it is not
    /// recorded, and may execute when its frame is ordered again.
    pub(crate) fn admit(&self, number: u64) -> Admission {
        if let Some(outcome) = self.answer(number) {
            return Admission::Answered(outcome);
        }
        if self.waiting.contains(&number) {
            return Admission::Waits;
        }
        if self.renewed.is_some() && number >= limits::FIRST_RENEWAL {
            return Admission::Answered(Outcome::Refused(RefusalReason::Malformed));
        }
        let ahead = number - self.acked_below;
        if ahead >= limits::SESSION_WINDOW && !seeded!(SessionWindowUnchecked) {
            return Admission::Answered(Outcome::Refused(RefusalReason::WindowExceeded));
        }
        Admission::Fresh
    }

    /// Whether a number of the window has no outcome and does not wait.
    fn is_open(&self, number: u64) -> bool {
        number >= self.acked_below.max(1)
            && number - self.acked_below < limits::SESSION_WINDOW
            && !self.knows(number)
    }

    fn is_timed(&self) -> bool {
        self.renewed.is_some()
    }

    /// Whether no command more of it may wait.
    pub(crate) fn is_full_of_waits(&self) -> bool {
        self.is_timed() && self.waiting.len() + self.results.len() >= limits::SESSION_WAITS
    }

    /// Whether the reply to this number can be kept beside those that are. The lowest that the client has no reply to always goes on.
    pub(crate) fn has_room_for_replies(&self, number: u64) -> bool {
        self.reply_bytes < SESSION_BODIES || self.is_lowest(number)
    }

    /// Whether the client waits for no lower number.
    pub(crate) fn is_lowest(&self, number: u64) -> bool {
        number == self.acked_below.max(1)
    }

    /// Below this number the client asks for nothing any more.
    pub(crate) fn acked_below(&self) -> u64 {
        self.acked_below
    }

    /// Numbers whose commands wait, ascending.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u64> + '_ {
        self.waiting.iter().copied()
    }

    /// Numbers of offers that are not confirmed, ascending.
    pub(crate) fn offered(&self) -> impl Iterator<Item = u64> + '_ {
        self.offers.keys().copied()
    }

    /// Drops the replies that the client no longer asks for; gives the numbers whose commands still
    /// waited, ascending, and do so no more: none, but under the first rules.
    pub(crate) fn acknowledge(&mut self, below: u64) -> BTreeSet<u64> {
        if below <= self.acked_below {
            return BTreeSet::new();
        }
        self.acked_below = below;
        let below = if seeded!(AcknowledgedOneTooMany) { below.saturating_add(1) } else { below };
        while let Some(first) = self.replies.first_entry()
            && *first.key() < below
        {
            self.reply_bytes -= body_bytes(&first.remove());
        }
        if !seeded!(StaleSessionDigest) {
            self.entry.take();
        }
        if self.is_timed() {
            return BTreeSet::new();
        }
        let still = self.waiting.split_off(&self.acked_below);
        std::mem::replace(&mut self.waiting, still)
    }

    /// Marks a number that was [`Admission::Fresh`], and whose command waits.
    pub(crate) fn wait(&mut self, slot: Slot, clock: Option<Time>, number: u64) {
        self.last_used = slot;
        self.touch(clock);
        let marked = self.waiting.insert(number);
        let known = self.replies.contains_key(&number) || self.results.contains_key(&number);
        assert!(marked && !known, "a command executed twice");
        self.entry.take();
    }

    /// Records the outcome of a number whose command waits, which is an offer if it ends at a time; whether there is one.
    pub(crate) fn release(
        &mut self,
        slot: Slot,
        number: u64,
        outcome: Outcome,
        until: Option<Time>,
    ) -> bool {
        if !self.waiting.remove(&number) {
            return false;
        }
        if !self.is_timed() {
            self.record(slot, None, number, outcome);
            return true;
        }
        self.last_used = slot;
        self.reply_bytes += body_bytes(&outcome);
        self.results.insert(number, outcome);
        if let Some(until) = until {
            self.offers.insert(number, until);
            self.by_time.insert((until, number));
        }
        self.drop_bodies(limits::SESSION_REPLY_BYTES);
        true
    }

    /// The client has what a number that waited came to: it is kept no longer, and was an offer or not; none if nothing is kept.
    pub(crate) fn confirm(&mut self, slot: Slot, number: u64) -> Option<bool> {
        let outcome = self.result(number)?;
        Some(self.conclude(slot, number, outcome))
    }

    /// What a number that waited came to.
    fn result(&self, number: u64) -> Option<Outcome> {
        match self.results.get(&number)? {
            Outcome::Waited { outcome, .. } => Some(Outcome::clone(outcome)),
            other => Some(other.clone()),
        }
    }

    /// A number that waited, or has the result of that, comes to this. As others it is remembered only from `acked_below` on. Whether it was
    /// an offer.
    fn conclude(&mut self, slot: Slot, number: u64, outcome: Outcome) -> bool {
        self.waiting.remove(&number);
        if let Some(result) = self.results.remove(&number) {
            self.reply_bytes -= body_bytes(&result);
        }
        let until = self.offers.remove(&number);
        if let Some(until) = until {
            self.by_time.remove(&(until, number));
        }
        if number >= self.acked_below {
            self.record(slot, None, number, outcome);
        } else {
            self.last_used = slot;
            self.entry.take();
        }
        until.is_some()
    }

    /// The offers that were not confirmed in time.
    pub(crate) fn lapsed(&self, clock: Time) -> Vec<u64> {
        self.by_time.range(..=(clock, u64::MAX)).map(|(_, number)| *number).collect()
    }

    /// Nobody asks for `number` any more: it gets nothing if it waits or was offered something, and is never executed if it was not.
    pub(crate) fn withdraw(&mut self, slot: Slot, number: u64) -> Withdrawn {
        let outcome = Outcome::Refused(RefusalReason::Withdrawn);
        if self.waiting.contains(&number) {
            self.conclude(slot, number, outcome);
            return Withdrawn::Waited;
        }
        if self.offers.contains_key(&number) {
            self.conclude(slot, number, outcome);
            return Withdrawn::Offered;
        }
        // A result that is no offer stays until its client says that it has it: it is what happened.
        if self.admit(number) == Admission::Fresh {
            self.record(slot, None, number, outcome);
            return Withdrawn::Fresh;
        }
        Withdrawn::Settled
    }

    /// Records the outcome of a number that was [`Admission::Fresh`].
    pub(crate) fn record(
        &mut self,
        slot: Slot,
        clock: Option<Time>,
        number: u64,
        outcome: Outcome,
    ) {
        self.last_used = slot;
        self.touch(clock);
        self.reply_bytes += body_bytes(&outcome);
        let previous = self.replies.insert(number, outcome);
        assert!(previous.is_none(), "a command executed twice");
        self.drop_bodies(limits::SESSION_REPLY_BYTES);
    }

    /// Drops the oldest bodies until at most `most` bytes are left. An offer without one is nobody's loss: who cannot read it any more does not
    /// confirm it.
    pub(super) fn drop_bodies(&mut self, most: usize) {
        self.entry.take();
        for outcome in self.replies.values_mut().chain(self.results.values_mut()) {
            if self.reply_bytes <= most {
                break;
            }
            let bytes = body_bytes(outcome);
            if bytes > 0 {
                self.reply_bytes -= bytes;
                match outcome {
                    Outcome::Waited { outcome, .. } => **outcome = Outcome::TooOld,
                    other => *other = Outcome::TooOld,
                }
            }
        }
    }

    pub(crate) fn piece(&self, id: SessionId) -> Bytes {
        let mut out = Vec::with_capacity(64 + self.replies.len() * 16 + self.reply_bytes);
        id.encode(&mut out);
        self.last_used.encode(&mut out);
        if let Some(renewed) = self.renewed {
            renewed.encode(&mut out);
            self.renewal.encode(&mut out);
            self.token.encode(&mut out);
        }
        self.acked_below.encode(&mut out);
        encode_count(self.replies.len(), &mut out);
        for (number, outcome) in &self.replies {
            number.encode(&mut out);
            outcome.encode(&mut out);
        }
        let waiting: Vec<u64> =
            self.waiting().filter(|_| !seeded!(WaitingNotInCheckpoint)).collect();
        if self.is_timed() || !waiting.is_empty() {
            encode_list(&waiting, &mut out);
        }
        if self.is_timed() {
            encode_count(self.results.len(), &mut out);
            for (number, outcome) in &self.results {
                number.encode(&mut out);
                self.offers.get(number).copied().encode(&mut out);
                outcome.encode(&mut out);
            }
        }
        out.into()
    }

    pub(crate) fn entry(&self, id: SessionId) -> Entry {
        *self.entry.get_or_init(|| Entry::of(&self.piece(id)))
    }

    /// What [`Session::piece`] gave, under rules by which sessions end by time or not.
    pub(crate) fn from_piece(
        piece: Bytes,
        timed: bool,
    ) -> Result<(SessionId, Session), DecodeError> {
        let mut reader = Reader::new(piece);
        let id = SessionId::decode(&mut reader)?;
        let slot = Slot::decode(&mut reader)?;
        let renewed = if timed { Some(Time::decode(&mut reader)?) } else { None };
        let mut session = Session::new(slot, renewed);
        let mut renewal = 0;
        if timed {
            renewal = Decode::decode(&mut reader)?;
            session.token = Decode::decode(&mut reader)?;
            if !matches!(renewal, 0 | limits::FIRST_RENEWAL..) {
                return Err(DecodeError::NotCanonical("the renewal of a session"));
            }
        }
        session.acked_below = Decode::decode(&mut reader)?;
        let most = limits::SESSION_WINDOW as usize;
        for _ in 0..reader.count("replies of a session", most, 9)? {
            let number = u64::decode(&mut reader)?;
            let outcome = owned(Outcome::decode(&mut reader)?);
            let ascending = session.replies.last_key_value().is_none_or(|(last, _)| *last < number);
            if !ascending || !is_reply(&outcome) || !session.is_open(number) {
                return Err(DecodeError::NotCanonical("numbers of a session"));
            }
            session.reply_bytes += body_bytes(&outcome);
            session.replies.insert(number, outcome);
        }
        if timed || reader.remaining() > 0 {
            let waiting: Vec<u64> = reader.list("numbers that wait", most, 8)?;
            let ascending = waiting.windows(2).all(|pair| pair[0] < pair[1]);
            let fresh = waiting.iter().all(|number| session.may_have_waited(*number));
            if (waiting.is_empty() && !timed) || !ascending || !fresh {
                return Err(DecodeError::NotCanonical("numbers that wait"));
            }
            session.waiting = waiting.into_iter().collect();
        }
        if timed {
            session.decode_results(&mut reader)?;
        }
        if session.reply_bytes > limits::SESSION_REPLY_BYTES {
            return Err(DecodeError::NotCanonical("a session with too many replies"));
        }
        // Numbers of the first rules may lie among those of renewals, and are what they were.
        session.renewal = renewal;
        reader.finish()?;
        Ok((id, session))
    }

    fn decode_results(&mut self, reader: &mut Reader) -> Result<(), DecodeError> {
        let most = limits::SESSION_WAITS - self.waiting.len().min(limits::SESSION_WAITS);
        for _ in 0..reader.count("results of a session", most, 10)? {
            let number = u64::decode(reader)?;
            let until: Option<Time> = Decode::decode(reader)?;
            let outcome = owned(Outcome::decode(reader)?);
            let ascending = self.results.last_key_value().is_none_or(|(last, _)| *last < number);
            let fits = matches!(outcome, Outcome::Waited { offer, .. } if offer == until.is_some());
            if !ascending || !fits || !self.may_have_waited(number) {
                return Err(DecodeError::NotCanonical("results of a session"));
            }
            self.reply_bytes += body_bytes(&outcome);
            self.results.insert(number, outcome);
            if let Some(until) = until {
                self.offers.insert(number, until);
                self.by_time.insert((until, number));
            }
        }
        Ok(())
    }

    /// Whether a number that is not known may have waited: where waits hold no place of the window, also below it.
    fn may_have_waited(&self, number: u64) -> bool {
        let passed = self.is_timed() && number >= 1 && number < self.acked_below;
        (passed && !self.knows(number)) || self.is_open(number)
    }

    /// Whether the command with this number waits.
    pub(crate) fn waits(&self, number: u64) -> bool {
        self.waiting.contains(&number)
    }
}

/// Whether a number that has an outcome for good may have this one.
fn is_reply(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Waits | Outcome::Waited { .. })
}

/// A reply that does not keep the piece alive in which it came.
fn owned(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Service(reply) => Outcome::Service(Bytes::copy_from_slice(&reply)),
        Outcome::Waited { outcome, offer } => {
            Outcome::Waited { outcome: Box::new(owned(*outcome)), offer }
        }
        Outcome::Told(answer) => Outcome::Told(Bytes::copy_from_slice(&answer)),
        other => other,
    }
}

#[cfg(test)]
mod tests;
