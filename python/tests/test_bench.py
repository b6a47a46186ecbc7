"""The measurement itself: what it prints, and that it notices other files."""

import json
import os
import subprocess
import sys


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "redhare.bench", *arguments, "--rounds", "2", "--seconds", "0.1"]
    # Not what the machine keeps of others' files.
    command += ["--evict", "files"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_it_measures_both_sides(image, folder):
    ran = run(image, "--against", str(folder), "--server", str(os.getpid()))
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["rounds"] == 2 and said["ratio"] > 0 and said["files_in_flight"] == 16
    for side in ("volume", "local"):
        assert said[side]["files_per_second"] > 0 and said[side]["cpu_us_per_file"] > 0


def test_other_files_are_noticed(image, folder, tmp_path):
    import shutil

    shutil.copytree(folder, tmp_path / "other", symlinks=True)
    (tmp_path / "other" / "tiny").write_bytes(b"another")
    ran = run(image, "--against", str(tmp_path / "other"))
    assert ran.returncode == 1 and "differs" in ran.stderr
