//! What the reservations of an exported volume leave to a host, as its portal knows them.
//!
//! A portal's knowledge may be old; the copies' is not. So each command of a host goes under the token of the state of
//! reservations by which the portal let it go, and a copy that knows a newer token refuses it. The portal then learns the newer
//! state, and lets the command go under that, or not at all (`docs/decisions/0100-reservations-of-exported-volumes.md`).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bdev::IoError;
use reactor::time;

use crate::identity::{ChunkIndex, HostId, WriterToken};

use super::channel::VolumeChannel;
use super::claims::{self, Claims};
use super::device::VolumeDevice;
use super::peers::Peers;

/// What the reservations of a volume leave to one host.
pub trait Admission {
    /// The token of what is known, if by that the host may read, or with `changes` write.
    fn token(&self, changes: bool) -> Option<WriterToken>;

    /// Learns what is in force now; false if that cannot be learnt.
    fn refresh(&self) -> Pin<Box<dyn Future<Output = bool>>>;
}

/// Leaves a host everything.
#[cfg(test)]
pub(super) struct Everything;

#[cfg(test)]
impl Admission for Everything {
    fn token(&self, _: bool) -> Option<WriterToken> {
        Some(WriterToken(0))
    }

    fn refresh(&self) -> Pin<Box<dyn Future<Output = bool>>> {
        Box::pin(std::future::ready(true))
    }
}

/// Goes under one token, whatever is in force.
struct Fixed(WriterToken);

impl Admission for Fixed {
    fn token(&self, _: bool) -> Option<WriterToken> {
        Some(self.0)
    }

    fn refresh(&self) -> Pin<Box<dyn Future<Output = bool>>> {
        Box::pin(std::future::ready(true))
    }
}

/// The chunks that know a token, kept between attempts to put it in force: a copy never forgets one.
#[derive(Default)]
pub struct Told {
    token: WriterToken,
    chunks: Rc<RefCell<BTreeSet<ChunkIndex>>>,
}

impl Told {
    fn of(&mut self, token: WriterToken) -> Rc<RefCell<BTreeSet<ChunkIndex>>> {
        if self.token != token {
            self.token = token;
            self.chunks = Rc::default();
        }
        self.chunks.clone()
    }
}

/// Puts a token in force on every in-sync copy of every chunk: when this has ended well, no command of a portal under an older
/// token takes effect any more, and those that were under way have ended. A token that is older than the one in force has nothing
/// left to do. What was reached by an attempt before is in `told`, and not done again.
///
/// # Errors
/// [`IoError::Unavailable`] if a chunk's write node could not be asked within `limit`, of all of this; the token may be in force
/// on some chunks then.
pub async fn enforce(
    device: &VolumeDevice,
    peers: Rc<dyn Peers>,
    token: WriterToken,
    limit: Duration,
    told: &RefCell<Told>,
) -> Result<(), IoError> {
    let deadline = time::now() + limit;
    // A host that there is not: whose claims it takes does not matter.
    let claims = Claims::new(HostId::through_portals(0), Rc::new(Fixed(token)));
    let channel: VolumeChannel = device.open_for_host(peers, claims.clone());
    let told = told.borrow_mut().of(token);
    claims::claim_all(channel.core(), &claims, &told, deadline).await
}
