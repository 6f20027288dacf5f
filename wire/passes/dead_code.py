"""prune: branches, loops and ranks that compute only what is needed, with the same values.

Results that nobody reads go, and with them carries that feed nothing else, and operands that are left over.  A while
still turns as often: what its test reads stays.  Nodes are visited from the outputs back, so what one loop does not
need any more is not computed by the loops before it.  `simplify` does this first; it knows no other rewrite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..ir.graph import GraphBuilder, Node, WireGraph
from ..ir.ops import result_count
from ..limits import DEFAULT, Limits
from .provenance import Provenance


class _Kept(NamedTuple):
    """What is left of such a node: attributes but `output`, places of operands, and of results in order."""

    attrs: dict[str, Any]
    operands: tuple[int, ...]
    outputs: tuple[int, ...]


def prune(graph: WireGraph, limits: Limits = DEFAULT, provenance: Provenance | None = None) -> WireGraph:
    """`graph` itself if everything in it is needed."""
    groups = [(first, group) for first, group in graph.siblings.items() if graph.nodes[first].op in _RULES]
    if not groups:
        return graph
    kept = _live(graph)
    if all(len(kept[first].operands) == len(graph.nodes[first].inputs) and _is_whole(graph, first, kept[first])
           for first, _ in groups if first in kept) and len(kept) == len(groups):  # fmt: skip
        return graph
    first_of = {index: first for first, group in groups for index in group}
    builder = GraphBuilder(limits)
    builder.blobs.update(graph.blobs)
    placed: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        if any(source not in placed for source in node.inputs) and index not in first_of:
            continue  # it fed what is gone
        if index not in first_of:
            placed[index] = builder.copy(node, [placed[source] for source in node.inputs])
            continue
        kept_node = kept.get(first_of[index])
        if kept_node is not None and node.attrs["output"] in kept_node.outputs:
            operands = [placed[node.inputs[place]] for place in kept_node.operands]
            output = kept_node.outputs.index(node.attrs["output"])
            placed[index] = builder.add(node.op, *operands, **kept_node.attrs, output=output)
    outputs = [placed[index] for index in graph.outputs]
    if provenance is not None:
        for index, number in placed.items():
            provenance.note(index, (number,))
        provenance.passed(builder.order(outputs))
    return builder.build(outputs, graph.output_names, graph.name)


def _is_whole(graph: WireGraph, first: int, kept: _Kept) -> bool:
    return len(kept.outputs) == result_count(graph.nodes[first].op, graph.nodes[first].attrs)


def _live(graph: WireGraph) -> dict[int, _Kept]:
    """The needed outputs and operands of every branch or loop that is needed, by its first node."""
    later = {index for first, group in graph.siblings.items() for index in group if index != first}
    live = set(graph.outputs)
    kept: dict[int, _Kept] = {}
    for index in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[index]
        if node.op not in _RULES:
            live.update(node.inputs if index in live else ())
        elif index not in later:
            used = [graph.nodes[sibling].attrs["output"] for sibling in graph.siblings[index] if sibling in live]
            if used:
                kept[index] = _RULES[node.op](node, set(used))
                live.update(node.inputs[place] for place in kept[index].operands)
    return kept


# -- what each op needs -----------------------------------------------------------------------------------


def _cond(node: Node, used: set[int]) -> _Kept:
    outputs = sorted(used)
    read = reads(node.attrs["then"], outputs) | reads(node.attrs["otherwise"], outputs)
    graphs = {name: cut(node.attrs[name], outputs, sorted(read)) for name in ("then", "otherwise")}
    return _Kept(graphs, (0, *(place + 1 for place in sorted(read))), tuple(outputs))


def _while(node: Node, used: set[int]) -> _Kept:
    test, body = node.attrs["test"], node.attrs["body"]
    asked = reads(test, [0])
    read = _closed(body, used | {place for place in asked if place < len(body.outputs)}, asked)
    outputs = [place for place in sorted(read) if place < len(body.outputs)]
    operands = sorted(read)
    graphs = {"test": cut(test, [0], operands), "body": cut(body, outputs, operands)}
    return _Kept(graphs, tuple(operands), tuple(outputs))


def _scan(node: Node, used: set[int]) -> _Kept:
    body, carry, consts = (node.attrs[name] for name in ("body", "carry", "consts"))
    read = _closed(body, used, (), carry)
    outputs = sorted({place for place in read if place < carry} | used)
    operands = sorted(read)
    attrs = dict(node.attrs)
    del attrs["output"]
    attrs["body"] = cut(body, outputs, operands)
    attrs["carry"] = sum(place < carry for place in operands)
    attrs["consts"] = sum(carry <= place < carry + consts for place in operands)
    return _Kept(attrs, tuple(operands), tuple(outputs))


def _spmd(node: Node, used: set[int]) -> _Kept:
    body, outputs = node.attrs["body"], sorted(used)
    operands = sorted(reads(body, outputs))
    attrs = {name: node.attrs[name] for name in ("axes", "sizes")}
    attrs["body"] = cut(body, outputs, operands)
    attrs["in_specs"] = tuple([node.attrs["in_specs"][place] for place in operands])
    attrs["out_specs"] = tuple([node.attrs["out_specs"][place] for place in outputs])
    return _Kept(attrs, tuple(operands), tuple(outputs))


_RULES = {"cond": _cond, "while": _while, "scan": _scan, "spmd": _spmd}


def _closed(body: WireGraph, used: set[int], asked: Iterable[int], carry: int | None = None) -> set[int]:
    """The operands of a loop that are needed for these results: a carry that is read must be computed as well."""
    count = len(body.outputs) if carry is None else carry
    wanted = set(used)
    while True:
        read = reads(body, sorted(wanted)) | set(asked) | {place for place in wanted if place < count}
        more = {place for place in read if place < count}
        if more <= wanted:
            return read
        wanted |= more


def reads(graph: WireGraph, outputs: Sequence[int]) -> set[int]:
    """The places of the inputs that these outputs depend on."""
    needed = {graph.outputs[place] for place in outputs}
    for index in range(len(graph.nodes) - 1, -1, -1):
        if index in needed:
            needed.update(graph.nodes[index].inputs)
    return {place for place, index in enumerate(graph.inputs) if index in needed}


def cut(
    graph: WireGraph, outputs: Sequence[int], inputs: Sequence[int], provenance: Provenance | None = None
) -> WireGraph:
    """The graph with these inputs and outputs only, by their places; the outputs depend on no other inputs."""
    if len(outputs) == len(graph.outputs) and len(inputs) == len(graph.inputs):
        return graph
    builder = GraphBuilder()
    placed: dict[int, int] = {}
    for place in inputs:
        index = graph.inputs[place]
        placed[index] = builder.copy(graph.nodes[index], (), graph.types[index])
    for index, node in enumerate(graph.nodes):
        if node.op != "input" and all(source in placed for source in node.inputs):
            placed[index] = builder.copy(node, [placed[source] for source in node.inputs], graph.types[index])
    results = [placed[graph.outputs[place]] for place in outputs]
    if provenance is not None:
        for index, number in placed.items():
            provenance.note(index, (number,))
        provenance.passed(builder.order(results))
    return builder.build(results, [graph.output_names[place] for place in outputs], graph.name)
