"""Values of the transcendental functions at f64 arguments, by mpmath: `python tests/golden/make_function_reference.py`.

It writes functions.npz: for each function its arguments, `NAME.0` (and `NAME.1`), the nearest f64 `NAME.value`, and
what that lacks, `NAME.rest`.  mpmath 1.4 made it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mpmath
import numpy as np
from numpy.typing import NDArray

PATH = Path(__file__).parent / "functions.npz"
COUNT = 96
# function, and the interval in which most of its arguments lie
FUNCTIONS: dict[str, tuple[Callable[..., mpmath.mpf], float, float]] = {
    "exp": (mpmath.exp, -746.0, 710.0),
    "exp2": (lambda x: mpmath.mpf(2) ** x, -1075.0, 1024.0),
    "expm1": (mpmath.expm1, -3.0, 3.0),
    "log": (mpmath.log, 0.0, 4.0),
    "log2": (lambda x: mpmath.log(x) / mpmath.log(2), 0.0, 4.0),
    "log1p": (mpmath.log1p, -1.0, 4.0),
    "sin": (mpmath.sin, -100.0, 100.0),
    "cos": (mpmath.cos, -100.0, 100.0),
    "tan": (mpmath.tan, -100.0, 100.0),
    "tanh": (mpmath.tanh, -3.0, 3.0),
    "erf": (mpmath.erf, -4.0, 4.0),
    "atan2": (mpmath.atan2, -3.0, 3.0),
    "pow": (mpmath.power, 0.0, 30.0),
}
POSITIVE = {"log", "log2", "pow"}
TURNING = {"sin", "cos", "tan"}
# The f64 that is nearest to a multiple of pi / 2 (J.-M. Muller, "Elementary Functions", 1997), and the largest one.
HARD_ANGLES = (6381956970095103.0 * 2.0**797, np.finfo(np.float64).max, 2.0**30, np.nextafter(2.0**30, 0.0))


def arguments(name: str, random: np.random.Generator) -> NDArray[np.float64]:
    _, low, high = FUNCTIONS[name]
    near = random.uniform(low, high, COUNT)
    small = random.uniform(-1.0, 1.0, COUNT) * 2.0 ** random.integers(-60, 0, COUNT)
    wide = random.uniform(-1.0, 1.0, COUNT) * 2.0 ** random.integers(-1000, 1000, COUNT)
    made = np.concatenate([near, small, wide, HARD_ANGLES if name in TURNING else []])
    if name in POSITIVE:
        made = np.abs(made)
    return made[made > -1.0] if name == "log1p" else made


def main() -> None:
    random = np.random.default_rng(2026)
    tables: dict[str, NDArray[np.float64]] = {}
    for name, (function, _, _) in FUNCTIONS.items():
        operands = [arguments(name, random)]
        if name == "atan2":
            operands.append(operands[0] * random.uniform(-4.0, 4.0, operands[0].size))
        if name == "pow":
            operands.append(random.uniform(-1070.0, 1020.0, operands[0].size) / np.log2(operands[0]))
        values, rests = [], []
        for at in zip(*operands, strict=True):
            with mpmath.workprec(1300 if name in TURNING else 300):
                exact = function(*map(mpmath.mpf, map(float, at)))
                nearest = float(mpmath.nstr(exact, 40))
                values.append(nearest)
                rests.append(float(exact - nearest) if np.isfinite(nearest) else 0.0)
        tables |= {f"{name}.{place}": operand for place, operand in enumerate(operands)}
        tables |= {f"{name}.value": np.array(values), f"{name}.rest": np.array(rests)}
    np.savez_compressed(PATH, **tables)


if __name__ == "__main__":
    main()
