//! Processes that are killed, stopped and started.

use super::{Injected, Scene};
use anyhow::Result;
use perdura_adversary::Random;

/// kill -9, and a start after a while.
pub(super) fn kill(scene: &Scene, victim: usize, random: &mut Random) -> Result<Injected> {
    scene.host(victim).kill();
    let time = scene.hold(200, 5_000, random);
    scene.cluster.start(victim)?;
    Injected::fired(format!("down for {:.1} s", time.as_secs_f64()))
}

/// SIGTERM, and a start after a while.
pub(super) fn restart(scene: &Scene, victim: usize, random: &mut Random) -> Result<Injected> {
    scene.host(victim).stop(&scene.course)?;
    let time = scene.hold(100, 3_000, random);
    scene.cluster.start(victim)?;
    Injected::fired(format!("down for {:.1} s", time.as_secs_f64()))
}

/// SIGSTOP, and SIGCONT after a while.
pub(super) fn pause(scene: &Scene, victim: usize, random: &mut Random) -> Result<Injected> {
    scene.host(victim).pause()?;
    let time = scene.hold(100, 60_000, random);
    scene.host(victim).resume()?;
    Injected::fired(format!("stopped for {:.1} s", time.as_secs_f64()))
}
