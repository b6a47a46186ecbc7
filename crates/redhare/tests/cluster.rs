//! The whole product as processes: `redhare up`, a volume, files in, a node killed, files compared, a restart; a writer
//! that is stopped, overtaken and woken again; an import beside servers that die, and after its own death.

use std::cell::RefCell;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Cluster, LIMIT, Place, REDHARE, free_ports, kill};

#[test]
fn files_survive_a_killed_node_and_a_restart_of_everything() {
    let place = Place::in_memory("cluster");
    let data = &place.0;
    let files = data.join("files");
    std::fs::create_dir_all(&files).unwrap();
    for number in 0..300u32 {
        let bytes: Vec<u8> = (0..number * 97).map(|at| (at * 31 + number) as u8).collect();
        std::fs::write(files.join(format!("file-{number}")), bytes).unwrap();
    }
    let source = files.to_str().unwrap();
    let port = free_ports();
    let cluster = Cluster::start(&data.join("cluster"), port);
    let refused = cluster.run(&["volume", "create", "huge", "--size", "1TiB"]);
    assert!(!refused.status.success());
    cluster.succeed(&["volume", "create", "files", "--size", "512MiB"]);
    cluster.succeed(&["fs", "format", "files"]);
    cluster.succeed(&["fs", "import", source, "files"]);
    cluster.succeed(&["fs", "compare", "files", source]);

    // Everything ends and starts again: every life is new, and nothing is lost.
    cluster.end();
    let cluster = Cluster::start(&data.join("cluster"), port);
    cluster.wait(&["fs", "stat", "files:file-7"], |said| said.contains("file-7"));
    cluster.succeed(&["fs", "compare", "files", source]);

    // One server dies, engine and target at once: reads and writes go on. It comes back and is sent what it missed.
    let life = cluster.incarnation(2);
    kill(&cluster.engine_lock(2));
    kill(&cluster.target_lock(2));
    cluster.succeed(&["fs", "compare", "files", source]);
    cluster.succeed(&["fs", "import", source, "files:again"]);
    cluster.wait_for_life_after(2, life);
    cluster.wait_for_chunks("files", &[1, 2, 3], &[], &[]);
    cluster.wait(&["status"], |said| said.contains("all copies in sync"));

    // Then another one, so that what it missed is read from it, too.
    kill(&cluster.engine_lock(1));
    kill(&cluster.target_lock(1));
    cluster.succeed(&["fs", "compare", "files:again", source]);
    cluster.succeed(&["fs", "verify", "files"]);
    cluster.end();
}

/// What a writer is told to stop with and to go on with.
fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status();
    assert!(status.unwrap().success(), "{name}");
}

#[test]
fn a_writer_that_was_stopped_and_overtaken_writes_nothing_more() {
    let place = Place::in_memory("writers");
    let data = &place.0;
    let (large, small) = (data.join("large"), data.join("small"));
    std::fs::create_dir_all(&large).unwrap();
    std::fs::create_dir_all(&small).unwrap();
    for number in 0..3000_u32 {
        let bytes: Vec<u8> = (0..64 << 10).map(|at: u32| (at * 31 + number) as u8).collect();
        std::fs::write(large.join(format!("file-{number}")), bytes).unwrap();
    }
    std::fs::write(small.join("small"), "one file").unwrap();
    let (large, small) = (large.to_str().unwrap(), small.to_str().unwrap());
    let cluster = Cluster::start(&data.join("cluster"), free_ports());
    cluster.succeed(&["volume", "create", "files", "--size", "512MiB"]);
    cluster.succeed(&["fs", "format", "files"]);
    let begin = |number: u32| {
        Command::new(REDHARE)
            .args(["fs", "import", large, &format!("files:first-{number}")])
            .env("REDHARE_CLUSTER", cluster.address())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut first = begin(0);

    // While it writes, nobody else may. A probe that comes before it has begun may win, and be in its way.
    let deadline = Instant::now() + LIMIT;
    for number in 1.. {
        let refused = cluster.run(&["fs", "format", "files", "--force"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        let holder = format!("being written by redhare fs import, process {} on ", first.id());
        if !refused.status.success() && said.contains(&holder) {
            assert!(
                said.contains(", whose lease has ")
                    && said.contains(" s left; wait, end that writer, or ask it to hand over (--take-over)"),
                "{said}"
            );
            break;
        }
        assert!(Instant::now() < deadline, "no probe met the first writer: {said}");
        if first.try_wait().unwrap().is_some() {
            first = begin(number);
        }
    }
    // It has the lease; a moment later it has opened the file system and writes.
    std::thread::sleep(Duration::from_millis(200));
    signal(&first, "-STOP");
    let refused = cluster.run(&["fs", "format", "files", "--force"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let holder = format!("process {} on ", first.id());
    assert!(!refused.status.success() && said.contains(&holder), "{said}");

    // The next writer waits until its lease ends, and takes over what was committed.
    let second = cluster.run(&["fs", "import", small, "files:second"]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        second.status.success() && said.contains("to see whether that has died"),
        "{said}"
    );
    cluster.succeed(&["fs", "verify", "files"]);
    signal(&first, "-CONT");
    let ended = first.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success(), "{said}");
    assert!(
        said.contains("the lease has ended or was taken over; open the file system again"),
        "{said}"
    );
    cluster.succeed(&["fs", "compare", "files:second", small]);
    cluster.succeed(&["fs", "verify", "files"]);
    cluster.succeed(&["fs", "import", small, "files:third"]);
    cluster.end();
}

/// Small files in an archive, in the order of their numbers.
fn archive(files: u32) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for number in 0..files {
        let bytes: Vec<u8> = (0..2_000 + number % 3_000)
            .map(|at| (at * 31 + number) as u8)
            .collect();
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(1_000_000_000 + u64::from(number));
        header.set_cksum();
        let name = format!("{number:06}");
        builder.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    builder.into_inner().unwrap()
}

#[test]
fn an_import_goes_on_beside_servers_that_are_killed_and_after_its_own_death() {
    const FILES: u32 = 3000;
    let place = Place::in_memory("import");
    let data = &place.0;
    let whole = archive(FILES);
    let path = data.join("all.tar");
    std::fs::write(&path, &whole).unwrap();
    let cluster = Cluster::start(&data.join("cluster"), free_ports());
    cluster.succeed(&["volume", "create", "files", "--size", "512MiB"]);
    cluster.succeed(&["fs", "format", "files"]);
    let mut import = Command::new(REDHARE)
        .args(["fs", "import", "-", "files:all", "--commit-every", "0"])
        .env("REDHARE_CLUSTER", cluster.address())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut pipe = import.stdin.take().unwrap();
    // What it has not been given it cannot have read: so it is in the middle of the archive while servers die.
    let mut given = 0;
    let mut give_up_to = |part: usize| {
        let end = whole.len() * part / 4;
        pipe.write_all(&whole[given..end]).unwrap();
        given = end;
    };
    let commits = |number: u32| {
        let file = format!("files:all/{number:06}");
        cluster.wait(&["fs", "stat", &file], |said| {
            said.contains(&format!("{number:06}"))
        });
    };
    give_up_to(1);
    commits(10);
    for server in [2, 3] {
        kill(&cluster.engine_lock(server));
        kill(&cluster.target_lock(server));
        give_up_to(server as usize);
        commits(FILES / 4 * (server - 1) + 10);
    }
    assert!(import.try_wait().unwrap().is_none(), "it ended by itself");
    import.kill().unwrap();
    kill(&cluster.engine_lock(1));
    kill(&cluster.target_lock(1));
    import.wait().unwrap();

    // Its lease ends, and the same command goes on where it was.
    let again = [
        "fs",
        "import",
        path.to_str().unwrap(),
        "files:all",
        "--verify",
        "--json",
    ];
    let told = RefCell::new(serde_json::Value::Null);
    cluster.wait(&again, |text| {
        let value = serde_json::from_str(text).unwrap_or_default();
        *told.borrow_mut() = value;
        told.borrow()["verified"] == FILES
    });
    let said = told.into_inner();
    let count = |key: &str| said[key].as_u64().unwrap_or(0);
    assert!(
        count("unchanged") >= u64::from(FILES / 2),
        "what was committed is copied again: {said}"
    );
    assert_eq!(count("copied") + count("unchanged"), u64::from(FILES), "{said}");
    cluster.succeed(&["fs", "verify", "files"]);
    cluster.end();
}
