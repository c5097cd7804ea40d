//! Disks that are full, fail, or are lost, and what becomes of a replica whose disk was damaged.

use super::{Injected, Scene};
use crate::cluster::Host;
use crate::watch::ReplicaReport;
use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// A replica whose disk fails notices at its next checkpoint at the latest.
pub(super) const NOTICED: Duration = Duration::from_secs(60);

/// Between two times that a disk is made to fail.
const AGAIN: Duration = Duration::from_millis(500);

/// One that does not notice has executed within this time what any had.
const GOES_ON: Duration = Duration::from_secs(10);

/// A replica answers, or says why not, within this time after its start.
pub(super) const STARTED: Duration = Duration::from_secs(60);

/// Where one of a server's members has ended because of the disk, the others need it within this time, or may go on.
const OTHERS: Duration = Duration::from_secs(10);

/// The members of a server that have ended, and why, if it was asked after `since`.
pub(super) fn ended_members(
    scene: &Scene,
    id: usize,
    since: Instant,
) -> Option<Vec<(usize, String)>> {
    let all = scene.watch.all(id, since)?;
    let ended = (0..).zip(all).filter(|(_, said)| said.state == "stopped");
    Some(
        ended
            .map(|(partition, said)| (partition, said.why_not_ready.unwrap_or_default()))
            .collect(),
    )
}

/// Waits for a replica to stop because of its disk: with exit code 1, and saying so. A server does when all of its members have; where
/// only some need their disk it is killed after a while. `go_on` keeps the disk as bad as it is.
fn stops(scene: &Scene, host: &Host, length: u64, go_on: impl Fn()) -> Option<String> {
    let (begun, mut last, mut first) = (Instant::now(), Instant::now(), None);
    let some_ended = || {
        let ended = ended_members(scene, host.id, begun).filter(|_| host.is_server());
        ended.is_some_and(|ended| !ended.is_empty())
    };
    let status = scene.course.poll(NOTICED + OTHERS, || {
        if last.elapsed() >= AGAIN {
            go_on();
            last = Instant::now();
        }
        if let Some(status) = host.ended() {
            return Some(Some(status));
        }
        if some_ended() {
            first.get_or_insert_with(Instant::now);
        }
        first.filter(|since: &Instant| since.elapsed() > OTHERS).map(|_| None)
    })?;
    if status.is_none() {
        host.kill();
    }
    let log = host.log_since(length);
    let fails = |line: &&str| line.contains("the disk failed") || !host.is_server();
    let last = log.lines().rfind(fails).unwrap_or_default();
    if status.is_some_and(|status| status.code() != Some(1)) || !last.contains("the disk failed") {
        scene.course.violation(format!(
            "replica {} ended with {status:?} on a failing disk, and says: {last}",
            host.id
        ));
    }
    let reason = last.split("the disk failed: ").nth(1).unwrap_or(last);
    Some(reason.split(". Everything").next().unwrap_or(reason).to_owned())
}

/// A full disk, until the replica stopped.
pub(super) fn full(scene: &Scene, victim: usize) -> Result<Injected> {
    let host = scene.host(victim);
    let length = host.log_length();
    host.expect_end();
    let filled = host.volume().fill()?;
    let stopped = stops(scene, host, length, || ());
    host.volume().free()?;
    over(scene, host, stopped, format!("{} MiB of ballast", filled / 1024 / 1024))
}

/// A disk that takes nothing new, until the replica stopped.
pub(super) fn fsync_error(scene: &Scene, victim: usize) -> Result<Injected> {
    let host = scene.host(victim);
    let length = host.log_length();
    host.expect_end();
    host.volume().break_backing()?;
    // What the replica deletes makes room.
    let stopped = stops(scene, host, length, || {
        if let Err(error) = host.volume().break_backing() {
            eprintln!("the disk of replica {victim} is not kept broken: {error:#}");
        }
    });
    if stopped.is_none() {
        // It may have needed nothing new of its disk; then it goes on.
        if let Err(lagging) = scene.watch.wait_for(&[victim], &scene.course, GOES_ON) {
            scene.not_well("on a failing disk it neither ends nor goes on", &lagging);
        }
        host.kill();
    }
    host.volume().mend_backing()?;
    // A write may fail first, where the file system has noticed and is read-only.
    let fired = stopped.as_ref().is_some_and(|why| why.contains("cannot sync"));
    let reason = stopped.unwrap_or_else(|| "it did not end and was killed".to_owned());
    let how = start_or_replace(scene, victim)?;
    Ok(Injected::new(format!("{reason}; {how}"), fired))
}

fn over(scene: &Scene, host: &Host, stopped: Option<String>, what: String) -> Result<Injected> {
    let Some(reason) = stopped else {
        host.survived();
        return Ok(Injected::new(format!("{what}; it needed no space"), false));
    };
    let how = start_or_replace(scene, host.id)?;
    Injected::fired(format!("{what}: {reason}; {how}"))
}

/// What is told of a replica that starts on its disk as it is.
pub(super) const CAME_BACK: &str = "came back";

/// Starts a replica whose disk was damaged. If it refuses, and says so, it is replaced.
pub(super) fn start_or_replace(scene: &Scene, victim: usize) -> Result<String> {
    let host = scene.host(victim);
    let (length, since) = (host.log_length(), Instant::now());
    scene.cluster.start_doubtful(victim)?;
    let starts = |said: &ReplicaReport| host.is_server() && said.state == "starting";
    let answers = || {
        let said = scene.watch.all(victim, since).filter(|said| !said.iter().any(starts));
        said.and_then(|_| ended_members(scene, victim, since)).map(Ok)
    };
    let came = scene.course.poll(STARTED, || answers().or_else(|| host.ended().map(Err)));
    let log = host.log_since(length);
    match came {
        None => bail!("replica {victim} neither answers nor ends: {}", host.last_line()),
        Some(Ok(ended)) if !ended.is_empty() && host.is_server() => {
            if let Some((partition, why)) = ended.iter().find(|(_, why)| !why.contains("reinit")) {
                scene.course.violation(format!(
                    "the member of partition {partition} of server {victim} does not start, and says nothing of a \
                     replacement: {why}"
                ));
                bail!("server {victim} has lost a member");
            }
            let members: Vec<usize> = ended.iter().map(|(partition, _)| *partition).collect();
            replace(scene, victim, &members)?;
            Ok(format!("members {members:?} replaced, since they say: {}", ended[0].1))
        }
        Some(Ok(_)) => {
            host.survived();
            let warnings = log.lines().filter(|line| line.contains(" WARN "));
            let first = warnings.map(|line| line.split(" WARN ").nth(1).unwrap_or(line)).next();
            Ok(first.map_or_else(
                || CAME_BACK.to_owned(),
                |said| format!("{CAME_BACK}: {}", said.trim()),
            ))
        }
        Some(Err(status)) => {
            let last = log.lines().last().unwrap_or_default().to_owned();
            if status.code() != Some(1) || !last.contains("reinit") {
                scene.course.violation(format!(
                    "replica {victim} does not start ({status}), and says nothing of a \
                     replacement: {last}"
                ));
                bail!("replica {victim} is lost");
            }
            let members: Vec<usize> = (0..host.partitions).collect();
            replace(scene, victim, &members)?;
            Ok(format!("replaced, since it says: {last}"))
        }
    }
}

/// Replaces a replica that does not run, or must not; or these members of a server.
pub(super) fn replace(scene: &Scene, victim: usize, members: &[usize]) -> Result<()> {
    scene.cluster.replace(victim, members, &scene.network)?;
    scene.cluster.start(victim)?;
    scene.load.reconnect(&scene.network, &scene.cluster.file()?)
}

/// The data is gone. The replica has to refuse to start, and is replaced.
pub(super) fn lost(scene: &Scene, victim: usize) -> Result<Injected> {
    let host = scene.host(victim);
    host.kill();
    crate::files::empty_directory(&host.disk())?;
    let how = start_or_replace(scene, victim)?;
    if how.starts_with(CAME_BACK) {
        scene.course.violation(format!("replica {victim} starts though its data is gone"));
    }
    Injected::fired(how)
}
