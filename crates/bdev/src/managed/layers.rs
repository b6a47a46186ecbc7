//! Devices on devices: planted errors and delays.

use std::cell::Cell;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rpc::{Method, Registry, RpcError, SavedCall};
use serde::Deserialize;
use serde_json::json;

use super::parameters::uuid_of;
use super::sources::add_deletion;
use super::{Description, Devices, Use};
use crate::BlockDevice;
use crate::IoError;
use crate::delay::{DelayDevice, Delays};
use crate::fault::{Effect, Fault, FaultDevice, Faults, Target};

const ERROR: &str = "Error Injection Disk";
const DELAY: &str = "delay";
/// Before the base's name in an error device's name.
const ERROR_PREFIX: &str = "EE_";

/// The controls of layers, by the names of their devices. An entry outlives its device, until the name is used anew.
struct Controls<T>(RefCell<BTreeMap<String, Rc<T>>>);

impl<T> Controls<T> {
    fn new() -> Rc<Self> {
        Rc::new(Self(RefCell::default()))
    }

    fn set(&self, name: &str, control: Rc<T>) {
        self.0.borrow_mut().insert(name.to_owned(), control);
    }

    /// The controls of the device of this name, which must be of this kind.
    fn get(&self, devices: &Devices, name: &str, product: &'static str) -> Result<Rc<T>, RpcError> {
        let managed = devices.get(name)?;
        let controls = self.0.borrow();
        match controls.get(managed.name()) {
            Some(control) if managed.product == product => Ok(control.clone()),
            _ => Err(RpcError::errno(
                libc::ENODEV,
                format!(
                    "device {name} is a \"{}\" and not a \"{product}\"",
                    managed.product
                ),
            )),
        }
    }
}

pub(super) fn add(registry: &mut Registry, devices: &Devices) {
    add_error(registry, devices);
    add_delay(registry, devices);
}

/// Claims the base of a layer that will be called `name`, and goes away with it.
fn stand_on(
    devices: &Devices,
    base: &str,
    name: &str,
    claim: &'static str,
) -> Result<(Arc<dyn BlockDevice>, Use), RpcError> {
    let (own, own_name) = (Rc::downgrade(&devices.0), name.to_owned());
    let (managed, used) = devices.claim(base, claim, move || {
        if let Some(state) = own.upgrade()
            && let Err(error) = Devices(state).remove(&own_name, claim)
        {
            tracing::debug!(%error, "a layer was gone before its base");
        }
    })?;
    let (own, own_name) = (Rc::downgrade(&devices.0), name.to_owned());
    used.when_resized(move || {
        let layer = own.upgrade().and_then(|state| Devices(state).find(&own_name));
        if let Some(layer) = layer {
            layer.tell_resized();
        }
    });
    Ok((managed.device(), used))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ErrorCreate {
    base_name: String,
    uuid: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Inject {
    name: String,
    io_type: IoType,
    error_type: ErrorType,
    num: Option<u64>,
    queue_depth: Option<u64>,
    corrupt_offset: Option<usize>,
    corrupt_value: Option<u8>,
    nvme_sct: Option<u8>,
    nvme_sc: Option<u8>,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum IoType {
    Clear,
    Read,
    Write,
    Unmap,
    Flush,
    All,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum ErrorType {
    Failure,
    Pending,
    CorruptData,
    Nomem,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

fn add_error(registry: &mut Registry, devices: &Devices) {
    let controls = Controls::<Arc<Faults>>::new();
    let (own, kept) = (devices.clone(), controls.clone());
    registry.add(Method::new(&["bdev_error_create"], move |given: ErrorCreate| {
        std::future::ready(error_create(&own, &kept, &given))
    }));
    add_deletion(registry, devices, &["bdev_error_delete"], ERROR);
    let (own, kept) = (devices.clone(), controls.clone());
    registry.add(Method::new(&["bdev_error_inject_error"], move |given: Inject| {
        let faults = kept.get(&own, &given.name, ERROR);
        std::future::ready(faults.and_then(|faults| inject(&faults, &given)))
    }));
    let own = devices.clone();
    registry.add(Method::new(
        &["bdev_error_resume_pending"],
        move |given: Named| {
            let faults = controls.get(&own, &given.name, ERROR);
            std::future::ready(faults.map(|faults| {
                faults.resume();
                true
            }))
        },
    ));
}

fn error_create(
    devices: &Devices,
    controls: &Controls<Arc<Faults>>,
    given: &ErrorCreate,
) -> Result<bool, RpcError> {
    let uuid = uuid_of(given.uuid.as_deref())?;
    let base_name = devices.get(&given.base_name)?.name().to_owned();
    let name = format!("{ERROR_PREFIX}{base_name}");
    let (base, used) = stand_on(devices, &base_name, &name, ERROR)?;
    let faults = Arc::new(Faults::default());
    let shown = json!({ "error_disk": { "name": name, "base_bdev_name": base_name } });
    devices.register(Description {
        name: name.clone(),
        uuid,
        product: ERROR,
        device: Arc::new(FaultDevice::new(base, faults.clone())),
        details: Box::new(move || shown.clone()),
        saved: Box::new(move |uuid| {
            Some(SavedCall {
                method: "bdev_error_create",
                params: json!({ "base_name": base_name, "uuid": uuid }),
            })
        }),
        base: Some(used),
    })?;
    controls.set(&name, Rc::new(faults));
    Ok(true)
}

fn inject(faults: &Faults, given: &Inject) -> Result<bool, RpcError> {
    const METHOD: &str = "bdev_error_inject_error";
    RpcError::unless_usual(METHOD, "queue_depth", given.queue_depth, 0)?;
    RpcError::unless_usual(METHOD, "nvme_sct", given.nvme_sct, 0)?;
    RpcError::unless_usual(METHOD, "nvme_sc", given.nvme_sc, 0)?;
    let target = match given.io_type {
        IoType::Clear => {
            faults.clear();
            return Ok(true);
        }
        IoType::Read => Target::Reads,
        IoType::Write => Target::Writes,
        IoType::Unmap => Target::Deallocations,
        IoType::Flush => Target::Flushes,
        IoType::All => Target::All,
    };
    let effect = match given.error_type {
        ErrorType::Failure => Effect::Fail(IoError::Media),
        ErrorType::Pending => Effect::Hang,
        ErrorType::Nomem => Effect::Fail(IoError::Exhausted),
        ErrorType::CorruptData => match given.corrupt_value {
            None | Some(0) => {
                let why = "bdev_error_inject_error: corrupt_value is missing or 0, which changes nothing; use 1 to 255";
                return Err(RpcError::errno(libc::EINVAL, why));
            }
            Some(value) => Effect::Flip {
                offset: given.corrupt_offset.unwrap_or(0),
                value,
            },
        },
    };
    // What was planted for these operations before is replaced; 0 plants nothing.
    faults.remove(target);
    let times = given.num.unwrap_or(1);
    if times > 0 {
        faults.plant(Fault {
            target,
            range: None,
            skip: 0,
            times,
            effect,
        });
    }
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DelayCreate {
    base_bdev_name: String,
    name: String,
    uuid: Option<String>,
    avg_read_latency: u64,
    p99_read_latency: u64,
    avg_write_latency: u64,
    p99_write_latency: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DelayUpdate {
    delay_bdev_name: String,
    latency_type: LatencyType,
    latency_us: u64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LatencyType {
    AvgRead,
    AvgWrite,
    P99Read,
    P99Write,
}

/// A delay device's settings in microseconds, and the layer they drive.
struct Latencies {
    avg_read_us: Cell<u64>,
    p99_read_us: Cell<u64>,
    avg_write_us: Cell<u64>,
    p99_write_us: Cell<u64>,
    delays: Arc<Delays>,
}

impl Latencies {
    fn new(given: &DelayCreate) -> Rc<Self> {
        let latencies = Rc::new(Self {
            avg_read_us: Cell::new(given.avg_read_latency),
            p99_read_us: Cell::new(given.p99_read_latency),
            avg_write_us: Cell::new(given.avg_write_latency),
            p99_write_us: Cell::new(given.p99_write_latency),
            delays: Arc::new(Delays::default()),
        });
        latencies.apply();
        latencies
    }

    fn apply(&self) {
        self.delays
            .set_read(Duration::from_micros(self.avg_read_us.get()));
        self.delays
            .set_write(Duration::from_micros(self.avg_write_us.get()));
        self.delays
            .set_read_p99(Duration::from_micros(self.p99_read_us.get()));
        self.delays
            .set_write_p99(Duration::from_micros(self.p99_write_us.get()));
    }

    fn update(&self, kind: LatencyType, latency_us: u64) {
        let setting = match kind {
            LatencyType::AvgRead => &self.avg_read_us,
            LatencyType::AvgWrite => &self.avg_write_us,
            LatencyType::P99Read => &self.p99_read_us,
            LatencyType::P99Write => &self.p99_write_us,
        };
        setting.set(latency_us);
        self.apply();
    }
}

fn add_delay(registry: &mut Registry, devices: &Devices) {
    let controls = Controls::<Latencies>::new();
    let (own, kept) = (devices.clone(), controls.clone());
    registry.add(Method::new(&["bdev_delay_create"], move |given: DelayCreate| {
        std::future::ready(delay_create(&own, &kept, given))
    }));
    add_deletion(registry, devices, &["bdev_delay_delete"], DELAY);
    let own = devices.clone();
    registry.add(Method::new(
        &["bdev_delay_update_latency"],
        move |given: DelayUpdate| {
            let latencies = controls.get(&own, &given.delay_bdev_name, DELAY);
            std::future::ready(latencies.map(|latencies| {
                latencies.update(given.latency_type, given.latency_us);
                true
            }))
        },
    ));
}

fn delay_create(
    devices: &Devices,
    controls: &Controls<Latencies>,
    given: DelayCreate,
) -> Result<String, RpcError> {
    for (kind, avg_us, p99_us) in [
        ("read", given.avg_read_latency, given.p99_read_latency),
        ("write", given.avg_write_latency, given.p99_write_latency),
    ] {
        if p99_us < avg_us {
            let why = format!(
                "bdev_delay_create: p99_{kind}_latency is {p99_us} us, less than the average of {avg_us} us; make it at \
                 least that"
            );
            return Err(RpcError::errno(libc::EINVAL, why));
        }
    }
    let uuid = uuid_of(given.uuid.as_deref())?;
    let base_name = devices.get(&given.base_bdev_name)?.name().to_owned();
    let (base, used) = stand_on(devices, &base_name, &given.name, DELAY)?;
    let latencies = Latencies::new(&given);
    let device = DelayDevice::new(base, latencies.delays.clone(), devices.0.next_number.get());
    let (shown, saved) = (latencies.clone(), latencies.clone());
    let describe = move |latencies: &Latencies, name: &str| {
        json!({
            "name": name,
            "base_bdev_name": base_name,
            "avg_read_latency": latencies.avg_read_us.get(),
            "p99_read_latency": latencies.p99_read_us.get(),
            "avg_write_latency": latencies.avg_write_us.get(),
            "p99_write_latency": latencies.p99_write_us.get(),
        })
    };
    let (describe_saved, name, name_saved) = (describe.clone(), given.name.clone(), given.name.clone());
    let managed = devices.register(Description {
        name: given.name,
        uuid,
        product: DELAY,
        device: Arc::new(device),
        details: Box::new(move || json!({ "delay": describe(&shown, &name) })),
        saved: Box::new(move |uuid| {
            let mut params = describe_saved(&saved, &name_saved);
            params["uuid"] = json!(uuid);
            Some(SavedCall {
                method: "bdev_delay_create",
                params,
            })
        }),
        base: Some(used),
    })?;
    controls.set(managed.name(), latencies);
    Ok(managed.name().to_owned())
}
