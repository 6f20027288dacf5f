"""A client that gives a value with the address of another one damages nobody else's jobs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.simulated.simulated_jobs import Client, DurableCluster, simulate_durable

from wire.ir.codec import hash_array
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.protocol.messages import JobAccepted, NamedValue, SubmitJob

SIZE = 2000  # its bytes go into a file, and are few enough to be inside of the message


def graph() -> bytes:
    builder = GraphBuilder()
    return builder.build(
        [builder.add("add", builder.input("x", (SIZE,), F32), builder.param("w", (SIZE,), F32))]
    ).encoded


def value(name: str, array: NDArray[Any], address: bytes | None = None) -> NamedValue:
    return NamedValue(name, "f32", array.shape, array.tobytes(), address)


@pytest.mark.parametrize("among_inputs", [True, False])
def test_a_value_under_a_false_address_is_not_kept_as_what_that_names(among_inputs: bool) -> None:
    weights, zeros = np.arange(SIZE, dtype=np.float32), np.zeros(SIZE, np.float32)

    async def scenario(cluster: DurableCluster) -> None:
        liar, other = Client(cluster, "liar"), Client(cluster, "other")
        lie, truth = hash_array(weights), value("x", zeros)
        inputs = (value("x", zeros, lie),) if among_inputs else (truth,)
        params = (value("w", zeros),) if among_inputs else (value("w", zeros, lie),)
        await liar.ask(SubmitJob(graph(), inputs, params, detach=True, job="lie"), JobAccepted)
        await other.ask(SubmitJob(graph(), (truth,), (value("w", weights),), detach=True, job="true"), JobAccepted)
        job = cluster.service._table.get("true", "", everybody=True)
        assert job.kept, "it waits for a worker, and its values are on the disk"
        work = await cluster.service._kept_work(job)
        assert (work.content.params["w"][1] == weights).all()
        for client in (liar, other):
            await client.endpoint.close()

    simulate_durable(0, 0, scenario, mortal=False)
