//! Tuple spaces from the command line, on clusters of real processes.

use crate::common::{Cluster, Ran, edit, program, send_signal, wait_for, wait_for_end};
use perdura_cluster::ServiceKind;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};

const TUPLES: &[&str] = &["--crash", "1", "--service", "tuples"];

#[test]
fn every_operation_works_from_the_command_line() {
    let cluster = Cluster::start_all(TUPLES);
    let space = |arguments: &[&str]| cluster.run(&[&["space"], arguments].concat());
    assert_eq!(space(&["create", "s", "--index", "2"]).ok(), "ok\n");
    space(&["create", "s"]).failed(4, &["there is a space named \"s\" already"]);
    assert_eq!(space(&["list"]).ok(), "s\n");
    assert_eq!(space(&["out", "s", r#"["job", 1, true]"#]).ok(), "1\n");
    assert_eq!(space(&["out", "s", r#"["job",2.0,{"b64":"/w=="}]"#]).ok(), "2\n");
    let any = r#"["job", null, null]"#;
    assert_eq!(space(&["rdp", "s", any]).ok(), "[\"job\",1,true]\n");
    let floats = r#"["job", {"type":"float"}, null]"#;
    assert_eq!(space(&["rd", "s", floats]).ok(), "[\"job\",2.0,{\"b64\":\"/w==\"}]\n");
    assert_eq!(space(&["rdall", "s", any, "--after", "1"]).ok().lines().count(), 1);
    assert_eq!(space(&["inp", "s", floats]).ok(), "[\"job\",2.0,{\"b64\":\"/w==\"}]\n");
    space(&["inp", "s", floats]).failed(3, &["no tuple matches"]);
    // Nobody inserts one.
    space(&["in", "s", floats, "--wait", "200ms"]).failed(3, &["no tuple matches"]);
    let cas = space(&["cas", "s", any, r#"["job",3,false]"#]);
    assert_eq!((cas.code, cas.out.as_str()), (Some(3), "[\"job\",1,true]\n"));
    assert_eq!(space(&["cas", "s", r#"["x"]"#, r#"["x"]"#, "--lease", "1h"]).ok(), "3\n");
    assert_eq!(space(&["renew", "s", "3", "--lease", "2h"]).ok(), "ok\n");
    space(&["renew", "s", "99"]).failed(3, &["no such tuple"]);
    assert_eq!(space(&["replace", "s", r#"["x"]"#, r#"["y"]"#]).ok(), "[\"x\"]\n");
    let all = space(&["inall", "s", r#"["y"]"#, "--json"]).ok();
    let expected =
        json!({"tuples": [{"number": 4, "expires_ms": null, "tuple": ["y"]}], "more": false});
    assert_eq!(serde_json::from_str::<Value>(&all).unwrap(), expected);
    let shown: Value = serde_json::from_str(&space(&["show", "s"]).ok()).unwrap();
    assert_eq!((&shown["tuples"], &shown["index_fields"]), (&json!(1), &json!(2)));
    // Leases as long as the contract says, and none.
    let long = ["outall", "s", r#"["z", 1]"#, r#"["z", 2]"#, "--lease", "3650d"];
    assert_eq!(space(&long).ok(), "5\n6\n");
    space(&["out", "s", r#"["z", 3]"#, "--lease", "3651d"]).failed(2, &["a lease has"]);
    space(&["out", "s", r#"["z", 3]"#, "--lease", "0"]).failed(2, &["a lease has"]);
    assert_eq!(space(&["renew", "s", "5", "--lease", "0"]).ok(), "ok\n");
    assert_eq!(space(&["rdall", "s", r#"["z", null]"#]).ok(), "[\"z\",2]\n");
    space(&["in", "s", r#"["z", 1]"#, "--wait", "2d"]).failed(2, &["a day is the most"]);
    let nobody = "00".repeat(32);
    assert_eq!(space(&["create", "closed", "--insert", &nobody]).ok(), "ok\n");
    space(&["out", "closed", "[1]"]).failed(4, &["refused", "access denied"]);
    assert_eq!(space(&["delete", "s"]).ok(), "ok\n");
    space(&["rdp", "s", any]).failed(4, &["refused", "no space named"]);
    space(&["out", "s", "[1"]).failed(2, &["the tuple is no JSON to go by"]);
    space(&["rdp", "s", "[[]]"]).failed(2, &["no field"]);
    space(&["out", "closed", "[1]", "--read", "me"]).failed(2, &["no public key"]);
    // The other service's commands say so.
    cluster.run(&["kv", "put", "a", "b"]).failed(1, &["runs tuple spaces", "perdura space"]);
    cluster.run(&["bench", "put"]).failed(1, &["runs tuple spaces"]);
}

#[test]
fn a_batch_waits_and_wakes() {
    let cluster = Cluster::start_all(TUPLES);
    cluster.run(&["space", "create", "s"]).ok();
    let mut command = cluster.command(&["space", "batch"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut send = |line: &str| writeln!(input, "{line}").unwrap();
    let mut receive = || {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "batch ended");
        serde_json::from_str::<Value>(&line).unwrap()
    };
    send(r#"{"id":"waits","op":"in","space":"s","template":["job",null],"wait_ms":3600000}"#);
    // What does not wait is not held up by it; and it has begun to wait when this says so.
    wait_for("a command that waits", || {
        send(r#"{"id":"show","op":"show","space":"s"}"#);
        let shown = receive();
        assert_eq!(shown["id"], "show");
        (shown["result"]["waiters"] == 1).then_some(())
    });
    send(r#"{"id":"out","op":"out","space":"s","tuple":["job",7]}"#);
    let mut answers = [receive(), receive()];
    answers.sort_by_key(|answer| answer["id"].to_string());
    let found = json!({"number": 1, "expires_ms": null, "tuple": ["job", 7]});
    assert_eq!(answers[0], json!({"id": "out", "outcome": "ok", "result": {"number": 1}}));
    assert_eq!(answers[1], json!({"id": "waits", "outcome": "ok", "result": {"found": found}}));
    for (line, outcome) in [
        (r#"{"op":"rdp","space":"none","template":[1]}"#, "refused"),
        (r#"{"op":"rdp","space":"s","template":7}"#, "refused"),
        (r#"{"op":"outall","space":"s","tuples":[[1],[2]]}"#, "ok"),
        (r#"{"op":"rd","space":"s","template":[9],"wait_ms":50}"#, "ok"),
    ] {
        send(line);
        assert_eq!(receive()["outcome"], outcome, "{line}");
    }
    drop(input);
    assert_eq!(wait_for_end(&mut child).code(), Some(0));
}

/// A wait that is told to stop is withdrawn, and takes nothing any more: one of a single command, and those of a batch.
#[test]
fn a_wait_ends_with_a_signal_and_takes_nothing() {
    let cluster = Cluster::start_all(TUPLES);
    let space = |arguments: &[&str]| cluster.run(&[&["space"], arguments].concat());
    space(&["create", "s"]).ok();
    let until_waiting = |count: u64| {
        wait_for("those who wait", || {
            let shown: Value = serde_json::from_str(&space(&["show", "s"]).ok()).unwrap();
            (shown["waiters"] == json!(count)).then_some(())
        });
    };
    let wait = ["space", "in", "s", r#"["job", null]"#, "--wait", "1h"];
    let mut one = cluster.command(&wait);
    let one = one.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut batch = cluster.command(&["space", "batch"]);
    let mut batch = batch.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let line = r#"{"id":1,"op":"in","space":"s","template":["job",null],"wait_ms":3600000}"#;
    writeln!(batch.stdin.as_mut().unwrap(), "{line}").unwrap();
    until_waiting(2);
    send_signal(&one, "-TERM");
    let one = Ran::from(one.wait_with_output().unwrap());
    one.failed(4, &["SIGTERM", "refused"]);
    until_waiting(1);
    send_signal(&batch, "-INT");
    assert_eq!(wait_for_end(&mut batch).code(), Some(130));
    let mut said = String::new();
    batch.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("refused") && said.lines().count() == 1, "{said}");
    until_waiting(0);
    space(&["out", "s", r#"["job", 7]"#]).ok();
    assert!(space(&["inp", "s", r#"["job", null]"#]).ok().contains('7'));
}

/// Whoever gets a signal as it is served says that it has the lock, or does not have it.
#[test]
fn what_is_handed_over_as_a_signal_comes_is_had_or_not() {
    let cluster = Cluster::start_all(TUPLES);
    let spaces = Spaces(&cluster);
    spaces.run(&["create", "s"]).ok();
    for round in 0..6 {
        let lock = spaces.run(&["claim", "s", r#"["lock","first"]"#]).ok();
        let waiter = spaces.begin(&["claim", "s", r#"["lock","second"]"#, "--wait", "1h"], 0);
        let mut release = cluster.command(&["space", "break", "s", lock.trim()]);
        let mut release = release.stdout(Stdio::piped()).spawn().unwrap();
        // Before it, with it, or behind it.
        if round % 2 == 0 {
            release.wait().unwrap();
        }
        send_signal(&waiter, if round % 3 == 0 { "-TERM" } else { "-INT" });
        release.wait().unwrap();
        let told = Ran::from(waiter.wait_with_output().unwrap());
        match told.code {
            Some(0) => assert_eq!(spaces.run(&["break", "s", told.out.trim()]).ok(), "removed\n"),
            _ => told.failed(4, &["SIG", "refused"]),
        }
        let next = spaces.run(&["claim", "s", r#"["lock","third"]"#, "--wait", "0"]).ok();
        spaces.run(&["break", "s", next.trim()]).ok();
    }
}

/// Commands on a cluster's tuple spaces.
struct Spaces<'a>(&'a Cluster);

impl Spaces<'_> {
    fn run(&self, arguments: &[&str]) -> Ran {
        self.0.run(&[&["space"], arguments].concat())
    }

    /// Begins one that waits in the space s, where so many wait already, and waits until it does.
    #[track_caller]
    fn begin(&self, arguments: &[&str], waiting: u64) -> Child {
        let mut command = self.0.command(&[&["space"], arguments].concat());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for("a command to wait", || {
            let shown: Value = serde_json::from_str(&self.run(&["show", "s"]).ok()).unwrap();
            (shown["waiters"] == json!(waiting + 1)).then_some(())
        });
        child
    }
}

/// What a child says that succeeds.
#[track_caller]
fn said(mut child: Child) -> String {
    assert_eq!(wait_for_end(&mut child).code(), Some(0));
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_is_had_for_a_time_works_from_the_command_line() {
    let cluster = Cluster::start_all(TUPLES);
    let spaces = Spaces(&cluster);
    spaces.run(&["create", "s"]).ok();
    // A lock, and who waits for it.
    let first = spaces.run(&["claim", "s", r#"["lock","ada"]"#, "--lease", "1h"]).ok();
    assert_eq!(first, "1\n");
    let again = ["claim", "s", r#"["lock","bob"]"#, "--wait", "0"];
    spaces.run(&again).failed(3, &["another tuple begins alike"]);
    let next = spaces.begin(&["claim", "s", r#"["lock","bob"]"#, "--wait", "1h"], 0);
    let other = spaces.begin(&["in", "s", r#"["lock",7]"#, "--wait", "1h"], 1);
    let waits = spaces.run(&["waits", "s"]).ok();
    let lines: Vec<Vec<&str>> = waits.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(
        lines.iter().map(|line| line[4..].to_vec()).collect::<Vec<_>>(),
        [["claim", r#"["lock",null]"#], ["take", r#"["lock",7]"#],]
    );
    let of_other = ["endwait", "s", lines[1][1], lines[1][2], lines[1][3]];
    assert_eq!(spaces.run(&of_other).ok(), "ok\n");
    spaces.run(&of_other).failed(3, &["no such command waits"]);
    let ended = Ran::from(other.wait_with_output().unwrap());
    ended.failed(4, &["ended by an operator"]);
    assert_eq!(spaces.run(&["break", "s", "1"]).ok(), "removed\n");
    spaces.run(&["break", "s", "1"]).failed(3, &["no such tuple"]);
    let number = said(next);
    assert_eq!(spaces.run(&["renew", "s", number.trim(), "--lease", "0"]).ok(), "ok\n");
    // Jobs.
    spaces.run(&["outall", "s", r#"["job",1]"#, r#"["job",2]"#]).ok();
    let lease = ["lease", "s", r#"["job",null]"#, "--lease", "1h"];
    let leased = spaces.run(&lease).ok();
    let (number, token) = match leased.trim_end().split(' ').collect::<Vec<_>>()[..] {
        [number, token, r#"["job",1]"#] => (number, token),
        _ => panic!("{leased}"),
    };
    let second: Value =
        serde_json::from_str(&spaces.run(&[&lease[..], &["--json"]].concat()).ok()).unwrap();
    assert_eq!(
        (&second["leased"]["tuple"], &second["leased"]["before"]),
        (&json!(["job", 2]), &json!(0))
    );
    spaces.run(&[&lease[..], &["--wait", "0"]].concat()).failed(3, &["no tuple matches"]);
    assert_eq!(spaces.run(&["extend", "s", number, token, "--lease", "2h"]).ok(), "ok\n");
    spaces.run(&["done", "s", number, "99"]).failed(3, &["no such lease"]);
    assert_eq!(spaces.run(&["done", "s", number, token]).ok(), "ok\n");
    spaces.run(&["return", "s", number, token]).failed(3, &["no such lease"]);
    let waits = spaces.begin(&lease, 0);
    let number = second["leased"]["number"].to_string();
    assert_eq!(spaces.run(&["break", "s", &number]).ok(), "returned\n");
    assert!(said(waits).ends_with("[\"job\",2]\n"));
    // Counters.
    assert_eq!(spaces.run(&["add", "s", r#"["hits"]"#, "5"]).ok(), "5\n");
    assert_eq!(spaces.run(&["add", "s", r#"["hits"]"#, "-7"]).ok(), "-2\n");
    let most = i64::MIN.to_string();
    spaces.run(&["add", "s", r#"["hits"]"#, &most]).failed(4, &["64 bits"]);
    spaces.run(&["lease", "s", "[1]", "--lease", "0"]).failed(2, &["a lease has"]);
    spaces.run(&["claim", "s", "[1]", "--key", "2"]).failed(2, &["the key of a claim"]);
    spaces.run(&["claim", "s", "[1]", "--wait", "2d"]).failed(2, &["a day is the most"]);
}

#[test]
fn a_batch_has_claims_leases_and_counters() {
    let cluster = Cluster::start_all(TUPLES);
    cluster.run(&["space", "create", "s"]).ok();
    let batch = |lines: &[&str]| -> Vec<Value> {
        let mut command = cluster.command(&["space", "batch", "--in-flight", "1"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "{}", lines.join("\n")).unwrap();
        drop(input);
        let answers = said(child);
        let answers = answers.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        answers.map(|answer| answer["result"].clone()).collect()
    };
    let answers = batch(&[
        r#"{"op":"claim","space":"s","tuple":["lock",1],"lease_ms":60000}"#,
        r#"{"op":"claim","space":"s","tuple":["lock",2],"wait_ms":50}"#,
        r#"{"op":"claim","space":"s","tuple":["lock",2],"key":2}"#,
        r#"{"op":"out","space":"s","tuple":["job"]}"#,
        r#"{"op":"lease","space":"s","template":["job"],"lease_ms":60000}"#,
        r#"{"op":"lease","space":"s","template":["job"],"lease_ms":60000,"wait_ms":50}"#,
        r#"{"op":"extend","space":"s","number":3,"token":1,"lease_ms":60000}"#,
        r#"{"op":"return","space":"s","number":3,"token":1}"#,
        r#"{"op":"done","space":"s","number":3,"token":1}"#,
        r#"{"op":"add","space":"s","fields":["hits"],"amount":-7}"#,
        r#"{"op":"waits","space":"s"}"#,
        r#"{"op":"break","space":"s","number":1}"#,
    ]);
    assert_eq!((&answers[0], &answers[1]), (&json!({"number": 1}), &json!({"found": null})));
    assert_eq!(answers[2], json!({"number": 2}));
    let leased = &answers[4]["leased"];
    assert_eq!((&leased["number"], &leased["token"]), (&json!(3), &json!(1)));
    assert_eq!(answers[5], json!({"leased": null}));
    assert_eq!(answers[6]["held"], true);
    assert_eq!((&answers[7]["held"], &answers[8]["held"]), (&json!(true), &json!(false)));
    assert_eq!(answers[9]["value"], -7);
    assert_eq!(answers[10], json!({"waits": [], "more": false}));
    assert_eq!(answers[11], json!({"broken": "removed"}));
    let nobodys = format!(
        r#"{{"op":"endwait","space":"s","client":"{}","session":1,"number":1}}"#,
        "00".repeat(32)
    );
    assert_eq!(batch(&[nobodys.as_str()]), [json!({"ended": false})]);
}

/// A lock is not handed to a process that is gone, for all of a lease: it is the next one's.
#[test]
fn a_killed_waiter_does_not_keep_a_lock_from_the_next_one() {
    let cluster = Cluster::start_all(TUPLES);
    let spaces = Spaces(&cluster);
    spaces.run(&["create", "s"]).ok();
    let held = spaces.run(&["claim", "s", r#"["lock","h"]"#, "--lease", "20s"]).ok();
    let claim = |name: &str, waiting: u64| {
        let tuple = json!(["lock", name]).to_string();
        spaces.begin(&["claim", "s", &tuple, "--lease", "1h", "--wait", "1h"], waiting)
    };
    let (killed, next) = (claim("w1", 0), claim("w2", 1));
    kill(killed);
    assert_eq!(spaces.run(&["renew", "s", held.trim(), "--lease", "0"]).ok(), "ok\n");
    let number = said(next);
    assert!(number.trim().parse::<u64>().unwrap() > held.trim().parse().unwrap());
    assert_eq!(spaces.run(&["rdp", "s", r#"["lock",null]"#]).ok(), "[\"lock\",\"w2\"]\n");
}

/// A tuple is not handed to a process that is gone: it stays, for the next one.
#[test]
fn a_killed_taker_loses_no_tuple() {
    let cluster = Cluster::start_all(TUPLES);
    let spaces = Spaces(&cluster);
    spaces.run(&["create", "s"]).ok();
    let job = r#"["job",null]"#;
    kill(spaces.begin(&["in", "s", job, "--wait", "1h"], 0));
    spaces.run(&["out", "s", r#"["job",7]"#]).ok();
    assert_eq!(spaces.run(&["in", "s", job, "--wait", "1m"]).ok(), "[\"job\",7]\n");
}

#[test]
fn a_cluster_under_older_rules_says_what_to_do_and_is_upgraded() {
    let mut cluster = Cluster::init_under(ServiceKind::TupleSpaces, 1);
    for id in 0..cluster.len() {
        cluster.start(id);
    }
    cluster.wait_until_active();
    let spaces = Spaces(&cluster);
    spaces.run(&["create", "s"]).ok();
    spaces.run(&["cas", "s", r#"["lock",null]"#, r#"["lock",1]"#]).ok();
    let claim = ["claim", "s", r#"["lock",2]"#, "--wait", "0"];
    spaces.run(&claim).failed(4, &["needs version 2 of the tuple spaces", "perdura upgrade"]);
    let raised = cluster.run(&["upgrade", "--yes"]).ok();
    assert!(raised.contains("service 3"), "{raised}");
    spaces.run(&claim).failed(3, &["another tuple begins alike"]);
    spaces.run(&["inp", "s", r#"["lock",1]"#]).ok();
    assert_eq!(spaces.run(&claim).ok(), "2\n");
}

#[test]
fn the_service_of_a_cluster_is_fixed() {
    let mut cluster = Cluster::init(&["--crash", "1"]);
    cluster.run(&["space", "list"]).failed(1, &["runs the key-value store", "perdura kv"]);
    edit(&cluster.path("cluster.toml"), "service = \"kv\"", "service = \"tuples\"");
    let refused = Ran::from(cluster.replica(0).output().unwrap());
    refused.failed(1, &["the parameters in cluster.toml", "and the service, are fixed"]);
    edit(&cluster.path("cluster.toml"), "service = \"tuples\"", "service = \"kv\"");
    for id in 0..cluster.len() {
        cluster.start(id);
    }
    assert_eq!(cluster.run(&["kv", "put", "a", "b"]).ok(), "ok\n");
}

#[test]
fn dev_runs_tuple_spaces_and_goes_on_with_them() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("dev");
    let dev = |arguments: &[&str]| {
        let mut command = program();
        command.arg("dev").arg(&dir).arg("--once").args(arguments);
        Ran::from(command.output().unwrap())
    };
    let first = dev(&["--crash", "1", "--service", "tuples"]).ok();
    assert!(first.contains("inserted a tuple and took it back"), "{first}");
    let again = dev(&[]).ok();
    assert!(again.contains("going on") && again.contains("took it back"), "{again}");
    dev(&["--service", "kv"]).failed(1, &["with service tuples, which cannot be changed"]);
}
