//! `perdura dev`: a whole cluster on this machine, for trying out.

use crate::connect::{connect, runtime};
use crate::init::{Bounds, ServiceName, Tuning, make, places};
use crate::kv::call;
use crate::local::{Group, Start, last_lines, own_program, replica_file};
use crate::process;
use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use clap::Args;
use perdura::ServiceKind;
use perdura::config::cluster::service_text;
use perdura::config::{CLIENT_FILE, CLUSTER_FILE, Cluster, KeyFile, ReplicaFile};
use perdura_client::Options;
use perdura_durability::FileDisk;
use perdura_protocol::configuration::Durability;
use perdura_replica::runtime::LogDevice;
use perdura_store::{StoreCommand, StoreReply};
use perdura_tuples::{
    Entry, Field, Operation, SpaceOptions, Template, Tuple, TupleCommand, TupleReply,
};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often children are looked after.
const LOOK: Duration = Duration::from_millis(50);

/// The cluster has to answer within this time after its start.
const START: Duration = Duration::from_secs(60);

/// Run a whole cluster on this machine, for trying out
///
/// As child processes on loopback, until Ctrl-C. Makes its files if they are not there, and goes on from them if they are. Writes
/// a key and reads it back through the real client, then says where the replicas are and what to try. Restarts no replica by itself. A replica's log is in DIR/replica-I/log.txt.
#[derive(Args)]
pub struct Arguments {
    /// The directory of the cluster's files and data
    #[arg(default_value = "perdura-dev")]
    dir: PathBuf,
    #[command(flatten)]
    bounds: Bounds,
    /// Replica I of a new cluster gets port PORT + 2 I for the protocol and the next for HTTP;
    /// without it, free ports are taken
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    base_port: Option<u16>,
    /// What a new cluster replicates, for its life [default: kv]
    #[arg(long, value_enum)]
    service: Option<ServiceName>,
    /// For experiments: replicas write their logs no faster than such a device, see `perdura replica`
    #[arg(long, value_name = "delay_ms=N,mb_s=N")]
    log_device: Option<LogDevice>,
    /// Replicas measure what their time goes to, see `perdura replica`
    #[arg(long)]
    profile: bool,
    /// Stop as soon as the key is read back; exit code 0 if it was
    #[arg(long)]
    once: bool,
}

enum Event {
    Stop(&'static str),
    ReadBack(Result<Duration>),
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let dir = &arguments.dir;
    let cluster = prepare(arguments)?;
    let key = KeyFile::load(&dir.join(CLIENT_FILE))?;
    check_free(dir, &cluster)?;
    let (events, happened) = mpsc::channel();
    let signals = events.clone();
    process::on_stop(move |signal| {
        let _ = signals.send(Event::Stop(signal));
    })?;
    let start = Start { device: arguments.log_device, debug: false, profile: arguments.profile };
    let mut group = Group::start(&own_program()?, dir, cluster.replicas.len(), start)?;
    let of_client = cluster.clone();
    std::thread::Builder::new().name("client".into()).spawn(move || {
        let _ = events.send(Event::ReadBack(read_back(&of_client, &key)));
    })?;
    if let Some(device) = arguments.log_device {
        say!("experiment: logs are written no faster than by a simulated device ({device})");
    }
    let took = match wait_for_read_back(&mut group, &happened)? {
        Some(took) => took,
        None => return stop(group),
    };
    let service = cluster.service()?;
    match service {
        ServiceKind::KeyValue => say!("wrote a key and read it back, {} ms", took.as_millis()),
        ServiceKind::TupleSpaces => {
            say!("inserted a tuple and took it back, {} ms", took.as_millis());
        }
    }
    if arguments.once {
        return stop(group);
    }
    print_guide(dir, &cluster, service, &group);
    let faults = cluster.parameters.faults;
    let needed = faults.n() - faults.u();
    let signal = wait_for_stop(&mut group, needed, dir, &happened);
    say!("{signal}: stopping");
    stop(group)
}

/// The cluster in the directory, made if it is not there.
fn prepare(arguments: &Arguments) -> Result<Cluster> {
    let (dir, path) = (&arguments.dir, arguments.dir.join(CLUSTER_FILE));
    if !path.exists() {
        let faults = arguments.bounds.faults()?;
        let places = places(faults.n(), &[], arguments.base_port, false)?;
        let service = arguments.service.unwrap_or(ServiceName::Kv).kind();
        let tuning = Tuning::default();
        let cluster = make(dir, faults, Durability::Sync, service, tuning, &places)?;
        say!("made a cluster of {} replicas in {}", faults.n(), dir.display());
        return Ok(cluster);
    }
    let cluster = Cluster::load(&path)?;
    let (there, given) = (cluster.parameters.faults, arguments.bounds.given()?);
    ensure!(
        given.is_none_or(|given| given == there),
        "{} holds a cluster with u = {} and r = {}, which cannot be changed; leave the flag out, or \
         give another directory",
        dir.display(),
        there.u(),
        there.r()
    );
    ensure!(
        arguments.base_port.is_none(),
        "{} holds a cluster whose ports stand in its files; leave --base-port out, or give another directory",
        dir.display()
    );
    let service = cluster.service()?;
    ensure!(
        arguments.service.is_none_or(|given| given.kind() == service),
        "{} holds a cluster with service {}, which cannot be changed; leave the flag out, or give \
         another directory",
        dir.display(),
        service_text(service)
    );
    say!("going on with the cluster of {} replicas in {}", there.n(), dir.display());
    Ok(cluster)
}

/// That nothing runs there already, and that each replica can have its ports and its data.
fn check_free(dir: &Path, cluster: &Cluster) -> Result<()> {
    for id in 0..cluster.replicas.len() {
        let path = replica_file(dir, id);
        let (file, _) = perdura::replica::load(&path)?;
        drop(FileDisk::open(&file.data()).with_context(|| format!("replica {id}"))?);
        check_ports(&file)?;
    }
    Ok(())
}

fn check_ports(file: &ReplicaFile) -> Result<()> {
    let named = [("listen", Some(&file.listen)), ("http", file.http.as_ref())];
    for (field, address) in named {
        let Some(address) = address else { continue };
        TcpListener::bind(address).map_err(|error| {
            anyhow!(
                "replica {} cannot listen on {address}: {error}; stop what uses the port, or change \
                 {field} in {} and the replica's entry in cluster.toml",
                file.id,
                file.path.display()
            )
        })?;
    }
    Ok(())
}

/// Writes a key and reads it back.
fn read_back(cluster: &Cluster, key: &KeyFile) -> Result<Duration> {
    let since = Instant::now();
    let options = Options { timeout: START, reply_quorum: None };
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let value = Bytes::from(format!("{} ms since 1970", elapsed.as_millis()));
    let name = Bytes::from_static(b"perdura-dev");
    if cluster.service()? == ServiceKind::TupleSpaces {
        runtime()?.block_on(take_back(cluster, key, value, &options))?;
        return Ok(since.elapsed());
    }
    let read = runtime()?.block_on(async {
        let client = connect(cluster, key)?;
        let put = StoreCommand::Put { key: name.clone(), value: value.clone() };
        call(&client, &put, false, &options).await.context("writing a key")?;
        let get = StoreCommand::Get { key: name };
        let read = call(&client, &get, false, &options).await.context("reading a key")?;
        client.close().await;
        anyhow::Ok(read)
    })?;
    ensure!(read == StoreReply::Value(Some(value)), "read another value than was written");
    Ok(since.elapsed())
}

/// Inserts a tuple and takes it back, in a space that is there for that.
async fn take_back(
    cluster: &Cluster,
    key: &KeyFile,
    value: Bytes,
    options: &Options,
) -> Result<()> {
    let client = connect(cluster, key)?;
    let on = |operation| TupleCommand::On { space: "perdura-dev".into(), operation };
    // Refused where it was made before.
    let create = on(Operation::Create(SpaceOptions::default()));
    if let Err(error) = perdura_recipes::call(&client, &create, options).await
        && !error.is_refusal()
    {
        return Err(error).context("creating a space");
    }
    let fields = [Field::Bytes(value)];
    let entry = Entry::new(Tuple::new(&fields)?);
    let out = on(Operation::Out(entry));
    perdura_recipes::call(&client, &out, options).await.context("inserting a tuple")?;
    let inp = on(Operation::Inp(Template::of(&fields)));
    let taken = perdura_recipes::call(&client, &inp, options).await.context("taking a tuple")?;
    client.close().await;
    let found = matches!(taken, TupleReply::Found(Some(_)));
    ensure!(found, "the tuple that was inserted is not there");
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
    needed: usize,
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
            let left = group.running.iter().filter(|one| one.ended.is_none()).count();
            let then = match left < needed {
                true => format!("{left} are left, and nothing is answered with less than {needed}"),
                false => "the others go on".to_owned(),
            };
            say!("replica {id} (pid {pid}) ended: {status}; {then}");
            if !status.success() && status.code().is_some() {
                say!("{}", last_lines(&group.running[id].log, 3));
            }
            let file = replica_file(dir, id);
            say!("  start it again, in another terminal:");
            say!("    {} replica --config {}", program_name(), file.display());
        }
    }
}

fn stop(group: Group) -> Result<ExitCode> {
    group.stop()?;
    say!("stopped; the data stays");
    Ok(ExitCode::SUCCESS)
}

/// As this program was called.
fn program_name() -> String {
    std::env::args().next().unwrap_or_else(|| "perdura".to_owned())
}

fn print_guide(dir: &Path, cluster: &Cluster, service: ServiceKind, group: &Group) {
    let (faults, dir, program) = (cluster.parameters.faults, dir.display(), program_name());
    say!(
        "{} replicas are up, live with {} failures, safe with {} liars",
        faults.n(),
        faults.u(),
        faults.r()
    );
    for running in &group.running {
        let entry = &cluster.replicas[running.id];
        say!(
            "  replica {}  pid {}  {}  http://{}/status  {}",
            running.id,
            running.child.id(),
            entry.address,
            entry.http,
            running.log.display()
        );
    }
    say!("try, in another terminal:");
    match service {
        ServiceKind::KeyValue => {
            say!("  {program} kv put --cluster {dir} hello world");
            say!("  {program} kv get --cluster {dir} hello");
            say!("  {program} bench put --cluster {dir} --clients 64");
        }
        ServiceKind::TupleSpaces => {
            say!("  {program} space create --cluster {dir} jobs");
            say!("  {program} space in --cluster {dir} jobs '[\"job\", null]' --wait 1h");
            say!("  {program} space out --cluster {dir} jobs '[\"job\", 7]'  (in a third one)");
        }
    }
    say!("  {program} status --cluster {dir}");
    say!("  kill -9 the leader's pid, and go on");
    say!("Ctrl-C stops the cluster; the same command goes on with its data.");
}
