//! What is equal, what matches, and who is admitted.

use perdura_protocol::PublicKey;
use perdura_tuples::{Access, Entry, Field, Kind, Pattern, Template, Tuple};

pub fn admits(access: &Access, client: PublicKey) -> bool {
    match access {
        Access::Anyone => true,
        Access::Only(keys) => keys.contains(&client),
    }
}

/// Whether two fields are the same: of one type, and in it the same value.
fn equal(one: &Field, other: &Field) -> bool {
    match (one, other) {
        (Field::String(one), Field::String(other)) => one.as_bytes() == other.as_bytes(),
        (Field::Bytes(one), Field::Bytes(other)) => one[..] == other[..],
        (Field::Integer(one), Field::Integer(other)) => one == other,
        // Neither is NaN.
        (Field::Float(one), Field::Float(other)) => one.get().total_cmp(&other.get()).is_eq(),
        (Field::Bool(one), Field::Bool(other)) => one == other,
        _ => false,
    }
}

fn is_of(field: &Field, kind: Kind) -> bool {
    match field {
        Field::String(_) => kind == Kind::String,
        Field::Bytes(_) => kind == Kind::Bytes,
        Field::Integer(_) => kind == Kind::Integer,
        Field::Float(_) => kind == Kind::Float,
        Field::Bool(_) => kind == Kind::Bool,
    }
}

pub fn matches(template: &Template, tuple: &Tuple) -> bool {
    let fields: Vec<Field> = tuple.fields().collect();
    let fits = |(pattern, field): (&Pattern, &Field)| match pattern {
        Pattern::Any => true,
        Pattern::Kind(kind) => is_of(field, *kind),
        Pattern::Value(value) => equal(value, field),
    };
    fields.len() == template.fields.len() && template.fields.iter().zip(&fields).all(fits)
}

/// What must not be there for a claim to get through: tuples of as many fields that begin with the same ones.
pub fn of_key(key: u8, entry: &Entry) -> Template {
    let pattern = |(at, field): (usize, Field)| match at < usize::from(key) {
        true => Pattern::Value(field),
        false => Pattern::Any,
    };
    Template { fields: entry.tuple.fields().enumerate().map(pattern).collect() }
}

/// What matches the tuples of a counter.
pub fn of_counter(fields: &Tuple) -> Template {
    let values = fields.fields().map(Pattern::Value);
    Template { fields: values.chain([Pattern::Kind(Kind::Integer)]).collect() }
}

/// The tuple of a counter.
pub fn counter(fields: &Tuple, value: i64) -> Result<Tuple, ()> {
    let fields: Vec<Field> = fields.fields().chain([Field::Integer(value)]).collect();
    Tuple::new(&fields).map_err(|_| ())
}
