//! The largest of each kind that a correct replica or client makes fits a message, and is read back.

use super::*;
use crate::batch::Batch;
use crate::command::{Outcome, RefusalReason};
use crate::frame::{Frame, SessionId};
use crate::ids::{ClusterId, Digest, Slot, Time, View};
use crate::keys::{PublicKey, Signature};
use crate::message::{Decision, Message, StateCertificate};
use crate::quorum::Faults;
use crate::statement::Certificate;
use crate::viewchange::{Lock, NewView, PrefixCertificate, ViewChange};
use crate::{Decode, Encode, ReplicaId};
use bytes::Bytes;

fn quorum() -> Certificate {
    let faults = Faults::new(8, 8).unwrap();
    assert_eq!(faults.n(), REPLICAS);
    let signers = 0..faults.agreement_quorum() as u8;
    Certificate::new(signers.map(|id| (ReplicaId(id), Signature([id; 64]))).collect())
}

fn prefix(slot: u64) -> PrefixCertificate {
    let (slot, history, configuration) = (Slot(slot), Digest([1; 32]), 7);
    PrefixCertificate { slot, history, configuration, certificate: quorum() }
}

/// A frame of two commands whose encoding has so many bytes.
fn frame(bytes: usize) -> Frame {
    let session = SessionId { client: PublicKey([3; 32]), nonce: 5 };
    let of = |command: usize| {
        let commands = [command / 2, command - command / 2].map(|bytes| vec![1; bytes].into());
        Frame::build(ClusterId([1; 16]), session, 1, 1, &commands, None)
    };
    of(bytes - of(0).raw().len())
}

/// One whose encoding has so many bytes, in frames of up to half of that.
fn batch(bytes: usize) -> Batch {
    let empty = Batch::tick(Time(1)).raw().len();
    let (first, rest) = (bytes / 2, bytes - bytes / 2 - empty);
    let batch = Batch::requests(Time(1), vec![frame(first), frame(rest)]);
    assert_eq!(batch.raw().len(), bytes);
    batch
}

fn check(message: &Message, most: usize) {
    let bytes = message.to_bytes();
    assert!(bytes.len() <= most, "{} bytes", bytes.len());
    // No message is printed that has megabytes.
    assert!(Message::from_bytes(bytes) == Ok(message.clone()));
}

#[test]
fn a_new_view_of_the_largest_group_with_all_of_the_window_locked() {
    let lock =
        |slot| Lock { slot: Slot(slot), view: View(9), digest: Digest([2; 32]), writes: quorum() };
    let change = ViewChange {
        view: View(10),
        sender: ReplicaId(1),
        configuration: 7,
        prefix: prefix(100),
        locks: (101..=100 + WINDOW).map(lock).collect(),
        signature: Signature([4; 64]),
    };
    let changes =
        (0..REPLICAS as u8).map(|id| ViewChange { sender: ReplicaId(id), ..change.clone() });
    let new_view = NewView {
        view: View(10),
        sender: ReplicaId(1),
        configuration: 7,
        changes: changes.collect(),
        signature: Signature([5; 64]),
    };
    check(&Message::NewView(Box::new(new_view)), MESSAGE_BYTES);
}

#[test]
fn batches_and_runs_of_them() {
    let (view, slot) = (View(9), Slot(8));
    let largest = batch(BATCH_BYTES);
    let proposal = Message::Propose {
        view,
        slot,
        batch: largest.clone(),
        decided: slot,
        history: Digest([1; 32]),
    };
    check(&proposal, MESSAGE_BYTES);
    // What fetches stop at, and one more; for each slot a proof, and the digests up to a prefix.
    let decision = |batch| Decision { slot, view, accepts: quorum(), batch };
    let mut decisions = vec![decision(Batch::null()); DECISIONS - 2];
    decisions.extend([decision(batch(FETCH_BYTES)), decision(largest)]);
    let between = vec![Digest([7; 32]); DECISIONS];
    check(&Message::Decisions { decisions, prefix: Some(prefix(8)), between }, MESSAGE_BYTES);
    let larger = Message::LockedBatch { slot, batch: batch(BATCH_BYTES + 1) };
    assert!(Message::from_bytes(larger.to_bytes()).is_err(), "a batch of one byte more is refused");
}

#[test]
fn parts_of_a_state() {
    let slot = Slot(8);
    let certificate = quorum();
    let state = StateCertificate { slot, digest: Digest([1; 32]), configuration: 7, certificate };
    check(
        &Message::StateInfo { delivered: slot, state: Some(state), prefix: prefix(8) },
        MESSAGE_BYTES,
    );
    let manifest = |bytes| Message::Manifest { slot, manifest: vec![1; bytes].into() };
    let piece = |bytes| Message::Piece { slot, index: 3, piece: vec![1; bytes].into() };
    check(&manifest(MANIFEST_BYTES), MESSAGE_BYTES);
    check(&piece(PIECE_BYTES), MESSAGE_BYTES);
    assert!(Message::from_bytes(manifest(MANIFEST_BYTES + 1).to_bytes()).is_err());
    assert!(Message::from_bytes(piece(PIECE_BYTES + 1).to_bytes()).is_err());
}

#[test]
fn what_clients_send_and_get() {
    let (view, nonce, id) = (View(9), 5, 7);
    check(&Message::Frame(frame(FRAME_BYTES)), CLIENT_MESSAGE_BYTES);
    check(&Message::Overdue(frame(FRAME_BYTES)), MESSAGE_BYTES);
    assert!(Message::from_bytes(Message::Frame(frame(FRAME_BYTES + 1)).to_bytes()).is_err());
    check(&Message::Read { id, command: vec![1; COMMAND_BYTES].into() }, CLIENT_MESSAGE_BYTES);
    let command = vec![1; COMMAND_BYTES].into();
    check(&Message::ReadAt { id, slot: Slot(3), command }, CLIENT_MESSAGE_BYTES);
    let reply = Outcome::Service(vec![1; FRAME_BYTES].into());
    check(&Message::ReadReply { id, slot: Slot(3), outcome: Some(reply.clone()) }, MESSAGE_BYTES);
    let refused = Outcome::Refused(RefusalReason::Service("x".repeat(4096)));
    let outcomes = vec![(3, refused); SESSION_WINDOW as usize - 1].into_iter().chain([(4, reply)]);
    check(&Message::Replies { view, nonce, outcomes: outcomes.collect() }, MESSAGE_BYTES);
}

/// Many commands in a frame take more bytes than one of their sum: each has its length before it.
#[test]
fn a_frame_has_room_for_the_largest_command_and_for_the_most() {
    let session = SessionId { client: PublicKey([3; 32]), nonce: 5 };
    let build =
        |commands: &[Bytes]| Frame::build(ClusterId([1; 16]), session, 1, 1, commands, None);
    for commands in [
        vec![Bytes::from(vec![1; COMMAND_BYTES])],
        vec![Bytes::from(vec![1; COMMAND_BYTES / FRAME_COMMANDS]); FRAME_COMMANDS],
    ] {
        let frame = build(&commands);
        assert!(frame.raw().len() <= FRAME_BYTES);
        assert!(Frame::from_bytes(frame.to_bytes()).as_ref() == Ok(&frame));
    }
}
