//! Proved here, with the built binary on local files: how commands end that are stopped, whose output goes nowhere, or that have
//! something to show though they fail; and that what is there afterwards can be relied on.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::export::{Place, command, done, words};

const LIMIT: Duration = Duration::from_secs(60);

fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(bytes)))
}

/// An archive of small files and a large one.
fn archive(files: usize) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for index in 0..=files {
        let bytes = vec![index as u8; if index == files { 8 << 20 } else { 500 }];
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(1_000_000_000);
        header.set_cksum();
        builder
            .append_data(&mut header, format!("{index:06}"), &bytes[..])
            .unwrap();
    }
    builder.into_inner().unwrap()
}

/// The newest generation, while somebody may be writing.
fn generation(place: &Place) -> u64 {
    let file = std::fs::File::open(place.path("volume")).unwrap();
    let at = |offset| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, offset).unwrap();
        u64::from_le_bytes(word)
    };
    at(32).max(at(65_536 + 32))
}

/// What it prints and how it ends.
fn ended(mut child: Child) -> (Option<i32>, String) {
    let until = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

#[test]
fn an_import_that_is_stopped_commits_and_says_how_to_go_on() {
    const FILES: usize = 200;
    let place = Place::new();
    let whole = archive(FILES);
    std::fs::write(place.path("all.tar"), &whole).unwrap();
    // It waits for more: between two files, and in the middle of a large one.
    let small = whole.len() - (8 << 20) - 2048;
    let mut before = 0;
    for (part, wanted, signal) in [
        (small / 2, 2, Signal::INT),
        (small + (3 << 20), FILES as u64, Signal::TERM),
    ] {
        let formatted = generation(&place);
        let mut child = command(words!["import", "-", &place.volume(), "--commit-every", "0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(&whole[..part]).unwrap();
        let until = Instant::now() + LIMIT;
        // One commit for each file that is new.
        while generation(&place) < formatted + wanted - before {
            assert!(Instant::now() < until, "nothing is committed");
            std::thread::sleep(Duration::from_millis(10));
        }
        let id = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(id, signal).unwrap();
        let (status, said) = ended(child);
        drop(pipe);
        assert_eq!(status, Some(130), "{said}");
        let said = json(said.as_bytes())["error"].as_str().unwrap().to_owned();
        assert!(
            said.contains("stopped by a signal")
                && said.contains("entries are committed")
                && said.contains("the same command goes on from there"),
            "{said}"
        );
        let (_, behind) = said.rsplit_once("signal. ").unwrap();
        before = behind.split(' ').next().unwrap().parse().unwrap();
        assert!(before >= wanted, "{said}");
        assert_eq!(done(words!["verify", &place.volume()])["clean"], true);
    }
    // The large one, in the middle of which it was stopped.
    assert_eq!(before, FILES as u64);
    let again = done(words![
        "import",
        &place.path("all.tar"),
        &place.volume(),
        "--verify"
    ]);
    assert_eq!(
        (&again["copied"], &again["verified"]),
        (&1.into(), &(FILES + 1).into()),
        "{again}"
    );
}

#[test]
fn what_a_signal_stops_deletes_no_more() {
    const FILES: u64 = 4000;
    let place = Place::new();
    let source = place.path("source");
    std::fs::create_dir(source.join("gone")).unwrap();
    for index in 0..FILES {
        std::fs::write(source.join(format!("gone/{index:06}")), "").unwrap();
    }
    done(words!["import", &source, &place.volume()]);
    std::fs::remove_dir_all(source.join("gone")).unwrap();
    std::fs::write(source.join("new"), "new").unwrap();
    let before = generation(&place);
    let child = command(words!["import", &source, &place.volume(), "--delete"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let id = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    let until = Instant::now() + LIMIT;
    // It commits what is new, and then deletes.
    while generation(&place) == before {
        assert!(Instant::now() < until, "nothing is committed");
        std::thread::yield_now();
    }
    kill_process(id, Signal::INT).unwrap();
    let (status, said) = ended(child);
    assert_eq!(done(words!["verify", &place.volume()])["clean"], true);
    let listed = done(words!["import", &source, &place.volume(), "--delete"]);
    assert_eq!(listed["copied"], 0, "what is new was committed: {listed}");
    match status {
        // It had ended with everything when the signal came.
        Some(0) => assert_eq!(listed["deleted"], 0, "{said} {listed}"),
        _ => {
            assert_eq!(status, Some(130), "{said}");
            assert!(
                said.contains("0 that the source does not have are deleted, and no more"),
                "{said}"
            );
            assert_eq!(listed["deleted"], FILES + 1, "{said} {listed}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_a_volume_does_not_stay() {
    let place = Place::new();
    let path = place.path("other");
    let mut volume = std::ffi::OsString::from("file:");
    volume.push(&path);
    for size in ["9223372036854775807B", "4KiB"] {
        let output = command(words!["format", &volume, "--size", size])
            .output()
            .unwrap();
        assert!(!output.status.success(), "{output:?}");
        assert!(!path.exists(), "{size}");
    }
}

#[test]
fn what_could_not_be_written_is_no_success_and_a_reader_that_has_enough_is_none_to_complain_of() {
    let place = Place::new();
    let source = place.path("source");
    std::fs::write(source.join("large"), vec![7; 16 << 20]).unwrap();
    done(words!["import", &source, &place.volume()]);
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let listed = command(words!["ls", &place.volume()])
        .stdout(full())
        .output()
        .unwrap();
    assert_eq!(listed.status.code(), Some(1), "{listed:?}");
    assert!(String::from_utf8_lossy(&listed.stderr).contains("cannot write the result"));
    let mut large = place.volume();
    large.push(":large");
    let mut cat = command(words!["cat", &large])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 10];
    cat.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let ended = cat.wait_with_output().unwrap();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    // What is no document, but a file, has none behind it.
    large.push("r");
    let failed = command(words!["cat", &large]).output().unwrap();
    assert!(!failed.status.success() && failed.stdout.is_empty(), "{failed:?}");
    assert!(
        json(&failed.stderr)["error"].as_str().unwrap().contains("larger"),
        "{failed:?}"
    );
}

#[test]
fn an_import_that_goes_on_tells_what_went_wrong_before_it_stopped() {
    let place = Place::new();
    let source = place.path("source");
    // Of no file that can be opened, before those that do not fit.
    std::os::unix::fs::symlink("x", source.join("link")).unwrap();
    std::fs::write(source.join("a"), "a").unwrap();
    std::fs::write(source.join("z"), vec![5; 100 << 20]).unwrap();
    std::fs::write(place.path("list"), "a\nmissing\nz\n").unwrap();
    let list = place.path("list");
    let output = command(words![
        "import",
        &source,
        &place.volume(),
        "--files-from",
        &list,
        "--keep-going"
    ])
    .output()
    .unwrap();
    assert!(!output.status.success());
    let said = json(&output.stdout);
    assert!(
        said["error"].as_str().unwrap().contains("the volume is full"),
        "{said}"
    );
    assert!(said["errors"][0].as_str().unwrap().contains("missing"), "{said}");
}

#[test]
fn of_several_formats_of_one_file_one_leaves_a_file_system() {
    let place = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let volume = format!("file:{}", place.path().join(format!("{round}")).display());
        let begin = || {
            let mut format = command(words!["format", &volume, "--size", "64MiB"]);
            format
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let all = [(); 6].map(|()| begin());
        let well = all.map(|mut one| one.wait().unwrap().success());
        assert!(well.contains(&true), "{well:?}");
        assert_eq!(done(words!["verify", &volume])["clean"], true);
    }
}

#[test]
fn what_an_import_takes_or_leaves_out_is_equal() {
    let place = Place::new();
    let source = place.path("source");
    std::fs::write(source.join("file"), "content").unwrap();
    let made = Command::new("mkfifo").arg(source.join("pipe")).status().unwrap();
    assert!(made.success());
    std::fs::hard_link(source.join("pipe"), source.join("pipe again")).unwrap();
    for with in [&[][..], words!["--special"]] {
        let volume = place.volume();
        done(&[words!["import", &source, &volume], with].concat());
        let compared = command(words!["compare", &place.volume(), &source])
            .output()
            .unwrap();
        assert!(compared.status.success(), "{with:?}: {}", json(&compared.stdout));
    }
    std::fs::remove_file(source.join("pipe again")).unwrap();
    let compared = command(words!["compare", &place.volume(), &source])
        .output()
        .unwrap();
    assert!(
        json(&compared.stdout)["differences"]
            .to_string()
            .contains("pipe again")
    );
}
