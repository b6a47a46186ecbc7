"""`redhare://` for fsspec, and so for pandas, pyarrow, DuckDB, Hugging Face's datasets and others. Reading only, so far."""

from __future__ import annotations

import errno
import os
from typing import Any, NoReturn

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from . import dataset
from ._native import Entry
from .address import SCHEME, parse

# What fsspec calls them.
_TYPES = {"file": "file", "directory": "directory", "symlink": "link"}


class RedhareFileSystem(AbstractFileSystem):
    """A volume, or an image in a file, at its newest committed state when this was made.

    ``RedhareFileSystem(masters="HOST:PORT", volume="NAME")``, or ``address=`` as `redhare.open` takes it; other arguments are
    those of `redhare.open`. With paths that begin with ``redhare://HOST:PORT/VOLUME/`` fsspec makes it by itself. A path may be
    such a whole address or one inside the volume; what is listed has names of the kind that was asked for. Whatever would write
    raises an OSError with EROFS.
    """

    protocol = "redhare"
    root_marker = ""

    def __init__(self, masters: str = "", volume: str = "", address: str = "", **options: Any) -> None:
        super().__init__(**options)
        ours = {"root", "via", "cache_bytes", "memory_bytes", "reads_in_flight", "cache_dir", "cache_size"}
        self.address = address or f"{SCHEME}{masters}/{volume}"
        self.dataset = dataset.open(self.address, **{name: options[name] for name in ours & options.keys()})

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
        if own.path and f"{asked.path}/".startswith(f"{own.path}/"):
            return asked.path[len(own.path) :].strip("/")
        return asked.path

    # Reading.

    def _information(self, path: str, entry: Entry) -> dict[str, Any]:
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
        }

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The entries of a directory, or the one of a file."""
        path = self._strip_protocol(path)
        inside = self._inside(path)
        entry = self.dataset.stat(inside)
        if entry.kind == "directory":
            entries = self.dataset.scan(inside)
            found = [self._information(f"{path}/{entry.name}".lstrip("/"), entry) for entry in entries]
        else:
            found = [self._information(path, entry)]
        return found if detail else [one["name"] for one in found]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """What is known of a path."""
        path = self._strip_protocol(path)
        return self._information(path, self.dataset.stat(self._inside(path)))

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
        path = self._inside(path)
        if start is None and end is None:
            return bytes(self.dataset.read(path))
        size = self.dataset.stat(path).size
        begin, stop, _step = slice(start, end).indices(size)
        return bytes(self.dataset.read(path, begin, max(stop - begin, 0)))

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        """The contents of one or many files; many are read with one call."""
        paths = self.expand_path(path, recursive=recursive)
        if len(paths) == 1 and isinstance(path, str) and paths[0] == self._strip_protocol(path):
            return self.cat_file(paths[0], **kwargs)
        files = [one for one in paths if not self.isdir(one)]
        contents = self.dataset.read_many([self._inside(file) for file in files], errors="raise" if on_error == "raise" else "return")
        found = {}
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
    ) -> RedhareFile:
        if mode != "rb":
            self._refuse(path)
        return RedhareFile(
            self,
            path,
            mode,
            block_size or "default",
            autocommit=autocommit,
            cache_options=cache_options,
            **{"cache_type": "readahead"} | kwargs,
        )

    # What there is not.

    def _refuse(self, path: Any = "", *_: Any, **__: Any) -> NoReturn:
        raise OSError(
            errno.EROFS,
            f"{self.address}: fsspec only reads so far here; write with redhare.open(address, writable=True) or \"redhare fs import\"",
            str(path),
        )

    mkdir = makedirs = rmdir = cp_file = mv = rm = rm_file = _rm = touch = pipe_file = put_file = sign = _refuse


class RedhareFile(AbstractBufferedFile):
    """An open file; fsspec's cache reads ahead."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.dataset.read(self.fs._inside(self.path), start, end - start))
