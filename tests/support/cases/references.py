"""What every op means, written a second time: the judge of the cpu engine, which judges the others.

Nothing here uses what worker/cpu uses: floats are computed in long double and rounded once (the C library's functions,
not numpy's SIMD ones), integers are Python's and wrapped, views and indexing are arithmetic on coordinates, random
bits follow the published algorithm on Python's integers.  Slow and plain on purpose.

A reference takes `(attrs, operands, result type)`.  One that returns long doubles or Python integers is rounded or
wrapped to the result's dtype by `reference`.  To add an op, add a row to REFERENCES.
"""

from __future__ import annotations

import cmath
import itertools
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import BF16, DType, dtype_of
from wire.ir.graph import Node, WireGraph, const_value
from wire.ir.ops import COLLECTIVES
from wire.ir.types import Attrs, TensorType

from .matrix_references import MATRICES
from .rank_references import Rank, collective, spmd

Array = NDArray[Any]
Reference = Callable[[Attrs, list[Array], TensorType], Array]


def reference(graph: WireGraph, inputs: Mapping[str, Array], rank: Rank | None = None) -> list[Array]:
    """The outputs of `graph`, every node rounded to its dtype; as one `rank` of several where it is a body."""
    values: list[Array] = []
    computed: dict[Any, list[Array]] = {}
    for node, kind in zip(graph.nodes, graph.types, strict=True):
        operands = [values[source] for source in node.inputs]
        if node.op in ("input", "param"):
            values.append(inputs[node.attrs["name"]])
        elif node.op == "const":
            values.append(const_value(node, graph.blobs))
        elif node.op == "composite":
            body = node.attrs["body"]
            values.append(_inside(body, operands, rank)[0])
        elif node.op in CONTROL:
            values.append(_once(node, operands, rank, computed)[node.attrs["output"]])
        elif node.op == "spmd":
            values.append(spmd(node.attrs, operands, _inside)[node.attrs["output"]])
        elif node.op in COLLECTIVES:
            assert rank is not None
            values.append(settled(collective(node.op, node.attrs, operands, rank), kind))
        else:
            with np.errstate(all="ignore"):
                values.append(settled(REFERENCES[node.op](node.attrs, operands, kind), kind))
    return [values[index] for index in graph.outputs]


def _inside(graph: WireGraph, operands: list[Array], rank: Rank | None = None) -> list[Array]:
    return reference(graph, dict(zip(graph.input_types, operands, strict=True)), rank)


def _once(node: Node, operands: list[Array], rank: Rank | None, computed: dict[Any, list[Array]]) -> list[Array]:
    """All results of a branch or a loop: ranks meet in it once, however many results are asked for."""
    key = (node.op, node.inputs, *[(name, value) for name, value in node.attrs.items() if name != "output"])
    if key not in computed:
        computed[key] = CONTROL[node.op](node.attrs, operands, rank)
    return computed[key]


def _cond(attrs: Attrs, operands: list[Array], rank: Rank | None) -> list[Array]:
    return _inside(attrs["then"] if operands[0].item() else attrs["otherwise"], operands[1:], rank)


def _while(attrs: Attrs, operands: list[Array], rank: Rank | None) -> list[Array]:
    carried = len(attrs["body"].outputs)
    while _inside(attrs["test"], operands, rank)[0].item():
        operands = _inside(attrs["body"], operands, rank) + operands[carried:]
    return operands[:carried]


def _scan(attrs: Attrs, operands: list[Array], rank: Rank | None) -> list[Array]:
    body, first = attrs["body"], attrs["carry"] + attrs["consts"]
    carry, constants, columns = operands[: attrs["carry"]], operands[attrs["carry"] : first], operands[first:]
    given = [[column[at] for column in columns] for at in range(attrs["length"])]
    taken = []
    for rows in given[::-1] if attrs["reverse"] else given:
        results = _inside(body, [*carry, *constants, *rows], rank)
        carry = results[: attrs["carry"]]
        taken.append(results[attrs["carry"] :])
    stacked = []
    for place, index in enumerate(body.outputs[attrs["carry"] :]):
        kind = body.types[index]
        rows = [results[place] for results in (taken[::-1] if attrs["reverse"] else taken)]
        stacked.append(np.array(rows, kind.dtype.numpy).reshape(attrs["length"], *kind.shape))
    return [*carry, *stacked]


CONTROL: dict[str, Callable[[Attrs, list[Array], Rank | None], list[Array]]] = {
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}


def settled(array: Array, kind: TensorType) -> Array:
    """The array in the dtype of `kind`: long doubles rounded once, Python integers wrapped."""
    if array.dtype == object:
        flat = [wrapped(int(value), kind.dtype) for value in array.reshape(-1)]
        array = np.array(flat, kind.dtype.numpy)
    elif array.dtype in (np.longdouble, np.clongdouble):
        array = rounded(array, kind.dtype)
    assert array.dtype == kind.dtype.numpy, f"a reference gave {array.dtype} for {kind}"
    return array.reshape(kind.shape)


def wrapped(value: int, dtype: DType) -> int:
    """`value` modulo 2^width, in the range of `dtype`."""
    width = 8 * dtype.itemsize
    value &= (1 << width) - 1
    return value - (1 << width) if dtype.kind == "i" and value >> (width - 1) else value


def rounded(array: Array, dtype: DType) -> Array:
    """Long doubles to the nearest of `dtype`, ties to even, in one step."""
    if dtype is not BF16:
        return array.astype(dtype.numpy)
    nearest = array.astype(np.float32).reshape(-1)
    for place, exact in enumerate(array.reshape(-1)):  # to odd first, so that the second rounding sees what was lost
        if np.isfinite(nearest[place]) and nearest[place] != exact:
            bits = struct.unpack("<I", struct.pack("<f", nearest[place]))[0]
            if not bits & 1:
                away = abs(exact) > abs(np.longdouble(nearest[place]))
                bits += 1 if away else -1
            nearest[place] = struct.unpack("<f", struct.pack("<I", bits))[0]
    return nearest.astype(BF16.numpy).reshape(array.shape)


def integers(values: Iterable[int], shape: tuple[int, ...]) -> Array:
    """Python integers, not yet wrapped."""
    found = list(values)
    array = np.empty(len(found), object)
    array[:] = found
    return array.reshape(shape)


def wide(array: Array) -> Array:
    return array.astype(np.clongdouble if array.dtype.kind == "c" else np.longdouble)


def is_wide(dtype: DType) -> bool:
    return dtype.kind in "fc"


# -- elementwise ------------------------------------------------------------------------------------------


def _float(function: Callable[..., Any]) -> Reference:
    """A function of long doubles, or of complex numbers of them."""
    return lambda attrs, operands, out: np.asarray(function(*map(wide, operands)))


def _scalars(function: Callable[..., float]) -> Reference:
    """A function of Python floats."""

    def row(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
        columns = [array.astype(np.float64).reshape(-1).tolist() for array in np.broadcast_arrays(*operands)]
        return np.array([function(*values) for values in zip(*columns, strict=True)], np.longdouble)

    return row


def _whole(function: Callable[..., int]) -> Reference:
    """A function of Python integers."""

    def row(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
        columns = [array.reshape(-1).tolist() for array in np.broadcast_arrays(*operands)]
        return integers((function(*values) for values in zip(*columns, strict=True)), out.shape)

    return row


def _by_kind(floats: Reference, whole: Reference) -> Reference:
    return lambda attrs, operands, out: (floats if is_wide(out.dtype) else whole)(attrs, operands, out)


def _or_complex(real: Reference, function: Callable[..., Any]) -> Reference:
    """`real`, but a function of complex numbers of long doubles for those."""

    def row(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
        if operands[0].dtype.kind == "c":
            return np.asarray(function(*map(wide, operands)))
        return real(attrs, operands, out)

    return row


def _complex(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    pairs = zip(*(array.reshape(-1).tolist() for array in np.broadcast_arrays(*operands)), strict=True)
    return np.array([complex(*pair) for pair in pairs], out.dtype.numpy)


def _both(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of either part."""

    def parts(z: Any) -> Any:
        result = np.empty_like(z)
        result.real, result.imag = function(z.real), function(z.imag)
        return result

    return parts


def _test(function: Callable[..., bool]) -> Reference:
    """A function of Python numbers that gives a bool."""

    def row(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
        exact = [array.astype(np.float64) if array.dtype.kind not in "biuc" else array for array in operands]
        columns = [array.reshape(-1).tolist() for array in np.broadcast_arrays(*exact)]
        return np.array([function(*values) for values in zip(*columns, strict=True)], np.bool_)

    return row


def _logic(function: Callable[..., int]) -> Reference:
    """A function of Python integers, bools among them."""
    whole = _whole(function)

    def row(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
        result = whole(attrs, operands, out)
        return np.array([bool(x & 1) for x in result.reshape(-1)], np.bool_) if out.dtype.kind == "b" else result

    return row


def _sign(x: float) -> float:
    return x if math.isnan(x) else float((x > 0) - (x < 0))


def _larger(x: float, y: float) -> float:
    return math.nan if math.isnan(x) or math.isnan(y) else max(x, y)


def _smaller(x: float, y: float) -> float:
    return math.nan if math.isnan(x) or math.isnan(y) else min(x, y)


def _float_rem(x: float, y: float) -> float:
    return math.nan if y == 0 or math.isinf(x) else x % y


def _whole_pow(out: DType) -> Callable[[int, int], int]:
    modulus = 1 << (8 * out.itemsize)

    def power(x: int, y: int) -> int:
        if y >= 0:
            return pow(x, y, modulus)
        return {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)

    return power


def _shl(width: int) -> Callable[[int, int], int]:
    return lambda x, count: x << count if 0 <= count < width else 0


def _shr(width: int) -> Callable[[int, int], int]:
    return lambda x, count: x >> count if 0 <= count < width else (-1 if x < 0 else 0)


def _select(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    condition, taken, other = (np.broadcast_to(array, out.shape).reshape(-1) for array in operands)
    chosen = [bool(float(value) > 0) for value in condition]
    return np.array([taken[i] if yes else other[i] for i, yes in enumerate(chosen)], out.dtype.numpy)


def _cast(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    source, kind = operands[0], dtype_of(operands[0]).kind
    if out.dtype.kind == "b":
        return np.array([bool(value != 0) for value in source.reshape(-1)], np.bool_)
    if is_wide(out.dtype):
        return wide(source).astype(np.clongdouble) if out.dtype.kind == "c" else wide(source)
    if kind != "f":
        return integers((int(value) for value in source.reshape(-1)), out.shape)
    limits = np.iinfo(out.dtype.numpy)
    low, high = int(limits.min), int(limits.max)
    return integers((_saturated(float(value), low, high) for value in source.reshape(-1)), out.shape)


def _saturated(value: float, low: int, high: int) -> int:
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return high if value > 0 else low
    return min(max(int(value), low), high)


def _bitcast(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    return np.frombuffer(operands[0].tobytes(), out.dtype.numpy)


# -- reduce -----------------------------------------------------------------------------------------------


def _rows(source: Array, axes: tuple[int, ...]) -> Array:
    """One row per result: the reduced axes, in their order, made the last."""
    kept = [axis for axis in range(source.ndim) if axis not in axes]
    count, length = (math.prod(source.shape[axis] for axis in each) for each in (kept, axes))
    return source.transpose(*kept, *sorted(axes)).reshape(count, length)


def _sum(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    rows = _rows(operands[0], attrs["axes"])
    if is_wide(out.dtype):
        return np.asarray(wide(rows).sum(axis=1))
    return integers((sum(row) for row in rows.tolist()), out.shape)


def _product(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    rows = _rows(operands[0], attrs["axes"])
    if is_wide(out.dtype):
        return np.asarray(wide(rows).prod(axis=1))
    totals = []
    for row in rows.tolist():
        total = 1
        for value in row:
            total = wrapped(total * value, out.dtype)
        totals.append(total)
    return integers(totals, out.shape)


def _extreme(choose: Callable[[list[Any]], Any]) -> Reference:
    def row(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
        found = []
        for values in _rows(operands[0], attrs["axes"]):
            bad = [value for value in values if value != value]
            found.append(bad[0] if bad else choose(list(values)))
        return np.array(found, out.dtype.numpy)

    return row


def _argmax(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    found = []
    for values in _rows(operands[0], (attrs["axis"],)):
        best = 0
        for place, value in enumerate(values.tolist()):
            if value != value:
                best = place
                break
            if value > values[best]:
                best = place
        found.append(best)
    return np.array(found, np.int32)


def _running(step: Callable[[Any, Any], Any]) -> Reference:
    """Each element combined with all before it, in order, on long doubles or wrapped integers."""

    def row(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
        source = wide(operands[0]) if is_wide(out.dtype) else operands[0].astype(object)
        lines = np.moveaxis(source, attrs["axis"], -1)
        found = np.empty_like(lines)
        for place in np.ndindex(lines.shape[:-1]):
            total = None
            for at, value in enumerate(lines[place]):
                total = value if total is None else step(total, value)
                if not is_wide(out.dtype):
                    total = wrapped(int(total), out.dtype)
                found[(*place, at)] = total
        return np.moveaxis(found, -1, attrs["axis"])

    return row


def _later_extreme(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda total, value: total if total != total else value if value != value else choose(total, value)


def _fft(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    """The product with the matrix of the transform."""
    lines = np.moveaxis(wide(operands[0]), attrs["axis"], -1)
    count = lines.shape[-1]
    turns = wide(np.outer(np.arange(count), np.arange(count)) % count) / count * (1 if attrs["inverse"] else -1)
    angles = 2 * np.arctan2(np.longdouble(0), np.longdouble(-1)) * turns
    found = lines @ (np.cos(angles) + 1j * np.sin(angles))
    return np.moveaxis(found / (count if attrs["inverse"] else 1), -1, attrs["axis"])


def _argsort(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    lines = np.moveaxis(operands[0], attrs["axis"], -1)
    found = np.empty(lines.shape, np.int32)
    for place in np.ndindex(lines.shape[:-1]):
        values = enumerate(lines[place].tolist())
        ranked = [((value != value, 0 if value != value else value), at) for at, value in values]
        found[place] = [at for _, at in sorted(ranked)]
    return np.moveaxis(found, -1, attrs["axis"])


# -- views: coordinates of the result, and from them coordinates of the source ------------------------------


def _coordinates(shape: tuple[int, ...]) -> list[Array]:
    return list(np.indices(shape, np.int64, sparse=False)) if shape else []


def _transpose(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    at = dict(zip(attrs["perm"], _coordinates(out.shape), strict=True))
    return operands[0][tuple(at[axis] for axis in range(len(out.shape)))]


def _broadcast(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    source = operands[0]
    at = _coordinates(out.shape)[len(out.shape) - source.ndim :]
    picked = source[tuple(c * (dim != 1) for c, dim in zip(at, source.shape, strict=True))]
    return np.array([picked] * out.size, out.dtype.numpy) if source.ndim == 0 else picked


def _slice(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    at = zip(_coordinates(out.shape), attrs["start"], attrs["step"], strict=True)
    return operands[0][tuple(start + c * step for c, start, step in at)]


def _reverse(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    at = enumerate(_coordinates(out.shape))
    return operands[0][tuple(out.shape[axis] - 1 - c if axis in attrs["axes"] else c for axis, c in at)]


def _pad(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    source, fill = operands
    if not out.shape:
        return source
    inside, at = np.ones(out.shape, bool), []
    widths = zip(_coordinates(out.shape), source.shape, attrs["low"], attrs["interior"], strict=True)
    for c, dim, low, interior in widths:
        place, off = (c - low) // (interior + 1), (c - low) % (interior + 1)
        inside &= (off == 0) & (place >= 0) & (place < dim)
        at.append(place)
    result = np.array([fill] * out.size, out.dtype.numpy).reshape(out.shape)
    result[inside] = source[tuple(place[inside] for place in at)]
    return result


def _concat(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    axis, result, first = attrs["axis"], np.zeros(out.shape, out.dtype.numpy), 0
    for source in operands:
        at = _coordinates(source.shape)
        at[axis] = at[axis] + first
        result[tuple(at)] = source
        first += source.shape[axis]
    return result


# -- contraction and indexing -----------------------------------------------------------------------------


def _dot(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    """einsum in long double, or modulo 2^64 and so modulo any smaller width."""
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left, right = [next(letters) for _ in operands[0].shape], [next(letters) for _ in operands[1].shape]
    for pair in ("batch", "contract"):
        for at_left, at_right in zip(attrs[f"lhs_{pair}"], attrs[f"rhs_{pair}"], strict=True):
            right[at_right] = left[at_left]
    batch = [left[axis] for axis in attrs["lhs_batch"]]
    gone = {*batch, *(left[axis] for axis in attrs["lhs_contract"])}
    result = batch + [name for name in left if name not in gone] + [name for name in right if name not in gone]
    formula = f"{''.join(left)},{''.join(right)}->{''.join(result)}"
    if is_wide(out.dtype):
        return np.asarray(np.einsum(formula, *map(wide, operands)))
    total = np.einsum(formula, *(array.astype(np.int64).view(np.uint64) for array in operands))
    return integers((int(value) for value in np.asarray(total).reshape(-1)), out.shape)


def _conv(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    """Output by output, from the definition: every product whose two positions meet, and zero times w elsewhere."""
    floats = is_wide(out.dtype)
    x, w = map(wide, operands) if floats else operands
    columns = [attrs[name] for name in ("stride", "low", "lhs_dilation", "rhs_dilation")]
    share = w.shape[1]
    found = []
    for sample, maker, *place in np.ndindex(*out.shape):
        first = maker // (w.shape[0] // attrs["groups"]) * share
        total = x.dtype.type(0) if floats else 0
        for position in np.ndindex(*w.shape[2:]):
            at = [
                (p * stride + k * reach - low, spread)
                for p, k, stride, low, spread, reach in zip(place, position, *columns, strict=True)
            ]
            inside = all(a % s == 0 and 0 <= a // s < dim for (a, s), dim in zip(at, x.shape[2:], strict=True))
            read = x[(sample, slice(first, first + share), *(a // s for a, s in at))] if inside else [0] * share
            for weight, value in zip(w[(maker, slice(None), *position)], read, strict=True):
                total = total + (weight * value if floats else int(weight) * int(value))
        found.append(total)
    return np.array(found, x.dtype).reshape(out.shape) if floats else integers(found, out.shape)


def _gather(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    source, indices = operands
    axis, batch = attrs["axis"], attrs["batch_dims"]
    at, rank = _coordinates(out.shape), indices.ndim - batch
    asked = indices[(*at[:batch], *at[axis : axis + rank])] if indices.ndim else indices
    last = source.shape[axis] - 1
    clamped = np.array([min(max(int(i), 0), last) for i in np.asarray(asked).reshape(-1)], np.int64)
    picked = clamped.reshape(np.shape(asked))
    return source[(*at[:axis], picked, *at[axis + rank :])]


def _scatter(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    source, indices, updates = operands
    axis, mode = attrs["axis"], attrs["mode"]
    adding = mode == "add"
    result = (wide(source) if is_wide(out.dtype) else source.astype(object)) if adding else source.copy()
    for place in itertools.product(*map(range, indices.shape)):
        index = int(indices[place])
        if not 0 <= index < source.shape[axis]:
            continue
        lead = (slice(None),) * axis
        update, target = updates[(*lead, *place)], (*lead, index)
        if mode == "set":
            result[target] = update
        elif adding:
            result[target] = result[target] + (wide(update) if is_wide(out.dtype) else update.astype(object))
        else:
            kept = result[target] != result[target]
            better = update > result[target] if mode == "max" else update < result[target]
            result[target] = np.where(~kept & (better | (update != update)), update, result[target])
    return result


def _starts(shape: tuple[int, ...], window: tuple[int, ...], starts: Array) -> list[int]:
    dims = zip((int(start) for start in starts), shape, window, strict=True)
    return [max(0, min(start, dim - size)) for start, dim, size in dims]


def _dynamic_slice(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    source, starts = operands
    firsts = _starts(source.shape, out.shape, starts)
    return source[tuple(first + c for first, c in zip(firsts, _coordinates(out.shape), strict=True))]


def _dynamic_update_slice(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    source, update, starts = operands
    firsts, result = _starts(source.shape, update.shape, starts), source.copy()
    result[tuple(first + c for first, c in zip(firsts, _coordinates(update.shape), strict=True))] = update
    return result


# -- made up ----------------------------------------------------------------------------------------------


def _iota(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    at = _coordinates(out.shape)[attrs["axis"]]
    return wide(at) if out.dtype.kind == "f" else at.astype(object)


def threefry2x32(key: tuple[int, int], counter: tuple[Any, Any], rounds: int = 20) -> tuple[Any, Any]:
    """Two words for a counter of Python integers, or of arrays of u64 that hold 32-bit words.

    J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; Random123's threefry.h.
    """
    mask = 0xFFFFFFFF
    keys = (*key, 0x1BD11BDA ^ key[0] ^ key[1])
    x, y = (counter[0] + keys[0]) & mask, (counter[1] + keys[1]) & mask
    for turn in range(rounds):
        x = (x + y) & mask
        by = (13, 15, 26, 6, 17, 29, 16, 24)[turn % 8]
        y = ((y << by) | (y >> (32 - by))) & mask
        y ^= x
        if turn % 4 == 3:
            step = turn // 4 + 1
            x, y = (x + keys[step % 3]) & mask, (y + keys[(step + 1) % 3] + step) & mask
    return x, y


def _random_bits(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    key = (int(operands[0][0]), int(operands[0][1]))
    places = np.arange(out.size, dtype=np.uint64)
    return threefry2x32(key, (0 * places, places))[0].astype(object)


# -- the table --------------------------------------------------------------------------------------------

REFERENCES: dict[str, Reference] = {
    **MATRICES,
    "iota": _iota,
    "random_bits": _random_bits,
    "neg": _by_kind(_float(lambda x: -x), _whole(lambda x: -x)),
    "recip": _float(lambda x: 1 / x),
    "sqrt": _float(np.sqrt),
    "sin": _float(np.sin),
    "exp2": _float(np.exp2),
    "log2": _float(np.log2),
    "exp": _float(np.exp),
    "log": _float(np.log),
    "expm1": _float(np.expm1),
    "log1p": _float(np.log1p),
    "cos": _float(np.cos),
    "tan": _float(np.tan),
    "tanh": _float(np.tanh),
    "erf": _scalars(math.erf),
    "floor": _scalars(lambda x: x if math.isinf(x) or math.isnan(x) or x == 0 else float(math.floor(x))),
    "round": _or_complex(_scalars(lambda x: x if math.isinf(x) or math.isnan(x) else round(x, 0)), _both(np.rint)),
    "sign": _by_kind(_scalars(_sign), _whole(lambda x: (x > 0) - (x < 0))),
    "abs": _or_complex(_by_kind(_scalars(abs), _whole(abs)), np.abs),
    "not": _logic(lambda x: ~x),
    "is_nan": _test(cmath.isnan),
    "real": lambda attrs, operands, out: operands[0].real,
    "imag": lambda attrs, operands, out: operands[0].imag,
    "complex": _complex,
    "add": _by_kind(_float(lambda x, y: x + y), _whole(lambda x, y: x + y)),
    "mul": _by_kind(_float(lambda x, y: x * y), _whole(lambda x, y: x * y)),
    "atan2": _float(np.arctan2),
    "max": _by_kind(_scalars(_larger), _whole(max)),
    "min": _by_kind(_scalars(_smaller), _whole(min)),
    "div": _by_kind(_float(lambda x, y: x / y), _whole(lambda x, y: x // y if y else 0)),
    "rem": _by_kind(_scalars(_float_rem), _whole(lambda x, y: x % y if y else 0)),
    "pow": lambda attrs, operands, out: _by_kind(_float(np.power), _whole(_whole_pow(out.dtype)))(attrs, operands, out),
    "eq": _test(lambda x, y: x == y),
    "ne": _test(lambda x, y: x != y),
    "lt": _test(lambda x, y: x < y),
    "le": _test(lambda x, y: x <= y),
    "gt": _test(lambda x, y: x > y),
    "ge": _test(lambda x, y: x >= y),
    "and": _logic(lambda x, y: x & y),
    "or": _logic(lambda x, y: x | y),
    "xor": _logic(lambda x, y: x ^ y),
    "shl": lambda attrs, operands, out: _whole(_shl(8 * out.dtype.itemsize))(attrs, operands, out),
    "shr": lambda attrs, operands, out: _whole(_shr(8 * out.dtype.itemsize))(attrs, operands, out),
    "select": _select,
    "cast": _cast,
    "bitcast": _bitcast,
    "reduce_sum": _sum,
    "reduce_prod": _product,
    "reduce_max": _extreme(max),
    "reduce_min": _extreme(min),
    "argmax": _argmax,
    "cumsum": _running(lambda total, value: total + value),
    "cumprod": _running(lambda total, value: total * value),
    "cummax": _running(_later_extreme(max)),
    "cummin": _running(_later_extreme(min)),
    "fft": _fft,
    "argsort": _argsort,
    "reshape": lambda attrs, operands, out: operands[0],
    "transpose": _transpose,
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "reverse": _reverse,
    **dict.fromkeys(("after", "constraint", "transfer"), lambda attrs, operands, out: operands[0]),
    "dot": _dot,
    "conv": _conv,
    "gather": _gather,
    "scatter": _scatter,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
}
