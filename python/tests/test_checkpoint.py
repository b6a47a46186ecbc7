"""Proved here: what `torch.distributed.checkpoint` saves it loads again, from one process and from several ranks; a saver that
is killed leaves the checkpoint that was there, and nothing under its name that is half; PyTorch's own reader reads what
was exported."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

import redhare
from conftest import program, until_free

dcp = pytest.importorskip("dcp", exc_type=ImportError)


@pytest.fixture
def volume(tmp_path: pathlib.Path) -> str:
    """An image with nothing in it."""
    address = f"file:{tmp_path / 'image'}"
    program("fs", "format", address, "--size", "256MiB")
    return address


def state(seed: int) -> dict:
    random = torch.Generator().manual_seed(seed)
    base = torch.rand(1000, 300, generator=random)
    return {
        "weight": base,
        "part of another": base[10:20, ::3],
        "half": torch.rand(7, generator=random).to(torch.bfloat16),
        "count": torch.tensor(seed),
        "nothing": torch.zeros(0, 3),
        "step": {"epoch": seed, "name": "größe"},
    }


def blank() -> dict:
    """What is loaded into: of one shape with what was saved, since later PyTorch saves the members of dictionaries one by one."""
    empty = {name: torch.zeros_like(one) for name, one in state(0).items() if isinstance(one, torch.Tensor)}
    return empty | {"step": {"epoch": -1, "name": ""}}


def assert_same(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        same = torch.equal(found[name], one) if isinstance(one, torch.Tensor) else found[name] == one
        assert same, name


def start(code: str, *arguments: str) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], os.path.dirname(__file__)])}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_what_is_saved_is_loaded(volume, tmp_path):
    dcp.save(state(1), volume, "run/step-1")
    dcp.save(state(2), volume, "run/step-2")
    dcp.save(state(3), volume, "run/step-2")
    assert_same(dcp.load(blank(), volume, "run/step-1"), state(1))
    assert_same(dcp.load(blank(), volume, "run/step-2"), state(3))
    with redhare.open(volume) as data:
        assert data.list("run") == ["step-1", "step-2"]
        names = [data.list(f"run/step-{step}") for step in (1, 2)]
        assert all(len(pair) == 2 and pair[0] == ".metadata" for pair in names)
        # Of another save, so that nobody who loads mixes the two.
        assert all(re.fullmatch(r"__0_[0-9a-f]{12}_0\.distcp", pair[1]) for pair in names) and names[0] != names[1]
    assert '"clean": true' in program("fs", "verify", volume, "--json")
    with pytest.raises(FileNotFoundError, match="run/step-3"):
        dcp.RedhareReader(volume, "run/step-3").read_metadata()
    # Its files are those of PyTorch's own.
    program("fs", "export", f"{volume}:run/step-2", str(tmp_path / "exported"))
    found = blank()
    dcp.dcp.load_state_dict(found, dcp.dcp.FileSystemReader(tmp_path / "exported"), no_dist=True)
    assert_same(found, state(3))


def test_paths_are_checked():
    for wrong in ("", "/", "a/../b", "redhare://x/y"):
        with pytest.raises(ValueError, match="no path of a checkpoint"):
            dcp.RedhareWriter("file:x", wrong)
        assert not dcp.RedhareReader.validate_checkpoint_id(wrong)
    writer = dcp.RedhareWriter("file:x", "/a//b/")
    writer.reset("c")
    assert writer.path == "c" and dcp.RedhareWriter.validate_checkpoint_id("a/b")


KILLED = """
import sys, dcp, test_checkpoint
from redhare.torch import checkpoint

volume, where = sys.argv[1:]

def stop():
    print("ready", flush=True)
    sys.stdin.read()

class Stopping(dcp.RedhareWriter):
    def finish(self, metadata, results):
        if where == "before its name":
            stop()
        if where == "in the middle of its name":
            commit = checkpoint.Writer.commit
            checkpoint.Writer.commit = lambda writer: stop()
        super().finish(metadata, results)

saved = checkpoint._save
items = 0

def save(*arguments):
    global items
    items += 1
    if where == "in the middle of its content" and items == 4:
        stop()
    return saved(*arguments)

checkpoint._save = save
dcp.save(test_checkpoint.state(2), volume, "run/last", writer=Stopping)
"""


@pytest.mark.parametrize(
    "where", ["in the middle of its content", "before its name", "in the middle of its name"]
)
def test_a_saver_that_is_killed_leaves_the_checkpoint_before(volume, where):
    dcp.save(state(1), volume, "run/last")
    process = start(KILLED, volume, where)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdin.close()
    process.stdout.close()
    until_free(volume)
    assert_same(dcp.load(blank(), volume, "run/last"), state(1))
    with redhare.open(volume) as data:
        hidden = [name for name in data.list("run") if name != "last"]
        assert len(hidden) == 1 and hidden[0].startswith(".last.saving-")
        assert not data.exists(f"run/{hidden[0]}/.metadata")
    # The next one takes away what was left; of others, what has been there for more than a day.
    began = int(time.time())
    others = [f".other.saving-{began - age}-{'0' * 32}" for age in (86_300, 86_500)]
    of_before = f".last.saving-{'1' * 32}"
    with redhare.Writer(volume) as writer:
        for other in [*others, of_before]:
            writer.makedirs(f"run/{other}")
            writer.write(f"run/{other}/__0_0.distcp", b"half")
    dcp.save(state(3), volume, "run/last")
    assert_same(dcp.load(blank(), volume, "run/last"), state(3))
    with redhare.open(volume) as data:
        assert sorted(data.list("run")) == [others[0], "last"]
    assert '"clean": true' in program("fs", "verify", volume, "--json")


RANK = """
import sys, dcp, torch, test_checkpoint
import torch.distributed as dist

volume, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
from torch.distributed._shard import sharded_tensor

dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)

def state(values):
    shard = sharded_tensor.Shard.from_tensor_and_offsets(values, [rank * 500, 0], rank)
    whole = sharded_tensor.init_from_local_shards([shard], [1500, 20])
    return {"sharded": whole, "same everywhere": values[:0].clone() + 1}

own = torch.rand(500, 20, generator=torch.Generator().manual_seed(rank))
dcp.save(state(own), volume, "run/all", alone=False)
dist.barrier()
found = torch.zeros(500, 20)
dcp.load(state(found), volume, "run/all", alone=False)
assert torch.equal(found, own)
dist.barrier()
print("same", flush=True)
# Without this the group's threads still run when Python ends, and one of them may end the process.
dist.destroy_process_group()
"""


def test_several_ranks_save_one_checkpoint(volume, tmp_path):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo; install one that has")
    ranks = [start(RANK, volume, str(tmp_path / "store"), str(rank)) for rank in range(3)]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0] and said == ["same\n"] * 3
    with redhare.open(volume) as data:
        assert data.list("run") == ["all"]
        assert [name.split("_")[2] for name in data.list("run/all")[1:]] == ["0", "1", "2"]
