//! A disk in memory that loses what a real one may lose. For tests and for the simulator.
//!
//! The model, and so the list of faults that may be injected:
//! - A write is seen by reads at once. [`MemoryDisk::crash`] keeps, loses or tears (keeps the
//!   first bytes of) each 512-byte sector that was written since the file's last sync.
//! - The growth of a file, and each name made, changed or removed, is kept or lost until the file,
//!   or the directory, is synced.
//! - [`MemoryDisk::fail_after`]: the process or machine dies during an operation, which may or may
//!   not have taken effect.
//! - [`MemoryDisk::fail_next_sync`]: the sync fails, and as on Linux the pages count as clean
//!   afterwards: only writing them again makes a later sync store them.
//! - [`MemoryDisk::set_capacity`]: no space left on device.
//! - [`MemoryDisk::flip_bit`]: corruption at rest.
//!
//! Deterministic: the only source of choice is the `entropy` given to [`MemoryDisk::crash`]. Pages
//! of zeros take no memory.

use crate::disk::{Disk, DiskError};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;
type Page = Box<[u8; PAGE_BYTES]>;

/// A handle to a disk in memory. Handles from before a crash fail every operation.
#[derive(Clone, Debug)]
pub struct MemoryDisk {
    state: Arc<Mutex<State>>,
    epoch: u64,
}

#[derive(Debug, Default)]
struct State {
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    pending: Vec<NameChange>,
    files: BTreeMap<u64, FileState>,
    next_file: u64,
    epoch: u64,
    operations: u64,
    countdown: Option<u64>,
    dead: bool,
    fail_next_sync: bool,
    capacity_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct FileState {
    size: u64,
    durable_size: u64,
    pages: BTreeMap<u64, Page>,
    // What pages held when they were last synced, for those written since.
    unsynced: BTreeMap<u64, Undo>,
}

#[derive(Clone, Debug)]
struct Undo {
    before: Page,
    // A bit for each written sector.
    sectors: u8,
    // A sync of it failed, and it was not written since.
    failed: bool,
}

#[derive(Clone, Debug)]
enum NameChange {
    Make { name: String, file: u64 },
    Rename { to: String, file: u64 },
    Remove { name: String, file: u64 },
}

impl NameChange {
    fn directory(&self) -> &str {
        match self {
            NameChange::Make { name, .. }
            | NameChange::Remove { name, .. }
            | NameChange::Rename { to: name, .. } => directory_of(name),
        }
    }

    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameChange::Make { name, file } => {
                names.insert(name.clone(), *file);
            }
            // A file never has two names, whatever earlier renames of it were lost.
            NameChange::Rename { to, file } => {
                names.retain(|_, named| named != file);
                names.insert(to.clone(), *file);
            }
            NameChange::Remove { name, file } => {
                if names.get(name) == Some(file) {
                    names.remove(name);
                }
            }
        }
    }
}

fn directory_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(directory, _)| directory)
}

impl FileState {
    fn read(&self, mut offset: u64, mut buffer: &mut [u8]) -> Result<(), Error> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.size) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        while !buffer.is_empty() {
            let start = (offset % PAGE_BYTES as u64) as usize;
            let length = buffer.len().min(PAGE_BYTES - start);
            let (head, rest) = buffer.split_at_mut(length);
            match self.pages.get(&(offset / PAGE_BYTES as u64)) {
                Some(page) => head.copy_from_slice(&page[start..start + length]),
                None => head.fill(0),
            }
            buffer = rest;
            offset += length as u64;
        }
        Ok(())
    }

    fn write(&mut self, mut offset: u64, mut data: &[u8]) {
        self.size = self.size.max(offset + data.len() as u64);
        while !data.is_empty() {
            let number = offset / PAGE_BYTES as u64;
            let start = (offset % PAGE_BYTES as u64) as usize;
            let length = data.len().min(PAGE_BYTES - start);
            let page = self.pages.entry(number).or_insert_with(|| Box::new([0; PAGE_BYTES]));
            let undo = self.unsynced.entry(number).or_insert_with(|| Undo {
                before: page.clone(),
                sectors: 0,
                failed: false,
            });
            for sector in start / SECTOR_BYTES..=(start + length - 1) / SECTOR_BYTES {
                undo.sectors |= 1 << sector;
            }
            undo.failed = false;
            page[start..start + length].copy_from_slice(&data[..length]);
            data = &data[length..];
            offset += length as u64;
        }
    }

    fn sync(&mut self) {
        self.durable_size = self.size;
        self.unsynced.retain(|_, undo| undo.failed);
    }

    fn crash(&mut self, entropy: &mut impl FnMut() -> u64) {
        if self.size != self.durable_size && entropy().is_multiple_of(2) {
            self.size = self.durable_size;
        }
        self.durable_size = self.size;
        for (number, undo) in std::mem::take(&mut self.unsynced) {
            let Some(page) = self.pages.get_mut(&number) else { continue };
            for sector in 0..PAGE_BYTES / SECTOR_BYTES {
                if undo.sectors & (1 << sector) == 0 {
                    continue;
                }
                let word = entropy();
                let kept = match word % 3 {
                    0 => SECTOR_BYTES,
                    1 => 0,
                    _ => (word >> 8) as usize % SECTOR_BYTES,
                };
                let lost = sector * SECTOR_BYTES + kept..(sector + 1) * SECTOR_BYTES;
                page[lost.clone()].copy_from_slice(&undo.before[lost]);
            }
        }
        let size = self.size;
        self.pages.retain(|number, _| number * (PAGE_BYTES as u64) < size);
    }
}

impl State {
    fn file(&self, name: &str) -> Result<u64, Error> {
        self.names.get(name).copied().ok_or_else(|| Error::from(ErrorKind::NotFound))
    }

    fn file_state(&mut self, name: &str) -> Result<&mut FileState, Error> {
        let file = self.file(name)?;
        self.files.get_mut(&file).ok_or_else(|| Error::from(ErrorKind::NotFound))
    }

    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending.push(change);
    }

    fn make_room(&self, more_bytes: u64) -> Result<(), Error> {
        let Some(capacity) = self.capacity_bytes else { return Ok(()) };
        let used: u64 = self.files.values().map(|file| file.size).sum();
        if used.saturating_add(more_bytes) > capacity {
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn drop_unnamed(&mut self) {
        let mut named: Vec<u64> =
            self.names.values().chain(self.durable_names.values()).copied().collect();
        named.extend(self.pending.iter().map(|change| match change {
            NameChange::Make { file, .. }
            | NameChange::Rename { file, .. }
            | NameChange::Remove { file, .. } => *file,
        }));
        named.sort_unstable();
        self.files.retain(|file, _| named.binary_search(file).is_ok());
    }
}

impl Default for MemoryDisk {
    fn default() -> MemoryDisk {
        MemoryDisk::new()
    }
}

impl MemoryDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> MemoryDisk {
        MemoryDisk { state: Arc::default(), epoch: 0 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine stops and starts again. What was not synced is kept or lost as `entropy`, a
    /// source of random words, decides. Ends an injected failure. Other handles are dead from now
    /// on; this one goes on.
    pub fn crash(&mut self, mut entropy: impl FnMut() -> u64) {
        let mut state = self.state();
        let mut names = std::mem::take(&mut state.durable_names);
        for change in std::mem::take(&mut state.pending) {
            if entropy().is_multiple_of(2) {
                change.apply(&mut names);
            }
        }
        state.durable_names = names.clone();
        state.names = names;
        for file in state.files.values_mut() {
            file.crash(&mut entropy);
        }
        state.drop_unnamed();
        let epoch = state.restart();
        drop(state);
        self.epoch = epoch;
    }

    /// The process stops and starts again; the machine, and with it every write, stays. Ends an
    /// injected failure. Other handles are dead from now on; this one goes on.
    pub fn restart_process(&mut self) {
        let epoch = self.state().restart();
        self.epoch = epoch;
    }

    /// `operations` more changes (creates, writes, syncs, renames, removes) succeed; the one after
    /// takes effect without being synced and fails, as does everything later, reads included,
    /// until [`MemoryDisk::crash`] or [`MemoryDisk::restart_process`].
    pub fn fail_after(&mut self, operations: u64) {
        self.state().countdown = Some(operations);
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

    /// Inverts bit `bit` (0 to 7) of the byte at `offset`, on the medium as in the cache.
    ///
    /// # Errors
    /// When there is no such file or byte.
    pub fn flip_bit(&mut self, name: &str, offset: u64, bit: u8) -> Result<(), DiskError> {
        let mut state = self.state();
        let flip = |file: &mut FileState| {
            if offset >= file.size {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let at = (offset % PAGE_BYTES as u64) as usize;
            let number = offset / PAGE_BYTES as u64;
            file.pages.entry(number).or_insert_with(|| Box::new([0; PAGE_BYTES]))[at] ^= 1 << bit;
            if let Some(undo) = file.unsynced.get_mut(&number) {
                undo.before[at] ^= 1 << bit;
            }
            Ok(())
        };
        state
            .file_state(name)
            .and_then(flip)
            .map_err(|source| DiskError::new("flip a bit of", name, source))
    }

    /// Changes (creates, writes, syncs, renames, removes) made so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// A disk of its own with the same content, all of it durable; for tests that go on from one
    /// state in many ways.
    #[must_use]
    pub fn copy(&self) -> MemoryDisk {
        let state = self.state();
        let mut files = state.files.clone();
        for file in files.values_mut() {
            file.unsynced.clear();
            file.durable_size = file.size;
        }
        let copy = State {
            names: state.names.clone(),
            durable_names: state.names.clone(),
            files,
            next_file: state.next_file,
            ..State::default()
        };
        MemoryDisk { state: Arc::new(Mutex::new(copy)), epoch: 0 }
    }

    /// Runs `operation`, which changes something, unless an injected failure forbids it.
    fn change(
        &self,
        name: &str,
        what: &'static str,
        operation: impl FnOnce(&mut State) -> Result<(), Error>,
    ) -> Result<(), DiskError> {
        let mut state = self.state();
        let result = state.admit(self.epoch).and_then(|()| {
            state.operations += 1;
            match state.countdown {
                Some(0) => {
                    state.dead = true;
                    if what != "sync" && what != "sync directory" {
                        operation(&mut state)?;
                    }
                    Err(Error::other("injected failure"))
                }
                left => {
                    state.countdown = left.map(|left| left - 1);
                    operation(&mut state)
                }
            }
        });
        result.map_err(|source| DiskError::new(what, name, source))
    }

    fn look<T>(
        &self,
        name: &str,
        what: &'static str,
        operation: impl FnOnce(&mut State) -> Result<T, Error>,
    ) -> Result<T, DiskError> {
        let mut state = self.state();
        state
            .admit(self.epoch)
            .and_then(|()| operation(&mut state))
            .map_err(|source| DiskError::new(what, name, source))
    }
}

impl State {
    fn admit(&self, epoch: u64) -> Result<(), Error> {
        if self.dead {
            return Err(Error::other("injected failure"));
        }
        if epoch != self.epoch {
            return Err(Error::other("this handle is from before a crash"));
        }
        Ok(())
    }

    fn restart(&mut self) -> u64 {
        self.epoch += 1;
        self.dead = false;
        self.countdown = None;
        self.fail_next_sync = false;
        self.epoch
    }
}

impl Disk for MemoryDisk {
    fn handle(&self) -> MemoryDisk {
        self.clone()
    }

    fn create(&mut self, name: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.change(name, "create", |state| {
            state.make_room(size_bytes)?;
            let file = state.next_file;
            state.next_file += 1;
            state.files.insert(file, FileState { size: size_bytes, ..FileState::default() });
            state.change(NameChange::Make { name: name.to_owned(), file });
            Ok(())
        })
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        self.look(name, "read", |state| state.file_state(name)?.read(offset, buffer))
    }

    fn write_at(&mut self, name: &str, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        self.change(name, "write", |state| {
            let size = state.file_state(name)?.size;
            state.make_room((offset + data.len() as u64).saturating_sub(size))?;
            state.file_state(name)?.write(offset, data);
            Ok(())
        })
    }

    fn sync(&mut self, name: &str) -> Result<(), DiskError> {
        self.change(name, "sync", |state| {
            let fail = std::mem::take(&mut state.fail_next_sync);
            let file = state.file_state(name)?;
            if fail {
                file.unsynced.values_mut().for_each(|undo| undo.failed = true);
                return Err(Error::other("injected failure"));
            }
            file.sync();
            Ok(())
        })
    }

    fn sync_directory(&mut self, directory: &str) -> Result<(), DiskError> {
        self.change(directory, "sync directory", |state| {
            let (synced, pending): (Vec<_>, Vec<_>) = std::mem::take(&mut state.pending)
                .into_iter()
                .partition(|change| change.directory() == directory);
            state.pending = pending;
            for change in synced {
                change.apply(&mut state.durable_names);
            }
            state.drop_unnamed();
            Ok(())
        })
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.change(from, "rename", |state| {
            let file = state.file(from)?;
            state.change(NameChange::Rename { to: to.to_owned(), file });
            Ok(())
        })
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        self.change(name, "remove", |state| {
            let file = state.file(name)?;
            state.change(NameChange::Remove { name: name.to_owned(), file });
            Ok(())
        })
    }

    fn list(&mut self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.look(directory, "list", |state| {
            let inside = |name: &&String| directory_of(name) == directory;
            let skipped = if directory.is_empty() { 0 } else { directory.len() + 1 };
            Ok(state.names.keys().filter(inside).map(|name| name[skipped..].to_owned()).collect())
        })
    }

    fn len(&mut self, name: &str) -> Result<u64, DiskError> {
        self.look(name, "measure", |state| Ok(state.file_state(name)?.size))
    }

    fn exists(&mut self, name: &str) -> Result<bool, DiskError> {
        self.look(name, "look for", |state| Ok(state.names.contains_key(name)))
    }
}
