//! Servers as processes: each ends with this program, in whatever way that ends.

use anyhow::{Context, Result, bail, ensure};
use std::fs::OpenOptions;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Of util-linux, which Debian always has: it asks the system to kill a process when its parent ends.
const SETPRIV: &str = "/usr/bin/setpriv";

/// Lines of a log that are told of a failure.
const LINES: usize = 12;

/// A process, killed when it is dropped: what it wrote goes with its directory.
pub struct Process {
    child: Child,
    program: String,
    log: PathBuf,
}

/// A command that ends with this process; to be started by the main thread alone, which lives as long as it does.
#[must_use]
pub fn bound_to_parent(program: &Path) -> Command {
    if !Path::new(SETPRIV).exists() {
        return Command::new(program);
    }
    let mut command = Command::new(SETPRIV);
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

impl Process {
    /// Starts a program; what it says goes to the end of `log`.
    pub fn start(mut command: Command, program: &Path, log: PathBuf) -> Result<Process> {
        let file = OpenOptions::new().create(true).append(true).open(&log);
        let file = file.with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        // Ctrl-C in a terminal reaches this program only, which ends the others.
        let child = command.process_group(0).spawn();
        let program = program.display().to_string();
        let child = child.with_context(|| format!("cannot start {program}"))?;
        Ok(Process { child, program, log })
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// All that it said.
    #[must_use]
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of what it said.
    #[must_use]
    pub fn last_said(&self) -> String {
        let said = self.said();
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    /// That it runs.
    ///
    /// # Errors
    /// When it has ended, with what it said last.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended by itself ({status}):\n{}", self.program, self.last_said());
        }
        Ok(())
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a command prints.
///
/// # Errors
/// When it fails, with what it said.
pub fn output(command: &mut Command) -> Result<String> {
    let printed = command.stdin(Stdio::null()).output();
    let printed = printed.with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let said = String::from_utf8_lossy(&printed.stderr);
    ensure!(printed.status.success(), "{:?} failed: {said}", command.get_program());
    Ok(String::from_utf8_lossy(&printed.stdout).trim().to_owned())
}

/// Processor time of processes so far, user and system, microseconds.
///
/// # Errors
/// When one of them has ended.
pub fn cpu_us(processes: &[u32]) -> Result<u64> {
    let mut ticks = 0;
    for process in processes {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
        let stat = stat.with_context(|| format!("process {process} has ended"))?;
        ticks += ticks_in(&stat).with_context(|| format!("/proc/{process}/stat: {stat:?}"))?;
    }
    Ok(ticks * 1_000_000 / rustix::param::clock_ticks_per_second())
}

/// User and system time, with that of children that have ended. The name stands in parentheses and may hold anything; what follows it is numbers.
fn ticks_in(stat: &str) -> Option<u64> {
    let fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().skip(11);
    let ticks: Vec<u64> = fields.take(4).map_while(|field| field.parse().ok()).collect();
    (ticks.len() == 4).then(|| ticks.iter().sum())
}

/// Processor time of all programs of this machine so far, microseconds: that of users, nice or not, and of the system for them.
///
/// # Errors
/// When the system does not say.
pub fn all_cpu_us() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let ticks = all_ticks_in(&stat).with_context(|| format!("/proc/stat: {stat:?}"))?;
    Ok(ticks * 1_000_000 / rustix::param::clock_ticks_per_second())
}

fn all_ticks_in(stat: &str) -> Option<u64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let ticks: Vec<u64> = fields.take(3).map_while(|field| field.parse().ok()).collect();
    (ticks.len() == 3).then(|| ticks.iter().sum())
}

/// A port of loopback that nothing listens on, and that the system gives to no connection by itself: a server may come back to it.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16> {
    let mut ports = (0..100).map(|_| rand::random_range(20_000..32_000_u16));
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).context("no port is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 50 6 7 8 20 0 1 0 100 200 300";
        assert_eq!(ticks_in(stat), Some(56 + 7 + 8));
        assert_eq!(ticks_in("7 (x) S 1"), None);
        assert!(cpu_us(&[std::process::id()]).is_ok());
        assert!(cpu_us(&[u32::MAX]).is_err());
        assert_eq!(all_ticks_in("cpu  100 20 3 400 5\ncpu0 1 1 1 1"), Some(123));
        assert!(all_cpu_us().unwrap() > 0);
    }

    #[test]
    fn a_process_that_ends_is_told_with_what_it_said() {
        let dir = tempfile::tempdir().unwrap();
        let shell = Path::new("/bin/sh");
        let mut command = bound_to_parent(shell);
        command.args(["-c", "echo it cannot be; exit 3"]);
        let mut process = Process::start(command, shell, dir.path().join("log.txt")).unwrap();
        let _ = process.child.wait();
        let error = process.check().unwrap_err().to_string();
        assert!(error.contains("it cannot be"), "{error}");
    }
}
