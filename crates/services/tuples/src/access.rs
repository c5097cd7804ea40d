//! Who may do something: everybody, or the clients with certain keys.

use crate::command::CommandError;
use crate::field::take_array;
use crate::limits;
use perdura_protocol::codec::encode_list;
use perdura_protocol::{Decode, DecodeError, Encode, PublicKey, Reader};

/// Clients, by their keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Every registered client.
    #[default]
    Anyone,
    /// Clients with these keys, ascending, each once, at most [`limits::ACCESS_KEYS`]. Nobody, if
    /// there are none.
    Only(Vec<PublicKey>),
}

impl Access {
    /// The clients with these keys, in any order.
    #[must_use]
    pub fn only(mut keys: Vec<PublicKey>) -> Access {
        keys.sort_unstable();
        keys.dedup();
        Access::Only(keys)
    }

    /// Whether the client with this key is among them.
    #[must_use]
    pub fn admits(&self, client: PublicKey) -> bool {
        match self {
            Access::Anyone => true,
            Access::Only(keys) => keys.binary_search(&client).is_ok(),
        }
    }

    pub(crate) fn validate(&self) -> Result<(), CommandError> {
        let Access::Only(keys) = self else { return Ok(()) };
        if keys.len() > limits::ACCESS_KEYS {
            return Err(CommandError::AccessKeys(keys.len()));
        }
        if keys.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(CommandError::AccessOrder);
        }
        Ok(())
    }

    /// Bytes of the encoding.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Access::Anyone => 1,
            Access::Only(keys) => 5 + 32 * keys.len(),
        }
    }
}

impl Encode for Access {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Access::Anyone => out.push(0),
            Access::Only(keys) => {
                out.push(1);
                encode_list(keys, out);
            }
        }
    }
}

impl Decode for Access {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let access = match u8::decode(reader)? {
            0 => Access::Anyone,
            1 => Access::Only(reader.list("keys of an access list", limits::ACCESS_KEYS, 32)?),
            tag => return Err(DecodeError::UnknownTag(tag)),
        };
        access.validate().map_err(|_| DecodeError::NotCanonical("keys of an access list"))?;
        Ok(access)
    }
}

/// An access list where it is encoded, which was checked before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AccessRef<'a> {
    Anyone,
    Only(&'a [u8]),
}

impl<'a> AccessRef<'a> {
    /// Takes an access list off `input`.
    pub(crate) fn read(input: &mut &'a [u8]) -> Result<AccessRef<'a>, DecodeError> {
        match take_array(input)? {
            [0] => Ok(AccessRef::Anyone),
            [1] => {
                let length = u32::from_le_bytes(take_array(input)?) as usize * 32;
                let (keys, rest) = input.split_at_checked(length).ok_or(DecodeError::Truncated)?;
                *input = rest;
                Ok(AccessRef::Only(keys))
            }
            [tag] => Err(DecodeError::UnknownTag(tag)),
        }
    }

    pub(crate) fn admits(self, client: PublicKey) -> bool {
        match self {
            AccessRef::Anyone => true,
            AccessRef::Only(keys) => keys.chunks_exact(32).any(|key| *key == client.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> PublicKey {
        PublicKey([byte; 32])
    }

    #[test]
    fn lists_are_ordered_and_say_the_same_encoded() {
        let list = Access::only(vec![key(5), key(1), key(5), key(3)]);
        assert_eq!(list, Access::Only(vec![key(1), key(3), key(5)]));
        assert_eq!(list.validate(), Ok(()));
        for access in [Access::Anyone, list, Access::Only(vec![])] {
            let bytes = access.to_bytes();
            assert_eq!(bytes.len(), access.bytes());
            let mut rest = &bytes[..];
            let encoded = AccessRef::read(&mut rest).unwrap();
            assert!(rest.is_empty());
            for client in 0..7 {
                assert_eq!(encoded.admits(key(client)), access.admits(key(client)));
            }
            assert_eq!(Access::from_bytes(bytes), Ok(access));
        }
    }

    #[test]
    fn a_list_out_of_order_or_too_long_is_refused() {
        for keys in [vec![key(2), key(1)], vec![key(1), key(1)]] {
            assert_eq!(Access::Only(keys.clone()).validate(), Err(CommandError::AccessOrder));
            assert!(Access::from_bytes(Access::Only(keys).to_bytes()).is_err());
        }
        let many: Vec<PublicKey> = (0..65).map(key).collect();
        assert!(Access::only(many[1..].to_vec()).validate().is_ok());
        assert_eq!(Access::only(many).validate(), Err(CommandError::AccessKeys(65)));
    }
}
