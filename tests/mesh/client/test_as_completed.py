"""Jobs in the order in which they end."""

from __future__ import annotations

import numpy as np
import pytest

from mesh import Mesh


def test_waiting_for_the_next_of_many_jobs_leaves_nothing_at_those_that_still_run() -> None:
    with Mesh.builder().simulate(1).build() as mesh:
        jobs = [mesh.submit(lambda x: x + 1, np.float32(number)) for number in range(30)]
        ends = mesh.as_completed(jobs)
        seen, called = [next(ends)], []
        for _ in range(10):
            called.append([len(job._waiter._started.outputs._callbacks or ()) for job in jobs if not job.done()])
            seen.append(next(ends))
        assert max(map(max, called)) == min(map(min, called)), "callbacks pile up at what is not over"
        assert sorted([*seen, *ends]) == [*range(30)]


@pytest.mark.parametrize("simulated", [True, False])
def test_every_place_of_a_job_comes_once(simulated: bool) -> None:
    builder = Mesh.builder().simulate(1) if simulated else Mesh.builder()
    with builder.build() as mesh:
        job, other = (mesh.submit(lambda x: x @ x, np.ones((2, 2))) for _ in range(2))
        assert sorted(mesh.as_completed([job, other, job])) == [0, 1, 2]
        assert [*mesh.as_completed([other])] == [0], "it has ended already"
        assert [*mesh.as_completed([])] == []
