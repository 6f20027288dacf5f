"""ATen ops that solve and factor matrices (torch.linalg).

They are taken before torch takes them apart: what it makes of them checks for errors, which no graph can raise.  Where
torch raises for a singular matrix, there is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wire.errors import Unsupported

from ... import numpy as mnp
from ...core.array import Array, apply
from ...core.multi_output import several
from .call import Call

t = mnp.matrix_transpose


def _of(name: str, function: Callable[[Array], Any]) -> Callable[[Call], Any]:
    return lambda call: function(call.array(name))


def _adjoint(x: Array) -> Array:
    return t(mnp.conj(x))


def _cholesky(call: Call) -> Array:
    lower = apply("cholesky", _adjoint(call.x) if call.get("upper", False) else call.x)
    return _adjoint(lower) if call.get("upper", False) else lower


def _cholesky_solve(call: Call) -> Array:
    factor = call.array("input2")
    lower = _adjoint(factor) if call.get("upper", False) else factor
    return _with_factor(lower, call.x)


def _cholesky_inverse(call: Call) -> Array:
    lower = _adjoint(call.x) if call.get("upper", False) else call.x
    return _with_factor(lower, mnp.eye(lower.shape[-1], dtype=lower.dtype))


def _with_factor(lower: Array, b: Array) -> Array:
    """(L @ L^H)^-1 @ b."""
    half = mnp.linalg.solve_triangular(lower, b, lower=True)
    return mnp.linalg.solve_triangular(_adjoint(mnp.tril(lower)), half)


def _solve(call: Call) -> Array:
    """torch takes b for a batch of vectors where it has just their shape."""
    a, b = call.array("A"), call.array("B")
    if b.ndim == 1 or b.shape == a.shape[:-1]:
        return mnp.linalg.solve(a, b[..., None])[..., 0]
    return mnp.linalg.solve(a, b) if call.get("left", True) else t(mnp.linalg.solve(t(a), t(b)))


def _solve_triangular(call: Call) -> Array:
    upper, left = call["upper"], call.get("left", True)
    a, b = (call.x, call.array("B")) if left else (t(call.x), t(call.array("B")))
    lower = upper != left
    solution = mnp.linalg.solve_triangular(a, b, lower=lower, unit_diagonal=call.get("unitriangular", False))
    return solution if left else t(solution)


def _old_triangular_solve(call: Call) -> Sequence[Array]:
    turned = call.get("transpose", False)
    a = call.array("A")
    lower = call.get("upper", True) == turned
    unit = call.get("unitriangular", False)
    return [mnp.linalg.solve_triangular(t(a) if turned else a, call.x, lower=lower, unit_diagonal=unit), a]


def _qr(call: Call) -> Sequence[Array]:
    mode = call.get("mode", "reduced")
    q, r = several("qr", [call.array("A")], full=int(mode == "complete"))
    return [mnp.zeros((0,), dtype=r.dtype) if mode == "r" else q, r]


def _eigh(call: Call) -> Sequence[Array]:
    x = call.array("A" if call.name == "_linalg_eigh" else "self")
    return several("eigh", [_adjoint(x) if call.get("UPLO", "L") == "U" else x])


def _svd(call: Call) -> Sequence[Array]:
    return several("svd", [call.array("A")], full=int(call.get("full_matrices", call.name == "linalg_svd")))


def _pinv(call: Call) -> Array:
    if call.get("hermitian", False) or call.get("atol") is not None:
        raise Unsupported("linalg_pinv with hermitian or atol", next_step="Leave them out, or write it with mesh.numpy")
    return mnp.linalg.pinv(call.x, rtol=call.get("rcond", call.get("rtol")))


def _lu_factor(call: Call) -> Sequence[Array]:
    """torch counts rows from 1."""
    factors, swapped, _ = several("lu", [call.array("A")])
    return [factors, swapped + 1]


OPS: dict[str, Callable[[Call], Any]] = {
    "_linalg_eigh": _eigh,
    "_linalg_svd": _svd,
    "cholesky": _cholesky,
    "cholesky_inverse": _cholesky_inverse,
    "cholesky_solve": _cholesky_solve,
    "det": _of("self", mnp.linalg.det),
    "inverse": _of("self", mnp.linalg.inv),
    "linalg_cholesky": _cholesky,
    "linalg_det": _of("A", mnp.linalg.det),
    "linalg_eigh": _eigh,
    "linalg_eigvalsh": lambda call: _eigh(call)[0],
    "linalg_inv": _of("A", mnp.linalg.inv),
    "linalg_lu_factor": _lu_factor,
    "linalg_pinv": _pinv,
    "linalg_qr": _qr,
    "linalg_slogdet": _of("A", mnp.linalg.slogdet),
    "linalg_solve": _solve,
    "linalg_solve_triangular": _solve_triangular,
    "linalg_svd": _svd,
    "linalg_svdvals": _of("A", mnp.linalg.svdvals),
    "logdet": _of("self", lambda x: _logdet(*mnp.linalg.slogdet(x))),
    "slogdet": _of("self", mnp.linalg.slogdet),
    "triangular_solve": _old_triangular_solve,
}


def _logdet(sign: Array, size: Array) -> Array:
    return mnp.where(mnp.less(sign, 0), mnp.nan, size)
