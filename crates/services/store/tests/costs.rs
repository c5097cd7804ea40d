//! What commands cost, and what becomes of one that costs more than it may.

use crate::support::{bytes, context, costly, put, range, remove, segments, small_entries};
use bytes::Bytes;
use perdura_execution::{Alone as _, ExecutionContext, Genesis, Machine, Meter};
use perdura_protocol::configuration::{Member, Parameters};
use perdura_protocol::limits::COMMAND_COST;
use perdura_protocol::{
    Batch, ClusterId, Command, Configuration, Encode, Faults, Frame, Outcome, PublicKey,
    RefusalReason, SessionId, Slot, Time, Versions,
};
use perdura_store::{Operation, Store, StoreCommand, Transaction};

const CLUSTER: ClusterId = ClusterId([9; 16]);
const SESSION: SessionId = SessionId { client: PublicKey([1; 32]), nonce: 1 };

fn filled() -> Store {
    let mut store = Store::new(1 << 30);
    small_entries().for_each(|key| put(&mut store, key, ""));
    store
}

fn transaction(operations: Vec<Operation>) -> Bytes {
    StoreCommand::Transaction(Transaction { operations }).to_bytes()
}

/// What a transaction costs.
fn cost(store: &mut Store, operations: Vec<Operation>) -> u64 {
    let context = ExecutionContext { meter: Meter::without_limit(), ..context() };
    store.order(&context, &transaction(operations)).unwrap();
    context.meter.spent()
}

#[test]
fn entries_that_a_transaction_has_removed_itself_are_charged_when_it_passes_them() {
    let read = || range("a", Some("b"), 10, false);
    let usual = cost(&mut filled(), vec![read()]);
    assert!(usual < 1_000, "{usual}");
    for reverse in [false, true] {
        for (count, ranges) in [(512, 1), (512, 512)] {
            let removed: Vec<Bytes> = if reverse {
                small_entries().skip(1_300 - count).collect()
            } else {
                small_entries().take(count).collect()
            };
            let mut operations: Vec<Operation> =
                removed.into_iter().map(|key| Operation::Delete { key }).collect();
            operations.extend((0..ranges).map(|_| range("a", Some("b"), 10, reverse)));
            let cost = cost(&mut filled(), operations);
            let steps = count as u64 * ranges;
            assert!(cost >= 16 * steps && cost < 50 * steps, "{cost} for {steps} steps");
        }
    }
    // What is not there any more, or never was, is passed as well.
    let mut operations: Vec<Operation> =
        (0..500).map(|number| remove(&format!("x{number}"))).collect();
    operations.push(range("x", Some("y"), 10, false));
    assert!(cost(&mut filled(), operations) >= 16 * 500);
}

fn machine(versions: Versions) -> Machine<Store> {
    let parameters = Parameters {
        versions,
        ..Parameters::small(CLUSTER, Faults::new(1, 1).unwrap(), PublicKey([200; 32]))
    };
    let member = |id: u8| Member { key: PublicKey([100 + id; 32]), incarnation: 0 };
    let members = (0..4).map(member).collect();
    let configuration = Configuration { id: 0, from_slot: Slot(0), members };
    let clients = vec![("alice".into(), SESSION.client)];
    let mut machine =
        Machine::new(&parameters, Genesis { configuration, clients }, filled()).unwrap();
    assert_eq!(order(&mut machine, 0, &Command::Open.to_bytes()), Outcome::Opened);
    machine
}

fn order(machine: &mut Machine<Store>, number: u64, command: &Bytes) -> Outcome {
    let frame = Frame::build(CLUSTER, SESSION, 0, number, std::slice::from_ref(command), None);
    let batch = Batch::requests(Time(1), vec![frame]);
    let mut replies = machine.execute(machine.slot().next(), &batch).replies;
    replies.remove(0).outcome
}

#[test]
fn an_ordered_command_that_costs_more_than_it_may_is_refused_for_good_and_changes_nothing() {
    let mut machine = machine(Versions { rules: 2, service: 2 });
    let before = segments(machine.service());
    let service = |content: Bytes| Command::Service(content).to_bytes();
    let content = transaction(costly());
    assert!(content.len() < 20_000, "{}", content.len());
    let refused = order(&mut machine, 1, &service(content));
    let Outcome::Refused(RefusalReason::Service(text)) = &refused else { panic!("{refused:?}") };
    assert!(text.contains(&format!("more work than one may ({COMMAND_COST} bytes")), "{text}");
    assert!(segments(machine.service()) == before);
    // It is known, and another command with its number is not begun.
    assert_eq!(machine.cached(SESSION, 1), Some(refused.clone()));
    let delete = StoreCommand::Delete { key: bytes([b'a', 0, 0]) }.to_bytes();
    assert_eq!(order(&mut machine, 1, &service(delete.clone())), refused);
    assert!(segments(machine.service()) == before);
    // The session goes on.
    assert!(matches!(order(&mut machine, 2, &service(delete)), Outcome::Service(_)));
    assert!(segments(machine.service()) != before);
}

/// Older rules know no bound: what was carried out under them is so again.
#[test]
fn under_the_rules_before_it_is_carried_out() {
    let mut machine = machine(Versions { rules: 1, service: 1 });
    let command = Command::Service(transaction(costly())).to_bytes();
    assert!(matches!(order(&mut machine, 1, &command), Outcome::Service(_)));
    assert_eq!(machine.service().entries(), 1_300 - 512);
}
