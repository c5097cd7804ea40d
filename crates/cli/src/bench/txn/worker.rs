//! The processes with the callers.

use super::Arguments;
use super::draw::{Draw, Shape};
use crate::process::{self, cpu_time};
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use perdura_client::Options;
use perdura_transactions::{Outcome, StoreClient};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// What one says at its end, on standard output.
#[derive(Serialize, Deserialize)]
pub struct Said {
    /// Microseconds, and how many transactions took about as long.
    pub latency: Vec<(u64, u64)>,
    /// Transactions over several partitions among them.
    pub global: u64,
    /// Transactions that did not commit.
    pub errors: u64,
    /// One of the errors.
    pub error: Option<String>,
    /// Until the last one ended, seconds.
    pub elapsed_s: f64,
    /// Processor time, seconds, if it is known.
    pub cpu_s: Option<f64>,
    /// Tries that met others.
    pub conflicts: u64,
    /// It was to end before its time.
    pub stopped: bool,
}

/// All of them; clones are the same ones.
#[derive(Clone)]
pub struct Workers(Arc<Mutex<Vec<Child>>>);

impl Workers {
    pub fn start(arguments: &Arguments) -> Result<Workers> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let given: Vec<OsString> = std::env::args_os().skip(1).collect();
        let one = |_| {
            let mut command = Command::new(&program);
            command.args(&given).arg("--worker").stdin(Stdio::null()).stdout(Stdio::piped());
            command.spawn().context("cannot start a process with callers")
        };
        let all: Result<Vec<Child>> = (0..arguments.processes).map(one).collect();
        Ok(Workers(Arc::new(Mutex::new(all?))))
    }

    /// Has them end before their time.
    pub fn stop(&self) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for child in &*all {
            if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
        }
    }

    /// What they said at their ends.
    pub fn results(&self) -> Result<Vec<Said>> {
        let mut outputs = Vec::new();
        for child in &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            outputs.push(child.stdout.take().context("its output is read already")?);
        }
        let said = outputs.into_iter().map(|output| {
            let text = std::io::read_to_string(output)?;
            ensure!(!text.is_empty(), "a process with callers ended without a result");
            Ok(serde_json::from_str(&text)?)
        });
        let said = said.collect();
        // None of them is told anything any more.
        for mut child in std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
        {
            let _ = child.wait();
        }
        said
    }
}

/// Shared by the callers of a process.
struct Run {
    client: StoreClient,
    draw: Rc<Draw>,
    latency: RefCell<Histogram<u64>>,
    global: Cell<u64>,
    errors: Cell<u64>,
    error: RefCell<Option<String>>,
    end: Instant,
    stop: watch::Receiver<bool>,
}

impl Run {
    async fn caller(self: Rc<Self>, shape: Shape, timeout: Duration) {
        let options = Options { timeout, reply_quorum: None };
        while Instant::now() < self.end && !*self.stop.borrow() {
            let (transaction, is_global) = self.draw.transaction(&shape);
            let begun = Instant::now();
            match self.client.transact(transaction, &options).await {
                Ok(Outcome::Committed(_) | Outcome::ResultsGone) => {
                    let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                    // It grows as needed; a value that it cannot hold does not occur.
                    let _ = self.latency.borrow_mut().record(micros.max(1));
                    self.global.set(self.global.get() + u64::from(is_global));
                }
                failed => {
                    self.errors.set(self.errors.get() + 1);
                    let text = match failed {
                        Err(error) => error.to_string(),
                        Ok(_) => "an operation failed that cannot".to_owned(),
                    };
                    self.error.borrow_mut().get_or_insert(text);
                }
            }
        }
    }
}

/// Carries out transactions until time is up.
pub async fn work(arguments: &Arguments, client: &StoreClient, draw: &Rc<Draw>) -> Result<Said> {
    let (told, stop) = watch::channel(false);
    process::on_stop(move |_| {
        told.send_replace(true);
        // Whoever looks later is told as well.
        std::mem::forget(told);
    })?;
    let own = || cpu_time(std::process::id());
    let (begun, cpu) = (Instant::now(), own());
    let run = Rc::new(Run {
        client: client.clone(),
        draw: Rc::clone(draw),
        latency: RefCell::new(Histogram::new(3)?),
        global: Cell::new(0),
        errors: Cell::new(0),
        error: RefCell::new(None),
        end: begun + Duration::from_secs_f64(arguments.seconds),
        stop,
    });
    let callers: Vec<_> = (0..arguments.clients)
        .map(|_| {
            let run = Rc::clone(&run);
            tokio::task::spawn_local(run.caller(arguments.shape, arguments.timeout))
        })
        .collect();
    for caller in callers {
        caller.await?;
    }
    let elapsed_s = begun.elapsed().as_secs_f64();
    let latency = run.latency.borrow();
    let latency = latency.iter_recorded();
    Ok(Said {
        latency: latency
            .map(|one| (one.value_iterated_to(), one.count_since_last_iteration()))
            .collect(),
        global: run.global.get(),
        errors: run.errors.get(),
        error: run.error.borrow().clone(),
        elapsed_s,
        cpu_s: own().zip(cpu).map(|(now, before)| now.saturating_sub(before).as_secs_f64()),
        conflicts: match client {
            StoreClient::Partitioned(transactions) => transactions.counters().conflicts,
            StoreClient::Whole(_) => 0,
        },
        stopped: *run.stop.borrow(),
    })
}
