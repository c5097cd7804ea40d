//! Lies about views: what was promised, and how a view starts.

use crate::liar::{Liar, Speech};
use bytes::Bytes;
use perdura_protocol::message::Message;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::{Lock, NewView, PrefixCertificate, ViewChange};
use perdura_protocol::{Certificate, Digest, Encode, ReplicaId, Signature, Slot, View, limits};
use perdura_replica::node::{Peer, Said};
use std::collections::BTreeMap;

/// Bytes of a signature, the last of an encoded view change.
const SIGNATURE_BYTES: usize = 64;

impl Liar {
    pub(crate) fn forget_locks(&mut self, mut speech: Speech<'_>) {
        let Message::ViewChange(change) = speech.message else { return speech.plainly() };
        let mut change = change.clone();
        change.locks.clear();
        if self.random.percent(30) {
            change.prefix = PrefixCertificate::genesis();
        }
        speech.instead(&self.insider.resign(Message::ViewChange(change)));
    }

    pub(crate) fn reuse_evidence(&mut self, mut speech: Speech<'_>) {
        match speech.message {
            Message::ViewChange(change) => {
                let me = self.insider.me;
                let mut earlier = self
                    .memory
                    .changes
                    .iter()
                    .filter(|((view, sender), _)| *sender == me && *view < change.view)
                    .map(|(_, earlier)| earlier.clone());
                let mut old = earlier.next().unwrap_or_else(|| {
                    // Its first: as if it had seen no prefix certified since the beginning.
                    ViewChange { prefix: PrefixCertificate::genesis(), ..(**change).clone() }
                });
                old.view = change.view;
                old.configuration = change.configuration;
                speech.instead(&self.insider.resign(Message::ViewChange(Box::new(old))));
            }
            Message::NewView(new_view) if self.random.percent(50) => {
                // Of an earlier view, under the number of this one.
                let old: Vec<ViewChange> = self
                    .memory
                    .changes
                    .iter()
                    .filter(|((view, _), _)| *view < new_view.view)
                    .map(|(_, change)| change.clone())
                    .collect();
                let mut new_view = new_view.clone();
                if let Some(view) = old.last().map(|change| change.view) {
                    new_view.changes =
                        old.into_iter().filter(|change| change.view == view).collect();
                }
                speech.instead(&self.insider.resign(Message::NewView(new_view)));
            }
            _ => speech.plainly(),
        }
    }

    /// Signatures of all liars, and invented ones of the others up to a quorum.
    fn forged_certificate(
        &mut self,
        configuration: u64,
        kind: StatementKind,
        view: View,
        slot: Slot,
        digest: Digest,
    ) -> Certificate {
        let quorum = self.insider.faults.agreement_quorum();
        let mut signatures: Vec<(ReplicaId, Signature)> = self
            .insider
            .keys
            .iter()
            .map(|(id, _)| (*id, self.insider.sign(*id, configuration, kind, view, slot, digest)))
            .collect();
        let own = signatures[0].1;
        let invent = self.random.percent(70);
        // Those after the liar first: whoever looks at the first signature sees a genuine one.
        let mut others: Vec<ReplicaId> = self.insider.others().collect();
        others.sort_by_key(|other| (*other < self.insider.me, *other));
        for other in others {
            if invent && signatures.len() < quorum && !self.insider.accomplice(other) {
                let signature = if self.random.percent(50) { own } else { self.noise() };
                signatures.push((other, signature));
            }
        }
        Certificate::new(signatures)
    }

    pub(crate) fn noise(&mut self) -> Signature {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&self.random.bytes32());
        bytes[32..].copy_from_slice(&self.random.bytes32());
        Signature(bytes)
    }

    pub(crate) fn forge_evidence(&mut self, mut speech: Speech<'_>) {
        let Message::ViewChange(change) = speech.message else { return speech.plainly() };
        let mut change = change.clone();
        let configuration = change.configuration;
        if self.random.percent(30)
            && let Some(bytes) = self.repeat_own_signature(&change)
        {
            return speech.after(0, bytes);
        }
        if self.random.percent(30) {
            self.transplant(&mut change);
        } else if self.random.percent(30) {
            // As far as others may have executed, or far beyond it.
            let slot = Slot(change.prefix.slot.0 + *self.random.pick(&[1, 2, 8, 64]));
            let history = Digest(self.random.bytes32());
            let certificate = self.forged_certificate(
                configuration,
                StatementKind::Prefix,
                View(0),
                slot,
                history,
            );
            change.prefix = PrefixCertificate { slot, history, configuration, certificate };
            change.locks.retain(|lock| lock.slot > slot);
        } else {
            let last = change.locks.last().map_or(change.prefix.slot, |lock| lock.slot);
            let first =
                change.locks.first().map(|lock| lock.slot).filter(|_| self.random.percent(50));
            let slot = first.unwrap_or(last.next());
            let view = View(change.view.0.saturating_sub(1));
            let digest = self.some_digest();
            let writes =
                self.forged_certificate(configuration, StatementKind::Write, view, slot, digest);
            change.locks.retain(|lock| lock.slot != slot);
            change.locks.push(Lock { slot, view, digest, writes });
            change.locks.sort_by_key(|lock| lock.slot);
        }
        speech.instead(&self.insider.resign(Message::ViewChange(change)));
    }

    /// A genuine quorum of Writes, as if it were of another slot or view.
    fn transplant(&mut self, change: &mut ViewChange) {
        let quorum = self.insider.faults.agreement_quorum();
        let known: Vec<(Slot, View, Digest, Certificate)> = self
            .memory
            .writes
            .iter()
            .filter(|(_, signatures)| signatures.len() >= quorum)
            .map(|((view, slot, digest), signatures)| {
                let some = signatures.iter().take(quorum).map(|(id, one)| (*id, *one)).collect();
                (*slot, *view, *digest, Certificate::new(some))
            })
            .collect();
        if known.is_empty() || change.view == View(0) {
            return;
        }
        let (slot, view, digest, writes) = self.random.pick(&known).clone();
        let last = change.locks.last().map_or(change.prefix.slot, |lock| lock.slot);
        let slot = match self.random.below(3) {
            0 => slot,
            1 => last,
            _ => last.next(),
        };
        let later = self.random.percent(50);
        let view = if later { View(change.view.0 - 1) } else { view };
        if slot > change.prefix.slot && view < change.view {
            change.locks.retain(|lock| lock.slot != slot);
            change.locks.push(Lock { slot, view, digest, writes });
            change.locks.sort_by_key(|lock| lock.slot);
        }
    }

    /// A lock under which the liar signed as often as a quorum has members. No certificate holds
    /// such a thing, so that it has to be made of bytes.
    fn repeat_own_signature(&mut self, change: &ViewChange) -> Option<Bytes> {
        let last = change.locks.last().map_or(change.prefix.slot, |lock| lock.slot);
        let (slot, view) = (last.next(), View(change.view.0.checked_sub(1)?));
        let (me, digest) = (self.insider.me, self.some_digest());
        let signature =
            self.insider.sign(me, change.configuration, StatementKind::Write, view, slot, digest);
        let quorum = self.insider.faults.agreement_quorum() as u8;
        let several = (0..quorum).map(|id| (ReplicaId(id), signature)).collect();
        let writes = Certificate::new(several);
        let shape = writes.to_bytes();
        let mut change = change.clone();
        change.locks.push(Lock { slot, view, digest, writes });
        let (configuration, view) = (change.configuration, change.view);
        let mut bytes = Message::ViewChange(Box::new(change)).to_bytes().to_vec();
        let at = bytes.windows(shape.len()).rposition(|part| part == shape)?;
        let entry = (shape.len() - 4) / usize::from(quorum);
        for index in 0..usize::from(quorum) {
            bytes[at + 4 + index * entry] = me.0;
        }
        let end = bytes.len() - SIGNATURE_BYTES;
        let body = Digest::of(&bytes[1..end]);
        let signature =
            self.insider.sign(me, configuration, StatementKind::ViewChange, view, Slot(0), body);
        bytes[end..].copy_from_slice(&signature.0);
        Some(bytes.into())
    }

    /// Tells the two halves of different view changes, all of them valid: one set with its own
    /// locks and one without.
    pub(crate) fn start_twice(&mut self, mut speech: Speech<'_>) {
        let Some(replica) = speech.replica() else { return speech.plainly() };
        match speech.message {
            Message::NewView(new_view) if self.other_half(new_view.view, Slot(0), replica) => {
                let second = self.second_start(new_view);
                speech.instead(&self.insider.resign(Message::NewView(Box::new(second))));
            }
            Message::ViewChange(_) if self.random.percent(50) => self.forget_locks(speech),
            _ => speech.plainly(),
        }
    }

    fn second_start(&self, first: &NewView) -> NewView {
        let quorum = self.insider.faults.agreement_quorum();
        let me = self.insider.me;
        // As many others as there are, the ones left out of the first start before the rest.
        let mut others: Vec<ViewChange> = self
            .memory
            .changes
            .range((first.view, ReplicaId(0))..=(first.view, ReplicaId(u8::MAX)))
            .map(|(_, change)| change.clone())
            .filter(|change| change.sender != me && change.configuration == first.configuration)
            .collect();
        others.sort_by_key(|change| first.changes.contains(change));
        others.truncate(quorum - 1);
        let own = first.changes.iter().find(|change| change.sender == me);
        if let Some(own) = own {
            let mut own = own.clone();
            own.locks.clear();
            if let Message::ViewChange(own) =
                self.insider.resign(Message::ViewChange(Box::new(own)))
            {
                others.push(*own);
            }
        }
        others.sort_by_key(|change| change.sender);
        NewView { changes: others, ..first.clone() }
    }

    /// Wants a later view, in every way there is; often with all that it can prove of times long past,
    /// so that others have a lot to verify. At times it starts one, which nobody else asked for.
    pub(crate) fn rebel(&mut self, out: &mut Vec<Said>) {
        if !self.random.percent(20) {
            return;
        }
        let ahead = *self.random.pick(&[1, 1, 1, 2, 50, 1_000_000]);
        let view = View(self.memory.view.0 + ahead);
        let change = self.change_for(view);
        let delivered = Slot(0);
        let mut messages = vec![
            Message::Suspect { view },
            Message::ViewChange(Box::new(change)),
            Message::Status { view, changing: true, delivered },
        ];
        if self.random.percent(30) {
            messages.push(self.start_alone(view));
        }
        for message in messages {
            let bytes = message.to_bytes();
            for other in self.insider.others() {
                out.push(Said { after_ms: 0, peer: Peer::Replica(other), bytes: bytes.clone() });
            }
        }
    }

    /// A view change in which everything holds.
    fn change_for(&mut self, view: View) -> ViewChange {
        let mut change = ViewChange {
            view,
            sender: self.insider.me,
            configuration: self.insider.configurations.last().map_or(0, |last| last.id),
            prefix: PrefixCertificate::genesis(),
            locks: Vec::new(),
            signature: Signature::NONE,
        };
        if self.random.percent(50) {
            let prefixes: Vec<&PrefixCertificate> = self.memory.prefixes.values().collect();
            if !prefixes.is_empty() {
                change.prefix = (*self.random.pick(&prefixes)).clone();
            }
            change.locks = self.old_locks(change.prefix.slot, view);
        }
        match self.insider.resign(Message::ViewChange(Box::new(change.clone()))) {
            Message::ViewChange(change) => *change,
            _ => change,
        }
    }

    /// As many genuine locks as a view change may hold, whether it ever had them or not.
    fn old_locks(&self, above: Slot, before: View) -> Vec<Lock> {
        let quorum = self.insider.faults.agreement_quorum();
        let mut locks: BTreeMap<Slot, Lock> = BTreeMap::new();
        for ((view, slot, digest), signatures) in &self.memory.writes {
            let (view, slot, digest) = (*view, *slot, *digest);
            let fits = slot > above && slot <= above.plus(limits::WINDOW) && view < before;
            if fits && signatures.len() >= quorum {
                let some = signatures.iter().take(quorum).map(|(id, one)| (*id, *one)).collect();
                locks.insert(slot, Lock { slot, view, digest, writes: Certificate::new(some) });
            }
        }
        locks.into_values().collect()
    }

    /// Starts the next view from `view` on that it leads, from its own view change, and from others'
    /// that are of another configuration, or that they did not sign.
    fn start_alone(&mut self, view: View) -> Message {
        let faults = self.insider.faults;
        let (n, me) = (faults.n(), self.insider.me);
        let mut view = view;
        while view.leader(n) != me {
            view = view.next();
        }
        let mut changes = vec![self.change_for(view)];
        let configuration = changes[0].configuration;
        let others: Vec<ReplicaId> = self.insider.others().collect();
        for sender in others.into_iter().take(faults.agreement_quorum() - 1) {
            let configuration = if self.random.percent(50) { 999 } else { configuration };
            let (prefix, locks) = (PrefixCertificate::genesis(), Vec::new());
            let signature = self.noise();
            changes.push(ViewChange { view, sender, configuration, prefix, locks, signature });
        }
        changes.sort_by_key(|change| change.sender);
        let signature = Signature::NONE;
        let new_view = NewView { view, sender: me, configuration, changes, signature };
        self.insider.resign(Message::NewView(Box::new(new_view)))
    }
}
