//! Connections between processes of one machine, past its TCP.
//!
//! A listener with [`super::TcpOptions::local`] has a Unix socket beside its TCP port, and a client with the same option
//! tries that first. It carries the same bytes; a read of 16 KiB costs both sides together less than half of the
//! processor time that the loopback interface takes. The socket has no file: its name, in Linux' abstract namespace
//! (`unix(7)`), is `redhare/` and the TCP address. So it is found without asking anyone, is there only as long as the
//! listener, and only inside its network namespace.
//!
//! Any user may bind such a name, also that of an address of another machine. A client therefore believes only a socket
//! that was bound by its own user or by root, and otherwise goes to the address.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::sys;

/// The name beside a TCP address. A listener on all addresses has the port alone in its name.
pub(super) fn name(address: SocketAddr) -> io::Result<SockAddr> {
    SockAddr::unix(if address.ip().is_unspecified() {
        format!("\0redhare/*:{}", address.port())
    } else {
        format!("\0redhare/{address}")
    })
}

/// Connects to the socket beside `address`; `None` if there is none on this machine that can be believed. Does not block:
/// the kernel accepts or refuses at once, and one whose queue is full counts as absent.
pub(super) fn connect(address: SocketAddr) -> Option<Socket> {
    let everywhere = || {
        let any = if address.is_ipv4() {
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()))
        } else {
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port()))
        };
        is_here(address).then(|| reach(any, address)).flatten()
    };
    reach(address, address).or_else(everywhere)
}

/// Whether this machine has the address: only then can a socket have it.
fn is_here(address: SocketAddr) -> bool {
    UdpSocket::bind((address.ip(), 0)).is_ok()
}

fn reach(listens: SocketAddr, address: SocketAddr) -> Option<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).ok()?;
    socket.connect(&name(listens).ok()?).ok()?;
    socket.set_nonblocking(false).ok()?;
    let owner = sys::peer_user(&socket).ok()?;
    if owner == 0 || owner == sys::own_user() {
        return Some(socket);
    }
    tracing::warn!(%address, owner, "a foreign user's socket poses as this address here: it is reached by TCP instead");
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_users_socket_is_not_believed() {
        // A port that nothing listens on is enough: only the name matters here.
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let listen = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            socket.bind(&name(address).unwrap()).unwrap();
            socket.listen(1).unwrap();
            socket
        };
        assert!(connect(address).is_none(), "there is none yet");
        let own = listen();
        assert!(connect(address).is_some());
        drop(own);
        assert!(connect(address).is_none(), "it ends with its listener");
        let _posing = sys::as_user(65534, listen);
        assert!(connect(address).is_none());
    }
}
