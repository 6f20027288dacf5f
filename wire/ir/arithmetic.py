"""Arithmetics by name: two devices of one arithmetic give a graph's results the same bits.

A device says what rounds on it, as in "native-2, numpy 2.4.6 X86_V4, openblas 0.3.31 Haswell".  `NATIVE_ARITHMETIC` is
defined by docs/native.md, not by a library or a processor; what it leaves to numpy is exact or adds in a fixed order,
but for `BY_LIBRARIES` and complex numbers.
"""

from __future__ import annotations

from .graph import WireGraph
from .ops import OPS, inner_graphs

NATIVE_ARITHMETIC = "native-2"
BY_LIBRARIES = frozenset({"fft", *(name for name, op in OPS.items() if op.family == "matrix")})
ELEMENTS_MAX = (1 << 31) - 1  # of a tensor: kernels count in 32 bits, and numpy computes what is larger


def arithmetic_of(driver: str, graph: WireGraph) -> str:
    """What decides the bits of a graph's results on a device that says `driver`."""
    name, _, _ = driver.partition(",")
    return NATIVE_ARITHMETIC if name == NATIVE_ARITHMETIC and by_libraries(graph) is None else driver


def by_libraries(graph: WireGraph) -> str | None:
    """The first op of a graph whose bits no definition fixes, or type of a tensor; None if there is none."""
    for index, node in enumerate(graph.nodes):
        kind = graph.types[index]
        if node.op in BY_LIBRARIES:
            return node.op
        if kind.dtype.kind == "c" or kind.size > ELEMENTS_MAX:
            return str(kind)
        for inner in inner_graphs(node.op, node.attrs):
            if op := by_libraries(inner):
                return op
    return None
