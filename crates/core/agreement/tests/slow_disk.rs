//! A follower whose disk stands still while the group goes on: what waits for the disk stays
//! bounded (A6), because an Accept is dropped once its slot is certified without it.

use crate::harness::settings::settings;
use bytes::Bytes;
use perdura_agreement::pool::Source;
use perdura_agreement::{Agreement, Effect, Now, Restart};
use perdura_protocol::configuration::{Configuration, Configurations, Member};
use perdura_protocol::statement::StatementKind;
use perdura_protocol::{
    Batch, ClusterId, Digest, Faults, Frame, Message, ReplicaId, Scheme, SecretKey, SessionId,
    Slot, Time, View, limits,
};

const LEADER: ReplicaId = ReplicaId(0);

fn key(replica: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::KeyedHash, [replica + 1; 32])
}

fn configurations(cluster: ClusterId) -> Configurations {
    let members = (0..3).map(|i| Member { key: key(i).public(), incarnation: 0 }).collect();
    Configurations::new(cluster, Configuration { id: 0, from_slot: Slot(0), members })
}

/// One of three that may crash, one at a time.
fn machine(me: ReplicaId, cluster: ClusterId, now: Now) -> Agreement {
    let settings = settings(cluster, Faults::new(1, 0).unwrap(), me, key);
    Agreement::new(settings, configurations(cluster), Restart::blank(), now)
}

#[test]
fn what_waits_for_a_disk_that_stands_still_is_bounded() {
    let cluster = ClusterId([7; 16]);
    let now = Now { monotonic_ms: 1_000, wall: Time(1_000_000) };
    let mut follower = machine(ReplicaId(1), cluster, now);
    follower.on_link(now, LEADER, true);
    let mut history = Digest::ZERO;
    let mut executed = 0;
    for slot in (1..=20 * limits::PREFIX_INTERVAL).map(Slot) {
        let batch = Batch::tick(Time(1_000_000 + slot.0 % 100));
        let decided = slot.previous();
        let propose =
            Message::Propose { view: View(0), slot, batch: batch.clone(), decided, history };
        follower.on_message(now, LEADER, propose);
        history = history.chain(slot, batch.digest());
        let decided = Message::Decided { view: View(0), slot, history };
        follower.on_message(now, LEADER, decided);
        if slot.0 % limits::PREFIX_INTERVAL == 0 {
            let context = configurations(cluster).context_at(slot);
            let statement = context.statement(StatementKind::Prefix, View(0), slot, history);
            let signature = key(0).sign(&statement);
            follower.on_message(now, LEADER, Message::Prefix { slot, history, signature });
        }
        while let Some(effect) = follower.next_effect() {
            if let Effect::Deliver { slot, .. } = effect {
                executed = slot.0;
                follower.on_executed(now, slot, None, false);
            }
        }
        // Nothing is ever reported as persisted.
        let bound = limits::PREFIX_INTERVAL + 8 + slot.0 / limits::PREFIX_INTERVAL + 1;
        let held = follower.held().messages;
        assert!(held as u64 <= bound, "{held} messages wait at slot {slot}");
    }
    assert_eq!(executed, 20 * limits::PREFIX_INTERVAL, "the group went on without its disk");
}

#[test]
fn nobody_is_told_again_what_waits_for_the_disk_already() {
    let cluster = ClusterId([7; 16]);
    let mut now = Now { monotonic_ms: 1_000, wall: Time(1_000_000) };
    let mut leader = machine(LEADER, cluster, now);
    let session = SessionId { client: key(9).public(), nonce: 1 };
    for number in 1..=8 {
        let frame = Frame::build(cluster, session, 0, number, &[Bytes::from("x")], None);
        leader.on_frame(now, frame, Source::Client);
        leader.flush(now);
    }
    let before = leader.held().messages;
    assert!(before > 0, "proposals wait for the view's record");
    // Its view never becomes durable, and the others say again and again where they are.
    for _ in 0..1_000 {
        now.monotonic_ms += 50;
        for peer in [1, 2].map(ReplicaId) {
            let status = Message::Status { view: View(0), changing: false, delivered: Slot(0) };
            leader.on_message(now, peer, status);
        }
    }
    assert_eq!(leader.held().messages, before);
}
