//! What replies state is signed once it is logged, and signatures in commands are genuine before anything is ordered.

use crate::notary::single::{
    LEADER, Single, a_proposal_with_false_claims_is_not_voted_for, attested, attested_elsewhere,
    client, forged, frame, key, nothing_is_attested_before_it_is_logged, opening, proven, replied,
};
use crate::notary::{encoded, leaf, prove, say};
use bytes::Bytes;
use perdura_protocol::boots::Recalled;
use perdura_protocol::{BootId, Message, Outcome, PublicKey, ReplicaId, Slot, limits};
use perdura_replica::node::{Found, Peer};

#[test]
fn what_replies_state_is_signed_together_when_it_is_logged() {
    nothing_is_attested_before_it_is_logged();
}

#[test]
fn a_retry_is_attested_anew_and_an_unordered_read_never() {
    let mut follower = Single::new(1, (1, 0));
    follower.decide(vec![opening(50)]);
    follower.decide(vec![frame(50, 1, &[say("a"), say("b")])]);
    let retry = Message::Frame(frame(50, 1, &[say("a"), say("b")]));
    follower.give(client(50), &retry);
    follower.end_round();
    assert_eq!(follower.heard(50), [], "nor is a retry answered before");
    follower.persist();
    // Both answers leave at once, and so do their attestations.
    let heard = follower.heard(50);
    let numbers: Vec<u64> = heard
        .iter()
        .filter(|one| matches!(one, Message::Replies { .. }))
        .flat_map(replied)
        .collect();
    assert_eq!(numbers, [0, 1, 2, 1, 2]);
    follower.give(client(50), &retry);
    follower.end_round();
    let heard = follower.heard(50);
    assert_eq!((heard.len(), replied(&heard[0])), (2, vec![1, 2]));
    assert_eq!(attested(&heard[1], &[(1, "a"), (2, "b")]), [1, 2]);
    follower.give(client(50), &Message::Read { id: 9, command: encoded(say("c")) });
    follower.end_round();
    let outcome = Some(Outcome::Service(leaf("c")));
    assert_eq!(follower.heard(50), [Message::ReadReply { id: 9, slot: follower.slot, outcome }]);
}

#[test]
fn more_than_one_signature_covers_have_several() {
    let mut follower = Single::new(1, (1, 0));
    let seeds = [50, 51, 52];
    follower.decide(seeds.map(opening).to_vec());
    let text = |number: u64| format!("text {number}");
    let texts: Vec<String> = (1..=700).map(text).collect();
    let said: Vec<Bytes> = texts.iter().map(|text| say(text)).collect();
    follower.decide(seeds.map(|seed| frame(seed, 1, &said)).to_vec());
    follower.persist();
    let expected: Vec<(u64, &str)> = (1..).zip(texts.iter().map(String::as_str)).collect();
    let mut signatures = std::collections::BTreeSet::new();
    for seed in seeds {
        let heard = follower.heard(seed);
        let attestations: Vec<&Message> =
            heard.iter().filter(|one| matches!(one, Message::Attested(_))).collect();
        let numbers: Vec<u64> =
            attestations.iter().flat_map(|one| attested(one, &expected)).collect();
        assert!(numbers.into_iter().eq(1..=700));
        for message in attestations {
            let Message::Attested(attested) = message else { unreachable!() };
            signatures.insert((attested.signature, attested.count));
        }
    }
    let counts: u32 = signatures.iter().map(|(_, count)| count).sum();
    assert_eq!((signatures.len(), counts), (3, 2100));
}

/// It answers, for what it executed is decided; but whether its log is the newest that it had is not known yet.
#[test]
fn a_restarted_replica_signs_when_it_has_compared_its_boot() {
    let mut former = Single::new(1, (1, 0));
    former.decide(vec![opening(50)]);
    former.decide(vec![frame(50, 1, &[say("a")])]);
    former.persist();
    // Notes of what was delivered come later.
    (0..20).for_each(|_| former.tick());
    let boot = BootId { number: 2, nonce: [2; 16] };
    let records = std::mem::take(&mut former.records);
    let found = Found { boot: Some(boot), records, ..Found::default() };
    let mut follower = Single::found(1, (1, 0), found);
    assert_eq!(follower.node.report().executed, Slot(2));
    let retry = Message::Frame(frame(50, 1, &[say("a")]));
    follower.give(client(50), &retry);
    follower.tick();
    let heard = follower.heard(50);
    assert_eq!((heard.len(), replied(&heard[0])), (1, vec![1]));
    for answered in [false, true] {
        let announced = follower.sent.iter().find_map(|(_, message)| match message {
            Message::Announce(announcement) => Some(announcement.clone()),
            _ => None,
        });
        assert_eq!(announced.is_some(), answered);
        let (asked, announcement) = (boot, announced);
        let recalled = Recalled { asked, announcement, replaced: None, vote: None };
        follower.give(LEADER, &Message::Recall(Box::new(recalled)));
        follower.tick();
    }
    follower.give(client(50), &retry);
    follower.tick();
    let heard = follower.heard(50);
    assert_eq!(attested(&heard[1], &[(1, "a")]), [1]);
}

#[test]
fn a_leader_that_proposes_false_claims_is_suspected() {
    a_proposal_with_false_claims_is_not_voted_for();
}

#[test]
fn what_was_verified_is_not_verified_again() {
    let mut follower = Single::new(1, (1, 1));
    let verified = |follower: &Single| {
        let counters = follower.counters();
        (counters.signatures_verified, counters.claims_verified, counters.claims_remembered)
    };
    follower.give(client(50), &Message::Frame(frame(50, 1, &[proven("a")])));
    follower.end_round();
    assert_eq!(verified(&follower), (1, 2, 0));
    // It waits here.
    follower.propose(vec![frame(50, 1, &[proven("a")])]);
    assert!(follower.voted(Slot(1)));
    assert_eq!(verified(&follower), (1, 2, 0));
    // Another client's, with the same signatures over what they share a root with.
    let more = |id| attested_elsewhere(id, &["a", "more"]).remove(1);
    let of_same_root = prove(b"more", &[more(0), more(1)]);
    follower.propose(vec![
        frame(51, 1, &[of_same_root.clone(), proven("a")]),
        frame(52, 1, &[of_same_root]),
    ]);
    assert!(follower.voted(Slot(2)));
    assert_eq!(verified(&follower), (3, 2, 6));
    // A right statement with another signature is verified, whatever is remembered.
    follower.propose(vec![frame(53, 1, &[forged("a")])]);
    assert!(!follower.voted(Slot(3)));
    assert_eq!(verified(&follower), (4, 3, 7));
}

#[test]
fn a_frame_with_false_claims_is_its_senders_and_nobody_elses() {
    for faults in [(1, 0), (1, 1)] {
        let mut leader = Single::new(0, faults);
        leader.give(client(50), &Message::Frame(frame(50, 1, &[say("x"), forged("a")])));
        leader.give(client(51), &Message::Frame(frame(51, 1, &[proven("a")])));
        leader.give(client(52), &Message::Frame(frame(52, 1, &[say("y")])));
        leader.give(client(53), &Message::Frame(frame(53, 1, &[Bytes::from_static(b"prove it")])));
        leader.give(Peer::Replica(ReplicaId(2)), &Message::Frame(frame(54, 1, &[forged("b")])));
        leader.end_round();
        leader.tick();
        let mut accused = leader.accused.clone();
        accused.sort_unstable();
        assert_eq!(accused, [Peer::Replica(ReplicaId(2)), client(50), client(53)]);
        let proposed = leader.sent.iter().filter_map(|(_, message)| match message {
            Message::Propose { batch, .. } => {
                Some(batch.frames().iter().map(|one| one.session.client))
            }
            _ => None,
        });
        let proposed: std::collections::BTreeSet<PublicKey> = proposed.flatten().collect();
        assert_eq!(proposed, [51, 52].map(|seed| key(seed).public()).into());
        // Who sent it is passed over for a while.
        leader.give(client(50), &Message::Frame(frame(50, 3, &[say("z")])));
        leader.end_round();
        assert!(leader.heard(50).iter().any(|one| matches!(one, Message::Busy { .. })));
    }
}

/// Who leads with r = 0 does not lie, and had the frame come in.
#[test]
fn with_r_0_claims_are_looked_at_where_frames_come_in() {
    let mut follower = Single::new(1, (1, 0));
    follower.propose(vec![frame(50, 1, &[proven("a")])]);
    follower.persist();
    assert!(follower.voted(Slot(1)));
    assert_eq!(follower.counters().claims_verified, 0);
    follower.give(client(51), &Message::Frame(frame(51, 1, &[proven("a")])));
    follower.end_round();
    let counters = follower.counters();
    assert_eq!((counters.claims_verified, counters.signatures_verified), (2, 0));
}

/// A client that fills frames with claims has each of its rounds take what they take, and others are served in the same one.
#[test]
fn many_claims_are_looked_at_over_several_rounds() {
    let mut leader = Single::new(0, (1, 1));
    let many = |number: u64| {
        let text = format!("text {number}");
        let one = attested_elsewhere(0, &[text.as_str()]).remove(0);
        prove(text.as_bytes(), &vec![one; limits::COMMAND_CLAIMS])
    };
    for number in 1..=20 {
        leader.give(client(50), &Message::Frame(frame(50, number, &[many(number)])));
    }
    leader.give(client(51), &Message::Frame(frame(51, 1, &[say("x")])));
    leader.end_round();
    let first = leader.counters();
    assert!(first.claims_verified + first.claims_remembered <= 2 * limits::COMMAND_CLAIMS as u64);
    assert!(leader.node.has_more());
    for _ in 0..20 {
        leader.end_round();
    }
    assert!(!leader.node.has_more());
    assert_eq!((leader.counters().claims_verified, leader.counters().frames), (20, 21));
}
