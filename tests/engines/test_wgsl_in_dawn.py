"""Kernels are WGSL as the standard has it: Dawn, the WebGPU of Chromium, accepts what wgpu does.

What the other tests of this folder make is judged as well (conftest.py).  Nothing here needs an adapter.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.cases.op_cases import PROGRAMS, ROWS, Case, cases
from support.cases.random_graphs import random_graph
from support.dawn import needs_dawn, refusal

from wire.ir.dtypes import BY_NAME
from wire.ir.graph import WireGraph
from wire.ir.ops import inner_graphs
from wire.passes.unroll_spmd import unroll
from worker.wgsl.control_schedule import Segment, schedule
from worker.wgsl.device import PROBE
from worker.wgsl.lower import lower
from worker.wgsl.profile import CPU_ONLY, Profile
from worker.wgsl.shaders import Shaders

pytestmark = needs_dawn

PROFILES = {  # all have the limits that WebGPU guarantees
    "software with subgroups": Profile(subgroup=8, f16=True),
    "software with wide subgroups": Profile(subgroup=16, f16=True),
    "software": Profile(),
    "gpu": Profile(software=False, f16=True),
}
SAMPLE = 10  # every so many cases are in the default run

REFUSED = {
    "a barrier that only some invocations reach": "@compute @workgroup_size(64) "
    "fn main(@builtin(local_invocation_index) lane: u32) { if (lane < 3u) { workgroupBarrier(); } }",
    "32 KiB of workgroup memory": "var<workgroup> most: array<f32, 8192>; "
    "@compute @workgroup_size(64) fn main() { most[0] = 1.0; }",
    "512 invocations": "@compute @workgroup_size(512) fn main() {}",
    "subgroups that were not asked for": "@compute @workgroup_size(64) "
    "fn main(@builtin(subgroup_size) size: u32) { let most = size; }",
}


@pytest.mark.parametrize("what", REFUSED)
def test_dawn_refuses_what_wgpu_lets_pass(what: str) -> None:
    """The judge can say no."""
    assert refusal(REFUSED[what])


@pytest.mark.parametrize("profile", PROFILES)
def test_dawn_accepts_the_kernels_of_every_op(profile: str) -> None:
    check_kernels(PROFILES[profile], every_case()[::SAMPLE])


@pytest.mark.long
@pytest.mark.parametrize("profile", PROFILES)
def test_dawn_accepts_the_kernels_of_every_case(profile: str) -> None:
    assert check_kernels(PROFILES[profile], every_case()) > 2000


@pytest.mark.long
@pytest.mark.parametrize("profile", PROFILES)
def test_dawn_accepts_the_kernels_of_random_graphs(profile: str) -> None:
    known = PROFILES[profile]
    dtypes = [BY_NAME[name] for name in known.dtypes]
    graphs = [random_graph(seed, dtypes=dtypes, matrices=False).graph for seed in range(100)]
    assert check_graphs(known, graphs) > 1000


def test_dawn_accepts_the_question_for_subgroups() -> None:
    assert not refusal(PROBE)


def every_case() -> list[Case]:
    return [case for op in (*ROWS, *PROGRAMS) for case in cases(op)]


def check_kernels(profile: Profile, of: list[Case]) -> int:
    """AssertionError if Dawn refuses a kernel of a case; how many kernels there are."""
    return check_graphs(profile, [case.graph for case in of if has_kernels(case.graph, profile)])


def check_graphs(profile: Profile, graphs: list[WireGraph]) -> int:
    known = Shaders(profile)
    pieces = (piece for graph in graphs for piece in straight(unroll(graph)))
    texts = {module.text for piece in pieces for module in lower(piece, known).modules}
    refusals = [f"{refused}\n{text}" for text in texts if (refused := refusal(text))]
    assert not refusals, f"{len(refusals)} of {len(texts)} kernels are refused, among them:\n{refusals[0]}"
    return len(texts)


def straight(graph: WireGraph) -> Iterator[WireGraph]:
    """What an engine compiles of a graph: its stretches without branches and loops, and those within these."""
    for step in schedule(graph).steps:
        if isinstance(step, Segment):
            yield step.graph
        else:
            for inner in inner_graphs(step.node.op, step.node.attrs):
                yield from straight(inner)


def has_kernels(graph: WireGraph, profile: Profile) -> bool:
    """Whether an engine of the profile computes every op of a graph in its dtypes."""
    return (
        {node.op for node in graph.nodes}.isdisjoint(CPU_ONLY)
        and {kind.dtype.name for kind in graph.types} <= {*profile.dtypes}
        and all(has_kernels(inner, profile) for node in graph.nodes for inner in inner_graphs(node.op, node.attrs))
    )
