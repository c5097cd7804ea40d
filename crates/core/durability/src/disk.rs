//! The disk as this crate sees it: files of one directory, by relative name.
//!
//! Names are `file` or `directory/file`. What is written is seen by reads at once and survives a
//! crash of the machine only after [`Disk::sync`]; a name that was made, changed or removed
//! survives only after [`Disk::sync_directory`] of its directory. An implementation may keep or
//! lose anything unsynced, sector by sector, in any order.

use std::io;

/// What devices transfer without a copy are multiples of this.
pub const DIRECT_BYTES: usize = 4096;

/// A failed operation on a file of the data directory.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {name}: {source}{}", advice(source))]
pub struct DiskError {
    /// What was tried: "write", "sync", ...
    pub operation: &'static str,
    /// The file, relative to the data directory.
    pub name: String,
    /// Why it failed.
    pub source: io::Error,
}

/// What is wrong where it is not the disk.
fn advice(error: &io::Error) -> &'static str {
    // EMFILE and ENFILE of Linux.
    match error.raw_os_error() {
        Some(23 | 24) => {
            " (no fault of the disk: raise the limit of open files, `ulimit -n` or LimitNOFILE)"
        }
        _ => "",
    }
}

impl DiskError {
    /// An error of `operation` on `name`.
    #[must_use]
    pub fn new(operation: &'static str, name: &str, source: io::Error) -> DiskError {
        DiskError { operation, name: name.to_owned(), source }
    }
}

/// How a file is read: from the operating system's cache or, where that is possible, from the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadFrom {
    Cache,
    Device,
}

impl ReadFrom {
    pub(crate) fn read(
        self,
        disk: &mut impl Disk,
        file: &str,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), DiskError> {
        match self {
            ReadFrom::Cache => disk.read_at(file, offset, buffer),
            ReadFrom::Device => disk.read_through(file, offset, buffer),
        }
    }

    /// `None` when the file ends before.
    pub(crate) fn read_array<const N: usize>(
        self,
        disk: &mut impl Disk,
        file: &str,
        offset: u64,
    ) -> Result<Option<[u8; N]>, DiskError> {
        let mut bytes = [0; N];
        match self.read(disk, file, offset, &mut bytes) {
            Ok(()) => Ok(Some(bytes)),
            Err(error) if error.source.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A directory of files. All of a data directory goes through one implementation of this.
pub trait Disk: Send + 'static {
    /// Another handle to the same directory, for another thread. Two handles must not rename,
    /// shrink or remove each other's files.
    #[must_use]
    fn handle(&self) -> Self
    where
        Self: Sized;

    /// Makes a file of `size_bytes` zeros, written as [`Disk::write_zeros`] does; replaces a file of
    /// this name. Makes the directory it stands in.
    ///
    /// # Errors
    /// As the operating system's; the file may then exist in part.
    fn create(&mut self, name: &str, size_bytes: u64) -> Result<(), DiskError>;

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// As the operating system's; `UnexpectedEof` when the file ends before.
    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError>;

    /// As [`Disk::read_at`], from the device where that is possible and not from the operating system's
    /// cache, to learn whether it still gives what was written.
    ///
    /// # Errors
    /// As [`Disk::read_at`].
    fn read_through(
        &mut self,
        name: &str,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), DiskError> {
        self.read_at(name, offset, buffer)
    }

    /// Writes all of `data` at `offset`, in one system call where the system allows; the file
    /// grows as needed.
    ///
    /// # Errors
    /// As the operating system's; any part of `data` may then be written.
    fn write_at(&mut self, name: &str, offset: u64, data: &[u8]) -> Result<(), DiskError>;

    /// As [`Disk::write_at`], for data that is flushed next and not read soon: past the operating
    /// system's cache of files where that is possible, so that none of it is copied there, nor
    /// memory taken for it. It is where `offset`, the length and the place in memory of `data` are
    /// multiples of [`DIRECT_BYTES`] and the file system agrees.
    ///
    /// # Errors
    /// As [`Disk::write_at`].
    fn write_through(&mut self, name: &str, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        self.write_at(name, offset, data)
    }

    /// What is held to write to a file past the cache is given back; if there is more to write so, it
    /// is got again.
    fn release(&mut self, _name: &str) {}

    /// Writes `length_bytes` zeros at `offset`, really, so that later writes there allocate nothing;
    /// the file grows as needed.
    ///
    /// # Errors
    /// As [`Disk::write_at`].
    fn write_zeros(&mut self, name: &str, offset: u64, length_bytes: u64) -> Result<(), DiskError>;

    /// Makes the content and size of a file durable (fdatasync).
    ///
    /// # Errors
    /// As the operating system's; it is then unknown what is durable.
    fn sync(&mut self, name: &str) -> Result<(), DiskError>;

    /// Makes the names in a directory durable; `""` is the data directory itself.
    ///
    /// # Errors
    /// As the operating system's.
    fn sync_directory(&mut self, directory: &str) -> Result<(), DiskError>;

    /// Gives a file another name in the same directory, replacing what had that name.
    ///
    /// # Errors
    /// As the operating system's.
    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError>;

    /// Cuts a file down to `size_bytes` if it is larger. That is durable with the next [`Disk::sync`] of it,
    /// and may be before.
    ///
    /// # Errors
    /// As the operating system's.
    fn shrink(&mut self, name: &str, size_bytes: u64) -> Result<(), DiskError>;

    /// Removes a file.
    ///
    /// # Errors
    /// As the operating system's.
    fn remove(&mut self, name: &str) -> Result<(), DiskError>;

    /// The files that stand in `directory` itself (`""`: the data directory), ascending, without
    /// the directory's name; the lock file is not among them. A directory that is not there is
    /// empty.
    ///
    /// # Errors
    /// As the operating system's.
    fn list(&mut self, directory: &str) -> Result<Vec<String>, DiskError>;

    /// Size of a file, bytes.
    ///
    /// # Errors
    /// As the operating system's.
    fn len(&mut self, name: &str) -> Result<u64, DiskError>;

    /// Whether there is a file of this name.
    ///
    /// # Errors
    /// As the operating system's, other than "not found".
    fn exists(&mut self, name: &str) -> Result<bool, DiskError>;
}
