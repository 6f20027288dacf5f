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
MODES = {
    "set": lambda x, key, v: x.__setitem__(key, v), "add": np.add.at, "subtract": np.subtract.at,
    "multiply": np.multiply.at, "max": np.maximum.at, "min": np.minimum.at,
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_updates_at_any_key_equal_numpys(mode: str) -> None:
    for key in UPDATES:
        expected = X.copy()
        values = np.arange(expected[key].size, dtype=np.int32).reshape(expected[key].shape) * 7 - 60
        MODES[mode](expected, key, values)
        found = getattr(mnp.asarray(X).at[key], mode)(values)
        np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_elements_are_divided_and_raised_by_the_product_of_what_is_given_for_them(dtype: Any) -> None:
    x = X.astype(dtype) + 1
    for key in UPDATES:
        factors = np.ones_like(x)
        values = (np.arange(x[key].size, dtype=dtype).reshape(x[key].shape) % 3) + 1
        np.multiply.at(factors, key, values)
        divided, raised = np.asarray(mnp.asarray(x).at[key].divide(values)), mnp.asarray(x).at[key].power(values)
        np.testing.assert_allclose(divided, x / factors, rtol=1e-6)
        assert divided.dtype == np.float32
        np.testing.assert_allclose(np.asarray(raised), x**factors, rtol=1e-5)


def test_a_function_changes_an_element_as_often_as_it_is_named() -> None:
    for key in [*UPDATES, (np.array([0, 0, 1]), np.array([2, 2, 0])), (X > 50,), (X[:, 0, 0, 0] > 20,)]:
        expected = X.copy()
        np.multiply.at(expected, key, -2)
        np.testing.assert_array_equal(np.asarray(mnp.asarray(X).at[key].apply(lambda x: -2 * x)), expected)
        np.testing.assert_array_equal(np.asarray(mnp.asarray(X).at[key].get()), X[key])
    with pytest.raises(InputError, match="apply at an array of indices needs the value of 'i'"):
        mesh.evaluate(lambda x, i: x.at[i].apply(lambda v: -v), X, np.array([0, 0]))
    with pytest.raises(InputError, match="what apply takes is a function, not 3"):
        mnp.asarray(X).at[0].apply(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [*MODES, "divide", "power"])
def test_a_computed_index_outside_updates_nothing(mode: str) -> None:
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    inside = np.array([0, 2, 0, -1]), np.array([1, 3, 1, -4])
    outside = np.array([3, -4, 2**32, -(2**40)]), np.array([4, -5, 2**32 + 1, 2**40])
    indices = [np.concatenate(pair) for pair in zip(inside, outside, strict=True)]
    for key in (lambda i, j: (i, j), lambda i, j: (i, ..., None, j), lambda i, j: i, lambda i, j: (slice(None), j)):
        wanted = getattr(mnp.asarray(x).at[key(*inside)], mode)(3)
        found = mesh.evaluate(lambda x, i, j, key=key: getattr(x.at[key(i, j)], mode)(3), x, *indices)
        np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.uint64])
def test_a_computed_index_far_outside_is_the_last(dtype: Any) -> None:
    far = np.array([0, 3, 2**31 + 1, min(2**32, np.iinfo(dtype).max), np.iinfo(dtype).max], dtype)
    assert mesh.evaluate(lambda x, i: x[i], np.arange(4), far).tolist() == [0, 3, 3, 3, 3]


def test_products_have_slopes_where_an_element_stands_several_times() -> None:
    x, i = np.array([2, 3, 5], np.float32), np.array([0, 2, 0])
    by = np.array([7, 11, 13], np.float32)
    of_x, of_by = mesh.grad(lambda x, by, i: mnp.sum(x.at[i].multiply(by)), argnums=(0, 1))(x, by, i)
    assert np.asarray(of_x).tolist() == [7 * 13, 1, 11]
    assert np.asarray(of_by).tolist() == [2 * 13, 5, 2 * 7]


def test_updates_broadcast_take_masks_and_traced_indices() -> None:
    x = mnp.asarray(X)
    expected = X.copy()
    expected[X > 50] = -1
    np.testing.assert_array_equal(np.asarray(x.at[X > 50].set(-1)), expected)
    counted = mesh.evaluate(lambda x, i: x.at[i].add(1), np.zeros(4, np.float32), np.array([0, 2, 2, -1]))
    assert counted.tolist() == [1, 0, 2, 1]
    x[0] = 1
    assert (np.asarray(x)[0] == 1).all() and (X[0] != 1).any()
