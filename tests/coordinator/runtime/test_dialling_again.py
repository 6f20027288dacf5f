"""A coordinator daemon dials the workers of `--peer`, and those of before, until they answer."""

from __future__ import annotations

import pytest

from mesh.commands.serve import _until_it_answers
from wire.errors import ConnectFailed


@pytest.mark.parametrize(
    "fault", [ConnectFailed("nobody"), OSError(24, "Too many open files"), RuntimeError("can't start new thread")]
)
async def test_a_fault_while_a_worker_is_dialled_keeps_it_from_being_dialled_no_longer_than_that(
    fault: Exception,
) -> None:
    faults, answered = [fault] * 3, list[bool]()

    async def dial() -> None:
        if faults:
            raise faults.pop()
        answered.append(True)

    await _until_it_answers(dial, [0.0] * 9)
    assert answered == [True]
