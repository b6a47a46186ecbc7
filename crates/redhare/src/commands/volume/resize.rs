//! `redhare volume resize`.

use std::hash::{BuildHasher, Hasher, RandomState};

use clap::Args;
use foundation::ByteCount;
use master::{Client, v1};

use super::{VolumeView, view};
use crate::commands::cluster::ClusterArguments;
use crate::output::{Failure, Output};

pub(super) const EXAMPLES: &str = "Examples:\n  redhare volume resize data --size 128GiB\n  redhare volume resize data --size +64GiB\n  redhare volume resize data --size 96GiB --cancel-growth\n\nNo block moves: the new part \
    is laid over the nodes that have room. A PackFS on the volume takes it when it is opened for writing next, when it runs \
    full, and when df asks a mount. Volumes cannot shrink.\n\nWhile a volume grows it takes no other size: somebody else may have asked for that growth. \
    With --cancel-growth it is taken back, all of it or down to the size named, such as one for which there is no room any more; only as \
    far as its chunks have no places yet.";

#[derive(Args)]
pub(super) struct ResizeArguments {
    /// Its name
    name: String,
    /// The size to have, such as 128GiB, or +64GiB for so much more; rounded up to whole chunks
    #[arg(long, value_parser = parse_wanted)]
    size: Wanted,
    /// Do not wait until the nodes have made the new copies
    #[arg(long)]
    no_wait: bool,
    /// Take back a growth to more that is under way, as far as its chunks have no places; without it the size is refused then
    #[arg(long)]
    cancel_growth: bool,
}

/// A size, or how much more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    All(ByteCount),
    More(ByteCount),
}

impl Wanted {
    /// In all. How much more than what, nobody can say of one that grows: asked for twice, it would be taken once.
    fn of(self, volume: &VolumeView) -> Result<ByteCount, Failure> {
        match (self, volume.growing_to_bytes) {
            (Self::All(size), _) => Ok(size),
            (Self::More(more), None) => Ok(ByteCount(volume.size_bytes.saturating_add(more.0))),
            (Self::More(more), Some(to)) => Err(Failure::new(format!(
                "volume {} of {} is growing to {}, and +{more} could mean more than either; wait until \"redhare volume show {0}\" has \
                 it grown, or give the size to have in all",
                volume.name,
                ByteCount(volume.size_bytes),
                ByteCount(to)
            ))),
        }
    }

    /// What the masters are asked for. More is added to what was seen: they refuse it if somebody else has been quicker.
    fn request(
        self,
        volume: &VolumeView,
        no_wait: bool,
        cancel_growth: bool,
    ) -> Result<v1::ResizeVolumeRequest, Failure> {
        let is_more = matches!(self, Self::More(_));
        if is_more && cancel_growth {
            return Err(Failure::new(
                "--cancel-growth takes the size to have in all: more than what, nobody can say of a volume that grows",
            ));
        }
        Ok(v1::ResizeVolumeRequest {
            name: volume.name.clone(),
            size_bytes: self.of(volume)?.0,
            no_wait,
            expected_bytes: is_more.then_some(volume.size_bytes),
            call: match is_more {
                true => RandomState::new().build_hasher().finish(),
                false => 0,
            },
            cancel_growth,
        })
    }
}

fn parse_wanted(text: &str) -> Result<Wanted, String> {
    let parse = |text: &str| text.parse::<ByteCount>().map_err(|error| error.to_string());
    match text.strip_prefix('+') {
        Some(more) => parse(more).map(Wanted::More),
        None => parse(text).map(Wanted::All),
    }
}

pub(super) fn run(
    cluster: &ClusterArguments,
    arguments: ResizeArguments,
    output: &Output,
) -> Result<(), Failure> {
    let ResizeArguments {
        name,
        size,
        no_wait,
        cancel_growth,
    } = arguments;
    let request = v1::ShowVolumeRequest { name };
    let shown = cluster.call(|client: Client| async move { client.show_volume(request).await })?;
    let before = view(&shown.volume.unwrap_or_default());
    let request = size.request(&before, no_wait, cancel_growth)?;
    let answer = cluster.call(|client: Client| async move { client.resize_volume(request).await })?;
    let view = view(&answer.volume.unwrap_or_default());
    output.print(&view, || resized(&view, &before));
    Ok(())
}

fn resized(view: &VolumeView, before: &VolumeView) -> String {
    let (name, size, was) = (
        &view.name,
        ByteCount(view.size_bytes),
        ByteCount(before.size_bytes),
    );
    match view.growing_to_bytes {
        Some(more) => format!("volume {name} of {size} is growing to {}", ByteCount(more)),
        None if size == was && before.growing_to_bytes.is_some() => {
            format!("volume {name} has {size}, and does not grow any more")
        }
        None if size == was => format!("volume {name} has {size} already"),
        None => format!("volume {name} has grown from {was} to {size}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_asked_of_a_volume_that_does_not_grow() {
        let mut volume = v1::Volume {
            name: "data".to_owned(),
            size_bytes: 1 << 30,
            geometry: Some(v1::Geometry {
                chunk_bytes: 256 << 20,
                ..v1::Geometry::default()
            }),
            ..v1::Volume::default()
        };
        let (more, all) = (parse_wanted("+1GiB").unwrap(), parse_wanted("3GiB").unwrap());
        let request = more.request(&view(&volume), true, false).unwrap();
        assert_eq!(
            (request.size_bytes, request.expected_bytes),
            (2 << 30, Some(1 << 30))
        );
        assert_ne!(
            request.call,
            more.request(&view(&volume), true, false).unwrap().call
        );
        volume.growth_chunks = vec![4];
        let error = more.request(&view(&volume), true, false).unwrap_err().to_string();
        assert!(
            error.contains("data of 1 GiB is growing to 2 GiB") && error.contains("+1 GiB"),
            "{error}"
        );
        let request = all.request(&view(&volume), true, false).unwrap();
        assert_eq!((request.size_bytes, request.expected_bytes), (3 << 30, None));
        assert!(!request.cancel_growth, "it was not said");
        let request = all.request(&view(&volume), true, true).unwrap();
        assert_eq!((request.size_bytes, request.cancel_growth), (3 << 30, true));
        volume.growth_chunks.clear();
        let error = more.request(&view(&volume), true, true).unwrap_err().to_string();
        assert!(error.contains("the size to have in all"), "{error}");
    }
}
