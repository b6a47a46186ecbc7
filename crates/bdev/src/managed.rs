//! Devices by name, for the people and tools that make and look at them while the target runs.
//!
//! A [`Devices`] belongs to one reactor. Each device in it is wrapped by a throttle and by counters. Who stands on one
//! opens it by name and is told when it goes away, as with a disk that is pulled out. [`add_methods`] registers what
//! SPDK calls `bdev_*`; `docs/spdk-compatibility.md` says how they compare.

mod histograms;
mod layers;
mod parameters;
mod queries;
mod sizes;
mod sources;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use foundation::Random;
use foundation::uuid::format_uuid;
use reactor::sync::Notify;
use rpc::{Registry, RpcError, SavedCall};
use serde_json::Value;

use crate::counted::CountedDevice;
use crate::device::{BlockDevice, OpenError};
use crate::throttle::{Limits, Rates, ThrottleDevice};

pub use parameters::uuid_of;

/// Longest name of a device, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Says what only a device's kind has to say: an object, read anew each time.
pub type Details = Box<dyn Fn() -> Value>;
/// Says what makes a device again, given its UUID; `None` if another device's call does.
pub type Save = Box<dyn Fn(&str) -> Option<SavedCall>>;

/// What a device is to be registered as.
pub struct Description {
    /// By which it is found.
    pub name: String,
    /// `None` for a random one.
    pub uuid: Option<[u8; 16]>,
    /// What kind it is, for people.
    pub product: &'static str,
    /// The blocks.
    pub device: Arc<dyn BlockDevice>,
    /// See the type.
    pub details: Details,
    /// See the type.
    pub saved: Save,
    /// What it stands on, to be let go with it.
    pub base: Option<Use>,
}

/// A device of the registry.
pub struct Managed {
    name: String,
    uuid: [u8; 16],
    product: &'static str,
    device: Arc<CountedDevice>,
    limits: Arc<Limits>,
    details: Details,
    saved: Save,
    number: u64,
    users: RefCell<Vec<User>>,
    next_user: Cell<u64>,
    base: RefCell<Option<Use>>,
    sizable: RefCell<Option<sizes::Sizable>>,
}

struct User {
    number: u64,
    claim: &'static str,
    removed: Rc<dyn Fn()>,
    resized: Option<Rc<dyn Fn()>>,
}

impl Managed {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its identity.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// That it is of the kind that a method is for.
    fn check_kind(&self, product: &'static str) -> Result<(), RpcError> {
        if self.product == product {
            return Ok(());
        }
        Err(RpcError::errno(
            libc::ENODEV,
            format!(
                "device {} is a \"{}\" and not a \"{product}\"; use its own kind's method",
                self.name, self.product
            ),
        ))
    }

    /// Its blocks, counted and within the limits.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }

    /// Tells who uses it that its size is another now.
    fn tell_resized(&self) {
        let told: Vec<_> = self
            .users
            .borrow()
            .iter()
            .filter_map(|user| user.resized.clone())
            .collect();
        for resized in told {
            resized();
        }
    }

    /// Who alone may write to it, if anybody has claimed it.
    pub fn claimed_by(&self) -> Option<&'static str> {
        self.users.borrow().first().map(|user| user.claim)
    }
}

/// A device in use, by one that alone may write to it. Dropping it gives it back.
pub struct Use {
    managed: Weak<Managed>,
    number: u64,
}

impl Use {
    /// Calls this each time the device has got another size, from now on.
    pub fn when_resized(&self, resized: impl Fn() + 'static) {
        if let Some(managed) = self.managed.upgrade() {
            let mut users = managed.users.borrow_mut();
            if let Some(user) = users.iter_mut().find(|user| user.number == self.number) {
                user.resized = Some(Rc::new(resized));
            }
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(managed) = self.managed.upgrade() {
            managed
                .users
                .borrow_mut()
                .retain(|user| user.number != self.number);
        }
    }
}

struct State {
    by_name: RefCell<BTreeMap<String, Rc<Managed>>>,
    next_number: Cell<u64>,
    changed: Notify,
    random: RefCell<Random>,
}

/// See the module. Clones are the same registry.
#[derive(Clone)]
pub struct Devices(Rc<State>);

impl Devices {
    /// An empty registry; UUIDs follow from `seed`, which must therefore be random where devices are to outlive it.
    pub fn new(seed: u64) -> Self {
        Self(Rc::new(State {
            by_name: RefCell::default(),
            next_number: Cell::new(0),
            changed: Notify::new(),
            random: RefCell::new(Random::from_seed(seed)),
        }))
    }

    /// Adds a device. An error if its name or UUID is taken or no name.
    pub fn register(&self, new: Description) -> Result<Rc<Managed>, RpcError> {
        let name = new.name;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(RpcError::errno(
                libc::EINVAL,
                format!(
                    "a device's name has {} bytes; choose one of 1 to {NAME_BYTES_MAX}",
                    name.len()
                ),
            ));
        }
        if self.find(&name).is_some() {
            return Err(RpcError::errno(
                libc::EEXIST,
                format!("there is a device called {name} already; delete it first, or choose another name"),
            ));
        }
        let uuid = new.uuid.unwrap_or_else(|| self.random_uuid());
        if let Some(other) = self.find(&format_uuid(&uuid)) {
            return Err(RpcError::errno(
                libc::EEXIST,
                format!(
                    "device {} has the UUID {} already; choose another, or leave it out",
                    other.name,
                    format_uuid(&uuid)
                ),
            ));
        }
        let limits = Arc::new(Limits::default());
        let throttled = ThrottleDevice::new(new.device, limits.clone());
        let managed = Rc::new(Managed {
            name: name.clone(),
            uuid,
            product: new.product,
            device: Arc::new(CountedDevice::new(Arc::new(throttled))),
            limits,
            details: new.details,
            saved: new.saved,
            number: self.0.next_number.get(),
            users: RefCell::default(),
            next_user: Cell::new(0),
            base: RefCell::new(new.base),
            sizable: RefCell::default(),
        });
        self.0.next_number.set(managed.number + 1);
        self.0.by_name.borrow_mut().insert(name, managed.clone());
        self.0.changed.notify();
        Ok(managed)
    }

    /// A name that is free: the prefix and the smallest number.
    pub fn free_name(&self, prefix: &str) -> String {
        let mut names = (0..).map(|number: u64| format!("{prefix}{number}"));
        let free = names.find(|name| self.find(name).is_none());
        free.expect("there are fewer devices than numbers")
    }

    fn random_uuid(&self) -> [u8; 16] {
        let mut uuid = [0; 16];
        self.0.random.borrow_mut().fill(&mut uuid);
        // RFC 9562: version 4 (random), variant 10b.
        uuid[6] = uuid[6] & 0x0f | 0x40;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        uuid
    }

    /// The device of this name or UUID.
    pub fn find(&self, name: &str) -> Option<Rc<Managed>> {
        let by_name = self.0.by_name.borrow();
        if let Some(managed) = by_name.get(name) {
            return Some(managed.clone());
        }
        let uuid = foundation::uuid::parse_uuid(name)?;
        by_name.values().find(|managed| managed.uuid == uuid).cloned()
    }

    /// The same, with an error for people.
    pub fn get(&self, name: &str) -> Result<Rc<Managed>, RpcError> {
        self.find(name).ok_or_else(|| {
            RpcError::errno(
                libc::ENODEV,
                format!("there is no device called {name}; bdev_get_bdevs lists what there is"),
            )
        })
    }

    /// All devices in the order in which they were made.
    pub fn all(&self) -> Vec<Rc<Managed>> {
        let mut all: Vec<_> = self.0.by_name.borrow().values().cloned().collect();
        all.sort_by_key(|managed| managed.number);
        all
    }

    /// Claims a device. `removed` is called once if the device is removed meanwhile; it must drop the [`Use`]. An error
    /// if there is no such device or another has claimed it.
    pub fn claim(
        &self,
        name: &str,
        claim: &'static str,
        removed: impl Fn() + 'static,
    ) -> Result<(Rc<Managed>, Use), RpcError> {
        let managed = self.get(name)?;
        if let Some(other) = managed.claimed_by() {
            return Err(RpcError::errno(
                libc::EPERM,
                format!("device {name} is in use by {other}; remove that first, or use another device"),
            ));
        }
        let number = managed.next_user.get();
        managed.next_user.set(number + 1);
        managed.users.borrow_mut().push(User {
            number,
            claim,
            removed: Rc::new(removed),
            resized: None,
        });
        let used = Use {
            managed: Rc::downgrade(&managed),
            number,
        };
        Ok((managed, used))
    }

    /// Removes a device of this kind, and tells who uses it.
    pub fn remove(&self, name: &str, product: &'static str) -> Result<(), RpcError> {
        let managed = self.get(name)?;
        managed.check_kind(product)?;
        // First, so that whoever is told does not find it any more.
        self.0.by_name.borrow_mut().remove(&managed.name);
        let told: Vec<_> = managed
            .users
            .borrow()
            .iter()
            .map(|user| user.removed.clone())
            .collect();
        for removed in told {
            removed();
        }
        drop(managed.base.take());
        self.0.changed.notify();
        Ok(())
    }

    /// The calls that make these devices again, in order.
    pub fn saved(&self) -> Vec<SavedCall> {
        let mut calls = Vec::new();
        for managed in self.all() {
            calls.extend((managed.saved)(&format_uuid(&managed.uuid)));
            let rates = managed.limits.rates();
            if rates != Rates::default() {
                calls.push(queries::saved_limits(&managed.name, rates));
            }
        }
        calls
    }
}

/// What an open that failed is to a caller of ours.
fn open_failed(error: &OpenError) -> RpcError {
    let number = match error {
        OpenError::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        OpenError::Unusable { .. } => libc::EINVAL,
    };
    RpcError::errno(number, error.to_string())
}

/// Registers the methods that work on `devices`. They must be called on the reactor to which it belongs.
pub fn add_methods(registry: &mut Registry, devices: &Devices) {
    sources::add(registry, devices);
    layers::add(registry, devices);
    queries::add(registry, devices);
    histograms::add(registry, devices);
    sizes::add(registry, devices);
}
