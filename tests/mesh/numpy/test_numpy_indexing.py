"""x[...] has numpy's results and numpy's errors, for keys of every kind in every mixture."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mesh
import mesh.numpy as mnp
from mesh.errors import DTypeError, InputError, ShapeError

X = np.arange(120, dtype=np.int32).reshape(2, 3, 4, 5)

KEYS = [
    (0,), (-1,), (slice(None),), (slice(1, None),), (slice(None, None, -1),), (slice(3, 0, -2),), (slice(5, 9),),
    (slice(2, 1),), (..., 0), (0, ...), (..., slice(1, 3), 2), (None,), (0, None, ..., None), (1, 2, 3, 4),
    ([0, 1],), (slice(None), [0, 2, -1]), ([[0, 1], [1, 0]],), (0, [1, 2]), ([0, 1], [1, 2]), ([0, 1], slice(None),
    [1, 2]),
    (slice(None), [0, 1], [1, 2]), (slice(None), [[0], [1]], [1, 2]), (0, slice(None), [1, 3]), ([0, 1], None, [1, 2]),
    (slice(None), 0, [1, 2], 3), ([0], [1], [2], [3]), (..., [0, 4, 1]), (None, [1, 0], ...), ([],),
    (slice(None, None, -1), [2, 0]),
    (np.int64(1),), (np.array(1), slice(1, 3)), (np.array([1, 0], np.uint8),), (np.array([-1, 0], np.int8),
    slice(None, None, 2)),
    (np.array([True, False]),), (slice(None), np.array([True, False, True])),
    (X > 50,), (X[:, :, 0, 0] % 2 == 0,), (0, np.array([[True] * 4, [False] * 4, [True] * 4])),
    (slice(None), slice(None), [0, 1], ..., [2, 2]), (slice(None), [0], slice(None), np.array([True] * 5), ...),
    (slice(None), slice(None), [1, 0], ..., 3), (slice(None), 1, ..., slice(None), [4, 0]),
    (np.array([True, True]), [0, 2]), (..., np.array([True, False, True, False, True])),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=lambda key: str(key)[:60].replace("\n", ""))
def test_key_equals_numpy(key: tuple[Any, ...]) -> None:
    for spelled in (key, key[0]) if len(key) == 1 else (key,):
        expected = X[spelled]
        found = mnp.asarray(X)[spelled]
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize(
    "key",
    [key for key in KEYS if any(isinstance(item, (list, np.ndarray)) for item in key)],
    ids=lambda key: str(key)[:60].replace("\n", ""),
)
def test_computed_indices_equal_numpy(key: tuple[Any, ...]) -> None:
    if any(np.asarray(item).dtype == np.bool_ for item in key if isinstance(item, (list, np.ndarray))):
        return
    places = [at for at, item in enumerate(key) if isinstance(item, (list, np.ndarray))]
    indices = [np.asarray(key[at], np.int32) if not np.size(key[at]) else np.asarray(key[at]) for at in places]

    def pick(x: Any, *traced: Any) -> Any:
        filled = list(key)
        for at, index in zip(places, traced, strict=True):
            filled[at] = index
        return x[tuple(filled)]

    np.testing.assert_array_equal(mesh.evaluate(pick, X, *indices), X[key])


def test_computed_indices_outside_are_clamped() -> None:
    x = np.arange(5, dtype=np.float32)
    found = mesh.evaluate(lambda x, i: (x[i], mnp.take(x, i)), x, np.array([-9, -5, -1, 4, 9], np.int32))
    assert [each.tolist() for each in found] == [[0, 0, 4, 4, 4]] * 2


def test_masks_work_on_values_and_explain_themselves_while_tracing() -> None:
    x = mnp.asarray(X)
    np.testing.assert_array_equal(np.asarray(x[x > 50]), X[X > 50])
    with pytest.raises(InputError, match=r"boolean mask.*use mnp.where\(mask, x, fill\)"):
        mesh.trace(lambda x: x[x > 50], X)


ERRORS = [
    (2, InputError, "index 2 is outside axis 0 of 2"), ((0, 0, 0, 0, 0), InputError, "5 indices for an array of 4"),
    ((..., ...), InputError, "one Ellipsis"), ("a", InputError, "str is not an index"),
    (1.5, InputError, "float is not an index"),
    ([0.5], DTypeError, "integer dtype"), ([0, 5],
    InputError, "index 5 is outside an axis of 2"),
    (np.array([True, False, True]), ShapeError, "does not fit"), (([0, 1], [0, 1, 2]), ShapeError, "broadcast"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "error", "words"), ERRORS, ids=str)
def test_wrong_keys_say_why(key: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        mnp.asarray(X)[key]


def test_a_traced_index_selects_and_a_traced_bound_explains_itself() -> None:
    row = mesh.evaluate(lambda x, i: x[i], X, 1)
    np.testing.assert_array_equal(row, X[1])
    with pytest.raises(InputError, match="slice bounds and shapes must be Python ints"):
        mesh.trace(lambda x, i: x[:i], X, 1)


def items(dim: int) -> st.SearchStrategy[Any]:
    bound = st.none() | st.integers(-dim - 2, dim + 2)
    step = st.sampled_from([None, 1, 2, -1, -2, 3])
    index = st.integers(-dim, dim - 1)
    return st.builds(slice, bound, bound, step) | index | st.lists(index, min_size=2, max_size=2)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_key_equals_numpy(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, X.ndim))
    key = [data.draw(items(dim)) for dim in X.shape[:count]]
    for _ in range(data.draw(st.integers(0, 2))):
        key.insert(data.draw(st.integers(0, len(key))), None)
    if data.draw(st.booleans()):
        key.append(...)
    expected = X[tuple(key)]
    found = mnp.asarray(X)[tuple(key)]
    assert found.shape == expected.shape
    np.testing.assert_array_equal(np.asarray(found), expected)


UPDATES = [key for key in KEYS if not any(isinstance(item, np.ndarray) and item.dtype == np.bool_ for item in key)]
MODES = {"set": lambda x, key, v: x.__setitem__(key, v), "add": np.add.at, "max": np.maximum.at, "min": np.minimum.at}


@pytest.mark.parametrize("mode", MODES)
def test_updates_at_any_key_equal_numpys(mode: str) -> None:
    for key in UPDATES:
        expected = X.copy()
        values = np.arange(expected[key].size, dtype=np.int32).reshape(expected[key].shape) * 7 - 60
        MODES[mode](expected, key, values)
        found = getattr(mnp.asarray(X).at[key], mode)(values)
        np.testing.assert_array_equal(np.asarray(found), expected)


def test_updates_broadcast_take_masks_and_traced_indices() -> None:
    x = mnp.asarray(X)
    expected = X.copy()
    expected[X > 50] = -1
    np.testing.assert_array_equal(np.asarray(x.at[X > 50].set(-1)), expected)
    counted = mesh.evaluate(lambda x, i: x.at[i].add(1), np.zeros(4, np.float32), np.array([0, 2, 2, -1]))
    assert counted.tolist() == [1, 0, 2, 1]
    x[0] = 1
    assert (np.asarray(x)[0] == 1).all() and (X[0] != 1).any()
