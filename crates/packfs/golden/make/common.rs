//! What the makers of the golden images share: an image in memory, content that is told by a number, a manifest.

use std::cell::RefCell;
use std::rc::Rc;

use bdev::fence::TokenKeeper;
use bdev::{Channel, Data, Geometry, IoError, Operation, Request};
use foundation::BlockCount;
use packfs::{Attributes, FormatOptions, Medium, Parameters, Timestamp};

const PAGE: usize = 4096;

/// An image in memory.
pub(crate) struct Image(RefCell<Vec<u8>>);

impl Channel for Image {
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
        let start = request.lba.0 as usize * PAGE;
        let range = start..start + request.blocks.0 as usize * PAGE;
        let mut image = self.0.borrow_mut();
        let status = match (request.operation, &mut request.data) {
            (Operation::Flush, _) => Ok(()),
            (Operation::Read, Data::Into(buffer)) => {
                buffer.copy_from_slice(&image[range]);
                Ok(())
            }
            (Operation::Write { .. }, Data::From(buffer)) => {
                image[range].copy_from_slice(buffer);
                Ok(())
            }
            _ => Err(IoError::Unsupported),
        };
        drop(image);
        request.complete(status);
    }
}

impl Image {
    pub(crate) fn new(bytes: usize) -> Rc<Self> {
        Rc::new(Self(RefCell::new(vec![0; bytes])))
    }

    pub(crate) fn medium(self: &Rc<Self>) -> Medium {
        Medium::new(TokenKeeper::new().over(self.clone()))
    }

    /// Writes what is not zero, as runs: offset (8), length (4), bytes; and the manifest.
    pub(crate) fn save(&self, name: &str, manifest: &Manifest) {
        let image = self.0.borrow();
        let mut out = (image.len() as u64).to_le_bytes().to_vec();
        let mut at = 0;
        while let Some(skipped) = image[at..].iter().position(|&byte| byte != 0) {
            let start = at + skipped;
            let mut end = start;
            // A run ends where sixteen zeros follow.
            while image[end..].iter().take(16).any(|&byte| byte != 0) {
                end += 1;
            }
            out.extend_from_slice(&(start as u64).to_le_bytes());
            out.extend_from_slice(&((end - start) as u32).to_le_bytes());
            out.extend_from_slice(&image[start..end]);
            at = end;
        }
        println!("{name}: {} bytes", out.len());
        std::fs::write(format!("{name}.image"), out).unwrap();
        std::fs::write(format!("{name}.manifest"), &manifest.0).unwrap();
    }
}

pub(crate) fn options() -> FormatOptions {
    let mut label = [0; 64];
    label[..6].copy_from_slice(b"golden");
    FormatOptions {
        uuid: [0x47; 16],
        parameters: Parameters {
            stripe_unit_bytes: 16 << 10,
            segment_bytes: 64 << 10,
            extent_bytes_max: 16 << 10,
        },
        label,
        root: attributes(1, 0o755),
        ..FormatOptions::default()
    }
}

pub(crate) fn time(seconds: i64) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds: 123_456_789,
    }
}

pub(crate) fn attributes(number: u32, mode: u32) -> Attributes {
    Attributes {
        mode,
        uid: 1000 + number,
        gid: 70_000 * (number % 2),
        mtime: time(1_700_000_000 + i64::from(number)),
        atime: time(1_700_000_000 + i64::from(number) * 2),
        ctime: time(1_700_000_000 + i64::from(number) * 3),
    }
}

/// Content that is told by its length and a byte, mostly zeros so that images stay small.
pub(crate) fn content(length: usize, byte: u8) -> Vec<u8> {
    let at = |index: usize| match (index % 4096, length) {
        (_, ..=4096) | (0..8, _) => byte.wrapping_add((index / 7) as u8) | 1,
        _ => 0,
    };
    (0..length).map(at).collect()
}

/// What was written, one line each: kind, mode, uid, gid, mtime, links, length, CRC32C of the content, path (hexadecimal).
#[derive(Default)]
pub(crate) struct Manifest(String);

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Manifest {
    /// Limit and use of a tree: bytes, then files.
    #[allow(dead_code, reason = "one maker has quotas")]
    pub(crate) fn quota(&mut self, limit_bytes: u64, bytes: u64, limit_files: u64, files: u64, path: &[u8]) {
        let line = format!("q {limit_bytes} {bytes} {limit_files} {files} {}\n", hex(path));
        self.0.push_str(&line);
    }

    pub(crate) fn add(&mut self, kind: char, attributes: &Attributes, links: u32, bytes: &[u8], path: &[u8]) {
        let Attributes {
            mode,
            uid,
            gid,
            mtime,
            ..
        } = attributes;
        let line = format!(
            "{kind} {mode:o} {uid} {gid} {}.{:09} {links} {} {:08x} {}\n",
            mtime.seconds,
            mtime.nanoseconds,
            bytes.len(),
            foundation::checksum::crc32c(bytes),
            hex(path)
        );
        self.0.push_str(&line);
    }

    /// An extended attribute, as name and value, of what was added last.
    #[allow(dead_code)]
    pub(crate) fn extended(&mut self, name: &[u8], value: &[u8]) {
        let sum = foundation::checksum::crc32c(value);
        self.0
            .push_str(&format!("x {} {sum:08x} {}\n", value.len(), hex(name)));
    }

    /// What follows, which is `of`, belongs to this snapshot. What was in it and is not `gone` is there still.
    #[allow(dead_code)]
    pub(crate) fn with_snapshot(self, name: &[u8], of: &Manifest, gone: &[u8]) -> Self {
        let gone = format!(" {}", hex(gone));
        let mut text = String::new();
        for line in of.0.lines().filter(|line| !line.ends_with(&gone)) {
            text.push_str(&format!("{line}\n"));
        }
        Manifest(format!("{text}{}@ {}\n{}", self.0, hex(name), of.0))
    }
}
