"""The package's types, by mypy: strictly, and its stubs against the library as it is."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import redhare

SETTINGS = pathlib.Path(__file__).parents[1] / "pyproject.toml"


def checked(tmp_path: pathlib.Path, *arguments: str) -> None:
    command = [sys.executable, "-m", *arguments]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_package_is_typed(tmp_path):
    package = str(pathlib.Path(redhare.__file__).parent)
    checked(tmp_path, "mypy", "--config-file", str(SETTINGS), "--cache-dir", str(tmp_path / "cache"), package)


def test_the_stubs_are_what_the_library_has(tmp_path):
    # Interpreters before 3.12 do not show the buffer protocol that way.
    (tmp_path / "allowed").write_text(r"redhare\._native\.Buffer\.__buffer__" + "\n")
    settings = ["--mypy-config-file", str(SETTINGS), "--allowlist", "allowed", "--ignore-unused-allowlist"]
    checked(tmp_path, "mypy.stubtest", *settings, "redhare._native")
