//! What tests of a program need that know nothing of the program: what became of a run, polling, ports, draws. Those of
//! `perdura-lab` and of `perdura` use it too.

#![allow(dead_code, reason = "each program's tests use a part of it")]

use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Output};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Nothing that a test waits for takes this long on any machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What became of a run of the program.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub error: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            error: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// That it succeeded; gives its output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// That it ended with `code`, and said all of `words` on standard error.
    #[track_caller]
    pub fn failed(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for word in words {
            assert!(self.error.contains(word), "no {word:?} in {self:?}");
        }
    }
}

/// Asks until there is an answer.
#[track_caller]
pub fn wait_for<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    let answer = wait_within_patience(ask);
    answer.unwrap_or_else(|| panic!("waited in vain for {what}"))
}

/// Asks until there is an answer; none if there is none for as long as anything may take.
pub fn wait_within_patience<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for the end of a process.
#[track_caller]
pub fn wait_for_end(child: &mut Child) -> std::process::ExitStatus {
    wait_for("the end of a process", || child.try_wait().unwrap())
}

pub fn send_signal(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// The first of `count` free ports in a row, which are nobody else's as long as this process runs: `perdura init` takes
/// none of which the UDP port is in use, and gives its own back when it ends, long before a replica listens there.
pub fn reserve_ports(count: u16) -> u16 {
    static RESERVED: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    let mut reserved = RESERVED.lock().unwrap();
    let mut base = 10_000 + (std::process::id() % 100) as u16 * 200;
    loop {
        let ports = base..base + count;
        let udp = ports.clone().map_while(|port| UdpSocket::bind(("127.0.0.1", port)).ok());
        let udp: Vec<UdpSocket> = udp.collect();
        let free = ports.clone().all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
        if udp.len() == usize::from(count) && free {
            reserved.extend(udp);
            return base;
        }
        base = if base > 30_000 { 10_000 } else { base + count };
    }
}

/// No line of help is longer, wherever it is shown.
const COLUMNS: usize = 100;

/// Asks for the help of the program and of all commands below it, the short and the long one. Gives their names; their lines fit.
#[track_caller]
pub fn fitting_helps(program: impl Fn() -> Command) -> Vec<Vec<String>> {
    let (mut left, mut found) = (vec![Vec::new()], Vec::new());
    while let Some(command) = left.pop() {
        let help = |flag| {
            let ran: Ran = program().args(&command).arg(flag).output().unwrap().into();
            ran.ok()
        };
        let (short, long) = (help("-h"), help("--help"));
        let too_long =
            short.lines().chain(long.lines()).find(|line| line.chars().count() > COLUMNS);
        assert_eq!(too_long, None, "in the help of {command:?}");
        let below = short.lines().skip_while(|line| *line != "Commands:").skip(1);
        let below = below.take_while(|line| !line.is_empty());
        let names = below.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        for name in names.filter(|name| !["", "help"].contains(name)) {
            left.push([&command[..], &[name.to_owned()]].concat());
        }
        found.push(command);
    }
    found
}

/// Replicas of clusters in this directory that run.
pub fn replicas_in(work: &Path) -> usize {
    let work = work.to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let command = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).ok();
    let lines =
        processes.filter_map(command).map(|line| String::from_utf8_lossy(&line).into_owned());
    lines.filter(|line| line.contains("replica") && line.contains(work)).count()
}

/// What a test draws from: `PERDURA_SEED`, which `make test` takes from the commit, so that a rerun repeats it.
pub fn seed() -> u64 {
    let given = std::env::var("PERDURA_SEED").ok();
    given.map_or(1, |text| text.parse().expect("PERDURA_SEED is a number"))
}

/// Of what takes long the one that the seed draws; all of it with `PERDURA_ALL=1`.
pub fn drawn<T: Copy>(all: &[T]) -> Vec<T> {
    if std::env::var_os("PERDURA_ALL").is_some() {
        return all.to_vec();
    }
    vec![all[(seed() % all.len() as u64) as usize]]
}
