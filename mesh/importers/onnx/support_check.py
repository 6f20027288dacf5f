"""Support check: what of a Program this importer does not have, all of it at once, before anything is traced or
shipped.

A node is in scope if its op has a row, or a function body whose nodes are in scope, if its attributes are those of its
op's version, and if every value whose type the file or the schemas tell is a tensor of a dtype that graphs have.  What
depends on shapes and values is found while tracing, by the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wire.errors import InputError, Unsupported
from wire.ir.dtypes import BY_NAME

from . import functions
from .evaluate import Row
from .program import DOMAIN, ELEMENT_TYPES, Graph, Node, Program, element_name
from .reading import domain, package
from .types import Kind, kinds_of

STRINGS, SEQUENCES, OPTIONALS = "strings are out of scope", "sequences are out of scope", "optionals are out of scope"
OUT_OF_SCOPE = {
    "ConcatFromSequence": SEQUENCES,
    "ImageDecoder": "image files are out of scope (decode before the model)",
    "Optional": OPTIONALS,
    "OptionalGetElement": OPTIONALS,
    "OptionalHasElement": OPTIONALS,
    "RegexFullMatch": STRINGS,
    "SequenceAt": SEQUENCES,
    "SequenceConstruct": SEQUENCES,
    "SequenceEmpty": SEQUENCES,
    "SequenceErase": SEQUENCES,
    "SequenceInsert": SEQUENCES,
    "SequenceLength": SEQUENCES,
    "SequenceMap": SEQUENCES,
    "SplitToSequence": SEQUENCES,
    "StringConcat": STRINGS,
    "StringNormalizer": STRINGS,
    "StringSplit": STRINGS,
}
DOMAINS_OUT_OF_SCOPE = {
    "ai.onnx.ml": "the ML domain is out of scope",
    "ai.onnx.training": "training is out of scope",
    "ai.onnx.preview.training": "training is out of scope",
}
FUNCTIONS_DEEP_MAX = 50
NODES_MAX = 1_000_000
_Words = dict[str, tuple[str, ...]]
_WINDOWS: _Words = {"auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")}
_SCATTERED: _Words = {"reduction": ("none", "add", "mul", "max", "min")}
_BLOCKS: _Words = {"mode": ("DCR", "CRD")}
WORDS: dict[str, _Words] = {  # what the attributes of an op may say where they are words
    **dict.fromkeys(
        ("AveragePool", "Conv", "ConvInteger", "ConvTranspose", "LpPool", "MaxPool", "QLinearConv"), _WINDOWS
    ),
    **dict.fromkeys(("ScatterElements", "ScatterND"), _SCATTERED),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _BLOCKS),
    "BitShift": {"direction": ("LEFT", "RIGHT")},
    "Gelu": {"approximate": ("none", "tanh")},
    "GridSample": {
        "mode": ("linear", "nearest", "cubic", "bilinear", "bicubic"),
        "padding_mode": ("zeros", "border", "reflection"),
    },
    "Resize": {"keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller")},
    "RoiAlign": {"coordinate_transformation_mode": ("half_pixel", "output_half_pixel"), "mode": ("avg", "max")},
    "TensorScatter": {"mode": ("linear", "circular")},
    "TfIdfVectorizer": {"mode": ("TF", "IDF", "TFIDF")},
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not supported."""

    node: str
    op: str
    domain: str
    version: int
    reason: str

    def __str__(self) -> str:
        return f"node {self.node!r}: {self.domain or 'ai.onnx'} {self.op} version {self.version}: {self.reason}"


def require_supported(program: Program, rows: Mapping[tuple[str, str], Row]) -> None:
    """Raise Unsupported with every problem of the model, one per line; InputError if its functions have no end."""
    _require_finite(program)
    missing = list(dict.fromkeys(problems(program, rows)))
    if missing:
        lines = "".join(f"\n  {problem}" for problem in missing)
        raise Unsupported(
            f"the model asks for {len(missing)} thing{'s'[: len(missing) > 1]} that are not supported:{lines}\n",
            op=missing[0].op,
            next_step="docs/importers.md lists what is supported",
        )


def _require_finite(program: Program) -> None:
    """Refuse functions that call themselves, or one another so often that nobody can write their nodes out."""
    known: dict[tuple[str, str, str], int] = {}

    def written_out(protos: Any, depth: int) -> int:
        total = 0
        for proto in protos:
            key = domain(proto.domain), proto.op_type, getattr(proto, "overload", "")
            if key in program.functions and key not in known:
                if depth == FUNCTIONS_DEEP_MAX:
                    raise InputError(f"the function {proto.op_type!r} of the model calls itself, or calls too deep")
                known[key] = written_out(program.functions[key].node, depth + 1)
            graphs = [graph for part in proto.attribute for graph in (*part.graphs, part.g)]
            total += 1 + known.get(key, 0) + sum(written_out(graph.node, depth) for graph in graphs)
        if total > NODES_MAX:
            raise InputError(f"the functions of the model are more than {NODES_MAX:,} nodes when they are written out")
        return total

    for function in program.functions.values():
        written_out(function.node, 0)


def problems(program: Program, rows: Mapping[tuple[str, str], Row]) -> Iterator[Problem]:
    """Everything that is out of scope, in the order of the file."""
    newest = package().defs.onnx_opset_version()
    version = program.versions.get(DOMAIN, 1)
    if version > newest:
        yield Problem("", "model", DOMAIN, version, f"the package onnx knows opsets up to {newest}: upgrade it")
    yield from [Problem(*problem) for problem in program.problems]
    yield from _graph(program, program.graph, rows, {})


def _graph(
    program: Program, graph: Graph, rows: Mapping[tuple[str, str], Row], outer: Mapping[str, Kind]
) -> Iterator[Problem]:
    for declared in graph.inputs:
        reason = _reason(declared.type)
        if reason:
            yield Problem(declared.name, "input", DOMAIN, program.versions.get(DOMAIN, 1), reason)
    kinds = kinds_of(graph, outer)
    for node in graph.nodes:
        reasons = list(_node(program, node, rows, kinds))
        yield from reasons
        if not reasons:
            given = [_reason(kinds[name]) for name in node.outputs if name in kinds]
            yield from [_problem(node, reason) for reason in dict.fromkeys(given) if reason]


def _node(
    program: Program, node: Node, rows: Mapping[tuple[str, str], Row], kinds: Mapping[str, Kind]
) -> Iterator[Problem]:
    if (node.domain, node.op) in rows:
        yield from [_problem(node, reason) for reason in _attributes(node)]
        for subgraph in node.subgraphs:
            yield from _graph(program, subgraph, rows, kinds)
        return
    reason = OUT_OF_SCOPE.get(node.op) if node.domain == DOMAIN else DOMAINS_OUT_OF_SCOPE.get(node.domain)
    if reason is not None:
        yield _problem(node, reason)
    elif not functions.is_function(program, node):
        yield _problem(node, "no such op")
    else:
        body = functions.expand(program, node, ())
        if body is not None:  # one that depends on types is looked into while tracing
            yield from [_problem(node, reason[-1]) for reason in body[1]]
            for inner in body[0].nodes:
                missing = _node(program, inner, rows, {})
                yield from [_problem(node, f"its body needs {problem.op}: {problem.reason}") for problem in missing]


def _attributes(node: Node) -> Iterator[str]:
    """What is wrong with a node's attributes; a row reads those that it knows, and would pass over the others."""
    schema = functions.schema_of(node)
    if schema is None or node.proto is None:
        return
    known = schema.attributes
    for proto in node.proto.attribute:
        name, kind = proto.name, package().AttributeProto.AttributeType.Name(proto.type)
        words = WORDS.get(node.op, {}).get(name)
        if name not in known:
            yield f"it has no attribute {name!r}"
        elif known[name].type.name != kind:
            yield f"its attribute {name!r} is of kind {known[name].type.name.lower()}, not {kind.lower()}"
        elif words and node.attributes[name] not in words:
            yield f"its attribute {name!r} is one of {', '.join(words)}, not {node.attributes[name]!r}"


def _problem(node: Node, reason: str) -> Problem:
    return Problem(node.label, node.op, node.domain, node.version, reason)


def _reason(kind: Kind) -> str | None:
    """Why a value of this kind is out of scope; None if it is not, or if its kind is not known."""
    if isinstance(kind, str):
        return None if kind == "untyped" else f"{kind} is out of scope"
    if kind == 0 or ELEMENT_TYPES.get(kind, ("", None))[1] in BY_NAME:
        return None
    return f"a tensor of {element_name(kind)} is out of scope"
