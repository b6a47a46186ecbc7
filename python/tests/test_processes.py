"""Forks, spawned processes, signals, ends."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

import redhare
from conftest import program, python


def read_in_child(data: redhare.DataSet, answers: multiprocessing.Queue) -> None:
    answers.put([bytes(content) for content in data.read_many(range(6))])
    answers.put((os.getpid(), data.statistics().reads))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_open_it_for_themselves(data, method):
    expected = [bytes(content) for content in data.read_many(range(6))]
    reads = data.statistics().reads
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    children = [context.Process(target=read_in_child, args=(data, answers)) for _ in range(2)]
    for child in children:
        child.start()
    got = [answers.get(timeout=60) for _ in range(4)]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert got.count(expected) == 2
    # Each with a handle of its own, which has done just this.
    assert {one[1] for one in got if isinstance(one, tuple)} == {reads}
    # The parent's goes on as if nothing had happened.
    assert [bytes(content) for content in data.read_many(range(6))] == expected
    assert data.statistics().reads > reads


def test_a_fork_in_the_middle_of_reading(data):
    """The child neither waits for what the parent was waiting for nor gives buffers back that are the parent's."""
    held = data.read_many(["ant/0.JPG"])
    pending = data.begin_read_many(["large"] * 8)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            try:
                pending.result(timeout=5)
            except OSError as error:
                status = 0 if error.errno == errno.ESTALE else 2
            view = held[0][:10]
            del held, pending
            if bytes(view) != bytes(data["ant/0.JPG"][:10]):
                status = 3
            data.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(len(content) == 20_000_003 for content in pending.result())


def test_pickled_it_stays_at_its_state(own_image, tmp_path):
    data = redhare.open(own_image, root="ant")
    kept = pickle.dumps(data)
    again = pickle.loads(kept)
    assert again.generation == data.generation and len(again) == len(data)
    data.close()
    again.close()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "new").write_text("new")
    program("fs", "import", str(tmp_path / "more"), f"{own_image}:more")
    late = pickle.loads(kept)
    with pytest.raises(OSError, match="open the data set anew") as raised:
        late.read("0.JPG")
    assert raised.value.errno == errno.ESTALE
    with redhare.open(own_image) as newest:
        assert newest["more/new"] == b"new"


def test_the_interpreter_ends_with_one_open(image):
    code = "import redhare, sys; data = redhare.open(sys.argv[1]); kept = data.read_many(range(9)); p = data.begin_read_many(['large'])"
    ended = python(code, image)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_control_c_is_heard_while_it_waits(image):
    # Who runs the tests in the background has children that ignore the signal from their start.
    code = """
import redhare, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
data = redhare.open(sys.argv[1])
print("reading", flush=True)
try:
    while True:
        data.read_many(["large"] * 200)
except KeyboardInterrupt:
    print("interrupted", len(data.read("tiny")))
"""
    child = subprocess.Popen([sys.executable, "-c", code, image], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "reading\n"
    time.sleep(0.3)
    begun = time.monotonic()
    child.send_signal(signal.SIGINT)
    try:
        told, _ = child.communicate(timeout=60)
    finally:
        child.kill()
    # What was asked for is finished first: the line after the interrupt stands behind it.
    assert (told, child.returncode) == ("interrupted 7\n", 0)
    assert time.monotonic() - begun < 30


def test_other_threads_run_while_it_waits(data):
    import threading

    turns, ended = [0], threading.Event()

    def count() -> None:
        while not ended.is_set():
            turns[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    pending = data.begin_read_many(["large"] * 10)
    before = turns[0]
    pending.result()
    assert turns[0] > before
    ended.set()
    thread.join()


def shared_memory() -> set[str]:
    # Other tests, which run beside this one, have their clusters there.
    others = ("redhare-test-", "redhare-faults-", "redhare-etcd-")
    return {name for name in os.listdir("/dev/shm") if not name.startswith(others)}


def test_a_killed_loader_leaves_nothing(own_image):
    code = """
import sys, redhare.torch, torch
torch.set_num_threads(1)
files = redhare.torch.Files(sys.argv[1], decode=lambda content: torch.tensor(list(content[:64])))
loader = redhare.torch.Loader(files, 1, num_workers=2)
while True:
    for batch in loader:
        print(len(batch), flush=True)
"""
    before = shared_memory()
    child = subprocess.Popen([sys.executable, "-c", code, own_image], stdout=subprocess.PIPE, text=True)
    for _ in range(5):
        assert child.stdout.readline()
    with open(f"/proc/{child.pid}/task/{child.pid}/children") as file:
        family = [int(process) for process in file.read().split()]
    assert len(family) == 2
    child.kill()
    child.wait()
    child.stdout.close()
    # PyTorch's workers look every few seconds whether their parent lives.
    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in family) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in family if os.path.exists(f"/proc/{pid}")]
    assert shared_memory() <= before
    # Nobody holds the image: a writer may have it.
    program("fs", "verify", own_image)
