//! One file of a disk in memory: pages, what of them a crash may take back, and what of them was
//! damaged. Pages of zeros take no memory, and equal pages of a disk and its copies one memory: it
//! is written to by itself only while nobody else has it.

use super::faults::{Damage, Losses};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{Error, ErrorKind};
use std::sync::Arc;

pub(super) const PAGE_BYTES: usize = 4096;
pub(super) const SECTOR_BYTES: usize = 512;

pub(super) type Page = Arc<[u8; PAGE_BYTES]>;

#[derive(Clone, Debug, Default)]
pub(super) struct FileState {
    pub size: u64,
    pub durable_size: u64,
    pages: BTreeMap<u64, Page>,
    // What pages held when they were last synced, for those written since.
    unsynced: BTreeMap<u64, Undo>,
    // What pages held before the sync that stored what they hold; zeros, where there is nothing.
    stale: BTreeMap<u64, Page>,
    // What damaged pages would hold if they had not been damaged.
    intact: BTreeMap<u64, Page>,
    // Memory of pages that are gone, for the next ones.
    spare: Vec<Page>,
}

/// Pages whose memory waits for its next use: a group of the log is one or two, its mark another.
const SPARE_PAGES: usize = 8;

#[derive(Clone, Debug)]
struct Undo {
    // Nothing, where it was zeros.
    before: Option<Page>,
    intact_before: Option<Page>,
    // A bit for each written sector.
    sectors: u8,
    // A sync of it failed, and it was not written since.
    failed: bool,
}

fn zeros() -> Page {
    Arc::new([0; PAGE_BYTES])
}

/// A page of these bytes, in memory that is not in use any more if there is some.
fn page_of(content: &[u8], spare: &mut Vec<Page>) -> Page {
    let mut page = spare.pop().filter(|spare| Arc::strong_count(spare) == 1).unwrap_or_else(zeros);
    Arc::make_mut(&mut page).copy_from_slice(content);
    page
}

/// Writes into a page, which others may have too.
fn write_into(page: &mut Page, start: usize, data: &[u8], spare: &mut Vec<Page>) {
    if Arc::get_mut(page).is_none() {
        if data.len() == PAGE_BYTES {
            *page = page_of(data, spare);
            return;
        }
        *page = page_of(&page[..], spare);
    }
    Arc::make_mut(page)[start..start + data.len()].copy_from_slice(data);
}

/// The parts of `offset..offset + length` by page: number, where in it, and how many bytes.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + length as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        let start = (at % PAGE_BYTES as u64) as usize;
        let count = ((end - at) as usize).min(PAGE_BYTES - start);
        let part = (at / PAGE_BYTES as u64, start, count);
        at += count as u64;
        (count > 0).then_some(part)
    })
}

impl FileState {
    /// A file of zeros.
    pub fn of_zeros(size: u64) -> FileState {
        FileState { size, ..FileState::default() }
    }

    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.size) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut rest = buffer;
        for (number, start, count) in parts(offset, rest.len()) {
            let (head, tail) = rest.split_at_mut(count);
            match self.pages.get(&number) {
                Some(page) => head.copy_from_slice(&page[start..start + count]),
                None => head.fill(0),
            }
            rest = tail;
        }
        Ok(())
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.size = self.size.max(offset + data.len() as u64);
        let mut rest = data;
        for (number, start, count) in parts(offset, data.len()) {
            let (head, tail) = rest.split_at(count);
            let (page, held) = match self.pages.entry(number) {
                Entry::Occupied(page) => (page.into_mut(), true),
                Entry::Vacant(place) => (place.insert(zeros()), false),
            };
            let intact = self.intact.get_mut(&number);
            let undo = self.unsynced.entry(number).or_insert_with(|| Undo {
                before: held.then(|| page.clone()),
                intact_before: intact.as_deref().map(Arc::clone),
                sectors: 0,
                failed: false,
            });
            for sector in start / SECTOR_BYTES..=(start + count - 1) / SECTOR_BYTES {
                undo.sectors |= 1 << sector;
            }
            undo.failed = false;
            write_into(page, start, head, &mut self.spare);
            if let Some(intact) = intact {
                write_into(intact, start, head, &mut self.spare);
            }
            rest = tail;
        }
    }

    /// Zeros after the end take no memory.
    pub fn write_zeros(&mut self, offset: u64, length: u64) {
        let inside = self.size.saturating_sub(offset).min(length);
        self.write(offset, &vec![0; inside as usize]);
        self.size = self.size.max(offset + length);
    }

    /// A crash gives back nothing of what was after `size`.
    pub fn shrink(&mut self, size: u64) {
        if size >= self.size {
            return;
        }
        self.size = size;
        self.durable_size = self.durable_size.min(size);
        let kept = size.div_ceil(PAGE_BYTES as u64);
        let (number, end) = (size / PAGE_BYTES as u64, size as usize % PAGE_BYTES);
        let cut = |page: &mut Page| Arc::make_mut(page)[end..].fill(0);
        self.unsynced.retain(|number, _| *number < kept);
        if let Some(last) = self.unsynced.get_mut(&number) {
            last.before.iter_mut().chain(&mut last.intact_before).for_each(cut);
        }
        for pages in [&mut self.pages, &mut self.stale, &mut self.intact] {
            drop(pages.split_off(&kept));
            pages.get_mut(&number).map(cut);
        }
    }

    pub fn sync(&mut self) {
        self.durable_size = self.size;
        for (number, undo) in std::mem::take(&mut self.unsynced) {
            if undo.failed {
                self.unsynced.insert(number, undo);
                continue;
            }
            let older = match undo.before {
                Some(before) => self.stale.insert(number, before),
                None => self.stale.remove(&number),
            };
            if self.spare.len() < SPARE_PAGES {
                self.spare.extend(older);
            }
        }
    }

    /// A sync failed: what it should have stored counts as clean from now on.
    pub fn fail_sync(&mut self) {
        self.unsynced.values_mut().for_each(|undo| undo.failed = true);
    }

    /// Whether a sync failed to store something that was not written since.
    pub fn has_unstored(&self) -> bool {
        self.unsynced.values().any(|undo| undo.failed)
    }

    /// Keeps, loses or tears what was not synced: some files sector by sector, others page by page.
    pub fn crash(&mut self, entropy: &mut impl FnMut() -> u64, losses: &mut Losses) {
        if self.size != self.durable_size && entropy().is_multiple_of(2) {
            self.size = self.durable_size;
            losses.sizes += 1;
        }
        self.durable_size = self.size;
        let unsynced = std::mem::take(&mut self.unsynced);
        if unsynced.is_empty() {
            return;
        }
        let whole_pages = entropy().is_multiple_of(3);
        let (mut pages_kept, mut pages_lost) = (0, 0);
        for (number, undo) in unsynced {
            let Some(page) = self.pages.get_mut(&number) else { continue };
            let mut intact = self.intact.get_mut(&number).zip(undo.intact_before);
            let fate = entropy();
            let (mut kept_sectors, mut lost_sectors) = (0, 0);
            for sector in (0..PAGE_BYTES / SECTOR_BYTES).filter(|s| undo.sectors & (1 << s) != 0) {
                let word = if whole_pages { fate % 2 } else { entropy() };
                let kept = match word % 3 {
                    0 => SECTOR_BYTES,
                    1 => 0,
                    _ => (word >> 8) as usize % SECTOR_BYTES,
                };
                let lost = sector * SECTOR_BYTES + kept..(sector + 1) * SECTOR_BYTES;
                let page = Arc::make_mut(page);
                match &undo.before {
                    Some(before) => page[lost.clone()].copy_from_slice(&before[lost.clone()]),
                    None => page[lost.clone()].fill(0),
                }
                if let Some((intact, before)) = &mut intact {
                    Arc::make_mut(intact)[lost.clone()].copy_from_slice(&before[lost.clone()]);
                }
                kept_sectors += u64::from(lost.is_empty());
                lost_sectors += u64::from(!lost.is_empty());
            }
            losses.sectors += lost_sectors;
            losses.torn_pages += u64::from(kept_sectors > 0 && lost_sectors > 0);
            pages_kept += u64::from(lost_sectors == 0);
            pages_lost += u64::from(kept_sectors == 0);
        }
        losses.torn_files += u64::from(whole_pages && pages_kept > 0 && pages_lost > 0);
        let size = self.size;
        self.pages.retain(|number, _| number * (PAGE_BYTES as u64) < size);
        self.intact.retain(|number, _| number * (PAGE_BYTES as u64) < size);
    }

    /// The file as a copy of the disk has it: all of it durable.
    pub fn copy(&self, intact: bool) -> FileState {
        let mut copy = self.clone();
        copy.unsynced.clear();
        copy.spare.clear();
        copy.durable_size = copy.size;
        if intact {
            let pages = std::mem::take(&mut copy.intact);
            copy.pages.extend(pages);
        }
        copy
    }

    /// Numbers of the pages that hold something, and nothing that is not synced.
    pub fn settled_pages(&self) -> Vec<u64> {
        let settled = |number: &&u64| !self.unsynced.contains_key(number);
        let filled = self.pages.iter().filter(|(_, page)| page.iter().any(|byte| *byte != 0));
        filled.map(|(number, _)| number).filter(settled).copied().collect()
    }

    pub fn page(&self, number: u64) -> Option<&Page> {
        self.pages.get(&number)
    }

    /// Damages `length` bytes at `offset`, inside one page; false when that changed nothing, or the
    /// page is not settled.
    pub fn damage(&mut self, offset: u64, length: usize, damage: &Damage) -> bool {
        let Some((number, start, count)) = parts(offset, length).next() else { return false };
        if offset + length as u64 > self.size || self.unsynced.contains_key(&number) {
            return false;
        }
        let page = self.pages.entry(number).or_insert_with(zeros);
        let before = page.clone();
        let bytes = &mut Arc::make_mut(page)[start..start + count];
        match damage {
            Damage::FlipBit(bit) => bytes[0] ^= 1 << (bit % 8),
            Damage::Zeros => bytes.fill(0),
            Damage::Stale => match self.stale.get(&number) {
                Some(stale) => bytes.copy_from_slice(&stale[start..start + count]),
                None => bytes.fill(0),
            },
            Damage::OtherPage(other) => bytes.copy_from_slice(&other[start..start + count]),
        }
        let changed = before != *page;
        if changed {
            self.intact.entry(number).or_insert(before);
        }
        changed
    }

    /// Whether a page holds something else than an intact disk would.
    pub fn is_damaged(&mut self) -> bool {
        let (pages, unsynced) = (&self.pages, &self.unsynced);
        self.intact.retain(|number, intact| {
            let may_come_back =
                unsynced.get(number).is_some_and(|undo| undo.intact_before.is_some());
            may_come_back || pages.get(number) != Some(intact)
        });
        !self.intact.is_empty()
    }

    /// What is there now is what is to be there.
    pub fn accept_damage(&mut self) {
        self.intact.clear();
    }
}
