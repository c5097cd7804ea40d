//! Accepts are counted by the links that they come over (r > 0), and looked at afterwards: what is decided so, and
//! what becomes of it when a signature is false (A1, A3, A4).

use crate::harness::settings::settings;
use bytes::Bytes;
use perdura_agreement::{Agreement, Effect, Now, Restart};
use perdura_protocol::configuration::{Configuration, Configurations, Member};
use perdura_protocol::message::Decision;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{
    Batch, Certificate, ClusterId, Digest, Faults, Frame, Message, Record, ReplicaId, Scheme,
    SecretKey, SessionId, Signature, Slot, Time, View, limits,
};

const CLUSTER: ClusterId = ClusterId([7; 16]);
const ME: u8 = 3;
const SLOT: Slot = Slot(1);

/// So long no prefix came.
const LATER_MS: u64 = 200;

fn key(replica: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::KeyedHash, [replica + 1; 32])
}

fn at(ms: u64) -> Now {
    Now { monotonic_ms: ms, wall: Time(ms) }
}

fn configurations() -> Configurations {
    let members = (0..4).map(|i| Member { key: key(i).public(), incarnation: 0 }).collect();
    Configurations::new(CLUSTER, Configuration { id: 0, from_slot: Slot(0), members })
}

/// With one that comes after slot 99.
fn two_configurations() -> Configurations {
    let mut two = configurations();
    two.add(Configuration { id: 1, from_slot: Slot(100), ..two.latest().clone() });
    two
}

fn machine(configurations: Configurations, restart: Restart) -> Agreement {
    let mut settings = settings(CLUSTER, Faults::new(1, 1).unwrap(), ReplicaId(ME), key);
    // Enough for Accepts to count by link.
    settings.parameters.depth = 8;
    settings.parameters.checkpoint_interval = 1 << 20;
    settings.parameters.checkpoint_bytes = 1 << 30;
    Agreement::new(settings, configurations, restart, at(1_000))
}

fn signature_of(kind: StatementKind, from: u8, slot: Slot, digest: Digest) -> Signature {
    let statement = configurations().context_at(slot).statement(kind, View(0), slot, digest);
    key(from).sign(&statement)
}

fn prefix_vote(from: u8, slot: Slot, history: Digest) -> Message {
    let signature = signature_of(StatementKind::Prefix, from, slot, history);
    Message::Prefix { slot, history, signature }
}

fn vote(kind: StatementKind, from: u8, slot: Slot, digest: Digest) -> Message {
    let view = View(0);
    let signature = signature_of(kind, from, slot, digest);
    match kind {
        StatementKind::Write => Message::Write { view, slot, digest, signature },
        _ => Message::Accept { view, slot, digest, signature },
    }
}

/// Its signature is another's.
fn falsely_signed(slot: Slot, digest: Digest) -> Message {
    Message::Accept { view: View(0), slot, digest, signature: Signature([9; 64]) }
}

/// A machine and its clock.
struct Follower {
    machine: Agreement,
    now_ms: u64,
    // What it wanted since it was asked last.
    effects: Vec<Effect>,
}

impl Follower {
    fn new(configurations: Configurations) -> Follower {
        Follower::started(machine(configurations, Restart::blank()))
    }

    fn started(machine: Agreement) -> Follower {
        let mut follower = Follower { machine, now_ms: 1_000, effects: Vec::new() };
        follower.persisted();
        follower
    }

    fn persisted(&mut self) {
        self.machine.on_persisted(at(self.now_ms), u64::MAX);
        self.settle();
    }

    fn hears(&mut self, from: u8, message: Message) {
        self.now_ms += 1;
        self.machine.on_message(at(self.now_ms), ReplicaId(from), message);
        self.settle();
    }

    fn settle(&mut self) {
        while let Some(effect) = self.machine.next_effect() {
            if let Effect::Deliver { slot, .. } = &effect {
                self.machine.on_executed(at(self.now_ms), *slot, None, false);
            }
            self.effects.push(effect);
        }
    }

    fn proposed(&mut self, slot: Slot, batch: Batch) -> Digest {
        let digest = batch.digest();
        let (view, decided, history) = (View(0), Slot(0), Digest::ZERO);
        self.hears(0, Message::Propose { view, slot, batch, decided, history });
        digest
    }

    /// It has accepted what the leader proposed, and heard of no other Accept.
    fn accepts(&mut self, slot: Slot) -> Digest {
        self.accepts_of(slot, Batch::null())
    }

    fn accepts_of(&mut self, slot: Slot, batch: Batch) -> Digest {
        let digest = self.proposed(slot, batch);
        for from in 0..2 {
            self.hears(from, vote(StatementKind::Write, from, slot, digest));
        }
        self.persisted();
        assert_eq!(self.machine.highest_accepted(), slot);
        digest
    }

    /// A round of input begins when the first decisions have waited for long.
    fn waits(&mut self) {
        self.now_ms += LATER_MS;
        self.effects.clear();
        self.machine.begin_round(at(self.now_ms));
        self.settle();
    }

    /// The slots that it has proven since it was asked last, and who signed.
    fn proven(&self) -> Vec<(Slot, Vec<u8>)> {
        let proven = self.effects.iter().filter_map(|effect| match effect {
            Effect::Proven { slot, accepts, .. } => Some((*slot, signers(accepts))),
            _ => None,
        });
        proven.collect()
    }

    fn noted(&self) -> bool {
        let noted = |effect: &Effect| matches!(effect, Effect::Note(Record::Accepts { .. }));
        self.effects.iter().any(noted)
    }

    fn accuses(&self, whom: u8) -> bool {
        self.effects
            .iter()
            .any(|effect| matches!(effect, Effect::Misbehaved { replica, .. } if replica.0 == whom))
    }

    /// The Accepts with which it answers who asks for the slot.
    fn shown(&mut self, slot: Slot) -> Vec<u8> {
        self.effects.clear();
        self.hears(1, Message::Fetch { from: slot, to: slot });
        let answer = self.effects.iter().find_map(|effect| match effect {
            Effect::Send { message: Message::Decisions { decisions, .. }, .. } => {
                decisions.first().map(|decision| signers(&decision.accepts))
            }
            _ => None,
        });
        answer.expect("it answers")
    }
}

fn signers(certificate: &Certificate) -> Vec<u8> {
    certificate.signatures().iter().map(|(id, _)| id.0).collect()
}

#[test]
fn a_decision_needs_no_look_at_signatures_and_its_proof_comes_after_it() {
    let mut follower = Follower::new(configurations());
    let digest = follower.accepts(SLOT);
    let before = follower.machine.signatures_verified();
    follower.hears(2, vote(StatementKind::Accept, 2, SLOT, digest));
    assert_eq!(follower.machine.delivered(), Slot(0), "two are no quorum");
    follower.hears(0, vote(StatementKind::Accept, 0, SLOT, digest));
    assert_eq!(follower.machine.delivered(), SLOT);
    assert_eq!(follower.machine.signatures_verified(), before);
    assert!(follower.proven().is_empty() && !follower.noted());
    follower.waits();
    assert_eq!(follower.proven(), [(SLOT, vec![0, 2, ME])]);
    assert!(follower.noted(), "in the log too");
    assert_eq!(follower.machine.signatures_verified(), before + 2);
    assert_eq!(follower.shown(SLOT), [0, 2, ME]);
    follower.waits();
    assert_eq!(follower.machine.signatures_verified(), before + 2, "once is enough");
}

#[test]
fn whoever_asks_is_shown_a_proof_at_once() {
    let mut follower = Follower::new(configurations());
    let digest = follower.accepts(SLOT);
    for from in [0, 1] {
        follower.hears(from, vote(StatementKind::Accept, from, SLOT, digest));
    }
    assert_eq!(follower.shown(SLOT), [0, 1, ME]);
}

/// Prefixes would prove them, and there is none. Only so many are left to that.
#[test]
fn without_a_prefix_accepts_are_looked_at_in_the_end() {
    let mut follower = Follower::new(configurations());
    for slot in (1..=17).map(Slot) {
        assert!(follower.proven().is_empty());
        let digest = follower.accepts(slot);
        for from in [0, 1] {
            follower.hears(from, vote(StatementKind::Accept, from, slot, digest));
        }
    }
    assert_eq!(follower.proven().len(), 16, "and one that is delivered with its proof");
    assert_eq!(follower.machine.marks().decisions_proven, 17);
}

/// The slot stays open, and who signed so is believed once.
#[test]
fn who_signed_falsely_is_never_counted_by_link_again() {
    let mut follower = Follower::new(configurations());
    let digest = follower.accepts(SLOT);
    follower.hears(2, falsely_signed(SLOT, digest));
    follower.hears(0, vote(StatementKind::Accept, 0, SLOT, digest));
    assert_eq!(follower.machine.delivered(), SLOT, "a quorum of correct ones locked it or will");
    follower.waits();
    assert!(follower.accuses(2) && follower.proven().is_empty() && !follower.noted());
    assert_eq!(follower.machine.marks().accepts_not_genuine, 1);
    assert_eq!(follower.shown(SLOT), [0u8; 0], "what is not genuine is not passed on");

    let next = SLOT.next();
    let digest = follower.accepts(next);
    // Its penalty is over by then.
    follower.now_ms += 1_000;
    follower.hears(2, falsely_signed(next, digest));
    follower.hears(0, vote(StatementKind::Accept, 0, next, digest));
    assert_eq!(follower.machine.delivered(), SLOT, "this time the signature is looked at first");
    follower.hears(1, vote(StatementKind::Accept, 1, next, digest));
    assert_eq!(follower.machine.delivered(), next);

    follower.effects.clear();
    follower.hears(1, vote(StatementKind::Accept, 1, SLOT, digest));
    assert_eq!(follower.proven(), [(SLOT, vec![0, 1, ME])]);
    assert_eq!(follower.shown(SLOT), [0, 1, ME]);
}

/// Who takes its word back was heard first.
#[test]
fn who_signs_otherwise_afterwards_is_held_to_what_it_signed_before() {
    let mut follower = Follower::new(configurations());
    let digest = follower.accepts(SLOT);
    follower.hears(2, falsely_signed(SLOT, digest));
    follower.hears(0, vote(StatementKind::Accept, 0, SLOT, digest));
    assert_eq!(follower.machine.delivered(), SLOT);
    assert!(!follower.accuses(2));
    follower.hears(2, falsely_signed(SLOT, Digest([1; 32])));
    assert!(follower.accuses(2));

    let next = SLOT.next();
    let digest = follower.accepts(next);
    for from in [0, 1] {
        follower.hears(from, vote(StatementKind::Accept, from, next, digest));
    }
    follower.effects.clear();
    let (view, slot) = (View(1), next);
    let signature = Signature([1; 64]);
    follower.hears(1, Message::Accept { view, slot, digest, signature });
    assert_eq!(follower.proven(), [(next, vec![0, 1, ME])]);
}

/// Who has no lock could not vote again in the next view, so it needs the proof at once.
#[test]
fn without_a_lock_of_its_own_a_replica_looks_first() {
    let mut follower = Follower::new(configurations());
    let digest = follower.proposed(SLOT, Batch::null());
    follower.hears(0, vote(StatementKind::Accept, 0, SLOT, digest));
    follower.hears(1, vote(StatementKind::Accept, 1, SLOT, digest));
    follower.hears(2, falsely_signed(SLOT, digest));
    assert_eq!(follower.machine.delivered(), Slot(0));
    assert!(follower.accuses(2));
}

/// A lock that is not on disk yet is none.
#[test]
fn before_its_lock_is_durable_a_replica_looks_first() {
    let mut follower = Follower::new(configurations());
    let digest = follower.proposed(SLOT, Batch::null());
    for from in 0..2 {
        follower.hears(from, vote(StatementKind::Write, from, SLOT, digest));
    }
    for from in 0..2 {
        follower.hears(from, vote(StatementKind::Accept, from, SLOT, digest));
    }
    follower.hears(2, falsely_signed(SLOT, digest));
    assert_eq!(follower.machine.delivered(), Slot(0));
    follower.persisted();
    assert_eq!(follower.machine.delivered(), SLOT);
}

/// A former incarnation of a member may have sent them, over a link of before.
#[test]
fn near_a_new_configuration_accepts_are_verified_before_they_count() {
    let mut follower = Follower::new(two_configurations());
    let digest = follower.accepts(SLOT);
    follower.hears(2, falsely_signed(SLOT, digest));
    follower.hears(0, vote(StatementKind::Accept, 0, SLOT, digest));
    assert_eq!(follower.machine.delivered(), Slot(0));
    follower.hears(1, vote(StatementKind::Accept, 1, SLOT, digest));
    assert_eq!(follower.machine.delivered(), SLOT);
    assert_eq!(follower.shown(SLOT), [0, 1, ME]);
}

/// Who orders another configuration.
fn administrators() -> Batch {
    let session = SessionId { client: key(0).public(), nonce: 1 };
    let frame = Frame::build(CLUSTER, session, 0, 1, &[Bytes::from_static(b"replace")], None);
    Batch::requests(Time(1_000), vec![frame])
}

/// What may order another configuration is decided by genuine Accepts only.
#[test]
fn a_command_of_the_administrator_is_not_decided_by_links() {
    let mut follower = Follower::new(configurations());
    let digest = follower.accepts_of(SLOT, administrators());
    follower.hears(2, falsely_signed(SLOT, digest));
    follower.hears(0, vote(StatementKind::Accept, 0, SLOT, digest));
    assert_eq!(follower.machine.delivered(), Slot(0));
    follower.hears(1, vote(StatementKind::Accept, 1, SLOT, digest));
    assert_eq!(follower.machine.delivered(), SLOT);
}

/// What is under way when another administrator becomes known may be from that one, and order a configuration.
#[test]
fn what_is_under_way_with_another_administrator_is_not_decided_by_links() {
    for (administrator, delivered) in [(0, SLOT), (7, Slot(0))] {
        let mut follower = Follower::new(configurations());
        follower.machine.set_administrator(key(administrator).public());
        let digest = follower.accepts(SLOT);
        follower.hears(2, falsely_signed(SLOT, digest));
        follower.hears(0, vote(StatementKind::Accept, 0, SLOT, digest));
        assert_eq!(follower.machine.delivered(), delivered, "administrator {administrator}");
        follower.hears(1, vote(StatementKind::Accept, 1, SLOT, digest));
        assert_eq!(follower.machine.delivered(), SLOT);
    }
}

/// A command of the administrator is decided in slot 2, and nobody can show slot 1.
fn waits_for_the_proof_of_slot_1() -> (Follower, Digest) {
    let mut follower = Follower::new(configurations());
    let digest = follower.accepts(SLOT);
    follower.hears(2, falsely_signed(SLOT, digest));
    follower.hears(0, vote(StatementKind::Accept, 0, SLOT, digest));
    assert_eq!(follower.machine.delivered(), SLOT);
    let next = SLOT.next();
    let ordered = follower.accepts_of(next, administrators());
    for from in [0, 1] {
        follower.hears(from, vote(StatementKind::Accept, from, next, ordered));
    }
    assert_eq!(follower.machine.delivered(), SLOT);
    (follower, digest)
}

/// Who has executed it votes on nothing before it any more.
#[test]
fn a_command_of_the_administrator_waits_for_the_proof_of_what_comes_before_it() {
    let (mut follower, digest) = waits_for_the_proof_of_slot_1();
    let next = SLOT.next();
    follower.waits();
    assert_eq!(follower.machine.delivered(), SLOT);
    follower.hears(1, vote(StatementKind::Accept, 1, SLOT, digest));
    assert_eq!(follower.proven(), [(SLOT, vec![0, 1, ME])]);
    follower.waits();
    assert_eq!(follower.machine.delivered(), next);
}

/// A prefix proves it as well.
#[test]
fn a_command_of_the_administrator_waits_for_a_prefix_below_it() {
    let (mut follower, digest) = waits_for_the_proof_of_slot_1();
    let next = SLOT.next();
    follower.waits();
    assert_eq!(follower.machine.delivered(), SLOT);
    let history = Digest::ZERO.chain(SLOT, digest);
    for from in [0, 1] {
        follower.hears(from, prefix_vote(from, SLOT, history));
    }
    assert_eq!(follower.machine.prefix().slot, SLOT);
    follower.waits();
    assert_eq!(follower.machine.delivered(), next);
}

/// It may order a configuration that begins behind slots that are decided already.
#[test]
fn behind_a_command_of_the_administrator_all_wait_for_their_proof() {
    let mut follower = Follower::new(configurations());
    let ordered = follower.accepts_of(SLOT, administrators());
    let next = SLOT.next();
    let digest = follower.accepts(next);
    follower.hears(2, falsely_signed(next, digest));
    follower.hears(0, vote(StatementKind::Accept, 0, next, digest));
    for from in [0, 1] {
        follower.hears(from, vote(StatementKind::Accept, from, SLOT, ordered));
    }
    assert_eq!(follower.machine.delivered(), SLOT, "nobody could show slot 2");
    follower.waits();
    assert_eq!(follower.machine.delivered(), SLOT);
    // Others are ahead of it, with no prefix that both signed, and show it.
    for from in [0, 1] {
        follower.hears(from, prefix_vote(from, next.plus(1 + u64::from(from)), Digest([5; 32])));
    }
    for _ in 0..20 {
        follower.waits();
        follower.machine.on_tick(at(follower.now_ms));
        follower.settle();
        let asked = follower.effects.iter().find_map(|effect| match effect {
            Effect::Send { to, message: Message::Fetch { from, .. } } => Some((*to, *from)),
            _ => None,
        });
        let Some((to, from)) = asked else { continue };
        assert_eq!(from, next);
        let accepts = Certificate::new(
            [0, 1, 2]
                .map(|id| (ReplicaId(id), signature_of(StatementKind::Accept, id, next, digest)))
                .into(),
        );
        let decision = Decision { slot: next, view: View(0), accepts, batch: Batch::null() };
        let decisions = vec![decision];
        follower.hears(to.0, Message::Decisions { decisions, prefix: None, between: vec![] });
        break;
    }
    assert_eq!(follower.machine.delivered(), next);
    assert!(!follower.machine.lacks_prefix());
}

/// Others are asked for a prefix where a batch waits for one.
#[test]
fn who_waits_for_the_proof_of_a_slot_asks_for_a_prefix() {
    let (mut follower, digest) = waits_for_the_proof_of_slot_1();
    follower.waits();
    assert!(!follower.machine.lacks_prefix(), "one may come by itself");
    follower.now_ms += 1_000;
    follower.waits();
    assert!(follower.machine.lacks_prefix());
    follower.hears(1, vote(StatementKind::Accept, 1, SLOT, digest));
    follower.waits();
    assert!(!follower.machine.lacks_prefix());
}

/// Others have gone on beyond its reach, and can show that batch, which is not what it lacks.
#[test]
fn who_waits_for_the_proof_of_a_slot_goes_by_testimony_or_asks_for_a_state() {
    let (mut follower, digest) = waits_for_the_proof_of_slot_1();
    let next = SLOT.next();
    let accepts = [0, 1, 2]
        .map(|id| signature_of(StatementKind::Accept, id, next, administrators().digest()))
        .into_iter()
        .zip(0..)
        .map(|(signature, id)| (ReplicaId(id), signature));
    let accepts = Certificate::new(accepts.collect());
    let mut state_asked = false;
    for _ in 0..30 {
        for from in [0, 1] {
            let (view, delivered) = (View(0), Slot(20));
            follower.hears(from, Message::Status { view, changing: false, delivered });
        }
        follower.waits();
        follower.machine.on_tick(at(follower.now_ms));
        follower.settle();
        let asked: Vec<u8> = follower.effects.iter().filter_map(fetches).collect();
        state_asked |= follower.effects.iter().any(|one| matches!(one, Effect::FetchState { .. }));
        for from in asked {
            let (view, accepts, batch) = (View(0), accepts.clone(), administrators());
            let decisions = vec![Decision { slot: next, view, accepts, batch }];
            follower.hears(from, Message::Decisions { decisions, prefix: None, between: vec![] });
        }
        assert_eq!(follower.machine.delivered(), SLOT);
    }
    assert!(state_asked);
    let history = Digest::ZERO.chain(SLOT, digest).chain(next, administrators().digest());
    for from in [0, 1] {
        follower.hears(from, prefix_vote(from, next, history));
    }
    follower.waits();
    assert_eq!(follower.machine.delivered(), next);
}

fn fetches(effect: &Effect) -> Option<u8> {
    match effect {
        Effect::Send { to, message: Message::Fetch { .. } } => Some(to.0),
        _ => None,
    }
}

/// A laggard goes by a prefix that it has certified itself, whoever sends it the batches.
#[test]
fn a_prefix_that_others_testify_proves_what_is_fetched() {
    let batch = |slot: u64| Batch::tick(Time(slot));
    let first = Digest::ZERO.chain(SLOT, batch(1).digest());
    let history = first.chain(SLOT.next(), batch(2).digest());
    let delivers = |attested: &[(u8, Slot, Digest)], between: Vec<Digest>| {
        let mut follower = Follower::new(configurations());
        for (from, slot, history) in attested {
            follower.hears(*from, prefix_vote(*from, *slot, *history));
        }
        let (view, accepts) = (View(0), Certificate::default());
        let decisions = vec![Decision { slot: SLOT, view, accepts, batch: batch(1) }];
        follower.hears(0, Message::Decisions { decisions, prefix: None, between });
        follower.machine.delivered() == SLOT
    };
    assert!(!delivers(&[], Vec::new()));
    assert!(!delivers(&[(0, SLOT, first)], Vec::new()), "one may lie");
    assert!(delivers(&[(0, SLOT, first), (1, SLOT, first)], Vec::new()));
    assert!(!delivers(&[(0, SLOT, first), (1, SLOT, history)], Vec::new()));
    let next = SLOT.next();
    let attested = [(0, next, history), (1, next, history)];
    assert!(!delivers(&attested, Vec::new()), "what lies between is not known");
    assert!(delivers(&attested, vec![batch(2).digest()]));
}

/// A liar's words make no room for themselves among those of others.
#[test]
fn whoever_signs_many_prefixes_pushes_nobody_elses_out() {
    let mut follower = Follower::new(configurations());
    let batch = Batch::null();
    let history = Digest::ZERO.chain(SLOT, batch.digest());
    follower.hears(0, prefix_vote(0, SLOT, history));
    for slot in 2..limits::WINDOW {
        follower.hears(2, prefix_vote(2, Slot(slot), Digest([2; 32])));
    }
    follower.hears(1, prefix_vote(1, SLOT, history));
    let (view, accepts) = (View(0), Certificate::default());
    let decisions = vec![Decision { slot: SLOT, view, accepts, batch }];
    follower.hears(2, Message::Decisions { decisions, prefix: None, between: Vec::new() });
    assert_eq!(follower.machine.delivered(), SLOT);
}

/// Where nobody is left who could attest, a state is what remains.
#[test]
fn who_is_shown_no_proof_for_long_asks_for_a_state() {
    let mut follower = Follower::new(configurations());
    let ahead = Message::Status { view: View(0), changing: false, delivered: SLOT };
    let asks = |effect: &Effect| matches!(effect, Effect::FetchState { .. });
    let mut asked_ms = None;
    for _ in 0..60 {
        for from in [0, 1] {
            follower.hears(from, ahead.clone());
        }
        follower.waits();
        follower.machine.on_tick(at(follower.now_ms));
        follower.settle();
        let asked: Vec<u8> = follower.effects.iter().filter_map(fetches).collect();
        if follower.effects.iter().any(asks) {
            asked_ms.get_or_insert(follower.now_ms);
        }
        for from in asked {
            let (view, accepts) = (View(0), Certificate::default());
            let decisions = vec![Decision { slot: SLOT, view, accepts, batch: Batch::null() }];
            follower.hears(from, Message::Decisions { decisions, prefix: None, between: vec![] });
        }
    }
    assert!(asked_ms.is_some_and(|ms| (4_000..8_000).contains(&ms)), "{asked_ms:?}");
    assert!(follower.machine.marks().states_for_proofs > 0);
}

/// As long as all of them are what was decided.
#[test]
fn a_prefix_and_the_digests_up_to_it_prove_what_comes_before() {
    let batch = |slot: u64| Batch::tick(Time(slot));
    let digests = || vec![batch(2).digest(), batch(3).digest()];
    let first = Digest::ZERO.chain(SLOT, batch(1).digest());
    let history = (2..).map(Slot).zip(digests());
    let history = history.fold(first, |chain, (slot, digest)| chain.chain(slot, digest));
    let signed =
        [0, 1].map(|id| (ReplicaId(id), signature_of(StatementKind::Prefix, id, Slot(3), history)));
    let certificate = Certificate::new(signed.into());
    let prefix = PrefixCertificate { slot: Slot(3), history, configuration: 0, certificate };
    let delivers = |between: Vec<Digest>| {
        let mut follower = Follower::new(configurations());
        let (view, accepts) = (View(0), Certificate::default());
        let decisions = vec![Decision { slot: SLOT, view, accepts, batch: batch(1) }];
        let prefix = Some(prefix.clone());
        follower.hears(0, Message::Decisions { decisions, prefix, between });
        assert!(!follower.accuses(0), "another prefix may be what proves it");
        follower.machine.delivered() == SLOT
    };
    assert!(delivers(digests()));
    assert!(!delivers(Vec::new()));
    assert!(!delivers(digests()[..1].to_vec()));
    assert!(!delivers(digests()[1..].to_vec()));
    assert!(!delivers(vec![digests()[1], digests()[0]]));
    assert!(!delivers(vec![digests()[0], Digest([1; 32])]));
    // What comes behind it is of no account.
    assert!(delivers([digests(), vec![Digest([1; 32])]].concat()));
}

/// Behind a batch that its log has lost, the log still shows what was decided, whoever says otherwise meanwhile.
#[test]
fn what_the_log_shows_behind_a_lost_batch_is_shown_once_that_has_come() {
    let (batch, view, writes) = (Batch::null(), View(0), Certificate::default());
    let digest = batch.digest();
    let accepts = |slot| {
        let signed = |id| (ReplicaId(id), signature_of(StatementKind::Accept, id, slot, digest));
        Certificate::new([0, 1, 2].map(signed).into())
    };
    let [lost, voted, fetched] = [1, 2, 3].map(Slot);
    let history =
        [lost, voted, fetched].iter().fold(Digest::ZERO, |h, slot| h.chain(*slot, digest));
    let records = vec![
        Record::Vote { view, slot: voted, batch: batch.clone(), writes },
        Record::Accepts { slot: voted, view, digest, accepts: accepts(voted) },
        Record::Decision { slot: fetched, view, batch: batch.clone(), accepts: accepts(fetched) },
        Record::Delivered { slot: fetched, history },
    ];
    let restart = Restart::from_log(4, Slot(0), Digest::ZERO, records, Slot(0));
    let mut follower = Follower::started(machine(configurations(), restart));
    assert_eq!(follower.machine.delivered(), Slot(0));
    let (later, signature) = (View(4), Signature([9; 64]));
    follower.hears(2, Message::Accept { view: later, slot: voted, digest, signature });
    let decisions = vec![Decision { slot: lost, view, accepts: accepts(lost), batch }];
    follower.hears(0, Message::Decisions { decisions, prefix: None, between: vec![] });
    assert_eq!(follower.machine.delivered(), fetched);
    assert_eq!(follower.shown(voted), [0, 1, 2]);
    assert_eq!(follower.shown(fetched), [0, 1, 2]);
}

/// Of a replica that had been away all of the log may lie behind the lost batch.
#[test]
fn what_the_log_shows_behind_a_lost_batch_is_taken_up_for_a_window() {
    let (batch, view) = (Batch::null(), View(0));
    let fetched = (2..2 * limits::WINDOW).map(|slot| {
        let accepts = Certificate::default();
        Record::Decision { slot: Slot(slot), view, batch: batch.clone(), accepts }
    });
    let restart = Restart::from_log(4, Slot(0), Digest::ZERO, fetched.collect(), Slot(0));
    let follower = Follower::started(machine(configurations(), restart));
    assert_eq!(follower.machine.furthest_slot(), Slot(limits::WINDOW));
}
