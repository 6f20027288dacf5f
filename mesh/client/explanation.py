"""Explanation: the kernels that a worker compiles a graph to, as people and programs read them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from wire.errors import InputError
from wire.ir.graph import Node, WireGraph
from wire.ir.ops import CONTROL
from wire.limits import DEFAULT
from wire.protocol.messages import Explained, KernelReport

from ..util.argument_checks import integer
from ..util.units import counted, size_text, speed_text, time_text

TITLES = ("kernel", "name", "nodes", "ops", "read", "written", "MFLOP", "predicted", "measured", "runs")
OPS_SHOWN = 6  # different ones in a row of the table
NUMBERS_SHOWN = 4  # runs of nodes, likewise
WORKER_AND_DEVICE = re.compile(r"([^\ud800-\udfff]{0,256}?)(?::([0-9]{1,4}))?", re.DOTALL)


@dataclass(frozen=True)
class Kernel:
    """One kernel of an `Explanation`, or one call of numpy.

    Parameters
    ----------
    number : int
        Its place among the kernels, which run in this order.
    name : str
        The kind of kernel ("product", "row", "map", "scatter", "sort"), or "numpy", "control" or "collective" and an
        op.
    nodes : tuple of int
        The nodes of the graph that it computes.  A node may be computed by several kernels.
    ops : tuple of str
        The ops of these nodes; of a composite it is the name.
    read_bytes, written_bytes : int
        The bytes of the tensors that it reads, each once, and of those that it makes.
    flops : int
        Scalar operations, as the op table counts them.
    predicted_s : float
        The larger of what these bytes and these operations take at the speed that the worker measured.
    measured_s : float or None
        What one evaluation took in it, the median of a few; None where it did not run, or none ended in time.
    runs : int
        How often it ran in one evaluation.
    inside : int or None
        The number of the branch or the loop that it is part of.  Its nodes are then those of the graph `body` of that,
        or none where it is in a composite, or the engine rewrote it.
    body : str
        The name of that graph: "body", "test", "then" or "otherwise".
    text : str
        What the engine generated, WGSL or the language of LLVM, if it was asked for.

    Examples
    --------
    >>> from mesh.client.explanation import Kernel
    >>> Kernel(0, "map", (1, 2), ("neg", "exp"), 400, 400, 900, 2e-7, 3e-7, 1).flops
    900
    """

    number: int
    name: str
    nodes: tuple[int, ...]
    ops: tuple[str, ...]
    read_bytes: int
    written_bytes: int
    flops: int
    predicted_s: float
    measured_s: float | None
    runs: int
    inside: int | None = None
    body: str = ""
    text: str = ""


@dataclass(frozen=True, repr=False)
class Explanation:
    """What a worker compiles a graph to; `Mesh.explain` returns it, and `print` shows it as a table.

    Parameters
    ----------
    worker : str
        The worker's name.
    device : int
        The number of its device.
    engine, adapter : str
        What computes there.
    gflops, gbytes_per_s : float
        How fast the worker found the device to be, from which `predicted_s` follows.
    dispatch_s : float
        What a call of any graph takes there, in seconds.
    kernels : tuple of Kernel
        The kernels, in the order in which they run.
    no_kernel : tuple of int
        The nodes that nothing is computed for: inputs, params, constants, and what fell away.
    clock : str
        How the kernels were measured.
    evaluations : int
        How many evaluations were measured.
    measured_s : float or None
        The time of a whole evaluation without clocks around its kernels, in seconds; None if none ended in time.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(1).build() as m:
    ...     explanation = m.explain(lambda x, w: abs(x @ w), np.ones((8, 4), np.float32), np.ones((4, 2), np.float32))
    >>> [(kernel.name, kernel.flops) for kernel in explanation.kernels]
    [('numpy dot', 128), ('numpy abs', 16)]
    >>> explanation.worker, explanation.flops, explanation.no_kernel[:2]
    ('sim-0', 144, (0, 1))
    """

    worker: str
    device: int
    engine: str
    adapter: str
    gflops: float
    gbytes_per_s: float
    dispatch_s: float
    kernels: tuple[Kernel, ...]
    no_kernel: tuple[int, ...]
    clock: str
    evaluations: int
    measured_s: float | None

    @property
    def flops(self) -> int:
        """The scalar operations of all kernels."""
        return sum(kernel.flops for kernel in self._outer)

    @property
    def read_bytes(self) -> int:
        """The bytes that all kernels read."""
        return sum(kernel.read_bytes for kernel in self._outer)

    @property
    def written_bytes(self) -> int:
        """The bytes that all kernels write."""
        return sum(kernel.written_bytes for kernel in self._outer)

    @property
    def predicted_s(self) -> float:
        """The predicted seconds of all kernels, and of the call."""
        return sum(kernel.predicted_s for kernel in self._outer) + self.dispatch_s

    @property
    def kernels_s(self) -> float:
        """The measured seconds of all kernels together."""
        return sum(kernel.measured_s or 0.0 for kernel in self._outer)

    @property
    def _outer(self) -> list[Kernel]:
        """The kernels that are in no other one."""
        return [kernel for kernel in self.kernels if kernel.inside is None]

    def data(self) -> dict[str, Any]:
        """Return all of it as plain data.

        Returns
        -------
        dict
            The fields and totals, ready for `json.dumps`.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(1).build() as m:
        ...     explanation = m.explain(lambda x: x @ x, np.ones((4, 4), np.float32))
        >>> explanation.data()["totals"]["flops"], explanation.data()["kernels"][0]["nodes"]
        (128, (1,))
        """
        totals = ("flops", "read_bytes", "written_bytes", "predicted_s", "kernels_s")
        return {**dataclasses.asdict(self), "totals": {name: getattr(self, name) for name in totals}}

    def __repr__(self) -> str:
        kernels = counted(len(self.kernels), "kernel")
        return f"<Explanation: {kernels} of {self.engine} on {self.worker}; print() shows them>"

    def __str__(self) -> str:
        totals = (
            "all",
            "",
            "",
            "",
            size_text(self.read_bytes),
            size_text(self.written_bytes),
            _mflop(self.flops),
            time_text(self.predicted_s),
            time_text(self.kernels_s),
            "",
        )
        rows = [TITLES, *map(_row, self.kernels), totals]
        widths = [max(len(row[column]) for row in rows) for column in range(len(TITLES))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, *self._notes()])

    def _notes(self) -> list[str]:
        whole = f"{time_text(self.measured_s or 0.0)} (median of {self.evaluations})"
        whole = whole if self.evaluations else "longer than the time limit"
        speeds = f"measured as {speed_text(self.gflops)} GFLOP/s and {self.gbytes_per_s:.1f} GB/s"
        call_s = time_text(self.dispatch_s)
        return [
            f"{self.engine} on {self.worker}:{self.device} ({self.adapter}), {speeds}",
            f"an evaluation without clocks takes {whole}; the total of predicted includes {call_s} for the call",
            f"kernels were measured by {self.clock}, with random inputs",
            f"nodes in no kernel, by number: {_numbers(self.no_kernel) or 'none'}",
        ]


def explanation_of(message: Explained, graph: WireGraph) -> Explanation:
    """The explanation of this graph, from a worker's message."""
    kernels: list[Kernel] = []
    graphs: list[WireGraph] = []  # by kernel, that of its nodes
    for report in message.kernels:
        inner = graph if report.inside is None else _inner(kernels, graphs, report)
        graphs.append(inner)
        kernels.append(_kernel(len(kernels), report, inner, message))
    inside = {node for kernel in kernels if kernel.inside is None for node in kernel.nodes}
    return Explanation(
        message.worker,
        message.device,
        message.engine,
        message.adapter,
        message.gflops,
        message.gbytes_per_s,
        message.dispatch_s,
        tuple(kernels),
        tuple(node for node in range(len(graph.nodes)) if node not in inside),
        message.clock,
        message.evaluations,
        message.seconds,
    )


def worker_and_device(name: str) -> tuple[str, int | None]:
    """The worker that a text means, and the number of its device: "anna", or "anna:1"."""
    if not isinstance(name, str):
        raise InputError(f"worker is a name, such as 'anna' or 'anna:1', not {name!r:.80}")
    known = WORKER_AND_DEVICE.fullmatch(name)
    if known is None:
        raise InputError(f"{name[:40]!r} is no name of a worker: names have up to 256 characters")
    return (known[1], int(known[2])) if known[1] and known[2] else (name, None)


def texts_of(text: bool | int) -> tuple[bool, int | None]:
    """Whether texts of kernels are asked for, and of which kernel, or of all."""
    return text is not False, None if isinstance(text, bool) else integer(text, "text", 0, DEFAULT.graph_nodes_max)


def _inner(kernels: list[Kernel], graphs: list[WireGraph], report: KernelReport) -> WireGraph:
    """The graph that the kernels inside of a branch or a loop are of."""
    assert report.inside is not None
    outer, around = kernels[report.inside], graphs[report.inside]
    nodes = [around.nodes[index] for index in outer.nodes if index < len(around.nodes)]
    bodies = (node.attrs.get(report.body) for node in nodes if node.op in CONTROL)
    return next((body for body in bodies if isinstance(body, WireGraph)), around)


def _kernel(number: int, report: KernelReport, graph: WireGraph, message: Explained) -> Kernel:
    moved = report.read_bytes + report.written_bytes
    busy_s = max(report.flops / (message.gflops * 1e9 or 1.0), moved / (message.gbytes_per_s * 1e9 or 1.0))
    times = max(report.runs, 1) if report.inside is not None else 1
    ops = tuple(_op(graph.nodes[index]) for index in report.nodes if index < len(graph.nodes))
    return Kernel(
        number,
        report.name,
        report.nodes,
        ops,
        report.read_bytes,
        report.written_bytes,
        report.flops,
        busy_s * times,
        report.seconds,
        report.runs,
        report.inside,
        report.body,
        report.text,
    )


def _op(node: Node) -> str:
    """The op of a node; the name of a composite."""
    return str(node.attrs["name"]) if node.op == "composite" else node.op


def _row(kernel: Kernel) -> tuple[str, ...]:
    where = "" if kernel.inside is None else f"{kernel.inside}.{kernel.body}."
    return (
        f"{where}{kernel.number}",
        kernel.name,
        _numbers(kernel.nodes),
        _ops(kernel.ops),
        size_text(kernel.read_bytes),
        size_text(kernel.written_bytes),
        _mflop(kernel.flops),
        time_text(kernel.predicted_s),
        "" if kernel.measured_s is None else time_text(kernel.measured_s),
        str(kernel.runs),
    )


def _mflop(flops: int) -> str:
    return f"{flops / 1e6:.3g}"


def _ops(ops: Iterable[str]) -> str:
    """The ops with how often each is there: "dot add*2 tanh"."""
    counts: dict[str, int] = {}
    for op in ops:
        counts[op] = counts.get(op, 0) + 1
    texts = [op if count == 1 else f"{op}*{count}" for op, count in counts.items()]
    return " ".join([*texts[:OPS_SHOWN], *(["..."] if len(texts) > OPS_SHOWN else [])])


def _numbers(nodes: Iterable[int]) -> str:
    """Runs of numbers: "0-2,5"."""
    runs: list[list[int]] = []
    for node in nodes:
        if runs and node == runs[-1][1] + 1:
            runs[-1][1] = node
        else:
            runs.append([node, node])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ",".join([*texts[:NUMBERS_SHOWN], *(["..."] if len(texts) > NUMBERS_SHOWN else [])])
