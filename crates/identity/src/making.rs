//! Certificates in the making.

use std::net::IpAddr;

use openssl::asn1::{Asn1Integer, Asn1Object, Asn1OctetString, Asn1Time};
use openssl::bn::{BigNum, MsbOption};
use openssl::ec::{EcGroup, EcKey};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{HasPublic, PKey, PKeyRef, Private};
use openssl::x509::extension::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectAlternativeName,
    SubjectKeyIdentifier,
};
use openssl::x509::{X509, X509Extension, X509Name, X509NameRef, X509Ref};

use crate::authority::Validity;
use crate::{Cluster, Role};

/// Authorities that may stand between a root and a holder: the root that follows it, and an issuer.
pub(crate) const AUTHORITY_DEPTH: u32 = 2;
/// id-ce-nameConstraints (RFC 5280, section 4.2.1.10).
const NAME_CONSTRAINTS: &str = "2.5.29.30";

/// A key on P-256, which every TLS library has.
pub(crate) fn generate() -> Result<PKey<Private>, ErrorStack> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    PKey::from_ec_key(EcKey::generate(&group)?)
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// A root, or a root as the one before it vouches for it.
    Authority,
    /// What issues for masters: see [`crate::Issuer`].
    Issuer,
    Holder(Role),
}

/// A certificate in the making (RFC 5280).
pub(crate) struct Making<'a> {
    pub(crate) subject: &'a X509NameRef,
    pub(crate) cluster: Cluster,
    pub(crate) addresses: &'a [String],
    pub(crate) validity: Validity,
    pub(crate) kind: Kind,
}

impl Making<'_> {
    /// Signs it; without an issuer it is its own.
    pub(crate) fn sign(
        &self,
        key: &PKeyRef<impl HasPublic>,
        issuer: Option<&X509Ref>,
        signer: &PKeyRef<Private>,
    ) -> Result<X509, ErrorStack> {
        let mut builder = X509::builder()?;
        // Version 3 is written 2.
        builder.set_version(2)?;
        // Section 4.1.2.2: at most 20 octets, positive, and nobody can foretell it.
        let mut serial = BigNum::new()?;
        serial.rand(127, MsbOption::ONE, false)?;
        let serial = Asn1Integer::from_bn(&serial)?;
        builder.set_serial_number(&serial)?;
        builder.set_subject_name(self.subject)?;
        builder.set_issuer_name(issuer.map_or(self.subject, |issuer| issuer.subject_name()))?;
        let (from, until) = (
            Asn1Time::from_unix(self.validity.from)?,
            Asn1Time::from_unix(self.validity.until)?,
        );
        builder.set_not_before(&from)?;
        builder.set_not_after(&until)?;
        builder.set_pubkey(key)?;
        let mut names = SubjectAlternativeName::new();
        names.uri(&self.cluster.uri());
        for address in self.addresses {
            match address.parse::<IpAddr>() {
                Ok(_) => names.ip(address),
                Err(_) => names.dns(address),
            };
        }
        let mut usage = KeyUsage::new();
        usage.critical();
        let mut constraints = BasicConstraints::new();
        constraints.critical();
        match self.kind {
            Kind::Authority => {
                usage.key_cert_sign().crl_sign();
                // While it is rotated the next root stands between it and a holder, and an issuer behind that.
                constraints.ca().pathlen(AUTHORITY_DEPTH);
            }
            Kind::Issuer => {
                usage.key_cert_sign();
                // No authority below it, no server, and no other role. The last is what our own ends look at, too
                // ([`crate::Identity::of_chain`]): a comparison of names as X.509 has it takes "REDHARE:NODE" for the same.
                constraints.ca().pathlen(0);
                builder.append_extension(ExtendedKeyUsage::new().client_auth().build()?)?;
                builder.append_extension(only_joining_roles()?)?;
            }
            Kind::Holder(role) => {
                usage.digital_signature();
                // Nobody but a master can be taken for one, and a master cannot ask others as if it were a client.
                let mut purpose = ExtendedKeyUsage::new();
                match role {
                    Role::Master => purpose.server_auth(),
                    _ => purpose.client_auth(),
                };
                builder.append_extension(purpose.build()?)?;
            }
        }
        builder.append_extension(usage.build()?)?;
        builder.append_extension(constraints.build()?)?;
        let context = builder.x509v3_context(issuer, None);
        let names = names.build(&context)?;
        let own = SubjectKeyIdentifier::new().build(&context)?;
        builder.append_extension(names)?;
        builder.append_extension(own)?;
        if let Some(issuer) = issuer {
            let context = builder.x509v3_context(Some(issuer), None);
            let theirs = AuthorityKeyIdentifier::new().keyid(true).build(&context)?;
            builder.append_extension(theirs)?;
        }
        builder.sign(signer, MessageDigest::sha256())?;
        Ok(builder.build())
    }
}

/// The subject of a holder's certificate.
pub(crate) fn holder_subject(role: Role, name: &str) -> Result<X509Name, ErrorStack> {
    let mut subject = X509Name::builder()?;
    subject.append_entry_by_nid(Nid::ORGANIZATIONNAME, &role.organization())?;
    subject.append_entry_by_nid(Nid::COMMONNAME, name)?;
    Ok(subject.build())
}

/// Name constraints (RFC 5280, section 4.2.1.10): below this, subjects begin with the organization of a role that can be
/// had by joining.
fn only_joining_roles() -> Result<X509Extension, ErrorStack> {
    let mut permitted = Vec::new();
    for role in Role::JOINING {
        let mut name = X509Name::builder()?;
        name.append_entry_by_nid(Nid::ORGANIZATIONNAME, &role.organization())?;
        // GeneralSubtree, in it the base: directoryName [4], explicit since a Name is a choice.
        permitted.extend(der(0x30, &der(0xa4, &name.build().to_der()?)));
    }
    // NameConstraints, in it permittedSubtrees [0].
    let content = der(0x30, &der(0xa0, &permitted));
    let oid = Asn1Object::from_str(NAME_CONSTRAINTS)?;
    let content = Asn1OctetString::new_from_bytes(&content)?;
    X509Extension::new_from_der(&oid, true, &content)
}

/// Tag, length and content (X.690, section 8.1), of less than 64 KiB.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("three names are short");
    let [high, low] = length.to_be_bytes();
    let mut bytes = match length {
        0..0x80 => vec![tag, low],
        0x80..0x100 => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    bytes.extend_from_slice(content);
    bytes
}
