//! Transactions over several partitions, on servers that are real processes.

use crate::common::{Cluster, Ran, program, send_signal, wait_for, wait_for_end};
use crate::servers::Servers;
use bytes::Bytes;
use perdura_client::Options;
use perdura_cluster::config::CLIENT_FILE;
use perdura_cluster::connect::{connect_store, key, load_groups};
use perdura_protocol::PartitionId;
use perdura_store::partition::{
    Intent, Participant, PartitionCommand, PartitionReply, Vote, digest_of_part,
};
use perdura_store::{Operation, Transaction, limits};
use perdura_transactions::{Groups, Outcome, Page, Range, StoreClient, TransactionError};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

impl Servers {
    /// So many keys of each partition.
    pub fn keys(&self, each: usize) -> Vec<String> {
        let partitions = self.cluster.map.partitions() as u16;
        let of = |partition| {
            let keys = (0..).map(|number: u32| format!("account-{number}"));
            let here =
                move |key: &String| self.cluster.map.partition_of(key.as_bytes()).0 == partition;
            keys.filter(here).take(each)
        };
        (0..partitions).flat_map(of).collect()
    }

    pub fn transact(&self, operations: &Value) -> Ran {
        self.run(&["kv", "txn", &operations.to_string(), "--json", "--timeout", "60s"])
    }
}

pub fn result(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"))
}

#[test]
fn the_store_is_one_whatever_partitions_its_keys_are_in() {
    let servers = Servers::start_all();
    let keys = servers.keys(2);
    let write = |key: &String, value: &str| json!({"write": {"key": key, "value": value}});
    let all: Vec<Value> = keys.iter().map(|key| write(key, "1")).collect();
    let done = servers.transact(&json!(all));
    assert_eq!(result(&done), json!({"committed": true, "results": [{}, {}, {}, {}]}));
    // All or nothing, and what failed is named by its place.
    let failed = servers.transact(&json!([
        write(&keys[0], "2"),
        {"cmp": {"key": keys[2], "value": "other"}},
        write(&keys[3], "2"),
    ]));
    assert_eq!(failed.code, Some(3), "{failed:?}");
    assert_eq!(result(&failed), json!({"committed": false, "failed": 1}));
    let read = |key: &String| json!({"read": key});
    let reads: Vec<Value> = keys.iter().rev().map(read).collect();
    let ones = vec![json!({"value": "1"}); 4];
    assert_eq!(
        result(&servers.transact(&json!(reads))),
        json!({"committed": true, "results": ones})
    );
    // Ranges are merged, in order.
    let mut sorted = keys.clone();
    sorted.sort();
    let scan = servers.run(&["kv", "scan", "--prefix", "account-", "--keys-only"]);
    assert_eq!(scan.ok().lines().collect::<Vec<_>>(), sorted);
    let first = servers.run(&["kv", "scan", "--prefix", "account-", "--limit", "3", "--keys-only"]);
    assert_eq!(first.out.lines().collect::<Vec<_>>(), sorted[..3]);
    assert!(first.error.contains(&format!("--after={}", sorted[2])), "{first:?}");
    assert_eq!(servers.run(&["kv", "count", "--prefix", "account-"]).ok(), "4\n");
    let delete = ["kv", "delete-range", "--prefix", "account-", "--yes"];
    assert_eq!(servers.run(&delete).ok(), "4 entries are removed\n");
    servers.run(&["kv", "get", &keys[3]]).failed(3, &["no such key"]);
}

/// A program's own view of it.
#[test]
fn a_program_gets_what_each_operation_found() {
    let servers = Servers::start_all();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let groups = load_groups(&servers.path("")).unwrap();
        let key = key(&servers.path(CLIENT_FILE), &groups[0]).unwrap();
        let store = connect_store(&groups, &key).unwrap();
        let options = Options { timeout: Duration::from_secs(60), ..Options::default() };
        let keys = servers.keys(3);
        let mut fill = store.transaction();
        for key in &keys {
            fill.insert(key.clone(), "1");
        }
        assert_eq!(fill.clone().run(&options).await.unwrap().failed(), None);
        // Which of them it fails for first depends on who is asked first.
        let failed = fill.run(&options).await.unwrap();
        assert!(matches!(failed.failed(), Some(0 | 3)), "{failed:?}");
        let mut several = store.transaction();
        let value = several.read(keys[5].clone());
        let gone = several.cmp(keys[0].clone(), "1").delete(keys[4].clone());
        let none = several.delete("account-none");
        let left = several.read_range(Range::prefix("account-").limit(4));
        let Outcome::Committed(found) = several.run(&options).await.unwrap() else {
            panic!("not committed")
        };
        assert_eq!(found.get(value).as_deref(), Some(&b"1"[..]));
        assert!(found.get(gone) && !found.get(none));
        let mut sorted: Vec<&String> = keys.iter().filter(|key| **key != keys[4]).collect();
        sorted.sort();
        let names = |page: &Page| {
            let names = page.entries.iter().map(|(key, _)| String::from_utf8(key.to_vec()));
            names.collect::<Result<Vec<_>, _>>().unwrap()
        };
        let first = found.get(left);
        assert_eq!(
            (names(&first), first.more),
            (sorted[..4].iter().copied().cloned().collect(), true)
        );
        let next = Range::prefix("account-").after(sorted[3].as_bytes());
        let next = store.read_range(next, &options).await.unwrap();
        assert_eq!((names(&next), next.more), (vec![sorted[4].clone()], false));
        let behind_all = Range::all().after(&[u8::MAX; limits::KEY_BYTES]);
        assert!(store.read_range(behind_all, &options).await.unwrap().entries.is_empty());
        store.put(keys[1].clone(), "2", &options).await.unwrap();
        assert_eq!(store.get(keys[1].clone(), &options).await.unwrap().unwrap(), "2");
        assert!(store.delete(keys[1].clone(), &options).await.unwrap());
        assert_eq!(store.get(keys[1].clone(), &options).await.unwrap(), None);
        store.close().await;
    });
}

/// Its locks are ended by who meets them, and what it did is there in both partitions or in none.
#[test]
fn a_client_that_is_killed_leaves_nothing_half_done() {
    let servers = Servers::start_all();
    let keys = servers.keys(1);
    let (left, right) = (&keys[0], &keys[1]);
    let line = |id: u64| {
        let write = |key: &String| json!({"write": {"key": key, "value": id.to_string()}});
        json!({"id": id, "op": "txn", "ops": [write(left), write(right)]}).to_string()
    };
    let mut next = 0;
    for round in 0..4 {
        let mut batch = program();
        batch.args(["kv", "batch", "--in-flight", "8", "--cluster"]).arg(servers.path(""));
        let mut batch = batch.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = batch.stdin.take().unwrap();
        for _ in 0..200 {
            next += 1;
            writeln!(input, "{}", line(next)).unwrap();
        }
        // It dies in the midst of them.
        let answers = BufReader::new(batch.stdout.take().unwrap()).lines();
        for answer in answers.take(5 + 10 * round) {
            let answer: Value = serde_json::from_str(&answer.unwrap()).unwrap();
            assert_eq!(answer["outcome"], "ok", "{answer}");
        }
        batch.kill().unwrap();
        batch.wait().unwrap();
        let read = servers.transact(&json!([{"read": left}, {"read": right}]));
        let results = &result(&read)["results"];
        assert_eq!(results[0], results[1], "{read:?}");
        let both = [left, right].map(|key| json!({"write": {"key": key, "value": "0"}}));
        assert_eq!(result(&servers.transact(&json!(both)))["committed"], true);
    }
}

/// Prepares a transaction that writes these keys, one of each partition, in the first so many of them, and dies. Gives its identifier.
pub fn leave(servers: &Servers, keys: &[String], prepared: usize) -> String {
    leave_opened(servers, keys, prepared, keys.len())
}

/// The same, with sessions in the first so many of them: partitions behind these may be gone.
fn leave_opened(servers: &Servers, keys: &[String], prepared: usize, opened: usize) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let groups = load_groups(&servers.path("")).unwrap();
        let key = key(&servers.path(CLIENT_FILE), &groups[0]).unwrap();
        let store = connect_store(&groups, &key).unwrap();
        let StoreClient::Partitioned(transactions) = &store else { panic!("one partition") };
        let deadline_ms = transactions.groups().deadline_ms(Duration::from_secs(60));
        let (map, client) = (transactions.groups().map(), transactions.groups().client());
        let part = |key: &String| {
            let (key, value) = (Bytes::from(key.clone()), Bytes::from_static(b"left"));
            vec![Operation::Write { key, value, only_if_present: false }]
        };
        let mut participants = Vec::new();
        for (partition, key) in (0..).map(PartitionId).zip(keys) {
            let nonce = match partition.index() < opened {
                true => transactions.groups().session(partition, deadline_ms).await.unwrap(),
                false => 1,
            };
            let part = digest_of_part(&part(key));
            participants.push(Participant { partition, nonce, part });
        }
        let intent = Intent {
            cluster: map.cluster,
            map: map.version,
            client,
            counter: 1,
            read_only: false,
            participants,
        };
        for (one, key) in intent.participants.iter().zip(keys).take(prepared) {
            let (intent, operations) = (intent.clone(), part(key));
            let prepare = PartitionCommand::Prepare { intent, operations };
            let asked = transactions.ask(one.partition, &prepare, deadline_ms).await;
            let (PartitionReply::Voted { vote: Vote::Commit, .. }, Some(_)) = asked.unwrap() else {
                panic!("it did not vote to commit");
            };
        }
        intent.id().to_string()
    })
}

/// The servers see to it, with no other client there.
#[test]
fn what_a_dead_client_left_is_ended_though_nobody_meets_it() {
    let servers = Servers::start_all();
    let keys = servers.keys(1);
    let half = leave(&servers, &keys, 1);
    let none_left = || {
        let listed = servers.run(&["txn", "pending"]);
        (listed.code == Some(0) && listed.out.is_empty()).then_some(())
    };
    wait_for("the resolvers", none_left);
    let shown = servers.run(&["txn", "show", &half]).ok();
    assert_eq!(shown.matches("aborted").count(), 2, "{shown}");
    let whole = leave(&servers, &keys, 2);
    wait_for("the resolvers", none_left);
    let shown = servers.run(&["txn", "show", &whole]).ok();
    assert_eq!(shown.matches("voted to commit; committed").count(), 2, "{shown}");
}

#[test]
fn operators_see_what_is_pending_and_end_it() {
    let servers = Servers::start_all();
    let keys = servers.keys(1);
    let txn = |arguments: &[&str]| servers.run(&[&["txn"], arguments].concat());
    txn(&["pending"]).ok();
    let nobody = "00".repeat(32);
    txn(&["show", &nobody]).failed(3, &[]);
    txn(&["finish", &nobody]).failed(1, &["over and forgotten, or was never prepared"]);
    txn(&["show", "nonsense"]).failed(2, &["hexadecimal"]);
    // Half of it was prepared.
    let id = leave(&servers, &keys, 1);
    let listed = txn(&["pending"]).ok();
    assert!(listed.starts_with(&id) && listed.contains("partitions 0,1, pending in 0"), "{listed}");
    let shown = txn(&["show", &id]).ok();
    assert!(shown.starts_with("partition 0: voted to commit; pending for "), "{shown}");
    assert!(shown.contains("partition 1: knows nothing of it\n"), "{shown}");
    let json: Value = serde_json::from_str(&txn(&["show", &id, "--json"]).ok()).unwrap();
    assert_eq!(json["partitions"]["1"], json!({"vote": null}));
    wait_for("it to be old enough", || (txn(&["finish", &id]).code == Some(0)).then_some(()));
    let shown = txn(&["show", &id]).ok();
    assert!(shown.contains("partition 0: voted to commit; aborted\n"), "{shown}");
    assert!(
        shown.contains("partition 1: voted to abort (it was ended before its part came); aborted"),
        "{shown}"
    );
    assert_eq!(txn(&["pending"]).out, "");
    // All of it was: then it is carried out at once.
    let id = leave(&servers, &keys, 2);
    let finished = txn(&["finish", &id]).ok();
    assert_eq!(finished.matches("voted to commit; committed").count(), 2, "{finished}");
    assert_eq!(servers.run(&["kv", "get", &keys[1]]).ok(), "left\n");
    // The administrator does not decide what the partitions can.
    let id = leave(&servers, &keys, 1);
    txn(&["finish", &id, "--force", "commit"]).failed(1, &["nothing was changed", "--yes"]);
    let forced = txn(&["finish", &id, "--force", "abort", "--yes"]);
    forced.failed(
        1,
        &["nothing was changed: all partitions that take part answer", "leave out --force"],
    );
    wait_for("it to be old enough", || (txn(&["finish", &id]).code == Some(0)).then_some(()));
    assert_eq!(servers.run(&["kv", "put", &keys[0], "free"]).ok(), "ok\n");
    // And the metrics of each server have it.
    let seen = [
        "\nperdura_transaction_votes_total{vote=\"resolved\",partition=\"1\"} ",
        "\nperdura_transactions_pending{seconds=\"0\",partition=\"1\"} 0\n",
        "\nperdura_transactions_ended_total{by=\"others\",partition=\"0\"} ",
    ];
    for line in seen {
        wait_for(line, || servers.http(0, "/metrics").filter(|(_, text)| text.contains(line)));
    }
}

/// Else it would count as one that left them, and others with its key would have to take turns.
#[test]
fn a_batch_that_is_interrupted_leaves_no_locks() {
    let servers = Servers::start_all();
    let keys = servers.keys(64);
    let mut command = program();
    command.args(["kv", "batch", "--in-flight", "16", "--cluster"]).arg(servers.path(""));
    let mut batch = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines_in = batch.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        for number in 0usize.. {
            let (one, other) = (&keys[number % 64], &keys[64 + number % 64]);
            let write = |key: &String| json!({"write": {"key": key, "value": number.to_string()}});
            let line = json!({"id": number, "op": "txn", "ops": [write(one), write(other)]});
            // Until it takes no more.
            if writeln!(lines_in, "{line}").is_err() {
                break;
            }
        }
    });
    let mut answers = BufReader::new(batch.stdout.take().unwrap()).lines();
    for _ in 0..64 {
        answers.next().unwrap().unwrap();
    }
    let reader = std::thread::spawn(move || answers.for_each(|line| drop(line.unwrap())));
    send_signal(&batch, "-INT");
    assert_eq!(wait_for_end(&mut batch).code(), Some(130));
    let listed = servers.run(&["txn", "pending"]);
    assert_eq!((listed.code, listed.out.as_str()), (Some(0), ""));
    writer.join().unwrap();
    reader.join().unwrap();
}

/// What is for a partition that is gone works while it is gone.
#[test]
fn operators_see_what_waits_for_a_partition_that_is_gone_and_end_it() {
    // Partition 0 is on servers 0, 1 and 2, and 1 on 3, 0 and 1.
    let mut servers = Servers::init(4, &[]);
    (0..4).for_each(|id| servers.start(id));
    let keys = servers.keys(1);
    (1..4).step_by(2).for_each(|id| servers.kill(id));
    let id = leave_opened(&servers, &keys, 1, 1);
    let txn =
        |arguments: &[&str]| servers.run(&[&["txn"], arguments, &["--timeout", "1s"]].concat());
    let gone = "; partition 1; 1 of 3 replicas reachable";
    wait_for("the list of what is pending", || {
        let listed = txn(&["pending"]);
        let is_told =
            listed.error.contains("partition 1 does not say") && listed.error.contains(gone);
        (listed.code == Some(1) && listed.out.starts_with(&id) && is_told).then_some(())
    });
    wait_for("what each partition knows", || {
        let shown = txn(&["show", &id]).out;
        let is_known = shown.starts_with("partition 0: voted to commit; pending for ");
        (is_known && shown.contains("\npartition 1: refused")).then_some(())
    });
    wait_for("an end that cannot be had", || {
        let finished = txn(&["finish", &id]);
        assert_eq!(finished.code, Some(1), "partition 1 has not voted");
        finished.error.contains("it could not be ended").then_some(())
    });
    let forced = || {
        let forced = txn(&["finish", &id, "--force", "abort", "--yes"]);
        assert_eq!(forced.code, Some(1), "not in all partitions");
        forced.out.starts_with("partition 0: aborted\n").then_some(())
    };
    wait_for("what the administrator decides", forced);
    let against = || {
        let against = txn(&["finish", &id, "--force", "commit", "--yes"]);
        against.error.contains("nothing was changed: partition 0 has aborted it").then_some(())
    };
    wait_for("a refusal", against);
    assert_eq!(servers.run(&["kv", "put", &keys[0], "free"]).ok(), "ok\n");
    // It is gone for good.
    txn(&["end-partition", "1"]).failed(1, &["nothing was changed", "give --yes"]);
    txn(&["end-partition", "2", "--yes"]).failed(1, &["they are numbered from 0 to 1"]);
    wait_for("a refusal of one that answers", || {
        let ended = txn(&["end-partition", "0", "--yes"]);
        ended.error.contains("partition 0 answers, so it has not ended").then_some(())
    });
    wait_for("the word that it has ended", || {
        let ended = txn(&["end-partition", "1", "--yes"]);
        (ended.out == "partition 0: takes partition 1 for ended\n").then_some(())
    });
    wait_for("the partition's name", || {
        let put = servers.run(&["kv", "put", &keys[1], "gone", "--timeout", "1s"]);
        (put.code == Some(4) && put.error.contains(gone)).then_some(())
    });
}

/// A key that some partitions only take would serve for none of them.
#[test]
fn the_administrators_key_is_replaced_in_all_partitions_or_in_none() {
    let mut servers = Servers::start_all();
    let rotate = ["admin", "rotate", "--timeout", "60s"];
    for server in [1, 2] {
        servers.kill(server);
    }
    servers
        .run(&rotate)
        .failed(1, &["1 of 3 replicas answer, and 2 are needed", "Nothing was changed"]);
    for server in [1, 2] {
        servers.start(server);
    }
    servers.wait_until_active([3, 3]);
    servers.run(&["client", "add", "somebody", "--timeout", "60s"]).ok();
    servers.run(&rotate).ok();
}

/// Moves money between accounts all over until as often as that was told to be done.
pub async fn move_money(store: StoreClient, keys: Vec<String>, times: u32, seed: u64) -> u32 {
    let options = Options { timeout: Duration::from_secs(60), reply_quorum: None };
    let (mut random, mut moved, mut unknown) = (seed, 0, 0);
    while moved < times {
        let mut below = |bound: usize| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (random >> 33) as usize % bound
        };
        let (from, to) = (below(keys.len()), below(keys.len()));
        if from == to {
            continue;
        }
        let (from, to) = (keys[from].clone(), keys[to].clone());
        let mut look = store.transaction();
        let (had, has) = (look.read(from.clone()), look.read(to.clone()));
        let Ok(Outcome::Committed(found)) = look.run(&options).await else {
            continue;
        };
        let (had, has) = (found.get(had), found.get(has));
        let amount = below(10) as i64;
        let mut change = store.transaction();
        change.unchanged(from.clone(), had.clone()).unchanged(to.clone(), has.clone());
        change.update(from, (balance(had) - amount).to_string());
        change.update(to, (balance(has) + amount).to_string());
        match change.run(&options).await {
            Ok(Outcome::Committed(_) | Outcome::ResultsGone) => moved += 1,
            Ok(Outcome::Failed { .. }) => {}
            Err(error) => {
                assert!(!matches!(error, TransactionError::UnexpectedReply), "{error}");
                unknown += u32::from(!error.is_refusal());
            }
        }
    }
    unknown
}

fn balance(value: Option<Bytes>) -> i64 {
    std::str::from_utf8(&value.expect("an account")).unwrap().parse().unwrap()
}

/// Servers are killed with members of both groups, and all of them at once: the sum of all accounts is the same whenever it is read.
#[test]
fn money_is_neither_made_nor_lost_when_servers_are_killed() {
    let mut servers = Servers::start_all();
    let keys = servers.keys(4);
    let write = |key: &String| json!({"write": {"key": key, "value": "100"}});
    let all: Vec<Value> = keys.iter().map(write).collect();
    assert_eq!(result(&servers.transact(&json!(all)))["committed"], true);
    let (directory, mine) = (servers.path(""), keys.clone());
    let movers = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let groups = load_groups(&directory).unwrap();
            let key = key(&directory.join(CLIENT_FILE), &groups[0]).unwrap();
            let mut tasks = Vec::new();
            for seed in 1..=3 {
                let store = connect_store(&groups, &key).unwrap();
                tasks.push(tokio::spawn(move_money(store, mine.clone(), 40, seed)));
            }
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
    let reads: Vec<Value> = keys.iter().map(|key| json!({"read": key})).collect();
    let sum = |servers: &Servers| {
        let read = servers.transact(&json!(reads));
        let results =
            result(&read)["results"].as_array().unwrap_or_else(|| panic!("{read:?}")).clone();
        let balance = |one: &Value| one["value"].as_str().unwrap().parse::<i64>().unwrap();
        results.iter().map(balance).sum::<i64>()
    };
    for id in [0, 1] {
        assert_eq!(sum(&servers), 800);
        servers.kill(id);
        assert_eq!(sum(&servers), 800, "without server {id}");
        servers.start(id);
        servers.wait_until_active([3, 3]);
    }
    (0..3).for_each(|id| servers.kill(id));
    (0..3).for_each(|id| servers.start(id));
    assert_eq!(sum(&servers), 800);
    movers.join().unwrap();
    assert_eq!(sum(&servers), 800);
}

#[test]
fn a_store_without_partitions_says_how_full_it_is() {
    let cluster = Cluster::start_all(&["--byzantine", "1", "--state-limit-mib", "1"]);
    cluster.wait_until_active();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let groups = load_groups(&cluster.path("")).unwrap();
        let key = key(&cluster.path(CLIENT_FILE), &groups[0]).unwrap();
        let store = connect_store(&groups, &key).unwrap();
        assert!(matches!(store, StoreClient::Whole(_)));
        let options = Options { timeout: Duration::from_secs(60), reply_quorum: None };
        for (percent, bytes) in [(0, 100), (50, 524_300), (99, 1_048_000)] {
            store.put("key", vec![7; bytes], &options).await.unwrap();
            // Unknown where one of them lags at that moment.
            let heard = loop {
                if let Some(heard) = store.fullness(PartitionId(0), &options).await.unwrap() {
                    break heard;
                }
            };
            assert_eq!(heard.percent(), percent);
        }
        store.close().await;
    });
}

/// What its members sign counts in the other partitions, also with clients that have been there since before.
#[test]
fn transactions_go_on_when_members_of_a_partition_are_replaced() {
    let mut servers = Servers::start_all();
    let keys = servers.keys(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connected = |servers: &Servers| {
        let groups = load_groups(&servers.path("")).unwrap();
        let key = key(&servers.path(CLIENT_FILE), &groups[0]).unwrap();
        runtime.block_on(async { connect_store(&groups, &key).unwrap() })
    };
    let write = |store: &StoreClient, value: &'static str| {
        let write = |key: &String| {
            let (key, value) = (Bytes::from(key.clone()), Bytes::from_static(value.as_bytes()));
            Operation::Write { key, value, only_if_present: false }
        };
        let transaction = Transaction { operations: keys.iter().map(write).collect() };
        let options = Options { timeout: Duration::from_secs(60), reply_quorum: None };
        let done = runtime.block_on(store.transact(transaction, &options));
        assert!(matches!(done, Ok(Outcome::Committed(_) | Outcome::ResultsGone)), "{done:?}");
    };
    let mut client = connected(&servers);
    write(&client, "1");
    // All of partition 1, one after the other.
    for id in 0..3 {
        servers.wait_until_active([3, 3]);
        let server = servers.cluster.partitions[1].members[id].server;
        servers.kill(server);
        let id = id.to_string();
        let reinit = ["replica", "reinit", "--partition", "1", "--id", &id, "--timeout", "60s"];
        servers.run(&[&reinit[..], &["--yes"]].concat()).ok();
        // Without it, and with it, though the client knows its former key only.
        write(&client, "2");
        servers.start(server);
        servers.wait_until_active([3, 3]);
        write(&client, "3");
        runtime.block_on(client.close());
        client = connected(&servers);
        write(&client, "4");
        servers.run(&["admin", "rotate", "--timeout", "60s"]).ok();
    }
    let read = |key: &String| json!({"read": key});
    let reads: Vec<Value> = keys.iter().map(read).collect();
    let fours = vec![json!({"value": "4"}); 2];
    let done = servers.transact(&json!(reads));
    assert_eq!(result(&done), json!({"committed": true, "results": fours}));
    // Who ends what clients left knows the newest members too.
    let knows = |id| servers.log(id).contains("cluster.toml has changed");
    wait_for("all servers to read it", || (0..2).all(knows).then_some(()));
}
