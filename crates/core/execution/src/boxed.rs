//! A service of which only its trait is known: the code of a replica is made once, for all services.

use crate::interface::Interface;
use crate::measure::Measure;
use crate::restore::RestoreError;
use crate::service::{
    ExecutionContext, FailingMemory, Failure, QueryContext, Readable, Service, Snapshot, StateLimit,
};
use crate::waiting::{Release, Waiting};
use bytes::Bytes;
use perdura_protocol::{SessionId, Time};
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
    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        (**self).execute(context, command)
    }

    fn query(&self, context: &QueryContext<'_>, command: &[u8]) -> Option<Result<Bytes, String>> {
        (**self).query(context, command)
    }

    fn readable(&self) -> Option<Arc<dyn Readable>> {
        (**self).readable()
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        (**self).snapshot()
    }

    fn install(&mut self, index: usize, segment: Bytes) -> Result<(), RestoreError> {
        (**self).install(index, segment)
    }

    fn installed(&mut self) -> Result<(), RestoreError> {
        (**self).installed()
    }

    fn interface(&self) -> Arc<dyn Interface> {
        (**self).interface()
    }

    fn waiting(&mut self) -> Option<&mut dyn Waiting> {
        (**self).waiting()
    }

    fn prefetch(&self, commands: &mut dyn Iterator<Item = &[u8]>) {
        (**self).prefetch(commands);
    }

    fn may_be_put_off(&self, command: &[u8]) -> bool {
        (**self).may_be_put_off(command)
    }

    fn on_time(&mut self, clock: Time, released: &mut Vec<Release>) {
        (**self).on_time(clock, released);
    }

    fn due(&self) -> Option<Time> {
        (**self).due()
    }

    fn session_ended(&mut self, session: SessionId) {
        (**self).session_ended(session);
    }

    fn state_bytes(&self) -> u64 {
        (**self).state_bytes()
    }

    fn takes_long(&self) -> bool {
        (**self).takes_long()
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
        assert!(all.len() > 15);
        assert_eq!(block(include_str!("boxed.rs"), "\nimpl Service for AnyService "), all);
    }
}
