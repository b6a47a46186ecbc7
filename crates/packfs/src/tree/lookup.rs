//! Finding one key.

use std::rc::Rc;

use super::node::Child;
use super::{Tree, check_level};
use crate::error::TreeError;
use crate::format::page::Page;

impl Tree {
    /// The value of `key`.
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, TreeError> {
        let mut child = self.root;
        loop {
            match child {
                Child::Changed(id) => {
                    let node = self.nodes.get(id);
                    if node.level == 0 {
                        return Ok(node.search(key).ok().map(|index| node.value(index).to_vec()));
                    }
                    child = node.child(node.child_index(key));
                }
                Child::Clean(_) => {
                    let leaf = self.leaf(child, key).await?;
                    return Ok(leaf.search(key).ok().map(|index| leaf.value(index).to_vec()));
                }
            }
        }
    }

    /// What `look` makes of the value of `key`, if every page on the way is in memory; `None` if one is not.
    pub(crate) fn look_cached<T>(&self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> T) -> Option<T> {
        let Child::Clean(mut pointer) = self.root else {
            return None;
        };
        let mut level = None;
        loop {
            let page = self.cache.get(pointer)?;
            check_level(&page, pointer, level).ok()?;
            if page.level() == 0 {
                return Some(look(page.search(key).ok().map(|index| page.value(index))));
            }
            level = Some(page.level());
            pointer = page.child(page.child_index(key));
        }
    }

    async fn leaf(&self, from: Child, key: &[u8]) -> Result<Rc<Page>, TreeError> {
        let Child::Clean(mut pointer) = from else {
            unreachable!("the search goes on from a page on the volume")
        };
        let mut level = None;
        loop {
            let page = self.load(pointer).await?;
            check_level(&page, pointer, level)?;
            if page.level() == 0 {
                return Ok(page);
            }
            level = Some(page.level());
            pointer = page.child(page.child_index(key));
        }
    }
}
