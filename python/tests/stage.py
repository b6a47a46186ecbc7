"""Lays the package out as an installed wheel has it, with a library that cargo has built: stage.py LIBRARY DIRECTORY.

So the tests run what `cargo test` built anyway. maturin makes the wheel that people install, of the same files.
"""

import pathlib
import shutil
import sys
import tomllib


def stage(library: pathlib.Path, directory: pathlib.Path) -> None:
    source = pathlib.Path(__file__).parent.parent
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    package = directory / "redhare"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(source / "redhare", package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copyfile(library, package / "_native.abi3.so")
    information = directory / f"redhare-{project['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: redhare\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    stage(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
