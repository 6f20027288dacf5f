"""What calls of the Array API standard must give: numpy's own namespace says it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mesh.numpy as mnp
from docs.tools.array_api_page import REALISED

from .array_api_cases import Call

INDICES = {"argmax", "argmin", "argsort", "count_nonzero", "nonzero", "searchsorted", "linalg.matrix_rank"}
SUMS = {"sum", "prod", "cumulative_sum", "cumulative_prod", "linalg.trace"}
NARROWER = {"int64": "int32", "uint64": "uint32", "float64": "float32"}


def expected_dtype(call: Call, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The judge's dtype, but that the default dtypes are of 32 bits here."""
    given = {np.dtype(each.dtype).name for each in arrays_of(call.args)} | {str(call.kwargs.get("dtype"))}
    sums = call.name in SUMS and dtype.name not in given
    indices = call.name in INDICES or (call.name.startswith("unique") and dtype == np.int64 and dtype.name not in given)
    return np.dtype(NARROWER.get(dtype.name, dtype.name)) if sums or indices else dtype


def arrays_of(values: Any) -> list[np.ndarray[Any, Any]]:
    found = []
    for each in values:
        if isinstance(each, np.ndarray):
            found.append(each)
        elif isinstance(each, (list, tuple)):
            found.extend(arrays_of(each))
    return found


def check_agreement(call: Call, found: Any, judged: Any) -> None:
    if isinstance(judged, (tuple, list)):
        assert len(found) == len(judged)
        for place, (one, other) in enumerate(zip(found, judged, strict=True)):
            check_agreement(
                Call("indices", call.args) if place and call.name.startswith("unique") else call, one, other
            )
        return
    wanted = np.asarray(judged)
    assert found.shape == wanted.shape, call.id
    if call.name != "indices":
        assert found.dtype == expected_dtype(call, wanted.dtype), call.id
    value = np.asarray(found)
    rtol = {"float32": 2e-5, "float64": 1e-12, "complex64": 2e-5, "complex128": 1e-12}.get(value.dtype.name, 0)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(value, wanted.astype(value.dtype), rtol, rtol / 100, err_msg=call.id)


def judged_by_numpy(call: Call) -> Any:
    with np.errstate(all="ignore"):
        return call.made_by(np, lambda array: array)


def is_traced(call: Call) -> bool:
    """Whether the call can be part of a graph: it has arrays, and the shape of its result follows from theirs."""
    counts_are_values = call.name == "repeat" and len(arrays_of(call.args)) > 1
    return bool(arrays_of(call.args)) and call.name not in {*REALISED, "from_dlpack"} and not counts_are_values


def as_function(call: Call) -> tuple[Callable[..., Any], *tuple[NDArray[Any], ...]]:
    """A function that makes the call with mesh.numpy, and the arrays that it gets as arguments."""
    given = arrays_of(call.args) + arrays_of(call.kwargs.values())

    def function(*arrays: Any) -> Any:
        left = iter(arrays)
        return call.made_by(mnp, lambda _: next(left))

    return function, *given
