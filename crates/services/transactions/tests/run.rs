//! What clients come to.

use crate::support::*;
use perdura_client::CallError;
use perdura_protocol::PartitionId;
use perdura_protocol::partitions::MAP_VERSION;
use perdura_store::partition::{
    Fence, Intent, Participant, PartitionCommand, PartitionReply, digest_of_part, limits,
};
use perdura_store::{Operation, OperationResult, StoreCommand, Transaction};
use perdura_transactions::{
    Counters, Groups, Outcome, Resolver, Split, TransactionError, Transactions, Turn,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const SECONDS: u64 = 1_000;

pub(crate) fn transact(
    shared: &Shared,
    client: &Transactions<Way>,
    operations: Vec<Operation>,
) -> Result<Outcome, TransactionError> {
    let (client, deadline_ms) = (client.clone(), lock(shared).now_ms + 10 * SECONDS);
    run_one(
        shared,
        async move { client.transact(Transaction { operations }, true, deadline_ms).await },
    )
}

fn committed(results: Vec<OperationResult>) -> Result<Outcome, TransactionError> {
    Ok(Outcome::Committed(results.into()))
}

/// Nobody else looks at this partition.
pub(crate) fn alone_with(partition: u16) -> (PartitionId, Turn) {
    (PartitionId(partition), Turn { number: 0, of: 1 })
}

fn value(text: &str) -> OperationResult {
    OperationResult::Value(Some(bytes(text)))
}

#[test]
fn results_come_in_the_order_of_operations_from_wherever_they_are() {
    let shared = Partitions::new(3, 1);
    let client = client(&shared, 1);
    let all = [write("c1", "3"), write("a1", "1"), write("b1", "2")];
    let written = vec![OperationResult::Written; 3];
    assert_eq!(transact(&shared, &client, all.to_vec()), committed(written));
    let reads = vec![read("b1"), read("a1"), read("c1"), read("b2"), read("a1")];
    let values = vec![value("2"), value("1"), value("3"), OperationResult::Value(None), value("1")];
    assert_eq!(transact(&shared, &client, reads), committed(values));
    // What only reads takes no locks, and in one partition nothing is prepared.
    let count = || (client.counters().global, client.counters().snapshots);
    assert_eq!(count(), (1, 1));
    assert_eq!(transact(&shared, &client, vec![read("a1")]), committed(vec![value("1")]));
    assert_eq!(transact(&shared, &client, vec![]), committed(vec![]));
    assert_eq!(count(), (1, 1));
}

#[test]
fn what_fails_is_named_by_its_place_in_the_whole() {
    let shared = Partitions::new(3, 2);
    let client = client(&shared, 1);
    let present = |key: &str| Operation::Insert { key: bytes(key), value: bytes("x") };
    transact(&shared, &client, vec![write("b1", "1")]).unwrap();
    let operations = vec![write("c1", "1"), write("a1", "1"), read("b1"), present("b1")];
    assert_eq!(transact(&shared, &client, operations), Ok(Outcome::Failed { operation: 3 }));
    let reads = vec![read("a1"), read("c1")];
    let nothing = vec![OperationResult::Value(None); 2];
    assert_eq!(transact(&shared, &client, reads), committed(nothing));
}

#[test]
fn a_partition_that_is_down_keeps_what_needs_it_from_happening_and_nothing_else() {
    let shared = Partitions::new(3, 4);
    let client = client(&shared, 1);
    lock(&shared).down.insert(PartitionId(2));
    let error = transact(&shared, &client, vec![write("a1", "1"), write("c1", "1")]).unwrap_err();
    assert!(matches!(error, TransactionError::Call(CallError::Indeterminate { .. })));
    transact(&shared, &client, vec![write("a2", "1"), write("b1", "1")]).unwrap();
    // What it left is ended as soon as all answer.
    lock(&shared).down.clear();
    lock(&shared).now_ms += 3 * SECONDS;
    transact(&shared, &client, vec![write("a1", "2"), write("b1", "2")]).unwrap();
    let reads = vec![read("a1"), read("b1"), read("c1")];
    let values = vec![value("2"), value("2"), OperationResult::Value(None)];
    assert_eq!(transact(&shared, &client, reads), committed(values));
    assert_eq!(client.counters().ended_for_others, 1);
}

/// What one participant aborts holds no locks of others, though a third one is down, and says nothing until whoever asks has no time left.
#[test]
fn a_vote_to_abort_ends_a_transaction_whichever_other_participants_are_down() {
    let shared = Partitions::new(3, 6);
    let ours = client(&shared, 1);
    transact(&shared, &ours, vec![write("c1", "there")]).unwrap();
    lock(&shared).down.insert(PartitionId(1));
    let operations = vec![
        write("a1", "1"),
        write("b1", "1"),
        Operation::Insert { key: bytes("c1"), value: bytes("1") },
    ];
    let outcome = transact(&shared, &ours, operations.clone());
    assert_eq!(outcome, Ok(Outcome::Failed { operation: 2 }));
    let prepared = lock(&shared).commands;
    transact(&shared, &ours, vec![write("a1", "free")]).unwrap();
    assert_eq!(lock(&shared).commands, prepared + 1, "its client has ended it");
    // Of a client that died others end it. Its second one, which partition 2 would be asked for last.
    let dead = client(&shared, 2);
    transact(&shared, &dead, vec![write("a2", "1"), write("c2", "1")]).unwrap();
    let now_ms = lock(&shared).now_ms;
    let task = Box::pin(async move {
        let deadline_ms = now_ms + 10 * SECONDS;
        drop(dead.transact(Transaction { operations }, true, deadline_ms).await);
    });

    run_until(&shared, task, now_ms + SECONDS);
    transact(&shared, &ours, vec![write("a1", "free again")]).unwrap();
    assert_eq!(ours.counters().ended_for_others, 1);
}

/// One process that is killed with much in flight costs others with its key time, and no refusals.
#[test]
fn a_client_that_may_have_one_pending_waits_for_it() {
    let shared = Partitions::new(2, 7);
    let (ours, others) = (client(&shared, 1), client(&shared, 2));
    let both =
        |number: u32| vec![write(&format!("a{number}"), "1"), write(&format!("b{number}"), "1")];
    lock(&shared).down.insert(PartitionId(1));
    for number in 0..12 {
        let (dead, operations, now_ms) = (client(&shared, 1), both(number), lock(&shared).now_ms);
        let task = Box::pin(async move {
            let deadline_ms = now_ms + 10 * SECONDS;
            drop(dead.transact(Transaction { operations }, false, deadline_ms).await);
        });
        run_until(&shared, task, now_ms + SECONDS / 10);
    }
    lock(&shared).down.clear();
    lock(&shared).now_ms += 3 * SECONDS;
    (0..12).for_each(|number| drop(transact(&shared, &others, both(number)).unwrap()));
    assert_eq!(others.counters().ended_for_others, 12);
    let deadline_ms = lock(&shared).now_ms + 10 * SECONDS;
    let done = Arc::new(AtomicU64::new(0));
    let tasks = (0..8).map(|number| -> Task {
        let (ours, operations, done) = (ours.clone(), both(100 + number), Arc::clone(&done));
        Box::pin(async move {
            let outcome = ours.transact(Transaction { operations }, false, deadline_ms).await;
            assert!(
                matches!(outcome, Ok(Outcome::Committed(_) | Outcome::ResultsGone)),
                "{outcome:?}"
            );
            done.fetch_add(1, Ordering::Relaxed);
        })
    });
    run(&shared, tasks.collect(), 0);
    assert_eq!(done.load(Ordering::Relaxed), 8);
}

#[test]
fn partitions_forget_what_is_over() {
    let shared = Partitions::new(2, 5);
    let client = client(&shared, 1);
    for number in 0..200 {
        let number = number.to_string();
        transact(&shared, &client, vec![write("a1", &number), write("b1", &number)]).unwrap();
    }
    run_one(&shared, {
        let client = client.clone();
        async move { client.forget_ended().await }
    });
    assert_eq!(client.counters().forgotten, 400);
}

/// However few they are: another process with the same key is to have room.
#[test]
fn what_is_over_is_told_in_time() {
    let shared = Partitions::new(2, 5);
    let client = client(&shared, 1);
    transact(&shared, &client, vec![write("a1", "1"), write("b1", "1")]).unwrap();
    assert_eq!(client.counters().forgotten, 0);
    let waiting = client.clone();
    run_one(&shared, async move { waiting.groups().sleep(11 * SECONDS).await });
    assert_eq!(client.counters().forgotten, 2);
    assert!(!lock(&shared).remembers(PartitionId(0), client.groups().session_in(PartitionId(0))));
}

/// What it has ended itself makes room for one more.
#[test]
fn who_has_too_much_remembered_says_what_is_over() {
    let shared = Partitions::new(2, 5);
    let (ours, other) = (client(&shared, 1), client_in(&shared, 1, 50));
    let both = |value: &str| vec![write("a1", value), write("b1", value)];
    transact(&shared, &ours, both("1")).unwrap();
    run_one(&shared, async move {
        for number in 1..u64::from(limits::RECORDS_PER_CLIENT) {
            let present = Operation::Insert { key: bytes("a1"), value: bytes("1") };
            prepare_first(other.clone(), vec![present, write("b2", "1")], number).await;
        }
    });
    let written = vec![OperationResult::Written; 2];
    assert_eq!(transact(&shared, &ours, both("2")), committed(written));
}

/// Else a client could do nothing any more, in partitions that answer, some thousand transactions later.
#[test]
fn partitions_forget_what_is_over_though_another_one_is_down() {
    let shared = Partitions::new(3, 5);
    let client = client(&shared, 1);
    transact(&shared, &client, vec![write("a1", "0"), write("c1", "0")]).unwrap();
    lock(&shared).down.insert(PartitionId(2));
    for number in 0..50 {
        let number = number.to_string();
        transact(&shared, &client, vec![write("a1", &number), write("b1", &number)]).unwrap();
    }
    run_one(&shared, {
        let client = client.clone();
        async move { client.forget_ended().await }
    });
    assert_eq!(client.counters().forgotten, 100);
}

/// By a transaction that waits for a third one.
#[test]
fn a_partition_that_answers_is_not_taken_for_one_that_is_down() {
    let shared = Partitions::new(3, 6);
    let [first, other] = [1, 2].map(|number| client(&shared, number));
    transact(&shared, &first, vec![write("a1", "0"), write("b1", "0")]).unwrap();
    lock(&shared).down.insert(PartitionId(2));
    // Its second one: the last partition is the one that is down, and the others have voted.
    let all = vec![write("a1", "1"), write("b1", "1"), write("c1", "1")];
    transact(&shared, &first, all).unwrap_err();
    for _ in 0..2 {
        lock(&shared).now_ms += 6 * SECONDS;
        transact(&shared, &other, vec![write("a2", "1"), write("b2", "1")]).unwrap();
        let values = vec![value("1"), value("1")];
        assert_eq!(transact(&shared, &other, vec![read("a2"), read("b2")]), committed(values));
    }
    let needs_it = transact(&shared, &other, vec![write("a3", "1"), write("c3", "1")]);
    assert!(matches!(needs_it, Err(TransactionError::Refused { .. })), "{needs_it:?}");
}

/// It was decided, ended by others and forgotten before its client heard of it.
#[test]
fn what_may_have_been_decided_and_forgotten_is_indeterminate() {
    let shared = Partitions::new(2, 8);
    let [ours, others] = [1, 2].map(|number| client(&shared, number));
    const PREPARE_LAST: u8 = 28;
    lock(&shared).unheard = Some((PREPARE_LAST, 300 * SECONDS));
    let deadline_ms = lock(&shared).now_ms + 1_000 * SECONDS;
    let ended = Arc::new(AtomicU64::new(0));
    let call: Task = {
        let (ours, ended) = (ours.clone(), Arc::clone(&ended));
        Box::pin(async move {
            let operations = vec![write("a1", "1"), write("b1", "1")];
            let outcome = ours.transact(Transaction { operations }, false, deadline_ms).await;
            let Err(TransactionError::Call(error)) = outcome else { panic!("{outcome:?}") };
            assert!(!error.is_refusal(), "{error}");
            ended.fetch_add(1, Ordering::Relaxed);
        })
    };
    let servers: Task = {
        let (others, of) = (others.clone(), Arc::clone(&shared));
        Box::pin(async move {
            let mut resolver = Resolver::new(others, [0, 1].map(alone_with));
            for second in 0..250 {
                lock(&of).now_ms += SECONDS;
                resolver.look().await;
                if second == 60 {
                    lock(&of).end_session(ours.groups().session_in(PartitionId(0)));
                }
            }
        })
    };
    run(&shared, vec![call, servers], 0);
    assert_eq!((others.counters().ended_for_others, others.counters().forgotten), (1, 2));
    assert_eq!(ended.load(Ordering::Relaxed), 1);
    let values = vec![value("1"), value("1")];
    assert_eq!(transact(&shared, &others, vec![read("a1"), read("b1")]), committed(values));
}

#[test]
fn the_partitions_of_a_transaction_are_those_of_its_parts() {
    let shared = Partitions::new(3, 1);
    let client = client(&shared, 1);
    let range = |start: &str, end: &str| {
        let (start, end) = (bytes(start), Some(bytes(end)));
        Operation::ReadRange { start, end, limit: 1, reverse: false }
    };
    for (operations, expected) in [
        (vec![], vec![0]),
        (vec![read("b1")], vec![1]),
        (vec![write("c1", "1"), read("a1"), read("c2")], vec![0, 2]),
        (vec![range("a1", "b"), read("c1")], vec![0, 2]),
        (vec![range("a1", "b1")], vec![0, 1]),
    ] {
        let transaction = Transaction { operations };
        let of = Split::partitions_of(client.groups().map(), &transaction);
        assert_eq!(of, expected.into_iter().map(PartitionId).collect());
        let split = Split::of(client.groups().map(), transaction);
        assert!(split.parts.iter().map(|part| part.partition).eq(of));
    }
}

/// What a client says of a transaction of this number, in the sessions that it has.
async fn intent_of(client: &Transactions<Way>, split: &Split, counter: u64) -> Intent {
    let groups = client.groups();
    let deadline_ms = groups.now_ms() + 10 * SECONDS;
    let mut participants = Vec::new();
    for part in &split.parts {
        let nonce = groups.session(part.partition, deadline_ms).await.unwrap();
        let (partition, part) = (part.partition, digest_of_part(&part.operations));
        participants.push(Participant { partition, nonce, part });
    }
    Intent {
        cluster: groups.map().cluster,
        map: MAP_VERSION,
        client: groups.client(),
        counter,
        read_only: false,
        participants,
    }
}

/// Prepares writes everywhere, and ends nothing.
pub(crate) async fn prepare_only(
    client: Transactions<Way>,
    operations: Vec<Operation>,
    counter: u64,
) {
    prepare_in(client, operations, counter, usize::MAX).await;
}

/// The same where its first part is.
pub(crate) async fn prepare_first(
    client: Transactions<Way>,
    operations: Vec<Operation>,
    counter: u64,
) {
    prepare_in(client, operations, counter, 1).await;
}

async fn prepare_in(
    client: Transactions<Way>,
    operations: Vec<Operation>,
    counter: u64,
    most: usize,
) {
    let deadline_ms = client.groups().now_ms() + 10 * SECONDS;
    let split = Split::of(client.groups().map(), Transaction { operations });
    let intent = intent_of(&client, &split, counter).await;
    for part in split.parts.iter().take(most) {
        let (intent, operations) = (intent.clone(), part.operations.clone());
        let prepare = PartitionCommand::Prepare { intent, operations };
        client.ask(part.partition, &prepare, deadline_ms).await.unwrap();
    }
}

/// Where agreed time was led ahead of all clocks, partitions' clocks stand still until those have caught up with it.
#[test]
fn what_all_have_voted_on_is_ended_though_clocks_of_partitions_stand_still() {
    let shared = Partitions::new(2, 6);
    let (dead, living) = (client(&shared, 1), client(&shared, 2));
    {
        let mut partitions = lock(&shared);
        partitions.stands_at_ms = Some(partitions.now_ms);
    }
    let both = |value: &str| vec![write("a1", value), write("b1", value)];
    run_one(&shared, prepare_only(dead.clone(), both("1"), 1));
    // Who meets it ends it.
    transact(&shared, &living, both("2")).unwrap();
    assert_eq!(living.counters().ended_for_others, 1);
    // And so do servers, though nobody meets it.
    run_one(&shared, prepare_only(dead, both("3"), 2));
    let mut resolver = Resolver::new(living.clone(), [0, 1].map(alone_with));
    let of = shared.clone();
    let ended = run_one(&shared, async move {
        let first = resolver.look().await;
        assert_eq!((first.pending, first.ended), (2, 0), "its client may live");
        lock(&of).now_ms += 2 * SECONDS;
        resolver.look().await.ended
    });
    assert_eq!(ended, 1);
    let values = vec![value("3"), value("3")];
    assert_eq!(transact(&shared, &living, vec![read("a1"), read("b1")]), committed(values));
}

/// Accounts all over, clients that move money and look at all of it, at once; some die in between, messages are lost, a partition is
/// down for a while. No sum is ever another one, and at the end all of it can be had.
#[test]
fn money_is_neither_made_nor_lost_whatever_becomes_of_clients() {
    let mut all = [0; 5];
    for seed in 0..40 {
        all.iter_mut().zip(money(seed)).for_each(|(sum, one)| *sum += one);
    }
    let [moved, looked, ended_for_others, snapshots, changed] = all;
    assert!(moved > 1_000 && looked > 500 && ended_for_others > 50, "{all:?}");
    assert!(snapshots > 100 && snapshots + 100 < looked && changed > 100, "{all:?}");
}

/// How often money was moved, all of it looked at, a transaction ended for a client that had died, and without locks looked at in vain or not.
fn money(seed: u64) -> [u64; 5] {
    const PARTITIONS: u64 = 3;
    const ACCOUNTS: u64 = 3;
    const TOTAL: i64 = 100 * (PARTITIONS * ACCOUNTS) as i64;
    let shared = Partitions::new(PARTITIONS as usize, seed);
    let keys: Vec<String> = (0..PARTITIONS)
        .flat_map(|at| (0..ACCOUNTS).map(move |one| format!("{}{one}", (b'a' + at as u8) as char)))
        .collect();
    let keys = Arc::new(keys);
    let first = client(&shared, 1);
    let all = keys.iter().map(|key| write(key, "100")).collect();
    transact(&shared, &first, all).unwrap();
    lock(&shared).losses = if seed.is_multiple_of(3) { 3 } else { 0 };
    let (moved, looked) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..6).map(|number| client(&shared, 10 + number)).collect();
    let mut tasks: Vec<Task> = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        for caller in 0..3u64 {
            let (client, keys, shared) = (client.clone(), keys.clone(), shared.clone());
            let (moved, looked) = (moved.clone(), looked.clone());
            let mut random = Random(seed * 1_000 + number as u64 * 10 + caller);
            tasks.push(Box::pin(async move {
                for _ in 0..12 {
                    let deadline_ms = lock(&shared).now_ms + 20 * SECONDS;
                    if random.below(4) == 0 {
                        let fast = random.below(4) > 0;
                        if let Ok(Some(sum)) = look(&client, &keys, fast, deadline_ms).await {
                            assert_eq!(sum, TOTAL, "seed {seed}");
                            looked.fetch_add(1, Ordering::Relaxed);
                        }
                    } else if transfer(&client, &keys, &mut random, deadline_ms).await {
                        moved.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }));
        }
    }
    run(&shared, tasks, if seed.is_multiple_of(2) { 15 } else { 0 });
    let (moved, looked) = (moved.load(Ordering::Relaxed), looked.load(Ordering::Relaxed));
    {
        let mut partitions = lock(&shared);
        partitions.losses = 0;
        partitions.now_ms += 5 * SECONDS;
    }
    let deadline_ms = lock(&shared).now_ms + 60 * SECONDS;
    let (judge, all) = (first.clone(), keys.clone());
    let last = run_one(&shared, async move { look(&judge, &all, true, deadline_ms).await });
    assert_eq!(last, Ok(Some(TOTAL)), "seed {seed}");
    // And written, too.
    let all = keys.iter().map(|key| write(key, "0")).collect();
    transact(&shared, &first, all).unwrap();
    let all = clients.iter().chain([&first]).map(|one| one.counters());
    let count = |of: fn(Counters) -> u64| all.clone().map(of).sum();
    [
        moved,
        looked,
        count(|all| all.ended_for_others),
        count(|all| all.snapshots),
        count(|all| all.changed),
    ]
}

/// All that there is, if it was read.
async fn look(
    client: &Transactions<Way>,
    keys: &[String],
    fast: bool,
    deadline_ms: u64,
) -> Result<Option<i64>, TransactionError> {
    let operations = keys.iter().map(|key| read(key)).collect();
    match client.transact(Transaction { operations }, fast, deadline_ms).await? {
        Outcome::Committed(results) => Ok(Some(results.all().iter().map(number).sum())),
        Outcome::ResultsGone => Ok(None),
        failed => panic!("{failed:?}"),
    }
}

fn number(result: &OperationResult) -> i64 {
    match result {
        OperationResult::Value(Some(value)) => std::str::from_utf8(value).unwrap().parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn transfer(
    client: &Transactions<Way>,
    keys: &[String],
    random: &mut Random,
    deadline_ms: u64,
) -> bool {
    let from = &keys[random.below(keys.len() as u64) as usize];
    let to = &keys[random.below(keys.len() as u64) as usize];
    if from == to {
        return false;
    }
    let mut before = Vec::new();
    for key in [from, to] {
        let get = StoreCommand::Get { key: bytes(key) };
        let Ok(Outcome::Committed(found)) = client.command(&get, true, deadline_ms).await else {
            return false;
        };
        let [found @ OperationResult::Value(Some(_))] = found.all() else { return false };
        before.push(number(found));
    }
    let amount = random.below(20) as i64;
    let change = |key: &str, before: i64, after: i64| {
        let value = Some(bytes(before.to_string()));
        [Operation::Cmp { key: bytes(key), value }, write(key, &after.to_string())]
    };
    let operations =
        [change(from, before[0], before[0] - amount), change(to, before[1], before[1] + amount)];
    let operations = operations.into_iter().flatten().collect();
    let outcome = client.transact(Transaction { operations }, true, deadline_ms).await;
    matches!(outcome, Ok(Outcome::Committed(_) | Outcome::ResultsGone))
}

/// The first number of those transactions.
const FILLING: u64 = 1_000_000;

/// As many records as a partition keeps of a client are made there, and as many more asked for as that.
async fn fill(client: Transactions<Way>, split: Split, more: u64) {
    let deadline_ms = client.groups().now_ms() + 3_600 * SECONDS;
    let ask = async |partition: u16, command: PartitionCommand| {
        client.ask(PartitionId(partition), &command, deadline_ms).await.unwrap()
    };
    for counter in FILLING..FILLING + u64::from(limits::RECORDS_PER_CLIENT) + more {
        let intent = intent_of(&client, &split, counter).await;
        ask(1, PartitionCommand::Resolve { intent, expired: None }).await;
    }
}

/// They are forgotten.
async fn forget_all(client: Transactions<Way>) {
    let deadline_ms = client.groups().now_ms() + 3_600 * SECONDS;
    let ask = async |partition: u16, command: PartitionCommand| {
        client.ask(PartitionId(partition), &command, deadline_ms).await.unwrap()
    };
    let sessions = [0, 1].map(|index| client.groups().session_in(PartitionId(index)));
    let below = 2 * FILLING;
    let (signed, proof) = ask(0, PartitionCommand::Fence { session: sessions[0], below }).await;
    let PartitionReply::Fenced { below, now: signed, .. } = signed else { panic!("{signed:?}") };
    let fence = Fence { proof: proof.unwrap(), nonce: sessions[0].nonce, below, signed };
    let forget = PartitionCommand::Forget { session: sessions[1], fences: vec![fence] };
    let mut count = 0;
    while let (PartitionReply::Forgotten { count: more @ 1.. }, _) = ask(1, forget.clone()).await {
        count += more;
    }
    assert_eq!(count, limits::RECORDS_PER_CLIENT);
}

#[test]
fn who_is_fenced_off_in_a_session_goes_on_in_another_one() {
    let shared = Partitions::new(2, 7);
    lock(&shared).go_on_under(2);
    let client = client(&shared, 1);
    let both = vec![write("a1", "1"), write("b1", "1")];
    let split = Split::of(client.groups().map(), Transaction { operations: both.clone() });
    run_one(&shared, fill(client.clone(), split, 1));
    run_one(&shared, forget_all(client.clone()));
    let before = [0, 1].map(|index| client.groups().session_in(PartitionId(index)).nonce);
    for _ in 0..2 {
        let written = vec![OperationResult::Written; 2];
        assert_eq!(transact(&shared, &client, both.clone()), committed(written));
        let after = [0, 1].map(|index| client.groups().session_in(PartitionId(index)).nonce);
        assert_eq!(
            after,
            before.map(|nonce| nonce + 100),
            "left once: one for its fence, one for its floor"
        );
    }
}

/// What a partition has no record left for is refused at once, and held nowhere.
#[test]
fn who_has_as_many_records_as_he_may_is_told_so() {
    let shared = Partitions::new(2, 8);
    lock(&shared).go_on_under(2);
    let client = client(&shared, 1);
    let both = vec![write("a1", "1"), write("b1", "1")];
    let split = Split::of(client.groups().map(), Transaction { operations: both.clone() });
    run_one(&shared, fill(client.clone(), split, 0));
    let began_ms = lock(&shared).now_ms;
    for _ in 0..3 {
        let refused = transact(&shared, &client, both.clone()).unwrap_err();
        let text = refused.to_string();
        assert!(refused.is_refusal() && text.contains("are remembered"), "{text}");
    }
    assert!(lock(&shared).now_ms < began_ms + 5 * SECONDS, "none waited for its deadline");
    let other = self::client(&shared, 2);
    let written = vec![OperationResult::Written; 2];
    assert_eq!(transact(&shared, &other, both), committed(written));
}
