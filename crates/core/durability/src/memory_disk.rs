//! A disk in memory that loses what a real one may lose. For tests and for the simulator.
//!
//! The model, and so the list of faults that may be injected:
//! - A write is seen by reads at once. [`MemoryDisk::crash`] keeps, loses or tears (keeps the
//!   first bytes of) each 512-byte sector that was written since the file's last sync; of some
//!   files it keeps or loses whole pages of 4 KiB.
//! - The growth of a file, and each name made, changed or removed, is kept or lost until the file,
//!   or the directory, is synced.
//! - [`MemoryDisk::fail_after`]: the process or machine dies during an operation, which may or may
//!   not have taken effect.
//! - [`MemoryDisk::fail_next_sync`]: the sync fails, and as on Linux the pages count as clean
//!   afterwards: later syncs succeed, and only writing them again makes one store them.
//! - [`MemoryDisk::fail`]: reads, writes or syncs fail, once or until the disk is repaired; a
//!   write that fails may have stored a part.
//! - [`MemoryDisk::set_capacity`]: no space left on device.
//! - Damage of what was synced: [`MemoryDisk::flip_bit`], [`MemoryDisk::zero_sector`],
//!   [`MemoryDisk::stale_sector`], [`MemoryDisk::lose_write`], [`MemoryDisk::misdirect_write`],
//!   [`MemoryDisk::misdirect_read`]. The disk remembers what it would hold without
//!   ([`MemoryDisk::intact_copy`]), through all that happens to it later.
//!
//! Deterministic: the only source of choice is the `entropy` given to [`MemoryDisk::crash`].

mod faults;
mod file;

pub use faults::{Errors, Losses, Operation};

use crate::disk::{Disk, DiskError};
use faults::Misread;
use file::FileState;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    written_bytes: u64,
    zero_bytes: u64,
    through_bytes: u64,
    countdown: Option<u64>,
    dead: bool,
    fail_next_sync: bool,
    capacity_bytes: Option<u64>,
    errors: Option<Errors>,
    // The operation under way is a write that stores a part of what it was given.
    short_write: bool,
    misread: Option<Misread>,
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
    pub fn crash(&mut self, mut entropy: impl FnMut() -> u64) -> Losses {
        let mut losses = Losses::default();
        let mut state = self.state();
        let mut names = std::mem::take(&mut state.durable_names);
        for change in std::mem::take(&mut state.pending) {
            if entropy().is_multiple_of(2) {
                change.apply(&mut names);
            } else {
                losses.names += 1;
            }
        }
        state.durable_names = names.clone();
        state.names = names;
        for file in state.files.values_mut() {
            file.crash(&mut entropy, &mut losses);
        }
        state.drop_unnamed();
        let epoch = state.restart();
        drop(state);
        self.epoch = epoch;
        losses
    }

    /// The process stops and starts again; the machine, and with it every write, stays. Ends an
    /// injected failure. Other handles are dead from now on; this one goes on.
    pub fn restart_process(&mut self) {
        let epoch = self.state().restart();
        self.epoch = epoch;
    }

    /// Changes (creates, writes, syncs, renames, removes) made so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Bytes read so far as from a device.
    #[must_use]
    pub fn through_bytes(&self) -> u64 {
        self.state().through_bytes
    }

    /// Bytes written so far, zeros of new files aside.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.state().written_bytes
    }

    /// Zeros written so far, those of new files included, bytes.
    #[must_use]
    pub fn zero_bytes(&self) -> u64 {
        self.state().zero_bytes
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
                    let syncs = what == "sync" || what == "sync directory";
                    let kind = if syncs { Operation::Sync } else { Operation::Write };
                    match state.injected_error(kind) {
                        Ok(()) => operation(&mut state),
                        Err((error, short)) => {
                            if short {
                                state.short_write = true;
                                let stored = operation(&mut state);
                                state.short_write = false;
                                stored?;
                            } else if let (true, Ok(file)) = (syncs, state.file_state(name)) {
                                file.fail_sync();
                            }
                            Err(error)
                        }
                    }
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
        self.errors = self.errors.filter(|errors| errors.sticky);
        self.misread = None;
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
            state.zero_bytes += size_bytes;
            let file = state.next_file;
            state.next_file += 1;
            state.files.insert(file, FileState::of_zeros(size_bytes));
            state.change(NameChange::Make { name: name.to_owned(), file });
            Ok(())
        })
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        self.look(name, "read", |state| {
            state.injected_error(Operation::Read).map_err(|(error, _)| error)?;
            state.file_state(name)?.read(offset, buffer)?;
            state.misdirect(name, offset, buffer);
            Ok(())
        })
    }

    fn read_through(
        &mut self,
        name: &str,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), DiskError> {
        self.state().through_bytes += buffer.len() as u64;
        self.read_at(name, offset, buffer)
    }

    fn write_at(&mut self, name: &str, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        self.change(name, "write", |state| {
            let size = state.file_state(name)?.size;
            state.make_room((offset + data.len() as u64).saturating_sub(size))?;
            let stored = if state.short_write { data.len() / 2 } else { data.len() };
            state.file_state(name)?.write(offset, &data[..stored]);
            state.written_bytes += stored as u64;
            Ok(())
        })
    }

    fn write_zeros(&mut self, name: &str, offset: u64, length_bytes: u64) -> Result<(), DiskError> {
        self.change(name, "write", |state| {
            let size = state.file_state(name)?.size;
            state.make_room((offset + length_bytes).saturating_sub(size))?;
            let stored = if state.short_write { length_bytes / 2 } else { length_bytes };
            state.file_state(name)?.write_zeros(offset, stored);
            state.zero_bytes += stored;
            Ok(())
        })
    }

    fn sync(&mut self, name: &str) -> Result<(), DiskError> {
        self.change(name, "sync", |state| {
            let fail = std::mem::take(&mut state.fail_next_sync);
            let file = state.file_state(name)?;
            if fail {
                file.fail_sync();
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

    /// Durable at once: the worst for who still needs what was there.
    fn shrink(&mut self, name: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.change(name, "shrink", |state| {
            state.file_state(name)?.shrink(size_bytes);
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
