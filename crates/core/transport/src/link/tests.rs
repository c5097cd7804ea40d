use super::*;
use crate::bounds::COPIED_MESSAGE_BYTES;
use crate::hello::Role;
use perdura_protocol::{ClusterId, Scheme, SecretKey};
use std::os::unix::net::UnixStream;

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::Ed25519, [seed; 32])
}

fn pair(expected: PublicKey) -> (Link, Link) {
    let hello = Hello::client(ClusterId([1; 16]), Role::Client);
    let dialler = Identity::new(&key(1)).unwrap();
    let acceptor = Identity::new(&key(2)).unwrap();
    (
        Link::dial(&dialler, expected, &hello, Bounds::CLIENT).unwrap(),
        Link::accept(&acceptor).unwrap(),
    )
}

/// Moves all bytes from one end to the other, `step` at a time; gives what they completed.
fn carry(from: &mut Link, to: &mut Link, step: usize) -> Result<Vec<Received>, LinkError> {
    let mut wire = Vec::new();
    assert_eq!(from.write_to(&mut wire).unwrap(), Drained::Yes);
    let mut received = Vec::new();
    for piece in wire.chunks(step) {
        to.feed(piece)?;
        while let Some(one) = to.next_received()? {
            received.push(one);
        }
    }
    Ok(received)
}

fn up() -> (Link, Link) {
    let (mut dialler, mut acceptor) = pair(key(2).public());
    for _ in 0..4 {
        let received = carry(&mut dialler, &mut acceptor, 1000).unwrap();
        if let [Received::Hello(hello, proven)] = &received[..] {
            assert_eq!((hello.role, *proven), (Role::Client, key(1).public()));
            acceptor.welcome(Bounds::CLIENT_AT_REPLICA, None, false).unwrap();
        }
        carry(&mut acceptor, &mut dialler, 1000).unwrap();
    }
    assert!(dialler.is_up() && acceptor.is_up());
    (dialler, acceptor)
}

#[test]
fn the_dialler_chooses_the_cipher_that_its_processor_is_made_for() {
    for (dials, accepts) in [(true, false), (false, true), (false, false)] {
        let hello = Hello::client(ClusterId([1; 16]), Role::Client);
        let dialler = Identity::preferring(&key(1), dials).unwrap();
        let acceptor = Identity::preferring(&key(2), accepts).unwrap();
        let mut dialler = Link::dial(&dialler, key(2).public(), &hello, Bounds::CLIENT).unwrap();
        let mut acceptor = Link::accept(&acceptor).unwrap();
        let mut suite = None;
        for _ in 0..4 {
            let received = carry(&mut dialler, &mut acceptor, 1000).unwrap();
            if matches!(received[..], [Received::Hello(..)]) {
                let tls = acceptor.handshake.tls.as_ref().unwrap();
                suite = Some(tls.negotiated_cipher_suite().unwrap().suite());
                acceptor.welcome(Bounds::CLIENT_AT_REPLICA, None, false).unwrap();
            }
            carry(&mut acceptor, &mut dialler, 1000).unwrap();
        }
        let expected = match dials {
            true => rustls::CipherSuite::TLS13_AES_128_GCM_SHA256,
            false => rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        };
        assert_eq!(suite, Some(expected));
        let message = Bytes::from(vec![5; 100_000]);
        dialler.queue(message.clone()).unwrap();
        let received = carry(&mut dialler, &mut acceptor, 5000).unwrap();
        assert!(received == [Received::Message(message)]);
    }
}

#[test]
fn who_has_nothing_to_say_still_says_goodbye() {
    let (mut dialler, mut acceptor) = up();
    assert!(!dialler.wants_write());
    dialler.close();
    assert!(dialler.wants_write());
    let said = carry(&mut dialler, &mut acceptor, 1000);
    assert!(matches!(said, Err(LinkError::Closed)), "{said:?}");
    assert!(!dialler.wants_write());
}

#[test]
fn messages_of_any_size_in_pieces_of_any_size_arrive_in_order() {
    let (mut dialler, mut acceptor) = up();
    for step in [1, 17, 5000, 1_000_000] {
        let sizes = [1, 3, COPIED_MESSAGE_BYTES, 5000, 16_384, 100_000, 2, 700_000];
        let messages: Vec<Bytes> = sizes
            .iter()
            .enumerate()
            .map(|(index, size)| Bytes::from(vec![index as u8; *size]))
            .collect();
        for message in &messages {
            dialler.queue(message.clone()).unwrap();
        }
        let received = carry(&mut dialler, &mut acceptor, step).unwrap();
        let expected: Vec<_> = messages.into_iter().map(Received::Message).collect();
        assert!(received == expected, "pieces of {step}");
        assert_eq!((dialler.queued_bytes(), acceptor.inbound_bytes()), (0, 0));
    }
}

/// In both directions: a change of keys is a record of 20 bytes before what is sent.
#[test]
fn a_link_takes_other_keys_after_an_hour() {
    let (mut dialler, mut acceptor) = up();
    let begun = std::time::Instant::now();
    let message = Bytes::from_static(b"0123456789");
    for (minutes, bytes) in [(0, 34), (59, 34), (61, 54), (62, 34), (300, 54)] {
        let now = begun + std::time::Duration::from_secs(60 * minutes);
        for _ in 0..2 {
            dialler.queue(message.clone()).unwrap();
            let mut wire = Vec::new();
            assert_eq!(dialler.write_at(now, &mut wire).unwrap(), Drained::Yes);
            assert_eq!(wire.len(), bytes, "{minutes}");
            acceptor.feed(&wire).unwrap();
            let received = acceptor.next_received().unwrap();
            assert_eq!(received, Some(Received::Message(message.clone())));
            // And the other way.
            std::mem::swap(&mut dialler, &mut acceptor);
        }
    }
}

#[test]
fn who_is_welcome_keeps_nothing_of_tls() {
    let (mut dialler, mut acceptor) = pair(key(2).public());
    while !acceptor.is_up() {
        let received = carry(&mut dialler, &mut acceptor, 1000).unwrap();
        if matches!(received[..], [Received::Hello(..)]) {
            acceptor.welcome(Bounds::CLIENT_AT_REPLICA, None, false).unwrap();
        }
        carry(&mut acceptor, &mut dialler, 1000).unwrap();
    }
    // Though it has nothing to say yet.
    assert!(dialler.is_up() && dialler.handshake.tls.is_none());
}

#[test]
fn small_messages_share_a_record_and_a_write() {
    let (mut dialler, _acceptor) = up();
    for _ in 0..100 {
        dialler.queue(Bytes::from_static(b"0123456789")).unwrap();
    }
    let mut wire = Vec::new();
    dialler.write_to(&mut wire).unwrap();
    // 1,400 bytes of messages with their lengths: one record, of 20 bytes overhead.
    assert_eq!(wire.len(), 1400 + 20);
}

#[test]
fn the_queue_is_bounded_and_sizes_are_checked() {
    let (mut dialler, _acceptor) = up();
    let large = Bytes::from(vec![0; Bounds::CLIENT.send_bytes]);
    let mut taken = 0;
    while dialler.queue(large.clone()).is_ok() {
        taken += 1;
    }
    assert_eq!(taken, Bounds::CLIENT.queue_bytes / (large.len() + LENGTH_BYTES));
    assert_eq!(dialler.queue(large), Err(QueueError::Full));
    assert_eq!(dialler.queue(Bytes::new()), Err(QueueError::Size(0)));
    let size = Bounds::CLIENT.send_bytes + 1;
    assert_eq!(dialler.queue(Bytes::from(vec![0; size])), Err(QueueError::Size(size)));
}

/// Nobody can: there are no keys for it before the welcome.
#[test]
fn who_says_more_before_the_welcome_misbehaves() {
    let (mut dialler, mut acceptor) = pair(key(2).public());
    carry(&mut dialler, &mut acceptor, 1000).unwrap();
    carry(&mut acceptor, &mut dialler, 1000).unwrap();
    let mut hello = Vec::new();
    dialler.write_to(&mut hello).unwrap();
    hello.extend_from_slice(b"more");
    let error = acceptor.feed(&hello).unwrap_err();
    assert!(matches!(error, LinkError::Misbehaviour(Misbehaviour::MalformedHello, _)));
}

/// Its welcome may be under way, and the acceptor expects records.
#[test]
fn a_dialler_that_gives_up_says_nothing_more() {
    let (mut dialler, mut acceptor) = pair(key(2).public());
    carry(&mut dialler, &mut acceptor, 1000).unwrap();
    carry(&mut acceptor, &mut dialler, 1000).unwrap();
    carry(&mut dialler, &mut acceptor, 1000).unwrap();
    dialler.close();
    let mut wire = Vec::new();
    assert_eq!(dialler.write_to(&mut wire).unwrap(), Drained::Yes);
    assert!(wire.is_empty());
}

#[test]
fn what_is_sent_with_the_welcome_comes_with_it() {
    for step in [1, 7, 1000, 100_000] {
        let (mut dialler, mut acceptor) = pair(key(2).public());
        carry(&mut dialler, &mut acceptor, 1000).unwrap();
        carry(&mut acceptor, &mut dialler, 1000).unwrap();
        carry(&mut dialler, &mut acceptor, 1000).unwrap();
        acceptor.welcome(Bounds::CLIENT_AT_REPLICA, None, false).unwrap();
        let sent = [Bytes::from_static(b"first"), Bytes::from(vec![9; 70_000])];
        sent.iter().for_each(|message| acceptor.queue(message.clone()).unwrap());
        let received = carry(&mut acceptor, &mut dialler, step).unwrap();
        let messages = sent.into_iter().map(Received::Message);
        let expected: Vec<_> = std::iter::once(Received::Welcome).chain(messages).collect();
        assert!(received == expected, "{step}");
    }
}

#[test]
fn an_end_is_told_and_what_came_before_it_is_given() {
    let (mut dialler, mut acceptor) = up();
    dialler.queue(Bytes::from_static(b"last")).unwrap();
    dialler.close();
    let mut wire = Vec::new();
    assert_eq!(dialler.write_to(&mut wire).unwrap(), Drained::Yes);
    acceptor.feed(&wire).unwrap();
    let last = Received::Message(Bytes::from_static(b"last"));
    assert_eq!(acceptor.next_received().unwrap(), Some(last));
    assert!(matches!(acceptor.next_received(), Err(LinkError::Closed)));
}

#[test]
fn once_it_is_up_nothing_of_tls_is_kept() {
    let (dialler, acceptor) = up();
    assert!(dialler.handshake.tls.is_none() && acceptor.handshake.tls.is_none());
}

/// A socket that gives and takes a few bytes at a time.
#[test]
fn what_is_read_from_a_socket_is_what_was_written_to_the_other() {
    let (mut dialler, mut acceptor) = up();
    let sizes = [5000, 1, 200_000, 4096, 70_000];
    let sent: Vec<Bytes> = sizes.iter().map(|size| Bytes::from(vec![7; *size])).collect();
    sent.iter().for_each(|message| dialler.queue(message.clone()).unwrap());
    let (mut writer, socket) = UnixStream::pair().unwrap();
    let writes = std::thread::spawn(move || dialler.write_to(&mut writer).unwrap());
    let mut received = Vec::new();
    for most in [1, 10, 100, 1000, 10_000].into_iter().cycle() {
        let arrived = acceptor.read_from(&socket, most).unwrap();
        assert!(arrived.bytes <= most && (arrived.all || arrived.bytes > 0));
        acceptor.take_in().unwrap();
        while let Some(Received::Message(message)) = acceptor.next_received().unwrap() {
            received.push(message);
        }
        if arrived.bytes == 0 {
            break;
        }
    }
    assert_eq!(writes.join().unwrap(), Drained::Yes);
    assert!(received == sent);
}

#[test]
fn another_key_than_expected_is_refused_by_the_dialler() {
    let (mut dialler, mut acceptor) = pair(key(3).public());
    carry(&mut dialler, &mut acceptor, 1000).unwrap();
    let error = carry(&mut acceptor, &mut dialler, 1000).unwrap_err();
    assert!(matches!(&error, LinkError::Tls(text) if text.contains("as configured")), "{error}");
}

#[test]
fn a_refusal_reaches_the_dialler_in_words() {
    let (mut dialler, mut acceptor) = pair(key(2).public());
    carry(&mut dialler, &mut acceptor, 1000).unwrap();
    carry(&mut acceptor, &mut dialler, 1000).unwrap();
    let received = carry(&mut dialler, &mut acceptor, 1000).unwrap();
    assert!(matches!(received[..], [Received::Hello(..)]));
    acceptor.refuse(&Refusal("not today".into()));
    let error = carry(&mut acceptor, &mut dialler, 1000).unwrap_err();
    assert!(
        matches!(&error, LinkError::Refused { reason, .. } if reason == "not today"),
        "{error}"
    );
}

#[test]
fn garbage_is_misbehaviour_and_so_is_an_oversized_frame() {
    let (_dialler, mut acceptor) = pair(key(2).public());
    let error = acceptor.feed(b"GET / HTTP/1.1\r\n\r\n").unwrap_err();
    assert!(matches!(error, LinkError::Misbehaviour(Misbehaviour::Tls, _)), "{error}");

    let (mut dialler, mut acceptor) = up();
    let size = Bounds::CLIENT_AT_REPLICA.receive_bytes + 1;
    dialler.push(Bytes::from(vec![0; size]));
    let error = carry(&mut dialler, &mut acceptor, 100_000).unwrap_err();
    assert!(matches!(error, LinkError::Misbehaviour(Misbehaviour::OversizedFrame, _)));
    assert!(acceptor.inbound_bytes() < 200_000, "refused by its length, not by its bytes");
}
