"""The measurement itself: what it prints, and that it notices other files."""

import json
import os
import subprocess
import sys

from conftest import program


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


def test_a_loader_is_measured_on_both_sides(tmp_path):
    command = [sys.executable, "-W", "ignore", "-m", "redhare.torch.bench"]
    source, address = tmp_path / "images", f"file:{tmp_path / 'images.packfs'}"
    subprocess.run([*command, "make", str(source), "--images", "64"], check=True, timeout=120)
    sizes = [path.stat().st_size for path in source.rglob("*.jpg")]
    assert len(sizes) == 64 and 15_000 < sum(sizes) / 64 < 18_000
    program("fs", "format", address, "--size", "64MiB")
    program("fs", "import", str(source), address)
    measure = [*command, "measure", address, "--against", str(source), "--workers", "2", "--rounds", "1", "--evict", "files"]
    for work in ("decode", "timer"):
        ran = subprocess.run([*measure, "--work", work], capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr
        said = json.loads(ran.stdout)
        assert said["images"] == 64 and said["rounds"] == 1 and said["ratio"] > 0
        for side in ("volume", "local"):
            assert said[side]["images_per_second"] > 0 and said[side]["cpu_us_per_image"] > 0
    next(source.rglob("*.jpg")).write_bytes(b"another")
    ran = subprocess.run(measure, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 1 and "differs" in ran.stderr
