//! Proved here: damage of each kind to what the index says, made with right checksums, is found, repaired in one commit, and
//! found no more, whatever memory there is to find it with; what was not damaged is there byte for byte, and what was has a name in `lost+found` or on the list of
//! what is lost.

use std::rc::Rc;

use foundation::Random;

use super::files_model::{Files, step};
use super::files_test::{extended_of, options};
use super::model::{Model, Node, read_back};
use super::support::{ROOT, leases, on_host, sized_medium, small, world, writer_options};
use crate::files::FileSystem;
use crate::format::entry::{Entry, Inode, Layout, encode_place};
use crate::format::extent::{Extent, encode_list};
use crate::format::key::Key;
use crate::format::superblock::{Features, Totals};
use crate::lease::memory::LocalLeases;
use crate::{
    Attributes, FsckOptions, FsckReport, InodeNumber, Kind, Medium, Reader, ReaderOptions, Timestamp,
    VerifyOptions, VerifyReport, Writer, format, fsck, verify,
};

pub(super) const BYTES: u64 = 16 << 20;

/// A file system of some hundred inodes, with what the format has: also a snapshot by name.
pub(super) async fn filled(seed: u64) -> Files {
    let mut random = Random::from_seed(seed);
    let medium = sized_medium(BYTES);
    format(medium.clone(), leases(), "a formatter", &small())
        .await
        .unwrap();
    let mut files = FileSystem::open(medium.clone(), leases(), &options())
        .await
        .unwrap();
    let mut model = Files::new(small().root);
    for round in 0..4 {
        for _ in 0..150 {
            step(&mut files, &mut model, &mut random).await.unwrap();
        }
        files.commit().await.unwrap();
        if round == 1 {
            files
                .create_snapshot(b"kept", Timestamp::default())
                .await
                .unwrap();
        }
    }
    files.close().await.unwrap();
    // What is below is known by name; the commit also empties the list of orphans.
    let mut writer = open(&medium).await;
    let a = small().root;
    let directory = writer.mkdir(ROOT, b"known", &a).await.unwrap();
    for (name, size) in [
        (&b"one"[..], 3000),
        (b"two", 3000),
        (b"large", 200_000),
        (b"tiny", 20),
    ] {
        let bytes = vec![name[0]; size];
        writer.create_file(directory, name, &a, &bytes).await.unwrap();
    }
    for name in [&b"outer"[..], b"other"] {
        let made = writer.mkdir(directory, name, &a).await.unwrap();
        writer.create_file(made, b"in it", &a, name).await.unwrap();
    }
    // Enough for several leaves, whatever the random steps leave.
    let many = writer.mkdir(directory, b"many", &a).await.unwrap();
    for index in 0..80u8 {
        let name = format!("one of many {index}");
        writer
            .create_file(many, name.as_bytes(), &a, &[index; 100])
            .await
            .unwrap();
    }
    let linked = writer
        .create_file(directory, b"linked", &a, b"twice")
        .await
        .unwrap();
    writer.link(directory, b"again", linked).await.unwrap();
    writer.commit().await.unwrap();
    writer.close().await.unwrap();
    let mut model = model.reopened();
    model.tree = state().await;
    model
        .extended
        .retain(|(owner, _), _| model.tree.nodes.contains_key(owner));
    model
}

pub(super) async fn open(medium: &Medium) -> Writer {
    let opened = Writer::open(medium.clone(), leases(), &writer_options()).await;
    opened.unwrap()
}

/// What a reader finds.
pub(super) async fn state() -> Model {
    let reader = Reader::open(sized_medium(BYTES), leases(), &ReaderOptions::default()).await;
    read_back(&reader.unwrap()).await.unwrap()
}

pub(super) async fn check(repair: bool, read_content: bool) -> FsckReport {
    let options = FsckOptions {
        repair,
        read_content,
        ..FsckOptions::default()
    };
    let checked = fsck(&sized_medium(BYTES), leases(), &options, &mut |_| {}).await;
    let report = checked.unwrap();
    let newest = report.left.as_ref().unwrap_or(&report.found);
    is_found_in_little_memory(&sized_medium(BYTES), read_content, newest).await;
    report
}

/// A check with memory for 166 numbers and 250 ranges of bytes finds the same, in another order.
pub(super) async fn is_found_in_little_memory(medium: &Medium, read_content: bool, expected: &VerifyReport) {
    let options = VerifyOptions {
        read_content,
        memory_bytes: 16_000,
        ..VerifyOptions::default()
    };
    let found = verify(medium, leases(), &options).await.unwrap();
    let texts = |report: &VerifyReport| {
        let mut texts: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        texts.sort();
        texts
    };
    assert_eq!(texts(&found), texts(expected));
    assert_eq!(found.totals, expected.totals);
    assert_eq!(
        (found.tree_pages, found.extents, found.more_problems),
        (expected.tree_pages, expected.extents, expected.more_problems)
    );
}

/// Finds what is wrong, without writing, repairs it, and finds nothing any more.
pub(super) async fn repaired(what: &str) -> FsckReport {
    let found = check(false, true).await;
    assert!(!found.is_clean(), "{what}: nothing was found");
    assert!(found.has_uncorrected() && !found.has_corrected());
    let report = check(true, true).await;
    let left = report.left.as_ref().unwrap();
    assert!(
        left.is_clean(),
        "{what}: {:#?}\n{:#?}",
        left.problems,
        report.repaired
    );
    assert!(report.has_corrected() && !report.has_uncorrected(), "{what}");
    assert_eq!(report.found.problems, found.found.problems, "{what}");
    let again = check(true, true).await;
    assert!(
        again.is_clean() && !again.has_corrected() && again.left.is_none(),
        "{what}"
    );
    report
}

/// Where a path leads in a model.
fn number(model: &Model, path: &str) -> InodeNumber {
    model.names[path.as_bytes()]
}

async fn inode(writer: &Writer, model: &Model, path: &str) -> Inode {
    writer.inode(number(model, path)).await.unwrap()
}

fn plain(number: u64, kind: Kind) -> Inode {
    Inode {
        number: InodeNumber(number),
        kind,
        attributes: Attributes::default(),
        links: 1,
        size: 0,
        layout: Layout::Inline(Vec::new()),
    }
}

fn entry(directory: InodeNumber, name: &str) -> Vec<u8> {
    Key::Entry(directory, name.as_bytes().to_vec()).encode()
}

/// What is expected beside what there was before.
#[derive(Default)]
struct Expected {
    /// Paths that there are no more.
    gone: &'static [&'static str],
    /// Paths that come, with their content; `None` is a directory.
    come: Vec<(&'static str, Option<Vec<u8>>)>,
    /// Part of what the report says is lost.
    lost: &'static [&'static str],
}

const SAME: Expected = Expected {
    gone: &[],
    come: Vec::new(),
    lost: &[],
};

/// Does one kind of damage.
#[allow(clippy::too_many_lines)]
async fn damage(kind: usize, w: &mut Writer, m: &Model) -> Option<(&'static str, Expected)> {
    let known = number(m, "known");
    let one = inode(w, m, "known/one").await;
    let two = inode(w, m, "known/two").await;
    let linked = inode(w, m, "known/linked").await;
    let put = async |w: &mut Writer, key: Vec<u8>, value: Vec<u8>| w.put(key, value).await.unwrap();
    let found = |gone, come| Expected {
        gone,
        come,
        ..Expected::default()
    };
    Some(match kind {
        0 => {
            w.take(&Key::Name(one.number.0).encode()).await.unwrap();
            ("a name by cookie is missing", SAME)
        }
        1 => {
            put(
                w,
                Key::Name(one.number.0).encode(),
                encode_place(ROOT, b"elsewhere"),
            )
            .await;
            ("a name by cookie leads elsewhere", SAME)
        }
        2 => {
            put(w, Key::Name(77_000).encode(), encode_place(known, b"nothing")).await;
            ("a name by cookie too many", SAME)
        }
        3 => {
            w.take(&Key::Link(linked.number, linked.number.0).encode())
                .await
                .unwrap();
            ("a link is missing", SAME)
        }
        4 => {
            put(w, Key::Link(one.number, 5).encode(), Vec::new()).await;
            ("a link too many", SAME)
        }
        5 => {
            let wrong = Inode { links: 7, ..linked };
            put(w, Key::Inode(wrong.number).encode(), wrong.encode()).await;
            ("a wrong count of links", SAME)
        }
        6 => {
            put(w, Key::Orphan(one.number).encode(), Vec::new()).await;
            w.set_counts(w.totals(), Features(31), 100_000);
            ("an orphan that has a name", SAME)
        }
        7 => {
            let mut made = plain(77_000, Kind::File);
            made.layout = Layout::Inline(b"nameless".to_vec());
            made.size = 8;
            put(w, Key::Inode(made.number).encode(), made.encode()).await;
            let come = vec![
                ("lost+found", None),
                ("lost+found/#77000", Some(b"nameless".to_vec())),
            ];
            ("an inode without a name", found(&[], come))
        }
        8 => {
            let outer = inode(w, m, "known/outer").await;
            let other = inode(w, m, "known/other").await;
            w.take(&entry(known, "outer")).await.unwrap();
            w.take(&entry(known, "other")).await.unwrap();
            put(w, entry(outer.number, "x"), other.encode()).await;
            put(w, entry(other.number, "x"), outer.encode()).await;
            ("a circle of directories", Expected::default())
        }
        9 => {
            put(
                w,
                Key::Extended(InodeNumber(77_000), 0, b"user.x".to_vec()).encode(),
                vec![1],
            )
            .await;
            let lost = &["\"user.x\" of inode 77000"];
            ("an attribute of nothing", Expected { lost, ..SAME })
        }
        10 => {
            put(
                w,
                Key::Extended(one.number, 1, b"user.y".to_vec()).encode(),
                vec![1],
            )
            .await;
            ("half an attribute", SAME)
        }
        11 => {
            let bytes = w.pack(&[9; 5000]).await.unwrap();
            put(
                w,
                Key::Extents(InodeNumber(77_000), 0).encode(),
                encode_list(&bytes),
            )
            .await;
            let come = vec![("lost+found", None), ("lost+found/#77000", Some(vec![9; 5000]))];
            ("extents of nothing", found(&[], come))
        }
        12 => {
            put(w, entry(known, "copy"), one.encode()).await;
            (
                "two inodes of one number",
                found(&[], vec![("known/copy", Some(vec![b'o'; 3000]))]),
            )
        }
        13 => {
            let mut made = plain(77_001, Kind::File);
            made.layout = Layout::Inline(b"deep".to_vec());
            made.size = 4;
            put(w, entry(InodeNumber(77_000), "deep"), made.encode()).await;
            let come = vec![
                ("lost+found", None),
                ("lost+found/#77000", None),
                ("lost+found/#77000/deep", Some(b"deep".to_vec())),
            ];
            ("an entry of a directory that is lost", found(&[], come))
        }
        14 => {
            let made = plain(77_001, Kind::File);
            put(w, entry(two.number, "below"), made.encode()).await;
            ("an entry below a file", Expected::default())
        }
        15 => {
            let shared = Inode {
                layout: one.layout.clone(),
                ..two.clone()
            };
            put(w, entry(known, "two"), shared.encode()).await;
            let come = vec![("known/two", Some(vec![b'o'; 3000]))];
            ("two files of the same bytes", found(&["known/two"], come))
        }
        16 => {
            w.set_counts(Totals::default(), Features(31), 100_000);
            put(w, entry(known, "one"), one.encode()).await;
            ("wrong totals", SAME)
        }
        17 => {
            w.set_counts(w.totals(), Features(31), 3);
            put(w, entry(known, "one"), one.encode()).await;
            ("the next number is taken", SAME)
        }
        18 => {
            put(w, entry(known, "noise"), vec![0xee; 9]).await;
            put(w, b"\x99what".to_vec(), vec![1]).await;
            ("cells that mean nothing", SAME)
        }
        19 => {
            w.take(&Key::Inode(ROOT).encode()).await.unwrap();
            ("no root", Expected::default())
        }
        20 => {
            let gone = Entry::Link {
                inode: InodeNumber(77_000),
                kind: Kind::File,
                cookie: 77_001,
            };
            put(w, entry(known, "dangling"), gone.encode()).await;
            let lost = &["\"dangling\" in directory"];
            ("a link to nothing", Expected { lost, ..SAME })
        }
        21 => {
            let Some(Entry::Link { inode, cookie, .. }) = w.lookup(known, b"again").await.unwrap() else {
                panic!("it is a link");
            };
            let kind = Kind::Directory;
            put(
                w,
                entry(known, "again"),
                Entry::Link { inode, kind, cookie }.encode(),
            )
            .await;
            ("a link of another kind", SAME)
        }
        22 => {
            let segment = *w.space.segments().keys().next().unwrap();
            w.space.add_live(segment, 1);
            put(w, entry(known, "one"), one.encode()).await;
            ("a segment with more live than there is", SAME)
        }
        23 => {
            // Nothing will have it.
            w.space.take_page().unwrap();
            put(w, entry(known, "one"), one.encode()).await;
            ("a page that is neither used nor free", SAME)
        }
        24 => {
            let Layout::Extents(extents) = &one.layout else {
                panic!()
            };
            let segment = extents[0].address / 4096 / w.space.segment_pages() * w.space.segment_pages();
            w.space.free_page(segment + 1);
            put(w, entry(known, "one"), one.encode()).await;
            ("a page of a file that is recorded as free", SAME)
        }
        25 => {
            let large = inode(w, m, "known/large").await;
            let Layout::Mapped = large.layout else { panic!() };
            let short = Inode { size: 100, ..large };
            put(w, entry(known, "large"), short.encode()).await;
            ("a size that is less than the content", SAME)
        }
        26 => {
            let large = inode(w, m, "known/large").await;
            let over = w.pack(&[7; 4096]).await.unwrap();
            put(w, Key::Extents(large.number, 10).encode(), encode_list(&over)).await;
            ("extents over others", Expected::default())
        }
        27 => {
            // Where the first page of the tree lies: the same bytes, so that even the checksum is right.
            let page = w.superblock_root();
            let bytes = w.medium.read_fresh(page * 4096, 4096).await.unwrap();
            let extent = Extent {
                address: page * 4096,
                length: 4096,
                checksum: foundation::checksum::crc32c(&bytes),
            };
            let wrong = Inode {
                layout: Layout::Extents(vec![extent]),
                size: 4096,
                ..plain(77_000, Kind::File)
            };
            put(w, entry(known, "crossed"), wrong.encode()).await;
            ("a file in the index", Expected::default())
        }
        28 => {
            put(
                w,
                entry(known, "second"),
                inode(w, m, "known/outer").await.encode(),
            )
            .await;
            ("two directories of one number", Expected::default())
        }
        29 => {
            let (kind, cookie) = (Kind::File, two.number.0);
            let inode = linked.number;
            put(
                w,
                entry(known, "again"),
                Entry::Link { inode, kind, cookie }.encode(),
            )
            .await;
            ("a cookie of another inode", SAME)
        }
        30 => {
            // There are some among what was made at random.
            let without = Features(31 & !Features::SPECIAL.0);
            w.set_counts(w.totals(), without, 100_000);
            ("pipes, sockets and devices that no feature announces", SAME)
        }
        _ => return None,
    })
}

/// Everything of `before` is in `after` as it was, but for what is listed.
fn compare(what: &str, before: &Model, after: &Model, expected: &Expected) {
    for (path, inode) in &before.names {
        let text = String::from_utf8_lossy(path);
        if expected.gone.contains(&&*text) {
            continue;
        }
        let found = after.names.get(path).map(|inode| &after.nodes[inode]);
        let found = found.unwrap_or_else(|| panic!("{what}: {text} is gone"));
        assert!(*found == before.nodes[inode], "{what}: {text} is not as it was");
    }
    for (path, content) in &expected.come {
        let found = after.names.get(path.as_bytes()).map(|inode| &after.nodes[inode]);
        let Some(Node { kind, bytes, .. }) = found else {
            panic!("{what}: {path} did not come: {:?}", after.names.keys());
        };
        assert_eq!(*kind == Kind::Directory, content.is_none(), "{what}: {path}");
        assert!(
            *bytes == content.clone().unwrap_or_default(),
            "{what}: {path} has other content"
        );
    }
}

#[test]
fn each_kind_of_damage_to_the_index_is_repaired() {
    for kind in 0.. {
        let (simulation, host) = world(5);
        let done = on_host(&simulation, host, move || async move {
            let files = filled(5).await;
            let before = files.tree.clone();
            let medium = sized_medium(BYTES);
            let mut writer = open(&medium).await;
            let Some((what, mut expected)) = damage(kind, &mut writer, &before).await else {
                return false;
            };
            writer.commit_always().await.unwrap();
            writer.close().await.unwrap();
            let report = repaired(what).await;
            for lost in expected.lost {
                let told = report.lost.iter().any(|line| line.contains(lost));
                assert!(told, "{what}: {lost} is not among {:?}", report.lost);
            }
            assert_eq!(
                report.lost.len(),
                expected.lost.len(),
                "{what}: {:?}",
                report.lost
            );
            let after = state().await;
            let mut kept = before.clone();
            let below = |after: &Model, name: &str| {
                let found = after.names.keys().any(|path| path.ends_with(name.as_bytes()));
                assert!(found, "{what}: {:?}", after.names.keys());
            };
            match kind {
                8 => {
                    for name in [
                        "known/outer",
                        "known/outer/in it",
                        "known/other",
                        "known/other/in it",
                    ] {
                        kept.names.remove(name.as_bytes());
                    }
                    below(&after, "x/in it");
                    below(&after, "x");
                    assert!(after.names.keys().filter(|path| path.ends_with(b"in it")).count() == 2);
                }
                14 => below(&after, "/below"),
                19 => {
                    // Its times are lost.
                    let root = after.nodes[&ROOT].clone();
                    kept.nodes.insert(ROOT, root);
                }
                26 => assert!(after.nodes.values().any(|node| node.bytes.ends_with(&[7; 4096]))),
                27 => below(&after, "known/crossed"),
                28 => below(&after, "known/second"),
                _ => {}
            }
            if kind == 8 || kind == 12 || kind == 15 {
                expected.gone = if kind == 15 { &["known/two"] } else { &[] };
            }
            compare(what, &kept, &after, &expected);
            let reader = Reader::open(medium.clone(), leases(), &ReaderOptions::default())
                .await
                .unwrap();
            assert!(
                extended_of(&reader, &files).await.unwrap() == files.extended,
                "{what}"
            );
            reader.close().await.unwrap();
            // A writer goes on with it.
            let mut writer = open(&medium).await;
            let a = small().root;
            for index in 0..30u8 {
                let name = format!("new {index}");
                writer
                    .create_file(ROOT, name.as_bytes(), &a, &[index; 9000])
                    .await
                    .unwrap();
            }
            writer.commit().await.unwrap();
            writer.close().await.unwrap();
            assert!(check(false, true).await.is_clean(), "{what}: after new files");
            true
        });
        if !done.unwrap() {
            assert!(kind > 30);
            return;
        }
    }
}

#[test]
fn a_clean_file_system_is_not_written() {
    let (simulation, host) = world(5);
    let disk = on_host(&simulation, host, || async { filled(6).await })
        .map(|_| simulation.disk(host, std::path::Path::new(super::support::DISK)));
    let disk = disk.unwrap();
    let before = disk.read(0, BYTES as usize);
    on_host(&simulation, host, || async {
        let report = check(true, true).await;
        assert!(report.is_clean() && !report.has_corrected() && !report.has_uncorrected());
        assert!(report.found.snapshots == 1 && report.found.totals.files > 20);
    })
    .unwrap();
    assert!(disk.read(0, BYTES as usize) == before);
}

#[test]
fn a_repair_needs_the_writers_lease() {
    let (simulation, host) = world(5);
    on_host(&simulation, host, || async {
        let files = filled(6).await;
        let medium = sized_medium(BYTES);
        let mut writer = open(&medium).await;
        damage(0, &mut writer, &files.tree).await.unwrap();
        writer.commit_always().await.unwrap();
        writer.close().await.unwrap();
        let leases = Rc::new(LocalLeases::new());
        let opened = Writer::open(medium.clone(), leases.clone(), &writer_options()).await;
        let writer = opened.unwrap();
        let options = FsckOptions {
            repair: true,
            ..FsckOptions::default()
        };
        let refused = fsck(&medium, leases.clone(), &options, &mut |_| {}).await;
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("the test's writer"), "{text}");
        writer.close().await.unwrap();
        let report = fsck(&medium, leases, &options, &mut |_| {}).await.unwrap();
        assert!(report.has_corrected() && !report.has_uncorrected());
    })
    .unwrap();
}
