"""`mesh-coord explain`: the kernels that a worker compiles a graph to, as a table, as JSON, or with their texts."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import TYPE_CHECKING

from .exit_codes import OK
from .find_coordinator import check_there, on_a_coordinator
from .output import say, say_lines

if TYPE_CHECKING:
    from wire.ir.graph import WireGraph

    from ..backends.remote import Remote
    from ..client.explanation import Explanation

Options = argparse.Namespace
ALL = "all"


def explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("graph", metavar="GRAPH", help="a .wire file (WireGraph.save writes one), or a model")
    given = "an input on which the graph of a model depends (repeatable)"
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy", help=given)
    size = "the size of a free dimension of a model (repeatable)"
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help=size)
    where = parser.add_mutually_exclusive_group()
    which = "the worker, or one of its devices (default: the worker that a plan takes for one)"
    where.add_argument("--worker", default="", metavar="NAME[:INDEX]", help=which)
    here = (
        "start a worker on this machine for it, with this device (default: as mesh-worker has it); ask no coordinator"
    )
    where.add_argument("--here", nargs="?", const="auto", metavar="DEVICE", help=here)
    text = "also print what the engine generated for kernel N, or for all"
    parser.add_argument("--text", nargs="?", const=ALL, type=_kernel, metavar="N", help=text)


def _kernel(text: str) -> str:
    if text != ALL and not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no number of a kernel, as the table has it")
    return text


def _text(options: Options) -> bool | int:
    return options.text == ALL if options.text in (None, ALL) else int(options.text)


def explain(options: Options) -> int:
    """Ask the coordinator, or with --here a worker that is started for it."""
    if options.here is None:
        return on_a_coordinator(ask, ("graph",))(options)
    check_there(options.graph)
    from ..client.mesh import Mesh

    graph = _graph(options)
    with Mesh.builder().local(1, options.here).build() as mesh:
        _show(options, mesh.explain(graph, text=_text(options)))
    return OK


async def ask(options: Options, remote: Remote) -> int:
    """Ask a coordinator."""
    from ..client.explanation import explanation_of, texts_of, worker_and_device

    graph = _graph(options)
    explained = await remote.explain(graph, *worker_and_device(options.worker), *texts_of(_text(options)))
    _show(options, explanation_of(explained, graph))
    return OK


def _graph(options: Options) -> WireGraph:
    from .graph_argument import read_graph

    graph, unknown = read_graph(options.graph, options.input, options.dim)
    if unknown and not options.quiet:
        flags = " ".join(f"--dim {dim}=SIZE" for dim in unknown)
        say(f"explained for {' and '.join(f'{dim} = 1' for dim in unknown)}; {flags} says otherwise", file=sys.stderr)
    return graph


def _show(options: Options, explanation: Explanation) -> None:
    if options.json:
        say(json.dumps(explanation.data()))
        return
    say_lines(explanation)
    for kernel in explanation.kernels:
        if kernel.text:
            say_lines(f"\n-- kernel {kernel.number}: {kernel.name}\n{kernel.text.rstrip()}")
