//! What the masters' maps of volumes say to a node: which copies belong here, and where an exported volume's chunks are.

use agentlink::{Chunk, Configuration, ToTarget};
use proto::client::{Client, ClientError};
use proto::v1;

use crate::wire::{Kind, configuration, first_copies_from, is_growth, kind_of, number};

/// Chunks asked for in one part of a map, and chunks whose places one message names.
const MAP_PART: u32 = 4096;

/// Chunks whose configurations one message names: far below the longest frame, and not many more messages than one, since a portal copies
/// its map for each.
const ROUTES_PART: usize = 32_768;

/// Where the chunks of an exported volume are.
#[derive(Default)]
pub(crate) struct Routes {
    chunks: Vec<(u32, Configuration)>,
    /// Node and disk of each copy.
    places: Vec<(u32, Vec<(u128, u128)>)>,
    nodes: Vec<(u128, String)>,
}

impl Routes {
    /// What a target on `node` that exports the volume needs of it, in this order.
    pub(crate) fn messages(self, volume: u32, node: u128) -> Vec<ToTarget> {
        let Self {
            chunks,
            places,
            nodes,
        } = self;
        // A node that exports a volume need not have a copy of it.
        let others = nodes.into_iter().filter(|(other, _)| *other != node).collect();
        let mut messages = vec![ToTarget::Peers(others)];
        // Where copies lie comes before the configurations that name them.
        let mut rest = &places[..];
        let count = chunks.len().div_ceil(ROUTES_PART).max(1);
        for part in 0..count {
            let from = part * ROUTES_PART;
            let chunks = &chunks[from..chunks.len().min(from + ROUTES_PART)];
            let end = match chunks.last() {
                Some((last, _)) if part + 1 < count => rest.partition_point(|(index, _)| index <= last),
                _ => rest.len(),
            };
            let (own, others) = rest.split_at(end);
            rest = others;
            messages.extend(own.chunks(MAP_PART as usize).map(|part| ToTarget::Places {
                volume,
                chunks: part.to_vec(),
            }));
            let chunks = chunks.to_vec();
            messages.push(ToTarget::Routes { volume, chunks });
        }
        messages
    }
}

/// A copy that belongs on this node.
pub(crate) struct Placed {
    pub(crate) chunk: Chunk,
    pub(crate) kind: Kind,
    pub(crate) disk: u128,
    /// The snapshot, as volume and number, whose copy it begins as.
    pub(crate) from: Option<(u32, u64)>,
}

/// The chunks of a volume of which `node` shall have a copy; of one that grows, those of its new ones.
pub(crate) async fn read_places(
    client: &Client,
    volume: u32,
    growing: Option<v1::Growing>,
    node: u128,
) -> Result<Option<Vec<Placed>>, ClientError> {
    let mut placed = Vec::new();
    let mut seen = 0;
    let mut first_chunk = growing.map_or(0, |growing| growing.from_chunk);
    loop {
        let request = v1::GetMapRequest {
            volume,
            first_chunk,
            limit: MAP_PART,
            with_growth: growing.is_some(),
        };
        let map = client.map(request).await?;
        if let Some(growing) = growing
            && !map
                .volume
                .as_ref()
                .is_some_and(|volume| is_growth(volume, &growing))
        {
            // A master that is behind, or this is an old answer: what it says may be less than all.
            return Ok(None);
        }
        seen += map.chunks.len();
        let kind = match map.volume.as_ref().and_then(kind_of) {
            Some(Ok(kind)) => kind,
            Some(Err(error)) => {
                tracing::error!(volume, %error, "the masters' geometry of a volume cannot be used");
                return Ok(None);
            }
            None => return Ok(None),
        };
        let from = map.volume.as_ref().and_then(first_copies_from);
        for chunk in &map.chunks {
            let mut copies = chunk.copies.iter();
            let Some(copy) = copies.find(|copy| number(&copy.node) == Some(node)) else {
                continue;
            };
            placed.push(Placed {
                chunk: Chunk {
                    volume,
                    index: chunk.index,
                },
                kind: kind.clone(),
                disk: number(&copy.disk).unwrap_or(0),
                from,
            });
        }
        match map.chunks.last() {
            Some(last) if map.chunks.len() >= MAP_PART as usize && last.index < u32::MAX => {
                first_chunk = last.index + 1;
            }
            _ => {
                let all = growing.map(|growing| (growing.chunks - growing.from_chunk) as usize);
                return Ok(all.is_none_or(|all| all == seen).then_some(placed));
            }
        }
    }
}

/// The configurations of all chunks of a volume, and where the nodes are that it names.
pub(crate) async fn read_routes(client: &Client, volume: u32) -> Result<Routes, ClientError> {
    let mut routes = Routes::default();
    let mut first_chunk = 0;
    loop {
        let request = v1::GetMapRequest {
            volume,
            first_chunk,
            limit: MAP_PART,
            with_growth: false,
        };
        let map = client.map(request).await?;
        let nodes = map.nodes.iter();
        routes
            .nodes
            .extend(nodes.filter_map(|node| Some((number(&node.node)?, node.peer_address.clone()))));
        let chunks = map.chunks.iter();
        routes.chunks.extend(
            chunks
                .clone()
                .filter_map(|chunk| Some((chunk.index, configuration(chunk)?))),
        );
        let place = |copy: &v1::Copy| Some((number(&copy.node)?, number(&copy.disk)?));
        routes
            .places
            .extend(chunks.map(|chunk| (chunk.index, chunk.copies.iter().filter_map(place).collect())));
        match map.chunks.last() {
            Some(last) if map.chunks.len() >= MAP_PART as usize && last.index < u32::MAX => {
                first_chunk = last.index + 1;
            }
            _ => return Ok(routes),
        }
    }
}

#[cfg(test)]
mod tests {
    use agentlink::encode_known;

    use super::*;

    #[test]
    fn the_map_of_a_large_volume_comes_in_frames_that_a_target_takes() {
        let configuration = Configuration {
            epoch: 1 << 60,
            write_node: u128::MAX,
            members: vec![(u128::MAX, 1 << 60); 3],
        };
        let count = 3 * ROUTES_PART as u32 + 5;
        let routes = Routes {
            // One of them has no configuration yet.
            chunks: (0..count)
                .filter(|index| *index != 7)
                .map(|index| (index, configuration.clone()))
                .collect(),
            places: (0..count).map(|index| (index, vec![(u128::MAX, 1); 3])).collect(),
            nodes: vec![(1, "a".to_owned()), (2, "b".to_owned())],
        };
        let messages = routes.messages(9, 2);
        let (mut placed, mut routed) = (Vec::new(), Vec::new());
        for message in &messages {
            let mut frame = Vec::new();
            assert!(encode_known(message, u32::MAX, &mut frame));
            assert!(frame.len() < 8 << 20, "{} bytes", frame.len());
            match message {
                ToTarget::Peers(peers) => assert_eq!(*peers, [(1, "a".to_owned())]),
                ToTarget::Places { chunks, .. } => placed.extend(chunks.iter().map(|(index, _)| *index)),
                ToTarget::Routes { chunks, .. } => {
                    routed.extend(chunks.iter().map(|(index, _)| *index));
                    let places = routed.iter().all(|index| placed.binary_search(index).is_ok());
                    assert!(places, "a configuration came before its places");
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(placed.iter().copied().eq(0..count));
        assert!(routed.iter().copied().eq((0..count).filter(|index| *index != 7)));
        assert_eq!(
            messages
                .iter()
                .filter(|message| matches!(message, ToTarget::Routes { .. }))
                .count(),
            4
        );
        assert_eq!(
            Routes::default().messages(9, 2).len(),
            2,
            "also of a volume without any"
        );
    }
}
