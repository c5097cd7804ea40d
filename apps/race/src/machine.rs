//! On what was measured.

use super::processes::output;
use anyhow::{Context, Result};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Writes whose median is told.
const FLUSHES: usize = 51;

/// The machine, and what was built.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    /// Whether the processor has the instructions that signatures are quickest with (AVX-512 IFMA), ...
    pub avx512: bool,
    /// ... or those that they are next quickest with.
    pub avx2: bool,
    pub memory_mib: u64,
    pub kernel: String,
    /// On which data is.
    pub disk: Disk,
    /// The commit, with `-dirty` if the tree has other changes; `unknown` outside of a repository.
    pub commit: String,
}

/// Where data is.
#[derive(Clone, Debug, Serialize)]
pub struct Disk {
    /// The kind of its file system.
    pub kind: String,
    /// The median time of writing 4 KiB behind a file's end and of having it made durable (`fdatasync`), microseconds.
    pub flush_us: f64,
}

impl Disk {
    fn of(directory: &Path) -> Result<Disk> {
        let kind = kind_of(&read("/proc/self/mounts"), directory);
        let mut file = tempfile::tempfile_in(directory)?;
        let mut times: Vec<f64> = Vec::new();
        for _ in 0..FLUSHES {
            let since = Instant::now();
            file.write_all(&[7; 4096])?;
            file.sync_data()?;
            times.push(since.elapsed().as_secs_f64() * 1e6);
        }
        times.sort_unstable_by(f64::total_cmp);
        Ok(Disk { kind, flush_us: times[FLUSHES / 2] })
    }

    /// Whether it is none.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        ["tmpfs", "ramfs"].contains(&self.kind.as_str())
    }
}

/// The kind of the file system that is mounted where a path is: the one that is mounted last of those on the longest way to it.
fn kind_of(mounts: &str, path: &Path) -> String {
    let mount = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        Some((PathBuf::from(fields.next()?), fields.next()?.to_owned()))
    };
    let above = mounts.lines().filter_map(mount).filter(|(at, _)| path.starts_with(at));
    let longest = above.max_by_key(|(at, _)| at.components().count());
    longest.map_or("unknown".to_owned(), |(_, kind)| kind)
}

/// What stands behind a name in a file of `name : value` lines.
fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let value = |line: &'a str| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim())
    };
    text.lines().find_map(value).unwrap_or_default()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

impl Machine {
    /// This one, with data in a directory.
    ///
    /// # Errors
    /// When nothing can be written there.
    pub fn here(data: &Path) -> Result<Machine> {
        let (processor, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
        let has = |flag: &str| field(&processor, "flags").split(' ').any(|one| one == flag);
        let kib =
            field(&memory, "MemTotal").split(' ').next().and_then(|kib| kib.parse::<u64>().ok());
        let describe = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"];
        let commit = output(Command::new("git").args(describe));
        let disk = Disk::of(data);
        let disk = disk.with_context(|| format!("cannot write into {}", data.display()))?;
        Ok(Machine {
            processor: field(&processor, "model name").to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            avx512: has("avx512ifma"),
            avx2: has("avx2"),
            memory_mib: kib.unwrap_or(0) / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            disk,
            commit: commit.unwrap_or_else(|_| "unknown".to_owned()),
        })
    }

    /// In a line.
    #[must_use]
    pub fn line(&self) -> String {
        let with = match (self.avx512, self.avx2) {
            (true, _) => "with AVX-512 IFMA",
            (false, true) => "with AVX2, without AVX-512 IFMA",
            (false, false) => "without AVX2",
        };
        let Machine { processor, processors, memory_mib, kernel, disk, commit, .. } = self;
        let Disk { kind, flush_us } = disk;
        format!(
            "{processors} processors ({processor}, {with}), {memory_mib} MiB, {kind}, {flush_us:.0} us for a flush, Linux {kernel}, commit {commit}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_names() {
        let text = "model\t\t: 85\nmodel name\t: A: processor\nflags : a b\n";
        assert_eq!(field(text, "model name"), "A: processor");
        assert_eq!(field(text, "nothing"), "");
    }

    #[test]
    fn this_machine_is_known() {
        let machine = Machine::here(&std::env::temp_dir()).unwrap();
        assert!(machine.processors > 0 && machine.memory_mib > 0 && !machine.kernel.is_empty());
        assert!(machine.line().contains("Linux") && machine.disk.flush_us > 0.0);
        assert_ne!(machine.disk.kind, "unknown");
        assert!(Machine::here(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn the_innermost_file_system_counts() {
        let mounts =
            "/dev/vda / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\n/dev/b /run/data xfs rw 0 0\n";
        let kind = |path| kind_of(mounts, Path::new(path));
        assert_eq!((kind("/home"), kind("/run/x")), ("ext4".to_owned(), "tmpfs".to_owned()));
        assert_eq!((kind("/run/data/y"), kind("/runner")), ("xfs".to_owned(), "ext4".to_owned()));
    }
}
