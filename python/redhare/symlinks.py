"""Symbolic links, followed inside of a data set only."""

from __future__ import annotations

import errno
import posixpath

from ._native import Entry
from .dataset import DataSet

STEPS_MAX = 40
"""Links on the way to one file, those that other links lead to among them; Linux follows as many."""


def resolve(data: DataSet, path: str) -> tuple[str, Entry]:
    """The path without links that a path leads to, and what is there.

    An OSError names ``path``: ENOENT where there is nothing, ELOOP for too many links or a circle, EXDEV for a target that is absolute
    or outside of the data set, whose paths mean nothing here.
    """
    try:
        entry = data.stat(path)
        if entry.kind != "symlink":
            # Most have none, and need one question only.
            return path, entry
    except NotADirectoryError:
        pass
    here, found, steps = "", data.stat(""), 0
    waiting = path.split("/")[::-1]
    while waiting:
        name = waiting.pop()
        if name in ("", "."):
            continue
        if found.kind != "directory":
            raise NotADirectoryError(errno.ENOTDIR, f"{here} is no directory", path)
        if name == "..":
            if not here:
                raise OSError(errno.EXDEV, "a symbolic link on the way leads outside of the data set, and is not followed", path)
            here = posixpath.dirname(here)
            found = data.stat(here)
            continue
        at = posixpath.join(here, name)
        try:
            entry = data.stat(at)
        except FileNotFoundError:
            if not steps:
                raise
            raise FileNotFoundError(errno.ENOENT, f"a symbolic link on the way leads to {at}, and there is nothing", path) from None
        if entry.kind != "symlink":
            here, found = at, entry
            continue
        steps += 1
        if steps > STEPS_MAX:
            raise OSError(errno.ELOOP, f"there are more than {STEPS_MAX} symbolic links on the way, or they lead in a circle", path)
        target = data.readlink(at)
        if target.startswith("/"):
            raise OSError(errno.EXDEV, f"the symbolic link {at} has an absolute target, {target}, and is not followed", path)
        waiting += target.split("/")[::-1]
    return here, found


def resolve_parent(data: DataSet, path: str) -> tuple[str, Entry]:
    """As `resolve`, but a link that the path itself names is not followed."""
    try:
        return path, data.stat(path)
    except NotADirectoryError:
        directory, name = posixpath.split(path)
        real = posixpath.join(resolve(data, directory)[0], name)
        return real, data.stat(real)


def resolve_file(data: DataSet, path: str) -> tuple[str, Entry]:
    """As `resolve`, for a regular file: anything else has no content, and is refused."""
    real, entry = resolve(data, path)
    if entry.kind == "directory":
        raise IsADirectoryError(errno.EISDIR, "is a directory; read a file in it", path)
    if entry.kind != "file":
        raise OSError(errno.EOPNOTSUPP, f"is a {entry.kind}, which has no content to read", path)
    return real, entry
