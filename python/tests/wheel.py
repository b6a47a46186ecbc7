"""Reads a volume with the package that a wheel has installed: wheel.py ADDRESS DIRECTORY, whose files were imported there.

`scripts/wheel` runs it, with a Python that finds nothing but what pip has put into its environment.
"""

import importlib.metadata
import pathlib
import sys

import fsspec
import redhare


def check_installed() -> None:
    """The parts that a package of Python's alone would not miss."""
    place = pathlib.Path(redhare.__file__).parent
    assert "site-packages" in place.parts, f"{place} is not what was installed"
    for name in ["_native.pyi", "py.typed", "_native.abi3.so", "torch/__init__.py"]:
        assert (place / name).is_file(), f"the wheel has no {name}"
    assert importlib.metadata.version("redhare") == redhare.__version__
    points = importlib.metadata.entry_points(group="fsspec.specs", name="redhare")
    assert [point.value for point in points] == ["redhare.filesystem:RedhareFileSystem"], points


def check_reads(address: str, source: pathlib.Path) -> None:
    """Every file is what was imported, by the package's own functions and by fsspec, which finds it by its entry point."""
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    assert files
    with redhare.open(address) as data:
        assert sorted(data.list()) == sorted(files)
        for name, content in files.items():
            assert data.read(name) == content, name
    for name, content in files.items():
        with fsspec.open(f"{address}/{name}") as opened:
            assert opened.read() == content, name


if __name__ == "__main__":
    check_installed()
    check_reads(sys.argv[1], pathlib.Path(sys.argv[2]))
