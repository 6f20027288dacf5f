"""What a node keeps for itself and can do without: a damaged file counts as none."""

from __future__ import annotations

from pathlib import Path

import pytest

from wire.link.identity import kept_node_id
from wire.link.membership import coordinator_known
from worker.devices.benchmark import measured
from worker.engine.protocol import EngineInfo, Measured


class Ruler:
    """An engine that measures the same every time, and counts."""

    info = EngineInfo("cpu", "", "numpy", "", True, 1, {}, {})

    def __init__(self) -> None:
        self.measurements = 0

    def measure(self) -> Measured:
        self.measurements += 1
        return Measured(1.5, 2.5, 1e-5)


DAMAGE = [b"", b"\xff", b"{nope", b"7", b"null", b"[" * 100_000, b"9" * 5000]


@pytest.mark.parametrize(
    "figures",
    [
        *DAMAGE,
        b'{"gflops": 1, "gbytes_per_s": NaN, "dispatch_s": 1}',
        b'{"gflops": 1, "gbytes_per_s": 1, "dispatch_s": -1}',
        b'{"gflops": 1, "gbytes_per_s": 1e999, "dispatch_s": 1}',
        b'{"gflops": ' + b"9" * 400 + b', "gbytes_per_s": 1, "dispatch_s": 1}',
    ],
)
def test_damaged_figures_of_a_device_are_measured_anew(tmp_path: Path, figures: bytes) -> None:
    engine = Ruler()
    first = measured(engine, tmp_path)  # type: ignore[arg-type]
    assert measured(engine, tmp_path) == first and engine.measurements == 1  # type: ignore[arg-type]
    (kept,) = tmp_path.glob("*.json")
    kept.write_bytes(figures)
    assert measured(engine, tmp_path) == first and engine.measurements == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("said", [*DAMAGE, b'"10.0.0.1:7100"', b"[7]", b'["10.0.0.1:port"]', b'{"a": 1}', b"[null]"])
def test_what_are_no_addresses_is_no_coordinator(tmp_path: Path, said: bytes) -> None:
    (tmp_path / "coordinator").write_bytes(said)
    assert coordinator_known(tmp_path / "coordinator") == ()


def test_a_node_id_that_is_no_text_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "node_id").write_bytes(b"\xff\xfe")
    made = kept_node_id(tmp_path)
    assert kept_node_id(tmp_path) == made and len(made) == 32
