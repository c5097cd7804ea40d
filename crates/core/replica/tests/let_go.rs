//! States that are needed no more are given out to be freed, and not freed by the node: of a large one that
//! takes long.

use crate::common;

use crate::follower::{Follower, now, put};
use perdura_protocol::configuration::{Parameters, Schedule};
use perdura_protocol::statement::StatementKind;
use perdura_protocol::{Command, Context, Digest, Message, Scheme, SecretKey, Slot, View};
use perdura_replica::node::Input;

/// Slots from one boundary of the group to the next.
const INTERVAL: u64 = 8;

/// Passes so many boundaries, whose states are digested and stored as the follower wants it. Those it gave
/// to be stored, those it let go, and those it wanted digested, by their slots. The leader has the same digests,
/// and says so of states up to `certified`.
fn passed(schedule: Schedule, boundaries: u64, certified: u64) -> [Vec<Slot>; 3] {
    let n = if schedule == Schedule::Sequential { 3 } else { 1 };
    let mut follower = Follower::new(|parameters| Parameters {
        schedule,
        checkpoint_interval: INTERVAL * n,
        ..parameters
    });
    let (mut stored, mut digested) = (Vec::new(), Vec::new());
    follower.decide(Command::Open, 0);
    for number in 1..INTERVAL * boundaries {
        follower.decide(put(number), number);
        follower.persist();
        for snapshot in std::mem::take(&mut follower.digesting) {
            let manifest = snapshot.manifest();
            digested.push(snapshot.slot());
            let digest = manifest.digest();
            follower.node.handle(now(follower.now_ms), Input::StateDigested { manifest, digest });
            let boundary = follower.node.report().boundary;
            assert_eq!(boundary, Some((snapshot.slot(), digest)), "whoever stores it");
            if snapshot.slot().0 <= certified {
                follower.give(&leaders_vote(snapshot.slot(), digest));
            }
        }
        for snapshot in std::mem::take(&mut follower.storing) {
            let manifest = snapshot.manifest();
            stored.push(snapshot.slot());
            follower.node.handle(now(follower.now_ms), Input::CheckpointStored { manifest });
        }
        follower.end_round();
        follower.persist();
    }
    follower.wait(100);
    let let_go = follower.let_go.iter().map(|state| state.slot()).collect();
    [stored, let_go, digested]
}

fn leaders_vote(slot: Slot, digest: Digest) -> Message {
    let key = SecretKey::from_seed(Scheme::KeyedHash, [10; 32]);
    let context = Context { cluster: common::CLUSTER, configuration: 0 };
    let signature = key.sign(&context.statement(StatementKind::Checkpoint, View(0), slot, digest));
    Message::Checkpoint { slot, digest, signature }
}

#[test]
fn all_but_the_last_two_that_are_stored() {
    let [stored, let_go, digested] = passed(Schedule::Coordinated, 6, 0);
    assert_eq!(stored, (1..=6).map(|k| Slot(k * INTERVAL)).collect::<Vec<_>>());
    assert_eq!(let_go, stored[..4]);
    assert!(digested.is_empty());
}

#[test]
fn all_but_the_last_two_that_are_digested_and_the_last_two_that_are_stored() {
    let [stored, mut let_go, digested] = passed(Schedule::Sequential, 12, 0);
    assert_eq!(digested, (1..=12).map(|k| Slot(k * INTERVAL)).collect::<Vec<_>>());
    assert_eq!(stored.len(), 4);
    let mut expected = [&digested[..10], &stored[..2]].concat();
    expected.sort();
    let_go.sort();
    assert_eq!(let_go, expected, "once for each place that it had");
}

/// Others are given the newest that is certified, so the older ones only take memory.
#[test]
fn all_before_the_last_that_is_certified() {
    let [stored, mut let_go, digested] = passed(Schedule::Sequential, 12, u64::MAX);
    assert_eq!((digested.len(), stored.len()), (12, 4));
    let last = digested[11];
    let mut expected = [&digested[..11], &stored[..]].concat();
    expected.retain(|slot| *slot < last);
    expected.sort();
    let_go.sort();
    assert_eq!(let_go, expected, "once for each place that it had");
}

/// However many come after it that nobody else has signed.
#[test]
fn what_others_are_given_stays_until_they_can_be_given_a_newer_one() {
    let [stored, let_go, digested] = passed(Schedule::Sequential, 12, 5 * INTERVAL);
    let offered = digested[4];
    assert!(!stored.contains(&offered), "it is held in one place");
    assert!(!let_go.contains(&offered), "{let_go:?}");
    assert!(let_go.contains(&digested[9]), "later ones that are not certified have gone");
}

/// What is to be stored is passed over while a state before it is not stored yet, and so is what waits to be
/// digested.
#[test]
fn those_that_are_passed_over() {
    for schedule in [Schedule::Coordinated, Schedule::Sequential] {
        let n = if schedule == Schedule::Sequential { 3 } else { 1 };
        let mut follower = Follower::new(|parameters| Parameters {
            schedule,
            checkpoint_interval: INTERVAL * n,
            ..parameters
        });
        follower.decide(Command::Open, 0);
        for number in 1..INTERVAL * 9 {
            follower.decide(put(number), number);
            follower.persist();
        }
        let passed_over = follower.node.report().counters.boundaries_passed_over;
        assert!(passed_over > 0, "{schedule:?}");
        assert_eq!(follower.let_go.len() as u64, passed_over, "{schedule:?}");
    }
}

/// After a restart the certified state goes to those for whom the log was cut. Each is certified only while a later
/// one is on its way to the disk, which pushes older ones out.
#[test]
fn the_log_is_cut_only_below_a_certified_state_that_is_on_disk() {
    for late in 0..4 {
        let mut follower =
            Follower::new(|parameters| Parameters { checkpoint_interval: INTERVAL, ..parameters });
        let mut states: Vec<(Slot, Digest)> = Vec::new();
        let (mut on_disk, mut certified): (Vec<Slot>, Vec<Slot>) = (Vec::new(), Vec::new());
        follower.decide(Command::Open, 0);
        for number in 1..INTERVAL * 12 {
            follower.decide(put(number), number);
            follower.persist();
            let Some(snapshot) = follower.storing.pop() else { continue };
            let (manifest, keep) = (snapshot.manifest(), follower.keeps.pop().unwrap());
            states.push((manifest.slot, manifest.digest()));
            if let Some((slot, digest)) = states.iter().rev().nth(late) {
                follower.give(&leaders_vote(*slot, *digest));
                follower.end_round();
                follower.persist();
                certified.push(*slot);
            }
            let last = on_disk.last().copied();
            on_disk.retain(|slot| Some(*slot) == last || *slot == keep);
            on_disk.push(manifest.slot);
            follower.node.handle(now(follower.now_ms), Input::CheckpointStored { manifest });
            follower.end_round();
            follower.persist();
            let can_be_offered = on_disk.iter().filter(|slot| certified.contains(slot)).max();
            assert!(
                follower.truncated < can_be_offered.copied().unwrap_or(Slot(1)),
                "cut up to {} with {on_disk:?} on disk, {certified:?} certified ({late} late)",
                follower.truncated
            );
        }
        assert_eq!(follower.truncated > Slot(0), late < 2, "{late} late");
    }
}
