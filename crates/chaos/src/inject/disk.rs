//! Disks that are full, fail, rot, or are lost.

use super::{Injected, Scene};
use crate::cluster::Host;
use anyhow::{Result, bail};
use perdura_simulator::Random;
use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A replica whose disk fails notices at its next checkpoint at the latest.
const NOTICED: Duration = Duration::from_secs(60);

/// A replica answers, or says why not, within this time after its start.
const STARTED: Duration = Duration::from_secs(60);

/// The smallest unit whose content tells whether it was ever written.
const BLOCK: usize = 4096;

/// Waits for a replica to stop because of its disk: with exit code 1, and saying so.
fn stops(scene: &Scene, host: &Host, length: u64) -> Option<String> {
    let status = scene.course.poll(NOTICED, || host.ended())?;
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
    let stopped = stops(scene, host, length);
    host.volume().free()?;
    over(scene, host, stopped, format!("{} MiB of ballast", filled / 1024 / 1024))
}

/// A disk that takes nothing new, until the replica stopped.
pub(super) fn fsync_error(scene: &Scene, victim: usize) -> Result<Injected> {
    let host = scene.host(victim);
    let length = host.log_length();
    host.expect_end();
    host.volume().break_backing()?;
    let stopped = stops(scene, host, length);
    if stopped.is_none() {
        host.kill();
    }
    host.volume().mend_backing()?;
    let fired = stopped.is_some();
    let reason = stopped.unwrap_or_else(|| "it did not notice and was killed".to_owned());
    let how = start_or_replace(scene, victim)?;
    Ok(Injected { detail: format!("{reason}; {how}"), fired })
}

fn over(scene: &Scene, host: &Host, stopped: Option<String>, what: String) -> Result<Injected> {
    let Some(reason) = stopped else {
        host.survived();
        return Ok(Injected { detail: format!("{what}; it needed no space"), fired: false });
    };
    let how = start_or_replace(scene, host.id)?;
    Injected::fired(format!("{what}: {reason}; {how}"))
}

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
                || "came back".to_owned(),
                |said| format!("came back: {}", said.trim()),
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
    Injected::fired(start_or_replace(scene, victim)?)
}

/// Files of one kind in a data directory, with content.
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

/// Flips a bit in a random block of a file that was ever written.
fn flip(file: &Path, random: &mut Random) -> Result<Option<u64>> {
    let mut content = Vec::new();
    let mut open = OpenOptions::new().read(true).write(true).open(file)?;
    open.read_to_end(&mut content)?;
    let written: Vec<usize> = content
        .chunks(BLOCK)
        .enumerate()
        .filter(|(_, block)| block.iter().any(|byte| *byte != 0))
        .map(|(number, _)| number)
        .collect();
    if written.is_empty() {
        return Ok(None);
    }
    let start = *random.pick(&written) * BLOCK;
    let length = content.len().min(start + BLOCK) - start;
    let at = start + random.below(length as u64) as usize;
    let byte = content[at] ^ (1 << random.below(8));
    open.seek(SeekFrom::Start(at as u64))?;
    open.write_all(&[byte])?;
    open.sync_all()?;
    Ok(Some(at as u64))
}

/// One to three flips in files of a stopped replica, each in a file of its own, so that no two of
/// them hit a group of the log and the mark that says that it was flushed.
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
        if files.is_empty() {
            break;
        }
        let file = files.swap_remove(random.below(files.len() as u64) as usize);
        if let Some(at) = flip(&file, random)? {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            flipped.push(format!("{kind}/{name} at {at}"));
        }
    }
    let fired = !flipped.is_empty();
    let how = start_or_replace(scene, victim)?;
    Ok(Injected { detail: format!("{}; {how}", flipped.join(", ")), fired })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_of_a_written_block_is_flipped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let mut content = vec![0; 5 * BLOCK + 100];
        content[3 * BLOCK + 7] = 9;
        fs::write(&path, &content).unwrap();
        let at = flip(&path, &mut Random::new(1)).unwrap().unwrap() as usize;
        assert_eq!(at / BLOCK, 3);
        let after = fs::read(&path).unwrap();
        let changed = content.iter().zip(&after).filter(|(before, after)| before != after);
        assert_eq!((changed.count(), after[at] ^ content[at]).0, 1);
        fs::write(&path, vec![0; 2 * BLOCK]).unwrap();
        assert_eq!(flip(&path, &mut Random::new(1)).unwrap(), None);
    }
}
