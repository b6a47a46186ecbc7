//! Single-threaded tasks. A task is polled only by the thread that spawned it; its waker may be
//! used from anywhere.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use slab::Slab;

use crate::context;
use crate::usage::Books;

/// Tasks that live and die together: one simulated process. Real reactors have one group.
pub(crate) type Group = u32;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskId {
    index: u32,
    generation: u32,
}

struct Task {
    /// Absent while the task is being polled.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    waker: Waker,
    own: Arc<TaskWaker>,
    group: Group,
}

/// A piece of work sent from another thread.
pub(crate) type Injected = Box<dyn FnOnce() + Send>;

/// What other threads may touch.
pub(crate) struct Shared {
    remote: Mutex<Remote>,
    has_remote: AtomicBool,
    asleep: AtomicBool,
    wake_thread: Box<dyn Fn() + Send + Sync>,
    /// Tells this reactor from others of the process.
    pub(crate) index: u32,
    pub(crate) books: Books,
    /// The kernel's number of the thread that runs the reactor; 0 where there is none of its own.
    pub(crate) thread_id: AtomicU32,
}

#[derive(Default)]
struct Remote {
    woken: Vec<TaskId>,
    injected: Vec<Injected>,
}

impl Shared {
    fn remote(&self) -> std::sync::MutexGuard<'_, Remote> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.has_remote.store(true, Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst) {
            (self.wake_thread)();
        }
    }

    pub(crate) fn inject(&self, work: Injected) {
        self.remote().injected.push(work);
        self.notify();
    }

    /// Announces that the thread is about to sleep; false if there is work after all.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if self.has_remote.load(Ordering::SeqCst) {
            self.asleep.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    pub(crate) fn has_remote(&self) -> bool {
        self.has_remote.load(Ordering::Relaxed)
    }
}

struct TaskWaker {
    id: TaskId,
    shared: Arc<Shared>,
    queued: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let local = context::try_with(|context| {
            let own = Arc::ptr_eq(&context.executor.shared, &self.shared);
            if own {
                context.executor.ready.borrow_mut().push_back(self.id);
            }
            own
        });
        if local != Some(true) {
            self.shared.remote().woken.push(self.id);
            self.shared.notify();
        }
    }
}

pub(crate) struct Executor {
    tasks: RefCell<Slab<Task>>,
    ready: RefCell<VecDeque<TaskId>>,
    generation: Cell<u32>,
    current_group: Cell<Group>,
    /// Groups whose tasks are not polled, and the tasks that became ready meanwhile.
    paused: RefCell<BTreeMap<Group, Vec<TaskId>>>,
    pub(crate) shared: Arc<Shared>,
}

impl Executor {
    pub(crate) fn new(index: u32, wake_thread: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            tasks: RefCell::new(Slab::new()),
            ready: RefCell::new(VecDeque::new()),
            generation: Cell::new(0),
            current_group: Cell::new(0),
            paused: RefCell::default(),
            shared: Arc::new(Shared {
                remote: Mutex::default(),
                has_remote: AtomicBool::new(false),
                asleep: AtomicBool::new(false),
                wake_thread: Box::new(wake_thread),
                index,
                books: Books::default(),
                thread_id: AtomicU32::new(0),
            }),
        }
    }

    pub(crate) fn spawn(&self, group: Group, future: Pin<Box<dyn Future<Output = ()>>>) -> TaskId {
        let generation = self.generation.get();
        self.generation.set(generation.wrapping_add(1));
        let mut tasks = self.tasks.borrow_mut();
        let entry = tasks.vacant_entry();
        let id = TaskId {
            index: u32::try_from(entry.key()).expect("fewer than 2^32 tasks fit in memory"),
            generation,
        };
        let own = Arc::new(TaskWaker {
            id,
            shared: self.shared.clone(),
            queued: AtomicBool::new(true),
        });
        entry.insert(Task {
            future: Some(future),
            waker: own.clone().into(),
            own,
            group,
        });
        self.ready.borrow_mut().push_back(id);
        id
    }

    /// The group of the task being polled, or the one set for work outside tasks.
    pub(crate) fn current_group(&self) -> Group {
        self.current_group.get()
    }

    /// Runs `work` as if a task of `group` did it.
    pub(crate) fn in_group<T>(&self, group: Group, work: impl FnOnce() -> T) -> T {
        let before = self.current_group.replace(group);
        let result = work();
        self.current_group.set(before);
        result
    }

    /// Tasks waiting for their turn.
    pub(crate) fn ready_count(&self) -> usize {
        self.ready.borrow().len()
    }

    /// Takes in what other threads sent.
    pub(crate) fn accept_remote(&self) {
        if !self.shared.has_remote.load(Ordering::Relaxed) {
            return;
        }
        self.shared.has_remote.store(false, Ordering::SeqCst);
        let remote = std::mem::take(&mut *self.shared.remote());
        self.ready.borrow_mut().extend(remote.woken);
        for work in remote.injected {
            work();
        }
    }

    /// Polls up to `most` tasks, in the order they became ready.
    pub(crate) fn run_ready(&self, most: usize) {
        for _ in 0..most {
            let Some(id) = self.ready.borrow_mut().pop_front() else {
                return;
            };
            self.poll_task(id);
        }
    }

    /// Polls the ready task that `choose` picks out of so many; false if none is ready.
    pub(crate) fn run_chosen(&self, choose: impl FnOnce(usize) -> usize) -> bool {
        let id = {
            let mut ready = self.ready.borrow_mut();
            if ready.is_empty() {
                return false;
            }
            let chosen = choose(ready.len());
            ready.swap_remove_front(chosen)
        };
        if let Some(id) = id {
            self.poll_task(id);
        }
        true
    }

    fn poll_task(&self, id: TaskId) {
        let (mut future, waker) = {
            let mut tasks = self.tasks.borrow_mut();
            let Some(task) = tasks.get_mut(id.index as usize) else {
                return;
            };
            if task.own.id != id {
                return;
            }
            if let Some(waiting) = self.paused.borrow_mut().get_mut(&task.group) {
                waiting.push(id);
                return;
            }
            task.own.queued.store(false, Ordering::Release);
            let Some(future) = task.future.take() else { return };
            self.current_group.set(task.group);
            (future, task.waker.clone())
        };
        let done = future
            .as_mut()
            .poll(&mut TaskContext::from_waker(&waker))
            .is_ready();
        let unwanted = {
            let mut tasks = self.tasks.borrow_mut();
            match tasks.get_mut(id.index as usize) {
                Some(task) if task.own.id == id && !done => {
                    task.future = Some(future);
                    None
                }
                Some(task) if task.own.id == id => Some((Some(tasks.remove(id.index as usize)), future)),
                _ => Some((None, future)),
            }
        };
        // Dropping a task's parts may wake or spawn others: no borrow is held here.
        drop(unwanted);
        self.current_group.set(0);
    }

    /// Stops polling the tasks of `group`.
    pub(crate) fn pause(&self, group: Group) {
        self.paused.borrow_mut().entry(group).or_default();
    }

    /// Polls the tasks of `group` again.
    pub(crate) fn resume(&self, group: Group) {
        let waiting = self.paused.borrow_mut().remove(&group).unwrap_or_default();
        self.ready.borrow_mut().extend(waiting);
    }

    /// Drops one task wherever it stands; nothing if it has ended.
    pub(crate) fn kill(&self, id: TaskId) {
        let task = {
            let mut tasks = self.tasks.borrow_mut();
            match tasks.get(id.index as usize) {
                Some(task) if task.own.id == id => Some(tasks.remove(id.index as usize)),
                _ => None,
            }
        };
        drop(task);
    }

    /// Drops every task of `group`, or of all groups.
    pub(crate) fn kill_group(&self, group: Option<Group>) {
        loop {
            let next = {
                let tasks = self.tasks.borrow();
                tasks
                    .iter()
                    .find(|(_, task)| group.is_none_or(|g| g == task.group))
                    .map(|(_, task)| task.own.id)
            };
            match next {
                Some(id) => self.kill(id),
                None => return,
            }
        }
    }
}

struct JoinState<T> {
    result: Option<T>,
    waker: Option<Waker>,
    ended: bool,
}

/// Waits for a task's result. Dropping it lets the task go on; [`JoinHandle::abort`] ends it.
pub struct JoinHandle<T> {
    state: Rc<RefCell<JoinState<T>>>,
    id: TaskId,
}

impl<T> JoinHandle<T> {
    /// Ends the task at its present await point and drops all it owns. No effect once it has ended.
    pub fn abort(&self) {
        // Where no reactor runs any more, neither does the task.
        context::try_with(|context| context.executor.kill(self.id));
    }

    /// Whether the task has ended, by itself or by [`JoinHandle::abort`].
    pub fn is_finished(&self) -> bool {
        self.state.borrow().ended
    }
}

impl<T> Future for JoinHandle<T> {
    /// `None` if the task was aborted.
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<T>> {
        let mut state = self.state.borrow_mut();
        if state.ended {
            return Poll::Ready(state.result.take());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Tells the handle however the task ends.
struct Finish<T>(Rc<RefCell<JoinState<T>>>);

impl<T> Drop for Finish<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.borrow_mut();
            state.ended = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Starts a task on this thread's reactor. It runs until it ends, its handle aborts it, or the
/// reactor stops.
///
/// # Panics
/// Outside a reactor.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    let state = Rc::new(RefCell::new(JoinState {
        result: None,
        waker: None,
        ended: false,
    }));
    let finish = Finish(state.clone());
    let task = async move {
        let finish = finish;
        let result = future.await;
        finish.0.borrow_mut().result = Some(result);
    };
    let id = context::with(|context| {
        let group = context.executor.current_group();
        context.executor.spawn(group, Box::pin(task))
    });
    JoinHandle { state, id }
}
