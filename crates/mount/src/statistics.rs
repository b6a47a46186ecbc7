//! What a mount tells of itself: what its caches have done, and what takes memory.

use packfs::files::FileSystem;

use crate::kept::KeptStatistics;
use crate::shared::Shared;
use crate::source::{Snapshot, Source};

/// Names and numbers.
type Numbers = Vec<(&'static str, u64)>;

fn of_reader(snapshot: &Snapshot, contents: KeptStatistics) -> Numbers {
    let (done, known) = (snapshot.statistics(), snapshot.known());
    let remembered = (known.bytes + contents.bytes) as u64;
    vec![
        ("generation", snapshot.generation()),
        // All that `--cache` bounds.
        ("cache_bytes", done.index_bytes() as u64 + remembered),
        ("cache_bytes_max", snapshot.volume().options.cache_bytes as u64),
        ("page_hits", done.cache.hits),
        ("page_misses", done.cache.misses),
        ("pages_evicted", done.cache.evicted),
        ("pages_ahead", done.cache.ahead),
        ("page_bytes", done.cache.bytes as u64),
        ("directory_bytes", done.directory_bytes as u64),
        ("packed_bytes", done.packed_bytes as u64),
        ("inode_hits", known.hits),
        ("inode_misses", known.misses),
        ("inodes_evicted", known.evicted),
        ("inodes", known.held as u64),
        ("inode_bytes", known.bytes as u64),
        ("contents_evicted", contents.evicted),
        ("contents", contents.held as u64),
        ("contents_bytes", contents.bytes as u64),
        ("data_hits", done.data.hits),
        ("data_misses", done.data.misses),
        ("data_ahead", done.data.ahead),
        ("data_bytes", done.data.bytes as u64),
        ("local_on", done.local.on.into()),
        ("local_hits", done.local.hits),
        ("local_misses", done.local.misses),
        ("local_damaged", done.local.damaged),
        ("local_hit_bytes", done.local.hit_bytes),
        ("local_stored", done.local.stored),
        ("local_stored_bytes", done.local.stored_bytes),
        ("local_dropped", done.local.dropped),
        ("local_file_bytes", done.local.file_bytes),
        ("reads", done.reads),
        ("read_bytes", done.read_bytes),
        ("content_bytes", done.content_bytes),
    ]
}

fn of_writer(files: &FileSystem) -> Numbers {
    vec![
        ("generation", files.generation()),
        ("dirty_bytes", files.dirty_bytes() as u64),
        ("dirty_bytes_max", files.dirty_bytes_max() as u64),
        ("uncommitted_index_bytes", files.uncommitted_bytes()),
        ("uncommitted_index_bytes_max", files.uncommitted_bytes_max()),
        ("open_files", files.open_count() as u64),
    ]
}

impl Shared {
    /// The numbers, as a JSON object.
    pub(crate) async fn statistics(&self) -> String {
        let (listings, handles) = (self.listings(), self.handles.statistics());
        let mut numbers = match &*self.source.read().await {
            Source::Reading(snapshot) => of_reader(snapshot, self.contents.borrow().statistics()),
            Source::Writing(files) => of_writer(files),
        };
        numbers.extend([
            ("listings", listings.held as u64),
            ("listing_bytes", listings.bytes as u64),
            ("open_nodes", handles.open as u64),
            ("pinned_nodes", handles.pinned as u64),
            ("stale_nodes", handles.stale as u64),
            ("pinned_commits", handles.commits as u64),
            ("other_nodes", handles.others as u64),
        ]);
        let members: Vec<_> = numbers
            .iter()
            .map(|(name, number)| format!("\"{name}\": {number}"))
            .collect();
        format!("{{{}}}", members.join(", "))
    }
}
