//! When a leader closes a batch: a caller that is alone waits for nothing, many share slots.

use crate::harness::settings::settings;
use bytes::Bytes;
use perdura_agreement::pool::Source;
use perdura_agreement::{Agreement, Effect, Now, Restart};
use perdura_protocol::configuration::{Configuration, Configurations, Member};
use perdura_protocol::{
    ClusterId, Digest, Faults, Frame, Message, ReplicaId, Scheme, SecretKey, SessionId, Signature,
    Slot, Time, View,
};

const CLUSTER: ClusterId = ClusterId([7; 16]);

fn key(replica: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::KeyedHash, [replica + 1; 32])
}

/// The leader of three that may crash, one at a time.
struct Leader {
    agreement: Agreement,
    now: Now,
    next_number: u64,
    persisted: u64,
    /// Slots with their batches, and how many commands each has.
    proposed: Vec<(Slot, Digest, usize)>,
    /// Batches without any.
    ticks: usize,
}

impl Leader {
    fn new() -> Leader {
        let now = Now { monotonic_ms: 1_000, wall: Time(1_000_000) };
        let members = (0..3).map(|i| Member { key: key(i).public(), incarnation: 0 }).collect();
        let genesis = Configuration { id: 0, from_slot: Slot(0), members };
        let settings = settings(CLUSTER, Faults::new(1, 0).unwrap(), ReplicaId(0), key);
        let configurations = Configurations::new(CLUSTER, genesis);
        let mut agreement = Agreement::new(settings, configurations, Restart::blank(), now);
        agreement.on_link(now, ReplicaId(1), true);
        let mut leader =
            Leader { agreement, now, next_number: 1, persisted: 0, proposed: Vec::new(), ticks: 0 };
        // That it entered the view is on its disk.
        leader.end_round();
        leader.decide();
        leader
    }

    fn wait_ms(&mut self, ms: u64) {
        self.now =
            Now { monotonic_ms: self.now.monotonic_ms + ms, wall: Time(self.now.wall.0 + ms) };
    }

    /// A frame of so many commands comes, and the round ends; how many commands were proposed.
    fn take(&mut self, commands: usize) -> usize {
        let session = SessionId { client: key(9).public(), nonce: 1 };
        let commands = vec![Bytes::from_static(b"command"); commands];
        let frame = Frame::build(CLUSTER, session, 0, self.next_number, &commands, None);
        self.next_number += commands.len() as u64;
        self.agreement.on_frame(self.now, frame, Source::Client);
        self.end_round()
    }

    fn end_round(&mut self) -> usize {
        let before = self.proposed.len();
        self.agreement.flush(self.now);
        while let Some(effect) = self.agreement.next_effect() {
            match effect {
                Effect::Persist(_) => self.persisted += 1,
                Effect::Broadcast(Message::Propose { slot, batch, .. }) => {
                    let commands = batch.frames().iter().map(|frame| frame.commands().len()).sum();
                    self.ticks += usize::from(commands == 0);
                    self.proposed.push((slot, batch.digest(), commands));
                }
                Effect::Deliver { slot, .. } => {
                    self.agreement.on_executed(self.now, slot, None, false);
                }
                _ => {}
            }
        }
        self.proposed[before..].iter().map(|(_, _, commands)| commands).sum()
    }

    /// Everything that was proposed is logged here, accepted by another replica, and executed.
    fn decide(&mut self) {
        self.agreement.on_persisted(self.now, self.persisted);
        for (slot, digest, _) in self.proposed.clone() {
            let signature = Signature::NONE;
            let accept = Message::Accept { view: View(0), slot, digest, signature };
            self.agreement.on_message(self.now, ReplicaId(1), accept);
        }
        assert_eq!(self.end_round(), 0);
    }
}

#[test]
fn who_is_alone_waits_for_nothing() {
    let mut leader = Leader::new();
    for _ in 0..10 {
        assert_eq!(leader.take(1), 1);
        assert_eq!(leader.agreement.gathers_ms(leader.now), None);
        leader.decide();
    }
}

#[test]
fn many_callers_share_a_slot_and_wait_for_each_other_a_moment_only() {
    let mut leader = Leader::new();
    assert_eq!(leader.take(20), 20);
    leader.wait_ms(1);
    // Some of those whose commands are in flight may soon send the next: this one waits for them ...
    assert_eq!(leader.take(3), 0);
    assert_eq!(leader.agreement.gathers_ms(leader.now), Some(7));
    leader.wait_ms(1);
    leader.decide();
    assert_eq!(leader.agreement.gathers_ms(leader.now), Some(2));
    // ... and goes with most of them,
    assert_eq!(leader.take(13), 16);
    assert_eq!(leader.agreement.gathers_ms(leader.now), None);
    leader.decide();
    // or when its time has passed.
    leader.wait_ms(1);
    assert_eq!(leader.take(3), 0);
    leader.wait_ms(3);
    assert_eq!(leader.agreement.gathers_ms(leader.now), None);
    assert_eq!(leader.end_round(), 3);
}

/// With large commands a slot takes longer than a batch gathers: who did not come in time for it does not go alone, just
/// before all others come back.
#[test]
fn after_a_slow_slot_its_callers_are_waited_for() {
    let mut leader = Leader::new();
    assert_eq!(leader.take(20), 20);
    leader.wait_ms(6);
    assert_eq!(leader.take(3), 0);
    leader.decide();
    assert_eq!(leader.agreement.gathers_ms(leader.now), Some(2));
    leader.wait_ms(1);
    assert_eq!(leader.take(8), 0);
    assert_eq!(leader.take(9), 20);
    // For a moment only.
    leader.wait_ms(6);
    assert_eq!(leader.take(3), 0);
    leader.decide();
    leader.wait_ms(2);
    assert_eq!(leader.end_round(), 3);
}

/// A batch with frames brings the time as well. Ticks that are due again and again would otherwise keep what
/// gathers waiting.
#[test]
fn no_tick_goes_before_what_gathers() {
    let mut leader = Leader::new();
    assert_eq!(leader.take(20), 20);
    leader.decide();
    for _ in 0..3 {
        leader.wait_ms(1);
        assert_eq!(leader.take(3), 0);
        leader.agreement.set_due(Some(leader.now.wall));
        let ticks = leader.ticks;
        assert_eq!((leader.end_round(), leader.ticks), (3, ticks));
        leader.agreement.set_due(None);
        leader.decide();
    }
    leader.wait_ms(1);
    leader.agreement.set_due(Some(leader.now.wall));
    assert_eq!((leader.end_round(), leader.ticks), (0, 1), "nothing else brings the time");
}

#[test]
fn callers_that_left_are_forgotten() {
    let mut leader = Leader::new();
    assert_eq!(leader.take(1000), 1000);
    leader.decide();
    let mut waits = 0;
    loop {
        let proposed = leader.take(1);
        if proposed == 1 {
            break;
        }
        waits += 1;
        leader.wait_ms(4);
        assert_eq!(leader.end_round(), 1);
        leader.decide();
    }
    assert!((1..=12).contains(&waits), "{waits}");
}
