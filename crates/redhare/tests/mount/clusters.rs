//! A cluster's volume under several mounts: read elsewhere, recovered after a kill, in the background, grown.

use super::*;

#[test]
fn a_clusters_volume_is_written_read_elsewhere_and_recovered_after_a_kill() {
    if !can_mount("a_clusters_volume_is_written_read_elsewhere_and_recovered_after_a_kill") {
        return;
    }
    let place = Place::in_memory("mount-cluster");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    cluster.succeed(&[
        "volume",
        "create",
        "data",
        "--size",
        "256MiB",
        "--chunk-size",
        "32MiB",
    ]);
    let (all, cluster) = (&cluster, Some(&cluster));
    format(cluster, "data");
    let local = place.0.join("local");
    make_tree(&local);
    let expected = tree(&local);

    let writer = Mount::start(cluster, "data", &place.0.join("writer"), &[]);
    let reader = Mount::start(cluster, "data", &place.0.join("reader"), &["--read-only"]);
    let seldom = ["--read-only", "--follow-within", "3600"];
    let seldom = Mount::start(cluster, "data", &place.0.join("seldom"), &seldom);
    let still = Mount::start(
        cluster,
        "data",
        &place.0.join("still"),
        &["--read-only", "--stay"],
    );
    copy(&local, &writer.path("tree"));
    assert!(tree(&writer.path("tree")) == expected, "before the commit");
    sync(&writer.path("tree"));
    wait_until("the reader sees the commit", || {
        reader.path("tree/odd/one").exists()
    });
    assert!(tree(&reader.path("tree")) == expected, "the reader's tree");
    let error = fs::write(reader.path("new"), "").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);

    // A file that the reader's kernel has in memory is changed, with the same length and the same time.
    let times = fs::metadata(writer.path("tree/odd/page"))
        .unwrap()
        .modified()
        .unwrap();
    let file = File::options()
        .write(true)
        .open(writer.path("tree/odd/page"))
        .unwrap();
    file.write_all_at(b"changed", 10).unwrap();
    file.set_modified(times).unwrap();
    file.sync_all().unwrap();
    wait_until("the reader sees the change", || {
        fs::read(reader.path("tree/odd/also page")).unwrap()[10..17] == *b"changed"
    });
    fs::rename(writer.path("tree/odd/large"), writer.path("renamed")).unwrap();
    sync(&writer.directory);
    wait_until("the reader sees the rename", || {
        reader.path("renamed").exists() && !reader.path("tree/odd/large").exists()
    });
    assert_eq!(
        fs::read_dir(&still.directory).unwrap().count(),
        0,
        "this one stays on its commit"
    );
    // One that looks every hour sees it when it is asked to, and not before.
    assert_eq!(fs::read_dir(&seldom.directory).unwrap().count(), 0);
    let listed = |mount: &Mount| {
        let entries = fs::read_dir(&mount.directory).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name())
            .collect::<Vec<_>>()
    };
    sync(&seldom.directory);
    assert!(
        tree(&seldom.path("tree")) == tree(&reader.path("tree")),
        "after fsync"
    );
    assert_eq!(listed(&seldom), listed(&writer));
    // By a file, too: what the kernel believes of a name, an inode and its content is looked at anew.
    for round in 0..5 {
        let (file, new) = (writer.path("tree/odd/page"), format!("round {round}"));
        assert!(!seldom.path(&new).exists(), "it is not there yet");
        let file = File::options().write(true).open(file).unwrap();
        file.write_all_at(format!("{round}{round}").as_bytes(), 20)
            .unwrap();
        fs::write(writer.path(&new), "there").unwrap();
        sync(&writer.directory);
        assert!(!seldom.path(&new).exists(), "nor before it is asked for");
        sync(&seldom.path("tree/odd/page"));
        let found = fs::read(seldom.path("tree/odd/page")).unwrap();
        assert_eq!(found[20..22], *format!("{round}{round}").as_bytes());
        assert_eq!(fs::read(seldom.path(&new)).unwrap(), b"there");
    }
    sync(&still.directory);
    assert_eq!(listed(&still).len(), 0, "fsync does not move one that stays");
    seldom.end();
    still.end();
    reader.end();

    // A snapshot of the volume shows what was committed when it was made.
    let then = tree(&writer.directory);
    all.succeed(&["volume", "snapshot", "create", "data", "kept"]);
    fs::write(writer.path("later"), "not there").unwrap();
    sync(&writer.path("later"));
    let kept = place.0.join("kept");
    for more in [&["--read-only"][..], &["--read-only", "--stay"]] {
        let mount = Mount::start(cluster, "data@@kept", &kept, more);
        sync(&mount.directory);
        assert!(tree(&mount.directory) == then, "with {more:?}");
        let error = fs::write(mount.path("new"), "").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        mount.end();
    }
    all.succeed(&["volume", "snapshot", "delete", "data", "kept"]);

    // What was synced is there after a crash; its lease has to end first.
    fs::write(writer.path("last"), "synced").unwrap();
    sync(&writer.path("last"));
    let expected = tree(&writer.directory);
    let left = writer.kill();
    let recovered = Mount::start(cluster, "data", &left, &[]);
    assert!(tree(&recovered.directory) == expected, "after kill -9");
    fs::remove_dir_all(recovered.path("tree")).unwrap();
    recovered.end();
    assert_eq!(succeed(cluster, &["cat", "data:last"]), "synced");
    succeed(cluster, &["verify", "data"]);
}

#[test]
fn a_mount_in_the_background_is_ready_when_the_command_returns_and_commits_when_it_is_unmounted() {
    if !can_mount("a_mount_in_the_background_is_ready_when_the_command_returns") {
        return;
    }
    let place = Place::in_memory("mount-background");
    let volume = format!("file:{}", place.0.join("volume").display());
    let mountpoint = place.0.join("mount");
    let directory = mountpoint.to_str().unwrap();
    let said = refused(&["mount", &volume, directory, "--background"]);
    assert!(said.contains("redhare fs format"), "{said}");
    format(None, &volume);
    let said = refused(&["mount", &volume, directory, "--background"]);
    assert!(said.contains("make the directory first"), "{said}");
    fs::create_dir(&mountpoint).unwrap();

    let said = succeed(None, &["mount", &volume, directory, "--background"]);
    assert!(
        said.contains("redhare fs unmount") && !said.contains("Ctrl-C"),
        "{said}"
    );
    fs::write(mountpoint.join("file"), "not synced").unwrap();
    let open = File::open(mountpoint.join("file")).unwrap();
    let said = refused(&["unmount", directory]);
    assert!(
        said.contains("stays mounted") && said.contains("end what uses it"),
        "{said}"
    );
    drop(open);
    let began = std::time::Instant::now();
    succeed(None, &["unmount", directory]);
    assert!(began.elapsed() < LIMIT);
    assert!(!is_mounted(&mountpoint));
    // Its process has ended, so nobody has the file locked.
    assert_eq!(succeed(None, &["cat", &format!("{volume}:file")]), "not synced");
    let said = refused(&["unmount", directory]);
    assert!(said.contains("is not a mount of redhare"), "{said}");
}

/// Writes `name` until the volume is full; gives what it holds then.
fn fill(mount: &Mount, name: &str) -> u64 {
    let file = File::options()
        .create(true)
        .append(true)
        .open(mount.path(name))
        .unwrap();
    let piece = vec![0x5a; 1 << 20];
    loop {
        match (&file).write_all(&piece) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
                file.sync_all().unwrap();
                return file.metadata().unwrap().len();
            }
        }
    }
}

#[test]
fn a_full_volume_grows_under_its_mounts() {
    if !can_mount("a_full_volume_grows_under_its_mounts") {
        return;
    }
    let place = Place::in_memory("mount-growth");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    let volume = |arguments: &[&str]| cluster.succeed(&[&["volume"], arguments].concat());
    volume(&["create", "data", "--size", "64MiB", "--chunk-size", "16MiB"]);
    format(Some(&cluster), "data");
    let writer = Mount::start(Some(&cluster), "data", &place.0.join("writer"), &[]);
    let reader = Mount::start(Some(&cluster), "data", &place.0.join("reader"), &["--read-only"]);
    let before = fill(&writer, "first");
    assert!((32 << 20..64 << 20).contains(&before), "{before} bytes");
    let said = volume(&["resize", "data", "--size", "+100MiB"]);
    assert!(said.contains("has grown from 64 MiB to 176 MiB"), "{said}");
    let said = volume(&["resize", "data", "--size", "170MiB"]);
    assert!(said.contains("has 176 MiB already"), "{said}");
    wait_until("the file system takes the new room", || {
        fs::write(writer.path("small"), vec![1; 1 << 20]).is_ok()
    });
    let size = rustix::fs::statvfs(&writer.directory).unwrap();
    assert_eq!(size.f_blocks * size.f_frsize, 176 << 20);
    let after = fill(&writer, "second");
    assert!(after > 64 << 20, "{after} bytes");
    sync(&writer.path("small"));
    // Also on a host that has not heard of it.
    wait_until("the reader sees the commit", || {
        fs::metadata(reader.path("second")).is_ok_and(|found| found.len() == after)
    });
    let second = fs::read(reader.path("second")).unwrap();
    assert!(second.len() as u64 == after && second.iter().all(|byte| *byte == 0x5a));
    reader.end();
    writer.end();
    let report = succeed(Some(&cluster), &["verify", "data"]);
    let refusal = cluster.run(&["volume", "resize", "data", "--size", "64MiB"]);
    let text = String::from_utf8_lossy(&refusal.stderr).into_owned();
    assert!(
        !refusal.status.success() && text.contains("size of 64 MiB is below the 176 MiB"),
        "{text}{report}"
    );
}

/// A file that is open on a mount that follows, and is changed meanwhile: no byte of the new commit comes through the handle, and none of the
/// old one through a new handle, whatever the kernel has in memory.
#[test]
fn an_open_file_stays_as_it_was_and_a_new_handle_has_the_new_bytes() {
    if !can_mount("an_open_file_stays_as_it_was_and_a_new_handle_has_the_new_bytes") {
        return;
    }
    const OLD: usize = 3_000_000;
    const NEW: usize = 1_000_003;
    let place = Place::in_memory("mount-pinned");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    cluster.succeed(&["volume", "create", "data", "--size", "64MiB"]);
    let cluster = Some(&cluster);
    format(cluster, "data");
    let writer = Mount::start(cluster, "data", &place.0.join("writer"), &[]);
    for name in ["changed", "removed", "linked"] {
        fs::write(writer.path(name), vec![b'a'; OLD]).unwrap();
    }
    fs::hard_link(writer.path("linked"), writer.path("linked too")).unwrap();
    sync(&writer.directory);
    // It goes on when it is asked to.
    let seldom = ["--read-only", "--follow-within", "3600"];
    let reader = Mount::start(cluster, "data", &place.0.join("reader"), &seldom);
    let open = |name: &str| {
        let file = File::open(reader.path(name)).unwrap();
        // A part of it comes to be in the kernel's memory.
        file.read_exact_at(&mut [0; 4096], 0).unwrap();
        file
    };
    let held = [open("changed"), open("removed"), open("linked")];
    let inode = fs::metadata(reader.path("changed")).unwrap().ino();

    // The volume is written over several times, so that what may be used again is.
    for round in b'b'..=b'k' {
        fs::write(writer.path("changed"), vec![round; NEW]).unwrap();
        fs::write(writer.path("linked"), vec![round; NEW]).unwrap();
        fs::write(writer.path("other"), vec![round; 4_000_000]).unwrap();
        if round == b'b' {
            fs::remove_file(writer.path("removed")).unwrap();
        }
        sync(&writer.directory);
        sync(&reader.directory);
    }
    let read = |file: &File| {
        let mut bytes = vec![0; OLD + 1];
        let (mut at, mut length) = (0, usize::MAX);
        while length > 0 {
            length = file.read_at(&mut bytes[at..], at as u64).unwrap();
            at += length;
        }
        bytes.truncate(at);
        bytes
    };
    for _ in 0..3 {
        for file in &held {
            assert!(read(file) == vec![b'a'; OLD], "the handle's bytes");
            assert_eq!(file.metadata().unwrap().len(), OLD as u64);
        }
        for name in ["changed", "linked", "linked too"] {
            assert!(fs::read(reader.path(name)).unwrap() == vec![b'k'; NEW], "{name}");
            assert_eq!(fs::metadata(reader.path(name)).unwrap().len(), NEW as u64);
        }
        assert!(!reader.path("removed").exists());
        let listed = fs::read_dir(&reader.directory).unwrap();
        let sizes = listed.map(|entry| entry.unwrap().metadata().unwrap().len());
        let mut sizes: Vec<_> = sizes.collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [NEW as u64, NEW as u64, NEW as u64, 4_000_000]);
    }
    assert_eq!(fs::metadata(reader.path("changed")).unwrap().ino(), inode);
    assert_eq!(held[0].metadata().unwrap().ino(), inode);
    // Two later contents are open at once, and then none.
    let later = open("changed");
    fs::write(writer.path("changed"), "last").unwrap();
    sync(&writer.directory);
    sync(&reader.directory);
    assert_eq!(fs::read(reader.path("changed")).unwrap(), b"last");
    assert!(read(&later) == vec![b'k'; NEW]);
    assert!(read(&held[0]) == vec![b'a'; OLD]);
    drop((held, later));
    for name in ["changed", "linked"] {
        fs::write(writer.path(name), "after").unwrap();
    }
    sync(&writer.directory);
    sync(&reader.directory);
    for name in ["changed", "linked", "linked too"] {
        assert_eq!(fs::read(reader.path(name)).unwrap(), b"after");
    }
    reader.end();
    writer.end();
}
