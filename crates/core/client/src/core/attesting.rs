//! What replicas attest of their replies, for those outside of the group: a reply that states something is not complete without
//! the word of r + 1 replicas that gave it, each signed (Augustus, EuroSys 2013, section 3.3).
//!
//! Invariants:
//! - a signature is looked at once its replica's reply is here, which says what is signed, and once for each number: who signs falsely
//!   once is not listened to again about that one, and another replica makes up for it; who attests it again in a newer configuration is;
//! - those that are given are of one configuration, as whoever is shown them asks for;
//! - replies and attestations come in any order. What is lost comes again: the frame is sent until both are here, and replicas answer that
//!   with both.

use super::ClientCore;
use bytes::Bytes;
use perdura_protocol::attestation::{Attestation, Attested};
use perdura_protocol::statement::STATEMENT_BYTES;
use perdura_protocol::{Outcome, PublicKey, ReplicaId, Signature, limits};
use std::collections::{BTreeMap, BTreeSet};

/// What replicas attest of the reply to one number.
#[derive(Debug, Default)]
pub(super) struct Attestations {
    /// Of replicas whose reply is not here yet.
    early: BTreeMap<ReplicaId, Attestation>,
    /// Of the statement in the replica's own reply, with a signature that holds.
    valid: BTreeMap<ReplicaId, Attestation>,
    /// Whose signature did not hold.
    refused: BTreeSet<ReplicaId>,
}

impl Attestations {
    fn is_settled(&self, replica: ReplicaId, configuration: u64) -> bool {
        let is_newer = |known: &Attestation| known.configuration < configuration;
        self.valid.get(&replica).is_some_and(|known| !is_newer(known))
            || self.refused.contains(&replica)
    }
}

/// The last signature of a replica that held: many attestations share one.
pub(super) type Verified = BTreeMap<ReplicaId, (PublicKey, [u8; STATEMENT_BYTES], Signature)>;

impl ClientCore {
    /// What an outcome states to those outside of the group.
    pub(super) fn leaf_of(&self, outcome: &Outcome) -> Option<Bytes> {
        let leaf = (self.config.leaf_of)(outcome.attesting()?)?;
        (leaf.len() <= limits::LEAF_BYTES).then_some(leaf)
    }

    /// A replica attests replies.
    pub(super) fn attested(&mut self, now_ms: u64, from: ReplicaId, attested: Attested) {
        let nonce = attested.nonce;
        for (number, attestation) in attested.by_number(from) {
            // An answer before it may have ended the session.
            let session = self.session.as_mut().filter(|session| session.nonce == nonce);
            let Some(session) = session else { return };
            let Some(pending) = session.pending(number) else { continue };
            if pending.attestations.is_settled(from, attestation.configuration) {
                continue;
            }
            pending.attestations.early.insert(from, attestation);
            self.look_at_attestation(from, number);
            self.complete_if_agreed(now_ms, from, number);
        }
    }

    /// Looks at what a replica attests of a number, if both that and its reply are here.
    pub(super) fn look_at_attestation(&mut self, from: ReplicaId, number: u64) {
        let pending = self.session.as_mut().and_then(|session| session.pending(number));
        let Some(pending) = pending else { return };
        // A word about lost memory is no reply yet.
        let Some(outcome) = pending.votes.final_of(from) else { return };
        let Some(attestation) = pending.attestations.early.remove(&from) else { return };
        let outcome = outcome.clone();
        let leaf = self.leaf_of(&outcome);
        let holds = leaf.is_some_and(|leaf| self.holds(&leaf, &attestation));
        self.stats.false_attestations += u64::from(!holds);
        let pending = self.session.as_mut().and_then(|session| session.pending(number));
        let Some(pending) = pending else { return };
        if holds {
            pending.attestations.valid.insert(from, attestation);
        } else {
            pending.attestations.refused.insert(from);
        }
    }

    fn holds(&mut self, leaf: &[u8], attestation: &Attestation) -> bool {
        let signer = attestation.signer;
        let Some(key) = self.config.replica_keys.get(signer.index()).copied() else { return false };
        let Some(claim) = attestation.claim(self.config.cluster, leaf, key) else { return false };
        let known = (claim.key, claim.message, claim.signature);
        if self.verified.get(&signer) == Some(&known) {
            return true;
        }
        let holds = self.config.scheme.verify(claim.key, &claim.message, claim.signature);
        if holds {
            self.verified.insert(signer, known);
        }
        holds
    }

    /// The attestations that go with an outcome on which enough replicas agree: none if it states nothing, else those of r + 1 replicas that
    /// gave it, in the newest configuration in which there are so many, the lowest first. `None` while there are too few.
    pub(super) fn attestations_of(
        &mut self,
        number: u64,
        outcome: &Outcome,
    ) -> Option<Vec<Attestation>> {
        if self.leaf_of(outcome).is_none() {
            return Some(Vec::new());
        }
        let witnesses = self.config.faults.witnesses();
        let pending = self.session.as_mut()?.pending(number)?;
        let agree = |id: &ReplicaId| pending.votes.final_of(*id) == Some(outcome);
        let valid = pending.attestations.valid.iter().filter(|(id, _)| agree(id));
        let mut by_configuration: BTreeMap<u64, Vec<&Attestation>> = BTreeMap::new();
        for (_, one) in valid {
            by_configuration.entry(one.configuration).or_default().push(one);
        }
        let newest = by_configuration.into_values().rev().find(|all| all.len() >= witnesses)?;
        Some(newest.into_iter().take(witnesses).cloned().collect())
    }
}
