//! The same for programs that are not async. Each has a thread that serves its connections; calls wait on the thread that makes them, which must not
//! be one of an async runtime's.

use crate::client::OpenError;
use crate::store::{StoreError, Tries};
use crate::{CallError, Options, Scan, Service};
use bytes::Bytes;
use perdura_cluster::config::CLIENT_FILE;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Result<Arc<Runtime>, std::io::Error> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    Ok(Arc::new(runtime))
}

/// A client of a service of your own: [`crate::Client`].
pub struct Client<S> {
    client: crate::Client<S>,
    runtime: Arc<Runtime>,
}

/// Whatever the service is.
impl<S> Clone for Client<S> {
    fn clone(&self) -> Client<S> {
        Client { client: self.client.clone(), runtime: self.runtime.clone() }
    }
}

impl<S: Service> Client<S> {
    /// As [`crate::Client::open`].
    ///
    /// # Errors
    /// As there, and when the operating system gives no thread.
    pub fn open(dir: impl AsRef<Path>) -> Result<Client<S>, OpenError> {
        let dir = dir.as_ref();
        Client::open_as(dir, dir.join(CLIENT_FILE))
    }

    /// As [`crate::Client::open_as`].
    ///
    /// # Errors
    /// As there, and when the operating system gives no thread.
    pub fn open_as(dir: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Client<S>, OpenError> {
        let runtime = runtime()?;
        let client = {
            let _inside = runtime.enter();
            crate::Client::open_as(dir, key)?
        };
        Ok(Client { client, runtime })
    }

    /// As [`crate::Client::with`].
    #[must_use]
    pub fn with(&self, options: Options) -> Client<S> {
        Client { client: self.client.with(options), runtime: Arc::clone(&self.runtime) }
    }

    /// As [`crate::Client::execute`].
    ///
    /// # Errors
    /// As there.
    pub fn execute(&self, command: &S::Command) -> Result<S::Reply, CallError<S::Error>> {
        self.runtime.block_on(self.client.execute(command))
    }

    /// As [`crate::Client::query`].
    ///
    /// # Errors
    /// As there.
    pub fn query(&self, query: &S::Query) -> Result<S::Reply, CallError<S::Error>> {
        self.runtime.block_on(self.client.query(query))
    }

    /// Ends its connections; calls that wait are told.
    pub fn close(&self) {
        self.runtime.block_on(self.client.close());
    }
}

impl<S> fmt::Debug for Client<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("blocking::Client").finish_non_exhaustive()
    }
}

/// A client of the key-value store: [`crate::Store`].
#[derive(Clone, Debug)]
pub struct Store {
    store: crate::Store,
    runtime: Arc<Runtime>,
}

impl Store {
    /// As [`crate::Store::open`].
    ///
    /// # Errors
    /// As there, and when the operating system gives no thread.
    pub fn open(dir: impl AsRef<Path>) -> Result<Store, OpenError> {
        let dir = dir.as_ref();
        Store::open_as(dir, dir.join(CLIENT_FILE))
    }

    /// As [`crate::Store::open_as`].
    ///
    /// # Errors
    /// As there, and when the operating system gives no thread.
    pub fn open_as(dir: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Store, OpenError> {
        let runtime = runtime()?;
        let store = {
            let _inside = runtime.enter();
            crate::Store::open_as(dir, key)?
        };
        Ok(Store { store, runtime })
    }

    /// As [`crate::Store::with`].
    #[must_use]
    pub fn with(&self, options: Options) -> Store {
        Store { store: self.store.with(options), runtime: Arc::clone(&self.runtime) }
    }

    /// As [`crate::Store::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&self, key: impl Into<Bytes>) -> Result<Option<Bytes>, StoreError> {
        self.runtime.block_on(self.store.get(key))
    }

    /// As [`crate::Store::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<(), StoreError> {
        self.runtime.block_on(self.store.put(key, value))
    }

    /// As [`crate::Store::delete`].
    ///
    /// # Errors
    /// As there.
    pub fn delete(&self, key: impl Into<Bytes>) -> Result<bool, StoreError> {
        self.runtime.block_on(self.store.delete(key))
    }

    /// As [`crate::Store::scan`]: each item is an entry, or why the next page was not read.
    pub fn scan(
        &self,
        prefix: impl Into<Bytes>,
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), StoreError>> + '_ {
        self.entries(self.store.scan(prefix))
    }

    /// As [`crate::Store::scan_between`], in the same way.
    pub fn scan_between(
        &self,
        start: impl Into<Bytes>,
        end: impl Into<Bytes>,
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), StoreError>> + '_ {
        self.entries(self.store.scan_between(start, end))
    }

    fn entries(
        &self,
        mut scan: Scan,
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), StoreError>> + '_ {
        std::iter::from_fn(move || self.runtime.block_on(scan.next()).transpose())
    }

    /// As [`crate::Store::transact`].
    ///
    /// # Errors
    /// As there.
    pub fn transact<T, E>(
        &self,
        mut work: impl FnMut(&mut Transaction<'_>) -> Result<T, StoreError<E>>,
    ) -> Result<T, StoreError<E>> {
        let mut tries = Tries::new(&self.store);
        loop {
            let mut inner = tries.begin();
            let done = work(&mut Transaction { inner: &mut inner, runtime: &self.runtime });
            if let Some(done) = self.runtime.block_on(tries.end(inner, done)) {
                return done;
            }
        }
    }

    /// Ends its connections; calls that wait are told.
    pub fn close(&self) {
        self.runtime.block_on(self.store.close());
    }
}

/// What a closure reads and writes ([`Store::transact`]).
#[derive(Debug)]
pub struct Transaction<'a> {
    inner: &'a mut crate::Transaction,
    runtime: &'a Runtime,
}

impl Transaction<'_> {
    /// As [`crate::Transaction::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get<E>(&mut self, key: impl Into<Bytes>) -> Result<Option<Bytes>, StoreError<E>> {
        self.runtime.block_on(self.inner.get(key))
    }

    /// As [`crate::Transaction::put`].
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.inner.put(key, value);
    }

    /// As [`crate::Transaction::delete`].
    pub fn delete(&mut self, key: impl Into<Bytes>) {
        self.inner.delete(key);
    }
}
