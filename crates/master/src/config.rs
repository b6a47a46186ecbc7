//! How a master is to run: flags and a TOML file, unknown keys refused.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use control::Settings;
use thiserror::Error;

use crate::etcd::{EtcdConfig, EtcdConfigError};

/// Nodes ask for the data path's keys every second at most, and each is given out before it is used.
const DATA_KEY_PERIOD_MIN: Duration = Duration::from_secs(1);

/// How a master is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where it answers gRPC.
    pub listen: SocketAddr,
    /// Its store.
    pub store: StoreConfig,
    /// By which `host:port` clients and nodes reach it; the address it listens on if there is none.
    pub advertise: Option<String>,
    /// Times and bounds.
    pub settings: Settings,
    /// Who it is, and whose certificates it believes. Without it answers anyone, plainly.
    pub credentials: Option<identity::Files>,
    /// Where each control action is recorded that changes something.
    pub audit_log: Option<PathBuf>,
    /// The directory of what it issues certificates with, to nodes and clients that join; none if it issues none.
    pub issuer: Option<PathBuf>,
    /// Where the dashboard and the metrics are served over HTTP, to anyone; nowhere if there is none.
    pub http: Option<SocketAddr>,
}

/// Where a master keeps what must not be forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    /// One file in this directory, of one master.
    Directory(PathBuf),
    /// An etcd, of any number of masters.
    Etcd(EtcdConfig),
}

impl StoreConfig {
    /// Reads a directory, or `etcd://` and `etcds://` with members and prefix.
    pub fn parse(text: &str) -> Result<Self, EtcdConfigError> {
        if EtcdConfig::is_meant(text) {
            return EtcdConfig::parse(text).map(Self::Etcd);
        }
        Ok(Self::Directory(PathBuf::from(text)))
    }
}

impl From<PathBuf> for StoreConfig {
    fn from(directory: PathBuf) -> Self {
        Self::Directory(directory)
    }
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
    /// What it says of an etcd cannot be meant.
    #[error("the configuration file {} cannot be used: {why}; correct that line", .path.display())]
    Etcd {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
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
    /// Nodes and clients could not follow.
    #[error("data_key_period_ms = {period_ms} must be at least 1000; change it")]
    DataKeyPeriod {
        /// The period.
        period_ms: u64,
    },
    /// Less is promised than there is, or hardly anything of what is promised is there.
    #[error(
        "disks cannot be promised {ratio} times; overcommit is a number from 1 (no more than there is) to 100"
    )]
    Overcommit {
        /// What was asked for.
        ratio: f64,
    },
}

/// A ratio of promises to capacity as [`Settings`] has it.
///
/// # Errors
/// One below 1 or above 100, or none at all.
pub fn overcommit_percent(ratio: f64) -> Result<u32, ConfigError> {
    match (1.0..=100.0).contains(&ratio) {
        true => Ok((ratio * 100.0).round() as u32),
        false => Err(ConfigError::Overcommit { ratio }),
    }
}

/// The file's keys.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    heartbeat_interval_ms: Option<u64>,
    heartbeat_timeout_ms: Option<u64>,
    rebuild_after_ms: Option<u64>,
    rebalance: Option<bool>,
    overcommit: Option<f64>,
    data_key_period_ms: Option<u64>,
    audit_log: Option<PathBuf>,
    issuer: Option<PathBuf>,
    http: Option<SocketAddr>,
    tls: Option<TlsFile>,
    etcd: Option<EtcdFile>,
}

/// What the file says of the master's own certificate.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsFile {
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

/// What the file says of an etcd.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct EtcdFile {
    authority: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    user: Option<String>,
    password_file: Option<PathBuf>,
    call_limit_ms: Option<u64>,
    lease_s: Option<u64>,
}

impl EtcdFile {
    fn apply(self, store: &mut StoreConfig) -> Result<(), &'static str> {
        let StoreConfig::Etcd(etcd) = store else {
            return Err("[etcd] is for a store that --store names with etcd:// or etcds://");
        };
        let has_tls = self.authority.is_some() || self.certificate.is_some() || self.key.is_some();
        if has_tls && !etcd.tls {
            return Err("etcd.authority, etcd.certificate and etcd.key are for --store etcds://");
        }
        etcd.authority = self.authority;
        etcd.certificate = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err("etcd.certificate and etcd.key belong together"),
        };
        etcd.user = match (self.user, self.password_file) {
            (Some(user), Some(file)) => Some((user, file)),
            (None, None) => None,
            _ => return Err("etcd.user and etcd.password_file belong together"),
        };
        match self.call_limit_ms {
            Some(limit @ 100..=60_000) => etcd.call_limit = Duration::from_millis(limit),
            Some(_) => return Err("etcd.call_limit_ms is to be 100 to 60000"),
            None => {}
        }
        match self.lease_s {
            Some(lease @ 2..=60) => etcd.lease = Duration::from_secs(lease),
            Some(_) => return Err("etcd.lease_s is to be 2 to 60"),
            None => {}
        }
        Ok(())
    }
}

impl Config {
    /// A master with default settings.
    pub fn new(listen: SocketAddr, store: impl Into<StoreConfig>) -> Self {
        Self {
            listen,
            store: store.into(),
            advertise: None,
            settings: Settings::default(),
            credentials: None,
            audit_log: None,
            issuer: None,
            http: None,
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
        if let Some(etcd) = file.etcd {
            let applied = etcd.apply(&mut self.store);
            applied.map_err(|why| ConfigError::Etcd { path, why })?;
        }
        if let Some(TlsFile {
            authority,
            certificate,
            key,
        }) = file.tls
        {
            self.credentials = Some(identity::Files {
                authority,
                certificate,
                key,
            });
        }
        self.audit_log = file.audit_log.or(self.audit_log);
        self.issuer = file.issuer.or(self.issuer);
        self.http = file.http.or(self.http);
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
        if let Some(rebalance) = file.rebalance {
            settings.rebalance = rebalance;
        }
        if let Some(ratio) = file.overcommit {
            settings.overcommit_percent = overcommit_percent(ratio)?;
        }
        if let Some(milliseconds) = file.data_key_period_ms {
            settings.data_key_period = Duration::from_millis(milliseconds);
        }
        if settings.data_key_period < DATA_KEY_PERIOD_MIN {
            return Err(ConfigError::DataKeyPeriod {
                period_ms: settings.data_key_period.as_millis() as u64,
            });
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

    #[test]
    fn a_file_says_as_whom_to_speak_with_an_etcd() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("master.toml");
        let read = |store: &str, text: &str| {
            std::fs::write(&path, text).unwrap();
            let store = StoreConfig::parse(store).unwrap();
            Config::new(SocketAddr::from(([127, 0, 0, 1], 1)), store).with_file(&path)
        };
        let all = "[etcd]\nauthority = \"/a\"\ncertificate = \"/c\"\nkey = \"/k\"\nuser = \"u\"\npassword_file = \"/p\"\n\
                   call_limit_ms = 2000\nlease_s = 5\n";
        let StoreConfig::Etcd(etcd) = read("etcds://a:1/x", all).unwrap().store else {
            panic!("an etcd was named");
        };
        assert_eq!(etcd.certificate, Some(("/c".into(), "/k".into())));
        assert_eq!(etcd.user, Some(("u".to_owned(), "/p".into())));
        assert_eq!((etcd.call_limit.as_millis(), etcd.lease.as_secs()), (2000, 5));
        for (store, text, why) in [
            (
                "/var/x",
                "[etcd]\n",
                "is for a store that --store names with etcd://",
            ),
            (
                "etcd://a:1/x",
                "[etcd]\nauthority = \"/a\"\n",
                "are for --store etcds://",
            ),
            ("etcds://a:1/x", "[etcd]\nkey = \"/a\"\n", "belong together"),
            (
                "etcd://a:1/x",
                "[etcd]\nuser = \"u\"\n",
                "etcd.password_file belong together",
            ),
            (
                "etcd://a:1/x",
                "[etcd]\nlease_s = 1\n",
                "etcd.lease_s is to be 2 to 60",
            ),
        ] {
            let error = read(store, text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

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
        let config = read("http = \"127.0.0.1:9901\"\n").unwrap();
        assert_eq!(config.http, Some(SocketAddr::from(([127, 0, 0, 1], 9901))));
        assert_eq!(read("").unwrap().http, None);
        let error = read("http = \"9901\"\n").unwrap_err().to_string();
        assert!(error.contains("http = \"9901\""), "{error}");
        let config = read("data_key_period_ms = 2000\n").unwrap();
        assert_eq!(config.settings.data_key_period, Duration::from_secs(2));
        let error = read("data_key_period_ms = 999\n").unwrap_err().to_string();
        assert!(
            error.contains("data_key_period_ms = 999 must be at least 1000"),
            "{error}"
        );
    }
}
