"""Arithmetic on vectors of one LLVM function: a row of operations that every processor rounds alike.

A value of `lanes` elements is an LLVM vector, and of one element an LLVM scalar.  The width changes no bits: every
operation is IEEE 754's, correctly rounded, and a fused product and sum is one only where `fma` asks for it.  Integers
are without a sign; operations that care say which they mean.  None of it becomes a call of a library: not on x86-64
with AVX2, FMA and F16C, and not on aarch64.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cache

from ..compiler import functions
from .llvm import F16, F32, F64, I1, I8, I16, I32, I64, ir, same, undefined

REGISTERS: dict[str, ir.Type] = {
    "f32": F32, "f64": F64, "i8": I8, "u8": I8, "i16": I16, "u16": I16, "i32": I32, "u32": I32, "i64": I64, "u64": I64,
    "bool": I1,
}  # fmt: skip
_NAMES = {
    str(F16): "f16",
    str(F32): "f32",
    str(F64): "f64",
    **{str(kind): str(kind) for kind in (I1, I8, I16, I32, I64)},
}

_IN_FLOATS = {"f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64"}  # which float of the registers holds a float
_SCALEF = {("f32", 16): "ps.512", ("f64", 8): "pd.512"}  # of AVX-512's instructions: the names of whole registers
_AS_SET = 4  # the rounding that the thread has
_ROUNDED = frozenset({"f16", "bf16"})
_FLOATS = {16: F16, 32: F32, 64: F64}


class Vectors:
    """Operations on vectors of `lanes` elements, at the end of what `builder` has written.

    `scalef` says that the processor has AVX-512's instruction of this name.
    """

    exact = True

    def __init__(self, builder: ir.IRBuilder, lanes: int, scalef: bool = False) -> None:
        self.builder = builder
        self.lanes = lanes
        self.scalef = scalef

    def type_of(self, scalar: ir.Type) -> ir.Type:
        return scalar if self.lanes == 1 else ir.VectorType(scalar, self.lanes)

    def constant(self, value: float, scalar: ir.Type) -> ir.Constant:
        """The same value in every lane; bits of a float that has no text are made by `real(constant(bits))`."""
        return same(self.type_of(scalar), value)

    def like(self, a: ir.Value, value: float) -> ir.Constant:
        """The same value in every lane, of the type of `a`; NaN and the infinities are values."""
        return self.constant(value, _scalar(a.type))

    def width(self, a: ir.Value) -> int:
        """The bits of an element."""
        return _bits(_scalar(a.type))

    def splat(self, scalar: ir.Value) -> ir.Value:
        """A scalar in every lane."""
        if self.lanes == 1:
            return scalar
        kind = self.type_of(scalar.type)
        if isinstance(scalar, ir.Constant):
            return same(kind, scalar)
        first = self.builder.insert_element(undefined(kind), scalar, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, undefined(kind), _zeros(self.lanes))

    def lane(self, value: ir.Value, at: int) -> ir.Value:
        """One element, a scalar."""
        return value if self.lanes == 1 else self.builder.extract_element(value, ir.Constant(I32, at))

    def counted(self, scalar: ir.Type) -> ir.Constant:
        """0, 1, 2, ... in the lanes."""
        return ir.Constant(self.type_of(scalar), 0 if self.lanes == 1 else list(range(self.lanes)))

    def load(self, pointer: ir.Value, align: int | None = None) -> ir.Value:
        """`lanes` elements from `pointer` on, which points at an element."""
        scalar = pointer.type.pointee
        typed = self.builder.bitcast(pointer, self.type_of(scalar).as_pointer())
        return self.builder.load(typed, align=align or _bytes(scalar))

    def load_every(self, stride: int, pointer: ir.Value) -> ir.Value:
        """`lanes` elements that lie `stride` apart, which is not 0, from `pointer` on: vectors are loaded, none of them
        reaches beyond the first or last of these, and elements are picked from them."""
        if stride == 1 or self.lanes == 1:
            return self.load(pointer)
        lanes, places = self.lanes, [lane * stride for lane in range(self.lanes)]
        first, last = min(places), max(places)
        starts = [min(start, last + 1 - lanes) for start in range(first, last + 1, lanes)]
        parts = [self.load(self.builder.gep(pointer, [ir.Constant(I64, start)])) for start in starts]
        value, picked = parts[0], [min(place - first, lanes - 1) for place in places]
        for start, part in zip(starts[1:], parts[1:], strict=True):
            picked = [
                min(lanes + place - start, 2 * lanes - 1) if place >= start else known
                for place, known in zip(places, picked, strict=True)
            ]
            value, picked = self._picked(value, part, picked), list(range(lanes))
        return value if len(parts) > 1 else self._picked(value, value, picked)

    def _picked(self, a: ir.Value, b: ir.Value, places: Sequence[int]) -> ir.Value:
        """Elements of two vectors, by their places in both together."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, self.lanes), list(places)))

    def store(self, value: ir.Value, pointer: ir.Value, align: int | None = None, non_temporal: bool = False) -> None:
        """Store `lanes` elements from `pointer` on.  A non-temporal store passes the caches by: its address is a
        multiple of the vector's bytes."""
        scalar = pointer.type.pointee
        typed = self.builder.bitcast(pointer, self.type_of(scalar).as_pointer())
        stored = self.builder.store(value, typed, align=align or _bytes(scalar) * (self.lanes if non_temporal else 1))
        if non_temporal:
            stored.set_metadata("nontemporal", self.builder.module.add_metadata([ir.Constant(I32, 1)]))

    # -- floats -------------------------------------------------------------------------------------------

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.fadd(a, b)

    def sub(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.fsub(a, b)

    def mul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.fmul(a, b)

    def div(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.fdiv(a, b)

    def neg(self, a: ir.Value) -> ir.Value:
        return self.builder.fneg(a)

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c, rounded once."""
        return self.intrinsic("fma", a, b, c)

    def sqrt(self, a: ir.Value) -> ir.Value:
        return self.intrinsic("sqrt", a)

    def abs(self, a: ir.Value) -> ir.Value:
        return self.intrinsic("fabs", a)

    def floor(self, a: ir.Value) -> ir.Value:
        return self.intrinsic("floor", a)

    def trunc(self, a: ir.Value) -> ir.Value:
        return self.intrinsic("trunc", a)

    def round(self, a: ir.Value) -> ir.Value:
        """The nearest integer, half to even."""
        return self.intrinsic("roundeven", a)

    def scaled(self, a: ir.Value, n: ir.Value, otherwise: Callable[[], ir.Value]) -> ir.Value:
        """a 2^n for whole n, rounded once: by one instruction, or what `otherwise` writes, which has the same bits."""
        name = _SCALEF.get((_NAMES[str(_scalar(a.type))], self.lanes)) if self.scalef else None
        if name is None:
            return otherwise()
        every = ir.Constant(ir.IntType(self.lanes), -1)
        kinds = [a.type, n.type, a.type, every.type, I32]
        function = self._declared(f"llvm.x86.avx512.mask.scalef.{name}", a.type, kinds)
        return self.builder.call(function, [a, n, undefined(a.type), every, ir.Constant(I32, _AS_SET)])

    def is_nan(self, a: ir.Value) -> ir.Value:
        return self.builder.fcmp_unordered("uno", a, a)

    def compare(self, sign: str, a: ir.Value, b: ir.Value) -> ir.Value:
        """a < b and the like, false if one is NaN; of `!=` true."""
        return (self.builder.fcmp_unordered if sign == "!=" else self.builder.fcmp_ordered)(sign, a, b)

    def larger(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a if a > b, else b: also where one of them is NaN."""
        return self.builder.select(self.compare(">", a, b), a, b)

    def smaller(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a if a < b, else b: also where one of them is NaN."""
        return self.builder.select(self.compare("<", a, b), a, b)

    # -- integers and conditions --------------------------------------------------------------------------

    def int_add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a + b, which wraps."""
        return self.builder.add(a, b)

    def int_sub(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a - b, which wraps."""
        return self.builder.sub(a, b)

    def int_mul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The lower half of a * b."""
        return self.builder.mul(a, b)

    def int_mul_high(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The upper half of a * b, both without a sign."""
        bits = self.width(a)
        wide = self.type_of(ir.IntType(2 * bits))
        product = self.builder.mul(self.builder.zext(a, wide), self.builder.zext(b, wide))
        shift = self.constant(bits, ir.IntType(2 * bits))
        return self.builder.trunc(self.builder.lshr(product, shift), a.type)

    def int_neg(self, a: ir.Value) -> ir.Value:
        return self.builder.neg(a)

    def int_div(self, a: ir.Value, b: ir.Value, signed: bool) -> ir.Value:
        """The op table's `div`: rounded down, 0 if b is 0, and a if a is the least integer and b is -1."""
        return self._divided(a, b, signed)[0]

    def int_rem(self, a: ir.Value, b: ir.Value, signed: bool) -> ir.Value:
        """The op table's `rem`: what `int_div` leaves, with the sign of b; 0 if b is 0."""
        return self._divided(a, b, signed)[1]

    def _divided(self, a: ir.Value, b: ir.Value, signed: bool) -> tuple[ir.Value, ir.Value]:
        zero = self.like(a, 0)
        by_zero = self.int_compare("==", b, zero)
        if not signed:
            quotient = self.builder.udiv(a, self.select(by_zero, self.like(a, 1), b))
        else:
            # Of -1 is made a 1, and of the quotient its negative: LLVM has no meaning for the least integer by -1.
            flips = self.int_compare("==", b, self.like(a, -1))
            safe = self.select(self.bit_or(by_zero, flips), self.like(a, 1), b)
            towards_zero = self.builder.sdiv(a, safe)
            left = self.int_sub(a, self.int_mul(towards_zero, safe))
            other_sign = self.int_compare("<", self.bit_xor(left, safe), zero, signed=True)
            down = self.bit_and(self.int_compare("!=", left, zero), other_sign)
            quotient = self.select(down, self.int_sub(towards_zero, self.like(a, 1)), towards_zero)
            quotient = self.select(flips, self.int_neg(a), quotient)
        left = self.int_sub(a, self.int_mul(quotient, b))
        return self.select(by_zero, zero, quotient), self.select(by_zero, zero, left)

    def bit_and(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Bits of both integers; of two conditions whether both hold."""
        return self.builder.and_(a, b)

    def bit_or(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.or_(a, b)

    def bit_xor(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.xor(a, b)

    def bit_not(self, a: ir.Value) -> ir.Value:
        return self.builder.not_(a)

    def shift_left(self, a: ir.Value, by: ir.Value) -> ir.Value:
        """Bits moved up by fewer than there are; zeros come in."""
        return self.builder.shl(a, by)

    def shift_right(self, a: ir.Value, by: ir.Value) -> ir.Value:
        """Bits moved down by fewer than there are; zeros come in."""
        return self.builder.lshr(a, by)

    def shift_right_signed(self, a: ir.Value, by: ir.Value) -> ir.Value:
        """Bits moved down by fewer than there are; copies of the sign come in."""
        return self.builder.ashr(a, by)

    def int_compare(self, sign: str, a: ir.Value, b: ir.Value, signed: bool = False) -> ir.Value:
        return (self.builder.icmp_signed if signed else self.builder.icmp_unsigned)(sign, a, b)

    def resize(self, a: ir.Value, kind: ir.Type, signed: bool = False) -> ir.Value:
        """An integer of another size: it wraps into a smaller one, and keeps its value in a larger one."""
        have, want = self.width(a), _bits(kind)
        if have == want:
            return a
        if have > want:
            return self.builder.trunc(a, self.type_of(kind))
        return (self.builder.sext if signed else self.builder.zext)(a, self.type_of(kind))

    # -- choice -------------------------------------------------------------------------------------------

    def select(self, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.select(condition, a, b)

    def any(self, condition: ir.Value) -> ir.Value:
        """Whether a condition holds in any lane, a scalar."""
        if self.lanes == 1:
            return condition
        name = f"llvm.vector.reduce.or.v{self.lanes}i1"
        return self.builder.call(self._declared(name, I1, [condition.type]), [condition])

    def rarely(
        self, condition: ir.Value, usual: Sequence[ir.Value], rare: Callable[[], Sequence[ir.Value]]
    ) -> list[ir.Value]:
        """What `rare` gives in lanes where the condition holds, else the usual values.

        What `rare` writes runs only if the condition holds in a lane; the bits are those of a `select`.
        """
        function, before = self.builder.function, self.builder.block
        seldom, after = (function.append_basic_block(name) for name in ("rarely", "then"))
        self.builder.cbranch(self.any(condition), seldom, after).set_weights([1, 1000])
        self.builder.position_at_end(seldom)
        chosen = [self.select(condition, a, b) for a, b in zip(rare(), usual, strict=True)]
        seldom = self.builder.block
        self.builder.branch(after)
        self.builder.position_at_end(after)
        values = [self.builder.phi(value.type) for value in usual]
        for phi, one, other in zip(values, usual, chosen, strict=True):
            phi.add_incoming(one, before)
            phi.add_incoming(other, seldom)
        return values

    def lookup(self, words: Sequence[int], index: ir.Value) -> ir.Value:
        """Elements of a constant table of integers of the index's size, where the index is within the table."""
        kind = _scalar(index.type)
        table = ir.Constant(ir.ArrayType(kind, len(words)), list(words))
        module = self.builder.module
        name = f"table.{_bits(kind)}.{zlib.crc32(repr(tuple(words)).encode()):08x}"
        held = module.globals.get(name)
        if held is None:
            held = ir.GlobalVariable(module, table.type, name)
            held.initializer, held.global_constant, held.linkage = table, True, "internal"
        elements = []
        for lane in range(self.lanes):
            at = self.builder.zext(self.lane(index, lane), I64) if kind != I64 else self.lane(index, lane)
            elements.append(self.builder.load(self.builder.gep(held, [ir.Constant(I64, 0), at])))
        return self.gathered(elements)

    def gathered(self, scalars: Sequence[ir.Value]) -> ir.Value:
        """Scalars, one per lane, as one value."""
        if self.lanes == 1:
            return scalars[0]
        value = undefined(self.type_of(scalars[0].type))
        for lane, scalar in enumerate(scalars):
            value = self.builder.insert_element(value, scalar, ir.Constant(I32, lane))
        return value

    # -- parts of functions -------------------------------------------------------------------------------

    def turned(self, x: ir.Value, fine: bool = False) -> tuple[ir.Value, ir.Value, ir.Value]:
        return functions.turned(self, x, fine)

    def powered(self, size: ir.Value, y: ir.Value) -> ir.Value:
        return functions.powered(self, size, y)

    # -- between kinds ------------------------------------------------------------------------------------

    def bits(self, a: ir.Value) -> ir.Value:
        """The bits of a float as an integer of its size."""
        return self.builder.bitcast(a, self.type_of(ir.IntType(self.width(a))))

    def real(self, a: ir.Value) -> ir.Value:
        """The float with these bits."""
        return self.builder.bitcast(a, self.type_of(_FLOATS[self.width(a)]))

    def saturated(self, a: ir.Value, kind: ir.Type, signed: bool) -> ir.Value:
        """A float as an integer, towards zero: the nearest one there is, and 0 for NaN."""
        name = f"llvm.fpto{'si' if signed else 'ui'}.sat"
        full = f"{name}.{self._shape(_NAMES[str(kind)])}.{self._shape(_NAMES[str(_scalar(a.type))])}"
        return self.builder.call(self._declared(full, self.type_of(kind), [a.type]), [a])

    def to_real(self, a: ir.Value, kind: ir.Type, signed: bool = True) -> ir.Value:
        """An integer as a float, rounded once."""
        return (self.builder.sitofp if signed else self.builder.uitofp)(a, self.type_of(kind))

    def whole(self, a: ir.Value) -> ir.Value:
        """An integer without a sign as a float of its size, rounded once."""
        return self.to_real(a, _FLOATS[self.width(a)], signed=False)

    def whole_to_f64(self, a: ir.Value) -> ir.Value:
        """A signed i64 as f64, rounded once."""
        return self.to_real(a, F64)

    def lower_half(self, a: ir.Value) -> ir.Value:
        """The lower bits of an integer, as one of half its size."""
        return self.resize(a, ir.IntType(self.width(a) // 2))

    def widen(self, a: ir.Value) -> ir.Value:
        """An f32 as f64, exactly."""
        return self.builder.fpext(a, self.type_of(F64))

    def narrow(self, a: ir.Value) -> ir.Value:
        """An f64 as f32, rounded once."""
        return self.builder.fptrunc(a, self.type_of(F32))

    def from_f16(self, a: ir.Value) -> ir.Value:
        """The f32 of the bits of an f16, exactly."""
        return self.builder.fpext(self.builder.bitcast(a, self.type_of(F16)), self.type_of(F32))

    def to_f16(self, a: ir.Value) -> ir.Value:
        """The bits of the f16 nearest to an f32 or f64."""
        near = a if self.width(a) == 32 else self._narrow_to_odd(a)
        return self.builder.bitcast(self.builder.fptrunc(near, self.type_of(F16)), self.type_of(I16))

    def from_bf16(self, a: ir.Value) -> ir.Value:
        """The f32 of the bits of a bf16, exactly."""
        bits = self.builder.zext(a, self.type_of(I32))
        return self.real(self.shift_left(bits, self.like(bits, 16)))

    def to_bf16(self, a: ir.Value) -> ir.Value:
        """The bits of the bf16 nearest to an f32 or f64; a NaN stays one, with its sign."""
        near = a if self.width(a) == 32 else self._narrow_to_odd(a)
        bits = self.bits(near)
        sixteen = self.like(bits, 16)
        odd = self.bit_and(self.shift_right(bits, sixteen), self.like(bits, 1))
        rounded = self.int_add(self.int_add(bits, self.like(bits, 0x7FFF)), odd)
        quiet = self.bit_or(bits, self.like(bits, 0x400000))
        chosen = self.select(self.is_nan(near), quiet, rounded)
        return self.builder.trunc(self.shift_right(chosen, sixteen), self.type_of(I16))

    def _narrow_to_odd(self, a: ir.Value) -> ir.Value:
        """An f64 as f32 that can be rounded again: where it is not exact, the neighbour whose last bit is 1.

        S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Trans. Computers 57, 2008.
        """
        near = self.narrow(a)
        back, bits = self.widen(near), self.bits(near)
        one = self.like(bits, 1)
        even = self.int_compare("==", self.bit_and(bits, one), self.like(bits, 0))
        inexact = self.bit_and(self.compare("!=", back, a), self.bit_not(self.is_nan(a)))
        beyond = self.compare(">", self.abs(back), self.abs(a))
        odd = self.select(beyond, self.int_sub(bits, one), self.int_add(bits, one))
        return self.real(self.select(self.bit_and(inexact, even), odd, bits))

    def cast(self, a: ir.Value, source: str, target: str) -> ir.Value:
        """The op table's `cast` from one dtype to another, of values in registers: f16 and bf16 are f32 there."""
        if source == target:
            return a
        if target == "bool":
            zero = self.like(a, 0)
            return self.compare("!=", a, zero) if source in _IN_FLOATS else self.int_compare("!=", a, zero)
        kind = REGISTERS[_IN_FLOATS.get(target, target)]
        if source in _IN_FLOATS:
            if target not in _IN_FLOATS:
                return self.saturated(a, kind, target[0] == "i")
            if target in _ROUNDED:
                return self._rounded_to(a, target)
            have, want = self.width(a), _bits(kind)
            return a if have == want else self.widen(a) if want > have else self.narrow(a)
        signed = source[0] == "i"
        if target not in _IN_FLOATS:
            return self.resize(a, kind, signed)
        if target != "bf16" or self.width(a) < 32:
            real = self.to_real(a, kind, signed)
            return self._rounded_to(real, target) if target in _ROUNDED else real
        if self.width(a) == 64:
            # f64 holds the first 53 bits.  The last of them is set if any behind is, so that bf16 rounds as it should.
            behind = self.like(a, 2**11 - 1)
            lost = self.int_compare("!=", self.bit_and(a, behind), self.like(a, 0))
            short = self.bit_and(a, self.bit_not(behind))
            short = self.bit_or(short, self.select(lost, self.like(a, 2**11), self.like(a, 0)))
            low, high = (-(2**53), 2**53) if signed else (0, 2**53)
            inside = self.bit_and(
                self.int_compare(">=", a, self.like(a, low), signed),
                self.int_compare("<=", a, self.like(a, high), signed),
            )
            a = self.select(inside, a, short)
        return self._rounded_to(self.to_real(a, F64, signed), target)

    def _rounded_to(self, a: ir.Value, dtype: str) -> ir.Value:
        """The f32 that is nearest among those of f16 or bf16."""
        return self.from_f16(self.to_f16(a)) if dtype == "f16" else self.from_bf16(self.to_bf16(a))

    def intrinsic(self, name: str, *args: ir.Value) -> ir.Value:
        """A call of LLVM's function `llvm.NAME` for values of the first one's type."""
        full = f"llvm.{name}.{self._shape(_NAMES[str(_scalar(args[0].type))])}"
        return self.builder.call(self._declared(full, args[0].type, [arg.type for arg in args]), args)

    def _shape(self, name: str) -> str:
        """LLVM's name of a type of `lanes` elements."""
        return name if self.lanes == 1 else f"v{self.lanes}{name}"

    def _declared(self, name: str, result: ir.Type, args: list[ir.Type]) -> ir.Function:
        module = self.builder.module
        return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, args), name)


@cache
def _zeros(lanes: int) -> ir.Constant:
    """The mask of a splat, which keeps its text."""
    return ir.Constant(ir.VectorType(I32, lanes), 0)


def _scalar(kind: ir.Type) -> ir.Type:
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    return {"half": F16, "float": F32, "double": F64}.get(str(element), element)


def _bits(scalar: ir.Type) -> int:
    return {"half": 16, "float": 32, "double": 64}.get(str(scalar)) or int(scalar.width)


def _bytes(scalar: ir.Type) -> int:
    return max(1, _bits(scalar) // 8)
