"""The price of a call option by a million random paths, shared out over workers: the same price for any number of them.

Each batch of paths has a key of its own.  So it does not matter who computes it, and no two workers draw the same
numbers.  The right price is known here (Black and Scholes, 1973), and the mean of the random payoffs has to be within
five standard errors of it.

python examples/monte_carlo.py
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np

import mesh
import mesh.numpy as mnp
from mesh import Mesh, random

SPOT, STRIKE, RATE, VOLATILITY, YEARS = 100.0, 105.0, 0.03, 0.2, 1.0
BATCHES, PATHS = 16, 1 << 16
SIGMAS = 5.0


def batch(key: Any) -> Any:
    """The mean discounted payoff of one batch of paths, and the mean of its squares: f64 (2,)."""
    noise = mnp.astype(random.normal(key, (PATHS,)), mnp.float64)
    ends = SPOT * mnp.exp((RATE - VOLATILITY**2 / 2) * YEARS + VOLATILITY * math.sqrt(YEARS) * noise)
    payoffs = math.exp(-RATE * YEARS) * mnp.maximum(ends - STRIKE, 0.0)
    return mnp.stack([mnp.mean(payoffs), mnp.mean(payoffs**2)])


def batches(keys: Any) -> Any:
    """f64 (n, 2) of keys (n, 2): batches do not depend on each other, so keys can be shared out."""
    return mesh.vmap(batch)(keys)


def exact() -> float:
    """The price by the formula of Black and Scholes."""
    spread = VOLATILITY * math.sqrt(YEARS)
    first = (math.log(SPOT / STRIKE) + (RATE + VOLATILITY**2 / 2) * YEARS) / spread
    normal = NormalDist().cdf
    return SPOT * normal(first) - STRIKE * math.exp(-RATE * YEARS) * normal(first - spread)


def main() -> float:
    keys = np.asarray(random.split(random.key(2026), BATCHES))
    found: dict[int, Any] = {}
    with Mesh.builder().local(3, engine="cpu").node_timeout(20).build() as m:
        for workers in (1, 2, 3):
            strategy = mesh.DataParallel(workers) if workers > 1 else mesh.Single()
            assert len(m.plan(batches, keys, strategy=strategy).workers) == workers
            found[workers] = m.run(batches, keys, strategy=strategy)
    for workers, each in found.items():
        np.testing.assert_array_equal(each, found[1], f"{workers} workers say something else")

    mean, squares = found[1].mean(axis=0)
    error = math.sqrt((squares - mean**2) / (BATCHES * PATHS))
    sigmas = (mean - exact()) / error
    assert abs(sigmas) < SIGMAS, sigmas
    print(f"{BATCHES * PATHS} paths: {mean:.4f} +- {error:.4f}, to the bit the same on 1, 2 and 3 workers")
    print(f"the right price is {exact():.4f}, {abs(sigmas):.1f} standard errors away")
    return float(sigmas)


if __name__ == "__main__":
    main()
