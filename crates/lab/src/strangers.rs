//! `perdura-lab strangers`: connections of nobody, from many addresses, to all replicas of a cluster on loopback.

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use perdura_cli::connect::{ClusterArguments, parse_duration};
use perdura_cli::process::{on_stop, own_cpu};
use perdura_cli::say;
use perdura_protocol::{ClusterId, Scheme, SecretKey};
use perdura_transport::{Bounds, Hello, Identity, Link, Role, connect_address};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a connection is kept.
const KEPT: Duration = Duration::from_secs(1);

/// Connects to the replicas of a cluster on this machine without end and as nobody, from addresses of 127.0.0.0/8.
/// Prints what it did. Exit code 1 if no connection came about.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Connections in a second, over all replicas
    #[arg(long, value_name = "N", default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    per_second: u32,
    /// Addresses that they come from, one after the other
    #[arg(long, value_name = "N", default_value_t = 60_000, value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    addresses: u32,
    /// What each says
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Says::Byte)]
    says: Says,
    /// For how long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    duration: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Says {
    /// Nothing
    Nothing,
    /// The first byte of a TLS handshake
    Byte,
    /// All of its first message, so that it costs the replica an answer
    Hello,
}

/// What a connection says.
fn words(says: Says) -> Result<Vec<u8>> {
    let key = SecretKey::from_seed(Scheme::Ed25519, [1; 32]);
    let identity = Identity::new(&key).context("a key")?;
    let hello = Hello::client(ClusterId([0; 16]), Role::Client);
    let mut link = Link::dial(&identity, key.public(), &hello, Bounds::CLIENT)?;
    let mut words = Vec::new();
    link.write_to(&mut words)?;
    Ok(match says {
        Says::Nothing => Vec::new(),
        Says::Byte => words[..1].to_vec(),
        Says::Hello => words,
    })
}

/// A connection from the `number`-th address; it may be on its way still.
fn connect(to: SocketAddr, number: u32) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    // Not 127.0.0.x, which is where the cluster is, and its clients.
    let from = Ipv4Addr::from(0x7f01_0000 + number);
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.set_nonblocking(true)?;
    match socket.connect(&to.into()) {
        Err(error)
            if error.kind() != ErrorKind::WouldBlock
                && error.raw_os_error() != Some(IN_PROGRESS) =>
        {
            Err(error)
        }
        _ => Ok(socket),
    }
}

/// `EINPROGRESS` of Linux.
const IN_PROGRESS: i32 = 115;

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let groups = arguments.cluster.load_groups()?;
    let replicas = groups.iter().flat_map(|group| &group.replicas);
    let addresses = replicas.map(|entry| connect_address(&entry.address, 0));
    let mut targets: Vec<SocketAddr> = addresses.collect::<std::io::Result<_>>()?;
    // A server has members of several groups.
    targets.sort();
    targets.dedup();
    let here = targets.iter().all(|target| target.is_ipv4() && target.ip().is_loopback());
    ensure!(here, "the replicas have to be on this machine, at addresses of 127.0.0.0/8");
    perdura_cli::process::raise_file_limit();
    let words = words(arguments.says)?;
    let stopping = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopping);
    on_stop(move |_| stop.store(true, Ordering::Relaxed))?;
    let start = Instant::now();
    let (mut made, mut failed) = (0u64, 0u64);
    let (mut fresh, mut kept) = (Vec::new(), VecDeque::new());
    let mut trouble = None;
    while start.elapsed() < arguments.duration && !stopping.load(Ordering::Relaxed) {
        let due = start.elapsed().as_micros() as u64 * u64::from(arguments.per_second) / 1_000_000;
        while made + failed < due {
            let number = made + failed;
            let target = targets[(number % targets.len() as u64) as usize];
            match connect(target, (number % u64::from(arguments.addresses)) as u32) {
                Ok(socket) => {
                    made += 1;
                    fresh.push(socket);
                }
                Err(error) => {
                    failed += 1;
                    trouble = Some(error);
                }
            }
        }
        while kept.front().is_some_and(|(since, _): &(Instant, Socket)| since.elapsed() > KEPT) {
            kept.pop_front();
        }
        std::thread::sleep(Duration::from_millis(2));
        // On loopback they are connected by now.
        for socket in fresh.drain(..) {
            let _ = socket.send(&words);
            kept.push_back((Instant::now(), socket));
        }
    }
    if made == 0 {
        let why = trouble.map_or_else(|| "it had no time".to_owned(), |error| error.to_string());
        anyhow::bail!("no connection came about: {why}");
    }
    say!(
        "strangers: {made} messages, {failed} connections failed, {:.2} of a core",
        own_cpu().as_secs_f64() / start.elapsed().as_secs_f64()
    );
    Ok(ExitCode::SUCCESS)
}
