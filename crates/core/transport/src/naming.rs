//! Which group a connection is for, said in its first record: a server has members of several groups behind one address.
//!
//! The name stands where TLS has the name of the server (RFC 6066, section 3). It is no secret and proves nothing: it only says whose
//! door is to be shown. Who that is proves itself by its key, as everywhere.

use perdura_protocol::{ClusterId, ids};
use rustls::pki_types::ServerName;
use rustls::server::Acceptor;

/// Before the group's id in the name.
const PREFIX: &str = "group-";

/// The name of a group's replicas.
pub(crate) fn name_of(group: ClusterId) -> Option<ServerName<'static>> {
    ServerName::try_from(format!("{PREFIX}{group}")).ok()
}

/// What a first record says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Introduction {
    /// It is for this group.
    Group(ClusterId),
    /// It is for something else, or for nothing in particular.
    Other(Option<String>),
    /// It is no beginning of a TLS handshake.
    None,
}

/// Of a whole first record.
pub(crate) fn introduction(mut record: &[u8]) -> Introduction {
    let mut acceptor = Acceptor::default();
    if acceptor.read_tls(&mut record).is_err() {
        return Introduction::None;
    }
    // One that is longer than a record is none of ours.
    let Ok(Some(accepted)) = acceptor.accept() else { return Introduction::None };
    let hello = accepted.client_hello();
    let name = hello.server_name();
    let group = name.and_then(|name| name.strip_prefix(PREFIX)).and_then(ids::from_hex);
    match group {
        Some(id) => Introduction::Group(ClusterId(id)),
        None => Introduction::Other(name.map(str::to_owned)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bounds, Hello, Identity, Link, Role};
    use perdura_protocol::{Scheme, SecretKey};

    fn first_record(named: Option<ClusterId>) -> Vec<u8> {
        let key = SecretKey::from_seed(Scheme::Ed25519, [3; 32]);
        let identity = Identity::new(&key).unwrap();
        let identity = match named {
            Some(group) => identity.naming(group),
            None => identity,
        };
        let hello = Hello::client(ClusterId([5; 16]), Role::Client);
        let mut link = Link::dial(&identity, key.public(), &hello, Bounds::CLIENT).unwrap();
        let mut record = Vec::new();
        link.write_to(&mut record).unwrap();
        record
    }

    #[test]
    fn a_first_record_names_the_group_that_its_dialler_does() {
        // An id of which all digits are decimal is no number in a name.
        for group in [ClusterId([0xab; 16]), ClusterId([0x10; 16])] {
            assert_eq!(introduction(&first_record(Some(group))), Introduction::Group(group));
        }
        assert_eq!(introduction(&first_record(None)), Introduction::Other(None));
    }

    #[test]
    fn what_is_no_whole_beginning_is_none() {
        let record = first_record(Some(ClusterId([0xab; 16])));
        for length in [0, 5, 100, record.len() - 1] {
            assert_eq!(introduction(&record[..length]), Introduction::None, "{length}");
        }
        let mut other = record;
        other[5] = 77;
        assert_eq!(introduction(&other), Introduction::None);
    }
}
