//! What each client may have verified and ordered while others pack better.
//!
//! A frame costs every replica a signature and its bookkeeping, however many commands it carries,
//! and costs its sender a fraction of that. How full its frames are is the client's choice: many
//! callers share a session, and what waits goes into one frame. So a client whose frames are far
//! emptier than those in which most commands come has [`SPARSE_FRAMES_S`] of them looked at in a second;
//! the rest waits in its links, where TCP holds it back. All links of a key, and what replicas
//! forward of it, share that. Whoever is alone, or among its like, is held to nothing.

use perdura_protocol::{Batch, PublicKey};
use std::collections::BTreeMap;

/// Frames of one client in a second, while its frames are sparse: enough for callers who wait for
/// each answer; to verify and order as many costs a replica a few hundredths of a core.
pub const SPARSE_FRAMES_S: u64 = 800;

/// Of these, how many at once.
const BURST: u64 = 64;

/// A client is sparse when the frame of the average command carries more than so many times as
/// many commands as its own.
const SPARSE_FACTOR: u64 = 4;

/// What was delivered is forgotten in this time, by halves and bits.
const MEMORY_MS: u64 = 1_000;

/// Counts are kept in this fraction, so that small ones fade evenly.
const UNIT: u64 = 1_024;

/// Below this much, what a client did is forgotten.
const NOTHING: u64 = UNIT / 2;

/// One client's recent past.
#[derive(Clone, Copy, Default, Debug)]
struct Share {
    frames: u64,
    commands: u64,
    sparse: bool,
    // Frames that it may have looked at, in thousandths; counts while it is sparse.
    credit: u64,
}

impl Share {
    fn commands_per_frame(&self) -> u64 {
        self.commands * UNIT / self.frames.max(1)
    }
}

/// The clients that had something delivered lately: no more than are registered.
#[derive(Debug, Default)]
pub(super) struct Shares {
    clients: BTreeMap<PublicKey, Share>,
    ticked_ms: u64,
}

impl Shares {
    /// A batch was delivered.
    pub fn delivered(&mut self, batch: &Batch) {
        for frame in batch.frames() {
            let share = self.clients.entry(frame.session.client).or_default();
            share.frames += UNIT;
            share.commands += UNIT * frame.commands().len() as u64;
        }
    }

    /// Time passes.
    pub fn tick(&mut self, now_ms: u64) {
        let before_ms = std::mem::replace(&mut self.ticked_ms, now_ms);
        let passed_ms = now_ms.saturating_sub(before_ms).min(MEMORY_MS);
        for share in self.clients.values_mut() {
            share.frames -= share.frames * passed_ms / MEMORY_MS;
            share.commands -= share.commands * passed_ms / MEMORY_MS;
            share.credit = (share.credit + SPARSE_FRAMES_S * passed_ms).min(BURST * 1_000);
        }
        self.clients.retain(|_, share| share.commands > NOTHING);
        let usual = self.usual();
        for share in self.clients.values_mut() {
            share.sparse = share.commands_per_frame() * SPARSE_FACTOR < usual;
        }
    }

    /// How many commands the frame of the average command carries.
    fn usual(&self) -> u64 {
        let of =
            |share: &Share| u128::from(share.commands) * u128::from(share.commands_per_frame());
        let weighed: u128 = self.clients.values().map(of).sum();
        let commands: u64 = self.clients.values().map(|share| share.commands).sum();
        u64::try_from(weighed / u128::from(commands.max(1))).unwrap_or(u64::MAX)
    }

    /// Whether another frame of this client may be looked at now.
    pub fn may(&self, client: PublicKey) -> bool {
        self.clients.get(&client).is_none_or(|share| !share.sparse || share.credit >= 1_000)
    }

    /// Whether this client has to keep to its share.
    pub fn is_sparse(&self, client: PublicKey) -> bool {
        self.clients.get(&client).is_some_and(|share| share.sparse)
    }

    /// One was.
    pub fn take(&mut self, client: PublicKey) {
        if let Some(share) = self.clients.get_mut(&client) {
            share.credit = share.credit.saturating_sub(1_000);
        }
    }

    /// Clients that are held back.
    pub fn sparse(&self) -> usize {
        self.clients.values().filter(|share| share.sparse).count()
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

    fn batch(frames: &[(u8, usize)]) -> Batch {
        let frame = |(client, commands): &(u8, usize)| {
            let session = SessionId { client: key(*client), nonce: 1 };
            let commands = vec![Command::Service(Bytes::from_static(b"x")).to_bytes(); *commands];
            Frame::build(ClusterId([1; 16]), session, 0, 1, &commands, None)
        };
        Batch::requests(Time(1), frames.iter().map(frame).collect())
    }

    /// Each client sends so many frames of so many commands in a tick, as far as it may; how many
    /// frames of each were let in.
    fn run(shares: &mut Shares, clients: &[(u8, usize, usize)], ticks: u64) -> Vec<usize> {
        let mut let_in = vec![0; clients.len()];
        for _ in 0..ticks {
            let mut frames = Vec::new();
            for ((client, count, commands), total) in clients.iter().zip(&mut let_in) {
                for _ in 0..*count {
                    if shares.may(key(*client)) {
                        shares.take(key(*client));
                        *total += 1;
                        frames.push((*client, *commands));
                    }
                }
            }
            shares.delivered(&batch(&frames));
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
        let most = 10 * SPARSE_FRAMES_S + BURST;
        assert!((7_500..=most).contains(&(let_in[0] as u64)), "{}", let_in[0]);
        assert_eq!(let_in[1], 500 * 5);
        assert_eq!(
            (shares.sparse(), shares.is_sparse(key(1)), shares.is_sparse(key(2))),
            (1, true, false)
        );
    }

    #[test]
    fn many_that_flood_do_not_lift_each_other() {
        let mut shares = Shares::default();
        let load = [(1, 60, 1), (2, 5, 32), (3, 60, 1), (4, 60, 1)];
        run(&mut shares, &load, 200);
        let let_in = run(&mut shares, &load, 500);
        assert_eq!(shares.sparse(), 3);
        assert!(let_in[0] as u64 <= 10 * SPARSE_FRAMES_S + BURST && let_in[1] == 500 * 5);
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
