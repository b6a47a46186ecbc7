//! A cluster's metadata as a file: out of a store and into another one, without a master.

use std::time::{Duration, Instant};

use control::mastership::{Election, Seat};
pub use control::transfer::Image;
use control::transfer::{self, TransferError};
use thiserror::Error;

use crate::config::StoreConfig;
use crate::etcd::{EtcdElection, EtcdStore, Link};
use crate::redb_store::{OpenStoreError, RedbStore};
use crate::seat::Store;

/// Records made anew from what the nodes' disks say.
pub mod rebuild {
    pub use control::rebuild::*;
    pub use control::transfer::Image;
    pub use control::{
        ChunkId, ClusterId, Disk, DiskId, Geometry, Incarnation, NodeId, SnapshotNumber, Uuid, VolumeNumber,
        WriterToken,
    };
}

/// By this name those who ask who leads an etcd hear of a command that changes it.
const ADDRESS: &str = "redhare-meta";
/// The seat of a master that was just stopped is free at once, that of one that was killed after its lease.
const SEAT_WAIT: Duration = Duration::from_secs(10);

/// Why a cluster's metadata was not taken or put.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the fields are what the texts name them")]
pub enum MetaError {
    #[error("metadata store {store}: {source}")]
    Transfer { store: String, source: TransferError },
    #[error(transparent)]
    Open(#[from] OpenStoreError),
    #[error("there is no metadata store in {store}; check the path")]
    Missing { store: String },
    #[error("the master at {leader} leads metadata store {store}; stop the masters that use it and repeat")]
    Led { store: String, leader: String },
    #[error("the system gives no thread for etcd: {0}; raise the limit (ulimit -u)")]
    Thread(std::io::Error),
}

/// Takes all records out of a store. An embedded one must not be in use; an etcd may be, unless the cluster moves: `moves` closes
/// the store first, so that no master opens it again. Blocks; not to be called on a thread that runs an event loop.
pub fn export(from: &StoreConfig, moves: bool) -> Result<Image, MetaError> {
    let failed = |source| MetaError::Transfer {
        store: name(from),
        source,
    };
    let taken = |store: &Store| {
        if moves {
            transfer::close(store)?;
        }
        transfer::export(store)
    };
    match from {
        StoreConfig::Directory(directory) => {
            if !RedbStore::is_in(directory) {
                return Err(MetaError::Missing { store: name(from) });
            }
            let store = Store::Redb(RedbStore::open(directory)?.into());
            taken(&store).map_err(failed)
        }
        StoreConfig::Etcd(config) if moves => {
            let mut seat = EtcdElection::new(link(config)?, ADDRESS.to_owned());
            let store = Store::Etcd(sit(&mut seat, from)?);
            taken(&store).map_err(failed)
        }
        StoreConfig::Etcd(config) => {
            let store = Store::Etcd(EtcdStore::new(link(config)?));
            taken(&store).map_err(failed)
        }
    }
}

/// Puts all records into an empty store, which no master uses meanwhile; `progress` hears how many are in. Blocks, as
/// [`export`].
pub fn import(image: &Image, to: &StoreConfig, progress: impl FnMut(usize)) -> Result<(), MetaError> {
    let failed = |source| MetaError::Transfer {
        store: name(to),
        source,
    };
    match to {
        StoreConfig::Directory(directory) => {
            let store = RedbStore::open(directory)?;
            transfer::import(&store, image, progress).map_err(failed)
        }
        StoreConfig::Etcd(config) => {
            let mut seat = EtcdElection::new(link(config)?, ADDRESS.to_owned());
            let store = sit(&mut seat, to)?;
            transfer::import(&store, image, progress).map_err(failed)
        }
    }
}

/// What people call a store.
pub fn name(store: &StoreConfig) -> String {
    match store {
        StoreConfig::Directory(directory) => directory.display().to_string(),
        StoreConfig::Etcd(config) => config.name(),
    }
}

fn link(config: &crate::etcd::EtcdConfig) -> Result<Link, MetaError> {
    Link::new(config.clone()).map_err(MetaError::Thread)
}

/// Takes the seat of the master that leads, so that none does meanwhile.
fn sit(election: &mut EtcdElection, config: &StoreConfig) -> Result<EtcdStore, MetaError> {
    let failed = |source: control::StoreError| MetaError::Transfer {
        store: name(config),
        source: source.into(),
    };
    let began = Instant::now();
    loop {
        match election.stand().map_err(failed)? {
            Seat::Ours(leader) => return Ok(election.store(Some(leader.reign))),
            Seat::Theirs(leader) if began.elapsed() > SEAT_WAIT => {
                return Err(MetaError::Led {
                    store: name(config),
                    leader: leader.address,
                });
            }
            Seat::Theirs(_) | Seat::Vacant => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
