"""The numerical tests on processors that this machine is not: `script/test --processors`.

BLAS and numpy choose their loops by the processor.  Both can be told to take those of an older one, so a machine with
AVX-512 computes as one with AVX2 does, or with AVX alone.  Environments pass to engine hosts and workers, so these do
so, too.  A row of VARIANTS is a processor; NUMERICAL has the files whose results follow from how numbers are rounded:
those that compare with recorded figures (tests/support/rounding.py), and those that compare bits between plans.  Files
that start worker processes are left out but for two, since the default run has them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from numpy._core import _multiarray_umath

ROOT = Path(__file__).resolve().parent.parent
PROCESSES_MAX = 4

NUMERICAL = (
    "tests/engines/test_cpu_determinism.py",
    "tests/engines/test_cpu_reference.py",
    "tests/engines/test_onnx_runtime.py",
    "tests/e2e/test_random_dags.py",
    "tests/e2e/test_unlike_processors.py",
    "tests/mesh/inference/test_generation.py",
    "tests/mesh/models/test_huggingface.py",
    "tests/mesh/models/test_huggingface_sweep.py",
    "tests/mesh/numpy/test_linalg.py",
    "tests/mesh/nn/test_nn_torch.py",
    "tests/mesh/nn/test_optim.py",
    "tests/coordinator/planning/test_reproducible.py",
    "tests/mesh/test_rounding.py",
    "tests/mesh/transforms/test_whole_derivatives.py",
    "tests/sim/test_shares_by_speed.py",
    "tests/sim/test_simulated_pipelines.py",
    "tests/sim/test_simulated_sessions.py",
    "tests/sim/test_simulated_training.py",
)


def newer_than_avx2() -> tuple[str, ...]:
    """The instructions that this numpy chooses loops by, that this processor has, and that one with AVX2 has not.

    numpy refuses to switch off what it was not built for, and what is not there, so there must be no others.
    """
    there = _multiarray_umath.__cpu_features__
    return tuple(
        name for name in _multiarray_umath.__cpu_dispatch__ if there[name] and ("AVX512" in name or name == "X86_V4")
    )


@dataclass(frozen=True, slots=True)
class Variant:
    """A processor: the environment of one, the instructions it `needs`, and `shows`, what is in the name of its
    arithmetic (worker/cpu/process.py) where the environment had its effect."""

    environment: Callable[[], Mapping[str, str]]
    needs: str
    shows: str = ""


VARIANTS: dict[str, Variant] = {
    "Haswell's BLAS": Variant(lambda: {"OPENBLAS_CORETYPE": "Haswell"}, "AVX2", " Haswell"),
    "Sandybridge's BLAS": Variant(lambda: {"OPENBLAS_CORETYPE": "Sandybridge"}, "AVX", " Sandybridge"),
    "AVX2 and no more": Variant(
        lambda: {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": " ".join(newer_than_avx2())}, "AVX2"
    ),
}


def has(variant: Variant) -> bool:
    """Whether this processor can be the other one."""
    return bool(_multiarray_umath.__cpu_features__.get(variant.needs, False))


def environment(variant: Variant) -> dict[str, str]:
    """This process's, as that of the other processor."""
    return {**os.environ, **{name: value for name, value in variant.environment().items() if value}}


def arithmetic(env: Mapping[str, str]) -> str:
    """What rounds in a child process; numpy ends it if it is told something of instructions that it does not know."""
    code = "from worker.cpu.process import arithmetic; print(arithmetic())"
    command = (sys.executable, "-W", "error::ImportWarning", "-c", code)
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Run NUMERICAL as every processor that this one can be; 1 if any test failed, or none was run."""
    failed, ran = [], 0
    processes = min(PROCESSES_MAX, (os.cpu_count() or 1) + 1)
    for name, variant in VARIANTS.items():
        if not has(variant):
            print(f"{name}: left out, since this processor has no {variant.needs}", flush=True)
            continue
        env, began_s = environment(variant), time.monotonic()
        rounds = arithmetic(env)
        if variant.shows not in rounds:
            print(f"{name}: FAILED to take effect: {rounds}", flush=True)
            failed.append(name)
            continue
        print(f"{name}: {rounds}", flush=True)
        command = (sys.executable, "-m", "pytest", "-q", "-n", str(processes), "--dist", "loadfile", *arguments)
        code = subprocess.run([*command, *NUMERICAL], env=env, cwd=ROOT, check=False).returncode
        ran += 1
        print(f"{name}: {'passed' if code == 0 else 'FAILED'}, {time.monotonic() - began_s:.0f} s", flush=True)
        failed += [name] if code else []
    x86 = "AVX" in _multiarray_umath.__cpu_features__
    if not ran and not failed and x86:
        print("no processor was tried", flush=True)
        return 1
    if failed:
        print(f"FAILED as {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
