"""Random programs of numpy calls, run by mesh.numpy and by numpy in step: values, shapes, dtypes and refusals.

Values stay small integers (also in float arrays, and both parts of complex ones), so every step is exact and
comparisons, floors and orders cannot tip over.  numpy's results are cast to the dtype that mesh promotes to, which is
the documented difference.  Operands are picked without looking whether they fit: where numpy refuses, mesh must, and
the program goes on without that step.
To add a function: a row of STEPS.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import mesh
import mesh.numpy as mnp
from mesh.errors import MeshError

Array = NDArray[Any]
DTYPES = ("bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")
ON_WGSL = ("bool", "int32", "uint32", "float32")
SHAPES = ((), (1,), (3,), (2, 3), (3, 1), (1, 3), (2, 1, 3), (3, 3), (0, 3), (4,))
SIZE_MAX, RANK_MAX = 200, 4


class Step(NamedTuple):
    """One call: the function's row, which arrays it takes (by place, modulo how many there are), and a small number."""

    name: str
    picks: tuple[int, ...]
    number: int


class Program(NamedTuple):
    arrays: list[Array]
    steps: list[Step]

    def __repr__(self) -> str:
        arrays = "\n".join(f"  {array!r}" for array in self.arrays)
        return f"Program of\n{arrays}\n" + "\n".join(f"  {step}" for step in self.steps)


@dataclass(frozen=True)
class Row:
    """`run(xp, n, *arrays)` in either namespace; `realised` if the result's shape depends on values."""

    arity: int
    run: Callable[..., Any]
    realised: bool = False


def _set(xp: Any, array: Any, key: Any, value: Any) -> Any:
    changed = xp.copy(array)
    changed[key] = value
    return changed


def _in_place(xp: Any, array: Any, other: Any, method: str) -> Any:
    changed = xp.copy(array)
    result = getattr(changed, method)(other)
    if result is NotImplemented:
        raise TypeError(method)
    return result


def _running(xp: Any, array: Any, axis: int) -> Any:
    return np.maximum.accumulate(array, axis) if xp is np else xp.cummax(array, axis)


def _is_complex(array: Any) -> bool:
    return array.dtype.kind == "c"  # sizes and directions of complex integers are rounded


def _float32(xp: Any, array: Any) -> Any:
    """At least float32: numpy factors nothing narrower."""
    return array + xp.zeros((), dtype="float32")


def _corner(xp: Any, array: Any) -> Any:
    """Matrices so small that results are whole numbers once they are rounded."""
    return _float32(xp, array)[..., :3, :3]


def _solved(xp: Any, array: Any) -> Any:
    """By a unit triangle of the array's first row: whole numbers again."""
    columns = _corner(xp, array)
    size = columns.shape[-1]
    triangle = xp.tril(columns[..., :1, :] + np.zeros((size, 1)), k=-1) + np.eye(size)
    return xp.round(xp.linalg.solve(triangle, xp.swapaxes(columns, -1, -2)))


STEPS: dict[str, Row] = {
    "add": Row(2, lambda xp, n, a, b: a + b),
    "subtract": Row(2, lambda xp, n, a, b: a - b),
    "multiply": Row(2, lambda xp, n, a, b: a * b),
    "floor_divide": Row(2, lambda xp, n, a, b: a // (b * b + 1)),
    "remainder": Row(2, lambda xp, n, a, b: a % (b * b + 1)),
    "negative": Row(1, lambda xp, n, a: -a),
    "scalar": Row(1, lambda xp, n, a: 2 - a * 3),
    "maximum": Row(2, lambda xp, n, a, b: xp.maximum(a, b)),
    "minimum": Row(2, lambda xp, n, a, b: xp.minimum(a, n if n > 0 else b)),
    "less": Row(2, lambda xp, n, a, b: a < b),
    "equal": Row(2, lambda xp, n, a, b: a == b),
    "where": Row(3, lambda xp, n, c, a, b: xp.where(c != 0, a, b)),
    "xor": Row(2, lambda xp, n, a, b: a ^ b),
    "and": Row(2, lambda xp, n, a, b: a & b),
    "invert": Row(1, lambda xp, n, a: ~a),
    "abs": Row(1, lambda xp, n, a: xp.real(a * xp.conj(a)) if _is_complex(a) else xp.abs(a)),
    "sign": Row(1, lambda xp, n, a: xp.conj(a) if _is_complex(a) else xp.sign(a)),
    "imag": Row(1, lambda xp, n, a: xp.imag(a)),
    "turned": Row(2, lambda xp, n, a, b: a * 1j + b),
    "floor": Row(1, lambda xp, n, a: xp.floor(a)),
    "logical_not": Row(1, lambda xp, n, a: xp.logical_not(a)),
    "clip": Row(1, lambda xp, n, a: xp.clip(a, 0, n if n > 0 else 4)),
    "sum": Row(1, lambda xp, n, a: xp.sum(a)),
    "sum of an axis": Row(1, lambda xp, n, a: xp.sum(a, axis=n)),
    "sum of two axes": Row(1, lambda xp, n, a: xp.sum(a, axis=(0, n), keepdims=True)),
    "max": Row(1, lambda xp, n, a: xp.max(a, axis=n, keepdims=n > 0)),
    "min": Row(1, lambda xp, n, a: xp.min(a)),
    "argmax": Row(1, lambda xp, n, a: xp.argmax(a)),
    "argmin": Row(1, lambda xp, n, a: xp.argmin(a, axis=n)),
    "any": Row(1, lambda xp, n, a: xp.any(a, axis=n)),
    "all": Row(1, lambda xp, n, a: xp.all(a)),
    "count_nonzero": Row(1, lambda xp, n, a: xp.count_nonzero(a, axis=n)),
    "cumsum": Row(1, lambda xp, n, a: xp.cumsum(a, axis=n)),
    "cumulative_sum": Row(1, lambda xp, n, a: xp.cumulative_sum(a, include_initial=n > 0)),
    "cummax": Row(1, lambda xp, n, a: _running(xp, a, n)),
    "sort": Row(1, lambda xp, n, a: xp.sort(a, axis=n)),
    "argsort": Row(1, lambda xp, n, a: xp.argsort(a, axis=n, stable=True)),
    "searchsorted": Row(2, lambda xp, n, a, b: xp.searchsorted(xp.sort(a), b, side="right" if n > 0 else "left")),
    "median": Row(1, lambda xp, n, a: xp.median(a, axis=n)),
    "diff": Row(1, lambda xp, n, a: xp.diff(a, axis=n)),
    "isin": Row(2, lambda xp, n, a, b: xp.isin(a, b)),
    "unique": Row(1, lambda xp, n, a: xp.sort(xp.unique_values(a)), realised=True),
    "nonzero": Row(1, lambda xp, n, a: xp.nonzero(a)[0], realised=True),
    "masked": Row(2, lambda xp, n, a, b: a[b > 0], realised=True),
    "transpose": Row(1, lambda xp, n, a: a.T),
    "swapaxes": Row(1, lambda xp, n, a: xp.swapaxes(a, 0, n)),
    "moveaxis": Row(1, lambda xp, n, a: xp.moveaxis(a, n, -1)),
    "reshape": Row(1, lambda xp, n, a: xp.reshape(a, (-1, n))),
    "ravel": Row(1, lambda xp, n, a: a.reshape(-1)),
    "expand_dims": Row(1, lambda xp, n, a: xp.expand_dims(a, n)),
    "squeeze": Row(1, lambda xp, n, a: xp.squeeze(a, n)),
    "broadcast_to": Row(2, lambda xp, n, a, b: xp.broadcast_to(a, b.shape)),
    "flip": Row(1, lambda xp, n, a: xp.flip(a, n)),
    "roll": Row(1, lambda xp, n, a: xp.roll(a, n)),
    "roll an axis": Row(1, lambda xp, n, a: xp.roll(a, 1, n)),
    "concat": Row(2, lambda xp, n, a, b: xp.concat([a, b], axis=n)),
    "concat flat": Row(2, lambda xp, n, a, b: xp.concat([a, b], axis=None)),
    "stack": Row(2, lambda xp, n, a, b: xp.stack([a, b], axis=n)),
    "tile": Row(1, lambda xp, n, a: xp.tile(a, (abs(n) % 3, 1))),
    "repeat": Row(1, lambda xp, n, a: xp.repeat(a, n, axis=0)),
    "pad": Row(1, lambda xp, n, a: xp.pad(a, 1)),
    "tril": Row(1, lambda xp, n, a: xp.tril(a, k=n)),
    "item": Row(1, lambda xp, n, a: a[n]),
    "items": Row(1, lambda xp, n, a: a[[0, n]]),
    "item of an item": Row(1, lambda xp, n, a: a[..., n, None]),
    "slice": Row(1, lambda xp, n, a: a[n:]),
    "slices": Row(1, lambda xp, n, a: a[::-1, n::2]),
    "pairs": Row(1, lambda xp, n, a: a[[0, 1], [n, 0]]),
    "by an array": Row(2, lambda xp, n, a, b: a[xp.where(b > 0, 0, -1)] if a.shape[:1] != (0,) else a + b),
    "take": Row(1, lambda xp, n, a: xp.take(a, xp.asarray([0, n, 0]), axis=0)),
    "take_along_axis": Row(1, lambda xp, n, a: xp.take_along_axis(a, xp.argsort(a, axis=n, stable=True), axis=n)),
    "set an item": Row(1, lambda xp, n, a: _set(xp, a, n, 1)),
    "set items": Row(2, lambda xp, n, a, b: _set(xp, a, slice(n, None), xp.abs(b))),
    "set a column": Row(2, lambda xp, n, a, b: _set(xp, a, (..., n), xp.abs(b))),
    "set under a mask": Row(2, lambda xp, n, a, b: _set(xp, a, b > 0, 1)),
    "add in place": Row(2, lambda xp, n, a, b: _in_place(xp, a, b, "__iadd__")),
    "multiply in place": Row(2, lambda xp, n, a, b: _in_place(xp, a, b, "__imul__")),
    "xor in place": Row(2, lambda xp, n, a, b: _in_place(xp, a, b, "__ixor__")),
    "matmul": Row(2, lambda xp, n, a, b: a @ b),
    "gram": Row(1, lambda xp, n, a: a @ a.T),
    "tensordot": Row(2, lambda xp, n, a, b: xp.tensordot(a, b, axes=abs(n) % 3)),
    "vecdot": Row(2, lambda xp, n, a, b: xp.vecdot(a, b)),
    "outer": Row(2, lambda xp, n, a, b: xp.outer(a, b)),
    "trace": Row(1, lambda xp, n, a: xp.linalg.trace(a, offset=n)),
    "norm": Row(1, lambda xp, n, a: xp.linalg.norm(xp.real(_float32(xp, a)), 1 if n > 0 else np.inf)),
    "det": Row(1, lambda xp, n, a: xp.round(xp.linalg.det(_corner(xp, a)))),
    "rank": Row(1, lambda xp, n, a: xp.linalg.matrix_rank(_corner(xp, a))),
    "solve": Row(1, lambda xp, n, a: _solved(xp, a)),
    "einsum": Row(2, lambda xp, n, a, b: xp.einsum("...,...->...", a, b)),
    "einsum of rows": Row(2, lambda xp, n, a, b: xp.einsum("ij,kj->ik", a, b)),
}


STRICTER = (  # what numpy alone has a meaning for, neither the standard nor mesh
    "is outside an array of 0 dimensions",  # numpy lets the axes 0 and -1 through here and there
    "an array of 0 dimensions needs an axis",
    r"a mask of shape \(.*\b0\b.*\) does not fit",  # to numpy an empty mask fits anything
    "repeats are counts per element",  # to numpy, of nothing there can be -1
    r"a real number dtype, got c|of real numbers, got c|drop the imaginary part",  # numpy orders and cuts complex ones
    "a triangle needs two dimensions or more",  # numpy makes a matrix of equal rows of it
)


def random_program(seed: int, dtypes: Sequence[str] = DTYPES, length: int = 12) -> Program:
    """Always the same one for a seed."""
    rng = np.random.default_rng(seed)
    arrays = []
    for _ in range(int(rng.integers(1, 4))):
        dtype, shape = np.dtype(dtypes[rng.integers(len(dtypes))]), SHAPES[rng.integers(len(SHAPES))]
        arrays.append(np.asarray(rng.integers(0 if dtype.kind in "bu" else -3, 4, shape)).astype(dtype))
    names = rng.choice(sorted(STEPS), int(rng.integers(3, length + 1)))
    steps = [Step(str(name), tuple(rng.integers(0, 99, 3).tolist()), int(rng.integers(-2, 4))) for name in names]
    return Program(arrays, steps)


@dataclass
class Outcome:
    """What a program gave: numpy's arrays (in mesh's dtypes), mesh's, and which steps were done."""

    theirs: list[Array]
    mine: list[Any]
    done: list[Step]
    refused: int = 0


def run_in_step(program: Program) -> Outcome:
    """The program by numpy and by mesh; AssertionError where one refuses what the other does, or shapes differ."""
    outcome = Outcome(list(program.arrays), [mnp.asarray(array) for array in program.arrays], [])
    for step in program.steps:
        theirs, refusal = _attempt(np, step, outcome.theirs)
        mine, my_refusal = _attempt(mnp, step, outcome.mine)
        if refusal is None and my_refusal is not None and any(re.search(each, str(my_refusal)) for each in STRICTER):
            continue
        assert (refusal is None) == (my_refusal is None), f"{step}: numpy {refusal!r}, mesh {my_refusal!r}\n{program}"
        outcome.refused += refusal is not None
        if refusal is None and mine.size <= SIZE_MAX and mine.ndim <= RANK_MAX:
            outcome.theirs.append(_settled(small(np, _settled(theirs, mine)), mine))
            outcome.mine.append(small(mnp, mine))
            outcome.done.append(step)
            assert outcome.mine[-1].shape == outcome.theirs[-1].shape, f"{step}\n{program}"
    return outcome


def as_function(program: Program, outcome: Outcome) -> Callable[..., list[Any]]:
    """The steps that were done, as one function of the arrays; what depends on values is given as a constant."""

    def function(*arrays: Any) -> list[Any]:
        mine = [mnp.asarray(array) for array in arrays]
        for step in outcome.done:
            if STEPS[step.name].realised:
                mine.append(mnp.asarray(outcome.theirs[len(mine)]))
            else:
                mine.append(small(mnp, _call(mnp, step, mine)))
        return mine

    return function


def check(program: Program) -> Outcome:
    """AssertionError unless the program gives the same lazily, and traced as one function, as by numpy."""
    outcome = run_in_step(program)
    agree(program, [np.asarray(array) for array in outcome.mine], outcome.theirs)
    agree(program, mesh.evaluate(as_function(program, outcome), *program.arrays), outcome.theirs)
    return outcome


def agree(program: Program, found: Sequence[Any], expected: Sequence[Array]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=str(program))


def small(xp: Any, value: Any) -> Any:
    """Keeps values where every dtype holds them exactly."""
    if _is_complex(value):
        return small(xp, xp.real(value)) + 1j * small(xp, xp.imag(value))
    return value if value.dtype == np.bool_ else xp.clip(value, 0 if value.dtype.kind == "u" else -9, 9)


def _attempt(xp: Any, step: Step, arrays: Sequence[Any]) -> tuple[Any, Exception | None]:
    refusals = (ValueError, TypeError, IndexError) if xp is np else (MeshError, TypeError)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of medians of nothing
            return _call(xp, step, arrays), None
    except refusals as error:
        return None, error


def _call(xp: Any, step: Step, arrays: Sequence[Any]) -> Any:
    row = STEPS[step.name]
    return row.run(xp, step.number, *[arrays[pick % len(arrays)] for pick in step.picks[: row.arity]])


def _settled(value: Any, like: Any) -> Array:
    """numpy's result in mesh's dtype."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(like.dtype)
