//! The cluster's certificate authority: a directory with the root key.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, PKeyRef, Private};
use openssl::x509::{X509, X509Name, X509Ref};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::durable::{make_directory, prepare, replace, take_place};
use crate::files::{self, CredentialsError, Files};
use crate::holder::{ISSUER_ORGANIZATION, cluster_of, unix};
use crate::issuer::{self, Issuer};
use crate::making::{AUTHORITY_DEPTH, Kind, Making, generate, holder_subject};
use crate::{Cluster, Identity, Role, unix_now};

/// The root's key, its certificate, and after a rotation the same root as the one before it vouches for it. One file,
/// so that one rename replaces all of it.
const ROOT: &str = "authority.pem";
/// The roots to trust.
const BUNDLE: &str = "ca.pem";
/// A copy of each certificate that was issued, by serial number.
const ISSUED: &str = "issued";
/// A copy of each issuer's certificate, by serial number.
const ISSUERS: &str = "issuers";
/// Who changes the authority has this one locked, so that two at once do not take each other's files for their own.
const LOCK: &str = "lock";
/// Certificates hold from a little before they are made, since clocks differ.
const BACKDATED_SECONDS: i64 = 300;
/// Longest common name (X.520, ub-common-name).
const NAME_MAX: usize = 64;

/// Why an authority does not do what it was asked.
#[derive(Debug, Error)]
pub enum AuthorityError {
    /// There is one.
    #[error("{} has an authority already; see \"redhare ca show\", or name another directory", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// There is none, or it cannot be read.
    #[error("{} is no directory of a certificate authority: {source}; make one with \"redhare ca init\"", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        source: CredentialsError,
    },
    /// The system.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A name that a certificate cannot have.
    #[error(
        "the name \"{name}\" has other than letters, digits, '.', '_', '-' and '@', or not 1 to 64 of them; give --name \
         another one"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// A node's name.
    #[error(
        "\"{name}\" is no node's name, which is a UUID; leave --name out for a new node, or give the one that \"redhare \
         status\" shows"
    )]
    NodeName {
        /// The name.
        name: String,
    },
    /// Addresses without need, or none with.
    #[error(
        "{role} \"{name}\" has {count} addresses; a master needs those by which others reach it (--address), nobody else has any"
    )]
    Addresses {
        /// The role.
        role: Role,
        /// The name.
        name: String,
        /// How many were given.
        count: usize,
    },
    /// What is no address.
    #[error("\"{address}\" is no host name or IP address; write it without a port")]
    Address {
        /// What was given.
        address: String,
    },
    /// The root ends.
    #[error("the root in {} has expired; make a new one with \"redhare ca rotate\"", path.display())]
    RootExpired {
        /// The directory.
        path: PathBuf,
    },
    /// Two at once.
    #[error(
        "{} is being rotated already ({trusted} roots are trusted); when everybody has new credentials, end that with \
         \"redhare ca rotate --finish\"", path.display()
    )]
    Rotating {
        /// The directory.
        path: PathBuf,
        /// Roots in the bundle.
        trusted: usize,
    },
    /// None at all.
    #[error("{} is not being rotated: only its root is trusted; begin with \"redhare ca rotate\"", path.display())]
    NotRotating {
        /// The directory.
        path: PathBuf,
    },
    /// A root of an earlier release, while it is rotated.
    #[error(
        "the old root in {} was made before there were issuers and allows none behind the new one; end the rotation with \
         \"redhare ca rotate --finish\" first", path.display()
    )]
    ShallowRoot {
        /// The directory.
        path: PathBuf,
    },
    /// Somebody else's credentials.
    #[error("the certificate {} is not of this authority: it {why}; name credentials that it has issued", path.display())]
    Foreign {
        /// The certificate.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// OpenSSL.
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// From when until when, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// From when.
    pub from: i64,
    /// Until when.
    pub until: i64,
}

impl Validity {
    /// From now, or a little earlier, for so many days.
    pub fn days(days: u32) -> Self {
        let now = unix_now();
        Self {
            from: now - BACKDATED_SECONDS,
            until: now + i64::from(days) * 86_400,
        }
    }
}

/// What certificate is wanted.
#[derive(Clone, Debug)]
pub struct Issue {
    /// What its holder may do.
    pub role: Role,
    /// Who it is for. A node's is a UUID, and is drawn if there is none.
    pub name: Option<String>,
    /// By which host names and addresses a master is reached.
    pub addresses: Vec<String>,
    /// How long. A certificate ends with its root at the latest.
    pub validity: Validity,
}

/// A certificate that was issued, with all that goes into a directory of credentials.
pub struct Issued {
    /// What it says.
    pub identity: Identity,
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Zeroizing<Vec<u8>>,
    pub(crate) authority: Vec<u8>,
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Issued {
    /// Writes `ca.pem`, `cert.pem` and `key.pem` (mode 0600) into a directory, made if it is not there. What was there
    /// is replaced, each file at once; a program that reads them between two of these finds a key that does not fit,
    /// and goes on with what it had.
    ///
    /// # Errors
    /// [`AuthorityError::Write`].
    pub fn write(&self, directory: &Path) -> Result<Files, AuthorityError> {
        make_directory(directory)?;
        let files = Files::in_directory(directory);
        replace(&files.authority, &self.authority, 0o644)?;
        // Both are durable before either takes its place: what a crash leaves between is finished when they are read
        // ([`crate::Credentials::load`]).
        prepare(&files.certificate, &self.certificate, 0o644)?;
        replace(&files.key, &self.key, 0o600)?;
        take_place(&files.certificate, &self.certificate)?;
        Ok(files)
    }
}

/// A certificate of an authority or a holder, as it is shown to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Its subject, in one line.
    pub subject: String,
    /// Its serial number in hexadecimal digits.
    pub serial: String,
    /// SHA-256 of its public key (DER of SubjectPublicKeyInfo), in hexadecimal digits.
    pub key_sha256: String,
    /// Until when it holds, in seconds since 1970.
    pub not_after: i64,
}

/// See [`Summary`].
///
/// # Errors
/// OpenSSL's.
pub fn summary(certificate: &X509Ref) -> Result<Summary, ErrorStack> {
    let entries = certificate.subject_name().entries().map(|entry| {
        let name = entry.object().nid().short_name().unwrap_or("?").to_owned();
        let text = entry.data().to_string().unwrap_or_default();
        format!("{name}={text}")
    });
    let subject: Vec<String> = entries.collect();
    let key = certificate.public_key()?.public_key_to_der()?;
    let digest = openssl::hash::hash(MessageDigest::sha256(), &key)?;
    Ok(Summary {
        subject: subject.join(", "),
        serial: certificate.serial_number().to_bn()?.to_hex_str()?.to_lowercase(),
        key_sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        not_after: unix(certificate.not_after())?,
    })
}

/// The cluster's certificate authority.
pub struct Authority {
    directory: PathBuf,
    cluster: Cluster,
    key: PKey<Private>,
    root: X509,
    /// The root as the one before it vouches for it.
    vouched: Vec<X509>,
    /// The roots to trust, this one among them.
    bundle: Vec<X509>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Authority");
        shown
            .field("directory", &self.directory)
            .field("cluster", &self.cluster);
        shown.finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new one. The directory is made if it is not there, for its owner alone. Without a cluster a new
    /// identity is drawn, which the cluster takes that is founded with its certificates.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn init(
        directory: &Path,
        cluster: Option<Cluster>,
        validity: Validity,
    ) -> Result<Self, AuthorityError> {
        let exists = || AuthorityError::Exists {
            path: directory.to_owned(),
        };
        // Before anything is made there: it may be somebody's directory of credentials.
        if is_taken(directory) {
            return Err(exists());
        }
        make_directory(directory)?;
        let _lock = lock(directory)?;
        if is_taken(directory) {
            return Err(exists());
        }
        let cluster = match cluster {
            Some(cluster) => cluster,
            None => Cluster::random()?,
        };
        let key = generate()?;
        let root = new_root(cluster, &key, validity)?;
        let authority = Self {
            directory: directory.to_owned(),
            cluster,
            key,
            bundle: vec![root.clone()],
            root,
            vouched: Vec::new(),
        };
        // The key first: roots alone are an authority whose key is lost, or somebody's credentials, and nobody writes over
        // those.
        authority.save_root()?;
        authority.save_bundle()?;
        Ok(authority)
    }

    /// Opens the one in a directory. A rotation that was cut off before its key was written is none: it can begin again.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn open(directory: &Path) -> Result<Self, AuthorityError> {
        let open = |source| AuthorityError::Open {
            path: directory.to_owned(),
            source,
        };
        let path = directory.join(ROOT);
        let key = files::key(&path).map_err(open)?;
        let mut chain = files::certificates(&path, "the root's certificate").map_err(open)?;
        let vouched = chain.split_off(1);
        let root = chain.remove(0);
        let mut bundle =
            files::certificates(&directory.join(BUNDLE), "the certificates of roots").map_err(open)?;
        let content = |why: String| {
            open(CredentialsError::Content {
                path: path.clone(),
                what: "a root's key and certificate",
                why,
            })
        };
        if !root.public_key()?.public_eq(&key) {
            return Err(content("the key is not that of the certificate".to_owned()));
        }
        let Some(cluster) = cluster_of(&root) else {
            return Err(content("the certificate names no cluster".to_owned()));
        };
        if !bundle.contains(&root) {
            return Err(content(format!(
                "{BUNDLE} beside it does not have the certificate, so that nobody would trust it; put back both files of one copy"
            )));
        }
        // A rotation that was cut off between its two files: the first root's key was never written. Nobody can have
        // anything of it, and the one that issues is the one before it still.
        if bundle.len() > 1 && (bundle[0] != root || vouched.is_empty()) {
            bundle = vec![root.clone()];
        }
        Ok(Self {
            directory: directory.to_owned(),
            cluster,
            key,
            root,
            vouched,
            bundle,
        })
    }

    /// The cluster it is for.
    pub fn cluster(&self) -> Cluster {
        self.cluster
    }

    /// The root that issues.
    ///
    /// # Errors
    /// OpenSSL's.
    pub fn root(&self) -> Result<Summary, AuthorityError> {
        Ok(summary(&self.root)?)
    }

    /// The roots to trust: more than one while it is rotated.
    ///
    /// # Errors
    /// OpenSSL's.
    pub fn trusted(&self) -> Result<Vec<Summary>, AuthorityError> {
        Ok(self
            .bundle
            .iter()
            .map(|root| summary(root))
            .collect::<Result<_, _>>()?)
    }

    /// What was issued, and which root did, as far as it is known here; the newest of each holder. In order of role and
    /// name.
    ///
    /// # Errors
    /// A copy that cannot be read.
    pub fn issued(&self) -> Result<Vec<(Identity, bool)>, AuthorityError> {
        let directory = self.directory.join(ISSUED);
        let open = |source| AuthorityError::Open {
            path: self.directory.clone(),
            source,
        };
        let mut newest: std::collections::BTreeMap<(Role, String), (Identity, bool)> = Default::default();
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "pem") {
                continue;
            }
            let certificate = files::certificates(&path, "a certificate")
                .map_err(open)?
                .remove(0);
            let identity = Identity::of(&certificate)
                .map_err(|source| open(CredentialsError::Identity { path, source }))?;
            let is_current = certificate.verify(&self.key)?;
            let key = (identity.role, identity.name.clone());
            match newest.get(&key) {
                // Two of one second: that of the root that issues now is the later one.
                Some((other, by_current))
                    if (other.not_before, *by_current) > (identity.not_before, is_current) => {}
                _ => drop(newest.insert(key, (identity, is_current))),
            }
        }
        Ok(newest.into_values().collect())
    }

    /// Issues a certificate, with a new key.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn issue(&self, issue: &Issue) -> Result<Issued, AuthorityError> {
        let name = checked_name(issue)?;
        let root_ends = self.root_ends()?;
        let key = generate()?;
        let subject = holder_subject(issue.role, &name)?;
        let validity = Validity {
            from: issue.validity.from,
            until: issue.validity.until.min(root_ends),
        };
        let certificate = Making {
            subject: &subject,
            cluster: self.cluster,
            addresses: &issue.addresses,
            validity,
            kind: Kind::Holder(issue.role),
        }
        .sign(&key, Some(&self.root), &self.key)?;
        let identity = Identity::of(&certificate).map_err(|source| AuthorityError::Open {
            path: self.directory.clone(),
            source: CredentialsError::Identity {
                path: self.directory.clone(),
                source,
            },
        })?;
        let copies = self.directory.join(ISSUED);
        make_directory(&copies)?;
        replace(
            &copies.join(format!("{}.pem", identity.serial)),
            &certificate.to_pem()?,
            0o644,
        )?;
        let mut chain = certificate.to_pem()?;
        for between in &self.vouched {
            chain.extend(between.to_pem()?);
        }
        Ok(Issued {
            identity,
            certificate: chain,
            key: Zeroizing::new(key.private_key_to_pem_pkcs8()?),
            authority: bundle_pem(&self.bundle)?,
        })
    }

    /// Until when the root holds, if it does now.
    fn root_ends(&self) -> Result<i64, AuthorityError> {
        let ends = unix(self.root.not_after())?;
        if ends < unix_now() {
            let path = self.directory.clone();
            return Err(AuthorityError::RootExpired { path });
        }
        Ok(ends)
    }

    /// Makes an issuer, which masters hold: see [`Issuer`]. It ends with the root at the latest.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn issuer(&self, validity: Validity) -> Result<Issuer, AuthorityError> {
        let root_ends = self.root_ends()?;
        // Whoever knows only the old root would believe nothing that comes from it.
        let is_deep = |root: &X509| root.pathlen().is_none_or(|depth| depth >= AUTHORITY_DEPTH);
        if self.bundle.len() > 1 && !self.bundle.iter().all(is_deep) {
            let path = self.directory.clone();
            return Err(AuthorityError::ShallowRoot { path });
        }
        let key = generate()?;
        let subject = authority_subject(ISSUER_ORGANIZATION, "issuer", self.cluster)?;
        let certificate = Making {
            subject: &subject,
            cluster: self.cluster,
            addresses: &[],
            validity: Validity {
                from: validity.from,
                until: validity.until.min(root_ends),
            },
            kind: Kind::Issuer,
        }
        .sign(&key, Some(&self.root), &self.key)?;
        let copies = self.directory.join(ISSUERS);
        make_directory(&copies)?;
        let name = format!("{}.pem", summary(&certificate)?.serial);
        replace(&copies.join(name), &certificate.to_pem()?, 0o644)?;
        Ok(Issuer::new(self.cluster, key, certificate, self.vouched.clone()))
    }

    /// The issuers that were made here and have not ended, and whether the root that issues now has signed them. The
    /// newest first.
    ///
    /// # Errors
    /// A copy that cannot be read.
    pub fn issuers(&self) -> Result<Vec<(Summary, bool)>, AuthorityError> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.directory.join(ISSUERS))
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "pem") {
                continue;
            }
            let open = |source| AuthorityError::Open {
                path: self.directory.clone(),
                source,
            };
            let certificate = files::certificates(&path, "an issuer's certificate")
                .map_err(open)?
                .remove(0);
            let row = (summary(&certificate)?, certificate.verify(&self.key)?);
            found.push((unix(certificate.not_before())?, row));
        }
        found.retain(|(_, (summary, _))| summary.not_after >= unix_now());
        found.sort_by_key(|(since, (_, is_current))| std::cmp::Reverse((*since, *is_current)));
        Ok(found.into_iter().map(|(_, row)| row).collect())
    }

    /// Issues anew what `files` hold, also if that has expired: same role, name and addresses, new key.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn renew(&self, old: &Files, validity: Validity) -> Result<Issued, AuthorityError> {
        let path = &old.certificate;
        let foreign = |why: String| AuthorityError::Foreign {
            path: path.clone(),
            why,
        };
        let found = files::certificates(path, "a certificate").map_err(|error| foreign(error.to_string()))?;
        let (leaf, between) = found.split_first().expect("a file with a certificate has one");
        let proved = issuer::prove(leaf, between, &self.bundle, issuer::Time::Any)?;
        let chain = proved.map_err(|_| foreign("was signed by another root".to_owned()))?;
        let identity =
            Identity::of_chain(chain.iter().map(|one| &**one)).map_err(|error| foreign(error.to_string()))?;
        self.issue(&Issue {
            role: identity.role,
            name: Some(identity.name),
            addresses: identity.addresses,
            validity,
        })
    }

    /// Begins a rotation: a new root, for which the old one vouches. From now on certificates are issued by the new
    /// one; who knows either root believes them, and who has the new bundle believes old certificates, too. So
    /// credentials may be renewed in any order.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn rotate(&mut self, validity: Validity) -> Result<(), AuthorityError> {
        let _lock = lock(&self.directory)?;
        *self = Self::open(&self.directory)?;
        if self.bundle.len() > 1 {
            return Err(AuthorityError::Rotating {
                path: self.directory.clone(),
                trusted: self.bundle.len(),
            });
        }
        let key = generate()?;
        let root = new_root(self.cluster, &key, validity)?;
        let vouched = Making {
            subject: root.subject_name(),
            cluster: self.cluster,
            addresses: &[],
            validity: Validity {
                from: validity.from,
                until: validity.until.min(unix(self.root.not_after())?),
            },
            kind: Kind::Authority,
        }
        .sign(&key, Some(&self.root), &self.key)?;
        self.bundle.insert(0, root.clone());
        self.vouched = vec![vouched];
        self.root = root;
        self.key = key;
        self.save()
    }

    /// Ends a rotation: the old root is trusted no more. Everybody needs the bundle from now on, and certificates of
    /// the new root.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn finish(&mut self) -> Result<(), AuthorityError> {
        let _lock = lock(&self.directory)?;
        *self = Self::open(&self.directory)?;
        // One root, for which another one vouches still: it was cut off between its two files.
        if self.bundle.len() == 1 && self.vouched.is_empty() {
            let path = self.directory.clone();
            return Err(AuthorityError::NotRotating { path });
        }
        self.bundle = vec![self.root.clone()];
        self.vouched = Vec::new();
        self.save()
    }

    /// The bundle first: one that has a root too many does no harm if the second file is not written.
    fn save(&self) -> Result<(), AuthorityError> {
        self.save_bundle()?;
        self.save_root()
    }

    fn save_bundle(&self) -> Result<(), AuthorityError> {
        replace(&self.directory.join(BUNDLE), &bundle_pem(&self.bundle)?, 0o644)
    }

    fn save_root(&self) -> Result<(), AuthorityError> {
        let mut text = Zeroizing::new(Vec::with_capacity(16_384));
        text.extend(&*Zeroizing::new(self.key.private_key_to_pem_pkcs8()?));
        for certificate in std::iter::once(&self.root).chain(&self.vouched) {
            text.extend(certificate.to_pem()?);
        }
        replace(&self.directory.join(ROOT), &text, 0o600)
    }
}

/// Whether there is an authority, or something else that is not to be written over. A key without roots is what is left of
/// an [`Authority::init`] that was cut off, as long as its lock is there and nothing else: nothing was issued with it. Without the
/// lock it is a copy that somebody has put there.
fn is_taken(directory: &Path) -> bool {
    let is_there = |name: &str| directory.join(name).symlink_metadata().is_ok();
    if is_there(BUNDLE) || !is_there(ROOT) {
        return is_there(BUNDLE);
    }
    let left = [ROOT, LOCK].map(|name| directory.join(name));
    let is_left = |path: PathBuf| left.contains(&path) || path.extension().is_some_and(|end| end == "new");
    // What cannot be looked at may be anything.
    let is_cut_off = is_there(LOCK)
        && std::fs::read_dir(directory)
            .is_ok_and(|mut found| found.all(|entry| entry.is_ok_and(|entry| is_left(entry.path()))));
    !is_cut_off
}

/// Waits until nobody else changes the authority; nobody does until the file is dropped.
fn lock(directory: &Path) -> Result<File, AuthorityError> {
    let path = directory.join(LOCK);
    let mut options = OpenOptions::new();
    let opened = options
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let locked = opened.and_then(|file| file.lock().map(|()| file));
    locked.map_err(|source| AuthorityError::Write { path, source })
}

pub(crate) fn bundle_pem(bundle: &[X509]) -> Result<Vec<u8>, ErrorStack> {
    let mut text = Vec::new();
    for root in bundle {
        text.extend(root.to_pem()?);
    }
    Ok(text)
}

fn checked_name(issue: &Issue) -> Result<String, AuthorityError> {
    let name = match (&issue.name, issue.role) {
        (Some(name), Role::Node) => match name.parse::<Cluster>() {
            // Both are UUIDs; a node's is written in the same way.
            Ok(uuid) => uuid.to_string(),
            Err(_) => return Err(AuthorityError::NodeName { name: name.clone() }),
        },
        (Some(name), _) => name.clone(),
        (None, Role::Node) => Cluster::random()?.to_string(),
        (None, role) => role.name().to_owned(),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(fits) {
        return Err(AuthorityError::Name { name });
    }
    let (role, count) = (issue.role, issue.addresses.len());
    if (role == Role::Master) != (count > 0) {
        return Err(AuthorityError::Addresses { role, name, count });
    }
    let is_host = |text: &str| {
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        text.len() <= 253 && text.split('.').all(is_label)
    };
    let is_address = |text: &&String| text.parse::<IpAddr>().is_ok() || is_host(text);
    match issue.addresses.iter().find(|address| !is_address(address)) {
        None => Ok(name),
        Some(address) => Err(AuthorityError::Address {
            address: address.clone(),
        }),
    }
}

/// With a number that tells one root or issuer of the cluster from the next.
fn authority_subject(organization: &str, what: &str, cluster: Cluster) -> Result<X509Name, ErrorStack> {
    let mut bytes = [0; 4];
    openssl::rand::rand_bytes(&mut bytes)?;
    let number = u32::from_be_bytes(bytes);
    let mut subject = X509Name::builder()?;
    subject.append_entry_by_nid(Nid::ORGANIZATIONNAME, organization)?;
    subject.append_entry_by_nid(Nid::COMMONNAME, &format!("{what} {number:08x} of {cluster}"))?;
    Ok(subject.build())
}

fn new_root(cluster: Cluster, key: &PKeyRef<Private>, validity: Validity) -> Result<X509, ErrorStack> {
    let subject = authority_subject("Redhare", "root", cluster)?;
    Making {
        subject: &subject,
        cluster,
        addresses: &[],
        validity,
        kind: Kind::Authority,
    }
    .sign(key, None, key)
}
