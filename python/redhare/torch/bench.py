"""``python -m redhare.torch.bench make|measure``: a loader on a data set beside the same loader on the local files.

``make DIR --images N`` makes real JPEGs of about 16 KiB. ``measure ADDRESS --against DIR`` reads epochs of all of them in turns,
with the same number of workers, the same order and the same batches: ours by `Loader`, which reads a batch with one call, and
local ones by `torch.utils.data.DataLoader`, whose workers open and read each file. Workers live from the first epoch, which does not
count, to the last. Data is cold: ours is not kept, the local files' is dropped before each epoch, outside the timed part.
``--work decode`` decodes each image with Pillow; ``--work timer`` sleeps for as long instead, so that reading alone decides.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch.utils.data

from .. import dataset
from ..bench import _drop, _family
from .files import Files, pil_loader
from .loader import Loader
from .order import Order

BATCH = 32
FILES_A_DIRECTORY = 250
NOISE_SIDE, IMAGE_SIDE, QUALITY = 40, 224, 85
TIMER_SECONDS = 0.001


def make(directory: str, images: int) -> None:
    """JPEGs of noise, of about 16 KiB each."""
    from PIL import Image

    for number in range(images):
        noise = random.Random(number).randbytes(NOISE_SIDE * NOISE_SIDE * 3)
        image = Image.frombytes("RGB", (NOISE_SIDE, NOISE_SIDE), noise).resize((IMAGE_SIDE, IMAGE_SIDE), Image.BICUBIC)
        inside = os.path.join(directory, f"{number // FILES_A_DIRECTORY:04}")
        os.makedirs(inside, exist_ok=True)
        image.save(os.path.join(inside, f"{number:08}.jpg"), "JPEG", quality=QUALITY)


def decode(content: Any) -> int:
    """The image is decoded, and only its size goes back, so that sending it between processes is not measured."""
    return pil_loader(content).size[0]


def wait(content: Any) -> int:
    """As long as an image takes, without a processor."""
    time.sleep(TIMER_SECONDS)
    return len(content)


WORK: dict[str, Callable[[Any], int]] = {"decode": decode, "timer": wait}


class Local(torch.utils.data.Dataset):
    """The same files by their paths in a directory."""

    def __init__(self, paths: list[str], work: Callable[[Any], int]) -> None:
        self.paths = paths
        self.work = work

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        with open(self.paths[index], "rb") as file:
            return self.work(file.read())


class Shuffled(torch.utils.data.Sampler):
    """The order that ours has in the same epoch."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.epoch = 0

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Any:
        return iter(list(Order(self.samples, epoch=self.epoch)[:]))


def _epoch(loader: Any, server: int | None, images: int) -> tuple[float, float]:
    """Seconds of an epoch, and of processor time: of this process, its workers, and the server."""

    def processes() -> list[int]:
        return _family(os.getpid()) + (_family(server) if server else [])

    before = {process: _process_seconds(process) for process in processes()}
    begun, got = time.perf_counter(), 0
    for batch in loader:
        got += len(batch)
    seconds = time.perf_counter() - begun
    if got != images:
        raise SystemExit(f"{got} images came and not {images}: the files must stay as they are while they are measured")
    return seconds, sum(_process_seconds(process) - before.get(process, 0.0) for process in processes())


def _process_seconds(process: int) -> float:
    """Processor time of a live process' threads, to the nanosecond."""
    total = 0
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{task}/schedstat") as file:
                total += int(file.read().split()[0])
    except OSError:
        # It has ended meanwhile.
        pass
    return total / 1e9


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs all rounds."""
    torch.set_num_threads(1)
    work, workers = WORK[arguments.work], arguments.workers
    data = dataset.open(arguments.address, via=arguments.via)
    paths = [os.path.join(arguments.against, data.path(position)) for position in range(len(data))]
    if len(paths) < BATCH:
        raise SystemExit(f"{arguments.address} has {len(paths)} files, and {BATCH} are the least; fill it with \"redhare fs import\"")
    for position, path in enumerate(paths):
        with open(path, "rb") as file:
            if data.read(position) != file.read():
                raise SystemExit(f"{path} differs from what {arguments.address} has")
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    ours = Loader(Files(data, decode=work), BATCH, collate_fn=list, **options)
    order = Shuffled(len(paths))
    local = torch.utils.data.DataLoader(Local(paths, work), BATCH, sampler=order, collate_fn=list, **options)
    taken: list[list[tuple[float, float]]] = [[], []]
    cold = ""
    for epoch in range(arguments.rounds + 1):
        ours.set_epoch(epoch)
        order.epoch = epoch
        for side in [epoch % 2, (epoch + 1) % 2]:
            cold = _drop(paths, arguments.evict)
            measured = _epoch([local, ours][side], arguments.server if side else None, len(paths))
            # Workers start in the first.
            if epoch > 0:
                taken[side].append(measured)
    ratios = sorted(theirs[0] / mine[0] for theirs, mine in zip(*taken))
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3

    def told(slices: list[tuple[float, float]]) -> dict[str, float]:
        return {
            "images_per_second": len(paths) / statistics.median(seconds for seconds, _ in slices),
            "cpu_us_per_image": statistics.median(cpu for _, cpu in slices) / len(paths) * 1e6,
        }

    return {
        "images": len(paths),
        "bytes_an_image": sum(data.size(position) for position in range(len(data))) / len(paths),
        "workers": workers,
        "rounds": len(ratios),
        "ratio": statistics.median(ratios),
        "ratio_lower_quartile": quartiles[0],
        "ratio_upper_quartile": quartiles[2],
        "volume": told(taken[1]),
        "local": told(taken[0]),
        "cold_local": cold,
    }


def main() -> None:
    """Reads the arguments; makes images, or measures and prints one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m redhare.torch.bench", description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="make JPEGs of about 16 KiB")
    making.add_argument("directory")
    making.add_argument("--images", type=int, default=4000)
    measuring = commands.add_parser("measure", help="epochs of a data set and of the files it was filled from, in turns")
    measuring.add_argument("address", help="the data set")
    measuring.add_argument("--against", required=True, metavar="DIR", help="the directory it was filled from")
    measuring.add_argument("--work", choices=sorted(WORK), default="decode", help="what is done with each image")
    measuring.add_argument("--workers", type=int, default=8)
    measuring.add_argument("--rounds", type=int, default=10, help="epochs of each side that count")
    measuring.add_argument("--via", choices=["disk", "socket", "tcp"], default="disk")
    measuring.add_argument("--evict", choices=["all", "files"], default="all", help="what to drop from memory, all as root only")
    measuring.add_argument("--server", type=int, metavar="PID", help="count this process and those below it with ours")
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(arguments.directory, arguments.images)
        return
    if arguments.workers < 0 or arguments.rounds < 1:
        parser.error("--workers is 0 at least, and --rounds 1")
    print(json.dumps(measure(arguments)))


if __name__ == "__main__":
    main()
