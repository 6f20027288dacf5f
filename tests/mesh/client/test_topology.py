"""The topology as a drawing: what it tells, and that it is DOT whatever names hold."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from mesh.client.topology import data, dot, links, quoted
from mesh.core.node import Device, Node
from mesh.util.units import speed_text
from wire.protocol.messages import PairReport

ODD = 'a "b" \\', "naïve\n-- [x]; }", "\\N", "node", "-1", ""
TOKEN = re.compile(r'\s+|"(?:[^"\\\n]|\\.)*"|[A-Za-z_][A-Za-z_0-9]*|--|[{}\[\],;=]')


def node(name: str, state: str = "healthy") -> Node:
    device = Device(0, "wgsl", 'Adapter "X"\\', "vulkan", {}, 8 << 30, 1234.0, 56.0, False)
    return Node(name, name, 1, ("127.0.0.1:7100",), state, "0.1.0", (device,))


PAIRS = (
    PairReport("anna", "ben", "direct", 0.0005, 100e6),
    PairReport("ben", "anna", "relay", 0.002, 20e6, cause="firewall"),
    PairReport("anna", "@coordinator", "shared memory", 0.0001, 0.0),
    PairReport("ben", "carl", "?", 0.0, 0.0, cause="nobody answered"),
)


def test_both_ways_are_one_link_with_the_better_figures() -> None:
    one, two, three = links(PAIRS)
    assert (one.ends, one.path) == (("@coordinator", "anna"), "shared memory")
    assert (two.ends, two.path, two.rtt_s, two.bytes_per_s) == (("anna", "ben"), "direct", 0.0005, 100e6)
    assert two.label == "direct\n0.5 ms, 800 Mbit/s"
    assert (three.path, three.cause, three.label) == ("?", "nobody answered", "?")


def test_a_drawing_has_a_box_per_worker_and_a_line_per_link() -> None:
    text = dot([node("anna"), node("ben", "dead")], PAIRS)
    assert 'n0 [label="anna (healthy)\\nwgsl Adapter \\"X\\"\\\\: 8.0 GiB, 1234 GFLOP/s", color=black];' in text
    assert "n1 [label=" in text
    assert 'n2 [label="@coordinator\\ncoordinator", color=black, shape=ellipse];' in text
    assert 'n0 -- n1 [label="direct\\n0.5 ms, 800 Mbit/s", style=solid];' in text
    assert 'n1 -- n3 [label="?", style=dotted];' in text
    assert data([node("anna")], PAIRS)["links"][1]["ends"] == ("anna", "ben")
    assert json.dumps(data([node("anna")], PAIRS))


def test_a_slow_device_is_told_with_digits() -> None:
    assert [speed_text(each) for each in (1234.4, 98.3, 4.33, 0.1, 0.0)] == ["1234", "98", "4.3", "0.1", "0"]


def test_odd_names_are_still_dot() -> None:
    pairs = [PairReport(one, other, "direct", 0.001, 1e6) for one in ODD for other in ODD if one < other]
    text = dot([node(name) for name in ODD], pairs)
    at = 0
    while at < len(text):
        token = TOKEN.match(text, at)
        assert token, text[at : at + 60]
        at = token.end()
    assert text.count(" -- n") == len(pairs)
    for name in ODD:
        assert quoted(f"{name} (healthy)")[:-1] in text


@pytest.mark.skipif(not shutil.which("dot"), reason="no Graphviz here")
def test_graphviz_draws_it() -> None:
    text = dot([node(name) for name in ODD], PAIRS)
    done = subprocess.run(["dot", "-Tsvg"], input=text.encode(), capture_output=True, check=True)
    assert b"<svg" in done.stdout
