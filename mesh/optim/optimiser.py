"""What an optimiser is, and how several make one.

`init(params)` is the first state; `update(gradients, state, params)` gives what to add to the params, and the next
state.  Both are pure, and every state is a pytree of arrays, so a step can be traced and its state put on a mesh.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

from wire.errors import InputError
from wire.ir.dtypes import BF16, F16, F32

from .. import numpy as mnp
from .. import tree
from ..core.array import Array, Operand, weakened
from ..numpy.promotion import asarray, cast
from ..util.argument_checks import value_text
from ..util.missing_names import missing_name_error

P = ParamSpec("P")
SHOWN_MAX = 120


class _Pair(NamedTuple):
    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


class Optimiser(_Pair):
    """A pair of pure functions that turn gradients into updates of params.

    Parameters
    ----------
    init : callable
        `init(params)` gives the first state, a pytree of arrays.
    update : callable
        `update(gradients, state, params)` gives what to add to the params, and the next state.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> downhill = optim.Optimiser(lambda params: (), lambda gradients, state, params: (-gradients, state))
    >>> downhill.update(np.array([2.0]), downhill.init(None), None)[0]
    array([-2.])
    """

    made_by = ""  # the call that made it, for people

    if not TYPE_CHECKING:  # which would take any name then

        def __getattr__(self, name: str) -> Any:
            raise missing_name_error("mesh.optim.Optimiser", name)

    def __repr__(self) -> str:
        return f"<Optimiser: {self.made_by or getattr(self.update, '__name__', 'of functions')}>"


def named_by_call(fn: Callable[P, Optimiser]) -> Callable[P, Optimiser]:
    """`fn`, whose optimisers say by which call they were made."""

    @wraps(fn)
    def call(*args: P.args, **keywords: P.kwargs) -> Optimiser:
        optimiser = fn(*args, **keywords)
        arguments = ", ".join(
            [*map(_value_text, args), *(f"{name}={_value_text(value)}" for name, value in keywords.items())]
        )
        optimiser.made_by = shorten(f"{fn.__name__}({arguments})", SHOWN_MAX, placeholder=" ...")
        return optimiser

    return call


def _value_text(value: Any) -> str:
    if isinstance(value, Optimiser):
        return value.made_by or repr(value)
    if isinstance(value, bool | int | float):
        return repr(value)
    return str(getattr(value, "__name__", type(value).__name__))


@named_by_call
def chain(*parts: Optimiser) -> Optimiser:
    """One optimiser that hands what each part gives to the next.

    Parameters
    ----------
    *parts : Optimiser
        Optimisers in the order in which gradients go through them.

    Returns
    -------
    Optimiser
        Its state is the tuple of the parts' states.

    Raises
    ------
    InputError
        If `update` is called with a state that neither `init` nor `update` gave.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> optimiser = optim.chain(optim.clip_by_value(1.0), optim.scale(-0.1))
    >>> gradients = np.array([5.0, -0.5])
    >>> updates, state = optimiser.update(gradients, optimiser.init(gradients))
    >>> np.round(updates, 3)
    array([-0.1 ,  0.05])
    """

    def init(params: Any) -> Any:
        return tuple([part.init(params) for part in parts])

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if not isinstance(state, tuple | list) or len(state) != len(parts):
            raise InputError(
                f"the state of an optimiser is what its init or update gave, not {value_text(state)}",
                next_step="Begin with init(params)",
            )
        states = []
        for part, own in zip(parts, state, strict=True):
            gradients, after = part.update(gradients, own, params)
            states.append(after)
        return gradients, tuple(states)

    return Optimiser(init, update)


def apply_updates(params: Any, updates: Any) -> Any:
    """Add what an optimiser gave to the params.

    Parameters
    ----------
    params : pytree of Array
        The params.
    updates : pytree of Array
        The first result of `Optimiser.update`, of the same structure.

    Returns
    -------
    pytree of Array
        The new params, in the dtypes of the old ones.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> optim.apply_updates({"w": np.ones(2, np.float16)}, {"w": np.array([1.0, -1.0])})
    {'w': Array([2., 0.], dtype=float16)}
    """
    return tree.map(_moved, params, updates)


def global_norm(values: Any) -> Array:
    """The root of the sum of the squares of all elements of all leaves.

    Parameters
    ----------
    values : pytree of Array
        Gradients, for example.

    Returns
    -------
    Array
        A number, float32 at least.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> print(optim.global_norm({"w": np.array([3.0]), "b": np.array([4.0])}))
    Array(5., dtype=float64)
    """
    return mnp.sqrt(sum([sum_of_squares(leaf) for leaf in tree.leaves(values)], mnp.asarray(0.0)))


def sum_of_squares(value: Operand) -> Array:
    """The sum of the squares of all elements, as float32 at least.

    It is a product of the array with itself, so that the squares are written nowhere; of complex numbers with their
    conjugates.
    """
    values = wide(value)
    axes = (range(values.ndim), range(values.ndim))
    if values.type.dtype.kind == "c":
        return mnp.real(mnp.tensordot(mnp.conj(values), values, axes))
    return mnp.tensordot(values, values, axes)


def stateless(change: Callable[[Any, Any], Any]) -> Optimiser:
    """The optimiser whose update is `change(gradients, params)`."""
    return Optimiser(lambda params: (), lambda gradients, state, params=None: (change(gradients, params), state))


def wide(value: Operand) -> Array:
    """An Array of at least float32: moments and norms of narrow numbers are made in it."""
    array = asarray(value)
    return cast(array, F32) if array.type.dtype in (F16, BF16) else array


def zeros_for(params: Any) -> Any:
    """A moment of 0 for each param."""
    return tree.map(lambda leaf: mnp.zeros_like(wide(leaf)), params)


def real_zeros_for(params: Any) -> Any:
    """A moment of 0 for the squared size of each param, which is real where the param is complex."""
    return tree.map(lambda leaf: mnp.zeros_like(mnp.real(wide(leaf))), params)


def weight_of(decay: float, steps: Array) -> Array:
    """1 - decay^steps: how much a running mean that began with 0 weighs; exact where the power is nearly 1."""
    if decay == 0:
        return mnp.positive(1.0)
    return -mnp.expm1(counted(steps) * math.log(decay))


def counted(steps: Operand) -> Array:
    """A number of steps among Python's floats: like them it adapts to the dtype of what it is multiplied with."""
    return weakened(cast(asarray(steps), F32), True)


def needed(params: Any, asker: str) -> Any:
    """The params; InputError if they were not given."""
    if params is None:
        raise InputError(f"{asker} needs the params", next_step="Call update(gradients, state, params)")
    return params


def _moved(param: Operand, update: Operand) -> Array:
    own = asarray(param)
    return cast(wide(own) + asarray(update), own.type.dtype)
