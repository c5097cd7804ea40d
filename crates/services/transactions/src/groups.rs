//! What a client of a partitioned store needs of the world: its clients of the groups, time and chance. So that what it does with them
//! is the same on sockets and in a simulation.

use bytes::Bytes;
use perdura_client::CallError;
use perdura_client::Mode;
use perdura_protocol::{Map, PartitionId, PublicKey, Slot};
use perdura_store::partition::Certificate;
use std::future::Future;
use std::pin::Pin;

/// A group's answer to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The service's reply.
    pub reply: Bytes,
    /// Proof of what it states to other groups, if it states anything.
    pub proof: Option<Certificate>,
    /// Of a read that was not ordered: it holds behind a slot that is not below this one ([`perdura_client::Reply::Unordered`]).
    pub slot: Option<Slot>,
}

/// A client of each group of a partitioned store, all with one key.
pub trait Groups: Send + Sync + 'static {
    /// The store's partitions.
    fn map(&self) -> &Map;

    /// The client's key.
    fn client(&self) -> PublicKey;

    /// Number of the session that the client has with a partition's group; it is opened if there is none.
    ///
    /// # Errors
    /// When none is open by the deadline. Nothing has happened then.
    fn session(
        &self,
        partition: PartitionId,
        deadline_ms: u64,
    ) -> impl Future<Output = Result<u64, CallError>> + Send;

    /// Nothing more is prepared in this session of the client's with a partition's group: later calls go in another one.
    fn leave(&self, partition: PartitionId, session: u64) -> impl Future<Output = ()> + Send;

    /// Has a group carry out a command of its service.
    ///
    /// # Errors
    /// As those of [`perdura_client::Client::call`].
    fn call(
        &self,
        partition: PartitionId,
        command: Bytes,
        mode: Mode,
        deadline_ms: u64,
    ) -> impl Future<Output = Result<Answer, CallError>> + Send;

    /// Ends after so many milliseconds. Keeps nothing of this alive.
    fn sleep(&self, ms: u64) -> impl Future<Output = ()> + Send + use<Self>;

    /// Milliseconds on a clock that does not go back: that of all deadlines.
    fn now_ms(&self) -> u64;

    /// A number below this one, by chance.
    fn random(&self, below: u64) -> u64;

    /// Goes on with this by itself.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);
}
