"""Numbers of 64 bits keep them on the way to a worker and back: the rows of tests/support/cases/precise_cases.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.cases.precise_cases import C, F, I, U, check_all, graphs
from support.processes.commands import PATIENT_S

import mesh.numpy as mnp
from docs.tools.array_api_page import REALISED
from mesh import Mesh


def test_every_function_of_numbers_of_64_bits_equals_numpys_on_a_worker() -> None:
    def scaled(x: Any, s: float) -> Any:
        return x * s + mnp.where(x > 1, mnp.sqrt(s), 1 / 3)

    with Mesh.builder().local(1, engine="cpu").node_timeout(PATIENT_S).build() as one:
        for calls, graph in graphs(200, REALISED):
            found = one.run(graph)
            check_all(calls, [found[name] for name in graph.output_names])
        for number in (0.1, 16777217.0):  # an argument, of which the second call only sends the value
            wanted = F * number + np.where(F > 1, number**0.5, 1 / 3)
            np.testing.assert_array_equal(np.asarray(one.run(scaled, F, number)), wanted)
        for array in (F, I, U, C):
            np.testing.assert_array_equal(np.asarray(one.run(lambda x: mnp.flip(x), one.put(array))), array[::-1])
        np.testing.assert_array_equal(np.asarray(mnp.asarray(F.tolist(), dtype="float64") * 0.1), F * 0.1)
        assert np.asarray(one.run(lambda s: s, 0.1)).dtype == np.float32, "alone a Python number has its default dtype"
