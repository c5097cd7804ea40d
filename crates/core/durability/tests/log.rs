//! The log, from the outside: what is written is there again, what was torn is cut, what rotted
//! is noticed, and what an earlier use left behind never comes back.

use crate::common::*;
use perdura_durability::log::Position;
use perdura_durability::memory_disk::{Errors, Operation};
use perdura_durability::{Amnesia, Disk, DiskError, LogError, MemoryDisk, OpenError};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Encode, Record, Slot, View};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

#[test]
fn what_was_appended_is_there_again_in_order() {
    let groups = [
        vec![Record::View(View(3)), configuration(1)],
        vec![vote(3, 1, 1), vote(3, 2, 2)],
        vec![accepts(3, 1, 1, 3), delivered(1), prefix(1)],
        vec![Record::Decision {
            slot: Slot(2),
            view: View(3),
            batch: batch(2),
            accepts: certificate(3),
        }],
    ];
    let disk = written(&groups);
    let mut again = opened(&disk);
    assert_eq!(again.records, groups.concat());
    assert!(again.repaired_gaps.is_empty() && again.torn_tail.is_none());
    again.log.append(&[vote(3, 3, 3)]).unwrap();
    drop(again);
    assert_eq!(opened(&disk).records, [groups.concat(), vec![vote(3, 3, 3)]].concat());
}

#[test]
fn an_empty_append_writes_nothing() {
    let disk = written(&[]);
    let mut opened = opened(&disk);
    let before = disk.operations();
    opened.log.append(&[]).unwrap();
    assert_eq!(disk.operations(), before);
}

#[test]
fn a_cluster_that_keeps_nothing_writes_nothing() {
    let disk = formatted(Durability::None);
    let mut opened = opened(&disk);
    let before = disk.operations();
    opened.log.append(&[vote(0, 1, 1)]).unwrap();
    opened.log.prepare_free_file().unwrap();
    assert_eq!(disk.operations(), before);
}

/// Data in one write, one flush, one unsynced mark.
#[test]
fn an_append_is_one_write_one_flush_and_a_mark() {
    let disk = formatted(Durability::Sync);
    let mut opened = opened(&disk);
    opened.log.append(&[vote(0, 1, 1)]).unwrap();
    let before = disk.operations();
    opened.log.append(&(2..40).map(|i| vote(0, i, i)).collect::<Vec<_>>()).unwrap();
    assert_eq!(disk.operations() - before, 3);
}

/// Whatever part of the last write was done: it is cut, and the log goes on.
#[test]
fn a_torn_tail_is_cut_wherever_it_is_torn() {
    let first = vec![vote(0, 1, 1)];
    let second: Vec<Record> = (2..30).map(|i| vote(0, i, i)).collect();
    let base = written(std::slice::from_ref(&first));
    let mut full = base.copy();
    opened(&full).log.append(&second).unwrap();
    let payload =
        u32::from_le_bytes(read(&mut full, FIRST, GROUPS + 4096 + 64, 4).try_into().unwrap());
    let length = 128 + payload as usize;
    let group = read(&mut full, FIRST, GROUPS + 4096, length);
    let mut cuts = vec![1, 7, 8, 24, 63, 64, 120, 128, 129, 132, 147, 148, 149, 511, 512, 513];
    cuts.extend([4095, 4096, 4097, 7168, 7169, length - 12]);
    for cut in cuts {
        let mut disk = base.copy();
        disk.write_at(FIRST, GROUPS + 4096, &group[..cut]).unwrap();
        let mut again = opened(&disk);
        assert_eq!(again.records, first, "cut at {cut}");
        assert_eq!(again.torn_tail.is_some(), cut >= 120, "cut at {cut}");
        again.log.append(&[vote(1, 2, 99)]).unwrap();
        drop(again);
        let third = opened(&disk);
        assert_eq!(third.records, [vote(0, 1, 1), vote(1, 2, 99)]);
        assert!(third.torn_tail.is_none(), "the torn group was not wiped out");
    }
    let mut disk = base.copy();
    disk.write_at(FIRST, GROUPS + 4096, &group).unwrap();
    assert_eq!(opened(&disk).records.len(), 29);
}

#[test]
fn rot_in_the_middle_is_never_cut_or_skipped() {
    for (offset, in_file) in [(GROUPS, 0), (GROUPS + 200, 0), (GROUPS + 4096 + 30, 1)] {
        let groups: Vec<_> = (1..5).map(|i| vec![vote(0, i, i)]).collect();
        let mut disk = written(&groups);
        disk.flip_bit(FIRST, offset, 4).unwrap();
        assert_eq!(lost_votes(&disk), Some(Slot(in_file + 1)));
    }
}

/// A lost vote for a low slot is not excused by a later vote for a higher one, nor the other way
/// round: the maximum is what must be covered.
#[test]
fn rot_is_harmless_only_when_every_vote_before_it_is_decided() {
    let mut groups: Vec<_> = (1..5).map(|i| vec![vote(0, i, i)]).collect();
    groups.push(vec![Record::View(View(7))]);
    groups.push(vec![vote(7, 2, 102), delivered(3)]);
    let mut disk = written(&groups);
    disk.flip_bit(FIRST, GROUPS + 4096 * 4 + 150, 0).unwrap();
    assert_eq!(lost_votes(&disk), Some(Slot(4)), "slot 4 is not decided");

    *groups.last_mut().unwrap() = vec![vote(7, 2, 102), delivered(4)];
    let mut disk = written(&groups);
    disk.flip_bit(FIRST, GROUPS + 4096 * 4 + 150, 0).unwrap();
    let again = opened(&disk);
    assert_eq!(again.repaired_gaps.len(), 1);
    let gap = &again.repaired_gaps[0];
    assert_eq!((gap.first_group, gap.last_group, gap.view), (5, 5, View(7)));
    assert_eq!((gap.votes_through, gap.offset), (Slot(4), GROUPS + 4096 * 4));
    assert_eq!(again.records, groups.concat(), "the view comes back from the next header");
    drop(again);
    assert_eq!(opened(&disk).repaired_gaps.len(), 1, "reported at each opening");
}

/// The last file vanishes; the one before it knows better.
#[test]
fn a_vanished_file_is_noticed() {
    let groups: Vec<_> = (1..15).map(|i| vec![vote(0, i, i)]).collect();
    let mut disk = written(&groups);
    let files = log_files(&mut disk);
    assert_eq!(files.len(), 3);
    for file in [0, 1, 2] {
        let mut copy = disk.copy();
        copy.remove(&files[file]).unwrap();
        let through = [Some(Slot(6)), Some(Slot(12)), None][file];
        assert_eq!(lost_votes(&copy), through);
    }
    for file in files {
        disk.remove(&file).unwrap();
    }
    let missing = reopen(disk).err().unwrap();
    assert!(matches!(missing, OpenError::Amnesiac(Amnesia::LogMissing)));
}

/// Files begin with what truncation would otherwise lose, and it is not told twice.
#[test]
fn truncation_loses_nothing_that_is_not_covered() {
    let disk = formatted(Durability::Sync);
    let mut first = opened(&disk);
    let mut head =
        vec![Record::View(View(4)), configuration(1), configuration(2), prefix(3), delivered(5)];
    head.extend([boot(1, 3), boot(2, 7), heard(1, 4), heard(2, 5)]);
    first.log.append(&head).unwrap();
    let votes: Vec<_> = (6..40).map(|i| vote(4, i, i)).collect();
    for vote in &votes {
        first.log.append(std::slice::from_ref(vote)).unwrap();
    }
    assert_eq!(first.log.files(), 6);
    drop(first);
    let mut second = opened(&disk);
    assert_eq!(second.records, [&head[..], &votes[..]].concat(), "nothing twice");
    store(&mut second, 30);
    second.log.truncate_below(Slot(30)).unwrap();
    assert_eq!(second.log.files(), 2);
    drop(second);
    let third = opened(&disk);
    assert!(third.repaired_gaps.is_empty());
    assert_eq!(third.records[..head.len()], head);
    assert!(third.records.ends_with(&votes[24..]));
    assert_eq!(third.log.files(), 2);
}

/// Recycled files are full of valid groups of an earlier use; none of them comes back.
#[test]
fn records_of_an_earlier_use_never_come_back() {
    let mut disk = formatted(Durability::Sync);
    let mut log = opened(&disk);
    for i in 1..200 {
        log.log.append(&[vote(0, i, i)]).unwrap();
        if i % 20 == 0 {
            store(&mut log, i);
            log.log.truncate_below(Slot(i)).unwrap();
        }
    }
    drop(log);
    assert!(disk.list("log").unwrap().len() <= 2 + 5, "files are used again");
    let again = opened(&disk);
    let slots: Vec<u64> = again.records.iter().filter_map(Record::slot).map(|s| s.0).collect();
    assert!(slots.windows(2).all(|pair| pair[1] == pair[0] + 1), "{slots:?}");
    assert_eq!(slots.last(), Some(&199));
    assert!(again.repaired_gaps.is_empty());
}

#[test]
fn a_group_larger_than_a_file_gets_a_file_of_its_own() {
    let large: Vec<Record> = (1..400).map(|i| vote(0, i, i)).collect();
    let mut disk = written(&[vec![Record::View(View(1))], large.clone(), vec![vote(1, 400, 400)]]);
    let mut again = opened(&disk);
    assert_eq!(again.records.len(), 401);
    assert_eq!(again.records[1..400], large);
    store(&mut again, 399);
    again.log.truncate_below(Slot(399)).unwrap();
    assert_eq!(again.log.files(), 1);
    let mut free = disk.list("log").unwrap();
    free.retain(|name| name.starts_with("free"));
    assert_eq!(free, ["free-0000000000000001"], "it is removed, not used again");
}

#[test]
fn laggards_are_served_from_disk() {
    let disk = written(&[
        vec![vote(0, 1, 1), vote(0, 2, 2)],
        vec![vote(1, 2, 22), accepts(0, 1, 1, 3)],
        vec![Record::Decision {
            slot: Slot(3),
            view: View(1),
            batch: batch(3),
            accepts: certificate(2),
        }],
    ]);
    let mut log = opened(&disk).log;
    log.append(&[accepts(5, 2, 22, 4), vote(1, 4, 4)]).unwrap();
    let wanted: Vec<_> = [(1, 1), (2, 22), (3, 3), (4, 4), (5, 5), (2, 2)]
        .map(|(slot, number)| (Slot(slot), batch(number).digest()))
        .to_vec();
    let found = log.read_decisions(&wanted, usize::MAX).unwrap();
    let seen: Vec<_> =
        found.iter().map(|d| (d.slot.0, d.view.0, d.batch.time().0, d.accepts.len())).collect();
    assert_eq!(seen, [(1, 0, 2, 3), (2, 5, 23, 4), (3, 1, 4, 2), (4, 1, 5, 0), (2, 0, 3, 0)]);
    assert_eq!(log.read_decisions(&wanted, 1).unwrap().len(), 1, "at least one");

    let mut disk = disk;
    disk.flip_bit(FIRST, GROUPS + 128 + 30, 0).unwrap();
    assert!(matches!(log.read_decisions(&wanted, 1), Err(LogError::Corrupt { .. })));
    assert_eq!(log.read_decisions(&wanted[2..], 1).unwrap().len(), 1, "the rest is served");
}

/// A decision that fits exactly is served; one byte more is for the next time.
#[test]
fn laggards_get_as_many_bytes_as_they_asked_for() {
    let votes: Vec<_> = (1..5).map(|i| vote(0, i, i)).collect();
    let bytes: Vec<_> = votes.iter().map(|vote| vote.to_bytes().len() + 24).collect();
    let wanted: Vec<_> = (1..5).map(|i| (Slot(i), batch(i).digest())).collect();
    let mut log = opened(&written(&[votes])).log;
    for count in 1..4 {
        let budget = bytes[..count].iter().sum();
        assert_eq!(log.read_decisions(&wanted, budget).unwrap().len(), count);
        assert_eq!(log.read_decisions(&wanted, budget - 1).unwrap().len(), (count - 1).max(1));
    }
}

/// A page of another group, with records that verify by themselves, is not served for what was
/// asked.
#[test]
fn a_misplaced_record_is_corrupt() {
    for other in [vote(1, 2, 3), vote(0, 3, 2), vote(0, 3, 3)] {
        let mut disk = written(&[vec![vote(0, 2, 2)], vec![other]]);
        let mut log = opened(&disk).log;
        let page = read(&mut disk, FIRST, GROUPS + 4096, 4096);
        disk.write_at(FIRST, GROUPS, &page).unwrap();
        let found = log.read_decisions(&[(Slot(2), batch(2).digest())], 1);
        assert!(matches!(found, Err(LogError::Corrupt { offset, .. }) if offset == GROUPS + 128));
    }
}

/// Else a laggard would get signatures for another slot with a batch, and take who sends them for a liar.
#[test]
fn misplaced_accepts_are_corrupt() {
    let own = accepts(0, 2, 2, 3);
    for other in [accepts(0, 3, 2, 3), accepts(0, 2, 3, 3)] {
        let mut disk = written(&[vec![vote(0, 2, 2)], vec![own.clone()], vec![other]]);
        let mut log = opened(&disk).log;
        let wanted = [(Slot(2), batch(2).digest())];
        assert_eq!(log.read_decisions(&wanted, 1).unwrap()[0].accepts.len(), 3);
        let page = read(&mut disk, FIRST, GROUPS + 2 * 4096, 4096);
        disk.write_at(FIRST, GROUPS + 4096, &page).unwrap();
        let found = log.read_decisions(&wanted, 1);
        assert!(matches!(found, Err(LogError::Corrupt { .. })), "{found:?}");
    }
}

#[test]
fn the_log_knows_what_it_promised() {
    let disk = written(&[vec![vote(3, 9, 1)], vec![vote(4, 5, 2)], vec![delivered(11)]]);
    let mut log = opened(&disk).log;
    let promised = Position { votes: Slot(9), slots: Slot(11), view: View(4) };
    assert_eq!(log.position(), promised);
    log.append(&[Record::View(View(6)), vote(6, 12, 1)]).unwrap();
    let promised = Position { votes: Slot(12), slots: Slot(12), view: View(6) };
    assert_eq!(log.position(), promised);
    drop(log);
    assert_eq!(opened(&disk).log.position(), promised);
}

/// Without a flush for each append, a crash may take what one flush on request would have kept.
#[test]
fn a_flush_on_request_makes_everything_durable() {
    let votes: Vec<_> = (1..20).map(|i| vote(0, i, i)).collect();
    let kept = |flush: bool, seed| {
        let mut disk = formatted(Durability::Async);
        let mut log = opened(&disk).log;
        votes.iter().for_each(|vote| log.append(std::slice::from_ref(vote)).unwrap());
        if flush {
            log.flush().unwrap();
        }
        let mut random = Random(seed);
        disk.crash(|| random.word());
        reopen(disk).is_ok_and(|opened| opened.records == votes)
    };
    assert!((0..20).all(|seed| kept(true, seed)));
    assert!(!(0..20).all(|seed| kept(false, seed)));
}

#[test]
fn the_index_is_bounded_by_truncation() {
    let disk = formatted(Durability::Sync);
    let mut opened = opened(&disk);
    for i in 1..60 {
        opened.log.append(&[vote(0, i, i)]).unwrap();
    }
    store(&mut opened, 50);
    opened.log.truncate_below(Slot(50)).unwrap();
    let get = |log: &mut perdura_durability::Log<MemoryDisk>, i: u64| {
        log.read_decisions(&[(Slot(i), batch(i).digest())], 1).unwrap().len()
    };
    assert_eq!(get(&mut opened.log, 10), 0);
    assert_eq!(get(&mut opened.log, 55), 1);
    opened.log.truncate_below(Slot(u64::MAX)).unwrap();
    assert_eq!(get(&mut opened.log, 59), 1, "the file that is written to stays");
}

#[test]
fn a_full_disk_poisons_the_log_and_loses_nothing() {
    let mut disk = formatted(Durability::Sync);
    let mut full = opened(&disk);
    disk.set_capacity(Some(16 * 1024 + 4096 + 2 * 32 * 1024));
    let mut kept = Vec::new();
    let error = loop {
        let record = vote(0, kept.len() as u64 + 1, 1);
        match full.log.append(std::slice::from_ref(&record)) {
            Ok(()) => kept.push(record),
            Err(error) => break error,
        }
    };
    assert_eq!(kept.len(), 12);
    let LogError::Disk(error) = error else { panic!("{error}") };
    assert_eq!(error.source.kind(), std::io::ErrorKind::StorageFull);
    disk.set_capacity(None);
    assert!(matches!(full.log.append(&kept), Err(LogError::Poisoned)));
    assert!(matches!(full.log.truncate_below(Slot(9)), Err(LogError::Poisoned)));
    assert!(matches!(full.log.flush(), Err(LogError::Poisoned)));
    drop(full);
    assert_eq!(opened(&disk).records, kept);
}

/// A flush fails, the process is started again and reads the group from the cache, as if it were
/// durable. What it then relies on must survive a crash of the machine.
#[test]
fn what_is_read_after_a_failed_flush_is_made_durable_before_it_is_used() {
    let mut random = Random(1);
    for _ in 0..20 {
        let mut disk = written(&[vec![vote(0, 1, 1)]]);
        let mut failing = opened(&disk);
        disk.fail_next_sync();
        assert!(matches!(failing.log.append(&[vote(0, 2, 2)]), Err(LogError::Disk(_))));
        disk.restart_process();
        let found = opened(&disk).records;
        assert_eq!(found.len(), 2, "visible in the cache");
        disk.crash(|| random.word());
        assert_eq!(opened(&disk).records, found);
    }
}

/// The head of a file names its first group; it goes with the flush of that group, and is written
/// again with it when that flush failed.
#[test]
fn the_head_of_a_file_is_as_durable_as_its_first_group() {
    let first_group = |disk: &mut MemoryDisk, file: &str| {
        let head = read(disk, file, 0, 64);
        assert_eq!(&head[..8], b"PDLOGFIL");
        u64::from_le_bytes(head[56..].try_into().unwrap())
    };
    let mut random = Random(1);
    for groups in 1..12 {
        let mut disk = written(&(1..groups).map(|i| vec![vote(0, i, i)]).collect::<Vec<_>>());
        let mut failing = opened(&disk);
        disk.fail_next_sync();
        assert!(failing.log.append(&[vote(0, groups, groups)]).is_err());
        disk.restart_process();
        drop(opened(&disk));
        disk.crash(|| random.word());
        assert_eq!(opened(&disk).records.len() as u64, groups);
        for (index, file) in log_files(&mut disk).into_iter().enumerate() {
            assert_eq!(first_group(&mut disk, &file), 1 + 6 * index as u64, "{groups}");
        }
    }
}

/// A file is sealed after the first group of the next one; a seal that may be in the cache only is
/// made durable, and those before it are not written again.
#[test]
fn the_last_seal_is_made_durable_when_the_log_is_opened() {
    let groups: Vec<_> = (1..=24).map(|i| vec![vote(0, i, i)]).collect();
    let seal = |disk: &mut MemoryDisk, file: &str, number: u64| {
        let mark = read(disk, file, 4096 + number % 2 * 512, 48);
        u64::from_le_bytes(mark[32..40].try_into().unwrap()) == number
    };
    for files in 1..4 {
        let full = 6 * files;
        let mut disk = written(&groups[..full]);
        let file = log_files(&mut disk).pop().unwrap();
        let mut failing = opened(&disk);
        let errors = Errors { operation: Operation::Sync, after: 2, sticky: false, short: false };
        disk.fail(errors); // The directory with the new name, the group, then the seal.
        assert!(failing.log.append(&groups[full]).is_err());
        disk.restart_process();
        drop(opened(&disk));
        let losses = disk.crash(|| 1);
        assert_eq!(losses.sectors, 0, "nothing was left in the cache");
        assert!(seal(&mut disk, &file, full as u64 + 1), "{files} files");
        assert_eq!(opened(&disk).records.len(), full + 1);
    }
    let cost = |groups: &[Vec<Record>]| {
        let disk = written(groups);
        let before = disk.operations();
        drop(opened(&disk));
        disk.operations() - before
    };
    assert_eq!(cost(&groups[..20]), cost(&groups[..8]));
}

/// Opening finishes what a crash cut short: names that were to go are gone, and as many files are
/// kept for their next use as are asked for, of the right size.
#[test]
fn opening_frees_what_is_of_no_use() {
    let groups: Vec<_> = (1..=24).map(|i| vec![vote(0, i, i)]).collect();
    let mut disk = written(&groups);
    store(&mut opened(&disk), 12);
    let files = log_files(&mut disk);
    disk.remove(&files[1]).unwrap(); // The second file was freed, durably, and the first was not.
    disk.create("log/0000000000000009", 32 * 1024).unwrap(); // Begun, and its first group torn.
    let again = opened(&disk);
    assert!(again.repaired_gaps.is_empty());
    assert_eq!((again.log.files(), log_files(&mut disk)), (2, files[2..].to_vec()));
    drop(again);
    let free = |disk: &mut MemoryDisk| {
        let names = disk.list("log").unwrap();
        names.into_iter().filter(|name| name.starts_with("free")).collect::<Vec<_>>()
    };
    let name = |number: u64| format!("free-{number:016}");
    assert_eq!(free(&mut disk), [1, 9].map(name), "two are kept");
    for (number, bytes) in [(0, 40 * 1024), (20, 32 * 1024), (21, 32 * 1024)] {
        disk.create(&format!("log/{}", name(number)), bytes).unwrap();
    }
    drop(opened(&disk));
    assert_eq!(free(&mut disk), [1, 9].map(name), "of another size, and too many");
    disk.remove(&format!("log/{}", name(9))).unwrap();
    drop(opened(&disk));
    assert_eq!(free(&mut disk), [1].map(name));
}

/// A disk that gives what it holds once: whatever of the log is read a second time by a process has
/// a wrong bit.
struct Fickle {
    disk: MemoryDisk,
    read: Arc<Mutex<BTreeSet<(String, u64)>>>,
}

impl Fickle {
    fn new(disk: &MemoryDisk) -> Fickle {
        Fickle { disk: disk.handle(), read: Arc::default() }
    }
}

impl Disk for Fickle {
    fn handle(&self) -> Fickle {
        Fickle { disk: self.disk.handle(), read: Arc::clone(&self.read) }
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        self.disk.read_at(name, offset, buffer)?;
        let mut read = self.read.lock().unwrap();
        for (at, byte) in (offset..).zip(buffer) {
            if name.starts_with("log/0") && !read.insert((name.to_owned(), at)) {
                *byte ^= 1;
            }
        }
        Ok(())
    }

    fn create(&mut self, name: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.disk.create(name, size_bytes)
    }

    fn write_at(&mut self, name: &str, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        self.disk.write_at(name, offset, data)
    }

    fn write_zeros(&mut self, name: &str, offset: u64, length: u64) -> Result<(), DiskError> {
        self.disk.write_zeros(name, offset, length)
    }

    fn sync(&mut self, name: &str) -> Result<(), DiskError> {
        self.disk.sync(name)
    }

    fn sync_directory(&mut self, directory: &str) -> Result<(), DiskError> {
        self.disk.sync_directory(directory)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }

    fn shrink(&mut self, name: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.disk.shrink(name, size_bytes)
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        self.disk.remove(name)
    }

    fn list(&mut self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list(directory)
    }

    fn len(&mut self, name: &str) -> Result<u64, DiskError> {
        self.disk.len(name)
    }

    fn exists(&mut self, name: &str) -> Result<bool, DiskError> {
        self.disk.exists(name)
    }
}

/// The last group is written again when a log is resumed, as it was verified and not as it is read
/// a second time; in a file of several groups, and as the first of a file, with its header.
#[test]
fn what_a_second_read_gives_is_not_written_back() {
    for groups in [1, 3, 7, 9] {
        let written = written(&(1..=groups).map(|i| vec![vote(0, i, i)]).collect::<Vec<_>>());
        let mut disk = written.copy();
        let files = log_files(&mut disk);
        let content = |disk: &mut MemoryDisk| {
            files.iter().map(|name| read(disk, name, 0, 32 * 1024)).collect::<Vec<_>>()
        };
        let before = content(&mut disk);
        let opened_once = reopen(Fickle::new(&disk)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(opened_once.records.len() as u64, groups);
        drop(opened_once);
        assert_eq!(content(&mut disk), before, "{groups} groups");
        assert_eq!(opened(&disk).records, opened(&written).records);
    }
}

#[test]
fn a_free_file_is_made_ready_in_advance() {
    let mut disk = formatted(Durability::Sync);
    let mut log = opened(&disk).log;
    log.prepare_free_file().unwrap();
    let before = disk.operations();
    log.prepare_free_file().unwrap();
    assert_eq!(disk.operations(), before);
    assert_eq!(disk.list("log").unwrap(), ["0000000000000001", "free-0000000000000002", "marks"]);
    for i in 1..8 {
        log.append(&[vote(0, i, i)]).unwrap();
    }
    assert_eq!(disk.list("log").unwrap(), ["0000000000000001", "0000000000000003", "marks"]);
    drop(log);
    assert_eq!(opened(&disk).records.len(), 7);
}
