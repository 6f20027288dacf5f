"""Pooling over the last axes of an array, whatever stands before them.

A window is the product of its spans along each axis, so one axis is pooled after the other: by a reduction where
windows do not overlap, by as many strided slices as the kernel is long elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from wire.errors import ShapeError

from .. import numpy as mnp
from ..core.array import Array, Operand, apply, value_array
from ..numpy.promotion import asarray, cast, extreme, floats, scalar
from ..util.annotation_checks import checked
from ..util.argument_checks import integer, items, native
from .precision import wide
from .windows import Pair, count, extents, pads, per_axis

Ints = int | Sequence[int]
Reduce = Callable[..., Array]
Combine = Callable[[Any, Any], Array]


@checked
def max_pool(
    x: Operand, kernel: Ints, *, stride: Ints | None = None, padding: Any = 0, dilation: Ints = 1,
    ceil_mode: bool = False,
) -> Array:  # fmt: skip
    """The largest value of each window.

    Parameters
    ----------
    x : array_like, (..., *dims)
        The values; what stands before the last axes stays.
    kernel : int or sequence of int
        The sizes of a window along the last axes; an int is for all axes but two.
    stride : int or sequence of int, optional
        The distance of neighbouring windows, the kernel's size by default.
    padding : int, sequence or {"same", "same_lower", "valid"}, optional
        Zeros around x: one int, an int or a pair (before, after) per axis, or a rule.
    dilation : int or sequence of int, optional
        The distance of a window's neighbouring elements.
    ceil_mode : bool, optional
        Whether a last window may end past the padding.

    Returns
    -------
    Array
        One value per window, (..., *windows).

    Raises
    ------
    ShapeError
        If a window does not fit, or the kernel has more axes than x.

    Notes
    -----
    Padding is smaller than every value.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.max_pool(np.array([[[1.0, 5.0, 2.0, 3.0]]]), 2)
    Array([[[5., 3.]]], dtype=float64)
    """
    array = asarray(x)
    places = _Places(array, kernel, stride, padding, dilation, ceil_mode)
    return places.pooled(array, extreme(array.type.dtype, high=False), mnp.max, mnp.maximum)


@checked
def avg_pool(
    x: Operand, kernel: Ints, *, stride: Ints | None = None, padding: Any = 0, dilation: Ints = 1,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Array:  # fmt: skip
    """The mean of each window.

    Parameters
    ----------
    x : array_like, (..., *dims)
        The values; what stands before the last axes stays.
    kernel : int or sequence of int
        The sizes of a window along the last axes; an int is for all axes but two.
    stride : int or sequence of int, optional
        The distance of neighbouring windows, the kernel's size by default.
    padding : int, sequence or {"same", "same_lower", "valid"}, optional
        Zeros around x: one int, an int or a pair (before, after) per axis, or a rule.
    dilation : int or sequence of int, optional
        The distance of a window's neighbouring elements.
    ceil_mode : bool, optional
        Whether a last window may end past the padding.
    count_include_pad : bool, optional
        Whether padding counts as elements of value 0.

    Returns
    -------
    Array
        One value per window, (..., *windows).

    Raises
    ------
    ShapeError
        If a window does not fit, or the kernel has more axes than x.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.avg_pool(np.array([[[1.0, 5.0, 2.0, 3.0]]]), 2)
    Array([[[3. , 2.5]]], dtype=float64)
    """
    (array,) = floats(x)
    places = _Places(array, kernel, stride, padding, dilation, ceil_mode)
    total = places.pooled(wide(array), 0, mnp.sum, mnp.add)
    return cast(total / places.counts(total, array.shape, count_include_pad), array.type.dtype)


@checked
def lp_pool(
    x: Operand, p: float, kernel: Ints, *, stride: Ints | None = None, padding: Any = 0, dilation: Ints = 1,
    ceil_mode: bool = False,
) -> Array:  # fmt: skip
    """The p-norm of each window, `sum(|x|**p)**(1 / p)`.

    Parameters
    ----------
    x : array_like, (..., *dims)
        The values; what stands before the last axes stays.
    p : float
        The exponent.
    kernel : int or sequence of int
        The sizes of a window along the last axes; an int is for all axes but two.
    stride : int or sequence of int, optional
        The distance of neighbouring windows, the kernel's size by default.
    padding : int, sequence or {"same", "same_lower", "valid"}, optional
        Zeros around x: one int, an int or a pair (before, after) per axis, or a rule.
    dilation : int or sequence of int, optional
        The distance of a window's neighbouring elements.
    ceil_mode : bool, optional
        Whether a last window may end past the padding.

    Returns
    -------
    Array
        One value per window, (..., *windows).

    Raises
    ------
    ShapeError
        If a window does not fit, or the kernel has more axes than x.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.lp_pool(np.array([[[3.0, 4.0, 0.0, 2.0]]]), 2, 2)
    Array([[[5., 2.]]], dtype=float64)
    """
    (array,) = floats(x)
    places = _Places(array, kernel, stride, padding, dilation, ceil_mode)
    wider = wide(array)
    powers = mnp.square(wider) if p == 2 else mnp.pow(mnp.abs(wider), p)
    total = places.pooled(powers, 0, mnp.sum, mnp.add)
    return cast(mnp.sqrt(total) if p == 2 else mnp.pow(total, 1 / p), array.type.dtype)


@checked
def adaptive_avg_pool(x: Operand, output: Ints) -> Array:
    """The means of windows that are chosen so that the last axes get the lengths in `output`.

    Parameters
    ----------
    x : array_like, (..., *dims)
        The values; what stands before the last axes stays.
    output : int or sequence of int
        The lengths that the last axes get; an int is for all axes but two.

    Returns
    -------
    Array
        The means, (..., *output).

    Raises
    ------
    ShapeError
        If there are more lengths than axes.
    InputError
        If a length is less than 1.

    Notes
    -----
    Window i of n over an axis goes from `floor(i * dim / n)` to `ceil((i + 1) * dim / n)`.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.adaptive_avg_pool(np.array([[[1.0, 2.0, 6.0]]]), 2)
    Array([[[1.5, 4. ]]], dtype=float64)
    """
    (array,) = floats(x)
    return _adaptive(array, output, mnp.mean)


@checked
def adaptive_max_pool(x: Operand, output: Ints) -> Array:
    """The largest values of windows that are chosen so that the last axes get the lengths in `output`.

    Parameters
    ----------
    x : array_like, (..., *dims)
        The values; what stands before the last axes stays.
    output : int or sequence of int
        The lengths that the last axes get; an int is for all axes but two.

    Returns
    -------
    Array
        The largest values, (..., *output).

    Raises
    ------
    ShapeError
        If there are more lengths than axes.
    InputError
        If a length is less than 1.

    Notes
    -----
    The windows are those of `adaptive_avg_pool`.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.adaptive_max_pool(np.array([[[1.0, 2.0, 6.0]]]), 2)
    Array([[[2., 6.]]], dtype=float64)
    """
    return _adaptive(asarray(x), output, mnp.max)


def global_avg_pool(x: Operand) -> Array:
    """The mean of each channel over all of its dims.

    Parameters
    ----------
    x : array_like, (n, channels, *dims)
        The values.

    Returns
    -------
    Array
        The means, (n, channels, 1, ...).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.global_avg_pool(np.array([[[1.0, 2.0, 6.0]]]))
    Array([[[3.]]], dtype=float64)
    """
    (array,) = floats(x)
    return mnp.mean(array, tuple(range(2, array.ndim)), keepdims=True)


def global_max_pool(x: Operand) -> Array:
    """The largest value of each channel over all of its dims.

    Parameters
    ----------
    x : array_like, (n, channels, *dims)
        The values.

    Returns
    -------
    Array
        The largest values, (n, channels, 1, ...).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.global_max_pool(np.array([[[1.0, 2.0, 6.0]]]))
    Array([[[6.]]], dtype=float64)
    """
    array = asarray(x)
    return mnp.max(array, tuple(range(2, array.ndim)), keepdims=True)


class _Places:
    """The windows of one pooling: where they lie along the last axes."""

    def __init__(
        self, x: Array, kernel: Ints, stride: Ints | None, padding: Any, dilation: Ints, ceil_mode: bool
    ) -> None:
        kernel = native(kernel)
        rank = x.ndim - 2 if isinstance(kernel, int) else len(items(kernel, "as kernel an int or"))
        if not 1 <= rank <= x.ndim:
            raise ShapeError(f"a kernel {kernel} pools {rank} axes of {x.shape}")
        dims = x.shape[-rank:]
        self.first = x.ndim - rank
        self.kernel = per_axis(kernel, rank, "kernel")
        self.stride = self.kernel if stride is None else per_axis(stride, rank, "stride")
        self.dilation = per_axis(dilation, rank, "dilation")
        if min((*self.kernel, *self.stride, *self.dilation)) < 1:
            raise ShapeError(f"kernel, stride and dilation are at least 1, got {kernel}, {stride} and {dilation}")
        self.spans = extents(self.kernel, self.dilation)
        self.pads = pads(padding, dims, self.spans, self.stride)
        rows = zip(dims, self.spans, self.stride, self.pads, strict=True)
        self.counted = [count(*row, ceil_mode) for row in rows]

    def pooled(self, x: Array, fill: float, whole: Reduce, combine: Combine) -> Array:
        for place in range(len(self.kernel)):
            x = self._along(x, place, fill, whole, combine)
        return x

    def counts(self, like: Array, shape: Sequence[int], with_padding: bool) -> Array:
        """How many elements of an array of `shape` each window has, as `like`: one number, or an array of windows."""
        lines = []
        for place, dim in enumerate(shape[self.first :]):
            low, high = self.pads[place] if with_padding else (0, 0)
            start = np.arange(self.counted[place])[:, None] * self.stride[place] - self.pads[place][0]
            at = start + np.arange(self.kernel[place]) * self.dilation[place]
            lines.append(np.maximum(((at >= -low) & (at < dim + high)).sum(1), 1))
        if all((line == line[0]).all() for line in lines):
            return scalar(float(math.prod(int(line[0]) for line in lines)), like.type.dtype)
        rank = len(lines)
        shaped = [
            line.reshape([-1 if axis == place else 1 for axis in range(rank)]) for place, line in enumerate(lines)
        ]
        return reduce(mnp.multiply, [value_array(line.astype(like.type.dtype.numpy)) for line in shaped])

    def _along(self, x: Array, place: int, fill: float, whole: Reduce, combine: Combine) -> Array:
        axis, size, step, reach = self.first + place, self.kernel[place], self.stride[place], self.dilation[place]
        places, dim = self.counted[place], x.shape[axis]
        needed = (places - 1) * step + self.spans[place]
        low, high = self.pads[place][0], needed - dim - self.pads[place][0]
        if low or high > 0:
            x = _padded(x, axis, (low, max(high, 0)), fill)
        if reach == 1 and (size == step or places == 1):
            x = _cut(x, axis, 0, needed, 1)
            return whole(x.reshape(*x.shape[:axis], places, size, *x.shape[axis + 1 :]), axis=axis + 1)
        parts = [_cut(x, axis, at * reach, at * reach + (places - 1) * step + 1, step) for at in range(size)]
        return reduce(combine, parts)


def _adaptive(x: Array, output: Ints, whole: Reduce) -> Array:
    output = native(output)
    entries = (output,) * (x.ndim - 2) if isinstance(output, int) else items(output, "as output an int or")
    wanted = [integer(entry, "the size of an output", 1) for entry in entries]
    if not 1 <= len(wanted) <= x.ndim:
        raise ShapeError(f"adaptive pooling of {x.shape} to {output}: one length for each of the last axes")
    for place, target in enumerate(wanted):
        axis = x.ndim - len(wanted) + place
        dim = x.shape[axis]
        if dim % target == 0:
            x = whole(x.reshape(*x.shape[:axis], target, dim // target, *x.shape[axis + 1 :]), axis=axis + 1)
            continue
        ends = [(at * dim // target, -(-(at + 1) * dim // target)) for at in range(target)]
        x = mnp.concat([whole(_cut(x, axis, *end, 1), axis=axis, keepdims=True) for end in ends], axis=axis)
    return x


def _padded(x: Array, axis: int, pair: Pair, fill: float) -> Array:
    low, high = (tuple([pair[side] if place == axis else 0 for place in range(x.ndim)]) for side in (0, 1))
    return apply("pad", x, scalar(fill, x.type.dtype), low=low, high=high, interior=(0,) * x.ndim)


def _cut(x: Array, axis: int, start: int, stop: int, step: int) -> Array:
    if (start, stop, step) == (0, x.shape[axis], 1):
        return x
    starts = tuple([start if place == axis else 0 for place in range(x.ndim)])
    stops = tuple([stop if place == axis else dim for place, dim in enumerate(x.shape)])
    return apply("slice", x, start=starts, stop=stops, step=tuple([step if p == axis else 1 for p in range(x.ndim)]))
