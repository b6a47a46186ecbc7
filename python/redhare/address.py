"""Where data sets are: ``redhare://HOST:PORT[,HOST:PORT...]/VOLUME[/PATH]`` or ``file:PATH``."""

from __future__ import annotations

import os
from typing import NamedTuple

SCHEME = "redhare://"


class Address(NamedTuple):
    """An address, taken apart."""

    masters: str
    """``host:port``, several separated by commas; empty for a local file."""
    volume: str
    """The volume's name; empty for a local file."""
    file: str
    """The local file or block device; empty for a volume."""
    path: str
    """A directory or file inside, without slashes at its ends."""


def parse(address: str | os.PathLike[str]) -> Address:
    """Takes an address apart.

    Without masters (``redhare:///VOLUME``) the environment's REDHARE_CLUSTER names them.

    Raises ValueError with what to write instead.
    """
    text = os.fspath(address)
    if text.startswith("file:"):
        file = text.removeprefix("file:")
        if not file:
            raise ValueError("file: names no file; write file:PATH")
        # The shell does this for a word of its own, but not after a colon.
        return Address("", "", os.path.expanduser(file), "")
    if not text.startswith(SCHEME):
        raise ValueError(
            f"{text!r} is no address of a data set; write redhare://HOST:PORT/VOLUME, or file:PATH for an image"
        )
    masters, _, rest = text.removeprefix(SCHEME).partition("/")
    volume, _, path = rest.partition("/")
    if not volume:
        raise ValueError(f"{text!r} names no volume; write redhare://HOST:PORT/VOLUME")
    masters = masters or os.environ.get("REDHARE_CLUSTER", "")
    if not masters:
        raise ValueError(
            f"{text!r} names no masters; write redhare://HOST:PORT/{volume}, or set REDHARE_CLUSTER"
        )
    return Address(masters, volume, "", path.strip("/"))
