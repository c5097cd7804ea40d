//! The flush marks, from the outside: they tell rot from a torn write in the last group, outlast what they have
//! to, and cost no flush.

use crate::common::*;
use perdura_durability::{Disk, MemoryDisk};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Record, Slot, View};

/// The last group, acknowledged, rots: the flush mark tells it from a torn tail.
#[test]
fn rot_under_the_flush_mark_is_not_a_torn_tail() {
    let mut disk = written(&[vec![vote(0, 1, 1)], vec![vote(0, 2, 2)]]);
    disk.flip_bit(FIRST, GROUPS + 4096 + 200, 4).unwrap();
    assert_eq!(lost_votes(&disk), Some(Slot(2)), "its header still tells what was lost");
    disk.flip_bit(FIRST, GROUPS + 4096 + 70, 4).unwrap();
    assert_eq!(lost_votes(&disk), None, "without the header nothing is known");

    let mut disk = written(&[vec![vote(0, 1, 1), delivered(1)], vec![Record::View(View(9))]]);
    disk.flip_bit(FIRST, GROUPS + 4096 + 149, 4).unwrap();
    let mut again = opened(&disk);
    assert_eq!(again.repaired_gaps[0].view, View(9));
    assert_eq!(again.records, [vote(0, 1, 1), delivered(1), Record::View(View(9))]);
    again.log.append(&[vote(9, 2, 5)]).unwrap();
    drop(again);
    assert_eq!(opened(&disk).records.last(), Some(&vote(9, 2, 5)));
}

/// The marks stand beside the files of the log. Without them, the last group alone is not known to have
/// been flushed, for the next one tells it of all others; and they are made anew.
#[test]
fn without_marks_only_the_last_group_may_have_been_torn() {
    const MARKS: &str = "log/marks";
    let groups = [vec![vote(0, 1, 1)], vec![vote(0, 2, 2)], vec![vote(0, 3, 3)]];
    let lacking = |rotten: Option<u64>| {
        let mut disk = written(&groups);
        if let Some(group) = rotten {
            disk.flip_bit(FIRST, GROUPS + 4096 * group + 200, 4).unwrap();
        }
        disk.remove(MARKS).unwrap();
        disk
    };
    let mut disk = lacking(None);
    assert_eq!(opened(&disk).records, groups.concat());
    assert!(disk.exists(MARKS).unwrap());
    assert_eq!(lost_votes(&lacking(Some(1))), Some(Slot(2)));
    let mut disk = lacking(Some(2));
    let mut again = opened(&disk);
    assert!(again.torn_tail.is_some());
    assert_eq!(again.records, groups[..2].concat());
    again.log.append(&groups[2]).unwrap();
    drop(again);
    disk.flip_bit(FIRST, GROUPS + 4096 * 2 + 200, 4).unwrap();
    assert_eq!(lost_votes(&disk), Some(Slot(3)), "its mark is there again");
}

/// A mark costs no flush, and stands in no file that is flushed.
#[test]
fn a_mark_outlasts_the_process_and_the_machine_after_an_end_or_a_start_in_order() {
    let rot = |disk: &MemoryDisk| {
        let mut rotten = disk.copy();
        rotten.flip_bit(FIRST, GROUPS + 200, 4).unwrap();
        reopen(rotten).map(|opened| opened.torn_tail.is_some())
    };
    for in_order in [false, true] {
        let mut disk = formatted(Durability::Sync);
        let mut first = opened(&disk);
        let before = disk.operations();
        first.log.append(&[vote(0, 1, 1)]).unwrap();
        assert_eq!(disk.operations() - before, 3, "a write, a flush, a mark");
        if in_order {
            first.log.flush().unwrap();
        }
        drop(first);
        assert!(rot(&disk).is_err(), "the process alone ended");
        disk.crash(|| 1);
        assert_eq!(rot(&disk).ok(), (!in_order).then_some(true));
        assert_eq!(opened(&disk).records, [vote(0, 1, 1)]);
        disk.crash(|| 1);
        assert!(rot(&disk).is_err(), "flushed at the start");
    }
}

/// Of what a start finds lost at the end, the next start finds the same.
#[test]
fn marks_of_lost_groups_stay() {
    let groups: Vec<_> = (1..6).map(|i| vec![Record::View(View(i))]).collect();
    for lost in 1..=4 {
        let mut disk = written(&groups);
        for group in 5 - lost..5 {
            disk.flip_bit(FIRST, GROUPS + 4096 * group + 149, 4).unwrap();
        }
        let judged = |disk: &MemoryDisk| {
            let again = opened(disk);
            let gaps =
                again.repaired_gaps.iter().map(|gap| (gap.first_group, gap.last_group, gap.view));
            (gaps.collect::<Vec<_>>(), again.torn_tail.is_some())
        };
        let first = judged(&disk);
        assert!(!first.1 && first.0.last().is_some_and(|gap| gap.1 == 5), "{lost}: {first:?}");
        assert_eq!(judged(&disk), first, "{lost}");
        assert_eq!(judged(&disk), first, "{lost}");
    }
}

/// They are flushed after every so many groups, not with each.
#[test]
fn marks_are_flushed_now_and_then() {
    let mut disk = formatted(Durability::Sync);
    let mut log = opened(&disk).log;
    let mut flushes = Vec::new();
    for group in 1..=256 {
        log.append(&[Record::View(View(group))]).unwrap();
        let before = disk.operations();
        log.flush_marks().unwrap();
        flushes.extend((disk.operations() > before).then_some(group));
    }
    assert_eq!(flushes, [128, 256]);
    drop(log);
    disk.crash(|| 1);
    let last = log_files(&mut disk).pop().unwrap();
    let groups = (disk.len(&last).unwrap() - GROUPS) / 4096;
    let held = (0..groups).rev().find(|group| {
        read(&mut disk, &last, GROUPS + 4096 * group, 4096).iter().any(|byte| *byte != 0)
    });
    disk.flip_bit(&last, GROUPS + 4096 * held.unwrap() + 149, 4).unwrap();
    let again = opened(&disk);
    assert!(again.torn_tail.is_none() && again.repaired_gaps.len() == 1);
}
