//! A device over a file of the reactor, which in a simulation is a simulated disk, and a world with one of it.
#![allow(dead_code, reason = "each test file uses its part")]

use std::cell::Cell;
use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bdev::{Channel, Data, Geometry, IoError, Operation, Request};
use foundation::BlockCount;
use reactor::file::{File, OpenOptions};
use reactor::sim::disk::DiskHandle;
use reactor::sim::{Host, Simulation};
use reactor::{Buffer, BufferPool};

pub(crate) const DISK: &str = "/disk";
pub(crate) const PAGE: usize = 4096;

/// A channel whose every request is a task on a file.
pub(crate) struct DiskChannel {
    file: File,
    geometry: Geometry,
}

impl DiskChannel {
    pub(crate) fn open(length_bytes: u64, block_bytes: u32) -> Rc<dyn Channel> {
        let options = OpenOptions {
            write: true,
            create: true,
            direct: false,
        };
        let file = File::open(Path::new(DISK), options).unwrap();
        if file.length_bytes().unwrap() < length_bytes {
            file.set_length_bytes(length_bytes).unwrap();
        }
        Rc::new(Self {
            file,
            geometry: Geometry {
                block_bytes,
                blocks: BlockCount(length_bytes / u64::from(block_bytes)),
                metadata_bytes: 0,
                boundary_blocks: 0,
                write_cache: true,
            },
        })
    }
}

impl Channel for DiskChannel {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, mut request: Request) {
        if request.operation != Operation::Flush
            && let Err(error) = self.geometry.check_range(request.lba, request.blocks)
        {
            return request.complete(Err(error));
        }
        let (file, geometry) = (self.file.clone(), self.geometry);
        drop(reactor::spawn(async move {
            let offset = geometry.offset_bytes(request.lba);
            let length = request.blocks.0 * u64::from(geometry.block_bytes);
            let data = std::mem::take(&mut request.data);
            let (result, data) = match (request.operation, data) {
                (Operation::Read, Data::Into(buffer)) => {
                    let (result, buffer) = file.read_at(buffer, offset).await;
                    (result, Data::Into(buffer))
                }
                (Operation::Write { fua }, Data::From(buffer)) => {
                    let mut result = file.write_at(buffer.clone(), offset).await;
                    if fua && result.is_ok() {
                        result = file.sync_data().await;
                    }
                    (result, Data::From(buffer))
                }
                (Operation::Flush, data) => (file.sync_data().await, data),
                (Operation::WriteZeroes { .. } | Operation::Deallocate, data) => {
                    // That future keeps its zeros within itself: too long to be moved with each request.
                    (Box::pin(file.punch_hole(offset, length)).await, data)
                }
                (_, data) => {
                    request.data = data;
                    return request.complete(Err(IoError::Unsupported));
                }
            };
            request.data = data;
            request.complete(result.map_err(|error| IoError::from(&error)));
        }));
    }
}

/// One host with one disk.
pub(crate) struct World {
    pub(crate) simulation: Simulation,
    pub(crate) host: Host,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let simulation = Simulation::new(seed);
        let host = simulation.add_host("node");
        Self { simulation, host }
    }

    pub(crate) fn disk(&self) -> DiskHandle {
        self.simulation.disk(self.host, Path::new(DISK))
    }

    /// Runs a process of the host until it ends or the power goes; its result, if it ended.
    pub(crate) fn process<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        make: impl FnOnce() -> F,
    ) -> Option<T> {
        let result = Rc::new(Cell::new(None));
        let place = result.clone();
        self.simulation.start(self.host, || {
            let future = make();
            async move { place.set(Some(future.await)) }
        });
        for _ in 0..100_000 {
            if let Some(value) = result.take() {
                self.simulation.stop(self.host);
                self.simulation.run_for(Duration::from_millis(1));
                return Some(value);
            }
            if !self.simulation.is_powered(self.host) {
                self.simulation.run_for(Duration::from_millis(1));
                return None;
            }
            self.simulation.run_for(Duration::from_micros(500));
        }
        panic!("the process neither ended nor lost power in 50 s of its time");
    }
}

/// A buffer of pages, each sector of which names a tag.
pub(crate) fn tagged(tags: &[u64]) -> Buffer {
    let mut buffer = BufferPool::current().try_allocate(tags.len() * PAGE).unwrap();
    for (page, tag) in buffer.chunks_mut(PAGE).zip(tags) {
        for word in page.as_chunks_mut::<8>().0 {
            *word = tag.to_le_bytes();
        }
    }
    buffer.freeze()
}

/// The tag of each sector of a page; panics if a sector has more than one.
pub(crate) fn sector_tags(page: &[u8]) -> [u64; 8] {
    let mut tags = [0; 8];
    for (tag, sector) in tags.iter_mut().zip(page.chunks(512)) {
        let (words, _) = sector.as_chunks::<8>();
        assert!(words.iter().all(|word| word == &words[0]), "a sector is torn");
        *tag = u64::from_le_bytes(words[0]);
    }
    tags
}
