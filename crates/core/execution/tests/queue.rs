//! In which order a stage does what waits for it.

use crate::support::*;
use perdura_execution::{Executor, Job, JobQueue, Retry};
use perdura_protocol::{Batch, Slot, Time};

fn take(machine: u64) -> Job {
    let one = Replica::around(Box::new(Counter::default()) as _).0;
    Job::Take { machine, executor: Box::new(Executor::first(&parameters(), one)) }
}

fn execute(machine: u64, slot: u64) -> Job {
    Job::Execute { machine, slot: Slot(slot), batch: Batch::tick(Time(1_000)) }
}

fn read(number: u64) -> Job {
    Job::Read { number, key: ALICE, command: service("get") }
}

fn answer() -> Job {
    Job::Answer(Retry::of(&frame(session(ALICE, 1_000), 0, 1, &[service("get")])))
}

fn given(jobs: impl IntoIterator<Item = Job>) -> JobQueue {
    let mut queue = JobQueue::default();
    jobs.into_iter().for_each(|job| queue.push(job));
    queue
}

/// What is done, as it is told.
fn rest(mut queue: JobQueue) -> Vec<String> {
    let told = |job: Job| match job {
        Job::Take { machine, .. } => format!("take {machine}"),
        Job::Execute { machine, slot, .. } => format!("execute {slot} on {machine}"),
        Job::Read { number, .. } => format!("read {number}"),
        Job::Answer(_) => "answer".to_owned(),
        Job::Share { through, .. } => format!("share up to {through}"),
    };
    let done = std::iter::from_fn(|| queue.pop()).map(told).collect();
    assert!(queue.is_empty());
    done
}

#[test]
fn what_is_asked_goes_before_batches_and_keeps_its_order() {
    let queue = given([execute(0, 1), read(1), execute(0, 2), answer(), read(2)]);
    assert_eq!(
        rest(queue),
        ["read 1", "answer", "read 2", "execute 1 on 0", "execute 2 on 0"].map(String::from)
    );
}

#[test]
fn what_was_taken_is_under_way_and_nothing_changes_that() {
    let mut queue = given([execute(0, 1)]);
    assert!(matches!(queue.pop(), Some(Job::Execute { slot: Slot(1), .. })));
    assert!(queue.is_empty());
    for job in [execute(0, 2), read(1), execute(0, 3)] {
        queue.push(job);
    }
    assert_eq!(rest(queue), ["read 1", "execute 2 on 0", "execute 3 on 0"].map(String::from));
}

/// Who reads behind it was let in by its state, and must not be answered by an older one.
#[test]
fn no_read_overtakes_a_machine_and_no_machine_overtakes_a_read() {
    let queue = given([read(1), take(1), read(2)]);
    assert_eq!(rest(queue), ["read 1", "take 1", "read 2"].map(String::from));
}

#[test]
fn batches_for_the_machines_before_are_dropped() {
    let queue = given([execute(0, 1), read(1), execute(0, 2), take(1), execute(1, 9), read(2)]);
    assert_eq!(rest(queue), ["read 1", "take 1", "read 2", "execute 9 on 1"].map(String::from));
    let late = given([take(1), execute(0, 3), execute(1, 9), take(2), take(1), execute(2, 20)]);
    assert_eq!(rest(late), ["take 1", "take 2", "take 1", "execute 20 on 2"].map(String::from));
}
