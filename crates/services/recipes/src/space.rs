//! A space of the tuple service, with a method for each operation.

use crate::call::{Error, call, wait_of};
use crate::{delete, milliseconds};
use perdura_client::{Client, ClusterConfig, ConnectError, Options};
use perdura_protocol::{PublicKey, SecretKey, SessionId};
use perdura_tuples::{
    Broken, Entry, Found, Leased, Operation, SpaceDescription, SpaceOptions, Template, Tuple,
    TupleCommand, TupleReply, Waiting, limits,
};
use std::time::Duration;
use tokio::runtime::Handle;

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
/// Operations that wait hold nothing else up, and each other neither; up to [`perdura_protocol::limits::SESSION_WAITS`] of them wait at a time. They
/// go by a client of their own, so that in a group under older rules, where they keep a session's numbers from moving on, they do so for
/// each other alone.
#[derive(Clone, Debug)]
pub struct Space {
    calls: Client,
    waits: Client,
    runtime: Handle,
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
            runtime: Handle::try_current().map_err(|_| ConnectError::NoRuntime)?,
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

    /// The runtime on which it was made.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    async fn run(&self, operation: Operation) -> Result<TupleReply, Error> {
        let command = TupleCommand::On { space: self.name.clone(), operation };
        let client = if wait_of(&command).is_some() { &self.waits } else { &self.calls };
        call(client, &command, &self.options()).await
    }

    fn options(&self) -> Options {
        Options { timeout: self.timeout, reply_quorum: None }
    }

    /// Creates the space.
    ///
    /// # Errors
    /// Refused if there is one of this name.
    pub async fn create(&self, options: SpaceOptions) -> Result<(), Error> {
        match self.run(Operation::Create(options)).await? {
            TupleReply::Created => Ok(()),
            _ => Err(Error::UnexpectedReply),
        }
    }

    /// Deletes the space with all its tuples, in as many commands as it takes. What is handed over to somebody just then holds it up for
    /// a second.
    ///
    /// # Errors
    /// As [`delete()`]: refused to who may not; after an indeterminate one the space may be there still, and take nothing but this.
    pub async fn delete(&self) -> Result<(), Error> {
        delete(&self.calls, &self.name, &self.options()).await
    }

    /// How the space is.
    ///
    /// # Errors
    /// Refused if there is none.
    pub async fn describe(&self) -> Result<SpaceDescription, Error> {
        match self.run(Operation::Describe).await? {
            TupleReply::Described(description) => Ok(description),
            _ => Err(Error::UnexpectedReply),
        }
    }

    /// Inserts a tuple, and gives its number.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn out(&self, entry: Entry) -> Result<u64, Error> {
        match self.run(Operation::Out(entry)).await? {
            TupleReply::Inserted { number } => Ok(number),
            _ => Err(Error::UnexpectedReply),
        }
    }

    /// Inserts tuples, all or none, and gives the first one's number; those of the others follow.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn out_all(&self, entries: Vec<Entry>) -> Result<u64, Error> {
        match self.run(Operation::OutAll(entries)).await? {
            TupleReply::InsertedAll { first, .. } => Ok(first),
            _ => Err(Error::UnexpectedReply),
        }
    }

    async fn find(&self, operation: Operation) -> Result<Option<Found>, Error> {
        match self.run(operation).await? {
            TupleReply::Found(found) => Ok(found),
            _ => Err(Error::UnexpectedReply),
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
    /// What a waiting client is handed is its own when it has said that it has it, which this does by itself; else it is the next one's within a second.
    /// Dropping the future ends the wait within half a second; that of a process that was killed, or cut off, ends after ten. A
    /// tuple is lost only with a caller that goes between that word and its answer: taking is at most once.
    ///
    /// # Errors
    /// As [`Space`]'s calls. After an indeterminate one, a tuple may be gone. Refused if an operator ends the wait.
    pub async fn take(&self, template: Template, wait: Duration) -> Result<Option<Found>, Error> {
        self.find(Operation::In { template, wait_ms: wait_ms(wait) }).await
    }

    async fn find_all(&self, operation: Operation) -> Result<(Vec<Found>, bool), Error> {
        match self.run(operation).await? {
            TupleReply::FoundAll { tuples, more } => Ok((tuples, more)),
            _ => Err(Error::UnexpectedReply),
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
            _ => Err(Error::UnexpectedReply),
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
            _ => Err(Error::UnexpectedReply),
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
            _ => Err(Error::UnexpectedReply),
        }
    }

    /// Inserts a tuple as soon as there is no other of as many fields with the same first `key` fields, and gives its number; `None` if there
    /// is one for as long as `wait`, at most [`limits::WAIT_MS`], or with no time to wait, now. Who waits is served in order, and nobody
    /// overtakes. Its lease begins at some time during this call.
    ///
    /// # Errors
    /// As [`Space::take`]. After an indeterminate one, it may have been inserted, for its lease.
    pub async fn claim(&self, key: u8, entry: Entry, wait: Duration) -> Result<Option<u64>, Error> {
        match self.run(Operation::Claim { key, entry, wait_ms: try_or_wait_ms(wait) }).await? {
            TupleReply::Inserted { number } => Ok(Some(number)),
            TupleReply::Found(None) => Ok(None),
            _ => Err(Error::UnexpectedReply),
        }
    }

    /// Takes the oldest match for a lease, or waits for one, at most [`limits::WAIT_MS`]; with no time to wait it only tries. The tuple
    /// stays, out of others' reach, until it is finished, given back, or the lease ends, which begins at some time during this call.
    ///
    /// # Errors
    /// As [`Space::take`]. After an indeterminate one, a tuple may be out of reach until the lease ends.
    pub async fn lease(
        &self,
        template: Template,
        lease: Duration,
        wait: Duration,
    ) -> Result<Option<Leased>, Error> {
        let (lease_ms, wait_ms) = (milliseconds(lease), try_or_wait_ms(wait));
        match self.run(Operation::Lease { template, lease_ms, wait_ms }).await? {
            TupleReply::Leased(leased) => Ok(leased),
            _ => Err(Error::UnexpectedReply),
        }
    }

    async fn hold(&self, operation: Operation) -> Result<bool, Error> {
        match self.run(operation).await? {
            TupleReply::Holding { held, .. } => Ok(held),
            _ => Err(Error::UnexpectedReply),
        }
    }

    /// Removes a tuple that is had by [`Space::lease`], under that token; whether it was still had.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn finish(&self, number: u64, token: u64) -> Result<bool, Error> {
        self.hold(Operation::Finish { number, token }).await
    }

    /// Gives such a tuple back; whether it was still had.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn give_back(&self, number: u64, token: u64) -> Result<bool, Error> {
        self.hold(Operation::Return { number, token }).await
    }

    /// Has such a tuple so long from now on; whether it was still had.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn extend(&self, number: u64, token: u64, lease: Duration) -> Result<bool, Error> {
        let lease_ms = milliseconds(lease);
        self.hold(Operation::Extend { number, token, lease_ms }).await
    }

    /// Adds to the integer behind these fields, and gives the sum; without such a tuple, inserts one.
    ///
    /// # Errors
    /// As [`Space`]'s calls; after an indeterminate one it may have been added. Refused where the sum does not fit 64 bits with a sign.
    pub async fn add(&self, fields: Tuple, amount: i64) -> Result<i64, Error> {
        match self.run(Operation::Add { fields, amount }).await? {
            TupleReply::Added { value, .. } => Ok(value),
            _ => Err(Error::UnexpectedReply),
        }
    }

    /// Commands that wait in the space, behind the place `after`, at most `limit`, in order; and whether there are more. For who may read or
    /// manage the space.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn waits(&self, after: u64, limit: u32) -> Result<(Vec<Waiting>, bool), Error> {
        match self.run(Operation::Waits { after, limit }).await? {
            TupleReply::Waits { waits, more } => Ok((waits, more)),
            _ => Err(Error::UnexpectedReply),
        }
    }

    /// Ends the wait of a command, whosever it is, which is refused by that; whether it waited. For who may manage the space.
    ///
    /// # Errors
    /// As [`Space`]'s calls.
    pub async fn end_wait(&self, session: SessionId, number: u64) -> Result<bool, Error> {
        match self.run(Operation::EndWait { session, number }).await? {
            TupleReply::WaitEnded { ended } => Ok(ended),
            _ => Err(Error::UnexpectedReply),
        }
    }

    /// Removes a tuple, whoever may take it, by which a lock or leadership is the next one's: its number is the token. A job that somebody has is
    /// given back instead. For who may manage the space.
    ///
    /// # Errors
    /// As [`Space`]'s calls. Refused for the moment in which it is handed over.
    pub async fn break_lock(&self, number: u64) -> Result<Broken, Error> {
        match self.run(Operation::Break { number }).await? {
            TupleReply::Broken(broken) => Ok(broken),
            _ => Err(Error::UnexpectedReply),
        }
    }
}

/// No time is none: it is tried.
fn try_or_wait_ms(wait: Duration) -> u64 {
    if wait.is_zero() { 0 } else { wait_ms(wait) }
}

/// Part of a millisecond is one, and more than the longest wait is that.
fn wait_ms(wait: Duration) -> u64 {
    milliseconds(wait).clamp(1, limits::WAIT_MS)
}
