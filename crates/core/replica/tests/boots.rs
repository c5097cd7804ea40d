//! Boots: a replica votes once n - u compared what they heard of it with what it knows, and stays out on its own signature only.

use crate::common;
use perdura_protocol::boots::{Announcement, HeldVote, Recalled};
use perdura_protocol::statement::Kind;
use perdura_protocol::{
    BootId, Context, Decode, Digest, Encode, Faults, Message, Record, ReplicaId, Scheme, SecretKey,
    Signature, Slot, Time, View,
};
use perdura_replica::node::{Boot, Found, Input, Node, Now, Output, Peer, State};
use perdura_store::Store;

const SCHEME: Scheme = Scheme::KeyedHash;

fn now(ms: u64) -> Now {
    Now { monotonic_ms: 100_000 + ms, wall: Time(1_000_000 + ms) }
}

fn boot_id(number: u64) -> BootId {
    BootId { number, nonce: [number as u8; 16] }
}

fn sign(id: u8, kind: Kind, view: View, slot: Slot, digest: Digest) -> Signature {
    let key = SecretKey::from_seed(SCHEME, [10 + id; 32]);
    let context = Context { cluster: common::CLUSTER, configuration: 0 };
    key.sign(&context.statement(kind, view, slot, digest))
}

/// As replica `id` signs it.
fn announcement(id: u8, boot: BootId) -> Announcement {
    let signature = sign(id, Kind::Boot, View(0), Slot(0), boot.digest());
    Announcement { boot, configuration: 0, signature }
}

/// Replica 0 of four, which found these records.
fn replica(boot: BootId, records: Vec<Record>) -> Node<Store> {
    replica_among((1, 1), boot, records)
}

/// Replica 0 of a group with these bounds u and r.
fn replica_among(faults: (u8, u8), boot: BootId, records: Vec<Record>) -> Node<Store> {
    let found = Found { boot: Some(boot), records, ..Found::default() };
    let boot = Boot { found, ..common::boot(0, SCHEME, faults, Vec::new()) };
    let mut node = Node::boot(boot, now(0)).unwrap();
    for id in 1..Faults::new(faults.0, faults.1).unwrap().n() as u8 {
        node.handle(now(0), Input::LinkUp(Peer::Replica(ReplicaId(id))));
    }
    node
}

/// What it wants, with every append durable at once if `durable`; its words by whom they are for.
fn outputs(node: &mut Node<Store>, ms: u64, durable: bool) -> (Vec<(u8, Message)>, Option<String>) {
    let (mut said, mut halted) = (Vec::new(), None);
    node.flush(now(ms));
    while let Some(output) = node.next_output() {
        match output {
            Output::Send { peers, bytes, .. } => {
                let message = Message::from_bytes(bytes).unwrap();
                for peer in peers {
                    if let Peer::Replica(id) = peer {
                        said.push((id.0, message.clone()));
                    }
                }
            }
            Output::Append { mark, .. } if durable => {
                node.handle(now(ms), Input::Persisted(mark));
                node.flush(now(ms));
            }
            Output::Halt(why) => halted = Some(why),
            _ => {}
        }
    }
    (said, halted)
}

fn tell(node: &mut Node<Store>, ms: u64, from: u8, message: &Message) {
    let peer = Peer::Replica(ReplicaId(from));
    node.handle(now(ms), Input::Message { peer, bytes: message.to_bytes() });
}

fn recall(announcement: Announcement, vote: Option<HeldVote>) -> Message {
    Message::Recall(Box::new(Recalled { announcement, vote }))
}

/// Others are there and say where they are.
fn beside_others(node: &mut Node<Store>, ms: u64) -> State {
    for id in 1..4 {
        let status = Message::Status { view: View(0), changing: false, delivered: Slot(0) };
        tell(node, ms, id, &status);
    }
    outputs(node, ms, true);
    node.report().state
}

#[test]
fn it_takes_part_once_n_less_u_have_compared_and_asks_until_then() {
    let mut node = replica(boot_id(1), Vec::new());
    let own = announcement(0, boot_id(1));
    let announces = |said: &[(u8, Message)]| -> Vec<u8> {
        let own = Message::Announce(own.clone());
        said.iter().filter(|(_, message)| *message == own).map(|(to, _)| *to).collect()
    };
    assert_eq!(announces(&outputs(&mut node, 20, true).0), [1, 2, 3]);
    assert_eq!(beside_others(&mut node, 100), State::Recovering);
    tell(&mut node, 100, 1, &recall(own.clone(), None));
    // Of the boot before, late, and a copy of the same answer: neither is another voice.
    tell(&mut node, 100, 2, &recall(announcement(0, boot_id(0)), None));
    tell(&mut node, 100, 1, &recall(own.clone(), None));
    assert_eq!(beside_others(&mut node, 200), State::Recovering);
    assert_eq!(announces(&outputs(&mut node, 700, true).0), [2, 3], "once more to who was silent");
    tell(&mut node, 800, 3, &recall(own.clone(), None));
    assert_eq!(beside_others(&mut node, 900), State::Active);
    assert!(announces(&outputs(&mut node, 2_000, true).0).is_empty());
}

#[test]
fn its_own_signature_over_another_boot_keeps_it_out_and_nobody_elses_does() {
    let newer = [boot_id(9), boot_id(4), BootId { nonce: [7; 16], ..boot_id(3) }];
    for boot in newer {
        let mut node = replica(boot_id(3), Vec::new());
        // Liars sign with what they have.
        tell(&mut node, 50, 1, &recall(announcement(1, boot), None));
        assert_eq!(outputs(&mut node, 50, true).1, None, "{boot:?}");
        tell(&mut node, 60, 2, &recall(announcement(0, boot), None));
        let why = outputs(&mut node, 60, true).1.unwrap();
        assert!(why.contains("older than what it said") && why.contains("reinit"), "{why}");
    }
    let mut node = replica(boot_id(3), Vec::new());
    tell(&mut node, 60, 2, &recall(announcement(0, boot_id(2)), None));
    assert_eq!(outputs(&mut node, 60, true).1, None, "an older one of its own");
}

#[test]
fn its_own_vote_that_its_log_lacks_keeps_it_out_and_a_false_one_does_not() {
    let (view, slot, digest) = (View(0), Slot(7), Digest::of(b"batch"));
    let vote = |by: u8| {
        Some(HeldVote { view, slot, digest, signature: sign(by, Kind::Accept, view, slot, digest) })
    };
    let own = announcement(0, boot_id(2));
    let mut node = replica(boot_id(2), Vec::new());
    for id in [1, 2] {
        tell(&mut node, 50, id, &recall(own.clone(), vote(id)));
    }
    assert_eq!(outputs(&mut node, 50, true).1, None);
    assert_eq!(beside_others(&mut node, 100), State::Active);
    tell(&mut node, 110, 3, &recall(own, vote(0)));
    let why = outputs(&mut node, 110, true).1.unwrap();
    assert!(why.contains("it voted on slot 7 in view 0"), "{why}");
}

#[test]
fn a_boot_is_on_disk_before_it_is_given_back_and_the_newest_one_stays() {
    let mut node = replica(boot_id(1), Vec::new());
    let recalled = |said: &[(u8, Message)]| -> Vec<BootId> {
        let boot = |(_, message): &(u8, Message)| match message {
            Message::Recall(recalled) => Some(recalled.announcement.boot),
            _ => None,
        };
        said.iter().filter_map(boot).collect()
    };
    tell(&mut node, 50, 2, &Message::Announce(announcement(2, boot_id(5))));
    assert!(recalled(&outputs(&mut node, 50, false).0).is_empty());
    // Said again while it is on its way to the disk.
    tell(&mut node, 60, 2, &Message::Announce(announcement(2, boot_id(5))));
    assert!(recalled(&outputs(&mut node, 60, false).0).is_empty());
    node.handle(now(70), Input::Persisted(1));
    assert_eq!(recalled(&outputs(&mut node, 70, true).0), [boot_id(5)]);
    // A directory that was taken back, or its copy, is told what is known.
    for other in [boot_id(4), BootId { nonce: [8; 16], ..boot_id(5) }] {
        tell(&mut node, 80, 2, &Message::Announce(announcement(2, other)));
        assert_eq!(recalled(&outputs(&mut node, 80, true).0), [boot_id(5)]);
    }
    // Nobody announces for another one.
    tell(&mut node, 90, 2, &Message::Announce(announcement(1, boot_id(6))));
    assert!(recalled(&outputs(&mut node, 90, true).0).is_empty());
    // And so after a restart.
    let key = SecretKey::from_seed(SCHEME, [12; 32]).public();
    let announced = announcement(2, boot_id(5));
    let record = Record::Boot { replica: ReplicaId(2), key, announcement: announced };
    let mut node = replica(boot_id(2), vec![Record::View(View(0)), record]);
    tell(&mut node, 50, 2, &Message::Announce(announcement(2, boot_id(4))));
    assert_eq!(recalled(&outputs(&mut node, 50, true).0), [boot_id(5)]);
}

/// The records of its appends until it wants nothing more, each durable at once.
fn appended(node: &mut Node<Store>, ms: u64) -> Vec<Record> {
    let mut all = Vec::new();
    node.flush(now(ms));
    while let Some(output) = node.next_output() {
        if let Output::Append { mark, records } = output {
            all.extend(records);
            node.handle(now(ms), Input::Persisted(mark));
            node.flush(now(ms));
        }
    }
    all
}

/// What a replica that found these records gives back to replica 2, which announces this.
fn given_back(records: Vec<Record>, announced: &Announcement) -> Option<HeldVote> {
    let mut node = replica(boot_id(9), records);
    tell(&mut node, 50, 2, &Message::Announce(announced.clone()));
    let said = outputs(&mut node, 50, true).0;
    let recalled = said.into_iter().find_map(|(to, message)| match message {
        Message::Recall(recalled) if to == 2 => Some(*recalled),
        _ => None,
    });
    recalled.expect("it answers").vote
}

#[test]
fn the_newest_vote_that_was_heard_is_given_back_after_a_restart_too() {
    let vote = |slot: u64| {
        let (view, slot, digest) = (View(0), Slot(slot), Digest::of(&slot.to_le_bytes()));
        HeldVote { view, slot, digest, signature: sign(2, Kind::Accept, view, slot, digest) }
    };
    let says = |node: &mut Node<Store>, ms, HeldVote { view, slot, digest, signature }| {
        tell(node, ms, 2, &Message::Accept { view, slot, digest, signature });
    };
    let mut node = replica(boot_id(1), Vec::new());
    let announced = announcement(2, boot_id(5));
    tell(&mut node, 50, 2, &Message::Announce(announced.clone()));
    let mut records = appended(&mut node, 50);
    for slot in [3, 1, 2] {
        says(&mut node, 60, vote(slot));
    }
    // By itself it causes no write at once, and one a little later.
    assert!(appended(&mut node, 60).is_empty());
    let heard = appended(&mut node, 200);
    let key = SecretKey::from_seed(SCHEME, [12; 32]).public();
    assert_eq!(heard, [Record::Heard { replica: ReplicaId(2), key, vote: vote(3) }]);
    assert!(appended(&mut node, 400).is_empty(), "once");
    // With what is written anyway it goes along.
    says(&mut node, 500, vote(4));
    tell(&mut node, 500, 1, &Message::Announce(announcement(1, boot_id(7))));
    records.extend(heard);
    records.extend(appended(&mut node, 500));
    assert_eq!(given_back(records.clone(), &announced), Some(vote(4)));
    // Those of another key are another replica's.
    let other = SecretKey::from_seed(SCHEME, [22; 32]).public();
    let boot = Record::Boot { replica: ReplicaId(2), key: other, announcement: announced.clone() };
    records.push(boot);
    assert_eq!(given_back(records, &announced), None);
}

#[test]
fn with_r_0_the_word_of_who_led_is_enough() {
    let unsigned = HeldVote {
        view: View(0),
        slot: Slot(7),
        digest: Digest::of(b"batch"),
        signature: Signature::NONE,
    };
    for (faults, stays_out) in [((1, 0), true), ((1, 1), false)] {
        let mut node = replica_among(faults, boot_id(2), Vec::new());
        tell(&mut node, 50, 1, &recall(announcement(0, boot_id(2)), Some(unsigned.clone())));
        assert_eq!(outputs(&mut node, 50, true).1.is_some(), stays_out, "{faults:?}");
        // And who led keeps it.
        let mut node = replica_among(faults, boot_id(2), Vec::new());
        tell(&mut node, 50, 2, &Message::Announce(announcement(2, boot_id(5))));
        appended(&mut node, 50);
        let HeldVote { view, slot, digest, signature } = unsigned.clone();
        tell(&mut node, 60, 2, &Message::Accept { view, slot, digest, signature });
        assert!(appended(&mut node, 60).is_empty());
        let kept = appended(&mut node, 300);
        assert_eq!(kept.iter().any(|record| matches!(record, Record::Heard { .. })), stays_out);
    }
}
