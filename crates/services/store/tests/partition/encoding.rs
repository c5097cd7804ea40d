//! Commands and replies are decoded as they were encoded, and nothing else is.

use super::world::*;
use crate::support::{bytes, cmp, insert, range, read, write};
use perdura_protocol::{Decode, DecodeError, Encode, PublicKey, Signature, Slot, Time};
use perdura_store::OperationResult;
use perdura_store::partition::{
    Blocker, Fence, Intent, Members, PartitionCommand, PartitionReply, Reason, Signed,
    SignedMembers, Statement, Vote, Waiting, Wanted, Way,
};
use std::fmt::Debug;

fn both_ways<T: Encode + Decode + PartialEq + Debug>(values: Vec<T>) {
    for value in values {
        let encoded = value.to_bytes();
        assert_eq!(T::from_bytes(encoded.clone()).as_ref(), Ok(&value));
        for length in 0..encoded.len() {
            let cut = T::from_bytes(encoded.slice(..length));
            assert!(cut.is_err(), "{length} bytes of {value:?} are {cut:?}");
        }
        let longer = bytes([&encoded[..], &[0]].concat());
        assert_eq!(T::from_bytes(longer), Err(DecodeError::TrailingBytes));
    }
}

fn signed_members() -> SignedMembers {
    SignedMembers {
        members: Members {
            partition: partition(1),
            configuration: 2,
            keys: vec![PublicKey([4; 32]); 4],
        },
        administrator: PublicKey([9; 32]),
        signature: Signature([8; 64]),
    }
}

#[test]
fn commands_are_decoded_as_they_were_encoded() {
    let world = World::new(3);
    let parts = [
        (0, vec![cmp("a", None), read("a"), range("a", None, 7, true), insert("a2", "1")]),
        (2, vec![write("c", "1", true)]),
    ];
    let intent = world.intent(client(1), 7, false, &parts);
    let transaction = intent.id();
    let vote = |of| world.certificate(of, &Statement::Vote { transaction, commit: true });
    let fence = world.certificate(
        2,
        &Statement::Fence { session: client(1), below: 5, now: Signed::Clock(Time(4)) },
    );
    both_ways(vec![
        PartitionCommand::Prepare { intent: intent.clone(), operations: parts[0].1.clone() },
        PartitionCommand::PrepareLast {
            intent: intent.clone(),
            operations: parts[1].1.clone(),
            votes: vec![vote(0)],
        },
        PartitionCommand::Finish { transaction, commit: true, votes: vec![vote(1), vote(2)] },
        PartitionCommand::Finish { transaction, commit: false, votes: vec![] },
        PartitionCommand::Resolve { intent: intent.clone(), expired: None },
        PartitionCommand::Resolve { intent: intent.clone(), expired: Some(vote(2)) },
        PartitionCommand::Expire { transaction },
        PartitionCommand::Fence { session: client(3), below: u64::MAX },
        PartitionCommand::Forget {
            session: client(1),
            fences: vec![Fence {
                proof: fence,
                nonce: 1,
                below: 5,
                signed: Signed::Clock(Time(4)),
            }],
        },
        PartitionCommand::Members(signed_members()),
        PartitionCommand::Pending { after: None },
        PartitionCommand::Pending { after: Some((Time(9), transaction)) },
        PartitionCommand::Over { after: None },
        PartitionCommand::Over { after: Some((Time(9), transaction)) },
        PartitionCommand::Show { transaction },
        PartitionCommand::Roster { partition: partition(1) },
        PartitionCommand::Force { intent, commit: true },
        PartitionCommand::Validate { since: Slot(7), operations: parts[0].1.clone() },
        PartitionCommand::End { partition: partition(1) },
        PartitionCommand::Mark { wanted: Wanted::by(&parts[0].1), waits: true },
        PartitionCommand::Mark { wanted: Wanted::by(&[]), waits: false },
    ]);
}

#[test]
fn replies_are_decoded_as_they_were_encoded_and_say_what_they_state() {
    let world = World::new(2);
    let intent = world.intent(client(1), 7, true, &two_reads());
    let transaction = intent.id();
    let by = |pending_ms| Blocker::Transaction { intent: Box::new(intent.clone()), pending_ms };
    let voted =
        |attested, vote, results| PartitionReply::Voted { transaction, attested, vote, results };
    let results = vec![OperationResult::Compared, OperationResult::Value(Some(bytes("v")))];
    let reasons = vec![
        Reason::Failed { operation: 3 },
        Reason::Conflict(by(7)),
        Reason::Conflict(Blocker::Ranges),
        Reason::Cap { pending: 8 },
        Reason::Room,
        Reason::TooMuch,
        Reason::Map,
        Reason::Fenced,
        Reason::Unreachable { partition: partition(1), oldest: by(9) },
        Reason::Resolved,
        Reason::Writes,
    ];
    let aborts: Vec<PartitionReply> =
        reasons.into_iter().map(|reason| voted(true, Vote::Abort(reason), None)).collect();
    let states = |reply: &PartitionReply| PartitionReply::statement(&reply.to_bytes());
    let against = Some(Statement::Vote { transaction, commit: false });
    assert!(aborts.iter().all(|reply| states(reply) == against));
    both_ways(aborts);
    let session = client(4);
    let stating = vec![
        (
            voted(true, Vote::Commit, Some(results.clone())),
            Statement::Vote { transaction, commit: true },
        ),
        (voted(true, Vote::Commit, None), Statement::Vote { transaction, commit: true }),
        (PartitionReply::Expired { transaction }, Statement::Expired { transaction }),
        (
            PartitionReply::Fenced { session, below: 6, now: Signed::Agreed(Time(9)) },
            Statement::Fence { session, below: 6, now: Signed::Agreed(Time(9)) },
        ),
    ];
    for (reply, statement) in stating {
        assert_eq!(states(&reply), Some(statement));
        both_ways(vec![reply]);
    }
    let waiting = Waiting { since: Time(5), intent: intent.clone() };
    let silent = vec![
        voted(false, Vote::Commit, Some(results)),
        PartitionReply::Unknown { transaction },
        PartitionReply::Finished { transaction, committed: true },
        PartitionReply::Young { transaction, left_ms: 3 },
        PartitionReply::Forgotten { count: 3 },
        PartitionReply::Validated { holds: true },
        PartitionReply::Ended { partition: partition(1) },
        PartitionReply::Marked { way: Way::Free },
        PartitionReply::Marked { way: Way::Held { blocker: by(8), again_ms: 3 } },
        PartitionReply::Marked { way: Way::Marked { again_ms: 5 } },
        PartitionReply::Known { partition: partition(1), configuration: 3 },
        PartitionReply::Outdated { partition: partition(1), configuration: 3 },
        PartitionReply::Pending { transactions: vec![waiting], more: true, now: Time(9) },
        PartitionReply::Shown {
            since: Time(1),
            now: Time(2),
            intent: intent.clone(),
            vote: Vote::Commit,
            committed: Some(false),
        },
        PartitionReply::Blocked(by(1)),
        PartitionReply::Roster { partition: partition(1), newest: None },
        PartitionReply::Roster { partition: partition(1), newest: Some(signed_members()) },
    ];
    assert!(silent.iter().all(|reply| states(reply).is_none()));
    assert!(silent.iter().all(|reply| PartitionReply::is_one(&reply.to_bytes())));
    both_ways(silent);
    // Bytes that are no reply state nothing.
    for bytes in [&[][..], &[16], &[16; 40], &[19; 20], &[21; 48], &[200; 60]] {
        assert_eq!(PartitionReply::statement(bytes), None, "{bytes:?}");
    }
}

#[test]
fn no_transaction_has_the_last_number_since_no_fence_is_above_it() {
    let world = World::new(2);
    let parts = [(0, vec![read("a")]), (1, vec![read("b")])];
    let intent = |counter| world.intent(client(1), counter, true, &parts);
    let last = intent(u64::MAX - 1);
    assert_eq!(Intent::from_bytes(last.to_bytes()), Ok(last));
    assert!(Intent::from_bytes(intent(u64::MAX).to_bytes()).is_err());
}
