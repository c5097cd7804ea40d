//! Lies to those outside of the group: what replies state, attested wrongly.

use crate::liar::{Liar, Speech};
use bytes::Bytes;
use perdura_protocol::attestation::{Attested, attest};
use perdura_protocol::message::Message;
use perdura_protocol::{Encode, Outcome};

/// What a liar knows of the statements that its service makes in replies.
#[derive(Clone, Copy, Debug)]
pub struct Statements {
    /// The statement of a reply.
    pub leaf: fn(&[u8]) -> Option<Bytes>,
    /// A reply with the opposite statement.
    pub opposite: fn(&[u8]) -> Option<Bytes>,
}

impl Liar {
    /// To a client: the opposite of what replies state, and genuinely signed. Whether there was anything to lie about.
    pub(crate) fn state_the_opposite(&mut self, speech: &mut Speech<'_>) -> bool {
        let (Some(statements), Message::Replies { nonce, view, outcomes }) =
            (self.insider.statements, speech.message)
        else {
            return false;
        };
        let opposite = |outcome: &Outcome| match outcome {
            Outcome::Service(reply) => (statements.opposite)(reply),
            _ => None,
        };
        if !outcomes.iter().any(|(_, outcome)| opposite(outcome).is_some()) {
            return false;
        }
        let mut turned = outcomes.clone();
        let mut leaves: Vec<(u64, Bytes)> = Vec::new();
        for (number, outcome) in &mut turned {
            if let Some(reply) = opposite(outcome) {
                leaves.extend((statements.leaf)(&reply).map(|leaf| (*number, leaf)));
                *outcome = Outcome::Service(reply);
            }
        }
        let configuration = self.insider.configurations.last().map_or(0, |known| known.id);
        let me = self.insider.me;
        let key = self.insider.keys.iter().find(|(id, _)| *id == me).map(|(_, key)| key.clone());
        let replies = Message::Replies { nonce: *nonce, view: *view, outcomes: turned };
        speech.instead(&replies);
        if let Some(key) = key.filter(|_| !leaves.is_empty()) {
            let bytes: Vec<&Bytes> = leaves.iter().map(|(_, leaf)| leaf).collect();
            let attestations = attest((self.insider.cluster, configuration), &bytes, (me, &key));
            let (count, signature) = (attestations[0].count, attestations[0].signature);
            let leaves = leaves
                .iter()
                .zip(attestations)
                .map(|((number, _), one)| (*number, one.index, one.path))
                .collect();
            let attested = Attested { nonce: *nonce, configuration, count, signature, leaves };
            speech.after(0, Message::Attested(Box::new(attested)).to_bytes());
        }
        true
    }

    /// To a client: the right statements, wrongly attested.
    pub(crate) fn attest_wrongly(&mut self, mut speech: Speech<'_>, attested: &Attested) {
        let mut wrong = attested.clone();
        match self.random.below(5) {
            0 => wrong.signature = self.noise(),
            1 => wrong.configuration += 1,
            2 => wrong.count += 1,
            3 => wrong.leaves.reverse(),
            _ => {
                for (_, index, path) in &mut wrong.leaves {
                    *index ^= 1;
                    path.pop();
                }
            }
        }
        speech.instead(&Message::Attested(Box::new(wrong)));
    }
}
