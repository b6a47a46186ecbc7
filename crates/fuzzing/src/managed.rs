//! JSON-RPC, from the bytes of its socket to the methods that manage devices and subsystems.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bdev::managed::Devices;
use fabrics::managed::Management;
use fabrics::target::Target;
use reactor::sim::Simulation;
use reactor::time;
use rpc::{Frames, Registry, SavedCall};
use serde_json::Value;

use crate::input::Input;

/// Calls of one input, at most.
const CALLS_MAX: usize = 30;
/// Of its own time, no method takes longer than connecting does at most.
const PATIENCE: Duration = Duration::from_secs(120);

/// Registers what `redhare target` does, but for what reads and writes this machine's files outside the simulation.
struct Managed {
    registry: Registry,
    devices: Devices,
    fabrics: Management,
}

impl Managed {
    fn new() -> Self {
        let devices = Devices::new(1);
        let fabrics = Management::new(Target::new(), devices.clone(), [5; 16]);
        let mut registry = Registry::default();
        bdev::managed::add_methods(&mut registry, &devices);
        fabrics::managed::add_methods(&mut registry, &fabrics);
        Self {
            registry,
            devices,
            fabrics,
        }
    }

    fn saved(&self) -> Vec<SavedCall> {
        let mut saved = self.devices.saved();
        saved.extend(self.fabrics.saved());
        saved
    }
}

/// Key files and reservation files are the machine's own.
fn is_simulated(method: &str, params: &Value) -> bool {
    !method.starts_with("keyring_file") && params.get("ptpl_file").is_none()
}

/// Bytes as they arrive, calls one after the other; in the end, what is saved makes the same state again.
pub(crate) fn management(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let cut = 1 + input.below(200);
    let mut calls = Vec::new();
    let mut frames = Frames::default();
    'stream: for piece in input.rest().chunks(cut) {
        frames.push(piece);
        loop {
            match frames.take() {
                Ok(Some(value)) => {
                    let answer = rpc::answer(&value, |method, params| {
                        calls.push((method, params));
                        Ok(Value::Null)
                    });
                    if let Some(answer) = answer {
                        assert!(serde_json::to_vec(&answer).is_ok());
                    }
                }
                Ok(None) => break,
                Err(_) => break 'stream,
            }
        }
    }
    calls.truncate(CALLS_MAX);
    calls.retain(|(method, params)| is_simulated(method, params));
    if calls.is_empty() {
        return;
    }
    let saved = on_host(move || async move {
        let managed = Managed::new();
        for (method, params) in calls {
            let called = managed.registry.call(&method, params);
            let ended = time::timeout(PATIENCE, called).await;
            assert!(ended.is_ok(), "{method} does not end");
        }
        managed.saved()
    });
    on_host(move || async move {
        let managed = Managed::new();
        for call in &saved {
            let made = managed.registry.call(call.method, call.params.clone()).await;
            assert!(made.is_ok(), "{call:?} was saved, and gives {made:?}");
        }
        assert_eq!(
            managed.saved(),
            saved,
            "what was saved makes the same state again"
        );
    });
}

/// Runs something on a host of a world of its own to its end.
fn on_host<T: 'static, F: Future<Output = T> + 'static>(make: impl FnOnce() -> F + 'static) -> T {
    let simulation = Simulation::new(1);
    let host = simulation.add_host("target");
    let place: Rc<Cell<Option<T>>> = Rc::default();
    let result = place.clone();
    simulation.start(host, move || async move { place.set(Some(make().await)) });
    loop {
        if let Some(value) = result.take() {
            return value;
        }
        assert!(simulation.elapsed() < 60 * PATIENCE, "the calls do not end");
        simulation.run_for(Duration::from_millis(100));
    }
}
