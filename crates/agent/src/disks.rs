//! The disks of a node as its engine knows them: which are out of service, kept in a file, and how the others are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agentlink::DiskHealth;
use proto::v1;
use serde::{Deserialize, Serialize};

use crate::health::{Decision, Troubles};
use crate::state::{StateError, replace};
use crate::trust::Trusted;
use crate::{Disk, proof};

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
    /// The file on disk is another: it could not be replaced.
    is_unsaved: bool,
    pub(crate) trusted: Trusted,
    troubles: Troubles,
    /// Where there was no disk when the life that is about to begin was begun.
    missing: BTreeSet<String>,
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
            is_unsaved: false,
            troubles: Troubles::default(),
            missing: BTreeSet::new(),
        })
    }

    /// Replaces the file durably. What could not be saved is saved with the next change, or by [`Disks::save_again`].
    fn save(&mut self) -> Result<(), StateError> {
        let text = toml::to_string(&self.file).expect("disks are plain data");
        let saved = replace(&Self::path(&self.directory), &text);
        self.is_unsaved = saved.is_err();
        saved
    }

    /// The same while a target serves: that its node's directory is full, say, is no reason to end it.
    fn save_or_warn(&mut self) {
        if let Err(error) = self.save() {
            tracing::warn!(%error, "what was decided of the disks holds until this engine ends: saving it is tried again");
        }
    }

    /// Saves what could not be saved before.
    pub(crate) fn save_again(&mut self) {
        if self.is_unsaved && self.save().is_ok() {
            tracing::info!("what was decided of the disks is saved");
        }
        self.trusted.save_again();
    }

    /// Whether everything that was decided of the disks holds for the next engine, too.
    pub(crate) fn is_saved(&self) -> bool {
        !self.is_unsaved
    }

    fn entry(&self, path: &str) -> Option<&Entry> {
        self.file.disk.iter().find(|entry| entry.path == path)
    }

    fn is_out(&self, path: &str) -> bool {
        self.entry(path)
            .is_some_and(|entry| entry.out_of_service.is_some())
    }

    /// The configured disks that are in service. Those that the node has had are not made anew: where one is not there, a new one
    /// would be made below the point where its file system is to be mounted.
    pub(crate) fn in_service(&self, configured: &[Disk]) -> Vec<Disk> {
        let in_service = configured.iter().filter_map(|disk| {
            let path = disk.path.display().to_string();
            let size = disk.size.filter(|_| self.entry(&path).is_none());
            (!self.is_out(&path)).then(|| Disk { size, ..disk.clone() })
        });
        in_service.collect()
    }

    /// Disks may have other paths than they had, since the names of devices follow the order in which these are found. Each entry
    /// goes to where its disk is now, and that of the disk which was there before gets the path that is free. True if any did.
    fn follow(&mut self, found: &[agentlink::Disk]) -> bool {
        let mut changed = false;
        for disk in found {
            let uuid = format!("{:032x}", disk.uuid);
            let entries = &mut self.file.disk;
            while let Some(at) = entries
                .iter()
                .position(|entry| entry.uuid == uuid && entry.path != disk.path)
            {
                changed = true;
                let there = entries.iter().position(|entry| entry.path == disk.path);
                if there.is_some_and(|there| entries[there].uuid == uuid) {
                    // A release before named it at both.
                    entries.remove(at);
                    continue;
                }
                let from = std::mem::replace(&mut entries[at].path, disk.path.clone());
                tracing::warn!(
                    uuid,
                    "the disk that was at {from} is at {} now: name disks by paths that stay, as those below \
                     /dev/disk/by-id do",
                    disk.path
                );
                if let Some(there) = there {
                    entries[there].path.clone_from(&from);
                    if self.missing.contains(&from) {
                        // It is not this one that was not there.
                        let [moved, other] = entries
                            .get_disjoint_mut([at, there])
                            .expect("they have different paths");
                        std::mem::swap(&mut moved.out_of_service, &mut other.out_of_service);
                        std::mem::swap(&mut moved.since_unix_ms, &mut other.since_unix_ms);
                    }
                } else if self.missing.contains(&from) {
                    entries[at].out_of_service = None;
                }
                self.troubles.swap(&from, &disk.path);
            }
        }
        self.missing.clear();
        changed
    }

    /// A disk that is out of service and that the target uses all the same, since it has another path than it had; for people.
    pub(crate) fn used_though_out(&self, found: &[agentlink::Disk]) -> Option<String> {
        let is_out = |disk: &&agentlink::Disk| self.is_out(&disk.path);
        let disk = found.iter().find(is_out)?;
        Some(format!(
            "the disk {:032x}, which is out of service, is at {} now, and must not be used",
            disk.uuid, disk.path
        ))
    }

    /// A life of the target begins, with these disks; or one is adopted that has begun under another engine.
    pub(crate) fn new_life(&mut self, found: &[agentlink::Disk], is_adopted: bool) -> Result<(), StateError> {
        let mut changed = self.follow(found);
        match is_adopted {
            true => self.troubles.adopt(),
            false => self.troubles.new_life(Instant::now(), found),
        }
        self.trusted.new_life(found)?;
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
        if changed || self.is_unsaved {
            return self.save();
        }
        Ok(())
    }

    /// The target says how its disks are. Those that are put out of service now are so durably, or as soon as that can be.
    pub(crate) fn note(&mut self, health: &[DiskHealth]) -> Decision {
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
        if !decision.out.is_empty() {
            self.put_out(&decision.out);
            self.save_or_warn();
        }
        decision
    }

    /// Puts disks out of service, and says why.
    fn put_out(&mut self, out: &[(String, String)]) {
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
    }

    /// The disks in service that this node has had and that are not there, as long as at least as many others are: a machine on which most are
    /// missing is not ready. One that the node never had is not missing: the target makes it, or says that it is most likely a mistake
    /// in its name.
    fn missing(&self, configured: &[Disk]) -> Vec<PathBuf> {
        let had = |disk: &Disk| self.entry(&disk.path.display().to_string()).is_some();
        let known = self.in_service(configured).into_iter().filter(had);
        let (there, missing): (Vec<Disk>, Vec<Disk>) = known.partition(|disk| is_there(&disk.path));
        if there.len() < missing.len() {
            let missing: Vec<&PathBuf> = missing.iter().map(|disk| &disk.path).collect();
            tracing::warn!(
                ?missing,
                "most disks of this node are not there: mount their file systems or plug them in; for a new disk in the place of one, \
                 make its file first (\"truncate -s SIZE PATH\")"
            );
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
                let missing = missing.iter().map(|path| path.display().to_string());
                let out: Vec<_> = missing.map(|path| (path, why.clone())).collect();
                self.put_out(&out);
                self.missing.extend(out.into_iter().map(|(path, _)| path));
                return self.save();
            }
            if waited < MISSING_POLL {
                tracing::warn!(
                    ?missing,
                    "disks of this node are not there: waited for; for a new disk in the place of one, make its file first (\"truncate \
                     -s SIZE PATH\")"
                );
            }
            tokio::time::sleep(MISSING_POLL).await;
        }
    }

    /// Puts these disks back in service; true if any was not. Asked again and again, as long as one of them is not.
    pub(crate) fn restore(&mut self, uuids: &[Vec<u8>]) -> bool {
        let mut restored = Vec::new();
        for entry in &mut self.file.disk {
            if entry.out_of_service.is_none() || !uuids.contains(&entry.uuid()) {
                continue;
            }
            // One that is not there is put back when it is, and one to which requests are under way still when these have ended: no life
            // begins before, and the target's other disks are not to be held up by that.
            let path = Path::new(&entry.path);
            if is_there(path) && !proof::is_in_use(path) {
                entry.out_of_service = None;
                restored.push(entry.path.clone());
            }
        }
        for path in &restored {
            tracing::warn!(path, "a disk is put back in service");
            self.troubles.forget(path);
        }
        if !restored.is_empty() {
            self.save_or_warn();
        }
        !restored.is_empty()
    }

    /// The disks that the target does not serve, as the masters know them: they stay the node's. Most are out of service; one that
    /// stood when the target started is so once the target has said why.
    pub(crate) fn absent(&self, found: &[agentlink::Disk]) -> Vec<v1::Disk> {
        let is_absent = |entry: &&Entry| {
            !found
                .iter()
                .any(|disk| disk.uuid.to_be_bytes()[..] == entry.uuid()[..])
        };
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
        disks
            .new_life(&[disk(&plain_a, 1), disk(&plain_b, 2)], false)
            .unwrap();
        let decision = disks.note(&[left_out(&plain_b), left_out("/never-seen")]);
        assert_eq!(decision.out, [(plain_b.clone(), "it stands".to_owned())]);
        // Once is enough.
        assert!(disks.note(&[left_out(&plain_b)]).out.is_empty());

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

        assert!(!disks.restore(&[1u128.to_be_bytes().to_vec()]));
        // One that is not there is waited for.
        assert!(!disks.restore(&[2u128.to_be_bytes().to_vec()]));
        std::fs::write(&b, "").unwrap();
        // Nor is one put back to which a request is under way still: no life would begin.
        let request = std::fs::File::open(&b).unwrap();
        request.try_lock().unwrap();
        assert!(!disks.restore(&[2u128.to_be_bytes().to_vec()]));
        drop(request);
        assert!(disks.restore(&[2u128.to_be_bytes().to_vec()]));
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
        let found = [("a", 1), ("b", 2), ("late", 3), ("other", 4)];
        let found = found.map(|(name, uuid)| disk(&plain(name), uuid));
        disks.new_life(&found, false).unwrap();

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

    /// A node that has had the disks 1 and 2 at two paths, and where it has what it keeps; nothing is at these paths.
    fn with_two_disks() -> (tempfile::TempDir, [Disk; 2], [String; 2], Disks) {
        let directory = tempfile::tempdir().unwrap();
        let configured = ["a", "b"].map(|name| Disk {
            path: directory.path().join(name),
            size: Some(foundation::ByteCount(1 << 30)),
        });
        let plain = [0, 1].map(|at| configured[at].path.display().to_string());
        let mut disks = Disks::load(directory.path(), &configured).unwrap();
        disks
            .new_life(&[disk(&plain[0], 1), disk(&plain[1], 2)], false)
            .unwrap();
        (directory, configured, plain, disks)
    }

    fn uuids(disks: &[v1::Disk]) -> Vec<u128> {
        let uuid = |disk: &v1::Disk| u128::from_be_bytes(disk.uuid[..].try_into().unwrap());
        disks.iter().map(uuid).collect()
    }

    #[tokio::test]
    async fn a_disk_that_has_the_name_of_one_that_is_gone_is_the_same_as_before() {
        let (directory, configured, [a, b], mut disks) = with_two_disks();
        // The first died, and the other one has its name.
        std::fs::write(&a, "").unwrap();
        disks.await_missing(&configured, Duration::ZERO).await.unwrap();
        assert!(disks.is_out(&b));
        let found = [disk(&a, 2)];
        disks.new_life(&found, false).unwrap();
        assert_eq!(disks.used_though_out(&found), None);
        assert_eq!(uuids(&disks.absent(&found)), [1], "each is named once");
        for mut disks in [disks, Disks::load(directory.path(), &configured).unwrap()] {
            let reports = disks.reports();
            let states: Vec<_> = reports
                .iter()
                .map(|report| (&report.uuid[15], report.state()))
                .collect();
            assert_eq!(
                states,
                [(&1, v1::DiskState::OutOfService), (&2, v1::DiskState::Ok)],
                "the one that is gone is out of service"
            );
            assert!(disks.is_out(&b) && !disks.is_out(&a));
        }
    }

    #[test]
    fn a_disk_stays_out_of_service_at_another_path() {
        let (_directory, configured, [a, b], mut disks) = with_two_disks();
        disks.note(&[left_out(&b)]);
        let found = [disk(&a, 2)];
        disks.new_life(&found, false).unwrap();
        assert!(disks.used_though_out(&found).unwrap().contains(&a));
        // Another life is to do without it, and to use the other one if that is where it was.
        assert!(disks.is_out(&a) && !disks.is_out(&b));
        let used: Vec<_> = disks.in_service(&configured);
        assert_eq!(
            used.iter().map(|disk| &disk.path).collect::<Vec<_>>(),
            [Path::new(&b)]
        );
        let found = [disk(&b, 1)];
        disks.new_life(&found, false).unwrap();
        assert_eq!(disks.used_though_out(&found), None);
        assert_eq!(uuids(&disks.absent(&found)), [2]);
    }

    #[test]
    fn a_disk_that_a_release_before_has_named_twice_is_named_once() {
        let (_directory, _, [a, b], mut disks) = with_two_disks();
        disks.file.disk[0].uuid = disks.file.disk[1].uuid.clone();
        let found = [disk(&a, 2)];
        disks.new_life(&found, false).unwrap();
        assert!(disks.absent(&found).is_empty());
        assert!(disks.entry(&b).is_none());
    }

    #[test]
    fn a_disk_that_the_node_has_had_is_not_made_anew() {
        let (_directory, mut configured, [a, b], disks) = with_two_disks();
        std::fs::write(&a, "").unwrap();
        configured[0].path.set_file_name("new");
        let sizes = |disks: &Disks| {
            let used = disks.in_service(&configured);
            used.iter().map(|disk| disk.size.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&disks), [true, false]);
        configured[0].path.set_file_name("a");
        assert_eq!(disks.missing(&configured), [PathBuf::from(b)]);
    }

    #[test]
    fn what_cannot_be_saved_holds_and_is_saved_later() {
        let (directory, configured, [_, b], mut disks) = with_two_disks();
        // As where there is no room: the new file cannot be made.
        let blocked = directory.path().join("disks.toml.new");
        std::fs::create_dir(&blocked).unwrap();
        assert_eq!(disks.note(&[left_out(&b)]).out.len(), 1);
        assert!(disks.is_out(&b) && !disks.is_saved());
        disks.save_again();
        assert!(!disks.is_saved());
        let load = || Disks::load(directory.path(), &configured).unwrap();
        assert!(!load().is_out(&b));
        std::fs::remove_dir(blocked).unwrap();
        disks.save_again();
        assert!(disks.is_saved() && load().is_out(&b));
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
