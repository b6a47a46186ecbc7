//! A mount that writes is asked to hand over, by a command and by another mount.

use std::io::Read;

use super::*;

/// What `redhare volume leases --json` says.
fn leases(cluster: &Cluster) -> serde_json::Value {
    let said = cluster.succeed(&["--json", "volume", "leases", "data"]);
    serde_json::from_str(&said).unwrap()
}

#[test]
fn a_mount_hands_over_what_it_has_and_goes_on_showing_it() {
    if !can_mount("a_mount_hands_over_what_it_has_and_goes_on_showing_it") {
        return;
    }
    let place = Place::in_memory("mount-handover");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    let create = [
        "volume",
        "create",
        "data",
        "--size",
        "128MiB",
        "--chunk-size",
        "32MiB",
    ];
    cluster.succeed(&create);
    format(Some(&cluster), "data");
    let local = place.0.join("local");
    fs::create_dir_all(&local).unwrap();
    fs::write(local.join("imported"), "by a command").unwrap();
    let source = local.to_str().unwrap().to_owned();

    let first = Mount::start(Some(&cluster), "data", &place.0.join("first"), &[]);
    let open = File::create(first.path("open")).unwrap();
    open.write_all_at(b"not synced", 0).unwrap();
    fs::write(first.path("closed"), "neither").unwrap();
    let refused = command(Some(&cluster), &["import", &source, "data"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("--take-over"),
        "{said}"
    );
    assert!(leases(&cluster)["writer"]["wanted_by"].is_null());

    // While it is asked, everybody is told who asks; then the import goes on with all that was there.
    let importing = command(Some(&cluster), &["import", &source, "data", "--take-over"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("it is known who asks", || {
        let writer = &leases(&cluster)["writer"];
        let asks = writer["wanted_by"]
            .as_str()
            .is_some_and(|who| who.contains("fs import"));
        // Quick, if a renewal was due.
        asks || !writer["holder"]
            .as_str()
            .is_some_and(|who| who.contains("fs mount"))
    });
    let imported = importing.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&imported.stderr).into_owned();
    assert!(imported.status.success(), "{said}");
    assert_eq!(succeed(Some(&cluster), &["cat", "data:open"]), "not synced");
    assert_eq!(succeed(Some(&cluster), &["cat", "data:closed"]), "neither");
    assert_eq!(succeed(Some(&cluster), &["cat", "data:imported"]), "by a command");

    // The first shows its last commit, takes no change, and has nothing to lose.
    assert_eq!(fs::read(first.path("closed")).unwrap(), b"neither");
    assert!(!first.path("imported").exists());
    open.sync_all().expect("all of it was committed");
    for error in [
        open.write_all_at(b"more", 10).unwrap_err(),
        fs::write(first.path("new"), "").unwrap_err(),
        fs::remove_file(first.path("closed")).unwrap_err(),
    ] {
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{error}");
    }
    let mut text = String::new();
    let mut still = File::open(first.path("open")).unwrap();
    still.read_to_string(&mut text).unwrap();
    assert_eq!(text, "not synced");

    // From mount to mount.
    let second = Mount::start(Some(&cluster), "data", &place.0.join("second"), &[]);
    fs::write(second.path("of the second"), "kept").unwrap();
    let third = Mount::start(Some(&cluster), "data", &place.0.join("third"), &["--take-over"]);
    assert_eq!(fs::read(third.path("of the second")).unwrap(), b"kept");
    fs::write(third.path("of the third"), "kept").unwrap();
    let error = fs::write(second.path("late"), "").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    // And to a command that only keeps what there is, or limits it.
    fs::create_dir(third.path("limited")).unwrap();
    succeed(
        Some(&cluster),
        &["snapshot", "create", "data", "kept", "--take-over"],
    );
    assert_eq!(
        succeed(Some(&cluster), &["cat", "data@kept:of the third"]),
        "kept"
    );
    let fourth = Mount::start(Some(&cluster), "data", &place.0.join("fourth"), &[]);
    let quota = ["quota", "set", "data", "limited", "--files", "5", "--take-over"];
    succeed(Some(&cluster), &quota);
    let fifth = Mount::start(Some(&cluster), "data", &place.0.join("fifth"), &[]);
    let clear = ["quota", "clear", "data", "limited", "--take-over"];
    succeed(Some(&cluster), &clear);
    let sixth = Mount::start(Some(&cluster), "data", &place.0.join("sixth"), &[]);
    let delete = ["snapshot", "delete", "data", "kept", "--take-over"];
    succeed(Some(&cluster), &delete);
    let gone = command(Some(&cluster), &["cat", "data@kept:of the third"])
        .output()
        .unwrap();
    assert!(!gone.status.success());
    for mount in [fourth, fifth, sixth] {
        mount.end();
    }
    drop(still);
    drop(open);
    first.end();
    second.end();
    third.end();
    succeed(Some(&cluster), &["verify", "data"]);
    assert!(leases(&cluster)["writer"].is_null(), "nobody writes it any more");
}
