"""The engine host of a throttled worker: the usual one, whose engine takes its time and whose adapter is named so."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import cast

from wire.protocol.throttled_adapters import throttled_name
from worker.engine.host_messages import Device
from worker.engine.protocol import Engine, Measured
from worker.engine_host import host

from .throttle import Throttle, parse_throttle
from .throttled_engine import ThrottledEngine, paced


def main() -> None:
    """Run an engine host with the throttle that the first argument is."""
    throttle = parse_throttle(sys.argv[1])
    host.main(lambda engine, figures: throttled(engine, figures, throttle))


def throttled(engine: Engine, figures: Measured, throttle: Throttle) -> tuple[Engine, Device]:
    """An engine as a throttle wants it, and what it reports to the daemon; `figures` are those of the device."""
    info = replace(engine.info, adapter=throttled_name(engine.info.adapter, throttle.text))
    if not throttle.flops_per_s:
        return engine, Device(info, figures)
    slower = cast(Engine, ThrottledEngine(engine, throttle.flops_per_s))
    return slower, Device(info, paced(figures, throttle.flops_per_s))
