//! Makes `version1`: everything that version 1 of the format has. See `golden/README.md` for how it is run.

mod common;

use std::rc::Rc;

use common::{Image, Manifest, attributes, content, options};
use packfs::lease::memory::LocalLeases;
use packfs::{InodeNumber, Writer, WriterOptions, format};

async fn make(image: Rc<Image>) -> Manifest {
    let medium = image.medium();
    let leases = Rc::new(LocalLeases::new());
    format(medium.clone(), leases.clone(), "golden", &options()).await.unwrap();
    let mut writer = Writer::open(medium, leases, &WriterOptions::default()).await.unwrap();
    let mut manifest = Manifest::default();
    let root = InodeNumber::ROOT;
    manifest.add('d', &options().root, 1, b"", b"");
    for (number, (name, length)) in [
        (&b"empty"[..], 0),
        (b"inline", 100),
        (b"packed", 3000),
        (b"unit", 16 << 10),
        (b"three extents", 40_000),
        (b"many extents", 300_000),
        (b"name \xff\xfe", 700),
    ]
    .into_iter()
    .enumerate()
    {
        let a = attributes(number as u32 + 10, 0o640);
        let bytes = content(length, number as u8 + 1);
        writer.create_file(root, name, &a, &bytes).await.unwrap();
        manifest.add('f', &a, 1, &bytes, name);
    }
    let a = attributes(30, 0o2750);
    let directory = writer.mkdir(root, b"directory", &a).await.unwrap();
    manifest.add('d', &a, 1, b"", b"directory");
    for number in 0..120u32 {
        let name = format!("file {number:03}");
        let a = attributes(number + 100, 0o644);
        let bytes = content(40 + number as usize, number as u8);
        writer.create_file(directory, name.as_bytes(), &a, &bytes).await.unwrap();
        manifest.add('f', &a, 1, &bytes, format!("directory/{name}").as_bytes());
    }
    writer.commit().await.unwrap();
    // The second commit has something to give back, links, and depth.
    for name in [&b"passing"[..], b"passing too"] {
        writer.create_file(root, name, &attributes(1, 0o600), &content(9000, 9)).await.unwrap();
    }
    writer.commit().await.unwrap();
    writer.remove(root, b"passing").await.unwrap();
    writer.remove(root, b"passing too").await.unwrap();
    let a = attributes(40, 0o777);
    writer.symlink(root, b"symbolic", &a, b"directory/file 007").await.unwrap();
    manifest.add('l', &a, 1, b"directory/file 007", b"symbolic");
    let a = attributes(41, 0o4755);
    let linked = writer.create_file(root, b"linked", &a, &content(500, 77)).await.unwrap();
    writer.link(directory, b"second name", linked).await.unwrap();
    for path in [&b"linked"[..], b"directory/second name"] {
        manifest.add('f', &a, 2, &content(500, 77), path);
    }
    let (mut parent, mut path) = (root, Vec::new());
    for depth in 0..4u32 {
        let a = attributes(50 + depth, 0o700);
        let name = format!("deep {depth}");
        parent = writer.mkdir(parent, name.as_bytes(), &a).await.unwrap();
        if depth > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        manifest.add('d', &a, 1, b"", &path);
    }
    writer.commit().await.unwrap();
    writer.close().await.unwrap();
    manifest
}

fn main() {
    let image = Image::new(4 << 20);
    let manifest = reactor::run(&reactor::Config::default(), make(image.clone())).unwrap();
    image.save("version1", &manifest);
}
