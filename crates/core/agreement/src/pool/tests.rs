//! The pool by itself.

use super::*;
use crate::expected::Expected;
use bytes::Bytes;
use perdura_protocol::ClusterId;

const MIB: usize = 1 << 20;

fn frame_of(client: u32, nonce: u64, number: u64, size: usize) -> Frame {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&client.to_be_bytes());
    let session = SessionId { client: PublicKey(key), nonce };
    let command = Bytes::from(vec![client as u8; size]);
    Frame::build(ClusterId([0; 16]), session, 0, number, &[command], None)
}

fn frame(client: u32, number: u64, size: usize) -> Frame {
    frame_of(client, number / 100, number, size)
}

fn offer(pool: &mut Pool, frame: Frame, now_ms: u64) -> Admission {
    let admission = pool.offer(frame, Source::Client, now_ms);
    if pool.frames.len() < 100 {
        assert_counted(pool);
    }
    admission
}

/// What waits counts for what the entries say.
fn assert_counted(pool: &Pool) {
    let waiting = pool.frames.values().filter(|entry| entry.taken_ms.is_none());
    let (bytes, commands) = waiting.fold((0, 0), |(bytes, commands), entry| {
        (bytes + entry.frame.raw().len(), commands + entry.frame.commands().len())
    });
    assert_eq!((pool.waiting_bytes(), pool.waiting_commands()), (bytes, commands));
}

fn empty(pool: &mut Pool) {
    assert_counted(pool);
    pool.release_taken();
    assert_counted(pool);
    pool.retain(|_| false);
    pool.release_taken();
    assert_counted(pool);
    assert!(take(pool, 1 << 20).is_empty());
    assert_eq!((pool.held_bytes(), pool.waiting_bytes(), pool.taken_bytes()), ((0, 0), 0, 0));
    assert!(pool.clients.is_empty() && pool.heavy.is_empty() && pool.turn.is_empty());
    assert!(pool.sessions.is_empty() && pool.large_bytes == 0);
    assert!(pool.oldest_ms().is_none());
}

/// Takes frames that are expected to cost nothing.
fn take(pool: &mut Pool, bytes: usize) -> Vec<Frame> {
    pool.take(bytes, usize::MAX, 0, Allowance::new(&Expected::default(), 0, true))
}

#[test]
fn clients_take_turns() {
    let mut pool = Pool::default();
    for number in 0..10 {
        assert_eq!(offer(&mut pool, frame(1, number, 10), 0), Admission::Taken);
    }
    assert_eq!(offer(&mut pool, frame(2, 0, 10), 0), Admission::Taken);
    assert_eq!(offer(&mut pool, frame(2, 0, 10), 0), Admission::Known);
    let taken = take(&mut pool, 300);
    assert_eq!(taken.len(), 2);
    assert_eq!(taken[1].session, frame(2, 0, 10).session);
    empty(&mut pool);
}

#[test]
fn one_client_cannot_fill_the_pool() {
    let mut pool = Pool::default();
    let mut number = 0;
    while offer(&mut pool, frame(1, number, MIB), 0) == Admission::Taken {
        number += 1;
    }
    assert!(pool.held_bytes().0 <= CLIENT_POOL_BYTES);
    assert_eq!(offer(&mut pool, frame(2, 0, MIB), 0), Admission::Taken);
    empty(&mut pool);
}

#[test]
fn a_client_with_little_comes_in_whatever_others_hold_and_the_heaviest_makes_room() {
    let mut pool = Pool::default();
    for number in 0..100 {
        for client in 0..8 {
            offer(&mut pool, frame(client, number, MIB / 4), 0);
        }
    }
    assert!(pool.displaced().is_empty());
    for number in 0..20 {
        assert_eq!(offer(&mut pool, frame(9, number, MIB / 4), 0), Admission::Taken);
    }
    let displaced = pool.displaced();
    assert!(displaced.len() >= 20 && displaced.iter().all(|key| key.0 != frame(9, 0, 1).session));
    // No better than the others now: refused, and nobody is pushed out for it.
    let mut number = 20;
    while offer(&mut pool, frame(9, number, MIB / 4), 0) == Admission::Taken {
        number += 1;
    }
    let shares = pool.clients.values().map(|queue| queue.bytes);
    let (least, most) = (shares.clone().min().unwrap(), shares.max().unwrap());
    assert!(most - least <= 2 * (MIB / 4 + 1000), "{least} {most}");
    assert!(pool.held_bytes().0 <= POOL_BYTES);
    empty(&mut pool);
}

#[test]
fn thousands_of_keys_that_flood_keep_no_other_client_out() {
    let mut pool = Pool::default();
    for number in 0..9 {
        for client in 0..limits::CLIENTS as u32 {
            offer(&mut pool, frame(client, number, 8000), 0);
        }
    }
    assert_eq!(offer(&mut pool, frame(9999, 0, 8000), 0), Admission::Taken);
    assert!(pool.held_bytes().0 <= POOL_BYTES);
    empty(&mut pool);
}

#[test]
fn what_replicas_forward_takes_no_room_from_clients_nor_from_each_other() {
    let mut pool = Pool::default();
    let liar = Source::Replica(ReplicaId(3));
    let mut number = 0;
    while pool.offer(frame(number as u32, number, MIB), liar, 0) == Admission::Taken {
        number += 1;
    }
    assert!(pool.held_bytes().1 <= FORWARDED_BYTES && pool.oldest_ms().is_none());
    let other = Source::Replica(ReplicaId(2));
    assert_eq!(pool.offer(frame(5000, 0, 4 * MIB), other, 0), Admission::Taken);
    let mut direct = 0;
    while offer(&mut pool, frame(7000 + direct % 4, u64::from(direct), MIB), 7) == Admission::Taken
    {
        direct += 1;
    }
    assert!(pool.held_bytes().0 >= 60 * MIB);
    // A frame that its client sends as well is no longer the forwarder's, and is timed.
    pool.retain(|frame| frame.session.client.0[2] == 0);
    assert_eq!(pool.held_bytes().0, 0);
    assert_eq!(offer(&mut pool, frame(1, 1, MIB), 9), Admission::Known);
    assert_eq!(pool.oldest_ms(), Some(9));
    assert_eq!(pool.offer(frame(4000, 0, MIB / 2), liar, 0), Admission::Taken);
    // A follower hands over what clients sent it, and leaves the rest to its forwarder.
    let handed = pool.hand_over(10);
    assert_eq!(handed, [frame(1, 1, MIB)]);
    assert!(pool.hand_over(11).is_empty());
    // Unless its client comes with it afterwards.
    let (session, number) = (frame(1, 1, MIB).session, 1);
    pool.remove(session, number);
    assert_eq!(offer(&mut pool, frame(2, 2, MIB), 12), Admission::Known);
    assert_eq!(pool.hand_over(13), [frame(2, 2, MIB)]);
    pool.release_taken();
    assert!(take(&mut pool, 100 * MIB).len() > 10);
    empty(&mut pool);
}

#[test]
fn no_more_is_handed_over_at_once_than_a_leader_keeps() {
    let mut pool = Pool::default();
    for number in 0..16 {
        offer(&mut pool, frame(1, number, MIB), 0);
    }
    offer(&mut pool, frame(2, 0, 10), 1);
    let handed = pool.hand_over(5);
    // Large frames go one after the other, and the small client had its turn.
    assert_eq!(handed, [frame(1, 0, MIB), frame(2, 0, 10)]);
    assert!(pool.hand_over(6).is_empty());
    let first = &handed[0];
    assert_eq!(pool.handed_ms((first.session, first.first_number)), Some(5));
    pool.remove(first.session, first.first_number);
    assert_eq!(pool.hand_over(7).len(), 1);
    // One that floods with small ones has half of the room, the next half of the rest.
    let mut numbers = 1000..;
    for _ in 0..4096 {
        let number = numbers.next().unwrap();
        offer(&mut pool, frame(3, number, 2000), 8);
        offer(&mut pool, frame(4, number, 2000), 8);
    }
    let bytes = |frames: &[Frame]| frames.iter().map(cost).sum::<usize>();
    let handed = bytes(&pool.hand_over(9));
    assert!(handed > HANDED_BYTES / 2 && handed < HANDED_BYTES, "{handed}");
    offer(&mut pool, frame(5, 0, 10), 10);
    assert_eq!(pool.hand_over(11), [frame(5, 0, 10)]);
    assert!(pool.taken_bytes() + HANDED_BYTES < FORWARDED_BYTES);
    empty(&mut pool);
}

#[test]
fn a_session_has_few_frames_and_others_of_the_client_are_not_hurt() {
    let mut pool = Pool::default();
    for number in 0..SESSION_FRAMES as u64 {
        assert_eq!(offer(&mut pool, frame_of(1, 7, number, 1), 0), Admission::Taken);
    }
    assert_eq!(offer(&mut pool, frame_of(1, 7, 9999, 1), 0), Admission::Full);
    assert_eq!(offer(&mut pool, frame_of(1, 8, 0, 1), 0), Admission::Taken);
    empty(&mut pool);
}

#[test]
fn what_was_proposed_in_vain_comes_first_again() {
    let mut pool = Pool::default();
    for number in 0..4 {
        offer(&mut pool, frame(1, number, 10), number);
    }
    let first: Vec<u64> = take(&mut pool, 2 * 138).iter().map(|f| f.first_number).collect();
    assert_eq!(first, [0, 1]);
    pool.release_taken();
    let again: Vec<u64> = take(&mut pool, 1 << 20).iter().map(|f| f.first_number).collect();
    assert_eq!(again, [0, 1, 2, 3]);
    for number in 0..4 {
        pool.remove(frame(1, number, 10).session, number);
    }
    empty(&mut pool);
}

#[test]
fn the_oldest_is_known_and_a_circle_forgets_what_is_of_no_use() {
    let mut pool = Pool::default();
    for number in 0..300 {
        offer(&mut pool, frame(1 + number as u32 % 3, number, 10), number);
    }
    assert_eq!(pool.oldest_ms(), Some(0));
    pool.remove(frame(1, 0, 10).session, 0);
    assert_eq!(pool.oldest_ms(), Some(1));
    for _ in 0..4 {
        pool.retain_some(100, |frame| frame.first_number >= 250);
    }
    assert_eq!(pool.oldest_ms(), Some(250));
    assert_eq!(pool.frames.len(), 50);
    pool.restart_clocks(400);
    assert_eq!(pool.oldest_ms(), Some(400));
    empty(&mut pool);
}

/// Whatever waits, a batch of it is within its bounds where it is read.
#[test]
fn what_is_taken_makes_a_batch_that_is_read_back() {
    use perdura_protocol::{Batch, Decode, Encode};
    let largest = limits::COMMAND_BYTES;
    for sizes in [
        vec![largest; 4],
        vec![10, largest, 10, largest],
        vec![limits::BATCH_TARGET_BYTES - 500, 300, 300],
    ] {
        let mut pool = Pool::default();
        for (client, size) in (1..).zip(sizes) {
            assert_eq!(offer(&mut pool, frame(client, 1, size), 0), Admission::Taken);
        }
        let mut batches = 0;
        loop {
            let frames = take(&mut pool, limits::BATCH_TARGET_BYTES);
            if frames.is_empty() {
                break;
            }
            let batch = Batch::requests(perdura_protocol::Time(1), frames);
            assert!(Batch::from_bytes(batch.to_bytes()).as_ref() == Ok(&batch));
            batches += 1;
        }
        assert!(batches > 1);
    }
}

#[test]
fn a_batch_keeps_to_what_it_may_cost_and_who_is_cheap_is_never_passed_over() {
    let mut pool = Pool::default();
    let mut expected = Expected::default();
    let mib = 1 << 20;
    for (client, cost) in [(1, 6 * mib), (2, 6 * mib), (3, 6 * mib)] {
        let one = frame(client, 1, 10);
        expected.executed(
            &perdura_protocol::Batch::requests(perdura_protocol::Time(1), vec![one]),
            &BTreeMap::from([(frame(client, 1, 10).session.client, cost)]),
        );
    }
    for client in 1..=5 {
        for number in 1..=2 {
            pool.offer(frame(client, number, 10), Source::Client, 0);
        }
    }
    let mut clients = |left, at_least_one| -> Vec<u8> {
        let taken =
            pool.take(1 << 20, usize::MAX, 0, Allowance::new(&expected, left, at_least_one));
        taken.iter().map(|frame| frame.session.client.0[3]).collect()
    };
    // Nothing costly while as much is under way; then two of three, both frames of each; then the third, alone above what is left.
    assert_eq!(clients(0, false), [4, 5, 4, 5]);
    assert_eq!(clients(0, false), []);
    assert_eq!(clients(12 * mib, true), [1, 2, 1, 2]);
    assert_eq!(clients(1, true), [3, 3]);
}

/// Others that cost something do not go before one that waits for its turn: what is in flight would never be little enough.
#[test]
fn who_is_costly_comes_to_his_turn_whatever_others_ask_for() {
    let (mut pool, mut expected) = (Pool::default(), Expected::default());
    let mib = 1 << 20;
    let costs = [(1, 17 * mib), (2, mib)];
    for (client, cost) in costs {
        let one = frame(client, 1, 10);
        let costs = BTreeMap::from([(one.session.client, cost)]);
        let batch = perdura_protocol::Batch::requests(perdura_protocol::Time(1), vec![one]);
        expected.executed(&batch, &costs);
    }
    // Two slots are in flight; the second client sends again as soon as it has an answer, the third one always.
    let (mut in_flight, mut served) = (std::collections::VecDeque::from([0, 0]), 0);
    for number in 1..=10 {
        for client in 1..=3 {
            pool.offer(frame(client, number, 10), Source::Client, 0);
        }
        in_flight.pop_front();
        let left = 16u64.saturating_mul(mib).saturating_sub(in_flight.iter().sum());
        let cost = Allowance::new(&expected, left, in_flight.iter().sum::<u64>() == 0);
        let taken = pool.take(1 << 20, usize::MAX, 0, cost);
        let clients: BTreeSet<u32> =
            taken.iter().map(|frame| u32::from(frame.session.client.0[3])).collect();
        assert!(clients.contains(&3), "who is cheap waits for nobody");
        served += usize::from(clients.contains(&1));
        let of = |client: &u32| costs.iter().find(|(one, _)| one == client).map_or(0, |one| one.1);
        in_flight.push_back(clients.iter().map(of).sum());
    }
    assert!(served >= 3, "{served} of 10 batches");
}
