"""PyTorch modules: exported by torch.export to a graph of ATen ops, which is then a Model.

    model = mesh.from_torch(module.eval(), x)
    y = mesh.run(model, x)

Parameters become params and buffers buffers, under the names of the module's state_dict and without a copy; inputs have
the names of `forward`'s arguments.  torch is needed to import, not to run.  An op is a row of OPS by its ATen name: a
function of the op's arguments by the names of its schema.  Ops without a row are taken apart by torch's own
decompositions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import ConfigError, InputError, Unsupported
from wire.ir.dtypes import dtype_of

from ...core.array import Array
from ...models.model import InputSpec, Model, Value
from ...numpy.promotion import as_numpy, asarray
from ...util.units import counted
from .call import Absent, Call, dtype_from
from .ops import IGNORED, OPS
from .symbolic_sizes import Sizes, concrete, is_size
from .tensor_names import origins, output_names


def from_torch(module: Any, *examples: Any, **named: Any) -> Model:
    """Convert a `torch.nn.Module`, or an ExportedProgram, to a Model.

    Call `module.eval()` first: a graph draws no random numbers and keeps no statistics.

    Parameters
    ----------
    module : torch.nn.Module or torch.export.ExportedProgram
        What to convert.
    *examples : torch.Tensor
        Arguments of the module.  Sizes are fixed to theirs; an ExportedProgram keeps those free that its
        `dynamic_shapes` name.
    **named : torch.Tensor
        Arguments by name.

    Returns
    -------
    Model
        The model.  A param that the module has by several names is one param, by the first of them (`Model.tied`).
        Buffers and parameters that do not require gradients are `Model.buffers`, which training leaves as they are.

    Raises
    ------
    ConfigError
        If torch is not installed.
    InputError
        If the module changes its buffers, or cannot be exported.
    Unsupported
        If there are ops that are not known; it lists all of them.

    Examples
    --------
    >>> import mesh
    >>> import torch  # doctest: +SKIP
    >>> model = mesh.from_torch(torch.nn.Linear(3, 2).eval(), torch.zeros(1, 3))  # doctest: +SKIP
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"from_torch needs {error.name!r}, which is not installed", next_step="pip install 'graph-mesh[torch]'"
        ) from None
    program = module if hasattr(module, "graph_signature") else _exported(torch, module, examples, named)
    program = _decomposed(torch, program)
    name = type(module).__name__
    training = bool(getattr(module, "training", False))
    _check_unchanged(program, name, training)
    _check_supported(program, name, training)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    placed, fixed, given = {}, {}, {}
    specs = program.graph_signature.input_specs
    asked = [spec.arg.name for spec in specs if spec.kind.name == "USER_INPUT"]
    for node in asked:
        if hasattr(values.get(node), "shape"):
            given[node], placed[node] = values[node], (True, node)
        else:  # a number among the examples is part of the program
            fixed[node] = values.get(node)
    sizes = Sizes(program, given)
    where = dict(zip(asked, origins(torch, program, module), strict=True))
    inputs = [
        InputSpec(node, dtype_from(str(value.dtype)), sizes.shape(node), origin=where[node])
        for node, value in given.items()
    ]
    weights = _weights(torch, program)
    placed |= {spec.arg.name: (False, weights.tied.get(spec.target, spec.target)) for spec in specs
               if spec.kind.name != "USER_INPUT"}  # fmt: skip
    outputs = output_names(torch, program)

    def function(params: Mapping[str, Array], given: Mapping[str, Value]) -> dict[str, Array]:
        start = {node: (given if is_input else params)[key] for node, (is_input, key) in placed.items()}
        bound = sizes.bound({node: given[node].shape for node in given}) if sizes.free else {}
        results = zip(outputs, _run(program.graph, {**fixed, **start}, bound), strict=True)
        return {name: asarray(value) for name, value in results if value is not None}

    given_back = [name for name, value in zip(outputs, _results(program), strict=True) if value is not None]
    return Model(
        name, function, inputs, given_back, weights.params, buffers=weights.buffers, tied=weights.tied, hint=HINT
    )


HINT = (
    "from_torch takes the sizes of its examples; for others give it torch.export.export(module, examples, "
    "dynamic_shapes=...), which keeps dimensions free"
)


@dataclass(frozen=True, slots=True)
class _Weights:
    params: dict[str, NDArray[Any]]
    buffers: dict[str, NDArray[Any]]
    tied: dict[str, str]


def _weights(torch: ModuleType, program: Any) -> _Weights:
    """The tensors of a program: one that is there by several names counts once."""
    weights = _Weights({}, {}, {})
    first: dict[Any, str] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            continue
        tensor = (program.state_dict if spec.target in program.state_dict else program.constants)[spec.target]
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        name = first.setdefault(place, spec.target) if tensor.numel() else spec.target
        if name != spec.target:
            weights.tied[spec.target] = name
            continue
        trained = spec.kind.name == "PARAMETER" and tensor.requires_grad
        (weights.params if trained else weights.buffers)[name] = _array(torch, tensor)
    return weights


def _check_unchanged(program: Any, name: str, training: bool) -> None:
    """Raise InputError if a call of the module changes a buffer of it, or an argument."""
    changed = [spec for spec in program.graph_signature.output_specs if spec.kind.name.endswith("MUTATION")]
    if changed:
        what, kind = str(changed[0].target), changed[0].kind.name
        own = "its argument" if kind.startswith("USER") else "its buffer"
        raise InputError(
            f"{name} changes {own} {what!r} when it is called, and a Model has no state",
            next_step="Call module.eval() first" if training else
            "Take the tensor as an argument of forward, and return the new one",
        )  # fmt: skip


def _exported(torch: ModuleType, module: Any, examples: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    try:
        with torch.no_grad():
            return torch.export.export(module, *torch.utils._pytree.tree_map(_example(torch), (examples, dict(named))))
    except Exception as error:  # torch raises many kinds, all of which mean this
        cause = f"{type(error).__name__}: {error}"
        hint = next((hint for text, hint in HINTS.items() if text in cause), "")
        raise InputError(
            f"torch.export cannot export {type(module).__name__}", cause=cause[:500], next_step=hint
        ) from error


CACHE = "Set module.config.use_cache = False, or give use_cache=False: a cache is no tensor"
HINTS = {  # by what is in torch's message
    "DynamicCache": CACHE,
    "EncoderDecoderCache": CACHE,
    "data-dependent": "Write this part with torch.where or torch.cond, so that no Python reads a tensor's value",
}


def _example(torch: ModuleType) -> Any:
    """Arrays of other libraries as tensors; anything else as it is."""

    def tensor(leaf: Any) -> Any:
        foreign = hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, torch.Tensor)
        return torch.tensor(as_numpy(leaf, "an example")) if foreign else leaf

    return tensor


def _decomposed(torch: ModuleType, program: Any) -> Any:
    """The program with every op taken apart for which there is no row."""
    table = torch.export.default_decompositions()
    for op in list(table):
        if _name(op) in OPS:
            del table[op]
    return program.run_decompositions(table)


def _name(target: Any) -> str:
    """ "add" of aten::add.Tensor."""
    schema = getattr(target, "_schema", None)
    return str(getattr(target, "__name__", target)) if schema is None else str(schema.name).removeprefix("aten::")


def _check_supported(program: Any, name: str, training: bool) -> None:
    counts: dict[str, int] = {}
    for node in program.graph.nodes:
        if is_size(node.meta.get("val")):
            continue
        if node.op == "call_function" and _name(node.target) not in OPS and _name(node.target) not in IGNORED:
            counts[str(node.target)] = counts.get(str(node.target), 0) + 1
    if counts:
        listed = ", ".join(f"{op} ({counted(count, 'time')})" for op, count in sorted(counts.items()))
        hint = "Export the module to ONNX, or write this part with mesh.numpy"
        raise Unsupported(
            f"{name} uses {listed}",
            next_step=f"Call module.eval() first, which leaves dropout out; else: {hint}" if training else hint,
        )


def _run(graph: Any, start: Mapping[str, Any], bound: Mapping[Any, int]) -> list[Any]:
    """The outputs of an exported graph, node after node; `bound` are the numbers of free dimensions."""
    values: dict[str, Any] = dict(start)

    def read(argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return [read(item) for item in argument]
        value = values[argument.name] if hasattr(argument, "users") else argument
        if isinstance(value, Absent):
            raise Unsupported(f"a module that uses {value.what}", next_step="Write this part with mesh.numpy")
        return value

    for node in graph.nodes:
        traced = concrete(node.meta.get("val"), bound) if bound else node.meta.get("val")
        if is_size(node.meta.get("val")):
            values[node.name] = traced
        elif node.op == "call_function" and _name(node.target) not in IGNORED:
            named = {key: read(item) for key, item in node.kwargs.items()}
            call = Call(node.target, [read(item) for item in node.args], named, traced)
            values[node.name] = OPS[call.name](call)
        elif node.op == "output":
            return [read(item) for item in node.args[0]]
    raise InputError("the exported program has no output")


def _results(program: Any) -> Sequence[Any]:
    """What the program's last node returns: nodes, numbers and None."""
    return next(list(node.args[0]) for node in program.graph.nodes if node.op == "output")


def _array(torch: ModuleType, tensor: Any) -> NDArray[Any]:
    """A tensor's memory as numpy sees it."""
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        return np.asarray(plain.view(torch.int16).numpy()).view(dtype_from("torch.bfloat16").numpy)
    array: NDArray[Any] = np.asarray(plain.numpy())
    dtype_of(array)  # an error where a graph has no such dtype
    return array


__all__ = ["from_torch"]
