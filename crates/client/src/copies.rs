//! Other copies of a volume's blocks, for a reader that found damage in one.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use bdev::{Channel, Data, Geometry, Operation, Request};
use packfs::{CopyRound, CopySelector};
use volume::client::{Round, VolumeChannel};

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
    fn begin(&self) -> Box<dyn CopyRound> {
        let (channel, round) = (self.channel.clone(), Rc::new(self.channel.round()));
        Box::new(InTurn { channel, round })
    }
}

/// One copy after the other, in the order of each chunk's configuration, and then some mixtures of them for the pieces of a range.
struct InTurn {
    channel: Rc<VolumeChannel>,
    round: Rc<Round>,
}

impl CopyRound for InTurn {
    fn channel(&self, attempt: u32) -> Option<Rc<dyn Channel>> {
        let turn = attempt.checked_sub(1)?;
        (turn < self.round.turns()).then(|| {
            let (channel, round) = (self.channel.clone(), self.round.clone());
            Rc::new(OneCopy { channel, round, turn }) as Rc<dyn Channel>
        })
    }

    fn has_heard_all(&self) -> Pin<Box<dyn Future<Output = bool>>> {
        let round = self.round.clone();
        Box::pin(async move { round.has_heard_all().await })
    }
}

/// Reads that ask one copy first; everything else as ever.
struct OneCopy {
    channel: Rc<VolumeChannel>,
    round: Rc<Round>,
    turn: u32,
}

impl Channel for OneCopy {
    fn geometry(&self) -> Geometry {
        self.channel.geometry()
    }

    fn submit(&self, request: Request) {
        if request.operation != Operation::Read {
            return self.channel.submit(request);
        }
        let (round, turn) = (self.round.clone(), self.turn);
        drop(reactor::spawn(async move {
            let Request { lba, data, token, .. } = request;
            let (status, buffer) = round.read(lba, data.into_read(), turn).await;
            token.complete(status, Data::Into(buffer));
        }));
    }
}
