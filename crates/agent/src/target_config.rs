//! The configuration that a node engine writes for its target.

use std::net::SocketAddr;
use std::path::Path;

use serde::Serialize;

use crate::state::{self, State};
use crate::supervise::AgentError;
use crate::{Config, Disk};

#[derive(Serialize)]
struct File {
    nvme_tcp: Listen,
    node: Node,
}

#[derive(Serialize)]
struct Listen {
    listen: [SocketAddr; 1],
}

/// Identifiers are 32 hexadecimal digits.
#[derive(Serialize)]
struct Node {
    cluster: String,
    node: String,
    incarnation: u64,
    agent_socket: String,
    /// Who connects is let in only with what the masters give for a certificate.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    peers_prove: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    scrub_every_ms: Option<u64>,
    stall_limit_ms: u64,
    disk: Vec<NodeDisk>,
}

#[derive(Serialize)]
struct NodeDisk {
    path: String,
    new_uuid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    force: bool,
}

/// Replaces the configuration in one step: a target that is just starting reads the old one or the new one. Blocks.
pub(crate) fn write(config: &Config, disks: &[Disk], state: &State, force: bool) -> Result<(), AgentError> {
    let disks = disks.iter().map(|disk| describe(disk, force));
    let file = File {
        nvme_tcp: Listen {
            listen: [config.listen],
        },
        node: Node {
            cluster: state.cluster.clone(),
            node: state.node.clone(),
            incarnation: state.incarnation,
            agent_socket: text(&config.socket())?,
            peers_prove: config.masters.credentials.is_some(),
            scrub_every_ms: config
                .scrub_every
                .map(|every| u64::try_from(every.as_millis()).unwrap_or(u64::MAX)),
            stall_limit_ms: config
                .stall_limit
                .map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
            disk: disks.collect::<Result<_, _>>()?,
        },
    };
    let body = toml::to_string(&file).expect("a configuration is plain data");
    let path = config.target_config();
    let fresh = path.with_extension("toml.new");
    let body = format!("# Written by \"redhare node\" for its target.\n{body}");
    std::fs::write(&fresh, body)
        .and_then(|()| std::fs::rename(&fresh, &path))
        .map_err(|source| AgentError::System {
            what: format!("cannot write {}", path.display()),
            source,
        })
}

fn describe(disk: &Disk, force: bool) -> Result<NodeDisk, AgentError> {
    let uuid = state::random_id().map_err(|source| AgentError::System {
        what: "cannot draw a random number".to_owned(),
        source,
    })?;
    Ok(NodeDisk {
        path: text(&disk.path)?,
        new_uuid: format!("{uuid:032x}"),
        size: disk.size.map(|size| size.0.to_string()),
        force,
    })
}

/// A path as it stands in TOML, which is UTF-8.
fn text(path: &Path) -> Result<String, AgentError> {
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(AgentError::Path {
            path: path.to_owned(),
            why: "is not UTF-8, as its configuration file has to be".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foundation::ByteCount;

    #[test]
    fn odd_paths_come_out_as_they_went_in() {
        let directory = tempfile::tempdir().unwrap();
        let odd = "/a \"b\"\\\u{301}\n\u{7f}[c]#";
        let config = Config {
            renews_credentials: false,
            masters: "".into(),
            listen: "127.0.0.1:4420".parse().unwrap(),
            disks: vec![Disk {
                path: odd.into(),
                size: Some(ByteCount(7)),
            }],
            rack: String::new(),
            directory: directory.path().to_owned(),
            program: "redhare".into(),
            end_target: false,
            metrics: None,
            scrub_every: None,
            stall_limit: Some(std::time::Duration::from_secs(5)),
            force: true,
        };
        let state = State {
            node: "1".into(),
            cluster: "2".into(),
            incarnation: 3,
        };
        for force in [true, false] {
            write(&config, &config.disks, &state, force).unwrap();
            let text = std::fs::read_to_string(config.target_config()).unwrap();
            let read: toml::Table = toml::from_str(&text).unwrap();
            let disk = &read["node"]["disk"][0];
            assert_eq!(disk["path"].as_str(), Some(odd));
            assert_eq!(disk["size"].as_str(), Some("7"));
            assert_eq!(read["node"]["stall_limit_ms"].as_integer(), Some(5000));
            assert_eq!(disk.get("force").is_some(), force);
            assert_eq!(read["nvme_tcp"]["listen"][0].as_str(), Some("127.0.0.1:4420"));
        }
    }

    #[test]
    fn a_path_that_is_not_text_is_named() {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/disk\xff"));
        let error = text(path).unwrap_err().to_string();
        assert!(error.contains("/disk") && error.contains("not UTF-8"), "{error}");
    }
}
