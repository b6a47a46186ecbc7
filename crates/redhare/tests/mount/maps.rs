//! Files that programs have mapped into their memory.
//!
//! Maps are made by a program of its own (Python's `mmap`), so that one that is given no bytes any more ends that program, and so that no code here
//! needs to be unsafe.

use std::process::{ChildStdin, ChildStdout};

use super::*;

/// Answers one line for each line: `map KEY ro|rw PATH`, `all KEY` (the bytes there are, each once, and how many), `get KEY AT LENGTH` (the same of a part),
/// `put KEY AT BYTE LENGTH`, `sync KEY`, `drop KEY`. The file is closed as soon as it is mapped.
const PROGRAM: &str = r#"
import mmap, sys
maps = {}
def told(part):
    return "".join(chr(byte) for byte in sorted(set(part))) + " " + str(len(part))
for line in sys.stdin:
    what, key, *more = line.rstrip("\n").split(" ", 2)
    answer = "done"
    if what == "map":
        how, path = more[0].split(" ", 1)
        with open(path, "rb" if how == "ro" else "r+b") as file:
            maps[key] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ if how == "ro" else mmap.ACCESS_WRITE)
    elif what == "all":
        answer = told(maps[key][:])
    elif what == "get":
        at, length = map(int, more[0].split())
        answer = told(maps[key][at : at + length])
    elif what == "put":
        at, byte, length = more[0].split()
        maps[key][int(at) : int(at) + int(length)] = byte.encode() * int(length)
    elif what == "sync":
        maps[key].flush()
    elif what == "drop":
        maps.pop(key).close()
    print(answer, flush=True)
"#;

struct Maps {
    process: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Maps {
    /// None where there is no Python; then the test is noted as skipped.
    fn start(test: &str) -> Option<Self> {
        let mut command = Command::new("python3");
        let spawned = command
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut process) = spawned else {
            skip(
                test,
                "there is no python3, which maps files here; install python3",
            );
            return None;
        };
        let (asks, answers) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Some(Self {
            process,
            asks,
            answers: BufReader::new(answers),
        })
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.asks, "{what}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "the program that maps ended at: {what}");
        line.trim_end().to_owned()
    }

    fn map(&mut self, key: &str, how: &str, path: &Path) {
        let said = self.ask(&format!("map {key} {how} {}", path.display()));
        assert_eq!(said, "done");
    }

    fn end(mut self) {
        drop(self.asks);
        assert!(self.process.wait().unwrap().success());
    }
}

/// What was written through a map is what `read` gives, and what others see once it was handed on and committed.
#[test]
fn what_is_written_through_a_map_is_read_here_and_seen_elsewhere() {
    let test = "what_is_written_through_a_map_is_read_here_and_seen_elsewhere";
    if !can_mount(test) {
        return;
    }
    let Some(mut maps) = Maps::start(test) else { return };
    const LENGTH: usize = 1_000_003;
    let place = Place::in_memory("mount-maps");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    cluster.succeed(&["volume", "create", "data", "--size", "64MiB"]);
    format(Some(&cluster), "data");
    let writer = Mount::start(Some(&cluster), "data", &place.0.join("writer"), &[]);
    let options = ["--read-only", "--follow-within", "3600"];
    let reader = Mount::start(Some(&cluster), "data", &place.0.join("reader"), &options);
    // One with content, and one that is a hole until it is written through its map.
    fs::write(writer.path("file"), vec![b'a'; LENGTH]).unwrap();
    File::create(writer.path("hole"))
        .unwrap()
        .set_len(LENGTH as u64)
        .unwrap();
    sync(&writer.directory);
    sync(&reader.directory);
    let mut expected = [vec![b'a'; LENGTH], vec![0; LENGTH]];
    let names = ["file", "hole"];
    for name in names {
        maps.map(name, "rw", &writer.path(name));
        maps.map(&format!("{name}-read"), "ro", &writer.path(name));
    }
    // Across pages and across requests, at the beginning and at the end.
    let parts = [
        (0, b'b', 10),
        (4090, b'c', 20),
        (130_000, b'd', 300_000),
        (LENGTH - 5, b'e', 5),
    ];
    let check = |mount: &Mount, expected: &[Vec<u8>; 2], what: &str| {
        for (name, expected) in names.iter().zip(expected) {
            assert!(fs::read(mount.path(name)).unwrap() == *expected, "{name}: {what}");
        }
    };
    for (round, (at, byte, length)) in parts.into_iter().enumerate() {
        let earlier = expected.clone();
        for (name, expected) in names.iter().zip(&mut expected) {
            expected[at..at + length].fill(byte);
            maps.ask(&format!("put {name} {at} {} {length}", byte as char));
        }
        check(&writer, &expected, "before msync");
        let said = maps.ask(&format!("get hole-read {at} {length}"));
        assert_eq!(said, format!("{} {length}", byte as char), "another map of it");
        for name in names {
            match round % 2 {
                0 => {
                    maps.ask(&format!("sync {name}"));
                }
                // `fsync` of the file hands on what was written through a map as well.
                _ => sync(&writer.path(name)),
            }
        }
        sync(&reader.directory);
        if round % 2 == 0 {
            // `msync` is durable as `fsync` is.
            check(&reader, &expected, "after msync");
        }
        assert_ne!(earlier, expected);
        check(&reader, &expected, "after a commit");
        check(&writer, &expected, "after a commit");
    }
    // A write by the system call is in the map, and a map that goes away hands on what was written through it.
    let open = File::options().write(true).open(writer.path("file")).unwrap();
    open.write_all_at(&[b'w'; 100], 500_000).unwrap();
    assert_eq!(maps.ask("get file 500000 100"), "w 100");
    assert_eq!(maps.ask("get file-read 500000 100"), "w 100");
    expected[0][500_000..500_100].fill(b'w');
    for (name, expected) in names.iter().zip(&mut expected) {
        maps.ask(&format!("put {name} 600000 z 5000"));
        expected[600_000..605_000].fill(b'z');
        maps.ask(&format!("drop {name}"));
    }
    sync(&writer.directory);
    sync(&reader.directory);
    check(&reader, &expected, "after munmap");
    maps.end();
    drop(open);
    reader.end();
    writer.end();
    for (name, expected) in names.iter().zip(&expected) {
        let read = command(Some(&cluster), &["cat", &format!("data:{name}")])
            .output()
            .unwrap();
        assert!(read.stdout == *expected, "{name}, by another program");
    }
}

/// A map that reads, while the writer commits other content: all of it is of one commit, what the kernel has in memory and what it has not.
#[test]
fn a_map_shows_one_commit_whatever_is_committed_meanwhile() {
    let test = "a_map_shows_one_commit_whatever_is_committed_meanwhile";
    if !can_mount(test) {
        return;
    }
    let Some(mut maps) = Maps::start(test) else { return };
    const LENGTH: usize = 6_000_000;
    let place = Place::in_memory("mount-maps-read");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    cluster.succeed(&["volume", "create", "data", "--size", "256MiB"]);
    format(Some(&cluster), "data");
    let writer = Mount::start(Some(&cluster), "data", &place.0.join("writer"), &[]);
    // Of the same length, of another, and one that goes.
    for name in ["same", "short", "gone"] {
        fs::write(writer.path(name), vec![b'a'; LENGTH]).unwrap();
    }
    sync(&writer.directory);
    let seldom: &[&str] = &["--read-only", "--follow-within", "3600"];
    let follows = Mount::start(Some(&cluster), "data", &place.0.join("follows"), seldom);
    let stays = Mount::start(
        Some(&cluster),
        "data",
        &place.0.join("stays"),
        &["--read-only", "--stay"],
    );
    let mounts = [("follows", &follows), ("stays", &stays)];
    for (mount, at) in mounts {
        for name in ["same", "short", "gone"] {
            maps.map(&format!("{mount}-{name}"), "ro", &at.path(name));
            // Some of it comes to be in the kernel's memory.
            assert_eq!(
                maps.ask(&format!("get {mount}-{name} 1000000 300000")),
                "a 300000"
            );
        }
    }
    for round in b'b'..=b'h' {
        fs::write(writer.path("same"), vec![round; LENGTH]).unwrap();
        fs::write(writer.path("short"), vec![round; LENGTH / 3]).unwrap();
        if round == b'b' {
            fs::remove_file(writer.path("gone")).unwrap();
        }
        // What was freed is used again.
        fs::write(writer.path("other"), vec![round; LENGTH]).unwrap();
        sync(&writer.directory);
        sync(&follows.directory);
        for (mount, _) in mounts {
            // More of it, from the back.
            let at = LENGTH - (round - b'a') as usize * 400_000;
            for name in ["same", "short", "gone"] {
                let said = maps.ask(&format!("get {mount}-{name} {at} 400000"));
                assert_eq!(said, "a 400000", "{mount}: {name}, round {}", round as char);
            }
        }
        let key = format!("new-{}", round as char);
        maps.map(&key, "ro", &follows.path("same"));
        assert_eq!(
            maps.ask(&format!("all {key}")),
            format!("{} {LENGTH}", round as char)
        );
        maps.map("new-short", "ro", &follows.path("short"));
        assert_eq!(
            maps.ask("all new-short"),
            format!("{} {}", round as char, LENGTH / 3)
        );
    }
    for (mount, _) in mounts {
        for name in ["same", "short", "gone"] {
            assert_eq!(
                maps.ask(&format!("all {mount}-{name}")),
                format!("a {LENGTH}"),
                "{mount}: {name}"
            );
            maps.ask(&format!("drop {mount}-{name}"));
        }
    }
    // Each of those that were mapped in between is of its own commit.
    for round in b'b'..=b'h' {
        let said = maps.ask(&format!("all new-{}", round as char));
        assert_eq!(said, format!("{} {LENGTH}", round as char));
    }
    // Mapped anew: the newest, and on a mount that stays what it began with.
    maps.map("follows", "ro", &follows.path("same"));
    assert_eq!(maps.ask("all follows"), format!("h {LENGTH}"));
    for name in ["same", "short", "gone"] {
        maps.map("stays", "ro", &stays.path(name));
        assert_eq!(maps.ask("all stays"), format!("a {LENGTH}"));
    }
    maps.end();
    follows.end();
    stays.end();
    writer.end();
}
