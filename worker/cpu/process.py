"""How this process uses the machine: one BLAS thread, and what rounds."""

from __future__ import annotations

import platform
from functools import cache

from threadpoolctl import threadpool_info, threadpool_limits


@cache
def one_thread() -> None:
    """Switch numpy's BLAS to one thread, for the life of the process.

    The order of a dot's sums then follows from shapes alone, and workers of one machine do not fight over cores.
    """
    import numpy  # noqa: F401  # loads the library that is limited

    threadpool_limits(1, user_api="blas")


@cache
def arithmetic() -> str:
    """What rounds in this process, by name: engines of one name have the same bits; of different ones they may differ.

    Such as "numpy 2.4.6 X86_V3, openblas 0.3.31 Haswell, glibc 2.36 x86_64".
    """
    import numpy as np

    loaded = [library for library in threadpool_info() if library["user_api"] == "blas"]
    numpys = [library for library in loaded if "numpy" in library["filepath"]] or loaded  # scipy brings one of its own
    of_blas = " ".join(
        f"{library['internal_api']} {library['version']} {library.get('architecture', '')}" for library in numpys
    )
    of_numpy = f"numpy {np.__version__} {instructions()}".strip()
    return ", ".join(filter(None, (of_numpy, of_blas, f"{' '.join(platform.libc_ver())} {platform.machine()}".strip())))


def instructions() -> str:
    """The newest vector instructions that numpy chooses loops by here, "" for those that it was built for."""
    from numpy._core import _multiarray_umath  # type: ignore[attr-defined]  # numpy.show_runtime only prints it

    features = [name for name in _multiarray_umath.__cpu_dispatch__ if _multiarray_umath.__cpu_features__[name]]
    return features[-1] if features else ""
