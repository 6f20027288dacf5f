"""What solves and factors matrices: results that belong together, matrices without factors, where it runs, derivatives
that do not exist, and those at singular matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.machines.profiles import device, worker

import mesh
import mesh.numpy as mnp
from coordinator.planning.model.profiles import Profiles
from coordinator.planning.planner import make_plan
from mesh.errors import DTypeError, Unsupported
from mesh.numpy import linalg
from wire.ir.ops import OPS
from worker.wgsl.profile import CPU_ONLY

RNG = np.random.default_rng(4)
X = RNG.standard_normal((5, 3))
SQUARE = RNG.standard_normal((3, 3)) + 2 * np.eye(3)
DEFINITE = SQUARE @ SQUARE.T


# -- several results --------------------------------------------------------------------------------------


def test_results_have_the_names_of_the_standard_and_stay_what_they_are_in_traced_functions() -> None:
    for made, fields in (
        (linalg.qr, ("Q", "R")), (linalg.svd, ("U", "S", "Vh")), (linalg.slogdet, ("sign", "logabsdet")),
        (linalg.eigh, ("eigenvalues", "eigenvectors")),
    ):  # fmt: skip
        assert made(SQUARE)._fields == fields
        found = mesh.evaluate(made, SQUARE)
        assert found._fields == fields
        for one, other in zip(found, made(SQUARE), strict=True):
            np.testing.assert_array_equal(one, np.asarray(other))


def test_all_results_of_a_matrix_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    plain = np.linalg.svd
    monkeypatch.setattr(np.linalg, "svd", lambda *args, **settings: calls.append(args) or plain(*args, **settings))
    u, s, vh = linalg.svd(X, full_matrices=False)
    np.testing.assert_allclose(np.asarray(u) * np.asarray(s) @ np.asarray(vh), X)
    assert len(calls) == 1


@pytest.mark.parametrize("strategy", ["single", "pipeline", "auto"])
def test_matrices_are_factored_on_the_cpu_of_a_machine_with_a_gpu(strategy: str) -> None:
    dtypes = dict.fromkeys(OPS.keys() - CPU_ONLY, ("bool", "f32", "i32", "u32"))
    gpu = replace(device(0, 100.0, 100.0), engine="wgsl", dtypes_by_op=dtypes)
    machines = Profiles((worker(0, gpu, device(1, 1.0, 1.0)), worker(1, gpu, device(1, 1.0, 1.0))))

    def fn(x: Any) -> Any:
        u, s, vh = linalg.svd(mnp.tanh(x), full_matrices=False)
        return mnp.sin(u) @ mnp.cos(vh) * s.sum()

    plan = make_plan(mesh.trace(fn, X.astype(np.float32)), machines, strategy)
    placed = [(part.node, part.device, node.attrs["output"]) for part in plan.parts for node in part.graph
              if node.op == "svd"]  # fmt: skip
    assert len({where[:2] for where in placed}) == 1, "the results are of one computation"
    assert {index for _, index, _ in placed} == {1} and sorted(output for *_, output in placed) == [0, 1, 2]
    on_gpu = {node.op for part in plan.parts if part.device == 0 for node in part.graph}
    assert {"tanh", "sin", "cos"} <= on_gpu


# -- matrices without factors -----------------------------------------------------------------------------


def test_a_matrix_without_factors_is_nan_and_the_others_of_its_batch_are_not() -> None:
    given = np.stack([DEFINITE, -DEFINITE, np.zeros((3, 3)), np.eye(3), np.full((3, 3), np.nan)])
    for made, none in ((linalg.cholesky, [1, 2]), (linalg.inv, [2]), (linalg.eigvalsh, []), (linalg.svdvals, []),
                       (linalg.det, []), (linalg.pinv, [])):  # fmt: skip
        found = np.asarray(made(given[:4]))
        assert [place for place, each in enumerate(found) if np.isnan(each).all()] == none, made
        assert [place for place, each in enumerate(found) if np.isnan(each).any()] == none, made
    for made, none in ((linalg.inv, [2, 4]), (linalg.eigvalsh, [4]), (linalg.svdvals, [4]), (linalg.det, [4])):
        found = np.asarray(made(given))
        assert [place for place, each in enumerate(found) if np.isnan(each).all()] == none, made
        assert [place for place, each in enumerate(found) if np.isnan(each).any()] == none, made
    sign, size = linalg.slogdet(np.zeros((3, 3)))
    assert (float(sign), float(size)) == (0.0, -np.inf)


def test_integers_become_floats_and_what_is_no_number_is_refused() -> None:
    whole = np.array([[2, 1], [1, 3]], np.int32)
    assert linalg.solve(whole, whole).dtype == np.float32
    np.testing.assert_allclose(np.asarray(linalg.solve(whole, whole)), np.eye(2), atol=1e-6)
    with pytest.raises(DTypeError):
        mnp.linalg.solve(np.array(["a"]), whole)


# -- derivatives ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [lambda x: linalg.qr(x, mode="complete").Q, lambda x: linalg.svd(x).U],
    ids=["qr", "svd"],
)
def test_columns_that_are_not_determined_have_no_derivative(fn: Callable[..., Any]) -> None:
    with pytest.raises(Unsupported, match=r"5 by 3 has no derivative.*Take"):
        mesh.grad(lambda x: mnp.sum(fn(x)))(X)
    with pytest.raises(Unsupported, match="has no derivative"):
        mesh.jvp(fn, (X,), (X,))
    assert np.isfinite(np.asarray(mesh.grad(lambda x: mnp.sum(fn(x)))(SQUARE))).all()


def test_derivatives_of_symmetric_matrices_are_symmetric() -> None:
    for fn in (linalg.cholesky, lambda x: linalg.eigh(x).eigenvectors ** 3, linalg.eigvalsh):
        found = np.asarray(mesh.grad(lambda x, fn=fn: mnp.sum(mnp.sin(fn(x))))(DEFINITE))
        np.testing.assert_allclose(found, found.T, atol=1e-12)


RANK_2 = np.outer(X[0], X[1]) + np.outer(X[2], X[3])


def cofactors(x: Any) -> Any:
    """By their definition: signed determinants without a row and a column."""
    found = np.empty_like(x)
    for row, column in np.ndindex(x.shape):
        rest = np.delete(np.delete(x, row, 0), column, 1)
        found[row, column] = (-1) ** (row + column) * np.linalg.det(rest)
    return found


@pytest.mark.parametrize(
    "x",
    [SQUARE, np.eye(3), RANK_2, np.outer(X[0], X[1]), np.zeros((3, 3)), SQUARE + 1j * X[:3], RANK_2 * (1 + 1j)],
    ids=["regular", "identity", "rank 2", "rank 1", "zero", "complex", "complex, rank 2"],
)  # fmt: skip
def test_the_gradient_of_a_determinant_is_its_cofactors_also_of_singular_matrices(x: Any) -> None:
    _, pull = mesh.vjp(linalg.det, np.stack([x, x]))
    for found in np.asarray(pull(np.array([1, 2], x.dtype))[0]) / np.array([1, 2])[:, None, None]:
        np.testing.assert_allclose(found, cofactors(x), 1e-9, 1e-12)
    moved = mesh.vmap(lambda each: mesh.jvp(linalg.det, (each,), (x.T,))[1])(x[None])
    np.testing.assert_allclose(np.asarray(moved)[0], np.sum(cofactors(x) * x.T), 1e-9, 1e-12)


@pytest.mark.parametrize(
    "x", [SQUARE, np.eye(3), RANK_2, SQUARE + 1j * X[:3]], ids=["regular", "identity", "rank 2", "complex"]
)
def test_cofactors_have_derivatives(x: Any) -> None:
    def size(x: Any) -> Any:
        (found,) = mesh.vjp(linalg.det, x)[1](np.ones((), x.dtype))
        return mnp.sum(mnp.abs(found) ** 2)

    direction = np.cos(np.arange(9.0)).reshape(3, 3)
    ahead, back = (np.sum(np.abs(cofactors(x + step * direction)) ** 2) for step in (1e-5, -1e-5))
    found = np.asarray(mesh.grad(size)(x))
    np.testing.assert_allclose(np.sum(found * direction).real, (ahead - back) / 2e-5, 1e-6, 1e-8)
    if x.dtype.kind == "c":
        both = np.asarray(mesh.vmap(mesh.grad(size))(np.stack([x, RANK_2 * (1 + 1j)])))
        np.testing.assert_allclose(both[0], found, 1e-9)
        assert np.isnan(both[1]).all(), "not told, rather than wrong"


@pytest.mark.parametrize(
    "x",
    [X, X.T, SQUARE, np.eye(4)[:, :2], np.stack([X, 2 * X]), X + 1j * X[::-1]],
    ids=["tall", "wide", "square", "of equal singular values", "batch", "complex"],
)
def test_derivatives_of_a_pseudo_inverse_are_the_central_differences(x: Any) -> None:
    def towards(x: Any) -> Any:
        return mnp.sum(mnp.real(mnp.sin(linalg.pinv(x)) * WEIGHTS[: x.shape[-1], : x.shape[-2]]))

    def slope(x: Any) -> Any:
        return mnp.real(mnp.sum(mesh.grad(towards)(x) * direction))

    rng = np.random.default_rng(1)
    direction = rng.standard_normal(x.shape)
    for fn in (towards, slope):
        wanted = (float(fn(x + 1e-5 * direction)) - float(fn(x - 1e-5 * direction))) / 2e-5
        np.testing.assert_allclose(float(mesh.jvp(fn, (x,), (direction.astype(x.dtype),))[1]), wanted, 1e-6, 1e-8)
        found = np.asarray(mesh.grad(fn)(x))
        np.testing.assert_allclose(np.sum(found * direction).real, wanted, 1e-6, 1e-8)


WEIGHTS = RNG.standard_normal((5, 5))
