"""Reproducible plans: all have the same bits, whichever workers there are, whatever was measured, and after every
death.  Pure.

Bits stay where every node is computed in the shapes that it has in the graph, by one arithmetic
(wire/ir/arithmetic.py).  So a program may be cut at any node, and only cpu engines that round alike compute it.  Where
numpy does, it is neither split nor laid out by what was measured of links and devices, since the bits of a product
follow its shapes.  The arithmetic "native-2" gives a row the same bits among any others, so there a program may be
split, as long as every sum is one rank's (`Program.in_order`).  The plan's reasons say what was excluded.
"""

from __future__ import annotations

from dataclasses import replace

from wire.errors import InputError, PlacementError
from wire.ir.arithmetic import NATIVE_ARITHMETIC, arithmetic_of, by_libraries
from wire.ir.graph import WireGraph
from wire.policy.strategies import (
    Auto,
    DataParallel,
    DataTensor,
    FullySharded,
    Split,
    Strategy,
    TensorParallel,
)
from wire.protocol.engine_names import ON_CPU

from .plan import Plan
from .profiles import Profiles

EXCLUDED = tuple(kind().word for kind in (DataParallel, TensorParallel, FullySharded, DataTensor))  # what splits


def reproducible_profiles(profiles: Profiles, graph: WireGraph, strategy: Strategy) -> Profiles:
    """The profiles with cpu engines only; PlacementError unless all of these compute `graph` by one arithmetic, and by
    the one that was asked for by name."""
    kinds: dict[str, list[str]] = {}
    for worker in profiles.workers:
        for device in worker.devices:
            if device.engine in ON_CPU:
                kinds.setdefault(arithmetic_of(device.arithmetic, graph), []).append(worker.name)
    name = strategy.reproducible if isinstance(strategy.reproducible, str) else ""
    if len(kinds) != 1 or (name and name not in kinds):
        known = "; ".join(f"{', '.join(names)}: {kind}" for kind, names in sorted(kinds.items())) or "none"
        what = by_libraries(graph)
        how = f" by {name}" if name else ""
        of_op = f" for {what}, whose bits no definition fixes," if what else ""
        raise PlacementError(
            f"nothing is reproducible here: it needs cpu engines that round alike{how}{of_op} and there are {known}",
            next_step="Build the mesh of workers that have the native engine, or of one kind, all with one "
            "OPENBLAS_CORETYPE and NPY_DISABLE_CPU_FEATURES (docs/planning.md), or leave out reproducible",
        )
    workers = tuple(
        replace(
            worker,
            devices=tuple(
                device if device.engine in ON_CPU else replace(device, dtypes_by_op={}, gflops=0.0)
                for device in worker.devices
            ),
        )
        for worker in profiles.workers
    )
    return replace(profiles, workers=workers)


def may_split(profiles: Profiles, graph: WireGraph) -> bool:
    """Whether parts of a tensor have the bits there that they have in the whole; of `reproducible_profiles`."""
    devices = [device for worker in profiles.workers for device in worker.devices if device.engine in ON_CPU]
    return all(arithmetic_of(device.arithmetic, graph) == NATIVE_ARITHMETIC for device in devices)


def check_split(strategy: Strategy, profiles: Profiles, graph: WireGraph) -> None:
    """Raise InputError for a strategy that splits where bits follow shapes."""
    if isinstance(strategy, Split) and not may_split(profiles, graph):
        raise InputError(
            f"the strategy {strategy.word!r} is not reproducible: the last bits of a product follow its shapes with "
            "numpy, and these follow the number of ranks",
            next_step="Use workers with the native engine, choose 'auto', 'single' or 'pipeline', train with "
            "DistributedTrainer(deterministic=N), or leave out reproducible",
        )


def with_exclusions(plan: Plan, strategy: Strategy, profiles: Profiles, graph: WireGraph) -> Plan:
    """The plan by the name of what was asked for, with what was excluded for the sake of its bits."""
    others = sorted({device.engine for worker in profiles.workers for device in worker.devices} - ON_CPU)
    whole = isinstance(strategy, Auto) and not may_split(profiles, graph)
    excluded = [*(EXCLUDED if whole else ()), *(f"{engine} devices" for engine in others)]
    whose = f": excluded are {', '.join(excluded)}, whose last bits may differ" if excluded else ""
    why = f"reproducible{whose}"
    return replace(plan, strategy=strategy.text, reasons=tuple(dict.fromkeys((why, *plan.reasons))))
