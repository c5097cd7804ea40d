//! Many at once: callers who want the same, and dead clients beside those who are at work.

use super::run::{SECONDS, alone_with, prepare_first, prepare_only, transact};
use crate::support::*;
use perdura_protocol::PartitionId;
use perdura_store::{Operation, StoreCommand, Transaction};
use perdura_transactions::{Outcome, Resolver, Transactions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Many that change the same keys, all at once; how many tries met others, and how many of all were begun.
fn crowd(shared: &Shared, client: &Transactions<Way>, keys: &[&str]) -> (u64, u64) {
    const CALLERS: usize = 24;
    const EACH: usize = 10;
    let done = Arc::new(AtomicU64::new(0));
    let tasks = (0..CALLERS).map(|_| -> Task {
        let (client, of, done) = (client.clone(), Arc::clone(shared), Arc::clone(&done));
        let operations: Vec<_> = keys.iter().map(|key| write(key, "1")).collect();
        Box::pin(async move {
            for _ in 0..EACH {
                let deadline_ms = lock(&of).now_ms + 60 * SECONDS;
                let transaction = Transaction { operations: operations.clone() };
                let outcome = client.transact(transaction, false, deadline_ms).await;
                assert!(
                    matches!(outcome, Ok(Outcome::Committed(_) | Outcome::ResultsGone)),
                    "{outcome:?}"
                );
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    run(shared, tasks.collect(), 0);
    assert_eq!(done.load(Ordering::Relaxed), (CALLERS * EACH) as u64);
    (client.counters().conflicts, done.load(Ordering::Relaxed))
}

#[test]
fn callers_of_one_process_take_turns_where_they_met() {
    let shared = Partitions::new(3, 12);
    let (met, done) = crowd(&shared, &client(&shared, 1), &["a1", "b1", "c1"]);
    // What ends one and what begins the next one may pass each other here.
    assert!(met < done, "{met} tries met others, and {done} were done");
    // Between processes locks alone decide, and all come to their end.
    let others: Vec<_> = (0..4).map(|number| client_in(&shared, 2, 10 + number)).collect();
    let tasks = others.iter().map(|one| -> Task {
        let (client, of) = (one.clone(), Arc::clone(&shared));
        Box::pin(async move {
            for _ in 0..20 {
                let deadline_ms = lock(&of).now_ms + 60 * SECONDS;
                let operations = vec![write("a1", "2"), write("b1", "2")];
                let outcome = client.transact(Transaction { operations }, false, deadline_ms).await;
                assert!(
                    matches!(outcome, Ok(Outcome::Committed(_) | Outcome::ResultsGone)),
                    "{outcome:?}"
                );
            }
        })
    });
    run(&shared, tasks.collect(), 0);
}

/// One who has a turn may wait for a partition that is down until his deadline.
#[test]
fn turns_that_stand_still_are_not_waited_for() {
    let shared = Partitions::new(3, 13);
    let client = client(&shared, 1);
    crowd(&shared, &client, &["b1", "c1"]);
    lock(&shared).down.insert(PartitionId(0));
    let now_ms = lock(&shared).now_ms;
    let ended = Arc::new(AtomicU64::new(0));
    let call = |keys: [&str; 2], seconds: u64| -> Task {
        let operations = keys.map(|key| write(key, "2")).to_vec();
        let (client, of, ended) = (client.clone(), Arc::clone(&shared), Arc::clone(&ended));
        Box::pin(async move {
            let deadline_ms = now_ms + seconds * SECONDS;
            if client.transact(Transaction { operations }, false, deadline_ms).await.is_ok() {
                ended.store(lock(&of).now_ms, Ordering::Relaxed);
            }
        })
    };
    // Its first try has all of its partitions asked at once: the one that is down is the one that would be asked last.
    let waiting = call(["a1", "b1"], 20);
    let others = (0..4).map(|_| call(["b1", "c1"], 10));
    run(&shared, std::iter::once(waiting).chain(others).collect(), 0);
    let took_ms = ended.load(Ordering::Relaxed).saturating_sub(now_ms);
    assert!(took_ms < 9 * SECONDS, "{took_ms} ms");
}

/// Has clients do something in rounds while a server looks, until it has come about; true if it has within so many rounds.
fn within_rounds(
    shared: &Shared,
    rounds: u64,
    pause_ms: u64,
    mut work: impl FnMut(u64) -> Task + Send + 'static,
    has_come: impl Fn() -> bool + Send + 'static,
) -> bool {
    let mut resolver = Resolver::new(client(shared, RESOLVER), [0, 1].map(alone_with));
    let of = Arc::clone(shared);
    run_one(shared, async move {
        for round in 0..rounds {
            work(round).await;
            resolver.look().await;
            lock(&of).now_ms += pause_ms;
            if has_come() {
                return true;
            }
        }
        false
    })
}

/// However many others begin something meanwhile.
#[test]
fn what_a_dead_client_holds_is_found_beside_those_who_are_at_work() {
    let shared = Partitions::new(2, 9);
    let dead = client(&shared, 1);
    let both = |key: &str| vec![write(&format!("a{key}"), "1"), write(&format!("b{key}"), "1")];
    run_one(&shared, prepare_only(dead, both("dead"), 1));
    let of = Arc::clone(&shared);
    let work = move |round: u64| -> Task {
        // More than are listed at once.
        let begun = (0..300).map(|number| {
            let busy = client(&of, 100 + (number % 100) as u8);
            prepare_only(busy, both(&format!("{round}-{number}")), 1_000 * round + number)
        });
        let begun: Vec<_> = begun.collect();
        Box::pin(async move {
            for one in begun {
                one.await;
            }
        })
    };
    let of = Arc::clone(&shared);
    // For five seconds they are let begin something, while nothing is heard of the other partition.
    assert!(within_rounds(&shared, 6, SECONDS / 2, work, move || lock(&of).is_free("adead")));
}

/// However many others leave something to be remembered meanwhile.
#[test]
fn what_is_over_of_a_dead_client_is_forgotten_beside_those_who_are_at_work() {
    let shared = Partitions::new(2, 10);
    let (dead, founder) = (client(&shared, 1), client(&shared, 2));
    transact(&shared, &founder, vec![write("a1", "1")]).unwrap();
    let fails = || {
        let present = Operation::Insert { key: bytes("a1"), value: bytes("1") };
        vec![present, write("b2", "1")]
    };
    run_one(&shared, prepare_first(dead.clone(), fails(), 1));
    let sessions = [0, 1].map(|partition| dead.groups().session_in(PartitionId(partition)));
    sessions.into_iter().for_each(|session| lock(&shared).end_session(session));
    let of = Arc::clone(&shared);
    let work = move |round: u64| -> Task {
        let begun = (0..300).map(|number| {
            let busy = client(&of, 100 + (number % 100) as u8);
            prepare_first(busy, fails(), 1_000 * round + number)
        });
        let begun: Vec<_> = begun.collect();
        Box::pin(async move {
            for one in begun {
                one.await;
            }
        })
    };
    let of = Arc::clone(&shared);
    let is_forgotten = move || !lock(&of).remembers(PartitionId(0), sessions[0]);
    assert!(within_rounds(&shared, 24, 5 * SECONDS, work, is_forgotten));
}

/// One after the other over the last two partitions, for so long that a key would have as many records as it may.
fn go_on(shared: &Shared, client: &Transactions<Way>, count: usize) -> Task {
    let (client, of) = (client.clone(), Arc::clone(shared));
    Box::pin(async move {
        for number in 0..count {
            let deadline_ms = lock(&of).now_ms + 10 * SECONDS;
            let operations = vec![write("b1", &number.to_string()), write("c1", "1")];
            let outcome = client.transact(Transaction { operations }, false, deadline_ms).await;
            assert!(
                matches!(outcome, Ok(Outcome::Committed(_) | Outcome::ResultsGone)),
                "{number}: {outcome:?}"
            );
        }
    })
}

const MORE_THAN_REMEMBERED: usize = 9_000;

/// What is remembered grows with what is stuck, not with what ended.
#[test]
fn what_is_stuck_on_a_partition_that_is_down_is_in_nobody_elses_way() {
    for version in [2, 3] {
        let shared = Partitions::new(3, 14);
        lock(&shared).go_on_under(version);
        let client = client(&shared, 1);
        lock(&shared).down.insert(PartitionId(0));
        // Those that ask the one that is down last leave something pending.
        let stuck = (0..4).map(|number| -> Task {
            let (client, of) = (client.clone(), Arc::clone(&shared));
            Box::pin(async move {
                let deadline_ms = lock(&of).now_ms + 2 * SECONDS;
                let key = format!("b{}", 2 + number);
                let operations = vec![write("a1", "1"), write(&key, "1")];
                let outcome = client.transact(Transaction { operations }, false, deadline_ms).await;
                assert!(outcome.is_err(), "{outcome:?}");
            })
        });
        run(&shared, stuck.collect(), 0);
        assert!(lock(&shared).count_pending(PartitionId(1)) > 0);
        run(&shared, vec![go_on(&shared, &client, MORE_THAN_REMEMBERED)], 0);
        run_one(&shared, async move { client.forget_ended().await });
        let partitions = lock(&shared);
        assert!(partitions.count_pending(PartitionId(1)) > 0, "that is stuck still");
        for partition in [1, 2] {
            let over = partitions.count_over(PartitionId(partition));
            assert!(over < 1_500, "partition {partition} remembers {over}");
        }
    }
}

/// Nor is a call that waits for it.
#[test]
fn what_waits_for_a_partition_that_is_down_is_in_nobody_elses_way() {
    let shared = Partitions::new(3, 15);
    let client = client(&shared, 1);
    lock(&shared).down.insert(PartitionId(0));
    let done = Arc::new(AtomicU64::new(0));
    let waiting = (0..2).map(|number| -> Task {
        let (client, of, done) = (client.clone(), Arc::clone(&shared), Arc::clone(&done));
        Box::pin(async move {
            while done.load(Ordering::Relaxed) == 0 {
                let deadline_ms = lock(&of).now_ms + 60 * SECONDS;
                let key = format!("b{}", 2 + number);
                let operations = vec![write("a1", "1"), write(&key, "1")];
                let outcome = client.transact(Transaction { operations }, false, deadline_ms).await;
                assert!(outcome.is_err(), "{outcome:?}");
            }
        })
    });
    let others = {
        let (others, done) = (go_on(&shared, &client, MORE_THAN_REMEMBERED), Arc::clone(&done));
        async move {
            others.await;
            done.store(1, Ordering::Relaxed);
        }
    };
    run(&shared, waiting.chain([Box::pin(others) as Task]).collect(), 0);
}

/// Readers of a key, each of which writes one of its own in another partition, without end; and one who puts that key.
#[test]
fn a_put_is_not_kept_waiting_by_readers_that_never_end() {
    for processes in [1, 4, 16] {
        let shared = Partitions::new(2, 16);
        let clients: Vec<_> =
            (0..processes).map(|number| client_in(&shared, 2, 10 + number)).collect();
        let done = Arc::new(AtomicU64::new(0));
        let readers = (0..16).map(|number| -> Task {
            let client = clients[number % clients.len()].clone();
            let (of, done) = (Arc::clone(&shared), Arc::clone(&done));
            Box::pin(async move {
                while done.load(Ordering::Relaxed) == 0 {
                    let deadline_ms = lock(&of).now_ms + 60 * SECONDS;
                    let operations = vec![read("b1"), write(&format!("a{number}"), "1")];
                    let outcome =
                        client.transact(Transaction { operations }, false, deadline_ms).await;
                    assert!(
                        matches!(outcome, Ok(Outcome::Committed(_) | Outcome::ResultsGone)),
                        "{outcome:?}"
                    );
                }
            })
        });
        let writer = {
            let (client, of) = (client(&shared, 1), Arc::clone(&shared));
            let done = Arc::clone(&done);
            async move {
                for _ in 0..20 {
                    let begun_ms = lock(&of).now_ms;
                    let put = StoreCommand::Put { key: bytes("b1"), value: bytes("1") };
                    let told = client.command(&put, false, begun_ms + 3 * SECONDS).await;
                    let took_ms = lock(&of).now_ms - begun_ms;
                    assert!(told.is_ok() && took_ms < SECONDS, "{told:?} after {took_ms} ms");
                }
                done.store(1, Ordering::Relaxed);
            }
        };
        run(&shared, readers.chain([Box::pin(writer) as Task]).collect(), 0);
    }
}

/// One who waits to tell what is over keeps nothing alive.
#[test]
fn a_client_that_nobody_has_is_gone() {
    let shared = Partitions::new(3, 17);
    let client = client(&shared, 1);
    run(&shared, vec![go_on(&shared, &client, 10)], 0);
    let before = Arc::strong_count(&shared);
    drop(client);
    // Its way to the partitions is.
    assert_eq!(Arc::strong_count(&shared), before - 1);
}
