//! The space that the load of tuples is in: commands, and tuples that are what was put there.

use super::value::{long, short};
use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use perdura_protocol::Encode;
use perdura_tuples::{
    Entry, Field, Found, Kind, Operation, Pattern, SpaceOptions, Template, Tuple, TupleCommand,
};

const NAME: &str = "chaos";

/// A command on it, within the limits.
pub fn command(operation: Operation) -> Result<Bytes> {
    let command = TupleCommand::On { space: NAME.to_owned(), operation };
    command.validate()?;
    Ok(command.to_bytes())
}

/// Creates it; a shard and a key are found by the index.
pub fn create() -> Result<Bytes> {
    command(Operation::Create(SpaceOptions { index_fields: 2, ..SpaceOptions::default() }))
}

/// A tuple with a value behind these fields.
pub fn entry(head: &[Field], value: &str) -> Result<Entry> {
    let fields = [head, &[Field::Bytes(long(value))]].concat();
    Ok(Entry::new(Tuple::new(&fields)?))
}

/// Tuples with these fields, and with this value, or any.
pub fn template(head: &[Field], value: Option<&str>) -> Template {
    let mut fields: Vec<Pattern> = head.iter().cloned().map(Pattern::Value).collect();
    fields.push(match value {
        Some(value) => Pattern::Value(Field::Bytes(long(value))),
        None => Pattern::Kind(Kind::Bytes),
    });
    Template { fields }
}

/// The fields of a tuple that was found, without its value, and its value.
pub fn parts(found: &Found) -> Result<(Vec<Field>, String)> {
    ensure!(found.expires.is_none(), "a lease that nobody gave: {found:?}");
    let mut fields: Vec<Field> = found.tuple.fields().collect();
    match fields.pop() {
        Some(Field::Bytes(value)) => Ok((fields, short(&value))),
        _ => bail!("a tuple that nobody inserted: {found:?}"),
    }
}

/// The value of a tuple that was found, which has to have these fields before it.
pub fn value(found: &Found, head: &[Field]) -> Result<String> {
    let (fields, value) = parts(found)?;
    ensure!(fields == head, "a tuple that was not asked for: {found:?}");
    Ok(value)
}
