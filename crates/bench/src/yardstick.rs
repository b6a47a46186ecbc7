//! The yardsticks in C: the bare loop on epoll, and the core-to-core hand-off time. Their source travels in the
//! binary and is built with the machine's C compiler when needed.

use std::io;
use std::path::PathBuf;
use std::process::Command;

use crate::process::compile;

const ECHO: &str = include_str!("../yardstick/echo.c");
const HANDOFF: &str = include_str!("../yardstick/handoff.c");

/// Built yardsticks, removed when dropped.
pub struct Yardsticks {
    directory: PathBuf,
}

impl Yardsticks {
    /// Builds them. Takes about a second.
    pub fn build() -> io::Result<Self> {
        let directory = std::env::temp_dir().join(format!("redhare-yardsticks-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let yardsticks = Self { directory };
        for (name, source) in [("echo", ECHO), ("handoff", HANDOFF)] {
            let path = yardsticks.directory.join(format!("{name}.c"));
            std::fs::write(&path, source)?;
            compile(&path, &yardsticks.directory.join(name))?;
        }
        Ok(yardsticks)
    }

    /// The bare loop's program.
    pub fn echo(&self) -> String {
        self.directory.join("echo").display().to_string()
    }

    /// Time for a cache line to go from one core to the other, in nanoseconds: about 30 in a machine's fast
    /// state. Takes some tens of milliseconds of both cores.
    pub fn handoff_ns(&self) -> io::Result<f64> {
        let output = Command::new(self.directory.join("handoff")).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = text
            .split_whitespace()
            .nth(1)
            .and_then(|number| number.parse().ok());
        number.ok_or_else(|| io::Error::other(format!("the hand-off yardstick printed \"{text}\"")))
    }
}

impl Drop for Yardsticks {
    fn drop(&mut self) {
        // Left-over files in the temporary directory harm nobody.
        drop(std::fs::remove_dir_all(&self.directory));
    }
}
