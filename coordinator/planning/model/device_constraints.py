"""Device constraints: what has to be computed on which device, because a program says so with `transfer`.  Pure.

A node is pinned where its operands are: those that are pinned must agree, the others have no say.  A `transfer` moves
its operand, and what follows from it, to another device; one to any device leaves them free.
"""

from __future__ import annotations

from dataclasses import replace

from wire.errors import InputError, NoSuchDevice
from wire.ir.device_names import ANY, DeviceName, device_named
from wire.ir.graph import Node, WireGraph
from wire.ir.graph_memory import kept_with_graph
from wire.ir.ops import GRAPH_ATTRS, LEAVES, inner_graphs
from wire.ir.types import Attrs
from wire.protocol.engine_names import ON_CPU

from .profiles import DeviceProfile, Profiles, WorkerProfile

RANKS = "a device is named in what is split over ranks (by mesh.shard, mesh.shard_map or the strategy)"
RANKS_STEP = "Name none there, since every rank has a device of its own, or choose strategy='single'"


def pins(graph: WireGraph) -> dict[int, DeviceName]:
    """The nodes that are pinned; what ranks compute is not.  InputError where operands are on different devices, and
    for a transfer inside of a branch, a loop or ranks."""
    pinned: dict[int, DeviceName] = {}
    bodies = [inner for n in graph.nodes if n.op in GRAPH_ATTRS for inner in inner_graphs(n.op, n.attrs)]
    if not any(n.op == "transfer" for n in graph.nodes) and not any(map(_transfers, bodies)):
        return pinned
    for index, node in enumerate(graph.nodes):
        if any(map(_transfers, inner_graphs(node.op, node.attrs))):
            raise InputError(
                RANKS
                if node.op == "spmd"
                else f"a device is named inside of a {node.op}, which is computed on one as a whole",
                op=f"{node.op} (node {index})",
                next_step=RANKS_STEP if node.op == "spmd" else "Name it outside",
            )
        if node.op == "transfer":
            if node.attrs["device"] != ANY:
                pinned[index] = device_named(node.attrs["device"])
        elif node.op not in LEAVES and node.op != "spmd":
            mine = dict.fromkeys(pinned[operand] for operand in node.inputs if operand in pinned)
            if len(mine) > 1:
                names = " and ".join(device.text for device in mine)
                raise InputError(
                    f"the operands of {node.op} are on different devices: {names}",
                    op=f"{node.op} (node {index})",
                    next_step="Transfer one of them",
                )
            pinned.update((index, device) for device in mine)
    return pinned


def by_worker(graph: WireGraph, profiles: Profiles) -> WireGraph:
    """The graph with accelerators named by their workers, since they are numbered among all workers that there are, and
    not among those that are planned for."""
    moves = {index: node for index, node in enumerate(graph.nodes) if node.op == "transfer"}
    sites = {f"accelerator {number}": site for number, site in enumerate(profiles.accelerators)} if moves else {}
    names = {worker.node_id: worker.name for worker in profiles.workers} if moves else {}
    nodes = list(graph.nodes)
    for index, (op, inputs, attrs) in moves.items():
        if (site := sites.get(attrs["device"])) is not None:
            nodes[index] = Node(op, inputs, Attrs({"device": str(DeviceName("worker", site[1], names[site[0]]))}))
    return replace(graph, nodes=tuple(nodes)) if any(nodes[index] is not moves[index] for index in moves) else graph


@kept_with_graph
def _transfers(graph: WireGraph) -> bool:
    """Whether a graph, or one inside it, names a device."""
    return any(n.op == "transfer" or any(map(_transfers, inner_graphs(n.op, n.attrs))) for n in graph.nodes)


def allows(name: DeviceName, worker: WorkerProfile, device: DeviceProfile, profiles: Profiles) -> bool:
    """Whether a device is one of those that a name means."""
    if name.kind == "worker":
        return name.worker in (worker.name, worker.node_id) and name.number in (-1, device.index)
    if name.kind == "accelerator":
        others = profiles.accelerators
        return name.number < len(others) and others[name.number] == (worker.node_id, device.index)
    return (device.engine in ON_CPU) == (name.kind == "cpu")


def check_devices(pinned: dict[int, DeviceName], profiles: Profiles) -> None:
    """Check that there is a device for every pin; NoSuchDevice if not."""
    sites = [(worker, device) for worker in profiles.workers for device in worker.devices]
    for name in dict.fromkeys(pinned.values()):
        if not any(allows(name, *site, profiles) for site in sites):
            known = "; ".join(f"{worker.name} {device.index} is {device.engine}" for worker, device in sites)
            raise NoSuchDevice(f"there is no device {name.text!r}", next_step=f"There are: {known}")
