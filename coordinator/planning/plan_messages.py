"""Plan messages: from a plan to the messages that carry it out, and from answers to a call's outputs.

Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from wire.errors import BlobMissing
from wire.ir.graph import WireGraph, const_value
from wire.ir.ops import LEAVES
from wire.ir.types import HostArray, TensorType
from wire.protocol.messages import BlobSpec, Deploy, InputType, Member, PartSpec, PlanKey, SourceKind, Target, Working
from wire.protocol.messages import Carry as WireCarry
from wire.protocol.messages import Gang as WireGang
from wire.protocol.messages import Source as WireSource
from wire.timeouts import COLLECTIVE_TIMEOUT_S

from .model.plan import FromConst, FromInput, FromParam, FromPart, FromState, Output, Part, Pieces, Plan, Source, Window
from .model.profiles import CLIENT

Content = tuple[bytes, TensorType]  # its address and type
Bindings = Mapping[str, Content]
Params = Mapping[FromParam | FromState, Content]
State = Mapping[FromState, tuple[Content, frozenset[str]]]  # what pieces of a state are, and which nodes hold them
Fed = tuple[int, int, FromInput]  # part, slot, and what it gets
HOLDERS_MAX = 8
COMPILE_S = 0.03  # per node of a graph, of a slow driver: llvmpipe took 0.014 with nothing cached
PREPARING = -1  # the step of a part that is being compiled: there is none yet
WORK_SHOWN = 4


def nodes(plan: Plan) -> frozenset[str]:
    """The workers a plan uses."""
    return frozenset(part.node for part in plan.parts)


def part_seconds(plan: Plan) -> dict[int, float]:
    """What every part is predicted to take: anything at all where values decide how much there is to do, or others when
    it can go on."""
    waiting = plan.ranks
    return {
        part.index: math.inf if part.graph.work_varies or part.index in waiting else part.seconds for part in plan.parts
    }


def prepare_seconds(plan: Plan) -> dict[int, float]:
    """What every part should take to compile where no cache has it."""
    return {part.index: COMPILE_S * part.graph.total_nodes for part in plan.parts}


def working(run: Working) -> tuple[int, int, int, float]:
    """The work that a worker reports, as the machine of calls has it."""
    return run.plan.generation, PREPARING if run.preparing else run.step, run.part, run.seconds


def work_of(plan: Plan, node: str, part: int | None = None) -> frozenset[str]:
    """The work of a worker in a plan, or in one part of it, as "op dtype[shape]": comparable across plans."""
    graphs = [mine.graph for mine in plan.parts if mine.node == node and part in (None, mine.index)]
    return frozenset(
        f"{node.op} {kind}"
        for graph in graphs
        for node, kind in zip(graph.nodes, graph.types, strict=True)
        if node.op not in LEAVES
    )


def work_text(work: frozenset[str]) -> str:
    """The names of some work for people, not too long."""
    names = sorted(work)
    more = f" and {len(names) - WORK_SHOWN} more" if len(names) > WORK_SHOWN else ""
    return ", ".join(names[:WORK_SHOWN]) + more


def audited_text(plan: Plan) -> str:
    """The part of a plan that is audited, for people."""
    assert plan.audit is not None
    return f"part {plan.audit.part} ({work_text(work_of(plan, plan.audit.node, plan.audit.part))})"


def output_count(plan: Plan) -> int:
    """How many outputs come back from workers."""
    return len(plan.arrivals)


def feeds(plan: Plan) -> dict[str, tuple[Fed, ...]]:
    """What each worker is sent with every call."""
    result: dict[str, list[Fed]] = {}
    for part in plan.parts:
        for slot, source in enumerate(part.sources):
            if isinstance(source, FromInput):
                result.setdefault(part.node, []).append((part.index, slot, source))
    return {node: tuple(rows) for node, rows in result.items()}


@dataclass(frozen=True, slots=True)
class Transfers:
    """What workers send by a plan: the maker and the type of every output, by its number, and of every tensor between
    two workers the one that sends it, the one that it is for, and its type, by the part and slot that it is for."""

    outputs: Mapping[int, tuple[str, TensorType]]
    edges: Mapping[tuple[int, int], tuple[str, str, TensorType]]


NO_TRANSFERS = Transfers({}, {})


def transfers(plan: Plan) -> Transfers:
    """What workers send by a plan."""

    def made(source: FromPart) -> tuple[str, TensorType]:
        part = plan.parts[source.part]
        return part.node, part.graph.types[part.graph.outputs[source.slot]]

    edges = {}
    for edge in plan.edges:
        maker, kind = made(edge.source)
        edges[edge.part, edge.slot] = maker, plan.parts[edge.part].node, kind
    return Transfers({slot: made(source) for slot, source in plan.arrivals.items()}, edges)


def params_of(plan: Plan, node: str | None = None) -> dict[FromParam, None]:
    """The params, and windows of params, that a worker needs, or all of them; each once, in order."""
    mine = (part for part in plan.parts if node in (None, part.node))
    return dict.fromkeys(source for part in mine for source in part.sources if isinstance(source, FromParam))


def states_of(plan: Plan, node: str) -> dict[FromState, None]:
    """The pieces of the state that a worker needs to begin with; each once, in order."""
    mine = (part for part in plan.parts if part.node == node)
    return dict.fromkeys(source for part in mine for source in part.sources if isinstance(source, FromState))


def pieces_of(plan: Plan) -> dict[tuple[int, int], FromState]:
    """The piece of the state that each output is, by part and slot."""
    return {(carry.source.part, carry.source.slot): carry.state for carry in plan.carries}


@dataclass(frozen=True, slots=True)
class Inventory:
    """What workers have: by worker the content that it holds or was sent for, in the order in which the receiver of a
    plan asks them; the addresses by which each is reached; and the graphs that the receiver has.  `slower` says whether
    content takes longer to come from a worker than from the coordinator."""

    holders: Mapping[str, AbstractSet[bytes]]
    addresses: Mapping[str, tuple[str, ...]]
    graphs: AbstractSet[bytes] = frozenset()
    slower: Callable[[str], bool] = lambda _: False


def deploy(
    plan: Plan,
    node: str,
    key: PlanKey,
    params: Params,
    inventory: Inventory,
    timeout_s: float = COLLECTIVE_TIMEOUT_S,
    force: bool = False,
) -> Deploy:
    """The message that deploys a plan on `node`: its parts, the graphs it does not have, the content it needs and who
    holds it.

    Ranks wait for each other for `timeout_s`; with `force` the parts are compiled anew.
    """
    mine = [part for part in plan.parts if part.node == node]
    targets, carries = _targets(plan), _carries(plan)
    specs = tuple(
        PartSpec(
            part.index,
            part.device,
            part.graph.hash,
            tuple(_wire_source(source, params, plan) for source in part.sources),
            tuple(tuple(targets.get((part.index, slot), ())) for slot in range(len(part.graph.outputs))),
            tuple(carries.get(part.index, ())),
            _gang(plan, part.index, timeout_s),
        )
        for part in mine
    )
    graphs = {part.graph.hash: part.graph.encoded for part in mine if part.graph.hash not in inventory.graphs}
    used, holders = nodes(plan), inventory.holders
    peers = {other: known for other, known in inventory.addresses.items() if other in used or other in holders}
    wanted = contents_of(plan, node, params).items()
    blobs = tuple(spec_of(blob, kind, _holders(blob, inventory), kept) for blob, (kind, kept) in wanted)
    types = tuple(
        InputType(part.index, slot, kind.dtype.name, kind.shape) for part in mine for slot, kind in _sent_types(part)
    )
    return Deploy(key, specs, graphs, blobs, peers, force, plan.ordered, types)


def _sent_types(part: Part) -> Iterator[tuple[int, TensorType]]:
    """The types of the inputs of a part that are sent with every step, by their position."""
    for slot, (source, node) in enumerate(zip(part.sources, part.graph.inputs, strict=True)):
        if isinstance(source, FromInput | FromPart):
            yield slot, part.graph.types[node]


def outputs(
    plan: Plan,
    arrived: Mapping[int, HostArray],
    inputs: Mapping[str, HostArray],
    params: Mapping[str, HostArray],
) -> list[HostArray]:
    """A call's outputs in graph order; what is merely passed through is copied."""
    given = {source: arrived[position] for position, source in plan.arrivals.items()}
    mine = zip(plan.outputs, plan.graph.outputs, strict=False)  # what follows are the counts of an audit
    return [_output(source, index, plan.graph, given, inputs, params) for source, index in mine]


def outputs_whole(plan: Plan) -> bool:
    """Whether every output of a call comes whole from a worker, under its own position."""
    return all(isinstance(source, FromPart) for source in plan.outputs)


def copied_bytes(plan: Plan) -> int:
    """The bytes that `outputs` copies: of what does not come from a worker as it is."""
    made = zip(plan.outputs, plan.graph.outputs, strict=False)
    return sum(plan.graph.types[index].size_bytes for source, index in made if not isinstance(source, FromPart))


def counts(plan: Plan, arrived: Mapping[int, HostArray]) -> list[int]:
    """What the auditors of a plan found, in their order."""
    return [int(arrived[slot]) for slot in range(len(plan.graph.outputs), len(plan.outputs))]


def _output(
    source: Output,
    node: int,
    graph: WireGraph,
    arrived: Mapping[FromPart, HostArray],
    inputs: Mapping[str, HostArray],
    params: Mapping[str, HostArray],
) -> HostArray:
    match source:
        case FromPart():
            return arrived[source]
        case Pieces(pieces):
            return assembled(graph.types[node], ((window, arrived[piece]) for piece, window in pieces))
        case FromInput(name, window):
            return _window(inputs[name], window).copy()
        case FromParam(name, window):
            if name not in params:
                raise BlobMissing(f"the param {name!r} is an output, but its value is not in this process")
            return _window(params[name], window).copy()
        case FromConst(index):
            return _constant(graph, index)
        case FromState(name):
            raise BlobMissing(f"the state {name!r} is an output, and its value is on the workers")


def assembled(kind: TensorType, pieces: Iterable[tuple[Window, HostArray]]) -> HostArray:
    """The tensor that pieces are windows of."""
    whole = np.empty(kind.shape, kind.dtype.numpy)
    for window, piece in pieces:
        inside = whole[window.index]  # a piece may be longer, and a window may reach beyond the end
        inside[...] = piece[tuple(map(slice, inside.shape))]
    return whole


def _window(array: HostArray, window: Window | None) -> HostArray:
    return array if window is None else window.of(array)


def _constant(graph: WireGraph, index: int) -> HostArray:
    node, kind = graph.nodes[index], graph.types[index]
    if node.op == "const":
        return const_value(node, graph.blobs).copy()
    shape = [-1 if axis == node.attrs["axis"] else 1 for axis in range(len(kind.shape))]
    line = np.arange(kind.shape[node.attrs["axis"]]).astype(kind.dtype.numpy).reshape(shape)
    return np.broadcast_to(line, kind.shape).copy()


def _gang(plan: Plan, part: int, timeout_s: float) -> WireGang | None:
    """The ranks that a part is one of, if it is."""
    gang = plan.ranks.get(part)
    if gang is None:
        return None
    members = (plan.parts[member] for member in gang.parts)
    wire_members = tuple(Member(member.node, member.index, member.device) for member in members)
    return WireGang(gang.axes, gang.sizes, gang.parts.index(part), wire_members, gang.bytes_per_s, timeout_s)


def _targets(plan: Plan) -> dict[tuple[int, int], list[Target]]:
    targets: dict[tuple[int, int], list[Target]] = {}
    for edge in plan.edges:
        target = Target(plan.parts[edge.part].node, edge.part, edge.slot)
        targets.setdefault((edge.source.part, edge.source.slot), []).append(target)
    for position, source in plan.arrivals.items():
        targets.setdefault((source.part, source.slot), []).append(Target(CLIENT, 0, position))
    return targets


def _carries(plan: Plan) -> dict[int, list[WireCarry]]:
    """What every part leaves for the next step, and for whom: parts on the same device."""
    readers: dict[tuple[str, int, Source], list[tuple[int, int]]] = {}  # by device and state: parts and slots
    for part in plan.parts if plan.carries else ():
        for slot, source in enumerate(part.sources):
            readers.setdefault((part.node, part.device, source), []).append((part.index, slot))
    carries: dict[int, list[WireCarry]] = {}
    for carry in plan.carries:
        maker = plan.parts[carry.source.part]
        reading = readers.get((maker.node, maker.device, carry.state), ())
        carries.setdefault(maker.index, []).extend(WireCarry(carry.source.slot, *reader) for reader in reading)
    return carries


def _wire_source(source: Source, params: Params, plan: Plan) -> WireSource:
    match source:
        case FromInput():
            return WireSource(SourceKind.INPUT)
        case FromPart(part, slot):
            return WireSource(SourceKind.EDGE, part, slot, node=plan.parts[part].node)
        case FromParam() | FromState():
            return WireSource(SourceKind.PARAM, blob=params[source][0])


def contents_of(plan: Plan, node: str, params: Params) -> dict[bytes, tuple[TensorType, bool]]:
    """What a worker needs to have for its parts, by address, and whether it may be kept."""
    wanted: dict[bytes, tuple[TensorType, bool]] = {}
    for part in plan.parts:
        if part.node != node:
            continue
        for source in part.sources:
            if isinstance(source, FromParam | FromState):
                address, kind = params[source]
                kept = isinstance(source, FromParam) or wanted.get(address, (kind, False))[1]
                wanted[address] = kind, kept
        for constant, kind in zip(part.graph.nodes, part.graph.types, strict=True):
            if constant.op == "const" and "blob" in constant.attrs:
                wanted[constant.attrs["blob"]] = kind, True
    return wanted


def spec_of(blob: bytes, kind: TensorType, holders: tuple[str, ...], keep: bool) -> BlobSpec:
    """The description of content that a worker needs."""
    return BlobSpec(blob, kind.size_bytes, kind.dtype.name, kind.shape, holders, keep)


def _holders(blob: bytes, inventory: Inventory) -> tuple[str, ...]:
    """Workers that have it come first: what they send does not pass through the client's machine."""
    having = [node for node, blobs in inventory.holders.items() if blob in blobs][:HOLDERS_MAX]
    slower = [node for node in having if inventory.slower(node)]
    return (*[node for node in having if node not in slower], CLIENT, *slower)
