//! Names of replicas become addresses on threads of their own: a resolver that hangs for one name
//! holds up neither the event loop nor the other names.

use crate::tcp;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How a name is looked up.
type Lookup = fn(&str) -> io::Result<Vec<SocketAddr>>;

/// What is known about a name.
#[derive(Debug, Default)]
struct Name {
    /// The last answer that had any; it stays while nothing better is known.
    addresses: Vec<SocketAddr>,
    /// The one before: some servers answer with a part of a name's addresses, another one each time.
    former: Vec<SocketAddr>,
    /// Why the last look-up failed, if it did.
    failure: Option<String>,
    /// How often it was asked for, and how many of these were answered: a thread is at it while they differ.
    asked: u64,
    answered: u64,
    /// When it was asked for last.
    since: Option<Instant>,
}

/// The names of a group's replicas, so there are few, and one thread for each at most.
#[derive(Debug)]
pub(super) struct NameResolver {
    lookup: Lookup,
    names: Arc<Mutex<BTreeMap<String, Name>>>,
}

impl NameResolver {
    pub(super) fn new() -> NameResolver {
        NameResolver::with(tcp::addresses)
    }

    fn with(lookup: Lookup) -> NameResolver {
        NameResolver { lookup, names: Arc::default() }
    }

    /// Looks it up anew, unless that is under way: what [`NameResolver::has_answered`] is asked. None if it is numeric, or no thread is to be had.
    pub(super) fn look(&self, host_port: &str) -> Option<u64> {
        if host_port.parse::<SocketAddr>().is_ok() {
            return None;
        }
        let mut names = self.names();
        let name = names.entry(host_port.to_owned()).or_default();
        if name.asked == name.answered {
            self.look_up(host_port).ok()?;
            name.asked += 1;
            name.since = Some(Instant::now());
        }
        Some(name.asked)
    }

    /// Whether there is an answer to that question, or none is to come.
    pub(super) fn has_answered(&self, host_port: &str, question: u64) -> bool {
        self.names().get(host_port).is_none_or(|name| name.answered >= question)
    }

    /// Whether the name has other addresses by now: two answers in a row were without this one.
    pub(super) fn has_left(&self, host_port: &str, address: SocketAddr) -> bool {
        let lacks = |known: &[SocketAddr]| !known.is_empty() && !known.contains(&address);
        self.names()
            .get(host_port)
            .is_some_and(|name| lacks(&name.addresses) && lacks(&name.former))
    }

    /// Whether the system has been asked for it for longer than that, and does not answer.
    pub(super) fn is_silent(&self, host_port: &str, than: Duration) -> bool {
        let names = self.names();
        let waiting = names.get(host_port).filter(|name| name.asked > name.answered);
        waiting.and_then(|name| name.since).is_some_and(|since| since.elapsed() > than)
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<String, Name>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of the addresses of `host_port`, the `attempt`-th modulo their number, as they were when
    /// the name was looked up last; one that never was is. Numeric ones cost nothing.
    pub(super) fn address(&self, host_port: &str, attempt: usize) -> io::Result<SocketAddr> {
        if let Ok(address) = host_port.parse::<SocketAddr>() {
            return Ok(address);
        }
        let mut names = self.names();
        let name = names.entry(host_port.to_owned()).or_default();
        if name.asked == 0 {
            self.look_up(host_port)?;
            name.asked = 1;
            name.since = Some(Instant::now());
        }
        if name.addresses.is_empty() {
            let why = name.failure.clone().unwrap_or_else(|| "the name is being looked up".into());
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        Ok(name.addresses[attempt % name.addresses.len()])
    }

    /// All addresses of `host_port`, as far as they are known by now; and looks it up anew.
    pub(super) fn addresses(&self, host_port: &str) -> Vec<SocketAddr> {
        self.look(host_port);
        match self.address(host_port, 0) {
            Ok(first) => {
                let names = self.names();
                names.get(host_port).map_or_else(|| vec![first], |name| name.addresses.clone())
            }
            Err(_) => Vec::new(),
        }
    }

    fn look_up(&self, host_port: &str) -> io::Result<()> {
        let (lookup, names, asked) = (self.lookup, Arc::clone(&self.names), host_port.to_owned());
        let work = move || {
            let found = lookup(&asked);
            let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
            let name = names.entry(asked).or_default();
            name.answered += 1;
            match found {
                Ok(addresses) => {
                    name.former = std::mem::replace(&mut name.addresses, addresses);
                    name.failure = None;
                }
                Err(error) => name.failure = Some(error.to_string()),
            }
        };
        std::thread::Builder::new().name("resolver".into()).spawn(work).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn until<T>(mut ready: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(value) = ready() {
                return value;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_name_for_which_the_resolver_hangs_holds_up_nobody() {
        let lookup: Lookup = |name| match name {
            "hangs:1" => loop {
                std::thread::park();
            },
            "none:1" => Err(io::Error::other("no such name")),
            _ => Ok(vec![([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 1).into()]),
        };
        let resolver = NameResolver::with(lookup);
        assert_eq!(resolver.address("10.0.0.7:5", 0).unwrap(), ([10, 0, 0, 7], 5).into());
        for _ in 0..10 {
            let told = resolver.address("hangs:1", 0).unwrap_err().to_string();
            assert!(told.contains("looked up"), "{told}");
        }
        assert!(!resolver.is_silent("hangs:1", Duration::from_secs(3_600)));
        until(|| resolver.is_silent("hangs:1", Duration::ZERO).then_some(()));
        let first = until(|| resolver.address("two:1", 2).ok());
        assert!(!resolver.is_silent("two:1", Duration::ZERO));
        assert_eq!(first, ([10, 0, 0, 1], 1).into());
        assert_eq!(resolver.address("two:1", 3).unwrap(), ([10, 0, 0, 2], 1).into());
        until(|| {
            let told = resolver.address("none:1", 0).unwrap_err().to_string();
            told.contains("no such name").then_some(())
        });
    }

    #[test]
    fn a_name_that_moved_is_known_to_have_left_its_address() {
        static MOVED: AtomicBool = AtomicBool::new(false);
        let lookup: Lookup = |_| {
            let host = if MOVED.load(Ordering::SeqCst) { 2 } else { 1 };
            Ok(vec![([10, 0, 0, host], 1).into()])
        };
        let resolver = NameResolver::with(lookup);
        assert_eq!(resolver.look("10.0.0.7:5"), None);
        let ask = || {
            let question = resolver.look("moves:1").unwrap();
            until(|| resolver.has_answered("moves:1", question).then_some(()));
            resolver.address("moves:1", 0).unwrap()
        };
        let before = ask();
        assert!(!resolver.has_left("moves:1", before));
        MOVED.store(true, Ordering::SeqCst);
        assert!(!resolver.has_left("moves:1", before), "nobody has asked since");
        assert_ne!(ask(), before);
        assert!(!resolver.has_left("moves:1", before), "it may have both");
        assert_ne!(ask(), before);
        assert!(resolver.has_left("moves:1", before));
    }
}
