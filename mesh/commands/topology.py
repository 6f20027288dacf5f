"""`mesh-coord topology`: workers, devices and links as tables, as a drawing in the DOT language, or as JSON."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from ..util.units import size_text, speed_text, time_text
from .exit_codes import OK
from .output import say, say_lines
from .tables import print_table

if TYPE_CHECKING:
    from ..backends.remote import Remote
    from ..client.topology import Link
    from ..core.node import Device


def topology_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dot", action="store_true", help="print a drawing in Graphviz's DOT language")


async def show(options: argparse.Namespace, remote: Remote) -> int:
    """Print what the coordinator knows of its workers, and of who reaches whom."""
    from ..client import topology

    nodes, pairs = await remote.nodes(), await remote.pairs()
    if options.dot:
        say_lines(topology.dot(nodes, pairs).rstrip("\n"))
    elif options.json:
        say(json.dumps(topology.data(nodes, pairs)))
    else:
        rows = [(node.name, node.state, *_figures(device)) for node in nodes for device in node.devices]
        print_table(("worker", "state", "engine", "adapter", "memory", "GFLOP/s", "GB/s"), rows)
        say()
        print_table(("link", "path", "RTT", "Mbit/s", "why not"), [_row(link) for link in topology.links(pairs)])
    return OK


def _figures(device: Device) -> tuple[str, ...]:
    memory, speed = size_text(device.memory_bytes), (speed_text(device.gflops), f"{device.gbytes_per_s:.1f}")
    return (device.engine, device.adapter, memory, *speed)


def _row(link: Link) -> tuple[str, ...]:
    rtt = f"{time_text(link.rtt_s)}" if link.rtt_s else ""
    rate = f"{link.bytes_per_s * 8 / 1e6:.0f}" if link.bytes_per_s else ""
    return (" - ".join(link.ends), link.path, rtt, rate, link.cause)
