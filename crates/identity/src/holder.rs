//! What a certificate says of its holder.

use std::fmt;
use std::str::FromStr;

use openssl::asn1::{Asn1Time, Asn1TimeRef};
use openssl::error::ErrorStack;
use openssl::nid::Nid;
use openssl::ssl::SslRef;
use openssl::x509::X509Ref;
use thiserror::Error;

/// Before the role in the subject's organization, so that other organizations in it mean nothing.
const ORGANIZATION_PREFIX: &str = "redhare:";
/// The organization of an issuer's certificate, which only a root writes: whoever stands below it has one of
/// [`Role::JOINING`], or is nobody.
pub(crate) const ISSUER_ORGANIZATION: &str = "redhare:issuer";
/// Before the cluster in a URI of the alternative names (RFC 9562, section 4).
const CLUSTER_PREFIX: &str = "urn:uuid:";

/// What a holder may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Everything.
    Admin,
    /// To be the node that the certificate names.
    Node,
    /// To use volumes: read, write, hold leases.
    Client,
    /// To look, and to read what is in volumes.
    ReadOnly,
    /// To be a master: the only role that others connect to.
    Master,
}

/// A word that is no role.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("\"{text}\" is no role; write admin, node, client, read-only or master")]
pub struct ParseRoleError {
    text: String,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 5] = [
        Self::Admin,
        Self::Node,
        Self::Client,
        Self::ReadOnly,
        Self::Master,
    ];

    /// Those that an issuer's certificates may have, and that are had by joining.
    pub const JOINING: [Self; 3] = [Self::Node, Self::Client, Self::ReadOnly];

    /// As people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Node => "node",
            Self::Client => "client",
            Self::ReadOnly => "read-only",
            Self::Master => "master",
        }
    }

    /// As it stands in a certificate.
    pub(crate) fn organization(self) -> String {
        format!("{ORGANIZATION_PREFIX}{}", self.name())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Role {
    type Err = ParseRoleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| ParseRoleError {
            text: text.to_owned(),
        })
    }
}

/// A cluster's identity: a UUID (RFC 9562), not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cluster([u8; 16]);

/// A text that names no cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "\"{text}\" is no cluster's identity; write the UUID that \"redhare status\" shows, 32 hexadecimal digits"
)]
pub struct ParseClusterError {
    text: String,
}

impl Cluster {
    /// From 16 bytes in the order of the text form; none if all are zero.
    pub fn from_bytes(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// The 16 bytes in the order of the text form.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// A new one: version 4 (RFC 9562, section 5.4).
    pub(crate) fn random() -> Result<Self, ErrorStack> {
        let mut bytes = [0; 16];
        openssl::rand::rand_bytes(&mut bytes)?;
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(Self(bytes))
    }

    /// As it stands in a certificate.
    pub(crate) fn uri(self) -> String {
        format!("{CLUSTER_PREFIX}{self}")
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for Cluster {
    type Err = ParseClusterError;

    /// Reads 32 hexadecimal digits, with or without hyphens.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseClusterError {
            text: text.to_owned(),
        };
        let digits: String = text.chars().filter(|&c| c != '-').collect();
        if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let number = u128::from_str_radix(&digits, 16).map_err(|_| bad())?;
        Self::from_bytes(number.to_be_bytes()).ok_or_else(bad)
    }
}

/// What a certificate says of its holder. Says nothing of whether it is to be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// What the holder may do.
    pub role: Role,
    /// Who it is; of a node its UUID.
    pub name: String,
    /// The cluster it is for.
    pub cluster: Cluster,
    /// From when it holds, in seconds since 1970.
    pub not_before: i64,
    /// Until when it holds, in seconds since 1970.
    pub not_after: i64,
    /// Its serial number in hexadecimal digits.
    pub serial: String,
    /// Host names and addresses it may be reached by.
    pub addresses: Vec<String>,
}

/// A certificate that is none of a cluster's.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// No role, or more than one.
    #[error(
        "its subject names {found} roles; exactly one organization of redhare:admin, redhare:node, redhare:client, \
         redhare:read-only or redhare:master belongs there"
    )]
    Role {
        /// How many.
        found: usize,
    },
    /// No name, or more than one.
    #[error("its subject has {found} common names; exactly one belongs there, which names the holder")]
    Name {
        /// How many.
        found: usize,
    },
    /// No cluster, or more than one.
    #[error(
        "it names {found} clusters; exactly one URI urn:uuid:CLUSTER belongs among its alternative names"
    )]
    Cluster {
        /// How many.
        found: usize,
    },
    /// An issuer has gone beyond what it is for.
    #[error(
        "it is that of {role} \"{name}\", and its issuer may issue for the roles node, client and read-only alone"
    )]
    BeyondIssuer {
        /// The role that it would have.
        role: Role,
        /// Whose.
        name: String,
    },
    /// It was not verified.
    #[error("no chain of certificates up to a root was verified for it")]
    Unproved,
    /// OpenSSL.
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

impl Identity {
    /// Who is at the other end of a connection whose handshake has ended; none if no certificate was shown.
    ///
    /// # Errors
    /// See [`IdentityError`]; also of a certificate that an issuer was not free to make.
    pub fn of_peer(ssl: &SslRef) -> Result<Option<Self>, IdentityError> {
        if ssl.peer_certificate().is_none() {
            return Ok(None);
        }
        let chain = ssl.verified_chain().ok_or(IdentityError::Unproved)?;
        Self::of_chain(chain).map(Some)
    }

    /// Reads the first certificate of a chain that was verified up to its root, and refuses what those above it do not
    /// allow.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn of_chain<'a>(chain: impl IntoIterator<Item = &'a X509Ref>) -> Result<Self, IdentityError> {
        let mut chain = chain.into_iter();
        let identity = Self::of(chain.next().ok_or(IdentityError::Unproved)?)?;
        let by_issuer = chain.any(is_issuer);
        match identity {
            Self { role, name, .. } if by_issuer && !Role::JOINING.contains(&role) => {
                Err(IdentityError::BeyondIssuer { role, name })
            }
            identity => Ok(identity),
        }
    }

    /// Reads a certificate.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn of(certificate: &X509Ref) -> Result<Self, IdentityError> {
        let texts = |nid: Nid| -> Vec<String> {
            let entries = certificate.subject_name().entries_by_nid(nid);
            // With zeros in it if there are some: a name ends where it ends.
            entries
                .map(|entry| entry.data().to_string().unwrap_or_default())
                .collect()
        };
        let organizations = texts(Nid::ORGANIZATIONNAME);
        let ours = organizations
            .iter()
            .filter_map(|text| text.strip_prefix(ORGANIZATION_PREFIX));
        let roles: Vec<&str> = ours.collect();
        let role = match &roles[..] {
            [role] => role.parse().ok(),
            _ => None,
        };
        let found = roles.len();
        let role = role.ok_or(IdentityError::Role { found })?;
        let mut names = texts(Nid::COMMONNAME);
        let name = match names.len() {
            1 => names.remove(0),
            found => return Err(IdentityError::Name { found }),
        };
        let mut clusters = Vec::new();
        let mut addresses = Vec::new();
        for alternative in certificate.subject_alt_names().into_iter().flatten() {
            let cluster = alternative.uri().and_then(|uri| uri.strip_prefix(CLUSTER_PREFIX));
            clusters.extend(cluster.map(str::to_owned));
            addresses.extend(alternative.dnsname().map(str::to_owned));
            addresses.extend(alternative.ipaddress().and_then(address));
        }
        let cluster = match &clusters[..] {
            [cluster] => cluster.parse().ok(),
            _ => None,
        };
        let found = clusters.len();
        Ok(Self {
            role,
            name,
            cluster: cluster.ok_or(IdentityError::Cluster { found })?,
            not_before: unix(certificate.not_before())?,
            not_after: unix(certificate.not_after())?,
            serial: certificate.serial_number().to_bn()?.to_hex_str()?.to_lowercase(),
            addresses,
        })
    }

    /// Whole days left, rounded down; negative once it has ended.
    pub fn days_left(&self) -> i64 {
        (self.not_after - crate::unix_now()).div_euclid(86_400)
    }

    /// Whether it holds now, by this machine's clock.
    pub fn is_valid_now(&self) -> bool {
        (self.not_before..=self.not_after).contains(&crate::unix_now())
    }
}

/// The cluster that an authority's certificate names, if it is one.
pub(crate) fn cluster_of(certificate: &X509Ref) -> Option<Cluster> {
    let names = certificate.subject_alt_names();
    let uris = names.iter().flatten().filter_map(|name| name.uri());
    let mut clusters = uris.filter_map(|uri| uri.strip_prefix(CLUSTER_PREFIX)?.parse().ok());
    clusters.next().filter(|_| clusters.next().is_none())
}

/// Whether a certificate is an issuer's.
pub(crate) fn is_issuer(certificate: &X509Ref) -> bool {
    let mut organizations = certificate.subject_name().entries_by_nid(Nid::ORGANIZATIONNAME);
    organizations.any(|entry| entry.data().as_slice() == ISSUER_ORGANIZATION.as_bytes())
}

/// An address of the alternative names: 4 or 16 bytes (RFC 5280, section 4.2.1.6).
fn address(bytes: &[u8]) -> Option<String> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(std::net::Ipv4Addr::from(four).to_string());
    }
    let sixteen = <[u8; 16]>::try_from(bytes).ok()?;
    Some(std::net::Ipv6Addr::from(sixteen).to_string())
}

/// A certificate's time in seconds since 1970.
pub(crate) fn unix(time: &Asn1TimeRef) -> Result<i64, ErrorStack> {
    let since = Asn1Time::from_unix(0)?.diff(time)?;
    Ok(i64::from(since.days) * 86_400 + i64::from(since.secs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_and_clusters_are_read_as_they_are_written() {
        for role in Role::ALL {
            assert_eq!(role.to_string().parse::<Role>().unwrap(), role);
        }
        assert!(
            "root"
                .parse::<Role>()
                .unwrap_err()
                .to_string()
                .contains("read-only")
        );
        let cluster = Cluster::random().unwrap();
        assert_eq!(cluster.to_string().parse::<Cluster>().unwrap(), cluster);
        assert_eq!(
            cluster.to_string().replace('-', "").parse::<Cluster>().unwrap(),
            cluster
        );
        for bad in [
            "",
            "00000000-0000-0000-0000-000000000000",
            "1234",
            "+2345678901234567890123456789012",
        ] {
            assert!(bad.parse::<Cluster>().is_err(), "{bad}");
        }
    }
}
