//! Where replies go, and those that wait for the log (rule D1), in the order in which they were made.
//!
//! Each comes as it is made, so that what a batch is answered is never held at full size. Beyond the bounds replies are let go: they are no
//! state, and the client asks again and is answered from its session.
//!
//! Invariants:
//! - one client key has at most [`CLIENT_REPLY_BYTES`] here, all together the bound that [`Egress::push`] is given, but for one reply more;
//! - there are at most [`WAITING_REPLIES`] lines;
//! - a session has one route at most, the connection on which it was attached last; there are at most [`ROUTES`].

use super::Peer;
use perdura_protocol::{Outcome, PublicKey, SessionId, limits};
use std::collections::{BTreeMap, VecDeque};

/// Replies that wait for the disk; as many as a full pipeline of full batches gives. Beyond it the
/// oldest are dropped, and the client's retry is answered from its session.
pub const WAITING_REPLIES: usize = 262_144;

/// Bytes of replies of one client key that wait for the disk: what a slot may answer to one, and one largest reply more. Those beyond are let
/// go as they come.
pub const CLIENT_REPLY_BYTES: usize = limits::SLOT_COST as usize + limits::FRAME_BYTES;

/// Connections on which sessions are attached; further ones replace the oldest of their client.
pub const ROUTES: usize = 65_536;

/// Replies of one session that were made one after the other.
#[derive(Debug)]
pub(super) struct Line {
    pub logged_at: u64,
    pub session: SessionId,
    pub outcomes: VecDeque<(u64, Outcome)>,
    bytes: usize,
}

/// Bytes that an outcome takes in a message.
pub(super) fn size_of_outcome(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Service(reply) | Outcome::Told(reply) => reply.len() + 16,
        Outcome::Waited { outcome, .. } => 2 + size_of_outcome(outcome),
        _ => 64,
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Egress {
    lines: VecDeque<Line>,
    bytes: usize,
    by_client: BTreeMap<PublicKey, usize>,
    largest: usize,
    // Replies that were let go, ever.
    let_go: u64,
    // Whether nothing more is added to the last line.
    closed: bool,
    // On which connection a session's client is.
    routes: BTreeMap<SessionId, u64>,
    // The clients that are linked.
    connections: BTreeMap<u64, PublicKey>,
}

impl Egress {
    /// A client is linked.
    pub fn link(&mut self, connection: u64, key: PublicKey) {
        self.connections.insert(connection, key);
    }

    /// It is not any more, and nothing goes to it.
    pub fn unlink(&mut self, connection: u64) {
        self.connections.remove(&connection);
        self.routes.retain(|_, held| *held != connection);
    }

    /// All that are linked.
    pub fn linked(&self) -> Vec<Peer> {
        let peer = |(connection, key): (&u64, &PublicKey)| Peer::Client {
            connection: *connection,
            key: *key,
        };
        self.connections.iter().map(peer).collect()
    }

    /// Where the replies of a session go.
    pub fn route(&self, session: &SessionId) -> Option<Peer> {
        let connection = *self.routes.get(session)?;
        Some(Peer::Client { connection, key: session.client })
    }

    /// The replies of a session go to this connection from now on; false where there is no place for one more.
    pub fn attach(&mut self, session: SessionId, connection: u64) -> bool {
        let of_client = SessionId { client: session.client, nonce: 0 }..=SessionId {
            client: session.client,
            nonce: u64::MAX,
        };
        let held = self.routes.range(of_client.clone()).count();
        let known = self.routes.contains_key(&session);
        if !known && (held >= 4 * limits::SESSIONS_PER_CLIENT || self.routes.len() >= ROUTES) {
            // The client's own oldest session gives way; one that has none is not kept out.
            let own = self.routes.range(of_client).next().map(|(id, _)| *id);
            let oldest = own.or_else(|| crowded(&self.routes));
            let Some(oldest) = oldest else { return false };
            self.routes.remove(&oldest);
        }
        self.routes.insert(session, connection);
        true
    }

    /// Sessions that have a route.
    pub fn routes(&self) -> usize {
        self.routes.len()
    }

    /// A reply waits until the log has come to this mark, if there is where it goes. All replies together take `most` bytes.
    pub fn push(
        &mut self,
        logged_at: u64,
        session: SessionId,
        (number, outcome): (u64, Outcome),
        most: usize,
    ) {
        if !self.routes.contains_key(&session) {
            return;
        }
        let bytes = size_of_outcome(&outcome);
        let of_client = self.by_client.entry(session.client).or_default();
        if *of_client > 0 && *of_client + bytes > CLIENT_REPLY_BYTES {
            self.let_go += 1;
            return;
        }
        *of_client += bytes;
        self.bytes += bytes;
        self.largest = self.largest.max(bytes);
        let same = |last: &&mut Line| last.session == session && last.logged_at == logged_at;
        let open = self.lines.back_mut().filter(|_| !self.closed).filter(same);
        match open {
            Some(last) => {
                last.bytes += bytes;
                last.outcomes.push_back((number, outcome));
            }
            None => {
                let outcomes = VecDeque::from([(number, outcome)]);
                self.lines.push_back(Line { logged_at, session, outcomes, bytes });
                self.closed = false;
            }
        }
        while self.lines.len() > WAITING_REPLIES || self.bytes > most {
            if !self.let_oldest_go() {
                break;
            }
        }
    }

    /// Lets the oldest reply go, but for the newest: that one alone may be larger than all may be, and would come again and again.
    fn let_oldest_go(&mut self) -> bool {
        let alone = self.lines.len() == 1;
        let Some(first) = self.lines.front_mut() else { return false };
        if first.outcomes.len() == 1 {
            if !alone {
                self.pop();
                self.let_go += 1;
            }
            return !alone;
        }
        let (_, outcome) = first.outcomes.pop_front().expect("a line has replies");
        let (bytes, client) = (size_of_outcome(&outcome), first.session.client);
        first.bytes -= bytes;
        self.bytes -= bytes;
        self.let_go += 1;
        // Its line still has replies, and so has the client.
        *self.by_client.get_mut(&client).expect("who has a line is counted") -= bytes;
        true
    }

    /// What comes next was made apart from what came until now.
    pub fn close_line(&mut self) {
        self.closed = true;
    }

    fn pop(&mut self) -> Option<Line> {
        let line = self.lines.pop_front()?;
        self.bytes -= line.bytes;
        let client = line.session.client;
        if let Some(bytes) = self.by_client.get_mut(&client) {
            *bytes -= line.bytes;
            if *bytes == 0 {
                self.by_client.remove(&client);
            }
        }
        Some(line)
    }

    /// The first line, if the log has come to its mark.
    pub fn pop_logged(&mut self, persisted: u64) -> Option<Line> {
        if self.is_ready(persisted) { self.pop() } else { None }
    }

    /// Whether there is one.
    pub fn is_ready(&self, persisted: u64) -> bool {
        self.lines.front().is_some_and(|line| line.logged_at <= persisted)
    }

    /// The last line comes first: for a mistake that is made on purpose.
    pub fn rotate_right(&mut self) {
        self.lines.rotate_right(self.lines.len().min(1));
    }

    /// Lines that wait.
    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    /// Bytes of them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the largest reply there was.
    pub fn largest(&self) -> usize {
        self.largest
    }

    /// Replies that were let go.
    pub fn let_go(&self) -> u64 {
        self.let_go
    }
}

/// The oldest session of the client that has most of them attached.
fn crowded(routes: &BTreeMap<SessionId, u64>) -> Option<SessionId> {
    let mut most: Option<(usize, SessionId)> = None;
    let mut run: Option<(usize, SessionId)> = None;
    for id in routes.keys() {
        let (count, oldest) =
            run.filter(|(_, first)| first.client == id.client).unwrap_or((0, *id));
        run = Some((count + 1, oldest));
        if most.is_none_or(|(most, _)| count + 1 > most) {
            most = run;
        }
    }
    most.map(|(_, oldest)| oldest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn session(client: u8) -> SessionId {
        SessionId { client: PublicKey([client; 32]), nonce: 1 }
    }

    fn reply(bytes: usize) -> Outcome {
        Outcome::Service(Bytes::from(vec![7; bytes]))
    }

    /// With a connection for each of a hundred clients.
    fn egress() -> Egress {
        let mut egress = Egress::default();
        for client in 0..100 {
            egress.link(u64::from(client), PublicKey([client; 32]));
            assert!(egress.attach(session(client), u64::from(client)));
        }
        egress
    }

    #[test]
    fn what_has_no_route_is_not_kept() {
        let mut egress = egress();
        egress.unlink(7);
        egress.push(1, session(7), (1, reply(1)), 10_000);
        egress.push(1, session(8), (1, reply(1)), 10_000);
        assert_eq!((egress.lines(), egress.routes(), egress.linked().len()), (1, 99, 99));
        assert_eq!(egress.route(&session(7)), None);
        assert!(egress.route(&session(8)).is_some());
    }

    #[test]
    fn the_client_with_the_most_sessions_makes_room() {
        let session = |client, nonce| SessionId { client: PublicKey([client; 32]), nonce };
        assert_eq!(crowded(&BTreeMap::new()), None);
        let sessions = [(1, 5), (1, 9), (2, 4), (2, 6), (2, 8), (3, 1)];
        let routes = sessions.map(|(client, nonce)| (session(client, nonce), 7)).into();
        assert_eq!(crowded(&routes), Some(session(2, 4)));
    }

    #[test]
    fn one_key_holds_its_bound_and_another_is_not_hindered() {
        let mut egress = egress();
        for number in 0..1024 {
            egress.push(1, session(1), (number, reply(1 << 20)), usize::MAX);
        }
        assert!(
            egress.bytes() <= CLIENT_REPLY_BYTES && egress.let_go() > 1_000,
            "{}",
            egress.bytes()
        );
        egress.push(1, session(2), (1, reply(1 << 20)), usize::MAX);
        assert_eq!(egress.lines(), 2);
        let held: Vec<u64> =
            egress.pop_logged(1).unwrap().outcomes.iter().map(|one| one.0).collect();
        assert_eq!(held, (0..held.len() as u64).collect::<Vec<u64>>(), "the first ones");
        assert_eq!(egress.pop_logged(1).unwrap().session, session(2));
        assert_eq!((egress.bytes(), egress.by_client.len()), (0, 0));
    }

    #[test]
    fn all_together_keep_to_the_bound_by_the_newest_and_one_reply_always_stays() {
        let mut egress = egress();
        for client in 0..100 {
            egress.push(1, session(client), (1, reply(1_000)), 10_000);
        }
        assert!(egress.bytes() <= 10_000 && egress.lines() == 9);
        assert_eq!(egress.pop_logged(1).unwrap().session, session(91));
        egress.push(2, session(7), (1, reply(50_000)), 10_000);
        assert_eq!(egress.lines(), 1);
        assert!(egress.pop_logged(1).is_none() && egress.is_ready(2));
        assert_eq!(egress.pop_logged(2).unwrap().outcomes.len(), 1);
    }

    #[test]
    fn one_line_keeps_to_the_bound_as_many_do() {
        let mut egress = egress();
        for number in 0..100 {
            egress.push(1, session(1), (number, reply(1_000)), 10_000);
        }
        assert_eq!((egress.lines(), egress.let_go()), (1, 91));
        assert!(egress.bytes() <= 10_000, "{}", egress.bytes());
        egress.push(1, session(2), (1, reply(5_000)), 10_000);
        assert_eq!((egress.lines(), egress.let_go()), (2, 96));
        let first = egress.pop_logged(1).unwrap();
        let numbers: Vec<u64> = first.outcomes.iter().map(|one| one.0).collect();
        assert_eq!(numbers, [96, 97, 98, 99], "the newest ones stay");
        assert_eq!(egress.pop_logged(1).unwrap().session, session(2));
        assert_eq!((egress.bytes(), egress.by_client.len()), (0, 0));
    }

    #[test]
    fn replies_of_one_session_and_slot_are_one_line() {
        let mut egress = egress();
        for (mark, client) in [(1, 1), (1, 1), (1, 2), (1, 1), (2, 1)] {
            egress.push(mark, session(client), (1, reply(1)), 10_000);
        }
        assert_eq!(egress.lines(), 4);
        egress.close_line();
        egress.push(2, session(1), (2, reply(1)), 10_000);
        assert_eq!(egress.lines(), 5);
    }
}
