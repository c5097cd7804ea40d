//! Signatures in commands: what replicas of other groups attested, which has to be genuine before the command is ordered
//! ([`perdura_execution::Interface::claims`]). Those that were found to be are remembered, for they come often: in a frame and again in the
//! proposal that it is in; many statements are signed at once, and commands of many clients carry the same signature.
//!
//! Invariant: memory saves work and changes no verdict. Only what is genuine is remembered, by a hash of key, message *and* signature: another
//! signature over a right statement is verified anew, here as on a replica that never saw it.

use perdura_protocol::keys::Claim;
use perdura_protocol::statement::STATEMENT_BYTES;
use perdura_protocol::{Digest, limits};
use std::collections::{BTreeSet, VecDeque};

/// Signatures that are remembered: those of eight of the largest frames, 3 MB.
const REMEMBERED: usize = 8 * limits::FRAME_CLAIMS;

/// A signature to verify, and the hash of all of it.
#[derive(Clone, Debug)]
pub(super) struct Claimed {
    hash: Digest,
    claim: Claim<[u8; STATEMENT_BYTES]>,
}

impl Claimed {
    pub fn new(claim: Claim<[u8; STATEMENT_BYTES]>) -> Claimed {
        let mut all = [0; 32 + STATEMENT_BYTES + 64];
        all[..32].copy_from_slice(&claim.key.0);
        all[32..32 + STATEMENT_BYTES].copy_from_slice(&claim.message);
        all[32 + STATEMENT_BYTES..].copy_from_slice(&claim.signature.0);
        Claimed { hash: Digest::of(&all), claim }
    }
}

/// Those that are genuine, the oldest first to go.
#[derive(Debug, Default)]
pub(super) struct Verified {
    known: BTreeSet<Digest>,
    by_age: VecDeque<Digest>,
    /// How many had to be verified, and how many had not.
    pub counts: (u64, u64),
}

impl Verified {
    /// Those that are not known to be genuine, each once.
    pub fn fresh(&mut self, claims: &[Claimed]) -> Vec<Claim<[u8; STATEMENT_BYTES]>> {
        let mut seen = BTreeSet::new();
        let fresh =
            claims.iter().filter(|one| !self.known.contains(&one.hash) && seen.insert(one.hash));
        let fresh: Vec<_> = fresh.map(|one| one.claim.clone()).collect();
        self.counts.0 += fresh.len() as u64;
        self.counts.1 += (claims.len() - fresh.len()) as u64;
        fresh
    }

    /// These are genuine.
    pub fn remember(&mut self, claims: &[Claimed]) {
        for one in claims {
            if self.known.insert(one.hash) {
                self.by_age.push_back(one.hash);
            }
        }
        while self.by_age.len() > REMEMBERED {
            let oldest = self.by_age.pop_front();
            oldest.map(|oldest| self.known.remove(&oldest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::{PublicKey, Signature};

    fn claimed(number: usize, signature: u8) -> Claimed {
        let mut message = [0; STATEMENT_BYTES];
        message[..8].copy_from_slice(&number.to_le_bytes());
        let signature = Signature([signature; 64]);
        Claimed::new(Claim { key: PublicKey([7; 32]), message, signature })
    }

    #[test]
    fn what_is_genuine_is_verified_once_and_another_signature_over_it_anew() {
        let mut verified = Verified::default();
        let right = claimed(1, 1);
        assert_eq!(verified.fresh(&[right.clone(), right.clone()]).len(), 1, "each once");
        assert_eq!(
            verified.fresh(std::slice::from_ref(&right)).len(),
            1,
            "nobody said that it is genuine"
        );
        verified.remember(std::slice::from_ref(&right));
        assert_eq!(verified.fresh(std::slice::from_ref(&right)).len(), 0);
        assert_eq!(verified.fresh(&[claimed(1, 2), right.clone()]).len(), 1, "another signature");
        assert_eq!(verified.fresh(&[claimed(2, 1)]).len(), 1, "another statement");
        let mut key = right.claim;
        key.key = PublicKey([8; 32]);
        assert_eq!(verified.fresh(&[Claimed::new(key)]).len(), 1, "another key");
        assert_eq!(verified.counts, (5, 3));
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_goes_first() {
        let mut verified = Verified::default();
        let claims: Vec<Claimed> = (0..REMEMBERED + 10).map(|number| claimed(number, 1)).collect();
        // Twice, and in parts.
        for some in claims.chunks(1000) {
            verified.remember(some);
            verified.remember(some);
        }
        assert_eq!((verified.known.len(), verified.by_age.len()), (REMEMBERED, REMEMBERED));
        assert_eq!(verified.fresh(&claims).len(), 10);
        assert_eq!(verified.fresh(&claims[..10]).len(), 10);
    }
}
