//! How full a partition is, as its replicas say without an order.

use crate::{Groups, StoreClient, TransactionError, Transactions};
use bytes::Bytes;
use perdura_client::{CallError, Mode, Options, Refusal, Reply};
use perdura_protocol::{Decode, PartitionId, RefusalReason};
use perdura_store::Fullness;

/// What was answered. Where replicas did not agree it was ordered, and so refused.
fn told(answer: Result<Bytes, CallError>) -> Result<Option<Fullness>, TransactionError> {
    match answer {
        Ok(reply) => {
            Fullness::from_bytes(reply).map(Some).map_err(|_| TransactionError::UnexpectedReply)
        }
        Err(CallError::Refused { reason: Refusal::Ordered(RefusalReason::Service(_)), .. }) => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

impl<G: Groups> Transactions<G> {
    /// How full a partition is; none where its replicas run a program that does not know that, or do not say the same at this moment.
    ///
    /// # Errors
    /// [`TransactionError::Call`] where it does not answer.
    pub async fn fullness(
        &self,
        partition: PartitionId,
        deadline_ms: u64,
    ) -> Result<Option<Fullness>, TransactionError> {
        let question = Fullness::question();
        let answer = self.groups().call(partition, question, Mode::Fast, deadline_ms).await;
        told(answer.map(|answer| answer.reply))
    }
}

impl StoreClient {
    /// [`Transactions::fullness`]; of a store that has no partitions it is that of the whole, whichever is asked for.
    ///
    /// # Errors
    /// [`TransactionError::Call`] where it does not answer.
    pub async fn fullness(
        &self,
        partition: PartitionId,
        options: &Options,
    ) -> Result<Option<Fullness>, TransactionError> {
        match self {
            StoreClient::Whole(client) => match client.read(Fullness::question(), options).await {
                Ok(Reply::Service(reply)) => told(Ok(reply)),
                Ok(_) => Err(TransactionError::UnexpectedReply),
                Err(error) => told(Err(error)),
            },
            StoreClient::Partitioned(transactions) => {
                let deadline_ms = transactions.groups().deadline_ms(options.timeout);
                transactions.fullness(partition, deadline_ms).await
            }
        }
    }
}
