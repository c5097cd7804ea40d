//! The participant that is asked last, and decides.

use super::world::*;
use crate::support::{bytes, cmp, insert, read, write};
use perdura_store::OperationResult;
use perdura_store::partition::{
    Certificate, Intent, PartitionCommand, PartitionReply, Reason, Statement, Vote,
};

fn last(intent: &Intent, part: &Part, votes: Vec<Certificate>) -> PartitionCommand {
    let (intent, operations) = (intent.clone(), part.1.clone());
    PartitionCommand::PrepareLast { intent, operations, votes }
}

#[test]
fn its_vote_decides_and_it_holds_nothing() {
    let mut world = World::new(2);
    let parts =
        [(0, vec![write("a1", "1", false)]), (1, vec![read("b1"), write("b1", "2", false)])];
    let intent = world.intent(client(1), 1, false, &parts);
    let transaction = intent.id();
    let first = world.prepare(&intent, client(1), &parts[0]);
    let command = last(&intent, &parts[1], vec![world.proof(0, &first)]);
    let voted = |results| PartitionReply::Voted {
        transaction,
        attested: true,
        vote: Vote::Commit,
        results,
    };
    let results = vec![OperationResult::Value(None), OperationResult::Written];
    assert_eq!(world.ask(1, client(1), &command), voted(Some(results)));
    assert_eq!(world.get("b1"), Some(bytes("2")));
    assert_eq!(world.put("b1", "3"), PUT);
    world.restart();
    // The vote stays, and nothing happens twice, whoever asks and however.
    assert_eq!(world.ask(1, client(1), &command), voted(None));
    assert_eq!(world.prepare(&intent, client(1), &parts[1]), voted(None));
    let resolve = PartitionCommand::Resolve { intent: intent.clone(), expired: None };
    assert_eq!(world.ask(1, client(2), &resolve), voted(None));
    assert_eq!(world.get("b1"), Some(bytes("3")));
    let proof = world.proof(1, &voted(None));
    let finished = PartitionReply::Finished { transaction, committed: true };
    assert_eq!(world.finish(0, client(1), (transaction, true), &[proof]), finished);
    assert_eq!(world.get("a1"), Some(bytes("1")));
}

#[test]
fn it_votes_to_abort_like_any_other() {
    let mut world = World::new(2);
    world.put("b1", "there");
    let parts = [(0, vec![write("a1", "1", false)]), (1, vec![insert("b1", "2")])];
    let intent = world.intent(client(1), 1, false, &parts);
    let first = world.prepare(&intent, client(1), &parts[0]);
    let command = last(&intent, &parts[1], vec![world.proof(0, &first)]);
    let against = world.ask(1, client(1), &command);
    assert_eq!(reason(against.clone()), Reason::Failed { operation: 0 });
    let votes = [world.proof(1, &against)];
    let aborted = PartitionReply::Finished { transaction: intent.id(), committed: false };
    assert_eq!(world.finish(0, client(1), (intent.id(), false), &votes), aborted);
    // It meets the locks of others.
    let left = world.intent(client(2), 1, false, &two_writes("3"));
    assert!(is_commit(&world.prepare(&left, client(2), &two_writes("3")[1])));
    let parts = [(0, vec![write("a1", "1", false)]), (1, vec![cmp("b1", None)])];
    let intent = world.intent(client(1), 2, false, &parts);
    let first = world.prepare(&intent, client(1), &parts[0]);
    let command = last(&intent, &parts[1], vec![world.proof(0, &first)]);
    assert!(matches!(reason(world.ask(1, client(1), &command)), Reason::Conflict(_)));
}

#[test]
fn one_that_was_prepared_before_ends_with_the_votes() {
    let mut world = World::new(2);
    let parts = two_writes("1");
    let intent = world.intent(client(1), 1, false, &parts);
    let first = world.prepare(&intent, client(1), &parts[0]);
    assert!(is_commit(&world.prepare(&intent, client(1), &parts[1])));
    let command = last(&intent, &parts[1], vec![world.proof(0, &first)]);
    assert!(is_commit(&world.ask(1, client(1), &command)));
    assert_eq!(world.get("b1"), Some(bytes("1")));
    assert_eq!(world.put("b1", "2"), PUT);
}

#[test]
fn nothing_is_decided_without_the_votes_of_all_others_by_their_newest_members() {
    let mut world = World::new(3);
    let parts = [
        (0, vec![write("a1", "1", false)]),
        (1, vec![write("b1", "1", false)]),
        (2, vec![write("c1", "1", false)]),
    ];
    let intent = world.intent(client(1), 1, false, &parts);
    let transaction = intent.id();
    let vote =
        |world: &World, of, commit| world.certificate(of, &Statement::Vote { transaction, commit });
    let both = vec![vote(&world, 0, true), vote(&world, 1, true)];
    let command = |votes| last(&intent, &parts[2], votes);
    let refused = |world: &mut World, votes| {
        world.ordered(2, client(1), &command(votes)).unwrap().unwrap_err()
    };
    assert!(refused(&mut world, both[..1].to_vec()).contains("partition 1 is missing"));
    assert!(refused(&mut world, Vec::new()).contains("partition 0 is missing"));
    let own = vote(&world, 2, true);
    assert!(refused(&mut world, vec![both[0].clone(), own]).contains("does not take part"));
    // What is no vote to commit this one is never ordered.
    let mut forged = both.clone();
    forged[1].signers[0].1.signature.0[0] ^= 1;
    let against = vec![both[0].clone(), vote(&world, 1, false)];
    for votes in [forged, against] {
        assert_eq!(world.ordered(2, client(1), &command(votes)), None);
    }
    // Nor in the name of others, nor of what only reads.
    let who = world.ordered(2, client(2), &command(both.clone())).unwrap().unwrap_err();
    assert!(who.contains("its own client"), "{who}");
    let reads = world.intent(client(1), 2, true, &two_reads());
    let of_reads = Statement::Vote { transaction: reads.id(), commit: true };
    let of_reads = world.certificate(0, &of_reads);
    let what = last(&reads, &two_reads()[1], vec![of_reads]);
    let why = world.ordered(1, client(1), &what).unwrap().unwrap_err();
    assert!(why.contains("only reads"), "{why}");
    assert_eq!(world.get("c1"), None);
    // Members that have changed sign anew.
    world.replace_member(2, 0);
    let outdated = world.ask(2, client(1), &command(both));
    assert!(matches!(outdated, PartitionReply::Outdated { configuration: 1, .. }), "{outdated:?}");
    assert_eq!(world.get("c1"), None);
    let newest = vec![vote(&world, 0, true), vote(&world, 1, true)];
    assert!(is_commit(&world.ask(2, client(1), &command(newest))));
    assert_eq!(world.get("c1"), Some(bytes("1")));
}
