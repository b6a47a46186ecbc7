//! What the measuring commands read: files of a volume, in an order, by several tasks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use bench::local_files::Reading;
use packfs::{Kind, ReadError, Reader, Target};

/// Bytes of a large file that are read at once; the same for local files.
pub(super) const READ_AT_ONCE: u64 = bench::local_files::READ_AT_ONCE as u64;

/// A regular file of a volume.
#[derive(Clone, Debug)]
pub(super) struct VolumeFile {
    /// From the volume's root.
    pub(super) path: Vec<u8>,
    /// Length in bytes.
    pub(super) size_bytes: u64,
}

/// Regular files below a path, in the order of the volume's directories.
pub(super) async fn files(reader: &Reader, path: &[u8]) -> Result<Vec<VolumeFile>, ReadError> {
    let root = reader.lookup(path).await?;
    let mut walk = reader.walk(root.number);
    let mut files = Vec::new();
    loop {
        let batch = walk.next_batch().await?;
        if batch.is_empty() {
            return Ok(files);
        }
        for found in batch {
            if found.entry.kind() == Kind::File {
                let path = [path, &found.path].join(&b'/');
                let size_bytes = reader.inode_of(found.entry).await?.size;
                files.push(VolumeFile { path, size_bytes });
            }
        }
    }
}

/// Reads one whole file; how many bytes came.
pub(super) async fn read_whole(reader: &Reader, file: &VolumeFile) -> Result<u64, ReadError> {
    if file.size_bytes <= READ_AT_ONCE {
        let read = reader.read_many(&[Target::Path(&file.path)]).await.pop();
        return Ok(read.expect("one target gives one result")?.len() as u64);
    }
    let opened = reader.open_file(&file.path).await?;
    let mut offset = 0;
    while offset < file.size_bytes {
        offset += reader.read(&opened, offset, READ_AT_ONCE).await?.len() as u64;
    }
    Ok(offset)
}

/// Files in an order, which tasks share out among themselves.
struct Share {
    reader: Reader,
    files: Rc<Vec<VolumeFile>>,
    order: Vec<usize>,
    next: Cell<usize>,
    bytes: Cell<u64>,
    latencies_us: RefCell<Vec<u32>>,
}

impl Share {
    async fn read(&self) -> Result<(), ReadError> {
        while let Some(&index) = self.order.get(self.next.replace(self.next.get() + 1)) {
            let begun = Instant::now();
            let bytes = read_whole(&self.reader, &self.files[index]).await?;
            let latency = u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX);
            self.latencies_us.borrow_mut().push(latency);
            self.bytes.set(self.bytes.get() + bytes);
        }
        Ok(())
    }
}

/// Reads the files of these indices, in this order, `in_flight` at a time.
pub(super) async fn read_in_order(
    reader: &Reader,
    files: &Rc<Vec<VolumeFile>>,
    order: &[usize],
    in_flight: usize,
) -> Result<Reading, ReadError> {
    let share = Rc::new(Share {
        reader: reader.clone(),
        files: files.clone(),
        order: order.to_vec(),
        next: Cell::new(0),
        bytes: Cell::new(0),
        latencies_us: RefCell::new(Vec::with_capacity(order.len())),
    });
    let begun = Instant::now();
    let start = |_| {
        let share = share.clone();
        reactor::spawn(async move { share.read().await })
    };
    let tasks: Vec<_> = (0..in_flight).map(start).collect();
    for task in tasks {
        // None ends these tasks but themselves.
        task.await.unwrap_or(Err(ReadError::LeaseEnded))?;
    }
    Ok(Reading {
        seconds: begun.elapsed().as_secs_f64(),
        bytes: share.bytes.get(),
        latencies_us: share.latencies_us.take(),
    })
}
