//! Slots that no Accepts prove, below prefixes that a laggard is too far behind to judge: others attest what they
//! executed, and it catches up (`serving`). The nodes are real, time is virtual, and a disk is a list of records.
//!
//! The test plays the first r replicas, of which the first leads view 0. In the end they are gone for good. The last
//! u - r are down from the beginning, so that u fail in all, and it takes all others to make a quorum. The last r of those
//! are cut off at first: the laggards. The rest is a quorum together with the replicas that are played, and goes ahead
//! with them.

use crate::common;
use crate::common::CLUSTER;
use perdura_agreement::timing::TICK_MS;
use perdura_protocol::message::Decision;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{
    Batch, Certificate, Context, Decode, Digest, Encode, Faults, Message, Record, ReplicaId,
    Scheme, SecretKey, Signature, Slot, Time, View,
};
use perdura_replica::node::{Boot, Found, Input, Node, Now, Output, Peer};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::{Range, RangeInclusive};

/// When it begins.
const START_MS: u64 = 10_000;

/// From this depth on, Accepts count before anybody has looked at their signatures.
const BY_LINK: u64 = 8;

/// So many slots are executed before the pipeline fills.
const FIRST: u64 = 2;

/// A group: its bounds u and r, and the depth of its pipeline.
#[derive(Clone, Copy)]
struct Group {
    bounds: (u8, u8),
    depth: u64,
}

impl Group {
    fn all() -> impl Iterator<Item = Group> {
        let with_depths = |bounds| [2, BY_LINK, 32].map(|depth| Group { bounds, depth });
        [(1, 1), (2, 1), (2, 2), (3, 1)].into_iter().flat_map(with_depths)
    }

    fn faults(self) -> Faults {
        let (u, r) = self.bounds;
        Faults::new(u, r).expect("these bounds are supported")
    }

    fn played(self) -> Range<u8> {
        0..self.faults().r() as u8
    }

    fn ahead(self) -> Range<u8> {
        self.played().end..self.faults().agreement_quorum() as u8
    }

    fn laggards(self) -> Range<u8> {
        self.ahead().end..self.ahead().end + self.played().end
    }

    /// All that are nodes here.
    fn nodes(self) -> Range<u8> {
        self.ahead().start..self.laggards().end
    }

    /// The last slot of the pipeline, and the second one beyond a laggard's reach.
    fn last(self) -> u64 {
        FIRST + self.depth
    }

    fn boot(self, id: u8, ms: u64, records: Vec<Record>) -> Node {
        let mut boot = common::boot(id, Scheme::KeyedHash, self.bounds, Vec::new());
        boot.parameters.depth = self.depth;
        let found = Found { records, ..Found::default() };
        Node::boot(Boot { found, ..boot }, now(ms)).expect("the genesis is sound")
    }
}

fn now(ms: u64) -> Now {
    Now { monotonic_ms: ms, wall: Time(1_000_000 + ms) }
}

fn peer(id: u8) -> Peer {
    Peer::Replica(ReplicaId(id))
}

fn sign(id: u8, kind: StatementKind, slot: Slot, digest: Digest) -> Signature {
    let context = Context { cluster: CLUSTER, configuration: 0 };
    let key = SecretKey::from_seed(Scheme::KeyedHash, [10 + id; 32]);
    key.sign(&context.statement(kind, View(0), slot, digest))
}

/// What becomes of messages between two replicas.
#[derive(PartialEq, Eq)]
enum Link {
    Up,
    Late,
    Down,
}

#[derive(Clone)]
struct Sent {
    from: u8,
    to: u8,
    message: Message,
}

struct World {
    group: Group,
    ms: u64,
    nodes: BTreeMap<u8, Node>,
    disks: BTreeMap<u8, Vec<Record>>,
    queue: VecDeque<Sent>,
    /// What is late on links.
    held: Vec<Sent>,
    /// What the replicas heard that are played.
    heard: Vec<Sent>,
    /// What was proposed, from slot 1 on.
    batches: Vec<Batch>,
    /// Whether they are gone.
    gone: bool,
    /// Whether what those ahead send each other is late.
    late: bool,
    /// Whether the laggards are reached.
    reached: bool,
}

impl fmt::Display for World {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Group { bounds, depth } = self.group;
        write!(out, "(u, r) = {bounds:?}, depth {depth}, after {} ms", self.ms - START_MS)?;
        for (id, node) in &self.nodes {
            let report = node.report();
            let (view, executed, prefix) = (report.view, report.executed, report.prefix);
            write!(out, "; replica {id}: view {view}, executed {executed}, prefix {prefix}")?;
        }
        Ok(())
    }
}

/// Nodes, their links and their disks.
impl World {
    fn new(group: Group) -> World {
        let mut world = World {
            group,
            ms: START_MS,
            nodes: BTreeMap::new(),
            disks: BTreeMap::new(),
            queue: VecDeque::new(),
            held: Vec::new(),
            heard: Vec::new(),
            batches: Vec::new(),
            gone: false,
            late: false,
            reached: false,
        };
        world.start(group.nodes());
        world
    }

    /// Starts nodes from what is on their disks. What was on its way to them is lost.
    fn start(&mut self, ids: Range<u8>) {
        self.held.clear();
        for id in ids.clone() {
            let records = self.disks.entry(id).or_default().clone();
            self.nodes.insert(id, self.group.boot(id, self.ms, records));
        }
        self.link(|one, _| ids.contains(&one));
    }

    /// Tells the nodes which of the links that are up are new.
    fn link(&mut self, new: impl Fn(u8, u8) -> bool) {
        for one in self.group.nodes() {
            for other in (0..self.group.nodes().end).filter(|other| *other != one) {
                if self.link_between(one, other) == Link::Up && new(one, other) {
                    self.input(one, Input::LinkUp(peer(other)));
                }
            }
        }
        self.pump();
    }

    fn link_between(&self, one: u8, other: u8) -> Link {
        let (played, laggards) = (self.group.played(), self.group.laggards());
        let either = |ids: &Range<u8>| ids.contains(&one) || ids.contains(&other);
        let down = one.max(other) >= laggards.end;
        if down || (self.gone && either(&played)) || (!self.reached && either(&laggards)) {
            Link::Down
        } else if self.late && !either(&played) {
            Link::Late
        } else {
            Link::Up
        }
    }

    fn send(&mut self, from: u8, to: u8, message: Message) {
        let sent = Sent { from, to, message };
        match self.link_between(from, to) {
            Link::Up if self.group.played().contains(&to) => self.heard.push(sent),
            Link::Up => self.queue.push_back(sent),
            Link::Late => self.held.push(sent),
            Link::Down => {}
        }
    }

    fn input(&mut self, id: u8, input: Input) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.begin_round(now(self.ms));
            node.handle(now(self.ms), input);
        }
    }

    /// Goes on until nothing is on its way any more.
    fn pump(&mut self) {
        self.group.nodes().for_each(|id| self.drain(id));
        while let Some(Sent { from, to, message }) = self.queue.pop_front() {
            self.input(to, Input::Message { peer: peer(from), bytes: message.to_bytes() });
            self.drain(to);
        }
    }

    fn drain(&mut self, id: u8) {
        while let Some(node) = self.nodes.get_mut(&id) {
            node.flush(now(self.ms));
            let outputs: Vec<Output> = std::iter::from_fn(|| node.next_output()).collect();
            if outputs.is_empty() {
                return;
            }
            outputs.into_iter().for_each(|output| self.carry_out(id, output));
        }
    }

    /// So few slots make no checkpoint, and there is no state by which anybody could catch up. Nor is anybody blamed:
    /// nobody looks at what was false while it is there.
    fn carry_out(&mut self, id: u8, output: Output) {
        match output {
            Output::Send { peers, bytes, .. } => {
                let message = Message::from_bytes(bytes).expect("a node sends what decodes");
                for to in peers {
                    if let Peer::Replica(to) = to {
                        self.send(id, to.0, message.clone());
                    }
                }
            }
            Output::Append { records, mark } => {
                self.disks.entry(id).or_default().extend(records);
                self.input(id, Input::Persisted(mark));
            }
            Output::ReadDecisions { to, wanted } => {
                let decisions = wanted.iter().filter_map(|wanted| self.read(id, *wanted)).collect();
                self.input(id, Input::DecisionsRead { to, decisions });
            }
            Output::Members(_)
            | Output::Suspects { .. }
            | Output::Notice(_)
            | Output::LetGo(_)
            | Output::Scrub { .. } => {}
            other => panic!("{self}: replica {id} wants {other:?}"),
        }
    }

    /// As the keeper of a log: the newest record of the batch, with the newest Accepts.
    fn read(&self, id: u8, (slot, digest): (Slot, Digest)) -> Option<Decision> {
        let records = || self.disks.get(&id).into_iter().flatten().rev();
        let such = |(of, batch): (Slot, &Batch)| of == slot && batch.digest() == digest;
        let newest = records().find(|record| record.batch().is_some_and(such))?.clone();
        let mut decision = match newest {
            Record::Decision { slot, view, batch, accepts } => {
                Decision { slot, view, accepts, batch }
            }
            Record::Vote { slot, view, batch, .. } => {
                Decision { slot, view, accepts: Certificate::default(), batch }
            }
            _ => return None,
        };
        let accepts = records().find_map(|record| match record {
            Record::Accepts { slot: of, view, digest: about, accepts }
                if *of == slot && *about == digest =>
            {
                Some((*view, accepts.clone()))
            }
            _ => None,
        });
        if let Some((view, accepts)) = accepts {
            (decision.view, decision.accepts) = (view, accepts);
        }
        Some(decision)
    }

    fn tick(&mut self) {
        self.ms += TICK_MS;
        self.nodes.values_mut().for_each(|node| node.begin_round(now(self.ms)));
        self.pump();
    }

    fn wait(&mut self, ms: u64) {
        (0..ms / TICK_MS).for_each(|_| self.tick());
    }

    /// What was late arrives.
    fn release(&mut self) {
        self.late = false;
        self.queue.extend(std::mem::take(&mut self.held));
        self.pump();
    }

    /// Of what is late, what each sent before it had voted on this slot arrives, and that vote.
    fn release_through(&mut self, last: Slot) {
        let is_vote =
            |sent: &Sent| matches!(sent.message, Message::Write { slot, .. } if slot == last);
        for from in self.group.ahead() {
            for to in self.group.ahead().filter(|to| *to != from) {
                let sent = self.held.iter().filter(|sent| (sent.from, sent.to) == (from, to));
                let vote = sent.clone().position(is_vote);
                let vote = vote
                    .unwrap_or_else(|| panic!("{self}: replica {from} has not voted on {last}"));
                self.queue.extend(sent.take(vote + 1).cloned());
            }
        }
        self.pump();
    }

    /// The laggards are reached from now on.
    fn reach(&mut self) {
        self.reached = true;
        let laggards = self.group.laggards();
        self.link(|one, other| laggards.contains(&one) || laggards.contains(&other));
    }

    fn expect(&self, ids: impl IntoIterator<Item = u8>, executed: u64) {
        for id in ids {
            let there = self.nodes[&id].report().executed == Slot(executed);
            assert!(there, "{self}: replica {id} should have executed {executed}");
        }
    }

    fn prefix(&self, id: u8) -> Slot {
        self.nodes[&id].report().prefix
    }

    /// Those ahead have prefixes that the laggards are too far behind to judge.
    fn expect_prefixes_beyond_reach(&self) {
        self.expect(self.group.laggards(), 0);
        let beyond = |id| self.prefix(id) > Slot(self.group.depth);
        assert!(self.group.ahead().all(beyond), "{self}: a prefix is within reach");
    }

    /// All have executed the slots up to this one after so much time at the latest.
    fn expect_all_within(&mut self, most_ms: u64, executed: u64) {
        let until_ms = self.ms + most_ms;
        let lags = |node: &Node| node.report().executed != Slot(executed);
        while self.nodes.values().any(lags) && self.ms < until_ms {
            self.tick();
        }
        self.expect(self.group.nodes(), executed);
    }

    /// With a small depth all slots are proven by Accepts.
    fn expect_attestation(&self) {
        let counters = self.nodes.values().map(|node| node.report().counters);
        let attested: u64 = counters.map(|counters| counters.attestations).sum();
        assert!(attested > 0 || self.group.depth < BY_LINK, "{self}: nobody has attested");
    }
}

/// What the replicas say that are played.
impl World {
    fn propose(&mut self, slot: Slot) {
        let batch = Batch::tick(Time(now(self.ms).wall.0 + slot.0));
        let (view, digest) = (View(0), batch.digest());
        let (decided, history) = (Slot(0), Digest::ZERO);
        self.batches.push(batch.clone());
        for to in self.group.ahead() {
            let batch = batch.clone();
            self.send(0, to, Message::Propose { view, slot, batch, decided, history });
            for from in self.group.played() {
                let signature = sign(from, StatementKind::Write, slot, digest);
                self.send(from, to, Message::Write { view, slot, digest, signature });
            }
        }
        self.pump();
    }

    fn batch(&self, slot: Slot) -> &Batch {
        &self.batches[slot.0 as usize - 1]
    }

    fn accept(&mut self, to: impl IntoIterator<Item = u8> + Clone, slot: Slot, genuine: bool) {
        let digest = self.batch(slot).digest();
        for from in self.group.played() {
            let real = sign(from, StatementKind::Accept, slot, digest);
            let signature = if genuine { real } else { Signature([7; 64]) };
            for to in to.clone() {
                self.send(from, to, Message::Accept { view: View(0), slot, digest, signature });
            }
        }
        self.pump();
    }

    /// The signature of this one, which signs its prefix for whoever asks for a state, together with those of the liars.
    fn certificate_with(&mut self, of: u8, slot: Slot) -> PrefixCertificate {
        let digests = self.batches.iter().map(Batch::digest);
        let slots = (1..=slot.0).map(Slot).zip(digests);
        let history =
            slots.fold(Digest::ZERO, |history, (slot, digest)| history.chain(slot, digest));
        self.heard.clear();
        self.send(0, of, Message::StateQuery);
        self.pump();
        let theirs = self.heard.iter().find_map(|sent| match sent.message {
            Message::Prefix { slot: at, history: of_it, signature } => {
                ((sent.from, at, of_it) == (of, slot, history)).then_some(signature)
            }
            _ => None,
        });
        let theirs =
            theirs.unwrap_or_else(|| panic!("{self}: replica {of} does not sign slot {slot}"));
        let liars = self.group.played();
        let liars = liars.map(|id| (ReplicaId(id), sign(id, StatementKind::Prefix, slot, history)));
        let certificate = Certificate::new(liars.chain([(ReplicaId(of), theirs)]).collect());
        PrefixCertificate { slot, history, configuration: 0, certificate }
    }

    /// Takes the others that are ahead to where this one is, by decisions for which nobody asked, without Accepts.
    fn push(&mut self, of: u8, slots: RangeInclusive<u64>) {
        let prefix = Some(self.certificate_with(of, Slot(*slots.end())));
        let unproven = |slot| {
            let (view, accepts, batch) =
                (View(0), Certificate::default(), self.batch(slot).clone());
            Decision { slot, view, accepts, batch }
        };
        let decisions: Vec<Decision> = slots.map(Slot).map(unproven).collect();
        for to in self.group.ahead().filter(|to| *to != of) {
            let (decisions, prefix, between) = (decisions.clone(), prefix.clone(), Vec::new());
            self.send(0, to, Message::Decisions { decisions, prefix, between });
        }
        self.pump();
    }

    /// They come back from their crash with disks that have lost their state, ask for one, and crash again.
    fn ask_for_state(&mut self) {
        let played = self.group.played();
        self.gone = false;
        self.link(|_, other| played.contains(&other));
        for to in self.group.ahead() {
            played.clone().for_each(|from| self.send(from, to, Message::StateQuery));
        }
        self.pump();
        self.go();
    }

    /// They are gone from now on.
    fn go(&mut self) {
        self.gone = true;
        for id in self.group.ahead() {
            for played in self.group.played() {
                self.input(id, Input::LinkDown(peer(played)));
            }
        }
        self.pump();
    }
}

/// The pipeline is full, and all votes on it are exchanged but for the Accepts of those that are played. The Accepts for
/// slot 1 may be false: then nobody can ever prove it by Accepts.
fn full_pipeline(group: Group, genuine: bool) -> World {
    let mut world = World::new(group);
    for slot in (1..=FIRST).map(Slot) {
        world.propose(slot);
        world.accept(group.ahead(), slot, genuine || slot > Slot(1));
    }
    (FIRST + 1..=group.last()).map(Slot).for_each(|slot| world.propose(slot));
    world.expect(group.ahead(), FIRST);
    world
}

/// The liars see to it that nobody keeps a proof that a laggard could judge. Each replica that is ahead goes on to a
/// prefix beyond the laggards' reach before it has seen that an Accept was false, and forgets the genuine ones too. It may
/// restart before the laggards are reached.
fn attack(group: Group, restarted: bool) {
    let (last, ahead) = (group.last(), group.ahead());
    let (one, other) = (ahead.start, ahead.start + 1);
    // With a small depth Accepts are verified first, and false ones decide nothing.
    let mut world = full_pipeline(group, group.depth < BY_LINK);
    world.late = true;
    (FIRST + 1..last).for_each(|slot| world.accept([other], Slot(slot), true));
    world.expect([other], last - 1);
    world.push(other, FIRST + 1..=last - 1);
    world.expect(ahead.clone(), last - 1);
    world.wait(100);
    world.accept([one], Slot(last), true);
    world.push(one, last..=last);
    world.expect(ahead.clone(), last);
    world.release();
    world.expect_prefixes_beyond_reach();
    world.go();
    if restarted {
        // By then their disks have what nothing waits for too.
        world.wait(200);
        world.start(ahead);
        world.expect_prefixes_beyond_reach();
    }
    world.reach();
    world.expect_all_within(5_000, last);
    world.expect_attestation();
}

/// Nobody lies. Those ahead count Accepts by link, vote on one more slot, so that all before it is written down, and crash
/// before any signed prefix has arrived. They come back without the leader. From their own logs they know what was
/// decided, and nothing that proves it to others. Somebody may have them certify a prefix then.
fn crash(group: Group, asked: bool, alone_ms: u64) {
    let (last, ahead) = (group.last(), group.ahead());
    let mut world = full_pipeline(group, true);
    world.late = true;
    world.accept(ahead.clone(), Slot(FIRST + 1), true);
    world.propose(Slot(last + 1));
    (FIRST + 2..=last).for_each(|slot| world.accept(ahead.clone(), Slot(slot), true));
    world.expect(ahead.clone(), last);
    world.release_through(Slot(last + 1));
    (world.gone, world.late) = (true, false);
    world.ms += 1_000;
    world.start(ahead.clone());
    world.expect(ahead.clone(), last);
    assert!(ahead.clone().all(|id| world.prefix(id) == Slot(0)), "{world}: a prefix arrived");
    if asked {
        world.ask_for_state();
        world.expect_prefixes_beyond_reach();
    }
    world.wait(alone_ms);
    world.reach();
    // The slot on which they voted takes the votes of the laggards too.
    world.expect_all_within(10_000, last + 1);
    world.expect_attestation();
    world.start(group.nodes());
    world.expect_all_within(10_000, last + 1);
}

/// So long those ahead are alone: not at all, and until they have given up the view of the leader that is gone.
const ALONE_MS: [u64; 2] = [0, 2_000];

#[test]
fn a_laggard_beyond_reach_of_every_prefix_catches_up() {
    Group::all().for_each(|group| attack(group, false));
}

#[test]
fn those_who_restarted_testify_what_they_executed_before() {
    Group::all().for_each(|group| attack(group, true));
}

#[test]
fn after_a_crash_of_all_a_slot_that_only_voices_decided_is_testified() {
    for group in Group::all() {
        ALONE_MS.into_iter().for_each(|alone_ms| crash(group, false, alone_ms));
    }
}

/// A prefix was certified for somebody else, so no view has votes any more on what the laggards lack.
#[test]
fn after_a_crash_of_all_what_a_prefix_covers_is_testified_to_who_cannot_judge_it() {
    for group in Group::all() {
        ALONE_MS.into_iter().for_each(|alone_ms| crash(group, true, alone_ms));
    }
}
