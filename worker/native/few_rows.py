"""The core of products of few rows, such as a decoder's step for one token: B is read once, as it lies.

What takes time is to read B, so it is never packed.  Where its rows are contiguous, some of them are read at a time,
and the sums of a block of columns stay in the first cache.  Where its columns are, squares of it are transposed in
registers.

`lines_of_few_core` is the same for a B whose rows, or whose columns, lie anywhere, such as those of pages.
"""

from __future__ import annotations

from collections.abc import Callable

from .cores import (
    CORE,
    FEW,
    FUNCTION,
    RUN,
    STREAMED,
    Core,
    Matrix,
    Tile,
    larger,
    smaller,
    tile_for,
    transposed,
    vector_of,
)
from .llvm import ADDRESS, I64, Processor, index, ir, loop, loop_with, prefetch
from .vectors import Vectors

# Rows that there are functions for, and how many rows of B they read at a time: more would leave the registers.
STREAMS = {1: 8, 2: 8, 4: 4, 6: 4, 8: 4}
AHEAD = 512  # bytes of a column that are fetched before they are needed
LINES_AHEAD = 16  # how many lines ahead one is fetched that may lie anywhere


def few_rows_core(processor: Processor, dtype: str, tile: Tile | None = None) -> ir.Module:
    """The function of `product_core` for products of up to FEW rows or columns.  A product of few rows takes a B whose
    rows or whose columns are contiguous, and one of few columns such an A."""
    return _FewRows(dtype, tile or tile_for(processor, dtype)).module


def lines_of_few_core(processor: Processor, dtype: str, tile: Tile | None = None) -> ir.Module:
    """The same function for up to FEW rows, and a B whose rows or columns are lines that lie anywhere: that of k, or of
    column j, begins `lines[k]` elements from where B does.

    In place of the stride from line to line it takes the address of this table of int64.  The other stride is 1.  What
    stands in the LINES_AHEAD words behind the table is fetched, and not read.
    """
    return _LinesOfFew(dtype, tile or tile_for(processor, dtype)).module


class _FewRows(Core):
    name = "few_rows"

    def __init__(self, dtype: str, tile: Tile) -> None:
        super().__init__(self.name, dtype, tile)
        self.streams, self.dots = (
            self._table(name, [make(rows) for rows in STREAMS])
            for name, make in (("streams", self._stream), ("dots", self._dots))
        )
        self.blocks = self._blocks()
        self._product()

    def _product(self) -> None:
        """The function that callers know: a product of few columns is one of few rows, transposed."""
        function, build = self._function(FUNCTION, *CORE.args)
        a, a_row, a_column, b, b_row, b_column, c, c_row, m, n, length, scratch = (
            build.bitcast(arg, self.source if at in (0, 3) else self.pointer) if arg.type == ADDRESS else arg
            for at, arg in enumerate(function.args)
        )
        one = index(1)
        lies = build.or_(*(build.icmp_signed("==", step, one) for step in (b_row, b_column)))
        with build.if_else(build.and_(build.icmp_signed("<=", m, index(FEW)), lies)) as (plain, turned):
            with plain:
                build.call(self.blocks, [a, a_row, a_column, b, b_row, b_column, c, c_row, one, m, n, length, scratch])
            with turned:
                build.call(self.blocks, [b, b_column, b_row, a, a_column, a_row, c, one, c_row, n, m, length, scratch])
        build.ret_void()

    def _blocks(self) -> ir.Function:
        """Blocks of columns, and in them runs of the length."""
        operand, result = (self.source, I64, I64), (self.pointer, I64, I64)
        function, build = self._function("blocks", *operand, *operand, *result, I64, I64, I64, self.pointer)
        args = function.args
        a, b, c = Matrix(*args[:3]), Matrix(*args[3:6]), Matrix(*args[6:9])
        m, n, length, scratch = args[9:]
        last = build.sub(m, index(1))
        sizes = list(STREAMS)
        which: ir.Value = index(len(sizes) - 1)
        for at in reversed(range(len(sizes) - 1)):
            which = build.select(build.icmp_signed("<=", m, index(sizes[at])), index(at), which)
        rows_lie = build.icmp_signed("==", b.column, index(1))
        by_rows, by_columns = (self._chosen(build, table, which) for table in (self.streams, self.dots))
        sums, step = build.select(rows_lie, by_rows, by_columns), build.select(rows_lie, b.row, b.column)
        width = build.select(rows_lie, index(STREAMED), index(self.tile.lanes))
        stop = build.select(build.icmp_signed(">", m, index(0)), n, index(0))
        with loop(build, index(0), stop, width, "column") as column:
            columns = smaller(build, build.sub(n, column), width)
            # Once at least: a product of length 0 is zeros.
            with loop(build, index(0), larger(build, length, index(1)), index(RUN), "run") as k:
                depth = smaller(build, build.sub(length, k), index(RUN))
                of_a, of_c = a.part(build, index(0), k), c.part(build, index(0), column)
                of_b = self._part(build, b, rows_lie, step, k, column)
                build.call(sums, [of_a.start, a.row, a.column, last, *of_b, columns, depth, scratch])
                first = build.icmp_signed("==", k, index(0))
                build.call(self.settle, [scratch, index(STREAMED), of_c.start, c.row, c.column, m, columns, first])
        build.ret_void()
        return function

    def _part(
        self, build: ir.IRBuilder, b: Matrix, rows_lie: ir.Value, step: ir.Value, k: ir.Value, column: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """B from an element on: where it begins, and what leads from line to line."""
        return b.at(build, k, column), step

    def _line(self, build: ir.IRBuilder, start: ir.Value, step: ir.Value, which: ir.Value) -> ir.Value:
        """The address of a line of B."""
        return build.gep(start, [build.mul(which, step)])

    def _ahead(self, build: ir.IRBuilder, start: ir.Value, step: ir.Value, which: ir.Value) -> ir.Value | None:
        """The address of a line to fetch while this one is read; None: it follows, and the processor sees it coming."""
        return None

    def _sums(self, name: str) -> tuple[ir.Function, ir.IRBuilder]:
        """A function of A, of which `last` is the last row that is there, B, and where sums go."""
        return self._function(name, self.source, I64, I64, I64, self.source, I64, I64, I64, self.pointer)

    def _factors(
        self, build: ir.IRBuilder, a: Matrix, last: ir.Value, rows: int
    ) -> Callable[[ir.Value], list[ir.Value]]:
        """What gives A's elements of a k, each in every lane.  In place of rows that are not there comes the last."""
        starts = [a.at(build, smaller(build, index(row), last), index(0)) for row in range(rows)]

        def of(k: ir.Value) -> list[ir.Value]:
            step = build.mul(k, a.column)
            return [self._factor(build, build.gep(start, [step])) for start in starts]

        return of

    def _stream(self, rows: int) -> ir.Function:
        """The sums of few rows: B's rows are contiguous, and read once, some at a time."""
        tile = self.tile
        function, build = self._sums(f"stream{rows}")
        start, a_row, a_column, last, b_start, b_row, columns, depth, sums = function.args
        factors = self._factors(build, Matrix(start, a_row, a_column), last, rows)
        v = Vectors(build, tile.lanes)
        lanes = index(tile.lanes)
        whole = build.and_(columns, index(-tile.lanes))
        left = build.sub(columns, whole)

        def place(row: int, column: ir.Value) -> ir.Value:
            return build.gep(sums, [build.add(column, index(row * STREAMED))])

        with loop(build, index(0), columns, lanes, "column") as column:
            for row in range(rows):
                v.store(self._zeros(), place(row, column))

        def sweep(k: ir.Value, count: int) -> None:
            steps = [build.add(k, index(turn)) for turn in range(count)]
            elements = [factors(at) for at in steps]
            lines = [self._line(build, b_start, b_row, at) for at in steps]
            ahead = [self._ahead(build, b_start, b_row, at) for at in steps]

            def add_to(column: ir.Value, masked: bool) -> None:
                held = [v.load(place(row, column)) for row in range(rows)]
                for turn in range(count):
                    where, later = build.gep(lines[turn], [column]), ahead[turn]
                    if later is not None:
                        prefetch(build, build.gep(later, [column]))
                    line = self._load_first(build, where, left) if masked else self._load(build, where)
                    held = [self._chain(build, elements[turn][row], line, held[row]) for row in range(rows)]
                for row in range(rows):
                    v.store(held[row], place(row, column))

            with loop(build, index(0), whole, lanes, "column") as column:
                add_to(column, False)
            with build.if_then(build.icmp_signed(">", left, index(0))):
                add_to(whole, True)

        group = STREAMS[rows]
        grouped = build.and_(depth, index(-group))
        for begin, end, count in ((index(0), grouped, group), (grouped, depth, 1)):
            with loop(build, begin, end, index(count), "k") as k:
                sweep(k, count)
        build.ret_void()
        return function

    def _dots(self, rows: int) -> ir.Function:
        """The sums of few rows with `lanes` columns of B, which are contiguous: squares are transposed in registers.

        A line of the cache is read at once, and only some are fetched ahead: columns often lie in the same ones.
        """
        tile = self.tile
        function, build = self._sums(f"dots{rows}")
        start, a_row, a_column, last, b_start, b_column, columns, depth, sums_start = function.args
        factors = self._factors(build, Matrix(start, a_row, a_column), last, rows)
        v = Vectors(build, tile.lanes)
        beyond = build.sub(columns, index(1))
        places = [smaller(build, index(at), beyond) for at in range(tile.lanes)]
        lines, ahead = ([begin(build, b_start, b_column, at) for at in places] for begin in (self._line, self._ahead))

        def square(k: ir.Value) -> list[ir.Value]:
            addresses = [build.gep(line, [k]) for line in lines]
            for address, later in zip(addresses, ahead, strict=True):
                further = build.gep(address, [index(AHEAD // tile.bytes)]) if later is None else build.gep(later, [k])
                prefetch(build, further)
            return transposed(build, [self._load(build, address) for address in addresses], tile.bytes)

        def single(k: ir.Value) -> list[ir.Value]:
            elements = [build.load(build.gep(line, [k])) for line in lines]
            return [self._widened(build, vector_of(build, elements))]

        sums: list[ir.Value] = [self._zeros()] * rows
        whole = build.and_(depth, index(-tile.lanes))
        for begin, end, step, read in ((index(0), whole, tile.lanes, square), (whole, depth, 1, single)):
            with loop_with(build, begin, end, index(step), sums, "k") as (k, held, following):
                following += held
                for at, vector in enumerate(read(k)):
                    elements = factors(build.add(k, index(at)))
                    following[:] = [self._chain(build, elements[row], vector, following[row]) for row in range(rows)]
            sums = held
        for row in range(rows):
            v.store(sums[row], build.gep(sums_start, [index(row * STREAMED)]))
        build.ret_void()
        return function


class _LinesOfFew(_FewRows):
    name = "lines_of_few"

    def _product(self) -> None:
        function, build = self._function(FUNCTION, *CORE.args)
        a, a_row, a_column, b, b_row, b_column, c, c_row, m, n, length, scratch = (
            build.bitcast(arg, self.source if at in (0, 3) else self.pointer) if arg.type == ADDRESS else arg
            for at, arg in enumerate(function.args)
        )
        build.call(self.blocks, [a, a_row, a_column, b, b_row, b_column, c, c_row, index(1), m, n, length, scratch])
        build.ret_void()

    def _part(
        self, build: ir.IRBuilder, b: Matrix, rows_lie: ir.Value, step: ir.Value, k: ir.Value, column: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        line, along = build.select(rows_lie, k, column), build.select(rows_lie, column, k)
        return build.gep(b.start, [along]), build.add(step, build.mul(line, index(8)))

    def _line(self, build: ir.IRBuilder, start: ir.Value, step: ir.Value, which: ir.Value) -> ir.Value:
        lines = build.inttoptr(step, I64.as_pointer())
        return build.gep(start, [build.load(build.gep(lines, [which]))])

    def _ahead(self, build: ir.IRBuilder, start: ir.Value, step: ir.Value, which: ir.Value) -> ir.Value | None:
        return self._line(build, start, step, build.add(which, index(LINES_AHEAD)))
