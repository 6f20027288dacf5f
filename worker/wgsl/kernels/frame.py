"""What every family starts from: a group, its graph and the expressions of one kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from wire.cached_property import cached_property
from wire.ir.graph import WireGraph

from ...compiler.element_exprs import Anchor, Elements
from ...compiler.expressions import Builder, Expr
from ...compiler.fuse import Group
from ..kernel_ir import Leave, Let, Statement
from ..profile import Profile


@dataclass(eq=False)
class Frame:
    """A kernel under construction.  A buffer's number is the number of the node it holds."""

    graph: WireGraph
    group: Group
    profile: Profile
    build: Builder = field(default_factory=Builder)

    @property
    def root(self) -> int:
        return self.group.root

    @property
    def size(self) -> int:
        """Elements of the result."""
        return self.graph.types[self.root].size

    @cached_property
    def dtypes(self) -> dict[int, str]:
        return {node: self.dtype(node) for node in (*sorted(self.group.reads), self.root)}

    def shape(self, node: int) -> tuple[int, ...]:
        return self.graph.types[node].shape

    def dtype(self, node: int) -> str:
        return self.graph.types[node].dtype.name

    def elements(self, anchors: Mapping[int, Anchor] | None = None) -> Elements:
        return Elements(self.graph, self.build, {node: node for node in self.group.reads}, anchors)

    def lane(self, invocations: int) -> Expr:
        """This invocation's place in its workgroup."""
        return self.build.var("lane", invocations)

    def threads(self, count: int, name: str, invocations: int = 0) -> tuple[Expr, int, int, tuple[Statement, ...]]:
        """One invocation per item: the item's variable, workgroups, invocations, and the statements that define it."""
        invocations = invocations or self.profile.usual_invocations
        groups = math.ceil(count / invocations)
        own = self.build.var(name, count)
        place = self.build.sum(
            self.build.scaled(self.build.var("group", groups), invocations), self.build.var("lane", invocations)
        )
        head: tuple[Statement, ...] = (Let(own, place),)
        if groups * invocations != count or groups > self.profile.limits.groups_per_dimension:
            head += (Leave(self.build.make("ge", [own, self.build.number(count)], "bool")),)
        return own, groups, invocations, head

    def contiguous(self, indices: list[Expr]) -> Expr | None:
        """The index of the quad if four indices are 4q, 4q+1, 4q+2, 4q+3; else None."""
        quad = self.build.div(indices[0], 4)
        whole = self.build.scaled(quad, 4)
        if all(index is self.build.sum(whole, self.build.number(lane)) for lane, index in enumerate(indices)):
            return quad
        return None
