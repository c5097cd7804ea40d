//! Surroundings that are not as they should be: none of it may stop a replica, nor keep it from ending in order.

use super::{Injected, Scene};
use crate::cluster::Output;
use crate::watch::page;
use anyhow::{Context, Result, ensure};
use perdura_adversary::Random;
use std::time::Duration;

/// Files that a replica may have open: what its disk and some links need.
const FILES: u32 = 160;

/// Connections of strangers in a second; beside the group, its clients and proxies on one machine.
const PER_SECOND: u32 = 600;

/// Stopped in order, started so that nobody takes what it logs, and after a while both again.
pub(super) fn unheard(scene: &Scene, victim: usize, random: &mut Random) -> Result<Injected> {
    let host = scene.host(victim);
    let output = *random.pick(&[Output::Closed, Output::Full, Output::Unread]);
    host.stop(&scene.course)?;
    scene.cluster.start_unheard(victim, output)?;
    let time = scene.hold(1_000, 8_000, random);
    let lost = scene.course.poll(Duration::from_secs(10), || {
        let metrics = page(&host.http, "/metrics")?;
        let mut lines = metrics.lines();
        let lost = lines.find_map(|line| line.strip_prefix("perdura_log_lines_lost_total "))?;
        lost.parse::<u64>().ok().filter(|lost| *lost > 0 || output == Output::Unread)
    });
    // It has to end in order all the same.
    host.stop(&scene.course)?;
    scene.cluster.start(victim)?;
    let detail =
        format!("{output:?} for {:.1} s, {} lines lost", time.as_secs_f64(), lost.unwrap_or(0));
    Ok(Injected::new(detail, lost.is_some()))
}

/// Stopped in order, started with a low limit, and after a while both again.
pub(super) fn few_files(scene: &Scene, victim: usize, random: &mut Random) -> Result<Injected> {
    let host = scene.host(victim);
    host.stop(&scene.course)?;
    let length = host.log_length();
    // A server shares them out among its members and its door.
    let partitions = scene.cluster.partitions as u32;
    let files = if host.is_server() { FILES * (partitions + 1) } else { FILES };
    scene.cluster.start_with_files(victim, files)?;
    let time = scene.hold(1_000, 10_000, random);
    let said = format!("may have {files} files open");
    let fired = scene
        .course
        .poll(Duration::from_secs(10), || host.log_since(length).contains(&said).then_some(()));
    host.stop(&scene.course)?;
    scene.cluster.start(victim)?;
    let detail = format!("{files} files for {:.1} s", time.as_secs_f64());
    Ok(Injected::new(detail, fired.is_some()))
}

/// Of nobody, to all.
pub(super) fn strangers(scene: &Scene, random: &mut Random) -> Result<Injected> {
    let seconds = random.between(2, if scene.short { 4 } else { 10 });
    let output = scene.cluster.strangers(PER_SECOND, seconds)?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(output.status.success(), "perdura-lab strangers: {error}");
    let last = said.lines().last().context("perdura-lab strangers said nothing")?;
    Ok(Injected::new(last.to_owned(), true))
}
