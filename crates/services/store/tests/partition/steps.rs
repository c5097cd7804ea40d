//! What becomes of transactions whose clients do as they should, or die.

use super::world::*;
use crate::support::{bytes, cmp, insert, range, read, remove, write};
use perdura_execution::{Service, Standing};
use perdura_protocol::Time;
use perdura_store::partition::{
    Blocker, Fence, PartitionCommand, PartitionReply, Reason, Signed, Statement, Vote, limits,
};
use perdura_store::{OperationResult, StoreReply};

#[test]
fn what_all_vote_for_is_there_in_all_partitions_and_nothing_is_before() {
    let mut world = World::new(2);
    let parts = [
        (0, vec![write("a1", "1", false), read("a1")]),
        (1, vec![cmp("b1", None), insert("b1", "2")]),
    ];
    let intent = world.intent(client(1), 1, false, &parts);
    let first = world.prepare(&intent, client(1), &parts[0]);
    let results = vec![OperationResult::Written, OperationResult::Value(Some(bytes("1")))];
    let transaction = intent.id();
    let voted = |results| PartitionReply::Voted {
        transaction,
        attested: true,
        vote: Vote::Commit,
        results,
    };
    assert_eq!(first, voted(Some(results)));
    // It is in the way of others, and says who it is.
    let Plain::Blocked(Blocker::Transaction { intent: in_the_way, pending_ms: 0 }) =
        world.put("a1", "other")
    else {
        panic!("not blocked");
    };
    assert_eq!(*in_the_way, intent);
    let second = world.prepare(&intent, client(1), &parts[1]);
    assert!(is_commit(&second));
    world.restart();
    // Whoever asks again is told the same, without the results.
    assert_eq!(world.prepare(&intent, client(1), &parts[0]), voted(None));
    let votes = [world.proof(1, &second)];
    let finished = PartitionReply::Finished { transaction, committed: true };
    assert_eq!(world.finish(0, client(1), (transaction, true), &votes), finished);
    assert_eq!(world.get("a1"), Some(bytes("1")));
    assert!(matches!(
        world.plain(1, &perdura_store::StoreCommand::Get { key: bytes("b1") }),
        Plain::Blocked(_)
    ));
    let votes = [world.proof(0, &first)];
    assert_eq!(world.finish(1, client(1), (transaction, true), &votes), finished);
    assert_eq!(world.get("b1"), Some(bytes("2")));
    assert_eq!(world.put("a1", "3"), PUT);
    // Once is enough.
    assert_eq!(world.finish(0, client(1), (transaction, true), &[]), finished);
    assert_eq!(world.get("a1"), Some(bytes("3")));
}

#[test]
fn one_vote_to_abort_aborts_and_is_final() {
    let mut world = World::new(2);
    world.put("b1", "there");
    let parts =
        [(0, vec![write("a1", "1", false)]), (1, vec![write("b2", "1", false), insert("b1", "2")])];
    let intent = world.intent(client(1), 1, false, &parts);
    assert!(is_commit(&world.prepare(&intent, client(1), &parts[0])));
    let against = world.prepare(&intent, client(1), &parts[1]);
    assert_eq!(reason(against.clone()), Reason::Failed { operation: 1 });
    // The key goes, and the vote stays.
    world.transact(1, vec![remove("b1")]);
    world.restart();
    assert_eq!(world.prepare(&intent, client(1), &parts[1]), against);
    let resolve = PartitionCommand::Resolve { intent: intent.clone(), expired: None };
    assert_eq!(world.ask(1, client(2), &resolve), against);
    let votes = [world.proof(1, &against)];
    let aborted = PartitionReply::Finished { transaction: intent.id(), committed: false };
    assert_eq!(world.finish(0, client(1), (intent.id(), false), &votes), aborted);
    assert_eq!((world.get("a1"), world.get("b2")), (None, None));
    assert_eq!(world.put("a1", "2"), PUT);
}

#[test]
fn of_two_in_conflict_one_is_told_who_the_other_is() {
    let mut world = World::new(2);
    let first = world.intent(client(1), 1, false, &two_writes("1"));
    assert!(is_commit(&world.prepare(&first, client(1), &two_writes("1")[0])));
    world.pass(300);
    let second = world.intent(client(2), 1, false, &two_writes("2"));
    let told = reason(world.prepare(&second, client(2), &two_writes("2")[0]));
    let blocker = Blocker::Transaction { intent: Box::new(first), pending_ms: 300 };
    assert_eq!(told, Reason::Conflict(blocker));
    // Later it is not told whose it was.
    let again = reason(world.prepare(&second, client(2), &two_writes("2")[0]));
    assert_eq!(again, Reason::Conflict(Blocker::Other));
}

/// A range that somebody saw stays as it was seen, and only as far as it was seen.
#[test]
fn nothing_appears_in_a_range_that_is_being_read() {
    let mut world = World::new(2);
    for key in ["a1", "a2", "a3", "a5"] {
        world.put(key, "0");
    }
    let parts = [(0, vec![range("a", Some("b"), 3, false)]), (1, vec![write("b1", "1", false)])];
    let intent = world.intent(client(1), 1, false, &parts);
    assert!(is_commit(&world.prepare(&intent, client(1), &parts[0])));
    let is_blocked = |reply| matches!(reply, Plain::Blocked(_));
    assert!(is_blocked(world.put("a11", "1")) && is_blocked(world.put("a3", "1")));
    assert!(is_blocked(world.transact(0, vec![remove("a2")])));
    assert_eq!(world.put("a31", "1"), PUT);
    assert_eq!(world.put("a4", "1"), PUT);
    // It was told that there is more.
    assert!(is_blocked(world.transact(0, vec![remove("a5")])));
    assert_eq!(world.put("a51", "1"), PUT);
    assert!(matches!(
        world.transact(0, vec![read("a1"), range("a", None, 9, true)]),
        Plain::Done(StoreReply::Transaction(_))
    ));
    // From the end it is seen from there.
    let parts = [(0, vec![range("a", Some("b"), 2, true)]), (1, vec![write("b2", "1", false)])];
    let backwards = world.intent(client(2), 1, false, &parts);
    assert!(is_commit(&world.prepare(&backwards, client(2), &parts[0])));
    assert!(is_blocked(world.put("a4", "1")) && is_blocked(world.put("a6", "1")));
    assert_eq!(world.put("a31", "2"), PUT);
}

#[test]
fn a_dead_clients_transaction_is_ended_by_others_when_it_has_expired() {
    let mut world = World::new(2);
    let intent = world.intent(client(1), 1, false, &two_writes("1"));
    let transaction = intent.id();
    assert!(is_commit(&world.prepare(&intent, client(1), &two_writes("1")[0])));
    assert_eq!(world.stores[0].due(), Some(Time(world.clock + limits::EXPIRY_MS)));
    let expire = PartitionCommand::Expire { transaction };
    let young = PartitionReply::Young { transaction, left_ms: limits::EXPIRY_MS };
    assert_eq!(world.ask(0, client(2), &expire), young);
    let resolve = |expired| PartitionCommand::Resolve { intent: intent.clone(), expired };
    let unknown = PartitionReply::Unknown { transaction };
    assert_eq!(world.ask(1, client(2), &resolve(None)), unknown, "no stranger kills a live one");
    world.pass(limits::EXPIRY_MS);
    assert_eq!(world.stores[0].due(), None);
    let expired = world.ask(0, client(2), &expire);
    assert_eq!(expired, PartitionReply::Expired { transaction });
    let proof = world.proof(0, &expired);
    let vote = world.ask(1, client(2), &resolve(Some(proof)));
    assert_eq!(reason(vote.clone()), Reason::Resolved);
    world.restart();
    // Its part comes too late.
    let late = world.prepare(&intent, client(1), &two_writes("1")[1]);
    assert_eq!(reason(late), Reason::Resolved);
    let votes = [world.proof(1, &vote)];
    let aborted = PartitionReply::Finished { transaction, committed: false };
    assert_eq!(world.finish(0, client(2), (transaction, false), &votes), aborted);
    assert_eq!(world.put("a1", "2"), PUT);
}

#[test]
fn a_dead_clients_transaction_that_all_voted_for_is_committed_by_anybody_at_once() {
    let mut world = World::new(2);
    let intent = world.intent(client(1), 1, false, &two_writes("1"));
    for part in &two_writes("1") {
        assert!(is_commit(&world.prepare(&intent, client(1), part)));
    }
    let resolve = PartitionCommand::Resolve { intent: intent.clone(), expired: None };
    for (at, other) in [(0, 1), (1, 0)] {
        let vote = world.ask(other, client(2), &resolve);
        let votes = [world.proof(other, &vote)];
        let committed = PartitionReply::Finished { transaction: intent.id(), committed: true };
        assert_eq!(world.finish(at, client(2), (intent.id(), true), &votes), committed);
    }
    assert_eq!((world.get("a1"), world.get("b1")), (Some(bytes("1")), Some(bytes("1"))));
}

#[test]
fn one_that_only_reads_is_ended_by_its_client_without_votes() {
    let mut world = World::new(2);
    world.put("a1", "7");
    let intent = world.intent(client(1), 1, true, &two_reads());
    let vote = world.prepare(&intent, client(1), &two_reads()[0]);
    let results = Some(vec![OperationResult::Value(Some(bytes("7")))]);
    let (transaction, vote_to_commit) = (intent.id(), Vote::Commit);
    let expected =
        PartitionReply::Voted { transaction, attested: false, vote: vote_to_commit, results };
    assert_eq!(vote, expected);
    assert!(matches!(world.put("a1", "8"), Plain::Blocked(_)));
    assert_eq!(world.get("a1"), Some(bytes("7")), "others read");
    let end = PartitionCommand::Finish { transaction, commit: true, votes: vec![] };
    let refused = world.ordered(0, client(2), &end).unwrap();
    assert!(refused.unwrap_err().contains("vote of partition 1 is missing"));
    let over = PartitionReply::Finished { transaction, committed: true };
    assert_eq!(world.ask(0, client(1), &end), over);
    assert_eq!(world.put("a1", "8"), PUT);
}

#[test]
fn what_is_over_everywhere_is_forgotten_and_nothing_else() {
    let mut world = World::new(3);
    let parts = |value: &str| -> [Part; 2] {
        [(0, vec![write("a1", value, false)]), (2, vec![write("c1", value, false)])]
    };
    for counter in 1..=5 {
        let parts = parts(&counter.to_string());
        assert!(world.run(client(1), counter, &parts));
    }
    let session = client(1);
    let fence = |below| PartitionCommand::Fence { session, below };
    // Nobody else raises it.
    let now = Signed::Agreed(Time(world.clock));
    let fenced = |below| PartitionReply::Fenced { session, below, now };
    let low = fenced(0);
    assert_eq!(world.ask(0, client(2), &fence(9)), low);
    let here = world.ask(0, session, &fence(4));
    assert_eq!(here, fenced(4));
    let forget = |fences| PartitionCommand::Forget { session, fences };
    let forgotten = |count| PartitionReply::Forgotten { count };
    assert_eq!(world.ask(0, session, &forget(vec![])), forgotten(0));
    let there = world.ask(2, session, &fence(3));
    let proof = world.proof(2, &there);
    let of_other = world.certificate(1, &Statement::Fence { session, below: 9, now });
    let of_other = Fence { proof: of_other, nonce: 1, below: 9, signed: now };
    assert_eq!(world.ask(0, session, &forget(vec![of_other])), forgotten(0));
    let fences = vec![Fence { proof, nonce: session.nonce, below: 3, signed: now }];
    assert_eq!(world.ask(0, client(2), &forget(fences.clone())), forgotten(2));
    world.restart();
    assert_eq!(world.ask(0, client(2), &forget(fences)), forgotten(0));
    // What was forgotten counts as aborted, and cannot be prepared any more.
    let intent = world.intent(session, 2, false, &parts("2"));
    let resolve = PartitionCommand::Resolve { intent: intent.clone(), expired: None };
    assert_eq!(reason(world.ask(0, client(2), &resolve)), Reason::Fenced);
    assert_eq!(reason(world.prepare(&intent, session, &parts("2")[0])), Reason::Fenced);
    assert_eq!(world.get("a1"), Some(bytes("5")));
    // Of the others the votes are still there.
    let intent = world.intent(session, 3, false, &parts("3"));
    let resolve = PartitionCommand::Resolve { intent, expired: None };
    assert!(is_commit(&world.ask(0, client(2), &resolve)));
}

#[test]
fn a_fence_stays_below_what_is_pending_and_a_session_that_is_over_is_fenced_off_wholly() {
    let mut world = World::new(2);
    let session = client(1);
    let pending = world.intent(session, 7, false, &two_writes("1"));
    assert!(is_commit(&world.prepare(&pending, session, &two_writes("1")[0])));
    let fence = PartitionCommand::Fence { session, below: 100 };
    let now = Signed::Agreed(Time(world.clock));
    let fenced = |below| PartitionReply::Fenced { session, below, now };
    assert_eq!(world.ask(0, session, &fence), fenced(7));
    world.standing = Standing::Over;
    world.stores[0].session_ended(session);
    assert_eq!(world.ask(0, client(2), &fence), fenced(7), "it is pending still");
    assert_eq!(world.ask(1, client(2), &fence), fenced(u64::MAX));
    // There its part can never come, and nothing has to be kept to know that.
    let before = world.stores[1].state_bytes();
    let resolve = PartitionCommand::Resolve { intent: pending.clone(), expired: None };
    let vote = world.ask(1, client(2), &resolve);
    assert_eq!((reason(vote.clone()), world.stores[1].state_bytes()), (Reason::Fenced, before));
    let votes = [world.proof(1, &vote)];
    world.finish(0, client(2), (pending.id(), false), &votes);
    assert_eq!(world.ask(0, client(2), &fence), fenced(u64::MAX));
    let proof = world.certificate(1, &Statement::Fence { session, below: u64::MAX, now });
    let fences = vec![Fence { proof, nonce: session.nonce, below: u64::MAX, signed: now }];
    let forget = PartitionCommand::Forget { session, fences };
    assert_eq!(world.ask(0, client(2), &forget), PartitionReply::Forgotten { count: 1 });
    world.restart();
}

#[test]
fn operators_see_what_is_pending() {
    let mut world = World::new(2);
    let mut intents = Vec::new();
    for number in 0..300u64 {
        let key = format!("a{number}");
        let parts = [(0, vec![write(&key, "1", false)]), (1, vec![read("b1")])];
        let intent = world.intent(client(1), number, false, &parts);
        assert!(is_commit(&world.prepare(&intent, client(1), &parts[0])));
        intents.push(intent);
        world.pass(1);
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let list = PartitionCommand::Pending { after };
        let PartitionReply::Pending { transactions, more, .. } = world.ask(0, client(2), &list)
        else {
            panic!("no list");
        };
        after = transactions.last().map(|last| (last.since, last.intent.id()));
        seen.extend(transactions.into_iter().map(|one| one.intent));
        if !more {
            break;
        }
    }
    assert_eq!(seen, intents);
    let show = PartitionCommand::Show { transaction: intents[0].id() };
    assert!(show.is_read());
    let shown = world.ask(0, client(2), &show);
    let PartitionReply::Shown { vote: Vote::Commit, committed: None, intent, .. } = shown else {
        panic!("{shown:?}");
    };
    assert_eq!(intent, intents[0]);
}
