"""Random programs over mesh.numpy give what the same programs over numpy give, bit for bit.

Values stay small integers (also in float arrays), so every step is exact and comparisons, floors and argmaxes cannot
tip over; numpy's intermediate results are cast to the dtype that mesh promotes to, which is the documented difference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import mesh
import mesh.numpy as mnp

DTYPES = [np.bool_, np.int8, np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64]
SHAPES = [(), (1,), (3,), (2, 3), (3, 1), (1, 3), (2, 1, 3), (3, 3)]


@dataclass(frozen=True)
class Step:
    """One function of one, two or three arrays, given the module to take it from."""

    arity: int
    run: Callable[..., Any]
    numbers_only: bool = False
    integers_only: bool = False


STEPS: dict[str, Step] = {
    "add": Step(2, lambda xp, a, b: a + b),
    "subtract": Step(2, lambda xp, a, b: a - b, numbers_only=True),
    "multiply": Step(2, lambda xp, a, b: a * b),
    "floor_divide": Step(2, lambda xp, a, b: a // (b * b + 1), numbers_only=True),
    "remainder": Step(2, lambda xp, a, b: a % (b * b + 1), numbers_only=True),
    "scalar": Step(1, lambda xp, a: 2 - a * 3, numbers_only=True),
    "maximum": Step(2, lambda xp, a, b: xp.maximum(a, b)),
    "less": Step(2, lambda xp, a, b: a < b),
    "equal": Step(2, lambda xp, a, b: a == b),
    "where": Step(3, lambda xp, c, a, b: xp.where(c != 0, a, b)),
    "xor": Step(2, lambda xp, a, b: a ^ b, integers_only=True),
    "invert": Step(1, lambda xp, a: ~a, integers_only=True),
    "abs": Step(1, lambda xp, a: xp.abs(a)),
    "sum": Step(1, lambda xp, a: xp.sum(a)),
    "sum of rows": Step(1, lambda xp, a: xp.sum(a, axis=-1, keepdims=True) if a.ndim else a),
    "max": Step(1, lambda xp, a: xp.max(a, axis=0) if a.ndim else a),
    "argmax": Step(1, lambda xp, a: xp.argmax(a)),
    "any": Step(1, lambda xp, a: xp.any(a, axis=-1) if a.ndim else a),
    "transpose": Step(1, lambda xp, a: a.T),
    "ravel": Step(1, lambda xp, a: a.reshape(-1)),
    "expand": Step(1, lambda xp, a: a[..., None] if a.ndim < 4 else a),
    "reverse": Step(1, lambda xp, a: a[::-1] if a.ndim else a),
    "slice": Step(1, lambda xp, a: a[..., 1:] if a.ndim and a.shape[-1] > 1 else a),
    "gather": Step(1, lambda xp, a: a[[0, -1]] if a.ndim else a),
    "concat": Step(2, lambda xp, a, b: xp.concatenate([a, b], axis=None)),
    "stack": Step(1, lambda xp, a: xp.stack([a, a], axis=0) if a.ndim < 4 else a),
    "pad": Step(1, lambda xp, a: xp.pad(a, 1) if a.ndim and a.size < 300 else a),
    "roll": Step(1, lambda xp, a: xp.roll(a, 1)),
    "matmul": Step(1, lambda xp, a: a @ a.T if a.ndim == 2 else a),
    "einsum": Step(2, lambda xp, a, b: xp.einsum("...,...->...", a, b)),
    "round": Step(1, lambda xp, a: xp.floor(a)),
}


def settled(value: Any, like: Any) -> np.ndarray[Any, Any]:
    """numpy's result in mesh's dtype."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(like.dtype)


@st.composite
def programs(draw: Any) -> tuple[list[np.ndarray[Any, Any]], list[tuple[str, list[int]]]]:
    arrays = []
    for _ in range(draw(st.integers(1, 3))):
        dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SHAPES))
        size = int(np.prod(shape))
        low = 0 if np.dtype(dtype).kind in "bu" else -3
        values = draw(st.lists(st.integers(low, 3), min_size=size, max_size=size))
        arrays.append(np.array(values).astype(dtype).reshape(shape))
    names = draw(st.lists(st.sampled_from(sorted(STEPS)), min_size=3, max_size=10))
    return arrays, [(name, draw(st.lists(st.integers(0, 99), min_size=3, max_size=3))) for name in names]


def fits(step: Step, operands: list[Any]) -> bool:
    kinds = {mnp.asarray(operand).type.dtype.kind for operand in operands}
    promoted = {mnp.asarray(operand).type.dtype.name for operand in operands}
    if (step.numbers_only and "b" in kinds) or (step.integers_only and "f" in kinds):
        return False
    if "u64" in promoted:
        return False
    try:
        np.broadcast_shapes(*[operand.shape for operand in operands])
    except ValueError:
        return False
    return True


def small(xp: Any, value: Any) -> Any:
    """Keeps values where every dtype holds them exactly."""
    return value if value.dtype == np.bool_ else xp.clip(value, 0 if value.dtype.kind == "u" else -9, 9)


@settings(max_examples=300, deadline=None)
@given(programs())
def test_random_programs_equal_numpy(program: Any) -> None:
    arrays, steps = program
    theirs = list(arrays)

    def run(*inputs: Any) -> list[Any]:
        mine = [mnp.asarray(array) for array in inputs]
        for name, picks in steps:
            step = STEPS[name]
            places = [pick % len(mine) for pick in picks[: step.arity]]
            if fits(step, [mine[place] for place in places]):
                mine.append(small(mnp, step.run(mnp, *[mine[place] for place in places])))
        return mine

    lazy = run(*arrays)
    done = len(arrays)
    for name, picks in steps:
        step = STEPS[name]
        operands = [theirs[pick % len(theirs)] for pick in picks[: step.arity]]
        if fits(step, operands):
            with np.errstate(all="ignore"):
                made = settled(step.run(np, *operands), lazy[done])
                theirs.append(settled(small(np, made), lazy[done]))
            done += 1
    for found, expected in zip(lazy, theirs, strict=True):
        assert found.shape == expected.shape
        np.testing.assert_array_equal(np.asarray(found), expected)
    for found, expected in zip(mesh.evaluate(run, *arrays), theirs, strict=True):
        np.testing.assert_array_equal(found, expected)
