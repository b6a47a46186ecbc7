//! Proved here: what cannot be done is refused with the reason and the remedy.

use std::path::Path;
use std::rc::Rc;

use super::support::{DISK, Gate, GatedLeases, leases, medium, on_host, small, world, writer_options};
use crate::files::{FileError, errno};
use crate::format::superblock::Superblock;
use crate::lease::memory::{LocalLeases, WRITER_TERM};
use crate::{
    Attributes, FormatOptions, Identity, InodeNumber, OpenError, Reader, ReaderOptions, VerifyOptions,
    WriteError, Writer, format, verify,
};

#[test]
fn foreign_volumes_are_told_apart_and_not_overwritten() {
    let (simulation, host) = world(1);
    let disk = simulation.disk(host, Path::new(DISK));
    let text = |result: Result<(), OpenError>| result.unwrap_err().to_string();
    let try_format = |force| {
        let made = on_host(&simulation, host, move || async move {
            format(
                medium(),
                leases(),
                "a formatter",
                &FormatOptions { force, ..small() },
            )
            .await
        });
        made.unwrap()
    };
    let try_open = |identity| {
        let opened = on_host(&simulation, host, move || async move {
            let options = ReaderOptions {
                identity,
                ..ReaderOptions::default()
            };
            let opened = Reader::open(medium(), Rc::new(LocalLeases::new()), &options).await;
            opened.map(|_| ())
        });
        opened.unwrap()
    };
    on_host(&simulation, host, || async {
        medium();
    })
    .unwrap();
    assert!(text(try_open(None)).contains("holds no PackFS; format it first"));
    disk.damage(1080, &[0x53, 0xef]);
    assert!(text(try_format(false)).contains("is not empty: its first 128 KiB hold something"));
    try_format(true).unwrap();
    assert!(text(try_format(false)).contains("is not empty: it holds a PackFS; give --force"));
    try_open(None).unwrap();
    let elsewhere = Identity {
        cluster: [1; 16],
        volume: [0; 16],
    };
    let foreign = text(try_open(Some(elsewhere)));
    assert!(
        foreign.contains("belongs to cluster 00000000000000000000000000000000, and 0101"),
        "{foreign}"
    );
    disk.damage(64 * 1024 + 8, &[9]);
    assert!(text(try_open(None)).contains("format version 9, and this program knows up to 2; update"));
    disk.damage(64 * 1024 + 8, &[1, 1]);
    assert!(Superblock::decode(&disk.read(64 * 1024, 4096), 64 * 1024).is_err());
}

#[test]
fn a_second_writer_learns_who_writes_and_how_long() {
    let (simulation, host) = world(2);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
        let leases = Rc::new(LocalLeases::new());
        let masters = Gate::new();
        let gated = Rc::new(GatedLeases::new(leases.clone(), masters.clone()));
        let mut first = Writer::open(medium(), gated, &writer_options()).await.unwrap();
        let second = Writer::open(medium(), leases.clone(), &writer_options()).await;
        let text = second.err().unwrap().to_string();
        assert!(
            text.contains("being written by the test's writer, whose lease has 30 s left"),
            "{text}"
        );
        masters.close();
        reactor::time::sleep(WRITER_TERM).await;
        masters.open();
        let mut third = Writer::open(medium(), leases, &writer_options()).await.unwrap();
        let attributes = Attributes::default();
        first
            .mkdir(InodeNumber::ROOT, b"late", &attributes)
            .await
            .unwrap();
        assert!(matches!(first.commit().await, Err(WriteError::Lease(_))));
        assert!(matches!(first.commit().await, Err(WriteError::Broken)));
        third
            .mkdir(InodeNumber::ROOT, b"in time", &attributes)
            .await
            .unwrap();
        third.commit().await.unwrap();
    })
    .unwrap();
}

#[test]
fn bad_requests_change_nothing() {
    let (simulation, host) = world(3);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut writer = Writer::open(medium(), leases.clone(), &writer_options())
            .await
            .unwrap();
        let root = InodeNumber::ROOT;
        let a = Attributes::default();
        let file = writer.create_file(root, b"file", &a, b"x").await.unwrap();
        let directory = writer.mkdir(root, b"directory", &a).await.unwrap();
        writer.create_file(directory, b"in", &a, b"").await.unwrap();
        writer.commit().await.unwrap();
        let failures = [
            writer.create_file(root, b"a/b", &a, b"").await.map(|_| ()),
            writer.create_file(root, b"file", &a, b"").await.map(|_| ()),
            writer.create_file(file, b"x", &a, b"").await.map(|_| ()),
            writer
                .create_file(InodeNumber(999), b"x", &a, b"")
                .await
                .map(|_| ()),
            writer.mkdir(root, b"..", &a).await.map(|_| ()),
            writer.symlink(root, b"s", &a, b"").await.map(|_| ()),
            writer.link(root, b"l", directory).await,
            writer.link(root, b"l", InodeNumber(999)).await,
            writer.remove(root, b"directory").await,
            writer.remove(root, b"nothing").await,
            writer
                .set_attributes(file, &Attributes { mode: 0o100_644, ..a })
                .await,
        ];
        for failure in failures {
            let error = failure.unwrap_err();
            assert!(!error.to_string().is_empty());
        }
        assert_eq!(writer.commit().await.unwrap(), 2, "nothing was changed");
        assert!(
            verify(&medium(), leases, &VerifyOptions::default())
                .await
                .unwrap()
                .is_clean()
        );
    })
    .unwrap();
}

/// Where the disks of a cluster that promises more than it has are full; the volume itself has room.
#[test]
fn a_volume_whose_disks_are_full_says_so_and_keeps_what_was_committed() {
    let (simulation, host) = world(5);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap()
    })
    .unwrap();
    let create = |name: &'static [u8], limit_bytes: Option<u64>| {
        let disk = simulation.disk(host, Path::new(DISK));
        let whole = disk.length_bytes();
        let created = on_host(&simulation, host, move || async move {
            let opened = Writer::open(medium(), Rc::new(LocalLeases::new()), &writer_options()).await;
            let mut writer = opened.unwrap();
            disk.set_limit_bytes(limit_bytes.unwrap_or(whole));
            let a = Attributes::default();
            let made = writer.create_file(InodeNumber::ROOT, name, &a, &[1; 9000]).await;
            made.unwrap();
            let first = writer.commit().await.map(drop);
            let again = writer
                .create_file(InodeNumber::ROOT, b"more", &a, &[1; 9000])
                .await;
            disk.set_limit_bytes(whole);
            [first, again.map(drop)]
        });
        created.unwrap()
    };
    assert!(create(b"kept", None).iter().all(Result::is_ok));
    let numbers = create(b"lost", Some(0)).map(|result| FileError::from(result.unwrap_err()).errno());
    assert_eq!(numbers, [errno::ENOSPC; 2]);
    on_host(&simulation, host, || async {
        let report = verify(&medium(), leases(), &VerifyOptions::default())
            .await
            .unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
        assert_eq!(report.totals.files, 1);
    })
    .unwrap();
}

#[test]
fn a_flush_that_fails_commits_nothing() {
    let (simulation, host) = world(4);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap()
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    disk.fail_syncs(true);
    on_host(&simulation, host, || async {
        let opened = Writer::open(medium(), Rc::new(LocalLeases::new()), &writer_options()).await;
        let mut writer = opened.unwrap();
        let a = Attributes::default();
        let bytes = [1; 9000];
        writer
            .create_file(InodeNumber::ROOT, b"lost", &a, &bytes)
            .await
            .unwrap();
        assert!(matches!(writer.commit().await, Err(WriteError::Io { .. })));
        let again = writer.create_file(InodeNumber::ROOT, b"more", &a, &bytes).await;
        assert!(matches!(again, Err(WriteError::Broken)));
        assert!(matches!(writer.commit().await, Err(WriteError::Broken)));
    })
    .unwrap();
    disk.fail_syncs(false);
    on_host(&simulation, host, || async {
        let report = verify(&medium(), leases(), &VerifyOptions::default())
            .await
            .unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
        assert_eq!((report.generation, report.totals.files), (1, 0));
    })
    .unwrap();
}
