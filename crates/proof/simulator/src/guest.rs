//! A service of somebody else's in a simulated group, with clients that ask for what its author says, and what he says that always holds.
//!
//! What is asked of the group is the same as of a group that runs the store. What is asked of the service: run again alone, in the order that
//! was agreed on, it gives the replies that its clients were told, and reads without order fit into that order ([`crate::checkers::guest`]).

use crate::options::{ServiceKind, SimulationOptions};
use crate::plan::Plan;
use crate::random::Random;
use crate::report::SimulationReport;
use crate::violation::Violation;
use crate::world::World;
use bytes::Bytes;
use perdura_execution::{AnyService, Service};
use std::io::Write;
use std::sync::Arc;

/// A service, and those who use it. Equal draws have to give equal commands: a run follows from its seed alone.
pub trait Guest: Send + Sync {
    /// A service in its first state, which may become so large. Its commands do not wait for others.
    fn make(&self, state_limit_bytes: u64) -> AnyService;

    /// The next thing that a client asks for.
    fn draw(&self, random: &mut Random) -> Drawn;

    /// What holds in every state.
    ///
    /// # Errors
    /// In words, if it does not hold.
    fn holds(&self, service: &dyn Service) -> Result<(), String>;

    /// A command, or a read, for who looks for what went wrong.
    fn show(&self, command: &[u8]) -> String;

    /// An answer to it.
    fn show_reply(&self, reply: &[u8]) -> String;
}

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drawn {
    /// As it is sent.
    pub command: Bytes,
    /// Whether it is a read, which need not be ordered.
    pub is_read: bool,
}

/// Runs a group that runs this service to its end. SimulationOptions that name another service are not followed.
///
/// # Errors
/// The first rule that was broken.
pub fn simulate_guest(
    options: &SimulationOptions,
    guest: Arc<dyn Guest>,
    writer: Option<Box<dyn Write>>,
) -> Result<SimulationReport, Box<Violation>> {
    let options = SimulationOptions { service: Some(ServiceKind::Guest), ..options.clone() };
    let mut world = World::of_guest(&options, Plan::draw(&options), writer, guest);
    world.guarded(World::run)
}
