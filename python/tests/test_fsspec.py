"""`redhare://` in fsspec, pandas and pyarrow: by the entry point, as users have it."""

from __future__ import annotations

import errno

import fsspec
import pandas
import pyarrow.parquet
import pytest

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


@pytest.mark.parametrize(
    "write",
    [
        lambda files: files.open("new", "wb"),
        lambda files: files.pipe_file("new", b"x"),
        lambda files: files.rm("tiny"),
        lambda files: files.mkdir("new"),
        lambda files: files.touch("tiny"),
    ],
)
def test_what_would_write_says_that_it_only_reads(files, write):
    with pytest.raises(OSError, match="only reads so far") as raised:
        write(files)
    assert raised.value.errno == errno.EROFS


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
