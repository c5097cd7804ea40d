//! What races: clusters of Perdura of several shapes, and Redis with and without durability.

use super::on_perdura::OnPerdura;
use super::on_redis::OnRedis;
use super::processes::{Process, bound_to_parent, free_port, output};
use super::retwis::Retwis;
use super::store::Store;
use super::{RUN, tell};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use perdura_buzzer::network::Name;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A system serves within this time after its start.
const READY: Duration = Duration::from_secs(60);

/// How often it is asked.
const LOOK: Duration = Duration::from_millis(100);

/// What the application lets an account write in an hour: it is to keep up with whoever races.
pub const WRITES_PER_HOUR: u32 = u32::MAX;

/// Programs, and how they are used.
#[derive(Args, Clone, Debug)]
pub struct Programs {
    /// The program `perdura`
    #[arg(long, value_name = "FILE", env = "PERDURA", default_value = "target/release/perdura")]
    pub perdura: PathBuf,
    /// The program `buzzer`
    #[arg(long, value_name = "FILE", env = "BUZZER", default_value = "target/release/buzzer")]
    pub buzzer: PathBuf,
    /// The program `redis-server`, which `scripts/bench-buzzer` installs
    #[arg(long, value_name = "FILE")]
    pub redis_server: Option<PathBuf>,
    /// Where its libraries are, if not where the system has them
    #[arg(long, value_name = "DIR:...")]
    pub redis_libraries: Option<String>,
    /// Connections to Redis; each carries many calls at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub redis_connections: u16,
    /// Servers of its own for each partition, as in the paper; without it, as many servers as a group has replicas have members of all
    #[arg(long)]
    pub own_servers: bool,
    /// Each call of the network ends within so many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1_000..=600_000))]
    pub timeout_ms: u64,
}

impl Programs {
    /// Within which each call ends.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

/// A system by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SystemKind {
    /// Perdura, durable.
    Perdura {
        /// Whether one replica of a group may lie, or only stop.
        byzantine: bool,
        /// From 1 on.
        partitions: u16,
    },
    /// Redis, one server.
    Redis {
        /// With `appendfsync always`, or without a log.
        durable: bool,
    },
}

/// All that race unless others are named.
pub const ALL: &str =
    "crash-1,crash-2,crash-4,byzantine-1,byzantine-2,byzantine-4,redis-always,redis-memory";

impl FromStr for SystemKind {
    type Err = String;

    fn from_str(name: &str) -> Result<SystemKind, String> {
        let unknown = || {
            format!("no system {name:?}; there are {ALL}, and other numbers of partitions up to 16")
        };
        match name {
            "redis-always" => return Ok(SystemKind::Redis { durable: true }),
            "redis-memory" => return Ok(SystemKind::Redis { durable: false }),
            _ => {}
        }
        let (shape, partitions) = name.split_once('-').ok_or_else(unknown)?;
        let partitions = partitions.parse().ok().filter(|count| (1..=16).contains(count));
        match (shape, partitions) {
            ("crash", Some(partitions)) => Ok(SystemKind::Perdura { byzantine: false, partitions }),
            ("byzantine", Some(partitions)) => {
                Ok(SystemKind::Perdura { byzantine: true, partitions })
            }
            _ => Err(unknown()),
        }
    }
}

impl SystemKind {
    /// As it is given.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            SystemKind::Perdura { byzantine: false, partitions } => format!("crash-{partitions}"),
            SystemKind::Perdura { byzantine: true, partitions } => {
                format!("byzantine-{partitions}")
            }
            SystemKind::Redis { durable: true } => "redis-always".to_owned(),
            SystemKind::Redis { durable: false } => "redis-memory".to_owned(),
        }
    }

    /// As people read it.
    #[must_use]
    pub fn label(self) -> String {
        match self {
            SystemKind::Perdura { byzantine, partitions } => {
                let shape = if byzantine { "Byzantine 1" } else { "crash 1" };
                let plural = if partitions == 1 { "" } else { "s" };
                format!("Perdura, {shape}, {partitions} partition{plural}")
            }
            SystemKind::Redis { durable: true } => "Redis, fsync always".to_owned(),
            SystemKind::Redis { durable: false } => "Redis, not durable".to_owned(),
        }
    }

    /// Whether what it promises is checked.
    #[must_use]
    pub fn is_perdura(self) -> bool {
        matches!(self, SystemKind::Perdura { .. })
    }

    /// Replicas of a group.
    fn replicas(self) -> u16 {
        match self {
            SystemKind::Perdura { byzantine: true, .. } => 4,
            SystemKind::Perdura { byzantine: false, .. } => 3,
            SystemKind::Redis { .. } => 1,
        }
    }

    /// Processes that it has.
    #[must_use]
    pub fn servers(self, programs: &Programs) -> u16 {
        match self {
            SystemKind::Perdura { partitions, .. } if programs.own_servers => {
                self.replicas() * partitions
            }
            _ => self.replicas(),
        }
    }

    /// That not all of these are in one partition of several.
    ///
    /// # Errors
    /// When they are.
    pub fn check_spread(self, names: &[Name]) -> Result<()> {
        let SystemKind::Perdura { partitions, .. } = self else { return Ok(()) };
        let bounds = perdura_buzzer::network::bounds(partitions);
        let partition = |name: &Name| {
            let key = perdura_buzzer::network::keys::account(name);
            bounds.partition_point(|bound| bound.as_bytes() <= &key[..])
        };
        let used: BTreeSet<usize> = names.iter().map(partition).collect();
        ensure!(
            partitions == 1 || used.len() > 1,
            "all {} authors are in one partition, so nothing over several is looked at: choose more",
            names.len()
        );
        Ok(())
    }

    /// How it is set, in words.
    #[must_use]
    pub fn setting(self, programs: &Programs) -> String {
        let servers = self.servers(programs);
        match self {
            SystemKind::Perdura { partitions: 1, .. } => {
                format!("{servers} replicas, durability sync (the default)")
            }
            SystemKind::Perdura { partitions, .. } => format!(
                "{partitions} partitions by range, a group of {} replicas each, on {servers} servers, durability sync (the default)",
                self.replicas()
            ),
            SystemKind::Redis { durable } => {
                let log =
                    if durable { "appendonly yes, appendfsync always" } else { "appendonly no" };
                let connections = programs.redis_connections;
                format!(
                    "1 server, not replicated, {log}, save \"\", else as it comes; {connections} connections, without Nagle's algorithm"
                )
            }
        }
    }
}

/// A system that runs, with empty disks at first.
pub struct Running {
    /// Which.
    pub kind: SystemKind,
    programs: Programs,
    servers: Vec<Process>,
    port: u16,
    dir: TempDir,
}

impl Running {
    /// Starts a system with its data below `work`, and waits until it serves.
    ///
    /// # Errors
    /// When it does not, with what it said.
    pub async fn start(kind: SystemKind, programs: &Programs, work: &Path) -> Result<Running> {
        tell(format_args!("{}: starts", kind.label()));
        let dir = tempfile::Builder::new().prefix(RUN).tempdir_in(work);
        let dir = dir.with_context(|| format!("cannot write into {}", work.display()))?;
        let (programs, servers) = (programs.clone(), Vec::new());
        let mut running = Running { kind, programs, servers, port: free_port()?, dir };
        running.make()?;
        for server in 0..usize::from(kind.servers(&running.programs)) {
            let process = running.server(server)?;
            running.servers.push(process);
        }
        running.wait().await?;
        Ok(running)
    }

    fn cluster(&self) -> PathBuf {
        self.dir.path().join("cluster")
    }

    /// A file for what some process says.
    #[must_use]
    pub fn log(&self, of: &str) -> PathBuf {
        self.dir.path().join(format!("{of}.txt"))
    }

    /// Makes a cluster's files.
    fn make(&self) -> Result<()> {
        let SystemKind::Perdura { byzantine, partitions } = self.kind else { return Ok(()) };
        let mut init = Command::new(&self.programs.perdura);
        init.arg("init").arg(self.cluster());
        init.args([if byzantine { "--byzantine" } else { "--crash" }, "1"]);
        if partitions > 1 {
            let bounds = perdura_buzzer::network::bounds(partitions).join(",");
            init.args(["--partitions", &partitions.to_string()]);
            init.args(["--partition-by", &format!("range:{bounds}")]);
            init.args(["--servers", &self.kind.servers(&self.programs).to_string()]);
        }
        output(&mut init).map(|_| ())
    }

    /// Starts one of its servers.
    fn server(&self, server: usize) -> Result<Process> {
        let (program, mut command);
        match self.kind {
            SystemKind::Perdura { partitions, .. } => {
                program = self.programs.perdura.clone();
                command = bound_to_parent(&program);
                let what = if partitions == 1 { "replica" } else { "server" };
                let file = self.cluster().join(format!("{what}-{server}/{what}.toml"));
                command.args([what, "--config"]).arg(file).args(["--log-level", "warn"]);
            }
            SystemKind::Redis { durable } => {
                let Some(redis) = self.programs.redis_server.clone() else {
                    bail!(
                        "Redis races, and there is no --redis-server; scripts/bench-buzzer installs one, or leave Redis out with --systems"
                    );
                };
                (program, command) = (redis.clone(), bound_to_parent(&redis));
                if let Some(libraries) = &self.programs.redis_libraries {
                    command.env("LD_LIBRARY_PATH", libraries);
                }
                command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--dir"]);
                command.arg(self.dir.path()).args(["--save", "", "--loglevel", "warning"]);
                let log = if durable { "yes" } else { "no" };
                command.args(["--appendonly", log, "--appendfsync", "always"]);
            }
        }
        Process::start(command, &program, self.log(&format!("server-{server}")))
    }

    async fn wait(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY;
        loop {
            let error = match self.open().await {
                Ok(store) => match store.network().check_health().await {
                    Ok(()) => return Ok(()),
                    Err(failure) => failure.to_string(),
                },
                Err(error) => format!("{error:#}"),
            };
            self.check()?;
            let label = self.kind.label();
            ensure!(Instant::now() < deadline, "{label} does not serve after {READY:?}: {error}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until what a load left behind is done: Redis may be writing its log anew.
    ///
    /// # Errors
    /// When it is not after a long time.
    pub async fn settle(&self) -> Result<()> {
        if self.kind.is_perdura() {
            return Ok(());
        }
        let retwis = Retwis::open(self.port, 1, self.programs.timeout()).await?;
        let deadline = Instant::now() + READY;
        while retwis.rewrites().await? {
            ensure!(Instant::now() < deadline, "Redis writes its log anew for {READY:?}");
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// A network on it, and what fills it, of a client of their own.
    ///
    /// # Errors
    /// When it cannot be connected to.
    pub async fn open(&self) -> Result<Arc<dyn Store>> {
        let timeout = self.programs.timeout();
        Ok(match self.kind {
            SystemKind::Perdura { .. } => Arc::new(OnPerdura::open(&self.cluster(), timeout)?),
            SystemKind::Redis { .. } => {
                let connections = usize::from(self.programs.redis_connections);
                let retwis = Retwis::open(self.port, connections, timeout).await?;
                Arc::new(OnRedis::over(retwis))
            }
        })
    }

    /// Starts the application on it, which serves the same over each; gives its address once it serves.
    ///
    /// # Errors
    /// When it does not.
    pub async fn serve(&self) -> Result<(Process, String)> {
        let program = match self.kind {
            SystemKind::Perdura { .. } => self.programs.buzzer.clone(),
            SystemKind::Redis { .. } => {
                std::env::current_exe().context("no program of this one")?
            }
        };
        let mut command = bound_to_parent(&program);
        match self.kind {
            SystemKind::Perdura { .. } => {
                command.args(["serve", "--listen", "127.0.0.1:0", "--insecure-cookies"]);
                command.arg("--cluster").arg(self.cluster());
                command.args(["--writes-per-hour", &WRITES_PER_HOUR.to_string()]);
            }
            SystemKind::Redis { .. } => {
                command.args(["serve-retwis", "--port", &self.port.to_string()]);
                command.args(["--connections", &self.programs.redis_connections.to_string()]);
            }
        }
        command.args(["--timeout-ms", &self.programs.timeout_ms.to_string()]);
        let mut process = Process::start(command, &program, self.log("application"))?;
        let deadline = Instant::now() + READY;
        loop {
            let said = process.said();
            let mut lines = said.lines().filter_map(|line| line.strip_prefix("Buzzer is at "));
            if let Some(url) = lines.next() {
                return Ok((process, url.trim().to_owned()));
            }
            process.check()?;
            let last = process.last_said();
            ensure!(Instant::now() < deadline, "the application does not serve:\n{last}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The numbers of its processes.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        self.servers.iter().map(Process::id).collect()
    }

    /// That all servers run.
    ///
    /// # Errors
    /// When one ended by itself.
    pub fn check(&mut self) -> Result<()> {
        self.servers.iter_mut().try_for_each(Process::check)
    }

    /// Kills a server.
    pub fn kill(&mut self, server: usize) {
        self.servers[server].kill();
    }

    /// Starts a server that was killed, with its data.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart(&mut self, server: usize) -> Result<()> {
        self.servers[server] = self.server(server)?;
        Ok(())
    }
}

/// What a program says that it is.
///
/// # Errors
/// When it does not run.
pub fn version(program: &Path, libraries: Option<&str>) -> Result<String> {
    let mut command = Command::new(program);
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    output(command.arg("--version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_are_named_as_they_are_read() {
        for name in ALL.split(',') {
            assert_eq!(name.parse::<SystemKind>().unwrap().name(), name);
        }
        for name in ["crash", "crash-0", "crash-17", "redis", "byzantine-x", ""] {
            assert!(name.parse::<SystemKind>().unwrap_err().contains("there are"), "{name}");
        }
    }
}
