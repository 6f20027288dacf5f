"""Records where optax's optimisers lead, step by step, and its schedules, in tests/golden/optax_steps.npz.

    PYTHONPATH=tests python tests/golden/make_optax_reference.py     # in an environment with jax, optax and numpy

The recorded file came from jax 0.10.2 and optax 0.2.8 on a CPU, in float64.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from support.cases.optim_cases import CASES, SCHEDULES, STEPS, OptimCase, first_params, pull, row

jax.config.update("jax_enable_x64", True)

CLIPS = {"norm": optax.clip_by_global_norm, "value": optax.clip}
SCHEDULE_MAKERS = {
    "linear": lambda start, end, steps: optax.linear_schedule(start, end, steps),
    "cosine": lambda start, steps, end: optax.cosine_decay_schedule(start, steps, end / start),
    "exponential": lambda start, rate, steps, staircase=False: optax.exponential_decay(
        start, steps, rate, staircase=staircase
    ),
    "warmup_cosine": lambda peak, warmup, steps, end, start: optax.warmup_cosine_decay_schedule(
        start, peak, warmup, steps, end
    ),
    "piecewise": lambda values, boundaries: optax.piecewise_constant_schedule(
        values[0], {at: new / old for at, old, new in zip(boundaries, values, values[1:], strict=False)}
    ),
}


def wide(params: Any) -> Any:
    return {name: jnp.asarray(value, jnp.float64) for name, value in params.items()}


def steps(case: OptimCase) -> np.ndarray:
    made = getattr(optax, case.optimiser)(**case.options)
    optimiser = optax.chain(CLIPS[case.clip[0]](case.clip[1]), made) if case.clip else made
    params, rows = wide(first_params()), []
    state = optimiser.init(params)
    for step in range(STEPS):
        gradients = jax.tree.map(lambda noise, param: noise + jnp.sin(param), wide(pull(step)), params)
        updates, state = optimiser.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        rows.append(row(params))
    return np.stack(rows)


if __name__ == "__main__":
    file = Path(__file__).with_name("optax_steps.npz")
    found = {case.label: steps(case) for case in CASES if "optax" in case.oracles}
    for place, (name, options) in enumerate(SCHEDULES):
        schedule = SCHEDULE_MAKERS[name](**options)
        found[f"schedule-{place}"] = np.array([float(schedule(count)) for count in range(STEPS)])
    np.savez_compressed(file, **found)
    print(file, len(found), "of optax", optax.__version__)
