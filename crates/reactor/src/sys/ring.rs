//! One io_uring, used by one thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use foundation::Instant;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use slab::Slab;

use super::operation::{Ended, Operation, Received, Resources, Slot, State, Stream};
use super::receive_ring::{GROUP, ReceiveChunk, ReceiveRing};
use super::wake::WakeFd;
use super::{file, thread};

/// Completions of cancel requests: nobody waits for them.
const CANCEL: u64 = u64::MAX;
/// Completions of the wake descriptor's read.
const WAKE: u64 = u64::MAX - 1;
/// A stream whose reader lets so many chunks lie is stopped until they are taken.
const STREAM_QUEUE_MAX: usize = 8;
/// So many queued entries go to the kernel when a disk operation is among them, whatever else the turn has to do.
const DISK_QUEUE_MAX: usize = 2;
/// So many ended disk operations are handed on in one turn. What follows from them, such as answers on a socket, goes to the
/// kernel before the next ones are looked at: handed on all at once they would wait for each other there, and the disk for
/// the requests that the answers bring (docs/benchmarks.md, "What a volume costs a reader").
const HANDED_PER_TURN: usize = 8;

pub(crate) struct RingConfig {
    pub(crate) entries: u32,
    pub(crate) receive_buffers: u16,
    pub(crate) receive_buffer_bytes: usize,
}

// Fields drop in this order: the ring before the memory it knows.
pub(crate) struct Ring {
    uring: RefCell<IoUring>,
    slots: RefCell<Slab<Slot>>,
    receive: ReceiveRing,
    wake: WakeFd,
    wake_count: Box<Cell<u64>>,
    woken: RefCell<Vec<Waker>>,
    /// Operations that have ended and are to be handed on.
    handed: RefCell<VecDeque<(Ended, i32, Resources)>>,
    /// Streams whose reader is slower than its peer: stopped, so that they cannot take all receive buffers.
    overfull: RefCell<Vec<usize>>,
}

impl Ring {
    pub(crate) fn new(config: &RingConfig, wake: WakeFd) -> io::Result<Rc<Self>> {
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_clamp()
            .setup_cqsize(config.entries.saturating_mul(4))
            .build(config.entries)?;
        let receive = ReceiveRing::new(config.receive_buffers, config.receive_buffer_bytes)?;
        receive.register(&uring)?;
        let ring = Rc::new(Self {
            uring: RefCell::new(uring),
            slots: RefCell::new(Slab::with_capacity(256)),
            receive,
            wake,
            wake_count: Box::new(Cell::new(0)),
            woken: RefCell::default(),
            handed: RefCell::default(),
            overfull: RefCell::default(),
        });
        ring.arm_wake();
        Ok(ring)
    }

    pub(crate) fn now(&self) -> Instant {
        thread::now()
    }

    pub(super) fn receive(&self) -> &ReceiveRing {
        &self.receive
    }

    fn arm_wake(&self) {
        let place = self.wake_count.as_ptr().cast();
        let fd = types::Fd(self.wake.descriptor());
        self.push(opcode::Read::new(fd, place, 8).build().user_data(WAKE));
    }

    /// Queues an entry; it reaches the kernel with the next turn, or at once if the queue is full.
    fn push(&self, entry: squeue::Entry) {
        let mut uring = self.uring.borrow_mut();
        loop {
            // SAFETY: every entry points only at memory that lives until its last completion: a slot's
            // resources, the boxed wake count, or the receive ring; `Ring` drains before it drops.
            if unsafe { uring.submission().push(&entry) }.is_ok() {
                return;
            }
            match uring.submit() {
                Ok(_) => {}
                // The completion queue is full or memory is short: the kernel took nothing. Completions
                // wait in the kernel until the next turn; try again until it takes entries.
                Err(error) if is_transient(&error) => {}
                Err(error) => panic!("the kernel refused to take submissions: {error}"),
            }
        }
    }

    /// Starts an operation whose memory and descriptor are in `resources`.
    pub(crate) fn submit(self: &Rc<Self>, entry: squeue::Entry, resources: Resources) -> Operation {
        let index = self
            .slots
            .borrow_mut()
            .insert(Slot::new(State::Single { result: None }, resources));
        self.push(entry.user_data(index as u64));
        Operation::new(self.clone(), index)
    }

    /// As [`Ring::submit`], for what a disk does: it should not stand idle while this turn prepares its other work, which
    /// is worth a system call for each few operations (docs/benchmarks.md, "Where a file's time goes").
    pub(crate) fn submit_to_disk(self: &Rc<Self>, entry: squeue::Entry, resources: Resources) -> Operation {
        let operation = self.submit(entry, resources);
        self.hurry();
        operation
    }

    /// As [`Ring::submit_to_disk`]; `ended` is called when the operation has ended, from the turn that sees it.
    pub(super) fn begin_on_disk(&self, entry: squeue::Entry, resources: Resources, ended: Ended) {
        let slot = Slot::new(State::Handed { ended }, resources);
        let index = self.slots.borrow_mut().insert(slot);
        self.push(entry.user_data(index as u64));
        self.hurry();
    }

    /// Hands what is queued to the kernel if it is enough for a system call of its own.
    fn hurry(&self) {
        let mut uring = self.uring.borrow_mut();
        if uring.submission().len() >= DISK_QUEUE_MAX
            && let Err(error) = uring.submit()
        {
            // What is queued stays queued, and goes with the turn.
            assert!(is_transient(&error), "io_uring_enter failed: {error}");
        }
    }

    /// Starts a receive that goes on until an error, the end of the stream, or a shortage of buffers.
    pub(crate) fn receive_stream(self: &Rc<Self>, fd: &Rc<OwnedFd>) -> Stream {
        let state = State::Stream {
            queue: Default::default(),
            armed: true,
        };
        let slot = Slot::new(state, Resources::Descriptor(fd.clone()));
        let index = self.slots.borrow_mut().insert(slot);
        self.push(
            opcode::RecvMulti::new(file(fd), GROUP)
                .build()
                .user_data(index as u64),
        );
        Stream {
            ring: self.clone(),
            index,
        }
    }

    /// Takes the next received bytes if they have arrived; ends and errors are left for `poll_next`.
    pub(crate) fn peek_stream(&self, stream: &Stream) -> Option<Received> {
        let mut slots = self.slots.borrow_mut();
        match &mut slots.get_mut(stream.index)?.state {
            State::Stream { queue, .. } if queue.front()?.result > 0 => queue.pop_front(),
            _ => None,
        }
    }

    pub(crate) fn chunk(self: &Rc<Self>, received: Received) -> Option<ReceiveChunk> {
        let id = received.buffer?;
        Some(ReceiveChunk::new(
            self.clone(),
            id,
            usize::try_from(received.result).unwrap_or(0),
        ))
    }

    fn cancel(&self, index: usize) {
        {
            let mut slots = self.slots.borrow_mut();
            let Some(slot) = slots.get_mut(index) else { return };
            if slot.cancelled {
                return;
            }
            slot.cancelled = true;
        }
        self.push(opcode::AsyncCancel::new(index as u64).build().user_data(CANCEL));
    }

    /// Asks the kernel to end whatever it has been asked of this open file; each operation says itself how it ended.
    pub(crate) fn cancel_file(&self, fd: &OwnedFd) {
        let all = types::CancelBuilder::fd(file(fd)).all();
        self.push(opcode::AsyncCancel2::new(all).build().user_data(CANCEL));
    }

    pub(super) fn take_result(&self, index: usize, waker: &Waker) -> Option<(i32, Resources)> {
        let mut slots = self.slots.borrow_mut();
        let slot = slots
            .get_mut(index)
            .expect("an operation's slot lives until its result is taken");
        match slot.state {
            State::Single { result: Some(result) } => {
                let slot = slots.remove(index);
                Some((
                    result,
                    slot.resources.expect("resources stay until the result is taken"),
                ))
            }
            _ => {
                slot.waker = Some(waker.clone());
                None
            }
        }
    }

    pub(super) fn poll_stream(&self, index: usize, waker: &Waker) -> Poll<Option<Received>> {
        let mut slots = self.slots.borrow_mut();
        let slot = slots
            .get_mut(index)
            .expect("a stream's slot lives as long as the stream");
        let State::Stream { queue, armed } = &mut slot.state else {
            unreachable!("a stream's slot holds a stream")
        };
        match queue.pop_front() {
            Some(received) => Poll::Ready(Some(received)),
            None if !*armed => Poll::Ready(None),
            None => {
                slot.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    /// The one who waited is gone: cancel, and let the last completion clear the slot.
    pub(super) fn abandon(&self, index: usize) {
        let ended = {
            let mut slots = self.slots.borrow_mut();
            let Some(slot) = slots.get_mut(index) else { return };
            slot.abandoned = true;
            slot.waker = None;
            match &mut slot.state {
                State::Single { result } => result.is_some(),
                State::Handed { .. } => unreachable!("nobody holds what is handed on"),
                State::Stream { queue, armed } => {
                    for id in queue.drain(..).filter_map(|received| received.buffer) {
                        self.receive.give_back(id);
                    }
                    !*armed
                }
            }
        };
        if ended {
            let slot = self.slots.borrow_mut().remove(index);
            if let (State::Single { result: Some(result) }, Some(resources)) = (&slot.state, &slot.resources)
            {
                close_unwanted(resources, *result);
            }
            drop(slot);
        } else {
            self.cancel(index);
        }
    }

    /// Hands queued entries to the kernel and takes in completions without waiting. True if
    /// anything completed.
    pub(crate) fn turn(&self) -> bool {
        {
            let mut uring = self.uring.borrow_mut();
            let submission = uring.submission();
            let (queued, flagged) = (submission.len(), submission.taskrun() || submission.cq_overflow());
            drop(submission);
            if queued == 0 && !flagged && uring.completion().is_empty() && self.handed.borrow().is_empty() {
                return false;
            }
            let queued = u32::try_from(queued).expect("the submission queue is small");
            // SAFETY: no signal mask is passed; the queued entries were checked when pushed.
            let entered = unsafe {
                uring
                    .submitter()
                    .enter::<libc::sigset_t>(queued, 0, GETEVENTS, None)
            };
            if let Err(error) = entered {
                assert!(is_transient(&error), "io_uring_enter failed: {error}");
            }
        }
        self.collect()
    }

    /// As [`Ring::turn`], but sleeps until something completes or `limit` has passed.
    pub(crate) fn wait(&self, limit: Option<Duration>) {
        {
            let uring = self.uring.borrow();
            let timespec = limit.map(types::Timespec::from);
            let mut arguments = types::SubmitArgs::new();
            if let Some(timespec) = &timespec {
                arguments = arguments.timespec(timespec);
            }
            if let Err(error) = uring.submitter().submit_with_args(1, &arguments) {
                let expired = error.raw_os_error() == Some(libc::ETIME);
                assert!(expired || is_transient(&error), "io_uring_enter failed: {error}");
            }
        }
        self.collect();
    }

    fn collect(&self) -> bool {
        let mut any = false;
        let mut wake_rang = false;
        {
            let mut uring = self.uring.borrow_mut();
            let mut slots = self.slots.borrow_mut();
            let mut woken = self.woken.borrow_mut();
            for completion in uring.completion() {
                any = true;
                match completion.user_data() {
                    CANCEL => {}
                    WAKE => wake_rang = true,
                    index => self.complete(&mut slots, &mut woken, index, &completion),
                }
            }
        }
        if wake_rang {
            self.arm_wake();
        }
        while let Some(index) = self.overfull.borrow_mut().pop() {
            self.cancel(index);
        }
        // Wakers and those who are handed something run without any borrow held.
        for _ in 0..HANDED_PER_TURN {
            let next = self.handed.borrow_mut().pop_front();
            let Some((ended, result, resources)) = next else {
                break;
            };
            any = true;
            ended(result, resources);
        }
        let mut woken = std::mem::take(&mut *self.woken.borrow_mut());
        for waker in woken.drain(..) {
            waker.wake();
        }
        *self.woken.borrow_mut() = woken;
        any
    }

    fn complete(&self, slots: &mut Slab<Slot>, woken: &mut Vec<Waker>, index: u64, entry: &cqueue::Entry) {
        let index = usize::try_from(index).expect("user data is a slab index");
        let last = !cqueue::more(entry.flags());
        let buffer = cqueue::buffer_select(entry.flags());
        let slot = slots
            .get_mut(index)
            .expect("a slot stays until its last completion");
        if slot.abandoned {
            if let Some(id) = buffer {
                self.receive.give_back(id);
            }
            let resources = slot.resources.as_ref();
            close_unwanted(resources.expect("resources stay with the slot"), entry.result());
            if last {
                slots.remove(index);
            }
            return;
        }
        match &mut slot.state {
            State::Single { result } => *result = Some(entry.result()),
            State::Handed { .. } => {
                let slot = slots.remove(index);
                if let (State::Handed { ended }, Some(resources)) = (slot.state, slot.resources) {
                    self.handed
                        .borrow_mut()
                        .push_back((ended, entry.result(), resources));
                }
                return;
            }
            State::Stream { queue, armed } => {
                queue.push_back(Received {
                    result: entry.result(),
                    buffer,
                });
                *armed = !last;
                if *armed && !slot.cancelled && queue.len() >= STREAM_QUEUE_MAX {
                    self.overfull.borrow_mut().push(index);
                }
            }
        }
        woken.extend(slot.waker.take());
    }

    /// Cancels what is in flight and waits for the kernel to let go of it, for at most two seconds.
    /// True if it did.
    pub(crate) fn drain(&self) -> bool {
        let indexes: Vec<usize> = self.slots.borrow().iter().map(|(index, _)| index).collect();
        for index in indexes {
            self.cancel(index);
        }
        let deadline = self.now() + Duration::from_secs(2);
        loop {
            self.turn();
            let in_flight = self.slots.borrow().iter().any(|(_, slot)| match &slot.state {
                State::Single { result } => result.is_none(),
                State::Handed { .. } => true,
                State::Stream { armed, .. } => *armed,
            });
            let pending = in_flight || !self.handed.borrow().is_empty();
            if !pending {
                return true;
            }
            if self.now() >= deadline {
                return false;
            }
            self.wait(Some(Duration::from_millis(10)));
        }
    }
}

const GETEVENTS: u32 = 1; // IORING_ENTER_GETEVENTS

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
    )
}

/// Whether this kernel lets us make a ring as [`Ring::new`] wants it.
pub(crate) fn probe() -> io::Result<()> {
    let config = RingConfig {
        entries: 8,
        receive_buffers: 1,
        receive_buffer_bytes: 4096,
    };
    Ring::new(&config, WakeFd::new()?).map(drop)
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring({})", self.uring.borrow().as_raw_fd())
    }
}

/// Closes a connection that was accepted and that nobody waits for any more.
fn close_unwanted(resources: &Resources, result: i32) {
    if let (Resources::Accept(_), Ok(fd)) = (resources, super::check(result)) {
        drop(super::wake::own(fd.cast_signed()));
    }
}
