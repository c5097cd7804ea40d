//! Transactions over several partitions, on servers that are real processes.

use crate::common::{Ran, program};
use crate::servers::Servers;
use bytes::Bytes;
use perdura::config::CLIENT_FILE;
use perdura::connect::{connect_store, key, load_groups};
use perdura_client::Options;
use perdura_store::{Operation, OperationResult, Transaction};
use perdura_transactions::{Outcome, StoreClient, TransactionError};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

impl Servers {
    /// So many keys of each partition.
    fn keys(&self, each: usize) -> Vec<String> {
        let partitions = self.cluster.map.partitions() as u16;
        let of = |partition| {
            let keys = (0..).map(|number: u32| format!("account-{number}"));
            let here =
                move |key: &String| self.cluster.map.partition_of(key.as_bytes()).0 == partition;
            keys.filter(here).take(each)
        };
        (0..partitions).flat_map(of).collect()
    }

    fn transact(&self, operations: &Value) -> Ran {
        self.run(&["kv", "txn", &operations.to_string(), "--json", "--timeout", "60s"])
    }
}

fn result(ran: &Ran) -> Value {
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

/// Moves money between accounts all over until as often as that was told to be done.
async fn move_money(store: StoreClient, keys: Vec<String>, times: u32, seed: u64) -> u32 {
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
        let both = [from, to].map(|index| Bytes::from(keys[index].clone()));
        let reads = both.clone().map(|key| Operation::Read { key });
        let read = Transaction { operations: reads.to_vec() };
        let Ok(Outcome::Committed { results: Some(results) }) =
            store.transact(read, &options).await
        else {
            continue;
        };
        let balances: Vec<i64> = results.iter().map(balance).collect();
        let amount = below(10) as i64;
        let after = [balances[0] - amount, balances[1] + amount];
        let operations = (0..2).flat_map(|index| {
            let (key, value) = (both[index].clone(), balances[index].to_string());
            let new = after[index].to_string();
            [
                Operation::Cmp { key: key.clone(), value: Some(value.into()) },
                Operation::Write { key, value: new.into(), only_if_present: true },
            ]
        });
        match store.transact(Transaction { operations: operations.collect() }, &options).await {
            Ok(Outcome::Committed { .. }) => moved += 1,
            Ok(Outcome::Failed { .. }) => {}
            Err(error) => {
                assert!(!matches!(error, TransactionError::Nonsense), "{error}");
                unknown += u32::from(!error.is_refusal());
            }
        }
    }
    unknown
}

fn balance(result: &OperationResult) -> i64 {
    let OperationResult::Value(Some(value)) = result else { panic!("{result:?}") };
    std::str::from_utf8(value).unwrap().parse().unwrap()
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
