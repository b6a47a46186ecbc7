"""A volume's one writer."""

from __future__ import annotations

import errno
import io
import os
import posixpath
import time
from typing import Any

from . import _native
from .address import Address, parse

Path = str | bytes | os.PathLike[str]

PART_BYTES = 4 << 20
"""Content is handed over in parts of this length: each is copied before other threads run."""
TAKE_OVER_SECONDS = 60.0
"""How long another writer is asked to hand over, unless told."""
AGAIN_SECONDS = 0.05
"""How often a lease is asked for that another writer has."""


class Writer:
    """The writer of a volume, or of an image in a file; `redhare.open` with ``writable=True`` makes one.

    There is one at a time, held by a lease (a lock for a file). What it does is seen by nobody and survives nothing until
    `commit`, which makes all of it durable at once: a process that ends before, however it ends, leaves the last commit.
    Nothing else commits: a change for which the volume has no room now is an OSError (ENOSPC), also where what was committed before and removed since would make some, and so is one that would take more than 1 GiB of memory for names and attributes (ENOMEM); commit
    and go on. Where the disks of the cluster were full, which is an OSError (ENOSPC) that says so, nothing more can be committed: close, and open it again once there is room.
    As a context manager it commits at the end, unless there was an exception, and closes.

    Another that asks for the volume (``take_over=True``, ``redhare fs mount --take-over``) gets it within a second or so, but never in
    the middle of what is to be committed together: after the next `commit`, or at once where nothing was done since the last. From then on every
    change is an OSError that names who asked.

    Threads may share it. Another process, also one that was forked, may not.
    """

    def __init__(self, address: str | os.PathLike[str], *, root: Path = "", wait: float = 0.0, take_over: bool = False) -> None:
        """Use `redhare.open`."""
        self.address: str = os.fspath(address)
        where: Address = parse(self.address)
        inside = posixpath.join(where.path, os.fsdecode(root)).strip("/")
        if take_over and where.file:
            raise OSError(
                errno.EINVAL, "take_over: a local file is locked by whoever writes it, who cannot be asked; end that program", self.address
            )
        if take_over:
            wait = wait or TAKE_OVER_SECONDS
        until = time.monotonic() + wait
        while True:
            try:
                if where.file:
                    self._handle = _native.write_file(where.file, inside)
                else:
                    asked = max(until - time.monotonic(), AGAIN_SECONDS) if take_over else 0.0
                    self._handle = _native.write_volume(where.masters, where.volume, inside, asked)
                return
            except OSError as error:
                left = until - time.monotonic()
                if error.errno != errno.EBUSY or left <= 0:
                    raise
            time.sleep(min(AGAIN_SECONDS, left))

    def write(self, path: Path, data: Any) -> None:
        """Makes a file of anything with the buffer protocol, or gives the one that there is this content."""
        with self.create(path) as file:
            file.write(data)

    def create(self, path: Path) -> io.RawIOBase:
        """Makes an empty file, or empties the one that there is, and gives a file object that writes it from its beginning."""
        self._handle.create(path)
        return _File(self._handle, path)

    def makedirs(self, path: Path) -> None:
        """Makes a directory and those along the way, where they are missing."""
        self._handle.makedirs(path)

    def rename(self, old: Path, new: Path, *, exchange: bool = False) -> None:
        """Gives an entry another name, and replaces a file or empty directory there; with ``exchange`` both change names."""
        self._handle.rename(old, new, exchange)

    def clone(self, source: Path, destination: Path) -> None:
        """Makes a file or directory, with all that is below it, a second time under a name that is free. No content is copied: both
        share it until one of them changes."""
        self._handle.clone(source, destination)

    def remove(self, path: Path) -> None:
        """Removes a file, or a directory with all that is in it."""
        self._handle.remove(path)

    def list(self, path: Path = "") -> list[str]:
        """The names in a directory, by their bytes; what was not committed is there."""
        return self._handle.list(path)

    def exists(self, path: Path) -> bool:
        """Whether a directory has such an entry; what was not committed counts."""
        parent, name = posixpath.split(os.fsdecode(path).strip("/"))
        try:
            return not name or name in self.list(parent)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def commit(self) -> int:
        """Makes everything so far durable and seen by readers that open later; the number of that state.

        An OSError says what is missing, and that nothing was committed; after it another commit makes durable what is left, unless the
        disks of the cluster were full or failed: then it says to open the volume again.
        """
        return self._handle.commit()

    def close(self) -> None:
        """Gives the lease back; what was not committed is dropped. Closing twice does nothing."""
        self._handle.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()

    def __repr__(self) -> str:
        return f"<redhare.Writer {self.address}>"


class _File(io.RawIOBase):
    """Writes a file from its beginning on."""

    def __init__(self, handle: _native.WriterHandle, path: Path) -> None:
        super().__init__()
        self._handle = handle
        self._path = path
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        with memoryview(data) as view, view.cast("B") as flat:
            for start in range(0, len(flat), PART_BYTES):
                part = flat[start : start + PART_BYTES]
                self._handle.write(self._path, self._at, part)
                self._at += len(part)
            return len(flat)
