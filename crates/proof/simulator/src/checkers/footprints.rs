//! Guards E1 and E2 as far as they exist (execution is sequential still): footprints, on which
//! parallel execution will rest, err only towards conflict. Of any two commands that were executed
//! one after the other, those of one session conflict, and those that do not conflict give the
//! same replies and the same state in either order.

use super::commit_order::Model;
use crate::violation::{Broken, Check};
use crate::witness::Execution;
use perdura_execution::Footprint;
use perdura_oracle::Call;
use perdura_store::StoreCommand;

const RULE: &str = "Footprints (E1, E2)";

/// Looks at neighbours in the order of execution.
pub fn check<'a>(
    order: impl Iterator<Item = &'a Execution>,
    footprint: impl Fn(&Execution) -> Footprint,
) -> Check {
    let mut model = Model::default();
    let mut last: Option<(&Execution, Footprint, Call)> = None;
    for execution in order {
        // What the store refused has changed nothing, and reads nothing.
        let Ok(command) = StoreCommand::decode(&execution.command) else { continue };
        let (marks, call) = (footprint(execution), Call::from(&command));
        if let Some((before, before_marks, before_call)) = last {
            if !before_marks.conflicts(&marks) {
                let same_session = before.session == execution.session;
                if same_session || !commute(&model, &before_call, &call) {
                    let what = format!("{before:?} and {execution:?} conflict by no footprint");
                    return Err(Broken::new(RULE, what));
                }
            }
            model.run(&before_call);
        }
        last = Some((execution, marks, call));
    }
    Ok(())
}

fn commute(model: &Model, first: &Call, second: &Call) -> bool {
    let (mut forth, mut back) = (model.clone(), model.clone());
    let (first_forth, second_forth) = (forth.run(first), forth.run(second));
    let (second_back, first_back) = (back.run(second), back.run(first));
    first_forth == first_back && second_forth == second_back && forth == back
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use perdura_protocol::{Digest, Encode, PublicKey, SessionId, Slot};

    fn put(client: u8, key: &'static str) -> Execution {
        let (key, value) = (Bytes::from_static(key.as_bytes()), Bytes::from(vec![client]));
        Execution {
            slot: Slot(1),
            batch: Digest::ZERO,
            session: SessionId { client: PublicKey([client; 32]), nonce: 1 },
            number: 1,
            command: StoreCommand::Put { key, value }.to_bytes(),
            time: perdura_protocol::Time(0),
            ahead_ms: 0,
            state_bytes: 0,
            work: 0,
            cost: None,
            reply: Some(Ok(Bytes::new())),
        }
    }

    #[test]
    fn what_does_not_commute_has_to_conflict() {
        let blind = |_: &Execution| Footprint::new();
        assert!(check([put(1, "a"), put(2, "b")].iter(), blind).is_ok());
        assert!(check([put(1, "a"), put(2, "a")].iter(), blind).is_err());
        assert!(check([put(1, "a"), put(1, "b")].iter(), blind).is_err());
        let all = |_: &Execution| Footprint::everything();
        assert!(check([put(1, "a"), put(2, "a")].iter(), all).is_ok());
    }
}
