//! A service of which only its trait is known: the code of a replica is made once, for all services.

use crate::cost::Meter;
use crate::footprint::Footprint;
use crate::measure::Measure;
use crate::restore::RestoreError;
use crate::service::{
    ExecutionContext, FailingMemory, Progress, Release, Service, Snapshot, StateLimit,
};
use bytes::Bytes;
use perdura_protocol::keys::Claim;
use perdura_protocol::statement::STATEMENT_BYTES;
use perdura_protocol::{PublicKey, SessionId, Time};
use std::any::Any;
use std::sync::Arc;

/// Any service, of whatever type.
pub type AnyService = Box<dyn Service>;

/// What makes services of a type, for who takes any.
pub fn any_service<S: Service>(make: impl Fn() -> S) -> impl Fn() -> AnyService {
    move || Box::new(make())
}

/// Flips a bit in the memory of a service of this type, if it is one ([`FailingMemory::flip_bit`]).
pub fn flip_bit_of<S: Service + FailingMemory>(service: &mut dyn Service, at: u64) -> bool {
    let service: &mut dyn Any = service;
    service.downcast_mut::<S>().is_some_and(|service| service.flip_bit(at))
}

/// Each function is the service's own, those with a default too.
impl Service for AnyService {
    fn footprint(&self, command: &[u8]) -> Footprint {
        (**self).footprint(command)
    }

    fn anticipate(&self, commands: &mut dyn Iterator<Item = &[u8]>) {
        (**self).anticipate(commands);
    }

    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, String> {
        (**self).execute(context, command)
    }

    fn execute_or_wait(
        &mut self,
        context: &ExecutionContext,
        command: &[u8],
        released: &mut Vec<Release>,
    ) -> Progress {
        (**self).execute_or_wait(context, command, released)
    }

    fn on_time(&mut self, clock: Time, released: &mut Vec<Release>) {
        (**self).on_time(clock, released);
    }

    fn due(&self) -> Option<Time> {
        (**self).due()
    }

    fn forget(&mut self, session: SessionId, number: u64) {
        (**self).forget(session, number);
    }

    fn confirm(
        &mut self,
        clock: Time,
        session: SessionId,
        number: u64,
        released: &mut Vec<Release>,
    ) {
        (**self).confirm(clock, session, number, released);
    }

    fn take_back(
        &mut self,
        clock: Time,
        session: SessionId,
        number: u64,
        released: &mut Vec<Release>,
    ) {
        (**self).take_back(clock, session, number, released);
    }

    fn session_ended(&mut self, session: SessionId) {
        (**self).session_ended(session);
    }

    fn asks_about(&self, command: &[u8]) -> Option<SessionId> {
        (**self).asks_about(command)
    }

    fn may_be_put_off(&self, command: &[u8]) -> bool {
        (**self).may_be_put_off(command)
    }

    fn attested(&self, reply: &[u8]) -> Option<Bytes> {
        (**self).attested(reply)
    }

    fn claims(&self, command: &[u8]) -> Option<Vec<Claim<[u8; STATEMENT_BYTES]>>> {
        (**self).claims(command)
    }

    fn query(&self, command: &[u8]) -> Option<Result<Bytes, String>> {
        (**self).query(command)
    }

    fn query_by(
        &self,
        client: PublicKey,
        command: &[u8],
        meter: &Meter,
    ) -> Option<Result<Bytes, String>> {
        (**self).query_by(client, command, meter)
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        (**self).snapshot()
    }

    fn restore(&mut self, segments: Vec<Bytes>) -> Result<(), RestoreError> {
        (**self).restore(segments)
    }

    fn state_bytes(&self) -> u64 {
        (**self).state_bytes()
    }

    fn measures(&self) -> Vec<Measure> {
        (**self).measures()
    }

    fn newest_version(&self) -> u16 {
        (**self).newest_version()
    }

    fn set_version(&mut self, version: u16) {
        (**self).set_version(version);
    }

    fn set_state_limit(&mut self, limit: StateLimit) {
        (**self).set_state_limit(limit);
    }
}

#[cfg(test)]
mod tests {
    /// The names of the functions of a block of code, in order.
    fn functions(code: &str) -> Vec<&str> {
        let lines = code.lines().filter_map(|line| line.strip_prefix("    fn "));
        lines.filter_map(|line| line.split('(').next()).collect()
    }

    /// One that is left out would quietly be the default's.
    #[test]
    fn every_function_is_the_services_own() {
        let block = |file: &'static str, begin: &str| {
            let from = file.split_once(begin).unwrap().1;
            functions(from.split_once("\n}").unwrap().0)
        };
        let all = block(include_str!("service.rs"), "\npub trait Service: ");
        assert!(all.len() > 20);
        assert_eq!(block(include_str!("boxed.rs"), "\nimpl Service for AnyService "), all);
    }
}
