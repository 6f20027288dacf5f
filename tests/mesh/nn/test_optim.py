"""mesh.optim against where torch.optim and optax went, step by step (tests/golden), and what they do not have."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases.optim_cases import CASES, SCHEDULES, STEPS, OptimCase, first_params, pull, row
from support.rounding import RECORDED as ORACLES
from support.rounding import allowed, assert_rounds_alike, traced

import mesh
import mesh.numpy as mnp
from mesh import optim, tree
from mesh.errors import InputError

GOLDEN = Path(__file__).parents[2] / "golden"
RECORDED = {name: np.load(GOLDEN / f"{name}_steps.npz") for name in ("torch", "optax")}
CLIPS = {"norm": optim.clip_by_global_norm, "value": optim.clip_by_value}


def optimiser_of(case: OptimCase) -> optim.Optimiser:
    made = getattr(optim, case.optimiser)(**case.options)
    return optim.chain(CLIPS[case.clip[0]](case.clip[1]), made) if case.clip else made


def stepped(optimiser: optim.Optimiser, params: Any, state: Any, noise: Any) -> tuple[Any, Any]:
    gradients = tree.map(lambda noise, param: noise + mnp.sin(param), noise, params)
    updates, state = optimiser.update(gradients, state, params)
    return optim.apply_updates(params, updates), state


def ways(optimiser: optim.Optimiser, params: Any) -> Any:
    """All steps as one function."""
    state, rows = optimiser.init(params), []
    for step in range(STEPS):
        params, state = stepped(optimiser, params, state, pull(step))
        rows.append(mnp.concat([mnp.reshape(params[name], (-1,)) for name in ("w", "b")]))
    return mnp.stack(rows)


def seen(values: Any) -> Any:
    return tree.map(np.asarray, values)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_every_step_is_theirs(case: OptimCase) -> None:
    optimiser, params, rows = optimiser_of(case), first_params(), []
    state = optimiser.init(params)
    for step in range(STEPS):
        params, state = seen(stepped(optimiser, params, state, pull(step)))
        rows.append(row(params))
    graph, given = traced(lambda params: ways(optimiser, params), first_params())
    bounds = {how: allowed(graph, given, how)[0] for how in {ORACLES[f"{oracle}_steps"] for oracle in case.oracles}}
    for oracle in case.oracles:
        bound = bounds[ORACLES[f"{oracle}_steps"]]
        assert_rounds_alike(np.stack(rows), RECORDED[oracle][case.label], bound, oracle)


@pytest.mark.parametrize("place", range(len(SCHEDULES)))
def test_schedules_are_theirs(place: int) -> None:
    name, options = SCHEDULES[place]
    schedule, wanted = getattr(optim, name)(**options), RECORDED["optax"][f"schedule-{place}"]
    for count in range(STEPS):
        graph, given = traced(schedule, np.int32(count))
        (bound,) = allowed(graph, given, ORACLES["optax_steps"])
        for found in (float(schedule(count)), *mesh.evaluate(lambda at: [schedule(at)], np.int32(count))):
            assert_rounds_alike(found, wanted[count], bound, f"step {count}")


def test_a_step_is_one_graph_that_does_not_change() -> None:
    optimiser = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(optim.warmup_cosine(0.1, 3, 10)))
    params = first_params()
    state = seen(optimiser.init(params))
    hashes, expected, expected_state = set(), params, state
    for step in range(3):
        noise = pull(step)
        hashes.add(mesh.trace(lambda *given: stepped(optimiser, *given), params, state, noise).hash)
        params, state = mesh.evaluate(lambda *given: stepped(optimiser, *given), params, state, noise)
        expected, expected_state = seen(stepped(optimiser, expected, expected_state, noise))
        np.testing.assert_allclose(row(params), row(expected), rtol=1e-6)
    assert len(hashes) == 1


def test_decay_of_matrices_only() -> None:
    matrices = optim.sgd(1.0, weight_decay=0.5, mask=lambda params: tree.map(lambda leaf: leaf.ndim > 1, params))
    named = optim.sgd(1.0, weight_decay=0.5, mask={"w": True, "b": False})
    params = first_params()
    still = tree.map(np.zeros_like, params)
    for optimiser in (matrices, named):
        updates, _ = optimiser.update(still, optimiser.init(params), params)
        assert np.array_equal(np.asarray(updates["w"]), -0.5 * params["w"])
        assert not np.asarray(updates["b"]).any()
    with pytest.raises(InputError, match="needs the params"):
        matrices.update(still, matrices.init(params))


def test_narrow_params_have_wide_moments_and_stay_narrow() -> None:
    params = tree.map(lambda leaf: leaf.astype(np.float16), first_params())
    optimiser = optim.adam(0.1)
    state = optimiser.init(params)
    assert all(leaf.dtype != np.float16 for leaf in tree.leaves(state))
    updates, _ = optimiser.update(params, state, params)
    moved = optim.apply_updates(params, updates)
    assert all(leaf.dtype == np.float16 for leaf in tree.leaves(moved))
    step = np.asarray(moved["w"]).astype(np.float64) - params["w"]
    np.testing.assert_allclose(step, -0.1 * np.sign(params["w"].astype(np.float64)), atol=2e-3)


def test_clipping_leaves_small_gradients_alone_and_zero_is_no_trouble() -> None:
    gradients = {"w": np.full((2, 2), 0.1, np.float32)}
    clip = optim.clip_by_global_norm(1.0)
    assert np.array_equal(np.asarray(clip.update(gradients, ())[0]["w"]), gradients["w"])
    still = tree.map(np.zeros_like, gradients)
    assert not np.asarray(clip.update(still, ())[0]["w"]).any()
    assert float(optim.global_norm({"a": np.array([3.0], np.float16), "b": [np.array([[4.0]], np.float32)]})) == 5.0


@pytest.mark.parametrize("debias", [True, False])
def test_ema_is_the_weighted_mean(debias: bool) -> None:
    average = optim.ema(0.9, debias=debias)
    state, values = average.init(np.zeros(2, np.float32)), np.random.default_rng(0).standard_normal((6, 2))
    for value in values.astype(np.float32):
        mean, state = average.update(value, state)
    weights = 0.1 * 0.9 ** np.arange(5, -1, -1)
    expected = weights @ values / (weights.sum() if debias else 1)
    np.testing.assert_allclose(np.asarray(mean), expected, rtol=1e-5)


def test_schedules_that_do_not_join_are_refused() -> None:
    with pytest.raises(InputError, match="boundaries"):
        optim.piecewise([1.0, 0.5], [3, 5])


def test_params_of_64_bits_are_stepped_in_64_bits() -> None:
    """Rates, schedules, decays and corrections of bias are Python floats; the judge is Adam in numpy."""
    b1, b2, eps, decay, bound = 0.9, 0.999, 1e-8, 0.3, 0.7
    optimiser = optim.chain(
        optim.clip_by_value(bound), optim.adamw(optim.linear(0.1, 0.03, 7), b1=b1, b2=b2, eps=eps, weight_decay=decay)
    )
    wanted = np.array([1 / 3, -16777217.0, 0.1])
    params, state, first, second = wanted, optimiser.init(wanted), 0.0, 0.0
    compiled = mesh.function(optimiser.update)
    for step in range(4):
        gradients = np.sin(wanted + step)
        updates, state = compiled(gradients, state, params)
        params = np.asarray(optim.apply_updates(params, updates))
        clipped = np.clip(gradients, -bound, bound)
        first, second = b1 * first + (1 - b1) * clipped, b2 * second + (1 - b2) * clipped**2
        moved = first / (1 - b1 ** (step + 1)) / (np.sqrt(second / (1 - b2 ** (step + 1))) + eps)
        wanted = wanted - (0.1 + (0.03 - 0.1) * step / 7) * (moved + decay * wanted)
        np.testing.assert_allclose(params, wanted, 1e-13)
        assert np.asarray(optim.linear(0.1, 0.03, 7)(step)).dtype == np.float32
    for rate in (
        optim.sgd(0.1),
        optim.sgd(optim.constant(0.1)),
        optim.sgd(optim.exponential(0.1, 0.3, 2)),
        optim.lion(0.1),
    ):
        updates, _ = rate.update(np.ones(3), rate.init(params), params)
        np.testing.assert_array_equal(np.asarray(updates), [-0.1] * 3)


def test_schedules_of_no_steps_are_at_their_end() -> None:
    """0 of 0 steps was no number, which the params became: that of warmup_cosine at its last step, without a decay."""
    assert float(optim.linear(1.0, 0.5, 0)(0)) == 0.5
    assert float(optim.cosine(1.0, 0, end=0.5)(0)) == 0.5
    assert [float(optim.warmup_cosine(1.0, 4, 4, end=0.5)(step)) for step in (0, 2, 4, 5)] == [0, 0.5, 0.5, 0.5]
    assert [float(optim.warmup_cosine(1.0, 0, 4, end=0.5)(step)) for step in (0, 4)] == [1, 0.5]


def test_complex_params_have_real_norms_and_second_moments() -> None:
    """The square of 3j was -9 in the norm, and in Adam's second moment."""
    gradients = {"a": np.array([3j, 4]), "b": np.array([12.0])}
    assert float(optim.global_norm(gradients)) == 13
    clipped = optim.clip_by_global_norm(6.5).update(gradients, ())[0]
    np.testing.assert_allclose(np.asarray(clipped["a"]), [1.5j, 2])
    rule = optim.scale_by_adam()
    state = rule.init(gradients)
    for _ in range(3):
        updates, state = rule.update(gradients, state)
    np.testing.assert_allclose(np.asarray(updates["a"]), [1j, 1], rtol=1e-6)
    assert np.asarray(state.second["a"]).dtype == np.float64


def test_an_exponential_rate_of_no_steps_is_refused() -> None:
    """It was no number at step 0."""
    with pytest.raises(InputError, match="steps"):
        optim.exponential(1.0, 0.5, 0)
