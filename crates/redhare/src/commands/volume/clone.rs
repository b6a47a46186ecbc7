//! `redhare volume clone` and `redhare volume flatten`.

use std::time::Duration;

use clap::Args;
use foundation::ByteCount;
use indicatif::{ProgressBar, ProgressStyle};
use master::view::OriginView;
use master::{Client, v1};

use super::{VolumeView, view};
use crate::commands::cluster::ClusterArguments;
use crate::output::{Failure, Output};

pub(super) const CLONE_EXAMPLES: &str = "Example:\n  redhare volume snapshot create data monday\n  redhare volume clone data@monday trial\n\n\
    The clone is a volume of its own, which can be written, exported, enlarged and kept in snapshots; it begins as the snapshot is, with its copies and \
    checksums. Its copies lie where those of the volume do and share with them what neither has written since; the room for all of it is promised all the \
    same. The snapshot cannot be deleted before its clones are deleted or flattened.";

pub(super) const FLATTEN_EXAMPLES: &str = "Example:\n  redhare volume flatten trial\n\nEach node copies what its copies still share, in the background, while the \
    volume is used; it goes on after restarts, and if this command is stopped. A node that is gone does it when it is back and the snapshot is deleted.";

/// How often it is looked how far it is.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Args)]
pub(super) struct CloneArguments {
    /// The snapshot: VOLUME@SNAPSHOT
    #[arg(value_name = "VOLUME@SNAPSHOT")]
    snapshot: String,
    /// The new volume's name
    name: String,
    /// Do not wait until the nodes have made the copies
    #[arg(long)]
    no_wait: bool,
}

#[derive(Args)]
pub(super) struct FlattenArguments {
    /// The clone's name
    name: String,
    /// Do not wait until all copies have data of their own
    #[arg(long)]
    no_wait: bool,
}

pub(crate) fn describe(origin: &OriginView) -> String {
    let OriginView { volume, snapshot, .. } = origin;
    match (origin.left_copies, origin.flattened_of) {
        (Some(left), Some(copies)) if copies > 0 => {
            format!(
                "{volume}@{snapshot}, flattened {} of {copies} copies",
                copies - left.min(copies)
            )
        }
        (Some(_), _) => format!("{volume}@{snapshot}, flattening"),
        _ => format!("{volume}@{snapshot}"),
    }
}

pub(super) fn run(
    cluster: &ClusterArguments,
    arguments: CloneArguments,
    output: &Output,
) -> Result<(), Failure> {
    let CloneArguments {
        snapshot: from,
        name,
        no_wait,
    } = arguments;
    let Some((volume, snapshot)) = from.split_once('@') else {
        return Err(Failure::new(format!(
            "{from} names no snapshot: write VOLUME@SNAPSHOT, such as data@monday; \"redhare volume snapshot list {from}\" shows what there is"
        )));
    };
    let request = v1::CloneVolumeRequest {
        volume: volume.to_owned(),
        snapshot: snapshot.to_owned(),
        name: name.clone(),
        no_wait,
    };
    cluster.call(|client: Client| async move { client.clone_volume(request).await })?;
    let view = shown(cluster, &name)?;
    output.print(&view, || {
        let (size, copies, state) = (ByteCount(view.size_bytes), view.copies, view.state);
        format!("volume {name} of {size} in {copies} copies, a clone of {from}, is {state}")
    });
    Ok(())
}

fn shown(cluster: &ClusterArguments, name: &str) -> Result<VolumeView, Failure> {
    let request = v1::ShowVolumeRequest {
        name: name.to_owned(),
    };
    let answer = cluster.call(|client: Client| async move { client.show_volume(request).await })?;
    Ok(view(&answer.volume.unwrap_or_default()))
}

pub(super) fn flatten(
    cluster: &ClusterArguments,
    FlattenArguments { name, no_wait }: &FlattenArguments,
    output: &Output,
) -> Result<(), Failure> {
    let before = shown(cluster, name)?;
    let Some(origin) = &before.origin else {
        output.print(&before, || {
            format!("volume {name} shares nothing: it is no clone, or was flattened already")
        });
        return Ok(());
    };
    let from = format!("{}@{}", origin.volume, origin.snapshot);
    let request = v1::FlattenVolumeRequest { name: name.clone() };
    cluster.call(|client: Client| async move { client.flatten_volume(request).await })?;
    if *no_wait {
        let view = shown(cluster, name)?;
        output.print(&view, || {
            format!("volume {name} is being flattened; \"redhare volume list\" shows how far it is")
        });
        return Ok(());
    }
    // Left out by itself where nobody looks.
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} copies");
    let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(format!("flatten {name}"));
    let view = loop {
        let view = shown(cluster, name)?;
        let Some(origin) = &view.origin else { break view };
        let (left, copies) = (origin.left_copies.unwrap_or(0), origin.flattened_of.unwrap_or(0));
        bar.set_length(copies);
        bar.set_position(copies - left.min(copies));
        std::thread::sleep(LOOK);
    };
    bar.finish_and_clear();
    output.print(&view, || {
        format!("volume {name} shares nothing with {from} any more")
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use master::view::origin;

    use super::*;

    #[test]
    fn an_origin_is_said_with_what_is_flattened_of_it() {
        let mut shared = v1::Origin {
            volume: 7,
            snapshot: 9,
            ..v1::Origin::default()
        };
        let said = |origin: &v1::Origin| {
            let volume = v1::Volume {
                origin: Some(origin.clone()),
                ..v1::Volume::default()
            };
            origin_text(&volume)
        };
        fn origin_text(volume: &v1::Volume) -> String {
            describe(&origin(volume).unwrap())
        }
        assert_eq!(said(&shared), "7@9");
        (shared.volume_name, shared.snapshot_name) = ("data".to_owned(), "monday".to_owned());
        assert_eq!(said(&shared), "data@monday");
        shared.flattening = true;
        assert_eq!(said(&shared), "data@monday, flattening");
        (shared.left_copies, shared.copies) = (2, 9);
        assert_eq!(said(&shared), "data@monday, flattened 7 of 9 copies");
        assert!(origin(&v1::Volume::default()).is_none());
    }
}
