//! Other copies of a volume's blocks, for a reader that found damage in one.

use std::rc::Rc;

use bdev::{Channel, Data, Geometry, Operation, Request};
use packfs::CopySelector;
use volume::client::VolumeChannel;

/// After damage on one copy the next is asked.
pub struct Copies {
    channel: Rc<VolumeChannel>,
}

impl Copies {
    /// The copies behind a channel.
    pub fn new(channel: Rc<VolumeChannel>) -> Self {
        Self { channel }
    }
}

impl CopySelector for Copies {
    fn channel(&self, attempt: u32) -> Option<Rc<dyn Channel>> {
        (attempt <= self.channel.copies()).then(|| {
            let channel = self.channel.clone();
            Rc::new(OneCopy { channel, attempt }) as Rc<dyn Channel>
        })
    }
}

/// Reads that prefer another copy; everything else as ever.
struct OneCopy {
    channel: Rc<VolumeChannel>,
    attempt: u32,
}

impl Channel for OneCopy {
    fn geometry(&self) -> Geometry {
        self.channel.geometry()
    }

    fn submit(&self, request: Request) {
        if request.operation != Operation::Read {
            return self.channel.submit(request);
        }
        let (channel, attempt) = (self.channel.clone(), self.attempt);
        drop(reactor::spawn(async move {
            let Request { lba, data, token, .. } = request;
            let (status, buffer) = channel.read_avoiding(lba, data.into_read(), attempt).await;
            token.complete(status, Data::Into(buffer));
        }));
    }
}
