//! Client frames that wait to be ordered.
//!
//! Every replica holds the frames that it got from clients, so that it can time the leader and
//! take over (A4); the leader takes them from here, one client after the other, so that a flood
//! of one client delays the others by a constant factor only (A6). Bounded in bytes, in all and
//! per client.

use perdura_protocol::{Frame, PublicKey, SessionId, limits};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of waiting frames in all: a second of load on a fast machine; more would only add delay.
pub const POOL_BYTES: usize = 64 * 1024 * 1024;

/// Bytes of waiting frames of one client key.
pub const CLIENT_POOL_BYTES: usize = 16 * 1024 * 1024;

/// Memory that a waiting frame takes besides its bytes, roughly.
const ENTRY_BYTES: usize = 256;

type FrameKey = (SessionId, u64);

#[derive(Clone, Debug)]
struct Entry {
    frame: Frame,
    arrived_ms: u64,
    proposed: bool,
}

#[derive(Clone, Debug, Default)]
struct Queue {
    // Waiting, not proposed, oldest first. May name frames that are gone.
    waiting: VecDeque<FrameKey>,
    bytes: usize,
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
    bytes: usize,
    waiting_bytes: usize,
}

fn cost(frame: &Frame) -> usize {
    frame.raw().len() + ENTRY_BYTES
}

impl Pool {
    /// Offers a frame that arrived at `now_ms`.
    pub fn offer(&mut self, frame: Frame, now_ms: u64) -> Admission {
        let key = (frame.session, frame.first_number);
        if self.frames.contains_key(&key) {
            return Admission::Known;
        }
        let cost = cost(&frame);
        let queue = self.clients.entry(frame.session.client).or_default();
        if self.bytes + cost > POOL_BYTES || queue.bytes + cost > CLIENT_POOL_BYTES {
            if queue.bytes == 0 {
                self.clients.remove(&frame.session.client);
            }
            return Admission::Full;
        }
        if queue.waiting.is_empty() && !self.turn.contains(&frame.session.client) {
            self.turn.push_back(frame.session.client);
        }
        queue.waiting.push_back(key);
        queue.bytes += cost;
        self.bytes += cost;
        self.waiting_bytes += frame.raw().len();
        self.frames.insert(key, Entry { frame, arrived_ms: now_ms, proposed: false });
        Admission::Taken
    }

    /// Whether exactly this frame waits here, so that its signature was verified already.
    #[must_use]
    pub fn holds(&self, frame: &Frame) -> bool {
        self.frames
            .get(&(frame.session, frame.first_number))
            .is_some_and(|entry| entry.frame.raw() == frame.raw())
    }

    /// Takes frames for a batch, one client after the other, up to `target_bytes` (at least one
    /// frame) and the limits of a batch. They stay here, marked, until they are delivered.
    pub fn take(&mut self, target_bytes: usize) -> Vec<Frame> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        while taken.len() < limits::BATCH_FRAMES {
            let Some(client) = self.turn.pop_front() else { break };
            let Some(queue) = self.clients.get_mut(&client) else { continue };
            let Some(key) = queue.waiting.pop_front() else { continue };
            let Some(entry) = self.frames.get_mut(&key).filter(|entry| !entry.proposed) else {
                self.turn.push_front(client);
                continue;
            };
            let length = entry.frame.raw().len();
            if !taken.is_empty() && bytes + length > target_bytes {
                queue.waiting.push_front(key);
                self.turn.push_front(client);
                break;
            }
            entry.proposed = true;
            bytes += length;
            self.waiting_bytes -= length;
            taken.push(entry.frame.clone());
            if !queue.waiting.is_empty() {
                self.turn.push_back(client);
            }
        }
        taken
    }

    /// Forgets a frame that was delivered, or whose commands were all executed.
    pub fn remove(&mut self, session: SessionId, first_number: u64) {
        let Some(entry) = self.frames.remove(&(session, first_number)) else { return };
        let cost = cost(&entry.frame);
        self.bytes -= cost;
        if !entry.proposed {
            self.waiting_bytes -= entry.frame.raw().len();
        }
        if let Some(queue) = self.clients.get_mut(&session.client) {
            queue.bytes -= cost;
            if queue.bytes == 0 {
                self.clients.remove(&session.client);
                self.turn.retain(|client| *client != session.client);
            } else {
                // A follower never takes: without this the names of delivered frames pile up.
                while queue.waiting.front().is_some_and(|key| !self.frames.contains_key(key)) {
                    queue.waiting.pop_front();
                }
                if queue.waiting.len() > 64 + 2 * (queue.bytes / ENTRY_BYTES) {
                    queue.waiting.retain(|key| self.frames.contains_key(key));
                }
            }
        }
    }

    /// A new view starts: what was proposed and not delivered waits again, oldest first.
    pub fn release_proposed(&mut self) {
        let mut released: Vec<(u64, FrameKey)> = Vec::new();
        for (key, entry) in &mut self.frames {
            if entry.proposed {
                entry.proposed = false;
                self.waiting_bytes += entry.frame.raw().len();
                released.push((entry.arrived_ms, *key));
            }
        }
        released.sort_unstable();
        for (_, key) in released.into_iter().rev() {
            let queue = self.clients.entry(key.0.client).or_default();
            queue.waiting.push_front(key);
            if !self.turn.contains(&key.0.client) {
                self.turn.push_back(key.0.client);
            }
        }
    }

    /// When the oldest frame that is not delivered arrived.
    #[must_use]
    pub fn oldest_ms(&self) -> Option<u64> {
        self.frames.values().map(|entry| entry.arrived_ms).min()
    }

    /// A new leader gets a full time-out for everything that waits.
    pub fn restart_clocks(&mut self, now_ms: u64) {
        for entry in self.frames.values_mut() {
            entry.arrived_ms = now_ms;
        }
    }

    /// Bytes that wait to be proposed.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Bytes held, proposed ones included.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// All frames held, for handing them to a new leader; ascending by session and number.
    pub fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.frames.values().map(|entry| &entry.frame)
    }

    /// Drops frames that `gone` says are of no use any more.
    pub fn retain(&mut self, mut keep: impl FnMut(&Frame) -> bool) {
        let gone: Vec<FrameKey> = self
            .frames
            .iter()
            .filter(|(_, entry)| !keep(&entry.frame))
            .map(|(key, _)| *key)
            .collect();
        for (session, first_number) in gone {
            self.remove(session, first_number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use perdura_protocol::ClusterId;

    fn frame(client: u8, number: u64, size: usize) -> Frame {
        let session = SessionId { client: PublicKey([client; 32]), nonce: 1 };
        let command = Bytes::from(vec![client; size]);
        Frame::build(ClusterId([0; 16]), session, 0, number, &[command], None)
    }

    #[test]
    fn clients_take_turns() {
        let mut pool = Pool::default();
        for number in 0..10 {
            assert_eq!(pool.offer(frame(1, number, 10), 0), Admission::Taken);
        }
        assert_eq!(pool.offer(frame(2, 0, 10), 0), Admission::Taken);
        assert_eq!(pool.offer(frame(2, 0, 10), 0), Admission::Known);
        let taken = pool.take(300);
        assert_eq!(taken.len(), 2);
        assert_eq!(taken[1].session.client, PublicKey([2; 32]));
    }

    #[test]
    fn one_client_cannot_fill_the_pool() {
        let mut pool = Pool::default();
        let mut number = 0;
        while pool.offer(frame(1, number, 1 << 20), 0) == Admission::Taken {
            number += 1;
        }
        assert!(pool.held_bytes() <= CLIENT_POOL_BYTES);
        assert_eq!(pool.offer(frame(2, 0, 1 << 20), 0), Admission::Taken);
    }

    #[test]
    fn what_was_proposed_in_vain_comes_first_again() {
        let mut pool = Pool::default();
        for number in 0..4 {
            pool.offer(frame(1, number, 10), number);
        }
        let first: Vec<u64> = pool.take(2 * 138).iter().map(|f| f.first_number).collect();
        assert_eq!(first, [0, 1]);
        pool.release_proposed();
        let again: Vec<u64> = pool.take(1 << 20).iter().map(|f| f.first_number).collect();
        assert_eq!(again, [0, 1, 2, 3]);
        for number in 0..4 {
            pool.remove(SessionId { client: PublicKey([1; 32]), nonce: 1 }, number);
        }
        assert_eq!((pool.held_bytes(), pool.waiting_bytes()), (0, 0));
        assert!(pool.take(1000).is_empty());
    }
}
