"""What the tests share: the program, an image in a file, a cluster.

REDHARE_PROGRAM names the program; crates/redhare/tests/python.rs sets it, and puts the package on the path. Skips are written
where REDHARE_SKIPS says, as all tests of the project do.
"""

from __future__ import annotations

import fcntl
import io
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import pytest

import redhare

CLASSES = ("ant", "bee", "cat")
IMAGES_A_CLASS = 9


def program(*arguments: str, **environment: str) -> str:
    """Runs the program; what it printed."""
    run = subprocess.run(
        [os.environ["REDHARE_PROGRAM"], *arguments],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"{arguments}: {run.stdout}{run.stderr}"
    return run.stdout


def until_free(address: str) -> None:
    """Waits until nobody has an image open: what the kernel still does for a killed process holds its lock a moment longer."""
    deadline = time.monotonic() + 60
    with open(address.removeprefix("file:"), "rb") as file:
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                assert time.monotonic() < deadline, "its lock stays"
                time.sleep(0.01)


def jpeg(number: int) -> bytes:
    """A real JPEG, of a size and content of its own."""
    from PIL import Image

    noise = random.Random(number).randbytes(12 * 12 * 3)
    image = Image.frombytes("RGB", (12, 12), noise).resize((64 + number, 48))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Classes of images, and other files beside them."""
    root = tmp_path_factory.mktemp("folder")
    for number, name in enumerate(CLASSES):
        (root / name / "more").mkdir(parents=True)
        for image in range(IMAGES_A_CLASS):
            place = root / name / ("more" if image % 4 == 3 else "")
            (place / f"{image}.JPG").write_bytes(jpeg(number * 100 + image))
    (root / "ant" / "notes.txt").write_text("no image\n")
    (root / "tiny").write_bytes(b"seven..")
    (root / "empty").write_bytes(b"")
    (root / "large").write_bytes(random.Random(7).randbytes(20_000_003))
    (root / "table.csv").write_text("a,b\n" + "".join(f"{row},{row * row}\n" for row in range(5000)))
    (root / os.fsdecode(b"not-utf8-\xff")).write_bytes(b"name of bytes")
    (root / "link").symlink_to("tiny")
    os.utime(root / "tiny", ns=(1_600_000_000_123_456_789, 1_500_000_000_987_654_321))
    (root / "tiny").chmod(0o640)
    return root


@pytest.fixture(scope="session")
def image(folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder as a PackFS in a file: its address."""
    file = tmp_path_factory.mktemp("image") / "folder.packfs"
    program("fs", "format", f"file:{file}", "--size", "256MiB")
    program("fs", "import", str(folder), f"file:{file}")
    return f"file:{file}"


@pytest.fixture
def own_image(image: str, tmp_path: pathlib.Path) -> str:
    """A copy of the image that a test may change."""
    copy = tmp_path / "own.packfs"
    shutil.copyfile(image.removeprefix("file:"), copy)
    return f"file:{copy}"


@pytest.fixture
def data(image: str):
    """The folder's data set, open."""
    with redhare.open(image) as opened:
        yield opened


def free_ports() -> int:
    """The first of four free ports in a row."""
    for base in range(24_000, 32_000, 7):
        held = []
        try:
            for port in range(base, base + 4):
                held.append(socket.create_server(("127.0.0.1", port)))
            return base
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
    raise AssertionError("no four ports in a row are free")


class Cluster:
    """A cluster of this machine with the folder in its volume "photos"."""

    def __init__(self, data: pathlib.Path, folder: pathlib.Path) -> None:
        self.data = data
        port = free_ports()
        self.masters = f"127.0.0.1:{port}"
        self.address = f"redhare://{self.masters}/photos"
        self.log = open(data / "up.log", "wb")
        command = [os.environ["REDHARE_PROGRAM"], "up", "--data", str(data), "--port", str(port)]
        environment = os.environ | {"XDG_STATE_HOME": str(data)}
        self.process = subprocess.Popen(
            [*command, "--disk-size", "1GiB"], env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log
        )
        deadline = time.monotonic() + 60
        # A node that has just come may not have said which disks it has.
        while len(re.findall(" alive +[1-9]", self.run("status"))) < 3:
            assert time.monotonic() < deadline and self.process.poll() is None, (data / "up.log").read_text()
            time.sleep(0.1)
        try:
            self.fill(folder)
        except BaseException:
            self.end()
            raise

    def fill(self, folder: pathlib.Path) -> None:
        self.run("volume", "create", "photos", "--size", "512MiB", check=True)
        self.run("fs", "format", "photos", check=True)
        self.run("fs", "import", str(folder), "photos", check=True)

    def run(self, *arguments: str, check: bool = False) -> str:
        command = [os.environ["REDHARE_PROGRAM"], *arguments]
        environment = os.environ | {"REDHARE_CLUSTER": self.masters}
        ran = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert not check or ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) == 0
        self.log.close()


@pytest.fixture(scope="session")
def cluster(folder: pathlib.Path):
    # In memory: a disk that stalls for seconds, since others write to it, would rightly cost copies their places.
    place = pathlib.Path(tempfile.mkdtemp(prefix="redhare-python-", dir="/dev/shm"))
    try:
        started = Cluster(place, folder)
        yield started
        started.end()
    finally:
        shutil.rmtree(place)


def python(code: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Another interpreter with the same packages."""
    import sys

    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, **options
    )


def pytest_terminal_summary(terminalreporter) -> None:
    """The line that `cargo xtask test` adds up, and the skips."""
    count = {name: len(terminalreporter.stats.get(name, [])) for name in ("passed", "failed", "error", "skipped")}
    skips = terminalreporter.stats.get("skipped", [])
    if note := os.environ.get("REDHARE_SKIPS"):
        with open(note, "a") as file:
            for skip in skips:
                file.write(f"{skip.nodeid}: {skip.longrepr[2].removeprefix('Skipped: ')}\n")
    # A skip counts as passed here and is taken out again by its line in that file.
    passed = count["passed"] + count["skipped"]
    failed = count["failed"] + count["error"]
    verdict = "FAILED" if failed else "ok"
    terminalreporter.write_line("")
    terminalreporter.write_line(f"test result: {verdict}. {passed} passed; {failed} failed; 0 ignored; pytest")
