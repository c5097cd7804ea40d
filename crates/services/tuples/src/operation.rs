//! The operations on a space, and their encoding: a tag byte and its content.
//!
//! Those from tag 14 on need version 2 of the tuple spaces' rules. Version 3 brings none, but bounds what one client key has waiting
//! ([`crate::waiting`]).

use crate::command::{CommandError, Entry, SpaceOptions, TupleCommand, check_at_once, decode_name};
use crate::field::Field;
use crate::limits;
use crate::tuple::{Template, Tuple};
use bytes::Bytes;
use perdura_protocol::codec::encode_list;
use perdura_protocol::{Decode, DecodeError, Encode, Reader, SessionId};

/// What is done with a space. Of several tuples that match a template, the oldest is meant: the one
/// with the smallest number. A tuple that the client may not read (or take) matches nothing for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Creates the space; refused if there is one of its name.
    Create(SpaceOptions),
    /// Deletes the space with its tuples, [`limits::DELETED_AT_ONCE`] of them at a time. While some
    /// are left, the space takes no other operation than this one again.
    Delete,
    /// How the space is.
    Describe,
    /// Inserts a tuple.
    Out(Entry),
    /// Inserts several tuples, all or none, in this order; 1 to [`limits::TUPLES_AT_ONCE`].
    OutAll(Vec<Entry>),
    /// Reads the oldest match, if there is one.
    Rdp(Template),
    /// Takes the oldest match, if there is one.
    Inp(Template),
    /// Reads all matches, oldest first.
    RdAll {
        /// What to match.
        template: Template,
        /// Only tuples with a number above this; 0 for all.
        after: u64,
        /// Tuples at most, 1 to [`limits::TUPLES_AT_ONCE`].
        limit: u32,
    },
    /// Takes all matches, oldest first.
    InAll {
        /// What to match.
        template: Template,
        /// Tuples at most, 1 to [`limits::TUPLES_AT_ONCE`].
        limit: u32,
    },
    /// Inserts a tuple unless one that the client may read matches the template.
    Cas {
        /// What must not be there.
        template: Template,
        /// What to insert.
        entry: Entry,
    },
    /// Takes the oldest match and inserts another tuple, which is younger than all; nothing
    /// without a match.
    Replace {
        /// What to take.
        template: Template,
        /// What to insert.
        entry: Entry,
    },
    /// Gives a tuple that the client may take another lease, from now on.
    Renew {
        /// The tuple's number.
        number: u64,
        /// As in [`Entry::lease_ms`]; 0 ends the tuple at once.
        lease_ms: Option<u64>,
    },
    /// Reads the oldest match, or else the first one that is inserted while it waits.
    Rd {
        /// What to match.
        template: Template,
        /// Milliseconds of agreed time for which it waits, 1 to [`limits::WAIT_MS`].
        wait_ms: u64,
    },
    /// Takes the oldest match, or else the first one that is inserted while it waits and that
    /// nobody takes who waited before. From version 2 on that is an offer.
    In {
        /// What to match.
        template: Template,
        /// As in [`Operation::Rd`].
        wait_ms: u64,
    },
    /// Inserts a tuple as soon as no other of as many fields begins with the same values, and so gives what these values name to one
    /// at a time. Those that the client may not read count as well. Nobody overtakes: while a claim waits, what it waits for is never free.
    /// [`TupleReply::Inserted`](crate::TupleReply::Inserted) when it is had, `Found(None)` when not. Version 2.
    Claim {
        /// How many leading fields are the key: 1 to as many as the tuple has. Where it waits they have at most
        /// [`limits::WAITING_TEMPLATE_BYTES`].
        key: u8,
        /// What to insert, where it waits at most [`limits::WAITING_CLAIM_BYTES`]. Its lease begins when it is had.
        entry: Entry,
        /// As in [`Operation::Rd`]; 0: it does not wait.
        wait_ms: u64,
    },
    /// Takes the oldest match under a lease: the tuple stays, and can be read, but nobody else takes it until it is returned
    /// or the lease ends. It is as old as before then. [`TupleReply::Leased`](crate::TupleReply::Leased). Version 2.
    Lease {
        /// What to match.
        template: Template,
        /// Milliseconds of agreed time, 1 to [`limits::LEASE_MS`].
        lease_ms: u64,
        /// As in [`Operation::Rd`]; 0: it does not wait.
        wait_ms: u64,
    },
    /// Removes a tuple that the client has under a lease: its job is done. [`TupleReply::Holding`](crate::TupleReply::Holding). Version 2.
    Finish {
        /// The tuple's number.
        number: u64,
        /// As in [`Leased::token`](crate::Leased::token): of a lease that has ended it does nothing.
        token: u64,
    },
    /// Gives such a tuple back before its lease ends: it is the next one's. Version 2.
    Return {
        /// The tuple's number.
        number: u64,
        /// As in [`Operation::Finish`].
        token: u64,
    },
    /// Lets such a lease last so long from now on. Version 2.
    Extend {
        /// The tuple's number.
        number: u64,
        /// As in [`Operation::Finish`].
        token: u64,
        /// As in [`Operation::Lease`].
        lease_ms: u64,
    },
    /// Adds to a counter: the oldest tuple of these fields and an integer that the client may take is replaced by one with the sum, which
    /// keeps its lease and access lists; without one, such a tuple of this integer is inserted, open to all. Refused where the sum has
    /// more than 64 bits. [`TupleReply::Added`](crate::TupleReply::Added). Version 2.
    Add {
        /// All fields but the last one; at most [`limits::FIELDS`] less one.
        fields: Tuple,
        /// What to add.
        amount: i64,
    },
    /// The commands that wait in the space, in the order in which they began to, for those who may read or manage it.
    /// [`TupleReply::Waits`](crate::TupleReply::Waits). Version 2.
    Waits {
        /// Only those behind this one ([`Waiting::place`](crate::Waiting::place)); 0 for all.
        after: u64,
        /// So many at most, 1 to [`limits::TUPLES_AT_ONCE`].
        limit: u32,
    },
    /// Ends a wait, whosever it is: the command is refused. For those who may manage the space.
    /// [`TupleReply::WaitEnded`](crate::TupleReply::WaitEnded). Version 2.
    EndWait {
        /// Whose command waits.
        session: SessionId,
        /// Its number in the session.
        number: u64,
    },
    /// Removes a tuple whoever may take it, and so breaks a lock; one that is leased is given back instead. For those who may manage the
    /// space. Refused while it is offered to a client that has not said whether it has it. [`TupleReply::Broken`](crate::TupleReply::Broken).
    /// Version 2.
    Break {
        /// The tuple's number.
        number: u64,
    },
}

/// The version of the tuple spaces' rules that this code knows.
pub(crate) const VERSION: u16 = 3;

/// The first tag of an operation that needs version 2.
const FIRST_OF_VERSION_2: u8 = 14;

/// The tag by which programs that know version 1 alone refuse a command before they read on. Under version 1 all refuse with it, so
/// that replicas whose programs differ give one reply.
pub(crate) fn tag_beyond_version_1(command: &[u8]) -> Option<u8> {
    tag_of(command).filter(|tag| (FIRST_OF_VERSION_2..=LAST_TAG).contains(tag))
}

/// Kind of a command, length of a name, the longest one, and the tag.
const BYTES_TO_TAG: usize = 1 + 4 + limits::SPACE_NAME_BYTES + 1;

/// The tag of a command on a space, whatever follows it.
fn tag_of(command: &[u8]) -> Option<u8> {
    let beginning = &command[..command.len().min(BYTES_TO_TAG)];
    let mut reader = Reader::new(Bytes::copy_from_slice(beginning));
    if u8::decode(&mut reader) != Ok(1) {
        return None;
    }
    decode_name(&mut reader).ok()?;
    u8::decode(&mut reader).ok()
}

/// The last tag there is.
const LAST_TAG: u8 = 22;

/// Whether a command frees what others may wait for, or keeps a job: it finishes, returns or extends its lease, ends a tuple at once, as who
/// releases a lock does, ends a wait, or breaks a lock. Each does little, or was made possible by one that does more: what it frees was inserted or
/// leased before. To renew a tuple is not among them, for that writes all of it again.
pub(crate) fn frees(command: &[u8]) -> bool {
    let ends = || {
        let mut reader = Reader::new(Bytes::copy_from_slice(command));
        let decoded = <TupleCommand as Decode>::decode(&mut reader);
        let Ok(TupleCommand::On { operation, .. }) = decoded else { return false };
        matches!(operation, Operation::Renew { lease_ms: Some(0), .. })
    };
    match tag_of(command) {
        Some(11) => command.len() <= BYTES_TO_TAG + 8 + 9 && ends(),
        // Finish, Return, Extend, EndWait, Break.
        Some(16..=18 | 21 | LAST_TAG) => true,
        _ => false,
    }
}

fn check_wait(wait_ms: u64) -> Result<(), CommandError> {
    if wait_ms > limits::WAIT_MS { Err(CommandError::Wait(wait_ms)) } else { Ok(()) }
}

fn check_lease(lease_ms: u64) -> Result<(), CommandError> {
    match lease_ms {
        1..=limits::LEASE_MS => Ok(()),
        lease => Err(CommandError::Lease(lease)),
    }
}

fn check_waiting(template: &Template) -> Result<(), CommandError> {
    match template.bytes() {
        ..=limits::WAITING_TEMPLATE_BYTES => Ok(()),
        bytes => Err(CommandError::WaitingTemplateBytes(bytes)),
    }
}

/// Whether a claim may be made, and wait.
pub(crate) fn check_claim(key: u8, entry: &Entry, waits: bool) -> Result<(), CommandError> {
    entry.validate()?;
    let fields = entry.tuple.fields().count();
    if key == 0 || usize::from(key) > fields {
        return Err(CommandError::ClaimKey(key));
    }
    if !waits {
        return Ok(());
    }
    check_waiting(&Template::of_key(&entry.tuple, key))?;
    match entry.bytes() {
        ..=limits::WAITING_CLAIM_BYTES => Ok(()),
        bytes => Err(CommandError::WaitingClaimBytes(bytes)),
    }
}

impl Operation {
    pub(crate) fn validate(&self) -> Result<(), CommandError> {
        match self {
            Operation::Create(options) => options.validate(),
            Operation::Delete | Operation::Describe => Ok(()),
            Operation::Out(entry) => entry.validate(),
            Operation::OutAll(entries) => {
                check_at_once(entries.len())?;
                entries.iter().try_for_each(Entry::validate)?;
                match entries.iter().map(Entry::bytes).sum() {
                    ..=limits::INSERTED_BYTES => Ok(()),
                    bytes => Err(CommandError::InsertedBytes(bytes)),
                }
            }
            Operation::Rdp(template) | Operation::Inp(template) => template.validate(),
            Operation::RdAll { template, limit, .. } | Operation::InAll { template, limit } => {
                check_at_once(*limit as usize)?;
                template.validate()
            }
            Operation::Cas { template, entry } | Operation::Replace { template, entry } => {
                template.validate()?;
                entry.validate()
            }
            Operation::Renew { lease_ms: None | Some(..=limits::LEASE_MS), .. } => Ok(()),
            Operation::Renew { lease_ms: Some(lease), .. } => Err(CommandError::Lease(*lease)),
            Operation::Rd { template, wait_ms } | Operation::In { template, wait_ms } => {
                if *wait_ms == 0 {
                    return Err(CommandError::Wait(0));
                }
                check_wait(*wait_ms)?;
                template.validate()?;
                check_waiting(template)
            }
            Operation::Claim { key, entry, wait_ms } => {
                check_wait(*wait_ms)?;
                check_claim(*key, entry, *wait_ms > 0)
            }
            Operation::Lease { template, lease_ms, wait_ms } => {
                check_wait(*wait_ms)?;
                check_lease(*lease_ms)?;
                template.validate()?;
                if *wait_ms > 0 { check_waiting(template) } else { Ok(()) }
            }
            Operation::Extend { lease_ms, .. } => check_lease(*lease_ms),
            Operation::Finish { .. } | Operation::Return { .. } => Ok(()),
            Operation::Add { fields, .. } => counter(fields, 0).map(drop),
            Operation::Waits { limit, .. } => check_at_once(*limit as usize),
            Operation::EndWait { .. } | Operation::Break { .. } => Ok(()),
        }
    }

    /// The version of the rules that it needs.
    pub(crate) fn version(&self) -> u16 {
        match self {
            Operation::Claim { .. }
            | Operation::Lease { .. }
            | Operation::Finish { .. }
            | Operation::Return { .. }
            | Operation::Extend { .. }
            | Operation::Add { .. }
            | Operation::Waits { .. }
            | Operation::EndWait { .. }
            | Operation::Break { .. } => 2,
            _ => 1,
        }
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(
            self,
            Operation::Describe
                | Operation::Rdp(_)
                | Operation::RdAll { .. }
                | Operation::Waits { .. }
        )
    }
}

/// The tuple of a counter.
pub(crate) fn counter(fields: &Tuple, value: i64) -> Result<Tuple, CommandError> {
    let mut fields: Vec<Field> = fields.fields().collect();
    fields.push(value.into());
    Tuple::new(&fields)
}

/// The encoding of an [`Entry`] whose tuple has one field of 2 bytes.
const LEAST_ENTRY_BYTES: usize = 4 + 2 + 1 + 1 + 1;

impl Encode for Operation {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Operation::Create(options) => {
                out.push(0);
                options.encode(out);
            }
            Operation::Delete => out.push(1),
            Operation::Describe => out.push(2),
            Operation::Out(entry) => {
                out.push(3);
                entry.encode(out);
            }
            Operation::OutAll(entries) => {
                out.push(4);
                encode_list(entries, out);
            }
            Operation::Rdp(template) => {
                out.push(5);
                template.encode(out);
            }
            Operation::Inp(template) => {
                out.push(6);
                template.encode(out);
            }
            Operation::RdAll { template, after, limit } => {
                out.push(7);
                template.encode(out);
                after.encode(out);
                limit.encode(out);
            }
            Operation::InAll { template, limit } => {
                out.push(8);
                template.encode(out);
                limit.encode(out);
            }
            Operation::Cas { template, entry } => {
                out.push(9);
                template.encode(out);
                entry.encode(out);
            }
            Operation::Replace { template, entry } => {
                out.push(10);
                template.encode(out);
                entry.encode(out);
            }
            Operation::Renew { number, lease_ms } => {
                out.push(11);
                number.encode(out);
                lease_ms.encode(out);
            }
            Operation::Rd { template, wait_ms } => {
                out.push(12);
                template.encode(out);
                wait_ms.encode(out);
            }
            Operation::In { template, wait_ms } => {
                out.push(13);
                template.encode(out);
                wait_ms.encode(out);
            }
            Operation::Claim { key, entry, wait_ms } => {
                out.push(14);
                key.encode(out);
                entry.encode(out);
                wait_ms.encode(out);
            }
            Operation::Lease { template, lease_ms, wait_ms } => {
                out.push(15);
                template.encode(out);
                lease_ms.encode(out);
                wait_ms.encode(out);
            }
            Operation::Finish { number, token } => {
                out.push(16);
                number.encode(out);
                token.encode(out);
            }
            Operation::Return { number, token } => {
                out.push(17);
                number.encode(out);
                token.encode(out);
            }
            Operation::Extend { number, token, lease_ms } => {
                out.push(18);
                number.encode(out);
                token.encode(out);
                lease_ms.encode(out);
            }
            Operation::Add { fields, amount } => {
                out.push(19);
                fields.encode(out);
                amount.to_le_bytes().encode(out);
            }
            Operation::Waits { after, limit } => {
                out.push(20);
                after.encode(out);
                limit.encode(out);
            }
            Operation::EndWait { session, number } => {
                out.push(21);
                session.encode(out);
                number.encode(out);
            }
            Operation::Break { number } => {
                out.push(LAST_TAG);
                number.encode(out);
            }
        }
    }
}

impl Decode for Operation {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            0 => Operation::Create(Decode::decode(reader)?),
            1 => Operation::Delete,
            2 => Operation::Describe,
            3 => Operation::Out(Decode::decode(reader)?),
            4 => Operation::OutAll(reader.list(
                "tuples to insert",
                limits::TUPLES_AT_ONCE,
                LEAST_ENTRY_BYTES,
            )?),
            5 => Operation::Rdp(Decode::decode(reader)?),
            6 => Operation::Inp(Decode::decode(reader)?),
            7 => Operation::RdAll {
                template: Decode::decode(reader)?,
                after: Decode::decode(reader)?,
                limit: Decode::decode(reader)?,
            },
            8 => Operation::InAll {
                template: Decode::decode(reader)?,
                limit: Decode::decode(reader)?,
            },
            9 => {
                Operation::Cas { template: Decode::decode(reader)?, entry: Decode::decode(reader)? }
            }
            10 => Operation::Replace {
                template: Decode::decode(reader)?,
                entry: Decode::decode(reader)?,
            },
            12 => Operation::Rd {
                template: Decode::decode(reader)?,
                wait_ms: Decode::decode(reader)?,
            },
            13 => Operation::In {
                template: Decode::decode(reader)?,
                wait_ms: Decode::decode(reader)?,
            },
            11 => Operation::Renew {
                number: Decode::decode(reader)?,
                lease_ms: Decode::decode(reader)?,
            },
            14 => Operation::Claim {
                key: Decode::decode(reader)?,
                entry: Decode::decode(reader)?,
                wait_ms: Decode::decode(reader)?,
            },
            15 => Operation::Lease {
                template: Decode::decode(reader)?,
                lease_ms: Decode::decode(reader)?,
                wait_ms: Decode::decode(reader)?,
            },
            16 => Operation::Finish {
                number: Decode::decode(reader)?,
                token: Decode::decode(reader)?,
            },
            17 => Operation::Return {
                number: Decode::decode(reader)?,
                token: Decode::decode(reader)?,
            },
            18 => Operation::Extend {
                number: Decode::decode(reader)?,
                token: Decode::decode(reader)?,
                lease_ms: Decode::decode(reader)?,
            },
            19 => Operation::Add {
                fields: Decode::decode(reader)?,
                amount: i64::from_le_bytes(Decode::decode(reader)?),
            },
            20 => {
                Operation::Waits { after: Decode::decode(reader)?, limit: Decode::decode(reader)? }
            }
            21 => Operation::EndWait {
                session: Decode::decode(reader)?,
                number: Decode::decode(reader)?,
            },
            LAST_TAG => Operation::Break { number: Decode::decode(reader)? },
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}
