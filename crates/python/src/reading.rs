//! Contents of many files, and parts of one, in batches that memory holds.

use std::rc::Rc;
use std::sync::Arc;

use packfs::{Kind, OpenFile, Target};

use crate::bytes::Bytes;
use crate::failure::Failure;
use crate::files::Files;
use crate::opened::Opened;

/// Files whose names are looked up together.
const LOOKED_UP_AT_ONCE: usize = 1024;

/// What is to be read.
pub(crate) enum Wanted {
    /// By path from the data set's root.
    Paths(Vec<Vec<u8>>),
    /// By position.
    Positions(Arc<Files>, Vec<usize>),
}

/// A file that was found: its path here and what the reader knows it by.
struct Found {
    path: Vec<u8>,
    size_bytes: u64,
    way: Way,
}

enum Way {
    Opened(OpenFile),
    Path(Vec<u8>),
}

impl Found {
    fn target(&self) -> Target<'_> {
        match &self.way {
            Way::Opened(file) => Target::File(file),
            Way::Path(path) => Target::Path(path),
        }
    }
}

/// Each file's content, in the order asked for.
pub(crate) type Contents = Vec<Result<Bytes, Failure>>;

/// The whole content of each file, in the order asked for. A file that fails fails alone.
pub(crate) async fn read_many(opened: Rc<Opened>, wanted: Wanted) -> Contents {
    let count = match &wanted {
        Wanted::Paths(paths) => paths.len(),
        Wanted::Positions(_, positions) => positions.len(),
    };
    let mut contents = Vec::with_capacity(count);
    for first in (0..count).step_by(LOOKED_UP_AT_ONCE) {
        let some = first..(first + LOOKED_UP_AT_ONCE).min(count);
        let found = match &wanted {
            Wanted::Paths(paths) => look_up(&opened, &paths[some]).await,
            Wanted::Positions(files, positions) => {
                let positions = positions[some].iter();
                positions.map(|&at| known(&opened, files, at)).collect()
            }
        };
        read_found(&opened, found, &mut contents).await;
    }
    contents
}

/// Looks names up side by side: those that miss the cache share the pages they read.
async fn look_up(opened: &Rc<Opened>, paths: &[Vec<u8>]) -> Vec<Result<Found, Failure>> {
    let start = |path: &Vec<u8>| {
        let (opened, path) = (opened.clone(), path.clone());
        reactor::spawn(async move { look_up_one(&opened, path).await })
    };
    let tasks: Vec<_> = paths.iter().map(start).collect();
    let mut found = Vec::with_capacity(tasks.len());
    for task in tasks {
        found.push(task.await.unwrap_or_else(|| Err(Failure::closed())));
    }
    found
}

async fn look_up_one(opened: &Opened, path: Vec<u8>) -> Result<Found, Failure> {
    let file = opened.open_file(&path).await?;
    if file.inode.kind == Kind::Symlink {
        // Its content is the target's name, which nobody takes for a sample.
        let text = "is a symbolic link, which reading does not follow; read what readlink() names";
        return Err(Failure::new(libc::ELOOP, text).at(&path));
    }
    Ok(Found {
        size_bytes: file.inode.size,
        path,
        way: Way::Opened(file),
    })
}

fn known(opened: &Opened, files: &Files, position: usize) -> Result<Found, Failure> {
    match (files.path(position), files.size(position)) {
        (Some(path), Some(size_bytes)) => Ok(Found {
            path: path.to_vec(),
            size_bytes,
            way: Way::Path(opened.full(path)),
        }),
        _ => Err(Failure::new(
            libc::EINVAL,
            format!("there is no position {position}; use one below len()"),
        )),
    }
}

/// Reads what was found, in batches of [`Opened::batch_bytes`] at most; a larger file in pieces.
async fn read_found(opened: &Opened, found: Vec<Result<Found, Failure>>, contents: &mut Contents) {
    let mut at = 0;
    while at < found.len() {
        let begin = at;
        let mut total = 0;
        while let Some(next) = found.get(at) {
            let size = next.as_ref().map_or(0, |found| found.size_bytes);
            if total + size > opened.batch_bytes {
                break;
            }
            (total, at) = (total + size, at + 1);
        }
        if at > begin {
            read_batch(opened, &found[begin..at], contents).await;
        } else if let Ok(large) = &found[at] {
            contents.push(read_large(opened, large).await);
            at += 1;
        }
    }
}

async fn read_batch(opened: &Opened, found: &[Result<Found, Failure>], contents: &mut Contents) {
    let _batch = opened.batches.acquire().await;
    opened.lending.reclaim();
    let good = found.iter().flatten();
    let targets: Vec<Target<'_>> = good.map(Found::target).collect();
    let mut read = opened.reader.read_many(&targets).await.into_iter();
    for found in found {
        contents.push(match found {
            Err(failure) => Err(failure.clone()),
            Ok(found) => match read.next() {
                Some(Ok(content)) => Ok(opened.lending.lend(content)),
                Some(Err(error)) => Err(Failure::from(error).at(&found.path)),
                None => Err(Failure::closed()),
            },
        });
    }
}

async fn read_large(opened: &Opened, found: &Found) -> Result<Bytes, Failure> {
    match &found.way {
        Way::Opened(file) => read_part(opened, file, &found.path, 0, found.size_bytes).await,
        Way::Path(_) => {
            let file = opened.open_file(&found.path).await?;
            read_part(opened, &file, &found.path, 0, found.size_bytes).await
        }
    }
}

/// Bytes `offset..offset + length` of a file, or as many as there are.
pub(crate) async fn read_range(
    opened: Rc<Opened>,
    path: Vec<u8>,
    offset: u64,
    length: u64,
) -> Result<Bytes, Failure> {
    let found = look_up_one(&opened, path).await?;
    let length = length.min(found.size_bytes.saturating_sub(offset));
    match &found.way {
        Way::Opened(file) => read_part(&opened, file, &found.path, offset, length).await,
        Way::Path(_) => Err(Failure::closed()),
    }
}

async fn read_part(
    opened: &Opened,
    file: &OpenFile,
    path: &[u8],
    offset: u64,
    length: u64,
) -> Result<Bytes, Failure> {
    let fail = |error| Failure::from(error).at(path);
    let end = offset.saturating_add(length);
    if length <= opened.batch_bytes {
        let _batch = opened.batches.acquire().await;
        opened.lending.reclaim();
        let content = opened.reader.read(file, offset, length).await.map_err(fail)?;
        return Ok(opened.lending.lend(content));
    }
    let (mut whole, mut at) = (Vec::new(), offset);
    while at < end {
        let _batch = opened.batches.acquire().await;
        let piece = opened
            .reader
            .read(file, at, opened.batch_bytes.min(end - at))
            .await
            .map_err(fail)?;
        if piece.is_empty() {
            break;
        }
        // As it comes: the length is the index's word.
        let room = whole.try_reserve(piece.len());
        room.map_err(|error| {
            Failure::new(libc::ENOMEM, format!("{error}; read the file in parts")).at(path)
        })?;
        for part in piece.parts() {
            whole.extend_from_slice(part);
        }
        at += piece.len() as u64;
    }
    Ok(Bytes::Own(whole.into_boxed_slice()))
}
