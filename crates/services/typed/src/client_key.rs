//! Whose command it is, as services keep it.

use crate::key::Key;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The public key of a client, 32 bytes; shown as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientKey(pub [u8; 32]);

impl fmt::Display for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientKey({self})")
    }
}

impl Key for ClientKey {
    fn encode_key(&self, out: &mut Vec<u8>) {
        self.0.encode_key(out);
    }

    fn decode_key(bytes: &mut &[u8]) -> Option<ClientKey> {
        <[u8; 32]>::decode_key(bytes).map(ClientKey)
    }
}
