"""Listing, reading, and what goes wrong, on an image in a file."""

from __future__ import annotations

import errno
import gc
import os
import pathlib
import stat
import threading

import numpy
import pytest

import redhare
from conftest import program


def regular_files(folder: pathlib.Path) -> set[str]:
    found = {os.path.relpath(os.path.join(top, name), folder) for top, _, names in os.walk(folder) for name in names}
    return found - {"link"}


def test_every_file_has_a_position_and_its_bytes(data, folder):
    paths = [data.path(position) for position in range(len(data))]
    assert set(paths) == regular_files(folder) and len(set(paths)) == len(paths)
    contents = data.read_many(range(len(data)))
    by_path = data.read_many(paths)
    for position, path in enumerate(paths):
        expected = (folder / path).read_bytes()
        assert contents[position] == expected == by_path[position], path
        assert data.size(position) == len(expected)
        assert contents[position].readonly
    assert data[-1] == contents[-1] and data["tiny"] == b"seven.." == data[paths.index("tiny")]


def test_lists_and_walks_as_the_folder_does(data, folder):
    assert data.list() == sorted(os.listdir(folder), key=os.fsencode)
    assert sorted(data.list("ant")) == sorted(os.listdir(folder / "ant"))
    walked = {top: (sorted(inside), sorted(names)) for top, inside, names in data.walk()}
    for top, inside, names in os.walk(folder):
        relative = os.path.relpath(top, folder).removeprefix(".")
        assert walked.pop(relative) == (sorted(inside), sorted(names))
    assert not walked


def test_stat_is_the_files_own(data, folder):
    own, found = (folder / "tiny").stat(), data.stat("tiny")
    assert (found.name, found.kind, found.size, found.mode) == ("tiny", "file", 7, own.st_mode)
    assert (found.uid, found.gid, found.mtime_ns) == (own.st_uid, own.st_gid, own.st_mtime_ns)
    assert data.stat("").kind == "directory" and stat.S_ISDIR(data.stat("ant").mode)
    assert data.stat("link").kind == "symlink" and data.readlink("link") == "tiny"
    assert "tiny" in repr(found)


def test_names_are_bytes(data):
    name = b"not-utf8-\xff"
    assert os.fsdecode(name) in data.list()
    assert data[name] == data[os.fsdecode(name)] == data[pathlib.PurePath(os.fsdecode(name))] == b"name of bytes"


def test_parts_of_a_file(data, folder):
    whole = (folder / "large").read_bytes()
    assert data.read("large") == whole
    for offset, length in [(0, 10), (999_999, 2_000_003), (19_999_999, 100), (20_000_003, 1), (1 << 40, 5), (5, 0)]:
        assert data.read("large", offset, length) == whole[offset : offset + length]
    assert data.read("large", 3) == whole[3:]
    assert data.read("empty") == b"" == data.read("tiny", 7)
    with pytest.raises(ValueError):
        data.read("tiny", -1)


def test_a_root_inside(image):
    with redhare.open(image, root="ant") as data:
        assert "0.JPG" in data.list() and len(data) == 10
        assert data.path(0) in data.list()


@pytest.mark.parametrize(
    ("action", "kind", "number", "words"),
    [
        (lambda data: data.read("no/such"), FileNotFoundError, errno.ENOENT, "list its directory"),
        (lambda data: data.stat("no"), FileNotFoundError, errno.ENOENT, "there is no such file"),
        (lambda data: data.read("ant"), IsADirectoryError, errno.EISDIR, "list it instead"),
        (lambda data: data.read("tiny/x"), NotADirectoryError, errno.ENOTDIR, "not a directory"),
        (lambda data: data.list("tiny"), NotADirectoryError, errno.ENOTDIR, "read it"),
        (lambda data: data.read("link"), OSError, errno.ELOOP, "readlink()"),
        (lambda data: data.readlink("tiny"), OSError, errno.EINVAL, "not a symbolic link"),
    ],
)
def test_failures_are_of_their_kind_and_say_what_to_do(data, action, kind, number, words):
    with pytest.raises(kind) as raised:
        action(data)
    assert raised.value.errno == number and words in str(raised.value)
    assert raised.value.filename and data.address in str(raised.value)


def test_a_file_that_fails_fails_alone(data):
    first, failure, last = data.read_many(["tiny", "none", "empty"], errors="return")
    assert (first, last) == (b"seven..", b"") and isinstance(failure, FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        data.read_many(["tiny", "none"])
    with pytest.raises(IndexError):
        data.read_many([0, len(data)])
    with pytest.raises(ValueError):
        data.read_many([0], errors="ignore")
    assert data.read_many([]) == []


def test_opening_says_what_is_wrong(tmp_path):
    with pytest.raises(FileNotFoundError, match="fs format"):
        redhare.open(f"file:{tmp_path}/none")
    with pytest.raises(IsADirectoryError):
        redhare.open(f"file:{tmp_path}")
    (tmp_path / "zeros").write_bytes(bytes(1 << 20))
    with pytest.raises(OSError, match="holds no PackFS; format it") as raised:
        redhare.open(f"file:{tmp_path}/zeros")
    assert raised.value.errno == errno.EMEDIUMTYPE
    for address in ["", "file:", "photos", "redhare://", "redhare://h:1", "http://h/v"]:
        with pytest.raises(ValueError):
            redhare.open(address)
    with pytest.raises(ConnectionRefusedError, match="no master answers"):
        redhare.open("redhare://127.0.0.1:1/photos")
    if os.geteuid() != 0:
        (tmp_path / "zeros").chmod(0)
        with pytest.raises(PermissionError):
            redhare.open(f"file:{tmp_path}/zeros")


def test_no_root_inside(image):
    with pytest.raises(FileNotFoundError):
        redhare.open(image, root="no/such")


def test_damage_is_told_for_its_file_only(own_image, folder):
    content = (folder / "bee" / "0.JPG").read_bytes()
    file = pathlib.Path(own_image.removeprefix("file:"))
    whole = bytearray(file.read_bytes())
    at = whole.find(content)
    assert at > 0
    whole[at + 5] ^= 1
    file.write_bytes(whole)
    with redhare.open(own_image) as data:
        with pytest.raises(OSError, match="damaged in every copy") as raised:
            data.read("bee/0.JPG")
        assert raised.value.errno == errno.EIO and raised.value.filename == "bee/0.JPG"
        assert data["bee/1.JPG"] == (folder / "bee" / "1.JPG").read_bytes()


def test_contents_live_longer_than_the_data_set(image, folder):
    data = redhare.open(image)
    contents = data.read_many(["ant/0.JPG", "bee/0.JPG"])
    pending = data.begin_read_many(["cat/0.JPG"])
    last = pending.result()[0]
    data.close()
    del data, pending
    gc.collect()
    for name, content in zip(["ant", "bee"], contents):
        assert content == (folder / name / "0.JPG").read_bytes()
    assert last == (folder / "cat" / "0.JPG").read_bytes()


def test_nothing_is_copied_until_memory_runs_out(image, folder):
    whole = sorted(path.name for path in (folder / "ant").iterdir() if path.is_file())
    with redhare.open(image, memory_bytes=1 << 20) as data:
        # Views of one arrival lie side by side in the buffer of one joined read; copies do not.
        kept = [data.read_many([f"ant/{name}" for name in whole]) for _ in range(300)]
        for contents in kept:
            for name, content in zip(whole, contents):
                assert content == (folder / "ant" / name).read_bytes()


def test_closed_and_collected(image):
    data = redhare.open(image)
    data.close()
    data.close()
    with pytest.raises(ValueError, match="was closed; open it again"):
        data.read("tiny")
    # The lock of a reader keeps writers out, so it tells whether a collected one has gone.
    other = redhare.open(image)
    del other
    gc.collect()
    threads = [one for one in os.listdir("/proc/self/task") if _name(one) == "redhare"]
    for _ in range(100):
        threads = [one for one in threads if _name(one) == "redhare"]
        if not threads:
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"threads of closed data sets live: {threads}")


def _name(thread: str) -> str:
    try:
        return pathlib.Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


def test_readers_share_an_image_and_keep_writers_out(own_image, tmp_path):
    (tmp_path / "x").mkdir()
    with redhare.open(own_image) as one, redhare.open(own_image) as other:
        assert one["tiny"] == other["tiny"]
        with pytest.raises(AssertionError, match="another process has it open"):
            program("fs", "import", str(tmp_path / "x"), f"{own_image}:more")


def test_threads_share_a_data_set(data):
    expected = [bytes(content) for content in data.read_many(range(len(data)))]
    wrong = []

    def read(step: int) -> None:
        for position in range(0, len(data) * 5, step):
            if data[position % len(data)] != expected[position % len(data)]:
                wrong.append(position)

    threads = [threading.Thread(target=read, args=(step,)) for step in (1, 2, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_result_is_taken_once_and_waits_no_longer_than_told(data):
    pending = data.begin_read_many(["tiny"])
    assert pending.result(timeout=60) == [b"seven.."]
    with pytest.raises(ValueError, match="taken already"):
        pending.result()
    with pytest.raises(ValueError):
        data.begin_read_many(["tiny"]).result(timeout=-1)


def test_counts_what_it_does(data):
    data.read_many(range(len(data)))
    done = data.statistics()
    assert done.reads > 0 and done.read_bytes >= done.content_bytes > 20_000_000 and done.cached_bytes > 0
    assert done.past_reads == 0
    assert done.page_hits > done.page_misses > 0 and done.pages_evicted == 0


def test_contents_are_where_the_read_put_them(tmp_path):
    """Files that lie one behind another on the volume come in one read, and their contents lie so in memory: nobody has moved them.
    Copies (no memory may be lent) lie elsewhere."""
    (tmp_path / "files").mkdir()
    for number in range(8):
        (tmp_path / "files" / str(number)).write_bytes(bytes([number]) * (5001 + number))
    address = f"file:{tmp_path / 'image'}"
    program("fs", "format", address, "--size", "64MiB")
    program("fs", "import", str(tmp_path / "files"), address)

    def places(data: redhare.DataSet) -> tuple[list[memoryview], list[int]]:
        contents = data.read_many([str(number) for number in range(8)])
        return contents, [numpy.frombuffer(one, numpy.uint8).__array_interface__["data"][0] for one in contents]

    with redhare.open(address) as data:
        contents, lent = places(data)
        assert lent == [lent[0] + sum(5001 + number for number in range(index)) for index in range(8)]
        assert data.statistics().reads == 1
        # The buffer is not given to others while it is held, and is used again once it is not.
        _, others = places(data)
        assert not set(lent) & set(others) and contents[7] == bytes([7]) * 5008
        del contents, _
        assert places(data)[1][0] in (lent[0], others[0])
    with redhare.open(address, memory_bytes=0) as data:
        _, copied = places(data)
        assert all(after - before != 5001 + index for index, (before, after) in enumerate(zip(copied, copied[1:])))
