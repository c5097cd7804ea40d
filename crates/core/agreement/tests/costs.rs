//! A leader that lies may fill its pipeline with what is costly to execute, which everybody's commands then wait for. The others do not write
//! far ahead of what they have executed where that is expected.

use crate::harness::Group;
use perdura_protocol::limits::SLOT_COST;
use perdura_protocol::{Batch, PublicKey, Time};
use std::collections::BTreeMap;

const COSTLY: u8 = 9;

/// A leader that knows of no costs, and frames of one client that come faster than slots are decided. How far the others wrote ahead, and in how
/// many slots it was ordered.
fn writes_ahead(cost: u64) -> (u64, usize) {
    let mut group = Group::new(3, 1, 1);
    let frame = group.frame_of(COSTLY, 8);
    let batch = Batch::requests(Time(1), vec![frame]);
    let costs = BTreeMap::from([(PublicKey([COSTLY; 32]), cost)]);
    for node in &mut group.nodes[1..] {
        node.agreement.as_mut().unwrap().note_costs(&batch, &costs);
    }
    group.disk_ms = 100;
    for _ in 0..20 {
        group.request_of(COSTLY, 70 * 1024);
        group.run(25);
    }
    group.run(10_000);
    let last = *group.agreed.last_key_value().unwrap().0;
    for node in &group.nodes {
        assert_eq!(node.delivered, last);
        assert!(!node.agreement.as_ref().unwrap().is_ordering(), "all of it is ordered");
    }
    (group.writes_ahead, group.agreed.len())
}

#[test]
fn others_write_no_further_ahead_than_two_slots_of_the_largest_budget() {
    let (usual, _) = writes_ahead(0);
    assert!(usual > 4, "{usual}: the pipeline is used");
    let (ahead, slots) = writes_ahead(SLOT_COST + SLOT_COST / 4);
    assert_eq!(ahead, 2);
    assert!(slots > 10, "{slots}");
    // What a correct leader has in flight is not held up.
    let (ahead, _) = writes_ahead(SLOT_COST / 4);
    assert!(ahead > 4, "{ahead}");
}
