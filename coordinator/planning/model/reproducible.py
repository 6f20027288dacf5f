"""Reproducible plans: all have the same bits, whoever is there, whatever was measured, and after every death.  Pure.

Bits stay where every node is computed in the shapes that it has in the graph, by one arithmetic.  So a program may be
cut at any node, but it is neither split (`other_bits` of a strategy says why) nor laid out by what was measured of
links and devices, and only cpu engines that round alike compute it.  The plan's reasons say what was excluded.
"""

from __future__ import annotations

from dataclasses import replace

from wire.errors import PlacementError
from wire.policy.strategies import Auto, DataParallel, DataTensor, FullySharded, Strategy, TensorParallel
from wire.protocol.engine_names import ON_CPU

from .plan import Plan
from .profiles import Profiles

EXCLUDED = tuple(kind().word for kind in (DataParallel, TensorParallel, FullySharded, DataTensor))  # what splits


def reproducible_profiles(profiles: Profiles) -> Profiles:
    """The profiles with cpu engines only; PlacementError unless all of these round alike."""
    kinds: dict[str, list[str]] = {}
    for worker in profiles.workers:
        for device in worker.devices:
            if device.engine in ON_CPU:
                kinds.setdefault(device.arithmetic, []).append(worker.name)
    if len(kinds) != 1:
        known = "; ".join(f"{', '.join(names)}: {kind}" for kind, names in sorted(kinds.items())) or "none"
        raise PlacementError(
            f"nothing is reproducible here: it needs cpu engines that round alike, and there are {known}",
            next_step="Build the mesh of workers of one kind, start all with one OPENBLAS_CORETYPE and "
            "NPY_DISABLE_CPU_FEATURES (docs/planning.md), or leave out reproducible",
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


def with_exclusions(plan: Plan, asked: Strategy, profiles: Profiles) -> Plan:
    """The plan by the name of what was asked for, with what was excluded for the sake of its bits."""
    others = sorted({device.engine for worker in profiles.workers for device in worker.devices} - ON_CPU)
    excluded = [*(EXCLUDED if isinstance(asked, Auto) else ()), *(f"{engine} devices" for engine in others)]
    whose = f": excluded are {', '.join(excluded)}, whose last bits may differ" if excluded else ""
    why = f"reproducible{whose}"
    return replace(plan, strategy=asked.text, reasons=tuple(dict.fromkeys((why, *plan.reasons))))
