//! How often an address may try something. Kept in memory, for a bounded number of addresses: who comes from very many finds other bounds.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Addresses that are remembered. When it is full those that began to be counted first are forgotten.
const ADDRESSES: usize = 10_000;

/// Counts tries of each address.
pub(crate) struct Addresses {
    most: u32,
    within: Duration,
    seen: Mutex<HashMap<IpAddr, Seen>>,
}

struct Seen {
    since: Instant,
    tries: u32,
}

/// One who has IPv6 has 2^64 addresses.
fn together(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => {
            let [a, b, c, d, ..] = six.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        four => four,
    }
}

impl Addresses {
    /// So many tries within a time.
    pub(crate) fn new(most: u32, within: Duration) -> Addresses {
        Addresses { most, within, seen: Mutex::default() }
    }

    /// Counts a try; if it is one too many, for how long there are to be no more.
    pub(crate) fn count(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let address = together(address);
        if seen.len() >= ADDRESSES && !seen.contains_key(&address) {
            seen.retain(|_, one| now.duration_since(one.since) < self.within);
            if seen.len() >= ADDRESSES {
                let oldest = seen.iter().min_by_key(|(_, one)| one.since).map(|(at, _)| *at);
                oldest.map(|oldest| seen.remove(&oldest));
            }
        }
        let one = seen.entry(address).or_insert(Seen { since: now, tries: 0 });
        if now.duration_since(one.since) >= self.within {
            *one = Seen { since: now, tries: 0 };
        }
        if one.tries >= self.most {
            return Err(self.within.saturating_sub(now.duration_since(one.since)));
        }
        one.tries += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_counted_by_address() {
        let addresses = Addresses::new(2, Duration::from_secs(60));
        let now = Instant::now();
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        assert_eq!(addresses.count(one, now), Ok(()));
        assert_eq!(addresses.count(one, now), Ok(()));
        let later = now + Duration::from_secs(20);
        assert_eq!(addresses.count(one, later), Err(Duration::from_secs(40)));
        assert_eq!(addresses.count(other, later), Ok(()));
        assert_eq!(addresses.count(one, now + Duration::from_secs(60)), Ok(()));
    }

    #[test]
    fn addresses_of_one_network_count_together() {
        let addresses = Addresses::new(1, Duration::from_secs(60));
        let now = Instant::now();
        assert!(addresses.count("2001:db8::1".parse().unwrap(), now).is_ok());
        assert!(addresses.count("2001:db8::2".parse().unwrap(), now).is_err());
        assert!(addresses.count("::ffff:10.0.0.1".parse().unwrap(), now).is_ok());
        assert!(addresses.count("10.0.0.1".parse().unwrap(), now).is_err());
    }

    #[test]
    fn memory_is_bounded() {
        let addresses = Addresses::new(1, Duration::from_secs(60));
        let now = Instant::now();
        for index in 0..ADDRESSES as u32 + 10 {
            assert!(addresses.count(IpAddr::V4(index.into()), now).is_ok());
        }
        assert_eq!(addresses.seen.lock().unwrap().len(), ADDRESSES);
    }
}
