//! How a mount ends: what serves it by itself stops, and nothing that changes the file system stops in the middle.

use std::rc::Rc;
use std::time::Duration;

use reactor::JoinHandle;

use crate::shared::Shared;

/// Ends tasks that may change the file system, and gives back what they and all others shared, once the last one has let go of it.
///
/// A commit that is given up in the middle leaves the file system half changed: content that is in the index and on no volume, or content that was taken
/// out of memory and is nowhere. So they are ended while nobody changes anything.
pub(crate) async fn end(shared: Rc<Shared>, tasks: impl IntoIterator<Item = JoinHandle<()>>) -> Shared {
    let quiet = shared.source.change().await;
    for task in tasks {
        task.abort();
    }
    drop(quiet);
    alone(shared).await
}

/// Waits until the last task has let go of what they share.
pub(crate) async fn alone(mut shared: Rc<Shared>) -> Shared {
    loop {
        shared = match Rc::try_unwrap(shared) {
            Ok(shared) => return shared,
            Err(shared) => shared,
        };
        // All that runs still is bounded by what the device bounds.
        reactor::time::sleep(Duration::from_millis(1)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use bdev::fence::TokenKeeper;
    use bdev::memory::MemoryDevice;
    use bdev::{BlockDevice, Channel, Geometry, Operation, Request};
    use foundation::BlockCount;
    use packfs::files::{FileOptions, FileSystem, NewInode};
    use packfs::lease::memory::LocalLeases;
    use packfs::{
        Attributes, FormatOptions, InodeNumber, Medium, Reader, ReaderOptions, Timestamp, VerifyOptions,
        verify,
    };

    use crate::shared::Caching;
    use crate::source::Source;

    /// A device whose writes take their time.
    struct Slow(Rc<dyn Channel>);

    impl Channel for Slow {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }

        fn submit(&self, request: Request) {
            let device = self.0.clone();
            drop(reactor::spawn(async move {
                if let Operation::Write { .. } = request.operation {
                    reactor::time::sleep(Duration::from_micros(300)).await;
                }
                device.submit(request);
            }));
        }
    }

    /// Files are written, and the mount ends so long after a commit began.
    async fn ends_after(pause: Duration) {
        const FILES: u8 = 40;
        let device = MemoryDevice::new(4096, BlockCount(16_384)).unwrap();
        let slow = Rc::new(Slow(device.open_channel().unwrap()));
        let medium = Medium::new(TokenKeeper::new().over(slow));
        let leases = Rc::new(LocalLeases::new());
        let formatted = FormatOptions {
            root: Attributes {
                mode: 0o755,
                ..Attributes::default()
            },
            ..FormatOptions::default()
        };
        packfs::format(medium.clone(), leases.clone(), "a test", &formatted)
            .await
            .unwrap();
        let opened = FileSystem::open(medium.clone(), leases.clone(), &FileOptions::default()).await;
        let mut files = opened.unwrap();
        let (now, new) = (
            Timestamp::default(),
            NewInode {
                mode: 0o644,
                uid: 0,
                gid: 0,
            },
        );
        let content = |file: u8| vec![file + 1; 300_000 + usize::from(file)];
        for file in 0..FILES {
            let made = files
                .create(InodeNumber::ROOT, &[b'a' + file], new, now)
                .await
                .unwrap();
            files.write(made.number, 0, &content(file), now).await.unwrap();
        }
        let shared = Rc::new(Shared::new(Source::Writing(Box::new(files)), Caching::Writer));
        let committing = {
            let shared = shared.clone();
            reactor::spawn(async move {
                loop {
                    shared.commit().await.unwrap();
                    reactor::time::sleep(Duration::from_secs(5)).await;
                }
            })
        };
        reactor::time::sleep(pause).await;
        let shared = end(shared, [committing]).await;
        let Source::Writing(mut files) = shared.source.into_inner() else {
            unreachable!("it was written all the time");
        };
        files
            .commit()
            .await
            .unwrap_or_else(|error| panic!("after {pause:?}: {error}"));
        files.close().await.unwrap();
        let report = verify(&medium, leases.clone(), &VerifyOptions::default())
            .await
            .unwrap();
        assert!(report.is_clean(), "after {pause:?}: {:#?}", report.problems);
        let reader = Reader::open(medium, leases, &ReaderOptions::default())
            .await
            .unwrap();
        for file in 0..FILES {
            let opened = reader.open_file(&[b'a' + file]).await.unwrap();
            let found = reader.read(&opened, 0, 1 << 20).await.unwrap().to_vec();
            assert!(found == content(file), "after {pause:?}: file {file}");
        }
        reader.close().await.unwrap();
    }

    #[test]
    fn a_mount_that_ends_in_the_middle_of_a_commit_loses_nothing() {
        let ended = reactor::run(&reactor::Config::default(), async {
            for step in 0..24 {
                ends_after(Duration::from_micros(step * 700)).await;
            }
        });
        ended.unwrap();
    }
}
