"""Records what jax says of the derivatives of tests/support/cases/whole_functions.py, in
tests/golden/jax_derivatives.npz.

    PYTHONPATH=tests python tests/golden/make_jax_reference.py     # in an environment with jax and numpy

The recorded file came from jax 0.10.2 on a CPU, in float64.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from support.cases.whole_functions import WHOLE, figures

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    found = {key: value for name in WHOLE for key, value in figures(name, jnp, jax).items()}
    np.savez_compressed(Path(__file__).parent / "jax_derivatives.npz", **found)
