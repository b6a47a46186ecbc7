//! Proved here, with the built binary on local files: an import that is killed goes on when it is run again and copies nothing
//! twice; archives give what the directory gives that they were made from, plain and compressed; a second import copies what
//! changed, and deletes what is gone if asked; what cannot be read is named, and stops only that; holes take no space.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use foundation::Random;

fn command(arguments: &[&OsStr]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redhare"));
    // No cluster is named, and none that may run on this machine is found.
    command
        .env_remove("REDHARE_CLUSTER")
        .env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.arg("fs").args(arguments).arg("--json");
    command
}

fn value(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Runs a command that must succeed; gives what it prints.
fn done(arguments: &[&OsStr]) -> serde_json::Value {
    let output = command(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    value(&output)
}

/// Runs a command that must fail; gives what it prints.
fn failed(arguments: &[&OsStr]) -> serde_json::Value {
    let output = command(arguments).output().unwrap();
    assert!(!output.status.success(), "{arguments:?} succeeded");
    value(&output)
}

/// Mixes text and paths as arguments.
macro_rules! words {
    ($($word:expr),* $(,)?) => { &[$(AsRef::<OsStr>::as_ref($word)),*][..] };
}

struct Place(tempfile::TempDir);

impl Place {
    /// With a file system of this size.
    fn new(size: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        done(words!["format", &place.whole(), "--size", size]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn volume(&self, inside: &str) -> OsString {
        let mut text = OsString::from("file:");
        text.push(self.path("volume"));
        text.push(":");
        text.push(inside);
        text
    }

    fn whole(&self) -> OsString {
        let mut text = OsString::from("file:");
        text.push(self.path("volume"));
        text
    }

    fn is_clean(&self) {
        let report = done(words!["verify", &self.whole()]);
        assert_eq!(report["clean"], true, "{report}");
    }

    /// The newest generation, while somebody may be writing.
    fn generation(&self) -> u64 {
        let file = std::fs::File::open(self.path("volume")).unwrap();
        let at = |offset| {
            let mut word = [0; 8];
            file.read_exact_at(&mut word, offset).unwrap();
            u64::from_le_bytes(word)
        };
        at(32).max(at(65_536 + 32))
    }
}

/// Files of many sizes, odd names, links.
fn fill(source: &Path) {
    let mut random = Random::from_seed(1);
    std::fs::create_dir_all(source.join("deep/er")).unwrap();
    for index in 0..120_usize {
        let mut bytes = vec![0; index * 41];
        random.fill(&mut bytes);
        std::fs::write(source.join(format!("deep/{index:03}.jpg")), bytes).unwrap();
    }
    let mut bytes = vec![0; 3_000_001];
    random.fill(&mut bytes);
    std::fs::write(source.join("large"), bytes).unwrap();
    let names: [&[u8]; 3] = [b"\xff\xfe not text", b"two\nlines", "größe".as_bytes()];
    for name in names {
        std::fs::write(source.join("deep/er").join(OsStr::from_bytes(name)), name).unwrap();
    }
    std::fs::hard_link(source.join("large"), source.join("zz")).unwrap();
    symlink("deep/er", source.join("link")).unwrap();
}

fn set_times(path: &Path, seconds: u64) {
    let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
    std::fs::File::open(path).unwrap().set_modified(time).unwrap();
}

/// An archive of a directory, as GNU tar makes it.
fn archive(directory: &Path, to: &Path, more: &[&str]) {
    archive_as("pax", directory, to, more);
}

fn archive_as(format: &str, directory: &Path, to: &Path, more: &[&str]) {
    let made = Command::new("tar")
        .args([&format!("--format={format}"), "--sort=name", "-C"])
        .arg(directory)
        .args(more)
        .arg("-cf")
        .arg(to)
        .arg(".")
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
}

/// A plain archive of small files with times of whole seconds.
fn shard(names: impl Iterator<Item = String>) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (index, name) in names.enumerate() {
        let bytes = vec![index as u8; 300 + index % 700];
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_uid(1000);
        header.set_mtime(1_000_000_000 + index as u64);
        header.set_cksum();
        builder.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    builder.into_inner().unwrap()
}

#[test]
fn an_import_that_is_killed_goes_on_where_it_was() {
    const FILES: usize = 2000;
    let place = Place::new("64MiB");
    let whole = shard((0..FILES).map(|index| format!("{:02}/{index:06}", index % 16)));
    std::fs::write(place.path("all.tar"), &whole).unwrap();
    let formatted = place.generation();
    let mut child = command(words![
        "import",
        "-",
        &place.volume("data"),
        "--commit-every",
        "0"
    ])
    .stdin(Stdio::piped())
    .stdout(Stdio::null())
    .spawn()
    .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // Half of it, and then nothing more: it waits in the middle of a file.
    pipe.write_all(&whole[..whole.len() / 2 + 700]).unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    while place.generation() < formatted + 20 {
        assert!(Instant::now() < until, "nothing is committed");
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    drop(pipe);
    // What the kernel still does for it holds the lock a moment longer.
    let volume = std::fs::File::open(place.path("volume")).unwrap();
    while volume.try_lock().is_err() {
        assert!(Instant::now() < until + Duration::from_secs(60), "its lock stays");
        std::thread::yield_now();
    }
    drop(volume);
    place.is_clean();
    let again = done(words![
        "import",
        &place.path("all.tar"),
        &place.volume("data"),
        "--verify"
    ]);
    let (copied, unchanged) = (
        again["copied"].as_u64().unwrap(),
        again["unchanged"].as_u64().unwrap(),
    );
    assert!(unchanged >= 19, "what was committed is copied again: {again}");
    assert!(copied >= FILES as u64 / 2 - 20, "{again}");
    assert_eq!(copied + unchanged, FILES as u64, "{again}");
    assert_eq!(again["verified"], FILES, "{again}");
    place.is_clean();
    let third = done(words!["import", &place.path("all.tar"), &place.volume("data")]);
    assert_eq!(
        (&third["copied"], &third["commits"]),
        (&0.into(), &1.into()),
        "{third}"
    );
}

#[test]
fn archives_give_what_the_directory_gives() {
    let place = Place::new("64MiB");
    let source = place.path("source");
    fill(&source);
    archive(&source, &place.path("plain.tar"), &[]);
    let plain = std::fs::read(place.path("plain.tar")).unwrap();
    // Two members, as parallel compressors write them.
    let mut gzip = Vec::new();
    let (head, tail) = plain.split_at(plain.len() / 2);
    for part in [head, tail] {
        let mut encoder = flate2::write::GzEncoder::new(&mut gzip, flate2::Compression::fast());
        encoder.write_all(part).unwrap();
        encoder.finish().unwrap();
    }
    std::fs::write(place.path("packed.tar.gz"), &gzip).unwrap();
    let mut zstd = zstd::encode_all(head, 1).unwrap();
    zstd.extend(zstd::encode_all(tail, 1).unwrap());
    std::fs::write(place.path("packed.tar.zst"), zstd).unwrap();
    for name in ["plain.tar", "packed.tar.gz", "packed.tar.zst"] {
        let imported = done(words![
            "import",
            &place.path(name),
            &place.volume(name),
            "--verify"
        ]);
        assert_eq!(imported["errors"].as_array().unwrap().len(), 0, "{imported}");
        let compared = done(words!["compare", &place.volume(name), &source]);
        assert_eq!(compared["equal"], true, "{name}: {compared}");
    }
    // From a directory nothing is left to do, but for the time of the last change of attributes, which archives have not.
    let again = done(words!["import", &source, &place.volume("plain.tar")]);
    assert_eq!(
        (&again["copied"], &again["content_bytes"]),
        (&0.into(), &0.into()),
        "{again}"
    );
    // What ends early is told by name, and what was whole is there.
    std::fs::write(place.path("cut.tar.gz"), &gzip[..gzip.len() - 1000]).unwrap();
    let cut = failed(words!["import", &place.path("cut.tar.gz"), &place.volume("cut")]);
    let text = cut["error"].as_str().unwrap();
    assert!(
        text.contains("cut.tar.gz") && text.contains("the same command goes on"),
        "{text}"
    );
    place.is_clean();
}

/// What is in a compressed archive is taken for right only if its checksum is.
#[test]
fn a_bit_that_flipped_in_a_compressed_archive_is_told() {
    let place = Place::new("64MiB");
    let noise: Vec<u8> = (0..40_000u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8)
        .collect();
    std::fs::create_dir(place.path("source")).unwrap();
    std::fs::write(place.path("source/noise"), &noise).unwrap();
    archive(&place.path("source"), &place.path("plain.tar"), &[]);
    let plain = std::fs::read(place.path("plain.tar")).unwrap();
    // Stored as it is, so that one byte changes one byte.
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    encoder.write_all(&plain).unwrap();
    let mut gzip = encoder.finish().unwrap();
    std::fs::write(place.path("right.tar.gz"), &gzip).unwrap();
    done(words![
        "import",
        &place.path("right.tar.gz"),
        &place.volume("right")
    ]);
    let at = gzip
        .windows(64)
        .position(|window| window == &noise[..64])
        .unwrap();
    gzip[at + 10] ^= 1;
    std::fs::write(place.path("wrong.tar.gz"), &gzip).unwrap();
    let told = failed(words![
        "import",
        &place.path("wrong.tar.gz"),
        &place.volume("wrong")
    ]);
    let text = told["error"].as_str().unwrap();
    assert!(
        text.contains("wrong.tar.gz") && text.contains("cannot be read on"),
        "{text}"
    );
    place.is_clean();
}

#[test]
fn sparse_files_in_archives_are_read_or_refused() {
    let place = Place::new("64MiB");
    std::fs::create_dir(place.path("source")).unwrap();
    let file = std::fs::File::create(place.path("source/sparse")).unwrap();
    file.write_all_at(b"middle", 1 << 20).unwrap();
    file.set_len(4 << 20).unwrap();
    // The older format has whole seconds.
    set_times(&place.path("source/sparse"), 1_000_000_000);
    set_times(&place.path("source"), 1_000_000_000);
    for (format, is_read) in [("gnu", true), ("pax", false)] {
        let (tar, volume) = (place.path(&format!("{format}.tar")), place.volume(format));
        archive_as(format, &place.path("source"), &tar, &["--sparse"]);
        if is_read {
            done(words!["import", &tar, &volume]);
            let compared = done(words!["compare", &volume, &place.path("source")]);
            assert_eq!(compared["equal"], true, "{compared}");
        } else {
            let told = failed(words!["import", &tar, &volume]);
            let text = told["error"].as_str().unwrap();
            assert!(text.contains("sparse") && text.contains("--format=gnu"), "{text}");
        }
    }
    place.is_clean();
}

#[test]
fn archives_of_one_name_are_not_put_into_one_directory() {
    let place = Place::new("64MiB");
    for month in ["jan", "feb"] {
        std::fs::create_dir(place.path(month)).unwrap();
        std::fs::write(
            place.path(&format!("{month}/data.tar")),
            shard(std::iter::once(month.to_owned())),
        )
        .unwrap();
    }
    let (first, second) = (place.path("jan/data.tar"), place.path("feb/data.tar"));
    let told = failed(words![
        "import",
        &first,
        &second,
        &place.volume("all"),
        "--by-archive"
    ]);
    let text = told["error"].as_str().unwrap();
    assert!(
        text.contains("jan/data.tar") && text.contains("feb/data.tar"),
        "{text}"
    );
    done(words!["import", &first, &second, &place.volume("all")]);
    place.is_clean();
}

#[test]
fn shards_are_read_side_by_side_and_names_in_two_are_told() {
    let place = Place::new("64MiB");
    let mut shards = Vec::new();
    for index in 0..6 {
        let path = place.path(&format!("train-{index}.tar"));
        std::fs::write(&path, shard((0..200).map(|file| format!("{index}{file:04}.jpg")))).unwrap();
        shards.push(path);
    }
    let mut arguments: Vec<&OsStr> = vec![OsStr::new("import")];
    arguments.extend(shards.iter().map(|path| path.as_os_str()));
    let (all, named) = (place.volume("all"), place.volume("named"));
    let imported = done(&[&arguments[..], words![&all, "--verify", "--readers", "3"]].concat());
    assert_eq!(
        (&imported["copied"], &imported["verified"]),
        (&1200.into(), &1200.into()),
        "{imported}"
    );
    std::fs::write(
        &shards[5],
        shard(["00007.jpg", "new"].map(String::from).into_iter()),
    )
    .unwrap();
    let told = failed(&[&arguments[..], words![&all, "--keep-going"]].concat());
    let errors = told["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 1, "{told}");
    let text = errors[0].as_str().unwrap();
    assert!(
        text.contains("00007.jpg: is in") && text.contains("train-5.tar") && text.contains("--by-archive"),
        "{text}"
    );
    let imported = done(&[&arguments[..], words![&named, "--by-archive"]].concat());
    assert_eq!(imported["copied"], 1002, "{imported}");
    let stat = done(words!["stat", &place.volume("named/train-5/00007.jpg")]);
    assert_eq!(
        (&stat["size_bytes"], &stat["mtime"]),
        (&300.into(), &"2001-09-09T01:46:40.000000000Z".into())
    );
    place.is_clean();
}

#[test]
fn what_changed_is_copied_and_nothing_else() {
    let place = Place::new("64MiB");
    let source = place.path("source");
    fill(&source);
    let first = done(words!["import", &source, &place.volume("")]);
    assert_eq!(
        first["copied"],
        first["entries"].as_u64().unwrap() - 1,
        "the root is there: {first}"
    );
    let again = done(words!["import", &source, &place.volume("")]);
    assert_eq!(
        (&again["copied"], &again["attributes_set"]),
        (&0.into(), &0.into()),
        "{again}"
    );
    assert_eq!(
        (&again["unchanged"], &again["unchanged_bytes"]),
        (&first["entries"], &first["content_bytes"])
    );

    std::fs::write(source.join("deep/007.jpg"), "other").unwrap();
    std::fs::write(source.join("deep/new"), "new").unwrap();
    std::fs::remove_file(source.join("deep/008.jpg")).unwrap();
    std::fs::remove_dir_all(source.join("deep/er")).unwrap();
    std::fs::remove_file(source.join("deep/009.jpg")).unwrap();
    std::fs::create_dir(source.join("deep/009.jpg")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(source.join("deep/010.jpg"), mode).unwrap();
    // Length and time as before, with other bytes.
    let sly = source.join("deep/011.jpg");
    let before = std::fs::metadata(&sly).unwrap();
    std::fs::write(&sly, vec![0xaa; before.size() as usize]).unwrap();
    std::fs::File::open(&sly)
        .unwrap()
        .set_modified(before.modified().unwrap())
        .unwrap();
    let again = done(words!["import", &source, &place.volume("")]);
    assert_eq!(again["copied"], 3, "{again}");
    let compared = failed(words!["compare", &place.volume(""), &source]);
    let differing: Vec<&str> = compared["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["path"].as_str().unwrap())
        .collect();
    assert!(
        differing.contains(&"deep/011.jpg") && differing.contains(&"deep/008.jpg"),
        "{compared}"
    );
    assert!(!differing.contains(&"deep/010.jpg"), "{compared}");
    let told = failed(words!["import", &source, &place.volume(""), "--verify"]);
    let text = told["errors"][0].as_str().unwrap();
    assert!(
        text.contains("deep/011.jpg: verified, and on the volume it has other content"),
        "{text}"
    );
    let again = done(words![
        "import",
        &source,
        &place.volume(""),
        "--checksum",
        "--delete",
        "--verify"
    ]);
    assert_eq!(
        (&again["copied"], &again["deleted"]),
        (&1.into(), &5.into()),
        "{again}"
    );
    assert_eq!(done(words!["compare", &place.volume(""), &source])["equal"], true);
    place.is_clean();
}

#[test]
fn lists_name_what_is_imported_and_what_is_missing_is_told() {
    let place = Place::new("64MiB");
    let source = place.path("source");
    fill(&source);
    let list =
        b"./deep/er/two\nlines\0/deep/er/\xff\xfe not text\0large\0missing\0../x\0zz\0empty\0deep/er\0";
    std::fs::create_dir(source.join("empty")).unwrap();
    std::fs::write(source.join("empty/not named"), "x").unwrap();
    std::fs::write(place.path("list"), list).unwrap();
    let list = place.path("list");
    let volume = place.volume("a");
    let arguments = words!["import", &source, &volume, "--files-from", &list, "-0"];
    let text = failed(arguments)["error"].as_str().unwrap().to_owned();
    assert!(
        text.contains("missing: No such file") && text.contains("--keep-going goes on behind such files"),
        "{text}"
    );
    let told = failed(&[arguments, words!["--keep-going"]].concat());
    let errors = told["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 2, "{told}");
    assert!(
        errors[1]
            .as_str()
            .unwrap()
            .contains("../x: the path has \"..\" in it"),
        "{told}"
    );
    // Two odd names, large and zz, and the directories along the way.
    assert_eq!(told["entries"], 7, "{told}");
    let names = done(words!["ls", &place.volume("a")]);
    assert_eq!(names.as_array().unwrap().len(), 4, "{names}");
    assert_eq!(done(words!["stat", &place.volume("a/zz")])["links"], 2);
    assert_eq!(
        done(words!["ls", &place.volume("a/empty")])
            .as_array()
            .unwrap()
            .len(),
        0
    );

    std::fs::write(place.path("lines"), "deep/001.jpg\n\ndeep/002.jpg\n").unwrap();
    let lines = place.path("lines");
    let imported = done(words![
        "import",
        &source,
        &place.volume("b"),
        "--files-from",
        &lines
    ]);
    assert_eq!(imported["entries"], 3, "{imported}");
    for (arguments, expected) in [
        (
            words!["import", &source, &source, &place.volume("")],
            "must all be archives",
        ),
        (
            words!["import", &list, &place.volume(""), "--delete"],
            "--delete is for directories",
        ),
        (
            words!["import", "-", &place.volume(""), "--verify"],
            "can be read only once",
        ),
        (words!["import", &list, &place.volume("c")], "cannot be read on"),
    ] {
        let text = failed(arguments)["error"].as_str().unwrap().to_owned();
        assert!(text.contains(expected), "{text}");
    }
    place.is_clean();
}

#[test]
fn holes_and_extended_attributes_are_kept() {
    let place = Place::new("64MiB");
    let source = place.path("source");
    std::fs::create_dir(&source).unwrap();
    let file = std::fs::File::create(source.join("sparse")).unwrap();
    // Far more than the volume has.
    file.set_len(1 << 30).unwrap();
    file.write_all_at(&[7; 5000], 300 << 20).unwrap();
    file.write_all_at(&[9; 10], (1 << 30) - 10).unwrap();
    let holes = std::fs::metadata(source.join("sparse")).unwrap().blocks() < 1000;
    assert!(
        holes,
        "the temporary directory makes no holes; set TMPDIR to one that does"
    );
    std::fs::write(source.join("plain"), "x").unwrap();
    let set = rustix::fs::setxattr(
        source.join("plain"),
        "user.label",
        b"cat\0\xff",
        rustix::fs::XattrFlags::empty(),
    );
    if set.is_err() {
        let why = "the temporary directory keeps no extended attributes; set TMPDIR to one that does";
        eprintln!("holes_and_extended_attributes_are_kept: {why}");
        if let Ok(list) = std::env::var("REDHARE_SKIPS") {
            let list = std::fs::OpenOptions::new().append(true).create(true).open(list);
            writeln!(list.unwrap(), "holes_and_extended_attributes_are_kept: {why}").unwrap();
        }
        return;
    }
    set_times(&source.join("plain"), 1_000_000_000);
    let imported = done(words!["import", &source, &place.volume("a"), "--verify"]);
    assert_eq!(
        imported["content_bytes"],
        5001 + 3192 + 4096,
        "data comes in blocks: {imported}"
    );
    archive(&source, &place.path("x.tar"), &["--xattrs"]);
    let imported = done(words![
        "import",
        &place.path("x.tar"),
        &place.volume("b"),
        "--verify"
    ]);
    assert_eq!(imported["errors"].as_array().unwrap().len(), 0, "{imported}");
    for path in ["a", "b"] {
        let compared = done(words!["compare", &place.volume(path), &source]);
        assert_eq!(compared["equal"], true, "{path}: {compared}");
    }
    // Attributes alone are set without copying, and told apart by a check.
    rustix::fs::setxattr(
        source.join("plain"),
        "user.label",
        b"dog",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    let again = done(words!["import", &source, &place.volume("a"), "--verify"]);
    assert_eq!(
        (&again["copied"], &again["attributes_set"]),
        (&0.into(), &1.into()),
        "{again}"
    );
    place.is_clean();
}

#[test]
fn pipes_sockets_and_devices_are_named_or_taken() {
    let place = Place::new("64MiB");
    let source = place.path("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), "content").unwrap();
    let node = |name: &str, kind, number| {
        let mode = rustix::fs::Mode::from(0o640);
        rustix::fs::mknodat(rustix::fs::CWD, source.join(name), kind, mode, number)
    };
    node("pipe", rustix::fs::FileType::Fifo, 0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(source.join("socket")).unwrap());
    std::fs::hard_link(source.join("pipe"), source.join("pipe again")).unwrap();
    // Only root may make a device; elsewhere there is none to leave out either.
    let number = rustix::fs::makedev(1, 3);
    let with_device = node("null", rustix::fs::FileType::CharacterDevice, number).is_ok();

    let said = done(words!["import", &source, &place.volume("plain")]);
    let names = |said: &serde_json::Value| -> Vec<String> {
        let names = said["skipped"].as_array().unwrap().iter();
        names.map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let mut left_out = names(&said);
    left_out.sort();
    let wanted = ["null", "pipe", "pipe again", "socket"].map(|name| source.join("./").join(name));
    let wanted: Vec<_> = wanted.iter().skip(usize::from(!with_device)).collect();
    assert_eq!(left_out.len(), wanted.len(), "{said}");
    for (name, wanted) in left_out.iter().zip(wanted) {
        assert_eq!(Path::new(name).file_name(), wanted.file_name());
    }
    assert_eq!(said["skipped_count"], left_out.len() as u64);

    let said = done(words![
        "import",
        &source,
        &place.volume("all"),
        "--special",
        "--verify"
    ]);
    assert_eq!(names(&said).len(), 0, "{said}");
    let again = done(words!["import", &source, &place.volume("all"), "--special"]);
    assert_eq!(again["copied"], 0, "{again}");
    place.is_clean();
    let out = place.path("out");
    done(words!["export", &place.volume("all"), &out]);
    let kind = |name: &str| std::fs::symlink_metadata(out.join(name)).unwrap();
    use std::os::unix::fs::FileTypeExt;
    assert!(kind("pipe").file_type().is_fifo() && kind("socket").file_type().is_socket());
    assert_eq!(kind("pipe").ino(), kind("pipe again").ino());
    assert_eq!(
        kind("pipe").mode() & 0o777,
        std::fs::metadata(source.join("pipe")).unwrap().mode() & 0o777
    );
    if with_device {
        assert!(kind("null").file_type().is_char_device());
        assert_eq!(kind("null").rdev(), number);
    }

    // The same from an archive, which has no sockets.
    let archive = place.path("archive.tar");
    let made = Command::new("tar")
        .arg("-cf")
        .arg(&archive)
        .arg("-C")
        .arg(&source)
        .args(["file", "pipe", "pipe again"])
        .args(with_device.then_some("null"))
        .status();
    assert!(made.unwrap().success());
    let count = 1 + u64::from(with_device);
    let said = done(words!["import", &archive, &place.volume("tar"), "--special"]);
    assert_eq!(said["skipped_count"], 0, "{said}");
    let out = place.path("from-tar");
    done(words!["export", &place.volume("tar"), &out]);
    let kind = |name: &str| std::fs::symlink_metadata(out.join(name)).unwrap();
    // tar says nothing of pipes with several names.
    assert!(
        ["pipe", "pipe again"]
            .iter()
            .all(|name| kind(name).file_type().is_fifo())
    );
    assert!(!with_device || kind("null").rdev() == number);
    let plain = place.path("plain.tar");
    let made = Command::new("tar")
        .arg("-cf")
        .arg(&plain)
        .arg("-C")
        .arg(&source)
        .args(["file", "pipe"])
        .args(with_device.then_some("null"))
        .status();
    assert!(made.unwrap().success());
    let said = done(words!["import", &plain, &place.volume("tar plain")]);
    assert_eq!(said["skipped_count"], count, "{said}");
}
