//! Room for so many at a time, of which no one network takes all: for requests that are under way, and for connections.
//!
//! Invariants:
//! - While more than half of all places are taken, no network gets one more that has its share of them.
//! - Where there is none left, the place of one that is idle, as connections may be, is taken over: of the own network where that has its share, else of the network that
//!   has most places among those with idle ones. Of several it is that which is idle for the longest time.
//! - Nothing is remembered of a network that has no place.

use crate::web::network_of;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// While more than half of all places are taken, nobody gets one who has this part of them.
const SHARES: usize = 8;

/// Places, by networks: addresses of IPv4, and networks of IPv6 (/64). Each has its holder with it.
#[derive(Debug)]
pub(crate) struct Places<T> {
    all: usize,
    /// What a network has at least before others come first.
    share: usize,
    taken: Mutex<Taken<T>>,
}

#[derive(Debug)]
struct Taken<T> {
    next: u64,
    all: usize,
    by: HashMap<IpAddr, BTreeMap<u64, T>>,
}

/// One of them, until it is dropped, or taken over.
#[derive(Debug)]
pub(crate) struct ConnectionPermit<T> {
    of: Arc<Places<T>>,
    who: IpAddr,
    id: u64,
}

/// Why there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoPlace {
    /// All are taken.
    Full,
    /// Whoever asks has his share of them.
    Share,
}

impl<T> Taken<T> {
    fn remove(&mut self, who: IpAddr, id: u64) -> Option<T> {
        let own = self.by.get_mut(&who)?;
        let holder = own.remove(&id)?;
        self.all -= 1;
        if own.is_empty() {
            self.by.remove(&who);
        }
        Some(holder)
    }

    fn of(&self, who: IpAddr) -> usize {
        self.by.get(&who).map_or(0, BTreeMap::len)
    }

    /// Of the networks with idle holders that which has most places.
    fn most(&self, is_idle: impl Fn(&T) -> bool) -> Option<IpAddr> {
        let with_idle = self.by.iter().filter(|(_, own)| own.values().any(&is_idle));
        with_idle.max_by_key(|(_, own)| own.len()).map(|(who, _)| *who)
    }

    /// Takes its place from the holder of a network that is idle for the longest time.
    fn remove_idle(
        &mut self,
        who: IpAddr,
        idle_since: impl Fn(&T) -> Option<Instant>,
    ) -> Option<T> {
        let own = self.by.get(&who)?.iter();
        let idle = own.filter_map(|(id, holder)| Some((idle_since(holder)?, *id)));
        let (_, id) = idle.min()?;
        self.remove(who, id)
    }
}

impl<T> Places<T> {
    /// So many.
    pub(crate) fn new(all: usize) -> Arc<Places<T>> {
        Places::with_share(all, all.div_ceil(SHARES))
    }

    /// So many, all of which one network may have: that of a proxy, where many come from.
    pub(crate) fn without_shares(all: usize) -> Arc<Places<T>> {
        Places::with_share(all, usize::MAX)
    }

    fn with_share(all: usize, share: usize) -> Arc<Places<T>> {
        let taken = Taken { next: 0, all: 0, by: HashMap::new() };
        Arc::new(Places { all, share, taken: Mutex::new(taken) })
    }

    fn lock(&self) -> MutexGuard<'_, Taken<T>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One for this address, if there is one.
    pub(crate) fn take(
        self: &Arc<Places<T>>,
        address: IpAddr,
        holder: T,
    ) -> Result<ConnectionPermit<T>, NoPlace> {
        self.take_over(address, holder, |_| None).map(|(place, _)| place)
    }

    /// One for this address, also where that is another's who is idle, and who has none then.
    pub(crate) fn take_over(
        self: &Arc<Places<T>>,
        address: IpAddr,
        holder: T,
        idle_since: impl Fn(&T) -> Option<Instant>,
    ) -> Result<(ConnectionPermit<T>, Option<T>), NoPlace> {
        let who = network_of(address);
        let mut taken = self.lock();
        let (whose, none) = if taken.of(who) >= self.share && taken.all >= self.all / 2 {
            (Some(who), NoPlace::Share)
        } else if taken.all >= self.all {
            (taken.most(|holder| idle_since(holder).is_some()), NoPlace::Full)
        } else {
            return Ok((self.give(&mut taken, who, holder), None));
        };
        let former = whose.and_then(|whose| taken.remove_idle(whose, idle_since)).ok_or(none)?;
        Ok((self.give(&mut taken, who, holder), Some(former)))
    }

    fn give(
        self: &Arc<Places<T>>,
        taken: &mut Taken<T>,
        who: IpAddr,
        holder: T,
    ) -> ConnectionPermit<T> {
        let id = taken.next;
        taken.next += 1;
        taken.all += 1;
        taken.by.entry(who).or_default().insert(id, holder);
        ConnectionPermit { of: Arc::clone(self), who, id }
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.lock().all
    }
}

#[cfg(test)]
impl<T> ConnectionPermit<T> {
    /// Whether another has it by now.
    pub(crate) fn is_lost(&self) -> bool {
        !self.of.lock().by.get(&self.who).is_some_and(|own| own.contains_key(&self.id))
    }
}

impl<T> Drop for ConnectionPermit<T> {
    fn drop(&mut self) {
        self.of.lock().remove(self.who, self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    fn fill(places: &Arc<Places<()>>, address: &str) -> Vec<ConnectionPermit<()>> {
        let address = address.parse().unwrap();
        std::iter::from_fn(|| places.take(address, ()).ok()).collect()
    }

    #[test]
    fn one_network_leaves_half_to_others() {
        let places = Places::new(80);
        let first = fill(&places, "10.0.0.1");
        assert_eq!(first.len(), 40);
        let others: Vec<_> =
            (2..6).map(|index| fill(&places, &format!("10.0.0.{index}"))).collect();
        assert!(others.iter().all(|held| held.len() == 10));
        let late = places.take("10.0.0.6".parse().unwrap(), ());
        assert_eq!(late.unwrap_err(), NoPlace::Full);
        drop(first);
        assert_eq!(fill(&places, "10.0.0.1").len(), 10);
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one() {
        let places = Places::new(16);
        let held = fill(&places, "2001:db8::1");
        assert_eq!(held.len(), 8);
        let own = places.take("2001:db8::2".parse().unwrap(), ());
        assert_eq!(own.unwrap_err(), NoPlace::Share);
        assert!(places.take("2001:db8:0:1::2".parse().unwrap(), ()).is_ok());
    }

    #[test]
    fn where_there_are_no_shares_one_network_has_all() {
        let places = Places::without_shares(16);
        let held = fill(&places, "10.0.0.1");
        assert_eq!(held.len(), 16);
        let late = places.take("10.0.0.2".parse().unwrap(), ());
        assert_eq!(late.unwrap_err(), NoPlace::Full);
    }

    #[test]
    fn nothing_is_remembered_of_who_left() {
        let places = Places::new(16);
        drop(fill(&places, "10.0.0.1"));
        let taken = places.lock();
        assert!(taken.all == 0 && taken.by.is_empty());
    }

    /// Since when one is idle.
    type Idle = Rc<Cell<Option<Instant>>>;

    struct Held {
        place: ConnectionPermit<Idle>,
        idle: Idle,
    }

    fn come(places: &Arc<Places<Idle>>, last: u8, since: Option<Instant>) -> Result<Held, NoPlace> {
        let (address, idle) = (IpAddr::from([10, 0, 0, last]), Idle::new(Cell::new(since)));
        let taken = places.take_over(address, Rc::clone(&idle), |idle| idle.get());
        taken.map(|(place, _)| Held { place, idle })
    }

    fn lost(held: &[Held]) -> Vec<usize> {
        (0..held.len()).filter(|index| held[*index].place.is_lost()).collect()
    }

    #[test]
    fn who_is_idle_for_the_longest_time_goes_first() {
        let (places, begin) = (Places::new(16), Instant::now());
        let after = |seconds| Some(begin + Duration::from_secs(seconds));
        let held: Vec<_> =
            (0..8).map(|index| come(&places, 1, after(index)).ok().unwrap()).collect();
        // The first one did something in between, and the second one does.
        held[0].idle.set(after(20));
        held[1].idle.set(None);
        let late: Vec<_> = (0..2).map(|_| come(&places, 1, after(30)).ok().unwrap()).collect();
        assert_eq!((lost(&held), lost(&late)), (vec![2, 3], vec![]));
        assert_eq!(places.taken(), 8);
        // Nobody is idle.
        held.iter().chain(&late).for_each(|one| one.idle.set(None));
        assert_eq!(come(&places, 1, None).err(), Some(NoPlace::Share));
        assert!(come(&places, 2, None).is_ok());
    }

    #[test]
    fn where_most_are_of_one_who_is_never_idle_another_one_makes_room() {
        let (places, begin) = (Places::new(16), Instant::now());
        let mut busy: Vec<_> = (0..8).map(|_| come(&places, 1, None).ok().unwrap()).collect();
        let idle: Vec<_> =
            (0..8).map(|of| come(&places, 2 + of, Some(begin)).ok().unwrap()).collect();
        let late = come(&places, 100, None);
        assert!(late.is_ok() && lost(&busy).is_empty() && lost(&idle).len() == 1);
        // Where there is a choice it is from those who have most.
        busy[3].idle.set(Some(begin));
        assert!(come(&places, 101, None).is_ok());
        assert_eq!((lost(&busy), lost(&idle).len()), (vec![3], 1));
        busy.clear();
    }
}
