"""Reads a data set in shuffled order and compares it with a directory: python3 read.py ADDRESS DIRECTORY [SECONDS].

Uses PyTorch's loader with two workers where there is PyTorch, and plain read_many otherwise. Says what was read and how fast;
starting workers and the comparison are part of the time.
"""

import os
import sys
import time

import redhare

BATCH = 64


def batches_of_torch(address):
    import redhare.torch

    files = redhare.torch.Files(address, decode=bytes)
    loader = redhare.torch.Loader(files, BATCH, seed=1, num_workers=2, collate_fn=list)
    order = redhare.torch.Order(len(files), seed=1)
    for number, contents in enumerate(loader):
        yield [files.data.path(at) for at in order[number * BATCH : (number + 1) * BATCH]], contents


def batches_of_read_many(address):
    data = redhare.open(address)
    order = redhare.Permutation(len(data), seed=1)
    for first in range(0, len(data), BATCH):
        some = order.part(first, min(first + BATCH, len(data)))
        yield [data.path(at) for at in some], data.read_many(some)


def main(address, directory, seconds):
    begun, files, size = time.perf_counter(), 0, 0
    try:
        batches, way = batches_of_torch(address), "PyTorch's loader, two workers"
        first = next(batches, ([], []))
    except ImportError:
        batches, way = batches_of_read_many(address), "read_many"
        first = next(batches, ([], []))
    while first[0]:
        for path, content in zip(*first):
            with open(os.path.join(directory, path), "rb") as file:
                if file.read() != content:
                    sys.exit(f"{path} differs")
            files, size = files + 1, size + len(content)
        if time.perf_counter() - begun > seconds:
            break
        first = next(batches, ([], []))
    took = time.perf_counter() - begun
    print(f"{files} files, {size / 2**20:.0f} MiB in {took:.1f} s by {way}, batches of {BATCH}, every byte equal")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 10.0)
