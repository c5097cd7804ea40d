//! Clusters of real processes on real disks and sockets.

use crate::common::{Cluster, Ran, edit, program, run, send_signal, wait_for, wait_for_end};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A `kv batch` that is fed while it runs.
struct Batch {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Batch {
    fn start(cluster: &Cluster, arguments: &[&str]) -> Batch {
        let mut command = cluster.command(&["kv", "batch"]);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Batch { child, input, output }
    }

    fn send(&mut self, line: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "batch ended");
        serde_json::from_str(&line).unwrap()
    }

    fn ask(&mut self, line: &Value) -> Value {
        self.send(line);
        self.receive()
    }

    /// No more lines; the rest of the answers.
    fn finish(mut self) -> Vec<Value> {
        drop(self.input.take());
        let lines = self.output.lines();
        let rest = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
        assert_eq!(wait_for_end(&mut self.child).code(), Some(0));
        rest
    }
}

#[test]
fn the_tour_write_kill_the_leader_write_on_and_restart_it() {
    let mut cluster = Cluster::start_all(&["--byzantine", "1"]);
    assert_eq!(cluster.run(&["kv", "put", "hello", "world"]).ok(), "ok\n");
    assert_eq!(cluster.run(&["kv", "get", "hello"]).ok(), "world\n");
    let status = cluster.wait_until_active();
    for (id, replica) in status.iter().enumerate() {
        assert_eq!((&replica["id"], &replica["reachable"]), (&json!(id), &json!(true)));
        assert_eq!(replica["pid"], json!(cluster.child(id).id()));
        for number in ["view", "decided", "executed", "logged"] {
            assert!(replica[number].is_u64(), "{number} in {replica}");
        }
    }
    let leader = cluster.leader();
    cluster.kill(leader);
    assert_eq!(cluster.run(&["kv", "put", "hello", "again", "--timeout", "30s"]).ok(), "ok\n");
    assert_eq!(cluster.run(&["kv", "get", "hello", "--fast"]).ok(), "again\n");
    assert_ne!(cluster.leader(), leader);
    let status = wait_for("status", || {
        let status = cluster.run(&["status"]);
        (status.code == Some(0)).then_some(status.out)
    });
    assert!(status.contains("unreachable") && status.contains("leader"), "{status}");

    cluster.start(leader);
    cluster.wait_until_active();
    cluster.wait_until_level();
    for id in 0..4 {
        cluster.stop(id);
    }
    for id in 0..4 {
        cluster.start(id);
    }
    assert_eq!(cluster.run(&["kv", "get", "hello", "--timeout", "30s"]).ok(), "again\n");
}

#[test]
fn scripts_can_tell_outcomes_apart() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.run(&["kv", "put", "a", "1", "--timeout", "30s"]).ok();
    let said = |ran: &Ran| ran.out.trim().to_owned();
    // It was carried out, and the answer is no.
    let absent = cluster.run(&["kv", "get", "nokey", "--json"]);
    assert_eq!((absent.code, said(&absent).as_str()), (Some(3), r#"{"value":null}"#));
    let lost = cluster.run(&["kv", "cas", "a", "2", "--expect", "9", "--json"]);
    assert_eq!((lost.code, said(&lost).as_str()), (Some(3), r#"{"committed":false}"#));
    // Whatever would not count is not passed over.
    let twice = r#"[{"write":{"key":"a","value":"2"},"write":{"key":"b","value":"2"}}]"#;
    cluster.run(&["kv", "txn", twice]).failed(2, &["\"write\" stands there twice"]);
    // It was not sent, for certain.
    cluster.kill_all();
    for command in [&["kv", "put", "a", "3"][..], &["kv", "get", "a"]] {
        let refused = cluster.run(&[command, &["--timeout", "500ms", "--json"]].concat());
        refused.failed(4, &["no replica reachable"]);
        assert!(said(&refused).starts_with(r#"{"error":"refused"#), "{refused:?}");
        assert!(said(&refused).ends_with(r#""outcome":"refused"}"#), "{refused:?}");
    }
}

#[test]
fn what_is_exported_is_imported() {
    let cluster = Cluster::start_all(&["--crash", "1"]);
    // More than one page of bytes, and keys and values of any bytes.
    for key in ["a", "b", "c"] {
        let file = cluster.path(key).display().to_string();
        std::fs::write(&file, key.repeat(600_000)).unwrap();
        let text = std::fs::File::open(&file).unwrap();
        let mut put = program();
        put.args(["kv", "put", key, "-", "--timeout", "30s", "--cluster"]).arg(cluster.dir());
        assert!(put.stdin(text).status().unwrap().success());
    }
    cluster.run(&["kv", "put", "--base64", "/w==", "/v8="]).ok();
    let (all, other) = (cluster.path("all.jsonl"), cluster.path("other.jsonl"));
    let (out, again) = (all.display().to_string(), other.display().to_string());
    let done = cluster.run(&["kv", "export", "--out", &out]);
    assert!(done.error.contains("4 entries exported, 1.7 MiB"), "{done:?}");
    let text = std::fs::read_to_string(&all).unwrap();
    assert_eq!(text.lines().count(), 4);
    let last = r#"{"key":{"b64":"/w=="},"op":"put","value":{"b64":"/v8="}}"#;
    assert_eq!(text.lines().last(), Some(last));
    assert_eq!(cluster.run(&["kv", "export"]).ok(), text);
    let b: String = text.lines().filter(|line| line.contains(r#""key":"b""#)).collect();
    assert_eq!(cluster.run(&["kv", "export", "--prefix", "b"]).ok(), b + "\n");
    assert_eq!(cluster.run(&["kv", "count"]).ok(), "4\n");
    assert_eq!(cluster.run(&["kv", "count", "--start", "b", "--end", "c"]).ok(), "1\n");
    assert_eq!(cluster.run(&["kv", "scan", "--prefix", "b", "--keys-only"]).ok(), "b\n");
    assert_eq!(cluster.run(&["kv", "get", "a", "--raw"]).ok().len(), 600_000);
    // Interrupted, it goes on, and overwrites nothing unasked.
    cluster.run(&["kv", "export", "--out", &out]).failed(1, &["nothing is overwritten"]);
    std::fs::write(&other, &text[..text.len() - 700_000]).unwrap();
    cluster.run(&["kv", "export", "--out", &again, "--resume"]).ok();
    assert_eq!(std::fs::read_to_string(&other).unwrap(), text);

    let delete = |more: &[&str]| cluster.run(&[&["kv", "delete-range"], more].concat());
    delete(&["--end", "z"]).failed(1, &["nothing was changed: 3 entries are meant", "--yes"]);
    assert!(delete(&["--end", "z", "--dry-run"]).ok().contains("3 entries would be removed"));
    assert_eq!(delete(&["--end", "z", "--yes"]).ok(), "3 entries are removed\n");
    assert_eq!(cluster.run(&["kv", "count"]).ok(), "1\n");
    // Line 3 is none: those before it are written, and it goes on from there.
    let broken = text.replacen(r#""op":"put","value":"c"#, r#""op":"set","value":"c"#, 1);
    std::fs::write(&other, broken).unwrap();
    let import = cluster.run(&["kv", "import", &again]);
    import.failed(1, &["line 3 is not written", "set", "--from-line 3 goes on"]);
    assert_eq!(cluster.run(&["kv", "get", "b"]).ok().len(), 600_001);
    cluster.run(&["kv", "get", "c"]).failed(3, &[]);
    let done = cluster.run(&["kv", "import", &out, "--from-line", "3"]);
    assert!(done.error.contains("2 entries imported"), "{done:?}");
    done.ok();
    assert_eq!(cluster.run(&["kv", "export"]).ok(), text);
    cluster.run(&["kv", "import", &out, "--from-line", "9"]).failed(2, &["there are 4 lines"]);
    // A signal ends it behind what is under way, and it says where it goes on.
    let mut import = cluster.command(&["kv", "import", "-"]);
    import.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut import = import.spawn().unwrap();
    let lines = b"\n{\"op\":\"put\",\"key\":\"d\",\"value\":\"1\"}\n";
    // Open to the end: the end of what it reads ends it too.
    let mut stdin = import.stdin.take().unwrap();
    stdin.write_all(lines).unwrap();
    wait_for("a line to be written", || {
        (cluster.run(&["kv", "get", "d"]).code == Some(0)).then_some(())
    });
    send_signal(&import, "-INT");
    let words = ["SIGINT", "1 entries imported", "--from-line 3 goes on"];
    Ran::from(import.wait_with_output().unwrap()).failed(130, &words);
    drop(stdin);

    // More bytes at once than replicas keep of replies.
    let mut batch = Batch::start(&cluster, &[]);
    for id in 0..64 {
        batch.send(&json!({"id": id, "op": "get", "key": "a"}));
    }
    for _ in 0..64 {
        assert_eq!(batch.receive()["outcome"], "ok");
    }
}

#[test]
fn every_operation_of_the_store_works_from_the_command_line() {
    let cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.run(&["kv", "get", "a"]).failed(3, &["no such key"]);
    cluster.run(&["kv", "cas", "a", "1", "--absent"]).ok();
    cluster.run(&["kv", "cas", "a", "2", "--absent"]).failed(3, &["not committed"]);
    cluster.run(&["kv", "cas", "a", "2", "--expect", "1"]).ok();
    cluster.run(&["kv", "put", "b", "-1"]).ok();
    assert_eq!(cluster.run(&["kv", "scan"]).ok(), "a\t2\nb\t-1\n");
    let scan = cluster.run(&["kv", "scan", "--limit", "1", "--reverse", "--fast"]);
    assert!(scan.error.contains("there is more; go on with --after=b"), "{scan:?}");
    assert_eq!(scan.ok(), "b\t-1\n");
    assert_eq!(cluster.run(&["kv", "scan", "--after", "a"]).ok(), "b\t-1\n");
    assert_eq!(cluster.run(&["kv", "scan", "--after", "b", "--reverse"]).ok(), "a\t2\n");
    cluster.run(&["kv", "scan", "--after", "a", "--start", "a"]).failed(2, &["--start"]);
    let txn = r#"[{"cmp":{"key":"a","value":"2"}},{"delete":"a"},{"read":"b"}]"#;
    let results = r#"{"committed":true,"results":[{},{"deleted":true},{"value":"-1"}]}"#;
    assert_eq!(cluster.run(&["kv", "txn", txn]).ok().trim(), results);
    cluster.run(&["kv", "txn", txn]).failed(3, &["operation 0"]);
    assert_eq!(cluster.run(&["kv", "del", "b"]).ok(), "deleted\n");
    assert_eq!(cluster.run(&["kv", "del", "b", "--json"]).ok(), "{\"deleted\":false}\n");
    cluster.run(&["kv", "put", "--base64", "/w==", "/v8="]).ok();
    assert_eq!(cluster.run(&["kv", "get", "--base64", "/w=="]).ok(), "/v8=\n");
    let scan = cluster.run(&["kv", "scan", "--json"]).ok();
    let entries = r#"{"entries":[{"key":{"b64":"/w=="},"value":{"b64":"/v8="}}],"more":false}"#;
    assert_eq!(
        serde_json::from_str::<Value>(&scan).unwrap(),
        serde_json::from_str::<Value>(entries).unwrap()
    );
}

#[test]
fn a_batch_answers_every_line_as_promised() {
    let cluster = Cluster::start_all(&["--byzantine", "1"]);
    let mut batch = Batch::start(&cluster, &["--in-flight", "8"]);
    for (line, answer) in [
        (
            json!({"id": 1, "op": "put", "key": "a", "value": "x"}),
            json!({"id": 1, "outcome": "ok", "result": {}}),
        ),
        (
            json!({"id": "two", "op": "get", "key": "a"}),
            json!({"id": "two", "outcome": "ok", "result": {"value": "x"}}),
        ),
        (
            json!({"id": [3], "op": "get", "key": {"b64": "AP8="}}),
            json!({"id": [3], "outcome": "ok", "result": {"value": null}}),
        ),
        (
            json!({"op": "cas", "key": "a", "expect": null, "value": "y"}),
            json!({"id": null, "outcome": "ok", "result": {"committed": false}}),
        ),
        (
            json!({"id": 5, "op": "scan", "start": "a", "end": "b", "limit": 5}),
            json!({"id": 5, "outcome": "ok",
                "result": {"entries": [{"key": "a", "value": "x"}], "more": false}}),
        ),
        (
            json!({"id": 6, "op": "txn", "ops": [{"insert": {"key": "a", "value": "z"}}]}),
            json!({"id": 6, "outcome": "ok", "result": {"committed": false, "failed": 0}}),
        ),
        (
            json!({"id": 7, "op": "del", "key": "a"}),
            json!({"id": 7, "outcome": "ok", "result": {"deleted": true}}),
        ),
    ] {
        assert_eq!(batch.ask(&line), answer, "{line}");
    }
    for (line, id, word) in [
        ("{", json!(null), "line 8"),
        (r#"{"id":9,"op":"put","key":"a"}"#, json!(9), "line 9: missing field `value`"),
        (r#"{"id":10,"op":"get","key":""}"#, json!(10), "a key has 1 to"),
    ] {
        writeln!(batch.input.as_mut().unwrap(), "{line}").unwrap();
        let answer = batch.receive();
        assert_eq!((&answer["id"], &answer["outcome"]), (&id, &json!("refused")));
        assert!(answer["error"].as_str().unwrap().contains(word), "{answer}");
    }
    assert!(batch.finish().is_empty());
}

#[test]
fn what_was_acknowledged_survives_kill_9_of_all_replicas_under_load() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    let mut batch = Batch::start(&cluster, &["--in-flight", "32", "--timeout", "60s"]);
    let line = |id: u64| json!({"id": id, "op": "put", "key": format!("k{id}"), "value": "v"});
    let mut answers: Vec<Value> = Vec::new();
    for round in 0..3 {
        // So few that the pipes hold them.
        for id in round * 200..(round + 1) * 200 {
            batch.send(&line(id));
        }
        // Some of them are answered, others in flight.
        while answers.len() < round as usize * 200 + 50 {
            answers.push(batch.receive());
        }
        cluster.kill_all();
        for id in 0..3 {
            cluster.start(id);
        }
        while answers.len() < (round as usize + 1) * 200 {
            answers.push(batch.receive());
        }
    }
    assert!(batch.finish().is_empty());
    let ok: Vec<&Value> = answers.iter().filter(|answer| answer["outcome"] == "ok").collect();
    assert!(ok.len() >= 150, "only {} ok: {:?}", ok.len(), answers.last());
    let scan = cluster.run(&["kv", "scan", "--json", "--timeout", "30s"]).ok();
    let scan: Value = serde_json::from_str(&scan).unwrap();
    let entries = scan["entries"].as_array().unwrap();
    let keys: std::collections::BTreeSet<&str> =
        entries.iter().filter_map(|entry| entry["key"].as_str()).collect();
    for answer in ok {
        let key = format!("k{}", answer["id"]);
        assert!(keys.contains(key.as_str()), "{key} was acknowledged and is gone");
    }
}

#[test]
fn a_batch_without_a_cluster_answers_by_its_timeout_and_says_that_nothing_happened() {
    let mut cluster = Cluster::init(&["--crash", "1"]);
    let mut batch = Batch::start(&cluster, &["--timeout", "300ms"]);
    let answer = batch.ask(&json!({"id": 1, "op": "put", "key": "a", "value": "x"}));
    assert_eq!(answer["outcome"], "refused", "{answer}");
    for id in 0..3 {
        cluster.start(id);
    }
    // It finds them by itself.
    wait_for("an answer", || {
        let answer = batch.ask(&json!({"id": 2, "op": "get", "key": "a"}));
        (answer["outcome"] == "ok").then(|| assert_eq!(answer["result"]["value"], Value::Null))
    });
    assert!(batch.finish().is_empty());
}

#[test]
fn a_replica_that_lost_its_disk_is_replaced() {
    let mut cluster = Cluster::start_all(&["--byzantine", "1"]);
    cluster.run(&["kv", "put", "hello", "world"]).ok();
    let dir = cluster.dir().display().to_string();
    let reinit = ["replica", "reinit", "--cluster", &dir, "--id", "3"];
    run(&[&reinit[..], &["--yes"]].concat()).failed(1, &["in use by another process"]);
    let former = std::fs::read_to_string(cluster.path("replica-3/replica.toml")).unwrap();
    cluster.kill(3);
    std::fs::remove_dir_all(cluster.path("replica-3/data")).unwrap();

    // Interrupted: nobody answers.
    cluster.kill_all();
    let interrupted = [&reinit[..], &["--timeout", "200ms", "--force"]].concat();
    run(&interrupted).failed(1, &["not replaced yet", "run the command again"]);
    let pending = std::fs::read_to_string(cluster.path("replica-3/replica.toml.pending")).unwrap();
    // What comes after it knows only what it did itself.
    let refused = run(&[&reinit[..], &["--timeout", "200ms"]].concat());
    refused.failed(1, &["this run changed nothing", "may have replaced the replica already"]);
    for id in 0..3 {
        cluster.start(id);
    }
    assert!(run(&reinit).ok().contains("incarnation 1"));
    let latter = std::fs::read_to_string(cluster.path("replica-3/replica.toml")).unwrap();
    assert_eq!(latter, pending);
    assert_ne!(latter, former);
    assert!(!cluster.path("replica-3/replica.toml.pending").exists());

    cluster.start(3);
    cluster.wait_until_active();
    // It counts: without another one, three are left, the new one among them.
    cluster.kill(0);
    cluster.run(&["kv", "put", "hello", "again", "--timeout", "30s"]).ok();
    assert_eq!(cluster.run(&["kv", "get", "hello"]).ok(), "again\n");
    // The former one is told from the new one.
    cluster.stop(3);
    std::fs::write(cluster.path("replica-3/replica.toml"), former).unwrap();
    let ran: Ran = cluster.replica(3).output().unwrap().into();
    ran.failed(1, &["not those of replica 3"]);
}

#[test]
fn a_replacement_moves_what_is_there_aside() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.run(&["kv", "put", "hello", "world"]).ok();
    cluster.stop(1);
    let out = cluster.run(&["replica", "reinit", "--id", "1"]).ok();
    assert!(out.contains("data.old-0"), "{out}");
    assert!(cluster.path("replica-1/data.old-0/superblock").exists());
    cluster.start(1);
    cluster.wait_until_active();
    // The others start again from the same files.
    cluster.stop(0);
    cluster.start(0);
    cluster.wait_until_active();
    cluster.kill(2);
    assert_eq!(cluster.run(&["kv", "get", "hello", "--timeout", "30s"]).ok(), "world\n");
}

/// Found by chaos: it knew the others by their first keys only, refused the replaced one, and
/// waited for ever for a second signature on a state.
#[test]
fn a_replica_whose_checkpoints_rot_gets_a_state_from_one_that_was_replaced_before() {
    let mut cluster = Cluster::start_all(&["--crash", "1", "--checkpoint-interval", "64"]);
    let fill = |cluster: &Cluster| {
        let mut batch = Batch::start(cluster, &["--in-flight", "1"]);
        for number in 0..200 {
            batch.ask(&json!({"op": "put", "key": format!("k{}", number % 9), "value": "v"}));
        }
        batch.finish();
    };
    fill(&cluster);
    cluster.stop(2);
    cluster.run(&["replica", "reinit", "--id", "2"]).ok();
    cluster.start(2);
    cluster.wait_until_active();
    fill(&cluster);
    cluster.wait_until_level();
    cluster.stop(0);
    let checkpoints = std::fs::read_dir(cluster.path("replica-0/data/checkpoint")).unwrap();
    let mut rotten = 0;
    for file in checkpoints {
        let path = file.unwrap().path();
        let mut content = std::fs::read(&path).unwrap();
        content[600] ^= 1;
        std::fs::write(&path, content).unwrap();
        rotten += 1;
    }
    assert!(rotten > 1);
    cluster.start(0);
    cluster.wait_until_active();
    assert!(cluster.log(0).contains("the state comes from peers"), "{}", cluster.log(0));
    // It counts.
    cluster.kill(1);
    cluster.run(&["kv", "put", "hello", "world", "--timeout", "30s"]).ok();
}

#[test]
fn client_keys_come_and_go_without_a_restart() {
    let cluster = Cluster::start_all(&["--byzantine", "1"]);
    cluster.run(&["client", "add", "bob"]).ok();
    let bob = cluster.path("client-bob.toml").display().to_string();
    cluster.run(&["kv", "put", "a", "x", "--client", &bob]).ok();
    cluster.run(&["client", "add", "bob"]).failed(1, &["nothing is overwritten"]);
    let elsewhere = cluster.path("elsewhere.toml").display().to_string();
    let again = cluster.run(&["client", "add", "bob", "--key-out", &elsewhere]);
    again.failed(1, &["\"bob\" is registered already"]);
    assert!(!cluster.path("elsewhere.toml.pending").exists());
    cluster.run(&["client", "revoke", "bob"]).ok();
    cluster.run(&["client", "revoke", "bob"]).failed(1, &["no client named \"bob\""]);
    let put = cluster.run(&["kv", "put", "a", "y", "--client", &bob, "--timeout", "2s"]);
    put.failed(4, &["refused", "not registered"]);
    assert_eq!(cluster.run(&["kv", "get", "a"]).ok(), "x\n");
}

#[test]
fn a_client_of_another_cluster_is_told_so_by_the_replicas() {
    let cluster = Cluster::start_all(&["--crash", "1"]);
    // The replicas have read it by then.
    cluster.wait_until_active();
    edit(&cluster.path("cluster.toml"), "cluster = \"", "cluster = \"00");
    let text = std::fs::read_to_string(cluster.path("cluster.toml")).unwrap();
    let id = text.lines().find_map(|line| line.strip_prefix("cluster = \"")).unwrap();
    let id = id.trim_end_matches('"');
    edit(&cluster.path("cluster.toml"), id, &id[..32]);
    let put = cluster.run(&["kv", "put", "a", "x", "--timeout", "2s"]);
    put.failed(4, &["refused", "cluster"]);
    assert!(put.error.contains(&id[..32]) || put.error.contains("another cluster"), "{put:?}");
}

#[test]
fn rot_in_the_log_is_found_and_named() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    let mut batch = Batch::start(&cluster, &[]);
    for id in 0..50 {
        let put = json!({"id": id, "op": "put", "key": format!("{id}"), "value": "x"});
        assert_eq!(batch.ask(&put)["outcome"], "ok");
    }
    batch.finish();
    cluster.wait_until_level();
    cluster.stop(2);
    let data = cluster.path("replica-2/data").display().to_string();
    let listing = run(&["inspect", "log", &data]).ok();
    assert!(listing.contains("vote for slot 3") && !listing.contains("FAILS"), "{listing}");
    // A vote in the middle of the log, in the bytes of its batch.
    let votes: Vec<&str> = listing.lines().filter(|line| line.contains("vote for slot ")).collect();
    let vote = votes[votes.len() / 2];
    let offset: usize = vote.trim().split(':').next().unwrap().parse().unwrap();
    let file = std::fs::read_dir(cluster.path("replica-2/data/log"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.to_string_lossy().contains("free"))
        .min()
        .unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[offset + 40] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let inspected = run(&["inspect", "log", &data]);
    inspected.failed(1, &["not everything verifies"]);
    assert!(inspected.out.contains("CHECKSUM FAILS"));

    // What is lost is known to be decided: it comes back from the others, loudly.
    cluster.start(2);
    // Enough that a certified prefix covers what was lost.
    let mut batch = Batch::start(&cluster, &[]);
    for id in 0..50 {
        let put = json!({"id": id, "op": "put", "key": format!("{id}"), "value": "y"});
        assert_eq!(batch.ask(&put)["outcome"], "ok");
    }
    batch.finish();
    cluster.wait_until_active();
    assert!(cluster.log(2).contains("WARN"), "{}", cluster.log(2));
    cluster.kill(0);
    let scan = cluster.run(&["kv", "scan", "--timeout", "30s"]).ok();
    assert_eq!(scan.lines().count(), 50);
}

#[test]
fn a_full_disk_stops_one_replica_and_loses_nothing() {
    let mut cluster = Cluster::start_all(&["--crash", "1"]);
    cluster.run(&["kv", "put", "hello", "world"]).ok();
    cluster.stop(2);
    // Writes beyond 4 MiB of a file fail, as they would on a disk without space.
    let config = cluster.path("replica-2/replica.toml");
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f 8192; exec \"$0\" replica --config \"$1\""])
        .arg(env!("CARGO_BIN_EXE_perdura"))
        .arg(&config);
    cluster.start_as(2, limited);
    let mut batch = Batch::start(&cluster, &[]);
    let value = "x".repeat(500_000);
    for id in 0..30 {
        let put = json!({"id": id, "op": "put", "key": format!("{id:02}"), "value": value});
        assert_eq!(batch.ask(&put)["outcome"], "ok");
    }
    assert!(batch.finish().is_empty());
    assert_eq!(cluster.ended(2), Some(1));
    let log = cluster.log(2);
    assert!(log.contains("disk failed") || log.contains("data directory failed"), "{log}");

    cluster.start(2);
    cluster.wait_until_active();
    cluster.kill(0);
    let last = cluster.run(&["kv", "get", "29", "--timeout", "30s"]).ok();
    assert_eq!(last.len(), 500_001);
}

#[test]
fn dev_runs_a_cluster_and_goes_on_with_its_data() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("dev");
    let once = || program().arg("dev").arg(&dir).args(["--once"]).output().map(Ran::from).unwrap();
    let out = once().ok();
    assert!(out.contains("made a cluster of 4") && out.contains("read it back"), "{out}");
    let out = once().ok();
    assert!(out.contains("going on with the cluster of 4"), "{out}");

    let mut dev = program();
    let mut dev = dev.arg("dev").arg(&dir).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(dev.stdout.take().unwrap()).lines();
    let mut until = |words: &str| loop {
        let line = lines.next().unwrap().unwrap();
        if line.contains(words) {
            return line;
        }
    };
    let line = until("  replica 1  pid ");
    let pid = line.split_whitespace().nth(3).unwrap().to_owned();
    until("Ctrl-C stops");
    once().failed(1, &["replica 0", "in use"]);
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    until("replica 1 (pid");
    assert!(until("perdura replica --config").contains("replica-1/replica.toml"));
    send_signal(&dev, "-INT");
    until("stopped");
    assert_eq!(wait_for_end(&mut dev).code(), Some(0));
    once().ok();
    let mut slow = program();
    slow.arg("dev").arg(&dir).args(["--once", "--log-device", "delay_ms=1,mb_s=50"]);
    let out = Ran::from(slow.output().unwrap()).ok();
    assert!(out.contains("experiment: ") && out.contains("(delay_ms=1,mb_s=50)"), "{out}");
    let log = std::fs::read_to_string(dir.join("replica-0/log.txt")).unwrap();
    assert!(log.contains("(delay_ms=1,mb_s=50)"), "{log}");
}

#[test]
fn children_of_dev_end_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("dev");
    let mut command = program();
    command.arg("dev").arg(&dir).args(["--crash", "1"]).stdout(Stdio::piped());
    let mut dev = command.spawn().unwrap();
    let lines = BufReader::new(dev.stdout.take().unwrap()).lines();
    lines.map(Result::unwrap).find(|line| line.contains("Ctrl-C stops")).unwrap();
    dev.kill().unwrap();
    dev.wait().unwrap();
    wait_for("the replicas to end", || {
        let again = program().arg("dev").arg(&dir).arg("--once").output().map(Ran::from).unwrap();
        (again.code == Some(0)).then_some(())
    });
}

#[test]
fn a_replica_that_is_slow_on_purpose_says_so() {
    let mut cluster = Cluster::init(&["--crash", "1", "--durability", "sync-naive"]);
    for id in 0..cluster.len() {
        let mut command = cluster.replica(id);
        if id == 1 {
            command.args(["--log-device", "delay_ms=1.5,mb_s=20"]);
        }
        cluster.start_as(id, command);
    }
    let status = cluster.wait_until_active();
    cluster.run(&["kv", "put", "key", "value"]).ok();
    let counted = |id: usize| status[id]["experiments"].as_array().unwrap().len();
    assert_eq!([counted(0), counted(1), counted(2)], [1, 2, 1]);
    cluster.status_with(&[
        "replica 2: experiment: durability is sync-naive",
        "replica 1: experiment: the log is",
        "(delay_ms=1.5,mb_s=20)",
    ]);
    assert!(cluster.log(1).contains("experiment: the log is written no faster"));
    assert!(!cluster.log(0).contains("simulated device"));
}

#[test]
fn bench_reports_what_it_promises() {
    let cluster = Cluster::start_all(&["--crash", "1"]);
    let file = cluster.path("result.json").display().to_string();
    for (operation, more) in [
        ("put", &[][..]),
        ("get", &["--fast"]),
        ("mixed", &["--rate", "200", "--connections", "2", "--keep"]),
    ] {
        let arguments =
            [&["bench", operation, "--seconds", "0.5", "--keys", "500", "--clients", "4"], more]
                .concat();
        let out = cluster.run(&[&arguments[..], &["--json", &file]].concat()).ok();
        assert!(out.contains("ops/s"), "{out}");
        let left = if more.contains(&"--keep") { "500\n" } else { "0\n" };
        assert_eq!(
            cluster.run(&["kv", "count"]).ok(),
            left,
            "it removes what it wrote, unless asked"
        );
        let text = std::fs::read_to_string(&file).unwrap();
        let result: Value = serde_json::from_str(&text).unwrap();
        for key in [
            "throughput_ops_s",
            "p50_us",
            "p99_us",
            "max_us",
            "errors",
            "server_cpu_us_per_op",
            "client_cpu_us_per_op",
            "value_size",
            "keys",
            "clients",
            "connections",
            "seconds",
        ] {
            assert!(result[key].is_number(), "{key} in {result}");
        }
        assert_eq!((&result["errors"], &result["operation"]), (&json!(0), &json!(operation)));
    }
    let scan = cluster.run(&["kv", "scan", "--limit", "10000", "--json"]).ok();
    let scan: Value = serde_json::from_str(&scan).unwrap();
    assert_eq!(scan["entries"].as_array().unwrap().len(), 500);
}

#[test]
fn a_bench_that_is_interrupted_says_what_it_measured() {
    let cluster = Cluster::start_all(&["--crash", "1"]);
    for more in [&[][..], &["--rate", "500"]] {
        let before = executed(&cluster);
        let mut bench = cluster
            .command(&["bench", "put", "--seconds", "600", "--keys", "10", "--clients", "4"])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // More than it takes to write ten keys first.
        wait_for("writes", || (executed(&cluster) > before + 100).then_some(()));
        send_signal(&bench, "-INT");
        assert_eq!(wait_for_end(&mut bench).code(), Some(130));
        let out = Ran::from(bench.wait_with_output().unwrap());
        out.failed(130, &["interrupted after", "of 600 s"]);
        assert!(out.out.contains("ops/s"), "{}", out.out);
        let completed = out.out.lines().find_map(|line| line.strip_prefix("completed"));
        assert!(completed.unwrap().trim().parse::<u64>().unwrap() > 0);
    }
}

/// Slots that replica 0 has executed; none is known before it has started.
fn executed(cluster: &Cluster) -> u64 {
    cluster.status()[0]["executed"].as_u64().unwrap_or(0)
}
