//! Which version of the protocol a replica speaks, asked without being one of its group's.

use crate::bounds::{Bounds, HANDSHAKE_TIME, READ_BYTES};
use crate::error::LinkError;
use crate::hello::{Hello, PROTOCOL_VERSION, Role};
use crate::link::Link;
use crate::tcp::connect_address;
use crate::{HubConfig, MemberAddress};
use std::io;
use std::net::TcpStream;
use std::time::Instant;

/// Asks the replica at this address: connects as a client, which it refuses or not, and either answer says its version. Blocks, for
/// [`HANDSHAKE_TIME`] twice at most beside what the system's resolver takes.
///
/// # Errors
/// When nobody answers there, or one who does not prove the member's key.
pub fn version_of(config: &HubConfig, member: &MemberAddress) -> Result<u16, LinkError> {
    let identity = config.identity().map_err(|error| LinkError::Tls(error.to_string()))?;
    let hello = Hello::client(config.cluster, Role::Client);
    let mut link = Link::dial(&identity, member.key, &hello, Bounds::HANDSHAKE)?;
    let address = connect_address(&member.address, 0)?;
    let mut socket = TcpStream::connect_timeout(&address, HANDSHAKE_TIME)?;
    socket.set_write_timeout(Some(HANDSHAKE_TIME))?;
    let deadline = Instant::now() + HANDSHAKE_TIME;
    loop {
        while link.wants_write() {
            link.write_to(&mut socket)?;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LinkError::Expired);
        }
        socket.set_read_timeout(Some(left))?;
        match link.read_from(&socket, READ_BYTES) {
            Ok(arrived) if arrived.bytes == 0 => return Err(LinkError::Closed),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(LinkError::Expired);
            }
            Err(error) => return Err(error.into()),
        }
        link.take_in()?;
        match link.next_received() {
            Ok(None) => {}
            // It serves us, so it speaks as we do.
            Ok(Some(_)) => return Ok(PROTOCOL_VERSION),
            Err(LinkError::Refused { version, .. }) => return Ok(version),
            Err(error) => return Err(error),
        }
    }
}
