//! What does not change while a scope is explored: keys, parameters, frames, and the harness's own
//! judgement of signatures.

use crate::scope::Scope;
use bytes::Bytes;
use perdura_agreement::{Agreement, Now, Restart, Settings};
use perdura_protocol::configuration::{Configuration, Configurations, Member, Parameters};
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{
    Batch, Certificate, ClusterId, Context, Digest, Frame, ReplicaId, Scheme, SecretKey, SessionId,
    Signature, Slot, Time, View, limits,
};
use std::collections::BTreeSet;

const CLUSTER: ClusterId = ClusterId([7; 16]);

/// The agreed time of all batches; clocks stand still, as time-outs are choices.
const WALL: Time = Time(1_000_000);

/// The fixed surroundings of a group.
pub struct World {
    /// What is explored.
    pub scope: Scope,
    /// Who sits where.
    pub seats: Vec<ReplicaId>,
    keys: Vec<SecretKey>,
    client: SecretKey,
    administrator: SecretKey,
    signed_frames: BTreeSet<Digest>,
    /// The two batches that liars propose.
    pub lies: [Batch; 2],
}

impl World {
    /// The surroundings of this scope.
    #[must_use]
    pub fn new(scope: Scope) -> World {
        let keys = (0..scope.faults.n())
            .map(|i| SecretKey::from_seed(Scheme::KeyedHash, [i as u8 + 1; 32]))
            .collect();
        let client = SecretKey::from_seed(Scheme::KeyedHash, [0xc1; 32]);
        let lie = Batch::null();
        let mut world = World {
            seats: scope.seats(),
            keys,
            client,
            administrator: SecretKey::from_seed(Scheme::KeyedHash, [0xad; 32]),
            signed_frames: BTreeSet::new(),
            lies: [lie.clone(), lie],
            scope,
        };
        world.sign_frames();
        world
    }

    fn sign_frames(&mut self) {
        for seat in 0..self.seats.len() {
            for view in 0..self.scope.views {
                for number in 0..self.scope.slots {
                    let frame = self.frame(seat, View(view), number);
                    self.signed_frames.insert(Digest::of(frame.raw()));
                }
            }
        }
        let lies = [200, 201].map(|seat| self.frame(seat, View(0), 0));
        for frame in &lies {
            self.signed_frames.insert(Digest::of(frame.raw()));
        }
        self.lies = lies.map(|frame| Batch::requests(WALL, vec![frame]));
    }

    /// The frame that a client hands to the replica in this seat as the `number`-th of a view.
    #[must_use]
    pub fn frame(&self, seat: usize, view: View, number: u64) -> Frame {
        let session = SessionId { client: self.client.public(), nonce: seat as u64 + 1 };
        let number = 1 + view.0 * self.scope.slots + number;
        let command = Bytes::copy_from_slice(&[seat as u8, number as u8]);
        let key = self.scope.faults.is_byzantine().then_some(&self.client);
        Frame::build(CLUSTER, session, 0, number, &[command], key)
    }

    /// Whether a client made this frame.
    #[must_use]
    pub fn is_genuine(&self, frame: &Frame) -> bool {
        self.signed_frames.contains(&Digest::of(frame.raw()))
    }

    /// A machine for a seat.
    #[must_use]
    pub fn machine(&self, seat: usize, restart: Restart) -> Agreement {
        let members =
            self.keys.iter().map(|key| Member { key: key.public(), incarnation: 0 }).collect();
        let parameters = Parameters::small(CLUSTER, self.scope.faults, self.administrator.public());
        let first = Configuration { id: 0, from_slot: Slot(0), members };
        let configurations = Configurations::new(parameters.cluster, first);
        let me = self.seats[seat];
        let settings = Settings {
            me,
            key: self.keys[me.index()].clone(),
            scheme: Scheme::KeyedHash,
            parameters,
            entropy: [me.0; 32],
            window: limits::WINDOW,
            one_seeder: false,
        };
        Agreement::new(settings, configurations, restart, Self::now(0))
    }

    /// The clocks at the `step`-th input of a replica. Every input comes an hour after the one
    /// before, so that nothing is passed over because of what was said or done a moment ago.
    #[must_use]
    pub fn now(step: u64) -> Now {
        Now { monotonic_ms: 1_000_000 + step * 3_600_000, wall: WALL }
    }

    /// Number of replicas.
    #[must_use]
    pub fn n(&self) -> usize {
        self.scope.faults.n()
    }

    /// The agreement quorum.
    #[must_use]
    pub fn quorum(&self) -> usize {
        self.scope.faults.agreement_quorum()
    }

    fn context() -> Context {
        Context { cluster: CLUSTER, configuration: 0 }
    }

    /// Signs as this replica.
    #[must_use]
    pub fn sign(
        &self,
        id: ReplicaId,
        kind: StatementKind,
        view: View,
        slot: Slot,
        digest: Digest,
    ) -> Signature {
        self.keys[id.index()].sign(&Self::context().statement(kind, view, slot, digest))
    }

    /// As a replica signs where it votes.
    #[must_use]
    pub fn sign_vote(
        &self,
        id: ReplicaId,
        kind: StatementKind,
        slot: Slot,
        view: View,
        digest: Digest,
    ) -> Signature {
        let forged =
            self.scope.forging && kind == StatementKind::Accept && self.scope.liars.contains(&id);
        if forged { Signature([id.0 + 1; 64]) } else { self.sign(id, kind, view, slot, digest) }
    }

    /// Whether these are signatures of at least a quorum of members over one vote. Counts for
    /// itself, so that it does not rest on what it judges.
    #[must_use]
    pub fn is_certified(
        &self,
        certificate: &Certificate,
        kind: StatementKind,
        view: View,
        slot: Slot,
        digest: Digest,
    ) -> bool {
        self.signed(certificate, kind, view, slot, digest) >= Some(self.quorum())
    }

    /// The same of at least r + 1 over a history.
    #[must_use]
    pub fn is_prefix(&self, prefix: &PrefixCertificate) -> bool {
        let PrefixCertificate { slot, history, certificate, .. } = prefix;
        let least = self.scope.faults.r() + 1;
        self.signed(certificate, StatementKind::Prefix, View(0), *slot, *history) >= Some(least)
    }

    // How many signed, if all these signatures hold.
    fn signed(
        &self,
        certificate: &Certificate,
        kind: StatementKind,
        view: View,
        slot: Slot,
        digest: Digest,
    ) -> Option<usize> {
        let statement = Self::context().statement(kind, view, slot, digest);
        let genuine: BTreeSet<ReplicaId> = certificate
            .signatures()
            .iter()
            .filter(|(id, signature)| {
                self.keys.get(id.index()).is_some_and(|key| {
                    Scheme::KeyedHash.verify(key.public(), &statement, *signature)
                })
            })
            .map(|(id, _)| *id)
            .collect();
        (genuine.len() == certificate.len()).then_some(genuine.len())
    }
}
