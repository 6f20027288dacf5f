"""Step form: what is written down of a traced step, so that another program can go on with its session.

It has no code: the graph lies with the coordinator.  A form says how a program's arguments and state become the graph's
tensors, and outputs a result: structures, names and types.  A class in a structure is written as its module and its
name, and is looked up in what the other program has imported; nothing is imported for it.  It is JSON, and belongs to
whoever opened the session: the coordinator never reads it.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wire.errors import InputError
from wire.ir.dtypes import dtype_named
from wire.ir.types import TensorType
from wire.limits import MIB

from ..tracing.trace import Argument
from ..tree import LEAF, Keywords, Tree
from ..util.argument_checks import value_text

FORM_BYTES_MAX = 4 * MIB
PLAIN: Mapping[str, type] = {
    "None": type(None), "dict": dict, "list": list, "tuple": tuple, "OrderedDict": OrderedDict, "Keywords": Keywords,
}  # fmt: skip
KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)
_TAGS = {kind: tag for tag, kind in PLAIN.items()}


def encode(fields: Mapping[str, Any]) -> bytes:
    """The form as bytes; InputError for one that is too large."""
    data = json.dumps(fields, separators=(",", ":")).encode()
    if len(data) > FORM_BYTES_MAX:
        raise InputError(
            f"the structure of this session's state and arguments takes {len(data)} bytes to be written down",
            next_step=f"A session with a name has at most {FORM_BYTES_MAX}: put small tensors together",
        )
    return data


def decode(data: bytes) -> dict[str, Any]:
    """The fields of a form; InputError for what is none."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError("what is written down of this session cannot be read", cause=str(error)[:200]) from None
    if not isinstance(fields, dict):
        raise InputError("what is written down of this session is no form of a step")
    return fields


def tree_json(structure: Tree) -> Any:
    """A structure as JSON; InputError for a key or a static field that cannot be written down."""
    if structure.kind is None:
        return None
    kind = _TAGS.get(structure.kind) or _reference(structure.kind)
    static = [[name, _value_json(value)] for name, value in structure.static]
    keys = [_value_json(key) for key in structure.keys]
    return [kind, keys, [tree_json(child) for child in structure.children], static]


def tree_from(data: Any) -> Tree:
    """The structure that `tree_json` wrote; InputError where this program does not have one of its classes."""
    if data is None:
        return LEAF
    kind, keys, children, static = data
    found = PLAIN.get(kind) or _referred(kind)
    if not isinstance(found, type):
        raise InputError(f"{kind} is no class in this program")
    fields = tuple((name, _value_from(value)) for name, value in static)
    return Tree(found, tuple(_value_from(key) for key in keys), tuple(tree_from(child) for child in children), fields)


def type_json(kind: TensorType) -> Any:
    return [kind.dtype.name, list(kind.shape)]


def type_from(data: Any) -> TensorType:
    return TensorType(tuple(data[1]), dtype_named(data[0]))


def argument_json(argument: Argument) -> Any:
    return [argument.name, type_json(argument.type), argument.weak, argument.by_handle]


def argument_from(data: Any) -> Argument:
    return Argument(data[0], type_from(data[1]), data[2], data[3])


def parameters_json(fn: Callable[..., Any]) -> Any:
    """The names of a function's parameters, so that arguments may be given by name; None where it does not say."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    return [[each.name, int(each.kind), each.default is not each.empty] for each in parameters]


def signed(name: str, parameters: Any) -> Callable[..., Any]:
    """A function with this name and these parameters, which nobody calls."""

    def step(*args: Any, **named: Any) -> Any:
        raise AssertionError("the step of a session that another program opened is on its workers only")

    step.__name__ = name
    if parameters is not None:
        empty = inspect.Parameter.empty
        signature = inspect.Signature(
            [
                inspect.Parameter(each, KINDS[kind], default=None if default else empty)
                for each, kind, default in parameters
            ]
        )
        step.__signature__ = signature  # type: ignore[attr-defined]  # which inspect.signature reads
    return step


def _value_json(value: Any) -> Any:
    """A key or a static field: numbers, texts, None, tuples of them, and functions and classes of a module."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple) and type(value) is tuple:
        return {"tuple": [_value_json(each) for each in value]}
    return {"named": _reference(value)}


def _value_from(data: Any) -> Any:
    match data:
        case {"tuple": each}:
            return tuple(_value_from(value) for value in each)
        case {"named": str(name)}:
            return _referred(name)
    return data


def _reference(value: Any) -> str:
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    reference = f"{module}:{name}"
    if not (isinstance(module, str) and isinstance(name, str)) or _found(module, name.split(".")) is not value:
        raise InputError(
            f"the structure of the state or of the arguments has {value_text(value)}, "
            "which another program cannot look up",
            next_step="A session with a name takes dicts, lists, tuples, and classes and functions of a module",
        )
    return reference


def _referred(reference: str) -> Any:
    module, _, name = reference.partition(":")
    found = _found(module, name.split("."))
    if found is None:
        raise InputError(
            f"the session's state or arguments have {name} of {module}, which this program has not imported",
            next_step=f"Import {module} before you attach",
        )
    return found


def _found(module: str, names: Sequence[str]) -> Any:
    found: Any = sys.modules.get(module)
    for name in names:
        found = getattr(found, name, None)
    return found
