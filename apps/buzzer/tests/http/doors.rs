//! Those who send slowly, or half of what they want, and keep nobody out; and what only those who run it see.

use super::browser::Browser;
use super::world::{World, signal, wait_for};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Descriptors of the application. What is left of them for connections is fewer than [`SLOW`].
const DESCRIPTORS: u64 = 300;

/// Connections on which something begins and does not end.
const SLOW: usize = 400;

/// Where those who are slow come from: another network than everybody else's. In one with them an idle connection may be closed for theirs.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

pub const HALF_A_HEAD: &str = "GET / HTTP/1.1\r\nHost: x\r\nX-";

pub const HALF_A_BODY: &str = "POST /api/v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{";

/// A connection from an address of this machine.
pub fn connect_from(from: Ipv4Addr, url: &str) -> Option<TcpStream> {
    let to: SocketAddr = url.trim_start_matches("http://").parse().unwrap();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
    socket.bind(&SocketAddr::from((from, 0)).into()).ok()?;
    socket.connect(&to.into()).ok()?;
    Some(socket.into())
}

fn begin(from: Ipv4Addr, url: &str, sent: &str) -> Option<TcpStream> {
    let mut stream = connect_from(from, url)?;
    stream.write_all(sent.as_bytes()).ok()?;
    Some(stream)
}

/// A request whose body the application waits for: it has said so, and what is under way ends before it stops.
fn begin_body(url: &str) -> TcpStream {
    let asks = HALF_A_BODY.replace("\r\n\r\n{", "\r\nExpect: 100-continue\r\n\r\n");
    let mut stream = begin(ELSEWHERE, url, &asks).unwrap();
    let mut told = [0; b"HTTP/1.1 100 Continue".len()];
    stream.read_exact(&mut told).unwrap();
    assert_eq!(told, *b"HTTP/1.1 100 Continue");
    stream
}

/// Whether it was not closed at the other end.
fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = { stream }.read(&mut [0]);
    read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// As many descriptors as this process may have.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Has something begun on as many connections as there are, and on others when these are closed.
pub fn hold_open(from: Ipv4Addr, url: &str, sent: &str, stop: &AtomicBool) {
    raise_descriptors();
    let mut slow = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        slow.retain(is_open);
        while slow.len() < SLOW {
            let Some(one) = begin(from, url, sent) else { break };
            slow.push(one);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The same, while somebody else does what people do.
fn beside_slow_ones(world: &World, sent: &str, name: &str) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| hold_open(ELSEWHERE, world.url(), sent, &stop));
        std::thread::sleep(Duration::from_millis(200));
        let did = std::panic::catch_unwind(|| {
            let browser = Browser::new(world.url());
            browser.sign_up(name);
            for turn in 0..20 {
                Browser::new(world.url()).get("/live").is(200);
                let text = json!({ "text": format!("{turn} beside slow ones") });
                browser.api("POST", "/posts", Some(text)).is(201);
                browser.get("/").is(200).has(&[&format!("{turn} beside slow ones")]);
            }
        });
        stop.store(true, Ordering::Relaxed);
        if let Err(failed) = did {
            std::panic::resume_unwind(failed);
        }
    });
}

#[test]
fn those_who_send_half_of_it_keep_nobody_out() {
    let world = World::start_with_descriptors(DESCRIPTORS);
    beside_slow_ones(&world, HALF_A_HEAD, "amy");
    beside_slow_ones(&world, HALF_A_BODY, "bob");

    // One that goes on being slow is told so.
    let since = Instant::now();
    let mut slow = begin(ELSEWHERE, world.url(), HALF_A_BODY).unwrap();
    slow.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut told = String::new();
    slow.read_to_string(&mut told).unwrap();
    assert!(told.starts_with("HTTP/1.1 408 "), "{told}");
    assert!(since.elapsed() >= Duration::from_secs(9), "{:?}", since.elapsed());
    let mut slow = begin(ELSEWHERE, world.url(), HALF_A_HEAD).unwrap();
    slow.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(slow.read_to_end(&mut Vec::new()).ok(), Some(0));

    // That is no time that an answer took.
    let browser = Browser::new(world.url());
    let metrics = browser.get("/metrics").is(200);
    let of_route = |what: &str| {
        let begin = format!("buzzer_request_seconds_{what}");
        let line = metrics.text.lines().find(|line| line.starts_with(&begin)).unwrap();
        line.rsplit(' ').next().map(str::to_owned)
    };
    let of_all = of_route("count{route=\"/api/v1/session\"}");
    assert_eq!(of_route("bucket{route=\"/api/v1/session\",le=\"5\"}"), of_all);

    let long = json!({ "name": "x".repeat(20_000), "password": "correct horse" });
    browser.api("POST", "/session", Some(long)).is(413).has(&["invalid"]);
}

#[test]
fn what_is_wrong_is_told_to_those_who_run_it() {
    let mut world = World::start(&["--internal-listen", "127.0.0.1:0"]);
    let internal = wait_for("the internal address", || {
        let said = world.app().said();
        let line = said.lines().find(|line| line.contains("metrics and health are at "))?;
        Some(format!("http://{}", line.rsplit("http://").next()?.trim()))
    });
    let (public, internal) = (Browser::new(world.url()), Browser::new(&internal));
    public.get("/metrics").is(404);
    let metrics = ["buzzer_requests_total", "buzzer_connections_closed_total 0"];
    internal.get("/metrics").is(200).has(&metrics);
    internal.get("/live").is(200);
    internal.get("/").is(404);
    internal.get("/health").is(200).has(&["\"ok\""]);
    world.signal_partition(1, "-STOP");
    wait_for("what is found", || (internal.get("/health").status == 503).then_some(()));
    internal.get("/health").is(503).has(&["detail"]);
    public.get("/health").is(503).has(&["unavailable"]).has_not(&["detail"]);
    world.signal_partition(1, "-CONT");

    // It is there until the process ends, as while somebody is still waited for.
    let _slow = begin_body(world.url());
    signal("-TERM", world.app().id());
    wait_for("the end of the public address", || {
        connect_from(ELSEWHERE, world.url()).is_none().then_some(())
    });
    internal.get("/live").is(200);
}
