"""An iterable data set that reads ahead by itself, within a bound."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch.utils.data

from .._native import Windows
from ..dataset import PendingRead
from .files import Files
from .order import Order

READ_TOGETHER_MAX = 64
"""Files that are asked for with one call, at most."""


class _Piece(NamedTuple):
    """A part of a window that is asked for with one call."""

    window: int
    places: list[int]
    indices: list[int]
    total: int
    last: bool
    """Whether it completes the window."""


class Stream(torch.utils.data.IterableDataset):
    """The samples of a map-style data set, one after another, in the order of `Order`.

    Each rank, and each worker of a DataLoader within it, gets its part; together they give every sample of the rank once. While
    one is used the next are read: at most ``prefetch_bytes`` of content is asked for and not yet given (one larger file is
    read alone). Each further iteration is the next epoch; `set_epoch` chooses it, which reaches workers that start
    afterwards. Workers that start anew for each epoch, as those of a DataLoader do without ``persistent_workers``, know of none
    before: call `set_epoch` before each.

    With a ``window`` the shuffle is one of blocks (`Order`), and reading is in long pieces: several times as fast where files are small
    and the disk does not give as much of small reads as of long ones. ``window`` samples are in memory and mixed while the next are
    read, so ``prefetch_bytes`` has to hold two windows, or reading waits (one at least, or that is a ValueError). Each worker has
    windows of its own.

    ``state_dict`` and ``load_state_dict`` are for use in one process, or by a loader that calls them in its workers (torchdata's
    StatefulDataLoader). Where the workers of a DataLoader iterate, ``state_dict`` in its parent is a RuntimeError.
    """

    def __init__(
        self,
        files: Files,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        window: int = 0,
        block: int = 64,
        prefetch_bytes: int = 32 << 20,
    ) -> None:
        if prefetch_bytes < 1:
            raise ValueError(f"prefetch_bytes is {prefetch_bytes}; give at least 1")
        self.files = files
        self.prefetch_bytes = prefetch_bytes
        self._settings: dict[str, Any] = {
            "shuffle": shuffle,
            "seed": seed,
            "rank": rank,
            "world_size": world_size,
            "drop_last": drop_last,
            "window": window,
            "block": block,
        }
        # What is no order is refused here and not in a worker.
        Order(len(files), **self._settings)
        self._epoch = 0
        self._given = 0
        self._begun = False
        # Which worker, of how many, the position that was loaded is one of.
        self._loaded_by: tuple[int, int] | None = None
        # Whether workers iterate, so that only they know how far it is. In memory that all of them share.
        self._elsewhere = torch.zeros(1, dtype=torch.uint8).share_memory_()
        self.ahead_bytes_max = 0
        """The most content that was asked for and not yet given, in bytes, so far."""

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch's, from its beginning."""
        self._epoch, self._given, self._begun, self._loaded_by = epoch, 0, False, None
        if torch.utils.data.get_worker_info() is None:
            self._elsewhere.zero_()

    def _order(self) -> Order:
        return Order(len(self.files), epoch=self._epoch, **self._settings)

    def __len__(self) -> int:
        """Samples of the rank in an epoch."""
        return len(self._order())

    def _shares(self) -> tuple[int, int]:
        """This worker's number, and how many there are."""
        worker = torch.utils.data.get_worker_info()
        return (0, 1) if worker is None else (worker.id, worker.num_workers)

    def __iter__(self) -> Iterator[Any]:
        self._elsewhere.fill_(torch.utils.data.get_worker_info() is not None)
        share, shares = self._shares()
        loaded_by = self._loaded_by or (share, shares)
        if not self._begun and self._given and loaded_by != (share, shares):
            raise RuntimeError(
                f"the position that was loaded is that of worker {loaded_by[0]} of {loaded_by[1]}, and worker {share} of "
                f"{shares} would skip samples with it: load it in the workers (torchdata's StatefulDataLoader does), iterate "
                "with as many as before, or use redhare.torch.Loader"
            )
        if self._begun or self._given >= self._own(share, shares):
            self._epoch, self._given = self._epoch + 1, 0
        self._begun = True
        order = self._order()
        if self._settings["window"]:
            return self._mixed(order.share(share, shares))
        # Positions of the worker's samples within the rank's order; those that were given are skipped, not read.
        return self._in_order(order, range(share, len(order), shares)[self._given :])

    def _own(self, share: int, shares: int) -> int:
        """Samples of a worker."""
        if self._settings["window"]:
            return len(self._order().share(share, shares))
        return len(range(share, len(self), shares))

    def _in_order(self, order: Order, places: range) -> Iterator[Any]:
        asked: deque[tuple[PendingRead, list[int], int]] = deque()
        at = ahead = 0
        while at < len(places) or asked:
            while at < len(places) and (not asked or ahead < self.prefetch_bytes):
                indices, total = self._next(order, places, at, self.prefetch_bytes - ahead)
                if not indices:
                    break
                positions = [self.files._position(index) for index in indices]
                asked.append((self.files.data.begin_read_many(positions), indices, total))
                at, ahead = at + len(indices), ahead + total
                self.ahead_bytes_max = max(self.ahead_bytes_max, ahead)
            pending, indices, total = asked.popleft()
            contents = pending.result()
            contents.reverse()
            for index in indices:
                # The list lets go of each content, so that its buffer can come back.
                sample = self.files.sample(index, contents.pop())
                self._given += 1
                yield sample
            ahead -= total

    def _mixed(self, windows: Windows) -> Iterator[Any]:
        """Reads window after window in the order in which samples lie, and gives each when the whole of it is here."""
        ahead = 0
        first, skipped = divmod(self._given, self._settings["window"])

        def reads(number: int) -> Iterator[_Piece]:
            """What to ask for of a window, in turn; what was given before is not read."""
            samples, given = windows.window(number)
            given = given[skipped:] if number == first else given
            wanted = sorted(given)
            together: list[int] = []
            total = 0
            for at, place in enumerate(wanted):
                together.append(samples[place])
                total += self.files.size(samples[place])
                if at + 1 == len(wanted) or len(together) == READ_TOGETHER_MAX or total * 4 >= self.prefetch_bytes:
                    yield _Piece(number, wanted[at + 1 - len(together) : at + 1], together, total, at + 1 == len(wanted))
                    together, total = [], 0

        pieces = (piece for number in range(first, windows.count()) for piece in reads(number))
        piece = next(pieces, None)
        asked: deque[tuple[PendingRead, _Piece]] = deque()

        def ask() -> None:
            """Asks for what there is room for."""
            nonlocal ahead, piece
            while piece is not None and (ahead == 0 or ahead + piece.total <= self.prefetch_bytes):
                positions = [self.files._position(index) for index in piece.indices]
                asked.append((self.files.data.begin_read_many(positions), piece))
                ahead += piece.total
                self.ahead_bytes_max = max(self.ahead_bytes_max, ahead)
                piece = next(pieces, None)

        for number in range(first, windows.count()):
            contents: dict[int, tuple[int, Any]] = {}
            whole = False
            while not whole:
                ask()
                if not asked:
                    raise ValueError(
                        f"a window of {self._settings['window']} samples takes more than prefetch_bytes, {self.prefetch_bytes}: "
                        f"{ahead} are there and {piece.total if piece else 0} more do not fit; give a smaller window, or more"
                    )
                pending, got = asked.popleft()
                for place, index, content in zip(got.places, got.indices, pending.result()):
                    contents[place] = index, content
                whole = got.last
            given = windows.window(number)[1]
            for place in given[skipped:] if number == first else given:
                index, content = contents.pop(place)
                ahead -= self.files.size(index)
                sample = self.files.sample(index, content)
                del content
                self._given += 1
                ask()
                yield sample

    def _next(self, order: Order, places: range, at: int, room: int) -> tuple[list[int], int]:
        """Samples to ask for together, for which there is room, and their bytes; one in any case where nothing is ahead."""
        some = places[at : at + READ_TOGETHER_MAX]
        indices: list[int] = []
        total = 0
        # A quarter of the bound at once, so that something is always on its way.
        limit = max(self.prefetch_bytes // 4, 1)
        for index in order[some.start : some.stop : some.step]:
            size = self.files.size(index)
            empty = room == self.prefetch_bytes and not indices
            if not empty and (total + size > room or (indices and total + size > limit)):
                break
            indices.append(index)
            total += size
        return indices, total

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is. Plain numbers.

        Raises RuntimeError in a process that does not know it, since the workers of a DataLoader iterate.
        """
        if torch.utils.data.get_worker_info() is None and self._elsewhere.item():
            raise RuntimeError(
                "the workers of a DataLoader iterate over this stream, and only they know how far they are: use "
                "redhare.torch.Loader, whose state_dict() counts what the loop has got, or a loader that asks its workers "
                "(torchdata's StatefulDataLoader), or num_workers=0"
            )
        return self._state()

    def _state(self) -> dict[str, Any]:
        share, shares = self._shares()
        state = {"epoch": self._epoch, "given": self._given, "samples": len(self.files)}
        return state | self._settings | {"worker": share, "workers": shares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on where `state_dict` was called; nothing before is read.

        Raises ValueError if something that decides the order is another now.
        """
        now = self._state()
        for name in now.keys() - {"epoch", "given"}:
            # A state of an earlier release has no window, and no block that mattered.
            before = state.get(name, {"window": 0, "block": now["block"]}.get(name))
            if before != now[name]:
                raise ValueError(
                    f"the state was taken with {name}={before}, and this stream has {now[name]}: the order would be "
                    "another; make the stream as it was, or begin an epoch anew with set_epoch"
                )
        self._epoch, self._given, self._begun = state["epoch"], state["given"], False
        self._loaded_by = (now["worker"], now["workers"])
        if torch.utils.data.get_worker_info() is None:
            self._elsewhere.zero_()
