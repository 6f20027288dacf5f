"""The tests of other processors: every file of the list is there, and every processor is another one."""

from __future__ import annotations

import os
from pathlib import Path

import processors
import pytest
from processors import NUMERICAL, VARIANTS, Variant, arithmetic, environment, has, newer_than_avx2

ROOT = Path(__file__).resolve().parents[2]


def test_every_file_of_the_list_is_there_once() -> None:
    assert len(set(NUMERICAL)) == len(NUMERICAL)
    assert not [path for path in NUMERICAL if not (ROOT / path).is_file()]


def test_whatever_compares_with_recorded_figures_is_in_the_list() -> None:
    """But what starts processes, which takes too long."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if "e2e" not in path.parts]
    found = {str(path.relative_to(ROOT)) for path in files if "\nfrom support.rounding import" in path.read_text()}
    assert found and found <= set(NUMERICAL)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_child_process_rounds_as_the_other_processor(name: str) -> None:
    variant = VARIANTS[name]
    if not has(variant):
        pytest.skip(f"this processor has no {variant.needs}")
    found = arithmetic(environment(variant))
    assert variant.shows in found
    if variant.environment().get("NPY_DISABLE_CPU_FEATURES"):
        assert not any(feature in found for feature in newer_than_avx2())


@pytest.mark.long
def test_what_fails_as_one_processor_fails_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where the others pass, and where an environment has no effect."""
    (tmp_path / "test_it.py").write_text("import os\ndef test_it(): assert os.environ.get('AS') != 'bad'\n")
    monkeypatch.setattr(processors, "NUMERICAL", (str(tmp_path / "test_it.py"),))
    monkeypatch.setattr(processors, "PROCESSES_MAX", 1)
    monkeypatch.setattr(processors, "has", lambda variant: True)

    def run(*rows: Variant) -> int:
        monkeypatch.setattr(processors, "VARIANTS", dict(zip("ab", rows, strict=False)))
        return processors.main(["-p", "no:cacheprovider"])

    good, bad = Variant(lambda: {"AS": "good"}, ""), Variant(lambda: {"AS": "bad"}, "")
    assert run(good) == 0
    assert run(bad, good) == 1
    assert run(Variant(dict, "", "no such kernels"), good) == 1


def test_workers_of_tests_inherit_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from support.processes.commands import environment as of_daemons

    from mesh.backends.local_workers import environment as of_local

    monkeypatch.setenv("OPENBLAS_CORETYPE", "Sandybridge")
    assert of_daemons(tmp_path)["OPENBLAS_CORETYPE"] == of_local()["OPENBLAS_CORETYPE"] == "Sandybridge"
    assert os.environ["OPENBLAS_CORETYPE"] == "Sandybridge"
