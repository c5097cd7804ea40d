//! Disks that are full, fail, rot, or are lost.

use super::{Injected, Scene};
use crate::cluster::{Host, SCRUB};
use anyhow::{Result, bail};
use perdura_simulator::Random;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A replica whose disk fails notices at its next checkpoint at the latest.
const NOTICED: Duration = Duration::from_secs(60);

/// Between two times that a disk is made to fail.
const AGAIN: Duration = Duration::from_millis(500);

/// One that does not notice has executed within this time what any had.
const GOES_ON: Duration = Duration::from_secs(10);

/// A replica answers, or says why not, within this time after its start.
const STARTED: Duration = Duration::from_secs(60);

/// The smallest unit whose content tells whether it was ever written.
const BLOCK: usize = 4096;

/// How a group of the log begins, and how long its header is.
const GROUP_MAGIC: &[u8] = b"PDGROUP2";
const GROUP_HEADER: usize = 128;

/// What rots under a running replica is found within the time in which it reads its newest checkpoint
/// again, and what it needs to do so on a loaded machine and to say so.
const FOUND: Duration = SCRUB.saturating_add(Duration::from_secs(15));

/// Waits for a replica to stop because of its disk: with exit code 1, and saying so. `go_on` keeps
/// the disk as bad as it is.
fn stops(scene: &Scene, host: &Host, length: u64, go_on: impl Fn()) -> Option<String> {
    let mut last = Instant::now();
    let status = scene.course.poll(NOTICED, || {
        if last.elapsed() >= AGAIN {
            go_on();
            last = Instant::now();
        }
        host.ended()
    })?;
    let log = host.log_since(length);
    let last = log.lines().last().unwrap_or_default();
    if status.code() != Some(1) || !last.contains("the disk failed") {
        scene.course.violation(format!(
            "replica {} ended with {status} on a failing disk, and says: {last}",
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
const CAME_BACK: &str = "came back";

/// Starts a replica whose disk was damaged. If it refuses, and says so, it is replaced.
fn start_or_replace(scene: &Scene, victim: usize) -> Result<String> {
    let host = scene.host(victim);
    let (length, since) = (host.log_length(), Instant::now());
    scene.cluster.start_doubtful(victim)?;
    let answers = || scene.watch.report(victim, since).map(|_| None);
    let came = scene.course.poll(STARTED, || answers().or_else(|| host.ended().map(Some)));
    let log = host.log_since(length);
    match came {
        None => bail!("replica {victim} neither answers nor ends: {}", host.last_line()),
        Some(None) => {
            host.survived();
            let warnings = log.lines().filter(|line| line.contains(" WARN "));
            let first = warnings.map(|line| line.split(" WARN ").nth(1).unwrap_or(line)).next();
            Ok(first.map_or_else(
                || CAME_BACK.to_owned(),
                |said| format!("{CAME_BACK}: {}", said.trim()),
            ))
        }
        Some(Some(status)) => {
            let last = log.lines().last().unwrap_or_default().to_owned();
            if status.code() != Some(1) || !last.contains("reinit") {
                scene.course.violation(format!(
                    "replica {victim} does not start ({status}), and says nothing of a \
                     replacement: {last}"
                ));
                bail!("replica {victim} is lost");
            }
            replace(scene, victim)?;
            Ok(format!("replaced, since it says: {last}"))
        }
    }
}

fn replace(scene: &Scene, victim: usize) -> Result<()> {
    scene.cluster.replace(victim, &scene.network)?;
    scene.cluster.start(victim)?;
    scene.load.reconnect(&scene.network, &scene.cluster.file()?, &scene.cluster.client_key())
}

/// The data is gone. The replica has to refuse to start, and is replaced.
pub(super) fn lost(scene: &Scene, victim: usize) -> Result<Injected> {
    let host = scene.host(victim);
    host.kill();
    crate::files::empty_directory(&host.data())?;
    let how = start_or_replace(scene, victim)?;
    if how.starts_with(CAME_BACK) {
        scene.course.violation(format!("replica {victim} starts though its data is gone"));
    }
    Injected::fired(how)
}

/// Files of one kind in a data directory, the newest last.
fn candidates(data: &Path, kind: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(data.join(kind)).into_iter().flatten().flatten();
    let named = entries.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.chars().all(|c| c.is_ascii_hexdigit())
    });
    let mut files: Vec<PathBuf> = named.map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// Where groups of the present use of a log file are (`crates/durability/src/log/group.rs`). What
/// an earlier use left behind means nothing any more.
fn groups(content: &[u8], use_number: u64) -> Vec<Range<usize>> {
    let number = |at: usize, length: usize| {
        let bytes = content.get(at..at + length).unwrap_or_default();
        bytes.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let starts = (0..content.len()).step_by(BLOCK);
    let groups = starts.filter(|at| {
        content.get(*at..*at + 8) == Some(GROUP_MAGIC) && number(at + 40, 8) == use_number
    });
    let extent = |at: usize| at..content.len().min(at + GROUP_HEADER + number(at + 64, 4) as usize);
    groups.map(extent).collect()
}

/// Blocks in which something was ever written.
fn written(content: &[u8]) -> Vec<Range<usize>> {
    let blocks = (0..content.len()).step_by(BLOCK).map(|at| at..content.len().min(at + BLOCK));
    blocks.filter(|block| content[block.clone()].iter().any(|byte| *byte != 0)).collect()
}

/// Flips a bit of a file that counts; gives where.
fn flip(file: &Path, kind: &str, random: &mut Random) -> Result<Option<usize>> {
    let mut content = Vec::new();
    let mut open = OpenOptions::new().read(true).write(true).open(file)?;
    open.read_to_end(&mut content)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let places = match kind {
        "log" => groups(&content, name.parse()?),
        _ => written(&content),
    };
    if places.is_empty() {
        return Ok(None);
    }
    let place = random.pick(&places).clone();
    let at = place.start + random.below(place.len() as u64) as usize;
    let byte = content[at] ^ (1 << random.below(8));
    open.seek(SeekFrom::Start(at as u64))?;
    open.write_all(&[byte])?;
    open.sync_all()?;
    Ok(Some(at))
}

/// One to three flips in files of a stopped replica, each in a file of its own, so that no two of
/// them hit a group of the log and the mark that says that it was flushed. The newest file is hit
/// most often.
pub(super) fn rot(
    scene: &Scene,
    victim: usize,
    kind: &str,
    random: &mut Random,
) -> Result<Injected> {
    let host = scene.host(victim);
    host.kill();
    let mut files = candidates(&host.data(), kind);
    let mut flipped = Vec::new();
    for _ in 0..random.between(1, 3) {
        let newest = random.percent(60);
        let Some(last) = files.len().checked_sub(1) else { break };
        let at = if newest { last } else { random.below(files.len() as u64) as usize };
        let file = files.remove(at);
        if let Some(at) = flip(&file, kind, random)? {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            flipped.push(format!("{kind}/{name} at {at}"));
        }
    }
    let fired = !flipped.is_empty();
    let how = start_or_replace(scene, victim)?;
    Ok(Injected::new(format!("{}; {how}", flipped.join(", ")), fired))
}

/// A flip in the newest checkpoint of a running replica, which has to find it while it runs; unless a
/// newer one takes its place before. It has a disk without damage again when this returns, as far as
/// that can be seen within a minute.
pub(super) fn rot_running(scene: &Scene, victim: usize, random: &mut Random) -> Result<Injected> {
    let host = scene.host(victim);
    let damages = |since| scene.watch.report(victim, since).map(|said| said.checkpoint_damages);
    let newest = || candidates(&host.data(), "checkpoint").pop();
    // One that it stored in this run, so that it reads it, and after earlier damage.
    let old = newest();
    let fresh = || newest().filter(|file| Some(file) != old.as_ref());
    let Some(file) = scene.course.poll(NOTICED, fresh) else {
        return Ok(Injected::new("no checkpoint was stored".to_owned(), false));
    };
    let began = Instant::now();
    let Some(before) = scene.course.poll(STARTED, || damages(began)) else {
        return Ok(Injected::new("it does not answer".to_owned(), false));
    };
    let at = match flip(&file, "checkpoint", random) {
        Ok(Some(at)) => at,
        Ok(None) => return Ok(Injected::new("nothing is written in it".to_owned(), false)),
        // It was removed meanwhile.
        Err(error) if is_gone(&error) => {
            return Ok(Injected::new("it was replaced".to_owned(), false));
        }
        Err(error) => return Err(error),
    };
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let what = format!("checkpoint/{name} at {at}");
    let flipped = Instant::now();
    let found = || damages(flipped).filter(|damages| *damages > before).map(|_| true);
    let replaced = || (newest().as_ref() != Some(&file)).then_some(false);
    let outcome = scene.course.poll(FOUND, || found().or_else(replaced));
    let took = flipped.elapsed().as_secs_f64();
    if outcome.is_none() && scene.course.ends().is_none() {
        scene.course.violation(format!(
            "replica {victim} runs on {what}, which rotted, and says nothing in {FOUND:?}"
        ));
    }
    // Nobody needs the damaged file any more: two disks with damage may be more than the group takes.
    let gone = scene.course.poll(NOTICED, || (!file.exists()).then_some(())).is_some();
    let left = if gone { "" } else { ", and is still there" };
    Ok(match outcome {
        Some(true) => Injected::new(format!("{what}: found after {took:.1} s{left}"), true),
        Some(false) => Injected::new(format!("{what}: replaced before it was found{left}"), false),
        None => Injected::new(format!("{what}: not found"), false),
    })
}

fn is_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|why| why.kind() == ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_is_flipped_where_something_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("3");
        let mut content = vec![0; 5 * BLOCK + 100];
        content[3 * BLOCK + 7] = 9;
        fs::write(&path, &content).unwrap();
        let at = flip(&path, "checkpoint", &mut Random::new(1)).unwrap().unwrap();
        assert_eq!(at / BLOCK, 3);
        let after = fs::read(&path).unwrap();
        let changed = content.iter().zip(&after).filter(|(before, after)| before != after);
        assert_eq!((changed.count(), (after[at] ^ content[at]).count_ones()), (1, 1));
        fs::write(&path, vec![0; 2 * BLOCK]).unwrap();
        assert_eq!(flip(&path, "checkpoint", &mut Random::new(1)).unwrap(), None);
    }

    #[test]
    fn groups_of_an_earlier_use_do_not_count() {
        let mut content = vec![0; 4 * BLOCK];
        for (at, use_number) in [(BLOCK, 3), (2 * BLOCK, 2)] {
            content[at..at + 8].copy_from_slice(GROUP_MAGIC);
            content[at + 40] = use_number;
            content[at + 64] = 50;
        }
        let found = groups(&content, 3);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0], BLOCK..BLOCK + GROUP_HEADER + 50);
        assert!(groups(&content, 4).is_empty());
    }
}
