//! Proved here: what POSIX refuses is refused with its number and changes nothing; limits are what they are said to
//! be; a full volume refuses content, keeps what was committed, and goes on when something is removed; a damaged
//! extent costs its file only.

use std::path::Path;
use std::rc::Rc;

use foundation::Random;

use super::files_test::options;
use super::support::{DISK, NEW, NOW, ROOT, leases, medium, on_host, sized_medium, small, world};
use crate::extended::VALUE_BYTES_MAX;
use crate::files::{
    Allocate, FILE_BYTES_MAX, FileError, FileOptions, FileSystem, NodeKind, RenameMode, SetAttributes,
    SetExtended, errno,
};
use crate::lease::memory::LocalLeases;
use crate::{InodeNumber, Reader, ReaderOptions, Seek, VerifyOptions, format, verify};

fn size(size: u64) -> SetAttributes {
    SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    }
}

fn number<T>(result: Result<T, FileError>) -> i32 {
    result.err().map_or(0, |error| error.errno())
}

#[test]
fn refusals_have_their_numbers_and_change_nothing() {
    let (simulation, host) = world(1);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut files = FileSystem::open(medium(), leases.clone(), &options())
            .await
            .unwrap();
        let file = files.create(ROOT, b"file", NEW, NOW).await.unwrap().number;
        let link = files
            .symlink(ROOT, b"link", b"to", NEW, NOW)
            .await
            .unwrap()
            .number;
        let directory = files.mkdir(ROOT, b"d", NEW, NOW).await.unwrap().number;
        let below = files.mkdir(directory, b"e", NEW, NOW).await.unwrap().number;
        let pipe = files
            .mknod(ROOT, b"p", NodeKind::Pipe, NEW, NOW)
            .await
            .unwrap()
            .number;
        let generation = files.commit().await.unwrap();
        let long = [b'x'; 256];
        let target = [b'x'; 4096];
        let nowhere = InodeNumber(999);
        let big = vec![0; VALUE_BYTES_MAX + 1];
        let f = &mut files;
        let (replace, exchange) = (RenameMode::Replace, RenameMode::Exchange);
        let always = SetExtended::Always;
        let refused = [
            (number(f.create(ROOT, &long, NEW, NOW).await), errno::ENAMETOOLONG),
            (number(f.create(ROOT, b"a/b", NEW, NOW).await), errno::EINVAL),
            (number(f.create(ROOT, b"", NEW, NOW).await), errno::ENOENT),
            (number(f.create(ROOT, b"..", NEW, NOW).await), errno::EINVAL),
            (number(f.create(file, b"x", NEW, NOW).await), errno::ENOTDIR),
            (number(f.create(nowhere, b"x", NEW, NOW).await), errno::ENOENT),
            (number(f.mkdir(ROOT, b"d", NEW, NOW).await), errno::EEXIST),
            (
                number(f.mknod(ROOT, b"d", NodeKind::Pipe, NEW, NOW).await),
                errno::EEXIST,
            ),
            (number(f.read(pipe, 0, 1).await), errno::EINVAL),
            (number(f.write(pipe, 0, b"x", NOW).await), errno::EINVAL),
            (number(f.read_link(pipe).await), errno::EINVAL),
            (number(f.lookup(pipe, b"x").await), errno::ENOTDIR),
            (number(f.seek(file, 0, Seek::Hole).await), errno::ENXIO),
            (number(f.seek(directory, 0, Seek::Data).await), errno::EISDIR),
            (
                number(f.allocate(file, 0..1 << 60, Allocate::Room, true, NOW).await),
                errno::EFBIG,
            ),
            (
                number(f.allocate(pipe, 0..1, Allocate::Hole, true, NOW).await),
                errno::EINVAL,
            ),
            (
                number(f.copy_range((file, 0), (file, 5), 6, NOW).await),
                errno::EINVAL,
            ),
            (
                number(f.symlink(ROOT, b"s", &target, NEW, NOW).await),
                errno::ENAMETOOLONG,
            ),
            (number(f.link(directory, ROOT, b"x", NOW).await), errno::EPERM),
            (number(f.link(nowhere, ROOT, b"x", NOW).await), errno::ENOENT),
            (number(f.unlink(ROOT, b"d", NOW).await), errno::EISDIR),
            (number(f.unlink(ROOT, b"none", NOW).await), errno::ENOENT),
            (number(f.unlink(file, b"none", NOW).await), errno::ENOTDIR),
            (number(f.rmdir(ROOT, b"file", NOW).await), errno::ENOTDIR),
            (number(f.rmdir(ROOT, b"d", NOW).await), errno::ENOTEMPTY),
            (number(f.lookup(file, b"x").await), errno::ENOTDIR),
            (
                number(f.rename((ROOT, b"d"), (below, b"x"), replace, NOW).await),
                errno::EINVAL,
            ),
            (
                number(f.rename((ROOT, b"d"), (directory, b"x"), replace, NOW).await),
                errno::EINVAL,
            ),
            (
                number(f.rename((ROOT, b"d"), (directory, b"e"), exchange, NOW).await),
                errno::EINVAL,
            ),
            (
                number(f.rename((ROOT, b"file"), (ROOT, b"d"), replace, NOW).await),
                errno::EISDIR,
            ),
            (
                number(f.rename((directory, b"e"), (ROOT, b"file"), replace, NOW).await),
                errno::ENOTDIR,
            ),
            (
                number(f.rename((ROOT, b"file"), (ROOT, &long), replace, NOW).await),
                errno::ENAMETOOLONG,
            ),
            (
                number(f.rename((ROOT, b"file"), (file, b"x"), replace, NOW).await),
                errno::ENOTDIR,
            ),
            (
                number(f.rename((ROOT, b"file"), (ROOT, b"x"), exchange, NOW).await),
                errno::ENOENT,
            ),
            (number(f.read(directory, 0, 1).await), errno::EISDIR),
            (number(f.read(link, 0, 1).await), errno::EINVAL),
            (number(f.read_link(file).await), errno::EINVAL),
            (
                number(f.write(file, FILE_BYTES_MAX, b"x", NOW).await),
                errno::EFBIG,
            ),
            (number(f.write(file, u64::MAX, b"x", NOW).await), errno::EFBIG),
            (
                number(f.set_attributes(file, &size(FILE_BYTES_MAX + 1), NOW).await),
                errno::EFBIG,
            ),
            (
                number(f.set_attributes(directory, &size(0), NOW).await),
                errno::EISDIR,
            ),
            (
                number(f.set_extended(file, b"", b"", always, NOW).await),
                errno::ERANGE,
            ),
            (
                number(f.set_extended(file, &long, b"", always, NOW).await),
                errno::ERANGE,
            ),
            (
                number(f.set_extended(file, b"user.x", &big, always, NOW).await),
                errno::ENOSPC,
            ),
            (
                number(f.set_extended(nowhere, b"user.x", b"", always, NOW).await),
                errno::ENOENT,
            ),
            (
                number(f.remove_extended(file, b"user.x", NOW).await),
                errno::ENODATA,
            ),
            (number(f.open_inode(nowhere).await), errno::ENOENT),
            (
                number(f.read_directory(ROOT, Some(999), None, 5).await),
                errno::EINVAL,
            ),
        ];
        for (index, (found, expected)) in refused.iter().enumerate() {
            assert_eq!(found, expected, "case {index}");
        }
        assert_eq!(
            files.commit().await.unwrap(),
            generation,
            "a refusal changed something"
        );
        let text = files
            .rename((ROOT, b"d"), (below, b"x"), replace, NOW)
            .await
            .unwrap_err()
            .to_string();
        assert_eq!(
            text,
            "directory 4 cannot be moved into directory 5, which stands below it"
        );
    })
    .unwrap();
}

#[test]
fn limits_are_reached_and_the_largest_lengths_stand() {
    let (simulation, host) = world(2);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut files = FileSystem::open(medium(), leases.clone(), &options())
            .await
            .unwrap();
        let file = files.create(ROOT, b"sparse", NEW, NOW).await.unwrap().number;
        files
            .set_attributes(file, &size(FILE_BYTES_MAX), NOW)
            .await
            .unwrap();
        files
            .write(file, FILE_BYTES_MAX - 5, b"final", NOW)
            .await
            .unwrap();
        files.write(file, 1 << 40, b"middle", NOW).await.unwrap();
        let mut value = vec![0; VALUE_BYTES_MAX];
        Random::from_seed(1).fill(&mut value);
        files
            .set_extended(file, b"user.large", &value, SetExtended::Always, NOW)
            .await
            .unwrap();
        files.commit().await.unwrap();
        assert!(files.extended(file, b"user.large").await.unwrap() == value);
        let free = files.statistics().free.0;
        assert!(free > (6 << 20), "holes take room: {free} bytes are left");
        let found = files.read(file, (1 << 40) - 3, 12).await.unwrap();
        assert_eq!(found, b"\0\0\0middle\0\0\0");
        let reader = Reader::open(medium(), leases.clone(), &ReaderOptions::default())
            .await
            .unwrap();
        let opened = reader.open_file(b"sparse").await.unwrap();
        assert_eq!(opened.inode.size, FILE_BYTES_MAX);
        let tail = reader
            .read(&opened, FILE_BYTES_MAX - 9, 100)
            .await
            .unwrap()
            .to_vec();
        assert_eq!(tail, b"\0\0\0\0final");
        let middle = reader.read(&opened, (1 << 40) - 2, 10).await.unwrap().to_vec();
        assert_eq!(middle, b"\0\0middle\0\0");
        assert!(reader.read(&opened, 0, 100).await.unwrap().to_vec() == [0; 100]);
        assert!(
            reader.read(&opened, 0, FILE_BYTES_MAX).await.is_err(),
            "more than a batch may hold"
        );
        let report = verify(&medium(), leases, &VerifyOptions::default())
            .await
            .unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
    })
    .unwrap();
}

#[test]
fn a_full_volume_refuses_content_and_goes_on_after_a_removal() {
    let (simulation, host) = world(3);
    on_host(&simulation, host, || async {
        let medium = sized_medium(4 << 20);
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut files = FileSystem::open(medium.clone(), leases.clone(), &options())
            .await
            .unwrap();
        let kept = files.create(ROOT, b"kept", NEW, NOW).await.unwrap().number;
        files.write(kept, 0, &[7; 300_000], NOW).await.unwrap();
        files.commit().await.unwrap();
        for round in 0..3u8 {
            let large = files.create(ROOT, b"large", NEW, NOW).await.unwrap().number;
            let mut offset = 0;
            let error = loop {
                match files.write(large, offset, &[round + 1; 50_000], NOW).await {
                    Ok(()) => offset += 50_000,
                    Err(error) => break error,
                }
                assert!(offset < 8 << 20, "the volume is never full");
            };
            assert_eq!(error.errno(), errno::ENOSPC, "{error}");
            assert!(offset > 1 << 20, "full after {offset} bytes in round {round}");
            // What was taken can be kept, and stands beside what was there.
            files.sync(large).await.unwrap();
            assert!(files.read(kept, 0, 400_000).await.unwrap() == [7; 300_000]);
            let written = files.read(large, offset - 50_000, 50_000).await.unwrap();
            assert!(written == vec![round + 1; 50_000]);
            let report = verify(&medium, leases.clone(), &VerifyOptions::default())
                .await
                .unwrap();
            assert!(report.is_clean(), "round {round}: {:#?}", report.problems);
            files.unlink(ROOT, b"large", NOW).await.unwrap();
            files.commit().await.unwrap();
        }
    })
    .unwrap();
}

#[test]
fn who_commits_when_asked_only_publishes_all_or_nothing() {
    let (simulation, host) = world(3);
    on_host(&simulation, host, || async {
        let medium = sized_medium(4 << 20);
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let leases = Rc::new(LocalLeases::new());
        let asked_only = FileOptions {
            commits_unasked: false,
            index_bytes_max: 256 << 10,
            ..options()
        };
        let opened = FileSystem::open(medium.clone(), leases.clone(), &asked_only).await;
        let mut files = opened.unwrap();
        let kept = files.create(ROOT, b"kept", NEW, NOW).await.unwrap().number;
        files.write(kept, 0, &[7; 300_000], NOW).await.unwrap();
        let generation = files.commit().await.unwrap();
        // A file in the place of the old one, until there is no room: readers go on seeing the old one.
        let emptied = size(0);
        files.set_attributes(kept, &emptied, NOW).await.unwrap();
        let mut offset = 0;
        let error = loop {
            match files.write(kept, offset, &[8; 50_000], NOW).await {
                Ok(()) => offset += 50_000,
                Err(error) => break error,
            }
            assert!(offset < 8 << 20, "the volume is never full");
        };
        assert_eq!(error.errno(), errno::ENOSPC, "{error}");
        assert_eq!(files.generation(), generation);
        let seen = Reader::open(medium.clone(), leases.clone(), &ReaderOptions::default())
            .await
            .unwrap();
        let file = seen.open_file(b"kept").await.unwrap();
        assert!(seen.read(&file, 0, 400_000).await.unwrap().to_vec() == [7; 300_000]);
        seen.close().await.unwrap();
        // What was written since the last commit is free at once when it goes.
        for _ in 0..3 {
            files.set_attributes(kept, &emptied, NOW).await.unwrap();
            let mut again = 0;
            while again + 700_000 < offset {
                files.write(kept, again, &[8; 50_000], NOW).await.unwrap();
                again += 50_000;
            }
        }
        assert_eq!(files.generation(), generation);
        // What was there before makes room with the commit.
        files.set_attributes(kept, &emptied, NOW).await.unwrap();
        files.commit().await.unwrap();
        let again = offset;
        offset = 0;
        while offset + 100_000 < again {
            let written = files.write(kept, offset, &[9; 50_000], NOW).await;
            written.unwrap_or_else(|error| panic!("{offset} of {again}: {error}"));
            offset += 50_000;
        }
        files.commit().await.unwrap();
        files.set_attributes(kept, &emptied, NOW).await.unwrap();
        files.commit().await.unwrap();
        let generation = files.generation();
        // Neither does memory that runs short.
        let mut made = 0;
        let error = loop {
            let name = format!("a name that takes some bytes of the index, number {made}");
            match files.create(ROOT, name.as_bytes(), NEW, NOW).await {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
            assert!(made < 20_000, "memory has no bound");
        };
        assert_eq!(error.errno(), errno::ENOMEM, "{error}");
        assert!(made > 100, "{made}: {error}");
        assert_eq!(files.generation(), generation);
        assert_eq!(files.commit().await.unwrap(), generation + 1);
        files.create(ROOT, b"after", NEW, NOW).await.unwrap();
        files.commit().await.unwrap();
        let report = verify(&medium, leases, &VerifyOptions::default()).await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
    })
    .unwrap();
}

#[test]
fn a_damaged_extent_costs_its_file_only() {
    let (simulation, host) = world(4);
    let disk = simulation.disk(host, Path::new(DISK));
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
        let mut files = FileSystem::open(medium(), leases(), &options()).await.unwrap();
        for name in [&b"damaged"[..], b"whole"] {
            let file = files.create(ROOT, name, NEW, NOW).await.unwrap().number;
            files.write(file, 0, &[9; 12_000], NOW).await.unwrap();
        }
        files.commit().await.unwrap();
    })
    .unwrap();
    assert_eq!(disk.read(128 * 1024 + 100, 1), [9]);
    disk.damage(128 * 1024 + 100, &[1]);
    on_host(&simulation, host, || async {
        let mut files = FileSystem::open(medium(), leases(), &options()).await.unwrap();
        let damaged = files.lookup(ROOT, b"damaged").await.unwrap().number;
        let whole = files.lookup(ROOT, b"whole").await.unwrap().number;
        let error = files.read(damaged, 0, 10).await.unwrap_err();
        assert_eq!(error.errno(), errno::EIO);
        assert!(error.to_string().contains("damaged in every copy"), "{error}");
        // A change of a part needs the rest, which is lost: the file stays as it was, the other one is written.
        files.write(damaged, 5, b"new", NOW).await.unwrap();
        files.write(whole, 5, b"new", NOW).await.unwrap();
        assert_eq!(number(files.commit().await), errno::EIO);
        assert_eq!(files.read(whole, 4, 5).await.unwrap(), b"\x09new\x09");
        // Written as a whole it is good again.
        files.set_attributes(damaged, &size(0), NOW).await.unwrap();
        files.write(damaged, 0, b"replaced", NOW).await.unwrap();
        files.commit().await.unwrap();
        assert_eq!(files.read(damaged, 0, 100).await.unwrap(), b"replaced");
        let report = verify(&medium(), leases(), &VerifyOptions::default())
            .await
            .unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
    })
    .unwrap();
}

#[test]
fn a_listing_goes_on_while_its_entries_are_removed() {
    let (simulation, host) = world(5);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
        let mut files = FileSystem::open(medium(), leases(), &options()).await.unwrap();
        let directory = files.mkdir(ROOT, b"d", NEW, NOW).await.unwrap().number;
        for index in 0..500 {
            let name = format!("{index:04}");
            files.create(directory, name.as_bytes(), NEW, NOW).await.unwrap();
        }
        let (mut after, mut seen) = (None, 0);
        loop {
            let batch = files.read_directory(directory, after, None, 7).await.unwrap();
            let Some(last) = batch.last() else { break };
            after = Some(last.cookie);
            for entry in &batch {
                assert_eq!(entry.name, format!("{seen:04}").into_bytes());
                files.unlink(directory, &entry.name, NOW).await.unwrap();
                seen += 1;
            }
        }
        assert_eq!(seen, 500);
        files.rmdir(ROOT, b"d", NOW).await.unwrap();
    })
    .unwrap();
}
