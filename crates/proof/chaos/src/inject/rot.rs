//! Bits that flip in files of a replica: in the log and in checkpoints of one that does not run, in the
//! newest checkpoint of one that does.
//!
//! Some places are *certain* to be read when the replica starts, and there it may not come back
//! without a word:
//! - the newest checkpoint that the superblock names, all of its file that means something, and the pieces in
//!   older files that it links to: a state is verified as a whole before it is used;
//! - groups of the log that are followed by another one in the same file, with every later file there: a
//!   group is written after the one before it was flushed, so a hole is no torn tail; and what a
//!   checkpoint covers is only passed over where whole files are gone.
//!
//! Of other places nothing may be said, rightly: an older checkpoint that is not needed, the last group of
//! a file, which may be taken for a torn one.

use super::disk::{CAME_BACK, NOTICED, STARTED, start_or_replace};
use super::{Injected, Scene, Victim};
use crate::cluster::SCRUB;
use anyhow::Result;
use perdura_adversary::Random;
use perdura_durability::FileDisk;
use perdura_durability::inspect::{
    CheckpointItem, LogItem, inspect_checkpoint, inspect_log, read_superblock,
};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Of the header of a group of the log.
const GROUP_HEADER: u64 = 128;

/// What rots under a running replica is found within the time in which it reads its newest checkpoint
/// again, and what it needs to do so on a loaded machine and to say so.
const FOUND: Duration = SCRUB.saturating_add(Duration::from_secs(15));

/// Of a hundred injections, those whose first flip is where it is certain to be read.
const CERTAIN: u64 = 80;

/// What rots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// Groups of the log.
    Log,
    /// States.
    Checkpoint,
}

impl What {
    fn directory(self) -> &'static str {
        match self {
            What::Log => "log",
            What::Checkpoint => "checkpoint",
        }
    }
}

/// What is lost where a bit flips.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lost {
    /// The group of the log with this number.
    Group(u64),
    /// The state after this slot.
    State(u64),
}

impl Lost {
    /// Whether a replica that says this when it starts has noticed (`crates/core/replica/src/node/boot.rs`).
    fn is_told_by(self, line: &str) -> bool {
        let number = |name: &str| {
            let digits = line.split_once(name)?.1;
            let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            digits[..end].parse::<u64>().ok()
        };
        match self {
            Lost::Group(group) if line.contains("the log is damaged") => {
                let (first, last) = (number("first_group: "), number("last_group: "));
                first.zip(last).is_some_and(|(first, last)| (first..=last).contains(&group))
            }
            Lost::Group(_) => false,
            Lost::State(slot) => number("the checkpoint at slot ") == Some(slot),
        }
    }
}

/// Bytes of a file that are in use, in one part or two.
#[derive(Clone, PartialEq, Eq, Debug)]
struct UsedBytes {
    file: PathBuf,
    parts: [Range<u64>; 2],
    lost: Lost,
    // Whether it is certain to be read when the replica starts.
    certain: bool,
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

/// The number by which a file is named.
fn number(file: &Path) -> Option<u64> {
    file.file_name()?.to_str()?.parse().ok()
}

/// The groups of the log's present use, ascending. What an earlier use left behind means nothing any
/// more.
fn groups(data: &Path) -> Vec<UsedBytes> {
    let mut disk = FileDisk::read_only(&data.join("log"));
    let mut places: Vec<UsedBytes> = Vec::new();
    for file in candidates(data, "log") {
        let (Some(use_number), Some(name)) = (number(&file), file.file_name()) else { continue };
        let after = places.last().and_then(|place| number(&place.file));
        if after.is_some_and(|after| after + 1 != use_number) {
            places.iter_mut().for_each(|place| place.certain = false);
        }
        let (mut of_file, mut present) = (Vec::new(), false);
        // What was read up to an error counts; a file without a header has nothing.
        let _ = inspect_log(&mut disk, &name.to_string_lossy(), &mut |item| match item {
            LogItem::Header { use_number: found, .. } => present = found == use_number,
            LogItem::Group { offset, bytes, number, .. } if present => {
                let parts = [offset..offset + GROUP_HEADER + u64::from(bytes), 0..0];
                let lost = Lost::Group(number);
                of_file.push(UsedBytes { file: file.clone(), parts, lost, certain: true });
            }
            _ => {}
        });
        if let Some(last) = of_file.last_mut() {
            last.certain = false;
        }
        places.extend(of_file);
    }
    places
}

/// Files of checkpoints, and what the newest state has in those that are not its own.
fn states(data: &Path) -> Result<Vec<UsedBytes>> {
    let superblock = read_superblock(&mut FileDisk::read_only(data))?;
    let Some(newest) = superblock.and_then(|superblock| superblock.checkpoint()) else {
        return Ok(Vec::new());
    };
    let newest = newest.slot.0;
    let files = candidates(data, "checkpoint");
    let of_slot = |slot: u64| files.iter().find(|file| number(file) == Some(slot));
    let mut places = Vec::new();
    for file in &files {
        let Some(slot) = number(file) else { continue };
        let (parts, lost) = (parts(file)?, Lost::State(slot));
        places.push(UsedBytes { file: file.clone(), parts, lost, certain: slot == newest });
    }
    let disk = FileDisk::read_only(&data.join("checkpoint"));
    // One that does not verify is damaged already, and will be found so whatever else is done.
    let _ = inspect_checkpoint(&disk, &format!("{newest:020}"), &mut |item| {
        let CheckpointItem::Piece { place, linked: true, .. } = item else { return };
        let Some(file) = of_slot(place.file.0) else { return };
        let (bytes, lost) = (u64::from(place.bytes), Lost::State(newest));
        let parts = [place.offset..place.offset + bytes, 0..0];
        places.push(UsedBytes { file: file.clone(), parts, lost, certain: true });
    });
    Ok(places)
}

/// The parts of a checkpoint's file that mean something: up to the last piece, and the index.
fn parts(file: &Path) -> Result<[Range<u64>; 2]> {
    let length = fs::metadata(file)?.len();
    let mut unused = length..length;
    let (directory, name) = (file.parent().unwrap_or(file), file.file_name().unwrap_or_default());
    // One that cannot be read is damaged already.
    let disk = FileDisk::read_only(directory);
    let _ = inspect_checkpoint(&disk, &name.to_string_lossy(), &mut |item| {
        if let CheckpointItem::Header { unused: found, .. } = item {
            unused = found;
        }
    });
    Ok([0..unused.start, unused.end..length])
}

fn bytes_in(parts: &[Range<u64>]) -> u64 {
    parts.iter().map(|part| part.end - part.start).sum()
}

/// Flips a bit in one of the parts, which have some bytes; gives where.
fn flip(file: &Path, parts: &[Range<u64>], random: &mut Random) -> Result<u64> {
    let mut open = OpenOptions::new().read(true).write(true).open(file)?;
    let mut at = random.below(bytes_in(parts));
    for part in parts {
        let length = part.end - part.start;
        if at < length {
            at += part.start;
            break;
        }
        at -= length;
    }
    let mut byte = [0];
    open.seek(SeekFrom::Start(at))?;
    open.read_exact(&mut byte)?;
    open.seek(SeekFrom::Start(at))?;
    open.write_all(&[byte[0] ^ (1 << random.below(8))])?;
    open.sync_all()?;
    Ok(at)
}

/// Where one to three bits flip, each in a file of its own, so that no two of them hit a group of the
/// log and the mark that says that it was flushed. The newest file is hit most often.
fn choose(mut places: Vec<UsedBytes>, random: &mut Random) -> Vec<UsedBytes> {
    let mut chosen: Vec<UsedBytes> = Vec::new();
    let certain = random.percent(CERTAIN);
    for _ in 0..random.between(1, 3) {
        let first = certain && chosen.is_empty();
        let fits = |place: &&UsedBytes| (!first || place.certain) && bytes_in(&place.parts) > 0;
        let mut files: Vec<&PathBuf> =
            places.iter().filter(fits).map(|place| &place.file).collect();
        files.sort();
        files.dedup();
        let Some(last) = files.last() else { break };
        let file = if random.percent(60) { *last } else { *random.pick(&files) };
        let of_file: Vec<&UsedBytes> =
            places.iter().filter(fits).filter(|place| place.file == *file).collect();
        let place = (*random.pick(&of_file)).clone();
        places.retain(|other| other.file != place.file);
        chosen.push(place);
    }
    chosen
}

/// Flips in files of a stopped replica. It takes effect when the replica says so, or has to be
/// replaced.
pub(super) fn under_stopped(
    scene: &Scene,
    whom: Victim,
    what: What,
    random: &mut Random,
) -> Result<Injected> {
    let victim = whom.host;
    let host = scene.host(victim);
    let data = host.data(whom.partition);
    host.kill();
    let places = match what {
        What::Log => groups(&data),
        What::Checkpoint => states(&data)?,
    };
    let chosen = choose(places, random);
    let mut flipped = Vec::new();
    for UsedBytes { file, parts, .. } in &chosen {
        let at = flip(file, parts, random)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        flipped.push(format!("{}/{name} at {at}", what.directory()));
    }
    let flipped = flipped.join(", ");
    let length = host.log_length();
    let how = start_or_replace(scene, victim)?;
    if chosen.is_empty() {
        return Ok(Injected::new(format!("nothing to rot in; {how}"), false));
    }
    if !how.starts_with(CAME_BACK) {
        return Injected::fired(format!("{flipped}; {how}"));
    }
    let log = host.log_since(length);
    let told = |place: &UsedBytes| log.lines().find(|line| place.lost.is_told_by(line));
    if chosen.iter().any(|place| place.certain && told(place).is_none()) {
        scene.course.violation(format!(
            "replica {victim} came back without a word of what rotted where it has to look: {flipped}"
        ));
    }
    let text = |line: &str| line.split(" WARN ").nth(1).unwrap_or(line).trim().to_owned();
    let mut words: Vec<String> = chosen.iter().filter_map(told).map(text).collect();
    words.dedup();
    let said = if words.is_empty() { "nothing of it".to_owned() } else { words.join("; ") };
    Ok(Injected::new(format!("{flipped}; {CAME_BACK} and says {said}"), !words.is_empty()))
}

/// A flip in the newest checkpoint of a running replica, which has to find it while it runs; unless a
/// newer one takes its place before. It has a disk without damage again when this returns, as far as
/// that can be seen within a minute.
pub(super) fn under_running(scene: &Scene, whom: Victim, random: &mut Random) -> Result<Injected> {
    let Victim { host: victim, partition } = whom;
    let data = scene.host(victim).data(partition);
    let damages =
        |since| scene.watch.report(victim, partition, since).map(|said| said.checkpoint_damages);
    let newest = || candidates(&data, "checkpoint").pop();
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
    let at = match parts(&file).and_then(|parts| flip(&file, &parts, random)) {
        Ok(at) => at,
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
    use bytes::Bytes;
    use perdura_durability::{
        Expectation, Identity, NewState, PieceName, RecoveredState, StorageOptions, format, open,
    };
    use perdura_protocol::configuration::Durability;
    use perdura_protocol::{ClusterId, Digest, Record, ReplicaId, Slot, View};
    use std::collections::BTreeSet;
    use std::ops::ControlFlow;

    #[test]
    fn one_bit_is_flipped_where_it_may() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("3");
        let content = vec![5; 300];
        fs::write(&path, &content).unwrap();
        let (mut random, mut found) = (Random::new(1), BTreeSet::new());
        for _ in 0..100 {
            fs::write(&path, &content).unwrap();
            let at = flip(&path, &[0..5, 100..105, 299..300], &mut random).unwrap() as usize;
            found.insert(at);
            let after = fs::read(&path).unwrap();
            let changed = content.iter().zip(&after).filter(|(before, after)| before != after);
            assert_eq!((changed.count(), (after[at] ^ content[at]).count_ones()), (1, 1));
        }
        assert!(found.into_iter().eq((0..5).chain(100..105).chain([299])));
    }

    #[test]
    fn no_two_flips_are_in_a_file_and_most_begin_where_it_has_to_show() {
        let place = |file: u64, certain| UsedBytes {
            file: PathBuf::from(format!("{file:020}")),
            parts: [file * 10..file * 10 + 5, 0..0],
            lost: Lost::Group(file),
            certain,
        };
        let places = vec![place(1, false), place(1, true), place(2, false), place(3, false)];
        let (mut random, mut certain) = (Random::new(1), 0);
        for _ in 0..1000 {
            let chosen = choose(places.clone(), &mut random);
            let mut files: Vec<&PathBuf> = chosen.iter().map(|place| &place.file).collect();
            files.sort();
            files.dedup();
            assert_eq!(files.len(), chosen.len());
            certain += usize::from(chosen[0].certain);
        }
        assert!((750..950).contains(&certain), "{certain}");
        assert!(choose(vec![place(1, false)], &mut random).len() < 2);
        assert!(choose(Vec::new(), &mut random).is_empty());
    }

    /// A log over several files, and two states that share a piece.
    fn fill(data: &Path) -> Expectation {
        let (cluster, parameters) = (ClusterId([1; 16]), Digest::of(b"parameters"));
        let (replica, incarnation, boot_id) = (ReplicaId(0), 0, [0; 16]);
        let identity = Identity {
            cluster,
            replica,
            incarnation,
            parameters,
            durability: Durability::Sync,
            checksum_key: [2; 32],
            must_recover: None,
        };
        let nonce = [0; 16];
        let expected = Expectation { cluster, replica, incarnation, parameters, boot_id, nonce };
        let mut disk = FileDisk::create_directory(data).unwrap();
        format(&mut disk, &identity).unwrap();
        let options = StorageOptions {
            log_file_bytes: 32_768,
            small_state_bytes: 0,
            ..StorageOptions::default()
        };
        let mut opened = open(disk, &expected, &options).unwrap();
        for view in 0..20 {
            opened.log.append(&[Record::View(View(view))]).unwrap();
        }
        // The last one is written over a file that is a little larger.
        for (slot, bytes) in [(1, 3000), (2, 3000), (3, 3000), (4, 3000), (5, 2970)] {
            let pieces = [Bytes::from(vec![0; 3000]), Bytes::from(vec![slot; bytes])];
            let state = NewState {
                slot: Slot(u64::from(slot)),
                digest: Digest::of(&[slot]),
                manifest: b"manifest",
                pieces: &pieces.clone().map(|piece| PieceName::of(&piece).unwrap()),
                content: &mut |at| pieces[at].clone(),
                pace: &mut |_| ControlFlow::Continue(()),
            };
            opened.checkpoints.store(state, Slot(0)).unwrap();
            opened.checkpoints.remove_old(&mut || ControlFlow::Continue(())).unwrap();
        }
        expected
    }

    /// Whether a flip at this place shows when the directory is opened, in the words of a replica.
    fn shows(data: &Path, expected: &Expectation, place: &UsedBytes, random: &mut Random) -> bool {
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("data");
        crate::files::copy_tree(data, &copy).unwrap();
        let file = copy.join(place.file.strip_prefix(data).unwrap());
        flip(&file, &place.parts, random).unwrap();
        let options = StorageOptions { log_file_bytes: 32_768, ..StorageOptions::default() };
        let opened = open(FileDisk::open(&copy).unwrap(), expected, &options).unwrap();
        let gaps = opened.repaired_gaps.iter().map(|gap| format!("the log is damaged: {gap:?}"));
        let state = match opened.state {
            RecoveredState::Previous { lost, .. } | RecoveredState::Lost(lost) => {
                Some(format!("the checkpoint at slot {} is damaged", lost.slot))
            }
            RecoveredState::Checkpoint(_) | RecoveredState::Initial => None,
        };
        gaps.chain(state).any(|line| place.lost.is_told_by(&line))
    }

    #[test]
    fn what_is_certain_to_be_read_shows() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let expected = fill(&data);
        let (log, states) = (groups(&data), states(&data).unwrap());
        let certain = |places: &[UsedBytes]| places.iter().filter(|place| place.certain).count();
        assert!(log.len() >= 20 && (12..20).contains(&certain(&log)), "{log:?}");
        // The newest file, and the piece in the oldest one; else that and the one before are in no use.
        assert_eq!((states.len(), certain(&states)), (4, 2), "{states:?}");
        let newest = states.iter().rfind(|place| !place.parts[1].is_empty()).unwrap();
        assert!(newest.certain && newest.parts[0].end + 30 == newest.parts[1].start, "{newest:?}");
        let mut random = Random::new(1);
        for place in log.iter().chain(&states).filter(|place| place.certain) {
            for _ in 0..5 {
                assert!(shows(&data, &expected, place, &mut random), "{place:?}");
            }
        }
    }

    #[test]
    fn what_a_replica_says_when_it_starts_is_known_here() {
        let said = include_str!("../../../../core/replica/src/node/boot.rs");
        for what in ["the log is damaged", ": {gap:?}", "the checkpoint at slot {} is damaged"] {
            assert!(said.contains(what), "{what}");
        }
    }
}
