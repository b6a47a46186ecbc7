//! Makes `version2-quotas`: a tree with limits of bytes and files, one within another of which only files are limited, and what was written, cut and removed
//! in them. See `golden/README.md` for how it is run.

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
    let alice = files.mkdir(root, b"alice", NEW, now).await.unwrap().number;
    let bob = files.mkdir(root, b"bob", NEW, now).await.unwrap().number;
    let free = files.mkdir(root, b"free", NEW, now).await.unwrap().number;
    let deep = files.mkdir(alice, b"deep", NEW, now).await.unwrap().number;
    // What is there before the limit counts, too.
    let early = files.create(deep, b"early", NEW, now).await.unwrap().number;
    let early_bytes = content(5000, 3);
    files.write(early, 0, &early_bytes, now).await.unwrap();
    files.commit().await.unwrap();
    files.set_quota(alice, 100_000, 20).await.unwrap();
    files.set_quota(bob, 0, 3).await.unwrap();
    files.commit().await.unwrap();

    let mut listed = Vec::new();
    for number in 0..8u32 {
        let name = format!("file {number}");
        let inode = files.create(alice, name.as_bytes(), NEW, now).await.unwrap().number;
        let bytes = content(1000 + 371 * number as usize, number as u8);
        files.write(inode, 0, &bytes, now).await.unwrap();
        listed.push((inode, format!("alice/{name}"), bytes));
    }
    let large = files.create(deep, b"large", NEW, now).await.unwrap().number;
    let bytes = content(60_000, 77);
    files.write(large, 0, &bytes, now).await.unwrap();
    files.commit().await.unwrap();
    files.write(large, 60_000, &bytes, now).await.unwrap_err();
    // One is cut, one is gone.
    let cut = SetAttributes {
        size: Some(40_000),
        ..SetAttributes::default()
    };
    files.set_attributes(large, &cut, now).await.unwrap();
    files.unlink(alice, b"file 7", now).await.unwrap();
    listed.pop();
    listed.push((early, "alice/deep/early".to_owned(), early_bytes));
    listed.push((large, "alice/deep/large".to_owned(), bytes[..40_000].to_vec()));
    for name in ["one", "two"] {
        let inode = files.create(bob, name.as_bytes(), NEW, now).await.unwrap().number;
        listed.push((inode, format!("bob/{name}"), Vec::new()));
    }
    let inode = files.create(free, b"file", NEW, now).await.unwrap().number;
    files.write(inode, 0, b"counts nowhere", now).await.unwrap();
    listed.push((inode, "free/file".to_owned(), b"counts nowhere".to_vec()));
    files.commit().await.unwrap();

    for (inode, path, bytes) in &listed {
        let a = settle(&mut files, *inode).await;
        manifest.add('f', &a, 1, bytes, path.as_bytes());
    }
    for (inode, path) in [(deep, "alice/deep"), (alice, "alice"), (bob, "bob"), (free, "free"), (root, "")] {
        let a = settle(&mut files, inode).await;
        manifest.add('d', &a, 1, b"", path.as_bytes());
    }
    // The directory that is within counts; the tree's own does not.
    let below: usize = listed.iter().filter(|(_, path, _)| path.starts_with("alice/")).map(|(.., bytes)| bytes.len()).sum();
    let of_alice = listed.iter().filter(|(_, path, _)| path.starts_with("alice/")).count();
    println!("alice: {below} bytes, {of_alice} files; {:?}", files.quota_of(alice).await.unwrap());
    println!("bob: {:?}", files.quota_of(bob).await.unwrap());
    manifest.quota(100_000, below as u64, 20, of_alice as u64 + 1, b"alice");
    manifest.quota(0, 0, 3, 2, b"bob");
    files.commit().await.unwrap();
    files.close().await.unwrap();
    manifest
}

fn main() {
    let image = Image::new(4 << 20);
    let manifest = reactor::run(&reactor::Config::default(), make(image.clone())).unwrap();
    image.save("version2-quotas", &manifest);
}
