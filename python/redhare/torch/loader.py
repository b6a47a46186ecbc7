"""Batches for a training loop, which can stop and go on anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.utils.data
from torch.utils.data import default_collate

from .files import Files
from .order import Order


class _Batches(torch.utils.data.Dataset):
    """Whole batches by the lists of their samples: what a worker makes of one list."""

    def __init__(self, files: Files, collate: Callable[[list[Any]], Any]) -> None:
        self.files = files
        self.collate = collate

    def __getitem__(self, indices: list[int]) -> Any:
        return self.collate(self.files.__getitems__(indices))


class _Lists(torch.utils.data.Sampler):
    """The lists of an epoch's batches, from one of them on; which ones is set before each iteration."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.order: Sequence[int] = ()
        self.batches = range(0)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        order = self.order
        for batch in self.batches:
            yield list(order[batch * self.batch_size : (batch + 1) * self.batch_size])


def _as_it_is(batch: Any) -> Any:
    return batch


class Loader:
    """Iterates over one epoch's batches; each further iteration is the next epoch.

    The order is that of `Order`: it depends on ``seed`` and the epoch alone, and is divided among ``world_size`` ranks.
    ``num_workers`` processes read and decode; at most ``num_workers * prefetch_factor`` batches are ahead of the loop, which
    bounds memory. With a ``block`` above 1 a batch is made of that many samples that lie side by side, from places in random order,
    which are read in longer pieces: faster where the disk does not give as much of small reads as of long ones, and a worse shuffle
    (neighbours are mostly of one class; `Stream` with a ``window`` mixes more). Other arguments go to `torch.utils.data.DataLoader` (``persistent_workers``, ``multiprocessing_context``,
    ``pin_memory`` and so on).

    ``state_dict()`` counts the batches that the loop has got, not those read ahead. After ``load_state_dict`` the next
    iteration goes on with the batch after them, without reading those before. A loop that was left early is over: the next
    iteration is the next epoch.
    """

    def __init__(
        self,
        files: Files,
        batch_size: int = 1,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        block: int = 1,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        **options: Any,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; give at least 1")
        if block < 1 or (block > 1 and not shuffle):
            raise ValueError(f"block is {block}; give at least 1, and more than that only with shuffle=True")
        self.files = files
        self.batch_size = batch_size
        self._shuffle, self._seed = shuffle, seed
        self._rank, self._world_size, self._drop_last = rank, world_size, drop_last
        self._block = block
        self._lists = _Lists(batch_size)
        # One for all epochs, so that workers may stay (persistent_workers).
        self._batches = torch.utils.data.DataLoader(
            _Batches(files, collate_fn),
            # Each "sample" is a whole batch, so that a worker reads it with one call in any version of PyTorch.
            batch_size=None,
            sampler=self._lists,
            collate_fn=_as_it_is,
            num_workers=num_workers,
            **options,
        )
        self._epoch = 0
        self._given = 0
        self._begun = False
        self._order(0)

    def _order(self, epoch: int) -> Order:
        return Order(
            len(self.files),
            shuffle=self._shuffle,
            seed=self._seed,
            epoch=epoch,
            rank=self._rank,
            world_size=self._world_size,
            drop_last=self._drop_last,
            window=self.batch_size if self._block > 1 else 0,
            block=self._block,
        )

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        samples = len(self._order(self._epoch))
        return samples // self.batch_size if self._drop_last else -(-samples // self.batch_size)

    @property
    def epoch(self) -> int:
        """The epoch of the present iteration or the last one; before the first, that of the first."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch's, from its beginning."""
        self._epoch, self._given, self._begun = epoch, 0, False

    def __iter__(self) -> Iterator[Any]:
        if self._begun or self._given >= len(self):
            self._epoch, self._given = self._epoch + 1, 0
        self._begun = True
        self._lists.order = self._order(self._epoch)
        self._lists.batches = range(self._given, len(self))
        for batch in self._batches:
            self._given += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is. Plain numbers: store it with the model's."""
        return {
            "epoch": self._epoch,
            "batches": self._given,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "samples": len(self.files),
            "batch_size": self.batch_size,
            "world_size": self._world_size,
            "drop_last": self._drop_last,
            "block": self._block,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was called.

        Raises ValueError if something that decides the order is another now.
        """
        now = self.state_dict()
        for name in ("seed", "shuffle", "samples", "batch_size", "world_size", "drop_last", "block"):
            # A state of an earlier release has no block, which was 1.
            before = state.get(name, 1) if name == "block" else state[name]
            if before != now[name]:
                raise ValueError(
                    f"the state was taken with {name}={before}, and this loader has {now[name]}: the order would be "
                    "another; make the loader as it was, or begin an epoch anew with set_epoch"
                )
        self._epoch, self._given, self._begun = state["epoch"], state["batches"], False
