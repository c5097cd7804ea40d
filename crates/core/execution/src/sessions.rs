//! The sessions of all client keys: when they open and end, and what they may take together.
//!
//! # When a session opens and ends
//!
//! A session's number holds the time at which its client opened it, and opens it only within [`limits::NONCE_MS`] of agreed time; a client
//! whose clock is further off is told the time, and nothing is remembered of its try. A session ends when its client closes it, and when
//! nothing renewed it for [`limits::SESSION_MS`], at the next whole second; what waits in it is withdrawn after [`limits::ATTENDED_MS`]. None ends for a new one: where a key, or all of them, have as many as they may, the new one
//! is refused. Each key has some places of its own, and takes further ones from those that all share.
//!
//! The clock by which sessions end stands still while the group does: when a batch comes more than [`OUTAGE_MS`] after something was due,
//! nobody could renew anything until then, and all ends move by as much.
//!
//! Under the first version of the rules sessions do not end by time. A key has few, numbered as its client likes as long as numbers
//! grow, and the one that was idle for longest makes room for a new one.
//!
//! # Invariants
//!
//! - `by_end`, `by_wait`, `by_offer`, `by_nonce` and the shared counts follow from the tables, and are made anew from them at a restart.
//! - What a frame costs does not grow with the number of sessions, of its key or of all.

use crate::service::Standing;
use crate::session::{Session, SessionState, Token};
use imbl::{OrdMap, OrdSet};
use perdura_protocol::codec::encode_list;
use perdura_protocol::{
    Decode, DecodeError, Encode, Outcome, PublicKey, Reader, RefusalReason, SessionId, Slot, Time,
    limits, seeded,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What was due this long ago, milliseconds, and was not ordered, could not be: the group stood still.
pub(crate) const OUTAGE_MS: u64 = 2_000;

/// Sessions that end within this time, milliseconds, do so at once.
const TOGETHER_MS: u64 = 1_000;

/// A session that ended.
pub(crate) type Ended = (SessionId, Arc<Session>);

/// The sessions of one client key, live and past.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    // Nonces below it open nothing any more.
    lowest: u64,
    // Nonces that were opened, all at or above `lowest`: those that could be opened now, or later. Under the first rules the
    // largest `limits::FIRST_NONCES_PER_CLIENT`.
    nonces: OrdSet<u64>,
    live: OrdMap<u64, Arc<Session>>,
    // Bytes of cached replies of all sessions, at most `limits::CLIENT_REPLY_BYTES`; and the sessions that have some, the one that was
    // idle for longest first. Both follow from `live`.
    reply_bytes: usize,
    idle: OrdSet<(Slot, u64)>,
}

impl Table {
    pub(crate) fn get(&self, nonce: u64) -> Option<&Session> {
        self.live.get(&nonce).map(Arc::as_ref)
    }

    pub(crate) fn get_mut(&mut self, nonce: u64) -> Option<&mut Session> {
        self.live.get_mut(&nonce).map(Arc::make_mut)
    }

    pub(crate) fn sessions(&self) -> usize {
        self.live.len()
    }

    pub(crate) fn nonces(&self) -> usize {
        self.nonces.len()
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = (u64, &Arc<Session>)> {
        self.live.iter().map(|(nonce, session)| (*nonce, session))
    }

    /// Encodes all but the live sessions, which are pieces of their own.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        self.lowest.encode(out);
        let nonces: Vec<u64> = self.nonces.iter().copied().collect();
        encode_list(&nonces, out);
    }

    pub(crate) fn decode(reader: &mut Reader, timed: bool) -> Result<Table, DecodeError> {
        let lowest = Decode::decode(reader)?;
        let most = if timed { limits::NONCES_PER_CLIENT } else { limits::FIRST_NONCES_PER_CLIENT };
        let nonces: Vec<u64> = reader.list("nonces", most, 8)?;
        let ascending = nonces.windows(2).all(|pair| pair[0] < pair[1]);
        let none = nonces.is_empty() && !timed;
        if none || nonces.first().is_some_and(|first| *first < lowest) || !ascending {
            return Err(DecodeError::NotCanonical("nonces of a client"));
        }
        Ok(Table { lowest, nonces: nonces.into_iter().collect(), ..Table::default() })
    }

    /// A session held that before it changed, or was not there, and holds this now, or is gone.
    fn account(&mut self, nonce: u64, before: Option<SessionState>, now: Option<SessionState>) {
        let of = |held: Option<SessionState>| held.filter(|held| held.reply_bytes > 0);
        let (before, now) = (of(before), of(now));
        let (gone, come) =
            (before.map_or(0, |held| held.reply_bytes), now.map_or(0, |held| held.reply_bytes));
        self.reply_bytes = self.reply_bytes - gone + come;
        let used = |held: Option<SessionState>| held.map(|held| held.last_used);
        if used(before) == used(now) {
            return;
        }
        if let Some(last_used) = used(before) {
            self.idle.remove(&(last_used, nonce));
        }
        if let Some(last_used) = used(now) {
            self.idle.insert((last_used, nonce));
        }
    }

    /// Holds the cached replies of all sessions together against their bound: the bodies of the
    /// session that was idle for longest go first, of equals those of the smallest nonce.
    fn bound_replies(&mut self) {
        while self.reply_bytes > limits::CLIENT_REPLY_BYTES {
            let excess = self.reply_bytes - limits::CLIENT_REPLY_BYTES;
            let Some((_, nonce)) = self.idle.get_min().copied() else { return };
            let Some(session) = self.get_mut(nonce) else { return };
            let before = session.held();
            session.drop_bodies(before.reply_bytes.saturating_sub(excess));
            let now = session.held();
            self.account(nonce, Some(before), Some(now));
        }
    }

    fn insert(&mut self, nonce: u64, session: Session) {
        self.account(nonce, None, Some(session.held()));
        self.live.insert(nonce, Arc::new(session));
    }

    fn remove(&mut self, nonce: u64) -> Option<Arc<Session>> {
        let ended = self.live.remove(&nonce)?;
        self.account(nonce, Some(ended.held()), None);
        Some(ended)
    }

    /// Nonces below `start` cannot be opened any more.
    fn forget_nonces(&mut self, start: u64) {
        while self.nonces.get_min().is_some_and(|first| *first < start) {
            self.nonces.remove_min();
        }
    }

    /// Under the first rules: opens a session, or says why not. Gives the one that had to end for it, too.
    fn open_first(&mut self, slot: Slot, nonce: u64) -> (Outcome, Option<(u64, Arc<Session>)>) {
        if nonce < self.lowest {
            let refused = Outcome::Refused(RefusalReason::Contradiction(format!(
                "session numbers of this client below {} are used up (this is {nonce}); \
                 is its clock right?",
                self.lowest
            )));
            return (refused, None);
        }
        self.nonces.insert(nonce);
        if self.nonces.len() > limits::FIRST_NONCES_PER_CLIENT
            && let Some(smallest) = self.nonces.remove_min()
        {
            // It has larger ones beside it, so it is not the largest number there is.
            self.lowest = smallest + 1;
        }
        let most = limits::FIRST_SESSIONS_PER_CLIENT;
        let full = self.live.len() >= most && !seeded!(SessionsUncapped);
        let evicted = if full { self.evict() } else { None };
        self.insert(nonce, Session::new(slot, None));
        (Outcome::Opened, evicted)
    }

    /// Ends the session that was idle for longest; of equals the one with the smallest nonce. One
    /// whose commands wait is not idle, however long they do: it goes only if all of them wait.
    fn evict(&mut self) -> Option<(u64, Arc<Session>)> {
        let order = |(nonce, session): &(&u64, &Arc<Session>)| {
            let held = session.held();
            (held.waits, held.last_used, **nonce)
        };
        let nonce = self.live.iter().min_by_key(order).map(|(nonce, _)| *nonce)?;
        self.remove(nonce).map(|session| (nonce, session))
    }
}

/// What follows from the rules by which sessions end by time.
#[derive(Clone, Debug, Default)]
struct Timed {
    // How long the group stood still, milliseconds: by so much the clock of sessions is behind agreed time.
    stood_ms: u64,
    // By the clock of sessions.
    by_end: BTreeSet<(Time, SessionId)>,
    // When what waits in a session is withdrawn, of those in which something does.
    by_wait: BTreeSet<(Time, SessionId)>,
    // When the first offer of a session ends, of those that have one.
    by_offer: BTreeSet<(Time, SessionId)>,
    // The smallest nonce that is remembered of each key.
    by_nonce: BTreeSet<(u64, PublicKey)>,
    // Those beyond each key's own.
    shared_sessions: usize,
    shared_nonces: usize,
}

/// What ends when time passes.
#[derive(Default)]
pub(crate) struct Passed {
    /// Sessions.
    pub(crate) ended: Vec<Ended>,
    /// Sessions that go on, and in which nothing waits any longer.
    pub(crate) unattended: Vec<SessionId>,
    /// Sessions with offers that were not confirmed in time.
    pub(crate) lapsed: Vec<SessionId>,
}

impl Timed {
    /// A session held that before, or was not there, and holds this now, or is gone.
    fn account(&mut self, id: SessionId, before: Option<SessionState>, now: Option<SessionState>) {
        let end = |held: Option<SessionState>| {
            held.and_then(|held| held.renewed).map(|at| (end_of(at), id))
        };
        let wait = |held: Option<SessionState>| {
            held.filter(|held| held.waits)?.renewed.map(|at| (unattended_from(at), id))
        };
        type Key = Option<(Time, SessionId)>;
        let moved = |set: &mut BTreeSet<(Time, SessionId)>, old: Key, new: Key| {
            if old != new {
                old.map(|old| set.remove(&old));
                set.extend(new);
            }
        };
        moved(&mut self.by_end, end(before), end(now));
        moved(&mut self.by_wait, wait(before), wait(now));
        let offer =
            |held: Option<SessionState>| held.and_then(|held| held.offered).map(|at| (at, id));
        moved(&mut self.by_offer, offer(before), offer(now));
    }

    fn clock(&self, now: Time) -> Time {
        Time(now.0.saturating_sub(self.stood_ms))
    }
}

/// Sessions end at whole seconds, together: each time that somebody has to be told of costs an idle group a batch.
fn end_of(renewed: Time) -> Time {
    together(renewed.0.saturating_add(limits::SESSION_MS))
}

/// When what waits in a session is withdrawn.
fn unattended_from(renewed: Time) -> Time {
    together(renewed.0.saturating_add(limits::ATTENDED_MS))
}

fn together(end: u64) -> Time {
    Time(end.checked_next_multiple_of(TOGETHER_MS).unwrap_or(end))
}

/// The first nonce that may be opened at a time.
fn window_start(now: Time) -> u64 {
    now.0.saturating_sub(limits::NONCE_MS).saturating_mul(limits::NONCES_PER_MS)
}

fn window_end(now: Time) -> u64 {
    now.0.saturating_add(limits::NONCE_MS).saturating_mul(limits::NONCES_PER_MS)
}

/// All sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    tables: OrdMap<PublicKey, Arc<Table>>,
    // None under the first rules.
    timed: Option<Timed>,
}

impl Sessions {
    pub(crate) fn new(timed: bool) -> Sessions {
        Sessions { tables: OrdMap::new(), timed: timed.then(Timed::default) }
    }

    /// Those of a state. The tables have no live sessions yet.
    pub(crate) fn restored(tables: Vec<(PublicKey, Table)>, stood_ms: Option<u64>) -> Sessions {
        let timed = stood_ms.map(|stood_ms| Timed { stood_ms, ..Timed::default() });
        let tables = tables.into_iter().map(|(key, table)| (key, Arc::new(table))).collect();
        Sessions { tables, timed }
    }

    /// Puts a restored session back; whether it was opened once and fits.
    pub(crate) fn put_back(&mut self, now: Time, id: SessionId, session: Session) -> bool {
        let Some(table) = self.tables.get_mut(&id.client).map(Arc::make_mut) else { return false };
        let (forgotten, most) = match self.timed {
            Some(_) => (window_start(now).max(table.lowest), limits::SESSIONS_PER_CLIENT),
            None => (table.lowest, limits::FIRST_SESSIONS_PER_CLIENT),
        };
        let opened = id.nonce < forgotten || table.nonces.contains(&id.nonce);
        let fits = opened && table.live.len() < most && !table.live.contains_key(&id.nonce);
        if fits {
            table.insert(id.nonce, session);
        }
        fits
    }

    /// All are put back: what follows from them is made anew. Whether they keep the bounds that keys share.
    pub(crate) fn are_complete(&mut self) -> bool {
        let Some(timed) = &mut self.timed else { return true };
        for (client, table) in &self.tables {
            timed.shared_sessions += table.live.len().saturating_sub(limits::SESSIONS_OWN);
            timed.shared_nonces += table.nonces.len().saturating_sub(limits::NONCES_OWN);
            timed.by_nonce.extend(table.nonces.get_min().map(|first| (*first, *client)));
            for (nonce, session) in table.live() {
                timed.account(SessionId { client: *client, nonce }, None, Some(session.held()));
            }
        }
        timed.shared_sessions <= limits::SESSIONS_SHARED
            && timed.shared_nonces <= limits::NONCES_SHARED
    }

    pub(crate) fn tables(&self) -> &OrdMap<PublicKey, Arc<Table>> {
        &self.tables
    }

    /// How long the group stood still; `None` under the first rules.
    pub(crate) fn stood_ms(&self) -> Option<u64> {
        self.timed.as_ref().map(|timed| timed.stood_ms)
    }

    /// Agreed time without that; `None` under the first rules.
    pub(crate) fn clock(&self, now: Time) -> Option<Time> {
        self.timed.as_ref().map(|timed| timed.clock(now))
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.tables.get(&id.client)?.get(id.nonce)
    }

    /// Whether a session may still send anything, at this time, unless its key was revoked. What is over stays so: a number that opened is
    /// remembered until it is below the first one that may open, and that never falls.
    pub(crate) fn standing(&self, now: Time, id: SessionId) -> Standing {
        let table = self.tables.get(&id.client);
        if table.is_some_and(|table| table.live.contains_key(&id.nonce)) {
            return Standing::Open;
        }
        let lowest = table.map_or(0, |table| table.lowest);
        let from = if self.timed.is_some() { window_start(now).max(lowest) } else { lowest };
        let used = table.is_some_and(|table| table.nonces.contains(&id.nonce));
        if used || id.nonce < from { Standing::Over } else { Standing::MayOpen }
    }

    /// Whoever changes it says so to [`Sessions::settle`], with what it held before and holds now.
    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.tables.get_mut(&id.client).map(Arc::make_mut)?.get_mut(id.nonce)
    }

    /// A live session has changed, from one to the other.
    pub(crate) fn settle(&mut self, id: SessionId, before: SessionState, now: SessionState) {
        if before == now {
            return;
        }
        let Some(table) = self.tables.get_mut(&id.client).map(Arc::make_mut) else { return };
        table.account(id.nonce, Some(before), Some(now));
        table.bound_replies();
        if let Some(timed) = &mut self.timed {
            timed.account(id, Some(before), Some(now));
        }
    }

    /// The time on the clock at which the next session, offer, or what waits in a session, ends.
    pub(crate) fn due(&self) -> Option<Time> {
        let timed = self.timed.as_ref()?;
        let firsts = [&timed.by_end, &timed.by_wait, &timed.by_offer].map(BTreeSet::first);
        firsts.into_iter().flatten().map(|(end, _)| *end).min()
    }

    /// Agreed time when the clock shows `at`.
    pub(crate) fn agreed(&self, at: Time) -> Time {
        Time(at.0.saturating_add(self.stood_ms().unwrap_or(0)))
    }

    /// Agreed time goes on, and `due` was the first thing that was due.
    pub(crate) fn stand_still(&mut self, before: Time, now: Time, due: Option<Time>) {
        if let Some(timed) = &mut self.timed
            // What was due before the last batch, and is not done, is not what this one was late for.
            && let Some(due) = due.map(|due| due.max(before))
            && now.0 > due.0.saturating_add(OUTAGE_MS)
            && !seeded!(OutageCounts)
        {
            // Whoever is still there has a moment to say so.
            timed.stood_ms += now.0 - before.0.max(due.0.saturating_sub(OUTAGE_MS));
        }
    }

    /// What ends now.
    pub(crate) fn pass(&mut self, now: Time) -> Passed {
        let Some(timed) = &mut self.timed else { return Passed::default() };
        let clock = timed.clock(now);
        let start = window_start(now);
        while let Some((first, client)) = timed.by_nonce.first().copied()
            && first < start
        {
            timed.by_nonce.pop_first();
            if let Some(table) = self.tables.get_mut(&client).map(Arc::make_mut) {
                let shared = |table: &Table| table.nonces.len().saturating_sub(limits::NONCES_OWN);
                timed.shared_nonces -= shared(table);
                table.forget_nonces(start);
                timed.shared_nonces += shared(table);
                timed.by_nonce.extend(table.nonces.get_min().map(|first| (*first, client)));
            }
        }
        let mut over = Vec::new();
        while let Some((end, id)) = timed.by_end.first().copied()
            && end <= clock
            && !seeded!(SessionNeverEnds)
        {
            timed.by_end.pop_first();
            over.push(id);
        }
        // The indexes follow when they have been withdrawn, and taken back.
        let until_now = ..=(clock, SessionId::LAST);
        let ids = |(_, id): &(Time, SessionId)| *id;
        let mut unattended: Vec<SessionId> = timed.by_wait.range(until_now).map(ids).collect();
        let mut lapsed: Vec<SessionId> = timed.by_offer.range(until_now).map(ids).collect();
        let ended: Vec<Ended> =
            over.into_iter().filter_map(|id| Some((id, self.end(id)?))).collect();
        unattended.retain(|id| self.get(*id).is_some() && !seeded!(WaitsUnattended));
        lapsed.retain(|id| self.get(*id).is_some() && !seeded!(OffersUnending));
        Passed { ended, unattended, lapsed }
    }

    /// Opens a session of a registered client, or says why not. Opening a live one again changes nothing; another process gets no part
    /// of it. Gives the session
    /// that had to end for it, too.
    pub(crate) fn open(
        &mut self,
        slot: Slot,
        now: Time,
        id: SessionId,
        token: Token,
    ) -> (Outcome, Option<Ended>) {
        let SessionId { client, nonce } = id;
        let table = Arc::make_mut(self.tables.entry(client).or_default());
        if let Some(session) = table.live.get(&nonce) {
            return (session.opened_again(token), None);
        }
        if table.nonces.contains(&nonce) && !seeded!(ReopenedSession) {
            return (Outcome::NoSession, None);
        }
        let Some(timed) = &mut self.timed else {
            let (outcome, evicted) = table.open_first(slot, nonce);
            let evicted = evicted.map(|(nonce, session)| (SessionId { client, nonce }, session));
            return (outcome, evicted);
        };
        let from = window_start(now).max(table.lowest);
        let late = nonce < from && !seeded!(OldNonceOpens);
        if late || nonce > window_end(now) {
            return (Outcome::Refused(RefusalReason::NotNow { time: now, from }), None);
        }
        let (live, nonces) = (table.live.len(), table.nonces.len());
        let refused = |text: String| Outcome::Refused(RefusalReason::Contradiction(text));
        if live >= limits::SESSIONS_PER_CLIENT && !seeded!(SessionsUncapped) {
            let text = format!(
                "this client key has {live} sessions open, the most allowed; one that is not closed ends {} s after its last command. \
                 Let clients close theirs, or give them further keys",
                limits::SESSION_MS / 1000
            );
            return (refused(text), None);
        }
        if live >= limits::SESSIONS_OWN && timed.shared_sessions >= limits::SESSIONS_SHARED {
            let text = "all client keys together have as many sessions open as are allowed; let clients close theirs";
            return (refused(text.to_owned()), None);
        }
        let shares = nonces >= limits::NONCES_OWN;
        if nonces >= limits::NONCES_PER_CLIENT
            || (shares && timed.shared_nonces >= limits::NONCES_SHARED)
        {
            let text = format!(
                "too many sessions were opened in the last {} s, {nonces} of them with this client key; use one session for several commands",
                2 * limits::NONCE_MS / 1000
            );
            return (refused(text), None);
        }
        timed.shared_sessions += usize::from(live >= limits::SESSIONS_OWN);
        timed.shared_nonces += usize::from(shares);
        let first = table.nonces.get_min().copied();
        table.nonces.insert(nonce);
        if first.is_none_or(|first| nonce < first) {
            if let Some(first) = first {
                timed.by_nonce.remove(&(first, client));
            }
            timed.by_nonce.insert((nonce, client));
        }
        let clock = timed.clock(now);
        let session = Session::new(slot, Some(clock)).opened_by(token);
        timed.account(id, None, Some(session.held()));
        table.insert(nonce, session);
        (Outcome::Opened, None)
    }

    /// Ends a live session.
    pub(crate) fn end(&mut self, id: SessionId) -> Option<Arc<Session>> {
        let table = self.tables.get_mut(&id.client).map(Arc::make_mut)?;
        let ended = table.remove(id.nonce)?;
        let left = table.live.len();
        self.has_ended(id, &ended, left);
        Some(ended)
    }

    fn has_ended(&mut self, id: SessionId, ended: &Session, left: usize) {
        let Some(timed) = &mut self.timed else { return };
        timed.shared_sessions -= usize::from(left >= limits::SESSIONS_OWN);
        timed.account(id, Some(ended.held()), None);
    }

    /// Ends the sessions of a client that was revoked, or of a former administrator. Its key is never registered again.
    pub(crate) fn end_client(&mut self, client: PublicKey) -> Vec<Ended> {
        let Some(table) = self.tables.remove(&client) else { return Vec::new() };
        let ended =
            table.live().map(|(nonce, session)| (SessionId { client, nonce }, Arc::clone(session)));
        let ended: Vec<Ended> = ended.collect();
        for (left, (id, session)) in (0..ended.len()).rev().zip(&ended) {
            self.has_ended(*id, session, left);
        }
        if let Some(timed) = &mut self.timed {
            timed.shared_nonces -= table.nonces.len().saturating_sub(limits::NONCES_OWN);
            if let Some(first) = table.nonces.get_min() {
                timed.by_nonce.remove(&(*first, client));
            }
        }
        ended
    }

    /// The rules have sessions end by time from now on. All that are live count as renewed now.
    pub(crate) fn start_timing(&mut self, now: Time) {
        if self.timed.is_some() {
            return;
        }
        let keys: Vec<PublicKey> = self.tables.keys().copied().collect();
        for client in keys {
            let Some(table) = self.tables.get_mut(&client).map(Arc::make_mut) else { continue };
            let nonces: Vec<u64> = table.live.keys().copied().collect();
            for nonce in nonces {
                if let Some(session) = table.get_mut(nonce) {
                    session.start_timing(now);
                }
            }
        }
        self.timed = Some(Timed::default());
        let complete = self.are_complete();
        assert!(complete, "the first rules have smaller bounds");
    }
}

#[cfg(test)]
mod tests;
