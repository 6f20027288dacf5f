"""Layer placement: a DeviceMap of params as one of a session's state, whose pieces have names of their own.

What the optimiser has of a param is where the param is; what belongs to none, such as the number of steps, is where the
first layer is.
"""

from __future__ import annotations

from wire.errors import InputError
from wire.policy.strategies import DeviceMap

from ..functions.step_trace import Stepping


def place_layers(stepping: Stepping, layers: DeviceMap) -> None:
    """Have a session of training go by a DeviceMap.

    InputError naming a param that it does not place, and a layer without params.
    """
    paths = stepping.places
    params = [path.removeprefix(ROOT).removeprefix("/") for path in paths.values() if path.split("/")[0] == ROOT]
    rows = {param: row for param in params if (row := layers.row_of(param)) is not None}
    missing = [param for param in params if param not in rows]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(f"the device map has no layer for {missing[0]!r}{more}", next_step="Add it to a layer")
    unused = [str(row) for at, row in enumerate(layers.rows) if at not in rows.values()]
    if unused:
        raise InputError(
            f"no param belongs to layer {unused[0]!r}", next_step=f"The params are {', '.join(params[:4])}, ..."
        )
    placed = DeviceMap(reproducible=layers.reproducible)
    for name in stepping.graph.param_types:
        path = f"/{paths.get(name, '')}"
        row = next((row for param, row in rows.items() if path.endswith(f"/{param}")), rows[params[0]])
        placed = placed.layer(name, layers.rows[row].worker)
    stepping.place(placed.text)


ROOT = "params"  # of the state that training has
