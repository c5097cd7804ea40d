//! Which judge a workload has. All of them ask one question: could what clients saw have come from
//! one copy that carries out one operation after the other, each between its call and its return?

use crate::clocks::Clocks;
use crate::operation::{Call, Operation, Outcome, Return};
use crate::service::Workload;
use crate::{bank, queue, registers};
use perdura_oracle as store;
use store::{DEFAULT_BUDGET, History, Verdict};

/// Judges the history of a shard; in words what is wrong with it.
pub fn check(workload: Workload, operations: &[Operation], clocks: &Clocks) -> Result<(), String> {
    match workload {
        Workload::Register | Workload::Transactions => search(&of_store(operations)?),
        Workload::Tuples => search(&registers::as_store(operations, workload.keys())?),
        Workload::Bank => bank::check(operations),
        Workload::Queue => {
            queue::check(operations, clocks).map_err(|why| format!("not linearizable: {why}"))
        }
    }
}

fn search(history: &History) -> Result<(), String> {
    match store::check(history, DEFAULT_BUDGET) {
        Verdict::Linearizable => Ok(()),
        Verdict::Violated(why) => Err(format!("not linearizable: {why}")),
        Verdict::Undecided => Err("the search for an order gave up within its bound".to_owned()),
    }
}

fn of_store(operations: &[Operation]) -> Result<History, String> {
    let operations = operations.iter().map(|operation| {
        let strange = || format!("this is no operation of the store: {operation}");
        let Call::Store(call) = &operation.call else { return Err(strange()) };
        Ok(store::Operation {
            process: operation.process,
            invoked: operation.invoked,
            ended: operation.ended,
            call: call.clone(),
            outcome: match &operation.outcome {
                Outcome::Ok(Return::Store(result)) => store::Outcome::Ok(result.clone()),
                Outcome::Ok(_) => return Err(strange()),
                Outcome::Refused => store::Outcome::Refused,
                Outcome::Unknown => store::Outcome::Unknown,
            },
        })
    });
    Ok(History { operations: operations.collect::<Result<_, String>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{Step, StepReturn};

    fn text(value: &str) -> String {
        value.to_owned()
    }

    fn inserts(keys: &[&str]) -> (Vec<Step>, Vec<StepReturn>) {
        let insert = |key: &&str| Step::Insert { key: text(key), value: text("v") };
        (keys.iter().map(insert).collect(), vec![StepReturn::Done; keys.len()])
    }

    type Done = (Vec<Step>, Vec<StepReturn>);

    fn deletes(key: &str) -> Done {
        (vec![Step::Delete { key: text(key) }], vec![StepReturn::Deleted(true)])
    }

    fn range(found: &[&str]) -> Done {
        let (start, end) = (text("a"), Some(text("z")));
        let entries = found.iter().map(|key| (text(key), text("v"))).collect();
        let range = Step::Range { start, end, limit: 10, reverse: false };
        (vec![range], vec![StepReturn::Entries { entries, more: false }])
    }

    /// Each at these times; one that does not end is of unknown outcome.
    fn judge(done: Vec<(u64, Option<u64>, Done)>) -> Result<(), String> {
        let operation = |(invoked, ended, (steps, results)): (u64, Option<u64>, _)| Operation {
            process: 0,
            invoked,
            ended,
            call: Call::Store(store::Call::Transaction { steps }),
            outcome: match ended {
                Some(_) => Outcome::Ok(Return::Store(store::Return::Committed(results))),
                None => Outcome::Unknown,
            },
        };
        let operations: Vec<Operation> = done.into_iter().map(operation).collect();
        check(Workload::Transactions, &operations, &Clocks::exact())
    }

    /// Keys in several partitions appear and are gone for a range over all of them at one moment.
    #[test]
    fn a_range_that_misses_what_is_there_or_has_what_is_not_is_found() {
        let both = || (0, Some(5), inserts(&["a", "b"]));
        judge(vec![both(), (3, Some(9), range(&[])), (10, Some(15), range(&["a", "b"]))]).unwrap();
        assert!(judge(vec![both(), (10, Some(15), range(&["a"]))]).is_err());
        assert!(judge(vec![both(), (3, Some(9), range(&["b"]))]).is_err());
        // Of unknown outcome, and by half.
        assert!(
            judge(vec![(0, None, inserts(&["a", "b"])), (10, Some(15), range(&["a"]))]).is_err()
        );
        judge(vec![(0, None, inserts(&["a", "b"])), (10, Some(15), range(&[]))]).unwrap();
        // Two that see two inserts in different orders.
        let (one, other) = ((0, Some(50), inserts(&["a"])), (0, Some(50), inserts(&["b"])));
        let looks = |found: &[&str]| (0, Some(50), range(found));
        judge(vec![one.clone(), other.clone(), looks(&["a"]), looks(&["a"])]).unwrap();
        assert!(judge(vec![one, other, looks(&["a"]), looks(&["b"])]).is_err());
        // What was deleted comes back.
        let gone = (10, Some(15), deletes("a"));
        judge(vec![both(), gone.clone(), (20, Some(25), range(&["b"]))]).unwrap();
        assert!(judge(vec![both(), gone, (20, Some(25), range(&["a", "b"]))]).is_err());
    }
}
