"""Data sets of many small files, read from Redhare volumes.

``open`` gives a `DataSet`. ``redhare.torch`` is for PyTorch, ``redhare.filesystem`` for fsspec; both are imported on demand.
"""

from ._native import Entry, Permutation
from .dataset import DataSet, PendingRead, Statistics, open

__all__ = ["DataSet", "Entry", "PendingRead", "Permutation", "Statistics", "open"]
__version__ = "0.1.0"
