//! Images of stores with some bytes changed: by a disk, or by whoever handed it over. Every checksum that leads to a
//! changed page is made right again, or nothing but the checksum would ever be tried.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bdev::fence::TokenKeeper;
use bdev::{Channel, Data, Geometry, IoError, Operation, Request};
use blobstore::Blobstore;
use foundation::BlockCount;
use foundation::checksum::crc32c;
use packfs::lease::memory::LocalLeases;
use packfs::{
    Attributes, Entry, FsckOptions, FsckReport, InodeNumber, Medium, Parameters, Reader, ReaderOptions,
    Target, VerifyOptions, Writer, WriterOptions, fsck, verify,
};
use reactor::BufferPool;
use reactor::sim::Simulation;

use crate::input::Input;

const PAGE: usize = 4096;

/// A device in a vector, done at once.
struct ImageChannel(RefCell<Vec<u8>>);

impl ImageChannel {
    fn new(image: Vec<u8>) -> Rc<Self> {
        Rc::new(Self(RefCell::new(image)))
    }
}

impl Channel for ImageChannel {
    fn geometry(&self) -> Geometry {
        Geometry {
            block_bytes: PAGE as u32,
            blocks: BlockCount((self.0.borrow().len() / PAGE) as u64),
            metadata_bytes: 0,
            boundary_blocks: 0,
            write_cache: true,
        }
    }

    fn submit(&self, mut request: Request) {
        if request.operation == Operation::Flush {
            return request.complete(Ok(()));
        }
        if let Err(error) = self.geometry().check_range(request.lba, request.blocks) {
            return request.complete(Err(error));
        }
        let start = request.lba.0 as usize * PAGE;
        let range = start..start + request.blocks.0 as usize * PAGE;
        let mut image = self.0.borrow_mut();
        let place = &mut image[range];
        let status = match (request.operation, &mut request.data) {
            (Operation::Read, Data::Into(buffer)) if buffer.len() == place.len() => {
                buffer.copy_from_slice(place);
                Ok(())
            }
            (Operation::Write { .. }, Data::From(buffer)) if buffer.len() == place.len() => {
                place.copy_from_slice(buffer);
                Ok(())
            }
            (Operation::WriteZeroes { .. } | Operation::Deallocate, _) => {
                place.fill(0);
                Ok(())
            }
            (Operation::Read | Operation::Write { .. }, _) => Err(IoError::Unaligned),
            _ => Err(IoError::Unsupported),
        };
        drop(image);
        request.complete(status);
    }
}

/// An image that is right, and where its checksums stand.
struct Golden {
    image: Vec<u8>,
    /// Offset of the checksum within a page of metadata, by the page's number.
    own: BTreeMap<usize, usize>,
    /// Byte offsets of the checksum of a page in the pages that lead to it.
    leading: BTreeMap<usize, Vec<usize>>,
}

impl Golden {
    /// `checksum_at` says where a page has its checksum, if it is one of metadata.
    fn new(image: Vec<u8>, checksum_at: impl Fn(&[u8]) -> Option<usize>) -> Self {
        let mut own = BTreeMap::new();
        let mut found = BTreeMap::new();
        for (number, page) in image.chunks(PAGE).enumerate() {
            if let Some(at) = checksum_at(page) {
                own.insert(number, at);
                found.insert(number, page[at..at + 4].to_vec());
            }
        }
        let leading = found.iter().map(|(&number, checksum)| {
            let mut places = Vec::new();
            for &other in own.keys().filter(|&&other| other != number) {
                let page = &image[other * PAGE..(other + 1) * PAGE];
                let at = page.windows(4).enumerate().filter(|(_, part)| part == checksum);
                places.extend(at.map(|(at, _)| other * PAGE + at));
            }
            (number, places)
        });
        let leading = leading.collect();
        Self { image, own, leading }
    }

    /// The image with the changes that the input asks for.
    fn damaged(&self, input: &mut Input<'_>) -> Vec<u8> {
        let mut image = self.image.clone();
        let pages: Vec<usize> = self.own.keys().copied().collect();
        let mut changed = Vec::new();
        let setting = input.u8();
        for _ in 0..1 + usize::from(setting >> 4) {
            let page = pages[input.below(pages.len())];
            let (at, count) = (input.below(PAGE), 1 + input.below(8));
            let bytes = input.bytes(count);
            let at = page * PAGE + at.min(PAGE - bytes.len());
            image[at..at + bytes.len()].copy_from_slice(bytes);
            changed.push(page);
        }
        if setting & 1 == 0 {
            self.seal(&mut image, changed);
        }
        image
    }

    /// From the changed pages up to those that nothing leads to.
    fn seal(&self, image: &mut [u8], mut pages: Vec<usize>) {
        // Each page leads to pages below it only, so this ends; a page that repeats another's checksum is no reason
        // to go on for ever.
        for _ in 0..10_000 {
            let Some(number) = pages.pop() else { return };
            let page = &mut image[number * PAGE..(number + 1) * PAGE];
            let at = self.own[&number];
            page[at..at + 4].fill(0);
            let checksum = crc32c(page).to_le_bytes();
            page[at..at + 4].copy_from_slice(&checksum);
            for &place in &self.leading[&number] {
                image[place..place + 4].copy_from_slice(&checksum);
                pages.push(place / PAGE);
            }
        }
    }
}

/// `docs/formats/blobstore.md`: "RHBS", checksum at 12.
fn of_blobstore(page: &[u8]) -> Option<usize> {
    page.starts_with(b"RHBS").then_some(12)
}

/// `docs/formats/packfs.md`: superblocks at 16, pages at 28.
fn of_packfs(page: &[u8]) -> Option<usize> {
    match page {
        _ if page.starts_with(b"RHPACKFS") => Some(16),
        _ if page.starts_with(b"RHPF") => Some(28),
        _ => None,
    }
}

thread_local! {
    static BLOBSTORE: Golden = Golden::new(make_blobstore(), of_blobstore);
    static PACKFS: Golden = Golden::new(make_packfs(), of_packfs);
}

fn page_of(byte: u8) -> reactor::Buffer {
    let mut buffer = BufferPool::current()
        .try_allocate(PAGE)
        .expect("a page is little");
    buffer.fill(byte);
    buffer.freeze()
}

/// Three blobs, one with a map of several pages and attributes of several pages.
fn make_blobstore() -> Vec<u8> {
    let channel = ImageChannel::new(vec![0; 1 << 20]);
    let device = channel.clone();
    Simulation::new(0).run(async move {
        let options = blobstore::FormatOptions {
            uuid: [5; 16],
            cluster_bytes: PAGE as u32,
            blob_pages_max: Some(24),
            checksum_room: false,
            ..blobstore::FormatOptions::default()
        };
        let store = Blobstore::format(device, &options).await.expect("it is empty");
        for (number, size) in [(1u8, 2), (2, 600), (3, 40)] {
            let blob = store.create(size).expect("there is room");
            for page in [0, 1, size / 2, size - 1] {
                let written = blob.write(page, page_of(number)).await;
                written.expect("there is room");
            }
            for attribute in 0..number {
                let name = format!("name {attribute}");
                let value = vec![number; usize::from(attribute) * 1500];
                blob.set_attribute(&name, &value).expect("there is room");
            }
        }
        store.sync().await.expect("nothing fails");
    });
    channel.0.take()
}

/// Opens a damaged store, looks at everything, changes some, and opens it again.
pub(crate) fn blobstore_image(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let image = BLOBSTORE.with(|golden| golden.damaged(&mut input));
    let channel = ImageChannel::new(image);
    Simulation::new(0).run(async move {
        let Ok(store) = Blobstore::open(channel.clone()).await else {
            return;
        };
        let described = store.describe();
        let sound = store.check().is_ok();
        for id in store.blobs() {
            let Ok(blob) = store.blob(id) else { continue };
            for name in blob.attribute_names() {
                let _ = blob.attribute(&name);
            }
            let last = blob.size_pages().saturating_sub(1);
            for page in [0, 1, last / 2, last] {
                let buffer = BufferPool::current()
                    .try_allocate(PAGE)
                    .expect("a page is little");
                let _ = blob.read(page, buffer).await;
            }
            let _ = blob.set_attribute("new", b"value");
            let _ = blob.write(last / 2, page_of(9)).await;
        }
        let made = store.create(3);
        let written = match &made {
            Ok(blob) => blob.write(2, page_of(7)).await.is_ok(),
            Err(_) => false,
        };
        if let Some(&first) = store.blobs().first() {
            let _ = store.delete(first).await;
        }
        let kept = store.sync().await.is_ok() && written;
        if !kept {
            return;
        }
        let Ok(blob) = made else { return };
        drop(store);
        let again = Blobstore::open(channel).await;
        let again = again.unwrap_or_else(|error| panic!("it was open before, and now: {error}"));
        assert_eq!(again.describe().uuid, described.uuid);
        assert!(!sound || again.check().is_ok(), "our own changes broke it");
        let blob = again.blob(blob.id()).expect("a blob that was synced is there");
        let buffer = BufferPool::current()
            .try_allocate(PAGE)
            .expect("a page is little");
        let (status, buffer) = blob.read(2, buffer).await;
        assert_eq!(status, Ok(()));
        assert!(buffer.iter().all(|&byte| byte == 7), "what was synced reads back");
    });
}

fn parameters() -> packfs::FormatOptions {
    packfs::FormatOptions {
        parameters: Parameters {
            stripe_unit_bytes: 16 << 10,
            segment_bytes: 64 << 10,
            extent_bytes_max: 16 << 10,
        },
        ..packfs::FormatOptions::default()
    }
}

/// Files of every layout, directories, links, a tree of two levels.
fn make_packfs() -> Vec<u8> {
    let channel = ImageChannel::new(vec![0; 2 << 20]);
    let medium_of = channel.clone();
    Simulation::new(0).run(async move {
        let medium = Medium::new(TokenKeeper::new().over(medium_of));
        let leases = Rc::new(LocalLeases::new());
        let formatted = packfs::format(medium.clone(), leases.clone(), "a formatter", &parameters()).await;
        formatted.expect("it is empty");
        let writer = Writer::open(medium, leases, &WriterOptions::default()).await;
        let mut writer = writer.expect("it was formatted");
        let all = Attributes::default();
        let root = InodeNumber::ROOT;
        for (name, size) in [
            ("empty", 0),
            ("tiny", 5),
            ("one", 3000),
            ("some", 40_000),
            ("many", 150_000),
        ] {
            let bytes = vec![name.as_bytes()[0]; size];
            let made = writer.create_file(root, name.as_bytes(), &all, &bytes).await;
            made.expect("there is room");
        }
        let directory = writer.mkdir(root, b"directory", &all).await;
        let directory = directory.expect("there is room");
        for index in 0..120 {
            let name = format!("a name that is not short {index}");
            let made = writer
                .create_file(directory, name.as_bytes(), &all, name.as_bytes())
                .await;
            made.expect("there is room");
        }
        writer.commit().await.expect("nothing fails");
        let link = writer.symlink(root, b"symbolic", &all, b"directory/x").await;
        link.expect("there is room");
        let tiny = writer.lookup(root, b"tiny").await.expect("it can be read");
        let tiny = tiny.expect("it is there").inode();
        let linked = writer.link(directory, b"second name", tiny).await;
        linked.expect("there is room");
        writer.remove(root, b"one").await.expect("it is there");
        let some = writer.lookup(root, b"some").await.expect("it can be read");
        let some = some.expect("it is there").inode();
        let clone = writer.clone_tree(some, directory, b"some").await;
        clone.expect("there is room");
        writer.commit().await.expect("nothing fails");
    });
    channel.0.take()
}

/// Everything that a reader and a writer do with a damaged file system.
pub(crate) fn packfs_image(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let writes = input.u8() & 1 != 0;
    let image = PACKFS.with(|golden| golden.damaged(&mut input));
    let channel = ImageChannel::new(image);
    Simulation::new(0).run(async move {
        let medium = Medium::new(TokenKeeper::new().over(channel));
        let leases = Rc::new(LocalLeases::new());
        let _ = verify(&medium, leases.clone(), &VerifyOptions::default()).await;
        if let Ok(reader) = Reader::open(medium.clone(), leases.clone(), &ReaderOptions::default()).await {
            read_all(&reader).await;
        }
        if writes {
            let _ = change(medium.clone(), leases.clone()).await;
        }
        repair(medium, leases).await;
    });
}

/// A repair ends, and a second one has nothing to do.
async fn repair(medium: Medium, leases: Rc<LocalLeases>) {
    let options = FsckOptions {
        repair: true,
        read_content: true,
        ..FsckOptions::default()
    };
    let problems = |report: &FsckReport| report.left.as_ref().unwrap_or(&report.found).problems.clone();
    let Ok(first) = fsck(&medium, leases.clone(), &options, &mut |_| {}).await else {
        return;
    };
    let second = fsck(&medium, leases, &options, &mut |_| {}).await;
    let second = second.unwrap_or_else(|error| panic!("it was repaired, and now: {error}"));
    assert_eq!(
        problems(&first),
        problems(&second),
        "a second repair finds something else"
    );
}

async fn read_all(reader: &Reader) {
    let mut walk = reader.walk(InodeNumber::ROOT);
    let mut paths = Vec::new();
    // A loop of directories is damage; whoever walks decides how far.
    for _ in 0..200 {
        match walk.next_batch().await {
            Ok(batch) if batch.is_empty() => break,
            Ok(batch) => {
                for found in batch {
                    if let Entry::Link { .. } = found.entry {
                        let _ = reader.inode_of(found.entry).await;
                    }
                    paths.push(found.path);
                }
            }
            Err(_) => {}
        }
        if paths.len() > 1000 {
            break;
        }
    }
    for path in paths.iter().take(20) {
        let _ = reader.lookup(path).await;
        let _ = reader.read_link(path).await;
        if let Ok(file) = reader.open_file(path).await {
            let _ = reader.read(&file, 100, 5000).await;
        }
    }
    let targets: Vec<_> = paths.iter().take(200).map(|path| Target::Path(path)).collect();
    for content in reader.read_many(&targets).await.into_iter().flatten() {
        let _ = content.to_vec();
    }
}

async fn change(medium: Medium, leases: Rc<LocalLeases>) -> Result<(), packfs::WriteError> {
    let Ok(mut writer) = Writer::open(medium, leases, &WriterOptions::default()).await else {
        return Ok(());
    };
    let (root, all) = (InodeNumber::ROOT, Attributes::default());
    let _ = writer.remove(root, b"some").await;
    if let Ok(Some(entry)) = writer.lookup(root, b"directory").await {
        let _ = writer.clone_tree(entry.inode(), root, b"clone").await;
        let _ = writer.remove(entry.inode(), b"some").await;
    }
    let _ = writer.remove(root, b"tiny").await;
    let _ = writer.create_file(root, b"another", &all, &[3; 30_000]).await;
    if let Ok(directory) = writer.mkdir(root, b"below", &all).await {
        let _ = writer.symlink(directory, b"link", &all, b"../x").await;
    }
    if let Ok(Some(entry)) = writer.lookup(root, b"many").await {
        let _ = writer.set_attributes(entry.inode(), &all).await;
    }
    writer.commit().await?;
    let _ = writer.remove(root, b"many").await;
    writer.commit().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use foundation::Lba;

    use super::*;

    #[test]
    fn images_without_a_change_are_right() {
        PACKFS.with(|golden| {
            let mut image = golden.image.clone();
            golden.seal(&mut image, golden.own.keys().copied().collect());
            assert!(image == golden.image, "sealing changes nothing that is right");
            assert!(golden.own.len() > 5 && golden.leading.values().any(|places| !places.is_empty()));
        });
        BLOBSTORE.with(|golden| {
            let mut image = golden.image.clone();
            golden.seal(&mut image, golden.own.keys().copied().collect());
            assert!(image == golden.image, "sealing changes nothing that is right");
            let device = ImageChannel::new(image);
            Simulation::new(0).run(async move {
                let store = Blobstore::open(device).await.unwrap();
                store.check().unwrap();
                assert_eq!(store.blobs().len(), 3);
                let block = store.blob(store.blobs()[1]).unwrap();
                assert!(
                    block
                        .channel()
                        .geometry()
                        .check_range(Lba(599), BlockCount(1))
                        .is_ok()
                );
            });
        });
    }
}
