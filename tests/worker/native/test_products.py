"""Cores of matrix products: the bits of their definition, on every tile and processor."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from worker.native.cores import FEW, FUNCTION, RUN, Tile, tile_for
from worker.native.few_rows import LINES_AHEAD
from worker.native.library import CORES
from worker.native.llvm import Loaded, Processor, machine_code, this_processor
from worker.native.spans import BLOCK

# What operands are in numpy, and what C is.
DTYPES: dict[str, tuple[Any, Any]] = {
    "f16": (np.float16, np.float32), "bf16": (ml_dtypes.bfloat16, np.float32), "f32": (np.float32, np.float32),
    "f64": (np.float64, np.float64), "i8": (np.int8, np.int32), "u8": (np.uint8, np.uint32),
    "i16": (np.int16, np.int32), "u16": (np.uint16, np.uint32), "i32": (np.int32, np.int32),
    "u32": (np.uint32, np.uint32), "i64": (np.int64, np.int64), "u64": (np.uint64, np.uint64),
}  # fmt: skip


def without(*features: str) -> Processor:
    """This processor, had it not these features."""
    here = this_processor()
    off = (f"-{name[1:]}" if name[1:].startswith(features) else name for name in here.features.split(","))
    return Processor(here.triple, "x86-64", ",".join(off))


HERE = this_processor()
VARIANTS: dict[str, tuple[Processor, Tile | None]] = {
    "this processor": (HERE, None),
    "vectors of 16 bytes": (HERE, Tile(4, 2, 4, 4)),
    "one vector": (HERE, Tile(8, 1, 4, 4)),
}
if not HERE.is_arm:
    VARIANTS["without avx512"] = (without("avx512"), None)


@dataclass(frozen=True)
class Core:
    """A core as a function of arrays."""

    form: str  # of CORES
    dtype: str
    processor: Processor
    tile: Tile

    def takes(self, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
        """Whether it is for such operands: few rows or columns, where the other operand is contiguous in some way."""
        few = [(a.shape[0], b), (b.shape[1], a)]
        if self.form in ("lines", "packed"):
            return b.dtype == self.computed  # it is given rows, however these lie, or panels
        if self.form == "lines_of_few":
            return a.shape[0] <= FEW
        return self.form == "product" or any(count <= FEW and other.itemsize in other.strides for count, other in few)

    def __call__(self, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], c: np.ndarray[Any, Any] | None = None) -> Any:
        integer, pointer = ctypes.c_int64, ctypes.c_void_p
        matrix = (pointer, integer, integer)
        kinds = (*matrix, *matrix, pointer, integer, integer, integer, integer, pointer)
        function = ctypes.CFUNCTYPE(None, *kinds)(loaded(self).address(FUNCTION))
        (m, length), n = a.shape, b.shape[1]
        c = np.full((m, n), 77, self.computed) if c is None else c
        scratch = np.zeros(self.tile.scratch_bytes + 64, np.uint8)
        start = scratch.ctypes.data + -scratch.ctypes.data % 64
        if self.form == "lines":
            self._by_lines(function, a, b, c, start)
            return c
        if self.form == "lines_of_few":
            self._by_lines_of_few(function, a, b, c, start)
            return c
        of_a, of_b, of_c = (words_of(each) for each in (a, b, c))
        panels: Any = None
        if self.form == "packed":
            panels, of_b = self._panels(b)
        function(*of_a, *of_b, *of_c[:2], m, n, length, start)
        del panels
        return c

    @property
    def computed(self) -> Any:
        return np.dtype(DTYPES[self.dtype][1])

    def _panels(self, b: np.ndarray[Any, Any]) -> tuple[Any, tuple[int, int, int]]:
        """B in panels, a task each, in any order: the memory, and what the core is told of it."""
        integer, pointer = ctypes.c_int64, ctypes.c_void_p
        packing = loaded(Core("panels", self.dtype, self.processor, self.tile))
        function = ctypes.CFUNCTYPE(None, pointer, integer, pointer)(packing.address(FUNCTION))
        (length, n), size = b.shape, self.tile.panels_size(*b.shape)
        panels = np.full(size + 2, 77, self.computed)  # what is not there may be anything
        arguments = np.array([*words_of(b), n, length, panels.ctypes.data], np.int64)
        for task in reversed(range(size // max(self.tile.columns * self.tile.deep(length), 1))):
            function(arguments.ctypes.data, task, None)
        assert (panels[size:] == 77).all(), "it wrote behind the end"
        return panels, (panels.ctypes.data, self.tile.columns, self.tile.deep(length))

    def _by_lines(self, function: Any, a: Any, b: Any, c: Any, scratch: int) -> None:
        """Run by run, of rows of B in any order in memory that overlap where vectors reach behind their ends."""
        (m, length), n = a.shape, b.shape[1]
        order = np.random.default_rng(0).permutation(length)
        memory = np.full(length * n + self.tile.columns, 77, b.dtype)
        memory[: length * n] = b[order].reshape(-1)
        lines = np.argsort(order).astype(np.int64) * n
        for k in range(0, max(length, 1), RUN):
            run, table = slice(k, min(k + RUN, length)), lines[k:]
            of_a, of_c = words_of(a[:, run]), words_of(c)
            depth = max(run.stop - run.start, 0)
            function(*of_a, memory.ctypes.data, table.ctypes.data, k, *of_c[:2], m, n, depth, scratch)

    def _by_lines_of_few(self, function: Any, a: Any, b: Any, c: Any, scratch: int) -> None:
        """Of rows of B in any order, and of its columns, to the same bits."""
        (m, length), n = a.shape, b.shape[1]
        results = [np.copy(c) for _ in range(2)]
        for by_rows, result in zip((True, False), results, strict=True):
            count, size = (length, n) if by_rows else (n, length)
            order = np.random.default_rng(0).permutation(count)
            memory = (b if by_rows else b.T)[order].reshape(-1)
            table = np.full(count + LINES_AHEAD, 1 << 40, np.int64)  # behind the end may be anything
            table[:count] = np.argsort(order) * size
            steps = (table.ctypes.data, 1) if by_rows else (1, table.ctypes.data)
            function(*words_of(a), memory.ctypes.data, *steps, *words_of(result)[:2], m, n, length, scratch)
        assert results[0].tobytes() == results[1].tobytes()
        c[...] = results[0]


def words_of(matrix: np.ndarray[Any, Any]) -> tuple[int, int, int]:
    """Where a matrix begins, and its strides in elements."""
    row, column = (stride // matrix.itemsize for stride in matrix.strides)
    return matrix.ctypes.data, row, column


@cache
def loaded(made: Core) -> Loaded:
    return Loaded(machine_code(CORES[made.form](made.processor, made.dtype, made.tile), made.processor))


@cache
def core(variant: str, dtype: str = "f32", form: str = "product") -> Core:
    processor, tile = VARIANTS[variant]
    return Core(form, dtype, processor, tile or tile_for(processor, dtype))


FORMS = ("product", "few_rows", "lines_of_few", "lines", "packed")


def results(variant: str, a: Any, b: Any, dtype: str = "f32") -> list[np.ndarray[Any, Any]]:
    """The product by every core that is for such operands."""
    cores = [core(variant, dtype, form) for form in FORMS]
    return [each(a, b) for each in cores if each.takes(a, b)]


def low(dtype: str, form: str) -> Core:
    """A core of this processor with tiles of few rows, which is compiled soon."""
    tile = tile_for(HERE, dtype)
    return Core(form, dtype, HERE, Tile(tile.lanes, tile.vectors, 2, tile.bytes))


def fma32(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of f32, rounded once: the product is exact in f64, and the sum there is rounded to odd."""
    product, c = np.float64(a) * np.float64(b), np.float64(c)
    total = product + c
    other = total - product
    error = (product - (total - other)) + (c - other)
    bits = np.atleast_1d(total).view(np.int64)
    inexact = (error != 0) & np.isfinite(error) & (bits & 1 == 0)
    towards = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact, bits + towards, bits).view(np.float64).astype(np.float32)


def fma64(a: Any, b: Any, c: Any) -> Any:
    exact = np.vectorize(lambda x, y, z: float(Fraction(x) * Fraction(y) + Fraction(z)), otypes=[np.float64])
    return exact(a, b, c)


def defined(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The definition of `native-2`, element by element of the length."""
    fma = fma32 if a.dtype == np.float32 else fma64
    result = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    with np.errstate(all="ignore"):
        for begin in range(0, a.shape[1], RUN):
            run = np.zeros_like(result)
            for k in range(begin, min(begin + RUN, a.shape[1])):
                run = fma(a[:, k, None], b[None, k, :], run)
            result = run if begin == 0 else result + run
    return result


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Whether all bits are equal; a NaN is a NaN."""
    return bool(np.array_equal(np.isnan(a), np.isnan(b)) and a[~np.isnan(a)].tobytes() == b[~np.isnan(b)].tobytes())


def lying(rng: np.random.Generator, rows: int, columns: int, how: str, dtype: type = np.float32) -> Any:
    """A matrix whose values no f16 can hold, and how it lies in memory."""
    if how == "rows":
        return rng.standard_normal((rows, columns)).astype(dtype)
    if how == "columns":
        return rng.standard_normal((columns, rows)).astype(dtype).T
    if how == "backwards":
        return rng.standard_normal((rows, columns)).astype(dtype)[::-1, ::-1]
    return rng.standard_normal((2 * rows, 3 * columns)).astype(dtype)[::2, ::3]


HOWS = ("rows", "columns", "sliced", "backwards")
SHAPES = [  # m, length, n
    (1, 1, 1), (2, 3, 70), (3, 300, 5), (4, 17, 129), (5, 5, 5), (13, 256, 31), (14, 257, 33), (15, 9, 40), (9, 0, 2),
    (6, 33, 40), (7, 300, 20), (8, 270, 50), (50, 20, 7),
    (29, 27, 65), (70, 1, 1), (70, 520, 2), (40, 16, 4), (0, 5, 4), (4, 5, 0), (3, 0, 7), (20, 0, 20),
]  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("m", "length", "n"), SHAPES)
def test_bits_are_those_of_the_definition(variant: str, m: int, length: int, n: int) -> None:
    rng = np.random.default_rng(m * n + length)
    a, b = lying(rng, m, length, "rows"), lying(rng, length, n, "rows")
    want = defined(a, b)
    for of_a in HOWS:
        for of_b in HOWS:
            stored = [lying(rng, *each.shape, how) for each, how in ((a, of_a), (b, of_b))]
            for place, value in zip(stored, (a, b), strict=True):
                place[...] = value
            for result in results(variant, *stored):
                assert same_bits(result, want), (of_a, of_b)


def test_bits_of_f64_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(1)
    for m, length, n in ((3, 270, 2), (15, 20, 9), (1, 4, 40), (2, 0, 2)):
        a, b = rng.standard_normal((m, length)), rng.standard_normal((length, n))
        want = defined(a, b)
        for operands in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
            assert all(same_bits(result, want) for result in results("this processor", *operands, "f64"))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "i8", "u16", "i32", "u64"])
def test_operands_of_other_dtypes(dtype: str) -> None:
    """Narrow floats are widened exactly, and integers wrap."""
    rng = np.random.default_rng(5)
    stored, computed = DTYPES[dtype]
    for m, length, n in ((20, 270, 40), (2, 40, 50), (50, 37, 3), (0, 1, 1), (2, 0, 3)):
        if dtype.endswith("f16"):
            a, b = rng.standard_normal((m, length)).astype(stored), rng.standard_normal((length, n)).astype(stored)
            want = defined(a.astype(np.float32), b.astype(np.float32))
        else:
            limits = np.iinfo(stored)
            a, b = (rng.integers(limits.min, limits.max, shape, stored) for shape in ((m, length), (length, n)))
            want = a.astype(computed) @ b.astype(computed)
        for of_a in (a, np.asfortranarray(a)):
            for of_b in (b, np.asfortranarray(b), np.repeat(b, 2, axis=1)[:, ::2]):
                for each in (low(dtype, form) for form in FORMS):
                    assert not each.takes(of_a, of_b) or each(of_a, of_b).tobytes() == want.tobytes()


def test_narrow_floats_that_are_no_numbers_and_subnormal_ones_are_widened() -> None:
    values = np.array([[np.inf, -np.inf, np.nan, 6e-8, -3e-6, 65504, -0.0, 1]])
    for dtype in ("f16", "bf16"):
        a = values.astype(DTYPES[dtype][0]).T
        one = np.ones((1, 20), a.dtype)
        for form in FORMS:
            wide = np.repeat(a.astype(np.float32) + 0.0, 20, axis=1)
            each = low(dtype, form)
            for rows in (slice(0, 4), slice(4, 8)):
                assert not each.takes(a[rows], one) or same_bits(each(a[rows], one), wide[rows])


def test_every_processor_and_tile_gives_the_same_bits() -> None:
    rng = np.random.default_rng(2)
    for m, length, n in ((197, 64, 197), (200, 600, 70), (1, 1030, 1300), (1300, 530, 3), (7, 300, 1100)):
        for how in ("rows", "columns"):
            a, b = lying(rng, m, length, "rows"), lying(rng, length, n, how)
            assert len({result.tobytes() for variant in VARIANTS for result in results(variant, a, b)}) == 1


def test_a_part_has_the_bits_of_the_whole() -> None:
    """Rows and columns of C may be computed in any parts: into a part of a larger C, too."""
    rng = np.random.default_rng(3)
    a, b = lying(rng, 60, 700, "rows"), lying(rng, 700, 90, "columns")
    product = core("this processor")
    whole = product(a, b)
    for cut in (1, 2, 4, 5, 14, 33):
        parts = np.full((60, 100), 5, np.float32)
        for row in range(0, 60, cut):
            for column in range(0, 90, 2 * cut):
                rows, columns = slice(row, row + cut), slice(column, min(column + 2 * cut, 90))
                form = core("this processor", form="few_rows") if cut % 2 else product
                form = form if form.takes(a[rows], b[:, columns]) else product
                form(a[rows], b[:, columns], parts[rows, columns])
        assert parts[:, :90].tobytes() == whole.tobytes()
        assert (parts[:, 90:] == 5).all()


def banded(rng: np.random.Generator, m: int, length: int, first: Any, last: Any) -> Any:
    """Rows that are 0 but for columns from `first(row)` to `last(row)`; some zeros are negative."""
    a = lying(rng, m, length, "rows")
    row, column = np.arange(m)[:, None], np.arange(length)
    zero = np.where(rng.random((m, length)) < 0.3, np.float32(-0.0), np.float32(0))
    return np.where((column < first(row)) | (column > last(row)), zero, a)


BANDS = {
    "triangle": (lambda row: 0, lambda row: row * 7),
    "triangle, turned": (lambda row: row * 7, lambda row: 10**6),
    "window": (lambda row: row * 7 - 40, lambda row: row * 7),
    "nothing": (lambda row: 0, lambda row: -1),
    "later runs only": (lambda row: 300, lambda row: 400 + row),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("band", BANDS)
def test_zeros_at_the_ends_of_rows_change_no_bit(variant: str, band: str) -> None:
    """They are not multiplied, and what is infinite, NaN or underflows has the bits of what multiplies everything."""
    rng = np.random.default_rng(8)
    a = banded(rng, 61, 600, *BANDS[band])
    b = lying(rng, 600, 70, "rows")
    b[-1, 3], b[590, 40], b[2, 66] = np.inf, np.nan, -np.inf
    for columns in (slice(0, 70), slice(4, 36)):  # with what is not finite, and without
        for of_b in (b[:, columns], -b[:, columns]):
            want = defined(a, of_b)
            for of_a in (a, np.asfortranarray(a)):
                assert same_bits(core(variant)(of_a, of_b), want)


@pytest.mark.parametrize("variant", VARIANTS)
def test_sums_of_minus_zero_are_those_of_the_definition(variant: str) -> None:
    """A product that underflows leaves -0, to which zeros of either sign are added."""
    rng = np.random.default_rng(9)
    a = np.zeros((30, 512), np.float32)
    b = lying(rng, 512, 48, "rows")
    a[:, 3], b[3] = 1e-30, -1e-30
    a[:, 260], b[260] = 1e-30, -1e-30
    b[4:256, ::2] = -np.abs(b[4:256, ::2])  # times 0 these are all -0, and the sum of a run stays so
    b[261:, ::3] = -np.abs(b[261:, ::3])
    want = defined(a, b)
    negative = np.signbit(want)
    assert (want == 0).all() and negative.any() and not negative.all()
    assert same_bits(core(variant)(a, b), want)
    assert same_bits(core(variant)(a[:, :256], b[:256]), defined(a[:, :256], b[:256]))


@pytest.mark.parametrize("dtype", ["f64", "bf16", "i32"])
def test_zeros_at_the_ends_of_rows_of_other_dtypes(dtype: str) -> None:
    rng = np.random.default_rng(10)
    stored, computed = DTYPES[dtype]
    a, b = np.tril(rng.integers(-9, 9, (150, 150))).astype(stored), rng.integers(-9, 9, (150, 40)).astype(stored)
    want = a.astype(computed) @ b.astype(computed)  # whole numbers, so every sum is exact
    for of_a, turned in ((a, want), (a.T, a.T.astype(computed) @ b.astype(computed))):
        assert low(dtype, "product")(of_a, b).tobytes() == turned.tobytes()


def test_a_span_leaves_out_whole_blocks_of_zeros() -> None:
    """What products ask, asked by itself: that bits stay does not show that anything is left out."""
    tile, depth = tile_for(HERE, "f32"), 200
    module = CORES["product"](HERE, "f32", tile)
    module.globals["span"].linkage = "external"
    code = Loaded(machine_code(module, HERE))
    span = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(code.address("span"))
    found = np.zeros(2, np.int64)

    def of(*places: int) -> tuple[int, int]:
        panel = np.full((depth + BLOCK, tile.height), -0.0, np.float32)
        panel[depth:] = 1  # what follows a panel is not its own
        panel[list(places), -1] = 1e-45
        span(panel.ctypes.data, depth, found.ctypes.data)
        return int(found[0]), int(found[1])

    assert of(*range(depth)) == (0, depth) == of(0, depth - 1)
    assert of(77) == (72, 80) and of(0) == (0, BLOCK) and of(depth - 1) == (depth - BLOCK, depth)
    begin, end = of()
    assert end - begin < BLOCK


@pytest.mark.parametrize("variant", VARIANTS)
def test_infinite_and_subnormal_numbers_and_nans_stay_in_their_rows(variant: str) -> None:
    rng = np.random.default_rng(4)
    for m, n in ((20, 40), (3, 40), (40, 3)):
        a, b = lying(rng, m, 270, "rows"), lying(rng, 270, n, "columns")
        a[1, 3], a[0, 260] = np.inf, np.nan
        b[5, 1], b[6, 0] = -np.inf, 1e-42
        a[m - 1] = 1e-30
        b[:, n - 1] *= np.float32(1e-12)
        want = defined(a, b)
        assert np.isnan(want).any() and np.isinf(want).any() and 0 < np.abs(want[m - 1, n - 1]) < 1e-38
        assert all(same_bits(result, want) for result in results(variant, a, b))
