//! Two of a volume's three copies have other bytes than were written, and the volume keeps no checksums: PackFS' own say so, and the third
//! copy is read, by a command and by a mount.

use super::*;

/// What a file begins with says where it is on a disk.
const MARK_BYTES: usize = 32;
const FILES: u64 = 40;
const FILE_BYTES: usize = 9000;

fn content(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; FILE_BYTES];
    foundation::Random::from_seed(900 + number).fill(&mut bytes);
    bytes
}

/// Changes a byte of each file's content on a disk; of how many files.
fn spoil(disk: &Path) -> usize {
    const PIECE: usize = 1 << 20;
    let file = File::options().read(true).write(true).open(disk).unwrap();
    let marks: BTreeMap<Vec<u8>, u64> = (0..FILES)
        .map(|number| (content(number)[..MARK_BYTES].to_vec(), number))
        .collect();
    let first: std::collections::BTreeSet<[u8; 2]> = marks.keys().map(|mark| [mark[0], mark[1]]).collect();
    let length = file.metadata().unwrap().len() as usize;
    let (mut spoiled, mut piece) = (std::collections::BTreeSet::new(), vec![0; PIECE + MARK_BYTES]);
    for at in (0..length).step_by(PIECE) {
        let count = (PIECE + MARK_BYTES).min(length - at);
        let read = file.read_at(&mut piece[..count], at as u64).unwrap();
        if piece[..read].iter().all(|byte| *byte == 0) {
            continue;
        }
        for (position, found) in piece[..read].windows(MARK_BYTES).enumerate() {
            if !first.contains(&[found[0], found[1]]) {
                continue;
            }
            if let Some(number) = marks.get(found) {
                let place = (at + position + 777) as u64;
                file.write_all_at(&[!content(*number)[777]], place).unwrap();
                spoiled.insert(*number);
            }
        }
    }
    file.sync_all().unwrap();
    spoiled.len()
}

#[test]
fn what_is_rotten_on_two_nodes_is_read_from_the_third() {
    let place = Place::in_memory("mount-damaged");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    let create = "volume create data --size 64MiB --chunk-size 16MiB --copies 3 --checksums off";
    cluster.succeed(&create.split(' ').collect::<Vec<_>>());
    let local = place.0.join("local");
    fs::create_dir_all(&local).unwrap();
    for number in 0..FILES {
        fs::write(local.join(format!("file{number}")), content(number)).unwrap();
    }
    cluster.succeed(&["fs", "format", "data"]);
    cluster.succeed(&["fs", "import", local.to_str().unwrap(), "data"]);
    cluster.wait_for_chunks("data", &[1, 2, 3], &[], &[]);
    for node in ["node1", "node2"] {
        let spoiled = spoil(&cluster.data.join(node).join("disk"));
        assert_eq!(spoiled, FILES as usize, "{node} has a copy of each file");
    }

    let out = place.0.join("out");
    cluster.succeed(&["fs", "export", "data", out.to_str().unwrap()]);
    assert!(tree(&out) == tree(&local), "exported");
    if can_mount("what_is_rotten_on_two_nodes_is_read_from_the_third") {
        let mount = Mount::start(Some(&cluster), "data", &place.0.join("mount"), &["--read-only"]);
        assert!(tree(&mount.directory) == tree(&local), "mounted");
        mount.end();
    }

    // Where the last one is as bad, it is an error with the file's name, and the others are read.
    assert_eq!(spoil(&cluster.data.join("node3/disk")), FILES as usize);
    fs::remove_dir_all(&out).unwrap();
    let refused = cluster.run(&["fs", "export", "data", out.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("/file") && said.contains("damaged in every copy"),
        "{said}"
    );
}
