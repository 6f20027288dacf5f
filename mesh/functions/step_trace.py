"""Step trace: a step function traced, and what of its state has to stay where it is computed.

    step_fn(state, *args) -> (state, outputs)

Every leaf of the state becomes a param of the graph whose next value is an output: it is *carried*.  A leaf that the
step returns as it got it never changes.  One that it sets and never reads is returned to the caller like an output, and
remembered here.  Where a leaf's next value is merely another leaf or an argument, nothing would compute it; it then
takes another shape on the workers, so that something does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError
from wire.ir.graph import WireGraph
from wire.ir.graph_memory import without_origins
from wire.ir.ops import LEAVES
from wire.ir.types import TensorType
from wire.passes.simplify import simplify

from .. import tree
from ..core.array import Array
from ..core.backend import Work
from ..core.call_arguments import check_call, merge_arguments, split_arguments
from ..core.handle import Handle
from ..numpy import reshape
from ..numpy.promotion import asarray
from ..tracing.trace import Argument, Traced, trace_full
from ..tree import PyTree, Tree
from ..util.argument_checks import check_function
from . import step_form as form
from .compiled import handle_of

DIMS_MAX = 8
CARRIED, RETURNED, FIXED = "carried", "returned", "fixed"


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One tensor of the state: `pad` is how many dimensions of 1 it has before its own on the workers."""

    path: str
    first: Handle
    pad: int = 0
    role: str = CARRIED

    @property
    def padded(self) -> Handle:
        """The first value of the state, as the workers get it."""
        if not self.pad:
            return self.first
        kind = self.first.type
        shape = (1,) * self.pad + kind.shape
        local = None if self.first.local is None else self.first.local.reshape(shape)
        return Handle(self.first.address, TensorType(shape, kind.dtype), self.first.name, local, self.first.on)


class Stepping:
    """A step function for one state and arguments like the examples."""

    def __init__(
        self, fn: Callable[..., Any], state: PyTree, examples: Sequence[Any], strategy: str, copies: str = "checkpoint"
    ) -> None:
        leaves, self._structure = tree.flatten_with_paths(state)
        check_function(fn, "what a session calls")
        given, named = split_arguments(examples)
        check_call(fn, (state, *given), named)
        self._fn = fn
        self._examples = len(examples)
        if not leaves:
            raise InputError("the state has no tensors", next_step="Call Mesh.compile: such a function has no state")
        self._leaves = [_Leaf(path, _handle(path, leaf)) for path, leaf in leaves]
        traced = self._settled(fn, examples)
        self._traced = replace(traced, graph=without_origins(traced.graph))  # servers keep dozens of steps
        self._place_leaves()
        if not self.carries:
            raise InputError(
                "no step needs anything of the state that the step before made",
                next_step="Call Mesh.compile: such a function has no state",
            )
        names = self._names(self._traced)
        bindings = {names[index]: self._leaves[index].padded for index in range(len(self._leaves))}
        used = self._traced.graph.param_types
        bindings = {name: handle for name, handle in bindings.items() if name in used}
        bindings |= {name: handle for name, handle in self._bound(examples).params.items() if name not in bindings}
        self.work = Work(self._traced.graph, bindings, strategy, copies)

    def _place_leaves(self) -> None:
        """Say where each leaf of the state is among the outputs."""
        self._returned_at = self._traced.out_tree.children[0].leaf_count
        carried = [index for index, leaf in enumerate(self._leaves) if leaf.role == CARRIED]
        self._returned = [index for index, leaf in enumerate(self._leaves) if leaf.role == RETURNED]
        names = self._names(self._traced)
        self.returned_count = self._returned_at + len(self._returned)
        self.carries = tuple((names[index], self.returned_count + at) for at, index in enumerate(carried))
        self._by_name = {names[index]: index for index in carried}

    @property
    def form(self) -> bytes:
        """What another program needs to go on with the session, beside the graph; InputError if it could not."""
        names, used = self._names(self._traced), self.graph.param_types
        for leaf, name in zip(self._leaves, names, strict=True):
            if leaf.role == RETURNED or (leaf.role == FIXED and name not in used):
                raise InputError(
                    f"no step reads {leaf.path or 'the tensor'!r} of the state, so no worker has it",
                    next_step="A session with a name has all of its state on workers: return that as an output",
                )
        leaves = [[leaf.path, form.type_json(leaf.first.type), leaf.pad, leaf.role] for leaf in self._leaves]
        return form.encode(
            {
                "fn": getattr(self._fn, "__name__", "step"),
                "parameters": form.parameters_json(self._fn),
                "examples": self._examples,
                "structure": form.tree_json(self._structure),
                "leaves": leaves,
                "arguments": [form.argument_json(argument) for argument in self._traced.arguments],
                "in": form.tree_json(self._traced.in_tree),
                "out": form.tree_json(self._traced.out_tree),
            }
        )

    @staticmethod
    def of_form(data: bytes, graph: WireGraph, strategy: str) -> Stepping:
        """The step that another program traced; `fixed` says which values it wants.  InputError where this program
        cannot read the form."""
        fields, stepping = form.decode(data), object.__new__(Stepping)
        try:
            stepping._fn = form.signed(fields["fn"], fields["parameters"])
            stepping._examples = fields["examples"]
            stepping._structure = form.tree_from(fields["structure"])
            stepping._leaves = [
                _Leaf(path, Handle(b"", form.type_from(kind), path), pad, role)
                for path, kind, pad, role in fields["leaves"]
            ]
            arguments = tuple(form.argument_from(argument) for argument in fields["arguments"])
            trees = form.tree_from(fields["in"]), form.tree_from(fields["out"])
            stepping._traced = Traced(graph, *trees, arguments)
            stepping._place_leaves()
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            cause = f"{type(error).__name__}: {error}"
            raise InputError("what is written down of this session cannot be read", cause=cause) from None
        stepping.work = Work(graph, {}, strategy)
        return stepping

    @property
    def fixed(self) -> tuple[str, ...]:
        """The names of the params that are leaves of the state which no step changes."""
        return tuple(
            name for name, leaf in zip(self._names(self._traced), self._leaves, strict=True) if leaf.role == FIXED
        )

    def fix(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Give the leaves that no step changes their values, by the names of `fixed`."""
        for index, name in enumerate(self._names(self._traced)):
            leaf = self._leaves[index]
            if leaf.role == FIXED:
                local = values[name].reshape(leaf.first.type.shape)
                first = Handle(leaf.first.address, leaf.first.type, leaf.path, local, leaf.first.on)
                self._leaves[index] = replace(leaf, first=first)

    def check_same(self, fn: Callable[..., Any]) -> None:
        """Raise InputError unless `fn` is traced to the same graph."""
        known = [leaf.first.type for leaf in self._leaves]
        state = tree.unflatten(self._structure, [np.zeros(kind.shape, kind.dtype.numpy) for kind in known])
        examples = tree.unflatten(self._traced.in_tree, [_example(each) for each in self._traced.arguments])[1:]
        same = type(self)(fn, state, examples, self.work.strategy)
        if same.graph.encoded != self.graph.encoded:
            raise InputError(
                f"the session was opened with another step function than {getattr(fn, '__name__', 'this one')}",
                next_step="Leave it out to go on with the session's own, or open another session with this one",
            )

    def starting(self, state: PyTree) -> Stepping:
        """The same steps from another state; InputError if its structure, or the shape or dtype of a leaf, differs."""
        values, structure = tree.flatten(tree.ordered(state, self._structure))
        _check_structure(self._structure, structure)
        other = copy(self)
        other._leaves = [self._other(leaf, _handle(leaf.path, value))
                        for leaf, value in zip(self._leaves, values, strict=True)]  # fmt: skip
        firsts = {name: leaf.padded for name, leaf in zip(self._names(self._traced), other._leaves, strict=True)}
        bindings = {name: firsts.get(name, handle) for name, handle in self.work.bindings.items()}
        other.work = Work(self.graph, bindings, self.work.strategy, self.work.copies)
        return other

    def place(self, strategy: str) -> None:
        """Have its session go by another strategy."""
        self.work = replace(self.work, strategy=strategy)

    @property
    def graph(self) -> WireGraph:
        return self._traced.graph

    @property
    def paths(self) -> Mapping[str, str]:
        """The path in the state of each carried tensor, by its name."""
        return {name: self._leaves[index].path for name, index in self._by_name.items()}

    @property
    def places(self) -> Mapping[str, str]:
        """The path in the state of each of its tensors, by the tensor's name among the graph's params."""
        return {name: leaf.path for name, leaf in zip(self._names(self._traced), self._leaves, strict=True)}

    @property
    def state_bytes(self) -> int:
        """The bytes of all carried tensors."""
        return sum(self._leaves[index].first.type.size_bytes for index in self._by_name.values())

    def merge_arguments(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments of a step as one tuple, as `bind` takes them."""
        return merge_arguments(self._fn, (None, *args), named)[1:] if named else tuple(args)

    def bind(self, args: Sequence[Any]) -> dict[str, NDArray[Any]]:
        """The inputs of a step, copies of the arguments; InputError naming the one that does not fit."""
        if len(args) != self._examples:
            placed, named = split_arguments(args)
            check_call(self._fn, (None, *placed), named)  # says which argument is missing
        inputs = self._bound(args).inputs
        return {name: np.array(array, order="C") for name, array in inputs.items()}

    def outputs(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """What the step function returned beside the state."""
        return tree.unflatten(self._traced.out_tree.children[0], arrays[: self._returned_at])

    def remembered(self, arrays: Sequence[NDArray[Any]]) -> dict[int, NDArray[Any]]:
        """The leaves of the state that this process remembers, of a step's outputs."""
        return dict(zip(self._returned, arrays[self._returned_at : self.returned_count], strict=True))

    def state(self, carried: Mapping[str, NDArray[Any]], remembered: Mapping[int, NDArray[Any]]) -> Any:
        """The state as the caller has it, of what was carried and remembered."""
        arrays = {self._by_name[name]: array for name, array in carried.items()} | dict(remembered)
        leaves = []
        for index, leaf in enumerate(self._leaves):
            array = arrays[index] if index in arrays else np.array(leaf.first)
            leaves.append(array.reshape(leaf.first.type.shape))
        return tree.unflatten(self._structure, leaves)

    # -- helpers

    def _bound(self, args: Sequence[Any]) -> Any:
        return self._traced.bind([leaf.padded for leaf in self._leaves], *args)

    def _names(self, traced: Traced) -> list[str]:
        return [argument.name for argument in traced.arguments[: len(self._leaves)]]

    def _settled(self, fn: Callable[..., Any], examples: Sequence[Any]) -> Traced:
        """What is traced once every leaf has its role, and the shapes it takes for it."""
        for _ in range(len(self._leaves) + 1):
            traced = self._trace(fn, examples)
            roles = self._roles(traced)
            passed = next((index for index, role in enumerate(roles) if role is None), None)
            if passed is None:
                if all(role == CARRIED for role in roles):  # as they are traced at first
                    return traced
                self._leaves = [self._with(leaf, role=role) for leaf, role in zip(self._leaves, roles, strict=True)]
                return self._trace(fn, examples)
            pad = 1 + max(leaf.pad for leaf in self._leaves)
            if pad + len(self._leaves[passed].first.type.shape) > DIMS_MAX:
                break
            self._leaves[passed] = self._with(self._leaves[passed], pad=pad)
        raise InputError(
            "the step returns tensors of its state in other places than it got them, and changes none of them",
            next_step="Compute something of them, or keep them apart from the state",
        )

    @staticmethod
    def _with(leaf: _Leaf, pad: int | None = None, role: str | None = None) -> _Leaf:
        return _Leaf(leaf.path, leaf.first, leaf.pad if pad is None else pad, role or leaf.role)

    @staticmethod
    def _other(leaf: _Leaf, first: Handle) -> _Leaf:
        if first.type != leaf.first.type:
            raise InputError(f"the state's {leaf.path or 'only tensor'!r} is {first.type}, expected {leaf.first.type}")
        return _Leaf(leaf.path, first, leaf.pad, leaf.role)

    def _roles(self, traced: Traced) -> list[str | None]:
        """What becomes of every leaf; None for one whose next value nothing computes."""
        graph, names = simplify(traced.graph), self._names(traced)
        params = {node.attrs["name"]: index for index, node in enumerate(graph.nodes) if node.op == "param"}
        mine = [params.get(name) for name in names]
        read = {index for node in graph.nodes for index in node.inputs}
        count = len(self._leaves)
        outputs, following = graph.outputs[:-count], graph.outputs[-count:]
        roles: list[str | None] = []
        for param, following_node in zip(mine, following, strict=True):
            others = {*outputs, *(source for source, own in zip(following, mine, strict=True) if own != source)}
            if param is not None and following_node == param:
                roles.append(FIXED)
            elif param is not None and (param in read or param in others):
                roles.append(None if graph.nodes[following_node].op in LEAVES or param in others else CARRIED)
            else:
                roles.append(None if graph.nodes[following_node].op == "param" else RETURNED)
        return roles

    def _trace(self, fn: Callable[..., Any], examples: Sequence[Any]) -> Traced:
        """The graph from the leaves as workers have them to the outputs, the returned leaves, and the carried ones."""

        def step(state: list[Any], *args: PyTree, **named: PyTree) -> PyTree:
            own = [reshape(value, leaf.first.type.shape) if leaf.pad else value
                   for leaf, value in zip(self._leaves, state, strict=True)]  # fmt: skip
            following, outputs = self._called(fn, own, args, named)
            padded = [
                reshape(value, leaf.padded.type.shape) if leaf.pad else value
                for leaf, value in zip(self._leaves, following, strict=True)
            ]
            by_role = {
                role: [value for leaf, value in zip(self._leaves, padded, strict=True) if leaf.role == role]
                for role in (RETURNED, CARRIED)
            }
            return outputs, by_role[RETURNED], by_role[CARRIED]

        step.__name__ = getattr(fn, "__name__", "step")
        _named_as(fn, step)
        return trace_full(step, [leaf.padded for leaf in self._leaves], *examples)

    def _called(
        self, fn: Callable[..., Any], own: list[Any], args: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[list[Array], Any]:
        """The leaves of the next state, and the outputs; InputError where the state changes its form."""
        result = fn(tree.unflatten(self._structure, own), *args, **named)
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError("a step function returns two things: the next state, and what it tells")
        leaves, structure = tree.flatten(tree.ordered(result[0], self._structure))
        _check_structure(self._structure, structure)
        following = [asarray(leaf) for leaf in leaves]
        for leaf, value in zip(self._leaves, following, strict=True):
            if value.type != leaf.first.type:
                raise InputError(
                    f"the step makes {value.type} of the state's {leaf.path or 'only tensor'!r}, "
                    f"which was {leaf.first.type}",
                    next_step="Return it with the shape and dtype that it came with (astype)",
                )
        return following, result[1]


def _named_as(fn: Callable[..., Any], step: Callable[..., Any]) -> None:
    """Have errors about arguments of `step` name them as `fn` does; its state is called so."""
    try:
        state, *others = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature, or one that takes no argument
        return
    if state.kind in (state.POSITIONAL_ONLY, state.POSITIONAL_OR_KEYWORD) and "state" not in [p.name for p in others]:
        step.__signature__ = inspect.Signature([state.replace(name="state"), *others])  # type: ignore[attr-defined]


def _check_structure(wanted: Tree, got: Tree) -> None:
    if wanted != got:
        raise InputError(f"the step changes the structure of the state: from {wanted} to {got}")


def _example(argument: Argument) -> Any:
    """A value like one that a function was traced with."""
    zeros = np.zeros(argument.type.shape, argument.type.dtype.numpy)
    if argument.weak:
        return zeros.item()
    return handle_of(zeros, argument.name) if argument.by_handle else zeros


def _handle(path: str, leaf: Any) -> Handle:
    return leaf if isinstance(leaf, Handle) else handle_of(leaf, path or "state")
