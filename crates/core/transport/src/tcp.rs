//! Socket options and addresses.

use crate::bounds::SILENCE;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::Duration;

/// Sets what every connection of ours has: no delay of small writes, and an end within
/// [`SILENCE`] of the peer's disappearance without a word.
///
/// # Errors
/// As the operating system gives them.
pub fn tune<S: AsFd>(socket: &S) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(SILENCE / 2)
        .with_interval(Duration::from_secs(2))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(SILENCE))?;
    Ok(())
}

/// One of the addresses of `host_port`, the `attempt`-th modulo their number. Numeric addresses
/// cost nothing; names ask the system's resolver, and wait for it.
///
/// # Errors
/// When the text is no `host:port`, or the name has no address.
pub fn connect_address(host_port: &str, attempt: usize) -> io::Result<SocketAddr> {
    if let Ok(address) = host_port.parse::<SocketAddr>() {
        return Ok(address);
    }
    let addresses = addresses(host_port)?;
    Ok(addresses[attempt % addresses.len()])
}

/// All of them, at least one; asks the system's resolver, and waits for it.
pub(crate) fn addresses(host_port: &str) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<SocketAddr> = host_port.to_socket_addrs()?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host name has no address"));
    }
    Ok(addresses)
}
