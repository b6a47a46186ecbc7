//! Makes `version2-shared`: a tree and its clone, a copy of a file that shares, parts of which are gone again. See
//! `golden/README.md` for how it is run.

mod common;

use std::rc::Rc;

use common::{Image, Manifest, attributes, content, options, time};
use packfs::files::{FileOptions, FileSystem, NewInode, SetAttributes};
use packfs::lease::memory::LocalLeases;
use packfs::{Attributes, InodeNumber, format};

const NEW: NewInode = NewInode {
    mode: 0o640,
    uid: 1000,
    gid: 70_000,
};
const FILES: u32 = 24;
const LARGE: usize = 200_000;

/// Sets what the manifest says, whatever the operations before left.
async fn settle(files: &mut FileSystem, inode: InodeNumber) -> Attributes {
    let mut a = attributes(inode.0 as u32, 0o640);
    let set = SetAttributes {
        mode: Some(a.mode),
        uid: Some(a.uid),
        gid: Some(a.gid),
        atime: Some(a.atime),
        mtime: Some(a.mtime),
        ..SetAttributes::default()
    };
    files
        .set_attributes(inode, &set, time(1_700_000_000))
        .await
        .unwrap();
    a.ctime = time(1_700_000_000);
    a
}

async fn make(image: Rc<Image>) -> Manifest {
    let medium = image.medium();
    let leases = Rc::new(LocalLeases::new());
    let now = time(1_600_000_000);
    format(medium.clone(), leases.clone(), "golden", &options())
        .await
        .unwrap();
    let mut files = FileSystem::open(medium, leases, &FileOptions::default())
        .await
        .unwrap();
    let mut manifest = Manifest::default();
    let root = InodeNumber::ROOT;
    let tree = files.mkdir(root, b"tree", NEW, now).await.unwrap().number;
    let mut small = Vec::new();
    for number in 0..FILES {
        let name = format!("file {number}");
        let inode = files.create(tree, name.as_bytes(), NEW, now).await.unwrap().number;
        let bytes = content(3000 + 371 * number as usize, number as u8);
        files.write(inode, 0, &bytes, now).await.unwrap();
        let a = settle(&mut files, inode).await;
        small.push((name, a, bytes));
    }
    let large = files.create(tree, b"large", NEW, now).await.unwrap().number;
    let mut bytes = content(LARGE, 77);
    files.write(large, 0, &bytes, now).await.unwrap();
    files.commit().await.unwrap();
    let large_attributes = settle(&mut files, large).await;
    let tree_attributes = settle(&mut files, tree).await;
    manifest.add('f', &large_attributes, 1, &bytes, b"tree/large");
    files.commit().await.unwrap();

    files.clone_tree(tree, root, b"clone", now).await.unwrap();
    files.commit().await.unwrap();
    let clone = files.lookup(root, b"clone").await.unwrap().number;
    manifest.add('d', &tree_attributes, 1, b"", b"clone");
    for (number, (name, a, bytes)) in small.iter().enumerate() {
        manifest.add('f', a, 1, bytes, format!("clone/{name}").as_bytes());
        if number % 8 == 3 {
            // Its clone has the bytes alone from now on.
            files.unlink(tree, name.as_bytes(), now).await.unwrap();
        } else {
            manifest.add('f', a, 1, bytes, format!("tree/{name}").as_bytes());
        }
    }

    // A file that shares all with another, which was cloned, too: three have these bytes.
    let copied = files.create(root, b"copied", NEW, now).await.unwrap().number;
    let length = files
        .copy_range((large, 0), (copied, 0), LARGE as u64, now)
        .await
        .unwrap();
    assert_eq!(length, LARGE as u64);
    files.commit().await.unwrap();
    let a = settle(&mut files, copied).await;
    manifest.add('f', &a, 1, &bytes, b"copied");

    // A part of the clone is written over: what is left of its extents are parts of others.
    let other = files.lookup(clone, b"large").await.unwrap().number;
    let part = content(3000, 99);
    files.write(other, 101_000, &part, now).await.unwrap();
    bytes[101_000..104_000].copy_from_slice(&part);
    files.commit().await.unwrap();
    let a = settle(&mut files, other).await;
    manifest.add('f', &a, 1, &bytes, b"clone/large");

    let a = settle(&mut files, tree).await;
    manifest.add('d', &a, 1, b"", b"tree");
    let a = settle(&mut files, root).await;
    manifest.add('d', &a, 1, b"", b"");
    files.commit().await.unwrap();
    files.close().await.unwrap();
    manifest
}

fn main() {
    let image = Image::new(4 << 20);
    let manifest = reactor::run(&reactor::Config::default(), make(image.clone())).unwrap();
    image.save("version2-shared", &manifest);
}
