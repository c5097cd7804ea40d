//! The real disk: a directory of the file system, held by one process at a time.
//!
//! The only module of this crate that touches `std::fs`. Invariants: a directory opened for
//! writing holds an exclusive lock on its file `lock` for as long as any handle lives; a
//! directory that is made is made durable in its parent at once.

use crate::disk::{DIRECT_BYTES, Disk, DiskError};
use crate::storage::OpenError;
use rustix::fs::{Advice, OFlags, fadvise};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const LOCK_NAME: &str = "lock";

/// Mode of files: they hold what clients wrote, and a secret key of checksums. Directories can be entered too.
const OWNER_ONLY: u32 = 0o600;

/// Zeros are written in chunks of this size.
const ZERO_CHUNK_BYTES: usize = 256 * 1024;

/// A directory of the file system.
#[derive(Debug)]
pub struct FileDisk {
    root: PathBuf,
    // `None`: read-only, without the lock.
    lock: Option<Arc<File>>,
    files: BTreeMap<String, OpenFile>,
    // The file system has no way past its cache, or asks for other places than ours. Of all handles.
    refused: Arc<AtomicBool>,
    // A chunk of zeros stands in it at a multiple of `DIRECT_BYTES`, once there was need for one.
    zeros: Vec<u8>,
}

/// A file as it was opened: always through the cache, and past it (`O_DIRECT`) while it is written so.
#[derive(Debug)]
struct OpenFile {
    cached: File,
    direct: Option<File>,
}

impl OpenFile {
    fn new(cached: File) -> OpenFile {
        OpenFile { cached, direct: None }
    }

    fn write_past_cache(&mut self, path: &Path, offset: u64, data: &[u8]) -> io::Result<()> {
        let direct = match self.direct.take() {
            Some(file) => file,
            None => {
                let flags = OFlags::DIRECT.bits().cast_signed();
                OpenOptions::new().write(true).custom_flags(flags).open(path)?
            }
        };
        direct.write_all_at(data, offset)?;
        self.direct = Some(direct);
        Ok(())
    }
}

impl FileDisk {
    /// Opens an existing directory and locks it.
    ///
    /// # Errors
    /// [`OpenError::Missing`] when there is no such directory, [`OpenError::Locked`] when another
    /// process has it open, [`OpenError::Io`].
    pub fn open(root: &Path) -> Result<FileDisk, OpenError> {
        if !root.is_dir() {
            return Err(OpenError::Missing { path: root.display().to_string() });
        }
        let error = |operation, source| OpenError::Io(DiskError::new(operation, LOCK_NAME, source));
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .mode(OWNER_ONLY)
            .truncate(false)
            .open(root.join(LOCK_NAME))
            .map_err(|source| error("open", source))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::Locked { path: root.display().to_string() });
            }
            Err(TryLockError::Error(source)) => return Err(error("lock", source)),
        }
        let lock = Some(Arc::new(lock));
        Ok(FileDisk::new(root, lock))
    }

    /// Makes the directory (and those above it) if it is not there, and opens it as
    /// [`FileDisk::open`]; for [`crate::storage::format`].
    ///
    /// # Errors
    /// As [`FileDisk::open`].
    pub fn create_directory(root: &Path) -> Result<FileDisk, OpenError> {
        make_directory(root).map_err(|source| {
            OpenError::Io(DiskError::new("make directory", &root.display().to_string(), source))
        })?;
        FileDisk::open(root)
    }

    /// A directory to read from only, without its lock: for `perdura inspect`, also of copies and
    /// of a directory that is in use. Every change is refused.
    #[must_use]
    pub fn read_only(root: &Path) -> FileDisk {
        FileDisk::new(root, None)
    }

    fn new(root: &Path, lock: Option<Arc<File>>) -> FileDisk {
        let refused = Arc::default();
        FileDisk { root: root.to_owned(), lock, files: BTreeMap::new(), refused, zeros: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(name) }
    }

    fn file(&mut self, operation: &'static str, name: &str) -> Result<&File, DiskError> {
        self.open_file(operation, name).map(|file| &file.cached)
    }

    fn open_file(
        &mut self,
        operation: &'static str,
        name: &str,
    ) -> Result<&mut OpenFile, DiskError> {
        if !self.files.contains_key(name) {
            let file = OpenOptions::new()
                .read(true)
                .write(self.lock.is_some())
                .open(self.path(name))
                .map_err(|source| DiskError::new(operation, name, source))?;
            self.files.insert(name.to_owned(), OpenFile::new(file));
        }
        self.files
            .get_mut(name)
            .ok_or_else(|| DiskError::new(operation, name, ErrorKind::NotFound.into()))
    }

    fn writable(&self, operation: &'static str, name: &str) -> Result<(), DiskError> {
        if self.lock.is_some() {
            return Ok(());
        }
        Err(DiskError::new(operation, name, ErrorKind::ReadOnlyFilesystem.into()))
    }

    /// Drops from the operating system's cache what it has of these bytes, in whole pages; what is not
    /// flushed yet stays.
    fn forget(&mut self, name: &str, offset: u64, length: usize) -> Result<(), DiskError> {
        let page = DIRECT_BYTES as u64;
        let start = offset - offset % page;
        let end = (offset + length as u64).next_multiple_of(page);
        // It is advice: a file system without it reads from its cache.
        let file = self.file("read", name)?;
        let _ = fadvise(file, start, NonZeroU64::new(end - start), Advice::DontNeed);
        Ok(())
    }

    /// For this directory, as long as it is open.
    fn note_refusal(&self) {
        if !self.refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                directory = %self.root.display(),
                "the file system takes no writes of 4 KiB past its cache (O_DIRECT): they go \
                 through it, which is as safe and costs more processor time"
            );
        }
    }

    fn create_file(&self, name: &str) -> io::Result<File> {
        let path = self.path(name);
        if let Some(parent) = path.parent() {
            make_directory(parent)?;
        }
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(OWNER_ONLY)
            .open(path)
    }
}

/// Makes a directory and those above it, each durable in its parent.
fn make_directory(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(Path::new(""));
    make_directory(parent)?;
    match DirBuilder::new().mode(OWNER_ONLY | 0o100).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    File::open(parent)?.sync_all()
}

impl Disk for FileDisk {
    fn handle(&self) -> FileDisk {
        let refused = Arc::clone(&self.refused);
        FileDisk { refused, ..FileDisk::new(&self.root, self.lock.clone()) }
    }

    fn create(&mut self, name: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.writable("create", name)?;
        let file =
            self.create_file(name).map_err(|source| DiskError::new("create", name, source))?;
        self.files.insert(name.to_owned(), OpenFile::new(file));
        self.write_zeros(name, 0, size_bytes)
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        self.file("read", name)?
            .read_exact_at(buffer, offset)
            .map_err(|source| DiskError::new("read", name, source))
    }

    fn read_through(
        &mut self,
        name: &str,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), DiskError> {
        self.forget(name, offset, buffer.len())?;
        self.read_at(name, offset, buffer)?;
        self.forget(name, offset, buffer.len())
    }

    fn write_at(&mut self, name: &str, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        self.writable("write", name)?;
        self.file("write", name)?
            .write_all_at(data, offset)
            .map_err(|source| DiskError::new("write", name, source))
    }

    fn write_through(&mut self, name: &str, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        self.writable("write", name)?;
        let addresses = [data.as_ptr().addr() as u64, data.len() as u64, offset];
        let aligned = addresses.iter().all(|address| address % DIRECT_BYTES as u64 == 0);
        if !aligned || self.refused.load(Ordering::Relaxed) {
            return self.write_at(name, offset, data);
        }
        let path = self.path(name);
        match self.open_file("write", name)?.write_past_cache(&path, offset, data) {
            // Refused as such, at whatever write: a disk that asks for multiples of 64 KiB takes the
            // zeros of a file and not the groups. A disk that fails says otherwise, so nothing is
            // tried again on it (rule D3): all of `data` goes another way.
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                self.note_refusal();
                self.write_at(name, offset, data)
            }
            written => written.map_err(|source| DiskError::new("write", name, source)),
        }
    }

    fn release(&mut self, name: &str) {
        if let Some(file) = self.files.get_mut(name) {
            file.direct = None;
        }
    }

    fn write_zeros(&mut self, name: &str, offset: u64, length_bytes: u64) -> Result<(), DiskError> {
        if self.zeros.is_empty() {
            self.zeros = vec![0; ZERO_CHUNK_BYTES + DIRECT_BYTES];
        }
        let zeros = std::mem::take(&mut self.zeros);
        let start = zeros.as_ptr().addr().wrapping_neg() % DIRECT_BYTES;
        let mut written = Ok(());
        let mut done = 0;
        while done < length_bytes && written.is_ok() {
            let count = (length_bytes - done).min(ZERO_CHUNK_BYTES as u64);
            let chunk = &zeros[start..start + count as usize];
            written = self.write_through(name, offset + done, chunk);
            done += count;
        }
        self.zeros = zeros;
        written
    }

    fn sync(&mut self, name: &str) -> Result<(), DiskError> {
        self.writable("sync", name)?;
        self.file("sync", name)?.sync_data().map_err(|source| DiskError::new("sync", name, source))
    }

    fn sync_directory(&mut self, directory: &str) -> Result<(), DiskError> {
        self.writable("sync directory", directory)?;
        match File::open(self.path(directory)).and_then(|file| file.sync_all()) {
            Err(error) if error.kind() == ErrorKind::NotFound && !directory.is_empty() => Ok(()),
            result => result.map_err(|source| DiskError::new("sync directory", directory, source)),
        }
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.writable("rename", from)?;
        std::fs::rename(self.path(from), self.path(to))
            .map_err(|source| DiskError::new("rename", from, source))?;
        self.files.remove(to);
        if let Some(file) = self.files.remove(from) {
            self.files.insert(to.to_owned(), file);
        }
        Ok(())
    }

    fn shrink(&mut self, name: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.writable("shrink", name)?;
        let file = self.file("shrink", name)?;
        let shrunk = match file.metadata() {
            Ok(metadata) if metadata.len() > size_bytes => file.set_len(size_bytes),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        shrunk.map_err(|source| DiskError::new("shrink", name, source))
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        self.writable("remove", name)?;
        self.files.remove(name);
        std::fs::remove_file(self.path(name))
            .map_err(|source| DiskError::new("remove", name, source))
    }

    fn list(&mut self, directory: &str) -> Result<Vec<String>, DiskError> {
        let error = |source| DiskError::new("list", directory, source);
        let entries = match std::fs::read_dir(self.path(directory)) {
            Err(e) if e.kind() == ErrorKind::NotFound && !directory.is_empty() => {
                return Ok(vec![]);
            }
            entries => entries.map_err(error)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(error)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_file = entry.file_type().map_err(error)?.is_file();
            if is_file && !(directory.is_empty() && name == LOCK_NAME) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn len(&mut self, name: &str) -> Result<u64, DiskError> {
        let metadata = self.file("measure", name)?.metadata();
        metadata.map(|m| m.len()).map_err(|source| DiskError::new("measure", name, source))
    }

    fn exists(&mut self, name: &str) -> Result<bool, DiskError> {
        self.path(name).try_exists().map_err(|source| DiskError::new("look for", name, source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_buffer::PageBuffer;

    const NAME: &str = "log/file";
    const PAGE: usize = DIRECT_BYTES;

    fn pages(count: usize, byte: u8) -> PageBuffer {
        let mut buffer = PageBuffer::new();
        buffer.resize(count * PAGE);
        buffer.as_mut_slice().fill(byte);
        buffer
    }

    fn content(disk: &mut FileDisk) -> Vec<u8> {
        let mut content = vec![0; usize::try_from(disk.len(NAME).unwrap()).unwrap()];
        disk.read_at(NAME, 0, &mut content).unwrap();
        content
    }

    /// Reads and writes through the cache and past it, in one file, see each other's bytes; also where
    /// the file system has no way past the cache.
    #[test]
    fn what_is_written_past_the_cache_is_what_is_read_through_it() {
        for refused in [false, true] {
            let root = tempfile::tempdir().unwrap();
            let mut disk = FileDisk::open(root.path()).unwrap();
            disk.create(NAME, 4 * PAGE as u64 + 10).unwrap();
            if refused {
                disk.note_refusal();
            }
            let mut expected = vec![0; 4 * PAGE + 10];
            assert_eq!(content(&mut disk), expected);
            let mut write = |disk: &mut FileDisk, through, offset: usize, data: &[u8]| {
                if through {
                    disk.write_through(NAME, offset as u64, data).unwrap();
                } else {
                    disk.write_at(NAME, offset as u64, data).unwrap();
                }
                let length = expected.len().max(offset + data.len());
                expected.resize(length, 0);
                expected[offset..offset + data.len()].copy_from_slice(data);
                assert_eq!(content(disk), expected);
            };
            write(&mut disk, true, 2 * PAGE, pages(2, 1).aligned());
            write(&mut disk, false, PAGE + 7, &[2; 100]);
            write(&mut disk, true, PAGE, pages(1, 3).aligned());
            write(&mut disk, false, 2 * PAGE - 50, &[4; 100]);
            // These cannot go past it: by their length, their place in the file, that in memory.
            write(&mut disk, true, 0, &pages(1, 5).aligned()[..PAGE - 1]);
            write(&mut disk, true, 512, pages(1, 6).aligned());
            write(&mut disk, true, PAGE, &pages(2, 7).aligned()[1..=PAGE]);
            // And this makes it longer.
            write(&mut disk, true, 8 * PAGE, pages(2, 8).aligned());
            disk.sync(NAME).unwrap();
            assert_eq!(content(&mut disk.handle()), expected);
            for (offset, length) in [(0, expected.len()), (PAGE + 5, 100), (3 * PAGE - 1, PAGE + 2)]
            {
                let mut read = vec![0; length];
                disk.read_through(NAME, offset as u64, &mut read).unwrap();
                assert_eq!(read, expected[offset..offset + length]);
            }
        }
    }

    /// A disk whose way past the cache leads to `file`, which fails as the kernel has it.
    fn directed_to(root: &Path, file: &str) -> FileDisk {
        let mut disk = FileDisk::open(root).unwrap();
        disk.create(NAME, 0).unwrap();
        let direct = OpenOptions::new().write(true).open(file).unwrap();
        disk.files.get_mut(NAME).unwrap().direct = Some(direct);
        disk
    }

    #[test]
    fn a_write_that_is_refused_as_such_goes_through_the_cache_and_so_do_all_after_it() {
        let root = tempfile::tempdir().unwrap();
        // No number stands in what is written, so it says EINVAL.
        let mut disk = directed_to(root.path(), "/proc/self/oom_score_adj");
        let mut other = disk.handle();
        disk.write_through(NAME, PAGE as u64, pages(2, b'x').aligned()).unwrap();
        assert_eq!(content(&mut disk), [vec![0; PAGE], vec![b'x'; 2 * PAGE]].concat());
        other.write_through(NAME, 0, pages(1, b'y').aligned()).unwrap();
        assert_eq!(content(&mut other)[..PAGE + 1], [vec![b'y'; PAGE], vec![b'x']].concat());
        for disk in [&disk, &other] {
            assert!(disk.files.values().all(|file| file.direct.is_none()));
        }
    }

    #[test]
    fn a_write_that_fails_is_not_tried_another_way() {
        let root = tempfile::tempdir().unwrap();
        let mut disk = directed_to(root.path(), "/dev/full");
        let failed = disk.write_through(NAME, 0, pages(1, 1).aligned()).unwrap_err();
        assert_eq!(failed.source.kind(), ErrorKind::StorageFull);
        assert!(content(&mut disk).is_empty() && !disk.refused.load(Ordering::Relaxed));
    }

    #[test]
    fn a_file_that_was_released_is_open_once_and_may_be_written_again() {
        let root = tempfile::tempdir().unwrap();
        let mut disk = FileDisk::open(root.path()).unwrap();
        disk.create(NAME, 0).unwrap();
        for byte in 1..3 {
            disk.write_through(NAME, 0, pages(1, byte).aligned()).unwrap();
            let refused = disk.refused.load(Ordering::Relaxed);
            assert_eq!(disk.files[NAME].direct.is_some(), !refused);
            disk.release(NAME);
            assert!(disk.files[NAME].direct.is_none());
            assert_eq!(content(&mut disk), [byte; PAGE]);
        }
    }

    #[test]
    fn zeros_are_written_over_whatever_is_there_and_behind_it() {
        let root = tempfile::tempdir().unwrap();
        let mut disk = FileDisk::open(root.path()).unwrap();
        disk.create(NAME, 0).unwrap();
        disk.write_at(NAME, 0, &[9; 3 * PAGE]).unwrap();
        let length = 2 * ZERO_CHUNK_BYTES + 100;
        disk.write_zeros(NAME, PAGE as u64, length as u64).unwrap();
        let expected = [vec![9; PAGE], vec![0; length]].concat();
        assert_eq!(content(&mut disk), expected);
    }
}
