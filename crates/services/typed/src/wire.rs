//! What goes between clients and replicas, as `postcard` encodes it behind one byte that says what it is.
//! What is decoded is bounded ([`crate::bounded`]), and what a client encodes is decoded before it is sent: what replicas could not read stays with it.
//!
//! What a command or a query is made of is charged to it ([`PART_COST`]): its bytes do not bound how much memory it takes. What is stored is bounded by its
//! bytes alone, since it has to stay readable whatever a command has left, and came in commands that were charged; so are answers, which clients read,
//! and which may be as large as many values together.

use crate::bounded::{
    ANSWER_LEVELS, Count, EMPTY_ELEMENTS, LEVELS, decode as within, decode_counted,
};
use crate::scratch::lend;
use crate::service::{ERROR_BYTES, REPLY_BYTES, Service, Unfit};
use bytes::Bytes;
use perdura_execution::{Meter, TooCostly};
use perdura_protocol::limits::COMMAND_COST;
use serde::Serialize;
use serde::de::DeserializeOwned;

const COMMAND: u8 = 0;
const QUERY: u8 = 1;
const REPLY: u8 = 0;
const ERROR: u8 = 1;

/// What a client asks for.
pub(crate) enum Asked<S: Service> {
    Command(S::Command),
    Query(S::Query),
}

/// Why a command or a query cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// Its type cannot be encoded.
    #[error("it does not encode: {0}")]
    Unencodable(#[from] postcard::Error),
    /// It encodes to what does not decode again, so that no replica could read it.
    #[error(
        "no replica could read it: it is nested deeper than {LEVELS} levels, or its lists have more than {EMPTY_ELEMENTS} elements that take no bytes, \
         or it has a type or an attribute that `postcard` does not read back"
    )]
    Unreadable,
}

/// Appends what something is encoded to.
///
/// # Errors
/// When it cannot be encoded; a part of it may stand there then.
pub(crate) fn append(what: &impl Serialize, to: &mut Vec<u8>) -> Result<(), postcard::Error> {
    postcard::serialize_with_flavor(what, Append(to))
}

/// Where `postcard` writes.
struct Append<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Append<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> Result<(), postcard::Error> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> Result<(), postcard::Error> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> Result<(), postcard::Error> {
        Ok(())
    }
}

/// Encodes something, and gives what is made of the bytes.
fn encode<T>(
    kind: u8,
    what: &impl Serialize,
    then: impl FnOnce(&[u8]) -> T,
) -> Result<T, postcard::Error> {
    lend(|buffer| {
        buffer.push(kind);
        append(what, buffer)?;
        Ok(then(buffer))
    })
}

fn encode_readable<T: Serialize + DeserializeOwned>(
    kind: u8,
    what: &T,
) -> Result<Bytes, EncodeError> {
    encode(kind, what, |bytes| match whole::<T>(&bytes[1..]) {
        Some(_) => Ok(Bytes::copy_from_slice(bytes)),
        None => Err(EncodeError::Unreadable),
    })?
}

/// A command as replicas are sent it.
///
/// # Errors
/// When it cannot be encoded, or read again.
pub fn encode_command<S: Service>(command: &S::Command) -> Result<Bytes, EncodeError> {
    encode_readable(COMMAND, command)
}

/// A query as replicas are sent it.
///
/// # Errors
/// When it cannot be encoded, or read again.
pub fn encode_query<S: Service>(query: &S::Query) -> Result<Bytes, EncodeError> {
    encode_readable(QUERY, query)
}

/// Whether this answer to a command is the service's refusal.
#[must_use]
pub fn is_refusal(answer: &[u8]) -> bool {
    answer.first() == Some(&ERROR)
}

/// What these bytes are, all of them.
pub(crate) fn whole<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    within(bytes, LEVELS)
}

/// What each struct, tuple, enum, option, list, map, text and byte string in a command or a query costs it, in bytes that are read of the state.
pub const PART_COST: u64 = 64;

/// Whether these bytes are to be a query.
pub(crate) fn is_query(bytes: &[u8]) -> bool {
    bytes.first() == Some(&QUERY)
}

/// What these bytes ask for, whose parts are charged.
///
/// # Errors
/// When they are none, also where it came with a later version than this one; when it is more than the meter leaves, or [`COMMAND_COST`] where
/// that has no bound.
pub(crate) fn decode<S: Service>(
    bytes: &[u8],
    version: u16,
    meter: &Meter,
) -> Result<Asked<S>, Unfit> {
    let (kind, rest) = bytes.split_first().ok_or(Unfit::Malformed)?;
    let (asked, since) = match *kind {
        COMMAND => {
            let command = charged(rest, meter)?;
            let since = S::since(&command);
            (Asked::Command(command), since)
        }
        QUERY => {
            let query = charged(rest, meter)?;
            let since = S::query_since(&query);
            (Asked::Query(query), since)
        }
        _ => return Err(Unfit::Malformed),
    };
    if since <= version { Ok(asked) } else { Err(Unfit::Malformed) }
}

fn charged<T: DeserializeOwned>(bytes: &[u8], meter: &Meter) -> Result<T, Unfit> {
    let count = Count::up_to(meter.left().min(COMMAND_COST) / PART_COST);
    let decoded = decode_counted(bytes, LEVELS, &count);
    // No more than one beyond what is left.
    meter.charge(usize::try_from(count.found() * PART_COST).unwrap_or(usize::MAX))?;
    match decoded {
        Some(decoded) => Ok(decoded),
        None if count.is_exceeded() => Err(TooCostly.into()),
        None => Err(Unfit::Malformed),
    }
}

pub(crate) fn reply(reply: &impl Serialize) -> Result<Bytes, Unfit> {
    let bytes = encode(REPLY, reply, |bytes| up_to(REPLY_BYTES, bytes));
    bytes.map_err(|_| Unfit::Unencodable("the reply"))?.map_err(Unfit::Reply)
}

pub(crate) fn error(error: &impl Serialize) -> Result<Bytes, Unfit> {
    let bytes = encode(ERROR, error, |bytes| up_to(ERROR_BYTES, bytes));
    bytes.map_err(|_| Unfit::Unencodable("the error"))?.map_err(Unfit::Error)
}

/// These bytes, or how many there are where that is too many.
fn up_to(most: usize, bytes: &[u8]) -> Result<Bytes, usize> {
    if bytes.len() > most { Err(bytes.len()) } else { Ok(Bytes::copy_from_slice(bytes)) }
}

/// What a replica answered; none if this is no answer of this service.
pub(crate) fn answer<S: Service>(bytes: &[u8]) -> Option<Result<S::Reply, S::Error>> {
    let (kind, rest) = bytes.split_first()?;
    match *kind {
        REPLY => within(rest, ANSWER_LEVELS).map(Ok),
        ERROR => within(rest, ANSWER_LEVELS).map(Err),
        _ => None,
    }
}
