//! `redhare volume scrub`.

use client::{Scrubbed, Session, SnapshotError};
use foundation::ByteCount;
use indicatif::{ProgressBar, ProgressStyle};
use master::v1;

use crate::commands::cluster::ClusterArguments;
use crate::output::{Failure, Output};

/// Bytes of a block of every volume so far.
const BLOCK_BYTES: u64 = 4096;

#[derive(serde::Serialize)]
struct ScrubView {
    #[serde(flatten)]
    live: PartView,
    /// Of its complete snapshots, each by itself.
    snapshots: Vec<PartView>,
    seconds: f64,
}

/// What was found in the copies of a volume, or of a snapshot.
#[derive(serde::Serialize)]
struct PartView {
    /// The volume's, or VOLUME@SNAPSHOT.
    name: String,
    compared_bytes: u64,
    repaired_blocks: u64,
    /// No copy has them right.
    lost_blocks: u64,
    /// Of copies that were made without checksums.
    unchecked_bytes: u64,
    /// Of copies that did not answer, or are not in sync.
    unreached_bytes: u64,
    /// One copy held them otherwise than all others though each fitted its checksum, and holds them as they do now.
    outvoted_blocks: u64,
    /// Not all copies could say what they hold.
    uncompared_bytes: u64,
    /// Not the same on all copies, and nothing says which is right.
    differing_blocks: u64,
    /// Where the first of these lies in the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_differing_byte: Option<u64>,
}

impl PartView {
    fn new(name: String, scrubbed: &Scrubbed) -> Self {
        Self {
            name,
            compared_bytes: scrubbed.compared_blocks * BLOCK_BYTES,
            repaired_blocks: scrubbed.repaired_blocks,
            lost_blocks: scrubbed.lost_blocks,
            unchecked_bytes: scrubbed.unchecked_blocks * BLOCK_BYTES,
            unreached_bytes: scrubbed.unreached_blocks * BLOCK_BYTES,
            outvoted_blocks: scrubbed.outvoted_blocks,
            uncompared_bytes: scrubbed.uncompared_blocks * BLOCK_BYTES,
            differing_blocks: scrubbed.differing_blocks,
            first_differing_byte: scrubbed.first_differing.map(|first| first.0 * BLOCK_BYTES),
        }
    }

    fn is_whole(&self) -> bool {
        (self.lost_blocks, self.unchecked_bytes, self.unreached_bytes) == (0, 0, 0)
            && self.differing_blocks == 0
    }
}

/// Has every copy of a volume and of its snapshots compared with its checksums, and the volume's with each other.
pub(super) fn run(
    cluster: &ClusterArguments,
    name: String,
    rate: ByteCount,
    output: &Output,
) -> Result<(), Failure> {
    let masters = cluster.masters()?;
    let session = Session::connect(&masters, &name).map_err(Failure::new)?;
    let bar = ProgressBar::new(0);
    let template =
        "scrub {wide_bar} {msg}  {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta} left";
    bar.set_style(ProgressStyle::with_template(template).expect("the template names known keys"));
    let began = std::time::Instant::now();
    let scrubbed = reactor::run(&reactor::Config::default(), async {
        let live = session.scrub(rate.0, |scrubbed| show(&bar, scrubbed)).await;
        let mut snapshots = Vec::new();
        // What was compared took hours, and is told whatever becomes of the rest.
        let (listed, unlisted) = match session.snapshots().await {
            Ok(listed) => (listed, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        for snapshot in listed
            .into_iter()
            .filter(|snapshot| snapshot.state() == v1::SnapshotState::Complete)
        {
            let name = format!("{name}@{}", snapshot.name);
            let scrubbed = session
                .scrub_snapshot(&snapshot, rate.0, |scrubbed| show(&bar, scrubbed))
                .await;
            snapshots.push(PartView::new(name, &scrubbed));
        }
        (live, snapshots, unlisted)
    });
    bar.finish_and_clear();
    let (live, snapshots, unlisted) = scrubbed.map_err(Failure::new)?;
    let view = ScrubView {
        live: PartView::new(name, &live),
        snapshots,
        seconds: began.elapsed().as_secs_f64(),
    };
    if let Some(error) = unlisted {
        return Err(output.print_failed(&view, not_listed(&view.live.name, &error), || describe(&view)));
    }
    output.print(&view, || describe(&view));
    match view.live.is_whole() && view.snapshots.iter().all(PartView::is_whole) {
        true => Ok(()),
        false => Err(Failure::reported()),
    }
}

fn not_listed(volume: &str, error: &SnapshotError) -> Failure {
    Failure::new(format!(
        "the snapshots of {volume} were not compared, since they could not be listed: {error}; scrub it again"
    ))
}

fn show(bar: &ProgressBar, scrubbed: &Scrubbed) {
    if !bar.is_hidden() {
        bar.set_length(scrubbed.total_blocks * BLOCK_BYTES);
        bar.set_position(scrubbed.done_blocks * BLOCK_BYTES);
        bar.set_message(format!("{} repaired", scrubbed.repaired_blocks));
    }
}

fn describe(view: &ScrubView) -> String {
    let mut text = describe_part(&view.live, "volume", &view.live.name);
    for snapshot in &view.snapshots {
        text.push_str(&describe_part(snapshot, "snapshot", &view.live.name));
    }
    text.push_str(&format!("{:.1} s in all\n", view.seconds));
    text
}

fn describe_part(view: &PartView, what: &str, volume: &str) -> String {
    let compared = ByteCount(view.compared_bytes);
    let mut text = format!(
        "{what} {}: {compared} of its copies compared with their checksums",
        view.name
    );
    match view.repaired_blocks {
        0 => text.push_str("; nothing had to be repaired\n"),
        1 => text.push_str("; 1 block did not fit and is repaired\n"),
        blocks => text.push_str(&format!("; {blocks} blocks did not fit and are repaired\n")),
    }
    if view.lost_blocks > 0 && what == "volume" {
        text.push_str(&format!(
            "LOST: {} blocks fit their checksums on no copy; reading them is an error until they are written: restore what lies there from a backup\n",
            view.lost_blocks
        ));
    } else if view.lost_blocks > 0 {
        text.push_str(&format!(
            "NOT REPAIRED: {} blocks of its copies do not fit their checksums, and no node that can be reached has them right; those that come back \
             are asked by themselves\n",
            view.lost_blocks
        ));
    }
    if view.outvoted_blocks > 0 {
        text.push_str(&format!(
            "{} blocks fitted their checksums on every copy and one copy held something else than all others: it has their bytes now; a disk has lost \
             what it had said was written, so look at the disk of the node that the logs of the targets name\n",
            view.outvoted_blocks
        ));
    }
    if view.uncompared_bytes > 0 {
        text.push_str(&format!(
            "{} were compared with their checksums and not with other copies, since not all could say what they hold: nodes of a release before \
             cannot, nor copies with lost blocks beside\n",
            ByteCount(view.uncompared_bytes)
        ));
    }
    if view.differing_blocks > 0 {
        let first = view.first_differing_byte.unwrap_or_default();
        text.push_str(&format!(
            "DIFFERENT: {} blocks are not the same on all copies, and nothing says which is right, the first at byte {first} of the volume: readers may get \
             either until they are written; restore what lies there from a backup, and look at the disks of the nodes that the write nodes' logs name\n",
            view.differing_blocks
        ));
    }
    if view.unchecked_bytes > 0 {
        text.push_str(&format!(
            "{} are of copies without checksums; a volume made with \"--checksums on\" has them\n",
            ByteCount(view.unchecked_bytes)
        ));
    }
    if view.unreached_bytes > 0 {
        text.push_str(&format!(
            "{} were not compared, since their copies did not answer or are not in sync; \"redhare volume show {volume}\" tells which; run it \
             again when they are back\n",
            ByteCount(view.unreached_bytes)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_well_is_said() {
        let part = |name: &str| {
            let compared_blocks = (3 << 30) / BLOCK_BYTES;
            let scrubbed = Scrubbed {
                compared_blocks,
                ..Scrubbed::default()
            };
            PartView::new(name.to_owned(), &scrubbed)
        };
        let mut view = ScrubView {
            live: part("data"),
            snapshots: vec![part("data@monday")],
            seconds: 2.0,
        };
        let said = describe(&view);
        assert_eq!(
            said,
            "volume data: 3 GiB of its copies compared with their checksums; nothing had to be repaired\n\
             snapshot data@monday: 3 GiB of its copies compared with their checksums; nothing had to be repaired\n2.0 s in all\n"
        );
        assert!(view.live.is_whole());
        (view.live.repaired_blocks, view.live.lost_blocks) = (2, 1);
        (view.live.unchecked_bytes, view.live.unreached_bytes) = (4096, 1 << 20);
        (view.live.outvoted_blocks, view.live.differing_blocks) = (5, 6);
        (view.live.first_differing_byte, view.live.uncompared_bytes) = (Some(8192), 12288);
        view.snapshots[0].lost_blocks = 3;
        let said = describe(&view);
        for words in [
            "2 blocks did not fit and are repaired",
            "LOST: 1 blocks",
            "4 KiB are of copies without checksums",
            "1 MiB were not compared",
            "NOT REPAIRED: 3 blocks",
            "5 blocks fitted their checksums on every copy",
            "12 KiB were compared with their checksums and not with other copies",
            "DIFFERENT: 6 blocks are not the same on all copies, and nothing says which is right, the first at byte 8192 of",
        ] {
            assert!(said.contains(words), "{said}");
        }
        assert!(!view.live.is_whole() && !view.snapshots[0].is_whole());
    }
}
