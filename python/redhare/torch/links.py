"""Symbolic links of a data set, followed as a walk of a local folder follows them, but inside the data set only."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from .. import dataset
from ..symlinks import STEPS_MAX

# What there is at a path, where it is no position of a file.
_DIRECTORY = -1
_LINK = -2
_NOTHING = -3


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


class Links:
    """Where the symbolic links ``paths`` of a data set lead. Those that cannot be followed are in ``refused``, with why.

    What a path is comes from the data set's positions, put into directories here, and not from a ``stat`` each.
    """

    def __init__(self, data: dataset.DataSet, paths: list[str]) -> None:
        self.refused: dict[str, str] = {}
        self._data = data
        self._paths = paths
        self._targets = dict(zip(paths, data._live().readlinks([*paths])))
        self._asked: dict[str, int] = {}
        self._directories: dict[str, dict[str, int]] = {"": {}}
        for position in range(len(data)):
            self._note(data.path(position), position)
        for path in paths:
            self._note(path, _LINK)

    def _note(self, path: str, what: int) -> None:
        directory, _, name = path.rpartition("/")
        inside = self._directories.get(directory)
        if inside is not None:
            inside[name] = what
            return
        self._directories[directory] = {name: what}
        while directory:
            directory, _, name = directory.rpartition("/")
            above = self._directories.get(directory)
            if above is not None:
                above[name] = _DIRECTORY
                return
            self._directories[directory] = {name: _DIRECTORY}

    def _what(self, directory: str, name: str, path: str) -> int:
        what = self._directories.get(directory, {}).get(name)
        if what is None:
            what = self._asked.get(path)
        if what is None:
            # A directory without files is in no file's path.
            what = self._asked[path] = self._ask(path)
        return what

    def _ask(self, path: str) -> int:
        try:
            return _DIRECTORY if self._data.stat(path).kind == "directory" else _NOTHING
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return _NOTHING
            raise

    def _resolved(self, link: str, steps: int) -> tuple[str, int, int] | None:
        """The path without links that a link leads to, what is there, and the steps by then; None if it is refused."""
        why = ""
        here, _, name = link.rpartition("/")
        what, waiting = _DIRECTORY, [name]
        while waiting and not why:
            name = waiting.pop()
            if what != _DIRECTORY:
                why = "there is no file or directory at its target"
            elif name == "..":
                if not here:
                    why = "its target is outside of the data set"
                here = _parent(here)
            elif name not in ("", "."):
                path = f"{here}/{name}" if here else name
                what = self._what(here, name, path)
                if what != _LINK:
                    here = path
                    continue
                what, steps = _DIRECTORY, steps + 1
                target = self._targets[path]
                if steps > STEPS_MAX:
                    why = f"there are more than {STEPS_MAX} links on the way"
                elif target.startswith("/"):
                    why = "its target is absolute"
                waiting += reversed(target.split("/"))
        if not why and what == _NOTHING:
            why = "there is no file or directory at its target"
        if why:
            self.refused.setdefault(link, why)
            return None
        return here, what, steps

    def directories(self, directory: str) -> list[str]:
        """The names of those in a directory that lead to directories, itself and those that it is in aside."""
        found = [(link, self._resolved(link, 0)) for link in self._paths if _parent(link) == directory]
        led = [(link, to[0]) for link, to in found if to is not None and to[1] == _DIRECTORY and to[0]]
        return [link.rpartition("/")[2] for link, to in led if not f"{directory}/".startswith(f"{to}/")]

    def files(self) -> Iterator[tuple[str, int]]:
        """Every path that leads to a regular file through links, and the file's position.

        A link to a directory that the path comes through, itself or as the target of a link, is not followed: it has no end.
        """
        for link in self._paths:
            yield from self._files_of(link)

    def _files_of(self, link: str) -> Iterator[tuple[str, int]]:
        before: tuple[str, ...] = ()
        waiting = [(link, link, before, 0)]
        while waiting:
            shown, link, before, steps = waiting.pop()
            to = self._resolved(link, steps)
            if to is None:
                continue
            path, what, steps = to
            if what != _DIRECTORY:
                yield shown, what
                continue
            before = (*before, _parent(link))
            if not path or any(f"{directory}/".startswith(f"{path}/") for directory in before):
                continue
            directories = [(shown, path)]
            while directories:
                shown, path = directories.pop()
                for name, what in self._directories.get(path, {}).items():
                    below, real = f"{shown}/{name}", f"{path}/{name}"
                    if what == _DIRECTORY:
                        directories.append((below, real))
                    elif what == _LINK:
                        waiting.append((below, real, before, steps))
                    else:
                        yield below, what
