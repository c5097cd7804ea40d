//! A machine around the example counter, and short ways to feed it.
#![allow(dead_code)] // Each test file uses its part.
#![allow(missing_docs)]

#[path = "../../examples/counter.rs"]
mod counter;

use bytes::Bytes;
pub use counter::Counter;
use perdura_execution::{Executed, Genesis, Machine, RestoreError, Service, StateSnapshot};
use perdura_protocol::configuration::{Member, Parameters};
use perdura_protocol::{
    AdminCommand, Batch, ClusterId, Command, Configuration, Encode, Faults, Frame, Outcome,
    PublicKey, SessionId, Slot, Time, Versions,
};

pub const ADMINISTRATOR: PublicKey = PublicKey([200; 32]);
pub const ALICE: PublicKey = PublicKey([1; 32]);
pub const BOB: PublicKey = PublicKey([2; 32]);
pub const DEPTH: u64 = 8;

pub fn parameters() -> Parameters {
    Parameters {
        depth: DEPTH,
        ..Parameters::small(ClusterId([9; 16]), Faults::new(1, 1).unwrap(), ADMINISTRATOR)
    }
}

pub fn member(id: u8) -> Member {
    Member { key: PublicKey([100 + id; 32]), incarnation: 0 }
}

pub fn genesis() -> Genesis {
    let members = (0..4).map(member).collect();
    Genesis {
        configuration: Configuration { id: 0, from_slot: Slot(0), members },
        clients: vec![("alice".into(), ALICE), ("bob".into(), BOB)],
    }
}

pub fn session(client: PublicKey, nonce: u64) -> SessionId {
    SessionId { client, nonce }
}

pub fn service(content: &str) -> Bytes {
    Command::Service(Bytes::copy_from_slice(content.as_bytes())).to_bytes()
}

pub fn admin(command: AdminCommand) -> Bytes {
    Command::Admin(command).to_bytes()
}

pub fn frame(session: SessionId, acked_below: u64, first: u64, commands: &[Bytes]) -> Frame {
    Frame::build(parameters().cluster, session, acked_below, first, commands, None)
}

pub fn opening(session: SessionId) -> Frame {
    frame(session, 0, 0, &[Command::Open.to_bytes()])
}

pub fn reply(text: &str) -> Outcome {
    Outcome::Service(Bytes::copy_from_slice(text.as_bytes()))
}

/// A machine that is fed one frame per slot.
pub struct Replica<S: Service>(pub Machine<S>);

impl Replica<Counter> {
    pub fn new() -> Replica<Counter> {
        Replica::around(Counter::default())
    }
}

impl<S: Service> Replica<S> {
    pub fn around(service: S) -> Replica<S> {
        Replica(Machine::new(&parameters(), genesis(), service).unwrap())
    }

    /// Under the rules of 0.1.0.
    pub fn of_first_rules(service: S) -> Replica<S> {
        let parameters = Parameters { versions: Versions::FIRST, ..parameters() };
        Replica(Machine::new(&parameters, genesis(), service).unwrap())
    }

    /// Under the rules before those that bound what a slot costs.
    pub fn of_rules_1(service: S) -> Replica<S> {
        let versions = Versions { rules: 1, service: 1 };
        let parameters = Parameters { versions, ..parameters() };
        Replica(Machine::new(&parameters, genesis(), service).unwrap())
    }

    pub fn execute(&mut self, batch: &Batch) -> Executed {
        self.0.execute(self.0.slot().next(), batch)
    }

    pub fn order(&mut self, frame: &Frame) -> Vec<Outcome> {
        let batch = Batch::requests(Time(1), vec![frame.clone()]);
        self.execute(&batch).replies.into_iter().map(|reply| reply.outcome).collect()
    }

    pub fn open(&mut self, session: SessionId) -> Outcome {
        self.order(&opening(session)).remove(0)
    }

    pub fn one(&mut self, session: SessionId, number: u64, command: &Bytes) -> Outcome {
        self.order(&frame(session, 0, number, std::slice::from_ref(command))).remove(0)
    }

    pub fn restored(&self, service: S) -> Result<Replica<S>, RestoreError> {
        restore(&self.0.snapshot(), service)
    }
}

pub fn pieces(snapshot: &StateSnapshot) -> Vec<Bytes> {
    (0..snapshot.pieces()).map(|index| snapshot.piece(index)).collect()
}

pub fn restore<S: Service>(
    snapshot: &StateSnapshot,
    service: S,
) -> Result<Replica<S>, RestoreError> {
    let manifest = snapshot.manifest();
    Machine::restore(&parameters(), &manifest, pieces(snapshot), service).map(Replica)
}
