//! The options of a cache on a local disk, for whatever reads a volume many times.

use std::path::PathBuf;
use std::rc::Rc;

use clap::Args;
use foundation::ByteCount;
use packfs::local::{LocalCache, LocalCacheError, prepare};

/// Where a cache on a local disk is, and how large.
#[derive(Args, Clone, Default)]
pub(super) struct LocalCacheArguments {
    /// Keep what was read in a file in this directory on a local disk; several processes may share it
    #[arg(long, value_name = "DIRECTORY", requires = "cache_size")]
    cache_dir: Option<PathBuf>,
    /// Length of that file, at least 16 MiB; it is sparse until it fills, and never longer
    #[arg(long, value_name = "SIZE", requires = "cache_dir")]
    cache_size: Option<ByteCount>,
}

impl LocalCacheArguments {
    /// Whether one was asked for.
    pub(super) fn is_given(&self) -> bool {
        self.cache_dir.is_some()
    }

    /// The cache for the calling reactor. Where it cannot be had this is said in the log, and there is none.
    pub(super) async fn open(&self) -> Option<Rc<LocalCache>> {
        let (directory, size) = self.cache_dir.as_ref().zip(self.cache_size)?;
        let opened = async {
            prepare(directory)?;
            LocalCache::open(directory, size.0, |text| tracing::warn!("{text}")).await
        };
        let opened: Result<_, LocalCacheError> = opened.await;
        match opened {
            Ok(cache) => Some(cache),
            Err(error) => {
                tracing::warn!("reading without a local cache: {error}");
                None
            }
        }
    }
}
