//! Boots: whether the data directory that a replica started on is the newest one that it ever had (docs/design.md, Boots).
//!
//! Each start has a number and a random part, durable before the first word. A replica first asks the others what they hold of it
//! (`Compare`): the newest boot that it announced, and the newest Accept that they heard of it. When n - u members, itself included,
//! have compared, it announces its boot, signed, once that is in its own log; they keep that on disk, and so the votes that they hear. When n - u
//! have it there, it may say what restricts later votes. It stays out on its *own* signature only: over a boot that is not
//! one of its directory's, or over a vote that its log lacks. So a liar sends nobody away. What stays out before it took part has
//! announced nothing, and the newer directory, if it is still there, goes on.
//!
//! Of any two sets of n - u members r others than this replica are in both. So a directory that was taken back over a start is found out
//! unless all of those lie, or (r = 0, or members were replaced since, or lost their logs) none of them is left. Within one start
//! it is found out as far as somebody who answers has heard a later Accept: what it said otherwise, view changes above all, nobody holds. (With r = 0
//! votes are not signed, and go to the leader only: its word is believed.) `docs/operations/backups.md` tells operators so.

use super::journal::NOTE_MS;
use super::{Node, Now, Output, Peer};
use perdura_protocol::boots::{Announcement, HeldVote, Recalled};
use perdura_protocol::message::Message;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::{
    BootId, Context, Digest, Faults, PublicKey, Record, ReplicaId, Signature, Slot, View, seeded,
};
use std::collections::{BTreeSet, VecDeque};

/// Those who have not answered are asked, or told, again after this time.
const AGAIN_MS: u64 = 500;

/// So many new boots of one replica are written at once, and one more each time this has passed: it is a signature to verify and a record
/// in the log, of which a liar could have any number.
const ANNOUNCED_AT_ONCE: u64 = 16;
const ANNOUNCED_EACH_MS: u64 = 10_000;

/// Votes that were heard are written by themselves after this time only: nothing would ever cut the log of a group that orders nothing.
const HEARD_ALONE_MS: u64 = 10_000;

/// After this time without enough answers somebody should know.
const NOTICED_MS: u64 = 5_000;

/// What is held of another member.
#[derive(Clone, Default)]
struct MemberBoot {
    // Who signed it: a new incarnation has another past.
    key: Option<PublicKey>,
    announcement: Option<Announcement>,
    vote: Option<HeldVote>,
    // The vote is in no record yet.
    unwritten: bool,
    // When all that it announced would have come, had it come at the pace that is allowed.
    paid_ms: u64,
}

impl MemberBoot {
    fn is_of(&mut self, key: PublicKey) {
        if self.key != Some(key) {
            *self = MemberBoot { key: Some(key), paid_ms: self.paid_ms, ..MemberBoot::default() };
        }
    }

    /// What was announced; the highest number stays.
    fn take(&mut self, key: PublicKey, announcement: Announcement) {
        self.is_of(key);
        let older = |known: &Announcement| {
            known.boot.number > announcement.boot.number && !seeded!(BootOverwritten)
        };
        if !self.announcement.as_ref().is_some_and(older) {
            self.announcement = Some(announcement);
        }
    }

    fn hear(&mut self, key: PublicKey, vote: HeldVote) {
        self.is_of(key);
        let place = |vote: &HeldVote| (vote.view, vote.slot);
        let newer = |old| place(old) < place(&vote) && !seeded!(FirstVoteHeld);
        if self.vote.as_ref().is_none_or(newer) {
            self.vote = Some(vote);
            self.unwritten = true;
        }
    }

    /// Whether one more announcement is within its share.
    fn pays(&mut self, now_ms: u64) -> bool {
        let paid_ms = self.paid_ms.max(now_ms);
        let within = paid_ms < now_ms + ANNOUNCED_AT_ONCE * ANNOUNCED_EACH_MS;
        if within {
            self.paid_ms = paid_ms + ANNOUNCED_EACH_MS;
        }
        within
    }
}

/// The boots of a data directory.
pub(super) struct OwnBoots {
    /// That in which it is, signed.
    pub announcement: Announcement,
    /// Those before it, the newest first; all that there were, or the last few.
    pub before: Vec<BootId>,
}

impl OwnBoots {
    fn id(&self) -> BootId {
        self.announcement.boot
    }

    /// Whether this was never a boot of the directory.
    fn lacks(&self, boot: BootId) -> bool {
        if seeded!(SameNumberPasses) {
            return boot.number > self.id().number;
        }
        let mut own = std::iter::once(self.id()).chain(self.before.iter().copied());
        let oldest = self.before.last().map_or(self.id().number, |boot| boot.number);
        boot.number >= oldest && own.all(|own| own != boot)
    }
}

/// What a member is told when what it announced is durable.
struct Answer {
    asked: BootId,
    replaced: Option<Announcement>,
}

/// What a replica knows of boots.
pub(super) struct Boots {
    // None: it has no directory that could be an old one.
    own: Option<OwnBoots>,
    held: Vec<MemberBoot>,
    // Nobody signs votes, and nobody lies (r = 0).
    unsigned: bool,
    compared: BTreeSet<ReplicaId>,
    // With which mark of the log its announcement is durable here.
    logged: Option<u64>,
    announced: bool,
    // Who has the announcement on disk.
    kept: BTreeSet<ReplicaId>,
    // How many answers of each are still to come over its link.
    asked: Vec<u32>,
    begun_ms: Option<u64>,
    asked_ms: u64,
    noticed: bool,
    // When the oldest of the votes was heard that are in no record.
    heard_ms: Option<u64>,
    // Who is to be answered, each once, when everything up to a mark is durable.
    answers: VecDeque<(u64, ReplicaId, Answer)>,
}

impl Boots {
    /// With what the log says of others.
    pub fn new(faults: Faults, own: Option<OwnBoots>, records: &[Record]) -> Boots {
        let mut held = vec![MemberBoot::default(); faults.n()];
        for record in records {
            match record {
                Record::Boot { replica, key, announcement } => {
                    if let Some(of) = held.get_mut(replica.index()) {
                        of.take(*key, announcement.clone());
                    }
                }
                Record::Heard { replica, key, vote } => {
                    if let Some(of) = held.get_mut(replica.index()) {
                        of.hear(*key, vote.clone());
                    }
                }
                _ => {}
            }
        }
        held.iter_mut().for_each(|of| of.unwritten = false);
        Boots {
            own,
            held,
            unsigned: faults.r() == 0,
            compared: BTreeSet::new(),
            logged: None,
            announced: false,
            kept: BTreeSet::new(),
            asked: vec![0; faults.n()],
            begun_ms: None,
            asked_ms: 0,
            noticed: false,
            heard_ms: None,
            answers: VecDeque::new(),
        }
    }

    /// Whether enough hold nothing that its directory lacks.
    fn has_compared(&self, quorum: usize) -> bool {
        1 + self.compared.len() >= quorum
    }

    /// Whether something that restricts votes may be said.
    fn is_done(&self, quorum: usize) -> bool {
        let kept = 1 + self.kept.len() >= quorum || seeded!(BootNotAwaited);
        self.own.is_none() || (self.has_compared(quorum) && kept)
    }

    /// Of whom it waits for an answer before it takes part; nobody if it does not wait.
    fn awaited(&self, me: ReplicaId, quorum: usize) -> Vec<ReplicaId> {
        if self.is_done(quorum) {
            return Vec::new();
        }
        let answered = if self.has_compared(quorum) { &self.kept } else { &self.compared };
        let all = (0..self.held.len() as u8).map(ReplicaId);
        all.filter(|id| *id != me && !answered.contains(id)).collect()
    }

    fn note_vote(&mut self, from: ReplicaId, key: PublicKey, vote: HeldVote) {
        let Some(held) = self.held.get_mut(from.index()) else { return };
        if self.unsigned || vote.signature != Signature::NONE {
            held.hear(key, vote);
        }
    }

    /// Whether votes were heard that are in no record yet.
    fn has_unwritten(&self) -> bool {
        self.held.iter().any(|held| held.unwritten)
    }

    /// The newest votes that are in no record yet. From here on they are.
    fn heard(&mut self) -> impl Iterator<Item = Record> {
        (0..).map(ReplicaId).zip(&mut self.held).filter_map(|(replica, held)| {
            let (key, vote) = (held.key?, held.vote.clone()?);
            let unwritten = std::mem::take(&mut held.unwritten);
            unwritten.then_some(Record::Heard { replica, key, vote })
        })
    }
}

impl Node {
    /// A boot, signed.
    pub(super) fn announce(
        key: &perdura_protocol::SecretKey,
        context: Context,
        boot: BootId,
    ) -> Announcement {
        let statement = context.statement(StatementKind::Boot, View(0), Slot(0), boot.digest());
        Announcement { boot, configuration: context.configuration, signature: key.sign(&statement) }
    }

    fn boot_quorum(&self) -> usize {
        self.parameters.faults.responsive() - usize::from(seeded!(ComparedByOneLess))
    }

    /// Who has to answer before this replica takes part, itself not counted.
    pub(super) fn awaits_of_boot(&self) -> Vec<ReplicaId> {
        self.boots.awaited(self.me, self.boot_quorum())
    }

    /// A link: nothing comes any more of what was asked over the one before.
    pub(super) fn on_boots_link(&mut self, id: ReplicaId) {
        if let Some(asked) = self.boots.asked.get_mut(id.index()) {
            *asked = 0;
        }
        self.ask_or_tell(id);
    }

    /// Asks a member what it holds, or tells it what it is to keep.
    fn ask_or_tell(&mut self, id: ReplicaId) {
        let Some(own) = &self.boots.own else { return };
        let message = if self.boots.announced {
            Message::Announce(own.announcement.clone())
        } else {
            Message::Compare(own.id())
        };
        if let Some(asked) = self.boots.asked.get_mut(id.index()) {
            *asked = asked.saturating_add(1);
            self.send(&[Peer::Replica(id)], &message);
        }
    }

    pub(super) fn tick_boots(&mut self, now: Now) {
        // Each link began with it.
        let begun_ms = *self.boots.begun_ms.get_or_insert(now.monotonic_ms);
        if now.monotonic_ms < self.boots.asked_ms.max(begun_ms) + AGAIN_MS {
            return;
        }
        let awaited = self.awaits_of_boot();
        if awaited.is_empty() {
            return;
        }
        self.boots.asked_ms = now.monotonic_ms;
        awaited.iter().for_each(|id| self.ask_or_tell(*id));
        if now.monotonic_ms >= begun_ms + NOTICED_MS
            && !std::mem::replace(&mut self.boots.noticed, true)
        {
            let ids: Vec<String> = awaited.iter().map(ToString::to_string).collect();
            self.outputs.push_back(Output::Notice(format!(
                "it takes part once {} members with itself have compared what they heard of it with its data directory, and keep its start; replicas {} have not",
                self.boot_quorum(),
                ids.join(", ")
            )));
        }
    }

    fn is_announced_by(&self, key: PublicKey, announcement: &Announcement) -> bool {
        let (cluster, configuration) = (self.parameters.cluster, announcement.configuration);
        let context = Context { cluster, configuration };
        let digest = announcement.boot.digest();
        let statement = context.statement(StatementKind::Boot, View(0), Slot(0), digest);
        self.scheme.verify(key, &statement, announcement.signature)
    }

    fn member_key(&self, id: ReplicaId) -> Option<PublicKey> {
        let latest = self.agreement.configurations().latest();
        let members = if self.newest.id > latest.id { &self.newest } else { latest };
        members.key(id)
    }

    /// A member asks what is held of it.
    pub(super) fn on_compare(&mut self, from: ReplicaId, boot: BootId) {
        if !self.is_owed(from) {
            self.answer_boot(from, Answer { asked: boot, replaced: None });
        }
    }

    /// Whether a member is answered when what it announced is on disk: not before, for it would take that for done.
    fn is_owed(&self, to: ReplicaId) -> bool {
        self.boots.answers.iter().any(|(_, waits, _)| *waits == to)
    }

    /// A member says in which boot it takes part. It is answered when that is on disk here.
    pub(super) fn on_announce(&mut self, now: Now, from: ReplicaId, announcement: Announcement) {
        let Some(key) = self.member_key(from) else { return };
        let boot = announcement.boot;
        let held = self.boots.held.get(from.index()).filter(|held| held.key == Some(key));
        let known = held.and_then(|held| Some(held.announcement.as_ref()?.boot));
        if self.is_owed(from) {
            return; // It is on its way to the disk, or says too much.
        }
        let overwritten = |known| known != boot && seeded!(BootOverwritten);
        if known.is_some_and(|known| known.number >= boot.number && !overwritten(known)) {
            self.answer_boot(from, Answer { asked: boot, replaced: None });
            return;
        }
        if !self.boots.held[from.index()].pays(now.monotonic_ms) {
            return; // It says so again.
        }
        self.counters.statements_verified += 1;
        if !self.is_announced_by(key, &announcement) {
            // The last words of an incarnation that has just been replaced are no lie of the next one.
            if known.is_some() {
                let what = "announces a boot that it did not sign".into();
                self.misbehaved(Peer::Replica(from), what);
            }
            return;
        }
        let held = &mut self.boots.held[from.index()];
        let replaced = held.announcement.clone().filter(|_| known.is_some());
        held.take(key, announcement.clone());
        if !seeded!(BootNotLogged) {
            self.journal.note(now.monotonic_ms, Record::Boot { replica: from, key, announcement });
        }
        let mark = self.journal.log_all();
        self.boots.answers.push_back((mark, from, Answer { asked: boot, replaced }));
        self.answer_boots();
    }

    /// Whether a vote in this view on this slot may still count for something here: the newest of each member is kept.
    #[must_use]
    pub fn counts_vote(&self, view: View, slot: Slot) -> bool {
        self.agreement.is_open(view, slot)
    }

    /// An Accept of this member came: the newest is kept, of what may still be decided.
    pub(super) fn hear_vote(
        &mut self,
        from: ReplicaId,
        (view, slot): (View, Slot),
        digest: Digest,
        signature: Signature,
    ) {
        if let Some(key) = self.member_key(from)
            && self.counts_vote(view, slot)
        {
            let configuration = self.agreement.configurations().context_at(slot).configuration;
            let vote = HeldVote { view, slot, digest, configuration, signature };
            self.boots.note_vote(from, key, vote);
        }
    }

    /// The newest of the votes that were heard go to the log after a while, with what does anyway: there are more of them than slots, and each
    /// counts only until the next one is heard.
    pub(super) fn note_heard(&mut self, now: Now) {
        if !self.boots.has_unwritten() {
            return;
        }
        let heard_ms = *self.boots.heard_ms.get_or_insert(now.monotonic_ms);
        let waits_ms = if self.journal.is_forced() { NOTE_MS } else { HEARD_ALONE_MS };
        if now.monotonic_ms >= heard_ms + waits_ms {
            self.boots.heard_ms = None;
            for record in self.boots.heard().collect::<Vec<_>>() {
                self.journal.note(now.monotonic_ms, record);
            }
        }
    }

    /// Answers those whose announcement is durable, and announces the own one when it is.
    pub(super) fn answer_boots(&mut self) {
        while let Some((_, to, answer)) =
            self.boots.answers.pop_front_if(|(mark, _, _)| self.journal.has(*mark))
        {
            self.answer_boot(to, answer);
        }
        if self.boots.logged.is_some_and(|mark| self.journal.has(mark)) && !self.boots.announced {
            self.boots.announced = true;
            let (me, n) = (self.me, self.parameters.faults.n() as u8);
            for id in (0..n).map(ReplicaId).filter(|id| *id != me) {
                self.ask_or_tell(id);
            }
        }
    }

    /// Its directory holds nothing less than what others do: its boot goes to the log, and then to them.
    fn log_own_boot(&mut self, now: Now) {
        let Some(own) = &self.boots.own else { return };
        let (announcement, key) = (own.announcement.clone(), self.key.public());
        self.journal.note(now.monotonic_ms, Record::Boot { replica: self.me, key, announcement });
        self.boots.logged = Some(self.journal.log_all());
        self.boots.asked_ms = now.monotonic_ms;
        self.answer_boots();
    }

    fn answer_boot(&mut self, to: ReplicaId, Answer { asked, replaced }: Answer) {
        let (key, held) = (self.member_key(to), self.boots.held.get(to.index()));
        let held = held.filter(|held| held.key == key);
        let announcement = held.and_then(|held| held.announcement.clone());
        let vote = held.and_then(|held| held.vote.clone());
        let recalled = Box::new(Recalled { asked, announcement, replaced, vote });
        self.send(&[Peer::Replica(to)], &Message::Recall(recalled));
    }

    /// What a member holds of this replica.
    pub(super) fn on_recall(&mut self, now: Now, from: ReplicaId, recalled: Recalled) {
        let Recalled { asked, announcement, replaced, vote } = recalled;
        let Some(own) = self.boots.own.as_ref().filter(|own| own.id() == asked) else { return };
        // What nobody asked for may come without end.
        match self.boots.asked.get_mut(from.index()) {
            None | Some(0) => return,
            Some(open) => *open -= 1,
        }
        let boot = announcement.as_ref().map(|announcement| announcement.boot);
        let held: Vec<Announcement> = announcement.into_iter().chain(replaced).collect();
        let foreign = held.iter().find(|held| {
            let own_key = self.key.public();
            own.lacks(held.boot)
                && (seeded!(RecallUnverified) || self.is_announced_by(own_key, held))
        });
        if let Some(Announcement { boot: BootId { number, .. }, .. }) = foreign {
            let is = asked.number;
            let what = format!("it took part in another boot {number} once, and this is boot {is}");
            self.is_old(from, &what);
            return;
        }
        if let Some(HeldVote { view, slot, digest, configuration, signature }) = vote {
            let context = Context { cluster: self.parameters.cluster, configuration };
            let statement = context.statement(StatementKind::Accept, view, slot, digest);
            let own = |key| self.scheme.verify(key, &statement, signature);
            if self.agreement.has_forgotten(view, slot, digest)
                && (self.boots.unsigned || seeded!(RecallUnverified) || own(self.key.public()))
            {
                let what = format!(
                    "it voted on slot {slot} in view {view}, and its log does not have that"
                );
                self.is_old(from, &what);
                return;
            }
        }
        let quorum = self.boot_quorum();
        let before = (self.boots.has_compared(quorum), self.boots.is_done(quorum));
        self.boots.compared.insert(from);
        if boot == Some(asked) {
            self.boots.kept.insert(from);
        }
        if self.boots.has_compared(quorum) && !before.0 {
            self.log_own_boot(now);
        }
        if self.boots.is_done(quorum) && !before.1 {
            self.agreement.compared(now);
        }
    }

    fn is_old(&mut self, from: ReplicaId, what: &str) {
        let signed = if self.boots.unsigned { "says so" } else { "has its signature" };
        let took_part = self.boots.is_done(self.boot_quorum());
        let todo = if took_part {
            "It took part before that was found out: replace the replica with `perdura replica reinit`, on the machine where admin.toml is"
        } else {
            "If the newer directory is still there, start on that; else replace the replica with `perdura replica reinit`, on the machine where admin.toml is"
        };
        self.halted = true;
        self.outputs.push_back(Output::TakenBack(format!(
            "the data directory of this replica is older than what it said: {what} (replica {from} {signed}). It was restored from a copy, \
             or two processes had copies of it, and must not vote again. {todo}"
        )));
    }
}
