//! Who believes whom: real handshakes between a master's and a client's end, with certificates of one authority, of two,
//! before, while and after it is rotated, and with everything that must not be believed.

mod support;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use identity::{Authority, Credentials, Files, Issue, Role, Validity, Watched, unix_now};
use openssl::ssl::{SslConnector, SslFiletype, SslMethod};
use support::{HOST, issue, issued, meet};

#[test]
fn a_certificate_says_who_its_holder_is_and_both_ends_believe_it() {
    let place = tempfile::tempdir().unwrap();
    let authority = Authority::init(&place.path().join("ca"), None, Validity::days(100)).unwrap();
    let master = issued(&authority, place.path(), Role::Master);
    assert_eq!(master.identity().addresses, [HOST, "localhost"]);
    for role in [Role::Admin, Role::Node, Role::Client, Role::ReadOnly] {
        let client = issued(&authority, place.path(), role);
        let (said, taken) = meet(&master, &client, HOST);
        assert_eq!(said, Ok(()));
        let taken = taken.unwrap();
        assert_eq!((taken.role, taken.cluster), (role, authority.cluster()));
        assert_eq!(&taken, client.identity());
        assert!(
            taken.is_valid_now() && (29..=30).contains(&taken.days_left()),
            "{taken:?}"
        );
    }
    // A node's name is a UUID, drawn if none is given.
    let node = issued(&authority, place.path(), Role::Node);
    assert!(node.identity().name.parse::<identity::Cluster>().is_ok());
    let again = Authority::open(&place.path().join("ca")).unwrap();
    assert_eq!(again.cluster(), authority.cluster());
    // The newest of each: one of every role.
    let known = again.issued().unwrap();
    assert!(
        known.len() >= 5 && known.iter().all(|(_, is_current)| *is_current),
        "{known:?}"
    );
}

#[test]
fn a_renewal_that_was_cut_off_between_key_and_certificate_is_finished() {
    let place = tempfile::tempdir().unwrap();
    let authority = Authority::init(&place.path().join("ca"), None, Validity::days(100)).unwrap();
    let (own, next) = (place.path().join("own"), place.path().join("next"));
    let files = authority.issue(&issue(Role::Admin)).unwrap().write(&own).unwrap();
    let renewed = authority
        .issue(&issue(Role::Admin))
        .unwrap()
        .write(&next)
        .unwrap();
    let serial = |files: &Files| Credentials::load(files).unwrap().identity().serial.clone();
    let (before, after) = (serial(&files), serial(&renewed));
    // As long as neither has its place, all is as it was.
    let fresh = own.join("cert.pem.new");
    std::fs::copy(&renewed.certificate, &fresh).unwrap();
    assert_eq!(serial(&files), before);
    assert!(fresh.exists());
    std::fs::copy(&renewed.key, &files.key).unwrap();
    assert_eq!(serial(&files), after);
    assert!(!fresh.exists());
    assert_eq!(serial(&files), after);
    // A certificate of neither is no way out.
    std::fs::copy(place.path().join("ca/ca.pem"), &files.certificate).unwrap();
    std::fs::copy(place.path().join("ca/ca.pem"), &fresh).unwrap();
    assert!(Credentials::load(&files).is_err());
    assert!(fresh.exists());
}

#[test]
fn first_credentials_that_were_cut_off_between_key_and_certificate_are_finished() {
    let place = tempfile::tempdir().unwrap();
    let authority = Authority::init(&place.path().join("ca"), None, Validity::days(100)).unwrap();
    for loads in [true, false] {
        let own = place.path().join(format!("own-{loads}"));
        let files = authority.issue(&issue(Role::Admin)).unwrap().write(&own).unwrap();
        let serial = Credentials::load(&files).unwrap().identity().serial.clone();
        let fresh = own.join("cert.pem.new");
        std::fs::rename(&files.certificate, &fresh).unwrap();
        if !loads {
            // Who has a join token asks first.
            assert!(files.has_certificate());
            assert!(files.certificate.exists());
        }
        assert_eq!(Credentials::load(&files).unwrap().identity().serial, serial);
        assert!(!fresh.exists());
        // That of another key is none.
        std::fs::remove_file(&files.certificate).unwrap();
        std::fs::copy(place.path().join("ca/ca.pem"), &fresh).unwrap();
        assert!(!files.has_certificate());
        let error = Credentials::load(&files).unwrap_err().to_string();
        assert!(error.contains("cert.pem"), "{error}");
        assert!(fresh.exists());
    }
}

#[test]
fn nobody_is_taken_for_what_he_is_not() {
    let place = tempfile::tempdir().unwrap();
    let (here, there) = (place.path().join("here"), place.path().join("there"));
    let authority = Authority::init(&here, None, Validity::days(100)).unwrap();
    let master = issued(&authority, &here, Role::Master);
    let admin = issued(&authority, &here, Role::Admin);
    // Of another authority for the same cluster: the name alone is worth nothing.
    let other = Authority::init(&there, Some(authority.cluster()), Validity::days(100)).unwrap();
    let (said, taken) = meet(&master, &issued(&other, &there, Role::Admin), HOST);
    let said = said.unwrap_err();
    assert!(
        said.contains("is of an authority that") && said.contains("ca.pem"),
        "{said}"
    );
    assert_eq!(taken, None);
    // The same from the other side: it trusts both, and the master does not.
    let mixed = place.path().join("mixed");
    let files = other.issue(&issue(Role::Admin)).unwrap().write(&mixed).unwrap();
    let both = [here.join("ca.pem"), there.join("ca.pem")].map(|path| std::fs::read(path).unwrap());
    std::fs::write(&files.authority, both.concat()).unwrap();
    let (said, taken) = meet(&master, &Credentials::load(&files).unwrap(), HOST);
    let said = said.unwrap_err();
    assert!(
        said.contains("does not know the authority of our certificate"),
        "{said}"
    );
    assert_eq!(taken, None);
    // A node or an admin that would be a master; a master that would be a client.
    let node = issued(&authority, &here, Role::Node);
    let (said, _) = meet(&node, &admin, HOST);
    let said = said.unwrap_err();
    assert!(said.contains("is not a master's"), "{said}");
    let (said, taken) = meet(&master, &master, HOST);
    let said = said.unwrap_err();
    assert!(said.contains("does not take our certificate"), "{said}");
    assert_eq!(taken, None);
    // A master elsewhere.
    for host in ["127.0.0.2", "example.org"] {
        let said = meet(&master, &admin, host).0.unwrap_err();
        assert!(
            said.contains(&format!("its certificate is not for \"{host}\"")),
            "{said}"
        );
    }
    assert_eq!(meet(&master, &admin, "localhost").0, Ok(()));
}

/// Files of a certificate that held until just now.
fn expired(authority: &Authority, at: &Path, role: Role) -> Files {
    let validity = Validity {
        from: unix_now() - 1000,
        until: unix_now() - 10,
    };
    let issue = Issue {
        validity,
        ..issue(role)
    };
    authority.issue(&issue).unwrap().write(at).unwrap()
}

#[test]
fn what_has_expired_is_refused_by_its_holder_and_renewed() {
    let place = tempfile::tempdir().unwrap();
    let authority = Authority::init(&place.path().join("ca"), None, Validity::days(100)).unwrap();
    let at = place.path().join("admin");
    let files = expired(&authority, &at, Role::Admin);
    let error = Credentials::load(&files).unwrap_err().to_string();
    assert!(
        error.contains("of admin \"admin\" has expired, 0 days ago; make it anew"),
        "{error}"
    );
    // Whoever does not look himself is refused by the master.
    let master = issued(&authority, place.path(), Role::Master);
    let mut careless = SslConnector::builder(SslMethod::tls_client()).unwrap();
    careless.set_ca_file(&files.authority).unwrap();
    careless
        .set_certificate_file(&files.certificate, SslFiletype::PEM)
        .unwrap();
    careless
        .set_private_key_file(&files.key, SslFiletype::PEM)
        .unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let acceptor = master.acceptor().clone();
    let server = std::thread::spawn(move || acceptor.accept(theirs).map(drop).is_err());
    let mut stream = careless.build().connect(HOST, ours).unwrap();
    let said = stream.read_exact(&mut [0]).unwrap_err().to_string();
    assert!(said.contains("certificate expired"), "{said}");
    assert!(server.join().unwrap());
    authority
        .renew(&files, Validity::days(3))
        .unwrap()
        .write(&at)
        .unwrap();
    assert!((2..=3).contains(&Credentials::load(&files).unwrap().identity().days_left()));
    // None outlives its root.
    let long = Issue {
        validity: Validity::days(1000),
        ..issue(Role::Client)
    };
    assert!((99..=100).contains(&authority.issue(&long).unwrap().identity.days_left()));
    // Nor is that of somebody else renewed.
    let other = Authority::init(
        &place.path().join("other"),
        Some(authority.cluster()),
        Validity::days(9),
    )
    .unwrap();
    let error = other.renew(&files, Validity::days(3)).unwrap_err().to_string();
    assert!(error.contains("was signed by another root"), "{error}");
}

#[test]
fn credentials_are_renewed_in_any_order_while_the_authority_is_rotated() {
    let place = tempfile::tempdir().unwrap();
    let at = |what: &str| place.path().join(what);
    let mut authority = Authority::init(&at("ca"), None, Validity::days(100)).unwrap();
    let error = authority.finish().unwrap_err().to_string();
    assert!(error.contains("is not being rotated"), "{error}");
    let before = [Role::Master, Role::Admin].map(|role| issued(&authority, &at("before"), role));
    authority.rotate(Validity::days(100)).unwrap();
    let error = authority.rotate(Validity::days(100)).unwrap_err().to_string();
    assert!(
        error.contains("is being rotated already (2 roots are trusted)"),
        "{error}"
    );
    let mut authority = Authority::open(&at("ca")).unwrap();
    let between = [Role::Master, Role::Admin].map(|role| issued(&authority, &at("between"), role));
    for master in [&before[0], &between[0]] {
        for client in [&before[1], &between[1]] {
            let (said, taken) = meet(master, client, HOST);
            assert_eq!(said, Ok(()), "{master:?} and {client:?}");
            assert!(taken.is_some());
        }
    }
    authority.finish().unwrap();
    let authority = Authority::open(&at("ca")).unwrap();
    assert_eq!(authority.trusted().unwrap().len(), 1);
    let after = [Role::Master, Role::Admin].map(|role| issued(&authority, &at("after"), role));
    // Who was renewed meanwhile goes on; who was not is out, on both sides.
    for (master, client, is_well) in [
        (&after[0], &after[1], true),
        (&after[0], &between[1], true),
        (&between[0], &after[1], true),
        (&after[0], &before[1], false),
        (&before[0], &after[1], false),
    ] {
        let (said, taken) = meet(master, client, HOST);
        assert_eq!(
            (said.is_ok(), taken.is_some()),
            (is_well, is_well),
            "{said:?} {client:?}"
        );
    }
    let known = authority.issued().unwrap();
    assert!(known.iter().all(|(_, is_current)| *is_current), "{known:?}");
}

#[test]
fn a_rotation_that_was_cut_off_between_its_files_begins_again_and_never_ends_the_old_root() {
    let place = tempfile::tempdir().unwrap();
    let at = |what: &str| place.path().join(what);
    let mut authority = Authority::init(&at("ca"), None, Validity::days(100)).unwrap();
    let own = authority.root().unwrap();
    let client = issued(&authority, &at("before"), Role::Admin);
    // The bundle has been replaced, the key not: as a crash or a full disk leaves it.
    let key = std::fs::read(at("ca/authority.pem")).unwrap();
    authority.rotate(Validity::days(100)).unwrap();
    let lost = authority.root().unwrap();
    std::fs::write(at("ca/authority.pem"), &key).unwrap();
    let mut cut = Authority::open(&at("ca")).unwrap();
    assert_eq!(cut.root().unwrap(), own);
    assert_eq!(cut.trusted().unwrap(), std::slice::from_ref(&own));
    let error = cut.finish().unwrap_err().to_string();
    assert!(error.contains("is not being rotated"), "{error}");
    // One that was opened before it was cut off looks again, too.
    authority.rotate(Validity::days(100)).unwrap();
    let next = authority.root().unwrap();
    assert!(next != lost && next != own, "{next:?}");
    assert_eq!(authority.trusted().unwrap(), [next.clone(), own]);
    let master = issued(&authority, &at("after"), Role::Master);
    assert_eq!(meet(&master, &client, HOST).0, Ok(()));
    // The end is cut off at the same place: it can be asked for again, once.
    let vouched = std::fs::read(at("ca/authority.pem")).unwrap();
    authority.finish().unwrap();
    std::fs::write(at("ca/authority.pem"), vouched).unwrap();
    let mut ended = Authority::open(&at("ca")).unwrap();
    ended.finish().unwrap();
    assert_eq!(ended.trusted().unwrap(), [next]);
    let error = ended.finish().unwrap_err().to_string();
    assert!(error.contains("is not being rotated"), "{error}");
    // Files that do not belong together.
    std::fs::write(at("ca/authority.pem"), key).unwrap();
    let error = Authority::open(&at("ca")).unwrap_err().to_string();
    assert!(error.contains("does not have the certificate"), "{error}");
}

#[test]
fn an_authority_whose_making_was_cut_off_can_be_made_and_nothing_else_is_written_over() {
    let place = tempfile::tempdir().unwrap();
    let ca = place.path().join("ca");
    Authority::init(&ca, None, Validity::days(100)).unwrap();
    let refused = |taken: &Path, kept: &str| {
        let before = std::fs::read(taken.join(kept)).unwrap();
        let error = Authority::init(taken, None, Validity::days(100)).unwrap_err();
        assert!(error.to_string().contains("has an authority already"), "{error}");
        assert_eq!(std::fs::read(taken.join(kept)).unwrap(), before);
    };
    // Before its key had its place, and after.
    std::fs::remove_file(ca.join("ca.pem")).unwrap();
    std::fs::rename(ca.join("authority.pem"), ca.join("authority.pem.new")).unwrap();
    Authority::init(&ca, None, Validity::days(100)).unwrap();
    std::fs::remove_file(ca.join("ca.pem")).unwrap();
    std::fs::write(ca.join("ca.pem.new"), "half").unwrap();
    // A copy of the key that was put somewhere.
    let copy = place.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(ca.join("authority.pem"), copy.join("authority.pem")).unwrap();
    refused(&copy, "authority.pem");
    let made = Authority::init(&ca, None, Validity::days(100)).unwrap();
    assert_eq!(
        Authority::open(&ca).unwrap().root().unwrap(),
        made.root().unwrap()
    );
    let files = made.issue(&issue(Role::Admin)).unwrap();
    let files = files.write(&place.path().join("admin")).unwrap();
    refused(files.authority.parent().unwrap(), "ca.pem");
    // One that has issued, without its roots; one whose key is lost, and roots alone.
    std::fs::rename(ca.join("ca.pem"), place.path().join("ca.pem")).unwrap();
    refused(&ca, "authority.pem");
    std::fs::rename(place.path().join("ca.pem"), ca.join("ca.pem")).unwrap();
    std::fs::remove_file(ca.join("authority.pem")).unwrap();
    refused(&ca, "ca.pem");
    std::fs::remove_dir_all(ca.join("issued")).unwrap();
    refused(&ca, "ca.pem");
}

#[test]
fn two_that_rotate_or_make_an_authority_at_once_do_one_after_the_other() {
    let place = tempfile::tempdir().unwrap();
    let ca = place.path().join("ca");
    let at_once = |work: &(dyn Fn() -> bool + Sync)| {
        let done = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        done.into_iter().filter(|done| *done).count()
    };
    let made = at_once(&|| Authority::init(&ca, None, Validity::days(100)).is_ok());
    assert_eq!(made, 1);
    let rotated = at_once(&|| {
        let mut authority = Authority::open(&ca).unwrap();
        authority.rotate(Validity::days(100)).is_ok()
    });
    assert_eq!(rotated, 1);
    assert_eq!(Authority::open(&ca).unwrap().trusted().unwrap().len(), 2);
}

#[test]
fn files_that_cannot_be_meant_are_refused_with_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    let authority = Authority::init(&place.path().join("ca"), None, Validity::days(100)).unwrap();
    let error = Authority::init(&place.path().join("ca"), None, Validity::days(100)).unwrap_err();
    assert!(error.to_string().contains("has an authority already"), "{error}");
    let files = authority
        .issue(&issue(Role::Admin))
        .unwrap()
        .write(&place.path().join("a"))
        .unwrap();
    let other = authority
        .issue(&issue(Role::Admin))
        .unwrap()
        .write(&place.path().join("b"))
        .unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(&files.key), mode(&place.path().join("ca/authority.pem"))),
        (0o600, 0o600)
    );
    assert_eq!(mode(&place.path().join("ca")), 0o700);
    let refused = |files: &Files, why: &str| {
        let error = Credentials::load(files).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    let crossed = Files {
        key: other.key.clone(),
        ..files.clone()
    };
    refused(&crossed, "is not that of the certificate");
    let swapped = Files {
        certificate: files.authority.clone(),
        key: place.path().join("ca/authority.pem"),
        ..files.clone()
    };
    refused(&swapped, "none of a Redhare cluster: its subject names 0 roles");
    let missing = Files::in_directory(&place.path().join("nowhere"));
    refused(&missing, "give --credentials a directory");
    std::fs::write(&other.certificate, "no PEM").unwrap();
    refused(&other, "with a certificate in it (there is none)");
    std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(0o640)).unwrap();
    refused(&files, "has mode 0640, so that others can use it; chmod 0600 it");
    let bad = |change: &dyn Fn(&mut Issue), why: &str| {
        let mut wanted = issue(Role::Client);
        change(&mut wanted);
        let error = authority.issue(&wanted).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    bad(&|issue| issue.name = Some("a b".into()), "has other than letters");
    bad(&|issue| issue.name = Some("a".repeat(65)), "not 1 to 64 of them");
    bad(&|issue| issue.role = Role::Master, "has 0 addresses");
    bad(&|issue| issue.addresses = vec!["h".into()], "nobody else has any");
    let master = |address: &str| {
        let address = address.to_owned();
        move |issue: &mut Issue| {
            issue.role = Role::Master;
            issue.addresses = vec![address.clone()];
        }
    };
    bad(&master("host:7400"), "write it without a port");
    bad(&master("a..b"), "is no host name");
    bad(
        &|issue| {
            issue.role = Role::Node;
            issue.name = Some("n1".into());
        },
        "no node's name, which is a UUID",
    );
}

#[test]
fn a_server_takes_new_files_and_keeps_the_old_while_they_do_not_fit() {
    let place = tempfile::tempdir().unwrap();
    let authority = Authority::init(&place.path().join("ca"), None, Validity::days(100)).unwrap();
    let at = place.path().join("master");
    let files = authority.issue(&issue(Role::Master)).unwrap().write(&at).unwrap();
    let watched = Watched::load(&files).unwrap();
    let serial = || {
        let (credentials, error) = watched.current();
        (
            credentials.identity().serial.clone(),
            error.map(|error| error.to_string()),
        )
    };
    let first = serial();
    assert_eq!(first.1, None);
    let fresh = authority.issue(&issue(Role::Master)).unwrap();
    // As if it were seen between two files.
    let kept = std::fs::read(&files.certificate).unwrap();
    fresh.write(&at).unwrap();
    std::fs::write(&files.certificate, &kept).unwrap();
    let between = serial();
    assert_eq!(between.0, first.0);
    assert!(between.1.unwrap().contains("is not that of the certificate"));
    assert_eq!(serial(), first, "said once");
    fresh.write(&at).unwrap();
    assert_eq!(serial(), (fresh.identity.serial.clone(), None));
}
