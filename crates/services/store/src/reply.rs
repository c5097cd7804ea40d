//! What the store answers, and its encoding: a tag byte and its content.

use crate::entries::Entries;
use crate::limits;
use bytes::Bytes;
use perdura_protocol::codec::{encode_bytes, encode_list};
use perdura_protocol::{Decode, DecodeError, Encode, Reader};

/// The answer to a [`crate::StoreCommand`] that was not refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreReply {
    /// The put is done.
    Put,
    /// What a get found.
    Value(Option<Bytes>),
    /// The delete is done.
    Deleted {
        /// Whether the key was there.
        existed: bool,
    },
    /// What became of a transaction.
    Transaction(TransactionResult),
}

/// What became of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactionResult {
    /// Whether it took effect, as a whole.
    pub committed: bool,
    /// If not, the index of the operation that failed it: a comparison, an insert of a present key,
    /// a write of an absent one.
    pub failed: Option<u32>,
    /// If it did, the result of each operation, in their order.
    pub results: Vec<OperationResult>,
}

/// The result of an operation of a committed transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OperationResult {
    /// The comparison held.
    Compared,
    /// What a read found.
    Value(Option<Bytes>),
    /// What a range read found.
    Entries {
        /// Keys and values in the order asked for.
        entries: Entries,
        /// Whether the range has more entries than these: the limit, or the bound on bytes, was
        /// reached.
        more: bool,
    },
    /// The insert or write is done.
    Written,
    /// The delete is done.
    Deleted {
        /// Whether the key was there.
        existed: bool,
    },
}

impl StoreReply {
    pub(crate) const PUT: u8 = 0;
    pub(crate) const ABSENT: u8 = 1;
    pub(crate) const PRESENT: u8 = 2;
    pub(crate) const DELETED_NOTHING: u8 = 3;
    pub(crate) const DELETED: u8 = 4;
    pub(crate) const TRANSACTION: u8 = 5;
}

impl Encode for StoreReply {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            StoreReply::Put => out.push(Self::PUT),
            StoreReply::Value(None) => out.push(Self::ABSENT),
            StoreReply::Value(Some(value)) => {
                out.push(Self::PRESENT);
                out.extend_from_slice(value);
            }
            StoreReply::Deleted { existed: false } => out.push(Self::DELETED_NOTHING),
            StoreReply::Deleted { existed: true } => out.push(Self::DELETED),
            StoreReply::Transaction(result) => {
                out.push(Self::TRANSACTION);
                result.encode(out);
            }
        }
    }
}

impl Decode for StoreReply {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            Self::PUT => StoreReply::Put,
            Self::ABSENT => StoreReply::Value(None),
            Self::PRESENT => StoreReply::Value(Some(reader.take(reader.remaining())?)),
            Self::DELETED_NOTHING => StoreReply::Deleted { existed: false },
            Self::DELETED => StoreReply::Deleted { existed: true },
            Self::TRANSACTION => StoreReply::Transaction(Decode::decode(reader)?),
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}

impl TransactionResult {
    pub(crate) fn committed(results: Vec<OperationResult>) -> TransactionResult {
        TransactionResult { committed: true, failed: None, results }
    }

    pub(crate) fn failed(operation: usize) -> TransactionResult {
        let failed = u32::try_from(operation).ok();
        TransactionResult { committed: false, failed, results: Vec::new() }
    }
}

impl Encode for TransactionResult {
    fn encode(&self, out: &mut Vec<u8>) {
        self.failed.encode(out);
        encode_list(&self.results, out);
    }
}

impl Decode for TransactionResult {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let failed: Option<u32> = Decode::decode(reader)?;
        let results = reader.list("results of a transaction", limits::OPERATIONS, 1)?;
        if failed.is_some() && !results.is_empty() {
            return Err(DecodeError::NotCanonical("results of a failed transaction"));
        }
        Ok(TransactionResult { committed: failed.is_none(), failed, results })
    }
}

impl Encode for OperationResult {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            OperationResult::Compared => out.push(0),
            OperationResult::Value(None) => out.push(1),
            OperationResult::Value(Some(value)) => {
                out.push(2);
                encode_bytes(value, out);
            }
            OperationResult::Entries { entries, more } => {
                out.push(3);
                entries.encode(out);
                more.encode(out);
            }
            OperationResult::Written => out.push(4),
            OperationResult::Deleted { existed } => {
                out.push(5);
                existed.encode(out);
            }
        }
    }
}

impl Decode for OperationResult {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            0 => OperationResult::Compared,
            1 => OperationResult::Value(None),
            2 => OperationResult::Value(Some(reader.bytes("value", limits::VALUE_BYTES)?)),
            3 => OperationResult::Entries {
                entries: Decode::decode(reader)?,
                more: Decode::decode(reader)?,
            },
            4 => OperationResult::Written,
            5 => OperationResult::Deleted { existed: Decode::decode(reader)? },
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}
