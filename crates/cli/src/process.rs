//! What has to do with processes: signals, CPU time.

use crate::logging::Farewell;
use anyhow::{Context, Result};
use clap::ValueEnum;
use perdura_client::Client;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::process::Child;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;

/// How much is logged.
#[derive(Clone, Copy, ValueEnum)]
pub enum LogLevel {
    /// What stops the replica
    Error,
    /// What an operator has to look at
    Warn,
    /// What changes: views, links, checkpoints
    Info,
    /// Details
    Debug,
    /// Everything
    Trace,
}

/// Calls `stop` on SIGTERM, SIGINT, and SIGHUP (unless that is ignored, as under `nohup`), on a thread of its own. A second
/// signal ends the process at once, as it would have without this.
pub fn on_stop(stop: impl FnOnce(&'static str) + Send + 'static) -> Result<()> {
    let hangs_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut signals =
        signal_hook::iterator::Signals::new([SIGTERM, SIGINT].into_iter().chain(hangs_up))
            .context("cannot listen for SIGTERM, SIGINT and SIGHUP")?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let mut stop = Some(stop);
            for signal in signals.forever() {
                let name = match signal {
                    SIGTERM => "SIGTERM",
                    SIGHUP => "SIGHUP",
                    _ => "SIGINT",
                };
                match stop.take() {
                    Some(stop) => stop(name),
                    None => {
                        let _ = signal_hook::low_level::emulate_default_handler(signal);
                    }
                }
            }
        })
        .context("cannot start a thread for signals")?;
    Ok(())
}

/// The exit code of a program that a signal of this name ended, as shells have it.
#[must_use]
pub fn code_of(signal: &str) -> u8 {
    match signal {
        "SIGHUP" => 129,
        "SIGINT" => 130,
        _ => 143,
    }
}

/// Whether a signal has asked for an end, for what is done piece by piece: it ends behind a piece.
#[derive(Clone, Default)]
pub struct Stop(Arc<StopState>);

#[derive(Default)]
struct StopState {
    by: OnceLock<&'static str>,
    told: Notify,
}

impl Stop {
    /// From here on signals ask for it; a second one ends the process.
    ///
    /// # Errors
    /// When the system gives no thread for that.
    pub fn by_signals() -> Result<Stop> {
        let stop = Stop::default();
        let asked = stop.clone();
        on_stop(move |name| {
            let _ = asked.0.by.set(name);
            asked.0.told.notify_waiters();
        })?;
        Ok(stop)
    }

    /// The signal that asked.
    #[must_use]
    pub fn by(&self) -> Option<&'static str> {
        self.0.by.get().copied()
    }

    /// Ends when one has asked.
    pub async fn asked(&self) {
        let told = self.0.told.notified();
        if self.by().is_none() {
            told.await;
        }
    }

    /// Carries something out. After a signal it has so long to end as it was decided; none if it has not by then.
    pub async fn bounded<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            done = &mut work => Some(done),
            () = self.asked() => tokio::time::timeout(WITHDRAWN_WITHIN, work).await.ok(),
        }
    }
}

/// Within this time after a signal calls end as the replicas say; what is not answered by then is given up.
pub const WITHDRAWN_WITHIN: Duration = Duration::from_secs(2);

/// Carries out calls of these clients. After a signal no further one is made, what waits is withdrawn, and those under way end as they
/// were decided, if the replicas say so soon; so nothing is handed to somebody who does not know of it. A second signal ends the process.
pub async fn withdrawn_by_signals<T>(
    clients: &[&Client],
    calls: impl Future<Output = T>,
) -> Result<T> {
    let stop = Arc::new(Notify::new());
    let told = Arc::clone(&stop);
    on_stop(move |name| {
        tell!("perdura: {name}: what is under way is taken back, if that is still possible");
        told.notify_one();
    })?;
    let mut calls = std::pin::pin!(calls);
    tokio::select! {
        done = &mut calls => return Ok(done),
        () = stop.notified() => {
            for client in clients {
                client.withdraw().await;
            }
        }
    }
    if let Ok(done) = tokio::time::timeout(WITHDRAWN_WITHIN, &mut calls).await {
        return Ok(done);
    }
    for client in clients {
        client.close().await;
    }
    Ok(calls.await)
}

/// So long a replica may take to stop. It needs milliseconds, or the seconds that a slow disk takes for what was taken on.
pub const STOP_WITHIN: Duration = Duration::from_secs(10);

/// On SIGTERM, SIGINT and SIGHUP calls `request`. If that has not led to an end [`STOP_WITHIN`], the process ends as it is, and says why.
pub fn stop_in_order(
    farewell: Farewell,
    request: impl FnOnce() + Send + 'static,
    hindrance: impl FnOnce() -> String + Send + 'static,
) -> Result<()> {
    on_stop(move |signal| {
        tracing::info!("{signal}: stopping");
        request();
        end_within(STOP_WITHIN, move || {
            let (limit_s, why) = (STOP_WITHIN.as_secs(), hindrance());
            tracing::error!("not stopped {limit_s} s after {signal}, so it ends as it is: {why}");
            farewell.say();
        });
    })
}

/// Ends the process with exit code 1 if it has not ended by itself within that time, after `last_words`: whoever sends a signal
/// counts on an end, and a thread may be stuck where no signal gets to.
pub fn end_within(limit: Duration, last_words: impl FnOnce() + Send + 'static) {
    end_after(limit, last_words, |code| std::process::exit(code));
}

fn end_after(
    limit: Duration,
    last_words: impl FnOnce() + Send + 'static,
    end: impl FnOnce(i32) + Send + 'static,
) {
    let started = std::thread::Builder::new().name("deadline".into()).spawn(move || {
        std::thread::sleep(limit);
        last_words();
        end(1);
    });
    if let Err(error) = started {
        tracing::warn!("nothing will end this process if it does not stop by itself: {error}");
    }
}

/// Lets this process have as many files open as its hard limit has it.
pub fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
        // It goes on with what it has, and says so if that is little.
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

/// Whether whoever started this process has it ignore a signal.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Sends this process SIGTERM when `parent` ends, at once if it has ended already.
pub fn end_with_parent(parent: u32) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .context("cannot be told of the end of the parent process")?;
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    anyhow::ensure!(now == i32::try_from(parent).ok(), "the parent process {parent} has ended");
    Ok(())
}

/// Sends a child SIGTERM. It must not have been waited for with success, so that the number is
/// still its own.
pub fn terminate(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may be ending by itself.
        let _ = rustix::process::kill_process(pid, Signal::TERM);
    }
}

/// What happens to a child in an experiment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9`.
    Kill,
    /// It stands still.
    Stop,
    /// It goes on.
    Continue,
}

/// Does that to a child, at once. It must not have been waited for with success, as for [`terminate`].
pub fn inflict(child: &Child, fault: Fault) -> Result<()> {
    let signal = match fault {
        Fault::Kill => Signal::KILL,
        Fault::Stop => Signal::STOP,
        Fault::Continue => Signal::CONT,
    };
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("it has no number")?;
    rustix::process::kill_process(pid, signal).context("cannot send it a signal")
}

/// CPU time, user and system, that this process has used.
pub fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// CPU time, user and system, that a process of this machine has used; `None` if there is no such
/// process of this program.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold anything; what follows it is numbers.
    let (before, after) = (stat.find('(')?, stat.rfind(')')?);
    if stat.get(before + 1..after)? != "perdura" {
        return None;
    }
    let fields: Vec<&str> = stat.get(after + 1..)?.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn what_does_not_stop_in_time_ends_after_its_last_words() {
        let (told, said) = mpsc::channel();
        let ended = told.clone();
        let words = move || told.send("slot 7".to_owned()).unwrap();
        end_after(Duration::ZERO, words, move |code| ended.send(format!("exit {code}")).unwrap());
        assert_eq!(said.iter().collect::<Vec<_>>(), ["slot 7", "exit 1"]);
    }
}
