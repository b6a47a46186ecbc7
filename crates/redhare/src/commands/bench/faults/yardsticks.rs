//! What the disk and the wire below a measurement give by themselves.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use foundation::Random;
use reactor::BufferPool;
use reactor::file::{File, OpenOptions};

use super::net::Net;
use super::world::World;
use crate::output::Failure;

/// Where the wire's receiver listens.
const WIRE_PORT: u16 = 5201;
/// Of one write while the copied file is made.
const MAKE_BYTES: u64 = 1 << 20;

/// Copies of one file to another, from the beginning to the end, past the page cache where the file system can.
pub(super) struct DiskCopy {
    from: PathBuf,
    to: PathBuf,
    bytes: u64,
    piece_bytes: u64,
    depth: usize,
}

impl DiskCopy {
    /// Makes the file. `bytes` is rounded down to whole pieces; so many of these are under way at once in [`DiskCopy::rate`].
    pub(super) fn new(place: &Path, bytes: u64, piece_bytes: u64, depth: usize) -> Result<Self, Failure> {
        let copy = Self {
            from: place.join("yardstick-from"),
            to: place.join("yardstick-to"),
            bytes: bytes / piece_bytes * piece_bytes,
            piece_bytes,
            depth,
        };
        let mut file = std::fs::File::create(&copy.from).map_err(Failure::new)?;
        let (mut random, mut piece) = (Random::from_seed(1), vec![0; MAKE_BYTES as usize]);
        for _ in 0..copy.bytes.div_ceil(MAKE_BYTES) {
            random.fill(&mut piece);
            file.write_all(&piece).map_err(Failure::new)?;
        }
        file.sync_all().map_err(Failure::new)?;
        Ok(copy)
    }

    /// Bytes a second of one copy, until they are durable. It is a new file each time, as what is rebuilt has new places.
    pub(super) fn rate(&self) -> Result<f64, Failure> {
        if self.to.exists() {
            std::fs::remove_file(&self.to).map_err(Failure::new)?;
        }
        let copied = reactor::run(&reactor::Config::default(), self.copy());
        copied.map_err(Failure::new)?.map_err(Failure::new)
    }

    async fn copy(&self) -> std::io::Result<f64> {
        let (from, to) = (open(&self.from, false)?, open(&self.to, true)?);
        let (began, next) = (Instant::now(), Rc::new(Cell::new(0)));
        let (bytes, piece_bytes) = (self.bytes, self.piece_bytes);
        let workers: Vec<_> = (0..self.depth)
            .map(|_| {
                let (from, to, next) = (from.clone(), to.clone(), next.clone());
                reactor::spawn(async move {
                    loop {
                        let at = next.get();
                        if at >= bytes {
                            return Ok(());
                        }
                        next.set(at + piece_bytes);
                        let buffer = BufferPool::current().allocate(piece_bytes as usize).await;
                        let buffer = buffer.map_err(std::io::Error::other)?;
                        let (read, buffer) = from.read_at(buffer, at).await;
                        read?;
                        to.write_at(buffer.freeze(), at).await?;
                    }
                })
            })
            .collect();
        for worker in workers {
            let ended: Option<std::io::Result<()>> = worker.await;
            ended.ok_or_else(|| std::io::Error::other("a copying task was ended"))??;
        }
        to.sync_data().await?;
        Ok(bytes as f64 / began.elapsed().as_secs_f64())
    }
}

/// As nodes open their disks: past the page cache where the file system can.
fn open(path: &Path, write: bool) -> std::io::Result<File> {
    let options = |direct| OpenOptions {
        write,
        create: write,
        direct,
    };
    File::open(path, options(true)).or_else(|_| File::open(path, options(false)))
}

/// Bytes a second of one TCP connection from a node's host to another's, written in such pieces.
pub(super) fn wire(
    world: &World,
    (from, to): (usize, usize),
    piece_bytes: u64,
    time: Duration,
) -> Result<f64, Failure> {
    let address = Net::socket(to, WIRE_PORT);
    let (listening, is_listening) = std::sync::mpsc::channel();
    let receiver = world.on_host(to, move || {
        let listener = TcpListener::bind(address).map_err(Failure::new)?;
        // The other end waits for it, or has failed itself.
        let _ = listening.send(());
        let (mut stream, _) = listener.accept().map_err(Failure::new)?;
        let mut piece = vec![0; piece_bytes as usize];
        let (began, mut received) = (Instant::now(), 0u64);
        loop {
            match stream.read(&mut piece).map_err(Failure::new)? {
                0 => return Ok(received as f64 / began.elapsed().as_secs_f64()),
                count => received += count as u64,
            }
        }
    })?;
    let sender = world.on_host(from, move || {
        let said = is_listening.recv_timeout(time + Duration::from_secs(10));
        said.map_err(|_| Failure::new(format!("nobody listens at {address}")))?;
        let mut stream = TcpStream::connect(address).map_err(Failure::new)?;
        let (piece, began) = (vec![0x5a; piece_bytes as usize], Instant::now());
        while began.elapsed() < time {
            stream.write_all(&piece).map_err(Failure::new)?;
        }
        Ok(())
    })?;
    let panicked = |_| Failure::new("measuring the wire has panicked");
    sender.join().map_err(panicked)??;
    receiver.join().map_err(panicked)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let copy = DiskCopy::new(directory.path(), (1 << 20) + 5000, 128 << 10, 16).unwrap();
        std::fs::write(&copy.to, "left by the copy before").unwrap();
        assert!(copy.rate().unwrap() > 0.0);
        let (from, to) = (
            std::fs::read(&copy.from).unwrap(),
            std::fs::read(&copy.to).unwrap(),
        );
        assert_eq!(to.len(), 1 << 20);
        assert!(from[..1 << 20] == to, "the copy differs");
    }
}
