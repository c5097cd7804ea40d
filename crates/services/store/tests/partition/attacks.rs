//! What those try who lie, and what is refused.

use super::world::*;
use crate::support::{bytes, range, read, write};
use perdura_execution::{Alone as _, Service};
use perdura_protocol::{Encode, PartitionId, PublicKey, ReplicaId, SecretKey, SessionId, Time};
use perdura_store::partition::{
    Blocker, Certificate, Fence, Members, PartitionCommand, PartitionReply, Reason, Signed,
    Statement, limits,
};
use perdura_store::{Operation, StoreCommand};

/// A transaction that both have voted to commit.
fn voted(world: &mut World) -> (perdura_store::partition::Intent, PartitionReply) {
    let intent = world.intent(client(1), 1, false, &two_writes("1"));
    world.prepare(&intent, client(1), &two_writes("1")[0]);
    let vote = world.prepare(&intent, client(1), &two_writes("1")[1]);
    assert!(is_commit(&vote));
    (intent, vote)
}

#[test]
fn nothing_commits_without_the_votes_of_all_others() {
    let mut world = World::new(3);
    let parts = [
        (0, vec![write("a1", "1", false)]),
        (1, vec![write("b1", "1", false)]),
        (2, vec![write("c1", "1", false)]),
    ];
    let intent = world.intent(client(1), 1, false, &parts);
    let replies: Vec<PartitionReply> =
        parts.iter().map(|part| world.prepare(&intent, client(1), part)).collect();
    let (first, second) = (world.proof(1, &replies[1]), world.proof(2, &replies[2]));
    let transaction = intent.id();
    let mut finish = |votes: &[&Certificate], commit| {
        let votes = votes.iter().map(|vote| (*vote).clone()).collect();
        world.ordered(0, client(1), &PartitionCommand::Finish { transaction, commit, votes })
    };
    let missing = |partition| Some(Err(format!("the vote of partition {partition} is missing")));
    assert_eq!(finish(&[], true), missing(1));
    assert_eq!(finish(&[&first], true), missing(2));
    assert_eq!(finish(&[&second, &second], true), missing(1));
    assert!(finish(&[], false).unwrap().is_err());
    // A vote to commit is none to abort.
    assert_eq!(finish(&[&first], false), None);
    let finished = PartitionReply::Finished { transaction, committed: true };
    assert_eq!(finish(&[&first, &second], true), Some(Ok(finished)));
}

#[test]
fn votes_that_are_forged_or_of_something_else_are_never_ordered() {
    let mut world = World::new(3);
    let (intent, vote) = voted(&mut world);
    let transaction = intent.id();
    let right = world.proof(1, &vote);
    let other = perdura_store::partition::TransactionId::default();
    let statement = |transaction| Statement::Vote { transaction, commit: true };
    let mut finish = |votes: Vec<Certificate>| {
        world.ordered(0, client(1), &PartitionCommand::Finish { transaction, commit: true, votes })
    };
    let changed = |change: &dyn Fn(&mut Certificate)| {
        let mut vote = right.clone();
        change(&mut vote);
        vec![vote]
    };
    let never: Vec<(&str, Vec<Certificate>)> = vec![
        ("a signature", changed(&|vote| vote.signers[1].1.signature.0[0] ^= 1)),
        ("one signer", changed(&|vote| drop(vote.signers.pop()))),
        ("one signer twice", changed(&|vote| vote.signers[1] = vote.signers[0].clone())),
        ("not ascending", changed(&|vote| vote.signers.swap(0, 1))),
        ("another group", changed(&|vote| vote.partition = partition(2))),
        ("no group", changed(&|vote| vote.partition = partition(9))),
        ("another place", changed(&|vote| vote.signers[0].1.index = 1)),
        ("a configuration", changed(&|vote| vote.signers[1].1.configuration = 1)),
    ];
    for (what, votes) in never {
        assert_eq!(finish(votes), None, "{what}");
    }
    let world = &mut world;
    let of_other = world.certificate(1, &statement(other));
    let abort = world.certificate(1, &Statement::Vote { transaction, commit: false });
    let expired = world.certificate(1, &Statement::Expired { transaction });
    let own = world.certificate(0, &statement(transaction));
    let mut finish = |votes| {
        world.ordered(0, client(1), &PartitionCommand::Finish { transaction, commit: true, votes })
    };
    for (what, votes) in [("of another", of_other), ("to abort", abort), ("expired", expired)] {
        assert_eq!(finish(vec![votes]), None, "{what}");
    }
    assert!(finish(vec![right.clone(), own]).unwrap().is_err(), "its own");
    assert!(finish(vec![right]).unwrap().is_ok());
}

/// A key of the liar's own signs as well as any other: it has to be a member's.
#[test]
fn who_signs_has_to_be_a_member() {
    let mut world = World::new(2);
    let (intent, _) = voted(&mut world);
    let transaction = intent.id();
    let strangers = (0..4).map(|id| SecretKey::from_seed(SCHEME, [90 + id; 32])).collect();
    let members = std::mem::replace(&mut world.members[1], strangers);
    let votes = vec![world.certificate(1, &Statement::Vote { transaction, commit: true })];
    world.members[1] = members;
    let finish = PartitionCommand::Finish { transaction, commit: true, votes };
    let outdated = PartitionReply::Outdated { partition: partition(1), configuration: 0 };
    assert_eq!(world.ask(0, client(1), &finish), outdated);
    assert!(matches!(world.put("a1", "2"), Plain::Blocked(_)));
}

#[test]
fn who_the_members_are_is_the_administrators_word_and_only_grows() {
    let mut world = World::new(2);
    let (intent, _) = voted(&mut world);
    let transaction = intent.id();
    let statement = Statement::Vote { transaction, commit: true };
    let old = world.certificate(1, &statement);
    let mut keys: Vec<PublicKey> = world.members[1].iter().map(SecretKey::public).collect();
    let replaced = SecretKey::from_seed(SCHEME, [91; 32]);
    keys[1] = replaced.public();
    let record = |configuration, keys: &[PublicKey]| Members {
        partition: partition(1),
        configuration,
        keys: keys.to_vec(),
    };
    let said = |world: &World, members: &Members, by: &SecretKey| {
        PartitionCommand::Members(members.clone().signed(&world.map, by).unwrap())
    };
    let liar = SecretKey::from_seed(SCHEME, [92; 32]);
    let command = said(&world, &record(3, &keys), &liar);
    assert!(world.ordered(0, client(1), &command).unwrap().is_err());
    let mut forged = said(&world, &record(3, &keys), &world.administrator.clone());
    if let PartitionCommand::Members(newest) = &mut forged {
        newest.members.configuration = 4;
    }
    assert_eq!(world.ordered(0, client(1), &forged), None);
    let administrator = world.administrator.clone();
    let few = record(3, &keys[..3]);
    assert!(few.signed(&world.map, &administrator).is_none());
    let roster = PartitionCommand::Roster { partition: partition(1) };
    let first = PartitionReply::Roster { partition: partition(1), newest: None };
    assert_eq!(world.ask(0, client(1), &roster), first);
    let newest = said(&world, &record(3, &keys), &administrator);
    let known = |configuration| PartitionReply::Known { partition: partition(1), configuration };
    assert_eq!(world.ask(0, client(1), &newest), known(3));
    assert_eq!(world.ask(0, client(1), &newest), known(3));
    world.restart();
    // Anybody may pass it on.
    let PartitionReply::Roster { newest: Some(told), .. } = world.ask(0, client(2), &roster) else {
        panic!("it was made known");
    };
    assert_eq!(PartitionCommand::Members(told), newest);
    let older = said(&world, &record(2, &keys), &administrator);
    assert_eq!(world.ask(0, client(1), &older), known(3));
    keys[2] = replaced.public();
    let other = said(&world, &record(3, &keys), &administrator);
    let alarm = world.ordered(0, client(1), &other).unwrap();
    assert!(alarm.unwrap_err().contains("was used for two"));
    // The members have to sign again, those that are members now.
    let finish = |votes| PartitionCommand::Finish { transaction, commit: true, votes };
    let outdated = PartitionReply::Outdated { partition: partition(1), configuration: 3 };
    assert_eq!(world.ask(0, client(1), &finish(vec![old])), outdated);
    world.configurations[1] = 3;
    let still = world.certificate_by(1, &statement, &[0, 1]);
    assert_eq!(world.ask(0, client(1), &finish(vec![still])), outdated, "its key is void");
    world.members[1][1] = replaced;
    let right = world.certificate_by(1, &statement, &[1, 2]);
    assert!(matches!(
        world.ask(0, client(1), &finish(vec![right])),
        PartitionReply::Finished { .. }
    ));
}

#[test]
fn a_part_is_prepared_by_its_client_in_the_session_that_it_names_and_as_it_is_bound() {
    let mut world = World::new(3);
    let parts = two_writes("1");
    let intent = world.intent(client(1), 1, false, &parts);
    let command = |intent: &perdura_store::partition::Intent, operations: &[Operation]| {
        PartitionCommand::Prepare { intent: intent.clone(), operations: operations.to_vec() }
    };
    let mut refused =
        |at, who, command: &PartitionCommand| world.ordered(at, who, command).unwrap().unwrap_err();
    let later = SessionId { nonce: 2, ..client(1) };
    for who in [client(2), later] {
        assert!(refused(0, who, &command(&intent, &parts[0].1)).contains("its own client"));
    }
    let other = two_writes("2");
    assert!(refused(0, client(1), &command(&intent, &other[0].1)).contains("not this partition's"));
    assert!(refused(0, client(1), &command(&intent, &parts[1].1)).contains("not this partition's"));
    assert!(refused(2, client(1), &command(&intent, &parts[0].1)).contains("does not take part"));
    let mut foreign = intent.clone();
    foreign.cluster = perdura_protocol::ClusterId([8; 16]);
    assert!(refused(0, client(1), &command(&foreign, &parts[0].1)).contains("another cluster"));
    let mut unknown = intent.clone();
    unknown.participants[1].partition = partition(7);
    assert!(refused(0, client(1), &command(&unknown, &parts[0].1)).contains("there are not"));
    // A client that names one group twice, or itself alone, has made no command.
    for participants in [vec![0, 0], vec![1, 0], vec![0]] {
        let mut intent = intent.clone();
        intent.participants =
            participants.iter().map(|index: &usize| intent.participants[*index]).collect();
        assert!(refused(0, client(1), &command(&intent, &parts[0].1)).contains("two at least"));
    }
    assert_eq!(world.put("a1", "free"), PUT);
}

#[test]
fn keys_of_another_partition_and_other_maps_get_a_vote_to_abort() {
    let mut world = World::new(2);
    let parts = [(0, vec![write("b9", "1", false)]), (1, vec![write("b1", "1", false)])];
    let intent = world.intent(client(1), 1, false, &parts);
    assert_eq!(reason(world.prepare(&intent, client(1), &parts[0])), Reason::Map);
    let mut other = world.intent(client(1), 2, false, &two_writes("1"));
    other.map = 2;
    assert_eq!(reason(world.prepare(&other, client(1), &two_writes("1")[0])), Reason::Map);
    let write_only = world.intent(client(1), 3, true, &two_writes("1"));
    assert_eq!(reason(world.prepare(&write_only, client(1), &two_writes("1")[0])), Reason::Writes);
    // The same without a transaction over several.
    let put = StoreCommand::Put { key: bytes("b9"), value: bytes("1") };
    let refused = world.stores[0].order(&crate::support::context(), &put.to_bytes());
    assert!(refused.unwrap_err().contains("is in partition 1"));
}

#[test]
fn nobody_resolves_what_lives_with_a_word_that_is_not_a_participants() {
    let mut world = World::new(3);
    let intent = world.intent(client(1), 1, false, &two_writes("1"));
    let transaction = intent.id();
    let expired = Statement::Expired { transaction };
    let mut resolve = |of: u16| {
        let expired = Some(world.certificate(of, &expired));
        world.ordered(1, client(2), &PartitionCommand::Resolve { intent: intent.clone(), expired })
    };
    assert!(resolve(2).unwrap().is_err(), "it does not take part");
    assert!(resolve(1).unwrap().is_err(), "its own");
    assert_eq!(reason(resolve(0).unwrap().unwrap()), Reason::Resolved);
    // Its own client needs no proof, nor has it to be the session that it names.
    let another = world.intent(client(1), 2, false, &two_writes("1"));
    let resolve = PartitionCommand::Resolve { intent: another, expired: None };
    let later = SessionId { nonce: 77, ..client(1) };
    assert_eq!(reason(world.ask(1, later, &resolve)), Reason::Resolved);
}

#[test]
fn a_client_that_leaves_its_transactions_to_others_may_have_fewer_of_them() {
    let mut world = World::new(2);
    let mut counter = 0;
    let mut leave = |world: &mut World| {
        counter += 1;
        let key = format!("a{counter}");
        let parts = [(0, vec![write(&key, "1", false)]), (1, vec![read("b1")])];
        let intent = world.intent(client(1), counter, false, &parts);
        let vote = world.prepare(&intent, client(1), &parts[0]);
        (intent.id(), vote)
    };
    let mut ended = Vec::new();
    for _ in 0..limits::PENDING_PER_CLIENT {
        let (id, vote) = leave(&mut world);
        assert!(is_commit(&vote));
        ended.push(id);
    }
    let cap = |pending| Reason::Cap { pending };
    assert_eq!(reason(leave(&mut world).1), cap(limits::PENDING_PER_CLIENT));
    world.pass(limits::EXPIRY_MS);
    for id in ended {
        let statement = Statement::Vote { transaction: id, commit: false };
        let votes = [world.certificate(1, &statement)];
        world.finish(0, client(2), (id, false), &votes);
    }
    let (held, vote) = leave(&mut world);
    assert!(is_commit(&vote), "one is always let through");
    assert_eq!(reason(leave(&mut world).1), cap(1));
    world.restart();
    // Sixteen that it ends itself are one more.
    let abort = |world: &World, transaction| {
        [world.certificate(1, &Statement::Vote { transaction, commit: false })]
    };
    let votes = abort(&world, held);
    world.finish(0, client(1), (held, false), &votes);
    for _ in 1..limits::REDEEMED_BY {
        let (id, vote) = leave(&mut world);
        assert!(is_commit(&vote));
        let votes = abort(&world, id);
        world.finish(0, client(1), (id, false), &votes);
    }
    assert!(is_commit(&leave(&mut world).1) && is_commit(&leave(&mut world).1));
    assert_eq!(reason(leave(&mut world).1), cap(2));
}

#[test]
fn a_partition_that_is_down_does_not_lock_the_others_up() {
    let mut world = World::new(3);
    let mut counter = 0;
    let mut prepare = |world: &mut World, other: u16| {
        counter += 1;
        let key = format!("a{counter}");
        let far = ["", "b1", "c1"][usize::from(other)];
        let parts = [(0, vec![write(&key, "1", false)]), (other, vec![read(far)])];
        let intent = world.intent(client(1), counter, false, &parts);
        let vote = world.prepare(&intent, client(1), &parts[0]);
        (intent.id(), vote)
    };
    let (stuck, vote) = prepare(&mut world, 1);
    assert!(is_commit(&vote));
    world.pass(limits::UNREACHABLE_MS + 1);
    let is_unreachable = |reply| match reason(reply) {
        Reason::Unreachable { partition: PartitionId(1), oldest } => {
            assert!(matches!(oldest, Blocker::Transaction { intent, .. } if intent.id() == stuck));
        }
        other => panic!("{other:?}"),
    };
    is_unreachable(prepare(&mut world, 1).1);
    world.restart();
    is_unreachable(prepare(&mut world, 1).1);
    assert!(is_commit(&prepare(&mut world, 2).1), "another one answers");
    let votes = [world.certificate(1, &Statement::Vote { transaction: stuck, commit: true })];
    world.finish(0, client(1), (stuck, true), &votes);
    assert!(is_commit(&prepare(&mut world, 1).1), "it was heard of");
}

/// What is pending on it may wait for a third one.
#[test]
fn a_partition_that_answers_is_told_from_one_that_does_not_by_what_it_signs() {
    let mut world = World::new(3);
    let parts =
        |key: &str| -> [Part; 2] { [(0, vec![write(key, "1", false)]), (1, vec![read("b1")])] };
    let stuck = world.intent(client(1), 1, false, &parts("a1"));
    assert!(is_commit(&world.prepare(&stuck, client(1), &parts("a1")[0])));
    let (session, mut counter) = (client(2), 0);
    let mut is_admitted = |world: &mut World| {
        counter += 1;
        let intent = world.intent(session, counter, false, &parts("a2"));
        let voted = world.prepare(&intent, session, &parts("a2")[0]);
        if !is_commit(&voted) {
            assert!(matches!(reason(voted), Reason::Unreachable { .. }));
            return false;
        }
        let vote = Statement::Vote { transaction: intent.id(), commit: false };
        let vote = world.certificate(1, &vote);
        let votes = vec![vote];
        let finish = PartitionCommand::Finish { transaction: intent.id(), commit: false, votes };
        world.ask(0, session, &finish);
        true
    };
    let show = |world: &mut World, at: u64| {
        let signed = Signed::Agreed(Time(at));
        let fence = Statement::Fence { session, below: 0, now: signed };
        let proof = world.certificate(1, &fence);
        let fences = vec![Fence { proof, nonce: session.nonce, below: 0, signed }];
        world.ask(0, session, &PartitionCommand::Forget { session, fences });
    };
    let first = world.clock;
    // Clocks of two groups differ by a second at most here.
    world.pass(limits::UNREACHABLE_MS + 1_001);
    assert!(!is_admitted(&mut world));
    // Long ago it did answer, which says nothing; and its clock may be ahead.
    show(&mut world, first);
    assert!(!is_admitted(&mut world));
    let ahead = world.clock + 60_000;
    show(&mut world, ahead);
    world.restart();
    assert!(is_admitted(&mut world));
    world.pass(limits::UNREACHABLE_MS + 1);
    assert!(!is_admitted(&mut world), "nothing was heard since");
    let now = world.clock;
    show(&mut world, now);
    assert!(is_admitted(&mut world));
}

#[test]
fn what_a_client_invents_is_remembered_up_to_its_limit() {
    let mut world = World::new(2);
    // From version 2 on it is fenced off instead.
    world.go_on_under(1);
    let intent = |world: &World, who, counter| world.intent(who, counter, false, &two_writes("1"));
    let resolve = |intent| PartitionCommand::Resolve { intent, expired: None };
    for counter in 0..u64::from(limits::RECORDS_PER_CLIENT) {
        let invented = resolve(intent(&world, client(1), counter));
        assert_eq!(reason(world.ask(0, client(1), &invented)), Reason::Resolved);
    }
    let before = world.stores[0].state_bytes();
    let more = resolve(intent(&world, client(1), 1 << 40));
    let refused = world.ordered(0, client(1), &more).unwrap();
    assert!(refused.unwrap_err().contains("are remembered in partition 0"));
    assert_eq!(world.stores[0].state_bytes(), before);
    // What is known is told as ever, and others have limits of their own.
    let known = resolve(intent(&world, client(1), 7));
    assert_eq!(reason(world.ask(0, client(1), &known)), Reason::Resolved);
    let of_other = intent(&world, client(2), 1);
    assert!(is_commit(&world.prepare(&of_other, client(2), &two_writes("1")[0])));
}

/// Its key is on each server.
#[test]
fn who_is_there_to_end_transactions_does_nothing_else() {
    let mut world = World::new(2);
    let resolver = SessionId { client: RESOLVER, nonce: 5 };
    let parts = two_writes("1");
    let own = world.intent(resolver, 1, false, &parts);
    let operations = parts[0].1.clone();
    let prepare = PartitionCommand::Prepare { intent: own, operations };
    let refused = world.ordered(0, resolver, &prepare).unwrap();
    assert!(refused.unwrap_err().contains("for ending transactions"));
    let put = StoreCommand::Put { key: bytes("a1"), value: bytes("1") };
    let context =
        perdura_execution::ExecutionContext { session: resolver, ..crate::support::context() };
    let refused = world.stores[0].order(&context, &put.to_bytes());
    assert!(refused.unwrap_err().contains("for ending transactions"));
    let get = StoreCommand::Get { key: bytes("a1") }.to_bytes();
    let refused = world.stores[0].answer(RESOLVER, &get).unwrap();
    assert!(refused.unwrap_err().contains("for ending transactions"));
    assert!(world.stores[0].answer(client(1).client, &get).unwrap().is_ok());
    let intent = world.intent(client(1), 1, false, &parts);
    for part in &parts {
        assert!(is_commit(&world.prepare(&intent, client(1), part)));
    }
    let resolve = PartitionCommand::Resolve { intent: intent.clone(), expired: None };
    let vote = world.ask(1, resolver, &resolve);
    let votes = [world.proof(1, &vote)];
    let committed = PartitionReply::Finished { transaction: intent.id(), committed: true };
    assert_eq!(world.finish(0, resolver, (intent.id(), true), &votes), committed);
}

/// A participant is gone for good: the administrator decides for it, and cannot decide against what was decided.
#[test]
fn only_the_administrator_ends_a_transaction_without_votes() {
    let mut world = World::new(2);
    let intent = world.intent(client(1), 1, false, &two_writes("1"));
    let transaction = intent.id();
    assert!(is_commit(&world.prepare(&intent, client(1), &two_writes("1")[0])));
    let force = |commit| PartitionCommand::Force { intent: intent.clone(), commit };
    let refused = world.ordered(0, client(1), &force(true)).unwrap();
    assert!(refused.unwrap_err().contains("only the administrator"));
    let administrator = SessionId { client: world.administrator.public(), nonce: 1 };
    assert!(
        world.ordered(1, administrator, &force(true)).unwrap().unwrap_err().contains("no part")
    );
    let finished = |committed| PartitionReply::Finished { transaction, committed };
    assert_eq!(world.ask(1, administrator, &force(false)), finished(false));
    assert_eq!(world.ask(0, administrator, &force(false)), finished(false));
    assert_eq!(world.put("a1", "2"), PUT);
    let against = world.ordered(0, administrator, &force(true)).unwrap();
    assert!(against.unwrap_err().contains("it was aborted"));
    assert_eq!(world.ask(0, administrator, &force(false)), finished(false));
    let late = world.prepare(&intent, client(1), &two_writes("1")[1]);
    assert_eq!(reason(late), Reason::Resolved);
}

/// What one client reads does not make every write of others slow.
#[test]
fn ranges_that_are_read_have_a_bound() {
    let mut world = World::new(2);
    // From version 2 on the last of these is left less.
    world.go_on_under(1);
    let ranges: Vec<Operation> = (0..1024).map(|_| range("a5", Some("a6"), 1, false)).collect();
    let parts = [(0, ranges), (1, vec![read("b1")])];
    let one = [(0, vec![range("a7", None, 1, false)]), (1, vec![read("b1")])];
    let asks = |world: &mut World, who, counter, parts: &[Part; 2]| {
        let intent = world.intent(who, counter, true, parts);
        world.prepare(&intent, who, &parts[0])
    };
    for who in 1..=4 {
        assert!(is_commit(&asks(&mut world, client(who), 1, &parts)));
        // A client by itself leaves room for others.
        let told = reason(asks(&mut world, client(who), 2, &one));
        assert_eq!(told, Reason::Conflict(Blocker::Ranges));
    }
    let told = reason(asks(&mut world, client(5), 1, &one));
    assert_eq!(told, Reason::Conflict(Blocker::Ranges));
    assert_eq!(world.put("a7", "1"), PUT);
}

#[test]
fn a_certificate_names_each_of_its_signers_once() {
    let world = World::new(2);
    let statement = Statement::Fence { session: client(1), below: 7, now: Signed::Agreed(Time(1)) };
    let certificate = world.certificate_by(1, &statement, &[2, 3]);
    assert!(certificate.claims(&world.map, &statement).is_some());
    assert_eq!(certificate.signers[1].1.signer, ReplicaId(3));
    let more = world.certificate_by(1, &statement, &[0, 2, 3]);
    assert!(more.claims(&world.map, &statement).is_none(), "exactly as many as it takes");
}
