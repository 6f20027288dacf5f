"""Array: lazy, typed at once, realised when someone looks, and clear about what it cannot do."""

import copy
import operator
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh.core.array import Array
from mesh.core.expression import pending
from mesh.core.handle import Handle
from mesh.core.realise import using
from mesh.errors import DTypeError, InputError, ShapeError
from wire.ir.codec import hash_array
from wire.ir.dtypes import F32
from wire.ir.types import TensorType

F = np.array([[1.5, -2.0, 3.0], [0.25, 5.0, -6.0]], np.float32)
I = np.array([[7, -2, 3], [4, 5, -6]], np.int32)  # noqa: E741  # beside F and B
B = np.array([[True, False, True], [False, False, True]])

OPERATORS = [
    (operator.add, F), (operator.sub, F), (operator.mul, F), (operator.truediv, F), (operator.floordiv, F),
    (operator.mod, F), (operator.pow, np.abs(F)), (operator.eq, F), (operator.ne, F), (operator.lt, F),
    (operator.le, F), (operator.gt, F), (operator.ge, F), (operator.floordiv, I), (operator.mod, I),
    (operator.and_, I), (operator.or_, I), (operator.xor, I), (operator.lshift, np.abs(I)),
    (operator.rshift, np.abs(I)), (operator.and_, B), (operator.or_, B), (operator.xor, B),
    (operator.add, B), (operator.mul, B), (operator.add, I), (operator.sub, I), (operator.mul, I),
]  # fmt: skip


@pytest.mark.parametrize(("op", "sample"), OPERATORS, ids=[f"{op.__name__}-{x.dtype}" for op, x in OPERATORS])
def test_operators_and_their_reflections_equal_numpy(op: Any, sample: np.ndarray) -> None:
    other = sample[::-1].copy()
    expected = op(sample, other)
    for result in (
        op(mnp.asarray(sample), mnp.asarray(other)),
        op(mnp.asarray(sample), other),
        op(sample, mnp.asarray(other)),
    ):
        assert isinstance(result, Array)
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "op", [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow]
)
def test_python_scalars_take_the_dtype_of_the_array(op: Any) -> None:
    for sample in (np.abs(F), np.abs(F).astype(np.float16), np.abs(F).astype(ml_dtypes.bfloat16)):
        for result in (op(mnp.asarray(sample), 2), op(mnp.asarray(sample), 2.0), op(3.0, mnp.asarray(sample))):
            assert result.dtype == sample.dtype
    np.testing.assert_allclose(np.asarray(op(3.0, mnp.asarray(np.abs(F)))), op(np.float32(3), np.abs(F)), rtol=1e-6)


def test_numpy_scalars_and_arrays_on_the_left_give_arrays() -> None:
    x = mnp.asarray(F)
    for left in (np.float32(2), np.float64(2), np.int8(2), F, F[0]):
        for op in (operator.add, operator.mul, operator.sub, operator.lt, operator.eq):
            result = op(left, x)
            assert isinstance(result, Array)
            np.testing.assert_allclose(np.asarray(result), op(left, F), rtol=1e-6)


def test_matmul_unary_and_divmod() -> None:
    x = mnp.asarray(F)
    np.testing.assert_allclose(np.asarray(x @ F.T), F @ F.T, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(F @ x.T), F @ F.T, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(-x), -F)
    np.testing.assert_array_equal(np.asarray(+x), F)
    np.testing.assert_array_equal(np.asarray(abs(x)), abs(F))
    np.testing.assert_array_equal(np.asarray(~mnp.asarray(I)), ~I)
    for mine, theirs in zip((*divmod(x, 2), *divmod(7, x)), (*divmod(F, 2), *divmod(7, F)), strict=True):
        np.testing.assert_allclose(np.asarray(mine), theirs, rtol=1e-6)


PROMOTIONS = [
    ("bool", "int", "int32"), ("bool", "float", "float32"), ("int8", "int", "int8"), ("int64", "float", "float32"),
    ("uint8", "float", "float32"), ("float16", "float", "float16"), ("float64", "int", "float64"),
    ("int32", "float16", "float16"), ("int64", "float32", "float32"), ("uint8", "int8", "int16"),
    ("uint32", "int32", "int64"), ("float16", "bfloat16", "float32"), ("float32", "float64", "float64"),
    ("bool", "bool", "bool"), ("int32", "int64", "int64"),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right", "expected"), PROMOTIONS)
def test_promotion(left: str, right: str, expected: str) -> None:
    python = {"int": 1, "float": 1.0}
    made: Any = python.get(right) if right in python else mnp.zeros((2,), dtype=getattr(mnp, right))
    array = mnp.zeros((2,), dtype=getattr(mnp, left))
    for result in (mnp.where(True, array, made), mnp.where(True, made, array)):
        assert result.dtype == np.dtype(getattr(mnp, expected))


def test_what_is_made_of_python_scalars_adapts_until_a_dtype_is_asked_for() -> None:
    half = mnp.ones(2, dtype="float16")
    assert (mnp.where(half > 0, 1.0, -1.0) * half).dtype == np.float16
    assert (mnp.sqrt(2) * half).dtype == np.float16
    assert (mnp.sqrt(2).astype("float32") * half).dtype == np.float32
    assert (mnp.sqrt(2).astype("float64") * half).dtype == np.float64
    assert (mnp.asarray(2.0) * half).dtype == np.float32


def test_defaults_are_32_bits_and_numpy_inputs_keep_their_dtype() -> None:
    assert mnp.asarray([1.0, 2]).dtype == np.float32
    assert mnp.asarray([1, 2]).dtype == np.int32
    assert mnp.asarray(True).dtype == np.bool_
    assert mnp.asarray(3_000_000_000).dtype == np.int64
    for dtype in (np.int64, np.uint8, np.float64, np.float16, ml_dtypes.bfloat16, np.bool_):
        assert mnp.asarray(np.zeros(3, dtype)).dtype == np.dtype(dtype)
    assert (mnp.asarray([1, 2]) / 2).dtype == np.float32


def test_big_endian_and_non_contiguous_numpy_arrays_are_taken() -> None:
    assert np.asarray(mnp.asarray(np.arange(6, dtype=">i4").reshape(2, 3).T) + 1).tolist() == [[1, 4], [2, 5], [3, 6]]


def test_an_integer_that_does_not_fit_is_refused_but_compares() -> None:
    x = mnp.asarray(np.array([1, 200], np.uint8))
    with pytest.raises(InputError, match="300 does not fit u8"):
        x + 300
    for op in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        for number in (300, -1):
            assert np.asarray(op(x, number)).tolist() == op(np.array([1, 200], np.uint8), number).tolist()
            assert np.asarray(op(number, x)).tolist() == op(number, np.array([1, 200], np.uint8)).tolist()


def test_shape_and_dtype_are_known_without_computing() -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("nothing should be computed")

    with using(refuse):
        x = mnp.ones((4, 5))
        y = (x @ x.T)[1:, None].sum(axis=0, keepdims=True)
    assert (y.shape, y.ndim, y.size, y.dtype, y.nbytes) == ((1, 1, 4), 3, 4, np.float32, 16)
    assert x.T.shape == (5, 4)
    assert mnp.ones((2, 3, 4)).mT.shape == (2, 4, 3)


def test_errors_arise_where_they_are_written() -> None:
    x = mnp.ones((2, 3))
    with pytest.raises(ShapeError, match="do not broadcast"):
        x + mnp.ones((4,))
    with pytest.raises(ShapeError, match="inner dimensions differ"):
        x @ x
    with pytest.raises(DTypeError, match="expected bool or an integer dtype"):
        x & x
    with pytest.raises(InputError, match="axis 2 is outside"):
        x.sum(axis=2)
    with pytest.raises(AttributeError):
        mnp.nothing_of_this_name  # noqa: B018
    with pytest.raises(TypeError):
        x + object()  # type: ignore[operator]


def test_conversions_realise() -> None:
    x = mnp.asarray([2.5])
    assert float(x) == 2.5
    assert int(x) == 2
    assert bool(x)
    assert complex(x) == 2.5
    assert x.item() == 2.5
    assert x.tolist() == [2.5]
    assert f"{x[0]:.2f}" == "2.50"
    assert [1, 2, 3][mnp.asarray(1)] == 2
    assert len(x) == 1
    assert [float(each) for each in mnp.asarray([1, 2])] == [1.0, 2.0]
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    for wrong in (
        lambda: float(mnp.ones(2)),
        lambda: bool(mnp.ones(2)),
        lambda: len(mnp.asarray(1)),
        lambda: iter(mnp.asarray(1)),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_values_are_computed_once_and_operands_freed() -> None:
    x = mnp.asarray(F) * 2
    first = np.asarray(x)
    assert np.asarray(x) is first or np.shares_memory(np.asarray(x), first)
    assert x.tensor.expression is None
    assert pending([(x + 1).tensor]) != []
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1


def test_changing_a_numpy_array_later_changes_nothing() -> None:
    source = np.ones(3, np.float32)
    x = mnp.asarray(source) + 1
    source[:] = 100
    assert np.asarray(x).tolist() == [2, 2, 2]


def test_realise_computes_several_at_once() -> None:
    runs: list[int] = []

    def counting(work: Any, inputs: Any) -> Any:
        from mesh.core.inprocess import evaluate

        runs.append(len(work.graph.outputs))
        return evaluate(work, inputs)

    x = mnp.asarray(F)
    y, z = x + 1, x * 2
    with using(counting):
        mesh.realise([y, z, y])
        np.asarray(y)
    assert runs == [2]
    np.testing.assert_array_equal(np.asarray(z), F * 2)


@pytest.mark.parametrize("length", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_long_chain_of_operations_is_no_problem(length: int) -> None:
    x = start = mnp.asarray(0)
    for _ in range(length):
        x = x + 1
    assert int(x) == length
    assert int(start) == 0


@pytest.mark.parametrize("length", [50_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_long_chain_can_be_dropped_without_being_computed(length: int) -> None:
    start = x = mnp.asarray(0)
    for _ in range(length):
        x = x + 1
    del x  # a recursive deletion would overflow the stack here
    assert int(start) == 0


def test_a_graph_shared_many_times_is_walked_once() -> None:
    x = mnp.asarray(1.0)
    for _ in range(60):  # 2 ** 60 paths
        x = x + x
    assert float(x) == 2.0**60


def test_repr_shows_small_values_and_only_the_type_of_large_and_traced_ones() -> None:
    assert repr(mnp.asarray([1, 2]) + 1) == "Array([2, 3], dtype=int32)"
    assert repr(mnp.zeros((100, 100))) == "Array(f32[100,100])"
    shown: list[str] = []
    mesh.trace(lambda x: shown.append(repr(x * 2)) or x, F)
    assert shown == ["Array(f32[2,3])"]


def test_a_handle_takes_part_in_expressions() -> None:
    handle = Handle(hash_array(F), TensorType(F.shape, F32), "w", F)
    np.testing.assert_array_equal(np.asarray(mnp.asarray(F) + handle), F + F)
    np.testing.assert_array_equal(np.asarray(handle @ mnp.asarray(F.T)), F @ F.T)
    away = Handle(hash_array(F), TensorType(F.shape, F32), "w")
    with pytest.raises(InputError, match="lies on the mesh only"):
        np.asarray(mnp.asarray(away) + 1)
    assert handle == away
    assert len({handle, away}) == 1


def test_threads_see_their_own_evaluator_and_can_realise_one_array() -> None:
    x = (mnp.asarray(F) * 3).sum()
    results: list[float] = []
    threads = [threading.Thread(target=lambda: results.append(float(x))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [float(F.sum() * 3)] * 8


def test_items_are_set_on_one_name_alone() -> None:
    x = mnp.asarray(F)
    before, twice, deep = copy.copy(x), x * 2, copy.deepcopy({"x": x})["x"]
    x[0, 1:] = 7.9
    assert np.asarray(x).tolist() == [[1.5, np.float32(7.9), np.float32(7.9)], F[1].tolist()]
    for untouched in (before, twice / 2, deep, F):
        np.testing.assert_array_equal(np.asarray(untouched), F)
    whole = mnp.asarray(I)
    whole[whole > 3] = -1.5  # in the array's dtype, as numpy's are
    assert np.asarray(whole).tolist() == np.where(I > 3, -1, I).tolist()


def test_items_are_set_while_a_function_is_traced() -> None:
    def changed(x: Any) -> Any:
        x[0] += 1
        return x, x[0]

    found, row = mesh.evaluate(changed, F)
    np.testing.assert_array_equal(row, F[0] + 1)
    np.testing.assert_array_equal(found, [F[0] + 1, F[1]])


def test_array_api_namespace() -> None:
    assert mnp.zeros(1).__array_namespace__() is mnp


METHODS = [
    ("reshape", (3, 2)), ("reshape", -1), ("transpose",), ("transpose", 1, 0), ("transpose", (1, 0)), ("ravel",),
    ("flatten",), ("sum",), ("sum", 1), ("prod", 0), ("max",), ("min", 1), ("mean", 0), ("var",), ("std", 1), ("any",),
    ("all", 0), ("argmax",), ("argmin", 1), ("clip", -1, 2), ("round",), ("take", [0, 1]), ("repeat", 2), ("squeeze",),
    ("swapaxes", 0, 1),
]  # fmt: skip


@pytest.mark.parametrize("row", METHODS, ids=str)
def test_methods_equal_numpys(row: tuple[Any, ...]) -> None:
    name, *args = row
    expected = np.asarray(getattr(F, name)(*args))
    result = getattr(mnp.asarray(F), name)(*args)
    assert result.shape == expected.shape
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-6)


def test_astype_converts() -> None:
    assert mnp.asarray([1.7, -1.7]).astype("int32").tolist() == [1, -1]
    assert mnp.asarray([1, 0]).astype(bool).tolist() == [True, False]
