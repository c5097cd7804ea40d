//! What is here of a connection's first TLS record (RFC 8446, section 5.1), before anything is spent on it.

use crate::bounds::FIRST_RECORD_BYTES;
use mio::net::TcpStream;
use std::io;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FirstRecord {
    /// It is none.
    None,
    /// A part, or nothing yet.
    Begun,
    /// All, or as much as is looked at.
    Whole,
    /// The other end closed the connection, or it failed.
    Gone,
}

impl FirstRecord {
    /// Of a socket, in which it stays.
    pub(super) fn of(stream: &TcpStream) -> FirstRecord {
        FirstRecord::peek(stream, &mut [0; FIRST_RECORD_BYTES]).0
    }

    /// The same, with what was looked at, and how much that is.
    pub(super) fn peek(
        stream: &TcpStream,
        bytes: &mut [u8; FIRST_RECORD_BYTES],
    ) -> (FirstRecord, usize) {
        loop {
            return match stream.peek(bytes) {
                Ok(0) => (FirstRecord::Gone, 0),
                Ok(length) => (FirstRecord::in_bytes(&bytes[..length]), length),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (FirstRecord::Begun, 0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => (FirstRecord::Gone, 0),
            };
        }
    }

    fn in_bytes(bytes: &[u8]) -> FirstRecord {
        // A handshake message, in a version that begins with 3.
        if !bytes.starts_with(&[22, 3][..bytes.len().min(2)]) {
            return FirstRecord::None;
        }
        let Some(&[high, low]) = bytes.get(3..5) else { return FirstRecord::Begun };
        let length = 5 + usize::from(u16::from_be_bytes([high, low]));
        match bytes.len() >= length.min(FIRST_RECORD_BYTES) {
            true => FirstRecord::Whole,
            false => FirstRecord::Begun,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_whole_when_all_of_it_is_here_and_large_ones_when_enough_is() {
        let record = |length: u16, there: usize| {
            let mut bytes = vec![22, 3, 1];
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.resize(there, 7);
            FirstRecord::in_bytes(&bytes)
        };
        for there in 1..305 {
            assert_eq!(record(300, there), FirstRecord::Begun, "{there}");
        }
        assert_eq!(record(300, 305), FirstRecord::Whole);
        assert_eq!(record(300, 400), FirstRecord::Whole);
        assert_eq!(record(u16::MAX, FIRST_RECORD_BYTES - 1), FirstRecord::Begun);
        assert_eq!(record(u16::MAX, FIRST_RECORD_BYTES), FirstRecord::Whole);
        for other in [&b"G"[..], b"GET / HTTP", &[22, 2], &[21, 3, 1, 0, 2]] {
            assert_eq!(FirstRecord::in_bytes(other), FirstRecord::None, "{other:?}");
        }
    }
}
