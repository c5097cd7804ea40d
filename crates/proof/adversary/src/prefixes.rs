//! A liar that has others go past slots which nobody can prove.
//!
//! What was decided is known to others by voices, and proven by signatures; between the two a liar has room. Its Accepts
//! decide slots here and not there, and prove them nowhere. A prefix takes r + 1 signatures: with those of all liars
//! one correct signature is enough, long before others would have certified it, and whoever is given it goes there at once.

use crate::liar::{Liar, Speech};
use perdura_protocol::message::{Decision, Message};
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{Certificate, Digest, Encode, ReplicaId, Signature, Slot, View};
use perdura_replica::node::{Now, Peer, Said};

/// Between two questions for prefixes: others answer one in this time.
const ASK_MS: u64 = 100;

/// Slots between two prefixes that it hands out, for a while.
const STRIDES: [u64; 4] = [1, 10, 20, 40];

/// Decisions in a message, at most.
const AT_ONCE: usize = 64;

impl Liar {
    /// Of its Accepts some are genuine, some falsely signed, and some not for everybody.
    pub(crate) fn accept_unprovably(&mut self, mut speech: Speech<'_>) {
        let mut message = speech.message.clone();
        let Message::Accept { view, slot, signature, .. } = &mut message else {
            return speech.plainly();
        };
        let (view, slot) = (*view, *slot);
        let replica = speech.replica();
        let hidden = replica.is_some_and(|replica| self.other_half(view, slot, replica));
        match self.dice(view, slot).below(3) {
            0 => {
                *signature = self.noise();
                speech.instead(&message);
            }
            1 if hidden => {}
            _ => speech.plainly(),
        }
    }

    /// A correct replica has signed a prefix: those who are not there yet are taken there.
    pub(crate) fn hand_out_prefix(
        &mut self,
        from: ReplicaId,
        message: &Message,
        out: &mut Vec<Said>,
    ) {
        let Message::Prefix { slot, history, signature } = message else { return };
        let liars = self.insider.keys.len();
        if self.insider.accomplice(from) || liars < self.insider.faults.r() {
            return;
        }
        // Between those lie slots from which the next one is beyond reach.
        let stride = *self.dice(View(4), Slot(self.mood_number)).pick(&STRIDES);
        if *slot < self.memory.handed.plus(stride) {
            return;
        }
        self.memory.handed = *slot;
        let prefix = self.certify(*slot, *history, (from, *signature));
        for replica in self.insider.others().filter(|replica| *replica != from) {
            let delivered = self.memory.delivered.get(&replica).copied().unwrap_or_default();
            let missed = self.memory.batches.range(delivered.next()..);
            let decisions: Vec<Decision> = missed
                .take_while(|(missed, _)| *missed <= slot)
                .take(AT_ONCE)
                .map(|(slot, batch)| Decision {
                    slot: *slot,
                    view: View(0),
                    accepts: Certificate::default(),
                    batch: batch.clone(),
                })
                .collect();
            if decisions.is_empty() || self.insider.accomplice(replica) {
                continue;
            }
            let (prefix, between) = (Some(prefix.clone()), Vec::new());
            let message = Message::Decisions { decisions, prefix, between };
            let peer = Peer::Replica(replica);
            out.push(Said { after_ms: 0, peer, bytes: message.to_bytes() });
        }
        // Whoever signed it takes it for certified with one more signature.
        let signature = self.insider.resign(message.clone()).to_bytes();
        out.push(Said { after_ms: 0, peer: Peer::Replica(from), bytes: signature });
    }

    /// With the signatures of all liars.
    fn certify(
        &self,
        slot: Slot,
        history: Digest,
        genuine: (ReplicaId, Signature),
    ) -> PrefixCertificate {
        let configurations = self.insider.configurations.iter().rev();
        let configuration = configurations.clone().find(|known| known.from_slot <= slot);
        let configuration = configuration.map_or(0, |known| known.id);
        let sign = |who| {
            self.insider.sign(who, configuration, StatementKind::Prefix, View(0), slot, history)
        };
        let liars = self.insider.keys.iter().map(|(who, _)| (*who, sign(*who)));
        let certificate = Certificate::new(liars.chain([genuine]).collect());
        PrefixCertificate { slot, history, configuration, certificate }
    }

    /// Who is asked for states signs its prefix as it is now.
    pub(crate) fn ask_for_prefixes(&mut self, now: Now, out: &mut Vec<Said>) {
        if now.monotonic_ms < self.asked_ms + ASK_MS {
            return;
        }
        self.asked_ms = now.monotonic_ms;
        let others: Vec<ReplicaId> = self.insider.others().collect();
        let peer = Peer::Replica(*self.random.pick(&others));
        out.push(Said { after_ms: 0, peer, bytes: Message::StateQuery.to_bytes() });
    }
}
