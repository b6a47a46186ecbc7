//! Which reads bring a batch's extents: pure.

use crate::format::extent::Extent;

/// An extent that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What the caller knows it by.
    pub tag: usize,
    /// Where it lies.
    pub extent: Extent,
}

/// One read: bytes `address..address + length`, which hold all of `pieces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Byte address, not yet widened to blocks.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// The pieces in it, by address.
    pub pieces: Vec<Piece>,
}

/// Sorts pieces by address and joins those at most `gap` bytes apart into runs of at most `longest` bytes. A piece
/// longer than that is a run of its own.
pub fn plan(mut pieces: Vec<Piece>, gap: u64, longest: u64) -> Vec<Run> {
    pieces.sort_by_key(|piece| (piece.extent.address, piece.tag));
    let mut runs: Vec<Run> = Vec::new();
    for piece in pieces {
        let (start, length) = (piece.extent.address, u64::from(piece.extent.length));
        let end = start.saturating_add(length);
        if let Some(run) = runs.last_mut() {
            let run_end = run.address + run.length;
            let joined = end.max(run_end) - run.address;
            if start <= run_end.saturating_add(gap) && (joined <= longest || end <= run_end) {
                run.length = joined;
                run.pieces.push(piece);
                continue;
            }
        }
        runs.push(Run {
            address: start,
            length: end - start,
            pieces: vec![piece],
        });
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(tag: usize, address: u64, length: u32) -> Piece {
        let extent = Extent {
            address,
            length,
            checksum: 0,
        };
        Piece { tag, extent }
    }

    #[test]
    fn neighbours_are_joined_and_others_are_not() {
        let pieces = vec![
            piece(0, 5000, 100),
            piece(1, 0, 4000),
            piece(2, 900_000, 10),
            piece(3, 0, 4000),
        ];
        let runs = plan(pieces, 1000, 100_000);
        let shape: Vec<_> = runs
            .iter()
            .map(|run| (run.address, run.length, run.pieces.len()))
            .collect();
        assert_eq!(shape, [(0, 5100, 3), (900_000, 10, 1)]);
        assert_eq!(plan(vec![piece(0, 0, 10), piece(1, 10, 10)], 1000, 15).len(), 2);
    }

    proptest! {
        #[test]
        fn every_piece_is_in_one_run(
            places in proptest::collection::vec((0..100_000u64, 1..9000u32), 0..50),
            gap in 0..5000u64,
            longest in 1..20_000u64,
        ) {
            let pieces: Vec<Piece> =
                places.iter().enumerate().map(|(tag, &(address, length))| piece(tag, address, length)).collect();
            let mut seen = vec![0; pieces.len()];
            for run in plan(pieces, gap, longest) {
                let alone = run.pieces.len() == 1;
                let covered = run.pieces.iter().any(|p| u64::from(p.extent.length) == run.length);
                prop_assert!(run.length <= longest || alone || covered);
                for piece in &run.pieces {
                    seen[piece.tag] += 1;
                    prop_assert!(piece.extent.address >= run.address);
                    prop_assert!(piece.extent.end().unwrap() <= run.address + run.length);
                }
            }
            prop_assert!(seen.iter().all(|&count| count == 1));
        }
    }
}
