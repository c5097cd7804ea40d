//! Torn groups: what their headers say of lost ones, and what they must not say.

use crate::common::*;
use perdura_durability::{Disk, MemoryDisk, OpenError};
use perdura_protocol::{Record, View};

/// The header of a torn group that nothing was written over must never speak for a later group of
/// the same number, which stands in another file.
#[test]
fn a_torn_group_never_speaks_for_a_lost_one() {
    let mut disk = written(&[vec![vote(0, 1, 1), delivered(1)]]);
    let mut torn = disk.copy();
    opened(&torn).log.append(&[Record::View(View(5))]).unwrap();
    let header = read(&mut torn, FIRST, GROUPS + 4096, 128);
    disk.write_at(FIRST, GROUPS + 4096, &header).unwrap();
    let mut again = opened(&disk);
    assert!(again.torn_tail.is_some());
    let large: Vec<Record> = (2..120).map(|i| vote(0, i, i)).collect();
    again.log.append(&large).unwrap();
    drop(again);
    let files = log_files(&mut disk);
    assert_eq!(files.len(), 2);
    disk.flip_bit(&files[1], GROUPS + 60, 0).unwrap();
    assert_eq!(lost_votes(&disk), None);
}

/// The last group that was flushed, with the last view, is lost, but for its header or as a whole. That it was flushed
/// only the header of the torn group behind it says, in the same file or as the first of the next; the name of that file.
fn torn_behind_a_lost_group(next_file: bool, header_too: bool) -> (MemoryDisk, String) {
    let first = if next_file { vec![configuration(1)] } else { vec![] };
    let mut groups = vec![first, vec![vote(0, 1, 1), delivered(1)]];
    groups.extend((2..6).map(|view| vec![Record::View(View(view))]));
    let mut disk = written(&groups);
    let lost = if next_file { 5 } else { 4 };
    let mut torn = disk.copy();
    opened(&torn).log.append(&[vote(5, 2, 2)]).unwrap();
    let name = log_files(&mut torn).pop().unwrap();
    let offset = if next_file { GROUPS } else { GROUPS + 4096 * (lost + 1) };
    let header = read(&mut torn, &name, offset, 128);
    if next_file {
        disk.create(&name, 32 * 1024).unwrap();
        disk.sync_directory("log").unwrap();
    }
    for (name, offset, bytes) in [(&*name, offset, &*header), ("log/marks", 0, &[0; 4096])] {
        disk.write_at(name, offset, bytes).unwrap();
        disk.sync(name).unwrap();
    }
    let place = if header_too { 70 } else { 149 };
    disk.flip_bit(FIRST, GROUPS + 4096 * lost + place, 0).unwrap();
    (disk, name)
}

/// What a start knows of a lost group by headers alone, the next start knows too, whenever the replica stops between.
#[test]
fn what_headers_tell_of_a_lost_group_is_never_forgotten() {
    for (next_file, header_too) in [(false, true), (true, true), (false, false), (true, false)] {
        let (mut disk, name) = torn_behind_a_lost_group(next_file, header_too);
        let number = if next_file { 6 } else { 5 };
        let mut cuts = 0;
        for cut in 0.. {
            let mut random = Random(cut);
            let mut copy = disk.copy();
            copy.fail_after(cut);
            let finished = reopen(copy.handle()).is_ok();
            cuts += u64::from(!finished);
            copy.crash(|| random.word());
            for _ in 0..2 {
                let again = reopen(copy.handle()).unwrap_or_else(|error| panic!("{cut}: {error}"));
                let gaps = again.repaired_gaps.iter();
                let gaps: Vec<_> =
                    gaps.map(|gap| (gap.first_group, gap.last_group, gap.view)).collect();
                assert_eq!(gaps, [(number, number, View(5))], "{next_file} {header_too} {cut}");
                assert!(again.records.contains(&Record::View(View(5))), "{cut}");
            }
            if finished {
                break;
            }
        }
        assert!(cuts > 5, "{cuts}");
        opened(&disk).log.append(&[vote(5, 2, 2)]).unwrap();
        assert_eq!(opened(&disk).records.last(), Some(&vote(5, 2, 2)));
        if next_file {
            // As in every file, the first group repeats what the files before it may take with them.
            assert!(!header_too || read(&mut disk, &name, GROUPS + 72, 1)[0] > 0);
            let last = log_files(&mut disk).pop().unwrap();
            disk.remove(&last).unwrap();
            assert!(
                matches!(reopen(disk), Err(OpenError::Amnesiac(_))),
                "the one before is sealed"
            );
        }
    }
}
