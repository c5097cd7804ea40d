//! Clusters on this machine, each replica (or server) a child process.
//!
//! Replicas are started once and not restarted, so that whoever tries out failures sees them. A
//! child ends with this process: in order when this stops in order, by a signal of the operating
//! system otherwise.

use crate::process;
use anyhow::{Context, Result, bail};
use perdura_cluster::config::{REPLICA_FILE, SERVER_FILE};
use perdura_replica::runtime::LogDevice;
use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A child that has not stopped after this time is killed.
const STOP: Duration = Duration::from_secs(20);

/// A replica's process.
pub struct Running {
    /// Which replica.
    pub id: usize,
    /// Its process.
    pub child: Child,
    /// What it says.
    pub log: PathBuf,
    /// How it ended, if it has.
    pub ended: Option<ExitStatus>,
}

/// The file of a replica of the cluster in `dir`.
pub fn replica_file(dir: &Path, id: usize) -> PathBuf {
    ChildKind::Replica.file(dir, id)
}

/// What a child is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChildKind {
    /// A replica.
    Replica,
    /// A server of a cluster of several partitions.
    Server,
}

impl ChildKind {
    /// Its name, which is that of the command that runs it too.
    pub fn name(self) -> &'static str {
        match self {
            ChildKind::Replica => "replica",
            ChildKind::Server => "server",
        }
    }

    /// The name of its file.
    pub fn own_file(self) -> &'static str {
        match self {
            ChildKind::Replica => REPLICA_FILE,
            ChildKind::Server => SERVER_FILE,
        }
    }

    /// Its file, in the directory of the cluster's.
    pub fn file(self, dir: &Path, id: usize) -> PathBuf {
        dir.join(format!("{}-{id}", self.name())).join(self.own_file())
    }
}

/// What replicas are started with, besides their file.
#[derive(Clone, Copy, Default)]
pub struct Start {
    /// A simulated device below their logs.
    pub device: Option<LogDevice>,
    /// Whether they tell of each checkpoint.
    pub debug: bool,
    /// Whether they measure what their time goes to.
    pub profile: bool,
}

/// This program's own file, which runs replicas too.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file")
}

fn start(program: &Path, dir: &Path, what: ChildKind, id: usize, how: Start) -> Result<Running> {
    let config = what.file(dir, id);
    let log = config.with_file_name("log.txt");
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log)
        .with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(program);
    command
        .args([what.name(), "--config"])
        .arg(&config)
        .args(["--parent", &std::process::id().to_string()]);
    if how.debug {
        command.args(["--log-level", "debug"]);
    }
    if how.profile {
        command.arg("--profile");
    }
    if let Some(device) = how.device {
        command.args(["--log-device", &device.to_string()]);
    }
    let child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        // Ctrl-C in a terminal reaches this process only, which then stops them in order.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {} {id}", what.name()))?;
    Ok(Running { id, child, log, ended: None })
}

/// The children. Dropped, it kills those that are left.
pub struct Group {
    /// By id.
    pub running: Vec<Running>,
    /// What they are.
    pub what: ChildKind,
    program: PathBuf,
    dir: PathBuf,
    how: Start,
}

impl Group {
    /// Starts all `n` replicas of the cluster in `dir`; `program` is the file of `perdura`.
    pub fn start(program: &Path, dir: &Path, n: usize, how: Start) -> Result<Group> {
        Group::start_all(ChildKind::Replica, program, dir, n, how)
    }

    /// Starts all `n` replicas, or servers, of the cluster in `dir`.
    pub fn start_all(
        what: ChildKind,
        program: &Path,
        dir: &Path,
        n: usize,
        how: Start,
    ) -> Result<Group> {
        let (program, dir) = (program.to_owned(), dir.to_owned());
        let mut group = Group { running: Vec::new(), what, program, dir, how };
        for id in 0..n {
            group.running.push(start(&group.program, &group.dir, what, id, how)?);
        }
        Ok(group)
    }

    /// Kills one as `kill -9` does.
    pub fn kill(&mut self, id: usize) -> Result<()> {
        let running = &mut self.running[id];
        running.child.kill().with_context(|| format!("cannot kill {} {id}", self.what.name()))?;
        running.ended = Some(running.child.wait()?);
        Ok(())
    }

    /// Starts one again that was killed.
    pub fn restart(&mut self, id: usize) -> Result<()> {
        self.running[id] = start(&self.program, &self.dir, self.what, id, self.how)?;
        Ok(())
    }

    /// Where one has its files.
    pub fn home(&self, id: usize) -> PathBuf {
        self.dir.join(format!("{}-{id}", self.what.name()))
    }

    /// Those that have ended since the last look.
    pub fn newly_ended(&mut self) -> Vec<(usize, u32, ExitStatus)> {
        let mut ended = Vec::new();
        for running in self.running.iter_mut().filter(|running| running.ended.is_none()) {
            if let Ok(Some(status)) = running.child.try_wait() {
                running.ended = Some(status);
                ended.push((running.id, running.child.id(), status));
            }
        }
        ended
    }

    /// An error, with what it said last, if a replica has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some((id, _, status)) = self.newly_ended().first() {
            let log = &self.running[*id].log;
            bail!(
                "{} {id} ended ({status}):\n{}\nits whole log is in {}",
                self.what.name(),
                last_lines(log, 5),
                log.display()
            );
        }
        Ok(())
    }

    /// Stops all in order.
    pub fn stop(mut self) -> Result<()> {
        for running in self.running.iter().filter(|running| running.ended.is_none()) {
            process::terminate(&running.child);
        }
        let deadline = Instant::now() + STOP;
        while self.running.iter().any(|running| running.ended.is_none()) {
            self.newly_ended();
            if Instant::now() > deadline {
                bail!(
                    "{}s did not stop within {} s and were killed",
                    self.what.name(),
                    STOP.as_secs()
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for running in self.running.iter_mut().filter(|running| running.ended.is_none()) {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

/// The end of a log, indented.
pub fn last_lines(log: &Path, count: usize) -> String {
    const TAIL_BYTES: i64 = 4096;
    let read = || -> std::io::Result<String> {
        let mut file = std::fs::File::open(log)?;
        let length = i64::try_from(file.metadata()?.len()).unwrap_or(i64::MAX);
        file.seek(SeekFrom::End(-length.min(TAIL_BYTES)))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        Ok(String::from_utf8_lossy(&tail).into_owned())
    };
    let tail = read().unwrap_or_default();
    let lines: Vec<&str> = tail.lines().collect();
    let last = &lines[lines.len().saturating_sub(count)..];
    last.iter().map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n")
}
