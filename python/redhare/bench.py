"""``python -m redhare.bench ADDRESS --against DIR``: `read_many` beside Python's own reading of the same files.

A round gives both sides the same files in the same random order and with the same number in flight: ours as two batches of
half of them, of which one is always on its way; the local ones by so many threads that open, pread and close. Rounds alternate
which side begins; the result is the median of the rounds' ratios. Data is cold: ours is not kept, and the local files' is
dropped from memory before each round, outside the timed part. Names and inodes are in memory on both sides. Each side keeps
nothing and compares nothing in the timed part; all of it is compared once before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from . import dataset

SLICE_FILES_MIN = 64


def _drop(paths: Sequence[str], evict: str) -> str:
    """Drops data from memory: all that the machine keeps (only root may), or these files'; how."""
    if evict == "all" and os.geteuid() == 0:
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as file:
            # Pages only: names and inodes stay.
            file.write("1\n")
        return "page cache dropped"
    for path in paths:
        file_number = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(file_number)
            os.posix_fadvise(file_number, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file_number)
    return "files' pages dropped"


def _family(process: int) -> list[int]:
    """A process and all below it."""
    found, waiting = [], [process]
    while waiting:
        one = waiting.pop()
        found.append(one)
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children") as file:
                    waiting += [int(child) for child in file.read().split()]
        except OSError:
            # It has ended meanwhile.
            continue
    return found


def _cpu_seconds(server: int | None) -> float:
    """User and system time of this process, and of the server's processes."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    total = own.ru_utime + own.ru_stime
    tick = os.sysconf("SC_CLK_TCK")
    for process in _family(server) if server else []:
        try:
            with open(f"/proc/{process}/stat") as file:
                # The second field is the program's name in brackets and may hold blanks.
                fields = file.read().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / tick
        except OSError:
            continue
    return total


def _read_volume(data: dataset.DataSet, positions: Sequence[int], in_flight: int) -> int:
    half = max(in_flight // 2, 1)
    batches = [positions[at : at + half] for at in range(0, len(positions), half)]
    waiting = [data.begin_read_many(batch) for batch in batches[:2]]
    total = 0
    for following in range(2, len(batches) + 2):
        contents = waiting.pop(0).result()
        if following < len(batches):
            waiting.append(data.begin_read_many(batches[following]))
        total += sum(len(content) for content in contents)
    return total


def _read_local(paths: Sequence[str], in_flight: int) -> int:
    total = [0] * in_flight
    todo = iter(paths)
    lock = threading.Lock()
    failures: list[OSError] = []

    def read(own: int) -> None:
        try:
            while True:
                with lock:
                    path = next(todo, None)
                if path is None:
                    return
                number = os.open(path, os.O_RDONLY)
                try:
                    total[own] += len(os.pread(number, os.fstat(number).st_size, 0))
                finally:
                    os.close(number)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(own,)) for own in range(in_flight)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(total)


def _timed(read: Callable[[], int], server: int | None, expected: int) -> tuple[float, float]:
    cpu, begun = _cpu_seconds(server), time.perf_counter()
    got = read()
    seconds = time.perf_counter() - begun
    if got != expected:
        raise SystemExit(f"{got} bytes came and not {expected}: the files must stay as they are while they are measured")
    return seconds, _cpu_seconds(server) - cpu


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs all rounds."""
    in_flight = arguments.files_in_flight
    data = dataset.open(arguments.address, reads_in_flight=in_flight, cache_bytes=512 << 20, via=arguments.via)
    paths = [os.path.join(arguments.against, data.path(position)) for position in range(len(data))]
    if not paths:
        raise SystemExit(f"{arguments.address} has no files; fill it with \"redhare fs import\"")
    for at in range(0, len(paths), in_flight):
        some = range(at, min(at + in_flight, len(paths)))
        for position, content in zip(some, data.read_many(some)):
            with open(paths[position], "rb") as file:
                if content != file.read():
                    raise SystemExit(f"{paths[position]} differs from what {arguments.address} has")
    chooser = random.Random(arguments.seed)
    order = list(range(len(paths)))
    chooser.shuffle(order)
    # As many files a slice as take its time, by a first one that does not count.
    first = order[: max(SLICE_FILES_MIN, in_flight * 4)]
    begun = time.perf_counter()
    _read_volume(data, first, in_flight)
    rate = len(first) / (time.perf_counter() - begun)
    count = min(max(int(rate * arguments.seconds / arguments.rounds / 2), SLICE_FILES_MIN), len(paths))
    before = data.statistics()
    ours: list[tuple[float, float]] = []
    local: list[tuple[float, float]] = []
    cold = ""
    for number in range(arguments.rounds):
        chosen = chooser.sample(order, count)
        expected = sum(data.size(position) for position in chosen)
        cold = _drop(paths, arguments.evict)
        sides: list[tuple[list[tuple[float, float]], Callable[[], int], int | None]] = [
            (ours, lambda: _read_volume(data, chosen, in_flight), arguments.server),
            (local, lambda: _read_local([paths[position] for position in chosen], in_flight), None),
        ]
        for into, read, server in sides if number % 2 == 0 else reversed(sides):
            into.append(_timed(read, server, expected))
    ratios = sorted(theirs[0] / mine[0] for mine, theirs in zip(ours, local))
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3

    def side(slices: list[tuple[float, float]]) -> dict[str, float]:
        return {
            "files_per_second": count / statistics.median(seconds for seconds, _ in slices),
            "cpu_us_per_file": sum(cpu for _, cpu in slices) / len(slices) / count * 1e6,
        }

    return {
        "files": len(paths),
        "files_a_slice": count,
        "files_in_flight": in_flight,
        "rounds": len(ratios),
        "ratio": statistics.median(ratios),
        "ratio_lower_quartile": quartiles[0],
        "ratio_upper_quartile": quartiles[2],
        "volume": side(ours),
        "local": side(local),
        "past_reads": data.statistics().past_reads - before.past_reads,
        "cold_local": cold,
    }


def main() -> None:
    """Reads the arguments, measures, prints one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m redhare.bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("address", help="the data set")
    parser.add_argument("--against", required=True, metavar="DIR", help="the directory it was filled from")
    parser.add_argument("--files-in-flight", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of all slices together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--via", choices=["disk", "socket", "tcp"], default="disk")
    parser.add_argument("--evict", choices=["all", "files"], default="all", help="what to drop from memory, all as root only")
    parser.add_argument("--server", type=int, metavar="PID", help="count this process and those below it with ours")
    arguments = parser.parse_args()
    if arguments.files_in_flight < 1 or arguments.rounds < 1:
        parser.error("--files-in-flight and --rounds are 1 at least")
    print(json.dumps(measure(arguments)))


if __name__ == "__main__":
    main()
