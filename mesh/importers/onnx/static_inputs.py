"""Static values: which inputs and initialisers of a Program are read for their values while it is traced.

A value is needed if a node reads it (a Reshape's target, a TopK's k), or if a needed value is made of it.  Shapes are
known anyway, so nothing is needed for the sake of a Shape.  This is an analysis of names and knows no shapes: an input
may be found that only some shapes need.  To add an op that reads a value: a row of READS.
"""

from __future__ import annotations

from collections.abc import Iterable

from .functions import expand
from .program import DOMAIN, Graph, Node, Program

ALL = tuple(range(64))
READS: dict[str, tuple[int, ...]] = {  # the inputs that an op reads, by place
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "MelWeightMatrix": ALL,
    "NonMaxSuppression": ALL,
    "NonZero": (0,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": ALL,
    "ReduceL1": (1,),
    "ReduceL2": (1,),
    "ReduceLogSum": (1,),
    "ReduceLogSumExp": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "ReduceSumSquare": (1,),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1, 2),
    "TopK": (1,),
    "Trilu": (1,),
    "Unique": (0,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
SHAPE_ONLY = {"EyeLike", "RandomNormalLike", "RandomUniformLike", "Shape", "Size"}  # these look at no values


def needed_names(program: Program) -> frozenset[str]:
    """The names of the main graph's inputs and initialisers whose values are read while tracing."""
    return _needed(program, program.graph, set())


def _needed(program: Program, graph: Graph, from_outside: set[str]) -> frozenset[str]:
    """The names that `graph` needs, those of outer graphs included; `from_outside` are needed of its own values."""
    needed = set(from_outside)
    for node in reversed(graph.nodes):
        if node.domain == DOMAIN and node.op in SHAPE_ONLY:
            continue
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            needed.update(name for subgraph in node.subgraphs for name in _outer_names(subgraph))
        needed.update(_read(program, node))
    return frozenset(needed - {""})


def _read(program: Program, node: Node) -> Iterable[str]:
    if node.domain == DOMAIN and node.op in READS:
        places = READS[node.op]
        yield from [name for place, name in enumerate(node.inputs) if place in places]
    elif (expanded := expand(program, node, ())) is not None:
        body = expanded[0]
        inner = _needed(program, body, set())
        yield from [name for declared, name in zip(body.inputs, node.inputs, strict=False) if declared.name in inner]
    for subgraph in node.subgraphs:
        yield from _read_inside(program, node, subgraph)


def _read_inside(program: Program, node: Node, body: Graph) -> Iterable[str]:
    """What a branch, or the body of a loop, reads: outer names, and those of the node's inputs that it is given."""
    carried = dict(_carried(node, body))
    wanted = _decisive(node, body)
    inner = _needed(program, body, wanted)
    while not {carried[name] for name in inner & carried.keys()} <= wanted:
        wanted |= {carried[name] for name in inner & carried.keys()}  # this turn's value is what the last one gave
        inner = _needed(program, body, wanted)
    yield from inner
    first = 1 if node.op == "Scan" and node.version < 9 else 0
    yield from [
        name for declared, name in zip(body.inputs, node.inputs[first:], strict=False) if declared.name in inner
    ]


def _carried(node: Node, body: Graph) -> Iterable[tuple[str, str]]:
    """The body's inputs that are its own outputs of the turn before."""
    if node.op == "Loop":
        pairs = zip(body.inputs[2:], body.outputs[1:], strict=False)
    else:
        count = len(body.inputs) - node.attributes.get("num_scan_inputs", len(body.inputs))
        pairs = zip(body.inputs[:count], body.outputs[:count], strict=False)
    return [(carried.name, result.name) for carried, result in pairs]


def _decisive(node: Node, body: Graph) -> set[str]:
    """What of a loop's body says whether it goes on, where that decides about a shape: that of what it collects."""
    collects = len(body.outputs) - 1 > len(node.inputs) - 2
    return {body.outputs[0].name} if node.op == "Loop" and collects else set()


def _outer_names(graph: Graph) -> set[str]:
    """What a subgraph reads of the graphs around it."""
    own = {declared.name for declared in graph.inputs} | set(graph.initialisers)
    own.update(name for node in graph.nodes for name in node.outputs)
    read = {name for node in graph.nodes for name in node.inputs}
    read.update(declared.name for declared in graph.outputs)
    read.update(name for node in graph.nodes for subgraph in node.subgraphs for name in _outer_names(subgraph))
    return read - own
