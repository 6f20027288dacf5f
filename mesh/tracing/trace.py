"""Tracing: from a Python function and example arguments to a WireGraph.

    graph = mesh.trace(fn, x, params)

The function runs once, on Arrays that have a type but no value.  Every leaf of the arguments becomes a named input of
the graph ("x", "params/layers/0/w": the parameter's name, then the path), handles from `mesh.put` become params.
Arrays that the function refers to otherwise become constants; handles among them become params by their names.

An example is a numpy array, a Python scalar, an Array, a Handle, or a ShapeDtype where there is no data yet.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wire.cached_property import cached_property
from wire.errors import DTypeError, InputError
from wire.ir.dtypes import DType, dtype_of, promote
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import Attrs, TensorType
from wire.ir.verify import check_bound

from .. import tree
from ..core.array import Array, DTypeLike, argument, handle_array
from ..core.backend import Work
from ..core.call_arguments import call_with, check_call, merge_arguments, split_arguments
from ..core.expression import Expression, Tensor, pending, traced_argument, tracing
from ..core.graph_assembly import assemble
from ..core.handle import Handle
from ..core.realise import current_evaluator
from ..core.typed import Typed
from ..numpy.manipulation import to_shape
from ..numpy.promotion import as_numpy, asarray, is_array_like, is_python_scalar, to_dtype
from ..tree import PyTree, Tree
from ..util.argument_checks import value_text
from ..util.missing_names import IMPORT
from .capture_checks import check_kept, warn_of_constants, watching_chance

CLOSED_OVER = "Close over it (functools.partial), or mark the dataclass field with metadata={'static': True}"
OUTPUT = "output"  # the name of a result that is a single array
SETTLED_MAX = 4  # arguments that one function remembers, and with them their handles


class ShapeDtype(Typed):
    """An example argument without data: a shape and a dtype.

    Parameters
    ----------
    shape : sequence of int
        The shape.
    dtype : dtype, optional
        The element type; float32 by default.

    Raises
    ------
    InputError
        If that is no shape.
    DTypeError
        If that is no dtype.

    Examples
    --------
    >>> import mesh
    >>> graph = mesh.trace(lambda x: x.sum(), mesh.ShapeDtype((1000, 1000)))
    >>> print(graph.input_types["x"], graph.output_types["output"])
    f32[1000,1000] f32[]
    """

    __slots__ = ("type",)
    __tree_leaf__: ClassVar[bool] = True

    def __init__(self, shape: Sequence[int], dtype: DTypeLike = np.float32) -> None:
        self.type = TensorType(to_shape(shape), to_dtype(dtype))

    def __repr__(self) -> str:
        return f"ShapeDtype({self.type})"


@dataclass(frozen=True, slots=True)
class Argument:
    """One leaf of a traced function's arguments."""

    name: str
    type: TensorType
    weak: bool  # a Python scalar: it adapted to the dtypes it met
    by_handle: bool  # a param, bound by handle


class Kind:
    """What two arguments share exactly when one trace serves both: the structure, and what is known of each leaf."""

    __slots__ = ("_hash", "leaves", "structure")

    def __init__(self, structure: Tree, leaves: tuple[TensorType | Argument, ...]) -> None:
        self.structure = structure
        self.leaves = leaves  # of a handle its type, which is quick: models have hundreds
        self._hash = hash((structure, leaves))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Kind) and self.structure == other.structure and self.leaves == other.leaves

    def __hash__(self) -> int:
        return self._hash


class Part:
    """One argument of a call, taken apart; it is settled if nobody can change what was taken apart."""

    __slots__ = ("kind", "leaves", "settled")

    def __init__(self, value: PyTree) -> None:
        self.leaves, structure = tree.flatten(value)
        known = [leaf.type if type(leaf) is Handle else _argument("", leaf) for leaf in self.leaves]
        self.kind = Kind(structure, tuple(known))
        self.settled = all(isinstance(leaf, Handle) for leaf in self.leaves) and tree.is_frozen(structure)


class Parts:
    """What takes arguments apart and remembers those that cannot change, such as the weights of a model."""

    __slots__ = ("_settled",)

    def __init__(self) -> None:
        self._settled: dict[int, tuple[Any, Part]] = {}

    def of(self, args: Sequence[Any]) -> tuple[Part, ...]:
        """One part for each argument."""
        return tuple([self._of(value) for value in args])

    def _of(self, value: PyTree) -> Part:
        entry = self._settled.get(id(value))
        if entry is not None:
            return entry[1]
        part = Part(value)
        if part.settled and part.leaves:
            self._settled[id(value)] = (value, part)  # which keeps the id taken
            if len(self._settled) > SETTLED_MAX:
                del self._settled[next(iter(self._settled))]
        return part


@dataclass(frozen=True, slots=True)
class Bound:
    """The arguments of one call, by the names of the graph."""

    inputs: dict[str, NDArray[Any]]
    params: dict[str, Handle]


@dataclass(frozen=True)
class Traced:
    """A traced function: its graph, and the way from arguments to inputs and from outputs to a result.

    `mesh.trace_full` returns it.

    Parameters
    ----------
    graph : WireGraph
        The graph.
    in_tree : Tree
        The structure of the arguments.
    out_tree : Tree
        The structure of the result.
    arguments : tuple of Argument
        The leaves of the arguments.
    handles : mapping of str to Handle, optional
        The params that do not come from arguments: handles that the function refers to.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> traced = mesh.trace_full(lambda x: {"double": 2 * x}, np.ones(2))
    >>> sorted(traced.bind(np.zeros(2)).inputs), traced.unflatten([np.zeros(2)])
    (['x'], {'double': array([0., 0.])})
    """

    graph: WireGraph
    in_tree: Tree
    out_tree: Tree
    arguments: tuple[Argument, ...]
    handles: Mapping[str, Handle] = field(default_factory=dict)

    def bind(self, *args: PyTree) -> Bound:
        """Name the inputs and params of a call.

        Parameters
        ----------
        *args : pytree
            The arguments of the call; those given by name are a `mesh.tree.Keywords` at the end.

        Returns
        -------
        Bound
            The values by the names of the graph.

        Raises
        ------
        InputError
            If an argument differs in structure, shape or dtype; it names the argument.
        """
        leaves, structure = tree.flatten(args)
        if structure != self.in_tree:
            raise InputError(f"the arguments differ in structure: traced with {self.in_tree}, called with {structure}")
        return self._bound([_checked(declared, leaf) for declared, leaf in zip(self.arguments, leaves, strict=True)])

    def bind_parts(self, parts: Sequence[Part]) -> Bound:
        """Name the inputs and params of a call whose arguments were taken apart already.

        Plain arrays are not looked at again: arguments of one kind have the same types.

        Parameters
        ----------
        parts : sequence of Part
            The arguments, of the kinds that it was traced with.

        Returns
        -------
        Bound
            The values by the names of the graph.
        """
        leaves = [leaf for part in parts for leaf in part.leaves]
        return self._bound(
            [
                leaf if declared.by_handle or type(leaf) is np.ndarray else _checked(declared, leaf)
                for declared, leaf in zip(self.arguments, leaves, strict=True)
            ]
        )

    def _bound(self, leaves: Sequence[Any]) -> Bound:
        used = self._used
        inputs: dict[str, NDArray[Any]] = {}
        params: dict[str, Handle] = dict(self.handles)
        for declared, leaf in zip(self.arguments, leaves, strict=True):
            if not declared.by_handle:
                inputs[declared.name] = as_numpy(leaf, f"the argument {declared.name!r}")
            elif declared.name in used:
                params[declared.name] = leaf
        return Bound(inputs, params)

    @cached_property
    def _used(self) -> frozenset[str]:
        return frozenset(self.graph.param_types)

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """Build the function's result of the graph's outputs.

        Parameters
        ----------
        outputs : sequence
            The outputs in order.

        Returns
        -------
        pytree
            The result.
        """
        return tree.unflatten(self.out_tree, outputs)


def trace(fn: Callable[..., Any], /, *examples: PyTree, **named: PyTree) -> WireGraph:
    """Trace a function: call it with arrays that have no values, and write down what it does.

    Parameters
    ----------
    fn : callable
        A function of arrays.
    *examples : pytree
        Arguments like those of the calls to come: arrays, Python numbers, handles, or ShapeDtypes.
    **named : pytree
        Arguments by name.

    Returns
    -------
    WireGraph
        The graph.  Each leaf of the arguments is an input, or a param where it is a handle.

    Raises
    ------
    InputError
        If `fn` needs the value of a traced array, or an argument or result is not an array.
    GraphError
        If shapes or dtypes do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> print(mesh.trace(lambda x, w: mnp.tanh(x @ w), np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)))
    graph "<lambda>" {
      %0 = input name="x" : f32[2,3]
      %1 = input name="w" : f32[3,4]
      %2 = dot %0 %1 lhs_batch=() lhs_contract=(1) rhs_batch=() rhs_contract=(0) : f32[2,4]
      %3 = tanh %2 : f32[2,4]
      return "output" %3
    }
    """
    return trace_full(fn, *examples, **named).graph


def trace_full(fn: Callable[..., Any], /, *examples: PyTree, **named: PyTree) -> Traced:
    """Trace a function, and keep what is needed to call the graph like the function.

    Parameters
    ----------
    fn : callable
        A function of arrays.
    *examples : pytree
        Arguments like those of the calls to come.
    **named : pytree
        Arguments by name.

    Returns
    -------
    Traced
        The traced function.

    Raises
    ------
    InputError
        If `fn` needs the value of a traced array, or an argument or result is not an array.
    GraphError
        If shapes or dtypes do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> traced = mesh.trace_full(lambda params: params["w"] * 2, {"w": np.ones(3)})
    >>> [argument.name for argument in traced.arguments]
    ['params/w']
    """
    if not callable(fn):
        raise InputError(
            f"{value_text(fn)} is no function", next_step="Functions are traced; graphs and models are run as are"
        )
    examples = merge_arguments(fn, examples, named)
    check_call(fn, *split_arguments(examples))
    arguments, in_tree = named_arguments(fn, examples)
    with tracing():
        tracers = [
            argument("param" if known.by_handle else "input", known.name, known.type, known.weak, known.weak)
            for known in arguments
        ]
        declared = [tracer.tensor for tracer in tracers]  # before `fn`, which may give the names to other tensors
        with watching_chance(fn):
            result = call_with(fn, tree.unflatten(in_tree, tracers))
    leaves, out_tree = tree.flatten_with_paths(result)
    outputs = [_output(path, leaf) for path, leaf in leaves]
    output_names = [path or OUTPUT for path, _ in leaves]
    check_kept(fn, declared)
    arguments, declared = _widened(arguments, declared, outputs)
    graph, handles = graph_of(declared, outputs, output_names, getattr(fn, "__name__", ""))
    warn_of_constants(fn, graph)
    return Traced(graph, in_tree, out_tree, arguments, handles)


def _widened(
    arguments: Sequence[Argument], declared: Sequence[Tensor], outputs: Sequence[Array]
) -> tuple[tuple[Argument, ...], list[Tensor]]:
    """The arguments with those Python numbers in 64 bits that the outputs need so; what is narrower is made of them."""
    if not any(tensor.wide for tensor in declared):
        return tuple(arguments), list(declared)
    needed = {id(tensor) for tensor in pending([array.tensor for array in outputs])}
    pairs: list[tuple[Argument, Tensor]] = []
    for leaf, tensor in zip(arguments, declared, strict=True):
        wide = tensor.wide
        if wide is None or id(wide) not in needed:
            pairs.append((leaf, tensor))
            continue
        tensor.expression = Expression("cast", (wide,), Attrs({"dtype": tensor.type.dtype.name}))
        pairs.append((replace(leaf, type=wide.type), wide))
    return tuple([leaf for leaf, _ in pairs]), [tensor for _, tensor in pairs]


def named_arguments(fn: Callable[..., Any], examples: Sequence[Any]) -> tuple[tuple[Argument, ...], Tree]:
    """The leaves of the arguments, with names, and their structure; InputError naming one that is no array."""
    leaves, in_tree = tree.flatten(tuple(examples))
    names = argument_names(fn, in_tree)
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two arguments have the path {twice!r}", next_step="Rename one of the dict keys")
    return tuple([_argument(name, leaf) for name, leaf in zip(names, leaves, strict=True)]), in_tree


def evaluate(fn: Callable[..., Any], /, *args: PyTree, **named: PyTree) -> PyTree:
    """Compute `fn(*args, **named)` as one graph, by the mesh in use or in this process.

    Parameters
    ----------
    fn : callable
        A function of arrays.
    *args : pytree
        Its arguments.
    **named : pytree
        Arguments by name.

    Returns
    -------
    pytree of numpy.ndarray
        The result.

    Raises
    ------
    InputError
        If `fn` needs the value of a traced array, or an argument or result is not an array.
    GraphError
        If shapes or dtypes do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> mesh.evaluate(lambda x: {"sum": x.sum()}, np.arange(4.0))
    {'sum': array(6.)}
    """
    args = merge_arguments(fn, args, named)
    traced = trace_full(fn, *args)
    bound = traced.bind(*args)
    inputs = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in bound.inputs.items()}
    return traced.unflatten(current_evaluator()(Work(traced.graph, bound.params, "auto"), inputs))


def graph_of(
    arguments: Sequence[Tensor], outputs: Sequence[Array], output_names: Sequence[str], name: str
) -> tuple[WireGraph, dict[str, Handle]]:
    """The graph from `arguments` to `outputs`, and the handles that it refers to besides."""
    builder = GraphBuilder()
    handles: dict[str, Handle] = {}
    names: dict[bytes, str] = {}  # of the handles, by their addresses
    mine: dict[int, int] = {}

    def declare(tensor: Tensor) -> int:
        assert tensor.expression is not None
        made = builder.input if tensor.expression.op == "input" else builder.param
        return made(tensor.expression.attrs["name"], tensor.type.shape, tensor.type.dtype)

    def leaf(tensor: Tensor) -> int:
        if id(tensor) in mine:
            return mine[id(tensor)]
        if tensor.value is not None:
            return builder.const(tensor.value)
        assert tensor.expression is not None
        handle = tensor.expression.handle
        if handle is None:
            raise InputError(
                f"the traced argument {traced_argument(tensor)!r} belongs to another function",
                next_step="Pass it as an argument, and do not keep traced arrays beyond their function",
            )
        handle_name = names.get(handle.address) or f"closure/{handle.name or handle.address.hex()[:32]}"
        if handles.get(handle_name, handle).address != handle.address:  # another tensor has the same name
            handle_name = f"closure/{handle.address.hex()[:32]}"
        handles[handle_name] = handle
        names[handle.address] = handle_name
        return builder.param(handle_name, tensor.type.shape, tensor.type.dtype)

    mine.update({id(tensor): declare(tensor) for tensor in arguments})
    placed = assemble(builder, [array.tensor for array in outputs], leaf)
    graph = builder.build(placed, output_names, name)
    check_bound(graph)
    return graph, handles


def argument_names(fn: Callable[..., Any], in_tree: Tree) -> list[str]:
    """The name of every leaf of the arguments: the parameter's name and the path below it."""
    by_name = [child for child in in_tree.children if child.kind is tree.Keywords]
    roots = _parameter_names(fn, len(in_tree.children) - len(by_name)) + [""] * len(by_name)
    return [
        tree.join(root, path) for root, child in zip(roots, in_tree.children, strict=True) for path in tree.paths(child)
    ]


# -- leaves -----------------------------------------------------------------------------------------------


def leaf_type(name: str, leaf: Any) -> TensorType:
    """The type of an argument; InputError naming it if it is not an array."""
    if type(leaf) is not np.ndarray and isinstance(leaf, (Array, Handle, ShapeDtype)):
        return leaf.type
    if isinstance(leaf, (np.ndarray, np.generic)):
        return TensorType(leaf.shape, _known_dtype(name, leaf.dtype))
    if is_python_scalar(leaf):
        return asarray(leaf).type
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, type):
        return TensorType(tuple(leaf.shape), _known_dtype(name, leaf.dtype))
    if is_array_like(leaf) and not isinstance(leaf, type):
        array = as_numpy(leaf, f"the argument {name!r}")
        return TensorType(array.shape, _known_dtype(name, array.dtype))
    raise InputError(
        f"the argument {name!r} is {_kind_of(leaf)}, not an array",
        next_step=IMPORT if hasattr(leaf, "state_dict") else CLOSED_OVER,
    )


def _kind_of(leaf: Any) -> str:
    return f"the class {leaf.__name__}" if isinstance(leaf, type) else f"a {type(leaf).__name__}"


def _known_dtype(name: str, dtype: DTypeLike) -> DType:
    try:
        if isinstance(dtype, np.dtype):
            return dtype_of(dtype)
        return to_dtype(str(dtype).removeprefix("torch."))  # another library's, named like numpy's
    except DTypeError as error:
        raise InputError(f"the argument {name!r} has the dtype {dtype}, which a graph does not have") from error


def _argument(name: str, leaf: Any) -> Argument:
    plain = type(leaf) is np.ndarray
    return Argument(
        name, leaf_type(name, leaf), not plain and is_python_scalar(leaf), not plain and isinstance(leaf, Handle)
    )


def _checked(declared: Argument, leaf: Any) -> Any:
    """The argument as the graph takes it; InputError unless it is of the declared type."""
    if isinstance(leaf, Handle) and leaf.type is declared.type:
        return leaf
    if is_python_scalar(leaf):
        return _checked(declared, _scalar_as(declared, leaf))
    got = leaf_type(declared.name, leaf)
    if isinstance(leaf, ShapeDtype):
        raise InputError(f"the argument {declared.name!r} is a ShapeDtype: it has no value to compute with")
    if got != declared.type:
        raise InputError(f"the argument {declared.name!r} is {got}, expected {declared.type}")
    return leaf


def _scalar_as(declared: Argument, leaf: bool | int | float) -> NDArray[Any]:
    """A Python scalar in the declared dtype, if that loses nothing of its kind; else in its own."""
    own, wanted = leaf_type(declared.name, leaf).dtype, declared.type.dtype
    fits = declared.weak and promote(own, wanted) is wanted
    return np.asarray(leaf, (wanted if fits else own).numpy)


def _output(path: str, leaf: Any) -> Array:
    if isinstance(leaf, Array):
        return leaf
    if isinstance(leaf, Handle):
        return handle_array(leaf)
    if isinstance(leaf, (np.ndarray, np.generic)) or is_python_scalar(leaf):
        return asarray(leaf)
    raise InputError(f"the function returned a {type(leaf).__name__} at {path or OUTPUT!r}, not an array")


def _parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """The names of the first `count` positional parameters; positions where they are not known."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")
    return names + [tree.join(rest, str(place - len(names) if rest else place)) for place in range(len(names), count)]
