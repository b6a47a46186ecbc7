"""Data sets and a loader for PyTorch.

`Files` and `ImageFolder` are map-style data sets, `Stream` an iterable one with its own prefetching. `Loader` is a
`torch.utils.data.DataLoader` over a map-style one, which reads each batch with one call, shuffles by seed and epoch, divides
among ranks, and goes on in the middle of an epoch at once.
"""

from .files import Files, ImageFolder, pil_loader
from .loader import Loader
from .order import Order
from .stream import Stream

__all__ = ["Files", "ImageFolder", "Loader", "Order", "Stream", "pil_loader"]
