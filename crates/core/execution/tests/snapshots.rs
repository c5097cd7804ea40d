//! Snapshots: everything that influences execution is in them, and nothing else.

use crate::support::*;
use bytes::Bytes;
use perdura_execution::{Machine, Manifest, RestoreError};
use perdura_protocol::configuration::{Parameters, Schedule};
use perdura_protocol::{AdminCommand, Batch, Encode, Outcome, PublicKey, Slot, Time};

fn replica() -> Replica<Counter> {
    let mut replica = Replica::new();
    let root = session(ADMINISTRATOR, 7);
    replica.open(root);
    let carol = AdminCommand::AddClient { name: "carol".into(), key: PublicKey([3; 32]) };
    replica.one(root, 1, &admin(carol));
    replica.one(root, 2, &admin(AdminCommand::RevokeClient { name: "bob".into() }));
    for nonce in [3, 9] {
        replica.open(session(ALICE, nonce));
        replica.one(session(ALICE, nonce), 2, &service("add 4"));
        replica.one(session(ALICE, nonce), 4, &service("add nothing"));
    }
    replica.execute(&Batch::tick(Time(50)));
    replica
}

#[test]
fn a_restored_machine_is_the_same_machine() {
    let mut original = replica();
    let snapshot = original.0.snapshot();
    let mut copy = original.restored(Counter::default()).unwrap();
    assert_eq!(copy.0.snapshot().manifest(), snapshot.manifest());
    assert_eq!(pieces(&copy.0.snapshot()), pieces(&snapshot));
    assert_eq!((copy.0.slot(), copy.0.time()), (original.0.slot(), Time(50)));
    assert_eq!(copy.0.history(), original.0.history());
    for step in 0..20u64 {
        let id = session(ALICE, [3, 9, 11][step as usize % 3]);
        let frames = vec![opening(id), frame(id, step / 2, step / 2 + 1, &[service("add 1")])];
        let batch = Batch::requests(Time(step * 5), frames);
        assert_eq!(original.execute(&batch), copy.execute(&batch));
    }
    assert_eq!(original.0.snapshot().manifest(), copy.0.snapshot().manifest());
}

#[test]
fn the_manifest_has_core_sessions_and_segments() {
    let snapshot = replica().0.snapshot();
    let manifest = snapshot.manifest();
    assert_eq!((manifest.sessions(), manifest.segments()), (3, 1));
    assert_eq!(snapshot.pieces(), 5);
    assert_eq!(Manifest::read(manifest.to_bytes()).unwrap(), manifest);
    assert_eq!(manifest.slot, snapshot.slot());
}

#[test]
fn a_snapshot_does_not_change_with_the_machine() {
    let mut replica = replica();
    let snapshot = replica.0.snapshot();
    let before = pieces(&snapshot);
    let clone = snapshot.clone();
    replica.one(session(ALICE, 3), 5, &service("add 1"));
    replica.open(session(ALICE, 99));
    assert_eq!(pieces(&snapshot), before);
    assert_eq!(clone.manifest(), snapshot.manifest());
    assert_ne!(replica.0.snapshot().manifest().digest(), snapshot.manifest().digest());
}

#[test]
fn when_snapshots_are_taken_makes_no_difference() {
    let (mut often, mut never) = (replica(), replica());
    for number in 5..60 {
        let _ = often.0.snapshot().manifest();
        let held = often.0.snapshot();
        let command = frame(session(ALICE, 3), number / 2, number, &[service("add 1")]);
        assert_eq!(often.order(&command), never.order(&command));
        let _ = held.manifest();
    }
    assert_eq!(often.0.snapshot().manifest(), never.0.snapshot().manifest());
}

#[test]
fn a_null_batch_changes_the_digest_through_slot_and_history_only() {
    let mut replica = replica();
    let (before, old) = (replica.0.snapshot().manifest(), pieces(&replica.0.snapshot()));
    replica.execute(&Batch::null());
    assert_eq!(pieces(&replica.0.snapshot()), old);
    assert_ne!(replica.0.snapshot().manifest().digest(), before.digest());
}

#[test]
fn wrong_pieces_are_refused() {
    use perdura_execution::Machine;
    let snapshot = replica().0.snapshot();
    let manifest = snapshot.manifest();
    let good = pieces(&snapshot);
    let attempt = |pieces: Vec<Bytes>| {
        Machine::restore(&parameters(), &manifest, pieces, Counter::default()).map(|_| ())
    };
    assert_eq!(attempt(good.clone()), Ok(()));
    let count = RestoreError::Count { expected: 5, found: 4 };
    assert_eq!(attempt(good[..4].to_vec()), Err(count));
    for index in 0..good.len() {
        let mut bad = good.clone();
        let mut piece = bad[index].to_vec();
        piece[3] ^= 1;
        bad[index] = piece.into();
        assert_eq!(attempt(bad), Err(RestoreError::Digest(index)));
    }
}

/// A manifest over forged pieces verifies; what the pieces say is still checked.
#[test]
fn forged_but_consistent_pieces_never_panic() {
    use perdura_execution::{Entry, Machine};
    let snapshot = replica().0.snapshot();
    let manifest = snapshot.manifest();
    let good = pieces(&snapshot);
    let mut accepted = 0;
    for index in 0..good.len() {
        for offset in 0..good[index].len() {
            let mut forged = good.clone();
            let mut piece = forged[index].to_vec();
            piece[offset] ^= 1 << (offset % 8);
            forged[index] = piece.into();
            let mut bytes = manifest.to_bytes().to_vec();
            let place = bytes.len() - 36 * (good.len() - index);
            bytes[place..place + 36].copy_from_slice(&Entry::of(&forged[index]).to_bytes());
            let forgery = Manifest::read(bytes.into()).unwrap();
            let restored =
                Machine::restore(&parameters(), &forgery, forged.clone(), Counter::default());
            if let Ok(machine) = restored {
                // What is accepted is canonical.
                assert_eq!(pieces(&machine.snapshot()), forged);
                accepted += 1;
            }
        }
    }
    assert!(accepted > 0);
}

#[test]
fn time_never_goes_back() {
    let mut replica = Replica::new();
    for (batch, time) in [(Batch::tick(Time(9)), 9), (Batch::tick(Time(4)), 9), (Batch::null(), 9)]
    {
        replica.execute(&batch);
        assert_eq!(replica.0.time(), Time(time));
    }
    assert_eq!(replica.0.slot(), Slot(3));
}

#[test]
fn queries_read_without_ordering() {
    let replica = replica();
    assert_eq!(replica.0.query(ALICE, &service("get")), Some(reply("8")));
    assert_eq!(replica.0.query(ALICE, &service("add 1")), None);
    let stranger = PublicKey([66; 32]);
    assert!(matches!(replica.0.query(stranger, &service("get")), Some(Outcome::Refused(_))));
}

#[test]
fn footprints_include_the_session() {
    let replica = replica();
    let footprint = replica.0.inspector().footprint(session(ALICE, 3), &service("get"));
    assert!(footprint.is_everything() && footprint.session().is_some());
}

#[test]
fn whose_turn_it_is_to_store_a_checkpoint_is_part_of_the_state() {
    let sequential = Parameters { schedule: Schedule::Sequential, ..parameters() };
    let machine = |p: &Parameters| Machine::new(p, genesis(), Counter::default()).unwrap();
    let (mut later, earlier) = (machine(&sequential), machine(&sequential));
    assert_eq!(later.pass_boundary(), Some(1));
    let snapshot = later.snapshot();
    assert_ne!(snapshot.manifest().digest(), earlier.snapshot().manifest().digest());
    let restored =
        Machine::restore(&sequential, &snapshot.manifest(), pieces(&snapshot), Counter::default());
    assert_eq!(restored.unwrap().pass_boundary(), Some(2));
    assert_eq!(machine(&parameters()).pass_boundary(), None);
}
