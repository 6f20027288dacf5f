"""What a client of a server of models hears of the mesh's errors: a status by which it knows whether to ask again."""

from __future__ import annotations

import pytest

from mesh.serving.api_error import FULL_DISK, api_error
from wire import errors


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.InputError("no such token"), 400, "invalid_value"),
        (errors.QueueFull("32 requests wait"), 429, "rate_limit_exceeded"),
        (errors.Busy("1,024 sessions are open"), 503, "overloaded"),
        (errors.NodeLost("a worker is gone"), 503, "workers_lost"),
        (errors.DeviceLost("the engine host of native is gone"), 503, "workers_lost"),
        (errors.StaleGeneration("plan 7.1 is over"), 503, "workers_lost"),
        (errors.ConnectFailed("nobody at 10.0.0.7:7117"), 503, "workers_lost"),
        (errors.OutOfMemory("no room"), 503, "no_room"),
        (errors.DeadlineExceeded("the run took 600 s"), 504, "deadline_exceeded"),
        (errors.MeshError("something else"), 500, "internal_error"),
    ],
)
def test_an_error_of_the_mesh_has_a_status_and_its_text(error: errors.MeshError, status: int, code: str) -> None:
    answer = api_error(error)
    assert (answer.status, answer.code, answer.message) == (status, code, str(error))


def test_a_full_disk_of_the_coordinator_is_503_and_no_path_is_shown() -> None:
    answer = api_error(errors.NotDurable("/home/ann/state/content cannot be used", cause="/home/ann is full"))
    assert (answer.status, answer.code, answer.message) == (503, "disk_full", FULL_DISK)
    assert api_error(errors.NotDurable("/home/ann")).status == 503


@pytest.mark.parametrize("error", [errors.JournalDamaged("/home/ann/journal is damaged"), KeyError("/home/ann")])
def test_what_only_an_operator_can_mend_is_500_without_its_text(error: Exception) -> None:
    answer = api_error(error)
    assert answer.status == 500 and "ann" not in answer.message
