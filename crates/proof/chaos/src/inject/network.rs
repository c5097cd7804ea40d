//! Faults of the ways to and from one replica. The others and the clients are well among
//! themselves, so that this replica alone counts as failed.

use super::{Injected, Scene, Victim};
use crate::faults::FaultKind;
use crate::network::{Party, Rules, Side};
use anyhow::{Result, bail};
use perdura_adversary::Random;
use std::time::{Duration, Instant};

fn everybody(scene: &Scene, victim: usize) -> Vec<Party> {
    let all = scene.network.parties();
    all.into_iter().filter(|one| *one != Party::Replica(victim)).collect()
}

/// Whom the replica is disrupted towards: all others, some, or replicas only.
fn others(scene: &Scene, victim: usize, random: &mut Random) -> (Vec<Party>, &'static str) {
    let all = everybody(scene, victim);
    let replicas = || all.iter().copied().filter(|one| matches!(one, Party::Replica(_)));
    match random.below(4) {
        0 => (replicas().collect(), "replicas"),
        1 => {
            let replicas: Vec<Party> = replicas().collect();
            (vec![*random.pick(&replicas)], "one replica")
        }
        _ => (all, "everybody"),
    }
}

/// Which ways: towards the victim, from it.
fn ways(kind: FaultKind, random: &mut Random) -> (bool, bool, &'static str) {
    match random.below(2) {
        _ if kind != FaultKind::OneWayCut => (true, true, "between"),
        0 => (true, false, "towards it from"),
        _ => (false, true, "from it towards"),
    }
}

fn drawn(kind: FaultKind, random: &mut Random) -> (Rules, String) {
    let rules = Rules::default();
    match kind {
        FaultKind::Delay => {
            let delay = random.between(2, 400);
            let (delay, jitter) = (Duration::from_millis(delay), Duration::from_millis(delay / 2));
            (Rules { delay, jitter, ..rules }, format!("{delay:?} later"))
        }
        FaultKind::Loss => {
            let loss_per_mille = random.between(10, 300) as u32;
            (Rules { loss_per_mille, ..rules }, format!("{}% lost", loss_per_mille / 10))
        }
        FaultKind::Throttle => {
            let bytes_per_second = random.between(2, 64) * 1024;
            let text = format!("{} KiB/s", bytes_per_second / 1024);
            (Rules { bytes_per_second, ..rules }, text)
        }
        FaultKind::Corruption => {
            let corrupt_per_mille = random.between(5, 200) as u32;
            let text = format!("a byte changed in {}% of pieces", corrupt_per_mille as f64 / 10.0);
            (Rules { corrupt_per_mille, ..rules }, text)
        }
        _ => (Rules { cut: true, ..rules }, "cut".to_owned()),
    }
}

/// How much longer a leader stays cut off for another one to lead, on a busy machine too. It takes a second or two.
const LED_ANEW: Duration = Duration::from_secs(30);

/// Rules for a while.
pub(super) fn rules(
    scene: &Scene,
    kind: FaultKind,
    whom: Victim,
    random: &mut Random,
) -> Result<Injected> {
    let victim = whom.host;
    let (others, who) = match kind {
        FaultKind::IsolateLeader => (everybody(scene, victim), "everybody"),
        _ => others(scene, victim, random),
    };
    let (towards, from, which) = ways(kind, random);
    let (rules, what) = drawn(kind, random);
    let me = Party::Replica(victim);
    let network = &scene.network;
    let mut directions = Vec::new();
    for other in &others {
        if towards {
            directions.extend(network.directions(*other, me));
        }
        if from {
            directions.extend(network.directions(me, *other));
        }
    }
    let affected = || directions.iter().map(|way| way.affected()).sum::<u64>();
    let before = affected();
    directions.iter().for_each(|way| way.set(rules));
    let since = Instant::now();
    let led = if kind == FaultKind::IsolateLeader {
        let led = view_led(scene, whom, since);
        scene.hold(3_000, 10_000, random);
        led
    } else {
        scene.hold(500, 10_000, random);
        None
    };
    let replaced = led.is_none_or(|view| led_anew(scene, whom, view, since));
    let seconds = since.elapsed().as_secs_f64();
    directions.iter().for_each(|way| way.set(Rules::default()));
    // What a cut held back counts when it goes on.
    std::thread::sleep(Duration::from_millis(50));
    if !replaced && scene.course.ends().is_none() {
        bail!("nobody else leads {seconds:.1} s after the leader was cut off");
    }
    let count = affected() - before;
    let detail = format!("{what}, {which} {who}, {seconds:.1} s, {count} pieces");
    Ok(Injected::new(detail, count > 0 && (led.is_some() || kind != FaultKind::IsolateLeader)))
}

/// The view that the victim leads, as it says when asked after `since`. None if it was replaced before it was struck.
fn view_led(scene: &Scene, whom: Victim, since: Instant) -> Option<u64> {
    let report =
        scene.course.poll(LED_ANEW, || scene.watch.report(whom.host, whom.partition, since));
    report.filter(|report| report.leader).map(|report| report.view)
}

/// Waits for another one to lead a later view than this.
fn led_anew(scene: &Scene, whom: Victim, view: u64, since: Instant) -> bool {
    let leads = |id: usize| {
        let report = scene.watch.report(id, whom.partition, since).filter(|_| id != whom.host);
        report.is_some_and(|report| report.leader && report.view > view)
    };
    let others = 0..scene.cluster.hosts.len();
    let ended = || scene.course.ends().is_some();
    scene.course.poll(LED_ANEW, || (others.clone().any(leads) || ended()).then_some(())).is_some()
}

/// Cut and healed again and again.
pub(super) fn flapping(scene: &Scene, victim: usize, random: &mut Random) -> Result<Injected> {
    let (others, whom) = others(scene, victim, random);
    let me = Party::Replica(victim);
    let both = others.iter().flat_map(|other| {
        let network = &scene.network;
        [network.directions(me, *other), network.directions(*other, me)].concat()
    });
    let both: Vec<_> = both.collect();
    let affected = || both.iter().map(|way| way.affected()).sum::<u64>();
    let before = affected();
    let times = random.between(3, if scene.short { 8 } else { 20 });
    for _ in 0..times {
        both.iter().for_each(|way| way.set(Rules { cut: true, ..Rules::default() }));
        scene.hold(20, 1_000, random);
        both.iter().for_each(|way| way.set(Rules::default()));
        scene.hold(20, 1_000, random);
    }
    let detail = format!("{times} times, from {whom}");
    Ok(Injected::new(detail, affected() > before))
}

/// Resets, again and again.
pub(super) fn reset(scene: &Scene, victim: usize, random: &mut Random) -> Result<Injected> {
    let (others, whom) = others(scene, victim, random);
    let me = Party::Replica(victim);
    let struck = || others.iter().map(|other| scene.network.struck(me, *other)).sum::<u64>();
    let before = struck();
    for _ in 0..random.between(1, 10) {
        others.iter().for_each(|other| scene.network.reset(me, *other));
        scene.hold(20, 1_500, random);
    }
    let count = struck() - before;
    Ok(Injected::new(format!("{count} connections with {whom}"), count > 0))
}

/// One end gone, the other not told.
pub(super) fn half_open(scene: &Scene, victim: usize, random: &mut Random) -> Result<Injected> {
    let (others, whom) = others(scene, victim, random);
    let me = Party::Replica(victim);
    let (uninformed, who) = *random.pick(&[
        (Side::Dialler, "who dialled is not told"),
        (Side::Acceptor, "who accepted is not told"),
    ]);
    let struck = || others.iter().map(|other| scene.network.struck(me, *other)).sum::<u64>();
    let before = struck();
    others.iter().for_each(|other| scene.network.half_open(me, *other, uninformed));
    let time = scene.hold(500, 15_000, random);
    others.iter().for_each(|other| scene.network.mend(me, *other));
    let count = struck() - before;
    let detail = format!("{count} connections with {whom}, {who}, {:.1} s", time.as_secs_f64());
    Ok(Injected::new(detail, count > 0))
}
