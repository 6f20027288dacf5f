"""Arithmetic on vectors of one LLVM function: a row of operations that every processor rounds alike.

A value of `lanes` elements is an LLVM vector, and of one element an LLVM scalar.  The width changes no bits: every
operation is IEEE 754's, correctly rounded, and a fused product and sum is one only where `fma` asks for it.  Integers
are without a sign; operations that care say which they mean.
"""

from __future__ import annotations

from typing import Any

from .llvm import F32, F64, I1, I8, I16, I32, I64, ir

REGISTERS: dict[str, ir.Type] = {
    "f32": F32, "f64": F64, "i8": I8, "u8": I8, "i16": I16, "u16": I16, "i32": I32, "u32": I32, "i64": I64, "u64": I64,
    "bool": I1,
}  # fmt: skip
_NAMES = {str(F32): "f32", str(F64): "f64", **{str(kind): str(kind) for kind in (I1, I8, I16, I32, I64)}}


class Vectors:
    """Operations on vectors of `lanes` elements, at the end of what `builder` has written."""

    def __init__(self, builder: ir.IRBuilder, lanes: int) -> None:
        self.builder = builder
        self.lanes = lanes

    def type_of(self, scalar: ir.Type) -> ir.Type:
        return scalar if self.lanes == 1 else ir.VectorType(scalar, self.lanes)

    def constant(self, value: float, scalar: ir.Type) -> ir.Constant:
        """The same value in every lane; bits of a float that has no text are made by `real(constant(bits))`."""
        kind = self.type_of(scalar)
        return ir.Constant(kind, value if self.lanes == 1 else [value] * self.lanes)

    def splat(self, scalar: ir.Value) -> ir.Value:
        """A scalar in every lane."""
        if self.lanes == 1:
            return scalar
        kind = self.type_of(scalar.type)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)

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

    def store(self, value: ir.Value, pointer: ir.Value, align: int | None = None) -> None:
        scalar = pointer.type.pointee
        typed = self.builder.bitcast(pointer, self.type_of(scalar).as_pointer())
        self.builder.store(value, typed, align=align or _bytes(scalar))

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

    # -- between kinds ------------------------------------------------------------------------------------

    def bits(self, a: ir.Value) -> ir.Value:
        """The bits of a float as an integer of its size."""
        return self.builder.bitcast(a, self.type_of(I32 if _scalar(a.type) is F32 else I64))

    def real(self, a: ir.Value) -> ir.Value:
        """The float with these bits."""
        return self.builder.bitcast(a, self.type_of(F32 if _scalar(a.type).width == 32 else F64))

    def to_integer(self, a: ir.Value, kind: ir.Type = I32) -> ir.Value:
        """A float that is within the range of a signed integer, towards zero; another one gives any value."""
        return self.builder.fptosi(a, self.type_of(kind))

    def to_real(self, a: ir.Value, kind: ir.Type) -> ir.Value:
        """A signed integer as a float."""
        return self.builder.sitofp(a, self.type_of(kind))

    def select(self, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.select(condition, a, b)

    def intrinsic(self, name: str, *args: ir.Value) -> ir.Value:
        """A call of LLVM's function `llvm.NAME` for values of the first one's type."""
        scalar = _scalar(args[0].type)
        suffix = _NAMES[str(scalar)]
        full = f"llvm.{name}.{suffix}" if self.lanes == 1 else f"llvm.{name}.v{self.lanes}{suffix}"
        module = self.builder.module
        function = module.globals.get(full)
        if function is None:
            function = ir.Function(module, ir.FunctionType(args[0].type, [arg.type for arg in args]), full)
        return self.builder.call(function, args)


def _scalar(kind: Any) -> ir.Type:
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    return {"float": F32, "double": F64}.get(str(element), element)


def _bytes(scalar: ir.Type) -> int:
    return {"float": 4, "double": 8}.get(str(scalar)) or max(1, scalar.width // 8)
