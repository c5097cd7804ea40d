//! What operates a service of one's own: `init`, `dev` and `replica` of the example, as its users run them.

use crate::ledger::Ledger;
use crate::processes::{Ran, fitting_helps, reserve_ports, send_signal, wait_for, wait_for_end};
use crate::program;
use perdura::{Cluster, Faults, Parts, Service};
use perdura_cluster::create::{Partitions, Place, make_partitioned};
use perdura_protocol::ServiceName;
use perdura_protocol::configuration::Durability;
use perdura_protocol::partitions::Distribution;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;

fn run<S: AsRef<OsStr>>(arguments: &[S]) -> Ran {
    program().args(arguments).output().unwrap().into()
}

/// A directory that is not there yet, as it is written on a command line.
fn fresh() -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("a cluster").to_str().unwrap().to_owned();
    (directory, dir)
}

/// A line that was printed to be copied.
fn shell(line: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec {line}")]).stdin(Stdio::null());
    command
}

/// Runs what was printed.
#[track_caller]
fn wait_until_ok(line: &str) {
    wait_for("what was printed to do what it says", || {
        (shell(line).output().map(Ran::from).unwrap().code == Some(0)).then_some(())
    });
}

/// Waits for all three.
#[track_caller]
fn wait_until_active(dir: &str) {
    wait_for("all to be there", || {
        let status = run(&["status", "--json", "--cluster", dir]).out;
        (status.matches("\"state\":\"active\"").count() == 3).then_some(())
    });
}

/// Processes that end with the test.
#[derive(Default)]
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// In order.
#[track_caller]
fn stop(replica: &mut Child) {
    send_signal(replica, "-TERM");
    assert_eq!(wait_for_end(replica).code(), Some(0));
}

#[test]
fn what_init_says_is_to_be_done_holds_as_it_stands() {
    let (_directory, dir) = fresh();
    let ports = reserve_ports(6).to_string();
    let out = run(&["init", &dir, "--crash", "1", "--base-port", &ports]).ok();
    assert!(out.contains("of 3 replicas") && out.contains("service ledger"), "{out}");
    let files = std::fs::read_to_string(Path::new(&dir).join("cluster.toml")).unwrap();
    assert!(files.lines().any(|line| line == "service = \"ledger\""), "{files}");
    let (before, after) = out.split_once("Start replica I (all of 0 to 2) with:\n").unwrap();
    assert_eq!(before.lines().filter(|line| line.starts_with("  replica ")).count(), 3, "{out}");
    let lines: Vec<&str> = after.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    let [start, health] = lines[..] else { panic!("{out}") };
    let mut replicas = Children::default();
    for id in 0..3 {
        let line = start.replace("replica-I", &format!("replica-{id}"));
        let line = format!("{line} --log-level error");
        replicas.0.push(shell(&line).spawn().unwrap());
    }
    wait_until_ok(health);
    assert_eq!(run(&["pay", &dir, "bank", "alice", "7"]).ok(), "alice has 7\n");
    // A `main` that returns what its client says shows its words.
    let too_much = run(&["pay", &dir, "alice", "bob", "9"]);
    too_much.failed(1, &["Error: the service refused it: TooLittle(7)"]);
    let nowhere = run(&["pay", "/nowhere/at/all", "alice", "bob", "9"]);
    nowhere.failed(1, &["Error: there is no", "/nowhere/at/all"]);
    // What is said of a replica that is replaced holds too.
    wait_until_active(&dir);
    stop(&mut replicas.0[1]);
    std::fs::remove_dir_all(Path::new(&dir).join("replica-1/data")).unwrap();
    let told = run(&["replica", "reinit", "--cluster", &dir, "--id", "1"]).ok();
    let (_, again) = told.split_once("start it with: ").unwrap();
    replicas.0[1] = shell(&format!("{} --log-level error", again.trim())).spawn().unwrap();
    wait_until_active(&dir);
    replicas.0.iter_mut().for_each(stop);
    // What is there stays as it is.
    run(&["init", &dir]).failed(1, &["holds a cluster already", "give another directory"]);
}

/// There the program is found by its name, wherever it is here.
#[test]
fn what_init_says_for_hosts_names_the_program() {
    let (_directory, dir) = fresh();
    let out = run(&["init", &dir, "--crash", "1", "--hosts", "db0,db1,db2"]).ok();
    let lines: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    let copy = |id| format!("rsync -a '{dir}/cluster.toml' '{dir}/replica-{id}' db{id}:DIR/");
    let start = "ledger replica --config DIR/replica-I/replica.toml".to_owned();
    let health = format!("ledger health --cluster '{dir}'");
    for line in [copy(0), copy(1), copy(2), start, health] {
        assert!(lines.contains(&&*line), "no {line} in {out}");
    }
    run(&["dev", &dir]).failed(1, &["a cluster on hosts: replica 0 is found at db0:7400"]);
}

/// `ledger dev`, and what it has said.
struct Dev {
    child: Children,
    lines: Lines<BufReader<ChildStdout>>,
    said: Vec<String>,
}

impl Dev {
    fn start<S: AsRef<OsStr>>(arguments: &[S]) -> Dev {
        let mut command = program();
        let mut child = command.arg("dev").args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut dev = Dev { child: Children(vec![child]), lines, said: Vec::new() };
        dev.until("Ctrl-C stops the cluster");
        dev
    }

    #[track_caller]
    fn until(&mut self, words: &str) -> String {
        for line in self.lines.by_ref().map(Result::unwrap) {
            self.said.push(line.clone());
            if line.contains(words) {
                return line;
            }
        }
        panic!("it ended, and did not say {words:?}: {:#?}", self.said)
    }

    #[track_caller]
    fn has_said(&self, words: &str) -> &str {
        let found = self.said.iter().find(|line| line.contains(words));
        found.unwrap_or_else(|| panic!("no {words:?} in {:#?}", self.said))
    }

    /// Ctrl-C.
    #[track_caller]
    fn stop(mut self) {
        send_signal(&self.child.0[0], "-INT");
        self.until("SIGINT: stopping");
        self.until("stopped; the data stays");
        assert_eq!(wait_for_end(&mut self.child.0[0]).code(), Some(0));
    }
}

#[test]
fn dev_serves_and_goes_on_with_its_data() {
    let (_directory, dir) = fresh();
    let ports = reserve_ports(6);
    let mut dev = Dev::start(&[&dir, "--crash", "1", "--base-port", &ports.to_string()]);
    dev.has_said("made a cluster of 3 replicas");
    dev.has_said("ordered a command");
    let places = |id: u16| {
        let port = ports + 2 * id;
        (format!("  127.0.0.1:{port}  http://127.0.0.1:{}/status  ", port + 1), id)
    };
    for (place, id) in (0..3).map(places) {
        assert!(dev.has_said(&place).starts_with(&format!("  replica {id}  pid ")));
    }
    for command in ["health", "status"] {
        wait_until_ok(dev.has_said(&format!(" {command} --cluster ")).trim());
    }
    assert_eq!(run(&["pay", &dir, "bank", "alice", "7"]).ok(), "alice has 7\n");
    // Whoever kills one, as it proposes, is told how it comes back.
    let pid = dev.has_said("  replica 1  pid ").split_whitespace().nth(3).unwrap().to_owned();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    dev.until("replica 1 (pid");
    let again = dev.until(" replica --config ");
    let mut replica = Children(vec![shell(again.trim()).stderr(Stdio::null()).spawn().unwrap()]);
    wait_until_active(&dir);
    wait_until_ok(dev.has_said(" health --cluster ").trim());
    assert_eq!(run(&["pay", &dir, "bank", "bob", "1"]).ok(), "bob has 1\n");
    run(&["dev", &dir]).failed(1, &["replica 0", "in use by another process"]);
    dev.stop();
    stop(&mut replica.0[0]);

    let dev = Dev::start(&[&dir]);
    dev.has_said("going on with the cluster of 3 replicas");
    assert_eq!(run(&["pay", &dir, "alice", "bob", "7"]).ok(), "bob has 8\n");
    dev.stop();
    let out = run(&["dev", &dir, "--once"]).ok();
    assert!(out.contains("ordered a command") && !out.contains("Ctrl-C"), "{out}");
    // What is fixed stays so.
    for (flags, told) in [
        (["--byzantine", "1"], "u = 1 and r = 0, which cannot be changed; leave the flag out"),
        (["--base-port", "7000"], "leave --base-port out, or give another directory"),
    ] {
        run(&[&["dev", &dir], &flags[..]].concat()).failed(1, &[told]);
    }
}

#[test]
fn a_replica_warns_of_a_key_that_others_may_read() {
    use std::os::unix::fs::PermissionsExt;
    let (_directory, dir) = fresh();
    let ports = reserve_ports(6).to_string();
    run(&["init", &dir, "--crash", "1", "--base-port", &ports]).ok();
    let config = Path::new(&dir).join("replica-1/replica.toml");
    std::fs::set_permissions(&config, PermissionsExt::from_mode(0o644)).unwrap();
    let mut command = program();
    command.args(["replica", "--config"]).arg(&config).stderr(Stdio::piped());
    let mut replica = Children(vec![command.spawn().unwrap()]);
    let log = BufReader::new(replica.0[0].stderr.take().unwrap());
    let mut lines = log.lines().map(Result::unwrap);
    let told: Vec<String> =
        lines.by_ref().take_while(|line| !line.contains("replica starts")).collect();
    let warned = |line: &String| line.contains("others may read it") && line.contains("mode 644");
    assert!(told.iter().any(warned), "{told:?}");
    send_signal(&replica.0[0], "-TERM");
    assert!(lines.any(|line| line.contains("replica 1 has stopped")));
    assert_eq!(wait_for_end(&mut replica.0[0]).code(), Some(0));
}

/// A service that has another name.
#[derive(Default)]
struct Other;

impl Service for Other {
    const NAME: &'static str = "other";
    type Command = u8;
    type Query = u8;
    type Reply = u8;
    type Error = u8;

    fn execute(&mut self, _: &perdura::Context<'_>, command: u8) -> Result<u8, u8> {
        Ok(command)
    }

    fn query(&self, _: &perdura::QueryContext, query: u8) -> Result<u8, u8> {
        Ok(query)
    }

    fn parts(&mut self, _: &mut Parts) {}
}

#[test]
fn what_belongs_to_another_service_is_refused() {
    let (directory, _) = fresh();
    let faults = Faults::crash(1).unwrap();
    let at = |name: &str| directory.path().join(name);
    let new = |name: &str| Cluster::builder(at(name)).faults(faults).base_port(reserve_ports(6));
    new("kv").create_store().unwrap();
    new("other").create::<Other>().unwrap();
    new("ledger").create::<Ledger>().unwrap();
    let partitions = Partitions { count: 2, distribution: Distribution::Hash };
    let (kv, places) =
        (ServiceName::literal("kv"), Place::all(3, &[], Some(reserve_ports(6)), false));
    let (dir, places) = (at("partitions"), places.unwrap());
    make_partitioned(&dir, faults, Durability::Sync, kv, |_| {}, partitions, &places).unwrap();

    let content = |name: &str| {
        let file = |path: PathBuf| (path.clone(), std::fs::read(path).unwrap());
        ["cluster.toml", "client.toml"].map(|name_of_file| file(at(name).join(name_of_file)))
    };
    for name in ["kv", "other", "partitions"] {
        let (before, dir) = (content(name), at(name));
        let service = if name == "other" { "other" } else { "kv" };
        let told = format!(
            "holds a cluster with service {service}, which cannot be changed; give another directory"
        );
        let ran = run(&[OsStr::new("dev"), dir.as_os_str()]);
        ran.failed(1, &[&told]);
        assert!(!ran.error.contains("--"), "it names what this program does not have: {ran:?}");
        assert_eq!(ran.out, "");
        let config = dir.join("replica-0/replica.toml");
        if config.exists() {
            let told = format!(
                "service is {service:?}, and this program runs \"ledger\"; use the one that has it"
            );
            let config = ["replica".as_ref(), "--config".as_ref(), config.as_os_str()];
            run(&config).failed(1, &[&told, "cluster.toml"]);
        }
        assert_eq!(content(name), before);
    }
    // It is the service that is looked at.
    assert!(
        run(&["dev".as_ref(), at("ledger").as_os_str(), "--once".as_ref()])
            .ok()
            .contains("ordered")
    );
}

#[test]
fn what_makes_no_sense_is_told_of() {
    let (directory, dir) = fresh();
    for (arguments, words) in [
        (&["init"][..], &["<DIR>"][..]),
        (&["init", &dir, "--crash", "1", "--byzantine", "1"], &["cannot be used with"]),
        (&["init", &dir, "--crash", "9"], &["9 is not in 1..=8"]),
        (&["init", &dir, "--faults", "2"], &["give two numbers, as in 2,1"]),
        (&["init", &dir, "--hosts", "a"], &["--hosts names 1 hosts, and the group has 4 replicas"]),
        (&["init", &dir, "--public-http"], &["--hosts"]),
        // What the other program has.
        (&["init", &dir, "--service", "kv"], &["unexpected argument '--service'"]),
        (&["init", &dir, "--partitions", "2"], &["unexpected argument '--partitions'"]),
        (&["dev", &dir, "--partitions", "2"], &["unexpected argument '--partitions'"]),
        (&["dev", &dir, "--profile"], &["unexpected argument '--profile'"]),
        (&["dev", &dir, "--base-port", "0"], &["0 is not in 1..=65535"]),
        (&["replica"], &["--config <FILE>"]),
        (&["replica", "--config", "x", "--profile"], &["unexpected argument '--profile'"]),
        (&["replica", "--config", "x", "reinit", "--id", "0"], &["'reinit' cannot be used with"]),
        (&["server", "--config", "x"], &["unrecognized subcommand 'server'"]),
        (&["kv", "get", "a"], &["unrecognized subcommand 'kv'"]),
    ] {
        run(arguments).failed(2, words);
    }
    let file = format!("{dir}/replica-0/replica.toml");
    let told = format!(
        "ledger: there is no file {file}; `ledger init` makes one for each replica, `ledger replica reinit` a new one"
    );
    run(&["replica", "--config", &file]).failed(1, &[&told]);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn help_is_there_for_each_command() {
    let commands = fitting_helps(program);
    let has = |words: &str| commands.iter().any(|command| command.join(" ") == words);
    for there in ["init", "dev", "replica", "replica reinit", "client add", "status", "health"] {
        assert!(has(there), "no {there} in {commands:?}");
    }
    for elsewhere in ["server", "kv", "space", "txn", "bench"] {
        assert!(!has(elsewhere), "{elsewhere} in {commands:?}");
    }
    // They name this program.
    for command in commands {
        let help = program().args(&command).arg("--help").output().map(Ran::from).unwrap().ok();
        assert!(!help.contains("`perdura "), "{help}");
    }
}
