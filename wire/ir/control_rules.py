"""Shape and dtype rules of ops with graphs inside: bodies, branches, loops and scans.

As in `rules.py`, a rule's name and docstring are what others see of it.
"""

from __future__ import annotations

from typing import Any

from ..errors import AttrError, ShapeError
from .dtypes import BOOL, DType
from .rules import Types
from .types import Attrs, TensorType


def branch_dtype(attrs: Attrs, types: Types) -> DType:
    """The dtype of output `output` of both graphs."""
    return _branch_type(attrs, types).dtype


def branch_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The shape of output `output` of both graphs; the operands are a bool scalar and the inputs of the graphs."""
    return _branch_type(attrs, types).shape


def carried_dtype(attrs: Attrs, types: Types) -> DType:
    """The dtype of operand `output`."""
    return _carried_type(attrs, types).dtype


def carried_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The shape of operand `output`, which belongs to the carry; the output of `test` is a bool scalar."""
    return _carried_type(attrs, types).shape


def scanned_dtype(attrs: Attrs, types: Types) -> DType:
    """The dtype of output `output` of the body."""
    return _scanned_type(attrs, types).dtype


def scanned_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The shape of output `output` of the body; after the carry, `length` of them are stacked."""
    return _scanned_type(attrs, types).shape


def body_dtype(attrs: Attrs, types: Types) -> DType:
    """The dtype of the body's output."""
    return _body_type(attrs, types).dtype


def body_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The shape of the body's output; the operands have the types of its inputs."""
    return _body_type(attrs, types).shape


def _body_type(attrs: Attrs, types: Types) -> TensorType:
    body: Any = attrs["body"]
    if len(body.outputs) != 1:
        raise AttrError("a composite's body has no params and one output")
    check_body(f"composite {attrs['name']!r}", body, types)
    result: TensorType = body.types[body.outputs[0]]
    return result


def _branch_type(attrs: Attrs, types: Types) -> TensorType:
    then, otherwise = attrs["then"], attrs["otherwise"]
    if not types or types[0] != TensorType((), BOOL):
        raise ShapeError(f"cond is asked with a {TensorType((), BOOL)}, got {types[0] if types else 'nothing'}")
    for branch in (then, otherwise):
        check_body("a branch of cond", branch, types[1:])
    if results_of(then) != results_of(otherwise):
        raise ShapeError(f"cond's branches give ({_listed(results_of(then))}) and ({_listed(results_of(otherwise))})")
    return output_of(attrs, results_of(then))


def _carried_type(attrs: Attrs, types: Types) -> TensorType:
    test, body = attrs["test"], attrs["body"]
    for name, graph in (("test", test), ("body", body)):
        check_body(f"the {name} of while", graph, types)
    _check_carry("while", results_of(body), types[: len(body.outputs)])
    if results_of(test) != (TensorType((), BOOL),):
        raise ShapeError(f"the test of while gives one {TensorType((), BOOL)}, got ({_listed(results_of(test))})")
    return output_of(attrs, results_of(body))


def _scanned_type(attrs: Attrs, types: Types) -> TensorType:
    body, carry, consts, length = (attrs[name] for name in ("body", "carry", "consts", "length"))
    if min(carry, consts) < 0 or carry + consts > len(types) or carry > len(body.outputs):
        raise AttrError(f"scan with a carry of {carry} and {consts} constants has {len(types)} operands")
    if not 0 <= length < 1 << 31 or attrs["reverse"] not in (0, 1):
        raise AttrError(f"scan's length is 0 to {(1 << 31) - 1} and reverse 0 or 1, got {length}, {attrs['reverse']}")
    rows = types[carry + consts :]
    if any(kind.shape[:1] != (length,) for kind in rows):
        raise ShapeError(f"scan over {length} rows takes arrays of that many, got ({_listed(rows)})")
    body_operands = (*types[: carry + consts], *(TensorType(kind.shape[1:], kind.dtype) for kind in rows))
    check_body("the body of scan", body, body_operands)
    results = results_of(body)
    _check_carry("scan", results[:carry], types[:carry])
    result = output_of(attrs, results)
    return result if attrs["output"] < carry else TensorType((length, *result.shape), result.dtype)


def check_body(what: str, body: Any, types: Types) -> None:
    """Check that the graph stands alone and takes exactly these types."""
    if not body.stands_alone:
        raise AttrError(f"{what} has params or large constants; pass them as operands")
    expected = tuple([body.types[node] for node in body.inputs])
    if tuple(types) != expected:
        raise ShapeError(f"{what} takes ({_listed(expected)}), got ({_listed(types)})")


def _check_carry(op: str, results: Types, carry: Types) -> None:
    if tuple(results) != tuple(carry):
        raise ShapeError(f"the body of {op} turns ({_listed(carry)}) into ({_listed(results)})")


def results_of(graph: Any) -> tuple[TensorType, ...]:
    """The types of a graph's outputs."""
    return tuple([graph.types[node] for node in graph.outputs])


def output_of(attrs: Attrs, results: Types) -> TensorType:
    """The type of the output that an op's attributes choose."""
    if not 0 <= attrs["output"] < len(results):
        raise AttrError(f"output {attrs['output']} of {len(results)}")
    result: TensorType = results[attrs["output"]]
    return result


def _listed(types: Types) -> str:
    return ", ".join(map(str, types))
