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
//! no session lives twice: a nonce opens one only if it is not below [`ClientSessions::lowest`] and not among the
//! remembered nonces, every opened nonce is remembered until `lowest` rises above it, and `lowest`
//! never falls. A revoked client's table goes, but its key is never registered again. All of this
//! is in the snapshot, so it survives restarts and state transfer.
//!
//! A client that signs different commands under one number gets one of them executed.
//!
//! # Commands that wait
//!
//! A number whose command waits has executed: it is marked, and neither executes again nor has an
//! answer until the service releases its reply, which is recorded in the place of the mark. The mark
//! leaves like a reply, when `acked_below` rises above the number, or with the session; then the
//! service is told to forget the command. Marks are in the snapshot.

use crate::manifest::Entry;
use bytes::Bytes;
use perdura_protocol::codec::{encode_count, encode_list};
use perdura_protocol::{
    Decode, DecodeError, Encode, Outcome, Reader, RefusalReason, SessionId, Slot, limits, seeded,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// A live session.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    // The last slot in which it executed something. Replayed frames do not move it: they must not
    // decide which session is evicted.
    last_used: Slot,
    acked_below: u64,
    // Numbers at or above `acked_below` that executed. `Outcome::TooOld` marks a dropped body.
    replies: BTreeMap<u64, Outcome>,
    // Numbers at or above `acked_below` that executed and wait for their replies; none of them is
    // in `replies`.
    waiting: BTreeSet<u64>,
    // Sum of `body_bytes` over `replies`, at most `limits::SESSION_REPLY_BYTES`.
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

fn body_bytes(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Service(reply) | Outcome::Told(reply) => reply.len(),
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

    fn new(slot: Slot) -> Session {
        Session {
            last_used: slot,
            acked_below: 0,
            replies: BTreeMap::new(),
            waiting: BTreeSet::new(),
            reply_bytes: 0,
            entry: OnceLock::new(),
        }
    }

    /// The answer to a number that needs no execution any more; number 0 opened the session.
    pub(crate) fn answer(&self, number: u64) -> Option<Outcome> {
        if number == 0 {
            Some(Outcome::Opened)
        } else if number < self.acked_below {
            Some(Outcome::TooOld)
        } else {
            self.replies.get(&number).cloned()
        }
    }

    /// Whether `number` needs no execution any more: it has an answer, or waits for one.
    pub(crate) fn is_settled(&self, number: u64) -> bool {
        number < self.acked_below.max(1)
            || self.replies.contains_key(&number)
            || self.waiting.contains(&number)
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
        let ahead = number - self.acked_below;
        if ahead >= limits::SESSION_WINDOW && !seeded!(SessionWindowUnchecked) {
            return Admission::Answered(Outcome::Refused(RefusalReason::WindowExceeded));
        }
        Admission::Fresh
    }

    /// Below this number the client asks for nothing any more.
    pub(crate) fn acked_below(&self) -> u64 {
        self.acked_below
    }

    /// Numbers whose commands wait, ascending.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u64> + '_ {
        self.waiting.iter().copied()
    }

    /// Drops the replies that the client no longer asks for; gives the numbers whose commands still
    /// waited, ascending.
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
        let still = self.waiting.split_off(&self.acked_below);
        std::mem::replace(&mut self.waiting, still)
    }

    /// Marks a number that was [`Admission::Fresh`], and whose command waits.
    pub(crate) fn wait(&mut self, slot: Slot, number: u64) {
        self.last_used = slot;
        let marked = self.waiting.insert(number);
        assert!(marked && !self.replies.contains_key(&number), "a command executed twice");
        self.entry.take();
    }

    /// Records the outcome of a number whose command waits; whether there is one.
    pub(crate) fn release(&mut self, slot: Slot, number: u64, outcome: Outcome) -> bool {
        let waited = self.waiting.remove(&number);
        if waited {
            self.record(slot, number, outcome);
        }
        waited
    }

    /// Records the outcome of a number that was [`Admission::Fresh`].
    pub(crate) fn record(&mut self, slot: Slot, number: u64, outcome: Outcome) {
        self.last_used = slot;
        self.reply_bytes += body_bytes(&outcome);
        let previous = self.replies.insert(number, outcome);
        assert!(previous.is_none(), "a command executed twice");
        self.drop_bodies(limits::SESSION_REPLY_BYTES);
    }

    /// Drops the oldest bodies until at most `most` bytes are left.
    fn drop_bodies(&mut self, most: usize) {
        self.entry.take();
        for outcome in self.replies.values_mut() {
            if self.reply_bytes <= most {
                break;
            }
            let bytes = body_bytes(outcome);
            if bytes > 0 {
                self.reply_bytes -= bytes;
                *outcome = Outcome::TooOld;
            }
        }
    }

    pub(crate) fn piece(&self, id: SessionId) -> Bytes {
        let mut out = Vec::with_capacity(64 + self.replies.len() * 16 + self.reply_bytes);
        id.encode(&mut out);
        self.last_used.encode(&mut out);
        self.acked_below.encode(&mut out);
        encode_count(self.replies.len(), &mut out);
        for (number, outcome) in &self.replies {
            number.encode(&mut out);
            outcome.encode(&mut out);
        }
        if !self.waiting.is_empty() && !seeded!(WaitingNotInCheckpoint) {
            let waiting: Vec<u64> = self.waiting().collect();
            encode_list(&waiting, &mut out);
        }
        out.into()
    }

    pub(crate) fn entry(&self, id: SessionId) -> Entry {
        *self.entry.get_or_init(|| Entry::of(&self.piece(id)))
    }

    pub(crate) fn from_piece(piece: Bytes) -> Result<(SessionId, Session), DecodeError> {
        let mut reader = Reader::new(piece);
        let id = SessionId::decode(&mut reader)?;
        let mut session = Session::new(Slot::decode(&mut reader)?);
        session.acked_below = Decode::decode(&mut reader)?;
        let most = limits::SESSION_WINDOW as usize;
        for _ in 0..reader.count("replies of a session", most, 9)? {
            let number = u64::decode(&mut reader)?;
            let outcome = owned(Outcome::decode(&mut reader)?);
            let ascending = session.replies.last_key_value().is_none_or(|(last, _)| *last < number);
            if !ascending || session.admit(number) != Admission::Fresh {
                return Err(DecodeError::NotCanonical("numbers of a session"));
            }
            session.reply_bytes += body_bytes(&outcome);
            session.replies.insert(number, outcome);
        }
        if session.reply_bytes > limits::SESSION_REPLY_BYTES {
            return Err(DecodeError::NotCanonical("a session with too many replies"));
        }
        if reader.remaining() > 0 {
            let waiting: Vec<u64> = reader.list("numbers that wait", most, 8)?;
            let ascending = waiting.windows(2).all(|pair| pair[0] < pair[1]);
            let fresh = waiting.iter().all(|number| session.admit(*number) == Admission::Fresh);
            if waiting.is_empty() || !ascending || !fresh {
                return Err(DecodeError::NotCanonical("numbers that wait"));
            }
            session.waiting = waiting.into_iter().collect();
        }
        reader.finish()?;
        Ok((id, session))
    }

    pub(crate) fn last_used(&self) -> Slot {
        self.last_used
    }
}

/// A reply that does not keep the piece alive in which it came.
fn owned(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Service(reply) => Outcome::Service(Bytes::copy_from_slice(&reply)),
        Outcome::Told(answer) => Outcome::Told(Bytes::copy_from_slice(&answer)),
        other => other,
    }
}

/// A session that ended, with its nonce.
pub(crate) type Evicted = (u64, Arc<Session>);

/// The sessions of one client key, live and past.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientSessions {
    // Nonces below it open nothing any more.
    lowest: u64,
    // The largest nonces that were opened, all at or above `lowest`; at most
    // `limits::NONCES_PER_CLIENT`.
    nonces: BTreeSet<u64>,
    // At most `limits::SESSIONS_PER_CLIENT`.
    live: BTreeMap<u64, Arc<Session>>,
}

impl ClientSessions {
    pub(crate) fn get(&self, nonce: u64) -> Option<&Session> {
        self.live.get(&nonce).map(Arc::as_ref)
    }

    pub(crate) fn get_mut(&mut self, nonce: u64) -> Option<&mut Session> {
        self.live.get_mut(&nonce).map(Arc::make_mut)
    }

    pub(crate) fn nonces(&self) -> usize {
        self.nonces.len()
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = (u64, &Arc<Session>)> {
        self.live.iter().map(|(nonce, session)| (*nonce, session))
    }

    /// Opens a session, or says why not. Opening a live one again changes nothing. Gives the session
    /// that had to end for it, too.
    pub(crate) fn open(&mut self, slot: Slot, nonce: u64) -> (Outcome, Option<Evicted>) {
        if self.live.contains_key(&nonce) {
            return (Outcome::Opened, None);
        }
        if self.nonces.contains(&nonce) && !seeded!(ReopenedSession) {
            return (Outcome::NoSession, None);
        }
        if nonce < self.lowest {
            let refused = Outcome::Refused(RefusalReason::Contradiction(format!(
                "session numbers of this client below {} are used up (this is {nonce}); \
                 is its clock right?",
                self.lowest
            )));
            return (refused, None);
        }
        self.nonces.insert(nonce);
        if self.nonces.len() > limits::NONCES_PER_CLIENT
            && let Some(smallest) = self.nonces.pop_first()
        {
            // It has larger ones beside it, so it is not the largest number there is.
            self.lowest = smallest + 1;
        }
        let full = self.live.len() >= limits::SESSIONS_PER_CLIENT && !seeded!(SessionsUncapped);
        let evicted = if full { self.evict() } else { None };
        self.live.insert(nonce, Arc::new(Session::new(slot)));
        (Outcome::Opened, evicted)
    }

    /// Holds the cached replies of all sessions together against their bound: the bodies of the
    /// session that was idle for longest go first, of equals those of the smallest nonce.
    pub(crate) fn bound_replies(&mut self) {
        if self.excess_bytes() == 0 {
            return;
        }
        let holding = self.live.iter().filter(|(_, session)| session.reply_bytes != 0);
        let mut idle: Vec<(Slot, u64)> =
            holding.map(|(nonce, session)| (session.last_used, *nonce)).collect();
        idle.sort_unstable();
        for (_, nonce) in idle {
            let excess = self.excess_bytes();
            if excess == 0 {
                return;
            }
            if let Some(session) = self.get_mut(nonce) {
                session.drop_bodies(session.reply_bytes.saturating_sub(excess));
            }
        }
    }

    /// Bytes of cached replies above their bound.
    fn excess_bytes(&self) -> usize {
        let held: usize = self.live.values().map(|session| session.reply_bytes).sum();
        held.saturating_sub(limits::CLIENT_REPLY_BYTES)
    }

    /// Ends the session that was idle for longest; of equals the one with the smallest nonce. One
    /// whose commands wait is not idle, however long they do: it goes only if all of them wait.
    fn evict(&mut self) -> Option<Evicted> {
        let order = |(nonce, session): &(&u64, &Arc<Session>)| {
            (!session.waiting.is_empty(), session.last_used, **nonce)
        };
        let nonce = self.live.iter().min_by_key(order).map(|(nonce, _)| *nonce)?;
        self.live.remove(&nonce).map(|session| (nonce, session))
    }

    /// Encodes all but the live sessions, which are pieces of their own.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        self.lowest.encode(out);
        let nonces: Vec<u64> = self.nonces.iter().copied().collect();
        encode_list(&nonces, out);
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<ClientSessions, DecodeError> {
        let lowest = Decode::decode(reader)?;
        let nonces: Vec<u64> = reader.list("nonces", limits::NONCES_PER_CLIENT, 8)?;
        let ascending = nonces.windows(2).all(|pair| pair[0] < pair[1]);
        if nonces.first().is_none_or(|first| *first < lowest) || !ascending {
            return Err(DecodeError::NotCanonical("nonces of a client"));
        }
        let nonces = nonces.into_iter().collect();
        Ok(ClientSessions { lowest, nonces, live: BTreeMap::new() })
    }

    /// Puts a restored session back; whether it was opened once and fits.
    pub(crate) fn put_back(&mut self, nonce: u64, session: Session) -> bool {
        let opened = nonce < self.lowest || self.nonces.contains(&nonce);
        let fits = self.live.len() < limits::SESSIONS_PER_CLIENT;
        opened && fits && self.live.insert(nonce, Arc::new(session)).is_none()
    }
}

#[cfg(test)]
mod tests;
