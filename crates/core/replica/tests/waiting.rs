//! Commands that wait, on real replicas: replies come when there is something to say.

use crate::real::Group;
use perdura_client::{CallError, Client, Indeterminacy, Options, Reply};
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Decode, Encode};
use perdura_tuples::{
    Entry, Field, Operation, Pattern, SpaceOptions, Template, Tuple, TupleCommand, TupleReply,
    TupleSpaces,
};
use std::time::Duration;

fn options() -> Options {
    Options { timeout: Duration::from_secs(60), ..Options::default() }
}

async fn try_on(
    client: &Client,
    operation: Operation,
    options: &Options,
) -> Result<TupleReply, CallError> {
    let command = TupleCommand::On { space: "s".into(), operation };
    match client.call(command.to_bytes(), options).await? {
        Reply::Service(bytes) => Ok(TupleReply::from_bytes(bytes).unwrap()),
        other => panic!("{other:?}"),
    }
}

async fn on(client: &Client, operation: Operation) -> TupleReply {
    try_on(client, operation, &options()).await.unwrap()
}

fn job(number: i64) -> Entry {
    Entry::new(Tuple::new(&["job".into(), Field::Integer(number)]).unwrap())
}

fn jobs() -> Template {
    Template { fields: vec![Pattern::Value("job".into()), Pattern::Any] }
}

fn taken(reply: TupleReply) -> Option<Field> {
    match reply {
        TupleReply::Found(found) => found.and_then(|found| found.tuple.fields().nth(1)),
        other => panic!("{other:?}"),
    }
}

/// Asks until so many commands wait.
async fn until_waiting(client: &Client, count: u64) {
    loop {
        match on(client, Operation::Describe).await {
            TupleReply::Described(space) if space.waiters == count => return,
            TupleReply::Described(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn waits(group: &Group<TupleSpaces>, wait_ms: u64) -> tokio::task::JoinHandle<TupleReply> {
    let client = group.connect_as(&group.other);
    let operation = Operation::In { template: jobs(), wait_ms };
    tokio::spawn(async move { on(&client, operation).await })
}

fn course(u: u8, r: u8) {
    let mut group = Group::new(u, r, Durability::Sync, TupleSpaces::new);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = group.connect();
        on(&client, Operation::Create(SpaceOptions::default())).await;
        // Nobody sends anything: a tick ends the wait.
        let ended = waits(&group, 300).await.unwrap();
        assert_eq!(taken(ended), None);
        // Who began to wait first is served first.
        let first = waits(&group, 3_600_000);
        until_waiting(&client, 1).await;
        let second = waits(&group, 3_600_000);
        until_waiting(&client, 2).await;
        on(&client, Operation::Out(job(1))).await;
        assert_eq!(taken(first.await.unwrap()), Some(Field::Integer(1)));
        // The second waits through the stop of all replicas, at once.
        for i in 0..group.keys.len() {
            group.stop(i);
        }
        for i in 0..group.keys.len() {
            group.start(i);
        }
        on(&client, Operation::OutAll(vec![job(2), job(3)])).await;
        assert_eq!(taken(second.await.unwrap()), Some(Field::Integer(2)));
        until_waiting(&client, 0).await;
        assert_eq!(taken(on(&client, Operation::Inp(jobs())).await), Some(Field::Integer(3)));
        // A client that gave up, and went on, gets nothing any more.
        let hasty = group.connect_as(&group.other);
        let soon = Options { timeout: Duration::from_millis(1500), ..Options::default() };
        let wait = Operation::In { template: jobs(), wait_ms: 3_600_000 };
        let given_up = try_on(&hasty, wait, &soon).await;
        let reason = Indeterminacy::DeadlinePassed;
        assert_eq!(given_up, Err(CallError::Indeterminate { reason, detail: String::new() }));
        until_waiting(&hasty, 0).await;
        on(&client, Operation::Out(job(4))).await;
        assert_eq!(taken(on(&client, Operation::Inp(jobs())).await), Some(Field::Integer(4)));
    });
    for i in 0..group.keys.len() {
        group.stop(i);
    }
}

/// One client with one session: what waits in it holds nothing else up, however much it is.
#[test]
fn hundreds_of_waits_of_one_client_are_in_nobodys_way() {
    let mut group = Group::new(1, 1, Durability::Sync, TupleSpaces::new);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = group.connect();
        on(&client, Operation::Create(SpaceOptions::default())).await;
        let other = group.connect_as(&group.other);
        let mut waits = tokio::task::JoinSet::new();
        // A session has 64 of them at most.
        for of in [&client, &other] {
            for _ in 0..60 {
                let (client, template) = (of.clone(), jobs());
                let operation = Operation::In { template, wait_ms: 3_600_000 };
                waits.spawn(async move { on(&client, operation).await });
            }
        }
        until_waiting(&client, 120).await;
        // A future that is dropped, in the middle of others, is withdrawn and gets nothing.
        let (client_, template) = (client.clone(), jobs());
        let operation = Operation::In { template, wait_ms: 3_600_000 };
        let dropped = tokio::spawn(async move { on(&client_, operation).await });
        until_waiting(&client, 121).await;
        dropped.abort();
        until_waiting(&client, 120).await;
        for number in 0..120 {
            on(&other, Operation::Out(job(number))).await;
        }
        let mut served = std::collections::BTreeSet::new();
        while let Some(reply) = waits.join_next().await {
            let Some(Field::Integer(number)) = taken(reply.unwrap()) else { panic!("in vain") };
            assert!(served.insert(number), "{number} twice");
        }
        assert_eq!(served.len(), 120);
    });
    for i in 0..group.keys.len() {
        group.stop(i);
    }
}

#[test]
fn a_byzantine_group_serves_those_who_wait() {
    course(1, 1);
}

#[test]
fn a_crash_group_serves_those_who_wait() {
    course(1, 0);
}
