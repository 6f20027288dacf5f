"""Device constraints: what has to be computed on which device, because a program says so with `transfer`.  Pure.

A node is pinned where its operands are: those that are pinned must agree, the others have no say.  A `transfer` moves
its operand, and what follows from it, to another device; one to any device leaves them free.
"""

from __future__ import annotations

from functools import lru_cache

from wire.errors import InputError, NoSuchDevice
from wire.ir.device_names import ANY, DeviceName, device_named
from wire.ir.graph import WireGraph
from wire.ir.ops import GRAPH_ATTRS, LEAVES, inner_graphs
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


@lru_cache(maxsize=1024)
def _transfers(graph: WireGraph) -> bool:
    """Whether a graph, or one inside it, names a device."""
    return any(n.op == "transfer" or any(map(_transfers, inner_graphs(n.op, n.attrs))) for n in graph.nodes)


def allows(name: DeviceName, worker: WorkerProfile, device: DeviceProfile, profiles: Profiles) -> bool:
    """Whether a device is one of those that a name means."""
    if name.kind == "worker":
        return name.worker in (worker.name, worker.node_id) and name.number in (-1, device.index)
    if name.kind == "accelerator":
        others = _accelerators(profiles)
        return name.number < len(others) and others[name.number] == (worker.node_id, device.index)
    return (device.engine in ON_CPU) == (name.kind == "cpu")


def check_devices(pinned: dict[int, DeviceName], profiles: Profiles) -> None:
    """Check that there is a device for every pin; NoSuchDevice if not."""
    sites = [(worker, device) for worker in profiles.workers for device in worker.devices]
    for name in dict.fromkeys(pinned.values()):
        if not any(allows(name, *site, profiles) for site in sites):
            known = "; ".join(f"{worker.name} {device.index} is {device.engine}" for worker, device in sites)
            raise NoSuchDevice(f"there is no device {name.text!r}", next_step=f"There are: {known}")


def _accelerators(profiles: Profiles) -> list[tuple[str, int]]:
    """All that are no cpu, in the order of workers' names."""
    workers = sorted(profiles.workers, key=lambda worker: worker.name)
    return [(worker.node_id, d.index) for worker in workers for d in worker.devices if d.engine not in ON_CPU]
