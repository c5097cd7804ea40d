//! What this machine takes for each of the things that a write is made of: processor time, user and system, of
//! this process, measured with the code that replicas run.

use crate::process::own_cpu;
use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use perdura_durability::{Expectation, FileDisk, Log, Options, format, open};
use perdura_protocol::configuration::Durability;
use perdura_protocol::keys::Claim;
use perdura_protocol::{
    Batch, ClusterId, Digest, Frame, Record, ReplicaId, Scheme, SecretKey, SessionId, Slot, Time,
    View,
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

/// Each term is measured for this time at least, and so many times; the least counts: what disturbs only adds.
const SPAN: Duration = Duration::from_millis(20);
const TIMES: u32 = 5;

/// Bytes of what a replica signs.
const STATEMENT_BYTES: usize = 120;

/// Bytes of a small message: a vote.
const SMALL_BYTES: usize = 140;

/// Processor time of each, microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// A signature made.
    pub sign: f64,
    /// A client's frame verified.
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

/// What a batch holds.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Writes in it.
    pub writes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Votes of others in a quorum.
    pub votes: usize,
}

/// The least processor time that `body` takes, microseconds.
fn least<R>(mut body: impl FnMut() -> Result<R>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..TIMES {
        let before = own_cpu();
        let mut count = 0u32;
        while count < 8 || own_cpu().saturating_sub(before) < SPAN {
            for _ in 0..4 {
                black_box(body()?);
            }
            count += 4;
        }
        let took = own_cpu().saturating_sub(before).as_secs_f64();
        least = least.min(took * 1e6 / f64::from(count));
    }
    Ok(least)
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

fn batch(load: Load) -> Batch {
    let session = SessionId { client: key(1).public(), nonce: 1 };
    let command = Bytes::from(vec![7; load.value_bytes + 32]);
    let commands = vec![command; load.writes.clamp(1, 1024)];
    Batch::requests(Time(1), vec![Frame::build(CLUSTER, session, 0, 1, &commands, Some(&key(1)))])
}

impl Terms {
    /// Measures all of them; the log's in `work`.
    pub fn measure(load: Load, work: &Path) -> Result<Terms> {
        let signer = key(1);
        let (votes, frame) = (claims(load.votes), claims(1));
        let verify = |claims: &[Claim<Vec<u8>>]| -> Result<()> {
            let genuine = Scheme::Ed25519.verify_every(claims, [3; 32]);
            genuine.then_some(()).context("a genuine signature is not verified")
        };
        let batch = batch(load);
        let raw = batch.raw().clone();
        let (seal, open) = records(&raw)?;
        Ok(Terms {
            sign: least(|| Ok(signer.sign(&[7; STATEMENT_BYTES])))?,
            verify_frame: least(|| verify(&frame))?,
            verify_votes: least(|| verify(&votes))?,
            hash: least(|| Ok(Digest::of(&raw)))?,
            seal,
            open,
            message: sockets(SMALL_BYTES)?,
            transfer: sockets(raw.len())?,
            wake: wakes()?,
            append: appends(&batch, work)?,
            put: puts(load.value_bytes)?,
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
            other.welcome(Bounds::REPLICA)?;
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
fn records(message: &Bytes) -> Result<(f64, f64)> {
    let (mut one, mut other) = link()?;
    let mut wires = vec![Vec::new(); 64];
    let (mut seal, mut open) = (f64::INFINITY, f64::INFINITY);
    let us = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() * 1e6;
    for _ in 0..TIMES * 4 {
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
        (seal, open) = (seal.min(us(begun, sealed) / each), open.min(us(sealed, opened) / each));
    }
    Ok((seal, open))
}

/// From one socket of this process to another, written and read at once.
fn sockets(bytes: usize) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut one = TcpStream::connect(listener.local_addr()?)?;
    let (mut other, _) = listener.accept()?;
    tune(&one)?;
    tune(&other)?;
    let out = vec![7; bytes];
    let mut into = vec![0; bytes];
    // What does not fit into the socket's buffers goes in parts.
    let part = bytes.min(32 * 1024);
    least(|| {
        for (out, into) in out.chunks(part).zip(into.chunks_mut(part)) {
            one.write_all(out)?;
            other.read_exact(into)?;
        }
        Ok(())
    })
}

/// From one thread to another and back; half of that.
fn wakes() -> Result<f64> {
    let (to, inbox) = sync_channel::<()>(1);
    let (back, replies) = sync_channel::<()>(1);
    let echo = std::thread::spawn(move || while inbox.recv().is_ok() && back.send(()).is_ok() {});
    let pair = least(|| {
        to.send(())?;
        Ok(replies.recv()?)
    })?;
    drop(to);
    echo.join().map_err(|_| anyhow!("a thread that only answers panicked"))?;
    Ok(pair / 2.0)
}

/// Appends of one batch each, to a log of a replica's.
fn appends(batch: &Batch, work: &Path) -> Result<f64> {
    let directory = tempfile::Builder::new()
        .prefix("perdura-bench-")
        .tempdir_in(work)
        .with_context(|| format!("cannot make a directory in {}", work.display()))?;
    let mut log = log(directory.path())?;
    let votes: Vec<Record> = (1..=2)
        .map(|slot| Record::Vote {
            view: View(0),
            slot: Slot(slot),
            batch: batch.clone(),
            writes: Default::default(),
        })
        .collect();
    // The files that replicas have after a while are there before anything is measured.
    for _ in 0..64 {
        log.append(&votes[..1])?;
        log.prepare_free_file()?;
    }
    let mut least = f64::INFINITY;
    for _ in 0..TIMES {
        let before = own_cpu();
        for _ in 0..64 {
            log.append(&votes[1..])?;
        }
        let took = own_cpu().saturating_sub(before).as_secs_f64();
        least = least.min(took * 1e6 / 64.0);
        for _ in 0..64 {
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
    };
    Ok(open(disk, &expected, &Options::default())?.log)
}

/// Values written over others, of 10,000 keys.
fn puts(value_bytes: usize) -> Result<f64> {
    let mut map = SegmentMap::new();
    let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let value = vec![7; value_bytes];
    let put = |map: &mut SegmentMap, number: u64| {
        let full = map.put(&key(number % 10_000), &value, u64::MAX);
        full.map_err(|_| anyhow!("the state is full"))
    };
    (0..10_000).try_for_each(|number| put(&mut map, number))?;
    let mut number = 0u64;
    least(|| {
        number += 7919;
        put(&mut map, number)
    })
}
