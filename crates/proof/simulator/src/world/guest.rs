//! A group that runs somebody else's service ([`crate::guest`]): what is looked at while it runs, and how it is judged in the end.

use super::World;
use super::clients::CallRecord;
use crate::checkers::guest::{self, Told};
use crate::guest::Guest;
use crate::violation::{Broken, Check};
use crate::witness::{Execution, Step, Witnessed};
use bytes::Bytes;
use perdura_client::{CallResult, Reply};
use perdura_execution::{ServicePanic, Shown};
use perdura_protocol::Slot;
use std::any::Any;
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
        self.trace_steps(replica, &*guest, steps.iter().map(|(_, _, step)| step));
        // If it does not hold in the agreed order either, that says more.
        if is_another && self.checkers.guest_doubt.is_none() {
            self.checkers.guest_doubt = self.guest_holds(replica, &*guest).err();
        }
    }

    /// Writes down what a replica executed.
    fn trace_steps<'a>(
        &mut self,
        replica: usize,
        guest: &dyn Guest,
        steps: impl Iterator<Item = &'a Step>,
    ) {
        if !self.trace.on() {
            return;
        }
        for step in steps {
            let Step::Executed(Execution { slot, session, number, command, reply, .. }) = step
            else {
                continue;
            };
            let (asked, gave) = (guest.show(command), guest::shown(guest, reply.as_ref()));
            self.trace.line(
                self.now_us,
                format_args!(
                    "r{replica} executes at slot {slot} number {number} of session {}: {asked}: {gave}",
                    session.nonce
                ),
            );
        }
    }

    /// Writes down how a call ended.
    pub(super) fn trace_end(&mut self, client: usize, record: usize, result: &CallResult) {
        if !self.trace.on() {
            return;
        }
        let how = match (&self.guest, result) {
            (
                Some(guest),
                CallResult::Completed(
                    Reply::Service(reply)
                    | Reply::Attested { reply, .. }
                    | Reply::Unordered { reply, .. },
                ),
            ) => guest.show_reply(reply),
            _ => format!("{result:?}"),
        };
        self.trace.line(self.now_us, format_args!("c{client} call {record} ends: {how}"));
    }

    /// What a panic that ended the run broke. The trace goes on up to that: what replicas had executed and nobody had looked at is in it too.
    pub(super) fn panicked(&mut self, panic: &(dyn Any + Send)) -> Broken {
        if let Some(guest) = self.guest.clone() {
            for replica in
                (0..self.n()).filter(|replica| !self.is_liar(*replica)).collect::<Vec<_>>()
            {
                let Some(process) = &self.replicas[replica].process else { continue };
                let steps: Vec<Step> =
                    process.notes.take().into_iter().map(|note| note.step).collect();
                self.trace_steps(replica, &*guest, steps.iter());
            }
        }
        match panic.downcast_ref::<ServicePanic>() {
            Some(panic) => of_service(self.guest.as_deref(), &self.calls, panic),
            None => Broken::panicked(panic),
        }
    }

    /// Whether what its author says holds in the state of a replica.
    fn guest_holds(&self, replica: usize, guest: &dyn Guest) -> Check {
        let Some(process) = &self.replicas[replica].process else { return Ok(()) };
        if self.is_liar(replica) {
            return Ok(());
        }
        let machine = process.machine();
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
        let newest = machines.map(|process| process.machine().versions().service).max();
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

/// A panic of the service, which says what it was asked in its own words, if that is known.
pub(super) fn of_service(
    guest: Option<&dyn Guest>,
    calls: &[CallRecord],
    panic: &ServicePanic,
) -> Broken {
    let whole = |shown: &Shown| {
        let is_whole = shown.first.len() == shown.bytes;
        is_whole.then(|| Bytes::copy_from_slice(&shown.first))
    };
    // Of a read there is nothing more than how it begins.
    let like = |shown: &Shown| {
        let mut commands = calls.iter().map(|call| call.command.to_bytes());
        commands.find(|bytes| bytes.len() == shown.bytes && bytes.starts_with(&shown.first))
    };
    let asked = match (&panic.command, &panic.read) {
        (Some((session, number, shown)), _) => {
            let call = calls.iter().find(|call| call.number == Some((*session, *number)));
            let command = call.map(|call| call.command.to_bytes());
            command.or_else(|| shown.as_ref().and_then(whole))
        }
        (None, Some(shown)) => whole(shown).or_else(|| like(shown)),
        (None, None) => None,
    };
    let what = match guest.zip(asked) {
        None => panic.to_string(),
        Some((guest, asked)) => {
            let command =
                panic.command.as_ref().map(|(session, number, _)| (*session, *number, None));
            let panic = ServicePanic { command, read: None, ..panic.clone() };
            format!("{}: {panic}", guest.show(&asked))
        }
    };
    Broken::new("Assertion", what)
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
        "replica {replica} answers {} at slot {} with {}, others with {}",
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
