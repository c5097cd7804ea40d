//! Whether what was read without an order still holds.

use super::world::*;
use crate::support::{bytes, cmp, insert, range, read, remove, write};
use perdura_execution::Alone as _;
use perdura_protocol::{Decode, Encode, Slot};
use perdura_store::Operation;
use perdura_store::partition::{Blocker, PartitionCommand, PartitionReply};

const HOLDS: PartitionReply = PartitionReply::Validated { holds: true };
const CHANGED: PartitionReply = PartitionReply::Validated { holds: false };

impl World {
    /// What a replica of partition 0 says of what was read behind a slot.
    fn validate(&self, since: u64, operations: &[Operation]) -> Result<PartitionReply, String> {
        let operations = operations.to_vec();
        let command = PartitionCommand::Validate { since: Slot(since), operations };
        let reply = self.stores[0]
            .answer(perdura_protocol::PublicKey([0; 32]), &command.to_bytes())
            .expect("it is a read")?;
        Ok(PartitionReply::from_bytes(reply).unwrap())
    }
}

#[test]
fn what_was_read_holds_until_it_is_changed() {
    let mut world = World::new(2);
    assert_eq!(world.validate(0, &[read("a1")]), Ok(CHANGED), "nobody knows yet");
    world.put("a1", "1");
    let since = world.slot;
    for operation in [read("a1"), cmp("a1", Some("1")), range("a", Some("b"), 10, false)] {
        assert_eq!(world.validate(since, std::slice::from_ref(&operation)), Ok(HOLDS));
        assert_eq!(world.validate(since - 1, &[read("a2"), operation]), Ok(CHANGED));
    }
    let all = [read("a1"), read("a2"), range("a5", Some("a7"), 10, false)];
    let mut since = since;
    for step in 0..6 {
        match step {
            0 => assert_eq!(world.put("a1", "1"), PUT, "the same value again"),
            1 => assert!(matches!(world.transact(0, vec![insert("a2", "2")]), Plain::Done(_))),
            2 => {
                assert!(matches!(world.transact(0, vec![write("a5", "5", false)]), Plain::Done(_)))
            }
            3 => assert!(matches!(world.transact(0, vec![remove("a1")]), Plain::Done(_))),
            4 => assert!(world.run(client(1), 1, &two_writes("7"))),
            _ => assert!(matches!(world.put("a6", "6"), Plain::Done(_))),
        }
        assert_eq!(world.validate(since, &all), Ok(CHANGED), "{step}");
        since = world.slot;
        assert_eq!(world.validate(since, &all), Ok(HOLDS), "{step}");
    }
    // Something else.
    world.put("a3", "3");
    world.put("a7", "7");
    assert_eq!(world.validate(since, &all), Ok(HOLDS));
}

#[test]
fn of_a_range_only_what_was_seen_counts() {
    let mut world = World::new(2);
    for key in ["a1", "a2", "a3", "a4", "a6"] {
        world.put(key, "0");
    }
    let since = world.slot;
    world.put("a41", "behind the first one that was left out");
    let cases = [(2, false, HOLDS), (3, false, HOLDS), (4, false, CHANGED)];
    for (limit, reverse, expected) in cases.into_iter().chain([(1, true, CHANGED)]) {
        let some = [range("a", Some("b"), limit, reverse)];
        assert_eq!(world.validate(since, &some), Ok(expected), "{limit} {reverse}");
    }
    let since = world.slot;
    world.transact(0, vec![remove("a3")]);
    let two = [range("a", Some("b"), 2, false)];
    let backwards = [range("a", Some("b"), 1, true)];
    assert_eq!(world.validate(since, &backwards), Ok(HOLDS));
    assert_eq!(world.validate(since, &two), Ok(HOLDS), "another one is left out now");
    world.put("a3", "0");
    assert_eq!(world.validate(since, &two), Ok(CHANGED), "the one that was left out came");
}

/// Whoever reads between a commit in one partition and the same in another one would see half of it.
#[test]
fn what_is_being_written_does_not_hold_though_nothing_has_changed() {
    let mut world = World::new(2);
    world.put("a1", "0");
    let since = world.slot;
    let parts = two_writes("1");
    let intent = world.intent(client(1), 1, false, &parts);
    assert!(is_commit(&world.prepare(&intent, client(1), &parts[0])));
    let blocker = Blocker::Transaction { intent: Box::new(intent.clone()), pending_ms: 0 };
    let blocked = Ok(PartitionReply::Blocked(blocker));
    assert_eq!(world.validate(since, &[read("a1")]), blocked);
    assert_eq!(world.validate(since, &[range("a", None, 10, false)]), blocked);
    assert_eq!(world.validate(since, &[read("a2")]), Ok(HOLDS));
    // It is aborted: nothing has changed.
    let against = world.ask(
        1,
        client(1),
        &PartitionCommand::Resolve { intent: intent.clone(), expired: None },
    );
    let votes = [world.proof(1, &against)];
    world.finish(0, client(1), (intent.id(), false), &votes);
    assert_eq!(world.validate(since, &[read("a1")]), Ok(HOLDS));
    // Others who read are in nobody's way.
    let reading = world.intent(client(1), 2, true, &two_reads());
    assert!(is_commit(&world.prepare(&reading, client(1), &two_reads()[0])));
    assert_eq!(world.validate(since, &[read("a1")]), Ok(HOLDS));
}

#[test]
fn it_is_not_part_of_the_state() {
    let mut world = World::new(2);
    world.put("a1", "1");
    world.restart();
    let since = world.slot;
    assert_eq!(world.validate(since, &[read("a1")]), Ok(CHANGED), "nobody knows any more");
    world.get("a1");
    assert_eq!(world.validate(since, &[read("a1")]), Ok(HOLDS));
    assert_eq!(world.validate(since - 1, &[read("a1")]), Ok(CHANGED));
    // All replicas have to answer alike in order, and each goes by what it remembers.
    let command = PartitionCommand::Validate { since: Slot(since), operations: vec![read("a1")] };
    assert!(world.ordered(0, client(1), &command).expect("nothing is signed").is_err());
    assert!(world.validate(since, &[write("a1", "2", false)]).is_err());
    let too_many = vec![read("a1"); perdura_store::limits::OPERATIONS + 1];
    let command = PartitionCommand::Validate { since: Slot(since), operations: too_many };
    assert!(matches!(
        world.stores[0].answer(perdura_protocol::PublicKey([0; 32]), &command.to_bytes()),
        Some(Err(_))
    ));
    assert_eq!(world.get("a1"), Some(bytes("1")));
}
