"""Complex numbers on a machine with a GPU: its cpu engine has them, over real processes and a real device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.processes.commands import PATIENT_S

import mesh
import mesh.numpy as mnp
from mesh import Mesh

RNG = np.random.default_rng(0)
X = RNG.standard_normal((256, 64)).astype(np.float32)
W = (RNG.standard_normal((64, 64)) + 1j * RNG.standard_normal((64, 64))).astype(np.complex64)


def filtered(x: Any, w: Any) -> tuple[Any, Any]:
    """Real layers around a complex one."""
    spectrum = mnp.fft.rfft(mnp.tanh(x), n=126) @ w
    return mnp.tanh(mnp.fft.irfft(spectrum * 1j)) @ mnp.ones((126, 8)), spectrum


@pytest.mark.long
@needs_adapter
def test_beside_a_gpu_the_cpu_engine_of_the_same_machine_has_the_complex_part() -> None:
    with Mesh.builder().local(1, engine="wgsl").node_timeout(PATIENT_S).build() as one:
        plan = str(one.plan(filtered, X, W))
        real, spectrum = one.run(filtered, X, W)
    assert "computes fft on c64 on cpu, because its wgsl device cannot" in plan
    assert "wgsl" in plan.partition("computes")[0], "the real layers stay on the device"
    wanted = mesh.evaluate(filtered, X, W)
    np.testing.assert_allclose(real, wanted[0], 1e-3, 1e-2)
    np.testing.assert_allclose(spectrum, wanted[1], 1e-4, 1e-3)
