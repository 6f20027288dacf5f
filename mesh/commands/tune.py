"""`mesh-worker tune`: measures which forms of kernels are fastest on this machine's graphics adapter.

Workers of this user have what it finds from then on, for what they compile anew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict

from wire.errors import ConfigError
from wire.units import time_text
from worker.config import WorkerConfig
from worker.devices.registry import BEST
from worker.engine.protocol import EngineInfo, Tuned
from worker.engine_host.tuning import Tuning
from worker.wgsl.choices import ShapeClass
from worker.wgsl.problems import check_measurable, standard

from ..util.units import parse_duration
from .exit_codes import OK
from .output import say
from .tables import print_table

LIMIT = "3m"


def tune(options: argparse.Namespace, config: WorkerConfig) -> int:
    """Measure the usual classes of shapes, or those that were named.  All of these are checked before any is measured,
    which takes minutes."""
    if len(options.device) > 1:
        raise ConfigError("only one device is tuned at a time", next_step="Name one with --device")
    named = [ShapeClass.parse(text) for text in options.shape]
    for shape_class in named:
        check_measurable(shape_class)
    found: list[Tuned] = []
    tuning = Tuning(config, options.device[0] if options.device else BEST, found.append)
    limit_s = parse_duration(options.time_limit or LIMIT)

    def classes(info: EngineInfo) -> list[str]:
        return [str(one) for one in named or standard(info.dtypes_by_op.get("dot", ()))]

    info = asyncio.run(tuning.run(classes, limit_s))
    if options.json:
        device = {"adapter": info.adapter, "backend": info.backend, "driver": info.driver}
        say(json.dumps({**device, "classes": [asdict(one) for one in found]}))
    else:
        _print(info, found)
    return OK


def _print(info: EngineInfo, found: list[Tuned]) -> None:
    say(f"{info.adapter} ({info.backend}, {info.driver})")
    header = ("shapes", "first guess", "fastest", "gain", "form", "")
    print_table(header, [_row(one) for one in found])
    faster = sum(1 for one in found if one.finished and one.form != one.guess)
    say(f"another form is faster for {faster} of {sum(one.finished for one in found)} classes that were measured")


def _row(one: Tuned) -> tuple[str, ...]:
    refused = "; ".join(f"refused: {form}, {why}" for form, why in one.refused.items())
    details = "; ".join(filter(None, (one.why, refused)))
    if not one.finished or not one.form:
        return one.shape_class, "", "", "", "", details
    times = time_text(one.guess_s), time_text(one.form_s), f"{one.guess_s / one.form_s:.2f}"
    return one.shape_class, *times, one.form if one.form != one.guess else "(the first guess)", details
