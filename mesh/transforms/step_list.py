"""Inner functions: what every transform does first, and what structure ops keep of the functions they are given.

A transform runs its function once, on fresh arguments that have a type but no value, and then reads the expressions
between the function's results and those arguments: `steps`.  Whatever does not depend on the arguments is a constant,
be it a value, a handle or an argument of an outer function; so transforms nest and close over anything.

    inner = run(fn, types)           # Inner: fresh arguments and the results made of them
    inner.call(*arrays)              # the same expressions on other operands
    captured_by(inner)               # what else the function refers to; inner.taking(...) makes arguments of it
    call_graph(graph, *arrays)       # a WireGraph's nodes on operands

This file knows no rule of any op.  Every walk is iterative and linear in what the function did: what is older than its
arguments is never entered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from wire.errors import InputError, ShapeError
from wire.ir.dtypes import I32
from wire.ir.graph import GraphBuilder, WireGraph, const_value
from wire.ir.types import Attrs, TensorType
from wire.limits import DEFAULT

from ..core.array import Array, argument, literal, made_of, value_array
from ..core.expression import Expression, Tensor, traced_argument, tracing
from ..core.graph_assembly import assemble

Function = Callable[..., Sequence[Array]]
"""What transforms work on: arrays to a list of arrays."""

Environment = dict[int, Array]
"""What stands for a Tensor, by its id."""


class Step(NamedTuple):
    """One operation of an inner function, with all the results that are used.

    `outputs` are places and Tensors; an op with one result has it at place 0.  `attrs` are without the attribute
    `output`.
    """

    op: str
    inputs: tuple[Tensor, ...]
    attrs: Attrs
    outputs: list[tuple[int, Tensor]]
    mark: Mark | None = None


class Mark(Protocol):
    """An op that only transforms see: its results are those of other ops, and it brings its rules along.

    The rules are those of a row `Whole` in the tables.
    """

    name: str

    def reapply(self, *inputs: Array) -> list[Array]:
        """The marked results, of other operands of the same types."""
        ...

    def vjp(self, inputs: list[Array], needs_grad: Sequence[bool]) -> tuple[list[Array], Any]: ...

    def jvp(self, inputs: list[Array], tangents: Sequence[Array | None]) -> tuple[list[Array], list[Array | None]]: ...

    def vmap(self, size: int, inputs: list[Array], batched: Sequence[bool]) -> tuple[list[Array], list[bool]]: ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A rule that makes the step's results itself, all of them."""

    rule: Callable[..., Any]


class Inner:
    """A function that was run once: Tensors its arguments, and Tensors its results."""

    __slots__ = ("__weakref__", "_steps", "arguments", "born", "outputs")

    def __init__(self, arguments: Sequence[Tensor], outputs: Sequence[Tensor], born: int) -> None:
        self.arguments = tuple(arguments)
        self.outputs = tuple(outputs)
        self.born = born  # nothing older depends on the arguments
        self._steps: list[Step] | None = None

    @property
    def steps(self) -> list[Step]:
        """What happens to the arguments, operands first."""
        if self._steps is None:
            self._steps = _steps(self.arguments, self.outputs, self.born)
        return self._steps

    def call(self, *arrays: Array) -> list[Array]:
        """The function of other operands, which must have the arguments' types."""
        environment = self.bind(arrays)
        for step in self.steps:
            for (_, tensor), result in zip(
                step.outputs, rebuilt(step, looked_up(step.inputs, environment)), strict=True
            ):
                environment[id(tensor)] = result
        return looked_up(self.outputs, environment)

    def bind(self, arrays: Sequence[Array]) -> Environment:
        """The environment in which the arguments are `arrays`."""
        check_types(arrays, [tensor.type for tensor in self.arguments])
        return {id(tensor): array for tensor, array in zip(self.arguments, arrays, strict=True)}

    @property
    def needed_wide(self) -> set[int]:
        """The places of arguments, Python's numbers all of them, that the results need in 64 bits."""
        wide = {id(tensor.wide): place for place, tensor in enumerate(self.arguments) if tensor.wide is not None}
        if not wide:
            return set()
        reached = _reached(self.outputs, (), self.born, _both)
        met = [*self.outputs, *[operand for _, expression in reached for operand in _both(expression)]]
        return {wide[id(tensor)] for tensor in met if id(tensor) in wide}

    def widened(self, places: Collection[int]) -> Inner:
        """The steps with the arguments at these places in 64 bits; what is narrower is made of them."""
        arguments = list(self.arguments)
        for place in places:
            narrow, wide = arguments[place], arguments[place].wide
            assert wide is not None, "an argument that is no Python number"
            narrow.expression = Expression("cast", (wide,), Attrs({"dtype": narrow.type.dtype.name}))
            arguments[place] = wide
        return Inner(arguments, self.outputs, self.born)

    def taking(self, captured: Sequence[Tensor]) -> Inner:
        """The steps with `captured`, what else they refer to, as further arguments."""
        return Inner((*self.arguments, *captured), self.outputs, self.born)

    def graph(self, output_names: Sequence[str] | None = None) -> WireGraph:
        """The function as a graph with inputs "0", "1", ...; it remembers this Inner as its `origin`.

        InputError if it refers to a tensor that is neither small nor an argument.
        """
        builder = GraphBuilder()
        placed = {
            id(tensor): builder.input(str(place), tensor.type.shape, tensor.type.dtype)
            for place, tensor in enumerate(self.arguments)
        }
        graph = builder.build(assemble(builder, self.outputs, partial(_constant, builder), placed), output_names)
        return replace(graph, origin=self)


def run(
    fn: Function,
    types: Sequence[TensorType],
    weak: Sequence[bool] = (),
    names: Sequence[str] = (),
    widens: bool = False,
) -> Inner:
    """`fn` on fresh arguments of these types; `names` are for errors that speak of one.

    Where it `widens`, the caller asks the Inner which of Python's numbers (`weak`) it needs in 64 bits.
    """
    weak = weak or [False] * len(types)
    names = names or [str(place) for place in range(len(types))]
    with tracing():
        born = literal(0, I32).tensor.born
        fresh = [
            argument("input", name, type, soft, soft and widens)
            for name, type, soft in zip(names, types, weak, strict=True)
        ]
        tensors = [array.tensor for array in fresh]  # before `fn`, which may give the names to other tensors
        return Inner(tensors, [array.tensor for array in fn(*fresh)], born)


def run_like(fn: Function, arrays: Sequence[Array], names: Sequence[str] = ()) -> Inner:
    """`fn` on fresh arguments of the types of `arrays`."""
    return run(fn, [array.type for array in arrays], [array.weak for array in arrays], names)


def call_graph(graph: WireGraph, *arrays: Array) -> list[Array]:
    """The outputs of `graph`, a graph without params, with `arrays` for its inputs."""
    if isinstance(graph.origin, Inner):
        return graph.origin.call(*arrays)
    check_types(arrays, [graph.types[node] for node in graph.inputs])
    following = iter(arrays)
    values: list[Array] = []
    for node, type in zip(graph.nodes, graph.types, strict=True):
        if node.op == "input":
            values.append(next(following))
        elif node.op == "const":
            value = const_value(node, graph.blobs)
            values.append(literal(value, type.dtype) if "data" in node.attrs else value_array(value))
        else:
            inputs = tuple([values[place].tensor for place in node.inputs])
            values.append(Array(Tensor(Expression(node.op, inputs, node.attrs), type)))
    return [values[place] for place in graph.outputs]


def looked_up(tensors: Sequence[Tensor], environment: Mapping[int, Array]) -> list[Array]:
    """What stands for each Tensor: itself if nothing else does."""
    return [environment[id(tensor)] if id(tensor) in environment else Array(tensor) for tensor in tensors]


def rebuilt(step: Step, inputs: Sequence[Array]) -> list[Array]:
    """The step's results, of other operands of the same types."""
    if step.mark is not None:
        results = step.mark.reapply(*inputs)
        return [results[place] for place, _ in step.outputs]
    tensors = tuple([array.tensor for array in inputs])
    return [
        made_of(Expression(step.op, tensors, _with_output(step, place)), tensor.type, tensor.weak)
        for place, tensor in step.outputs
    ]


def check_types(arrays: Sequence[Array], types: Sequence[TensorType]) -> None:
    """Raise ShapeError unless `arrays` are of these types."""
    actual = [array.type for array in arrays]
    if actual != list(types):
        raise ShapeError(f"expected ({', '.join(map(str, types))}), got ({', '.join(map(str, actual))})")


def marked(mark: Mark, inputs: Sequence[Array], results: Sequence[Array]) -> list[Array]:
    """`results` as they are, which transforms take for those of `mark` of `inputs`."""
    tensors = tuple([array.tensor for array in inputs])
    results_marked = []
    for place, result in enumerate(results):
        attrs = Attrs({MARK: mark, OUTPUT: place})
        expression = Expression(mark.name, tensors, attrs, None, result.tensor)
        results_marked.append(Array(Tensor(expression, result.type, result.weak, None, result.tensor.wide)))
    return results_marked


OUTPUT = "output"  # the attribute that says which of several results a node is
MARK = "mark"
CAPTURED_BYTES_MIN = 256  # a value below this is part of the program
CONSTANT_STEPS_MAX = 32


# -- the walks --------------------------------------------------------------------------------------------


def _steps(arguments: Sequence[Tensor], outputs: Sequence[Tensor], born: int) -> list[Step]:
    depends = {id(tensor) for tensor in arguments}
    steps: list[Step] = []
    several: dict[Any, Step] = {}
    for tensor, expression in _reached(outputs, depends, born, lambda expression: expression.inputs):
        if not any(id(operand) in depends for operand in expression.inputs):
            continue
        depends.add(id(tensor))
        if OUTPUT not in expression.attrs:
            steps.append(Step(expression.op, expression.inputs, expression.attrs, [(0, tensor)]))
            continue
        attrs = Attrs({name: value for name, value in expression.attrs.items() if name not in (OUTPUT, MARK)})
        mark = expression.attrs.get(MARK)
        operands = [id(operand) for operand in expression.inputs]
        key = (expression.op, id(mark), *operands, *map(_identity, attrs.values()))
        if key not in several:
            several[key] = Step(expression.op, expression.inputs, attrs, [], mark)
            steps.append(several[key])
        several[key].outputs.append((expression.attrs[OUTPUT], tensor))
    return steps


def _reached(
    outputs: Sequence[Tensor],
    arguments: Collection[int],
    born: int,
    below: Callable[[Expression], tuple[Tensor, ...]],
    again: Callable[[Tensor], bool] = lambda tensor: False,
) -> Iterator[tuple[Tensor, Expression]]:
    """Every expression from `outputs` down to the arguments and to what is older than `born`, operands first."""
    seen = set(arguments)
    alive: list[Tensor] = []  # another thread may realise and drop parts meanwhile; ids must stay taken
    stack: list[tuple[Tensor, Expression | None]] = [(tensor, None) for tensor in reversed(outputs)]
    while stack:
        tensor, ready = stack.pop()
        if ready is not None:
            yield tensor, ready
            continue
        expression = tensor.expression
        if id(tensor) in seen or expression is None or tensor.value is not None:
            continue
        if tensor.born < born and not again(tensor):
            continue
        seen.add(id(tensor))
        alive.append(tensor)
        stack.append((tensor, expression))
        stack.extend([(operand, None) for operand in reversed(below(expression))])


def captured_by(*inners: Inner, again: Callable[[Tensor], bool] = lambda tensor: False) -> list[Tensor]:
    """What else the functions refer to: older Tensors, tensors on the mesh, and large values.

    Older Tensors that are made `again` inside are not among it, but what they are made of.
    """
    captured: dict[int, Tensor] = {}
    for inner in inners:
        own = {id(tensor) for tensor in inner.arguments}
        reached = _reached(inner.outputs, own, inner.born, _both, again)
        for tensor in (*inner.outputs, *[operand for _, expression in reached for operand in _both(expression)]):
            older = tensor.born < inner.born and not again(tensor)
            outside = older or tensor.value is not None or _on_mesh(tensor)
            if outside and id(tensor) not in own and not _is_small(tensor):
                captured[id(tensor)] = tensor
    return list(captured.values())


def is_of_constants(tensor: Tensor) -> bool:
    """Whether a small Tensor takes a few steps from values that are part of the program: who needs it makes it sooner
    than it comes from somebody else."""
    waiting = [tensor]
    for _ in range(CONSTANT_STEPS_MAX):
        if not waiting:
            return True
        node = waiting.pop()
        if _is_small(node):
            continue
        expression = node.expression
        if node.value is not None or expression is None or not expression.needs or _on_mesh(node):
            return False
        if node.type.size_bytes >= CAPTURED_BYTES_MIN:
            return False
        waiting.extend(expression.needs)
    return False


def _identity(value: Any) -> Any:
    """A graph as itself: two of equal nodes may have different origins."""
    return id(value) if isinstance(value, WireGraph) else value


def _both(expression: Expression) -> tuple[Tensor, ...]:
    """The operands that a transform sees, and those that an engine does."""
    return expression.inputs if expression.stands_for is None else (*expression.inputs, expression.stands_for)


def _is_small(tensor: Tensor) -> bool:
    if tensor.value is None:
        return False
    most = CAPTURED_BYTES_MIN - 1 if tensor.expression is None else DEFAULT.inline_const_bytes_max
    return tensor.value.nbytes <= most


def _on_mesh(tensor: Tensor) -> bool:
    return tensor.expression is not None and tensor.expression.handle is not None


def _constant(builder: GraphBuilder, tensor: Tensor) -> int:
    if tensor.value is None:
        name = traced_argument(tensor)
        message = (
            f"the traced argument {name!r} belongs to another function"
            if name is not None
            else "a tensor on the mesh is closed over"
        )
        raise InputError(message, next_step="Pass it as an operand")
    return builder.const(tensor.value)


def _with_output(step: Step, place: int) -> Attrs:
    """The attributes of the result at `place`."""
    output = step.outputs[0][1].expression
    assert output is not None
    return Attrs({**step.attrs, OUTPUT: place}) if OUTPUT in output.attrs else step.attrs
