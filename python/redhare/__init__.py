"""Data sets of many small files, read from Redhare volumes, and written.

``open`` gives a `DataSet`, or a `Writer`. ``redhare.torch`` is for PyTorch, ``redhare.filesystem`` for fsspec; both are imported on demand.
"""

from ._native import Entry, Permutation
from .dataset import DataSet, PendingRead, Statistics, open
from .writer import Writer

__all__ = ["DataSet", "Entry", "PendingRead", "Permutation", "Statistics", "Writer", "open"]
__version__ = "0.1.0"
