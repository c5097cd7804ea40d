//! Lies about views: what was promised, and how a view starts.

use crate::liar::{Liar, Speech};
use perdura_protocol::message::Message;
use perdura_protocol::statement::Kind;
use perdura_protocol::viewchange::{Lock, NewView, PrefixCertificate, ViewChange};
use perdura_protocol::{Certificate, Digest, Encode, ReplicaId, Signature, Slot, View};
use perdura_replica::node::{Peer, Said};

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
                let Some(mut old) = earlier.next() else { return speech.plainly() };
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
        kind: Kind,
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
        for other in self.insider.others() {
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
        if self.random.percent(30) {
            let slot = Slot(change.prefix.slot.0 + 64);
            let history = Digest(self.random.bytes32());
            let certificate =
                self.forged_certificate(configuration, Kind::Prefix, View(0), slot, history);
            change.prefix = PrefixCertificate { slot, history, configuration, certificate };
            change.locks.retain(|lock| lock.slot > slot);
        } else {
            let last = change.locks.last().map_or(change.prefix.slot, |lock| lock.slot);
            let first =
                change.locks.first().map(|lock| lock.slot).filter(|_| self.random.percent(50));
            let slot = first.unwrap_or(last.next());
            let view = View(change.view.0.saturating_sub(1));
            let digest = self.some_digest();
            let writes = self.forged_certificate(configuration, Kind::Write, view, slot, digest);
            change.locks.retain(|lock| lock.slot != slot);
            change.locks.push(Lock { slot, view, digest, writes });
            change.locks.sort_by_key(|lock| lock.slot);
        }
        speech.instead(&self.insider.resign(Message::ViewChange(change)));
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

    /// Wants a later view, in every way there is.
    pub(crate) fn rebel(&mut self, out: &mut Vec<Said>) {
        if !self.random.percent(20) {
            return;
        }
        let ahead = *self.random.pick(&[1, 1, 1, 2, 50, 1_000_000]);
        let view = View(self.memory.view.0 + ahead);
        let change = ViewChange {
            view,
            sender: self.insider.me,
            configuration: self.insider.configurations.last().map_or(0, |last| last.id),
            prefix: PrefixCertificate::genesis(),
            locks: Vec::new(),
            signature: Signature::NONE,
        };
        let change = self.insider.resign(Message::ViewChange(Box::new(change)));
        let delivered = Slot(0);
        let messages = [
            Message::Suspect { view },
            change,
            Message::Status { view, changing: true, delivered },
        ];
        for message in messages {
            let bytes = message.to_bytes();
            for other in self.insider.others() {
                out.push(Said { after_ms: 0, peer: Peer::Replica(other), bytes: bytes.clone() });
            }
        }
    }
}
