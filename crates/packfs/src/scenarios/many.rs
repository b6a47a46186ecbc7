//! Proved here: where names, content and attributes come, go and move by long stretches, in an index of several levels, the file system has what a map in
//! memory has, before and after commits, for who opens it anew and for readers, and verifies clean. The other models have a few hundred inodes,
//! which are gone one by one: no inner page of theirs ever loses its first child.

use std::collections::BTreeMap;
use std::rc::Rc;

use foundation::Random;

use super::files_test::options;
use super::support::{NEW, NOW, ROOT, leases, on_host, sized_medium, small, world};
use crate::files::{FileOptions, FileSystem, RenameMode, SetExtended};
use crate::format::entry::INLINE_BYTES_MAX;
use crate::lease::memory::LocalLeases;
use crate::{InodeNumber, Medium, Reader, ReaderOptions, VerifyOptions, format, verify};

const VOLUME_BYTES: u64 = 192 << 20;
const DIRECTORIES: u64 = 3;
const STEPS: u32 = 40;
const ATTRIBUTE: &[u8] = b"user.many";

/// A file as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    inode: InodeNumber,
    /// This byte, so many times.
    content: (u8, usize),
    attribute: Option<(u8, usize)>,
}

struct Many {
    medium: Medium,
    leases: Rc<LocalLeases>,
    /// None while it is opened anew.
    files: Option<FileSystem>,
    random: Random,
    directories: Vec<InodeNumber>,
    /// By directory and name.
    known: BTreeMap<(usize, Vec<u8>), Known>,
    /// Of names: how many there can be in a directory, and what all begin with.
    span: u64,
    before: usize,
}

impl Many {
    fn name(&self, number: u64) -> Vec<u8> {
        let behind = "x".repeat((number * 7 % 50) as usize);
        format!("{}{number:05}{behind}", "n".repeat(self.before)).into_bytes()
    }

    /// Some names in a row.
    fn stretch(&mut self) -> Vec<Vec<u8>> {
        let first = self.random.below(self.span);
        let end = self.span.min(first + 1 + self.random.below(self.span / 3));
        (first..end).map(|number| self.name(number)).collect()
    }

    async fn step(&mut self) {
        let directory = self.random.below(DIRECTORIES) as usize;
        match self.random.below(12) {
            0..4 => self.make(directory).await,
            4..7 => self.remove(directory).await,
            7 => self.move_from(directory).await,
            8 => self.describe(directory).await,
            9 => self.files.as_mut().unwrap().commit().await.map(drop).unwrap(),
            10 => self.open_anew().await,
            _ => {
                let name = format!("snapshot {}", self.random.below(2)).into_bytes();
                if self
                    .files
                    .as_mut()
                    .unwrap()
                    .create_snapshot(&name, NOW)
                    .await
                    .is_err()
                {
                    self.files.as_mut().unwrap().delete_snapshot(&name).await.unwrap();
                }
            }
        }
    }

    async fn make(&mut self, directory: usize) {
        // Mostly what stands beside its inode.
        let longest = match self.random.below(4) {
            0 => 20_000,
            _ => INLINE_BYTES_MAX as u64,
        };
        for name in self.stretch() {
            if self.known.contains_key(&(directory, name.clone())) || self.random.chance(1, 8) {
                continue;
            }
            let parent = self.directories[directory];
            let inode = self
                .files
                .as_mut()
                .unwrap()
                .create(parent, &name, NEW, NOW)
                .await
                .unwrap()
                .number;
            let content = (
                self.random.below(256) as u8,
                self.random.below(longest + 1) as usize,
            );
            let bytes = vec![content.0; content.1];
            self.files
                .as_mut()
                .unwrap()
                .write(inode, 0, &bytes, NOW)
                .await
                .unwrap();
            let known = Known {
                inode,
                content,
                attribute: None,
            };
            self.known.insert((directory, name), known);
        }
    }

    async fn remove(&mut self, directory: usize) {
        for name in self.stretch() {
            if self.known.remove(&(directory, name.clone())).is_some() {
                let parent = self.directories[directory];
                self.files
                    .as_mut()
                    .unwrap()
                    .unlink(parent, &name, NOW)
                    .await
                    .unwrap();
            }
        }
    }

    /// Into another directory, over what is there.
    async fn move_from(&mut self, directory: usize) {
        let other = self.random.below(DIRECTORIES) as usize;
        let (from, to) = (self.directories[directory], self.directories[other]);
        for name in self.stretch() {
            if other == directory || self.random.chance(1, 2) {
                continue;
            }
            if let Some(known) = self.known.remove(&(directory, name.clone())) {
                let moved =
                    self.files
                        .as_mut()
                        .unwrap()
                        .rename((from, &name), (to, &name), RenameMode::Replace, NOW);
                moved.await.unwrap();
                self.known.insert((other, name), known);
            }
        }
    }

    /// Sets attributes, or takes them away.
    async fn describe(&mut self, directory: usize) {
        for name in self.stretch() {
            let (sets, value) = (self.random.chance(1, 2), self.random.below(256) as u8);
            let length = self.random.below(1500) as usize;
            let Some(known) = self.known.get_mut(&(directory, name)) else {
                continue;
            };
            if sets {
                let bytes = vec![value; length];
                let set = self.files.as_mut().unwrap().set_extended(
                    known.inode,
                    ATTRIBUTE,
                    &bytes,
                    SetExtended::Always,
                    NOW,
                );
                set.await.unwrap();
                known.attribute = Some((value, length));
            } else if known.attribute.take().is_some() {
                let removed = self
                    .files
                    .as_mut()
                    .unwrap()
                    .remove_extended(known.inode, ATTRIBUTE, NOW)
                    .await;
                removed.unwrap();
            }
        }
    }

    async fn open_anew(&mut self) {
        self.files.as_mut().unwrap().commit().await.unwrap();
        let all = VerifyOptions::default();
        let report = verify(&self.medium, self.leases.clone(), &all).await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
        self.files.take().unwrap().close().await.unwrap();
        self.files = Some(open(&self.medium, &self.leases).await);
    }

    /// That the names are those, in order.
    async fn compare_names(&self) {
        for (index, &directory) in self.directories.iter().enumerate() {
            let mut listed = Vec::new();
            let mut last: Option<(u64, Vec<u8>)> = None;
            loop {
                let (after, name) = (last.as_ref().map(|(cookie, _)| *cookie), last.as_ref());
                let name = name.map(|(_, name)| &name[..]);
                let some = self
                    .files
                    .as_ref()
                    .unwrap()
                    .read_directory(directory, after, name, 500)
                    .await
                    .unwrap();
                let Some(end) = some.last() else { break };
                last = Some((end.cookie, end.name.clone()));
                listed.extend(some.into_iter().map(|entry| (entry.name, entry.inode)));
            }
            let known = self.known.range((index, Vec::new())..(index + 1, Vec::new()));
            let known: Vec<_> = known
                .map(|((_, name), known)| (name.clone(), known.inode))
                .collect();
            assert!(
                listed == known,
                "{} names are listed, and {} known",
                listed.len(),
                known.len()
            );
        }
    }

    /// What a reader finds in each file.
    async fn compare_content(&self) {
        let reader = Reader::open(
            self.medium.clone(),
            self.leases.clone(),
            &ReaderOptions::default(),
        )
        .await;
        let reader = reader.unwrap();
        for ((directory, name), known) in &self.known {
            let path = [&[b'a' + *directory as u8, b'/'], &name[..]].concat();
            let file = reader.open_file(&path).await.unwrap();
            let (byte, length) = known.content;
            let found = reader.read(&file, 0, length as u64 + 1).await.unwrap().to_vec();
            assert!(found == vec![byte; length], "{directory}, {name:?}");
            let attribute = reader.extended(known.inode, ATTRIBUTE).await.unwrap();
            let expected = known.attribute.map(|(byte, length)| vec![byte; length]);
            assert_eq!(attribute, expected, "{directory}, {name:?}");
        }
        reader.close().await.unwrap();
    }
}

async fn open(medium: &Medium, leases: &Rc<LocalLeases>) -> FileSystem {
    let settings = FileOptions {
        dirty_bytes_max: 4 << 20,
        ..options()
    };
    FileSystem::open(medium.clone(), leases.clone(), &settings)
        .await
        .unwrap()
}

async fn come_and_go(seed: u64) {
    let mut random = Random::from_seed(seed);
    let medium = sized_medium(VOLUME_BYTES);
    format(medium.clone(), leases(), "a formatter", &small())
        .await
        .unwrap();
    let leases = Rc::new(LocalLeases::new());
    let mut files = open(&medium, &leases).await;
    let mut directories = Vec::new();
    for name in 0..DIRECTORIES {
        let made = files.mkdir(ROOT, &[b'a' + name as u8], NEW, NOW).await;
        directories.push(made.unwrap().number);
    }
    let (span, before) = (1 << random.between(8, 12), random.below(150) as usize);
    let mut many = Many {
        medium,
        leases,
        files: Some(files),
        random,
        directories,
        known: BTreeMap::new(),
        span,
        before,
    };
    for _ in 0..STEPS {
        many.step().await;
        many.compare_names().await;
    }
    many.open_anew().await;
    many.compare_names().await;
    many.compare_content().await;
}

#[test]
fn what_comes_and_goes_by_stretches_is_what_was_written() {
    for seed in foundation::seeds::from_environment(8) {
        let (simulation, host) = world(seed);
        let done = on_host(&simulation, host, move || async move { come_and_go(seed).await });
        assert!(done.is_some(), "seed {seed}");
    }
}
