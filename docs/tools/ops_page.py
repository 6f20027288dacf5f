"""The op table as markdown: `python -m docs.tools.ops_page > docs/ops.md`.

Everything comes from the table: a rule is described by its docstring, and the semantics by that of `wire/ir/ops.py`.
Only the names of operands are here; an op whose operands have roles gets a row of OPERANDS.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

from wire.ir import ops
from wire.ir.ops import EXACT, OPS, Op

OPERANDS = {
    "random_bits": ("key",),
    "atan2": ("y", "x"),
    "select": ("cond", "a", "b"),
    "pad": ("x", "fill"),
    "dot": ("left", "right"),
    "conv": ("x", "w"),
    "solve": ("a", "b"),
    "gather": ("data", "indices"),
    "scatter": ("data", "indices", "updates"),
    "dynamic_slice": ("data", "starts"),
    "dynamic_update_slice": ("data", "update", "starts"),
}
FAMILIES = {
    "leaf": "Leaves",
    "random": "Random numbers",
    "unary": "Elementwise, one operand",
    "binary": "Elementwise, two operands",
    "ternary": "Choice",
    "convert": "Conversion",
    "reduce": "Reduction",
    "along": "Along an axis",
    "view": "Views",
    "dot": "Contraction",
    "matrix": "Matrices",
    "index": "Indexing",
    "structure": "Structure",
    "collective": "Collectives",
}
HEAD = """\
# The op table

This page lists every operation that a graph may contain. It is generated from `wire/ir/ops.py` by
`python -m docs.tools.ops_page > docs/ops.md`. All other functions (`sub`, `mean`, `softmax`, `einsum`, ...) are
composed of these operations. An attribute with `?` is optional.

The tolerance is how far the results of two engines may differ on f32: |a - b| <= atol + rtol |b|. On f16 and bf16 they
may differ by two units in the last place, if that is more. Integers and bool must be equal.
"""


def markdown() -> str:
    """The whole of docs/ops.md."""
    return "\n".join([HEAD, *_semantics(), *(line for family in FAMILIES for line in _family(family))])


def _semantics() -> Iterator[str]:
    yield "## Semantics\n"
    yield "WGSL, numpy and C differ in some semantics. They are fixed here, and the cpu engine is the reference.\n"
    yield (inspect.getdoc(ops) or "").partition("is the reference:\n")[2].replace("  * ", "* ")
    yield ""


def _family(family: str) -> Iterator[str]:
    yield f"## {FAMILIES[family]}\n"
    yield "| Op | Attributes | Shape | Dtype | Tolerance |"
    yield "|---|---|---|---|---|"
    yield from (_row(op) for op in OPS.values() if op.family == family)
    yield ""


def _row(op: Op) -> str:
    attributes = ", ".join(f"`{name}: {kind}`" for name, kind in op.attrs.items())
    shape, dtype = (" ".join((inspect.getdoc(rule) or "").split()) for rule in (op.shape, op.dtype))
    cells = (f"`{op.name}({', '.join(_operands(op))})`", attributes, shape, dtype, _tolerance(op))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _operands(op: Op) -> tuple[str, ...]:
    if op.inputs is None:
        return ("x...",)
    return OPERANDS.get(op.name, ("x", "y")[: op.inputs])


def _tolerance(op: Op) -> str:
    return "exact" if op.tolerance == EXACT else f"rtol {op.tolerance.rtol:g}, atol {op.tolerance.atol:g}"


if __name__ == "__main__":
    sys.stdout.write(markdown())
