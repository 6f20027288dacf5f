"""Cores of products whose operands are packed: of matrices, of the windows of an image, and of lines that lie ready.

How they work is Goto and van de Geijn's (ACM TOMS 34(3), 2008): B is packed to panels of `columns`, RUN long, A to
panels of up to `rows`, and a micro kernel keeps the C of two panels in registers.  Rows are shared out evenly, two by
two, so panels are about equally high, and there is a micro kernel for every even height.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wire.cached_property import cached_property

from .cores import (
    COLUMNS_OF_B,
    CORE,
    FUNCTION,
    LINE,
    PANELS_OF_A,
    RUN,
    Core,
    Matrix,
    Tile,
    joined,
    larger,
    quads_transposed,
    smaller,
    tile_for,
    transposed,
    vector_of,
    whole_vectors,
)
from .llvm import ADDRESS, I1, I64, Processor, index, ir, keep_order, loop, loop_with, prefetch
from .runner import KERNEL
from .spans import DEPTH_MIN, Spans
from .vectors import Vectors

COLUMNS_FOR_FEW = 128  # of a block for few rows, since it is read once
UNROLL = 4  # elements of the length in an iteration of a micro kernel's loop
FETCH_EVERY = 16  # elements of the length for which a row of C is fetched, where they are enough for all of its rows
ORDERED_ROWS = 7  # rows whose loads LLVM may move: with more it loads earlier than there are registers, and spills sums
AT_A_TIME = 16  # elements of the length to pack before the next panel, where those of a panel do not lie together


def window_core(processor: Processor, dtype: str, tile: Tile | None = None) -> ir.Module:
    """The same function for a B that is read through tables: element (k, j) lies at rows[k] + columns[j].

    In place of B's strides it takes the addresses of these tables of int64; the columns grow.  So a convolution reads
    the windows of an image, or of its derivative, where they lie.
    """
    return _WindowCore("windows", dtype, tile or tile_for(processor, dtype)).module


def lines_core(processor: Processor, dtype: str, tile: Tile | None = None) -> ir.Module:
    """The same function for a B whose rows are contiguous, wherever they lie: element (k, j) is at lines[k] + j.  It is
    read as it lies, and not packed.

    In place of B's row stride it takes the address of this table of int64.  It adds one run of the length, at most RUN:
    in place of B's column stride it is an argument that says whether there is a C to which this run is added.  Rows of
    B are read up to `Tile.columns` elements behind their ends.
    """
    return _LinesCore("lines", dtype, tile or tile_for(processor, dtype)).module


def packed_core(processor: Processor, dtype: str, tile: Tile | None = None) -> ir.Module:
    """The same function for a B that `panels_core` packed: C is the same to the bit.

    B begins with a panel, its row stride is `Tile.columns`, and its column stride is `Tile.deep` of the whole length.
    """
    return _PackedCore("packed", dtype, tile or tile_for(processor, dtype)).module


def panels_core(processor: Processor, dtype: str, tile: Tile | None = None) -> ir.Module:
    """A module with one function, `FUNCTION`, of the type of kernels (`runner.KERNEL`): a task packs a panel of B.

    Its arguments: B [K, n], its row stride and column stride, n, K, and where the panels go, `Tile.panels_size`
    elements.
    """
    return _Panels(dtype, tile or tile_for(processor, dtype)).module


def product_core(processor: Processor, dtype: str, tile: Tile | None = None) -> ir.Module:
    """A module with one function, `FUNCTION`, of type `CORE`: A [m, K] times B [K, n] to C [m, n].

    Its arguments: A, its row stride and column stride, B and its strides, C, its row stride, m, n, K, and scratch
    memory (`Tile.scratch_bytes`).  Strides are in elements and may be anything; columns of C are contiguous.  C must
    overlap neither operand.
    """
    return _ProductCore("product", dtype, tile or tile_for(processor, dtype)).module


@dataclass(frozen=True, slots=True)
class _Shares:
    """`total` rows in panels: their pairs of rows differ by one at most, the higher panels come first, and the last row
    may be half a pair."""

    total: ir.Value
    base: ir.Value
    extra: ir.Value

    @classmethod
    def of(cls, build: ir.IRBuilder, total: ir.Value, panels: ir.Value) -> _Shares:
        pairs = build.sdiv(build.add(total, index(1)), index(2))
        return cls(total, build.sdiv(pairs, panels), build.srem(pairs, panels))

    def begin(self, build: ir.IRBuilder, panel: ir.Value) -> ir.Value:
        return build.mul(build.add(build.mul(panel, self.base), smaller(build, panel, self.extra)), index(2))

    def height(self, build: ir.IRBuilder, panel: ir.Value) -> ir.Value:
        end = self.begin(build, build.add(panel, index(1)))
        return build.sub(smaller(build, end, self.total), self.begin(build, panel))


class _Packing(Core):
    """What packs operands, panel by panel."""

    strips: dict[int, ir.Function]  # by how many elements a panel has for every k: what packs a vector of them

    def _pack(
        self, build: ir.IRBuilder, source: ir.Value, along: ir.Value, across: ir.Value, depth: ir.Value,
        count: ir.Value, panel: ir.Value, wide: int,
    ) -> None:  # fmt: skip
        """A panel, `wide` elements for every k, of which `count` are there."""
        for at in range(0, wide, self.tile.lanes):
            left = build.sub(count, index(at))
            with build.if_then(build.icmp_signed(">", left, index(0))):
                start = build.gep(source, [build.mul(across, index(at))])
                build.call(self.strips[wide], [start, along, across, depth, left, build.gep(panel, [index(at)])])

    def _strip(self, wide: int) -> ir.Function:
        """A vector of a panel: panel[k * wide + lane] = source[k * along + lane * across].  What is not there may be
        anything, as its products are not kept; the panel has room for whole vectors of k."""
        lanes = self.tile.lanes
        function, build = self._function(f"strip{wide}", self.source, I64, I64, I64, I64, self.pointer)
        source, along, across, depth, count, panel = function.args
        step = index(wide)
        v = Vectors(build, lanes)
        whole = build.icmp_signed(">=", count, index(lanes))
        with build.if_else(build.icmp_signed("==", across, index(1))) as (contiguous, otherwise):
            with contiguous, build.if_else(whole) as (all_there, some_there):
                with all_there, loop(build, index(0), depth, index(1), "k") as k:
                    value = self._load(build, build.gep(source, [build.mul(k, along)]))
                    v.store(value, build.gep(panel, [build.mul(k, step)]))
                with some_there, loop(build, index(0), depth, index(1), "k") as k:
                    value = self._load_first(build, build.gep(source, [build.mul(k, along)]), count)
                    v.store(value, build.gep(panel, [build.mul(k, step)]))
            with otherwise:
                last = build.sub(smaller(build, count, index(lanes)), index(1))
                rows = [
                    build.gep(source, [build.mul(smaller(build, index(lane), last), across)]) for lane in range(lanes)
                ]
                with build.if_else(build.icmp_signed("==", along, index(1))) as (turned, gathered):
                    with turned:
                        self._transposed(build, rows, depth, panel, wide)
                    with gathered, loop(build, index(0), depth, index(1), "k") as k:
                        at = build.mul(k, along)
                        values = self._widened(
                            build, vector_of(build, [build.load(build.gep(row, [at])) for row in rows])
                        )
                        v.store(values, build.gep(panel, [build.mul(k, step)]))
        build.ret_void()
        return function

    def _transposed(
        self, build: ir.IRBuilder, rows: Sequence[ir.Value], depth: ir.Value, panel: ir.Value, wide: int
    ) -> None:
        """Rows along which k is contiguous: squares of lanes by lanes, the last of which may be narrower."""
        lanes = self.tile.lanes
        v = Vectors(build, lanes)

        def square(k: ir.Value, values: Sequence[ir.Value]) -> None:
            place = build.gep(panel, [build.mul(k, index(wide))])
            for at, value in enumerate(transposed(build, values, self.tile.bytes)):
                v.store(value, build.gep(place, [index(at * wide)]))

        whole = build.and_(depth, index(-lanes))
        with loop(build, index(0), whole, index(lanes), "square") as k:
            square(k, [self._load(build, build.gep(row, [k])) for row in rows])
        left = build.sub(depth, whole)
        with build.if_then(build.icmp_signed(">", left, index(0))):
            square(whole, [self._load_first(build, build.gep(row, [whole]), left) for row in rows])


class _ProductCore(_Packing):
    operand: type[Matrix] = Matrix  # what B is
    panel: tuple[ir.Type, ...] = ()  # further words by which a micro kernel finds its elements of B
    looks_for_zeros = True  # in A, where B's panels are packed

    def __init__(self, name: str, dtype: str, tile: Tile) -> None:
        super().__init__(name, dtype, tile)
        self.spans = Spans(self)
        self.strips = {wide: self._strip(wide) for wide in {tile.height, tile.columns}}
        heights, widths = range(2, tile.rows + 1, 2), range(1, tile.vectors + 1)
        self.micros = self._table("micros", [self._micro(rows, vectors) for vectors in widths for rows in heights])
        self._product()

    # -- loops over blocks ----------------------------------------------------------------------------------

    def _product(self) -> None:
        """Blocks of columns, and in them runs of the length."""
        tile = self.tile
        function, build = self._function(FUNCTION, *CORE.args)
        a_start, a_row, a_column, b_start, b_row, b_column, c_start, c_row, m, n, length, scratch = (
            build.bitcast(arg, self.source if at in (0, 3) else self.pointer) if arg.type == ADDRESS else arg
            for at, arg in enumerate(function.args)
        )
        a, b = Matrix(a_start, a_row, a_column), self.operand(b_start, b_row, b_column)
        c = Matrix(c_start, c_row, index(1))
        width = build.select(build.icmp_signed("<=", m, index(tile.rows)), index(COLUMNS_FOR_FEW), index(COLUMNS_OF_B))
        spans = self.spans.memory(build)
        with loop(build, index(0), n, width, "column") as column:
            columns = smaller(build, build.sub(n, column), width)
            # Once at least: a product of length 0 is zeros.
            with loop(build, index(0), larger(build, length, index(1)), index(RUN), "run") as k:
                depth = smaller(build, build.sub(length, k), index(RUN))
                first = build.icmp_signed("==", k, index(0))
                parts = a.part(build, index(0), k), b.part(build, k, column), c.part(build, index(0), column)
                self._run(build, *parts, m, columns, depth, first, scratch, spans)
        build.ret_void()

    def _run(
        self, build: ir.IRBuilder, a: Matrix, b: Matrix, c: Matrix, m: ir.Value, columns: ir.Value, depth: ir.Value,
        first: ir.Value, scratch: ir.Value, spans: ir.Value,
    ) -> None:  # fmt: skip
        """A run of a block of columns: B is packed, and then A, block of rows by block of rows."""
        tile = self.tile
        block_a = build.gep(scratch, [index(tile.edge)])
        deep = whole_vectors(build, depth, tile)  # of a panel
        for_a = self._at_a_time(build, a.row)
        panel_of_b = self._panels_of_b(build, b, columns, depth, deep, scratch)
        panels = build.sdiv(build.add(m, index(tile.rows - 1)), index(tile.rows))
        shares = _Shares.of(build, m, larger(build, panels, index(1)))
        with loop(build, index(0), panels, index(PANELS_OF_A), "rows") as begin:
            end = smaller(build, panels, build.add(begin, index(PANELS_OF_A)))
            size = build.mul(deep, index(tile.height))

            def panel_of(which: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
                place = build.gep(block_a, [build.mul(build.sub(which, begin), size)])
                return shares.begin(build, which), shares.height(build, which), place

            with loop(build, index(0), depth, for_a, "k") as k, loop(build, begin, end, index(1), "pack") as which:
                row, height, panel = panel_of(which)
                panel = build.gep(panel, [build.mul(k, index(tile.height))])
                some = smaller(build, build.sub(depth, k), for_a)
                self._pack(build, a.at(build, row, k), a.column, a.row, some, height, panel, tile.height)

            def span_of(which: ir.Value) -> ir.Value:
                return build.gep(spans, [build.mul(build.sub(which, begin), index(2))])

            least = DEPTH_MIN if self.looks_for_zeros else RUN + 1
            looked_at = build.select(build.icmp_signed(">=", depth, index(least)), end, begin)
            none = [ir.Constant(I1, 0)]
            with loop_with(build, begin, looked_at, index(1), none, "span") as (which, (some,), following):
                shorter = self.spans.find(build, panel_of(which)[2], depth, span_of(which))
                following.append(build.or_(some, shorter))
            with loop(build, index(0), columns, index(tile.columns), "column") as column:
                of_b = panel_of_b(column)
                wide = smaller(build, build.sub(columns, column), index(tile.columns))
                hold = self.spans.hold(build, some, of_b[0], depth, wide)
                with loop(build, begin, end, index(1), "tile") as which:
                    row, height, panel = panel_of(which)
                    own = self.spans.read(build, span_of(which))
                    span = build.select(hold, own[0], index(0)), build.select(hold, own[1], depth)
                    of_c = c.part(build, row, column)
                    self._tile(build, panel, of_b, of_c, height, wide, span, depth, first, scratch)

    def _at_a_time(self, build: ir.IRBuilder, across: ir.Value) -> ir.Value:
        """The elements of the length that are packed before the next panel, by an operand's stride across them."""
        return build.select(build.icmp_signed("==", across, index(1)), index(AT_A_TIME), index(RUN))

    def _panels_of_b(
        self, build: ir.IRBuilder, b: Matrix, columns: ir.Value, depth: ir.Value, deep: ir.Value, scratch: ir.Value
    ) -> Callable[[ir.Value], tuple[ir.Value, ...]]:
        """Pack B; what gives the words by which a micro kernel finds the panel of a column."""
        tile = self.tile
        block = build.gep(scratch, [index(tile.edge + tile.block_of_a)])
        some_k = self._at_a_time(build, b.column)
        with (
            loop(build, index(0), depth, some_k, "k") as k,
            loop(build, index(0), columns, index(tile.columns)) as column,
        ):
            panel = build.gep(block, [build.add(build.mul(column, deep), build.mul(k, index(tile.columns)))])
            left, some = build.sub(columns, column), smaller(build, build.sub(depth, k), some_k)
            self._pack_b(build, b.part(build, k, column), some, left, panel)
        return lambda column: (build.gep(block, [build.mul(column, deep)]),)

    def _tile(
        self, build: ir.IRBuilder, of_a: ir.Value, of_b: Sequence[ir.Value], c: Matrix, height: ir.Value,
        wide: ir.Value, span: tuple[ir.Value, ir.Value], depth: ir.Value, first: ir.Value, edge: ir.Value,
    ) -> None:  # fmt: skip
        """The C of two panels, through scratch memory where it is no whole vectors."""
        tile = self.tile
        vectors = build.sdiv(build.sub(wide, index(1)), index(tile.lanes))
        pairs = build.sdiv(build.sub(height, index(1)), index(2))
        which = build.add(build.mul(vectors, index(tile.rows // 2)), pairs)
        micro = self._chosen(build, self.micros, which)
        with build.if_else(build.icmp_signed("==", build.srem(wide, index(tile.lanes)), index(0))) as (whole, part):
            with whole:
                build.call(micro, [of_a, *of_b, c.start, c.row, height, *span, depth, first, edge])
            with part:
                every = build.mul(build.add(pairs, index(1)), index(2))
                alone = [edge, index(tile.columns), every, *span, depth, ir.Constant(I1, 1), edge]
                build.call(micro, [of_a, *of_b, *alone])
                build.call(self.settle, [edge, index(tile.columns), c.start, c.row, c.column, height, wide, first])

    def _pack_b(self, build: ir.IRBuilder, b: Matrix, depth: ir.Value, count: ir.Value, panel: ir.Value) -> None:
        self._pack(build, b.start, b.row, b.column, depth, count, panel, self.tile.columns)

    # -- sums of a run --------------------------------------------------------------------------------------

    def _micro(self, rows: int, vectors: int) -> ir.Function:
        """The C of two panels, `vectors` of columns, kept in registers, and added to what there is unless it is the
        first.  If the last row is not there, what would be its C goes to `nowhere`.  From `begin` to `end` is the span
        of A; where zeros behind it may count, the run is computed again as a whole."""
        pointer, tile = self.pointer, self.tile
        function, build = self._function(
            f"micro{rows}x{vectors}", pointer, pointer, *self.panel, pointer, I64, I64, I64, I64, I64, I1, pointer
        )
        of_a, *of_b, c, c_row, height, begin, end, depth, first, nowhere = function.args
        v = Vectors(build, tile.lanes)
        addresses = [build.gep(c, [build.mul(index(row), c_row)]) for row in range(rows)]
        addresses[-1] = build.select(build.icmp_signed("==", height, index(rows)), addresses[-1], nowhere)
        before, (again, check, done) = build.block, map(function.append_basic_block, ("again", "check", "done"))
        build.branch(again)
        build.position_at_end(again)
        starts, stops = build.phi(I64), build.phi(I64)
        zeros = [self._zeros()] * (rows * vectors)
        last_row = build.gep(c, [build.mul(index(rows - 1), c_row)])
        whole = build.add(starts, build.and_(build.sub(stops, starts), index(-UNROLL)))
        # Fetched faster, C's lines would take all the places in which the core waits for memory from A and B.
        is_long = build.icmp_signed(">=", build.sub(stops, starts), index(FETCH_EVERY * rows))
        pause = build.select(is_long, index(FETCH_EVERY - 1), index(0))
        with loop_with(build, starts, whole, index(UNROLL), [*zeros, c], "unrolled") as (k, (*held, ahead), following):
            for at in range(0, vectors * tile.lanes, LINE // tile.bytes):
                prefetch(build, build.gep(ahead, [index(at)]), write=True)
            sums = held
            for turn in range(UNROLL):
                sums = self._rank_one_update(build, of_a, of_b, build.add(k, index(turn)), sums, vectors)
            behind = build.icmp_unsigned(">=", ahead, last_row)
            paused = build.icmp_signed("!=", build.and_(build.sub(k, starts), pause), index(0))
            stays = build.or_(behind, paused)
            following += [*sums, build.select(stays, ahead, build.gep(ahead, [c_row]))]
        with loop_with(build, whole, stops, index(1), held, "k") as (k, sums, following):
            following += self._rank_one_update(build, of_a, of_b, k, sums, vectors)
        build.cbranch(build.icmp_signed("<", stops, depth), check, done)
        build.position_at_end(check)
        build.cbranch(self.spans.lost(build, sums), again, done).set_weights([1, 1000])
        for phi, own, whole in ((starts, begin, index(0)), (stops, end, depth)):
            phi.add_incoming(own, before)
            phi.add_incoming(whole, build.block)
        build.position_at_end(done)
        places = [build.gep(address, [index(at * tile.lanes)]) for address in addresses for at in range(vectors)]
        with build.if_else(first) as (alone, onto):
            with alone:
                for place, value in zip(places, sums, strict=True):
                    v.store(value, place)
            with onto:
                # All loads are before the stores: where rows lie whole pages apart, each would wait for the last store.
                totals = [self._added(build, v.load(place), value) for place, value in zip(places, sums, strict=True)]
                for place, total in zip(places, totals, strict=True):
                    v.store(total, place)
        build.ret_void()
        return function

    def _rank_one_update(
        self, build: ir.IRBuilder, of_a: ir.Value, of_b: Sequence[ir.Value], k: ir.Value, sums: Sequence[ir.Value],
        vectors: int,
    ) -> list[ir.Value]:  # fmt: skip
        """The sums, row by row, with the products of one k."""
        v, lanes = Vectors(build, self.tile.lanes), self.tile.lanes
        element = build.gep(of_a, [build.mul(k, index(self.tile.height))])
        line_start = self._line(build, of_b, k)
        line = [v.load(build.gep(line_start, [index(at * lanes)])) for at in range(vectors)]
        following = []
        for row in range(len(sums) // vectors):
            if row % ORDERED_ROWS == 0:
                keep_order(build)
            factor = v.splat(build.load(build.gep(element, [index(row)])))
            following += [self._chain(build, factor, line[at], sums[row * vectors + at]) for at in range(vectors)]
        return following

    def _line(self, build: ir.IRBuilder, of_b: Sequence[ir.Value], k: ir.Value) -> ir.Value:
        """The address of the elements that a panel of B has for a k."""
        (start,) = of_b
        return build.gep(start, [build.mul(k, index(self.tile.columns))])


class _PackedCore(_ProductCore):
    """The core whose B lies in panels: a part that begins with a panel is a matrix at even strides.

    While a panel is multiplied the next one comes to the second cache.
    """

    panel = (I64,)  # how many elements on the next panel lies

    def _panels_of_b(
        self, build: ir.IRBuilder, b: Matrix, columns: ir.Value, depth: ir.Value, deep: ir.Value, scratch: ir.Value
    ) -> Callable[[ir.Value], tuple[ir.Value, ...]]:
        further = build.mul(b.column, index(self.tile.columns))
        return lambda column: (b.at(build, index(0), column), further)

    def _line(self, build: ir.IRBuilder, of_b: Sequence[ir.Value], k: ir.Value) -> ir.Value:
        start, further = of_b
        line = build.gep(start, [build.mul(k, index(self.tile.columns))])
        for at in range(0, self.tile.columns, LINE // self.tile.bytes):
            prefetch(build, build.gep(line, [build.add(further, index(at))]), cache=2)
        return line


class _Panels(_Packing):
    """What packs a whole B for that core, a panel for each task."""

    def __init__(self, dtype: str, tile: Tile) -> None:
        super().__init__("panels", dtype, tile)
        self.strips = {tile.columns: self._strip(tile.columns)}
        self._kernel()

    def _kernel(self) -> None:
        function = ir.Function(self.module, KERNEL, FUNCTION)
        function.attributes.add("nounwind")
        arguments, task, _ = function.args
        build = ir.IRBuilder(function.append_basic_block("entry"))
        start, row, column, columns, length, panels = (build.load(build.gep(arguments, [index(at)])) for at in range(6))
        first = build.mul(task, index(self.tile.columns))
        size = build.mul(first, whole_vectors(build, length, self.tile))  # of the panels before
        panel = build.gep(build.inttoptr(panels, self.pointer), [size])
        begin = build.gep(build.inttoptr(start, self.source), [build.mul(first, column)])
        count = build.sub(columns, first)
        self._pack(build, begin, row, column, length, count, panel, self.tile.columns)
        build.ret_void()


class _LinesCore(_ProductCore):
    """The core whose B is read as it lies."""

    panel = (I64.as_pointer(),)
    looks_for_zeros = False

    def _product(self) -> None:
        function, build = self._function(FUNCTION, *CORE.args)
        a_start, a_row, a_column, b_start, lines, onto, c_start, c_row, m, n, depth, scratch = (
            build.bitcast(arg, self.source if at == 0 else self.pointer) if arg.type == ADDRESS else arg
            for at, arg in enumerate(function.args)
        )
        a, b, c = Matrix(a_start, a_row, a_column), Matrix(b_start, lines, index(1)), Matrix(c_start, c_row, index(1))
        spans = self.spans.memory(build)
        self._run(build, a, b, c, m, n, depth, build.icmp_signed("==", onto, index(0)), scratch, spans)
        build.ret_void()

    def _panels_of_b(
        self, build: ir.IRBuilder, b: Matrix, columns: ir.Value, depth: ir.Value, deep: ir.Value, scratch: ir.Value
    ) -> Callable[[ir.Value], tuple[ir.Value, ...]]:
        lines = build.inttoptr(b.row, self.panel[0])
        return lambda column: (build.gep(b.start, [column]), lines)

    def _line(self, build: ir.IRBuilder, of_b: Sequence[ir.Value], k: ir.Value) -> ir.Value:
        start, lines = of_b
        return build.gep(start, [build.load(build.gep(lines, [k]))])


class _Table(Matrix):
    """An operand whose elements lie where two tables say: `row` and `column` are the addresses of these."""

    def part(self, build: ir.IRBuilder, row: ir.Value, column: ir.Value) -> _Table:
        rows, columns = (
            build.add(table, build.mul(at, index(8))) for table, at in ((self.row, row), (self.column, column))
        )
        return _Table(self.start, rows, columns)


class _WindowCore(_ProductCore):
    """The core whose B is read through tables; it is always packed."""

    operand = _Table

    def _pack_b(self, build: ir.IRBuilder, b: Matrix, depth: ir.Value, count: ir.Value, panel: ir.Value) -> None:
        """A panel, a vector of columns after the other; neighbours in memory are loaded together."""
        lanes, words = self.tile.lanes, I64.as_pointer()
        rows, columns = build.inttoptr(b.row, words), build.inttoptr(b.column, words)
        for at in range(0, self.tile.columns, lanes):
            left = build.sub(count, index(at))
            with build.if_then(build.icmp_signed(">", left, index(0))):
                place = build.gep(panel, [index(at)])
                build.call(self._window_strip, [b.start, rows, build.gep(columns, [index(at)]), depth, left, place])

    @cached_property
    def _window_strip(self) -> ir.Function:
        """A vector of a panel: panel[k * wide + lane] = source[rows[k] + columns[lane]]."""
        lanes, words = self.tile.lanes, I64.as_pointer()
        function, build = self._function("window_strip", self.source, words, words, I64, I64, self.pointer)
        source, rows, columns, depth, count, panel = function.args
        v, step = Vectors(build, lanes), index(self.tile.columns)
        last = build.sub(smaller(build, count, index(lanes)), index(1))
        begin = build.load(columns)
        span = build.sub(build.load(build.gep(columns, [last])), begin)
        beside = build.icmp_signed("==", span, index(lanes - 1))
        whole = build.and_(build.icmp_signed(">=", count, index(lanes)), beside)
        with build.if_else(whole) as (together, apart):
            with together, loop(build, index(0), depth, index(1), "k") as k:
                row = build.load(build.gep(rows, [k]))
                value = self._load(build, build.gep(source, [build.add(row, begin)]))
                v.store(value, build.gep(panel, [build.mul(k, step)]))
            with apart:
                places = [build.load(build.gep(columns, [smaller(build, index(lane), last)])) for lane in range(lanes)]
                starts, quad = [build.gep(source, [place]) for place in places], 16 // self.tile.bytes
                whole = build.and_(depth, index(-quad))
                with loop(build, index(0), whole, index(quad), "quad") as k:
                    self._window_quad(build, starts, rows, k, panel)
                with loop(build, whole, depth, index(1), "k") as k:
                    self._gathered(build, starts, build.load(build.gep(rows, [k])), k, panel)
        build.ret_void()
        return function

    def _window_quad(
        self, build: ir.IRBuilder, starts: Sequence[ir.Value], rows: ir.Value, k: ir.Value, panel: ir.Value
    ) -> None:
        """Some vectors of a panel.  As a rule the elements of a window that they take follow each other in memory."""
        quad = 16 // self.tile.bytes
        turns = [build.add(k, index(at)) for at in range(quad)]
        of_turns = [build.load(build.gep(rows, [turn])) for turn in turns]
        follow = [
            build.icmp_signed("==", row, build.add(of_turns[0], index(at))) for at, row in enumerate(of_turns) if at
        ]
        with build.if_else(functools.reduce(build.and_, follow)) as (together, apart):
            with together:
                v = Vectors(build, quad)
                parts = [v.load(build.gep(start, [of_turns[0]])) for start in starts]
                lines = quads_transposed(build, [joined(build, parts[at::quad]) for at in range(quad)])
                for turn, line in zip(turns, lines, strict=True):
                    self._keep(build, line, turn, panel)
            with apart:
                for turn, row in zip(turns, of_turns, strict=True):
                    self._gathered(build, starts, row, turn, panel)

    def _gathered(
        self, build: ir.IRBuilder, starts: Sequence[ir.Value], row: ir.Value, k: ir.Value, panel: ir.Value
    ) -> None:
        """A vector of a panel, element by element."""
        self._keep(build, vector_of(build, [build.load(build.gep(start, [row])) for start in starts]), k, panel)

    def _keep(self, build: ir.IRBuilder, values: ir.Value, k: ir.Value, panel: ir.Value) -> None:
        place = build.gep(panel, [build.mul(k, index(self.tile.columns))])
        Vectors(build, self.tile.lanes).store(self._widened(build, values), place)
