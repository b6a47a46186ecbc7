//! The owner of a state that is shared: what it does when the store is slow, gone, or did only half.

use std::rc::Rc;

use protocols::nvme::reservation::{AcquireAction, ChangePersistence, RegisterAction, ReservationType};
use reactor::sim::Simulation;

use super::super::shared::StoreFuture;
use super::*;
use crate::target::{HostRights, Hosts};

const ONE: HostId = [1; 16];
const TWO: HostId = [2; 16];

#[derive(Clone, Copy, Default)]
struct Faults {
    /// It does not answer at all.
    silent: bool,
    /// Nothing can be put in force.
    enforces_nothing: bool,
    /// Putting in force takes as long as it may.
    enforces_slowly: bool,
}

/// What all targets share.
#[derive(Default)]
struct Store {
    state: Mutex<SharedReservations>,
    faults: Mutex<Faults>,
    enforced: AtomicU32,
}

impl Store {
    fn fail(&self, faults: Faults) {
        *self.faults.lock().unwrap() = faults;
    }
}

/// One target's way to it.
struct Way(Arc<Store>);

impl Way {
    fn state(&self) -> Result<SharedReservations, StoreUnavailable> {
        if self.0.faults.lock().unwrap().silent {
            return Err(StoreUnavailable("silent".to_owned()));
        }
        Ok(self.0.state.lock().unwrap().clone())
    }
}

impl ReservationStore for Way {
    fn read(&self) -> StoreFuture<SharedReservations> {
        let found = self.state();
        Box::pin(async move {
            time::sleep(Duration::from_millis(1)).await;
            found
        })
    }

    fn replace(
        &self,
        expected: u64,
        next: SharedReservations,
        restricts: bool,
    ) -> StoreFuture<Option<SharedReservations>> {
        let replaced = self.state().map(|before| {
            let token = before.token + u64::from(restricts);
            let next = SharedReservations {
                token,
                in_force: before.in_force && !restricts,
                ..next
            };
            (before.version == expected).then(|| {
                *self.0.state.lock().unwrap() = next.clone();
                next
            })
        });
        Box::pin(std::future::ready(replaced))
    }

    fn enforce(&self, token: u64, limit: Duration) -> StoreFuture<()> {
        let store = self.0.clone();
        Box::pin(async move {
            let faults = *store.faults.lock().unwrap();
            if faults.enforces_slowly {
                time::sleep(limit * 2).await;
            }
            if faults.silent || faults.enforces_nothing {
                return Err(StoreUnavailable("not every chunk".to_owned()));
            }
            store.enforced.fetch_add(1, Ordering::Relaxed);
            let mut state = store.state.lock().unwrap();
            state.in_force |= state.token == token;
            Ok(())
        })
    }
}

struct World {
    store: Arc<Store>,
    subsystem: Arc<Subsystem>,
}

impl World {
    fn new() -> Self {
        let store = Arc::new(Store::default());
        store.state.lock().unwrap().in_force = true;
        let nqn = "nqn.2014-08.org.example:shared".parse().unwrap();
        let subsystem = Subsystem::new(nqn, "1", "test", Hosts::Any);
        Self { store, subsystem }
    }

    fn target(&self) -> Arc<Owner> {
        Owner::sharing(1, Arc::new(Way(self.store.clone())))
    }

    async fn register(&self, owner: &Arc<Owner>, host: HostId) -> Result<Outcome, Failure> {
        let change = Change::Register {
            action: RegisterAction::Register,
            ignore_existing_key: false,
            current: 0,
            new: key(host),
            persistence: ChangePersistence::Keep,
        };
        owner.change(&self.subsystem, host, change).await
    }

    async fn acquire(
        &self,
        owner: &Arc<Owner>,
        host: HostId,
        action: AcquireAction,
        preempt: u64,
    ) -> Result<Outcome, Failure> {
        let change = Change::Acquire {
            action,
            kind: ReservationType::WriteExclusive,
            current: key(host),
            preempt,
        };
        owner.change(&self.subsystem, host, change).await
    }
}

fn key(host: HostId) -> u64 {
    100 + u64::from(host[0])
}

const CONFLICT: Result<Outcome, Failure> = Err(Failure::Refused(Refusal::Conflict));

#[test]
fn nobody_has_rights_before_it_is_known_what_others_agreed_on() {
    Simulation::new(1).run(async {
        let world = World::new();
        let owner = world.target();
        let rights = HostRights::new(owner.clone(), ONE);
        assert_eq!((rights.token(false), rights.token(true)), (None, None));
        assert!(!owner.is_in_force());
        world.store.fail(Faults {
            silent: true,
            ..Faults::default()
        });
        assert!(!rights.refresh().await);
        assert_eq!((rights.token(false), rights.token(true)), (None, None));
        world.store.fail(Faults::default());
        assert!(rights.refresh().await);
        assert_eq!((rights.token(false), rights.token(true)), (Some(0), Some(0)));
        assert!(owner.is_in_force());
    });
}

#[test]
fn a_change_that_counts_and_was_not_answered_is_answered_when_it_is_repeated() {
    Simulation::new(2).run(async {
        let world = World::new();
        let (first, second) = (world.target(), world.target());
        world.register(&first, ONE).await.unwrap();
        world.register(&second, TWO).await.unwrap();
        world
            .acquire(&first, ONE, AcquireAction::Acquire, 0)
            .await
            .unwrap();
        world.store.fail(Faults {
            enforces_nothing: true,
            ..Faults::default()
        });
        let preempt = || world.acquire(&second, TWO, AcquireAction::Preempt, key(ONE));
        for _ in 0..2 {
            assert_eq!(preempt().await, Err(Failure::Unavailable));
            assert!(!second.is_in_force());
        }
        world.store.fail(Faults::default());
        // By the other target as well, as a host does whose path is gone.
        for owner in [&second, &first] {
            let repeated = world.acquire(owner, TWO, AcquireAction::Preempt, key(ONE)).await;
            assert!(repeated.is_ok(), "{repeated:?}");
            assert!(owner.is_in_force());
            assert!(owner.published().holds(&TWO));
        }
        // Another one that does not agree is refused, as is this one once something has come after it.
        assert_eq!(
            world.acquire(&first, ONE, AcquireAction::Acquire, 0).await,
            CONFLICT
        );
        world.register(&first, [3; 16]).await.unwrap();
        assert_eq!(preempt().await, CONFLICT);
    });
}

#[test]
fn every_change_ends_in_its_time_also_behind_one_that_hangs() {
    Simulation::new(3).run(async {
        let world = Rc::new(World::new());
        let owner = world.target();
        world.register(&owner, ONE).await.unwrap();
        world.register(&owner, TWO).await.unwrap();
        world.store.fail(Faults {
            enforces_slowly: true,
            ..Faults::default()
        });
        let begun = time::now();
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let (world, owner) = (world.clone(), owner.clone());
                spawn(async move { world.acquire(&owner, ONE, AcquireAction::Acquire, 0).await })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), Err(Failure::Unavailable));
        }
        let took = time::now().since(begun);
        assert!(took <= CHANGE_LIMIT + Duration::from_secs(1), "{took:?}");
        assert!(!owner.settle().await);
        world.store.fail(Faults::default());
        assert!(owner.settle().await && owner.is_in_force());
        assert!(owner.published().holds(&ONE));
        // It is in force: nothing has to be done for who asks again.
        let enforced = world.store.enforced.load(Ordering::Relaxed);
        assert!(owner.settle().await);
        assert!(
            world
                .acquire(&owner, ONE, AcquireAction::Acquire, 0)
                .await
                .is_ok()
        );
        assert_eq!(world.store.enforced.load(Ordering::Relaxed), enforced);
    });
}

#[test]
fn one_change_is_told_from_every_other() {
    let change = |current, new| Change::Register {
        action: RegisterAction::Replace,
        ignore_existing_key: false,
        current,
        new,
        persistence: ChangePersistence::Keep,
    };
    let acquire = |action| Change::Acquire {
        action,
        kind: ReservationType::WriteExclusive,
        current: 1,
        preempt: 2,
    };
    let digests = [
        change(1, 2).digest(&ONE),
        change(1, 2).digest(&TWO),
        change(2, 1).digest(&ONE),
        acquire(AcquireAction::Preempt).digest(&ONE),
        acquire(AcquireAction::PreemptAndAbort).digest(&ONE),
        Change::Persist(true).digest(&ONE),
        Change::Persist(false).digest(&ONE),
    ];
    let different: std::collections::BTreeSet<u64> = digests.into_iter().collect();
    assert_eq!(different.len(), digests.len());
    // The same in every release: portals of two share a state. Computed apart from this.
    assert_eq!(change(1, 2).digest(&ONE), 0x409b_11eb_4a36_a82c);
}
