//! Whether a new cluster answers: a key of each group is written and read back, or a tuple inserted and taken, through the real client.
//!
//! What the cluster's user has in it is left alone: the key, or the space of the tuple, is one that nobody has, drawn at random. Its name stands
//! in a file before it is used, for as long as it may be there: whoever is interrupted meanwhile removes it the next time.

use crate::connect::{connect, runtime};
use crate::kv::call;
use crate::partitions::own_key;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use perdura_client::{CallError, Options, Refusal};
use perdura_cluster::ServiceKind;
use perdura_cluster::config::files::{self, Secrecy};
use perdura_cluster::config::keys::random;
use perdura_cluster::config::{Cluster, KeyFile};
use perdura_protocol::ids::{from_hex, to_hex};
use perdura_recipes::Error;
use perdura_store::{OperationResult, StoreCommand};
use perdura_transactions::{Outcome, StoreClient};
use perdura_tuples::{
    Entry, Field, Operation, SpaceOptions, Template, Tuple, TupleCommand, TupleReply,
};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The cluster has to answer within this time after its start.
const START: Duration = Duration::from_secs(60);

/// How names begin.
const PREFIX: &str = "perdura-dev-";

/// Where the name stands, in the cluster's directory.
const NOTE_FILE: &str = "dev-probe.txt";

/// Of each group.
pub(super) fn read_back_all(dir: &Path, groups: &[Cluster], key: &KeyFile) -> Result<Duration> {
    let since = Instant::now();
    let note = Note(dir.join(NOTE_FILE));
    if let Some(left) = note.read()? {
        for group in groups {
            let removed = runtime()?.block_on(Probe::new(group, key, &left).remove());
            removed.with_context(|| format!("removing {left}, which was left behind"))?;
        }
    }
    let name = format!("{PREFIX}{}", to_hex(&random::<16>()?));
    note.write(&name)?;
    for group in groups {
        let of = || format!("partition {}", group.parameters.partition().unwrap_or_default());
        let done = runtime()?.block_on(Probe::new(group, key, &name).read_back());
        if group.parameters.map.is_some() {
            done.with_context(of)?;
        } else {
            done?;
        }
    }
    note.remove()?;
    Ok(since.elapsed())
}

/// Of services of one's own nothing is known but that they refuse what is empty: that has been ordered then.
pub(super) fn order_nothing(groups: &[Cluster], key: &KeyFile) -> Result<Duration> {
    let since = Instant::now();
    let options = Options { timeout: START, reply_quorum: None };
    for group in groups {
        runtime()?.block_on(async {
            let client = connect(group, key)?;
            let ordered = client.call(Bytes::new(), &options).await;
            client.close().await;
            match ordered {
                Ok(_) => Ok(()),
                Err(CallError::Refused { reason: Refusal::Ordered(_), .. }) => Ok(()),
                Err(error) => Err(error).context("ordering a command"),
            }
        })?;
    }
    Ok(since.elapsed())
}

/// The name that is in use.
struct Note(PathBuf);

impl Note {
    /// Nothing that this command did not write.
    fn read(&self) -> Result<Option<String>> {
        let found = match std::fs::read_to_string(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            found => found.with_context(|| format!("cannot read {}", self.0.display()))?,
        };
        let name = found.trim_end();
        let drawn = name.strip_prefix(PREFIX).and_then(from_hex::<16>);
        ensure!(
            drawn.is_some(),
            "{} holds no name that `perdura dev` made; remove it",
            self.0.display()
        );
        Ok(Some(name.to_owned()))
    }

    fn write(&self, name: &str) -> Result<()> {
        Ok(files::write(&self.0, &format!("{name}\n"), Secrecy::Public)?)
    }

    fn remove(&self) -> Result<()> {
        let removed = std::fs::remove_file(&self.0);
        removed.with_context(|| format!("cannot remove {}", self.0.display()))
    }
}

/// What is asked of a group under a name.
struct Probe<'a> {
    cluster: &'a Cluster,
    key: &'a KeyFile,
    name: &'a str,
    options: Options,
}

impl<'a> Probe<'a> {
    fn new(cluster: &'a Cluster, key: &'a KeyFile, name: &'a str) -> Probe<'a> {
        let options = Options { timeout: START, reply_quorum: None };
        Probe { cluster, key, name, options }
    }

    /// The key; none where a partition has no room for one of ours: there keys are left to others.
    fn entry(&self) -> Option<Bytes> {
        match self.cluster.parameters.map {
            None => Some(Bytes::from(self.name.to_owned())),
            Some(_) => own_key(self.cluster, self.name),
        }
    }

    async fn read_back(&self) -> Result<()> {
        match self.cluster.service()? {
            ServiceKind::KeyValue => self.read_back_key().await,
            ServiceKind::TupleSpaces => self.take_back().await,
        }
    }

    /// Removes what is there, if it is.
    async fn remove(&self) -> Result<()> {
        let client = connect(self.cluster, self.key)?;
        match self.cluster.service()? {
            ServiceKind::KeyValue => {
                if let Some(key) = self.entry() {
                    let store = StoreClient::Whole(client.clone());
                    call(&store, &StoreCommand::Delete { key }, false, &self.options).await?;
                }
            }
            ServiceKind::TupleSpaces => {
                match perdura_recipes::delete(&client, self.name, &self.options).await {
                    // There is none.
                    Err(Error::Call(CallError::Refused {
                        reason: Refusal::Ordered(_), ..
                    })) => {}
                    removed => removed?,
                }
            }
        }
        client.close().await;
        Ok(())
    }

    async fn read_back_key(&self) -> Result<()> {
        let Some(key) = self.entry() else { return Ok(()) };
        let client = StoreClient::Whole(connect(self.cluster, self.key)?);
        let value = Bytes::from_static(b"written and read back by perdura dev");
        let put = StoreCommand::Put { key: key.clone(), value: value.clone() };
        call(&client, &put, false, &self.options).await.context("writing a key")?;
        let get = StoreCommand::Get { key: key.clone() };
        let read = call(&client, &get, false, &self.options).await.context("reading a key")?;
        let delete = StoreCommand::Delete { key };
        call(&client, &delete, false, &self.options).await.context("removing a key")?;
        client.close().await;
        let written = Outcome::Committed(vec![OperationResult::Value(Some(value))].into());
        ensure!(read == written, "read another value than was written");
        Ok(())
    }

    fn on(&self, operation: Operation) -> TupleCommand {
        TupleCommand::On { space: self.name.into(), operation }
    }

    /// Inserts a tuple and takes it back, in a space that is there for that.
    async fn take_back(&self) -> Result<()> {
        let client = connect(self.cluster, self.key)?;
        let ask = async |operation, what| {
            let asked = self.on(operation);
            perdura_recipes::call(&client, &asked, &self.options).await.context(what)
        };
        let fields = [Field::Bytes(Bytes::from_static(b"inserted and taken by perdura dev"))];
        ask(Operation::Create(SpaceOptions::default()), "creating a space").await?;
        ask(Operation::Out(Entry::new(Tuple::new(&fields)?)), "inserting a tuple").await?;
        let taken = ask(Operation::Inp(Template::of(&fields)), "taking a tuple").await?;
        let removed = perdura_recipes::delete(&client, self.name, &self.options).await;
        removed.context("removing the space")?;
        client.close().await;
        let found = matches!(taken, TupleReply::Found(Some(_)));
        ensure!(found, "the tuple that was inserted is not there");
        Ok(())
    }
}
