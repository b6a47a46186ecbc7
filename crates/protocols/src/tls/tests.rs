//! Two ends, wired by hand: what a handshake takes and refuses.

use std::sync::Arc;

use super::*;

const HOST: &str = "nqn.2026-11.io.redhare:host";
const SUBSYSTEM: &str = "nqn.2026-11.io.redhare:subsystem";
const SHORT: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const LONG: &str =
    "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
const OTHER: &str = "NVMeTLSkey-1:01:cTUtI0LmuMq92ONxarul/mjBkR8pYyQAUMRi5j3th/cRqp+5:";

fn configured(text: &str) -> ConfiguredPsk {
    ConfiguredPsk::parse(text.as_bytes()).unwrap()
}

fn acceptor(text: &'static str) -> Acceptor {
    let find = move |identity: &str| {
        let read = Identity::parse(identity)?;
        let psk = configured(text)
            .derive(read.version, read.host, read.subsystem)
            .unwrap();
        (psk.identity() == identity && read.host == HOST).then_some(psk)
    };
    Acceptor::new(Arc::new(find)).unwrap()
}

fn client(text: &str, version: IdentityVersion, host: &str) -> Session {
    Session::connect(configured(text).derive(version, host, SUBSYSTEM).unwrap()).unwrap()
}

/// Carries what one has for the other; how many bytes.
fn carry(from: &mut Session, to: &mut Session) -> usize {
    let mut bytes = Vec::new();
    from.take_outgoing(&mut bytes);
    to.feed(&bytes);
    bytes.len()
}

/// Both ends' handshakes until nothing moves any more.
fn shake(client: &mut Session, server: &mut Session) -> (Result<bool, TlsError>, Result<bool, TlsError>) {
    let (mut ours, mut theirs) = (Ok(false), Ok(false));
    loop {
        if ours.is_ok() {
            ours = client.handshake();
        }
        let mut moved = carry(client, server);
        if theirs.is_ok() {
            theirs = server.handshake();
        }
        moved += carry(server, client);
        if moved == 0 {
            return (ours, theirs);
        }
    }
}

fn pair(text: &'static str, version: IdentityVersion) -> (Session, Session) {
    let (mut client, mut server) = (client(text, version, HOST), acceptor(text).accept().unwrap());
    let (ours, theirs) = shake(&mut client, &mut server);
    assert!(ours.unwrap() && theirs.unwrap());
    (client, server)
}

/// Everything that can be read now.
fn read_all(session: &mut Session) -> Result<(Vec<u8>, Read), TlsError> {
    let mut all = Vec::new();
    let mut record = vec![0; 16 << 10];
    loop {
        match session.read(&mut record)? {
            Read::Bytes(count) => all.extend_from_slice(&record[..count]),
            end => return Ok((all, end)),
        }
    }
}

#[test]
fn both_suites_and_versions_carry_bytes_both_ways() {
    for (text, suite) in [
        (SHORT, "TLS_AES_128_GCM_SHA256"),
        (LONG, "TLS_AES_256_GCM_SHA384"),
    ] {
        for version in [IdentityVersion::V0, IdentityVersion::V1] {
            let (mut client, mut server) = pair(text, version);
            assert_eq!((client.suite(), server.suite()), (suite, suite));
            assert_eq!(server.identity(), client.identity());
            assert!(server.identity().unwrap().contains(HOST));
            let bytes: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
            client.write(&bytes).unwrap();
            carry(&mut client, &mut server);
            assert_eq!(read_all(&mut server).unwrap(), (bytes.clone(), Read::Blocked));
            server.write(&bytes[..1]).unwrap();
            server.close();
            carry(&mut server, &mut client);
            assert_eq!(read_all(&mut client).unwrap(), (vec![0], Read::Closed));
        }
    }
}

#[test]
fn another_key_of_the_same_name_is_refused() {
    let (mut client, mut server) = (
        client(OTHER, IdentityVersion::V0, HOST),
        acceptor(SHORT).accept().unwrap(),
    );
    let (ours, theirs) = shake(&mut client, &mut server);
    let (ours, theirs) = (ours.unwrap_err().to_string(), theirs.unwrap_err().to_string());
    assert!(theirs.contains("binder does not verify"), "{theirs}");
    assert!(ours.contains("alert"), "{ours}");
    assert_eq!(server.identity(), None, "nothing was proved");
}

#[test]
fn a_name_that_is_not_known_is_refused_and_named() {
    for (text, host, version) in [
        (SHORT, "nqn.2026-11.io.redhare:stranger", IdentityVersion::V0),
        (OTHER, HOST, IdentityVersion::V1),
        (LONG, HOST, IdentityVersion::V0),
    ] {
        let (mut client, mut server) = (client(text, version, host), acceptor(SHORT).accept().unwrap());
        let (ours, theirs) = shake(&mut client, &mut server);
        let theirs = theirs.unwrap_err().to_string();
        assert!(
            theirs.contains(host) && theirs.contains("no key that is known"),
            "{theirs}"
        );
        assert!(ours.is_err());
    }
}

#[test]
fn what_is_no_handshake_is_refused() {
    for garbage in [
        &[0; 128][..],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0x16, 3, 1, 0, 4, 1, 0, 0, 0],
    ] {
        let mut server = acceptor(SHORT).accept().unwrap();
        server.feed(garbage);
        assert!(server.handshake().is_err(), "{garbage:?}");
        let mut client = client(SHORT, IdentityVersion::V0, HOST);
        assert!(!client.handshake().unwrap());
        client.feed(garbage);
        assert!(client.handshake().is_err(), "{garbage:?}");
    }
}

#[test]
fn each_cut_or_changed_hello_is_waited_for_or_refused() {
    let mut first = client(SHORT, IdentityVersion::V1, HOST);
    assert!(!first.handshake().unwrap());
    let mut hello = Vec::new();
    first.take_outgoing(&mut hello);
    for length in (0..hello.len()).step_by(7) {
        let mut server = acceptor(SHORT).accept().unwrap();
        server.feed(&hello[..length]);
        assert!(!server.handshake().unwrap(), "{length} bytes are no whole hello");
    }
    let mut refused = 0;
    for at in (0..hello.len()).step_by(5) {
        let mut changed = hello.clone();
        changed[at] ^= 0x55;
        let mut server = acceptor(SHORT).accept().unwrap();
        server.feed(&changed);
        // No change ends the handshake: it is refused, or the client would have to answer.
        match server.handshake() {
            Ok(ended) => assert!(!ended, "byte {at}"),
            Err(_) => refused += 1,
        }
        assert_eq!(server.identity(), None);
    }
    assert!(
        refused > hello.len() / 10,
        "{refused} of {} were refused",
        hello.len() / 5
    );
}

#[test]
fn a_changed_record_ends_the_connection() {
    let (mut client, mut server) = pair(SHORT, IdentityVersion::V0);
    client.write(b"hello").unwrap();
    let mut bytes = Vec::new();
    client.take_outgoing(&mut bytes);
    *bytes.last_mut().unwrap() ^= 1;
    server.feed(&bytes);
    let error = read_all(&mut server).unwrap_err().to_string();
    assert!(error.contains("bad record mac"), "{error}");
    // The client is told.
    carry(&mut server, &mut client);
    let error = read_all(&mut client).unwrap_err().to_string();
    assert!(error.contains("alert bad record mac"), "{error}");
    assert!(server.write(b"more").is_err());
}

/// How many KeyUpdates stand in what one end has for the other: records of one handshake message of five bytes, with its
/// type and its tag (RFC 8446, sections 4.6.3 and 5.2).
fn key_updates(bytes: &[u8]) -> usize {
    let (mut count, mut rest) = (0, bytes);
    while let [23, 3, 3, high, low, behind @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        count += usize::from(length == 5 + 1 + 16);
        rest = &behind[length..];
    }
    assert!(rest.is_empty(), "records only");
    count
}

/// `from` writes, `to` reads all of it; the KeyUpdates on the way.
fn send(from: &mut Session, to: &mut Session, data: &[u8]) -> usize {
    from.write(data).unwrap();
    let mut bytes = Vec::new();
    from.take_outgoing(&mut bytes);
    to.feed(&bytes);
    assert_eq!(read_all(to).unwrap(), (data.to_vec(), Read::Blocked));
    key_updates(&bytes)
}

#[test]
fn a_client_has_the_keys_of_both_directions_renewed() {
    let data = vec![7; 5000];
    for text in [SHORT, LONG] {
        // By what it writes, and by what it reads.
        for written in [true, false] {
            let (mut client, mut server) = pair(text, IdentityVersion::V0);
            client.renew_after(20_000);
            let (mut renewed, mut answered) = (0, 0);
            for round in 0..50 {
                let small = &data[..100];
                let (up, down) = if written {
                    (&data[..], small)
                } else {
                    (small, &data[..])
                };
                renewed += send(&mut client, &mut server, up);
                answered += send(&mut server, &mut client, down);
                assert_eq!(
                    renewed, answered,
                    "round {round}: what was asked for comes with the next bytes"
                );
            }
            // 250,000 bytes one way, and what is over a limit is counted from then on.
            assert!((9..=12).contains(&renewed), "{renewed}");
        }
    }
}

#[test]
fn a_server_renews_nothing_by_itself() {
    let (mut client, mut server) = pair(SHORT, IdentityVersion::V0);
    assert_eq!(send(&mut server, &mut client, &vec![7; 1 << 20]), 0);
    assert_eq!(
        send(&mut client, &mut server, &vec![7; 1 << 20]),
        0,
        "far below the limit"
    );
}

#[test]
fn noise_in_the_middle_of_a_connection_ends_it() {
    let (_client, mut server) = pair(SHORT, IdentityVersion::V0);
    server.feed(&[0x17; 64]);
    assert!(read_all(&mut server).is_err());
}

/// A server that has no key but a certificate, however good, is not taken: there is nothing to check it with.
#[test]
fn a_server_with_a_certificate_instead_of_the_key_is_refused() {
    use openssl::asn1::Asn1Time;
    use openssl::hash::MessageDigest;
    use openssl::pkey::PKey;
    use openssl::ssl::{ErrorCode, Ssl, SslContext, SslMethod, SslStream};
    use openssl::{ec, nid, x509};

    let group = ec::EcGroup::from_curve_name(nid::Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(ec::EcKey::generate(&group).unwrap()).unwrap();
    let mut name = x509::X509NameBuilder::new().unwrap();
    name.append_entry_by_text("CN", "localhost").unwrap();
    let name = name.build();
    let mut certificate = x509::X509Builder::new().unwrap();
    certificate.set_version(2).unwrap();
    certificate.set_subject_name(&name).unwrap();
    certificate.set_issuer_name(&name).unwrap();
    certificate.set_pubkey(&key).unwrap();
    certificate
        .set_not_before(&Asn1Time::from_unix(0).unwrap())
        .unwrap();
    certificate
        .set_not_after(&Asn1Time::days_from_now(1).unwrap())
        .unwrap();
    certificate.sign(&key, MessageDigest::sha256()).unwrap();
    let mut context = SslContext::builder(SslMethod::tls_server()).unwrap();
    context.set_certificate(&certificate.build()).unwrap();
    context.set_private_key(&key).unwrap();

    let mut client = client(SHORT, IdentityVersion::V0, HOST);
    assert!(!client.handshake().unwrap());
    let mut hello = Vec::new();
    client.take_outgoing(&mut hello);
    let stream = Duplex {
        incoming: std::io::Cursor::new(hello),
        outgoing: Vec::new(),
    };
    let mut server = SslStream::new(Ssl::new(&context.build()).unwrap(), stream).unwrap();
    assert_eq!(
        server.accept().unwrap_err().code(),
        ErrorCode::SYSCALL,
        "it waits for Finished"
    );
    client.feed(&server.get_ref().outgoing);
    let error = client.handshake().unwrap_err().to_string();
    assert!(error.contains("certificate verify failed"), "{error}");
    assert_eq!(client.identity(), None);
}

struct Duplex {
    incoming: std::io::Cursor<Vec<u8>>,
    outgoing: Vec<u8>,
}

impl std::io::Read for Duplex {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.incoming.read(into)
    }
}

impl std::io::Write for Duplex {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.outgoing.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
