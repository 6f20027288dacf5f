"""mesh.numpy as a namespace of the Array API standard, function by function, against other namespaces of it.

numpy's own namespace is the judge; where the package array-api-strict is installed, it is a second one, which also
refuses what the standard does not define.  Every call is made on arrays with values and on traced ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.cases import array_api_cases, array_api_matrices
from support.cases.array_api_cases import COMPLEX, EVERY, Call
from support.cases.array_api_judge import arrays_of, as_function, check_agreement, is_traced, judged_by_numpy

import mesh
import mesh.numpy as mnp
from docs.tools.array_api_page import ATTRIBUTES, METHODS, NOT_YET, REALISED, STANDARD, markdown, state_of
from mesh.core.array import Array
from mesh.errors import DTypeError, MeshError

EVERY_NAME = [name for names in STANDARD.values() for name in names.split()]
CASES = (*array_api_cases.CASES, *array_api_matrices.CASES)
WRONG = (*array_api_cases.WRONG, *array_api_matrices.WRONG)
NAMES = sorted({call.name for call in CASES})
REFUSALS = (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError)
ORDERED = ("greater", "greater_equal", "less", "less_equal", "maximum", "minimum", "sort", "argsort", "max", "min",
           "argmax", "argmin", "searchsorted", "clip")  # fmt: skip


def test_the_page_about_the_standard_is_generated_from_the_namespace() -> None:
    stored = Path(__file__).parents[3] / "docs" / "array-api.md"
    assert stored.read_text() == markdown(), "run: python -m docs.tools.array_api_page > docs/array-api.md"


def test_every_function_that_is_said_to_work_is_called_here() -> None:
    elsewhere = {"e", "inf", "nan", "newaxis", "pi", "bool", "can_cast", "finfo", "iinfo", "isdtype", "result_type"}
    elsewhere |= {"unique_values", "__array_namespace_info__"}  # numpy's order is another
    there = {name for name in EVERY_NAME if state_of(name) != NOT_YET and "fft." not in name}
    assert there - elsewhere - _dtypes() == {*NAMES} - BEYOND
    assert all(hasattr(Array, name) for name in (*ATTRIBUTES.split(), *METHODS.split()))


BEYOND = {"isin"}  # of the next version


def _dtypes() -> set[str]:
    return {
        name for name in EVERY_NAME if isinstance(getattr(mnp, name, None), type) and name not in ("finfo", "iinfo")
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_function_gives_what_numpys_namespace_gives(name: str) -> None:
    for call in (each for each in CASES if each.name == name):
        check_agreement(call, call.made_by(mnp, mnp.asarray), judged_by_numpy(call))


@pytest.mark.parametrize("name", NAMES)
def test_a_function_is_traced_unless_its_shape_depends_on_values(name: str) -> None:
    calls = [each for each in CASES if each.name == name and arrays_of(each.args)]
    for call in calls[:: max(len(calls) // 6, 1)]:
        if call.name in REALISED:
            with pytest.raises(MeshError, match="has none while its function is traced"):
                mesh.evaluate(*as_function(call))
        elif is_traced(call):
            check_agreement(call, mesh.evaluate(*as_function(call)), judged_by_numpy(call))


@pytest.mark.parametrize("call", WRONG, ids=lambda call: call.id)
def test_what_numpy_refuses_is_refused(call: Call) -> None:
    with np.errstate(all="ignore"), pytest.raises(REFUSALS):
        call.made_by(np, lambda array: array)
    with pytest.raises((MeshError, TypeError, ValueError)):
        call.made_by(mnp, mnp.asarray)


@pytest.mark.parametrize("name", ORDERED)
def test_complex_numbers_are_not_ordered(name: str) -> None:
    z = mnp.asarray([1j, 2.0])
    two = name in ORDERED[:6] or name == "searchsorted"
    with pytest.raises(DTypeError, match="a real number"):
        getattr(mnp, name)(*[z] * (2 if two else 1), **({"min": 0} if name == "clip" else {}))


def test_dtypes_promote_as_in_the_strict_namespace() -> None:
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    for one in (*EVERY, *COMPLEX):
        for other in (*EVERY, *COMPLEX):
            theirs, mine = ([getattr(xp, name) for name in (one, other)] for xp in (strict, mnp))
            try:
                expected = strict.result_type(*theirs)
            except TypeError:  # of kinds that the standard does not mix
                continue
            assert getattr(strict, mnp.result_type(*mine).name) == expected, (one, other)
            assert mnp.can_cast(*mine) == strict.can_cast(*theirs), (one, other)
        for kind in (
            "bool",
            "signed integer",
            "unsigned integer",
            "integral",
            "real floating",
            "complex floating",
            "numeric",
        ):
            assert mnp.isdtype(getattr(mnp, one), kind) == strict.isdtype(getattr(strict, one), kind), (one, kind)


@pytest.mark.parametrize("name", NAMES)
def test_a_function_gives_what_the_strict_namespace_gives(name: str) -> None:
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    for call in (each for each in CASES if each.name == name):
        if (name == "isin" and call.args[0].dtype.kind not in "iu") or (name == "clip" and "uint8" in call.id):
            continue  # not in that version; bounds that cross
        with np.errstate(all="ignore"):
            judged = call.made_by(strict, strict.asarray)
        found = call.made_by(mnp, mnp.asarray)
        assert isinstance(found, (Array, tuple, list))
        check_agreement(
            call, found, tuple(map(np.asarray, judged)) if isinstance(judged, (tuple, list)) else np.asarray(judged)
        )
