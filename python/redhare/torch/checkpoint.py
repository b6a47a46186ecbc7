"""Checkpoints for ``torch.distributed.checkpoint`` on a Redhare volume.

``RedhareWriter`` and ``RedhareReader`` are its storage writer and reader::

    import torch.distributed.checkpoint as dcp
    from redhare.torch.checkpoint import RedhareReader, RedhareWriter

    dcp.save(state, storage_writer=RedhareWriter("redhare://127.0.0.1:7400/runs", "step-1000"))
    dcp.load(state, storage_reader=RedhareReader("redhare://127.0.0.1:7400/runs", "step-1000"))

A checkpoint is there whole or not at all: ranks write into a hidden directory, and the coordinator gives it its name and
commits only when all have. Who is killed before leaves the checkpoint that was there under that name; what is left of the
new one is removed by the next save of that name, and after a day by that of any other beside it. A volume has one writer at a time, so ranks take turns: each waits for the
lease, up to ``wait`` seconds.

Files and metadata are those of PyTorch's own ``FileSystemWriter``, so a checkpoint that was exported, or is mounted, can be
loaded by its ``FileSystemReader``. Like that one, the reader unpickles the metadata: load only what you trust.

Works with the module's place and names in PyTorch 1.13 (``torch.distributed._shard.checkpoint``) and since 2.0.
"""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import posixpath
import re
import time
import uuid
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.futures import Future

try:
    from torch.distributed.checkpoint import filesystem, planner, storage
except ImportError:
    # Its place until PyTorch 2.0.
    from torch.distributed._shard.checkpoint import filesystem, planner, storage

from ..dataset import open as open_data_set
from ..writer import Writer

METADATA = ".metadata"
BUFFER_BYTES = 4 << 20
# What a save that began so long ago has left is nobody's any more.
LEFT_SECONDS = 86_400
# Without a time: of the release before.
_SAVING = re.compile(r"\.(.+)\.saving-(?:(\d+)-)?[0-9a-f]{32}")


@dataclasses.dataclass
class _Staged:
    """Where a rank writes: what the coordinator tells it."""

    directory: str
    prefix: str


class _Place:
    """A checkpoint's volume and directory."""

    def __init__(self, volume: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.volume = os.fspath(volume)
        self.path = _checked(path)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Takes the path of another checkpoint in the same volume."""
        if checkpoint_id is not None:
            self.path = _checked(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it can be the path of a checkpoint in a volume."""
        try:
            _checked(checkpoint_id)
        except (TypeError, ValueError):
            return False
        return True


def _checked(path: str | os.PathLike[str]) -> str:
    names = [name for name in os.fspath(path).split("/") if name]
    if not names or ".." in names or "." in names or "://" in os.fspath(path):
        raise ValueError(f"{os.fspath(path)!r} is no path of a checkpoint in a volume; write one such as \"run/step-1000\"")
    return "/".join(names)


def _is_left(entry: str, name: str, now: int) -> bool:
    """Whether a save of `name` takes this for what another one has left: nobody saves one name twice at a time."""
    saving = _SAVING.fullmatch(entry)
    if saving is None:
        return False
    whose, began = saving.groups()
    return whose == name or began is not None and now - int(began) > LEFT_SECONDS


class RedhareWriter(_Place, storage.StorageWriter):
    """Saves a checkpoint as the directory ``path`` of a volume, in the place of one that is there. See the module.

    ``volume`` is an address as `redhare.open` takes it; ``wait`` is how many seconds to wait for another writer of the
    volume, other ranks among them.
    """

    def __init__(
        self, volume: str | os.PathLike[str], path: str | os.PathLike[str] = "checkpoint", *, wait: float = 600.0
    ) -> None:
        super().__init__(volume, path)
        self.wait = wait
        self._staging: str | None = None

    def _writer(self) -> Writer:
        return Writer(self.volume, wait=self.wait)

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Nothing: what it needs comes with the plan."""

    init = set_up_storage_writer  # Its name in PyTorch 1.13.

    def prepare_local_plan(self, plan: Any, **_: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any], **_: Any) -> list[Any]:
        """Makes the hidden directory, and removes those of saves of this name that did not end, and those of others that began long ago."""
        parent, name = posixpath.split(self.path)
        now = int(time.time())
        save = uuid.uuid4().hex
        self._staging = posixpath.join(parent, f".{name}.saving-{now}-{save}")
        with self._writer() as writer:
            writer.makedirs(parent)
            for left in writer.list(parent):
                if _is_left(left, name, now):
                    writer.remove(posixpath.join(parent, left))
            writer.makedirs(self._staging)
        # Each save names its files anew: who loads while another save takes the checkpoint's place misses some, and gets none of the other.
        return [
            dataclasses.replace(plan, storage_data=_Staged(self._staging, f"__{rank}_{save[:12]}_"))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: Any, planner: Any) -> Future[list[Any]]:
        """Writes all items of this rank into one file, and commits it."""
        staged: _Staged = plan.storage_data
        results = []
        if plan.items:
            file_name = f"{staged.prefix}0.distcp"
            with self._writer() as writer:
                raw: Any = writer.create(posixpath.join(staged.directory, file_name))
                with io.BufferedWriter(raw, BUFFER_BYTES) as file:
                    results = [_save(file, file_name, item, planner) for item in plan.items]
        future: Future[list[Any]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        """Writes the metadata and gives the checkpoint its name, in one commit."""
        assert self._staging is not None, "DCP asks the coordinator for a plan first"
        metadata.storage_data = {result.index: result.storage_data for rank in results for result in rank}
        with self._writer() as writer:
            writer.write(posixpath.join(self._staging, METADATA), pickle.dumps(metadata))
            if writer.exists(self.path):
                writer.rename(self._staging, self.path, exchange=True)
                writer.remove(self._staging)
            else:
                writer.rename(self._staging, self.path)
        self._staging = None


def _save(file: io.BufferedWriter, file_name: str, item: Any, saved: Any) -> Any:
    start = file.tell()
    data = saved.resolve_data(item)
    if item.type == planner.WriteItemType.BYTE_IO:
        file.write(data.getbuffer())
    else:
        tensor = data.detach().cpu()
        own = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        if tensor.numel() * tensor.element_size() != own.nbytes():
            # Only what is seen of a larger tensor.
            tensor = tensor.clone()
        torch.save(tensor, file)
    length = file.tell() - start
    where = filesystem._StorageInfo(file_name, start, length)
    return storage.WriteResult(index=item.index, size_in_bytes=length, storage_data=where)


class RedhareReader(_Place, storage.StorageReader):
    """Loads the checkpoint in the directory ``path`` of a volume. See the module."""

    def __init__(self, volume: str | os.PathLike[str], path: str | os.PathLike[str] = "checkpoint") -> None:
        super().__init__(volume, path)
        self._storage: dict[Any, Any] = {}

    def read_metadata(self, *_: Any, **__: Any) -> Any:
        with open_data_set(self.volume) as opened:
            return pickle.loads(opened.read(posixpath.join(self.path, METADATA)))

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Takes the places of all items."""
        self._storage = metadata.storage_data

    init = set_up_storage_reader  # Its name in PyTorch 1.13.

    def prepare_local_plan(self, plan: Any, **_: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any], **_: Any) -> list[Any]:
        return plans

    def read_data(self, plan: Any, planner: Any) -> Future[None]:
        """Reads each item, in the order of the files."""
        place = lambda item: self._storage[item.storage_index]  # noqa: E731
        with open_data_set(self.volume) as opened:
            for item in sorted(plan.items, key=lambda item: (place(item).relative_path, place(item).offset)):
                where = place(item)
                path = posixpath.join(self.path, where.relative_path)
                _load(item, io.BytesIO(opened.read(path, where.offset, where.length)), planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future


def _load(item: Any, content: io.BytesIO, loaded: Any) -> None:
    if item.type == planner.LoadItemType.BYTE_IO:
        loaded.load_bytes(item, content)
        return
    try:
        tensor = torch.load(content, map_location="cpu", weights_only=True)
    except TypeError:
        # Before 1.13.
        tensor = torch.load(content, map_location="cpu")
    tensor = narrow_tensor_by_index(tensor, item.storage_offsets, item.lengths)
    target = loaded.resolve_tensor(item).detach()
    if target.size() != tensor.size():
        raise ValueError(f"{item.storage_index} has size {tuple(tensor.size())}, and {tuple(target.size())} is to be loaded")
    target.copy_(tensor)
    loaded.commit_tensor(item, target)
