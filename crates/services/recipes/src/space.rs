//! A space of the tuple service, with a method for each operation.

use crate::milliseconds;
use perdura_client::{CallError, Client, ClusterConfig, ConnectError, Options, Reply};
use perdura_protocol::{Decode, Encode, PublicKey, SecretKey};
use perdura_tuples::{
    CommandError, Entry, Found, Operation, SpaceDescription, SpaceOptions, Template, TupleCommand,
    TupleReply, limits,
};
use std::time::Duration;

/// Why an operation gave nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The call failed: refused for certain, or indeterminate.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The command is beyond the limits; it was not sent.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The reply makes no sense; more than r replicas lie, or run another service.
    #[error("indeterminate: the cluster gave an answer that fits no command of the tuple spaces")]
    Nonsense,
}

impl Error {
    /// Whether it is certain that nothing happened.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Error::Call(error) => error.is_refusal(),
            Error::Command(_) => true,
            Error::Nonsense => false,
        }
    }
}

/// What became of [`Space::cas`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cas {
    /// The tuple was inserted, with this number.
    Inserted(u64),
    /// It was not, for this one was there: the oldest match.
    Found(Found),
}

/// What [`Space::replace`] did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replaced {
    /// The tuple that was taken.
    pub old: Found,
    /// The number of the one that was inserted.
    pub number: u64,
}

/// A space of the tuple service. Cloning shares the connections.
///
/// Operations that wait hold nothing else up. Up to 64 of them wait at a time ([`perdura_tuples::limits::WAITERS_PER_SESSION`]); one more
/// is refused: connect another `Space` for them. They go by a client of their own, for while the oldest of a client's calls waits, at most 1023
/// later ones of it run ([`perdura_protocol::limits::SESSION_WINDOW`]).
#[derive(Clone, Debug)]
pub struct Space {
    calls: Client,
    waits: Client,
    key: PublicKey,
    name: String,
    timeout: Duration,
}

impl Space {
    /// The space `name` of a cluster, as the client with `key`. Neither creates it nor asks whether
    /// it is there. Every call ends after `timeout`, and one that waits so much later than its wait.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect(
        cluster: &ClusterConfig,
        key: &SecretKey,
        name: impl Into<String>,
        timeout: Duration,
    ) -> Result<Space, ConnectError> {
        Ok(Space {
            calls: Client::connect(cluster.clone(), key.clone())?,
            waits: Client::connect(cluster.clone(), key.clone())?,
            key: key.public(),
            name: name.into(),
            timeout,
        })
    }

    /// The client's key.
    #[must_use]
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// After which time a call ends that does not wait.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Closes the connections, of all clones; see [`Client::close`].
    pub async fn close(&self) {
        self.calls.close().await;
        self.waits.close().await;
    }

    async fn run(&self, operation: Operation) -> Result<TupleReply, Error> {
        let wait_ms = match &operation {
            Operation::Rd { wait_ms, .. } | Operation::In { wait_ms, .. } => Some(*wait_ms),
            _ => None,
        };
        let command = TupleCommand::On { space: self.name.clone(), operation };
        command.validate()?;
        let content = command.to_bytes();
        let wait = Duration::from_millis(wait_ms.unwrap_or(0));
        let options = Options { timeout: wait + self.timeout, reply_quorum: None };
        let reply = match wait_ms {
            Some(_) => self.waits.call(content, &options).await?,
            None if command.is_read() => self.calls.read(content, &options).await?,
            None => self.calls.call(content, &options).await?,
        };
        match reply {
            Reply::Service(bytes) => TupleReply::from_bytes(bytes).map_err(|_| Error::Nonsense),
            Reply::Administered { .. } | Reply::Told(_) => Err(Error::Nonsense),
        }
    }

    /// Creates the space.
    ///
    /// # Errors
    /// Refused if there is one of this name.
    pub async fn create(&self, options: SpaceOptions) -> Result<(), Error> {
        match self.run(Operation::Create(options)).await? {
            TupleReply::Created => Ok(()),
            _ => Err(Error::Nonsense),
        }
    }

    /// Deletes the space with all its tuples, in as many commands as it takes.
    ///
    /// # Errors
    /// Refused to who may not; after another error the space may be there still, and take nothing
    /// but this.
    pub async fn delete(&self) -> Result<(), Error> {
        loop {
            match self.run(Operation::Delete).await? {
                TupleReply::Deleted { remaining: 0 } => return Ok(()),
                TupleReply::Deleted { .. } => {}
                _ => return Err(Error::Nonsense),
            }
        }
    }

    /// How the space is.
    ///
    /// # Errors
    /// Refused if there is none.
    pub async fn describe(&self) -> Result<SpaceDescription, Error> {
        match self.run(Operation::Describe).await? {
            TupleReply::Described(description) => Ok(description),
            _ => Err(Error::Nonsense),
        }
    }

    /// Inserts a tuple, and gives its number.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn out(&self, entry: Entry) -> Result<u64, Error> {
        match self.run(Operation::Out(entry)).await? {
            TupleReply::Inserted { number } => Ok(number),
            _ => Err(Error::Nonsense),
        }
    }

    /// Inserts tuples, all or none, and gives the first one's number; those of the others follow.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn out_all(&self, entries: Vec<Entry>) -> Result<u64, Error> {
        match self.run(Operation::OutAll(entries)).await? {
            TupleReply::InsertedAll { first, .. } => Ok(first),
            _ => Err(Error::Nonsense),
        }
    }

    async fn find(&self, operation: Operation) -> Result<Option<Found>, Error> {
        match self.run(operation).await? {
            TupleReply::Found(found) => Ok(found),
            _ => Err(Error::Nonsense),
        }
    }

    /// Reads the oldest match.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn rdp(&self, template: Template) -> Result<Option<Found>, Error> {
        self.find(Operation::Rdp(template)).await
    }

    /// Takes the oldest match.
    ///
    /// # Errors
    /// As [`Space`]'s calls. After an indeterminate one, a tuple may be gone.
    pub async fn inp(&self, template: Template) -> Result<Option<Found>, Error> {
        self.find(Operation::Inp(template)).await
    }

    /// Reads the oldest match, or waits for one, at most [`limits::WAIT_MS`].
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn rd(&self, template: Template, wait: Duration) -> Result<Option<Found>, Error> {
        self.find(Operation::Rd { template, wait_ms: wait_ms(wait) }).await
    }

    /// Takes the oldest match, or waits for one, at most [`limits::WAIT_MS`]: `in`.
    ///
    /// At most once, and not cancel-safe: dropping the future does not end the wait. Until its time is
    /// over, or the session goes on or ends, it may take a tuple that nobody gets; so may that of a
    /// process that died.
    ///
    /// # Errors
    /// As [`Space`]'s calls. After an indeterminate one, a tuple may be gone, and until the session
    /// of the waiting client goes on or ends, one may yet go.
    pub async fn take(&self, template: Template, wait: Duration) -> Result<Option<Found>, Error> {
        self.find(Operation::In { template, wait_ms: wait_ms(wait) }).await
    }

    async fn find_all(&self, operation: Operation) -> Result<(Vec<Found>, bool), Error> {
        match self.run(operation).await? {
            TupleReply::FoundAll { tuples, more } => Ok((tuples, more)),
            _ => Err(Error::Nonsense),
        }
    }

    /// Reads the matches with numbers above `after`, oldest first, at most `limit`; and whether
    /// there are more.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn rd_all(
        &self,
        template: Template,
        after: u64,
        limit: u32,
    ) -> Result<(Vec<Found>, bool), Error> {
        self.find_all(Operation::RdAll { template, after, limit }).await
    }

    /// Takes the matches, oldest first, at most `limit`; and whether there are more.
    ///
    /// # Errors
    /// As [`Space`]'s calls. After an indeterminate one, tuples may be gone.
    pub async fn in_all(
        &self,
        template: Template,
        limit: u32,
    ) -> Result<(Vec<Found>, bool), Error> {
        self.find_all(Operation::InAll { template, limit }).await
    }

    /// Inserts a tuple unless one matches.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn cas(&self, template: Template, entry: Entry) -> Result<Cas, Error> {
        match self.run(Operation::Cas { template, entry }).await? {
            TupleReply::Inserted { number } => Ok(Cas::Inserted(number)),
            TupleReply::Found(Some(found)) => Ok(Cas::Found(found)),
            _ => Err(Error::Nonsense),
        }
    }

    /// Takes the oldest match and inserts a tuple; nothing without a match.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn replace(
        &self,
        template: Template,
        entry: Entry,
    ) -> Result<Option<Replaced>, Error> {
        match self.run(Operation::Replace { template, entry }).await? {
            TupleReply::Replaced { old, number } => Ok(Some(Replaced { old, number })),
            TupleReply::Found(None) => Ok(None),
            _ => Err(Error::Nonsense),
        }
    }

    /// Gives a tuple another lease from now on, `None` for no end, no time to end it at once;
    /// whether it was there.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn renew(&self, number: u64, lease: Option<Duration>) -> Result<bool, Error> {
        let lease_ms = lease.map(milliseconds);
        match self.run(Operation::Renew { number, lease_ms }).await? {
            TupleReply::Renewed { renewed, .. } => Ok(renewed),
            _ => Err(Error::Nonsense),
        }
    }
}

/// Part of a millisecond is one, and more than the longest wait is that.
fn wait_ms(wait: Duration) -> u64 {
    milliseconds(wait).clamp(1, limits::WAIT_MS)
}
