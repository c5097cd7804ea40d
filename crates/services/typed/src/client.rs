//! A client of a service in types.

use crate::bounded::ANSWER_LEVELS;
use crate::service::{Service, Unfit};
use crate::wire::{self, EncodeError};
use perdura_client as client;
use perdura_client::{Options, Refusal, Reply};
use perdura_protocol::RefusalReason;
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
        let encoded = wire::encode_command::<S>(command)?;
        let answer = self.calls.call(encoded, &self.options).await;
        Self::answer(answer.map_err(|error| explained(error, S::since(command)))?)
    }

    /// Has a query answered, by a state that has all that was carried out before: without an order where enough replicas answer alike.
    ///
    /// # Errors
    /// [`CallError`]: refused by the service, refused or uncertain on the way.
    pub async fn query(&self, query: &S::Query) -> Result<S::Reply, CallError<S::Error>> {
        let encoded = wire::encode_query::<S>(query)?;
        let answer = self.calls.read(encoded, &self.options).await;
        Self::answer(answer.map_err(|error| explained(error, S::query_since(query)))?)
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

/// A refusal of what came with this version, said to whoever does not know that an older one is still in force. What the replicas say is a
/// part of the state, and knows nothing of who asked.
fn explained(error: client::CallError, since: u16) -> client::CallError {
    let client::CallError::Refused {
        reason: Refusal::Ordered(RefusalReason::Service(said)),
        detail,
    } = error
    else {
        return error;
    };
    let said = match since > 1 && said == Unfit::Malformed.to_string() {
        true => format!("{said}. {}", of_later_version(since)),
        false => said,
    };
    client::CallError::Refused { reason: Refusal::Ordered(RefusalReason::Service(said)), detail }
}

fn of_later_version(since: u16) -> String {
    let in_force = match since {
        2 => "version 1".to_owned(),
        _ => format!("one before version {since}"),
    };
    format!(
        "It came with version {since} of the service, and {in_force} seems to be in force: `upgrade` raises it, once all replicas run a program that knows \
         version {since}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(reason: Refusal) -> client::CallError {
        client::CallError::Refused { reason, detail: String::new() }
    }

    #[test]
    fn what_a_later_version_brought_is_said_to_wait_for_it() {
        let of = |said: &str| refused(Refusal::Ordered(RefusalReason::Service(said.to_owned())));
        let unknown = of(&Unfit::Malformed.to_string());
        let told = explained(unknown.clone(), 2);
        assert!(told.is_refusal());
        let told = told.to_string();
        assert!(told.starts_with(&unknown.to_string()), "{told}");
        assert!(told.contains("came with version 2") && told.contains("version 1 seems"), "{told}");
        assert!(explained(unknown.clone(), 4).to_string().contains("one before version 4 seems"));
        for (other, since) in [(unknown, 1), (of("too little"), 2), (refused(Refusal::Closed), 2)] {
            assert_eq!(explained(other.clone(), since), other);
        }
    }
}
