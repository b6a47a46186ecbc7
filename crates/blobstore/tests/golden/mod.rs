//! Proves: stores that an earlier program made open, and hold what was put into them; this program writes the same bytes, or says that the
//! format is another one. Both images were made on 2026-11-28: what programs before that wrote as the same version is not kept.
//!
//! An image is kept as runs of what is not zero: offset (8 bytes), length (4), bytes. What is in it stands here, in the functions that
//! make it and look at it. When a format changes, its image stays and is opened for ever, and a new one is added:
//! `REDHARE_GOLDEN=DIRECTORY` writes those of this program there.

use blobstore::{BlobId, Blobstore, FormatOptions};

use super::{DISK_BYTES, disk, tag_at};
use crate::support::{PAGE, World, tagged};

/// Zeros that end a run.
const GAP: usize = 16;

fn options() -> FormatOptions {
    FormatOptions {
        uuid: [0x47; 16],
        owner: *b"a golden cluster",
        ..super::options()
    }
}

/// Blobs with and without data, one that has grown and one that has shrunk, attributes, one that was deleted, and clusters that a second
/// owner has.
async fn make_plain() {
    let store = Blobstore::format(disk(), &options()).await.unwrap();
    let blob = store.create(10).unwrap();
    for page in [0, 1, 5, 9] {
        blob.write(page, tagged(&[100 + page])).await.unwrap();
    }
    blob.set_attribute("name", b"first").unwrap();
    blob.set_attribute("\u{e9}t\u{e9}", &[0, 255, 1]).unwrap();
    let gone = store.create(8).unwrap();
    gone.write(0, tagged(&[7, 7, 7, 7, 7, 7, 7, 7])).await.unwrap();
    store.sync().await.unwrap();
    store.delete(gone.id()).await.unwrap();
    let shrunk = store.create(40).unwrap();
    shrunk.write(0, tagged(&[200])).await.unwrap();
    shrunk.write(30, tagged(&[230])).await.unwrap();
    shrunk.resize(6).await.unwrap();
    blob.resize(64).await.unwrap();
    blob.write(63, tagged(&[163])).await.unwrap();
    store.create(3).unwrap();
    store.sync().await.unwrap();
    // Another owner of what was deleted.
    let second = store.create(8).unwrap();
    second.write(2, tagged(&[302])).await.unwrap();
    store.sync().await.unwrap();
}

async fn is_plain(store: &Blobstore) {
    assert_eq!(store.blobs(), [1, 3, 4, 5].map(BlobId));
    let blob = store.blob(BlobId(1)).unwrap();
    assert_eq!(blob.size_pages(), 64);
    for page in 0..64 {
        let tag = match page {
            0 | 1 | 5 | 9 | 63 => 100 + page,
            _ => 0,
        };
        assert_eq!(tag_at(&blob, page).await, Ok(tag), "page {page}");
    }
    assert_eq!(blob.attribute("name").as_deref(), Some(&b"first"[..]));
    assert_eq!(blob.attribute("\u{e9}t\u{e9}").as_deref(), Some(&[0, 255, 1][..]));
    let shrunk = store.blob(BlobId(3)).unwrap();
    assert_eq!((shrunk.size_pages(), tag_at(&shrunk, 0).await), (6, Ok(200)));
    let empty = store.blob(BlobId(4)).unwrap();
    assert_eq!((empty.size_pages(), tag_at(&empty, 2).await), (3, Ok(0)));
    let second = store.blob(BlobId(5)).unwrap();
    for (page, tag) in [(0, 0), (2, 302), (3, 0), (4, 0)] {
        assert_eq!(tag_at(&second, page).await, Ok(tag), "page {page}");
    }
    // It grows again, and what it had there before is gone.
    shrunk.resize(40).await.unwrap();
    assert_eq!(tag_at(&shrunk, 30).await, Ok(0));
}

/// A blob with two snapshots, written between and after, and a clone of the first that has been written, too.
async fn make_snapshots() {
    let store = Blobstore::format(disk(), &options()).await.unwrap();
    let blob = store.create(24).unwrap();
    for page in 0..12 {
        blob.write(page, tagged(&[100 + page])).await.unwrap();
    }
    let first = store.snapshot(blob.id()).await.unwrap();
    blob.write(3, tagged(&[203])).await.unwrap();
    store.sync().await.unwrap();
    store.snapshot(blob.id()).await.unwrap();
    blob.write(8, tagged(&[308])).await.unwrap();
    let clone = store.clone_snapshot(first.id()).unwrap();
    clone.write(20, tagged(&[420])).await.unwrap();
    clone.write(0, tagged(&[400])).await.unwrap();
    clone.set_attribute("of", b"first").unwrap();
    store.sync().await.unwrap();
}

async fn is_snapshots(store: &Blobstore) {
    assert_eq!(store.blobs(), [1, 2, 3, 4].map(BlobId));
    /// Blob, whether it is a snapshot, and the pages that are not as they were made, with their tags.
    type Shown = (u64, bool, &'static [(u64, u64)]);
    let changed: [Shown; 4] = [
        (1, false, &[(3, 203), (8, 308)]),
        (2, true, &[]),
        (3, true, &[(3, 203)]),
        (4, false, &[(0, 400), (20, 420)]),
    ];
    for (id, is_snapshot, changed) in changed {
        let blob = store.blob(BlobId(id)).unwrap();
        assert_eq!(
            (blob.size_pages(), blob.is_snapshot()),
            (24, is_snapshot),
            "blob {id}"
        );
        for page in 0..24 {
            let as_made = if page < 12 { 100 + page } else { 0 };
            let written = changed.iter().find(|(at, _)| *at == page);
            let tag = written.map_or(as_made, |(_, tag)| *tag);
            assert_eq!(tag_at(&blob, page).await, Ok(tag), "blob {id}, page {page}");
        }
    }
    let clone = store.blob(BlobId(4)).unwrap();
    assert_eq!(clone.attribute("of").as_deref(), Some(&b"first"[..]));
    assert_eq!(clone.parent(), Some(BlobId(2)));
    // What shares is still apart when either is written.
    let blob = store.blob(BlobId(1)).unwrap();
    blob.write(0, tagged(&[500])).await.unwrap();
    let first = store.blob(BlobId(2)).unwrap();
    assert_eq!(
        (tag_at(&first, 0).await, tag_at(&clone, 0).await),
        (Ok(100), Ok(400))
    );
}

/// The bytes of a disk that are not zero.
fn packed(disk: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(skipped) = disk[at..].iter().position(|&byte| byte != 0) {
        let start = at + skipped;
        let mut end = start;
        while disk[end..].iter().take(GAP).any(|&byte| byte != 0) {
            end += 1;
        }
        out.extend_from_slice(&(start as u64).to_le_bytes());
        out.extend_from_slice(&((end - start) as u32).to_le_bytes());
        out.extend_from_slice(&disk[start..end]);
        at = end;
    }
    out
}

/// A disk with what an image has.
fn with_image(image: &[u8]) -> World {
    let world = World::new(1);
    world.process(|| async { drop(disk()) });
    let (mut at, all) = (0, image);
    while at < all.len() {
        let offset = u64::from_le_bytes(all[at..at + 8].try_into().unwrap());
        let length = u32::from_le_bytes(all[at + 8..at + 12].try_into().unwrap()) as usize;
        world.disk().damage(offset, &all[at + 12..at + 12 + length]);
        at += 12 + length;
    }
    world
}

fn written_by<F: Future<Output = ()> + 'static>(make: impl FnOnce() -> F) -> Vec<u8> {
    let world = World::new(1);
    world.process(make).unwrap();
    let pages = (0..DISK_BYTES).step_by(PAGE);
    let disk: Vec<u8> = pages.flat_map(|at| world.disk().read(at, PAGE)).collect();
    packed(&disk)
}

/// Compares what this program writes with an image, or writes it where that was asked for.
fn compare(name: &str, written: &[u8], image: &[u8]) {
    if let Some(directory) = std::env::var_os("REDHARE_GOLDEN") {
        let path = std::path::Path::new(&directory).join(name);
        std::fs::write(&path, written).unwrap();
    }
    assert!(
        written == image,
        "this program writes another store than {name}, in {} bytes and not {}: keep that image, and add one of the new format",
        written.len(),
        image.len()
    );
}

#[test]
fn a_store_of_version_1_opens_and_is_written_the_same_way() {
    let image = include_bytes!("version1.image");
    compare("version1.image", &written_by(make_plain), image);
    let world = with_image(image);
    world
        .process(|| async {
            let store = Blobstore::open(disk()).await.unwrap();
            store.check().unwrap();
            is_plain(&store).await;
            store.check().unwrap();
        })
        .unwrap();
}

#[test]
fn a_store_with_snapshots_opens_and_is_written_the_same_way() {
    let image = include_bytes!("snapshots.image");
    compare("snapshots.image", &written_by(make_snapshots), image);
    let world = with_image(image);
    world
        .process(|| async {
            let store = Blobstore::open(disk()).await.unwrap();
            store.check().unwrap();
            is_snapshots(&store).await;
            store.check().unwrap();
        })
        .unwrap();
}
