//! How much the log says.

use std::cell::Cell;
use std::rc::Rc;

use rpc::{Method, NoParameters, Registry, RpcError};
use serde::{Deserialize, Serialize};

/// SPDK's levels, each with everything above it. The log has one for all that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LogLevel {
    /// Failures.
    Error,
    /// What may become one.
    Warning,
    /// What an operator wants to know; the level at the start.
    Notice,
    /// Details.
    Info,
    /// Everything.
    Debug,
}

/// Makes the log say more or less; the error says why it could not.
pub type SetLogLevel = Box<dyn Fn(LogLevel) -> Result<(), String>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetLevel {
    level: LogLevel,
}

/// SPDK has a level for the system's log and one for the terminal. We write to the terminal only, so they are one.
pub(super) fn add(registry: &mut Registry, set_level: SetLogLevel) {
    let level = Rc::new(Cell::new(LogLevel::Notice));
    let set_level = Rc::new(set_level);
    let setters: [&'static [&'static str]; 2] = [&["log_set_level"], &["log_set_print_level"]];
    for names in setters {
        let (level, set_level) = (level.clone(), set_level.clone());
        registry.add(Method::new(names, move |given: SetLevel| {
            let outcome = set_level(given.level).map_err(RpcError::internal);
            std::future::ready(outcome.map(|()| {
                level.set(given.level);
                true
            }))
        }));
    }
    let getters: [&'static [&'static str]; 2] = [&["log_get_level"], &["log_get_print_level"]];
    for names in getters {
        let level = level.clone();
        registry.add(Method::new(names, move |_: NoParameters| {
            std::future::ready(Ok(level.get()))
        }));
    }
}
