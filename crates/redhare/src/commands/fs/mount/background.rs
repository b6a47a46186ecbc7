//! Serving in the background: a process of its own is started before anything else, so that no thread is lost on the way.
//! Its result it says as JSON, one value; then the one that waits for it returns.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{MountView, shown};
use crate::output::{Failure, Output};

/// Starts this command again, to stay, and returns when it has mounted.
pub(super) fn start(log: Option<&Path>, output: &Output) -> Result<(), Failure> {
    let cannot = |error| Failure::new(format!("no process could be started in the background: {error}"));
    let log = match log {
        None => Stdio::null(),
        Some(path) => {
            let opened = OpenOptions::new().create(true).append(true).open(path);
            let remedy = "name a file that can be written";
            let opened = opened.map_err(|error| format!("{}: {error}; {remedy}", path.display()));
            opened.map_err(Failure::new)?.into()
        }
    };
    let program = std::env::current_exe().map_err(cannot)?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--detached")
        .args((!output.is_json()).then_some("--json"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(cannot)?;
    let said = child.stdout.take().and_then(|out| {
        let mut values = serde_json::Deserializer::from_reader(out).into_iter::<Value>();
        values.next()?.ok()
    });
    let Some(said) = said else {
        let status = child.wait().map_err(Failure::new)?;
        return Err(Failure::new(format!(
            "the process in the background ended before it had mounted: {status}; give --log FILE to see what it said"
        )));
    };
    if let Some(error) = said["error"].as_str() {
        // It is about to end.
        child.wait().map_err(Failure::new)?;
        return Err(Failure::new(error));
    }
    let view: MountView = serde_json::from_value(said).map_err(Failure::new)?;
    output.print(&view, || shown(&view));
    Ok(())
}

/// Leaves the session of the terminal, whose end shall not be this process's.
pub(super) fn leave_session() -> Result<(), Failure> {
    let left = rustix::process::setsid();
    left.map(|_| ())
        .map_err(|error| Failure::new(format!("the terminal's session could not be left: {error}")))
}
