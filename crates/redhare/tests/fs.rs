//! Proved here, with the built binary on local files: what is imported is listed, read, exported and compared as it was,
//! odd names, links and modes included; changes are found; what cannot be done is refused with a remedy.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use foundation::Random;

fn fs(arguments: &[&OsStr]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redhare"));
    // No cluster is named, and none that may run on this machine is found.
    command
        .env_remove("REDHARE_CLUSTER")
        .env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.arg("fs").args(arguments).output().unwrap()
}

/// Runs a command that must succeed; gives its standard output.
fn done(arguments: &[&OsStr]) -> Vec<u8> {
    let output = fs(arguments);
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{arguments:?}: {said}");
    output.stdout
}

/// Runs a command that must fail; gives what it says.
fn refused(arguments: &[&OsStr]) -> String {
    let output = fs(arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&OsStr]) -> serde_json::Value {
    let arguments = [arguments, &[OsStr::new("--json")]].concat();
    serde_json::from_slice(&fs(&arguments).stdout).unwrap()
}

/// Mixes text and paths as arguments.
macro_rules! words {
    ($($word:expr),* $(,)?) => { &[$(AsRef::<OsStr>::as_ref($word)),*][..] };
}

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The volume, and after a colon the path in it.
    fn volume(&self, inside: impl AsRef<OsStr>) -> OsString {
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
}

const SIZES: [usize; 14] = [
    0,
    1,
    127,
    128,
    129,
    4095,
    4096,
    4097,
    65_536,
    262_144,
    262_145,
    1 << 20,
    (1 << 20) + 1,
    5_000_001,
];

/// Files of many sizes with odd names, links and modes.
fn fill(source: &Path) {
    let mut random = Random::from_seed(1);
    std::fs::create_dir_all(source.join("sizes")).unwrap();
    std::fs::create_dir_all(source.join("deep/er/still")).unwrap();
    std::fs::create_dir(source.join("empty")).unwrap();
    let mut make = |path: PathBuf, size: usize, mode: u32| {
        let mut bytes = vec![0; size];
        random.fill(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for size in SIZES {
        make(source.join(format!("sizes/{size}")), size, 0o644);
    }
    for index in 0..300_usize {
        make(source.join(format!("deep/er/{index:03}")), index * 37, 0o600);
    }
    let names: [&[u8]; 5] = [
        b"\xff\xfe not text",
        b"two\nlines",
        b" ",
        b"col:on",
        "größe".as_bytes(),
    ];
    for name in names {
        make(
            source.join("deep/er/still").join(OsStr::from_bytes(name)),
            1000,
            0o4755,
        );
    }
    make(source.join("read only"), 10, 0o444);
    std::fs::hard_link(source.join("sizes/4097"), source.join("deep/again")).unwrap();
    std::fs::hard_link(source.join("sizes/4097"), source.join("zz")).unwrap();
    symlink("sizes/4097", source.join("link")).unwrap();
    symlink(OsStr::from_bytes(b"nowhere/\xff"), source.join("deep/dangling")).unwrap();
    std::fs::set_permissions(source.join("empty"), std::fs::Permissions::from_mode(0o1770)).unwrap();
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    let file = std::fs::File::open(source.join("sizes/1")).unwrap();
    file.set_modified(old).unwrap();
}

fn filled() -> (Place, PathBuf) {
    let place = Place::new();
    let source = place.path("source");
    fill(&source);
    done(words!["format", &place.whole(), "--size", "64MiB"]);
    done(words!["import", &source, &place.whole()]);
    (place, source)
}

#[test]
fn what_goes_in_comes_out() {
    let (place, source) = filled();
    let report = json(words!["verify", &place.whole()]);
    assert_eq!(report["clean"], true, "{report}");
    let compared = json(words!["compare", &place.whole(), &source]);
    assert_eq!(compared["equal"], true, "{compared}");
    let bytes: u64 = SIZES.iter().map(|&size| size as u64).sum::<u64>() + 37 * 299 * 300 / 2 + 5010;
    // The link's targets count, too; sizes/4097 counts once.
    assert_eq!(compared["content_bytes"], bytes + 10 + 9);

    for path in ["sizes/0", "sizes/5000001", "deep/er/still/col:on"] {
        let expected = std::fs::read(source.join(path)).unwrap();
        assert!(done(words!["cat", &place.volume(path)]) == expected, "{path}");
    }
    let odd = OsStr::from_bytes(b"deep/er/still/\xff\xfe not text");
    assert_eq!(done(words!["cat", &place.volume(odd)]).len(), 1000);

    let back = place.path("back");
    done(words!["export", &place.whole(), &back]);
    let again = json(words!["compare", &place.whole(), &back]);
    assert_eq!(again["equal"], true, "{again}");
    let inode = |path: &str| std::fs::metadata(back.join(path)).unwrap().ino();
    assert_eq!(inode("zz"), inode("deep/again"));
    assert_ne!(inode("zz"), inode("sizes/4096"));
    done(words!["export", &place.volume("sizes"), &place.path("part")]);
    let expected = std::fs::read(source.join("sizes/5000001")).unwrap();
    assert!(std::fs::read(place.path("part/5000001")).unwrap() == expected);
    let bench = json(words![
        "bench",
        &place.whole(),
        "--seconds",
        "0.1",
        "--files-in-flight",
        "4"
    ]);
    assert!(bench["files"].as_u64().unwrap() > 0, "{bench}");
    let batch = json(words!["bench", &place.whole(), "--seconds", "0.1", "--batch"]);
    assert!(batch["content_bytes"].as_u64().unwrap() > 0, "{batch}");
    // Dropping only these files' pages leaves the rest of the machine in peace.
    let against = json(words![
        "bench",
        &place.whole(),
        "--against",
        &source,
        "--evict",
        "files",
        "--seconds",
        "0.2",
        "--rounds",
        "4"
    ]);
    let (ours, local) = (&against["volume"], &against["local"]);
    assert!(ours["files"].as_u64().unwrap() >= 4 * 16, "{against}");
    for name in ["files", "content_bytes"] {
        assert_eq!(ours[name], local[name], "both read the same: {against}");
    }
    assert_eq!(against["left_out"], 0, "{against}");
    assert_eq!(against["index"], "warm", "inodes were not dropped: {against}");
    assert!(against["ratio"].as_f64().unwrap() > 0.0, "{against}");
    let text = refused(words!["bench", &place.whole(), "--against", &place.path("part")]);
    assert!(text.contains("has none of the"), "{text}");
}

#[test]
fn listings_say_what_stat_says() {
    let (place, source) = filled();
    let text = String::from_utf8(done(words!["ls", &place.volume("deep/er/still")])).unwrap();
    assert_eq!(text, " \ncol:on\ngröße\ntwo\\nlines\n\\xff\\xfe not text\n");
    let long = String::from_utf8(done(words!["ls", "-l", &place.whole()])).unwrap();
    assert!(long.contains("drwxrwx--T"), "{long}");
    assert!(long.contains("link -> sizes/4097"), "{long}");
    let names = json(words!["ls", &place.volume("deep/er")]);
    assert_eq!(names.as_array().unwrap().len(), 301);
    let local = std::fs::metadata(source.join("zz")).unwrap();
    let stat = json(words!["stat", &place.volume("zz")]);
    assert_eq!(stat["links"], 3);
    assert_eq!(stat["size_bytes"], 4097);
    assert_eq!(
        (&stat["uid"], &stat["gid"]),
        (&local.uid().into(), &local.gid().into())
    );
    assert_eq!(stat["mode"], "0644");
    let stat = json(words!["stat", &place.volume("sizes/1")]);
    assert_eq!(stat["mtime"], "2001-09-09T01:46:40.123456789Z");
    let stat = json(words!["stat", &place.volume("deep/dangling")]);
    assert_eq!(
        (&stat["kind"], &stat["target"]),
        (&"symlink".into(), &"nowhere/\\xff".into())
    );
}

#[test]
fn every_change_is_found_and_named() {
    let (place, source) = filled();
    let write = |path: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let path = source.join(path);
        let times = std::fs::metadata(&path).unwrap().modified().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        std::fs::File::open(&path).unwrap().set_modified(times).unwrap();
    };
    write("sizes/65536", &|bytes| bytes[65_535] ^= 1);
    write("sizes/5000001", &|bytes| bytes[4_000_000] ^= 1);
    write("sizes/129", &|bytes| bytes.push(0));
    let mode = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(source.join("deep/er/001"), mode).unwrap();
    let now = std::time::SystemTime::now();
    std::fs::File::open(source.join("sizes/1"))
        .unwrap()
        .set_modified(now)
        .unwrap();
    std::fs::remove_file(source.join("link")).unwrap();
    symlink("sizes/4096", source.join("link")).unwrap();
    std::fs::remove_file(source.join("zz")).unwrap();
    std::fs::copy(source.join("sizes/4097"), source.join("new")).unwrap();
    let found = json(words!["compare", &place.whole(), &source]);
    assert_eq!(found["equal"], false);
    let differences = found["differences"].as_array().unwrap();
    for (path, what) in [
        ("sizes/65536", "has other content: byte 65535"),
        ("sizes/5000001", "has other content: byte 4000000 is"),
        ("sizes/129", "has 129 bytes, and locally 130"),
        ("deep/er/001", "has mode 0600, and locally 0640"),
        (
            "sizes/1",
            "was changed at 2001-09-09T01:46:40.123456789Z, and locally at",
        ),
        ("link", "has other content: byte 9"),
        ("zz", "is on the volume, and not in the directory"),
        ("new", "there is no such file or directory"),
    ] {
        let named = |found: &&serde_json::Value| {
            found["path"] == path && found["what"].as_str().unwrap().contains(what)
        };
        assert!(differences.iter().any(|found| named(&found)), "{path}: {found}");
    }
    let text = refused(words!["compare", &place.whole(), &source]);
    assert!(text.contains("deep/er/001: has mode 0600"), "{text}");
}

#[test]
fn foreign_files_are_not_overwritten() {
    let place = Place::new();
    std::fs::write(place.path("volume"), vec![7; 64 << 20]).unwrap();
    let text = refused(words!["ls", &place.whole()]);
    assert!(text.contains("holds no PackFS; format it first"), "{text}");
    let text = refused(words!["format", &place.whole()]);
    assert!(
        text.contains("is not empty") && text.contains("--force"),
        "{text}"
    );
    assert_eq!(std::fs::read(place.path("volume")).unwrap()[0], 7);
    let text = refused(words!["format", &place.whole(), "--force", "--size", "1GiB"]);
    assert!(
        text.contains("exists with 64 MiB, and --size asks for 1 GiB"),
        "{text}"
    );
    done(words!["format", &place.whole(), "--force"]);
    let text = refused(words!["format", &place.whole()]);
    assert!(text.contains("it holds a PackFS"), "{text}");
    assert_eq!(done(words!["ls", &place.whole()]), b"\n");
}

#[test]
fn refusals_say_what_to_do() {
    let place = Place::new();
    let text = refused(words!["ls", &place.whole()]);
    assert!(
        text.contains("there is no such file; make it with \"redhare fs format"),
        "{text}"
    );
    let text = refused(words!["format", &place.whole(), "--size", "1MiB"]);
    assert!(text.contains("the volume has 1 MiB, and"), "{text}");
    assert!(!place.path("volume").exists(), "a useless file is left behind");
    let text = refused(words!["ls", "data:a"]);
    assert!(
        text.contains("data: no cluster is named and none runs here"),
        "{text}"
    );
    assert!(text.contains("write file:data"), "{text}");
    done(words!["format", &place.whole(), "--size", "64MiB"]);
    let text = refused(words!["import", &place.path("missing"), &place.whole()]);
    assert!(text.contains("missing: No such file"), "{text}");
    let text = refused(words!["bench", &place.whole()]);
    assert!(text.contains("no files to read; fill it"), "{text}");
    std::fs::create_dir_all(place.path("source/x")).unwrap();
    std::fs::write(place.path("source/file"), "a").unwrap();
    done(words!["import", &place.path("source"), &place.volume("a/b")]);
    let again = json(words!["import", &place.path("source"), &place.volume("a/b")]);
    assert_eq!(
        (&again["copied"], &again["unchanged"]),
        (&0.into(), &3.into()),
        "{again}"
    );
    let text = refused(words!["export", &place.whole(), &place.path("source")]);
    assert!(
        text.contains("is not empty; name a new or an empty directory"),
        "{text}"
    );
    let text = refused(words!["cat", &place.volume("a")]);
    assert!(text.contains("is a directory"), "{text}");
    let held = std::fs::File::open(place.path("volume")).unwrap();
    held.lock().unwrap();
    let text = refused(words!["import", &place.path("source"), &place.volume("c")]);
    assert!(text.contains("another process has it open"), "{text}");
}

#[test]
fn a_full_volume_keeps_what_was_committed() {
    let place = Place::new();
    let source = place.path("source");
    std::fs::create_dir(&source).unwrap();
    let mut bytes = vec![0; 100_000];
    Random::from_seed(3).fill(&mut bytes);
    for index in 0..400 {
        std::fs::write(source.join(format!("{index:03}")), &bytes).unwrap();
    }
    done(words!["format", &place.whole(), "--size", "24MiB"]);
    let text = refused(words!["import", &source, &place.whole()]);
    assert!(
        text.contains("the volume is full") && text.contains("of 401 entries are committed"),
        "{text}"
    );
    let report = json(words!["verify", &place.whole()]);
    assert_eq!(report["clean"], true, "{report}");
    assert!(report["files"].as_u64().unwrap() > 50, "{report}");
    assert!(done(words!["cat", &place.volume("000")]) == bytes);
}

#[test]
fn snapshots_are_made_read_and_deleted_and_dead_space_is_asked_for() {
    let (place, source) = filled();
    let at = |name: &str, inside: &str| {
        let mut text = place.whole();
        text.push(format!("@{name}{inside}"));
        text
    };
    let text = done(words!["snapshot", "create", &place.whole(), "monday"]);
    assert!(
        String::from_utf8(text)
            .unwrap()
            .contains("@monday keeps generation")
    );
    let text = refused(words!["snapshot", "create", &place.whole(), "monday"]);
    assert!(text.contains("there is a snapshot \"monday\" already"), "{text}");
    let more = place.path("more");
    std::fs::create_dir(&more).unwrap();
    std::fs::write(more.join("later"), vec![5; 70_000]).unwrap();
    done(words!["import", &more, &place.volume("more")]);
    assert_eq!(done(words!["cat", &place.volume("more/later")]), vec![5; 70_000]);
    let text = refused(words!["cat", &at("monday", ":more/later")]);
    assert!(text.contains("no such file"), "{text}");
    done(words!["compare", &at("monday", ""), &source]);
    let text = refused(words!["import", &more, &at("monday", ":more")]);
    assert!(text.contains("a snapshot is never written"), "{text}");
    let text = refused(words!["ls", &at("tuesday", "")]);
    assert!(text.contains("there is no snapshot \"tuesday\""), "{text}");
    let listed = json(words!["snapshot", "list", &place.whole()]);
    assert_eq!(listed[0]["name"], "monday", "{listed}");
    let report = json(words!["verify", &place.whole()]);
    assert_eq!(
        (&report["clean"], &report["snapshots"]),
        (&true.into(), &1.into())
    );
    let used = json(words!["df", &place.whole()]);
    assert!(used["held_by_snapshots_bytes"].as_u64().unwrap() > 0, "{used}");
    // What came after the snapshot goes again, and its room comes back beside the snapshot.
    let before = json(words!["df", &place.whole()]);
    let nothing = place.path("nothing");
    std::fs::create_dir(&nothing).unwrap();
    for _ in 0..3 {
        done(words!["import", &more, &place.volume("again")]);
        done(words!["import", "--delete", &nothing, &place.volume("again")]);
    }
    let churned = json(words!["df", &place.whole()]);
    let compacted = json(words!["compact", &place.whole()]);
    let held = |view: &serde_json::Value| view["held_by_snapshots_bytes"].as_u64().unwrap();
    assert!(
        compacted["free_bytes"].as_u64() > compacted["free_bytes_before"].as_u64(),
        "{compacted}"
    );
    assert!(
        held(&compacted) > 0 && held(&compacted) <= held(&before),
        "{compacted} {before}"
    );
    // It stays known for whoever opens the volume next, but for what the last commits gave back.
    let used = json(words!["df", &place.whole()]);
    assert!(held(&used) < held(&churned), "{used} {churned}");
    done(words!["compare", &at("monday", ""), &source]);
    assert_eq!(json(words!["verify", &place.whole()])["clean"], true);
    done(words!["snapshot", "delete", &place.whole(), "monday"]);
    let used = json(words!["df", &place.whole()]);
    assert_eq!(used["held_by_snapshots_bytes"], 0, "{used}");
    let compacted = json(words!["compact", &place.whole()]);
    assert_eq!(compacted["unreadable_extents"], 0, "{compacted}");
    assert_eq!(json(words!["verify", &place.whole()])["clean"], true);
}

#[test]
fn a_clone_is_what_it_was_made_of_and_takes_no_room() {
    let (place, source) = filled();
    let free = || json(words!["df", &place.whole()])["free_bytes"].as_u64().unwrap();
    let before = free();
    let text = done(words!["clone", &place.whole(), "/", "clone"]);
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(":clone is a clone: "), "{text}");
    assert!(free() + (1 << 20) > before, "{} of {before} are free", free());
    done(words!["compare", &place.volume("clone"), &source]);
    assert_eq!(json(words!["verify", &place.whole()])["clean"], true);
    let made = json(words!["clone", &place.whole(), "clone", "clone/inside/"]);
    assert_eq!(made["clone"], "clone/inside", "{made}");
    for (from, to, why) in [
        ("none", "x", "none: does not exist"),
        ("clone", "none/x", "none: does not exist"),
        ("clone", "clone", "exists already"),
        ("clone", "/", "the clone would be the root directory"),
    ] {
        let text = refused(words!["clone", &place.whole(), from, to]);
        assert!(text.contains(why), "{text}");
    }
    assert_eq!(json(words!["verify", &place.whole()])["clean"], true);
}

#[test]
fn damage_is_found_and_named() {
    let (place, source) = filled();
    let wanted = std::fs::read(source.join("sizes/262144")).unwrap();
    let mut image = std::fs::read(place.path("volume")).unwrap();
    let at = image
        .windows(64)
        .position(|window| window == &wanted[..64])
        .unwrap();
    image[at + 1000] ^= 1;
    std::fs::write(place.path("volume"), image).unwrap();
    let text = refused(words!["verify", &place.whole()]);
    assert!(text.contains("sizes/262144: the 262144 bytes at block"), "{text}");
    let report = json(words!["verify", &place.whole()]);
    assert_eq!(
        (&report["clean"], report["problems"].as_array().unwrap().len()),
        (&false.into(), 1)
    );
    let text = refused(words!["compare", &place.whole(), &source]);
    assert!(
        text.contains("sizes/262144") && text.contains("are damaged in every copy"),
        "{text}"
    );
}

/// Checks; gives the exit status and what was printed.
fn fsck(place: &Place, flags: &[&str]) -> (Option<i32>, serde_json::Value) {
    let whole = place.whole();
    let mut arguments: Vec<&OsStr> = vec![OsStr::new("fsck"), whole.as_ref(), OsStr::new("--json")];
    arguments.extend(flags.iter().map(OsStr::new));
    let output = fs(&arguments);
    let value = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code(), value)
}

#[test]
fn fsck_repairs_and_says_by_its_status_how_it_went() {
    let (place, source) = filled();
    let (status, report) = fsck(&place, &["--data"]);
    assert_eq!((status, &report["clean"]), (Some(0), &true.into()));
    // The root of the index is the last page that was written but for those of the record: the one the superblock names.
    let mut image = std::fs::read(place.path("volume")).unwrap();
    let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    let newest = [0, 65536].into_iter().max_by_key(|&at| word(at + 32)).unwrap();
    let root = word(newest + 112) as usize * 4096;
    image[root + 100..root + 110].fill(0x5a);
    std::fs::write(place.path("volume"), &image).unwrap();
    let (status, report) = fsck(&place, &[]);
    assert_eq!((status, &report["uncorrected"]), (Some(4), &true.into()));
    assert_eq!(
        std::fs::read(place.path("volume")).unwrap(),
        image,
        "a check writes nothing"
    );
    let (status, report) = fsck(&place, &["--repair"]);
    assert_eq!(
        (status, &report["corrected"]),
        (Some(1), &true.into()),
        "{report}"
    );
    assert_eq!(report["lost"].as_array().unwrap().len(), 0, "{report}");
    let (status, _) = fsck(&place, &["--repair", "--data"]);
    assert_eq!(status, Some(0));
    done(words!["compare", &place.whole(), &source]);
    // Content is not made up.
    let wanted = std::fs::read(source.join("sizes/262144")).unwrap();
    let mut image = std::fs::read(place.path("volume")).unwrap();
    let at = image
        .windows(64)
        .position(|window| window == &wanted[..64])
        .unwrap();
    image[at + 1000] ^= 1;
    std::fs::write(place.path("volume"), image).unwrap();
    assert_eq!(
        fsck(&place, &["--repair"]).0,
        Some(0),
        "content is read on request only"
    );
    let (status, report) = fsck(&place, &["--repair", "--data"]);
    assert_eq!(status, Some(4));
    let text = report["left"][0].as_str().unwrap();
    assert!(
        text.starts_with("sizes/262144: the 262144 bytes at block"),
        "{text}"
    );
    let output = fs(words!["fsck", &place.whole(), "--repair", "--data"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("what is wrong cannot be repaired; restore the files"),
        "{text}"
    );
    // What is no file system cannot be checked.
    std::fs::write(place.path("nothing"), vec![0; 1 << 20]).unwrap();
    let nothing = place.path("nothing");
    let output = fs(words!["fsck", &format!("file:{}", nothing.display())]);
    assert_eq!(output.status.code(), Some(8));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("the volume holds no PackFS"), "{text}");
}
