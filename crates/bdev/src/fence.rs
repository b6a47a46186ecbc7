//! A layer that keeps a writer's token for a device that keeps none, as the nodes of a volume do.
//!
//! The token lives in memory. That is enough for a device that one process has to itself (a locked file): when the
//! process has ended, none of its writes is on its way any more, and the next one begins without a writer.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foundation::{BlockCount, Lba};

use crate::device::{Channel, Geometry};
use crate::error::IoError;
use crate::request::{Completion, Operation, Request, Sink, Token};

/// How often a fence looks whether writes begun before it have ended.
const LOOK_EVERY: Duration = Duration::from_micros(100);

#[derive(Default)]
struct State {
    token: AtomicU64,
    /// Writes that were let through and have not ended.
    under_way: AtomicU64,
}

/// What the channels of one device share. See the module.
#[derive(Clone, Default)]
pub struct TokenKeeper(Arc<State>);

impl TokenKeeper {
    /// No writer yet: every write is let through.
    pub fn new() -> Self {
        Self::default()
    }

    /// A layer over one core's channel.
    pub fn over(&self, inner: Rc<dyn Channel>) -> Rc<dyn Channel> {
        Rc::new_cyclic(|this| Fenced {
            inner,
            state: self.0.clone(),
            under_way: RefCell::default(),
            this: this.clone(),
        })
    }
}

struct Fenced {
    inner: Rc<dyn Channel>,
    state: Arc<State>,
    /// The tokens of writes under way, by tag, and the free places among them.
    under_way: RefCell<(Vec<Option<Token>>, Vec<usize>)>,
    this: Weak<Fenced>,
}

impl Fenced {
    fn keep(&self, token: Token) -> u64 {
        let (places, free) = &mut *self.under_way.borrow_mut();
        let at = free.pop().unwrap_or_else(|| {
            places.push(None);
            places.len() - 1
        });
        places[at] = Some(token);
        at as u64
    }

    /// Counted before it looks at the token, so that a fence that raises it in between sees the count.
    fn write(&self, request: Request, writer_token: u64) {
        self.state.under_way.fetch_add(1, Ordering::SeqCst);
        if writer_token < self.state.token.fetch_max(writer_token, Ordering::SeqCst) {
            self.state.under_way.fetch_sub(1, Ordering::SeqCst);
            return request.complete(Err(IoError::Fenced));
        }
        let sink = self.this.upgrade().expect("the caller holds the channel");
        let Request {
            operation,
            lba,
            blocks,
            data,
            metadata,
            fence,
            trace,
            token,
        } = request;
        let token = Token::new(sink, self.keep(token));
        self.inner.submit(Request {
            operation,
            lba,
            blocks,
            data,
            metadata,
            fence,
            trace,
            token,
        });
    }

    fn fence(&self, request: Request, writer_token: u64) {
        if let Err(error) = self.geometry().check_range(request.lba, request.blocks) {
            return request.complete(Err(error));
        }
        if writer_token < self.state.token.fetch_max(writer_token, Ordering::SeqCst) {
            return request.complete(Err(IoError::Fenced));
        }
        let state = self.state.clone();
        drop(reactor::spawn(async move {
            while state.under_way.load(Ordering::SeqCst) > 0 {
                reactor::time::sleep(LOOK_EVERY).await;
            }
            request.complete(Ok(()));
        }));
    }
}

impl Channel for Fenced {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn lends(&self) -> bool {
        self.inner.lends()
    }

    fn will_read(&self, lba: Lba, blocks: BlockCount) {
        self.inner.will_read(lba, blocks);
    }

    fn submit(&self, request: Request) {
        let writer_token = request.fence.map_or(0, |fence| fence.writer_token);
        match request.operation {
            Operation::Read | Operation::Flush | Operation::Compare => self.inner.submit(request),
            Operation::Write { .. }
            | Operation::WriteZeroes { .. }
            | Operation::Deallocate
            | Operation::CompareAndWrite { .. } => {
                self.write(request, writer_token);
            }
            Operation::Fence => self.fence(request, writer_token),
        }
    }
}

impl Sink for Fenced {
    fn complete(&self, tag: u64, completion: Completion) {
        let token = {
            let (places, free) = &mut *self.under_way.borrow_mut();
            let at = usize::try_from(tag).expect("tags are places in memory");
            free.push(at);
            places[at].take().expect("a request completes once")
        };
        self.state.under_way.fetch_sub(1, Ordering::SeqCst);
        token.complete(completion.status, completion.data);
    }
}
