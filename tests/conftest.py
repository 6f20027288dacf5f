"""What holds for all tests."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import kept_kernels

from wire.system.malloc import give_back

PROCESSES = Path(__file__).parent / "e2e"
FILES_OF_PROCESSES_UNTIL = 0.85  # of a run; they take longest, and at its end a core would have nothing else to do
STDERR = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)  # what stands here is not captured

# Each file is compiled once.  Containers often forbid Python to keep bytecode; a run starts a thousand processes, and
# each would compile the whole project again, which takes as long as the rest of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Nobody here asks a server of the internet.  aiohttp reads all authorities of this machine when it is imported, which
# is a sixth of what a daemon's modules take.
os.environ["SSL_CERT_FILE"] = os.devnull
# What jax and scikit-learn set when a test imports them.  Commands are forked only in the environment of the first one.
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "1", "TPU_SKIP_MDS_QUERY": "1"}
os.environ |= {"KMP_INIT_AT_FORK": "FALSE", "KMP_DUPLICATE_LIB_OK": "True"}

# A shell has its background jobs ignore Ctrl-C, which the commands that tests start would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, however long one takes; the long runs ask for others by their seeds.
settings.register_profile(
    "steady", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


def pytest_configure(config: pytest.Config) -> None:
    """One folder for the machine code of all processes of this run: pytest-xdist starts the others after this."""
    if not hasattr(config, "workerinput"):
        kept_kernels.make_folder()
        config.add_cleanup(kept_kernels.remove_folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of processes are spread among the others: their tests wait for most of the time, and the others compute.
    One after the other, cores would have nothing to do at first, and four processes for two of them later."""
    files = list(dict.fromkeys(item.path for item in items))
    place: dict[Path, float] = {}
    for waiting, until in ((True, FILES_OF_PROCESSES_UNTIL), (False, 1.0)):
        those = [path for path in files if (PROCESSES in path.parents) == waiting]
        place |= {path: until * number / len(those) for number, path in enumerate(those)}
    items.sort(key=lambda item: place[item.path])  # which leaves those of a file in their order


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    result = yield
    if nextitem is None or nextitem.path != item.path:
        pytest_collection_finish()
    return result


def pytest_collection_finish() -> None:
    """What is there stays out of later collections of garbage: the tests themselves, and what those of a file leave
    behind, which are gigabytes in the end.  Tests that collect after every step took twenty times as long in a whole
    run as alone.  What is free goes back to the system: there is a process for every core."""
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()  # programs that XLA compiled
    gc.collect()
    gc.freeze()
    give_back()


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item) -> bool | None:
    """A long test may take longer than `timeout`: nothing sets a timer for it."""
    return True if item.get_closest_marker("long") else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """pytest watches over a test by `faulthandler_timeout`, but not once it failed; tearing down what it left may hang
    as well."""
    _end_if_it_hangs(item.config)
    return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A thread that is left over would keep this process from its end, without a word."""
    _end_if_it_hangs(session.config)


def _end_if_it_hangs(config: pytest.Config) -> None:
    """The stacks of all threads are told then, and this process ends: pytest-xdist says which test that was."""
    if within_s := float(config.getini("faulthandler_timeout") or 0.0):
        faulthandler.dump_traceback_later(within_s, file=STDERR, exit=True)
