//! How a disk in memory is made to fail, and how it is damaged.

use super::file::{PAGE_BYTES, Page, SECTOR_BYTES};
use super::{MemoryDisk, State};
use crate::disk::DiskError;
use std::io::{Error, ErrorKind};
use std::sync::{Arc, Mutex};

/// What a crash of the machine took of what was not synced.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Losses {
    /// Sectors that were lost, in whole or in part.
    pub sectors: u64,
    /// Pages of which some written sectors were lost and others kept: torn at 512 bytes.
    pub torn_pages: u64,
    /// Files of which some written pages were lost and others kept as a whole: torn at 4 KiB.
    pub torn_files: u64,
    /// Sizes that went back.
    pub sizes: u64,
    /// Names that were made, changed or removed, and went back.
    pub names: u64,
}

/// What happens to bytes at rest.
#[derive(Clone, Debug)]
pub(super) enum Damage {
    FlipBit(u8),
    Zeros,
    Stale,
    OtherPage(Page),
}

/// An operation that can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reading from a file.
    Read,
    /// Creating, writing, renaming, shrinking, removing.
    Write,
    /// Flushing a file or a directory.
    Sync,
}

/// I/O errors to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errors {
    /// Of which operations.
    pub operation: Operation,
    /// So many more of them succeed.
    pub after: u64,
    /// Whether all from then on fail, until [`MemoryDisk::repair`], or one.
    pub sticky: bool,
    /// Whether a write that fails stores a part of what it was given.
    pub short: bool,
}

/// A read that is answered with another page.
#[derive(Clone, Debug)]
pub(super) struct Misread {
    name: String,
    page: u64,
    content: Page,
}

impl MemoryDisk {
    /// `operations` more changes (creates, writes, syncs, renames, shrinks, removes) succeed; the one after
    /// takes effect without being synced and fails, as does everything later, reads included,
    /// until [`MemoryDisk::crash`] or [`MemoryDisk::restart_process`].
    pub fn fail_after(&mut self, operations: u64) {
        self.state().countdown = Some(operations);
    }

    /// Takes [`MemoryDisk::fail_after`] back, if it has not struck.
    pub fn fail_never(&mut self) {
        self.state().countdown = None;
    }

    /// The next sync of a file fails with an I/O error; what it should have stored stays visible
    /// and is not stored by later syncs either unless it is written again.
    pub fn fail_next_sync(&mut self) {
        self.state().fail_next_sync = true;
    }

    /// Limits the sum of file sizes; `None` lifts the limit.
    pub fn set_capacity(&mut self, bytes: Option<u64>) {
        self.state().capacity_bytes = bytes;
    }

    /// Operations fail with an I/O error, once or from then on. One error ends with a restart,
    /// sticky ones last.
    pub fn fail(&mut self, errors: Errors) {
        self.state().errors = Some(errors);
    }

    /// Ends injected errors.
    pub fn repair(&mut self) {
        self.state().errors = None;
    }

    /// Whether a sync failed to store something that was not written again since: later syncs
    /// succeed, and do not store it either.
    #[must_use]
    pub fn has_unstored(&self) -> bool {
        self.state().files.values().any(super::file::FileState::has_unstored)
    }

    /// Inverts bit `bit` (0 to 7) of the byte at `offset`, on the medium as in the cache.
    ///
    /// # Errors
    /// When there is no such file or byte, or what stands there is not synced yet.
    pub fn flip_bit(&mut self, name: &str, offset: u64, bit: u8) -> Result<(), DiskError> {
        if self.damage(name, offset, 1, &Damage::FlipBit(bit)) {
            return Ok(());
        }
        Err(DiskError::new("flip a bit of", name, ErrorKind::UnexpectedEof.into()))
    }

    /// Fills a sector of 512 bytes with zeros; false when it held nothing else, or is not synced.
    pub fn zero_sector(&mut self, name: &str, sector: u64) -> bool {
        self.damage(name, sector * SECTOR_BYTES as u64, SECTOR_BYTES, &Damage::Zeros)
    }

    /// Takes a sector back to what it held before the last sync that changed it; false when that
    /// is the same, or it is not synced.
    pub fn stale_sector(&mut self, name: &str, sector: u64) -> bool {
        self.damage(name, sector * SECTOR_BYTES as u64, SECTOR_BYTES, &Damage::Stale)
    }

    /// The last synced write of a page was reported as done and never stored; false as above.
    pub fn lose_write(&mut self, name: &str, page: u64) -> bool {
        self.damage(name, page * PAGE_BYTES as u64, PAGE_BYTES, &Damage::Stale)
    }

    /// A write of `page` of `name` went to `other_page` of `other`: what was written last is not
    /// where it belongs, and overwrote what stands there. False when either changes nothing.
    pub fn misdirect_write(
        &mut self,
        (name, page): (&str, u64),
        (other, other_page): (&str, u64),
    ) -> bool {
        let Some(content) = self.page(name, page) else { return false };
        let (here, there) = (page * PAGE_BYTES as u64, other_page * PAGE_BYTES as u64);
        self.damage(name, here, PAGE_BYTES, &Damage::Stale)
            && self.damage(other, there, PAGE_BYTES, &Damage::OtherPage(content))
    }

    /// The next read of `page` of `name` is answered with `other_page` of `other`; false when that
    /// is the same.
    pub fn misdirect_read(
        &mut self,
        (name, page): (&str, u64),
        (other, other_page): (&str, u64),
    ) -> bool {
        let (own, content) = (self.page(name, page), self.page(other, other_page));
        let (Some(own), Some(content)) = (own, content) else { return false };
        let differs = own != content;
        if differs {
            self.state().misread = Some(Misread { name: name.to_owned(), page, content });
        }
        differs
    }

    /// Whether a read is still to be answered with another page.
    #[must_use]
    pub fn will_misread(&self) -> bool {
        self.state().misread.is_some()
    }

    /// Ends what [`MemoryDisk::misdirect_read`] began; false when it had happened.
    pub fn end_misread(&mut self) -> bool {
        self.state().misread.take().is_some()
    }

    fn page(&self, name: &str, page: u64) -> Option<Page> {
        let mut state = self.state();
        let file = state.file_state(name).ok()?;
        file.page(page).cloned()
    }

    fn damage(&mut self, name: &str, offset: u64, bytes: usize, damage: &Damage) -> bool {
        let mut state = self.state();
        state.file_state(name).is_ok_and(|file| file.damage(offset, bytes, damage))
    }

    /// Names of all files, ascending, each with the pages of 4 KiB in it that hold something and
    /// are synced.
    #[must_use]
    pub fn settled_pages(&self) -> Vec<(String, Vec<u64>)> {
        let state = self.state();
        let files = state.names.iter().filter_map(|(name, file)| {
            state.files.get(file).map(|file| (name.clone(), file.settled_pages()))
        });
        files.collect()
    }

    /// Whether anything stands on it that was damaged and not written again since.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        let mut state = self.state();
        state.files.values_mut().map(|file| file.is_damaged()).filter(|damaged| *damaged).count()
            > 0
    }

    /// From now on what is there is what is to be there.
    pub fn accept_damage(&mut self) {
        self.state().files.values_mut().for_each(super::file::FileState::accept_damage);
    }

    /// A disk of its own with the same content, all of it durable; for tests that go on from one
    /// state in many ways.
    #[must_use]
    pub fn copy(&self) -> MemoryDisk {
        self.copied(false)
    }

    /// As [`MemoryDisk::copy`], as if nothing on it had ever been damaged.
    #[must_use]
    pub fn intact_copy(&self) -> MemoryDisk {
        self.copied(true)
    }

    fn copied(&self, intact: bool) -> MemoryDisk {
        let state = self.state();
        let copy = State {
            names: state.names.clone(),
            durable_names: state.names.clone(),
            files: state.files.iter().map(|(id, file)| (*id, file.copy(intact))).collect(),
            next_file: state.next_file,
            misread: if intact { None } else { state.misread.clone() },
            ..State::default()
        };
        MemoryDisk { state: Arc::new(Mutex::new(copy)), epoch: 0 }
    }
}

impl State {
    /// An error that was asked for; and, of a short write, that a part of it is stored.
    pub(super) fn injected_error(&mut self, operation: Operation) -> Result<(), (Error, bool)> {
        let Some(errors) = &mut self.errors else { return Ok(()) };
        if errors.operation != operation {
            return Ok(());
        }
        if errors.after > 0 {
            errors.after -= 1;
            return Ok(());
        }
        let short = errors.short;
        if !errors.sticky {
            self.errors = None;
        }
        Err((Error::other("injected I/O error"), short))
    }

    /// Puts another page in place of one that was just read, if that was asked for.
    pub(super) fn misdirect(&mut self, name: &str, offset: u64, buffer: &mut [u8]) {
        let Some(misread) = &self.misread else { return };
        let start = misread.page * PAGE_BYTES as u64;
        let (from, to) = (start.max(offset), start + PAGE_BYTES as u64);
        let to = to.min(offset + buffer.len() as u64);
        if misread.name != name || from >= to {
            return;
        }
        let wrong = &misread.content[(from - start) as usize..(to - start) as usize];
        buffer[(from - offset) as usize..(to - offset) as usize].copy_from_slice(wrong);
        self.misread = None;
    }
}
