//! How a cluster is, in a word, and why: the head of `redhare status` and of the dashboard.

use foundation::ByteCount;

use super::{
    DiskRow, NodeRow, STAGES, StatusView, UnplacedView, VolumeRow, about, about_left, describe_returning,
    short,
};

/// From the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing is missing.
    Healthy,
    /// Everything serves, with less than there should be.
    Degraded,
    /// Something does not serve, or would not if it had to change.
    Critical,
}

/// A verdict, what led to it, what the cluster does by itself, about that or anything else, and what has passed.
#[derive(Debug, serde::Serialize)]
pub struct Health {
    /// In a word.
    pub verdict: Verdict,
    /// What led to it.
    pub troubles: Vec<String>,
    /// What the cluster does by itself.
    pub doing: Vec<String>,
    /// What needs nothing, and is worth to be known.
    pub notes: Vec<String>,
}

/// Weighs what the rest of the view says.
pub(super) fn of(view: &StatusView) -> Health {
    let mut health = Health {
        verdict: Verdict::Healthy,
        troubles: Vec::new(),
        doing: Vec::new(),
        notes: Vec::new(),
    };
    health.weigh_masters(view);
    if let Some(trouble) = view.restored.trouble() {
        health.trouble(Verdict::Critical, trouble);
    }
    view.nodes.iter().for_each(|node| health.weigh_node(node));
    view.volumes.iter().for_each(|volume| {
        health.weigh_volume(volume);
        health.weigh_portals(view, volume);
    });
    if let Some(balancing) = view.balance.doing() {
        health.doing.push(balancing);
    }
    health.notes.extend(super::releases::note(view));
    health
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    }
}

impl Health {
    fn trouble(&mut self, verdict: Verdict, what: String) {
        self.verdict = self.verdict.max(verdict);
        self.troubles.push(what);
    }

    fn weigh_masters(&mut self, view: &StatusView) {
        if !view.masters.iter().any(|master| master.leads) {
            let what = "no master leads: nothing that fails is mended, and nothing can be changed";
            self.trouble(Verdict::Critical, what.to_owned());
        }
        for away in &view.masters_away {
            match away.judge(view.masters.len()) {
                (Verdict::Healthy, note) => self.notes.push(note),
                (verdict, trouble) => self.trouble(verdict, trouble),
            }
        }
        if let Some(trouble) = view.data_path.as_ref().and_then(|row| row.trouble(view)) {
            self.trouble(Verdict::Degraded, trouble);
        }
        let members = &view.store.members;
        let failed = members.iter().filter(|member| !member.healthy).count();
        if failed > 0 {
            let all = members.len();
            let (verdict, outcome) = match 2 * (all - failed) > all {
                true => (Verdict::Degraded, "the others have a quorum"),
                false => (Verdict::Critical, "there is no quorum, so nothing can be changed"),
            };
            let what = format!("{failed} of {all} members of the metadata store have failed: {outcome}");
            self.trouble(verdict, what);
        }
    }

    fn weigh_node(&mut self, node: &NodeRow) {
        let name = short(&node.node);
        let empty = node.draining && node.draining_copies == 0;
        if !node.alive && !empty {
            self.trouble(
                Verdict::Degraded,
                format!("node {name} ({}) is gone", node.address),
            );
        }
        if let Some(absence) = &node.absence {
            self.doing.push(format!(
                "node {name} is waited for: {} copies of it are made elsewhere in {}, if it stays away",
                absence.copies,
                about(absence.elsewhere_in_seconds)
            ));
        }
        for disk in node.disk_health.iter().filter(|_| node.alive) {
            self.weigh_disk(name, disk);
        }
        if node.draining && node.draining_copies > 0 {
            self.doing.push(format!(
                "node {name} is drained: {} copies with {} are still to move{}",
                node.draining_copies,
                ByteCount(node.draining_bytes),
                about_left(node.draining_left_seconds)
            ));
        }
    }

    fn weigh_disk(&mut self, node: &str, disk: &DiskRow) {
        if let Some(trouble) = disk.trouble() {
            self.trouble(Verdict::Degraded, format!("{trouble}, of node {node}"));
        }
        let name = short(&disk.uuid);
        if let Some(stage) = disk.resetting {
            let place = STAGES.iter().position(|known| *known == stage).unwrap_or(0) + 1;
            let of = STAGES.len();
            self.doing.push(format!(
                "disk {name} of node {node} does not answer: its {stage} is reset (stage {place} of {of})"
            ));
        }
        let resets = disk.resets.stages().into_iter().zip(disk.cured.stages());
        let resets = resets.filter(|((_, begun), _)| *begun > 0);
        let resets: Vec<String> = resets
            .map(|((stage, begun), (_, cured))| format!("{stage} {} ({cured} cured it)", times(begun)))
            .collect();
        if !resets.is_empty() {
            self.notes.push(format!(
                "disk {name} of node {node} was reset: {}",
                resets.join(", ")
            ));
        }
    }

    fn weigh_volume(&mut self, volume: &VolumeRow) {
        let (name, chunks) = (&volume.name, volume.chunks);
        match volume.state {
            "deleting" => self
                .doing
                .push(format!("the copies of \"{name}\" are being removed")),
            "ready" => {}
            _ if volume.unplaced.is_some() => {}
            _ => self
                .doing
                .push(format!("the copies of \"{name}\" are being made")),
        }
        if let Some(unplaced) = &volume.unplaced {
            let what = match volume.state {
                "ready" => "does not get on with growing",
                _ => "is not ready",
            };
            let UnplacedView { chunks, why } = unplaced;
            self.trouble(
                Verdict::Degraded,
                format!("\"{name}\" {what}, since {chunks} of its chunks have no place: {why}"),
            );
        }
        if volume.state != "ready" {
            return;
        }
        self.weigh_blocks(volume);
        if let Some(origin) = volume.origin.as_ref().filter(|origin| origin.flattening) {
            let progress = match (origin.left_copies, origin.flattened_of) {
                (Some(left), Some(all)) => format!(", {left} of {all} copies are left"),
                _ => String::new(),
            };
            self.doing
                .push(format!("\"{name}\" comes to data of its own{progress}"));
        }
        if volume.waiting_chunks > 0 {
            let waiting = volume.waiting_chunks;
            let what = format!(
                "writes to {waiting} of {chunks} chunks of \"{name}\" wait for copies: start the nodes that are gone, and if they are lost see \
                 \"redhare volume force-serve {name} --dry-run\""
            );
            self.trouble(Verdict::Critical, what);
        }
        if volume.roomless_chunks > 0 {
            let roomless = volume.roomless_chunks;
            let what = format!(
                "{roomless} of {chunks} chunks of \"{name}\" have no room for more: writes that need some fail (\"no space\"), reads and what overwrites \
                 go on; add disks, or delete volumes or snapshots"
            );
            self.trouble(Verdict::Critical, what);
        }
        if volume.degraded_chunks > 0 {
            let degraded = volume.degraded_chunks;
            let what = format!("{degraded} of {chunks} chunks of \"{name}\" lack a copy");
            self.trouble(Verdict::Degraded, what);
            if volume.placeless_chunks > 0 {
                let (placeless, bytes) = (volume.placeless_chunks, volume.lacking_bytes);
                let chunk = ByteCount(bytes / u64::from(volume.lacking_copies).max(1));
                self.trouble(
                    Verdict::Degraded,
                    format!(
                        "{placeless} of these have no place for another copy: each needs a living node without a copy of it and with a disk that has room \
                         for {chunk} (start nodes that are gone, add nodes or disks, or free room)"
                    ),
                );
            }
            if volume.lacking_left_seconds.is_some() {
                self.doing.push(format!(
                    "\"{name}\": {} copies with {} are still to be made{}",
                    volume.lacking_copies,
                    ByteCount(volume.lacking_bytes),
                    about_left(volume.lacking_left_seconds)
                ));
            }
        }
        if volume.crowded_chunks > 0 {
            let crowded = volume.crowded_chunks;
            let what = format!(
                "{crowded} of {chunks} chunks of \"{name}\" have more copies in one rack than need be"
            );
            match volume.few_racks {
                // Nothing was promised, and there may be no room for better.
                true => self.notes.push(format!(
                    "{what}: they come apart as far as the other racks have room (racks are fewer than copies)"
                )),
                false => self.trouble(Verdict::Degraded, what),
            }
        }
        let rows = volume.returning.iter();
        self.doing
            .extend(rows.map(|row| format!("\"{name}\": node {}", describe_returning(row))));
    }

    /// The paths that its hosts have.
    fn weigh_portals(&mut self, view: &StatusView, volume: &VolumeRow) {
        let lost = volume.lost_portals(&view.nodes);
        if lost.is_empty() {
            return;
        }
        let (name, all) = (&volume.name, volume.portals.len());
        let left = all - lost.len();
        let lost: Vec<String> = lost
            .into_iter()
            .map(|(node, why)| format!("node {} {why}", short(node)))
            .collect();
        let lost = lost.join(", ");
        let what = format!(
            "\"{name}\" has {left} of {all} portals: {lost}; its hosts may lack these paths (start it, or see \"redhare volume export --help\" for how \
             others are chosen)"
        );
        self.trouble(Verdict::Degraded, what);
    }

    /// What checksums have shown.
    fn weigh_blocks(&mut self, volume: &VolumeRow) {
        let name = &volume.name;
        if volume.lost_blocks > 0 {
            let lost = volume.lost_blocks;
            let what = format!(
                "\"{name}\": {lost} blocks lost: no copy has them right, and reading them fails until they are written (\"redhare fs verify\" \
                 names the files to restore)"
            );
            self.trouble(Verdict::Critical, what);
        }
        if volume.differing_blocks > 0 {
            let differing = volume.differing_blocks;
            let what = format!(
                "\"{name}\": copies hold different bytes in {differing} blocks, each of which fits its checksum, and readers may get either until \
                 they are written (\"redhare volume scrub {name}\" says where the first is)"
            );
            self.trouble(Verdict::Critical, what);
        }
        for lost in &volume.lost_of_snapshots {
            let (snapshot, lost) = (&lost.snapshot, lost.lost_blocks);
            let what = format!(
                "\"{name}@{snapshot}\": {lost} blocks lost: no copy that answers has them right, and reading them fails (a node that is gone \
                 may have them: start it)"
            );
            self.trouble(Verdict::Critical, what);
        }
        if volume.damaged_blocks > 0 {
            let (damaged, repaired) = (volume.damaged_blocks, volume.repaired_blocks);
            self.notes.push(format!(
                "\"{name}\": {damaged} blocks of copies did not fit their checksums, {repaired} of them repaired since"
            ));
        }
    }

    /// The verdict for people, who are to see when it is not the best.
    pub fn word(&self) -> &'static str {
        match self.verdict {
            Verdict::Healthy => "healthy",
            Verdict::Degraded => "DEGRADED",
            Verdict::Critical => "CRITICAL",
        }
    }

    /// What people read of it: a word for the first line, and a line for each trouble, each thing done and each note.
    pub fn describe(&self) -> (&'static str, String) {
        let troubles = self.troubles.iter().map(|trouble| format!("  ! {trouble}\n"));
        let doing = self.doing.iter().map(|doing| format!("  > {doing}\n"));
        let notes = self.notes.iter().map(|note| format!("  . {note}\n"));
        (self.word(), troubles.chain(doing).chain(notes).collect())
    }
}

#[cfg(test)]
mod tests;
