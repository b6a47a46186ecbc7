"""`redhare://` in fsspec, pandas and pyarrow: by the entry point, as users have it."""

from __future__ import annotations

import errno
import os
import pathlib
import threading

import fsspec
import pandas
import pyarrow.fs
import pyarrow.parquet
import pytest

import redhare

from conftest import program


@pytest.fixture
def files(image):
    return fsspec.filesystem("redhare", address=image)


def test_lists_and_informs(files, folder):
    assert set(files.ls("", detail=False)) == {path.name for path in folder.iterdir()}
    assert "ant/0.JPG" in files.ls("/ant/", detail=False)
    tiny = files.info("tiny")
    assert (tiny["name"], tiny["size"], tiny["type"]) == ("tiny", 7, "file")
    assert files.isdir("ant") and files.isfile("tiny") and not files.exists("none")
    assert files.modified("tiny").year == 2017
    assert {path for path in files.glob("**/*.JPG")} == {
        str(path.relative_to(folder)) for path in folder.rglob("*.JPG")
    }
    assert files.du("ant") > 0 and len(files.find("bee")) == 9
    with pytest.raises(FileNotFoundError):
        files.ls("none")


def test_reads(files, folder, tmp_path):
    whole = (folder / "large").read_bytes()
    assert files.cat_file("tiny") == b"seven.." and files.cat_file("tiny", 1, -2) == b"even"
    assert files.cat_file("large", -10) == whole[-10:]
    assert files.cat_ranges(["tiny", "large"], [0, 5], [3, 9]) == [b"sev", whole[5:9]]
    assert files.cat(["tiny", "empty"]) == {"tiny": b"seven..", "empty": b""}
    assert files.cat("ant", recursive=True)["ant/notes.txt"] == b"no image\n"
    with files.open("large") as file:
        file.seek(12_345_678)
        assert file.read(1000) == whole[12_345_678:12_346_678]
        file.seek(0)
        assert file.read() == whole
    with files.open("table.csv", "rt") as text:
        assert text.readline() == "a,b\n"
    files.get("bee", str(tmp_path / "bee"), recursive=True)
    assert (tmp_path / "bee" / "0.JPG").read_bytes() == (folder / "bee" / "0.JPG").read_bytes()


def linked(root: pathlib.Path) -> None:
    """Links of all kinds, and what is no file."""
    (root / "a/in").mkdir(parents=True)
    (root / "a/file").write_bytes(b"content")
    (root / "a/in/deep").write_bytes(b"deep down")
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2, 3]}), root / "a/in/table.parquet")
    links = {
        "file": "a/file",
        "a/in/up": "../file",
        "dir": "a/./in",
        "a/again": "../dir/up",  # through a link to a directory, to another link
        "a/round": "..",
        "table.parquet": "dir/table.parquet",
    }
    refused = {"dangling": "a/none", "circle": "circle2", "circle2": "circle", "outside": "../etc", "absolute": "/etc/passwd", "no-dir": "a/file/x"}
    for path, target in (links | refused).items():
        (root / path).symlink_to(target)
    os.mkfifo(root / "pipe")


def test_links_are_read_as_what_they_lead_to(tmp_path):
    root, address = tmp_path / "root", f"file:{tmp_path / 'image'}"
    linked(root)
    program("fs", "format", address, "--size", "64MiB")
    program("fs", "import", str(root), address, "--special")
    files, local = fsspec.filesystem("redhare", address=address), fsspec.filesystem("file")
    through = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(files))
    for path in ("file", "a/in/up", "dir/deep", "a/again", "dir/up", "a/round/a/round/file", "a/file", "table.parquet"):
        expected = (root / path).read_bytes()
        with files.open(path) as file:
            assert file.read() == expected == files.cat_file(path) == files.cat(path), path
        assert files.cat_file(path, 1, -1) == expected[1:-1]
        files.get_file(path, str(tmp_path / "got"))
        assert (tmp_path / "got").read_bytes() == expected
        with through.open_input_file(path) as file:
            assert file.read() == expected
        ours, theirs = files.info(path), local.info(str(root / path))
        for name in ("size", "type", "islink", "mode", "destination"):
            assert ours.get(name) == theirs.get(name), (path, name)
        assert through.get_file_info(path).type == pyarrow.fs.FileType.File and through.get_file_info(path).size == len(expected)
    assert files.cat(["file", "a/again"]) == {"file": b"content", "a/again": b"content"}
    assert pandas.read_parquet("table.parquet", filesystem=through)["n"].tolist() == [1, 2, 3]

    assert files.isdir("dir") and files.info("dir")["islink"] and files.info("dir")["destination"] == "a/./in"
    assert files.ls("dir", detail=False) == ["dir/deep", "dir/table.parquet", "dir/up"]
    listed = {one["name"]: (one["type"], one["size"], one["islink"]) for one in files.ls("")}
    assert listed["file"] == ("file", 7, True) and listed["dir"] == ("link", 0, True) and listed["circle"] == ("link", 0, True)
    assert set(files.find("a")) == {"a/file", "a/in/deep", "a/in/up", "a/in/table.parquet", "a/again", "a/round"}
    files.get("a", str(tmp_path / "all"), recursive=True)
    assert (tmp_path / "all/again").read_bytes() == (tmp_path / "all/in/up").read_bytes() == b"content"
    files.get("dir", str(tmp_path / "dir"), recursive=True)
    assert (tmp_path / "dir/deep").read_bytes() == b"deep down"

    refused = {
        "dangling": errno.ENOENT,
        "circle": errno.ELOOP,
        "outside": errno.EXDEV,
        "absolute": errno.EXDEV,
        "no-dir": errno.ENOTDIR,
        "dir": errno.EISDIR,
        "a": errno.EISDIR,
        "pipe": errno.EOPNOTSUPP,
    }
    for path, number in refused.items():
        reads = [lambda: files.open(path), lambda: files.cat_file(path), lambda: files.cat_file(path, 0, 3)]
        if number != errno.EISDIR:
            # Of a directory it makes one.
            reads.append(lambda: files.get_file(path, str(tmp_path / "none")))
        for read in reads:
            with pytest.raises(OSError, match=path) as raised:
                read()
            assert raised.value.errno == number, path
    for path in ("dangling", "circle", "outside", "absolute", "no-dir"):
        assert files.info(path)["type"] == "link" and not files.isfile(path) and files.ls(path, detail=False) == [path]
    assert set(files.cat(["file", "dangling", "pipe"], on_error="omit")) == {"file"}
    returned = files.cat(["file", "dangling"], on_error="return")
    assert returned["file"] == b"content" and returned["dangling"].errno == errno.ENOENT
    # A link is removed, and not what it leads to.
    for path in ("dangling", "dir", "file"):
        files.rm(path)
    assert not files.exists("dir") and files.cat_file("a/in/up") == b"content" and files.exists("a/in/deep")


@pytest.fixture
def own(own_image):
    """A file system that a test may change."""
    return fsspec.filesystem("redhare", address=own_image, skip_instance_cache=True)


@pytest.fixture(scope="module")
def own_volume(cluster):
    """A volume that is written."""
    cluster.run("volume", "create", "own", "--size", "64MiB", check=True)
    cluster.run("fs", "format", "own", check=True)
    return f"redhare://{cluster.masters}/own"


@pytest.fixture
def volume(own_volume, request):
    """The address of a directory of its own in a volume."""
    with redhare.open(own_volume, writable=True, wait=60) as writer:
        writer.makedirs(request.node.name)
    return f"{own_volume}/{request.node.name}"


def hidden(files) -> list[str]:
    return [name for name in files.find("") if ".fsspec-" in name]


def works(files, tmp_path) -> None:
    """Every call that writes, in a file system that may be changed."""
    state = files.dataset.generation
    files.pipe("made/here/one", b"1")
    assert files.cat("made/here/one") == b"1" and files.dataset.generation == state + 1
    files.pipe({"made/a": b"a", "made/b": b"b", "made/c": b"c"})
    assert files.dataset.generation == state + 2, "one call, one commit"
    files.pipe_file("made/a", memoryview(b"another"))
    assert files.cat(["made/a", "made/b"]) == {"made/a": b"another", "made/b": b"b"}
    with pytest.raises(FileExistsError):
        files.pipe_file("made/a", b"", mode="create")
    with pytest.raises(FileExistsError):
        files.open("made/a", "xb")
    with pytest.raises(IsADirectoryError):
        files.pipe_file("made/here", b"a directory")
    whole = bytes(range(256)) * 40_000
    with files.open("made/large", "wb") as file:
        for start in range(0, len(whole), 1_000_001):
            file.write(whole[start : start + 1_000_001])
        assert file.tell() == len(whole) and not files.exists("made/large"), "it has no name before it is whole"
    assert files.cat_file("made/large") == whole
    with files.open("made/text", "w", encoding="utf-16") as text:
        text.write("lines\n" * 3)
    assert files.cat_file("made/text").decode("utf-16") == "lines\n" * 3
    with files.open("made/packed.gz", "wt", compression="infer") as file:
        file.write("packed")
    with files.open("made/packed.gz", "rb", compression="gzip") as file:
        assert file.read() == b"packed"
    for mode, packed in (("wb", None), ("w", None), ("wb", "gzip"), ("wt", "gzip")):
        with pytest.raises(KeyError), files.open("made/a", mode, compression=packed) as file:
            file.write(b"half" if mode == "wb" else "half")
            raise KeyError
    with pytest.raises(OSError, match="written whole") as raised:
        files.open("made/a", "ab")
    assert raised.value.errno == errno.EOPNOTSUPP and files.cat_file("made/a") == b"another"

    (tmp_path / "tree" / "in").mkdir(parents=True)
    (tmp_path / "tree" / "in" / "leaf").write_bytes(b"leaf")
    (tmp_path / "tree" / "top").write_bytes(whole)
    state = files.dataset.generation
    files.put(str(tmp_path / "tree"), "put", recursive=True)
    assert files.dataset.generation == state + 1 or files.address.startswith("file:")
    assert files.cat_file("put/in/leaf") == b"leaf" and files.cat_file("put/top") == whole
    files.put_file(str(tmp_path / "tree" / "in" / "leaf"), "put/alone")
    assert files.cat_file("put/alone") == b"leaf"
    files.mv("put/alone", "moved/away")
    assert files.cat_file("moved/away") == b"leaf" and not files.exists("put/alone")
    files.mv("put", "moved", recursive=True)
    assert files.cat_file("moved/put/in/leaf") == b"leaf" and not files.exists("put")
    files.cp_file("moved/away", "made/a")
    assert files.cat_file("made/a") == b"leaf" == files.cat_file("moved/away")
    files.copy("moved/put", "copied", recursive=True)
    assert files.cat_file("copied/in/leaf") == b"leaf" and files.cat_file("moved/put/top") == whole
    files.touch("made/empty")
    assert files.info("made/empty")["size"] == 0

    files.mkdir("made/dir/in")
    with pytest.raises(FileExistsError):
        files.makedirs("made/dir")
    files.makedirs("made/dir", exist_ok=True)
    with pytest.raises(OSError, match="not empty"):
        files.rmdir("made/dir")
    files.rmdir("made/dir/in")
    with pytest.raises(IsADirectoryError):
        files.rm("made/dir")
    with pytest.raises(FileNotFoundError):
        files.rm("made/none")
    files.rm("made/*.gz")
    files.rm(["made/b", "made/c"])
    assert not files.exists("made/packed.gz") and not files.exists("made/b")
    files.rm("moved", recursive=True)
    assert not files.exists("moved")

    state = files.dataset.generation
    with files.transaction:
        files.pipe("together/one", b"1")
        with files.open("together/two", "wb") as file:
            file.write(b"2")
        left = files.open("together/three", "wb")
        left.write(b"3")
        files.mv("together/one", "together/first")
        assert files.address.startswith("file:") or not files.exists("together"), "nothing is seen before the end"
    assert files.dataset.generation == state + 1
    assert files.cat("together", recursive=True) == {
        "together/first": b"1", "together/two": b"2", "together/three": b"3",
    }
    with pytest.raises(KeyError), files.transaction:
        files.rm("together", recursive=True)
        files.pipe("other", b"x")
        raise KeyError
    assert files.dataset.generation == state + 1 and files.cat_file("together/two") == b"2"
    files.pipe("other", b"after it")
    assert files.cat_file("other") == b"after it" and not hidden(files)


def test_writes_into_an_image(own, tmp_path):
    works(own, tmp_path)
    own.dataset.close()
    assert '"clean": true' in program("fs", "verify", own.address, "--json")


def test_writes_into_a_volume(volume, tmp_path):
    files = fsspec.filesystem("redhare", address=volume, skip_instance_cache=True)
    works(files, tmp_path)
    files.dataset.close()


def test_an_open_file_is_read_in_one_state(own):
    first, second = bytes(10_000), b"x" * 10_000
    own.pipe({"changed": first, "kept": first, "gone": first})
    open_files = {name: own.open(name, cache_type="none") for name in ("changed", "kept", "gone")}
    for file in open_files.values():
        assert file.read(10) == first[:10]
    own.pipe("changed", second)
    own.rm("gone")
    assert open_files["kept"].read() == first[10:]
    for name in ("changed", "gone"):
        with pytest.raises(OSError, match="open it again") as raised:
            open_files[name].read()
        assert raised.value.errno == errno.ESTALE
    assert own.cat_file("changed") == second


def test_a_transaction_whose_end_fails_is_over(own, monkeypatch):
    def fails(writer, *args):
        raise OSError(errno.ENOSPC, "no room")

    with pytest.raises(OSError, match="no room"):
        with own.transaction:
            own.pipe("a", b"a")
            monkeypatch.setattr("redhare.filesystem.Writer.commit", fails)
    monkeypatch.undo()
    own.pipe("b", b"b")
    assert own.cat_file("b") == b"b" and not own.exists("a")


def test_who_writes_meanwhile_is_told_or_waited_for(volume):
    files = fsspec.filesystem("redhare", address=volume, write_wait=0.3, skip_instance_cache=True)
    patient = fsspec.filesystem("redhare", address=volume, write_wait=60, skip_instance_cache=True)
    with redhare.open(volume, writable=True):
        with pytest.raises(OSError, match="is being written by") as raised:
            files.pipe("a", b"1")
        assert raised.value.errno == errno.EBUSY
        waiting = threading.Thread(target=patient.pipe, args=("b", b"2"))
        waiting.start()
    waiting.join(60)
    assert patient.cat_file("b") == b"2"
    files.pipe("a", b"1")
    assert files.cat(["a", "b"]) == {"a": b"1", "b": b"2"}
    # Threads that share one take turns.
    threads = [threading.Thread(target=files.pipe, args=(f"t/{number}", bytes([number]))) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert files.cat("t", recursive=True) == {f"t/{number}": bytes([number]) for number in range(6)}


def test_what_has_no_room_leaves_nothing(volume):
    files = fsspec.filesystem("redhare", address=volume, skip_instance_cache=True)
    files.pipe("kept", b"kept")
    with pytest.raises(OSError) as raised:
        files.pipe({"small": b"s", "huge": bytes(range(256)) * (280 << 12)})
    assert raised.value.errno == errno.ENOSPC
    assert files.find("") == ["kept"]
    files.pipe("kept", b"and more")
    assert files.cat_file("kept") == b"and more" and not hidden(files)


def test_pandas_and_pyarrow_write(volume):
    table = pandas.DataFrame({"a": range(1000), "b": [str(number) for number in range(1000)]})
    table.to_csv(f"{volume}/x.csv", index=False)
    table.to_parquet(f"{volume}/deep/x.parquet")
    assert pandas.read_csv(f"{volume}/x.csv", dtype={"b": str}).equals(table)
    assert pandas.read_parquet(f"{volume}/deep/x.parquet").equals(table)
    files, _ = fsspec.core.url_to_fs(volume)
    written = pyarrow.table({"part": [0, 1, 2] * 10, "value": list(range(30))})
    with files.transaction:
        pyarrow.parquet.write_to_dataset(written, "parts", partition_cols=["part"], filesystem=files)
    assert pyarrow.parquet.read_table("parts", filesystem=files).num_rows == 30


class Half(Exception):
    """Something that goes wrong in mid-file."""


def half_written(whole: str, **options) -> None:
    with pytest.raises(Half), fsspec.open(whole, **options) as file:
        file.write("half" if "t" in options["mode"] else b"half")
        file.flush()
        raise Half


def test_what_was_half_written_is_dropped(volume):
    files, inside = fsspec.core.url_to_fs(volume)
    files.pipe(f"{volume}/old", b"old")
    state = files.dataset.generation
    for mode in ("wb", "wt"):
        for compression in (None, "gzip"):
            for name in ("old", "new"):
                half_written(f"{volume}/{name}", mode=mode, compression=compression)
    # Several at once, and one in a transaction that goes on.
    with pytest.raises(Half), fsspec.open_files([f"{volume}/one", f"{volume}/two"], "wb") as opened:
        for file in opened:
            file.write(b"half")
        raise Half
    files.dataset.refresh()
    assert files.dataset.generation == state, "nothing was committed"
    half_written(f"{volume}/deep/new", mode="wb")
    assert files.cat(f"{volume}/old") == b"old" and len(files.find(inside)) == 1 and not hidden(files)
    with files.transaction:
        half_written(f"{volume}/new", mode="wb")
        with fsspec.open(f"{volume}/whole", "wb") as file:
            file.write(b"whole")
    assert sorted(files.cat(inside, recursive=True).values()) == [b"old", b"whole"]

    # What is closed without an exception of its own is there, whatever else has gone wrong.
    try:
        raise Half
    except Half:
        with fsspec.open(f"{volume}/report", "wt") as file:
            file.write("what went wrong")
    opener = fsspec.open(f"{volume}/by hand", "wb")
    try:
        file = opener.open()
        file.write(b"by hand")
        raise Half
    except Half:
        opener.close()
    files.dataset.refresh()
    assert files.cat(f"{volume}/report") == b"what went wrong" and files.cat(f"{volume}/by hand") == b"by hand"


def test_addresses(cluster):
    files, path = fsspec.core.url_to_fs(f"{cluster.address}/ant/notes.txt")
    assert path == f"{cluster.address}/ant/notes.txt" and files.cat_file(path) == b"no image\n"
    assert files.unstrip_protocol(path) == path == files.unstrip_protocol("ant/notes.txt")
    # What is listed has names of the kind that was asked for, and either is opened.
    whole = files.glob(f"{cluster.address}/*/notes.txt")
    assert whole == [path] and files.glob("*/notes.txt") == ["ant/notes.txt"]
    assert path in files.ls(f"{cluster.address}/ant/", detail=False) and path in files.find(cluster.address)
    assert files.cat([path]) == {path: b"no image\n"} and files.cat_file("ant/notes.txt") == b"no image\n"
    assert files.isdir(cluster.address) and not files.exists(f"{cluster.address}/none")
    with pytest.raises(ValueError, match="open a file system for it"):
        files.info(f"{cluster.address}-not/ant")
    below = fsspec.filesystem("redhare", address=f"{cluster.address}/ant")
    assert below.cat_file(path) == below.cat_file("notes.txt") == b"no image\n"
    # Outside it, where a path inside has the same name.
    with pytest.raises(ValueError, match="open a file system for it"):
        below.cat_file(f"{cluster.address}/notes.txt")
    with fsspec.open(f"{cluster.address}/tiny") as file:
        assert file.read() == b"seven.."
    names = [file.path for file in fsspec.open_files(f"{cluster.address}/bee/*.JPG")]
    assert len(names) == 7


def test_pandas(cluster):
    table = pandas.read_csv(f"{cluster.address}/table.csv")
    assert table.shape == (5000, 2) and (table.b == table.a**2).all()


def test_pyarrow(folder, tmp_path):
    (tmp_path / "tables").mkdir()
    table = pyarrow.table({"a": list(range(1000)), "b": [str(number) for number in range(1000)]})
    for part in range(3):
        pyarrow.parquet.write_table(table, tmp_path / "tables" / f"{part}.parquet")
    address = f"file:{tmp_path}/tables.packfs"
    program("fs", "format", address, "--size", "64MiB")
    program("fs", "import", str(tmp_path / "tables"), f"{address}:tables")
    files = fsspec.filesystem("redhare", address=address)
    assert pyarrow.parquet.read_table("tables/1.parquet", filesystem=files) == table
    assert pyarrow.parquet.read_table("tables", filesystem=files).num_rows == 3000
