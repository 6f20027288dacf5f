"""Rule: which dimensions of a node's operands and results go together when ranks share its work out.

The form, and what free, reduced, exact and special factors are, is explained in `factors.py`, which writes the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..ir.graph import WireGraph
from ..ir.types import TensorType
from .layout import local_dim

DimFactors = tuple[tuple[int, ...], ...]
"""The factors of each dimension of a tensor, outermost first."""

Dimensions = Sequence[tuple[int, ...]]
WHOLE: tuple[int, ...] = ()
ORDERED = frozenset({"sum", "prod"})  # reductions whose result follows their order, of numbers that round


@dataclass(frozen=True, slots=True)
class Body:
    """A graph inside a node, and the factors of the dimensions of its nodes.

    `local_graphs` are what ranks have of it, as far as that was asked for, by the number of shards of each factor.
    """

    graph: WireGraph
    dim_factors: tuple[DimFactors, ...]
    local_graphs: dict[tuple[int, ...], WireGraph] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Rule:
    """What of one node can be split.  `results` are by the attribute `output`; most ops have one.  `whole` are factors
    that nobody may share out."""

    sizes: tuple[int, ...]
    operands: tuple[DimFactors, ...]
    results: tuple[DimFactors, ...]
    reduced: Mapping[int, str] = field(default_factory=dict)
    special: frozenset[int] = frozenset()
    exact: frozenset[int] = frozenset()
    bodies: Mapping[str, Body] = field(default_factory=dict)
    whole: frozenset[int] = frozenset()

    def in_order(self) -> Rule:
        """The rule by which one rank adds up or multiplies all that a node adds up or multiplies."""
        return replace(self, whole=frozenset([factor for factor, how in self.reduced.items() if how in ORDERED]))

    def may_split(self, factor: int, shards: int) -> bool:
        """Whether `shards` ranks can split a factor."""
        return factor not in self.whole and (factor not in self.exact or self.sizes[factor] % shards == 0)


def local_of(shape: Sequence[int], dim_factors: DimFactors, shards: Sequence[int]) -> tuple[int, ...]:
    """The shape that a rank has if each factor is split into the number in `shards`."""
    local_shape = []
    for dim, factors in zip(shape, dim_factors, strict=True):
        for factor in factors:
            dim = local_dim(dim, shards[factor])
        local_shape.append(dim)
    return tuple(local_shape)


class Draft:
    """A rule that is being written."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._reduced: dict[int, str] = {}
        self._special: set[int] = set()
        self._exact: set[int] = set()

    def new(self, size: int, reduced: str = "", special: bool = False, exact: bool = False) -> int:
        """A factor of `size`; `reduced` by sum, prod, max or min."""
        factor = len(self._sizes)
        self._sizes.append(size)
        if reduced:
            self._reduced[factor] = reduced
        if special:
            self._special.add(factor)
        if exact:
            self._exact.add(factor)
        return factor

    def each(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        """One factor for each dimension."""
        return [(self.new(dim),) for dim in shape]

    def rule(
        self, types: Sequence[TensorType], operands: Sequence[Dimensions], outs: Sequence[TensorType],
        results: Sequence[Dimensions], bodies: Mapping[str, Body],
    ) -> Rule:  # fmt: skip
        """The rule; factors that share a dimension with something else become exact."""
        operand_dims, result_dims = (tuple([tuple(dims) for dims in many]) for many in (operands, results))
        for kinds, tensors in ((types, operand_dims), (outs, result_dims)):
            for kind, dims in zip(kinds, tensors, strict=True):
                for dim, factors in zip(kind.shape, dims, strict=True):
                    if len(factors) > 1 or any(self._sizes[factor] != dim for factor in factors):
                        self._exact.update(factors)
        return Rule(
            tuple(self._sizes),
            operand_dims,
            result_dims,
            self._reduced,
            frozenset(self._special),
            frozenset(self._exact),
            bodies,
        )
