//! Proved here, with the built binary on local files: an export gives back holes and extended attributes, and gives nobody
//! rights that he did not have.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(crate) fn command(arguments: &[&OsStr]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redhare"));
    // No cluster is named, and none that may run on this machine is found.
    command
        .env_remove("REDHARE_CLUSTER")
        .env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.arg("fs").args(arguments).arg("--json");
    command
}

fn value(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

pub(crate) fn done(arguments: &[&OsStr]) -> serde_json::Value {
    value(&command(arguments).output().unwrap())
}

/// Mixes text and paths as arguments.
macro_rules! words {
    ($($word:expr),* $(,)?) => { &[$(AsRef::<OsStr>::as_ref($word)),*][..] };
}

pub(crate) use words;

pub(crate) struct Place(pub(crate) tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        done(words!["format", &place.volume(), "--size", "64MiB"]);
        std::fs::create_dir(place.path("source")).unwrap();
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn volume(&self) -> OsString {
        let mut text = OsString::from("file:");
        text.push(self.path("volume"));
        text
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn holes_and_extended_attributes_come_back() {
    let place = Place::new();
    let source = place.path("source");
    let file = std::fs::File::create(source.join("sparse")).unwrap();
    // Far more than the volume has.
    file.set_len(1 << 30).unwrap();
    file.write_all_at(&[7; 5000], (300 << 20) + 100).unwrap();
    file.write_all_at(&[9; 10], (1 << 30) - 10).unwrap();
    // Zeros that were written, and a short file of nothing else.
    std::fs::write(source.join("zeros"), vec![0; 3 << 20]).unwrap();
    std::fs::write(source.join("short"), vec![0; 5000]).unwrap();
    let unaligned: Vec<u8> = (0..100_001_u32).map(|at| u8::from(at / 5000 % 3 == 1)).collect();
    std::fs::write(source.join("mixed"), &unaligned).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    let set = rustix::fs::setxattr(source.join("mixed"), "user.label", b"cat\0\xff", flags);
    std::fs::set_permissions(source.join("mixed"), std::fs::Permissions::from_mode(0o400)).unwrap();
    let set = set.and_then(|()| rustix::fs::setxattr(&source, "user.root", b"yes", flags));
    done(words!["import", &source, &place.volume()]);
    let out = place.path("out");
    let told = done(words!["export", &place.volume(), &out]);
    assert_eq!(told["extended_not_kept"], 0, "{told}");
    assert_eq!(done(words!["compare", &place.volume(), &out])["equal"], true);
    let read = std::fs::read(out.join("mixed")).unwrap();
    assert!(read == unaligned);
    for (name, size, blocks) in [
        ("sparse", 1 << 30, 100),
        ("zeros", 3 << 20, 8),
        ("short", 5000, 0),
    ] {
        let found = std::fs::metadata(out.join(name)).unwrap();
        assert_eq!(found.len(), size, "{name}");
        assert!(found.blocks() <= blocks, "{name} takes {} blocks", found.blocks());
    }
    // Some temporary directories keep none; the other tests say so.
    if set.is_ok() {
        let read = |path: &Path, name: &str| {
            let mut bytes = [0; 100];
            let length = rustix::fs::getxattr(path, name, &mut bytes).unwrap();
            bytes[..length].to_vec()
        };
        assert_eq!(read(&out.join("mixed"), "user.label"), b"cat\0\xff");
        assert_eq!(read(&out, "user.root"), b"yes");
    }
}

#[test]
fn who_may_not_set_owners_makes_no_set_uid_files_of_his_own() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        // Whoever is not root owns all that is imported here.
        return;
    }
    let place = Place::new();
    let source = place.path("source");
    let open = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    std::fs::write(source.join("tool"), "x").unwrap();
    std::fs::create_dir(source.join("shared")).unwrap();
    open(&source.join("tool"), 0o6755);
    open(&source.join("shared"), 0o3777);
    done(words!["import", &source, &place.volume()]);
    done(words!["export", &place.volume(), &place.path("root")]);
    assert_eq!(mode(&place.path("root/tool")), 0o6755);
    assert_eq!(mode(&place.path("root/shared")), 0o3777);

    open(place.0.path(), 0o777);
    open(&place.path("volume"), 0o644);
    // A copy, since nobody else may reach where the program was built.
    let program = place.path("redhare");
    std::fs::copy(env!("CARGO_BIN_EXE_redhare"), &program).unwrap();
    let out = place.path("out");
    let mut export = Command::new(&program);
    export
        .args(["fs", "export", "--json"])
        .arg(place.volume())
        .arg(&out);
    let told = value(&export.uid(NOBODY).gid(NOBODY).output().unwrap());
    assert_eq!(told["owners_not_kept"], 3, "{told}");
    assert_eq!(mode(&out.join("tool")), 0o755);
    assert_eq!(mode(&out.join("shared")), 0o1777);
}
