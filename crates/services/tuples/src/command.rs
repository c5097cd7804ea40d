//! What clients ask of the tuple spaces, and its encoding.
//!
//! A command is the listing of spaces (0), or (1) the name of a space and an operation on it, which
//! is a tag byte and its content. A command has one encoding.

use crate::access::Access;
use crate::limits;
use crate::operation::{Operation, tag_beyond_version_1};
use crate::tuple::Tuple;
use bytes::Bytes;
use perdura_protocol::codec::{encode_bytes, encode_count};
use perdura_protocol::{Decode, DecodeError, Encode, Reader};

/// A command of the tuple spaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TupleCommand {
    /// Names of spaces, ascending.
    Spaces {
        /// Names after this one; all, after the empty one.
        after: String,
        /// Names at most, 1 to [`limits::TUPLES_AT_ONCE`].
        limit: u32,
    },
    /// An operation on one space.
    On {
        /// Its name, 1 to [`limits::SPACE_NAME_BYTES`] bytes.
        space: String,
        /// What to do.
        operation: Operation,
    },
}

/// How a space is, for good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceOptions {
    /// Leading fields by which tuples are found without looking at others, 0 to
    /// [`limits::INDEX_FIELDS`]: a template that begins with values is answered from the index of
    /// its values, as far as this many.
    pub index_fields: u8,
    /// Who may insert tuples.
    pub insert: Access,
    /// Who may read tuples, of those who the tuple admits.
    pub read: Access,
    /// Who may take tuples and renew their leases, of those who the tuple admits.
    pub take: Access,
    /// Who manages the space, besides its creator: may delete it, end waits, whosever they are, and remove tuples whoever may take them, which
    /// breaks locks.
    pub manage: Access,
}

impl Default for SpaceOptions {
    /// One indexed field, open to everybody, deleted by its creator.
    fn default() -> SpaceOptions {
        SpaceOptions {
            index_fields: 1,
            insert: Access::Anyone,
            read: Access::Anyone,
            take: Access::Anyone,
            manage: Access::Only(Vec::new()),
        }
    }
}

/// A tuple that is to be inserted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The tuple.
    pub tuple: Tuple,
    /// Milliseconds of agreed time for which it stays, 1 to [`limits::LEASE_MS`]; `None`: until it
    /// is taken.
    pub lease_ms: Option<u64>,
    /// Who may read it.
    pub read: Access,
    /// Who may take it.
    pub take: Access,
}

impl Entry {
    /// A tuple without a lease, open to all who the space admits.
    #[must_use]
    pub fn new(tuple: Tuple) -> Entry {
        Entry { tuple, lease_ms: None, read: Access::Anyone, take: Access::Anyone }
    }

    /// The same with a lease.
    #[must_use]
    pub fn with_lease(self, lease_ms: u64) -> Entry {
        Entry { lease_ms: Some(lease_ms), ..self }
    }
}

/// Why a command cannot be sent, or was refused. Change the command.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommandError {
    /// A space's name is empty or too long.
    #[error("a space's name has 1 to {most} bytes, this one has {0}", most = limits::SPACE_NAME_BYTES)]
    SpaceName(usize),
    /// A tuple or template without fields, or with too many.
    #[error("a tuple or template has 1 to {most} fields, this one has {0}", most = limits::FIELDS)]
    Fields(usize),
    /// A tuple's or template's values are too long together.
    #[error("a tuple has at most {most} bytes, this one has {0}", most = limits::TUPLE_BYTES)]
    TupleBytes(usize),
    /// Too many tuples in one command, or none.
    #[error("1 to {most} tuples or names are meant at once, not {0}", most = limits::TUPLES_AT_ONCE)]
    TuplesAtOnce(usize),
    /// The tuples of one command are too long together.
    #[error("at most {most} bytes of tuples are inserted at once, these have {0}", most = limits::INSERTED_BYTES)]
    InsertedBytes(usize),
    /// A lease of no time, or of too much.
    #[error("a lease has 1 to {most} milliseconds, this one has {0}", most = limits::LEASE_MS)]
    Lease(u64),
    /// A wait of no time, or of too much.
    #[error("a wait has 1 to {most} milliseconds, this one has {0}", most = limits::WAIT_MS)]
    Wait(u64),
    /// The values of a template that waits are too long together.
    #[error("a template that waits has at most {most} bytes, this one has {0}", most = limits::WAITING_TEMPLATE_BYTES)]
    WaitingTemplateBytes(usize),
    /// A claim's key has no fields, or more than its tuple.
    #[error("the key of a claim is the first fields of its tuple, from 1 to all, not {0} of them")]
    ClaimKey(u8),
    /// A claim that waits is too long.
    #[error("a claim that waits has at most {most} bytes, this one has {0}", most = limits::WAITING_CLAIM_BYTES)]
    WaitingClaimBytes(usize),
    /// The group executes by rules that do not know the command yet.
    #[error(
        "this needs version {0} of the tuple spaces, and the group runs an earlier one: raise it with `perdura upgrade` once all replicas run a program that knows it"
    )]
    Version(u16),
    /// Too many keys in an access list.
    #[error("an access list has at most {most} keys, this one has {0}", most = limits::ACCESS_KEYS)]
    AccessKeys(usize),
    /// Keys of an access list are not ascending.
    #[error("the keys of an access list are ascending, each once")]
    AccessOrder,
    /// An index of too many fields.
    #[error("at most {most} fields are indexed, not {0}", most = limits::INDEX_FIELDS)]
    IndexFields(u8),
    /// The bytes are not a command of the tuple spaces.
    #[error("this is not a command of the tuple spaces: {0}")]
    Malformed(#[from] DecodeError),
}

fn check_name(name: &str) -> Result<(), CommandError> {
    match name.len() {
        1..=limits::SPACE_NAME_BYTES => Ok(()),
        length => Err(CommandError::SpaceName(length)),
    }
}

pub(crate) fn check_at_once(count: usize) -> Result<(), CommandError> {
    match count {
        1..=limits::TUPLES_AT_ONCE => Ok(()),
        count => Err(CommandError::TuplesAtOnce(count)),
    }
}

impl SpaceOptions {
    pub(crate) fn validate(&self) -> Result<(), CommandError> {
        if self.index_fields > limits::INDEX_FIELDS {
            return Err(CommandError::IndexFields(self.index_fields));
        }
        [&self.insert, &self.read, &self.take, &self.manage]
            .into_iter()
            .try_for_each(Access::validate)
    }
}

impl Entry {
    pub(crate) fn validate(&self) -> Result<(), CommandError> {
        self.read.validate()?;
        self.take.validate()?;
        match self.lease_ms {
            None | Some(1..=limits::LEASE_MS) => Ok(()),
            Some(lease) => Err(CommandError::Lease(lease)),
        }
    }

    /// Bytes of the encoding.
    pub(crate) fn bytes(&self) -> usize {
        let lease = self.lease_ms.map_or(1, |_| 9);
        4 + self.tuple.bytes() + lease + self.read.bytes() + self.take.bytes()
    }
}

impl TupleCommand {
    /// Holds the command against the limits, as replicas will.
    ///
    /// # Errors
    /// When replicas would refuse it whatever the state is.
    pub fn validate(&self) -> Result<(), CommandError> {
        match self {
            TupleCommand::Spaces { after, limit } => {
                if after.len() > limits::SPACE_NAME_BYTES {
                    return Err(CommandError::SpaceName(after.len()));
                }
                check_at_once(*limit as usize)
            }
            TupleCommand::On { space, operation } => {
                check_name(space)?;
                operation.validate()
            }
        }
    }

    /// Whether it changes nothing, so that it may be sent as a fast read. One that meets a tuple
    /// with a lease is ordered all the same: only an ordered command has a time.
    #[must_use]
    pub fn is_read(&self) -> bool {
        match self {
            TupleCommand::Spaces { .. } => true,
            TupleCommand::On { operation, .. } => operation.is_read(),
        }
    }

    /// Why replicas refused the command with this text, if it was because they execute by rules that do not know it yet. Their own
    /// words are those of a program that does not know it either: replicas whose programs differ give one reply.
    #[must_use]
    pub fn refused_by_version(&self, text: &str) -> Option<CommandError> {
        let TupleCommand::On { operation, .. } = self else { return None };
        let tag = tag_beyond_version_1(&self.to_bytes())?;
        let malformed = CommandError::from(DecodeError::UnknownTag(tag));
        (text == malformed.to_string()).then(|| CommandError::Version(operation.version()))
    }

    /// The command that `bytes` encode, within the limits.
    ///
    /// # Errors
    /// When they are not the encoding of a command, or of one beyond the limits.
    pub fn decode(bytes: &[u8]) -> Result<TupleCommand, CommandError> {
        // One copy, so that nothing keeps the batch alive in which the command came.
        let command = <TupleCommand as Decode>::from_bytes(Bytes::copy_from_slice(bytes))?;
        command.validate()?;
        Ok(command)
    }
}

pub(crate) fn decode_name(reader: &mut Reader) -> Result<String, DecodeError> {
    let name = reader.bytes("name of a space", limits::SPACE_NAME_BYTES)?;
    let name = std::str::from_utf8(&name);
    name.map(str::to_owned).map_err(|_| DecodeError::NotCanonical("a name is not UTF-8"))
}

impl Encode for TupleCommand {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            TupleCommand::Spaces { after, limit } => {
                out.push(0);
                encode_bytes(after.as_bytes(), out);
                encode_count(*limit as usize, out);
            }
            TupleCommand::On { space, operation } => {
                out.push(1);
                encode_bytes(space.as_bytes(), out);
                operation.encode(out);
            }
        }
    }
}

/// Without the limits that [`TupleCommand::validate`] checks with their own texts.
impl Decode for TupleCommand {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            0 => TupleCommand::Spaces { after: decode_name(reader)?, limit: u32::decode(reader)? },
            1 => TupleCommand::On {
                space: decode_name(reader)?,
                operation: Operation::decode(reader)?,
            },
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}

impl Encode for SpaceOptions {
    fn encode(&self, out: &mut Vec<u8>) {
        self.index_fields.encode(out);
        self.insert.encode(out);
        self.read.encode(out);
        self.take.encode(out);
        self.manage.encode(out);
    }
}

impl Decode for SpaceOptions {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(SpaceOptions {
            index_fields: Decode::decode(reader)?,
            insert: Decode::decode(reader)?,
            read: Decode::decode(reader)?,
            take: Decode::decode(reader)?,
            manage: Decode::decode(reader)?,
        })
    }
}

impl Encode for Entry {
    fn encode(&self, out: &mut Vec<u8>) {
        self.tuple.encode(out);
        self.lease_ms.encode(out);
        self.read.encode(out);
        self.take.encode(out);
    }
}

impl Decode for Entry {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Entry {
            tuple: Decode::decode(reader)?,
            lease_ms: Decode::decode(reader)?,
            read: Decode::decode(reader)?,
            take: Decode::decode(reader)?,
        })
    }
}
