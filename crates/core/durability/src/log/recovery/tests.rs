//! Rows of files with three groups each, group g at its place with one vote, for slot g in view g,
//! each flushed and marked; from which something is then taken away.

use super::super::frame::FrameFormat;
use super::super::group::PAGE_BYTES;
use super::super::scan::FileScan;
use super::*;
use crate::log::group::PlacedRecord;
use perdura_protocol::Digest;

const PER_FILE: u64 = 3;

fn after(number: u64) -> Position {
    Position { votes: Slot(number), slots: Slot(number), view: View(number) }
}

fn header(number: u64) -> GroupHeader {
    GroupHeader {
        format: FrameFormat::NEWEST,
        records_sum: Default::default(),
        use_number: (number - 1) / PER_FILE + 1,
        offset: GROUPS_OFFSET + (number - 1) % PER_FILE * PAGE_BYTES,
        number,
        payload_bytes: 100,
        records: 0,
        carried: 0,
        before: after(number - 1),
        after: after(number),
    }
}

/// The `use_number`-th file, sealed if a later one was begun.
fn file(use_number: u64, last: bool) -> FileScan {
    let first = (use_number - 1) * PER_FILE + 1;
    let group = |number| FoundGroup { header: header(number), records: Vec::new() };
    let mark = Some(first + PER_FILE - u64::from(last));
    FileScan {
        use_number,
        size_bytes: GROUPS_OFFSET + PER_FILE * PAGE_BYTES,
        first_group: Some(first),
        sealed: mark,
        mark,
        groups: (first..first + PER_FILE).map(group).collect(),
        damaged: Vec::new(),
    }
}

/// The files from use `first` to use `last`.
fn row(first: u64, last: u64) -> LogScan {
    let files = (first..=last).map(|number| file(number, number == last)).collect();
    LogScan { files, free: Vec::new(), last_use: last }
}

/// Takes away what stands of group `number`.
fn lose(scan: &mut LogScan, number: u64) {
    for file in &mut scan.files {
        file.groups.retain(|group| group.header.number != number);
    }
}

/// Leaves the header of group `number` only.
fn damage(scan: &mut LogScan, number: u64) {
    lose(scan, number);
    let header = header(number);
    let file = scan.files.iter_mut().find(|file| file.use_number == header.use_number);
    file.unwrap().damaged.push(header);
}

fn numbers(scan: &LogScan, judgement: &Judgement) -> Vec<u64> {
    let groups = judgement.groups.iter();
    groups.map(|(file, index)| scan.files[*file].groups[*index].header.number).collect()
}

/// File, offset as a page after the first group, and groups of each gap.
fn gaps(scan: &LogScan, checkpoint: u64, durable: u64) -> Vec<(String, u64, u64, u64)> {
    let judgement = judge(scan, Slot(checkpoint), Slot(durable)).unwrap();
    for gap in &judgement.gaps {
        let position =
            Position { votes: gap.votes_through, slots: gap.slots_through, view: gap.view };
        assert_eq!(position, after(gap.last_group), "what the next header tells");
    }
    let page = |offset: u64| (offset - GROUPS_OFFSET) / PAGE_BYTES;
    let gaps = judgement.gaps.into_iter();
    gaps.map(|gap| (gap.file, page(gap.offset), gap.first_group, gap.last_group)).collect()
}

fn lost(scan: &LogScan, covered: u64) -> LostVotes {
    judge(scan, Slot(0), Slot(covered)).unwrap_err()
}

#[test]
fn an_intact_row_is_used_as_a_whole() {
    let scan = row(1, 3);
    // Also where a checkpoint covers files that are still there: their votes may be locks.
    for checkpoint in [0, 3, 6, 9] {
        let judgement = judge(&scan, Slot(checkpoint), Slot(checkpoint)).unwrap();
        assert_eq!(numbers(&scan, &judgement), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(judgement.gaps.is_empty() && judgement.torn.is_none());
        assert_eq!(judgement.reaches_from, Slot(0));
        let offset = header(9).end();
        let tail =
            Tail { file: 2, offset, next_group: 10, position: after(9), told_by: ToldBy::Itself };
        assert_eq!(judgement.tail, Some(tail));
    }
}

#[test]
fn a_row_that_begins_later_was_truncated_below_the_checkpoint() {
    let scan = row(2, 3);
    let judgement = judge(&scan, Slot(3), Slot(3)).unwrap();
    assert_eq!(numbers(&scan, &judgement), [4, 5, 6, 7, 8, 9]);
    assert!(judgement.gaps.is_empty());
    assert_eq!(judgement.reaches_from, Slot(3));
    // With a checkpoint before it, more was lost than truncated.
    assert_eq!(gaps(&scan, 2, 3), [(name_of(2), 0, 1, 3)]);
    let LostVotes { file, offset, votes_through, covered } = lost(&scan, 2);
    assert_eq!((file, offset), (name_of(2), GROUPS_OFFSET));
    assert_eq!((votes_through, covered), (Some(Slot(3)), Slot(2)));
}

#[test]
fn truncation_takes_whole_files_only() {
    let mut scan = row(2, 3);
    lose(&mut scan, 4);
    assert_eq!(gaps(&scan, 9, 9), [(name_of(2), 0, 1, 4)]);
}

#[test]
fn a_hole_is_a_loss_unless_all_votes_before_its_end_are_covered() {
    let mut scan = row(1, 3);
    lose(&mut scan, 5);
    lose(&mut scan, 8);
    assert_eq!(lost(&scan, 4).votes_through, Some(Slot(5)));
    assert_eq!(lost(&scan, 7).votes_through, Some(Slot(8)));
    assert_eq!(gaps(&scan, 8, 8), [(name_of(2), 1, 5, 5), (name_of(3), 1, 8, 8)]);
}

/// Files are freed oldest first, but the names of the oldest may be the last to become durable.
#[test]
fn what_stands_before_freed_files_is_a_remnant() {
    let mut scan = row(1, 5);
    scan.files.remove(3);
    scan.files.remove(1);
    let judgement = judge(&scan, Slot(12), Slot(12)).unwrap();
    assert_eq!(numbers(&scan, &judgement), [13, 14, 15]);
    assert!(judgement.gaps.is_empty());
    // Covered by the checkpoint the first hole only: not truncated, so lost.
    let judgement = judge(&scan, Slot(6), Slot(12)).unwrap();
    assert_eq!(numbers(&scan, &judgement), [7, 8, 9, 13, 14, 15]);
    assert_eq!(gaps(&scan, 6, 12), [(name_of(3), 3, 10, 12)]);
    assert_eq!(gaps(&scan, 5, 12).len(), 2);
}

#[test]
fn only_freed_files_leave_a_remnant() {
    let without_second = || {
        let mut scan = row(1, 3);
        scan.files.remove(1);
        scan
    };
    assert_eq!(gaps(&without_second(), 9, 9), []);
    // The file before is not sealed after what stands in it: its end rotted.
    for mark in [None, Some(3), Some(5)] {
        let mut scan = without_second();
        (scan.files[0].sealed, scan.files[0].mark) = (mark, mark);
        assert_eq!(gaps(&scan, 9, 9), [(name_of(1), 3, 4, 6)], "{mark:?}");
    }
    // A mark beside it says that a group was flushed that stood in it and is lost.
    let mut scan = without_second();
    (scan.files[0].sealed, scan.files[0].mark) = (None, Some(4));
    assert_eq!(gaps(&scan, 9, 9), [(name_of(1), 3, 4, 6)]);
    // The first group of the next file is gone too.
    let mut scan = without_second();
    lose(&mut scan, 7);
    assert_eq!(gaps(&scan, 9, 9), [(name_of(1), 3, 4, 7)]);
    // The file between is there: everything in it rotted.
    let mut scan = row(1, 3);
    scan.files[1].groups.clear();
    assert_eq!(gaps(&scan, 9, 9), [(name_of(1), 3, 4, 6)]);
    // The hole is inside a file whose mark was lost.
    let mut scan = row(1, 3);
    lose(&mut scan, 2);
    (scan.files[0].sealed, scan.files[0].mark) = (Some(2), Some(2));
    assert_eq!(gaps(&scan, 9, 9), [(name_of(1), 1, 2, 2)]);
}

#[test]
fn the_end_is_lost_when_somebody_knows_that_it_was_flushed() {
    let mut scan = row(1, 2);
    lose(&mut scan, 6);
    let loss = lost(&scan, 9);
    assert_eq!((loss.file, loss.offset), (name_of(2), header(5).end()));
    assert_eq!(loss.votes_through, None, "by the mark; what it promised nobody knows");
    // Without the mark nothing speaks of it.
    scan.files[1].mark = Some(5);
    let tail = judge(&scan, Slot(0), Slot(0)).unwrap().tail;
    let expected = Tail {
        file: 1,
        offset: header(5).end(),
        next_group: 6,
        position: after(5),
        told_by: ToldBy::Itself,
    };
    assert_eq!(tail, Some(expected));
    // A file that was begun after it does.
    scan.files.push(FileScan { groups: Vec::new(), sealed: None, mark: None, ..file(3, true) });
    assert_eq!(lost(&scan, 9).votes_through, None);
    // Everything is gone but a mark.
    let mut scan = row(4, 4);
    scan.files[0].groups.clear();
    let LostVotes { file, offset, votes_through, .. } = lost(&scan, 99);
    assert_eq!((file, offset, votes_through), (name_of(4), GROUPS_OFFSET, None));
}

#[test]
fn a_header_without_its_records_still_tells_what_was_lost() {
    let mut scan = row(1, 2);
    damage(&mut scan, 6);
    assert_eq!(lost(&scan, 5).votes_through, Some(Slot(6)));
    let judgement = judge(&scan, Slot(0), Slot(6)).unwrap();
    assert_eq!(gaps(&scan, 0, 6), [(name_of(2), 2, 6, 6)]);
    let (offset, position) = (header(6).end(), after(6));
    let tail = Tail { file: 1, offset, next_group: 7, position, told_by: ToldBy::ItsHeader };
    assert_eq!((judgement.tail, judgement.torn), (Some(tail), None));
    // So does that of the group after, which was torn.
    let mut scan = row(1, 2);
    lose(&mut scan, 5);
    damage(&mut scan, 6);
    scan.files[1].mark = None;
    assert_eq!(lost(&scan, 4).votes_through, Some(Slot(5)));
    let judgement = judge(&scan, Slot(0), Slot(5)).unwrap();
    assert_eq!(gaps(&scan, 0, 5), [(name_of(2), 1, 5, 5)]);
    let (offset, position) = (header(6).offset, after(5));
    let tail = Tail { file: 1, offset, next_group: 6, position, told_by: ToldBy::TheNext };
    assert_eq!(judgement.tail, Some(tail));
    let torn = TornTail { file: name_of(2), offset: header(6).offset };
    assert_eq!(judgement.torn, Some(torn));
}

#[test]
fn a_last_group_that_nobody_knows_as_flushed_is_torn() {
    let mut scan = row(1, 2);
    damage(&mut scan, 6);
    scan.files[1].mark = Some(5);
    let judgement = judge(&scan, Slot(0), Slot(0)).unwrap();
    assert_eq!(numbers(&scan, &judgement), [1, 2, 3, 4, 5]);
    assert!(judgement.gaps.is_empty());
    let torn = TornTail { file: name_of(2), offset: header(6).offset };
    assert_eq!(judgement.torn, Some(torn));
    assert_eq!(judgement.tail.map(|tail| tail.next_group), Some(6));
    // Also where it is the first of all.
    let mut scan = row(1, 1);
    damage(&mut scan, 1);
    lose(&mut scan, 2);
    lose(&mut scan, 3);
    scan.files[0].mark = None;
    let judgement = judge(&scan, Slot(0), Slot(0)).unwrap();
    assert!(judgement.tail.is_none() && judgement.gaps.is_empty());
    assert_eq!(judgement.torn.unwrap().offset, GROUPS_OFFSET);
}

#[test]
fn an_empty_log_lost_nothing() {
    let scan = LogScan::default();
    let judgement = judge(&scan, Slot(0), Slot(0)).unwrap();
    assert!(judgement.tail.is_none() && judgement.torn.is_none() && judgement.gaps.is_empty());
}

#[test]
fn decided_slots_are_covered_by_what_the_log_itself_says_of_them() {
    let delivered = |slot| Record::Delivered { slot: Slot(slot), history: Digest::of(b"so far") };
    let prefix = |slot| {
        let genesis = perdura_protocol::viewchange::PrefixCertificate::genesis();
        Record::Prefix(perdura_protocol::viewchange::PrefixCertificate {
            slot: Slot(slot),
            ..genesis
        })
    };
    for (records, covered) in [
        ([delivered(5), prefix(2)], true),
        ([prefix(1), prefix(5)], true),
        ([delivered(4), prefix(4)], false),
        ([delivered(5), delivered(3)], true),
    ] {
        let mut scan = row(1, 2);
        lose(&mut scan, 5);
        for (offset, record) in records.into_iter().enumerate() {
            scan.files[0].groups[0].records.push(PlacedRecord { offset, bytes: 1, record });
        }
        assert_eq!(judge(&scan, Slot(0), Slot(0)).is_ok(), covered);
    }
}
