//! Boots: whether the data directory that a replica started on is the newest one that it ever had (DESIGN.md section 12).
//!
//! Each start has a number and a random part, durable before the first word. A replica announces its boot, signed, on each link.
//! The others keep the newest announcement of each and the newest Accept that they heard of it, both on disk, and give them
//! back. It says nothing that restricts later votes before n - u members, itself included, have compared. It stays out on its *own* signature only:
//! over a higher boot, over another boot of the same number, or over a vote that its log lacks. So a liar sends nobody away, and a directory
//! that was taken back to an earlier state shows, unless nobody who answers has heard of what it lacks. (With r = 0 votes are not signed, and go
//! to the leader only: there its word is believed, and whoever voted for others' proposals is found out.)

use super::{Node, Now, Peer};
use perdura_execution::Service;
use perdura_protocol::boots::{Announcement, HeldVote, Recalled};
use perdura_protocol::message::Message;
use perdura_protocol::statement::Kind;
use perdura_protocol::{
    BootId, Context, Faults, PublicKey, Record, ReplicaId, Signature, Slot, View,
};
use std::collections::{BTreeSet, VecDeque};

/// Those who have not answered are told again after this time.
const AGAIN_MS: u64 = 500;

/// What is held of another member.
#[derive(Clone, Default)]
struct Held {
    // With the key that signed it: a new incarnation has another past.
    announcement: Option<(PublicKey, Announcement)>,
    vote: Option<HeldVote>,
    // The vote is in no record yet.
    unwritten: bool,
}

impl Held {
    /// What was announced; of one key the highest number stays, and another key has other votes.
    fn take(&mut self, key: PublicKey, announcement: Announcement) {
        let known = self.announcement.as_ref();
        let same = known.is_some_and(|(known, _)| *known == key);
        if same && known.is_some_and(|(_, known)| known.boot.number > announcement.boot.number) {
            return;
        }
        if !same {
            (self.vote, self.unwritten) = (None, false);
        }
        self.announcement = Some((key, announcement));
    }

    fn hear(&mut self, vote: HeldVote) {
        let place = |vote: &HeldVote| (vote.view, vote.slot);
        if self.vote.as_ref().is_none_or(|old| place(old) < place(&vote)) {
            self.vote = Some(vote);
            self.unwritten = true;
        }
    }
}

/// What a replica knows of boots.
pub(super) struct Boots {
    // None: it has no directory that could be an old one.
    own: Option<Announcement>,
    held: Vec<Held>,
    // Nobody signs votes, and nobody lies (r = 0).
    unsigned: bool,
    compared: BTreeSet<ReplicaId>,
    told_ms: Option<u64>,
    // Who is to be answered once everything up to a mark is durable.
    answers: VecDeque<(u64, ReplicaId)>,
}

impl Boots {
    /// With what the log says of others.
    pub fn new(faults: Faults, own: Option<Announcement>, records: &[Record]) -> Boots {
        let mut held = vec![Held::default(); faults.n()];
        for record in records {
            match record {
                Record::Boot { replica, key, announcement } => {
                    if let Some(of) = held.get_mut(replica.index()) {
                        of.take(*key, announcement.clone());
                    }
                }
                Record::Heard { replica, key, vote } => {
                    if let Some(of) = held.get_mut(replica.index())
                        && of.announcement.as_ref().is_some_and(|(signer, _)| signer == key)
                    {
                        of.hear(vote.clone());
                    }
                }
                _ => {}
            }
        }
        held.iter_mut().for_each(|of| of.unwritten = false);
        let (unsigned, answers) = (faults.r() == 0, VecDeque::new());
        Boots { own, held, unsigned, compared: BTreeSet::new(), told_ms: None, answers }
    }

    /// Whether something that restricts votes may be said.
    fn is_done(&self, quorum: usize) -> bool {
        self.own.is_none() || 1 + self.compared.len() >= quorum
    }

    /// An Accept of this member came; the newest is kept.
    pub fn note_vote(&mut self, from: ReplicaId, vote: HeldVote) {
        let Some(held) = self.held.get_mut(from.index()) else { return };
        if self.unsigned || vote.signature != Signature::NONE {
            held.hear(vote);
        }
    }

    /// Whether votes were heard that are in no record yet.
    pub fn has_unwritten(&self) -> bool {
        self.held.iter().any(|held| held.unwritten && held.announcement.is_some())
    }

    /// The newest votes that are in no record yet. From here on they are.
    pub fn heard(&mut self) -> impl Iterator<Item = Record> {
        (0..).map(ReplicaId).zip(&mut self.held).filter_map(|(replica, held)| {
            let (key, vote) = (held.announcement.as_ref()?.0, held.vote.clone()?);
            let unwritten = std::mem::take(&mut held.unwritten);
            unwritten.then_some(Record::Heard { replica, key, vote })
        })
    }
}

impl<S: Service> Node<S> {
    /// A boot, signed.
    pub(super) fn announce(
        key: &perdura_protocol::SecretKey,
        context: Context,
        boot: BootId,
    ) -> Announcement {
        let statement = context.statement(Kind::Boot, View(0), Slot(0), boot.digest());
        Announcement { boot, configuration: context.configuration, signature: key.sign(&statement) }
    }

    fn boot_quorum(&self) -> usize {
        self.parameters.faults.responsive()
    }

    /// Tells a member which boot this is.
    pub(super) fn tell_boot(&mut self, to: ReplicaId) {
        if let Some(own) = self.boots.own.clone() {
            self.send(&[Peer::Replica(to)], &Message::Announce(own));
        }
    }

    pub(super) fn tick_boots(&mut self, now: Now) {
        let quorum = self.boot_quorum();
        // Each link began with it.
        let told_ms = *self.boots.told_ms.get_or_insert(now.monotonic_ms);
        if self.boots.is_done(quorum) || now.monotonic_ms < told_ms + AGAIN_MS {
            return;
        }
        self.boots.told_ms = Some(now.monotonic_ms);
        let (me, n) = (self.me, self.parameters.faults.n() as u8);
        for id in (0..n).map(ReplicaId).filter(|id| *id != me) {
            if !self.boots.compared.contains(&id) {
                self.tell_boot(id);
            }
        }
    }

    fn is_announced_by(&self, key: PublicKey, announcement: &Announcement) -> bool {
        let (cluster, configuration) = (self.parameters.cluster, announcement.configuration);
        let context = Context { cluster, configuration };
        let digest = announcement.boot.digest();
        let statement = context.statement(Kind::Boot, View(0), Slot(0), digest);
        self.scheme.verify(key, &statement, announcement.signature)
    }

    /// A member says which boot it is. It is answered when that is on disk here.
    pub(super) fn on_announce(&mut self, now: Now, from: ReplicaId, announcement: Announcement) {
        let members = self.linked(self.agreement.configurations().latest());
        let Some(key) = members.key(from) else { return };
        let held = self.boots.held.get(from.index()).and_then(|held| held.announcement.as_ref());
        let known = held.filter(|(of, _)| *of == key).map(|(_, known)| known.boot);
        if known == Some(announcement.boot) {
            // Unless that is on its way to the disk.
            if self.boots.answers.iter().all(|(_, waits)| *waits != from) {
                self.answer_boot(from);
            }
            return;
        }
        self.counters.statements_verified += 1;
        if !self.is_announced_by(key, &announcement) {
            self.misbehaved(Peer::Replica(from), "announces a boot that it did not sign".into());
            return;
        }
        let older = known.is_some_and(|known| known.number >= announcement.boot.number);
        if !older {
            self.boots.held[from.index()].take(key, announcement.clone());
            self.note(now, Record::Boot { replica: from, key, announcement });
        }
        let mark = self.log_all();
        self.boots.answers.push_back((mark, from));
        self.answer_boots();
    }

    /// Votes that were heard go to the log with whatever does next, or soon.
    pub(super) fn note_heard(&mut self, now: Now) {
        if !self.boots.has_unwritten() {
            return;
        }
        self.noted_ms.get_or_insert(now.monotonic_ms);
        if self.is_due(now) && !self.backlog.is_busy() {
            for record in self.boots.heard() {
                self.backlog.add(&record);
                self.records.push(record);
            }
        }
    }

    /// Answers those whose announcement is durable.
    pub(super) fn answer_boots(&mut self) {
        while let Some((_, to)) = self.boots.answers.pop_front_if(|(mark, _)| *mark <= self.durable)
        {
            self.answer_boot(to);
        }
    }

    fn answer_boot(&mut self, to: ReplicaId) {
        let held = &self.boots.held[to.index()];
        let Some((_, announcement)) = held.announcement.clone() else { return };
        let vote = held.vote.clone();
        let recalled = Box::new(Recalled { announcement, vote });
        self.send(&[Peer::Replica(to)], &Message::Recall(recalled));
    }

    /// What a member holds of this replica.
    pub(super) fn on_recall(&mut self, from: ReplicaId, recalled: Recalled) {
        let Recalled { announcement, vote } = recalled;
        let Some(own) = self.boots.own.as_ref().map(|own| own.boot) else { return };
        let boot = announcement.boot;
        if boot != own {
            let newer = boot.number >= own.number;
            if newer && self.is_announced_by(self.key.public(), &announcement) {
                self.is_old(&format!(
                    "it was boot {} here once, and this is boot {}",
                    boot.number, own.number
                ));
            }
            return;
        }
        if let Some(HeldVote { view, slot, digest, signature }) = vote {
            let context = self.agreement.configurations().context_at(slot);
            let statement = context.statement(Kind::Accept, view, slot, digest);
            let own = |key| self.scheme.verify(key, &statement, signature);
            if self.agreement.has_forgotten(view, slot, digest)
                && (self.boots.unsigned || own(self.key.public()))
            {
                self.is_old(&format!(
                    "it voted on slot {slot} in view {view}, and its log does not have that"
                ));
                return;
            }
        }
        self.boots.compared.insert(from);
        if self.boots.is_done(self.boot_quorum()) {
            self.agreement.compared();
        }
    }

    fn is_old(&mut self, what: &str) {
        self.halt(format!(
            "the data directory of this replica is older than what it said: {what} (replica {} has its signature). It was restored from a \
             copy, or two processes had copies of it. It must not vote again: if the newer directory is still there, start on that; \
             else replace the replica with `perdura replica reinit`",
            self.me
        ));
    }
}
