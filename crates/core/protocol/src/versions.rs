//! What is replicated, by name, and under which versions of its rules (docs/design.md, Versions).
//!
//! The name is a parameter of the cluster. The versions are ordered state: a cluster starts with those in its parameters, and no
//! slot is executed under two.

use crate::codec::{Decode, DecodeError, Encode, Reader, encode_bytes};
use std::borrow::Cow;
use std::fmt;

/// The newest version of the core's rules of execution that this program knows. 0: the rules and the manifest's encoding as of
/// 0.1.0. 1: the manifest and the
/// core of the state have their fields by name, which name the versions and the state's limit. 2: what the commands of a slot cost is bounded, and
/// each client key has a share of it ([`RefusalReason::PutOff`](crate::RefusalReason::PutOff)). 3: what commands cost makes a
/// checkpoint due ([`Parameters::boundary`](crate::configuration::Parameters::boundary)).
pub const RULES: u16 = 3;

/// Bytes of a service's name, at most.
const NAME_BYTES: usize = 48;

/// The name of a replicated service: 1 to 48 lower-case letters, digits, `.`, `-` and `_`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName(Cow<'static, str>);

impl ServiceName {
    /// A name that stands in the program's text.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub const fn literal(name: &'static str) -> ServiceName {
        assert!(is_name(name.as_bytes()), "the name of a service");
        ServiceName(Cow::Borrowed(name))
    }

    /// The name that `text` is; `None` if it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<ServiceName> {
        is_name(text.as_bytes()).then(|| ServiceName(Cow::Owned(text.to_owned())))
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

const fn is_name(bytes: &[u8]) -> bool {
    let mut at = 0;
    while at < bytes.len() {
        if !matches!(bytes[at], b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_') {
            return false;
        }
        at += 1;
    }
    at > 0 && at <= NAME_BYTES
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Encode for ServiceName {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_bytes(self.0.as_bytes(), out);
    }
}

impl Decode for ServiceName {
    fn decode(reader: &mut Reader) -> Result<ServiceName, DecodeError> {
        let bytes = reader.bytes("name of a service", NAME_BYTES)?;
        let text = str::from_utf8(&bytes).ok().and_then(ServiceName::parse);
        text.ok_or(DecodeError::NotCanonical("name of a service"))
    }
}

/// The versions under which slots are executed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Versions {
    /// Of the core's rules, 0 to [`RULES`].
    pub rules: u16,
    /// Of the service, from 1.
    pub service: u16,
}

impl Versions {
    /// Those of 0.1.0.
    pub const FIRST: Versions = Versions { rules: 0, service: 1 };

    /// The newest rules, and the first version of a service.
    pub const NEW: Versions = Versions { rules: RULES, service: 1 };

    /// Whether a program that knows `newest`, and all before, can execute under these.
    ///
    /// # Errors
    /// [`VersionError`].
    pub fn check(self, newest: Versions) -> Result<(), VersionError> {
        let error = |what, found, newest| Err(VersionError::Newer { what, found, newest });
        match self {
            Versions { rules, .. } if rules > newest.rules => {
                error("the core", rules, newest.rules)
            }
            Versions { service, .. } if service > newest.service => {
                error("the service", service, newest.service)
            }
            // Nothing that is hashed under the first rules names the service's version.
            Versions { service, rules } if service == 0 || (rules == 0 && service != 1) => {
                Err(VersionError::Impossible { rules, service })
            }
            _ => Ok(()),
        }
    }

    /// Whether neither is lower than in `other`.
    #[must_use]
    pub fn reach(self, other: Versions) -> bool {
        self.rules >= other.rules && self.service >= other.service
    }

    /// The highest that a program which knows `self` and one that knows `other` both know.
    #[must_use]
    pub fn common(self, other: Versions) -> Versions {
        let (rules, service) = (self.rules.min(other.rules), self.service.min(other.service));
        // Under the first rules there is no other version of a service.
        Versions { rules, service: if rules == 0 { service.min(1) } else { service } }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rules {}, service {}", self.rules, self.service)
    }
}

impl Encode for Versions {
    fn encode(&self, out: &mut Vec<u8>) {
        self.rules.encode(out);
        self.service.encode(out);
    }
}

impl Decode for Versions {
    fn decode(reader: &mut Reader) -> Result<Versions, DecodeError> {
        Ok(Versions { rules: Decode::decode(reader)?, service: Decode::decode(reader)? })
    }
}

/// Why this program cannot execute under versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VersionError {
    /// A newer one can.
    #[error(
        "{what} is at version {found}, and this program knows those up to {newest}; update it first"
    )]
    Newer {
        /// Whose version it is.
        what: &'static str,
        /// The version.
        found: u16,
        /// The newest that is known.
        newest: u16,
    },
    /// None ever could.
    #[error("there is no version {service} of a service under version {rules} of the core")]
    Impossible {
        /// The core's.
        rules: u16,
        /// The service's.
        service: u16,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn a_service_has_a_name_of_few_letters() {
        let longest = "x".repeat(NAME_BYTES);
        for text in ["kv", "tuples", "a-ledger_2.0", &longest] {
            let name = ServiceName::parse(text).unwrap();
            assert_eq!((name.as_str(), name.to_string().as_str()), (text, text));
            assert_eq!(ServiceName::from_bytes(name.to_bytes()), Ok(name));
        }
        for text in ["", "KV", "a b", "näme", &"x".repeat(NAME_BYTES + 1)] {
            assert_eq!(ServiceName::parse(text), None);
            let mut encoded = Vec::new();
            encode_bytes(text.as_bytes(), &mut encoded);
            assert!(ServiceName::from_bytes(Bytes::from(encoded)).is_err());
        }
    }

    #[test]
    fn newer_versions_are_refused_and_older_ones_are_not() {
        let known = Versions { rules: 3, service: 2 };
        assert_eq!(Versions::FIRST.check(known), Ok(()));
        assert_eq!(known.check(known), Ok(()));
        let error = Versions { rules: 4, service: 1 }.check(known).unwrap_err();
        assert!(error.to_string().contains("the core is at version 4"), "{error}");
        let error = Versions { rules: 3, service: 3 }.check(known).unwrap_err();
        assert!(error.to_string().contains("up to 2"), "{error}");
        for (rules, service) in [(0, 2), (1, 0), (0, 0)] {
            let error = Versions { rules, service }.check(known).unwrap_err();
            assert_eq!(error, VersionError::Impossible { rules, service });
        }
    }

    #[test]
    fn two_programs_have_their_highest_versions_in_common() {
        let of = |rules, service| Versions { rules, service };
        assert_eq!(of(3, 1).common(of(2, 4)), of(2, 1));
        assert_eq!(of(3, 5).common(of(0, 4)), Versions::FIRST);
        assert!(of(3, 1).reach(of(3, 1)) && of(3, 2).reach(of(2, 2)));
        assert!(!of(3, 1).reach(of(2, 2)) && !of(1, 2).reach(of(2, 1)));
    }
}
