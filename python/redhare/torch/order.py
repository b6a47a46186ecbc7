"""Which samples a rank and a worker get, and when: computed by place, never kept as a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from .._native import Permutation, Windows


class Order(Sequence[int]):
    """The positions that one rank reads in one epoch, in order.

    All ranks together read each of ``length`` positions once. Where they do not come out even, ``drop_last`` leaves the last
    ones of the order out, and otherwise the first ones come twice, so that all ranks have the same number
    (`torch.utils.data.DistributedSampler` does the same). Any place costs the same, and no memory.

    Without a ``window``, place ``i`` of rank ``r`` is place ``i * world_size + r`` of the common order, which `Permutation` computes.
    With one, ``block`` samples that lie side by side stay together: blocks come in random order, each rank has a range of them, and
    every ``window`` samples are in random order among each other (`Windows`). That reads in long pieces, which disks like, and each
    window has samples from ``window / block`` places of the data set: a worse shuffle than the whole, as a buffer behind shuffled
    tars gives it.
    """

    def __init__(
        self,
        length: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        window: int = 0,
        block: int = 64,
    ) -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size} is none; give a rank from 0 to world_size - 1")
        if window < 0 or block < 1:
            raise ValueError(f"window is {window} and block {block}; give a window of 0 at least, and a block of 1")
        if window and not shuffle:
            raise ValueError(f"a window of {window} samples is shuffled; leave it out, or do not give shuffle=False")
        self._length = length
        self._rank = rank
        self._world_size = world_size
        self._seeds = seed, epoch
        self._window, self._block = window, block
        self._own = length // world_size if drop_last else -(-length // world_size)
        self._windows = self.share(0, 1) if window else None
        self._permutation = Permutation(length, seed, epoch) if shuffle and not window else None

    def share(self, share: int, shares: int) -> Windows:
        """One of several equal ranges of the rank's part, in windows of its own."""
        begin = self._rank * self._own
        start, stop = (begin + self._own * part // shares for part in (share, share + 1))
        return Windows(self._length, start, stop, self._block, self._window, *self._seeds)

    def __len__(self) -> int:
        return self._own

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            return self._part(*place.indices(self._own))
        if not -self._own <= place < self._own:
            raise IndexError(f"there is no place {place} among {self._own}")
        place %= self._own
        return self._part(place, place + 1, 1)[0]

    def _part(self, start: int, stop: int, step: int) -> list[int]:
        if self._windows is not None:
            if step > 0:
                return self._windows.part(start, max(start, stop), step)
            return [self._windows[place] for place in range(start, stop, step)]
        # The rank moves the end along with the start: a range that goes down ends where this rank's place would be, too.
        start, stop, step = (place * self._world_size for place in (start, stop, step))
        places = range(start + self._rank, stop + self._rank, step)
        if self._permutation is None:
            return [place % self._length for place in places]
        if places and places.step > 0 and places[-1] < self._length:
            return self._permutation.part(places.start, places[-1] + 1, places.step)
        return [self._permutation[place % self._length] for place in places]
