//! What clients ask of the store, and its encoding.
//!
//! A command is a tag byte and its content: `get` (0) and `delete` (2) are followed by the key to
//! the end, `put` (1) by a key with its length and the value to the end, a transaction (3) by a
//! count and its operations. A command has one encoding.

use crate::limits;
use bytes::Bytes;
use perdura_protocol::codec::{encode_bytes, encode_count, encode_list};
use perdura_protocol::{Decode, DecodeError, Encode, Reader};

/// A command of the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreCommand {
    /// Reads one key.
    Get {
        /// The key.
        key: Bytes,
    },
    /// Writes one key, present or not.
    Put {
        /// The key.
        key: Bytes,
        /// Its new value.
        value: Bytes,
    },
    /// Removes one key, present or not.
    Delete {
        /// The key.
        key: Bytes,
    },
    /// Several operations at once.
    Transaction(Transaction),
}

/// Operations that happen together or not at all. All [`Operation::Cmp`] are evaluated first, on
/// the state before the transaction, wherever they stand; the others follow in order, and see
/// what those before them did. An empty transaction commits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transaction {
    /// At most [`limits::OPERATIONS`].
    pub operations: Vec<Operation>,
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Fails the transaction unless the key has this value.
    Cmp {
        /// The key.
        key: Bytes,
        /// The expected value; `None`: the key is absent.
        value: Option<Bytes>,
    },
    /// Reads a key.
    Read {
        /// The key.
        key: Bytes,
    },
    /// Reads the entries of a range, in order of their keys.
    ReadRange {
        /// First key; may be empty.
        start: Bytes,
        /// The key after the last; `None`: to the end.
        end: Option<Bytes>,
        /// Entries at most, 1 to [`limits::RANGE_ENTRIES`].
        limit: u32,
        /// From the last key to the first.
        reverse: bool,
    },
    /// Writes a key; fails the transaction if it is present.
    Insert {
        /// The key.
        key: Bytes,
        /// Its value.
        value: Bytes,
    },
    /// Writes a key.
    Write {
        /// The key.
        key: Bytes,
        /// Its new value.
        value: Bytes,
        /// Fails the transaction if the key is absent.
        only_if_present: bool,
    },
    /// Removes a key, present or not.
    Delete {
        /// The key.
        key: Bytes,
    },
}

/// Why a command cannot be sent, or was refused. Change the command.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommandError {
    /// A key is empty or too long.
    #[error("a key has 1 to {most} bytes, this one has {0}", most = limits::KEY_BYTES)]
    Key(usize),
    /// A range's start or end is too long.
    #[error("an end of a range has at most {most} bytes, this one has {0}", most = limits::KEY_BYTES)]
    RangeEnd(usize),
    /// A range read asks for no entries or for too many.
    #[error("the limit of a range read is 1 to {most}, this one is {0}", most = limits::RANGE_ENTRIES)]
    RangeLimit(u32),
    /// A value is too long.
    #[error("a value has at most {most} bytes, this one has {0}", most = limits::VALUE_BYTES)]
    Value(usize),
    /// A transaction has too many operations.
    #[error("a transaction has at most {most} operations, this one has {0}", most = limits::OPERATIONS)]
    Operations(usize),
    /// A transaction is too large.
    #[error(
        "the keys and values of a transaction have at most {most} bytes, these have {0}",
        most = limits::TRANSACTION_BYTES
    )]
    TransactionBytes(usize),
    /// The bytes are not a command of the store.
    #[error("this is not a command of the store: {0}")]
    Malformed(#[from] DecodeError),
}

const GET: u8 = 0;
const PUT: u8 = 1;
const DELETE: u8 = 2;
const TRANSACTION: u8 = 3;

fn check_key(key: &[u8]) -> Result<(), CommandError> {
    match key.len() {
        1..=limits::KEY_BYTES => Ok(()),
        length => Err(CommandError::Key(length)),
    }
}

fn check_value(value: &[u8]) -> Result<(), CommandError> {
    match value.len() {
        ..=limits::VALUE_BYTES => Ok(()),
        length => Err(CommandError::Value(length)),
    }
}

fn check_range_end(end: &[u8]) -> Result<(), CommandError> {
    match end.len() {
        ..=limits::KEY_BYTES => Ok(()),
        length => Err(CommandError::RangeEnd(length)),
    }
}

impl StoreCommand {
    /// Holds the command against the store's limits, as replicas will.
    ///
    /// # Errors
    /// When replicas would refuse it whatever the state is.
    pub fn validate(&self) -> Result<(), CommandError> {
        match self {
            StoreCommand::Get { key } | StoreCommand::Delete { key } => check_key(key),
            StoreCommand::Put { key, value } => check_key(key).and(check_value(value)),
            StoreCommand::Transaction(transaction) => transaction.validate(),
        }
    }

    /// Whether it changes nothing, so that it may be sent as a fast read.
    #[must_use]
    pub fn is_read(&self) -> bool {
        match self {
            StoreCommand::Get { .. } => true,
            StoreCommand::Put { .. } | StoreCommand::Delete { .. } => false,
            StoreCommand::Transaction(transaction) => transaction.is_read(),
        }
    }

    /// The command that `bytes` encode, within the limits.
    ///
    /// # Errors
    /// When they are not the encoding of a command, or of one beyond the limits.
    pub fn decode(bytes: &[u8]) -> Result<StoreCommand, CommandError> {
        let copy = Bytes::copy_from_slice;
        Ok(match Request::decode(bytes)? {
            Request::Get { key } => StoreCommand::Get { key: copy(key) },
            Request::Put { key, value } => StoreCommand::Put { key: copy(key), value: copy(value) },
            Request::Delete { key } => StoreCommand::Delete { key: copy(key) },
            Request::Transaction(transaction) => StoreCommand::Transaction(transaction),
        })
    }
}

impl Encode for StoreCommand {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            StoreCommand::Get { key } => {
                out.push(GET);
                out.extend_from_slice(key);
            }
            StoreCommand::Put { key, value } => {
                out.push(PUT);
                encode_bytes(key, out);
                out.extend_from_slice(value);
            }
            StoreCommand::Delete { key } => {
                out.push(DELETE);
                out.extend_from_slice(key);
            }
            StoreCommand::Transaction(transaction) => {
                out.push(TRANSACTION);
                encode_list(&transaction.operations, out);
            }
        }
    }
}

impl Transaction {
    /// Holds the transaction against the store's limits, as replicas will.
    ///
    /// # Errors
    /// When replicas would refuse it whatever the state is.
    pub fn validate(&self) -> Result<(), CommandError> {
        if self.operations.len() > limits::OPERATIONS {
            return Err(CommandError::Operations(self.operations.len()));
        }
        self.operations.iter().try_for_each(Operation::validate)?;
        let bytes = self.operations.iter().map(Operation::bytes).sum();
        if bytes > limits::TRANSACTION_BYTES {
            return Err(CommandError::TransactionBytes(bytes));
        }
        Ok(())
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.operations.iter().all(|operation| match operation {
            Operation::Cmp { .. } | Operation::Read { .. } | Operation::ReadRange { .. } => true,
            Operation::Insert { .. } | Operation::Write { .. } | Operation::Delete { .. } => false,
        })
    }

    fn decode(content: &[u8]) -> Result<Transaction, CommandError> {
        // One copy, so that nothing keeps the batch alive in which the command came.
        let mut reader = Reader::new(Bytes::copy_from_slice(content));
        let count = u32::decode(&mut reader)? as usize;
        if count > limits::OPERATIONS {
            return Err(CommandError::Operations(count));
        }
        if count * Operation::LEAST_BYTES > reader.remaining() {
            return Err(DecodeError::Truncated.into());
        }
        let mut operations = Vec::with_capacity(count);
        for _ in 0..count {
            operations.push(Operation::decode(&mut reader)?);
        }
        reader.finish()?;
        let transaction = Transaction { operations };
        transaction.validate()?;
        Ok(transaction)
    }
}

impl Operation {
    /// Tag 1, the length of an empty key 4.
    const LEAST_BYTES: usize = 5;

    fn validate(&self) -> Result<(), CommandError> {
        match self {
            Operation::Cmp { key, value } => {
                check_key(key)?;
                value.as_ref().map_or(Ok(()), |value| check_value(value))
            }
            Operation::Read { key } | Operation::Delete { key } => check_key(key),
            Operation::Insert { key, value } | Operation::Write { key, value, .. } => {
                check_key(key).and(check_value(value))
            }
            Operation::ReadRange { start, end, limit, .. } => {
                check_range_end(start)?;
                end.as_ref().map_or(Ok(()), |end| check_range_end(end))?;
                match *limit as usize {
                    1..=limits::RANGE_ENTRIES => Ok(()),
                    _ => Err(CommandError::RangeLimit(*limit)),
                }
            }
        }
    }

    /// Bytes of its keys and values.
    fn bytes(&self) -> usize {
        match self {
            Operation::Cmp { key, value } => key.len() + value.as_ref().map_or(0, Bytes::len),
            Operation::Read { key } | Operation::Delete { key } => key.len(),
            Operation::Insert { key, value } | Operation::Write { key, value, .. } => {
                key.len() + value.len()
            }
            Operation::ReadRange { start, end, .. } => {
                start.len() + end.as_ref().map_or(0, Bytes::len)
            }
        }
    }
}

fn encode_optional(bytes: Option<&Bytes>, out: &mut Vec<u8>) {
    bytes.is_some().encode(out);
    if let Some(bytes) = bytes {
        encode_bytes(bytes, out);
    }
}

/// Bytes of whatever length is there; the limits are checked with their own texts afterwards.
fn decode_bytes(reader: &mut Reader) -> Result<Bytes, DecodeError> {
    reader.bytes("key or value", u32::MAX as usize)
}

fn decode_optional(reader: &mut Reader) -> Result<Option<Bytes>, DecodeError> {
    if bool::decode(reader)? { decode_bytes(reader).map(Some) } else { Ok(None) }
}

impl Encode for Operation {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Operation::Cmp { key, value } => {
                out.push(0);
                encode_bytes(key, out);
                encode_optional(value.as_ref(), out);
            }
            Operation::Read { key } => {
                out.push(1);
                encode_bytes(key, out);
            }
            Operation::ReadRange { start, end, limit, reverse } => {
                out.push(2);
                encode_bytes(start, out);
                encode_optional(end.as_ref(), out);
                encode_count(*limit as usize, out);
                reverse.encode(out);
            }
            Operation::Insert { key, value } => {
                out.push(3);
                encode_bytes(key, out);
                encode_bytes(value, out);
            }
            Operation::Write { key, value, only_if_present } => {
                out.push(4);
                encode_bytes(key, out);
                encode_bytes(value, out);
                only_if_present.encode(out);
            }
            Operation::Delete { key } => {
                out.push(5);
                encode_bytes(key, out);
            }
        }
    }
}

impl Decode for Operation {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            0 => Operation::Cmp { key: decode_bytes(reader)?, value: decode_optional(reader)? },
            1 => Operation::Read { key: decode_bytes(reader)? },
            2 => Operation::ReadRange {
                start: decode_bytes(reader)?,
                end: decode_optional(reader)?,
                limit: Decode::decode(reader)?,
                reverse: Decode::decode(reader)?,
            },
            3 => Operation::Insert { key: decode_bytes(reader)?, value: decode_bytes(reader)? },
            4 => Operation::Write {
                key: decode_bytes(reader)?,
                value: decode_bytes(reader)?,
                only_if_present: Decode::decode(reader)?,
            },
            5 => Operation::Delete { key: decode_bytes(reader)? },
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}

/// A command as the service sees it: the frequent ones borrow from the batch.
pub(crate) enum Request<'a> {
    Get { key: &'a [u8] },
    Put { key: &'a [u8], value: &'a [u8] },
    Delete { key: &'a [u8] },
    Transaction(Transaction),
}

/// The key of a command that has one, whether or not it would be carried out.
pub(crate) fn key_of(command: &[u8]) -> Option<&[u8]> {
    let (tag, content) = command.split_first()?;
    match *tag {
        GET | DELETE => Some(content),
        PUT => {
            let (length, rest) = content.split_first_chunk()?;
            rest.get(..u32::from_le_bytes(*length) as usize)
        }
        _ => None,
    }
}

impl Request<'_> {
    /// Decodes a command and holds it against the limits.
    pub(crate) fn decode(command: &[u8]) -> Result<Request<'_>, CommandError> {
        let (tag, content) = command.split_first().ok_or(DecodeError::Truncated)?;
        match *tag {
            GET => check_key(content).map(|()| Request::Get { key: content }),
            DELETE => check_key(content).map(|()| Request::Delete { key: content }),
            PUT => {
                let (length, rest) = content.split_first_chunk().ok_or(DecodeError::Truncated)?;
                let length = u32::from_le_bytes(*length) as usize;
                let (key, value) = rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
                check_key(key)?;
                check_value(value)?;
                Ok(Request::Put { key, value })
            }
            TRANSACTION => Transaction::decode(content).map(Request::Transaction),
            tag => Err(DecodeError::UnknownTag(tag).into()),
        }
    }
}
