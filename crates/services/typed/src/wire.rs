//! What goes between clients and replicas, as `postcard` encodes it behind one byte that says what it is.

use crate::service::{ERROR_BYTES, REPLY_BYTES, Service, Unfit};
use bytes::Bytes;
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

fn encode(kind: u8, what: &impl Serialize) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(what, vec![kind])
}

/// A command as replicas are sent it.
///
/// # Errors
/// When it cannot be encoded.
pub fn encode_command<S: Service>(command: &S::Command) -> Result<Bytes, postcard::Error> {
    encode(COMMAND, command).map(Bytes::from)
}

/// A query as replicas are sent it.
///
/// # Errors
/// When it cannot be encoded.
pub fn encode_query<S: Service>(query: &S::Query) -> Result<Bytes, postcard::Error> {
    encode(QUERY, query).map(Bytes::from)
}

/// Whether this answer to a command is the service's refusal.
#[must_use]
pub fn is_refusal(answer: &[u8]) -> bool {
    answer.first() == Some(&ERROR)
}

/// What these bytes are, all of them.
pub(crate) fn whole<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}

/// None too where it came with a later version than this one.
pub(crate) fn decode<S: Service>(bytes: &[u8], version: u16) -> Option<Asked<S>> {
    let (kind, rest) = bytes.split_first()?;
    let (asked, since) = match *kind {
        COMMAND => {
            let command = whole(rest)?;
            let since = S::since(&command);
            (Asked::Command(command), since)
        }
        QUERY => {
            let query = whole(rest)?;
            let since = S::query_since(&query);
            (Asked::Query(query), since)
        }
        _ => return None,
    };
    (since <= version).then_some(asked)
}

pub(crate) fn reply(reply: &impl Serialize) -> Result<Bytes, Unfit> {
    let bytes = encode(REPLY, reply);
    let bytes = bytes.unwrap_or_else(|error| panic!("a reply does not encode: {error}"));
    if bytes.len() > REPLY_BYTES { Err(Unfit::Reply(bytes.len())) } else { Ok(bytes.into()) }
}

pub(crate) fn error(error: &impl Serialize) -> Result<Bytes, Unfit> {
    let bytes = encode(ERROR, error);
    let bytes = bytes.unwrap_or_else(|error| panic!("an error does not encode: {error}"));
    if bytes.len() > ERROR_BYTES { Err(Unfit::Error(bytes.len())) } else { Ok(bytes.into()) }
}

/// What a replica answered; none if this is no answer of this service.
pub(crate) fn answer<S: Service>(bytes: &[u8]) -> Option<Result<S::Reply, S::Error>> {
    let (kind, rest) = bytes.split_first()?;
    match *kind {
        REPLY => whole(rest).map(Ok),
        ERROR => whole(rest).map(Err),
        _ => None,
    }
}
