//! `perdura dev`: a whole cluster on this machine, for trying out.

mod probe;

use crate::init::{Bounds, Named, ServiceName, Tuning, make, places};
use crate::local::{ChildKind, Group, Start, last_lines, own_program};
use crate::partitions::{self, New, Partitioning};
use crate::{process, shell};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use perdura_cluster::ServiceKind;
use perdura_cluster::config::partitioned::PartitionEntry;
use perdura_cluster::config::{
    CLIENT_FILE, CLUSTER_FILE, Cluster, KeyFile, PartitionedCluster, ReadError,
};
use perdura_cluster::create::is_of_one_machine;
use perdura_durability::FileDisk;
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Faults, PartitionId};
use perdura_replica::runtime::LogDevice;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How often children are looked after.
const LOOK: Duration = Duration::from_millis(50);

/// Run a whole cluster on this machine, for trying out
///
/// As child processes on loopback, until Ctrl-C. Makes its files if they are not there, and goes on from them if they are. Writes
/// a key and reads it back through the real client, then says where the replicas are and what to try. Restarts no replica by itself. A replica's log is in DIR/replica-I/log.txt.
#[derive(Args)]
#[command(
    mut_arg("base_port", |port| port.help(
        "Replica I (or server I) of a new cluster gets port PORT + 2 I for the protocol and the next for HTTP; without it, free ports are taken"
    )),
    mut_arg("once", |once| once.help("Stop as soon as the key is read back; exit code 0 if it was"))
)]
pub struct Arguments {
    #[command(flatten)]
    trial: Trial,
    /// What a new cluster replicates, for its life [default: kv]
    #[arg(long, value_enum)]
    service: Option<ServiceName>,
    /// For experiments: replicas write their logs no faster than such a device, see `perdura replica`
    #[arg(long, value_name = "delay_ms=N,mb_s=N")]
    log_device: Option<LogDevice>,
    /// Replicas measure what their time goes to, see `perdura replica`
    #[arg(long)]
    profile: bool,
    // Last, for its heading.
    #[command(flatten)]
    partitioning: Partitioning,
}

/// What is tried out, with any service.
#[derive(Args)]
pub struct Trial {
    /// The directory of the cluster's files and data
    #[arg(default_value = "perdura-dev")]
    dir: PathBuf,
    #[command(flatten)]
    bounds: Bounds,
    /// Replica I of a new cluster gets port PORT + 2 I for the protocol and the next for HTTP; without it, free ports are taken
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    base_port: Option<u16>,
    /// Stop as soon as a command was ordered; exit code 0 if one was
    // Behind what this is flattened into.
    #[arg(long, display_order = 100)]
    once: bool,
}

/// What its cluster replicates.
#[derive(Clone, Copy)]
enum What<'a> {
    /// A service that comes with Perdura, if one was asked for, over so many partitions.
    Comes(Option<ServiceName>, &'a Partitioning),
    Own(&'a Named),
}

enum Event {
    Stop(&'static str),
    ReadBack(Result<Duration>),
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments { trial, service, log_device, profile, partitioning } = arguments;
    let start = Start { device: *log_device, debug: false, profile: *profile };
    try_out(trial, What::Comes(*service, partitioning), start)
}

/// Runs the command of a program with a service of its own.
pub fn run_own(trial: &Trial, own: &Named) -> Result<ExitCode> {
    try_out(trial, What::Own(own), Start::default())
}

fn try_out(trial: &Trial, cluster_of: What<'_>, start: Start) -> Result<ExitCode> {
    let dir = &*trial.dir;
    let there = prepare(trial, cluster_of)?;
    let key = KeyFile::load(&dir.join(CLIENT_FILE))?;
    check_free(dir, &there)?;
    let (events, happened) = mpsc::channel();
    let signals = events.clone();
    process::on_stop(move |signal| {
        let _ = signals.send(Event::Stop(signal));
    })?;
    let (what, count) = (there.children(), there.places().len());
    let mut group = Group::start_all(what, &own_program()?, dir, count, start)?;
    let (groups, probed) = (there.groups(), dir.to_owned());
    let is_own = matches!(cluster_of, What::Own(_));
    std::thread::Builder::new().name("client".into()).spawn(move || {
        let _ = events.send(Event::ReadBack(match is_own {
            true => probe::order_nothing(&groups, &key),
            false => probe::read_back_all(&probed, &groups, &key),
        }));
    })?;
    if let Some(device) = start.device {
        say!("experiment: logs are written no faster than by a simulated device ({device})");
    }
    let took = match wait_for_read_back(&mut group, &happened)? {
        Some(took) => took,
        None => return stop(group),
    };
    let took_ms = took.as_millis();
    let service = if is_own { None } else { Some(there.service()?) };
    match service {
        None => say!("ordered a command, {took_ms} ms"),
        Some(ServiceKind::KeyValue) if there.is_partitioned() => {
            say!("wrote a key of each partition and read it back, {took_ms} ms")
        }
        Some(ServiceKind::KeyValue) => say!("wrote a key and read it back, {took_ms} ms"),
        Some(ServiceKind::TupleSpaces) => say!("inserted a tuple and took it back, {took_ms} ms"),
    }
    if trial.once {
        return stop(group);
    }
    print_guide(dir, &there, service, &group);
    let signal = wait_for_stop(&mut group, &there, dir, &happened);
    say!("{signal}: stopping");
    stop(group)
}

/// What is in the directory.
enum There {
    One(Cluster),
    Several(PartitionedCluster),
}

impl There {
    fn load(path: &Path) -> Result<There> {
        match Cluster::load(path) {
            Ok(cluster) => Ok(There::One(cluster)),
            Err(ReadError::Partitioned { .. }) => {
                Ok(There::Several(PartitionedCluster::load(path)?))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn is_partitioned(&self) -> bool {
        matches!(self, There::Several(_))
    }

    /// What its child processes are.
    fn children(&self) -> ChildKind {
        match self {
            There::One(_) => ChildKind::Replica,
            There::Several(_) => ChildKind::Server,
        }
    }

    fn groups(&self) -> Vec<Cluster> {
        match self {
            There::One(cluster) => vec![cluster.clone()],
            There::Several(cluster) => cluster.groups(),
        }
    }

    /// Addresses of its child processes, and those of their HTTP ports.
    fn places(&self) -> Vec<(&str, &str)> {
        match self {
            There::One(cluster) => {
                cluster.replicas.iter().map(|one| (&*one.address, &*one.http)).collect()
            }
            There::Several(cluster) => {
                cluster.servers.iter().map(|one| (&*one.address, &*one.http)).collect()
            }
        }
    }

    fn faults(&self) -> Faults {
        match self {
            There::One(cluster) => cluster.parameters.faults,
            There::Several(cluster) => cluster.parameters.faults,
        }
    }

    fn service_name(&self) -> perdura_protocol::ServiceName {
        match self {
            There::One(cluster) => cluster.parameters.service.clone(),
            There::Several(cluster) => cluster.parameters.service.clone(),
        }
    }

    /// One that comes with Perdura.
    fn service(&self) -> Result<ServiceKind> {
        Ok(match self {
            There::One(cluster) => cluster.service()?,
            There::Several(cluster) => cluster.group(PartitionId(0)).service()?,
        })
    }

    /// What the child processes that are left are good for, in words.
    fn without(&self, group: &Group) -> String {
        let runs = |id: usize| group.running.get(id).is_some_and(|one| one.ended.is_none());
        let left = group.running.iter().filter(|one| one.ended.is_none()).count();
        let needed = self.faults().n() - self.faults().u();
        match self {
            There::One(_) if left < needed => {
                format!("{left} are left, and nothing is answered with less than {needed}")
            }
            There::One(_) => "the others go on".to_owned(),
            There::Several(cluster) => {
                let has_too_few = |partition: &&PartitionEntry| {
                    partition.members.iter().filter(|member| runs(member.server)).count() < needed
                };
                match cluster.partitions.iter().filter(has_too_few).count() {
                    0 => "the others go on".to_owned(),
                    count => format!(
                        "{left} are left, and {count} partitions answer nothing with less than {needed} of their members"
                    ),
                }
            }
        }
    }

    /// What it is, in words.
    fn text(&self) -> String {
        let n = self.faults().n();
        match self {
            There::One(_) => format!("{n} replicas"),
            There::Several(cluster) => format!(
                "{} partitions on {} servers, each a group of {n} replicas,",
                cluster.partitions.len(),
                cluster.servers.len()
            ),
        }
    }
}

fn make_new(trial: &Trial, cluster_of: What<'_>) -> Result<There> {
    let (dir, faults) = (&trial.dir, trial.bounds.faults()?);
    let (durability, tuning) = (Durability::Sync, Tuning::default());
    let comes;
    let service = match cluster_of {
        What::Own(own) => own,
        What::Comes(service, partitioning) => {
            let service = service.unwrap_or(ServiceName::Kv).kind();
            if let Some(partitions) = partitioning.several()? {
                let places = &partitioning.places(faults.n(), &[], trial.base_port, false)?;
                let new = New { partitions, faults, durability, service, tuning, places };
                return Ok(There::Several(partitions::make(dir, new)?));
            }
            comes = service.into();
            &comes
        }
    };
    let places = places(faults.n(), &[], trial.base_port, false)?;
    Ok(There::One(make(dir, faults, durability, service, tuning, &places)?))
}

/// The cluster in the directory, made if it is not there.
fn prepare(trial: &Trial, cluster_of: What<'_>) -> Result<There> {
    let (dir, path) = (&trial.dir, trial.dir.join(CLUSTER_FILE));
    if !path.exists() {
        let made = make_new(trial, cluster_of)?;
        say!("made a cluster of {} in {}", made.text(), dir.display());
        return Ok(made);
    }
    let cluster = There::load(&path)?;
    let is_of = match cluster_of {
        What::Comes(None, _) => cluster.service().map(|_| true)?,
        What::Comes(Some(given), _) => given.kind() == cluster.service()?,
        What::Own(own) => cluster.service_name() == own.name,
    };
    ensure!(
        is_of,
        "{} holds a cluster with service {}, which cannot be changed; {}give another directory",
        dir.display(),
        cluster.service_name(),
        if matches!(cluster_of, What::Own(_)) { "" } else { "leave the flag out, or " }
    );
    let is_of = match (&cluster, cluster_of) {
        (_, What::Own(_)) => true,
        (There::One(_), What::Comes(_, partitioning)) => partitioning.several()?.is_none(),
        (There::Several(cluster), What::Comes(_, partitioning)) => partitioning.is_of(cluster),
    };
    ensure!(
        is_of,
        "{} holds a cluster of {} which cannot be changed; leave --partitions, --servers and --partition-by out, or give another \
         directory",
        dir.display(),
        cluster.text()
    );
    let (there, given) = (cluster.faults(), trial.bounds.given()?);
    ensure!(
        given.is_none_or(|given| given == there),
        "{} holds a cluster with u = {} and r = {}, which cannot be changed; leave the flag out, or \
         give another directory",
        dir.display(),
        there.u(),
        there.r()
    );
    ensure!(
        trial.base_port.is_none(),
        "{} holds a cluster whose ports stand in its files; leave --base-port out, or give another directory",
        dir.display()
    );
    if let Some((id, address)) = on_a_host(&cluster.places()) {
        bail!(
            "{} holds a cluster on hosts: {name} {id} is found at {address}. This runs clusters on this machine only; start each there, with \
             `perdura {name} --config FILE`",
            dir.display(),
            name = cluster.children().name()
        );
    }
    say!("going on with the cluster of {} in {}", cluster.text(), dir.display());
    Ok(cluster)
}

/// The first that is found elsewhere than on this machine.
fn on_a_host<'a>(places: &[(&'a str, &str)]) -> Option<(usize, &'a str)> {
    let addresses = places.iter().map(|(address, _)| *address).enumerate();
    addresses.into_iter().find(|(_, address)| !is_of_one_machine(address))
}

/// That nothing runs there already, and that each replica, or server, can have its ports and its data.
fn check_free(dir: &Path, there: &There) -> Result<()> {
    let what = there.children();
    for id in 0..there.places().len() {
        let path = what.file(dir, id);
        let (listen, http) = match there {
            There::One(_) => {
                let (file, _) = perdura_cluster::replica::load(&path)?;
                drop(FileDisk::open(&file.data()).with_context(|| format!("replica {id}"))?);
                (file.listen, file.http)
            }
            There::Several(_) => {
                let (file, _) = perdura_cluster::server::load(&path)?;
                for member in &file.members {
                    let of = || format!("server {id}, partition {}", member.partition);
                    drop(FileDisk::open(&file.replica(member).data()).with_context(of)?);
                }
                (file.listen, file.http)
            }
        };
        let named = [("listen", Some(listen)), ("http", http)];
        for (field, address) in named {
            let Some(address) = address else { continue };
            TcpListener::bind(&address).map_err(|error| {
                let name = what.name();
                anyhow!(
                    "{name} {id} cannot listen on {address}: {error}; stop what uses the port, or change \
                     {field} in {} and the {name}'s entry in cluster.toml",
                    path.display()
                )
            })?;
        }
    }
    Ok(())
}

/// How long it took; none if this process was told to stop before.
fn wait_for_read_back(
    group: &mut Group,
    happened: &mpsc::Receiver<Event>,
) -> Result<Option<Duration>> {
    loop {
        match happened.recv_timeout(LOOK) {
            Ok(Event::ReadBack(result)) => {
                return Ok(Some(result.context("the cluster does not answer")?));
            }
            Ok(Event::Stop(_)) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the client's thread ended"),
            Err(RecvTimeoutError::Timeout) => {}
        }
        group.check()?;
    }
}

/// Reports children that end, until this process is told to stop.
fn wait_for_stop(
    group: &mut Group,
    there: &There,
    dir: &Path,
    happened: &mpsc::Receiver<Event>,
) -> &'static str {
    loop {
        match happened.recv_timeout(LOOK) {
            Ok(Event::Stop(signal)) => return signal,
            Ok(Event::ReadBack(_)) | Err(RecvTimeoutError::Timeout) => {}
            // The client's thread is done, and only signals are left to come.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
        }
        for (id, pid, status) in group.newly_ended() {
            let (name, then) = (group.what.name(), there.without(group));
            say!("{name} {id} (pid {pid}) ended: {status}; {then}");
            if !status.success() && status.code().is_some() {
                say!("{}", last_lines(&group.running[id].log, 3));
            }
            let file = group.what.file(dir, id);
            say!("  start it again, in another terminal:");
            say!("    {} {name} --config {}", shell::program(), shell::path(&file));
        }
    }
}

fn stop(group: Group) -> Result<ExitCode> {
    group.stop()?;
    say!("stopped; the data stays");
    Ok(ExitCode::SUCCESS)
}

fn print_guide(dir: &Path, there: &There, service: Option<ServiceKind>, group: &Group) {
    let (faults, dir, program) = (there.faults(), shell::path(dir), shell::program());
    say!(
        "{} are up, live with {} failures, safe with {} liars",
        there.text(),
        faults.u(),
        faults.r()
    );
    for running in &group.running {
        let (address, http) = there.places()[running.id];
        say!(
            "  {} {}  pid {}  {address}  http://{http}/status  {}",
            group.what.name(),
            running.id,
            running.child.id(),
            running.log.display()
        );
    }
    say!("try, in another terminal:");
    match service {
        None => say!("  {program} health --cluster {dir}"),
        Some(ServiceKind::KeyValue) if there.is_partitioned() => {
            say!("  {program} health --cluster {dir}");
        }
        Some(ServiceKind::KeyValue) => {
            say!("  {program} kv put --cluster {dir} hello world");
            say!("  {program} kv get --cluster {dir} hello");
            say!("  {program} bench put --cluster {dir} --clients 64");
        }
        Some(ServiceKind::TupleSpaces) => {
            say!("  {program} space create --cluster {dir} jobs");
            say!("  {program} space in --cluster {dir} jobs '[\"job\", null]' --wait 1h");
            say!("  {program} space out --cluster {dir} jobs '[\"job\", 7]'  (in a third one)");
        }
    }
    say!("  {program} status --cluster {dir}");
    match there {
        There::One(_) => say!("  kill -9 the leader's pid, and go on"),
        There::Several(_) => say!("  kill -9 a server's pid, and go on"),
    }
    say!("Ctrl-C stops the cluster; the same command goes on with its data.");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_hosts_of_its_own_is_not_run_here() {
        let here = [("127.0.0.1:1", "127.0.0.1:2"), ("localhost:3", "localhost:4")];
        assert_eq!(on_a_host(&here), None);
        let places = [here[0], ("db1:7400", "127.0.0.1:7401")];
        assert_eq!(on_a_host(&places), Some((1, "db1:7400")));
    }
}
