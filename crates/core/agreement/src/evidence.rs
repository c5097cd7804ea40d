//! What proves a view change, and what follows from it: pure functions over signed messages, so
//! that every replica that sees the same NewView computes the same choice.
//!
//! Invalid view changes are thrown out first, and only then is a maximum taken over what is left
//! (rule A3). A view change is valid when
//! 1. its sender signed it, with the key it has in the verifier's current configuration;
//! 2. its prefix carries r + 1 genuine Prefix signatures (slot 0 needs none);
//! 3. its locks lie above the prefix, inside the window, in views before the one asked for, and
//!    with r > 0 each carries exactly a quorum of genuine Writes. With r = 0 nobody lies, and the sender's
//!    word is enough.
//!
//! That a correct sender's locks lie inside the window is kept by `prefix`. Of a view change that
//! nobody starts a view from, no more than the sender's signature is ever verified: anybody can ask
//! for views without end, with as many genuine old locks as a window holds (A6). Every receiver of a
//! NewView judges all of it alike, whatever it knows itself, so that who passes it on is not blamed.
//!
//! The base takes r + 1 signatures, also where u > r and the only correct one of them may have crashed since: it says no more
//! than that all up to there was decided. Who has the batches is another question, and whoever starts the view has
//! them, for it leaves out view changes with a prefix beyond what it has executed itself (`try_new_view`); it is there to send
//! them. Should it fail too, the next view rests on prefixes of those who are left (`proofs`;
//! `laggards_of_more_than_a_window_are_believed_in_the_next_view_change`).
//!
//! All view changes of a new view are of one configuration, the verifier's current one. One of an earlier configuration may
//! speak for a member that was replaced, and its successor knows nothing of those promises; and two replicas that counted
//! other members would not find the same quorums (`a_new_view_is_its_leaders_from_a_quorum_of_changes_to_it`).
//!
//! Any quorum of valid view changes is enough to choose from: a batch that was decided was locked
//! by a quorum, which shares a correct replica with this one; that replica reports the lock, and
//! no higher lock for another batch can be proven, because Writes in a later view were bound by
//! that view's own choice (induction over views, as in PBFT section 4.5.2).

use crate::rules::Choice;
use perdura_protocol::configuration::Configurations;
use perdura_protocol::keys::{Claim, Scheme};
use perdura_protocol::statement::{STATEMENT_BYTES, StatementKind};
use perdura_protocol::viewchange::{Lock, NewView, PrefixCertificate, ViewChange};
use perdura_protocol::{
    Batch, Certificate, Context, Digest, Faults, ReplicaId, Signature, Slot, View, seeded,
};
use std::cell::Cell;
use std::collections::BTreeMap;

/// A view change that its sender signed.
#[derive(Clone, Debug)]
pub struct SignedViewChange {
    /// The view change.
    pub change: ViewChange,
    /// Whether its prefix and its locks were verified too.
    pub proven: bool,
}

/// What a verifier knows.
pub struct Verifier<'a> {
    /// Fault bounds.
    pub faults: Faults,
    /// Signature scheme.
    pub scheme: Scheme,
    /// Known configurations.
    pub configurations: &'a Configurations,
    /// The configuration in which view changes are signed now.
    pub current: u64,
    /// Unpredictable bytes for batch verification.
    pub entropy: [u8; 32],
    /// Slots above a prefix that may hold locks.
    pub window: u64,
    /// Signatures looked at so far.
    pub verified: Cell<u64>,
}

/// Why evidence does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Invalid {
    /// Signed in a configuration that is not the verifier's current one, or that it does not know.
    #[error("signed in another configuration")]
    OtherConfiguration,
    /// Not signed by the alleged sender.
    #[error("signature is not the sender's")]
    Signature,
    /// The prefix is not certified.
    #[error("prefix is not certified")]
    Prefix,
    /// A lock is outside the window, of a view that is not earlier, or not certified.
    #[error("lock is not certified")]
    Lock,
    /// Too few view changes, or of other views, or from somebody who does not lead.
    #[error("new view does not hold a quorum of view changes from its leader")]
    Quorum,
}

type StatementClaim = Claim<[u8; STATEMENT_BYTES]>;

impl Verifier<'_> {
    fn all_genuine(&self, claims: &[StatementClaim]) -> bool {
        self.verified.set(self.verified.get() + claims.len() as u64);
        self.scheme.verify_every(claims, self.entropy)
    }

    fn claims(
        &self,
        certificate: &Certificate,
        kind: StatementKind,
        view: View,
        slot: Slot,
        digest: Digest,
        out: &mut Vec<StatementClaim>,
    ) -> Option<()> {
        let message = self.configurations.context_at(slot).statement(kind, view, slot, digest);
        for (id, signature) in certificate.signatures() {
            let key = self.configurations.key_at(slot, *id)?;
            out.push(Claim { key, message, signature: *signature });
            if seeded!(FirstSignatureOnly) {
                break;
            }
        }
        Some(())
    }

    /// Whether a certificate of at least `quorum` signatures over one statement is genuine.
    #[must_use]
    pub fn certified(
        &self,
        certificate: &Certificate,
        quorum: usize,
        kind: StatementKind,
        view: View,
        slot: Slot,
        digest: Digest,
    ) -> bool {
        let mut claims = Vec::new();
        certificate.len() >= quorum
            && self.claims(certificate, kind, view, slot, digest, &mut claims).is_some()
            && self.all_genuine(&claims)
    }

    /// Whether a prefix is certified.
    #[must_use]
    pub fn prefix(&self, prefix: &PrefixCertificate) -> bool {
        if prefix.slot == Slot(0) {
            return *prefix == PrefixCertificate::genesis();
        }
        let oldest = &self.configurations.known()[0];
        let governing = self.configurations.at(prefix.slot);
        // A replica that joined later knows older configurations by their number only. It goes by the keys of the oldest
        // that it knows: who of r + 1 signers is correct has the same key in both, or signed nothing about that slot
        // (`governs`); the key of a member that was replaced since counts for nothing
        // (`a_prefix_is_signed_in_the_configuration_of_its_slot`).
        if prefix.slot >= oldest.from_slot && prefix.configuration != governing.id {
            return false;
        }
        let cluster = self.configurations.cluster();
        let context = Context { cluster, configuration: prefix.configuration };
        let message =
            context.statement(StatementKind::Prefix, View(0), prefix.slot, prefix.history);
        let claims: Option<Vec<StatementClaim>> = prefix
            .certificate
            .signatures()
            .iter()
            .map(|(id, signature)| {
                let key = governing.key(*id)?;
                Some(Claim { key, message, signature: *signature })
            })
            .collect();
        prefix.certificate.len() >= self.faults.witnesses()
            && claims.is_some_and(|claims| self.all_genuine(&claims))
    }

    /// A replica's own statement about a view, in the current configuration.
    fn claim(
        &self,
        kind: StatementKind,
        view: View,
        sender: ReplicaId,
        body: Digest,
        signature: Signature,
    ) -> Option<StatementClaim> {
        let configuration = self.configurations.by_id(self.current)?;
        let context = configuration.context(self.configurations.cluster());
        let message = context.statement(kind, view, Slot(0), body);
        Some(Claim { key: configuration.key(sender)?, message, signature })
    }

    /// What of a view change is seen without verifying a signature: whether it can be judged here,
    /// and whether its locks are where locks can be.
    pub fn formed(&self, change: &ViewChange) -> Result<(), Invalid> {
        if change.configuration != self.current {
            return Err(Invalid::OtherConfiguration);
        }
        // Who joined later does not know the keys and numbers under which older locks were signed.
        let oldest = self.configurations.known()[0].from_slot;
        if change.locks.first().is_some_and(|lock| lock.slot < oldest) {
            return Err(Invalid::OtherConfiguration);
        }
        let (prefix, quorum) = (change.prefix.slot, self.faults.agreement_quorum());
        let sound = change.locks.iter().all(|lock| {
            lock.slot > prefix
                && lock.slot <= prefix.plus(self.window)
                && lock.view < change.view
                && (!self.faults.is_byzantine() || lock.writes.len() == quorum)
        });
        if sound { Ok(()) } else { Err(Invalid::Lock) }
    }

    /// Whether its sender signed a view change.
    pub fn signed(&self, change: &ViewChange) -> Result<(), Invalid> {
        let own = self.senders_claim(change).ok_or(Invalid::Signature)?;
        if self.all_genuine(&[own]) { Ok(()) } else { Err(Invalid::Signature) }
    }

    fn senders_claim(&self, change: &ViewChange) -> Option<StatementClaim> {
        let ViewChange { view, sender, signature, .. } = change;
        self.claim(StatementKind::ViewChange, *view, *sender, change.body_digest(), *signature)
    }

    /// Whether prefix and locks of a well-formed view change are certified; all signatures of locks in
    /// one batch.
    pub fn proven(&self, change: &ViewChange) -> Result<(), Invalid> {
        if !self.prefix(&change.prefix) && !seeded!(PrefixUnproven) {
            return Err(Invalid::Prefix);
        }
        let mut claims = Vec::new();
        for lock in change.locks.iter().filter(|_| self.faults.is_byzantine()) {
            let Lock { slot, view, digest, writes } = lock;
            self.claims(writes, StatementKind::Write, *view, *slot, *digest, &mut claims)
                .ok_or(Invalid::Lock)?;
        }
        if self.all_genuine(&claims) { Ok(()) } else { Err(Invalid::Lock) }
    }

    /// Checks a new view and all that it rests on, the cheapest first: a signature of a lock is
    /// verified only where a quorum of replicas has asked for the view. `known` says of a view change
    /// that all of it was checked before.
    pub fn new_view(
        &self,
        new_view: &NewView,
        known: impl Fn(&ViewChange) -> bool,
    ) -> Result<(), Invalid> {
        let NewView { view, sender, configuration, changes, signature } = new_view;
        if *configuration != self.current {
            return Err(Invalid::OtherConfiguration);
        }
        if *sender != view.leader(self.faults.n())
            || changes.len() < self.faults.agreement_quorum()
            || changes.iter().any(|one| one.view != *view || one.configuration != *configuration)
        {
            return Err(Invalid::Quorum);
        }
        changes.iter().try_for_each(|change| self.formed(change))?;
        let open: Vec<&ViewChange> = changes.iter().filter(|change| !known(change)).collect();
        let body = new_view.body_digest();
        let claims: Option<Vec<StatementClaim>> =
            std::iter::once(self.claim(StatementKind::NewView, *view, *sender, body, *signature))
                .chain(open.iter().map(|change| self.senders_claim(change)))
                .collect();
        if !claims.is_some_and(|claims| self.all_genuine(&claims)) {
            return Err(Invalid::Signature);
        }
        open.iter().try_for_each(|change| self.proven(change))
    }
}

/// What a new view starts from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Start {
    /// The highest certified prefix among the view changes.
    pub base: PrefixCertificate,
    /// The batch for each slot from the one after the base to the highest locked one; the null
    /// batch where nobody holds a lock.
    pub choices: BTreeMap<Slot, Digest>,
}

impl Start {
    /// The start of view 0: everything is free.
    #[must_use]
    pub fn genesis() -> Start {
        Start { base: PrefixCertificate::genesis(), choices: BTreeMap::new() }
    }

    /// Computes the choice from a quorum of valid view changes.
    #[must_use]
    pub fn choose<'a>(changes: impl Iterator<Item = &'a ViewChange> + Clone) -> Start {
        let base = changes
            .clone()
            .map(|change| &change.prefix)
            .max_by_key(|prefix| prefix.slot)
            .cloned()
            .unwrap_or_else(PrefixCertificate::genesis);
        let mut best: BTreeMap<Slot, (View, Digest)> = BTreeMap::new();
        for lock in changes.flat_map(|change| &change.locks) {
            let this = (lock.view, lock.digest);
            let entry = best.entry(lock.slot).or_insert(this);
            *entry = if seeded!(LowerLockWins) { this.min(*entry) } else { this.max(*entry) };
        }
        let mut choices = BTreeMap::new();
        if let Some((last, _)) = best.last_key_value() {
            let null = Batch::null().digest();
            for number in base.slot.0 + 1..=last.0 {
                let slot = Slot(number);
                choices.insert(slot, best.get(&slot).map_or(null, |(_, digest)| *digest));
            }
        }
        Start { base, choices }
    }

    /// What may be proposed for a slot.
    #[must_use]
    pub fn choice(&self, slot: Slot) -> Choice {
        self.choices.get(&slot).map_or(Choice::Free, |digest| Choice::Reproposed(*digest))
    }
}

#[cfg(test)]
mod tests;
