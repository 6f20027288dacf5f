"""UnifiedDims: which dimensions of all values in a graph go together, for ops with graphs inside.

Every dimension of every value is a member of a class; the rule of each node joins classes.  A class that any node sums
over, needs whole, or lowers in a way of its own is blocked: within a body ranks do not speak.  Of a dimension made of
several factors the outermost counts, which must then be shared out evenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..ir.graph import WireGraph
from .rule import WHOLE, Draft, Rule

RulesWithin = Callable[[WireGraph], Sequence[Rule | None]]
"""The rule of each node of a graph; None for one that has none."""

Classes = list[int]
"""The classes of a value's dimensions."""


@dataclass(slots=True)
class _Class:
    size: int
    exact: bool = False
    blocked: bool = False


class UnifiedDims:
    """Classes of the dimensions in one or more graphs."""

    def __init__(self, rules_within: RulesWithin) -> None:
        self._rules_within = rules_within
        self._above: list[int] = []
        self._classes: list[_Class] = []
        self._factors: dict[int, int] = {}

    def add(self, graph: WireGraph) -> list[Classes]:
        """The classes of every node of a graph."""
        classes: list[Classes] = []
        for index, ((op, inputs, attrs), rule) in enumerate(zip(graph.nodes, self._rules_within(graph), strict=True)):
            shape = graph.types[index].shape
            operands = [classes[source] for source in inputs]
            if op == "input":
                classes.append([self._new(dim) for dim in shape])
            elif rule is None:
                self._block(*[member for operand in operands for member in operand])
                classes.append([self.whole() for _ in shape])
            else:
                classes.append(self._node(rule, operands, attrs.get("output", 0)))
        return classes

    def whole(self) -> int:
        """A class that is not split."""
        member = self._new(1)
        self._block(member)
        return member

    def join(self, left: Sequence[Classes], right: Sequence[Classes]) -> None:
        """Values that are the same, or take each other's place."""
        for one, other in zip(left, right, strict=True):
            for here, there in zip(one, other, strict=True):
                self._join(here, there)

    def dim_factors(self, draft: Draft, classes: Classes) -> tuple[tuple[int, ...], ...]:
        """The factors of `draft` that the dimensions are made of."""
        return tuple([self._made(draft, self._root(member)) for member in classes])

    def _made(self, draft: Draft, root: int) -> tuple[int, ...]:
        equal_dims = self._classes[root]
        if equal_dims.blocked:
            return WHOLE
        if root not in self._factors:
            self._factors[root] = draft.new(equal_dims.size, exact=equal_dims.exact)
        return (self._factors[root],)

    def _node(self, rule: Rule, operands: Sequence[Classes], output: int) -> Classes:
        of_factor = [self._new(size) for size in rule.sizes]
        self._block(*[of_factor[factor] for factor in (*rule.reduced, *rule.special)])
        for factor in rule.exact:
            self._classes[self._root(of_factor[factor])].exact = True
        for classes, dims in zip(operands, rule.operands, strict=True):
            for member, factors in zip(classes, dims, strict=True):
                self._join(member, self._outermost(of_factor, factors))
        return [self._outermost(of_factor, factors) for factors in rule.results[output]]

    def _outermost(self, of_factor: Sequence[int], factors: tuple[int, ...]) -> int:
        if not factors:
            return self.whole()
        self._block(*[of_factor[factor] for factor in factors[1:]])
        return of_factor[factors[0]]

    # -- union-find ---------------------------------------------------------------------------------------

    def _new(self, size: int) -> int:
        self._above.append(len(self._above))
        self._classes.append(_Class(size))
        return len(self._above) - 1

    def _root(self, member: int) -> int:
        while self._above[member] != member:
            self._above[member] = member = self._above[self._above[member]]
        return member

    def _join(self, left: int, right: int) -> None:
        one, other = self._root(left), self._root(right)
        if one == other:
            return
        kept, gone = self._classes[one], self._classes[other]
        kept.exact |= gone.exact or kept.size != gone.size
        kept.size = math.gcd(kept.size, gone.size)
        kept.blocked |= gone.blocked
        self._above[other] = one

    def _block(self, *members: int) -> None:
        for member in members:
            self._classes[self._root(member)].blocked = True
