//! A replica that lies for a while, all members of a server at once: a build of the lab speaks in its name, with its keys. Nobody may be
//! told anything wrong, and all are served meanwhile. What it has said is not what it has on disk, so then it is replaced.

use super::disk::replace;
use super::{Injected, Scene};
use anyhow::Result;
use perdura_adversary::{Random, Strategy};

/// What its log says of others, and theirs of it.
pub const MISBEHAVES: &str = "misbehaves:";

pub(super) fn lie(scene: &Scene, victim: usize, random: &mut Random) -> Result<Injected> {
    let host = scene.host(victim);
    // Memory that rots is a fault of its own.
    let lies: Vec<Strategy> =
        Strategy::ALL.into_iter().filter(|one| *one != Strategy::RottenMemory).collect();
    let strategy = random.pick(&lies).name();
    host.stop(&scene.course)?;
    scene.cluster.start_lying(victim, strategy)?;
    let time = scene.hold(2_000, 30_000, random);
    host.kill();
    let members: Vec<usize> = (0..host.partitions).collect();
    replace(scene, victim, &members)?;
    Injected::fired(format!("{strategy} for {:.1} s; replaced", time.as_secs_f64()))
}
