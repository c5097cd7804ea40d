//! What a liar knows: its own key, those of its accomplices, and the configurations.

use crate::statements::Statements;
use perdura_protocol::boots::Announcement;
use perdura_protocol::message::Message;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::{
    ClusterId, Configuration, Context, Digest, Faults, ReplicaId, SecretKey, Signature, Slot, View,
};

/// What a liar knows and correct replicas trust it with.
#[derive(Clone, Debug)]
pub struct Insider {
    /// Which replica it is.
    pub me: ReplicaId,
    /// The group's bounds.
    pub faults: Faults,
    /// The cluster.
    pub cluster: ClusterId,
    /// The keys of all liars, its own among them.
    pub keys: Vec<(ReplicaId, SecretKey)>,
    /// Known configurations, ascending.
    pub configurations: Vec<Configuration>,
    /// Shared by accomplices, so that they tell the same replicas the same lies.
    pub coin: u64,
    /// What its service states in replies, if it does.
    pub statements: Option<Statements>,
}

impl Insider {
    /// Whether a replica lies too.
    #[must_use]
    pub fn accomplice(&self, replica: ReplicaId) -> bool {
        self.keys.iter().any(|(id, _)| *id == replica)
    }

    /// All others.
    pub fn others(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        let me = self.me;
        (0..self.faults.n() as u8).map(ReplicaId).filter(move |id| *id != me)
    }

    /// Links are to these members from now on.
    pub fn learn(&mut self, configuration: &Configuration) {
        if self.configurations.iter().all(|known| known.id < configuration.id) {
            self.configurations.push(configuration.clone());
        }
    }

    fn configuration_at(&self, slot: Slot) -> u64 {
        let governs = |known: &&Configuration| known.from_slot <= slot;
        self.configurations.iter().rev().find(governs).map_or(0, |known| known.id)
    }

    /// Signs with the key of `who`, one of the liars.
    #[must_use]
    pub fn sign(
        &self,
        who: ReplicaId,
        configuration: u64,
        kind: StatementKind,
        view: View,
        slot: Slot,
        digest: Digest,
    ) -> Signature {
        let context = Context { cluster: self.cluster, configuration };
        let key = self.keys.iter().find(|(id, _)| *id == who);
        key.map_or(Signature::NONE, |(_, key)| {
            key.sign(&context.statement(kind, view, slot, digest))
        })
    }

    /// The message with this replica's own signature made anew, so that it verifies whatever was
    /// changed; messages without one as they are.
    #[must_use]
    pub fn resign(&self, message: Message) -> Message {
        self.resign_in(message, |configuration| configuration)
    }

    /// The same, in another configuration than the right one.
    #[must_use]
    pub fn resign_in(&self, mut message: Message, other: impl Fn(u64) -> u64) -> Message {
        let sign = |configuration: u64, kind, view, slot, digest| {
            self.sign(self.me, other(configuration), kind, view, slot, digest)
        };
        match &mut message {
            Message::Write { view, slot, digest, signature } => {
                let configuration = self.configuration_at(*slot);
                *signature = sign(configuration, StatementKind::Write, *view, *slot, *digest);
            }
            Message::Accept { view, slot, digest, signature } => {
                let configuration = self.configuration_at(*slot);
                *signature = sign(configuration, StatementKind::Accept, *view, *slot, *digest);
            }
            Message::Prefix { slot, history, signature } => {
                let configuration = self.configuration_at(*slot);
                *signature = sign(configuration, StatementKind::Prefix, View(0), *slot, *history);
            }
            Message::Checkpoint { slot, digest, signature } => {
                let configuration = self.configuration_at(*slot);
                *signature =
                    sign(configuration, StatementKind::Checkpoint, View(0), *slot, *digest);
            }
            Message::Announce(Announcement { boot, configuration, signature }) => {
                *signature =
                    sign(*configuration, StatementKind::Boot, View(0), Slot(0), boot.digest());
            }
            Message::ViewChange(change) => {
                let body = change.body_digest();
                let configuration = change.configuration;
                change.signature =
                    sign(configuration, StatementKind::ViewChange, change.view, Slot(0), body);
            }
            Message::NewView(new_view) => {
                let body = new_view.body_digest();
                let configuration = new_view.configuration;
                new_view.signature =
                    sign(configuration, StatementKind::NewView, new_view.view, Slot(0), body);
            }
            _ => {}
        }
        message
    }
}
