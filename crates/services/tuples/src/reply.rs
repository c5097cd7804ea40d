//! What the tuple spaces answer, and its encoding: a tag byte and its content.

use crate::command::{SpaceOptions, decode_name};
use crate::limits;
use crate::tuple::{Template, Tuple};
use perdura_protocol::codec::{encode_bytes, encode_count, encode_list};
use perdura_protocol::{Decode, DecodeError, Encode, PublicKey, Reader, SessionId, Time};

/// The answer to a [`crate::TupleCommand`] that was not refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TupleReply {
    /// The space is created.
    Created,
    /// As many tuples are left in the space; with none left, it is deleted.
    Deleted {
        /// Tuples that are left.
        remaining: u64,
    },
    /// Names of spaces.
    Spaces {
        /// Ascending.
        names: Vec<String>,
        /// Whether there are more.
        more: bool,
    },
    /// How a space is.
    Described(SpaceDescription),
    /// A tuple was inserted.
    Inserted {
        /// Its number: above that of every tuple that was in the space before, ever.
        number: u64,
    },
    /// Tuples were inserted, with successive numbers.
    InsertedAll {
        /// The first tuple's number.
        first: u64,
        /// How many they are.
        count: u32,
    },
    /// What was read or taken, nothing where the wait for it ended; of a `cas`, the tuple for which
    /// nothing was inserted; nothing, of a claim that was not had.
    Found(Option<Found>),
    /// Tuples that were read or taken.
    FoundAll {
        /// Oldest first.
        tuples: Vec<Found>,
        /// Whether more of them match: the limit, or the bound on bytes, was reached.
        more: bool,
    },
    /// A tuple took the place of another one.
    Replaced {
        /// The one that was taken.
        old: Found,
        /// The number of the one that was inserted.
        number: u64,
    },
    /// What became of a lease.
    Renewed {
        /// Whether there was such a tuple.
        renewed: bool,
        /// When its lease ends now.
        expires: Option<Time>,
    },
    /// What was taken under a lease; nothing where there was no match, or the wait for it ended.
    Leased(Option<Leased>),
    /// What became of a tuple that was taken under a lease.
    Holding {
        /// Whether the client had it under a lease, until now.
        held: bool,
        /// When the lease ends, where it goes on.
        until: Option<Time>,
    },
    /// A counter was added to.
    Added {
        /// The number of the tuple that has the sum.
        number: u64,
        /// The sum.
        value: i64,
    },
    /// Commands that wait.
    Waits {
        /// In the order in which they began to.
        waits: Vec<Waiting>,
        /// Whether there are more: the limit, or the bound on bytes, was reached.
        more: bool,
    },
    /// What became of a wait.
    WaitEnded {
        /// Whether it was waiting until now.
        ended: bool,
    },
    /// What became of a tuple.
    Broken(Broken),
}

/// A tuple under a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leased {
    /// Its number in the space.
    pub number: u64,
    /// Which lease of it this is: it ascends from one to the next. Number and token serve as a fencing token together.
    pub token: u64,
    /// Leases of it that others had before, and did not finish.
    pub before: u64,
    /// When the lease ends; `None` where the command had waited, for then it lasts from when the client confirms that it has it.
    pub until: Option<Time>,
    /// The tuple.
    pub tuple: Tuple,
}

/// A command that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Its place among those who wait: it ascends in the order in which they began to.
    pub place: u64,
    /// Whose command it is.
    pub session: SessionId,
    /// Its number in the session.
    pub number: u64,
    /// What it waits to do.
    pub purpose: Purpose,
    /// What it waits for; of a claim, what must not be there.
    pub template: Template,
    /// The agreed time at which it waits no longer.
    pub deadline: Time,
}

/// What a tuple is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// To read it.
    Read,
    /// To take it.
    Take,
    /// To take it under a lease.
    Lease,
    /// To insert one when there is none.
    Claim,
}

/// What [`crate::Operation::Break`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// There is no such tuple.
    Absent,
    /// The tuple was removed.
    Removed,
    /// It was under a lease, and is the next one's.
    Returned,
}

/// A tuple in a space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its number in the space.
    pub number: u64,
    /// The agreed time at which its lease ends: a command at that time does not see it any more. `None` while somebody has it, for
    /// then its lease does not end it.
    pub expires: Option<Time>,
    /// The tuple.
    pub tuple: Tuple,
}

/// How a space is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceDescription {
    /// As it was created.
    pub options: SpaceOptions,
    /// Who created it.
    pub creator: PublicKey,
    /// Tuples in it, including those whose lease has ended and which are not removed yet.
    pub tuples: u64,
    /// Commands that wait for tuples of it.
    pub waiters: u64,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// The encoding of a [`Waiting`] whose template has one field of 1 byte.
const LEAST_WAITING_BYTES: usize = 8 + 40 + 8 + 1 + 4 + 1 + 8;

/// The encoding of a [`Found`] whose tuple has one field of 2 bytes.
const LEAST_FOUND_BYTES: usize = 8 + 1 + 4 + 2;

impl Encode for TupleReply {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            TupleReply::Created => out.push(0),
            TupleReply::Deleted { remaining } => {
                out.push(1);
                remaining.encode(out);
            }
            TupleReply::Spaces { names, more } => {
                out.push(2);
                encode_count(names.len(), out);
                names.iter().for_each(|name| encode_bytes(name.as_bytes(), out));
                more.encode(out);
            }
            TupleReply::Described(description) => {
                out.push(3);
                description.encode(out);
            }
            TupleReply::Inserted { number } => {
                out.push(4);
                number.encode(out);
            }
            TupleReply::InsertedAll { first, count } => {
                out.push(5);
                first.encode(out);
                count.encode(out);
            }
            TupleReply::Found(found) => {
                out.push(6);
                found.encode(out);
            }
            TupleReply::FoundAll { tuples, more } => {
                out.push(7);
                encode_list(tuples, out);
                more.encode(out);
            }
            TupleReply::Replaced { old, number } => {
                out.push(8);
                old.encode(out);
                number.encode(out);
            }
            TupleReply::Renewed { renewed, expires } => {
                out.push(9);
                renewed.encode(out);
                expires.encode(out);
            }
            TupleReply::Leased(leased) => {
                out.push(10);
                leased.encode(out);
            }
            TupleReply::Holding { held, until } => {
                out.push(11);
                held.encode(out);
                until.encode(out);
            }
            TupleReply::Added { number, value } => {
                out.push(12);
                number.encode(out);
                value.to_le_bytes().encode(out);
            }
            TupleReply::Waits { waits, more } => {
                out.push(13);
                encode_list(waits, out);
                more.encode(out);
            }
            TupleReply::WaitEnded { ended } => {
                out.push(14);
                ended.encode(out);
            }
            TupleReply::Broken(broken) => out.extend_from_slice(&[15, broken.tag()]),
        }
    }
}

fn decode_names(reader: &mut Reader) -> Result<Vec<String>, DecodeError> {
    let count = reader.count("names of spaces", limits::TUPLES_AT_ONCE, 5)?;
    (0..count).map(|_| decode_name(reader)).collect()
}

impl Decode for TupleReply {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            0 => TupleReply::Created,
            1 => TupleReply::Deleted { remaining: Decode::decode(reader)? },
            2 => TupleReply::Spaces { names: decode_names(reader)?, more: Decode::decode(reader)? },
            3 => TupleReply::Described(Decode::decode(reader)?),
            4 => TupleReply::Inserted { number: Decode::decode(reader)? },
            5 => TupleReply::InsertedAll {
                first: Decode::decode(reader)?,
                count: Decode::decode(reader)?,
            },
            6 => TupleReply::Found(Decode::decode(reader)?),
            7 => TupleReply::FoundAll {
                tuples: reader.list("tuples", limits::TUPLES_AT_ONCE, LEAST_FOUND_BYTES)?,
                more: Decode::decode(reader)?,
            },
            8 => TupleReply::Replaced {
                old: Decode::decode(reader)?,
                number: Decode::decode(reader)?,
            },
            9 => TupleReply::Renewed {
                renewed: Decode::decode(reader)?,
                expires: Decode::decode(reader)?,
            },
            10 => TupleReply::Leased(Decode::decode(reader)?),
            11 => TupleReply::Holding {
                held: Decode::decode(reader)?,
                until: Decode::decode(reader)?,
            },
            12 => TupleReply::Added {
                number: Decode::decode(reader)?,
                value: i64::from_le_bytes(Decode::decode(reader)?),
            },
            13 => TupleReply::Waits {
                waits: reader.list("waits", limits::TUPLES_AT_ONCE, LEAST_WAITING_BYTES)?,
                more: Decode::decode(reader)?,
            },
            14 => TupleReply::WaitEnded { ended: Decode::decode(reader)? },
            15 => TupleReply::Broken(Broken::of_tag(u8::decode(reader)?)?),
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}

impl Broken {
    fn tag(self) -> u8 {
        match self {
            Broken::Absent => 0,
            Broken::Removed => 1,
            Broken::Returned => 2,
        }
    }

    fn of_tag(tag: u8) -> Result<Broken, DecodeError> {
        match tag {
            0 => Ok(Broken::Absent),
            1 => Ok(Broken::Removed),
            2 => Ok(Broken::Returned),
            tag => Err(DecodeError::UnknownTag(tag)),
        }
    }
}

impl Encode for Leased {
    fn encode(&self, out: &mut Vec<u8>) {
        self.number.encode(out);
        self.token.encode(out);
        self.before.encode(out);
        self.until.encode(out);
        self.tuple.encode(out);
    }
}

impl Decode for Leased {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Leased {
            number: Decode::decode(reader)?,
            token: Decode::decode(reader)?,
            before: Decode::decode(reader)?,
            until: Decode::decode(reader)?,
            tuple: Decode::decode(reader)?,
        })
    }
}

impl Encode for Waiting {
    fn encode(&self, out: &mut Vec<u8>) {
        self.place.encode(out);
        self.session.encode(out);
        self.number.encode(out);
        self.purpose.encode(out);
        self.template.encode(out);
        self.deadline.encode(out);
    }
}

impl Decode for Waiting {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Waiting {
            place: Decode::decode(reader)?,
            session: Decode::decode(reader)?,
            number: Decode::decode(reader)?,
            purpose: Decode::decode(reader)?,
            template: Decode::decode(reader)?,
            deadline: Decode::decode(reader)?,
        })
    }
}

impl Purpose {
    pub(crate) fn of_tag(tag: u8) -> Result<Purpose, DecodeError> {
        Ok(match tag {
            0 => Purpose::Read,
            1 => Purpose::Take,
            2 => Purpose::Lease,
            3 => Purpose::Claim,
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}

impl Encode for Purpose {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Purpose::Read => 0,
            Purpose::Take => 1,
            Purpose::Lease => 2,
            Purpose::Claim => 3,
        });
    }
}

impl Decode for Purpose {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Purpose::of_tag(u8::decode(reader)?)
    }
}

impl Encode for Found {
    fn encode(&self, out: &mut Vec<u8>) {
        self.number.encode(out);
        self.expires.encode(out);
        self.tuple.encode(out);
    }
}

impl Decode for Found {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Found {
            number: Decode::decode(reader)?,
            expires: Decode::decode(reader)?,
            tuple: Decode::decode(reader)?,
        })
    }
}

impl Encode for SpaceDescription {
    fn encode(&self, out: &mut Vec<u8>) {
        self.options.encode(out);
        self.creator.encode(out);
        self.tuples.encode(out);
        self.waiters.encode(out);
        self.deleting.encode(out);
    }
}

impl Decode for SpaceDescription {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(SpaceDescription {
            options: Decode::decode(reader)?,
            creator: Decode::decode(reader)?,
            tuples: Decode::decode(reader)?,
            waiters: Decode::decode(reader)?,
            deleting: Decode::decode(reader)?,
        })
    }
}
