"""The Array API standard as markdown, with the state of each of its names here: `python -m docs.tools.array_api_page >
docs/array-api.md`.

`STANDARD` is the list of the standard (2024.12).  What is there is looked up in `mesh.numpy`; `REALISED` and
`DIFFERENCES` say what a caller should know of it, and tests hold them true.  When a name is added to the namespace the
page changes by itself; a new version of the standard is new names in `STANDARD`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from mesh import numpy as namespace
from mesh.core.array import Array

STANDARD: dict[str, str] = {
    "Constants": "e inf nan newaxis pi",
    "Creation": """arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones ones_like tril
        triu zeros zeros_like""",
    "Data types": """bool complex128 complex64 float32 float64 int16 int32 int64 int8 uint16 uint32 uint64 uint8 astype
        can_cast finfo iinfo isdtype result_type""",
    "Elementwise": """abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_invert bitwise_left_shift
        bitwise_or bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1 floor
        floor_divide greater greater_equal hypot imag isfinite isinf isnan less less_equal log log10 log1p log2
        logaddexp logical_and logical_not logical_or logical_xor maximum minimum multiply negative nextafter not_equal
        positive pow real reciprocal remainder round sign signbit sin sinh sqrt square subtract tan tanh trunc""",
    "Indexing": "take take_along_axis",
    "Inspection": "__array_namespace_info__",
    "Linear algebra": "matmul matrix_transpose tensordot vecdot",
    "Manipulation": """broadcast_arrays broadcast_to concat expand_dims flip moveaxis permute_dims repeat reshape roll
        squeeze stack tile unstack""",
    "Searching": "argmax argmin count_nonzero nonzero searchsorted where",
    "Sets": "unique_all unique_counts unique_inverse unique_values",
    "Sorting": "argsort sort",
    "Statistics": "cumulative_prod cumulative_sum max mean min prod std sum var",
    "Utilities": "all any diff",
    "Extension: linalg": """linalg.cholesky linalg.cross linalg.det linalg.diagonal linalg.eigh linalg.eigvalsh
        linalg.inv linalg.matmul linalg.matrix_norm linalg.matrix_power linalg.matrix_rank linalg.matrix_transpose
        linalg.outer linalg.pinv linalg.qr linalg.slogdet linalg.solve linalg.svd linalg.svdvals linalg.tensordot
        linalg.trace linalg.vecdot linalg.vector_norm""",
    "Extension: fft": """fft.fft fft.fftfreq fft.fftn fft.fftshift fft.hfft fft.ifft fft.ifftn fft.ifftshift fft.ihfft
        fft.irfft fft.irfftn fft.rfft fft.rfftfreq fft.rfftn""",
}
ATTRIBUTES = "T device dtype mT ndim shape size"
METHODS = """__abs__ __add__ __and__ __array_namespace__ __bool__ __complex__ __dlpack__ __dlpack_device__ __eq__
    __float__ __floordiv__ __ge__ __getitem__ __gt__ __index__ __int__ __invert__ __le__ __lshift__ __lt__ __matmul__
    __mod__ __mul__ __ne__ __neg__ __or__ __pos__ __pow__ __rshift__ __setitem__ __sub__ __truediv__ __xor__
    to_device"""
BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"  # each reflected and in place too

WORKS, REALISED_ONLY, NOT_YET = "works", "realised only", "not yet"
REALISED = frozenset({"nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"})
"""What has a shape that depends on values: it needs them, so it does not work while a function is traced."""

ON_CPU = frozenset(
    f"linalg.{name}"
    for name in ("cholesky", "det", "eigh", "eigvalsh", "inv", "matrix_rank", "pinv", "qr", "slogdet", "solve", "svd",
                 "svdvals")
) | frozenset(
    name
    for name in ("complex64", "complex128", "conj", "imag", "real", *STANDARD["Extension: fft"].split())
    if not name.endswith(("freq", "shift"))
)  # fmt: skip
"""What runs on cpu workers only: WGSL has no matrix decompositions and no complex numbers."""

DIFFERENCES: dict[str, str] = {
    "argmax": "indices are int32",
    "argmin": "indices are int32",
    "argsort": "always stable; NaN last, first where descending; indices are int32",
    "sort": "always stable; NaN last, first where descending",
    "count_nonzero": "counts are int32",
    "nonzero": "indices are int32",
    "searchsorted": "indices are int32; NaN sorts last",
    "unique_all": "in order; indices and counts are int32",
    "unique_counts": "in order; counts are int32",
    "unique_inverse": "in order; indices are int32",
    "unique_values": "in order",
    "arange": "int32 or float32 by default",
    "linspace": "float32 by default",
    "asarray": "Python numbers and lists become bool, int32 (or int64, uint64 where needed), float32 or complex64",
    "astype": "from complex to real raises: take `real`, `imag` or `abs`",
    "conj": "of real arrays too",
    "imag": "of real arrays zeros",
    "real": "of real arrays too",
    "std": "of complex arrays too",
    "var": "of complex arrays too",
    "finfo": "of a complex dtype that of its parts",
    **dict.fromkeys(
        ("fft.fft", "fft.ifft", "fft.fftn", "fft.ifftn", "fft.hfft", "fft.irfft", "fft.irfftn"),
        "of real arrays too; complex64, of 64-bit input complex128",
    ),
    "fft.fftfreq": "float32 by default",
    "fft.rfftfreq": "float32 by default",
    "empty": "filled with 0",
    "empty_like": "filled with 0",
    "from_dlpack": "memory that other code could still change is copied, unless copy=False",
    "sum": "of bool and narrow integers in int32 or uint32",
    "prod": "of bool and narrow integers in int32 or uint32",
    "cumulative_sum": "of bool and narrow integers in int32 or uint32",
    "cumulative_prod": "of bool and narrow integers in int32 or uint32",
    "repeat": "counts per element must be known while tracing",
    "floor_divide": "an integer divided by 0 is 0",
    "remainder": "an integer remainder by 0 is 0",
    "pow": "integers to a negative number are refused; to a negative element they are 0, but for the bases 1 and -1",
    "bitwise_left_shift": "by the width or more (or a negative count): 0",
    "bitwise_right_shift": "by the width or more (or a negative count): 0, or -1 of a negative number",
    "result_type": "an integer with a float takes the float's dtype",
    "can_cast": "from a bool to any dtype, and from an integer to any float",
    "take": "computed indices outside are clamped; known ones raise",
    "take_along_axis": "computed indices outside are clamped; known ones raise",
    "linalg.cholesky": "of the Hermitian part; NaN where it is not positive definite",
    "linalg.eigh": "of the Hermitian part",
    "linalg.eigvalsh": "of the Hermitian part",
    "linalg.inv": "NaN where a matrix is singular",
    "linalg.solve": "NaN where a matrix is singular",
    "linalg.matrix_norm": "2, -2 and 'nuc' on cpu workers only",
    "linalg.matrix_power": "negative powers on cpu workers only",
    "linalg.matrix_rank": "ranks are int32",
    "__getitem__": "masks need their values; computed indices outside are clamped; parts are no views",
    "__setitem__": "no other array changes; a mask need not be known where every place gets the same; "
    "computed indices outside change nothing",
    "device": "always `mesh`: the planner decides where a graph runs",
    "to_device": "to `mesh` only",
    "__dlpack__": "read only where the other side knows of that (DLPack 1.0), else a copy",
    "__dlpack_device__": "the cpu: values come to this process",
}
HEAD = """\
# The Array API standard

`mesh.numpy` is a namespace of the [Python Array API standard](https://data-apis.org/array-api/2024.12/), version
2024.12. This page lists every name of it with its state, generated from the namespace by
`python -m docs.tools.array_api_page > docs/array-api.md`.

* **works**: with values and while a function is traced, on every engine that has the dtype: the cpu engine has all,
  WGSL has float32, int32, uint32, bool, and float16 where the device does; complex numbers are on cpu workers.
* **realised only**: the result's shape depends on values, so they must be known: not while a function is traced.
* **cpu only**: the planner gives it to cpu workers.
* **not yet**: it is not there.

`tests/mesh/numpy/test_array_api.py` makes some 3,900 calls as the standard writes them and compares values, dtypes,
shapes and refusals with numpy's namespace, and with `array-api-strict` where that is installed.
`tests/mesh/numpy/test_strict_sweep.py` makes some 31,000 calls on random inputs, special values and Python scalars, and
compares values, dtypes, shapes, kinds of results and signatures with `array-api-strict`.

What holds for all of it:

* Default dtypes are float32, int32 and complex64; indices and counts are int32. An integer array with a float array
  takes the float's dtype (the standard leaves that open). Beside the standard's dtypes there are float16 and bfloat16.
* A Python number takes the dtype of the array it meets, at full precision: `x * 0.1` with a float64 `x` multiplies by
  0.1, and so does a traced function that is called with 0.1. So do functions of Python numbers alone (`mnp.sqrt(0.1)`,
  `mnp.where(mask, 0.1, 0.2)`), which are float32 where they meet no array. A list beside an array has its default
  dtype when the dtype of the result is chosen, but its numbers keep their 64 bits in a float64 result. An integer that
  a dtype cannot hold raises.
* Arrays are lazy: a function gives an array with a shape and a dtype at once, and its values when code reads them.
  Wrong shapes and dtypes raise at the call.
* There are no views: a part of an array is an array of its own. `x[key] = v` and `x += y` give the name `x`, which is
  one Python object with every variable that holds it, to a new expression; what was made of the old one stays. An
  operator in place keeps shape and dtype, and raises where it cannot.
* A function that is traced cannot change an array that was made outside of it: that would happen once, at tracing, and
  not at each call.
"""


def state_of(name: str) -> str:
    """The state of a name of the standard here."""
    found: object = namespace
    for part in name.split("."):
        found = getattr(found, part, None) if part != "newaxis" else namespace
    if found is None:
        return NOT_YET
    return REALISED_ONLY if name in REALISED else "cpu only" if name in ON_CPU else WORKS


def markdown() -> str:
    """The whole of docs/array-api.md."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for title, names in STANDARD.items():
        yield from _table(title, [(name, state_of(name)) for name in names.split()])
    yield from _table("Attributes of arrays", [(name, _member(name)) for name in ATTRIBUTES.split()])
    yield from _table("Methods of arrays", [(name, _member(name)) for name in METHODS.split()])
    forms = [f"__{form}{name}__" for name in BINARY.split() for form in ("r", "i")]
    yield from _table("Reflected and in-place operators", [(name, _member(name)) for name in forms])


def _member(name: str) -> str:
    return WORKS if hasattr(Array, name) else NOT_YET


def _table(title: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    yield f"## {title}\n\n| Name | State | To know |\n|---|---|---|"
    for name, state in rows:
        yield f"| `{name}` | {state} | {DIFFERENCES.get(name, '')} |".replace("|  |", "| |")
    yield ""


if __name__ == "__main__":
    sys.stdout.write(markdown())
