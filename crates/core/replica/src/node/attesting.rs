//! What replies state to those outside of the group, signed for them (Augustus, EuroSys 2013, section 3.3): the client that gets r + 1 of
//! these can show the statement to whoever knows the members' keys. Also when r = 0, because a client shows them.
//!
//! They are signed where replies leave, and nowhere else. What leaves there is decided, executed and logged here (rule D1), so that a crash
//! of all replicas takes nothing back that was signed. Nor is it news of this replica alone: a statement is a function of a reply, and that of
//! the slots up to its own, which are executed one after the other; whoever is behind gives the same reply as those who are
//! ahead, or none yet. A replica that has halted lets nothing out. One that may not vote, since it lacks what it could have promised or
//! has not compared that with others, signs nothing either, and none whose key is not a member's in the configuration in
//! force: its client asks again, and is answered from the session.
//!
//! All that leaves at once has one signature, or one for each [`limits::ATTESTED`] statements.

use super::Node;
use super::executing::Ready;
use bytes::Bytes;
use perdura_protocol::attestation::{Attested, attest};
use perdura_protocol::{Outcome, limits};

/// About what an attestation takes in a message.
pub(super) const ATTESTATION_BYTES: usize = 16 + 32 * limits::ATTESTED.ilog2() as usize;

impl Node {
    /// What the replies of these parts state, signed, by the index of the part, ascending.
    pub(super) fn attest(&mut self, parts: &[Ready]) -> Vec<(usize, Attested)> {
        let mut leaves: Vec<(usize, u64, Bytes)> = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let inspector = &self.inspector;
            let stated = |(number, outcome): &(u64, Outcome)| {
                Some((index, *number, inspector.attested(outcome)?))
            };
            leaves.extend(part.outcomes.iter().filter_map(stated));
        }
        let configuration = self.configuration();
        let is_member = configuration.key(self.me) == Some(self.key.public());
        if leaves.is_empty() || self.halted || !is_member || !self.agreement.voting() {
            return Vec::new();
        }
        let context = (self.parameters.cluster, configuration.id);
        let mut all: Vec<(usize, Attested)> = Vec::new();
        for together in leaves.chunks(limits::ATTESTED) {
            let bytes: Vec<&Bytes> = together.iter().map(|(_, _, leaf)| leaf).collect();
            let attestations = attest(context, &bytes, (self.me, &self.key));
            let begun = all.len();
            for ((part, number, _), one) in together.iter().zip(attestations) {
                let leaf = (*number, one.index, one.path);
                match all[begun..].last_mut().filter(|(of, _)| of == part) {
                    Some((_, attested)) => attested.leaves.push(leaf),
                    None => {
                        let nonce = parts[*part].session.nonce;
                        let (count, signature) = (one.count, one.signature);
                        let configuration = one.configuration;
                        let leaves = vec![leaf];
                        all.push((
                            *part,
                            Attested { nonce, configuration, count, signature, leaves },
                        ));
                    }
                }
            }
            self.counters.attestations_signed += 1;
            self.counters.statements_signed += together.len() as u64;
        }
        all
    }
}
