//! What this machine takes for each of the things that a write is made of: processor time, user and system, of
//! this process, measured with the code that replicas run.

use crate::bench::live::Live;
use crate::process::own_cpu;
use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use perdura_client::bounds::FRAME_TARGET_BYTES;
use perdura_durability::{Expectation, FileDisk, Log, StorageOptions, format, open};
use perdura_protocol::configuration::Durability;
use perdura_protocol::keys::Claim;
use perdura_protocol::{
    Batch, ClusterId, Digest, Frame, Record, ReplicaId, Scheme, SecretKey, SessionId, Slot, Time,
    View, limits,
};
use perdura_store::SegmentMap;
use perdura_transport::{Bounds, Hello, Identity, Link, Received, Role, tune};
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

const CLUSTER: ClusterId = ClusterId([1; 16]);

/// How much is done to measure a term: all of this several times, of which the least counts, for what disturbs only adds.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    times: u32,
    /// For so much processor time at least ...
    span: Duration,
    /// ... and so often at least; what waits for a disk, so often and no longer.
    count: u32,
}

impl Effort {
    /// Figures that differ little from run to run.
    pub const FULL: Effort = Effort { times: 5, span: Duration::from_millis(20), count: 64 };

    /// The least processor time that `body` takes, microseconds.
    fn least<R>(self, mut body: impl FnMut() -> Result<R>) -> Result<f64> {
        let mut least = f64::INFINITY;
        for _ in 0..self.times {
            let before = own_cpu();
            let mut count = 0u32;
            while count == 0 || own_cpu().saturating_sub(before) < self.span {
                for _ in 0..self.count {
                    black_box(body()?);
                }
                count += self.count;
            }
            least = least.min(micros(before, own_cpu()) / f64::from(count));
        }
        Ok(least)
    }
}

fn micros(from: Duration, to: Duration) -> f64 {
    to.saturating_sub(from).as_secs_f64() * 1e6
}

/// Bytes of what a replica signs.
const STATEMENT_BYTES: usize = 120;

/// Bytes of a command besides the value: its kind, its key of 16 bytes, lengths.
const COMMAND_OVERHEAD_BYTES: usize = 32;

/// Bytes of a small message: a vote.
const SMALL_BYTES: usize = 140;

/// Processor time of each, microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A signature made.
    pub sign: f64,
    /// A frame of the client's verified.
    pub verify_frame: f64,
    /// The votes of a quorum verified at once, the own one left out.
    pub verify_votes: f64,
    /// A batch hashed.
    pub hash: f64,
    /// A batch into records of a link, and out of them.
    pub seal: f64,
    pub open: f64,
    /// A small message through the system, from one socket to another.
    pub message: f64,
    /// A batch through the system, from one socket to another.
    pub transfer: f64,
    /// From one thread to another that waits.
    pub wake: f64,
    /// A batch appended to the log, and flushed.
    pub append: f64,
    /// A value written into the state.
    pub put: f64,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Writes in it.
    pub writes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Votes of others in a quorum.
    pub votes: usize,
}

fn key(of: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::Ed25519, [of; 32])
}

fn claims(count: usize) -> Vec<Claim<Vec<u8>>> {
    let claim = |of: u8| {
        let (key, message) = (key(of), vec![of; STATEMENT_BYTES]);
        Claim { key: key.public(), signature: key.sign(&message), message }
    };
    (0..count as u8).map(claim).collect()
}

impl Load {
    /// A slot's frames: each takes what a client puts into one, of as many writes as there are.
    pub fn frames(self) -> Result<Vec<Frame>> {
        let session = SessionId { client: key(1).public(), nonce: 1 };
        let command = Bytes::from(vec![7; self.value_bytes + COMMAND_OVERHEAD_BYTES]);
        let fitting = FRAME_TARGET_BYTES / (command.len() + 4);
        let full = vec![command; self.writes.min(fitting.clamp(1, limits::FRAME_COMMANDS))];
        ensure!(!full.is_empty(), "no write in a slot");
        let mut frames = Vec::new();
        let mut first = 1;
        while first <= self.writes {
            let part = &full[..full.len().min(self.writes + 1 - first)];
            frames.push(Frame::build(CLUSTER, session, 0, first as u64, part, Some(&key(1))));
            first += part.len();
        }
        Ok(frames)
    }
}

impl Costs {
    /// Measures all of them; the log's in a directory in `work` that is gone afterwards.
    pub fn measure(effort: Effort, load: Load, live: &Live, work: &Path) -> Result<Costs> {
        let signer = key(1);
        let (votes, frame) = (claims(load.votes), claims(1));
        let verify = |claims: &[Claim<Vec<u8>>]| -> Result<()> {
            let genuine = Scheme::Ed25519.verify_every(claims, [3; 32]);
            genuine.then_some(()).context("a genuine signature is not verified")
        };
        let batch = Batch::requests(Time(1), load.frames()?);
        let raw = batch.raw().clone();
        let (seal, open) = records(effort, &raw)?;
        Ok(Costs {
            sign: effort.least(|| Ok(signer.sign(&[7; STATEMENT_BYTES])))?,
            verify_frame: effort.least(|| verify(&frame))?,
            verify_votes: effort.least(|| verify(&votes))?,
            hash: effort.least(|| Ok(Digest::of(&raw)))?,
            seal,
            open,
            message: sockets(effort, SMALL_BYTES)?,
            transfer: sockets(effort, raw.len())?,
            wake: wakes(effort)?,
            append: live.in_directory(work, |directory| appends(effort, &batch, directory))?,
            put: puts(effort, load.value_bytes)?,
        })
    }
}

/// Two ends of a link, without a network between them.
fn link() -> Result<(Link, Link)> {
    let (dialler, acceptor) = (Identity::new(&key(2))?, Identity::new(&key(3))?);
    let hello = Hello::client(CLUSTER, Role::Client);
    let mut one = Link::dial(&dialler, acceptor.public(), &hello, Bounds::REPLICA)?;
    let mut other = Link::accept(&acceptor)?;
    while !(one.is_up() && other.is_up()) {
        carry(&mut one, &mut other)?;
        if let Some(Received::Hello(..)) = other.next_received()? {
            other.welcome(Bounds::REPLICA, None, false)?;
        }
        carry(&mut other, &mut one)?;
        one.next_received()?;
    }
    Ok((one, other))
}

fn carry(from: &mut Link, to: &mut Link) -> Result<()> {
    let mut wire = Vec::new();
    from.write_to(&mut wire)?;
    Ok(to.feed(&wire)?)
}

/// A message into records, and out of them.
fn records(effort: Effort, message: &Bytes) -> Result<(f64, f64)> {
    let (mut one, mut other) = link()?;
    let mut wires = vec![Vec::new(); effort.count as usize];
    let (mut seal, mut open) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..effort.times * 4 {
        // Records come in their order, and each is taken once.
        let begun = own_cpu();
        for wire in &mut wires {
            wire.clear();
            one.queue(message.clone())?;
            one.write_to(wire)?;
        }
        let sealed = own_cpu();
        for wire in &wires {
            other.feed(wire)?;
            while black_box(other.next_received()?).is_some() {}
        }
        let opened = own_cpu();
        let each = wires.len() as f64;
        (seal, open) =
            (seal.min(micros(begun, sealed) / each), open.min(micros(sealed, opened) / each));
    }
    Ok((seal, open))
}

/// From one socket of this process to another, written and read at once.
fn sockets(effort: Effort, bytes: usize) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut one = TcpStream::connect(listener.local_addr()?)?;
    let (mut other, _) = listener.accept()?;
    tune(&one)?;
    tune(&other)?;
    let out = vec![7; bytes];
    let mut into = vec![0; bytes];
    // What does not fit into the socket's buffers goes in parts.
    let part = bytes.min(32 * 1024);
    effort.least(|| {
        for (out, into) in out.chunks(part).zip(into.chunks_mut(part)) {
            one.write_all(out)?;
            other.read_exact(into)?;
        }
        Ok(())
    })
}

/// From one thread to another and back; half of that.
fn wakes(effort: Effort) -> Result<f64> {
    let (to, inbox) = sync_channel::<()>(1);
    let (back, replies) = sync_channel::<()>(1);
    let echo = std::thread::spawn(move || while inbox.recv().is_ok() && back.send(()).is_ok() {});
    let pair = effort.least(|| {
        to.send(())?;
        Ok(replies.recv()?)
    })?;
    drop(to);
    echo.join().map_err(|_| anyhow!("a thread that only answers panicked"))?;
    Ok(pair / 2.0)
}

/// Appends of one batch each, to a log of a replica's.
fn appends(effort: Effort, batch: &Batch, directory: &Path) -> Result<f64> {
    let mut log = log(directory)?;
    let votes: Vec<Record> = (1..=2)
        .map(|slot| Record::Vote {
            view: View(0),
            slot: Slot(slot),
            batch: batch.clone(),
            writes: Default::default(),
        })
        .collect();
    // The files that replicas have after a while are there before anything is measured.
    for _ in 0..effort.count {
        log.append(&votes[..1])?;
        log.prepare_free_file()?;
    }
    let mut least = f64::INFINITY;
    for _ in 0..effort.times {
        let before = own_cpu();
        for _ in 0..effort.count {
            log.append(&votes[1..])?;
        }
        least = least.min(micros(before, own_cpu()) / f64::from(effort.count));
        for _ in 0..effort.count {
            log.prepare_free_file()?;
        }
    }
    Ok(least)
}

fn log(root: &Path) -> Result<Log<FileDisk>> {
    let mut disk = FileDisk::open(root)?;
    let parameters = Digest::of(b"floor");
    let identity = perdura_durability::Identity {
        cluster: CLUSTER,
        replica: ReplicaId(0),
        incarnation: 0,
        parameters,
        durability: Durability::Sync,
        checksum_key: [7; 32],
        must_recover: None,
    };
    format(&mut disk, &identity)?;
    let expected = Expectation {
        cluster: CLUSTER,
        replica: ReplicaId(0),
        incarnation: 0,
        parameters,
        boot_id: [0; 16],
        nonce: [0; 16],
    };
    Ok(open(disk, &expected, &StorageOptions::for_checkpoints_of(256 << 20, 256 << 20))?.log)
}

/// Values written over others, of 10,000 keys.
fn puts(effort: Effort, value_bytes: usize) -> Result<f64> {
    let mut map = SegmentMap::new();
    let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let value = vec![7; value_bytes];
    let put = |map: &mut SegmentMap, number: u64| {
        let full = map.put(&key(number % 10_000), &value, u64::MAX);
        full.map_err(|_| anyhow!("the state is full"))
    };
    (0..10_000).try_for_each(|number| put(&mut map, number))?;
    let mut number = 0u64;
    effort.least(|| {
        number += 7919;
        put(&mut map, number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LITTLE: Effort = Effort { times: 1, span: Duration::ZERO, count: 2 };

    #[test]
    fn each_term_is_measured_as_often_as_was_asked_for() {
        let (times, count) = (LITTLE.times, LITTLE.count);
        let mut done = 0;
        LITTLE
            .least(|| {
                done += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(done, times * count);
        let work = tempfile::tempdir().unwrap();
        let load = Load { writes: 4, value_bytes: 100, votes: 2 };
        let costs = Costs::measure(LITTLE, load, &Live::default(), work.path()).unwrap();
        let Costs { sign, verify_frame, verify_votes, hash, seal, open, .. } = costs;
        let Costs { message, transfer, wake, append, put, .. } = costs;
        let checked = [sign, verify_frame, verify_votes, hash, seal, open];
        let carried = [message, transfer, wake, append, put];
        // What a term takes is for nobody to say here; a term that was left out takes forever.
        assert!(checked.into_iter().chain(carried).all(f64::is_finite), "{costs:?}");
        assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0, "the log is removed");
    }

    #[test]
    fn a_slot_has_the_frames_that_a_client_makes_of_its_writes() {
        let found = |writes, value_bytes| -> Vec<usize> {
            let frames = Load { writes, value_bytes, votes: 2 }.frames().unwrap();
            for (frame, next) in frames.iter().zip(&frames[1..]) {
                assert_eq!(frame.end_number(), next.first_number);
            }
            frames.iter().map(|frame| frame.commands().len()).collect()
        };
        assert_eq!(found(1, 512), [1]);
        assert_eq!(found(64, 512), [64]);
        // A client closes a frame at 256 KiB, or 1,024 commands; what is larger has one by itself.
        assert_eq!(found(100, 4096), [63, 37]);
        assert_eq!(found(2500, 0), [1024, 1024, 452]);
        assert_eq!(found(2, 1 << 20), [1, 1]);
        assert!(Load { writes: 0, value_bytes: 1, votes: 2 }.frames().is_err());
    }
}
