"""Proved here: what is written from Python is read back after a commit and not before; a commit is all that a killed process
leaves; there is one writer, and who else asks is told; large content comes out as it went in."""

import errno
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading

import pytest

import redhare
from conftest import program, python, until_free


@pytest.fixture
def empty(tmp_path: pathlib.Path) -> str:
    """An image with nothing in it."""
    address = f"file:{tmp_path / 'image'}"
    program("fs", "format", address, "--size", "128MiB")
    return address


def test_what_is_committed_is_read(empty):
    content = random.Random(1).randbytes(9_000_001)
    with redhare.open(empty, writable=True) as writer:
        writer.makedirs("a/b")
        writer.write("a/b/large", content)
        writer.write("a/tiny", memoryview(b"seven..")[::1])
        writer.write(os.fsdecode(b"a/odd-\xff"), bytearray(300))
        writer.write("a/tiny", b"six...")
        assert writer.list("a") == ["b", os.fsdecode(b"odd-\xff"), "tiny"]
        assert writer.exists("a/tiny") and not writer.exists("a/x") and not writer.exists("x/y")
    with redhare.open(empty) as data:
        assert data.read("a/b/large") == content
        assert data.read("a/tiny") == b"six..."
        assert data.read(b"a/odd-\xff") == bytes(300)
    with redhare.open(empty, root="a", writable=True) as writer:
        writer.rename("tiny", "b/small")
        with writer.create("piece by piece") as file:
            for part in (b"one ", b"two ", b"three"):
                assert file.write(part) == len(part)
        generation = writer.commit()
        writer.makedirs("c")
        writer.rename("b", "c", exchange=True)
        writer.remove("b")
    with redhare.open(empty) as data:
        assert data.generation > generation
        assert data.list("a") == ["c", os.fsdecode(b"odd-\xff"), "piece by piece"]
        assert data.read("a/c/small") == b"six..." and data.read("a/piece by piece") == b"one two three"
    assert '"clean": true' in program("fs", "verify", empty, "--json")


def test_a_clone_shares_and_goes_on_alone(empty):
    content = random.Random(2).randbytes(3_000_001)
    with redhare.open(empty, writable=True) as writer:
        writer.makedirs("v1/in")
        writer.write("v1/in/large", content)
        writer.write("v1/small", b"one")
        # What was not committed is part of it.
        writer.clone("v1", "v2")
        writer.write("v2/small", b"two")
        with pytest.raises(FileExistsError):
            writer.clone("v1", "v2")
        with pytest.raises(FileNotFoundError):
            writer.clone("v0", "v3")
    with redhare.open(empty, writable=True) as writer:
        writer.remove("v1")
    with redhare.open(empty) as data:
        assert data.list("") == ["v2"]
        assert data.read("v2/in/large") == content and data.read("v2/small") == b"two"
    assert '"clean": true' in program("fs", "verify", empty, "--json")


def test_a_full_volume_commits_nothing_by_itself(empty):
    with redhare.open(empty, writable=True) as writer:
        writer.write("data", b"old")
    writer = redhare.open(empty, writable=True)
    with pytest.raises(OSError) as refused:
        for part in range(100):
            writer.write("data" if part == 0 else f"more {part}", bytes([part]) * (2 << 20))
    assert refused.value.errno == errno.ENOSPC
    writer.close()
    with redhare.open(empty) as data:
        assert data.list("") == ["data"] and data.read("data") == b"old"
    # What is given back may be used again after the commit.
    with redhare.open(empty, writable=True) as writer:
        for round in range(6):
            writer.write("data", bytes([round]) * (30 << 20))
            writer.commit()
    with redhare.open(empty) as data:
        assert data.read("data") == bytes([5]) * (30 << 20)
    assert '"clean": true' in program("fs", "verify", empty, "--json")


def test_nothing_is_there_before_a_commit(empty):
    with pytest.raises(RuntimeError), redhare.open(empty, writable=True) as writer:
        writer.write("never", b"x")
        raise RuntimeError
    code = """
import redhare, sys
writer = redhare.open(sys.argv[1], writable=True)
writer.write("committed", b"1" * 1000)
writer.commit()
writer.write("committed", b"2" * 1000)
writer.write("not committed", b"3" * 5_000_000)
print("ready", flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", code, empty], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    with pytest.raises(OSError) as raised:
        redhare.open(empty, writable=True)
    assert raised.value.errno == errno.EBUSY and "another process has it open" in str(raised.value)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdin.close()
    process.stdout.close()
    until_free(empty)
    with redhare.open(empty) as data:
        assert data.list() == ["committed"] and data.read("committed") == b"1" * 1000


def test_refusals_are_errors_of_the_system(empty):
    with redhare.open(empty, writable=True) as writer:
        for refused, kind, text in [
            (lambda: writer.write("no/such", b""), FileNotFoundError, "no/such"),
            (lambda: writer.remove("nothing"), FileNotFoundError, "nothing"),
            (lambda: writer.write("x" * 256, b""), OSError, "256 bytes"),
            (lambda: writer.write("", b""), OSError, "names the whole file system"),
            (lambda: writer.write("large", bytes(1 << 28)), OSError, "the volume is full"),
        ]:
            with pytest.raises(kind, match=text):
                refused()
        writer.remove("large")
        writer.write("file", b"x")
        with pytest.raises(NotADirectoryError):
            writer.makedirs("file/inside")
    with pytest.raises(OSError, match="was closed"):
        writer.commit()
    writer.close()
    with redhare.open(empty) as data:
        assert data.list() == ["file"]


def test_a_writer_waits_for_another(empty):
    first = redhare.open(empty, writable=True)
    first.write("first", b"1")
    timer = threading.Timer(0.3, lambda: (first.commit(), first.close()))
    timer.start()
    with redhare.open(empty, writable=True, wait=60) as second:
        assert second.list() == ["first"]
    timer.join()


def test_a_child_of_a_fork_is_refused(empty):
    code = """
import os, redhare, sys
writer = redhare.open(sys.argv[1], writable=True)
writer.write("parent", b"1")
child = os.fork()
if child == 0:
    try:
        writer.write("child", b"2")
    except OSError as error:
        os._exit(17 if "before a fork" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
writer.commit()
writer.close()
"""
    ran = python(code, empty)
    assert ran.returncode == 0, ran.stderr
    with redhare.open(empty) as data:
        assert data.list() == ["parent"]


def test_a_volume_has_one_writer(cluster):
    address = f"{cluster.address}/written"
    writer = redhare.open(cluster.address, writable=True)
    try:
        with pytest.raises(OSError, match="is being written by redhare for Python, process") as raised:
            redhare.open(cluster.address, writable=True)
        assert raised.value.errno == errno.EBUSY
        writer.makedirs("written")
        writer.write("written/file", b"x" * 100_000)
        writer.commit()
        with redhare.open(address) as data:
            assert data.read("file") == b"x" * 100_000
    finally:
        writer.remove("written")
        writer.commit()
        writer.close()
