"""Map-style data sets: files, and folders of images as torchvision has them."""

from __future__ import annotations

import io
import itertools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch.utils.data

from .. import dataset
from .links import Links

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Those of `torchvision.datasets.ImageFolder`."""


OPTIONS = ("root", "via", "cache_bytes", "memory_bytes", "reads_in_flight", "cache_dir", "cache_size")
"""What `redhare.open` takes for reading."""


def _opened(source: str | os.PathLike[str] | dataset.DataSet, options: dict[str, Any]) -> dataset.DataSet:
    for name in options:
        # What is given and not heeded could mean other samples than were asked for.
        if name not in OPTIONS:
            raise TypeError(f"{name!r} is no keyword here, and no option of redhare.open for reading: those are {', '.join(OPTIONS)}")
    if isinstance(source, dataset.DataSet):
        return source._with(**options) if options else source
    return dataset.open(source, **options)


def pil_loader(content: memoryview) -> Any:
    """The image in a file's content, as RGB; what torchvision's loader of that name does with a path."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return image.convert("RGB")


class Files(torch.utils.data.Dataset):
    """Every regular file by position: its content as ``decode`` makes it, a memoryview by default.

    ``source`` is an address or an open data set. Other arguments of `redhare.open` for reading may be given: with a data set they
    open it a second time, at the same committed state, and ``root`` is a directory inside of its own. Safe under workers of any
    start method: each opens the data set for itself, at the same committed state.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | dataset.DataSet,
        decode: Callable[[memoryview], Any] | None = None,
        **options: Any,
    ) -> None:
        self.data = _opened(source, options)
        self.decode = decode

    def __len__(self) -> int:
        return len(self.data)

    def _position(self, index: int) -> int:
        """The data set's position of a sample."""
        return index

    def size(self, index: int) -> int:
        """Length in bytes of a sample's file."""
        return self.data.size(self._position(index))

    def sample(self, index: int, content: memoryview) -> Any:
        """A sample made of its file's content."""
        return content if self.decode is None else self.decode(content)

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no sample {index} among {len(self)}")
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples, read with one call (PyTorch 2 asks for a batch this way)."""
        contents = self.data.read_many([self._position(index) for index in indices])
        return [self.sample(index, content) for index, content in zip(indices, contents)]


def _with_parents(directory: str) -> list[str]:
    """A directory and those that it is in, the root aside."""
    found = []
    while directory:
        found.append(directory)
        directory = directory.rpartition("/")[0]
    return found


class ImageFolder(Files):
    """Images in one directory a class: `torchvision.datasets.ImageFolder` with an address for a path.

    ``classes``, ``class_to_idx``, ``samples`` (paths and classes, in torchvision's order), ``imgs`` and ``targets`` are as
    there, except that ``loader`` takes a file's content and not its path. Classes without a valid file are a FileNotFoundError
    unless ``allow_empty`` is True. Override `find_classes` to choose the classes.

    Symbolic links are followed inside the data set, and what is found through one has the link's path. A link with an absolute
    target, with nothing at its target, with one outside of the data set, or with more than 40 links on its way is left out, with
    one RuntimeWarning for all of them. A link to a directory that it is in itself, or that the way to it leads through, is not
    followed either; torchvision goes round there until the kernel follows no more links.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | dataset.DataSet,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        loader: Callable[[memoryview], Any] = pil_loader,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(source, **options)
        self.transform = transform
        self.target_transform = target_transform
        self.loader = loader
        self._links = self._look_for_links()
        self.classes, self.class_to_idx = self.find_classes("")
        if not self.class_to_idx:
            raise ValueError("class_to_idx, the second of what find_classes gave, has no class; it needs one at least")
        through: list[tuple[str, int]] = []
        if self._links is not None:
            through = list(self._links.files())
            self._warn_of(self._links.refused)
            # It has all paths of the data set, and is needed no more.
            self._links = None
        valid = is_valid_file or (lambda path: path.lower().endswith(IMG_EXTENSIONS))
        found: list[tuple[str, str, str, int]] = []
        regular = ((self.data.path(position), position) for position in range(len(self.data)))
        for path, position in itertools.chain(regular, through):
            directory, _, file = path.rpartition("/")
            classes = [name for name in _with_parents(directory) if name in self.class_to_idx]
            if classes and valid(path):
                found += [(name, directory, file, position) for name in classes]
        # torchvision sorts the classes by their names, the directories of each by their paths, and the files of each by their names.
        found.sort()
        self.samples = [(f"{directory}/{file}", self.class_to_idx[name]) for name, directory, file, _ in found]
        self.imgs = self.samples
        self.targets = [target for _, target in self.samples]
        self._positions = [position for _, _, _, position in found]
        # Positions are those of this state.
        self._state = self.data._expected
        missing = self.class_to_idx.keys() - {name for name, _, _, _ in found}
        if missing and not allow_empty:
            raise FileNotFoundError(
                f"Found no valid file for the classes {', '.join(sorted(missing))} in {self.data.address}; supported extensions are "
                f"{', '.join(IMG_EXTENSIONS)}, or give is_valid_file, or allow_empty=True"
            )

    def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
        """The classes in a directory of the data set, and the number of each: its directories by name, links to ones among them.

        A subclass may choose others, as with `torchvision.datasets.DatasetFolder`; ``self.data`` is the open data set. It is called
        with the empty path, which is the data set's root. A class is the path of a directory, and may have slashes in it; what is
        in no class is left out. Several classes may have one number.
        """
        directory = directory.strip("/")
        classes = [entry.name for entry in self.data.scan(directory) if entry.kind == "directory"]
        links = self._links or self._look_for_links()
        if links is not None:
            classes += links.directories(directory)
        classes.sort()
        if not classes:
            where = f"{directory} of {self.data.address}" if directory else self.data.address
            raise FileNotFoundError(
                f"Couldn't find any class folder in {where}; put the images of each class into a directory"
            )
        return classes, {name: number for number, name in enumerate(classes)}

    def _look_for_links(self) -> Links | None:
        paths = self.data._files().links()
        return Links(self.data, paths) if paths else None

    def _warn_of(self, refused: dict[str, str]) -> None:
        if not refused:
            return
        path, why = next(iter(refused.items()))
        text = (
            f"symbolic links in {self.data.address} that were left out: {len(refused)}, the first of them {path}, since {why}; "
            "those with relative targets inside the data set are followed"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)

    def __len__(self) -> int:
        return len(self.samples)

    def _position(self, index: int) -> int:
        if self.data._expected != self._state:
            raise RuntimeError(
                f"{self.data.address} was refreshed after its images were listed, and shows another state: make the ImageFolder anew"
            )
        return self._positions[index]

    def sample(self, index: int, content: memoryview) -> tuple[Any, Any]:
        """An image and its class, transformed."""
        image, target = self.loader(content), self.targets[index]
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target
