"""Random graphs: valid DAGs over all op families: skip edges, several outputs, shared inputs, mixed dtypes and ranks.

A graph follows from its seed alone.  A node is added by one row of ROWS: a function that picks operands which fit and
returns the new node, or None if nothing fits.  To cover a new op, add it to a row or add a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import BF16, BOOL, C64, C128, DTYPES, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.matrix_rules import MATRICES
from wire.ir.types import TensorType

from .control_cases import counted, graph_of, siblings

FLOATS = (F32, F64, F16, BF16)
INTEGERS = (I32, I64, U32, U8, I8, I16, U16, U64)
COMPLEX = (C64, C128)
SIZE_MAX = 2048  # elements of one tensor


@dataclass(frozen=True, slots=True)
class RandomGraph:
    graph: WireGraph
    inputs: dict[str, NDArray[Any]]
    params: dict[str, NDArray[Any]]


def random_graph(
    seed: int, least: int = 12, most: int = 60, dtypes: Sequence[DType] = DTYPES, matrices: bool = True
) -> RandomGraph:
    """A graph of `least` to `most` nodes that compute something, and values for its inputs and params.

    Every tensor has one of `dtypes`; without `matrices` nothing in it needs a cpu engine.
    """
    return _Grower(np.random.default_rng(seed), dtypes, matrices).grow(least, most)


def big_graph(nodes: int = 10_000) -> WireGraph:
    """A tower of small encoder-like layers with about `nodes` nodes: matmul, bias, activation, norm, residual."""
    width = 64
    builder = GraphBuilder()
    x = builder.input("x", (16, width), F32)
    epsilon = builder.const(np.float32(1e-5))
    layer = 0
    while len(builder.nodes) < nodes - 20:
        weight = builder.param(f"layer{layer}/weight", (width, width), F32)
        bias = builder.param(f"layer{layer}/bias", (width,), F32)
        contract = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,), "rhs_contract": (0,)}
        hidden = builder.add("tanh", builder.add("add", builder.add("dot", x, weight, **contract), bias))
        mean = builder.add("reduce_sum", hidden, axes=(1,))
        mean = builder.add("reshape", mean, shape=(16, 1))
        centred = builder.add("add", hidden, builder.add("neg", mean))
        square = builder.add("reduce_sum", builder.add("mul", centred, centred), axes=(1,))
        scale = builder.add("recip", builder.add("sqrt", builder.add("add", square, epsilon)))
        normed = builder.add("mul", centred, builder.add("reshape", scale, shape=(16, 1)))
        x = builder.add("add", x, normed)
        layer += 1
    return builder.build([x], names=["y"], name="tower")


class _Grower:
    def __init__(self, rng: np.random.Generator, dtypes: Sequence[DType], matrices: bool) -> None:
        self.matrices = matrices
        self.rng = rng
        self.dtypes = dtypes
        self.builder = GraphBuilder()
        self.values: dict[str, NDArray[Any]] = {}

    def grow(self, least: int, most: int) -> RandomGraph:
        goal = int(self.rng.integers(least, most + 1))
        for number in range(int(self.rng.integers(2, 5))):
            self._leaf("input", f"x{number}")
        for number in range(int(self.rng.integers(0, 4))):
            self._leaf("param", f"w{number}")
        made: list[int] = []
        while len(made) < goal:
            row = ROWS[int(self.rng.integers(len(ROWS)))]
            before = len(self.builder.nodes)
            index = row(self)
            if index is not None and index >= before and self.type(index).dtype in self.dtypes:
                made.append(index)
        used = {source for node in self.builder.nodes for source in node.inputs}
        ends = [index for index in made if index not in used]
        some = [int(index) for index in self.rng.choice(made, size=min(3, len(made)), replace=False)]
        outputs = list(dict.fromkeys([*ends, *some]))
        graph = self.builder.build(outputs, name=f"random {goal}")
        inputs = {name: self.values[name] for name in graph.input_types}
        params = {name: self.values[name] for name in graph.param_types}
        return RandomGraph(graph, inputs, params)

    # -- picking

    def type(self, index: int) -> TensorType:
        return self.builder.types[index]

    def pick(self, fits: Callable[[TensorType], bool] = lambda kind: True) -> int | None:
        """A node whose type fits; recent ones more often, so that graphs get deep, but any may be skipped to."""
        found = [index for index, kind in enumerate(self.builder.types) if kind.dtype in self.dtypes and fits(kind)]
        if not found:
            return None
        return found[-1 - min(int(self.rng.exponential(len(found) / 3)), len(found) - 1)]

    def one_of(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def some_axes(self, rank: int) -> tuple[int, ...]:
        count = int(self.rng.integers(0, rank + 1))
        return tuple(sorted(int(axis) for axis in self.rng.choice(rank, size=count, replace=False)))

    def shape(self, rank_max: int = 4) -> tuple[int, ...]:
        return tuple(int(dim) for dim in self.rng.integers(1, 6, size=int(self.rng.integers(0, rank_max + 1))))

    # -- leaves

    def _leaf(self, op: str, name: str) -> int:
        usual = (F32, F32, F32, *FLOATS, *INTEGERS, *COMPLEX, BOOL)
        dtype = self.one_of(*[dtype for dtype in usual if dtype in self.dtypes])
        array = self.array(self.shape(), dtype)
        self.values[name] = array
        return (self.builder.input if op == "input" else self.builder.param)(name, array.shape, dtype)

    def array(self, shape: tuple[int, ...], dtype: DType) -> NDArray[Any]:
        if dtype.kind == "b":
            return self.rng.integers(0, 2, size=shape).astype(np.bool_)
        if dtype.kind == "f":
            return np.asarray(self.rng.standard_normal(shape)).astype(dtype.numpy)
        if dtype.kind == "c":
            return np.asarray(self.rng.standard_normal((*shape, 2)) @ [1, 1j]).astype(dtype.numpy)
        return self.rng.integers(0 if dtype.kind == "u" else -20, 21, size=shape).astype(dtype.numpy)

    def constant(self, shape: tuple[int, ...], dtype: DType) -> int:
        return self.builder.const(self.array(shape, dtype))

    def add(self, op: str, *inputs: int, **attrs: Any) -> int:
        return self.builder.add(op, *inputs, **attrs)


# -- rows: how a node of each family is made ---------------------------------------------------------------


def _number(kind: TensorType) -> bool:
    return kind.dtype.kind != "b"


def _real(kind: TensorType) -> bool:
    return kind.dtype.kind in "iuf"


def _ordered(kind: TensorType) -> bool:
    return kind.dtype.kind != "c"


def _float(kind: TensorType) -> bool:
    return kind.dtype.kind == "f"


def _inexact(kind: TensorType) -> bool:
    return kind.dtype.kind in "fc"


def _unary(grower: _Grower) -> int | None:
    op = grower.one_of(
        "neg", "recip", "sqrt", "sin", "exp2", "log2", "exp", "log", "expm1", "log1p", "cos", "tan", "tanh", "erf",
        "floor", "round", "sign", "abs", "not", "is_nan", "real", "imag",
    )  # fmt: skip
    fits = {"neg": _number, "sign": _real, "abs": _number, "not": lambda kind: kind.dtype.kind in "biu"}
    fits |= dict.fromkeys(("recip", "sqrt", "sin", "exp", "log", "cos", "tan", "tanh", "round", "is_nan"), _inexact)
    fits |= dict.fromkeys(("real", "imag"), lambda kind: kind.dtype.kind == "c")
    source = grower.pick(fits.get(op, _float))
    return None if source is None else grower.add(op, source)


def _partner(grower: _Grower, kind: TensorType) -> int:
    """An operand of the same dtype that broadcasts with `kind`."""

    def fits(other: TensorType) -> bool:
        if other.dtype is not kind.dtype:
            return False
        pairs = zip(reversed(other.shape), reversed(kind.shape), strict=False)
        return all(a == b or 1 in (a, b) for a, b in pairs) and len(other.shape) <= max(len(kind.shape), 4)

    found = grower.pick(fits) if grower.rng.random() < 0.8 else None
    return grower.constant(kind.shape[-1:], kind.dtype) if found is None else found


def _binary(grower: _Grower) -> int | None:
    op = grower.one_of(
        "add", "add", "mul", "mul", "atan2", "max", "min", "div", "rem", "pow", "eq", "ne", "lt", "le", "gt", "ge",
        "and", "or", "xor", "shl", "shr", "complex",
    )  # fmt: skip
    fits: dict[str, Callable[[TensorType], bool]] = {"atan2": _float, "complex": lambda kind: kind.dtype in (F32, F64)}
    fits |= dict.fromkeys(("max", "min", "rem"), _real)
    fits |= dict.fromkeys(("eq", "ne"), lambda kind: True) | dict.fromkeys(("lt", "le", "gt", "ge"), _ordered)
    fits |= dict.fromkeys(("and", "or", "xor"), lambda kind: kind.dtype.kind in "biu")
    fits |= dict.fromkeys(("shl", "shr"), lambda kind: kind.dtype.kind in "iu")
    left = grower.pick(fits.get(op, _number))
    if left is None:
        return None
    right = _partner(grower, grower.type(left))
    shape = np.broadcast_shapes(grower.type(left).shape, grower.type(right).shape)
    return grower.add(op, left, right) if math.prod(shape) <= SIZE_MAX else None


def _select(grower: _Grower) -> int | None:
    condition = grower.pick(lambda kind: kind.dtype.kind in "bf")
    if condition is None:
        return None
    shape = grower.type(condition).shape
    chosen = grower.pick(lambda kind: kind.shape == shape)
    if chosen is None:
        return None
    return grower.add("select", condition, chosen, _partner(grower, grower.type(chosen)))


def _convert(grower: _Grower) -> int | None:
    source = grower.pick()
    assert source is not None
    kind = grower.type(source)
    if kind.dtype.kind == "c":
        return grower.add("cast", source, dtype=grower.one_of(*COMPLEX, BOOL).name)
    if grower.rng.random() < 0.7 or kind.dtype.kind == "b":
        return grower.add("cast", source, dtype=grower.one_of(F32, F32, *FLOATS, *INTEGERS, *COMPLEX, BOOL).name)
    same = [each for each in (*FLOATS, *INTEGERS) if each.itemsize == kind.dtype.itemsize]
    return grower.add("bitcast", source, dtype=grower.one_of(*same).name)


def _reduce(grower: _Grower) -> int | None:
    op = grower.one_of("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "argmax")
    fits = {"reduce_max": _ordered, "reduce_min": _ordered, "argmax": _real}.get(op, _number)
    source = grower.pick(lambda kind: len(kind.shape) > 0 and fits(kind))
    if source is None:
        return None
    rank = len(grower.type(source).shape)
    if op == "argmax":
        return grower.add(op, source, axis=int(grower.rng.integers(rank)))
    return grower.add(op, source, axes=grower.some_axes(rank))


def _along(grower: _Grower) -> int | None:
    op = grower.one_of("cumsum", "cumprod", "cummax", "cummin", "argsort", "fft")
    if op == "fft":
        return _fft(grower)
    fits = {"argsort": _ordered, "cummax": _real, "cummin": _real}.get(op, _number)
    source = grower.pick(lambda kind: len(kind.shape) > 0 and fits(kind))
    if source is None:
        return None
    return grower.add(op, source, axis=int(grower.rng.integers(len(grower.type(source).shape))))


def _fft(grower: _Grower) -> int | None:
    source = grower.pick(lambda kind: kind.dtype.kind == "c" and len(kind.shape) > 0)
    if source is None:
        return None
    axis = int(grower.rng.integers(len(grower.type(source).shape)))
    return grower.add("fft", source, axis=axis, inverse=grower.one_of(0, 1))


def _view(grower: _Grower) -> int | None:
    source = grower.pick()
    assert source is not None
    shape, rank, rng = grower.type(source).shape, len(grower.type(source).shape), grower.rng
    match grower.one_of("reshape", "transpose", "broadcast", "slice", "pad", "concat", "reverse"):
        case "reshape":
            flat = math.prod(shape)
            factor = grower.one_of(*[number for number in range(1, flat + 1) if flat % number == 0])
            return grower.add("reshape", source, shape=grower.one_of((flat,), (factor, flat // factor), (1, *shape)))
        case "transpose":
            return grower.add("transpose", source, perm=tuple(int(axis) for axis in rng.permutation(rank)))
        case "broadcast" if 2 * math.prod(shape) <= SIZE_MAX and rank < 4:
            return grower.add("broadcast", source, shape=(2, *(grower.one_of(1, 3) if d == 1 else d for d in shape)))
        case "slice":
            start = tuple(int(rng.integers(0, dim)) for dim in shape)
            stop = tuple(int(rng.integers(low + 1, dim + 1)) for low, dim in zip(start, shape, strict=True))
            return grower.add("slice", source, start=start, stop=stop, step=tuple(grower.one_of(1, 2) for _ in shape))
        case "pad" if math.prod(shape) * 3**rank <= SIZE_MAX:
            widths = {name: tuple(int(w) for w in rng.integers(0, 2, rank)) for name in ("low", "high", "interior")}
            return grower.add("pad", source, grower.constant((), grower.type(source).dtype), **widths)
        case "concat" if rank > 0:
            axis = int(rng.integers(rank))
            kind = grower.type(source)
            other = grower.pick(
                lambda each: (
                    each.dtype is kind.dtype
                    and len(each.shape) == rank
                    and all(a == b or i == axis for i, (a, b) in enumerate(zip(each.shape, kind.shape, strict=True)))
                )
            )
            assert other is not None
            return grower.add("concat", source, other, axis=axis)
        case "reverse":
            return grower.add("reverse", source, axes=grower.some_axes(rank))
    return None


def _dot(grower: _Grower) -> int | None:
    left = grower.pick(lambda kind: _number(kind) and 1 <= len(kind.shape) <= 3)
    if left is None:
        return None
    kind = grower.type(left)
    axis = int(grower.rng.integers(len(kind.shape)))
    batched = len(kind.shape) == 3 and axis != 0 and grower.rng.random() < 0.5
    batch = (0,) if batched else ()
    shape = (kind.shape[0], kind.shape[axis], 3) if batched else (kind.shape[axis], 4)
    found = grower.pick(lambda other: other == TensorType(shape, kind.dtype))
    right = grower.constant(shape, kind.dtype) if found is None else found
    contract = {"lhs_contract": (axis,), "rhs_contract": (len(batch),)}
    return grower.add("dot", left, right, lhs_batch=batch, rhs_batch=batch, **contract)


def _conv(grower: _Grower) -> int | None:
    source = grower.pick(lambda kind: _number(kind) and len(kind.shape) in (3, 4))
    if source is None:
        return None
    (_, channels, *dims), rng = grower.type(source).shape, grower.rng
    groups = channels if rng.random() < 0.3 else 1
    kernel = tuple(int(rng.integers(1, min(dim, 3) + 1)) for dim in dims)
    weight = grower.constant((2 * groups, channels // groups, *kernel), grower.type(source).dtype)
    attrs = {name: tuple(int(w) for w in rng.integers(0, 2, len(dims))) for name in ("low", "high")}
    steps = {name: tuple(int(step) for step in rng.integers(1, 3, len(dims))) for name in ("stride", "lhs_dilation")}
    attrs["rhs_dilation"] = tuple(1 + int(size == 1) for size in kernel)
    return grower.add("conv", source, weight, groups=groups, **attrs, **steps)


def _matrices(grower: _Grower) -> int | None:
    """What solves or factors matrices; every result of a factorisation is there to be picked."""
    if not grower.matrices:
        return None
    op = grower.one_of("cholesky", "solve", "lu", "qr", "eigh", "svd")
    square = op in ("cholesky", "solve", "eigh")
    source = grower.pick(lambda kind: _float(kind) and len(kind.shape) > 1 and (
        not square or kind.shape[-1] == kind.shape[-2]))  # fmt: skip
    if source is None:
        return None
    if op in ("cholesky", "solve"):
        shape = grower.type(source).shape
        given = [grower.constant((*shape[:-1], 2), grower.type(source).dtype)] if op == "solve" else []
        return grower.add(op, source, *given)
    attrs = {"full": grower.one_of(0, 1)} if op in ("qr", "svd") else {}
    return siblings(grower.builder, op, source, count=MATRICES[op], **attrs)[0]


def _indices(grower: _Grower, shape: tuple[int, ...]) -> int:
    found = grower.pick(lambda kind: kind.dtype.kind in "iu" and kind.shape == shape)
    return grower.constant(shape, I32) if found is None else found


def _gather(grower: _Grower) -> int | None:
    source = grower.pick(lambda kind: 1 <= len(kind.shape) <= 3)
    if source is None:
        return None
    shape = grower.type(source).shape
    axis = int(grower.rng.integers(len(shape)))
    batch = int(grower.rng.integers(axis + 1))
    picks = grower.shape(2)
    if math.prod(shape) * math.prod(picks) > SIZE_MAX or len(shape) + len(picks) > 5:
        return None
    return grower.add("gather", source, _indices(grower, shape[:batch] + picks), axis=axis, batch_dims=batch)


def _scatter(grower: _Grower) -> int | None:
    source = grower.pick(lambda kind: 1 <= len(kind.shape) <= 3)
    if source is None:
        return None
    kind = grower.type(source)
    axis = int(grower.rng.integers(len(kind.shape)))
    places = grower.one_of((), (3,), (3,), (2, 2))
    updates = grower.constant((*kind.shape[:axis], *places, *kind.shape[axis + 1 :]), kind.dtype)
    modes = {"b": ("set",), "c": ("set", "add")}.get(kind.dtype.kind, ("set", "add", "max", "min"))
    mode = grower.one_of(*modes)
    return grower.add("scatter", source, _indices(grower, places), updates, axis=axis, mode=mode)


def _window(grower: _Grower) -> int | None:
    source = grower.pick(lambda kind: len(kind.shape) > 0)
    if source is None:
        return None
    kind = grower.type(source)
    sizes = tuple(int(grower.rng.integers(1, dim + 1)) for dim in kind.shape)
    starts = _indices(grower, (len(sizes),))
    if grower.rng.random() < 0.5:
        return grower.add("dynamic_slice", source, starts, sizes=sizes)
    return grower.add("dynamic_update_slice", source, grower.constant(sizes, kind.dtype), starts)


def _made_up(grower: _Grower) -> int | None:
    if grower.rng.random() < 0.5:
        key = grower.pick(lambda kind: kind == TensorType((2,), U32))
        return grower.add("random_bits", grower.constant((2,), U32) if key is None else key, shape=grower.shape(2))
    shape = (*grower.shape(1), 5)
    return grower.add("iota", shape=shape, dtype=grower.one_of(F32, I32, F64, U8).name, axis=len(shape) - 1)


def _after(grower: _Grower) -> int | None:
    source, first = grower.pick(), grower.pick()
    assert source is not None and first is not None
    if grower.rng.random() < 0.5:
        spec = " ".join(["dp", "-", "tp", *["-"] * 5][: len(grower.type(source).shape)])
        return grower.add("constraint", source, axes=("dp", "tp"), sizes=(2, 3), spec=spec)
    if grower.rng.random() < 0.2:
        return grower.add("transfer", source, device="cpu")
    return grower.add("after", source, first)


def _composite(grower: _Grower) -> int | None:
    source = grower.pick(lambda kind: _float(kind) and len(kind.shape) > 0)
    if source is None:
        return None
    kind = grower.type(source)
    body = GraphBuilder()
    x = body.input("x", kind.shape, kind.dtype)
    kept = (*kind.shape[:-1], 1)
    top = body.add("reshape", body.add("reduce_max", x, axes=(len(kept) - 1,)), shape=kept)
    powers = body.add("exp", body.add("add", x, body.add("neg", top)))
    total = body.add("reshape", body.add("reduce_sum", powers, axes=(len(kept) - 1,)), shape=kept)
    softmax = body.build([body.add("div", powers, total)])
    return grower.add("composite", source, name="softmax", body=softmax, axis=len(kept) - 1)


def _control(grower: _Grower) -> int | None:
    """A branch or a loop over a small step; every result of it is there to be picked."""
    source = grower.pick(lambda kind: math.prod(kind.shape) <= SIZE_MAX // 8)
    if source is None:
        return None
    kind = grower.type(source)
    step, other = _step(grower, kind), _step(grower, kind)
    asked = grower.pick(lambda each: each == TensorType((), BOOL))
    match grower.one_of("cond", "while", "scan"):
        case "cond" if BOOL in grower.dtypes:
            if asked is None:
                asked = grower.constant((), BOOL)
            then = graph_of([kind, kind], lambda b, x, y: [*b.graph(step, {"0": x, "1": y}), x])
            otherwise = graph_of([kind, kind], lambda b, x, y: [y, *b.graph(other, {"0": x, "1": y})])
            operands = asked, source, grower.constant(kind.shape, kind.dtype)
            return siblings(grower.builder, "cond", *operands, count=2, then=then, otherwise=otherwise)[-1]
        case "while" if {I32, BOOL} <= set(grower.dtypes):
            times, constant = int(grower.rng.integers(4)), grower.constant(kind.shape, kind.dtype)
            return counted(grower.builder, times, source, constant, step)[-1]
        case "scan" if len(kind.shape) > 0:
            row = TensorType(kind.shape[1:], kind.dtype)
            both = _step(grower, row), _step(grower, row)
            body = graph_of([row, row], lambda b, *xy: [b.graph(s, dict(zip("01", xy, strict=True)))[0] for s in both])
            attrs = {"body": body, "carry": 1, "consts": 0, "length": kind.shape[0], "reverse": grower.one_of(0, 1)}
            return siblings(grower.builder, "scan", grower.constant(*row), source, count=2, **attrs)[-1]
    return None


def _step(grower: _Grower, kind: TensorType) -> WireGraph:
    """From two tensors to one of their kind, without rounding but of complex numbers."""
    pairs = {"b": ("and", "or", "xor"), "f": ("max", "min"), "c": ("add",)}.get(
        kind.dtype.kind, ("add", "mul", "max", "xor")
    )
    pair, alone = grower.one_of(*pairs), "not" if kind.dtype.kind == "b" else "neg"
    return graph_of([kind, kind], lambda b, x, y: [b.add(pair, b.add(alone, x), y)])


ROWS: tuple[Callable[[_Grower], int | None], ...] = (
    _unary, _unary, _unary, _binary, _binary, _binary, _binary, _select, _convert, _reduce, _along, _view, _view, _view,
    _dot, _dot, _conv, _gather, _scatter, _window, _made_up, _after, _composite, _control, _matrices,
)  # fmt: skip
