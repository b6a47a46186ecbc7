//! The Diffie-Hellman groups of DH-HMAC-CHAP: RFC 7919's, by OpenSSL's big numbers.
//!
//! Making a key pair and the shared secret takes milliseconds for the large groups (`docs/decisions/0050`): whoever
//! serves others on the same thread does it elsewhere.

use std::sync::OnceLock;

use openssl::bn::{BigNum, BigNumContext};
use zeroize::Zeroizing;

use super::hash::CryptoError;

/// Fills a buffer with bytes that nobody else can know.
pub type Entropy<'a> = &'a mut dyn FnMut(&mut [u8]) -> Result<(), CryptoError>;

/// Fills `bytes` from OpenSSL's generator for private values.
///
/// # Errors
/// [`CryptoError`] when it cannot be seeded.
pub fn system_entropy(bytes: &mut [u8]) -> Result<(), CryptoError> {
    Ok(openssl::rand::rand_priv_bytes(bytes)?)
}

/// A group (NVM Express Base Specification 2.0c, section 8.13.5: "Diffie-Hellman group identifiers").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// 00h: no Diffie-Hellman exchange.
    Null,
    /// 01h.
    Ffdhe2048,
    /// 02h.
    Ffdhe3072,
    /// 03h.
    Ffdhe4096,
    /// 04h.
    Ffdhe6144,
    /// 05h.
    Ffdhe8192,
}

/// A peer's value that is no member of the group, or one that gives the secret away.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExchangeError {
    /// See the type.
    #[error("the peer's Diffie-Hellman value is not one of {group}'s")]
    BadValue {
        /// The group's name.
        group: &'static str,
    },
    /// See [`CryptoError`].
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

impl From<openssl::error::ErrorStack> for ExchangeError {
    fn from(error: openssl::error::ErrorStack) -> Self {
        Self::Crypto(error.into())
    }
}

impl Group {
    /// All, the strongest first.
    pub const ALL: [Self; 6] = [
        Self::Ffdhe8192,
        Self::Ffdhe6144,
        Self::Ffdhe4096,
        Self::Ffdhe3072,
        Self::Ffdhe2048,
        Self::Null,
    ];

    /// The identifier on the wire.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// The group of an identifier; `None` if it is reserved.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.id() == id)
    }

    /// The name that people and management tools use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Ffdhe2048 => "ffdhe2048",
            Self::Ffdhe3072 => "ffdhe3072",
            Self::Ffdhe4096 => "ffdhe4096",
            Self::Ffdhe6144 => "ffdhe6144",
            Self::Ffdhe8192 => "ffdhe8192",
        }
    }

    /// The group of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }

    /// Length of the prime, in bits.
    const fn bits(self) -> i32 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 2048,
            Self::Ffdhe3072 => 3072,
            Self::Ffdhe4096 => 4096,
            Self::Ffdhe6144 => 6144,
            Self::Ffdhe8192 => 8192,
        }
    }

    /// Length of a public value on the wire, in bytes.
    pub const fn bytes(self) -> usize {
        self.bits() as usize / 8
    }

    /// Length of an exponent, in bits, that is as hard to find as the group is to break (RFC 7919, section 5.2).
    const fn exponent_bits(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 225,
            Self::Ffdhe3072 => 275,
            Self::Ffdhe4096 => 325,
            Self::Ffdhe6144 => 375,
            Self::Ffdhe8192 => 400,
        }
    }

    /// The number X of the group's definition (RFC 7919, appendix A).
    const fn addend(self) -> u32 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 560_316,
            Self::Ffdhe3072 => 2_625_351,
            Self::Ffdhe4096 => 5_736_041,
            Self::Ffdhe6144 => 15_705_020,
            Self::Ffdhe8192 => 10_965_728,
        }
    }

    /// The prime: `2^b - 2^(b-64) + (floor(2^(b-130) * e) + X) * 2^64 - 1` (RFC 7919, appendix A). Worked out once for
    /// each group.
    fn prime(self) -> Result<&'static BigNum, CryptoError> {
        static PRIMES: [OnceLock<BigNum>; 6] = [const { OnceLock::new() }; 6];
        let place = &PRIMES[usize::from(self.id())];
        if let Some(prime) = place.get() {
            return Ok(prime);
        }
        let prime = self.compute_prime()?;
        Ok(place.get_or_init(|| prime))
    }

    fn compute_prime(self) -> Result<BigNum, CryptoError> {
        /// Bits worked with beyond those that are kept, so that rounding each term down changes none that is.
        const GUARD_BITS: i32 = 64;
        let bits = self.bits();
        // e = 1/0! + 1/1! + 1/2! + ..., each term as a fraction of 2^(b-130+guard).
        let mut term = BigNum::new()?;
        term.set_bit(bits - 130 + GUARD_BITS)?;
        let mut sum = term.as_ref().to_owned()?;
        let mut next = BigNum::new()?;
        for divisor in 1.. {
            term.div_word(divisor)?;
            if term.num_bits() == 0 {
                break;
            }
            next.checked_add(&sum, &term)?;
            std::mem::swap(&mut sum, &mut next);
        }
        let mut middle = BigNum::new()?;
        middle.rshift(&sum, GUARD_BITS)?;
        middle.add_word(self.addend())?;
        let mut prime = BigNum::new()?;
        prime.lshift(&middle, 64)?;
        let mut top = BigNum::new()?;
        top.set_bit(bits)?;
        let mut less = BigNum::new()?;
        less.set_bit(bits - 64)?;
        next.checked_sub(&top, &less)?;
        let mut whole = BigNum::new()?;
        whole.checked_add(&next, &prime)?;
        whole.sub_word(1)?;
        Ok(whole)
    }
}

/// A secret exponent and what the peer is told of it. The exponent is wiped when it goes.
pub struct KeyPair {
    group: Group,
    exponent: BigNum,
    public: Vec<u8>,
}

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "KeyPair({})", self.group.name())
    }
}

impl Drop for KeyPair {
    fn drop(&mut self) {
        self.exponent.clear();
    }
}

impl KeyPair {
    /// Makes one. Takes up to milliseconds.
    ///
    /// # Errors
    /// [`CryptoError`].
    ///
    /// # Panics
    /// For [`Group::Null`], which has no key pairs.
    pub fn generate(group: Group, entropy: Entropy<'_>) -> Result<Self, CryptoError> {
        assert!(group != Group::Null, "the NULL group has no key pairs");
        let bits = group.exponent_bits();
        let mut bytes = Zeroizing::new(vec![0; bits.div_ceil(8)]);
        entropy(&mut bytes)?;
        // Exactly so many bits: the highest set, those above it clear.
        let above = bytes.len() * 8 - bits;
        bytes[0] = bytes[0] & (0xff >> above) | 0x80 >> above;
        let mut exponent = BigNum::new()?;
        exponent.copy_from_slice(&bytes)?;
        exponent.set_const_time();
        let mut context = BigNumContext::new()?;
        let generator = BigNum::from_u32(2)?;
        let mut public = BigNum::new()?;
        public.mod_exp(&generator, &exponent, group.prime()?, &mut context)?;
        let public = public.to_vec_padded(group.bits() / 8)?;
        Ok(Self {
            group,
            exponent,
            public,
        })
    }

    /// The value for the peer, as long as the prime.
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// The secret that only we and the peer know, as long as the prime. Takes up to milliseconds.
    ///
    /// # Errors
    /// [`ExchangeError::BadValue`] if the peer's value has another length or is not between 2 and the prime less 2
    /// (RFC 7919, section 5.1).
    pub fn shared(&self, peer: &[u8]) -> Result<Zeroizing<Vec<u8>>, ExchangeError> {
        let bad = ExchangeError::BadValue {
            group: self.group.name(),
        };
        if peer.len() != self.group.bytes() {
            return Err(bad);
        }
        let prime = self.group.prime()?;
        let peer = BigNum::from_slice(peer)?;
        let mut last = BigNum::new()?;
        last.checked_sub(prime, &*BigNum::from_u32(1)?)?;
        if peer.num_bits() < 2 || peer.ucmp(&last).is_ge() {
            return Err(bad);
        }
        let mut context = BigNumContext::new()?;
        let mut shared = BigNum::new()?;
        shared.mod_exp(&peer, &self.exponent, prime, &mut context)?;
        let bytes = shared.to_vec_padded(self.group.bits() / 8);
        shared.clear();
        Ok(Zeroizing::new(bytes?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::HashFunction;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The hashes are those of the primes that OpenSSL's own named groups print (`openssl genpkey -algorithm DH
    /// -pkeyopt group:ffdhe2048 -text`).
    #[test]
    fn the_primes_are_those_of_the_standard() {
        for (group, wanted) in [
            (
                Group::Ffdhe2048,
                "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966",
            ),
            (
                Group::Ffdhe3072,
                "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17",
            ),
            (
                Group::Ffdhe4096,
                "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e",
            ),
            (
                Group::Ffdhe6144,
                "227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7",
            ),
            (
                Group::Ffdhe8192,
                "770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833",
            ),
        ] {
            let prime = group.prime().unwrap().to_vec();
            assert_eq!(prime.len(), group.bytes());
            assert_eq!(
                hex(&HashFunction::Sha256.digest(&prime).unwrap()),
                wanted,
                "{group:?}"
            );
        }
    }

    #[test]
    fn both_ends_find_the_same_secret() {
        for group in Group::ALL.into_iter().filter(|group| *group != Group::Null) {
            let one = KeyPair::generate(group, &mut system_entropy).unwrap();
            let other = KeyPair::generate(group, &mut system_entropy).unwrap();
            assert_eq!(one.public().len(), group.bytes());
            assert_ne!(one.public(), other.public());
            let secret = one.shared(other.public()).unwrap();
            assert_eq!(secret.len(), group.bytes());
            assert_eq!(secret, other.shared(one.public()).unwrap());
        }
    }

    #[test]
    fn values_that_give_the_secret_away_are_refused() {
        let group = Group::Ffdhe2048;
        let own = KeyPair::generate(group, &mut system_entropy).unwrap();
        let prime = group.prime().unwrap().to_vec();
        let mut zero = vec![0; group.bytes()];
        assert!(own.shared(&zero).is_err());
        *zero.last_mut().unwrap() = 1;
        assert!(own.shared(&zero).is_err(), "one");
        *zero.last_mut().unwrap() = 2;
        assert!(own.shared(&zero).is_ok(), "two");
        assert!(own.shared(&prime).is_err(), "the prime");
        let mut less = prime.clone();
        *less.last_mut().unwrap() -= 1;
        assert!(own.shared(&less).is_err(), "the prime less 1");
        *less.last_mut().unwrap() -= 1;
        assert!(own.shared(&less).is_ok(), "the prime less 2");
        assert!(own.shared(&vec![0xff; group.bytes()]).is_err(), "beyond");
        assert!(own.shared(&less[1..]).is_err(), "short");
        assert!(own.shared(&[&[0], &less[..]].concat()).is_err(), "long");
    }

    #[test]
    fn exponents_have_the_length_of_the_standard_and_stay_unseen() {
        for fill in [0x00, 0xff] {
            for group in Group::ALL.into_iter().filter(|group| *group != Group::Null) {
                let mut entropy = |bytes: &mut [u8]| {
                    bytes.fill(fill);
                    Ok(())
                };
                let pair = KeyPair::generate(group, &mut entropy).unwrap();
                assert_eq!(pair.exponent.num_bits() as usize, group.exponent_bits());
                assert_eq!(format!("{pair:?}"), format!("KeyPair({})", group.name()));
            }
        }
    }
}
