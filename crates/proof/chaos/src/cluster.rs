//! The replicas: hosts with their files and disks, and the processes on them. Whatever is done to
//! a process on purpose is said here first, so that one that ends by itself is found. Where there are several partitions, each
//! process is a server with a member of each partition's group.

use crate::course::{Course, lock};
use crate::files::{ClusterFile, copy_tree, empty_directory};
use crate::network::{Network, Party};
use crate::volume::{Make, Volume};
use crate::watch::page;
use anyhow::{Context, Result, ensure};
use perdura_protocol::Faults;
use rustix::process::{Pid, Signal};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

/// A replica that was asked to stop has ended after this time.
const STOP: Duration = Duration::from_secs(25);

/// `perdura replica reinit` has ended after this time.
const REINIT_SECONDS: &str = "60s";

/// Each replica holds all of its state in memory against its digests within this time.
pub const SCRUB: Duration = Duration::from_secs(5);

/// Where libfaketime is, by the Debian package `faketime`.
const FAKETIME: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
];

/// The program of experiments that was built with `perdura`: its replicas may misbehave.
pub fn lab_beside(perdura: &Path) -> PathBuf {
    perdura.with_file_name("perdura-lab")
}

/// libfaketime, if it is installed.
pub fn faketime() -> Option<PathBuf> {
    FAKETIME.iter().map(PathBuf::from).find(|path| path.exists())
}

#[derive(Default)]
struct Process {
    child: Option<Child>,
    // Its end, once it came, is no surprise.
    may_end: bool,
    // Where in its log that was so.
    ends_expected: Vec<Range<u64>>,
    ended: Option<ExitStatus>,
    with_clock: bool,
    lies: bool,
    // Where its log goes, of which nobody reads.
    unread: Option<ChildStderr>,
}

impl Process {
    /// From here on, where its log has so many bytes, it may end by itself, or has no reason to.
    fn let_end(&mut self, may_end: bool, length: u64) {
        if may_end && !self.may_end {
            self.ends_expected.push(length..u64::MAX);
        }
        if let Some(last) = self.ends_expected.last_mut().filter(|_| !may_end && self.may_end) {
            last.end = length;
        }
        self.may_end = may_end;
    }
}

/// One replica's machine.
pub struct Host {
    /// The replica's id.
    pub id: usize,
    /// Its status is here.
    pub http: String,
    /// Of how many partitions' groups it has a member.
    pub partitions: usize,
    // Its name as `perdura init` has it: that of a replica, or of a server.
    name: String,
    directory: PathBuf,
    log: PathBuf,
    volume: Volume,
    process: Mutex<Process>,
}

/// All of them.
pub struct Cluster {
    program: PathBuf,
    directory: PathBuf,
    /// The group's bounds.
    pub faults: Faults,
    /// What a proposal's time may differ from a replica's clock by.
    pub max_skew_ms: u64,
    /// Into how many partitions the keys are spread.
    pub partitions: usize,
    /// By id.
    pub hosts: Vec<Host>,
    // A mistake that all of them are made with, of a test build.
    bug: Option<String>,
    lies: Mutex<BTreeMap<usize, Vec<u64>>>,
}

impl Host {
    /// Whether it is a server, whose members may end one by one.
    pub fn is_server(&self) -> bool {
        self.partitions > 1
    }

    /// What its disk holds: the data directory, or that of each member.
    pub fn disk(&self) -> PathBuf {
        self.directory.join(&self.name).join("data")
    }

    /// The data directory of its member of a partition's group.
    pub fn data(&self, partition: usize) -> PathBuf {
        match self.is_server() {
            true => self.disk().join(format!("partition-{partition}")),
            false => self.disk(),
        }
    }

    /// Its disk.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    fn clock_file(&self) -> PathBuf {
        self.directory.join("clock")
    }

    /// Sets its wall clock off, in milliseconds.
    pub fn set_clock(&self, offset_ms: i64) -> Result<()> {
        // A reader sees the whole file, or the one before.
        let next = self.directory.join("clock.next");
        fs::write(&next, format!("{:+.3}\n", offset_ms as f64 / 1000.0))?;
        fs::rename(next, self.clock_file())?;
        Ok(())
    }

    /// Whether its clock can be set while it runs.
    pub fn has_clock(&self) -> bool {
        lock(&self.process).with_clock
    }

    /// How long its log is.
    pub fn log_length(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |metadata| metadata.len())
    }

    /// What it logged since the log had `length` bytes.
    pub fn log_since(&self, length: u64) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        let start = usize::try_from(length).unwrap_or(usize::MAX).min(bytes.len());
        String::from_utf8_lossy(&bytes[start..]).into_owned()
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let process = lock(&self.process);
        let child = process.child.as_ref().context("it does not run")?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no such pid")?;
        rustix::process::kill_process(pid, signal)?;
        Ok(())
    }

    /// SIGSTOP.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// kill -9, if it runs.
    pub fn kill(&self) {
        let mut process = lock(&self.process);
        if let Some(mut child) = process.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// From here on it may end by itself, because of what is done to it.
    pub fn expect_end(&self) {
        lock(&self.process).let_end(true, self.log_length());
    }

    /// Whether it was started to lie, or with memory that rots, so that it may find its state wrong.
    pub fn lies(&self) -> bool {
        lock(&self.process).lies
    }

    /// Whether it has a reason to end by itself.
    pub fn may_end(&self) -> bool {
        lock(&self.process).may_end
    }

    /// Where in its log it had a reason to end by itself.
    pub fn ends_expected(&self) -> Vec<Range<u64>> {
        lock(&self.process).ends_expected.clone()
    }

    /// From here on it has no reason to end by itself.
    pub fn survived(&self) {
        lock(&self.process).let_end(false, self.log_length());
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        lock(&self.process).ended
    }

    /// Looks after the process; a violation if it ended without a reason.
    pub fn look(&self, course: &Course) {
        let mut process = lock(&self.process);
        let Some(child) = process.child.as_mut() else { return };
        let Ok(Some(status)) = child.try_wait() else { return };
        process.child = None;
        process.ended = Some(status);
        if !process.may_end {
            drop(process);
            course.violation(format!(
                "replica {} ended by itself ({status}): {}",
                self.id,
                self.last_line()
            ));
        }
    }

    /// What it says of itself and what its threads are doing, for a replica that should do
    /// something else: its report, its metrics, its threads as the kernel sees them, and their
    /// stacks, if gdb is installed.
    pub fn examine(&self) -> String {
        let mut text = String::new();
        for path in ["/status", "/healthz", "/metrics"] {
            let said = page(&self.http, path).unwrap_or_else(|| "no answer".to_owned());
            text.push_str(&format!("{path}\n{said}\n"));
        }
        let process = lock(&self.process);
        let Some(child) = process.child.as_ref() else { return text + "no process\n" };
        let pid = child.id().to_string();
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        for task in tasks.flatten() {
            for name in ["comm", "wchan", "syscall", "stack"] {
                let said = fs::read_to_string(task.path().join(name)).unwrap_or_default();
                text.push_str(&format!("{name}: {}\n", said.trim()));
            }
        }
        let stacks = ["-p", &pid, "--batch", "-ex", "thread apply all backtrace"];
        match Command::new("gdb").args(stacks).output() {
            Ok(output) => text.push_str(&String::from_utf8_lossy(&output.stdout)),
            Err(error) => text.push_str(&format!("gdb: {error}\n")),
        }
        text
    }

    /// The end of its log.
    pub fn last_line(&self) -> String {
        let log = self.log_since(self.log_length().saturating_sub(4096));
        log.lines().last().unwrap_or_default().to_owned()
    }

    /// SIGTERM; how it ends, if it does in time.
    pub fn ask_to_end(&self, course: &Course) -> Result<Option<ExitStatus>> {
        self.expect_end();
        self.signal(Signal::TERM)?;
        Ok(course.poll(STOP, || {
            self.look(course);
            self.ended()
        }))
    }

    /// SIGTERM; it has to end in order.
    pub fn stop(&self, course: &Course) -> Result<()> {
        match self.ask_to_end(course)? {
            Some(status) if status.success() => {}
            Some(status) => course.violation(format!(
                "replica {} was asked to stop and ended with {status}: {}",
                self.id,
                self.last_line()
            )),
            None => {
                course.violation(format!("replica {} does not stop on SIGTERM", self.id));
                self.kill();
            }
        }
        Ok(())
    }
}

/// Where what a replica logs goes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Output {
    /// To its file.
    #[default]
    Log,
    /// Nobody reads it any more.
    Closed,
    /// There is no room.
    Full,
    /// Nobody ever reads it.
    Unread,
}

/// How a replica is started.
#[derive(Clone, Copy, Default)]
struct Start<'a> {
    output: Output,
    files: Option<u32>,
    library: Option<&'a Path>,
    may_end: bool,
    // How it lies, and its member of which partition, or all of them.
    lies: Option<(&'a str, Option<usize>)>,
}

/// How one lies whose memory rots.
const ROTTEN: &str = "rotten-memory";

impl Cluster {
    /// Makes the files of a cluster and its hosts in `directory`.
    pub fn create(
        program: &Path,
        directory: &Path,
        bounds: &[String],
        make: Make,
        bug: Option<String>,
    ) -> Result<Cluster> {
        let admin = directory.join("admin");
        // Checkpoints often, so that faults meet them, truncation and transfers.
        let output = Command::new(program)
            .arg("init")
            .arg(&admin)
            .args(bounds)
            .args(["--checkpoint-interval", "512", "--checkpoint-mib", "16"])
            // The states here are small against real ones, and large against these.
            .args(["--checkpoint-stretch", "2"])
            .output()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "perdura init: {error}");
        let file = ClusterFile::load(&admin.join("cluster.toml"))?;
        let mut hosts = Vec::new();
        for (id, entry) in file.replicas.iter().enumerate() {
            let own = directory.join(format!("host-{id}"));
            let kind = if file.is_partitioned() { "server" } else { "replica" };
            let name = format!("{kind}-{id}");
            let data = own.join(&name).join("data");
            let volume = Volume::create(
                make,
                file.partitions(),
                &directory.join(format!("disk-{id}")),
                &data,
            )?;
            hosts.push(Host {
                id,
                http: entry.http.clone(),
                partitions: file.partitions(),
                name,
                directory: own,
                log: directory.join(format!("log-{id}.txt")),
                volume,
                process: Mutex::default(),
            });
        }
        let cluster = Cluster {
            program: program.to_owned(),
            directory: directory.to_owned(),
            faults: file.faults,
            max_skew_ms: file.max_skew_ms,
            partitions: file.partitions(),
            hosts,
            bug,
            lies: Mutex::default(),
        };
        for id in 0..cluster.hosts.len() {
            cluster.take_files_to_host(id)?;
            (0..cluster.partitions).try_for_each(|member| cluster.take_data_to_host(id, member))?;
        }
        Ok(cluster)
    }

    /// The administrator's cluster.toml as it is now.
    pub fn file(&self) -> Result<ClusterFile> {
        ClusterFile::load(&self.directory.join("admin/cluster.toml"))
    }

    /// The program as a client of the cluster: `perdura OF WHAT`.
    pub fn client_command(&self, of: &str, what: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args([of, what, "--cluster"]).arg(self.directory.join("admin"));
        command
    }

    /// A place for a file among the logs.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The key of the clients.
    pub fn client_key(&self) -> PathBuf {
        self.directory.join("admin/client.toml")
    }

    /// Registers another client, and gives the file with its key.
    pub fn add_client(&self, name: &str) -> Result<PathBuf> {
        let output =
            self.client_command("client", "add").args(["--timeout", "60s", name]).output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "perdura client add {name}: {}", error.trim());
        Ok(self.directory.join(format!("admin/client-{name}.toml")))
    }

    /// What says who the host's members are.
    fn take_files_to_host(&self, id: usize) -> Result<()> {
        let host = &self.hosts[id];
        let (from, to) =
            (self.directory.join("admin").join(&host.name), host.directory.join(&host.name));
        let scrub = format!("scrub_interval_s = {}\n", SCRUB.as_secs());
        let (file, text) = if host.is_server() {
            let text = fs::read_to_string(from.join("server.toml"))?;
            // All members' data is on the disk. What is before the members is of the server.
            let text = text.replace("data = \"partition-", "data = \"data/partition-");
            ("server.toml", text.replacen("[[member]]", &format!("{scrub}[[member]]"), 1))
        } else {
            ("replica.toml", fs::read_to_string(from.join("replica.toml"))? + &scrub)
        };
        fs::create_dir_all(&to)?;
        fs::write(to.join(file), text)?;
        Ok(())
    }

    /// The data of a member that begins.
    fn take_data_to_host(&self, id: usize, partition: usize) -> Result<()> {
        let host = &self.hosts[id];
        let from = self.directory.join("admin").join(&host.name);
        let data = if host.is_server() { format!("partition-{partition}") } else { "data".into() };
        let own = host.data(partition);
        fs::create_dir_all(&own)?;
        empty_directory(&own)?;
        copy_tree(&from.join(data), &own)
    }

    /// Brings cluster.toml to all hosts, with the addresses that lead through the proxies.
    pub fn take_cluster_file_to_hosts(&self, network: &Network) -> Result<()> {
        let file = self.file()?;
        for host in &self.hosts {
            let text = file.with_addresses(|to| match to == host.id {
                true => file.replicas[to].address.clone(),
                false => network.address(Party::Replica(host.id), to),
            })?;
            fs::write(host.directory.join("cluster.toml"), text)?;
        }
        Ok(())
    }

    /// Starts a replica that does not run.
    pub fn start(&self, id: usize) -> Result<()> {
        self.start_process(id, &Start::default())
    }

    /// Starts a replica whose memory rots, or that of its member of a partition's group.
    pub fn start_rotten(&self, id: usize, partition: usize) -> Result<()> {
        let lies = Some((ROTTEN, Some(partition)));
        self.start_process(id, &Start { lies, ..Start::default() })
    }

    /// Starts a replica that lies, with all of its members. It may stumble over what it says.
    pub fn start_lying(&self, id: usize, how: &str) -> Result<()> {
        let lies = Some((how, None));
        let lengths = || self.hosts.iter().map(Host::log_length).collect();
        lock(&self.lies).entry(id).or_insert_with(lengths);
        self.start_process(id, &Start { lies, may_end: true, ..Start::default() })
    }

    /// Who has lied, and how long everybody's log was before the first time.
    pub fn lies(&self) -> BTreeMap<usize, Vec<u64>> {
        lock(&self.lies).clone()
    }

    /// Starts a replica that may find that it must not.
    pub fn start_doubtful(&self, id: usize) -> Result<()> {
        self.start_process(id, &Start { may_end: true, ..Start::default() })
    }

    /// Starts a replica whose clock can be set.
    pub fn start_with_clock(&self, id: usize, library: &Path) -> Result<()> {
        self.start_process(id, &Start { library: Some(library), ..Start::default() })
    }

    /// Starts a replica so that nobody takes what it logs, which is much.
    pub fn start_unheard(&self, id: usize, output: Output) -> Result<()> {
        self.start_process(id, &Start { output, ..Start::default() })
    }

    /// Starts a replica that may have so many files open.
    pub fn start_with_files(&self, id: usize, files: u32) -> Result<()> {
        self.start_process(id, &Start { files: Some(files), ..Start::default() })
    }

    /// Connections of nobody to all replicas; to its end.
    pub fn strangers(&self, per_second: u32, seconds: u64) -> Result<process::Output> {
        let lab = lab_beside(&self.program);
        let rate = ["--per-second".to_owned(), per_second.to_string()];
        let time = ["--duration".to_owned(), format!("{seconds}s")];
        Command::new(lab)
            .arg("strangers")
            .args(rate.iter().chain(&time))
            .arg("--cluster")
            .arg(self.directory.join("admin"))
            .output()
            .context("cannot run perdura-lab strangers")
    }

    fn start_process(&self, id: usize, start: &Start) -> Result<()> {
        let Start { library, may_end, lies, output, files } = *start;
        let host = &self.hosts[id];
        let kind = if host.is_server() { "server" } else { "replica" };
        let config = host.directory.join(&host.name).join(format!("{kind}.toml"));
        let log = OpenOptions::new().create(true).append(true).open(&host.log)?;
        let mut process = lock(&host.process);
        ensure!(process.child.is_none(), "replica {id} runs already");
        let is_test_build = lies.is_some() || self.bug.is_some();
        let program = if is_test_build { lab_beside(&self.program) } else { self.program.clone() };
        let mut command = match files {
            None => Command::new(program),
            Some(files) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("ulimit -n {files}; exec \"$@\""), "sh"]).arg(program);
                shell
            }
        };
        let level = if output == Output::Log { "info" } else { "trace" };
        command.args([kind, "--log-level", level, "--config"]).arg(config);
        if let Some((how, partition)) = lies {
            command.args(["--misbehave", how]);
            if let Some(partition) = partition.filter(|_| host.is_server()) {
                command.args(["--partition", &partition.to_string()]);
            }
        }
        if let Some(bug) = &self.bug {
            command.args(["--bug", bug]);
        }
        let stderr = match output {
            Output::Log => Stdio::from(log),
            Output::Closed | Output::Unread => Stdio::piped(),
            Output::Full => OpenOptions::new().write(true).open("/dev/full")?.into(),
        };
        command.stdin(Stdio::null()).stdout(File::open("/dev/null")?).stderr(stderr);
        command.env("RUST_BACKTRACE", "1");
        process.with_clock = library.is_some() || process.with_clock;
        if let Some(library) = library.map(Path::to_owned).or_else(|| {
            // Once it has such a clock it keeps it.
            process.with_clock.then(faketime).flatten()
        }) {
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME_TIMESTAMP_FILE", host.clock_file())
                .env("FAKETIME_CACHE_DURATION", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        // Ctrl-C in a terminal is for the harness.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().context("cannot start a replica")?;
        // Dropped: nobody reads it from here on.
        process.unread = child.stderr.take().filter(|_| output == Output::Unread);
        process.child = Some(child);
        process.ended = None;
        process.let_end(may_end, host.log_length());
        process.lies = lies.is_some();
        Ok(())
    }

    /// Replaces a replica that lost what it knew, as docs/operations/replacing.md tells an operator; or these members of a server.
    pub fn replace(&self, id: usize, members: &[usize], network: &Network) -> Result<()> {
        let host = &self.hosts[id];
        // 1. The old process does not come back.
        host.kill();
        for partition in members {
            let (own, of) = match host.is_server() {
                true => (self.file()?.replica_of(*partition, id)?, Some(partition.to_string())),
                false => (id, None),
            };
            // 2. On the administrator's machine.
            let mut command = self.client_command("replica", "reinit");
            command.args(["--timeout", REINIT_SECONDS, "--id", &own.to_string()]);
            command.args(of.iter().flat_map(|partition| ["--partition", partition]));
            let output = command.output()?;
            let error = String::from_utf8_lossy(&output.stderr);
            ensure!(
                output.status.success(),
                "perdura replica reinit --id {own} {of:?}: {}",
                error.trim()
            );
            // 3. The new data to the host, in place of the old one.
            self.take_data_to_host(id, *partition)?;
        }
        // 4. The new files. 5. The others' file.
        self.take_files_to_host(id)?;
        self.take_cluster_file_to_hosts(network)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for host in &self.hosts {
            host.kill();
        }
        for host in self.hosts.drain(..) {
            if let Err(error) = host.volume.remove() {
                eprintln!("a volume is left: {error:#}");
            }
        }
    }
}
