//! `redhare volume scrub`.

use client::{Scrubbed, Session};
use foundation::ByteCount;
use indicatif::{ProgressBar, ProgressStyle};

use crate::commands::cluster::ClusterArguments;
use crate::output::{Failure, Output};

/// Bytes of a block of every volume so far.
const BLOCK_BYTES: u64 = 4096;

#[derive(serde::Serialize)]
struct ScrubView {
    name: String,
    compared_bytes: u64,
    repaired_blocks: u64,
    /// No copy has them right.
    lost_blocks: u64,
    /// Of copies that were made without checksums.
    unchecked_bytes: u64,
    /// Of copies that did not answer, or are not in sync.
    unreached_bytes: u64,
    seconds: f64,
}

/// Has every copy of a volume compared with its checksums.
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
        session.scrub(rate.0, |scrubbed| show(&bar, scrubbed)).await
    });
    bar.finish_and_clear();
    let scrubbed = scrubbed.map_err(Failure::new)?;
    let view = ScrubView {
        compared_bytes: scrubbed.compared_blocks * BLOCK_BYTES,
        repaired_blocks: scrubbed.repaired_blocks,
        lost_blocks: scrubbed.lost_blocks,
        unchecked_bytes: scrubbed.unchecked_blocks * BLOCK_BYTES,
        unreached_bytes: scrubbed.unreached_blocks * BLOCK_BYTES,
        seconds: began.elapsed().as_secs_f64(),
        name,
    };
    output.print(&view, || describe(&view));
    let is_whole = (view.lost_blocks, view.unchecked_bytes, view.unreached_bytes) == (0, 0, 0);
    if is_whole {
        Ok(())
    } else {
        Err(Failure::reported())
    }
}

fn show(bar: &ProgressBar, scrubbed: &Scrubbed) {
    if !bar.is_hidden() {
        bar.set_length(scrubbed.total_blocks * BLOCK_BYTES);
        bar.set_position(scrubbed.done_blocks * BLOCK_BYTES);
        bar.set_message(format!("{} repaired", scrubbed.repaired_blocks));
    }
}

fn describe(view: &ScrubView) -> String {
    let compared = ByteCount(view.compared_bytes);
    let mut text = format!(
        "volume {}: {compared} of its copies compared with their checksums in {:.1} s",
        view.name, view.seconds
    );
    match view.repaired_blocks {
        0 => text.push_str("; nothing had to be repaired\n"),
        1 => text.push_str("; 1 block did not fit and is repaired\n"),
        blocks => text.push_str(&format!("; {blocks} blocks did not fit and are repaired\n")),
    }
    if view.lost_blocks > 0 {
        text.push_str(&format!(
            "LOST: {} blocks fit their checksums on no copy; reading them is an error until they are written: restore what lies there from a backup\n",
            view.lost_blocks
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
            "{} were not compared, since their copies did not answer or are not in sync; \"redhare volume show {}\" tells which; run it \
             again when they are back\n",
            ByteCount(view.unreached_bytes),
            view.name
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_well_is_said() {
        let mut view = ScrubView {
            name: "data".to_owned(),
            compared_bytes: 3 << 30,
            repaired_blocks: 0,
            lost_blocks: 0,
            unchecked_bytes: 0,
            unreached_bytes: 0,
            seconds: 2.0,
        };
        let said = describe(&view);
        assert_eq!(
            said,
            "volume data: 3 GiB of its copies compared with their checksums in 2.0 s; nothing had to be repaired\n"
        );
        (view.repaired_blocks, view.lost_blocks) = (2, 1);
        (view.unchecked_bytes, view.unreached_bytes) = (4096, 1 << 20);
        let said = describe(&view);
        for words in [
            "2 blocks did not fit and are repaired",
            "LOST: 1 blocks",
            "4 KiB are of copies without checksums",
            "1 MiB were not compared",
        ] {
            assert!(said.contains(words), "{said}");
        }
    }
}
