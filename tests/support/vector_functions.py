"""Functions of vectors over numpy arrays: each is compiled into a loop over elements, and called."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from worker.native.llvm import (
    I64,
    STORED,
    VOID,
    Loaded,
    Processor,
    index,
    ir,
    loop,
    machine_code,
    new_module,
    this_processor,
)
from worker.native.vectors import Vectors

TARGETS = (  # what objects are written for, though this machine may be another one
    Processor("x86_64-unknown-linux-gnu", "x86-64-v3", "+avx2,+fma,+f16c"),
    Processor("aarch64-unknown-linux-gnu", "generic", "+neon"),
)
NAME = "compute"
Body = Callable[..., ir.Value]


def object_code(body: Body, operands: list[str], result: str, lanes: int, processor: Processor) -> bytes:
    """Machine code of `compute(count, out, operands...)`, each a pointer to elements of a dtype."""
    module = new_module(NAME)
    pointers = [STORED[dtype].as_pointer() for dtype in (result, *operands)]
    function = ir.Function(module, ir.FunctionType(VOID, [I64, *pointers]), NAME)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    count, *arrays = function.args
    whole = builder.sub(count, builder.urem(count, index(lanes)))
    for width, start, stop in ((lanes, index(0), whole), (1, whole, count)):
        v = Vectors(builder, width, processor.has_scalef)
        with loop(builder, start, stop, index(width), f"by{width}") as at:
            out, *given = (builder.gep(array, [at]) for array in arrays)
            v.store(body(v, *map(v.load, given)), out)
    builder.ret_void()
    return machine_code(module, processor)


class Compiled:
    """A function of arrays of the same length, which gives an array of the dtype `result`."""

    def __init__(
        self, body: Body, operands: list[str], result: str, lanes: int, processor: Processor | None = None
    ) -> None:
        self.result = np.dtype(NUMPY[result])
        self._code = Loaded(object_code(body, operands, result, lanes, processor or this_processor()))
        address = self._code.address(NAME)
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * (len(operands) + 1))(address)

    def __call__(self, *operands: NDArray[np.generic]) -> NDArray[np.generic]:
        given = [np.ascontiguousarray(operand) for operand in operands]
        out = np.empty(given[0].size, self.result)
        self.into(out, *given)
        return out

    def into(self, out: NDArray[np.generic], *operands: NDArray[np.generic]) -> None:
        """Contiguous arrays, the first of which is written."""
        self._call(out.size, out.ctypes.data, *(operand.ctypes.data for operand in operands))


NUMPY = {
    "f16": "u2", "bf16": "u2", "f32": "f4", "f64": "f8", "i8": "i1", "u8": "u1", "i16": "i2", "u16": "u2", "i32": "i4",
    "u32": "u4", "i64": "i8", "u64": "u8", "bool": "u1",
}  # fmt: skip


def without_avx512(processor: Processor) -> Processor:
    """The processor as if it had no AVX-512: 256 bits a vector, and no instructions on 64-bit integers but AVX2's."""
    features = [one for one in processor.features.split(",") if not one.startswith(("+avx512", "-avx512"))]
    return replace(processor, features=",".join([*features, "-avx512f"]))


def undefined_symbols(code: bytes) -> list[str]:
    """What an ELF object for 64 bits needs from elsewhere; its own table of addresses, which its constants lie behind,
    is no such thing."""
    assert code[:5] == b"\x7fELF\x02"
    start, size, count = *struct.unpack_from("<Q", code, 0x28), *struct.unpack_from("<HH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + size * at) for at in range(count)]
    names: list[str] = []
    for section in sections:
        if section[1] != 2:  # SHT_SYMTAB
            continue
        texts = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, _, _, defined_in = struct.unpack_from("<IBBH", code, at)
            if name and not defined_in:
                names.append(code[texts + name : code.index(b"\0", texts + name)].decode())
    return [name for name in names if name != "_GLOBAL_OFFSET_TABLE_"]
