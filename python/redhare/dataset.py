"""A data set: one committed state of a file system, read by many files a call."""

from __future__ import annotations

import atexit
import builtins
import errno
import os
import posixpath
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, overload

from . import _native
from ._native import Entry
from .address import Address, parse
from .writer import Writer

Path = str | bytes | os.PathLike[str]
MIB = 1 << 20


class Statistics(NamedTuple):
    """What a data set's handle in this process has done so far."""

    reads: int
    """Reads of the volume or file."""
    read_bytes: int
    """Bytes that they brought."""
    past_reads: int
    """Of the reads, those from disks of this machine past their nodes."""
    content_bytes: int
    """Bytes of content that were asked for."""
    cached_bytes: int
    """Memory of the metadata cache, in bytes."""
    page_hits: int
    """Lookups of index pages that the metadata cache had."""
    page_misses: int
    """Lookups of index pages that it had not."""
    pages_evicted: int
    """Pages that it dropped to stay below ``cache_bytes``."""
    pages_ahead: int
    """Pages that were read before anybody asked for them, since a listing went through the index in order."""
    local_on: int
    """1 if the cache on a local disk is in use, else 0."""
    local_hits: int
    """Index pages and extents of files that came from there."""
    local_misses: int
    """Those that were not there."""
    local_damaged: int
    """Of these, those that were there with wrong bytes."""
    local_hit_bytes: int
    """Bytes that came from there."""
    local_stored: int
    """Entries that this process put there."""
    local_stored_bytes: int
    """Their bytes."""
    local_dropped: int
    """Entries that it did not put there: too many waited to be written, or another process had the lock."""
    local_file_bytes: int
    """Length of the cache's file, in bytes; never above ``cache_size``."""


class PendingRead:
    """Contents that are on their way."""

    def __init__(self, pending: _native.Pending) -> None:
        self._pending = pending

    def result(self, timeout: float | None = None, *, errors: str = "raise") -> list[memoryview]:
        """The contents, in the order asked for; can be taken once.

        Waits, for at most ``timeout`` seconds (then TimeoutError). See `DataSet.read_many` for ``errors``.
        """
        return self._pending.result(timeout, _raises(errors))


def _raises(errors: str) -> bool:
    if errors not in ("raise", "return"):
        raise ValueError(f'errors is "raise" or "return", not {errors!r}')
    return errors == "raise"


class DataSet:
    """An open data set; `open` makes one.

    It shows one committed state (``generation``), whatever a writer commits meanwhile, until `refresh` is called. Regular files
    also have positions, from 0 to ``len() - 1``, in an order that the state determines; they are counted when first asked for.

    Threads may share it. After a fork the child's first use opens it again, at the same state; so does unpickling. Where a writer has
    committed since, this needs the process that it came from, on this machine and with it open: what is there then belongs to the lease of
    that process until the child has its own. Otherwise it is an OSError with ESTALE. Nobody needs to close it: it closes when it is collected and
    when the interpreter ends.
    """

    def __init__(self, address: str | os.PathLike[str], **options: Any) -> None:
        """Use `open`."""
        self.address: str = os.fspath(address)
        self._options = options
        self._handle: _native.Handle | None = None
        self._index: _native.Index | None = None
        self._closed = False
        self._expected: tuple[bytes, int] | None = None
        # By which another process opens the same state, while this one or whoever it had it from holds it.
        self._handed: tuple[bytes, str] | None = None
        self._lock = threading.Lock()

    # How it is opened, and opened again.

    def _open(self) -> _native.Handle:
        options = dict(self._options)
        root = options.pop("root")
        where: Address = parse(self.address)
        root = posixpath.join(where.path, os.fsdecode(root)).strip("/")
        if where.file:
            options.pop("via")
            handle = _native.open_file(where.file, root, **options)
        else:
            handed = None if self._expected is None else self._handed
            handle = _native.open_volume(where.masters, where.volume, root, **options, handed=handed)
        self._warn(handle)
        found = (bytes(handle.uuid), handle.generation)
        if self._expected is not None and found != self._expected:
            handle.close()
            raise OSError(
                errno.ESTALE,
                f"{self.address} was opened at state {self._expected[1]} and is at {found[1]} by now, or is another file "
                "system, and who opened it holds that state no more: positions may mean other files; open the data set anew, and "
                "start workers from that",
            )
        self._expected, self._handed = found, handle.handed()
        return handle

    @staticmethod
    def _warn(handle: _native.Handle) -> None:
        for text in handle.warnings():
            warnings.warn(text, RuntimeWarning, stacklevel=4)

    def _live(self) -> _native.Handle:
        handle = self._handle
        if handle is not None and not handle.is_foreign():
            return handle
        if self._closed:
            raise ValueError(f"{self.address} was closed; open it again")
        with self._lock:
            if self._handle is None or self._handle.is_foreign():
                self._handle = self._open()
            return self._handle

    def _files(self) -> _native.Index:
        # It belongs to no thread, so a child of a fork has its parent's.
        if self._index is None:
            handle = self._live()
            with self._lock:
                if self._index is None:
                    self._index = handle.index()
        return self._index

    def __reduce__(self) -> tuple[Callable[..., DataSet], tuple[Any, ...]]:
        self._live()
        return _reopened, (self.address, self._options, self._expected, self._handed)

    def _after_fork(self) -> None:
        # A thread of the parent may have held it.
        self._lock = threading.Lock()

    def close(self) -> None:
        """Ends its thread and gives its lease back. What was read stays. Closing twice does nothing."""
        self._closed = True
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def _let_go(self) -> None:
        """Closes until the next use or `refresh`: a writer of this process wants a file's lock."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def __enter__(self) -> DataSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        generation = self._expected[1] if self._expected else None
        return f"<redhare.DataSet {self.address} at state {generation}{', closed' if self._closed else ''}>"

    def _with(self, **options: Any) -> DataSet:
        """Another one of the same state, with other options of `open`; its ``root`` is inside of this one's."""
        self._live()
        merged = self._options | options
        if "root" in options:
            merged["root"] = posixpath.join(os.fsdecode(self._options["root"]), os.fsdecode(options["root"]).strip("/"))
        return _opened(_reopened(self.address, _checked(merged), self._expected, self._handed))

    # What there is.

    def refresh(self) -> bool:
        """Goes on to the newest committed state, now; whether that is another one than before.

        Whatever was committed before the call is there when it returns. Reads that were begun before end in the state that they
        began in. Positions are counted anew, and may mean other files: call it between epochs, and not while other threads read
        by position. Workers that were started before keep their state. It also helps after a lease has ended (ESTALE).

        A snapshot by name (``VOLUME@NAME``) stays what it is, as does a file, which nobody can write meanwhile: False. Raises
        OSError if the newest state cannot be read, or has no directory ``root``; then everything is as it was.
        """
        if self._closed:
            raise ValueError(f"{self.address} was closed; open it again")
        with self._lock:
            before, handed = self._expected, self._handed
            found: tuple[bytes, int] | None
            handle = self._handle
            if handle is not None and not handle.is_foreign():
                found = (bytes(handle.uuid), handle.refresh())
                self._handed = handle.handed()
            else:
                # Not opened yet in this process: at whatever state is the newest.
                self._expected = None
                try:
                    handle = self._open()
                finally:
                    found, self._expected = self._expected, before
                if before is not None and found is not None and found[0] != before[0]:
                    handle.close()
                    self._handed = handed
                    raise OSError(errno.ESTALE, f"{self.address} is another file system by now; open the data set anew")
                self._handle = handle
            self._expected = found
            if found == before:
                return False
            self._index = None
            return True

    @property
    def generation(self) -> int:
        """The number of the committed state that is read."""
        return self._live().generation

    def __len__(self) -> int:
        return len(self._files())

    def path(self, position: int) -> str:
        """The path of the file at a position. Bytes that are not UTF-8 come as `os.fsdecode` gives them."""
        return self._files().path(self._position(position))

    def size(self, position: int) -> int:
        """The length in bytes of the file at a position."""
        return self._files().size(self._position(position))

    def _position(self, position: int) -> int:
        count = len(self)
        if not -count <= position < count:
            raise IndexError(f"there is no position {position} among the {count} files of {self.address}")
        return position % count if count else 0

    def list(self, path: Path = "") -> builtins.list[str]:
        """The names in a directory, by their bytes."""
        return [entry.name for entry in self.scan(path)]

    def scan(self, path: Path = "") -> builtins.list[Entry]:
        """The entries of a directory with what ``stat`` says of each, by the bytes of their names."""
        return self._live().list(path)

    def stat(self, path: Path) -> Entry:
        """What there is at a path; a symbolic link is not followed."""
        return self._live().stat(path)

    def exists(self, path: Path) -> bool:
        """Whether there is something at a path."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def readlink(self, path: Path) -> str:
        """The target of a symbolic link."""
        return self._live().readlink(path)

    def walk(self, path: Path = "") -> Iterator[tuple[str, builtins.list[str], builtins.list[str]]]:
        """As `os.walk`, from the top: a directory's path, its directories' names, the names of all else."""
        waiting = [os.fsdecode(path).strip("/")]
        while waiting:
            directory = waiting.pop()
            entries = self.scan(directory)
            inside = [entry.name for entry in entries if entry.kind == "directory"]
            yield directory, inside, [entry.name for entry in entries if entry.kind != "directory"]
            # Who walks may have taken some out.
            waiting.extend(posixpath.join(directory, name) for name in reversed(inside))

    def statistics(self) -> Statistics:
        """What this process's handle has done so far. Warns (RuntimeWarning) if the cache on a local disk has failed."""
        self._warn(self._live())
        return Statistics(*self._live().statistics())

    # Contents.

    def read(self, path: Path | int, offset: int = 0, length: int | None = None) -> memoryview:
        """The content of a file by path or position, or ``length`` bytes of it from ``offset``, or as many as there are."""
        if offset < 0 or (length is not None and length < 0):
            raise ValueError(f"offset {offset} and length {length} may not be negative")
        if offset == 0 and length is None:
            one = self.read_many([path]) if isinstance(path, int) else self.read_many([path])
            return one[0]
        if isinstance(path, int):
            path = self.path(path)
        return self._live().read_range(path, offset, (1 << 62) if length is None else length)

    def __getitem__(self, key: Path | int) -> memoryview:
        return self.read(key)

    @overload
    def read_many(
        self, files: Iterable[Path] | Iterable[int], *, errors: Literal["raise"] = "raise"
    ) -> builtins.list[memoryview]: ...
    @overload
    def read_many(
        self, files: Iterable[Path] | Iterable[int], *, errors: Literal["return"]
    ) -> builtins.list[memoryview | OSError]: ...
    def read_many(self, files: Any, *, errors: str = "raise") -> Any:
        """The whole contents of files, given by paths or by positions, in the order asked for.

        They come as read-only memoryviews of the buffers that the bytes arrived in: nothing is copied for a file that is one
        extent (up to 1 MiB), as long as ``memory_bytes`` allows; keep what you need by ``bytes()``. Other threads run
        meanwhile. The first failure is raised as the OSError that it is; with ``errors="return"`` failures stand in the places
        of their files.
        """
        return self.begin_read_many(files).result(errors=errors)

    def begin_read_many(self, files: Iterable[Path] | Iterable[int]) -> PendingRead:
        """As `read_many`, but goes on while you do something else."""
        wanted: Sequence[Any] = files if isinstance(files, (builtins.list, tuple, range)) else list(files)
        if wanted and not isinstance(wanted[0], (str, bytes, os.PathLike)):
            positions = [self._position(int(position)) for position in wanted]
            return PendingRead(self._live().begin_positions(self._files(), positions))
        return PendingRead(self._live().begin_paths(list(wanted)))


_all: weakref.WeakSet[DataSet] = weakref.WeakSet()


def _reopened(
    address: str, options: dict[str, Any], expected: tuple[bytes, int] | None, handed: tuple[bytes, str] | None = None
) -> DataSet:
    """Unpickles: opens when first used, at the same state."""
    dataset = DataSet(address, **options)
    dataset._expected, dataset._handed = expected, handed
    _all.add(dataset)
    return dataset


def _opened(dataset: DataSet) -> DataSet:
    """Opens it now, and not at its first use."""
    dataset._live()
    _all.add(dataset)
    return dataset


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """A data set's options, if they can be."""
    reads_in_flight, cache_dir, cache_size = (options[name] for name in ("reads_in_flight", "cache_dir", "cache_size"))
    if not 1 <= reads_in_flight <= 4096:
        raise ValueError(f"reads_in_flight is {reads_in_flight}; give 1 to 4096")
    if (cache_dir is None) != (cache_size == 0) or not 0 <= cache_size < 1 << 64:
        raise ValueError(f"cache_dir is {cache_dir!r} and cache_size {cache_size}; give both (the size in bytes), or neither")
    return options | {"cache_dir": None if cache_dir is None else os.path.abspath(os.fsdecode(cache_dir))}


@overload
def open(
    address: str | os.PathLike[str],
    *,
    root: Path = "",
    via: Literal["disk", "socket", "tcp"] = "disk",
    cache_bytes: int = 64 * MIB,
    memory_bytes: int = 256 * MIB,
    reads_in_flight: int = 32,
    cache_dir: Path | None = None,
    cache_size: int = 0,
    writable: Literal[False] = False,
) -> DataSet: ...
@overload
def open(
    address: str | os.PathLike[str], *, root: Path = "", writable: Literal[True], wait: float = 0.0, take_over: bool = False
) -> Writer: ...
def open(
    address: str | os.PathLike[str],
    *,
    root: Path = "",
    via: Literal["disk", "socket", "tcp"] = "disk",
    cache_bytes: int = 64 * MIB,
    memory_bytes: int = 256 * MIB,
    reads_in_flight: int = 32,
    cache_dir: Path | None = None,
    cache_size: int = 0,
    writable: bool = False,
    wait: float = 0.0,
    take_over: bool = False,
) -> DataSet | Writer:
    """Opens a data set at its newest committed state; with ``writable`` becomes the volume's one writer.

    ``address`` is ``redhare://HOST:PORT/VOLUME[/PATH]`` (several masters separated by commas; none where REDHARE_CLUSTER
    names them) or ``file:PATH`` for an image in a file. Paths begin at ``root``, a directory inside it.

    ``via`` says how nodes of this machine are reached: their disks read directly where they allow it, by socket, or by TCP as
    others. ``cache_bytes`` bounds the metadata cache, ``memory_bytes`` the buffers that contents are lent in (beyond it they
    are copied), ``reads_in_flight`` what is asked of the volume at once.

    ``cache_dir`` is a directory on a local disk, of this user alone, in which what was read is kept in a file of at most
    ``cache_size`` bytes (16 MiB at least), also for later runs; several processes share it. Its bytes are checked as those from
    the volume are. Where it fails there is a RuntimeWarning, and reads go on without it.

    With ``writable=True`` this is a `Writer`, which begins at ``root``, too; where another program writes the volume it is asked
    again for ``wait`` seconds, and then that is an OSError with EBUSY. With ``take_over=True`` that other program is asked to hand the
    volume over meanwhile (``wait``, or 60 seconds): it does so after its next commit. The other options do not concern it.

    Raises ValueError for an address that is none, and OSError: FileNotFoundError, PermissionError, ConnectionRefusedError and
    so on, with what failed, why, and what to do. Blocks until a master has answered.
    """
    if writable:
        return Writer(address, root=root, wait=wait, take_over=take_over)
    options: dict[str, Any] = {
        "root": root,
        "via": via,
        "cache_bytes": cache_bytes,
        "memory_bytes": memory_bytes,
        "reads_in_flight": reads_in_flight,
        "cache_dir": cache_dir,
        "cache_size": cache_size,
    }
    return _opened(DataSet(address, **_checked(options)))


def _forked() -> None:
    _native.forked()
    for dataset in list(_all):
        dataset._after_fork()


os.register_at_fork(after_in_child=_forked)


@atexit.register
def _close_all() -> None:
    for dataset in list(_all):
        dataset.close()
