//! Guards A3: what correct replicas sign binds domain, cluster, configuration, view, slot, kind and
//! digest, in the layout that `perdura_protocol::statement` gives; and what
//! they pass on as proven is: certificates of enough distinct members, every signature genuine.
//! The layout and the sizes of quorums are written down here once more, on purpose.

use crate::violation::{Broken, Check};
use perdura_protocol::message::{Decision, StateCertificate};
use perdura_protocol::viewchange::{PrefixCertificate, ViewChange};
use perdura_protocol::{
    Certificate, ClusterId, Configuration, Digest, Faults, Message, PublicKey, ReplicaId, Scheme,
    Signature, Slot, View, limits,
};
use std::collections::BTreeMap;

const RULE: &str = "Evidence (A3)";

/// Numbers of the kinds of statements.
const WRITE: u8 = 1;
const ACCEPT: u8 = 2;
const PREFIX: u8 = 3;
const CHECKPOINT: u8 = 4;
const VIEW_CHANGE: u8 = 5;
const NEW_VIEW: u8 = 6;

/// Bytes of a statement: domain, cluster, configuration, kind, view, slot, digest.
const STATEMENT_BYTES: usize = 20 + 16 + 8 + 1 + 8 + 8 + 32;

/// A statement: kind, view, slot, digest.
type Statement = (u8, View, Slot, Digest);

/// The checker.
#[derive(Debug)]
pub struct Evidence {
    cluster: ClusterId,
    scheme: Scheme,
    u: usize,
    r: usize,
    configurations: BTreeMap<u64, Configuration>,
}

impl Evidence {
    /// For a cluster in its first configuration.
    #[must_use]
    pub fn new(cluster: ClusterId, scheme: Scheme, faults: Faults, first: Configuration) -> Self {
        let configurations = BTreeMap::from([(first.id, first)]);
        Evidence { cluster, scheme, u: faults.u(), r: faults.r(), configurations }
    }

    /// A correct replica executed the order of these configurations.
    pub fn learn(&mut self, known: &[Configuration]) {
        let last = self.configurations.last_key_value().map_or(0, |(id, _)| *id);
        for configuration in known.iter().rev().take_while(|one| one.id > last) {
            self.configurations.insert(configuration.id, configuration.clone());
        }
    }

    /// All configurations that were ordered.
    #[must_use]
    pub fn configurations(&self) -> Vec<Configuration> {
        self.configurations.values().cloned().collect()
    }

    fn at(&self, slot: Slot) -> Option<&Configuration> {
        self.configurations.values().rev().find(|one| one.from_slot <= slot)
    }

    fn bytes(&self, configuration: u64, statement: Statement) -> Vec<u8> {
        let (kind, view, slot, digest) = statement;
        let mut out = Vec::with_capacity(STATEMENT_BYTES);
        out.extend_from_slice(b"perdura.statement.v1");
        out.extend_from_slice(&self.cluster.0);
        out.extend_from_slice(&configuration.to_le_bytes());
        out.push(kind);
        out.extend_from_slice(&view.0.to_le_bytes());
        out.extend_from_slice(&slot.0.to_le_bytes());
        out.extend_from_slice(&digest.0);
        out
    }

    fn signed(
        &self,
        by: ReplicaId,
        members: &Configuration,
        configuration: u64,
        statement: Statement,
        signature: Signature,
    ) -> bool {
        let bytes = self.bytes(configuration, statement);
        members.key(by).is_some_and(|key| self.scheme.verify(key, &bytes, signature))
    }

    /// Whether `least` distinct members signed, and nobody's signature is false.
    fn certified(
        &self,
        certificate: &Certificate,
        least: usize,
        members: &Configuration,
        configuration: u64,
        statement: Statement,
    ) -> bool {
        let mut signers: Vec<ReplicaId> =
            certificate.signatures().iter().map(|(id, _)| *id).collect();
        signers.dedup();
        signers.len() == certificate.len()
            && signers.len() >= least
            && certificate
                .signatures()
                .iter()
                .all(|(id, one)| self.signed(*id, members, configuration, statement, *one))
    }

    /// `n - u`.
    fn quorum(&self) -> usize {
        self.r + self.u.max(self.r) + 1
    }

    /// `replica`, with this key, says this.
    pub fn speaks(&self, replica: usize, key: PublicKey, message: &Message) -> Check {
        let me = ReplicaId(replica as u8);
        let result = match message {
            Message::Write { view, slot, digest, signature } if self.r > 0 => {
                self.own(me, key, (WRITE, *view, *slot, *digest), *signature)
            }
            Message::Accept { view, slot, digest, signature } if self.r > 0 => {
                self.own(me, key, (ACCEPT, *view, *slot, *digest), *signature)
            }
            Message::Prefix { slot, history, signature } => {
                self.own(me, key, (PREFIX, View(0), *slot, *history), *signature)
            }
            Message::Checkpoint { slot, digest, signature } => {
                self.own(me, key, (CHECKPOINT, View(0), *slot, *digest), *signature)
            }
            Message::ViewChange(change) => self.view_change(change),
            Message::NewView(new_view) => {
                let statement = (NEW_VIEW, new_view.view, Slot(0), new_view.body_digest());
                let id = new_view.configuration;
                let mut senders: Vec<ReplicaId> =
                    new_view.changes.iter().map(|change| change.sender).collect();
                senders.dedup();
                let leader = new_view.sender;
                let genuine = self
                    .configurations
                    .get(&id)
                    .is_none_or(|c| self.signed(leader, c, id, statement, new_view.signature));
                if !genuine || senders.len() != new_view.changes.len() {
                    Err(format!("the NewView of view {}", new_view.view))
                } else if senders.len() < self.quorum() {
                    Err(format!("a NewView of {} view changes", senders.len()))
                } else {
                    new_view.changes.iter().try_for_each(|change| self.view_change(change))
                }
            }
            Message::Decisions { decisions, prefix, .. } => decisions
                .iter()
                .try_for_each(|decision| self.decision(decision))
                .and_then(|()| prefix.as_ref().map_or(Ok(()), |prefix| self.prefix(prefix))),
            Message::StateInfo { state, prefix, .. } => self
                .prefix(prefix)
                .and_then(|()| state.as_ref().map_or(Ok(()), |state| self.state(state))),
            _ => Ok(()),
        };
        result.map_err(|what| {
            let what =
                format!("replica {replica} says what is not proven, or badly signed: {what}");
            Broken::new(RULE, what)
        })
    }

    /// A statement of the replica itself, in the configuration that governs its slot. A new
    /// incarnation has no key in earlier ones, and who speaks there passes for a liar.
    fn own(
        &self,
        me: ReplicaId,
        key: PublicKey,
        statement: Statement,
        signature: Signature,
    ) -> Result<(), String> {
        let Some(members) = self.at(statement.2) else { return Ok(()) };
        let member = members.key(me) == Some(key);
        if member && self.signed(me, members, members.id, statement, signature) {
            return Ok(());
        }
        Err(format!("{statement:?} in configuration {}", members.id))
    }

    fn view_change(&self, change: &ViewChange) -> Result<(), String> {
        let statement = (VIEW_CHANGE, change.view, Slot(0), change.body_digest());
        let id = change.configuration;
        if let Some(members) = self.configurations.get(&id)
            && !self.signed(change.sender, members, id, statement, change.signature)
        {
            return Err(format!("a ViewChange of replica {}", change.sender));
        }
        self.prefix(&change.prefix)?;
        let window = change.prefix.slot.plus(limits::WINDOW);
        if change.locks.iter().any(|lock| lock.slot <= change.prefix.slot || lock.slot > window) {
            return Err(format!("a lock of replica {} outside the window", change.sender));
        }
        for lock in change.locks.iter().filter(|_| self.r > 0) {
            let Some(members) = self.at(lock.slot) else { continue };
            let statement = (WRITE, lock.view, lock.slot, lock.digest);
            if !self.certified(&lock.writes, self.quorum(), members, members.id, statement) {
                let sender = change.sender;
                return Err(format!("replica {sender}'s lock in slot {}", lock.slot));
            }
        }
        Ok(())
    }

    fn prefix(&self, prefix: &PrefixCertificate) -> Result<(), String> {
        let Some(members) = self.at(prefix.slot).filter(|_| prefix.slot > Slot(0)) else {
            return Ok(());
        };
        let (statement, id) =
            ((PREFIX, View(0), prefix.slot, prefix.history), prefix.configuration);
        if self.certified(&prefix.certificate, self.r + 1, members, id, statement) {
            return Ok(());
        }
        Err(format!("the prefix up to slot {}", prefix.slot))
    }

    fn decision(&self, decision: &Decision) -> Result<(), String> {
        let Decision { slot, view, accepts, batch } = decision;
        let members = self.at(*slot).filter(|_| self.r > 0 && !accepts.is_empty());
        let Some(members) = members else { return Ok(()) };
        let statement = (ACCEPT, *view, *slot, batch.digest());
        if self.certified(accepts, self.quorum(), members, members.id, statement) {
            return Ok(());
        }
        Err(format!("the decision on slot {slot}"))
    }

    fn state(&self, state: &StateCertificate) -> Result<(), String> {
        let id = state.configuration;
        let Some(members) = self.at(state.slot) else { return Ok(()) };
        let statement = (CHECKPOINT, View(0), state.slot, state.digest);
        let least = self.u.max(self.r) + 1;
        let governs = id == members.id;
        if governs && self.certified(&state.certificate, least, members, id, statement) {
            return Ok(());
        }
        Err(format!("the state after slot {}", state.slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::configuration::Member;
    use perdura_protocol::statement::StatementKind;
    use perdura_protocol::{Context, SecretKey};

    #[test]
    fn a_signature_binds_everything() {
        let scheme = Scheme::KeyedHash;
        let keys: Vec<SecretKey> =
            (0..4).map(|seed| SecretKey::from_seed(scheme, [seed; 32])).collect();
        let members = keys.iter().map(|key| Member { key: key.public(), incarnation: 0 }).collect();
        let first = Configuration { id: 0, from_slot: Slot(0), members };
        let cluster = ClusterId([3; 16]);
        let faults = Faults::new(1, 1).unwrap();
        let checker = Evidence::new(cluster, scheme, faults, first);
        let says = |slot: u64, signed: Slot, by: usize| {
            let (view, digest) = (View(2), Digest([5; 32]));
            let context = Context { cluster, configuration: 0 };
            let statement = context.statement(StatementKind::Write, view, signed, digest);
            let signature = keys[by].sign(&statement);
            let message = Message::Write { view, slot: Slot(slot), digest, signature };
            checker.speaks(0, keys[0].public(), &message)
        };
        assert!(says(7, Slot(7), 0).is_ok());
        assert!(says(8, Slot(7), 0).is_err());
        assert!(says(7, Slot(7), 1).is_err());
    }

    #[test]
    fn a_prefix_needs_two_members() {
        let scheme = Scheme::KeyedHash;
        let keys: Vec<SecretKey> =
            (0..4).map(|seed| SecretKey::from_seed(scheme, [seed; 32])).collect();
        let members = keys.iter().map(|key| Member { key: key.public(), incarnation: 0 }).collect();
        let first = Configuration { id: 0, from_slot: Slot(0), members };
        let cluster = ClusterId([3; 16]);
        let checker = Evidence::new(cluster, scheme, Faults::new(1, 1).unwrap(), first);
        let (slot, history) = (Slot(64), Digest([9; 32]));
        let context = Context { cluster, configuration: 0 };
        let statement = context.statement(StatementKind::Prefix, View(0), slot, history);
        let sign = |id: u8| (ReplicaId(id), keys[id as usize].sign(&statement));
        let prefix = |signers: Vec<(ReplicaId, Signature)>| PrefixCertificate {
            slot,
            history,
            configuration: 0,
            certificate: Certificate::new(signers),
        };
        assert!(checker.prefix(&prefix(vec![sign(0), sign(2)])).is_ok());
        assert!(checker.prefix(&prefix(vec![sign(0)])).is_err());
        let (_, stolen) = sign(0);
        assert!(checker.prefix(&prefix(vec![sign(0), (ReplicaId(1), stolen)])).is_err());
    }
}
