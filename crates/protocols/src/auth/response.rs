//! What proves that a party knows its secret (NVM Express Base Specification 2.0c, sections 8.13.5.4 and 8.13.5.5).

use zeroize::Zeroizing;

use super::hash::{CryptoError, HashFunction};
use super::{Names, Secret};

/// What both ends know when a challenge is answered.
pub(super) struct Exchange<'a> {
    pub(super) hash: HashFunction,
    /// S1 or S2.
    pub(super) sequence: u32,
    /// T_ID.
    pub(super) transaction: u16,
    /// C1 or C2.
    pub(super) challenge: &'a [u8],
    /// `g^xy`; none with the NULL group.
    pub(super) shared: Option<&'a [u8]>,
}

/// No secure channel follows (SC_C).
const NO_SECURE_CHANNEL: u8 = 0;

impl Exchange<'_> {
    /// R1: what the host answers to C1.
    pub(super) fn of_host(&self, secret: &Secret, names: &Names) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        let key = secret.key(&names.host)?;
        self.respond(&key, b"HostHost", &names.host, &names.subsystem)
    }

    /// R2: what the controller answers to C2.
    pub(super) fn of_controller(
        &self,
        secret: &Secret,
        names: &Names,
    ) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        let key = secret.key(&names.subsystem)?;
        self.respond(&key, b"Controller", &names.subsystem, &names.host)
    }

    fn respond(
        &self,
        key: &[u8],
        role: &[u8],
        own: &str,
        peer: &str,
    ) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        let augmented = match self.shared {
            None => Zeroizing::new(self.challenge.to_vec()),
            Some(shared) => {
                let session = self.hash.digest(shared)?;
                self.hash.hmac(&session, &[self.challenge])?
            }
        };
        self.hash.hmac(
            key,
            &[
                &augmented,
                &self.sequence.to_le_bytes(),
                &self.transaction.to_le_bytes(),
                &[NO_SECURE_CHANNEL],
                role,
                own.as_bytes(),
                &[0],
                peer.as_bytes(),
            ],
        )
    }
}
