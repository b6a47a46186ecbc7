//! The yardstick for file systems: threads that open, read and close local files, one file after another.
//!
//! A thread does what a loader does that has a path: open, ask for the length, read all of it into memory it has
//! already, close. The threads live as long as the readers, so that their processor time can be counted.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use reactor::mailbox::{Mailbox, MailboxSender, mailbox};

/// Bytes of a large file that are read at once.
pub const READ_AT_ONCE: usize = 4 << 20;

/// A file and the length it must have.
#[derive(Clone, Debug)]
pub struct LocalFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its length in bytes.
    pub size_bytes: u64,
}

/// A file could not be read, or is another than before.
#[derive(Debug, thiserror::Error)]
pub enum LocalReadError {
    /// The system's answer.
    #[error("{path}: {source}; the directory must stay as it is while it is measured")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It has another length.
    #[error(
        "{path}: has {found} bytes and not {expected}; the directory must stay as it is while it is measured"
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Bytes that were read.
        found: u64,
        /// Bytes that were expected.
        expected: u64,
    },
    /// A thread is gone.
    #[error("a reading thread has ended; measure again")]
    Thread,
}

/// What reading some files took.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// From the start of the first to the end of the last, in seconds.
    pub seconds: f64,
    /// Bytes that were read.
    pub bytes: u64,
    /// How long each file took, in microseconds.
    pub latencies_us: Vec<u32>,
}

/// Files in an order, which the threads share out among themselves.
struct Share {
    files: Arc<Vec<LocalFile>>,
    order: Vec<usize>,
    next: AtomicUsize,
}

type Part = Result<(Instant, u64, Vec<u32>), LocalReadError>;

/// See the module. The threads end when it is dropped.
pub struct LocalReaders {
    files: Arc<Vec<LocalFile>>,
    requests: Vec<Sender<Arc<Share>>>,
    parts: Mailbox<Part>,
}

impl LocalReaders {
    /// Starts `count` threads, which will read some of `files`.
    pub fn start(files: Vec<LocalFile>, count: usize) -> io::Result<Self> {
        let (sender, parts) = mailbox(count.max(1));
        let mut requests = Vec::with_capacity(count);
        for _ in 0..count {
            let (request, shares) = channel();
            let sender = sender.clone();
            let thread = std::thread::Builder::new().name("local reader".to_owned());
            thread.spawn(move || serve(&shares, &sender))?;
            requests.push(request);
        }
        let files = Arc::new(files);
        Ok(Self {
            files,
            requests,
            parts,
        })
    }

    /// Reads the files of these indices, in this order, with all threads.
    ///
    /// # Errors
    /// The first failure, after all threads have stopped.
    pub async fn read(&mut self, order: &[usize]) -> Result<Reading, LocalReadError> {
        let share = Arc::new(Share {
            files: self.files.clone(),
            order: order.to_vec(),
            next: AtomicUsize::new(0),
        });
        let begun = Instant::now();
        for request in &self.requests {
            request.send(share.clone()).map_err(|_| LocalReadError::Thread)?;
        }
        let (mut ended, mut bytes, mut failure) = (begun, 0, None);
        let mut latencies_us = Vec::with_capacity(order.len());
        for _ in &self.requests {
            match self.parts.recv().await.ok_or(LocalReadError::Thread)? {
                Ok((end, read, latencies)) => {
                    ended = ended.max(end);
                    bytes += read;
                    latencies_us.extend(latencies);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(Reading {
                seconds: (ended - begun).as_secs_f64(),
                bytes,
                latencies_us,
            }),
        }
    }
}

fn serve(shares: &Receiver<Arc<Share>>, parts: &MailboxSender<Part>) {
    let mut memory = Vec::new();
    while let Ok(share) = shares.recv() {
        // The mailbox has room for a part of each thread.
        if parts.try_send(take_part(&share, &mut memory)).is_err() {
            return;
        }
    }
}

fn take_part(share: &Share, memory: &mut Vec<u8>) -> Part {
    let mut bytes = 0;
    let mut latencies = Vec::with_capacity(share.order.len() / 4);
    while let Some(&index) = share.order.get(share.next.fetch_add(1, Ordering::Relaxed)) {
        let LocalFile { path, size_bytes } = &share.files[index];
        let begun = Instant::now();
        let found = read_whole(path, memory).map_err(|source| LocalReadError::Io {
            path: path.clone(),
            source,
        })?;
        latencies.push(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX));
        if found != *size_bytes {
            return Err(LocalReadError::Changed {
                path: path.clone(),
                found,
                expected: *size_bytes,
            });
        }
        bytes += found;
    }
    Ok((Instant::now(), bytes, latencies))
}

/// Reads a file to its end as it is when opened; how many bytes it has.
fn read_whole(path: &Path, memory: &mut Vec<u8>) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let room = usize::try_from(length).map_or(READ_AT_ONCE, |length| length.min(READ_AT_ONCE));
    if memory.len() < room {
        memory.resize(room, 0);
    }
    let mut done = 0;
    while done < length {
        let left = usize::try_from(length - done).map_or(READ_AT_ONCE, |left| left.min(READ_AT_ONCE));
        let count = file.read(&mut memory[..left])?;
        if count == 0 {
            break;
        }
        done += count as u64;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_files_and_see_what_changed() {
        let directory = tempfile::tempdir().unwrap();
        let files: Vec<LocalFile> = (0..50)
            .map(|number| {
                let path = directory.path().join(number.to_string());
                std::fs::write(&path, vec![7; number * 100]).unwrap();
                LocalFile {
                    path,
                    size_bytes: number as u64 * 100,
                }
            })
            .collect();
        let (count, last) = (files.len(), files[49].path.clone());
        reactor::run(&reactor::Config::default(), async {
            let mut readers = LocalReaders::start(files, 4).unwrap();
            let order: Vec<usize> = (0..count).rev().collect();
            for _ in 0..2 {
                let reading = readers.read(&order).await.unwrap();
                assert_eq!(reading.latencies_us.len(), count);
                assert_eq!(reading.bytes, (0..50).sum::<u64>() * 100);
                assert!(reading.seconds > 0.0);
            }
            std::fs::write(&last, "short").unwrap();
            let error = readers.read(&order).await.unwrap_err().to_string();
            assert!(error.contains("has 5 bytes and not 4900"), "{error}");
            let reading = readers.read(&[1, 1, 2]).await.unwrap();
            assert_eq!(reading.bytes, 400, "the threads go on after a failure");
        })
        .unwrap();
    }
}
