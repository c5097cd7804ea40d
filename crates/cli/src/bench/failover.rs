//! `perdura bench failover`: how long clients wait when the leader is gone, on a cluster of its own.

use super::live::{Guard, Live, Made};
use super::workload::Workload;
use super::{load, parse_seconds, parse_value_size, round};
use crate::connect::{connect, parse_duration, runtime};
use crate::init::Bounds;
use crate::local::own_program;
use crate::process::{self, Fault};
use crate::status::{self, aligned};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use perdura_client::{Client, Options};
use perdura_cluster::config::{Cluster, KeyFile};
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// So long a replica may take to be back before the next round.
const BACK: Duration = Duration::from_secs(120);

/// A replica that is back is at most so many slots behind what the newest had executed [`LOOKS`] looks before.
const NEAR: u64 = 64;

/// Replicas tell every 100 ms where they are, each at moments of its own, and groups execute thousands of slots in a second:
/// what one says is compared with what another one said longer ago than that.
const LOOKS: usize = 3;

/// Between two looks at all replicas.
const LOOK: Duration = Duration::from_millis(50);

/// A cluster has to take its keys within this time for each of its commands.
const LOADING: Duration = Duration::from_secs(60);

/// Rounds in a row that do not count, because whoever was gone had not led any more.
const MISSES: u32 = 10;

/// For so long a leader that was stopped stays so after the write that it delayed.
const STOPPED: Duration = Duration::from_secs(1);

pub const AFTER_HELP: &str = "\
Starts a cluster in a directory in --work, and --clients callers that write without a pause. In each \
round, after --pause seconds in which all replicas are there, the leader is killed (kill -9) or stopped \
(SIGSTOP), and at that moment one more write is sent: the time from the signal until it is acknowledged is what \
is printed. Then the leader is started again, or goes on. VIEWS is how often leaders changed until all replicas \
were there again; UNPROMPTED, how often they did while nothing happened to any: with r > 0 other leaders are tried \
now and then. A round in which another one led already at the signal says nothing, and is repeated.";

/// How it is measured.
#[derive(Args)]
pub struct FailoverOptions {
    #[command(flatten)]
    bounds: Bounds,
    /// What happens to the leader
    #[arg(long, value_enum, default_value_t = What::Kill)]
    fault: What,
    /// How often
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Callers that write meanwhile, each with one write in flight
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(0..=1024))]
    clients: u32,
    /// Seconds of writes before each fault
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = parse_seconds)]
    pause: f64,
    /// Bytes of a value, up to 1 MiB
    #[arg(long, value_name = "B", default_value_t = 512, value_parser = parse_value_size)]
    value_size: u32,
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    keys: u64,
    /// A write that takes longer ends the benchmark; loading the keys may take longer
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    timeout: Duration,
    /// Where the cluster's directory is made, and removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    work: PathBuf,
    /// Write the result to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What happens to a leader.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// kill -9: its connections are reset
    Kill,
    /// SIGSTOP: it says nothing, and its connections stand
    Stop,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            What::Kill => "kill",
            What::Stop => "stop",
        }
    }
}

/// What one fault did.
struct Round {
    leader: usize,
    took: Duration,
    /// Changes of leaders until all replicas were there again.
    views: u64,
    /// Changes of leaders since the round before, while nothing happened to any.
    unprompted: u64,
}

/// What became of a fault.
struct Outcome {
    took: Duration,
    /// Whether the replica led until then.
    led: bool,
}

/// What was measured.
struct Measured {
    rounds: Vec<Round>,
    /// Rounds that were repeated.
    repeated: u32,
}

/// Runs the command.
pub fn run(options: &FailoverOptions) -> Result<ExitCode> {
    let faults = options.bounds.faults()?;
    let live = Live::new(own_program()?)?;
    let (guard, cluster, key) = live.start(&options.work, faults, Made::default())?;
    let one = One { options, guard: &guard, cluster: &cluster, key: &key };
    let done = runtime()?.block_on(tokio::task::LocalSet::new().run_until(one.measure()));
    let measured = match done {
        Ok(measured) => measured,
        Err(error) => {
            // If a replica has ended by itself, that is why.
            guard.check()?;
            return Err(error);
        }
    };
    say!(
        "failover: {} of the leader, {} callers, {} B writes, n = {} (u = {}, r = {})",
        options.fault.name(),
        options.clients,
        options.value_size,
        faults.n(),
        faults.u(),
        faults.r()
    );
    let rounds = &measured.rounds;
    say!("{}", table(rounds));
    let (median, worst) = summary(rounds);
    say!("next acknowledged write: median {median} ms, worst {worst} ms of {}", rounds.len());
    if measured.repeated > 0 {
        say!("{} rounds were repeated: who was gone led no more", measured.repeated);
    }
    if let Some(path) = &options.json {
        let text = format!("{:#}\n", json_of(options, faults.u(), faults.r(), &measured));
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn ms(time: Duration) -> f64 {
    round(time.as_secs_f64() * 1e3)
}

/// The median, of an even number the upper one of both in the middle, and the worst; milliseconds.
fn summary(rounds: &[Round]) -> (f64, f64) {
    let mut took: Vec<Duration> = rounds.iter().map(|round| round.took).collect();
    took.sort_unstable();
    let median = took.get(took.len() / 2).copied().unwrap_or_default();
    (ms(median), ms(took.last().copied().unwrap_or_default()))
}

fn table(rounds: &[Round]) -> String {
    let head = ["ROUND", "LEADER", "NEXT WRITE MS", "VIEWS", "UNPROMPTED"].map(str::to_owned);
    let rows = rounds.iter().enumerate().map(|(index, round)| {
        [
            (index + 1).to_string(),
            round.leader.to_string(),
            ms(round.took).to_string(),
            round.views.to_string(),
            round.unprompted.to_string(),
        ]
    });
    aligned(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
}

fn json_of(options: &FailoverOptions, u: usize, r: usize, measured: &Measured) -> Value {
    let (median, worst) = summary(&measured.rounds);
    let each = measured.rounds.iter().map(|round| {
        json!({
            "leader": round.leader,
            "next_write_ms": ms(round.took),
            "views": round.views,
            "unprompted": round.unprompted,
        })
    });
    json!({
        "fault": options.fault.name(),
        "faults": {"u": u, "r": r},
        "clients": options.clients,
        "value_size": options.value_size,
        "pause_s": options.pause,
        "median_ms": median,
        "worst_ms": worst,
        "rounds": each.collect::<Vec<_>>(),
        "repeated": measured.repeated,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

struct One<'a> {
    options: &'a FailoverOptions,
    guard: &'a Guard,
    cluster: &'a Cluster,
    key: &'a KeyFile,
}

/// An error if one of the callers has ended, which only a write that failed makes it do.
fn none_failed(callers: &mut JoinSet<Result<()>>, when: &str) -> Result<()> {
    while let Some(ended) = callers.try_join_next() {
        ended?.with_context(|| format!("a caller's write failed {when}"))?;
    }
    Ok(())
}

/// Who leads, and in which view.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Leader {
    id: usize,
    view: u64,
}

impl One<'_> {
    async fn measure(&self) -> Result<Measured> {
        let options = self.options;
        let client = connect(self.cluster, self.key)?;
        let workload = Rc::new(Workload::new(options.keys, options.value_size as usize, 0)?);
        load::preload(std::slice::from_ref(&client), &workload, LOADING).await?;
        let done = Rc::new(Cell::new(false));
        let call_options = Options { timeout: options.timeout, reply_quorum: None };
        let mut callers = JoinSet::new();
        for _ in 0..options.clients {
            let (client, workload, done) = (client.clone(), workload.clone(), done.clone());
            callers.spawn_local(async move {
                while !done.get() {
                    workload.call(&client, false, &call_options).await?;
                }
                anyhow::Ok(())
            });
        }
        let mut measured = Measured { rounds: Vec::new(), repeated: 0 };
        let mut misses = 0;
        let mut before = self.all_there().await?.view;
        while measured.rounds.len() < options.rounds as usize {
            let number = measured.rounds.len() + 1;
            let first = self.all_there().await?;
            tokio::time::sleep(Duration::from_secs_f64(options.pause)).await;
            none_failed(&mut callers, "before the leader was gone")?;
            let leader = self.all_there().await?;
            let unprompted = first.view.saturating_sub(before) + (leader.view - first.view);
            let outcome = self.without(leader, &client, &workload, &call_options).await?;
            none_failed(&mut callers, "while the leader was gone")?;
            let took = outcome.took;
            before = self.all_there().await?.view;
            if !outcome.led {
                let id = leader.id;
                tell!("  round {number}: replica {id} led no more when it was gone; again");
                (measured.repeated, misses) = (measured.repeated + 1, misses + 1);
                ensure!(
                    misses < MISSES,
                    "leaders change so often that none can be stopped in time"
                );
                continue;
            }
            misses = 0;
            let views = before - leader.view;
            measured.rounds.push(Round { leader: leader.id, took, views, unprompted });
            tell!("  round {number}: replica {} was gone, {} ms", leader.id, ms(took));
        }
        done.set(true);
        while let Some(ended) = callers.join_next().await {
            ended?.context("a caller's write failed at the end")?;
        }
        client.close().await;
        Ok(measured)
    }

    /// The time from the leader's end to the next acknowledged write; then the leader is back.
    async fn without(
        &self,
        leader: Leader,
        client: &Client,
        workload: &Workload,
        options: &Options,
    ) -> Result<Outcome> {
        let fault = match self.options.fault {
            What::Kill => Fault::Kill,
            What::Stop => Fault::Stop,
        };
        let id = leader.id;
        let begun = Instant::now();
        self.guard.with(|group| process::inflict(&group.running[id].child, fault))?;
        let reports = self.ask();
        let written = workload.call(client, false, options).await;
        let took = begun.elapsed();
        if fault == Fault::Kill {
            // Whatever came of the write, nobody is to wonder that this one has ended.
            self.guard.with(|group| group.kill(id))?;
        }
        written.context("no write was acknowledged")?;
        if fault == Fault::Stop {
            tokio::time::sleep(STOPPED).await;
            self.guard.with(|group| process::inflict(&group.running[id].child, Fault::Continue))?;
        } else {
            self.guard.with(|group| group.restart(id))?;
        }
        // Views only grow, and a replica tells of a new one at once: those who are in this one after the signal
        // were in it before.
        let reports = reports.await?;
        let others = || reports.iter().filter(|report| usize::from(report.id) != id);
        ensure!(others().next().is_some(), "no replica said in which view it is after the fault");
        let led = others().all(|report| report.view == leader.view);
        Ok(Outcome { took, led })
    }

    /// What those replicas say that answer; they are asked from now on.
    fn ask(&self) -> JoinHandle<Vec<status::StatusReport>> {
        let cluster = self.cluster.clone();
        tokio::task::spawn_blocking(move || {
            status::ask_all(&cluster).into_iter().flatten().collect()
        })
    }

    /// Waits until all replicas are active, near each other, in one view; gives its leader.
    async fn all_there(&self) -> Result<Leader> {
        let begun = Instant::now();
        let mut looks = Looks::default();
        loop {
            let reports = self.ask().await?;
            if reports.len() < self.cluster.replicas.len() {
                // One did not answer, which may have taken long.
                looks = Looks::default();
            }
            let least = looks.near_from(reports.iter().map(|report| report.executed));
            let there = |report: &status::StatusReport| {
                report.state == "active" && least.is_some_and(|least| report.executed >= least)
            };
            let view = reports.iter().map(|report| report.view).max().unwrap_or_default();
            let all = reports.len() == self.cluster.replicas.len()
                && reports.iter().all(|report| there(report) && report.view == view);
            if let (true, Some(leader)) = (all, reports.iter().find(|report| report.leader)) {
                return Ok(Leader { id: usize::from(leader.id), view });
            }
            if begun.elapsed() > BACK {
                bail!("not all replicas were active again within {} s", BACK.as_secs());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// How far the newest replica was, at the last looks.
#[derive(Default)]
struct Looks(VecDeque<u64>);

impl Looks {
    /// What a replica has executed that is near the newest, when all have executed this. None in the first looks.
    fn near_from(&mut self, executed: impl Iterator<Item = u64>) -> Option<u64> {
        let before = if self.0.len() == LOOKS { self.0.pop_front() } else { None };
        self.0.push_back(executed.max().unwrap_or_default());
        before.map(|newest| newest.saturating_sub(NEAR))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_worst_are_of_all_rounds() {
        let round =
            |ms| Round { leader: 1, took: Duration::from_millis(ms), views: 1, unprompted: 0 };
        let rounds = [round(30), round(10), round(500), round(20)];
        assert_eq!(summary(&rounds), (30.0, 500.0));
        let table = table(&rounds);
        assert!(table.contains("NEXT WRITE MS") && table.lines().count() == 5, "{table}");
        assert_eq!(summary(&[]), (0.0, 0.0));
    }

    #[test]
    fn replicas_that_tell_at_other_moments_are_near_and_one_that_is_behind_is_not() {
        // 10,000 slots in a second, and reports of every 100 ms, the second one's half of that later.
        let told = |at_ms: u64, phase_ms: u64| (at_ms - (at_ms - phase_ms) % 100) * 10;
        let mut looks = Looks::default();
        let near: Vec<Option<bool>> = (20..30)
            .map(|look| {
                let (first, second) = (told(look * 50 + 3, 0), told(look * 50 + 3, 55));
                let least = looks.near_from([first, second].into_iter());
                least.map(|least| first.min(second) >= least && first - 2500 < least)
            })
            .collect();
        assert_eq!(near, [[None].repeat(LOOKS), [Some(true)].repeat(10 - LOOKS)].concat());
    }
}
