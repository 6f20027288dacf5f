"""Private params: handles that were put `on` a worker, and the strategy that keeps them there.  Pure.

A plan by a device map computes each layer where the map says, makes no copies elsewhere and is not audited, since an
audit computes a part again on another worker.  So that is the strategy of a program that reads such handles.
"""

from __future__ import annotations

from collections.abc import Mapping

from wire.errors import InputError
from wire.policy.strategies import Auto, DeviceMap, Row, Single, strategy_of, text_of

from .handle import Handle

KEPT_NOWHERE_ELSE = "checkpoint"  # the policy of copies by which no other worker has a param


def private_strategy(bindings: Mapping[str, Handle], strategy: str, copies: str) -> str:
    """The strategy by which handles that are private are read on their workers only.

    All other params are where the first private one is.  InputError if the call asks for something else.
    """
    on = {name: handle.on for name, handle in bindings.items() if handle.on}
    if not on:
        return strategy
    name, worker = next(iter(on.items()))
    if copies != KEPT_NOWHERE_ELSE:
        raise InputError(
            f"the param {name!r} is private to a worker, and copies={copies!r} would give it to others",
            next_step="Leave out copies",
        )
    parsed = strategy_of(strategy)
    if isinstance(parsed, DeviceMap) and all(_kept_by(parsed, each, there) for each, there in on.items()):
        return strategy
    if not isinstance(parsed, Auto | Single) or parsed.workers:
        shown = parsed.text if parsed.workers else parsed.word
        raise InputError(
            f"the param {name!r} is private to a worker, and strategy={shown!r} would give it to others",
            next_step="Leave out the strategy",
        )
    if len(set(on.values())) == 1:
        return text_of(DeviceMap((Row("", worker),), reproducible=parsed.reproducible))
    rows = tuple(Row(each, on.get(each, worker)) for each in bindings)
    return text_of(DeviceMap(rows, reproducible=parsed.reproducible))


def _kept_by(layers: DeviceMap, param: str, worker: str) -> bool:
    row = layers.row_of(param)
    return row is not None and layers.rows[row].worker == worker
