"""Realisation: how the value of an Array is made when someone looks.

The pending expressions become one WireGraph, whose inputs are the values at its leaves, and the current evaluator
computes it.  The default evaluator is the in-process cpu engine; a mesh in use sets itself:

    with using(evaluator): ...          # or installed = set_evaluator(evaluator); reset_evaluator(installed)

The slot is a context variable, so threads and tasks do not see each other's mesh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError
from wire.ir.graph import GraphBuilder
from wire.ir.verify import check_bound

from ..util.annotation_checks import instance
from ..util.argument_checks import items
from .array import Array
from .backend import Work
from .expression import Tensor, pending, traced_argument
from .graph_assembly import assemble
from .handle import Handle
from .multi_output import siblings_of


class Evaluator(Protocol):
    def __call__(self, work: Work, inputs: Mapping[str, NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """The outputs of the work's graph, in order; inputs are given by name, each in C order."""
        ...


@dataclass(eq=False, slots=True)
class Installed:
    """An evaluator that computes values until it is `over`; then the one `before` does again."""

    evaluator: Evaluator | None  # None: in this process
    before: Installed | None
    over: bool = False
    token: Token[Installed | None] | None = None


_CURRENT: ContextVar[Installed | None] = ContextVar("mesh_evaluator", default=None)
SETTLED_ELEMENTS_MAX = 64
HISTORY_NODES_MAX = 100  # of the expression of a number that has more elements, or handles, before it is computed
NODES_PER_RUN = 20_000  # a longer expression is computed in several runs; a graph may not have more than 100k nodes


def current_evaluator() -> Evaluator:
    """The evaluator that computes values now."""
    installed = _CURRENT.get()
    while installed is not None and installed.over:
        installed = installed.before
    if installed is None or installed.evaluator is None:
        from .inprocess import evaluate

        return evaluate
    return installed.evaluator


def set_evaluator(evaluator: Evaluator | None) -> Installed:
    """Let `evaluator` compute values from now on (None: in this process); what is returned undoes it."""
    installed = Installed(evaluator, _CURRENT.get())
    installed.token = _CURRENT.set(installed)
    return installed


def reset_evaluator(installed: Installed) -> None:
    """Undo `set_evaluator`, from any context: a context variable can be reset only in the one that it was set in."""
    installed.over, installed.evaluator = True, None
    if installed.token is not None:
        with suppress(ValueError):
            _CURRENT.reset(installed.token)


@contextmanager
def using(evaluator: Evaluator | None) -> Iterator[None]:
    """Compute values by `evaluator` within the block."""
    token = set_evaluator(evaluator)
    try:
        yield
    finally:
        reset_evaluator(token)


def realise(arrays: Sequence[Array], asker: str = "its value") -> None:
    """Compute the values of several arrays together, by one graph, and keep them.

    Parameters
    ----------
    arrays : sequence of Array
        What to compute.  Arrays whose values are known already cost nothing.
    asker : str, optional
        What needs the values, as error messages name it.

    Raises
    ------
    InputError
        If one of them depends on an argument of a function that is being traced.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> x = mnp.arange(3.0)
    >>> total, mean = x.sum(), x.mean()
    >>> mesh.realise([total, mean])
    >>> total, mean
    (Array(3., dtype=float32), Array(1., dtype=float32))
    """
    for array in items(arrays, "what is realised together is several Arrays: as them"):
        instance(array, "what is realised", Array, "an Array")
    tensors = [array.tensor for array in arrays]
    tensors += [other for tensor in tensors if tensor.value is None for other in siblings_of(tensor)]
    order = pending(tensors)
    for node in order:
        name = traced_argument(node)
        if name is not None:
            _refuse_traced(asker, name, node)
    _compute_in_runs(tensors, order, current_evaluator())
    _settle([tensor.wide for tensor in tensors if tensor.wide is not None])


def _settle(numbers: Sequence[Tensor]) -> None:
    """Compute Python's numbers in 64 bits too: else their expressions would be kept for ever.  Few are computed in this
    process at once."""
    few, grown = list[Tensor](), list[Tensor]()
    for number in numbers:
        history = [] if number.value is not None else pending([number])
        if len(history) > HISTORY_NODES_MAX:
            grown.append(number)
        elif history and number.type.size <= SETTLED_ELEMENTS_MAX and not any(map(_is_handle, history)):
            few.append(number)
    if grown:
        _compute_in_runs(grown, pending(grown), current_evaluator())
    if few:
        from .inprocess import evaluate

        _compute(few, evaluate)


def _compute_in_runs(
    tensors: Sequence[Tensor], order: Sequence[Tensor], evaluator: Evaluator, nodes_per_run: int = NODES_PER_RUN
) -> None:
    """Compute `tensors`, of which `order` is all that is pending, by graphs of bounded length."""
    wanted = {id(tensor) for tensor in tensors}
    for first in range(0, len(order), nodes_per_run):
        run = order[first : first + nodes_per_run]
        later = order[first + nodes_per_run :]
        needed = wanted | {id(operand) for node in later for operand in _operands(node)}
        missing = [node for node in run if id(node) in needed and node.value is None]
        if missing:
            _compute(missing, evaluator)


def _compute(wanted: Sequence[Tensor], evaluator: Evaluator) -> None:
    builder = GraphBuilder()
    inputs: dict[str, NDArray[Any]] = {}
    params: dict[str, Handle] = {}

    def leaf(tensor: Tensor) -> int:
        expression, value = tensor.expression, tensor.value
        if value is None:
            assert expression is not None
            assert expression.handle is not None
            name = f"p{len(params)}"
            params[name] = expression.handle
            return builder.param(name, tensor.type.shape, tensor.type.dtype)
        if expression is not None and expression.op == "const":
            return builder.const(value)
        name = f"x{len(inputs)}"
        inputs[name] = value
        return builder.input(name, tensor.type.shape, tensor.type.dtype)

    distinct = list({id(tensor): tensor for tensor in wanted}.values())
    outputs = assemble(builder, distinct, leaf)
    graph = builder.build(outputs)
    check_bound(graph)
    used = graph.param_types
    work = Work(graph, {name: params[name] for name in params if name in used}, "auto")
    results = evaluator(work, inputs)
    for tensor, result in zip(distinct, results, strict=True):
        keep(tensor, result)


def keep(tensor: Tensor, result: NDArray[Any]) -> None:
    """Store a computed value in place of the expression, so that its operands can be freed."""
    fixed = np.asarray(result, tensor.type.dtype.numpy, order="C").reshape(tensor.type.shape)
    fixed.flags.writeable = False
    tensor.value = fixed  # first: a reader that still sees the expression is right as well
    tensor.expression = None


def _is_handle(node: Tensor) -> bool:
    return node.expression is not None and node.expression.handle is not None


def _operands(node: Tensor) -> tuple[Tensor, ...]:
    expression = node.expression
    return () if expression is None else expression.needs


def _refuse_traced(asker: str, name: str, node: Tensor) -> NoReturn:
    raise InputError(
        f"{asker} needs the value of {name!r} ({node.type}), which has none while its function is traced",
        next_step=_INSTEAD.get(asker, _ELSE),
    )


_ELSE = "Keep it as an array, use the function of that name in mesh.numpy, and look at values outside of the function"
_INSTEAD = {
    "a coded layer": "Call the coded model itself with values, outside of run, compile, grad and other transforms",
    "if, while, and, or, not, or bool()": "Use mnp.where(condition, a, b), and & | ~ in place of and, or, not",
    "float()": "Leave it an array; 0-d arrays work wherever scalars do",
    "int()": "Leave it an array (x.astype('int32')); shapes and axes must be Python ints known in advance",
    "item()": "Leave it an array; 0-d arrays work wherever scalars do",
    "an index or range()": "Index with the array (x[i]) or mnp.take; slice bounds and shapes must be Python ints",
    "np.asarray()": "Use the function of that name in mesh.numpy in place of numpy's",
    "a boolean mask": "The shape would depend on values: use mnp.where(mask, x, fill), or x[mask] = v",
    "nonzero": "The result's shape would depend on values: use mnp.where(condition, a, b)",
}
