"""A cluster's volume: reading past its nodes and through them, while nodes die, and what the masters say."""

from __future__ import annotations

import errno
import mmap
import multiprocessing
import os
import pathlib
import pickle
import random
import signal
import threading
import time
import zlib

import pytest

import redhare


@pytest.mark.parametrize("via", ["disk", "socket", "tcp"])
def test_every_file_by_every_way(cluster, folder, via):
    with redhare.open(cluster.address, via=via) as data:
        for _ in range(3):
            for position, content in enumerate(data.read_many(range(len(data)))):
                assert content == (folder / data.path(position)).read_bytes()
        past = data.statistics().past_reads
        assert (past > 0) == (via == "disk"), past


def test_several_masters_one_of_which_answers(cluster):
    with redhare.open(f"redhare://127.0.0.1:1,{cluster.masters}/photos/ant") as data:
        assert "0.JPG" in data.list()


def test_masters_from_the_environment(cluster, monkeypatch):
    monkeypatch.setenv("REDHARE_CLUSTER", cluster.masters)
    with redhare.open("redhare:///photos") as data:
        assert data["tiny"] == b"seven.."


def test_a_volume_that_is_not_there(cluster):
    with pytest.raises(FileNotFoundError, match="none"):
        redhare.open(f"redhare://{cluster.masters}/none")


def spoil(disk: pathlib.Path, contents: list[bytes]) -> int:
    """Changes a byte of each content on a disk; how many were found."""
    spoiled = 0
    with open(disk, "r+b") as file, mmap.mmap(file.fileno(), 0) as held:
        for content in contents:
            at = held.find(content[:64])
            if at >= 0:
                held[at + 500] ^= 0xFF
                spoiled += 1
        held.flush()
    return spoiled


@pytest.fixture(scope="module")
def unchecked(cluster):
    """The address of a volume whose nodes check nothing, so that what is rotten comes through to PackFS."""
    cluster.run("volume", "create", "rotten", "--size", "64MiB", "--checksums", "off", check=True)
    cluster.run("fs", "format", "rotten", check=True)
    yield f"redhare://{cluster.masters}/rotten"
    cluster.run("volume", "delete", "rotten", check=True)


def test_what_is_rotten_on_two_nodes_is_read_from_the_third(cluster, unchecked, tmp_path):
    # Nothing that another volume of these disks begins with.
    contents = [random.Random(f"rotten {number}").randbytes(3000) for number in range(20)]
    for number, content in enumerate(contents):
        (tmp_path / f"{number:02}").write_bytes(content)
    cluster.run("fs", "import", str(tmp_path), "rotten:files", check=True)
    for node in ("node1", "node2"):
        assert spoil(cluster.data / node / "disk", contents) == len(contents)
    for via in ("disk", "socket"):
        with redhare.open(unchecked, root="files", via=via) as data:
            assert data.read_many(range(len(data))) == contents
    # Where the last one is as bad, nothing else than what was written is given.
    assert spoil(cluster.data / "node3" / "disk", contents) == len(contents)
    with redhare.open(unchecked, root="files") as data, pytest.raises(OSError, match="0") as found:
        data.read_many(range(len(data)))
    assert found.value.errno == errno.EIO


def spoil_all(disk: pathlib.Path, name: bytes) -> int:
    """Changes a byte of each occurrence of a name on a disk; how many there were. Holes are not read: that would fill them."""
    spoiled, end = 0, disk.stat().st_size
    with open(disk, "r+b") as file:
        at = 0
        while at < end:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                assert error.errno == errno.ENXIO
                break
            hole = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            content = os.pread(file.fileno(), hole - at, at)
            found = content.find(name)
            while found >= 0:
                os.pwrite(file.fileno(), bytes([content[found] ^ 0xFF]), at + found)
                spoiled += 1
                found = content.find(name, found + 1)
            at = hole
    return spoiled


def test_a_writer_reads_an_index_that_is_rotten_on_two_nodes_from_the_third(cluster, unchecked, tmp_path):
    nodes = ("node1", "node2", "node3")
    for well in nodes:
        # A few pages of names, whichever node is asked first.
        names = [f"{well}-has-a-name-in-the-index-{number:04}" for number in range(300)]
        (tmp_path / well).mkdir()
        for name in names:
            (tmp_path / well / name).write_text(name)
        cluster.run("fs", "import", str(tmp_path / well), f"rotten:{well}", check=True)
        for node in nodes:
            if node != well:
                assert spoil_all(cluster.data / node / "disk", f"{well}-has-a-name".encode()) > 0
        with redhare.open(unchecked, writable=True, wait=60) as writer:
            writer.write(f"{well}/another", b"another")
            writer.write(f"{well}/{names[150]}", b"changed")
            writer.remove(f"{well}/{names[7]}")
            assert writer.list(well) == sorted({*names, "another"} - {names[7]})
            writer.commit()
        with redhare.open(unchecked) as data:
            assert data[f"{well}/another"] == b"another" and data[f"{well}/{names[150]}"] == b"changed"
            assert data.list(well) == sorted({*names, "another"} - {names[7]})


def more(cluster, folder: pathlib.Path, name: str) -> None:
    """A commit that gives the volume another directory, and rewrites the pages of the index."""
    (folder / name).mkdir()
    (folder / name / "file").write_text(name)
    cluster.run("fs", "import", str(folder / name), f"photos:{name}", check=True)


def read_all(kept: bytes) -> tuple[int, list[str], int]:
    """What a process finds that was given a data set; also one level further down, once the one in between holds it."""
    data = pickle.loads(kept)
    contents = [bytes(content) for content in data.read_many(range(len(data)))]
    return data.generation, data.list(), zlib.crc32(b"".join(contents))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_that_starts_after_commits_has_its_parents_state(cluster, tmp_path, method):
    data = redhare.open(cluster.address)
    before = data.list()
    kept = pickle.dumps(data)
    expected = read_all(kept)
    for number in range(4):
        more(cluster, tmp_path, f"later-{method}-{number}")
    # What it removes are pages and content of the state that is held.
    with redhare.open(cluster.address, writable=True, wait=60) as writer:
        for number in range(4):
            writer.remove(f"later-{method}-{number}/file")
            writer.write(f"later-{method}-{number}/other", bytes(100_000))
            writer.commit()
    assert data.list() == before
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.map(read_all, [kept] * 4) == [expected] * 4
    # One that has it so holds it for others, also when the first has let it go.
    child = pickle.loads(kept)
    assert child.list() == before
    data.close()
    again = pickle.dumps(child)
    assert read_all(again) == expected
    with pytest.raises(OSError, match="holds that state no more") as raised:
        pickle.loads(kept).list()
    assert raised.value.errno == errno.ESTALE
    child.close()
    with pytest.raises(OSError, match="holds that state no more"):
        pickle.loads(again).list()
    with redhare.open(cluster.address) as newest:
        assert newest.list(f"later-{method}-0") == ["other"]


def test_who_went_on_holds_the_earlier_state_no_more(cluster, tmp_path):
    with redhare.open(cluster.address) as data:
        kept = pickle.dumps(data)
        more(cluster, tmp_path, "refreshed")
        assert read_all(kept)[0] == data.generation
        assert data.refresh()
        assert read_all(pickle.dumps(data))[0] == data.generation
        # The lease lets it go once nothing is read of it.
        deadline = time.monotonic() + 10
        with pytest.raises(OSError, match="holds that state no more"):
            while time.monotonic() < deadline:
                pickle.loads(kept).list()


def test_what_shows_the_lease_is_believed_only_as_it_is(cluster, tmp_path):
    with redhare.open(cluster.address) as data:
        superblock, place = data._handed
        process, descriptor, nonce, clock = place.split(" ", 3)
        more(cluster, tmp_path, "shown")
        read_end, write_end = os.pipe()
        assert read_all(pickle.dumps(data))[0] == data.generation
        for other in (
            f"{process} {descriptor} {'0' * len(nonce)} {clock}",
            f"{process} {descriptor} {nonce} time:[1]",
            f"{process} {read_end} {nonce} {clock}",
            f"{process} 9999 {nonce} {clock}",
            f"{1 << 30} {descriptor} {nonce} {clock}",
            "",
        ):
            child = pickle.loads(pickle.dumps(data))
            child._handed = (superblock, other)
            with pytest.raises(OSError, match="holds that state no more"):
                child.list()
        child = pickle.loads(pickle.dumps(data))
        child._handed = (superblock[:-1] + b"x", place)
        with pytest.raises(OSError):
            child.list()
        os.close(read_end)
        os.close(write_end)


def test_workers_start_while_somebody_imports(cluster, tmp_path):
    import torch

    import redhare.torch

    files = redhare.torch.Files(cluster.address, decode=lambda content: len(content), root="bee")
    loader = torch.utils.data.DataLoader(files, batch_size=2, num_workers=2)
    first = [batch.tolist() for batch in loader]
    for number in range(3):
        more(cluster, tmp_path, f"meanwhile-{number}")
        assert [batch.tolist() for batch in loader] == first
    files.data.close()


def test_a_snapshot_is_read_as_it_was_in_other_processes_too(cluster, tmp_path):
    cluster.run("fs", "snapshot", "create", "photos", "then", check=True)
    (tmp_path / "after").mkdir()
    (tmp_path / "after" / "file").write_text("after")
    cluster.run("fs", "import", str(tmp_path / "after"), "photos:after", check=True)
    with redhare.open(f"{cluster.address}@then") as data:
        assert data["tiny"] == b"seven.." and not data.exists("after/file")
        with pickle.loads(pickle.dumps(data)) as spawned:
            assert spawned.list() == data.list()
    with redhare.open(cluster.address) as newest:
        assert newest["after/file"] == b"after"
    with pytest.raises(OSError, match="then2"):
        redhare.open(f"{cluster.address}@then2")
    cluster.run("fs", "snapshot", "delete", "photos", "then", check=True)


def test_a_node_dies_and_reading_goes_on(cluster, folder):
    with redhare.open(cluster.address, root="bee") as data:
        expected = [(folder / "bee" / data.path(position)).read_bytes() for position in range(len(data))]
        count, killed = 0, False
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert data.read_many(range(len(data))) == expected
            count += len(data)
            if not killed:
                killed = True
                engine = int((cluster.data / "node2.lock").read_text().split()[0])
                target = int((cluster.data / "node2" / "target.lock").read_text().split()[0])
                for process in (engine, target):
                    os.kill(process, signal.SIGKILL)
        assert killed and count > len(data)
    deadline = time.monotonic() + 60
    while cluster.run("status").count(" alive ") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_refresh_goes_on_to_the_newest_commit_at_once(cluster, tmp_path):
    def write(name: str, content: str) -> None:
        (tmp_path / "new").mkdir(exist_ok=True)
        (tmp_path / "new" / "file").write_text(content)
        cluster.run("fs", "import", str(tmp_path / "new"), f"photos:{name}", check=True)

    with redhare.open(cluster.address) as data:
        assert not data.refresh(), "nothing was committed"
        files, state = len(data), data.generation
        write("fresh", "first")
        time.sleep(2)
        assert not data.exists("fresh/file") and len(data) == files, "it moves when it is asked to, not before"
        reading = data.begin_read_many(["large"] * 4)
        assert data.refresh() and data.generation > state
        assert data["fresh/file"] == b"first" and len(data) == files + 1
        assert len(reading.result()) == 4, "what was under way ends"
        assert not data.refresh()
        # Workers start where it is now.
        with pickle.loads(pickle.dumps(data)) as worker:
            assert worker["fresh/file"] == b"first"
        stale = pickle.loads(pickle.dumps(data))
        for number in range(5):
            write(f"fresh-{number}", str(number))
            assert data.refresh() and data[f"fresh-{number}/file"] == str(number).encode()
        assert stale.refresh() and stale["fresh-4/file"] == b"4", "so does one that could not be opened where it was"
        stale.close()
    with redhare.open(cluster.address, root="fresh") as inside:
        with redhare.open(cluster.address, writable=True) as writer:
            writer.rename("fresh", "gone")
        state = inside.generation
        with pytest.raises(FileNotFoundError):
            inside.refresh()
        assert inside.generation == state and inside["file"] == b"first", "what was shown still is"


def test_a_writer_hands_over_after_its_commit_when_another_asks(cluster):
    first = redhare.open(cluster.address, writable=True)
    first.write("mine", b"committed with the rest")
    opened = []

    def ask():
        opened.append(redhare.open(cluster.address, writable=True, take_over=True, wait=40))

    asking = threading.Thread(target=ask)
    asking.start()
    # Longer than it takes to hear of it: what is to be committed together is not torn.
    time.sleep(15)
    assert not opened
    first.write("the rest", b"of it")
    first.commit()
    asking.join(10)
    (second,) = opened
    assert {"mine", "the rest"} <= set(second.list())
    with pytest.raises(OSError, match="handed over to") as refused:
        first.write("late", b"")
    assert refused.value.errno == errno.EROFS
    first.close()
    # One that has nothing to commit gives it up by itself.
    with redhare.open(cluster.address, writable=True, take_over=True) as third:
        third.remove("mine")
        third.remove("the rest")
    second.close()
    with pytest.raises(OSError, match="take_over"):
        redhare.open("file:/nowhere", writable=True, take_over=True)


def counted(turns: list[int], seconds: float) -> int:
    """How far a thread counts in this time, while this one waits for something."""
    before = turns[0]
    time.sleep(seconds)
    return turns[0] - before


def test_other_threads_run_while_every_target_stands_still(cluster):
    """A call that waits holds the interpreter for nobody: a thread counts as fast as while this one sleeps."""
    turns, ended = [0], threading.Event()

    def count() -> None:
        while not ended.is_set():
            turns[0] += 1

    thread = threading.Thread(target=count)
    targets = [int(lock.read_text().split()[0]) for lock in cluster.data.glob("node*/target.lock")]
    assert len(targets) == 3
    with redhare.open(cluster.address, via="socket") as data:
        expected = bytes(data["tiny"])
        thread.start()
        try:
            alone = counted(turns, 1.0)
            for target in targets:
                os.kill(target, signal.SIGSTOP)
            try:
                before = turns[0]
                with pytest.raises(TimeoutError):
                    data.begin_read_many(["large"]).result(timeout=1.0)
                assert turns[0] - before > alone / 3
                before = turns[0]
                resume = threading.Timer(1.0, lambda: [os.kill(target, signal.SIGCONT) for target in targets])
                resume.start()
                begun = time.monotonic()
                assert data.read_many(["tiny", "large"])[0] == expected
                waited = time.monotonic() - begun
                assert waited > 0.5 and turns[0] - before > alone / 3 * waited
            finally:
                for target in targets:
                    os.kill(target, signal.SIGCONT)
        finally:
            ended.set()
            thread.join()
