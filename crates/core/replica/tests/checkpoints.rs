//! Checkpoints on real disks: one that cannot be written, and one that takes longer than anybody waits.

use crate::real::Group;
use bytes::Bytes;
use perdura_client::{Client, Options};
use perdura_protocol::Encode;
use perdura_protocol::configuration::{Durability, Parameters, Schedule};
use perdura_replica::runtime::RunError;
use perdura_store::{Store, StoreCommand};

fn group() -> Group<Store> {
    let change = |parameters| Parameters { schedule: Schedule::Coordinated, ..parameters };
    Group::formatted_with(1, 0, Durability::Sync, change, Store::new)
}

async fn write(client: &Client, count: u32) {
    let options = Options { timeout: std::time::Duration::from_secs(60), ..Options::default() };
    for number in 0..count {
        let key = Bytes::from(format!("key{number}"));
        let put = StoreCommand::Put { key, value: Bytes::from_static(b"value") };
        client.call(put.to_bytes(), &options).await.unwrap();
    }
}

fn block_on(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future);
}

/// Slots from a boundary to the next, and one more, with a write in each.
const OVER_A_BOUNDARY: u32 = 65;

#[test]
fn a_replica_whose_checkpoint_cannot_be_written_stops_and_does_not_wait_for_it() {
    let mut group = group();
    // No files are made in what is no directory.
    let checkpoints = group.data(1).join("checkpoint");
    (0..2).for_each(|id| group.start(id));
    block_on(async {
        let client = group.connect();
        // Nothing is decided without it, so its data directory has been opened.
        write(&client, 1).await;
        std::fs::write(&checkpoints, b"").unwrap();
        group.start(2);
        write(&client, OVER_A_BOUNDARY).await;
        let failed = group.failure(1);
        assert!(matches!(failed, RunError::Disk(_)), "{failed}");
        write(&client, OVER_A_BOUNDARY).await;
    });
    group.stop(0);
    group.stop(2);
}

#[test]
fn a_replica_stops_in_order_while_its_checkpoint_would_take_hours_and_goes_on_when_started() {
    let mut group = group();
    group.start(0);
    group.start_with(1, |config| config.checkpoint_bytes_per_s = 1);
    group.start(2);
    block_on(async {
        let client = group.connect();
        write(&client, OVER_A_BOUNDARY).await;
        let files = group.data(1).join("checkpoint");
        let begun = || std::fs::read_dir(&files).is_ok_and(|files| files.count() > 0);
        while !begun() {
            write(&client, 1).await;
        }
        group.stop(1);
        group.start(1);
        // Nothing is decided without it.
        group.stop(2);
        write(&client, 2 * OVER_A_BOUNDARY).await;
    });
    group.stop(0);
    group.stop(1);
}
