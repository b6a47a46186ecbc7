//! Reading a store's metadata into memory: superblock, table pages, then the pages of blobs in large reads.
//!
//! Which clusters are free follows from the blobs. A blob with a damaged page is set aside and named; because nobody
//! knows which clusters it owns, those that no whole blob owns are then not handed out until it is deleted.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use reactor::sync::Notify;

use crate::attributes;
use crate::cluster_map::{self, BLOB_CLUSTERS_MAX, HOLE};
use crate::clusters::Clusters;
use crate::error::{BlobId, DamagedPage, OpenError};
use crate::format::blob_page::{self, ATTRIBUTE_PAGES, FLAG_SNAPSHOT, MAP_INDEX, MAP_PAGES_MAX, Root};
use crate::format::superblock::{FEATURE_SNAPSHOTS, Pointer, Shape, Superblock};
use crate::format::table::{self, ENTRIES_PER_PAGE, Entry};
use crate::format::{Identity, Kind, Page, PageError, verify};
use crate::free_set::FreeSet;
use crate::gate::Tokens;
use crate::inspect::page_at;
use crate::page_io::PageIo;
use crate::store::{BlobState, State, Store};

/// Pages that one read takes at most, and unused pages that it reads over rather than begin another.
const READ_PAGES_MAX: u32 = 256;
const READ_GAP_PAGES: u32 = 16;

/// A blob whose pages are being read.
struct Loading {
    blob: BlobState,
    root: Option<Root>,
    attributes: BTreeMap<u32, Vec<u8>>,
    damage: Vec<DamagedPage>,
}

/// The table, and which slots of the metadata region are in use.
struct Table {
    entries: Vec<Entry>,
    /// Entries whose page is used twice, or is none.
    refused: BTreeMap<u32, u32>,
    pointers: Vec<Pointer>,
    slots: FreeSet,
    repaired_copies: u32,
    dirty: Vec<usize>,
}

/// Opens the store that the superblock describes.
pub(crate) async fn load(
    io: PageIo,
    superblock: Superblock,
    good_copies: u32,
) -> Result<Rc<Store>, OpenError> {
    let shape = superblock.shape;
    let mut table = read_table(&io, &superblock).await?;
    let mut loading = read_blobs(&io, &shape, &mut table).await?;
    for one in loading.values_mut() {
        finish(one, shape.cluster_pages);
    }
    let rootless = loading.iter().filter(|(_, one)| one.root.is_none());
    let rootless = rootless.map(|(&id, _)| id).collect();
    let (clusters, blobs, damaged) = settle_ownership(&superblock, loading);
    let free_entries = (0..table.entries.len() as u32)
        .rev()
        .filter(|&number| table.entries[number as usize].blob == 0)
        .collect();
    let next_blob = blobs.keys().chain(damaged.keys()).map(|id| id.0 + 1).max();
    let state = State {
        clusters,
        page_slots: table.slots,
        released_slots: Vec::new(),
        entries: table.entries,
        refused_entries: table.refused,
        free_entries,
        dirty: Default::default(),
        dirty_tables: table.dirty.into_iter().collect(),
        pointers: table.pointers,
        generation: superblock.generation,
        next_blob: superblock.next_blob.max(next_blob.unwrap_or(1)),
    };
    let store = assemble(io, shape, state, table.repaired_copies + (2 - good_copies));
    store
        .had_snapshots
        .set(superblock.features_incompatible & FEATURE_SNAPSHOTS != 0);
    *store.blobs.borrow_mut() = blobs;
    *store.damaged.borrow_mut() = damaged;
    *store.rootless.borrow_mut() = rootless;
    Ok(store)
}

/// A store around its parts, with no blobs.
pub(crate) fn assemble(io: PageIo, shape: Shape, state: State, repaired_copies: u32) -> Rc<Store> {
    let next_blob = state.next_blob;
    Rc::new(Store {
        io,
        shape,
        state: RefCell::new(state),
        blobs: RefCell::default(),
        damaged: RefCell::default(),
        rootless: RefCell::default(),
        opened_at: BlobId(next_blob),
        repaired_copies: Cell::new(repaired_copies),
        had_snapshots: Cell::new(false),
        // What only one good copy of is left is written anew by the first sync.
        changes: Cell::new(u64::from(repaired_copies > 0)),
        committed: Cell::new(0),
        commits_begun: Cell::new(0),
        committing: Cell::new(false),
        commits_within: RefCell::default(),
        commit_is_due: Cell::new(false),
        commit_ended: Notify::new(),
        stopped: Cell::new(None),
        lacks_room: Cell::new(false),
        forced: Tokens::default(),
    })
}

/// All slots of the metadata region.
pub(crate) fn all_slots(shape: &Shape) -> FreeSet {
    let end = shape.metadata_first_page + shape.metadata_pages;
    let mut slots = FreeSet::empty(shape.metadata_first_page, end);
    (shape.metadata_first_page..end).for_each(|slot| slots.insert(slot));
    slots
}

async fn read_table(io: &PageIo, superblock: &Superblock) -> Result<Table, OpenError> {
    let shape = &superblock.shape;
    let mut table = Table {
        entries: Vec::new(),
        refused: BTreeMap::new(),
        pointers: superblock.table.clone(),
        slots: all_slots(shape),
        repaired_copies: 0,
        dirty: Vec::new(),
    };
    for (index, pointer) in superblock.table.iter().enumerate() {
        let mut found = Vec::new();
        for copy in 0..2 {
            let fresh = table.slots.remove(pointer.pages[copy]);
            if !fresh {
                // What is there belongs to something else, and stays when this is written anew.
                table.pointers[index].pages[copy] = 0;
            }
            found.push(
                match read_table_page(io, superblock, index, pointer, copy).await {
                    Ok(_) if !fresh => Err(PageError::Contents("its place is used twice")),
                    result => result,
                },
            );
        }
        let second = found.pop().expect("two copies were read");
        let first = found.pop().expect("two copies were read");
        let damaged = u32::from(first.is_err()) + u32::from(second.is_err());
        match (first, second) {
            (Ok(entries), _) | (_, Ok(entries)) => table.entries.extend(entries),
            (Err(first), Err(second)) => return Err(OpenError::Table { index, first, second }),
        }
        if damaged > 0 {
            table.repaired_copies += damaged;
            table.dirty.push(index);
        }
    }
    table
        .entries
        .resize(shape.blob_pages_max as usize, Entry::default());
    Ok(table)
}

async fn read_table_page(
    io: &PageIo,
    superblock: &Superblock,
    index: usize,
    pointer: &Pointer,
    copy: usize,
) -> Result<Vec<Entry>, PageError> {
    let address = u64::from(pointer.pages[copy]);
    let bytes = io.read(address, 1).await.map_err(PageError::Io)?;
    let (identity, crc, mut entries) = table::decode(page_at(&bytes, 0), address)?;
    let expected = identity.uuid == superblock.shape.uuid && identity.index as usize == index;
    if crc != pointer.crc[copy] || !expected || identity.generation > superblock.generation {
        return Err(PageError::Misplaced);
    }
    // The last page has fewer.
    let most = superblock.shape.blob_pages_max as usize - index * ENTRIES_PER_PAGE;
    if entries.iter().skip(most).any(|entry| entry.blob != 0) {
        return Err(PageError::Contents("it has more entries than the store can have"));
    }
    entries.truncate(most);
    Ok(entries)
}

async fn read_blobs(
    io: &PageIo,
    shape: &Shape,
    table: &mut Table,
) -> Result<BTreeMap<BlobId, Loading>, OpenError> {
    let mut loading: BTreeMap<BlobId, Loading> = BTreeMap::new();
    let mut wanted: BTreeMap<u32, usize> = BTreeMap::new();
    for (number, entry) in table
        .entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.blob != 0)
    {
        let one = loading
            .entry(BlobId(entry.blob))
            .or_insert_with(|| Loading::new(BlobId(entry.blob)));
        let is_new = one
            .blob
            .entries
            .borrow_mut()
            .insert(entry.index, number as u32)
            .is_none();
        let known_index = entry.index <= ATTRIBUTE_PAGES as u32
            || (MAP_INDEX..MAP_INDEX + MAP_PAGES_MAX as u32).contains(&entry.index);
        if is_new && known_index && shape.is_metadata(entry.page) && table.slots.remove(entry.page) {
            wanted.insert(entry.page, number);
        } else {
            table.refused.insert(number as u32, entry.page);
            one.damage(
                entry,
                PageError::Contents("the table names an impossible or a used place for it"),
            );
        }
    }
    let mut rest = wanted.into_iter().peekable();
    while let Some((first, number)) = rest.next() {
        let mut run = vec![(first, number)];
        let mut last = first;
        while let Some((page, number)) =
            rest.next_if(|&(page, _)| page - last <= READ_GAP_PAGES && page - first < READ_PAGES_MAX)
        {
            run.push((page, number));
            last = page;
        }
        let whole = io.read(u64::from(first), (last - first + 1) as usize).await;
        for (page, number) in run {
            let entry = table.entries[number];
            let one = loading.get_mut(&BlobId(entry.blob)).expect("made above");
            let result = match &whole {
                Ok(bytes) => one.take_page(shape, &entry, page_at(bytes, (page - first) as usize)),
                // One bad page must not take its neighbours along.
                Err(_) => match io.read(u64::from(page), 1).await {
                    Ok(bytes) => one.take_page(shape, &entry, page_at(&bytes, 0)),
                    Err(error) => Err(PageError::Io(error)),
                },
            };
            if let Err(why) = result {
                one.damage(&entry, why);
            }
        }
    }
    Ok(loading)
}

impl Loading {
    fn new(id: BlobId) -> Self {
        Self {
            blob: BlobState::new(id, 0),
            root: None,
            attributes: BTreeMap::new(),
            damage: Vec::new(),
        }
    }

    fn damage(&mut self, entry: &Entry, why: PageError) {
        self.damage.push(DamagedPage {
            index: entry.index,
            page: u64::from(entry.page),
            why,
        });
    }

    fn take_page(&mut self, shape: &Shape, entry: &Entry, page: &Page) -> Result<(), PageError> {
        let (identity, crc) = verify(page, Kind::Blob, u64::from(entry.page))?;
        let expected = Identity {
            kind: Kind::Blob,
            address: u64::from(entry.page),
            generation: identity.generation,
            uuid: shape.uuid,
            blob: entry.blob,
            index: entry.index,
        };
        if identity != expected || crc != entry.crc {
            return Err(PageError::Misplaced);
        }
        if entry.index == 0 {
            self.root = Some(blob_page::decode_root(page)?);
        }
        if entry.index < MAP_INDEX {
            let bytes = blob_page::attribute_bytes(page, entry.index);
            self.attributes.insert(entry.index, bytes.to_vec());
        }
        if entry.index == 0 || entry.index >= MAP_INDEX {
            let first = cluster_map::first_cluster(entry.index);
            let mut map = self.blob.map.borrow_mut();
            for (index, cluster) in (first..).zip(blob_page::clusters(page, entry.index)) {
                if cluster != 0 {
                    map.set(index, cluster);
                }
            }
        }
        Ok(())
    }
}

/// Puts a blob's parts together, once all its pages were read.
fn finish(one: &mut Loading, cluster_pages: u32) {
    if !one.damage.is_empty() {
        return;
    }
    if let Err(why) = try_finish(one, cluster_pages) {
        one.damage.push(DamagedPage {
            index: 0,
            page: 0,
            why,
        });
    }
}

fn try_finish(one: &mut Loading, cluster_pages: u32) -> Result<(), PageError> {
    let root = one.root.ok_or(PageError::Contents("it is missing"))?;
    let stream: Vec<u8> = std::mem::take(&mut one.attributes)
        .into_values()
        .flatten()
        .collect();
    let bytes = stream
        .get(..root.attribute_bytes as usize)
        .ok_or(PageError::Contents("pages of its attributes are missing"))?;
    *one.blob.attributes.borrow_mut() = attributes::decode(bytes)?;
    let clusters = root.size_pages.div_ceil(u64::from(cluster_pages));
    if clusters > BLOB_CLUSTERS_MAX {
        return Err(PageError::Contents("its size is larger than a blob can be"));
    }
    if one.blob.map.borrow().named_from(clusters).next().is_some() {
        return Err(PageError::Contents("it has clusters beyond its size"));
    }
    let is_hole = |(_, cluster): (u64, u32)| cluster == HOLE;
    if root.parent == 0 && one.blob.map.borrow().named_from(0).any(is_hole) {
        return Err(PageError::Contents("it hides a parent that it does not have"));
    }
    one.blob.size_pages.set(root.size_pages);
    one.blob.parent_pages.set(root.parent_pages);
    one.blob.is_snapshot.set(root.flags & FLAG_SNAPSHOT != 0);
    Ok(())
}

type Settled = (
    Clusters,
    BTreeMap<BlobId, Rc<BlobState>>,
    BTreeMap<BlobId, Vec<DamagedPage>>,
);

/// Parents before their children: (blob, its parent). Blobs whose line of parents does not end in one that has none come
/// last, with a parent that does not come before them.
fn by_descent(loading: &BTreeMap<BlobId, Loading>) -> Vec<(BlobId, Option<BlobId>)> {
    let mut children: BTreeMap<BlobId, Vec<BlobId>> = BTreeMap::new();
    let (mut order, mut lost) = (Vec::new(), Vec::new());
    for (&id, one) in loading {
        match one.root.map_or(0, |root| root.parent) {
            0 => order.push((id, None)),
            parent => {
                children.entry(BlobId(parent)).or_default().push(id);
                lost.push((id, Some(BlobId(parent))));
            }
        }
    }
    let mut at = 0;
    while let Some(&(parent, _)) = order.get(at) {
        let found = children.remove(&parent).into_iter().flatten();
        order.extend(found.map(|id| (id, Some(parent))));
        at += 1;
    }
    lost.retain(|(_, parent)| parent.is_some_and(|parent| children.contains_key(&parent)));
    order.append(&mut lost);
    order
}

/// The blob shows its parent from now on. False if it cannot be one.
fn link(parent: Option<&Rc<BlobState>>, one: &Loading) -> bool {
    let Some(parent) = parent.filter(|parent| parent.is_snapshot.get()) else {
        return false;
    };
    if one.blob.parent_pages.get() > parent.size_pages.get() {
        return false;
    }
    *one.blob.parent.borrow_mut() = Some(parent.clone());
    true
}

/// Finds out which clusters are free; a blob that claims what is not its own is damaged, and so is one without its parent.
fn settle_ownership(superblock: &Superblock, mut loading: BTreeMap<BlobId, Loading>) -> Settled {
    let shape = &superblock.shape;
    let used = shape.first_data_cluster..superblock.untouched_cluster;
    let mut free = FreeSet::empty(shape.first_data_cluster, shape.clusters);
    used.clone().for_each(|cluster| free.insert(cluster));
    let mut blobs: BTreeMap<BlobId, Rc<BlobState>> = BTreeMap::new();
    let mut damaged: BTreeMap<BlobId, Vec<DamagedPage>> = BTreeMap::new();
    for (id, parent) in by_descent(&loading) {
        let mut one = loading.remove(&id).expect("each blob comes once");
        if let Some(parent) = parent
            && !link(blobs.get(&parent), &one)
        {
            one.damage.push(DamagedPage {
                index: 0,
                page: 0,
                why: PageError::Contents("its parent is damaged, missing or no snapshot"),
            });
        }
        if one.damage.is_empty() {
            let claims: Vec<u32> = one
                .blob
                .map
                .borrow()
                .allocated_from(0)
                .map(|(_, cluster)| cluster)
                .collect();
            let mut taken = Vec::new();
            let mut all = true;
            for cluster in claims {
                all = used.contains(&cluster) && free.remove(cluster);
                if !all {
                    break;
                }
                taken.push(cluster);
            }
            if !all {
                taken.into_iter().for_each(|cluster| free.insert(cluster));
                one.damage.push(DamagedPage {
                    index: 0,
                    page: 0,
                    why: PageError::Contents("it claims a cluster that it cannot own"),
                });
            }
        }
        if one.damage.is_empty() {
            if let Some(parent) = &*one.blob.parent.borrow() {
                parent.children.borrow_mut().insert(id);
            }
            blobs.insert(id, Rc::new(one.blob));
        } else {
            // It may be whole again when the store is opened next, and show its parent then.
            let parent = parent.and_then(|parent| blobs.get(&parent));
            if let Some(parent) = parent {
                parent.children.borrow_mut().insert(id);
            }
            damaged.insert(id, one.damage);
        }
    }
    let mut quarantined = Vec::new();
    if !damaged.is_empty() {
        quarantined = std::iter::from_fn(|| free.take()).collect();
        quarantined.sort_unstable();
    }
    let clusters = Clusters::new(free, quarantined, superblock.untouched_cluster, shape.clusters);
    (clusters, blobs, damaged)
}
