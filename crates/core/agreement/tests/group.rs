//! Whole groups of agreement machines under loss, delay, reordering, partitions and crashes, from
//! one seed: rule A1 (no two replicas deliver different batches for a slot, no gaps) always, and
//! progress once the faults stop.

use crate::harness::Group;
use perdura_agreement::Effect;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{
    Batch, Certificate, Digest, Message, ReplicaId, Signature, Slot, Time, View, limits,
};

/// Names the seed when a check fails.
struct Seed(u64, u8, u8);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Seed(seed, u, r) = self;
            eprintln!("replay with FIRST_SEED={seed} SEEDS=1 GROUP={u},{r}");
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The first seed, and how many: a few that follow from the commit, or with `PERDURA_ALL=1` many.
fn seeds() -> (u64, u64) {
    let usual = if std::env::var_os("PERDURA_ALL").is_some() { 100 } else { 25 };
    (number("FIRST_SEED", 100 * number("PERDURA_SEED", 0)), number("SEEDS", usual))
}

/// So small that laggards fall several windows behind.
const SMALL_WINDOW: u64 = 64;

fn chaos(seed: u64, u: u8, r: u8) -> (usize, u64) {
    let _seed = Seed(seed, u, r);
    let window = if seed.is_multiple_of(2) { SMALL_WINDOW } else { limits::WINDOW };
    let mut group = Group::with_window(seed, u, r, window);
    group.miser =
        (seed.is_multiple_of(4) && r > 0).then_some((seed / 4) as usize % group.nodes.len());
    group.loss = [0, 10, 100][(seed % 3) as usize];
    for _ in 0..40 {
        for _ in 0..group.random.below(6) {
            group.request();
        }
        let ms = group.random.below(600);
        group.run(ms);
        let i = group.random.below(group.nodes.len() as u64) as usize;
        match group.random.below(8) {
            0 | 1 => group.cut[i] = !group.cut[i],
            2 if group.nodes[i].agreement.is_some() => group.crash(i),
            3 => {
                for i in 0..group.nodes.len() {
                    if group.nodes[i].agreement.is_none() {
                        group.restart(i);
                    }
                }
            }
            4 if group.random.below(4) == 0 => {
                for i in 0..group.nodes.len() {
                    if group.nodes[i].agreement.is_some() {
                        group.crash(i);
                    }
                }
            }
            _ => {}
        }
    }
    group.assert_progress(seed);
    (group.agreed.len(), group.view_changes)
}

#[test]
fn groups_agree_under_loss_partitions_and_crashes() {
    let (first, seeds) = seeds();
    let only = std::env::var("GROUP").ok();
    for (u, r) in [(1, 0), (1, 1), (2, 1), (2, 0)] {
        if only.as_ref().is_some_and(|only| *only != format!("{u},{r}")) {
            continue;
        }
        let (mut slots, mut views) = (0, 0);
        for seed in first..first + seeds {
            let (agreed, changes) = chaos(seed, u, r);
            slots += agreed;
            views += changes;
        }
        assert!(views > 0, "view changes were never reached");
        println!("u {u} r {r}: {seeds} seeds, {slots} slots, {views} views started");
    }
}

#[test]
fn an_undisturbed_group_orders_everything_in_view_0() {
    for (u, r) in [(1, 0), (1, 1), (2, 1), (2, 2)] {
        let mut group = Group::young(1, u, r, limits::WINDOW);
        for _ in 0..200 {
            group.request();
            group.run(5);
        }
        group.run(1_000);
        assert_eq!(group.view_changes, 0);
        let last = *group.agreed.last_key_value().unwrap().0;
        assert!(group.nodes.iter().all(|node| node.delivered == last), "u {u} r {r}");
        let held = group.nodes[0].agreement.as_ref().unwrap().held();
        assert!(held.slots <= 2 * 64, "delivered slots are forgotten: {held:?}");
    }
}

/// A laggard takes more slots than a window holds from a peer that gives it no certified prefix, and
/// takes part in what comes next. Then others stop, and nothing goes on without the laggard's view
/// change, which everybody has to believe (the group accuses nobody).
fn laggard(seed: u64, u: u8, r: u8) {
    let _seed = Seed(seed, u, r);
    let mut group = Group::with_window(seed, u, r, SMALL_WINDOW);
    let n = group.nodes.len() as u64;
    let laggard = group.random.below(n) as usize;
    // Where it asks first.
    group.miser = Some((laggard + 1) % n as usize);
    group.cut[laggard] = true;
    for _ in 0..SMALL_WINDOW + 8 + group.random.below(SMALL_WINDOW) {
        group.request();
        group.run(40);
    }
    group.cut[laggard] = false;
    let there = |group: &Group| group.nodes.iter().map(|node| node.delivered).max();
    while Some(group.nodes[laggard].delivered) < there(&group) {
        group.run(20);
    }
    for _ in 0..1 + group.random.below(6) {
        group.request();
        let ms = group.random.below(60);
        group.run(ms);
    }
    let first = group.random.below(n) as usize;
    let others = (first..first + n as usize).map(|i| i % n as usize).filter(|i| *i != laggard);
    for stopped in others.take(usize::from(u)).collect::<Vec<_>>() {
        group.crash(stopped);
    }
    let before = group.agreed.len();
    group.request();
    group.run(20_000);
    assert!(group.agreed.len() > before, "nothing is decided any more");
}

#[test]
fn laggards_of_more_than_a_window_are_believed_in_the_next_view_change() {
    let (first, seeds) = seeds();
    for seed in first..first + seeds.div_ceil(4) {
        for (u, r) in [(1, 1), (2, 1), (2, 2)] {
            laggard(seed, u, r);
        }
    }
}

/// A leader that was left behind in its view fetches what a later view decided, and then tells its
/// old view's followers so: one of them had accepted another batch in exactly that view, and
/// delivered it. The history hash decides, not the view.
#[test]
fn a_decision_of_a_later_view_is_not_taken_for_one_of_the_leaders_own() {
    let mut group = Group::young(1, 1, 0, limits::WINDOW);
    let accepted = Batch::tick(Time(1_001_000));
    let decided = Batch::null();
    let now = group.clock();
    let follower = group.nodes[1].agreement.as_mut().unwrap();
    let told = |slot: Slot, batch: &Batch| (slot, Digest::ZERO.chain(Slot(1), batch.digest()));
    let propose = Message::Propose {
        view: View(0),
        slot: Slot(1),
        batch: accepted.clone(),
        decided: Slot(0),
        history: Digest::ZERO,
    };
    follower.on_message(now, ReplicaId(0), propose);
    follower.on_persisted(now, 2);
    let mut delivers = |(slot, history): (Slot, Digest)| {
        let message = Message::Decided { view: View(0), slot, history };
        follower.on_message(now, ReplicaId(0), message);
        let effects: Vec<Effect> = std::iter::from_fn(|| follower.next_effect()).collect();
        effects.iter().any(|effect| matches!(effect, Effect::Deliver { .. }))
    };
    assert!(!delivers(told(Slot(1), &decided)));
    assert!(delivers(told(Slot(1), &accepted)));
}

/// What one liar sends out of the blue neither stops a replica nor becomes part of its history.
#[test]
fn junk_from_one_replica_changes_nothing() {
    let mut group = Group::new(3, 1, 1);
    for _ in 0..150 {
        group.request();
        group.run(5);
    }
    group.run(1_000);
    let end = Slot(u64::MAX);
    let junk = Digest::of(b"junk");
    let certificate = Certificate::new(vec![(ReplicaId(3), Signature::NONE)]);
    let delivered = group.nodes[0].delivered;
    let mut messages = vec![
        Message::Status { view: View(0), changing: false, delivered: end },
        Message::Status { view: View(0), changing: false, delivered: end },
        Message::Suspect { view: View(u64::MAX) },
        Message::Fetch { from: end, to: end },
        Message::FetchBatch { slot: end, digest: junk },
        Message::TooOld { checkpoint: end },
        Message::Prefix { slot: end, history: junk, signature: Signature::NONE },
        Message::Decided { view: View(3), slot: end, history: junk },
        Message::LockedBatch { slot: end, batch: Batch::null() },
        Message::Accept { view: View(0), slot: end, digest: junk, signature: Signature::NONE },
    ];
    for slot in [1, 64, 128, delivered.0, delivered.0 + 1, u64::MAX].map(Slot) {
        let certificate = certificate.clone();
        let prefix = PrefixCertificate { slot, history: junk, configuration: 0, certificate };
        messages.push(Message::Decisions {
            decisions: Vec::new(),
            prefix: Some(prefix),
            between: vec![],
        });
        let signature = Signature::NONE;
        messages.push(Message::Prefix { slot, history: junk, signature });
        messages.push(Message::Write { view: View(0), slot, digest: junk, signature });
    }
    let now = group.clock();
    let victim = group.nodes[0].agreement.as_mut().unwrap();
    let before = victim.prefix().clone();
    assert!(before.slot >= Slot(64));
    for message in messages {
        victim.on_message(now, ReplicaId(3), message);
    }
    while let Some(effect) = victim.next_effect() {
        assert!(!matches!(effect, Effect::FetchState { .. } | Effect::Deliver { .. }));
    }
    assert_eq!(*victim.prefix(), before);
    group.assert_progress(3);
}
