"""How much memory there is: the machine's, or what a container or a service may have of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from wire.system.memory import default_budget, machine_memory

MIB = 1 << 20  # what is tried here is less than any machine has
FIRST, SECOND = "sys/fs/cgroup/memory", "sys/fs/cgroup"
NONE = str((1 << 63) - 4096)  # what the first version says where there is no limit


def first(limit: object, used: int, files: int = 0) -> dict[str, str]:
    stat = f"inactive_file 7\ntotal_inactive_file {files // 2}\ntotal_active_file {files - files // 2}\n"
    return {"memory.limit_in_bytes": f"{limit}\n", "memory.usage_in_bytes": f"{used}\n", "memory.stat": stat}


def second(limit: object, used: int, files: int = 0) -> dict[str, str]:
    return {
        "memory.max": f"{limit}\n",
        "memory.current": f"{used}\n",
        "memory.stat": f"anon 9\nactive_file {files // 2}\ninactive_file {files - files // 2}\n",
    }


BOTH = "9:name=systemd:/\n4:cpu,memory:/app/it\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "folders", "expected"),
    [
        ("0::/\n", {SECOND: second(20 * MIB, 10 * MIB, 5 * MIB)}, (15, 20)),
        ("0::/app.slice/worker.service\n", {f"{SECOND}/app.slice": second(30 * MIB, 10 * MIB)}, (20, 30)),
        (
            "0::/app/worker\n",
            {f"{SECOND}/app": second(30 * MIB, 20 * MIB), f"{SECOND}/app/worker": second(20 * MIB, 0)},
            (10, 20),
        ),
        ("0::/app\n", {f"{SECOND}/app": second("max", 10 * MIB)}, None),
        ("0::/docker/seen-from-outside\n", {SECOND: second(20 * MIB, 0)}, (20, 20)),
        (BOTH, {f"{FIRST}/app/it": first(20 * MIB, 10 * MIB, 5 * MIB), f"{FIRST}/app": first(NONE, MIB)}, (15, 20)),
        (BOTH, {FIRST: first(20 * MIB, 30 * MIB)}, (0, 20)),
        (BOTH, {FIRST: first(NONE, MIB)}, None),
        ("0::/../elsewhere\nno group\n", {}, None),
        ("", {}, None),
    ],
)
def test_a_container_or_a_service_has_no_more_than_its_limit(
    tmp_path: Path,
    groups: str,
    folders: Mapping[str, Mapping[str, str]],
    expected: tuple[int, int] | None,
) -> None:
    for folder, files in {"proc/self": {"cgroup": groups}, **folders}.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    free_bytes, total_bytes = machine_memory(tmp_path)
    if expected is None:
        assert total_bytes == psutil.virtual_memory().total and free_bytes > 30 * MIB
    else:
        assert (free_bytes, total_bytes) == (expected[0] * MIB, expected[1] * MIB)


def test_this_machine_has_some() -> None:
    free_bytes, total_bytes = machine_memory()
    assert 0 < free_bytes <= total_bytes <= psutil.virtual_memory().total
    assert default_budget() == total_bytes // 2
