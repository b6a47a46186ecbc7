//! The pages of a tree, each once, in the order of its keys.

use super::{Problem, Progress, Tell};
use crate::format::page::Page;
use crate::format::superblock::Superblock;
use crate::format::{PAGE_BYTES_U64, PagePointer};
use crate::io::Medium;

/// A page to visit, with what its parent promises about it.
pub(super) struct Visit {
    pub(super) pointer: PagePointer,
    level: Option<u8>,
    /// First key it may hold, and the first it may not.
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

impl Visit {
    /// Whether a key may stand in the page.
    pub(super) fn may_hold(&self, key: &[u8]) -> bool {
        *key >= self.low[..] && self.high.as_ref().is_none_or(|high| *key < high[..])
    }
}

/// Who wants to see pages.
pub(super) trait Visitor {
    /// A pointer leads here.
    fn pointer(&mut self, pointer: PagePointer);

    /// A page is damaged, or stands where it may not; what is below it is left out.
    fn problem(&mut self, problem: Problem);

    /// A leaf.
    fn leaf(&mut self, page: &Page, visit: &Visit);
}

/// Shows every page; gives how many could be read. Holds one page, and the keys of those that wait beside the way down to it.
pub(super) async fn walk(
    medium: &Medium,
    superblock: &Superblock,
    visitor: &mut impl Visitor,
    tell: &mut Tell<'_>,
) -> u64 {
    let mut waiting = vec![Visit {
        pointer: superblock.root,
        level: None,
        low: Vec::new(),
        high: None,
    }];
    // More pages than the volume has mean a circle.
    let mut left = superblock.volume_bytes / PAGE_BYTES_U64;
    let mut done = 0;
    while let Some(visit) = waiting.pop() {
        let pointer = visit.pointer;
        let cell = |what| Problem::Cell {
            page: pointer.page,
            what,
        };
        if left == 0 {
            visitor.problem(cell("the tree has more pages than the volume"));
            break;
        }
        left -= 1;
        visitor.pointer(pointer);
        let read = medium.read_page(pointer, |bytes| Page::parse(bytes, pointer));
        let page = match read.await {
            Ok(page) => page,
            Err(error) => {
                visitor.problem(Problem::Page(error));
                continue;
            }
        };
        done += 1;
        tell(Progress {
            stage: "reading the index",
            done,
            total: 0,
        });
        if visit.level.is_some_and(|level| level != page.level()) {
            visitor.problem(cell("it stands at the wrong level"));
        } else if page.level() == 0 {
            visitor.leaf(&page, &visit);
        } else {
            waiting.extend(children(&page, &visit).into_iter().rev());
        }
    }
    done
}

fn children(page: &Page, visit: &Visit) -> Vec<Visit> {
    let child = |index: usize| {
        // The first child also takes keys below its separator.
        let low = if index == 0 {
            visit.low.clone()
        } else {
            page.key(index)
        };
        let high = match index + 1 < page.len() {
            true => Some(page.key(index + 1)),
            false => visit.high.clone(),
        };
        Visit {
            pointer: page.child(index),
            level: Some(page.level() - 1),
            low,
            high,
        }
    };
    (0..page.len()).map(child).collect()
}
