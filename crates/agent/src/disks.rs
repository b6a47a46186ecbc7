//! The disks of a node as its engine knows them: which are out of service, kept in a file, and how the others are.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agentlink::DiskHealth;
use proto::v1;
use serde::{Deserialize, Serialize};

use crate::Disk;
use crate::health::{Decision, Troubles};
use crate::state::{StateError, replace};
use crate::trust::Trusted;

/// How often it is looked whether a disk that was missing is there.
const MISSING_POLL: Duration = Duration::from_millis(250);

/// What is kept of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    path: String,
    /// 32 hexadecimal digits.
    uuid: String,
    capacity_bytes: u64,
    /// Why it is out of service; none if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    out_of_service: Option<String>,
    /// Since when, by this machine's clock.
    #[serde(default)]
    since_unix_ms: u64,
}

impl Entry {
    fn uuid(&self) -> Vec<u8> {
        u128::from_str_radix(&self.uuid, 16)
            .unwrap_or(0)
            .to_be_bytes()
            .to_vec()
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    disk: Vec<Entry>,
}

/// Whether there is a file or device of this path; if that cannot be found out, too.
fn is_there(path: &Path) -> bool {
    path.try_exists().unwrap_or(true)
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Disks {
    directory: PathBuf,
    file: File,
    pub(crate) trusted: Trusted,
    troubles: Troubles,
}

impl Disks {
    fn path(directory: &Path) -> PathBuf {
        directory.join("disks.toml")
    }

    /// What is kept in a node's directory of the disks that it has.
    pub(crate) fn load(directory: &Path, configured: &[Disk]) -> Result<Self, StateError> {
        let path = Self::path(directory);
        let mut file: File = match std::fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).map_err(|error| StateError::Disks {
                path,
                why: error.to_string(),
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => File::default(),
            Err(source) => return Err(StateError::File { path, source }),
        };
        let is_configured = |path: &str| {
            configured
                .iter()
                .any(|disk| disk.path.display().to_string() == path)
        };
        file.disk.retain(|entry| is_configured(&entry.path));
        let in_service = file.disk.iter().filter(|entry| entry.out_of_service.is_none());
        let trusted = Trusted::load(directory, in_service.map(|entry| entry.uuid.clone()))?;
        Ok(Self {
            directory: directory.to_owned(),
            trusted,
            file,
            troubles: Troubles::default(),
        })
    }

    /// Replaces the file durably.
    fn save(&self) -> Result<(), StateError> {
        let text = toml::to_string(&self.file).expect("disks are plain data");
        replace(&Self::path(&self.directory), &text)
    }

    fn entry(&self, path: &str) -> Option<&Entry> {
        self.file.disk.iter().find(|entry| entry.path == path)
    }

    fn is_out(&self, path: &str) -> bool {
        self.entry(path)
            .is_some_and(|entry| entry.out_of_service.is_some())
    }

    /// The configured disks that are in service.
    pub(crate) fn in_service(&self, configured: &[Disk]) -> Vec<Disk> {
        let in_service = configured
            .iter()
            .filter(|disk| !self.is_out(&disk.path.display().to_string()));
        in_service.cloned().collect()
    }

    /// A life of the target begins, with these disks.
    pub(crate) fn new_life(&mut self, found: &[agentlink::Disk]) -> Result<(), StateError> {
        self.troubles.new_life(Instant::now(), found);
        self.trusted.new_life(found)?;
        let mut changed = false;
        for disk in found {
            let uuid = format!("{:032x}", disk.uuid);
            let capacity_bytes = disk.capacity_bytes;
            match self.file.disk.iter_mut().find(|entry| entry.path == disk.path) {
                Some(entry) if entry.uuid == uuid && entry.capacity_bytes == capacity_bytes => {}
                Some(entry) => {
                    (entry.uuid, entry.capacity_bytes) = (uuid, capacity_bytes);
                    changed = true;
                }
                None => {
                    self.file.disk.push(Entry {
                        path: disk.path.clone(),
                        uuid,
                        capacity_bytes,
                        out_of_service: None,
                        since_unix_ms: 0,
                    });
                    changed = true;
                }
            }
        }
        if changed { self.save() } else { Ok(()) }
    }

    /// The target says how its disks are. Those that are put out of service now are so durably.
    pub(crate) fn note(&mut self, health: &[DiskHealth]) -> Result<Decision, StateError> {
        let mut decision = self.troubles.note(Instant::now(), health);
        // One whose identity nobody knows has nothing that could be rebuilt: it is left out in this life only.
        decision.out.retain(|(path, why)| match self.entry(path) {
            Some(entry) => entry.out_of_service.is_none(),
            None => {
                tracing::error!(
                    path,
                    why,
                    "a disk that this node never had is left out: look after it, and start the node again"
                );
                false
            }
        });
        self.put_out(&decision.out)?;
        Ok(decision)
    }

    /// Puts disks out of service, durably, and says why.
    fn put_out(&mut self, out: &[(String, String)]) -> Result<(), StateError> {
        for (path, why) in out {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            if let Some(entry) = self.file.disk.iter_mut().find(|entry| entry.path == *path) {
                entry.out_of_service = Some(why.clone());
                entry.since_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
                tracing::error!(
                    path,
                    why,
                    "a disk is put out of service: \"redhare node restore\" puts it back"
                );
            }
        }
        if out.is_empty() { Ok(()) } else { self.save() }
    }

    /// The disks in service that this node has had and that are not there, as long as at least as many others are: a machine on which most are
    /// missing is not ready. One that the target would make is never missing; nor is one that the node never had, since that is most
    /// likely a mistake in its name, of which the target says so.
    fn missing(&self, configured: &[Disk]) -> Vec<PathBuf> {
        let had = |disk: &Disk| self.entry(&disk.path.display().to_string()).is_some();
        let known = self.in_service(configured).into_iter().filter(had);
        let (there, missing): (Vec<Disk>, Vec<Disk>) =
            known.partition(|disk| disk.size.is_some() || is_there(&disk.path));
        if there.len() < missing.len() {
            return Vec::new();
        }
        missing.into_iter().map(|disk| disk.path).collect()
    }

    /// Waits for disks that are not there, since after a machine's start some come later than others. Those that stay away are put out
    /// of service: the others are not held up by them.
    pub(crate) async fn await_missing(
        &mut self,
        configured: &[Disk],
        limit: Duration,
    ) -> Result<(), StateError> {
        let began = Instant::now();
        loop {
            let missing = self.missing(configured);
            let waited = began.elapsed();
            if missing.is_empty() {
                return Ok(());
            }
            if waited >= limit {
                let why = format!(
                    "it was not there when the node started, for {} s",
                    waited.as_secs()
                );
                let out = missing
                    .iter()
                    .map(|path| (path.display().to_string(), why.clone()));
                return self.put_out(&out.collect::<Vec<_>>());
            }
            if waited < MISSING_POLL {
                tracing::warn!(?missing, "disks of this node are not there: waiting for them");
            }
            tokio::time::sleep(MISSING_POLL).await;
        }
    }

    /// Puts these disks back in service; true if any was not.
    pub(crate) fn restore(&mut self, uuids: &[Vec<u8>]) -> Result<bool, StateError> {
        let mut restored = Vec::new();
        for entry in &mut self.file.disk {
            // One that is not there is put back when it is: the target's other disks are not to be held up by another life in vain.
            let can_be = entry.out_of_service.is_some() && is_there(Path::new(&entry.path));
            if can_be && uuids.contains(&entry.uuid()) {
                entry.out_of_service = None;
                restored.push(entry.path.clone());
            }
        }
        for path in &restored {
            tracing::warn!(path, "a disk is put back in service");
            self.troubles.forget(path);
        }
        if !restored.is_empty() {
            self.save()?;
        }
        Ok(!restored.is_empty())
    }

    /// The disks that the target does not serve, as the masters know them: they stay the node's. Most are out of service; one that
    /// stood when the target started is so once the target has said why.
    pub(crate) fn absent(&self, found: &[agentlink::Disk]) -> Vec<v1::Disk> {
        let is_absent = |entry: &&Entry| !found.iter().any(|disk| disk.path == entry.path);
        let absent = self.file.disk.iter().filter(is_absent);
        let described = absent.map(|entry| v1::Disk {
            uuid: entry.uuid(),
            capacity_bytes: entry.capacity_bytes,
            used_bytes: 0,
            held_bytes: None,
        });
        described.collect()
    }

    /// What the masters are told of the disks.
    pub(crate) fn reports(&mut self) -> Vec<v1::DiskHealth> {
        let (now, troubles) = (Instant::now(), &mut self.troubles);
        let report = |entry: &Entry| {
            let standing = troubles.standing(now, &entry.path);
            let (state, why) = match (&entry.out_of_service, standing.why) {
                (Some(why), _) => (v1::DiskState::OutOfService, why.clone()),
                (None, Some(why)) => (v1::DiskState::Failing, why),
                (None, None) => (v1::DiskState::Ok, String::new()),
            };
            v1::DiskHealth {
                uuid: entry.uuid(),
                state: state.into(),
                why,
                path: entry.path.clone(),
                full: standing.is_full,
                failures: standing.failures,
                resets: standing.resets.to_vec(),
                cured: standing.cured.to_vec(),
                process_cured_ms: u64::try_from(standing.process_cured.as_millis()).unwrap_or(u64::MAX),
                resetting: standing.resetting,
            }
        };
        self.file.disk.iter().map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(path: &str, uuid: u128) -> agentlink::Disk {
        agentlink::Disk {
            uuid,
            path: path.to_owned(),
            capacity_bytes: 1 << 30,
            free_bytes: 1 << 20,
        }
    }

    fn left_out(path: &str) -> DiskHealth {
        DiskHealth {
            path: path.to_owned(),
            left_out: Some("it stands".to_owned()),
            ..DiskHealth::default()
        }
    }

    #[test]
    fn what_is_out_of_service_stays_so_until_it_is_put_back() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b) = (directory.path().join("a"), directory.path().join("b"));
        let configured = [&a, &b].map(|path| Disk {
            path: path.clone(),
            size: None,
        });
        let (plain_a, plain_b) = (a.display().to_string(), b.display().to_string());
        let mut disks = Disks::load(directory.path(), &configured).unwrap();
        disks.new_life(&[disk(&plain_a, 1), disk(&plain_b, 2)]).unwrap();
        let decision = disks
            .note(&[left_out(&plain_b), left_out("/never-seen")])
            .unwrap();
        assert_eq!(decision.out, [(plain_b.clone(), "it stands".to_owned())]);
        // Once is enough.
        assert!(disks.note(&[left_out(&plain_b)]).unwrap().out.is_empty());

        let mut disks = Disks::load(directory.path(), &configured).unwrap();
        let states: Vec<_> = disks.reports().iter().map(|report| report.state()).collect();
        assert_eq!(states, [v1::DiskState::Ok, v1::DiskState::OutOfService]);
        let absent = disks.absent(&[disk(&plain_a, 1)]);
        assert_eq!(absent.len(), 1);
        assert_eq!(
            (&absent[0].uuid[..], absent[0].capacity_bytes),
            (&2u128.to_be_bytes()[..], 1 << 30)
        );
        assert!(disks.is_out(&plain_b) && !disks.is_out(&plain_a));

        assert!(!disks.restore(&[1u128.to_be_bytes().to_vec()]).unwrap());
        // One that is not there is waited for.
        assert!(!disks.restore(&[2u128.to_be_bytes().to_vec()]).unwrap());
        std::fs::write(&b, "").unwrap();
        assert!(disks.restore(&[2u128.to_be_bytes().to_vec()]).unwrap());
        let disks = Disks::load(directory.path(), &configured).unwrap();
        assert!(!disks.is_out(&plain_b));
    }

    #[tokio::test]
    async fn what_is_not_there_is_waited_for_and_then_put_out_of_service_unless_it_is_most() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let plain = |name: &str| path(name).display().to_string();
        let named = |names: &[&str]| {
            let disk = |name: &&str| Disk {
                path: path(name),
                size: None,
            };
            names.iter().map(disk).collect::<Vec<Disk>>()
        };
        let had = named(&["a", "b", "late", "other"]);
        let mut disks = Disks::load(directory.path(), &had).unwrap();
        disks
            .new_life(&[
                disk(&plain("a"), 1),
                disk(&plain("b"), 2),
                disk(&plain("late"), 3),
                disk(&plain("other"), 4),
            ])
            .unwrap();

        // A machine without most of its disks is no reason to give them up: the target says what is wrong.
        disks.await_missing(&had, Duration::ZERO).await.unwrap();
        std::fs::write(path("a"), "").unwrap();
        disks.await_missing(&had, Duration::ZERO).await.unwrap();
        assert_eq!(disks.in_service(&had).len(), 4);
        std::fs::write(path("other"), "").unwrap();
        let late = path("late");
        let comes = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            std::fs::write(late, "").unwrap();
        });
        // A name that this node never had is left to the target, which refuses it.
        let now = named(&["a", "b", "late", "other", "mistaken"]);
        disks.await_missing(&now, Duration::from_secs(2)).await.unwrap();
        comes.await.unwrap();
        let left: Vec<PathBuf> = disks.in_service(&now).into_iter().map(|disk| disk.path).collect();
        assert_eq!(left, ["a", "late", "other", "mistaken"].map(path));
        let why = disks.reports()[1].why.clone();
        assert!(why.contains("not there"), "{why}");
    }

    #[test]
    fn a_file_that_is_none_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("disks.toml"), "disk = 3").unwrap();
        let error = Disks::load(directory.path(), &[]).unwrap_err().to_string();
        assert!(
            error.contains("disks.toml") && error.contains("put back in service"),
            "{error}"
        );
    }
}
