//! A service whose commands take as long as a database's, and a load of them: for what a slow service does to its group.
//! `slow load DIR CALLERS SECONDS [READERS]` says what callers got, and readers of a count that changes all the time; every other command is that of a
//! service's program (`slow dev`, `slow replica`).

#![allow(missing_docs)]

use perdura::{Client, Context, Parts, QueryContext, Service, Sharded};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The name of the sum of all counts.
const ALL: &str = "all";

/// Counts of names. Each command takes [`Slow::takes`].
#[derive(Default)]
pub struct Slow {
    counts: Sharded<String, u64>,
}

impl Slow {
    /// Two milliseconds, or what `SLOW_US` says, microseconds: one replica may be slower than the others.
    fn takes() -> Duration {
        let given = std::env::var("SLOW_US").ok().and_then(|text| text.parse().ok());
        Duration::from_micros(given.unwrap_or(2_000))
    }
}

#[derive(Serialize, Deserialize, Debug)]
pub struct Add(pub String);

#[derive(Serialize, Deserialize, Debug)]
pub struct Count(pub String);

impl Service for Slow {
    const NAME: &'static str = "slow";
    const TAKES_LONG: bool = true;
    type Command = Add;
    type Query = Count;
    type Reply = u64;
    type Error = ();

    fn execute(&mut self, _: &Context<'_>, Add(name): Add) -> Result<u64, ()> {
        std::thread::sleep(Slow::takes());
        let all = self.counts.get(&ALL.to_owned()).unwrap_or(0) + 1;
        self.counts.insert(ALL.to_owned(), all);
        let count = self.counts.get(&name).unwrap_or(0) + 1;
        self.counts.insert(name, count);
        Ok(count)
    }

    fn query(&self, _: &QueryContext, Count(name): Count) -> Result<u64, ()> {
        Ok(self.counts.get(&name).unwrap_or(0))
    }

    fn parts(&mut self, parts: &mut Parts) {
        parts.map(&mut self.counts);
    }
}

/// What so many calls took.
fn report(what: &str, mut took: Vec<Duration>, begun: Instant) {
    took.sort_unstable();
    let at = |part: f64| took.get((took.len() as f64 * part) as usize).or(took.last());
    let ms = |part| at(part).map_or(0.0, |time| time.as_secs_f64() * 1e3);
    println!(
        "{} {what} in {:.1} s: {:.0} a second; median {:.0} ms, 99% {:.0} ms, longest {:.0} ms",
        took.len(),
        begun.elapsed().as_secs_f64(),
        took.len() as f64 / begun.elapsed().as_secs_f64(),
        ms(0.5),
        ms(0.99),
        ms(1.0),
    );
}

/// Callers, each of which adds to a count of its own as soon as it has got its reply; and readers of the sum of all, which all of them change.
async fn load(
    dir: &str,
    callers: usize,
    readers: usize,
    time: Duration,
) -> Result<(), Box<dyn Error>> {
    let client = Client::<Slow>::open(dir)?;
    let patient = perdura::Options { timeout: Duration::from_secs(60), ..Default::default() };
    let client = client.with(patient);
    let begun = Instant::now();
    let failed = Arc::new(AtomicU64::new(0));
    let calls = (0..callers).map(|caller| {
        let (client, failed) = (client.clone(), Arc::clone(&failed));
        tokio::spawn(async move {
            let mut took = Vec::new();
            while begun.elapsed() < time {
                let since = Instant::now();
                match client.execute(&Add(format!("caller {caller}"))).await {
                    Ok(count) if count == took.len() as u64 + 1 => took.push(since.elapsed()),
                    other => {
                        eprintln!("caller {caller}: {other:?}");
                        failed.fetch_add(1, Ordering::Relaxed);
                        return took;
                    }
                }
            }
            took
        })
    });
    let calls: Vec<_> = calls.collect();
    let reads = (0..readers).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            let (mut took, mut last) = (Vec::new(), 0);
            while begun.elapsed() < time {
                let since = Instant::now();
                match client.query(&Count(ALL.to_owned())).await {
                    Ok(count) if count >= last => last = count,
                    other => {
                        eprintln!("a read after {last}: {other:?}");
                        return took;
                    }
                }
                took.push(since.elapsed());
            }
            took
        })
    });
    let reads: Vec<_> = reads.collect();
    let (mut called, mut read) = (Vec::new(), Vec::new());
    for caller in calls {
        called.extend(caller.await?);
    }
    for reader in reads {
        read.extend(reader.await?);
    }
    report("calls", called, begun);
    if readers > 0 {
        report("reads", read, begun);
    }
    println!("{} callers failed", failed.load(Ordering::Relaxed));
    Ok(())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (dir, callers, seconds, readers) = match &words[..] {
        [load, dir, callers, seconds] if load == "load" => (dir, callers, seconds, "0"),
        [load, dir, callers, seconds, readers] if load == "load" => {
            (dir, callers, seconds, readers.as_str())
        }
        _ => return Ok(perdura::cli::<Slow>()),
    };
    let (callers, readers) = (callers.parse()?, readers.parse()?);
    let time = Duration::from_secs(seconds.parse()?);
    tokio::runtime::Runtime::new()?.block_on(load(dir, callers, readers, time))?;
    Ok(ExitCode::SUCCESS)
}
