//! A group that runs somebody else's service ([`crate::guest`]): what is looked at while it runs, and how it is judged in the end.

use super::World;
use super::clients::CallRecord;
use crate::checkers::guest::{self, Told};
use crate::guest::Guest;
use crate::violation::{Broken, Check};
use crate::witness::{Execution, Step, Witnessed};
use perdura_protocol::Slot;
use std::sync::Arc;

impl World {
    /// What a replica has executed since it was looked at last, and whether that was by another service than before: a state came from elsewhere.
    pub(crate) fn witness_guest(
        &mut self,
        replica: usize,
        steps: &[(Slot, u16, Step)],
        is_another: bool,
    ) {
        let Some(guest) = self.guest.clone() else { return };
        let of = &mut self.checkers.guest_versions;
        for (slot, version, _) in steps {
            // Replicas agree on them, as is checked elsewhere.
            if of.range(..=*slot).next_back().is_none_or(|(_, before)| before != version) {
                of.insert(*slot, *version);
            }
        }
        if self.trace.on() {
            for (slot, _, step) in steps {
                let Step::Executed(Execution { session, number, command, reply, .. }) = step else {
                    continue;
                };
                let (asked, gave) = (guest.show(command), guest::shown(&*guest, reply.as_ref()));
                self.trace.line(
                    self.now_us,
                    format_args!(
                        "r{replica} executes at slot {slot} number {number} of session {}: {asked}: {gave}",
                        session.nonce
                    ),
                );
            }
        }
        // If it does not hold in the agreed order either, that says more.
        if is_another && self.checkers.guest_doubt.is_none() {
            self.checkers.guest_doubt = self.guest_holds(replica, &*guest).err();
        }
    }

    /// Whether what its author says holds in the state of a replica.
    fn guest_holds(&self, replica: usize, guest: &dyn Guest) -> Check {
        let Some(process) = &self.replicas[replica].process else { return Ok(()) };
        if self.is_liar(replica) {
            return Ok(());
        }
        let machine = process.node.machine();
        let held = guest.holds(Witnessed::of(machine.service()).service());
        held.map_err(|words| {
            let what = format!(
                "in the state of replica {replica} after slot {}, and not where the service runs alone: {words}; is a part of the state not in its \
                 snapshots?",
                machine.slot()
            );
            Broken::new(guest::INVARIANT, what)
        })
    }

    /// Holds what clients were told against the service, run again alone.
    pub(crate) fn judge_guest(&mut self, guest: &Arc<dyn Guest>) {
        let told: Vec<Told> = self.calls.iter().map(told).collect();
        let (cluster, limit) = (self.parameters.cluster, self.parameters.state_limit_bytes);
        let machines = self.replicas.iter().filter_map(|replica| replica.process.as_ref());
        let newest = machines.map(|process| process.node.machine().versions().service).max();
        let first = self.plan.versions.service;
        let versions = guest::Versions {
            first,
            later: &self.checkers.guest_versions,
            last: newest.unwrap_or(first),
        };
        let order = self.checkers.exactly_once.order();
        self.check(guest::check((&**guest, limit), cluster, (order, versions), &told));
        let doubt = self.checkers.guest_doubt.take();
        self.check(doubt.map_or(Ok(()), Err));
        for replica in 0..self.n() {
            self.check(self.guest_holds(replica, &**guest));
        }
    }
}

/// Whether a replica answers as the one that came here first did: its service may look at what is not the same everywhere.
pub(super) fn answers_alike(
    guest: Option<&dyn Guest>,
    (replica, execution): (usize, &Execution),
    known: Option<&Execution>,
) -> Check {
    let (Some(guest), Some(known)) = (guest, known) else { return Ok(()) };
    let same = (known.session, known.number) == (execution.session, execution.number);
    if !same || known.reply == execution.reply {
        return Ok(());
    }
    let shown = |one: &Execution| guest::shown(guest, one.reply.as_ref());
    let what = format!(
        "replica {replica} answers {} at slot {} with {}, others with {}: does it look at a clock, at chance, or at the order of a hash map?",
        guest.show(&execution.command),
        execution.slot,
        shown(execution),
        shown(known)
    );
    Err(Broken::new("Determinism of the service", what))
}

/// A call, for the judge.
fn told(call: &CallRecord) -> Told {
    Told {
        number: call.number,
        client: call.client,
        command: call.command.to_bytes(),
        invoked: call.invoked,
        ended: call.ended,
        seen: call.seen.clone(),
    }
}
