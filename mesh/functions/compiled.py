"""Compiled: a function or graph ready to be called: how arguments become inputs and outputs become a result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError
from wire.ir.codec import hash_array
from wire.ir.dtypes import dtype_of
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType
from wire.lru_cache import Latest

from ..core.backend import Work
from ..core.call_arguments import split_arguments
from ..core.handle import Handle
from ..models.model import GRAPHS_BYTES, GRAPHS_COUNT, Model
from ..tracing.trace import Bound, Kind, Part, Parts, Traced, leaf_type, named_arguments, trace_full
from ..tree import PyTree
from ..util.units import counted
from .call_options import CallOptions

Param = Handle | NDArray[Any]


class Compiled:
    """One graph with its way in and out.

    `bind` gives the inputs and the work (graph and bindings) of a call; calls whose params are the same handles share
    one Work, so that nothing is looked up twice.
    """

    def __init__(
        self,
        graph: WireGraph,
        options: CallOptions,
        traced: Traced | None = None,
        model: Model | None = None,
    ) -> None:
        self.graph = graph
        self.options = options
        self._force = options.force  # until the first work
        self._traced = traced
        self._model = model
        self._work: Work | None = None

    @staticmethod
    def of(fn: Callable[..., Any] | WireGraph, args: tuple[Any, ...], options: CallOptions) -> Compiled:
        """`fn` for arguments like these; a graph is taken as it is."""
        if isinstance(fn, WireGraph):
            return Compiled(options.built(fn), options)
        if isinstance(fn, Model):
            graph = options.built(fn.graph(fn.given(*split_arguments(args)), options.cache))
            return Compiled(graph, options, model=fn)
        traced = trace_full(fn, *args)
        return Compiled(options.built(traced.graph), options, traced)

    def bind(self, args: tuple[Any, ...]) -> tuple[dict[str, NDArray[Any]], Work]:
        """The inputs and the work of a call; InputError naming the argument that does not fit."""
        if self._model is not None:
            params = {name: self._model.handles[name] for name in self.graph.param_types}
            return self.bind_named({**self._model.dynamic(self._model.given(*split_arguments(args))), **params})
        if self._traced is None:
            return self.bind_named(_by_name(self.graph, args))
        return self._taken(self._traced.bind(*args))

    def bind_parts(self, parts: Sequence[Part]) -> tuple[dict[str, NDArray[Any]], Work]:
        """`bind` for arguments taken apart that this form is for."""
        assert self._traced is not None
        return self._taken(self._traced.bind_parts(parts))

    def bind_named(self, values: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], Work]:
        """`bind` for values by the names of the graph's inputs and params."""
        graph = self.graph
        known = {**graph.input_types, **graph.param_types}
        for name in values:
            if name not in known:
                raise InputError(
                    f"the graph has no input {name!r}", next_step=f"It takes: {', '.join(known) or 'none'}"
                )
        for name, kind in known.items():
            if name not in values:
                raise InputError(f"the input {name!r} ({kind}) is missing")
        inputs = {name: _fixed(name, values[name], kind) for name, kind in graph.input_types.items()}
        params = {name: _fixed_param(name, values[name], kind) for name, kind in graph.param_types.items()}
        return inputs, self._work_for(params)

    def unbind(self, outputs: Sequence[NDArray[Any]]) -> Any:
        """The result: the function's own structure, or for a graph a dict by output name (one output: its array)."""
        if self._traced is not None:
            return self._traced.unflatten(outputs)
        if self._model is not None:
            return self._model.arranged(dict(zip(self.graph.output_names, outputs, strict=True)))
        if len(outputs) == 1:
            return outputs[0]
        return dict(zip(self.graph.output_names, outputs, strict=True))

    def _taken(self, bound: Bound) -> tuple[dict[str, NDArray[Any]], Work]:
        inputs = {name: _contiguous(array) for name, array in bound.inputs.items()}
        return inputs, self._work_for(bound.params)

    def _work_for(self, params: Mapping[str, Param]) -> Work:
        work = self._work
        if work is not None and len(params) == len(work.bindings):
            bindings = work.bindings
            if all(bindings.get(name) is param for name, param in params.items()):
                return work
        handles = {
            name: param if isinstance(param, Handle) else handle_of(param, name) for name, param in params.items()
        }
        self._work = Work(self.graph, handles, self.options.strategy, self.options.copies, self._force)
        self._force = False
        return self._work


class CompiledFunction:
    """`Compiled` forms of one function by the shapes and dtypes it is called with, the latest of them."""

    def __init__(self, fn: Callable[..., Any] | WireGraph, options: CallOptions = CallOptions()) -> None:
        self._fn = fn
        self._options = options
        self._forms: Latest[Hashable, Compiled] = Latest(GRAPHS_COUNT, GRAPHS_BYTES)
        self._parts = Parts()

    def form_for(self, args: tuple[Any, ...]) -> Compiled:
        """The form for arguments like these, traced now if it is new."""
        if isinstance(self._fn, WireGraph):
            return self._form(None, args)
        if isinstance(self._fn, Model):
            return self._form(self._fn.key(self._fn.given(*split_arguments(args))), args)
        return self._form(_kinds(self._parts_of(args)), args)

    def bind(self, args: tuple[Any, ...]) -> tuple[Compiled, dict[str, NDArray[Any]], Work]:
        """The form of a call, its inputs and its work: `form_for` and then `Compiled.bind`, and quicker."""
        if isinstance(self._fn, (WireGraph, Model)):
            form = self.form_for(args)
            return form, *form.bind(args)
        parts = self._parts_of(args)
        form = self._form(_kinds(parts), args)
        return form, *form.bind_parts(parts)

    def _parts_of(self, args: tuple[Any, ...]) -> tuple[Part, ...]:
        try:
            return self._parts.of(args)
        except InputError:
            assert not isinstance(self._fn, WireGraph)
            named_arguments(self._fn, args)  # raises the same, and says which argument it is
            raise

    def _form(self, key: Any, args: tuple[Any, ...]) -> Compiled:
        form = self._forms.get(key)
        if form is None:
            form = Compiled.of(self._fn, args, self._options)
            if self._options.cache:
                form = self._forms.keep(key, form, form.graph.memory_bytes)
        return form


class Callee:
    """What `Mesh.compile` gives: it is called as the function is, and computes on the mesh."""

    def __init__(self, fn: Callable[..., Any] | WireGraph, name: str, mesh: object, call: Callable[..., Any]) -> None:
        if not isinstance(fn, WireGraph | Model):
            functools.update_wrapper(self, fn, updated=())
        self._name = name or getattr(fn, "__name__", "") or getattr(fn, "name", "") or type(fn).__name__
        self._mesh = mesh
        self._call = call

    def __call__(self, *args: PyTree, **named: PyTree) -> PyTree:
        """The result; that of an AsyncMesh is awaited."""
        return self._call(*args, **named)

    def __repr__(self) -> str:
        return f"<compiled {self._name}, on {self._mesh!r}>"


def _kinds(parts: Sequence[Part]) -> tuple[Kind, ...]:
    return tuple([part.kind for part in parts])


def handle_of(array: Any, name: str = "") -> Handle:
    """A handle of an array, hashed now: arrays are never remembered by identity, as they may have changed.

    InputError naming what is no array; Python's numbers get the dtypes they have as arguments.
    """
    kind = leaf_type(name or "value", array)
    fixed = np.array(array, kind.dtype.numpy, order="C")
    fixed.flags.writeable = False
    return Handle(hash_array(fixed), kind, name, fixed)


def _by_name(graph: WireGraph, args: tuple[Any, ...]) -> dict[str, Any]:
    """Arguments of a graph: one dict by name, or positional in the order of its inputs, then params, and by name."""
    names = [*graph.input_types, *graph.param_types]
    placed_args, named = split_arguments(args)
    if len(placed_args) == 1 and isinstance(placed_args[0], Mapping):
        return {**placed_args[0], **named}
    if len(placed_args) > len(names) or (len(placed_args) < len(names) and not named):
        raise InputError(f"the graph takes {counted(len(names), 'input')} ({', '.join(names)}), got {len(placed_args)}")
    placed = dict(zip(names, placed_args, strict=False))
    if twice := placed.keys() & named.keys():
        raise InputError(f"the input {min(twice)!r} is given twice")
    return {**placed, **named}


def _fixed(name: str, value: PyTree, kind: TensorType) -> NDArray[Any]:
    array = np.asarray(value)
    if array.shape != kind.shape or dtype_of(array) is not kind.dtype:
        raise InputError(f"the input {name!r} is {array.dtype}{list(array.shape)}, expected {kind}")
    return _contiguous(array)


def _contiguous(array: NDArray[Any]) -> NDArray[Any]:
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _fixed_param(name: str, value: PyTree, kind: TensorType) -> Param:
    if isinstance(value, Handle):
        if value.type != kind:
            raise InputError(f"the param {name!r} is {value.type}, expected {kind}")
        return value
    return _fixed(name, value, kind)
