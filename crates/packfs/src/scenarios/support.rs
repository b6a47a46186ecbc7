//! A channel on a simulated disk, and ways to run something on a simulated host.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use bdev::{Channel, Data, Geometry, IoError, Operation, Request};
use foundation::BlockCount;
use reactor::file::{File, OpenOptions};
use reactor::sim::{Host, Simulation};

use crate::{FormatOptions, Medium, Parameters, WriterOptions};

pub(super) const VOLUME_BYTES: u64 = 8 << 20;

/// A simulated file as a block device of 4 KiB blocks with a volatile write cache.
struct FileChannel {
    file: File,
    blocks: u64,
}

impl Channel for FileChannel {
    fn geometry(&self) -> Geometry {
        Geometry {
            block_bytes: 4096,
            blocks: BlockCount(self.blocks),
            metadata_bytes: 0,
            boundary_blocks: 0,
            write_cache: true,
        }
    }

    fn submit(&self, mut request: Request) {
        let file = self.file.clone();
        let offset = self.geometry().offset_bytes(request.lba);
        drop(reactor::spawn(async move {
            let status = match (request.operation, std::mem::take(&mut request.data)) {
                (Operation::Read, Data::Into(buffer)) => {
                    let (status, buffer) = file.read_at(buffer, offset).await;
                    request.data = Data::Into(buffer);
                    status
                }
                (Operation::Write { fua }, Data::From(buffer)) => match file.write_at(buffer, offset).await {
                    Ok(()) if fua => file.sync_data().await,
                    status => status,
                },
                (Operation::Flush, _) => file.sync_data().await,
                _ => panic!("PackFS uses reads, writes and flushes only"),
            };
            request.complete(status.map_err(|error| IoError::from(&error)));
        }));
    }
}

pub(super) const DISK: &str = "/disk";

/// The host's disk as a medium. Call it in a task of the host.
pub(super) fn medium() -> Medium {
    sized_medium(VOLUME_BYTES)
}

pub(super) fn sized_medium(bytes: u64) -> Medium {
    let options = OpenOptions {
        write: true,
        create: true,
        direct: true,
    };
    let file = File::open(Path::new(DISK), options).unwrap();
    file.set_length_bytes(bytes).unwrap();
    let blocks = bytes / 4096;
    Medium::new(Rc::new(FileChannel { file, blocks }))
}

pub(super) fn small() -> FormatOptions {
    FormatOptions {
        parameters: Parameters {
            stripe_unit_bytes: 16 << 10,
            segment_bytes: 64 << 10,
            extent_bytes_max: 16 << 10,
        },
        ..FormatOptions::default()
    }
}

pub(super) fn writer_options() -> WriterOptions {
    WriterOptions {
        holder: "the test's writer".to_owned(),
        cache_bytes: 256 << 10,
        writes_in_flight: 3,
        ..WriterOptions::default()
    }
}

/// Runs a task on the host until it ends or the host loses power; gives what it returned.
pub(super) fn on_host<T: 'static, F: Future<Output = T> + 'static>(
    simulation: &Simulation,
    host: Host,
    make: impl FnOnce() -> F + 'static,
) -> Option<T> {
    let place: Rc<RefCell<Option<T>>> = Rc::default();
    let result = place.clone();
    simulation.start(host, move || async move {
        let value = make().await;
        *result.borrow_mut() = Some(value);
    });
    loop {
        if let Some(value) = place.borrow_mut().take() {
            return Some(value);
        }
        if !simulation.is_powered(host) {
            return None;
        }
        simulation.run_for(std::time::Duration::from_millis(1));
    }
}

/// A simulated world with one host.
pub(super) fn world(seed: u64) -> (Simulation, Host) {
    let simulation = Simulation::new(seed);
    let host = simulation.add_host("writer");
    (simulation, host)
}
