"""The cache on a local disk: shared by processes, killed, damaged, refused, and used while nodes do not answer."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import warnings

import pytest

import redhare

MIB = 1 << 20
FILE = "redhare-cache-1"

READ_ALL = """
import pathlib, sys, redhare
address, folder, cache, size, rounds = sys.argv[1:]
with redhare.open(address, cache_dir=cache, cache_size=int(size)) as data:
    for _ in range(int(rounds)):
        for position, content in enumerate(data.read_many(range(len(data)))):
            assert content == (pathlib.Path(folder) / data.path(position)).read_bytes()
    done = data.statistics()
    print(done.local_hits, done.local_misses, done.local_on, flush=True)
"""


def read_all(data: redhare.DataSet, folder: pathlib.Path) -> None:
    """Reads everything, and compares all that is of the folder: other tests write to the cluster's volume, too."""
    compared = 0
    for position, content in enumerate(data.read_many(range(len(data)))):
        file = folder / data.path(position)
        if file.is_file():
            assert content == file.read_bytes()
            compared += 1
    assert compared == sum(file.is_file() and not file.is_symlink() for file in folder.rglob("*"))


def stored(data: redhare.DataSet) -> redhare.Statistics:
    """Waits until what was read is stored: nobody else does."""
    deadline = time.monotonic() + 60
    while True:
        done = data.statistics()
        if done.local_stored + done.local_dropped >= done.local_misses:
            return done
        assert time.monotonic() < deadline, done
        time.sleep(0.01)


def fill(data: redhare.DataSet, folder: pathlib.Path) -> None:
    """Reads until everything is stored: of what comes faster than the disk takes it some is not."""
    before = -1
    while before != data.statistics().local_misses:
        before = data.statistics().local_misses
        read_all(data, folder)
        stored(data)
    assert data.statistics().local_on == 1


def start(address: str, folder: pathlib.Path, cache: pathlib.Path, size: int, rounds: int) -> subprocess.Popen:
    arguments = [address, str(folder), str(cache), str(size), str(rounds)]
    return subprocess.Popen([sys.executable, "-c", READ_ALL, *arguments], stdout=subprocess.PIPE, text=True)


def test_another_run_reads_from_the_local_disk(image, folder, tmp_path):
    with redhare.open(image, cache_dir=tmp_path / "c", cache_size=64 * MIB) as data:
        fill(data, folder)
    with redhare.open(image, cache_dir=tmp_path / "c", cache_size=64 * MIB) as data:
        read_all(data, folder)
        again = data.statistics()
    assert again.reads == 0 and again.local_misses == 0 and again.local_damaged == 0
    assert again.local_hit_bytes > 20_000_003
    file = tmp_path / "c" / FILE
    assert again.local_file_bytes == file.stat().st_size <= 64 * MIB
    assert file.stat().st_mode & 0o777 == 0o600


def test_without_one_nothing_is_made(image, tmp_path):
    with redhare.open(image) as data:
        data.read_many(range(6))
        assert data.statistics().local_on == 0 and data.statistics().local_file_bytes == 0
    for wrong in ({"cache_dir": tmp_path / "c"}, {"cache_size": 64 * MIB}):
        with pytest.raises(ValueError, match="give both"):
            redhare.open(image, **wrong)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("size", [17 * MIB, 64 * MIB], ids=["too small", "large enough"])
def test_processes_share_it(image, folder, tmp_path, size):
    """All at once, over and over, also in less room than there is content."""
    running = [start(image, folder, tmp_path / "c", size, 5) for _ in range(4)]
    said = [one.communicate(timeout=300)[0].split() for one in running]
    assert [one.returncode for one in running] == [0] * 4
    assert all(on == "1" for _, _, on in said)
    assert (tmp_path / "c" / FILE).stat().st_size <= size
    with redhare.open(image, cache_dir=tmp_path / "c", cache_size=size) as data:
        read_all(data, folder)
        done = data.statistics()
        assert done.local_on == 1
        # One that comes later finds what they have left, where there was room for it.
        assert size < 64 * MIB or done.local_hits > 10 * done.local_misses, done


def test_killed_in_the_middle_of_writing(image, folder, tmp_path):
    for seed in range(6):
        process = start(image, folder, tmp_path / "c", 17 * MIB, 10_000)
        # Until it stores something; then at any moment.
        deadline = time.monotonic() + 60
        while not (tmp_path / "c" / FILE).exists() or (tmp_path / "c" / FILE).stat().st_blocks < 512:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        time.sleep(random.Random(seed).random() * 0.5)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        with redhare.open(image, cache_dir=tmp_path / "c", cache_size=17 * MIB) as data:
            read_all(data, folder)
            done = data.statistics()
            assert done.local_on == 1
        assert (tmp_path / "c" / FILE).stat().st_size <= 17 * MIB


def test_flipped_bits_never_reach_the_reader(image, folder, tmp_path):
    with redhare.open(image, cache_dir=tmp_path / "c", cache_size=64 * MIB) as data:
        fill(data, folder)
    file = tmp_path / "c" / FILE
    blocks = os.open(file, os.O_RDWR)
    end = file.stat().st_size
    at, flipped = 4096, 0
    while at < end:
        try:
            at = max(os.lseek(blocks, at, os.SEEK_DATA), at)
        except OSError:
            break
        byte = os.pread(blocks, 1, at)[0]
        os.pwrite(blocks, bytes([byte ^ 0x10]), at)
        at, flipped = at + 1999, flipped + 1
    os.close(blocks)
    assert flipped > 1000
    with redhare.open(image, cache_dir=tmp_path / "c", cache_size=64 * MIB) as data:
        read_all(data, folder)
        done = stored(data)
        assert done.local_on == 1 and done.local_damaged > 0
        # What was damaged has been stored again.
        before = done.local_hits
        read_all(data, folder)
        assert data.statistics().local_hits > before


def test_a_damaged_or_foreign_file_is_thrown_away_with_a_warning(image, folder, tmp_path):
    cache = tmp_path / "c"
    cache.mkdir()
    (cache / FILE).write_bytes(b"something else" * 1000)
    (cache / FILE).chmod(0o600)
    with pytest.warns(RuntimeWarning, match="it is made anew, empty"):
        data = redhare.open(image, cache_dir=cache, cache_size=20 * MIB)
    read_all(data, folder)
    assert data.statistics().local_on == 1
    # Another size, while this one uses it.
    with pytest.warns(RuntimeWarning, match="another process uses it"):
        other = redhare.open(image, cache_dir=cache, cache_size=30 * MIB)
    read_all(other, folder)
    assert other.statistics().local_on == 0
    other.close()
    data.close()
    with pytest.warns(RuntimeWarning, match="it is made anew, empty"):
        other = redhare.open(image, cache_dir=cache, cache_size=30 * MIB)
    other.close()
    assert (cache / FILE).stat().st_size <= 30 * MIB


def test_one_that_cannot_be_had_is_a_warning(image, folder, tmp_path):
    (tmp_path / "file").write_text("no directory")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    (open_to_all / FILE).touch(mode=0o644)
    for place, size, why in (
        (tmp_path / "file", 20 * MIB, "reading without a local cache: .*file"),
        (open_to_all, 20 * MIB, "other users may read"),
        (tmp_path / "small", 1 * MIB, "needs 16 MiB at least"),
    ):
        with pytest.warns(RuntimeWarning, match=why):
            data = redhare.open(image, cache_dir=place, cache_size=size)
        read_all(data, folder)
        assert data.statistics().local_on == 0
        data.close()


def test_a_full_disk_turns_it_off(image, folder, tmp_path):
    """A limit of the process on the length of files stands for a disk that is full."""
    code = f"""
import resource, signal, warnings
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import pathlib, redhare
opened = redhare.open({image!r}, cache_dir={str(tmp_path / "c")!r}, cache_size={20 * MIB})
resource.setrlimit(resource.RLIMIT_FSIZE, ({MIB}, {MIB}))
for _ in range(3):
    for position, content in enumerate(opened.read_many(range(len(opened)))):
        assert content == (pathlib.Path({str(folder)!r}) / opened.path(position)).read_bytes()
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    assert opened.statistics().local_on == 0
assert "is not used any more" in str(told[0].message), told
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_while_no_target_answers_what_is_here_can_be_read(cluster, folder, tmp_path):
    """The lease is the masters', and they answer: what was read before needs no target. What was not waits for one."""
    with redhare.open(cluster.address, via="tcp", cache_dir=tmp_path, cache_size=64 * MIB, cache_bytes=0) as data:
        fill(data, folder)
        locks = sorted(cluster.data.glob("node*/target.lock"))
        targets = [int(lock.read_text().split()[0]) for lock in locks]
        assert len(targets) == 3
        for target in targets:
            os.kill(target, signal.SIGSTOP)
        try:
            reads = data.statistics().reads
            for _ in range(2):
                read_all(data, folder)
            done = data.statistics()
            assert done.reads == reads and done.local_damaged == 0
        finally:
            for target in targets:
                os.kill(target, signal.SIGCONT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with redhare.open(cluster.address, via="tcp", cache_dir=tmp_path, cache_size=64 * MIB) as data:
            read_all(data, folder)
            assert data.statistics().local_misses == 0
    deadline = time.monotonic() + 60
    while cluster.run("status").count(" alive ") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.2)
