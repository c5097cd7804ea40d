//! Whatever becomes of the output of a program, nothing else becomes of it.

use crate::common::{Cluster, Ran, program, send_signal, wait_for, wait_for_end};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

/// What `/metrics` of a replica says of its log.
fn lost_lines(cluster: &Cluster, id: usize) -> Option<u64> {
    let text = cluster.http(id, "/metrics")?;
    let line = text.lines().find_map(|line| line.strip_prefix("perdura_log_lines_lost_total "));
    Some(line.expect("a metric of lost lines").parse().unwrap())
}

/// One after the other nobody reads any more, there is no room, and nobody has read from the start; with a replica that is killed
/// there is something to log.
#[test]
fn a_replica_serves_whatever_becomes_of_its_log() {
    let mut cluster = Cluster::init(&["--crash", "1"]);
    let chatty = |cluster: &Cluster, id| {
        let config = cluster.path(&format!("replica-{id}/replica.toml"));
        let mut command = program();
        command.args(["replica", "--log-level", "trace", "--config"]).arg(config);
        command
    };
    let mut unread = Vec::new();
    for id in 0..3 {
        let mut command = chatty(&cluster, id);
        let stderr = match id {
            0 => Stdio::from(full()),
            _ => Stdio::piped(),
        };
        cluster.start_with(id, command.stdout(full()).stderr(stderr));
        unread.push(cluster.child(id).stderr.take());
    }
    cluster.run(&["kv", "put", "key", "before", "--timeout", "60s"]).ok();
    // Replica 1 loses who reads its log; nobody ever reads that of replica 2.
    let mut reader = unread[1].take().unwrap();
    reader.read_exact(&mut [0; 64]).unwrap();
    drop(reader);
    cluster.run(&["kv", "put", "key", "after", "--timeout", "60s"]).ok();
    cluster.kill(0);
    cluster.run(&["kv", "put", "key", "last", "--timeout", "60s"]).ok();
    assert_eq!(cluster.run(&["kv", "get", "key", "--timeout", "60s"]).ok(), "last\n");
    for id in [1, 2] {
        let lost = || lost_lines(&cluster, id).filter(|lost| id == 2 || *lost > 0);
        wait_for("lines that are lost", lost);
    }
    // Where whoever runs the tests ignores hangups, so does what they start.
    let last = if hangups_are_ignored() { "-INT" } else { "-HUP" };
    for id in [1, 2] {
        send_signal(cluster.child(id), if id == 1 { "-TERM" } else { last });
        assert_eq!(cluster.ended(id), Some(0), "replica {id}");
    }
}

fn hangups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
}

/// A command that fails says why to nobody, and ends.
#[test]
fn a_command_ends_though_its_standard_error_is_full_and_nobody_reads_it() {
    let (unread, mut writer) = std::io::pipe().unwrap();
    let full = writer.try_clone().unwrap();
    // It stands still when the pipe is full, till the end of the tests.
    std::thread::spawn(move || while writer.write_all(&[b'x'; 4096]).is_ok() {});
    let mut command = program();
    command.args(["kv", "get", "key", "--cluster", "/no/such/directory"]);
    let mut child = command.stdout(self::full()).stderr(full).spawn().unwrap();
    assert_eq!(wait_for_end(&mut child).code(), Some(1));
    drop(unread);
}

/// `nohup` has it ignored.
#[test]
fn a_hangup_that_is_ignored_stops_nothing() {
    let mut cluster = Cluster::init(&["--crash", "1"]);
    let replica = cluster.replica(0);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(replica.get_program());
    command.args(replica.get_args()).stdin(Stdio::null());
    cluster.start_as(0, command);
    wait_for("a replica", || cluster.log(0).contains("replica starts").then_some(()));
    send_signal(cluster.child(0), "-HUP");
    wait_for("an answer", || cluster.http(0, "/healthz"));
    send_signal(cluster.child(0), "-TERM");
    assert_eq!(wait_for_end(cluster.child(0)).code(), Some(0));
    assert!(!cluster.log(0).contains("SIGHUP"));
}

/// Those who hold connections open, or do not read what they asked for, keep no probe out.
#[test]
fn http_answers_beside_connections_that_are_held_open() {
    let mut cluster = Cluster::init(&["--crash", "1"]);
    cluster.start(0);
    wait_for("an answer", || cluster.http(0, "/status"));
    let address = cluster.http_address(0);
    let held: Vec<TcpStream> = (0..200)
        .map(|number| {
            let mut stream = TcpStream::connect(&address).unwrap();
            match number % 3 {
                0 => {}
                1 => stream.write_all(b"GET /metrics HT").unwrap(),
                _ => stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap(),
            }
            stream
        })
        .collect();
    assert!(cluster.http(0, "/metrics").is_some());
    drop(held);
}

/// With 120 files the disk has what it needs, and so have the members and who is known.
#[test]
fn a_replica_that_may_open_few_files_turns_strangers_away_and_serves() {
    let mut cluster = Cluster::init(&["--crash", "1"]);
    for id in 0..3 {
        let replica = cluster.replica(id);
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 120; exec \"$@\"", "sh"]).arg(replica.get_program());
        command.args(replica.get_args()).stdin(Stdio::null());
        cluster.start_as(id, command);
    }
    cluster.run(&["kv", "put", "key", "value", "--timeout", "60s"]).ok();
    let files = std::fs::read_to_string(cluster.path("cluster.toml")).unwrap();
    let addresses = files.lines().filter_map(|line| line.strip_prefix("address = "));
    let addresses: Vec<&str> = addresses.map(|address| address.trim_matches('"')).collect();
    let held: Vec<TcpStream> =
        (0..600).filter_map(|n| TcpStream::connect(addresses[n % 3]).ok()).collect();
    for number in 0..5 {
        let value = number.to_string();
        cluster.run(&["kv", "put", "key", &value, "--timeout", "60s"]).ok();
    }
    assert!((0..3).all(|id| cluster.log(id).contains("120 files open")));
    drop(held);
    for id in 0..3 {
        cluster.stop(id);
    }
}

/// Exit codes are those with somebody who reads.
#[test]
fn a_command_whose_words_nobody_takes_ends_as_it_does_else() {
    let cluster = Cluster::init(&["--crash", "1"]);
    let absent = cluster.path("absent").display().to_string();
    for arguments in [&["kv", "get", "key", "--cluster", &absent][..], &["unheard"], &["kv", "get"]]
    {
        let told = Ran::from(program().args(arguments).output().unwrap());
        let untold = program().args(arguments).stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(untold.code(), told.code, "{arguments:?}");
    }
}
