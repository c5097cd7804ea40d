//! A disk as a careless engineer uses it: mistakes about what is flushed when, which need more than a condition in the code
//! that they are about ([`perdura_protocol::seeded`]). With none of them switched on it is the disk.

use perdura_durability::{Disk, DiskError, MemoryDisk};
use perdura_protocol::seeded;

/// Where states are, and one that is being written.
const STATES: &str = "checkpoint";
const NEW_STATE: &str = "checkpoint/new";

/// Where the log is, and the marks of its flushes.
const LOG: &str = "log/";
const MARKS: &str = "log/marks";

/// Goes to a disk, now and then in another order, or not at all.
pub struct Careless {
    disk: MemoryDisk,
    // A file of the log whose flush was promised and comes behind its mark.
    unflushed: Option<String>,
}

impl Careless {
    pub(crate) fn new(disk: MemoryDisk) -> Careless {
        Careless { disk, unflushed: None }
    }

    /// The disk, with all done that was promised.
    fn settled(&mut self) -> Result<&mut MemoryDisk, DiskError> {
        if let Some(name) = self.unflushed.take() {
            self.disk.sync(&name)?;
        }
        Ok(&mut self.disk)
    }
}

impl Disk for Careless {
    fn handle(&self) -> Careless {
        Careless::new(self.disk.handle())
    }

    fn create(&mut self, name: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.settled()?.create(name, size_bytes)
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        self.settled()?.read_at(name, offset, buffer)
    }

    fn read_through(
        &mut self,
        name: &str,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), DiskError> {
        self.settled()?.read_through(name, offset, buffer)
    }

    fn write_at(&mut self, name: &str, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        if name == MARKS {
            self.disk.write_at(name, offset, data)?;
            return self.settled().map(drop);
        }
        self.settled()?.write_at(name, offset, data)
    }

    fn write_through(&mut self, name: &str, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        self.settled()?.write_through(name, offset, data)
    }

    fn release(&mut self, name: &str) {
        self.disk.release(name);
    }

    fn write_zeros(&mut self, name: &str, offset: u64, length_bytes: u64) -> Result<(), DiskError> {
        self.settled()?.write_zeros(name, offset, length_bytes)
    }

    fn sync(&mut self, name: &str) -> Result<(), DiskError> {
        if name == NEW_STATE && seeded!(CheckpointNotFlushed) {
            return Ok(());
        }
        let of_log = name.starts_with(LOG) && name != MARKS;
        if of_log && seeded!(MarkBeforeFlush) {
            self.settled()?;
            self.unflushed = Some(name.to_owned());
            return Ok(());
        }
        let disk = self.settled()?;
        match disk.sync(name) {
            Err(_) if of_log && seeded!(FlushRetried) => disk.sync(name),
            done => done,
        }
    }

    fn sync_directory(&mut self, directory: &str) -> Result<(), DiskError> {
        if directory == STATES && seeded!(RenameNotSynced) {
            return Ok(());
        }
        self.settled()?.sync_directory(directory)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.settled()?.rename(from, to)
    }

    fn shrink(&mut self, name: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.settled()?.shrink(name, size_bytes)
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        self.settled()?.remove(name)
    }

    fn list(&mut self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.settled()?.list(directory)
    }

    fn len(&mut self, name: &str) -> Result<u64, DiskError> {
        self.settled()?.len(name)
    }

    fn exists(&mut self, name: &str) -> Result<bool, DiskError> {
        self.settled()?.exists(name)
    }
}
