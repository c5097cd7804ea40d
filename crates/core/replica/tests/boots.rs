//! Boots: a replica votes once n - u compared what they heard of it with what it knows, and stays out on its own signature only.

use crate::common;
use perdura_protocol::boots::{Announcement, HeldVote, Recalled};
use perdura_protocol::statement::StatementKind;
use perdura_protocol::{
    BootId, Context, Decode, Digest, Encode, Faults, Message, Record, ReplicaId, Scheme, SecretKey,
    Signature, Slot, Time, View,
};
use perdura_replica::node::{Boot, Found, Input, Node, Now, Output, Peer, State};

const SCHEME: Scheme = Scheme::KeyedHash;

fn now(ms: u64) -> Now {
    Now { monotonic_ms: 100_000 + ms, wall: Time(1_000_000 + ms) }
}

fn boot_id(number: u64) -> BootId {
    BootId { number, nonce: [number as u8; 16] }
}

fn sign(id: u8, kind: StatementKind, view: View, slot: Slot, digest: Digest) -> Signature {
    let key = SecretKey::from_seed(SCHEME, [10 + id; 32]);
    let context = Context { cluster: common::CLUSTER, configuration: 0 };
    key.sign(&context.statement(kind, view, slot, digest))
}

/// As replica `id` signs it.
fn announcement(id: u8, boot: BootId) -> Announcement {
    let signature = sign(id, StatementKind::Boot, View(0), Slot(0), boot.digest());
    Announcement { boot, configuration: 0, signature }
}

/// Replica 0 of four, which found these records.
fn replica(boot: BootId, records: Vec<Record>) -> Node {
    replica_among((1, 1), boot, records)
}

/// Replica 0 of a group with these bounds u and r.
fn replica_among(faults: (u8, u8), boot: BootId, records: Vec<Record>) -> Node {
    let found = Found { boot: Some(boot), records, ..Found::default() };
    let boot = Boot { found, ..common::boot(0, SCHEME, faults, Vec::new()) };
    let mut node = Node::boot(boot, now(0)).unwrap();
    for id in 1..Faults::new(faults.0, faults.1).unwrap().n() as u8 {
        node.handle(now(0), Input::LinkUp(Peer::Replica(ReplicaId(id))));
    }
    node
}

/// What it wants, with every append durable at once if `durable`; its words by whom they are for.
fn outputs(node: &mut Node, ms: u64, durable: bool) -> (Vec<(u8, Message)>, Option<String>) {
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
            Output::TakenBack(why) => halted = Some(why),
            _ => {}
        }
    }
    (said, halted)
}

fn tell(node: &mut Node, ms: u64, from: u8, message: &Message) {
    let peer = Peer::Replica(ReplicaId(from));
    node.handle(now(ms), Input::Message { peer, bytes: message.to_bytes() });
}

/// Of whoever asks in this boot, the announcement of another one, or of none.
fn recall(asked: BootId, announcement: Option<Announcement>, vote: Option<HeldVote>) -> Message {
    Message::Recall(Box::new(Recalled { asked, announcement, replaced: None, vote }))
}

/// Others are there and say where they are.
fn beside_others(node: &mut Node, ms: u64) -> State {
    for id in 1..4 {
        let status = Message::Status { view: View(0), changing: false, delivered: Slot(0) };
        tell(node, ms, id, &status);
    }
    outputs(node, ms, true);
    node.report().state
}

#[test]
fn it_takes_part_once_n_less_u_have_compared_and_then_kept_its_boot() {
    let mut node = replica(boot_id(2), Vec::new());
    let own = boot_id(2);
    let announced = || Some(announcement(0, boot_id(2)));
    // Whom it asks what they hold, and whom it tells to keep its boot.
    let said = |said: &[(u8, Message)]| -> [Vec<u8>; 2] {
        let to = |wanted: &Message| -> Vec<u8> {
            said.iter().filter(|(_, message)| message == wanted).map(|(to, _)| *to).collect()
        };
        [to(&Message::Compare(own)), to(&Message::Announce(announcement(0, own)))]
    };
    assert_eq!(said(&outputs(&mut node, 20, true).0), [vec![1, 2, 3], vec![]]);
    assert_eq!(beside_others(&mut node, 100), State::Recovering);
    assert_eq!(node.report().boot_awaits, [1, 2, 3].map(ReplicaId));
    tell(&mut node, 100, 1, &recall(own, None, None));
    // To a question of a former boot, and one more answer of one question: neither is another voice.
    tell(&mut node, 100, 2, &recall(boot_id(1), None, None));
    tell(&mut node, 100, 1, &recall(own, None, None));
    let nobody: [Vec<u8>; 2] = Default::default();
    assert_eq!(said(&outputs(&mut node, 100, true).0), nobody);
    assert_eq!(said(&outputs(&mut node, 700, true).0), [vec![2, 3], vec![]], "who was silent");
    // What it announced before is known to it.
    tell(&mut node, 800, 3, &recall(own, Some(announcement(0, boot_id(1))), None));
    assert_eq!(said(&outputs(&mut node, 800, true).0), [vec![], vec![1, 2, 3]]);
    assert_eq!(beside_others(&mut node, 900), State::Recovering);
    tell(&mut node, 910, 1, &recall(own, announced(), None));
    assert_eq!(beside_others(&mut node, 920), State::Recovering);
    assert_eq!(node.report().boot_awaits, [2, 3].map(ReplicaId));
    assert_eq!(said(&outputs(&mut node, 1_400, true).0), [vec![], vec![2, 3]]);
    tell(&mut node, 1_500, 2, &recall(own, announced(), None));
    assert_eq!(beside_others(&mut node, 1_600), State::Active);
    assert!(node.report().boot_awaits.is_empty());
    assert_eq!(said(&outputs(&mut node, 3_000, true).0), nobody);
    // Who comes later is told to keep it, and may still know better.
    node.handle(now(3_000), Input::LinkUp(Peer::Replica(ReplicaId(3))));
    assert_eq!(said(&outputs(&mut node, 3_000, true).0), [vec![], vec![3]]);
    tell(&mut node, 3_010, 3, &recall(own, Some(announcement(0, boot_id(5))), None));
    assert!(outputs(&mut node, 3_010, true).1.is_some());
}

#[test]
fn it_says_whom_it_waits_for() {
    let mut node = replica(boot_id(2), Vec::new());
    let mut notices = Vec::new();
    for ms in (0..20_000).step_by(20) {
        node.flush(now(ms));
        while let Some(output) = node.next_output() {
            if let Output::Notice(text) = output
                && text.contains("takes part")
            {
                notices.push((ms, text));
            }
        }
        if ms == 1_000 {
            tell(&mut node, ms, 2, &recall(boot_id(2), None, None));
        }
    }
    let [(ms, text)] = &notices[..] else { panic!("{notices:?}") };
    assert!((5_000..6_000).contains(ms) && text.contains("replicas 1, 3 have not"), "{text}");
}

#[test]
fn its_own_signature_over_another_boot_keeps_it_out_and_nobody_elses_does() {
    let (own, other) = (boot_id(3), |number| BootId { nonce: [70; 16], ..boot_id(number) });
    // Later ones; others of its number, and of one before; one from between those that it had.
    let foreign = [boot_id(9), boot_id(4), other(3), other(2), boot_id(1)];
    for (boot, first) in foreign.into_iter().flat_map(|boot| [(boot, 1), (boot, 2)]) {
        let mut found = Found { boot: Some(own), ..Found::default() };
        found.former_boots = vec![boot_id(2), boot_id(0)];
        let mut node =
            Node::boot(Boot { found, ..common::boot(0, SCHEME, (1, 1), vec![]) }, now(0)).unwrap();
        for id in 1..4 {
            node.handle(now(0), Input::LinkUp(Peer::Replica(ReplicaId(id))));
        }
        // Liars sign with what they have.
        let liar = if first == 1 { 2 } else { 1 };
        tell(&mut node, 50, liar, &recall(own, Some(announcement(liar, boot)), None));
        assert_eq!(outputs(&mut node, 50, true).1, None, "{boot:?}");
        tell(&mut node, 60, first, &recall(own, Some(announcement(0, boot)), None));
        let why = outputs(&mut node, 60, true).1.expect("it stays out");
        assert!(why.contains("older than what it said") && why.contains("reinit"), "{why}");
        outputs(&mut node, 700, true);
        assert!(outputs(&mut node, 1_400, true).0.is_empty(), "and says nothing any more");
    }
    // One that it had, and one from before those that it still knows.
    for boot in [boot_id(3), boot_id(2)] {
        let found =
            Found { boot: Some(boot_id(4)), former_boots: vec![boot_id(3)], ..Found::default() };
        let boots = Boot { found, ..common::boot(0, SCHEME, (1, 1), vec![]) };
        let mut node = Node::boot(boots, now(0)).unwrap();
        node.handle(now(0), Input::LinkUp(Peer::Replica(ReplicaId(2))));
        tell(&mut node, 60, 2, &recall(boot_id(4), Some(announcement(0, boot)), None));
        assert_eq!(outputs(&mut node, 60, true).1, None, "{boot:?}");
    }
}

/// A copy of a directory starts as the next boot, and is found out; the directory itself has another next boot.
#[test]
fn what_was_found_out_has_announced_nothing() {
    let mut peer = replica(boot_id(1), Vec::new());
    let (copy, itself) = (BootId { nonce: [70; 16], ..boot_id(11) }, boot_id(11));
    let asks = |peer: &mut Node, ms, boot| {
        tell(peer, ms, 2, &Message::Compare(boot));
        recalled(&outputs(peer, ms, true).0)
    };
    tell(&mut peer, 50, 2, &Message::Announce(announcement(2, boot_id(10))));
    assert_eq!(recalled(&outputs(&mut peer, 50, true).0), [Some(boot_id(10))]);
    assert_eq!(asks(&mut peer, 60, copy), [Some(boot_id(10))]);
    assert_eq!(asks(&mut peer, 70, itself), [Some(boot_id(10))], "the copy left no trace");
}

#[test]
fn its_own_vote_that_its_log_lacks_keeps_it_out_and_a_false_one_does_not() {
    let (view, slot, digest) = (View(0), Slot(7), Digest::of(b"batch"));
    let signed = |by: u8, configuration| {
        let key = SecretKey::from_seed(SCHEME, [10 + by; 32]);
        let context = Context { cluster: common::CLUSTER, configuration };
        let signature = key.sign(&context.statement(StatementKind::Accept, view, slot, digest));
        Some(HeldVote { view, slot, digest, configuration, signature })
    };
    let (own, announced) = (boot_id(2), || Some(announcement(0, boot_id(2))));
    // In a configuration that a directory from before it knows nothing of, too.
    for configuration in [0, 3] {
        let mut node = replica(own, Vec::new());
        for id in [1, 2] {
            tell(&mut node, 50, id, &recall(own, None, signed(id, configuration)));
        }
        assert_eq!(outputs(&mut node, 50, true).1, None);
        for id in [1, 2] {
            tell(&mut node, 50, id, &recall(own, announced(), signed(id, configuration)));
        }
        assert_eq!(beside_others(&mut node, 100), State::Active);
        tell(&mut node, 110, 3, &recall(own, announced(), signed(0, configuration)));
        let why = outputs(&mut node, 110, true).1.unwrap();
        assert!(why.contains("it voted on slot 7 in view 0"), "{why}");
    }
}

/// The boots that it gives back.
fn recalled(said: &[(u8, Message)]) -> Vec<Option<BootId>> {
    let boot = |(_, message): &(u8, Message)| match message {
        Message::Recall(recalled) => Some(recalled.announcement.as_ref().map(|held| held.boot)),
        _ => None,
    };
    said.iter().filter_map(boot).collect()
}

#[test]
fn a_boot_is_on_disk_before_it_is_given_back_and_the_newest_one_stays() {
    let mut node = replica(boot_id(1), Vec::new());
    tell(&mut node, 50, 2, &Message::Announce(announcement(2, boot_id(5))));
    assert!(recalled(&outputs(&mut node, 50, false).0).is_empty());
    // Said again while it is on its way to the disk.
    tell(&mut node, 60, 2, &Message::Announce(announcement(2, boot_id(5))));
    assert!(recalled(&outputs(&mut node, 60, false).0).is_empty());
    node.handle(now(70), Input::Persisted(1));
    assert_eq!(recalled(&outputs(&mut node, 70, true).0), [Some(boot_id(5))]);
    // A directory that was taken back, or its copy, is told what is known.
    for other in [boot_id(4), BootId { nonce: [8; 16], ..boot_id(5) }] {
        for message in [Message::Compare(other), Message::Announce(announcement(2, other))] {
            tell(&mut node, 80, 2, &message);
            assert_eq!(recalled(&outputs(&mut node, 80, true).0), [Some(boot_id(5))]);
        }
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
    assert_eq!(recalled(&outputs(&mut node, 50, true).0), [Some(boot_id(5))]);
}

/// Each is a record and a signature to verify, and nothing in an idle group would ever cut the log.
#[test]
fn who_announces_boots_without_end_has_few_of_them_written() {
    let mut node = replica(boot_id(1), Vec::new());
    let mut written = 0;
    for ms in 0..40_000 {
        tell(&mut node, ms, 2, &Message::Announce(announcement(2, boot_id(ms + 1))));
        let records = appended(&mut node, ms);
        written += records.iter().filter(|record| matches!(record, Record::Boot { .. })).count();
    }
    assert!((16..=16 + 5).contains(&written), "{written}");
    tell(&mut node, 40_000, 3, &Message::Announce(announcement(3, boot_id(1))));
    assert_eq!(appended(&mut node, 40_000).len(), 1, "another one's share is its own");
}

/// Both were started, and the second one when others had compared with the first, which announced meanwhile.
#[test]
fn of_two_processes_on_copies_the_later_one_learns_in_whose_place_it_came() {
    let mut peer = replica(boot_id(1), Vec::new());
    let (first, second) = (boot_id(11), BootId { nonce: [70; 16], ..boot_id(12) });
    tell(&mut peer, 50, 2, &Message::Announce(announcement(2, first)));
    outputs(&mut peer, 50, true);
    tell(&mut peer, 60, 2, &Message::Announce(announcement(2, second)));
    let said = outputs(&mut peer, 60, true).0;
    let told = said.into_iter().find_map(|(_, message)| match message {
        Message::Recall(recalled) => Some(*recalled),
        _ => None,
    });
    let told = told.unwrap();
    assert_eq!(told.replaced, Some(announcement(2, first)));
    // What it says of who asks.
    let (first, second) = (announcement(0, boot_id(11)), announcement(0, boot_id(12)));
    let mut node = replica(boot_id(12), Vec::new());
    outputs(&mut node, 20, true);
    let recalled = Recalled {
        asked: boot_id(12),
        announcement: Some(second),
        replaced: Some(first),
        vote: None,
    };
    tell(&mut node, 50, 1, &Message::Recall(Box::new(recalled.clone())));
    assert_eq!(outputs(&mut node, 50, true).1, None, "of one before those that it knows");
    let found =
        Found { boot: Some(boot_id(12)), former_boots: vec![boot_id(10)], ..Found::default() };
    let boots = Boot { found, ..common::boot(0, SCHEME, (1, 1), vec![]) };
    let mut node = Node::boot(boots, now(0)).unwrap();
    node.handle(now(0), Input::LinkUp(Peer::Replica(ReplicaId(1))));
    tell(&mut node, 50, 1, &Message::Recall(Box::new(recalled)));
    assert!(outputs(&mut node, 50, true).1.is_some());
}

#[test]
fn a_boot_is_in_its_own_log_before_it_is_announced() {
    let mut node = replica(boot_id(2), Vec::new());
    for id in [1, 2] {
        outputs(&mut node, 20, true);
        tell(&mut node, 50, id, &recall(boot_id(2), None, None));
    }
    node.flush(now(60));
    let mut written = None;
    while let Some(output) = node.next_output() {
        match output {
            Output::Append { records, mark } => {
                let own = |record: &Record| {
                    matches!(record, Record::Boot { replica, announcement, .. }
                    if replica.0 == 0 && announcement.boot == boot_id(2))
                };
                assert!(records.iter().any(own));
                written = Some(mark);
            }
            Output::Send { bytes, .. } => {
                let message = Message::from_bytes(bytes).unwrap();
                assert!(!matches!(message, Message::Announce(_)), "{message:?}");
            }
            _ => {}
        }
    }
    node.handle(now(70), Input::Persisted(written.unwrap()));
    let (said, _) = outputs(&mut node, 70, true);
    let announced = Message::Announce(announcement(0, boot_id(2)));
    assert_eq!(said.iter().filter(|(_, message)| *message == announced).count(), 3);
}

#[test]
fn answers_that_nobody_asked_for_are_not_verified() {
    let mut node = replica(boot_id(2), Vec::new());
    outputs(&mut node, 20, true);
    for _ in 0..2 {
        tell(&mut node, 20, 1, &recall(boot_id(2), None, None));
    }
    tell(&mut node, 20, 1, &recall(boot_id(2), Some(announcement(0, boot_id(7))), None));
    assert_eq!(outputs(&mut node, 20, true).1, None);
}

/// The records of its appends until it wants nothing more, each durable at once.
fn appended(node: &mut Node, ms: u64) -> Vec<Record> {
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
        let signature = sign(2, StatementKind::Accept, view, slot, digest);
        HeldVote { view, slot, digest, configuration: 0, signature }
    };
    let says = |node: &mut Node, ms, HeldVote { view, slot, digest, signature, .. }| {
        tell(node, ms, 2, &Message::Accept { view, slot, digest, signature });
    };
    let mut node = replica(boot_id(1), Vec::new());
    let announced = announcement(2, boot_id(5));
    tell(&mut node, 50, 2, &Message::Announce(announced.clone()));
    let mut records = appended(&mut node, 50);
    for slot in [3, 1, 2] {
        says(&mut node, 60, vote(slot));
    }
    // It causes no write for long.
    let idle = |node: &mut Node, from: u64, to: u64| {
        (from..to).step_by(20).all(|ms| appended(node, ms).is_empty())
    };
    assert!(idle(&mut node, 60, 10_060));
    let heard = [appended(&mut node, 10_080), appended(&mut node, 10_200)].concat();
    let key = SecretKey::from_seed(SCHEME, [12; 32]).public();
    assert_eq!(heard, [Record::Heard { replica: ReplicaId(2), key, vote: vote(3) }]);
    assert!(idle(&mut node, 10_200, 30_000), "once");
    // With what is written anyway it goes along, if it has waited.
    says(&mut node, 30_000, vote(4));
    assert!(idle(&mut node, 30_000, 30_100));
    tell(&mut node, 30_100, 1, &Message::Announce(announcement(1, boot_id(7))));
    records.extend(heard);
    records.extend(appended(&mut node, 30_100));
    assert_eq!(given_back(records.clone(), &announced), Some(vote(4)));
    // Nor is what nobody can decide any more, or yet: it would be written without end.
    says(&mut node, 30_200, vote(100_000));
    assert!(idle(&mut node, 30_200, 50_000));
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
        configuration: 0,
        signature: Signature::NONE,
    };
    for (faults, stays_out) in [((1, 0), true), ((1, 1), false)] {
        let mut node = replica_among(faults, boot_id(2), Vec::new());
        tell(&mut node, 50, 1, &recall(boot_id(2), None, Some(unsigned.clone())));
        assert_eq!(outputs(&mut node, 50, true).1.is_some(), stays_out, "{faults:?}");
        // And who led keeps it.
        let mut node = replica_among(faults, boot_id(2), Vec::new());
        tell(&mut node, 50, 2, &Message::Announce(announcement(2, boot_id(5))));
        appended(&mut node, 50);
        let HeldVote { view, slot, digest, signature, .. } = unsigned.clone();
        tell(&mut node, 60, 2, &Message::Accept { view, slot, digest, signature });
        appended(&mut node, 60);
        let kept = [appended(&mut node, 10_100), appended(&mut node, 10_300)].concat();
        assert_eq!(kept.iter().any(|record| matches!(record, Record::Heard { .. })), stays_out);
    }
}
