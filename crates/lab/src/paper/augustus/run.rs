//! Callers in a closed loop, each with one transaction in flight, and what came of them in a window of time.

use super::liar::{self, Liars};
use super::servers::between;
use super::store::Store;
use anyhow::{Context, Result};
use perdura_client::Options;
use perdura_cluster::transactions::StoreClient;
use perdura_store::{StoreCommand, Transaction};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// What came out, by name.
pub type Figures = BTreeMap<String, f64>;

/// What is asked for.
pub struct Demand {
    /// Callers.
    pub callers: u32,
    /// Seconds before the window, with the same callers.
    pub warm_up: f64,
    /// Seconds of the window.
    pub seconds: f64,
    /// A call that takes longer is an error.
    pub timeout: Duration,
    /// What callers ask for.
    pub next: Rc<dyn Fn() -> Transaction>,
}

/// What callers and liars share.
pub struct Run {
    next: Rc<dyn Fn() -> Transaction>,
    timeout: Duration,
    callers: u32,
    over: Cell<bool>,
    tally: RefCell<Tally>,
    // Since the beginning, for those who are to do as much.
    ended: Cell<u64>,
}

/// What ended in the window.
#[derive(Default)]
struct Tally {
    is_open: bool,
    // Of all calls, microseconds.
    latency_us: Vec<u64>,
    committed: u64,
    failed: u64,
    errors: u64,
    error: Option<String>,
}

impl Run {
    /// Whether all are to end.
    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    /// How many transactions a caller has ended on average, since the beginning.
    pub fn pace(&self) -> u64 {
        self.ended.get() / u64::from(self.callers.max(1))
    }

    /// The next transaction of a correct caller.
    pub fn transaction(&self) -> Transaction {
        (self.next)()
    }

    async fn caller(self: Rc<Self>, client: StoreClient) {
        let options = Options { timeout: self.timeout, reply_quorum: None };
        while !self.is_over() {
            let command = StoreCommand::Transaction(self.transaction());
            let begun = Instant::now();
            let ended = client.call(&command, false, &options).await;
            self.ended.set(self.ended.get() + 1);
            let mut tally = self.tally.borrow_mut();
            if !tally.is_open {
                continue;
            }
            let us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            tally.latency_us.push(us);
            match ended {
                Ok(outcome) if outcome.failed().is_none() => tally.committed += 1,
                Ok(_) => tally.failed += 1,
                Err(error) => {
                    tally.errors += 1;
                    tally.error.get_or_insert_with(|| error.to_string());
                }
            }
        }
    }
}

/// The clients' own counters, added up.
fn counters(store: &Store) -> [u64; 4] {
    let mut sums = [0; 4];
    for client in &store.clients {
        let StoreClient::Partitioned(transactions) = client else { continue };
        let of = transactions.counters();
        let counts =
            [of.conflicts + of.changed, of.unreachable, of.unaffordable, of.ended_for_others];
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    sums
}

/// Runs all callers, and liars beside them, and gives what came out in the window.
pub async fn measure(store: &Store, demand: &Demand, liars: Option<Liars>) -> Result<Figures> {
    let run = Rc::new(Run {
        next: Rc::clone(&demand.next),
        timeout: demand.timeout,
        callers: demand.callers,
        over: Cell::new(false),
        tally: RefCell::default(),
        ended: Cell::new(0),
    });
    let mut tasks = Vec::new();
    for number in 0..demand.callers as usize {
        let client = store.clients[number % store.clients.len()].clone();
        tasks.push(tokio::task::spawn_local(Rc::clone(&run).caller(client)));
    }
    let done = Rc::new(liar::Done::default());
    for liar in liars.into_iter().flat_map(Liars::into_each) {
        tasks.push(tokio::task::spawn_local(liar.lie(Rc::clone(&run), Rc::clone(&done))));
    }
    tokio::time::sleep(Duration::from_secs_f64(demand.warm_up)).await;
    let spent = || {
        let servers = store.servers.clone();
        tokio::task::spawn_blocking(move || servers.spent())
    };
    let (before, counted) = (spent().await??, counters(store));
    run.tally.borrow_mut().is_open = true;
    tokio::time::sleep(Duration::from_secs_f64(demand.seconds)).await;
    let (after, counts) = (spent().await??, counters(store));
    run.tally.borrow_mut().is_open = false;
    run.over.set(true);
    for task in tasks {
        task.await.context("a caller failed")?;
    }
    store.check()?;
    // Of the whole run: the first one is certain.
    let lied = done.counts();
    let tally = run.tally.take();
    if let Some(error) = &tally.error {
        perdura_cli::tell!("  {} calls failed; the first: {error}", tally.errors);
    }
    let passed = |index: usize| counts[index] - counted[index];
    let mut figures = between(&before, &after, tally.committed);
    of_tally(&tally, &mut figures);
    let [conflicts, unreachable, unaffordable, ended_for_others] = [0, 1, 2, 3].map(passed);
    let aborts = conflicts + unreachable + unaffordable;
    let attempts = tally.latency_us.len() as u64 + aborts;
    let seconds = figures["seconds"];
    let counts = [
        ("callers", u64::from(demand.callers)),
        ("client_keys", store.clients.len() as u64),
        ("attempts", attempts),
        ("aborts_by_conflict", conflicts),
        ("aborts_by_reach", unreachable),
        ("aborts_by_cap_or_room", unaffordable),
        ("ended_for_others", ended_for_others),
        ("liars_prepared", lied[0]),
        ("liars_voted_down", lied[1]),
        ("liars_unheard", lied[2]),
    ];
    figures.extend(counts.map(|(name, count)| (name.to_owned(), count as f64)));
    let percent = 100.0 * aborts as f64 / attempts.max(1) as f64;
    figures.insert("aborts_percent".to_owned(), percent);
    let retries = (conflicts + unreachable) as f64 / tally.latency_us.len().max(1) as f64;
    figures.insert("retries_per_call".to_owned(), retries);
    figures.insert("committed_s".to_owned(), tally.committed as f64 / seconds);
    Ok(figures)
}

fn of_tally(tally: &Tally, figures: &mut Figures) {
    let mut sorted = tally.latency_us.clone();
    sorted.sort_unstable();
    let count = sorted.len();
    let at = |share: f64| {
        let index = (share * count as f64).ceil() as usize;
        sorted.get(index.max(1) - 1).copied().unwrap_or(0) as f64 / 1e3
    };
    let mean_ms = sorted.iter().sum::<u64>() as f64 / count.max(1) as f64 / 1e3;
    let all = [
        ("mean_ms", mean_ms),
        ("p50_ms", at(0.5)),
        ("p95_ms", at(0.95)),
        ("p99_ms", at(0.99)),
        ("committed", tally.committed as f64),
        ("failed", tally.failed as f64),
        ("errors", tally.errors as f64),
    ];
    figures.extend(all.map(|(name, figure)| (name.to_owned(), figure)));
}

/// The median of each figure over rounds; of those that all have.
pub fn medians(rounds: &[Figures]) -> Figures {
    let Some(first) = rounds.first() else { return Figures::new() };
    let mut medians = Figures::new();
    for name in first.keys() {
        let mut all: Vec<f64> =
            rounds.iter().filter_map(|round| round.get(name)).copied().collect();
        all.sort_unstable_by(f64::total_cmp);
        if all.len() == rounds.len() {
            let (low, high) = (all[(all.len() - 1) / 2], all[all.len() / 2]);
            medians.insert(name.clone(), (low + high) / 2.0);
        }
    }
    medians
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_calls() {
        let tally =
            Tally { latency_us: (1..=100).rev().map(|ms| ms * 1000).collect(), ..Tally::default() };
        let mut figures = Figures::new();
        of_tally(&tally, &mut figures);
        let found = ["p50_ms", "p95_ms", "p99_ms", "mean_ms"].map(|name| figures[name]);
        assert_eq!(found, [50.0, 95.0, 99.0, 50.5]);
        of_tally(&Tally::default(), &mut figures);
        assert_eq!(figures["p99_ms"], 0.0);
    }

    #[test]
    fn medians_are_of_each_figure() {
        let round = |a: f64, b: f64| Figures::from([("a".to_owned(), a), ("b".to_owned(), b)]);
        let found = medians(&[round(1.0, 9.0), round(3.0, 7.0), round(2.0, 8.0)]);
        assert_eq!(found, round(2.0, 8.0));
        assert_eq!(medians(&[round(1.0, 9.0), round(2.0, 8.0)]), round(1.5, 8.5));
    }
}
