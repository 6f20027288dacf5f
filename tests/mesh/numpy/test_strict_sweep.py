"""mesh.numpy against array-api-strict on random inputs: values, dtypes, shapes, kinds of results, and signatures.

The calls are in tests/support/cases/strict_cases.py.  What differs on purpose is in `docs/tools/array_api_page.py`, and
named here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from support.cases.array_api_cases import Call
from support.cases.strict_cases import COMPLEX, FAMILIES, FLOATS, INTEGERS

import mesh.numpy as mnp
from docs.tools.array_api_page import STANDARD

NARROWER = {"int64": "int32", "uint64": "uint32"}
INDICES = ("argmax", "argmin", "argsort", "count_nonzero", "nonzero", "searchsorted", "linalg.matrix_rank")
SUMS = ("sum", "prod", "cumulative_sum", "cumulative_prod", "linalg.trace")
NOT_UNIQUE = (
    "linalg.svd",
    "linalg.qr",
    "linalg.eigh",
)  # but for a phase; other tests have their products
# Roundings: of one function of a number; of complex ones, whose judge composes them; of sums; of decompositions.
FEW, COMPOSED, SUMMED, DECOMPOSED = 8, 100, 500, 3000
SCALED = {"elementwise": FEW, "creation": 16, "reducing": SUMMED, "manipulation": 0, "linalg": SUMMED, "fft": SUMMED}
KINDS = (
    *(None, "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric"),
    ("bool", "numeric"),
)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, on which the strict namespace stands


@pytest.fixture(autouse=True)
def _of_the_version() -> Iterator[None]:
    """The strict namespace of the version of the standard that mesh.numpy says it is of."""
    with strict.ArrayAPIStrictFlags(api_version=mnp.__array_api_version__), np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_gives_what_the_strict_namespace_gives(family: str) -> None:
    """A third of the calls of every function in every dtype, other ones from dtype to dtype."""
    of_kind: dict[tuple[str, frozenset[str]], list[Call]] = {}
    for call in FAMILIES[family]():
        dtypes = frozenset(str(each.dtype) for each in call.args if isinstance(each, np.ndarray))
        of_kind.setdefault((call.name, dtypes), []).append(call)
    check(family, [call for place, each in enumerate(of_kind.values()) for call in each[place % 3 :: 3] or each])


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_every_call_gives_what_the_strict_namespace_gives(family: str) -> None:
    check(family, FAMILIES[family]())


def check(family: str, chosen: Iterable[Call]) -> None:
    wrong, calls = [], 0
    for call in chosen:
        expected = call.made_by(strict, strict.asarray)
        calls += 1
        try:
            _agree(call, expected, call.made_by(mnp, mnp.asarray), _roundings(family, call))
        except Exception as error:  # of which there may be many: all are told
            wrong.append(f"{call.id}: {type(error).__name__} {error}")
    assert not wrong, f"{len(wrong)} of {calls} calls:\n" + "\n".join(wrong[:30])


def _roundings(family: str, call: Call) -> int:
    if family == "linalg" and call.name not in ("matmul", "tensordot", "vecdot"):
        return DECOMPOSED
    of_complex = any(np.asarray(each).dtype.kind == "c" for each in call.args if not isinstance(each, (list, str)))
    return COMPOSED if family == "elementwise" and of_complex else SCALED[family]


def _agree(call: Call, expected: Any, found: Any, roundings: int, place: int = 0) -> None:
    """AssertionError unless it is the same kind of result, of the same shapes, dtypes and values."""
    if isinstance(expected, (tuple, list)):
        named = getattr(expected, "_fields", None)
        assert named == getattr(found, "_fields", None)
        assert named or type(found) is type(expected), f"{type(found).__name__}, not {type(expected).__name__}"
        for at, (one, other) in enumerate(zip(expected, found, strict=True)):
            _agree(call, one, other, roundings, at)
        return
    if not hasattr(expected, "shape"):
        assert (type(found), found) == (type(expected), expected)
        return
    wanted, value = np.asarray(getattr(expected, "_array", expected)), np.asarray(found)
    assert value.shape == wanted.shape == found.shape
    assert value.dtype == _dtype(call, wanted.dtype, place), f"{value.dtype}, not {wanted.dtype}"
    wanted = wanted.astype(value.dtype)
    if value.dtype.kind in "iub":
        np.testing.assert_array_equal(value, wanted)
    elif call.name not in NOT_UNIQUE:
        _close(value, wanted, roundings)


def _dtype(call: Call, dtype: np.dtype[Any], place: int) -> np.dtype[Any]:
    """The strict namespace's, but that the default dtypes are of 32 bits here."""
    given = {each.dtype.name for each in call.args if isinstance(each, np.ndarray)} | {call.kwargs.get("dtype")}
    narrow = call.name in INDICES or (call.name.startswith("unique") and place > 0)
    narrow = narrow or (call.name in SUMS and dtype.name not in given)
    return np.dtype(NARROWER.get(dtype.name, dtype.name)) if narrow else dtype


def _close(value: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], roundings: int) -> None:
    """Each element within its own roundings, real zeros with their signs; sums within those of the largest."""
    eps, tiny = np.finfo(value.dtype).eps, np.finfo(value.dtype).tiny
    size = np.abs(np.where(np.isfinite(wanted), wanted, 0))
    if roundings >= SUMMED:
        np.testing.assert_allclose(value, wanted, 0, float(size.max(initial=tiny)) * eps * roundings)
        return
    allowed = size * eps * roundings + (tiny if roundings else 0)
    signed = value.dtype.kind == "f"  # what signs parts of complex numbers have that are 0, the standard leaves open
    if not signed:  # a part may be the difference of what is as large as the number
        value, wanted = (np.stack([each.real, each.imag]) for each in (value, wanted))
    with np.errstate(all="ignore"):
        same = (value == wanted) | (np.isnan(value) & np.isnan(wanted)) | (np.abs(value - wanted) <= allowed)
    assert same.all(), f"{value[~same][:3]}, not {wanted[~same][:3]}"
    zeros = (value == 0) & (wanted == 0) & signed
    assert (np.signbit(value[zeros]) == np.signbit(wanted[zeros])).all(), "a zero of the other sign"


# -- what is told of the namespace ------------------------------------------------------------------------


def _functions() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    names = [name for section, names in STANDARD.items() if section != "Constants" for name in names.split()]
    found = {name: (attrgetter(name)(strict), attrgetter(name)(mnp)) for name in names}
    return {name: both for name, both in found.items() if all(map(inspect.isfunction, both))}


def test_every_call_that_the_standard_allows_binds() -> None:
    functions = _functions()
    assert len(functions) > 160
    for name, (theirs, ours) in functions.items():
        own = inspect.signature(ours).parameters
        several = any(each.kind is each.VAR_POSITIONAL for each in own.values())
        by_place = [each for each in own.values() if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        for place, each in enumerate(inspect.signature(theirs).parameters.values()):
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
                assert several or place < len(by_place), f"{name}: {each.name} by place"
            if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD):
                assert own[each.name].kind is not inspect.Parameter.POSITIONAL_ONLY, f"{name}: {each.name} by name"
                told = each.default if isinstance(each.default, (int, float, str, tuple)) else own[each.name].default
                unset = type(each.default).__name__ == "Undef"
                assert unset or own[each.name].default == told, f"{name}: the default of {each.name}"


def test_the_namespace_tells_of_its_dtypes_what_the_strict_one_does() -> None:
    theirs, ours = strict.__array_namespace_info__(), mnp.__array_namespace_info__()
    for kind in KINDS:
        assert ours.dtypes(kind=kind).keys() == theirs.dtypes(kind=kind).keys(), kind
    assert ours.capabilities().keys() == theirs.capabilities().keys()
    assert ours.default_dtypes().keys() == theirs.default_dtypes().keys()
    for names, info, fields in (
        ((*FLOATS, *COMPLEX), "finfo", ("bits", "eps", "max", "min", "smallest_normal")),
        (INTEGERS, "iinfo", ("bits", "max", "min")),
    ):
        for name in names:
            one, other = (getattr(xp, info)(getattr(xp, name)) for xp in (strict, mnp))
            for field in fields:
                wanted, found = getattr(one, field), getattr(other, field)
                assert (type(found), found) == (type(wanted), wanted), (name, field)
