//! A proxied connection: two sockets, and a pump for each direction.
//!
//! A pump takes pieces from one socket, with the time at which they came, into a bounded queue,
//! and gives them to the other one when the rules of its direction let them go. So a delay does
//! not limit the throughput, a cut fills the queue and then the sender's window, as on a network,
//! and the end of the stream comes after what was sent before it.

use super::direction::Direction;
use super::{Disruption, Link, Side};
use crate::course::lock;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// Largest piece.
const PIECE_BYTES: usize = 16 * 1024;

/// Pieces on the way in one direction.
const PIECES: usize = 128;

/// After this time TCP sends a lost segment again, the first time.
const RETRANSMISSION: Duration = Duration::from_millis(200);

/// Upstream has taken a connection by then, or has not.
const CONNECT: Duration = Duration::from_secs(5);

/// Takes connections as long as the program runs.
pub(super) async fn serve(listener: TcpListener, link: Arc<Link>) {
    loop {
        match listener.accept().await {
            Ok((dialler, _)) => {
                let link = Arc::clone(&link);
                tokio::spawn(async move { carry(dialler, &link).await });
            }
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// One end of a connection; ends with a reset unless it was shut down in order.
fn reset(socket: &TcpStream) {
    // On a socket that is closed already there is nothing to do.
    let _ = socket.set_zero_linger();
}

async fn carry(dialler: TcpStream, link: &Link) {
    let mut disruption = link.disruption.subscribe();
    let before = *disruption.borrow_and_update();
    let connecting = tokio::time::timeout(CONNECT, TcpStream::connect(link.upstream));
    let Ok(Ok(acceptor)) = connecting.await else {
        reset(&dialler);
        return;
    };
    let _ = (dialler.set_nodelay(true), acceptor.set_nodelay(true));
    let outcome = tokio::select! {
        ended = async {
            tokio::try_join!(
                pump(&dialler, &acceptor, &link.there),
                pump(&acceptor, &dialler, &link.back),
            )
        } => ended.err().map(|_| None),
        now = struck(&mut disruption, before) => Some(now),
    };
    match outcome {
        // Both streams came to their ends.
        None => {}
        Some(now) => {
            if let Some(now) = now {
                *lock(&link.struck) += 1;
                if now.half_opens > before.half_opens {
                    half_open(dialler, acceptor, now, &mut disruption).await;
                    return;
                }
            }
            // A reset does not pass a cut either.
            for direction in [&link.there, &link.back] {
                let _ = direction.subscribe().wait_for(|rules| !rules.cut).await;
            }
            reset(&dialler);
            reset(&acceptor);
        }
    }
}

/// Waits until connections are struck; `None` when the link is gone.
async fn struck(
    disruption: &mut watch::Receiver<Disruption>,
    before: Disruption,
) -> Option<Disruption> {
    let strikes =
        |now: &Disruption| now.resets > before.resets || now.half_opens > before.half_opens;
    disruption.wait_for(strikes).await.ok().map(|now| *now)
}

/// One end is told, the other is left with silence.
async fn half_open(
    dialler: TcpStream,
    acceptor: TcpStream,
    now: Disruption,
    disruption: &mut watch::Receiver<Disruption>,
) {
    let (informed, left) = match now.uninformed {
        Side::Dialler => (acceptor, dialler),
        Side::Acceptor => (dialler, acceptor),
    };
    reset(&informed);
    drop(informed);
    let _ = disruption.wait_for(|later| later.mended > now.mended).await;
    reset(&left);
}

async fn pump(from: &TcpStream, to: &TcpStream, direction: &Direction) -> io::Result<()> {
    let (pieces, waiting) = mpsc::channel(PIECES);
    let taking = async {
        loop {
            let piece = take(from).await?;
            let last = piece.is_empty();
            if pieces.send((Instant::now(), piece)).await.is_err() || last {
                return io::Result::Ok(());
            }
        }
    };
    tokio::try_join!(taking, give(waiting, to, direction))?;
    Ok(())
}

/// The next piece; empty at the end of the stream.
async fn take(from: &TcpStream) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        from.readable().await?;
        match from.try_read(&mut piece) {
            Ok(length) => {
                piece.truncate(length);
                return Ok(piece);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn give(
    mut waiting: mpsc::Receiver<(Instant, Vec<u8>)>,
    to: &TcpStream,
    direction: &Direction,
) -> io::Result<()> {
    let mut rules = direction.subscribe();
    while let Some((came, mut piece)) = waiting.recv().await {
        let now = *rules.borrow_and_update();
        let mut late = now.delay;
        if !now.jitter.is_zero() {
            late += Duration::from_micros(direction.draw(now.jitter.as_micros() as u64));
        }
        let mut retransmission = RETRANSMISSION;
        while direction.happens(now.loss_per_mille) && retransmission < 16 * RETRANSMISSION {
            late += retransmission;
            retransmission *= 2;
        }
        if !late.is_zero() {
            sleep_until(came + late).await;
        }
        if now.bytes_per_second > 0 {
            let time = piece.len() as f64 / now.bytes_per_second as f64;
            let ended = rules.wait_for(|rules| rules.bytes_per_second == 0);
            // Either is a reason to go on.
            let _ = tokio::time::timeout(Duration::from_secs_f64(time), ended).await;
        }
        let mut cut = false;
        while rules.borrow_and_update().cut {
            cut = true;
            if rules.changed().await.is_err() {
                break;
            }
        }
        let mut corrupted = false;
        if !piece.is_empty() && direction.happens(now.corrupt_per_mille) {
            let at = direction.draw(piece.len() as u64) as usize;
            piece[at] ^= 1 << direction.draw(8);
            corrupted = true;
        }
        if cut || corrupted || !late.is_zero() || now.bytes_per_second > 0 {
            direction.count();
        }
        if piece.is_empty() {
            let stream = rustix::net::Shutdown::Write;
            return rustix::net::shutdown(to, stream).map_err(io::Error::from);
        }
        put(to, &piece).await?;
    }
    Ok(())
}

async fn put(to: &TcpStream, mut piece: &[u8]) -> io::Result<()> {
    while !piece.is_empty() {
        to.writable().await?;
        match to.try_write(piece) {
            Ok(length) => piece = &piece[length..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
