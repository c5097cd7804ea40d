//! `perdura bench txn`: transactions over partitions. Its callers are spread over processes of their own, since marks and turns are other things
//! between processes than in one.

mod draw;
mod report;
mod worker;

use super::{INTERRUPTED, parse_seconds};
use crate::Usage;
use crate::connect::{ClusterArguments, connect_store, parse_duration, runtime};
use crate::process::{self, cpu_time};
use crate::status;
use anyhow::{Context, Result, ensure};
use clap::Args;
use draw::{Draw, Shape};
use perdura_client::Options;
use perdura_cluster::PartitionedCluster;
use perdura_cluster::config::CLUSTER_FILE;
use perdura_store::Transaction;
use perdura_transactions::StoreClient;
use report::TransactionReport;
use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use worker::{Said, Workers};

/// Loading transactions in flight.
const LOADS: usize = 16;

pub const AFTER_HELP: &str = "\
A transaction reads and writes keys of the partitions that it is over, in turn. Keys are written first, which is not measured, and removed at \
the end. Those of each partition are chosen uniformly, or with --skew S the i-th with a weight of 1/i^S.

CPU is user and system time of the servers that run on this machine, of all together and of the busiest one (which is what binds where each \
has a machine of its own), and of the processes with the callers, over the transactions that committed. Tries that met others' locks or marks \
are counted by what the callers saw.

Plain puts over partitions: --global 0 --reads 0 --writes 1.

Ctrl-C prints what was measured until then.";

/// What is asked of a store over partitions.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    shape: Shape,
    /// Number of keys, in equal parts in each partition
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    keys: u64,
    /// How unevenly they are chosen, 0 (evenly) to 2
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = parse_skew)]
    skew: f64,
    /// Callers in each process, each with one transaction in flight
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// Processes
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: u32,
    /// Seconds to measure
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = parse_seconds)]
    seconds: f64,
    /// A transaction that takes longer counts as an error
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
    /// Leave the keys in the store
    #[arg(long)]
    keep: bool,
    /// Write the result to a file; `-` is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// One of the processes
    #[arg(long, hide = true)]
    worker: bool,
}

fn parse_skew(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(skew) if (0.0..=2.0).contains(&skew) => Ok(skew),
        _ => Err("give a number from 0 to 2".to_owned()),
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let groups = arguments.cluster.load_store()?;
    ensure!(
        groups[0].parameters.map.is_some(),
        Usage("the cluster has one group, and no partitions: see `perdura bench mixed`".into())
    );
    let cluster = PartitionedCluster::load(&arguments.cluster.cluster.join(CLUSTER_FILE))?;
    arguments.check(cluster.map.partitions())?;
    let key = arguments.cluster.key_of(&groups)?;
    let draw = Rc::new(Draw::new(&cluster.map, arguments.keys, arguments.skew)?);
    let (runtime, local) = (runtime()?, tokio::task::LocalSet::new());
    if arguments.worker {
        let said: Said = local.block_on(&runtime, async {
            let client = connect_store(&groups, &key)?;
            let said = worker::work(arguments, &client, &draw).await;
            client.close().await;
            said
        })?;
        say!("{}", serde_json::to_string(&said)?);
        return Ok(ExitCode::SUCCESS);
    }
    let report = local.block_on(&runtime, async {
        let client = connect_store(&groups, &key)?;
        let loads = draw.loads(|keys| draw.load(keys, arguments.shape.value_size as usize));
        all(&client, loads, arguments.timeout).await.context("cannot load the keys")?;
        let pids = status::servers::here(&cluster);
        let cpu =
            || -> Vec<Option<Duration>> { pids.iter().map(|pid| cpu_time((*pid)?)).collect() };
        let before = cpu();
        let started = Workers::start(arguments)?;
        let to_stop = started.clone();
        process::on_stop(move |_| to_stop.stop())?;
        let said = tokio::task::spawn_blocking(move || started.results()).await?;
        let spent = cpu().into_iter().zip(before);
        let servers = spent.map(|(after, before)| Some(after?.saturating_sub(before?))).collect();
        if !arguments.keep
            && let Err(error) =
                all(&client, draw.loads(|keys| draw.clean(keys)), arguments.timeout).await
        {
            tell!("perdura: some of the keys that were written are left: {error:#}");
        }
        client.close().await;
        TransactionReport::of(&said?, servers)
    })?;
    report.print(arguments, &cluster)?;
    Ok(if report.stopped {
        tell!("perdura: interrupted");
        ExitCode::from(INTERRUPTED)
    } else if report.completed() == 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

impl Arguments {
    fn check(&self, partitions: usize) -> Result<()> {
        // Where none is over several, in how many these would be is nothing.
        let participants =
            if self.shape.global == 0 { 1 } else { usize::from(self.shape.participants) };
        ensure!(
            participants <= partitions,
            Usage(format!(
                "--participants is {participants}, and there are {partitions} partitions"
            ))
        );
        ensure!(
            usize::from(self.shape.reads) + usize::from(self.shape.writes) >= participants,
            Usage(format!(
                "--reads and --writes together have to be {participants} at least, a key in each partition"
            ))
        );
        ensure!(
            self.keys >= partitions as u64,
            Usage(format!("--keys has to be {partitions} at least, one in each partition"))
        );
        Ok(())
    }
}

/// Carries out all of these, several at once.
async fn all(client: &StoreClient, of: Vec<Transaction>, timeout: Duration) -> Result<()> {
    let left = Rc::new(RefCell::new(of));
    let tasks = (0..LOADS).map(|_| {
        let (client, left) = (client.clone(), Rc::clone(&left));
        tokio::task::spawn_local(async move {
            let options = Options { timeout, reply_quorum: None };
            loop {
                let next = left.borrow_mut().pop();
                let Some(transaction) = next else { return anyhow::Ok(()) };
                client.transact(transaction, &options).await?;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    Ok(())
}
