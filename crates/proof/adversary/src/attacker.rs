//! Clients that attack. Each has a key that the cluster knows, and uses no client library.

use crate::random::Random;
use crate::traffic::everybody;
use bytes::Bytes;
use perdura_protocol::message::Message;
use perdura_protocol::{
    AdminCommand, ClusterId, Command, Encode, Frame, PublicKey, ReplicaId, SecretKey, SessionId,
    Slot, Time, Versions, limits,
};
use std::collections::VecDeque;

/// Frames remembered for replay.
const REMEMBERED: usize = 1_024;

/// Commands of one flooding tick.
const FLOOD: u64 = 40;

/// Of so many large commands one is of the largest size, or above it, where most are to be smaller.
const LARGEST_OF: u64 = 50;

/// A way of attacking.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Attack {
    /// Frames in the name of other clients, and commands of the administrator.
    ForgedIdentity,
    /// Frames again, soon and later, to others than before, in other sessions and as of another
    /// cluster.
    Replay,
    /// One number with two commands, each to some of the replicas.
    TwoCommands,
    /// Signatures that are none: at some replicas, or at all.
    GarbageSignatures,
    /// Frames without end.
    Flood,
    /// Sessions without end.
    ManySessions,
    /// The largest commands, larger ones, and such as no service understands.
    HugeCommands,
    /// Numbers with gaps, far ahead, long past; acknowledgements that jump.
    WildNumbers,
    /// Bytes that are no message, and messages that no client sends.
    Malformed,
}

impl Attack {
    /// All of them.
    pub const ALL: [Attack; 9] = [
        Attack::ForgedIdentity,
        Attack::Replay,
        Attack::TwoCommands,
        Attack::GarbageSignatures,
        Attack::Flood,
        Attack::ManySessions,
        Attack::HugeCommands,
        Attack::WildNumbers,
        Attack::Malformed,
    ];

    /// As on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Attack::ForgedIdentity => "forged-identity",
            Attack::Replay => "replay",
            Attack::TwoCommands => "two-commands",
            Attack::GarbageSignatures => "garbage-signatures",
            Attack::Flood => "flood",
            Attack::ManySessions => "many-sessions",
            Attack::HugeCommands => "huge-commands",
            Attack::WildNumbers => "wild-numbers",
            Attack::Malformed => "malformed",
        }
    }

    /// The one with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Attack> {
        Attack::ALL.into_iter().find(|attack| attack.name() == name)
    }
}

/// Makes service commands: the n-th, of about so many bytes.
pub type MakeCommand = Box<dyn FnMut(u64, usize) -> Bytes + Send>;

/// A hostile client.
pub struct Attacker {
    attack: Attack,
    key: SecretKey,
    cluster: ClusterId,
    n: usize,
    victims: Vec<PublicKey>,
    large: usize,
    largest: usize,
    make: MakeCommand,
    random: Random,
    session: SessionId,
    now: Time,
    number: u64,
    made: u64,
    frames: VecDeque<Frame>,
    // Sessions of others that are in use, each with its next number.
    overheard: Vec<(SessionId, u64)>,
}

/// What an attacker is given.
pub struct Arms {
    /// Its key.
    pub key: SecretKey,
    /// The cluster that it attacks.
    pub cluster: ClusterId,
    /// Replicas of the cluster.
    pub n: usize,
    /// Keys of other clients.
    pub victims: Vec<PublicKey>,
    /// Bytes of most of its large commands.
    pub large: usize,
    /// Bytes of the largest commands that the service takes.
    pub largest: usize,
    /// Makes commands that the service understands.
    pub make: MakeCommand,
}

impl Attacker {
    /// One that has not begun.
    #[must_use]
    pub fn new(arms: Arms, attack: Attack, seed: u64) -> Attacker {
        let Arms { key, cluster, n, victims, large, largest, make } = arms;
        Attacker {
            attack,
            session: SessionId { client: key.public(), nonce: 0 },
            now: Time(0),
            key,
            cluster,
            n,
            victims,
            large,
            largest,
            make,
            random: Random::new(seed),
            number: 0,
            made: 0,
            frames: VecDeque::new(),
            overheard: Vec::new(),
        }
    }

    /// Another client uses a session, in which `next` comes next.
    pub fn overhears(&mut self, session: SessionId, next: u64) {
        self.overheard.retain(|(known, _)| known.client != session.client);
        self.overheard.push((session, next));
    }

    /// Its way of attacking.
    #[must_use]
    pub fn attack(&self) -> Attack {
        self.attack
    }

    /// What it sends now, to whom.
    pub fn tick(&mut self, now: Time) -> Vec<(ReplicaId, Bytes)> {
        let mut out = Vec::new();
        self.now = now;
        if self.number == 0 || self.random.percent(2) {
            self.open(&mut out);
            return out;
        }
        match self.attack {
            Attack::ForgedIdentity => self.forge(&mut out),
            Attack::Replay => self.replay(&mut out),
            Attack::TwoCommands => self.tell_two(&mut out),
            Attack::GarbageSignatures => self.sign_badly(&mut out),
            Attack::Flood => {
                for _ in 0..FLOOD {
                    self.plain(&mut out);
                }
            }
            Attack::ManySessions => {
                for _ in 0..4 {
                    self.open(&mut out);
                    self.plain(&mut out);
                }
                self.live_on(&mut out);
                self.open_at_another_time(&mut out);
                self.revive(&mut out);
            }
            Attack::HugeCommands => self.huge(&mut out),
            Attack::WildNumbers => self.wild(&mut out),
            Attack::Malformed => self.garble(&mut out),
        }
        out
    }

    fn command(&mut self, bytes: usize) -> Bytes {
        self.made += 1;
        Command::Service((self.make)(self.made, bytes)).to_bytes()
    }

    fn build(&self, session: SessionId, acked: u64, number: u64, commands: &[Bytes]) -> Frame {
        Frame::build(self.cluster, session, acked, number, commands, Some(&self.key))
    }

    fn remember(&mut self, frame: &Frame) {
        if self.frames.len() >= REMEMBERED {
            self.frames.pop_front();
        }
        self.frames.push_back(frame.clone());
    }

    fn to_all(&self, message: &Message, out: &mut Vec<(ReplicaId, Bytes)>) {
        let bytes = message.to_bytes();
        out.extend(everybody(self.n).map(|replica| (replica, bytes.clone())));
    }

    fn open(&mut self, out: &mut Vec<(ReplicaId, Bytes)>) {
        let frame = self.opening();
        self.to_all(&Message::Attach { nonce: self.session.nonce }, out);
        self.to_all(&Message::Frame(frame), out);
    }

    fn opening(&mut self) -> Frame {
        let by_time = self.now.0.saturating_mul(limits::NONCES_PER_MS) + self.random.below(1000);
        self.session.nonce = by_time.max(self.session.nonce + 1 + self.random.below(3));
        self.number = 1;
        let frame = self.build(self.session, 0, 0, &[Command::Open.to_bytes()]);
        self.remember(&frame);
        frame
    }

    fn somebody(&mut self) -> ReplicaId {
        ReplicaId(self.random.below(self.n as u64) as u8)
    }

    fn next(&mut self, bytes: usize) -> Frame {
        let command = self.command(bytes);
        let frame = self.build(self.session, self.number, self.number, &[command]);
        self.number += 1;
        self.remember(&frame);
        frame
    }

    fn plain(&mut self, out: &mut Vec<(ReplicaId, Bytes)>) {
        let frame = self.next(32);
        self.to_all(&Message::Frame(frame), out);
    }

    fn forge(&mut self, out: &mut Vec<(ReplicaId, Bytes)>) {
        match self.random.below(4) {
            // Where it does the most harm: the next number of a session in use.
            0 | 1 if !self.overheard.is_empty() => {
                let at = self.random.below(self.overheard.len() as u64) as usize;
                let (session, next) = self.overheard[at];
                let number = next + self.random.below(2);
                let command = if self.random.percent(80) { self.command(32) } else { self.order() };
                let frame = self.build(session, 0, number, &[command]);
                self.to_all(&Message::Frame(frame), out);
            }
            // In its own name, what only the administrator may order.
            0 => {
                let (order, number) = (self.order(), self.number);
                let frame = self.build(self.session, 0, number, &[order]);
                self.number += 1;
                self.to_all(&Message::Frame(frame), out);
            }
            _ => self.impersonate(out),
        }
        self.plain(out);
    }

    /// Opens a session in the name of another client, and uses it.
    fn impersonate(&mut self, out: &mut Vec<(ReplicaId, Bytes)>) {
        let victim = match self.victims.len() {
            0 => PublicKey([7; 32]),
            count => self.victims[self.random.below(count as u64) as usize],
        };
        let used = self.overheard.iter().find(|(session, _)| session.client == victim);
        let after = used.map_or(0, |(session, _)| session.nonce).max(self.session.nonce);
        let session = SessionId { client: victim, nonce: after + 1 + self.random.below(1024) };
        let content = if self.random.percent(50) { self.command(32) } else { self.order() };
        for (number, command) in [(0, Command::Open.to_bytes()), (1, content)] {
            let frame = self.build(session, 0, number, &[command]);
            self.to_all(&Message::Frame(frame), out);
        }
    }

    /// A command of the administrator.
    fn order(&mut self) -> Bytes {
        let key = self.key.public();
        let command = match self.random.below(6) {
            0 => AdminCommand::RevokeClient { name: "client-0".into() },
            1 => AdminCommand::AddClient { name: "forged".into(), key: PublicKey([9; 32]) },
            2 => AdminCommand::RaiseVersions(Versions::NEW),
            3 => AdminCommand::RaiseStateLimit { bytes: limits::STATE_LIMIT_BYTES },
            4 => AdminCommand::ReplaceAdministrator { key },
            _ => {
                let replica = ReplicaId(self.random.below(self.n as u64) as u8);
                AdminCommand::ReplaceReplica { replica, incarnation: 1, key }
            }
        };
        Command::Admin(command).to_bytes()
    }

    /// New commands, and whole sessions, go to one replica only; what the others hear of them are
    /// retries, of the latest commands most of the time.
    fn replay(&mut self, out: &mut Vec<(ReplicaId, Bytes)>) {
        let recent = self.random.percent(70);
        let reach = if recent { self.frames.len().min(4) } else { self.frames.len() };
        let back = 1 + self.random.below(reach as u64) as usize;
        let old = self.frames[self.frames.len() - back].clone();
        let commands: Vec<Bytes> = old.commands().collect();
        let again = match self.random.below(4) {
            0 => self.build(self.session, 0, old.first_number, &commands),
            1 => {
                let foreign = ClusterId([0xee; 16]);
                let (session, first) = (old.session, old.first_number);
                Frame::build(foreign, session, old.acked_below, first, &commands, Some(&self.key))
            }
            _ => old,
        };
        if recent {
            out.push((self.somebody(), Message::Frame(again).to_bytes()));
        } else {
            self.to_all(&Message::Frame(again), out);
        }
        let fresh = match self.random.below(20) {
            0..5 => self.opening(),
            5..8 => self.renewal(),
            _ => self.next(32),
        };
        out.push((self.somebody(), Message::Frame(fresh).to_bytes()));
    }

    /// Renews its session and closes it, in whatever order they come: a renewal that came before counts no more, and one that comes after
    /// is too late.
    fn live_on(&mut self, out: &mut Vec<(ReplicaId, Bytes)>) {
        let close = self.build(self.session, 0, self.number, &[Command::Close.to_bytes()]);
        for frame in [self.renewal(), close] {
            if self.random.percent(40) {
                self.remember(&frame);
                self.to_all(&Message::Frame(frame), out);
            }
        }
    }

    fn renewal(&mut self) -> Frame {
        let number = limits::FIRST_RENEWAL + self.random.below(4);
        let frame = self.build(self.session, 0, number, &[Command::Renew.to_bytes()]);
        self.remember(&frame);
        frame
    }

    /// A session number of yesterday or tomorrow, or at the end of numbers.
    fn open_at_another_time(&mut self, out: &mut Vec<(ReplicaId, Bytes)>) {
        let day = 86_400_000 * limits::NONCES_PER_MS;
        let session = self.session.nonce;
        let nonce = match self.random.below(8) {
            0 => session.saturating_sub(day),
            1 => session.saturating_add(day),
            2 => u64::MAX - self.random.below(2),
            _ => return,
        };
        let session = SessionId { nonce, ..self.session };
        let frame = self.build(session, 0, 0, &[Command::Open.to_bytes()]);
        self.to_all(&Message::Frame(frame), out);
    }

    /// Opens its oldest session again, which has been evicted if it can be, and sends what it sent
    /// in it.
    fn revive(&mut self, out: &mut Vec<(ReplicaId, Bytes)>) {
        let at = self.random.below(1 + self.frames.len() as u64 / 4) as usize;
        let Some(session) = self.frames.get(at).map(|frame| frame.session) else { return };
        let old = self.frames.iter().filter(|frame| frame.session == session);
        let again: Vec<Frame> = old.cloned().collect();
        for frame in again {
            self.to_all(&Message::Frame(frame), out);
        }
    }

    fn tell_two(&mut self, out: &mut Vec<(ReplicaId, Bytes)>) {
        let number = self.number;
        let first = self.next(32);
        self.number = number;
        let second = self.next(32);
        for replica in everybody(self.n) {
            let frame = if self.random.percent(50) { &first } else { &second };
            out.push((replica, Message::Frame(frame.clone()).to_bytes()));
            if self.random.percent(20) {
                let other = if frame == &first { &second } else { &first };
                out.push((replica, Message::Frame(other.clone()).to_bytes()));
            }
        }
    }

    fn sign_badly(&mut self, out: &mut Vec<(ReplicaId, Bytes)>) {
        let good = self.next(32);
        let mut raw = good.to_bytes().to_vec();
        let last = raw.len() - 1;
        raw[last] ^= 1;
        // Genuine for some and not for others, under one number.
        let mut bad = vec![0];
        bad.extend_from_slice(&raw);
        let good = Message::Frame(good).to_bytes();
        bad[0] = good[0];
        let bad = Bytes::from(bad);
        for replica in everybody(self.n) {
            let genuine = self.random.percent(50);
            out.push((replica, if genuine { good.clone() } else { bad.clone() }));
        }
    }

    fn huge(&mut self, out: &mut Vec<(ReplicaId, Bytes)>) {
        let command = if self.random.percent(20) {
            self.large()
        } else {
            let noise = Bytes::copy_from_slice(&self.random.bytes32());
            if self.random.percent(50) { Command::Service(noise).to_bytes() } else { noise }
        };
        // Not remembered: a thousand of them are gigabytes.
        let frame =
            self.build(self.session, self.number, self.number, std::slice::from_ref(&command));
        // No replica reads what is above the bound: the next command has its number.
        self.number += u64::from(command.len() <= limits::COMMAND_BYTES);
        self.to_all(&Message::Frame(frame), out);
    }

    /// A large command. Of the largest some are just above what the service takes, which it refuses,
    /// and some above what a frame carries, which costs the link.
    fn large(&mut self) -> Bytes {
        if self.large < self.largest && self.random.below(LARGEST_OF) > 0 {
            return self.command(self.large);
        }
        match self.random.below(8) {
            0 => self.command(self.largest + 1),
            1 => vec![0; limits::COMMAND_BYTES + 1].into(),
            _ => self.command(self.largest),
        }
    }

    fn wild(&mut self, out: &mut Vec<(ReplicaId, Bytes)>) {
        let number = match self.random.below(16) {
            0..4 => self.number + self.random.below(3_000),
            4..7 => self.random.below(self.number + 1),
            7 => u64::MAX - 1 - self.random.below(2),
            // Where numbers begin that only renew.
            8 | 9 => limits::FIRST_RENEWAL - 3 + self.random.below(6),
            _ => self.number,
        };
        // Up to the number itself, or to what it has come to.
        let most = if self.random.percent(50) { number } else { number.min(self.number) };
        let acked = self.random.below(most.saturating_add(1).max(1));
        let other = if self.random.percent(50) { number } else { self.random.below(number + 1) };
        let command = match self.random.below(8) {
            0 => Command::Withdraw { number: other }.to_bytes(),
            1 => Command::Confirm { number: other }.to_bytes(),
            2 => Command::Renew.to_bytes(),
            _ => self.command(32),
        };
        let frame = self.build(self.session, acked, number, &[command]);
        // Nothing follows the last number: another session.
        self.number = if number > self.number + 3_000 { 0 } else { self.number + 1 };
        self.to_all(&Message::Frame(frame), out);
    }

    fn garble(&mut self, out: &mut Vec<(ReplicaId, Bytes)>) {
        self.plain(out);
        let length = self.random.below(120);
        let noise: Bytes = (0..length).map(|_| self.random.next() as u8).collect();
        let replica = self.somebody();
        let message = match self.random.below(5) {
            0 => noise,
            1 => Message::StateQuery.to_bytes(),
            2 => Message::Read { id: self.made, command: noise }.to_bytes(),
            3 => {
                // Some are far away, and some long gone.
                let slot = match self.random.below(3) {
                    0 => Slot(u64::MAX - self.random.below(2)),
                    _ => Slot(self.random.below(200)),
                };
                let command = if self.random.percent(50) { noise } else { self.command(32) };
                Message::ReadAt { id: self.made, slot, command }.to_bytes()
            }
            _ => {
                let frame = self.next(32);
                let whole = Message::Frame(frame).to_bytes();
                whole.slice(..self.random.below(whole.len() as u64) as usize)
            }
        };
        out.push((replica, message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::Decode;

    fn sizes(large: usize, largest: usize) -> Vec<usize> {
        let arms = Arms {
            key: SecretKey::from_seed(perdura_protocol::Scheme::KeyedHash, [1; 32]),
            cluster: ClusterId([2; 16]),
            n: 1,
            victims: Vec::new(),
            large,
            largest,
            make: Box::new(|_, bytes| vec![7; bytes].into()),
        };
        let mut attacker = Attacker::new(arms, Attack::HugeCommands, 1);
        let mut sizes = Vec::new();
        for _ in 0..300 {
            for (_, bytes) in attacker.tick(Time(1)) {
                sizes.push(match Message::from_bytes(bytes.clone()) {
                    Ok(Message::Frame(frame)) => frame.commands().map(|one| one.len()).sum(),
                    Ok(_) => 0,
                    Err(_) => bytes.len(),
                });
            }
        }
        sizes
    }

    #[test]
    fn some_huge_commands_are_above_the_bounds_of_the_service_and_of_a_frame() {
        let largest = 1_000_000;
        let of_size = |sizes: &[usize], range: std::ops::Range<usize>| {
            sizes.iter().filter(|size| range.contains(size)).count()
        };
        let around = largest..largest + 100;
        let all = sizes(largest, largest);
        let (just, above) =
            (Command::Service(vec![7; largest].into()).to_bytes().len(), limits::COMMAND_BYTES);
        assert!(of_size(&all, just..just + 1) > 20, "{all:?}");
        assert!(of_size(&all, just + 1..just + 2) > 0, "{all:?}");
        assert!(of_size(&all, above..usize::MAX) > 0, "{all:?}");
        let few = sizes(2_000, largest);
        assert!(of_size(&few, 2_000..2_100) > 20 && of_size(&few, around) < 10, "{few:?}");
    }
}
