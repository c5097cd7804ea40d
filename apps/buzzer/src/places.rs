//! Room for so many at a time, of which no one network takes all.

use crate::web::network_of;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// While more than half of all places are taken, nobody gets one who has this part of them.
const SHARES: usize = 8;

/// Places, by networks: addresses of IPv4, and networks of IPv6 (/64).
#[derive(Debug)]
pub(crate) struct Places {
    all: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by: HashMap<IpAddr, usize>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    of: Arc<Places>,
    who: IpAddr,
}

/// Why there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoPlace {
    /// All are taken.
    Full,
    /// Whoever asks has his share of them.
    Share,
}

impl Places {
    /// So many.
    pub(crate) fn new(all: usize) -> Arc<Places> {
        Arc::new(Places { all, taken: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One for this address, if there is one.
    pub(crate) fn take(self: &Arc<Places>, address: IpAddr) -> Result<Place, NoPlace> {
        let who = network_of(address);
        let mut taken = self.lock();
        let own = taken.by.get(&who).copied().unwrap_or(0);
        if own >= self.all.div_ceil(SHARES) && taken.all >= self.all / 2 {
            return Err(NoPlace::Share);
        }
        if taken.all >= self.all {
            return Err(NoPlace::Full);
        }
        taken.all += 1;
        taken.by.insert(who, own + 1);
        Ok(Place { of: Arc::clone(self), who })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.of.lock();
        taken.all -= 1;
        if let Some(own) = taken.by.get_mut(&self.who) {
            *own -= 1;
            if *own == 0 {
                taken.by.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(places: &Arc<Places>, address: &str) -> Vec<Place> {
        let address = address.parse().unwrap();
        std::iter::from_fn(|| places.take(address).ok()).collect()
    }

    #[test]
    fn one_network_leaves_half_to_others() {
        let places = Places::new(80);
        let first = fill(&places, "10.0.0.1");
        assert_eq!(first.len(), 40);
        let others: Vec<_> =
            (2..6).map(|index| fill(&places, &format!("10.0.0.{index}"))).collect();
        assert!(others.iter().all(|held| held.len() == 10));
        assert_eq!(places.take("10.0.0.6".parse().unwrap()).unwrap_err(), NoPlace::Full);
        drop(first);
        assert_eq!(fill(&places, "10.0.0.1").len(), 10);
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one() {
        let places = Places::new(16);
        let held = fill(&places, "2001:db8::1");
        assert_eq!(held.len(), 8);
        assert_eq!(places.take("2001:db8::2".parse().unwrap()).unwrap_err(), NoPlace::Share);
        assert!(places.take("2001:db8:0:1::2".parse().unwrap()).is_ok());
    }

    #[test]
    fn nothing_is_remembered_of_who_left() {
        let places = Places::new(16);
        drop(fill(&places, "10.0.0.1"));
        let taken = places.lock();
        assert!(taken.all == 0 && taken.by.is_empty());
    }
}
