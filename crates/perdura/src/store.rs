//! The key-value store, over one partition or many.

use crate::client::{OpenError, check_service};
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use perdura_client::Options;
use perdura_cluster::config::CLIENT_FILE;
use perdura_cluster::connect::{self, connect_store};
use perdura_transactions::{Range, StoreClient, TransactionError, Walk};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::time::{Duration, Instant};

/// A client of the key-value store. Clones share its connections; use one for all of a process.
///
/// Keys have 1 to 4,096 bytes and values up to 1 MiB. What is written is there for whoever reads after that, wherever.
#[derive(Clone, Debug)]
pub struct Store {
    client: StoreClient,
    options: Options,
}

/// Why something was not done with the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError<E = Infallible> {
    /// The closure of a transaction gave this up, by what was there. Nothing was written.
    #[error("{0}")]
    Stopped(E),
    /// Others changed what a transaction read each time that it was tried, until the deadline. Nothing was written.
    #[error(
        "others changed what it read, each of {tries} times until the deadline; nothing was written"
    )]
    Conflicts {
        /// How often it was tried.
        tries: u32,
    },
    /// What a transaction wanted to read was not read. Nothing was written.
    #[error("reading failed, so nothing was written: {0}")]
    Read(TransactionError),
    /// The store did not do it, or nobody can tell.
    #[error(transparent)]
    Store(#[from] TransactionError),
}

impl<E> StoreError<E> {
    /// Whether it is certain that nothing was written, and that nothing will be.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            StoreError::Stopped(_) | StoreError::Conflicts { .. } | StoreError::Read(_) => true,
            StoreError::Store(error) => error.is_refusal(),
        }
    }
}

impl Store {
    /// That of the cluster whose files are in `dir`, with the key of `client.toml` there. Inside of a tokio runtime, which serves its connections.
    ///
    /// # Errors
    /// When the files cannot be read, or are of a cluster with another service.
    pub fn open(dir: impl AsRef<Path>) -> Result<Store, OpenError> {
        let dir = dir.as_ref();
        Store::open_as(dir, dir.join(CLIENT_FILE))
    }

    /// The same with the key in another file, one that `perdura client add` made.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_as(dir: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Store, OpenError> {
        let groups = connect::load_groups(dir.as_ref())?;
        for group in &groups {
            check_service(group, "kv")?;
        }
        let key = connect::key(key.as_ref(), &groups[0])?;
        Ok(Store { client: connect_store(&groups, &key)?, options: Options::default() })
    }

    /// The same with other options: how long calls take at most.
    #[must_use]
    pub fn with(&self, options: Options) -> Store {
        Store { options, ..self.clone() }
    }

    /// A key's value.
    ///
    /// # Errors
    /// [`StoreError::Store`].
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<Bytes>, StoreError> {
        Ok(self.client.get(key, &self.options).await?)
    }

    /// Writes a key, whether it is there or not.
    ///
    /// # Errors
    /// [`StoreError::Store`].
    pub async fn put(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<(), StoreError> {
        Ok(self.client.put(key, value, &self.options).await?)
    }

    /// Removes a key; whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Store`].
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<bool, StoreError> {
        Ok(self.client.delete(key, &self.options).await?)
    }

    /// All entries whose keys begin with this, in their order: read as one goes, a page at a time, so that what is written meanwhile may be there or
    /// not.
    #[must_use]
    pub fn scan(&self, prefix: impl Into<Bytes>) -> Scan {
        self.scan_range(Range::prefix(prefix))
    }

    /// All entries from `start` up to `end` (without it), in the same way.
    #[must_use]
    pub fn scan_between(&self, start: impl Into<Bytes>, end: impl Into<Bytes>) -> Scan {
        self.scan_range(Range::all().from(start).to(end))
    }

    fn scan_range(&self, range: Range) -> Scan {
        let walk = self.client.walk(range, None);
        Scan { walk, read: Vec::new().into_iter(), options: self.options }
    }

    /// Runs a closure that reads and writes, and makes what it wrote happen together, if by then all that it read is as it was; else the closure runs
    /// again, until the deadline. So what it does beside that may happen several times. What it reads may be of several moments, but what comes of
    /// it counts only if it was all there at once: what it returns, and the error that it gives up with.
    ///
    /// Each key that is read or written counts towards the store's limits of a transaction (1,024 operations, 4 MiB), one that is both counts twice.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::Stopped`] with what the closure gave up with.
    pub async fn transact<T, E>(
        &self,
        mut work: impl AsyncFnMut(&mut Transaction) -> Result<T, StoreError<E>>,
    ) -> Result<T, StoreError<E>> {
        let mut tries = Tries::new(self);
        loop {
            let mut transaction = tries.begin();
            let done = work(&mut transaction).await;
            if let Some(done) = tries.end(transaction, done).await {
                return done;
            }
        }
    }

    /// Ends its connections; calls that wait are told.
    pub async fn close(&self) {
        self.client.close().await;
    }
}

/// For so long a transaction without a bound is tried.
const LONGEST: Duration = Duration::from_secs(86_400 * 30);

/// How often a transaction was tried, and until when it is.
pub(crate) struct Tries<'a> {
    store: &'a Store,
    deadline: Instant,
    tries: u32,
}

impl Tries<'_> {
    pub(crate) fn new(store: &Store) -> Tries<'_> {
        let now = Instant::now();
        // Who gives no bound has some days.
        let deadline = now.checked_add(store.options.timeout).unwrap_or(now + LONGEST);
        Tries { store, deadline, tries: 0 }
    }

    pub(crate) fn begin(&mut self) -> Transaction {
        self.tries += 1;
        Transaction {
            client: self.store.client.clone(),
            options: self.store.options,
            deadline: self.deadline,
            read: BTreeMap::new(),
            written: BTreeMap::new(),
        }
    }

    /// How it ended; none if it has to be tried again, now.
    pub(crate) async fn end<T, E>(
        &mut self,
        transaction: Transaction,
        done: Result<T, StoreError<E>>,
    ) -> Option<Result<T, StoreError<E>>> {
        let ended = match &done {
            Ok(_) => transaction.commit(true).await,
            Err(StoreError::Stopped(_)) => transaction.commit(false).await,
            Err(_) => return Some(done),
        };
        match ended {
            Ok(true) => return Some(done),
            Ok(false) => {}
            // Only comparisons were asked for.
            Err(error) if done.is_err() => return Some(Err(StoreError::Read(error))),
            Err(error) => return Some(Err(error.into())),
        }
        // Who was faster goes on; the pause grows, and is another one for each.
        let pause = Duration::from_millis(1 << self.tries.min(6)).mul_f64(chance());
        if Instant::now() + pause >= self.deadline {
            return Some(Err(StoreError::Conflicts { tries: self.tries }));
        }
        tokio::time::sleep(pause).await;
        None
    }
}

/// From 0 to 1, another one each time.
fn chance() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(()) as f64 / u64::MAX as f64
}

/// What a closure reads and writes ([`Store::transact`]).
#[derive(Debug)]
pub struct Transaction {
    client: StoreClient,
    options: Options,
    deadline: Instant,
    // As it was found first.
    read: BTreeMap<Bytes, Option<Bytes>>,
    written: BTreeMap<Bytes, Option<Bytes>>,
}

impl Transaction {
    /// A key's value: what this transaction wrote, or else what is there.
    ///
    /// # Errors
    /// [`StoreError::Read`].
    pub async fn get<E>(&mut self, key: impl Into<Bytes>) -> Result<Option<Bytes>, StoreError<E>> {
        let key = key.into();
        if let Some(known) = self.written.get(&key).or_else(|| self.read.get(&key)) {
            return Ok(known.clone());
        }
        let found = self.client.get(key.clone(), &self.in_time()).await;
        let found = found.map_err(StoreError::Read)?;
        self.read.insert(key, found.clone());
        Ok(found)
    }

    /// Writes a key, if the transaction happens.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.written.insert(key.into(), Some(value.into()));
    }

    /// Removes a key, if the transaction happens.
    pub fn delete(&mut self, key: impl Into<Bytes>) {
        self.written.insert(key.into(), None);
    }

    /// Its options, for the time that is left.
    fn in_time(&self) -> Options {
        let timeout = self.deadline.saturating_duration_since(Instant::now());
        Options { timeout, ..self.options }
    }

    /// Whether all that was read is there still; if so, and that is wanted, what was written is too now.
    async fn commit(self, writes: bool) -> Result<bool, TransactionError> {
        let options = self.in_time();
        let written = if writes { self.written } else { BTreeMap::new() };
        if written.is_empty() && self.read.len() <= 1 {
            // What one read found was there.
            return Ok(true);
        }
        let mut transaction = self.client.transaction();
        for (key, value) in self.read {
            transaction.unchanged(key, value);
        }
        for (key, value) in written {
            match value {
                Some(value) => drop(transaction.write(key, value)),
                None => drop(transaction.delete(key)),
            }
        }
        Ok(transaction.run(&options).await?.failed().is_none())
    }
}

/// Entries of the store in the order of their keys ([`Store::scan`]).
#[derive(Debug)]
pub struct Scan {
    walk: Walk,
    read: std::vec::IntoIter<(Bytes, Bytes)>,
    options: Options,
}

impl Scan {
    /// The next one; none at the end. After an error it can be called again, and goes on where it was.
    ///
    /// # Errors
    /// [`StoreError::Store`], when a page was not read.
    pub async fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, StoreError> {
        loop {
            if let Some(entry) = self.read.next() {
                return Ok(Some(entry));
            }
            let page = self.walk.next(&self.options).await.map_err(|error| error.error)?;
            let Some(page) = page else { return Ok(None) };
            self.read = page.into_iter();
        }
    }

    /// The same as a stream, which ends behind the first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<(Bytes, Bytes), StoreError>> + Send {
        stream::unfold(Some(self), |scan| async move {
            let mut scan = scan?;
            match scan.next().await.transpose()? {
                Ok(entry) => Some((Ok(entry), Some(scan))),
                Err(error) => Some((Err(error), None)),
            }
        })
    }
}
