//! Retries whose answers the stage is asked for again: so many at a time, in all and of one client key, and each frame once. What is too much is
//! asked for by its client once more.

use perdura_protocol::{PublicKey, SessionId};
use std::collections::BTreeSet;

/// Of how many frames at a time, in all and of one client key.
pub const ASKED_AGAIN: (usize, usize) = (1024, 128);

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Added {
    /// The stage is to be asked.
    New,
    /// It was asked, and has not answered yet.
    Known,
    /// It was asked for too much.
    Full,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Asking {
    // By session and first number.
    frames: BTreeSet<(SessionId, u64)>,
    most: usize,
    most_of_client: usize,
}

impl Default for Asking {
    fn default() -> Asking {
        let (most, most_of_client) = ASKED_AGAIN;
        Asking { frames: BTreeSet::new(), most, most_of_client }
    }
}

impl Asking {
    /// Divides how much it may hold by two to the power of `by`; of one client key it is never nothing.
    pub fn shrink(&mut self, by: u32) {
        self.most >>= by;
        self.most_of_client = (self.most_of_client >> by).max(1);
    }

    pub fn add(&mut self, session: SessionId, first_number: u64) -> Added {
        let frame = (session, first_number);
        if self.frames.contains(&frame) {
            Added::Known
        } else if self.frames.len() >= self.most
            || self.of_client(session.client) >= self.most_of_client
        {
            Added::Full
        } else {
            self.frames.insert(frame);
            Added::New
        }
    }

    pub fn remove(&mut self, session: SessionId, first_number: u64) {
        self.frames.remove(&(session, first_number));
    }

    fn of_client(&self, client: PublicKey) -> usize {
        let at = |nonce, number| (SessionId { client, nonce }, number);
        self.frames.range(at(0, 0)..=at(u64::MAX, u64::MAX)).count()
    }

    /// In all, and of the client key that has most.
    pub fn held(&self) -> (usize, usize) {
        let frames: Vec<PublicKey> =
            self.frames.iter().map(|(session, _)| session.client).collect();
        let most = frames.chunk_by(|one, next| one == next).map(<[PublicKey]>::len).max();
        (frames.len(), most.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(client: u16, nonce: u64) -> SessionId {
        let mut key = [0; 32];
        key[..2].copy_from_slice(&client.to_be_bytes());
        SessionId { client: PublicKey(key), nonce }
    }

    #[test]
    fn one_key_has_a_part_of_the_room_and_no_frame_counts_twice() {
        let (mut asking, (most, of_client)) = (Asking::default(), ASKED_AGAIN);
        for number in 0..of_client as u64 {
            // In several sessions.
            assert_eq!(asking.add(session(7, number % 3), number), Added::New);
            assert_eq!(asking.add(session(7, number % 3), number), Added::Known);
        }
        assert_eq!(asking.add(session(7, u64::MAX), u64::MAX), Added::Full);
        assert_eq!(asking.add(session(7, 0), 0), Added::Known, "however full it is");
        assert_eq!(asking.add(session(8, 0), 0), Added::New);
        assert_eq!(asking.held(), (of_client + 1, of_client));
        asking.remove(session(7, 0), 0);
        assert_eq!(asking.add(session(7, u64::MAX), u64::MAX), Added::New);
        for client in 1_000..3_000 {
            let room = asking.held().0 < most;
            assert_eq!(asking.add(session(client, 1), 1) == Added::New, room);
        }
        assert_eq!(asking.held(), (most, of_client));
    }

    #[test]
    fn however_small_each_key_has_room_for_one() {
        let mut asking = Asking::default();
        asking.shrink(8);
        assert_eq!(asking.add(session(1, 1), 1), Added::New);
        assert_eq!(asking.add(session(1, 1), 2), Added::Full);
        let added = (2..9).filter(|client| asking.add(session(*client, 1), 1) == Added::New);
        assert_eq!(added.count(), 3, "there is room for four");
        assert_eq!(asking.held(), (4, 1));
    }
}
