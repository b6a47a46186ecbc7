"""DuckDB and Hugging Face's datasets over `redhare://`, in the versions that tests/python-libraries names, which runs this."""

from __future__ import annotations

import pathlib

import datasets
import duckdb
import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from conftest import CLASSES, IMAGES_A_CLASS

ROWS = 2000
SHARDS = 3


@pytest.fixture(scope="module")
def tables(cluster, tmp_path_factory) -> str:
    """Shards of a table, as Parquet and as CSV, in the volume; where they are."""
    place: pathlib.Path = tmp_path_factory.mktemp("tables")
    for shard in range(SHARDS):
        numbers = range(shard * ROWS, (shard + 1) * ROWS)
        table = pyarrow.table({"a": list(numbers), "b": [f"row {number}" for number in numbers]})
        # Many row groups, so that parts of a file are read.
        pyarrow.parquet.write_table(table, place / f"{shard}.parquet", row_group_size=100)
    cluster.run("fs", "import", str(place), "photos:shards", check=True)
    return f"{cluster.address}/shards"


@pytest.fixture
def connection(cluster, tables):
    # Made after the import: it shows the state that was the newest then.
    with duckdb.connect() as connection:
        files = fsspec.filesystem("redhare", address=cluster.address, skip_instance_cache=True)
        connection.register_filesystem(files)
        yield connection


def test_duckdb_counts_and_sums(connection, tables):
    whole = SHARDS * ROWS
    found = connection.sql(f"select count(*), sum(a), min(b) from '{tables}/*.parquet'").fetchall()
    assert found == [(whole, whole * (whole - 1) // 2, "row 0")]


def test_duckdb_reads_parts_of_a_file(connection, tables):
    found = connection.sql(f"select b from '{tables}/1.parquet' where a between {ROWS + 150} and {ROWS + 152} order by a")
    assert found.fetchall() == [(f"row {ROWS + number}",) for number in (150, 151, 152)]


def test_duckdb_reads_csv(connection, cluster):
    found = connection.sql(f"select count(*), sum(b) from read_csv('{cluster.address}/table.csv')").fetchall()
    assert found == [(5000, sum(row * row for row in range(5000)))]


def test_duckdb_is_told_what_is_not_there(connection, tables):
    with pytest.raises((duckdb.Error, OSError), match="none.parquet"):
        connection.sql(f"select * from '{tables}/none.parquet'").fetchall()


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_loads_parquet(tables, tmp_path, streaming):
    # With a pattern, so that datasets lists by itself.
    loaded = datasets.load_dataset(
        "parquet", data_files=f"{tables}/*.parquet", split="train", streaming=streaming, cache_dir=str(tmp_path)
    )
    rows = list(loaded)
    assert [row["a"] for row in rows] == list(range(SHARDS * ROWS))
    assert rows[-1]["b"] == f"row {SHARDS * ROWS - 1}"


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_loads_csv(cluster, tables, tmp_path, streaming):
    loaded = datasets.load_dataset(
        "csv", data_files=f"{cluster.address}/table.csv", split="train", streaming=streaming, cache_dir=str(tmp_path)
    )
    assert sum(row["b"] for row in loaded) == sum(row * row for row in range(5000))


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_loads_a_folder_of_images(cluster, folder, tmp_path, streaming):
    loaded = datasets.load_dataset(
        "imagefolder",
        data_files=[f"{cluster.address}/{name}/*.JPG" for name in CLASSES],
        split="train",
        streaming=streaming,
        cache_dir=str(tmp_path),
        drop_labels=False,
    )
    images = list(loaded)
    # A quarter of them are a directory further below.
    direct = sum(image % 4 != 3 for image in range(IMAGES_A_CLASS))
    assert len(images) == direct * len(CLASSES)
    names = loaded.features["label"].names
    assert names == list(CLASSES)
    by_class = {name: sorted(image["image"].size for image in images if names[image["label"]] == name) for name in CLASSES}
    for number, name in enumerate(CLASSES):
        expected = sorted((64 + number * 100 + image, 48) for image in range(IMAGES_A_CLASS) if image % 4 != 3)
        assert by_class[name] == expected
