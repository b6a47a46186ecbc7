//! Keeps a fused Compare-and-Write whole: while it runs, no other command changes the namespace.
//!
//! One gate for each namespace and core. Commands that change blocks pass it, reads do not. It closes for the whole
//! namespace, not for a range: fused commands are rare (cluster file systems take their locks with them), and a
//! command that changes blocks then costs two counter steps instead of a search.
//!
//! A fused command closes the gates of all cores: it takes its turn in the namespace's [`Line`], asks each other core to
//! close its own, and goes when all have said that nothing is inside. Only it pays for that; a gate's counters are its
//! core's own.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak as WeakRc};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use reactor::CoreHandle;
use reactor::mailbox::{Mailbox, MailboxSender, mailbox};
use reactor::sync::Notify;

use super::subsystem::Namespace;

/// See the module.
#[derive(Default)]
pub(super) struct Gate {
    /// Commands inside that change blocks.
    changing: Cell<u32>,
    exclusive: Cell<bool>,
    /// Tickets of those who wait, in order.
    waiting: RefCell<VecDeque<u64>>,
    next_ticket: Cell<u64>,
    moved: Notify,
    line: Place,
}

/// A gate's place among those of its namespace, given up when dropped.
#[derive(Default)]
struct Place(Arc<Line>);

/// The gates of one namespace on all cores, and who of those that run fused commands is next.
#[derive(Default)]
struct Line(Mutex<LineState>);

#[derive(Default)]
struct LineState {
    /// A fused command runs or closes the gates: a gate that is made now begins closed.
    held: bool,
    /// Fused commands that wait.
    waiting: VecDeque<MailboxSender<()>>,
    /// The cores that have a gate.
    cores: Vec<CoreHandle>,
}

impl LineState {
    /// Lets the next fused command go.
    fn pass_on(&mut self) {
        while let Some(next) = self.waiting.pop_front() {
            if next.try_send(()).is_ok() {
                return;
            }
            // It has given up.
        }
        self.held = false;
    }

    /// The cores other than this one that have a gate.
    fn others(&self) -> Vec<CoreHandle> {
        let others = self.cores.iter().filter(|core| !core.is_current());
        others.cloned().collect()
    }
}

thread_local! {
    static GATES: RefCell<Vec<(Weak<Namespace>, WeakRc<Gate>)>> = const { RefCell::new(Vec::new()) };
}

/// The lines of the namespaces that have gates. Locked when queues open namespaces, never for I/O.
static LINES: Mutex<Vec<(Weak<Namespace>, Weak<Line>)>> = Mutex::new(Vec::new());

impl Line {
    fn of(namespace: &Arc<Namespace>) -> Arc<Self> {
        let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|(of, line)| of.strong_count() > 0 && line.strong_count() > 0);
        let found = lines
            .iter()
            .find(|(of, _)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(namespace)))
            .and_then(|(_, line)| line.upgrade());
        found.unwrap_or_else(|| {
            let line = Arc::<Self>::default();
            lines.push((Arc::downgrade(namespace), Arc::downgrade(&line)));
            line
        })
    }

    fn state(&self) -> MutexGuard<'_, LineState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other fused command runs on the namespace.
    async fn take(self: Arc<Self>) -> Held {
        let turn = {
            let mut state = self.state();
            if std::mem::replace(&mut state.held, true) {
                let (sender, turn) = mailbox(1);
                state.waiting.push_back(sender);
                Some(turn)
            } else {
                None
            }
        };
        if let Some(turn) = turn {
            let mut turn = Turn {
                line: self.clone(),
                turn: Some(turn),
            };
            turn.come().await;
        }
        Held {
            line: self,
            replies: Vec::new(),
        }
    }

    /// This core's gate.
    fn gate(&self) -> Option<Rc<Gate>> {
        GATES.with(|gates| {
            let gates = gates.borrow();
            let mut alive = gates.iter().filter_map(|(_, gate)| gate.upgrade());
            alive.find(|gate| std::ptr::eq(Arc::as_ptr(&gate.line.0), self))
        })
    }
}

/// A place in the line.
struct Turn {
    line: Arc<Line>,
    turn: Option<Mailbox<()>>,
}

impl Turn {
    async fn come(&mut self) {
        if let Some(turn) = &mut self.turn {
            // The sender stays in the line until it has sent.
            turn.recv().await;
        }
        self.turn = None;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(mut turn) = self.turn.take() else { return };
        // Who gives up may have been let go at that moment; nobody lets go while the line is locked.
        let mut state = self.line.state();
        let let_go = turn.try_recv().is_some();
        drop(turn);
        if let_go {
            state.pass_on();
        }
    }
}

/// The line is ours; given up when dropped, after the other cores' gates.
struct Held {
    line: Arc<Line>,
    replies: Vec<Mailbox<()>>,
}

impl Held {
    /// Asks the other cores to close their gates.
    fn ask_others(&mut self) {
        let others = self.line.state().others();
        for core in others {
            let (reply, closed) = mailbox(1);
            self.replies.push(closed);
            let line = self.line.clone();
            core.spawn(move || async move {
                // Where there is no gate, nothing is inside; one that is made now begins closed.
                // A gate that is closed here began so: whoever closed it before has opened it before this came.
                if let Some(gate) = line.gate().filter(|gate| !gate.exclusive.get()) {
                    gate.turn(|| gate.changing.get() == 0).await;
                    if reply.is_closed() {
                        return;
                    }
                    gate.exclusive.set(true);
                }
                // Who asked may have given up.
                let _ = reply.try_send(());
            });
        }
    }

    async fn others_closed(&mut self) {
        for reply in &mut self.replies {
            // A core that ends without an answer has nothing inside any more.
            reply.recv().await;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // First, so that a gate that has not closed yet stays open.
        self.replies.clear();
        // In one step with letting the next go: a gate that is made in between would begin closed, and nobody would open it.
        let mut state = self.line.state();
        for core in state.others() {
            let line = self.line.clone();
            // Opened at once where it arrives: before a later request to close can run there.
            core.spawn(move || {
                if let Some(gate) = line.gate() {
                    gate.open();
                }
                std::future::ready(())
            });
        }
        state.pass_on();
    }
}

impl Gate {
    /// This core's gate of a namespace.
    pub(super) fn of(namespace: &Arc<Namespace>) -> Rc<Self> {
        GATES.with(|gates| {
            let mut gates = gates.borrow_mut();
            gates.retain(|(of, gate)| of.strong_count() > 0 && gate.strong_count() > 0);
            let found = gates
                .iter()
                .find(|(of, _)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(namespace)))
                .and_then(|(_, gate)| gate.upgrade());
            found.unwrap_or_else(|| {
                let gate = Rc::new(Self::in_line(Line::of(namespace)));
                gates.push((Arc::downgrade(namespace), Rc::downgrade(&gate)));
                gate
            })
        })
    }

    fn in_line(line: Arc<Line>) -> Self {
        let held = {
            let mut state = line.state();
            state.cores.push(CoreHandle::current());
            state.held
        };
        let gate = Self {
            line: Place(line),
            ..Self::default()
        };
        gate.exclusive.set(held);
        gate
    }

    fn open(&self) {
        self.exclusive.set(false);
        self.moved.notify();
    }

    /// Lets a command that changes blocks in, unless it must wait.
    pub(super) fn try_enter(&self) -> bool {
        let open = !self.exclusive.get() && self.waiting.borrow().is_empty();
        if open {
            self.changing.set(self.changing.get() + 1);
        }
        open
    }

    /// A command that was let in has ended.
    pub(super) fn leave(&self) {
        self.changing.set(self.changing.get() - 1);
        if !self.waiting.borrow().is_empty() {
            self.moved.notify();
        }
    }

    /// As [`Gate::try_enter`], waiting behind those that wait already.
    pub(super) async fn enter(&self) {
        self.turn(|| !self.exclusive.get()).await;
        self.changing.set(self.changing.get() + 1);
        // The next may go in as well.
        self.moved.notify();
    }

    /// Waits until nothing changes the namespace, on any core, and keeps it so while the guard lives.
    pub(super) async fn close(self: Rc<Self>) -> Closed {
        let mut held = self.line.0.clone().take().await;
        held.ask_others();
        self.turn(|| !self.exclusive.get() && self.changing.get() == 0)
            .await;
        self.exclusive.set(true);
        let mut closed = Closed {
            gate: self,
            others: held,
        };
        closed.others.others_closed().await;
        closed
    }

    async fn turn(&self, admissible: impl Fn() -> bool) {
        let ticket = Ticket::take(self);
        self.moved
            .until(|| self.waiting.borrow().front() == Some(&ticket.number) && admissible())
            .await;
    }
}

/// A place in the line, given up when the wait is dropped.
struct Ticket<'a> {
    gate: &'a Gate,
    number: u64,
}

impl<'a> Ticket<'a> {
    fn take(gate: &'a Gate) -> Self {
        let number = gate.next_ticket.get();
        gate.next_ticket.set(number + 1);
        gate.waiting.borrow_mut().push_back(number);
        Self { gate, number }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.gate
            .waiting
            .borrow_mut()
            .retain(|number| *number != self.number);
        self.gate.moved.notify();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if let Some(index) = state.cores.iter().position(CoreHandle::is_current) {
            state.cores.swap_remove(index);
        }
    }
}

/// Closed gates; they open when this is dropped, this core's first.
pub(super) struct Closed {
    gate: Rc<Gate>,
    others: Held,
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.gate.open();
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<T>(future: &mut std::pin::Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn nothing_changes_while_the_gate_is_closed_and_nobody_overtakes() {
        let gate = Rc::<Gate>::default();
        assert!(gate.try_enter() && gate.try_enter());
        let mut closing = Box::pin(gate.clone().close());
        assert!(poll(&mut closing).is_pending());
        assert!(!gate.try_enter(), "who closes waits first");
        let mut entering = Box::pin(gate.enter());
        assert!(poll(&mut entering).is_pending());
        gate.leave();
        assert!(poll(&mut closing).is_pending());
        gate.leave();
        let Poll::Ready(closed) = poll(&mut closing) else {
            panic!("nothing is inside");
        };
        assert!(!gate.try_enter());
        assert!(poll(&mut entering).is_pending());
        drop(closed);
        assert!(poll(&mut entering).is_ready());
        gate.leave();
        assert!(gate.try_enter());
    }

    #[test]
    fn who_gives_up_leaves_the_line() {
        let gate = Rc::<Gate>::default();
        assert!(gate.try_enter());
        let mut closing = Box::pin(gate.clone().close());
        assert!(poll(&mut closing).is_pending());
        drop(closing);
        assert!(gate.try_enter());
    }
}
