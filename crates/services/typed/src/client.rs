//! A client of a service in types.

use crate::bounded::ANSWER_LEVELS;
use crate::service::Service;
use crate::wire::{self, EncodeError};
use perdura_client as client;
use perdura_client::{Options, Reply};
use std::fmt;
use std::marker::PhantomData;

/// Calls a [`Service`]. Clones share the connections.
pub struct Client<S> {
    calls: client::Client,
    options: Options,
    service: PhantomData<fn() -> S>,
}

impl<S> Clone for Client<S> {
    fn clone(&self) -> Client<S> {
        let (calls, options) = (self.calls.clone(), self.options);
        Client { calls, options, service: PhantomData }
    }
}

impl<S> fmt::Debug for Client<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// Why a call has no reply.
#[derive(Debug, thiserror::Error)]
pub enum CallError<E: fmt::Debug> {
    /// The service refused it, which has changed nothing.
    #[error("the service refused it: {0:?}")]
    Service(E),
    /// It did not come to that: [`client::CallError::is_refusal`] says whether it is certain that nothing happened.
    #[error(transparent)]
    Call(#[from] client::CallError),
    /// It cannot be sent. Nothing happened.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// What came is no answer of this service. It may have been carried out.
    #[error(
        "the answer is not one of this service: the replicas run another version of it, or it is nested deeper than {ANSWER_LEVELS} levels"
    )]
    Answer,
}

impl<E: fmt::Debug> CallError<E> {
    /// Whether it is certain that nothing was changed, and that nothing will be.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            CallError::Service(_) | CallError::Encode(_) => true,
            CallError::Call(error) => error.is_refusal(),
            CallError::Answer => false,
        }
    }
}

impl<S: Service> Client<S> {
    /// By the calls of a client of the cluster that runs the service.
    #[must_use]
    pub fn over(calls: client::Client) -> Client<S> {
        Client { calls, options: Options::default(), service: PhantomData }
    }

    /// The same with other options: how long calls take at most.
    #[must_use]
    pub fn with(&self, options: Options) -> Client<S> {
        Client { options, ..self.clone() }
    }

    /// Has a command carried out.
    ///
    /// # Errors
    /// [`CallError`]: refused by the service, refused or uncertain on the way.
    pub async fn execute(&self, command: &S::Command) -> Result<S::Reply, CallError<S::Error>> {
        let command = wire::encode_command::<S>(command)?;
        Self::answer(self.calls.call(command, &self.options).await?)
    }

    /// Has a query answered, by a state that has all that was carried out before: without an order where enough replicas answer alike.
    ///
    /// # Errors
    /// [`CallError`]: refused by the service, refused or uncertain on the way.
    pub async fn query(&self, query: &S::Query) -> Result<S::Reply, CallError<S::Error>> {
        let query = wire::encode_query::<S>(query)?;
        Self::answer(self.calls.read(query, &self.options).await?)
    }

    fn answer(reply: Reply) -> Result<S::Reply, CallError<S::Error>> {
        let (Reply::Service(reply)
        | Reply::Attested { reply, .. }
        | Reply::Unordered { reply, .. }) = reply
        else {
            return Err(CallError::Answer);
        };
        match wire::answer::<S>(&reply) {
            Some(answer) => answer.map_err(CallError::Service),
            None => Err(CallError::Answer),
        }
    }

    /// Ends its connections; calls that wait are told.
    pub async fn close(&self) {
        self.calls.close().await;
    }
}
