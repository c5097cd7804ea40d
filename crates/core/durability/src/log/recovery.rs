//! What is missing from a log, and whether it may be missing (rules D4 and D8). Pure.
//!
//! Groups are numbered without gaps over the life of the log, and group g + 1 is written only
//! after the flush of g returned. So a number that is known to have been flushed and is not there
//! was *lost*; known to have been flushed are
//! - every number below that of a group that verifies, or of a group's header that verifies, or
//!   below the first group of a file that was begun;
//! - every number that a flush mark covers.
//!
//! A group that does not verify and was not flushed is a *torn tail*: nobody was told of it, and
//! it is cut.
//!
//! Of lost groups the next header still tells the highest slot voted for before it, and the view.
//! If all those slots are *covered* (decided for certain: at or below a checkpoint that was
//! durable here, or a Delivered or Prefix record that is still there), no vote that matters is
//! lost: the loss is a [`RepairedGap`], the view is put back as a `View` record, and the batches
//! come back from peers. Else this replica no longer knows what it promised: it is amnesiac.
//! The cumulative *maximum* is compared because after a view change votes go to lower slots again:
//! that a later vote survived says nothing of the lost ones.
//!
//! Whole files missing between sealed files, all of whose slots the checkpoint covers, were freed;
//! what stands before them is a *remnant* of a truncation that a crash cut short, and is dropped in
//! silence. (A row that begins with a later file than the first was truncated in the same way.)

use super::file::{GROUPS_OFFSET, name_of};
use super::group::{GroupHeader, Position};
use super::scan::{FoundGroup, LogScan};
use perdura_protocol::{Record, Slot, View, seeded};

/// Groups that rotted, all of whose votes concern decided slots.
///
/// The locks among them are gone all the same. So the replica first fetches the batches up to
/// `slots_through`, and a certified prefix or state that reaches `votes_through`; until then it
/// sends no vote and no view change, which would have to carry those locks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RepairedGap {
    /// The file in which the loss begins, relative to the data directory.
    pub file: String,
    /// Offset of the first byte that is lost, or after the last good group.
    pub offset: u64,
    /// First lost group.
    pub first_group: u64,
    /// Last lost group.
    pub last_group: u64,
    /// No record above this slot is lost. Batches up to here may have to come from peers.
    pub slots_through: Slot,
    /// No vote above this slot is lost.
    pub votes_through: Slot,
    /// The view before the next group, put back into the records.
    pub view: View,
}

/// A last group that was not flushed when the machine stopped, and was cut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TornTail {
    /// The file.
    pub file: String,
    /// Where the group stood.
    pub offset: u64,
}

/// Groups are lost, and promises with them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LostVotes {
    pub(crate) file: String,
    pub(crate) offset: u64,
    // `None`: not known.
    pub(crate) votes_through: Option<Slot>,
    pub(crate) covered: Slot,
}

/// Where the log goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tail {
    // Index in the scan's files.
    pub(crate) file: usize,
    // First offset after the last group.
    pub(crate) offset: u64,
    pub(crate) next_group: u64,
    pub(crate) position: Position,
    pub(crate) told_by: ToldBy,
}

/// What tells where the last group ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ToldBy {
    // It verifies.
    Itself,
    // It is lost, but for its header.
    ItsHeader,
    // It is lost, and the header of a torn group after it is all that tells.
    TheNext,
}

/// The log as it is to be used.
#[derive(Debug)]
pub(crate) struct Judgement {
    // (file, group) indices in the scan, in order.
    pub(crate) groups: Vec<(usize, usize)>,
    pub(crate) gaps: Vec<RepairedGap>,
    pub(crate) torn: Option<TornTail>,
    // `None`: the log is empty.
    pub(crate) tail: Option<Tail>,
    // Every record above this slot that was ever written is there (or in a gap).
    pub(crate) reaches_from: Slot,
}

/// A group with its place in the scan.
#[derive(Clone, Copy)]
struct Placed<'a> {
    file: usize,
    index: usize,
    group: &'a FoundGroup,
}

impl Placed<'_> {
    fn number(&self) -> u64 {
        self.group.header.number
    }
}

/// Judges a scan. `checkpoint`: the slot of the state that the log is to be replayed on.
/// `durable`: the highest slot at which a checkpoint was ever durable here.
pub(crate) fn judge(
    scan: &LogScan,
    checkpoint: Slot,
    durable: Slot,
) -> Result<Judgement, LostVotes> {
    let placed: Vec<Placed> = scan
        .files
        .iter()
        .enumerate()
        .flat_map(|(file, f)| {
            f.groups.iter().enumerate().map(move |(index, group)| Placed { file, index, group })
        })
        .collect();
    let covered = covered(&placed).max(durable);
    let start = first_needed(scan, &placed, checkpoint);
    let kept = &placed[start..];
    let mut judgement = Judgement {
        groups: kept.iter().map(|p| (p.file, p.index)).collect(),
        gaps: Vec::new(),
        torn: None,
        tail: None,
        reaches_from: kept.first().map_or(Slot(0), |p| p.group.header.before.slots),
    };
    if let Some(first) = kept.first() {
        let GroupHeader { before, offset, .. } = first.group.header;
        if before.slots > checkpoint || offset != GROUPS_OFFSET {
            // Whole files were truncated, below a durable checkpoint; more than those is gone.
            let file = &scan.files[first.file];
            let at = LossPoint { file: name_of(file.use_number), offset: GROUPS_OFFSET, after: 0 };
            judgement.gaps.push(gap(at, first.number() - 1, before, covered)?);
        }
    }
    for pair in kept.windows(2) {
        if pair[1].number() != pair[0].number() + 1 {
            let at = LossPoint::after(scan, &pair[0]);
            let (last, before) = (pair[1].number().saturating_sub(1), pair[1].group.header.before);
            judgement.gaps.push(gap(at, last, before, covered)?);
        }
    }
    judge_tail(scan, kept.last(), covered, &mut judgement)?;
    Ok(judgement)
}

/// The highest slot that is known to be decided.
fn covered(placed: &[Placed]) -> Slot {
    let records = placed.iter().flat_map(|p| &p.group.records);
    records
        .filter_map(|placed| match &placed.record {
            Record::Delivered { slot, .. } => Some(*slot),
            Record::Prefix(prefix) => Some(prefix.slot),
            _ => None,
        })
        .max()
        .unwrap_or_default()
}

/// Index of the first group that is still needed: what stands before freed files, which the
/// checkpoint covers, is a remnant. Freed files left no file between the two, and the one before
/// them is sealed right after the last group in it.
fn first_needed(scan: &LogScan, placed: &[Placed], checkpoint: Slot) -> usize {
    let mut start = 0;
    for (index, pair) in placed.windows(2).enumerate() {
        let header = &pair[1].group.header;
        let hole = header.number > pair[0].number() + 1;
        let sealed = scan.files[pair[0].file].sealed == Some(pair[0].number() + 1);
        let next_file = pair[1].file == pair[0].file + 1 && header.offset == GROUPS_OFFSET;
        if hole && sealed && next_file && header.before.slots <= checkpoint {
            start = index + 1;
        }
    }
    start
}

/// Where a loss begins.
struct LossPoint {
    file: String,
    offset: u64,
    // The last group before it.
    after: u64,
}

impl LossPoint {
    fn after(scan: &LogScan, last: &Placed) -> LossPoint {
        LossPoint {
            file: name_of(scan.files[last.file].use_number),
            offset: last.group.header.end(),
            after: last.number(),
        }
    }
}

fn gap(
    at: LossPoint,
    last_group: u64,
    before_next: Position,
    covered: Slot,
) -> Result<RepairedGap, LostVotes> {
    let LossPoint { file, offset, after } = at;
    if before_next.votes > covered {
        return Err(LostVotes { file, offset, votes_through: Some(before_next.votes), covered });
    }
    Ok(RepairedGap {
        file,
        offset,
        first_group: after + 1,
        last_group,
        slots_through: before_next.slots,
        votes_through: before_next.votes,
        view: before_next.view,
    })
}

/// Judges what comes after the last group that verifies.
fn judge_tail(
    scan: &LogScan,
    last: Option<&Placed>,
    covered: Slot,
    judgement: &mut Judgement,
) -> Result<(), LostVotes> {
    let last_number = last.map_or(0, Placed::number);
    let flushed = scan.files.iter().map(flushed_through).max().unwrap_or(0);
    let at = match last {
        Some(last) => LossPoint::after(scan, last),
        None => LossPoint {
            file: scan.files.first().map_or(name_of(1), |file| name_of(file.use_number)),
            offset: GROUPS_OFFSET,
            after: 0,
        },
    };
    if flushed > last_number {
        // The last header that verifies tells what was lost; without one nothing does.
        let Some(tail) = end_of(scan, flushed) else {
            let LossPoint { file, offset, .. } = at;
            return Err(LostVotes { file, offset, votes_through: None, covered });
        };
        judgement.gaps.push(gap(at, flushed, tail.position, covered)?);
        judgement.tail = Some(tail);
    } else if let Some(last) = last {
        judgement.tail = Some(Tail {
            file: last.file,
            offset: last.group.header.end(),
            next_group: last_number + 1,
            position: last.group.header.after,
            told_by: ToldBy::Itself,
        });
    }
    let next = judgement.tail.map_or(1, |tail| tail.next_group);
    judgement.torn =
        damaged(scan).find(|(_, header)| header.number >= next).map(|(file, header)| TornTail {
            file: name_of(scan.files[file].use_number),
            offset: header.offset,
        });
    Ok(())
}

/// The highest group number that a file proves to have been flushed.
fn flushed_through(file: &super::scan::FileScan) -> u64 {
    let begun = file.first_group.map_or(0, |number| number.saturating_sub(1));
    let last = |number: u64| number - u64::from(!seeded!(TornTailIsCorruption));
    let damaged = file.damaged.iter().map(|header| last(header.number.max(1))).max();
    begun.max(damaged.unwrap_or(0)).max(file.mark.unwrap_or(0))
}

fn damaged(scan: &LogScan) -> impl Iterator<Item = (usize, &GroupHeader)> {
    let files = scan.files.iter().enumerate();
    files.flat_map(|(file, f)| f.damaged.iter().map(move |header| (file, header)))
}

/// Where group `number` ended and what the log had promised by then, as far as a header tells
/// that still verifies though its records do not: its own, or that of the next.
fn end_of(scan: &LogScan, number: u64) -> Option<Tail> {
    let next_group = number + 1;
    let own = damaged(scan).find(|(_, header)| header.number == number);
    if let Some((file, header)) = own {
        let (offset, position) = (header.end(), header.after);
        return Some(Tail { file, offset, next_group, position, told_by: ToldBy::ItsHeader });
    }
    let (file, header) = damaged(scan).find(|(_, header)| header.number == next_group)?;
    let (offset, position) = (header.offset, header.before);
    Some(Tail { file, offset, next_group, position, told_by: ToldBy::TheNext })
}

#[cfg(test)]
mod tests;
