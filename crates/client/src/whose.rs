//! Whose map a master gives: that of this session's volume, or of another one that came to the same address.
//!
//! A client that keeps to its cluster is refused by masters of other clusters ([`proto::client::Client::keep_to`]). What is
//! compared here is for masters of the release before, which do not look at what a call says, and a second look at the
//! others. The cluster and the volume's number say which volume it is; a number is never given twice in a cluster. The
//! volume's UUID alone does not: `redhare meta rebuild` without a backup gives it another one, with the same content.

use foundation::uuid::format_uuid;
use identity::Cluster;
use proto::v1;
use volume::VolumeNumber;

/// Which volume a session is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Whose {
    cluster: Option<Cluster>,
    number: VolumeNumber,
    uuid: Vec<u8>,
}

impl Whose {
    pub(crate) fn new(cluster: Option<Cluster>, described: &v1::Volume) -> Self {
        Self {
            cluster,
            number: VolumeNumber(described.number),
            uuid: described.uuid.clone(),
        }
    }

    /// The volume's number in its cluster.
    pub(crate) fn number(&self) -> VolumeNumber {
        self.number
    }

    /// Whether this is a map of that volume. If not: whose it is, for people.
    pub(crate) fn check(&self, map: &v1::GetMapResponse) -> Result<(), String> {
        let volume = map.volume.as_ref();
        let number = volume.map_or(0, |volume| volume.number);
        let uuid = volume.map_or(&[][..], |volume| &volume.uuid);
        let theirs = cluster(&map.cluster);
        let is_ours = match (theirs, self.cluster) {
            (Some(theirs), Some(ours)) => theirs == ours,
            // A master of the release before does not say it: content of another UUID is another volume's.
            _ => uuid == self.uuid,
        };
        match is_ours && number == self.number.0 {
            true => Ok(()),
            false => Err(named(number, uuid, theirs)),
        }
    }
}

impl std::fmt::Display for Whose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&named(self.number.0, &self.uuid, self.cluster))
    }
}

/// A cluster as messages name it; none if it is left out.
pub(crate) fn cluster(bytes: &[u8]) -> Option<Cluster> {
    Cluster::from_bytes(bytes.try_into().ok()?)
}

fn named(number: u32, uuid: &[u8], cluster: Option<Cluster>) -> String {
    let uuid = uuid.try_into().map_or_else(|_| "none".to_owned(), format_uuid);
    let cluster = cluster.map_or_else(|| "not named".to_owned(), |cluster| cluster.to_string());
    format!("volume number {number} (UUID {uuid}, cluster {cluster})")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [u8; 16] = [7; 16];
    const THEIRS: [u8; 16] = [8; 16];

    fn volume(number: u32, uuid: u8) -> v1::Volume {
        v1::Volume {
            number,
            uuid: vec![uuid; 16],
            ..v1::Volume::default()
        }
    }

    fn map(cluster: &[u8], volume: v1::Volume) -> v1::GetMapResponse {
        v1::GetMapResponse {
            volume: Some(volume),
            cluster: cluster.to_vec(),
            ..v1::GetMapResponse::default()
        }
    }

    #[test]
    fn a_map_is_of_the_cluster_and_number_that_the_session_began_with() {
        let whose = Whose::new(cluster(&OURS), &volume(3, 1));
        assert_eq!(whose.check(&map(&OURS, volume(3, 1))), Ok(()));
        // Metadata that were made anew without a backup.
        assert_eq!(whose.check(&map(&OURS, volume(3, 2))), Ok(()));
        let foreign = whose.check(&map(&THEIRS, volume(3, 1))).unwrap_err();
        assert!(
            foreign.contains("volume number 3") && foreign.contains("08080808-"),
            "{foreign}"
        );
        assert!(whose.check(&map(&OURS, volume(4, 1))).is_err());
        assert!(whose.check(&v1::GetMapResponse::default()).is_err());
    }

    #[test]
    fn a_master_that_does_not_say_its_cluster_is_known_by_the_volumes_uuid() {
        for known in [cluster(&OURS), None] {
            let whose = Whose::new(known, &volume(3, 1));
            assert_eq!(whose.check(&map(&[], volume(3, 1))), Ok(()));
            assert!(whose.check(&map(&[], volume(3, 2))).is_err());
            assert!(whose.check(&map(&[], volume(2, 1))).is_err());
        }
    }
}
