//! A partition of which too few replicas are there costs only who needs it.

use crate::common::{program, wait_for};
use crate::servers::Servers;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A running `kv batch`, and its answers by id.
struct Batch {
    child: Child,
    reader: JoinHandle<()>,
    input: Option<ChildStdin>,
    answers: Arc<Mutex<BTreeMap<u64, Value>>>,
    next: u64,
}

impl Batch {
    fn start(servers: &Servers, options: &[&str]) -> Batch {
        let mut command = program();
        command.args(["kv", "batch"]).args(options).arg("--cluster").arg(servers.path(""));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let answers: Arc<Mutex<BTreeMap<u64, Value>>> = Arc::default();
        let all = Arc::clone(&answers);
        let reader = std::thread::spawn(move || {
            for line in output.lines() {
                let answer: Value = serde_json::from_str(&line.unwrap()).unwrap();
                all.lock().unwrap().insert(answer["id"].as_u64().unwrap(), answer);
            }
        });
        Batch { input: child.stdin.take(), child, reader, answers, next: 0 }
    }

    fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
        self.reader.join().unwrap();
        let answered = self.answers.lock().unwrap().len() as u64;
        assert_eq!(answered, self.next, "every line is answered");
    }

    fn put(&mut self, key: &str) -> u64 {
        self.next += 1;
        let line = json!({"id": self.next, "op": "put", "key": key, "value": "1"});
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        self.next
    }

    fn answer(&self, id: u64) -> Option<Value> {
        self.answers.lock().unwrap().get(&id).cloned()
    }

    #[track_caller]
    fn wait_for(&self, id: u64) -> Value {
        wait_for("an answer", || self.answer(id))
    }
}

#[test]
fn who_needs_a_dead_partition_is_refused_soon_and_others_go_on() {
    let mut servers = Servers::init(5, &[]);
    (0..5).for_each(|id| servers.start(id));
    servers.wait_until_active([3, 3]);
    let members = |partition: usize| -> Vec<usize> {
        servers.cluster.partitions[partition].members.iter().map(|one| one.server).collect()
    };
    // The other one keeps a majority.
    let dead: Vec<usize> = members(0).into_iter().take(2).collect();
    assert!(members(1).iter().filter(|one| dead.contains(one)).count() < 2);
    let [lost, kept]: [String; 2] = servers.keys(1).try_into().unwrap();

    let mut batch = Batch::start(&servers, &["--in-flight", "64", "--timeout", "20s"]);
    for key in [&lost, &kept] {
        let id = batch.put(key);
        assert_eq!(batch.wait_for(id)["outcome"], "ok");
    }
    dead.iter().for_each(|id| servers.kill(*id));

    let mut lost_ids = Vec::new();
    let refused = wait_for("a refusal", || {
        lost_ids.push(batch.put(&lost));
        let id = batch.put(&kept);
        assert_eq!(batch.wait_for(id)["outcome"], "ok");
        lost_ids.iter().filter_map(|id| batch.answer(*id)).find(|one| one["outcome"] == "refused")
    });
    let words = refused["error"].as_str().unwrap();
    assert!(words.contains("too few replicas are there"), "{words}");
    assert!(words.contains("partition 0") && words.contains("of 3 replicas reachable"), "{words}");
    // A transaction that needs it locks nothing in the other one.
    let both =
        json!([{"write": {"key": lost, "value": "2"}}, {"write": {"key": kept, "value": "2"}}]);
    batch.next += 1;
    let line = json!({"id": batch.next, "op": "txn", "ops": both});
    writeln!(batch.input.as_mut().unwrap(), "{line}").unwrap();
    assert_eq!(batch.wait_for(batch.next)["outcome"], "refused");
    let id = batch.put(&kept);
    assert_eq!(batch.wait_for(id)["outcome"], "ok");

    dead.iter().for_each(|id| servers.start(*id));
    wait_for("the partition to be there again", || {
        let id = batch.put(&lost);
        (batch.wait_for(id)["outcome"] == "ok").then_some(())
    });
    batch.end();
}

/// They have their connections, and answer nothing.
#[test]
fn who_waits_for_a_silent_partition_leaves_places_to_others() {
    let mut servers = Servers::init(5, &[]);
    (0..5).for_each(|id| servers.start(id));
    servers.wait_until_active([3, 3]);
    let silent: Vec<usize> =
        servers.cluster.partitions[0].members.iter().map(|one| one.server).take(2).collect();
    let [waits, goes_on]: [String; 2] = servers.keys(1).try_into().unwrap();
    let mut batch = Batch::start(&servers, &["--in-flight", "8", "--timeout", "40s"]);
    for key in [&waits, &goes_on] {
        let id = batch.put(key);
        assert_eq!(batch.wait_for(id)["outcome"], "ok");
    }
    silent.iter().for_each(|id| servers.signal(*id, "-STOP"));
    let waiting: Vec<u64> = (0..8).map(|_| batch.put(&waits)).collect();
    for _ in 0..20 {
        let id = batch.put(&goes_on);
        assert_eq!(batch.wait_for(id)["outcome"], "ok");
    }
    assert!(waiting.iter().all(|id| batch.answer(*id).is_none()), "they wait");
    silent.iter().for_each(|id| servers.signal(*id, "-CONT"));
    for id in waiting {
        assert_eq!(batch.wait_for(id)["outcome"], "ok");
    }
    batch.end();
}

/// Entries of two partitions by hash, with values so large that they are read in several pages.
#[test]
fn what_the_other_partitions_have_can_be_read_in_bulk() {
    let mut servers = Servers::init(5, &[]);
    (0..5).for_each(|id| servers.start(id));
    servers.wait_until_active([3, 3]);
    let value = "v".repeat(100_000);
    let lines: Vec<String> = (0..40)
        .map(|index| {
            json!({"op": "put", "key": format!("k{index:02}"), "value": value}).to_string()
        })
        .collect();
    let file = servers.path("all.jsonl");
    std::fs::write(&file, lines.join("\n")).unwrap();
    servers.run(&["kv", "import", file.to_str().unwrap()]).ok();
    let key_of = |line: &str| {
        serde_json::from_str::<Value>(line).unwrap()["key"].as_str().unwrap().to_owned()
    };
    let exported = |more: &[&str]| -> Vec<String> {
        let out = servers.run(&[&["kv", "export"], more].concat()).ok();
        out.lines().map(key_of).collect()
    };
    let all: Vec<String> = lines.iter().map(|line| key_of(line)).collect();
    assert_eq!(exported(&[]), all, "in the order of their keys");
    let of = ["0", "1"].map(|partition| exported(&["--partition", partition]));
    let of = of.map(|keys| {
        assert!(keys.len() > 11 && keys.is_sorted(), "more than a page, in order: {keys:?}");
        keys
    });
    assert_eq!(exported(&["--partition", "0", "--partition", "1"]), all);
    assert_eq!(servers.run(&["kv", "count"]).ok(), "40\n");
    servers.run(&["kv", "count", "--partition", "2"]).failed(2, &["no partition 2", "0 on"]);

    let dead: Vec<usize> =
        servers.cluster.partitions[0].members.iter().map(|one| one.server).take(2).collect();
    dead.iter().for_each(|id| servers.kill(*id));
    let failed = servers.run(&["kv", "count", "--timeout", "2s"]);
    failed.failed(4, &["--skip-unreachable reads what the others have"]);
    let out = servers.path("rest.jsonl");
    let out = out.to_str().unwrap();
    let rest = servers.run(&["kv", "export", "--skip-unreachable", "--out", out]);
    rest.failed(1, &["partition 0 is left out: ", "`--partition 0` exports what was left out"]);
    let rest: Vec<String> = std::fs::read_to_string(out).unwrap().lines().map(key_of).collect();
    assert_eq!(rest, of[1]);
    let all_of_it = std::fs::read(out).unwrap();
    let again = servers.run(&["kv", "export", "--resume", "--out", out]);
    again.failed(1, &["`--partition 0` exports what was left out"]);
    assert_eq!(
        std::fs::read(out).unwrap(),
        all_of_it,
        "it goes on where it was, without partition 0"
    );
    let dry = servers.run(&["kv", "delete-range", "--dry-run", "--skip-unreachable"]);
    dry.failed(1, &["`--partition 0` removes the rest"]);
    servers.run(&["kv", "scan", "--partition", "2"]).failed(2, &["no partition 2"]);
    let count = servers.run(&["kv", "count", "--skip-unreachable"]);
    count.failed(1, &["`--partition 0` counts the rest"]);
    assert_eq!(count.out, format!("{}\n", of[1].len()));
    let scan = servers.run(&["kv", "scan", "--partition", "1", "--keys-only", "--limit", "5"]).ok();
    assert_eq!(scan.lines().collect::<Vec<_>>(), of[1][..5]);
}
