"""How workers of `Mesh.builder().local(n)` and engine hosts are started in these tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.processes import forked_hosts, forked_workers

from mesh.backends import local_workers

# Each by an interpreter of its own: these look at the arguments and the children of processes.
AS_USERS_DO = ("test_builder.py", "test_other_users.py", "test_engine_hosts.py", "test_programs_of_others.py")
# test_shutdown and test_slowed_worker look at the children of daemons, and a forked host is none.
HOSTS_AS_USERS_DO = (*AS_USERS_DO, "test_shutdown.py", "test_slowed_worker.py")


@pytest.fixture(autouse=True, scope="module")
def workers_and_hosts_are_forked(request: pytest.FixtureRequest) -> Iterator[None]:
    """A fork has imported what a worker or a host needs, which takes longer than most of these tests."""
    with pytest.MonkeyPatch.context() as patched, ExitStack() as stack:
        if request.path.name not in AS_USERS_DO:
            patched.setattr(local_workers, "start_process", forked_workers.start_process)
        if request.path.name not in HOSTS_AS_USERS_DO and sys.platform == "linux":
            stack.enter_context(forked_hosts.installed())
        yield
