//! What programs ask of a file system.

use super::*;

#[test]
fn programs_find_what_they_expect_of_a_file_system() {
    if !can_mount("programs_find_what_they_expect_of_a_file_system") {
        return;
    }
    let (_place, volume, mount) = on_a_file("mount-file");
    let path = |name: &str| mount.path(name);
    // Renames, with and without what `renameat2` adds.
    fs::write(path("a"), "a").unwrap();
    fs::write(path("b"), "b").unwrap();
    let rename = |flags| renameat_with(rustix::fs::CWD, path("a"), rustix::fs::CWD, path("b"), flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    let read = |name| fs::read_to_string(path(name)).unwrap();
    assert_eq!((read("a"), read("b")), ("b".to_owned(), "a".to_owned()));
    rename(RenameFlags::empty()).unwrap();
    assert_eq!(read("b"), "b");
    assert_eq!(
        fs::read(path("a")).unwrap_err().kind(),
        std::io::ErrorKind::NotFound
    );
    // A file that was missing is found when it is made, though the kernel may believe that it is not there.
    fs::write(path("a"), "again").unwrap();
    assert_eq!(read("a"), "again");

    // A file without names lives as long as it is open.
    let open = File::options().read(true).write(true).open(path("b")).unwrap();
    fs::remove_file(path("b")).unwrap();
    open.write_all_at(b"still here", 0).unwrap();
    let mut bytes = [0; 10];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((&bytes, open.metadata().unwrap().nlink()), (b"still here", 0));
    drop(open);

    // Extended attributes.
    let name = "user.colour";
    rustix::fs::setxattr(path("a"), name, b"green", XattrFlags::CREATE).unwrap();
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(path("a"), name, &mut value).unwrap();
    assert_eq!(&value[..length], b"green");
    let again = rustix::fs::setxattr(path("a"), name, b"", XattrFlags::CREATE);
    assert_eq!(again, Err(rustix::io::Errno::EXIST));
    rustix::fs::removexattr(path("a"), name).unwrap();

    // Many threads at once, each with files of its own.
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let path = &path;
            scope.spawn(move || {
                let directory = path(&format!("thread{thread}"));
                fs::create_dir(&directory).unwrap();
                for round in 0..40 {
                    let bytes = vec![thread as u8; round * 1000];
                    let file = directory.join(round.to_string());
                    fs::write(&file, &bytes).unwrap();
                    assert!(fs::read(&file).unwrap() == bytes);
                    if round % 2 == 0 {
                        fs::remove_file(&file).unwrap();
                    }
                }
                assert_eq!(fs::read_dir(&directory).unwrap().count(), 20);
            });
        }
    });

    let room = rustix::fs::statvfs(&mount.directory).unwrap();
    assert_eq!(room.f_blocks * room.f_frsize, 256 << 20);
    // More than there is room for: the error comes with the write, and what is there stays.
    let full = File::create(path("full")).unwrap();
    let megabyte = vec![7; 1 << 20];
    let refused = (0..400).find_map(|at| full.write_all_at(&megabyte, at << 20).err());
    assert_eq!(refused.unwrap().kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(read("a"), "again");
    drop(full);
    fs::remove_file(path("full")).unwrap();
    sync(&mount.directory);
    let expected = tree(&mount.directory);
    let directory = mount.kill();

    // A dead mount is taken away by the next one, or by hand.
    let mount = Mount::start(None, &volume, &directory, &[]);
    assert!(tree(&directory) == expected, "after kill -9");
    let directory = mount.kill();
    succeed(None, &["unmount", directory.to_str().unwrap()]);
    assert!(!is_mounted(&directory));
    succeed(None, &["verify", &volume]);
}

/// Holes, room and copies by system calls, and what is neither file nor directory.
#[test]
fn holes_copies_and_special_files_are_as_the_kernel_has_them() {
    if !can_mount("holes_copies_and_special_files_are_as_the_kernel_has_them") {
        return;
    }
    let (place, volume, mount) = on_a_file("mount-holes");
    let path = |name: &str| mount.path(name);
    let open = |name| {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(path(name)).unwrap()
    };
    let file = open("a");
    file.write_all_at(&vec![7; 1_000_000], 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 100_000, 400_000).unwrap();
    let at = |from| seek(&file, from);
    assert_eq!(at(SeekFrom::Hole(0)), Ok(100_000));
    assert_eq!(at(SeekFrom::Data(100_000)), Ok(500_000));
    assert_eq!(at(SeekFrom::Hole(600_000)), Ok(1_000_000));
    assert_eq!(at(SeekFrom::Data(1_000_000)), Err(Errno::NXIO));
    fallocate(&file, FallocateFlags::ZERO_RANGE, 900_000, 300_000).unwrap();
    assert_eq!(at(SeekFrom::Data(900_000)), Err(Errno::NXIO));
    fallocate(&file, FallocateFlags::empty(), 0, 2_000_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 2_000_000);
    // More than the volume has, and what no file here does.
    let room = fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 40);
    assert_eq!(room, Err(Errno::NOSPC));
    let collapse = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(collapse, Err(Errno::OPNOTSUPP));
    let copy = open("b");
    let (mut from, mut to) = (50_000, 10);
    let copied = copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), 500_000);
    assert_eq!((copied, from, to), (Ok(500_000), 550_000, 500_010));
    let (whole, part) = (fs::read(path("a")).unwrap(), fs::read(path("b")).unwrap());
    assert!(whole[..100_000] == [7; 100_000] && whole[100_000..500_000] == [0; 400_000]);
    assert!(part[10..] == whole[50_000..550_000] && part[..10] == [0; 10]);
    // A whole file shares its content, its holes too, until one of both changes.
    let shared = open("c");
    let (mut from, mut to) = (0, 0);
    let copied = copy_file_range(&file, Some(&mut from), &shared, Some(&mut to), 1 << 30);
    assert_eq!(copied, Ok(2_000_000));
    assert!(fs::read(path("c")).unwrap() == whole);
    assert_eq!(seek(&shared, SeekFrom::Data(100_000)), Ok(500_000));
    shared.write_all_at(b"changed", 500_000).unwrap();
    assert!(fs::read(path("a")).unwrap() == whole);
    assert!(fs::read(path("c")).unwrap()[500_000..500_007] == *b"changed");

    let node = |name, kind, device| {
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path(name), kind, mode, device)
    };
    node("pipe", FileType::Fifo, 0).unwrap();
    let null = rustix::fs::makedev(1, 3);
    // Only root makes devices.
    let device = node("null", FileType::CharacterDevice, null);
    let listener = UnixListener::bind(path("socket")).unwrap();
    UnixStream::connect(path("socket")).unwrap();
    drop(listener);
    let into = path("pipe");
    let writer = std::thread::spawn(move || fs::write(into, "through").unwrap());
    assert_eq!(fs::read_to_string(path("pipe")).unwrap(), "through");
    writer.join().unwrap();
    let check = |root: &Path| {
        let kind = |name: &str| fs::symlink_metadata(root.join(name)).unwrap();
        assert!(kind("pipe").file_type().is_fifo() && kind("socket").file_type().is_socket());
        if device.is_ok() {
            assert!(kind("null").file_type().is_char_device() && kind("null").rdev() == null);
        }
    };
    check(&mount.directory);
    drop((file, copy, shared));
    let directory = mount.directory.clone();
    mount.end();
    let mount = Mount::start(None, &volume, &directory, &["--read-only"]);
    check(&mount.directory);
    let read = File::open(mount.path("a")).unwrap();
    assert_eq!(seek(&read, SeekFrom::Hole(0)), Ok(100_000));
    assert_eq!(seek(&read, SeekFrom::Data(100_000)), Ok(500_000));
    drop(read);
    mount.end();
    let out = place.0.join("out");
    succeed(None, &["export", &volume, out.to_str().unwrap()]);
    check(&out);
    succeed(None, &["verify", &volume]);
}

/// Limits by command, and what programs below them meet.
#[test]
fn quotas_hold_on_a_mount_and_across_a_kill() {
    if !can_mount("quotas_hold_on_a_mount_and_across_a_kill") {
        return;
    }
    let (_place, volume, mount) = on_a_file("mount-quota");
    for name in ["one", "one/below", "two"] {
        fs::create_dir(mount.path(name)).unwrap();
    }
    fs::write(mount.path("one/file"), [1; 1000]).unwrap();
    let held = refused(&["quota", "set", &volume, "one", "--limit", "1MiB"]);
    assert!(!held.is_empty());
    let directory = mount.directory.clone();
    mount.end();
    succeed(
        None,
        &["quota", "set", &volume, "one", "--limit", "1MiB", "--files", "5"],
    );
    succeed(None, &["quota", "set", &volume, "/one/", "--files", "4"]);
    let nested = refused(&["quota", "set", &volume, "one/below", "--files", "4"]);
    assert!(nested.contains("one of them stands below the other"), "{nested}");
    let quota = |expected: (u64, u64)| {
        let shown = succeed(None, &["quota", "show", &volume, "one", "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let expected = serde_json::json!([{
            "path": "one", "limit_bytes": 1 << 20, "used_bytes": expected.0, "limit_files": 4, "used_files": expected.1,
        }]);
        assert_eq!(shown, expected);
    };
    quota((1000, 2));

    let mount = Mount::start(None, &volume, &directory, &[]);
    let path = |name: &str| mount.path(name);
    let room = rustix::fs::statvfs(path("one/below")).unwrap();
    assert_eq!((room.f_blocks * room.f_frsize, room.f_files), (1 << 20, 4));
    assert_eq!(
        rustix::fs::statvfs(path("two")).unwrap().f_blocks * 4096,
        256 << 20
    );
    let errno = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
    let (full, across) = (Errno::DQUOT.raw_os_error(), Errno::XDEV.raw_os_error());
    let file = File::create(path("one/below/large")).unwrap();
    file.write_all_at(&vec![2; 1 << 19], 0).unwrap();
    assert_eq!(errno(file.write_all_at(&vec![2; 1 << 19], 1 << 19)), Some(full));
    assert_eq!(errno(file.set_len(2 << 20)), Some(full));
    fs::write(path("one/last"), "").unwrap();
    assert_eq!(errno(fs::write(path("one/more"), "")), Some(full));
    assert_eq!(errno(fs::create_dir(path("one/more"))), Some(full));
    assert_eq!(
        errno(fs::rename(path("one/last"), path("two/last"))),
        Some(across)
    );
    assert_eq!(
        errno(fs::hard_link(path("one/last"), path("two/last"))),
        Some(across)
    );
    fs::rename(path("one/last"), path("one/below/last")).unwrap();
    fs::write(path("two/much"), vec![3; 3 << 20]).unwrap();
    sync(&directory);
    // The kernel asks about the directory again, and nobody answers.
    fs::create_dir(path("late")).unwrap();
    let directory = mount.kill();
    quota((1000 + (1 << 19), 4));
    succeed(None, &["verify", &volume]);
    succeed(None, &["unmount", directory.to_str().unwrap()]);
    succeed(None, &["quota", "clear", &volume, "one"]);
    let none = refused(&["quota", "show", &volume, "one"]);
    assert!(none.contains("has no quota"), "{none}");
    succeed(None, &["verify", &volume]);
}
