//! A replica that was away fetches decisions: how fast it gets them, whoever is slow on purpose,
//! and what it holds meanwhile (A4, A6).

use crate::harness::settings::settings;
use perdura_agreement::{Agreement, Effect, Now, Restart};
use perdura_protocol::configuration::{Configuration, Configurations, Member};
use perdura_protocol::message::Decision;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{
    Batch, Certificate, ClusterId, Digest, Faults, Message, Record, ReplicaId, Scheme, SecretKey,
    Slot, Time, View, limits,
};
use std::collections::BTreeMap;

const CLUSTER: ClusterId = ClusterId([7; 16]);
const DEPTH: u64 = 8;
/// Who was away.
const ME: u8 = 3;

fn key(replica: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::KeyedHash, [replica + 1; 32])
}

fn configurations() -> Configurations {
    let members = (0..4).map(|i| Member { key: key(i).public(), incarnation: 0 }).collect();
    Configurations::new(CLUSTER, Configuration { id: 0, from_slot: Slot(0), members })
}

/// The one that comes next: the same members, another number.
fn successor() -> Configuration {
    Configuration { id: 1, from_slot: Slot(100), ..configurations().latest().clone() }
}

fn machine(now: Now, restart: Restart) -> Agreement {
    machine_knowing(configurations(), now, restart)
}

fn machine_knowing(configurations: Configurations, now: Now, restart: Restart) -> Agreement {
    machine_asking(false, configurations, now, restart)
}

fn machine_asking(
    one_seeder: bool,
    configurations: Configurations,
    now: Now,
    restart: Restart,
) -> Agreement {
    let mut settings = settings(CLUSTER, Faults::new(1, 1).unwrap(), ReplicaId(ME), key);
    settings.parameters.depth = DEPTH;
    settings.parameters.checkpoint_interval = 1 << 20;
    settings.parameters.checkpoint_bytes = 1 << 30;
    settings.one_seeder = one_seeder;
    Agreement::new(settings, configurations, restart, now)
}

fn batch(slot: Slot) -> Batch {
    Batch::tick(Time(1_000_000 + slot.0))
}

fn history(slot: Slot) -> Digest {
    let slots = (1..=slot.0).map(Slot);
    slots.fold(Digest::ZERO, |history, slot| history.chain(slot, batch(slot).digest()))
}

/// The prefix up to a slot, certified by two of the others.
fn prefix(slot: Slot) -> PrefixCertificate {
    let history = history(slot);
    let context = configurations().context_at(slot);
    let message = context.statement(StatementKind::Prefix, View(0), slot, history);
    let signed = (0..2).map(|id| (ReplicaId(id), key(id).sign(&message)));
    let certificate = Certificate::new(signed.collect());
    PrefixCertificate { slot, history, configuration: 0, certificate }
}

/// What the others decided about a slot, with its proof.
fn decision(slot: Slot) -> Decision {
    let batch = batch(slot);
    let context = configurations().context_at(slot);
    let statement = context.statement(StatementKind::Accept, View(0), slot, batch.digest());
    let accepts = (0..3).map(|id| (ReplicaId(id), key(id).sign(&statement))).collect();
    Decision { slot, view: View(0), accepts: Certificate::new(accepts), batch }
}

/// How a replica answers a fetch: after how long, and with how many decisions.
#[derive(Clone, Copy)]
struct Seeder {
    after_ms: u64,
    most: u64,
}

/// One that does its best.
const CORRECT: Seeder = Seeder { after_ms: 3, most: DEPTH };

/// The laggard, and replicas that have all `decided`.
struct Away {
    machine: Agreement,
    now_ms: u64,
    seeders: [Seeder; 3],
    decided: Slot,
    answers: BTreeMap<(u64, u64), (u8, Slot, Slot)>,
    asked: u64,
    /// How many questions each got.
    of: [u64; 3],
    /// Up to where each has cut its log, and how many questions they got about what comes after all these.
    cut: [Slot; 3],
    beside: u64,
    most_slots: usize,
    /// Bytes that waited for their turn.
    most_held: usize,
    log: Vec<Record>,
    /// Who sends what was not decided, and how often it was accused.
    liar: Option<u8>,
    accused: u64,
}

impl Away {
    fn new(seeders: [Seeder; 3], decided: Slot) -> Away {
        Away::asking(false, seeders, decided)
    }

    fn asking(one_seeder: bool, seeders: [Seeder; 3], decided: Slot) -> Away {
        let now_ms = 1_000;
        let blank = Restart::blank();
        let mut away = Away {
            machine: machine_asking(one_seeder, configurations(), at(now_ms), blank),
            now_ms,
            seeders,
            decided,
            answers: BTreeMap::new(),
            asked: 0,
            of: [0; 3],
            cut: [Slot(0); 3],
            beside: 0,
            most_slots: 0,
            most_held: 0,
            log: Vec::new(),
            liar: None,
            accused: 0,
        };
        for id in 0..3 {
            away.machine.on_link(at(now_ms), ReplicaId(id), true);
        }
        away.drain();
        away
    }

    /// One that may have no state, and delivers nothing before it has.
    fn beside_state(awaiting: bool, seeders: [Seeder; 3], decided: Slot) -> Away {
        let mut away = Away::new(seeders, decided);
        if awaiting {
            away.machine = machine(at(away.now_ms), Restart::blank().awaiting_state());
            (0..3).for_each(|id| away.machine.on_link(at(away.now_ms), ReplicaId(id), true));
            away.drain();
        }
        away
    }

    fn drain(&mut self) {
        let now = at(self.now_ms);
        let mut appended = 0;
        while let Some(effect) = self.machine.next_effect() {
            match effect {
                Effect::Send { to, message: Message::Fetch { from, to: last } } => {
                    self.asked += 1;
                    self.of[to.index()] += 1;
                    self.beside += u64::from(self.cut.iter().all(|cut| from > *cut));
                    let due = self.now_ms + self.seeders[to.index()].after_ms;
                    self.answers.insert((due, self.asked), (to.0, from, last));
                }
                Effect::Persist(record) => {
                    appended += 1;
                    self.log.push(record);
                }
                Effect::Note(record) => self.log.push(record),
                Effect::Deliver { slot, .. } => self.machine.on_executed(now, slot, None, false),
                Effect::Misbehaved { replica, what } => {
                    assert!(Some(replica.0) == self.liar, "{replica} accused of {what:?}");
                    self.accused += 1;
                }
                _ => {}
            }
            let held = self.machine.held().early_bytes;
            self.most_held = self.most_held.max(held);
            self.most_slots = self.most_slots.max(self.machine.held().slots);
        }
        if appended > 0 {
            self.machine.on_persisted(now, u64::MAX);
        }
    }

    fn answer(&mut self, from: u8, first: Slot, asked: Slot) {
        let checkpoint = self.cut[usize::from(from)];
        if first <= checkpoint {
            let message = Message::TooOld { checkpoint };
            self.machine.on_message(at(self.now_ms), ReplicaId(from), message);
            return;
        }
        let decided = if self.liar == Some(from) { asked } else { self.decided };
        let last = decided.0.min(asked.0).min(first.0 + self.seeders[usize::from(from)].most - 1);
        let mut decisions: Vec<Decision> =
            (first.0..=last).map(|slot| decision(Slot(slot))).collect();
        if self.liar == Some(from) {
            decisions.iter_mut().for_each(|decision| decision.batch = batch(Slot(0)));
        }
        let message = Message::Decisions { decisions, prefix: None, between: vec![] };
        self.machine.on_message(at(self.now_ms), ReplicaId(from), message);
    }

    fn install(&mut self, slot: Slot) {
        let now = at(self.now_ms);
        let members = [configurations().latest().clone()];
        self.machine.on_installed(now, slot, history(slot), &members);
        self.rounds();
    }

    /// Rounds of input without any, as long as there is something to be done at once.
    fn rounds(&mut self) {
        self.machine.begin_round(at(self.now_ms));
        self.drain();
        while self.machine.has_early() {
            let before = self.machine.delivered();
            self.machine.begin_round(at(self.now_ms));
            self.drain();
            assert!(self.machine.delivered() <= before.plus(4 * DEPTH), "too much in a round");
        }
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_ms += 1;
            let now = at(self.now_ms);
            if self.now_ms.is_multiple_of(100) {
                for id in 0..3 {
                    let delivered =
                        if self.liar == Some(id) { Slot(1 << 40) } else { self.decided };
                    let status = Message::Status { view: View(0), changing: false, delivered };
                    self.machine.on_message(now, ReplicaId(id), status);
                }
            }
            if self.now_ms.is_multiple_of(20) {
                self.machine.on_tick(now);
            }
            self.rounds();
            while let Some(entry) = self.answers.first_entry() {
                if entry.key().0 > self.now_ms {
                    break;
                }
                let (from, first, last) = entry.remove();
                self.answer(from, first, last);
                self.drain();
            }
        }
    }
}

fn at(monotonic_ms: u64) -> Now {
    Now { monotonic_ms, wall: Time(1_000_000 + monotonic_ms) }
}

#[test]
fn a_seeder_that_is_slow_on_purpose_costs_its_share_of_time_and_no_more() {
    let share_of_all = {
        let mut away = Away::new([CORRECT; 3], Slot(1 << 40));
        away.run(10_000);
        away.machine.delivered().0
    };
    // Just before the question would go to another one; one slot or a full answer.
    for liar in [
        Seeder { after_ms: 490, most: 1 },
        Seeder { after_ms: 490, most: DEPTH },
        Seeder { after_ms: 1, most: 1 },
        // It never answers.
        Seeder { after_ms: 1 << 40, most: 1 },
    ] {
        let mut away = Away::new([liar, CORRECT, CORRECT], Slot(1 << 40));
        away.run(10_000);
        let delivered = away.machine.delivered().0;
        let (after_ms, most) = (liar.after_ms, liar.most);
        assert!(
            delivered >= share_of_all / 2,
            "{most} slots after {after_ms} ms: {delivered}, and {share_of_all} without"
        );
    }
}

/// The baseline: one gives all, and not the leader, who is asked only when all others failed.
#[test]
fn from_one_seeder_all_comes_at_its_pace_and_from_the_next_when_that_fails() {
    let slow = Seeder { after_ms: 400, most: DEPTH };
    let silent = Seeder { after_ms: 1 << 40, most: 1 };
    let mut away = Away::asking(true, [CORRECT, slow, CORRECT], Slot(1 << 40));
    away.run(10_000);
    assert!(away.of[1] > 20 && (away.of[0], away.of[2]) == (0, 0), "{:?}", away.of);
    away.machine.set_seeder(ReplicaId(2));
    away.run(10_000);
    assert!(away.of[1] < 30 && away.of[2] > 1_000 && away.of[0] == 0, "{:?}", away.of);
    for (seeders, from) in [([CORRECT, silent, CORRECT], 2), ([CORRECT, silent, silent], 0)] {
        let mut away = Away::asking(true, seeders, Slot(1 << 40));
        away.run(10_000);
        assert!(away.of[from] > 1_000, "{:?}", away.of);
        assert!(away.of.iter().enumerate().all(|(id, asked)| id == from || *asked <= 1));
    }
}

/// The way to and fro of one is the time in which others send.
#[test]
fn several_seeders_send_at_the_same_time() {
    let far = Seeder { after_ms: 120, most: DEPTH };
    let delivered = |one_seeder| {
        let mut away = Away::asking(one_seeder, [far; 3], Slot(1 << 40));
        away.run(12_000);
        away.machine.delivered().0
    };
    let (of_one, of_all) = (delivered(true), delivered(false));
    assert!(of_one > 12_000 / 120 * DEPTH * 9 / 10, "{of_one}");
    assert!(of_all > of_one * 5 / 2, "{of_all} of all, {of_one} of one");
    // Answers that hold less than was asked for leave gaps, which are filled in turn.
    let short = Seeder { after_ms: 120, most: 3 };
    let mut away = Away::new([short; 3], Slot(1 << 40));
    away.run(12_000);
    let delivered = away.machine.delivered().0;
    assert!(delivered > of_one * 3 / DEPTH * 3 / 2, "{delivered}");
    assert!(away.most_held > 0);
}

/// What comes early is judged when its turn has come, and costs its sender alone.
#[test]
fn what_is_wrong_of_what_came_early_is_fetched_elsewhere() {
    let far = Seeder { after_ms: 120, most: DEPTH };
    let mut away = Away::new([far; 3], Slot(1 << 40));
    away.liar = Some(2);
    away.run(12_000);
    let delivered = away.machine.delivered().0;
    assert!(delivered > 12_000 / 120 * DEPTH * 9 / 10, "{delivered}");
    assert!(away.accused > 0 && away.of[2] < away.of[0].min(away.of[1]), "{:?}", away.of);
}

/// While a state is on its way, what comes after it is fetched from all who have it, and waits.
#[test]
fn what_follows_a_state_comes_beside_it() {
    for awaiting in [false, true] {
        let mut away = Away::beside_state(awaiting, [CORRECT; 3], Slot(600));
        away.cut = [Slot(200); 3];
        away.machine.expect_state(at(away.now_ms), Some(Slot(200)));
        away.run(3_000);
        assert_eq!((away.beside, away.machine.delivered()), (400 / DEPTH, Slot(0)), "each once");
        assert!(away.of.iter().all(|asked| *asked >= 400 / DEPTH / 4), "{:?}", away.of);
        assert_eq!(away.asked - away.beside, if awaiting { 0 } else { 3 });
        away.install(Slot(200));
        assert_eq!(away.machine.delivered(), Slot(600), "nothing was left to be asked for");
        let marks = away.machine.marks();
        assert_eq!(marks.decisions_beside_state, 400 / DEPTH);
        assert_eq!((away.accused, away.machine.held().early_bytes), (0, 0));
    }
}

/// One that says it is far ahead and answers quickly, little and wrong delays by little: what else it gave
/// is not waited for, and what others gave is here.
#[test]
fn a_liar_beside_a_state_costs_a_question() {
    for (awaiting, most) in [(false, 1), (false, DEPTH), (true, 1), (true, DEPTH)] {
        let quick = Seeder { after_ms: 1, most };
        let mut away = Away::beside_state(awaiting, [CORRECT, quick, CORRECT], Slot(600));
        away.liar = Some(1);
        away.cut = [Slot(200); 3];
        away.machine.expect_state(at(away.now_ms), Some(Slot(200)));
        away.run(3_000);
        assert!(away.machine.held().early_bytes > 0 && away.accused == 0);
        away.install(Slot(200));
        let begun = away.now_ms;
        while away.machine.delivered() < Slot(600) {
            away.run(1);
            // It may be asked for the last of it, and what it says is not looked at any more.
            assert!(away.now_ms < begun + 1_000, "{:?}", away.machine.delivered());
        }
        assert!((1..=20).contains(&away.accused), "{}", away.accused);
    }
}

/// The log may overtake a state that is on its way: whoever has it is asked for it.
#[test]
fn the_log_is_not_put_off_for_a_state() {
    let mut away = Away::new([CORRECT; 3], Slot(600));
    away.cut = [Slot(500), Slot(0), Slot(500)];
    away.machine.expect_state(at(away.now_ms), Some(Slot(500)));
    // It is away for a while.
    away.seeders[1] = Seeder { after_ms: 1 << 40, most: 1 };
    away.run(2_000);
    assert!(away.machine.delivered() == Slot(0) && away.machine.held().early_bytes > 0);
    away.seeders[1] = CORRECT;
    let asked = away.beside;
    away.run(2_000);
    assert_eq!(away.machine.delivered(), Slot(600));
    assert!(away.beside <= asked + 2, "{asked} {}", away.beside);
}

/// A state that comes no more is in nobody's way, and leaves nothing behind.
#[test]
fn what_follows_a_state_that_does_not_come_is_let_go() {
    let far = Seeder { after_ms: 120, most: DEPTH };
    let mut away = Away::new([far; 3], Slot(2_000));
    away.cut = [Slot(1_500); 3];
    away.machine.expect_state(at(away.now_ms), Some(Slot(1_500)));
    away.run(1_000);
    assert!(away.machine.delivered() == Slot(0) && away.machine.held().early_bytes > 0);
    away.machine.expect_state(at(away.now_ms), None);
    away.cut = [Slot(0); 3];
    away.run(2_000);
    // From all at once.
    assert!(
        away.machine.delivered() > Slot(2_000 / 120 * DEPTH * 2),
        "{:?}",
        away.machine.delivered()
    );
    away.machine.forget_after_state();
    assert!(away.machine.held().early_bytes < 3 * DEPTH as usize * 200);
}

/// What was on a link that broke is asked of another at once.
#[test]
fn an_answer_that_was_lost_with_its_link_is_asked_for_elsewhere() {
    let mut away = Away::new([CORRECT; 3], Slot(1 << 40));
    away.run(1_000);
    away.seeders[1] = Seeder { after_ms: 1 << 40, most: 1 };
    let before = away.of[1];
    while away.of[1] == before {
        away.run(1);
    }
    let now = at(away.now_ms);
    away.machine.on_link(now, ReplicaId(1), false);
    let delivered = away.machine.delivered();
    away.run(100);
    // Longer than that a question waits that is not answered.
    assert!(away.machine.delivered().0 > delivered.0 + 10 * DEPTH);
}

#[test]
fn what_was_fetched_is_in_the_log_and_not_held_until_a_prefix_is_certified() {
    // More than the window; no prefix comes with it but at the end.
    let mut away = Away::new([CORRECT; 3], Slot(3 * limits::WINDOW));
    away.run(10_000);
    assert_eq!(away.machine.delivered(), Slot(3 * limits::WINDOW));
    let bound = 2 * DEPTH as usize + 1;
    assert!(away.most_slots <= bound, "{} slots held, the bound is {bound}", away.most_slots);
    // Votes about what it holds no more do not bring it back.
    for slot in (1..=away.decided.0).map(Slot) {
        let (view, digest) = (View(0), batch(slot).digest());
        let context = configurations().context_at(slot);
        let signature = key(0).sign(&context.statement(StatementKind::Accept, view, slot, digest));
        let accept = Message::Accept { view, slot, digest, signature };
        away.machine.on_message(at(away.now_ms), ReplicaId(0), accept);
        let batch = batch(slot);
        let (decided, history) = (Slot(0), Digest::ZERO);
        let propose = Message::Propose { view, slot, batch, decided, history };
        away.machine.on_message(at(away.now_ms), ReplicaId(0), propose);
        away.drain();
    }
    assert!(away.most_slots <= bound, "{} slots held, the bound is {bound}", away.most_slots);
    // It takes part in what comes next, as soon as a prefix says from where on.
    let slot = away.decided.next();
    assert!(away.machine.lacks_prefix());
    away.machine.on_prefix_certificate(at(away.now_ms), prefix(away.decided));
    away.drain();
    let batch = Batch::tick(Time(1_000_000 + away.now_ms));
    let (decided, history) = (Slot(0), Digest::ZERO);
    let propose = Message::Propose { view: View(0), slot, batch, decided, history };
    away.machine.on_message(at(away.now_ms), ReplicaId(0), propose);
    let written = std::iter::from_fn(|| away.machine.next_effect()).any(
        |effect| matches!(effect, Effect::Broadcast(Message::Write { slot: s, .. }) if s == slot),
    );
    assert!(written, "no vote about the slot after what was fetched");
}

/// Behind the one that it lost it may be the only one that has the batches.
#[test]
fn once_a_lost_batch_has_come_the_log_proves_what_follows_it() {
    let mut history = Digest::ZERO;
    let records = (1..=4).map(Slot).flat_map(|slot| {
        history = history.chain(slot, batch(slot).digest());
        let (view, batch, writes) = (View(0), batch(slot), Certificate::default());
        let vote = (slot != Slot(2)).then_some(Record::Vote { view, slot, batch, writes });
        // Of what it voted for in slot 4 it does not know that it was decided.
        let delivered = (slot != Slot(4)).then_some(Record::Delivered { slot, history });
        vote.into_iter().chain(delivered)
    });
    let restart = Restart::from_log(4, Slot(0), Digest::ZERO, records.collect(), Slot(0));
    let mut machine = machine(at(1_000), restart);
    assert_eq!(machine.delivered(), Slot(1));
    let message =
        Message::Decisions { decisions: vec![decision(Slot(2))], prefix: None, between: vec![] };
    machine.on_message(at(1_010), ReplicaId(0), message);
    assert_eq!(machine.delivered(), Slot(3));
}

/// All others may have lost their disks meanwhile.
#[test]
fn the_log_after_a_transferred_state_proves_what_follows_it_also_after_a_restart() {
    let mut away = Away::new([CORRECT; 3], Slot(60));
    let (state, checkpoint) = (Slot(40), Slot(60));
    away.machine.on_installed(at(away.now_ms), state, history(state), &[]);
    away.run(1_000);
    assert_eq!(away.machine.delivered(), checkpoint);
    let log = std::mem::take(&mut away.log);
    let mut restart = Restart::from_log(4, checkpoint, history(checkpoint), log, Slot(0));
    let served: Vec<u64> = restart.take_older().into_iter().map(|(slot, ..)| slot.0).collect();
    assert_eq!(served, (state.0 + 1..=checkpoint.0).collect::<Vec<u64>>());
}

/// It may be that no prefix is ever certified that reaches the state: what was said of the slots up to it is of no use any
/// more, and beside a window above the state it would be too much (found by a simulated seed).
#[test]
fn what_was_said_of_slots_before_a_transferred_state_is_forgotten() {
    let mut away = Away::new([CORRECT; 3], Slot(0));
    let window = perdura_protocol::limits::WINDOW;
    let hear = |slots: std::ops::RangeInclusive<u64>, away: &mut Away| {
        for slot in slots.map(Slot) {
            let (view, digest) = (View(0), batch(slot).digest());
            let message = Message::Accept {
                view,
                slot,
                digest,
                signature: perdura_protocol::Signature::NONE,
            };
            away.machine.on_message(at(away.now_ms), ReplicaId(1), message);
        }
        away.machine.held().slots as u64
    };
    assert_eq!(hear(1..=window, &mut away), window);
    let state = Slot(window / 2);
    away.machine.on_installed(at(away.now_ms), state, history(state), &[]);
    assert_eq!(away.machine.prefix().slot, Slot(0));
    let held = hear(1..=state.0 + window, &mut away);
    assert!((window..=window + DEPTH).contains(&held), "{held}");
}

/// Its state was lost, and its file names the newest configuration alone: until it has a state it
/// cannot judge what the others sign about slots before that configuration, afterwards it can.
#[test]
fn who_knows_the_newest_configuration_only_accuses_nobody_over_older_slots() {
    let newest = Configurations::new(CLUSTER, successor());
    let mut machine = machine_knowing(newest, at(1_000), Restart::blank().awaiting_state());
    let attest = |machine: &mut Agreement, slot: Slot| {
        for (id, signature) in prefix(slot).certificate.signatures() {
            let message = Message::Prefix { slot, history: history(slot), signature: *signature };
            machine.on_message(at(1_010), *id, message);
        }
        let accused = std::iter::from_fn(|| machine.next_effect())
            .find(|effect| matches!(effect, Effect::Misbehaved { .. }));
        assert!(accused.is_none(), "{accused:?}");
    };
    attest(&mut machine, Slot(8));
    assert_eq!(machine.prefix().slot, Slot(0));
    // Nor what they decided there.
    let message =
        Message::Decisions { decisions: vec![decision(Slot(1))], prefix: None, between: vec![] };
    machine.on_message(at(1_010), ReplicaId(0), message);
    let accused = std::iter::from_fn(|| machine.next_effect())
        .find(|effect| matches!(effect, Effect::Misbehaved { .. }));
    assert!(accused.is_none() && machine.delivered() == Slot(0), "{accused:?}");
    let state = Slot(16);
    machine.on_installed(at(1_010), state, history(state), configurations().known());
    attest(&mut machine, state.plus(DEPTH));
    attest(&mut machine, state);
    assert_eq!(machine.prefix().slot, state);
    let known: Vec<u64> = machine.configurations().known().iter().map(|known| known.id).collect();
    assert_eq!(known, [0, 1]);
}

/// Nobody could verify what it signed with the newest configuration, or as the newest incarnation, about slots
/// before that one.
#[test]
fn who_is_known_by_the_newest_configuration_only_signs_no_prefix_of_older_slots() {
    let signs = |known: Configurations| {
        let mut history = Digest::ZERO;
        let records = (1..=3).map(Slot).flat_map(|slot| {
            history = history.chain(slot, batch(slot).digest());
            let (view, batch, writes) = (View(0), batch(slot), Certificate::default());
            [Record::Vote { view, slot, batch, writes }, Record::Delivered { slot, history }]
        });
        let restart = Restart::from_log(4, Slot(0), Digest::ZERO, records.collect(), Slot(0));
        let mut machine = machine_knowing(known, at(1_000), restart);
        machine.on_persisted(at(1_010), u64::MAX);
        machine.attest_prefix(at(1_010));
        let prefix = std::iter::from_fn(|| machine.next_effect()).find_map(|effect| match effect {
            Effect::Broadcast(Message::Prefix { slot, .. }) => Some(slot),
            _ => None,
        });
        assert_eq!(machine.delivered(), Slot(3));
        prefix
    };
    assert_eq!(signs(configurations()), Some(Slot(3)));
    assert_eq!(signs(Configurations::new(CLUSTER, successor())), None);
    // A new incarnation of this replica: the member there was its predecessor.
    let mut before = configurations().latest().clone();
    before.members[usize::from(ME)].key = key(ME + 1).public();
    let mut both = Configurations::new(CLUSTER, before);
    both.add(successor());
    assert_eq!(signs(both), None);
}

/// They lack the prefix that would prove them, as after a restart of who sent them; wrong ones do not.
#[test]
fn who_sends_decisions_without_their_proof_is_not_blamed() {
    let blamed = |accepts: Certificate| {
        let mut machine = machine(at(1_000), Restart::blank());
        let decisions = vec![Decision { accepts, ..decision(Slot(1)) }];
        machine.on_message(
            at(1_010),
            ReplicaId(0),
            Message::Decisions { decisions, prefix: None, between: vec![] },
        );
        assert_eq!(machine.delivered(), Slot(0));
        let mut effects = std::iter::from_fn(|| machine.next_effect());
        effects.any(|effect| matches!(effect, Effect::Misbehaved { .. }))
    };
    assert!(!blamed(Certificate::default()));
    assert!(blamed(decision(Slot(2)).accepts));
}

/// The prefix proves the batch. The Accepts beside it may be a liar's, and who passed them on would be
/// accused by the next who lacks the prefix.
#[test]
fn accepts_that_a_prefix_made_needless_are_not_passed_on() {
    let mut machine = machine(at(1_000), Restart::blank());
    let accepts = decision(Slot(2)).accepts;
    let decisions = vec![Decision { accepts, ..decision(Slot(1)) }];
    let message = Message::Decisions { decisions, prefix: Some(prefix(Slot(1))), between: vec![] };
    machine.on_message(at(1_010), ReplicaId(0), message);
    assert_eq!(machine.delivered(), Slot(1));
    machine.on_persisted(at(1_010), u64::MAX);
    machine.on_message(at(1_020), ReplicaId(1), Message::Fetch { from: Slot(1), to: Slot(1) });
    let mut passed_on = Vec::new();
    while let Some(effect) = machine.next_effect() {
        match effect {
            Effect::Persist(Record::Decision { accepts, .. })
            | Effect::Note(Record::Decision { accepts, .. }) => passed_on.push(accepts),
            Effect::Send { message: Message::Decisions { decisions, .. }, .. } => {
                passed_on.extend(decisions.into_iter().map(|decision| decision.accepts));
            }
            _ => {}
        }
    }
    assert!(!passed_on.is_empty() && passed_on.iter().all(Certificate::is_empty), "{passed_on:?}");
}

/// It may have voted in what it lost, so it votes for nothing; but what it delivered it can attest, and if
/// each replica lost something else, nobody else is there to do it.
#[test]
fn who_lost_some_votes_signs_the_prefix_that_it_delivered() {
    let mut history = Digest::ZERO;
    let records = (1..=3).map(Slot).flat_map(|slot| {
        history = history.chain(slot, batch(slot).digest());
        let (view, batch, writes) = (View(0), batch(slot), Certificate::default());
        let vote = (slot != Slot(2)).then_some(Record::Vote { view, slot, batch, writes });
        vote.into_iter().chain([Record::Delivered { slot, history }])
    });
    let restart = Restart::from_log(4, Slot(0), Digest::ZERO, records.collect(), Slot(3));
    let mut machine = machine(at(1_000), restart);
    machine.on_persisted(at(1_010), u64::MAX);
    assert!(!machine.voting() && machine.delivered() == Slot(1));
    machine.attest_prefix(at(1_010));
    let mut effects = std::iter::from_fn(|| machine.next_effect());
    let signed =
        |effect| matches!(effect, Effect::Broadcast(Message::Prefix { slot: Slot(1), .. }));
    assert!(effects.any(signed));
}

/// Who restarted in a view asks for it no more, since it may have voted there; its Status tells that it
/// waits, and has to count, or those who did ask wait for ever.
#[test]
fn a_view_change_goes_on_when_who_asked_for_it_has_restarted() {
    let mut machine = machine(at(1_000), Restart::blank());
    for id in (0..3).map(ReplicaId) {
        machine.on_link(at(1_000), id, true);
    }
    for id in (0..2).map(ReplicaId) {
        machine.on_message(at(1_010), id, Message::Suspect { view: View(1) });
    }
    let mut wanted = Vec::new();
    for now_ms in (1_020..31_000).step_by(20) {
        let now = at(now_ms);
        for id in (0..2).map(ReplicaId) {
            let status = Message::Status { view: View(1), changing: true, delivered: Slot(0) };
            machine.on_message(now, id, status);
        }
        machine.on_tick(now);
        machine.on_persisted(now, u64::MAX);
        while let Some(effect) = machine.next_effect() {
            if let Effect::Broadcast(Message::Suspect { view }) = effect {
                wanted.push(view);
            }
        }
    }
    assert_eq!(machine.view(), View(1));
    assert_eq!(wanted.first(), Some(&View(2)), "{wanted:?}");
}
