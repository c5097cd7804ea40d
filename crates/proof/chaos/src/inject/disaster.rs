//! What strikes more than u replicas at once: nothing has to be answered, everything has to be
//! there afterwards.

use super::{Injected, Scene};
use crate::faults::FaultKind;
use crate::network::{Party, Rules};
use anyhow::Result;
use perdura_adversary::Random;

/// All ids in random order.
fn shuffled(count: usize, random: &mut Random) -> Vec<usize> {
    let mut left: Vec<usize> = (0..count).collect();
    let mut order = Vec::with_capacity(count);
    while !left.is_empty() {
        order.push(left.swap_remove(random.below(left.len() as u64) as usize));
    }
    order
}

/// Does it.
pub(super) fn strike(scene: &Scene, kind: FaultKind, random: &mut Random) -> Result<Injected> {
    let n = scene.cluster.hosts.len();
    let order = shuffled(n, random);
    let more_than_u = scene.cluster.faults.u() + 1;
    let some = more_than_u + random.below((n - more_than_u + 1) as u64) as usize;
    Injected::fired(match kind {
        FaultKind::KillAll => kill(scene, &order, random)?,
        FaultKind::KillMajority => kill(scene, &order[..some], random)?,
        FaultKind::PauseAll => pause(scene, &order, random)?,
        _ => cut(scene, &order, random),
    })
}

fn kill(scene: &Scene, victims: &[usize], random: &mut Random) -> Result<String> {
    victims.iter().for_each(|id| scene.host(*id).kill());
    let time = scene.hold(50, 8_000, random);
    let order = shuffled(victims.len(), random);
    for at in order {
        scene.cluster.start(victims[at])?;
        scene.hold(1, 300, random);
    }
    Ok(format!("{} down for {:.1} s and more", victims.len(), time.as_secs_f64()))
}

fn pause(scene: &Scene, victims: &[usize], random: &mut Random) -> Result<String> {
    victims.iter().try_for_each(|id| scene.host(*id).pause())?;
    let time = scene.hold(100, 10_000, random);
    victims.iter().try_for_each(|id| scene.host(*id).resume())?;
    Ok(format!("stopped for {:.1} s", time.as_secs_f64()))
}

/// Parts that are each too small for a quorum.
fn cut(scene: &Scene, order: &[usize], random: &mut Random) -> String {
    let most = scene.cluster.faults.agreement_quorum() - 1;
    let parts: Vec<&[usize]> = order.chunks(most.max(1)).collect();
    let part_of = |id: usize| parts.iter().position(|part| part.contains(&id));
    let between = |rules: Rules| {
        for (one, other) in
            order.iter().flat_map(|one| order.iter().map(move |other| (*one, *other)))
        {
            if part_of(one) != part_of(other) {
                let ways = scene.network.directions(Party::Replica(one), Party::Replica(other));
                ways.iter().for_each(|way| way.set(rules));
            }
        }
    };
    between(Rules { cut: true, ..Rules::default() });
    let time = scene.hold(500, 10_000, random);
    between(Rules::default());
    format!("parts {parts:?} for {:.1} s", time.as_secs_f64())
}
