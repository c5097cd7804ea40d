//! One key takes all that it can of servers that are real processes, and the others get on.

use crate::servers::Servers;
use bytes::Bytes;
use perdura_cluster::connect::{connect_store, key, load_groups};
use perdura_protocol::PartitionId;
use perdura_store::Operation;
use perdura_store::partition::{
    Intent, Participant, PartitionCommand, PartitionReply, Vote, Wanted, digest_of_part,
};
use perdura_transactions::{Groups, Live, StoreClient, Transactions};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PARTITIONS: u16 = 2;

fn of_each(
    command: impl Fn(PartitionId) -> PartitionCommand,
) -> Vec<(PartitionId, PartitionCommand)> {
    (0..PARTITIONS).map(PartitionId).map(|one| (one, command(one))).collect()
}

/// Holds every key for reading, and has marked those of others as one who waits for them: without a gap, or it gives back what it had and takes it again before
/// anybody else can. Then it waits for what it has itself.
async fn hog(client: &Transactions<Live>, keys: &[String], ends: &AtomicBool, held: &AtomicU64) {
    let (groups, mut before): (_, Option<Intent>) = (client.groups(), None);
    let soon_ms = || groups.deadline_ms(Duration::from_secs(5));
    let range =
        Operation::ReadRange { start: Bytes::new(), end: None, limit: 1_000, reverse: false };
    let everything = vec![range];
    for counter in 1.. {
        let mut participants = Vec::new();
        for partition in (0..PARTITIONS).map(PartitionId) {
            let nonce = groups.session(partition, soon_ms()).await.unwrap();
            participants.push(Participant { partition, nonce, part: digest_of_part(&everything) });
        }
        let (cluster, map) = (groups.map().cluster, groups.map().version);
        let (client_of, read_only) = (groups.client(), true);
        let intent = Intent { cluster, map, client: client_of, counter, read_only, participants };
        let prepare = |_| PartitionCommand::Prepare {
            intent: intent.clone(),
            operations: everything.clone(),
        };
        let before = before.replace(intent.clone());
        let has_gap = counter % 2 == 0;
        if has_gap {
            give_back(client, before.as_ref(), soon_ms()).await;
        }
        for (_, reply) in client.ask_all(of_each(prepare), soon_ms()).await {
            let is_held = matches!(reply, Ok(PartitionReply::Voted { vote: Vote::Commit, .. }));
            held.fetch_add(u64::from(is_held), Ordering::Relaxed);
        }
        let marks = keys.iter().map(|key| {
            let (key, value) = (Bytes::from(key.clone()), Bytes::new());
            let partition = groups.map().partition_of(&key);
            let write = Operation::Write { key, value, only_if_present: false };
            (partition, PartitionCommand::Mark { wanted: Wanted::by(&[write]), waits: true })
        });
        let all = |_| PartitionCommand::Mark { wanted: Wanted::by(&everything), waits: true };
        client.ask_all(marks.chain(of_each(all)).collect(), soon_ms()).await;
        if !has_gap {
            give_back(client, before.as_ref(), soon_ms()).await;
        }
        if ends.load(Ordering::Relaxed) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
}

async fn give_back(client: &Transactions<Live>, intent: Option<&Intent>, deadline_ms: u64) {
    let Some(intent) = intent else { return };
    let finish =
        |_| PartitionCommand::Finish { transaction: intent.id(), commit: true, votes: Vec::new() };
    client.ask_all(of_each(finish), deadline_ms).await;
}

fn client_of(directory: &Path, file: &Path) -> Transactions<Live> {
    let groups = load_groups(directory).unwrap();
    let store = connect_store(&groups, &key(file, &groups[0]).unwrap()).unwrap();
    let StoreClient::Partitioned(transactions) = store else { panic!("one partition") };
    transactions
}

#[test]
fn one_key_that_takes_all_that_it_can_keeps_nobody_out() {
    let servers = Servers::start_all();
    servers.run(&["client", "add", "hog", "--timeout", "60s"]).ok();
    let keys = servers.keys(4);
    let (directory, file): (PathBuf, PathBuf) = (servers.path(""), servers.path("client-hog.toml"));
    let ends = Arc::new(AtomicBool::new(false));
    let held = Arc::new(AtomicU64::new(0));
    let attack = {
        let (keys, ends, held) = (keys.clone(), Arc::clone(&ends), Arc::clone(&held));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                hog(&client_of(&directory, &file), &keys, &ends, &held).await;
            });
        })
    };
    crate::common::wait_for("the attack", || (held.load(Ordering::Relaxed) >= 8).then_some(()));
    for (number, pair) in keys.iter().zip(keys.iter().rev()).take(4).enumerate() {
        let put = ["kv", "put", &keys[number], "value", "--timeout", "20s"];
        assert_eq!(servers.run(&put).ok(), "ok\n");
        let write = |key: &String| json!({"write": {"key": key, "value": number.to_string()}});
        let both = json!([write(pair.0), write(pair.1)]).to_string();
        servers.run(&["kv", "txn", &both, "--timeout", "20s"]).ok();
        // All keys are read with locks.
        let range = json!({"range": {"start": "", "end": null, "limit": 1_000}});
        let with_range = json!([range, write(pair.0), write(pair.1)]).to_string();
        servers.run(&["kv", "txn", &with_range, "--timeout", "20s"]).ok();
    }
    ends.store(true, Ordering::Relaxed);
    attack.join().unwrap();
}
