"""How many cores a process has: those of the machine, or what a container or a service may have of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from wire.system.cores import core_count

FIRST, SECOND = "sys/fs/cgroup/cpu", "sys/fs/cgroup"


def first(quota: int, period: int = 100_000) -> dict[str, str]:
    return {"cpu.cfs_quota_us": f"{quota}\n", "cpu.cfs_period_us": f"{period}\n"}


def second(quota: object, period: int = 100_000) -> dict[str, str]:
    return {"cpu.max": f"{quota} {period}\n"}


BOTH = "4:cpu,cpuacct:/app/it\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "folders", "expected"),
    [
        ("0::/\n", {SECOND: second(400_000)}, 4),
        ("0::/\n", {SECOND: second(250_000)}, 3),
        ("0::/\n", {SECOND: second(10_000)}, 1),
        ("0::/\n", {SECOND: second("max")}, 8),
        ("0::/\n", {SECOND: second(1_600_000)}, 8),
        ("0::/app/it\n", {f"{SECOND}/app": second(200_000), f"{SECOND}/app/it": second(300_000)}, 2),
        ("0::/seen-from-outside\n", {SECOND: second(200_000)}, 2),
        (BOTH, {f"{FIRST}/app/it": first(50_000, 20_000), FIRST: first(-1)}, 3),
        (BOTH, {f"{FIRST}/app/it": first(-1)}, 8),
        (BOTH, {f"{FIRST}/app/it": first(1000, 0)}, 8),
        ("0::/\n", {SECOND: {"cpu.max": "no quota"}}, 8),
        ("no group\n", {}, 8),
    ],
)
def test_a_container_or_a_service_has_no_more_than_its_quota(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    folders: Mapping[str, Mapping[str, str]],
    expected: int,
) -> None:
    for folder, files in {"proc/self": {"cgroup": groups}, **folders}.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert core_count(tmp_path) == expected
