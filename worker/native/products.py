"""Cores of matrix products: functions that compute a tile of C = A B, generated for a processor.

The arithmetic is a definition, "native-1", and part of the promise that bits depend on shapes alone.  An element of C
is made of runs of RUN elements along the length K, the last of which may be shorter.  The sum of a run begins as 0 and
is a chain of fused products and sums, in order; C is the sum of the first run, to which those of the others are added,
in order.  So an element's bits follow from its row of A and its column of B, whatever the tile, the registers, the
threads or the processor.  (The bits of a NaN are the processor's.)  Integers wrap, so any order gives their bits.

A core has no loop over anything but rows, columns and length: who calls it cuts the work into tiles and tasks.

How it works is Goto and van de Geijn's (ACM TOMS 34(3), 2008): B is packed to panels of `columns`, RUN long, A to
panels of up to `rows`, and a micro kernel keeps the C of two panels in registers.  Rows are shared out evenly, so
panels are about equally high, and there is a micro kernel for every height.  A product of few rows reads B as it lies,
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .llvm import ADDRESS, F32, F64, I1, I32, I64, STORED, VOID, Processor, index, ir, loop, loop_with, new_module
from .vectors import Vectors

RUN = 256
FUNCTION = "product"
# What operands of a dtype are computed in, and what C is: the caller rounds it, or drops its upper bits.  Narrow
# operands become such while they are read.
OPERANDS: dict[str, ir.Type] = {
    "f16": F32, "bf16": F32, "f32": F32, "f64": F64, "i8": I32, "u8": I32, "i16": I32, "u16": I32, "i32": I32,
    "u32": I32, "i64": I64, "u64": I64,
}  # fmt: skip

PANELS_OF_A = 12  # of a block, which stays in a core's second cache
COLUMNS_OF_B = 512  # of a block; of one for few rows there are fewer, since it is read once
COLUMNS_FOR_FEW = 128
FEW = 4  # rows for which B is read as it lies, if its rows are contiguous
AT_A_TIME = 16  # elements of the length to pack before the next panel, where those of a panel do not lie together
STREAMED = 1024  # columns whose sums a product of few rows keeps in the first cache


@dataclass(frozen=True, slots=True)
class Tile:
    """The C of a micro kernel: up to `rows` rows of `vectors` vectors of `lanes` elements of `bytes` each."""

    lanes: int
    vectors: int
    rows: int
    bytes: int

    @property
    def columns(self) -> int:
        return self.lanes * self.vectors

    @property
    def quad(self) -> int:
        """Elements of 16 bytes."""
        return 16 // self.bytes

    @property
    def height(self) -> int:
        """Elements of a panel of A per element of its length: `rows`, filled up to whole vectors."""
        return -(-self.rows // self.lanes) * self.lanes

    @property
    def block_of_a(self) -> int:
        return PANELS_OF_A * RUN * self.height

    @property
    def block_of_b(self) -> int:
        return RUN * COLUMNS_OF_B

    @property
    def edge(self) -> int:
        return max(self.rows * self.columns, FEW * STREAMED + DOTTED * COPY_STEP)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory that a core needs besides its operands, aligned to 64."""
        return (self.block_of_a + self.block_of_b + self.edge) * self.bytes


# Rows and vectors of a tile by the bytes of a vector register: so many that the registers hold it, one row of B, and an
# element of A.
TILES = {16: (6, 2), 32: (6, 2), 64: (14, 2)}
NEON = (8, 2)


def tile_for(processor: Processor, dtype: str) -> Tile:
    wide = processor.vector_bytes
    rows, vectors = NEON if processor.is_arm else TILES[wide]
    size = 4 if OPERANDS[dtype] in (F32, I32) else 8
    return Tile(wide // size, vectors, rows, size)


def window_core(processor: Processor, dtype: str, tile: Tile | None = None) -> ir.Module:
    """The same function for a B that is read through tables: element (k, j) lies at rows[k] + columns[j].

    In place of B's strides it takes the addresses of these tables of int64; the columns grow.  So a convolution reads
    the windows of an image, or of its derivative, where they lie.
    """
    return _WindowCore(dtype, tile or tile_for(processor, dtype)).module


def product_core(processor: Processor, dtype: str, tile: Tile | None = None) -> ir.Module:
    """A module with one function, `FUNCTION`, of type `CORE`: A [m, K] times B [K, n] to C [m, n].

    Its arguments: A, its row stride and column stride, B and its strides, C, its row stride, m, n, K, and scratch
    memory (`Tile.scratch_bytes`).  Strides are in elements and may be anything; columns of C are contiguous.  C must
    overlap neither operand.
    """
    return _Core(dtype, tile or tile_for(processor, dtype)).module


COPIED, COPY_STEP = 128, 144  # elements of a column that few rows copy, and how far apart copies lie
DOTTED = 32  # columns of B that few rows are multiplied by at a time, where columns are contiguous
STREAMS = {1: 8, 2: 8, 3: 4, 4: 4}  # how many rows of B a product of so many rows reads at a time
PREFETCH, LINE = "llvm.prefetch.p0", 64
CORE = ir.FunctionType(VOID, [ADDRESS, I64, I64, ADDRESS, I64, I64, ADDRESS, I64, I64, I64, I64, ADDRESS])


@dataclass(frozen=True, slots=True)
class _Matrix:
    """An operand within a function: where it begins, and its strides in elements."""

    start: ir.Value
    row: ir.Value
    column: ir.Value

    def at(self, build: ir.IRBuilder, row: ir.Value, column: ir.Value) -> ir.Value:
        """The address of an element."""
        return build.gep(self.start, [build.add(build.mul(row, self.row), build.mul(column, self.column))])

    def part(self, build: ir.IRBuilder, row: ir.Value, column: ir.Value) -> _Matrix:
        """The matrix from an element on."""
        return _Matrix(self.at(build, row, column), self.row, self.column)


@dataclass(frozen=True, slots=True)
class _Shares:
    """`total` rows in panels whose heights differ by one at most, the higher ones first."""

    base: ir.Value
    extra: ir.Value

    @classmethod
    def of(cls, build: ir.IRBuilder, total: ir.Value, panels: ir.Value) -> _Shares:
        return cls(build.sdiv(total, panels), build.srem(total, panels))

    def begin(self, build: ir.IRBuilder, panel: ir.Value) -> ir.Value:
        return build.add(build.mul(panel, self.base), _smaller(build, panel, self.extra))

    def height(self, build: ir.IRBuilder, panel: ir.Value) -> ir.Value:
        return build.add(self.base, build.zext(build.icmp_signed("<", panel, self.extra), I64))


class _Core:
    """The functions of one core's module.  In all of them k counts along the length, and sums are those of a run."""

    operand: type[_Matrix] = _Matrix  # what B is

    def __init__(self, dtype: str, tile: Tile) -> None:
        self.dtype = dtype
        self.tile = tile
        self.scalar = OPERANDS[dtype]
        self.pointer = self.scalar.as_pointer()
        self.source = STORED[dtype].as_pointer()
        self.module = new_module(f"product_{dtype}")
        self.strips = {wide: self._strip(wide) for wide in {tile.height, tile.columns}}
        self.settle = self._settle()
        heights, widths = range(1, tile.rows + 1), range(1, tile.vectors + 1)
        self.micros = self._table("micros", [self._micro(rows, vectors) for vectors in widths for rows in heights])
        self.streams = self._table("streams", [self._stream(rows) for rows in range(1, FEW + 1)])
        self.dots = self._table("dots", [self._dots(rows) for rows in range(1, FEW + 1)])
        self.blocks = self._blocks()
        self._product()

    # -- loops over blocks ----------------------------------------------------------------------------------

    def _product(self) -> None:
        """The function that callers know: a product of few columns is one of few rows, transposed."""
        function, build = self._function(FUNCTION, *CORE.args)
        a, a_row, a_column, b, b_row, b_column, c, c_row, m, n, length, scratch = (
            build.bitcast(arg, self.source if at in (0, 3) else self.pointer) if arg.type == ADDRESS else arg
            for at, arg in enumerate(function.args)
        )
        few_columns = self._few_columns(build, m, n)
        one = index(1)
        with build.if_else(few_columns) as (transposed, plain):
            with transposed:
                build.call(self.blocks, [b, b_column, b_row, a, a_column, a_row, c, one, c_row, n, m, length, scratch])
            with plain:
                build.call(self.blocks, [a, a_row, a_column, b, b_row, b_column, c, c_row, one, m, n, length, scratch])
        build.ret_void()

    def _blocks(self) -> ir.Function:
        """Blocks of columns, and in them runs of the length."""
        tile = self.tile
        of_a = of_b = (self.source, I64, I64)
        of_c = (self.pointer, I64, I64)
        function, build = self._function("blocks", *of_a, *of_b, *of_c, I64, I64, I64, self.pointer)
        args = function.args
        a, b, c = _Matrix(*args[:3]), self.operand(*args[3:6]), _Matrix(*args[6:9])
        m, n, length, scratch = args[9:]
        streamed, dotted = self._as_it_lies(build, m, b)
        width = build.select(build.icmp_signed("<=", m, index(tile.rows)), index(COLUMNS_FOR_FEW), index(COLUMNS_OF_B))
        width = build.select(streamed, index(STREAMED), build.select(dotted, index(DOTTED), width))
        with loop(build, index(0), n, width, "column") as column:
            columns = _smaller(build, build.sub(n, column), width)
            # Once at least: a product of length 0 is zeros.
            with loop(build, index(0), _larger(build, length, index(1)), index(RUN), "run") as k:
                depth = _smaller(build, build.sub(length, k), index(RUN))
                first = build.icmp_signed("==", k, index(0))
                parts = a.part(build, index(0), k), b.part(build, k, column), c.part(build, index(0), column)
                with build.if_else(build.or_(streamed, dotted)) as (direct, packed):
                    with direct:
                        self._direct_run(build, *parts, m, columns, depth, first, scratch)
                    with packed:
                        self._packed_run(build, *parts, m, columns, depth, first, scratch)
        build.ret_void()
        return function

    def _direct_run(
        self, build: ir.IRBuilder, a: _Matrix, b: _Matrix, c: _Matrix, m: ir.Value, columns: ir.Value, depth: ir.Value,
        first: ir.Value, scratch: ir.Value,
    ) -> None:  # fmt: skip
        """A run of few rows: B is read as it lies, along its rows or along its columns."""
        with build.if_then(build.icmp_signed(">", m, index(0))):
            by_rows, by_columns = (
                self._chosen(build, table, build.sub(m, index(1))) for table in (self.streams, self.dots)
            )
            rows_lie = build.icmp_signed("==", b.column, index(1))
            sums, step = build.select(rows_lie, by_rows, by_columns), build.select(rows_lie, b.row, b.column)
            build.call(sums, [a.start, a.row, a.column, b.start, step, columns, depth, scratch])
            build.call(self.settle, [scratch, index(STREAMED), c.start, c.row, c.column, m, columns, first])

    def _packed_run(
        self, build: ir.IRBuilder, a: _Matrix, b: _Matrix, c: _Matrix, m: ir.Value, columns: ir.Value, depth: ir.Value,
        first: ir.Value, scratch: ir.Value,
    ) -> None:  # fmt: skip
        """A run of a block of columns: B is packed, and then A, block of rows by block of rows."""
        tile = self.tile
        block_a, block_b = (build.gep(scratch, [index(at)]) for at in (tile.edge, tile.edge + tile.block_of_a))
        deep = build.and_(build.add(depth, index(tile.lanes - 1)), index(-tile.lanes))  # of a panel: whole vectors
        for_b, for_a = (
            build.select(build.icmp_signed("==", across, index(1)), index(AT_A_TIME), index(RUN))
            for across in (b.column, a.row)
        )
        with (
            loop(build, index(0), depth, for_b, "k") as k,
            loop(build, index(0), columns, index(tile.columns)) as column,
        ):
            panel = build.gep(block_b, [build.add(build.mul(column, deep), build.mul(k, index(tile.columns)))])
            left, some = build.sub(columns, column), _smaller(build, build.sub(depth, k), for_b)
            self._pack_b(build, b.part(build, k, column), some, left, panel)
        panels = build.sdiv(build.add(m, index(tile.rows - 1)), index(tile.rows))
        shares = _Shares.of(build, m, _larger(build, panels, index(1)))
        with loop(build, index(0), panels, index(PANELS_OF_A), "rows") as begin:
            end = _smaller(build, panels, build.add(begin, index(PANELS_OF_A)))
            size = build.mul(deep, index(tile.height))

            def panel_of(which: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
                place = build.gep(block_a, [build.mul(build.sub(which, begin), size)])
                return shares.begin(build, which), shares.height(build, which), place

            with loop(build, index(0), depth, for_a, "k") as k, loop(build, begin, end, index(1), "pack") as which:
                row, height, panel = panel_of(which)
                panel = build.gep(panel, [build.mul(k, index(tile.height))])
                some = _smaller(build, build.sub(depth, k), for_a)
                self._pack(build, a.at(build, row, k), a.column, a.row, some, height, panel, tile.height)
            with loop(build, index(0), columns, index(tile.columns), "column") as column:
                of_b = build.gep(block_b, [build.mul(column, deep)])
                wide = _smaller(build, build.sub(columns, column), index(tile.columns))
                with loop(build, begin, end, index(1), "tile") as which:
                    row, height, panel = panel_of(which)
                    self._tile(build, panel, of_b, c.part(build, row, column), height, wide, depth, first, scratch)

    def _tile(
        self, build: ir.IRBuilder, of_a: ir.Value, of_b: ir.Value, c: _Matrix, height: ir.Value, wide: ir.Value,
        depth: ir.Value, first: ir.Value, edge: ir.Value,
    ) -> None:  # fmt: skip
        """The C of two panels, through scratch memory where columns of C are not contiguous."""
        tile = self.tile
        vectors = build.sdiv(build.sub(wide, index(1)), index(tile.lanes))
        which = build.add(build.mul(vectors, index(tile.rows)), build.sub(height, index(1)))
        micro = self._chosen(build, self.micros, which)
        with build.if_else(build.icmp_signed("==", c.column, index(1))) as (direct, scattered):
            with direct:
                build.call(micro, [of_a, of_b, c.start, c.row, wide, depth, first])
            with scattered:
                build.call(micro, [of_a, of_b, edge, index(tile.columns), wide, depth, ir.Constant(I1, 1)])
                build.call(self.settle, [edge, index(tile.columns), c.start, c.row, c.column, height, wide, first])

    def _few_columns(self, build: ir.IRBuilder, m: ir.Value, n: ir.Value) -> ir.Value:
        """Whether the transposed product is the one of few rows."""
        return build.and_(build.icmp_signed("<=", n, index(FEW)), build.icmp_signed("<", n, m))

    def _as_it_lies(self, build: ir.IRBuilder, m: ir.Value, b: _Matrix) -> tuple[ir.Value, ir.Value]:
        """Whether B is read once, without being packed: along its rows, or along its columns."""
        few = build.icmp_signed("<=", m, index(FEW))
        rows, columns = (build.and_(few, build.icmp_signed("==", step, index(1))) for step in (b.column, b.row))
        return rows, columns

    # -- packing --------------------------------------------------------------------------------------------

    def _pack_b(self, build: ir.IRBuilder, b: _Matrix, depth: ir.Value, count: ir.Value, panel: ir.Value) -> None:
        self._pack(build, b.start, b.row, b.column, depth, count, panel, self.tile.columns)

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
                last = build.sub(_smaller(build, count, index(lanes)), index(1))
                rows = [
                    build.gep(source, [build.mul(_smaller(build, index(lane), last), across)]) for lane in range(lanes)
                ]
                with build.if_else(build.icmp_signed("==", along, index(1))) as (transposed, gathered):
                    with transposed:
                        self._transposed(build, rows, depth, panel, wide)
                    with gathered, loop(build, index(0), depth, index(1), "k") as k:
                        at = build.mul(k, along)
                        values = self._widened(
                            build, _vector(build, [build.load(build.gep(row, [at])) for row in rows])
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
            for at, value in enumerate(_transpose(build, values, self.tile.bytes)):
                v.store(value, build.gep(place, [index(at * wide)]))

        whole = build.and_(depth, index(-lanes))
        with loop(build, index(0), whole, index(lanes), "square") as k:
            square(k, [self._load(build, build.gep(row, [k])) for row in rows])
        left = build.sub(depth, whole)
        with build.if_then(build.icmp_signed(">", left, index(0))):
            square(whole, [self._load_first(build, build.gep(row, [whole]), left) for row in rows])

    # -- sums of a run --------------------------------------------------------------------------------------

    def _micro(self, rows: int, vectors: int) -> ir.Function:
        """The C of two panels, up to `vectors` of columns, kept in registers."""
        pointer, tile = self.pointer, self.tile
        function, build = self._function(f"micro{rows}x{vectors}", pointer, pointer, pointer, I64, I64, I64, I1)
        of_a, of_b, c, c_row, wide, depth, first = function.args
        v = Vectors(build, tile.lanes)
        addresses = [build.gep(c, [build.mul(index(row), c_row)]) for row in range(rows)]
        for address in addresses:
            self._prefetch(build, address, vectors * tile.lanes, write=True)

        zeros = [self._zeros()] * (rows * vectors)
        with loop_with(build, index(0), depth, index(1), zeros, "k") as (k, sums, following):
            element = build.gep(of_a, [build.mul(k, index(tile.height))])
            line_start = build.gep(of_b, [build.mul(k, index(tile.columns))])
            line = [v.load(build.gep(line_start, [index(at * tile.lanes)])) for at in range(vectors)]
            for row in range(rows):
                factor = v.splat(build.load(build.gep(element, [index(row)])))
                following += [self._chain(build, factor, line[at], sums[row * vectors + at]) for at in range(vectors)]
        with build.if_else(build.icmp_signed("==", wide, index(vectors * tile.lanes))) as (whole_rows, parts):
            for branch, masked in ((whole_rows, False), (parts, True)):
                with branch, build.if_else(first) as (begun, added):
                    for case, adds in ((begun, False), (added, True)):
                        with case:
                            self._write(build, sums, addresses, vectors, wide if masked else None, adds)
        build.ret_void()
        return function

    def _write(
        self, build: ir.IRBuilder, sums: Sequence[ir.Value], addresses: Sequence[ir.Value], vectors: int,
        wide: ir.Value | None, adds: bool,
    ) -> None:  # fmt: skip
        """The sums to rows of C, or onto them; only the last vector of a row can be `wide` elements in part."""
        v = Vectors(build, self.tile.lanes)
        for row, address in enumerate(addresses):
            for at in range(vectors):
                place = build.gep(address, [index(at * self.tile.lanes)])
                value = sums[row * vectors + at]
                if wide is not None and at == vectors - 1:
                    count = build.sub(wide, index(at * self.tile.lanes))
                    value = self._sum(build, self._load_first(build, place, count), value) if adds else value
                    self._store_first(build, value, place, count)
                else:
                    v.store(self._sum(build, v.load(place), value) if adds else value, place)

    def _stream(self, rows: int) -> ir.Function:
        """The sums of few rows: B's rows are contiguous, and read once, some at a time."""
        operand, pointer, tile = self.source, self.pointer, self.tile
        function, build = self._function(f"stream{rows}", operand, I64, I64, operand, I64, I64, I64, pointer)
        start, a_row, a_column, b_start, b_row, columns, depth, sums = function.args
        a, b = _Matrix(start, a_row, a_column), _Matrix(b_start, b_row, index(1))
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
            elements = [[self._factor(build, a.at(build, index(row), at)) for at in steps] for row in range(rows)]
            lines = [b.at(build, at, index(0)) for at in steps]

            def add_to(column: ir.Value, masked: bool) -> None:
                held = [v.load(place(row, column)) for row in range(rows)]
                for turn in range(count):
                    where = build.gep(lines[turn], [column])
                    line = self._load_first(build, where, left) if masked else self._load(build, where)
                    held = [self._chain(build, elements[row][turn], line, held[row]) for row in range(rows)]
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
        """The sums of few rows with up to DOTTED columns of B, which are contiguous: squares of them are transposed in
        registers, several at a time, since a sum waits for the one before it.

        Columns are copied first, a part of the run at a time.  To read all of them side by side is to read from many
        pages, which often lie in the same lines of a cache.
        """
        operand, pointer, tile = self.source, self.pointer, self.tile
        function, build = self._function(f"dots{rows}", operand, I64, I64, operand, I64, I64, I64, pointer)
        start, a_row, a_column, b_start, b_column, columns, depth, sums_start = function.args
        a = _Matrix(start, a_row, a_column)
        v = Vectors(build, tile.lanes)
        squares, quad = DOTTED // tile.lanes, tile.quad
        copies = build.gep(sums_start, [index(FEW * STREAMED)])
        zeros = [self._zeros()] * (rows * squares)
        with loop_with(build, index(0), depth, index(COPIED), zeros, "part") as (part, sums, next_part):
            count = _smaller(build, build.sub(depth, part), index(COPIED))
            self._copy_columns(build, build.gep(b_start, [part]), b_column, columns, count, copies)
            here = _Matrix(a.at(build, index(0), part), a_row, a_column)

            def step(k: ir.Value, sums: Sequence[ir.Value], width: int) -> list[ir.Value]:
                following: list[ir.Value] = []
                factors = [
                    [self._factor(build, here.at(build, index(row), build.add(k, index(at)))) for row in range(rows)]
                    for at in range(width)
                ]
                for which in range(squares):
                    base = build.gep(copies, [build.add(index(which * tile.lanes * COPY_STEP), k)])
                    held = list(sums[which * rows : (which + 1) * rows])
                    for at, line in enumerate(self._across(build, base, COPY_STEP)[:width]):
                        held = [self._chain(build, factors[at][row], line, held[row]) for row in range(rows)]
                    following += held
                return following

            whole = build.and_(count, index(-quad))
            ahead = build.gep(b_start, [build.add(part, index(COPIED))])
            with loop_with(build, index(0), whole, index(quad), sums, "k") as (k, held, following):
                quads = COPIED // quad
                for at in range(DOTTED // quads):
                    which = build.add(build.mul(build.sdiv(k, index(quad)), index(DOTTED // quads)), index(at))
                    self._prefetch(build, build.gep(ahead, [build.mul(which, b_column)]), COPIED)
                following += step(k, held, quad)
            with loop_with(build, whole, count, index(1), held, "rest") as (k, held, following):
                following += step(k, held, 1)
            next_part += held
        for which in range(squares):
            for row in range(rows):
                v.store(sums[which * rows + row], build.gep(sums_start, [index(row * STREAMED + which * tile.lanes)]))
        build.ret_void()
        return function

    def _copy_columns(
        self, build: ir.IRBuilder, start: ir.Value, column: ir.Value, columns: ir.Value, count: ir.Value, to: ir.Value
    ) -> None:
        """Parts of columns, contiguous ones, to places that lie COPY_STEP apart."""
        v = Vectors(build, self.tile.lanes)
        lanes = self.tile.lanes
        whole = build.and_(count, index(-lanes))
        left = build.sub(count, whole)
        with loop(build, index(0), columns, index(1), "copy") as which:
            source, place = (
                build.gep(start, [build.mul(which, column)]),
                build.gep(to, [build.mul(which, index(COPY_STEP))]),
            )
            with loop(build, index(0), whole, index(lanes), "k") as k:
                v.store(self._load(build, build.gep(source, [k])), build.gep(place, [k]))
            with build.if_then(build.icmp_signed(">", left, index(0))):
                v.store(self._load_first(build, build.gep(source, [whole]), left), build.gep(place, [whole]))

    def _across(self, build: ir.IRBuilder, start: ir.Value, step: int) -> list[ir.Value]:
        """Vectors across `lanes` lines that lie `step` apart, of as many elements of them as 16 bytes hold."""
        lanes, quad = self.tile.lanes, self.tile.quad
        v = Vectors(build, quad)
        rows = []
        for at in range(quad):
            parts = [v.load(build.gep(start, [index((at + base) * step)])) for base in range(0, lanes, quad)]
            while len(parts) > 1:
                parts = [_joined(build, a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
            rows += parts
        return _transposed_quads(build, rows, quad)

    def _settle(self) -> ir.Function:
        """Sums of a run, in scratch memory, to C or onto it."""
        pointer, tile = self.pointer, self.tile
        function, build = self._function("settle", pointer, I64, pointer, I64, I64, I64, I64, I1)
        start, sums_row, c_start, c_row, c_column, rows, columns, first = function.args
        sums, c = _Matrix(start, sums_row, index(1)), _Matrix(c_start, c_row, c_column)
        contiguous = build.icmp_signed("==", c_column, index(1))
        whole = build.select(contiguous, build.and_(columns, index(-tile.lanes)), index(0))
        with loop(build, index(0), rows, index(1), "row") as row:
            for begin, end, lanes in ((index(0), whole, tile.lanes), (whole, columns, 1)):
                v = Vectors(build, lanes)
                with loop(build, begin, end, index(lanes), "column") as column:
                    value, place = v.load(sums.at(build, row, column)), c.at(build, row, column)
                    with build.if_else(first) as (begun, added):
                        with begun:
                            v.store(value, place)
                        with added:
                            v.store(self._sum(build, v.load(place), value), place)
        build.ret_void()
        return function

    # -- parts ----------------------------------------------------------------------------------------------

    def _function(self, name: str, *kinds: ir.Type) -> tuple[ir.Function, ir.IRBuilder]:
        function = ir.Function(self.module, ir.FunctionType(VOID, kinds), name)
        function.attributes.add("nounwind")
        if name != FUNCTION:
            function.linkage = "internal"
        return function, ir.IRBuilder(function.append_basic_block("entry"))

    def _table(self, name: str, functions: Sequence[ir.Function]) -> ir.GlobalVariable:
        """Functions of one type, to choose from."""
        kind = ir.ArrayType(functions[0].type, len(functions))
        table = ir.GlobalVariable(self.module, kind, name)
        table.global_constant, table.linkage = True, "internal"
        table.initializer = ir.Constant(kind, functions)
        return table

    def _chosen(self, build: ir.IRBuilder, table: ir.GlobalVariable, which: ir.Value) -> ir.Value:
        return build.load(build.gep(table, [index(0), which]))

    def _zeros(self) -> ir.Constant:
        return ir.Constant(ir.VectorType(self.scalar, self.tile.lanes), None)

    def _chain(self, build: ir.IRBuilder, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        """A link of a chain: a * b + total, rounded once."""
        if self.scalar in (F32, F64):
            return Vectors(build, self.tile.lanes).fma(a, b, total)
        return build.add(build.mul(a, b), total)

    def _sum(self, build: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
        return (build.fadd if self.scalar in (F32, F64) else build.add)(a, b)

    def _widened(self, build: ir.IRBuilder, value: ir.Value) -> ir.Value:
        """An operand's value, a scalar or a vector, as what is computed with."""
        v = Vectors(build, getattr(value.type, "count", 1))
        if value.type == v.type_of(self.scalar):
            return value
        floats = {"f16": v.from_f16, "bf16": v.from_bf16}
        if self.dtype in floats:
            return floats[self.dtype](value)
        return v.resize(value, self.scalar, signed=self.dtype.startswith("i"))

    def _factor(self, build: ir.IRBuilder, address: ir.Value) -> ir.Value:
        """An element of A in every lane."""
        return Vectors(build, self.tile.lanes).splat(self._widened(build, build.load(address)))

    def _load(self, build: ir.IRBuilder, address: ir.Value) -> ir.Value:
        """A vector of an operand's elements."""
        return self._widened(build, Vectors(build, self.tile.lanes).load(address))

    def _prefetch(self, build: ir.IRBuilder, address: ir.Value, count: int, write: bool = False) -> None:
        """The lines of so many elements, to be read or written soon; what is not there does no harm."""
        kind = ir.FunctionType(VOID, [ADDRESS, I32, I32, I32])
        function = self.module.globals.get(PREFETCH) or ir.Function(self.module, kind, PREFETCH)
        size = count * _size(address.type.pointee)
        start = build.bitcast(address, ADDRESS)
        for at in (*range(0, size, LINE), size - 1):
            where = build.gep(start, [index(at)])
            build.call(function, [where, *(ir.Constant(I32, flag) for flag in (int(write), 3, 1))])

    def _load_first(self, build: ir.IRBuilder, address: ir.Value, count: ir.Value) -> ir.Value:
        """`count` elements, where a vector would reach past the end; zeros in the other lanes."""
        kind, size, mask = self._masked(build, address, count)
        function = self._intrinsic("load", kind, kind.as_pointer(), I32, mask.type, kind)
        where, zeros = build.bitcast(address, kind.as_pointer()), ir.Constant(kind, None)
        return self._widened(build, build.call(function, [where, ir.Constant(I32, size), mask, zeros]))

    def _store_first(self, build: ir.IRBuilder, value: ir.Value, address: ir.Value, count: ir.Value) -> None:
        kind, size, mask = self._masked(build, address, count)
        function = self._intrinsic("store", kind, kind, kind.as_pointer(), I32, mask.type)
        build.call(function, [value, build.bitcast(address, kind.as_pointer()), ir.Constant(I32, size), mask])

    def _masked(self, build: ir.IRBuilder, address: ir.Value, count: ir.Value) -> tuple[ir.VectorType, int, ir.Value]:
        """A vector's type, its elements' bytes, and which of them are among the first `count`."""
        v, scalar = Vectors(build, self.tile.lanes), address.type.pointee
        mask = build.icmp_signed("<", v.counted(I32), v.splat(build.trunc(count, I32)))
        return ir.VectorType(scalar, self.tile.lanes), _size(scalar), mask

    def _intrinsic(self, name: str, kind: ir.VectorType, *kinds: ir.Type) -> ir.Function:
        """LLVM's masked load or store of vectors."""
        letter = "f" if kind.element in (F32, F64) else "i"
        full = f"llvm.masked.{name}.v{kind.count}{letter}{8 * _size(kind.element)}.p0"
        result = kind if name == "load" else VOID
        return self.module.globals.get(full) or ir.Function(self.module, ir.FunctionType(result, kinds), full)


def _size(scalar: ir.Type) -> int:
    """The bytes of an element."""
    return {"float": 4, "double": 8}.get(str(scalar)) or int(scalar.width) // 8


class _Table(_Matrix):
    """An operand whose elements lie where two tables say: `row` and `column` are the addresses of these."""

    def part(self, build: ir.IRBuilder, row: ir.Value, column: ir.Value) -> _Table:
        rows, columns = (
            build.add(table, build.mul(at, index(8))) for table, at in ((self.row, row), (self.column, column))
        )
        return _Table(self.start, rows, columns)


class _WindowCore(_Core):
    """The core whose B is read through tables; it is always packed."""

    operand = _Table

    def _few_columns(self, build: ir.IRBuilder, m: ir.Value, n: ir.Value) -> ir.Value:
        return ir.Constant(I1, 0)

    def _as_it_lies(self, build: ir.IRBuilder, m: ir.Value, b: _Matrix) -> tuple[ir.Value, ir.Value]:
        return ir.Constant(I1, 0), ir.Constant(I1, 0)

    def _pack_b(self, build: ir.IRBuilder, b: _Matrix, depth: ir.Value, count: ir.Value, panel: ir.Value) -> None:
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
        last = build.sub(_smaller(build, count, index(lanes)), index(1))
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
                places = [build.load(build.gep(columns, [_smaller(build, index(lane), last)])) for lane in range(lanes)]
                with loop(build, index(0), depth, index(1), "k") as k:
                    row = build.load(build.gep(rows, [k]))
                    values = [build.load(build.gep(source, [build.add(row, place)])) for place in places]
                    v.store(self._widened(build, _vector(build, values)), build.gep(panel, [build.mul(k, step)]))
        build.ret_void()
        return function


def _smaller(build: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return build.select(build.icmp_signed("<", a, b), a, b)


def _larger(build: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return build.select(build.icmp_signed(">", a, b), a, b)


def _vector(build: ir.IRBuilder, elements: Sequence[ir.Value]) -> ir.Value:
    value: ir.Value = ir.Constant(ir.VectorType(elements[0].type, len(elements)), ir.Undefined)
    for at, element in enumerate(elements):
        value = build.insert_element(value, element, ir.Constant(I32, at))
    return value


def _joined(build: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    count = 2 * a.type.count
    return build.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, count), list(range(count))))


def _transposed_quads(build: ir.IRBuilder, rows: Sequence[ir.Value], quad: int) -> list[ir.Value]:
    """Squares of `quad` elements within the vectors, all at once: x86's unpack and NEON's zip."""
    lanes = rows[0].type.count

    def interleaved(a: ir.Value, b: ir.Value, half: int) -> ir.Value:
        begins = [base + half * (quad // 2) for base in range(0, lanes, quad)]
        pick = [at + side for begin in begins for at in range(begin, begin + quad // 2) for side in (0, lanes)]
        return build.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, lanes), pick))

    square = list(rows)
    for _ in range(quad.bit_length() - 1):
        pairs = zip(square[: quad // 2], square[quad // 2 :], strict=True)
        square = [interleaved(a, b, half) for a, b in pairs for half in (0, 1)]
    return square


def _transpose(build: ir.IRBuilder, rows: Sequence[ir.Value], element_bytes: int) -> list[ir.Value]:
    """A square of as many rows as lanes: squares within 16 bytes first, then their places; each step is one instruction
    of x86 and of NEON."""
    lanes = len(rows)
    quad = min(lanes, 16 // element_bytes)
    quads = lanes // quad

    def shuffled(a: ir.Value, b: ir.Value, pick: Sequence[int]) -> ir.Value:
        return build.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, lanes), list(pick)))

    def interleaved(a: ir.Value, b: ir.Value, half: int) -> ir.Value:
        """Elements of a and b by turns, from one half of every 16 bytes."""
        begins = [base + half * (quad // 2) for base in range(0, lanes, quad)]
        return shuffled(
            a, b, [at + side for begin in begins for at in range(begin, begin + quad // 2) for side in (0, lanes)]
        )

    def alternate(a: ir.Value, b: ir.Value, odd: int) -> ir.Value:
        """Every other 16 bytes of a, and then of b."""
        begins = [side + at for side in (0, lanes) for at in range(odd * quad, lanes, 2 * quad)]
        return shuffled(a, b, [begin + at for begin in begins for at in range(quad)])

    squares = []
    for base in range(0, lanes, quad):
        square = list(rows[base : base + quad])
        for _ in range(quad.bit_length() - 1):
            pairs = zip(square[: quad // 2], square[quad // 2 :], strict=True)
            square = [interleaved(a, b, half) for a, b in pairs for half in (0, 1)]
        squares.append(square)
    columns: list[list[ir.Value]] = []
    for at in range(quad):
        line = [square[at] for square in squares]
        for _ in range(quads.bit_length() - 1):
            line = [alternate(line[2 * pair], line[2 * pair + 1], odd) for odd in (0, 1) for pair in range(quads // 2)]
        columns.append(line)
    return [columns[at][place] for place in range(quads) for at in range(quad)]
