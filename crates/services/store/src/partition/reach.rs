//! Whether another partition answers. Transactions that stay pending because one participant is down would lock up the others: after
//! a while nothing more is prepared that needs it, but for one transaction now and then.

use super::limits::{PROBE_MS, UNREACHABLE_MS};
use perdura_protocol::{Decode, DecodeError, Encode, Reader, Time};

/// Of one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reach {
    /// When a certificate of it came last, on the clock.
    pub heard: Time,
    /// When a transaction on it was let through last.
    pub tried: Time,
}

impl Reach {
    /// Whether a partition on which a transaction has been pending since `oldest` is taken for one that answers.
    pub(crate) fn is_hopeful(self, now: Time, oldest: Option<Time>) -> bool {
        let waited = |since: Time| now.0.saturating_sub(since.max(self.heard).0);
        oldest.is_none_or(|since| waited(since) <= UNREACHABLE_MS)
    }

    /// Whether one more is let through all the same.
    pub(crate) fn may_be_tried(self, now: Time) -> bool {
        now.0.saturating_sub(self.tried.0) >= PROBE_MS
    }
}

impl Encode for Reach {
    fn encode(&self, out: &mut Vec<u8>) {
        self.heard.encode(out);
        self.tried.encode(out);
    }
}

impl Decode for Reach {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Reach { heard: Decode::decode(reader)?, tried: Decode::decode(reader)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_heard_of_is_tried_once_in_a_while() {
        let mut reach = Reach::default();
        assert!(reach.is_hopeful(Time(90_000), None));
        assert!(reach.is_hopeful(Time(90_000), Some(Time(85_000))));
        assert!(
            !reach.is_hopeful(Time(90_001), Some(Time(85_000))) && reach.may_be_tried(Time(90_001))
        );
        reach.tried = Time(90_001);
        assert!(!reach.may_be_tried(Time(91_000)) && reach.may_be_tried(Time(91_001)));
        reach.heard = Time(90_500);
        assert!(reach.is_hopeful(Time(91_000), Some(Time(85_000))), "it answers");
    }
}
