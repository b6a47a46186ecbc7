//! How a master is to run: flags and a TOML file, unknown keys refused.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use control::Settings;
use thiserror::Error;

/// How a master is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where it answers gRPC.
    pub listen: SocketAddr,
    /// The directory of its store.
    pub store: PathBuf,
    /// Times and bounds.
    pub settings: Settings,
}

/// Why a configuration file cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("the configuration file {} cannot be read: {source}; check the path given with --config", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is not TOML, or has a key that is not known.
    #[error("the configuration file {} cannot be used: {source}; correct or remove that line", .path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line.
        source: Box<toml::de::Error>,
    },
    /// Times that cannot work together.
    #[error(
        "heartbeat_timeout_ms = {timeout_ms} must be at least three times heartbeat_interval_ms = {interval_ms}, and that above 0; change one of them"
    )]
    Heartbeat {
        /// The timeout.
        timeout_ms: u64,
        /// The interval.
        interval_ms: u64,
    },
}

/// The file's keys.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    heartbeat_interval_ms: Option<u64>,
    heartbeat_timeout_ms: Option<u64>,
    rebuild_after_ms: Option<u64>,
}

impl Config {
    /// A master with default settings.
    pub fn new(listen: SocketAddr, store: PathBuf) -> Self {
        Self {
            listen,
            store,
            settings: Settings::default(),
        }
    }

    /// Takes what the TOML file says.
    pub fn with_file(mut self, path: &std::path::Path) -> Result<Self, ConfigError> {
        let path = path.to_path_buf();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        let file: File = match toml::from_str(&text) {
            Ok(file) => file,
            Err(source) => {
                let source = Box::new(source);
                return Err(ConfigError::Parse { path, source });
            }
        };
        let settings = &mut self.settings;
        if let Some(milliseconds) = file.heartbeat_interval_ms {
            settings.heartbeat_interval = Duration::from_millis(milliseconds);
        }
        if let Some(milliseconds) = file.heartbeat_timeout_ms {
            settings.heartbeat_timeout = Duration::from_millis(milliseconds);
        }
        if let Some(milliseconds) = file.rebuild_after_ms {
            settings.rebuild_after = Duration::from_millis(milliseconds);
        }
        let interval = settings.heartbeat_interval;
        if interval.is_zero() || settings.heartbeat_timeout / 3 < interval {
            return Err(ConfigError::Heartbeat {
                timeout_ms: settings.heartbeat_timeout.as_millis() as u64,
                interval_ms: interval.as_millis() as u64,
            });
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, ConfigError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("master.toml");
        std::fs::write(&path, text).unwrap();
        Config::new(SocketAddr::from(([127, 0, 0, 1], 1)), PathBuf::new()).with_file(&path)
    }

    #[test]
    fn a_file_sets_times_and_refuses_what_it_does_not_know() {
        let config = read("heartbeat_interval_ms = 100\nheartbeat_timeout_ms = 900\n").unwrap();
        assert_eq!(config.settings.heartbeat_timeout, Duration::from_millis(900));
        let error = read("heartbeet_interval_ms = 1\n").unwrap_err().to_string();
        assert!(
            error.contains("heartbeet_interval_ms") && error.contains("correct or remove"),
            "{error}"
        );
        let error = read("heartbeat_timeout_ms = 1000\n").unwrap_err().to_string();
        assert!(
            error.contains("heartbeat_timeout_ms = 1000 must be at least three times"),
            "{error}"
        );
    }
}
