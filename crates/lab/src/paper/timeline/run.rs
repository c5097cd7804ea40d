//! One run: a new cluster, a state, a load in an open loop, and what happens meanwhile.

use super::checkpoints::{self, GivenUp, Stored, second_of_day};
use super::{SPAN_S, Scene, TimelineOptions, Variant, WINDOW_S};
use crate::paper::measure::{LOADING, SESSION_CALLERS};
use anyhow::{Context, Result, anyhow, ensure};
use perdura_cli::bench::live::{Guard, Live, Made};
use perdura_cli::bench::load::{self, Demand, Ended, Measured};
use perdura_cli::bench::workload::Workload;
use perdura_cli::connect::{connect, runtime};
use perdura_cli::init::Tuning;
use perdura_cli::status;
use perdura_cli::tell;
use perdura_client::Client;
use perdura_cluster::config::{Cluster, KeyFile};
use perdura_protocol::Faults;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

/// Callers of an open loop: as many writes may be in flight, and more wait for one of them.
const CALLERS: u32 = 2048;

/// Callers with which the group takes as many writes as it can.
const MOST_CALLERS: u32 = 512;

/// For how long the peak is measured, seconds.
const PEAK_S: f64 = 10.0;

/// After the state is loaded, and the writes to warm up: the checkpoints that they made due are stored.
const SETTLE: Duration = Duration::from_secs(5);

/// The replica goes down after this part of the run, ...
const DOWN_AT: f64 = 0.15;

/// ... as soon as it has stored so many checkpoints, so that its log alone does not give it its state
/// back, ...
const STORED: usize = 2;

/// ... or after this part of the run.
const DOWN_BY: f64 = 0.5;

/// It is back when it is active, and so many slots behind at most: who fetches what it missed says that it
/// is active, too.
const NEAR: u64 = 256;

/// What clients saw, and when what happened, in seconds from the start.
pub struct Course {
    pub variant: Variant,
    pub offered_ops_s: f64,
    pub seconds: f64,
    pub ended: Vec<Ended>,
    pub errors: u64,
    pub checkpoints: Vec<Stored>,
    pub given_up: Vec<GivenUp>,
    pub recovery: Option<Recovery>,
    /// Time that the hypervisor gave to others, percent of all processors' time.
    pub steal_percent: f64,
}

/// A replica that was killed, lost its checkpoints and came back.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Recovery {
    pub replica: usize,
    /// When it was started again.
    pub from_s: f64,
    /// When it had the state; none if it did not within the run.
    pub received_s: Option<f64>,
    /// When it took part again; none if it did not within the run.
    pub to_s: Option<f64>,
}

impl Course {
    /// Writes that ended ok in each window, by when they ended.
    pub fn windows(&self) -> Vec<u32> {
        let count = (self.seconds / WINDOW_S).round() as usize;
        let mut windows = vec![0; count];
        for ended in &self.ended {
            let window = ((ended.due_s + ended.took_s) / WINDOW_S) as usize;
            if let Some(window) = windows.get_mut(window) {
                *window += 1;
            }
        }
        windows
    }

    /// The 99th percentile of the latency of those that ended in each window, milliseconds; none where
    /// none did.
    pub fn p99_ms_in_windows(&self) -> Vec<Option<f64>> {
        let count = (self.seconds / WINDOW_S).round() as usize;
        let mut windows = vec![Vec::new(); count];
        for ended in &self.ended {
            let window = ((ended.due_s + ended.took_s) / WINDOW_S) as usize;
            if let Some(window) = windows.get_mut(window) {
                window.push(*ended);
            }
        }
        windows.into_iter().map(p99_ms).collect()
    }

    /// Whether a write was in flight at some time of an interval.
    fn overlaps(ended: &Ended, (from_s, to_s): (f64, f64)) -> bool {
        ended.due_s <= to_s && ended.due_s + ended.took_s >= from_s
    }

    /// Writes in a second in the window with the fewest of them: of those in which the replica was
    /// away, or of all.
    pub fn lowest_ops_s(&self) -> f64 {
        f64::from(self.windows_of_interest().into_iter().min().unwrap_or(0)) / WINDOW_S
    }

    /// Windows that lie in the time in which the replica was away, or all.
    fn windows_of_interest(&self) -> Vec<u32> {
        let (from_s, to_s) = self.interest();
        let windows = self.windows().into_iter().enumerate();
        let within = windows.filter(|(index, _)| {
            let began_s = *index as f64 * WINDOW_S;
            began_s >= from_s && began_s + WINDOW_S <= to_s + WINDOW_S / 2.0
        });
        within.map(|(_, count)| count).collect()
    }

    fn interest(&self) -> (f64, f64) {
        match self.recovery {
            Some(recovery) => (recovery.from_s, recovery.to_s.unwrap_or(self.seconds)),
            None => (0.0, self.seconds),
        }
    }

    /// Writes that ended ok over those that were offered, in the [`SPAN_S`] with the fewest of them, or in
    /// all of the time if that is shorter: of that in which the replica was away, or of all.
    pub fn worst_over_offered(&self) -> Option<f64> {
        let windows = self.windows_of_interest();
        let span = ((SPAN_S / WINDOW_S).round() as usize).min(windows.len()).max(1);
        let least = windows.windows(span).map(|span| span.iter().sum::<u32>()).min()?;
        Some(f64::from(least) / (self.offered_ops_s * span as f64 * WINDOW_S))
    }

    /// The time that checkpoints, or the recovery, took.
    pub fn busy(&self) -> Vec<(f64, f64)> {
        match self.recovery {
            Some(recovery) => vec![(recovery.from_s, recovery.to_s.unwrap_or(self.seconds))],
            None => self.checkpoints.iter().map(|one| (one.from_s, one.to_s)).collect(),
        }
    }

    /// The 99th percentile of the latency of those in flight while something happened, and of the
    /// others, milliseconds.
    pub fn p99_ms(&self) -> (Option<f64>, Option<f64>) {
        let busy = self.busy();
        let (inside, outside): (Vec<Ended>, Vec<Ended>) = self
            .ended
            .iter()
            .partition(|ended| busy.iter().any(|interval| Course::overlaps(ended, *interval)));
        (p99_ms(inside), p99_ms(outside))
    }

    /// Writes that ended ok over those that were offered, while something happened, at least in the
    /// whole.
    pub fn completed_over_offered(&self) -> f64 {
        let (from_s, to_s) = self.interest();
        let within = |ended: &&Ended| (from_s..to_s).contains(&(ended.due_s + ended.took_s));
        let completed = self.ended.iter().filter(within).count();
        completed as f64 / (self.offered_ops_s * (to_s - from_s)).max(1.0)
    }
}

fn p99_ms(mut ended: Vec<Ended>) -> Option<f64> {
    ended.sort_unstable_by(|one, other| one.took_s.total_cmp(&other.took_s));
    let index = (ended.len() * 99).div_ceil(100).checked_sub(1)?;
    ended.get(index).map(|ended| ended.took_s * 1000.0)
}

/// Of all processors: steal, and all, in ticks.
fn processor_ticks() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks = stat.lines().next()?.split_whitespace().skip(1);
    let ticks: Vec<u64> = ticks.filter_map(|ticks| ticks.parse().ok()).collect();
    Some((*ticks.get(7)?, ticks.iter().take(8).sum()))
}

/// Makes a cluster, measures, and removes it.
pub fn run(
    live: &Live,
    scene: Scene,
    faults: Faults,
    variant: Variant,
    rate: Option<f64>,
    options: &TimelineOptions,
) -> Result<Course> {
    let Variant { schedule, transfer } = variant;
    let tuning = Tuning::for_checkpoints(schedule, options.checkpoint_mib());
    let made = Made { tuning, transfer, debug: true, ..Made::default() };
    let (guard, cluster, key) = live.start(&options.work, faults, made)?;
    let one = One { scene, variant, rate, options, guard: &guard, cluster: &cluster, key: &key };
    let done = runtime()?.block_on(tokio::task::LocalSet::new().run_until(one.measure()));
    // If a replica has ended, that is why.
    guard.check()?;
    done
}

struct One<'a> {
    scene: Scene,
    variant: Variant,
    rate: Option<f64>,
    options: &'a TimelineOptions,
    guard: &'a Guard,
    cluster: &'a Cluster,
    key: &'a KeyFile,
}

impl One<'_> {
    async fn measure(&self) -> Result<Course> {
        let options = self.options;
        let sessions = CALLERS.div_ceil(SESSION_CALLERS);
        let clients = (0..sessions)
            .map(|_| connect(self.cluster, self.key))
            .collect::<Result<Vec<Client>, _>>()?;
        let workload = Rc::new(Workload::new(options.keys(), options.value_size as usize, 0)?);
        tell!("{}: loading {} MB", self.variant.name(self.scene), options.state_mb);
        load::preload(&clients, &workload, LOADING).await?;
        if let Some(seconds) = options.warm_up {
            tell!("  as many writes as possible for {seconds} s, to warm up");
            self.flat_out(&clients, &workload, seconds).await?;
        }
        tokio::time::sleep(SETTLE).await;
        let rate = match self.rate {
            Some(rate) => rate,
            None => self.peak(&clients, &workload).await?,
        };
        let demand = Demand {
            callers: CALLERS,
            seconds: options.seconds,
            rate: Some(rate),
            fast: false,
            timeout: options.timeout,
            trace: true,
            stop: load::never(),
        };
        tell!("  {rate:.0} writes in a second for {} s", options.seconds);
        let (began, ticks) = (second_of_day(SystemTime::now()), processor_ticks());
        let (measured, recovery) =
            both(load::measure(&clients, &workload, &demand), self.happens()).await;
        let (measured, mut recovery): (Measured, Option<Recovery>) = (measured?, recovery?);
        let steal = processor_ticks().zip(ticks).map(|(after, before)| {
            100.0 * (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64
        });
        if let Some(error) = &measured.error {
            tell!("  {} writes failed; the first: {error}", measured.errors);
        }
        let (mut stored, mut given_up) = (Vec::new(), Vec::new());
        for replica in 0..self.cluster.replicas.len() {
            let log = self.guard.with(|group| Ok(group.running[replica].log.clone()))?;
            stored.extend(checkpoints::read(&log, replica, began)?);
            given_up.extend(checkpoints::given_up(&log, replica, began)?);
            if let Some(recovery) = recovery.as_mut().filter(|one| one.replica == replica) {
                let received = checkpoints::received(&log, began)?.into_iter();
                let of_it = |at_s: &f64| (recovery.from_s..options.seconds).contains(at_s);
                recovery.received_s = received.filter(of_it).reduce(f64::max);
            }
        }
        if let Some(Recovery { received_s: None, to_s: Some(_), .. }) = recovery {
            tell!(
                "  nothing was transferred: the replica's own log went back far enough. Give a smaller \
                 --checkpoint-mib, or a larger --state-mb"
            );
        }
        stored.retain(|one| one.to_s > 0.0 && one.from_s < options.seconds);
        given_up.retain(|one| (0.0..options.seconds).contains(&one.at_s));
        given_up.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
        for client in &clients {
            client.close().await;
        }
        Ok(Course {
            variant: self.variant,
            offered_ops_s: rate,
            seconds: options.seconds,
            ended: measured.trace,
            errors: measured.errors,
            checkpoints: stored,
            given_up,
            recovery,
            steal_percent: steal.unwrap_or_default(),
        })
    }

    async fn flat_out(
        &self,
        clients: &[Client],
        workload: &Rc<Workload>,
        seconds: f64,
    ) -> Result<Measured> {
        let (callers, timeout) = (MOST_CALLERS, self.options.timeout);
        let demand = Demand {
            callers,
            seconds,
            rate: None,
            fast: false,
            timeout,
            trace: false,
            stop: load::never(),
        };
        load::measure(clients, workload, &demand).await
    }

    async fn peak(&self, clients: &[Client], workload: &Rc<Workload>) -> Result<f64> {
        let measured = self.flat_out(clients, workload, PEAK_S).await?;
        let peak = measured.completed() as f64 / measured.elapsed.as_secs_f64();
        ensure!(peak > 0.0, "no write succeeded; see the logs of the replicas");
        let percent = self.options.load.unwrap_or(self.scene.load());
        tell!("  peak {peak:.0} writes in a second, of which {percent}% are offered");
        Ok((peak * f64::from(percent) / 100.0).max(1.0))
    }

    /// The last of those who do not lead.
    async fn follower(&self) -> Result<usize> {
        let reports = ask(self.cluster).await?;
        let follower =
            |report: &&Result<status::StatusReport>| report.as_ref().is_ok_and(|r| !r.leader);
        let follower = reports.iter().rfind(follower).context("no replica follows")?;
        Ok(usize::from(follower.as_ref().map_err(|error| anyhow!("{error:#}"))?.id))
    }

    /// How many checkpoints a replica has stored.
    fn stored(&self, replica: usize) -> Result<usize> {
        let log = self.guard.with(|group| Ok(group.running[replica].log.clone()))?;
        Ok(checkpoints::read(&log, replica, 0.0)?.len())
    }

    /// What happens while clients write.
    async fn happens(&self) -> Result<Option<Recovery>> {
        if self.scene == Scene::Checkpoints {
            return Ok(None);
        }
        let begun = tokio::time::Instant::now();
        tokio::time::sleep(Duration::from_secs_f64(self.options.seconds * DOWN_AT)).await;
        let wait = Duration::from_secs_f64(self.options.seconds * DOWN_BY);
        let victim = loop {
            let victim = self.follower().await?;
            if begun.elapsed() > wait || self.stored(victim)? >= STORED {
                break victim;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        };
        self.guard.with(|group| {
            group.kill(victim)?;
            let directory = group.home(victim).join("data/checkpoint");
            for entry in std::fs::read_dir(&directory)
                .with_context(|| format!("cannot read {}", directory.display()))?
            {
                std::fs::remove_file(entry?.path())?;
            }
            group.restart(victim)
        })?;
        let from_s = begun.elapsed().as_secs_f64();
        tell!("  replica {victim} was killed, has lost its checkpoints, and starts again");
        let mut to_s = None;
        while to_s.is_none() && begun.elapsed().as_secs_f64() < self.options.seconds {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let reports = ask(self.cluster).await?;
            let executed =
                |report: &Result<status::StatusReport>| report.as_ref().map_or(0, |r| r.executed);
            let newest = reports.iter().map(executed).max().unwrap_or_default();
            let back = |report: &Result<status::StatusReport>| {
                let is_near = executed(report) + NEAR >= newest;
                is_near && report.as_ref().is_ok_and(|report| report.state == "active")
            };
            to_s = reports.get(victim).is_some_and(back).then(|| begun.elapsed().as_secs_f64());
        }
        Ok(Some(Recovery { replica: victim, from_s, received_s: None, to_s }))
    }
}

/// Runs both to their ends, side by side on this thread.
async fn both<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(done) = one.as_mut().poll(context)
        {
            first = Some(done);
        }
        if second.is_none()
            && let Poll::Ready(done) = other.as_mut().poll(context)
        {
            second = Some(done);
        }
        match (first.take(), second.take()) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}

/// Off this thread, on which the callers are.
async fn ask(cluster: &Cluster) -> Result<Vec<Result<status::StatusReport>>> {
    let cluster = cluster.clone();
    Ok(tokio::task::spawn_blocking(move || status::ask_all(&cluster)).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_cli::init::ScheduleName;
    use perdura_replica::node::StateTransfer;

    fn course(ended: &[(f64, f64)], recovery: Option<Recovery>) -> Course {
        let ended = ended.iter().map(|(due_s, took_s)| Ended { due_s: *due_s, took_s: *took_s });
        Course {
            variant: Variant {
                schedule: ScheduleName::Sequential,
                transfer: StateTransfer::Collaborative,
            },
            offered_ops_s: 4.0,
            seconds: 1.0,
            ended: ended.collect(),
            errors: 0,
            checkpoints: vec![Stored { replica: 0, from_s: 0.3, to_s: 0.5, written_bytes: 1 }],
            given_up: Vec::new(),
            recovery,
            steal_percent: 0.0,
        }
    }

    #[test]
    fn a_write_counts_when_it_ends_and_is_slow_while_it_overlaps() {
        let ended = [(0.0, 0.05), (0.01, 0.04), (0.2, 0.35), (0.6, 0.02), (0.95, 0.2)];
        let seen = course(&ended, None);
        assert_eq!(seen.windows(), [2, 0, 0, 0, 0, 1, 1, 0, 0, 0], "the last ends after the run");
        let p99: Vec<Option<i64>> = seen
            .p99_ms_in_windows()
            .into_iter()
            .map(|p99_ms| p99_ms.map(|p99_ms| p99_ms.round() as i64))
            .collect();
        let none = None;
        let expected = [Some(50), none, none, none, none, Some(350), Some(20), none, none, none];
        assert_eq!(p99, expected);
        let (inside, outside) = seen.p99_ms();
        assert!((inside.unwrap() - 350.0).abs() < 1e-6 && (outside.unwrap() - 200.0).abs() < 1e-6);
        assert!((seen.completed_over_offered() - 1.0).abs() < 1e-9);
        assert!(seen.lowest_ops_s() < 1e-9);
        assert!((seen.worst_over_offered().unwrap() - 1.0).abs() < 1e-9, "all of it is short");
        let recovery = Recovery { replica: 1, from_s: 0.5, received_s: None, to_s: Some(1.0) };
        let seen = course(&ended, Some(recovery));
        assert_eq!(seen.busy(), [(0.5, 1.0)]);
        assert!((seen.completed_over_offered() - 1.0).abs() < 1e-9, "two of two");
        let short = Recovery { to_s: Some(0.7), ..recovery };
        assert!((course(&ended, Some(short)).lowest_ops_s() - 10.0).abs() < 1e-9);
        let never = course(&ended, Some(Recovery { to_s: None, ..recovery }));
        assert_eq!(never.busy(), [(0.5, 1.0)]);
    }

    #[test]
    fn the_worst_span_is_found_wherever_it_begins() {
        // Four a second are offered for 12 s, and for 4 s from 3.1 s on none ends.
        let times = (0..48).map(|index| f64::from(index) * 0.25 + 0.01);
        let ended: Vec<(f64, f64)> =
            times.filter(|due_s| !(3.1..7.1).contains(due_s)).map(|due_s| (due_s, 0.0)).collect();
        let seen = Course { seconds: 12.0, ..course(&ended, None) };
        assert!((seen.worst_over_offered().unwrap() - 0.2).abs() < 0.051);
        let after = Recovery { replica: 1, from_s: 7.2, received_s: None, to_s: Some(12.0) };
        let seen = Course { seconds: 12.0, ..course(&ended, Some(after)) };
        assert!(seen.worst_over_offered().unwrap() > 0.94);
    }
}
