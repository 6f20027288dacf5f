"""Cores of matrix products: functions that compute C = A B for a tile of C, generated for a processor.

The arithmetic is a definition, "native-2", and part of the promise that bits depend on shapes alone.  An element of C
is made of runs of RUN elements along the length K, the last of which may be shorter.  The sum of a run begins as 0 and
is a chain of fused products and sums, in order; C is the sum of the first run, to which those of the others are added,
in order.  So an element's bits follow from its row of A and its column of B, whatever the tile, the registers, the
threads or the processor.  (The bits of a NaN are the processor's.)  Integers wrap, so any order gives their bits.

A core has no loop over anything but rows, columns and length: the caller cuts the work into tiles and tasks.  Here is
what cores have in common; `products.py` and `few_rows.py` have the cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .llvm import ADDRESS, F32, F64, I1, I32, I64, STORED, VOID, Processor, index, ir, loop, new_module, same, undefined
from .vectors import Vectors

RUN = 256
FUNCTION = "product"
# What operands of a dtype are computed in, and what C is: the caller rounds it, or drops its upper bits.  Narrow
# operands become such while they are read.
OPERANDS: dict[str, ir.Type] = {
    "f16": F32, "bf16": F32, "f32": F32, "f64": F64, "i8": I32, "u8": I32, "i16": I32, "u16": I32, "i32": I32,
    "u32": I32, "i64": I64, "u64": I64,
}  # fmt: skip

LINE = 64
NOTHING = -0.0  # added to a float it changes no bit
CORE = ir.FunctionType(VOID, [ADDRESS, I64, I64, ADDRESS, I64, I64, ADDRESS, I64, I64, I64, I64, ADDRESS])

PANELS_OF_A = 12  # of a block, which stays in a core's second cache
COLUMNS_OF_B = 512  # of a block; of one for few rows there are fewer, since it is read once
FEW = 8  # rows for which B is read as it lies, if its rows or columns are contiguous
PACKED_ROWS_MIN = 5  # rows for which a packed B is faster than one that lies: fewer wait for its memory
STREAMED = 1024  # columns whose sums a product of few rows keeps in the first cache


@dataclass(frozen=True, slots=True)
class Tile:
    """The C of a micro kernel: up to `rows` rows, an even number, of `vectors` vectors of `lanes` elements of `bytes`
    each."""

    lanes: int
    vectors: int
    rows: int
    bytes: int

    @property
    def columns(self) -> int:
        return self.lanes * self.vectors

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

    def deep(self, length: int) -> int:
        """Elements of a panel of B's column for a length: it is filled up to whole vectors."""
        return -(-length // self.lanes) * self.lanes

    def panels_size(self, length: int, columns: int) -> int:
        """Elements of a B [length, columns] that is packed as a whole."""
        return -(-columns // self.columns) * self.columns * self.deep(length)

    @property
    def edge(self) -> int:
        return max(self.rows * self.columns, FEW * STREAMED)

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


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand within a function: where it begins, and its strides in elements."""

    start: ir.Value
    row: ir.Value
    column: ir.Value

    def at(self, build: ir.IRBuilder, row: ir.Value, column: ir.Value) -> ir.Value:
        """The address of an element."""
        return build.gep(self.start, [build.add(build.mul(row, self.row), build.mul(column, self.column))])

    def part(self, build: ir.IRBuilder, row: ir.Value, column: ir.Value) -> Matrix:
        """The matrix from an element on."""
        return Matrix(self.at(build, row, column), self.row, self.column)


class Core:
    """A module of functions for one dtype.  In all of them k counts along the length, and sums are those of a run."""

    def __init__(self, name: str, dtype: str, tile: Tile) -> None:
        self.dtype = dtype
        self.tile = tile
        self.scalar = OPERANDS[dtype]
        self.is_float = self.scalar in (F32, F64)
        self.pointer = self.scalar.as_pointer()
        self.source = STORED[dtype].as_pointer()
        self.module = new_module(f"{name}_{dtype}")
        self.settle = self._settle()

    def _settle(self) -> ir.Function:
        """Sums of a run, in scratch memory, to C or onto it."""
        pointer, tile = self.pointer, self.tile
        function, build = self._function("settle", pointer, I64, pointer, I64, I64, I64, I64, I1)
        start, sums_row, c_start, c_row, c_column, rows, columns, first = function.args
        sums, c = Matrix(start, sums_row, index(1)), Matrix(c_start, c_row, c_column)
        v, single = Vectors(build, tile.lanes), Vectors(build, 1)
        lanes, whole = index(tile.lanes), build.and_(columns, index(-tile.lanes))
        left = build.sub(columns, whole)
        with (
            loop(build, index(0), rows, index(1), "row") as row,
            build.if_else(build.icmp_signed("==", c_column, index(1))) as (contiguous, scattered),
        ):
            with contiguous:
                with loop(build, index(0), whole, lanes, "column") as column:
                    place = c.at(build, row, column)
                    v.store(self._onto(build, first, v.load(place), v.load(sums.at(build, row, column))), place)
                with build.if_then(build.icmp_signed(">", left, index(0))):
                    value, place = v.load(sums.at(build, row, whole)), c.at(build, row, whole)
                    before = self._load_first(build, place, left)
                    self._store_first(build, self._onto(build, first, before, value), place, left)
            with scattered, loop(build, index(0), columns, index(1), "column") as column:
                value, place = single.load(sums.at(build, row, column)), c.at(build, row, column)
                single.store(self._onto(build, first, single.load(place), value), place)
        build.ret_void()
        return function

    def _onto(self, build: ir.IRBuilder, first: ir.Value, before: ir.Value, value: ir.Value) -> ir.Value:
        """The sum of a run, added to those before unless it is the first."""
        v = Vectors(build, getattr(value.type, "count", 1))
        nothing = v.like(value, NOTHING) if self.is_float else v.like(value, 0)
        return self._added(build, build.select(v.splat(first), nothing, before), value)

    def _added(self, build: ir.IRBuilder, before: ir.Value, value: ir.Value) -> ir.Value:
        return build.fadd(before, value) if self.is_float else build.add(before, value)

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
        return same(ir.VectorType(self.scalar, self.tile.lanes), None)

    def _chain(self, build: ir.IRBuilder, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        """A link of a chain: a * b + total, rounded once."""
        if self.is_float:
            return Vectors(build, self.tile.lanes).fma(a, b, total)
        return build.add(build.mul(a, b), total)

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

    def _load_first(self, build: ir.IRBuilder, address: ir.Value, count: ir.Value) -> ir.Value:
        """`count` elements, where a vector would reach past the end; zeros in the other lanes."""
        kind, size, mask = self._masked(build, address, count)
        function = self._intrinsic("load", kind, kind.as_pointer(), I32, mask.type, kind)
        where, zeros = build.bitcast(address, kind.as_pointer()), same(kind, None)
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


def smaller(build: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return build.select(build.icmp_signed("<", a, b), a, b)


def larger(build: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return build.select(build.icmp_signed(">", a, b), a, b)


def whole_vectors(build: ir.IRBuilder, length: ir.Value, tile: Tile) -> ir.Value:
    """`Tile.deep` of a length."""
    return build.and_(build.add(length, index(tile.lanes - 1)), index(-tile.lanes))


def vector_of(build: ir.IRBuilder, elements: Sequence[ir.Value]) -> ir.Value:
    value: ir.Value = undefined(ir.VectorType(elements[0].type, len(elements)))
    for at, element in enumerate(elements):
        value = build.insert_element(value, element, ir.Constant(I32, at))
    return value


def quads_transposed(build: ir.IRBuilder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """The squares, of as many elements as rows, that lie beside each other in some rows, each by itself."""
    lanes, quad = rows[0].type.count, len(rows)

    def interleaved(a: ir.Value, b: ir.Value, half: int) -> ir.Value:
        """Elements of a and b by turns, from one half of every square."""
        begins = [base + half * (quad // 2) for base in range(0, lanes, quad)]
        pick = [at + side for begin in begins for at in range(begin, begin + quad // 2) for side in (0, lanes)]
        return build.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, lanes), pick))

    square = list(rows)
    for _ in range(quad.bit_length() - 1):
        pairs = zip(square[: quad // 2], square[quad // 2 :], strict=True)
        square = [interleaved(a, b, half) for a, b in pairs for half in (0, 1)]
    return square


def joined(build: ir.IRBuilder, parts: Sequence[ir.Value]) -> ir.Value:
    """Vectors, a power of two of them, as one."""
    while len(parts) > 1:
        places = ir.Constant(ir.VectorType(I32, 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
        parts = [build.shuffle_vector(a, b, places) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def transposed(build: ir.IRBuilder, rows: Sequence[ir.Value], element_bytes: int) -> list[ir.Value]:
    """A square of as many rows as lanes: squares within 16 bytes first, then their places; each step is one instruction
    of x86 and of NEON."""
    lanes = len(rows)
    quad = min(lanes, 16 // element_bytes)
    quads = lanes // quad

    def shuffled(a: ir.Value, b: ir.Value, pick: Sequence[int]) -> ir.Value:
        return build.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, lanes), list(pick)))

    def alternate(a: ir.Value, b: ir.Value, odd: int) -> ir.Value:
        """Every other 16 bytes of a, and then of b."""
        begins = [side + at for side in (0, lanes) for at in range(odd * quad, lanes, 2 * quad)]
        return shuffled(a, b, [begin + at for begin in begins for at in range(quad)])

    squares = [quads_transposed(build, rows[base : base + quad]) for base in range(0, lanes, quad)]
    columns: list[list[ir.Value]] = []
    for at in range(quad):
        line = [square[at] for square in squares]
        for _ in range(quads.bit_length() - 1):
            line = [alternate(line[2 * pair], line[2 * pair + 1], odd) for odd in (0, 1) for pair in range(quads // 2)]
        columns.append(line)
    return [columns[at][place] for place in range(quads) for at in range(quad)]
