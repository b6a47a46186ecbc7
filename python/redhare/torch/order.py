"""Which samples a rank and a worker get, and when: computed by place, never kept as a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from .._native import Permutation


class Order(Sequence[int]):
    """The positions that one rank reads in one epoch, in order.

    All ranks together read each of ``length`` positions once. Where they do not come out even, ``drop_last`` leaves the last
    ones of the order out, and otherwise the first ones come twice, so that all ranks have the same number
    (`torch.utils.data.DistributedSampler` does the same). Place ``i`` of rank ``r`` is place ``i * world_size + r`` of the
    common order, which `Permutation` computes: any place costs the same, and no memory.
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
    ) -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size} is none; give a rank from 0 to world_size - 1")
        self._length = length
        self._rank = rank
        self._world_size = world_size
        self._permutation = Permutation(length, seed, epoch) if shuffle else None
        self._own = length // world_size if drop_last else -(-length // world_size)

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
        places = range(start * self._world_size + self._rank, stop * self._world_size, step * self._world_size)
        if self._permutation is None:
            return [place % self._length for place in places]
        if places and places.step > 0 and places[-1] < self._length:
            return self._permutation.part(places.start, places[-1] + 1, places.step)
        return [self._permutation[place % self._length] for place in places]
