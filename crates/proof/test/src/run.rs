//! A service as a replica runs it, without the replica.

use bytes::Bytes;
use perdura_execution::{Alone, ExecutionContext, Meter, QueryContext, Service as _};
use perdura_protocol::{ClusterId, Digest, PublicKey, SessionId, Slot, Time, limits};
use perdura_typed::{Service, Typed, Unfaithful};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The state that tests may fill.
const STATE_BYTES: u64 = 1 << 30;

/// The same for all runs: what commands are told. All that they are told follows from their numbers, and may not become something else: records that
/// authors keep ([`crate::recorded`]) have what came of it.
const BEGUN_MS: u64 = 1_700_000_000_000;

/// What a step gave.
pub type Answer = Result<Bytes, String>;

/// A step as replicas are sent it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    pub bytes: Bytes,
    pub is_command: bool,
}

pub struct Run<S>(Typed<S>);

/// It panicked, and said so.
pub struct Panicked(pub String);

pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned()));
        Panicked(text.unwrap_or_else(|| "a panic".to_owned()))
    })
}

impl<S: Service> Run<S> {
    /// One in its first state, under a version.
    pub fn new(version: u16) -> Run<S> {
        let mut typed = Typed::new(STATE_BYTES);
        typed.set_version(version);
        Run(typed)
    }

    /// Another version comes into force.
    pub fn set_version(&mut self, to: u16) -> Result<(), Panicked> {
        caught(|| self.0.set_version(to))
    }

    /// All that its state holds.
    pub fn content(&self) -> Result<Vec<u8>, Panicked> {
        caught(|| self.0.content())
    }

    /// Whether all that it holds comes back from its bytes as it is.
    pub fn verify(&self) -> Result<Result<(), Unfaithful>, Panicked> {
        caught(|| self.0.verify())
    }

    /// Carries out step `number`.
    pub fn step(&mut self, number: u64, sent: &Sent) -> Result<Answer, Panicked> {
        let client = PublicKey([(number % 5) as u8; 32]);
        if !sent.is_command {
            let meter = Meter::up_to(limits::COMMAND_COST);
            let answer =
                caught(|| self.0.query(&QueryContext { client, meter: &meter }, &sent.bytes))?;
            return Ok(answer.unwrap_or_else(|| Err("it is no query".to_owned())));
        }
        let context = ExecutionContext {
            slot: Slot(1 + number / 3),
            // Some are decided together.
            time: Time(BEGUN_MS + 700 * (number / 3)),
            clock: Time(BEGUN_MS + 700 * (number / 3)),
            session: SessionId { client, nonce: 1 },
            number: 1 + number / 5,
            cluster: ClusterId([7; 16]),
            batch: Digest::of(&number.to_le_bytes()),
            administrator: PublicKey([9; 32]),
            other: None,
            meter: Meter::up_to(limits::COMMAND_COST),
        };
        caught(|| self.0.order(&context, &sent.bytes))
    }

    /// Its state, as it is stored and sent.
    pub fn segments(&self) -> Result<Vec<Bytes>, Panicked> {
        caught(|| {
            let snapshot = self.0.snapshot();
            (0..snapshot.segments()).map(|index| snapshot.segment(index)).collect()
        })
    }

    /// One with the state of these segments.
    pub fn restored(
        version: u16,
        segments: Vec<Bytes>,
    ) -> Result<Result<Run<S>, String>, Panicked> {
        let mut run = Run::new(version);
        let restored = caught(|| run.0.restore(segments))?;
        Ok(restored.map(|()| run).map_err(|error| error.to_string()))
    }
}
