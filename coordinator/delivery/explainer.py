"""Explainer: asks a worker which kernels it compiles a graph to, and what each of them costs there.

The graph is deployed as a plan of one part, which is dropped afterwards.  The worker makes its inputs and params
itself; only constants are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from wire.errors import InputError, PlacementError, ProtocolError, VersionMismatch
from wire.ir.device_names import DeviceName
from wire.ir.dtypes import dtype_named
from wire.ir.graph import WireGraph
from wire.ir.ops import LEAVES
from wire.ir.types import TensorType
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

from ..planning.model.cost_model import needs
from ..planning.model.profiles import CLIENT, WorkerProfile
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
        """What a worker tells of a graph; MeshError.  Kernels' nodes are those of `graph`."""
        _check_version(member)
        if graph.free_axes:
            axes = ", ".join(sorted(graph.free_axes))
            raise InputError(
                f"the graph is for one rank of several (axes {axes}), and runs with the others only",
                next_step="Explain the whole program, before it is split",
            )
        simple, provenance = await asyncio.to_thread(_simplified, graph)
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
        kernels = tuple(_translated(kernel, provenance, graph) for kernel in answer.kernels)
        return with_fields(answer, worker=member.profile.name, kernels=kernels)

    async def _request(self, member: Member, message: Deploy | Explain, kind: type[Any]) -> Any:
        answer = await member.link.request(message)
        if not isinstance(answer, kind):
            raise ProtocolError(f"expected {kind.__name__}, got {type(answer).__name__}", node=member.profile.name)
        return answer

    async def _drop(self, node: str, key: PlanKey) -> None:
        await self._deployer.drop(node, key)
        self.asked.discard(key.generation)


def device_for(profile: WorkerProfile, graph: WireGraph, asked: int | None) -> int:
    """The device of a worker that computes a graph alone: the one that was asked for, or the first that has every op.

    InputError if there is none of that number, PlacementError naming an op that a device lacks.
    """
    names = ", ".join(f"{device.index} ({device.engine})" for device in profile.devices)
    if asked is not None and asked not in [device.index for device in profile.devices]:
        raise InputError(f"{profile.name} has no device {asked}", next_step=f"It has: {names}")
    wanted = frozenset().union(*(needs(graph, n) for n, node in enumerate(graph.nodes) if node.op not in LEAVES))
    lacking: dict[int, str] = {}
    for device in profile.devices:
        if asked in (None, device.index):
            absent = [(op, dtypes) for op, dtypes in sorted(wanted) if not device.supports(op, dtypes)]
            absent += [need for need in sorted(wanted) if need[0] not in profile.ops]
            if not absent:
                return device.index
            op, dtypes = absent[0]
            lacking[device.index] = (
                f"{DeviceName('worker', device.index, profile.name).said} has no {op} of {', '.join(dtypes)}"
            )
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


def _simplified(graph: WireGraph) -> tuple[WireGraph, Provenance]:
    """The graph as plans have it."""
    provenance = Provenance(graph)
    return simplify(unroll(graph, provenance), provenance=provenance), provenance


def _constants(graph: WireGraph) -> dict[bytes, TensorType]:
    constants = [node.attrs for node in graph.nodes if node.op == "const" and "blob" in node.attrs]
    return {attrs["blob"]: TensorType(attrs["shape"], dtype_named(attrs["dtype"])) for attrs in constants}


def _sources(graph: WireGraph) -> tuple[Source, ...]:
    return (Source(SourceKind.INPUT),) * (len(graph.inputs) + len(graph.params))


def _translated(kernel: KernelReport, provenance: Provenance, graph: WireGraph) -> KernelReport:
    """A kernel with the nodes of the graph that was asked about; those of graphs inside are as the worker has them."""
    if kernel.inside is not None:
        return kernel
    nodes = {node for own in kernel.nodes if own < len(provenance.of) for node in provenance.of[own]}
    return with_fields(kernel, nodes=tuple(sorted(n for n in nodes if graph.nodes[n].op not in LEAVES)))
