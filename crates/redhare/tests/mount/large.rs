//! One directory with a great many entries, in bounded memory.

use super::memory::statistics;
use super::*;

/// Entries, unless the environment says how many.
const ENTRIES: usize = 100_000;
const ENTRIES_VARIABLE: &str = "REDHARE_DIRECTORY_ENTRIES";
/// How many are looked up by name, and how many are removed.
const LOOKED_UP: usize = 2000;
const REMOVED: usize = 5000;
/// What a mount's process may take at most beyond the bounds that it is given, in bytes: the program itself, the buffers of its device, requests under way.
const PROGRAM_BYTES: u64 = 32 << 20;
/// A mount that writes has bounds of its own (`docs/mount.md`); what is done here reaches only that of the pages that it has read.
const WRITER_BYTES: u64 = 64 << 20;

/// The most memory that a process had, in bytes.
fn most_bytes(mount: &Mount) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", mount.process.id())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn name(number: usize) -> String {
    format!("an entry among very many, number {number:08}")
}

/// Lists it with attributes, as `ls -l` does, and gives how many of each were seen.
fn list(directory: &Path, entries: usize) -> Vec<u8> {
    let mut seen = vec![0u8; entries];
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let text = entry.file_name().into_string().unwrap();
        let number: usize = text.rsplit(' ').next().unwrap().parse().unwrap();
        assert_eq!(text, name(number));
        assert_eq!(entry.metadata().unwrap().len(), number as u64 % 7);
        seen[number] += 1;
    }
    seen
}

#[test]
fn a_large_directory_is_listed_looked_up_and_emptied_in_bounded_memory() {
    if !can_mount("a_large_directory_is_listed_looked_up_and_emptied_in_bounded_memory") {
        return;
    }
    let entries = std::env::var(ENTRIES_VARIABLE).map_or(ENTRIES, |text| text.parse().unwrap());
    let place = Place::new("mount-large");
    let source = place.0.join("source");
    fs::create_dir_all(source.join("large")).unwrap();
    for number in 0..entries {
        fs::write(source.join("large").join(name(number)), &b"seven.."[..number % 7]).unwrap();
    }
    let volume = format!("file:{}", place.0.join("volume").display());
    let size = format!("{}MiB", 64 + entries / 1000);
    succeed(None, &["format", &volume, "--size", &size]);
    succeed(None, &["import", source.to_str().unwrap(), &volume]);
    fs::remove_dir_all(&source).unwrap();
    let all = vec![1; entries];
    let bounds: &[&str] = &["--read-only", "--cache", "4MiB", "--data-cache", "0B"];
    for (round, more) in [&[][..], &["--stay"]].into_iter().enumerate() {
        let options = [bounds, more].concat();
        let mount = Mount::start(None, &volume, &place.0.join(format!("mount{round}")), &options);
        let directory = mount.path("large");
        assert!(list(&directory, entries) == all, "each once: {more:?}");
        for step in 0..LOOKED_UP {
            let number = step * 7919 % entries;
            let found = fs::metadata(directory.join(name(number))).unwrap();
            assert_eq!(found.len(), number as u64 % 7);
            let error = fs::metadata(directory.join(name(entries + step))).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        }
        let said = statistics(&mount);
        assert!(said["cache_bytes"].as_u64().unwrap() <= 4 << 20, "{said}");
        assert!(said["listing_bytes"].as_u64().unwrap() <= 4 << 20, "{said}");
        let most = most_bytes(&mount);
        println!("{entries} entries, {more:?}: at most {} MiB", most >> 20);
        assert!(most < (4 << 20) + PROGRAM_BYTES, "{most} bytes");
        mount.end();
    }

    // Some are removed, between the parts of a listing that is under way.
    let mount = Mount::start(None, &volume, &place.0.join("writes"), &[]);
    let directory = mount.path("large");
    let mut removed = 0;
    let mut left = Vec::new();
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        if removed < REMOVED && left.len() < removed * 4 + 100 {
            left.push(path);
        } else if removed < REMOVED {
            fs::remove_file(&path).unwrap();
            removed += 1;
        } else {
            left.push(path);
        }
    }
    assert_eq!(
        (removed, left.len()),
        (REMOVED.min(entries / 5), entries - removed),
        "each was listed once"
    );
    fs::write(directory.join("another"), "").unwrap();
    fs::remove_file(directory.join("another")).unwrap();
    let seen = list(&directory, entries);
    assert_eq!(seen.iter().filter(|seen| **seen == 1).count(), left.len());
    assert!(seen.iter().all(|seen| *seen <= 1));
    let most = most_bytes(&mount);
    println!("{entries} entries, one that writes: at most {} MiB", most >> 20);
    assert!(most < WRITER_BYTES + PROGRAM_BYTES, "{most} bytes");
    mount.end();
    succeed(None, &["verify", &volume]);
}
