//! Reads over several partitions that took no locks.

use super::*;

impl Made {
    fn calls_fast(&mut self, partition: usize, operation: usize, command: Bytes, reply: Bytes) {
        let (invoked, ended) = (self.moment(), Some(self.moment()));
        let record = self.calls[partition].len();
        let (number, seen) = (None, Seen::Ok(reply));
        self.calls[partition].push(Called { command, invoked, ended, number, seen });
        self.asked[operation].calls.push((partition, record));
    }

    fn looks(
        &mut self,
        partition: usize,
        operation: usize,
        operations: &[Operation],
        found: Option<&str>,
    ) {
        let command = StoreCommand::Transaction(Transaction { operations: operations.to_vec() });
        let (committed, failed, results) = (true, None, vec![value(found)]);
        let reply = StoreReply::Transaction(TransactionResult { committed, failed, results });
        self.calls_fast(partition, operation, command.to_bytes(), reply.to_bytes());
    }

    fn validates(&mut self, partition: usize, operation: usize, since: u64, holds: bool) {
        let operations = reads()[partition].clone();
        let command = PartitionCommand::Validate { since: Slot(since), operations };
        let reply = PartitionReply::Validated { holds };
        self.calls_fast(partition, operation, command.to_bytes(), reply.to_bytes());
    }
}

fn found(values: [Option<&str>; 2]) -> Told {
    committed(values.map(value).to_vec())
}

fn reads() -> [Vec<Operation>; 2] {
    [vec![read("a1")], vec![read("b1")]]
}

#[test]
fn what_was_there_at_one_moment_is_in_order() {
    let mut made = Made::new();
    let writer = writes_both(&mut made, 1, "1", [Some(true); 2]);
    made.told(writer, committed(vec![WRITTEN, WRITTEN]));
    let reader = made.asks(&whole(&reads()));
    // In vain first: something changes meanwhile.
    for (partition, part) in reads().iter().enumerate() {
        made.looks(partition, reader, part, Some("1"));
    }
    made.local(1, None, &[write("b1", "2")], &[WRITTEN]);
    made.validates(0, reader, 1, true);
    made.validates(1, reader, 1, false);
    assert_eq!(made.judge().unwrap().snapshots, 0);
    for (partition, found) in [(0, "1"), (1, "2")] {
        made.looks(partition, reader, &reads()[partition], Some(found));
    }
    made.validates(0, reader, 1, true);
    made.validates(1, reader, 2, true);
    made.told(reader, found([Some("1"), Some("2")]));
    assert_eq!(made.judge().unwrap().snapshots, 1);
    made.asked[reader].told = Some(found([Some("1"), Some("1")]));
    assert_eq!(made.broken(), RULE_TOLD, "it is told something else");
}

#[test]
fn half_of_a_transaction_is_not_seen() {
    let mut made = Made::new();
    let reader = made.asks(&whole(&reads()));
    made.looks(1, reader, &reads()[1], None);
    let parts = pair("1");
    let writer = made.asks(&whole(&parts));
    let intent = made.intent(1, 1, [&parts[0], &parts[1]], false);
    for (partition, part) in parts.iter().enumerate() {
        made.prepares((partition, Some(writer)), &intent, part, &[WRITTEN]);
    }
    made.ends(0, &intent, true);
    made.looks(0, reader, &reads()[0], Some("1"));
    made.validates(0, reader, 1, true);
    // It is locked there: nobody may say so.
    made.validates(1, reader, 0, true);
    made.ends(1, &intent, true);
    made.told(reader, found([Some("1"), None]));
    let broken = made.judge().unwrap_err();
    assert!(broken.rule == RULE_ORDER && broken.what.contains("snapshot"), "{broken:?}");
}

#[test]
fn what_is_said_to_hold_has_to() {
    let mut made = Made::new();
    let reader = made.asks(&whole(&reads()));
    for (partition, part) in reads().iter().enumerate() {
        made.looks(partition, reader, part, None);
    }
    made.local(0, None, &[write("a1", "1")], &[WRITTEN]);
    made.validates(0, reader, 0, true);
    made.validates(1, reader, 0, true);
    made.told(reader, found([None; 2]));
    let broken = made.judge().unwrap_err();
    assert!(broken.rule == RULE_ORDER && broken.what.contains("said to hold"), "{broken:?}");
}
