//! From what was found on disk back to a log that is written to.
//!
//! Order of the changes, each of which may be the last before a crash:
//! 1. headers of a torn tail are wiped out, so that they are never taken for those of groups that
//!    were flushed, and the last good group is written again in its place and flushed: it may
//!    have been read from a cache whose flush failed, or never came, before the restart; its mark
//!    is made durable after that. Where it was lost, and a header tells what it held, there is first a mark, durable,
//!    that says so: perhaps only the torn header said that it had been flushed. Is that also the header that tells what
//!    was lost, it stays;
//! 2. if the log is empty, its first file is begun;
//! 3. files of the row that are not sealed are sealed;
//! 4. files after the last group, and remnants before the first, are freed;
//! 5. a torn header that was left is written over, by a group with the view of the lost ones, which tells the same: the
//!    header is one sector, the old one or the new.
//!
//! A replica may stop at any time before its next group is flushed, say because its disk is full. What it
//! knew at this start of groups that are lost it knows at the next: that they are, and which of its votes were in them.
//!
//! So at every moment at least one file is in the row, and a log without any was lost.

use super::carry::Carry;
use super::file::{DIRECTORY, GROUPS_OFFSET, MARKS, MARKS_OFFSET, encode_mark};
use super::group::{GroupBuilder, GroupHeader, PAGE_BYTES, Position};
use super::index::Index;
use super::recovery::{Judgement, Tail, ToldBy};
use super::scan::{FoundGroup, LogScan, key_of};
use super::{FileSizes, Log, LogError, LogFile, name_of, whole_pages};
use crate::checksum::FileKey;
use crate::disk::{Disk, DiskError};
use crate::superblock::Identity;
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Record, Slot};
use std::collections::VecDeque;

/// The records of the judged groups in the order in which they were written. What new files
/// repeat is left out where everything before was read; views from lost groups are put back.
pub(crate) fn records_of(scan: &mut LogScan, judgement: &Judgement) -> Vec<Record> {
    let mut records = Vec::new();
    let mut last_number = None;
    let mut gaps = judgement.gaps.iter().peekable();
    for (file, index) in &judgement.groups {
        let group = &mut scan.files[*file].groups[*index];
        let number = group.header.number;
        while let Some(gap) = gaps.next_if(|gap| gap.last_group < number) {
            records.push(Record::View(gap.view));
        }
        // Of a record that was lost, what a later file repeats of it is all there is.
        let told = last_number == Some(number - 1) && judgement.gaps.is_empty();
        let repeated = if told { group.header.carried as usize } else { 0 };
        let found = std::mem::take(&mut group.records);
        records.extend(found.into_iter().skip(repeated).map(|placed| placed.record));
        last_number = Some(number);
    }
    records.extend(gaps.map(|gap| Record::View(gap.view)));
    records
}

impl<D: Disk> Log<D> {
    /// The log of a replica that keeps none.
    pub(crate) fn unwritten(disk: D, identity: &Identity) -> Log<D> {
        let key = FileKey([0; 32]);
        Log {
            disk,
            identity: identity.clone(),
            sizes: FileSizes::default(),
            files: VecDeque::new(),
            free: Vec::new(),
            new: None,
            next_use: 1,
            key,
            tail: 0,
            next_group: 1,
            position: Position::default(),
            carry: Carry::default(),
            index: Index::default(),
            builder: GroupBuilder::new(&key),
            first: true,
            unmarked: 0,
            in_use: [0; 2],
            poisoned: false,
        }
    }

    /// Goes on with the log that `judgement` describes.
    pub(crate) fn resume(
        disk: D,
        identity: &Identity,
        sizes: FileSizes,
        scan: &LogScan,
        judgement: &Judgement,
    ) -> Result<Log<D>, LogError> {
        let mut log = Log::unwritten(disk, identity);
        if identity.durability == Durability::None {
            return Ok(log);
        }
        log.sizes = sizes;
        log.next_use = scan.last_use + 1;
        log.remember(scan, judgement);
        log.make_marks()?;
        match judgement.tail {
            Some(tail) => {
                log.resume_tail(scan, judgement, tail)?;
                log.seal_files(scan, tail)?;
            }
            None => {
                log.begin_file(0)?;
                log.flush()?;
            }
        }
        log.free_unused(scan, judgement)?;
        if let Some(tail) = judgement.tail
            && tail.told_by == ToldBy::TheNext
        {
            if tail.offset == GROUPS_OFFSET {
                let use_number = scan.files[tail.file].use_number;
                log.disk.write_at(&name_of(use_number), 0, &log.header(use_number).encode())?;
            }
            log.append_group(&[Record::View(tail.position.view)])?;
        }
        Ok(log)
    }

    /// Rebuilds what is in memory.
    fn remember(&mut self, scan: &LogScan, judgement: &Judgement) {
        for gap in &judgement.gaps {
            self.carry.observe(&Record::View(gap.view));
        }
        for (file, index) in &judgement.groups {
            let FoundGroup { header, records } = &scan.files[*file].groups[*index];
            self.index.insert_group(header.use_number, header.offset, records);
            records.iter().for_each(|placed| self.carry.observe(&placed.record));
        }
        let Some(tail) = judgement.tail else { return };
        let first = judgement.groups.first().map_or(tail.file, |(file, _)| *file);
        // What a file with a gap in it held is known to this extent only.
        let lost = judgement.gaps.iter().map(|gap| gap.slots_through).max().unwrap_or_default();
        for file in &scan.files[first..=tail.file] {
            let slots = file.groups.iter().flat_map(|group| {
                let records = group.records.iter().skip(group.header.carried as usize);
                records.filter_map(|placed| placed.record.slot())
            });
            self.files.push_back(LogFile {
                use_number: file.use_number,
                name: name_of(file.use_number),
                size_bytes: file.size_bytes,
                slots: slots.max().unwrap_or(Slot(0)).max(lost),
            });
        }
        let use_number = scan.files[tail.file].use_number;
        self.key = key_of(&self.identity, use_number);
        self.tail = tail.offset;
        self.first = scan.files[tail.file].groups.is_empty();
        self.next_group = tail.next_group;
        self.position = tail.position;
    }

    fn resume_tail(
        &mut self,
        scan: &LogScan,
        judgement: &Judgement,
        tail: Tail,
    ) -> Result<(), LogError> {
        let file = &scan.files[tail.file];
        let name = name_of(file.use_number);
        if tail.told_by == ToldBy::ItsHeader {
            let flushed = tail.next_group - 1;
            let (place, mark) = encode_mark(&self.key, file.use_number, flushed);
            self.disk.write_at(MARKS, place, &mark)?;
            self.disk.sync(MARKS)?;
            self.disk.sync_directory(DIRECTORY)?;
        }
        let tells =
            |torn: &GroupHeader| tail.told_by == ToldBy::TheNext && torn.offset == tail.offset;
        let torn = file.damaged.iter().filter(|torn| torn.offset >= tail.offset && !tells(torn));
        for torn in torn {
            self.disk.write_at(&name, torn.offset, &[0; PAGE_BYTES as usize])?;
        }
        let last = judgement.groups.last().map(|(file, index)| &scan.files[*file].groups[*index]);
        let last = last.filter(|group| group.header.use_number == file.use_number);
        if let Some(group) = last {
            self.write_again(&name, group)?;
            if group.header.offset == GROUPS_OFFSET {
                let first_group = group.header.number;
                let file_header = super::FileHeader { first_group, ..self.header(file.use_number) };
                self.disk.write_at(&name, 0, &file_header.encode())?;
            }
        }
        self.disk.sync(&name)?;
        // Whatever it was before, the last group is flushed now. Where later ones are lost, the marks know
        // more, and stay.
        let newest = |group: &&FoundGroup| group.header.number + 1 == tail.next_group;
        if let Some(group) = last.filter(newest) {
            let FoundGroup { header: GroupHeader { use_number, number, .. }, .. } = group;
            let (place, mark) = encode_mark(&self.key, *use_number, *number);
            self.disk.write_at(MARKS, place, &mark)?;
        }
        Ok(self.disk.sync(MARKS)?)
    }

    /// Writes a group in its place as it was verified. It is not read a second time: what another
    /// read gives may be something else, and nothing that was not verified is written.
    fn write_again(&mut self, name: &str, group: &FoundGroup) -> Result<(), LogError> {
        let FoundGroup { header, records } = group;
        self.builder.begin(&self.key, header.format);
        records.iter().for_each(|placed| self.builder.push(&self.key, &placed.record));
        let bytes = self.builder.finish(&self.key, *header);
        // Records have one encoding, so this is what stood there.
        let built = bytes.first_chunk().and_then(|bytes| {
            GroupHeader::decode(bytes, &self.key, header.use_number, header.offset)
        });
        if built != Some(*header) {
            return Err(LogError::Corrupt { file: name.to_owned(), offset: header.offset });
        }
        Ok(self.disk.write_at(name, header.offset, bytes)?)
    }

    /// Seals files that a crash left unsealed, if the next one's first group follows on them; the
    /// last of them in any case, for its seal may not be durable.
    fn seal_files(&mut self, scan: &LogScan, tail: Tail) -> Result<(), DiskError> {
        for (index, pair) in scan.files[..=tail.file].windows(2).enumerate() {
            let (Some(last), Some(next)) = (pair[0].groups.last(), pair[1].groups.first()) else {
                continue;
            };
            let number = next.header.number;
            let durable = pair[0].sealed == Some(number) && index + 1 < tail.file;
            if number != last.header.number + 1 || durable {
                continue;
            }
            let use_number = pair[0].use_number;
            let (place, mark) =
                encode_mark(&key_of(&self.identity, use_number), use_number, number);
            self.disk.write_at(&name_of(use_number), MARKS_OFFSET + place, &mark)?;
            self.disk.sync(&name_of(use_number))?;
        }
        Ok(())
    }

    fn free_unused(&mut self, scan: &LogScan, judgement: &Judgement) -> Result<(), DiskError> {
        for (name, size_bytes) in &scan.free {
            let size_bytes = whole_pages(*size_bytes);
            if self.keeps(size_bytes) {
                self.keep(name.clone(), size_bytes);
            } else {
                self.disk.remove(name)?;
            }
        }
        let first = judgement.groups.first().map(|(file, _)| *file);
        for (index, file) in scan.files.iter().enumerate() {
            let before = first.is_some_and(|first| index < first);
            let after = judgement.tail.is_none_or(|tail| index > tail.file);
            if before || after {
                self.free_file(file.use_number, file.size_bytes)?;
            }
        }
        self.disk.sync_directory(DIRECTORY)
    }
}
