//! How many transactions of a client may be pending: fewer when others have to end them, more again when it ends them itself.

use super::limits::{PENDING_PER_CLIENT, REDEEMED_BY};
use perdura_protocol::{Decode, DecodeError, Encode, Reader};

/// Of one client key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cap {
    /// Pending transactions, 1 to [`PENDING_PER_CLIENT`].
    pub pending: u32,
    /// Transactions that it ended since that last changed.
    ended: u32,
}

impl Default for Cap {
    fn default() -> Cap {
        Cap { pending: PENDING_PER_CLIENT, ended: 0 }
    }
}

impl Cap {
    /// Others had to end one of its transactions.
    pub(crate) fn halved(self) -> Cap {
        Cap { pending: (self.pending / 2).max(1), ended: 0 }
    }

    /// It ended one itself.
    pub(crate) fn redeemed(self) -> Cap {
        if self.ended + 1 < REDEEMED_BY {
            return Cap { ended: self.ended + 1, ..self };
        }
        Cap { pending: (self.pending * 2).min(PENDING_PER_CLIENT), ended: 0 }
    }

    /// Whether it is what a client has of which nothing is remembered.
    pub(crate) fn is_usual(self) -> bool {
        self.pending == PENDING_PER_CLIENT
    }
}

impl Encode for Cap {
    fn encode(&self, out: &mut Vec<u8>) {
        self.pending.encode(out);
        self.ended.encode(out);
    }
}

impl Decode for Cap {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Cap { pending: Decode::decode(reader)?, ended: Decode::decode(reader)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_falls_by_halves_and_is_earned_back_by_sixteens() {
        let mut cap = Cap::default();
        for _ in 0..20 {
            cap = cap.halved();
        }
        assert_eq!(cap.pending, 1);
        for _ in 0..15 {
            cap = cap.redeemed();
        }
        assert_eq!(cap.pending, 1);
        assert_eq!(cap.redeemed().pending, 2);
        for _ in 0..1 + 16 * 9 {
            cap = cap.redeemed();
        }
        assert!(cap.is_usual());
        assert_eq!(cap.halved().redeemed().pending, PENDING_PER_CLIENT / 2);
    }
}
