"""`torch.distributed.checkpoint`, wherever this PyTorch has it.

Debian's 1.13 does not import it under Python 3.11, which refuses what two of its dataclasses have as defaults because they
cannot be hashed. Here they can.
"""

import dataclasses

try:
    import torch.distributed.checkpoint as dcp
except ImportError:
    _real = dataclasses.dataclass

    def _hashable(cls=None, /, **options):
        def made(cls):
            cls = _real(cls, **options)
            if cls.__hash__ is None:
                cls.__hash__ = object.__hash__
            return cls

        return made if cls is None else made(cls)

    dataclasses.dataclass = _hashable
    try:
        import torch.distributed._shard.checkpoint as dcp
    finally:
        dataclasses.dataclass = _real

from redhare.torch.checkpoint import RedhareReader, RedhareWriter


def save(state, volume, path, *, alone=True, writer=RedhareWriter):
    dcp.save_state_dict(state, writer(volume, path, wait=60), no_dist=alone)


def load(state, volume, path, *, alone=True):
    dcp.load_state_dict(state, RedhareReader(volume, path), no_dist=alone)
    return state
