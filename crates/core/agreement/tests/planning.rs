//! A leader keeps what it has proposed, and nobody has executed, at about what one slot may cost.

use crate::harness::settings::settings;
use bytes::Bytes;
use perdura_agreement::pool::Source;
use perdura_agreement::{Agreement, Effect, Now, Restart};
use perdura_protocol::configuration::{Configuration, Configurations, Member};
use perdura_protocol::limits::SLOT_COST;
use perdura_protocol::{
    Batch, ClusterId, Faults, Frame, Message, PublicKey, ReplicaId, Scheme, SecretKey, SessionId,
    Signature, Slot, Time, View,
};
use std::collections::BTreeMap;

const CLUSTER: ClusterId = ClusterId([7; 16]);

fn key(replica: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::KeyedHash, [replica + 1; 32])
}

/// A frame that is worth a batch by itself.
fn frame(client: u8, number: u64) -> Frame {
    let session = SessionId { client: PublicKey([client; 32]), nonce: 1 };
    Frame::build(CLUSTER, session, 0, number, &[Bytes::from(vec![0; 128 * 1024])], None)
}

/// With one costly slot in flight only who is cheap is proposed; when it is executed, the next costly client is.
pub fn costly_slots_are_proposed_one_after_the_other() {
    let mut now = Now { monotonic_ms: 1_000, wall: Time(1_000_000) };
    let members = (0..3).map(|i| Member { key: key(i).public(), incarnation: 0 }).collect();
    let genesis = Configuration { id: 0, from_slot: Slot(0), members };
    let settings = settings(CLUSTER, Faults::new(1, 0).unwrap(), ReplicaId(0), key);
    let configurations = Configurations::new(CLUSTER, genesis);
    let mut leader = Agreement::new(settings, configurations, Restart::blank(), now);
    leader.on_link(now, ReplicaId(1), true);
    for client in [1, 2] {
        let costs = BTreeMap::from([(PublicKey([client; 32]), SLOT_COST)]);
        leader.note_costs(&Batch::requests(Time(1), vec![frame(client, 1)]), &costs);
    }
    let mut logged = 0;
    let mut round = |leader: &mut Agreement, now: Now, executes: bool| -> Vec<(Slot, Batch)> {
        let mut proposed = Vec::new();
        leader.flush(now);
        while let Some(effect) = leader.next_effect() {
            match effect {
                Effect::Persist(_) => logged += 1,
                Effect::Broadcast(Message::Propose { slot, batch, .. }) => {
                    proposed.push((slot, batch));
                }
                Effect::Deliver { slot, .. } => leader.on_executed(now, slot, None, false),
                _ => {}
            }
        }
        if executes {
            leader.on_persisted(now, logged);
        }
        proposed
    };
    round(&mut leader, now, true);
    let mut clients = Vec::new();
    let mut open = Vec::new();
    for (number, executes) in [(1, false), (2, false), (3, true), (4, false)] {
        now.monotonic_ms += 100;
        for client in 1..=3 {
            leader.on_frame(now, frame(client, number), Source::Client);
        }
        let proposed = round(&mut leader, now, executes);
        let of = |(_, batch): &(Slot, Batch)| -> Vec<u8> {
            batch.frames().iter().map(|frame| frame.session.client.0[0]).collect()
        };
        let mut these: Vec<u8> = proposed.iter().flat_map(of).collect();
        these.sort_unstable();
        these.dedup();
        clients.push(these);
        open.extend(proposed.into_iter().map(|(slot, batch)| (slot, batch.digest())));
        if executes {
            for (slot, digest) in open.drain(..) {
                let signature = Signature::NONE;
                let accept = Message::Accept { view: View(0), slot, digest, signature };
                leader.on_message(now, ReplicaId(1), accept);
            }
            round(&mut leader, now, false);
        }
    }
    assert_eq!(clients[..3], [vec![1, 3], vec![3], vec![3]], "{clients:?}");
    assert!(clients[3].contains(&2) || clients[3].is_empty(), "{clients:?}");
}
