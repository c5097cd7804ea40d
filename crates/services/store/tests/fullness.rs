//! How full a store is: told to who asks outside of the order, and to nobody in it.

use crate::partition::world::{World, client, is_commit};
use crate::support::{bytes, context, execute, put, read, write};
use bytes::Bytes;
use perdura_execution::{Alone as _, Service, StateLimit};
use perdura_protocol::Decode;
use perdura_store::{Fullness, Store, StoreCommand};

fn percent(store: &Store) -> u8 {
    let answer =
        store.answer(perdura_protocol::PublicKey([0; 32]), &Fullness::question()).unwrap().unwrap();
    Fullness::from_bytes(answer).unwrap().percent()
}

#[test]
fn a_store_says_how_full_it_is() {
    let mut store = Store::new(10_000);
    assert_eq!(percent(&store), 0);
    put(&mut store, "a", vec![1; 935]); // 1 + 935 + 64 = 1000
    assert_eq!(percent(&store), 10);
    for key in ["b", "c", "d", "e", "f", "g", "h", "i", "j"] {
        put(&mut store, key, vec![1; 934]);
    }
    assert_eq!(percent(&store), 99);
    put(&mut store, "j", vec![1; 943]);
    assert_eq!(percent(&store), 100);
    let more = StoreCommand::Put { key: bytes("k"), value: Bytes::new() };
    assert!(execute(&mut store, &more).is_err());
    store.set_state_limit(StateLimit::of_bytes(20_000));
    assert_eq!(percent(&store), 50);
}

#[test]
fn segments_count_where_they_are_scarcer_than_bytes() {
    let mut store = Store::new(u64::MAX);
    store.set_state_limit(StateLimit { bytes: u64::MAX, segments: 8 });
    assert_eq!(percent(&store), 12, "a store has one");
    let put = |store: &mut Store, key: u32| {
        let (key, value) = (Bytes::copy_from_slice(&key.to_be_bytes()), bytes(vec![7; 20_000]));
        execute(store, &StoreCommand::Put { key, value })
    };
    let mut number = 0;
    while put(&mut store, number).is_ok() {
        assert!(percent(&store) == 100 || store.segments() < 8);
        number += 1;
    }
    assert_eq!((store.segments(), percent(&store)), (8, 100));
}

#[test]
fn what_is_reserved_in_a_partition_is_taken() {
    let mut world = World::of(2, 1 << 20);
    let before = percent(&world.stores[0]);
    assert!(before <= 1);
    // A tenth.
    let value = "v".repeat(104_858);
    let parts = [(0, vec![write("a1", &value, false)]), (1, vec![read("b1")])];
    let intent = world.intent(client(1), 1, false, &parts);
    assert!(is_commit(&world.prepare(&intent, client(1), &parts[0])));
    let reserved = percent(&world.stores[0]);
    assert!((10..=21).contains(&reserved), "{reserved}: the room, and what is kept until then");
    let vote = world.prepare(&intent, client(1), &parts[1]);
    let votes = [world.proof(1, &vote)];
    world.finish(0, client(1), (intent.id(), true), &votes);
    assert!((10..=11).contains(&percent(&world.stores[0])));
    assert!(percent(&world.stores[1]) <= 1);
}

/// Programs that do not know the question run beside those that do.
#[test]
fn in_order_the_question_is_refused_as_ever_and_changes_nothing() {
    let question = Fullness::question();
    let refusal = "this is not a command of the store: unknown tag 128";
    let mut whole = Store::new(10_000);
    put(&mut whole, "a", "value");
    let mut world = World::new(2);
    let of = |store: &Store| {
        let snapshot = store.snapshot();
        (0..snapshot.segments()).map(|index| snapshot.segment(index)).collect::<Vec<_>>()
    };
    for store in [&mut whole, &mut world.stores[0]] {
        let before = of(store);
        let context = context();
        assert_eq!(store.order(&context, &question), Err(refusal.to_owned()));
        assert_eq!(of(store), before);
        assert_eq!(context.meter.spent(), 0);
        assert!(StoreCommand::decode(&question).is_err());
        assert_eq!(store.interface().footprint(&question), perdura_execution::Footprint::new());
        assert!(store.may_be_put_off(&question));
        assert!(store.interface().claims(&question).unwrap().is_empty());
        assert_eq!(store.interface().asks_about(&question), None);
        assert_eq!(
            store.interface().attested(
                &store.answer(perdura_protocol::PublicKey([0; 32]), &question).unwrap().unwrap()
            ),
            None
        );
    }
    // Nothing but these bytes is the question.
    for other in [&[128, 0][..], &[127], &[129]] {
        let refused = whole.answer(perdura_protocol::PublicKey([0; 32]), other).unwrap();
        assert_eq!(refused, whole.order(&context(), other));
        assert!(refused.unwrap_err().contains("unknown tag"));
    }
}
