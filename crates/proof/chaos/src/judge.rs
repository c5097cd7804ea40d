//! Which judge a workload has. All of them ask one question: could what clients saw have come from
//! one copy that carries out one operation after the other, each between its call and its return?

use crate::clocks::Clocks;
use crate::operation::{Call, Operation, Outcome, Return};
use crate::service::Workload;
use crate::{queue, registers};
use perdura_oracle as store;
use store::{DEFAULT_BUDGET, History, Verdict};

/// Judges the history of a shard; in words what is wrong with it.
pub fn check(workload: Workload, operations: &[Operation], clocks: &Clocks) -> Result<(), String> {
    match workload {
        Workload::Register | Workload::Transactions => search(&of_store(operations)?),
        Workload::Tuples => search(&registers::as_store(operations, workload.keys())?),
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
