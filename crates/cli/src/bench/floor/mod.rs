//! `perdura bench floor`: what a write would cost if nothing but its costs did, beside what it costs.

mod costs;

use super::live::{Live, Made};
use super::load::{self, Demand};
use super::workload::Workload;
use super::{cpu_of, parse_seconds, parse_value_size, round};
use crate::connect::{connect, runtime};
use crate::init::Bounds;
use crate::local::own_program;
use crate::status::{self, aligned};
use anyhow::{Context, Result, ensure};
use clap::Args;
use costs::{Costs, Effort, Load};
use perdura_protocol::Faults;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

pub const AFTER_HELP: &str = "\
First a cluster is made in a directory in --work and measured as `perdura bench put` does: processor time of all replicas for a \
write, and how many writes share a slot. Then the costs of a write are measured by themselves on this machine, \
with the code that replicas run: signatures, hashes, records, sockets, wake-ups, the log, the state. The floor is their sum \
for a slot of as many writes, in as few frames as a client makes of them, over these. The last line says how much lies \
between the floor and what was measured.

A hash is counted once for each replica, each message alone, and nothing for decoding, bookkeeping and replies' \
contents: these are what the distance is made of, with caches that are cold and processors that are shared. What goes \
through sockets is counted with both its ends, so that the client's half of its frames and of replies is in the floor, \
while what is measured is of replicas alone.";

/// How long a write may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Replicas publish what they say of themselves at least as often.
const REPORTED: Duration = Duration::from_millis(250);

/// What is measured.
#[derive(Args)]
pub struct FloorOptions {
    #[command(flatten)]
    bounds: Bounds,
    /// Callers, each with one write in flight
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    clients: u32,
    /// Bytes of a value, up to 1 MiB
    #[arg(long, value_name = "B", default_value_t = 512, value_parser = parse_value_size)]
    value_size: u32,
    /// Seconds to measure, after half as many to warm up
    #[arg(long, value_name = "S", default_value_t = 8.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Where the cluster's directory, and that of a log, are made and removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    work: PathBuf,
    /// Write the result to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What a cluster took.
struct Measured {
    writes_a_slot: f64,
    cpu_us: f64,
    ops_s: f64,
}

/// A term's part of a slot.
struct Line {
    what: &'static str,
    /// How often, and how long each takes, microseconds.
    times: f64,
    each: f64,
}

/// Runs the command.
pub fn run(options: &FloorOptions) -> Result<ExitCode> {
    let faults = options.bounds.faults()?;
    let live = Live::new(own_program()?)?;
    let measured = cluster(&live, options, faults)?;
    let load = Load {
        writes: (measured.writes_a_slot.round() as usize).max(1),
        value_bytes: options.value_size as usize,
        votes: faults.agreement_quorum() - 1,
    };
    let costs = Costs::measure(Effort::FULL, load, &live, &options.work)?;
    let lines = lines(faults, &costs, load.frames()?.len(), measured.writes_a_slot);
    let floor: f64 = lines.iter().map(|line| line.times * line.each).sum();
    let floor = floor / measured.writes_a_slot;
    say!(
        "{} B writes, {} callers, n = {} (u = {}, r = {}): {} writes in a second, {} in a slot",
        options.value_size,
        options.clients,
        faults.n(),
        faults.u(),
        faults.r(),
        measured.ops_s.round(),
        round(measured.writes_a_slot)
    );
    say!("{}", table(&lines, &measured));
    say!(
        "floor {:.1} us, measured {:.1} us of processor time for a write over all replicas: {:.1} us, {:.0}%, are not in a term",
        floor,
        measured.cpu_us,
        measured.cpu_us - floor,
        100.0 * (measured.cpu_us - floor) / measured.cpu_us
    );
    if let Some(path) = &options.json {
        let costs = lines.iter().map(|line| {
            json!({"what": line.what, "times_a_slot": line.times, "each_us": round(line.each)})
        });
        let json = json!({
            "faults": {"u": faults.u(), "r": faults.r()},
            "clients": options.clients,
            "value_size": options.value_size,
            "writes_a_slot": round(measured.writes_a_slot),
            "measured_us": round(measured.cpu_us),
            "floor_us": round(floor),
            "terms": costs.collect::<Vec<_>>(),
            "version": env!("CARGO_PKG_VERSION"),
        });
        write(path, &format!("{json:#}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A slot's costs over all replicas, and of the client's its half of what goes through sockets, which is not measured
/// apart. With r = 0 nobody signs, followers vote to the leader alone, and it tells them what is decided with the next
/// proposal.
fn lines(faults: Faults, costs: &Costs, frames: usize, writes: f64) -> Vec<Line> {
    let n = faults.n() as f64;
    let others = n - 1.0;
    let byzantine = faults.is_byzantine();
    let votes = if byzantine { 2.0 * n * others } else { others };
    let mut lines = vec![
        Line { what: "the batch to each follower, sealed", times: others, each: costs.seal },
        Line { what: "the batch opened, and the frames by the leader", times: n, each: costs.open },
        Line { what: "the batch through sockets", times: n, each: costs.transfer },
        // Replies have the size of votes, or about it for each small result.
        Line { what: "votes and replies through sockets", times: votes + n, each: costs.message },
        Line { what: "the batch hashed", times: n, each: costs.hash },
        Line { what: "the batch appended and flushed", times: n, each: costs.append },
        Line {
            what: "the keeper woken, and the event loop by it",
            times: 2.0 * n,
            each: costs.wake,
        },
        Line { what: "values written into the state", times: n * writes, each: costs.put },
    ];
    if byzantine {
        let verified = n * frames as f64;
        lines.extend([
            Line {
                what: "the client's frames verified",
                times: verified,
                each: costs.verify_frame,
            },
            Line { what: "votes signed", times: 2.0 * n, each: costs.sign },
            Line { what: "quorums of Writes verified", times: n, each: costs.verify_votes },
        ]);
    }
    lines
}

fn table(lines: &[Line], measured: &Measured) -> String {
    let head = ["TERM", "TIMES A SLOT", "EACH US", "US A WRITE", "OF MEASURED"].map(str::to_owned);
    let rows = lines.iter().map(|line| {
        let of_write = line.times * line.each / measured.writes_a_slot;
        [
            line.what.to_owned(),
            format!("{:.0}", line.times),
            format!("{:.1}", line.each),
            format!("{of_write:.2}"),
            format!("{:.0}%", 100.0 * of_write / measured.cpu_us),
        ]
    });
    aligned(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
}

/// What a cluster of its own takes.
fn cluster(live: &Live, options: &FloorOptions, faults: Faults) -> Result<Measured> {
    let (guard, cluster, key) = live.start(&options.work, faults, Made::default())?;
    let measure = async {
        let clients = vec![connect(&cluster, &key)?];
        let workload = Rc::new(Workload::new(10_000, options.value_size as usize, 0)?);
        load::preload(&clients, &workload, TIMEOUT).await?;
        let demand = |seconds| Demand {
            callers: options.clients,
            seconds,
            rate: None,
            fast: false,
            timeout: TIMEOUT,
            trace: false,
            stop: load::never(),
        };
        load::measure(&clients, &workload, &demand(options.seconds / 2.0)).await?;
        let pids = guard.pids();
        let executed = async || -> u64 {
            // What replicas say of themselves is some time old.
            tokio::time::sleep(REPORTED).await;
            let reports = status::ask_all(&cluster).into_iter().flatten();
            reports.map(|report| report.executed).max().unwrap_or_default()
        };
        let (slots, cpu) = (executed().await, cpu_of(&pids));
        let measured = load::measure(&clients, &workload, &demand(options.seconds)).await?;
        let cpu = cpu_of(&pids).zip(cpu);
        let slots = executed().await.saturating_sub(slots);
        let writes = measured.completed();
        ensure!(writes > 0 && slots > 0, "no write succeeded");
        let (after, before) = cpu.context("the processor time of the replicas is not known")?;
        for client in &clients {
            client.close().await;
        }
        anyhow::Ok(Measured {
            writes_a_slot: writes as f64 / slots as f64,
            cpu_us: after.saturating_sub(before).as_secs_f64() * 1e6 / writes as f64,
            ops_s: writes as f64 / measured.elapsed.as_secs_f64(),
        })
    };
    let done = runtime()?.block_on(tokio::task::LocalSet::new().run_until(measure));
    // If a replica has ended, that is why.
    guard.check()?;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        sign: 16.0,
        verify_frame: 18.0,
        verify_votes: 28.0,
        hash: 10.0,
        seal: 5.0,
        open: 5.0,
        message: 4.0,
        transfer: 10.0,
        wake: 10.0,
        append: 100.0,
        put: 0.5,
    };

    #[test]
    fn a_crash_group_pays_for_no_signature_and_fewer_votes() {
        let sum = |faults: Faults| -> f64 {
            lines(faults, &COSTS, 1, 64.0).iter().map(|line| line.times * line.each).sum()
        };
        // Three replicas; two followers vote, and three reply.
        let crash =
            2.0 * 5.0 + 3.0 * 5.0 + 3.0 * 10.0 + 5.0 * 4.0 + 3.0 * 10.0 + 300.0 + 60.0 + 96.0;
        assert_eq!(sum(Faults::new(1, 0).unwrap()), crash);
        let byzantine =
            3.0 * 5.0 + 4.0 * 5.0 + 4.0 * 10.0 + 28.0 * 4.0 + 40.0 + 400.0 + 80.0 + 128.0;
        let signed = 4.0 * 18.0 + 8.0 * 16.0 + 4.0 * 28.0;
        let faults = Faults::new(1, 1).unwrap();
        assert_eq!(sum(faults), byzantine + signed);
        let of_two = lines(faults, &COSTS, 2, 64.0);
        let of_two: f64 = of_two.iter().map(|line| line.times * line.each).sum();
        assert_eq!(
            of_two,
            byzantine + signed + 4.0 * 18.0,
            "each replica verifies the other frame"
        );
    }
}
