"""Result audit: parts computed again on other workers and compared, and which worker is wrong.  Pure.

A worker may be wrong and not know it: a device that flips bits, a library that miscomputes.  `audited` adds to a plan,
for one of its parts, a part on each of two other workers with room for it that takes the same inputs *and* the outputs
of the audited part, computes the latter anew and counts where they differ: a graph like any other, whose answer is one
number.  Two cpu engines that round alike must agree to the bit, others within the op table's tolerances, added up along
the way; what may be anything between such (`result_tolerance.py`) they do not compare.  What is built on an output is
computed from the one that was claimed.  A large matrix product that leaves its part is not computed again but checked
(R. Freivalds 1977): C r = A (B r) for random signs r costs a column, not a matrix.

With both auditors against it the audited worker was wrong; an auditor alone with its view was.  That is the third vote.
Where there is one auditor only, its doubt makes the call run again and blames nobody.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from wire.ir.arithmetic import arithmetic_of
from wire.ir.dtypes import F32, PARTS, DType
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.ops import tolerance_for
from wire.protocol.engine_names import ON_CPU

from ..model.memory_check import missing
from ..model.plan import Audit, Edge, FromPart, Part, Plan, Source
from ..model.profiles import DeviceProfile, Profiles
from ..model.unit_work import needs
from .result_tolerance import Likeness, likeness

AUDITORS = 2
WRONG_MAX = 2  # a worker that was wrong so often gets no work any more
DOUBTS_MAX = 4  # how often a call is computed again because workers disagree
VARIANTS = 24  # of one program's plan: which part, by which workers
FREIVALDS_FLOPS_MIN = 10_000_000  # a smaller product is computed again in no time
FREIVALDS_COLUMNS = 8  # each misses an error with a chance of 1/2 at most
FREIVALDS_RTOL = 4e-6  # of |A| |B|: some sixty roundings
DRIFT_MAX = 0.05  # tolerances that add up to more say nothing


def audited(plan: Plan, variant: int, profiles: Profiles, untrusted: bool = False) -> Plan:
    """The plan with one of its parts audited, `variant` says which and by which workers; the plan itself if none can.

    With `untrusted` it is one of a worker that is not trusted.  Those that are come first as auditors.
    """
    doubtful = {worker.node_id for worker in profiles.workers if not worker.trusted}
    alone = [part for part in plan.parts if part.index not in plan.ranks]  # a rank cannot be computed by itself
    alone = [part for part in alone if part.node in doubtful] if untrusted else alone
    if not alone:
        return plan
    part = alone[variant % len(alone)]
    others = [worker for worker in profiles.workers if worker.node_id != part.node]
    turn = variant // len(alone) % max(len(others), 1)
    parts: list[Part] = []
    rounds = profiles.arithmetic(part.node, part.device)
    for worker in sorted((*others[turn:], *others[:turn]), key=lambda worker: not worker.trusted):
        index = len(plan.parts) + len(parts)
        device_order = sorted(worker.devices, key=lambda device: device.engine != part.engine)
        ways = (_audit_part(part, rounds, index, worker.node_id, device) for device in device_order)
        parts += itertools.islice((way for way in ways if way and _has_room(plan, (*parts, way), profiles)), 1)
        if len(parts) == AUDITORS:
            break
    if not parts:
        return plan
    edges = [
        Edge(source, audit.index, slot, audit.graph.types[audit.graph.inputs[slot]].size_bytes)
        for audit in parts
        for slot, source in enumerate(audit.sources)
        if isinstance(source, FromPart)
    ]
    return replace(
        plan,
        parts=(*plan.parts, *parts),
        edges=(*plan.edges, *edges),
        outputs=(*plan.outputs, *(FromPart(audit.index, 0) for audit in parts)),
        audit=Audit(part.index, part.node, tuple(audit.node for audit in parts)),
    )


def _has_room(plan: Plan, audits: Sequence[Part], profiles: Profiles) -> bool:
    """Whether the last of these audits has room on its worker, beside what that does by the plan."""
    short = missing(replace(plan, parts=(*plan.parts, *audits)), profiles)
    return not short[[worker.node_id for worker in profiles.workers].index(audits[-1].node)]


def _audit_part(part: Part, rounds: str, index: int, node: str, device: DeviceProfile) -> Part | None:
    """The audit on a device; what is audited `rounds` so."""
    same = arithmetic_of(rounds, part.graph) == arithmetic_of(device.arithmetic, part.graph)
    exact = part.engine == device.engine and device.engine in ON_CPU and same
    graph = audit_graph(part.graph, exact)
    if graph is None:
        return None
    if not all(device.supports(*need) for number in range(len(graph.nodes)) for need in needs(graph, number)):
        return None
    claimed: list[Source] = [FromPart(part.index, slot) for slot in range(len(part.graph.outputs))]
    return Part(index, node, device.index, device.engine, graph, (*part.sources, *claimed))


# -- the graph --------------------------------------------------------------------------------------------


def audit_graph(graph: WireGraph, exact: bool) -> WireGraph | None:
    """Inputs as `graph` and then its outputs; the output is in how many places the latter are wrong (i32, no axes).

    None if no output can be compared, which happens to engines of different kinds only.
    """
    return _AuditGraph(graph, exact).build()


class _AuditGraph:
    def __init__(self, graph: WireGraph, exact: bool) -> None:
        self._graph = graph
        self._exact = exact
        self._make = GraphBuilder()
        self._make.blobs.update(graph.blobs)
        self._counts: list[int] = []
        self._drift: list[float] = []  # of every node: tolerances added up on the way to it
        self._likeness: list[Likeness] = []

    def build(self) -> WireGraph | None:
        graph, make = self._graph, self._make
        local = {place: make.input(str(slot), *graph.types[place]) for slot, place in enumerate(graph.inputs)}
        claims = {}
        for slot, place in enumerate(graph.outputs, start=len(graph.inputs)):
            claims[place] = make.input(str(slot), *graph.types[place])
        for index, node in enumerate(graph.nodes):
            self._drift.append(self._drift_of(index))
            self._likeness.append(likeness(graph, index, self._likeness))
            if index in local:
                continue
            inputs = [local[operand] for operand in node.inputs]
            if index in claims and self._checked_as_product(index):
                self._check_product(node.attrs, inputs[0], inputs[1], claims[index])
                self._take(index, local, claims[index])
                continue
            local[index] = make.copy(node, inputs)
            if index in claims and (self._exact or self._likeness[index] is not Likeness.ANY):
                self._compare(index, claims[index], local[index])
                self._take(index, local, claims[index])
        return make.build([reduce(partial(make.add, "add"), self._counts)]) if self._counts else None

    def _take(self, index: int, local: dict[int, int], claim: int) -> None:
        """What follows is computed of the claim, which both have to the bit."""
        local[index], self._drift[index], self._likeness[index] = claim, 0.0, Likeness.SAME

    def _drift_of(self, index: int) -> float:
        node, dtype = self._graph.nodes[index], self._graph.types[index].dtype
        before = max((self._drift[operand] for operand in node.inputs), default=0.0)
        own = tolerance_for("mul" if node.op == "cast" and before else node.op, dtype).rtol  # a narrower dtype rounds
        return min(before + own, DRIFT_MAX)

    def _compare(self, index: int, claimed: int, computed: int) -> None:
        """Count the elements that differ: in any bit, or by more than the ops allow (NaN agrees with NaN)."""
        make, (shape, dtype) = self._make, self._graph.types[index]
        if 0 in shape:
            return
        pairs, real = [(claimed, computed)], dtype
        if dtype.kind == "c":
            real, pairs = (
                PARTS[dtype],
                [(make.add(part, claimed), make.add(part, computed)) for part in ("real", "imag")],
            )
        if real.kind != "f" or self._exact:
            for one, other in pairs:
                self._count_unlike(real, one, other, len(shape))
            return
        axes = tuple(range(len(shape)))
        largest = self._as_f32(make.add("abs", computed), real)
        largest = make.add("reduce_max", largest, axes=axes) if axes else largest
        allowed = make.add("mul", largest, make.const(np.float32(max(self._drift[index], 1e-6))))
        for one, other in pairs:
            self._count_apart(self._as_f32(one, real), self._as_f32(other, real), allowed, len(shape))

    def _count_apart(self, claimed: int, computed: int, allowed: int, rank: int) -> None:
        make = self._make
        off = make.add("abs", make.add("add", claimed, make.add("neg", computed)))
        self._count(make.add("gt", off, allowed), rank)
        self._count(make.add("ne", make.add("is_nan", claimed), make.add("is_nan", computed)), rank)

    def _count_unlike(self, dtype: DType, claimed: int, computed: int, rank: int) -> None:
        make = self._make
        if dtype.kind == "f":
            bits = f"u{8 * dtype.itemsize}"
            claimed, computed = make.add("bitcast", claimed, dtype=bits), make.add("bitcast", computed, dtype=bits)
        self._count(make.add("ne", claimed, computed), rank)

    def _as_f32(self, value: int, dtype: Any) -> int:
        return value if dtype is F32 else self._make.add("cast", value, dtype=F32.name)

    def _checked_as_product(self, index: int) -> bool:
        node, types = self._graph.nodes[index], self._graph.types
        if node.op != "dot" or types[index].dtype is not F32 or self._graph.flops_of(index) < FREIVALDS_FLOPS_MIN:
            return False
        matrices = all(len(types[operand].shape) == 2 for operand in node.inputs)
        return matrices and not node.attrs["lhs_batch"] and len(node.attrs["lhs_contract"]) == 1

    def _check_product(self, attrs: Mapping[str, Any], left: int, right: int, claimed: int) -> None:
        """C r = A (B r), within the roundings that |A| (|B| 1) allows."""
        make = self._make
        (inner_left,), (inner_right,) = attrs["lhs_contract"], attrs["rhs_contract"]
        columns = make.types[claimed].shape[1]
        chance = np.random.default_rng(columns)
        signs = make.const(chance.choice(np.array([-1, 1], np.float32), (columns, FREIVALDS_COLUMNS)))
        ones = make.const(np.ones((columns, 1), np.float32))

        def product(a: int, axis: int, b: int) -> int:
            return make.add("dot", a, b, lhs_batch=(), rhs_batch=(), lhs_contract=(axis,), rhs_contract=(0,))

        def through(a: int, b: int, vectors: int) -> int:
            return product(a, inner_left, product(b, 1 - inner_right, vectors))

        expected = through(left, right, signs)
        bound = through(make.add("abs", left), make.add("abs", right), ones)
        off = make.add("abs", make.add("add", product(claimed, 1, signs), make.add("neg", expected)))
        allowed = make.add("mul", bound, make.const(np.float32(FREIVALDS_RTOL)))
        wrong = make.add("gt", off, allowed)
        self._count(wrong, 2)
        self._count(make.add("ne", make.add("is_nan", off), make.add("is_nan", bound)), 2)

    def _count(self, wrong: int, rank: int) -> None:
        counted = self._make.add("cast", wrong, dtype="i32")
        self._counts.append(self._make.add("reduce_sum", counted, axes=tuple(range(rank))) if rank else counted)


# -- which is wrong ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """The event to publish, if any: `node` was "wrong" or is "doubted".  Whether the answer can be trusted, and whether
    the node gets no more work."""

    event: str = ""
    node: str = ""
    text: str = ""
    trusted: bool = True
    quarantined: bool = False


TRUSTED = Verdict()


@dataclass(slots=True)
class Auditor:
    """The calls that are audited, and what came of it.

    `fraction` of all parts are audited, evenly spread; by default none.  Of those on workers that are not trusted it is
    `untrusted`, if that is more.
    """

    fraction: float = 0.0
    untrusted: float = 0.0
    wrong: dict[str, int] = field(default_factory=dict)  # how often, by node
    audits: int = 0
    _due: float = 0.0
    _due_untrusted: float = 0.0

    def pick(self, parts: int = 1, untrusted: int = 0) -> tuple[int, bool] | None:
        """The variant of the audit for a call of `parts` parts, of which some are on `untrusted` workers,
        and whether it is to be one of these; None for no audit."""
        self._due += self.fraction * parts
        self._due_untrusted += max(self.untrusted - self.fraction, 0.0) * untrusted
        if self._due_untrusted >= 1.0:
            self._due_untrusted = min(self._due_untrusted - 1.0, 1.0)
            return self._next_variant(), True
        if self._due < 1.0:
            return None
        self._due = min(self._due - 1.0, 1.0)
        return self._next_variant(), False

    def next_variant(self, doubts: int) -> int | None:
        """The next variant, for a call that was doubted so often; None if that is too often to be computed again."""
        return self._next_variant() if doubts <= DOUBTS_MAX else None

    def _next_variant(self) -> int:
        self.audits += 1
        return (self.audits - 1) % VARIANTS

    def judge(self, audit: Audit, counts: Sequence[int]) -> Verdict:
        """What the auditors' counts of differences mean."""
        doubting = [node for node, count in zip(audit.auditors, counts, strict=True) if count]
        if not doubting:
            return TRUSTED
        if len(audit.auditors) < AUDITORS:
            return Verdict("doubted", audit.node, "another worker disagrees, and there is no third", trusted=False)
        culprit = audit.node if len(doubting) == len(audit.auditors) else doubting[0]
        self.wrong[culprit] = self.wrong.get(culprit, 0) + 1
        quarantined = self.wrong[culprit] >= WRONG_MAX
        return Verdict("wrong", culprit, "two others disagree with it", culprit != audit.node, quarantined)
