//! Identifiers. Each is a newtype, so that a slot is never taken for a view.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number!(
    /// Index of a replica in its group, `0..n` with `n <= 256`.
    ReplicaId,
    u8
);
number!(
    /// Position in a group's log. The first batch has slot 1; slot 0 is the state before it.
    Slot,
    u64
);
number!(
    /// The reign of one leader; the leader of view `v` is replica `v mod n`. Views only grow.
    View,
    u64
);
number!(
    /// Milliseconds since the Unix epoch.
    Time,
    u64
);

impl Slot {
    /// The slot after this one (saturating: a peer's number never overflows ours).
    #[must_use]
    pub fn next(self) -> Slot {
        Slot(self.0.saturating_add(1))
    }

    /// The slot before this one, or slot 0.
    #[must_use]
    pub fn previous(self) -> Slot {
        Slot(self.0.saturating_sub(1))
    }

    /// The slot `count` later (saturating: a peer's number never overflows ours).
    #[must_use]
    pub fn plus(self, count: u64) -> Slot {
        Slot(self.0.saturating_add(count))
    }
}

impl View {
    /// The view after this one.
    #[must_use]
    pub fn next(self) -> View {
        View(self.0.saturating_add(1))
    }

    /// The replica that leads this view in a group of `n` replicas.
    #[must_use]
    pub fn leader(self, n: usize) -> ReplicaId {
        ReplicaId((self.0 % n as u64) as u8)
    }
}

impl ReplicaId {
    /// As an index into an array with an entry per replica.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Random identifier of a cluster, 16 bytes, made by `perdura init`. Bound by every signature.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClusterId(pub [u8; 16]);

/// A BLAKE3 hash, 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of the empty history, before slot 1.
    pub const ZERO: Digest = Digest([0; 32]);

    /// BLAKE3 of one contiguous buffer.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(*blake3::hash(bytes).as_bytes())
    }

    /// The history hash after `slot` was decided with batch `digest`, given the one before it:
    /// a chain over all decided batches.
    #[must_use]
    pub fn chain(self, slot: Slot, digest: Digest) -> Digest {
        let mut buffer = [0u8; 72];
        buffer[..32].copy_from_slice(&self.0);
        buffer[32..40].copy_from_slice(&slot.0.to_le_bytes());
        buffer[40..].copy_from_slice(&digest.0);
        Digest::of(&buffer)
    }
}

/// Lower-case hexadecimal of `bytes`.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// The `N` bytes that `text` spells in hexadecimal, or `None` if it is anything else.
#[must_use]
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0u8; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

/// A run of a replica on its data directory (docs/design.md, Boots). It is durable before the first word of that run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BootId {
    /// From 1, one more with each run; 0: none.
    pub number: u64,
    /// Random, so that two runs of one number are told apart: of a directory and its copy.
    pub nonce: [u8; 16],
}

macro_rules! hex_text {
    ($name:ident, $size:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&to_hex(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&to_hex(&self.0[..4]))
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::codec::DecodeError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                from_hex::<$size>(text).map($name).ok_or(crate::codec::DecodeError::Hexadecimal)
            }
        }
    };
}
pub(crate) use hex_text;
hex_text!(ClusterId, 16);
hex_text!(Digest, 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_goes_both_ways_and_refuses_the_rest() {
        let digest = Digest::of(b"x");
        assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
        assert!("12".parse::<Digest>().is_err());
        assert!("zz".repeat(32).parse::<Digest>().is_err());
        assert!("é".repeat(32).parse::<Digest>().is_err());
    }

    #[test]
    fn leaders_rotate() {
        assert_eq!(View(0).leader(4), ReplicaId(0));
        assert_eq!(View(7).leader(4), ReplicaId(3));
    }
}
