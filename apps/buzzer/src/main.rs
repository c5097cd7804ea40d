//! The program `buzzer`.

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use perdura_buzzer::network::{Network, Perdura, Settings, bounds};
use perdura_buzzer::{serve, web};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How often a store that does not answer yet is asked.
const LOOK: Duration = Duration::from_millis(500);

/// With fewer descriptors than these it says so.
const FEW_DESCRIPTORS: u64 = 4_096;

/// Buzzer, a social network whose whole state is in a Perdura cluster
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Serve),
    Deletions(Deletions),
    Bounds(Bounds),
}

/// Which store, and how it is used.
#[derive(Args)]
struct Store {
    /// The directory of the cluster's files: cluster.toml, and client.toml unless --key names another
    #[arg(long, value_name = "DIR")]
    cluster: PathBuf,
    /// The file of the client's key
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Each transaction ends within so many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 4_000, value_parser = clap::value_parser!(u64).range(100..=600_000))]
    timeout_ms: u64,
}

/// Serve the application until SIGINT or SIGTERM
///
/// Any number of servers may do so on one cluster. Put a proxy before it that speaks TLS, and add --behind-proxy.
#[derive(Args)]
struct Serve {
    #[command(flatten)]
    store: Store,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Where those who run it find /metrics, /live, and /health with what is wrong; keep it from the public
    #[arg(long, value_name = "ADDRESS:PORT")]
    internal_listen: Option<SocketAddr>,
    /// Let cookies go over plain HTTP: for loopback only. Without --internal-listen metrics are served there then
    #[arg(long)]
    insecure_cookies: bool,
    /// Whoever comes is named by the last entry of X-Forwarded-For, which a trusted proxy wrote
    #[arg(long)]
    behind_proxy: bool,
    /// Logins that one address may try in a minute
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    logins_per_minute: u32,
    /// Accounts that one address may make in an hour
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    signups_per_hour: u32,
    /// Posts, follows, and ends of both that one account may write in an hour
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..))]
    writes_per_hour: u32,
    /// How logs are written, to standard error
    #[arg(long, value_enum, default_value_t = Logs::Text)]
    logs: Logs,
    /// Log each request too
    #[arg(long)]
    verbose: bool,
}

/// End the deletions of accounts that have begun, and exit
///
/// Servers do so too, from time to time.
#[derive(Args)]
struct Deletions {
    #[command(flatten)]
    store: Store,
}

/// Print what to give to `perdura init` or `perdura dev` for a cluster of this many partitions
#[derive(Args)]
struct Bounds {
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(2..=64))]
    partitions: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Logs {
    Text,
    Json,
}

impl Store {
    fn open(&self) -> Result<Perdura> {
        let settings = Settings {
            cluster: self.cluster.clone(),
            key: self.key.clone(),
            timeout: Duration::from_millis(self.timeout_ms),
        };
        Ok(Perdura::open(&settings)?)
    }
}

fn start_logs(logs: Logs, verbose: bool) {
    let level = if verbose { LevelFilter::DEBUG } else { LevelFilter::INFO };
    // What sessions fail with is told by the application; that crate warns of every cookie that anybody makes up.
    let targets = Targets::new()
        .with_default(LevelFilter::INFO)
        .with_targets([("buzzer", level), ("perdura_buzzer", level)])
        .with_targets([
            ("tower_sessions", LevelFilter::OFF),
            ("tower_sessions_core", LevelFilter::OFF),
        ]);
    let to = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry();
    match logs {
        Logs::Text => registry.with(to.with_filter(targets)).init(),
        Logs::Json => registry.with(to.json().with_filter(targets)).init(),
    }
}

/// When this process is told to stop; asked for before anything else is begun, so that none is missed.
fn told_to_stop() -> Result<impl Future<Output = ()> + Send + 'static> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

async fn listen(address: SocketAddr, option: &str) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!(
            "cannot listen on {address}; stop what uses the port, or give another with {option}"
        )
    })
}

/// As many descriptors as this process may have at most, and how many it has then.
fn raise_descriptors() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // It goes on with what it has.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

async fn run_server(arguments: Serve) -> Result<()> {
    start_logs(arguments.logs, arguments.verbose);
    let stop = told_to_stop()?;
    let address = arguments.listen;
    let public = listen(address, "--listen").await?;
    let address = public.local_addr()?;
    let internal = match arguments.internal_listen {
        Some(address) => Some(listen(address, "--internal-listen").await?),
        None => None,
    };
    if arguments.insecure_cookies && !address.ip().is_loopback() {
        tracing::warn!(
            "--insecure-cookies, and others can reach {address}: whoever listens on the way can be whoever logs in"
        );
    }
    let network = Arc::new(arguments.store.open()?);
    let settings = web::Settings {
        insecure: arguments.insecure_cookies,
        behind_proxy: arguments.behind_proxy,
        logins_per_minute: arguments.logins_per_minute,
        signups_per_hour: arguments.signups_per_hour,
        writes_per_hour: arguments.writes_per_hour,
        public_metrics: arguments.insecure_cookies && internal.is_none(),
    };
    let (descriptors, of_store) = (raise_descriptors(), network.connections());
    let connections = serve::connections(descriptors, of_store);
    if descriptors < FEW_DESCRIPTORS {
        tracing::warn!(
            descriptors,
            connections,
            "few descriptors, and so few connections at a time: raise the hard limit (`ulimit -Hn`, LimitNOFILE)"
        );
    }
    if let Some(internal) = &internal {
        tracing::info!("metrics and health are at http://{}", internal.local_addr()?);
    }
    let partitions = network.partitions();
    let (asked, since) = (Arc::clone(&network), Instant::now());
    tokio::spawn(async move {
        while let Err(failure) = asked.check_health().await {
            tracing::warn!(%failure, "waiting for the store");
            tokio::time::sleep(LOOK).await;
        }
        tracing::info!(
            partitions,
            took_ms = since.elapsed().as_millis() as u64,
            "the store answers"
        );
        println!("Buzzer is at http://{address}");
    });
    let counters = serve::store_counters(&network);
    let listeners = serve::Listeners { public, internal };
    serve::serve(network, counters, settings, (listeners, connections), stop).await
}

async fn run_deletions(arguments: Deletions) -> Result<()> {
    start_logs(Logs::Text, false);
    let network = arguments.store.open()?;
    let rounds = serve::finish_deletions(&network).await;
    network.close().await;
    println!("nothing is left to delete, after {} rounds", rounds?);
    Ok(())
}

fn run(arguments: Arguments) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    match arguments.command {
        Command::Serve(arguments) => runtime.block_on(run_server(arguments)),
        Command::Deletions(arguments) => runtime.block_on(run_deletions(arguments)),
        Command::Bounds(Bounds { partitions }) => {
            let bounds = bounds(partitions).join(",");
            println!("--partitions {partitions} --partition-by range:{bounds}");
            Ok(())
        }
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("buzzer: {error:#}");
            ExitCode::FAILURE
        }
    }
}
