"""ATen ops as functions of arrays, a row each.  Semantics: pytorch.org/docs, by the names of the schemas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from wire.errors import Unsupported
from wire.ir.dtypes import BF16, BOOL, F16, F32, I64, dtype_of

from ... import nn
from ... import numpy as mnp
from ...core.array import Array, apply
from ...nn.precision import wide
from ...numpy import special
from ...numpy.promotion import asarray, cast
from . import indexing, matrices
from .call import Absent, Call, Op, as_result

IGNORED = frozenset({"_assert_async", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range_for_size"})


PLACES = Absent("a max-pool's indices (return_indices=True)")

# -- elementwise ------------------------------------------------------------------------------------------


def _unary(function: Callable[[Array], Array]) -> Op:
    def op(call: Call) -> Array:
        x = call.x
        floats = call.result is not None and np.dtype(call.dtype).kind not in "biu"
        return as_result(call, function(cast(x, dtype_of(call.dtype)) if floats else x))

    return op


def _binary(function: Callable[[Any, Any], Array], other: str = "other") -> Op:
    return lambda call: as_result(call, function(*_in_result(call, "self", other)))


def _in_result(call: Call, *names: str) -> list[Any]:
    """Operands in the dtype of the result, in which torch computes; Python's numbers, which adapt, as they are."""
    operands = [call[name] for name in names]
    return [cast(operand, dtype_of(call.dtype)) if isinstance(operand, Array) else operand for operand in operands]


def _exact_in_result(call: Call, *names: str) -> list[Any]:
    """Operands of a sum or a product: with a number or an array of no dimensions, torch computes halves in float32."""
    operands = [call[name] for name in names]
    half = dtype_of(call.dtype) in (F16, BF16)
    if half and any(not isinstance(operand, Array) or operand.ndim == 0 for operand in operands):
        return [cast(operand, F32) if isinstance(operand, Array) else operand for operand in operands]
    return _in_result(call, *names)


def _multiplied(call: Call) -> Array:
    return as_result(call, mnp.multiply(*_exact_in_result(call, "self", "other")))


def _compare(function: Callable[[Any, Any], Array]) -> Op:
    return lambda call: function(call["self"], call["other"])


def _added(sign: int) -> Op:
    def op(call: Call) -> Array:
        (left, right), alpha = _exact_in_result(call, "self", "other"), call.get("alpha", 1)
        scaled = right if alpha == 1 else mnp.multiply(right, alpha)
        return as_result(call, mnp.add(left, scaled) if sign > 0 else mnp.subtract(left, scaled))

    return op


def _rsub(call: Call) -> Array:
    left, right = _exact_in_result(call, "self", "other")
    return as_result(call, mnp.subtract(right, mnp.multiply(left, call.get("alpha", 1))))


def _div(call: Call) -> Array:
    mode = call.get("rounding_mode")
    if mode is None:
        return as_result(call, mnp.divide(*_exact_in_result(call, "self", "other")))
    left, right = _in_result(call, "self", "other")
    if mode == "floor":
        return as_result(call, mnp.floor_divide(left, right))
    quotient = mnp.divide(left, right) if np.dtype(call.dtype).kind == "f" else None
    if quotient is not None:
        return as_result(call, mnp.trunc(quotient))
    size = mnp.floor_divide(mnp.abs(left), mnp.abs(right))
    return as_result(call, mnp.where(mnp.less(left, 0) != mnp.less(right, 0), -size, size))


def _fmod(call: Call) -> Array:
    """The remainder with the sign of the dividend."""
    return as_result(call, mnp.fmod(call["self"], call["other"]))


def _clamp(call: Call) -> Array:
    low, high = call.get("min"), call.get("max")
    return as_result(call, mnp.clip(as_result(call, call.x), low, high))


def _gelu(call: Call) -> Array:
    return nn.gelu(call.x, approximate=call.get("approximate", "none") == "tanh")


def _elu(call: Call) -> Array:
    alpha, scale, inner = (float(call.get(name, 1)) for name in ("alpha", "scale", "input_scale"))
    x = call.x
    return scale * mnp.where(x > 0, x, alpha * mnp.expm1(x * inner))


def _softplus(call: Call) -> Array:
    beta, threshold = float(call.get("beta", 1)), float(call.get("threshold", 20))
    x = call.x
    return mnp.where(x * beta > threshold, x, mnp.logaddexp(x * beta, mnp.zeros_like(x)) / beta)


def _to(call: Call) -> Array:
    return as_result(call, call.x)


def _where(call: Call) -> Array:
    return as_result(call, mnp.where(call["condition"], *_in_result(call, "self", "other")))


def _masked_fill(call: Call) -> Array:
    return as_result(call, mnp.where(call["mask"], call["value"], call.x))


# -- shapes -----------------------------------------------------------------------------------------------


def _reshape(call: Call) -> Array:
    return mnp.reshape(call.x, call.shape)


def _view(call: Call) -> Array:
    """Another shape, or the same bits as another dtype."""
    if "dtype" not in call:
        return _reshape(call)
    dtype = dtype_of(call.dtype)
    if dtype.itemsize != call.x.type.dtype.itemsize:
        raise Unsupported(
            f"a view of {call.x.type.dtype.name} as {dtype.name}, which is of another width", op=call.name
        )
    return apply("bitcast", call.x, dtype=dtype.name)


def _permute(call: Call) -> Array:
    return mnp.permute_dims(call.x, tuple(int(axis) % call.x.ndim for axis in call["dims"]))


def _transpose(call: Call) -> Array:
    return mnp.swapaxes(call.x, int(call["dim0"]), int(call["dim1"])) if call.x.ndim else call.x


def _slice(call: Call) -> Array:
    x, axis = call.x, call.axis()
    start, stop, step = call.get("start", 0), call.get("end", x.shape[axis]), int(call.get("step", 1))
    return x[(slice(None),) * axis + (slice(int(start), min(int(stop), x.shape[axis]), step),)]


def _select(call: Call) -> Array:
    return call.x[(slice(None),) * call.axis() + (int(call["index"]),)]


def _split(call: Call) -> list[Array]:
    x, axis = call.x, call.axis()
    sizes = call.get("split_sizes", call.get("split_size"))
    if not isinstance(sizes, list):
        sizes = [min(sizes, x.shape[axis] - first) for first in range(0, x.shape[axis], sizes)]
    edges = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
    before = (slice(None),) * axis
    return [x[(*before, slice(edges[place], edges[place + 1]))] for place in range(len(sizes))]


def _cat(call: Call) -> Array:
    arrays = [array for array in map(asarray, call["tensors"]) if array.shape != (0,)]
    return mnp.concat([cast(array, dtype_of(call.dtype)) for array in arrays], axis=int(call.get("dim", 0)))


def _pad(call: Call) -> Array:
    x, widths = call.x, [int(width) for width in call["pad"]]
    pairs = [(0, 0)] * (x.ndim - len(widths) // 2)
    pairs += [(widths[place], widths[place + 1]) for place in range(len(widths) - 2, -1, -2)]
    cut = x[tuple(slice(max(-lo, 0), size - max(-hi, 0)) for (lo, hi), size in zip(pairs, x.shape, strict=True))]
    return mnp.pad(cut, [(max(lo, 0), max(hi, 0)) for lo, hi in pairs], constant_values=call.get("value", 0))


def _unfold(call: Call) -> Array:
    """Windows along an axis; what is in them is a new last axis."""
    x, axis, size, step = call.x, call.axis("dimension"), int(call["size"]), int(call["step"])
    count = call.shape[axis]
    pieces = [x[(slice(None),) * axis + (slice(first, first + (count - 1) * step + 1, step),)] for first in range(size)]
    return mnp.stack(pieces, axis=-1)


def _repeat(call: Call) -> Array:
    return mnp.tile(call.x, tuple(int(count) for count in call["repeats"]))


def _roll(call: Call) -> Array:
    return mnp.roll(call.x, tuple(call["shifts"]), tuple(call["dims"]) if call.get("dims") else None)


def _diagonal(call: Call) -> Array:
    x = call.x
    first, second = int(call.get("dim1", 0)) % x.ndim, int(call.get("dim2", 1)) % x.ndim
    return mnp.linalg.diagonal(mnp.moveaxis(x, (first, second), (-2, -1)), offset=int(call.get("offset", 0)))


# -- new arrays -------------------------------------------------------------------------------------------


def _full(value: Any = None) -> Op:
    def op(call: Call) -> Array:
        filled = call.get("fill_value", call.get("value")) if value is None else value
        if isinstance(filled, Array):
            return mnp.broadcast_to(as_result(call, filled), call.shape)
        return mnp.full(call.shape, filled, dtype=call.dtype)

    return op


def _arange(call: Call) -> Array:
    kind = dtype_of(call.dtype)
    number = int if kind.kind in "iu" else float
    start, step = number(call.get("start", 0)), number(call.get("step", 1))
    steps = apply("iota", shape=call.shape, dtype=(F32 if kind in (F16, BF16) else kind).name, axis=0)
    return as_result(call, steps * step + start)


# -- reductions -------------------------------------------------------------------------------------------


def _reduce(function: Callable[..., Array]) -> Op:
    def op(call: Call) -> Array:
        x = call.x
        kind = dtype_of(call.dtype)
        wide = cast(x, kind) if kind.kind == "f" or function in (mnp.sum, mnp.prod) else x
        return as_result(call, function(wide, axis=call.axes(), keepdims=bool(call.get("keepdim", False))))

    return op


def _extreme(function: Callable[..., Array], place: Callable[..., Array], pair: Callable[..., Array]) -> Op:
    """The values, and where they stand, along one axis; the value alone of everything; or those of two arrays."""

    def op(call: Call) -> Any:
        if "other" in call:
            return pair(call["self"], call["other"])
        if "dim" not in call:
            return function(call.x)
        axis, keepdims = call.axis(), bool(call.get("keepdim", False))
        values = function(call.x, axis=axis, keepdims=keepdims)
        return [values, cast(place(call.x, axis=axis, keepdims=keepdims), I64)]

    return op


def _place(function: Callable[..., Array]) -> Op:
    def op(call: Call) -> Array:
        axis = None if call.get("dim") is None else call.axis()
        return cast(function(call.x, axis=axis, keepdims=bool(call.get("keepdim", False))), I64)

    return op


def _variance(root: bool, mean: bool) -> Op:
    def op(call: Call) -> Any:
        x, axes, keepdims = call.x, call.axes(), bool(call.get("keepdim", False))
        correction = call.get("correction", 1 if call.get("unbiased", True) else 0)
        variance = mnp.var(wide(x), axis=axes, correction=correction, keepdims=keepdims)
        spread = cast(mnp.sqrt(variance) if root else variance, x.type.dtype)
        return [spread, mnp.mean(x, axis=axes, keepdims=keepdims)] if mean else spread

    return op


def _norm(call: Call) -> Array:
    order, axes, keepdims = float(call.get("ord", call.get("p", 2))), call.axes(), bool(call.get("keepdim", False))
    size = wide(as_result(call, mnp.abs(call.x)))
    if order == math.inf:
        norm = mnp.max(size, axis=axes, keepdims=keepdims)
    elif order == -math.inf:
        norm = mnp.min(size, axis=axes, keepdims=keepdims)
    elif order == 0:
        norm = mnp.sum(size != 0, axis=axes, keepdims=keepdims)
    elif order == 2:
        norm = mnp.sqrt(mnp.sum(size * size, axis=axes, keepdims=keepdims))
    else:
        norm = mnp.pow(mnp.sum(mnp.pow(size, order), axis=axes, keepdims=keepdims), 1 / order)
    return as_result(call, norm)


def _logsumexp(call: Call) -> Array:
    x, axes = call.x, call.axes()
    largest = mnp.max(x, axis=axes, keepdims=True)
    centre = mnp.where(mnp.isfinite(largest), largest, mnp.zeros_like(largest))
    result = mnp.log(mnp.sum(mnp.exp(x - centre), axis=axes, keepdims=True)) + centre
    return result if call.get("keepdim", False) else mnp.squeeze(result, axes)


def _cumulative(function: Callable[..., Array]) -> Op:
    return lambda call: function(call.x, axis=call.axis(), dtype=call.dtype) if call.x.ndim else _to(call)


# -- products ---------------------------------------------------------------------------------------------


def _matmul(call: Call) -> Array:
    return mnp.matmul(call.x, call.get("mat2", call.get("other", call.get("vec"))))


def _addmm(first: str, second: str) -> Op:
    def op(call: Call) -> Array:
        product = mnp.matmul(call[first], call[second])
        alpha, beta = call.get("alpha", 1), call.get("beta", 1)
        scaled = product if alpha == 1 else product * alpha
        return scaled if beta == 0 else scaled + (call.x if beta == 1 else call.x * beta)  # x is not read then

    return op


def _linear(call: Call) -> Array:
    return nn.linear(call.x, call["weight"], call.get("bias"))


def _attention(call: Call) -> Array:
    q, k, v = (call.array(name) for name in ("query", "key", "value"))
    if call.get("dropout_p", 0.0):
        raise Unsupported("attention with dropout", op=call.name, next_step="Call module.eval() first")
    if call.get("enable_gqa", False) and q.shape[-3] != k.shape[-3]:
        k, v = (mnp.repeat(array, q.shape[-3] // array.shape[-3], axis=-3) for array in (k, v))
    mask = call.get("attn_mask")
    if call.get("is_causal", False):
        rows, columns = mnp.arange(q.shape[-2])[:, None], mnp.arange(k.shape[-2])[None, :]
        mask = columns <= rows
    result = nn.scaled_dot_product_attention(q, k, v, mask, scale=call.get("scale"))
    if call.get("attn_mask") is None:
        return result
    given = call.array("attn_mask")  # torch has 0 for a row that may look nowhere
    seen = mnp.any(given if given.type.dtype is BOOL else given > -math.inf, axis=-1, keepdims=True)
    return mnp.where(seen, result, mnp.zeros_like(result))


def _triangle(function: Callable[..., Array]) -> Op:
    return lambda call: function(call.x, k=int(call.get("diagonal", 0)))


# -- layers -----------------------------------------------------------------------------------------------


def _ints(call: Call, name: str, rank: int) -> tuple[int, ...]:
    numbers = [int(number) for number in (call.get(name) or [])]
    return tuple(numbers * rank if len(numbers) == 1 else numbers)


def _convolution(call: Call) -> Array:
    x, weight = call.x, call.array("weight")
    rank = weight.ndim - 2
    bias, groups = call.get("bias"), int(call.get("groups", 1))
    stride, padding, dilation = (_ints(call, name, rank) for name in ("stride", "padding", "dilation"))
    pairs = [(width, width) for width in padding]
    if not call.get("transposed", False):
        return nn.conv(x, weight, bias, stride=stride, padding=pairs, dilation=dilation, groups=groups)
    return nn.conv_transpose(
        x, weight, bias, stride=stride, padding=pairs, dilation=dilation, groups=groups,
        output_padding=_ints(call, "output_padding", rank),
    )  # fmt: skip


def _max_pool(rank: int, with_places: bool) -> Op:
    def op(call: Call) -> Any:
        kernel = _ints(call, "kernel_size", rank)
        pooled = nn.max_pool(
            call.x, kernel, stride=_ints(call, "stride", rank) or kernel, padding=_ints(call, "padding", rank),
            dilation=_ints(call, "dilation", rank) or 1, ceil_mode=bool(call.get("ceil_mode", False)),
        )  # fmt: skip
        return [pooled, PLACES] if with_places else pooled

    return op


def _adaptive_max_pool(call: Call) -> Any:
    return [
        nn.adaptive_max_pool(call.x, tuple(call["output_size"])),
        PLACES,
    ]


def _avg_pool(rank: int) -> Op:
    def op(call: Call) -> Array:
        kernel = _ints(call, "kernel_size", rank)
        if call.get("divisor_override") is not None:
            raise Unsupported("average pooling with a divisor of its own", op=call.name)
        return nn.avg_pool(
            call.x, kernel, stride=_ints(call, "stride", rank) or kernel, padding=_ints(call, "padding", rank),
            ceil_mode=bool(call.get("ceil_mode", False)), count_include_pad=bool(call.get("count_include_pad", True)),
        )  # fmt: skip

    return op


def _layer_norm(call: Call) -> Any:
    x, axes = call.x, tuple(range(call.x.ndim - len(call["normalized_shape"]), call.x.ndim))
    weight, bias, eps = call.get("weight"), call.get("bias"), float(call.get("eps", 1e-5))
    if len(axes) == 1 and weight is not None and bias is not None:
        normed = nn.layer_norm(x, weight, bias, eps=eps)
    else:
        centred = wide(x) - mnp.mean(wide(x), axis=axes, keepdims=True)
        normed = centred / mnp.sqrt(mnp.mean(centred * centred, axis=axes, keepdims=True) + eps)
        normed = normed if weight is None else normed * weight
        normed = cast(normed if bias is None else normed + bias, x.type.dtype)
    return [normed, None, None] if call.name == "native_layer_norm" else normed


def _rms_norm(call: Call) -> Array:
    x, axes = call.x, tuple(range(call.x.ndim - len(call["normalized_shape"]), call.x.ndim))
    exact = wide(x)
    eps = call.get("eps", float(np.finfo(exact.type.dtype.numpy).eps))
    normed = exact / mnp.sqrt(mnp.mean(exact * exact, axis=axes, keepdims=True) + eps)
    return as_result(call, normed if call.get("weight") is None else normed * call["weight"])


def _group_norm(call: Call) -> Any:
    native = call.name == "native_group_norm"
    groups = int(call["group" if native else "num_groups"])
    normed = nn.group_norm(call.x, groups, call.get("weight"), call.get("bias"), eps=float(call.get("eps", 1e-5)))
    return [normed, None, None] if native else normed


def _batch_norm(call: Call) -> Any:
    if call.get("training", False):
        raise Unsupported("batch norm that learns", op=call.name, next_step="Call module.eval() first")
    normed = nn.batch_norm(
        call.x, call["running_mean"], call["running_var"], call.get("weight"), call.get("bias"),
        eps=float(call.get("eps", 1e-5)),
    )  # fmt: skip
    return normed if call.name == "batch_norm" else [normed, None, None]


def _batch_norm_of_itself(call: Call) -> Any:
    """A batch norm by the statistics of x itself, which nobody keeps: an instance norm is made of it."""
    mean, variance = nn.batch_statistics(call.x)
    normed = nn.batch_norm(call.x, mean, variance, call.get("weight"), call.get("bias"), eps=float(call["eps"]))
    return [cast(normed, call.x.type.dtype), None, None]


def _softmax(function: Callable[..., Array]) -> Op:
    def op(call: Call) -> Array:
        x = as_result(call, call.x)
        return function(x, axis=call.axis()) if x.ndim else function(x[None], axis=0)[0]

    return op


def _dropout(call: Call) -> Array:
    if call.get("train", False) and float(call["p"]):
        raise Unsupported("dropout while training", op=call.name, next_step="Call module.eval() first")
    return call.x


def _steps(call: Call) -> list[float]:
    """How far apart in x, along each axis, the elements of the result lie: by the scales that the module has, else by
    the sizes, which are rounded."""
    sizes, results = call.x.shape[2:], call.shape[2:]
    names = ("scales",) if len(sizes) == 1 else ("scales_h", "scales_w")
    scales = call.get("scale_factors") or [call.get(name) for name in names]
    rows = zip(scales, sizes, results, strict=True)
    return [1 / scale if scale else size / result for scale, size, result in rows]


def _nearest(call: Call) -> Array:
    """Each result takes the element at floor(place * step), of which torch computes in float32."""
    x = call.x
    for axis, (size, step) in enumerate(zip(call.shape[2:], _steps(call), strict=True), 2):
        places = np.floor(np.arange(size, dtype=np.float32) * np.float32(step)).astype(np.int32)
        x = mnp.take(x, mnp.asarray(np.minimum(places, x.shape[axis] - 1)), axis=axis)
    return x


def _bilinear(call: Call) -> Array:
    """Along one axis after the other, as a product with the matrix of weights."""
    x, aligned = call.x, bool(call["align_corners"])
    for axis, (size, step) in enumerate(zip(call.shape[2:], _steps(call), strict=True), 2):
        length = x.shape[axis]
        if aligned:
            at = np.arange(size) * ((length - 1) / max(size - 1, 1))
        else:
            at = np.maximum((np.arange(size) + 0.5) * step - 0.5, 0)
        low = np.minimum(np.floor(at).astype(int), length - 1)
        high, share = np.minimum(low + 1, length - 1), at - low
        weights = np.zeros((size, length), call.dtype)
        np.add.at(weights, (np.arange(size), low), 1 - share)
        np.add.at(weights, (np.arange(size), high), share)
        x = mnp.moveaxis(mnp.matmul(mnp.moveaxis(x, axis, -1), mnp.asarray(weights.T)), -1, axis)
    return x


def _nll_loss(call: Call) -> list[Any]:
    """The loss of log-probabilities (n, classes) or (classes,); reduction 0 none, 1 mean, 2 sum."""
    x, target, ignored = call.x, call.array("target"), int(call.get("ignore_index", -100))
    if x.ndim > 2:
        raise Unsupported("nll_loss of more than one row per sample", op=call.name)
    known = target != ignored
    safe = mnp.where(known, target, mnp.zeros_like(target))
    picked = -mnp.squeeze(mnp.take_along_axis(x, mnp.expand_dims(safe, -1), axis=-1), -1)
    weights = cast(known, x.type.dtype)
    if call.get("weight") is not None:
        weights = weights * mnp.take(call.array("weight"), safe, axis=0)
    total, reduction = mnp.sum(weights), int(call["reduction"])
    losses = picked * weights
    return [losses if reduction == 0 else mnp.sum(losses) / (total if reduction == 1 else 1), total]


def _tensor_split_result(call: Call) -> Any:
    return call["self"][call["index"]]


OPS: dict[str, Op] = {
    **matrices.OPS,
    "__lshift__": _binary(mnp.bitwise_left_shift),
    "__rshift__": _binary(mnp.bitwise_right_shift),
    "_adaptive_avg_pool2d": lambda call: nn.adaptive_avg_pool(call.x, tuple(call["output_size"])),
    "_log_softmax": _softmax(nn.log_softmax),
    "_native_batch_norm_legit": _batch_norm_of_itself,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_softmax": _softmax(nn.softmax),
    "_to_copy": _to,
    "_unsafe_view": _reshape,
    "abs": _unary(mnp.abs),
    "acos": _unary(mnp.acos),
    "acosh": _unary(mnp.acosh),
    "adaptive_avg_pool1d": lambda call: nn.adaptive_avg_pool(call.x, tuple(call["output_size"])),
    "adaptive_avg_pool2d": lambda call: nn.adaptive_avg_pool(call.x, tuple(call["output_size"])),
    "adaptive_max_pool2d": _adaptive_max_pool,
    "add": _added(1),
    "addmm": _addmm("mat1", "mat2"),
    "alias": lambda call: call.x,
    "all": _reduce(mnp.all),
    "amax": _reduce(mnp.max),
    "amin": _reduce(mnp.min),
    "any": _reduce(mnp.any),
    "arange": _arange,
    "argmax": _place(mnp.argmax),
    "argmin": _place(mnp.argmin),
    "asin": _unary(mnp.asin),
    "asinh": _unary(mnp.asinh),
    "atan": _unary(mnp.atan),
    "atan2": _binary(mnp.atan2),
    "atanh": _unary(mnp.atanh),
    "avg_pool1d": _avg_pool(1),
    "avg_pool2d": _avg_pool(2),
    "avg_pool3d": _avg_pool(3),
    "baddbmm": _addmm("batch1", "batch2"),
    "batch_norm": _batch_norm,
    "bitwise_and": _binary(mnp.bitwise_and),
    "bitwise_left_shift": _binary(mnp.bitwise_left_shift),
    "bitwise_not": _unary(mnp.bitwise_invert),
    "bitwise_or": _binary(mnp.bitwise_or),
    "bitwise_right_shift": _binary(mnp.bitwise_right_shift),
    "bitwise_xor": _binary(mnp.bitwise_xor),
    "bmm": _matmul,
    "cat": _cat,
    "ceil": _unary(mnp.ceil),
    "clamp": _clamp,
    "clamp_max": _clamp,
    "clamp_min": _clamp,
    "clone": lambda call: call.x,
    "constant_pad_nd": _pad,
    "convolution": _convolution,
    "copy": lambda call: mnp.broadcast_to(as_result(call, call.array("src")), call.shape),
    "copysign": _binary(mnp.copysign),
    "cos": _unary(mnp.cos),
    "cosh": _unary(mnp.cosh),
    "cumprod": _cumulative(mnp.cumulative_prod),
    "cumsum": _cumulative(mnp.cumulative_sum),
    "detach": lambda call: call.x,
    "diagonal": _diagonal,
    "div": _div,
    "dropout": _dropout,
    "elu": _elu,
    "embedding": lambda call: nn.embedding(call["indices"], call["weight"]),
    "empty": _full(0),
    "empty_like": _full(0),
    "eq": _compare(mnp.equal),
    "erf": _unary(mnp.erf),
    "erfc": _unary(special.erfc),
    "exp": _unary(mnp.exp),
    "exp2": _unary(mnp.exp2),
    "expand": lambda call: mnp.broadcast_to(call.x, call.shape),
    "expm1": _unary(mnp.expm1),
    "flip": lambda call: mnp.flip(call.x, tuple(call["dims"])),
    "floor": _unary(mnp.floor),
    "floor_divide": _binary(mnp.floor_divide),
    "fmod": _fmod,
    "full": _full(),
    "full_like": _full(),
    "gather": indexing.gather,
    "ge": _compare(mnp.greater_equal),
    "gelu": _gelu,
    "getitem": _tensor_split_result,
    "group_norm": _group_norm,
    "gt": _compare(mnp.greater),
    "hardsigmoid": _unary(nn.hard_sigmoid),
    "hardswish": _unary(nn.hard_swish),
    "hardtanh": lambda call: nn.hard_tanh(call.x, float(call.get("min_val", -1)), float(call.get("max_val", 1))),
    "hypot": _binary(mnp.hypot),
    "index": indexing.index,
    "index_put": indexing.index_put,
    "index_select": indexing.index_select,
    "isinf": _unary(mnp.isinf),
    "isnan": _unary(mnp.isnan),
    "layer_norm": _layer_norm,
    "le": _compare(mnp.less_equal),
    "leaky_relu": lambda call: nn.leaky_relu(call.x, float(call.get("negative_slope", 0.01))),
    "lift_fresh_copy": lambda call: call.x,
    "linalg_vector_norm": _norm,
    "linear": _linear,
    "log": _unary(mnp.log),
    "log10": _unary(mnp.log10),
    "log1p": _unary(mnp.log1p),
    "log2": _unary(mnp.log2),
    "log_softmax": _softmax(nn.log_softmax),
    "logical_and": _compare(mnp.logical_and),
    "logical_not": _unary(mnp.logical_not),
    "logical_or": _compare(mnp.logical_or),
    "logical_xor": _compare(mnp.logical_xor),
    "logsumexp": _logsumexp,
    "lt": _compare(mnp.less),
    "masked_fill": _masked_fill,
    "matmul": _matmul,
    "max": _extreme(mnp.max, mnp.argmax, mnp.maximum),
    "max_pool2d_with_indices": _max_pool(2, True),
    "max_pool3d_with_indices": _max_pool(3, True),
    "maximum": _binary(mnp.maximum),
    "mean": _reduce(mnp.mean),
    "median": indexing.median,
    "min": _extreme(mnp.min, mnp.argmin, mnp.minimum),
    "minimum": _binary(mnp.minimum),
    "mish": _unary(nn.mish),
    "mm": _matmul,
    "mul": _multiplied,
    "native_group_norm": _group_norm,
    "native_layer_norm": _layer_norm,
    "ne": _compare(mnp.not_equal),
    "neg": _unary(mnp.negative),
    "new_full": _full(),
    "new_ones": _full(1),
    "new_zeros": _full(0),
    "nll_loss_forward": _nll_loss,
    "ones": _full(1),
    "ones_like": _full(1),
    "permute": _permute,
    "pow": _binary(mnp.pow, "exponent"),
    "prod": _reduce(mnp.prod),
    "reciprocal": _unary(lambda x: 1 / x),
    "relu": _unary(nn.relu),
    "remainder": _binary(mnp.remainder),
    "repeat": _repeat,
    "reshape": _reshape,
    "rms_norm": _rms_norm,
    "roll": _roll,
    "round": lambda call: as_result(call, mnp.round(call.x, int(call.get("decimals", 0)))),
    "rsqrt": _unary(lambda x: 1 / mnp.sqrt(x)),
    "rsub": _rsub,
    "scalar_tensor": lambda call: mnp.full((), call["s"], dtype=call.dtype),
    "scaled_dot_product_attention": _attention,
    "scatter": indexing.scattered("set"),
    "scatter_add": indexing.scattered("add"),
    "scatter_reduce": indexing.scattered("add"),
    "select": _select,
    "sigmoid": _unary(nn.sigmoid),
    "sign": _unary(lambda x: mnp.where(mnp.equal(x, x), mnp.sign(x), mnp.zeros_like(x))),  # that of NaN is 0
    "silu": _unary(nn.silu),
    "sin": _unary(mnp.sin),
    "sinh": _unary(mnp.sinh),
    "slice": _slice,
    "slice_scatter": indexing.slice_scatter,
    "softmax": _softmax(nn.softmax),
    "softplus": _softplus,
    "sort": indexing.sort,
    "split": _split,
    "split_with_sizes": _split,
    "sqrt": _unary(mnp.sqrt),
    "square": _unary(mnp.square),
    "squeeze": _reshape,
    "stack": lambda call: mnp.stack(
        [as_result(call, asarray(tensor)) for tensor in call["tensors"]], axis=int(call["dim"])
    ),
    "std": _variance(True, False),
    "sub": _added(-1),
    "sum": _reduce(mnp.sum),
    "t": lambda call: mnp.matrix_transpose(call.x) if call.x.ndim == 2 else call.x,
    "tan": _unary(mnp.tan),
    "tanh": _unary(mnp.tanh),
    "to": _to,
    "topk": indexing.topk,
    "transpose": _transpose,
    "tril": _triangle(mnp.tril),
    "triu": _triangle(mnp.triu),
    "trunc": _unary(mnp.trunc),
    "unbind": lambda call: list(mnp.unstack(call.x, axis=int(call.get("dim", 0)))),
    "unfold": _unfold,
    "unsqueeze": _reshape,
    "upsample_bilinear2d": _bilinear,
    "upsample_nearest1d": _nearest,
    "upsample_nearest2d": _nearest,
    "var": _variance(False, False),
    "var_mean": _variance(False, True),
    "view": _view,
    "where": _where,
    "zeros": _full(0),
    "zeros_like": _full(0),
}
