//! What comes from an issuer is believed like what comes from the root, before, while and after that is rotated, and only
//! for what an issuer is for: whoever has its key makes no administrator, no master, and no root.

mod support;

use std::path::Path;

use identity::{
    Authority, Credentials, Files, Identity, Issuer, JoinToken, Joining, Role, Validity, fingerprint,
    roots_text, unix_now,
};
use openssl::asn1::{Asn1Integer, Asn1Time};
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectAlternativeName};
use openssl::x509::{X509, X509Name, X509Req};
use support::{HOST, issued, meet};

const NODE: &str = "07070707-0707-8707-8707-070707070701";

fn pem(path: &Path) -> Vec<X509> {
    X509::stack_from_pem(&std::fs::read(path).unwrap()).unwrap()
}

/// Credentials that an issuer gave, as they are used.
fn joined(issuer: &Issuer, roots: &[X509], role: Role, name: &str, at: &Path) -> Credentials {
    let joining = Joining::new().unwrap();
    let granted = issuer
        .issue(&joining.request().unwrap(), role, name, Validity::days(30), roots)
        .unwrap();
    let made = joining
        .finish(&granted.chain, &roots_text(roots).unwrap(), roots)
        .unwrap();
    assert_eq!(made.identity, granted.identity);
    Credentials::load(&made.write(at).unwrap()).unwrap()
}

struct Place {
    directory: tempfile::TempDir,
    authority: Authority,
    issuer: Issuer,
    master: Credentials,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let authority = Authority::init(&at.join("ca"), None, Validity::days(100)).unwrap();
        authority
            .issuer(Validity::days(50))
            .unwrap()
            .write(&at.join("issuer"))
            .unwrap();
        let issuer = Issuer::open(&at.join("issuer")).unwrap();
        let master = issued(&authority, at, Role::Master);
        Self {
            directory,
            authority,
            issuer,
            master,
        }
    }

    fn at(&self, what: &str) -> std::path::PathBuf {
        self.directory.path().join(what)
    }

    fn roots(&self) -> Vec<X509> {
        pem(&self.at("ca/ca.pem"))
    }

    /// Credentials that somebody made who has stolen the issuer's key.
    fn forged(&self, what: &str, forgery: &Forgery) -> Credentials {
        let stolen = std::fs::read(self.at("issuer/issuer.pem")).unwrap();
        let key = PKey::private_key_from_pem(&stolen).unwrap();
        let issuer = X509::stack_from_pem(&stolen).unwrap().remove(0);
        let (certificate, own) = forgery.sign(&self.authority, &issuer, &key);
        let files = Files::in_directory(&self.at(what));
        std::fs::create_dir_all(self.at(what)).unwrap();
        let chain = [certificate.to_pem().unwrap(), issuer.to_pem().unwrap()];
        std::fs::write(&files.certificate, chain.concat()).unwrap();
        std::fs::copy(self.at("ca/ca.pem"), &files.authority).unwrap();
        write_key(&files, &own);
        Credentials::load(&files).unwrap()
    }
}

fn write_key(files: &Files, key: &PKey<Private>) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(&files.key, key.private_key_to_pem_pkcs8().unwrap()).unwrap();
    std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(0o600)).unwrap();
}

struct Forgery {
    organizations: &'static [&'static str],
    is_server: bool,
    is_authority: bool,
}

impl Forgery {
    fn sign(&self, authority: &Authority, issuer: &X509, key: &PKey<Private>) -> (X509, PKey<Private>) {
        let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        let own = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
        let mut subject = X509Name::builder().unwrap();
        for organization in self.organizations {
            subject
                .append_entry_by_nid(Nid::ORGANIZATIONNAME, organization)
                .unwrap();
        }
        subject.append_entry_by_nid(Nid::COMMONNAME, NODE).unwrap();
        let mut builder = X509::builder().unwrap();
        builder.set_version(2).unwrap();
        let serial = Asn1Integer::from_bn(&BigNum::from_u32(99).unwrap()).unwrap();
        builder.set_serial_number(&serial).unwrap();
        builder.set_subject_name(&subject.build()).unwrap();
        builder.set_issuer_name(issuer.subject_name()).unwrap();
        let time = |unix| Asn1Time::from_unix(unix).unwrap();
        builder.set_not_before(&time(unix_now() - 100)).unwrap();
        builder.set_not_after(&time(unix_now() + 100_000)).unwrap();
        builder.set_pubkey(&own).unwrap();
        let mut names = SubjectAlternativeName::new();
        names.uri(&format!("urn:uuid:{}", authority.cluster())).ip(HOST);
        let names = names.build(&builder.x509v3_context(Some(issuer), None)).unwrap();
        builder.append_extension(names).unwrap();
        let mut purpose = ExtendedKeyUsage::new();
        match self.is_server {
            true => purpose.server_auth(),
            false => purpose.client_auth(),
        };
        builder.append_extension(purpose.build().unwrap()).unwrap();
        if self.is_authority {
            let constraints = BasicConstraints::new().critical().ca().build().unwrap();
            builder.append_extension(constraints).unwrap();
            let usage = KeyUsage::new()
                .key_cert_sign()
                .digital_signature()
                .build()
                .unwrap();
            builder.append_extension(usage).unwrap();
        }
        builder.sign(key, MessageDigest::sha256()).unwrap();
        (builder.build(), own)
    }
}

#[test]
fn what_an_issuer_gives_is_believed_as_its_role() {
    let place = Place::new();
    place.issuer.check(&place.roots()).unwrap();
    for (role, name) in [
        (Role::Node, NODE),
        (Role::Client, "trainer"),
        (Role::ReadOnly, "grafana"),
    ] {
        let client = joined(&place.issuer, &place.roots(), role, name, &place.at(role.name()));
        let (said, taken) = meet(&place.master, &client, HOST);
        assert_eq!(said, Ok(()));
        let taken = taken.unwrap();
        assert_eq!((taken.role, taken.name.as_str()), (role, name));
        assert_eq!(taken.cluster, place.authority.cluster());
    }
    // It cannot make others, and none that outlives it.
    let request = Joining::new().unwrap().request().unwrap();
    for role in [Role::Admin, Role::Master] {
        let refused = place
            .issuer
            .issue(&request, role, "x", Validity::days(1), &place.roots());
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("node, client and read-only, not"), "{error}");
    }
    let long = place
        .issuer
        .issue(&request, Role::Client, "x", Validity::days(1000), &place.roots());
    assert!((49..=50).contains(&long.unwrap().identity.days_left()));
    // Nor anything that others do not believe.
    let other = Authority::init(
        &place.at("other"),
        Some(place.authority.cluster()),
        Validity::days(9),
    )
    .unwrap();
    let roots = pem(&place.at("other/ca.pem"));
    let error = place.issuer.check(&roots).unwrap_err().to_string();
    assert!(error.contains("is not believed here"), "{error}");
    let ended = Validity {
        from: unix_now() - 1000,
        until: unix_now() - 10,
    };
    let error = other
        .issuer(ended)
        .unwrap()
        .check(&roots)
        .unwrap_err()
        .to_string();
    assert!(error.contains("has expired; make it anew"), "{error}");
    // The authority's own files are no issuer's.
    std::fs::create_dir(place.at("wrong")).unwrap();
    std::fs::copy(place.at("ca/authority.pem"), place.at("wrong/issuer.pem")).unwrap();
    let error = Issuer::open(&place.at("wrong")).unwrap_err().to_string();
    assert!(error.contains("is not an issuer's"), "{error}");
}

#[test]
fn whoever_has_the_issuers_key_makes_neither_administrators_nor_masters() {
    let place = Place::new();
    let client = |organizations: &'static [&'static str]| Forgery {
        organizations,
        is_server: false,
        is_authority: false,
    };
    // The forger forges well: a node's certificate is believed.
    let (said, taken) = meet(
        &place.master,
        &place.forged("node", &client(&["redhare:node"])),
        HOST,
    );
    assert_eq!(said, Ok(()));
    assert_eq!(taken.unwrap().role, Role::Node);
    // By the constraints of names; and where names compare as equal to those of a role, by our own look at the chain.
    let forgeries: [(&str, &'static [&'static str]); 3] = [
        ("admin", &["redhare:admin"]),
        ("hidden", &["Example", "redhare:admin"]),
        ("case", &["REDHARE:NODE", "redhare:admin"]),
    ];
    for (what, organizations) in forgeries {
        let (_, taken) = meet(&place.master, &place.forged(what, &client(organizations)), HOST);
        assert_eq!(taken, None, "{what}");
    }
    let case = pem(&place.at("case/cert.pem"));
    let alone = Identity::of(&case[0]).unwrap();
    assert_eq!(alone.role, Role::Admin, "the forgery is one only with its chain");
    let error = Identity::of_chain(case.iter().map(|one| &**one))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("its issuer may issue for the roles node"),
        "{error}"
    );
    // Nor does the authority renew what an issuer was not free to make.
    let files = Files::in_directory(&place.at("case"));
    let error = place
        .authority
        .renew(&files, Validity::days(9))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("its issuer may issue for the roles node"),
        "{error}"
    );
    // A master.
    let admin = issued(&place.authority, &place.at("right"), Role::Admin);
    let forgeries: [(&str, &'static [&'static str]); 2] =
        [("master", &["redhare:master"]), ("server", &["redhare:node"])];
    for (what, organizations) in forgeries {
        let master = Forgery {
            organizations,
            is_server: true,
            is_authority: false,
        };
        let (said, _) = meet(&place.forged(what, &master), &admin, HOST);
        let said = said.unwrap_err();
        assert!(
            said.contains("not a master's") || said.contains("is not believed"),
            "{what}: {said}"
        );
    }
    // An authority of its own.
    let below = Forgery {
        organizations: &["redhare:node"],
        is_server: false,
        is_authority: true,
    };
    let below = place.forged("below", &below);
    let key = PKey::private_key_from_pem(&std::fs::read(&below.files().key).unwrap()).unwrap();
    let between = pem(&below.files().certificate);
    let (leaf, own) = client(&["redhare:node"]).sign(&place.authority, &between[0], &key);
    let files = Files::in_directory(&place.at("deep"));
    std::fs::create_dir(place.at("deep")).unwrap();
    let chain: Vec<Vec<u8>> = [&leaf, &between[0], &between[1]]
        .map(|one| one.to_pem().unwrap())
        .to_vec();
    std::fs::write(&files.certificate, chain.concat()).unwrap();
    std::fs::copy(place.at("ca/ca.pem"), &files.authority).unwrap();
    write_key(&files, &own);
    let (said, taken) = meet(&place.master, &Credentials::load(&files).unwrap(), HOST);
    assert!(said.is_err() && taken.is_none(), "{said:?} {taken:?}");
}

#[test]
fn a_request_is_a_key_and_the_proof_that_one_has_it() {
    let place = Place::new();
    let roots = place.roots();
    let refused = |request: &[u8]| {
        let issue = place
            .issuer
            .issue(request, Role::Client, "x", Validity::days(1), &roots);
        issue.unwrap_err().to_string()
    };
    assert!(refused(b"noise").contains("it is none"));
    assert!(refused(&vec![0; 20_000]).contains("it has 20000 bytes, at most"));
    let good = Joining::new().unwrap().request().unwrap();
    for position in 0..good.len() {
        let mut bad = good.clone();
        bad[position] ^= 1;
        // What still parses is not signed by the key that it names.
        assert!(
            refused(&bad).contains("the request for a certificate cannot be used"),
            "byte {position}"
        );
    }
    let rsa = PKey::from_rsa(openssl::rsa::Rsa::generate(2048).unwrap()).unwrap();
    let mut builder = X509Req::builder().unwrap();
    builder.set_pubkey(&rsa).unwrap();
    builder.sign(&rsa, MessageDigest::sha256()).unwrap();
    assert!(refused(&builder.build().to_der().unwrap()).contains("is not on P-256"));
    // Who asks takes no certificate for another key, and none of other roots.
    let (one, other) = (Joining::new().unwrap(), Joining::new().unwrap());
    let granted = place
        .issuer
        .issue(
            &one.request().unwrap(),
            Role::Client,
            "x",
            Validity::days(1),
            &roots,
        )
        .unwrap();
    let text = roots_text(&roots).unwrap();
    let error = other
        .finish(&granted.chain, &text, &roots)
        .unwrap_err()
        .to_string();
    assert!(error.contains("it is for another key"), "{error}");
    Authority::init(
        &place.at("other"),
        Some(place.authority.cluster()),
        Validity::days(9),
    )
    .unwrap();
    let foreign = pem(&place.at("other/ca.pem"));
    let error = one
        .finish(&granted.chain, &text, &foreign)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("none of its roots is one that we trust"),
        "{error}"
    );
    let foreign = roots_text(&foreign).unwrap();
    assert!(one.finish(&granted.chain, &foreign, &roots).is_err());
    assert!(one.finish(b"noise", &text, &roots).is_err());
}

#[test]
fn a_token_names_the_root_that_its_bearer_trusts() {
    let place = Place::new();
    let roots = place.roots();
    let token = JoinToken::new(&roots[0]).unwrap();
    let again: JoinToken = token.text().parse().unwrap();
    assert_eq!(again, token);
    let (_, root) = again.connector(&roots_text(&roots).unwrap()).unwrap();
    assert_eq!(fingerprint(&root).unwrap(), fingerprint(&roots[0]).unwrap());
    Authority::init(
        &place.at("other"),
        Some(place.authority.cluster()),
        Validity::days(9),
    )
    .unwrap();
    let foreign = std::fs::read(place.at("other/ca.pem")).unwrap();
    let error = again.connector(&foreign).unwrap_err().to_string();
    assert!(
        error.contains("does not have the root that the token names")
            && error.contains("Nothing of the token was sent"),
        "{error}"
    );
}

#[test]
fn an_issuers_certificates_go_on_while_the_authority_is_rotated() {
    let mut place = Place::new();
    let old_roots = place.roots();
    let old = joined(&place.issuer, &old_roots, Role::Node, NODE, &place.at("old"));
    let admin = issued(&place.authority, &place.at("before"), Role::Admin);
    assert!(!old.is_due());
    let superseded = |own: &Credentials, roots: &[X509], issuer: &Issuer| {
        own.is_superseded(&roots_text(roots).unwrap(), &issuer.chain_text().unwrap())
            .unwrap()
    };
    assert!(!superseded(&old, &old_roots, &place.issuer));
    assert!(!superseded(&admin, &old_roots, &place.issuer));

    place.authority.rotate(Validity::days(100)).unwrap();
    let both = place.roots();
    assert_eq!(both.len(), 2);
    // The old issuer serves until there is a new one.
    place.issuer.check(&both).unwrap();
    let new_issuer = place.authority.issuer(Validity::days(50)).unwrap();
    new_issuer.check(&both).unwrap();
    new_issuer.check(&old_roots).unwrap();
    let known = place.authority.issuers().unwrap();
    assert_eq!(
        known.iter().map(|(_, current)| *current).collect::<Vec<_>>(),
        [true, false]
    );
    // A node is told, and renews what it has; its new bundle has both roots.
    assert!(superseded(&old, &both, &new_issuer));
    let joining = Joining::new().unwrap();
    let granted = new_issuer
        .issue(
            &joining.request().unwrap(),
            Role::Node,
            NODE,
            Validity::days(30),
            &both,
        )
        .unwrap();
    let made = joining
        .finish(&granted.chain, &roots_text(&both).unwrap(), old.authorities())
        .unwrap();
    let new = Credentials::load(&made.write(&place.at("new")).unwrap()).unwrap();
    assert_eq!(new.authorities().len(), 2);
    assert!(!superseded(&new, &both, &new_issuer));
    let new_master = issued(&place.authority, &place.at("after"), Role::Master);
    for master in [&place.master, &new_master] {
        for client in [&old, &new] {
            let (said, taken) = meet(master, client, HOST);
            assert_eq!(said, Ok(()), "{master:?} {client:?}");
            assert_eq!(taken.unwrap().name, NODE);
        }
    }
    // The authority renews what an issuer gave.
    let renewed = place.authority.renew(old.files(), Validity::days(9)).unwrap();
    assert_eq!(
        (renewed.identity.role, renewed.identity.name.as_str()),
        (Role::Node, NODE)
    );

    place.authority.finish().unwrap();
    let last = place.roots();
    assert!(superseded(&new, &last, &new_issuer), "the old root goes");
    let last_master = issued(&place.authority, &place.at("last"), Role::Master);
    for (client, is_well) in [(&new, true), (&old, false)] {
        let (said, taken) = meet(&last_master, client, HOST);
        assert_eq!((said.is_ok(), taken.is_some()), (is_well, is_well), "{said:?}");
    }
}

#[test]
fn nobody_whom_a_root_has_signed_passes_for_a_root() {
    let place = Place::new();
    let roots = place.roots();
    let own = joined(&place.issuer, &roots, Role::Node, NODE, &place.at("own"));
    // An issuer's key makes a root of the issuer's name, and offers the issuer's own certificate as the proof for it.
    let stolen = std::fs::read(place.at("issuer/issuer.pem")).unwrap();
    let key = PKey::private_key_from_pem(&stolen).unwrap();
    let issuer = X509::stack_from_pem(&stolen).unwrap().remove(0);
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    builder.set_subject_name(issuer.subject_name()).unwrap();
    builder.set_issuer_name(issuer.subject_name()).unwrap();
    let time = |unix| Asn1Time::from_unix(unix).unwrap();
    builder.set_not_before(&time(unix_now() - 100)).unwrap();
    builder.set_not_after(&time(unix_now() + 100_000)).unwrap();
    builder.set_pubkey(&key).unwrap();
    let constraints = BasicConstraints::new().critical().ca().build().unwrap();
    builder.append_extension(constraints).unwrap();
    builder.sign(&key, MessageDigest::sha256()).unwrap();
    let false_root = builder.build();
    let offered = [roots[0].clone(), false_root];
    let text = roots_text(&offered).unwrap();
    assert!(!own.is_superseded(&text, &issuer.to_pem().unwrap()).unwrap());
    let joining = Joining::new().unwrap();
    let granted = place
        .issuer
        .issue(
            &joining.request().unwrap(),
            Role::Node,
            NODE,
            Validity::days(3),
            &roots,
        )
        .unwrap();
    let made = joining.finish(&granted.chain, &text, own.authorities()).unwrap();
    let renewed = Credentials::load(&made.write(&place.at("own")).unwrap()).unwrap();
    assert_eq!(renewed.authorities().len(), 1);
}
