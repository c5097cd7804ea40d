//! Who draws the faults. One round after the other: one fault that stands alone, as those that strike more
//! than u replicas do, or faults of up to u replicas at once; then everything has to become well again before the next.

use crate::course::Course;
use crate::faults::FaultKind;
use crate::inject::{Injected, Scene, Victim};
use anyhow::Result;
use perdura_adversary::Random;
use std::time::Duration;

/// After a fault all replicas are well again within this time, on a busy machine too.
pub const RECOVERY: Duration = Duration::from_secs(120);

/// Draws kinds so that each comes once before any comes twice, and then by their weights.
struct Bag {
    kinds: Vec<FaultKind>,
    left: Vec<FaultKind>,
    rounds: u32,
}

impl Bag {
    fn next(&mut self, random: &mut Random) -> FaultKind {
        if self.left.is_empty() {
            let times = |kind: &FaultKind| if self.rounds == 0 { 1 } else { kind.weight() };
            let weighted = self.kinds.iter().flat_map(|kind| vec![*kind; times(kind)]);
            self.left = weighted.collect();
            self.rounds += 1;
        }
        let at = random.below(self.left.len() as u64) as usize;
        self.left.swap_remove(at)
    }
}

/// Strikes with `kinds` until `until`, in microseconds, or the end of the run.
pub fn strike(scene: &Scene, kinds: &[FaultKind], random: &mut Random, until: u64) {
    let course = &scene.course;
    let mut bag = Bag { kinds: kinds.to_vec(), left: Vec::new(), rounds: 0 };
    while course.now_us() < until && course.ends().is_none() {
        let kind = bag.next(random);
        let Some(first) = victim(scene, kind, random) else {
            course.violation(format!("nobody leads for {LED:?}, though all are well"));
            return;
        };
        let mut strikes = vec![(kind, first)];
        while !kind.stands_alone() && strikes.len() < scene.cluster.faults.u() && random.percent(50)
        {
            let more = bag.next(random);
            if more.stands_alone() || more.strikes_leader() {
                bag.left.push(more);
                break;
            }
            let free = (0..scene.cluster.hosts.len())
                .filter(|id| strikes.iter().all(|(_, struck)| struck.host != *id));
            let free: Vec<usize> = free.collect();
            let host = *random.pick(&free);
            strikes.push((more, Victim { host, partition: partition(scene, random) }));
        }
        round(scene, &strikes, random);
        let rest = random.between(300, if scene.short { 1_200 } else { 3_000 });
        course.sleep(Duration::from_millis(rest));
    }
}

/// How long a strike at the leader waits for somebody to say that it leads.
const LED: Duration = Duration::from_secs(30);

/// The leader for what strikes the leader, and now and then for the rest. `None` when nobody leads,
/// though all are well.
fn victim(scene: &Scene, kind: FaultKind, random: &mut Random) -> Option<Victim> {
    let any = random.below(scene.cluster.hosts.len() as u64) as usize;
    let partition = partition(scene, random);
    let host = if kind.strikes_leader() {
        scene.course.poll(LED, || scene.watch.leader(partition))?
    } else {
        let leader = if random.percent(30) { scene.watch.leader(partition) } else { None };
        leader.unwrap_or(any)
    };
    Some(Victim { host, partition })
}

/// One of the partitions. Where there is one, nothing is drawn.
fn partition(scene: &Scene, random: &mut Random) -> usize {
    match scene.cluster.partitions {
        1 => 0,
        several => random.below(several as u64) as usize,
    }
}

fn round(scene: &Scene, strikes: &[(FaultKind, Victim)], random: &mut Random) {
    std::thread::scope(|scope| {
        for (kind, victim) in strikes {
            let mut random = random.fork(&format!("{} {}", kind.name(), victim.host));
            scope.spawn(move || one(scene, *kind, *victim, &mut random));
        }
    });
    random.next();
    let course = &scene.course;
    if course.ends().is_some() {
        return;
    }
    if let Err(missing) = scene.watch.wait_level(course, RECOVERY) {
        let what: Vec<String> = strikes
            .iter()
            .map(|(kind, victim)| format!("{} of {}", kind.name(), victim.host))
            .collect();
        scene.not_well(&format!("not well {RECOVERY:?} after {}", what.join(", ")), &missing);
        return;
    }
    for event in scene.timeline.level() {
        let seconds = |us: u64| us as f64 / 1e6;
        println!(
            "{:8.1} s  {:15} {:9} well again after {:5.1} s  {}{}",
            seconds(event.began),
            event.kind.name(),
            event.whom(),
            seconds(event.end() - event.began),
            event.detail,
            if event.fired { "" } else { "  (no effect)" },
        );
    }
}

fn one(scene: &Scene, kind: FaultKind, victim: Victim, random: &mut Random) {
    let all: Vec<usize> = (0..scene.cluster.hosts.len()).collect();
    let struck = if kind.is_disaster() { &all[..] } else { &[victim.host] };
    let number = scene.timeline.begin(kind, struck);
    let injected: Result<Injected> = scene.strike(kind, victim, random);
    match injected {
        Ok(injected) => scene.timeline.healed(number, injected),
        Err(error) => {
            scene.timeline.healed(number, Injected::new(format!("{error:#}"), false));
            report(&scene.course, kind, victim.host, &error);
        }
    }
}

fn report(course: &Course, kind: FaultKind, victim: usize, error: &anyhow::Error) {
    course.violation(format!("{} of replica {victim}: {error:#}", kind.name()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_comes_once_before_any_comes_twice() {
        let mut random = Random::new(3);
        let mut bag = Bag { kinds: FaultKind::all().to_vec(), left: Vec::new(), rounds: 0 };
        let mut drawn: Vec<FaultKind> =
            FaultKind::all().iter().map(|_| bag.next(&mut random)).collect();
        drawn.sort();
        assert_eq!(drawn, FaultKind::all());
        let total: usize = FaultKind::all().iter().map(|kind| kind.weight()).sum();
        let second: Vec<FaultKind> = (0..total).map(|_| bag.next(&mut random)).collect();
        let kills = second.iter().filter(|kind| **kind == FaultKind::KillLeader).count();
        assert_eq!(kills, FaultKind::KillLeader.weight());
    }
}
