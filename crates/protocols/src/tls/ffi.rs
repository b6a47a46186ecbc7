//! What OpenSSL has for TLS 1.3 PSKs and the crate `openssl` does not: the two callbacks that give a PSK to a handshake,
//! sessions made of a key, the extensions of a ClientHello, and the renewal of keys.
//!
//! A connection's [`Offer`] hangs on its `SSL` (application data of one index) from before OpenSSL asks for it. The callbacks
//! only look there: they keep no state, and cannot panic, since nothing may unwind through OpenSSL.

use std::ffi::{c_int, c_uchar, c_uint};
use std::ptr;
use std::sync::OnceLock;

use foreign_types::{ForeignType, ForeignTypeRef};
use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{Ssl, SslContextBuilder, SslRef, SslSession};
use openssl_sys::{EVP_MD, SSL, SSL_CIPHER, SSL_CTX, SSL_SESSION, SSL_client_hello_get0_ext, TLS1_3_VERSION};

use super::psk::Psk;
use crate::auth::HashFunction;

/// `pre_shared_key` (RFC 8446, section 4.2).
const PRE_SHARED_KEY: c_uint = 41;

/// `SSL_KEY_UPDATE_REQUESTED` of <openssl/ssl.h>.
const KEY_UPDATE_REQUESTED: c_int = 1;

// SAFETY: a type alone; who makes such a function says when it may be called.
type FindSession = unsafe extern "C" fn(*mut SSL, *const c_uchar, usize, *mut *mut SSL_SESSION) -> c_int;
// SAFETY: a type alone; who makes such a function says when it may be called.
type UseSession = unsafe extern "C" fn(
    *mut SSL,
    *const EVP_MD,
    *mut *const c_uchar,
    *mut usize,
    *mut *mut SSL_SESSION,
) -> c_int;

// SAFETY: these are the prototypes of OpenSSL 1.1.1 and later in <openssl/ssl.h>; size_t is usize on every system that
// the project builds for.
unsafe extern "C" {
    fn SSL_CTX_set_psk_find_session_callback(context: *mut SSL_CTX, callback: Option<FindSession>);
    fn SSL_CTX_set_psk_use_session_callback(context: *mut SSL_CTX, callback: Option<UseSession>);
    fn SSL_SESSION_new() -> *mut SSL_SESSION;
    fn SSL_SESSION_set1_master_key(session: *mut SSL_SESSION, key: *const c_uchar, length: usize) -> c_int;
    fn SSL_SESSION_set_cipher(session: *mut SSL_SESSION, cipher: *const SSL_CIPHER) -> c_int;
    fn SSL_SESSION_set_protocol_version(session: *mut SSL_SESSION, version: c_int) -> c_int;
    fn SSL_key_update(ssl: *mut SSL, kind: c_int) -> c_int;
    fn SSL_CIPHER_find(ssl: *mut SSL, number: *const c_uchar) -> *const SSL_CIPHER;
}

/// What a connection's handshake is to use, or why it cannot.
pub(super) enum Offer {
    /// This key.
    Taken(Psk),
    /// The client named none that is known; what it named, as text.
    Refused(String),
}

/// Where a connection's offer hangs.
fn index() -> Result<Index<Ssl, Offer>, ErrorStack> {
    static INDEX: OnceLock<Index<Ssl, Offer>> = OnceLock::new();
    if let Some(index) = INDEX.get() {
        return Ok(*index);
    }
    let made = Ssl::new_ex_index()?;
    // Where two threads made one, one of them is never used.
    Ok(*INDEX.get_or_init(|| made))
}

/// Gives a connection what its handshake is to use.
pub(super) fn set_offer(ssl: &mut SslRef, offer: Offer) -> Result<(), ErrorStack> {
    ssl.set_ex_data(index()?, offer);
    Ok(())
}

/// What a connection was given.
pub(super) fn offer(ssl: &SslRef) -> Option<&Offer> {
    ssl.ex_data(index().ok()?)
}

/// Renews the keys of what is sent, with what is written next, and asks the peer to do so, too (RFC 8446, section 4.6.3).
pub(super) fn renew_keys(ssl: &SslRef) -> Result<(), ErrorStack> {
    // SAFETY: the SSL is alive, and the caller has its stream to itself while it writes.
    match unsafe { SSL_key_update(ssl.as_ptr(), KEY_UPDATE_REQUESTED) } {
        1 => Ok(()),
        _ => Err(ErrorStack::get()),
    }
}

fn psk(ssl: &SslRef) -> Option<&Psk> {
    match offer(ssl)? {
        Offer::Taken(psk) => Some(psk),
        Offer::Refused(_) => None,
    }
}

/// Lets clients of this context use the PSK that each was given.
pub(super) fn use_given_psk(context: &mut SslContextBuilder) {
    // SAFETY: the context lives for the call, and the callback for ever; it relies on nothing but its arguments.
    unsafe { SSL_CTX_set_psk_use_session_callback(context.as_ptr(), Some(use_session)) };
}

/// Lets servers of this context use the PSK that each was given, if the client names it.
pub(super) fn find_given_psk(context: &mut SslContextBuilder) {
    // SAFETY: the context lives for the call, and the callback for ever; it relies on nothing but its arguments.
    unsafe { SSL_CTX_set_psk_find_session_callback(context.as_ptr(), Some(find_session)) };
}

/// What the ClientHello that is being looked at has as `pre_shared_key`. Only inside a ClientHello callback; `None`
/// elsewhere, or if it is not there.
pub(super) fn offered_psks(ssl: &SslRef) -> Option<&[u8]> {
    let mut start: *const c_uchar = ptr::null();
    let mut length = 0;
    // SAFETY: the SSL is alive, and both places may be written for the call.
    let found = unsafe { SSL_client_hello_get0_ext(ssl.as_ptr(), PRE_SHARED_KEY, &mut start, &mut length) };
    if found != 1 || start.is_null() {
        return None;
    }
    // SAFETY: OpenSSL says that so many bytes lie there. They belong to the ClientHello, which lives until the callback
    // has returned; the slice borrows the SSL, which the callback has for no longer than that.
    Some(unsafe { std::slice::from_raw_parts(start, length) })
}

/// A session that stands for a PSK: the caller frees it, or hands it to OpenSSL.
fn session(ssl: &SslRef, psk: &Psk) -> Option<SslSession> {
    // The suite's number in TLS (RFC 8446, appendix B.4).
    let suite: [c_uchar; 2] = match psk.hash {
        HashFunction::Sha256 => [0x13, 0x01],
        HashFunction::Sha384 => [0x13, 0x02],
        HashFunction::Sha512 => return None,
    };
    // SAFETY: the SSL is alive, and two bytes can be read, which is what a suite's number has.
    let cipher = unsafe { SSL_CIPHER_find(ssl.as_ptr(), suite.as_ptr()) };
    if cipher.is_null() {
        return None;
    }
    // SAFETY: no conditions.
    let made = unsafe { SSL_SESSION_new() };
    if made.is_null() {
        return None;
    }
    // SAFETY: it was made just now, its only reference is ours, and from here on the value's.
    let session = unsafe { SslSession::from_ptr(made) };
    // SAFETY: the session is alive; so many bytes can be read at the key, and are copied.
    let keyed = unsafe { SSL_SESSION_set1_master_key(made, psk.key.as_ptr(), psk.key.len()) };
    // SAFETY: the session is alive, and ciphers are constants of the library.
    let suited = unsafe { SSL_SESSION_set_cipher(made, cipher) };
    // SAFETY: the session is alive.
    let versioned = unsafe { SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION) };
    (keyed == 1 && suited == 1 && versioned == 1).then_some(session)
}

/// Gives up a session to OpenSSL, which frees it.
fn hand_over(session: SslSession) -> *mut SSL_SESSION {
    let given = session.as_ptr();
    std::mem::forget(session);
    given
}

/// `SSL_psk_find_session_cb_func`: 1 with a session, 1 without one if the identity is unknown, 0 to end the handshake.
///
/// # Safety
/// Only OpenSSL calls it, during a handshake: with a live SSL that nobody changes meanwhile, so many bytes at `identity`,
/// and a place for a session.
unsafe extern "C" fn find_session(
    ssl: *mut SSL,
    identity: *const c_uchar,
    length: usize,
    place: *mut *mut SSL_SESSION,
) -> c_int {
    // SAFETY: the SSL is alive during the call, and no exclusive borrow of it is in use inside its own handshake.
    let ssl = unsafe { SslRef::from_ptr(ssl) };
    let mut given = ptr::null_mut();
    let mut result = 1;
    if let Some(psk) = psk(ssl)
        && length == psk.identity.len()
        && !identity.is_null()
        // SAFETY: OpenSSL says that so many bytes lie there.
        && unsafe { std::slice::from_raw_parts(identity, length) } == psk.identity.as_bytes()
    {
        match session(ssl, psk) {
            Some(session) => given = hand_over(session),
            None => result = 0,
        }
    }
    // SAFETY: OpenSSL gives a place to write to.
    unsafe { place.write(given) };
    result
}

/// `SSL_psk_use_session_cb_func`: 1 with a session, 0 to end the handshake. Our clients offer one suite, so that no server
/// can ask again (HelloRetryRequest) with a digest that the PSK does not have.
///
/// # Safety
/// Only OpenSSL calls it, during a handshake: with a live SSL that nobody changes meanwhile, a digest or null, and places
/// for an identity, its length and a session.
unsafe extern "C" fn use_session(
    ssl: *mut SSL,
    _digest: *const EVP_MD,
    identity: *mut *const c_uchar,
    length: *mut usize,
    place: *mut *mut SSL_SESSION,
) -> c_int {
    // SAFETY: the SSL is alive during the call, and no exclusive borrow of it is in use inside its own handshake.
    let ssl = unsafe { SslRef::from_ptr(ssl) };
    let made = psk(ssl).and_then(|psk| session(ssl, psk).map(|session| (psk, session)));
    let Some((psk, session)) = made else { return 0 };
    // SAFETY: OpenSSL gives a place to write to. It copies the identity before it does anything else; until then it lies
    // in the application data of the SSL, which nobody changes.
    unsafe { identity.write(psk.identity.as_ptr()) };
    // SAFETY: OpenSSL gives a place to write to.
    unsafe { length.write(psk.identity.len()) };
    // SAFETY: OpenSSL gives a place to write to.
    unsafe { place.write(hand_over(session)) };
    1
}
