"""A worker takes no second look at adapters where the first found none, until the machine is another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wire.errors import DeviceLost
from wire.protocol.missing_gpu import ASKED, SOFTWARE, long_text
from wire.system.shared_memory import SharedDir
from worker.config import WorkerConfig
from worker.daemon.engine_hosts import EngineHosts
from worker.daemon.environment import REAL, Environment
from worker.devices.adapter_cache import FILE, AdapterCache, machine
from worker.devices.registry import PROCESSOR, selections
from worker.engine import host_messages as hm
from worker.engine_host.watchdog import loss_of

BOOT = "proc/sys/kernel/random/boot_id"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine without a graphics card, and a software driver."""
    for name, text in ((BOOT, "one\n"), ("usr/share/vulkan/icd.d/lvp.json", "{}"), ("home/.keep", "")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "dev").mkdir()
    return tmp_path


def written(name: str, text: str = "{}") -> Callable[[Path], object]:
    def write(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    return write


CHANGES: dict[str, Callable[[Path], object]] = {
    "the machine started anew": written(BOOT, "two\n"),
    "a driver was installed": written("usr/share/vulkan/icd.d/radeon.json"),
    "a driver was installed by hand": written("etc/vulkan/icd.d/nvidia.json"),
    "a user's own driver": written("home/.local/share/vulkan/icd.d/own.json"),
    "a driver is another": written("usr/share/vulkan/icd.d/lvp.json", "{ }"),
    "a driver is gone": lambda root: (root / "usr/share/vulkan/icd.d/lvp.json").unlink(),
    "a card was put in": written("dev/dri/renderD128"),
    "a card of nvidia's": written("dev/nvidia0"),
}


def looks(root: Path, **variables: str) -> AdapterCache:
    return AdapterCache(lambda: machine(root, {"HOME": str(root / "home"), **variables}, "linux"))


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_machine_is_worth_another_look(root: Path, change: str) -> None:
    kept = root / "cache" / "devices"
    assert not looks(root).found_none(kept)
    looks(root).remember_none(kept, "none")
    assert looks(root).found_none(kept)
    CHANGES[change](root)
    assert not looks(root).found_none(kept)
    looks(root).remember_none(kept, "none")
    assert looks(root).found_none(kept)
    assert [file.name for file in kept.iterdir()] == [FILE], "nothing is left of what was"


def test_so_is_another_environment(root: Path) -> None:
    looks(root).remember_none(root / "cache", "software")
    assert looks(root, EDITOR="vi").found_none(root / "cache") == "software"
    assert not looks(root, VK_ICD_FILENAMES="/opt/driver.json").found_none(root / "cache")


def test_where_nobody_knows_what_changed_nothing_is_remembered(root: Path) -> None:
    for system, lost in (("darwin", False), ("win32", False), ("linux", True)):
        if lost:
            (root / BOOT).unlink()
        elsewhere = AdapterCache(lambda system=system: machine(root, {}, system))
        elsewhere.remember_none(root / "cache", "software")
        assert not elsewhere.found_none(root / "cache")
    assert not (root / "cache").exists()


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"something else"])
def test_a_damaged_memory_is_none_and_one_that_cannot_be_kept_does_no_harm(root: Path, damage: bytes) -> None:
    (root / FILE).write_bytes(damage)
    assert not looks(root).found_none(root)
    nowhere = root / FILE / "folder"
    looks(root).remember_none(nowhere, "none")
    assert not looks(root).found_none(nowhere)


def test_the_next_worker_opens_no_host_for_adapters_that_are_not_there(root: Path) -> None:
    """A device that was asked for is opened.  A worker says why it has no GPU, whether it looked itself or not."""
    none = hm.Opened(None, SOFTWARE)
    assert opened(root, none) == (["best", PROCESSOR], SOFTWARE)
    assert opened(root, none) == ([PROCESSOR], SOFTWARE)
    assert opened(root, none, "wgsl") == (["wgsl", PROCESSOR], "")
    CHANGES["a card was put in"](root)
    assert opened(root, none) == (["best", PROCESSOR], SOFTWARE)


def test_a_worker_that_was_told_to_use_the_cpu_says_so_and_one_whose_driver_failed_says_how(root: Path) -> None:
    assert opened(root, hm.Opened(None), "cpu") == (["cpu"], ASKED)
    lost = hm.OpenFailed(DeviceLost("opening the device failed", cause="exit code -6").to_fields())
    for _ in range(2):
        made, why = opened(root, lost)
        assert made == ["best", PROCESSOR], "a failure is not remembered"
        assert why == "failed: opening the device failed: exit code -6"
        assert long_text(why).endswith("cannot be used (opening the device failed: exit code -6)")


def test_a_worker_whose_engine_host_ends_as_it_opens_its_device_does_not_promise_another_one(root: Path) -> None:
    lost = hm.OpenFailed(loss_of("wgsl", "it was ended by signal 9").to_fields())
    with pytest.raises(DeviceLost, match="ended by signal 9") as told:
        opened(root, lost, "wgsl")
    assert told.value.next_step.startswith("Start mesh-worker again")


def opened(root: Path, best: hm.Opened | hm.OpenFailed, *asked: str) -> tuple[list[str], str]:
    """The hosts that a worker made, and why it has no GPU, if hosts for adapters answer so."""

    async def made_hosts() -> tuple[list[str], str]:
        made: list[str] = []
        none = asyncio.get_running_loop().create_future()
        none.set_result(best)
        empty = asyncio.get_running_loop().create_future()
        empty.set_result(hm.Opened(None))

        class Host:
            selection, device, opened = "", 0, empty
            exited = asyncio.Event()

            async def start(self) -> None:
                made.append(self.selection)

            def kill(self) -> None: ...

        def host(opening: hm.Open, *_: Any) -> Any:
            actual = Host()
            actual.selection = opening.device
            actual.opened = empty if opening.device == PROCESSOR else none
            return actual

        def nothing(*_: Any) -> None: ...

        shared = SharedDir.create(root)
        config = WorkerConfig(measured_dir=str(root / "cache"))
        around = Environment(REAL.endpoint, host, adapter_cache=looks(root))
        engine_hosts = EngineHosts(config, around, "anna", shared, root, (root,), nothing, nothing, nothing)
        await engine_hosts.start(selections(asked))
        await engine_hosts.opened()
        shared.close()
        return made, engine_hosts.without_gpu

    return asyncio.run(made_hosts())
