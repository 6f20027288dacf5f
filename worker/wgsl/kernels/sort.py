"""argsort of rows whose length is a power of two: a bitonic network over (key, index), stable through the index.

Every step compares pairs and leaves the smaller one first, so no step has a direction: a merge starts by comparing
position i of a block with its mirror image, and goes on with halves that shrink (Batcher 1968, in the form without
descending blocks).  Steps within `block` elements run in workgroup memory; longer ones are one dispatch each, which
moves only the indices and reads the keys again through them.  It does not know how rows became powers of two
(`canonicalise.py`), nor what a key is: `rank` orders every dtype.
"""

from __future__ import annotations

from dataclasses import replace

from ...compiler.expressions import Expr
from ..kernel_ir import Barrier, Kernel, Leave, Let, Loop, Shared, Statement, Store, StoreShared, When
from .frame import Frame

BLOCK_BITS_MAX = 10  # 1,024 keys and indices: 8 KiB of workgroup memory
SOFTWARE_BLOCK_BITS = 4  # there barriers are dear and dispatches cheap: a fourth of the time, and of the compilation
INVOCATIONS_MAX = 128


def lower_sort(frame: Frame) -> list[Kernel]:
    """Blocks sorted, then merged until a block is a row; the row has two elements or more."""
    first = _Sort(frame)
    kernels = [first.blocks_sorted()]
    for bits in range(first.block_bits + 1, first.row_bits + 1):
        kernels.append(_Sort(_again(frame)).step(bits, mirrored=True))
        kernels += [_Sort(_again(frame)).step(half, mirrored=False) for half in range(bits - 1, first.block_bits, -1)]
        kernels.append(_Sort(_again(frame)).blocks_merged())
    return kernels


def _again(frame: Frame) -> Frame:
    return Frame(frame.graph, frame.group, frame.profile)


class _Sort:
    """One kernel of the network."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.build, self.root = frame, frame.build, frame.root
        (self.source,) = frame.graph.nodes[frame.root].inputs
        self.length = frame.shape(frame.root)[1]
        self.row_bits = self.length.bit_length() - 1
        memory_bits = (frame.profile.limits.workgroup_bytes // 8).bit_length() - 1
        wanted_bits = SOFTWARE_BLOCK_BITS if frame.profile.software else BLOCK_BITS_MAX
        self.block_bits = min(self.row_bits, wanted_bits, memory_bits)
        self.block = 1 << self.block_bits
        most = min(frame.profile.limits.invocations, INVOCATIONS_MAX)
        self.invocations = min(self.block // 2, 1 << (most.bit_length() - 1))
        self.elements = frame.elements()

    # -- in workgroup memory ------------------------------------------------------------------------------

    def blocks_sorted(self) -> Kernel:
        build = self.build
        merge, turn = build.var("merge", self.block_bits), build.var("turn", self.block_bits)
        due = build.make("le", [turn, merge], "bool")
        half = build.make("shl", [build.number(1), build.make("minus", [merge, turn], "u32")], "u32")
        mirrored = build.make("eq", [turn, build.number(0)], "bool")
        step = (When(due, self._pairs(half, mirrored)), Barrier())
        turns = Loop(turn, build.number(0), self.block_bits, 1, step)
        return self._of_blocks("sort_blocks", Loop(merge, build.number(0), self.block_bits, 1, (turns,)), None)

    def blocks_merged(self) -> Kernel:
        build = self.build
        turn = build.var("turn", self.block_bits)
        half = build.make("shr", [build.number(self.block // 2), turn], "u32")
        step = (*self._pairs(half, None), Barrier())
        kernel = self._of_blocks("sort_merge", Loop(turn, build.number(0), self.block_bits, 1, step), self.root)
        return replace(kernel, in_place=frozenset([self.root]))

    def _of_blocks(self, name: str, network: Statement, indices: int | None) -> Kernel:
        """Load a block, the indices from a buffer or counted, run the network and store the indices."""
        build, groups = self.build, self.frame.size // self.block
        group = build.var("group", groups)
        body: list[Statement] = []
        if groups > self.frame.profile.limits.groups_per_dimension:
            body.append(Leave(build.make("ge", [group, build.number(groups)], "bool")))
        lane = self.frame.lane(self.invocations)
        places = [build.sum(lane, build.number(start)) for start in range(0, self.block, self.invocations)]
        spots = [build.sum(build.scaled(group, self.block), place) for place in places]
        for number, (place, spot) in enumerate(zip(places, spots, strict=True)):
            index = build.mod(spot, self.length)
            if indices is not None:
                index = self._index(f"i{number}", spot, body)
            body += [StoreShared("keys", place, self._key(spot, index)), StoreShared("indices", place, index)]
        body += [Barrier(), network]
        for place, spot in zip(places, spots, strict=True):
            index = build.make("shared", [place], "u32", "indices")
            body.append(Store(self.root, spot, (build.make("cast", [index], "i32", "u32"),)))
        shared = (Shared("keys", "u32", self.block), Shared("indices", "u32", self.block))
        return Kernel(name, groups, self.invocations, tuple(body), self.frame.dtypes, shared)

    def _pairs(self, half: Expr, mirrored: Expr | None) -> tuple[Statement, ...]:
        """One step of the block for the pairs of this invocation, `half` apart or (where `mirrored`) mirrored."""
        build, body = self.build, list[Statement]()
        for number, start in enumerate(range(0, self.block // 2, self.invocations)):
            pair = build.sum(self.frame.lane(self.invocations), build.number(start))
            inside = build.make("and", [pair, build.make("minus", [half, build.number(1)], "u32")], "u32")
            before = build.make("minus", [pair, inside], "u32")
            doubled = build.make("add", [before, before], "u32")
            low = build.make("add", [doubled, inside], "u32")
            high = build.make("add", [low, half], "u32")
            if mirrored is not None:
                last = build.make("add", [doubled, build.make("add", [half, half], "u32")], "u32")
                mirror = build.make("minus", [last, build.make("add", [inside, build.number(1)], "u32")], "u32")
                high = build.make("select", [mirrored, mirror, high], "u32")
            places = [build.bounded(place, self.block - 1) for place in (low, high)]
            body += self._exchange(str(number), places)
        return tuple(body)

    def _exchange(self, name: str, places: list[Expr]) -> list[Statement]:
        build, body = self.build, list[Statement]()
        held = {}
        for array in ("keys", "indices"):
            for side, place in enumerate(places):
                own = build.make("var", (), "u32", f"{array}{name}_{side}")
                body.append(Let(own, build.make("shared", [place], "u32", array)))
                held[array, side] = own
        swap = build.make("better", [held["keys", 0], held["keys", 1], held["indices", 1], held["indices", 0]], "bool")
        stores = [
            StoreShared(array, place, held[array, 1 - side])
            for array in ("keys", "indices")
            for side, place in enumerate(places)
        ]
        return [*body, When(swap, tuple(stores))]

    # -- across blocks ------------------------------------------------------------------------------------

    def step(self, bits: int, mirrored: bool) -> Kernel:
        """One step over blocks of 2^bits elements, one invocation per pair."""
        build, half = self.build, 1 << (bits - 1)
        pair, groups, invocations, head = self.frame.threads(self.frame.size // 2, "pair")
        block, inside = build.scaled(build.div(pair, half), 2 * half), build.mod(pair, half)
        low = build.sum(block, inside)
        high = build.minus(build.sum(block, build.number(2 * half - 1)), inside)
        spots = [low, high if mirrored else build.sum(low, build.number(half))]
        body = list(head)
        indices = [self._index(f"i{side}", spot, body) for side, spot in enumerate(spots)]
        keys = [self._key(spot, index) for spot, index in zip(spots, indices, strict=True)]
        swap = build.make("better", [*keys, indices[1], indices[0]], "bool")
        values = [build.make("cast", [index], "i32", "u32") for index in reversed(indices)]
        stores = [Store(self.root, spot, (value,)) for spot, value in zip(spots, values, strict=True)]
        body.append(When(swap, tuple(stores)))
        kernel = Kernel("sort_step", groups, invocations, tuple(body), self.frame.dtypes)
        return replace(kernel, in_place=frozenset([self.root]))

    # -- keys and indices ---------------------------------------------------------------------------------

    def _index(self, name: str, spot: Expr, body: list[Statement]) -> Expr:
        """The index that lies at a position of the result."""
        own = self.build.var(name, self.length)
        value = self.build.make("read", [spot], "i32", self.root)
        body.append(Let(own, self.build.make("cast", [value], "u32", "i32")))
        return own

    def _key(self, spot: Expr, index: Expr) -> Expr:
        """The rank of element `index` of the row in which position `spot` lies."""
        value = self.elements.at(self.source, (self.build.div(spot, self.length), index))
        if value.dtype == "bool":
            return self.build.make("cast", [value], "u32", "bool")
        return self.build.make("rank", [value], "u32")
