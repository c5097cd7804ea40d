//! What the administrator may order, and who may not.

use crate::support::*;
use bytes::Bytes;
use perdura_execution::{GenesisError, Machine};
use perdura_protocol::configuration::Member;
use perdura_protocol::{
    AdminCommand, Batch, Outcome, PublicKey, RefusalReason, ReplicaId, Slot, Time, limits,
};

const CAROL: PublicKey = PublicKey([3; 32]);

fn add_client(name: &str, key: PublicKey) -> Bytes {
    admin(AdminCommand::AddClient { name: name.into(), key })
}

fn replace(replica: u8, incarnation: u32, key: PublicKey) -> Bytes {
    admin(AdminCommand::ReplaceReplica { replica: ReplicaId(replica), incarnation, key })
}

fn contradiction(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Refused(RefusalReason::Contradiction(text)) => text,
        other => panic!("not a contradiction: {other:?}"),
    }
}

#[test]
fn clients_are_added_and_revoked() {
    let mut replica = Replica::new();
    let root = session(ADMINISTRATOR, 1);
    replica.open(root);
    let done = Outcome::Administered { configuration: 0, from_slot: 0 };
    assert_eq!(replica.one(root, 1, &add_client("carol", CAROL)), done);
    assert!(replica.0.is_client(CAROL));
    assert_eq!(replica.open(session(CAROL, 1)), Outcome::Opened);
    let names: Vec<&str> = replica.0.clients().map(|(name, _)| name).collect();
    assert_eq!(names, ["alice", "bob", "carol"]);
    // Ordering the same again, after an interruption, changes nothing.
    assert_eq!(replica.one(root, 2, &add_client("carol", CAROL)), done);
    let fresh = PublicKey([50; 32]);
    let refused = [
        (add_client("carol", fresh), "named \"carol\" is registered"),
        (add_client("dave", CAROL), "registered as client \"carol\""),
        (add_client("dave", ADMINISTRATOR), "administrator's"),
        (add_client("dave", member(2).key), "replica's"),
        (add_client("", fresh), "1 to 64 bytes"),
        (admin(AdminCommand::RevokeClient { name: "dave".into() }), "no client named \"dave\""),
    ];
    for (number, (command, text)) in (3..).zip(refused) {
        let outcome = replica.one(root, number, &command);
        assert!(contradiction(&outcome).contains(text), "{outcome:?}");
    }
    assert_eq!(replica.0.clients().count(), 3);
}

#[test]
fn only_the_administrator_administers() {
    let mut replica = Replica::new();
    let alice = session(ALICE, 1);
    replica.open(alice);
    let outcome = replica.one(alice, 1, &add_client("carol", CAROL));
    assert_eq!(outcome, Outcome::Refused(RefusalReason::NotAdministrator));
    assert!(!replica.0.is_client(CAROL));
    assert!(replica.0.is_client(ADMINISTRATOR));
}

#[test]
fn revoking_and_adding_in_one_frame_keeps_the_order() {
    let mut replica = Replica::new();
    let root = session(ADMINISTRATOR, 1);
    replica.open(root);
    replica.open(session(ALICE, 1));
    let revoke = admin(AdminCommand::RevokeClient { name: "alice".into() });
    let commands = [revoke, add_client("alice", CAROL), add_client("alice2", ALICE)];
    let outcomes = replica.order(&frame(root, 0, 1, &commands));
    assert!(matches!(outcomes[1], Outcome::Administered { .. }));
    assert!(contradiction(&outcomes[2]).contains("revoked"));
    assert_eq!(replica.0.cached(session(ALICE, 1), 0), None);
}

#[test]
fn the_number_of_clients_is_bounded() {
    let mut replica = Replica::new();
    let root = session(ADMINISTRATOR, 1);
    replica.open(root);
    let total = limits::CLIENTS - 2;
    for index in 0..total {
        let mut key = [250; 32];
        key[..8].copy_from_slice(&(index as u64).to_le_bytes());
        let number = index as u64 + 1;
        let command = add_client(&format!("c{index}"), PublicKey(key));
        let outcome = replica.order(&frame(root, number, number, &[command])).remove(0);
        assert!(matches!(outcome, Outcome::Administered { .. }));
    }
    let number = total as u64 + 1;
    let full = frame(root, number, number, &[add_client("carol", CAROL)]);
    assert!(contradiction(&replica.order(&full)[0]).contains("4096 clients"));
    assert!(replica.restored(Counter::default()).is_ok());
}

#[test]
fn a_replaced_replica_starts_a_configuration_one_depth_later() {
    let mut replica = Replica::new();
    let root = session(ADMINISTRATOR, 1);
    replica.open(root);
    let fresh = PublicKey([60; 32]);
    for (number, (command, text)) in (1..).zip([
        (replace(4, 1, fresh), "no replica 4"),
        (replace(1, 0, fresh), "incarnation 0"),
        (replace(1, 2, fresh), "incarnation 0"),
        (replace(1, 1, member(1).key), "replica's"),
        (replace(1, 1, ALICE), "alice"),
    ]) {
        let outcome = replica.one(root, number, &command);
        assert!(contradiction(&outcome).contains(text), "{outcome:?}");
    }
    let slot = replica.0.slot().next();
    let batch = Batch::requests(Time(1), vec![frame(root, 0, 6, &[replace(1, 1, fresh)])]);
    let executed = replica.execute(&batch);
    let configuration = executed.new_configuration.unwrap();
    assert_eq!((configuration.id, configuration.from_slot), (1, slot.plus(DEPTH)));
    assert_eq!(configuration.members[1], Member { key: fresh, incarnation: 1 });
    assert_eq!(configuration.members[2], member(2));
    assert_eq!(replica.0.configurations().last(), Some(&configuration));
    let from_slot = configuration.from_slot.0;
    let expected = Outcome::Administered { configuration: 1, from_slot };
    assert_eq!(executed.replies[0].outcome, expected);
    // Ordering the same again, after an interruption, is answered alike and changes nothing.
    assert_eq!(replica.one(root, 7, &replace(1, 1, fresh)), expected);
    assert_eq!(replica.0.configurations().len(), 2);
    // Another has to wait until this one governs.
    let next = PublicKey([61; 32]);
    let mut number = 8;
    while replica.0.slot().next() < configuration.from_slot {
        let outcome = replica.one(root, number, &replace(2, 1, next));
        assert!(contradiction(&outcome).contains("pending"));
        number += 1;
    }
    let outcome = replica.one(root, number, &replace(2, 1, next));
    assert!(matches!(outcome, Outcome::Administered { configuration: 2, .. }));
    // A former replica's key is not used again.
    assert!(
        contradiction(&replica.one(root, number + 1, &add_client("x", member(1).key)))
            .contains("replica's")
    );
}

#[test]
fn the_latest_sixteen_configurations_are_kept() {
    let mut replica = Replica::new();
    let root = session(ADMINISTRATOR, 1);
    replica.open(root);
    for incarnation in 1..=20u32 {
        let key = PublicKey([20 + incarnation as u8; 32]);
        let outcome = replica.one(root, u64::from(incarnation), &replace(0, incarnation, key));
        assert!(matches!(outcome, Outcome::Administered { .. }), "{outcome:?}");
        for _ in 0..DEPTH {
            replica.execute(&Batch::null());
        }
    }
    let ids: Vec<u64> = replica.0.configurations().iter().map(|c| c.id).collect();
    assert_eq!(ids, (5..=20).collect::<Vec<u64>>());
    let copy = replica.restored(Counter::default()).unwrap();
    assert_eq!(copy.0.configurations(), replica.0.configurations());
}

#[test]
fn a_contradictory_genesis_is_refused() {
    let start = |change: &dyn Fn(&mut perdura_execution::Genesis)| {
        let mut genesis = genesis();
        change(&mut genesis);
        Machine::new(&parameters(), genesis, Counter::default()).map(|_| ()).unwrap_err()
    };
    assert_eq!(start(&|g| g.configuration.id = 3), GenesisError::Number(3));
    assert_eq!(
        start(&|g| g.configuration.members.truncate(3)),
        GenesisError::Members { expected: 4, found: 3 }
    );
    let shared = |g: &mut perdura_execution::Genesis| g.configuration.members[1] = member(0);
    assert_eq!(start(&shared), GenesisError::SharedKey(member(0).key));
    let twice = |g: &mut perdura_execution::Genesis| g.clients[1].1 = ALICE;
    assert!(matches!(start(&twice), GenesisError::Client { .. }));
    let same = |g: &mut perdura_execution::Genesis| g.clients[1] = g.clients[0].clone();
    assert!(matches!(start(&same), GenesisError::Client { .. }));
}

#[test]
#[should_panic(expected = "one after the other")]
fn a_slot_is_never_left_out() {
    let mut replica = Replica::new();
    replica.0.execute(Slot(2), &Batch::null());
}
