"""What the Array API standard asks of arrays besides functions: devices, DLPack, operators in place, setting items."""

from __future__ import annotations

import array
import copy
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh.core.array import Array
from mesh.errors import DTypeError, InputError, ShapeError

RANDOM = np.random.default_rng(3)
F = RANDOM.standard_normal((3, 4)).astype(np.float32)
I = RANDOM.integers(-9, 10, (3, 4)).astype(np.int32)  # noqa: E741
MASK = RANDOM.random((3, 4)) > 0.5


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
    assert np.asarray(found).dtype == np.asarray(expected).dtype


# -- the namespace ----------------------------------------------------------------------------------------


def test_an_array_names_its_namespace() -> None:
    x = mnp.asarray(F)
    for version in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        assert x.__array_namespace__(api_version=version) is mnp
    with pytest.raises(InputError, match=r"2019\.12"):
        x.__array_namespace__(api_version="2019.12")
    assert mnp.__array_api_version__ == "2024.12"


def test_the_namespace_describes_itself() -> None:
    info = mnp.__array_namespace_info__()
    assert info.capabilities() == {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 8}
    assert info.default_dtypes(device=info.default_device())["integral"] == mnp.int32
    assert info.dtypes(kind="signed integer").keys() == {"int8", "int16", "int32", "int64"}
    assert info.dtypes(kind=("bool", "unsigned integer")).keys() == {"bool", "uint8", "uint16", "uint32", "uint64"}
    assert all(getattr(mnp, name) == dtype for name, dtype in info.dtypes().items())
    assert info.dtypes(kind="complex floating").keys() == {"complex64", "complex128"}
    assert info.default_dtypes()["complex floating"] == mnp.complex64
    assert info.dtypes(kind="real floating").keys() == {"float32", "float64"}  # the halves are beyond the standard
    assert info.devices() == [mnp.asarray(F).device]


def test_there_is_one_device() -> None:
    x = mnp.zeros(3, device="mesh")
    assert str(x.device) == "mesh"
    same(x.to_device(x.device), np.zeros(3, np.float32))
    for wrong in (lambda: x.to_device("cuda:0"), lambda: mnp.asarray(F, device="cpu"), lambda: mnp.arange(3, device=0)):
        with pytest.raises(InputError, match="there is no device"):
            wrong()


# -- other libraries --------------------------------------------------------------------------------------


def test_dlpack_gives_memory_without_a_copy() -> None:
    x = mnp.asarray(F) + 1
    given = np.from_dlpack(x)
    same(given, F + 1)
    assert np.shares_memory(given, np.from_dlpack(x))
    assert not given.flags.writeable
    assert x.__dlpack_device__() == (1, 0)


def test_dlpack_gives_a_copy_to_who_knows_nothing_of_memory_that_is_only_read() -> None:
    x = mnp.asarray(F)
    assert x.__dlpack__() is not None
    with pytest.raises(BufferError):
        x.__dlpack__(copy=False)
    with pytest.raises(InputError, match="__dlpack__"):
        mesh.trace(lambda y: np.from_dlpack(y), F)


def test_dlpack_takes_memory_that_nobody_changes_without_a_copy() -> None:
    fixed = F.copy()
    fixed.flags.writeable = False
    assert np.shares_memory(np.asarray(mnp.from_dlpack(fixed)), fixed)
    mine = F.copy()
    taken, shared = mnp.from_dlpack(mine), mnp.from_dlpack(mine, copy=False)
    mine[0, 0] = 7
    same(taken, F)
    assert np.asarray(shared)[0, 0] == 7
    same(mnp.from_dlpack(mnp.asarray(F)), F)
    with pytest.raises(InputError, match="DLPack"):
        mnp.from_dlpack([1, 2])


def test_asarray_copies_when_asked() -> None:
    x = mnp.asarray(F)
    assert mnp.asarray(x) is x
    assert mnp.asarray(x, copy=True) is not x
    mine = F.copy()
    assert np.shares_memory(np.asarray(mnp.asarray(mine, copy=False)), mine)
    for wrong in (lambda: mnp.asarray([1, 2], copy=False), lambda: mnp.asarray(x, mnp.float64, copy=False)):
        with pytest.raises(ValueError, match="without a copy"):
            wrong()


BUFFERS = [bytearray(b"ab"), b"ab", memoryview(np.arange(3.0)), array.array("i", [1, -2])]


@pytest.mark.parametrize(
    "given",
    [*BUFFERS, range(4), range(0), range(2, -4, -2), range(1 << 40, 2 + (1 << 40))],
    ids=lambda given: str(given) if isinstance(given, range) else type(given).__name__,
)
def test_memory_and_ranges_are_arrays(given: Any) -> None:
    expected = np.array(given) if isinstance(given, range) else np.asarray(memoryview(given))
    found = mnp.asarray(given)
    np.testing.assert_array_equal(np.asarray(found), expected)
    small = isinstance(given, range) and all(each < 1 << 31 for each in given)
    assert found.dtype == (np.int32 if small else expected.dtype)


def test_numpys_places_of_arguments() -> None:
    same(mnp.zeros(2, np.int32), np.zeros(2, np.int32))
    same(mnp.full((2,), 3, np.float32), np.full((2,), 3, np.float32))
    same(mnp.arange(0, 6, 2, np.float32), np.arange(0, 6, 2, np.float32))
    same(mnp.tril(F, -1), np.tril(F, -1))
    same(mnp.triu(F, 1), np.triu(F, 1))
    same(mnp.linspace(0, 1, 4, False, dtype=np.float64), np.linspace(0, 1, 4, False))
    assert mnp.linspace(0, 1).shape == (50,)
    same(mnp.tensordot(F, F.T, 1), np.tensordot(F, F.T, 1))
    same(mnp.sum(I, 0, np.int64), np.sum(I, 0, np.int64))


def test_parts_are_changed_through_their_array() -> None:
    x, theirs = mnp.asarray(F), F.copy()
    for each in (x, theirs):
        each[0] += 1
        each[:, 1] *= 2
        each[MASK] -= 3
        each[[0, 2], 1] = 5
    same(x, theirs)


def test_a_value_of_another_library_of_numbers() -> None:
    assert complex(mnp.asarray(2.5)) == 2.5
    assert np.asarray(mnp.asarray(np.array([1, 2], ml_dtypes.bfloat16))).dtype == ml_dtypes.bfloat16


# -- in place ---------------------------------------------------------------------------------------------

IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "+=": lambda x, y: x.__iadd__(y), "-=": lambda x, y: x.__isub__(y), "*=": lambda x, y: x.__imul__(y),
    "/=": lambda x, y: x.__itruediv__(y), "//=": lambda x, y: x.__ifloordiv__(y), "%=": lambda x, y: x.__imod__(y),
    "**=": lambda x, y: x.__ipow__(y), "&=": lambda x, y: x.__iand__(y), "|=": lambda x, y: x.__ior__(y),
    "^=": lambda x, y: x.__ixor__(y), "<<=": lambda x, y: x.__ilshift__(y), ">>=": lambda x, y: x.__irshift__(y),
}  # fmt: skip


@pytest.mark.parametrize("operator", IN_PLACE)
def test_an_operator_in_place_changes_every_name_of_the_object(operator: str) -> None:
    bits = operator in ("&=", "|=", "^=", "<<=", ">>=")
    theirs = np.abs(I) if bits else np.abs(F)
    other = np.array([1, 2, 3, 1], theirs.dtype)
    x = mnp.asarray(theirs)
    y, made_before = x, x + 0
    result = IN_PLACE[operator](x, mnp.asarray(other))
    assert result is y is x
    same(made_before, theirs)
    expected = theirs.copy()
    IN_PLACE[operator](expected, other)
    np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-5)
    assert y.dtype == theirs.dtype


def test_matmul_in_place() -> None:
    x = mnp.asarray(F)
    x @= np.eye(4, dtype=np.float32)
    same(x, F)
    with pytest.raises(ShapeError, match="matmul in place"):
        x @= np.zeros((4, 2), np.float32)


def test_what_would_change_shape_or_kind_is_refused_in_place() -> None:
    x = mnp.asarray(I)
    with pytest.raises(ShapeError, match="in place"):
        x += np.zeros((2, 3, 4), np.int32)
    for wrong in (1.5, F):
        with pytest.raises(DTypeError, match="x = x \\+ y"):
            x += wrong
    with pytest.raises(DTypeError):
        x /= 2
    same(x, I)
    y = mnp.asarray(F)
    y += F.astype(np.float64)  # the same kind: as numpy does
    assert y.dtype == np.float32


def test_a_number_that_a_function_was_called_with_is_no_array() -> None:
    def summed(total: Any, x: Any) -> Any:
        total += x
        return total

    same(mesh.evaluate(summed, 1, F), F + 1)


# -- item assignment --------------------------------------------------------------------------------------

ONES = [np.array([[7.0]], np.float32)]  # dimensions of 1 that the place does not have
KEYS: list[Any] = [
    0, -1, slice(1, None), slice(None, None, -2), ..., (..., 1), (1, 2), None, (None, slice(None), 0), [0, 2],
    (slice(None), [1, 1, 3]), ([0, 1], [2, 3]), np.array([[0], [2]]), (), MASK, (MASK, ...), MASK[:, 0], (0, MASK[0]),
    (MASK[:, 0], slice(None)), (slice(None), MASK[0]), True, False, np.True_, (..., True),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_items_are_read_and_set_as_in_numpy(key: Any) -> None:
    same(mnp.asarray(F)[key], F[key])
    masked = any(isinstance(each, np.ndarray) for each in (key if isinstance(key, tuple) else (key,)))
    over_ones = [] if masked or F[key].ndim == 0 else ONES
    for value in (5, np.float32(2.5), F[key] * 2, *over_ones):
        x, theirs = mnp.asarray(F), F.copy()
        x[key] = value
        theirs[key] = value
        same(x, theirs)


@pytest.mark.parametrize("key", [MASK, MASK[:, 0], (MASK, ...)], ids=str)
@pytest.mark.parametrize("value", [5.0, np.float32(2), "row", [3.0]], ids=str)
def test_a_mask_need_not_be_known_while_tracing(key: Any, value: Any) -> None:
    mask = key[0] if isinstance(key, tuple) else key
    given = (F[0] if mask.ndim == 1 else 9.0) if isinstance(value, str) else value

    def assigned(x: Any, where: Any) -> Any:
        x[(where, ...) if isinstance(key, tuple) else where] = given
        return x

    theirs = F.copy()
    theirs[key] = given
    same(mesh.evaluate(assigned, F, mask), theirs)


@pytest.mark.parametrize("mode", ["add", "max", "min"])
def test_updates_under_a_traced_mask(mode: str) -> None:
    combine = {"add": np.add, "max": np.maximum, "min": np.minimum}[mode]
    found = mesh.evaluate(lambda x, where: getattr(x.at[where], mode)(0.5), F, MASK)
    same(found, np.where(MASK, combine(F, np.float32(0.5)), F))


def test_values_that_differ_by_place_need_the_mask() -> None:
    def assigned(x: Any, where: Any) -> Any:
        x[where] = np.arange(MASK.sum(), dtype=np.float32)
        return x

    with pytest.raises(InputError, match="a boolean mask needs the value of 'where'"):
        mesh.trace(assigned, F, MASK)


@pytest.mark.parametrize(("key", "value", "error"), [
    (3, 0, InputError), ((0, 4), 0, InputError), (MASK[:2], 0, ShapeError), (0, [1, 2], ShapeError),
    ("x", 0, InputError), (1.5, 0, InputError), (np.array([0.5]), 0, DTypeError), ([0, 3], 0, InputError),
    ((0, 0, 0), 0, InputError), ((..., ...), 0, InputError), (MASK, [1, 2], ShapeError),
])  # fmt: skip
def test_a_wrong_item_is_refused_and_changes_nothing(key: Any, value: Any, error: type[Exception]) -> None:
    x = mnp.asarray(F)
    with pytest.raises(error):
        x[key] = value
    same(x, F)


def test_masks_of_no_dimension() -> None:
    x = mnp.asarray(2.0)
    same(x[mnp.asarray(True)], np.array([2], np.float32))
    same(x[x > 5], np.zeros(0, np.float32))
    x[x > 1] = 7
    assert float(x) == 7


# -- names ------------------------------------------------------------------------------------------------

UNCHANGED: dict[str, Callable[[Any], Any]] = {
    "positive": lambda x: mnp.positive(x), "abs": lambda x: mnp.abs(x), "floor": mnp.floor, "ceil": mnp.ceil,
    "trunc": mnp.trunc, "round": mnp.round, "clip": mnp.clip, "astype": lambda x: x.astype(x.dtype),
    "reshape": lambda x: x.reshape(x.shape), "transpose": lambda x: mnp.permute_dims(x, (0, 1)), "x[:]": lambda x: x[:],
    "x[...]": lambda x: x[...], "squeeze": lambda x: mnp.squeeze(x), "flip": lambda x: mnp.flip(x, ()),
    "broadcast_to": lambda x: mnp.broadcast_to(x, x.shape), "broadcast_arrays": lambda x: mnp.broadcast_arrays(x)[0],
    "roll": lambda x: mnp.roll(x, 0), "roll axis": lambda x: mnp.roll(x, 0, 0), "concat": lambda x: mnp.concat([x]),
    "tile": lambda x: mnp.tile(x, 1), "sum": lambda x: mnp.sum(x, axis=()), "diff": lambda x: mnp.diff(x, 0),
    "pad": lambda x: mnp.pad(x, 0, "edge"), "copy": mnp.copy, "copy.copy": copy.copy, "deepcopy": copy.deepcopy,
    "array": mnp.array, "split": lambda x: mnp.split(x, 1)[0], "moveaxis": lambda x: mnp.moveaxis(x, 0, 0),
    "expand_dims": lambda x: mnp.expand_dims(x, ()), "atleast_1d": mnp.atleast_1d, "max": lambda x: mnp.max(x, axis=()),
    "meshgrid": lambda x: mnp.meshgrid(x[0], indexing="ij")[0], "einsum": lambda x: mnp.einsum("ij->ij", x),
    "repeat": lambda x: mnp.repeat(x, 1, 0), "to_device": lambda x: x.to_device("mesh"), "where": lambda x: x.copy(),
    "swapaxes": lambda x: x.swapaxes(0, 0), "real": lambda x: +x,
}  # fmt: skip


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_result_has_a_name_of_its_own(name: str) -> None:
    """Changing what a function gave does not change what it was given, even where the values are the same."""
    theirs = np.abs(I).astype(np.uint32)
    x = mnp.asarray(theirs)
    result = UNCHANGED[name](x)
    result[...] = 99
    same(x, theirs)
    assert np.all(np.asarray(result) == 99)


# -- side effects -----------------------------------------------------------------------------------------


def test_what_was_made_outside_of_a_traced_function_cannot_be_changed_inside() -> None:
    outside = mnp.zeros(4)

    def leaking(x: Any) -> Any:
        outside[0] = x[0, 0]
        return x

    def counting(x: Any) -> Any:
        nonlocal outside
        outside += 1
        return x

    for wrong in (leaking, counting):
        with pytest.raises(InputError, match="made outside of a traced function"):
            mesh.trace(wrong, F)
    same(outside, np.zeros(4, np.float32))
    outside[0] = 3  # outside of the function it may
    assert float(outside[0]) == 3


def test_what_is_made_inside_may_be_changed_and_a_copy_of_what_is_outside_too() -> None:
    outside = mnp.asarray(F)

    def filled(x: Any) -> Any:
        made, mine = mnp.zeros((3, 4)), mnp.copy(outside)
        made[0] = x[0]
        mine[1] = x[1]
        x[2] = 0
        made += mine
        return made + x

    expected = np.zeros_like(F)
    expected[0] = F[0]
    mine, x = F.copy(), F.copy()
    x[2] = 0
    same(mesh.evaluate(filled, F), expected + mine + x)
    same(outside, F)


def test_an_inner_function_cannot_change_what_its_outer_one_made() -> None:
    def outer(x: Any) -> Any:
        held = mnp.zeros(4)

        def inner(y: Any) -> Any:
            held[0] = y[0, 0]
            return y

        mesh.trace(inner, F)
        return x + held

    with pytest.raises(InputError, match="made outside"):
        mesh.trace(outer, F)


def test_arrays_are_sorted_in_place_by_their_method() -> None:
    x = mnp.asarray(F)
    assert x.sort() is None  # type: ignore[func-returns-value]
    same(x, np.sort(F))
    assert isinstance(x.argsort(), Array)
    same(x.cumsum(1), np.cumsum(np.sort(F), 1, dtype=np.float64).astype(np.float32))
    assert [a.tolist() for a in mnp.asarray(I).nonzero()] == [a.tolist() for a in I.nonzero()]


# -- numpy's own functions on arrays ----------------------------------------------------------------------

REDUCED: dict[str, Callable[[Any], Any]] = {
    **{name: lambda x, name=name: getattr(np, name)(x) for name in ("sum", "prod", "max", "min", "mean", "std", "var",
       "any", "all")},
    "sum axis": lambda x: np.sum(x, axis=1, keepdims=True), "std ddof": lambda x: np.std(x, axis=0, ddof=1),
    "mean dtype": lambda x: np.mean(x, axis=(0, 1), dtype=np.float64), "max axis": lambda x: np.max(x, axis=0),
    "sum dtype": lambda x: np.sum(x, dtype=np.float64),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCED)
def test_numpys_reductions_are_those_of_the_array_even_while_tracing(name: str) -> None:
    expected, found = REDUCED[name](F), REDUCED[name](mnp.asarray(F))
    assert isinstance(found, Array)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mesh.evaluate(REDUCED[name], F), expected, rtol=1e-5, atol=1e-6)


def test_a_result_is_not_written_into_another_array() -> None:
    with pytest.raises(InputError, match="no out="):
        np.sum(mnp.asarray(F), out=np.zeros((), np.float32))


def test_pythons_own_questions() -> None:
    x = mnp.asarray([1.0, 2.25, 3.5])
    assert 2.25 in x
    assert 7 not in x
    assert round(x[2]) == 4
    assert round(x[1], 1) == 2.2
    assert [float(each) for each in reversed(x)] == [3.5, 2.25, 1.0]
    with pytest.raises(InputError, match="round"):
        mesh.trace(lambda y: round(y[0]), np.ones(3, np.float32))
