"""The shuffled order: every number once, the same everywhere."""

import pytest

from redhare import Permutation
from redhare._native import Windows


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 64, 65, 1000, 4097])
def test_every_number_comes_once(length):
    assert sorted(Permutation(length, 3, 1).part(0, length)) == list(range(length))


def test_the_order_is_that_of_seed_and_epoch_and_stays():
    order = Permutation(1000, seed=1, epoch=2)
    assert order.part(0, 1000) == [order[place] for place in range(1000)] == Permutation(1000, 1, 2).part(0, 1000)
    others = [Permutation(1000, *key).part(0, 1000) for key in [(1, 3), (2, 2), (2, 1)]]
    assert all(other != order.part(0, 1000) for other in others)
    assert order.part(7, 1000, 10) == order.part(0, 1000)[7::10]
    # What a stored state means must not change with the program.
    assert Permutation(10, 42, 0).part(0, 10) == PINNED


PINNED = [1, 3, 8, 9, 5, 0, 7, 4, 2, 6]


def test_it_is_spread_out():
    length = 20_000
    order = Permutation(length, 9, 9).part(0, length)
    # Of a random order a fixed point is expected once; neighbours stay neighbours twice.
    assert sum(place == number for place, number in enumerate(order)) < 12
    assert sum(abs(a - b) == 1 for a, b in zip(order, order[1:])) < 20
    halves = sum(number < length // 2 for number in order[: length // 2])
    assert abs(halves - length // 4) < 400


def test_a_place_outside_is_refused():
    order = Permutation(10, 0, 0)
    for action in [lambda: order[10], lambda: order.part(0, 11), lambda: order.part(0, 5, 0)]:
        with pytest.raises(IndexError):
            action()
    with pytest.raises(ValueError):
        Permutation(1 << 63)


@pytest.mark.parametrize("length, block, window", [(0, 4, 8), (1, 4, 8), (1000, 16, 100), (4097, 64, 1024)])
def test_windows_have_every_number_once_and_what_they_say_of_themselves(length, block, window):
    windows = Windows(length, 0, length, block, window, 3, 1)
    order = windows.part(0, length)
    assert sorted(order) == list(range(length)) and windows.count() == -(-length // window)
    parts = [windows.window(number) for number in range(windows.count())]
    assert [samples[place] for samples, given in parts for place in given] == order
    read = [sample for samples, _ in parts for sample in samples]
    # All but the last of each block is followed by its neighbour.
    assert sum(b == a + 1 for a, b in zip(read, read[1:])) >= length - -(-length // block)


def test_the_order_of_windows_stays():
    # What a stored state means must not change with the program.
    assert Windows(20, 0, 20, 2, 8, 42, 0).part(0, 20) == PINNED_WINDOWS


PINNED_WINDOWS = [16, 2, 19, 18, 6, 7, 3, 17, 1, 8, 11, 15, 10, 9, 14, 0, 4, 13, 12, 5]


def test_windows_that_are_none_are_refused():
    windows = Windows(10, 0, 10, 2, 5)
    for action in [lambda: windows[10], lambda: windows.part(0, 11), lambda: windows.window(2)]:
        with pytest.raises(IndexError):
            action()
    for wrong in [(10, 5, 4, 2, 5), (10, 0, 10, 0, 5), (10, 0, 10, 2, 0), (1 << 63, 0, 1, 1, 1)]:
        with pytest.raises(ValueError):
            Windows(*wrong)
