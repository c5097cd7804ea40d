//! The key-value store from the command line.

use crate::common::batch::Batch;
use crate::common::{Cluster, Ran, program, send_signal, wait_for};
use serde_json::{Value, json};
use std::io::Write;
use std::process::Stdio;

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
        batch.send(json!({"id": id, "op": "get", "key": "a"}));
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
        batch.send(line);
        let answer = batch.receive();
        assert_eq!((&answer["id"], &answer["outcome"]), (&id, &json!("refused")));
        assert!(answer["error"].as_str().unwrap().contains(word), "{answer}");
    }
    assert!(batch.finish().is_empty());
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
