//! Whether what a state holds comes back from its bytes as it is: what a test asks of a service, since replicas would panic at it, or differ.

use crate::key::Key;
use crate::parts::encoded;
use crate::scratch::lend;
use crate::wire::{append, whole};
use perdura_store::SegmentMap;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::type_name;

/// What does not, and its type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unfaithful {
    /// It cannot be read.
    Unreadable(String),
    /// Read and written again it has other bytes.
    Changed(String),
    /// A key is not above the one whose bytes are below its own, or begins with these.
    Disordered(String),
}

/// Of a part that is no map.
pub(crate) fn of_value<T: Serialize + DeserializeOwned>(value: &T) -> Result<(), Unfaithful> {
    encoded(value, |bytes| comes_back::<T>("a part of the state", bytes))
}

/// Of all that is in a map.
pub(crate) fn of_map<K: Key, V: Serialize + DeserializeOwned>(
    map: &SegmentMap,
) -> Result<(), Unfaithful> {
    let mut before: Option<(K, &[u8])> = None;
    for (key, value) in map.range(b"", None) {
        comes_back::<V>("a value of a map", value)?;
        let mut rest = key;
        let found = K::decode_key(&mut rest).filter(|_| rest.is_empty());
        let found = found.ok_or_else(|| Unfaithful::Unreadable(what::<K>("a key of a map")))?;
        let is_same = lend(|bytes| {
            found.encode_key(bytes);
            bytes == key
        });
        if !is_same {
            return Err(Unfaithful::Changed(what::<K>("a key of a map")));
        }
        if before.is_some_and(|(other, bytes)| other >= found || key.starts_with(bytes)) {
            return Err(Unfaithful::Disordered(what::<K>("keys of a map")));
        }
        before = Some((found, key));
    }
    Ok(())
}

fn comes_back<T: Serialize + DeserializeOwned>(of: &str, bytes: &[u8]) -> Result<(), Unfaithful> {
    let value: T = whole(bytes).ok_or_else(|| Unfaithful::Unreadable(what::<T>(of)))?;
    let is_same = lend(|again| append(&value, again).is_ok() && again == bytes);
    if is_same { Ok(()) } else { Err(Unfaithful::Changed(what::<T>(of))) }
}

fn what<T>(of: &str) -> String {
    format!("{of}, of type `{}`,", type_name::<T>())
}
