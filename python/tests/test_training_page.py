"""The commands of docs/training.md, run as the page has them by somebody who has nothing yet but images."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from conftest import jpeg

ROOT = pathlib.Path(__file__).parent.parent.parent
CLASSES = ("cat", "dog", "owl")
IMAGES_A_CLASS = 40
# From the first command to the first epoch.
LIMIT_SECONDS = 60


def commands() -> str:
    """The page's commands, as it has them: the first in a terminal of its own, the others later."""
    blocks = (ROOT / "docs/training.md").read_text().split("```\n")[1::2]
    block = next(block for block in blocks if block.startswith("redhare up"))
    started = [line.split()[0:2] for line in block.splitlines()]
    assert started == [
        ["redhare", "up"],
        ["redhare", "volume"],
        ["redhare", "fs"],
        ["redhare", "fs"],
        ["python3", "python/examples/train.py"],
    ], block
    first, others = block.split("\n", 1)
    assert first.endswith("# in a terminal of its own; the others once it says where the master is")
    # Bash ends here if the first has ended.
    until_it_says_so = "until grep -q '^master at ' up; do kill -0 $!; sleep 0.1; done"
    return f"({first}\n) > up 2>&1 &\n{until_it_says_so}\n{others}"


def alone() -> list[str]:
    """What gives a command a network of its own, so that the page's port is free."""
    ways = (["unshare", "--net"], ["unshare", "--net", "--user", "--map-root-user"])
    for way in ways:
        with_loopback = [*way, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        try:
            if subprocess.run([*with_loopback, "true"], capture_output=True).returncode == 0:
                return with_loopback
        except FileNotFoundError:
            break
    pytest.skip("no network namespace can be made: run as root, with unshare (util-linux) and ip (iproute2)")


@pytest.fixture
def newcomer():
    """A home with nothing in it, in memory as other clusters of the tests, and a place to work with images and the examples."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="redhare-page-", dir="/dev/shm"))
    try:
        for name in ("home", "programs", "work"):
            (place / name).mkdir()
        for name, program in (("redhare", os.environ["REDHARE_PROGRAM"]), ("python3", sys.executable)):
            (place / "programs" / name).symlink_to(program)
        (place / "work/python").symlink_to(ROOT / "python")
        for number, name in enumerate(CLASSES):
            (place / "work/photos" / name).mkdir(parents=True)
            for image in range(IMAGES_A_CLASS):
                (place / "work/photos" / name / f"{image}.jpg").write_bytes(jpeg(number * 1000 + image))
        yield place
    finally:
        shutil.rmtree(place)


def environment(place: pathlib.Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REDHARE_", "XDG_", "RUST_"))}
    path = f"{place / 'programs'}:{os.environ['PATH']}"
    return kept | {"HOME": str(place / "home"), "PATH": path, "PYTHONUNBUFFERED": "1"}


def is_there(group: int, told: int = 0) -> bool:
    """Whether a group has any process still; each gets the signal."""
    try:
        os.killpg(group, told)
    except ProcessLookupError:
        return False
    return True


def test_the_commands_of_the_page_lead_to_a_training_loop(newcomer):
    said = newcomer / "said"
    with open(said, "wb") as log:
        # Whatever fails ends the shell, as nobody would go on.
        shell = subprocess.Popen(
            [*alone(), "bash", "-e", "-c", commands()],
            cwd=newcomer / "work",
            env=environment(newcomer),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not re.search(r"^epoch 0: loss \d+\.\d+, \d+ images/s$", said.read_text(), re.MULTILINE):
            assert shell.poll() is None, f"it ended with {shell.returncode}:\n{said.read_text()}"
            assert time.monotonic() < deadline, f"no epoch within {LIMIT_SECONDS} s:\n{said.read_text()}"
            time.sleep(0.1)
        total = len(CLASSES) * IMAGES_A_CLASS
        assert f"{total} images of {len(CLASSES)} classes" in said.read_text()
    finally:
        is_there(shell.pid, signal.SIGTERM)
        shell.wait(60)
        deadline = time.monotonic() + 60
        while is_there(shell.pid):
            assert time.monotonic() < deadline, "the cluster does not end"
            time.sleep(0.1)
