//! What an open file of a mount that follows holds, and for how long.

use super::memory::statistics;
use super::*;

/// The oldest commit that a reader of the volume holds, as the masters tell.
fn oldest_read(cluster: &Cluster) -> Option<u64> {
    let said = cluster.succeed(&["--json", "volume", "leases", "data"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    said["oldest_generation"].as_u64()
}

#[test]
fn a_changed_file_that_is_open_for_too_long_is_stale_and_holds_nothing() {
    if !can_mount("a_changed_file_that_is_open_for_too_long_is_stale_and_holds_nothing") {
        return;
    }
    const LENGTH: usize = 8_000_000;
    let place = Place::in_memory("mount-stale");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    cluster.succeed(&["volume", "create", "data", "--size", "128MiB"]);
    format(Some(&cluster), "data");
    let writer = Mount::start(Some(&cluster), "data", &place.0.join("writer"), &[]);
    for name in ["changed", "removed", "same"] {
        fs::write(writer.path(name), vec![b'a'; LENGTH]).unwrap();
    }
    sync(&writer.directory);
    let start = |name: &str, seconds: &str| {
        let options = [
            "--read-only",
            "--follow-within",
            "3600",
            "--keep-changed",
            seconds,
        ];
        Mount::start(Some(&cluster), "data", &place.0.join(name), &options)
    };
    // The second one keeps what the first one gives up.
    let (brief, long) = (start("brief", "1"), start("long", "600"));
    let first = oldest_read(&cluster).unwrap();
    let open = |mount: &Mount, name: &str| File::open(mount.path(name)).unwrap();
    let names = ["changed", "removed", "same"];
    let (held, kept) = (
        names.map(|name| open(&brief, name)),
        names.map(|name| open(&long, name)),
    );
    for file in held.iter().chain(&kept) {
        file.read_exact_at(&mut [0; 4096], 0).unwrap();
    }
    fs::write(writer.path("changed"), vec![b'b'; LENGTH]).unwrap();
    fs::remove_file(writer.path("removed")).unwrap();
    sync(&writer.directory);
    sync(&long.directory);
    sync(&brief.directory);
    let number = |mount: &Mount, name: &str| statistics(mount)[name].as_u64().unwrap();
    wait_until("the second is over", || number(&brief, "stale_nodes") == 2);
    assert_eq!(
        (number(&brief, "pinned_nodes"), number(&brief, "pinned_commits")),
        (0, 0)
    );
    assert_eq!(
        (number(&long, "pinned_nodes"), number(&long, "pinned_commits")),
        (2, 1)
    );

    // Of what the kernel does not have in memory.
    let read = |file: &File, at: usize| {
        let mut bytes = [0; 100_000];
        file.read_exact_at(&mut bytes, at as u64).map(|()| bytes)
    };
    for file in &held[..2] {
        let error = read(file, LENGTH - 100_000).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error()), "{error}");
    }
    assert!(
        read(&held[2], LENGTH - 100_000).unwrap() == [b'a'; 100_000],
        "nobody has changed it"
    );
    for file in &kept {
        assert!(read(file, LENGTH - 100_000).unwrap() == [b'a'; 100_000]);
    }
    assert!(fs::read(brief.path("changed")).unwrap() == vec![b'b'; LENGTH]);
    assert!(!brief.path("removed").exists());
    let removed = File::open(brief.path("removed")).unwrap_err();
    assert_eq!(removed.kind(), std::io::ErrorKind::NotFound);

    // Only the second mount keeps the first commit; then nobody does, though the first one's handles are open still.
    assert_eq!(oldest_read(&cluster), Some(first));
    drop(kept);
    wait_until("the commit is let go", || oldest_read(&cluster) > Some(first));
    drop(held);
    wait_until("what is closed is forgotten", || {
        number(&brief, "open_nodes") == 0
    });
    assert_eq!(number(&brief, "stale_nodes"), 0);
    brief.end();
    long.end();
    writer.end();
}
