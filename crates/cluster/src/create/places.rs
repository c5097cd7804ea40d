//! Where the replicas of a new cluster are: addresses for others, and addresses to listen on.

use crate::config::EntropyError;
use crate::config::keys::random;
use perdura_protocol::{Faults, FaultsError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, ToSocketAddrs, UdpSocket};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long hosts are looked up before their names are taken as they are.
const RESOLVING: Duration = Duration::from_secs(2);

/// First port with --hosts, where nobody can try which are free.
const BASE_PORT: u16 = 7400;

/// Where free ports are looked for: below those that the operating system gives to outgoing
/// connections, one of which could else take a replica's port while it restarts.
const FREE_PORTS: std::ops::Range<u16> = 10_000..30_000;

/// Why replicas have no places; in the words of `perdura init`, whose options the parameters are.
#[derive(Debug, thiserror::Error)]
pub enum PlacesError {
    /// Too few hosts, or too many.
    #[error("--hosts names {given} hosts, and the group has {n} replicas{}", fitting(*given))]
    Hosts {
        /// How many there are.
        given: usize,
        /// How many there have to be.
        n: usize,
    },
    /// A host is neither a name nor an IPv4 or IPv6 address, which could stand before a port.
    #[error("--hosts: {host:?} is no host name or address{}", without_port(.0), host = .0)]
    Host(String),
    /// A host is this machine, to itself and so to each of the others.
    #[error(
        "--hosts: {host:?} is {address}, which every machine takes for itself; give names or addresses under which the others find it"
    )]
    Loopback {
        /// As given.
        host: String,
        /// What it is.
        address: IpAddr,
    },
    /// The last port would be above 65535.
    #[error("--base-port {base} leaves no room for {count} ports")]
    NoRoom {
        /// The first.
        base: u16,
        /// How many there have to be.
        count: usize,
    },
    /// This machine seems to have none; name the first.
    #[error("found no {count} free ports in a row; choose some with --base-port")]
    NoFreePorts {
        /// How many were looked for.
        count: usize,
    },
    /// There is no chance to look for ports by.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
}

impl PlacesError {
    /// Whether what was asked for makes no sense, on any machine.
    #[must_use]
    pub fn is_misuse(&self) -> bool {
        match self {
            PlacesError::Hosts { .. }
            | PlacesError::Host(_)
            | PlacesError::Loopback { .. }
            | PlacesError::NoRoom { .. } => true,
            PlacesError::NoFreePorts { .. } | PlacesError::Entropy(_) => false,
        }
    }
}

/// Where a replica is, or a server.
pub struct Place {
    pub(super) address: String,
    pub(super) listen: String,
    pub(super) http: String,
    pub(super) http_listen: String,
}

impl Place {
    /// A place of one's own: `host:port` where others find the replica, where it listens for them, and where it serves
    /// its status.
    #[must_use]
    pub fn new(address: String, listen: String, http: String) -> Place {
        Place { address, listen, http_listen: http.clone(), http }
    }

    /// The place of a replica that others find at `address`, and its status at `http`, of whose own file nothing is left: on loopback
    /// as it is, else on any address of its host, as [`Place::all`] makes it. What these name there need not be an address of that host.
    #[must_use]
    pub fn found_at(address: &str, http: &str) -> Place {
        let listen = |at: &str| match at.rsplit_once(':') {
            Some((host, port)) if !is_of_one_machine(at) => {
                format!("{}:{port}", any_address(host.contains(':')))
            }
            _ => at.to_owned(),
        };
        Place {
            listen: listen(address),
            http_listen: listen(http),
            address: address.to_owned(),
            http: http.to_owned(),
        }
    }

    /// `host:port` where it listens for replicas and clients.
    #[must_use]
    pub fn listen(&self) -> &str {
        &self.listen
    }

    /// `host:port` where it serves its status.
    #[must_use]
    pub fn http_listen(&self) -> &str {
        &self.http_listen
    }

    /// Places for `n` replicas: on `hosts`, each with port `base_port` (7400) for the protocol and the next for HTTP, and two more for each
    /// further replica of one host; or without them on this machine, where replica I gets port `base_port` + 2 I, and without that free ones. With
    /// `public_http` HTTP is served to the network and not on loopback only.
    pub fn all(
        n: usize,
        hosts: &[String],
        base_port: Option<u16>,
        public_http: bool,
    ) -> Result<Vec<Place>, PlacesError> {
        if !hosts.is_empty() && hosts.len() != n {
            return Err(PlacesError::Hosts { given: hosts.len(), n });
        }
        if let Some(bad) = hosts.iter().find(|host| !is_host(host)) {
            return Err(PlacesError::Host(bad.clone()));
        }
        refuse_loopback(hosts)?;
        let base = match base_port {
            Some(base) => base,
            None if hosts.is_empty() => free_ports(2 * n)?,
            None => BASE_PORT,
        };
        // How many of its machine come before it.
        let before = |id: usize| match hosts.get(id) {
            Some(host) => hosts[..id].iter().filter(|other| *other == host).count(),
            None => id,
        };
        let most = (0..n).map(before).max().unwrap_or_default();
        if u16::try_from(2 * most + 1).ok().and_then(|more| base.checked_add(more)).is_none() {
            return Err(PlacesError::NoRoom { base, count: 2 * (most + 1) });
        }
        let port = |id| base + 2 * before(id) as u16;
        Ok((0..n).map(|id| Place::at(hosts.get(id), port(id), public_http)).collect())
    }

    fn at(host: Option<&String>, port: u16, public_http: bool) -> Place {
        let http_port = port + 1;
        let Some(host) = host else {
            let address = format!("127.0.0.1:{port}");
            return Place::new(address.clone(), address, format!("127.0.0.1:{http_port}"));
        };
        // An IPv6 address stands in brackets before a port.
        let ipv6 = host.contains(':');
        let bracketed = match ipv6 && !host.starts_with('[') {
            true => format!("[{host}]"),
            false => host.clone(),
        };
        let any = any_address(ipv6);
        let (http_host, http_any) =
            if public_http { (bracketed.as_str(), any) } else { ("127.0.0.1", "127.0.0.1") };
        Place {
            address: format!("{bracketed}:{port}"),
            listen: format!("{any}:{port}"),
            http: format!("{http_host}:{http_port}"),
            // A name may mean something else there, or nothing yet.
            http_listen: format!("{http_any}:{http_port}"),
        }
    }
}

/// Whether it is a name, an IPv4 address, or an IPv6 address with or without brackets.
fn is_host(text: &str) -> bool {
    if text.contains(':') {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        // Which interface a local one is reached by may stand behind it.
        let (address, scope) = bare.split_once('%').unwrap_or((bare, "0"));
        return address.parse::<Ipv6Addr>().is_ok() && scope.parse::<u32>().is_ok();
    }
    let name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    // To many programs what begins with a hyphen is an option.
    if text.is_empty() || text.starts_with(['-', '.']) || !text.chars().all(name) {
        return false;
    }
    // No name ends with a number.
    let last = text.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    !last.bytes().all(|byte| byte.is_ascii_digit()) || text.parse::<Ipv4Addr>().is_ok()
}

/// What to say of a host that was given with its port.
fn without_port(host: &str) -> &'static str {
    let port = host.rsplit_once(':').filter(|(host, _)| is_host(host));
    match port.is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        true => "; all have the same port, which --base-port gives",
        false => "",
    }
}

/// With which bounds a group has so many replicas, in the options of `perdura init`.
fn fitting(n: usize) -> String {
    let option = |name: &str, of: fn(u8) -> Result<Faults, FaultsError>| {
        let fits = |f: &u8| of(*f).is_ok_and(|faults| faults.n() == n);
        (1..=Faults::MAXIMUM).find(fits).map(|f| format!("--{name} {f}"))
    };
    let options = [option("byzantine", Faults::byzantine), option("crash", Faults::crash)];
    let options: Vec<String> = options.into_iter().flatten().collect();
    match options.is_empty() {
        true => String::new(),
        false => format!("; {n} hosts fit {}", options.join(" or ")),
    }
}

/// All addresses of a host, of one kind, as they stand before a port.
fn any_address(ipv6: bool) -> &'static str {
    if ipv6 { "[::]" } else { "0.0.0.0" }
}

/// Whether `host:port` is found by the machine alone on which it is. Names are not looked up: what they mean elsewhere is not known here,
/// and many a host has its own name on loopback.
#[must_use]
pub fn is_of_one_machine(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    host == "localhost" || host.parse().is_ok_and(is_loopback)
}

/// A name that means this machine here means each of the others there. Names that do not resolve here, or not soon, may resolve
/// where the replicas run.
fn refuse_loopback(hosts: &[String]) -> Result<(), PlacesError> {
    let (sender, resolved) = mpsc::channel();
    for host in hosts.iter().cloned() {
        let sender = sender.clone();
        // One that takes longer is left behind.
        std::thread::spawn(move || {
            let name = host.trim_start_matches('[').trim_end_matches(']');
            let addresses = (name, 0).to_socket_addrs().into_iter().flatten();
            let addresses: Vec<IpAddr> = addresses.map(|address| address.ip()).collect();
            let _ = sender.send((host, addresses));
        });
    }
    drop(sender);
    let deadline = Instant::now() + RESOLVING;
    let left = || deadline.saturating_duration_since(Instant::now());
    while let Ok((host, addresses)) = resolved.recv_timeout(left()) {
        let first = addresses.first().copied();
        let own = |address: &IpAddr| address.is_loopback() || address.is_unspecified();
        if let Some(address) = first
            .filter(|_| addresses.iter().map(IpAddr::to_canonical).all(|address| own(&address)))
        {
            return Err(PlacesError::Loopback { host, address });
        }
    }
    Ok(())
}

/// The UDP ports of the numbers that this process found free last: taken as long as it runs, so that no
/// other one finds them free, or tries them, before a replica of this one listens there.
static RESERVED: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());

/// The first of `count` free ports in a row.
fn free_ports(count: usize) -> Result<u16, PlacesError> {
    let room = FREE_PORTS.len() - count;
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    reserved.clear();
    for _ in 0..256 {
        let chance = usize::from(u16::from_le_bytes(random()?)) % room;
        let base = FREE_PORTS.start + chance as u16;
        let ports = base..base + count as u16;
        let ours = ports.clone().map_while(|port| UdpSocket::bind(("127.0.0.1", port)).ok());
        let ours: Vec<UdpSocket> = ours.collect();
        if ours.len() < count {
            continue;
        }
        // All are held until the last is tried.
        let held: Vec<TcpListener> =
            ports.map_while(|port| TcpListener::bind(("127.0.0.1", port)).ok()).collect();
        if held.len() == count {
            *reserved = ours;
            return Ok(base);
        }
    }
    Err(PlacesError::NoFreePorts { count })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process tries them by the same means, and finds them taken, though nobody listens there yet.
    #[test]
    fn ports_that_were_found_free_are_found_by_no_other_process() {
        let base = free_ports(3).unwrap();
        let taken = |port: &u16| UdpSocket::bind(("127.0.0.1", *port)).is_err();
        assert!((base..base + 3).all(|port| taken(&port)));
        assert!((base..base + 3).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()));
    }

    #[test]
    fn places_follow_the_base_port_and_the_hosts() {
        let places = Place::all(3, &[], Some(7000), false).unwrap();
        assert_eq!(places[2].address, "127.0.0.1:7004");
        assert_eq!(places[2].http, "127.0.0.1:7005");
        let hosts = ["a".to_owned(), "10.0.0.2".to_owned(), "fe80::1".to_owned()];
        let places = Place::all(3, &hosts, None, false).unwrap();
        assert_eq!(places[0].address, "a:7400");
        assert_eq!(
            (places[1].listen.as_str(), places[1].http.as_str()),
            ("0.0.0.0:7400", "127.0.0.1:7401")
        );
        assert_eq!(
            (places[2].address.as_str(), places[2].listen.as_str()),
            ("[fe80::1]:7400", "[::]:7400")
        );
        let places = Place::all(3, &hosts, None, true).unwrap();
        assert_eq!((&*places[0].http, &*places[0].http_listen), ("a:7401", "0.0.0.0:7401"));
        assert_eq!(places[2].http_listen, "[::]:7401");
        // Two of three on one machine.
        let twice = ["a".to_owned(), "b".to_owned(), "a".to_owned()];
        let places = Place::all(3, &twice, Some(65_532), false).unwrap();
        let addresses = [0, 1, 2].map(|id: usize| places[id].address.as_str());
        assert_eq!(addresses, ["a:65532", "b:65532", "a:65534"]);
        assert!(Place::all(3, &twice, Some(65_533), false).is_err());
        assert!(Place::all(4, &hosts, None, false).is_err());
        for host in ["127.0.0.1", "localhost", "::1", "[::1]", "0.0.0.0", "::ffff:127.0.0.1"] {
            let hosts = ["10.0.0.1".to_owned(), "10.0.0.2".to_owned(), host.to_owned()];
            let error = Place::all(3, &hosts, None, false).map(|_| ()).unwrap_err();
            assert!(error.is_misuse() && error.to_string().contains("takes for itself"), "{error}");
        }
        let wrong = [
            "",
            "a/b",
            "-oProxyCommand=x",
            "a b",
            "a\n",
            "db0:7400",
            "[db0]",
            "[fe80::1",
            "10.0.0.256",
            "10.1",
            "fe80::1%x",
        ];
        for host in wrong {
            let hosts = ["10.0.0.1".to_owned(), "10.0.0.2".to_owned(), host.to_owned()];
            let places = Place::all(3, &hosts, None, false).map(|_| ());
            assert!(matches!(places, Err(PlacesError::Host(_))), "{host}");
        }
        assert!(Place::all(3, &[], Some(65_533), false).is_err());
    }

    #[test]
    fn what_is_wrong_with_hosts_says_what_would_be_right() {
        let all = |n, hosts: &[&str]| {
            let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
            Place::all(n, &hosts, None, false).map(|_| ()).unwrap_err().to_string()
        };
        assert!(all(3, &["db0:7400", "db1:7400", "db2:7400"]).contains("--base-port"));
        assert!(all(3, &["10.0.0.1:7400", "db1", "db2"]).contains("--base-port"));
        assert!(!all(3, &["db0:", "db1", "db2"]).contains("--base-port"));
        assert!(all(4, &["a", "b", "c"]).ends_with("has 4 replicas; 3 hosts fit --crash 1"));
        assert!(all(3, &["a"; 4]).ends_with("; 4 hosts fit --byzantine 1"));
        assert!(all(3, &["a"; 7]).ends_with("; 7 hosts fit --byzantine 2 or --crash 3"));
        assert!(all(3, &["a"; 2]).ends_with("has 3 replicas"));
        for host in ["db-0.example.org", "db_0", "1db", "fe80::1%2", "[2001:db8::1]", "db0."] {
            assert!(is_host(host), "{host}");
        }
    }

    /// As `all` made it, as far as it can be known from what the others have.
    #[test]
    fn a_place_is_found_again_from_its_addresses() {
        for hosts in [&["db0", "10.0.0.2", "fe80::1"][..], &[]] {
            let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
            for public in [false, true] {
                for place in Place::all(3, &hosts, Some(7000), public).unwrap() {
                    let found = Place::found_at(&place.address, &place.http);
                    let listens = (found.listen(), found.http_listen());
                    assert_eq!(listens, (place.listen(), place.http_listen()));
                    assert_eq!(is_of_one_machine(&place.address), hosts.is_empty());
                }
            }
        }
        for local in ["localhost:1", "127.0.1.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(is_of_one_machine(local), "{local}");
            assert_eq!(Place::found_at(local, local).listen(), local);
        }
    }
}
