//! The target's configuration file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bdev::BlockDevice;
use bdev::file::{FileDevice, FileOptions};
use bdev::memory::MemoryDevice;
use bdev::null::NullDevice;
use foundation::checksum::crc32c;
use foundation::uuid::{format_uuid, parse_uuid};
use foundation::{BlockCount, ByteCount, Random};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::output::Failure;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TargetConfig {
    pub(super) nvme_tcp: NvmeTcpConfig,
    #[serde(default)]
    pub(super) subsystem: Vec<SubsystemConfig>,
    /// Part in a cluster; written by the node agent.
    pub(super) node: Option<NodeConfig>,
}

/// Identifiers are 32 hexadecimal digits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeConfig {
    cluster: String,
    node: String,
    incarnation: u64,
    pub(super) agent_socket: PathBuf,
    /// Who connects is let in only with what the masters give for a certificate; the agent hands in how to know that.
    #[serde(default)]
    pub(super) peers_prove: bool,
    /// In what time every copy is compared with its checksums; never if it is missing or 0.
    #[serde(default)]
    pub(super) scrub_every_ms: u64,
    /// A request that stands on a disk for so long begins its reset, and each stage of it gets as long.
    #[serde(default = "stall_limit_ms")]
    stall_limit_ms: u64,
    #[serde(default)]
    disk: Vec<NodeDiskConfig>,
}

fn stall_limit_ms() -> u64 {
    10_000
}

/// Only for tests: the directory of the files that say what is wrong with disks.
const FAULTS_VARIABLE: &str = "REDHARE_TEST_DISK_FAULTS";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeDiskConfig {
    path: PathBuf,
    size: Option<String>,
    new_uuid: String,
    #[serde(default)]
    force: bool,
}

fn identifier(name: &str, text: &str) -> Result<u128, Failure> {
    u128::from_str_radix(text, 16)
        .map_err(|_| Failure::new(format!("node.{name} is \"{text}\"; write 32 hexadecimal digits")))
}

impl NodeConfig {
    pub(super) fn identity(&self) -> Result<target::node::Identity, Failure> {
        Ok(target::node::Identity {
            cluster: volume::ClusterId(identifier("cluster", &self.cluster)?),
            node: volume::NodeId(identifier("node", &self.node)?),
            incarnation: volume::Incarnation(self.incarnation),
        })
    }

    /// How the disks are looked after.
    pub(super) fn care(&self) -> Option<target::node::DiskCare> {
        let stall_limit = std::time::Duration::from_millis(self.stall_limit_ms);
        (self.stall_limit_ms > 0).then(|| target::node::DiskCare {
            stall_limit,
            faults: std::env::var_os(FAULTS_VARIABLE).map(PathBuf::from),
        })
    }

    pub(super) fn disks(&self) -> Result<Vec<target::node::DiskConfig>, Failure> {
        // By the environment: a release before leaves it aside, and so can be gone back to.
        let trust = match std::env::var(agent::TRUSTED_VARIABLE) {
            Err(_) => target::node::Trust::Always,
            Ok(list) => {
                let named = list.split(',').filter(|uuid| !uuid.is_empty());
                let uuids: Result<_, _> = named
                    .map(|uuid| identifier(agent::TRUSTED_VARIABLE, uuid))
                    .collect();
                target::node::Trust::Among(uuids?)
            }
        };
        let disk = |disk: &NodeDiskConfig| {
            let size = disk
                .size
                .as_deref()
                .map(str::parse)
                .transpose()
                .map_err(Failure::new)?;
            Ok(target::node::DiskConfig {
                path: disk.path.clone(),
                size,
                new_uuid: identifier("disk.new_uuid", &disk.new_uuid)?,
                force: disk.force,
                trust: trust.clone(),
            })
        };
        self.disk.iter().map(disk).collect()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NvmeTcpConfig {
    /// Addresses with ports; port 0 takes a free one.
    #[serde(default)]
    pub(super) listen: Vec<SocketAddr>,
    /// Of the same kind, where hosts must use TLS.
    #[serde(default)]
    pub(super) secure_listen: Vec<SocketAddr>,
    /// Offer digests to hosts that ask.
    #[serde(default = "yes")]
    pub(super) header_digest: bool,
    #[serde(default = "yes")]
    pub(super) data_digest: bool,
    /// Leave out the response capsule after data.
    #[serde(default = "yes")]
    pub(super) success_flag: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SubsystemConfig {
    pub(super) nqn: String,
    pub(super) serial: Option<String>,
    /// Names of the hosts that may connect; all if absent.
    pub(super) hosts: Option<Vec<String>>,
    /// Files with the keys of hosts that connect over TLS, by the hosts' names.
    #[serde(default)]
    pub(super) psk: BTreeMap<String, PathBuf>,
    #[serde(default)]
    pub(super) namespace: Vec<NamespaceConfig>,
}

/// One of `memory`, `null` or `file` says where the blocks are.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamespaceConfig {
    pub(super) nsid: u32,
    memory: Option<String>,
    null: Option<String>,
    file: Option<PathBuf>,
    /// Makes the file with this size if it is missing.
    size: Option<String>,
    #[serde(default = "default_block_bytes")]
    block_bytes: u32,
    uuid: Option<String>,
}

fn yes() -> bool {
    true
}

fn default_block_bytes() -> u32 {
    4096
}

impl TargetConfig {
    pub(super) fn load(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display())))?;
        let config: Self = toml::from_str(&text).map_err(|error| {
            Failure::new(format!(
                "{} is not a target configuration:\n{error}",
                path.display()
            ))
        })?;
        config
            .check()
            .map_err(|why| Failure::new(format!("{}: {why}", path.display())))?;
        Ok(config)
    }

    /// Where to listen, and whether TLS is required there. Those without come first.
    pub(super) fn listeners(&self) -> impl Iterator<Item = (SocketAddr, bool)> {
        let plain = self.nvme_tcp.listen.iter().map(|address| (*address, false));
        plain.chain(self.nvme_tcp.secure_listen.iter().map(|address| (*address, true)))
    }

    fn check(&self) -> Result<(), String> {
        let NvmeTcpConfig {
            listen,
            secure_listen,
            ..
        } = &self.nvme_tcp;
        if listen.is_empty() && secure_listen.is_empty() {
            return Err("nvme_tcp.listen names no address; write listen = [\"127.0.0.1:4420\"]".to_owned());
        }
        if self.node.is_some() && listen.is_empty() {
            return Err("a node's peers do not use TLS; write nvme_tcp.listen, too".to_owned());
        }
        for described in &self.subsystem {
            let unlisted = |host: &&String| {
                let hosts = described.hosts.as_ref();
                hosts.is_some_and(|hosts| !hosts.contains(host))
            };
            if let Some(host) = described.psk.keys().find(unlisted) {
                let nqn = &described.nqn;
                return Err(format!(
                    "{host} has a psk in subsystem {nqn} and is not among its hosts; add it there"
                ));
            }
        }
        Ok(())
    }
}

impl NamespaceConfig {
    /// Opens the device. On a reactor.
    pub(super) fn open(&self) -> Result<Arc<dyn BlockDevice>, Failure> {
        self.check_block_bytes()?;
        match (&self.memory, &self.null, &self.file) {
            (Some(size), None, None) => {
                let device = MemoryDevice::new(self.block_bytes, self.blocks(size)?).map_err(Failure::new)?;
                Ok(Arc::new(device))
            }
            (None, Some(size), None) => Ok(Arc::new(NullDevice::new(self.block_bytes, self.blocks(size)?))),
            (None, None, Some(path)) => {
                let create = self.size.as_deref().map(|size| self.bytes(size)).transpose()?;
                let options = FileOptions {
                    create,
                    block_bytes: self.block_bytes,
                    direct: true,
                    read_only: false,
                };
                Ok(Arc::new(FileDevice::open(path, options).map_err(Failure::new)?))
            }
            _ => Err(self.no_blocks()),
        }
    }

    fn check_block_bytes(&self) -> Result<(), Failure> {
        if matches!(self.block_bytes, 512 | 4096) {
            return Ok(());
        }
        Err(Failure::new(format!(
            "namespace {}: block_bytes is {}; write 512 or 4096",
            self.nsid, self.block_bytes
        )))
    }

    fn no_blocks(&self) -> Failure {
        Failure::new(format!(
            "namespace {}: say where its blocks are with exactly one of memory = \"1GiB\", null = \"1GiB\" or file = \
             \"PATH\"",
            self.nsid
        ))
    }

    /// The call that makes the device as one that is managed, under `name`. Makes a file that is missing. On a reactor.
    pub(super) fn create_call(&self, name: &str, nqn: &str) -> Result<(&'static str, Value), Failure> {
        self.check_block_bytes()?;
        let uuid = format_uuid(&self.uuid(nqn)?);
        let sized = |method, size: &str| {
            let blocks = self.blocks(size)?;
            let params =
                json!({ "name": name, "uuid": uuid, "num_blocks": blocks.0, "block_size": self.block_bytes });
            Ok((method, params))
        };
        match (&self.memory, &self.null, &self.file) {
            (Some(size), None, None) => sized("bdev_malloc_create", size),
            (None, Some(size), None) => sized("bdev_null_create", size),
            (None, None, Some(path)) => {
                // Opened once, so that a missing file has its size afterwards.
                drop(self.open()?);
                let params =
                    json!({ "name": name, "uuid": uuid, "filename": path, "block_size": self.block_bytes });
                Ok(("bdev_uring_create", params))
            }
            _ => Err(self.no_blocks()),
        }
    }

    fn bytes(&self, size: &str) -> Result<ByteCount, Failure> {
        size.parse()
            .map_err(|error| Failure::new(format!("namespace {}: {error}", self.nsid)))
    }

    fn blocks(&self, size: &str) -> Result<BlockCount, Failure> {
        let bytes = self.bytes(size)?;
        match bytes.0 / u64::from(self.block_bytes) {
            0 => Err(Failure::new(format!(
                "namespace {}: {bytes} is less than one block of {} bytes",
                self.nsid, self.block_bytes
            ))),
            blocks => Ok(BlockCount(blocks)),
        }
    }

    /// The namespace's identity: as configured, or made from the subsystem's name and the number, so that it
    /// is the same after every start.
    pub(super) fn uuid(&self, nqn: &str) -> Result<[u8; 16], Failure> {
        match &self.uuid {
            Some(text) => parse_uuid(text).ok_or_else(|| {
                let form = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx with hexadecimal digits";
                Failure::new(format!(
                    "namespace {}: \"{text}\" is not a UUID; write {form}",
                    self.nsid
                ))
            }),
            None => {
                let seed = u64::from(crc32c(nqn.as_bytes())) << 32 | u64::from(self.nsid);
                let mut uuid = [0; 16];
                Random::from_seed(seed ^ nqn.len() as u64).fill(&mut uuid);
                // RFC 9562: version 8 (made by a rule of our own), variant 10b.
                uuid[6] = uuid[6] & 0x0f | 0x80;
                uuid[8] = uuid[8] & 0x3f | 0x80;
                Ok(uuid)
            }
        }
    }
}

/// The configured serial number, or one made from the name.
pub(super) fn serial(subsystem: &SubsystemConfig) -> String {
    match &subsystem.serial {
        Some(serial) => serial.clone(),
        None => format!("RH{:08X}", crc32c(subsystem.nqn.as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(text: &str) -> NamespaceConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn unknown_keys_are_refused() {
        let error = toml::from_str::<TargetConfig>("[nvme_tcp]\nlisten = []\nspeed = 3")
            .unwrap_err()
            .to_string();
        assert!(error.contains("unknown field `speed`"), "{error}");
    }

    #[test]
    fn a_namespace_says_what_is_wrong() {
        for (text, expected) in [
            ("nsid = 1", "exactly one of memory"),
            (
                "nsid = 1\nmemory = \"1GiB\"\nnull = \"1GiB\"",
                "exactly one of memory",
            ),
            ("nsid = 1\nmemory = \"big\"", "write a whole number and B, KiB"),
            ("nsid = 1\nmemory = \"100\"", "less than one block of 4096"),
            (
                "nsid = 1\nmemory = \"1GiB\"\nblock_bytes = 520",
                "write 512 or 4096",
            ),
        ] {
            let error = namespace(text).open().err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let odd = namespace("nsid = 1\nmemory = \"1GiB\"\nuuid = \"1234\"");
        assert!(odd.uuid("x").unwrap_err().to_string().contains("is not a UUID"));
    }

    #[test]
    fn identities_differ_and_last() {
        let (one, two) = (namespace("nsid = 1"), namespace("nsid = 2"));
        assert_eq!(one.uuid("nqn.a").unwrap(), one.uuid("nqn.a").unwrap());
        assert_ne!(one.uuid("nqn.a").unwrap(), two.uuid("nqn.a").unwrap());
        assert_ne!(one.uuid("nqn.a").unwrap(), one.uuid("nqn.b").unwrap());
    }
}
