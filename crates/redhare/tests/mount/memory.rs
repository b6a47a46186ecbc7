//! What is kept, ahead of the reads and after them.

use super::*;

/// Numbers that a mount tells of its caches.
pub(super) fn statistics(mount: &Mount) -> serde_json::Value {
    let mut text = vec![0; 4096];
    let length = rustix::fs::getxattr(&mount.directory, "user.redhare.statistics", &mut text).unwrap();
    serde_json::from_slice(&text[..length]).unwrap()
}

#[test]
fn a_mount_that_stays_reads_ahead_in_order_and_answers_from_several_cores() {
    let test = "a_mount_that_stays_reads_ahead_in_order_and_answers_from_several_cores";
    if !can_mount(test) {
        return;
    }
    let place = Place::in_memory("mount-ahead");
    let source = place.0.join("source");
    let content = |number: usize| -> Vec<u8> {
        let byte = |at: usize| (at * 31 + number * 7 + at / 256) as u8;
        (0..12_000 + number).map(byte).collect()
    };
    fs::create_dir_all(&source).unwrap();
    for number in 0..400 {
        fs::write(source.join(format!("{number:04}")), content(number)).unwrap();
    }
    let volume = format!("file:{}", place.0.join("volume").display());
    succeed(None, &["format", &volume, "--size", "64MiB"]);
    succeed(None, &["import", source.to_str().unwrap(), &volume]);
    let check = |mount: &Mount, number: usize| {
        let read = fs::read(mount.path(&format!("{number:04}"))).unwrap();
        assert!(read == content(number), "{number}");
    };
    let number = |said: &serde_json::Value, name: &str| said[name].as_u64().unwrap();
    let still: &[&str] = &["--read-only", "--stay"];

    let mount = Mount::start(None, &volume, &place.0.join("ordered"), still);
    for file in 0..400 {
        check(&mount, file);
    }
    let said = statistics(&mount);
    assert!(number(&said, "data_hits") > 300, "{said}");
    assert!(number(&said, "reads") < 100, "{said}");
    assert!(number(&said, "data_bytes") <= 32 << 20, "{said}");
    mount.end();

    let mount = Mount::start(None, &volume, &place.0.join("shuffled"), still);
    for file in 0..400 {
        // Far enough apart that none lies where the one before does.
        check(&mount, file * 151 % 400);
    }
    let said = statistics(&mount);
    assert_eq!(
        (number(&said, "data_ahead"), number(&said, "data_hits")),
        (0, 0),
        "{said}"
    );
    assert!(
        number(&said, "page_hits") > number(&said, "page_misses"),
        "{said}"
    );
    mount.end();

    let several = [still, &["--cores", "3", "--data-cache", "0B"]].concat();
    let mount = Mount::start(None, &volume, &place.0.join("several"), &several);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (mount, check) = (&mount, &check);
            scope.spawn(move || (0..400).for_each(|file| check(mount, (file * 7 + thread * 100) % 400)));
        }
    });
    let said = statistics(&mount);
    let content_bytes: usize = (0..400).map(|number| content(number).len()).sum();
    let of_one = number(&said, "content_bytes");
    assert!(
        of_one > 0 && of_one < content_bytes as u64,
        "others answered, too: {said}"
    );
    assert_eq!(number(&said, "data_ahead"), 0, "{said}");
    mount.end();
}

/// All that a mount remembers lies within `--cache`, and it says how much that is.
#[test]
fn what_a_mount_remembers_lies_within_the_bound_that_was_given() {
    if !can_mount("what_a_mount_remembers_lies_within_the_bound_that_was_given") {
        return;
    }
    let place = Place::in_memory("mount-bound");
    let source = place.0.join("source");
    fs::create_dir_all(&source).unwrap();
    for number in 0..3000 {
        fs::write(source.join(format!("{number:04}")), number.to_string()).unwrap();
    }
    let volume = format!("file:{}", place.0.join("volume").display());
    succeed(None, &["format", &volume, "--size", "64MiB"]);
    succeed(None, &["import", source.to_str().unwrap(), &volume]);
    let number = |said: &serde_json::Value, name: &str| said[name].as_u64().unwrap();
    for (round, more) in [&["--stay"][..], &[]].into_iter().enumerate() {
        let options = [&["--read-only", "--cache", "512KiB"][..], more].concat();
        let mount = Mount::start(None, &volume, &place.0.join(format!("mount{round}")), &options);
        for file in 0..3000 {
            let name = format!("{:04}", file * 7 % 3000);
            let read = fs::read_to_string(mount.path(&name)).unwrap();
            assert_eq!(read, (file * 7 % 3000).to_string());
            if file % 100 == 0 {
                let said = statistics(&mount);
                assert!(number(&said, "cache_bytes") <= 512 << 10, "{said}");
            }
        }
        let said = statistics(&mount);
        assert_eq!(number(&said, "cache_bytes_max"), 512 << 10, "{said}");
        assert!(number(&said, "inodes_evicted") > 1000, "{said}");
        assert!(number(&said, "inodes") > 50, "not all went at once: {said}");
        if more.is_empty() {
            assert!(number(&said, "contents_evicted") > 1000, "{said}");
            assert!(number(&said, "contents") > 50, "not all went at once: {said}");
        }
        mount.end();
    }
    // One that writes tells what waits in its memory.
    let mount = Mount::start(None, &volume, &place.0.join("writes"), &[]);
    fs::write(mount.path("new"), vec![7; 100_000]).unwrap();
    let open = File::open(mount.path("new")).unwrap();
    let said = statistics(&mount);
    assert!(
        number(&said, "dirty_bytes") <= number(&said, "dirty_bytes_max"),
        "{said}"
    );
    assert_eq!(number(&said, "dirty_bytes_max"), 32 << 20, "{said}");
    assert_eq!(number(&said, "open_files"), 1, "{said}");
    drop(open);
    mount.end();
}

#[test]
fn what_a_mount_has_read_the_next_one_reads_from_the_local_disk() {
    if !can_mount("what_a_mount_has_read_the_next_one_reads_from_the_local_disk") {
        return;
    }
    let place = Place::new("mount-local-cache");
    let (source, cache) = (place.0.join("source"), place.0.join("cache"));
    let content = |number: usize| vec![number as u8; 9000 + number];
    fs::create_dir_all(&source).unwrap();
    for number in 0..100 {
        fs::write(source.join(number.to_string()), content(number)).unwrap();
    }
    let volume = format!("file:{}", place.0.join("volume").display());
    succeed(None, &["format", &volume, "--size", "64MiB"]);
    succeed(None, &["import", source.to_str().unwrap(), &volume]);
    let directory = cache.to_str().unwrap();
    let local = ["--cache-dir", directory, "--cache-size", "20MiB"];
    let options = [&["--read-only", "--stay"][..], &local].concat();
    let number = |said: &serde_json::Value, name: &str| said[name].as_u64().unwrap();
    for round in 0..2 {
        let mount = Mount::start(None, &volume, &place.0.join("mounted"), &options);
        for file in 0..100 {
            let read = fs::read(mount.path(&file.to_string())).unwrap();
            assert!(read == content(file), "{file}");
        }
        let kept = |said: &serde_json::Value| number(said, "local_stored") >= number(said, "local_misses");
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut said = statistics(&mount);
        while !kept(&said) && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(10));
            said = statistics(&mount);
        }
        assert_eq!(number(&said, "local_on"), 1, "{said}");
        assert!(number(&said, "local_file_bytes") <= 20 << 20, "{said}");
        assert_eq!(number(&said, "reads") == 0, round == 1, "{said}");
        assert_eq!(number(&said, "local_misses") == 0, round == 1, "{said}");
        mount.end();
    }
    let file = cache.join("redhare-cache-1");
    assert!(fs::metadata(&file).unwrap().len() <= 20 << 20);
    let text = refused(&[&["mount", &volume, directory][..], &local].concat());
    assert!(
        text.contains("a mount that writes keeps nothing on a local disk"),
        "{text}"
    );
}

/// A snapshot of the file system by name: it stays as it was, whatever is committed later.
#[test]
fn a_mount_of_a_snapshot_shows_what_was_then_and_nothing_newer() {
    if !can_mount("a_mount_of_a_snapshot_shows_what_was_then_and_nothing_newer") {
        return;
    }
    let (place, volume, mount) = on_a_file("mount-snapshot");
    fs::write(mount.path("a"), "monday").unwrap();
    mount.end();
    succeed(None, &["snapshot", "create", &volume, "monday"]);
    let mount = Mount::start(None, &volume, &place.0.join("mount"), &[]);
    fs::write(mount.path("a"), "tuesday").unwrap();
    fs::write(mount.path("b"), "new").unwrap();
    mount.end();
    let snapshot = format!("{volume}@monday");
    let directory = place.0.join("then");
    let at = directory.to_str().unwrap();
    let text = refused(&["mount", &snapshot, at]);
    assert!(text.contains("give --read-only too"), "{text}");
    let text = refused(&["mount", &format!("{volume}@sunday"), at, "--read-only"]);
    assert!(text.contains("there is no snapshot \"sunday\""), "{text}");
    for more in [&["--read-only"][..], &["--read-only", "--stay", "--cores", "2"]] {
        let mount = Mount::start(None, &snapshot, &directory, more);
        // Asks a mount that follows to look for a newer commit.
        sync(&mount.directory);
        assert_eq!(fs::read_to_string(mount.path("a")).unwrap(), "monday");
        assert!(!mount.path("b").exists());
        assert_eq!(fs::read_dir(&mount.directory).unwrap().count(), 1);
        mount.end();
    }
    let mount = Mount::start(None, &volume, &place.0.join("mount"), &["--read-only"]);
    assert_eq!(fs::read_to_string(mount.path("a")).unwrap(), "tuesday");
    mount.end();
}

#[test]
fn what_is_damaged_is_an_error_for_its_file_whose_name_is_in_the_log() {
    if !can_mount("what_is_damaged_is_an_error_for_its_file_whose_name_is_in_the_log") {
        return;
    }
    let (place, volume, mount) = on_a_file("mount-damage");
    fs::create_dir(mount.path("deep")).unwrap();
    let (marked, sound) = (vec![0x5b; 20_000], vec![0x21; 20_000]);
    fs::write(mount.path("deep/marked"), &marked).unwrap();
    fs::write(mount.path("sound"), &sound).unwrap();
    mount.end();
    let image = File::options()
        .read(true)
        .write(true)
        .open(place.0.join("volume"))
        .unwrap();
    let mut bytes = vec![0; image.metadata().unwrap().len() as usize];
    image.read_exact_at(&mut bytes, 0).unwrap();
    let at = bytes
        .windows(9000)
        .position(|some| some == &marked[..9000])
        .unwrap();
    image.write_all_at(b"?", at as u64 + 4000).unwrap();
    let at = place.0.join("mount");
    for (round, more) in [&[][..], &["--read-only"], &["--read-only", "--stay"]]
        .into_iter()
        .enumerate()
    {
        let log = place.0.join(format!("log{round}"));
        let (at, log_name) = (at.to_str().unwrap(), log.to_str().unwrap());
        succeed(
            None,
            &[&["mount", &volume, at, "--background", "--log", log_name], more].concat(),
        );
        let error = fs::read(Path::new(at).join("deep/marked")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{error}");
        assert!(fs::read(Path::new(at).join("sound")).unwrap() == sound);
        if more.is_empty() {
            let named = || {
                fs::read_to_string(&log)
                    .unwrap()
                    .matches("is deep/marked")
                    .count()
            };
            let before = named();
            let file = File::options()
                .write(true)
                .open(Path::new(at).join("deep/marked"));
            let file = file.unwrap();
            file.write_all_at(b"x", 4001).unwrap();
            let error = file.sync_all().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{error}");
            assert!(named() > before, "{}", fs::read_to_string(&log).unwrap());
        }
        succeed(None, &["unmount", at]);
        let said = fs::read_to_string(&log).unwrap();
        assert!(
            said.contains("for which a request failed, is deep/marked"),
            "{more:?}: {said}"
        );
    }
}
