//! Whom a client asks to read what is not ordered: n - u, in turn, and the others only where these do not answer
//! soon, or not alike. So most reads are carried out by n - u replicas, not by all.

use perdura_protocol::ReplicaId;

/// Who failed so often in a row is asked last ...
const SHUNNED: u32 = 3;

/// ... but for one read of so many, which one of these is asked first.
const RETRIED: usize = 16;

/// Reads take so long until something else is known, milliseconds.
const USUAL_MS: u64 = 5;

/// A smoothed time is kept in so many parts of a millisecond.
const PARTS: u64 = 8;

/// See the module.
#[derive(Debug)]
pub(super) struct Readers {
    turn: usize,
    /// By replica, how often in a row it gave no answer in time, or another one than was taken.
    failures: Vec<u32>,
    usual: u64,
}

impl Readers {
    pub fn new(replicas: usize) -> Readers {
        Readers { turn: 0, failures: vec![0; replicas], usual: USUAL_MS * PARTS }
    }

    /// In which order those are asked to whom there is a link.
    pub fn next(&mut self, mut linked: Vec<ReplicaId>) -> Vec<ReplicaId> {
        self.turn = self.turn.wrapping_add(1);
        let first = self.turn % linked.len().max(1);
        linked.rotate_left(first);
        let is_shunned = |replica: &ReplicaId| self.failures[replica.index()] >= SHUNNED;
        linked.sort_by_key(is_shunned);
        let shunned = linked.iter().filter(|replica| is_shunned(replica)).count();
        if shunned > 0 && self.turn.is_multiple_of(RETRIED) {
            // One of them, and another one the next time.
            let one = linked.len() - 1 - self.turn / RETRIED % shunned;
            linked[..=one].rotate_right(1);
        }
        linked
    }

    /// After so long the others are asked, milliseconds.
    pub fn timeout_ms(&self) -> u64 {
        2 * self.usual / PARTS + 2
    }

    pub fn failed(&mut self, replica: ReplicaId) {
        let failures = &mut self.failures[replica.index()];
        *failures = failures.saturating_add(1);
    }

    /// Its answer was taken.
    pub fn served(&mut self, replica: ReplicaId) {
        self.failures[replica.index()] = 0;
    }

    /// So long it took until enough had answered that one of them is correct.
    pub fn took(&mut self, ms: u64) {
        self.usual = (self.usual * (PARTS - 1) + ms.min(10_000) * PARTS) / PARTS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<ReplicaId> {
        (0..4).map(ReplicaId).collect()
    }

    /// How often each is among the first three, of 64 reads.
    fn asked(readers: &mut Readers) -> [u32; 4] {
        let mut counts = [0; 4];
        for _ in 0..64 {
            for replica in &readers.next(all())[..3] {
                counts[replica.index()] += 1;
            }
        }
        counts
    }

    #[test]
    fn all_are_asked_in_turn_and_who_fails_only_now_and_then() {
        let mut readers = Readers::new(4);
        assert_eq!(asked(&mut readers), [48; 4]);
        readers.failed(ReplicaId(2));
        readers.failed(ReplicaId(2));
        assert_eq!(asked(&mut readers), [48; 4], "once is nothing");
        readers.failed(ReplicaId(2));
        let counts = asked(&mut readers);
        assert!(counts[2] > 0 && counts[2] <= 4 && counts.iter().sum::<u32>() == 192, "{counts:?}");
        readers.served(ReplicaId(2));
        assert_eq!(asked(&mut readers), [48; 4]);
        // One whose link is down is not asked at all.
        assert_eq!(readers.next(vec![ReplicaId(3)]), [ReplicaId(3)]);
        assert_eq!(readers.next(vec![]), []);
    }

    /// Whoever it is, and however many there are.
    #[test]
    fn who_fails_no_more_is_asked_again() {
        for replicas in 3..=16u8 {
            let all: Vec<ReplicaId> = (0..replicas).map(ReplicaId).collect();
            for first in 0..replicas {
                let mut readers = Readers::new(all.len());
                let shunned = [first, (first + 1) % replicas].map(ReplicaId);
                shunned.iter().for_each(|one| (0..9).for_each(|_| readers.failed(*one)));
                let mut left = shunned.to_vec();
                for _ in 0..4 * RETRIED {
                    let asked = readers.next(all.clone());
                    assert_eq!(asked.len(), all.len());
                    left.retain(|one| asked[0] != *one);
                }
                assert_eq!(left, [], "of {replicas}");
            }
        }
    }

    #[test]
    fn the_timeout_follows_what_reads_take() {
        let mut readers = Readers::new(4);
        assert_eq!(readers.timeout_ms(), 12);
        (0..50).for_each(|_| readers.took(0));
        assert_eq!(readers.timeout_ms(), 2);
        (0..50).for_each(|_| readers.took(30));
        assert!((56..=62).contains(&readers.timeout_ms()), "{}", readers.timeout_ms());
    }
}
