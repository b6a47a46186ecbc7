//! The disks of a node as its engine knows them: which are out of service, kept in a file, and how the others are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agentlink::DiskHealth;
use proto::v1;
use rustix::fs::{Access, AtFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::health::{Decision, Troubles};
use crate::state::{StateError, replace};
use crate::trust::Trusted;
use crate::{Disk, lock, proof};

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

/// How the reason ends of a disk that is out of service since nothing was at its path, as long as no life has begun since: it may have another one.
/// In the reason, since the release before refuses a file with fields that it does not know.
const WAS_MISSING: &str = ", and no target has started since";
/// The same of a disk that is put back in service, until a life has begun that may use it. The release before takes it for one that is out of
/// service, which the masters' repetition puts back.
const PUT_BACK: &str = ", and it is put back in service with the next start of the target";

impl Entry {
    /// The reason for which it was out of service, if it is being put back.
    fn put_back(&self) -> Option<&str> {
        self.out_of_service.as_deref()?.strip_suffix(PUT_BACK)
    }

    /// The next life does without it.
    fn is_out(&self) -> bool {
        self.out_of_service.is_some() && self.put_back().is_none()
    }

    fn was_missing(&self) -> bool {
        let why = self.out_of_service.as_deref();
        why.is_some_and(|why| why.ends_with(WAS_MISSING))
    }

    fn uuid(&self) -> Vec<u8> {
        u128::from_str_radix(&self.uuid, 16)
            .unwrap_or(0)
            .to_be_bytes()
            .to_vec()
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    disk: Vec<Entry>,
}

/// Why the file or device of this path cannot be used: it is not there, or not to be written; none if that cannot be found out, too.
/// Opens nothing: who watches devices would look at one that is closed after it was open for writing.
fn absence(path: &Path) -> Option<Errno> {
    let wanted = Access::READ_OK | Access::WRITE_OK;
    let found = rustix::fs::accessat(rustix::fs::CWD, path, wanted, AtFlags::EACCESS);
    found
        .err()
        .filter(|errno| [Errno::NOENT, Errno::ROFS, Errno::ACCESS].contains(errno))
}

fn is_there(path: &Path) -> bool {
    absence(path).is_none()
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
    /// Of disks that are put back in service, by identity, the numbers of the wishes: the next life tries for them.
    trying: BTreeMap<Vec<u8>, u64>,
    /// Those for which a life has begun with the disk, well or not, since this engine started.
    tried: BTreeMap<Vec<u8>, u64>,
    /// Where there are to be disks.
    configured: BTreeSet<String>,
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
        let configured = configured.iter().map(|disk| disk.path.display().to_string());
        let configured: BTreeSet<String> = configured.collect();
        // One that is out of service may have another name now, by which it must not come back.
        file.disk
            .retain(|entry| configured.contains(&entry.path) || entry.out_of_service.is_some());
        // By what it is alone: another disk may come to where it was.
        for entry in &mut file.disk {
            if !configured.contains(&entry.path) {
                entry.path.clear();
            }
        }
        let in_service = file.disk.iter().filter(|entry| entry.out_of_service.is_none());
        let trusted = Trusted::load(directory, in_service.map(|entry| entry.uuid.clone()))?;
        Ok(Self {
            directory: directory.to_owned(),
            trusted,
            file,
            is_unsaved: false,
            troubles: Troubles::default(),
            trying: BTreeMap::new(),
            tried: BTreeMap::new(),
            configured,
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

    /// Whether something can be saved now, so that another life could begin; what was decided of the disks is, then.
    pub(crate) fn can_be_saved(&mut self) -> bool {
        let is_known = self.is_unsaved;
        let Err(error) = self.save() else { return true };
        if !is_known {
            tracing::warn!(%error, "the target is to be ended for a disk, but no other could be started while nothing can be saved: it serves on");
        }
        false
    }

    /// An entry is kept only to know a disk again that is out of service, and that this node is not told to have any more.
    fn is_gone(&self, entry: &Entry) -> bool {
        entry.out_of_service.is_some() && !self.configured.contains(&entry.path)
    }

    fn entry(&self, path: &str) -> Option<&Entry> {
        self.file.disk.iter().find(|entry| entry.path == path)
    }

    fn is_out(&self, path: &str) -> bool {
        self.entry(path).is_some_and(Entry::is_out)
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
                    if entries[at].was_missing() {
                        // It is not this one that was not there.
                        let [moved, other] = entries
                            .get_disjoint_mut([at, there])
                            .expect("they have different paths");
                        std::mem::swap(&mut moved.out_of_service, &mut other.out_of_service);
                        std::mem::swap(&mut moved.since_unix_ms, &mut other.since_unix_ms);
                    }
                } else if entries[at].was_missing() {
                    entries[at].out_of_service = None;
                }
                self.troubles.swap(&from, &disk.path);
            }
        }
        for entry in &mut self.file.disk {
            if let Some(why) = &mut entry.out_of_service
                && let Some(reason) = why.strip_suffix(WAS_MISSING)
            {
                *why = reason.to_owned();
                changed = true;
            }
        }
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
        self.is_unsaved |= self.follow(found);
        match is_adopted {
            true => self.troubles.adopt(),
            false => self.troubles.new_life(Instant::now(), found),
        }
        self.end_putting_back(found, is_adopted);
        self.trusted.new_life(found)?;
        for disk in found {
            let uuid = format!("{:032x}", disk.uuid);
            let capacity_bytes = disk.capacity_bytes;
            match self.file.disk.iter_mut().find(|entry| entry.path == disk.path) {
                Some(entry) if entry.uuid == uuid && entry.capacity_bytes == capacity_bytes => {}
                Some(entry) => {
                    (entry.uuid, entry.capacity_bytes) = (uuid, capacity_bytes);
                    self.is_unsaved = true;
                }
                None => {
                    self.file.disk.push(Entry {
                        path: disk.path.clone(),
                        uuid,
                        capacity_bytes,
                        out_of_service: None,
                        since_unix_ms: 0,
                    });
                    self.is_unsaved = true;
                }
            }
        }
        if self.is_unsaved && is_adopted {
            // It serves: a directory that is full ends nothing.
            self.save_or_warn();
        } else if self.is_unsaved {
            return self.save();
        }
        Ok(())
    }

    /// A life has begun: with the disks that were to be put back, as far as nothing else is known. One that is adopted may have begun before
    /// that was decided, where an engine ended in between. What it does not serve is out of service as before, and nothing was tried for
    /// the wish: the masters ask again, and then the target is ended for it.
    fn end_putting_back(&mut self, found: &[agentlink::Disk], is_adopted: bool) {
        for entry in &mut self.file.disk {
            let Some(before) = entry.put_back().map(str::to_owned) else {
                continue;
            };
            let is_served = found.iter().any(|disk| disk.path == entry.path);
            let has_begun = is_served || (!is_adopted && self.configured.contains(&entry.path));
            if !has_begun {
                self.trying.remove(&entry.uuid());
                tracing::warn!(
                    path = entry.path,
                    why = before,
                    "a disk that was to be put back is out of service still: the target was started without it"
                );
            }
            entry.out_of_service = (!has_begun).then_some(before);
            self.is_unsaved = true;
        }
        // Names that changed may have given the mark to another disk: this life does without the one that is wished.
        for entry in self
            .file
            .disk
            .iter()
            .filter(|entry| entry.out_of_service.is_some())
        {
            self.trying.remove(&entry.uuid());
        }
        self.tried.append(&mut self.trying);
    }

    /// Where the disks are that the next life is to have though they are out of service; none if it has no others, since a node that would
    /// be left without any says what is wrong with these.
    fn put_back_beside_others(&self) -> Vec<String> {
        let is_other = |path: &String| {
            let entry = self.entry(path);
            entry.is_none_or(|entry| entry.out_of_service.is_none())
        };
        if !self.configured.iter().any(is_other) {
            return Vec::new();
        }
        let entries = self.file.disk.iter().filter(|entry| !self.is_gone(entry));
        let marked = entries.filter(|entry| entry.put_back().is_some());
        marked.map(|entry| entry.path.clone()).collect()
    }

    /// Whether the next life can do without this disk, since it is only being put back.
    pub(crate) fn can_leave(&self, path: &Path) -> bool {
        self.put_back_beside_others()
            .contains(&path.display().to_string())
    }

    /// This disk, which was to be put back, is in use: it is out of service as before, and nothing was tried for the wish. The masters repeat
    /// it, and it is heard once the disk is free.
    pub(crate) fn leave(&mut self, path: &Path) {
        let path = path.display().to_string();
        let Some(entry) = self.file.disk.iter_mut().find(|entry| entry.path == path) else {
            return;
        };
        let Some(before) = entry.put_back().map(str::to_owned) else {
            return;
        };
        tracing::warn!(
            path,
            why = before,
            "a disk that was to be put back is out of service still: it is in use, and the others are not to wait for it"
        );
        self.trying.remove(&entry.uuid());
        entry.out_of_service = Some(before);
        self.save_or_warn();
    }

    /// The target did not start. If disks were put back for it, the next is tried without them: nobody knows that they are the reason, but
    /// the others served before, and wait. True if there are any.
    pub(crate) fn give_up_putting_back(&mut self, why: &str) -> bool {
        let marked = self.put_back_beside_others();
        if marked.is_empty() {
            return false;
        }
        for entry in self.file.disk.iter().filter(|entry| marked.contains(&entry.path)) {
            // The wish has had its attempt: repeated, it would end the target again and again.
            if let Some((uuid, wish)) = self.trying.remove_entry(&entry.uuid()) {
                self.tried.insert(uuid, wish);
            }
        }
        let why = format!("the target did not start with it ({why}), when it was put back");
        let out: Vec<_> = marked.into_iter().map(|path| (path, why.clone())).collect();
        self.put_out(&out);
        self.save_or_warn();
        true
    }

    /// The target says how its disks are. Those that are put out of service now are so durably, or as soon as that can be.
    pub(crate) fn note(&mut self, health: &[DiskHealth]) -> Decision {
        let mut decision = self.troubles.note(Instant::now(), health);
        self.spare_a_life(health, &mut decision);
        // One whose identity nobody knows has nothing that could be rebuilt: it is left out in this life only.
        decision.out.retain(|(path, why)| match self.entry(path) {
            // What this life leaves out the next one may use: one that is being put back is no more out of service for that.
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

    /// Another process is of no use to a disk whose store has stopped and that cannot be opened any more: none would start. It is put out
    /// of service at once, unless there is no other.
    fn spare_a_life(&self, health: &[DiskHealth], decision: &mut Decision) {
        for path in std::mem::take(&mut decision.stopped) {
            let serves = |disk: &DiskHealth| {
                let is_leaving = decision.out.iter().any(|(out, _)| *out == disk.path);
                let can_be = absence(Path::new(&disk.path)).is_none();
                let is_other = disk.path != path && disk.left_out.is_none();
                is_other && can_be && !is_leaving && !self.is_out(&disk.path)
            };
            if self.is_out(&path) {
                continue;
            }
            let opened = std::fs::File::options().read(true).write(true).open(&path);
            if let Err(error) = opened {
                decision.restart.take_if(|(restart, _)| *restart == path);
                if !health.iter().any(serves) {
                    // The next life would not begin without it: this one still answers reads.
                    continue;
                }
                let why = format!(
                    "a write or flush of its metadata failed, and it cannot be opened any more: {error}"
                );
                decision.out.push((path, why));
            }
        }
    }

    /// Puts disks out of service, and says why.
    fn put_out(&mut self, out: &[(String, String)]) {
        for (path, why) in out {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            if let Some(entry) = self.file.disk.iter_mut().find(|entry| entry.path == *path) {
                entry.out_of_service = Some(why.clone());
                entry.since_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
                // No life has begun with it: that it is to be put back still holds.
                self.trying.remove(&entry.uuid());
                tracing::error!(
                    path,
                    why,
                    "a disk is put out of service: \"redhare node restore\" puts it back"
                );
            }
        }
    }

    /// The disks in service that this node has had and that are not there, as long as at least as many others are: a machine on which most are
    /// missing is not ready. That one is missing that is being put back says nothing of that. One that the node never had is not missing: the target makes it,
    /// or says that it is most likely a mistake in its name.
    fn missing(&self, configured: &[Disk]) -> Vec<PathBuf> {
        let had = |disk: &Disk| self.entry(&disk.path.display().to_string()).is_some();
        let known = self.in_service(configured).into_iter().filter(had);
        let (there, missing): (Vec<Disk>, Vec<Disk>) = known.partition(|disk| is_there(&disk.path));
        let missing: Vec<PathBuf> = missing.into_iter().map(|disk| disk.path).collect();
        let (put_back, held) = self.by_putting_back(&missing);
        if there.len() < held.len() {
            tracing::warn!(
                missing = ?held,
                "most disks of this node are not there: mount their file systems or plug them in; for a new disk in the place of one, \
                 make its file first (\"truncate -s SIZE PATH\")"
            );
            return put_back;
        }
        missing
    }

    /// Those of these paths at which are disks that are being put back, and the others.
    fn by_putting_back(&self, paths: &[PathBuf]) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let marked = self.put_back_beside_others();
        let is_marked = |path: &PathBuf| marked.contains(&path.display().to_string());
        paths.iter().cloned().partition(is_marked)
    }

    /// Waits for disks that are not there, since after a machine's start some come later than others. Those that stay away are put out
    /// of service: the others are not held up by them. Not at all by one that is being put back, which did not serve a moment ago: the
    /// masters repeat that wish, and it is heard once the disk is there.
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
            let is_over = waited >= limit;
            let (put_back, _) = self.by_putting_back(&missing);
            if is_over || !put_back.is_empty() {
                let what = |path: &PathBuf| match absence(path) {
                    Some(errno) if errno != Errno::NOENT => {
                        format!("could not be opened for writing ({errno})")
                    }
                    _ => "was not there".to_owned(),
                };
                let seconds = waited.as_secs();
                let out = missing.iter().filter_map(|path| {
                    let when = match (put_back.contains(path), is_over) {
                        (true, _) => "it was put back".to_owned(),
                        (false, true) => format!("the node started, for {seconds} s"),
                        (false, false) => return None,
                    };
                    let why = format!("it {} when {when}{WAS_MISSING}", what(path));
                    Some((path.display().to_string(), why))
                });
                let out: Vec<_> = out.collect();
                self.put_out(&out);
                self.save()?;
                if is_over {
                    return Ok(());
                }
                continue;
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

    /// Puts these disks back in service; true if any was not. Asked again and again, as long as one of them is not, or until the masters
    /// hear that the wish of this number was tried for. A release before gives none.
    pub(crate) fn restore(&mut self, uuids: &[Vec<u8>], wishes: &[u64]) -> bool {
        let wanted = |entry: &&Entry| {
            // One that is not there is put back when it is, and one to which requests are under way still when these have ended: no life
            // begins before, and the target's other disks are not to be held up by that. If it is this life's target that has left it
            // out and holds it, its end is what may help.
            let path = Path::new(&entry.path);
            let waits = || proof::is_in_use(path) && !self.is_held_by_target(path);
            entry.is_out()
                && uuids.contains(&entry.uuid())
                && !self.is_gone(entry)
                && is_there(path)
                && !waits()
        };
        let restored = self.file.disk.iter().filter(wanted);
        let restored: BTreeSet<String> = restored.map(|entry| entry.path.clone()).collect();
        if restored.is_empty() {
            return false;
        }
        let before = self.file.clone();
        for entry in &mut self.file.disk {
            if restored.contains(&entry.path)
                && let Some(why) = &mut entry.out_of_service
            {
                why.push_str(PUT_BACK);
            }
        }
        if let Err(error) = self.save() {
            // Whoever hears that it is back must find it so after this engine's end.
            self.file = before;
            tracing::warn!(%error, ?restored, "disks are not put back in service before that can be saved");
            return false;
        }
        for path in &restored {
            tracing::warn!(path, "a disk is put back in service");
            self.troubles.forget(path);
        }
        for (uuid, wish) in uuids.iter().zip(wishes) {
            let mut entries = self.file.disk.iter();
            if entries.any(|entry| entry.uuid() == *uuid && restored.contains(&entry.path)) {
                self.trying.insert(uuid.clone(), *wish);
            }
        }
        true
    }

    /// Whether the lock of this disk is that of the target that serves now.
    fn is_held_by_target(&self, path: &Path) -> bool {
        let holder = lock::holder(&crate::target_lock(&self.directory)).ok().flatten();
        let process = holder.and_then(|holder| holder.process);
        process.is_some_and(|process| proof::is_locked_by(path, process))
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
        let absent = absent.filter(|entry| !self.is_gone(entry));
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
        let mut troubles = std::mem::take(&mut self.troubles);
        let (now, tried) = (Instant::now(), &self.tried);
        let report = |entry: &Entry| {
            let standing = troubles.standing(now, &entry.path);
            let (state, why) = match (&entry.out_of_service, standing.why) {
                // Also while it is put back: until then the target has left it out, and may never begin anew.
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
                tried_restore: Some(tried.get(&entry.uuid()).copied().unwrap_or(0)),
            }
        };
        let known = self.file.disk.iter().filter(|entry| !self.is_gone(entry));
        let reports = known.map(report).collect();
        self.troubles = troubles;
        reports
    }
}

#[cfg(test)]
mod tests;
