//! The callers.

use super::workload::{self, Workload};
use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use perdura_client::{Client, Options};
use perdura_store::StoreCommand;
use perdura_transactions::StoreClient;
use std::cell::{Cell, RefCell};
use std::io::IsTerminal;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Loading transactions in flight.
const LOADS: u64 = 16;

/// What is asked for.
pub struct Demand {
    /// Callers, each with one operation in flight.
    pub callers: u32,
    /// Seconds to measure.
    pub seconds: f64,
    /// Operations a second, in an open loop.
    pub rate: Option<f64>,
    /// Read without ordering, where enough replicas answer alike.
    pub fast: bool,
    /// An operation that takes longer counts as an error.
    pub timeout: Duration,
    /// Keep when each operation was due and how long it took.
    pub trace: bool,
    /// True when the callers are to end before their time.
    pub stop: watch::Receiver<bool>,
}

/// For callers that nothing ends before their time.
pub fn never() -> watch::Receiver<bool> {
    watch::channel(false).1
}

/// An operation that ended ok.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ended {
    /// When it was due, seconds from the start.
    pub due_s: f64,
    /// How long it took from then, seconds.
    pub took_s: f64,
}

/// What came out.
pub struct Measured {
    /// Microseconds of operations that ended ok.
    pub latency: Histogram<u64>,
    /// Operations that did not.
    pub errors: u64,
    /// One of the errors.
    pub error: Option<String>,
    /// Until the last operation ended.
    pub elapsed: Duration,
    /// Each of those that ended ok, if they were to be kept.
    pub trace: Vec<Ended>,
    /// It was to end before its time.
    pub stopped: bool,
}

impl Measured {
    /// Operations that ended ok.
    pub fn completed(&self) -> u64 {
        self.latency.len()
    }
}

/// Shared by the callers.
struct Run {
    clients: Vec<Client>,
    workload: Rc<Workload>,
    options: Options,
    fast: bool,
    start: Instant,
    end: Instant,
    rate: Option<f64>,
    // Number of the next operation, in an open loop.
    next: Cell<u64>,
    latency: RefCell<Histogram<u64>>,
    errors: Cell<u64>,
    error: RefCell<Option<String>>,
    trace: Option<RefCell<Vec<Ended>>>,
    stop: watch::Receiver<bool>,
}

fn progress(length: u64, template: &str) -> Result<ProgressBar> {
    if !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let bar = ProgressBar::new(length);
    bar.set_style(ProgressStyle::with_template(template)?);
    Ok(bar)
}

/// Writes every key once, or makes what there has to be instead.
pub async fn preload(clients: &[Client], workload: &Rc<Workload>, timeout: Duration) -> Result<()> {
    let options = Options { timeout, reply_quorum: None };
    if !workload.prepare(&clients[0], &options).await? {
        return Ok(());
    }
    let load = |workload: &Workload, from, to| workload.load(from, to);
    over_keys(clients, workload, timeout, "loading", load).await.context("cannot load the keys")
}

/// Removes the keys again.
pub async fn clean(clients: &[Client], workload: &Rc<Workload>, timeout: Duration) -> Result<()> {
    over_keys(clients, workload, timeout, "removing", |_, from, to| workload::clean(from, to)).await
}

/// Does something with all keys, in transactions, several at once.
async fn over_keys(
    clients: &[Client],
    workload: &Rc<Workload>,
    timeout: Duration,
    doing: &str,
    transaction: fn(&Workload, u64, u64) -> StoreCommand,
) -> Result<()> {
    let bar = progress(workload.keys, &format!("{doing} {{wide_bar}} {{pos}}/{{len}} keys"))?;
    let next = Rc::new(Cell::new(0));
    let mut tasks = Vec::new();
    for number in 0..LOADS {
        let client = clients[number as usize % clients.len()].clone();
        let (next, workload, bar) = (Rc::clone(&next), Rc::clone(workload), bar.clone());
        tasks.push(tokio::task::spawn_local(async move {
            let options = Options { timeout, reply_quorum: None };
            loop {
                let from = next.get();
                let to = (from + workload.keys_per_load()).min(workload.keys);
                if from == to {
                    return anyhow::Ok(());
                }
                next.set(to);
                let command = transaction(&workload, from, to);
                let client = StoreClient::Whole(client.clone());
                client.call(&command, false, &options).await?;
                bar.inc(to - from);
            }
        }));
    }
    for task in tasks {
        task.await??;
    }
    bar.finish_and_clear();
    Ok(())
}

/// Runs all callers to the end.
pub async fn measure(
    clients: &[Client],
    workload: &Rc<Workload>,
    demand: &Demand,
) -> Result<Measured> {
    let start = Instant::now();
    let length = Duration::from_secs_f64(demand.seconds);
    let run = Rc::new(Run {
        clients: clients.to_vec(),
        workload: Rc::clone(workload),
        options: Options { timeout: demand.timeout, reply_quorum: None },
        fast: demand.fast,
        start,
        end: start + length,
        rate: demand.rate,
        next: Cell::new(0),
        latency: RefCell::new(Histogram::new(3)?),
        errors: Cell::new(0),
        error: RefCell::new(None),
        trace: demand.trace.then(RefCell::default),
        stop: demand.stop.clone(),
    });
    let mut callers = Vec::new();
    for number in 0..demand.callers as usize {
        callers.push(tokio::task::spawn_local(Rc::clone(&run).caller(number)));
    }
    let shown = tokio::task::spawn_local(show(Rc::clone(&run), length));
    for caller in callers {
        caller.await?;
    }
    let elapsed = start.elapsed();
    shown.abort();
    // It holds the figures until it is gone.
    let _ = shown.await;
    let run = Rc::into_inner(run).ok_or_else(|| anyhow!("a caller is left"))?;
    let stopped = run.stopped();
    if !stopped {
        run.count_unsent(length);
    }
    Ok(Measured {
        latency: run.latency.into_inner(),
        errors: run.errors.get(),
        error: run.error.into_inner(),
        elapsed,
        trace: run.trace.map(RefCell::into_inner).unwrap_or_default(),
        stopped,
    })
}

impl Run {
    async fn caller(self: Rc<Self>, number: usize) {
        let client = &self.clients[number % self.clients.len()];
        while let Some(due) = self.due().await {
            match self.workload.call(client, self.fast, &self.options).await {
                Ok(()) => {
                    let micros = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
                    // It grows as needed; a value that it cannot hold does not occur.
                    let _ = self.latency.borrow_mut().record(micros.max(1));
                    if let Some(trace) = &self.trace {
                        let due_s = due.duration_since(self.start).as_secs_f64();
                        let took_s = due.elapsed().as_secs_f64();
                        trace.borrow_mut().push(Ended { due_s, took_s });
                    }
                }
                Err(error) => {
                    self.errors.set(self.errors.get() + 1);
                    let mut first = self.error.borrow_mut();
                    first.get_or_insert_with(|| format!("{error:#}"));
                }
            }
        }
    }

    /// What was due and never sent went wrong as well.
    fn count_unsent(&self, length: Duration) {
        let Some(rate) = self.rate else { return };
        let asked = (length.as_secs_f64() * rate).ceil() as u64;
        let unsent = asked.saturating_sub(self.next.get());
        if unsent > 0 {
            self.errors.set(self.errors.get() + unsent);
            let why = format!("{unsent} operations were due and never sent: the callers were busy");
            self.error.borrow_mut().get_or_insert(why);
        }
    }

    /// When the next operation is due, then; none when time is up, and the callers are too far behind.
    async fn due(&self) -> Option<Instant> {
        let Some(rate) = self.rate else {
            let now = Instant::now();
            return (now < self.end && !self.stopped()).then_some(now);
        };
        let number = self.next.get();
        let due = self.start + Duration::from_secs_f64(number as f64 / rate);
        // What is behind by more than an operation may take would be an error whatever came of it, and a
        // cluster that answers nothing would keep the callers for hours.
        if due >= self.end || Instant::now() >= self.end + self.options.timeout {
            return None;
        }
        self.next.set(number + 1);
        if Instant::now() >= due {
            return (!self.stopped()).then_some(due);
        }
        let mut stop = self.stop.clone();
        let told = async {
            if stop.wait_for(|stop| *stop).await.is_err() {
                // Nobody is left who could tell.
                std::future::pending::<()>().await;
            }
        };
        match tokio::time::timeout_at(due, told).await {
            Ok(()) => None,
            Err(_) => Some(due),
        }
    }

    fn stopped(&self) -> bool {
        *self.stop.borrow()
    }
}

/// Shows how it goes, on a terminal.
async fn show(run: Rc<Run>, length: Duration) {
    let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    let Ok(bar) = progress(millis, "{wide_bar} {msg}") else { return };
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let elapsed = run.start.elapsed();
        let count = run.latency.borrow().len();
        let rate = count as f64 / elapsed.as_secs_f64();
        bar.set_position(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).min(millis));
        bar.set_message(format!("{rate:.0} ops/s, {} errors", run.errors.get()));
        if elapsed > length {
            bar.finish_and_clear();
            return;
        }
    }
}
