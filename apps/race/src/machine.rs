//! On what was measured.

use super::processes::output;
use serde::Serialize;
use std::process::Command;

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
    /// Processes that ran or waited to run, on average over the last minute, before anything was started.
    pub load: f64,
    /// The commit, with `-dirty` if the tree has other changes; `unknown` outside of a repository.
    pub commit: String,
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
    /// This one.
    #[must_use]
    pub fn here() -> Machine {
        let (processor, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
        let has = |flag: &str| field(&processor, "flags").split(' ').any(|one| one == flag);
        let kib =
            field(&memory, "MemTotal").split(' ').next().and_then(|kib| kib.parse::<u64>().ok());
        let describe = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"];
        let commit = output(Command::new("git").args(describe));
        Machine {
            processor: field(&processor, "model name").to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            avx512: has("avx512ifma"),
            avx2: has("avx2"),
            memory_mib: kib.unwrap_or(0) / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
            commit: commit.unwrap_or_else(|_| "unknown".to_owned()),
        }
    }

    /// In a line.
    #[must_use]
    pub fn line(&self) -> String {
        let with = match (self.avx512, self.avx2) {
            (true, _) => "with AVX-512 IFMA",
            (false, true) => "with AVX2, without AVX-512 IFMA",
            (false, false) => "without AVX2",
        };
        let Machine { processor, processors, memory_mib, kernel, commit, .. } = self;
        format!(
            "{processors} processors ({processor}, {with}), {memory_mib} MiB, Linux {kernel}, commit {commit}"
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
        let machine = Machine::here();
        assert!(machine.processors > 0 && machine.memory_mib > 0 && !machine.kernel.is_empty());
        assert!(machine.line().contains("Linux"));
    }
}
