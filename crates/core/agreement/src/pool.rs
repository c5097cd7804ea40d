//! Client frames that wait to be ordered.
//!
//! Every replica holds the frames that it got from clients, so that it can time the leader and
//! take over (A4). The leader takes them from here for its proposals, one client after the other,
//! so that a flood of one client delays the others by a constant factor only (A6); a follower
//! hands them to the leader in the same turns, and no more at once than the leader keeps for it.
//!
//! Bounds. What clients sent here directly and what other replicas forwarded are counted apart:
//! - Direct frames share [`POOL_BYTES`]. When they are full, a frame of a client that would still
//!   hold less than the heaviest one pushes out that one's newest frame (longest queue drop, which
//!   is max-min fair: Choudhury and Hahne, 1998, compare such schemes). So nobody can keep a client
//!   with little in flight out, however many keys it floods with.
//! - Each replica may have [`FORWARDED_BYTES`] of forwarded frames here; one that forwards
//!   whatever it finds uses up its own part only.
//! - A session has at most [`SESSION_FRAMES`] frames here.

mod allowance;

pub(crate) use allowance::Allowance;

use allowance::Bounds;
use perdura_protocol::{Frame, PublicKey, ReplicaId, SessionId, limits, seeded};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes of waiting frames that clients sent here, in all: a second of load on a fast machine; more
/// would only add delay.
pub const POOL_BYTES: usize = 64 * 1024 * 1024;

/// Bytes of waiting frames of one client key that it sent here.
pub const CLIENT_POOL_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of waiting frames that one replica forwarded: what a correct one has handed over at once,
/// one largest frame more, and as much again as it may have seen delivered before this one did.
pub const FORWARDED_BYTES: usize = 3 * HANDED_BYTES;

/// Bytes of frames handed to a leader and not delivered yet: enough for the clients that have lost
/// their way to the leader, until the view or their link changes. One client has no more of it than
/// it leaves free. One frame above `LARGE_BYTES` is on its way besides.
pub const HANDED_BYTES: usize = 4 * 1024 * 1024;

/// Larger frames are handed over one after the other.
const LARGE_BYTES: usize = 256 * 1024 + 32 * 1024 + ENTRY_BYTES;

/// Clients looked at in one hand-over whose turn it is and who have enough on the way.
const TRIES: usize = 64;

/// Bytes in proposals of this replica that are not delivered: a pipeline of 32 batches of a
/// MiB. Half of the pool stays for what waits, and can be shared out anew.
pub const PROPOSED_BYTES: usize = 32 * 1024 * 1024;

/// Frames of one session that its client sent here and that wait. A client keeps up to 64 in flight, and those behind may
/// be answered by others before they are delivered here.
pub const SESSION_FRAMES: usize = 256;

/// A client that holds no more than its equal part is never pushed out.
const LIGHT_BYTES: usize = POOL_BYTES / limits::CLIENTS;

/// Memory that a waiting frame takes besides its bytes, roughly; and each of its commands.
const ENTRY_BYTES: usize = 512;
const COMMAND_BYTES: usize = 32;

/// What of a pool is not taken.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    bytes: usize,
    commands: usize,
}

impl Waiting {
    fn add(&mut self, frame: &Frame) {
        self.bytes += frame.raw().len();
        self.commands += frame.commands().len();
    }

    fn remove(&mut self, frame: &Frame) {
        self.bytes -= frame.raw().len();
        self.commands -= frame.commands().len();
    }
}

/// Names a frame: its session and the number of its first command.
pub type FrameKey = (SessionId, u64);

/// How a frame came here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// On its client's own link.
    Client,
    /// A replica forwarded it.
    Replica(ReplicaId),
}

#[derive(Clone, Debug)]
struct Entry {
    frame: Frame,
    source: Source,
    arrived_ms: u64,
    // Proposed, or handed to the leader, and when; else it waits in its client's queue.
    taken_ms: Option<u64>,
    // When it was last handed over.
    sent_ms: u64,
}

#[derive(Clone, Debug, Default)]
struct Queue {
    // Not taken, oldest first. May name frames that are gone.
    waiting: VecDeque<FrameKey>,
    // Of direct frames, and of those among them that are not taken.
    bytes: usize,
    loose_bytes: usize,
    // All frames, direct or not.
    frames: usize,
    // On their way, of direct ones.
    taken_bytes: usize,
    in_turn: bool,
}

/// What became of an offered frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// It waits.
    Taken,
    /// The same frame waits already.
    Known,
    /// Queues are full; the client should try again later.
    Full,
}

/// The frames that wait.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    frames: BTreeMap<FrameKey, Entry>,
    clients: BTreeMap<PublicKey, Queue>,
    // Clients with waiting frames, in the order in which they are served.
    turn: VecDeque<PublicKey>,
    // Direct frames by arrival. May name frames that are gone.
    arrivals: VecDeque<(u64, FrameKey)>,
    // Clients with more than `LIGHT_BYTES` that are not taken, by how much.
    heavy: BTreeSet<(usize, PublicKey)>,
    // Direct, and forwarded by each replica.
    bytes: usize,
    forwarded: BTreeMap<ReplicaId, usize>,
    // Not taken: what a batch would carry, and what is on its way.
    waiting: Waiting,
    taken_bytes: usize,
    // Of these, in large frames.
    large_bytes: usize,
    // Direct frames of each session.
    sessions: BTreeMap<SessionId, usize>,
    displaced: Vec<FrameKey>,
    // All bounds in bytes are divided by two to the power of this.
    shrunk: u32,
    // Where the look at what is of no use any more goes on.
    cursor: Option<FrameKey>,
}

/// What a frame counts for.
pub(crate) fn cost(frame: &Frame) -> usize {
    frame.raw().len() + ENTRY_BYTES + COMMAND_BYTES * frame.commands().len()
}

impl Pool {
    /// Divides all bounds in bytes by two to the power of `by`.
    pub(crate) fn shrink(&mut self, by: u32) {
        self.shrunk = by;
    }

    /// What a leader may hold of one client in a group of `n`: what came directly, and what others
    /// forwarded.
    pub(crate) fn client_bytes(&self, n: usize) -> usize {
        (CLIENT_POOL_BYTES + n * FORWARDED_BYTES) >> self.shrunk
    }

    /// Offers a frame that arrived at `now_ms`. Frames that it pushed out are given by
    /// [`Pool::displaced`].
    pub fn offer(&mut self, frame: Frame, source: Source, now_ms: u64) -> Admission {
        let key = (frame.session, frame.first_number);
        if self.frames.contains_key(&key) {
            if source == Source::Client {
                self.claim(key, now_ms);
            }
            return Admission::Known;
        }
        let cost = cost(&frame);
        if !self.has_room(&frame, source)
            || (source == Source::Client && !self.make_room(frame.session, cost))
        {
            return Admission::Full;
        }
        self.waiting.add(&frame);
        let client = frame.session.client;
        self.frames
            .insert(key, Entry { frame, source, arrived_ms: now_ms, taken_ms: None, sent_ms: 0 });
        self.charge(key, source, cost, true);
        if source == Source::Client {
            self.arrivals.push_back((now_ms, key));
        }
        let queue = self.clients.entry(client).or_default();
        queue.frames += 1;
        queue.waiting.push_back(key);
        self.line_up(client);
        Admission::Taken
    }

    /// Whether the part of whoever brings a frame has room for it; a client's frame may still have
    /// to make some among those of others.
    #[must_use]
    pub fn has_room(&self, frame: &Frame, source: Source) -> bool {
        let cost = cost(frame);
        match source {
            Source::Client => self.within_quota(frame.session, cost),
            // No other bound: a correct replica times the leader for what it handed over.
            Source::Replica(id) => {
                self.forwarded.get(&id).copied().unwrap_or(0) + cost
                    <= FORWARDED_BYTES >> self.shrunk
            }
        }
    }

    fn within_quota(&self, session: SessionId, cost: usize) -> bool {
        let held = self.clients.get(&session.client).map_or(0, |queue| queue.bytes);
        let frames = self.sessions.get(&session).copied().unwrap_or(0);
        held + cost <= CLIENT_POOL_BYTES >> self.shrunk && frames < SESSION_FRAMES
    }

    /// A frame that a replica forwarded came from its client as well: it is timed from now on, and
    /// no longer the forwarder's burden.
    fn claim(&mut self, key: FrameKey, now_ms: u64) {
        let Some(entry) = self.frames.get(&key) else { return };
        let (source, cost, loose) = (entry.source, cost(&entry.frame), entry.taken_ms.is_none());
        if source == Source::Client || !self.make_room(key.0, cost) {
            return;
        }
        self.discharge(key, source, cost, loose);
        let Some(entry) = self.frames.get_mut(&key) else { return };
        (entry.source, entry.arrived_ms) = (Source::Client, now_ms);
        let passed_over = entry.taken_ms == Some(u64::MAX);
        if passed_over {
            entry.taken_ms = None;
            self.waiting.add(&entry.frame);
        }
        self.charge(key, Source::Client, cost, loose || passed_over);
        self.arrivals.push_back((now_ms, key));
        if passed_over && let Some(queue) = self.clients.get_mut(&key.0.client) {
            queue.waiting.push_back(key);
            self.line_up(key.0.client);
        }
    }

    fn line_up(&mut self, client: PublicKey) {
        if let Some(queue) = self.clients.get_mut(&client).filter(|queue| !queue.in_turn) {
            queue.in_turn = true;
            self.turn.push_back(client);
        }
    }

    fn charge(&mut self, key: FrameKey, source: Source, cost: usize, loose: bool) {
        match source {
            Source::Client => {
                self.bytes += cost;
                *self.sessions.entry(key.0).or_default() += 1;
                let queue = self.clients.entry(key.0.client).or_default();
                queue.bytes += cost;
                if loose {
                    self.weigh(key.0.client, |bytes| bytes + cost);
                }
            }
            Source::Replica(id) => *self.forwarded.entry(id).or_default() += cost,
        }
    }

    fn discharge(&mut self, key: FrameKey, source: Source, cost: usize, loose: bool) {
        match source {
            Source::Client => {
                self.bytes -= cost;
                if let Some(frames) = self.sessions.get_mut(&key.0) {
                    *frames -= 1;
                    if *frames == 0 {
                        self.sessions.remove(&key.0);
                    }
                }
                if let Some(queue) = self.clients.get_mut(&key.0.client) {
                    queue.bytes -= cost;
                }
                if loose {
                    self.weigh(key.0.client, |bytes| bytes - cost);
                }
            }
            Source::Replica(id) => {
                if let Some(bytes) = self.forwarded.get_mut(&id) {
                    *bytes -= cost;
                }
            }
        }
    }

    /// Changes what a client has here that could be pushed out.
    fn weigh(&mut self, client: PublicKey, change: impl Fn(usize) -> usize) {
        let light = LIGHT_BYTES >> self.shrunk;
        let Some(queue) = self.clients.get_mut(&client) else { return };
        let before = queue.loose_bytes;
        queue.loose_bytes = change(before);
        if before > light {
            self.heavy.remove(&(before, client));
        }
        if queue.loose_bytes > light {
            self.heavy.insert((queue.loose_bytes, client));
        }
    }

    /// Pushes out the newest frames of heavier clients until `cost` more of this one fits; false,
    /// and nothing is pushed out, if there are not enough of them.
    fn make_room(&mut self, session: SessionId, cost: usize) -> bool {
        let client = session.client;
        let held = self.clients.get(&client).map_or(0, |queue| queue.bytes);
        if !self.within_quota(session, cost) {
            return false;
        }
        while self.bytes + cost > POOL_BYTES >> self.shrunk {
            let Some((heaviest, other)) = self.heavy.last().copied() else { return false };
            if other == client || heaviest <= held + cost {
                return false;
            }
            let frames = &self.frames;
            let loose = |key: &FrameKey| {
                frames.get(key).is_some_and(|e| e.taken_ms.is_none() && e.source == Source::Client)
            };
            let Some(queue) = self.clients.get(&other) else { return false };
            let Some(newest) = queue.waiting.iter().rev().find(|key| loose(key)).copied() else {
                return false;
            };
            self.remove(newest.0, newest.1);
            self.displaced.push(newest);
        }
        true
    }

    /// Frames that were pushed out since the last call; their clients should be told.
    pub fn displaced(&mut self) -> Vec<FrameKey> {
        std::mem::take(&mut self.displaced)
    }

    /// Whether exactly this frame waits here, so that its signature was verified already.
    #[must_use]
    pub fn holds(&self, frame: &Frame) -> bool {
        self.frames
            .get(&(frame.session, frame.first_number))
            .is_some_and(|entry| entry.frame.raw() == frame.raw() || seeded!(HeldFrameByNumber))
    }

    /// Takes frames for a batch, one client after the other, up to `target_bytes` (at least one
    /// frame) and so many commands, what they are expected to cost, and the limits of a batch. They stay here, marked, until they are delivered.
    pub(crate) fn take(
        &mut self,
        target_bytes: usize,
        most_commands: usize,
        now_ms: u64,
        cost: Allowance<'_>,
    ) -> Vec<Frame> {
        if self.taken_bytes >= PROPOSED_BYTES >> self.shrunk {
            return Vec::new();
        }
        let bounds = Bounds { bytes: target_bytes, commands: most_commands };
        self.take_some(bounds, limits::BATCH_FRAMES, now_ms, Some(cost), |_| true)
    }

    /// A frame that waits here.
    #[must_use]
    pub fn get(&self, key: FrameKey) -> Option<&Frame> {
        self.frames.get(&key).map(|entry| &entry.frame)
    }

    /// Whether anything is, or could be, handed over.
    #[must_use]
    pub fn wants_hand(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Takes frames to be handed to the leader, as far as it keeps room for this replica. What
    /// others forwarded stays with them.
    pub fn hand_over(&mut self, now_ms: u64) -> Vec<Frame> {
        let mut handed = Vec::new();
        let mut tries = TRIES.min(self.turn.len());
        while tries > 0 {
            let Some(client) = self.turn.front().copied() else { break };
            if self.has_enough(client) {
                tries -= 1;
                self.turn.rotate_left(1);
                continue;
            }
            let direct = |source| source == Source::Client;
            handed.extend(self.take_some(Bounds::NONE, 1, now_ms, None, direct));
            tries = TRIES.min(self.turn.len());
        }
        handed
    }

    /// Whether nothing more of a client may be handed over now.
    fn has_enough(&self, client: PublicKey) -> bool {
        let Some(queue) = self.clients.get(&client) else { return false };
        let next = queue.waiting.front().and_then(|key| self.frames.get(key));
        let Some(entry) = next.filter(|entry| entry.source == Source::Client) else {
            return false;
        };
        let cost = cost(&entry.frame);
        if cost > LARGE_BYTES >> self.shrunk {
            return self.large_bytes > 0;
        }
        let free =
            (HANDED_BYTES >> self.shrunk).saturating_sub(self.taken_bytes - self.large_bytes);
        queue.taken_bytes + cost > free
    }

    fn take_some(
        &mut self,
        bounds: Bounds,
        most: usize,
        now_ms: u64,
        mut cost_left: Option<Allowance<'_>>,
        wanted: impl Fn(Source) -> bool,
    ) -> Vec<Frame> {
        let mut taken = Vec::new();
        let mut passed_over = Vec::new();
        let (mut bytes, mut commands, mut looked) = (0, 0, 0);
        while looked < most {
            let Some(client) = self.turn.pop_front() else { break };
            let Some(queue) = self.clients.get_mut(&client) else { continue };
            queue.in_turn = false;
            let Some(key) = queue.waiting.pop_front() else {
                self.forget_idle(client);
                continue;
            };
            let Some(entry) = self.frames.get_mut(&key).filter(|entry| entry.taken_ms.is_none())
            else {
                queue.in_turn = true;
                self.turn.push_front(client);
                continue;
            };
            if let Some(left) = &mut cost_left
                && !left.takes(client)
            {
                queue.waiting.push_front(key);
                queue.in_turn = true;
                passed_over.push(client);
                continue;
            }
            let (length, count) = (entry.frame.raw().len(), entry.frame.commands().len());
            let full = bytes + length > bounds.bytes || commands + count > bounds.commands;
            if !taken.is_empty() && full {
                queue.waiting.push_front(key);
                queue.in_turn = true;
                self.turn.push_front(client);
                break;
            }
            (entry.taken_ms, entry.sent_ms) = (Some(now_ms), now_ms);
            self.waiting.remove(&entry.frame);
            looked += 1;
            let (source, cost) = (entry.source, cost(&entry.frame));
            if wanted(source) {
                bytes += length;
                commands += count;
                self.taken_bytes += cost;
                self.large_bytes += if cost > LARGE_BYTES >> self.shrunk { cost } else { 0 };
                queue.taken_bytes += cost;
                taken.push(entry.frame.clone());
            } else {
                // Left to whoever forwarded it: nothing is on its way from here.
                entry.taken_ms = Some(u64::MAX);
            }
            let more = !queue.waiting.is_empty();
            if source == Source::Client {
                self.weigh(client, |bytes| bytes - cost);
            }
            if more {
                self.line_up(client);
            }
        }
        // Their turn is the next one's.
        passed_over.into_iter().rev().for_each(|client| self.turn.push_front(client));
        taken
    }

    fn forget_idle(&mut self, client: PublicKey) {
        if self.clients.get(&client).is_some_and(|queue| queue.frames == 0 && !queue.in_turn) {
            self.clients.remove(&client);
        }
    }

    /// Forgets a frame that was delivered, or whose commands were all executed.
    pub fn remove(&mut self, session: SessionId, first_number: u64) {
        let key = (session, first_number);
        let Some(entry) = self.frames.remove(&key) else { return };
        let cost = cost(&entry.frame);
        match entry.taken_ms {
            None => self.waiting.remove(&entry.frame),
            Some(u64::MAX) => {}
            Some(_) => self.settle_taken(key, cost),
        }
        self.discharge(key, entry.source, cost, entry.taken_ms.is_none());
        let frames = &self.frames;
        if let Some(queue) = self.clients.get_mut(&session.client) {
            queue.frames -= 1;
            // Without this the names of frames pile up that are gone without being taken.
            while queue.waiting.front().is_some_and(|key| !frames.contains_key(key)) {
                queue.waiting.pop_front();
            }
            if queue.waiting.len() > 64 + 2 * queue.frames {
                queue.waiting.retain(|key| frames.contains_key(key));
            }
        }
        self.forget_idle(session.client);
        self.tidy();
    }

    /// What was taken is delivered, or waits again.
    fn settle_taken(&mut self, key: FrameKey, cost: usize) {
        self.taken_bytes -= cost;
        self.large_bytes -= if cost > LARGE_BYTES >> self.shrunk { cost } else { 0 };
        if let Some(queue) = self.clients.get_mut(&key.0.client) {
            queue.taken_bytes -= cost;
        }
    }

    fn tidy(&mut self) {
        let frames = &self.frames;
        let gone = |arrival: &(u64, FrameKey)| {
            frames.get(&arrival.1).is_none_or(|entry| entry.arrived_ms != arrival.0)
        };
        while self.arrivals.front().is_some_and(gone) {
            self.arrivals.pop_front();
        }
        if self.arrivals.len() > 64 + 2 * frames.len() {
            self.arrivals.retain(|arrival| !gone(arrival));
        }
        // Clients that left all at once while none was served.
        if self.turn.len() > 64 + 2 * self.frames.len() {
            let clients = &mut self.clients;
            self.turn.retain(|client| {
                let idle = clients.get(client).is_none_or(|queue| queue.frames == 0);
                if idle {
                    clients.remove(client);
                }
                !idle
            });
        }
    }

    /// A new view starts, or the leader may have lost what it was given: what was taken and not
    /// delivered waits again, oldest first.
    pub fn release_taken(&mut self) {
        let mut released: Vec<(u64, FrameKey, bool)> = Vec::new();
        for (key, entry) in &mut self.frames {
            let Some(taken_ms) = entry.taken_ms.take() else { continue };
            self.waiting.add(&entry.frame);
            released.push((entry.arrived_ms, *key, taken_ms != u64::MAX));
        }
        released.sort_unstable();
        for (_, key, counted) in released.into_iter().rev() {
            let Some(entry) = self.frames.get(&key) else { continue };
            let (source, cost) = (entry.source, cost(&entry.frame));
            if counted {
                self.settle_taken(key, cost);
            }
            if source == Source::Client {
                self.weigh(key.0.client, |bytes| bytes + cost);
            }
            if let Some(queue) = self.clients.get_mut(&key.0.client) {
                queue.waiting.push_front(key);
            }
            self.line_up(key.0.client);
        }
    }

    /// When the oldest frame that a client sent here and that is not delivered arrived. What other
    /// replicas forwarded times nobody: the one that has it from its client does.
    #[must_use]
    pub fn oldest_ms(&self) -> Option<u64> {
        self.arrivals.front().map(|(arrived_ms, _)| *arrived_ms)
    }

    /// When a client's frame was handed over, while it waits here.
    #[must_use]
    pub fn handed_ms(&self, key: FrameKey) -> Option<u64> {
        let entry = self.frames.get(&key)?;
        entry.taken_ms.filter(|taken_ms| *taken_ms != u64::MAX)
    }

    /// Whether a frame that was handed over is to be handed over again, the last time being
    /// `pause_ms` ago.
    pub fn hand_again(&mut self, key: FrameKey, now_ms: u64, pause_ms: u64) -> bool {
        let entry = self.frames.get_mut(&key);
        let handed = entry.filter(|entry| entry.taken_ms.is_some_and(|ms| ms != u64::MAX));
        let due = handed.filter(|entry| now_ms >= entry.sent_ms + pause_ms);
        due.map(|entry| entry.sent_ms = now_ms).is_some()
    }

    /// A new leader gets a full time-out for everything that waits.
    pub fn restart_clocks(&mut self, now_ms: u64) {
        for entry in self.frames.values_mut() {
            entry.arrived_ms = now_ms;
        }
        for arrival in &mut self.arrivals {
            arrival.0 = now_ms;
        }
        self.tidy();
    }

    /// Bytes that wait to be proposed, or to be handed over.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.bytes
    }

    /// Commands that wait to be proposed, or to be handed over.
    #[must_use]
    pub fn waiting_commands(&self) -> usize {
        self.waiting.commands
    }

    /// Bytes that were proposed or handed over, and are not delivered.
    #[must_use]
    pub fn taken_bytes(&self) -> usize {
        self.taken_bytes
    }

    /// Bytes held: what clients sent here, and what replicas forwarded.
    #[must_use]
    pub fn held_bytes(&self) -> (usize, usize) {
        (self.bytes, self.forwarded.values().sum())
    }

    /// The most bytes of one client that it sent here, and the most frames of one of its sessions.
    #[must_use]
    pub fn most_held(&self) -> (usize, usize) {
        let bytes = self.clients.values().map(|queue| queue.bytes).max();
        let frames = self.sessions.values().copied().max();
        (bytes.unwrap_or(0), frames.unwrap_or(0))
    }

    /// All frames held, ascending by session and number.
    pub fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.frames.values().map(|entry| &entry.frame)
    }

    /// Drops frames that `keep` says are of no use any more.
    pub fn retain(&mut self, mut keep: impl FnMut(&Frame) -> bool) {
        let of_no_use = self.frames.iter().filter(|(_, entry)| !keep(&entry.frame));
        let gone: Vec<FrameKey> = of_no_use.map(|(key, _)| *key).collect();
        for (session, first_number) in gone {
            self.remove(session, first_number);
        }
    }

    /// The same for the next `most` frames, in a circle, so that a full pool costs no more.
    pub fn retain_some(&mut self, most: usize, mut keep: impl FnMut(&Frame) -> bool) {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = self.cursor.map_or(Unbounded, Excluded);
        let mut gone: Vec<FrameKey> = Vec::new();
        let mut last = None;
        let mut seen = 0;
        for (key, entry) in self.frames.range((from, Unbounded)).take(most) {
            seen += 1;
            last = Some(*key);
            if !keep(&entry.frame) {
                gone.push(*key);
            }
        }
        self.cursor = last.filter(|_| seen == most);
        for (session, first_number) in gone {
            self.remove(session, first_number);
        }
    }
}

#[cfg(test)]
mod tests;
