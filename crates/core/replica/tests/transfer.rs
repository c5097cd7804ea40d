//! One replica's node that lacks its state: whom it asks, and when. Time is virtual.

use crate::common;
use perdura_protocol::configuration::{Configuration, Member};
use perdura_protocol::message::Lane;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{Decode, Encode, Message, ReplicaId, Scheme, SecretKey, Slot, Time, View};
use perdura_replica::node::{Boot, Found, Input, Node, Now, Output, Peer};

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::Ed25519, [seed; 32])
}

fn now(ms: u64) -> Now {
    Now { monotonic_ms: ms, wall: Time(ms) }
}

/// Replica 0 of three, whose state after slot 5 is lost.
fn without_state() -> Node {
    Node::boot(boot(), now(86_400_000)).unwrap()
}

/// Its directory, and the configuration file of the beginning.
fn boot() -> Boot {
    Boot {
        found: Found {
            vote_after: Slot(5),
            state_from: Slot(5),
            lost: Some(Slot(5)),
            ..Found::default()
        },
        ..common::boot(0, Scheme::Ed25519, (1, 0), Vec::new())
    }
}

/// Who is asked for a state in this round.
fn asked(node: &mut Node, ms: u64) -> Vec<Peer> {
    node.flush(now(ms));
    let mut asked = Vec::new();
    while let Some(output) = node.next_output() {
        if let Output::Send { peers, bytes, .. } = output
            && Message::from_bytes(bytes).unwrap() == Message::StateQuery
        {
            asked.extend(peers);
        }
    }
    asked
}

#[test]
fn who_is_linked_after_the_question_was_asked_is_asked_again() {
    let (one, two) = (Peer::Replica(ReplicaId(1)), Peer::Replica(ReplicaId(2)));
    let (mut node, start) = (without_state(), 86_400_000);
    assert_eq!(asked(&mut node, start), [one, two], "though no link is there yet");
    node.handle(now(start + 1), Input::LinkUp(one));
    assert_eq!(asked(&mut node, start + 1), [one]);
    // It has none to give.
    let none = Message::StateInfo {
        delivered: Slot(3),
        state: None,
        prefix: PrefixCertificate::genesis(),
    };
    node.handle(now(start + 2), Input::Message { peer: one, bytes: none.to_bytes() });
    node.handle(now(start + 3), Input::LinkDown(one));
    node.handle(now(start + 4), Input::LinkUp(one));
    assert_eq!(asked(&mut node, start + 4), [], "it has answered");
    node.handle(now(start + 5), Input::LinkUp(two));
    assert_eq!(asked(&mut node, start + 5), [two]);
}

/// Else a replica that was away while others were replaced would wait for keys that nobody has any
/// more, and could judge no state that those signed who have the new ones.
#[test]
fn who_was_away_links_to_the_members_of_the_file() {
    let mut boot = boot();
    let first = boot.genesis.configuration.clone();
    let mut members = first.members.clone();
    members[1] = Member { key: key(50).public(), incarnation: 1 };
    boot.latest = Configuration { id: 1, from_slot: Slot(40), members };
    // Its own state is there, and older than the replacement.
    boot.found = Found::default();
    let newest = boot.latest.clone();
    let mut node = Node::boot(boot, now(86_400_000)).unwrap();
    let linked = std::iter::from_fn(|| node.next_output()).find_map(|output| match output {
        Output::Members(configuration) => Some(configuration),
        _ => None,
    });
    assert_eq!(linked, Some(newest));
    assert_eq!(*node.configuration(), first, "it votes by what it executed");
}

/// The replicas that are asked for decided batches in this round, and for which first slot. All other
/// than such questions goes over the link of agreement.
fn fetches(node: &mut Node, ms: u64) -> Vec<(Peer, Slot)> {
    node.flush(now(ms));
    let mut fetches = Vec::new();
    while let Some(output) = node.next_output() {
        let Output::Send { peers, lane, bytes } = output else { continue };
        match Message::from_bytes(bytes).unwrap() {
            Message::Fetch { from, .. } => {
                assert_eq!(lane, Lane::Transfer);
                fetches.extend(peers.into_iter().map(|peer| (peer, from)));
            }
            _ => assert_eq!(lane, Lane::Agreement),
        }
    }
    fetches
}

#[test]
fn decided_batches_that_were_lost_with_a_transfer_link_are_asked_for_again_at_once() {
    let mut start = 86_400_000;
    let boot = common::boot(0, Scheme::Ed25519, (1, 0), Vec::new());
    let mut node = Node::boot(boot, now(start)).unwrap();
    let ahead = Message::Status { view: View(0), changing: false, delivered: Slot(500) };
    for id in [1, 2] {
        let peer = Peer::Replica(ReplicaId(id));
        node.handle(now(start), Input::LinkUp(peer));
        node.handle(now(start), Input::Message { peer, bytes: ahead.to_bytes() });
    }
    let mut asked = fetches(&mut node, start);
    while asked.is_empty() {
        start += 20;
        assert!(start < 86_410_000, "nothing is asked for");
        asked = fetches(&mut node, start);
    }
    let (lost, first) = asked.iter().copied().min_by_key(|(_, first)| *first).unwrap();
    assert_eq!(first, Slot(1));
    assert!(fetches(&mut node, start + 1).is_empty(), "it is awaited");
    let Peer::Replica(id) = lost else { panic!("a client was asked") };
    node.handle(now(start + 1), Input::TransferLinkDown(id));
    assert!(fetches(&mut node, start + 1).contains(&(lost, first)));
    // It owes nothing where nothing was asked of it.
    node.handle(now(start + 2), Input::TransferLinkDown(ReplicaId(9)));
    node.handle(now(start + 2), Input::TransferLinkDown(ReplicaId(0)));
    assert!(fetches(&mut node, start + 2).is_empty());
}
