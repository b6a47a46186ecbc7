//! Proved here: a listing goes on after any cookie; cold lookups of a batch run side by side and read each page once.

use std::rc::Rc;

use super::support::{leases, medium, on_host, small, world, writer_options};
use crate::lease::memory::LocalLeases;
use crate::{Attributes, InodeNumber, Reader, ReaderOptions, Target, Writer, format};

/// A new file system and its writer.
pub(super) async fn empty() -> (Rc<LocalLeases>, Writer) {
    format(medium(), leases(), "a formatter", &small()).await.unwrap();
    let leases = Rc::new(LocalLeases::new());
    let writer = Writer::open(medium(), leases.clone(), &writer_options()).await;
    (leases, writer.unwrap())
}

pub(super) async fn reader(leases: Rc<LocalLeases>) -> Reader {
    let reader = Reader::open(medium(), leases, &ReaderOptions::default()).await;
    reader.unwrap()
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

#[test]
fn a_listing_has_the_leaves_that_follow_read_ahead_and_scattered_lookups_have_not() {
    let (simulation, host) = world(4);
    on_host(&simulation, host, || async {
        let (leases, mut writer) = empty().await;
        let a = Attributes::default();
        let names: Vec<String> = (0..6000).map(|index| format!("{index:08}")).collect();
        for name in &names {
            let made = writer.create_file(InodeNumber::ROOT, name.as_bytes(), &a, b"");
            made.await.unwrap();
        }
        writer.commit().await.unwrap();
        let scattered = reader(leases.clone()).await;
        for index in 0..names.len() {
            let name = &names[index * 3701 % names.len()];
            scattered.lookup(name.as_bytes()).await.unwrap();
        }
        let pages = scattered.statistics().cache.pages;
        assert_eq!(scattered.statistics().cache.ahead, 0, "nothing here is in order");
        let listed = reader(leases).await;
        let began = reactor::time::now();
        let mut walk = listed.walk(InodeNumber::ROOT);
        let mut found = Vec::new();
        loop {
            let batch = walk.next_batch().await.unwrap();
            if batch.is_empty() {
                break;
            }
            found.extend(batch.into_iter().map(|entry| entry.path));
        }
        let took = reactor::time::now().since(began);
        assert!(found.iter().eq(names.iter().map(String::as_bytes)));
        let now = listed.statistics().cache;
        assert!(
            pages > 20 && now.ahead as usize > pages / 2,
            "{} of {pages}",
            now.ahead
        );
        // One after another they would take more than 50 microseconds each.
        let alone = pages as u128 * 50;
        assert!(took.as_micros() < alone / 2, "{pages} pages in {took:?}");
    })
    .unwrap();
}
