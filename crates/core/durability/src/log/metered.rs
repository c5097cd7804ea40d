//! The log's disk, with a count of what is asked of it.

use crate::disk::{Disk, DiskError};

/// Work of a disk, added up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Flushes of files and of directories.
    pub flushes: u64,
    /// Bytes written, the zeros of new files included.
    pub bytes: u64,
}

/// A disk that counts. What failed counts too.
#[derive(Debug)]
pub(super) struct Metered<D> {
    disk: D,
    work: Work,
}

impl<D: Disk> Metered<D> {
    pub(super) fn new(disk: D) -> Metered<D> {
        Metered { disk, work: Work::default() }
    }

    pub(super) fn work(&self) -> Work {
        self.work
    }

    pub(super) fn create(&mut self, name: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.work.bytes += size_bytes;
        self.disk.create(name, size_bytes)
    }

    pub(super) fn exists(&mut self, name: &str) -> Result<bool, DiskError> {
        self.disk.exists(name)
    }

    pub(super) fn read_at(
        &mut self,
        name: &str,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), DiskError> {
        self.disk.read_at(name, offset, buffer)
    }

    pub(super) fn write_at(
        &mut self,
        name: &str,
        offset: u64,
        data: &[u8],
    ) -> Result<(), DiskError> {
        self.work.bytes += data.len() as u64;
        self.disk.write_at(name, offset, data)
    }

    pub(super) fn write_through(
        &mut self,
        name: &str,
        offset: u64,
        data: &[u8],
    ) -> Result<(), DiskError> {
        self.work.bytes += data.len() as u64;
        self.disk.write_through(name, offset, data)
    }

    pub(super) fn release(&mut self, name: &str) {
        self.disk.release(name);
    }

    pub(super) fn write_zeros(
        &mut self,
        name: &str,
        offset: u64,
        length_bytes: u64,
    ) -> Result<(), DiskError> {
        self.work.bytes += length_bytes;
        self.disk.write_zeros(name, offset, length_bytes)
    }

    pub(super) fn sync(&mut self, name: &str) -> Result<(), DiskError> {
        self.work.flushes += 1;
        self.disk.sync(name)
    }

    pub(super) fn sync_directory(&mut self, directory: &str) -> Result<(), DiskError> {
        self.work.flushes += 1;
        self.disk.sync_directory(directory)
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        self.disk.remove(name)
    }
}
