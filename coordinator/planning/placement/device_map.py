"""Device map: which worker computes what, where a DeviceMap says which layer is where.  Pure.

A node that reads params is where these are; one that reads none is where its operands are, in the last of their rows,
or if it has none, where what it makes is read first.  What the program itself puts on a device, and reads no params, is
there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from wire.errors import InputError, NoSuchDevice, PlacementError
from wire.ir.device_names import DeviceName
from wire.policy.strategies import DeviceMap

from ..model.cost_model import CostModel
from ..model.device_constraints import pins
from ..model.profiles import Profiles


def named_workers(profiles: Profiles, layers: DeviceMap, named: Collection[str] = ()) -> Profiles:
    """The workers that a device map names, and those `named` by the program; NoSuchDevice for one of the map that is
    not there, InputError for a map of none."""
    if not layers.rows:
        raise InputError("the device map is empty", next_step='Add layers: DeviceMap().layer("", WORKER) is everything')
    chosen = [profiles.workers[_site(profiles, row.worker)[0]] for row in layers.rows]
    chosen += [worker for worker in profiles.workers if not {worker.node_id, worker.name}.isdisjoint(named)]
    return replace(profiles, workers=tuple(dict.fromkeys(chosen)))


def placed_by_map(model: CostModel, layers: DeviceMap) -> tuple[CostModel, list[int]]:
    """A worker per unit, of those that the map names, and the cost model with the devices that it names.

    InputError for a param in no row and for a row without params, PlacementError for a worker that cannot compute what
    it is given.
    """
    rows = _rows_of_params(model, layers)
    sites = [_site(model.profiles, row.worker) for row in layers.rows]
    row_of: list[int | None] = []
    for unit, operands in enumerate(model.index.operands):
        mine = [rows[leaf] for leaf in model.index.leaves[unit] if leaf in rows]
        mine = mine or [row for operand in operands if (row := row_of[operand]) is not None]
        row_of.append(max(mine, default=None))
    for unit in reversed(range(len(row_of))):
        if row_of[unit] is None:
            row_of[unit] = min(
                (row for consumer in model.index.consumers[unit] if (row := row_of[consumer]) is not None), default=0
            )
    where = [sites[row or 0] for row in row_of]
    devices = {
        model.index.units[unit]: DeviceName("worker", device, model.profiles.workers[worker].node_id)
        for unit, (worker, device) in enumerate(where)
        if device >= 0
    }
    if devices:
        model = CostModel(model.graph, model.profiles, model.index, devices)
    assignment, moved = [worker for worker, _ in where], pins(model.graph)
    for unit, worker in enumerate(assignment):
        if model.device[worker][unit] < 0:
            if model.index.units[unit] in moved and rows.keys().isdisjoint(model.index.leaves[unit]):
                assignment[unit] = model.able[unit][0]
                continue
            node = model.graph.nodes[model.index.units[unit]]
            raise PlacementError(
                f"{layers.rows[row_of[unit] or 0].worker} cannot compute {node.op}, which the device map places there",
                op=f"{node.op} (node {model.index.units[unit]})",
                next_step="Place that layer on a worker that supports it",
            )
    return model, assignment


def _site(profiles: Profiles, name: str) -> tuple[int, int]:
    """The place of a worker among the profiles, and the device of it that is named, -1 for any; NoSuchDevice."""
    places = {name: place for place, profile in enumerate(profiles.workers) for name in (profile.node_id, profile.name)}
    if name in places:
        return places[name], -1
    worker, _, index = name.rpartition(":")
    if worker in places and index.isdecimal():
        devices = profiles.workers[places[worker]].devices
        if int(index) in [device.index for device in devices]:
            return places[worker], int(index)
        known = ", ".join(f"{worker}:{device.index} ({device.engine})" for device in devices)
        raise NoSuchDevice(f"there is no device {name!r}", next_step=f"There are {known}")
    known = ", ".join(sorted(profile.name for profile in profiles.workers))
    raise NoSuchDevice(f"there is no worker {name!r}", next_step=f"There are {known}")


def _rows_of_params(model: CostModel, layers: DeviceMap) -> dict[int, int]:
    """The row of every param, by its node."""
    names = {
        index: str(model.graph.nodes[index].attrs["name"]).removeprefix("closure/") for index in model.graph.params
    }
    rows = {index: layers.row_of(name) for index, name in names.items()}
    missing = [names[index] for index, row in rows.items() if row is None]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(f"the device map has no layer for {missing[0]!r}{more}", next_step="Add it to a layer")
    unknown = [str(row) for index, row in enumerate(layers.rows) if row.name and index not in rows.values()]
    if unknown:
        if not names:
            raise InputError(
                f"no param belongs to layer {unknown[0]!r}: the program has no params, but arrays that come with it",
                next_step="Put the weights first: params = mesh.put(params)",
            )
        known = ", ".join(sorted(names.values())[:4])
        raise InputError(f"no param belongs to layer {unknown[0]!r}", next_step=f"The params are {known}, ...")
    return {index: row for index, row in rows.items() if row is not None}
