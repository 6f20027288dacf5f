"""Spans: where a packed panel of A begins and ends to count; zeros before and behind are not multiplied.

The weights that a causal mask leaves are a triangle: half of their products with values, and half of those of their
derivatives, are with zeros.  No mask is looked for: a panel that is packed is looked at from both ends, up to the first
block that is not all zeros.  The bits are those of the definition (`cores.py`), which multiplies everything:

    before a span    the sum of a run begins as +0, and stays +0 when 0 * b is added
    behind a span    a sum that is +0 or not 0 stays what it is; one of -0, which underflow leaves, may become +0, so a
                     micro kernel that finds a -0 computes the run again, all of it
    infinity, NaN    times 0 is NaN: where B's panel has such an element, all of the run is multiplied
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from .cores import PANELS_OF_A, Core, smaller
from .llvm import I1, I64, VOID, index, ir, loop_with, same
from .vectors import Vectors

BLOCK = 8  # elements of the length that are looked at together
DEPTH_MIN = 128  # of a run whose zeros are looked for: in shorter ones it saves little
WORDS = I64.as_pointer()


class Spans:
    """What finds spans: functions of a core's module, for panels as the core packs them."""

    def __init__(self, core: Core) -> None:
        self.core, self.tile = core, core.tile
        self._write, self._holds = self._writer(), self._holder()

    def memory(self, build: ir.IRBuilder) -> ir.Value:
        """Room for the spans of a block of panels."""
        with build.goto_entry_block():
            return build.alloca(I64, size=2 * PANELS_OF_A)

    def find(self, build: ir.IRBuilder, panel: ir.Value, depth: ir.Value, place: ir.Value) -> ir.Value:
        """Write where the span of a panel of A begins and ends; whether that is less than the run."""
        build.call(self._write, [panel, depth, place])
        begin, end = self.read(build, place)
        return build.icmp_signed("<", build.sub(end, begin), depth)

    def read(self, build: ir.IRBuilder, place: ir.Value) -> tuple[ir.Value, ir.Value]:
        begin, end = (build.load(build.gep(place, [index(at)])) for at in range(2))
        return begin, end

    def hold(self, build: ir.IRBuilder, some: ir.Value, panel: ir.Value, depth: ir.Value, wide: ir.Value) -> ir.Value:
        """Whether there are spans, `some`, and they hold for a panel of B, which has `wide` columns."""
        return build.call(self._holds, [some, panel, depth, wide])

    def lost(self, build: ir.IRBuilder, sums: Sequence[ir.Value]) -> ir.Value:
        """Whether a sum is -0, which zeros behind the span may change."""
        v = Vectors(build, self.tile.lanes)
        if not self.core.is_float:
            return ir.Constant(I1, 0)
        found = [v.int_compare("==", v.bits(value), v.bits(v.like(value, -0.0))) for value in sums]
        return v.any(functools.reduce(v.bit_or, found))

    # -- functions ------------------------------------------------------------------------------------------

    def _writer(self) -> ir.Function:
        """What writes the span of a panel: whole blocks are left out of it, at either end."""
        function, build = self._function("span", VOID, self.core.pointer, I64, WORDS)
        panel, depth, place = function.args
        size = index(BLOCK)
        begin = self._past(
            build, index(0), BLOCK, panel, lambda at: (at, build.icmp_signed("<=", build.add(at, size), depth))
        )

        def ahead(at: ir.Value) -> tuple[ir.Value, ir.Value]:
            start = build.sub(at, size)
            return start, build.icmp_signed(">=", start, begin)

        end = self._past(build, depth, -BLOCK, panel, ahead)
        for at, edge in enumerate((begin, end)):
            build.store(edge, build.gep(place, [index(at)]))
        build.ret_void()
        return function

    def _past(
        self, build: ir.IRBuilder, start: ir.Value, step: int, panel: ir.Value,
        block_at: Callable[[ir.Value], tuple[ir.Value, ir.Value]],
    ) -> ir.Value:  # fmt: skip
        """How far from `start` the blocks are all zeros: `block_at` says where one begins, and whether it is there."""
        before = build.block
        head, body, end = (build.function.append_basic_block(f"past.{part}") for part in ("head", "body", "end"))
        build.branch(head)
        build.position_at_end(head)
        at = build.phi(I64)
        at.add_incoming(start, before)
        block, is_there = block_at(at)
        build.cbranch(is_there, body, end)
        build.position_at_end(body)
        at.add_incoming(build.add(at, index(step)), body)
        build.cbranch(self._is_zero(build, build.gep(panel, [build.mul(block, index(self.tile.height))])), head, end)
        build.position_at_end(end)
        return at

    def _is_zero(self, build: ir.IRBuilder, block: ir.Value) -> ir.Value:
        """Whether a block is all zeros, of either sign."""
        v = Vectors(build, self.tile.lanes)
        values = [v.load(build.gep(block, [index(at)])) for at in range(0, BLOCK * self.tile.height, self.tile.lanes)]
        bits = [v.bits(v.abs(value)) for value in values] if self.core.is_float else values
        every = functools.reduce(v.bit_or, bits)
        return build.not_(v.any(v.int_compare("!=", every, same(every.type, 0))))

    def _holder(self) -> ir.Function:
        """Whether there are spans, and no element of a panel of B is infinite or NaN: 0 times these is not 0."""
        tile = self.tile
        function, build = self._function("hold", I1, I1, self.core.pointer, I64, I64)
        some, panel, depth, wide = function.args
        if not self.core.is_float:
            build.ret(some)
            return function
        v = Vectors(build, tile.lanes)
        with build.if_then(build.not_(some)):
            build.ret(some)
        last = build.and_(build.sub(wide, index(1)), index(-tile.lanes))  # of its vectors: behind it is anything
        zeros = [same(ir.VectorType(self.core.scalar, tile.lanes), None)] * tile.vectors
        with loop_with(build, index(0), depth, index(1), zeros, "k") as (k, held, following):
            start = build.gep(panel, [build.mul(k, index(tile.columns))])
            for at in range(tile.vectors):
                value = v.load(build.gep(start, [smaller(build, index(at * tile.lanes), last)]))
                following.append(v.fma(value, v.like(value, 0.0), held[at]))
        total = held[0]
        for value in held[1:]:
            total = v.add(total, value)
        build.ret(build.not_(v.any(v.is_nan(total))))
        return function

    def _function(self, name: str, result: ir.Type, *kinds: ir.Type) -> tuple[ir.Function, ir.IRBuilder]:
        function = ir.Function(self.core.module, ir.FunctionType(result, kinds), name)
        function.attributes.add("nounwind")
        function.linkage = "internal"
        return function, ir.IRBuilder(function.append_basic_block("entry"))
