//! How often an address may try something.

use super::tries::Tries;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Counts tries of each address.
pub(crate) struct Addresses(Tries<IpAddr>);

/// The network of an address: one who has IPv6 has 2^64 addresses.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
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
        Addresses(Tries::new(most, within))
    }

    /// Counts a try; if it is one too many, for how long there are to be no more.
    pub(crate) fn count(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        self.0.count(network_of(address), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_count_network_of() {
        let addresses = Addresses::new(1, Duration::from_secs(60));
        let now = Instant::now();
        assert!(addresses.count("2001:db8::1".parse().unwrap(), now).is_ok());
        assert!(addresses.count("2001:db8::2".parse().unwrap(), now).is_err());
        assert!(addresses.count("::ffff:10.0.0.1".parse().unwrap(), now).is_ok());
        assert!(addresses.count("10.0.0.1".parse().unwrap(), now).is_err());
        assert!(addresses.count("10.0.0.2".parse().unwrap(), now).is_ok());
    }
}
