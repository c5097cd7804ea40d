//! What who may do.

use super::*;
use perdura_protocol::{Attestation, ReplicaId, Signature};
use perdura_store::partition::Signed;

#[test]
fn nobody_ends_what_he_may_not() {
    let stranger = |command: PartitionCommand, reply: PartitionReply, read_only: bool| {
        let mut made = Made::new();
        let parts = [vec![read("a1")], vec![read("b1")]];
        let intent = made.intent(1, 1, [&parts[0], &parts[1]], read_only);
        made.prepares((0, None), &intent, &parts[0], &[value(None)]);
        made.executes(0, 2, None, (command.to_bytes(), reply.to_bytes()));
        made.judge().map_err(|broken| broken.rule).unwrap_err()
    };
    let made = Made::new();
    let parts = [vec![read("a1")], vec![read("b1")]];
    for read_only in [true, false] {
        let transaction = made.intent(1, 1, [&parts[0], &parts[1]], read_only).id();
        let (commit, committed, votes) = (true, true, Vec::new());
        let finish = PartitionCommand::Finish { transaction, commit, votes };
        let finished = PartitionReply::Finished { transaction, committed };
        assert_eq!(stranger(finish, finished, read_only), RULE_ATOMIC);
    }
    let unknown = made.intent(1, 2, [&parts[0], &parts[1]], false);
    let (transaction, vote) = (unknown.id(), Vote::Abort(Reason::Resolved));
    let resolve = PartitionCommand::Resolve { intent: unknown, expired: None };
    let voted = PartitionReply::Voted { transaction, attested: true, vote, results: None };
    assert_eq!(stranger(resolve, voted, false), RULE_ALIVE);
}

#[test]
fn nothing_is_prepared_below_a_fence() {
    for (below, is_kept) in [(1, true), (2, false)] {
        let mut made = Made::new();
        let session = SessionId { client: client(1), nonce: 1 };
        let fence = PartitionCommand::Fence { session, below };
        let fenced = PartitionReply::Fenced { session, below, now: Signed::Agreed(Time(1)) };
        made.executes(0, 1, None, (fence.to_bytes(), fenced.to_bytes()));
        writes_both(&mut made, 1, "1", [Some(true); 2]);
        assert_eq!(made.judge().is_ok(), is_kept);
    }
}

/// What former members signed ends nothing for others, and its own client needs nothing signed.
#[test]
fn former_members_are_not_believed() {
    let signed = Attestation {
        signer: ReplicaId(1),
        configuration: 7,
        index: 0,
        count: 1,
        path: Vec::new(),
        signature: Signature([0; 64]),
    };
    let proof = Certificate { partition: PartitionId(1), signers: vec![(client(9), signed)] };
    for (asker, is_kept) in [(1, true), (2, false)] {
        let mut made = Made::new();
        let parts = [vec![read("a1")], vec![read("b1")]];
        let intent = made.intent(1, 1, [&parts[0], &parts[1]], false);
        let (transaction, vote) = (intent.id(), Vote::Abort(Reason::Resolved));
        let resolve = PartitionCommand::Resolve { intent, expired: Some(proof.clone()) };
        let voted = PartitionReply::Voted { transaction, attested: true, vote, results: None };
        made.executes(0, asker, None, (resolve.to_bytes(), voted.to_bytes()));
        assert_eq!(made.judge().is_ok(), is_kept);
    }
}
