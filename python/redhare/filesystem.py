"""`redhare://` for fsspec, and so for pandas, pyarrow, DuckDB, Hugging Face's datasets and others."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import posixpath
import secrets
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import IO, Any

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.compression import compr
from fsspec.core import OpenFile, get_compression, has_magic
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.transaction import Transaction

from . import dataset
from ._native import Entry
from .address import SCHEME, parse
from .symlinks import resolve, resolve_file, resolve_parent
from .writer import PART_BYTES, Writer

# What fsspec calls them.
_TYPES = {"file": "file", "directory": "directory", "symlink": "link"}
WRITE_WAIT_SECONDS = 60.0
"""How long another writer is waited for, unless told."""
_NOT_FOLLOWED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)
"""Where a symbolic link leads nowhere, or not to where one may go."""
KEPT_BYTES = 64 << 20
"""A file that is written is kept in memory up to this length."""


_made: weakref.WeakValueDictionary[int, RedhareFileSystem] = weakref.WeakValueDictionary()


def _after_fork() -> None:
    """A thread that held a lock is not there in a child, nor is its writer this process's."""
    for files in list(_made.values()):
        files._write_lock = threading.RLock()
        files._writer = None
        files._intrans = False


os.register_at_fork(after_in_child=_after_fork)


class RedhareFileSystem(AbstractFileSystem):
    """A volume, or an image in a file, at its newest committed state when this was made, or when it wrote last.

    ``RedhareFileSystem(masters="HOST:PORT", volume="NAME")``, or ``address=`` as `redhare.open` takes it; other arguments are
    those of `redhare.open`. With paths that begin with ``redhare://HOST:PORT/VOLUME/`` fsspec makes it by itself. A path may be
    such a whole address or one inside the volume; what is listed has names of the kind that was asked for.

    Each call that writes takes the volume's one writer's lease, waits for it at most ``write_wait`` seconds (then an OSError with EBUSY that names
    who has it), commits once, gives it back, and goes on to what is the newest state then. ``with fs.transaction:`` makes one commit of many, and
    an exception drops them all; an image in a file cannot be read meanwhile. A file has its name only once it is whole; directories that it is in are made.

    Reading follows symbolic links inside of what is open, as fsspec's `LocalFileSystem` does: `info` tells of what a link leads to, with
    ``islink`` and ``destination``. One that cannot be followed has the type "link" there, and so have links to directories in lists, so
    that no walk goes through them. Calls that write do not follow links.
    """

    protocol = "redhare"
    root_marker = ""

    def __init__(
        self, masters: str = "", volume: str = "", address: str = "", write_wait: float = WRITE_WAIT_SECONDS, **options: Any
    ) -> None:
        super().__init__(**options)
        ours = {"root", "via", "cache_bytes", "memory_bytes", "reads_in_flight", "cache_dir", "cache_size"}
        self.address = address or f"{SCHEME}{masters}/{volume}"
        self.dataset = dataset.open(self.address, **{name: options[name] for name in ours & options.keys()})
        self.write_wait = write_wait
        self._root = options.get("root", "")
        self._writer: Writer | None = None
        self._write_lock = threading.RLock()
        _made[id(self)] = self

    # Names.

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path)
        # A whole address stays one: who opens what was listed without this object, as datasets does, needs all of it.
        return path.rstrip("/") if path.startswith(SCHEME) else path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        if not path.startswith(SCHEME):
            return {}
        where = parse(path)
        return {"masters": where.masters, "volume": where.volume}

    def unstrip_protocol(self, name: str) -> str:
        """The whole address of a path; for an image in a file the path with a scheme, as fsspec has it."""
        if name.startswith(SCHEME):
            return name
        if self.address.startswith(SCHEME):
            return f"{self.address}/{name.strip('/')}"
        return f"{SCHEME}{name.strip('/')}"

    def _inside(self, path: Any) -> str:
        """The path below what is open."""
        path = self._strip_protocol(path)
        if not path.startswith(SCHEME):
            return path
        if not self.address.startswith(SCHEME):
            return path.removeprefix(SCHEME)
        own, asked = parse(self.address), parse(path)
        if asked.volume != own.volume:
            raise ValueError(f"{path} is not in {self.address}; open a file system for it")
        if not own.path:
            return asked.path
        if not f"{asked.path}/".startswith(f"{own.path}/"):
            raise ValueError(f"{path} is not in {self.address}; open a file system for it")
        return asked.path[len(own.path) :].strip("/")

    # Reading.

    def _information(self, path: str, entry: Entry, inside: str, listed: bool = False) -> dict[str, Any]:
        link = entry.kind == "symlink"
        destination = {"destination": self.dataset.readlink(inside)} if link else {}
        if link:
            try:
                _, target = resolve(self.dataset, inside)
                # A walk that went through links to directories might never end.
                entry = entry if listed and target.kind == "directory" else target
            except OSError as error:
                if error.errno not in _NOT_FOLLOWED:
                    raise
        return {
            "name": path,
            "size": entry.size if entry.kind == "file" else 0,
            "type": _TYPES.get(entry.kind, "other"),
            "mode": entry.mode,
            "uid": entry.uid,
            "gid": entry.gid,
            "mtime": entry.mtime_ns / 1e9,
            "created": entry.ctime_ns / 1e9,
            "ino": entry.inode,
            "nlink": entry.links,
            "islink": link,
            **destination,
        }

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The entries of a directory, or the one of a file."""
        path = self._strip_protocol(path)
        inside = self._inside(path)
        real, entry = resolve_parent(self.dataset, inside)
        if entry.kind == "symlink":
            with contextlib.suppress(OSError):
                # One that cannot be followed is listed as a link.
                real, entry = resolve(self.dataset, inside)
        if entry.kind == "directory":
            entries = self.dataset.scan(real)
            found = [
                self._information(f"{path}/{entry.name}".lstrip("/"), entry, posixpath.join(real, entry.name), listed=True)
                for entry in entries
            ]
        else:
            found = [self.info(path)]
        return found if detail else [one["name"] for one in found]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """What is known of a path."""
        path = self._strip_protocol(path)
        real, entry = resolve_parent(self.dataset, self._inside(path))
        return self._information(path, entry, real)

    def created(self, path: str) -> Any:
        """When content or attributes last changed: no earlier time is kept."""
        return self._time(self.info(path)["created"])

    def modified(self, path: str) -> Any:
        """When the content last changed."""
        return self._time(self.info(path)["mtime"])

    @staticmethod
    def _time(seconds: float) -> Any:
        import datetime

        return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)

    def ukey(self, path: str) -> str:
        """Names the file's content: it never changes in the state that is read."""
        return f"{self.dataset.generation}-{self.info(path)['ino']}"

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Bytes start to end of a file; negative ones count from its end."""
        path, entry = resolve_file(self.dataset, self._inside(path))
        if start is None and end is None:
            return bytes(self.dataset.read(path))
        begin, stop, _step = slice(start, end).indices(entry.size)
        return bytes(self.dataset.read(path, begin, max(stop - begin, 0)))

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        """The contents of one or many files; many are read with one call."""
        paths = self.expand_path(path, recursive=recursive)
        if len(paths) == 1 and isinstance(path, str) and paths[0] == self._strip_protocol(path):
            return self.cat_file(paths[0], **kwargs)
        files: dict[str, str] = {}
        found: dict[str, Any] = {}
        for one in paths:
            try:
                files[one] = resolve_file(self.dataset, self._inside(one))[0]
            except IsADirectoryError:
                continue
            except OSError as error:
                if on_error == "raise":
                    raise
                if on_error == "return":
                    found[one] = error
        contents = self.dataset.read_many([*files.values()], errors="raise" if on_error == "raise" else "return")
        for name, content in zip(files, contents):
            if isinstance(content, memoryview):
                found[name] = bytes(content)
            elif on_error == "return":
                found[name] = content
        return found

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> RedhareFile | NewFile:
        if mode in ("wb", "xb"):
            return NewFile(self, path, exclusive=mode == "xb")
        if mode != "rb":
            raise OSError(errno.EOPNOTSUPP, f"mode {mode!r}: files are read (rb) or written whole (wb, xb); write the file anew", str(path))
        return RedhareFile(
            self,
            path,
            mode,
            block_size or "default",
            autocommit=autocommit,
            cache_options=cache_options,
            **{"cache_type": "readahead"} | kwargs,
        )

    # Writing. What one call does is one commit.

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Writer]:
        """The volume's writer for what is committed together: the call that is outermost, or the transaction."""
        with self._write_lock:
            if self._writer is None:
                self._begin()
                if not self._intrans:
                    try:
                        yield self._its_writer()
                    except BaseException:
                        self._end(commit=False)
                        raise
                    self._end(commit=True)
                    return
            yield self._its_writer()

    def _together(self) -> contextlib.AbstractContextManager[Any]:
        """For what also reads: an image in a file is locked while it is written."""
        return contextlib.nullcontext() if parse(self.address).file else self._writing()

    def _its_writer(self) -> Writer:
        assert self._writer is not None, "it was begun"
        return self._writer

    def _begin(self) -> None:
        if parse(self.address).file:
            # Its lock, which readers have, too.
            self.dataset._let_go()
        self._writer = Writer(self.address, root=self._root, wait=self.write_wait)

    def _end(self, commit: bool) -> None:
        with self._write_lock:
            writer, self._writer = self._writer, None
            if writer is None:
                return
            try:
                if commit:
                    writer.commit()
            finally:
                writer.close()
        if commit:
            self.dataset.refresh()
            self.invalidate_cache()

    @staticmethod
    def _parent_of(path: str) -> str:
        return path.rpartition("/")[0]

    @staticmethod
    def _is_directory(writer: Writer, path: str) -> bool:
        """Whether there is a directory; what was not committed counts."""
        try:
            writer.list(path)
        except (NotADirectoryError, FileNotFoundError):
            return False
        return True

    def _store(self, path: str, parts: Iterable[Any], exclusive: bool = False) -> None:
        """Makes a file of its content, with the directories that it is in. It has its name only once it is whole."""
        inside = self._inside(path)
        with self._writing() as writer:
            writer.makedirs(self._parent_of(inside))
            if exclusive and writer.exists(inside):
                raise FileExistsError(errno.EEXIST, "there is such a file; open it with mode wb to replace it", path)
            with self._beside(writer, inside) as new, writer.create(new) as file:
                for part in parts:
                    file.write(part)

    @contextlib.contextmanager
    def _beside(self, writer: Writer, inside: str) -> Iterator[str]:
        """A hidden name for what gets the name ``inside`` at the end, unless there was an exception."""
        if self._is_directory(writer, inside):
            raise IsADirectoryError(errno.EISDIR, "is a directory; remove it first, or name a file in it", inside)
        new = posixpath.join(self._parent_of(inside), f".fsspec-{secrets.token_hex(8)}")
        try:
            yield new
            writer.rename(new, inside)
        except BaseException:
            # What went wrong first is what to tell.
            with contextlib.suppress(OSError):
                writer.remove(new)
            raise

    def open(self, path: Any, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        """As fsspec's. A file that is written has its name, and is committed, when it is closed; an exception in its ``with``, or in that of
        ``fsspec.open``, drops it."""
        if "r" in mode:
            return super().open(path, mode, *args, **kwargs)
        text = {name: kwargs.pop(name) for name in ("encoding", "errors", "newline") if name in kwargs}
        compression = get_compression(path, kwargs.pop("compression", None))
        file = super().open(path, mode.replace("t", "").replace("b", "") + "b", *args, **kwargs)
        if compression is not None:
            file = _Packed(file, compr[compression](file, mode="w"))
        return file if "b" in mode else _Text(file, **text)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> None:
        """Makes a file of bytes."""
        self._store(self._strip_protocol(path), [value], exclusive=mode == "create")

    def pipe(self, path: Any, value: Any = None, **kwargs: Any) -> None:
        """Makes files of bytes, all with one commit."""
        with self._writing():
            super().pipe(path, value, **kwargs)

    def put_file(self, lpath: Any, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **_: Any) -> None:
        """Copies a local file into the volume; of a directory only the name."""
        rpath = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            return self.makedirs(rpath, exist_ok=True)
        with builtins.open(lpath, "rb") as file:
            callback.set_size(os.fstat(file.fileno()).st_size)

            def parts() -> Iterator[bytes]:
                while part := file.read(PART_BYTES):
                    yield part
                    callback.relative_update(len(part))

            self._store(rpath, parts(), exclusive=mode == "create")

    def put(self, *args: Any, **kwargs: Any) -> None:
        """Copies local files into the volume, all with one commit (each with its own for an image in a file)."""
        with self._together():
            super().put(*args, **kwargs)

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        """Makes an empty file, or empties the one that there is."""
        if not truncate and self.exists(path):
            raise NotImplementedError(f"{path}: times are set by what is written; touch with truncate=True empties it")
        self._store(self._strip_protocol(path), [])

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes a directory and those along the way."""
        inside = self._inside(path)
        with self._writing() as writer:
            if not exist_ok and writer.exists(inside):
                raise FileExistsError(errno.EEXIST, "is there already", path)
            writer.makedirs(inside)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Makes a directory."""
        inside = self._inside(path)
        with self._writing() as writer:
            if not create_parents:
                writer.list(self._parent_of(inside))
            self.makedirs(path)

    def rmdir(self, path: str) -> None:
        """Removes a directory that is empty."""
        inside = self._inside(path)
        with self._writing() as writer:
            if writer.list(inside):
                raise OSError(errno.ENOTEMPTY, "is not empty; remove it with rm(recursive=True)", path)
            writer.remove(inside)

    def rm_file(self, path: str) -> None:
        """Removes what is no directory."""
        inside = self._inside(path)
        with self._writing() as writer:
            if self._is_directory(writer, inside):
                raise IsADirectoryError(errno.EISDIR, "is a directory; remove it with recursive=True", path)
            writer.remove(inside)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes files, and with ``recursive`` directories with all that is in them, by one commit."""
        if maxdepth is not None:
            raise NotImplementedError("maxdepth: name what to remove, or give a pattern")
        names = self.expand_path(path)
        with self._writing() as writer:
            for name in names:
                if recursive:
                    writer.remove(self._inside(name))
                else:
                    self.rm_file(name)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **_: Any) -> None:
        """Gives files and directories other names, or moves them into a directory; nothing is copied. One commit."""
        many = isinstance(path1, list) or has_magic(path1)
        sources = self.expand_path(path1)
        with self._writing() as writer:
            if isinstance(path2, list):
                targets = [self._inside(one) for one in path2]
            else:
                into = self._inside(path2)
                if many or str(path2).endswith("/") or self._is_directory(writer, into):
                    targets = [posixpath.join(into, posixpath.basename(self._inside(one))) for one in sources]
                else:
                    targets = [into]
            if len(targets) != len(sources):
                raise ValueError(f"{len(sources)} paths to move, and {len(targets)} names for them")
            for source, target in zip(sources, targets):
                writer.makedirs(self._parent_of(target))
                writer.rename(self._inside(source), target)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Makes a file a second time; both share the content until one of them changes."""
        source, target = self._inside(path1), self._inside(path2)
        with self._writing() as writer:
            if self._is_directory(writer, source):
                return writer.makedirs(target)
            writer.makedirs(self._parent_of(target))
            if source == target:
                return
            with self._beside(writer, target) as new:
                writer.clone(source, new)

    def copy(self, *args: Any, **kwargs: Any) -> None:
        """Copies within the volume, all with one commit (each with its own for an image in a file)."""
        with self._together():
            super().copy(*args, **kwargs)


class RedhareTransaction(Transaction):
    """What is written in it is committed at its end, together; an exception drops all of it. The volume is this writer's from the first
    change on. Reads see none of it before."""

    def complete(self, commit: bool = True) -> None:
        """Commits, or drops."""
        files = self.fs
        try:
            super().complete(commit)
        except BaseException:
            files._end(commit=False)
            raise
        finally:
            # Not every release of fsspec does so where an end fails, and whatever was written next would be committed by nobody.
            files._intrans = False
            files._transaction = None
        files._end(commit)


RedhareFileSystem.transaction_type = RedhareTransaction


class RedhareFile(AbstractBufferedFile):
    """An open file; fsspec's cache reads ahead. Once its file system shows a state in which the file is another one or has changed, reads fail
    with ESTALE."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._generation, self._seen = self._state()

    def _state(self) -> tuple[int, tuple[int, int, int]]:
        generation = self.fs.dataset.generation
        self._real, entry = resolve_file(self.fs.dataset, self.fs._inside(self.path))
        return generation, (entry.inode, entry.ctime_ns, entry.size)

    def _fetch_range(self, start: int, end: int) -> bytes:
        # What is read goes by the path, whatever stands there by now.
        if self.fs.dataset.generation != self._generation:
            try:
                generation, seen = self._state()
            except OSError as error:
                if error.errno not in (*_NOT_FOLLOWED, errno.EISDIR, errno.EOPNOTSUPP):
                    raise
                seen = None
            if seen != self._seen:
                raise OSError(errno.ESTALE, "the file has changed since it was opened; open it again", self.path)
            self._generation = generation
        return bytes(self.fs.dataset.read(self._real, start, end - start))


class NewFile(io.BufferedIOBase):
    """A file that is written. Its content waits in memory, or beyond 64 MiB in a temporary file, and goes to the volume when it is closed."""

    def __init__(self, fs: RedhareFileSystem, path: str, exclusive: bool) -> None:
        super().__init__()
        self._content: IO[bytes] | None = None
        self.fs, self.path, self.mode = fs, path, "xb" if exclusive else "wb"
        self._exclusive = exclusive
        if exclusive and fs.exists(path):
            raise FileExistsError(errno.EEXIST, "there is such a file; open it with mode wb to replace it", path)
        self._content = tempfile.SpooledTemporaryFile(KEPT_BYTES)

    def writable(self) -> bool:
        """It is."""
        return True

    def _open_content(self) -> IO[bytes]:
        if self._content is None:
            raise ValueError(f"{self.path} was closed")
        return self._content

    def write(self, data: Any) -> int:
        """Appends bytes."""
        with memoryview(data) as view:
            self._open_content().write(view)
            return view.nbytes

    def tell(self) -> int:
        """Bytes so far."""
        return self._open_content().tell()

    def _is_given_up(self) -> bool:
        """Whether a ``with fsspec.open(...)`` closes this because its body raised. fsspec's `OpenFile` is told of that and does not tell its
        files, so it is asked for what it was told."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is OpenFile.__exit__.__code__ and any(file is self for file in frame.f_locals["self"].fobjects):
                return frame.f_locals["args"][0] is not None
            frame = frame.f_back
        return False

    def close(self) -> None:
        """Makes the file, and commits unless a transaction will."""
        if self._content is not None and self._is_given_up():
            return self.discard()
        content, self._content = self._content, None
        super().close()
        if content is not None:
            with content:
                content.seek(0)
                self.fs._store(self.path, iter(lambda: content.read(PART_BYTES), b""), self._exclusive)

    def commit(self) -> None:
        """For a transaction's end: what was not closed is."""
        self.close()

    def discard(self) -> None:
        """Drops it."""
        content, self._content = self._content, None
        if content is not None:
            content.close()
        super().close()

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        # Who wanted it has closed it.
        self.discard()


class _Packed(io.BufferedIOBase):
    """Compresses into a `NewFile`."""

    def __init__(self, new: NewFile, packer: Any) -> None:
        super().__init__()
        self._new, self._packer = new, packer

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return int(self._packer.write(data))

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._packer.close()
            self._new.close()

    def discard(self) -> None:
        super().close()
        self._new.discard()

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        self.discard()


class _Text(io.TextIOWrapper):
    """Text into one of those."""

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            new: Any = self.detach()
            new.discard()
        else:
            self.close()
