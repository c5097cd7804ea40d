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

/// User and system time. The name stands in parentheses and may hold anything; what follows it is numbers.
fn ticks_in(stat: &str) -> Option<u64> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// A port of loopback that nothing listens on.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no port is free")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 50 6 7 8 20 0 1 0 100 200 300";
        assert_eq!(ticks_in(stat), Some(56));
        assert_eq!(ticks_in("7 (x) S 1"), None);
        assert!(cpu_us(&[std::process::id()]).is_ok());
        assert!(cpu_us(&[u32::MAX]).is_err());
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
