"""PyTorch modules: exported by torch.export to a graph of ATen ops, which is then a Model.

    model = mesh.from_torch(module.eval(), x)
    y = mesh.run(model, x)

Parameters and buffers become params under the names of the module's state_dict, without a copy; inputs have the names
of `forward`'s arguments.  torch is needed to import, not to run.  An op is a row of OPS by its ATen name: a function of
the op's arguments by the names of its schema.  Ops without a row are taken apart by torch's own decompositions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.dtypes import dtype_of
from wire.errors import ConfigError, InputError, Unsupported

from ...array import Array
from ...model import InputSpec, Model, Value
from ...numpy.promotion import as_numpy, asarray
from .call import Absent, Call, dtype_from
from .ops import IGNORED, OPS


def from_torch(module: Any, *examples: Any, **named: Any) -> Model:
    """The Model of a `torch.nn.Module` called with arguments like these tensors, or of an ExportedProgram.

    The module's mode counts: call `eval()` first unless it is to drop out.  ConfigError if torch is not installed,
    InputError if the module changes its buffers or cannot be exported, Unsupported listing all ops that are not known.
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
    signature = program.graph_signature
    changed = [str(spec.target) for spec in signature.output_specs if spec.kind.name.endswith("MUTATION")]
    if changed:
        raise InputError(f"{name} changes {changed[0]!r} when it is called", next_step="Call module.eval() first")
    _check_supported(program, name)
    params, placed, inputs, fixed = {}, {}, [], {}
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for spec in signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            value: Any = values.get(spec.arg.name)
            if not hasattr(value, "shape"):  # a number among the examples is part of the program
                fixed[spec.arg.name] = value
                continue
            inputs.append(InputSpec(spec.arg.name, dtype_from(str(value.dtype)), tuple(int(d) for d in value.shape)))
            placed[spec.arg.name] = (True, spec.arg.name)
        else:
            where = program.state_dict if spec.target in program.state_dict else program.constants
            params[spec.target] = _array(torch, where[spec.target])
            placed[spec.arg.name] = (False, spec.target)
    outputs = _output_names(torch, program)

    def function(params: Mapping[str, Array], given: Mapping[str, Value]) -> dict[str, Array]:
        start = {node: (given if is_input else params)[key] for node, (is_input, key) in placed.items()}
        found = zip(outputs, _run(program.graph, {**fixed, **start}), strict=True)
        return {name: asarray(value) for name, value in found if value is not None}

    given_back = [name for name, value in zip(outputs, _results(program), strict=True) if value is not None]
    return Model(name, function, inputs, given_back, params)


def _exported(torch: Any, module: Any, examples: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    try:
        with torch.no_grad():
            return torch.export.export(module, *torch.utils._pytree.tree_map(_example(torch), (examples, dict(named))))
    except Exception as error:  # torch raises many kinds, all of which mean this
        raise InputError(
            f"torch.export cannot export {type(module).__name__}", cause=f"{type(error).__name__}: {error}"[:500]
        ) from error


def _example(torch: Any) -> Any:
    """Arrays of other libraries as tensors; anything else as it is."""

    def tensor(leaf: Any) -> Any:
        foreign = hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, torch.Tensor)
        return torch.tensor(as_numpy(leaf, "an example")) if foreign else leaf

    return tensor


def _decomposed(torch: Any, program: Any) -> Any:
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


def _check_supported(program: Any, name: str) -> None:
    counts: dict[str, int] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and _name(node.target) not in OPS and _name(node.target) not in IGNORED:
            counts[str(node.target)] = counts.get(str(node.target), 0) + 1
    if counts:
        told = ", ".join(f"{op} ({count} times)" for op, count in sorted(counts.items()))
        raise Unsupported(
            f"{name} uses {told}", next_step="Export the module to ONNX, or write this part with mesh.numpy"
        )


def _run(graph: Any, start: Mapping[str, Any]) -> list[Any]:
    """The outputs of an exported graph, node after node."""
    values: dict[str, Any] = dict(start)

    def read(argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return [read(each) for each in argument]
        found = values[argument.name] if hasattr(argument, "users") else argument
        if isinstance(found, Absent):
            raise Unsupported(f"a module that uses {found.what}", next_step="Write this part with mesh.numpy")
        return found

    for node in graph.nodes:
        if node.op == "call_function" and _name(node.target) not in IGNORED:
            named = {key: read(each) for key, each in node.kwargs.items()}
            call = Call(node.target, [read(each) for each in node.args], named, node.meta.get("val"))
            values[node.name] = OPS[call.name](call)
        elif node.op == "output":
            return [read(each) for each in node.args[0]]
    raise InputError("the exported program has no output")


def _results(program: Any) -> Sequence[Any]:
    """What the program's last node returns: nodes, numbers and None."""
    return next(list(node.args[0]) for node in program.graph.nodes if node.op == "output")


def _output_names(torch: Any, program: Any) -> list[str]:
    """By the keys of a dict (which the outputs of transformers are), else "output", or output_0, output_1, ..."""
    count = len(program.graph_signature.output_specs)
    spec = program.call_spec.out_spec
    if spec is not None:
        made = torch.utils._pytree.tree_unflatten(list(range(count)), spec)
        if isinstance(made, Mapping) and all(isinstance(value, int) for value in made.values()):
            return [str(key) for key, _ in sorted(made.items(), key=lambda item: item[1])]
    return ["output"] if count == 1 else [f"output_{place}" for place in range(count)]


def _array(torch: Any, tensor: Any) -> NDArray[Any]:
    """A tensor's memory as numpy sees it."""
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        return np.asarray(plain.view(torch.int16).numpy()).view(dtype_from("torch.bfloat16").numpy)
    found: NDArray[Any] = np.asarray(plain.numpy())
    dtype_of(found)  # an error where a graph has no such dtype
    return found


__all__ = ["from_torch"]
