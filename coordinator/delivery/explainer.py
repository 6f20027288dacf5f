"""Explainer: asks a worker which kernels it compiles a graph to, and what each of them costs there.

The graph is deployed as a plan of one part, which is dropped afterwards.  The worker makes its inputs and params
itself; only constants are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wire import deadlines
from wire.errors import InputError, PlacementError, ProtocolError, VersionMismatch
from wire.ir.device_names import DeviceName
from wire.ir.dtypes import dtype_named
from wire.ir.graph import Node, WireGraph
from wire.ir.ops import CONTROL, LEAVES
from wire.ir.types import TensorType
from wire.passes.dead_code import cut, reads
from wire.passes.provenance import Provenance
from wire.passes.simplify import simplify
from wire.passes.unroll_spmd import unroll
from wire.protocol.messages import (
    Deploy,
    Deployed,
    Explain,
    Explained,
    ExplainGraph,
    KernelReport,
    PartSpec,
    PlanKey,
    Source,
    SourceKind,
    with_fields,
)
from wire.protocol.versions import text
from wire.system.tasks import Tasks, unheard

from ..planning.model.profiles import CLIENT, WorkerProfile
from ..planning.model.unit_work import needs
from ..planning.plan_messages import spec_of
from ..workers.records import Member
from .deployer import Deployer
from .tensor_store import TensorStore

SINCE = (1, 1)  # the protocol that has explanations


class Explainer:
    """`key` names a plan that no call uses, and `asked` are the generations of those that are being explained."""

    def __init__(self, deployer: Deployer, store: TensorStore, key: Callable[[], PlanKey], tasks: Tasks) -> None:
        self.asked: set[int] = set()
        self._deployer = deployer
        self._store = store
        self._key = key
        self._tasks = tasks

    async def explain(self, member: Member, graph: WireGraph, question: ExplainGraph) -> Explained:
        """What a worker reports of a graph; MeshError.  Kernels' nodes are those of `graph`."""
        _check_version(member)
        if graph.free_axes:
            axes = ", ".join(sorted(graph.free_axes))
            raise InputError(
                f"the graph is for one rank of several (axes {axes}), and runs with the others only",
                next_step="Explain the whole program, before it is split",
            )
        whole = await asyncio.to_thread(_simplified, graph)
        simple = whole.simple
        constants = _constants(simple)
        absent = [kind for address, kind in constants.items() if address not in graph.blobs]
        if absent:
            raise InputError(
                f"{len(absent)} of the graph's large constants are not here, such as {absent[0]}",
                next_step="Load it from the .wire file that WireGraph.save wrote, which has them",
            )
        device, key = device_for(member.profile, simple, question.device), self._key()
        part = PartSpec(0, device, simple.hash, _sources(simple), ((),) * len(simple.outputs))
        blobs = tuple(spec_of(address, kind, (CLIENT,), keep=False) for address, kind in constants.items())
        for address in constants:
            self._store.hold(address, graph.blobs[address])
        self.asked.add(key.generation)
        try:
            await self._request(member, Deploy(key, (part,), {simple.hash: simple.encoded}, blobs, {}), Deployed)
            asked = Explain(key, 0, 0, question.texts, question.kernel)
            answer: Explained = await self._request(member, asked, Explained)
        finally:
            for address in constants:
                self._store.release(address)
            drop = self._drop(member.profile.node_id, key)
            self._tasks.run("dropping a plan", drop, unheard)
        kernels = await asyncio.to_thread(_translated, answer.kernels, whole)
        return with_fields(answer, worker=member.profile.name, kernels=kernels)

    async def _request(self, member: Member, message: Deploy | Explain, kind: type[Any]) -> Any:
        blobs = message.blobs if isinstance(message, Deploy) else ()
        answer = await member.answer(message, deadlines.EXPLAIN, sum(spec.size_bytes for spec in blobs))
        if not isinstance(answer, kind):
            raise ProtocolError(f"expected {kind.__name__}, got {type(answer).__name__}", node=member.profile.name)
        return answer

    async def _drop(self, node: str, key: PlanKey) -> None:
        await self._deployer.drop(node, key)
        self.asked.discard(key.generation)


def device_for(profile: WorkerProfile, graph: WireGraph, device_index: int | None) -> int:
    """The device of a worker that computes a graph alone: the one that was asked for, or the first that has every op.

    InputError if there is none of that number, PlacementError naming an op that a device lacks.
    """
    names = ", ".join(f"{device.index} ({device.engine})" for device in profile.devices)
    if device_index is not None and device_index not in [device.index for device in profile.devices]:
        raise InputError(f"{profile.name} has no device {device_index}", next_step=f"It has: {names}")
    wanted = frozenset().union(*(needs(graph, n) for n, node in enumerate(graph.nodes) if node.op not in LEAVES))
    lacking: dict[int, str] = {}
    for device in profile.devices:
        if device_index in (None, device.index):
            absent = [need for need in sorted(wanted) if not device.supports(*need)]
            absent += [need for need in sorted(wanted) if need.op not in profile.ops]
            if not absent:
                return device.index
            lacking[device.index] = f"{DeviceName('worker', device.index, profile.name).text} has no {absent[0]}"
    raise PlacementError(
        f"no device of {profile.name} computes this graph alone: {'; '.join(lacking.values())}",
        next_step="Explain the parts of a plan one by one, or name another worker",
    )


def _check_version(member: Member) -> None:
    theirs = member.link.peer.protocol
    if theirs < SINCE:
        name = member.profile.name
        raise VersionMismatch(
            f"{name} is too old to explain graphs: it speaks protocol {text(theirs)}",
            expected=text(SINCE),
            got=text(theirs),
            upgrade=name,
            node=name,
            next_step=f"Upgrade graph-mesh on {name}",
        )


@dataclass(frozen=True, slots=True)
class _Simplified:
    """A graph, the same as plans have it, and which nodes of the first each node of the second comes from."""

    graph: WireGraph
    simple: WireGraph
    provenance: Provenance

    def originals(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """The nodes of the graph that these of the simple one compute."""
        known = [node for node in nodes if node < len(self.provenance.of)]
        found = {node for own in known for node in self.provenance.of[own] if self.graph.nodes[node].op not in LEAVES}
        return tuple(sorted(found))

    def inner(self, nodes: Iterable[int], body: str) -> _Simplified | None:
        """The graph `body` of one of these nodes of the simple graph; None if it was not simplified by itself."""
        for own in [node for node in nodes if node < len(self.provenance.of)]:
            known = _body_of(self.simple.nodes[own], body)
            for original in [_body_of(self.graph.nodes[node], body) for node in self.originals([own])]:
                if known is not None and original is not None:
                    made = _simplified_inside(original, known)
                    return made if made.simple == known else None
        return None


def _body_of(node: Node, name: str) -> WireGraph | None:
    """The graph of this name inside a branch or a loop; None for another name, as a worker may say any."""
    body = node.attrs.get(name)
    return body if node.op in CONTROL and isinstance(body, WireGraph) else None


def _simplified(graph: WireGraph) -> _Simplified:
    provenance = Provenance(graph)
    return _Simplified(graph, simplify(unroll(graph, provenance), provenance=provenance), provenance)


def _simplified_inside(body: WireGraph, planned: WireGraph) -> _Simplified:
    """A graph inside a branch or a loop, with the outputs and inputs that `planned` has: plans leave out the others."""
    provenance = Provenance(body)
    outputs = [place for place, name in enumerate(body.output_names) if name in planned.output_names]
    needed = cut(body, outputs, range(len(body.inputs)), provenance)
    simple = simplify(unroll(needed, provenance), provenance=provenance)
    inputs = [place for place, name in enumerate(simple.input_types) if name in planned.input_types]
    if reads(simple, range(len(simple.outputs))) <= set(inputs):
        simple = cut(simple, range(len(simple.outputs)), inputs, provenance)
    return _Simplified(body, simple, provenance)


def _constants(graph: WireGraph) -> dict[bytes, TensorType]:
    constants = [node.attrs for node in graph.nodes if node.op == "const" and "blob" in node.attrs]
    return {attrs["blob"]: TensorType(attrs["shape"], dtype_named(attrs["dtype"])) for attrs in constants}


def _sources(graph: WireGraph) -> tuple[Source, ...]:
    return (Source(SourceKind.INPUT),) * (len(graph.inputs) + len(graph.params))


def _translated(kernels: Sequence[KernelReport], whole: _Simplified) -> tuple[KernelReport, ...]:
    """Kernels with the nodes of the graph that was asked about, and of the graphs inside it; none where these are not
    known."""
    around: list[_Simplified | None] = []  # by kernel, the graph of its nodes
    inner: dict[tuple[int, str], _Simplified | None] = {}
    for number, kernel in enumerate(kernels):
        if kernel.inside is None:
            around.append(whole)
            continue
        if kernel.inside >= number:
            raise ProtocolError(f"kernel {number} is inside of kernel {kernel.inside}, which does not come before it")
        place = kernel.inside, kernel.body
        if place not in inner:
            outer = around[kernel.inside]
            inner[place] = None if outer is None else outer.inner(kernels[kernel.inside].nodes, kernel.body)
        around.append(inner[place])
    return tuple(
        with_fields(kernel, nodes=() if graph is None else graph.originals(kernel.nodes))
        for kernel, graph in zip(kernels, around, strict=True)
    )
