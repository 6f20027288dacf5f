"""Wherever an int says how many, where or how far, an integer of numpy says the same; what is neither is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import nn, tree
from mesh.errors import MeshError

X = np.arange(12.0).reshape(3, 4)
KEY = mesh.random.key(7)
COUNTED: dict[str, Callable[[Any], Any]] = {  # by 3 or 1, which the type of an int is applied to
    "split": lambda n: mnp.split(X, n(3)),
    "array_split": lambda n: mnp.array_split(X.T, n(3)),
    "repeat": lambda n: mnp.repeat(X, n(3)),
    "roll": lambda n: mnp.roll(X, n(3), axis=n(1)),
    "tile": lambda n: mnp.tile(X, n(3)),
    "tensordot": lambda n: mnp.tensordot(X, X.T, n(1)),
    "tensordot of pairs": lambda n: mnp.tensordot(X, X.T, ([n(1)], [n(0)])),
    "round": lambda n: mnp.round(X / 7, n(1)),
    "topk": lambda n: mnp.topk(X, n(3)),
    "scan": lambda n: mesh.scan(lambda c, x: (c + 1, c), 0.0, None, length=n(3)),
    "fori_loop": lambda n: mesh.grad(lambda x: mesh.fori_loop(n(0), n(3), lambda i, c: c * x, 1.0))(2.0),
    "vmap": lambda n: mesh.vmap(lambda x: x * 2, in_axes=n(1), out_axes=n(1))(X),
    "keys": lambda n: mesh.random.split(KEY, n(3)),
    "permutation": lambda n: mesh.random.permutation(KEY, n(3)),
    "choice": lambda n: mesh.random.choice(KEY, n(3), (5,)),
    "conv": lambda n: nn.conv(X, np.ones((2, 3, 2)), stride=n(3), padding=n(1)),
    "conv by axis": lambda n: nn.conv(X, np.ones((2, 3, 2)), stride=(n(3),), padding=((n(1), n(0)),)),
    "max_pool": lambda n: nn.max_pool(X[None], n(3)),
    "adaptive_avg_pool": lambda n: nn.adaptive_avg_pool(X[None], n(3)),
}


@pytest.mark.parametrize("what", COUNTED)
def test_an_integer_of_numpy_counts_as_an_int(what: str) -> None:
    found, wanted = (tree.leaves(COUNTED[what](kind)) for kind in (np.int64, int))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_tensordot_takes_one_axis_of_each_as_numpy_does() -> None:
    np.testing.assert_array_equal(mnp.tensordot(X, X, (0, 0)), np.tensordot(X, X, (0, 0)))


WRONG: list[tuple[str, Callable[[], Any]]] = [
    ("arrays of concat is a list, not 3", lambda: mnp.concat(3)),
    ("arrays of stack is a list, not 3", lambda: mnp.stack(3)),
    ("einsum takes subscripts first", lambda: mnp.einsum(X, "ij->")),
    ("axes of permute_dims is a list, not 0.5", lambda: mnp.permute_dims(X, 0.5)),
    ("as axes of tensordot an int or a list is given, not 0.5", lambda: mnp.tensordot(X, X, 0.5)),
    ("the axes of tensordot are an int, or two lists", lambda: mnp.tensordot(X, X, ([0], [0], [1]))),
    ("rot90 turns two axes, got (0, 1, 1)", lambda: mnp.rot90(X, 1, (0, 1, 1))),
    ("choicelist of select is a list, not 0.5", lambda: mnp.select([X > 1], 0.5)),
    ("decimals is an int, not 'a'", lambda: mnp.round(X, "a")),
    ("stride of conv is an int, not 0.5", lambda: nn.conv(X, np.ones((2, 3, 2)), stride=(0.5,))),
    ("padding of an axis is an int, or one before and one after", lambda: nn.max_pool(X[None], 2, padding=[[1]])),
    ("kernel of max_pool is an int or a list of ints, not 0.5", lambda: nn.max_pool(X[None], 0.5)),
    ("the size of an output is an int from 1, not 0", lambda: nn.adaptive_avg_pool(X[None], 0)),
    ("the length of scan is an int, not 'a'", lambda: mesh.scan(lambda c, x: (c, c), 0.0, None, length="a")),
    ("a count of keys is an int from 0, not -1", lambda: mesh.random.split(KEY, -1)),
]


@pytest.mark.parametrize(("said", "call"), WRONG)
def test_what_does_not_count_is_named(said: str, call: Callable[[], Any]) -> None:
    with pytest.raises(MeshError) as caught:
        call()
    assert said in str(caught.value)
