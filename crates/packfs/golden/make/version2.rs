//! Makes `version2-files` (holes, extended attributes, an orphan) and, with the feature `snapshots`, `version2-snapshots`,
//! which has snapshots by name besides. See `golden/README.md` for how it is run.

mod common;

use std::rc::Rc;

use common::{Image, Manifest, attributes, content, options, time};
use packfs::files::{FileOptions, FileSystem, NewInode, RenameMode, SetAttributes, SetExtended};
use packfs::lease::memory::LocalLeases;
use packfs::{InodeNumber, format};

const NEW: NewInode = NewInode { mode: 0o640, uid: 1000, gid: 70_000 };

struct Made {
    files: FileSystem,
    manifest: Manifest,
}

impl Made {
    /// Sets what the manifest says, whatever the operations before left.
    async fn settle(&mut self, inode: InodeNumber, kind: char, links: u32, bytes: &[u8], paths: &[&[u8]]) {
        let mut a = attributes(inode.0 as u32, 0o640);
        let set = SetAttributes {
            mode: Some(a.mode),
            uid: Some(a.uid),
            gid: Some(a.gid),
            atime: Some(a.atime),
            mtime: Some(a.mtime),
            ..SetAttributes::default()
        };
        self.files.set_attributes(inode, &set, time(1_700_000_000)).await.unwrap();
        a.ctime = time(1_700_000_000);
        for path in paths {
            self.manifest.add(kind, &a, links, bytes, path);
        }
    }
}

async fn make(image: Rc<Image>) -> Manifest {
    let medium = image.medium();
    let leases = Rc::new(LocalLeases::new());
    let now = time(1_600_000_000);
    format(medium.clone(), leases.clone(), "golden", &options()).await.unwrap();
    let files = FileSystem::open(medium, leases, &FileOptions::default()).await.unwrap();
    let mut made = Made { files, manifest: Manifest::default() };
    let root = InodeNumber::ROOT;

    let inode = made.files.create(root, b"holes", NEW, now).await.unwrap().number;
    let mut bytes = vec![0; 400_000];
    for (at, length, byte) in [(0usize, 5000usize, 3u8), (100_000, 20_000, 4), (390_000, 1, 5)] {
        let part = content(length, byte);
        made.files.write(inode, at as u64, &part, now).await.unwrap();
        bytes[at..at + length].copy_from_slice(&part);
    }
    let set = SetAttributes { size: Some(400_000), ..SetAttributes::default() };
    made.files.set_attributes(inode, &set, now).await.unwrap();
    made.files.commit().await.unwrap();
    // Part of an extent is written over, after it was committed.
    let part = content(3000, 99);
    made.files.write(inode, 101_000, &part, now).await.unwrap();
    bytes[101_000..104_000].copy_from_slice(&part);
    made.files.commit().await.unwrap();
    made.settle(inode, 'f', 1, &bytes, &[b"holes"]).await;

    let inode = made.files.create(root, b"attributes", NEW, now).await.unwrap().number;
    let values = [(&b"user.long"[..], content(1000, 8)), (b"user.short", b"value".to_vec()), (b"user.void", Vec::new())];
    for (name, value) in &values {
        made.files.set_extended(inode, name, value, SetExtended::Always, now).await.unwrap();
    }
    made.settle(inode, 'f', 1, b"", &[b"attributes"]).await;
    for (name, value) in &values {
        made.manifest.extended(name, value);
    }

    let directory = made.files.mkdir(root, b"directory", NEW, now).await.unwrap().number;
    let inode = made.files.create(root, b"old name", NEW, now).await.unwrap().number;
    made.files.write(inode, 0, &content(2000, 21), now).await.unwrap();
    made.files.rename((root, b"old name"), (directory, b"new name"), RenameMode::Replace, now).await.unwrap();
    made.files.link(inode, root, b"second name", now).await.unwrap();
    made.files.commit().await.unwrap();
    made.settle(inode, 'f', 2, &content(2000, 21), &[b"directory/new name", b"second name"]).await;
    let inode = made.files.symlink(root, b"symbolic", b"directory/new name", NEW, now).await.unwrap().number;
    let a = made.files.stat(inode).await.unwrap().attributes;
    made.manifest.add('l', &a, 1, b"directory/new name", b"symbolic");

    #[cfg(feature = "snapshots")]
    let kept = {
        made.files.commit().await.unwrap();
        let kept = std::mem::take(&mut made.manifest);
        made.files.create_snapshot(b"before", now).await.unwrap();
        let inode = made.files.create(root, b"after", NEW, now).await.unwrap().number;
        made.files.write(inode, 0, &content(6000, 31), now).await.unwrap();
        made.files.commit().await.unwrap();
        made.files.create_snapshot(b"passing", now).await.unwrap();
        made.files.unlink(root, b"holes", now).await.unwrap();
        made.files.commit().await.unwrap();
        made.files.delete_snapshot(b"passing").await.unwrap();
        made.settle(inode, 'f', 1, &content(6000, 31), &[b"after"]).await;
        kept
    };

    // Lost its name while it was open; whoever takes over drops it.
    let inode = made.files.create(root, b"orphan", NEW, now).await.unwrap().number;
    made.files.write(inode, 0, &content(30_000, 41), now).await.unwrap();
    made.files.open_inode(inode).await.unwrap();
    made.files.commit().await.unwrap();
    made.files.unlink(root, b"orphan", now).await.unwrap();
    let inode = directory;
    made.settle(inode, 'd', 1, b"", &[b"directory"]).await;
    let inode = root;
    made.settle(inode, 'd', 1, b"", &[b""]).await;
    made.files.commit().await.unwrap();
    made.files.close().await.unwrap();
    #[cfg(feature = "snapshots")]
    return made.manifest.with_snapshot(b"before", &kept, b"holes");
    #[cfg(not(feature = "snapshots"))]
    made.manifest
}

fn main() {
    let image = Image::new(4 << 20);
    let manifest = reactor::run(&reactor::Config::default(), make(image.clone())).unwrap();
    let name = if cfg!(feature = "snapshots") { "version2-snapshots" } else { "version2-files" };
    image.save(name, &manifest);
}
