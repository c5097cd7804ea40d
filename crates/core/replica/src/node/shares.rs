//! What each client may have verified and ordered while others pack better.
//!
//! A frame costs every replica a signature and its bookkeeping, however many commands it carries,
//! and costs its sender a fraction of that. How full its frames are is the client's choice: many
//! callers share a session, and what waits goes into one frame. Bytes cost as well: work is counted in
//! frames, in [`WORK_BYTES`], and in [`WORK_COST`]. A client that gets far fewer commands out of its work than is usual may
//! cause as much work as all together that do not, and [`SPARSE_WORK_S`] in a second in any case;
//! the rest waits in its links, where TCP holds it back. All links of a key, and what replicas
//! forward of it, share that. Whoever is alone, or among its like, is held to nothing.

use perdura_protocol::limits::SLOT_COST;
use perdura_protocol::{Batch, Frame, PublicKey, ReplicaId};
use std::collections::BTreeMap;

/// Work of one client in a second, while its frames are sparse: that of so many small frames is enough
/// for callers who wait for each answer, and costs a replica a few hundredths of a core.
pub const SPARSE_WORK_S: u64 = 800;

/// So many bytes are as much work as a frame is without them.
const WORK_BYTES: u64 = 8 * 1024;

/// So much of what commands cost to execute, in the unit of [`perdura_protocol::limits::SLOT_COST`], is as much work as a frame is without it.
const WORK_COST: u64 = 256 * 1024;

/// Work at once.
const BURST: u64 = 64;

/// What a client owes at most: what a slot costs.
const MOST_OWED: i64 = (SLOT_COST * UNIT / WORK_COST) as i64;

/// A client is sparse when the average command comes with more than so many times as many others for
/// the same work.
const SPARSE_FACTOR: u64 = 2;

/// Overdue frames of each replica that are looked at in a second beside what their clients may
/// cause: twice what a correct one hands over once more in that time.
const OVERDUE_S: usize = 2 * perdura_agreement::ASKED_AT_ONCE;

/// What was delivered is forgotten in this time, by halves and bits.
const MEMORY_MS: u64 = 1_000;

/// Counts are kept in this fraction, so that small ones fade evenly.
const UNIT: u64 = 1_024;

/// Below this much, what a client did is forgotten.
const NOTHING: u64 = UNIT / 2;

/// One client's recent past.
#[derive(Clone, Copy, Default, Debug)]
struct Share {
    work: u64,
    commands: u64,
    sparse: bool,
    // Work that it may cause; below nothing by a slot's budget at most, which is paid back first.
    credit: i64,
}

impl Share {
    fn commands_for_work(&self) -> u64 {
        self.commands * UNIT / self.work.max(1)
    }
}

/// The work that a frame is.
fn work(frame: &Frame) -> u64 {
    UNIT + frame.raw().len() as u64 * UNIT / WORK_BYTES
}

/// The clients that had something delivered lately: no more than are registered.
#[derive(Debug, Default)]
pub(super) struct Shares {
    clients: BTreeMap<PublicKey, Share>,
    ticked_ms: u64,
}

impl Shares {
    /// A batch was delivered, and cost this by client key; of a key so many commands were put off, which get it nothing.
    pub fn delivered(
        &mut self,
        batch: &Batch,
        costs: &BTreeMap<PublicKey, u64>,
        put_off: &BTreeMap<PublicKey, u64>,
    ) {
        for frame in batch.frames() {
            let share = self.clients.entry(frame.session.client).or_default();
            share.work += work(frame);
            share.commands += UNIT * frame.commands().len() as u64;
        }
        for (client, count) in put_off {
            if let Some(share) = self.clients.get_mut(client) {
                share.commands = share.commands.saturating_sub(UNIT * count);
            }
        }
        for (client, cost) in costs {
            if let Some(share) = self.clients.get_mut(client) {
                let work = cost * UNIT / WORK_COST;
                share.work += work;
                if share.sparse {
                    share.credit = (share.credit - work as i64).max(-MOST_OWED);
                }
            }
        }
    }

    /// Time passes.
    pub fn tick(&mut self, now_ms: u64) {
        let before_ms = std::mem::replace(&mut self.ticked_ms, now_ms);
        let passed_ms = now_ms.saturating_sub(before_ms).min(MEMORY_MS);
        // As counts fade within a second, each is about what there was in the last one.
        let full = self.clients.values().filter(|share| !share.sparse);
        let work_s = full.map(|share| share.work).sum::<u64>().max(SPARSE_WORK_S * UNIT);
        for share in self.clients.values_mut() {
            share.work -= share.work * passed_ms / MEMORY_MS;
            share.commands -= share.commands * passed_ms / MEMORY_MS;
            let grown = share.credit + (work_s * passed_ms / 1_000) as i64;
            share.credit = grown.min((BURST * UNIT) as i64);
        }
        self.clients.retain(|_, share| share.commands > NOTHING);
        let usual = self.usual();
        for share in self.clients.values_mut() {
            share.sparse = share.commands_for_work() * SPARSE_FACTOR < usual;
        }
    }

    /// How many commands the average command's client gets out of its work.
    fn usual(&self) -> u64 {
        let of = |share: &Share| u128::from(share.commands) * u128::from(share.commands_for_work());
        let weighed: u128 = self.clients.values().map(of).sum();
        let commands: u64 = self.clients.values().map(|share| share.commands).sum();
        u64::try_from(weighed / u128::from(commands.max(1))).unwrap_or(u64::MAX)
    }

    /// Whether another frame of this client may be looked at now.
    pub fn may(&self, client: PublicKey) -> bool {
        self.clients.get(&client).is_none_or(|share| !share.sparse || share.credit > 0)
    }

    /// Whether this client has to keep to its share.
    pub fn is_sparse(&self, client: PublicKey) -> bool {
        self.clients.get(&client).is_some_and(|share| share.sparse)
    }

    /// This one is.
    pub fn take(&mut self, frame: &Frame) {
        let share = self.clients.get_mut(&frame.session.client).filter(|share| share.sparse);
        if let Some(share) = share {
            share.credit -= work(frame) as i64;
        }
    }

    /// Clients that are held back.
    pub fn sparse(&self) -> usize {
        self.clients.values().filter(|share| share.sparse).count()
    }
}

/// Frames that replicas hand over once more because a leader passed them over.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    since_ms: u64,
    taken: BTreeMap<ReplicaId, usize>,
}

impl Overdue {
    /// Whether one more of this replica is looked at now, whatever its client did.
    pub fn take(&mut self, now_ms: u64, replica: ReplicaId) -> bool {
        if now_ms >= self.since_ms + 1_000 {
            self.since_ms = now_ms;
            self.taken.clear();
        }
        let taken = self.taken.entry(replica).or_default();
        *taken += 1;
        *taken <= OVERDUE_S
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use perdura_protocol::{ClusterId, Command, Encode, Frame, SessionId, Time};

    fn key(name: u8) -> PublicKey {
        PublicKey([name; 32])
    }

    fn frame(client: u8, commands: usize, bytes: usize) -> Frame {
        let session = SessionId { client: key(client), nonce: 1 };
        let command = Command::Service(Bytes::from(vec![7; bytes])).to_bytes();
        Frame::build(ClusterId([1; 16]), session, 0, 1, &vec![command; commands], None)
    }

    /// Each client sends so many frames of so many commands in a tick, as far as it may; how many
    /// frames of each were let in.
    fn run(shares: &mut Shares, clients: &[(u8, usize, usize)], ticks: u64) -> Vec<usize> {
        run_large(shares, clients, ticks, 1)
    }

    /// The first client's commands are of so many bytes.
    fn run_large(
        shares: &mut Shares,
        clients: &[(u8, usize, usize)],
        ticks: u64,
        bytes: usize,
    ) -> Vec<usize> {
        let mut let_in = vec![0; clients.len()];
        let large = clients[0].0;
        let made: Vec<Frame> = clients
            .iter()
            .map(|(client, _, count)| {
                frame(*client, *count, if *client == large { bytes } else { 1 })
            })
            .collect();
        for _ in 0..ticks {
            let mut frames = Vec::new();
            for (((client, count, _), one), total) in clients.iter().zip(&made).zip(&mut let_in) {
                for _ in 0..*count {
                    if shares.may(key(*client)) {
                        shares.take(one);
                        *total += 1;
                        frames.push(one.clone());
                    }
                }
            }
            shares.delivered(&Batch::requests(Time(1), frames), &BTreeMap::new(), &BTreeMap::new());
            shares.tick(shares.ticked_ms + 20);
        }
        let_in
    }

    #[test]
    fn a_client_of_sparse_frames_beside_one_that_packs_keeps_to_its_share() {
        let mut shares = Shares::default();
        run(&mut shares, &[(1, 100, 1), (2, 5, 32)], 100);
        let let_in = run(&mut shares, &[(1, 100, 1), (2, 5, 32)], 500);
        // Ten seconds.
        let most = 10 * SPARSE_WORK_S + BURST;
        assert!((7_000..=most).contains(&(let_in[0] as u64)), "{}", let_in[0]);
        assert_eq!(let_in[1], 500 * 5);
        assert_eq!(
            (shares.sparse(), shares.is_sparse(key(1)), shares.is_sparse(key(2))),
            (1, true, false)
        );
    }

    #[test]
    fn large_commands_are_work_by_their_bytes_and_have_as_much_as_others_take() {
        let mut shares = Shares::default();
        let load = [(1, 5, 1), (2, 5, 32)];
        run_large(&mut shares, &load, 100, 1 << 20);
        let let_in = run_large(&mut shares, &load, 500, 1 << 20);
        let each = work(&frame(1, 1, 1 << 20)) / UNIT;
        assert!(let_in[0] as u64 <= 10 * SPARSE_WORK_S / each + 2, "{let_in:?}");
        assert!(let_in[0] > 50 && let_in[1] == 500 * 5, "{let_in:?}");
        // Beside so many full frames it may have more.
        let busy = [(1, 5, 1), (2, 100, 32)];
        run_large(&mut shares, &busy, 100, 1 << 20);
        let more = run_large(&mut shares, &busy, 500, 1 << 20);
        assert!(more[0] > 4 * let_in[0], "{more:?}");
    }

    #[test]
    fn commands_that_cost_much_are_work_beside_those_that_do_not() {
        let mut shares = Shares::default();
        let each = frame(1, 1, 1);
        let mut let_in = 0;
        for _ in 0..500 {
            let mut frames = vec![frame(2, 32, 1)];
            if shares.may(key(1)) {
                shares.take(&each);
                let_in += 1;
                frames.push(each.clone());
            }
            let costs = BTreeMap::from([(key(1), 16 << 20)]);
            let costs = if frames.len() > 1 { costs } else { BTreeMap::new() };
            shares.delivered(&Batch::requests(Time(1), frames), &costs, &BTreeMap::new());
            shares.tick(shares.ticked_ms + 20);
        }
        assert!(shares.is_sparse(key(1)) && let_in < 500, "{let_in}");
        // What it owes is paid back in a tenth of a second.
        let owed = shares.clients[&key(1)].credit;
        assert!(owed >= -MOST_OWED && MOST_OWED as u64 <= SPARSE_WORK_S * UNIT / 10, "{owed}");
    }

    #[test]
    fn commands_that_were_put_off_get_a_client_nothing() {
        let mut shares = Shares::default();
        let full = frame(1, 1_000, 1);
        for _ in 0..100 {
            let frames = vec![frame(2, 1, 1), full.clone()];
            let costs = BTreeMap::from([(key(1), 16 << 20)]);
            let put_off = BTreeMap::from([(key(1), 997)]);
            shares.delivered(&Batch::requests(Time(1), frames), &costs, &put_off);
            shares.tick(shares.ticked_ms + 20);
        }
        assert!(shares.is_sparse(key(1)) && !shares.is_sparse(key(2)));
    }

    #[test]
    fn a_replica_has_so_many_overdue_frames_in_a_second_and_no_more() {
        let mut overdue = Overdue::default();
        let mut taken = |now_ms| (0..100).filter(|_| overdue.take(now_ms, ReplicaId(1))).count();
        assert_eq!((taken(0), taken(999), taken(1_000)), (OVERDUE_S, 0, OVERDUE_S));
        assert!(overdue.take(1_000, ReplicaId(2)));
    }

    #[test]
    fn many_that_flood_do_not_lift_each_other() {
        let mut shares = Shares::default();
        let load = [(1, 60, 1), (2, 5, 32), (3, 60, 1), (4, 60, 1)];
        run(&mut shares, &load, 200);
        let let_in = run(&mut shares, &load, 500);
        assert_eq!(shares.sparse(), 3);
        assert!(let_in[0] as u64 <= 10 * SPARSE_WORK_S + BURST && let_in[1] == 500 * 5);
    }

    #[test]
    fn who_is_alone_or_among_its_like_is_held_to_nothing() {
        let mut shares = Shares::default();
        assert_eq!(run(&mut shares, &[(1, 100, 1)], 200), [20_000]);
        assert_eq!(run(&mut shares, &[(1, 100, 1), (2, 100, 1)], 200), [20_000, 20_000]);
        // Somebody packs, but asks for little.
        let let_in = run(&mut shares, &[(1, 100, 1), (3, 1, 3)], 200);
        assert_eq!((let_in, shares.sparse()), (vec![20_000, 200], 0));
    }

    #[test]
    fn what_clients_did_is_forgotten() {
        let mut shares = Shares::default();
        run(&mut shares, &[(1, 100, 1), (2, 5, 32)], 100);
        assert_eq!(shares.clients.len(), 2);
        // The one that packs leaves; nobody is kept waiting for it.
        run(&mut shares, &[(1, 100, 1)], 500);
        assert!(!shares.is_sparse(key(1)));
        for _ in 0..1_000 {
            shares.tick(shares.ticked_ms + 20);
        }
        assert!(shares.clients.is_empty());
    }
}
