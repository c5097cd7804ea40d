//! `perdura dev`: a whole cluster on this machine, each replica a child process.
//!
//! Replicas are started once and not restarted, so that whoever tries out failures sees them. A
//! child ends with this process: in order when this stops in order, by a signal of the operating
//! system otherwise.

use crate::config::cluster::service_text;
use crate::config::{CLIENT_FILE, CLUSTER_FILE, Cluster, KeyFile, REPLICA_FILE, ReplicaFile};
use crate::connect::{connect, runtime};
use crate::init::{Bounds, Place, ServiceName, Tuning, make};
use crate::kv::call;
use crate::{process, replica, space};
use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use clap::Args;
use perdura_client::Options;
use perdura_durability::FileDisk;
use perdura_protocol::configuration::{Durability, ServiceKind};
use perdura_store::{StoreCommand, StoreReply};
use perdura_tuples::{
    Entry, Field, Operation, SpaceOptions, Template, Tuple, TupleCommand, TupleReply,
};
use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often children are looked after.
const LOOK: Duration = Duration::from_millis(50);

/// The cluster has to answer within this time after its start.
const START: Duration = Duration::from_secs(60);

/// A child that has not stopped after this time is killed.
const STOP: Duration = Duration::from_secs(20);

/// Runs a whole cluster on loopback, as child processes, until Ctrl-C; makes its files if they are
/// not there, and goes on from them if they are.
///
/// Writes a key and reads it back through the real client, then says where the replicas are and
/// what to try. Restarts no replica by itself. A replica's log is in DIR/replica-I/log.txt.
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
    /// Stop as soon as the key is read back; exit code 0 if it was
    #[arg(long)]
    once: bool,
}

/// A replica's process.
struct Running {
    id: usize,
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
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
    let stop = events.clone();
    process::on_stop(move |signal| {
        let _ = stop.send(Event::Stop(signal));
    })?;
    let mut group = Group { running: Vec::new() };
    for id in 0..cluster.replicas.len() {
        group.running.push(start(dir, id)?);
    }
    let of_client = cluster.clone();
    std::thread::Builder::new().name("client".into()).spawn(move || {
        let _ = events.send(Event::ReadBack(read_back(&of_client, &key)));
    })?;
    let took = match group.wait_for_read_back(&happened)? {
        Some(took) => took,
        None => return group.stop(),
    };
    match cluster.parameters.service {
        ServiceKind::KeyValue => say!("wrote a key and read it back, {} ms", took.as_millis()),
        ServiceKind::TupleSpaces => {
            say!("inserted a tuple and took it back, {} ms", took.as_millis());
        }
    }
    if arguments.once {
        return group.stop();
    }
    print_guide(dir, &cluster, &group);
    let signal = group.wait_for_stop(dir, &happened);
    say!("{signal}: stopping");
    group.stop()
}

/// The cluster in the directory, made if it is not there.
fn prepare(arguments: &Arguments) -> Result<Cluster> {
    let (dir, path) = (&arguments.dir, arguments.dir.join(CLUSTER_FILE));
    if !path.exists() {
        let faults = arguments.bounds.faults()?;
        let places = Place::all(faults.n(), &[], arguments.base_port, false)?;
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
    let service = cluster.parameters.service;
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
        let (file, _) = replica::load(&path)?;
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

fn replica_file(dir: &Path, id: usize) -> PathBuf {
    dir.join(format!("replica-{id}")).join(REPLICA_FILE)
}

fn start(dir: &Path, id: usize) -> Result<Running> {
    let config = replica_file(dir, id);
    let log = config.with_file_name("log.txt");
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log)
        .with_context(|| format!("cannot write {}", log.display()))?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let child = Command::new(program)
        .args(["replica", "--config"])
        .arg(&config)
        .args(["--parent", &std::process::id().to_string()])
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        // Ctrl-C in a terminal reaches this process only, which then stops them in order.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start replica {id}"))?;
    Ok(Running { id, child, log, ended: None })
}

/// Writes a key and reads it back.
fn read_back(cluster: &Cluster, key: &KeyFile) -> Result<Duration> {
    let since = Instant::now();
    let options = Options { timeout: START, reply_quorum: None };
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let value = Bytes::from(format!("{} ms since 1970", elapsed.as_millis()));
    let name = Bytes::from_static(b"perdura-dev");
    if cluster.parameters.service == ServiceKind::TupleSpaces {
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
    if let Err(error) = space::call(&client, &create, options).await
        && !error.is_refusal()
    {
        return Err(error).context("creating a space");
    }
    let fields = [Field::Bytes(value)];
    let entry = Entry::new(Tuple::new(&fields)?);
    let out = on(Operation::Out(entry));
    space::call(&client, &out, options).await.context("inserting a tuple")?;
    let inp = on(Operation::Inp(Template::of(&fields)));
    let taken = space::call(&client, &inp, options).await.context("taking a tuple")?;
    client.close().await;
    let found = matches!(taken, TupleReply::Found(Some(_)));
    ensure!(found, "the tuple that was inserted is not there");
    Ok(())
}

/// The children. Dropped, it kills those that are left.
struct Group {
    running: Vec<Running>,
}

impl Group {
    /// Those that have ended since the last look.
    fn newly_ended(&mut self) -> Vec<(usize, u32, ExitStatus)> {
        let mut ended = Vec::new();
        for running in self.running.iter_mut().filter(|running| running.ended.is_none()) {
            if let Ok(Some(status)) = running.child.try_wait() {
                running.ended = Some(status);
                ended.push((running.id, running.child.id(), status));
            }
        }
        ended
    }

    /// How long it took; none if this process was told to stop before.
    fn wait_for_read_back(&mut self, happened: &mpsc::Receiver<Event>) -> Result<Option<Duration>> {
        loop {
            match happened.recv_timeout(LOOK) {
                Ok(Event::ReadBack(result)) => {
                    return Ok(Some(result.context("the cluster does not answer")?));
                }
                Ok(Event::Stop(_)) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => bail!("the client's thread ended"),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some((id, _, status)) = self.newly_ended().first() {
                let log = &self.running[*id].log;
                bail!(
                    "replica {id} ended at its start ({status}):\n{}\nits whole log is in {}",
                    last_lines(log, 5),
                    log.display()
                );
            }
        }
    }

    /// Reports children that end, until this process is told to stop.
    fn wait_for_stop(&mut self, dir: &Path, happened: &mpsc::Receiver<Event>) -> &'static str {
        loop {
            match happened.recv_timeout(LOOK) {
                Ok(Event::Stop(signal)) => return signal,
                Ok(Event::ReadBack(_)) | Err(RecvTimeoutError::Timeout) => {}
                // The client's thread is done, and only signals are left to come.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
            }
            for (id, pid, status) in self.newly_ended() {
                say!("replica {id} (pid {pid}) ended: {status}; the others go on");
                if !status.success() && status.code().is_some() {
                    say!("{}", last_lines(&self.running[id].log, 3));
                }
                let file = replica_file(dir, id);
                say!("  start it again, in another terminal:");
                say!("    {} replica --config {}", program_name(), file.display());
            }
        }
    }

    /// Stops all in order.
    fn stop(mut self) -> Result<ExitCode> {
        for running in self.running.iter().filter(|running| running.ended.is_none()) {
            process::terminate(&running.child);
        }
        let deadline = Instant::now() + STOP;
        while self.running.iter().any(|running| running.ended.is_none()) {
            self.newly_ended();
            if Instant::now() > deadline {
                bail!("replicas did not stop within {} s and were killed", STOP.as_secs());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        say!("stopped; the data stays");
        Ok(ExitCode::SUCCESS)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for running in self.running.iter_mut().filter(|running| running.ended.is_none()) {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

/// The end of a log, indented.
fn last_lines(log: &Path, count: usize) -> String {
    const TAIL_BYTES: i64 = 4096;
    let read = || -> std::io::Result<String> {
        let mut file = std::fs::File::open(log)?;
        let length = i64::try_from(file.metadata()?.len()).unwrap_or(i64::MAX);
        file.seek(SeekFrom::End(-length.min(TAIL_BYTES)))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        Ok(String::from_utf8_lossy(&tail).into_owned())
    };
    let tail = read().unwrap_or_default();
    let lines: Vec<&str> = tail.lines().collect();
    let last = &lines[lines.len().saturating_sub(count)..];
    last.iter().map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n")
}

/// As this program was called.
fn program_name() -> String {
    std::env::args().next().unwrap_or_else(|| "perdura".to_owned())
}

fn print_guide(dir: &Path, cluster: &Cluster, group: &Group) {
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
    match cluster.parameters.service {
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
