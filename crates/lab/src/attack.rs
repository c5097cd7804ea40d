//! `perdura-lab attack`: a client that attacks, on real links.

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use clap::Args;
use perdura_adversary::{Arms, Attack, Attacker};
use perdura_cli::connect::{ClusterArguments, parse_duration};
use perdura_cli::process::on_stop;
use perdura_cli::say;
use perdura_cluster::ServiceKind;
use perdura_protocol::{ClusterId, Digest, Encode, PublicKey, ReplicaId, Time};
use perdura_simulator::world::writing;
use perdura_store::limits;
use perdura_transport::{Bounds, Hello, Identity, Link, Received, Role, connect_address};
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Attacks a key-value store as a client whose key it knows, as fast as it can, until its time is over
/// or it is asked to stop (SIGTERM). Exit code 1 if no replica took a message.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// One of the attacks of `perdura-lab simulate --attacks`
    #[arg(long, value_name = "ATTACK", value_parser = parse_attack)]
    attack: Attack,
    /// For how long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    duration: Duration,
    /// Between two attacks; 0 would be as fast as it can
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pause: Option<Duration>,
}

fn parse_attack(name: &str) -> Result<Attack, String> {
    let names = || Attack::ALL.map(Attack::name).join(", ");
    Attack::parse(name).ok_or_else(|| format!("give one of: {}", names()))
}

/// A connection to one replica, dialled again when it breaks.
struct Target {
    address: String,
    key: PublicKey,
    open: Option<(TcpStream, Link)>,
    not_before: Instant,
    // Messages that its link took, and how often that broke.
    sent: u64,
    breaks: u64,
    // Why it could not be dialled, or the link broke, last.
    trouble: Option<anyhow::Error>,
}

impl Target {
    fn turn(&mut self, identity: &Identity, cluster: ClusterId, out: &mut Vec<Bytes>) {
        if self.open.is_none() && Instant::now() >= self.not_before {
            self.not_before = Instant::now() + Duration::from_millis(100);
            match self.dial(identity, cluster) {
                Ok(open) => self.open = Some(open),
                Err(error) => self.trouble = Some(error),
            }
        }
        if let Err(error) = self.exchange(out) {
            self.open = None;
            self.breaks += 1;
            self.trouble = Some(error);
        }
        out.clear();
    }

    fn dial(&self, identity: &Identity, cluster: ClusterId) -> Result<(TcpStream, Link)> {
        let address = connect_address(&self.address, 0)?;
        let stream = TcpStream::connect_timeout(&address, Duration::from_millis(200))?;
        stream.set_nonblocking(true)?;
        let hello = Hello::client(cluster, Role::Client);
        Ok((stream, Link::dial(identity, self.key, &hello, Bounds::CLIENT)?))
    }

    fn exchange(&mut self, out: &mut Vec<Bytes>) -> Result<()> {
        let Some((stream, link)) = &mut self.open else { return Ok(()) };
        for message in out.drain(..) {
            if link.is_up() && link.queued_bytes() < 4 << 20 {
                link.queue(message)?;
                self.sent += 1;
            }
        }
        link.write_to(stream)?;
        let mut buffer = [0; 65_536];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => bail!("closed"),
                Ok(count) => link.feed(&buffer[..count])?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
            while let Some(received) = link.next_received()? {
                if let Received::Message(_) = received {}
            }
        }
        link.write_to(stream)?;
        Ok(())
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let cluster = arguments.cluster.load_of(ServiceKind::KeyValue)?;
    let key = arguments.cluster.key(&cluster)?.key;
    let identity = Identity::new(&key).context("the client's key")?;
    let id = cluster.parameters.cluster;
    let genesis = cluster.genesis(ReplicaId(0));
    let members = &genesis.configuration.members;
    ensure!(members.len() == cluster.replicas.len(), "cluster.toml names other replicas");
    let mut targets: Vec<Target> = cluster
        .replicas
        .iter()
        .zip(members)
        .map(|(entry, member)| Target {
            address: entry.address.clone(),
            key: member.key,
            open: None,
            not_before: Instant::now(),
            sent: 0,
            breaks: 0,
            trouble: None,
        })
        .collect();
    let now = || {
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time(elapsed.as_millis() as u64)
    };
    let make = Box::new(|number: u64, bytes: usize| {
        let digest = Digest::of(&number.to_le_bytes());
        let value = Bytes::from(vec![digest.0[0]; bytes]);
        writing(&format!("attack-{}", number % 64), &value).to_bytes()
    });
    let others = genesis.clients.iter().map(|(_, other)| *other);
    let victims = others
        .filter(|other| *other != key.public())
        .chain([cluster.parameters.administrator])
        .collect();
    let largest = limits::TRANSACTION_BYTES;
    let n = targets.len();
    let arms = Arms { key, cluster: id, n, victims, large: largest, largest, make };
    let mut attacker = Attacker::new(arms, arguments.attack, now().0);
    let end = Instant::now() + arguments.duration;
    let stopping = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopping);
    on_stop(move |_| stop.store(true, Ordering::Relaxed))?;
    let mut out: Vec<Vec<Bytes>> = targets.iter().map(|_| Vec::new()).collect();
    while Instant::now() < end && !stopping.load(Ordering::Relaxed) {
        // What is queued up already is enough where links are slow.
        let room = targets.iter().any(|target| {
            target
                .open
                .as_ref()
                .is_some_and(|(_, link)| link.is_up() && link.queued_bytes() < 1 << 20)
        });
        if room {
            for (replica, bytes) in attacker.tick(now()) {
                out[replica.index()].push(bytes);
            }
        }
        for (target, out) in targets.iter_mut().zip(&mut out) {
            target.turn(&identity, id, out);
        }
        if let Some(pause) = arguments.pause {
            std::thread::sleep(pause);
        } else if !room {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let breaks: u64 = targets.iter().map(|target| target.breaks).sum();
    let sent: u64 = targets.iter().map(|target| target.sent).sum();
    if sent == 0 {
        let trouble = targets.into_iter().find_map(|target| target.trouble);
        let nothing = format!("{}: no replica took a message", arguments.attack.name());
        return Err(trouble.unwrap_or_else(|| anyhow!("no link came up")).context(nothing));
    }
    say!("{}: {sent} messages, {breaks} broken links", arguments.attack.name());
    Ok(ExitCode::SUCCESS)
}
