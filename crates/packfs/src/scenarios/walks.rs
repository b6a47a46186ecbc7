//! Proved here: an import keeps names, attributes, links and bytes; a listing goes on after any cookie; cold lookups of
//! a batch run side by side and read each page once.

use std::rc::Rc;

use super::model::read_back;
use super::support::{leases, medium, on_host, small, world, writer_options};
use crate::lease::memory::LocalLeases;
use crate::{
    Attributes, ImportContent, ImportEntry, ImportError, ImportSource, InodeNumber, Kind, Reader,
    ReaderOptions, Target, Timestamp, VerifyOptions, Writer, format, import, verify,
};

struct List {
    entries: std::vec::IntoIter<ImportEntry>,
    pieces: Vec<Vec<u8>>,
}

impl ImportSource for List {
    type Error = std::convert::Infallible;

    async fn next(&mut self) -> Result<Option<ImportEntry>, Self::Error> {
        Ok(self.entries.next())
    }

    async fn more(&mut self) -> Result<Vec<u8>, Self::Error> {
        Ok(self.pieces.pop().unwrap_or_default())
    }
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

fn list(entries: Vec<(&str, ImportContent)>) -> List {
    let entries = entries
        .into_iter()
        .enumerate()
        .map(|(index, (path, content))| ImportEntry {
            path: path.as_bytes().to_vec(),
            attributes: attributes(index as i64),
            content,
        });
    List {
        entries: entries.collect::<Vec<_>>().into_iter(),
        pieces: vec![vec![3; 100_000], vec![2; 100_000], vec![1; 1]],
    }
}

/// A new file system and its writer.
async fn empty() -> (Rc<LocalLeases>, Writer) {
    format(medium(), leases(), "a formatter", &small()).await.unwrap();
    let leases = Rc::new(LocalLeases::new());
    let writer = Writer::open(medium(), leases.clone(), &writer_options()).await;
    (leases, writer.unwrap())
}

async fn reader(leases: Rc<LocalLeases>) -> Reader {
    let reader = Reader::open(medium(), leases, &ReaderOptions::default()).await;
    reader.unwrap()
}

#[test]
fn an_import_keeps_everything() {
    let (simulation, host) = world(1);
    on_host(&simulation, host, || async {
        let (leases, mut writer) = empty().await;
        let mut source = list(vec![
            ("", ImportContent::Directory),
            ("a", ImportContent::Directory),
            ("a/file", ImportContent::File(vec![9; 5000])),
            ("a/link", ImportContent::HardLink(b"a/file".to_vec())),
            ("a/large", ImportContent::LargeFile),
            ("not announced/b", ImportContent::File(b"tiny".to_vec())),
            ("s", ImportContent::Symlink(b"a/file".to_vec())),
        ]);
        let mut calls = 0;
        let progress = import(&mut writer, InodeNumber::ROOT, &mut source, |_| calls += 1)
            .await
            .unwrap();
        assert_eq!((progress.entries, progress.content_bytes, calls), (7, 205_005, 7));
        let mut source = list(vec![("x", ImportContent::HardLink(b"nowhere".to_vec()))]);
        let failed = import(&mut writer, InodeNumber::ROOT, &mut source, |_| {}).await;
        assert!(matches!(failed, Err(ImportError::LinkTarget { .. })));
        assert!(
            verify(&medium(), leases.clone(), &VerifyOptions::default())
                .await
                .unwrap()
                .is_clean()
        );
        let reader = reader(leases).await;
        let model = read_back(&reader).await.unwrap();
        let node = |path: &str| &model.nodes[&model.names[path.as_bytes()]];
        assert_eq!(node("").attributes, attributes(0));
        assert_eq!(
            (node("a").kind, node("a").attributes),
            (Kind::Directory, attributes(1))
        );
        assert_eq!(
            (node("a/file").links, node("a/file").attributes),
            (2, attributes(2))
        );
        assert_eq!(model.names[&b"a/link"[..]], model.names[&b"a/file"[..]]);
        assert_eq!(
            node("a/large").bytes,
            [vec![1; 1], vec![2; 100_000], vec![3; 100_000]].concat()
        );
        assert_eq!(node("not announced/b").bytes, b"tiny");
        assert_eq!(reader.read_link(b"s").await.unwrap(), b"a/file");
        assert_eq!(model.names.len(), 8);
    })
    .unwrap();
}

#[test]
fn a_listing_goes_on_after_any_cookie() {
    let (simulation, host) = world(2);
    on_host(&simulation, host, || async {
        let (leases, mut writer) = empty().await;
        let a = Attributes::default();
        let directory = writer.mkdir(InodeNumber::ROOT, b"d", &a).await.unwrap();
        writer.mkdir(InodeNumber::ROOT, b"e", &a).await.unwrap();
        for index in 0..300 {
            let name = format!("{index:03}");
            let inode = writer
                .create_file(directory, name.as_bytes(), &a, b"")
                .await
                .unwrap();
            if index % 3 == 0 {
                let name = format!("{index:03} again");
                writer.link(directory, name.as_bytes(), inode).await.unwrap();
            }
        }
        writer.commit().await.unwrap();
        let reader = reader(leases).await;
        let all = reader.read_directory(directory, None, usize::MAX).await.unwrap();
        assert_eq!(all.len(), 400);
        assert!(all.is_sorted_by(|a, b| a.name < b.name));
        for (index, entry) in all.iter().enumerate() {
            let cookie = Some(entry.entry.cookie());
            let rest = reader.read_directory(directory, cookie, 3).await.unwrap();
            let end = (index + 4).min(all.len());
            assert_eq!(rest, all[index + 1..end]);
        }
    })
    .unwrap();
}

#[test]
fn a_cold_batch_reads_each_page_once() {
    let (simulation, host) = world(3);
    on_host(&simulation, host, || async {
        let (leases, mut writer) = empty().await;
        let a = Attributes::default();
        let paths: Vec<String> = (0..4000).map(|index| format!("{index:08}")).collect();
        for path in &paths {
            writer
                .create_file(InodeNumber::ROOT, path.as_bytes(), &a, &[5; 300])
                .await
                .unwrap();
        }
        writer.commit().await.unwrap();
        let reader = reader(leases).await;
        let targets: Vec<_> = paths.iter().map(|path| Target::Path(path.as_bytes())).collect();
        let began = reactor::time::now();
        for content in reader.read_many(&targets).await {
            assert_eq!(content.unwrap().to_vec(), [5; 300]);
        }
        let took = reactor::time::now().since(began);
        let now = reader.statistics();
        let pages = now.cache.pages as u64;
        // Root, leaves, data: three dependent reads of at most 200 microseconds, and some more for lack of room in
        // the queue. One after another it would be milliseconds.
        assert!(pages > 25 && took.as_micros() < 1000, "{pages} pages in {took:?}");
        assert!(now.reads < 10, "{} reads of data", now.reads);
        assert_eq!(now.content_bytes, 1_200_000);
        let again = reader
            .read_many(&[
                Target::Path(b"nothing"),
                Target::Path(b"00000007"),
                Target::Path(b""),
            ])
            .await;
        let texts: Vec<_> = again
            .iter()
            .map(|one| one.as_ref().err().map(ToString::to_string))
            .collect();
        assert_eq!(
            texts[0].as_deref(),
            Some("nothing: there is no such file or directory")
        );
        assert_eq!(texts[1], None);
        assert!(texts[2].as_ref().unwrap().contains("is a directory"));
    })
    .unwrap();
}

/// Gives a file every 20 s.
struct Slow(u32);

impl ImportSource for Slow {
    type Error = std::convert::Infallible;

    async fn next(&mut self) -> Result<Option<ImportEntry>, Self::Error> {
        reactor::time::sleep(std::time::Duration::from_secs(20)).await;
        self.0 += 1;
        Ok((self.0 <= 5).then(|| ImportEntry {
            path: self.0.to_string().into_bytes(),
            attributes: attributes(1),
            content: ImportContent::File(vec![1; 300]),
        }))
    }

    async fn more(&mut self) -> Result<Vec<u8>, Self::Error> {
        Ok(Vec::new())
    }
}

#[test]
fn an_import_may_last_longer_than_a_lease() {
    let (simulation, host) = world(1);
    on_host(&simulation, host, || async {
        let (_leases, mut writer) = empty().await;
        let done = import(&mut writer, InodeNumber::ROOT, &mut Slow(0), |_| {}).await;
        assert_eq!(done.unwrap().entries, 5);
    })
    .unwrap();
}
