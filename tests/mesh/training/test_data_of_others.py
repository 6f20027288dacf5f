"""What others' programs feed to training: DataLoaders, arrays of other libraries, iterators that can be read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mesh import DistributedTrainer, errors, optim

X = np.random.default_rng(0).standard_normal((24, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


class ByDlpack:
    """An array that numpy can have by DLPack alone."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **given: Any) -> Any:
        return self._array.__dlpack__(**given)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class ByInterface:
    """One that it can have by its older protocol alone."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__


class ByMethod:
    """One that it can have by `__array__` alone."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self._array, dtype)


class Loader:
    """Batches that are lists, anew for whoever iterates: what torch's DataLoader is."""

    def __init__(self, kind: Callable[[Any], Any], size: int = 8) -> None:
        self._kind, self._size = kind, size

    def __iter__(self) -> Iterator[list[Any]]:
        for first in range(0, len(X), self._size):
            rows = slice(first, first + self._size)
            yield [self._kind(X[rows]), self._kind(Y[rows])]


def loss(params: Any, x: Any, y: Any) -> Any:
    return ((x @ params["w"] - y) ** 2)[:, 0]


def trainer() -> DistributedTrainer:
    return DistributedTrainer(loss, {"w": np.zeros((4, 1), np.float32)}, optimizer=optim.adam(0.1))


def fitted(data: Any) -> Any:
    made = trainer()
    assert made.fit(data, epochs=3, batch_size=8, shuffle=False).rows == 3 * len(X)
    return made.params["w"]


@pytest.mark.parametrize("kind", [np.array, ByDlpack, ByInterface, ByMethod])
def test_batches_of_any_librarys_arrays_train_alike(kind: Any) -> None:
    wanted = fitted((X, Y))
    np.testing.assert_array_equal(fitted(Loader(kind)), wanted)
    np.testing.assert_array_equal(fitted((kind(X), kind(Y))), wanted)
    with trainer().forward_backward([kind(X), kind(Y)]) as one, trainer().forward_backward((X, Y)) as other:
        assert one.loss == other.loss


def test_a_dataloader_of_torch_is_data() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (the extra `torch`)")
    data = torch.utils.data
    rows = data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    np.testing.assert_array_equal(fitted(data.DataLoader(rows, batch_size=8)), fitted((X, Y)))
    by_name = [{"x": torch.tensor(x), "y": torch.tensor(y)} for x, y in zip(X, Y, strict=True)]
    named = DistributedTrainer(lambda params, batch: loss(params, **batch), {"w": np.zeros((4, 1), np.float32)})
    assert named.fit(data.DataLoader(by_name, batch_size=8), epochs=2).rows == 2 * len(X)


@dataclass(frozen=True)
class Halves:
    """Batches of one's own, which would be a tree of arrays without its number."""

    x: np.ndarray
    y: np.ndarray
    size: int

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for first in range(0, len(self.x), self.size):
            yield self.x[first : first + self.size], self.y[first : first + self.size]


def test_a_dataclass_of_arrays_that_iterates_batches_is_data() -> None:
    np.testing.assert_array_equal(fitted(Halves(X, Y, 8)), fitted((X, Y)))


NO_DATA: list[tuple[str, Any]] = [
    ("a generator, which can be iterated once: every epoch iterates them anew", ((X, Y) for _ in range(2))),
    ("a map, which can be iterated once", map(list, [(X, Y)])),
    ("a list_iterator, which can be iterated once", iter([(X, Y)])),
    ("a list without a single batch", []),
    ("NoneType is no data", None),
    ("object is no data", object()),
    ("batch 1: a str is no array of numbers", "abc"),
    ("'1' of batch 1: a str is no array of numbers", [(X, "abc")]),
    ("'1' of the data is a str, and no array. Arrays are given as a tuple, fit((x, y))", (X, "abc")),
    ("'y' of the data is a str, and no array", {"x": X, "y": "abc"}),
    ("'1/0' of the data is a float, and no array", (X, [1.0, 2.0])),
    ("the data: an array of dtype <U1 is no array of numbers", np.array(["a"])),
    ("'0' of the data: an array of dtype object is no array of numbers", (X.astype(object), Y)),
    ("or loss(params, batch) where a batch is a dict", {"x": X, "y": Y}),
    ("the same number of rows, got 3, 24", [(X, Y[:3])]),
    ("the same number of rows, at least 1, got", (X, Y[:3])),
    ("3 in '1'", (X, Y[:3])),
    ("none in '1'", (X, np.float32(1))),
    ("a batch of 1: the argument 'y' of loss is missing", [X, X]),
    ("a batch of 3: loss: too many positional arguments", (X, Y, Y)),
]


@pytest.mark.parametrize(("said", "data"), NO_DATA)
def test_what_is_no_data_is_said(said: str, data: Any) -> None:
    with pytest.raises(errors.InputError) as caught:
        trainer().fit(data)
    assert said in str(caught.value)


def test_a_batch_may_be_none_and_is_then_refused_and_not_the_end() -> None:
    with pytest.raises(errors.InputError, match="rows, got no array"):
        trainer().fit([(X, Y), None, (X, Y)])
