//! Checkpoints for which a replica stops executing, the baseline of sequential ones: in a node, where time
//! is virtual, and in replicas with real disks.

use crate::follower::{DEPTH, Follower, now, put};
use crate::real::Group;
use bytes::Bytes;
use perdura_client::{Client, Options};
use perdura_protocol::configuration::{Durability, Parameters, Schedule};
use perdura_protocol::{Command, Encode, Slot};
use perdura_replica::node::{Input, State};
use perdura_replica::runtime::RunError;
use perdura_store::{Store, StoreCommand};

/// Slots from one boundary to the next.
const INTERVAL: u64 = 8;

fn follower(schedule: Schedule) -> Follower {
    let checkpoint_interval = INTERVAL;
    Follower::new(|parameters| Parameters { schedule, checkpoint_interval, ..parameters })
}

/// One that has executed all up to a boundary, and logged it, and was given two slots more.
fn at_boundary(schedule: Schedule) -> Follower {
    let mut follower = follower(schedule);
    follower.decide(Command::Open, 0);
    for number in 1..INTERVAL {
        follower.decide(put(number), number);
    }
    follower.persist();
    for number in INTERVAL..INTERVAL + 2 {
        follower.decide(put(number), number);
    }
    follower.persist();
    follower
}

fn executed(follower: &Follower) -> Slot {
    follower.node.report().executed
}

fn stored(follower: &mut Follower) {
    let manifest = follower.storing.remove(0).manifest();
    follower.node.handle(now(follower.now_ms), Input::CheckpointStored { manifest });
    follower.end_round();
    follower.persist();
}

#[test]
fn nothing_is_executed_from_a_boundary_until_its_state_is_stored() {
    for (schedule, meanwhile) in [(Schedule::Coordinated, 2), (Schedule::StopTheWorld, 0)] {
        let mut follower = at_boundary(schedule);
        assert_eq!(follower.storing.len(), 1, "{schedule:?}");
        assert_eq!(follower.node.report().decided, Slot(INTERVAL + 2));
        assert_eq!(executed(&follower), Slot(INTERVAL + meanwhile), "{schedule:?}");
        assert_eq!(follower.replies as u64, INTERVAL + meanwhile, "{schedule:?}");
        stored(&mut follower);
        assert_eq!(executed(&follower), Slot(INTERVAL + 2), "{schedule:?}");
        assert_eq!(follower.replies as u64, INTERVAL + 2, "{schedule:?}");
        // And so at the next one.
        for number in INTERVAL + 2..2 * INTERVAL + 3 {
            follower.decide(put(number), number);
        }
        follower.persist();
        let more = if schedule == Schedule::Coordinated { 3 } else { 0 };
        assert_eq!(executed(&follower), Slot(2 * INTERVAL + more), "{schedule:?}");
    }
}

/// Agreement ends a pipeline's depth above what is executed. Nobody else is to blame for that.
#[test]
fn a_leader_is_not_suspected_for_the_time_in_which_the_replica_itself_stands_still() {
    let mut follower = at_boundary(Schedule::StopTheWorld);
    follower.propose(put(INTERVAL + 2), INTERVAL + 2);
    follower.wait(60_000);
    assert_eq!((follower.suspicions, executed(&follower)), (0, Slot(INTERVAL)));
    stored(&mut follower);
    follower.wait(500);
    assert_eq!((follower.suspicions, executed(&follower)), (0, Slot(INTERVAL + 2)));
    // From now on the leader has its time-out, which is eight times as long beside a disk that does nothing.
    follower.wait(9_000);
    assert!(follower.suspicions > 0);
}

#[test]
fn what_waits_for_a_checkpoint_is_bounded_by_the_pipeline() {
    let mut follower = at_boundary(Schedule::StopTheWorld);
    for number in INTERVAL + 2..INTERVAL + 50 {
        follower.decide(put(number), number);
    }
    follower.persist();
    let report = follower.node.report();
    assert_eq!((report.decided, report.executed), (Slot(INTERVAL + DEPTH), Slot(INTERVAL)));
    stored(&mut follower);
    assert_eq!(executed(&follower), Slot(INTERVAL + DEPTH));
}

/// A write that fails is not reported: the driver stops the replica. What is reported is a state that
/// cannot be stored, for it is not what was digested.
#[test]
fn a_state_that_cannot_be_stored_ends_more_than_the_wait_for_it() {
    let mut follower = at_boundary(Schedule::StopTheWorld);
    let what = "piece 0 is not what it was".to_owned();
    follower.node.handle(now(follower.now_ms), Input::StateDamaged { what });
    follower.end_round();
    assert!(follower.diverged);
    assert_eq!(follower.node.report().state, State::Diverged);
    // Nor is anything executed any more.
    follower.decide(put(INTERVAL + 2), INTERVAL + 2);
    follower.persist();
    follower.wait(5_000);
    assert_eq!((executed(&follower), follower.replies as u64), (Slot(INTERVAL), INTERVAL));
}

fn group() -> Group<Store> {
    let change = |parameters| Parameters { schedule: Schedule::StopTheWorld, ..parameters };
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
