"""mesh.from_jax of jnp.linalg and jax.scipy.linalg: what they give, their gradients, and derivatives taken here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh.errors import Unsupported

jax = pytest.importorskip("jax", reason="JAX is not installed (the extra `jax`)")
import jax.numpy as jnp  # noqa: E402
import jax.scipy.linalg as jsl  # noqa: E402

RNG = np.random.default_rng(0)
A = (RNG.standard_normal((4, 4)) + 2 * np.eye(4)).astype(np.float32)
B = RNG.standard_normal((4, 2)).astype(np.float32)
S = A @ A.T
TALL = RNG.standard_normal((2, 5, 3)).astype(np.float32)
C = (A + 1j * RNG.standard_normal((4, 4))).astype(np.complex64)


def rebuilt(x: Any) -> Any:
    u, s, vh = jnp.linalg.svd(x, full_matrices=False)
    return (u * jnp.log1p(s)[..., None, :]) @ vh


def of_matrix(x: Any) -> Any:
    w, v = jnp.linalg.eigh(x)
    return (v * jnp.exp(w / 20)) @ v.T


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "solve": (lambda a, b: [jnp.linalg.solve(a, b), jnp.linalg.solve(a, b[:, 0]), jnp.linalg.inv(a)], (A, B)),
    "solve, batched": (jax.vmap(jnp.linalg.solve, (None, 0)), (A, np.stack([B, 2 * B]))),
    "cholesky": (lambda s, b: [jnp.linalg.cholesky(s), jsl.cho_solve(jsl.cho_factor(s), b)], (S, B)),
    "determinants": (lambda a: [jnp.linalg.det(a), jnp.linalg.det(a[:3, :3]), jnp.linalg.slogdet(a)], (A,)),
    "determinants, batched": (jax.vmap(jnp.linalg.slogdet), (np.stack([A, S]),)),
    "lu": (lambda a, b: [jsl.lu_factor(a), jsl.lu_solve(jsl.lu_factor(a), b), jsl.lu(a)], (A, B)),
    "qr": (lambda x: [jnp.linalg.qr(x), jnp.linalg.qr(x, mode="complete"), jnp.linalg.qr(x, mode="r")], (TALL,)),
    "svd": (lambda x: [jnp.linalg.svdvals(x), rebuilt(x), jnp.linalg.pinv(x), jnp.linalg.matrix_rank(x)], (TALL,)),
    "eigh": (lambda s: [jnp.linalg.eigvalsh(s), of_matrix(s), jnp.linalg.eigvalsh(s, UPLO="U")], (S,)),
    "norms": (lambda x: [jnp.linalg.norm(x), jnp.linalg.norm(x[0], 2), jnp.linalg.norm(x[0], "nuc")], (TALL,)),
    "products": (lambda a, b: [jnp.linalg.matrix_power(a, -2), jnp.linalg.multi_dot([a, a, b]), jsl.expm(a)], (A, B)),
    "least squares": (jnp.linalg.lstsq, (A[:, :3], B)),
    "triangles": (
        lambda a, b: [
            *[jsl.solve_triangular(a, b, trans=trans, lower=lower, unit_diagonal=unit)
              for trans in (0, 1) for lower in (True, False) for unit in (True, False)],
            *[jax.lax.linalg.triangular_solve(a, b.T, lower=lower, transpose_a=transposed)
              for lower in (True, False) for transposed in (True, False)],
        ],
        (A, B),
    ),
    "complex": (
        lambda c: [jnp.linalg.det(c), jnp.linalg.inv(c), jnp.linalg.cholesky(c @ c.conj().T),
                   jnp.linalg.eigvalsh(c @ c.conj().T), jnp.linalg.slogdet(c),
                   jsl.solve_triangular(c, c, trans=2, lower=True)], (C,),
    ),
    "gradient of solve": (jax.grad(lambda a, b: jnp.sum(jnp.linalg.solve(a, b) ** 2), (0, 1)), (A, B)),
    "gradient of inv": (jax.jit(jax.grad(lambda a: jnp.sum(jnp.linalg.inv(a) ** 2))), (A,)),
    "gradient of cholesky": (jax.grad(lambda s: jnp.sum(jnp.linalg.cholesky(s) ** 3)), (S,)),
    "gradient of det": (jax.grad(jnp.linalg.det), (A,)),
    "hessian of slogdet": (jax.hessian(lambda a: jnp.linalg.slogdet(a)[1]), (A,)),
    "gradient of qr": (jax.grad(lambda x: jnp.sum(jnp.sin(jnp.linalg.qr(x)[1]))), (TALL,)),
    "gradient of svd": (jax.grad(lambda x: jnp.sum(rebuilt(x) ** 2)), (TALL,)),
    "gradient of eigh": (jax.grad(lambda s: jnp.sum(of_matrix(s)[0])), (S,)),
    "gradient of norms": (jax.grad(lambda x: jnp.linalg.norm(x[0], "nuc") + jnp.linalg.norm(x)), (TALL,)),
}  # fmt: skip


def near(found: Any, wanted: Any, rtol: float = 2e-4) -> None:
    mine, theirs = jax.tree.leaves(found), jax.tree.leaves(wanted)
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        value, right = np.asarray(one), np.asarray(other)
        assert (value.shape, value.dtype) == (right.shape, right.dtype)
        np.testing.assert_allclose(value, right, rtol, rtol * max(np.abs(right).max(initial=0), 1e-3))


QUICK = {"solve", "cholesky", "determinants", "lu", "qr", "eigh", "norms", "gradient of solve", "gradient of svd"}
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in PROGRAMS]


@pytest.mark.parametrize("name", NAMES)
def test_a_program_gives_what_jax_gives(name: str) -> None:
    program, arguments = PROGRAMS[name]
    near(mesh.evaluate(mesh.from_jax(program, *arguments), *arguments), jax.jit(program)(*arguments))


def test_what_was_imported_is_differentiated_here() -> None:
    def loss(a: Any, b: Any) -> Any:
        return jnp.sum(jnp.sin(jnp.linalg.solve(a, b))) + jnp.linalg.slogdet(a)[1] + jnp.sum(jnp.linalg.svdvals(a))

    imported = mesh.from_jax(loss, A, B)
    near(mesh.grad(imported, (0, 1))(A, B), jax.grad(loss, (0, 1))(A, B))
    curvature = mesh.grad(lambda a: mnp.sum(mesh.grad(imported)(a, B) ** 2))(A)
    near(curvature, jax.grad(lambda a: jnp.sum(jax.grad(loss)(a, B) ** 2))(A), 2e-3)


def test_what_is_not_known_is_named() -> None:
    with pytest.raises(Unsupported, match="qr with pivoting=True"):
        mesh.evaluate(mesh.from_jax(lambda x: jax.lax.linalg.qr(x, pivoting=True), A), A)
    with pytest.raises(Unsupported, match="the primitive eig "):
        mesh.from_jax(jnp.linalg.eigvals, A)
