"""The times that can be configured: their rows, their presets, and what people may say about them."""

from __future__ import annotations

import argparse
import ast
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from support.source import walk

from docs.tools.configuration_page import markdown
from mesh import Mesh
from mesh.commands import coord, flags, worker
from mesh.commands.flags import timeouts
from wire.errors import ConfigError
from wire.timeouts import (
    BEATS,
    CLIENT,
    COORDINATOR,
    DEFAULT_TIMEOUTS,
    PRESETS,
    ROWS,
    WORKER,
    Timeouts,
    names_read_by,
    timeouts_of,
)

ROOT = Path(__file__).parents[2]


def test_docs_configuration_is_up_to_date() -> None:
    stored = ROOT / "docs" / "configuration.md"
    assert stored.read_text() == markdown(), "run: python -m docs.tools.configuration_page > docs/configuration.md"


def test_the_default_is_the_lan_and_each_preset_has_its_own_column() -> None:
    assert Timeouts() == DEFAULT_TIMEOUTS == PRESETS["lan"] == PRESETS["local"]
    assert len({tuple(asdict(PRESETS[name]).values()) for name in ("lan", "wifi", "wan", "test")}) == 4


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_a_unit_a_reason_and_bounds_that_its_presets_keep(name: str) -> None:
    about = ROWS[name].metadata
    assert name.endswith("_s") and re.fullmatch(r"[A-Z0-9].*\.", about["why"], re.DOTALL)
    assert 0 <= about["least"] < about["most"]
    for value in (about["least"], about["most"]):
        assert getattr(replace(DEFAULT_TIMEOUTS, **{name: value}), name) == value
    for wrong in (about["least"] - 1e-3 if about["least"] else -1e-3, 2 * about["most"], float("nan"), "1", True, None):
        with pytest.raises(ConfigError, match=name):
            replace(DEFAULT_TIMEOUTS, **{name: wrong})


@pytest.mark.parametrize("name", ["wifi", "wan"])
def test_a_slower_network_is_given_no_less_time_for_anything(name: str) -> None:
    assert all(getattr(PRESETS[name], time) >= getattr(PRESETS["lan"], time) for time in ROWS)


@pytest.mark.parametrize("name", PRESETS)
def test_the_times_of_a_preset_fit_together(name: str) -> None:
    """A ping is answered in time by a node that is late by as much as a node time-out allows."""
    preset = PRESETS[name]
    assert preset.keepalive_answer_s >= 2 * preset.node_timeout_s
    assert preset.tls_handshake_s <= preset.dial_s, "a dial ends no sooner than the handshake in it"
    assert preset.reconnect_first_s <= preset.reconnect_most_s
    assert preset.keepalive_idle_s <= preset.keepalive_resting_s
    assert preset.keep_sessions_s >= 2 * preset.coordinator_return_s, "a client notices the end of its link later"
    assert preset.session_return_s > preset.dial_s + preset.reconnect_most_s or name == "test", "a worker dials again"
    assert preset.worker_wait_s >= preset.reconnect_most_s


def test_every_row_is_read_and_only_by_processes_that_it_names() -> None:
    """`wire` is part of every process; a row that nothing reads is a promise that nobody keeps."""
    of = {"worker": {WORKER}, "coordinator": {COORDINATOR}, "mesh": {COORDINATOR, CLIENT, WORKER}}
    readers: dict[str, set[str]] = {name: set() for name in ROWS}
    for package in ("wire", "worker", "coordinator", "mesh"):
        for path in (ROOT / package).rglob("*.py"):
            if path != ROOT / "wire" / "timeouts.py":
                for node in walk(ast.parse(path.read_text(encoding="utf-8"))):
                    if isinstance(node, ast.Attribute) and node.attr in ROWS and isinstance(node.ctx, ast.Load):
                        readers[node.attr] |= {package}
    for name, packages in readers.items():
        by = set(ROWS[name].metadata["by"])
        assert packages, f"nothing reads {name}"
        assert all(package == "wire" or of[package] & by for package in packages), (name, packages)


# -- what is said of them


def of_command(parser: argparse.ArgumentParser, *arguments: str, process: str = "") -> Timeouts:
    return timeouts(parser.parse_args(arguments), process)


def test_the_builder_takes_a_preset_and_single_times_in_any_order() -> None:
    wanted = replace(PRESETS["wifi"], dial_s=20.0, node_timeout_s=3.0)
    for builder in (
        Mesh.builder().preset("wifi").timeouts(dial_s=20).node_timeout(3),
        Mesh.builder().node_timeout(3).timeouts(dial_s=20).preset("wan").preset("wifi"),
    ):
        assert builder.config.timeouts == wanted
    kept = Mesh.builder().timeouts(dial_s=DEFAULT_TIMEOUTS.dial_s).preset("wan")
    assert kept.config.timeouts.dial_s == DEFAULT_TIMEOUTS.dial_s, "it was said, though it is the default"
    said = "timeouts=Timeouts('wan', node_timeout_s=3.0)"
    assert repr(Mesh.builder().node_timeout(3).preset("wan")) == f"<MeshBuilder: {said}>"
    assert Mesh.builder().heartbeat(0.2).config.timeouts.node_timeout_s == pytest.approx(0.2 * BEATS)


def test_commands_take_the_same() -> None:
    wanted = replace(PRESETS["wan"], dial_s=90.0, collective_timeout_s=7.0)
    given = ("--preset", "wan", "--timeout", "dial_s=90s", "--collective-timeout", "7")
    assert of_command(coord.parser(), "serve", *given, process=COORDINATOR) == wanted
    assert of_command(worker.parser(), "--timeout", "dial_s=1.5m", process=WORKER).dial_s == 90.0
    assert of_command(coord.parser(), "nodes", "--preset", "wifi", process=CLIENT) == PRESETS["wifi"]
    assert of_command(coord.parser(), "doctor", process=CLIENT) == DEFAULT_TIMEOUTS


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--timeout", "dail_s=3"), "there is no time 'dail_s'.*Did you mean dial_s"),
        (("--timeout", "x=3"), "there is no time 'x'.*node_timeout_s, dial_s"),
        (("--timeout", "dial_s"), "names no time.*NAME=SECONDS"),
        (("--timeout", "dial_s=soon"), "'soon' is not a time"),
        (("--timeout", "dial_s=-1"), r"dial_s of -1\.0 s is outside 0\.01 to 86400 s.*To reach a node"),
        (("--timeout", "dial_s=nan"), "dial_s of nan s is outside"),
        (("--timeout", "dial_s=1", "--timeout", "dial_s=2"), "dial_s is given twice"),
        (("--timeout", "node_timeout_s=3", "--node-timeout", "4"), "node_timeout_s is given twice"),
        (("--node-timeout", "1000"), r"outside 0\.15 to 900"),
    ],
)
def test_what_cannot_be_is_told(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        of_command(coord.parser(), "serve", *arguments, process=COORDINATOR)


def test_a_time_that_another_process_reads_is_refused_with_its_name() -> None:
    with pytest.raises(ConfigError, match="node_timeout_s is not read here but by the coordinator"):
        of_command(worker.parser(), "--timeout", "node_timeout_s=3", process=WORKER)
    with pytest.raises(ConfigError, match=r"there is no time 'nodetimeout'.*Did you mean node_timeout_s"):
        Mesh.builder().timeouts(nodetimeout=3)
    with pytest.raises(ConfigError, match=r"there is no preset 'moon'.*lan, wifi, wan, test"):
        Mesh.builder().preset("moon")
    with pytest.raises(ConfigError, match=r"there is no preset \['lan'\]"):
        Mesh.builder().preset(["lan"])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="dial_s is a number of seconds, not 'x'"):
        Mesh.builder().timeouts(dial_s="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", PRESETS)
def test_workers_that_are_started_get_the_times_that_they_read(preset: str) -> None:
    said = timeouts_of(preset, {"dial_s": 0.125, "collective_timeout_s": 5.0})
    command = said.arguments(WORKER)
    assert len(command) <= 4 and not any("collective" in word for word in command), "its coordinator's business"
    heard = of_command(worker.parser(), *command, process=WORKER)
    assert {name: getattr(heard, name) for name in names_read_by(WORKER)} == {
        name: getattr(said, name) for name in names_read_by(WORKER)
    }
    assert DEFAULT_TIMEOUTS.arguments(WORKER) == []


def test_every_flag_for_a_single_time_is_one_of_a_command() -> None:
    asked = vars(coord.parser().parse_args(["serve"])) | vars(worker.parser().parse_args([]))
    assert set(flags.SINGLE_TIMES) <= set(asked)
    assert all(asked[flag] is None for flag in flags.SINGLE_TIMES), "what is not said is the preset's"
