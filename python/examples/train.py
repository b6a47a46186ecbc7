"""Trains a small network on a folder of images in a volume: python3 train.py ADDRESS [EPOCHS].

ADDRESS is redhare://HOST:PORT/VOLUME, where each directory at the top is a class. Stop it (Ctrl-C) and start it again: it goes
on with the next batch, from the file checkpoint.pt.
"""

import os
import sys
import time

import numpy
import torch

import redhare.torch

SIDE = 64
CHECKPOINT = "checkpoint.pt"


def to_tensor(image):
    pixels = numpy.array(image.resize((SIDE, SIDE)))
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


def main(address: str, epochs: int) -> None:
    torch.manual_seed(0)
    images = redhare.torch.ImageFolder(address, transform=to_tensor)
    loader = redhare.torch.Loader(images, batch_size=32, seed=0, num_workers=2)
    print(f"{len(images)} images of {len(images.classes)} classes")
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 16, len(images.classes)),
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
    if os.path.exists(CHECKPOINT):
        saved = torch.load(CHECKPOINT)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        print(f"going on in epoch {loader.epoch}")
    try:
        while True:
            begun, seen, total = time.perf_counter(), 0, 0.0
            for batch, classes in loader:
                loss = torch.nn.functional.cross_entropy(network(batch), classes)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen, total = seen + len(classes), total + loss.item() * len(classes)
            rate = seen / (time.perf_counter() - begun)
            print(f"epoch {loader.epoch}: loss {total / max(seen, 1):.3f}, {rate:.0f} images/s")
            if loader.epoch + 1 >= epochs:
                break
    except KeyboardInterrupt:
        print("stopped; start it again to go on")
    saved = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    torch.save(saved, CHECKPOINT)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
