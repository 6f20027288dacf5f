"""LLVM through llvmlite, which nothing else imports: modules, control flow, and machine code for a processor.

Nothing here is allowed to change a result's bits: no fast-math flag, no contraction of a product and a sum, and no
pass that knows such things.  A fused product and sum is asked for by `Vectors.fma`, and is there only where somebody
asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as binding
from llvmlite import ir as ir

VOID, I1, I8, I16, I32, I64 = ir.VoidType(), *(ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
ADDRESS = I8.as_pointer()
# What a tensor's dtype is in memory.  Integers have no sign in LLVM; operations have.  f16 and bf16 are 16 bits.
STORED: dict[str, ir.Type] = {
    "f16": I16, "bf16": I16, "f32": F32, "f64": F64, "i8": I8, "u8": I8, "i16": I16, "u16": I16, "i32": I32, "u32": I32,
    "i64": I64, "u64": I64, "bool": I8,
}  # fmt: skip


LLVMLITE = str(llvmlite.__version__)


@dataclass(frozen=True, slots=True)
class Processor:
    """What machine code is for: LLVM's names of a target triple, a processor and its features ("+avx2,-avx512f")."""

    triple: str
    name: str
    features: str

    @property
    def key(self) -> str:
        """What tells objects apart that may not run on the same processor, or that another LLVM has made."""
        return "|".join((self.triple, self.name, self.features, *map(str, binding.llvm_version_info)))

    @property
    def vector_bytes(self) -> int:
        """The bytes of a vector register."""
        features = self.features.split(",")
        if "+avx512f" in features:
            return 64
        return 32 if "+avx" in features else 16

    @property
    def has_scalef(self) -> bool:
        """Whether an instruction multiplies vectors of 64 bytes by powers of two."""
        return "+avx512f" in self.features.split(",")

    @property
    def is_arm(self) -> bool:
        return self.triple.startswith(("aarch64", "arm64"))

    @property
    def has_fma(self) -> bool:
        """Whether a fused product and sum is an instruction; without it every one would be a call."""
        return self.is_arm or "+fma" in self.features.split(",")


@cache
def this_processor() -> Processor:
    name, features = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    return Processor(binding.get_process_triple(), str(name), str(features))


@cache
def target_machine(processor: Processor) -> Any:
    """What generates code for a processor."""
    return _new_machine(processor)


def _new_machine(processor: Processor) -> Any:
    _initialize()
    return binding.Target.from_triple(processor.triple).create_target_machine(
        cpu=processor.name, features=processor.features, opt=3, reloc="pic", codemodel="jitdefault"
    )


@cache
def _initialize() -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()


def new_module(name: str) -> ir.Module:
    return ir.Module(name, context=ir.Context())


def machine_code(module: ir.Module, processor: Processor) -> bytes:
    """The module as an object file for a processor."""
    return bytes(target_machine(processor).emit_object(_parsed(module, processor)))


def _parsed(module: ir.Module, processor: Processor) -> Any:
    machine = target_machine(processor)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    return parsed


OVERHEAD_BYTES = 48 << 10  # that LLVM holds beside the code of each object: a machine and an engine; measured


class Loaded:
    """Functions of an object file, ready to be called while this object lives.

    Those for another processor than this one lie in memory as well, for engines that emulate it.
    """

    def __init__(self, code: bytes, processor: Processor | None = None) -> None:
        # The engine owns its machine, and ends it with itself.
        machine = _new_machine(processor or this_processor())
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
        self._engine.add_object_file(binding.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self.size_bytes = OVERHEAD_BYTES + 2 * len(code)  # as it came, and as it is run

    def data(self, name: str) -> int:
        """The address of a constant; KeyError if the object has none of this name."""
        address = int(self._engine.get_global_value_address(name))
        if not address:
            raise KeyError(name)
        return address

    def address(self, name: str) -> int:
        """The address of a function; KeyError if the object has none of this name."""
        address = int(self._engine.get_function_address(name))
        if not address:
            raise KeyError(name)
        return address


def missing() -> str:
    """What keeps this process from making and running machine code, "" for nothing."""
    if not this_processor().has_fma:
        return "this processor has no instruction for a fused product and sum"
    return executable_memory()


def executable_memory() -> str:
    """Why this process may not run code that it has made, or "" if it may.

    Hardened systems forbid it: SELinux, a filter of system calls such as systemd's MemoryDenyWriteExecute, or Windows'
    arbitrary code guard.  What LLVM does to load code is tried on a page, and nothing is run.
    """
    try:
        binding.check_jit_execution()
    except OSError as error:
        return f"this system forbids memory that is executable: {os.strerror(error.errno or 0)}"
    return ""


# -- control flow -----------------------------------------------------------------------------------------


def index(value: int) -> ir.Constant:
    """A constant index or count."""
    return ir.Constant(I64, value)


def same(kind: ir.Type, value: Any) -> ir.Constant:
    """A constant in every lane of a vector, or a scalar one.  A vector's text is short: to print and parse it lane by
    lane is slow."""
    if not isinstance(kind, ir.VectorType):
        return ir.Constant(kind, value)
    scalar = value if isinstance(value, ir.Constant) else ir.Constant(kind.element, value)
    text = "undef" if value is ir.Undefined else f"splat ({kind.element} {scalar.get_reference()})"
    constant = ir.FormattedConstant(kind.element, text)
    constant.type = kind
    return constant


def undefined(kind: ir.Type) -> ir.Constant:
    return same(kind, ir.Undefined)


@contextmanager
def loop(builder: ir.IRBuilder, start: ir.Value, stop: ir.Value, step: ir.Value, name: str = "i") -> Iterator[ir.Value]:
    """for index = start; index < stop; index += step."""
    carried = loop_with(builder, start, stop, step, (), name)
    with carried as (position, _, _):
        yield position


@contextmanager
def loop_with(
    builder: ir.IRBuilder, start: ir.Value, stop: ir.Value, step: ir.Value, values: Sequence[ir.Value], name: str = "i"
) -> Iterator[tuple[ir.Value, list[ir.Value], list[ir.Value]]]:
    """A loop that carries values: it yields the index, the values of this turn, and a list for those of the next turn,
    which the body fills.  After the loop the values of the turn are the last ones."""
    function, before = builder.function, builder.block
    head, body, end = (function.append_basic_block(f"{name}.{part}") for part in ("head", "body", "end"))
    builder.branch(head)
    builder.position_at_end(head)
    position = builder.phi(I64, name)
    position.add_incoming(start, before)
    held = [builder.phi(value.type) for value in values]
    for phi, value in zip(held, values, strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", position, stop), body, end)
    builder.position_at_end(body)
    following: list[ir.Value] = []
    yield position, held, following
    position.add_incoming(builder.add(position, step, flags=("nsw",)), builder.block)
    for phi, value in zip(held, following, strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(end)


def keep_order(builder: ir.IRBuilder) -> None:
    """Nothing that reads or writes memory is moved across this place."""
    builder.asm(ir.FunctionType(VOID, []), "", "~{memory}", [], True)


def publish(builder: ir.IRBuilder) -> None:
    """Other threads see what was stored before this place, by non-temporal stores too, before what is stored after."""
    builder.fence("seq_cst")


def prefetch(builder: ir.IRBuilder, address: ir.Value, write: bool = False, cache: int = 1) -> None:
    """Fetch the line of an element that is to be read or written soon, into the first or the second cache; what is not
    there does no harm."""
    name, kind = "llvm.prefetch.p0", ir.FunctionType(VOID, [ADDRESS, I32, I32, I32])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    where = builder.bitcast(address, ADDRESS)
    builder.call(function, [where, *(ir.Constant(I32, flag) for flag in (int(write), 4 - cache, 1))])
