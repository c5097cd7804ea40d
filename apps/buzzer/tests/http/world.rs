//! A cluster, and the application on it, as processes that end with a test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Nothing that a test waits for takes this long on any machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Servers of a group; each partition has servers of its own.
pub const OF_A_PARTITION: usize = 3;

/// Asks until there is an answer.
#[track_caller]
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The program `perdura`: that of `PERDURA`, or what `make build` made.
pub fn perdura() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fast/perdura");
    let path = std::env::var_os("PERDURA").map_or(built, PathBuf::from);
    assert!(path.exists(), "{} is not there; run `make build` first", path.display());
    path
}

/// The program that is tested.
pub fn buzzer() -> Command {
    Command::new(env!("CARGO_BIN_EXE_buzzer"))
}

/// In which of two partitions the data of a name is.
pub fn partition_of(name: &str) -> usize {
    usize::from(blake3::hash(name.as_bytes()).as_bytes()[0] >= 0x80)
}

/// A name that begins so, whose data is in a partition.
pub fn name_in(partition: usize, begin: &str) -> String {
    let names = (0..).map(|index| format!("{begin}{index}"));
    names.into_iter().find(|name| partition_of(name) == partition).unwrap()
}

/// A process that is told to stop when it is dropped.
pub struct Process {
    child: Child,
    out: PathBuf,
}

impl Process {
    pub fn start(mut command: Command, out: PathBuf) -> Process {
        let file = File::create(&out).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Process { child: command.spawn().unwrap(), out }
    }

    /// All that it said.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap()
    }

    /// Waits until it said a line with this; gives that line.
    #[track_caller]
    pub fn wait_to_say(&mut self, words: &str) -> String {
        wait_for(words, || {
            let said = self.said();
            let line = said.lines().find(|line| line.contains(words)).map(str::to_owned);
            let ended = self.child.try_wait().unwrap();
            assert!(line.is_some() || ended.is_none(), "ended without {words:?}: {said}");
            line
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&mut self) -> std::process::ExitStatus {
        wait_for("the end of a process", || self.child.try_wait().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            signal("-TERM", self.child.id());
            let _ = self.child.wait();
        }
    }
}

pub fn signal(which: &str, process: u32) {
    let sent = Command::new("kill").args([which, &process.to_string()]).status().unwrap();
    assert!(sent.success(), "kill {which} {process}");
}

/// A cluster of two partitions with three servers each, and the application on it.
pub struct World {
    // Dropped in this order.
    app: Option<Process>,
    restarted: Vec<Process>,
    cluster: Process,
    servers: Vec<u32>,
    url: String,
    dir: TempDir,
}

impl World {
    /// With more options of `buzzer serve`.
    pub fn start(options: &[&str]) -> World {
        World::start_serving(&[&["--insecure-cookies"], options].concat())
    }

    /// On partitions whose data may have a MiB each.
    pub fn start_with_little_room(options: &[&str]) -> World {
        let options = [&["--insecure-cookies"], options].concat();
        World::start_on(&["--state-limit-mib", "1"], &options, None)
    }

    /// With cookies as they are behind a proxy.
    pub fn start_with_secure_cookies() -> World {
        World::start_serving(&[])
    }

    /// With so many descriptors for the application.
    pub fn start_with_descriptors(descriptors: u64) -> World {
        World::start_limited(&["--insecure-cookies"], Some(descriptors))
    }

    fn start_serving(options: &[&str]) -> World {
        World::start_on(&[], options, None)
    }

    /// With so many descriptors for the application, if that is told.
    pub fn start_limited(options: &[&str], descriptors: Option<u64>) -> World {
        World::start_on(&[], options, descriptors)
    }

    /// With more options of the cluster.
    fn start_on(cluster: &[&str], options: &[&str], descriptors: Option<u64>) -> World {
        let dir = tempfile::tempdir().unwrap();
        let command = |name: &str| {
            let mut command = Command::new(perdura());
            command.arg(name).arg(dir.path().join("cluster"));
            command.args(["--crash", "1", "--partitions", "2", "--servers", "6"]);
            command.args(["--partition-by", "range:8000"]);
            command
        };
        if !cluster.is_empty() {
            let made = command("init").args(cluster).output().unwrap();
            assert!(made.status.success(), "{made:?}");
        }
        let dev = command("dev");
        let mut cluster = Process::start(dev, dir.path().join("cluster.txt"));
        cluster.wait_to_say("Ctrl-C stops");
        let pid = |line: &str| line.split("  pid ").nth(1)?.split(' ').next()?.parse().ok();
        let servers: Vec<u32> = cluster.said().lines().filter_map(pid).collect();
        assert_eq!(servers.len(), 2 * OF_A_PARTITION);
        let (restarted, url) = (Vec::new(), String::new());
        let mut world = World { app: None, restarted, cluster, servers, url, dir };
        world.serve(options, descriptors);
        world
    }

    /// The cluster's directory.
    pub fn cluster(&self) -> PathBuf {
        self.dir.path().join("cluster")
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn app(&mut self) -> &mut Process {
        self.app.as_mut().unwrap()
    }

    /// Starts the application again.
    pub fn start_app(&mut self, options: &[&str]) {
        self.serve(&[&["--insecure-cookies"], options].concat(), None);
    }

    fn serve(&mut self, options: &[&str], descriptors: Option<u64>) {
        let mut serve = match descriptors {
            None => buzzer(),
            Some(descriptors) => {
                let mut limited = Command::new("sh");
                limited.arg("-c").arg(format!("ulimit -n {descriptors}; exec \"$0\" \"$@\""));
                limited.arg(buzzer().get_program());
                limited
            }
        };
        serve.args(["serve", "--listen", "127.0.0.1:0", "--cluster"]);
        serve.arg(self.cluster()).args(options);
        let mut app = Process::start(serve, self.dir.path().join("app.txt"));
        let said = app.wait_to_say("Buzzer is at ");
        self.url = said.trim().trim_start_matches("Buzzer is at ").to_owned();
        self.app = Some(app);
    }

    /// Stops the application in order.
    pub fn stop_app(&mut self) {
        let mut app = self.app.take().unwrap();
        signal("-TERM", app.id());
        assert!(app.wait().success(), "{}", app.said());
    }

    /// A server ends at once.
    pub fn kill(&mut self, server: usize) {
        signal("-KILL", self.servers[server]);
    }

    pub fn restart(&mut self, server: usize) {
        let config = self.cluster().join(format!("server-{server}/server.toml"));
        let mut command = Command::new(perdura());
        command.arg("server").arg("--config").arg(config);
        let process = Process::start(command, self.dir.path().join(format!("again-{server}.txt")));
        self.servers[server] = process.id();
        self.restarted.push(process);
    }

    /// Sends a signal to all servers of a partition.
    pub fn signal_partition(&self, partition: usize, which: &str) {
        let of = partition * OF_A_PARTITION..(partition + 1) * OF_A_PARTITION;
        self.servers[of].iter().for_each(|server| signal(which, *server));
    }

    /// A command of `perdura` on the cluster.
    pub fn perdura(&self, arguments: &[&str]) -> Output {
        let (command, rest) = arguments.split_at(2);
        let mut run = Command::new(perdura());
        run.args(command).arg("--cluster").arg(self.cluster()).args(rest).output().unwrap()
    }

    /// All keys in the store.
    pub fn keys(&self) -> Vec<String> {
        let output = self.perdura(&["kv", "scan", "--keys-only", "--limit", "10000"]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = self.app.as_ref().map(Process::said).unwrap_or_default();
            eprintln!("the application said:\n{said}\nthe cluster said:\n{}", self.cluster.said());
        }
    }
}
