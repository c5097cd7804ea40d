//! The JSON of `perdura space`: from a line to a command, from a reply to a result.
//!
//! A tuple is a list of fields: a string, an integer (a number without fraction and exponent), a
//! float (a number with one; `{"float": "inf"}` and `{"float": "-inf"}` for the infinite ones), a truth
//! value, or `{"b64": "..."}` for bytes. In a template, `null` matches any field and `{"type": "..."}`
//! any of a type. A field of an object that is not known is refused.

use crate::kv_json::{from_base64, to_base64};
use perdura_protocol::{PublicKey, SessionId};
use perdura_tuples::{
    Access, Broken, Entry, Field, Float, Found, Kind, Leased, Operation, Pattern, Purpose,
    SpaceDescription, SpaceOptions, Template, Tuple, TupleCommand, TupleReply, Waiting, limits,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// Tuples or names at once, where nothing else is asked for.
pub const LIMIT: u32 = limits::TUPLES_AT_ONCE as u32;

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum Request {
    List { after: Option<String>, limit: Option<u32> },
    Create(Created),
    Delete { space: String },
    Show { space: String },
    Out(Inserted),
    OutAll { space: String, tuples: Vec<Value>, lease_ms: Option<u64> },
    Rdp { space: String, template: Value },
    Inp { space: String, template: Value },
    Rd { space: String, template: Value, wait_ms: u64 },
    In { space: String, template: Value, wait_ms: u64 },
    RdAll { space: String, template: Value, after: Option<u64>, limit: Option<u32> },
    InAll { space: String, template: Value, limit: Option<u32> },
    Cas(Conditional),
    Replace(Conditional),
    Renew(Renewed),
    Claim(Claimed),
    Lease { space: String, template: Value, lease_ms: u64, wait_ms: Option<u64> },
    Done { space: String, number: u64, token: u64 },
    Return { space: String, number: u64, token: u64 },
    Extend { space: String, number: u64, token: u64, lease_ms: u64 },
    Add { space: String, fields: Value, amount: i64 },
    Waits { space: String, after: Option<u64>, limit: Option<u32> },
    EndWait { space: String, client: String, session: u64, number: u64 },
    Break { space: String, number: u64 },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Created {
    space: String,
    index_fields: Option<u8>,
    insert: Option<Vec<String>>,
    read: Option<Vec<String>>,
    take: Option<Vec<String>>,
    manage: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Inserted {
    space: String,
    tuple: Value,
    lease_ms: Option<u64>,
    read: Option<Vec<String>>,
    take: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Conditional {
    space: String,
    template: Value,
    tuple: Value,
    lease_ms: Option<u64>,
    read: Option<Vec<String>>,
    take: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Claimed {
    space: String,
    key: Option<u8>,
    tuple: Value,
    lease_ms: Option<u64>,
    wait_ms: Option<u64>,
    read: Option<Vec<String>>,
    take: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Renewed {
    space: String,
    number: u64,
    lease_ms: Option<u64>,
}

/// The clients with these keys; everybody, where no list is given.
pub fn access(keys: Option<Vec<String>>) -> Result<Access, String> {
    let Some(keys) = keys else { return Ok(Access::Anyone) };
    let keys: Result<_, String> = keys.iter().map(|text| client(text)).collect();
    Ok(Access::only(keys?))
}

/// The client with this key.
pub fn client(text: &str) -> Result<PublicKey, String> {
    text.parse().map_err(|_| format!("{text:?} is no public key of a client"))
}

fn float(value: f64) -> Result<Field, String> {
    Float::new(value).map(Field::Float).ok_or_else(|| "NaN is no field".to_owned())
}

/// The one member of an object.
fn member(value: &Value) -> Option<(&str, &Value)> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object.iter().next().map(|(name, value)| (name.as_str(), value))
}

fn field(value: &Value) -> Result<Field, String> {
    let wrong = || format!("{value} is no field of a tuple");
    match value {
        Value::String(text) => Ok(Field::String(text.clone())),
        Value::Bool(value) => Ok(Field::Bool(*value)),
        Value::Number(number) => match (number.as_i64(), number.is_f64()) {
            (Some(value), _) => Ok(Field::Integer(value)),
            (None, true) => number.as_f64().ok_or_else(wrong).and_then(float),
            (None, false) => Err(format!("{value} is no integer of 64 bits with a sign")),
        },
        Value::Object(_) => match member(value) {
            Some(("b64", Value::String(text))) => Ok(Field::Bytes(from_base64(text)?)),
            Some(("float", Value::String(text))) if text == "inf" => float(f64::INFINITY),
            Some(("float", Value::String(text))) if text == "-inf" => float(f64::NEG_INFINITY),
            _ => Err(wrong()),
        },
        Value::Null | Value::Array(_) => Err(wrong()),
    }
}

fn list<'a>(value: &'a Value, what: &str) -> Result<&'a Vec<Value>, String> {
    value.as_array().ok_or_else(|| format!("a {what} is a list of fields, not {value}"))
}

/// The tuple that a list spells.
pub fn tuple(value: &Value) -> Result<Tuple, String> {
    let fields: Vec<Field> = list(value, "tuple")?.iter().map(field).collect::<Result<_, _>>()?;
    Tuple::new(&fields).map_err(|error| error.to_string())
}

fn pattern(value: &Value) -> Result<Pattern, String> {
    let kind = match member(value) {
        Some(("type", Value::String(kind))) => kind.as_str(),
        _ if value.is_null() => return Ok(Pattern::Any),
        _ => return field(value).map(Pattern::Value),
    };
    Ok(Pattern::Kind(match kind {
        "string" => Kind::String,
        "bytes" => Kind::Bytes,
        "integer" => Kind::Integer,
        "float" => Kind::Float,
        "bool" => Kind::Bool,
        other => {
            return Err(format!("{other:?} is no type: string, bytes, integer, float or bool"));
        }
    }))
}

/// The template that a list spells.
pub fn template(value: &Value) -> Result<Template, String> {
    let fields = list(value, "template")?.iter().map(pattern).collect::<Result<_, _>>()?;
    Ok(Template { fields })
}

fn entry(
    value: &Value,
    lease_ms: Option<u64>,
    read: Option<Vec<String>>,
    take: Option<Vec<String>>,
) -> Result<Entry, String> {
    Ok(Entry { tuple: tuple(value)?, lease_ms, read: access(read)?, take: access(take)? })
}

impl Created {
    fn operation(self) -> Result<(String, Operation), String> {
        let usual = SpaceOptions::default();
        let options = SpaceOptions {
            index_fields: self.index_fields.unwrap_or(usual.index_fields),
            insert: access(self.insert)?,
            read: access(self.read)?,
            take: access(self.take)?,
            manage: access(self.manage.or(Some(Vec::new())))?,
        };
        Ok((self.space, Operation::Create(options)))
    }
}

impl Conditional {
    fn parts(self) -> Result<(String, Template, Entry), String> {
        let entry = entry(&self.tuple, self.lease_ms, self.read, self.take)?;
        Ok((self.space, template(&self.template)?, entry))
    }
}

impl Request {
    fn operation(self) -> Result<(String, Operation), String> {
        Ok(match self {
            Request::List { .. } => return Err("it is of no space".to_owned()),
            Request::Create(created) => created.operation()?,
            Request::Delete { space } => (space, Operation::Delete),
            Request::Show { space } => (space, Operation::Describe),
            Request::Out(Inserted { space, tuple, lease_ms, read, take }) => {
                (space, Operation::Out(entry(&tuple, lease_ms, read, take)?))
            }
            Request::OutAll { space, tuples, lease_ms } => {
                let entries = tuples.iter().map(|value| entry(value, lease_ms, None, None));
                (space, Operation::OutAll(entries.collect::<Result<_, _>>()?))
            }
            Request::Rdp { space, template: value } => (space, Operation::Rdp(template(&value)?)),
            Request::Inp { space, template: value } => (space, Operation::Inp(template(&value)?)),
            Request::Rd { space, template: value, wait_ms } => {
                (space, Operation::Rd { template: template(&value)?, wait_ms })
            }
            Request::In { space, template: value, wait_ms } => {
                (space, Operation::In { template: template(&value)?, wait_ms })
            }
            Request::RdAll { space, template: value, after, limit } => {
                let (after, limit) = (after.unwrap_or(0), limit.unwrap_or(LIMIT));
                (space, Operation::RdAll { template: template(&value)?, after, limit })
            }
            Request::InAll { space, template: value, limit } => {
                let limit = limit.unwrap_or(LIMIT);
                (space, Operation::InAll { template: template(&value)?, limit })
            }
            Request::Cas(conditional) => {
                let (space, template, entry) = conditional.parts()?;
                (space, Operation::Cas { template, entry })
            }
            Request::Replace(conditional) => {
                let (space, template, entry) = conditional.parts()?;
                (space, Operation::Replace { template, entry })
            }
            Request::Renew(Renewed { space, number, lease_ms }) => {
                (space, Operation::Renew { number, lease_ms })
            }
            Request::Claim(claim) => {
                let Claimed { space, key, tuple, lease_ms, wait_ms, read, take } = claim;
                let entry = entry(&tuple, lease_ms, read, take)?;
                let (key, wait_ms) = (key.unwrap_or(1), wait_ms.unwrap_or(0));
                (space, Operation::Claim { key, entry, wait_ms })
            }
            Request::Lease { space, template: value, lease_ms, wait_ms } => {
                let (template, wait_ms) = (template(&value)?, wait_ms.unwrap_or(0));
                (space, Operation::Lease { template, lease_ms, wait_ms })
            }
            Request::Done { space, number, token } => (space, Operation::Finish { number, token }),
            Request::Return { space, number, token } => {
                (space, Operation::Return { number, token })
            }
            Request::Extend { space, number, token, lease_ms } => {
                (space, Operation::Extend { number, token, lease_ms })
            }
            Request::Add { space, fields, amount } => {
                (space, Operation::Add { fields: tuple(&fields)?, amount })
            }
            Request::Waits { space, after, limit } => {
                let (after, limit) = (after.unwrap_or(0), limit.unwrap_or(LIMIT));
                (space, Operation::Waits { after, limit })
            }
            Request::EndWait { space, client: key, session, number } => {
                let session = SessionId { client: client(&key)?, nonce: session };
                (space, Operation::EndWait { session, number })
            }
            Request::Break { space, number } => (space, Operation::Break { number }),
        })
    }
}

/// The operation in `value`, an object with `op` and its fields, within the limits.
pub fn command(value: Value) -> Result<TupleCommand, String> {
    let request: Request = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let command = match request {
        Request::List { after, limit } => {
            TupleCommand::Spaces { after: after.unwrap_or_default(), limit: limit.unwrap_or(LIMIT) }
        }
        of_space => {
            let (space, operation) = of_space.operation()?;
            TupleCommand::On { space, operation }
        }
    };
    command.validate().map_err(|error| error.to_string())?;
    Ok(command)
}

/// The id and the operation in a line of `perdura space batch`; or the id, if one is there, and
/// what is wrong.
pub fn from_line(line: &[u8]) -> Result<(Value, TupleCommand), (Value, String)> {
    let none = |error: String| (Value::Null, error);
    let value = crate::json::read(line).map_err(none)?;
    let Value::Object(mut fields) = value else {
        return Err(none("it is no JSON object".to_owned()));
    };
    let id = fields.remove("id").unwrap_or(Value::Null);
    match command(Value::Object(fields)) {
        Ok(command) => Ok((id, command)),
        Err(error) => Err((id, error)),
    }
}

fn shown_field(field: Field) -> Value {
    match field {
        Field::String(text) => Value::from(text),
        Field::Bytes(bytes) => json!({"b64": to_base64(&bytes)}),
        Field::Integer(value) => Value::from(value),
        Field::Float(value) if value.get().is_finite() => Value::from(value.get()),
        Field::Float(value) => json!({"float": if value.get() > 0.0 { "inf" } else { "-inf" }}),
        Field::Bool(value) => Value::from(value),
    }
}

/// A tuple as a list.
pub fn shown(tuple: &Tuple) -> Value {
    Value::Array(tuple.fields().map(shown_field).collect())
}

fn found(found: &Found) -> Value {
    let expires = found.expires.map(|time| time.0);
    json!({"number": found.number, "expires_ms": expires, "tuple": shown(&found.tuple)})
}

fn shown_access(access: &Access) -> Value {
    match access {
        Access::Anyone => Value::Null,
        Access::Only(keys) => keys.iter().map(ToString::to_string).collect(),
    }
}

fn described(space: &SpaceDescription) -> Value {
    let SpaceOptions { index_fields, insert, read, take, manage } = &space.options;
    json!({
        "index_fields": index_fields,
        "insert": shown_access(insert),
        "read": shown_access(read),
        "take": shown_access(take),
        "manage": shown_access(manage),
        "creator": space.creator.to_string(),
        "tuples": space.tuples,
        "waiters": space.waiters,
        "deleting": space.deleting,
    })
}

/// The result in a reply, as in an answer's `result`.
pub fn result(reply: &TupleReply) -> Value {
    match reply {
        TupleReply::Created => json!({}),
        TupleReply::Deleted { remaining } => json!({"remaining": remaining}),
        TupleReply::Spaces { names, more } => json!({"spaces": names, "more": more}),
        TupleReply::Described(space) => described(space),
        TupleReply::Inserted { number } => json!({"number": number}),
        TupleReply::InsertedAll { first, count } => json!({"first": first, "count": count}),
        TupleReply::Found(one) => json!({"found": one.as_ref().map(found)}),
        TupleReply::FoundAll { tuples, more } => {
            let tuples: Vec<Value> = tuples.iter().map(found).collect();
            json!({"tuples": tuples, "more": more})
        }
        TupleReply::Replaced { old, number } => json!({"found": found(old), "number": number}),
        TupleReply::Renewed { renewed, expires } => {
            json!({"renewed": renewed, "expires_ms": expires.map(|time| time.0)})
        }
        TupleReply::Leased(one) => json!({"leased": one.as_ref().map(leased)}),
        TupleReply::Holding { held, until } => {
            json!({"held": held, "until_ms": until.map(|time| time.0)})
        }
        TupleReply::Added { number, value } => json!({"number": number, "value": value}),
        TupleReply::Waits { waits, more } => {
            json!({"waits": waits.iter().map(waiting).collect::<Vec<Value>>(), "more": more})
        }
        TupleReply::WaitEnded { ended } => json!({"ended": ended}),
        TupleReply::Broken(broken) => json!({"broken": match broken {
            Broken::Absent => "absent",
            Broken::Removed => "removed",
            Broken::Returned => "returned",
        }}),
    }
}

fn leased(leased: &Leased) -> Value {
    json!({
        "number": leased.number,
        "token": leased.token,
        "before": leased.before,
        "until_ms": leased.until.map(|time| time.0),
        "tuple": shown(&leased.tuple),
    })
}

/// A command that waits.
pub fn waiting(waiting: &Waiting) -> Value {
    let purpose = match waiting.purpose {
        Purpose::Read => "read",
        Purpose::Take => "take",
        Purpose::Lease => "lease",
        Purpose::Claim => "claim",
    };
    json!({
        "place": waiting.place,
        "client": waiting.session.client.to_string(),
        "session": waiting.session.nonce,
        "number": waiting.number,
        "purpose": purpose,
        "template": waiting.template.fields.iter().map(shown_pattern).collect::<Value>(),
        "deadline_ms": waiting.deadline.0,
    })
}

fn shown_pattern(pattern: &Pattern) -> Value {
    match pattern {
        Pattern::Any => Value::Null,
        Pattern::Kind(Kind::String) => json!({"type": "string"}),
        Pattern::Kind(Kind::Bytes) => json!({"type": "bytes"}),
        Pattern::Kind(Kind::Integer) => json!({"type": "integer"}),
        Pattern::Kind(Kind::Float) => json!({"type": "float"}),
        Pattern::Kind(Kind::Bool) => json!({"type": "bool"}),
        Pattern::Value(value) => shown_field(value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn tuples_go_both_ways() {
        let text = r#"["a",-7,9223372036854775807,1.5,2.0,1e300,true,{"b64":"/w=="},{"float":"-inf"},{"float":"inf"}]"#;
        let parsed = tuple(&of(text)).unwrap();
        assert_eq!(shown(&parsed), of(text));
        let kinds: Vec<Kind> = parsed.fields().map(|field| field.kind()).collect();
        assert_eq!(kinds[2..6], [Kind::Integer, Kind::Float, Kind::Float, Kind::Float]);
        assert_eq!(shown(&tuple(&of("[-0.0]")).unwrap()), of("[0.0]"));
    }

    #[test]
    fn what_is_no_tuple_or_template_is_refused() {
        for bad in [
            "7",
            "[]",
            "[null]",
            "[[1]]",
            "[{}]",
            r#"[{"b64":"?"}]"#,
            r#"[{"float":"nan"}]"#,
            r#"[{"b64":"","float":"inf"}]"#,
            "[9223372036854775808]",
        ] {
            assert!(tuple(&of(bad)).is_err(), "{bad}");
        }
        for bad in ["7", r#"[{"type":"number"}]"#, r#"[{"type":7}]"#, r#"[[null]]"#] {
            assert!(template(&of(bad)).is_err(), "{bad}");
        }
        let any = template(&of(r#"[null,{"type":"bytes"},"x"]"#)).unwrap();
        let expected = [Pattern::Any, Pattern::Kind(Kind::Bytes), Pattern::Value("x".into())];
        assert_eq!(any.fields, expected);
    }

    #[test]
    fn lines_are_commands_or_say_why_not() {
        let line = |text: &str| from_line(text.as_bytes());
        let (id, command) =
            line(r#"{"id":[1],"op":"out","space":"s","tuple":["a"],"lease_ms":5}"#).unwrap();
        assert_eq!(id, of("[1]"));
        let entry = Entry::new(tuple(&of(r#"["a"]"#)).unwrap()).with_lease(5);
        let out = TupleCommand::On { space: "s".into(), operation: Operation::Out(entry) };
        assert_eq!(command, out);
        for (bad, named) in [
            ("[", "EOF"),
            ("7", "no JSON object"),
            (r#"{"op":"rdp","space":"s"}"#, "template"),
            (r#"{"op":"rdp","space":"s","template":[1],"x":1}"#, "unknown field"),
            (r#"{"op":"nonsense"}"#, "nonsense"),
            (r#"{"op":"rdp","space":"","template":[1]}"#, "a space's name"),
            (r#"{"op":"in","space":"s","template":[1],"wait_ms":0}"#, "a wait has"),
            (r#"{"op":"create","space":"s","read":["zz"]}"#, "no public key"),
            (r#"{"op":"claim","space":"s","tuple":[1],"key":2}"#, "the key of a claim"),
            (r#"{"op":"lease","space":"s","template":[1],"lease_ms":0}"#, "a lease has"),
            (r#"{"op":"add","space":"s","fields":[1],"amount":1.5}"#, "expected i64"),
            (r#"{"op":"endwait","space":"s","client":"zz","session":1,"number":1}"#, "no public"),
        ] {
            let (_, error) = line(bad).unwrap_err();
            assert!(error.contains(named), "{bad}: {error}");
        }
    }
}
