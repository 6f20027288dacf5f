"""Arrays that begin at a cache line: those that the native engine makes, and what may be written over in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.kept_kernels import native_engine

from mesh import trace
from wire.ir.dtypes import BF16, F16, F32
from wire.ir.graph import GraphBuilder
from wire.limits import MIB
from worker.engine import line_aligned
from worker.engine.donation import Lent
from worker.engine.line_aligned import LARGE_BYTES, LINE_BYTES, PAGE_BYTES, SMALL_BYTES

WIDTH = 64
ROWS = SMALL_BYTES // (4 * WIDTH)


def test_large_ones_begin_at_a_line_or_a_page_and_small_ones_are_numpys() -> None:
    begins = {SMALL_BYTES: LINE_BYTES, LARGE_BYTES - 40: LINE_BYTES, LARGE_BYTES: PAGE_BYTES, 5 * MIB: PAGE_BYTES}
    for size, multiple in [(first + more, multiple) for first, multiple in begins.items() for more in range(40)]:
        array = line_aligned.empty((size,), np.dtype(np.uint8))
        assert (array.shape, array.dtype) == ((size,), np.uint8)
        assert array.ctypes.data % multiple == 0
        assert array.flags.writeable
        assert array.flags.c_contiguous
    assert line_aligned.empty((SMALL_BYTES // 4 - 1,), np.dtype(np.float32)).base is None
    assert line_aligned.empty((3, 0, SMALL_BYTES), np.dtype(np.float16)).shape == (3, 0, SMALL_BYTES)


@pytest.mark.parametrize("rows", [ROWS, LARGE_BYTES // (4 * WIDTH) - 1, LARGE_BYTES // (4 * WIDTH)])
def test_a_part_of_an_array_is_not_all_of_it(rows: int) -> None:
    array, plain = line_aligned.empty((rows, WIDTH), np.dtype(np.float32)), np.empty((rows, WIDTH), np.float32)
    memory: Any = array.base
    assert line_aligned.is_all_of(array, memory)
    assert line_aligned.is_all_of(array.reshape(-1), memory)
    assert not line_aligned.is_all_of(array[1:], memory)
    assert line_aligned.is_all_of(plain.reshape(-1), plain)
    longer = np.empty(plain.nbytes + LINE_BYTES, np.uint8)
    assert not line_aligned.is_all_of(longer[: plain.nbytes], longer), "another array that is a line longer"


def test_the_address_of_an_array_is_what_numpy_says() -> None:
    plain = np.arange(12, dtype=np.int16).reshape(3, 4)
    fixed = plain.copy()
    fixed.flags.writeable = False
    half = [np.ones(3, each.numpy) for each in (F16, BF16)]
    for array in (
        *half,
        plain,
        plain[1:],
        plain[:, 2:],
        plain.T,
        fixed,
        plain[:0],
        np.array(3.0),
        np.ones(2, np.complex128),
    ):
        assert line_aligned.address(array) == array.ctypes.data


@pytest.fixture(scope="module")
def engine() -> Any:
    made = native_engine(threads=1)
    yield made
    made.close()


def twice(engine: Any, x: NDArray[np.float32]) -> NDArray[np.float32]:
    (result,) = engine.run(engine.compile(trace(lambda x: x + x, x)), [x])
    return np.asarray(result)


def test_what_the_native_engine_makes_begins_at_a_line(engine: Any) -> None:
    x = np.ones((ROWS, WIDTH), np.float32)
    results = [twice(engine, x) for _ in range(8)]
    assert [result.ctypes.data % LINE_BYTES for result in results] == [0] * len(results)


def test_large_results_begin_at_a_page_so_that_no_load_meets_a_store_of_the_turn_before(engine: Any) -> None:
    x = np.ones((LARGE_BYTES // (4 * WIDTH), WIDTH), np.float32)
    results = [twice(engine, x) for _ in range(8)]
    assert [result.ctypes.data % PAGE_BYTES for result in results] == [0] * len(results)


def test_what_the_native_engine_made_is_updated_where_it_is(engine: Any) -> None:
    builder = GraphBuilder()
    state, row = builder.input("state", (ROWS, WIDTH), F32), builder.input("row", (1, WIDTH), F32)
    at = builder.const(np.array([3], np.int32))
    graph = builder.build([builder.add("scatter", state, at, row, axis=0, mode="set")])
    made = twice(engine, np.ones((ROWS, WIDTH), np.float32))
    (given, lent) = made.copy(), Lent(made)
    (updated,) = engine.run(engine.compile(graph), [lent, np.zeros((1, WIDTH), np.float32)])
    assert lent.output == 0
    assert np.shares_memory(updated, made)
    given[3] = 0
    np.testing.assert_array_equal(updated, given)
