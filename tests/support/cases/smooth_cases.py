"""Examples at which ops are differentiable: away from kinks and ties, f64, broadcasting, 0-d and empty.

One row per op that has a derivative: `SMOOTH[op]` are its examples.  Float and complex operands are what is
differentiated by; others are given.  To add an op: its row in REAL, and one in COMPLEX if it takes such numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .matrix_cases import apart as matrix
from .matrix_cases import definite

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Smooth:
    """Operands and attributes."""

    operands: tuple[Array, ...]
    attrs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = "-".join(str(operand.shape).replace(" ", "") for operand in self.operands)
        kind = "-complex" if any(operand.dtype.kind == "c" for operand in self.operands) else ""
        return f"{shapes}{kind}{''.join(f'-{name}={value}' for name, value in self.attrs.items() if name != 'body')}"


_RNG = np.random.default_rng(2024)


def any_(*shape: int) -> Array:
    """Numbers of both signs, none within 0.1 of an integer (kinks of floor and round, zeros) or of another."""
    count = int(np.prod(shape, dtype=int))
    whole = _RNG.integers(-2, 2, count)
    parts = _RNG.permutation(0.15 + 0.3 * (np.arange(count) + 0.5) / max(count, 1))
    return np.asarray((whole + parts).reshape(shape))


def positive(*shape: int) -> Array:
    return np.asarray(_RNG.uniform(0.4, 1.3, shape))


def apart(*shape: int) -> Array:
    """Numbers no two of which are equal: no ties."""
    count = int(np.prod(shape, dtype=int))
    return np.asarray(
        (_RNG.permutation(count) / max(count, 1) + _RNG.uniform(0, 0.3 / max(count, 1), count)).reshape(shape)
    )


def complex_(*shape: int) -> Array:
    return np.asarray(any_(*shape) + 1j * any_(*shape))


def ints(*values: Any, dtype: Any = np.int32) -> Array:
    return np.array(values, dtype)


def _unary(make: Any) -> tuple[Smooth, ...]:
    return Smooth((make(3, 4),)), Smooth((make(),)), Smooth((make(0, 2),))


def _binary(left: Any, right: Any) -> tuple[Smooth, ...]:
    shapes = (((3, 4), (3, 4)), ((3, 4), (4,)), ((2, 1), (3, 1, 4)), ((), (2, 3)), ((), ()), ((0, 3), (3,)))
    return tuple(Smooth((left(*a), right(*b))) for a, b in shapes)


def _separated(*shape: int) -> Array:
    """Numbers that are nowhere equal to those of `any_`."""
    return np.asarray(np.round(any_(*shape)) + 0.7)


def _extreme() -> tuple[Smooth, ...]:
    return tuple(
        Smooth((apart(*shape),), {"axes": axes})
        for shape, axes in (((5,), (0,)), ((3, 4, 2), (0, 2)), ((3, 4), (1,)), ((2, 3), ()), ((0, 3), (1,)))
    )


def _along(make: Any) -> tuple[Smooth, ...]:
    return tuple(Smooth((make(*shape),), {"axis": axis}) for shape, axis in (((5,), 0), ((3, 4), 0), ((2, 3, 2), 1)))


def _dot(left: tuple[int, ...], right: tuple[int, ...], *axes: tuple[int, ...]) -> Smooth:
    names = ("lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract")
    return Smooth((any_(*left), any_(*right)), dict(zip(names, axes, strict=True)))


def _factored(make: Any, outputs: int, *shapes: tuple[int, ...], **attrs: int) -> tuple[Smooth, ...]:
    return tuple(Smooth((make(*shape),), {**attrs, "output": output}) for shape in shapes for output in range(outputs))


def _with_zeros(array: Array, count: int) -> Array:
    array.reshape(-1)[:count] = 0
    return array


REAL: dict[str, tuple[Smooth, ...]] = {
    **{op: _unary(any_) for op in ("neg", "recip", "sin", "exp2", "exp", "expm1", "cos", "tanh", "erf", "abs")},
    **{op: _unary(positive) for op in ("sqrt", "log2", "log", "log1p", "tan")},
    **{op: _binary(any_, any_) for op in ("add", "mul", "div", "atan2")},
    "rem": _binary(any_, lambda *shape: positive(*shape) + 3),
    "pow": (
        *_binary(positive, any_),
        *[Smooth((any_(4), np.array(exponent))) for exponent in (2.0, 3.0, 1.0, -2.0)],
    ),
    "max": _binary(any_, _separated),
    "min": _binary(any_, _separated),
    "select": (
        Smooth((any_(3, 4) > 0, any_(4), any_(3, 1))),
        Smooth((any_(3, 1), any_(2, 3, 4), any_())),
        Smooth((np.array(True), any_(2), any_(3, 1))),
    ),
    "cast": (Smooth((any_(3, 2),), {"dtype": "f64"}),),
    "reduce_sum": _extreme(),
    "reduce_prod": (
        *_extreme(),
        *[Smooth((_with_zeros(any_(5), zeros),), {"axes": (0,)}) for zeros in (1, 2)],
        Smooth((any_(0, 3),), {"axes": (0,)}),
    ),
    "reduce_max": _extreme(),
    "reduce_min": _extreme(),
    "cumsum": _along(any_),
    "cumprod": (*_along(any_), Smooth((_with_zeros(any_(5), 2),), {"axis": 0})),
    "cummax": _along(apart),
    "cummin": _along(apart),
    "reshape": (Smooth((any_(3, 4),), {"shape": (2, 6)}), Smooth((any_(),), {"shape": (1, 1)})),
    "transpose": (Smooth((any_(2, 3, 4),), {"perm": (2, 0, 1)}), Smooth((any_(),), {"perm": ()})),
    "broadcast": (
        Smooth((any_(3, 1),), {"shape": (2, 3, 4)}),
        Smooth((any_(),), {"shape": (2,)}),
        Smooth((any_(1,),), {"shape": (0,)}),
    ),
    "slice": tuple(
        Smooth((any_(*shape),), {"start": start, "stop": stop, "step": step})
        for shape, start, stop, step in (
            ((9, 4), (1, 0), (8, 4), (3, 2)), ((9, 4), (1, 2), (8, 2), (3, 1)), ((7,), (0,), (7,), (1,)),
            ((), (), (), ()),
        )
    ),
    "pad": tuple(
        Smooth((any_(*shape), any_()), {"low": low, "high": high, "interior": interior})
        for shape, low, high, interior in (
            ((3, 4), (1, 0), (0, 2), (2, 0)), ((0, 2), (1, 1), (0, 2), (2, 0)), ((3,), (0,), (0,), (0,)),
            ((), (), (), ()),
        )
    ),
    "concat": (
        Smooth((any_(3, 4), any_(3, 1), any_(3, 2)), {"axis": 1}),
        Smooth((any_(2),), {"axis": 0}),
        Smooth((any_(0, 2), any_(3, 2)), {"axis": 0}),
    ),
    "after": (Smooth((any_(3, 2), any_(4), any_())), Smooth((any_(2),))),
    "transfer": (Smooth((any_(3, 2),), {"device": "cpu"}),),
    "constraint": (
        Smooth((any_(3, 2),), {"axes": ("dp", "tp"), "sizes": (2, 2), "spec": "tp -"}),
        Smooth((any_(),), {"axes": ("dp",), "sizes": (2,), "spec": ""}),
    ),
    "reverse": (Smooth((any_(3, 4),), {"axes": (1,)}), Smooth((any_(3, 4),), {"axes": ()})),
    "dot": (
        _dot((3, 4), (4, 2), (), (), (1,), (0,)),
        _dot((2, 3, 4), (4, 2, 5), (0,), (1,), (2,), (0,)),
        _dot((2, 3, 1), (1, 2, 5), (0,), (1,), (2,), (0,)),
        _dot((3, 4, 2), (2, 5, 3), (), (), (0, 2), (2, 0)),
        _dot((3,), (2,), (), (), (), ()),
        _dot((4,), (4,), (), (), (0,), (0,)),
        _dot((2, 0), (0, 3), (), (), (1,), (0,)),
        _dot((3, 2), (2, 3), (1, 0), (0, 1), (), ()),
    ),
    "gather": (
        Smooth((any_(5, 3), ints(0, 7, -2, 0)), {"axis": 0, "batch_dims": 0}),
        Smooth((any_(2, 3, 5, 2), ints([0, 4, 9], [1, 1, -1])), {"axis": 2, "batch_dims": 1}),
        Smooth((any_(2, 3, 200), ints(0, 127, -1, dtype=np.int8)), {"axis": 2, "batch_dims": 0}),
        Smooth((any_(2, 3, 4), ints([0, 3, 3], [1, 1, 1], dtype=np.uint16)), {"axis": 2, "batch_dims": 2}),
        Smooth((any_(4, 2), np.array(2, np.int64)), {"axis": 0, "batch_dims": 0}),
    ),
    "scatter": tuple(
        Smooth(operands, {"axis": axis, "mode": mode})
        for mode in ("set", "add", "max", "min")
        for operands, axis in (
            ((apart(5, 3), ints(0, 7, -2, 0, 3), apart(5, 3) + 0.01), 0),
            ((apart(2, 5, 3), ints([0, 7, -2], [0, 0, 3]), apart(2, 2, 3, 3) + 0.003), 1),
            ((any_(0, 2), ints(0, 1), any_(2, 2)), 0),
            ((any_(4), np.array(2, np.int64), any_()), 0),
        )
    ),
    "dynamic_slice": (
        Smooth((any_(4, 5), ints(-1, 3)), {"sizes": (2, 3)}),
        Smooth((any_(), ints()), {"sizes": ()}),
        Smooth((any_(4, 5), ints(1, 9, dtype=np.uint8)), {"sizes": (4, 0)}),
    ),
    "dynamic_update_slice": (
        Smooth((any_(4, 5), any_(2, 3), ints(-1, 3))),
        Smooth((any_(3), any_(3), ints(2, dtype=np.int64))),
        Smooth((any_(), any_(), ints())),
    ),
    "cholesky": (Smooth((definite(3, 3),)), Smooth((definite(2, 2, 2),)), Smooth((definite(0, 0),))),
    "solve": (
        Smooth((matrix(3, 3), any_(3, 2))),
        Smooth((matrix(2, 2, 2), any_(2, 2, 1))),
        Smooth((matrix(2, 2), any_(2, 0))),
    ),
    "lu": _factored(matrix, 1, (3, 3), (4, 2), (2, 4), (2, 2, 2)),
    "qr": (*_factored(matrix, 2, (3, 3), (4, 2), (2, 4), (2, 3, 2), full=0), *_factored(matrix, 2, (2, 3), full=1)),
    "eigh": _factored(definite, 2, (3, 3), (2, 2, 2)),
    "svd": (*_factored(matrix, 3, (3, 3), (4, 2), (2, 4), (2, 3, 2), full=0), *_factored(matrix, 3, (2, 2), full=1)),
}  # fmt: skip

COMPLEX: dict[str, tuple[Smooth, ...]] = {
    **{op: (Smooth((complex_(2, 3),)), Smooth((complex_(),)))
       for op in ("neg", "recip", "sqrt", "sin", "cos", "tan", "tanh", "exp", "log", "abs", "real", "imag")},
    **{op: tuple(Smooth((complex_(*a), complex_(*b))) for a, b in (((3, 4), (4,)), ((2, 1), (3, 1, 2)), ((), ())))
       for op in ("add", "mul", "div")},
    "pow": (Smooth((complex_(3), complex_(3))), Smooth((complex_(3), np.array(2 + 0j)))),
    "complex": _binary(any_, any_),
    "select": (Smooth((any_(3, 4) > 0, complex_(4), complex_(3, 1))),),
    "cast": (Smooth((any_(3, 2),), {"dtype": "c128"}), Smooth((complex_(3),), {"dtype": "c128"})),
    "reduce_sum": (Smooth((complex_(3, 4),), {"axes": (1,)}),),
    "reduce_prod": (Smooth((complex_(3, 4),), {"axes": (1,)}), Smooth((_with_zeros(complex_(5), 1),), {"axes": (0,)})),
    "fft": tuple(
        Smooth((complex_(3, 4),), {"axis": axis, "inverse": inverse}) for axis in (0, 1) for inverse in (0, 1)
    ),
    "cumsum": (Smooth((complex_(3, 4),), {"axis": 1}),),
    "cumprod": (Smooth((complex_(3, 4),), {"axis": 1}),),
    "reshape": (Smooth((complex_(3, 4),), {"shape": (2, 6)}),),
    "transpose": (Smooth((complex_(3, 4),), {"perm": (1, 0)}),),
    "broadcast": (Smooth((complex_(3, 1),), {"shape": (2, 3, 4)}),),
    "slice": (Smooth((complex_(9),), {"start": (1,), "stop": (8,), "step": (3,)}),),
    "pad": (Smooth((complex_(3), complex_()), {"low": (1,), "high": (0,), "interior": (2,)}),),
    "concat": (Smooth((complex_(3), complex_(2)), {"axis": 0}),),
    "after": (Smooth((complex_(3), any_(4))),),
    "reverse": (Smooth((complex_(3, 4),), {"axes": (1,)}),),
    "dot": tuple(
        Smooth((complex_(*case.operands[0].shape), complex_(*case.operands[1].shape)), case.attrs)
        for case in REAL["dot"][:3]
    ),
    "gather": (Smooth((complex_(5, 3), ints(0, 7, -2, 0)), {"axis": 0, "batch_dims": 0}),),
    "scatter": tuple(
        Smooth((complex_(5, 3), ints(0, 7, -2, 0, 3), complex_(5, 3)), {"axis": 0, "mode": mode})
        for mode in ("set", "add")
    ),
    "dynamic_slice": (Smooth((complex_(4, 5), ints(-1, 3)), {"sizes": (2, 3)}),),
    "dynamic_update_slice": (Smooth((complex_(4, 5), complex_(2, 3), ints(-1, 3))),),
    "cholesky": (Smooth((definite(3, 3, kind="c"),)),),
    "solve": (Smooth((matrix(3, 3, kind="c"), complex_(3, 2))),),
    "lu": _factored(partial(matrix, kind="c"), 1, (3, 3), (3, 2), (2, 3)),
    "qr": _factored(partial(matrix, kind="c"), 2, (3, 3), (3, 2), (2, 3), full=0),
    "eigh": (Smooth((definite(3, 3, kind="c"),), {"output": 0}),),  # vectors, whose angles are open: test_linalg.py
    "svd": (Smooth((matrix(3, 2, kind="c"),), {"full": 0, "output": 1}),),
}  # fmt: skip

SMOOTH = {op: REAL.get(op, ()) + COMPLEX.get(op, ()) for op in (REAL | COMPLEX)}
