//! Makes `version2-special`: pipes, sockets and devices, one with two names. See
//! `golden/README.md` for how it is run.

mod common;

use std::rc::Rc;

use common::{Image, Manifest, attributes, options, time};
use packfs::files::{FileOptions, FileSystem, NewInode, NodeKind, SetAttributes};
use packfs::lease::memory::LocalLeases;
use packfs::{DeviceNumber, InodeNumber, format};

const NEW: NewInode = NewInode {
    mode: 0o640,
    uid: 1000,
    gid: 70_000,
};

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
    let mut settled = Vec::new();
    let root = InodeNumber::ROOT;
    let number = |major, minor| DeviceNumber { major, minor };
    let shown = |number: DeviceNumber| [number.major.to_le_bytes(), number.minor.to_le_bytes()].concat();
    let (null, disk, far) = (number(1, 3), number(259, 70_000), number(u32::MAX, u32::MAX));
    for (name, kind, letter, bytes) in [
        (&b"pipe"[..], NodeKind::Pipe, 'p', Vec::new()),
        (b"socket", NodeKind::Socket, 's', Vec::new()),
        (b"null", NodeKind::CharacterDevice(null), 'c', shown(null)),
        (b"whiteout", NodeKind::CharacterDevice(number(0, 0)), 'c', vec![0; 8]),
        (b"disk", NodeKind::BlockDevice(disk), 'b', shown(disk)),
        (b"far", NodeKind::BlockDevice(far), 'b', shown(far)),
    ] {
        let inode = files.mknod(root, name, kind, NEW, now).await.unwrap().number;
        let mut paths = vec![name];
        if name == b"disk" {
            files.link(inode, root, b"disk again", now).await.unwrap();
            paths.push(b"disk again");
        }
        settled.push((inode, letter, bytes, paths));
    }
    settled.push((root, 'd', Vec::new(), vec![b""]));
    for (inode, letter, bytes, paths) in settled {
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
        for path in &paths {
            manifest.add(letter, &a, paths.len() as u32, &bytes, path);
        }
    }
    files.commit().await.unwrap();
    files.close().await.unwrap();
    manifest
}

fn main() {
    let image = Image::new(4 << 20);
    let manifest = reactor::run(&reactor::Config::default(), make(image.clone())).unwrap();
    image.save("version2-special", &manifest);
}
