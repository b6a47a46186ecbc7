use super::*;

fn disk(path: &str, uuid: u128) -> agentlink::Disk {
    agentlink::Disk {
        uuid,
        path: path.to_owned(),
        capacity_bytes: 1 << 30,
        free_bytes: 1 << 20,
    }
}

fn left_out(path: &str) -> DiskHealth {
    DiskHealth {
        path: path.to_owned(),
        left_out: Some("it stands".to_owned()),
        ..DiskHealth::default()
    }
}

#[test]
fn what_is_out_of_service_stays_so_until_it_is_put_back() {
    let directory = tempfile::tempdir().unwrap();
    let (a, b) = (directory.path().join("a"), directory.path().join("b"));
    let configured = [&a, &b].map(|path| Disk {
        path: path.clone(),
        size: None,
    });
    let (plain_a, plain_b) = (a.display().to_string(), b.display().to_string());
    let mut disks = Disks::load(directory.path(), &configured).unwrap();
    disks
        .new_life(&[disk(&plain_a, 1), disk(&plain_b, 2)], false)
        .unwrap();
    let decision = disks.note(&[left_out(&plain_b), left_out("/never-seen")]);
    assert_eq!(decision.out, [(plain_b.clone(), "it stands".to_owned())]);
    // Once is enough.
    assert!(disks.note(&[left_out(&plain_b)]).out.is_empty());

    let mut disks = Disks::load(directory.path(), &configured).unwrap();
    let states: Vec<_> = disks.reports().iter().map(|report| report.state()).collect();
    assert_eq!(states, [v1::DiskState::Ok, v1::DiskState::OutOfService]);
    let absent = disks.absent(&[disk(&plain_a, 1)]);
    assert_eq!(absent.len(), 1);
    assert_eq!(
        (&absent[0].uuid[..], absent[0].capacity_bytes),
        (&2u128.to_be_bytes()[..], 1 << 30)
    );
    assert!(disks.is_out(&plain_b) && !disks.is_out(&plain_a));

    assert!(!disks.restore(&[1u128.to_be_bytes().to_vec()], &[]));
    // One that is not there is waited for.
    assert!(!disks.restore(&[2u128.to_be_bytes().to_vec()], &[]));
    std::fs::write(&b, "").unwrap();
    // Nor is one put back to which a request is under way still: no life would begin.
    let request = std::fs::File::open(&b).unwrap();
    request.try_lock().unwrap();
    assert!(!disks.restore(&[2u128.to_be_bytes().to_vec()], &[]));
    drop(request);
    assert!(disks.restore(&[2u128.to_be_bytes().to_vec()], &[]));
    let disks = Disks::load(directory.path(), &configured).unwrap();
    assert!(!disks.is_out(&plain_b));
}

#[tokio::test]
async fn what_is_not_there_is_waited_for_and_then_put_out_of_service_unless_it_is_most() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let plain = |name: &str| path(name).display().to_string();
    let named = |names: &[&str]| {
        let disk = |name: &&str| Disk {
            path: path(name),
            size: None,
        };
        names.iter().map(disk).collect::<Vec<Disk>>()
    };
    let had = named(&["a", "b", "late", "other"]);
    let mut disks = Disks::load(directory.path(), &had).unwrap();
    let found = [("a", 1), ("b", 2), ("late", 3), ("other", 4)];
    let found = found.map(|(name, uuid)| disk(&plain(name), uuid));
    disks.new_life(&found, false).unwrap();

    // A machine without most of its disks is no reason to give them up: the target says what is wrong.
    disks.await_missing(&had, Duration::ZERO).await.unwrap();
    std::fs::write(path("a"), "").unwrap();
    disks.await_missing(&had, Duration::ZERO).await.unwrap();
    assert_eq!(disks.in_service(&had).len(), 4);
    std::fs::write(path("other"), "").unwrap();
    let late = path("late");
    let comes = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        std::fs::write(late, "").unwrap();
    });
    // A name that this node never had is left to the target, which refuses it.
    let now = named(&["a", "b", "late", "other", "mistaken"]);
    disks.await_missing(&now, Duration::from_secs(2)).await.unwrap();
    comes.await.unwrap();
    let left: Vec<PathBuf> = disks.in_service(&now).into_iter().map(|disk| disk.path).collect();
    assert_eq!(left, ["a", "late", "other", "mistaken"].map(path));
    let why = disks.reports()[1].why.clone();
    assert!(why.contains("not there"), "{why}");
}

/// A node that has had the disks 1 and 2 at two paths, and where it has what it keeps; nothing is at these paths.
fn with_two_disks() -> (tempfile::TempDir, [Disk; 2], [String; 2], Disks) {
    let directory = tempfile::tempdir().unwrap();
    let configured = ["a", "b"].map(|name| Disk {
        path: directory.path().join(name),
        size: Some(foundation::ByteCount(1 << 30)),
    });
    let plain = [0, 1].map(|at| configured[at].path.display().to_string());
    let mut disks = Disks::load(directory.path(), &configured).unwrap();
    disks
        .new_life(&[disk(&plain[0], 1), disk(&plain[1], 2)], false)
        .unwrap();
    (directory, configured, plain, disks)
}

fn uuids(disks: &[v1::Disk]) -> Vec<u128> {
    let uuid = |disk: &v1::Disk| u128::from_be_bytes(disk.uuid[..].try_into().unwrap());
    disks.iter().map(uuid).collect()
}

#[tokio::test]
async fn a_disk_that_has_the_name_of_one_that_is_gone_is_the_same_as_before() {
    let (directory, configured, [a, b], mut disks) = with_two_disks();
    // The first died, and the other one has its name.
    std::fs::write(&a, "").unwrap();
    disks.await_missing(&configured, Duration::ZERO).await.unwrap();
    assert!(disks.is_out(&b));
    let found = [disk(&a, 2)];
    disks.new_life(&found, false).unwrap();
    assert_eq!(disks.used_though_out(&found), None);
    assert_eq!(uuids(&disks.absent(&found)), [1], "each is named once");
    for mut disks in [disks, Disks::load(directory.path(), &configured).unwrap()] {
        let reports = disks.reports();
        let states: Vec<_> = reports
            .iter()
            .map(|report| (&report.uuid[15], report.state()))
            .collect();
        assert_eq!(
            states,
            [(&1, v1::DiskState::OutOfService), (&2, v1::DiskState::Ok)],
            "the one that is gone is out of service"
        );
        assert!(disks.is_out(&b) && !disks.is_out(&a));
    }
}

#[test]
fn a_disk_stays_out_of_service_at_another_path() {
    let (_directory, configured, [a, b], mut disks) = with_two_disks();
    disks.note(&[left_out(&b)]);
    let found = [disk(&a, 2)];
    disks.new_life(&found, false).unwrap();
    assert!(disks.used_though_out(&found).unwrap().contains(&a));
    // Another life is to do without it, and to use the other one if that is where it was.
    assert!(disks.is_out(&a) && !disks.is_out(&b));
    let used: Vec<_> = disks.in_service(&configured);
    assert_eq!(
        used.iter().map(|disk| &disk.path).collect::<Vec<_>>(),
        [Path::new(&b)]
    );
    let found = [disk(&b, 1)];
    disks.new_life(&found, false).unwrap();
    assert_eq!(disks.used_though_out(&found), None);
    assert_eq!(uuids(&disks.absent(&found)), [2]);
}

#[test]
fn a_disk_that_a_release_before_has_named_twice_is_named_once() {
    let (_directory, _, [a, b], mut disks) = with_two_disks();
    disks.file.disk[0].uuid = disks.file.disk[1].uuid.clone();
    let found = [disk(&a, 2)];
    disks.new_life(&found, false).unwrap();
    assert!(disks.absent(&found).is_empty());
    assert!(disks.entry(&b).is_none());
}

#[test]
fn a_disk_that_the_node_has_had_is_not_made_anew() {
    let (_directory, mut configured, [a, b], disks) = with_two_disks();
    std::fs::write(&a, "").unwrap();
    configured[0].path.set_file_name("new");
    let sizes = |disks: &Disks| {
        let used = disks.in_service(&configured);
        used.iter().map(|disk| disk.size.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&disks), [true, false]);
    configured[0].path.set_file_name("a");
    assert_eq!(disks.missing(&configured), [PathBuf::from(b)]);
}

#[test]
fn what_cannot_be_saved_holds_and_is_saved_later() {
    let (directory, configured, [_, b], mut disks) = with_two_disks();
    // As where there is no room: the new file cannot be made.
    let blocked = directory.path().join("disks.toml.new");
    std::fs::create_dir(&blocked).unwrap();
    assert_eq!(disks.note(&[left_out(&b)]).out.len(), 1);
    assert!(disks.is_out(&b) && disks.is_unsaved && !disks.can_be_saved());
    disks.save_again();
    assert!(disks.is_unsaved);
    let load = || Disks::load(directory.path(), &configured).unwrap();
    assert!(!load().is_out(&b));
    std::fs::remove_dir(blocked).unwrap();
    disks.save_again();
    assert!(!disks.is_unsaved && load().is_out(&b) && disks.can_be_saved());
}

#[test]
fn a_target_is_not_ended_where_nothing_can_be_saved_though_everything_is() {
    let (directory, _, _, mut disks) = with_two_disks();
    let blocked = directory.path().join("disks.toml.new");
    std::fs::create_dir(&blocked).unwrap();
    assert!(!disks.is_unsaved && !disks.can_be_saved());
    std::fs::remove_dir(blocked).unwrap();
    assert!(disks.can_be_saved());
}

#[test]
fn a_disk_is_not_put_back_before_that_is_saved() {
    let (directory, configured, [_, b], mut disks) = with_two_disks();
    disks.note(&[left_out(&b)]);
    std::fs::write(&b, "").unwrap();
    let blocked = directory.path().join("disks.toml.new");
    std::fs::create_dir(&blocked).unwrap();
    let second = [2u128.to_be_bytes().to_vec()];
    assert!(!disks.restore(&second, &[]));
    assert_eq!(disks.reports()[1].state(), v1::DiskState::OutOfService);
    std::fs::remove_dir(blocked).unwrap();
    assert!(disks.restore(&second, &[]));
    assert!(!Disks::load(directory.path(), &configured).unwrap().is_out(&b));
}

#[test]
fn a_disk_that_the_target_itself_holds_is_put_back_by_its_end() {
    let (directory, _, [_, b], mut disks) = with_two_disks();
    disks.note(&[left_out(&b)]);
    std::fs::write(&b, "").unwrap();
    let request = std::fs::File::open(&b).unwrap();
    request.try_lock().unwrap();
    let second = [2u128.to_be_bytes().to_vec()];
    assert!(!disks.restore(&second, &[]), "it is somebody else's");
    let mut target = lock::LifeLock::take(&crate::target_lock(directory.path())).unwrap();
    target.record(std::process::id()).unwrap();
    assert!(disks.restore(&second, &[]));
}

#[tokio::test]
async fn a_wish_is_tried_for_once_a_life_has_begun_with_the_disk() {
    let (_directory, configured, [a, b], mut disks) = with_two_disks();
    disks.note(&[left_out(&b)]);
    std::fs::write(&b, "").unwrap();
    let second = [2u128.to_be_bytes().to_vec()];
    let shown = |disks: &mut Disks| (disks.reports()[1].state(), disks.reports()[1].tried_restore);
    // Somebody holds it, and the node begins another life meanwhile.
    let request = std::fs::File::open(&b).unwrap();
    request.try_lock().unwrap();
    assert!(!disks.restore(&second, &[7]));
    disks.new_life(&[disk(&a, 1)], false).unwrap();
    assert_eq!(shown(&mut disks), (v1::DiskState::OutOfService, Some(0)));
    drop(request);
    // The target that serves has still left it out: that is no answer to the wish, and nothing that the next life has to do with.
    assert!(disks.restore(&second, &[7]));
    disks.note(&[left_out(&b)]);
    assert_eq!(shown(&mut disks), (v1::DiskState::OutOfService, Some(0)));
    assert_eq!(disks.in_service(&configured).len(), 2);
    assert!(!disks.restore(&second, &[7]), "it is put back already");
    // It goes away before that begins.
    std::fs::write(&a, "").unwrap();
    std::fs::remove_file(&b).unwrap();
    disks.await_missing(&configured, Duration::ZERO).await.unwrap();
    disks.new_life(&[disk(&a, 1)], false).unwrap();
    assert_eq!(shown(&mut disks), (v1::DiskState::OutOfService, Some(0)));
    std::fs::write(&b, "").unwrap();
    assert!(disks.restore(&second, &[7]));
    assert_eq!(shown(&mut disks), (v1::DiskState::OutOfService, Some(0)));
    disks.new_life(&[disk(&a, 1)], false).unwrap();
    disks.note(&[left_out(&b)]);
    assert_eq!(shown(&mut disks), (v1::DiskState::OutOfService, Some(7)));
    // Another wish is another attempt.
    assert!(disks.restore(&second, &[8]));
    disks.new_life(&[disk(&a, 1), disk(&b, 2)], false).unwrap();
    assert_eq!(shown(&mut disks), (v1::DiskState::Ok, Some(8)));
}

#[tokio::test]
async fn a_wish_is_not_tried_for_by_a_life_that_has_another_disk_at_the_path() {
    let (_directory, configured, [a, b], mut disks) = with_two_disks();
    disks.note(&[left_out(&b)]);
    std::fs::write(&b, "").unwrap();
    assert!(disks.restore(&[2u128.to_be_bytes().to_vec()], &[7]));
    // The second is gone, and the first has its name.
    disks.await_missing(&configured, Duration::ZERO).await.unwrap();
    assert!(disks.is_out(&a));
    disks.new_life(&[disk(&b, 1)], false).unwrap();
    let shown = disks
        .reports()
        .into_iter()
        .map(|report| (report.uuid[15], report.state(), report.tried_restore));
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            (1, v1::DiskState::Ok, Some(0)),
            (2, v1::DiskState::OutOfService, Some(0))
        ]
    );
}

#[test]
fn a_disk_with_which_the_target_does_not_start_is_out_again_and_the_wish_has_been_tried_for() {
    let (directory, configured, [a, b], mut disks) = with_two_disks();
    assert!(!disks.give_up_putting_back("it ended"), "none is put back");
    disks.note(&[left_out(&b)]);
    std::fs::write(&b, "").unwrap();
    let second = [2u128.to_be_bytes().to_vec()];
    assert!(disks.restore(&second, &[7]));
    // As where there is no room: it holds all the same, and is saved later.
    let blocked = directory.path().join("disks.toml.new");
    std::fs::create_dir(&blocked).unwrap();
    assert!(disks.give_up_putting_back("it ended"));
    assert!(!disks.give_up_putting_back("it ended"), "once is enough");
    assert_eq!(disks.in_service(&configured).len(), 1);
    std::fs::remove_dir(blocked).unwrap();
    disks.save_again();
    disks.new_life(&[disk(&a, 1)], false).unwrap();
    let report = disks.reports().remove(1);
    assert_eq!(
        (report.state(), report.tried_restore, &report.why[..]),
        (
            v1::DiskState::OutOfService,
            Some(7),
            "the target did not start with it (it ended), when it was put back"
        )
    );
    assert!(Disks::load(directory.path(), &configured).unwrap().is_out(&b));
    // The only one that is left is not given up: the target says what is wrong with it.
    disks.note(&[left_out(&a)]);
    assert!(disks.restore(&second, &[8]));
    assert!(!disks.give_up_putting_back("it ended"));
    assert_eq!(disks.in_service(&configured).len(), 1);
}

#[tokio::test]
async fn a_disk_that_is_put_back_and_is_not_there_holds_up_nobody() {
    let (directory, configured, [a, b], _) = with_two_disks();
    let c = directory.path().join("c");
    let mut configured = configured.to_vec();
    configured.push(Disk {
        path: c.clone(),
        size: None,
    });
    let second = [2u128.to_be_bytes().to_vec()];
    let mut disks = Disks::load(directory.path(), &configured).unwrap();
    let found = [disk(&a, 1), disk(&b, 2), disk(&c.display().to_string(), 3)];
    disks.new_life(&found, false).unwrap();
    for path in [&a, &b] {
        std::fs::write(path, "").unwrap();
    }
    std::fs::write(&c, "").unwrap();
    disks.note(&[left_out(&b)]);
    assert!(disks.restore(&second, &[7]));
    std::fs::remove_file(&b).unwrap();
    let waits = disks.await_missing(&configured, Duration::from_secs(3600));
    tokio::time::timeout(Duration::from_secs(5), waits)
        .await
        .expect("nobody waits for it")
        .unwrap();
    assert!(disks.is_out(&b) && !disks.is_out(&a));
    let why = disks.reports().remove(1).why;
    assert!(why.starts_with("it was not there when it was put back"), "{why}");
    // Nor do two of three that are missing make a machine that is not ready, if one of them served nothing.
    std::fs::write(&b, "").unwrap();
    assert!(disks.restore(&second, &[7]));
    for path in [&a, &b] {
        std::fs::remove_file(path).unwrap();
    }
    disks.await_missing(&configured, Duration::ZERO).await.unwrap();
    let left: Vec<PathBuf> = disks
        .in_service(&configured)
        .into_iter()
        .map(|disk| disk.path)
        .collect();
    assert_eq!(left, [c]);
}

#[test]
fn a_disk_that_is_put_back_and_is_in_use_is_left_out_as_before_and_nothing_was_tried() {
    let (directory, configured, [a, b], mut disks) = with_two_disks();
    let second = [2u128.to_be_bytes().to_vec()];
    let path = Path::new(&b);
    assert!(!disks.can_leave(path));
    disks.note(&[left_out(&b)]);
    std::fs::write(&b, "").unwrap();
    assert!(disks.restore(&second, &[7]));
    assert!(disks.can_leave(path) && !disks.can_leave(Path::new(&a)));
    disks.leave(path);
    assert!(!disks.can_leave(path));
    assert!(Disks::load(directory.path(), &configured).unwrap().is_out(&b));
    disks.new_life(&[disk(&a, 1)], false).unwrap();
    let report = disks.reports().remove(1);
    assert_eq!(
        (report.state(), report.tried_restore, &report.why[..]),
        (v1::DiskState::OutOfService, Some(0), "it stands")
    );
    // The last one is not left: the node waits for it, or refuses to start.
    disks.note(&[left_out(&a)]);
    assert!(disks.restore(&second, &[7]));
    assert!(!disks.can_leave(path));
}

#[test]
fn an_engine_that_adopts_a_target_without_the_disk_does_not_say_that_it_is_in_service() {
    let (directory, configured, [a, b], mut disks) = with_two_disks();
    disks.note(&[left_out(&b)]);
    std::fs::write(&b, "").unwrap();
    let second = [2u128.to_be_bytes().to_vec()];
    let shown = |disks: &mut Disks| (disks.reports()[1].state(), disks.reports()[1].tried_restore);
    assert!(disks.restore(&second, &[7]));
    // The engine is killed before it has ended the target, which goes on without the disk.
    let mut disks = Disks::load(directory.path(), &configured).unwrap();
    disks.new_life(&[disk(&a, 1)], true).unwrap();
    assert_eq!(shown(&mut disks), (v1::DiskState::OutOfService, Some(0)));
    // Nor is it one that a next life could begin with before somebody asks.
    assert_eq!(disks.in_service(&configured).len(), 1);
    // The masters repeat the wish, and that ends the target.
    assert!(disks.restore(&second, &[7]));
    disks.new_life(&[disk(&a, 1), disk(&b, 2)], false).unwrap();
    assert_eq!(shown(&mut disks), (v1::DiskState::Ok, Some(7)));
    assert_eq!(disks.in_service(&configured).len(), 2);
    // One that serves all is adopted as it is.
    let mut disks = Disks::load(directory.path(), &configured).unwrap();
    disks.new_life(&[disk(&a, 1), disk(&b, 2)], true).unwrap();
    assert_eq!(shown(&mut disks), (v1::DiskState::Ok, Some(0)));
}

#[test]
fn an_engine_that_ends_while_a_disk_is_put_back_leaves_that_to_the_next() {
    for found_there in [2, 9] {
        let (directory, configured, [a, b], mut disks) = with_two_disks();
        disks.note(&[left_out(&b)]);
        std::fs::write(&b, "").unwrap();
        assert!(disks.restore(&[2u128.to_be_bytes().to_vec()], &[7]));
        // It has started the target with what is there, the same disk or another one, and is killed before it knows.
        let mut disks = Disks::load(directory.path(), &configured).unwrap();
        assert_eq!(disks.in_service(&configured).len(), 2);
        let found = [disk(&a, 1), disk(&b, found_there)];
        disks.new_life(&found, true).unwrap();
        assert!(disks.used_though_out(&found).is_none());
        let mut disks = Disks::load(directory.path(), &configured).unwrap();
        let report = disks.reports().remove(1);
        assert_eq!(report.state(), v1::DiskState::Ok, "{}", report.why);
        assert_eq!(report.uuid, found_there.to_be_bytes());
    }
}

#[test]
fn a_disk_that_is_put_back_and_that_the_node_is_not_told_to_have_any_more_stays_out_of_service() {
    let (directory, configured, [a, b], mut disks) = with_two_disks();
    disks.note(&[left_out(&b)]);
    std::fs::write(&b, "").unwrap();
    assert!(disks.restore(&[2u128.to_be_bytes().to_vec()], &[7]));
    let mut disks = Disks::load(directory.path(), &configured[..1]).unwrap();
    disks.new_life(&[disk(&a, 1)], false).unwrap();
    assert_eq!(disks.reports().len(), 1);
    let found = [disk(&a, 1), disk(&b, 2)];
    let mut disks = Disks::load(directory.path(), &configured).unwrap();
    disks.new_life(&found, false).unwrap();
    assert!(disks.used_though_out(&found).is_some());
}

#[test]
fn another_disk_in_the_place_of_one_is_in_service_when_its_target_is_adopted() {
    let (directory, configured, [a, b], _) = with_two_disks();
    let load = || Disks::load(directory.path(), &configured).unwrap();
    load().new_life(&[disk(&a, 1), disk(&b, 9)], true).unwrap();
    let report = load().reports().remove(1);
    assert_eq!((report.state(), report.why), (v1::DiskState::Ok, String::new()));
    assert_eq!(report.uuid, 9u128.to_be_bytes());
}

#[test]
fn a_disk_that_a_node_was_told_not_to_have_for_one_life_is_in_service_when_it_is_told_to_again() {
    let (directory, configured, [a, b], _) = with_two_disks();
    let load = |configured| Disks::load(directory.path(), configured).unwrap();
    load(&configured[..1]).new_life(&[disk(&a, 1)], false).unwrap();
    load(&configured[..]).new_life(&[disk(&a, 1)], true).unwrap();
    assert!(!load(&configured[..]).is_out(&b));
}

#[test]
fn an_engine_that_adopts_the_target_that_it_was_to_end_has_not_tried() {
    let (directory, configured, [a, b], mut disks) = with_two_disks();
    disks.note(&[left_out(&b)]);
    std::fs::write(&b, "").unwrap();
    assert!(disks.restore(&[2u128.to_be_bytes().to_vec()], &[7]));
    // The connection to the target ends first, and nothing can be saved: it is adopted all the same.
    let blocked = directory.path().join("disks.toml.new");
    std::fs::create_dir(&blocked).unwrap();
    disks.new_life(&[disk(&a, 1)], true).unwrap();
    let why = disks.reports().remove(1).why;
    assert_eq!(why, "it stands");
    // Another life begins without the disk: the masters have not asked yet.
    std::fs::remove_dir(&blocked).unwrap();
    disks.save_again();
    assert!(Disks::load(directory.path(), &configured).unwrap().is_out(&b));
    disks.new_life(&[disk(&a, 1)], false).unwrap();
    let report = disks.reports().remove(1);
    assert_eq!(
        (report.state(), report.tried_restore),
        (v1::DiskState::OutOfService, Some(0))
    );
}

#[test]
fn a_disk_that_is_out_of_service_is_known_by_another_name_after_its_own_was_taken_away() {
    let (directory, configured, [_, b], mut disks) = with_two_disks();
    disks.note(&[left_out(&b)]);
    let renamed = directory.path().join("c");
    let configured = [
        configured[0].clone(),
        Disk {
            path: renamed.clone(),
            size: None,
        },
    ];
    let mut disks = Disks::load(directory.path(), &configured).unwrap();
    let c = renamed.display().to_string();
    // The masters hear nothing of what the node is not told to have.
    assert!(disks.absent(&[]).iter().all(|disk| disk.uuid[15] == 1));
    assert_eq!(disks.reports().len(), 1);
    let found = [disk(&configured[0].path.display().to_string(), 1), disk(&c, 2)];
    disks.new_life(&found, false).unwrap();
    assert!(disks.used_though_out(&found).unwrap().contains(&c));
    assert_eq!(disks.in_service(&configured).len(), 1);
    assert_eq!(disks.reports().len(), 2);
}

#[tokio::test]
async fn that_a_disk_was_missing_is_known_to_the_next_engine_until_a_life_begins() {
    let (directory, configured, [a, b], mut disks) = with_two_disks();
    // The first died, and the other one has its name; the engine is killed before it knows.
    std::fs::write(&a, "").unwrap();
    disks.await_missing(&configured, Duration::ZERO).await.unwrap();
    let mut disks = Disks::load(directory.path(), &configured).unwrap();
    let found = [disk(&a, 2)];
    disks.new_life(&found, false).unwrap();
    assert!(!disks.is_out(&a) && disks.is_out(&b));
    // From here on what is out of service stays so, whatever name it comes back by.
    let mut disks = Disks::load(directory.path(), &configured).unwrap();
    let found = [disk(&a, 1)];
    disks.new_life(&found, false).unwrap();
    assert!(disks.used_though_out(&found).is_some());
}

#[test]
fn a_disk_whose_store_has_stopped_and_that_is_gone_costs_no_life() {
    let (_directory, _, [a, b], mut disks) = with_two_disks();
    let health = |path: &str, needs_process| DiskHealth {
        path: path.to_owned(),
        needs_process,
        ..DiskHealth::default()
    };
    for path in [&a, &b] {
        std::fs::write(path, "").unwrap();
    }
    let decision = disks.note(&[health(&a, false), health(&b, true)]);
    assert_eq!(decision.restart.map(|(path, _)| path), Some(b.clone()));
    std::fs::remove_file(&b).unwrap();
    let decision = disks.note(&[health(&a, false), health(&b, true)]);
    assert_eq!((decision.restart, decision.out.len()), (None, 1));
    assert!(decision.out[0].1.contains("No such file"), "{:?}", decision.out);
    // The only one that is left is not given up; nor does its target go while none could begin after it.
    let only = [health(&a, true)];
    let decision = disks.note(&only);
    assert!(decision.restart.is_some() && decision.out.is_empty());
    std::fs::remove_file(&a).unwrap();
    let decision = disks.note(&only);
    assert!(decision.restart.is_none() && decision.out.is_empty());
}

#[test]
fn a_file_that_is_none_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("disks.toml"), "disk = 3").unwrap();
    let error = Disks::load(directory.path(), &[]).unwrap_err().to_string();
    assert!(
        error.contains("disks.toml") && error.contains("put back in service"),
        "{error}"
    );
}
