"""Functions: an op without a row, written out as the nodes of its body.

Bodies come from the model itself (its own functions) or from the standard, as the package `onnx` has it: some bodies
are fixed, others depend on the node's attributes and on its inputs' types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wire.ir.types import TensorType

from .program import DOMAIN, ELEMENT_TYPES, Declared, Graph, Node, Program
from .reading import Reader, Unreadable, domain, package

_NUMBERS = {dtype: number for number, (_, dtype) in ELEMENT_TYPES.items() if dtype is not None}


def expand(program: Program, node: Node, types: Sequence[TensorType | None]) -> tuple[Graph, Unreadable] | None:
    """The body of `node` as a graph from its inputs to its outputs, and what in it could not be read.

    None if the op is not a function.  `types` are those of the node's inputs, None for an absent one; with fewer types
    than inputs, only a body that does not depend on them is found.
    """
    proto = _own(program, node)
    defaults: dict[str, Any] = {}
    if proto is None:
        standard = _standard(node, types)
        if standard is None:
            return None
        proto, defaults = standard
    attributes = {**defaults, **{attribute.name: attribute for attribute in proto.attribute_proto}}
    attributes.update({attribute.name: attribute for attribute in node.proto.attribute})
    versions = {domain(opset.domain): opset.version for opset in proto.opset_import} or dict(program.versions)
    reader = Reader(None)
    nodes = [reader.node(_resolved(inner, attributes), versions) for inner in proto.node]
    return _graph(proto, nodes), reader.problems


def is_function(program: Program, node: Node) -> bool:
    """Whether `node` has a body, perhaps one that depends on its inputs' types."""
    if _own(program, node) is not None:
        return True
    schema = schema_of(node)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def _own(program: Program, node: Node) -> Any:
    return program.functions.get((node.domain, node.op, getattr(node.proto, "overload", "")))


def schema_of(node: Node) -> Any:
    """The standard's OpSchema of a node's op and version, if there is one."""
    defs = package().defs
    for name in (node.domain, "ai.onnx") if node.domain == DOMAIN else (node.domain,):
        if defs.has(node.op, name):
            try:
                return defs.get_schema(node.op, node.version, name)
            except defs.SchemaError:
                return None
    return None


def _standard(node: Node, types: Sequence[TensorType | None]) -> tuple[Any, dict[str, Any]] | None:
    onnx, schema = package(), schema_of(node)
    if schema is None:
        return None
    defaults = {
        name: attribute.default_value for name, attribute in schema.attributes.items() if attribute.default_value.name
    }
    if schema.has_function:
        body = schema.get_function_with_opset_version(_latest(schema.function_opset_versions, node.version))
    elif schema.has_context_dependent_function and len(types) == len(node.inputs):
        version = _latest(schema.context_dependent_function_opset_versions, node.version)
        kinds = [_type_proto(kind).SerializeToString() for kind in types]
        body = schema.get_context_dependent_function_with_opset_version(version, node.proto.SerializeToString(), kinds)
    else:
        return None
    proto = onnx.FunctionProto()
    proto.ParseFromString(body)
    return (proto, defaults) if proto.node else None


def _latest(versions: Sequence[int], version: int) -> int:
    """The last body made for `version` or before."""
    fitting = [since for since in versions if since <= version]
    return max(fitting, default=min(versions))


def _type_proto(kind: TensorType | None) -> Any:
    onnx = package()
    if kind is None:
        return onnx.TypeProto()
    return onnx.helper.make_tensor_type_proto(_NUMBERS[kind.dtype.name], kind.shape)


def _graph(proto: Any, nodes: Sequence[Node]) -> Graph:
    untyped: Mapping[str, Any] = {"type": "untyped", "shape": None}
    inputs = tuple([Declared(name, **untyped) for name in proto.input])
    outputs = tuple([Declared(name, **untyped) for name in proto.output])
    return Graph(proto.name, tuple(nodes), inputs, outputs)


def _resolved(node: Any, attributes: Mapping[str, Any]) -> Any:
    """`node` of a body with references to the function's attributes replaced by these; absent ones fall away."""
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            value = attributes.get(attribute.ref_attr_name)
            if value is None:
                continue
            resolved = copy.attribute.add()
            resolved.CopyFrom(value)
            resolved.name = attribute.name
        else:
            resolved = copy.attribute.add()
            resolved.CopyFrom(attribute)
            for subgraph in (*([resolved.g] if resolved.HasField("g") else []), *resolved.graphs):
                inner = [_resolved(inner_node, attributes) for inner_node in subgraph.node]
                del subgraph.node[:]
                subgraph.node.extend(inner)
    return copy
