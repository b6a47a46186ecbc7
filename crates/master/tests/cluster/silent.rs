//! A peer that is gone without a word: its connection does not stay.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use crate::fake::Running;

/// Of HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const PING: u8 = 6;
/// Until the ping 10 s, from there to the end 10 s more, and some room; less than the 30 s after which a connection from which nothing
/// comes is closed whether it was asked or not.
const LIMIT: Duration = Duration::from_secs(28);

#[test]
fn a_connection_whose_peer_is_gone_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let master = Running::start(directory.path(), 0);
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, master.port())).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(PREFACE).unwrap();
    stream.write_all(&SETTINGS).unwrap();
    // From here on it says nothing, as a machine without power.
    let began = Instant::now();
    let mut pings = 0;
    loop {
        let mut head = [0; 9];
        match stream.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("it is open still after {:?} and {pings} pings", began.elapsed())
            }
            Err(_) => break,
        }
        pings += u32::from(head[3] == PING);
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        std::io::copy(
            &mut Read::by_ref(&mut stream).take(length.into()),
            &mut std::io::sink(),
        )
        .unwrap();
    }
    assert!(pings > 0, "it was asked whether it is there");
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
}
