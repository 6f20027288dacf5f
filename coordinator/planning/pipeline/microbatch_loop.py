"""Micro-batches: the loop of a training step, laid out on a line that is cut into stages.  Pure.

The loop is a scan whose first carry adds up the loss of each turn.  What the loss of a turn is made of is its *forward*
pass; what its gradients are made of besides is the *backward* pass; what becomes of these is *after* it: they are added
to the other carries, or, where the body says by `after(gradient, loss)` which nodes they are, the weights change.

Every forward node has a place, in the order of the graph.  A backward node is at the place of the forward node that it
belongs to: no later than what it is made of, and where what it reads of the forward pass was read.  So the backward
pass goes down the line as the forward pass went up, wherever it is cut.  *Free* nodes have no place: whoever needs them
computes them.  Those are what is made of weights alone or of rows alone, such as masks and transposed weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from wire.cached_property import cached_property
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.ops import VIEWS

from ..model.unit_work import COPIED

FORWARD, BACKWARD, AFTER = "forward", "backward", "after"
ROW, CONST, CARRY = "row", "const", "carry"
FOLDED = VIEWS - COPIED - {"after", "slice"}  # what takes no more room than its operand, and no time
Leaf = tuple[str, int]  # of what kind a body's input is, and which of them


@dataclass(frozen=True, slots=True)
class Loop:
    """The scan of a graph that is a loop over micro-batches; `results` are nodes by output."""

    operands: tuple[int, ...]
    results: Mapping[int, int]
    body: WireGraph
    carry: int
    consts: int
    turns: int

    def leaf(self, number: int) -> Leaf:
        """The kind of the body's input of that number, and its number within the kind."""
        if number < self.carry:
            return CARRY, number
        if number < self.carry + self.consts:
            return CONST, number - self.carry
        return ROW, number - self.carry - self.consts

    def operand(self, leaf: Leaf) -> int:
        """The node of the whole graph that an input of the body comes from; of a carry its first value."""
        first = {CARRY: 0, CONST: self.carry, ROW: self.carry + self.consts}[leaf[0]]
        return self.operands[first + leaf[1]]


def loop_of(graph: WireGraph, turns: int) -> Loop | None:
    """The loop over `turns` micro-batches; None unless there is exactly one scan that looks like it."""
    loops = []
    for first, group in graph.siblings.items():
        node = graph.nodes[first]
        if node.op == "scan" and node.attrs["length"] == turns and not node.attrs["reverse"]:
            attrs = node.attrs
            results = {graph.nodes[index].attrs["output"]: index for index in group}
            loop = Loop(node.inputs, results, attrs["body"], attrs["carry"], attrs["consts"], turns)
            if len(attrs["body"].outputs) == loop.carry and Line(loop).sound:
                loops.append(loop)
    return loops[0] if len(loops) == 1 else None


class Line:
    """Roles and places of a body's nodes; `beside` are carries with the constant whose gradient they sum."""

    def __init__(self, loop: Loop, beside: Mapping[int, int] | None = None) -> None:
        self.loop, self.body = loop, loop.body
        self._beside = beside or {}
        self.leaves = {index: loop.leaf(number) for number, index in enumerate(self.body.inputs)}
        self._twins = {sibling: group[0] for group in self.body.siblings.values() for sibling in group}
        self.place: dict[int, int] = {}
        self.roles = self._find_roles()
        if self.sound:
            self._find_places()

    @property
    def sound(self) -> bool:
        """Whether the loop is one over micro-batches: the forward pass of a turn needs none before it but by weights
        that change after it."""
        if self.loss is None or not any(role == BACKWARD for role in self.roles.values()):
            return False
        if self.marked:
            return True
        return not any(self.roles.get(index) == FORWARD for index in self._chained)

    @cached_property
    def loss(self) -> int | None:
        """The node that the first carry adds up."""
        node = self.body.nodes[self.body.outputs[0]] if self.loop.carry else None
        if node is None or node.op != "add":
            return None
        others = [operand for operand in node.inputs if self.leaves.get(operand) != (CARRY, 0)]
        return others[0] if len(others) == 1 else None

    @cached_property
    def marked(self) -> frozenset[int]:
        """The gradients, where the body says which nodes they are."""
        nodes = enumerate(self.body.nodes)
        return frozenset(index for index, node in nodes if node.op == "after" and self.loss in node.inputs[1:])

    @property
    def sums(self) -> bool:
        """Whether every carry is a sum over the turns."""
        for number, output in enumerate(self.body.outputs):
            node = self.body.nodes[output]
            mine = [self.leaves.get(operand) for operand in node.inputs]
            if node.op != "add" or mine.count((CARRY, number)) != 1:
                return False
        return all(self.body.nodes[index].op == "add" for index in self._chained) and not self.marked

    @cached_property
    def _chained(self) -> set[int]:
        """The nodes that need a carry."""
        carried = {index for index, leaf in self.leaves.items() if leaf[0] == CARRY}
        return self._below(carried) - carried

    def _below(self, roots: Iterable[int]) -> set[int]:
        below = set(roots)
        for index, node in enumerate(self.body.nodes):
            if not below.isdisjoint(node.inputs):
                below.add(index)
        return below

    def _above(self, roots: Iterable[int]) -> set[int]:
        above = set(roots)
        for index in range(len(self.body) - 1, -1, -1):
            if index in above:
                above.update(self.body.nodes[index].inputs)
        return above

    def _find_roles(self) -> dict[int, str]:
        if self.loss is None:
            return {}
        forward = self._above([self.loss])
        after = self._below(self.marked) if self.marked else self._chained - forward
        ends = {operand for index in after for operand in self.body.nodes[index].inputs} - after
        backward = self._above(self.marked or ends) - forward - after
        roles = {}
        for index in sorted(self._above(self.body.outputs) - self.leaves.keys()):
            roles[index] = FORWARD if index in forward else BACKWARD if index in backward else AFTER
        return roles

    # -- places

    def placed_operands(self, index: int) -> Iterator[int]:
        """The nodes with a place, and the leaves, that a node needs, directly or through free ones."""
        seen: set[int] = set()
        stack = list(self.body.nodes[index].inputs)
        while stack:
            operand = stack.pop()
            if operand in seen:
                continue
            seen.add(operand)
            if operand in self.place or operand in self.leaves:
                yield operand
            else:
                stack += self.body.nodes[operand].inputs

    def _find_places(self) -> None:
        rows = self._below(index for index, leaf in self.leaves.items() if leaf[0] == ROW)
        weights = self._below(index for index, leaf in self.leaves.items() if leaf[0] != ROW)
        for index, role in self.roles.items():
            if role == FORWARD and index in rows and index in weights:
                self.place[index] = self.place.get(self._twins.get(index, index), index)
        last = self.reach()
        anchors = self._anchors(last)
        for index, role in self.roles.items():
            if role != FORWARD:
                self._put(index, role, last)
                if index in anchors and index in self.place:
                    self.place[index] = min(self.place[index], anchors[index])
        self._sink()
        order = {place: number for number, place in enumerate(sorted(set(self.place.values())))}
        self.place = {index: order[place] for index, place in self.place.items()}
        self.length = len(order)

    def reach(self) -> dict[int, int]:
        """The last place at which the forward pass reads each node and leaf, or its own."""
        last: dict[int, int] = {}
        for index, place in self.place.items():
            if self.roles[index] == FORWARD:
                for read in (index, *self.placed_operands(index)):
                    last[read] = max(last.get(read, 0), place)
        return last

    def _put(self, index: int, role: str, last: Mapping[int, int]) -> None:
        first = self._twins.get(index, index)
        if first != index and first in self.place:
            self.place[index] = self.place[first]
            return
        made: list[int] = []
        read: list[int] = []
        own: list[int] = []
        for operand in self.placed_operands(index):
            if operand in self.place and self.roles[operand] != FORWARD:
                made.append(self.place[operand])
            elif operand in self.place:
                read.append(last[operand])
                own.append(self.place[operand])
            elif role == BACKWARD and operand in last:
                read.append(last[operand])
        if made:
            self.place[index] = min(made + read)
        elif own:  # a derivative, known as soon as what it is of
            self.place[index] = max(own)

    def _anchors(self, last: Mapping[int, int]) -> dict[int, int]:
        """Gradients, and sums of them, that belong no later than where the forward pass reads what they are of."""
        leaves = {leaf: index for index, leaf in self.leaves.items()}
        anchors = {}
        for carry, output in enumerate(self.body.outputs):
            weight = leaves.get((CARRY, carry) if self.marked else (CONST, self._beside.get(carry, -1)))
            ends = self._sources_of_its_shape(output, self.marked) if self.marked else {output}
            if weight is not None and weight in last and len(ends) == 1:
                anchors[ends.pop()] = last[weight]
        return anchors

    def _sources_of_its_shape(self, index: int, ends: Collection[int]) -> set[int]:
        """The nodes among `ends` that a node is made of by way of tensors of its shape."""
        body, alike, seen, stack = self.body, set[int](), set[int](), [index]
        while stack:
            node = stack.pop()
            if node in seen or body.types[node].shape != body.types[index].shape:
                continue
            seen.add(node)
            if node in ends:
                alike.add(node)
            else:
                stack += body.nodes[node].inputs
        return alike

    def _sink(self) -> None:
        """Move nodes down to the place of their readers, if what they are made of has to go down there anyway."""
        body = self.body
        readers: dict[int, set[int]] = {}
        for index in self.place:
            for operand in self.placed_operands(index):
                readers.setdefault(operand, set()).add(index)
        for index in sorted(self.place, reverse=True):
            if self.roles[index] == FORWARD or index in self._twins or index in body.outputs:
                continue
            lowest = max((self.place[reader] for reader in readers.get(index, ())), default=self.place[index])
            if lowest >= self.place[index]:
                continue
            needs = [operand for operand in self.placed_operands(index) if operand in self.place]
            others = ({self.place[reader] for reader in readers[need] - {index}} for need in needs)
            if all(any(place <= lowest for place in places) for places in others):
                self.place[index] = lowest

    def free(self, index: int) -> bool:
        """Whether every stage that needs it computes it."""
        return index not in self.place and index not in self.leaves


# -- what a stage computes ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """An input of a stage's graph: a leaf of the body, or a node that another part made.

    With `newest`, the value of a carry after all turns before, not that with which the turn began.
    """

    kind: str
    number: int
    newest: bool = False


VALUE = "value"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stage's computation in one pass: a graph whose inputs are `needs` and whose outputs are `made`, among them rows
    that the stage keeps for its way back."""

    graph: WireGraph
    needs: tuple[Key, ...]
    made: tuple[int, ...]


class Cut:
    """The body cut into stages: stage s has the places from `cuts[s]` to before `cuts[s + 1]`."""

    def __init__(self, line: Line, cuts: Sequence[int]) -> None:
        self._line, self._body = line, line.body
        self._cuts = tuple(cuts)
        self.stages = len(cuts) - 1
        self._members: dict[tuple[int, bool], list[int]] = {}
        for index in sorted(line.place):
            way = self.stage(line.place[index]), line.roles[index] == FORWARD
            self._members.setdefault(way, []).append(index)
        self._ends = self._outputs_of()
        self._pieces = self._cut()

    def stage(self, place: int) -> int:
        """The stage of a place."""
        return next(stage for stage in range(self.stages) if place < self._cuts[stage + 1])

    def home(self, index: int) -> tuple[int, bool]:
        """The stage of a node that has a place, and whether it is of the forward pass."""
        return self.stage(self._line.place[index]), self._line.roles[index] == FORWARD

    def piece(self, stage: int, forward: bool) -> Piece:
        """The piece that a stage computes, forward or backward."""
        return self._pieces[stage, forward]

    def carry_stage(self, carry: int, reader: int) -> int:
        """The stage that makes the next value of a carry, for a stage that reads it: of one that is free, itself."""
        output = self._body.outputs[carry]
        return self.home(output)[0] if output in self._line.place else reader

    def _outputs_of(self) -> dict[int, set[int]]:
        """The outputs of carries that each stage makes; every stage makes those that are free."""
        outputs: dict[int, set[int]] = {stage: set() for stage in range(self.stages)}
        for output in self._body.outputs:
            if output in self._line.place:
                outputs[self.home(output)[0]].add(output)
            elif output not in self._line.leaves:
                for stage in outputs:
                    outputs[stage].add(output)
        return outputs

    def _cut(self) -> dict[tuple[int, bool], Piece]:
        ways = [(stage, forward) for stage in range(self.stages) for forward in (True, False)]
        wanted: dict[int, None] = {}
        for way in ways:
            drawn = _Drawn(self._line, self._members.get(way, ()), self._ends[way[0]] if not way[1] else ())
            wanted.update((key.number, None) for key in drawn.needs if key.kind == VALUE)
        pieces: dict[tuple[int, bool], Piece] = {}
        for way in reversed(ways):  # so that what goes back is known before what goes there
            mine = self._members.get(way, [])
            ends = [] if way[1] else sorted(self._ends[way[0]])
            drawn = _Drawn(self._line, mine, ends)
            rows = self._rows(drawn.needs, pieces[way[0], False].needs) if way[1] else []
            leaving = dict.fromkeys([*(index for index in mine if index in wanted), *ends, *rows])
            pieces[way] = drawn.piece(tuple(leaving))
        return pieces

    def _rows(self, there: Collection[Key], back: Collection[Key]) -> list[int]:
        """The rows that a stage needs on both ways: it keeps them, and is not fed them twice."""
        both = {key.number for key in there if key.kind == ROW} & {key.number for key in back if key.kind == ROW}
        return [index for index, leaf in self._line.leaves.items() if leaf[0] == ROW and leaf[1] in both]


class _Drawn:
    """A graph of some nodes, and of those that are free as far as these need them."""

    def __init__(self, line: Line, members: Iterable[int], ends: Iterable[int]) -> None:
        self._line = line
        self._builder = GraphBuilder()
        self._builder.blobs.update(line.body.blobs)
        self.needs: dict[Key, int] = {}  # and their places
        self._members = set(members)
        self._local: dict[tuple[int, bool], int] = {}
        for index in sorted({*self._members, *ends}):
            self._value(index, line.roles[index] == AFTER)

    def piece(self, leaving: tuple[int, ...]) -> Piece:
        made = [self._value(index, self._line.roles.get(index) == AFTER) for index in leaving]
        graph = self._builder.build(made)
        return Piece(graph, tuple(self.needs), leaving)

    def _value(self, index: int, newest: bool) -> int:
        stack = [wanted := self._variant(index, newest)]  # and not a recursion: what is free may be deep
        while stack:
            variant = stack[-1]
            if variant not in self._local:
                made = self._given(*variant)
                operands = [self._variant(each, variant[1]) for each in self._line.body.nodes[variant[0]].inputs]
                lacking = [operand for operand in reversed(operands) if operand not in self._local]
                if made is None and lacking:
                    stack += lacking
                    continue
                if made is None:
                    sources = [self._local[operand] for operand in operands]
                    made = self._builder.copy(self._line.body.nodes[variant[0]], sources)
                self._local[variant] = made
            stack.pop()
        return self._local[wanted]

    def _variant(self, index: int, newest: bool) -> tuple[int, bool]:
        """A node, and whether it is made of the newest values of carries."""
        return index, self._line.roles[index] == AFTER if index in self._members else newest

    def _given(self, index: int, newest: bool) -> int | None:
        """The input that a node is here; None for one that is computed here."""
        line = self._line
        if index in line.leaves:
            kind, number = line.leaves[index]
            return self._input(Key(kind, number, newest and kind == CARRY), index)
        folded = line.body.nodes[index].op in FOLDED and line.roles[index] == FORWARD
        here = index in self._members or line.free(index) or folded
        return None if here else self._input(Key(VALUE, index), index)

    def _input(self, key: Key, index: int) -> int:
        slot = self.needs.setdefault(key, len(self.needs))
        return self._builder.input(str(slot), *self._line.body.types[index])
