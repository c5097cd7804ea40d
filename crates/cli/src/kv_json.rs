//! The JSON of `perdura kv`: from a line to a command, from a reply to a result.
//!
//! Keys and values are strings where they are UTF-8, else `{"b64": "..."}`. A field that is not
//! known is refused, since a misspelt one would silently not count.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use perdura_store::{Operation, OperationResult, StoreCommand, Transaction};
use perdura_transactions::Outcome;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// Entries of a scan without a limit of its own.
pub const SCAN_LIMIT: u32 = 1000;

/// A key or value.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a key or value is a string, or {\"b64\": \"...\"}")]
enum Text {
    Utf8(String),
    Base64(Base64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Base64 {
    b64: String,
}

impl Text {
    fn bytes(self) -> Result<Bytes, String> {
        match self {
            Text::Utf8(text) => Ok(text.into_bytes().into()),
            Text::Base64(Base64 { b64 }) => from_base64(&b64),
        }
    }
}

/// The bytes that `text` spells in Base64.
pub fn from_base64(text: &str) -> Result<Bytes, String> {
    let decoded = STANDARD.decode(text);
    Ok(decoded.map_err(|error| format!("{text:?} is not Base64: {error}"))?.into())
}

/// Bytes in Base64.
pub fn to_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A field that has to be there, though it may be null.
fn nullable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Text>, D::Error> {
    Option::deserialize(deserializer)
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum Request {
    Put {
        key: Text,
        value: Text,
    },
    Get {
        key: Text,
    },
    Del {
        key: Text,
    },
    Scan {
        start: Option<Text>,
        end: Option<Text>,
        limit: Option<u32>,
        #[serde(default)]
        reverse: bool,
    },
    Cas {
        key: Text,
        #[serde(deserialize_with = "nullable")]
        expect: Option<Text>,
        #[serde(deserialize_with = "nullable")]
        value: Option<Text>,
    },
    Txn {
        ops: Vec<Step>,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Step {
    Cmp(Compared),
    Read(Named),
    Range(Range),
    Insert(Pair),
    Write(Written),
    Delete(Named),
}

/// A key by itself, or in an object.
#[derive(Deserialize)]
#[serde(untagged, expecting = "give a key, or {\"key\": ...}")]
enum Named {
    Field(Field),
    Key(Text),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Field {
    key: Text,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Compared {
    key: Text,
    #[serde(deserialize_with = "nullable")]
    value: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    start: Option<Text>,
    end: Option<Text>,
    limit: Option<u32>,
    #[serde(default)]
    reverse: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    key: Text,
    value: Text,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    key: Text,
    value: Text,
    #[serde(default)]
    only_if_present: bool,
}

impl Named {
    fn bytes(self) -> Result<Bytes, String> {
        match self {
            Named::Field(Field { key }) | Named::Key(key) => key.bytes(),
        }
    }
}

fn optional(text: Option<Text>) -> Result<Option<Bytes>, String> {
    text.map(Text::bytes).transpose()
}

impl Range {
    fn operation(self) -> Result<Operation, String> {
        Ok(Operation::ReadRange {
            start: optional(self.start)?.unwrap_or_default(),
            end: optional(self.end)?,
            limit: self.limit.unwrap_or(SCAN_LIMIT),
            reverse: self.reverse,
        })
    }
}

impl Step {
    fn operation(self) -> Result<Operation, String> {
        Ok(match self {
            Step::Cmp(Compared { key, value }) => {
                Operation::Cmp { key: key.bytes()?, value: optional(value)? }
            }
            Step::Read(key) => Operation::Read { key: key.bytes()? },
            Step::Range(range) => range.operation()?,
            Step::Insert(Pair { key, value }) => {
                Operation::Insert { key: key.bytes()?, value: value.bytes()? }
            }
            Step::Write(Written { key, value, only_if_present }) => {
                Operation::Write { key: key.bytes()?, value: value.bytes()?, only_if_present }
            }
            Step::Delete(key) => Operation::Delete { key: key.bytes()? },
        })
    }
}

/// What a line asks for, and so how its outcome reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperationKind {
    /// One key or a transaction: the command says which.
    Plain,
    /// A transaction of one range read.
    Scan,
    /// A transaction of a comparison and an update.
    Cas,
}

/// A command, and how to read its outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parsed {
    /// Within the store's limits.
    pub command: StoreCommand,
    /// How its outcome reads.
    pub kind: OperationKind,
}

impl Parsed {
    /// A range read.
    pub fn scan(start: Bytes, end: Option<Bytes>, limit: u32, reverse: bool) -> Parsed {
        let range = Operation::ReadRange { start, end, limit, reverse };
        Parsed { command: transaction(vec![range]), kind: OperationKind::Scan }
    }

    /// Sets `key` to `value` (none: removes it) if it has the value `expect` (none: is absent).
    pub fn cas(key: Bytes, expect: Option<Bytes>, value: Option<Bytes>) -> Parsed {
        let compare = Operation::Cmp { key: key.clone(), value: expect };
        let update = match value {
            Some(value) => Operation::Write { key, value, only_if_present: false },
            None => Operation::Delete { key },
        };
        Parsed { command: transaction(vec![compare, update]), kind: OperationKind::Cas }
    }

    /// The id and the operation in a line of `perdura kv batch`; or the id, if one is there, and what
    /// is wrong.
    pub fn from_line(line: &[u8]) -> Result<(Value, Parsed), (Value, String)> {
        let none = |error: String| (Value::Null, error);
        let value = crate::json::read(line).map_err(none)?;
        let Value::Object(mut fields) = value else {
            return Err(none("it is no JSON object".to_owned()));
        };
        let id = fields.remove("id").unwrap_or(Value::Null);
        match Parsed::from_json(Value::Object(fields)) {
            Ok(parsed) => Ok((id, parsed)),
            Err(error) => Err((id, error)),
        }
    }

    /// The operation in `value`, an object with `op` and its fields.
    pub fn from_json(value: Value) -> Result<Parsed, String> {
        let request: Request = serde_json::from_value(value).map_err(|error| error.to_string())?;
        let plain = |command| Parsed { command, kind: OperationKind::Plain };
        let parsed = match request {
            Request::Put { key, value } => {
                plain(StoreCommand::Put { key: key.bytes()?, value: value.bytes()? })
            }
            Request::Get { key } => plain(StoreCommand::Get { key: key.bytes()? }),
            Request::Del { key } => plain(StoreCommand::Delete { key: key.bytes()? }),
            Request::Scan { start, end, limit, reverse } => {
                let start = optional(start)?.unwrap_or_default();
                Parsed::scan(start, optional(end)?, limit.unwrap_or(SCAN_LIMIT), reverse)
            }
            Request::Cas { key, expect, value } => {
                Parsed::cas(key.bytes()?, optional(expect)?, optional(value)?)
            }
            Request::Txn { ops } => {
                let operations = ops.into_iter().map(Step::operation).collect::<Result<_, _>>()?;
                plain(transaction(operations))
            }
        };
        parsed.command.validate().map_err(|error| error.to_string())?;
        Ok(parsed)
    }

    /// The result of `outcome`, as in the answer's `result`; `None` if it is no outcome of such a command, or what this was done for is not known any
    /// more.
    pub fn result(&self, outcome: &Outcome) -> Option<Value> {
        let is_one = matches!(self.kind, OperationKind::Scan) || !self.is_transaction();
        match (self.kind, outcome) {
            (_, Outcome::Committed(results)) if is_one => match results.all() {
                [result] => Some(operation_result(result)),
                _ => None,
            },
            _ if is_one => None,
            (OperationKind::Cas, outcome) => Some(json!({"committed": outcome.failed().is_none()})),
            (_, Outcome::Committed(results)) => {
                let results: Vec<Value> = results.all().iter().map(operation_result).collect();
                Some(json!({"committed": true, "results": results}))
            }
            (_, Outcome::ResultsGone) => Some(json!({"committed": true, "results": null})),
            (_, Outcome::Failed { operation }) => {
                Some(json!({"committed": false, "failed": operation}))
            }
        }
    }

    fn is_transaction(&self) -> bool {
        matches!(self.command, StoreCommand::Transaction(_))
    }
}

fn transaction(operations: Vec<Operation>) -> StoreCommand {
    StoreCommand::Transaction(Transaction { operations })
}

fn operation_result(result: &OperationResult) -> Value {
    match result {
        OperationResult::Compared | OperationResult::Written => json!({}),
        OperationResult::Value(value) => json!({"value": maybe(value.as_ref())}),
        OperationResult::Deleted { existed } => json!({"deleted": existed}),
        OperationResult::Entries { entries, more } => {
            let entry =
                |(key, value): (Bytes, Bytes)| json!({"key": text(&key), "value": text(&value)});
            let entries: Vec<Value> = entries.iter().map(entry).collect();
            json!({"entries": entries, "more": more})
        }
    }
}

/// A key or value.
pub(crate) fn text(bytes: &Bytes) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => json!({"b64": to_base64(bytes)}),
    }
}

fn maybe(bytes: Option<&Bytes>) -> Value {
    bytes.map_or(Value::Null, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Parsed, String> {
        Parsed::from_json(serde_json::from_str(line).unwrap())
    }

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn operations_are_understood() {
        let put = parse(r#"{"op":"put","key":"a","value":{"b64":"/w=="}}"#).unwrap();
        let value = Bytes::from_static(&[255]);
        assert_eq!(put.command, StoreCommand::Put { key: bytes("a"), value });
        let cas = parse(r#"{"op":"cas","key":"a","expect":null,"value":"b"}"#).unwrap();
        assert_eq!(cas, Parsed::cas(bytes("a"), None, Some(bytes("b"))));
        let cas = parse(r#"{"op":"cas","key":"a","expect":"b","value":null}"#).unwrap();
        assert_eq!(cas, Parsed::cas(bytes("a"), Some(bytes("b")), None));
        let scan = parse(r#"{"op":"scan"}"#).unwrap();
        assert_eq!(scan, Parsed::scan(Bytes::new(), None, SCAN_LIMIT, false));
        let txn = parse(
            r#"{"op":"txn","ops":[{"cmp":{"key":"a","value":null}},{"read":"b"},
                {"read":{"key":"b"}},{"range":{"start":"a","end":null,"limit":3}},
                {"insert":{"key":"c","value":"1"}},{"delete":{"b64":"ZA=="}},
                {"write":{"key":"e","value":"2","only_if_present":true}}]}"#,
        );
        let StoreCommand::Transaction(txn) = txn.unwrap().command else { panic!() };
        assert_eq!(txn.operations.len(), 7);
        assert_eq!(txn.operations[5], Operation::Delete { key: bytes("d") });
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, named) in [
            ("[]", "missing field"),
            (r#"{"key":"a"}"#, "op"),
            (r#"{"op":"increment","key":"a"}"#, "increment"),
            (r#"{"op":"put","key":"a"}"#, "value"),
            (r#"{"op":"put","key":"a","value":"b","valeu":"c"}"#, "valeu"),
            (r#"{"op":"put","key":1,"value":"b"}"#, "b64"),
            (r#"{"op":"put","key":{"b64":"?"},"value":"b"}"#, "Base64"),
            (r#"{"op":"put","key":"","value":"b"}"#, "a key has 1 to"),
            (r#"{"op":"cas","key":"a","value":"b"}"#, "expect"),
            (r#"{"op":"scan","limit":0}"#, "limit"),
            (r#"{"op":"scan","limit":-1}"#, "-1"),
            (r#"{"op":"txn","ops":[{"read":"a","write":"b"}]}"#, "map"),
            (r#"{"op":"txn","ops":[{"cmp":{"key":"a"}}]}"#, "value"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(named), "{line}: {error}");
        }
    }

    #[test]
    fn results_read_as_promised() {
        let get = parse(r#"{"op":"get","key":"a"}"#).unwrap();
        let committed = |result| Outcome::Committed(vec![result].into());
        let value = |value| committed(OperationResult::Value(value));
        assert_eq!(
            get.result(&value(Some(Bytes::from_static(&[255])))),
            Some(json!({"value": {"b64": "/w=="}}))
        );
        assert_eq!(get.result(&value(None)), Some(json!({"value": null})));
        let cas = parse(r#"{"op":"cas","key":"a","expect":null,"value":"b"}"#).unwrap();
        let failed = Outcome::Failed { operation: 0 };
        assert_eq!(cas.result(&failed), Some(json!({"committed": false})));
        assert_eq!(cas.result(&Outcome::ResultsGone), Some(json!({"committed": true})));
        let txn = parse(r#"{"op":"txn","ops":[]}"#).unwrap();
        assert_eq!(txn.result(&failed), Some(json!({"committed": false, "failed": 0})));
        assert_eq!(
            txn.result(&Outcome::ResultsGone),
            Some(json!({"committed": true, "results": null}))
        );
        let scan = parse(r#"{"op":"scan"}"#).unwrap();
        let entries = [(bytes("a"), bytes("b"))].into_iter().collect();
        assert_eq!(
            scan.result(&committed(OperationResult::Entries { entries, more: true })),
            Some(json!({"entries": [{"key": "a", "value": "b"}], "more": true}))
        );
        assert_eq!([scan.result(&failed), scan.result(&Outcome::ResultsGone)], [None, None]);
    }
}
