"""A cluster's volume: reading past its nodes and through them, while nodes die, and what the masters say."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time

import pytest

import redhare


@pytest.mark.parametrize("via", ["disk", "socket", "tcp"])
def test_every_file_by_every_way(cluster, folder, via):
    with redhare.open(cluster.address, via=via) as data:
        for _ in range(3):
            for position, content in enumerate(data.read_many(range(len(data)))):
                assert content == (folder / data.path(position)).read_bytes()
        past = data.statistics().past_reads
        assert (past > 0) == (via == "disk"), past


def test_several_masters_one_of_which_answers(cluster):
    with redhare.open(f"redhare://127.0.0.1:1,{cluster.masters}/photos/ant") as data:
        assert "0.JPG" in data.list()


def test_masters_from_the_environment(cluster, monkeypatch):
    monkeypatch.setenv("REDHARE_CLUSTER", cluster.masters)
    with redhare.open("redhare:///photos") as data:
        assert data["tiny"] == b"seven.."


def test_a_volume_that_is_not_there(cluster):
    with pytest.raises(FileNotFoundError, match="none"):
        redhare.open(f"redhare://{cluster.masters}/none")


def test_commits_are_not_seen_and_spawned_readers_are_told(cluster, tmp_path):
    import pickle

    data = redhare.open(cluster.address)
    before = data.list()
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "file").write_text("later")
    cluster.run("fs", "import", str(tmp_path / "later"), "photos:later", check=True)
    assert data.list() == before and not data.exists("later/file")
    with pytest.raises(OSError) as raised:
        pickle.loads(pickle.dumps(data)).list()
    assert raised.value.errno == errno.ESTALE
    data.close()
    with redhare.open(cluster.address) as newest:
        assert newest["later/file"] == b"later"


def test_a_snapshot_is_read_as_it_was_in_other_processes_too(cluster, tmp_path):
    import pickle

    cluster.run("fs", "snapshot", "create", "photos", "then", check=True)
    (tmp_path / "after").mkdir()
    (tmp_path / "after" / "file").write_text("after")
    cluster.run("fs", "import", str(tmp_path / "after"), "photos:after", check=True)
    with redhare.open(f"{cluster.address}@then") as data:
        assert data["tiny"] == b"seven.." and not data.exists("after/file")
        with pickle.loads(pickle.dumps(data)) as spawned:
            assert spawned.list() == data.list()
    with redhare.open(cluster.address) as newest:
        assert newest["after/file"] == b"after"
    with pytest.raises(OSError, match="then2"):
        redhare.open(f"{cluster.address}@then2")
    cluster.run("fs", "snapshot", "delete", "photos", "then", check=True)


def test_a_node_dies_and_reading_goes_on(cluster, folder):
    with redhare.open(cluster.address, root="bee") as data:
        expected = [(folder / "bee" / data.path(position)).read_bytes() for position in range(len(data))]
        count, killed = 0, False
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert data.read_many(range(len(data))) == expected
            count += len(data)
            if not killed:
                killed = True
                engine = int((cluster.data / "node2.lock").read_text().split()[0])
                target = int((cluster.data / "node2" / "target.lock").read_text().split()[0])
                for process in (engine, target):
                    os.kill(process, signal.SIGKILL)
        assert killed and count > len(data)
    deadline = time.monotonic() + 60
    while cluster.run("status").count(" alive ") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_refresh_goes_on_to_the_newest_commit_at_once(cluster, tmp_path):
    def write(name: str, content: str) -> None:
        (tmp_path / "new").mkdir(exist_ok=True)
        (tmp_path / "new" / "file").write_text(content)
        cluster.run("fs", "import", str(tmp_path / "new"), f"photos:{name}", check=True)

    with redhare.open(cluster.address) as data:
        assert not data.refresh(), "nothing was committed"
        files, state = len(data), data.generation
        write("fresh", "first")
        time.sleep(2)
        assert not data.exists("fresh/file") and len(data) == files, "it moves when it is asked to, not before"
        reading = data.begin_read_many(["large"] * 4)
        assert data.refresh() and data.generation > state
        assert data["fresh/file"] == b"first" and len(data) == files + 1
        assert len(reading.result()) == 4, "what was under way ends"
        assert not data.refresh()
        # Workers start where it is now.
        import pickle

        with pickle.loads(pickle.dumps(data)) as worker:
            assert worker["fresh/file"] == b"first"
        stale = pickle.loads(pickle.dumps(data))
        for number in range(5):
            write(f"fresh-{number}", str(number))
            assert data.refresh() and data[f"fresh-{number}/file"] == str(number).encode()
        assert stale.refresh() and stale["fresh-4/file"] == b"4", "so does one that could not be opened where it was"
        stale.close()
    with redhare.open(cluster.address, root="fresh") as inside:
        with redhare.open(cluster.address, writable=True) as writer:
            writer.rename("fresh", "gone")
        state = inside.generation
        with pytest.raises(FileNotFoundError):
            inside.refresh()
        assert inside.generation == state and inside["file"] == b"first", "what was shown still is"


def test_a_writer_hands_over_after_its_commit_when_another_asks(cluster):
    first = redhare.open(cluster.address, writable=True)
    first.write("mine", b"committed with the rest")
    opened = []

    def ask():
        opened.append(redhare.open(cluster.address, writable=True, take_over=True, wait=40))

    asking = threading.Thread(target=ask)
    asking.start()
    # Longer than it takes to hear of it: what is to be committed together is not torn.
    time.sleep(15)
    assert not opened
    first.write("the rest", b"of it")
    first.commit()
    asking.join(10)
    (second,) = opened
    assert {"mine", "the rest"} <= set(second.list())
    with pytest.raises(OSError, match="handed over to") as refused:
        first.write("late", b"")
    assert refused.value.errno == errno.EROFS
    first.close()
    # One that has nothing to commit gives it up by itself.
    with redhare.open(cluster.address, writable=True, take_over=True) as third:
        third.remove("mine")
        third.remove("the rest")
    second.close()
    with pytest.raises(OSError, match="take_over"):
        redhare.open("file:/nowhere", writable=True, take_over=True)
