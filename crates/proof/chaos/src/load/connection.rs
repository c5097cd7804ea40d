//! A client of the cluster: of one group, or of a store over several partitions.

use crate::files::{ClusterFile, secret_key};
use crate::network::{Network, Party};
use anyhow::{Result, bail};
use bytes::Bytes;
use perdura_client::{CallError, Client, Indeterminacy, Options, Refusal, Reply};
use perdura_cluster::config::{KeyFile, PartitionedCluster};
use perdura_cluster::connect::connect_store;
use perdura_protocol::{Decode, Encode};
use perdura_store::{
    Operation, OperationResult, StoreCommand, StoreReply, Transaction, TransactionResult,
};
use perdura_transactions::{Cause, Outcome, StoreClient, TransactionError};
use std::path::Path;
use std::time::Duration;

/// Entries that are read at once.
const PAGE: u32 = 500;

/// A client. Clones are the same one.
#[derive(Clone)]
pub enum Connection {
    /// Of one group.
    Group(Client),
    /// Of several partitions.
    Store(StoreClient),
}

/// A call without a result.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// Nothing happened, for certain.
    #[error("{0}")]
    Refused(String),
    /// It may have happened.
    #[error("{0}")]
    Unknown(String),
    /// Its time was over; whether it may have happened.
    #[error("{why}")]
    Over {
        /// Why, in words.
        why: String,
        /// Nothing happened, for certain.
        refused: bool,
    },
    /// The answer is none.
    #[error("{0}")]
    UnexpectedReply(String),
}

impl Failure {
    /// Whether nothing happened, for certain.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Failure::Refused(_) | Failure::Over { refused: true, .. })
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        let why = error.to_string();
        let refused = error.is_refusal();
        match error {
            CallError::Refused { reason: Refusal::DeadlinePassed, .. }
            | CallError::Indeterminate { reason: Indeterminacy::DeadlinePassed, .. } => {
                Failure::Over { why, refused }
            }
            CallError::Refused { .. } => Failure::Refused(why),
            CallError::Indeterminate { .. } => Failure::Unknown(why),
        }
    }
}

/// What a group says that carries out all of the command.
fn reply_of(command: &StoreCommand, outcome: &Outcome) -> Result<StoreReply, Failure> {
    let reply = match (command, outcome) {
        (_, Outcome::ResultsGone) => {
            return Err(Failure::Unknown("it was carried out; what it read is gone".to_owned()));
        }
        (StoreCommand::Transaction(_), outcome) => {
            let failed = outcome.failed().and_then(|operation| u32::try_from(operation).ok());
            let results = match outcome {
                Outcome::Committed(results) => results.all().to_vec(),
                _ => Vec::new(),
            };
            let committed = failed.is_none();
            Some(StoreReply::Transaction(TransactionResult { committed, failed, results }))
        }
        (_, Outcome::Committed(results)) => match results.all() {
            [OperationResult::Written] => Some(StoreReply::Put),
            [OperationResult::Value(value)] => Some(StoreReply::Value(value.clone())),
            [OperationResult::Deleted { existed }] => {
                Some(StoreReply::Deleted { existed: *existed })
            }
            _ => None,
        },
        _ => None,
    };
    reply.ok_or_else(|| Failure::UnexpectedReply(format!("{outcome:?}")))
}

impl Connection {
    /// Connects as client `number`, through its own proxies.
    pub fn open(
        runtime: &tokio::runtime::Runtime,
        network: &Network,
        file: &ClusterFile,
        key: &Path,
        number: usize,
    ) -> Result<Connection> {
        let _inside = runtime.enter();
        let address = |to| network.address(Party::Client(number), to);
        if !file.is_partitioned() {
            let config = file.client_config(address);
            return Ok(Connection::Group(Client::connect(config, secret_key(key)?)?));
        }
        let cluster = PartitionedCluster::parse(key, &file.with_addresses(address)?)?;
        Ok(Connection::Store(connect_store(&cluster.groups(), &KeyFile::load(key)?)?))
    }

    /// Carries out a command; one that is `fast` need not be ordered.
    pub async fn call(
        &self,
        content: Bytes,
        fast: bool,
        options: &Options,
    ) -> Result<Bytes, Failure> {
        match self {
            Connection::Group(client) => {
                let reply = match fast {
                    true => client.read(content, options).await,
                    false => client.call(content, options).await,
                };
                match reply? {
                    Reply::Service(reply) => Ok(reply),
                    _ => Err(Failure::UnexpectedReply("it is of the administration".to_owned())),
                }
            }
            Connection::Store(store) => {
                let command = StoreCommand::decode(&content)
                    .map_err(|error| Failure::UnexpectedReply(error.to_string()))?;
                match store.call(&command, fast, options).await {
                    Ok(outcome) => Ok(reply_of(&command, &outcome)?.to_bytes()),
                    Err(TransactionError::UnexpectedReply) => {
                        Err(Failure::UnexpectedReply(TransactionError::UnexpectedReply.to_string()))
                    }
                    Err(TransactionError::Call(error)) => Err(error.into()),
                    // Tried until its time was over, and nothing happened.
                    Err(
                        error @ (TransactionError::Conflict { .. }
                        | TransactionError::Refused {
                            cause: Cause::Silent | Cause::Unreachable { .. },
                            ..
                        }),
                    ) => Err(Failure::Over { why: error.to_string(), refused: error.is_refusal() }),
                    Err(error) if error.is_refusal() => Err(Failure::Refused(error.to_string())),
                    Err(error) => Err(Failure::Unknown(error.to_string())),
                }
            }
        }
    }

    /// All entries from `start` up to before `end`, by partition as all replicas of each one's group have them in the order of commands.
    pub async fn read_from_all(
        &self,
        (start, end): (&str, &str),
        replicas: usize,
        timeout: Duration,
    ) -> Result<Vec<(String, String)>> {
        let options = Options { timeout, reply_quorum: Some(replicas) };
        let end = Some(Bytes::copy_from_slice(end.as_bytes()));
        let mut found = Vec::new();
        for client in self.store()?.clients() {
            let mut start = Bytes::copy_from_slice(start.as_bytes());
            loop {
                let (from, end) = (start.clone(), end.clone());
                let range = Operation::ReadRange { start: from, end, limit: PAGE, reverse: false };
                let command = StoreCommand::Transaction(Transaction { operations: vec![range] });
                let Reply::Service(reply) = client.call(command.to_bytes(), &options).await? else {
                    bail!("the answer is of the administration");
                };
                let reply = StoreReply::from_bytes(reply)?;
                let StoreReply::Transaction(result) = &reply else { bail!("{reply:?}") };
                let [OperationResult::Entries { entries, more }] = &result.results[..] else {
                    bail!("{reply:?}");
                };
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                found.extend(entries.iter().map(|(key, value)| (text(&key), text(&value))));
                let last = entries.iter().last().filter(|_| *more);
                let Some((last, _)) = last else { break };
                start = Bytes::from([&last[..], b"\0"].concat());
            }
        }
        Ok(found)
    }

    /// The client of several partitions that it is.
    pub fn store(&self) -> Result<StoreClient> {
        match self {
            Connection::Store(store) => Ok(store.clone()),
            Connection::Group(_) => Err(anyhow::anyhow!("it has one group")),
        }
    }
}
