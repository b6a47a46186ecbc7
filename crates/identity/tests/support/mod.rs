//! Real handshakes between a master's and a client's end.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use identity::{Authority, Credentials, Failure, Identity, Issue, Role, Validity};
use openssl::ssl::{HandshakeError, SslStream};

pub(crate) const HOST: &str = "127.0.0.1";

pub(crate) fn issue(role: Role) -> Issue {
    Issue {
        role,
        name: None,
        addresses: if role == Role::Master {
            vec![HOST.to_owned(), "localhost".to_owned()]
        } else {
            Vec::new()
        },
        validity: Validity::days(30),
    }
}

pub(crate) fn issued(authority: &Authority, at: &Path, role: Role) -> Credentials {
    let files = authority
        .issue(&issue(role))
        .unwrap()
        .write(&at.join(role.name()))
        .unwrap();
    Credentials::load(&files).unwrap()
}

/// What the client's end reads of a greeting, or why it does not trust; and whom the master's end takes it for.
pub(crate) fn meet(
    master: &Credentials,
    client: &Credentials,
    host: &str,
) -> (Result<(), String>, Option<Identity>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let acceptor = master.acceptor().clone();
    let server = std::thread::spawn(move || {
        let mut stream = acceptor.accept(theirs).ok()?;
        let identity = Identity::of_peer(stream.ssl());
        stream.write_all(b"hello").ok()?;
        // One that is shown and means nothing is taken for nobody's.
        identity.ok()?
    });
    let said = greet(client, host, ours);
    (said, server.join().unwrap())
}

fn greet(client: &Credentials, host: &str, stream: UnixStream) -> Result<(), String> {
    let failure = |error: &openssl::ssl::Error, verdict| {
        Failure::of_handshake(error, verdict, host, client).to_string()
    };
    let mut stream: SslStream<UnixStream> = match client.connector().connect(host, stream) {
        Ok(stream) => stream,
        Err(HandshakeError::Failure(middle)) => {
            return Err(failure(middle.error(), middle.ssl().verify_result()));
        }
        Err(other) => panic!("{other}"),
    };
    // What the other end makes of our certificate comes with the first answer (RFC 8446, section 4.4.2).
    let mut greeting = [0; 5];
    if let Err(error) = stream.read_exact(&mut greeting) {
        return Err(Failure::of_answer(&error.to_string(), client).to_string());
    }
    let theirs = Identity::of_peer(stream.ssl())
        .map_err(|error| error.to_string())?
        .unwrap();
    Failure::unless_master(&theirs, client).map_err(|failure| failure.to_string())
}
