//! Proved here: an import keeps names, attributes, extended attributes, links, holes, bytes, pipes, sockets and devices; a second one changes only what
//! differs, whatever stood there; a check tells each kind of difference and changes nothing; what fails leaves the next
//! entry right; what is replaced on a full volume makes room for what replaces it.

use std::collections::VecDeque;

use super::model::read_back;
use super::support::{medium, on_host, world};
use super::walks::{empty, reader};
use crate::{
    Attributes, DeviceNumber, Done, Existing, ImportContent, ImportEntry, ImportError, ImportOptions,
    ImportPiece, ImportPieces, ImportProgress, Importer, InodeNumber, Kind, Standing, Timestamp,
    VerifyOptions, WriteError, Writer, verify,
};

/// The parts of a large file.
#[derive(Default)]
struct Parts(VecDeque<Result<ImportPiece, &'static str>>);

impl ImportPieces for Parts {
    type Error = &'static str;

    async fn more(&mut self) -> Result<Option<ImportPiece>, Self::Error> {
        self.0.pop_front().transpose()
    }
}

fn parts(pieces: &[ImportPiece]) -> Parts {
    Parts(pieces.iter().cloned().map(Ok).collect())
}

fn bytes(byte: u8, length: usize) -> ImportPiece {
    ImportPiece::Bytes(vec![byte; length])
}

fn attributes(seconds: i64) -> Attributes {
    let mtime = Timestamp {
        seconds,
        nanoseconds: 5,
    };
    Attributes {
        mode: 0o640,
        uid: 7,
        gid: 8,
        mtime,
        atime: mtime,
        ctime: mtime,
    }
}

fn entry(path: &str, seconds: i64, content: ImportContent) -> ImportEntry {
    ImportEntry {
        path: path.as_bytes().to_vec(),
        attributes: attributes(seconds),
        extended: None,
        content,
    }
}

fn file(path: &str, seconds: i64, byte: u8, length: usize) -> ImportEntry {
    entry(path, seconds, ImportContent::File(vec![byte; length]))
}

fn options(existing: Existing) -> ImportOptions {
    ImportOptions {
        existing,
        remove_directories: false,
    }
}

/// Imports entries that all go in, and commits.
async fn import(
    writer: &mut Writer,
    existing: Existing,
    entries: &[(ImportEntry, &[ImportPiece])],
) -> Vec<Done> {
    let mut importer = Importer::new(writer, InodeNumber::ROOT, options(existing));
    let mut done = Vec::new();
    for (entry, pieces) in entries {
        let mut pieces = parts(pieces);
        done.push(importer.entry(entry, &mut pieces).await.unwrap());
        assert!(
            pieces.0.is_empty(),
            "the parts of a file are taken, whatever becomes of it"
        );
    }
    importer.commit().await.unwrap();
    done
}

async fn is_clean(leases: std::rc::Rc<crate::lease::memory::LocalLeases>) -> bool {
    let report = verify(&medium(), leases, &VerifyOptions::default())
        .await
        .unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    report.is_clean()
}

fn tree(second: i64, byte: u8) -> Vec<(ImportEntry, Vec<ImportPiece>)> {
    let large = vec![
        bytes(1, 100_000),
        ImportPiece::Hole(1 << 30),
        bytes(byte, 100_001),
    ];
    let mut tiny = file("not announced/b", second, byte, 4);
    tiny.extended = Some(vec![
        (b"user.a".to_vec(), vec![byte; 700]),
        (b"user.b".to_vec(), vec![]),
    ]);
    let size_bytes = (1 << 30) + 200_001;
    let mut entries = vec![
        (entry("", 1, ImportContent::Directory), vec![]),
        (entry("a", 2, ImportContent::Directory), vec![]),
        (file("a/file", second, byte, 5000), vec![]),
        (
            entry("a/link", 0, ImportContent::HardLink(b"a/file".to_vec())),
            vec![],
        ),
        (tiny, vec![]),
        (entry("s", 5, ImportContent::Symlink(b"a/file".to_vec())), vec![]),
    ];
    let content = ImportContent::LargeFile { size_bytes };
    entries.push((entry("a/large", second, content), large));
    entries
}

fn lent(tree: &[(ImportEntry, Vec<ImportPiece>)]) -> Vec<(ImportEntry, &[ImportPiece])> {
    let lend = |(entry, pieces): &(ImportEntry, Vec<ImportPiece>)| (entry.clone(), pieces.clone());
    tree.iter()
        .map(lend)
        .map(|(entry, pieces)| (entry, &*pieces.leak()))
        .collect()
}

#[test]
fn an_import_keeps_everything_and_a_second_changes_what_differs() {
    let (simulation, host) = world(1);
    on_host(&simulation, host, || async {
        let (leases, mut writer) = empty().await;
        let first = import(&mut writer, Existing::SizeAndTime, &lent(&tree(3, 9))).await;
        assert_eq!(first[0], Done::AttributesSet);
        assert!(first[1..].iter().all(|done| *done == Done::Made), "{first:?}");
        for existing in [Existing::SizeAndTime, Existing::Content, Existing::Check] {
            let again = import(&mut writer, existing, &lent(&tree(3, 9))).await;
            assert!(
                again.iter().all(|done| *done == Done::Unchanged),
                "{existing:?}: {again:?}"
            );
        }
        assert!(is_clean(leases.clone()).await);
        let old = reader(leases.clone()).await;
        assert_eq!(old.lookup(b"a/large").await.unwrap().size, (1 << 30) + 200_001);
        let inode = old.lookup(b"not announced/b").await.unwrap().number;
        assert_eq!(old.list_extended(inode).await.unwrap(), [b"user.a", b"user.b"]);
        assert_eq!(old.extended(inode, b"user.a").await.unwrap().unwrap(), [9; 700]);
        assert_eq!(old.read_link(b"s").await.unwrap(), b"a/file");

        // The same lengths and times with other bytes are believed, unless contents are compared.
        let again = import(&mut writer, Existing::SizeAndTime, &lent(&tree(3, 8))).await;
        let changed: Vec<usize> = (0..again.len())
            .filter(|&index| again[index] != Done::Unchanged)
            .collect();
        assert_eq!(changed, [4], "extended attributes are compared: {again:?}");
        let told = import(&mut writer, Existing::Check, &lent(&tree(3, 8))).await;
        for index in [2, 4, 6] {
            assert_eq!(told[index], Done::Differs("has other content"), "{index}");
        }
        let again = import(&mut writer, Existing::Content, &lent(&tree(3, 8))).await;
        for (index, expected) in [
            (2, Done::Replaced),
            (3, Done::Replaced),
            (4, Done::Replaced),
            (6, Done::Replaced),
        ] {
            assert_eq!(again[index], expected, "{index}: {again:?}");
        }
        assert_eq!(again[5], Done::Unchanged);
        // A later time of change is enough.
        let again = import(&mut writer, Existing::SizeAndTime, &lent(&tree(4, 7))).await;
        assert_eq!(
            (again[2], again[3], again[6]),
            (Done::Replaced, Done::Replaced, Done::Replaced)
        );
        assert!(is_clean(leases.clone()).await);
        let told = import(&mut writer, Existing::Check, &lent(&tree(4, 7))).await;
        assert!(told.iter().all(|done| *done == Done::Unchanged), "{told:?}");
        let now = reader(leases).await;
        let file = now.lookup(b"a/file").await.unwrap();
        assert_eq!((file.links, file.attributes), (2, attributes(4)));
        assert_eq!(now.lookup(b"a/link").await.unwrap().number, file.number);
        let large = now.open_file(b"a/large").await.unwrap();
        let tail = now.read(&large, (1 << 30) + 99_990, 20).await.unwrap().to_vec();
        assert_eq!(tail, [[0; 10], [7; 10]].concat());
        // Who read before reads what was.
        assert_eq!(old.lookup(b"a/file").await.unwrap().attributes, attributes(3));
    })
    .unwrap();
}

#[test]
fn where_a_file_stands_is_known_before_it_is_read() {
    let (simulation, host) = world(2);
    on_host(&simulation, host, || async {
        let (_leases, mut writer) = empty().await;
        import(
            &mut writer,
            Existing::SizeAndTime,
            &[(file("d/f", 3, 1, 300), &[])],
        )
        .await;
        let mut other_owner = attributes(3);
        other_owner.uid += 1;
        let mut changed_since = attributes(3);
        changed_since.ctime.seconds += 1;
        let importer = Importer::new(&mut writer, InodeNumber::ROOT, options(Existing::SizeAndTime));
        for (path, attributes, size, expected) in [
            ("d/f", attributes(3), 300, Standing::Same),
            ("d/f", other_owner, 300, Standing::SameContent),
            ("d/f", changed_since, 300, Standing::SameContent),
            ("d/f", attributes(4), 300, Standing::Wanted),
            ("d/f", attributes(3), 301, Standing::Wanted),
            ("d/g", attributes(3), 300, Standing::Wanted),
            ("d", attributes(3), 0, Standing::Wanted),
            ("d/f/x", attributes(3), 300, Standing::Wanted),
        ] {
            let found = importer.standing(path.as_bytes(), &attributes, size).await;
            assert_eq!(found.unwrap(), expected, "{path} {size}");
        }
        let importer = Importer::new(&mut writer, InodeNumber::ROOT, options(Existing::Content));
        let found = importer.standing(b"d/f", &attributes(3), 300).await;
        assert_eq!(found.unwrap(), Standing::Wanted);
    })
    .unwrap();
}

#[test]
fn other_kinds_give_way_and_full_directories_only_when_told() {
    let (simulation, host) = world(3);
    on_host(&simulation, host, || async {
        let (leases, mut writer) = empty().await;
        let first = [
            (file("file", 3, 1, 300), &[][..]),
            (entry("empty", 3, ImportContent::Directory), &[]),
            (file("full/inner/x", 3, 1, 300), &[]),
            (entry("link", 3, ImportContent::Symlink(b"file".to_vec())), &[]),
        ];
        import(&mut writer, Existing::SizeAndTime, &first).await;
        let second = [
            (entry("file", 3, ImportContent::Directory), &[][..]),
            (file("file/inner", 3, 1, 10), &[]),
            (file("empty", 3, 2, 300), &[]),
            (file("link", 3, 2, 300), &[]),
        ];
        let done = import(&mut writer, Existing::SizeAndTime, &second).await;
        assert_eq!(done, [Done::Replaced, Done::Made, Done::Replaced, Done::Replaced]);
        let full = file("full", 3, 2, 300);
        let mut importer = Importer::new(&mut writer, InodeNumber::ROOT, options(Existing::SizeAndTime));
        let error = importer.entry(&full, &mut Parts::default()).await.unwrap_err();
        assert!(
            !error.is_fatal() && error.to_string().contains("not empty"),
            "{error}"
        );
        let told = ImportOptions {
            remove_directories: true,
            ..options(Existing::SizeAndTime)
        };
        let mut importer = Importer::new(&mut writer, InodeNumber::ROOT, told);
        // What was known of the directory is forgotten.
        let again = file("full/inner/x", 3, 1, 300);
        assert_eq!(
            importer.entry(&again, &mut Parts::default()).await.unwrap(),
            Done::Unchanged
        );
        assert_eq!(
            importer.entry(&full, &mut Parts::default()).await.unwrap(),
            Done::Replaced
        );
        let error = importer.entry(&again, &mut Parts::default()).await.unwrap_err();
        assert!(matches!(
            error,
            ImportError::Write {
                source: WriteError::NotADirectory(_),
                ..
            }
        ));
        importer.commit().await.unwrap();
        assert_eq!(importer.progress().deleted, 3);
        assert!(is_clean(leases.clone()).await);
        let model = read_back(&reader(leases).await).await.unwrap();
        let names: Vec<&[u8]> = model.names.keys().map(|name| &name[..]).collect();
        assert_eq!(
            names,
            [&b""[..], b"empty", b"file", b"file/inner", b"full", b"link"]
        );
        assert_eq!(model.nodes[&model.names[&b"full"[..]]].kind, Kind::File);
    })
    .unwrap();
}

#[test]
fn what_the_source_lacks_is_deleted() {
    let (simulation, host) = world(4);
    on_host(&simulation, host, || async {
        let (leases, mut writer) = empty().await;
        let mut entries: Vec<(ImportEntry, &[ImportPiece])> = Vec::new();
        for index in 0..400 {
            entries.push((file(&format!("d{}/{index:03}", index % 7), 3, 1, 200), &[]));
        }
        entries.push((file("gone/deep/er/x", 3, 1, 200), &[]));
        import(&mut writer, Existing::SizeAndTime, &entries).await;
        let mut importer = Importer::new(&mut writer, InodeNumber::ROOT, options(Existing::SizeAndTime));
        let mut heard = 0;
        let exists = |path: &[u8]| Ok::<_, &str>(!path.starts_with(b"gone") && !path.ends_with(b"5"));
        let removed = |progress: &ImportProgress| {
            heard = progress.deleted;
            Ok(())
        };
        importer.delete_missing(exists, removed).await.unwrap();
        importer.commit().await.unwrap();
        // d5 itself, with its 57 files, and every tenth of the rest, and the four that are "gone".
        let d5 = (0..400).filter(|index| index % 7 == 5).count() as u64 + 1;
        let rest = (0..400).filter(|index| index % 7 != 5 && index % 10 == 5).count() as u64;
        assert_eq!(
            (importer.progress().deleted, heard),
            (d5 + rest + 4, d5 + rest + 4)
        );
        assert!(is_clean(leases.clone()).await);
        let model = read_back(&reader(leases).await).await.unwrap();
        assert_eq!(model.names.len() as u64, 1 + 6 + 400 - (d5 - 1) - rest);
    })
    .unwrap();
}

#[test]
fn deleting_ends_where_it_is_told_to() {
    let (simulation, host) = world(6);
    on_host(&simulation, host, || async {
        let (leases, mut writer) = empty().await;
        let names: Vec<_> = (0..200).map(|index| format!("gone/{index:03}")).collect();
        let entries: Vec<_> = names
            .iter()
            .map(|name| (file(name, 3, 1, 200), &[][..]))
            .collect();
        import(&mut writer, Existing::SizeAndTime, &entries).await;
        let mut importer = Importer::new(&mut writer, InodeNumber::ROOT, options(Existing::SizeAndTime));
        // In the middle of a directory.
        let removed = |progress: &ImportProgress| match progress.deleted {
            70 => Err("told to"),
            _ => Ok(()),
        };
        let error = importer.delete_missing(|_| Ok(false), removed).await.unwrap_err();
        assert_eq!(
            (error.to_string().as_str(), importer.progress().deleted),
            ("told to", 70)
        );
        let error = importer
            .delete_missing(|_| Err("now"), |_| Ok(()))
            .await
            .unwrap_err();
        assert_eq!(
            (error.to_string().as_str(), importer.progress().deleted),
            ("now", 70)
        );
        // Without a commit all of it is there still.
        drop(writer.close().await);
        assert!(is_clean(leases.clone()).await);
        let model = read_back(&reader(leases).await).await.unwrap();
        assert_eq!(model.names.len(), 202);
    })
    .unwrap();
}

#[test]
fn what_fails_leaves_the_next_entry_right() {
    let (simulation, host) = world(5);
    on_host(&simulation, host, || async {
        let (leases, mut writer) = empty().await;
        let mut importer = Importer::new(&mut writer, InodeNumber::ROOT, options(Existing::SizeAndTime));
        let large = |path: &str| entry(path, 3, ImportContent::LargeFile { size_bytes: 1 });
        let mut pieces = Parts(VecDeque::from([Ok(bytes(1, 2_000_000)), Err("cannot be read")]));
        let error = importer.entry(&large("large"), &mut pieces).await.unwrap_err();
        assert!(
            !error.is_fatal() && error.to_string() == "cannot be read",
            "{error}"
        );
        let long = "x".repeat(256);
        let mut pieces = parts(&[bytes(1, 2_000_000), bytes(1, 2_000_000)]);
        let error = importer.entry(&large(&long), &mut pieces).await.unwrap_err();
        assert!(
            !error.is_fatal() && error.to_string().contains("256 bytes"),
            "{error}"
        );
        assert!(pieces.0.is_empty(), "its parts are not taken for another's");
        let link = entry("x", 3, ImportContent::HardLink(b"nowhere".to_vec()));
        let error = importer.entry(&link, &mut Parts::default()).await.unwrap_err();
        assert!(matches!(error, ImportError::LinkTarget { .. }) && !error.is_fatal());
        let mut odd = file("odd", 3, 1, 10);
        odd.extended = Some(vec![(b"user.x".to_vec(), vec![0; 65_537])]);
        let error = importer.entry(&odd, &mut Parts::default()).await.unwrap_err();
        assert!(error.to_string().contains("a value of 65537 bytes"), "{error}");
        let mut pieces = parts(&[bytes(1, 10)]);
        importer.entry(&large("good"), &mut pieces).await.unwrap();
        importer.commit().await.unwrap();
        assert_eq!(importer.progress().copied, 1);
        assert!(is_clean(leases.clone()).await);
        let model = read_back(&reader(leases).await).await.unwrap();
        assert_eq!(model.nodes[&model.names[&b"good"[..]]].bytes, [1; 10]);
        assert!(!model.names.contains_key(&b"large"[..]));
    })
    .unwrap();
}

#[test]
fn a_full_volume_is_renewed_file_by_file() {
    let (simulation, host) = world(6);
    on_host(&simulation, host, || async {
        let (leases, mut writer) = empty().await;
        // Of 8 MiB more than half, so that not all of it fits a second time.
        let tree = |seconds| -> Vec<(ImportEntry, &[ImportPiece])> {
            let one = |index| (file(&format!("{index:02}"), seconds, index, 100_000), &[][..]);
            (0..45).map(one).collect()
        };
        import(&mut writer, Existing::SizeAndTime, &tree(3)).await;
        let done = import(&mut writer, Existing::SizeAndTime, &tree(4)).await;
        assert!(done.iter().all(|done| *done == Done::Replaced), "{done:?}");
        assert!(is_clean(leases.clone()).await);
        // One that never fits is refused, and what was stays.
        let mut importer = Importer::new(&mut writer, InodeNumber::ROOT, options(Existing::SizeAndTime));
        let large = file("00", 5, 1, 9 << 20);
        let error = importer.entry(&large, &mut Parts::default()).await.unwrap_err();
        assert!(
            error.is_fatal() && error.to_string().contains("the volume is full"),
            "{error}"
        );
        importer.commit().await.unwrap();
        assert!(is_clean(leases.clone()).await);
        let reader = reader(leases).await;
        assert_eq!(reader.lookup(b"00").await.unwrap().attributes, attributes(4));
    })
    .unwrap();
}

/// However full a volume is: a name is never without both what it had and what it gets, and what lacks its extended attributes is
/// not taken for whole.
#[test]
fn on_a_full_volume_the_old_stays_or_the_new_is_there() {
    let (simulation, host) = world(8);
    on_host(&simulation, host, || async {
        let (leases, mut writer) = empty().await;
        let filler = |index: u32, length| file(&format!("filler {index:06}"), 3, 1, length);
        let mut importer = Importer::new(&mut writer, InodeNumber::ROOT, options(Existing::SizeAndTime));
        let (mut index, mut length, mut replaced, mut refused, mut lacking) = (0, 200_000, 0, 0, 0);
        let other = [b'x'; 700].to_vec();
        for round in 0i64.. {
            assert!(round < 20_000, "the volume is never full");
            let content = match round % 3 {
                0 => ImportContent::Symlink(other.clone()),
                1 => ImportContent::File(vec![2; 2000]),
                _ => ImportContent::Special(Kind::Pipe, DeviceNumber::default()),
            };
            let victim = entry("victim", 10 + round, content);
            match importer.entry(&victim, &mut Parts::default()).await {
                Ok(_) => replaced += 1,
                Err(error) => {
                    assert!(error.to_string().contains("the volume is full"), "{error}");
                    refused += 1;
                }
            }
            let mut with_extended = file("extended", 10 + round, 3, 10);
            with_extended.extended = Some(vec![(b"user.x".to_vec(), vec![round as u8; 60_000])]);
            if importer
                .entry(&with_extended, &mut Parts::default())
                .await
                .is_err()
            {
                lacking += 1;
                let wanted = &with_extended.attributes;
                let standing = importer.standing(b"extended", wanted, 10).await.unwrap();
                assert_ne!(standing, Standing::Same, "round {round}");
            }
            importer.commit().await.ok();
            if round > 0 {
                importer.find(b"victim").await.unwrap().expect("neither is there");
            }
            index += 1;
            match importer
                .entry(&filler(index, length), &mut Parts::default())
                .await
            {
                Ok(_) => {}
                Err(_) if length > 10 => length /= 4,
                Err(_) => break,
            }
        }
        assert!(
            replaced > 10 && refused > 0 && lacking > 0,
            "{replaced} {refused} {lacking}"
        );
        assert!(is_clean(leases).await);
    })
    .unwrap();
}

/// A few bytes stand beside their inode, and are no hole.
#[test]
fn bytes_beside_an_inode_are_compared_with_a_hole() {
    let (simulation, host) = world(9);
    on_host(&simulation, host, || async {
        let (leases, mut writer) = empty().await;
        import(
            &mut writer,
            Existing::Content,
            &[(file("small", 3, 1, 100), &[][..])],
        )
        .await;
        let holes = entry("small", 4, ImportContent::LargeFile { size_bytes: 100 });
        let done = import(
            &mut writer,
            Existing::Content,
            &[(holes, &[ImportPiece::Hole(100)])],
        )
        .await;
        assert_eq!(done, [Done::Replaced]);
        writer.close().await.unwrap();
        let reader = reader(leases).await;
        let small = reader.open_file(b"small").await.unwrap();
        assert_eq!(reader.read(&small, 0, 200).await.unwrap().to_vec(), [0; 100]);
    })
    .unwrap();
}

/// What cannot be is refused before what has the name goes.
#[test]
fn what_is_refused_leaves_what_is_there() {
    let (simulation, host) = world(9);
    on_host(&simulation, host, || async {
        let (_, mut writer) = empty().await;
        import(
            &mut writer,
            Existing::SizeAndTime,
            &[(file("kept", 3, 1, 1000), &[][..])],
        )
        .await;
        writer.set_quota(InodeNumber::ROOT, 1100, 100).await.unwrap();
        let mut importer = Importer::new(&mut writer, InodeNumber::ROOT, options(Existing::SizeAndTime));
        let before = importer.find(b"kept").await.unwrap();
        let link = entry("kept", 4, ImportContent::Symlink(vec![b'x'; 2000]));
        let mut wrong_time = entry(
            "kept",
            4,
            ImportContent::Special(Kind::Pipe, DeviceNumber::default()),
        );
        wrong_time.attributes.mtime.nanoseconds = 2_000_000_000;
        let mut odd = entry("kept", 4, ImportContent::Symlink(b"x".to_vec()));
        odd.extended = Some(vec![(Vec::new(), Vec::new())]);
        let mut many = entry("kept", 4, ImportContent::Symlink(b"x".to_vec()));
        let name = |number: u32| format!("user.{number:0245}").into_bytes();
        many.extended = Some((0..262).map(|number| (name(number), Vec::new())).collect());
        for refused in [link, wrong_time, odd, many] {
            let error = importer.entry(&refused, &mut Parts::default()).await.unwrap_err();
            assert!(!error.is_fatal(), "{error}");
            assert_eq!(importer.find(b"kept").await.unwrap(), before, "{error}");
        }
    })
    .unwrap();
}

#[test]
fn an_import_may_last_longer_than_a_lease() {
    let (simulation, host) = world(1);
    on_host(&simulation, host, || async {
        let (_leases, mut writer) = empty().await;
        let mut importer = Importer::new(&mut writer, InodeNumber::ROOT, options(Existing::SizeAndTime));
        for index in 0..5 {
            reactor::time::sleep(std::time::Duration::from_secs(20)).await;
            let entry = file(&index.to_string(), 1, 1, 300);
            importer.entry(&entry, &mut Parts::default()).await.unwrap();
        }
        importer.commit().await.unwrap();
        assert_eq!(importer.progress().copied, 5);
    })
    .unwrap();
}

#[test]
fn pipes_sockets_and_devices_come_and_are_replaced() {
    let (simulation, host) = world(6);
    on_host(&simulation, host, || async {
        let (leases, mut writer) = empty().await;
        let number = |major, minor| DeviceNumber { major, minor };
        let special = |path: &str, kind, device| entry(path, 5, ImportContent::Special(kind, device));
        let none = DeviceNumber::default();
        let entries = [
            special("pipe", Kind::Pipe, none),
            special("socket", Kind::Socket, none),
            special("null", Kind::CharacterDevice, number(1, 3)),
            special("disk", Kind::BlockDevice, number(259, 70_000)),
        ];
        let all: Vec<(ImportEntry, &[ImportPiece])> =
            entries.iter().map(|entry| (entry.clone(), &[][..])).collect();
        let first = import(&mut writer, Existing::SizeAndTime, &all).await;
        assert_eq!(first, [Done::Made; 4]);
        let again = import(&mut writer, Existing::SizeAndTime, &all).await;
        assert_eq!(again, [Done::Unchanged; 4]);
        // Another device, a pipe that was a socket, and a file that was a pipe.
        let changed = [
            (special("null", Kind::CharacterDevice, number(1, 5)), &[][..]),
            (special("socket", Kind::Pipe, none), &[][..]),
            (file("pipe", 5, 3, 10), &[][..]),
        ];
        let told = import(&mut writer, Existing::Check, &changed).await;
        assert!(
            told.iter().all(|done| matches!(done, Done::Differs(_))),
            "{told:?}"
        );
        let replaced = import(&mut writer, Existing::SizeAndTime, &changed).await;
        assert_eq!(replaced, [Done::Replaced; 3]);
        let told = import(&mut writer, Existing::Check, &changed).await;
        assert_eq!(told, [Done::Unchanged; 3]);
        let reader = reader(leases.clone()).await;
        for (path, kind, device) in [
            ("null", Kind::CharacterDevice, Some(number(1, 5))),
            ("disk", Kind::BlockDevice, Some(number(259, 70_000))),
            ("socket", Kind::Pipe, None),
            ("pipe", Kind::File, None),
        ] {
            let inode = reader.lookup(path.as_bytes()).await.unwrap();
            assert_eq!((inode.kind, inode.device()), (kind, device), "{path}");
        }
        let report = verify(&medium(), leases, &VerifyOptions::default())
            .await
            .unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    })
    .unwrap();
}

/// What is committed while a large directory goes counts nothing that is nobody's yet, wherever it is cut off.
#[test]
fn a_directory_goes_before_the_file_that_takes_its_place_is_written() {
    for is_large in [false, true] {
        let (simulation, host) = world(11);
        on_host(&simulation, host, move || async move {
            let (leases, mut writer) = empty().await;
            let names: Vec<String> = (0..300).map(|index| format!("full/{index}")).collect();
            let first: Vec<_> = names
                .iter()
                .map(|name| (file(name, 3, 1, 300), &[][..]))
                .collect();
            import(&mut writer, Existing::SizeAndTime, &first).await;
            let told = ImportOptions {
                remove_directories: true,
                ..options(Existing::SizeAndTime)
            };
            let mut importer = Importer::new(&mut writer, InodeNumber::ROOT, told);
            importer.commit_after_bytes = 1;
            let content = match is_large {
                true => ImportContent::LargeFile { size_bytes: 300_000 },
                false => ImportContent::File(vec![2; 300_000]),
            };
            let mut pieces = match is_large {
                true => parts(&[bytes(2, 150_000), bytes(2, 150_000)]),
                false => Parts::default(),
            };
            // What follows an entry is committed by the same bound, and is not what this is about.
            let replaced = importer.place(&entry("full", 4, content), &mut pieces).await;
            assert_eq!(replaced.unwrap(), Done::Replaced);
            assert!(importer.progress().commits > 100);
            assert!(is_clean(leases.clone()).await);
            importer.commit().await.unwrap();
            assert!(is_clean(leases).await);
        })
        .unwrap();
    }
}
