"""Data sets and the loader under Debian's PyTorch, with real JPEG files."""

from __future__ import annotations

import io
import itertools
import os
import pathlib
import pickle
import warnings

import numpy
import pytest
import torch
from conftest import jpeg, program
from PIL import Image

import redhare
import redhare.torch
from redhare.torch import Files, ImageFolder, Loader, Order, Stream

torch.set_num_threads(1)


def pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(numpy.array(image.resize((16, 16)))).permute(2, 0, 1)


def identity(content: memoryview) -> bytes:
    return bytes(content)


def as_list(samples: list) -> list:
    return samples


@pytest.fixture
def images(image):
    # The classes' folders alone, as a training set has them.
    return ImageFolder(image, transform=pixels)


def torchvision_samples(root: str) -> list[tuple[str, int]]:
    """As `torchvision.datasets.folder.make_dataset` finds them (0.14 to 0.24: sorted walks, sorted names)."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for number, name in enumerate(classes):
        for top, _, names in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            for file in sorted(names):
                if file.lower().endswith(redhare.torch.files.IMG_EXTENSIONS):
                    samples.append((os.path.relpath(os.path.join(top, file), root), number))
    return samples


def test_an_image_folder_is_torchvisions(images, folder):
    assert images.classes == ["ant", "bee", "cat"] and images.class_to_idx == {"ant": 0, "bee": 1, "cat": 2}
    assert images.samples == torchvision_samples(str(folder)) == images.imgs
    assert images.targets == [target for _, target in images.samples] and len(images) == 27
    for index, (path, target) in enumerate(images.samples):
        tensor, found = images[index]
        with Image.open(folder / path) as expected:
            assert found == target and torch.equal(tensor, pixels(expected.convert("RGB")))
    assert images[-1][1] == 2
    with pytest.raises(IndexError):
        images[27]


def test_an_image_folder_says_what_it_lacks(image):
    with pytest.raises(FileNotFoundError, match="class folder"):
        ImageFolder(image, root="ant/more")
    with pytest.raises(FileNotFoundError, match="no valid file for the classes ant, bee"):
        ImageFolder(image, is_valid_file=lambda path: path.startswith("cat"))


def test_empty_classes_may_be_allowed(image):
    images = ImageFolder(image, is_valid_file=lambda path: path.startswith("cat"), allow_empty=True)
    assert images.classes == ["ant", "bee", "cat"] and set(images.targets) == {2} and len(images) == 9
    none = ImageFolder(image, is_valid_file=lambda path: False, allow_empty=True)
    assert len(none) == 0 and none.samples == [] and len(none.classes) == 3


class Chosen(ImageFolder):
    """Classes as a subclass chooses them."""

    chosen: dict[str, int] = {}

    def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
        assert directory == "" and super().find_classes(directory)[0] == ["ant", "bee", "cat"]
        assert super().find_classes("ant") == (["more"], {"more": 0})
        return list(self.chosen), self.chosen


def test_a_subclass_chooses_the_classes(image, folder, monkeypatch):
    def chosen(classes: dict[str, int], **options) -> Chosen:
        monkeypatch.setattr(Chosen, "chosen", classes)
        return Chosen(image, transform=pixels, **options)

    def below(*names: str) -> list[str]:
        return [path for path, _ in torchvision_samples(str(folder)) if path.startswith(tuple(f"{name}/" for name in names))]

    # Some of the classes, with other numbers: their samples come by the classes' names.
    images = chosen({"cat": 0, "ant": 1})
    assert images.classes == ["cat", "ant"] and images.class_to_idx == {"cat": 0, "ant": 1}
    assert [path for path, _ in images.samples] == below("ant", "cat") and images.targets == [1] * 9 + [0] * 9
    assert images[0][1] == 1 and images[17][1] == 0
    with Image.open(folder / images.samples[17][0]) as expected:
        assert torch.equal(images[17][0], pixels(expected.convert("RGB")))
    # One number for two, and one class in another: what is in both comes twice, as in torchvision.
    images = chosen({"ant": 0, "ant/more": 5, "bee": 0})
    assert [path for path, _ in images.samples] == below("ant") + below("ant/more") + below("bee")
    assert images.targets == [0] * 9 + [5] * 2 + [0] * 9
    with pytest.raises(FileNotFoundError, match="no valid file for the classes none in"):
        chosen({"ant": 0, "none": 1})
    assert len(chosen({"ant": 0, "none": 1}, allow_empty=True)) == 9
    with pytest.raises(ValueError, match="class_to_idx"):
        chosen({})


def test_options_are_heeded_with_an_open_data_set_too(image, folder):
    with redhare.open(image) as data:
        assert Files(data).data is data
        ant = Files(data, root="ant", cache_bytes=8 << 20)
        expected = Files(image, root="ant")
        assert len(ant) == 10 and [bytes(one) for one in ant] == [bytes(one) for one in expected]
        # From the root of the data set that was given on, also through a pickle.
        with redhare.open(image, root="ant") as below:
            for root in ("more", "/more/", b"more"):
                more = pickle.loads(pickle.dumps(Files(below, root=root)))
                assert [more.data.path(index) for index in range(len(more))] == ["3.JPG", "7.JPG"]
        with pytest.raises(FileNotFoundError, match="class folder"):
            ImageFolder(data, root="ant/more")
        with pytest.raises(FileNotFoundError):
            Files(data, root="none")
        with pytest.raises(ValueError, match="give both"):
            Files(data, cache_size=1 << 24)
        for source in (image, data):
            for wrong in ({"rooot": "ant"}, {"writable": True}, {"wait": 1.0}):
                with pytest.raises(TypeError, match=next(iter(wrong))):
                    ImageFolder(source, **wrong)
        assert len(data) == len(Files(image)), "it is as it was"


def imported(root: pathlib.Path, to: pathlib.Path) -> str:
    program("fs", "format", f"file:{to}", "--size", "64MiB")
    program("fs", "import", str(root), f"file:{to}")
    return f"file:{to}"


def linked(root: pathlib.Path, links: dict[str, str]) -> None:
    for number, path in enumerate(["ant/0.jpg", "ant/more/1.jpg", "ant/more/notes.txt", "bee/2.jpg", "bee/b/b/3.jpg"]):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(jpeg(number))
    (root / "bee/empty").mkdir()
    (root / "file").write_bytes(jpeg(9))
    for path, target in links.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)


def test_links_are_followed_as_torchvision_does(tmp_path):
    root = tmp_path / "root"
    links = {
        "dog": "ant",  # a class
        "cow": "./bee//b/",
        "eel": "dog/../bee/b",  # through a class that is one
        "fox/x": "../dog/more",
        "not-a-class": "file",
        "ant/linked": "../bee",  # directories in a class, of which one has links itself
        "ant/more.jpg": "../bee/b",
        "bee/to-empty": "empty",
        "bee/b/up": "../../ant/more",
        "ant/9.jpg": "0.jpg",  # files
        "ant/more/0.jpg": "../../file",
        "ant/more/8.jpg": "../linked/b/b/3.jpg",
        "ant/more/7.JPG": "./../more/./8.jpg",
        "ant/more/6.jpg": "notes.txt",
        "ant/more/5.txt": "1.jpg",
        os.fsdecode(b"bee/\xff.jpg"): "2.jpg",
        "gnu/0.jpg": "../chain/37",
        "chain/0": "../ant/0.jpg",
        "chain/z.jpg": "38",  # of 40 links, the most there may be
        "chain/a/0.jpg": "../../bee/2.jpg",
    } | {f"chain/{number}": str(number - 1) for number in range(1, 39)}
    linked(root, links)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images = ImageFolder(imported(root, tmp_path / "image"), transform=pixels)
    assert images.classes == sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    assert images.samples == torchvision_samples(str(root)) and len(images) > 30
    for index, (path, target) in enumerate(images.samples):
        if path.endswith("6.jpg"):
            continue
        tensor, found = images[index]
        with Image.open(root / path) as expected:
            assert found == target and torch.equal(tensor, pixels(expected.convert("RGB")))
        assert images.size(index) == (root / path).stat().st_size
    # Every regular file is one of `Files` once, whatever leads to it.
    files = {os.path.relpath(os.path.join(top, name), root) for top, _, names in os.walk(root) for name in names}
    files -= set(links)
    assert sorted(images.data.path(position) for position in range(len(images.data))) == sorted(files)
    # Links are relative to the root that was chosen, and do not leave it.
    with pytest.warns(RuntimeWarning, match="left out: 1, the first of them up, since its target is outside"):
        below = ImageFolder(images.data.address, root="bee/b")
    assert [path for path, _ in below.samples] == ["b/3.jpg"]


def test_images_of_another_state_are_not_taken_for_those_that_were_listed(tmp_path):
    root = tmp_path / "root"
    for number, name in enumerate(["ant", "bee"]):
        (root / name).mkdir(parents=True)
        (root / name / "0.jpg").write_bytes(jpeg(number))
    address = imported(root, tmp_path / "image")
    data = redhare.open(address)
    images = ImageFolder(data, transform=pixels)
    before = images[0]
    # An image in a file is locked by who reads it.
    data._let_go()
    with redhare.open(address, writable=True) as writer:
        writer.makedirs("aaa")
        writer.write("aaa/0.jpg", jpeg(7))
    assert data.refresh()
    with pytest.raises(RuntimeError, match="make the ImageFolder anew"):
        images[0]
    again = ImageFolder(data, transform=pixels)
    assert again.classes == ["aaa", "ant", "bee"] and torch.equal(again[1][0], before[0])


def test_links_that_lead_nowhere_are_left_out(tmp_path):
    root = tmp_path / "root"
    refused = {
        "ant/a0.jpg": str(root / "ant/0.jpg"),
        "ant/a1": str(root / "bee"),
        "ant/to-a0.jpg": "a0.jpg",
        "bee/d0.jpg": "nothing.jpg",
        "bee/d1.jpg": "../nothing/2.jpg",
        "bee/d2.jpg": "2.jpg/",
        "bee/d3.jpg": "2.jpg/../2.jpg",
        "bee/d4.jpg": "x" * 255,
        "bee/o0.jpg": "../../root/ant/0.jpg",
        "bee/o1": "../..",
        "bee/c0.jpg": "c1.jpg",
        "bee/c1.jpg": "c0.jpg",
        "ant/long.jpg": "../pipe/chain/39",
        "absolute-class": str(root / "ant"),
        "pipe/p.jpg": "pipe",
    }
    followed = {f"pipe/chain/{number}": str(number - 1) for number in range(1, 40)} | {"pipe/chain/0": "../../file"}
    # Those that torchvision goes round by until the kernel follows no more.
    rounds = {"ant/up": "..", "ant/self": ".", "ant/more/up": "../../ant", "self": ".", "bee/b/there": "../../ant/hither"}
    rounds |= {"ant/hither/back": "../../bee", "bee/b/ant": "../../ant/more"}
    linked(root, refused | followed | rounds | {"ant/good.jpg": "../bee/2.jpg", "pipe/0.jpg": "../file"})
    os.mkfifo(root / "pipe/pipe")
    with pytest.warns(RuntimeWarning) as warned:
        images = ImageFolder(imported(root, tmp_path / "image"))
    (text,) = [str(warning.message) for warning in warned]
    assert f"left out: {len(refused)}, the first of them absolute-class, since its target is absolute" in text
    assert warned[0].filename == __file__
    assert images.classes == ["ant", "bee", "pipe"]
    assert [path for path, _ in images.samples] == [
        "ant/0.jpg",
        "ant/good.jpg",
        # bee, by a link in a directory beside; back to ant goes none from there.
        "ant/hither/back/2.jpg",
        "ant/hither/back/b/ant/1.jpg",
        "ant/hither/back/b/b/3.jpg",
        "ant/more/1.jpg",
        "bee/2.jpg",
        "bee/b/ant/1.jpg",
        "bee/b/b/3.jpg",
        "pipe/0.jpg",
    ]
    classes, paths = images.class_to_idx, [path for path, _ in images.samples]
    assert images.targets == [classes[path.split("/")[0]] for path in paths]
    for index, path in enumerate(paths):
        assert images.data[images._position(index)] == (root / path).read_bytes()


@pytest.mark.parametrize("length", [1, 7, 24, 25])
@pytest.mark.parametrize("world_size", [1, 2, 4, 30])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_together_read_everything_once(length, world_size, shuffle):
    def parts(drop_last: bool) -> list[list[int]]:
        settings = {"shuffle": shuffle, "seed": 3, "epoch": 1, "world_size": world_size, "drop_last": drop_last}
        return [list(Order(length, rank=rank, **settings)) for rank in range(world_size)]

    padded, cut = parts(False), parts(True)
    assert {len(part) for part in padded} == {-(-length // world_size)}
    assert set().union(*padded) == set(range(length))
    together = [number for part in cut for number in part]
    assert len(set(together)) == len(together) == length // world_size * world_size
    own = Order(length, shuffle=shuffle, seed=3, epoch=1, world_size=world_size, rank=world_size - 1)
    assert own[:] == list(own) and own[1:-1:2] == list(own)[1:-1:2]


@pytest.mark.parametrize("settings", [{"shuffle": False}, {"seed": 5}, {"drop_last": True}, {"window": 3, "block": 2}])
def test_slices_of_an_order_are_those_of_its_list(settings):
    ends = [None, *range(-8, 9)]
    slices = [slice(*ones) for ones in itertools.product(ends, ends, [None, *range(-4, 0), *range(1, 5)])]
    for length, world_size in ((0, 1), (1, 2), (6, 1), (6, 2), (7, 3), (2, 4)):
        for rank in range(world_size):
            order = Order(length, rank=rank, world_size=world_size, **settings)
            single = [order[place] for place in range(len(order))]
            for part in slices:
                assert order[part] == single[part], (length, rank, world_size, part)


def epoch_of(loader: Loader) -> list[bytes]:
    return [sample for batch in loader for sample in batch]


def made(image: str, **options) -> Loader:
    settings = {"batch_size": 4, "seed": 5, "collate_fn": as_list} | options
    return Loader(Files(image, decode=identity, root=options.pop("root", "")), **settings)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_order_does_not_depend_on_the_workers(image, workers):
    loader = made(image, num_workers=workers)
    first, second = epoch_of(loader), epoch_of(loader)
    data = loader.files.data
    everything = sorted(bytes(content) for content in data.read_many(range(len(data))))
    assert sorted(first) == sorted(second) == everything and first != second
    assert first == [bytes(data[position]) for position in Order(len(data), seed=5)]
    loader.set_epoch(0)
    assert epoch_of(loader) == first
    assert epoch_of(made(image, seed=6)) != first
    assert len(loader) == -(-len(everything) // 4)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_start_method(image, method):
    loader = made(image, num_workers=2, multiprocessing_context=method)
    assert epoch_of(loader) == epoch_of(made(image))


def worker_number(content: memoryview) -> int:
    return os.getpid()


def test_workers_may_stay(image):
    loader = made(image, num_workers=1, persistent_workers=True)
    loader.files.decode = worker_number
    first = iter(loader)
    next(first)
    first.close()
    numbers = set(epoch_of(loader) + epoch_of(loader))
    assert len(numbers) == 1 and loader.epoch == 2 and os.getpid() not in numbers


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 3, 8])
def test_it_goes_on_where_it_was(image, workers, stop):
    whole = made(image, num_workers=workers)
    batches = list(whole) + list(whole)
    interrupted = made(image, num_workers=workers)
    running = iter(interrupted)
    for _ in range(stop):
        next(running)
    state = interrupted.state_dict()
    running.close()
    resumed = made(image, num_workers=workers)
    resumed.load_state_dict(state)
    rest = list(resumed)
    if stop == len(whole):
        assert rest == batches[stop:]
    else:
        assert batches[stop:] == rest + list(resumed)
    with pytest.raises(ValueError, match="seed=5"):
        made(image, seed=6).load_state_dict(state)


def test_resuming_reads_nothing_of_what_was(image):
    whole = made(image, batch_size=1, shuffle=False)
    state = whole.state_dict() | {"batches": len(whole) - 1}
    whole.load_state_dict(state)
    before = whole.files.data.statistics().content_bytes
    assert len(list(whole)) == 1
    assert whole.files.data.statistics().content_bytes - before == whole.files.size(len(whole) - 1)


def test_ranks_of_a_loader(image):
    ranks = [epoch_of(made(image, rank=rank, world_size=3)) for rank in range(3)]
    assert len({len(part) for part in ranks}) == 1
    assert set(sum(ranks, [])) == set(epoch_of(made(image)))


def test_training_goes_down(images):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    losses = []
    loader = Loader(images, 9, seed=1)
    for _ in range(30):
        total = 0.0
        for batch, targets in loader:
            loss = torch.nn.functional.cross_entropy(model(batch.float() / 255 - 0.5), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total)
    assert losses[-1] < losses[0] / 2


def test_a_stream_gives_everything_once(image):
    files = Files(image, decode=identity)
    everything = sorted(bytes(content) for content in files.data.read_many(range(len(files))))
    stream = Stream(files, seed=2)
    assert len(stream) == len(everything)
    first = list(stream)
    assert sorted(first) == everything
    assert list(stream) != first
    stream.set_epoch(0)
    assert list(stream) == first
    parts = [list(Stream(files, seed=2, rank=rank, world_size=2, drop_last=True)) for rank in range(2)]
    assert len(parts[0]) == len(parts[1]) == len(everything) // 2
    loader = torch.utils.data.DataLoader(Stream(files, seed=2), batch_size=None, num_workers=2, collate_fn=identity)
    assert sorted(loader) == everything


def test_a_stream_asks_for_no_more_than_it_may(image):
    files = Files(image, decode=len)
    stream = Stream(files, prefetch_bytes=100_000)
    assert sum(stream) == sum(files.size(index) for index in range(len(files)))
    largest = max(files.size(index) for index in range(len(files)))
    others = sorted(files.size(index) for index in range(len(files)))[-2]
    # The one larger file is asked for when nothing else is.
    assert stream.ahead_bytes_max == largest and others < 100_000
    small = Stream(Files(files.data, decode=len), prefetch_bytes=100_000)
    small.files.size = lambda index: min(files.size(index), 60_000)
    list(small)
    assert small.ahead_bytes_max <= 100_000


@pytest.mark.parametrize("stop", [0, 1, 10])
def test_a_stream_goes_on_where_it_was(image, stop):
    files = Files(image, decode=identity)
    whole = list(Stream(files, seed=4))
    stream = Stream(files, seed=4)
    running = iter(stream)
    for _ in range(stop):
        next(running)
    state = stream.state_dict()
    running.close()
    resumed = Stream(files, seed=4)
    resumed.load_state_dict(state)
    assert list(resumed) == whole[stop:]
    with pytest.raises(ValueError, match="seed=4"):
        Stream(files, seed=5).load_state_dict(state)


def test_a_position_of_one_process_is_none_of_workers(image):
    """Each worker would skip as many samples as that process had given."""
    stream = Stream(Files(image, decode=len), seed=4)
    running = iter(stream)
    for _ in range(5):
        next(running)
    state = stream.state_dict()
    running.close()
    resumed = Stream(Files(image, decode=len), seed=4)
    resumed.load_state_dict(state)
    loader = torch.utils.data.DataLoader(resumed, batch_size=None, num_workers=2)
    with pytest.raises(RuntimeError, match="worker 0 of 1, and worker 0 of 2 would skip samples"):
        list(loader)
    resumed.set_epoch(0)
    assert len(list(torch.utils.data.DataLoader(resumed, batch_size=None, num_workers=2))) == len(resumed)


@pytest.mark.parametrize("window, block", [(1, 1), (7, 3), (16, 4), (1000, 64)])
def test_a_stream_of_windows_gives_everything_once(image, window, block):
    files = Files(image, decode=identity)
    everything = sorted(bytes(content) for content in files.data.read_many(range(len(files))))

    def stream(**options):
        return Stream(files, seed=2, window=window, block=block, **options)

    whole = stream()
    first = list(whole)
    assert sorted(first) == everything == sorted(whole) and len(whole) == len(everything)
    whole.set_epoch(0)
    assert list(whole) == first
    parts = [list(stream(rank=rank, world_size=2, drop_last=True)) for rank in range(2)]
    assert len(parts[0]) == len(parts[1]) == len(everything) // 2
    assert len(set(parts[0]) | set(parts[1])) == len(set(everything[: len(everything) // 2 * 2])) or len(everything) % 2
    for workers in [1, 2]:
        loader = torch.utils.data.DataLoader(stream(), batch_size=None, num_workers=workers, collate_fn=identity)
        assert sorted(loader) == everything
    # Where a stream is left it goes on, in the middle of a window too.
    for stop in [0, 1, 10, len(first) - 1]:
        left = stream()
        running = iter(left)
        for _ in range(stop):
            next(running)
        resumed = stream()
        resumed.load_state_dict(left.state_dict())
        assert list(resumed) == first[stop:]


def test_a_window_mixes_blocks_and_the_whole_of_it_has_to_fit(image):
    files = Files(image, decode=len)
    sizes = [files.size(index) for index in range(len(files))]
    fitting = Stream(files, window=4, block=2, prefetch_bytes=sum(sizes))
    assert sum(fitting) == sum(sizes) and fitting.ahead_bytes_max <= sum(sizes)
    with pytest.raises(ValueError, match="window of 1000 samples takes more than prefetch_bytes"):
        list(Stream(files, window=1000, prefetch_bytes=sum(sizes) // 2))
    for wrong in [{"window": -1}, {"window": 4, "block": 0}, {"window": 4, "shuffle": False}]:
        with pytest.raises(ValueError):
            Stream(files, **wrong)
    # A state of before there were windows is that of a stream without.
    state = Stream(files).state_dict()
    del state["window"], state["block"]
    Stream(files).load_state_dict(state)
    with pytest.raises(ValueError, match="window=0"):
        Stream(files, window=4).load_state_dict(state)


def test_a_loader_reads_runs_of_a_block(image):
    files = Files(image, decode=identity)
    everything = sorted(bytes(content) for content in files.data.read_many(range(len(files))))
    loader = Loader(files, 8, block=4, collate_fn=as_list, num_workers=2)
    assert sorted(sample for batch in loader for sample in batch) == everything
    order = Order(len(files), window=8, block=4)
    batches = [sorted(order[at : at + 8]) for at in range(0, len(order) - 8, 8)]
    together = sum(b == a + 1 for batch in batches for a, b in zip(batch, batch[1:]))
    assert together >= len(batches) * 4
    with pytest.raises(ValueError, match="block"):
        Loader(files, 8, block=4, shuffle=False)
    with pytest.raises(ValueError, match="block=4"):
        Loader(files, 8, collate_fn=as_list).load_state_dict(loader.state_dict())


def test_decoding_reads_the_buffers_themselves(image):
    content = redhare.open(image)["ant/0.JPG"]
    with warnings.catch_warnings():
        # That the bytes may not be written is as it should be.
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch.frombuffer(content, dtype=torch.uint8)
    assert tensor.tolist() == list(content) and Image.open(io.BytesIO(content)).size == (64, 48)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_stream_in_workers_says_that_it_knows_not_where_it_is(image, method):
    stream = Stream(Files(image, decode=len), seed=3)
    loader = torch.utils.data.DataLoader(stream, batch_size=4, num_workers=2, multiprocessing_context=method)
    assert stream.state_dict()["given"] == 0, "nothing was given yet"
    batches = iter(loader)
    next(batches)
    with pytest.raises(RuntimeError, match="redhare.torch.Loader"):
        stream.state_dict()
    assert sum(len(batch) for batch in batches) + 4 == len(stream)
    with pytest.raises(RuntimeError, match="StatefulDataLoader"):
        stream.state_dict()
    # Where it is begun anew, or in this process, that is known again.
    stream.set_epoch(1)
    assert stream.state_dict()["given"] == 0 and stream.state_dict()["epoch"] == 1
    next(iter(loader))
    with pytest.raises(RuntimeError):
        stream.state_dict()
    here = iter(stream)
    next(here)
    assert stream.state_dict()["given"] == 1


class Asks(torch.utils.data.IterableDataset):
    """What a loader does that asks in its workers."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __iter__(self):
        for _ in self.stream:
            yield self.stream.state_dict()


def test_in_the_workers_its_place_is_known(image):
    stream = Stream(Files(image, decode=len), seed=3)
    states = [state for state in torch.utils.data.DataLoader(Asks(stream), batch_size=None, num_workers=2)]
    for worker in range(2):
        given = [state["given"] for state in states if state["worker"] == worker]
        assert given == list(range(1, len(given) + 1)) and given
