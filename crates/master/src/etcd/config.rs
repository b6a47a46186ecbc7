//! Where an etcd is, and as whom to speak with it.

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// Longer than etcd takes to elect a leader with its defaults (1 s without a heartbeat, then a vote).
const CALL_LIMIT: Duration = Duration::from_secs(4);
/// The least that etcd grants with its defaults: one and a half election timeouts, in whole seconds.
const LEASE: Duration = Duration::from_secs(2);

/// An etcd and a cluster's place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `host:port` of its members, tried in this order.
    pub endpoints: Vec<String>,
    /// What the cluster's keys begin with; begins with a slash and does not end with one.
    pub prefix: String,
    /// Whether members are spoken with over TLS.
    pub tls: bool,
    /// Who may have signed the members' certificates, PEM; the system's authorities if there is none.
    pub authority: Option<PathBuf>,
    /// Our certificate and its key, PEM.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Our name and the file that holds our password.
    pub user: Option<(String, PathBuf)>,
    /// How long a call may take, whichever members it tries.
    pub call_limit: Duration,
    /// How long the master that leads may be silent before another one takes its seat. Whole seconds.
    pub lease: Duration,
}

/// Why a place in an etcd cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "\"{text}\" names no place in an etcd: {why}; write etcd://host:port,host:port/prefix, or etcds:// for TLS"
)]
pub struct EtcdConfigError {
    text: String,
    why: &'static str,
}

impl EtcdConfig {
    /// Whether a text is meant to be a place in an etcd.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("etcd://") || text.starts_with("etcds://")
    }

    /// Reads `etcd://host:port,host:port/prefix`, or `etcds://` for TLS.
    pub fn parse(text: &str) -> Result<Self, EtcdConfigError> {
        let refuse = |why| EtcdConfigError {
            text: text.chars().take(200).collect(),
            why,
        };
        let (tls, rest) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => return Err(refuse("it begins with neither etcd:// nor etcds://")),
        };
        let (hosts, prefix) = rest
            .split_once('/')
            .ok_or_else(|| refuse("it has no prefix, which tells clusters in one etcd apart"))?;
        let prefix = prefix.trim_matches('/');
        if prefix.is_empty() || !prefix.chars().all(|c| c.is_ascii_graphic()) {
            return Err(refuse(
                "its prefix is empty or has other than printable ASCII letters",
            ));
        }
        let endpoints: Vec<String> = hosts.split(',').map(str::to_owned).collect();
        let is_address = |endpoint: &String| {
            endpoint.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
        };
        if !endpoints.iter().all(is_address) {
            return Err(refuse("a member of it has no host or no port"));
        }
        Ok(Self {
            endpoints,
            prefix: format!("/{prefix}"),
            tls,
            authority: None,
            certificate: None,
            user: None,
            call_limit: CALL_LIMIT,
            lease: LEASE,
        })
    }

    /// The text it was read from, as people may see it: without secrets.
    pub fn name(&self) -> String {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        format!("{scheme}://{}{}", self.endpoints.join(","), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_an_etcd_is_read_and_shown() {
        let config = EtcdConfig::parse("etcd://a:2379,[::1]:2380/redhare/prod/").unwrap();
        assert_eq!(config.endpoints, ["a:2379", "[::1]:2380"]);
        assert_eq!((config.prefix.as_str(), config.tls), ("/redhare/prod", false));
        assert_eq!(config.name(), "etcd://a:2379,[::1]:2380/redhare/prod");
        assert!(EtcdConfig::parse("etcds://a:1/x").unwrap().tls);
    }

    #[test]
    fn what_names_no_place_is_refused_with_the_reason() {
        for (text, why) in [
            ("etcd://a:2379", "it has no prefix"),
            ("etcd://a:2379/", "its prefix is empty"),
            ("etcd://a/x", "no host or no port"),
            ("etcd://a:0/x", "no host or no port"),
            ("etcd://a:1,,b:2/x", "no host or no port"),
            ("http://a:1/x", "neither etcd:// nor etcds://"),
            ("etcd://a:1/x y", "printable ASCII"),
        ] {
            let error = EtcdConfig::parse(text).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("write etcd://"), "{error}");
        }
    }
}
