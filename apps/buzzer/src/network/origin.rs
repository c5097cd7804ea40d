//! Where somebody is who shows a password: wrong ones are counted by that.

use super::name::Name;
use super::session::SessionKey;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Where somebody is who shows a password.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// In this network, which one address stands for.
    Network(IpAddr),
    /// In this session of the account, which lives.
    Session(SessionKey),
}

/// An origin as the store has it, for one name: 8 bytes of a hash, so that an operator who looks at what is there does not read addresses. (One who tries all
/// addresses finds out.)
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct OriginHash(String);

/// An origin, for one name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Source {
    pub hash: OriginHash,
    /// Whether whoever is there is logged in already.
    pub is_session: bool,
}

impl Origin {
    pub(super) fn of(&self, name: &Name) -> Source {
        let mut hasher = blake3::Hasher::new_derive_key("perdura buzzer 2026 origin of a password");
        hasher.update(name.as_str().as_bytes());
        // No name has these.
        match self {
            Origin::Network(IpAddr::V4(four)) => hasher.update(b"/4").update(&four.octets()),
            Origin::Network(IpAddr::V6(six)) => hasher.update(b"/6").update(&six.octets()),
            Origin::Session(key) => hasher.update(b"/s").update(&key.0),
        };
        let mut bytes = [0; 8];
        hasher.finalize_xof().fill(&mut bytes);
        let hash = OriginHash(format!("{:016x}", u64::from_be_bytes(bytes)));
        Source { hash, is_session: matches!(self, Origin::Session(_)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_of_a_name_are_told_apart() {
        let [amy, bob] = ["amy", "bob"].map(|name| Name::new(name).unwrap());
        let network = |address: &str| Origin::Network(address.parse().unwrap());
        let all = [
            network("10.0.0.1").of(&amy),
            network("10.0.0.2").of(&amy),
            network("::a00:1").of(&amy),
            Origin::Session(SessionKey([7; 32])).of(&amy),
            network("10.0.0.1").of(&bob),
        ];
        for (index, one) in all.iter().enumerate() {
            assert_eq!(one.hash.0.len(), 16);
            assert_eq!(one.is_session, index == 3);
            assert!(all[..index].iter().all(|other| other.hash != one.hash));
        }
        // It is in the store.
        assert_eq!(all[0], network("10.0.0.1").of(&amy));
    }
}
