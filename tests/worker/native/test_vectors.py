"""Operations of vectors against the cpu engine: casts between every two dtypes, and integers."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.vector_functions import TARGETS, Compiled, object_code, undefined_symbols, without_avx512

from wire.ir.dtypes import BY_NAME, DType
from wire.ir.types import TensorType
from worker.compiler.functions import Arithmetic
from worker.cpu.elementwise import ELEMENTWISE
from worker.native.llvm import I8, I64, Processor, this_processor
from worker.native.vectors import Vectors

pytestmark = pytest.mark.skipif(not this_processor().has_fma, reason="the native engine needs fma")

REAL = [name for name, dtype in BY_NAME.items() if dtype.kind != "c"]
INTEGERS = [name for name, dtype in BY_NAME.items() if dtype.kind in "iu"]
LANES = (1, 8)


def in_registers(v: Vectors, a: Any, dtype: str) -> Any:
    """What memory holds, as `Vectors.cast` takes it."""
    if dtype in ("f16", "bf16"):
        return v.from_f16(a) if dtype == "f16" else v.from_bf16(a)
    return v.int_compare("!=", a, v.like(a, 0)) if dtype == "bool" else a


def in_memory(v: Vectors, a: Any, dtype: str) -> Any:
    if dtype in ("f16", "bf16"):
        return v.to_f16(a) if dtype == "f16" else v.to_bf16(a)
    return v.resize(a, I8) if dtype == "bool" else a


def values_of(dtype: DType, seed: int = 7) -> NDArray[Any]:
    """Any bits, values near the limits of every integer and near ties of f16 and bf16, and special ones."""
    if dtype.kind == "b":
        return np.array([False, True, True, False, True])
    raw = np.random.default_rng(seed).integers(0, 256, 2000 * dtype.itemsize, dtype=np.uint8).view(dtype.numpy)
    edges = np.array([2.0**power + step for power in range(65) for step in (-1, 0, 1)])
    ties = np.float64(1.0) + np.arange(-40, 40) * 2.0**-12
    wide = np.concatenate([edges, *(ties * scale for scale in (1.0, 2.0**-14, 2.0**-126, 2.0**-133, 65504.0, 3.39e38))])
    wide = np.concatenate([wide, np.nextafter(wide, np.inf), np.nextafter(wide, -np.inf)])
    wide = np.concatenate([wide, -wide])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype.numpy)
        inside = wide[(wide > float(limits.min)) & (wide < float(limits.max))]
        return np.concatenate([raw, inside.astype(dtype.numpy), np.array([limits.min, limits.max], dtype.numpy)])
    with np.errstate(all="ignore"):
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
        return np.concatenate([raw, wide.astype(dtype.numpy), special.astype(dtype.numpy)])


def on_cpu(op: str, operands: list[NDArray[Any]], dtype: DType) -> NDArray[Any]:
    attrs = {"dtype": dtype.name} if op == "cast" else {}
    with np.errstate(all="ignore"):
        return ELEMENTWISE[op](attrs, operands, TensorType(operands[0].shape, dtype))


def differing(got: NDArray[Any], want: NDArray[Any], dtype: DType) -> NDArray[np.intp]:
    """Where the bits differ; one NaN is as good as another."""
    got = got.view(dtype.numpy)
    same = got.view(f"u{dtype.itemsize}") == want.view(f"u{dtype.itemsize}")
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            same |= np.isnan(got) & np.isnan(want)
    return np.flatnonzero(~same)


@pytest.mark.parametrize("target", REAL)
@pytest.mark.parametrize("source", REAL)
def test_casts_are_those_of_the_op_table(source: str, target: str) -> None:
    given, want_dtype = values_of(BY_NAME[source]), BY_NAME[target]
    want = on_cpu("cast", [given], want_dtype)

    def body(v: Vectors, a: Any) -> Any:
        return in_memory(v, v.cast(in_registers(v, a, source), source, target), target)

    for lanes, processor in ((1, this_processor()), (8, this_processor()), (8, without_avx512(this_processor()))):
        got = Compiled(body, [source], target, lanes, processor)(given.view(f"u{given.itemsize}"))
        wrong = differing(got, want, want_dtype)
        assert not wrong.size, [(given[at], got[at], want[at]) for at in wrong[:5]]


@pytest.mark.parametrize("processor", TARGETS, ids=lambda processor: processor.triple.partition("-")[0])
@pytest.mark.parametrize("source", REAL)
def test_no_cast_is_a_call(source: str, processor: Processor) -> None:
    def body(v: Vectors, a: Any) -> Any:
        together = v.constant(0, I64)
        for target in REAL:
            cast = in_memory(v, v.cast(in_registers(v, a, source), source, target), target)
            cast = v.bits(cast) if target in ("f32", "f64") else cast
            together = v.bit_xor(together, v.resize(cast, I64))
        return together

    assert undefined_symbols(object_code(body, [source], "i64", 8, processor)) == []


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_f64_is_rounded_once_when_it_is_stored(dtype: str) -> None:
    given = values_of(BY_NAME["f64"])
    got = Compiled(lambda v, a: in_memory(v, a, dtype), ["f64"], dtype, 8)(given)
    assert not differing(got, on_cpu("cast", [given], BY_NAME[dtype]), BY_NAME[dtype]).size


@pytest.mark.parametrize("op", ["div", "rem"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_divided_as_in_the_op_table(op: str, dtype: str) -> None:
    values, signed = values_of(BY_NAME[dtype]), dtype[0] == "i"
    limits = np.iinfo(values.dtype)
    edges = np.array([limits.min, limits.max, 0, 1, 7, *([-1, -7] if signed else [])], values.dtype)
    a, b = (np.ascontiguousarray(each.ravel()) for each in np.meshgrid(edges, edges))
    a, b = np.concatenate([a, values]), np.concatenate([b, values[::-1]])

    def body(v: Vectors, x: Any, y: Any) -> Any:
        return (v.int_div if op == "div" else v.int_rem)(x, y, signed)

    for lanes in LANES:
        got = Compiled(body, [dtype, dtype], dtype, lanes)(a, b)
        np.testing.assert_array_equal(got, on_cpu(op, [a, b], BY_NAME[dtype]))


@pytest.mark.parametrize("dtype", ["u32", "u64"])
def test_upper_halves_of_products(dtype: str) -> None:
    a = values_of(BY_NAME[dtype])
    b = a[::-1].copy()
    bits = 8 * a.itemsize
    want = [int(x) * int(y) >> bits for x, y in zip(a, b, strict=True)]
    for lanes in LANES:
        assert Compiled(lambda v, x, y: v.int_mul_high(x, y), [dtype, dtype], dtype, lanes)(a, b).tolist() == want


def test_vectors_are_an_arithmetic() -> None:
    for name, method in inspect.getmembers(Arithmetic, inspect.isfunction):
        if not name.startswith("_"):
            want = list(inspect.signature(method).parameters)
            assert list(inspect.signature(getattr(Vectors, name)).parameters)[: len(want)] == want, name
