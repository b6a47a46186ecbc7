//! Copies that the masters want on another disk of this node.

use std::collections::BTreeMap;

use agentlink::{Chunk, ToTarget};
use proto::v1;

use crate::wire::number;

/// What the target was told to move, and what it has said of it.
#[derive(Default)]
pub(super) struct Moving {
    wishes: BTreeMap<Chunk, Wish>,
}

/// A copy that is to be on this disk.
struct Wish {
    disk: u128,
    /// Why it is not there, once that is known; empty if it is.
    answer: Option<String>,
}

impl Moving {
    /// What the masters want now; what the target is to be told of it. What they want no more they have heard of.
    pub(super) fn learn(&mut self, wanted: &[v1::MoveCopy]) -> Vec<ToTarget> {
        let wanted = wanted.iter().filter_map(|wish| {
            let (volume, index) = (wish.volume, wish.index);
            Some((Chunk { volume, index }, number(&wish.disk)?))
        });
        let wanted: BTreeMap<Chunk, u128> = wanted.collect();
        self.wishes
            .retain(|chunk, wish| wanted.get(chunk) == Some(&wish.disk));
        let mut told = Vec::new();
        for (chunk, disk) in wanted {
            self.wishes.entry(chunk).or_insert_with(|| {
                told.push(ToTarget::MoveCopy { chunk, disk });
                Wish { disk, answer: None }
            });
        }
        told
    }

    /// The target has moved a copy, or says why not.
    pub(super) fn moved(&mut self, chunk: Chunk, disk: u128, why: Option<String>) {
        match &why {
            None => tracing::info!(?chunk, "a copy is on another disk now"),
            Some(why) => tracing::warn!(?chunk, why, "a copy stays on its disk"),
        }
        // Why, of one that failed without a word, is no success.
        let said = |why: String| match why.is_empty() {
            true => "its node does not say why".to_owned(),
            false => why,
        };
        if let Some(wish) = self.wishes.get_mut(&chunk).filter(|wish| wish.disk == disk) {
            wish.answer = Some(why.map(said).unwrap_or_default());
        }
    }

    /// What came of them, until the masters want them no more.
    pub(super) fn answers(&self) -> Vec<v1::MovedCopy> {
        let answer = |(chunk, wish): (&Chunk, &Wish)| {
            Some(v1::MovedCopy {
                volume: chunk.volume,
                index: chunk.index,
                disk: wish.disk.to_be_bytes().to_vec(),
                why: wish.answer.clone()?,
            })
        };
        self.wishes.iter().filter_map(answer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: Chunk = Chunk { volume: 3, index: 7 };

    fn wish(disk: u128) -> v1::MoveCopy {
        v1::MoveCopy {
            volume: 3,
            index: 7,
            disk: disk.to_be_bytes().to_vec(),
        }
    }

    fn disks(told: &[ToTarget]) -> Vec<u128> {
        let disk = |told: &ToTarget| match told {
            ToTarget::MoveCopy { chunk: CHUNK, disk } => *disk,
            other => panic!("{other:?}"),
        };
        told.iter().map(disk).collect()
    }

    #[test]
    fn the_target_is_told_once_and_its_answer_is_repeated_until_the_masters_want_it_no_more() {
        let mut moving = Moving::default();
        assert_eq!(disks(&moving.learn(&[wish(1)])), [1]);
        assert_eq!(disks(&moving.learn(&[wish(1)])), []);
        assert_eq!(moving.answers(), []);
        // Of what was wanted before.
        moving.moved(CHUNK, 2, None);
        assert_eq!(moving.answers(), []);
        moving.moved(CHUNK, 1, None);
        for _ in 0..2 {
            assert_eq!(disks(&moving.learn(&[wish(1)])), []);
            let answers = moving.answers();
            assert_eq!((answers.len(), answers[0].why.as_str()), (1, ""));
        }
        assert_eq!(disks(&moving.learn(&[])), []);
        assert_eq!(moving.answers(), []);
        // The same again, and then another disk.
        assert_eq!(disks(&moving.learn(&[wish(1)])), [1]);
        moving.moved(CHUNK, 1, Some(String::new()));
        assert_ne!(moving.answers()[0].why, "", "no success");
        assert_eq!(disks(&moving.learn(&[wish(2)])), [2]);
        assert_eq!(moving.answers(), []);
        // No disk at all.
        let none = v1::MoveCopy::default();
        assert_eq!(disks(&moving.learn(&[none])), []);
    }
}
