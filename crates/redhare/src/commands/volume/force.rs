//! `redhare volume force-serve`.

use std::io::{BufRead, IsTerminal, Write};

use clap::Args;
use foundation::ByteCount;
use master::{Client, uuid_text, v1};

use crate::commands::cluster::ClusterArguments;
use crate::output::{Failure, Output, table, write};

pub(super) const EXAMPLES: &str = "Examples:\n  redhare volume force-serve data --dry-run\n  redhare volume force-serve data\n  \
    redhare volume force-serve data --chunk 7 --chunk 9 --copy 6f9c\n  redhare volume force-serve data --copy 6f9c/0b7e --yes\n\n\
    For chunks of which too few copies in sync are left, and none will come back: their nodes, or the disks in them, are gone for good. First see whether \
    these can be started again; nothing is lost then. What is shown is what each copy is worth, and by default the copy that is worth most is served. \
    All that it lacks is lost, without a way back: the other copies are sent what it has, also those that had more, should they return. \
    Make sure before that the other copies' nodes are off or out of reach of every host: as long as they reach each other and a host, they may go on answering reads, and \
    acknowledging writes, which are lost when they return. And stop what uses the volume: a file system that was mounted has newer blocks in memory, \
    and is to be mounted again, and checked. A chunk that is served, or will be by itself, is refused, and so is the command if anything has changed since it was shown. \
    A copy whose disk failed under a process that lives does not count as living for a chunk that is named (--chunk).";

/// Chunks that one call forces; see `ForceServeRequest`.
const FORCED_MAX: usize = 64;

#[derive(Args)]
pub(super) struct ForceArguments {
    /// The volume's name
    name: String,
    /// Only this chunk; may be repeated [default: all that too few copies can serve]
    #[arg(long = "chunk", value_name = "N")]
    chunks: Vec<u32>,
    /// The copy on this node, or on this disk of it: UUIDs, or the beginnings of them; may be repeated, for chunks that have copies elsewhere
    /// [default: of each chunk the copy that is worth most]
    #[arg(long = "copy", value_name = "NODE[/DISK]")]
    copies: Vec<String>,
    /// Show what may be lost, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
}

#[derive(serde::Serialize)]
struct CopyView {
    node: String,
    disk: String,
    /// Its node's present life is heard.
    heard: bool,
    /// Since its node was last heard; null if this master has not heard it.
    silent_seconds: Option<u64>,
    /// "in-sync", "in-sync-before", "left-out", "filling", "empty", "gone" or "unknown".
    worth: &'static str,
    /// In which epoch it was last in sync, or was being filled.
    epoch: Option<u64>,
    sealed_epoch: u64,
    flushed_epoch: u64,
    /// For how long it has been seen out of sync.
    out_seconds: Option<u64>,
    chosen: bool,
}

#[derive(serde::Serialize)]
struct ChunkView {
    index: u32,
    epoch: u64,
    in_sync: u32,
    living: u32,
    bytes: u64,
    copies: Vec<CopyView>,
    /// What is lost with the chosen copy; null if none can be chosen.
    lost: Option<String>,
    /// Served by the chosen copy from this epoch on.
    forced_epoch: Option<u64>,
}

#[derive(serde::Serialize)]
struct ForceView {
    volume: String,
    chunks: Vec<ChunkView>,
    /// Of the chunks for which a copy is chosen that is not in sync: what is at stake at most.
    bytes_at_stake: u64,
    /// Whether every chosen copy is served now.
    forced: bool,
}

fn worth(copy: &v1::UnservedCopy) -> &'static str {
    match copy.worth() {
        v1::CopyWorth::InSync => "in-sync",
        v1::CopyWorth::InSyncBefore => "in-sync-before",
        v1::CopyWorth::LeftOut => "left-out",
        v1::CopyWorth::Filling => "filling",
        v1::CopyWorth::Empty => "empty",
        v1::CopyWorth::Gone => "gone",
        v1::CopyWorth::Unknown | v1::CopyWorth::Unspecified => "unknown",
    }
}

/// What is lost when this copy is served.
fn lost(chunk: &v1::UnservedChunk, copy: &v1::UnservedCopy) -> String {
    let (bytes, at, epoch) = (ByteCount(chunk.bytes), chunk.epoch, copy.epoch);
    match copy.worth() {
        v1::CopyWorth::InSync => "nothing that was acknowledged: the copy is in sync".to_owned(),
        v1::CopyWorth::InSyncBefore => {
            "nothing that was flushed; of the rest, what its disk had not kept when its process ended"
                .to_owned()
        }
        v1::CopyWorth::LeftOut => format!(
            "all that was acknowledged since epoch {epoch}, in which the copy was last in sync (the chunk is at {at}): up to {bytes}"
        ),
        v1::CopyWorth::Filling => format!(
            "up to {bytes}: the copy was being sent what it lacked, in epoch {epoch}; blocks of different times are beside each other, and some may be missing"
        ),
        _ => "not known: its node has said nothing that could be served".to_owned(),
    }
}

/// That each text means the same node for every chunk.
fn check_names(chunks: &[v1::UnservedChunk], wanted: &[String]) -> Result<(), Failure> {
    for text in wanted {
        let node = text.split_once('/').map_or(text.as_str(), |(node, _)| node);
        let copies = chunks.iter().flat_map(|chunk| &chunk.copies);
        let nodes = copies.filter_map(|copy| copy.copy.as_ref());
        let nodes = nodes.map(|place| uuid_text(&place.node));
        let named: std::collections::BTreeSet<String> = nodes.filter(|name| name.starts_with(node)).collect();
        if named.len() > 1 {
            let named: Vec<String> = named.into_iter().collect();
            return Err(Failure::new(format!(
                "{} nodes that have copies of these chunks begin with \"{node}\": {}; write more of it",
                named.len(),
                named.join(", ")
            )));
        }
    }
    Ok(())
}

/// Which copy of a chunk is to be served, by its node.
fn choose<'a>(
    chunk: &'a v1::UnservedChunk,
    wanted: &[String],
) -> Result<Option<&'a v1::UnservedCopy>, Failure> {
    let place = |copy: &v1::UnservedCopy| {
        let place = copy.copy.clone().unwrap_or_default();
        (uuid_text(&place.node), uuid_text(&place.disk))
    };
    if wanted.is_empty() {
        let proposed = uuid_text(&chunk.proposed);
        return Ok(chunk.copies.iter().find(|copy| place(copy).0 == proposed));
    }
    for text in wanted {
        let (node, disk) = text.split_once('/').unwrap_or((text, ""));
        let named: Vec<_> = chunk
            .copies
            .iter()
            .filter(|copy| {
                let (of_node, of_disk) = place(copy);
                !node.is_empty() && of_node.starts_with(node) && of_disk.starts_with(disk)
            })
            .collect();
        match named[..] {
            [] => {}
            [copy] => return Ok(Some(copy)),
            _ => {
                return Err(Failure::new(format!(
                    "{} copies of chunk {} begin with \"{text}\"; write more of it",
                    named.len(),
                    chunk.index
                )));
            }
        }
    }
    let places: Vec<String> = chunk
        .copies
        .iter()
        .map(|copy| {
            let (node, disk) = place(copy);
            format!("{node}/{disk}")
        })
        .collect();
    Err(Failure::new(format!(
        "chunk {} has no copy there; it has {}: {}",
        chunk.index,
        places.len(),
        places.join(", ")
    )))
}

fn view(chunk: &v1::UnservedChunk, chosen: Option<&v1::UnservedCopy>) -> ChunkView {
    let copies = chunk.copies.iter().map(|copy| {
        let place = copy.copy.clone().unwrap_or_default();
        CopyView {
            node: uuid_text(&place.node),
            disk: uuid_text(&place.disk),
            heard: copy.heard,
            silent_seconds: copy.silent_ms.map(|silent| silent / 1000),
            worth: worth(copy),
            epoch: Some(copy.epoch).filter(|&epoch| epoch > 0),
            sealed_epoch: copy.sealed_epoch,
            flushed_epoch: copy.flushed_epoch,
            out_seconds: copy.out_ms.map(|out| out / 1000),
            chosen: chosen.is_some_and(|chosen| std::ptr::eq(chosen, copy)),
        }
    });
    ChunkView {
        index: chunk.index,
        epoch: chunk.epoch,
        in_sync: chunk.in_sync,
        living: chunk.living,
        bytes: chunk.bytes,
        copies: copies.collect(),
        lost: chosen.map(|chosen| lost(chunk, chosen)),
        forced_epoch: None,
    }
}

fn describe_copy(copy: &CopyView, at: u64) -> Vec<String> {
    let node = match (copy.heard, copy.silent_seconds) {
        (true, _) => "alive".to_owned(),
        (false, Some(silent)) => format!("silent for {silent} s"),
        (false, None) => "not heard".to_owned(),
    };
    let out = copy
        .out_seconds
        .map_or_else(String::new, |out| format!(", seen out of sync for {out} s"));
    let epoch = copy.epoch.unwrap_or_default();
    let flushed = copy.flushed_epoch;
    let worth = match copy.worth {
        "in-sync" => format!("in sync at epoch {at}"),
        "in-sync-before" => {
            format!("in sync at epoch {at}, in a life that has ended; last flushed in epoch {flushed}")
        }
        "left-out" => format!("in sync until epoch {epoch}, last flushed in epoch {flushed}{out}"),
        "filling" => format!("was being filled in epoch {epoch}{out}"),
        "empty" => "nothing was ever written there".to_owned(),
        "gone" => "its node has no such copy, or cannot read it".to_owned(),
        _ => format!("not known{out}"),
    };
    let chosen = if copy.chosen { "serve" } else { "" };
    vec![
        chosen.to_owned(),
        copy.node.clone(),
        copy.disk.clone(),
        node,
        worth,
    ]
}

fn describe(view: &ForceView) -> String {
    let mut text = String::new();
    for chunk in &view.chunks {
        text.push_str(&format!(
            "chunk {} of volume {}, epoch {}: {} of its {} copies in sync live\n",
            chunk.index, view.volume, chunk.epoch, chunk.living, chunk.in_sync
        ));
        let mut rows = vec![
            ["", "NODE", "DISK", "ITS NODE", "THE COPY"]
                .map(str::to_owned)
                .to_vec(),
        ];
        rows.extend(chunk.copies.iter().map(|copy| describe_copy(copy, chunk.epoch)));
        text.push_str(&table(&rows));
        text.push_str(&match &chunk.lost {
            Some(lost) => format!("lost: {lost}\n\n"),
            None if chunk.copies.iter().any(|copy| copy.heard && copy.worth == "unknown") => {
                "no copy of it is chosen by itself: a node that lives has not said how its copy is, which may be the best (it is busy, or of an earlier release); repeat the command, or name one with --copy\n\n".to_owned()
            }
            None => "no copy of it can be chosen by itself; start a node that has one, or name one with --copy\n\n".to_owned(),
        });
    }
    let chosen = view.chunks.iter().filter(|chunk| chunk.lost.is_some()).count();
    text.push_str(&format!(
        "{chosen} of {} chunks would be served by force; up to {} of what was acknowledged is at stake, without a way back\n",
        view.chunks.len(),
        ByteCount(view.bytes_at_stake)
    ));
    text
}

/// Whether somebody at a terminal says so, by the volume's name. Who has none is told what there is to know before `--yes`.
pub(super) fn confirm(volume: &str, to_know: &str, question: &str) -> Result<(), Failure> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(Failure::new(format!(
            "nothing was changed: this cannot be taken back, and there is no terminal to ask at; {to_know}, then repeat the command \
             with --yes"
        )));
    }
    eprint!("{question} Write its name to go on: ");
    drop(std::io::stderr().flush());
    let mut line = String::new();
    input.lock().read_line(&mut line).map_err(Failure::new)?;
    match line.trim() == volume {
        true => Ok(()),
        false => Err(Failure::new("nothing was changed")),
    }
}

pub(super) fn run(
    cluster: &ClusterArguments,
    arguments: ForceArguments,
    output: &Output,
) -> Result<(), Failure> {
    let ForceArguments {
        name, chunks, copies, ..
    } = arguments;
    let request = v1::ShowUnservedRequest {
        name: name.clone(),
        chunks,
    };
    let found = cluster.call(|client: Client| async move { client.show_unserved(request).await })?;
    if found.chunks.is_empty() {
        return Err(Failure::new(format!(
            "each chunk of volume {name} has enough living copies in sync, or will have by itself: nothing is to be forced"
        )));
    }
    check_names(&found.chunks, &copies)?;
    let (mut views, mut forced, mut bytes_at_stake) = (Vec::new(), Vec::new(), 0);
    for chunk in &found.chunks {
        let chosen = choose(chunk, &copies)?;
        views.push(view(chunk, chosen));
        if let Some(copy) = chosen {
            if copy.worth() != v1::CopyWorth::InSync {
                bytes_at_stake += chunk.bytes;
            }
            forced.push(v1::ForcedCopy {
                index: chunk.index,
                node: copy.copy.clone().unwrap_or_default().node,
                epoch: chunk.epoch,
                shown: chunk.copies.clone(),
            });
        }
    }
    let mut view = ForceView {
        volume: name.clone(),
        chunks: views,
        bytes_at_stake,
        forced: false,
    };
    let changes = !arguments.dry_run && !forced.is_empty();
    if !output.is_json() || !changes {
        output.print(&view, || describe(&view));
    }
    if arguments.dry_run {
        return Ok(());
    }
    if forced.is_empty() {
        return Err(Failure::reported());
    }
    if !arguments.yes {
        if output.is_json() {
            return Err(Failure::new(
                "nothing was changed: with --json nothing is shown to decide on; look at it with --dry-run, then repeat the command with --yes",
            ));
        }
        confirm(
            &name,
            "look at it with --dry-run",
            "Are the other copies' nodes off for good, and is what uses the volume stopped?",
        )?;
    }
    let mut served = 0;
    for copies in forced.chunks(FORCED_MAX) {
        let request = v1::ForceServeRequest {
            name: name.clone(),
            copies: copies.to_vec(),
        };
        let answer = cluster.call(|client: Client| async move { client.force_serve(request).await });
        let answer = answer.map_err(|failure| match served {
            0 => failure,
            _ => Failure::new(format!(
                "{served} of {} chunks are served by force, and the next {} are not: {failure}",
                forced.len(),
                copies.len()
            )),
        })?;
        served += answer.chunks.len();
        for chunk in &answer.chunks {
            let shown = view.chunks.iter_mut().find(|view| view.index == chunk.index);
            if let Some(shown) = shown {
                shown.forced_epoch = Some(chunk.epoch);
            }
        }
    }
    view.forced = true;
    match output.is_json() {
        true => output.print(&view, String::new),
        false => write(
            format!(
                "{served} chunks of volume {} are served by force; \"redhare status\" shows when other copies are in sync again, and whether there are more such chunks\n",
                view.volume
            )
            .as_bytes(),
        ),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(node: u8, worth: v1::CopyWorth, epoch: u64) -> v1::UnservedCopy {
        v1::UnservedCopy {
            copy: Some(v1::Copy {
                node: vec![node; 16],
                disk: vec![node + 1; 16],
                incarnation: 0,
            }),
            heard: true,
            worth: worth.into(),
            epoch,
            ..v1::UnservedCopy::default()
        }
    }

    fn chunk() -> v1::UnservedChunk {
        v1::UnservedChunk {
            index: 3,
            epoch: 9,
            bytes: 256 << 20,
            in_sync: 1,
            living: 0,
            copies: vec![
                copy(0x11, v1::CopyWorth::LeftOut, 5),
                copy(0x12, v1::CopyWorth::Filling, 9),
                copy(0x51, v1::CopyWorth::Gone, 0),
            ],
            proposed: vec![0x11; 16],
        }
    }

    #[test]
    fn copies_are_chosen_by_worth_or_by_name() {
        let chunk = chunk();
        let chosen = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|&text| text.to_owned()).collect();
            let chosen = choose(&chunk, &wanted).map_err(|failure| failure.to_string())?;
            Ok(chosen.map(|copy| copy.copy.clone().unwrap_or_default().node[0]))
        };
        assert_eq!(chosen(&[]), Ok(Some(0x11)));
        assert_eq!(chosen(&["12"]), Ok(Some(0x12)));
        assert_eq!(chosen(&["9", "1/13"]), Ok(Some(0x12)));
        let said: String = chosen(&["1"]).unwrap_err();
        assert!(said.contains("2 copies of chunk 3 begin with"), "{said}");
        let said: String = chosen(&["12/14"]).unwrap_err();
        assert!(
            said.contains("chunk 3 has no copy there; it has 3: 1111"),
            "{said}"
        );
        assert!(chosen(&["/"]).is_err(), "no node is named");
        // The same beginning must not mean one node here and another there.
        let mut other = chunk.clone();
        other.copies.retain(|copy| copy.worth() != v1::CopyWorth::LeftOut);
        let said = check_names(&[chunk.clone(), other], &["1".to_owned()]).unwrap_err();
        assert!(said.to_string().starts_with("2 nodes that have copies"), "{said}");
        check_names(std::slice::from_ref(&chunk), &["12/13".to_owned()]).unwrap();
    }

    #[test]
    fn what_is_lost_is_said_with_numbers() {
        let chunk = chunk();
        let view = ForceView {
            volume: "data".to_owned(),
            chunks: vec![view(&chunk, Some(&chunk.copies[0])), view(&chunk, None)],
            bytes_at_stake: 256 << 20,
            forced: false,
        };
        let said = describe(&view);
        for words in [
            "chunk 3 of volume data, epoch 9: 0 of its 1 copies in sync live",
            "serve  1111",
            "in sync until epoch 5",
            "was being filled in epoch 9",
            "lost: all that was acknowledged since epoch 5, in which the copy was last in sync (the chunk is at 9): up to 256 MiB",
            "no copy of it can be chosen by itself; start a node",
            "1 of 2 chunks would be served by force; up to 256 MiB",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
}
