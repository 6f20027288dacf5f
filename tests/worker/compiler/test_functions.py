"""The transcendental functions as machine code: how exact they are, and that their definition alone sets every bit."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.dawn import needs_dawn, refusal
from support.vector_functions import TARGETS, Compiled, object_code, undefined_symbols, without_avx512

from wire.ir.arithmetic import NATIVE_ARITHMETIC
from worker.compiler.functions import FUNCTIONS
from worker.native.llvm import Processor, this_processor
from worker.wgsl.function_texts import definition
from worker.wgsl.polyfills import closure

pytestmark = pytest.mark.skipif(not this_processor().has_fma, reason="the native engine needs fma")

GOLDEN = Path(__file__).parents[2] / "golden"
HASHES = GOLDEN / "function_hashes.json"
NUMPY: dict[str, type[Any]] = {"f32": np.float32, "f64": np.float64}
CASES = [(name, dtype) for name in FUNCTIONS for dtype in NUMPY]
TWO_OPERANDS = {"pow", "atan2"}
LONG_DOUBLE = np.finfo(np.longdouble).nmant >= 63  # x87's; where it is f64, only the table is left
# The largest error in units in the last place.  Every seventh f32 of the functions of one operand was tried, every
# thirteenth of exp, sin and cos, and three million values of the others.
ULP_MAX = dict.fromkeys(CASES, 0.9) | {
    ("sin", "f32"): 1.5, ("sin", "f64"): 1.5, ("cos", "f32"): 1.5, ("cos", "f64"): 1.5, ("tan", "f32"): 1.2,
    ("tan", "f64"): 1.2, ("tanh", "f32"): 1.0, ("tanh", "f64"): 1.0, ("erf", "f32"): 1.0, ("erf", "f64"): 1.1,
    ("expm1", "f64"): 1.1, ("pow", "f32"): 0.501,
}  # fmt: skip
# The interval in which a function is neither constant nor infinite, for f32.
INTERVALS = {
    "exp": (-104.0, 89.0), "exp2": (-150.0, 128.0), "expm1": (-18.0, 89.0), "log": (0.0, 4.0), "log2": (0.0, 4.0),
    "log1p": (-1.0, 4.0), "sin": (-100.0, 100.0), "cos": (-100.0, 100.0), "tan": (-100.0, 100.0), "tanh": (-9.5, 9.5),
    "erf": (-4.0, 4.0), "pow": (0.0, 3.0), "atan2": (-3.0, 3.0),
}  # fmt: skip
SPECIAL = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 1e10, 2.0**53 + 2.0, 1e-30, math.inf, math.nan)


def operands_of(name: str) -> int:
    return 2 if name in TWO_OPERANDS else 1


def compiled(name: str, dtype: str, lanes: int, processor: Processor | None = None) -> Compiled:
    return Compiled(FUNCTIONS[name], [dtype] * operands_of(name), dtype, lanes, processor)


def special(dtype: str) -> NDArray[Any]:
    found = np.finfo(NUMPY[dtype])
    values = [*SPECIAL, found.max, found.tiny, found.smallest_subnormal, 1.0 + found.eps, 1.0 - found.epsneg]
    return np.array([*values, *(-value for value in values)], NUMPY[dtype])


def samples(name: str, dtype: str, count: int, seed: int) -> list[NDArray[Any]]:
    """A third of any bits, a third evenly within the function's interval, a third small; then every special value.

    The bits are those of a generator that numpy promises not to change, and of single operations on them.
    """
    raw = np.random.PCG64(seed).random_raw(4 * count).reshape(4, count)
    kind = NUMPY[dtype]
    low, high = INTERVALS[name]
    unit = (raw[1] >> np.uint64(11)).astype(np.float64) * 2.0**-53
    small = np.ldexp(unit - 0.5, -(raw[2] % np.uint64(30)).astype(np.int32))
    any_bits = (raw[0] >> np.uint64(32)).astype(np.uint32).view(kind) if dtype == "f32" else raw[0].view(kind)
    first = np.concatenate([any_bits, (low + (high - low) * unit).astype(kind), small.astype(kind)])
    if name not in TWO_OPERANDS:
        return [np.concatenate([first, special(dtype)])]
    other = np.ldexp(
        (raw[3] >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 0.5, (raw[2] % np.uint64(12)).astype(int)
    )
    second = np.concatenate([np.roll(any_bits, 1), other.astype(kind), other.astype(kind)])
    crossed = np.meshgrid(special(dtype), special(dtype))
    return [np.concatenate([one, edge.ravel()]) for one, edge in zip((first, second), crossed, strict=True)]


def ulps(got: NDArray[Any], want: NDArray[Any], rest: NDArray[Any] | float = 0.0) -> NDArray[np.float64]:
    """How far results are from want + rest, in units of the result's last place there; infinite where one is NaN or
    infinite and the other is not, or where a zero has the wrong sign."""
    found = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(np.abs(want))[1] - 1, found.minexp)
        unit = np.ldexp(want.dtype.type(1.0), exponent - found.nmant)
        error = np.abs((got.astype(want.dtype) - want) - rest) / unit
        rounded = want.astype(got.dtype)
    same = (np.isnan(got) & np.isnan(rounded)) | (np.isinf(got) & (got == rounded))
    broken = ~np.isfinite(got) | ~np.isfinite(rounded)
    signs = (got == 0) & (want == 0) & (np.signbit(got) != np.signbit(want))
    return np.where(same, 0.0, np.where(broken | signs, math.inf, error)).astype(np.float64)


REFERENCES: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan")},
    "tanh": np.tanh, "pow": np.power, "atan2": np.arctan2, "erf": np.vectorize(math.erf, otypes=[np.float64]),
}  # fmt: skip


def worst(name: str, dtype: str, operands: Sequence[NDArray[Any]]) -> tuple[float, list[float]]:
    """The largest error against numpy in a wider float, and where it is."""
    wider = np.float64 if dtype == "f32" else np.longdouble
    with np.errstate(all="ignore"):
        wide = [operand.astype(wider) for operand in operands]
        want = REFERENCES[name](*wide)
    errors = ulps(compiled(name, dtype, 8)(*operands), want)
    at = int(np.argmax(errors))
    return float(errors[at]), [float(operand[at]) for operand in operands]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_results_are_near_the_exact_ones(name: str, dtype: str) -> None:
    if dtype == "f64" and (not LONG_DOUBLE or name == "erf"):
        pytest.skip("there is no wider float")
    error, where = worst(name, dtype, samples(name, dtype, 20_000, seed=1))
    assert error <= ULP_MAX[name, dtype], f"{name}{tuple(where)} is {error} units off"


@needs_dawn
def test_the_example_of_the_docs_is_a_function_of_both_printers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "native.md").read_text()
    (example,) = re.findall(r"```python\n(def logistic.*?)```", page, re.DOTALL)
    (tmp_path / "example_of_the_docs.py").write_text(f"from worker.compiler.functions import *\n\n\n{example}")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("example_of_the_docs")
    logistic = FUNCTIONS.pop("logistic")
    x = np.linspace(-80, 80, 1001, dtype=np.float32)
    right = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(Compiled(logistic, ["f32"], "f32", 8)(x), right, rtol=3e-7)
    text = definition("gm_logistic", logistic)
    main = "@group(0) @binding(0) var<storage, read_write> x: array<f32>;\n@compute @workgroup_size(1)\n"
    main += "fn main() { x[0] = gm_logistic(x[0]); }"
    assert "return" in text and not refusal("\n".join([closure(text), text, main]))


@pytest.mark.long
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_millions_of_results_are_near_the_exact_ones(name: str, dtype: str) -> None:
    if dtype == "f64" and (not LONG_DOUBLE or name == "erf"):
        pytest.skip("there is no wider float")
    error, where = worst(name, dtype, samples(name, dtype, 1_000_000, seed=2))
    assert error <= ULP_MAX[name, dtype], f"{name}{tuple(where)} is {error} units off"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_f64_results_are_near_those_of_mpmath(name: str) -> None:
    with np.load(GOLDEN / "functions.npz") as table:
        operands = [table[f"{name}.{place}"] for place in range(operands_of(name))]
        value, rest = table[f"{name}.value"], table[f"{name}.rest"]
    assert value.size > 200
    errors = ulps(compiled(name, "f64", 4)(*operands), value, rest)
    at = int(np.argmax(errors))
    where = tuple(float(operand[at]) for operand in operands)
    assert errors[at] <= ULP_MAX[name, "f64"], f"{name}{where} is {errors[at]} units off"


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_special_values_are_those_of_c99(name: str, dtype: str) -> None:
    """NaN, infinities, zeros and ones are where the C library has them."""
    operands = samples(name, dtype, 0, seed=1)
    if name == "pow":  # what lies beside 1 is rounded to 1 or not, and the C library rounds as it likes
        exact = np.all([(np.abs(each) == 1) | ~(np.abs(np.abs(each) - 1) < 1e-6) for each in operands], axis=0)
        operands = [each[exact] for each in operands]
    wider = np.float64 if dtype == "f32" or name == "erf" else np.longdouble
    with np.errstate(all="ignore"):
        want = REFERENCES[name](*(operand.astype(wider) for operand in operands)).astype(NUMPY[dtype])
    got = compiled(name, dtype, 4)(*operands)
    for same in (np.isnan, np.isposinf, np.isneginf, lambda x: x == 0, np.signbit, lambda x: np.abs(x) == 1):
        wrong = (same(got) != same(want)) & ~(np.isnan(got) & np.isnan(want))
        assert not wrong.any(), [(*(float(one[at]) for one in operands), got[at]) for at in np.flatnonzero(wrong)]
    nan = np.array(math.nan, NUMPY[dtype]).tobytes()
    assert all(value.tobytes() == nan for value in got[np.isnan(got)])


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_neither_width_nor_processor_changes_a_bit(name: str, dtype: str) -> None:
    operands = samples(name, dtype, 3_000, seed=3)
    expected = compiled(name, dtype, 1)(*operands).tobytes()
    for lanes in (4, 8, 16):
        assert compiled(name, dtype, lanes)(*operands).tobytes() == expected, lanes
    other = without_avx512(this_processor())
    for lanes in (1, 8):
        assert compiled(name, dtype, lanes, other)(*operands).tobytes() == expected, (other.features, lanes)


@pytest.mark.parametrize("dtype", NUMPY)
def test_one_large_angle_changes_no_other(dtype: str) -> None:
    """Large angles take a branch, and lanes beside them must not notice."""
    angles = samples("sin", dtype, 1_000, seed=4)[0]
    angles = angles[np.abs(angles) < 1000.0]
    beside = np.stack([angles, np.full_like(angles, 1e30)], axis=1).ravel()
    for name in ("sin", "cos", "tan"):
        function = compiled(name, dtype, 8)
        assert function(beside)[::2].tobytes() == function(angles).tobytes()


def test_the_definition_has_not_changed() -> None:
    """The arithmetic of this name promises these bits.  A change of them is another one, with another name."""
    assert hashes() == json.loads(HASHES.read_text())


def hashes() -> dict[str, str]:
    return {"arithmetic": NATIVE_ARITHMETIC} | {
        f"{name} {dtype}": hashlib.sha256(
            compiled(name, dtype, 8)(*samples(name, dtype, 4_000, seed=5)).tobytes()
        ).hexdigest()[:32]
        for name, dtype in CASES
    }


@pytest.mark.parametrize("processor", TARGETS, ids=lambda processor: processor.triple.partition("-")[0])
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_nothing_is_called(name: str, dtype: str, processor: Processor) -> None:
    code = object_code(FUNCTIONS[name], [dtype] * operands_of(name), dtype, 4, processor)
    assert undefined_symbols(code) == []


def test_calls_are_found() -> None:
    """The check above can fail: `pow` of LLVM is a call of the library's."""
    body = lambda v, x: v.intrinsic("pow", x, x)  # noqa: E731
    assert undefined_symbols(object_code(body, ["f64"], "f64", 1, TARGETS[1])) == ["pow"]


if __name__ == "__main__":  # python tests/worker/compiler/test_functions.py, with tests on the path: a new definition
    HASHES.write_text(json.dumps(hashes(), indent=1) + "\n")
